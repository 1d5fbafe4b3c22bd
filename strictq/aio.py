"""The queue, awaited: asyncio and trio through anyio.

There is one core, the sync Queue; here its verbs run in worker threads. Only waiting is different: a waiting receive holds
no thread. Cancelling a call that is at work waits for it to finish; a cancelled receive gives back what it leased.
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from . import _validate as validate
from ._config import QueueConfig
from ._errors import LeaseLost, QueueClosed, StrictqError
from ._keys import Key
from ._receiving import Patience, leased_ahead
from ._store.calls import transaction_of
from ._store.engine import Rows
from ._store.wake import POLL_SECONDS
from ._types import (
    ConsumerStatus,
    DeadLetter,
    Event,
    Explanation,
    HistoryRecord,
    KeyDepth,
    Message,
    MessageStatus,
    PeekedMessage,
    Problem,
    Receipt,
    Stats,
)
from .delivery import OPEN, SETTLED, Delivery, Lease, MessageView, describe
from .queue import Queue
from .transaction import Transaction

T = TypeVar("T")
THREADS_MAX: Final = 40
"""Calls of one queue object that are at work at once; more wait."""


class AsyncDelivery(MessageView):
    """A message in the hands of a consumer: a Delivery whose verbs are awaited. `async with d:` acks or nacks it."""

    __slots__ = ("_queue",)

    def __init__(self, queue: AsyncQueue, delivery: Delivery) -> None:
        super().__init__(delivery)
        self._queue = queue

    @property
    def lease(self) -> AsyncLease:
        """The hold on its lane."""
        return AsyncLease(self._queue, self._delivery.lease)

    async def key_state(self) -> bytes | None:
        """The durable state of its key, read now."""
        return await self._queue._run(lambda: self._delivery.key_state)

    async def start(self) -> None:
        """See Delivery.start."""
        await self._queue._run(self._delivery.start)

    async def ack(self) -> None:
        """See Delivery.ack."""
        await self._queue._run(self._delivery.ack)

    async def nack(self, delay: float | None = None, reason: str | None = None, *, output: str | None = None) -> None:
        """See Delivery.nack."""
        await self._queue._run(self._delivery.nack, delay, reason, output=output)

    async def reject(self, reason: str, *, output: str | None = None) -> None:
        """See Delivery.reject."""
        await self._queue._run(self._delivery.reject, reason, output=output)

    async def extend(self, seconds: float) -> None:
        """See Delivery.extend."""
        await self._queue._run(self._delivery.extend, seconds)

    async def done(self) -> None:
        """See Delivery.done."""
        await self._queue._run(self._delivery.done)

    async def __aenter__(self) -> AsyncDelivery:
        if not self._delivery.lease.ack_first:
            await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._delivery._state == SETTLED:
            return
        # Also when the block was cancelled: giving the message back must not be.
        with anyio.CancelScope(shield=True):
            if self._delivery.lease.ack_first:
                await self.done()
            elif error is None:
                await self.ack()
            else:
                with suppress(LeaseLost):
                    await self.nack(reason=describe(error))

    def __repr__(self) -> str:
        return f"Async{self._delivery!r}"


class AsyncLease:
    """A Lease whose verbs are awaited."""

    __slots__ = ("_lease", "_queue")

    def __init__(self, queue: AsyncQueue, lease: Lease) -> None:
        self._queue = queue
        self._lease = lease

    @property
    def key(self) -> Key | None:
        """See Lease.key."""
        return self._lease.key

    @property
    def token(self) -> int:
        """See Lease.token."""
        return self._lease.token

    @property
    def consumer(self) -> str:
        """See Lease.consumer."""
        return self._lease.consumer

    @property
    def shard(self) -> int:
        """See Lease.shard."""
        return self._lease.shard

    @property
    def ack_first(self) -> bool:
        """See Lease.ack_first."""
        return self._lease.ack_first

    @property
    def expires_in(self) -> float:
        """See Lease.expires_in."""
        return self._lease.expires_in

    async def extend(self, seconds: float) -> None:
        """See Lease.extend."""
        await self._queue._run(self._lease.extend, seconds)

    async def more(self, n: int = 10) -> list[AsyncDelivery]:
        """See Lease.more."""
        return self._queue._wrap(await self._queue._run(self._lease.more, n))

    async def release(self) -> None:
        """See Lease.release."""
        await self._queue._run(self._lease.release)


class AsyncTransaction:
    """A Transaction whose block is `async with`, and whose reads are awaited."""

    def __init__(self, queue: AsyncQueue, make: Callable[[], Transaction]) -> None:
        self._queue = queue
        self._make = make
        self._tx: Transaction | None = None

    async def __aenter__(self) -> AsyncTransaction:
        self._tx = self._make().__enter__()
        # Whatever thread its calls run in, it is this transaction that holds the shard.
        self._name = transaction_of.set(object())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self._queue._run_inside(self._inside.__exit__, kind, error, trace)
        finally:
            with suppress(ValueError):  # it ends in another task than it began in, which does not have its name
                transaction_of.reset(self._name)

    @property
    def _inside(self) -> Transaction:
        assert self._tx is not None, "a transaction works inside its async with block only"
        return self._tx

    def send(self, body: bytes, key: Key | None = None, **options: Any) -> None:
        """See Transaction.send. Kept until the block ends, so there is nothing to await."""
        self._inside.send(body, key, **options)

    def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> None:
        """See Transaction.execute. Kept until the block ends, so there is nothing to await."""
        self._inside.execute(sql, params)

    async def run(self, work: Callable[[Any], T]) -> T:
        """See Transaction.run; `work` is a plain function, and runs in a worker thread."""
        return await self._queue._run_inside(self._inside.run, work)

    async def get_key_state(self) -> bytes | None:
        """The durable state of the key."""
        return await self._queue._run_inside(lambda: self._inside.key_state)

    def set_key_state(self, value: bytes | None) -> None:
        """Set the durable state of the key when the block ends."""
        self._inside.key_state = value


class AsyncQueue:
    """A Queue whose verbs are awaited. Get one from `strictq.open_async`, in an `async with` block."""

    def __init__(self, opener: Callable[[], Queue]) -> None:
        self._opener = opener
        self._queue: Queue | None = None
        self._limiter: anyio.CapacityLimiter | None = None
        self._unlimited: anyio.CapacityLimiter | None = None

    async def __aenter__(self) -> AsyncQueue:
        if self._queue is not None:
            raise QueueClosed("an async queue can be entered once")
        self._limiter = anyio.CapacityLimiter(THREADS_MAX)
        self._unlimited = anyio.CapacityLimiter(math.inf)
        self._queue = await anyio.to_thread.run_sync(self._opener, limiter=self._limiter)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()

    async def _run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """A call of the sync queue in a worker thread. Cancellation waits for it: what it did is never in doubt."""
        return await _finish(functools.partial(call, *args, **options), self._limiter)

    async def _run_inside(self, call: Callable[..., T], *args: Any) -> T:
        """The same for an open transaction: it never waits for a thread, or those who wait for it could hold them all."""
        return await _finish(functools.partial(call, *args), self._unlimited)

    def _wrap(self, deliveries: list[Delivery]) -> list[AsyncDelivery]:
        return [AsyncDelivery(self, d) for d in deliveries]

    @property
    def sync(self) -> Queue:
        """The sync queue that does the work; for threads of the program's own."""
        if self._queue is None:
            raise QueueClosed("the queue is not open", hint="use it inside `async with strictq.open_async(...)`")
        return self._queue

    @property
    def path(self) -> str:
        """The directory, or ":memory:"."""
        return self.sync.path

    @property
    def queue_id(self) -> str:
        """Names this queue for ever."""
        return self.sync.queue_id

    @property
    def shards(self) -> int:
        """How many files the hash space is spread over."""
        return self.sync.shards

    @property
    def durability(self) -> str:
        """ "full" or "process"."""
        return self.sync.durability

    @property
    def config(self) -> QueueConfig:
        """The settings, as this process last saw them."""
        return self.sync.config

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """See Queue.on_event; hooks are called in worker threads."""
        self.sync.on_event(hook)

    async def close(self) -> None:
        """See Queue.close."""
        if self._queue is not None:
            await self._run_inside(self._queue.close)

    # ---- sending and receiving

    async def send(
        self,
        body: bytes,
        key: Key | None = None,
        *,
        dedup_id: str | None = None,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        size_hint: float | None = None,
        prepare_seconds: float | None = None,
        process_seconds: float | None = None,
    ) -> Receipt:
        """See Queue.send."""
        return await self._run(
            self.sync.send, body, key, dedup_id=dedup_id, delay=delay, ttl=ttl, headers=headers, size_hint=size_hint,
            prepare_seconds=prepare_seconds, process_seconds=process_seconds,
        )  # fmt: skip

    async def send_many(self, messages: Iterable[Message]) -> list[Receipt]:
        """See Queue.send_many."""
        return await self._run(self.sync.send_many, messages)

    async def receive(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = 0.0,
        lease_seconds: float | None = None,
        keys: Iterable[Key] | None = None,
        consumer: str | None = None,
        ack_first: bool = False,
    ) -> list[AsyncDelivery]:
        """See Queue.receive. Waiting holds no thread; cancelled, it gives back what it leased."""
        queue = self.sync
        request = queue._request(max_messages, per_key, lease_seconds, keys, consumer, ack_first)
        patience = Patience(queue._store, wait)
        waker = queue._store.waker
        while True:
            queue._store.require_open()
            seen = waker.seen()
            deliveries, soonest = await self._receive_once(request)
            if deliveries:
                return self._wrap(deliveries)
            left = patience.left(soonest)
            if left <= 0:
                return []
            await self._wait(seen, left, idle=request.keys is None)

    async def _receive_once(self, request: Any) -> tuple[list[Delivery], int | None]:
        queue = self.sync
        found: list[tuple[list[Delivery], int | None]] = []

        def receive() -> None:
            found.append(queue._receive_once(request))

        try:
            await self._run(receive)
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            # Cancelled while the thread was at work: nothing it leased may stay leased.
            with anyio.CancelScope(shield=True):
                for deliveries, _ in found:
                    await self._run(queue._release_rest, deliveries)
            raise
        return found[0]

    async def _wait(self, seen: tuple[int, int], seconds: float, *, idle: bool) -> None:
        waker = self.sync._store.waker
        woken = anyio.Event()
        wake = _from_any_thread(woken.set)
        until = time.monotonic() + seconds
        waker.listen(wake)
        try:
            while waker.seen() == seen and (left := until - time.monotonic()) > 0:
                if idle:
                    waker.show_idle()
                with anyio.move_on_after(min(left, POLL_SECONDS)):
                    await woken.wait()
        finally:
            waker.unlisten(wake)

    async def consume(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = None,
        lease_seconds: float | None = None,
        keys: Iterable[Key] | None = None,
        consumer: str | None = None,
        ack_first: bool = False,
    ) -> AsyncIterator[AsyncDelivery]:
        """See Queue.consume: `async for d in q.consume(): ...`. Close it (contextlib.aclosing) if you leave it early."""
        queue = self.sync
        wanted = validate.several(keys)
        ahead = leased_ahead(max_messages, ack_first)
        while True:
            batch = await self.receive(
                ahead, per_key=per_key, wait=wait, lease_seconds=lease_seconds, keys=wanted, consumer=consumer,
                ack_first=ack_first,
            )  # fmt: skip
            if not batch and wait is not None:
                return
            waiting = deque(d._delivery for d in batch)
            try:
                while waiting:
                    d = waiting[0]
                    fresh = await self._run(queue._still_fresh, d)
                    waiting.popleft()  # not before: cancelled on the way, it must be among the rest
                    if not fresh:
                        continue
                    if waiting and waiting[0].lease is d.lease:
                        d._next = waiting[0]
                    yield AsyncDelivery(self, d)
            finally:
                rest = [d for d in waiting if d._state == OPEN]
                if rest:
                    with anyio.CancelScope(shield=True), suppress(StrictqError):
                        await self._run(queue._release_rest, rest)

    async def ack_many(self, deliveries: Iterable[AsyncDelivery]) -> None:
        """See Queue.ack_many."""
        await self._run(self.sync.ack_many, [d._delivery for d in deliveries])

    async def nack_many(self, deliveries: Iterable[AsyncDelivery], delay: float | None = None, reason: str | None = None) -> None:
        """See Queue.nack_many."""
        await self._run(self.sync.nack_many, [d._delivery for d in deliveries], delay, reason)

    async def extend_many(self, deliveries: Iterable[AsyncDelivery], seconds: float) -> None:
        """See Queue.extend_many."""
        await self._run(self.sync.extend_many, [d._delivery for d in deliveries], seconds)

    def transaction(self, delivery: AsyncDelivery | None = None, *, key: Key | None = None) -> AsyncTransaction:
        """See Queue.transaction; `async with q.transaction(d) as tx`."""
        inner = None if delivery is None else delivery._delivery
        return AsyncTransaction(self, lambda: self.sync.transaction(inner, key=key))

    # ---- looking and operating

    async def app_schema(self, sql: str) -> None:
        """See Queue.app_schema."""
        await self._run(self.sync.app_schema, sql)

    async def query(self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, key: Key | None = None) -> Rows:
        """See Queue.query."""
        return await self._run(self.sync.query, sql, params, key=key)

    async def configure(self, **changes: Any) -> QueueConfig:
        """See Queue.configure."""
        return await self._run(self.sync.configure, **changes)

    async def reset_estimates(self) -> None:
        """See Queue.reset_estimates."""
        await self._run(self.sync.reset_estimates)

    async def stats(self) -> Stats:
        """See Queue.stats."""
        return await self._run(self.sync.stats)

    async def top_keys(self, n: int = 10, by: Literal["depth", "age"] = "depth") -> list[KeyDepth]:
        """See Queue.top_keys."""
        return await self._run(self.sync.top_keys, n, by)

    async def peek(self, key: Key, limit: int = 10) -> list[PeekedMessage]:
        """See Queue.peek."""
        return await self._run(self.sync.peek, key, limit)

    async def status(self, key: Key, seq: int) -> MessageStatus:
        """See Queue.status."""
        return await self._run(self.sync.status, key, seq)

    async def explain(self, key: Key) -> Explanation:
        """See Queue.explain."""
        return await self._run(self.sync.explain, key)

    async def dead_letters(self, key: Key | None = None, limit: int = 100) -> list[DeadLetter]:
        """See Queue.dead_letters."""
        return await self._run(self.sync.dead_letters, key, limit)

    async def history(self, *, shard: int = 0, after: int = 0, key: Key | None = None, limit: int = 1000) -> list[HistoryRecord]:
        """See Queue.history."""
        return await self._run(self.sync.history, shard=shard, after=after, key=key, limit=limit)

    async def consumers(self) -> list[ConsumerStatus]:
        """See Queue.consumers."""
        return await self._run(self.sync.consumers)

    async def reject(self, key: Key, seq: int, reason: str) -> bool:
        """See Queue.reject."""
        return await self._run(self.sync.reject, key, seq, reason)

    async def release_consumer(self, name: str, *, force: bool = False) -> int:
        """See Queue.release_consumer."""
        return await self._run(self.sync.release_consumer, name, force=force)

    async def redrive(self, key: Key | None = None, seqs: Iterable[int] | None = None) -> int:
        """See Queue.redrive."""
        return await self._run(self.sync.redrive, key, seqs)

    async def hold(self, key: Key, reason: str | None = None) -> None:
        """See Queue.hold."""
        await self._run(self.sync.hold, key, reason)

    async def release(self, key: Key | None) -> bool:
        """See Queue.release."""
        return await self._run(self.sync.release, key)

    async def purge(self, key: Key | None = None, *, dead: bool = False, history: bool = False) -> int:
        """See Queue.purge."""
        return await self._run(self.sync.purge, key, dead=dead, history=history)

    async def check(self, fix: bool = False) -> list[Problem]:
        """See Queue.check."""
        return await self._run(self.sync.check, fix)


