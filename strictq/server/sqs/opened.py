"""The queues that are open. A queue is opened when it is first used, and closed when it has not been used for a minute."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal

from ..._platform.clock import Clock
from ..._values.errors import QueueClosed, StrictqError
from ..._values.types import Message
from ..queues import Queues
from .calls import InLoop, InThread, QueueCalls
from .catalogue import Catalogue, Entry
from .errors import SqsError, no_queue
from .fifo import FifoQueue
from .polls import Polls
from .served import ServedQueue
from .standard import StandardQueue

OPEN_MAX: Final = 256
IDLE_SECONDS: Final = 60.0
SWEEP_SECONDS: Final = 15.0
BURY_TRIES: Final = 3


class OpenedQueue:
    """A queue that is open, how it is called, and its polls.

    Attributes:
        used_at: when it was last used, seconds of `time.monotonic`.
    """

    __slots__ = ("calls", "entry", "polls", "served", "used_at")

    def __init__(self, served: ServedQueue, calls: QueueCalls) -> None:
        self.entry = served.entry
        self.served = served
        self.calls = calls
        self.polls = Polls(calls)
        self.used_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether it can be closed, and opened again, without a difference."""
        return not self.calls.waiting and not len(self.polls) and not self.served.hides

    def close(self, save: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Close the queue after the calls that wait.

        Args:
            save: stores what the next start needs of the hidden messages.
        """
        self.polls.end()
        self.calls.close()
        try:
            saved = self.served.saved()
            if save is not None and saved is not None:
                save(saved)
        finally:
            self.served.close()


class OpenQueues:
    """Opens and closes the queues of a catalogue."""

    def __init__(self, catalogue: Catalogue, durability: Literal["full", "process"], clock: Clock, shown: Queues | None) -> None:
        """Prepare to open queues, in the running event loop."""
        self._catalogue = catalogue
        self._durability: Literal["full", "process"] = durability
        self._clock = clock
        self._shown = shown if catalogue.directory is None else None
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, OpenedQueue] = {}
        self._opening: dict[str, asyncio.Future[OpenedQueue]] = {}
        self._lock = threading.RLock()

    @property
    def in_memory(self) -> bool:
        """Whether queues are kept in memory, so that they are never closed."""
        return self._catalogue.directory is None

    def all(self) -> list[OpenedQueue]:
        """Return the queues that are open."""
        return list(self._open.values())

    async def get(self, entry: Entry) -> OpenedQueue:
        """Return a queue. Open it if it is not open.

        Raises:
            StrictqError: it can't be opened.
        """
        found = self._open.get(entry.name)
        if found is None:
            found = self.open(entry) if self.in_memory else await self._soon(entry)
        found.used_at = time.monotonic()
        return found

    async def _soon(self, entry: Entry) -> OpenedQueue:
        """Open a queue in another thread, once for all who wait for it."""
        opening = self._opening.get(entry.name)
        if opening is None:
            opening = self._opening[entry.name] = asyncio.ensure_future(asyncio.to_thread(self.open, entry))
            opening.add_done_callback(lambda _: self._opening.pop(entry.name, None))
        return await asyncio.shield(opening)

    def open(self, entry: Entry) -> OpenedQueue:
        """Do the same in this thread.

        Raises:
            SqsError: it was deleted meanwhile, or too many others are in use.
        """
        with self._lock:
            if self._catalogue.entries.get(entry.name) is not entry:
                raise no_queue()
            found = self._open.get(entry.name)
            if found is None:
                if not self.in_memory and len(self._open) >= OPEN_MAX:
                    self._make_room()
                found = self._open[entry.name] = self._opened(entry)
            return found

    def _opened(self, entry: Entry) -> OpenedQueue:
        kind = FifoQueue if entry.fifo else StandardQueue
        served: ServedQueue = kind(entry, self._catalogue.path(entry.name), self._durability, self._clock, self.bury)
        try:
            if entry.hidden is not None:
                served.restore(entry.hidden)
                self._catalogue.change(entry, hidden=None)  # a later crash must not bring it back
            if self._shown is not None:
                self._shown.lend(entry.name, served.q)
            slow = served.q.durability == "full" and not self.in_memory
            return OpenedQueue(served, InThread(served, self._loop) if slow else InLoop(served))
        except BaseException:
            served.close()
            raise

    def _make_room(self) -> None:
        idle = [each for each in self._open.values() if each.is_idle]
        if not idle:
            raise SqsError("ServiceUnavailable", f"{OPEN_MAX} queues are in use; try again.")
        self._close(min(idle, key=lambda each: each.used_at))

    def _close(self, opened: OpenedQueue, save: Callable[[dict[str, Any]], None] | None = None) -> None:
        with self._lock:
            if self._open.get(opened.entry.name) is not opened:
                return
            del self._open[opened.entry.name]
        if self._shown is not None:
            self._shown.take_back(opened.entry.name)
        opened.close(save)  # without the lock, for which a call that is running may wait

    async def drop(self, entry: Entry) -> None:
        """Close a queue that was taken from the catalogue."""
        if not self.in_memory:
            await asyncio.to_thread(self._await_opening)
        if (opened := self._open.get(entry.name)) is not None:
            opened.polls.end()
            if self.in_memory:
                self._close(opened)
            else:
                await asyncio.to_thread(self._close, opened)

    def _await_opening(self) -> None:
        """Wait until no thread is opening a queue."""
        with self._lock:
            pass

    def bury(self, entry: Entry, target: str, message: Message) -> bool:
        """Send a message of a queue to the queue with an ARN, from any thread. Return False if there is no such queue."""
        for _ in range(BURY_TRIES):
            found = self._catalogue.find(target)
            if found is None:
                return False
            try:
                opened = self.open(found)
                opened.used_at = time.monotonic()
                opened.served.q.send(message)
            except QueueClosed:
                continue  # it was idle until now
            self._loop.call_soon_threadsafe(opened.polls.changed)
            return True
        raise SqsError("ServiceUnavailable", f"the dead-letter queue of {entry.name} is being closed")

    async def watch(self) -> None:
        """Close queues that are not used, for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            before = time.monotonic() - IDLE_SECONDS
            for opened in self.all():
                if opened.used_at < before and opened.is_idle and not self.in_memory:
                    await asyncio.to_thread(self._close, opened)

    def close(self) -> None:
        """Close all queues. Store what the next start needs of their hidden messages.

        Raises:
            StrictqError: that of one queue was not stored, or a queue was not closed.
        """
        failed: StrictqError | None = None
        for opened in self.all():
            entry = opened.entry

            def save(hidden: dict[str, Any], entry: Entry = entry) -> None:
                self._catalogue.change(entry, hidden=hidden)

            try:
                self._close(opened, None if self.in_memory else save)
            except StrictqError as e:
                failed = failed or e
        if failed is not None:
            raise failed
