"""The load that a worker reports, for `stats` in any process."""

from __future__ import annotations

from typing import Final

from .._errors import StoreError
from .._receiving import default_consumer
from .._stats import WorkerLoad
from .events import log
from .state import State

REPORT_SECONDS: Final = 5.0
"""Seconds between two reports. A worker that ends before the first one makes none."""


class LoadReport:
    """Report the worker's load to other processes. Part of the keeper."""

    def __init__(self, state: State, consumer: str | None) -> None:
        self._state = state
        self._consumer = consumer
        self._notice = state.client.storage.notice(WorkerLoad)
        self._since = state.client.storage.clock.wall() / 1e6
        self._at = state.clock()
        self._busy = 0.0
        self._shown: WorkerLoad | None = None
        self._due = self._at + REPORT_SECONDS

    def tell(self, now: float) -> None:
        """Report the load of the last seconds, if it is time. An unchanged report is not written again."""
        if now < self._due:
            return
        self._due = now + REPORT_SECONDS
        state = self._state
        with state.board.lock:
            busy, running = state.busy_until(now), len(state.running())
        slots = (now - self._at) * state.board.limits.concurrency
        ratio = min(max((busy - self._busy) / slots, 0.0), 1.0) if slots > 0 else 0.0
        self._at, self._busy = now, busy
        who = self._consumer or default_consumer()
        load = WorkerLoad(who, self._since, state.board.limits.concurrency, running, round(ratio, 3))
        if load == self._shown:
            return
        try:
            self._notice.put(load)
            self._shown = load
        except (OSError, StoreError) as e:  # the report is for operators; the work does not depend on it
            log.warning("the worker's load could not be reported to other processes: %s", e)

    def end(self) -> None:
        """Remove the report when the worker ends."""
        self._notice.remove()
