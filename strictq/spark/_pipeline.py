"""Ordered processing in two stages: Spark prepares batch n+1, in parallel and in any order, while batch n is processed in order.

The driver program leases a batch, has Spark prepare it, and processes it lane by lane: in its own threads, or on executors.
The driver commits the handlers' effects with the acks, so they take effect once however often Spark repeats a task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from .._client import validate
from .._platform.extras import need, need_spark
from .._platform.log import Log
from .._values import hints
from .._values.errors import ConfigError, InvalidArgument, LeaseLost, PartialFailure, StrictqError
from .._values.handlers import is_async, require_runs
from ..delivery import Delivery, Lease
from ..queue import Queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ._batches import LeasedBatch
    from ._outcomes import BatchJob
    from ._running import Stages

log = Log("strictq.spark")

STEP_MAX: Final = 256
"""The most messages received per lane at a time, which is also the limit of Lease.more."""
STEP_MIN: Final = 2
"""The least messages received per lane at a time. A lease of one message would charge an attempt at delivery."""
LANES_EACH: Final = 4
"""Lanes per concurrent handler in a batch, if there are enough, so that uneven lanes even out."""
BATCH_MIN: Final = 16
LOOK_SECONDS: Final = 0.5
"""Seconds within which a waiting pipeline notices `stop`."""


@attrs.frozen
class PipelineStats:
    """The totals of a pipeline: a frozen snapshot.

    Attributes:
        batches: number of finished batches.
        acked, retried, rejected: number of messages. retried counts those returned because their handler failed.
        deferred: number of messages whose handler raised Defer.
        lost: number of messages whose lease was lost before the commit; another consumer processes them.
        prepare_seconds, process_seconds: total time in each stage.
        span_seconds: time from the start to the end of the last finished batch.
        batch_size: most messages of the next batch.
    """

    batches: int = 0
    acked: int = 0
    retried: int = 0
    rejected: int = 0
    lost: int = 0
    prepare_seconds: float = 0.0
    process_seconds: float = 0.0
    span_seconds: float = 0.0
    batch_size: int = 0
    deferred: int = 0


class Pipeline:
    """A pipeline, created by `strictq.spark.pipeline`. `run` works, and `stop` ends it."""

    def __init__(
        self,
        queue: Queue,
        stages: Stages,
        *,
        batch_size: int,
        batch_size_max: int,
        batch_bytes_max: int,
        batch_seconds: float,
        lease_seconds: float | None,
        consumer: str | None,
        on_progress: Callable[[PipelineStats], None] | None,
    ) -> None:
        from ._settler import Settler

        self._queue = queue
        self._stages = stages
        self._settler = Settler(queue, stages.concurrency)
        self._size = batch_size
        self._size_max = batch_size_max
        self._bytes_max = batch_bytes_max
        self._bytes_each = 1.0
        self._batch_seconds = batch_seconds
        self._lease_seconds = queue.config.lease_seconds if lease_seconds is None else lease_seconds
        self._consumer = consumer
        self._on_progress = on_progress
        self._stats = PipelineStats(batch_size=batch_size)
        self._began = 0.0
        self._stop = threading.Event()
        self._over = threading.Event()
        self._running = threading.Lock()
        self._held: dict[Lease, Delivery] = {}
        self._held_lock = threading.Lock()

    @property
    def stats(self) -> PipelineStats:
        """The totals so far."""
        return self._stats

    def stop(self) -> None:
        """End `run` after the current batch, from any thread. Messages leased ahead are released, with no attempt charged."""
        self._stop.set()

    def run(self, *, wait: float | None = 0.0) -> PipelineStats:
        """Work until no message is ready.

        Args:
            wait: seconds to wait for more messages when none is ready; 0 ends at once, None waits until `stop`.
        Returns:
            The totals.
        Raises:
            InvalidArgument: it is running already; or a key is not of `key_type`. The batch was not processed.
            StrictqError: the queue failed. Committed changes stay; everything else is released.
            Exception: raised by Spark, if it can run neither a batch nor parts of it. Committed changes stay, as above.
        Source: docs/howto/spark.md
        """
        if wait is not None:
            validate.microseconds("wait", wait)
        if not self._running.acquire(blocking=False):
            raise InvalidArgument("this pipeline is running already")
        try:
            self._stop.clear()
            self._over.clear()
            self._began = time.monotonic()
            keeper = threading.Thread(target=self._keep, name="strictq-leases", daemon=True)
            keeper.start()
            try:
                self._work(wait)
            finally:
                self._over.set()
                keeper.join()
                self._give_back()
            return self._stats
        finally:
            self._running.release()

    # ---- loop

    def _work(self, wait: float | None) -> None:
        batch = self._take(wait)
        if batch is not None:
            self._stages.run_prepare(batch)
        while batch is not None and not self._stop.is_set():
            following = self._take(0.0, batch)
            if following is None:
                self._process(batch)
                following = self._take(wait)
                if following is not None:
                    self._stages.run_prepare(following)
            else:
                ahead = _Aside(self._stages.run_prepare, following)
                try:
                    self._process(batch)
                finally:
                    ahead.join()
                ahead.raise_error()
            self._settler.forget(following.lanes if following is not None else ())
            batch = following

    def _take(self, wait: float | None, in_hand: LeasedBatch | None = None) -> LeasedBatch | None:
        """Lease the next batch: free lanes first, then more of the lanes that are held."""
        from ._batches import LeasedBatch

        if self._stop.is_set():
            return None
        size = max(1, min(self._size, int(self._bytes_max / self._bytes_each)))
        # A receive of whole lanes could return fewer lanes than handlers, so that some would be idle.
        spread = LANES_EACH * self._stages.lanes_at_once
        deliveries = self._receive(size, _step(size, spread), wait)
        held = [*(in_hand.lanes if in_hand is not None else ()), *dict.fromkeys(d.lease for d in deliveries)]
        deliveries += self._grow(held, size - len(deliveries), spread)
        if not deliveries:
            return None
        self._bytes_each = max(1.0, sum(len(d.body) for d in deliveries) / len(deliveries))
        batch = LeasedBatch(deliveries)
        with self._held_lock:
            for lease, lane in batch.lanes.items():
                self._held.setdefault(lease, lane[0])
        return batch

    @staticmethod
    def _grow(held: list[Lease], room: int, spread: int) -> list[Delivery]:
        """Receive more of held lanes, in turn, until there is no room or they have no more."""
        found: list[Delivery] = []
        while held and room > len(found):
            going_on: list[Lease] = []
            step = _step(room - len(found), min(spread, len(held)))
            for lease in held:
                if room == len(found):
                    break
                with suppress(LeaseLost):  # its batch will detect it
                    more = lease.more(min(room - len(found), step))
                    found += more
                    going_on += [lease] if more else []
            held = going_on
        return found

    def _receive(self, size: int, per_key: int, wait: float | None) -> list[Delivery]:
        """Receive in steps, so that `stop` is noticed."""
        until = None if wait is None else time.monotonic() + wait
        while True:
            left = LOOK_SECONDS if until is None else min(LOOK_SECONDS, max(until - time.monotonic(), 0.0))
            found = self._queue.receive(
                size, per_key=per_key, wait=left, lease_seconds=self._lease_seconds, consumer=self._consumer
            )
            if found or self._stop.is_set() or (until is not None and time.monotonic() >= until):
                return list(found)

    def _process(self, batch: LeasedBatch) -> None:
        began = time.monotonic()
        broken = self._settler.broken
        lanes = {lease: lane for lease, lane in batch.lanes.items() if lease not in broken}
        counts = self._settler.settle(lanes, self._stages.run_process(batch, lanes))
        with self._held_lock:
            for lease in batch.lanes:
                if lease._open <= 0 or lease in broken:
                    self._held.pop(lease, None)
        taken = time.monotonic() - began
        self._size = self._next_size(len(batch), max(taken, batch.prepare_seconds))
        s = self._stats
        self._stats = PipelineStats(
            s.batches + 1, s.acked + counts.acked, s.retried + counts.retried, s.rejected + counts.rejected, s.lost + counts.lost,
            s.prepare_seconds + batch.prepare_seconds, s.process_seconds + taken, time.monotonic() - self._began, self._size,
            s.deferred + counts.deferred,
        )  # fmt: skip
        if self._on_progress is not None:
            self._on_progress(self._stats)

    def _next_size(self, messages: int, seconds: float) -> int:
        """Return the next batch's size, so that the slower stage takes about `batch_seconds`. At most double or halve it."""
        wanted = int(messages * self._batch_seconds / max(seconds, 1e-6))
        return min(max(wanted, self._size // 2, BATCH_MIN), 2 * self._size, self._size_max)

    # ---- leases

    def _keep(self) -> None:
        """Extend held leases well before they end."""
        while not self._over.wait(self._lease_seconds / 3):
            with self._held_lock:
                held = dict(self._held)
            results: list[object] = [None] * len(held)
            try:
                self._queue.extend_many(held.values(), self._lease_seconds)
            except PartialFailure as e:
                results = e.results
            except LeaseLost as e:
                results = [e]
            except StrictqError as e:
                log.warning("leases could not be extended; trying again: %s", e)
            with self._held_lock:
                for lease, result in zip(held, results, strict=False):
                    if isinstance(result, LeaseLost):
                        self._held.pop(lease, None)

    def _give_back(self) -> None:
        """Release all held leases at the end."""
        with self._held_lock:
            held, self._held = self._held, {}
        for lease in held:
            with suppress(StrictqError):  # lost, or completely settled
                lease.release()


def _step(messages: int, lanes: int) -> int:
    """Return the messages to receive per lane at a time, for this many in total."""
    return min(max(-(-messages // lanes), STEP_MIN), STEP_MAX)


class _Aside:
    """A call in another thread, which inherits this thread's Spark properties."""

    def __init__(self, call: Callable[[LeasedBatch], None], batch: LeasedBatch) -> None:
        from pyspark import InheritableThread

        self._error: BaseException | None = None

        def work() -> None:
            try:
                call(batch)
            except BaseException as e:
                self._error = e

        self._thread = InheritableThread(target=work, name="strictq-prepare", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def pipeline(
    spark: SparkSession,
    queue: Queue,
    *,
    process: Callable[[BatchJob], Any],
    prepare: Callable[[Any], Any] | None = None,
    prepared: str | None = None,
    frames: Literal["arrow", "pandas"] = "arrow",
    where: Literal["driver", "executors"] = "driver",
    key_type: Literal["string", "binary", "int"] = "string",
    key_state: bool = False,
    concurrency: int = 8,
    batch_size: int = 1_000,
    batch_size_max: int = 100_000,
    batch_bytes_max: int = 64 * 1024 * 1024,
    batch_seconds: float = 5.0,
    lease_seconds: float | None = None,
    consumer: str | None = None,
    on_progress: Callable[[PipelineStats], None] | None = None,
) -> Pipeline:
    """Create a pipeline: prepare runs on executors, unordered and ahead; process runs in strict order per key.

    While a batch is processed, Spark prepares the next one. A batch's acks, and the effects of its handlers, are
    committed by this program, in one transaction per message.

    Args:
        queue: a queue that is open in this program, and stays open.
        process: called with a BatchJob for each message, one after another within a key. An exception is a failure: the
            message is retried before any later message of its key, by the queue's settings. `strictq.Retry`,
            `strictq.Defer` and `strictq.Reject` have their own effects.
        prepare: called with a batch of messages (columns key, seq, body, headers, attempt, enqueued_at); returns one row for each
            message, in the same order. It may run more than once, so it must not have effects. The message for which it raises is
            identified, and fails when it is its turn.
        prepared: the columns that prepare returns, in Spark's notation. They are in `job.prepared`.
        frames: the type that prepare takes and returns: pyarrow.RecordBatch (or Table), or pandas.DataFrame.
        where: run process in this program's threads, or on executors with all of a key's messages in one task.
        key_type: the type of prepare's column `key`.
        key_state: read each key's state, for `job.key_state`. This takes one more read per key and batch.
        concurrency: number of keys processed, and of transactions committed, at a time by the driver.
        batch_size: messages of the first batch. Later sizes follow from the stages' durations.
        batch_size_max, batch_bytes_max: limits of a batch.
        batch_seconds: the desired duration of a batch's slower stage.
        lease_seconds, consumer: as for receive. Leases are extended while they are held.
        on_progress: called with the PipelineStats after every batch.
    Raises:
        MissingExtra: pyspark, or a package that it needs here, is not installed.
        ConfigError: the session is one of Spark Connect; or Spark's Python processes can't run, see `register`. The latter is
            checked only for executors on this machine.
        InvalidArgument: an argument is out of range or contradicts another; nothing was changed.
    Source: docs/howto/spark.md
    """
    need_spark()
    if not isinstance(queue, Queue):
        raise InvalidArgument(f"pipeline takes an open Queue, not {type(queue).__name__}", hint=hints.GIVE_QUEUE)
    for name, handler in (("process", process), ("prepare", prepare)):
        if handler is None and name == "prepare":
            continue
        require_runs(name, handler)
        if is_async(handler):
            raise InvalidArgument(f"{name} is async, and a pipeline calls plain functions", hint=hints.USE_WORKER)
    for name, value, choices in (
        ("frames", frames, ("arrow", "pandas")),
        ("where", where, ("driver", "executors")),
        ("key_type", key_type, ("string", "binary", "int")),
    ):
        if value not in choices:
            raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    validate.whole("concurrency", concurrency, 1, 1_000)
    validate.whole("batch_size_max", batch_size_max, 1, validate.MESSAGES_MAX)
    validate.whole("batch_size", batch_size, 1, batch_size_max)
    validate.whole("batch_bytes_max", batch_bytes_max, 1, 2**40)
    validate.microseconds("batch_seconds", batch_seconds, minimum=0.001)
    if lease_seconds is not None:
        validate.microseconds("lease_seconds", lease_seconds, minimum=0.001)
    if consumer is not None:
        validate.name("consumer", consumer)
    validate.hook("on_progress", on_progress)
    if frames == "pandas":
        need("pandas", "spark")
    from ._batches import prepared_schema
    from ._interpreter import is_connect, require_interpreter, require_session
    from ._running import Stages

    require_session(spark)
    if is_connect(spark):
        raise ConfigError("a pipeline can't run on Spark Connect; nothing was received", hint=hints.CLASSIC_SESSION)

    if prepare is not None or where == "executors":
        require_interpreter(spark, local_only=True)

    schema = prepared_schema(prepared, prepare)
    return Pipeline(
        queue, Stages(spark, process, prepare, schema, frames, where, key_type, bool(key_state), concurrency),
        batch_size=batch_size, batch_size_max=batch_size_max, batch_bytes_max=batch_bytes_max, batch_seconds=batch_seconds,
        lease_seconds=lease_seconds, consumer=consumer, on_progress=on_progress,
    )  # fmt: skip
