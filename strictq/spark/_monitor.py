"""Reports on the queries of this driver, stored beside each queue that they read, for `q.consumers()` and `strictq stats`.

They are built from the events of Spark's listeners alone. A report that can't be written is skipped.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import attrs

from .._client.query_reports import write
from .._platform.log import log as _log
from .._values.errors import StoreError
from .._values.findings import QueryReport

WINDOW_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 10.0
QUERIES_MAX: Final = 1_000
"""The most runs that are kept. The oldest one is dropped, in case Spark never reported its end."""


@attrs.frozen
class Read:
    """The messages of one queue in a batch."""

    path: str
    queue_id: str
    consumer: str
    messages: int


@attrs.define
class _Run:
    """One run of a query, for one of its queues."""

    read: Read
    report: QueryReport
    batches: deque[tuple[float, float, int]] = attrs.field(factory=deque)
    """Start and end of each batch, and its number of messages."""
    is_written: bool = True
    """Whether the last report was written. If not, its failure was logged."""
    unreadable: str | None = None
    """The reason why the query continues without this queue, or None."""

    def rate(self, now: float) -> float:
        """Return the messages per second in the window before `now`."""
        while self.batches and self.batches[0][1] < now - WINDOW_SECONDS:
            self.batches.popleft()
        if not self.batches:
            return 0.0
        return sum(n for _, _, n in self.batches) / max(now - min(began for began, _, _ in self.batches), 0.001)


class Monitor:
    """The reports of a driver's queries. Used by the thread of Spark's listeners only."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._runs: dict[str, dict[tuple[str, str], _Run]] = {}

    def batch(self, run: str, query: str, name: str | None, number: int, seconds: float, read: Sequence[Read]) -> None:
        """Report a committed batch.

        Args:
            run: Spark's id of this run; query: Spark's id of the query.
            seconds: the duration of the batch.
            read: the messages of each queue in the batch.
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
            # Of many queues, those without messages are reported as rarely as a query without batches.
            if part.messages or known.report is report or len(read) == 1 or now - known.report.at >= IDLE_SECONDS:
                self._tell(known, "running")

    def unreadable(self, run: str, missing: Mapping[str, str]) -> None:
        """Report the queues that a run continues without.

        Args:
            missing: path → reason.
        """
        for (path, _), known in self._runs.get(run, {}).items():
            before, known.unreadable = known.unreadable, missing.get(path)
            if known.unreadable not in (None, before) and os.path.isdir(path):
                self._tell(known, "running")

    def idle(self, run: str) -> None:
        """Report that the query is alive without new batches."""
        for known in self._runs.get(run, {}).values():
            self._tell(known, "running")

    def end(self, run: str, error: str | None) -> None:
        """Report the end of a query, with its error if it failed."""
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
            if known.is_written:
                _log.warning("no report of consumer %s: %s", read.consumer, e)
            known.is_written = False
        else:
            known.is_written = True
