"""What happens to a worker's jobs, told: as log records, and to the program's hook."""

from __future__ import annotations

import logging
import traceback
from typing import Any, Final

import attrs

from .. import _validate as validate
from ..delivery import describe

log: Final = logging.getLogger("strictq.worker")
PROBLEMS: Final = ("retried", "poison", "rejected", "lost", "timeout")
"""Kinds of events that are logged as warnings."""


@attrs.frozen
class WorkerEvent:
    """A change of a job's state, for `Worker(on_event=...)`; called in the worker's threads, after what it tells of.

    Attributes:
        kind: "leased", "preparing", "prepared", "processing", "acked", "retried", "poison", "rejected", "lost", "timeout",
            "released". "poison" instead of "retried" where the message is out of attempts.
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


def speaks_for_itself(error: BaseException) -> bool:
    """It is one of the worker's own, made for people."""
    return bool(getattr(error, "speaks_for_itself", False))


def where(error: BaseException) -> str:
    """The line of the handler's code that raised it; "" for what the worker itself made."""
    frames = traceback.extract_tb(error.__traceback__, -1) if not speaks_for_itself(error) else ()
    return "".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)


def reason_of(error: BaseException) -> str:
    """An exception as a reason, as it is kept; one of the worker's own speaks for itself."""
    said = str(error) if speaks_for_itself(error) else describe(error)
    return validate.text("reason", said) or ""
