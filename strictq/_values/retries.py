"""The retry policy of a queue: when a message is tried again, and when it is given up. A policy is the settings of its config.

An attempt is a start of a handler whose lease has ended. If it ended without an outcome, because the lease expired, the consumer
probably died: such attempts are counted as crashes, too.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from .config import QueueConfig

SECOND: Final = 1_000_000
"""Microseconds."""
JITTER: Final = 0.25
"""The maximum deviation of a delay, as a fraction of it."""


def given_up(config: QueueConfig, starts: int, crashes: int, failing: int | None = None) -> bool:
    """Return whether a message is out of attempts.

    A crash counts against `max_attempts` alone. A failure counts only once `retry_for_seconds` have passed. That is decided
    when an attempt has just failed, so a message that waited for long is tried once more before it is given up.

    Args:
        starts, crashes: attempts, and those among them that ended without an outcome.
        failing: microseconds since the first failed attempt began, if one has just failed; None: at a claim.
    """
    limit = config.max_attempts
    if limit is None:
        return False
    if not config.retry_for_seconds:
        return starts >= limit
    if crashes >= limit:
        return True
    return failing is not None and starts >= limit and failing >= config.retry_for_seconds * SECOND


def why(config: QueueConfig, starts: int, crashes: int, failing: int, last: str | None) -> str:
    """Return the reason why a message is given up, which is stored with the dead letter."""
    if not config.retry_for_seconds:
        return last or f"failed {starts} times"
    failed = starts - crashes
    parts = [f"failed {_times(failed)} in {span(failing)}"] if failed else []
    if crashes:
        parts.append(
            f"{_times(crashes)} its lease ran out after a start"
            if failed
            else f"its lease ran out {_times(crashes)} after a start"
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
    # The growth ends a little below the maximum, which would leave no room for deviations.
    wait = min(seconds_between(config, attempts), config.retry_delay_max_seconds / (1 + JITTER))
    return int(wait * (1 - JITTER + 2 * JITTER * crc32(key, attempts) / 2**32) * SECOND)


def seconds_between(config: QueueConfig, attempts: int) -> float:
    """Return the seconds between attempt number `attempts` (from 1) and the next one, before the deviation by lane."""
    if config.retry_delay_seconds <= 0.0:
        return 0.0
    # The exponent is capped: 100.0 ** 1_000_000 overflows a float.
    return min(config.retry_delay_seconds * config.retry_backoff ** min(attempts - 1, 150), config.retry_delay_max_seconds)
