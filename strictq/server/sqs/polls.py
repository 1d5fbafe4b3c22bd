"""Long polls. One task of a queue serves them in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from ..._platform.clock import MICROSECONDS
from .calls import QueueCalls
from .received import Taken, Wanted

LOOK_AGAIN_SECONDS: Final = 20.0
"""How often to look in any case: another process may have changed the queue without a signal. Upkeep notices dead ones."""


class ClientGone(Exception):
    """The client has closed its connection."""


class Polls:
    """The long polls of one queue. Used in the event loop only.

    The poll of a client that has gone ends at once. Nothing is received for it, and what was received meanwhile is given back.
    """

    def __init__(self, calls: QueueCalls) -> None:
        self._calls = calls
        self._queue = calls.queue
        self._waiting: dict[asyncio.Future[list[Taken]], tuple[Wanted, int]] = {}
        self._wake = asyncio.Event()
        self._changes = 0
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def receive(self, wanted: Wanted, wait_seconds: float, gone: Callable[[], Awaitable[object]]) -> list[Taken]:
        """Receive messages. Wait for a first one.

        Args:
            gone: returns when the client has gone.
        Raises:
            ClientGone: it has gone.
        """
        seen: object = None
        if not self._waiting or not wait_seconds:
            seen = self._seen()
            got = await self.take(wanted)
            if got or not wait_seconds or self._ended:
                return got
        loop = asyncio.get_running_loop()
        poll: asyncio.Future[list[Taken]] = loop.create_future()
        self._waiting[poll] = wanted, self._queue.now() + round(wait_seconds * MICROSECONDS)
        timer = loop.call_later(wait_seconds, _end, poll)
        leaving = loop.create_task(_end_when(gone, poll))
        if self._task is None:
            self._task = loop.create_task(self._serve(seen))
        try:
            got = await poll
            if leaving.done():
                self.give_back(got)
                raise ClientGone
            return got
        finally:
            timer.cancel()
            leaving.cancel()
            self._waiting.pop(poll, None)

    async def take(self, wanted: Wanted) -> list[Taken]:
        """Receive messages that are visible now. Between dead letters, let other requests be answered."""
        while True:
            got, has_more = await self._calls.run(self._take, wanted)
            if got or not has_more:
                return got
            await asyncio.sleep(0)

    def _take(self, wanted: Wanted) -> tuple[list[Taken], bool]:
        return self._queue.receive(wanted), self._queue.has_more

    def give_back(self, taken: list[Taken]) -> None:
        """Make messages visible that could not be sent to their client."""
        if not taken:
            return

        async def give_back() -> None:
            await self._calls.run(self._queue.give_back, taken)
            self.changed()

        task = asyncio.ensure_future(give_back())
        _running.add(task)
        task.add_done_callback(_running.discard)

    def changed(self) -> None:
        """Look again: something may have become visible."""
        self._changes += 1
        self._wake.set()

    def _seen(self) -> object:
        """Return a value that changes when something may have become visible by a call."""
        return self._changes, self._queue.seen()

    def end(self) -> None:
        """Answer all polls now, and later ones at once."""
        self._ended = True
        for poll in list(self._waiting):
            _end(poll)
        self._wake.set()

    async def _serve(self, seen: object) -> None:
        """Serve the polls until there is none.

        Args:
            seen: the value of `_seen` before a receive that found nothing. If it is the same, the first look is not needed.
        """
        loop = asyncio.get_running_loop()
        try:
            with self._queue.watched(self._wake_from_any_thread(loop)) as most:
                while self._waiting:
                    self._wake.clear()
                    if self._seen() != seen:
                        await self._look()
                    seen = None
                    now = self._queue.now()
                    for poll in [poll for poll, (_, until) in self._waiting.items() if until <= now]:
                        _end(poll)
                        self._waiting.pop(poll, None)
                    if self._waiting:
                        due = self._queue.seconds_until_due()
                        seconds = min(most, LOOK_AGAIN_SECONDS if due is None else min(due, LOOK_AGAIN_SECONDS))
                        timer = loop.call_later(seconds, self._wake.set)
                        await self._wake.wait()
                        timer.cancel()
        finally:
            self._task = None

    def _wake_from_any_thread(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._wake.set)

        return wake

    async def _look(self) -> None:
        """Receive for the polls, until nothing is visible."""
        while self._waiting:
            poll, (wanted, _) = next(iter(self._waiting.items()))
            if poll.done():
                self._waiting.pop(poll, None)
                continue
            try:
                got = await self.take(wanted)
            except Exception as e:
                self._waiting.pop(poll, None)
                if not poll.done():
                    poll.set_exception(e)
                continue
            if not got:
                return
            self._waiting.pop(poll, None)
            if poll.done():
                await self._calls.run(self._queue.give_back, got)
            else:
                poll.set_result(got)
            await asyncio.sleep(0)  # so that the next poll's client, if it has gone, is noticed


_running: set[asyncio.Task[None]] = set()
"""Tasks that no one awaits."""


async def _end_when(gone: Callable[[], Awaitable[object]], poll: asyncio.Future[list[Taken]]) -> None:
    await gone()
    _end(poll)


def _end(poll: asyncio.Future[list[Taken]]) -> None:
    if not poll.done():
        poll.set_result([])
