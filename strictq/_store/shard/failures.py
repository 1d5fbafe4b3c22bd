"""The errors of a message's attempts: the newest few, stored with the message, bounded in bytes.

They are stored as JSON, [[attempt, queue time in microseconds, error, traceback or null], …], oldest first, in a column of the
message. A message that never fails has NULL there, and nothing is written or read for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw

from ..._platform.clock import QueueTime
from ..._values.retries import span
from ..disk.stored import json_of

if TYPE_CHECKING:
    from ..._values.findings import AttemptError

KEPT_MAX: Final = 5
ERROR_BYTES_MAX: Final = 2_000
"""The maximum size of an error. Its beginning is kept."""
TRACEBACK_BYTES_MAX: Final = 4_000
"""The maximum size of a traceback. Its end is kept, where the error was raised."""
AT_REBOOT: Final = "the lease ended at a reboot"
"""The beginning of the error of an attempt that a reboot ended."""
TOTAL_BYTES_MAX: Final = 32_000
"""The maximum size of the column. The oldest errors are dropped first. JSON makes some characters longer."""


class AttemptFailure(NamedTuple):
    """The error and output of an attempt.

    Attributes:
        error: None: there was none.
        output: the handler's output.
        traceback: where the error was raised.
    """

    error: str | None = None
    output: str | None = None
    traceback: str | None = None


def with_failure(stored: str | None, attempt: int, now: int, failure: AttemptFailure) -> str | None:
    """Return the stored errors after an attempt. Without an error they are unchanged."""
    if failure.error is None:
        return stored
    trace = failure.traceback
    entry = [attempt, now, _beginning(failure.error, ERROR_BYTES_MAX), trace and _end(trace, TRACEBACK_BYTES_MAX)]
    entries: list[Any] = [*_entries(stored), entry][-KEPT_MAX:]
    while len(text := _json(entries)) > TOTAL_BYTES_MAX and len(entries) > 1:
        del entries[0]
    return text.decode()


def of_lost_lease(consumer: str, leased_at: int, deadline: int, now: int) -> tuple[str, int]:
    """Return the error of an attempt whose lease ended without an outcome, and when that was.

    The consumer died, or its handler was slower than its lease. A worker's leases end early when it is found dead.
    """
    if deadline < leased_at:  # writer.end_epoch
        return f"{AT_REBOOT} without an outcome; {consumer} held it", now
    return f"the lease ended after {span(deadline - leased_at)} without an outcome; {consumer} held it", deadline


def of_dead_process(consumer: str, leased_at: int, now: int) -> str:
    """Return the error of an attempt that ran beside others when their process died, so that none of them is charged."""
    return f"the process of {consumer} died {span(now - leased_at)} after the lease began; it ran several messages"


def shown(stored: str | None, time: QueueTime) -> tuple[AttemptError, ...]:
    """Return the errors for reports, oldest first."""
    if not stored:
        return ()
    from ..._values.findings import AttemptError

    return tuple(AttemptError(attempt, time.to_wall(at), error, trace) for attempt, at, error, trace in _entries(stored))


def _entries(stored: str | None) -> list[Any]:
    if not stored:
        return []
    found = json_of(stored)
    if not isinstance(found, list) or not all(isinstance(e, list) and len(e) == 4 and isinstance(e[1], int) for e in found):
        raise apsw.CorruptError("the errors of a message are invalid")
    return found


def _json(entries: list[Any]) -> bytes:
    return json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()


def _beginning(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")


def _end(text: str, most: int) -> str:
    return text.encode()[-most:].decode(errors="ignore")
