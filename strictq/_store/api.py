"""The only interface of the store: typed calls with plain values in and out.

No module above this one knows a table, a column, a lane's id, a connection or a `Tx`. The implementation is in the folders
beside it. The values that calls take and return are exported here, so that callers import this module alone.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import apsw

from .. import _files as files
from .._clock import Clock
from .._config import QueueConfig
from .._errors import LeaseLost, StoreError
from .._observe import Observers
from .._stats import ReplicationStatus, Stats
from . import catalog, operating, receive, survey, waiting
from .bulk.applied import Applied, Size, StreamBatch, Token
from .bulk.bulk import Bulk
from .bulk.columns import BlockSize, ListedColumns, MessageRange, leased_columns
from .bulk.insert import BulkRows, PlainRows
from .bulk.staging import Staging, new_file, new_run
from .catalog import Fork, Replication
from .commit.app_database import AppDatabase, Rows
from .commit.calls import OpenTransaction, TransactionName, bound
from .commit.connection import MEMORY, require_sound_sqlite
from .directories import (
    adopt,
    become_queue,
    held_alone,
    is_marked_replica,
    mark_replica,
    migrate,
    page_files,
    publish,
    put_in_service,
    rebuild,
    replication_of,
    salvage,
)
from .disk import checksums, layout
from .disk.shared_flags import NAME_BITS, POLL_SECONDS
from .handouts import Allowance, Handouts, Holding, Want
from .holders import ProcessHold
from .holders import share as share_holder
from .receive import Joined
from .shard import operating as steps
from .shard import settling
from .shard.columns import PackedColumns
from .shard.failures import AttemptFailure
from .shard.handout import Block, Encode, Known, Part
from .shard.headers import headers as decode_headers
from .shard.leases import Claimed, Fields, Held, Lost, Request, Row, Settlement, Took
from .shard.messages import Item, Options, Sent, require_valid
from .shard.settling import Ack, AckClaimed, Advance
from .shipping import status as ship_status
from .shipping.confirming import Rounds
from .shipping.shipping import Ships
from .shipping.status import ShipProgress, ShipStatus
from .shipping.values import PAGE_BYTES, ChangedFile, Image, Position, QueueCut, WalMovedOn, WentBack
from .store import Hook, ReplicaLook, Store
from .topology import SHARDS_MAX
from .transaction import Acks, Changes, Committed, Placed, Statement, WriteTransaction, transact
from .waiting import Patience
from .worker_reports import Notice, PrivateNotice, R

if TYPE_CHECKING:
    from .._findings import (
        AttemptError,
        DeadLetter,
        Explanation,
        HistoryRecord,
        KeyDepth,
        MessageStatus,
        PeekedMessage,
        Problem,
    )
    from .merging import Arriving, Merging
    from .shard.merging import Listed
    from .shipping.capture import Capture
    from .shipping.rebuild import PageFiles, Rebuild

Durability = Literal["full", "process"]

require_sound_sqlite(apsw.sqlite_lib_version())


@contextmanager
def without_checksums() -> Iterator[None]:
    """Create queues without page checksums within the block, only to measure what checksums cost.

    Applies to all threads. In the block no connection requires checksums. After it, a queue made in it is refused.
    """
    lay_out, require = checksums.lay_out, checksums.require
    checksums.lay_out, checksums.require = lambda *_, **__: None, lambda *_, **__: None
    try:
        yield
    finally:
        checksums.lay_out, checksums.require = lay_out, require


_NOTHING: Final = nullcontext()


class SqliteSettings(NamedTuple):
    """The durability settings of SQLite, as a connection reports them."""

    synchronous: int
    journal_mode: str


class QueueFacts(NamedTuple):
    """What a queue's directory says, regardless of the state of its shards."""

    queue_id: str
    config: QueueConfig
    replication: Replication | None