async def _finish(call: Callable[[], T], limiter: anyio.CapacityLimiter | None) -> T:
    """Run `call` in a worker thread; cancelled, wait for its end if it has begun, and see that it never begins if not.

    A shield is not enough: asyncio's own cancellation (task.cancel, wait_for, timeout) goes through it.
    """
    ended = anyio.Event()
    tell = _from_any_thread(ended.set)
    gate = threading.Lock()
    state: list[str] = []

    def work() -> T:
        with gate:
            if state:
                raise QueueClosed("the call was cancelled before it began")
            state.append("running")
        try:
            return call()
        finally:
            tell()

    try:
        return await anyio.to_thread.run_sync(work, limiter=limiter)
    except BaseException:
        with gate:
            if not state:
                state.append("abandoned")
        if state[0] == "running":
            with anyio.CancelScope(shield=True):
                while not ended.is_set():
                    with suppress(asyncio.CancelledError):
                        await ended.wait()
        raise


def _from_any_thread(call: Callable[[], Any]) -> Callable[[], None]:
    """`call`, to be run soon in this event loop, from whatever thread, without waiting for it."""
    try:
        schedule: Callable[..., Any] = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        from trio.lowlevel import current_trio_token

        schedule = current_trio_token().run_sync_soon
    return lambda: _unless_over(schedule, call)


def _unless_over(schedule: Callable[..., Any], call: Callable[[], Any]) -> None:
    with suppress(RuntimeError):  # the loop has ended: nobody waits there any more
        schedule(call)
