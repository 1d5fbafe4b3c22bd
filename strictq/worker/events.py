"""A worker's events in the log, and errors of handlers in words."""

from __future__ import annotations

import logging
import traceback
from typing import Final

from .. import _validate as validate
from .._findings import WorkerEvent
from ..delivery import describe

log: Final = logging.getLogger("strictq.worker")
PROBLEMS: Final = ("retried", "poison", "rejected", "lost", "timeout")
"""Kinds of a job's events that are logged as warnings."""
BREAKER: Final = ("breaker_opened", "breaker_closed")


def log_event(event: WorkerEvent) -> None:
    """Write an event to the log: what goes wrong as a warning, what a breaker does, too, and the rest for debugging."""
    if event.kind in BREAKER:
        log.warning("%s: %s", event.kind.replace("_", " "), event.detail)
        return
    level = logging.WARNING if event.kind in PROBLEMS else logging.DEBUG
    if log.isEnabledFor(level):
        fields = {name: getattr(event, name) for name in ("key", "seq", "token", "attempt", "seconds")}
        text = f"{event.detail} ({event.where})" if event.where else event.detail
        message = "%s key=%r seq=%d token=%d %s"
        log.log(level, message, event.kind, event.key, event.seq, event.token, text, extra={"strictq": fields})


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
