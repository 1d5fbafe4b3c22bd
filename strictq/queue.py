"""The synchronous queue. aio/ awaits the same methods; each group of operations has its own module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack

from . import _validate as validate
from ._client import Client, cannot_share
from ._config import QueueConfig
from ._errors import InvalidArgument
from ._keys import Key, encode_key
from ._observe import EventHook, Observation, Observer
from ._operating import Operations
from ._receiving import Receiving, leased_ahead
from ._settling import listed
from ._stats import ReplicationStatus, Stats
from ._store.api import Rows, Ships, Storage
from ._types import Body, ContentHash, Event, Message, Receipt, SendOptions, to_send
from .batch import Batch
from .delivery import Delivery
from .handle import DeliveryRef
from .transaction import Transaction, transaction_of

if TYPE_CHECKING:
    import os
    from datetime import datetime

    from ._findings import (
        ConsumerStatus,
        DeadLetter,
        Explanation,
        HistoryRecord,
        KeyDepth,
        MessageStatus,
        PeekedMessage,
        Problem,
    )


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
        self._receiving = Receiving(self._client)
        self._operations = Operations(storage)
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
        if (
            (dedup_id is None and at is None and ttl is None and headers is None and size_hint is None)
            and (prepare_seconds is None and process_seconds is None and type(delay) is float and not delay)
            and not isinstance(body, Message)
        ):
            return self._client.sending.send_body(body, key)
        message = Message(
            b"" if isinstance(body, Message) else body,
            key=key, dedup_id=dedup_id, delay=delay, at=at, ttl=ttl, headers=headers, size_hint=size_hint,
            prepare_seconds=prepare_seconds, process_seconds=process_seconds,
        )  # fmt: skip
        return self._client.sending.send(to_send(body, message))

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
        request = self._receiving.request(max_messages, per_key, lease_seconds, keys, consumer, ack_first=ack_first)
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

    # ---- settling

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Ack many deliveries, in any order. Takes effect for the valid ones; one transaction per shard.

        Raises:
            LeaseLost: the only delivery was lost.
            PartialFailure: some were lost, or shards failed; results has None or an exception for each delivery.
        """
        if not (isinstance(deliveries, Batch) and deliveries.ack_whole(self._client)):
            self._client.settling.ack(listed(deliveries))

    def nack_many(self, deliveries: Iterable[Delivery], delay: float | None = None, reason: str | None = None) -> None:
        """Nack many deliveries: per key, the first one given and every later message of its lease.

        Raises:
            LeaseLost, PartialFailure: as for ack_many.
        """
        self._client.settling.nack(listed(deliveries), delay, reason)

    def extend_many(self, deliveries: Iterable[Delivery], seconds: float) -> None:
        """Set the deadlines of the deliveries' leases to `seconds` from now.

        Raises:
            LeaseLost, PartialFailure: as for ack_many.
        """
        settling = self._client.settling
        settling.extend([settling.own(d) for d in listed(deliveries)], seconds)

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
        return self._operations.stats()

    def top_keys(self, n: int = 10, by: Literal["depth", "age"] = "depth") -> list[KeyDepth]:
        """Return the keys with the most messages, or with the oldest message. Reads every key that has messages.

        Raises:
            InvalidArgument: n is not 1..10,000, or `by` is neither "depth" nor "age".
        """
        return self._operations.top_keys(n, by)

    def peek(self, key: Key | Receipt | None = None, limit: int = 10) -> list[PeekedMessage]:
        """Return the first unresolved messages of a key, in order, without leasing them.

        Args:
            key: the messages of this key. A receipt: only its message, keyless or not. None: the oldest messages
                of all keys, from up to 10,000 ready keys per shard, and as many leased, delayed and held ones.
        Raises:
            InvalidArgument: the key is invalid, or limit is not 1..100,000.
        """
        return self._operations.peek(key, limit)

    def status(self, key: Key | Receipt, seq: int | None = None) -> MessageStatus:
        """Return the state of one message. A message that was acked, expired, dropped or purged is "resolved".

        Args:
            key, seq: the message's key and seq. Or a receipt alone, keyless or not, which takes some look-ups for each of the
                queue's `keyless_lanes`.
        Raises:
            UnknownMessage: the key never had this seq, or the shard never had this id.
            InvalidArgument: the key, seq or receipt is invalid.
        """
        return self._operations.status(key, seq)

    def explain(self, key: Key) -> Explanation:
        """Return whether a key can be delivered now and, if not, why: its holder, since when and until when.

        Examples:
            >>> q = strictq.open(":memory:")
            >>> _ = q.send(b"paid", key="order-1", delay=60.0)
            >>> q.explain("order-1").state
            'delayed'
        """
        return self._operations.explain(key)

    def dead_letters(self, key: Key | None = None, limit: int = 100) -> list[DeadLetter]:
        """Return the dead letters of one key or of the queue, seq ascending within a key.

        Raises:
            InvalidArgument: limit is not 1..100,000.
        """
        return self._operations.dead_letters(key, limit)

    def history(self, *, shard: int = 0, after: int = 0, key: Key | None = None, limit: int = 1000) -> list[HistoryRecord]:
        """Return records of one shard's finished messages, in the order in which they finished, if `history` is on.

        To continue, pass the last record's `n` as `after`. To read everything, do so for each shard.

        Args:
            shard: 0 to `shards` - 1; ignored if a key is given.
            after: only records with a larger n.
            key: only records of this key, from its shard; reads every record after `after`.
        Returns:
            0..limit records, n ascending; an empty list at the end. A list has at most about 32 MiB of bodies, so it may be
            shorter than limit although there are more records.
        Raises:
            InvalidArgument: there is no such shard, or limit is not 1..100,000.
        Source: docs/howto/history.md
        """
        return self._operations.history(shard, after, key, limit)

    def consumers(self) -> list[ConsumerStatus]:
        """Return the named consumers, whose batches are recorded, such as Spark streams.

        Source: docs/explanation/spark.md
        """
        return self._operations.consumers()

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
            strictq._errors.LeaseLost: ...

        Source: docs/explanation/leases.md
        """
        return self._operations.reject(key, seq, reason, force=force)

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
        return self._operations.resolve(key, seq)

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
        return self._operations.release_consumer(name, force=force)

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
        return self._operations.redrive(key, seqs)

    def hold(self, key: Key, reason: str | None = None) -> None:
        """Stop delivering this key until `release`. A live lease may finish."""
        self._operations.hold(key, reason)

    def release(self, key: Key | None) -> bool:
        """End a hold, and the retry delay of a lane that a poison policy held. The attempts of its messages restart at 0.

        Args:
            key: the key; None: all keyless messages that a poison policy holds.
        Returns:
            True if the key was held.
        """
        return self._operations.release(key)

    def purge(self, key: Key | None = None, *, dead: bool = False, history: bool = False) -> int:
        """Delete the unresolved messages of a key, or of the whole queue, and the dedup ids of those keys.

        Also deletes redriven messages that wait for the end of a lease. Messages in flight stay with their consumer.
        Seqs are not reused. Runs in steps of 1,000 messages, so that other writers can write in between.

        Args:
            dead: also delete dead letters.
            history: also delete the records of finished messages, including those purged now. For records alone, use
                `purge_history`.
        Returns:
            The number of messages and dead letters deleted.
        """
        return self._operations.purge(key, dead=dead, history=history)

    def purge_history(self, key: Key | None = None) -> int:
        """Delete the records of finished messages of a key, or of the whole queue, and nothing else. Runs in steps.

        Records that are added after the purge of a shard began are kept. Record numbers are not reused.

        Returns:
            The number of records deleted.
        Source: docs/howto/history.md
        """
        return self._operations.purge_history(key)

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
        return self._operations.configure_replication(
            target, mode, interval_seconds=interval_seconds, max_lag_bytes=max_lag_bytes, keep_seconds=keep_seconds,
            key_file=key_file, token_file=token_file, authority=authority, plaintext=plaintext,
            timeout_seconds=timeout_seconds, verify_seconds=verify_seconds,
        )  # fmt: skip

    def detach(self, *, force: bool = False) -> bool:
        """Stop replicating the queue and return whether it was replicated. The replica keeps what it has.

        Args:
            force: in confirmed mode, stop even if the replica can't be reached to notify it that calls no longer wait for
                it. On a fenced queue, put the queue in service beside its promoted replica.
        Raises:
            TargetUnavailable: in confirmed mode, the replica can't be reached; nothing was changed.
            Fenced: the replica was promoted; nothing was changed.
        """
        return self._operations.detach(force=force)

    def replication(self) -> ReplicationStatus | None:
        """Return the state of replication; None if the queue was never replicated."""
        return self._operations.replication()

    def check(self, fix: bool = False) -> list[Problem]:
        """Read the whole queue and return every broken invariant; an empty list if there is none.

        Args:
            fix: repair what can be repaired without losing data.
        Returns:
            The problems found. docs/explanation/storage.md explains each rule.
        Raises:
            StoreError: no file descriptor is free; transient.
        """
        return self._operations.check(fix=fix)

    # ---- configuration and the program's tables

    def configure(self, **changes: Any) -> QueueConfig:
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
        return self._operations.configure(changes)

    def reset_estimates(self) -> None:
        """Delete the durations that workers learned. Running workers drop theirs when they next store them."""
        self._operations.set_estimates(None)

    def app_schema(self, sql: str) -> None:
        """Create the program's own tables in every shard, including future ones. Repeating the same text does nothing.

        Args:
            sql: statements on tables, indexes and views whose names start with app_.
        Raises:
            InvalidArgument: the SQL is invalid, or uses other tables; nothing was changed.
            OutcomeUnknown: the SQL may be recorded, or a shard could not be reached; repeating the call completes it.
        """
        self._operations.app_schema(sql)

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
        return self._operations.query(sql, params, key)
