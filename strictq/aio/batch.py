"""The async Batch."""

from __future__ import annotations

from types import TracebackType

from .._platform.lazy import LazyList
from ..batch import Batch
from .delivery import AsyncDelivery
from .threads import Calls


class AsyncBatch(LazyList[AsyncDelivery]):
    """A Batch to use as `async with await q.receive() as batch`. If cancelled, it returns the unsettled messages first.

    Attributes:
        received: the sync batch behind it.
    """

    __slots__ = ("_made", "_queue", "received")

    def __init__(self, queue: Calls, received: Batch) -> None:
        self._elements = None
        self._queue = queue
        self.received = received
        self._made: list[AsyncDelivery] = []

    def _count(self) -> int:
        return len(self.received)

    def _make(self) -> list[AsyncDelivery]:
        self._made = [AsyncDelivery(self._queue, d) for d in self.received]
        return self._made.copy()

    def whole(self) -> Batch | None:
        """Return the sync batch if nothing was removed from this list; otherwise None."""
        return self.received if self._elements is None or self._elements == self._made else None

    async def __aenter__(self) -> AsyncBatch:
        self.received.enter(None if self._elements is None else [d._delivery for d in self._elements])
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.received:
            await self._queue._run_surely(self.received.give_back, error)
