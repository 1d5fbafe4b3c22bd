"""Attempts of a message: how they are counted, when it is given up, and the delay between two of them.

`message.attempts` counts starts of a handler whose lease has ended. Its high half counts those that ended without an outcome: the
lease expired, so the consumer probably died. The high half is 0 if the configuration has no `retry_for_seconds`. Versions older
than that setting refuse a queue that has it, so they never see another value. Only this module writes or splits such a number;
SQL that shows attempts masks it with 4294967295.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from ..._config import QueueConfig
from ..commit.tx import SECOND

_HALF: Final = 32
_MASK: Final = (1 << _HALF) - 1
FAILED: Final = 1
"""What a failed (nacked) start adds."""
JITTER: Final = 0.25
"""The maximum deviation of a delay, as a fraction of it."""


def starts(stored: int) -> int:
    """Return the number of starts."""
    return stored & _MASK


def crashes(stored: int) -> int:
    """Return the number of starts that ended without an outcome."""
    return stored >> _HALF


def crashed(config: QueueConfig) -> int:
    """Return what a start adds that ended without an outcome."""
    return 1 + (1 << _HALF) if config.retry_for_seconds else 1


def given_up(config: QueueConfig, stored: int, failing: int | None = None) -> bool:
    """Return whether a message is out of attempts.

    A crash counts against `max_attempts` alone. A failure counts only once `retry_for_seconds` have passed. That is decided
    when an attempt has just failed, so a message that waited for long is tried once more before it is given up.

    Args:
        failing: microseconds since the first failed attempt began, if one has just failed; None: at a claim.
    """
    limit = config.max_attempts
    if limit is None:
        return False
    if not config.retry_for_seconds:
        return starts(stored) >= limit
    if crashes(stored) >= limit:
        return True
    return failing is not None and starts(stored) >= limit and failing >= config.retry_for_seconds * SECOND


def why(config: QueueConfig, stored: int, failing: int, last: str | None) -> str:
    """Return the reason why a message is given up, which is stored with the dead letter."""
    if not config.retry_for_seconds:
        return last or f"failed {starts(stored)} times"
    lost = crashes(stored)
    failed = starts(stored) - lost
    parts = [f"failed {_times(failed)} in {span(failing)}"] if failed else []
    if lost:
        parts.append(
            f"{_times(lost)} its lease ran out after a start" if failed else f"its lease ran out {_times(lost)} after a start"
        )
    return ", ".join(parts) + (f"; last: {last}" if last else "")


def _times(n: int) -> str:
    return "1 time" if n == 1 else f"{n:,} times"


def span(microseconds: int) -> str:
    """Return a duration as text, in its two largest units."""
    seconds = max(microseconds, 0) // SECOND
    for unit, of, smaller, name in (("d", 86_400, 3_600, "h"), ("h", 3_600, 60, "min"), ("min", 60, 1, "s")):
        if seconds >= of:
            return f"{seconds // of} {unit} {seconds % of // smaller} {name}"
    return f"{max(microseconds, 0) / SECOND:.3g} s"


def retry_delay(config: QueueConfig, key: bytes, attempts: int) -> int:
    """Return the microseconds that a lane waits after attempt number `attempts` failed.

    The delay differs by lane, so that lanes that failed together are not retried together. It is the same each time for a lane
    and an attempt.
    """
    if not config.retry_delay_seconds:
        return 0
    longest = config.retry_delay_max_seconds
    # The growth ends a little below the maximum, which would leave no room for deviations.
    wait = min(config.retry_delay(attempts), longest / (1 + JITTER))
    return int(wait * (1 - JITTER + 2 * JITTER * crc32(key, attempts) / 2**32) * SECOND)
