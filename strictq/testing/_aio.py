"""An AsyncQueue over an open queue. A separate module, because importing asyncio costs more than the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..aio import AsyncQueue
from ..queue import Queue

T = TypeVar("T")


class ReadyAsyncQueue(AsyncQueue):
    """An AsyncQueue that is already open; `async with` only closes it."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(lambda: queue)
        self._queue = queue

    async def __aenter__(self) -> ReadyAsyncQueue:
        return self

    def _in_a_loop(self) -> None:
        # Limiters belong to the event loop, and there was none when this was made.
        if self._limiter is None:
            self._begin()

    async def _run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        self._in_a_loop()
        return await super()._run(call, *args, **options)

    async def _run_inside(self, call: Callable[..., T], *args: Any) -> T:
        self._in_a_loop()
        return await super()._run_inside(call, *args)
