"""How the queries of this driver get on: told beside each queue they read, for `q.consumers()` and `strictq stats`.

It hears what Spark tells its listeners, and asks for nothing. A report that can't be written is left out: the next one comes.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import attrs

from .._errors import StoreError
from .._findings import QueryReport
from .._query_reports import write

WINDOW_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 10.0
QUERIES_MAX: Final = 1_000
"""Runs that are remembered: the oldest is forgotten if Spark never told their end."""

_log = logging.getLogger("strictq")


@attrs.frozen
class Read:
    """What a batch read of one queue."""

    path: str
    queue_id: str
    consumer: str
    messages: int


@attrs.define
class _Run:
    """One run of a query, and what it read of one queue."""

    read: Read
    report: QueryReport
    batches: deque[tuple[float, float, int]] = attrs.field(factory=deque)
    """When each began and ended, and its messages."""
    told: bool = True
    """The last report was written, or its failure was logged."""
    unreadable: str | None = None
    """Why the query goes on without this queue."""

    def rate(self, now: float) -> float:
        """Messages a second in the window before now."""
        while self.batches and self.batches[0][1] < now - WINDOW_SECONDS:
            self.batches.popleft()
        if not self.batches:
            return 0.0
        return sum(n for _, _, n in self.batches) / max(now - min(began for began, _, _ in self.batches), 0.001)


class Monitor:
    """The reports of a driver's queries. Used by one thread, that of Spark's listeners."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._runs: dict[str, dict[tuple[str, str], _Run]] = {}

    def batch(self, run: str, query: str, name: str | None, number: int, seconds: float, read: Sequence[Read]) -> None:
        """A batch is committed.

        Args:
            run: Spark's id of this run of the query; query: of the query.
            seconds: what it took.
            read: what it read of each queue.
        """
        now = self._now()
        while len(self._runs) >= QUERIES_MAX and run not in self._runs:
            del self._runs[next(iter(self._runs))]
        of_run = self._runs.setdefault(run, {})
        for part in read:
            report = QueryReport(name, query, "running", number, part.messages, seconds, 0.0, now)
            known = of_run.setdefault((part.path, part.consumer), _Run(part, report))
            if part.messages:
                known.batches.append((now - seconds, now, part.messages))
                known.report = report
            # Of many queues, those that had nothing are written as seldom as a query without batches reports.
            if part.messages or known.report is report or len(read) == 1 or now - known.report.at >= IDLE_SECONDS:
                self._tell(known, "running")

    def unreadable(self, run: str, missing: Mapping[str, str]) -> None:
        """Report which of a run's queues it goes on without.

        Args:
            missing: path → reason.
        """
        for (path, _), known in self._runs.get(run, {}).items():
            before, known.unreadable = known.unreadable, missing.get(path)
            if known.unreadable not in (None, before) and os.path.isdir(path):
                self._tell(known, "running")

    def idle(self, run: str) -> None:
        """The query is alive, and there was nothing to do."""
        for known in self._runs.get(run, {}).values():
            self._tell(known, "running")

    def end(self, run: str, error: str | None) -> None:
        """The query ended, by itself or with an error."""
        for known in self._runs.pop(run, {}).values():
            self._tell(known, "ended" if error is None else "failed", error)

    def _tell(self, known: _Run, state: Literal["running", "ended", "failed"], error: str | None = None) -> None:
        now = self._now()
        if error is None and known.unreadable is not None:
            state, error = "failed", known.unreadable
        known.report = attrs.evolve(known.report, state=state, error=error, at=now, messages_per_second=known.rate(now))
        read = known.read
        try:
            write(read.path, read.queue_id, read.consumer, known.report)
        except (OSError, StoreError) as e:
            if known.told:
                _log.warning("no report of consumer %s: %s", read.consumer, e)
            known.told = False
        else:
            known.told = True
