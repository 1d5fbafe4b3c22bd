"""The remote queue for asyncio and trio."""

from __future__ import annotations

from typing import Any, Final

from .._platform.declared_once import mirrored, same_arguments
from ..aio.twins import QueueTwin, twin
from .queue import RedrivePolicy, RemoteQueue, connect


class AsyncRemoteQueue(QueueTwin[RemoteQueue]):
    """A RemoteQueue whose methods are awaited. Get one from `strictq.connect_async`, in an `async with` block."""

    is_fifo: Final[bool] = mirrored(RemoteQueue, "sync")
    lease_seconds: Final[float] = mirrored(RemoteQueue, "sync")
    redrive: Final[RedrivePolicy | None] = mirrored(RemoteQueue, "sync")
    send = twin(RemoteQueue.send)
    send_many = twin(RemoteQueue.send_many)
    stats = twin(RemoteQueue.stats)


@same_arguments(connect)
def connect_async(*args: Any, **options: Any) -> AsyncRemoteQueue:
    """Connect for asyncio or trio: `async with strictq.connect_async(url) as q`. Its methods are awaited.

    Arguments and errors are those of `connect`. The connection is made on entry. A Worker takes it, as `connect`'s.
    """
    return AsyncRemoteQueue(lambda: connect(*args, **options))
