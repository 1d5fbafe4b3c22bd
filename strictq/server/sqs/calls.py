"""Where the calls of an open queue run: in the event loop, or joined in a thread of the queue.

A call that does not wait for the disk takes less time than handing it to a thread. At durability "full" a call waits for a sync,
so a thread takes everything that waits: all sends are one transaction, all deletes another one.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from ..._values.errors import OutcomeUnknown, StrictqError
from ..._values.types import Message, Receipt
from .errors import SqsError
from .served import Failure, ServedQueue

JOINED_MAX: Final = 1_000
T = TypeVar("T")


class QueueCalls(ABC):
    """Runs the calls of a queue, one at a time.

    Attributes:
        at_once: calls have returned when the caller is continued, so it cannot be cancelled in between.
    """

    at_once: bool

    def __init__(self, queue: ServedQueue) -> None:
        self.queue = queue
        self.waiting = 0
        """The number of calls that have begun and not returned."""

    @abstractmethod
    async def send(self, messages: Sequence[Message]) -> list[Receipt | Failure]:
        """Send messages. See ServedQueue.send."""

    @abstractmethod
    async def delete(self, handles: Sequence[str]) -> list[Failure | None]:
        """Delete messages. See ServedQueue.delete."""

    @abstractmethod
    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Run another call."""

    @abstractmethod
    def close(self) -> None:
        """End the thread, if there is one, after what waits."""


class InLoop(QueueCalls):
    """Runs calls in the event loop."""

    at_once = True

    async def send(self, messages: Sequence[Message]) -> list[Receipt | Failure]:
        return self.queue.send(messages)

    async def delete(self, handles: Sequence[str]) -> list[Failure | None]:
        return self.queue.delete(handles)

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        return call(*args)

    def close(self) -> None:
        """Do nothing: there is no thread."""


class _Call:
    """A call that waits for the thread.

    Attributes:
        items: the messages of a send, or the handles of a delete.
        alone: instead, a function to call.
    """

    __slots__ = ("alone", "answer", "error", "items", "result")

    def __init__(self, answer: asyncio.Future[Any], items: Sequence[Any], alone: Callable[[], Any] | None = None) -> None:
        self.answer = answer
        self.items = items
        self.alone = alone
        self.result: Any = None
        self.error: BaseException | None = None


class InThread(QueueCalls):
    """Runs calls in a thread of the queue, and joins those that wait."""

    at_once = False

    def __init__(self, queue: ServedQueue, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(queue)
        self._loop = loop
        self._closed = False
        self._calls: SimpleQueue[tuple[Callable[..., Any] | None, _Call] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"sqs-{queue.entry.name}", daemon=True)
        self._thread.start()

    async def send(self, messages: Sequence[Message]) -> list[Receipt | Failure]:
        sent: list[Receipt | Failure] = await self._put(self.queue.send, _Call(self._loop.create_future(), messages))
        return sent

    async def delete(self, handles: Sequence[str]) -> list[Failure | None]:
        deleted: list[Failure | None] = await self._put(self.queue.delete, _Call(self._loop.create_future(), handles))
        return deleted

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        result: T = await self._put(None, _Call(self._loop.create_future(), (), lambda: call(*args)))
        return result

    async def _put(self, kind: Callable[..., Any] | None, call: _Call) -> Any:
        if self._closed:
            raise SqsError("ServiceUnavailable", "The queue is being closed.")
        self.waiting += 1
        self._calls.put((kind, call))
        return await call.answer

    def close(self) -> None:
        self._closed = True
        self._calls.put(None)
        self._thread.join()

    # ---- in the thread

    def _work(self) -> None:
        while (first := self._calls.get()) is not None:
            batch = [first]
            last = False
            while len(batch) < JOINED_MAX and not self._calls.empty():
                following = self._calls.get()
                if following is None:
                    last = True
                    break
                batch.append(following)
            joined: tuple[Callable[..., Any], ...] = (self.queue.send, self.queue.delete)
            for kind in joined:
                if some := [call for of, call in batch if of == kind]:
                    _join(kind, some)
            for of, call in batch:
                if of is None:
                    _alone(call)
            self._loop.call_soon_threadsafe(self._answer, [call for _, call in batch])
            if last:
                return

    def _answer(self, calls: Sequence[_Call]) -> None:
        """Answer calls, in the event loop."""
        self.waiting -= len(calls)
        for call in calls:
            if call.answer.done():  # it was cancelled
                continue
            if call.error is not None:
                call.answer.set_exception(call.error)
            else:
                call.answer.set_result(call.result)


def _alone(call: _Call) -> None:
    assert call.alone is not None
    try:
        call.result = call.alone()
    except Exception as e:
        call.error = e


def _join(kind: Callable[[Sequence[Any]], list[Any]], calls: Sequence[_Call]) -> None:
    """Run calls of one kind together. If that fails as a whole, run each alone, so that no call fails because of another."""
    try:
        outcomes = kind([item for call in calls for item in call.items])
    except Exception as e:
        for call in calls:
            call.error = e
        return
    first = outcomes[0]
    if len(calls) > 1 and _may_be_repeated(first) and all(each is first for each in outcomes):
        for call in calls:
            _join(kind, [call])
        return
    at = 0
    for call in calls:
        call.result = outcomes[at : at + len(call.items)]
        at += len(call.items)


def _may_be_repeated(outcome: object) -> bool:
    return isinstance(outcome, StrictqError) and not isinstance(outcome, OutcomeUnknown)
