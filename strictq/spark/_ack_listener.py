"""Ack a batch that Spark has committed, unless the next batch soon acks it: above all the last batch of a query.

Spark itself informs a source only when it builds the next batch, so the last batch of a stopped query would stay leased until
the query starts again. Imported late, with pyspark.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakSet

import attrs
from pyspark.sql.streaming.listener import StreamingQueryListener

from .._client.consumers import acknowledge, write_report
from .._platform.log import log as _log
from .._values.errors import StoreError, StrictqError
from .._values.findings import QueryReport
from ..opening import open as open_queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

LATER_SECONDS: Final = 0.5
"""How long the next batch may take before the listener acks the last one: a queue has to be opened for that, shard by shard."""

STATE_WORKER: Final = "TransformWithStateInPySpark driver worker"
"""Spark's message names this process when it has ended, and does not say why."""
NO_PROTOBUF: Final = (
    "a query ended because Spark's Python processes have no protobuf "
    '(pip install "protobuf>=6.33.5" for the interpreter of PYSPARK_PYTHON)'
)

_sessions: WeakSet[SparkSession] = WeakSet()


def listen(spark: SparkSession) -> None:
    """Add the listener to a session, once."""
    if spark not in _sessions:
        spark.streams.addListener(AckListener())
        _sessions.add(spark)


def has_protobuf() -> bool:
    """Whether this program's interpreter, which Spark's Python processes mostly run, too, has what a stateful query needs."""
    try:
        return find_spec("google.protobuf") is not None
    except ModuleNotFoundError:
        return False


class AckListener(StreamingQueryListener):
    """Runs in the driver, in one of Spark's threads. It never raises: a batch that it can't ack is acked by the next start.

    It also stores reports, which `q.consumers()` and `strictq stats` show.
    """

    def __init__(self) -> None:
        self._monitor = Monitor()
        self._later: dict[str, Later] = {}
        """The delayed acks, by run of a query."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing, because nothing is committed yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Ack the batch that was committed, in a moment."""
        progress = event.progress
        run = str(progress.runId)
        read: list[Read] = []
        acks: list[CommittedBatch] = []
        missing: dict[str, str] = {}
        for source in progress.sources:
            end = _ends(source.endOffset, source.numInputRows)
            if end is None:
                continue
            read += (each.read for each in end)
            if source.numInputRows:
                acks += (each.ack for each in end if each.ack is not None)
            missing |= _missing(source.latestOffset)
        if acks:
            later = self._later.get(run) or self._later.setdefault(run, Later(run))
            later.begin(acks)
        if read:
            seconds = progress.batchDuration / 1000
            self._monitor.batch(run, str(progress.id), progress.name, progress.batchId, seconds, read)
            self._monitor.unreadable(run, missing)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Record that the query is alive."""
        self._monitor.idle(str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Ack the rest, and report the end of the query."""
        if event.exception is not None and STATE_WORKER in event.exception and not has_protobuf():
            _log.warning("%s", NO_PROTOBUF)
        later = self._later.pop(str(event.runId), None)
        if later is not None:
            later.finish()
        self._monitor.end(str(event.runId), event.exception)


@attrs.frozen
class CommittedBatch:
    """A batch of one queue that Spark has committed."""

    path: str
    queue_id: str
    consumer: str
    n: int

    def send(self) -> None:
        """Ack it. If that fails, the next start of the query acks it."""
        try:
            with open_queue(self.path, create=False) as queue:
                if queue.queue_id == self.queue_id:
                    acknowledge(queue._storage, self.consumer, self.n)
        except StrictqError as e:
            _log.warning("batch %s of consumer %s at %s is not acked yet: %s", self.n, self.consumer, self.path, e)


@attrs.frozen
class BatchEnd:
    """The position of one queue at the end of a batch.

    Attributes:
        ack: the batch to ack; None: the batch has no messages of this queue.
    """

    read: Read
    ack: CommittedBatch | None


class Later:
    """Acks in a separate thread, unless the next batch comes first: then the query itself acks them."""

    def __init__(self, run: str) -> None:
        self._lock = threading.Lock()
        self._acks: dict[str, CommittedBatch] = {}
        self._timer: threading.Timer | None = None
        self._run = run

    def begin(self, acks: Iterable[CommittedBatch]) -> None:
        """Schedule these acks in place of earlier ones of the same queues.

        The query acks a batch when the next one begins, but only of queues that it has open then.
        """
        with self._lock:
            self._acks |= {ack.queue_id: ack for ack in acks}
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(LATER_SECONDS, self._send)
            self._timer.name = f"strictq-acks-{self._run}"
            self._timer.daemon = True
            self._timer.start()

    def finish(self) -> None:
        """Ack the remaining batches now."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
        self._send()

    def _send(self) -> None:
        while True:
            with self._lock:
                if not self._acks:
                    return
                _, ack = self._acks.popitem()
            ack.send()


def _ends(text: Any, rows: int) -> list[BatchEnd] | None:
    """Return the queues' positions in an offset of strictq; None: the offset belongs to another source.

    Args:
        rows: number of rows of the batch.
    """
    try:
        offset = json.loads(text)
    except (TypeError, ValueError):
        return None
    if not isinstance(offset, dict):
        return None
    if offset.keys() - {"history"} == {"queue", "consumer", "after", "n", "path"}:
        name, consumer, path, n = (offset[k] for k in ("queue", "consumer", "path", "n"))
        return [BatchEnd(Read(path, name, consumer, rows), CommittedBatch(path, name, consumer, n))]
    if offset.keys() != {"consumer", "line", "round", "queues"}:
        return None
    consumer, ends = offset["consumer"], []
    for name, entry in offset["queues"].items():
        path, n, some = entry["path"], entry["n"], rows > 0 and entry["after"] < entry["n"]
        read = Read(path, name, consumer, entry.get("messages", 0) if some else 0)
        ends.append(BatchEnd(read, CommittedBatch(path, name, consumer, n) if some else None))
    return ends


def _missing(text: Any) -> dict[str, str]:
    """Return the unreadable queues in a fleet's report: path → reason."""
    try:
        report = json.loads(text)
    except (TypeError, ValueError):
        return {}
    missing = report.get("missing") if isinstance(report, dict) else None
    return missing if isinstance(missing, dict) else {}


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
            write_report(read.path, read.queue_id, read.consumer, known.report)
        except (OSError, StoreError) as e:
            if known.is_written:
                _log.warning("no report of consumer %s: %s", read.consumer, e)
            known.is_written = False
        else:
            known.is_written = True
