"""The queue, sync; aio/ awaits the same verbs. Each role has a module of its own."""

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
    """A durable queue with strict order per key. Get one from `strictq.open`; close it, or use it in a with block.

    One object serves any number of threads. Other objects and other processes may use the same directory at once.
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
        """Names this queue for ever, wherever it is moved."""
        return self._storage.queue_id

    @property
    def shards(self) -> int:
        """How many files the hash space is spread over."""
        return self._storage.shards

    @property
    def durability(self) -> str:
        """ "full" or "process": the level of this object."""
        return self._storage.durability

    @property
    def config(self) -> QueueConfig:
        """The settings, as this process last saw them."""
        return self._storage.config

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """Call `hook(event)` for what Event lists, such as dead letters and quarantined shards, after it is committed."""
        if not callable(hook):
            raise InvalidArgument("an on_event hook must be callable")
        self._storage.observers.add(EventHook(hook))

    def observe(self, observer: Observer) -> Observation:
        """Call the observer's methods for events, counts and durations of this object, until the Observation is closed.

        Raises:
            InvalidArgument: it is not a `strictq.Observer`; nothing changed.
        """
        return self._storage.observers.add(observer)

    def close(self) -> None:
        """Close every file. Leases stay until their deadline; closing twice does nothing.

        The last process that closes the queue leaves empty WALs, or, where the queue has a replica, ships what is left.

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
        """Append a message to its key's sequence. Durable on return.

        Args:
            body: the content, bytes-like; may be empty. Or a Message, which has all of the other arguments in it.
            key: str, bytes or int. None only where the queue's `keyless` allows it.
            dedup_id: within the dedup window, a second send with this key and id stores nothing. `strictq.CONTENT_HASH`: the
                id is a hash of the body.
            delay: seconds before it may be handed out; later messages of its key wait for it.
            at: instead of delay, an aware datetime before which it may not be handed out. In the past: at once. A wait that has
                begun goes on by the machine's clock, and takes no notice if the time of day is set.
            ttl: seconds after which it expires if nobody holds it; None: the queue's ttl_seconds.
            headers: str → str.
            size_hint, prepare_seconds, process_seconds: estimates for a worker.
        Returns:
            Its position. `duplicate` is set where the dedup_id was known; then it is the first one's.
        Raises:
            InvalidArgument, MessageTooLarge, QueueFull, StoreBusy, StoreFull: nothing changed.
            OutcomeUnknown: it may have happened; safe to repeat with a dedup_id.
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
        """Append a message whose body is a value as compact UTF-8 JSON. `json()` of the delivery gives it back.

        Args:
            value: what `json.dumps` can write, NaN and infinity excepted.
            key, options: as for `send`.
        Raises:
            InvalidArgument: the value can't be written as JSON; nothing changed. And as `send`.
        """
        return self._client.sending.send(Message.json(value, key=key, **options))

    def send_many(self, messages: Iterable[Message]) -> list[Receipt]:
        """Append many messages, in order. Atomic per shard: one transaction for each shard that is touched.

        Returns:
            A receipt for each, in the order given.
        Raises:
            InvalidArgument, MessageTooLarge: one of them can't be sent; nothing changed.
            QueueFull, StoreError: nothing changed (where one shard is concerned).
            PartialFailure: some shards failed; results has a Receipt or an exception for each message.
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
        """Lease the oldest ready messages: the oldest ready head, as many more of its lane as fit, and again from there.

        One transaction per shard touched; durable on return. Two live leases never share a lane.

        Args:
            max_messages: 1..100,000.
            per_key: at most so many of each key; 1 gives the heads of many lanes.
            wait: seconds to wait for a first message; 0 returns at once, None waits for ever. If messages are ready, but only
                in a shard that another call is writing to, it waits for that shard in any case: 10 seconds at most.
            lease_seconds: how long the lanes are held; None: the queue's lease_seconds.
            keys: only these.
            consumer: who holds them, shown by explain; None: host and process id.
            ack_first: resolve on receive (at most once); the lanes stay leased until `d.done()` or the deadline.
        Returns:
            0..max_messages deliveries; seq ascending within a key. As a with block, the Batch gives back what is not settled when
            the block ends.
        Raises:
            InvalidArgument: an argument is invalid, or this is inside a transaction of the queue; nothing changed.
            StoreError, PartialFailure: nothing was leased, because shards failed.
        Source: docs/explanation/leases.md
        """
        request = self._receiving.request(max_messages, per_key, lease_seconds, keys, consumer, ack_first=ack_first)
        deliveries = Batch()
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
        """Receive again and again, and hand out one by one: for ever, or until nothing came for `wait` seconds.

        Each message is started before it is handed out, as `d.start()` does. The ack of a message also starts the next one of
        its key, so that counting attempts costs at most one transaction a lease. Leaving the loop gives back what was not
        handed out, unused.

        The arguments are those of receive; max_messages is how many are leased ahead. With ack_first it is one, whatever it
        says: what is resolved could not be given back.
        """
        wanted = validate.several(keys)
        ahead = leased_ahead(max_messages, ack_first=ack_first)
        request = self._receiving.request(ahead, per_key, lease_seconds, wanted, consumer, ack_first=ack_first, starts=True)
        yield from self._receiving.consume(request, wait)

    # ---- settling

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Resolve many, in any order. The valid ones take effect; one transaction per shard.

        Raises:
            LeaseLost: of a single delivery.
            PartialFailure: some were lost, or shards failed: results has None or an exception for each delivery.
        """
        self._client.settling.ack(listed(deliveries))

    def nack_many(self, deliveries: Iterable[Delivery], delay: float | None = None, reason: str | None = None) -> None:
        """Give many back; of each key the first one given, and everything later that its lease holds.

        Raises:
            LeaseLost, PartialFailure: as for ack_many.
        """
        self._client.settling.nack(listed(deliveries), delay, reason)

    def extend_many(self, deliveries: Iterable[Delivery], seconds: float) -> None:
        """Move the deadlines of their lanes' leases to `seconds` from now.

        Raises:
            LeaseLost, PartialFailure: as for ack_many.
        """
        settling = self._client.settling
        settling.extend([settling.own(d) for d in listed(deliveries)], seconds)

    def delivery(self, handle: str) -> DeliveryRef:
        """Return the delivery that a handle names, to settle it from here: in another process, or after a restart.

        Nothing is read: a handle whose lease is over is refused by the verb that is called.

        Args:
            handle: `d.handle` of a delivery of this queue.
        Raises:
            InvalidArgument: it is not a handle, or another queue's.
        Source: docs/explanation/leases.md
        """
        self._storage.require_open(writing=False)
        return DeliveryRef(self._client.settling, handle)

    def transaction(
        self, delivery: Delivery | None = None, *, key: Key | None = None, deliveries: Iterable[Delivery] | None = None
    ) -> Transaction:
        """One transaction, as a with block: when it ends, acks the delivery and applies everything done in it, or nothing.

        Args:
            delivery: the lowest unresolved message of its lease; it is acked with the rest.
            deliveries: instead: any unresolved messages of one lease; they are acked together with the rest.
            key: instead, without a delivery: the key whose state, and whose shard's app_* tables, are used.
        Returns:
            A context manager giving a Transaction.
        Raises:
            LeaseLost: the lane was given back or retaken; nothing happened.
            ForwardPending: committed; a send to another shard has yet to arrive there, and will.
            OutcomeUnknown: it may have happened; run it again with the same delivery: it happens once.
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
        """Counts of the queue and of each shard: a frozen snapshot, one consistent read a shard.

        The cost does not grow with the backlog, but with how many keys are delayed or held. A quarantined shard counts nothing
        and says why. `prepare` and `process` are what workers learned of durations; `breakers` says which workers have stopped
        because most of their handlers failed.

        Source: docs/explanation/lifecycle.md
        """
        return self._operations.stats()

    def top_keys(self, n: int = 10, by: Literal["depth", "age"] = "depth") -> list[KeyDepth]:
        """The deepest keys, or those whose oldest message is oldest. Looks at every key that has messages.

        Raises:
            InvalidArgument: n is not 1..10,000, or `by` is neither "depth" nor "age".
        """
        return self._operations.top_keys(n, by)

    def peek(self, key: Key, limit: int = 10) -> list[PeekedMessage]:
        """The first unresolved messages of a key, in order, without touching them.

        Raises:
            InvalidArgument: no valid key, or limit is not 1..100,000.
        """
        return self._operations.peek(key, limit)

    def status(self, key: Key, seq: int) -> MessageStatus:
        """Where one message is; "resolved" for what is gone.

        Raises:
            UnknownMessage: that seq was never issued for that key.
        """
        return self._operations.status(key, seq)

    def explain(self, key: Key) -> Explanation:
        """Why a key is, or is not, handed out now: since when, by whom, until when."""
        return self._operations.explain(key)

    def dead_letters(self, key: Key | None = None, limit: int = 100) -> list[DeadLetter]:
        """Dead letters of one key, or of all, seq ascending within a key.

        Raises:
            InvalidArgument: limit is not 1..100,000.
        """
        return self._operations.dead_letters(key, limit)

    def history(self, *, shard: int = 0, after: int = 0, key: Key | None = None, limit: int = 1000) -> list[HistoryRecord]:
        """Records of finished messages of one shard, in the order in which they ended, where the queue's `history` keeps them.

        To read on, give the last record's `n` as `after`; to read everything, do so for each shard.

        Args:
            shard: 0 to `shards` - 1; not looked at where a key is given.
            after: only records with a larger n.
            key: only this key's, of its shard; looks at every record from `after` on.
        Returns:
            0..limit records, n ascending; an empty list where there are no more. Of large bodies there are about 32 MiB in one
            list, so it may be shorter than limit although there are more.
        Raises:
            InvalidArgument: no such shard, or limit is not 1..100,000.
        Source: docs/howto/history.md
        """
        return self._operations.history(shard, after, key, limit)

    def consumers(self) -> list[ConsumerStatus]:
        """The named consumers: those whose hand-outs are recorded, such as streams of Spark.

        Source: docs/explanation/spark.md
        """
        return self._operations.consumers()

    # ---- operating

    def reject(self, key: Key, seq: int, reason: str) -> bool:
        """Dead-letter one unresolved message: a message that kills whoever processes it, say.

        Where a hand-out of a named consumer holds it, that hand-out is read without it from now on.

        Returns:
            Whether it was unresolved; if not, nothing changed.
        Raises:
            UnknownMessage: that seq was never issued for that key.
            InvalidArgument: a consumer with a timed lease holds it; nothing changed.
        """
        return self._operations.reject(key, seq, reason)

    def release_consumer(self, name: str, *, force: bool = False) -> int:
        """Give back what a named consumer holds: its open hand-outs end, and their messages are ready for anybody.

        A query that had seen such a hand-out can't go on from its checkpoint, and is told so: start it with a new one.

        Args:
            force: although the consumer has a holder that is alive. It is fenced: its next write raises ConsumerLost.
        Returns:
            How many messages were given back.
        Raises:
            ConsumerBusy: it has such a holder; nothing changed.
        """
        return self._operations.release_consumer(name, force=force)

    def redrive(self, key: Key | None = None, seqs: Iterable[int] | None = None) -> int:
        """Put dead letters back in their lane at their original seq, ahead of everything later: attempts 0, no TTL.

        Where a lease holds the lane, they come back when it ends.

        Args:
            key: whose; None: everybody's.
            seqs: which of the key's; None: all of them.
        Returns:
            How many were put back, or will be.
        Raises:
            InvalidArgument: seqs without a key.
        """
        return self._operations.redrive(key, seqs)

    def hold(self, key: Key, reason: str | None = None) -> None:
        """Hand out nothing more of this key until `release`; a lease that is live may finish."""
        self._operations.hold(key, reason)

    def release(self, key: Key | None) -> bool:
        """End a hold, and the retry delay of what a poison policy held; its messages' attempts start again from 0.

        Args:
            key: which; None: all keyless messages that a poison policy holds.
        Returns:
            Whether anything was held.
        """
        return self._operations.release(key)

    def purge(self, key: Key | None = None, *, dead: bool = False, history: bool = False) -> int:
        """Remove the unresolved messages of a key, or of the whole queue, and the dedup ids of those keys.

        Dead letters whose redrive waits for the end of a lease are removed with them. Messages in flight stay with their
        holder. Seqs go on: none is issued twice. In steps of 1,000 messages, so that others can write in between.

        Args:
            dead: the dead letters, too.
            history: the records of finished messages, too; of what is purged now as well. Alone: `purge_history`.
        Returns:
            How many messages and dead letters were removed.
        """
        return self._operations.purge(key, dead=dead, history=history)

    def purge_history(self, key: Key | None = None) -> int:
        """Remove the records of a key's finished messages, or of the whole queue's, and nothing else. In steps.

        Those that are there when a shard's turn comes: what ends meanwhile is kept. Numbers of records go on.

        Returns:
            How many records were removed.
        Source: docs/howto/history.md
        """
        return self._operations.purge_history(key)

    # ---- replication

    def configure_replication(
        self,
        target: str | os.PathLike[str],
        mode: Literal["async"] = "async",
        *,
        interval_seconds: float = 1.0,
        max_lag_bytes: int = 1 << 30,
        keep_seconds: float = 86_400.0,
        key_file: str | os.PathLike[str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        authority: str | os.PathLike[str] | None = None,
        plaintext: bool = False,
    ) -> ReplicationStatus:
        """Ship every change to a target from now on, from which `strictq.restore` makes the queue again.

        Stored with the queue: one of the processes that have it open ships, and another one takes over when that ends. What
        was committed after the last segment is lost with the disk of the queue: see `ReplicationStatus.lag_seconds`.

        Args:
            target: a directory on another disk or a share that is mounted, "file:/mnt/backup/orders" or a path; or a place in an
                object store, "s3://bucket/orders" (extra `remote`). Empty, missing, or this queue's own replica. Or a living
                replica on another host, which `strictq.Replica` or `strictq replica` receives for: "tcps://host:7400", or
                "tcp://" without TLS.
            mode: "async": no call waits for the target.
            interval_seconds: between two segments; 0.01 at least.
            max_lag_bytes: while the target is out of reach, changes are kept in the WALs up to this size, at least 1 MiB. Beyond
                it they are not kept, and what the target lacks is shipped as whole shards later.
            keep_seconds: how far back a restore to a point in time can go.
            key_file: a file with a secret of 16 bytes or more, which every process that ships can read. Segments are hashed with
                it, so that whoever can write to the target can't make one up. They are not encrypted.
            token_file: for a replica on another host: a file with its token, which every process that ships can read.
            authority: for tcps://: a PEM file with certificates that vouch for the replica's; None: those the system trusts.
            plaintext: for tcp:// to another host than this one: token and messages may cross that network in the clear.
        Returns:
            How far it is: shipping has begun, not ended.
        Raises:
            InvalidArgument, ConfigError: nothing changed.
            MissingExtra: it needs the extra `remote`; nothing changed.
            Diverged: the target is the replica of another queue, or of another history of this one; nothing changed.
            Fenced: it is a replica that was promoted; nothing changed.
            TargetUnavailable: it can't be read or written; nothing changed.
        Source: docs/howto/replication.md
        """
        return self._operations.configure_replication(
            target, mode, interval_seconds=interval_seconds, max_lag_bytes=max_lag_bytes, keep_seconds=keep_seconds,
            key_file=key_file, token_file=token_file, authority=authority, plaintext=plaintext,
        )  # fmt: skip

    def detach(self) -> bool:
        """Ship the queue no longer. Its replica stays as it is. Returns whether the queue was shipped."""
        return self._operations.detach()

    def replication(self) -> ReplicationStatus | None:
        """How far the replica is; None: the queue was never replicated."""
        return self._operations.replication()

    def check(self, fix: bool = False) -> list[Problem]:
        """Read everything and report each broken invariant; an empty list if all is well.

        Args:
            fix: put right what can be put right without losing anything.
        Returns:
            What was found; docs/explanation/storage.md says what each rule means.
        Raises:
            StoreError: no file descriptor is left to read with; transient.
        """
        return self._operations.check(fix=fix)

    # ---- configuration and the program's tables

    def configure(self, **changes: Any) -> QueueConfig:
        """Change settings. They are stored; every process sees them at its next write.

        Returns:
            The configuration now.
        Raises:
            ConfigError: an unknown setting, or one that is out of range or contradicts another; nothing changed.
            InvalidArgument: this is inside a transaction of the queue; nothing changed.
            StoreError: it is stored, but a shard could not be reached: it has its copy with this object's next write there.
        """
        return self._operations.configure(changes)

    def reset_estimates(self) -> None:
        """Forget what workers learned of durations. Workers at work forget it, too, when they next store theirs."""
        self._operations.set_estimates(None)

    def app_schema(self, sql: str) -> None:
        """Create the program's own tables, in every shard, future ones too. The same text a second time does nothing.

        Args:
            sql: statements on tables, indexes and views whose names start with app_.
        Raises:
            InvalidArgument: the SQL is wrong, or touches anything else; nothing changed.
        """
        self._operations.app_schema(sql)

    def query(self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, key: Key | None = None) -> Rows:
        """Read the program's app_* tables: over all shards, or in the shard of one key.

        Each shard is asked by itself: sums and order over shards are the caller's.

        Returns:
            The rows, as tuples; `.columns` has the columns' names where there are rows.
        Raises:
            InvalidArgument: the SQL is wrong, writes, touches anything else, or takes too long.
            PartialFailure: shards could not be read; results has the rows, or the error, of each.
        """
        return self._operations.query(sql, params, key)