class Storage:
    """The messages of one queue, in its files or in memory, as one object of this process has them open."""

    __slots__ = ("_store", "bulk", "handouts")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.bulk = Bulk(store)
        self.handouts = Handouts(store)

    # ---- opening and closing

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        shards: int | None,
        durability: Durability | None,
        config: QueueConfig | None,
        create: bool,
        read_only: bool,
        clock: Clock,
        hook: Hook | None,
        on_mismatch: Literal["warn", "error", "update"] = "error",
        look: ReplicaLook | None = None,
    ) -> Storage:
        """Open or create the queue in a directory. What was given must agree with what is stored.

        Args:
            on_mismatch: what to do if `config` differs from the stored one; see `strictq.open`.
            look: a view of a living replica, see `Store.open`.
        """
        return cls(
            Store.open(
                path, shards=shards, durability=durability, config=config, create=create, read_only=read_only, clock=clock,
                hook=hook, on_mismatch=on_mismatch, look=look,
            )
        )  # fmt: skip

    @classmethod
    def in_memory(
        cls,
        *,
        shards: int | None,
        durability: Durability | None,
        config: QueueConfig | None,
        clock: Clock,
        hook: Hook | None,
    ) -> Storage:
        """Create a queue with nothing on disk, private to this object."""
        return cls(Store.in_memory(shards=shards, durability=durability, config=config, clock=clock, hook=hook))

    def close(self) -> None:
        """Close every file. Leases stay. See `Queue.close`."""
        self._store.close()

    def die(self) -> None:
        """Close every file as the end of the process would: an open transaction is rolled back."""
        self._store.die()

    def require_open(self, *, writing: bool = True, inside: bool = False) -> None:
        """Refuse a call that this object can't serve here.

        Args:
            writing: the call writes.
            inside: the call is permitted inside a transaction of this context.
        Raises:
            QueueClosed, ForkedProcess, ReadOnlyQueue, InvalidArgument: nothing changed.
        """
        self._store.require_open(writing=writing, inside=inside)

    # ---- identity, settings and time

    @staticmethod
    def facts(path: Path, *, read_only: bool = False, older: bool = False) -> QueueFacts | None:
        """Return the facts about the queue at a path, unopened. None: there is none. If `older`, also of one to be migrated.

        Raises:
            InvalidArgument, QueueNotFound: the path holds something else, or the directory is world-writable.
            StoreCorrupt, SchemaMismatch: it can't be read; nothing changed.
        """
        if not layout.find(path):
            return None
        known = catalog.read(path, read_only=read_only, older=older)
        return QueueFacts(known.queue_id, known.config, known.replication)

    @property
    def skew(self) -> int:
        """The difference between microseconds since 1970 and a message's times."""
        return self._store.time.skew()

    @property
    def queue_id(self) -> str:
        return self._store.catalog.queue_id

    @property
    def directory(self) -> Path | None:
        """The directory of the files. None: in memory."""
        return self._store.directory

    @property
    def closed(self) -> bool:
        return self._store.closed

    @property
    def shards(self) -> int:
        """The number of shards. They are numbered from 0."""
        return len(self._store.shards)

    @property
    def durability(self) -> Durability:
        """The durability of this object's commits."""
        return self._store.catalog.durability

    @property
    def config(self) -> QueueConfig:
        """The settings, as this process last saw them."""
        return self._store.settings[0]

    @property
    def sqlite_settings(self) -> SqliteSettings:
        """The settings of the connection that writes to the first shard. The others have the same."""
        return self._store.shards[0]._writer.use(
            lambda db: SqliteSettings(int(db.pragma("synchronous")), str(db.pragma("journal_mode")))
        )

    @property
    def checkpointing(self) -> bool:
        """Whether this object's own thread has a WAL to checkpoint, or is checkpointing one."""
        return bool(self._store._upkeep._grown)

    def refresh_settings(self) -> bool:
        """Read the newest settings, and where the queue ships to. Return whether anything changed."""
        return self._store.refresh_settings()

    @property
    def clock(self) -> Clock:
        """The clocks of the machine, or a test's."""
        return self._store.clock

    def configure(self, changes: dict[str, Any]) -> QueueConfig:
        """Store changed settings and give every shard its copy. See `Queue.configure`."""
        return self._store.configure(changes)

    def now(self) -> int:
        """Return the queue time in microseconds, on which leases and delays are based."""
        return self._store.now()

    def to_wall(self, at: int) -> float:
        """Return a queue time as seconds since 1970."""
        return self._store.time.to_wall(at)

    @property
    def observers(self) -> Observers:
        """The observers of this object."""
        return self._store.observers

    # ---- sending

    def shard_of(self, key: bytes) -> int:
        """Return the shard that a stored key belongs to."""
        return self._store.shard_of(key).number

    def send(self, shard: int, items: Sequence[Item], checked: QueueConfig) -> Sequence[Sent]:
        """Append messages to one shard, in order. All of them are appended, or none.

        Args:
            checked: the settings that they were validated against.
        Raises:
            QueueFull, StoreFull, StoreError: nothing changed.
            InvalidArgument, MessageTooLarge: newer settings refuse one of them; nothing changed.
            OutcomeUnknown: it may have happened.
        """
        return self._store.send(self._store.shards[shard], items, checked)

    def confirmed_together(self) -> AbstractContextManager[None]:
        """Confirm the calls of the block once, at its end, instead of each separately. Only in confirmed mode.

        Raises:
            NotConfirmed: at the end of the block. The effects of its calls are committed here.
        """
        confirming = self._store.confirming
        return confirming.together() if confirming.active else _NOTHING

    def send_one(self, item: Item, checked: QueueConfig) -> tuple[int, Sent]:
        """Append one message, in fewer steps. Return its shard and its place. Raises as `require_open` and `send`."""
        return self._store.send_one(item, checked)

    # ---- receiving, and waiting for messages

    def receive(self, request: Request, into: list[Claimed], *, wait_for_busy: bool, joined: Joined | None = None) -> int | None:
        """Lease what is ready now, shard by shard. Durable on return.

        If there are several shards, those that other calls are writing to are skipped, and so are quarantined ones.

        Args:
            into: an empty list for the leases. A caller that is interrupted before it has the result releases those in the list.
            wait_for_busy: if the other shards have nothing, wait for the skipped ones.
            joined: acks to commit with the leases. What remains in its `work` was not committed, or is not known to be.
        Returns:
            The latest queue time at which something becomes ready by itself. None: never.
        Raises:
            StoreError, PartialFailure: nothing was leased, because shards failed.
        """
        return receive.receive(self._store, request, into, wait_for_busy=wait_for_busy, joined=joined)

    def more(self, shard: int, held: Held, seq: int, limit: int) -> list[Row]:
        """Extend a lease over up to `limit` later messages of its lane, under the same token. Return them, seq ascending.

        Args:
            seq: of a message that the lease holds or held.
        Raises:
            LeaseLost, StoreError: nothing changed.
        """
        return receive.more(self._store.shards[shard], held, seq, limit)

    def failures(self, keys: Sequence[bytes] | None) -> list[StoreError | None]:
        """Return why each shard that a receive of these keys (None: of any) reads is quarantined. None for each that serves."""
        return receive.failures(self._store, keys)

    def arrivals(self, shard: int) -> int:
        """Return a number that changes with every arrival in the shard. Takes no lock."""
        return self._store.shards[shard].newest()

    def hold_with_process(self) -> ProcessHold | None:
        """Return where a worker notes its leases, which then end with its process, until `end` is called. None: in memory."""
        return self._store.hold_with_process()

    @property
    def holder(self) -> ProcessHold | None:
        """This process's notes of its workers' claims."""
        return self._store.holder()

    def notice(self, kind: type[R]) -> Notice[R] | PrivateNotice[R]:
        """Return where a worker reports this about itself. Nothing is shown yet."""
        return self._store.notice(kind)

    def count_waiting(self, seconds: float) -> None:
        """Count a consumer's wait for messages."""
        self._store.count_waiting(seconds)

    def soonest(self) -> int | None:
        """Return the queue time at which something becomes ready by itself. None: never. Reads every lease."""
        return self._store.soonest()

    def patience(self, wait: int | None) -> Patience:
        """Begin the wait of a receive.

        Args:
            wait: microseconds; None: for ever.
        """
        return Patience(self._store, wait)

    def look_again(self, soonest: int | None) -> float:
        """Return the seconds after which a waiting receive looks again, if a message becomes ready at queue time `soonest`."""
        return waiting.look_again(self._store, soonest)

    def seen(self) -> tuple[int, int]:
        """Return a state that changes when something becomes ready in any process. Take it before a receive, for `wait`."""
        return self._store.waker.seen()

    def wait(self, seen: tuple[int, int], seconds: float, *, idle: bool = False) -> None:
        """Wait until something becomes ready after `seen`, or until the time is over.

        Args:
            idle: the caller would take any message: see `show_idle`.
        """
        self._store.waker.wait(seen, seconds, idle=idle)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever something of this process becomes ready, from any thread, until `unlisten`."""
        self._store.waker.listen(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._store.waker.unlisten(listener)

    def show_idle(self, name: int | None = None) -> None:
        """Show consumers with surplus messages that this one has none. Must be repeated while that is so.

        Args:
            name: NAME_BITS random bits. None: a consumer that holds nothing when it shows itself.
        """
        self._store.waker.show_idle(name)

    def is_another_idle(self, name: int) -> bool:
        """Return whether a consumer other than `name` has no messages, in this or another process."""
        return self._store.waker.somebody_idle(name)

    # ---- settling deliveries: each call takes settlements of one shard, and returns a result for each of them
    #
    # A settlement refused with LeaseLost changed nothing; the others take effect. A StoreError means that nothing changed, except
    # OutcomeUnknown: repeating that call then returns the same as if it were the first.

    def ack(self, shard: int, batches: Sequence[Settlement]) -> list[Lost]:
        """Ack messages. Return the refused seqs of each settlement."""
        part = self._store.shards[shard]
        if (fast := part.fast) is None or (done := fast.ack(batches)) is None:
            return part.drain(Ack(batches))
        part.keep_wal_short()
        return done

    def ack_one(self, shard: int, held: Held, seq: int) -> bool:
        """Ack the only message that a lease holds, in fewer steps. Return False if nothing was done and `ack` must do it."""
        part = self._store.shards[shard]
        if (fast := part.fast) is None or not fast.ack_one(held.key, held.token, seq):
            return False
        part.keep_wal_short()
        return True

    def ack_claimed(self, claimed: Claimed) -> list[Lost]:
        """Ack everything that a claim leased. Return the refused seqs of each lease; empty if there are none."""
        part = self._store.shards[claimed.shard]
        if (fast := part.fast) is None or not fast.ack_claimed(claimed):
            return part.drain(AckClaimed(claimed))
        part.keep_wal_short()
        return []

    def nack(
        self, shard: int, batches: Sequence[Settlement], delay: int | None, failure: AttemptFailure
    ) -> list[int | LeaseLost | None]:
        """Nack a message of each lease. It and everything later that the lease holds is retried first.

        Args:
            delay: microseconds that the lane waits; None: the queue's retry delay.
            failure: the errors and outputs of the attempts.
        Returns:
            For each: microseconds until the next attempt. None: it was out of attempts, and `on_poison` took effect.
        """
        return self._store.shards[shard].drain(bound(settling.nack, batches, delay, failure))

    def defer(self, shard: int, batches: Sequence[Settlement], delay: int, reason: str | None = None) -> list[LeaseLost | None]:
        """Do the same without charging an attempt. The reason is stored as the last error; None: that is kept."""
        return self._store.shards[shard].drain(bound(settling.defer, batches, delay, reason))

    def defer_failed(
        self, shard: int, batches: Sequence[Settlement], delay: int, failed: Sequence[AttemptFailure], *, began: bool
    ) -> list[LeaseLost | None]:
        """Do the same for messages that failed through no fault of their own, with what each attempt left.

        With `began` False, their handlers were not called: the error says why they wait.
        """
        return self._store.shards[shard].drain(bound(settling.defer_failed, batches, delay, failed, began))

    def reject(self, shard: int, batches: Sequence[Settlement], failure: AttemptFailure) -> list[LeaseLost | None]:
        """Dead-letter a message of each lease with this error. The lane continues with the next message."""
        return self._store.shards[shard].drain(bound(settling.reject, batches, failure))

    def note(self, shard: int, batches: Sequence[Settlement], said: Sequence[str]) -> list[LeaseLost | None]:
        """Store the output of a message's handler so far, for a message of each lease."""
        return self._store.shards[shard].drain(bound(settling.note, batches, said))

    def start(self, shard: int, batches: Sequence[Settlement]) -> list[LeaseLost | None]:
        """Charge the attempt of a message of each lease: its handler starts now."""
        return self._store.shards[shard].drain(bound(settling.start, batches))

    def advance(
        self,
        shard: int,
        acks: Sequence[Settlement],
        starting: Sequence[Settlement],
        arrivals: Sequence[int],
    ) -> dict[Settlement, LeaseLost]:
        """Ack one message each of many leases, start the next ones, and start others.

        Starts alone are not synced, as receives are not: a power cut may lose them.

        Args:
            acks: one message of each lease; `Settlement.start` is the message that starts with it.
            starting: starts. No lease occurs twice in both.
            arrivals: the arrival numbers of the messages of `starting`.
        Returns:
            What was refused.
        """
        work, part = Advance(acks, starting), self._store.shards[shard]
        return part.drain(work) if acks else part.lease(work, lambda _refused: arrivals)

    def extend(self, shard: int, batches: Sequence[Settlement], length: int) -> list[int | LeaseLost]:
        """Move the deadline of each lease to `length` microseconds from now. Return the new deadlines, in queue time."""
        return self._store.shards[shard].drain(bound(settling.extend, batches, length), synced=False)

    def release(self, shard: int, batches: Sequence[Settlement]) -> list[LeaseLost | None]:
        """Release a message of each lease, and everything later that it holds, unused."""
        return self._store.shards[shard].drain(bound(settling.release, batches), synced=False)

    def key_state(self, key: bytes) -> bytes | None:
        """Return the committed state of a key."""
        return survey.key_state(self._store, key)

    def errors(self, shard: int, key: bytes, seq: int) -> tuple[AttemptError, ...]:
        """Return the errors of an unresolved message's attempts, oldest first."""
        # The shard is given, because a parked keyless message has a key of its own, whose hash may be another shard's.
        return survey.errors(self._store, shard, key, seq)

    # ---- transactions

    def enter_transaction(self) -> OpenTransaction:
        """Return a transaction of this context. Its other writes are refused while it is open."""
        return OpenTransaction(self._store)

    def transact(self, key: bytes, acks: Acks | None, changes: Changes) -> Committed:
        """Commit acks, sends, a key's state and the program's SQL together, in the shard of a key. Durable on return.

        If it committed before, under the same token, nothing is written, and the ids of the sends are None. Sends to other
        shards are in the outbox: see `forward`.

        Args:
            key: selects the key state, and the shard's app_* tables. With acks, it is the lease's key.
            acks: what to ack. None: nothing, and then a repetition can't be recognised.
        Raises:
            LeaseLost: the lane was given back or retaken; nothing happened.
            InvalidArgument: an earlier message of the lease is unresolved, or the SQL is wrong; nothing happened.
            StoreBusy, StoreFull, StoreError: nothing happened.
            OutcomeUnknown: it may have happened; the same acks again happen once.
        """
        return transact(self._store, key, acks, changes)

    def begin(self, key: bytes, acks: Acks | None) -> WriteTransaction:
        """Return such a transaction, to read in it once it begins. No other caller can write to the shard until it ends."""
        return WriteTransaction(self._store, key, acks)

    def forward(self, origin: int) -> None:
        """Forward what this shard's transactions sent to other shards.

        Raises:
            ForwardPending: some of it could not be forwarded now. It will be forwarded later.
        """
        with self.confirmed_together():
            self._store.forward([self._store.shards[origin]])

    # ---- reports

    def stats(self) -> Stats:
        """Return counts of the queue and of each shard, one consistent read per shard. An unreadable shard counts as 0."""
        return survey.stats(self._store)

    def top_keys(self, n: int, by: Literal["depth", "age"]) -> list[KeyDepth]:
        """Return the n deepest keys, or those with the oldest messages. Reads every key that has messages."""
        return survey.top_keys(self._store, n, by)

    def peek(self, key: bytes | None, limit: int, seq: int = 0) -> list[PeekedMessage]:
        """Return the first unresolved messages of a key from a seq on, in order. None: the oldest ones of all keys."""
        return survey.peek(self._store, key, limit, seq)

    def peek_keyless(self, shard: int, arrival: int) -> list[PeekedMessage]:
        """Return the unresolved keyless message with this arrival number, if there is one."""
        return survey.peek_keyless(self._store, shard, arrival)

    def status_of_keyless(self, shard: int, arrival: int) -> MessageStatus | None:
        """Return the status of the keyless message with this arrival number. None: it is resolved, or has a key."""
        return survey.status_of_keyless(self._store, shard, arrival)

    def status(self, key: bytes, seq: int) -> MessageStatus:
        """Return the status of one message.

        Raises:
            UnknownMessage: that seq was never issued for that key.
        """
        return survey.status(self._store, key, seq)

    def explain(self, key: bytes) -> Explanation:
        """Return why a key is, or is not, delivered now."""
        return survey.explain(self._store, key)

    def dead_letters(self, key: bytes | None, limit: int) -> list[DeadLetter]:
        """Return dead letters of one key, or of all, seq ascending within a key."""
        return survey.dead_letters(self._store, key, limit)

    def history(self, shard: int, after: int, key: bytes | None, limit: int) -> list[HistoryRecord]:
        """Return records of finished messages with a number above `after`, ascending: of a shard, or of one key in any shard.

        Returns:
            Fewer than there are, if their bodies are too large for one list. An empty list if there are no more.
        """
        number = shard if key is None else self._store.shard_of(key).number
        return survey.records(self._store, number, after, key, limit)

    def history_end(self, shard: int) -> int:
        """Return the last record number that this shard ever issued. All records up to it survive a power cut on return."""
        return survey.records_end(self._store, shard)

    # ---- operating

    def hold(self, key: bytes, reason: str) -> None:
        """Stop deliveries of this key until `end_hold`."""
        self._store.shard_of(key).run(lambda tx: steps.hold(tx, key, reason))

    def end_hold(self, key: bytes | None) -> bool:
        """End the hold of a key. None: of every keyless message, in steps. Return whether anything was held."""
        if key is None:
            return operating.release_keyless(self._store) > 0
        return self._store.shard_of(key).run(lambda tx: steps.release(tx, key))

    def settle(self, key: bytes, seq: int, reason: str | None, *, force: bool) -> bool:
        """Dead-letter an unresolved message for this reason, or ack it if there is none. Return whether it was unresolved.

        Raises:
            UnknownMessage: that seq was never issued for that key.
            InvalidArgument: a consumer with a timed lease holds it, and `force` does not end that; nothing changed.
        """
        return self._store.shard_of(key).drain(lambda tx: steps.settle_one(tx, key, seq, reason, force=force))

    def redrive(self, key: bytes | None, seqs: Sequence[int] | None) -> int:
        """Redrive dead letters of one key (those with these seqs, or all) or of all keys, in steps. Return their number."""
        return operating.redrive(self._store, key, seqs)

    def purge(self, key: bytes | None, *, dead: bool, records: bool = False) -> int:
        """Remove unresolved messages that are not in flight, and dedup ids, of a key or of all, in steps.

        Args:
            dead: remove dead letters, too.
            records: and the records of finished messages.
        Returns:
            The number of removed messages and dead letters.
        Raises:
            StoreError: nothing happened.
            OutcomeUnknown: it may have happened, or a part of it; a repetition does the rest. So for each call in steps.
        """
        return operating.purge(self._store, key, dead=dead, records=records)

    def forget_history(self, key: bytes | None = None, *, shard: int | None = None, upto: int | None = None) -> int:
        """Remove the present records of finished messages, in steps. Return their number.

        Args:
            key: remove only this key's.
            shard, upto: remove only this shard's, with a number up to this one.
        """
        return operating.forget_history(self._store, key, shard, upto)

    # ---- replication

    @property
    def merging(self) -> Merging:
        """What a merge with another history of the queue needs of it."""
        from .merging import Merging

        return Merging(self._store)

    @property
    def replication(self) -> Replication | None:
        """Where the queue ships to, as this process last saw it. None: it was never replicated."""
        return self._store.replication

    def set_replication(self, replication: Replication) -> None:
        """Store where the queue ships to, for every process. See `Queue.configure_replication`."""
        self._store.set_replication(replication)

    def replication_status(self) -> ReplicationStatus | None:
        """Return the status of the replica. None: the queue was never replicated."""
        return survey.replication(self._store)

    def ship_with(self, start: Callable[[Storage], Ships | None]) -> None:
        """Set the function that starts the shipper. It is called now or later, whenever no other process ships.

        Args:
            start: returns None if another process ships, or shipping has stopped.
        """
        reference = self.ship_reference()

        def begin() -> Ships | None:
            found = reference()
            return None if found is None else start(found)

        self._store.shipping.start_with(begin)

    def ship(self) -> None:
        """Start the shipper here, unless another process ships."""
        self._store.shipping.tend()

    def stop_shipping(self, *, flush: bool) -> None:
        """Stop this process's shipper. flush: ship a last round first."""
        self._store.shipping.stop(flush=flush)

    def capture(self) -> Capture:
        """Begin to capture changes of the queue's files. The caller holds the lock of `ship_lock`."""
        from .shipping.capture import Capture

        assert self._store.directory is not None
        return Capture(self._store.directory, self._store.clock, self._store.suspect)

    def ship_lock(self) -> files.Lock:
        """Return the lock for the shipping process. It is not acquired yet."""
        assert self._store.directory is not None
        return ship_status.lock(self._store.directory)

    def ship_reference(self) -> Callable[[], Storage | None]:
        """Return a weak reference to this object, for a thread that must not keep it alive. It returns None when that is gone."""
        store = weakref.ref(self._store)

        def found() -> Storage | None:
            there = store()
            return None if there is None else Storage(there)

        return found

    def rounds(self) -> Rounds | None:
        """Return the shipper's counter of rounds, for calls that wait in confirmed mode. None: in async mode."""
        known = self._store.replication
        return self._store.confirming.rounds(known) if known is not None and known.mode == "confirmed" else None

    @property
    def short_of_space(self) -> bool:
        """Whether the disk is full, as far as any process reported."""
        return self._store.short_of_space or (self._store.directory is not None and self._store.waker.short_of_space)

    def checkpoint(self) -> None:
        """Checkpoint every WAL, unless it is kept for the shipper."""
        for shard in self._store.healthy():
            shard.checkpoint()

    def end_failure_delays(self, keys: Sequence[bytes] | None, *, one: bool) -> int:
        """End the failure delays of these keys, or of all, in steps: with `one`, one per shard at most. Return their number."""
        return operating.end_failure_delays(self._store, keys, one=one)

    def interrupt(self) -> None:
        """End the long reads that run now, such as those of a check in another thread, with a StoreError."""
        for shard in self._store.shards:
            shard.interrupt()

    def check(self, *, fix: bool) -> list[Problem]:
        """Return every broken invariant of the queue and of each shard.

        Args:
            fix: repair what can be repaired without a loss.
        Raises:
            StoreError: no file descriptor is left to read with; transient.
        """
        with files.late():
            from .check import check_queue

        return check_queue(self._store, fix=fix)

    def estimates(self) -> dict[str, str]:
        """Return the models of durations that workers learned, by stage."""
        return self._store.estimates()

    def set_estimates(self, models: dict[str, str] | None) -> None:
        """Store the models of these stages. None deletes the models of all stages."""
        self._store.set_estimates(models)

    # ---- the program's own tables

    def define_app_schema(self, sql: str) -> None:
        """Create the program's own tables in every shard, including future ones. A repetition of the same text does nothing.

        Raises:
            InvalidArgument: the SQL is wrong, or touches anything else than app_* tables; nothing changed.
        """
        self._store.define_app_schema(sql)

    def query(self, sql: str, params: Sequence[Any] | dict[str, Any], key: bytes | None) -> Rows:
        """Read the program's own tables of every shard, or of one key's.

        Raises:
            InvalidArgument: the SQL is wrong, writes, touches anything else, or takes too long.
            PartialFailure: shards could not be read; results has the rows, or the error, of each.
        """
        return survey.query(self._store, sql, params, key)

    # ---- batches of named consumers, and bulk reads and writes


