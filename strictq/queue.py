"""The synchronous queue. aio/ awaits the same methods; each group of operations has its own module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Unpack

from ._client import advice, consumers, validate
from ._client.client import Client, cannot_share
from ._client.receiving import Receiving, leased_ahead
from ._client.settling import listed
from ._platform.observe import EventHook, Observation, Observer
from ._store.api import HASH_MAX, MEMORY, SHARDS_MAX, Rows, Ships, Storage
from ._values import hints
from ._values.config import TYPE_CHARS_MAX, QueueConfig, effective
from ._values.errors import ConfigError, InvalidArgument
from ._values.keys import Key, encode_key
from ._values.stats import ReplicationStatus, Stats
from ._values.tenants import TenantLimit, changed_limits
from ._values.types import UNSET, Body, ContentHash, Event, Message, Receipt, SendOptions, Unset, to_send
from .delivery import Batch, Delivery
from .handle import DeliveryRef, states
from .transaction import Transaction, transaction_of

if TYPE_CHECKING:
    import os
    from datetime import datetime

    from ._values.findings import (
        Advice,
        BackedUp,
        ConsumersNeeded,
        ConsumerStatus,
        DeadLetter,
        Explanation,
        HistoryRecord,
        KeyDepth,
        LaneLease,
        MessageStatus,
        Moved,
        PeekedMessage,
        Problem,
        TenantStatus,
        Topology,
    )
    from .consumer import Consumer


OUTPUT_SECONDS: Final = 0.25
"""How often to look whether a message has ended without an output, which wakes no one."""


def _ship(storage: Storage) -> Ships | None:
    from .replication.keeper import start  # only queues that have a replica need it

    return start(storage)


class Queue:
    """A durable queue with strict order per key, returned by `strictq.open`. Close it, or use it as a context manager.

    One object serves any number of threads. Other objects and processes may use the same directory at the same time.

    Examples:
        >>> with strictq.open(":memory:") as q:
        ...     q.send(b"created", key="order-1").seq
        ...     q.send(b"paid", key="order-1").seq
        ...     [d.body for d in q.receive()]
        1
        2
        [b'created', b'paid']
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._client = Client(storage)
        self._receiving = Receiving(self._client, Batch)
        storage.ship_with(_ship)

    @property
    def path(self) -> str:
        """The directory, or ":memory:"."""
        return ":memory:" if self._storage.directory is None else str(self._storage.directory)

    @property
    def queue_id(self) -> str:
        """The queue's permanent identifier, independent of its path."""
        return self._storage.queue_id

    @property
    def shards(self) -> int:
        """The number of shard files."""
        return self._storage.shards

    @property
    def durability(self) -> str:
        """ "full" or "process": the durability of this object."""
        return self._storage.durability

    @property
    def config(self) -> QueueConfig:
        """The settings, as this process last read them."""
        return self._storage.config

    def now(self) -> float:
        """Return the queue's time, in seconds: the clock of leases, delays, TTLs and dedup windows.

        It never goes back, not after a restart or a reboot either, and setting the wall clock does not move it. It is the same in
        every process, and a test's clock moves it. Use differences: an absolute value may differ from the wall clock's.

        Examples:
            >>> clock = strictq.testing.FakeClock()
            >>> q = strictq.open(":memory:", clock=clock)
            >>> begin = q.now()
            >>> clock.advance(5.0)
            >>> q.now() - begin
            5.0

        Source: docs/explanation/leases.md
        """
        self._storage.require_open(writing=False)
        return self._storage.now() / 1_000_000

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """Call `hook(event)` after the commit of each `Event` of this process, such as a dead letter or a quarantined shard."""
        if not callable(hook):
            raise InvalidArgument("an on_event hook must be callable")
        self._storage.observers.add(EventHook(hook))

    def observe(self, observer: Observer) -> Observation:
        """Call the observer's methods for events, counts and durations of this object, until the Observation is closed.

        Raises:
            InvalidArgument: the observer is not a `strictq.Observer`; nothing was changed.

        Examples:
            >>> class Metrics(strictq.Observer):
            ...     def count(self, name, n, shard):
            ...         print(name, n)
            >>> q = strictq.open(":memory:")
            >>> with q.observe(Metrics()):
            ...     _ = q.send(b"paid", key="order-1")
            sends 1
        """
        return self._storage.observers.add(observer)

    def close(self) -> None:
        """Close every file. Leases stay until their deadline. Closing twice does nothing.

        The last process that closes the queue truncates the WALs. If the queue has a replica, it first ships the remaining
        changes.

        Raises:
            InvalidArgument: this thread is inside a transaction of the queue; nothing was closed.
        """
        self._storage.close()

    def __enter__(self) -> Queue:
        self._storage.require_open(writing=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise cannot_share(self)

    def __repr__(self) -> str:
        return f"<strictq.Queue {self.path!r} shards={self.shards} durability={self.durability!r}>"

    # ---- sending

    def send(
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
        """Append a message to its key's sequence. The message is durable when this returns.

        Args:
            body: the content, bytes-like, possibly empty. Or a Message, which contains all other arguments.
            key: str, bytes or int. None only if the queue's setting `keyless` allows it.
            dedup_id: within the dedup window, a second send with this key and id stores nothing. `strictq.CONTENT_HASH`: use a
                hash of the body.
            delay: seconds before it may be delivered. Later messages of its key wait for it.
            at: instead of delay, an aware datetime before which it may not be delivered. A time in the past means no delay.
                Once it waits, setting the wall clock does not change the wait.
            ttl: seconds after which it expires unless a consumer holds it; None: the queue's ttl_seconds.
            headers: str → str.
            size_hint, prepare_seconds, process_seconds: estimates for a worker.
        Returns:
            The message's position. If the dedup_id was known, `duplicate` is True and the position is the first message's.
        Raises:
            InvalidArgument, MessageTooLarge, QueueFull, StoreBusy, StoreFull: nothing was changed.
            OutcomeUnknown: the message may have been stored. Repeating the call is safe with a dedup_id.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> receipt = q.send(b"paid", key="order-1", dedup_id="request-17")
            >>> receipt.seq, receipt.duplicate
            (1, False)
            >>> q.send(b"paid", key="order-1", dedup_id="request-17").duplicate
            True

        Source: docs/explanation/guarantees.md
        """
        if not isinstance(body, Message):
            given = (dedup_id, delay, at, ttl, headers, size_hint, prepare_seconds, process_seconds)
            return self._client.sending.send_one(body, key, given)
        return self._client.sending.send(to_send(
            body, key, dedup_id=dedup_id, delay=delay, at=at, ttl=ttl, headers=headers, size_hint=size_hint,
            prepare_seconds=prepare_seconds, process_seconds=process_seconds,
        ))  # fmt: skip

    def send_json(self, value: Any, key: Key | None = None, **options: Unpack[SendOptions]) -> Receipt:
        """Append a message whose body is a value as compact UTF-8 JSON. The delivery's `json()` returns the value.

        Args:
            value: any value that `json.dumps` accepts, except NaN and infinity.
            key, options: as for `send`.
        Raises:
            InvalidArgument: the value cannot be written as JSON; nothing was changed. Otherwise as `send`.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send_json({"cents": 500}, key="account-7")
            >>> q.receive()[0].json()
            {'cents': 500}
        """
        return self._client.sending.send(Message.json(value, key=key, **options))

    def send_many(self, messages: Iterable[Message]) -> Sequence[Receipt]:
        """Append many messages, in order. Atomic per shard: one transaction for each shard involved.

        Returns:
            One receipt per message, in the order of the messages. It is made when it is used; `list(...)` makes them all.
        Raises:
            InvalidArgument, MessageTooLarge: one of the messages is invalid; nothing was changed.
            QueueFull, StoreError: nothing was changed (with a single shard).
            PartialFailure: some shards failed; results has a Receipt or an exception for each message.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> receipts = q.send_many(strictq.Message(b"", key=key) for key in ("a", "b", "a"))
            >>> [(r.key, r.seq) for r in receipts]
            [('a', 1), ('b', 1), ('a', 2)]
        """
        return self._client.sending.send_many(messages)

    # ---- receiving

    def receive(
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
    ) -> Batch:
        """Lease the oldest ready messages: the oldest ready head, as many more of its lane as fit, then the next oldest head.

        Uses one transaction per shard involved; durable on return. Two live leases never share a lane.

        Args:
            max_messages: 1..100,000.
            per_key: most messages per key; 1 returns the heads of many lanes.
            wait: seconds to wait for a first message; 0 returns at once, None waits forever. If messages are ready only in a
                shard that another call is writing to, receive waits for that shard in any case, at most 10 seconds.
            lease_seconds: length of the leases; None: the queue's lease_seconds.
            keys: receive only these keys.
            consumer: the consumer's name, shown by explain; None: host and process id.
            ack_first: resolve on receive (at most once). The lanes stay leased until `d.done()` or the deadline.
            charge: "started": charge an attempt at `d.start()`, or on receive to a message that is alone in its lease. "all":
                charge every message on receive, durably, so that each receive counts even if the process dies. Messages that
                `release` returns or `defer` postpones are not charged.
        Returns:
            0..max_messages deliveries, seq ascending within a key. Used as a context manager, the Batch returns the unsettled
            messages at the end of the block.
        Raises:
            InvalidArgument: an argument is invalid, or this is inside a transaction of the queue; nothing was changed.
            StoreError, PartialFailure: shards failed; nothing was leased.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> for key in ("a", "b", "a"):
            ...     _ = q.send(b"", key=key)
            >>> with q.receive() as batch:
            ...     for d in batch:
            ...         with d:
            ...             print(d.key, d.seq)
            a 1
            a 2
            b 1

        Source: docs/explanation/leases.md
        """
        request = self._receiving.request(
            max_messages, per_key, lease_seconds, keys, consumer, ack_first=ack_first, charge=charge
        )
        deliveries = self._receiving.batch(request)
        try:
            self._receiving.receive_into(deliveries, request, wait)
        except BaseException:
            self._client.settling.release_rest(deliveries)
            raise
        return deliveries

    def consume(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = None,
        lease_seconds: float | None = None,
        keys: Iterable[Key] | None = None,
        consumer: str | None = None,
        ack_first: bool = False,
    ) -> Iterator[Delivery]:
        """Receive repeatedly and yield the deliveries one by one, forever or until no message arrived for `wait` seconds.

        Each message is started before it is yielded, as by `d.start()`. The ack of a message also starts the next one of its
        key, so that charging attempts costs at most one transaction per lease. Leaving the loop releases the messages that
        were not yielded, with no attempt charged.

        The arguments are those of receive; max_messages is the number leased ahead. With ack_first it is always one, because
        resolved messages could not be returned.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"paid", key="order-1")
            >>> for d in q.consume(wait=0.0):
            ...     with d:
            ...         print(d.key, d.body)
            order-1 b'paid'
        """
        wanted = validate.several(keys)
        ahead = leased_ahead(max_messages, ack_first=ack_first)
        request = self._receiving.request(ahead, per_key, lease_seconds, wanted, consumer, ack_first=ack_first, starts=True)
        yield from self._receiving.consume(request, wait)

    def wait_ready(self, wait: float | None = None) -> bool:
        """Wait until a message is ready, without receiving it.

        A waiter costs next to nothing, also with many queues in one process. A message that becomes ready in this process wakes
        it at once; one of another process, within 50 ms.

        Args:
            wait: seconds to wait; 0 returns at once, None waits forever.
        Returns:
            True if a message may be ready: another consumer may receive it first. False if the time is over, or the queue is
            paused.
        Raises:
            InvalidArgument: wait is invalid.
            StoreError: no shard can be read.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> q.wait_ready(0.0)
            False
            >>> _ = q.send(b"paid", key="order-1")
            >>> q.wait_ready(), q.stats().in_flight
            (True, 0)
        """
        storage = self._storage
        patience = storage.patience(None if wait is None else validate.microseconds("wait", wait), receives=False)
        while True:
            storage.require_open(writing=False)
            seen = storage.waker.seen()
            over = patience.over
            ready, soonest = storage.ready()
            if ready or over:
                return ready
            if (left := patience.left(soonest)) > 0:
                storage.waker.wait(seen, left)

    def join(self, *, affinity: Literal["prefer", "own", "none"] | None = None, name: str | None = None) -> Consumer:
        """Become a live consumer: a loop that receives mainly from its own shards.

        The shards are divided among the live consumers of all processes, joined loops and workers, so that they do not repeat
        each other's work. Leases still decide who has a key. `receive` and `consume` of the queue are not affected.

        Args:
            affinity: "own": receive only from the consumer's own shards. "prefer": also from those of a consumer that is slow,
                and, after 0.1 s without a message, from those of one that is behind. "none": from all. None: "prefer" if the
                queue has several shards, else "none".
            name: shown by `consumers` and `explain`; None: host and process id.
        Raises:
            InvalidArgument: an argument is invalid; nothing was changed.
            ConsumerBusy: another joined loop has this name; nothing was changed.
            ReadOnlyQueue, StoreError: it can't join; nothing was changed.

        Examples:
            >>> q = strictq.open(":memory:", shards=4)
            >>> _ = q.send(b"paid", key="order-1")
            >>> with q.join() as consumer:
            ...     for d in consumer.consume(wait=0.0):
            ...         with d:
            ...             print(d.key, d.body)
            order-1 b'paid'

        Source: docs/explanation/consumers.md
        """
        from .consumer import Consumer  # few programs join

        return Consumer(self._client, self._receiving, affinity, name)

    # ---- settling

    def ack_many(self, deliveries: Iterable[Delivery | DeliveryRef]) -> None:
        """Ack many deliveries, in any order. Takes effect for the valid ones; one transaction per shard.

        Args:
            deliveries: what `receive` or `q.delivery(handle)` returned, also mixed.
        Raises:
            LeaseLost: the only delivery was lost.
            PartialFailure: some were lost, or shards failed; results has None or an exception for each delivery.
        """
        if not (isinstance(deliveries, Batch) and deliveries.ack_whole(self._client)):
            self._client.settling.ack(states(self._client.settling, deliveries))

    def nack_many(
        self, deliveries: Iterable[Delivery | DeliveryRef], delay: float | None = None, reason: str | None = None
    ) -> None:
        """Nack many deliveries: per key, the first one given and every later message of its lease.

        Args:
            deliveries: as for ack_many.
            delay, reason: as for Delivery.nack.
        Raises:
            LeaseLost, PartialFailure: as for ack_many.
        """
        self._client.settling.nack(states(self._client.settling, deliveries), delay, reason)

    def extend_many(self, deliveries: Iterable[Delivery | DeliveryRef], seconds: float, *, late: bool = True) -> None:
        """Set the deadlines of the deliveries' leases to `seconds` from now.

        Args:
            deliveries: as for ack_many.
            late: as for Lease.extend.
        Raises:
            LeaseLost, PartialFailure: as for ack_many.
        """
        settling = self._client.settling
        settling.extend([settling.own(d) for d in states(settling, deliveries)], seconds, late=late)

    def delivery(self, handle: str) -> DeliveryRef:
        """Return the delivery that a handle identifies, to settle it from another process or after a restart.

        Reads nothing: if the lease was lost, the method that settles the delivery raises LeaseLost.

        Args:
            handle: `d.handle` of a delivery of this queue.
        Raises:
            InvalidArgument: the value is not a handle, or belongs to another queue.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"resize", key="image-7")
            >>> handle = q.receive()[0].handle
            >>> q.delivery(handle).ack()
            >>> q.status("image-7", 1).state
            'resolved'

        Source: docs/explanation/leases.md
        """
        self._storage.require_open(writing=False)
        return DeliveryRef(self._client.settling, handle)

    def transaction(
        self, delivery: Delivery | None = None, *, key: Key | None = None, deliveries: Iterable[Delivery] | None = None
    ) -> Transaction:
        """Return a transaction to use as a context manager. At the end of the block it acks and commits everything, or nothing.

        Args:
            delivery: the lowest unresolved message of its lease; it is acked in the transaction.
            deliveries: instead, any unresolved messages of one lease; they are acked in the transaction.
            key: instead, without a delivery, the key whose state and whose shard's app_* tables are used.
        Returns:
            A context manager whose value is a Transaction.
        Raises:
            LeaseLost: the lane was released or taken by another consumer; nothing was changed.
            ForwardPending: committed; a send to another shard has not arrived there yet, but will.
            OutcomeUnknown: it may have been committed. Repeat it with the same delivery: it takes effect once.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"5", key="account-7")
            >>> for d in q.receive():
            ...     with d, q.transaction(d) as tx:
            ...         tx.key_state = b"%d" % (int(tx.key_state or b"0") + int(d.body))
            ...         _ = tx.send(b"booked", key="audit")
            >>> [m.body for m in q.peek("audit")]
            [b'booked']

        Source: docs/explanation/outbox.md
        """
        self._storage.require_open()
        if (delivery, key, deliveries).count(None) != 2:
            raise InvalidArgument("transaction takes a delivery, deliveries or a key")
        if key is not None:
            return Transaction(self._client, (), encode_key(key))
        if delivery is not None:
            return transaction_of(self._client, [delivery])
        return transaction_of(self._client, listed(deliveries or ()), in_order=False)

    # ---- looking

    def stats(self) -> Stats:
        """Return a frozen snapshot with the counts of the queue and of each shard. Each shard is read consistently.

        The cost does not depend on the backlog. It grows with the number of delayed and held keys. A quarantined shard counts
        0 and has the reason. `prepare` and `process` are the durations that workers learned. `breakers` lists workers, or groups
        of their keys, that are paused because most handlers failed.

        Raises:
            StoreError: a shard cannot be read now, although it is not quarantined.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"paid", key="order-1")
            >>> stats = q.stats()
            >>> stats.ready, stats.in_flight, stats.sends
            (1, 0, 1)

        Source: docs/explanation/lifecycle.md
        """
        return self._storage.reports.stats()

    def top_keys(
        self, n: int = 10, by: Literal["depth", "age"] = "depth", *, prefix: str | bytes | None = None
    ) -> list[KeyDepth]:
        """Return the keys with the most messages, or with the oldest message. Reads every key that has messages.

        Args:
            prefix: only keys that begin with it, and are of its type. Reads only these.
        Raises:
            InvalidArgument: n is not 1..10,000, `by` is neither "depth" nor "age", or the prefix is not a valid key.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> for key in ("order-1", "order-2", "user-1"):
            ...     _ = q.send(b"", key=key)
            >>> sorted(found.key for found in q.top_keys(prefix="order-"))
            ['order-1', 'order-2']
        """
        reports = self._storage.reports
        validate.whole("n", n, 1, 10_000)
        if by not in ("depth", "age"):
            raise InvalidArgument(f"by must be 'depth' or 'age', not {by!r}")
        if prefix is not None and not isinstance(prefix, str | bytes):
            raise InvalidArgument(f"prefix must be a str or bytes, not {type(prefix).__name__}")
        return reports.top_keys(n, by, encode_key(prefix) if prefix else b"")

    def peek(self, key: Key | Receipt | None = None, limit: int = 10) -> list[PeekedMessage]:
        """Return the first unresolved messages of a key, in order, without leasing them.

        Args:
            key: the messages of this key. A receipt: only its message, keyless or not. None: the oldest messages
                of all keys, from up to 10,000 ready keys per shard, and as many leased, delayed and held ones.
        Raises:
            InvalidArgument: the key is invalid, or limit is not 1..100,000.
        """
        reports = self._storage.reports
        validate.whole("limit", limit, 1, validate.MESSAGES_MAX)
        if not isinstance(key, Receipt):
            return reports.peek(_encoded(key), limit)
        if key.key is None:
            return reports.peek_keyless(*validate.place(key, self.shards))
        seq = validate.whole("seq", key.seq, 1, 2**62)
        return [m for m in reports.peek(encode_key(key.key), 1, seq) if m.seq == seq]

    def status(self, key: Key | Receipt, seq: int | None = None) -> MessageStatus:
        """Return the state of one message. A message that was acked, expired, dropped or purged is "resolved".

        Args:
            key, seq: the message's key and seq. Or a receipt alone, keyless or not, which takes some look-ups for each of the
                queue's `keyless_lanes`.
        Raises:
            UnknownMessage: the key never had this seq, or the shard never had this id.
            InvalidArgument: the key, seq or receipt is invalid.
        """
        reports = self._storage.reports
        match validate.message_of("status", key, seq, self.shards):
            case bytes(raw), at:
                return reports.status(raw, at)
            case shard, arrival:
                assert isinstance(key, Receipt)
                return reports.status_of_keyless(shard, arrival) or _resolved(key)

    def output(self, key: Key | Receipt, seq: int | None = None, *, wait: float | None = 0.0) -> str | None:
        """Return the output that a message's handler left with its ack, if the queue keeps outputs; see `output_seconds`.

        A handler leaves it with `job.output`, `tx.output` or `d.ack(output=...)`. It is written in the transaction of the ack.

        Args:
            key: the key, or the receipt of the send, also of a keyless message.
            seq: the message's position; only with a key.
            wait: seconds to wait until the message has ended; 0 returns at once, None waits forever.
        Returns:
            The output. None: the message has not ended, or no output of it is kept: it left none, output_seconds are over or were
            0, or it did not end with an ack. `status` returns its state.
        Raises:
            UnknownMessage: the key never had this seq.
            InvalidArgument: an argument is invalid.

        Examples:
            >>> q = strictq.open(":memory:", config=strictq.QueueConfig(output_seconds=3600.0))
            >>> receipt = q.send(b"how long is this?", key="texts")
            >>> strictq.Worker(q, lambda job: job.output(f"{len(job.body)} bytes")).run(drain=True)
            >>> q.output(receipt, wait=10.0)
            '17 bytes'

        Source: docs/howto/results.md
        """
        look = self._output_of(key, seq)
        storage = self._storage
        patience = storage.patience(None if wait is None else validate.microseconds("wait", wait))
        while True:
            storage.require_open(writing=False)
            seen = storage.waker.seen()
            ended, output = look()
            if ended or patience.over:
                return output
            if (left := patience.left(None)) > 0:
                storage.waker.wait(seen, min(left, OUTPUT_SECONDS))

    def _output_of(self, of: Key | Receipt, seq: int | None) -> Callable[[], tuple[bool, str | None]]:
        """Return a function that reads whether a message has ended, and its kept output."""
        reports = self._storage.reports
        match validate.message_of("output", of, seq, self.shards):
            case bytes(raw), at:
                return partial(reports.output, raw, at)
            case shard, arrival:
                return partial(reports.output_of_keyless, shard, arrival)

    def explain(self, key: Key) -> Explanation:
        """Return whether a key can be delivered now and, if not, why: its holder, since when and until when.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"paid", key="order-1", delay=60.0)
            >>> q.explain("order-1").state
            'delayed'
        """
        return self._storage.reports.explain(encode_key(key))

    def dead_letters(self, key: Key | None = None, limit: int = 100) -> list[DeadLetter]:
        """Return the dead letters of one key or of the queue, seq ascending within a key.

        Raises:
            InvalidArgument: limit is not 1..100,000.
        """
        reports = self._storage.reports
        validate.whole("limit", limit, 1, validate.MESSAGES_MAX)
        return reports.dead_letters(_encoded(key), limit)

    def history(
        self, *, shard: int | None = None, after: int = 0, key: Key | None = None, limit: int = 1000
    ) -> list[HistoryRecord]:
        """Return records of one shard's finished messages, in the order in which they finished, if `history` is on.

        To continue, pass the last record's `shard`, and its `n` as `after`. To read everything, do so for each shard.

        Args:
            shard: 0 to `shards` - 1; None: the first one.
            after: only records with a larger n.
            key: only records of this key; reads every record after `after`. If its range has moved, records are in each shard
                that had it: these are read one after the other, and `after` needs `shard`.
        Returns:
            0..limit records, n ascending; an empty list at the end. A list has at most about 32 MiB of bodies, so it may be
            shorter than limit although there are more records.
        Raises:
            InvalidArgument: there is no such shard, limit is not 1..100,000, or `after` needs `shard`.
        Source: docs/howto/history.md
        """
        reports = self._storage.reports
        validate.whole("limit", limit, 1, validate.MESSAGES_MAX)
        validate.whole("after", after, 0, 2**62)
        if shard is not None:
            validate.whole("shard", shard, 0, self.shards - 1)
        return reports.history(shard, after, _encoded(key), limit)

    def consumers(self) -> list[ConsumerStatus]:
        """Return the consumers: the running workers and joined loops of all processes, then the streams.

        Streams are named consumers whose batches are recorded, such as those of Spark. Loops that only call `receive` or
        `consume` are not listed.

        Source: docs/explanation/consumers.md
        """
        self._storage.require_open(writing=False)
        return consumers.statuses(self._storage)

    def leases(self, limit: int = 100) -> list[LaneLease]:
        """Return the live leases of all consumers, the oldest first: which consumer holds which key, since when and until when.

        Loops that only call `receive` are included. Reads every leased key.

        Raises:
            InvalidArgument: limit is not 1..100,000.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"paid", key="order-1")
            >>> batch = q.receive(consumer="billing")
            >>> [(lease.key, lease.consumer, lease.messages) for lease in q.leases()]
            [('order-1', 'billing', 1)]

        Source: docs/explanation/leases.md
        """
        reports = self._storage.reports
        return reports.leases(validate.whole("limit", limit, 1, validate.MESSAGES_MAX))

    def consumers_needed(
        self, *, drain_seconds: float = 600.0, sample_seconds: float = 1.0, process_seconds: float | None = None
    ) -> ConsumersNeeded:
        """Return how many consumers keep up with what arrives, and process the backlog within `drain_seconds`.

        Reads every key that has messages.

        Args:
            sample_seconds: how long to count arrivals. The call takes so long. 0: take it that nothing arrives.
            process_seconds: the mean duration of a message; None: what workers learned.
        Raises:
            InvalidArgument: an argument is invalid, or no worker has learned durations yet.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send_many(strictq.Message(b"", key=n) for n in range(6000))
            >>> q.consumers_needed(drain_seconds=60, sample_seconds=0, process_seconds=0.08).consumers
            1

        Source: docs/explanation/consumers.md
        """
        self._storage.require_open(writing=False)
        return advice.consumers_needed(
            self._storage, drain_seconds=drain_seconds, sample_seconds=sample_seconds, process_seconds=process_seconds
        )

    # ---- ranges of keys

    def topology(self) -> Topology:
        """Return which ranges of hashes each shard owns, what it holds, and the move that runs.

        A key belongs to the shard whose range has its hash: 64 bits of BLAKE2b over the key.

        Examples:
            >>> q = strictq.open(":memory:", shards=2)
            >>> [len(shard.ranges) for shard in q.topology().shards]
            [1, 1]

        Source: docs/explanation/ranges.md
        """
        return self._storage.reports.topology()

    def split(
        self,
        shard: int,
        *,
        at: int | None = None,
        parts: int = 2,
        long_pause: bool = False,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> Moved:
        """Divide what a shard owns while the queue runs. All but one part of it move to new shards.

        Sends, receives and acks go on, in every process. A key waits only while it moves itself. If the process dies, the move
        is continued by the next process that has the queue open. Processes of older versions refuse a shard whose ranges have
        moved.

        Args:
            at: the first hash that moves, so that there are two parts. None: `parts` equal ones.
            long_pause: also move keys with more than 400,000 messages, which wait for about a second per 100,000.
            on_progress: called in this thread with the number of messages that have moved, and of those that move, about.
        Raises:
            MoveInProgress: another range moves; nothing was changed.
            MoveBlocked: a table of the program has rows and no key column, a writer's batch is incomplete, a shard is out of
                service, or a key would wait for long; nothing was changed. Or a named consumer's batch holds keys of the range
                for a minute: the move is continued later.
            InvalidArgument: there is no such shard, it owns nothing, or the queue would have more than 256; nothing was changed.
            ConfigError: dedup ids are unique over all keys, or the queue is replicated; nothing was changed.
            StoreError: the move stopped. What has moved stays where it is, and the move is continued later.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send_many(strictq.Message(b"", key=n) for n in range(100))
            >>> q.split(0).lanes, q.stats().depth
            (51, 100)

        Source: docs/explanation/ranges.md
        """
        if at is not None:
            validate.whole("at", at, 1, HASH_MAX)
        validate.whole("parts", parts, 2, SHARDS_MAX)
        return self._storage.moving.split(
            validate.whole("shard", shard, 0, SHARDS_MAX), at, parts, validate.hook("on_progress", on_progress), bool(long_pause)
        )

    def merge(
        self, source: int, *, into: int, long_pause: bool = False, on_progress: Callable[[int, int], object] | None = None
    ) -> Moved:
        """Move everything that a shard owns into another one, while the queue runs. The shard's file stays, and is not used.

        Args:
            long_pause, on_progress: as for `split`.
        Raises:
            InvalidArgument, ConfigError, MoveInProgress, MoveBlocked, StoreError: as for `split`.
        """
        validate.whole("source", source, 0, SHARDS_MAX)
        return self._storage.moving.merge(
            source, validate.whole("into", into, 0, SHARDS_MAX), validate.hook("on_progress", on_progress), bool(long_pause)
        )

    def move(
        self,
        lo: int,
        hi: int,
        *,
        to: int | None,
        long_pause: bool = False,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> Moved:
        """Move a range of hashes, which one shard owns, to another shard, while the queue runs.

        Args:
            lo, hi: the first and the last hash.
            to: a shard; None: a new one.
            long_pause, on_progress: as for `split`.
        Raises:
            InvalidArgument: no shard owns all of it, or `to` does already; nothing was changed.
            ConfigError, MoveInProgress, MoveBlocked, StoreError: as for `split`.
        """
        validate.whole("lo", lo, 0, HASH_MAX)
        validate.whole("hi", hi, lo, HASH_MAX)
        if to is not None:
            validate.whole("to", to, 0, SHARDS_MAX)
        return self._storage.moving.move(lo, hi, to, validate.hook("on_progress", on_progress), bool(long_pause))

    def isolate(self, key: Key, *, long_pause: bool = False, on_progress: Callable[[int, int], object] | None = None) -> Moved:
        """Give a key a new shard of its own, while the queue runs, so that it shares no writer with other keys.

        Args:
            long_pause, on_progress: as for `split`.
        Raises:
            InvalidArgument, ConfigError, MoveInProgress, MoveBlocked, StoreError: as for `split`.
        """
        return self._storage.moving.isolate(encode_key(key), validate.hook("on_progress", on_progress), bool(long_pause))

    def cancel_move(self) -> bool:
        """Cancel the move that runs, or was left unfinished: what has moved comes back. Return whether there was one.

        If another caller moves the range, it brings everything back and then raises MoveBlocked. This call does not wait for it.
        """
        return self._storage.moving.cancel()

    def advise(self) -> list[Advice]:
        """Return which shard to split, or which key to isolate, so that the queue keeps up. Reads every key with messages.

        Source: docs/howto/operate.md
        """
        self._storage.require_open(writing=False)
        return advice.advise(self._storage)

    # ---- operating

    def reject(self, key: Key, seq: int, reason: str, *, force: bool = False) -> bool:
        """Dead-letter one unresolved message, such as one that crashes every consumer.

        If a named consumer's batch contains it, the batch is delivered without it from now on.

        Args:
            force: end a timed lease that holds the message, such as that of a handler that hangs. Its token dies: what its
                holder does later raises LeaseLost. The lease's other messages can be received again, uncharged. The handler
                may run until its worker notices that, or longer in a thread.
        Returns:
            True if the message was unresolved; otherwise nothing was changed.
        Raises:
            UnknownMessage: the key never had this seq.
            InvalidArgument: a consumer with a timed lease holds it, and `force` is False; nothing was changed.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"it hangs", key="order-1")
            >>> d = q.receive()[0]
            >>> q.reject("order-1", d.seq, "it hangs", force=True)
            True
            >>> d.ack()
            Traceback (most recent call last):
            ...
            strictq._values.errors.LeaseLost: ...

        Source: docs/explanation/leases.md
        """
        operate, raw = self._storage.operate, encode_key(key)
        validate.whole("seq", seq, 1, 2**62)
        return operate.settle(raw, seq, validate.reason(reason), force=bool(force))

    def resolve(self, key: Key, seq: int) -> bool:
        """Ack one unresolved message on behalf of its consumer, because its work is done.

        A lease that holds it ends, as with `reject(..., force=True)`. If a named consumer's batch contains it, the batch is
        delivered without it from now on. It counts as an ack.

        Returns:
            True if the message was unresolved; otherwise nothing was changed.
        Raises:
            UnknownMessage: the key never had this seq.

        Source: docs/explanation/leases.md
        """
        operate = self._storage.operate
        return operate.settle(encode_key(key), validate.whole("seq", seq, 1, 2**62), None, force=True)

    def release_consumer(self, name: str, *, force: bool = False) -> int:
        """Release the unacked batches of a named consumer. Any consumer can then receive their messages.

        A query that had read such a batch cannot continue from its checkpoint, and fails; restart it with a new checkpoint.

        Args:
            force: release even if a running process holds the consumer. That process is fenced: its next write raises
                ConsumerLost.
        Returns:
            The number of messages released.
        Raises:
            ConsumerBusy: a running process holds the consumer; nothing was changed.
        """
        self._storage.require_open()
        return consumers.release(self._storage, validate.name("consumer", name), force=bool(force))

    def redrive(self, key: Key | None = None, seqs: Iterable[int] | None = None) -> int:
        """Return dead letters to their lane at their original seq, ahead of all later messages, with attempts 0 and no TTL.

        They are unresolved at once. If a lease holds the lane, they are delivered after it has ended.

        Args:
            key: the key; None: all keys.
            seqs: the messages of the key; None: all of them.
        Returns:
            The number of dead letters that were returned.
        Raises:
            InvalidArgument: seqs without a key.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"bad", key="order-1")
            >>> q.receive()[0].reject("not an order")
            >>> q.redrive("order-1")
            1
            >>> q.peek("order-1")[0].seq
            1
        """
        operate = self._storage.operate
        if seqs is not None and key is None:
            raise InvalidArgument("seqs are positions in a key: pass the key as well")
        if seqs is not None and not isinstance(seqs, Iterable):
            raise InvalidArgument("seqs must be a list of seqs")
        wanted = None if seqs is None else [validate.whole("seq", s, 1, 2**62) for s in seqs]
        return operate.redrive(_encoded(key), wanted)

    def hold(self, key: Key, reason: str | None = None) -> None:
        """Stop delivering this key until `release`. A live lease may finish."""
        operate, raw = self._storage.operate, encode_key(key)
        operate.hold(raw, validate.text("reason", reason) or "held by an operator")

    def release(self, key: Key | None) -> bool:
        """End a hold, and the retry delay of a lane that a poison policy held. The attempts of its messages restart at 0.

        Args:
            key: the key; None: all keyless messages that a poison policy holds.
        Returns:
            True if the key was held.
        """
        return self._storage.operate.end_hold(_encoded(key))

    def purge(
        self,
        key: Key | None = None,
        *,
        dead: bool = False,
        history: bool = False,
        older_than: float | None = None,
        in_flight: bool = False,
    ) -> int:
        """Delete the unresolved messages of a key, or of the whole queue, and the dedup ids of those keys.

        Also deletes redriven messages that wait for the end of a lease. Messages in flight stay with their consumer, unless
        `in_flight` is True. Seqs are not reused. Runs in steps of 1,000 messages, so that other writers can write in between.

        Args:
            dead: also delete dead letters.
            history: also delete the records of finished messages, including those purged now, and their kept outputs. For
                records alone, use `purge_history`.
            older_than: delete only messages that were sent more than so many seconds ago, such as a backlog that an outage left.
                Dedup ids stay. Goes with neither `dead`, `history` nor `in_flight`.
            in_flight: also delete messages in flight. Their leases end first, and the tokens die: what a holder does later raises
                LeaseLost. Messages in a batch of a named consumer stay, see `release_consumer`.
        Returns:
            The number of messages and dead letters deleted.
        """
        if older_than is not None:
            if dead or history or in_flight:
                raise InvalidArgument("older_than goes with neither dead, history nor in_flight")
            age = validate.microseconds("older_than", older_than)
            return self._storage.operate.purge(_encoded(key), dead=False, older_than=age)
        return self._storage.operate.purge(_encoded(key), dead=dead, records=history, in_flight=bool(in_flight))

    def purge_history(self, key: Key | None = None) -> int:
        """Delete the records of finished messages of a key, or of the whole queue, and nothing else. Runs in steps.

        Records that are added after the purge of a shard began are kept. Record numbers are not reused.

        Returns:
            The number of records deleted.
        Source: docs/howto/history.md
        """
        return self._storage.operate.forget_history(_encoded(key))

    # ---- replication

    def configure_replication(
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
        """Ship every change from now on to a target, from which `strictq.restore` can restore the queue.

        Stored with the queue. One of the processes that have the queue open ships; another takes over when it ends.
        In mode "async", a loss of the queue's disk loses what was committed after the last segment, see
        `ReplicationStatus.lag_seconds`. In mode "confirmed", it loses nothing that a call returned.

        Args:
            target: a directory on another disk or a mounted share, "file:/mnt/backup/orders" or a path; or a prefix in an
                object store, "s3://bucket/orders" (extra `remote`). Empty, missing, or this queue's own replica. Or a living
                replica on another host, run by `strictq.Replica` or `strictq replica`: "tcps://host:7400", or
                "tcp://" without TLS.
            mode: "async": no call waits for the target. "confirmed": each call that writes, and each receive that returns
                messages, returns when the target has the change on its disk, or raises NotConfirmed. While the target does not
                answer, sends and receives are refused with TargetUnavailable.
            interval_seconds: seconds between two segments, at least 0.01.
            max_lag_bytes: bytes of changes to keep in the WALs while the target is unreachable, at least 1 MiB. Beyond
                that, changes are not kept, and whole shards are shipped later.
            keep_seconds: how many seconds back a restore to a point in time can go.
            key_file: a file with a secret of 16 bytes or more, readable by every process that ships. Segments are hashed with
                it, so that write access to the target is not enough to forge one. They are not encrypted.
            token_file: for a replica on another host: a file with its token, readable by every process that ships.
            authority: for tcps://: a PEM file with the CA certificates for the replica's; None: the system's trusted CAs.
            plaintext: for tcp:// to another host: allow the token and messages to cross that network unencrypted.
            timeout_seconds: in confirmed mode: seconds that a call waits, and that the target may be silent.
            verify_seconds: each segment that a restore of the newest state needs is read and verified again within this many
                seconds, at least 1. Missing segments are noticed within a minute. See ReplicationStatus.last_error.
        Returns:
            The state of replication. Shipping has begun, not ended.
        Raises:
            InvalidArgument, ConfigError: nothing was changed.
            MissingExtra: the target needs the extra `remote`; nothing was changed.
            Diverged: the target is the replica of another queue, or of another history of this one; nothing was changed.
            Fenced: the target is a promoted replica, or this queue's replica was promoted; nothing was changed.
            TargetUnavailable: the target can't be read or written, or the current confirmed replica can't be notified that
                calls no longer wait for it; nothing was changed.
        Source: docs/howto/replication.md
        """
        self._storage.require_open()
        from .replication import settings  # imported only if a queue has a replica

        wanted = settings.ShipSettings(
            max(validate.seconds("interval_seconds", interval_seconds), 0.01),
            validate.whole("max_lag_bytes", max_lag_bytes, 1 << 20, 1 << 50),
            validate.seconds("keep_seconds", keep_seconds),
            settings.file_path("key_file", key_file, hints.KEY_FILE),
            settings.file_path("token_file", token_file, hints.TOKEN_FILE),
            settings.file_path("authority", authority),
            timeout_seconds=validate.seconds("timeout_seconds", timeout_seconds, minimum=0.001),
            verify_seconds=validate.seconds("verify_seconds", verify_seconds, minimum=1.0),
        )
        settings.configure(self._storage, target, mode, wanted, plaintext=bool(plaintext))
        found = self._storage.reports.replication()
        assert found is not None
        return found

    def detach(self, *, force: bool = False) -> bool:
        """Stop replicating the queue and return whether it was replicated. The replica keeps what it has.

        Args:
            force: in confirmed mode, stop even if the replica can't be reached to notify it that calls no longer wait for
                it. On a fenced queue, put the queue in service beside its promoted replica.
        Raises:
            TargetUnavailable: in confirmed mode, the replica can't be reached; nothing was changed.
            Fenced: the replica was promoted; nothing was changed.
        """
        self._storage.require_open()
        from .replication import settings

        return settings.detach(self._storage, force=bool(force))

    def replication(self) -> ReplicationStatus | None:
        """Return the state of replication; None if the queue was never replicated."""
        return self._storage.reports.replication()

    def pause(self, type: str | None = None) -> bool:
        """Pause the queue, or the handlers of one type, until `resume`. Stored, and seen by every process.

        While the queue is paused, receives return nothing, in any process that is called after this returned. Sends, acks and
        everything else go on. Deliveries that consumers hold can be finished; workers return the messages that they have not
        started, with no attempt charged.

        A paused type is a matter of `strictq.App`: its workers postpone a message of the type that they receive, with no attempt
        charged, for one to ten seconds at a time. Later messages of its key wait for it. Other consumers are not affected.

        Processes of older versions ignore a pause, and keep it when they change other settings.

        Args:
            type: a handler type, as registered with the App; None: the whole queue.
        Returns:
            Whether this changed anything: False if it was paused.
        Raises:
            InvalidArgument, ConfigError, ReadOnlyQueue: nothing was changed.
            OutcomeUnknown: as for `configure`.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"paid", key="order-1")
            >>> q.pause(), len(q.receive()), q.resume(), len(q.receive())
            (True, 0, True, 1)

        Source: docs/howto/operate.md
        """
        return self._set_paused(type, True)

    def resume(self, type: str | None = None) -> bool:
        """End a pause of the queue, or of the handlers of one type. Waiting receives of the queue wake up.

        The pauses of the queue and of its types are independent: each ends by its own `resume`.

        Args:
            type: as for `pause`.
        Returns:
            Whether this changed anything: False if it was not paused.
        Raises:
            InvalidArgument, ReadOnlyQueue, OutcomeUnknown: as for `pause`.
        """
        return self._set_paused(type, False)

    def _set_paused(self, type: str | None, paused: bool) -> bool:
        self._storage.require_open()
        if type is None:
            before, now = self._storage.change_settings(lambda _: {"paused": paused})
            return before.paused != now.paused
        if not isinstance(type, str) or not 0 < len(type) <= TYPE_CHARS_MAX:
            raise InvalidArgument(f"type must be a str of 1 to {TYPE_CHARS_MAX} characters, not {validate.shown(type)}")

        def change(config: QueueConfig) -> dict[str, Any]:
            others = [name for name in config.paused_types if name != type]
            return {"paused_types": [*others, type] if paused else others}

        before, now = self._storage.change_settings(change)
        return before.paused_types != now.paused_types

    def sideline(self, before: datetime | float | None) -> bool:
        """Let new messages pass a backlog: keys whose next message was sent before a time get one message in ten.

        After an outage, new messages are then received at once, and the backlog beside them. If no newer message is ready, the
        backlog gets everything. The order within a key never changes, so a new message of a key with a backlog waits for it.
        With tenants, this holds within each one. Stored, and seen by every process; no message is touched, so it takes
        the same short time for any backlog. Receives with `keys=` do not follow it. `QueueConfig(sideline_seconds=...)` does it
        always, by age.

        Args:
            before: an aware datetime, or seconds since 1970; a time in the future counts as now. None: end it.
        Returns:
            Whether this changed anything.
        Raises:
            InvalidArgument, ReadOnlyQueue: nothing was changed.
            OutcomeUnknown: as for `configure`.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> for n in range(20):
            ...     _ = q.send(b"", key=f"old-{n}")
            >>> q.sideline(time.time())
            True
            >>> for n in range(9):
            ...     _ = q.send(b"", key=f"new-{n}")
            >>> [d.key for d in q.receive(10)][-2:]
            ['new-8', 'old-0']

        Source: docs/howto/overload.md
        """
        self._storage.require_open()
        storage, at = self._storage, None
        if before is not None:
            # Relative to now: this time and the one that messages are sent at may differ by less than a second.
            at = (storage.now() - validate.age("before", before, storage.clock.wall())) / 1_000_000
        was, now = storage.change_settings(lambda _: {"sideline_before": at})
        return was.sideline_before != now.sideline_before

    def backup(self, target: str | os.PathLike[str], *, on_progress: Callable[[int, int], object] | None = None) -> BackedUp:
        """Copy the queue to a new directory while it is in use.

        The copy is one state of the whole queue, over all shards: a transaction and its sends to other keys are in it together or
        not at all. Other threads and processes go on working; each shard's write lock is held for a moment. Until the copy is
        complete, the WALs cannot restart, so they grow by what is written meanwhile. `target` appears at the end, complete and
        durable. After a kill, a directory `.TARGET.*.new` may be left beside it, which can be deleted.

        The copy can be opened with read_only=True. `strictq.adopt` puts it in service: its leases are over then, and its tokens
        are larger than the original's, which therefore settle nothing there.

        Args:
            target: the copy's directory, which must not exist.
            on_progress: called in this thread with the number of copied bytes and the total.
        Raises:
            ConfigError: the queue is in memory, or a living replica; nothing was created.
            InvalidArgument: `target` exists, or it can't be created; nothing was created.
            StoreBusy: this process forked during the backup; nothing was created.
            StoreFull, StoreError: a file can't be read or written; nothing was created.

        Source: docs/howto/operate.md
        """
        self._storage.require_open(writing=False)
        path = validate.path_text(target, "target")
        if path == MEMORY:
            raise InvalidArgument("target must be the path of a directory: a queue in memory is private to its object")
        progress = validate.hook("on_progress", on_progress) or (lambda _done, _bytes: None)
        return self._storage.replicating.backup(Path(path), progress)

    def check(self, fix: bool = False) -> list[Problem]:
        """Read the whole queue and return every broken invariant; an empty list if there is none.

        Args:
            fix: repair what can be repaired without losing data.
        Returns:
            The problems found. docs/explanation/storage.md explains each rule.
        Raises:
            StoreError: no file descriptor is free; transient.
        """
        self._storage.require_open(writing=fix)
        return self._storage.reports.check(fix=fix)

    # ---- configuration and the program's tables

    def configure(self, /, **changes: Any) -> QueueConfig:
        """Change settings. They are stored, and every process applies them at its next write.

        A setting that has no effect any more raises a DeprecationWarning and changes nothing.

        Returns:
            The new configuration.
        Raises:
            ConfigError: a setting is unknown, out of range, or contradicts another; nothing was changed.
            InvalidArgument: this is inside a transaction of the queue; nothing was changed.
            OutcomeUnknown: the change may be stored, or a shard could not be reached; repeating the call completes it.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> q.configure(lease_seconds=60.0).lease_seconds
            60.0
        """
        self._storage.require_open()
        return self._storage.configure(effective(changes, stacklevel=3))

    def limit(
        self,
        tenant: str,
        *,
        weight: float | Unset = UNSET,
        max_depth: int | Unset | None = UNSET,
        send_rate: float | Unset | None = UNSET,
        receive_rate: float | Unset | None = UNSET,
        burst: int | Unset | None = UNSET,
        concurrency: int | Unset | None = UNSET,
        target_age_seconds: float | Unset | None = UNSET,
        paused: bool | Unset = UNSET,
        remove: bool = False,
    ) -> TenantLimit | None:
        """Set limits of a tenant, or of all whose names begin alike. They are stored; every process applies them at once.

        A tenant is what precedes `QueueConfig.tenant_separator` in a key. The longest name that matches applies. A limit may
        precede the tenant's first message. What is not given stays as it is. Rates hold over all processes; deliveries may
        exceed one by a batch. Not limited are sends in transactions, Spark's sink, and receives with `keys=`.

        Args:
            tenant: "acme", or "free-*" for all names that begin so, or "*".
            weight: its share while several tenants have messages, 0.001 to 1,000; the default is 1.
            max_depth: unresolved messages at which its sends raise QueueFull. None: no limit.
            send_rate: messages per second that are accepted. More raise Throttled. None: no limit.
            receive_rate: messages per second that are delivered. None: no limit.
            burst: messages that may come at once after a pause; None: those of one second.
            concurrency: its keys that may be leased at once, over all processes. None: no limit.
            target_age_seconds: lower `send_rate` while the oldest ready message of the tenant is older: to the rate times
                this, divided by that age. None: do not.
            paused: True: deliver none of its messages. Sends go on.
            remove: remove the limits of this name.
        Returns:
            The limits of this name, or None if there are none.
        Raises:
            ConfigError: a value is invalid, or the queue has no tenant_separator; nothing was changed.
            OutcomeUnknown: the change may be stored, or a shard could not be reached; repeating the call completes it.

        Examples:
            >>> q = strictq.open(":memory:", config=strictq.QueueConfig(tenant_separator="/"))
            >>> q.limit("free-*", send_rate=10.0, burst=2).send_rate
            10.0
            >>> for n in range(3):
            ...     _ = q.send(b"", key=f"free-7/{n}")
            Traceback (most recent call last):
            ...
            strictq._values.errors.Throttled: ...

        Source: docs/explanation/fairness.md
        """
        given = {
            "weight": weight, "max_depth": max_depth, "send_rate": send_rate, "receive_rate": receive_rate, "burst": burst,
            "concurrency": concurrency, "target_age_seconds": target_age_seconds, "paused": paused,
        }  # fmt: skip
        changes = {name: value for name, value in given.items() if value is not UNSET}
        if not isinstance(tenant, str):
            raise InvalidArgument(f"tenant must be a str, not {type(tenant).__name__}")
        if remove and changes:
            raise InvalidArgument("a limit is either changed or removed")
        self._storage.require_open()

        def change(config: QueueConfig) -> dict[str, Any]:
            return {"limits": changed_limits(config.limits, tenant, changes, remove=remove)}

        _, now = self._storage.change_settings(change)
        return next((one for one in now.limits if one.tenant == tenant), None)

    def tenants(self) -> list[TenantStatus]:
        """Return the tenants that have messages or limits of their own, the deepest first. Reads every key that has messages.

        Raises:
            ConfigError: the queue has no tenant_separator.

        Source: docs/explanation/fairness.md
        """
        if self._storage.tenancy is None:
            raise ConfigError("the queue has no tenants", hint=hints.SET_SEPARATOR)
        return self._storage.reports.tenants()

    def reset_estimates(self) -> None:
        """Delete the durations that workers learned. Running workers drop theirs when they next store them."""
        self._storage.require_open()
        self._storage.set_estimates(None)

    def app_schema(self, sql: str, *, key_columns: Mapping[str, str] | None = None) -> None:
        """Create the program's own tables in every shard, including future ones. Repeating the same text does nothing.

        Args:
            sql: statements on tables, indexes and views whose names start with app_.
            key_columns: for a table, the column that has the key that a row belongs to. Text, blobs and integers are keys of
                type str, bytes and int. Such rows move with their keys, if they were written in transactions of these: see
                `split`. An index of the table must begin with the column, and every UNIQUE or PRIMARY KEY must include it.
        Raises:
            InvalidArgument: the SQL is invalid, or uses other tables; a column is not one of the table, or its indexes do not
                permit it; or the table has another key column. Nothing was changed.
            OutcomeUnknown: the SQL may be recorded, or a shard could not be reached; repeating the call completes it.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> sql = "CREATE TABLE IF NOT EXISTS app_balance (account TEXT PRIMARY KEY, cents INTEGER)"
            >>> q.app_schema(sql, key_columns={"app_balance": "account"})

        Source: docs/explanation/ranges.md
        """
        self._storage.require_open()
        if not isinstance(sql, str) or not sql.strip():
            raise InvalidArgument("app_schema takes SQL as a str")
        self._storage.define_app_schema(sql, validate.key_columns(key_columns))

    def query(self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, key: Key | None = None) -> Rows:
        """Read the program's app_* tables in all shards, or in the shard of one key.

        The query runs on each shard separately; the caller combines sums and sort orders over shards.

        Returns:
            The rows, as tuples. `.columns` has the columns' names if there are rows.
        Raises:
            InvalidArgument: the SQL is invalid, writes, uses other tables, or takes too long.
            PartialFailure: shards could not be read; results has the rows, or the error, of each shard.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> q.app_schema("CREATE TABLE app_balance (account TEXT, cents INTEGER)")
            >>> with q.transaction(key="account-7") as tx:
            ...     tx.execute("INSERT INTO app_balance VALUES (?, ?)", ("account-7", 500))
            >>> q.query("SELECT account, cents FROM app_balance")
            [('account-7', 500)]
        """
        return self._storage.reports.query(sql, params, _encoded(key))


def _encoded(key: Key | None) -> bytes | None:
    return None if key is None else encode_key(key)


def _resolved(receipt: Receipt) -> MessageStatus:
    from ._values.findings import MessageStatus

    return MessageStatus(None, receipt.seq, "resolved")
