"""The async Queue, and waiting without a thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack

import anyio
import anyio.lowlevel
import anyio.to_thread

from .. import _hints as hints
from .. import _validate as validate
from .._client import cannot_share
from .._config import QueueConfig
from .._errors import QueueClosed, StrictqError
from .._findings import (
    ConsumerStatus,
    DeadLetter,
    Explanation,
    HistoryRecord,
    KeyDepth,
    MessageStatus,
    PeekedMessage,
    Problem,
)
from .._keys import Key
from .._leased import OPEN
from .._observe import ANY_SHARD, Observation, Observer
from .._receiving import leased_ahead
from .._stats import ReplicationStatus, Stats
from .._store.api import POLL_SECONDS, Request, Rows
from .._types import Body, ContentHash, Event, Message, Receipt, SendOptions
from ..batch import Batch
from ..queue import Queue
from .batch import AsyncBatch
from .delivery import AsyncDelivery, AsyncDeliveryRef
from .threads import Calls, from_any_thread
from .transaction import AsyncTransaction

if TYPE_CHECKING:
    import os
    from datetime import datetime


class AsyncQueue(Calls):
    """A Queue whose methods are awaited. Get one from `strictq.open_async`, in an `async with` block."""

    def __init__(self, opener: Callable[[], Queue]) -> None:
        super().__init__()
        self._opener = opener
        self._queue: Queue | None = None

    async def __aenter__(self) -> AsyncQueue:
        if self._queue is not None:
            raise QueueClosed("an async queue can be entered once")
        self._begin()
        self._queue = await anyio.to_thread.run_sync(self._opener, limiter=self._limiter)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._queue is not None:
            await self._run_inside_surely(self._queue.close)

    def __reduce__(self) -> NoReturn:
        raise cannot_share(self)

    @property
    def sync(self) -> Queue:
        """The sync queue that does the work, for use in the program's own threads."""
        if self._queue is None:
            raise QueueClosed("the queue is not open", hint=hints.USE_ASYNC_WITH)
        return self._queue

    @property
    def path(self) -> str:
        """The directory, or ":memory:"."""
        return self.sync.path

    @property
    def queue_id(self) -> str:
        """The queue's permanent identifier, independent of its path."""
        return self.sync.queue_id

    @property
    def shards(self) -> int:
        """The number of shard files."""
        return self.sync.shards

    @property
    def durability(self) -> str:
        """The durability of this object, "full" or "process"."""
        return self.sync.durability

    @property
    def config(self) -> QueueConfig:
        """The settings, as this process last read them."""
        return self.sync.config

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """See Queue.on_event; hooks are called in worker threads."""
        self.sync.on_event(hook)

    def observe(self, observer: Observer) -> Observation:
        """See Queue.observe; the observer is called in worker threads. The Observation is closed without awaiting."""
        return self.sync.observe(observer)

    async def close(self) -> None:
        """See Queue.close."""
        if self._queue is not None:
            await self._run_inside(self._queue.close)

    # ---- sending and receiving

    async def send(
        self,
        body: Body | Message,
        key: Key | None = None,
        *,
        dedup_id: str | ContentHash | None = None,
        delay: float = 0.0,
        at: datetime | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        size_hint: float | None = None,
        prepare_seconds: float | None = None,
        process_seconds: float | None = None,
    ) -> Receipt:
        """See Queue.send."""
        return await self._run(
            self.sync.send, body, key, dedup_id=dedup_id, delay=delay, at=at, ttl=ttl, headers=headers, size_hint=size_hint,
            prepare_seconds=prepare_seconds, process_seconds=process_seconds,
        )  # fmt: skip

    async def send_json(self, value: Any, key: Key | None = None, **options: Unpack[SendOptions]) -> Receipt:
        """See Queue.send_json."""
        return await self._run(self.sync.send_json, value, key, **options)

    async def send_many(self, messages: Iterable[Message]) -> Sequence[Receipt]:
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
    ) -> AsyncBatch:
        """See Queue.receive: `async with await q.receive() as batch: ...`. Waiting holds no thread.

        A cancelled receive releases the leases that it took.
        """
        request = self.sync._receiving.request(max_messages, per_key, lease_seconds, keys, consumer, ack_first=ack_first)
        return await self._receive(request, wait)

    async def _receive(self, request: Request, wait: float | None) -> AsyncBatch:
        storage = self.sync._client.storage
        patience = storage.patience(None if wait is None else validate.microseconds("wait", wait))
        waits_since = 0.0
        while True:
            storage.require_open()
            seen = storage.seen()
            over = patience.over
            deliveries, soonest = await self._receive_now(request, wait_for_busy=over)
            if deliveries or over:
                if waits_since:
                    storage.observers.timed("receive_wait", waits_since, ANY_SHARD)
                return AsyncBatch(self, deliveries)
            left = patience.left(soonest)
            waits_since = waits_since or time.monotonic()
            if left > 0:
                began = time.monotonic()
                await self._wait(seen, left, idle=request.keys is None)
                storage.count_waiting(time.monotonic() - began)

    async def _receive_now(self, request: Request, *, wait_for_busy: bool) -> tuple[Batch, int | None]:
        client = self.sync._client
        deliveries = self.sync._receiving.batch(request)
        try:
            soonest = await self._run(self.sync._receiving.receive_now, deliveries, request, wait_for_busy=wait_for_busy)
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
        storage.listen(wake)
        try:
            while storage.seen() == seen and (left := until - time.monotonic()) > 0:
                if idle:
                    storage.show_idle()
                with anyio.move_on_after(min(left, POLL_SECONDS)):
                    await woken.wait()
        finally:
            storage.unlisten(wake)

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
        client = self.sync._client
        wanted = validate.several(keys)
        ahead = leased_ahead(max_messages, ack_first=ack_first)
        request = self.sync._receiving.request(ahead, per_key, lease_seconds, wanted, consumer, ack_first=ack_first, starts=True)
        while True:
            batch = await self._receive(request, wait)
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

    async def ack_many(self, deliveries: Iterable[AsyncDelivery]) -> None:
        """See Queue.ack_many."""
        whole = deliveries.whole() if isinstance(deliveries, AsyncBatch) else None
        await self._run(self.sync.ack_many, [d._delivery for d in deliveries] if whole is None else whole)

    async def nack_many(self, deliveries: Iterable[AsyncDelivery], delay: float | None = None, reason: str | None = None) -> None:
        """See Queue.nack_many."""
        await self._run(self.sync.nack_many, [d._delivery for d in deliveries], delay, reason)

    async def extend_many(self, deliveries: Iterable[AsyncDelivery], seconds: float) -> None:
        """See Queue.extend_many."""
        await self._run(self.sync.extend_many, [d._delivery for d in deliveries], seconds)

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

    async def peek(self, key: Key | Receipt | None = None, limit: int = 10) -> list[PeekedMessage]:
        """See Queue.peek."""
        return await self._run(self.sync.peek, key, limit)

    async def status(self, key: Key | Receipt, seq: int | None = None) -> MessageStatus:
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

    async def reject(self, key: Key, seq: int, reason: str, *, force: bool = False) -> bool:
        """See Queue.reject."""
        return await self._run(self.sync.reject, key, seq, reason, force=force)

    async def resolve(self, key: Key, seq: int) -> bool:
        """See Queue.resolve."""
        return await self._run(self.sync.resolve, key, seq)

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

    async def purge_history(self, key: Key | None = None) -> int:
        """See Queue.purge_history."""
        return await self._run(self.sync.purge_history, key)

    async def configure_replication(
        self,
        target: str | os.PathLike[str],
        mode: Literal["async", "confirmed"] = "async",
        *,
        interval_seconds: float = 1.0,
        max_lag_bytes: int = 1 << 30,
        keep_seconds: float = 86_400.0,
        key_file: str | os.PathLike[str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        authority: str | os.PathLike[str] | None = None,
        plaintext: bool = False,
        timeout_seconds: float = 10.0,
        verify_seconds: float = 86_400.0,
    ) -> ReplicationStatus:
        """See Queue.configure_replication."""
        return await self._run(
            self.sync.configure_replication, target, mode, interval_seconds=interval_seconds, max_lag_bytes=max_lag_bytes,
            keep_seconds=keep_seconds, key_file=key_file, token_file=token_file, authority=authority, plaintext=plaintext,
            timeout_seconds=timeout_seconds, verify_seconds=verify_seconds,
        )  # fmt: skip

    async def detach(self, *, force: bool = False) -> bool:
        """See Queue.detach."""
        return await self._run(self.sync.detach, force=force)

    async def replication(self) -> ReplicationStatus | None:
        """See Queue.replication."""
        return await self._run(self.sync.replication)

    async def check(self, fix: bool = False) -> list[Problem]:
        """See Queue.check."""
        return await self._run(self.sync.check, fix)
