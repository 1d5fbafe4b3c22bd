"""What happens to a worker's jobs, told: as log records, and to the program's hook."""

from __future__ import annotations

import logging
from typing import Any, Final

import attrs

from .. import _validate as validate
from ..delivery import describe

log: Final = logging.getLogger("strictq.worker")
PROBLEMS: Final = ("retried", "rejected", "lost", "timeout")
"""Kinds of events that are logged as warnings."""


@attrs.frozen
class WorkerEvent:
    """A change of a job's state, for `Worker(on_event=...)`; called in the worker's threads, after what it tells of.

    Attributes:
        kind: "leased", "preparing", "prepared", "processing", "acked", "retried", "rejected", "lost", "timeout", "released".
        at: `time.monotonic()`.
        seconds: how long the handler took, where one came back.
        detail: error or reason, for a person.
    """

    kind: str
    key: Any
    seq: int
    token: int
    attempt: int
    at: float
    seconds: float | None = None
    detail: str = ""


def reason_of(error: BaseException) -> str:
    """An exception as a reason, as it is kept; one of the worker's own speaks for itself."""
    said = str(error) if getattr(error, "speaks_for_itself", False) else describe(error)
    return validate.text("reason", said) or ""
