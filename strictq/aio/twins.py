"""What the async forms of sync classes have in common: the same methods, each a call in a worker thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, Self, TypeVar

import anyio.to_thread

from .._client.client import cannot_share
from .._platform.observe import Observation, Observer
from .._values import hints
from .._values.config import QueueConfig
from .._values.errors import QueueClosed
from .._values.types import Event
from .threads import Calls

P = ParamSpec("P")
T = TypeVar("T")


class AnyQueue(Protocol):
    """A sync queue, here or at an endpoint."""

    @property
    def path(self) -> str: ...
    @property
    def queue_id(self) -> str: ...
    @property
    def config(self) -> QueueConfig: ...
    def on_event(self, hook: Callable[[Event], None]) -> None: ...
    def observe(self, observer: Observer) -> Observation: ...
    def close(self) -> None: ...


Q = TypeVar("Q", bound=AnyQueue)


class Twin(ABC):
    """An object whose methods are those of a sync one, awaited."""

    __slots__ = ()

    @abstractmethod
    def _behind(self) -> tuple[Calls, Any]:
        """Return the threads to use, and the sync object."""


def twin(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the awaited form of a method: the same call, in a worker thread, with the same arguments."""

    @wraps(method)
    async def awaited(self: Twin, /, *args: P.args, **options: P.kwargs) -> T:
        calls, behind = self._behind()
        return await calls._run(getattr(behind, method.__name__), *args, **options)

    awaited.__qualname__ = f"Async{method.__qualname__}"
    awaited.__doc__ = f"See {method.__qualname__}."
    return awaited


class QueueTwin(Calls, Twin, Generic[Q]):
    """The async form of a queue, which is opened on entry and closed on exit."""

    def __init__(self, opener: Callable[[], Q]) -> None:
        super().__init__()
        self._opener = opener
        self._queue: Q | None = None

    def _behind(self) -> tuple[Calls, Any]:
        return self, self.sync

    async def __aenter__(self) -> Self:
        if self._queue is not None:
            raise QueueClosed("an async queue can be entered once")
        self._begin()
        self._queue = await anyio.to_thread.run_sync(self._opener, limiter=self._limiter)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._queue is not None:
            await self._run_inside_surely(self._queue.close)

    def __reduce__(self) -> NoReturn:
        raise cannot_share(self)

    @property
    def sync(self) -> Q:
        """The sync queue that does the work, for use in the program's own threads."""
        if self._queue is None:
            raise QueueClosed("the queue is not open", hint=hints.USE_ASYNC_WITH)
        return self._queue

    @property
    def path(self) -> str:
        """The directory, ":memory:", or the URL."""
        return self.sync.path

    @property
    def queue_id(self) -> str:
        """The queue's permanent identifier; at an endpoint, its URL there."""
        return self.sync.queue_id

    @property
    def config(self) -> QueueConfig:
        """The settings, as this process last read them."""
        return self.sync.config

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """See Queue.on_event; hooks are called in worker threads."""
        self.sync.on_event(hook)

    def observe(self, observer: Observer) -> Observation:
        """See Queue.observe; the observer is called in worker threads. The Observation is closed without awaiting."""
        return self.sync.observe(observer)

    async def close(self) -> None:
        """See Queue.close."""
        if self._queue is not None:
            await self._run_inside(self._queue.close)
