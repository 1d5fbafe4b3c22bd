"""Observers of a queue: event hooks, the worker's events, the log, and metrics exporters.

Observers are called after the change. Exceptions that they raise are logged, and the operation continues. Each method is stored
as a tuple of the observers that override it, so that an unobserved call costs one comparison.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from .._values.errors import InvalidArgument
from .log import log

if TYPE_CHECKING:
    from .._values.findings import WorkerEvent
    from .._values.types import Event

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

    # ---- around operations, for tracers

    def sending(self, messages: int) -> AbstractContextManager[Mapping[str, str] | None] | None:
        """Return a context that is entered before messages are sent and left afterwards, in the thread that sends; None: none.

        Its value: headers that are added to each message that does not have them. A send that fails leaves it with the error.
        A message sent in a transaction or by a handler is sent alone, when `tx.send` or `job.send` is called.

        Args:
            messages: how many are sent together.
        """

    def received(self, deliveries: Sequence[Any], seconds: float) -> None:
        """Handle the deliveries of a receive that found messages, before its caller gets them. They must not be settled.

        Args:
            seconds: how long the attempt that found them took, without earlier waiting.
        """

    def handling(self, stage: str, jobs: Sequence[Any]) -> AbstractContextManager[object] | None:
        """Return a context that is entered around a handler of a worker, in the handler's thread or task; None: none.

        It is left with the exception that the handler raised, such as Retry.

        Args:
            stage: "prepare" or "process".
            jobs: one job; with process_batch, all jobs of the batch.
        """

    def handling_elsewhere(self, stage: str, job: Any) -> Callable[[], AbstractContextManager[object]] | None:
        """Return a function for the process of a handler, if the worker has executor="process"; None: none.

        Called in the worker, within the context of `handling`. The function is pickled and called in the handler's process, where
        the context that it returns is entered around the handler.
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
        events, worker_events, counts, durations, sending, received, handling, elsewhere: the methods to call.
    """

    __slots__ = (
        "_all",
        "_lock",
        "counts",
        "durations",
        "elsewhere",
        "events",
        "handling",
        "received",
        "sending",
        "worker_events",
    )

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
        self.sending = _having(watching, "sending")
        self.received = _having(watching, "received")
        self.handling = _having(watching, "handling")
        self.elsewhere = _having(watching, "handling_elsewhere")

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


def contexts(methods: Iterable[Callable[..., Any]], *arguments: Any) -> Iterator[Any]:
    """Yield what the methods return that is not None. Their exceptions are logged."""
    for method in methods:
        try:
            found = method(*arguments)
        except Exception:
            log.exception("an observer failed: %s%r", getattr(method, "__name__", method), arguments)
        else:
            if found is not None:
                yield found


@contextmanager
def around(methods: Iterable[Callable[..., Any]], *arguments: Any) -> Iterator[list[Any]]:
    """Enter the contexts that the methods return, in order, and leave them in reverse. Yield their values.

    Their exceptions are logged. An exception of the block is passed to them, and raised.
    """
    entered: list[Any] = []
    values: list[Any] = []
    for method in methods:
        try:
            context = method(*arguments)
            if context is not None:
                values.append(context.__enter__())
                entered.append(context)
        except Exception:
            log.exception("an observer failed: %s%r", getattr(method, "__name__", method), arguments)
    error: tuple[Any, Any, Any] = (None, None, None)
    try:
        yield values
    except BaseException:
        error = sys.exc_info()
        raise
    finally:
        for context in reversed(entered):
            try:
                context.__exit__(*error)
            except Exception as e:
                if e is not error[1]:
                    log.exception("an observer failed: %r", context)
