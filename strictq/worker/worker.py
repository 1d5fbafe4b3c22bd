"""Worker: prepare message n+1 while message n is processed, in strict order per key."""

from __future__ import annotations

import inspect
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import attrs

from .._client import validate
from .._values import hints
from .._values.config import FOREVER_SECONDS
from .._values.errors import InvalidArgument
from .._values.findings import WorkerEvent
from .._values.handlers import is_async, require_runs
from .._values.keys import Key
from .._values.stats import DurationEstimate, OpenBreaker
from .._values.views import Report
from ..queue import Queue
from . import suspects, threads
from .batches import BatchBoard
from .breaker import Breaker, Circuits
from .dispatch import Handover
from .estimates import Estimates
from .job import AsyncJob, Job
from .limits import Limits
from .loop import Keeper
from .schedule import Board
from .several import Several
from .source import BATCHES, KEYS, STORED_ESTIMATES, HasSource, LocalSource, Source
from .state import Driver, State

if TYPE_CHECKING:
    from ..aio import AsyncQueue
    from ..remote.aio import AsyncRemoteQueue
    from ..remote.queue import RemoteQueue

    WorkedOn = Queue | AsyncQueue | RemoteQueue | AsyncRemoteQueue | str

BATCH = 2000
BATCH_MAX = 100
ZOMBIE_SECONDS = 0.5
DEFAULT_BREAKER = Breaker()
NOT_REMOTE = {
    "keys": "is not available on a queue behind an endpoint, which delivers the messages of all groups",
    "process_batch": "is not available on a queue behind an endpoint, whose messages are deleted one by one",
}
"""Why an argument is refused."""
COUNTED = ("acked", "retried", "rejected", "lost", "timeouts", "poison", "deferred")
"""The totals, which are attributes of the state of a run."""


@attrs.frozen
class WorkerStats(Report):
    """A frozen snapshot of a worker's totals, the messages that it holds, and the durations that it learned.

    Attributes:
        acked, retried, rejected, lost, timeouts: messages, since `run` or `serve` began.
        deferred: messages that were postponed with no attempt charged: by Defer, because they failed while a breaker was open,
            or because they waited for the open breaker of their group.
        poison: messages that were out of attempts, so that `on_poison` took effect; included in `retried`.
        running, preparing, prepared, buffered: current numbers of messages. Prepared ones wait for their turn; buffered ones
            are not prepared yet.
        limited: number of leased messages that wait because `max_running` handlers of their type run; not in `buffered`.
        prepared_bytes: bytes of waiting results; results being prepared count with an average size.
        prepared_wait_seconds: median time that recent results waited before use; None if there were none.
        margin_seconds: how much earlier than estimated prepare starts.
        prepare, process: the learned durations.
        busy_ratio: fraction of the run in which slots ran process handlers, 0 to 1. Near 1, more concurrency or workers may
            help; near 0, the worker mostly waits for messages.
        breaker: the open circuit breaker that concerns most messages: the worker's, or that of the group that opened first;
            None if all are closed.
    """

    acked: int
    retried: int
    rejected: int
    lost: int
    timeouts: int
    running: int
    preparing: int
    prepared: int
    buffered: int
    prepared_bytes: int
    prepared_wait_seconds: float | None
    margin_seconds: float
    prepare: DurationEstimate
    process: DurationEstimate
    poison: int = 0
    deferred: int = 0
    breaker: OpenBreaker | None = None
    busy_ratio: float = 0.0
    limited: int = 0


