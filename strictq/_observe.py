"""Observers of a queue: event hooks, the worker's events, the log, and metrics exporters.

Observers are called after the change. Exceptions that they raise are logged, and the operation continues. Each method is stored
as a tuple of the observers that override it, so that an unobserved call costs one comparison.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from ._errors import InvalidArgument
from ._log import log

if TYPE_CHECKING:
    from ._findings import WorkerEvent
    from ._types import Event

ANY_SHARD: Final = -1
"""The shard number of events that concern no single shard."""


class Observer:
    """Base class of observers. Override the methods that you need, and pass an instance to `q.observe`.

    A method that is not overridden costs nothing. Methods are called after the commit, in the thread that did the work, and
    from several threads at once, so they must be quick and thread-safe. They may call the queue; such calls are observed, too.
    Exceptions that they raise are logged, and have no other effect.
    """

    def event(self, event: Event) -> None:
        """Handle an Event for operators, such as a dead letter."""

    def worker_event(self, event: WorkerEvent) -> None:
        """Handle a state change of a job of a worker on the observed queue. There are several per message."""

    def count(self, name: str, n: int, shard: int) -> None:
        """Add what one commit changed to a counter.

        Args:
            name: "sends", "receives", "claims", "empty_receives", "acks", "retries", "redeliveries", "expired", "dropped" or
                "purged": as in Stats. Or "dead_letters": messages that became one.
            n: number of messages, 1 or more; for "claims" and "empty_receives", the number of attempts to claim from a shard.
            shard: number of the shard.
        """

    def duration(self, name: str, seconds: float, shard: int) -> None:
        """Handle a duration.

        Args:
            name: "commit": a write transaction of the queue, including all waiting, for each call that shares it. "transaction":
                one that stays open for the program's SQL. "receive_wait": the wait of a receive that found no message at first.
                "prepare", "process": a handler of a worker.
            seconds: measured on the machine's clock.
            shard: number of the shard; -1 for a receive.
        """


class Observation:
    """The result of `observe`. End it with `close`, or use it as a context manager."""

    def __init__(self, observers: Observers, observer: Observer) -> None:
        self._observers = observers
        self.observer = observer

    def close(self) -> None:
        """Stop calling the observer. A call in another thread may still be running. Closing twice does nothing."""
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
    """The observers of one queue.

    Attributes:
        events, worker_events, counts, durations: the methods to call.
    """

    __slots__ = ("_all", "_lock", "counts", "durations", "events", "worker_events")

    def __init__(self) -> None:
        self._all: tuple[Observation, ...] = ()
        self._lock = threading.Lock()
        self._sort()

    def add(self, observer: Observer) -> Observation:
        """Add an observer."""
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
        """Replace the lock after a fork: another thread of the parent may have held it."""
        self._lock = threading.Lock()

    def _sort(self) -> None:
        watching = [each.observer for each in self._all]
        self.events = _having(watching, "event")
        self.worker_events = _having(watching, "worker_event")
        self.counts = _having(watching, "count")
        self.durations = _having(watching, "duration")

    def timed(self, name: str, began: float, shard: int) -> None:
        """Report a duration that began at this reading of `time.monotonic()` and ends now."""
        if self.durations:
            notify(self.durations, name, time.monotonic() - began, shard)


def _having(observers: Iterable[Observer], name: str) -> tuple[Callable[..., None], ...]:
    """Return the overridden methods of this name."""
    methods = [getattr(each, name) for each in observers]
    return tuple(method for method in methods if getattr(method, "__func__", None) is not getattr(Observer, name))


def notify(methods: Iterable[Callable[..., None]], *arguments: Any) -> None:
    """Call each method. Log its exceptions: the operation has been committed, and its caller must get the result."""
    for method in methods:
        try:
            method(*arguments)
        except Exception:
            log.exception("an observer failed: %s%r", getattr(method, "__name__", method), arguments)
