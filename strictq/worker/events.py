"""Log a worker's events, and format errors of handlers."""

from __future__ import annotations

import logging
import time
import traceback
from typing import Final

from .._client import validate
from .._platform.log import Log
from .._values.findings import WorkerEvent
from .._values.types import Event
from ..delivery import describe, traceback_of
from .job import Reject, Retry

log: Final = Log("strictq.worker")
PROBLEMS: Final = ("retried", "lost", "timeout")
"""Kinds of job events that are logged as warnings."""
GIVEN_UP: Final = ("poison", "rejected")
"""Kinds that are logged as errors, because the message is not retried."""
LINE: Final = "%s key=%r seq=%d token=%d %s%s"
FIELDS: Final = ("key", "seq", "token", "attempt", "max_attempts", "seconds", "wait_seconds")
OF_RUN: Final = ("breaker_opened", "breaker_closed", "worker_source_failed", "worker_source_works")
"""Kinds that concern no single message."""


def log_event(event: WorkerEvent) -> None:
    """Log an event: poison and rejected messages as errors, other problems as warnings, the rest for debugging."""
    if event.kind in OF_RUN:
        log.warning("%s: %s", event.kind.replace("_", " "), event.detail)
        return
    level = logging.ERROR if event.kind in GIVEN_UP else logging.WARNING if event.kind in PROBLEMS else logging.DEBUG
    logger = log.logger
    if logger.isEnabledFor(level):
        fields = {name: getattr(event, name) for name in FIELDS}
        text = f"{event.detail} ({event.where})" if event.where else event.detail
        if event.wait_seconds is not None:
            text = f"{text}; {next_try(event.wait_seconds)}"
        args = (event.kind, event.key, event.seq, event.token, attempt_of(event), f": {text}" if text else "")
        record = logger.makeRecord(logger.name, level, __file__, 0, LINE, args, None, extra={"strictq": fields})
        # The worker's own errors have no useful traceback.
        if event.kind in GIVEN_UP and event.error is not None and not speaks_for_itself(event.error):
            record.exc_info = (type(event.error), event.error, event.error.__traceback__)
            record.exc_text = traceback_of(event.error)
        log.handle(record)


def kept_traceback(error: BaseException) -> str | None:
    """Return the traceback to store with the message; None if the error's text is sufficient."""
    if (found := getattr(error, "handler_traceback", None)) is not None:
        return str(found)
    if isinstance(error, Retry | Reject):
        return None if error.__cause__ is None else traceback_of(error.__cause__)
    return None if speaks_for_itself(error) else traceback_of(error)


def log_run(event: Event) -> None:
    """Log that a worker started or stopped."""
    log.info("%s: %s", event.kind.replace("_", " "), event.detail)


def attempt_of(event: WorkerEvent) -> str:
    """Format the attempt, and its limit unless a further one follows all the same, as in a queue with retry_for_seconds."""
    limit, again = event.max_attempts, event.wait_seconds is not None
    if limit is None or event.attempt > limit or (again and event.attempt == limit):
        return f"attempt {event.attempt}"
    return f"attempt {event.attempt}/{limit}"


def next_try(seconds: float) -> str:
    """Format the earliest time of the next attempt, in local time."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + seconds))
    return f"next try at {at}, in {seconds:,.3g} s"


def speaks_for_itself(error: BaseException) -> bool:
    """Return whether an error is one of the worker's own, whose text is written for users."""
    return bool(getattr(error, "speaks_for_itself", False))


def where(error: BaseException) -> str:
    """Return the line of the handler's code that raised the error; "" for the worker's own errors."""
    frames = traceback.extract_tb(error.__traceback__, -1) if not speaks_for_itself(error) else ()
    return "".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)


def reason_of(error: BaseException) -> str:
    """Return an exception as a reason to store. The worker's own errors are stored without their type."""
    said = str(error) if speaks_for_itself(error) else describe(error)
    return validate.text("reason", said) or ""