class Worker:
    """Processes the messages of a queue: in order per key, and in parallel across keys.

    `process(job)` is called for message n+1 of a key after message n is acked. `prepare(job)` is optional and may run ahead of
    that; it starts as late as possible to be ready in time, and its return value is `job.prepared`. Both may be plain
    functions, which run in threads, or `async def`, which run in the event loop. If the handler returns, the message is acked,
    together with the job's effects. If it raises, the message is retried; see Retry, Defer and Reject. While most handlers of a
    group of keys fail, the worker tries one of its messages at a time and charges no attempts; see Breaker.

    Any number of workers, in one or several processes, may work on one queue. `consumer` is a label, and need not be unique.
    A worker runs once.

    Examples:
        >>> q = strictq.open(":memory:")
        >>> for key in ("a", "a", "b"):
        ...     _ = q.send(b"", key=key)
        >>> strictq.Worker(q, lambda job: print(job.key, job.seq), concurrency=1).run(drain=True)
        a 1
        a 2
        b 1
    """

    def __init__(
        self,
        queue: WorkedOn | Sequence[WorkedOn],
        process: Callable[..., Any] | None = None,
        prepare: Callable[..., Any] | None = None,
        *,
        process_batch: Callable[..., Any] | None = None,
        batch_max: int = BATCH_MAX,
        batch_per_key: int | None = None,
        batch_wait_seconds: float = 0.0,
        concurrency: int = 8,
        weights: Sequence[float] | None = None,
        executor: Literal["thread", "process"] = "thread",
        timeout_seconds: float | Callable[[Job], float | None] | None = None,
        prepare_timeout_seconds: float | None = None,
        process_seconds: float | None = None,
        prepare_seconds: float | None = None,
        learn: bool = True,
        prepared_max: int | None = None,
        prepared_bytes_max: int = 64 * 1024 * 1024,
        batch: int = BATCH,
        low_water: int | None = None,
        lease_seconds: float | None = None,
        keys: Iterable[Key] | None = None,
        consumer: str | None = None,
        affinity: Literal["prefer", "own", "none"] | None = None,
        propagate: Iterable[str] = (),
        breaker: Breaker | None = DEFAULT_BREAKER,
        on_event: Callable[[WorkerEvent], None] | None = None,
    ) -> None:
        """Create a worker. It starts with `run` or `serve`.

        Args:
            queue: the queue, or a list of queues, which share the slots by turns. The other arguments apply to each of them. A
                queue may be one that `connect` returned, or its URL; the worker then connects to it, and closes the connection
                when its run ends. Such a queue takes neither keys nor process_batch. affinity and consumer say nothing there.
            process, prepare: handlers, called with a Job. A generator function is refused, because calling it runs none of it.
            process_batch: instead of process, a handler that is called with a list of Jobs, those of a key in order. When it
                returns, all are acked except those for which it called `job.fail(error)`. When it raises, all have failed. A
                failed message is retried alone. The later messages of its key are returned with it, with no attempt charged.
            batch_max: most messages per batch, 1..10,000.
            batch_per_key: most messages of one key per batch, so that more keys share it; None: batch_max.
            batch_wait_seconds: how long a batch that is not full waits for more messages.
            concurrency: messages processed in parallel, 1..10,000, each of a different key; as many may be prepared. With
                process_batch, the number of batches, no two of which have messages of one key. Several queues share them.
            weights: of several queues, each one's share of the messages while all have some, 0.001 to 1,000; None: equal ones.
            executor: "thread", or "process" to run plain handlers in separate processes, for CPU-bound work. They must be
                importable by name, and so must be the results of prepare.
            timeout_seconds, prepare_timeout_seconds: abandon a handler after this time, and retry its message. None: never; the
                lease is extended while the handler runs. timeout_seconds may be a quick function of the job.
            process_seconds, prepare_seconds: estimates for messages without their own; None: those of the queue's configuration
                when the worker starts, otherwise learned.
            learn: learn durations, and store them in the queue.
            prepared_max: most results that wait for their turn, including those being prepared; None: twice the concurrency,
                and one for each key that waits until an endpoint has confirmed its delete.
            prepared_bytes_max: no further message is prepared ahead while the results have more bytes. A single result may be
                larger; sizes are learned from the first results.
            batch: most messages leased ahead, 1..100,000. The worker holds at most about half a second's work.
            low_water: number of messages at which more are leased; None: half of the number held.
            lease_seconds: None: the queue's.
            keys: process only these keys.
            consumer: the consumer's name, shown by explain; None: host and process id.
            affinity: the shards that it takes messages from; see `Queue.join`. None: "prefer" if the queue has several shards,
                but "none" for a run with `drain`. A worker with `keys` takes them from all shards.
            propagate: names of headers that `job.send` copies from the job's message, unless they are passed, such as a
                request's id.
            breaker: when to pause, for each group of keys, because most handlers fail, as during an outage. None: never. A run
                with `drain` has a breaker only if it is passed: by default it leaves failed messages to their retry.
            on_event: called with a WorkerEvent at every change of a job's state.
        Raises:
            InvalidArgument: an argument is invalid; nothing was changed.
        """
        propagate = validate.header_names(propagate)
        self._several: Several | None = None
        if weights is not None and not isinstance(queue, list | tuple):
            raise InvalidArgument("weights are for several queues")
        self._beside: AbstractContextManager[object] | None = None
        """A context that is entered while the worker runs."""
        self._check: Callable[[Job], object] | None = None
        """Called before a job is sent to a handler's process. It may raise what a handler may raise."""
        if isinstance(queue, list | tuple):
            queues: list[Any] = [each if isinstance(each, str) else _sync(each) for each in queue]
            if not queues or len({each if isinstance(each, str) else each.queue_id for each in queues}) != len(queues):
                raise InvalidArgument("a worker takes one queue or more, each given once")
            self._several = Several([
                Worker(
                    each, process, prepare, process_batch=process_batch, batch_max=batch_max,
                    batch_per_key=batch_per_key, batch_wait_seconds=batch_wait_seconds, concurrency=concurrency,
                    executor=executor, timeout_seconds=timeout_seconds, prepare_timeout_seconds=prepare_timeout_seconds,
                    process_seconds=process_seconds, prepare_seconds=prepare_seconds, learn=learn, prepared_max=prepared_max,
                    prepared_bytes_max=prepared_bytes_max, batch=batch, low_water=low_water, lease_seconds=lease_seconds,
                    keys=keys, consumer=consumer, affinity=affinity, propagate=propagate, breaker=breaker,
                    on_event=on_event,
                )
                for each in queues
            ], _weights(weights, len(queues)))  # fmt: skip
        if process is None and process_batch is None:
            raise InvalidArgument("process must be a handler", hint=hints.BATCH_OR_SINGLE)
        if process is not None and process_batch is not None:
            raise InvalidArgument("a worker takes either process or process_batch", hint=hints.BATCH_OR_SINGLE)
        batches = process_batch is not None
        self._process = _handler("process", process) if process_batch is None else _handler("process_batch", process_batch)
        if batches and (prepare is not None or executor == "process"):
            raise InvalidArgument("process_batch goes with neither prepare nor executor='process'")
        validate.whole("batch_max", batch_max, 1, 10_000)
        if batch_per_key is not None:
            validate.whole("batch_per_key", batch_per_key, 1, 10_000)
        batch_wait = validate.microseconds("batch_wait_seconds", batch_wait_seconds) / 1e6
        self._prepare = None if prepare is None else _handler("prepare", prepare)
        validate.whole("concurrency", concurrency, 1, 10_000)
        validate.whole("batch", batch, 1, validate.MESSAGES_MAX)
        validate.whole("prepared_bytes_max", prepared_bytes_max, 0, 2**62)
        if low_water is not None:
            validate.whole("low_water", low_water, 0, batch)
        if prepared_max is not None:
            validate.whole("prepared_max", prepared_max, 1, 1_000_000)
        for name, value in (("timeout_seconds", timeout_seconds), ("prepare_timeout_seconds", prepare_timeout_seconds)):
            if value is not None and not callable(value):
                validate.microseconds(name, value, minimum=0.001)
        if executor not in ("thread", "process"):
            raise InvalidArgument(f"executor must be 'thread' or 'process', not {executor!r}")
        if breaker is not None and not isinstance(breaker, Breaker):
            raise InvalidArgument(f"breaker must be a Breaker or None, not {type(breaker).__name__}")
        validate.hook("on_event", on_event)
        self._executor = executor
        if executor == "process":
            from .processes import require_sendable

            for what, handler in (("process", self._process), ("prepare", self._prepare)):
                if handler is not None:
                    require_sendable(what, handler, is_async=is_async(handler))
        self._concurrency = concurrency
        self._on_event = on_event
        self._estimates = Estimates(
            given_prepare=_expected("prepare_seconds", prepare_seconds),
            given_process=_expected("process_seconds", process_seconds),
            learning=bool(learn),
        )
        limits = Limits(
            concurrency=concurrency,
            prepares=prepare is not None,
            prepared_max=2 * concurrency if prepared_max is None else prepared_max,
            prepared_bytes_max=prepared_bytes_max,
            batch=max(batch, batch_max) if batches else batch,
            low_water=low_water,
            process_timeout=timeout_seconds,
            prepare_timeout=prepare_timeout_seconds,
            batch_max=batch_max if batches else 0,
            batch_per_key=batch_per_key or 0,
            batch_wait=batch_wait,
            prepares_more=prepared_max is None,
        )
        circuits = None if breaker is None else Circuits(breaker)
        self._breaker_given = breaker is not DEFAULT_BREAKER
        self._any_async = any(is_async(h) for h in (self._process, self._prepare) if h is not None)
        self._board = (BatchBoard if batches else Board)(
            limits, self._estimates, AsyncJob if is_async(self._process) else Job, circuits, propagate, suspects.PROCESS
        )
        self._driver: Driver | None = None
        wanted = None if keys is None else validate.keys(keys) and list(keys)
        self._keeper: Keeper | None = None
        self._lock = threading.Lock()
        self._claimed = False
        self._stop: tuple[float | None] | None = None
        self._connection: RemoteQueue | None = None
        """The queue that was connected here, from its URL. Closed when the run ends."""
        if self._several is not None:
            self._source: Source = self._several.workers[0]._source
            return
        if isinstance(queue, str):
            from ..remote.queue import connect

            queue = self._connection = connect(queue)
        try:
            worked_on = _sync(queue)
            if isinstance(worked_on, Queue):
                self._source = LocalSource(
                    worked_on, lease_seconds=lease_seconds, keys=wanted, consumer=consumer, affinity=affinity
                )
            else:
                self._source = worked_on._source(batch=batch, lease_seconds=lease_seconds)
            self._source.require_open()
            for argument, capability, is_given in (("keys", KEYS, keys is not None), ("process_batch", BATCHES, batches)):
                if is_given and capability not in self._source.capabilities:
                    raise InvalidArgument(f"{argument} {NOT_REMOTE[argument]}", hint=hints.ALL_GROUPS)
        except BaseException:
            self._disconnect()
            raise

    # ---- running

    def run(self, *, drain: bool = False, grace_seconds: float | None = None) -> None:
        """Work until stopped by `stop()`, SIGINT or SIGTERM. Then finish running handlers, release the rest, and return.

        In the main thread, both signals are handled meanwhile: the first one stops the worker, a second one stops without
        waiting. In other threads, signals are not handled.

        Args:
            drain: return when no message is ready. Failed messages that wait for their retry are left to a later run. With an
                explicit breaker, the run also waits for the messages that it postpones.
            grace_seconds: seconds to wait for running handlers after a signal, or after a handler that ends the program; None:
                until they end.
        Raises:
            SystemExit, KeyboardInterrupt: a handler raised it. The worker stopped as with `stop()`, and returned the handler's
                message: after SystemExit as failed, so that no message can end its program forever; after
                KeyboardInterrupt with no attempt charged.
            InvalidArgument: this thread has an event loop, or the worker ran before, or was stopped.
            StrictqError: the queue can no longer be used, or the system starts no more threads; leases are released as far as
                possible.
        """
        if grace_seconds is not None:
            validate.microseconds("grace_seconds", grace_seconds)
        if _in_event_loop():
            raise InvalidArgument("run() would block the event loop of this thread", hint=hints.AWAIT_SERVE)
        self._claim()
        if self._several is not None:
            with self._signals(grace_seconds):
                if self._any_async:
                    import anyio

                    anyio.run(partial(self._several.serve, drain=drain, grace_seconds=grace_seconds))
                else:
                    self._several.run(drain=drain, grace_seconds=grace_seconds)
            return
        if self._any_async:
            import anyio

            with self._signals(grace_seconds):
                anyio.run(self._serve, drain, grace_seconds)
            return
        try:
            with self._signals(grace_seconds), self._beside or nullcontext():
                keeper = self._begin(drain, grace_seconds)
                pools = list(self._pools(keeper.state))
                keeper.state.executors += pools
                try:
                    keeper.run()
                finally:
                    for pool in pools:
                        pool.stop(ZOMBIE_SECONDS if keeper.state.gave_up else None)
        finally:
            self._disconnect()

    async def serve(self, *, drain: bool = False) -> None:
        """Work until stopped, inside the caller's event loop of asyncio or trio. Signals are not handled. See `run`.

        If cancelled, it cancels its handlers, releases its leases, and raises.
        """
        self._claim()
        if self._several is not None:
            await self._several.serve(drain=drain)
            return
        await self._serve(drain)

    async def _serve(self, drain: bool, grace_seconds: float | None = None) -> None:
        from .event_loop import serve

        with ExitStack() as stack:
            stack.callback(self._disconnect)
            keeper = self._begin(drain, grace_seconds)
            pools = list(self._pools(keeper.state))
            if self._beside is not None:
                from anyio.to_thread import run_sync

                await run_sync(stack.enter_context, self._beside)  # entering it may wait for the store
            await serve(keeper, Handover(keeper.state), self._process, self._prepare, self._concurrency, pools)

    def stop(self, deadline_seconds: float | None = None) -> None:
        """Receive no more messages, finish running handlers, and release the rest. Returns at once; callable from any thread.

        Args:
            deadline_seconds: seconds after which running handlers are cancelled and their messages retried; None: never.
        """
        if deadline_seconds is not None:
            validate.microseconds("deadline_seconds", deadline_seconds)
        # No lock, because signal handlers call this, too.
        self._stop = (deadline_seconds,)
        if self._several is not None:
            self._several.stop(deadline_seconds)
            return
        if self._keeper is not None:
            self._keeper.stop(None if deadline_seconds is None else self._keeper.state.clock() + deadline_seconds)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _claim(self) -> None:
        with self._lock:
            if self._stop is not None:
                raise InvalidArgument("this worker was stopped", hint=hints.ANOTHER_WORKER)
            if self._claimed:
                raise InvalidArgument("a worker runs once", hint=hints.ANOTHER_WORKER)
            self._source.require_open()
            self._claimed = True

    def _begin(self, drain: bool, grace_seconds: float | None) -> Keeper:
        self._estimates.load(self._source.estimates())
        self._estimates.take_defaults(self._source.config)
        if drain and not self._breaker_given:
            self._board.circuits = None  # otherwise a handler that always fails would keep the run from ending
        rules = self._source.tenancy
        if rules is not None:
            self._board.take_turns(rules)
        if drain and isinstance(self._board, BatchBoard):
            self._board.wait = 0.0  # a draining run has no more messages to wait for
        state = State(self._source, self._board, self._estimates, on_event=self._on_event, driver=self._driver)
        self._keeper = keeper = Keeper(state, drain=drain, grace_seconds=grace_seconds)
        if self._stop is not None:  # a signal or another thread stopped it already
            self.stop(*self._stop)
        return keeper

    def _pools(self, state: State) -> Iterator[threads.Threads]:
        """Yield the thread pools for the handlers that are plain functions."""
        board, handover = self._board, Handover(state)
        stages: list[tuple[str, Callable[..., Any] | None, Callable[[], Any], Sized, Callable[..., None]]] = [
            ("prepare", self._prepare, handover.take_prepare, board.to_prepare, threads.run_prepare),
            ("process", self._process, handover.take_process, board.ready, threads.run_process),
        ]
        if isinstance(board, BatchBoard):
            stages = [("process", self._process, handover.take_group, board.ready_groups, threads.run_group)]
        for name, handler, take, waiting, work in stages:
            if handler is None or is_async(handler):
                continue
            before = leave = None
            if self._executor == "process":
                from .processes import Child

                child = Child(name, handler, state.source, state.observers, self._check)
                handler, before, leave = child, child.ready, child.close
            yield threads.Threads(
                name,
                self._concurrency,
                take,
                waiting.__len__,
                partial(work, handover, handler),
                failed=state.crash,
                ended=state.end,
                before=before,
                leave=leave,
            )

    @contextmanager
    def _signals(self, grace: float | None) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(_number: int, _frame: object) -> None:
            self.stop(grace if self._stop is None else 0.0)

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # ---- looking

    def stats(self) -> WorkerStats:
        """Return the worker's totals, held messages and learned durations. Before it runs, the durations stored with the queue.

        For several queues, returns the sums; the durations are in the stats of each of the `workers`.
        """
        if self._several is not None:
            totals: WorkerStats = self._several.stats()
            return totals
        board, state = self._board, self._keeper.state if self._keeper else None
        if state is None:
            self._estimates.load(self._source.estimates())
        breaker = None if self._keeper is None else self._keeper.outage.report()
        with board.lock:
            waits = list(board.waits)
            return WorkerStats(
                **{name: getattr(state, name, 0) for name in COUNTED},
                breaker=breaker,
                running=len(board.running),
                preparing=len(board.preparing),
                prepared=board.prepared_count - len(board.preparing) - sum(not job._cancelled for job in board.to_prepare),
                buffered=board.buffered,
                limited=board.passed_jobs,
                prepared_bytes=board.prepared_bytes,
                prepared_wait_seconds=statistics.median(waits) if waits else None,
                margin_seconds=self._estimates.margin.seconds,
                prepare=self._estimates.prepare.snapshot(),
                process=self._estimates.process.snapshot(),
                busy_ratio=state.busy_ratio() if state else 0.0,
            )

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The worker of each queue. For one queue, this one."""
        return (self,) if self._several is None else self._several.workers

    def reset_estimates(self) -> None:
        """Delete the learned durations, here and in the queue."""
        if self._several is not None:
            for worker in self._several.workers:
                worker.reset_estimates()
            return
        with self._board.lock:
            self._estimates.reset()
        if STORED_ESTIMATES in self._source.capabilities:
            self._source.keep_estimates(None)


def _weights(given: object, count: int) -> list[float]:
    """Return the weights of several queues.

    Raises:
        InvalidArgument: they are invalid, or not as many as there are queues.
    """
    if given is None:
        return [1.0] * count
    if not isinstance(given, list | tuple) or len(given) != count:
        raise InvalidArgument(f"weights must be a list of {count} numbers, one for each queue")
    for weight in given:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.001 <= weight <= 1_000:
            raise InvalidArgument(f"a weight must be 0.001 to 1,000, not {weight!r}")
    return [float(weight) for weight in given]


def _sync(queue: Any) -> Queue | HasSource:
    inner = queue if isinstance(queue, Queue) else getattr(queue, "sync", queue)
    if not isinstance(inner, Queue) and not callable(getattr(inner, "_source", None)):
        raise InvalidArgument(f"a worker takes a Queue or the URL of one, not {type(queue).__name__}")
    return inner


def _expected(name: str, value: float | None) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= FOREVER_SECONDS):
        raise InvalidArgument(f"{name} must be 0 to {FOREVER_SECONDS:,.10g} seconds, not {value!r}")
    return None if value is None else float(value)


def _handler(what: str, handler: Any) -> Callable[..., Any]:
    require_runs(what, handler)
    try:
        inspect.signature(handler).bind(object())
    except TypeError as e:
        argument = "the jobs" if what == "process_batch" else "the job"
        raise InvalidArgument(f"{what} must take one argument, {argument}: {e}") from None
    except ValueError:
        pass  # some built-in functions have no signature
    return handler  # type: ignore[no-any-return]


def _in_event_loop() -> bool:
    """Return whether this thread has an event loop, without importing asyncio or trio."""
    if "asyncio" in sys.modules:
        import asyncio

        with suppress(RuntimeError):
            asyncio.get_running_loop()
            return True
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())
