"""The remote queue for asyncio and trio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import anyio.to_thread

from .._platform.clock import Clock
from .._platform.observe import Observation, Observer
from .._values import hints
from .._values.config import QueueConfig
from .._values.errors import InvalidArgument, QueueClosed
from .._values.keys import Key
from .._values.types import Body, ContentHash, Event, Message
from ..aio.threads import Calls
from .queue import FETCHERS, POLL_SECONDS, RedrivePolicy, RemoteQueue, RemoteStats, connect
from .sending import RemoteReceipt

if TYPE_CHECKING:
    from datetime import datetime


class AsyncRemoteQueue(Calls):
    """A RemoteQueue whose methods are awaited. Get one from `strictq.connect_async`, in an `async with` block."""

    def __init__(self, opener: Callable[[], RemoteQueue]) -> None:
        super().__init__()
        self._opener = opener
        self._queue: RemoteQueue | None = None

    async def __aenter__(self) -> AsyncRemoteQueue:
        if self._queue is not None:
            raise QueueClosed("an async queue can be entered once")
        self._begin()
        self._queue = await anyio.to_thread.run_sync(self._opener, limiter=self._limiter)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._queue is not None:
            await self._run_inside_surely(self._queue.close)

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument("an AsyncRemoteQueue can't be pickled or copied: it has connections", hint=hints.CONNECT_AGAIN)

    @property
    def sync(self) -> RemoteQueue:
        """The queue that does the work, for use in the program's own threads."""
        if self._queue is None:
            raise QueueClosed("the queue is not connected", hint=hints.USE_ASYNC_WITH)
        return self._queue

    @property
    def path(self) -> str:
        """The URL."""
        return self.sync.path

    @property
    def queue_id(self) -> str:
        """The URL by which the endpoint knows the queue."""
        return self.sync.queue_id

    @property
    def config(self) -> QueueConfig:
        """What a worker reads of the settings. See RemoteQueue."""
        return self.sync.config

    @property
    def is_fifo(self) -> bool:
        """Whether the queue keeps the messages of a group in order."""
        return self.sync.is_fifo

    @property
    def lease_seconds(self) -> float:
        """For how long a receive hides a message from other consumers."""
        return self.sync.lease_seconds

    @property
    def redrive(self) -> RedrivePolicy | None:
        """When the endpoint makes a dead letter of a message; None: never."""
        return self.sync.redrive

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """See RemoteQueue.on_event; hooks are called in worker threads."""
        self.sync.on_event(hook)

    def observe(self, observer: Observer) -> Observation:
        """See RemoteQueue.observe; the observer is called in worker threads."""
        return self.sync.observe(observer)

    async def send(
        self,
        body: Body | Message,
        key: Key | None = None,
        *,
        dedup_id: str | ContentHash | None = None,
        delay: float = 0.0,
        at: datetime | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RemoteReceipt:
        """See RemoteQueue.send."""
        return await self._run(self.sync.send, body, key, dedup_id=dedup_id, delay=delay, at=at, ttl=ttl, headers=headers)

    async def send_many(self, messages: Iterable[Message]) -> list[RemoteReceipt]:
        """See RemoteQueue.send_many."""
        return await self._run(self.sync.send_many, messages)

    async def stats(self) -> RemoteStats:
        """See RemoteQueue.stats."""
        return await self._run(self.sync.stats)

    async def close(self) -> None:
        """See RemoteQueue.close."""
        if self._queue is not None:
            await self._run_inside(self._queue.close)


def connect_async(
    url: str,
    *,
    client: Any = None,
    lease_seconds: float | None = None,
    poll_seconds: float = POLL_SECONDS,
    fetchers: int = FETCHERS,
    settlers: int = 4,
    confirm: Literal["before_next", "behind"] = "before_next",
    clock: Clock | None = None,
) -> AsyncRemoteQueue:
    """Connect for asyncio or trio: `async with strictq.connect_async(url) as q`. Its methods are awaited.

    Arguments and errors are those of `connect`. The connection is made on entry. A Worker takes it, as `connect`'s.
    """
    return AsyncRemoteQueue(lambda: connect(
        url, client=client, lease_seconds=lease_seconds, poll_seconds=poll_seconds, fetchers=fetchers, settlers=settlers,
        confirm=confirm, clock=clock,
    ))  # fmt: skip
