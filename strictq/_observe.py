"""The one seam on which everything hangs that watches a queue: hooks, the worker's events, the log, and what exports metrics.

One rule holds for all of them: an observer is called after what it learns of has happened, and what it raises is logged; the
operation goes on. Each method is kept as a tuple of the observers that have it, so that nobody listening costs one look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from ._errors import InvalidArgument

if TYPE_CHECKING:
    import logging

    from ._findings import WorkerEvent
    from ._types import Event

ANY_SHARD: Final = -1
"""The shard of what concerns none, or all."""


class Observer:
    """Base of what watches a queue: override the methods that you need, and give an object of it to `q.observe`.

    What is not overridden costs nothing. Methods are called in the thread that did the work, after the commit, from several
    threads at once: they must be quick, and safe in threads. They may call the queue; such a call is observed, too. What they
    raise is logged, and changes nothing.
    """

    def event(self, event: Event) -> None:
        """See what an operator wants to know, such as a dead letter: an Event."""

    def worker_event(self, event: WorkerEvent) -> None:
        """See a change of a job's state, in a worker that runs on the observed queue: several for each message."""

    def count(self, name: str, n: int, shard: int) -> None:
        """Add what one commit changed to a counter.

        Args:
            name: "sends", "receives", "claims", "empty_receives", "acks", "retries", "redeliveries", "expired", "dropped" or
                "purged": as in Stats. Or "dead_letters": messages that became one.
            n: messages, 1 or more; of "claims" and "empty_receives": looks at a shard.
            shard: number of the shard.
        """

    def duration(self, name: str, seconds: float, shard: int) -> None:
        """See how long something took.

        Args:
            name: "commit": a write transaction of the queue, with all waiting, for each call that shares it. "transaction": one
                that stays open for the program's own SQL. "receive_wait": a receive that found nothing at first, from then on.
                "prepare", "process": a handler of a worker.
            seconds: on the machine's clock.
            shard: number of the shard; -1 of a receive.
        """


class Observation:
    """What `observe` returns: ends with `close`, or as a with block."""

    def __init__(self, observers: Observers, observer: Observer) -> None:
        self._observers = observers
        self.observer = observer

    def close(self) -> None:
        """Call the observer no more. A call that another thread has begun may still be under way. Closing twice does nothing."""
        self._observers.remove(self)

    def __enter__(self) -> Observation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class EventHook(Observer):
    """An `on_event` function as an observer."""

    def __init__(self, hook: Callable[[Event], None]) -> None:
        self.event = hook  # type: ignore[method-assign, assignment]


class Observers:
    """Who watches one queue.

    Attributes:
        events, worker_events, counts, durations: the methods to call; empty: nobody listens.
    """

    __slots__ = ("_all", "_lock", "counts", "durations", "events", "worker_events")

    def __init__(self) -> None:
        self._all: tuple[Observation, ...] = ()
        self._lock = threading.Lock()
        self._sort()

    def add(self, observer: Observer) -> Observation:
        """Call this observer from now on."""
        if not isinstance(observer, Observer):
            raise InvalidArgument(f"an observer must be a strictq.Observer, not {type(observer).__name__}")
        observation = Observation(self, observer)
        with self._lock:
            self._all = (*self._all, observation)
            self._sort()
        return observation

    def remove(self, observation: Observation) -> None:
        with self._lock:
            self._all = tuple(each for each in self._all if each is not observation)
            self._sort()

    def after_fork_in_child(self) -> None:
        """Another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def _sort(self) -> None:
        watching = [each.observer for each in self._all]
        self.events = _having(watching, "event")
        self.worker_events = _having(watching, "worker_event")
        self.counts = _having(watching, "count")
        self.durations = _having(watching, "duration")

    def timed(self, name: str, began: float, shard: int) -> None:
        """Report what began at that reading of `time.monotonic()` and ends now."""
        if self.durations:
            notify(self.durations, name, time.monotonic() - began, shard)


def _having(observers: Iterable[Observer], name: str) -> tuple[Callable[..., None], ...]:
    """The methods of this name that do something."""
    methods = [getattr(each, name) for each in observers]
    return tuple(method for method in methods if getattr(method, "__func__", None) is not getattr(Observer, name))


def notify(methods: Iterable[Callable[..., None]], *arguments: Any) -> None:
    """Call each of them. What one raises is logged: what it is about has happened, and its caller must get the result."""
    for method in methods:
        try:
            method(*arguments)
        except Exception:
            logger().exception("an observer failed: %s(%s)", getattr(method, "__name__", method), ", ".join(map(repr, arguments)))


def logger() -> logging.Logger:
    """The package's log. Its module is imported when there is something to say: most programs that open a queue never log."""
    import logging

    return logging.getLogger("strictq")
