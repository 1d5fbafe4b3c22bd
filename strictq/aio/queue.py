"""The async Queue, and waiting without a thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Final, Literal, ParamSpec, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from .._client import validate
from .._client.leased import OPEN
from .._client.receiving import Live, leased_ahead
from .._platform.declared_once import mirrored
from .._platform.observe import ANY_SHARD
from .._store.api import LOOK_SECONDS, Request
from .._values import hints
from .._values.errors import InvalidArgument, StrictqError
from .._values.keys import Key
from .._values.types import Receipt
from ..consumer import Consumer
from ..delivery import Batch
from ..queue import OUTPUT_SECONDS, Queue
from .delivery import AsyncBatch, AsyncDelivery, AsyncDeliveryRef, AsyncTransaction
from .threads import from_any_thread
from .twins import QueueTwin, twin

P = ParamSpec("P")
T = TypeVar("T")


class AsyncQueue(QueueTwin[Queue]):
    """A Queue whose methods are awaited. Get one from `strictq.open_async`, in an `async with` block."""

    shards: Final[int] = mirrored(Queue, "sync")
    durability: Final[str] = mirrored(Queue, "sync")

    def now(self) -> float:
        """See Queue.now; it is not awaited."""
        return self.sync.now()

    # ---- sending and receiving

    send = twin(Queue.send)
    send_json = twin(Queue.send_json)
    send_many = twin(Queue.send_many)

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
        charge: Literal["started", "all"] = "started",
    ) -> AsyncBatch:
        """See Queue.receive: `async with await q.receive() as batch: ...`. Waiting holds no thread.

        A cancelled receive releases the leases that it took.
        """
        request = self.sync._receiving.request(
            max_messages, per_key, lease_seconds, keys, consumer, ack_first=ack_first, charge=charge
        )
        return await self._receive(request, wait)

    async def _receive(self, request: Request, wait: float | None, live: Live | None = None) -> AsyncBatch:
        storage = self.sync._client.storage
        patience = storage.patience(None if wait is None else validate.microseconds("wait", wait))
        waits_since = 0.0
        while True:
            storage.require_open()
            seen = storage.waker.seen()
            over = patience.over
            deliveries, soonest = await self._receive_now(request, over, live)
            if deliveries or over:
                if waits_since:
                    storage.observers.timed("receive_wait", waits_since, ANY_SHARD)
                return AsyncBatch(self, deliveries)
            left = patience.left(soonest)
            waits_since = waits_since or time.monotonic()
            if left > 0:
                began = time.monotonic()
                if live is None:
                    await self._wait(seen, left, idle=request.keys is None)
                else:
                    await self._wait(seen, min(left, LOOK_SECONDS), idle=live.helps)
                storage.count_waiting(time.monotonic() - began)

    async def _receive_now(self, request: Request, wait_for_busy: bool, live: Live | None) -> tuple[Batch, int | None]:
        client = self.sync._client
        deliveries = self.sync._receiving.batch(request)
        try:
            receive = self.sync._receiving.receive_now
            soonest = await self._run(receive, deliveries, request, wait_for_busy=wait_for_busy, live=live)
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            # Cancelled while the thread was working. Release the leases that it took.
            if deliveries:
                await self._run_surely(client.settling.release_rest, deliveries)
            raise
        return deliveries, soonest

    async def _wait(self, seen: tuple[int, int], seconds: float, *, idle: bool) -> None:
        storage = self.sync._client.storage
        woken = anyio.Event()
        wake = from_any_thread(woken.set)
        until = time.monotonic() + seconds
        storage.waker.listen(wake)
        try:
            with storage.waker.watched(idle=idle) as step:
                while not woken.is_set() and storage.waker.seen() == seen and (left := until - time.monotonic()) > 0:
                    if idle:
                        storage.waker.show_idle()
                    with anyio.move_on_after(min(left, step)):
                        await woken.wait()
        finally:
            storage.waker.unlisten(wake)

    async def wait_ready(self, wait: float | None = None) -> bool:
        """See Queue.wait_ready. Waiting holds no thread."""
        storage = self.sync._client.storage
        patience = storage.patience(None if wait is None else validate.microseconds("wait", wait), receives=False)
        while True:
            storage.require_open(writing=False)
            seen = storage.waker.seen()
            over = patience.over
            ready, soonest = await self._run(storage.ready)
            if ready or over:
                return ready
            if (left := patience.left(soonest)) > 0:
                await self._wait(seen, left, idle=False)

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
        wanted = validate.several(keys)
        ahead = leased_ahead(max_messages, ack_first=ack_first)
        request = self.sync._receiving.request(ahead, per_key, lease_seconds, wanted, consumer, ack_first=ack_first, starts=True)
        async with aclosing(self._consume(request, wait)) as deliveries:
            async for d in deliveries:
                yield d

    async def _consume(self, request: Request, wait: float | None, live: Live | None = None) -> AsyncGenerator[AsyncDelivery]:
        client = self.sync._client
        while True:
            batch = await self._receive(request, wait, live)
            if not batch and wait is not None:
                return
            waiting = deque(batch.received)
            try:
                while waiting:
                    d = waiting[0]
                    begun = await self._run(self.sync._receiving.begin, d)
                    waiting.popleft()  # not earlier: if cancelled before this, it must be among the rest
                    if not begun:
                        continue
                    if waiting and waiting[0].lease is d.lease:
                        d._next = waiting[0]
                    yield AsyncDelivery(self, d)
            finally:
                rest = [d for d in waiting if d._state == OPEN]
                if rest:
                    with suppress(StrictqError):
                        await self._run_surely(client.settling.release_rest, rest)

    def join(self, *, affinity: Literal["prefer", "own", "none"] | None = None, name: str | None = None) -> AsyncConsumer:
        """See Queue.join: `async with q.join() as consumer: async for d in consumer.consume(): ...`."""
        return AsyncConsumer(self, affinity, name)

    async def ack_many(self, deliveries: Iterable[AsyncDelivery | AsyncDeliveryRef]) -> None:
        """See Queue.ack_many."""
        whole = deliveries.whole() if isinstance(deliveries, AsyncBatch) else None
        await self._run(self.sync.ack_many, [d._delivery for d in deliveries] if whole is None else whole)

    async def nack_many(
        self, deliveries: Iterable[AsyncDelivery | AsyncDeliveryRef], delay: float | None = None, reason: str | None = None
    ) -> None:
        """See Queue.nack_many."""
        await self._run(self.sync.nack_many, [d._delivery for d in deliveries], delay, reason)

    async def extend_many(
        self, deliveries: Iterable[AsyncDelivery | AsyncDeliveryRef], seconds: float, *, late: bool = True
    ) -> None:
        """See Queue.extend_many."""
        await self._run(self.sync.extend_many, [d._delivery for d in deliveries], seconds, late=late)

    def delivery(self, handle: str) -> AsyncDeliveryRef:
        """See Queue.delivery."""
        return AsyncDeliveryRef(self, self.sync.delivery(handle))

    def transaction(
        self,
        delivery: AsyncDelivery | None = None,
        *,
        key: Key | None = None,
        deliveries: Iterable[AsyncDelivery] | None = None,
    ) -> AsyncTransaction:
        """See Queue.transaction; `async with q.transaction(d) as tx`."""
        inner = None if delivery is None else delivery._delivery
        several = None if deliveries is None else [d._delivery for d in deliveries]
        return AsyncTransaction(self, lambda: self.sync.transaction(inner, key=key, deliveries=several))

    # ---- looking and operating

    limit = twin(Queue.limit)
    tenants = twin(Queue.tenants)
    app_schema = twin(Queue.app_schema)
    query = twin(Queue.query)
    configure = twin(Queue.configure)
    reset_estimates = twin(Queue.reset_estimates)
    stats = twin(Queue.stats)
    top_keys = twin(Queue.top_keys)
    peek = twin(Queue.peek)
    status = twin(Queue.status)

    async def output(self, key: Key | Receipt, seq: int | None = None, *, wait: float | None = 0.0) -> str | None:
        """See Queue.output. Waiting holds no thread."""
        look = self.sync._output_of(key, seq)
        storage = self.sync._client.storage
        patience = storage.patience(None if wait is None else validate.microseconds("wait", wait))
        while True:
            storage.require_open(writing=False)
            seen = storage.waker.seen()
            ended, output = await self._run(look)
            if ended or patience.over:
                return output
            if (left := patience.left(None)) > 0:
                await self._wait(seen, min(left, OUTPUT_SECONDS), idle=False)

    explain = twin(Queue.explain)
    dead_letters = twin(Queue.dead_letters)
    history = twin(Queue.history)
    consumers_needed = twin(Queue.consumers_needed)
    consumers = twin(Queue.consumers)
    leases = twin(Queue.leases)
    topology = twin(Queue.topology)
    split = twin(Queue.split)
    merge = twin(Queue.merge)
    move = twin(Queue.move)
    isolate = twin(Queue.isolate)
    cancel_move = twin(Queue.cancel_move)
    advise = twin(Queue.advise)
    reject = twin(Queue.reject)
    resolve = twin(Queue.resolve)
    release_consumer = twin(Queue.release_consumer)
    redrive = twin(Queue.redrive)
    hold = twin(Queue.hold)
    release = twin(Queue.release)
    purge = twin(Queue.purge)
    purge_history = twin(Queue.purge_history)
    configure_replication = twin(Queue.configure_replication)
    detach = twin(Queue.detach)
    replication = twin(Queue.replication)
    pause = twin(Queue.pause)
    resume = twin(Queue.resume)
    sideline = twin(Queue.sideline)
    backup = twin(Queue.backup)
    check = twin(Queue.check)


class AsyncConsumer:
    """A Consumer whose methods are awaited: `async with q.join() as consumer: ...`. It joins when the block begins."""

    def __init__(self, queue: AsyncQueue, affinity: str | None, name: str | None) -> None:
        self._queue = queue
        self._wanted = affinity, name
        self._consumer: Consumer | None = None

    async def __aenter__(self) -> AsyncConsumer:
        queue = self._queue
        self._consumer = await queue._run(lambda: queue.sync.join(affinity=self._wanted[0], name=self._wanted[1]))  # type: ignore[arg-type]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.leave()

    @property
    def sync(self) -> Consumer:
        """The sync consumer that does the work."""
        if self._consumer is None:
            raise InvalidArgument("the consumer has not joined yet", hint=hints.USE_ASYNC_WITH)
        return self._consumer

    @property
    def name(self) -> str:
        """See Consumer."""
        return self.sync.name

    affinity: Final[str] = mirrored(Consumer, "sync")
    shards: Final[frozenset[int]] = mirrored(Consumer, "sync")

    async def receive(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = 0.0,
        lease_seconds: float | None = None,
        ack_first: bool = False,
        charge: Literal["started", "all"] = "started",
    ) -> AsyncBatch:
        """See Consumer.receive."""
        request = self._queue.sync._receiving.request(
            max_messages, per_key, lease_seconds, None, self.name, ack_first=ack_first, charge=charge
        )
        return await self._queue._receive(request, wait, self.sync._live)

    async def consume(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = None,
        lease_seconds: float | None = None,
        ack_first: bool = False,
    ) -> AsyncIterator[AsyncDelivery]:
        """See Consumer.consume. Close it (contextlib.aclosing) if you leave it early."""
        ahead = leased_ahead(max_messages, ack_first=ack_first)
        request = self._queue.sync._receiving.request(
            ahead, per_key, lease_seconds, None, self.name, ack_first=ack_first, starts=True
        )
        async with aclosing(self._queue._consume(request, wait, self.sync._live)) as deliveries:
            async for d in deliveries:
                yield d

    async def leave(self) -> None:
        """See Consumer.leave."""
        if self._consumer is not None:
            await self._queue._run_surely(self._consumer.leave)
