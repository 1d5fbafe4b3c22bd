"""The awaited Batch."""

from __future__ import annotations

from types import TracebackType

from ..batch import give_back
from .delivery import AsyncDelivery


class AsyncBatch(list[AsyncDelivery]):
    """A Batch to use as `async with await q.receive() as batch`. If cancelled, it returns the unsettled messages first."""

    __slots__ = ("_received",)

    _received: tuple[AsyncDelivery, ...]

    async def __aenter__(self) -> AsyncBatch:
        self._received = tuple(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._received:
            received = tuple(d._delivery for d in self._received)
            await self._received[0]._queue._run_surely(give_back, received, error)
