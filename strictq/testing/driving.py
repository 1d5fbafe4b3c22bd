"""Run handlers and consumers until no work is left, without waiting."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import attrs

from .._platform.declared_once import same_arguments
from .._values import hints
from .._values.errors import InvalidArgument
from .._values.handlers import is_async, require_ran, require_runs
from ..queue import Queue
from .clock import DAY_SECONDS, FakeClock
from .machine import clock_of, plain

MESSAGES_MAX: Final = 100_000


@attrs.frozen
class Drained:
    """The result of `drain`.

    Attributes:
        acked, retried, rejected, deferred: number of messages.
        failures: (key, seq, attempt, reason) of every failed attempt, in order, including the last one of a poison message.
        seconds: seconds of the queue's time that were skipped.
    """

    acked: int
    retried: int
    rejected: int
    failures: list[tuple[Any, int, int, str]]
    seconds: float
    deferred: int = 0


def drain(
    queue: Any,
    process: Callable[..., Any],
    prepare: Callable[..., Any] | None = None,
    *,
    failures: Literal["raise", "retry"] = "raise",
    skip: bool = True,
    seconds_max: float = DAY_SECONDS,
    messages_max: int = MESSAGES_MAX,
    **worker: Any,
) -> Drained:
    """Run a `strictq.Worker` until no message is ready or will become ready. Nothing sleeps.

    If only delays and other consumers' leases are left, the queue's clock advances to the end of the first one. One handler
    runs at a time unless you pass `concurrency=`.

    Args:
        queue: a Queue, or an AsyncQueue outside of an event loop; with a FakeClock if time is to be skipped.
        process, prepare: handlers, as for Worker, called with a Job.
        failures: "raise": stop at the first exception of a handler other than Retry, Defer and Reject, nack its message, and
            raise the exception. "retry": retry as in production, until the message is dead.
        skip: False: do not wait for delayed messages, or for leases of other consumers.
        seconds_max: most time that may be skipped.
        messages_max: most messages handled.
        worker: further arguments of Worker. There is no breaker unless you pass one. executor="process" needs failures="retry".
    Returns:
        The totals, failures and skipped time.
    Raises:
        AssertionError: it has not ended within seconds_max and messages_max.
        The handler's own exception: see failures.
    """
    from ..worker.worker import _in_event_loop

    if _in_event_loop():
        raise InvalidArgument("drain() would block the event loop of this thread", hint=hints.AWAIT_DRAIN)
    driving = _Driving(
        queue, process, prepare, failures=failures, skip=skip, seconds_max=seconds_max, messages_max=messages_max, **worker
    )
    while driving.goes_on():
        driving.worker().run(drain=True)
    return driving.result()


@same_arguments(drain)
async def drain_async(queue: Any, process: Any, prepare: Any = None, **options: Any) -> Drained:
    """Run `drain` inside an event loop, asyncio or trio."""
    driving = _Driving(queue, process, prepare, **options)
    while driving.goes_on():
        await driving.worker().serve(drain=True)
    return driving.result()


def run_until_idle(queue: Any, consumer: Callable[[], object], *, seconds_max: float = DAY_SECONDS) -> None:
    """Run an endless consumer until no message is left for it. Nothing sleeps.

    `consumer` is the program's own loop around `receive` or `consume`, with any `wait`. In its receives, the queue's clock
    advances to the end of the next delay or lease. If there is none, the exception `Idle`, which `except Exception` does not
    catch, ends the loop. Run one consumer at a time: skipped time also ends the leases of other threads.

    Args:
        queue: a queue with a FakeClock.
        seconds_max: most time that may be skipped.
    Raises:
        InvalidArgument: the queue uses the machine's clock, or consumer is a generator function or async; nothing was run.
        AssertionError: it is not idle after seconds_max.
    """
    require_runs("consumer", consumer)
    with clock_of(queue).skipping(until_idle=True, seconds_max=seconds_max):
        require_ran("consumer", consumer())


async def run_until_idle_async(
    queue: Any, consumer: Callable[[], Awaitable[object]], *, seconds_max: float = DAY_SECONDS
) -> None:
    """Run an async consumer until no message is left: `await run_until_idle_async(q, consume_orders)`."""
    require_runs("consumer", consumer)
    with clock_of(queue).skipping(until_idle=True, seconds_max=seconds_max):
        await consumer()


class _Driving:
    """One drain: its successive workers and their results."""

    def __init__(
        self,
        queue: Any,
        process: Any,
        prepare: Any,
        *,
        failures: str = "raise",
        skip: bool = True,
        seconds_max: float = DAY_SECONDS,
        messages_max: int = MESSAGES_MAX,
        **options: Any,
    ) -> None:
        if failures not in ("raise", "retry"):
            raise InvalidArgument(f"failures must be 'raise' or 'retry', not {failures!r}")
        if failures == "raise" and options.get("executor") == "process":
            raise InvalidArgument(
                "an exception of a handler in another process can't be raised here",
                hint=hints.RETRY_FAILURES,
            )
        self._queue: Queue = plain(queue)
        self._clock: FakeClock | None = clock_of(queue) if skip else None
        self._process, self._prepare = (_watched(self, h) if failures == "raise" else h for h in (process, prepare))
        self._hook = options.pop("on_event", None)
        # A breaker would keep messages that fail from becoming dead letters, which is what most tests want to see.
        self._options = {"concurrency": 1, "breaker": None, **options}
        self._seconds_max, self._messages_max = seconds_max, messages_max
        self._lock = threading.Lock()  # the hook is called in several threads
        self._worker: Any = None
        self._error: BaseException | None = None
        self._handled = 0
        self._counts = {"acked": 0, "retried": 0, "rejected": 0, "deferred": 0}
        self._failures: list[tuple[Any, int, int, str]] = []
        self._skipped = 0

    def worker(self) -> Any:
        """Create the next worker, because a worker runs once."""
        from ..worker import Worker

        self._worker = Worker(self._queue, self._process, self._prepare, on_event=self._tell, **self._options)
        if self._clock is not None:
            self._worker._driver = self
        return self._worker

    def now(self) -> float:
        """Return the time that the breaker uses."""
        assert self._clock is not None
        return self._clock.boot() / 1_000_000

    def skip(self, seconds: float) -> None:
        """Skip the time until an open breaker tries again."""
        assert self._clock is not None
        self._move(self._clock, round(seconds * 1_000_000) + 1)

    def _tell(self, event: Any) -> None:
        kind = "retried" if event.kind == "poison" else event.kind
        if kind in self._counts:
            with self._lock:
                self._counts[kind] += 1
                self._handled += 1
                if kind in ("retried", "rejected"):
                    self._failures.append((event.key, event.seq, event.attempt, event.detail))
            if self._handled >= self._messages_max:
                self._worker.stop()
        if self._hook is not None:
            self._hook(event)

    def failed(self, error: BaseException) -> None:
        """Let running handlers finish, then raise the handler's exception."""
        if self._error is None:
            self._error = error
        self._worker.stop()

    def goes_on(self) -> bool:
        """Advance the clock to the next work after a worker found none ready. Return whether there is more."""
        if self._error is not None:
            raise self._error
        if self._worker is None:
            return True
        if self._handled >= self._messages_max:
            raise AssertionError(f"not idle after {self._handled:,} messages: is one retried forever? {self._busy()}")
        return self._clock is not None and self._skip(self._clock)

    def _skip(self, clock: FakeClock) -> bool:
        storage = self._queue._client.storage
        at, now = storage.soonest(), storage.now()
        if at is None or at <= now:
            return False  # due messages that this worker did not receive have other keys than it asked for
        self._move(clock, at - now)
        return True

    def _move(self, clock: FakeClock, step: int) -> None:
        self._skipped += step
        if self._skipped > self._seconds_max * 1_000_000:
            raise AssertionError(f"not idle after {self._seconds_max:,.0f} s of the queue's time: {self._busy()}")
        clock.advance(step / 1_000_000)

    def _busy(self) -> str:
        return "; ".join(
            f"key {k.key!r}: {self._queue.explain(k.key).text}" for k in self._queue.top_keys(3) if k.key is not None
        )

    def result(self) -> Drained:
        return Drained(**self._counts, failures=self._failures, seconds=self._skipped / 1_000_000)


def _watched(driving: _Driving, handler: Any) -> Any:
    """Wrap the handler to record its exceptions, except Retry, Defer and Reject."""
    if not callable(handler):
        return handler  # Worker reports what is wrong with it
    from ..worker import Defer, Reject, Retry

    if is_async(handler):

        async def watched(job: Any) -> Any:
            try:
                return require_ran("the handler", await handler(job))
            except (Retry, Defer, Reject):
                raise
            except Exception as e:
                driving.failed(e)
                raise

    else:

        def watched(job: Any) -> Any:  # type: ignore[misc]
            try:
                return require_ran("the handler", handler(job))
            except (Retry, Defer, Reject):
                raise
            except Exception as e:
                driving.failed(e)
                raise

    functools.update_wrapper(watched, handler, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
    return watched
