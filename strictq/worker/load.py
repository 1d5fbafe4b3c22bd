"""A worker among the live consumers: its shards, its load, and the progress of its handlers, for any process to see."""

from __future__ import annotations

from typing import Final

from .._store.api import Attempt, RunningHandlers
from .._values.errors import StoreError
from .events import log
from .job import Job
from .source import LOAD
from .state import State

REPORT_SECONDS: Final = 5.0
"""Seconds between two reports of the load."""
PROGRESS_SECONDS: Final = 0.25
"""Seconds between two reports of the handlers' progress."""


class LoadReport:
    """Report the worker's load to other processes. Part of the keeper."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._at = state.clock()
        self._busy = 0.0
        self._due = self._at + REPORT_SECONDS

    def tell(self, now: float) -> None:
        """Report the load of the last seconds, if it is time. An unchanged one is not written again."""
        if now < self._due:
            return
        self._due = now + REPORT_SECONDS
        state = self._state
        with state.board.lock:
            busy, running = state.busy_until(now), len(state.running())
        slots = (now - self._at) * state.board.limits.concurrency
        ratio = min(max((busy - self._busy) / slots, 0.0), 1.0) if slots > 0 else 0.0
        self._at, self._busy = now, busy
        try:
            state.source.report(LOAD, {"running": running, "busy_ratio": round(ratio, 3)})
        except OSError as e:  # the report is for operators; the work does not depend on it
            log.warning("the worker's load could not be reported to other processes: %s", e)


class ProgressReport:
    """Report the progress of running handlers to other processes. Part of the keeper."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._shown: dict[Attempt, tuple[float, str, float]] = {}
        self._due = 0.0
        self._failed = False

    def tell(self, now: float) -> None:
        """Report what handlers said, if it is time and anything changed. A failure is logged once."""
        if now < self._due:
            return
        self._due = now + PROGRESS_SECONDS
        board = self._state.board
        with board.lock:
            jobs = [job for job in (*board.running, *board.preparing) if job._progress is not None]
        progress = {_attempt_of(job): job._progress for job in jobs if job._progress is not None}
        if progress == self._shown:
            return
        try:
            self._state.source.report(RunningHandlers, RunningHandlers(progress))
            self._shown = progress
        except (OSError, StoreError) as e:  # no handler depends on it
            if not self._failed:
                log.warning("the progress of handlers could not be reported to other processes: %s", e)
            self._failed = True

    def end(self) -> None:
        """Remove the report when the worker ends."""
        self._state.source.report(RunningHandlers, None)


def _attempt_of(job: Job) -> Attempt:
    d = job._delivery
    return d.lease.shard, d.id, d.token