__all__ = [
    "MEMORY", "NAME_BITS", "PAGE_BYTES", "POLL_SECONDS", "SHARDS_MAX", "Acks", "Allowance", "AppDatabase", "Applied",
    "Arriving", "AttemptFailure", "Block", "BlockSize", "Bulk", "BulkRows", "Capture", "ChangedFile", "Changes", "Claimed",
    "Committed", "Durability", "Encode", "Fields", "Fork", "Held", "Holding", "Hook", "Image", "Item", "Joined", "Known",
    "Listed", "ListedColumns", "Lost", "MessageRange", "OpenTransaction", "Options", "PackedColumns", "PageFiles", "Part",
    "Patience", "Placed", "PlainRows", "Position", "ProcessHold", "QueueCut", "QueueFacts", "Rebuild",
    "ReplicaLook", "Replication", "Request", "Rounds", "Row", "Rows", "Sent", "Settlement", "ShipProgress", "ShipStatus",
    "Ships", "Size", "Staging", "Statement", "Storage", "StreamBatch", "Token", "Took", "TransactionName", "WalMovedOn", "Want",
    "WentBack", "WriteTransaction", "adopt", "become_queue", "decode_headers", "held_alone", "is_marked_replica",
    "leased_columns", "mark_replica", "migrate", "new_file", "new_run", "page_files", "publish", "put_in_service", "rebuild",
    "replication_of", "require_valid", "salvage", "share_holder",
]  # fmt: skip
