"""The remote queue for asyncio and trio."""

from __future__ import annotations

from typing import Any

from .._values.types import same_arguments
from ..aio.twins import QueueTwin, twin
from .queue import RedrivePolicy, RemoteQueue, connect


class AsyncRemoteQueue(QueueTwin[RemoteQueue]):
    """A RemoteQueue whose methods are awaited. Get one from `strictq.connect_async`, in an `async with` block."""

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

    send = twin(RemoteQueue.send)
    send_many = twin(RemoteQueue.send_many)
    stats = twin(RemoteQueue.stats)


@same_arguments(connect)
def connect_async(*args: Any, **options: Any) -> AsyncRemoteQueue:
    """Connect for asyncio or trio: `async with strictq.connect_async(url) as q`. Its methods are awaited.

    Arguments and errors are those of `connect`. The connection is made on entry. A Worker takes it, as `connect`'s.
    """
    return AsyncRemoteQueue(lambda: connect(*args, **options))
