"""The only interface of the store: typed calls with plain values in and out.

No module above this one knows a table, a column, a lane's id, a connection or a `Tx`. The implementation is in the folders
beside it. The values that calls take and return are exported here, so that callers import this module alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import apsw

from .._platform import files
from .._platform.clock import Clock
from .._platform.declared_once import same_arguments
from .._platform.observe import Observers
from .._values.config import QueueConfig
from .._values.errors import LeaseLost, StoreError
from .._values.tenants import TenantRules
from .bulk.applied import Applied, BulkRows, PlainRows, Size, StreamBatch, Token
from .bulk.bulk import Bulk
from .bulk.columns import BlockSize, ListedColumns, MessageRange, leased_columns
from .bulk.staging import Staging, new_file, new_run
from .catalog import queue_db
from .catalog.contents import Fork, Replication
from .commit.app_database import AppDatabase, Rows
from .commit.connection import MEMORY, require_sound_sqlite
from .commit.tx import OpenTransaction, TransactionName, bound
from .disk import checksums, layout
from .disk.layout import is_marked_replica, mark_replica, publish
from .disk.locks import held_alone
from .disk.shared_flags import NAME_BITS, POLL_SECONDS
from .disk.topology import HASHES, SHARDS_MAX
from .lane.ranges import Rerouted
from .shard import settling
from .shard.failures import AT_REBOOT, AttemptFailure
from .shard.leases import Claimed, Fields, Held, Lost, PackedColumns, Request, Row, Settlement, Took
from .shard.messages import HEADER_BYTES_FREE, Item, Options, Sent, header_bytes_max, headers_of, require_valid
from .shard.recorded_batches import Block, Encode, Known, Part
from .shard.settling import Advance
from .shard.shard_file import Shard
from .shipping.confirming import Rounds
from .shipping.shipping import Ships
from .shipping.status import ShipProgress, ShipStatus
from .shipping.values import PAGE_BYTES, Image, Position, QueueCut, WalMovedOn, WentBack
from .whole import receive
from .whole.copies import adopt, become_queue, page_files, put_in_service, rebuild, replication_of
from .whole.holders import ProcessHold
from .whole.holders import share as share_holder
from .whole.live_consumers import (
    LOOK_SECONDS,
    NAME_MAX,
    Affinity,
    Description,
    LiveConsumer,
    OnlyConsumer,
)  # fmt: skip
from .whole.moving import Moving
from .whole.operating import Operating
from .whole.receive import Joined, Patience
from .whole.recorded_batches import Allowance, Holding, RecordedBatches, Want
from .whole.replicating import Replicating
from .whole.reports import Reports
from .whole.store import Store
from .whole.transaction import Acks, Changes, Committed, Placed, Statement, Transactions, WriteTransaction
from .whole.worker_reports import Attempt, HandlerSpan, RunningHandlers, WorkerSpans

if TYPE_CHECKING:
    from .._values.findings import (
        Migration,
        Salvaged,
    )
    from .shard.merging_histories import Listed
    from .shipping.capture import Capture
    from .shipping.rebuild import PageFiles, Rebuild
    from .whole.merging_histories import Arriving

T = TypeVar("T")
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


HASH_MAX: Final = HASHES - 1
_NOTHING: Final = nullcontext()


def salvage(path: Path, out: Path, clock: Clock) -> Salvaged:
    """Make a new queue at `out` from the readable part of the one at `path`. See `strictq.salvage`."""
    with files.typed("the queue can't be salvaged"):
        from .salvage.salvage import salvage

        return salvage(path, out, clock)


def migrate(
    path: Path, clock: Clock, *, dry_run: bool, on_progress: Callable[[int, int], None], on_messages: Callable[[int, int], None]
) -> Migration:
    """Bring a queue's files to this version's format. See `strictq.migrate`."""
    with files.typed("the queue can't be migrated"):
        from .whole.upgrade import upgrade

        return upgrade(Path(files.real_path(path)), clock, dry_run=dry_run, on_progress=on_progress, on_messages=on_messages)


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

    __slots__ = (
        "_moving", "_operate", "_reports", "_store", "ack_one", "bulk", "change_settings", "configure", "count_waiting",
        "define_app_schema", "estimates", "hold_with_process", "join", "live", "notice", "receive", "recorded_batches",
        "refresh_settings", "replicating", "require_open", "send_one", "set_estimates", "soonest", "transactions",
        "waker", "watch_workers", "workers_are_watched",
    )  # fmt: skip

    def __init__(self, store: Store) -> None:
        self._store = store
        # What the store does itself is not wrapped.
        self.require_open: Final = store.require_open
        self.send_one: Final = store.send_one
        self.ack_one: Final = store.ack_one
        self.soonest: Final = store.soonest
        self.count_waiting: Final = store.count_waiting
        # Workers and joined loops.
        self.join: Final = store.consumers.join
        self.live: Final = store.consumers.live
        self.notice: Final = store.consumers.notice
        self.watch_workers: Final = store.consumers.watch_workers
        self.workers_are_watched: Final = store.consumers.workers_are_watched
        self.hold_with_process: Final = store.consumers.hold_with_process
        # What all processes share in queue.db.
        self.refresh_settings: Final = store.refresh_settings
        self.configure: Final = store.configure
        self.change_settings: Final = store.change
        self.estimates: Final = store.estimates
        self.set_estimates: Final = store.set_estimates
        self.define_app_schema: Final = store.define_app_schema
        self.receive: Final = partial(receive.receive, store)
        self.waker: Final = store.waker
        self.transactions: Final = Transactions(store)
        self.replicating: Final = Replicating(store)
        self._reports = Reports(store)
        self._operate = Operating(store)
        self._moving = Moving(store)
        self.bulk = Bulk(store)
        self.recorded_batches = RecordedBatches(store)

    @property
    def reports(self) -> Reports:
        """What the queue reports of itself.

        Raises:
            QueueClosed, ForkedProcess: this object can't serve it.
        """
        self.require_open(writing=False)
        return self._reports

    @property
    def operate(self) -> Operating:
        """What operators may change.

        Raises:
            QueueClosed, ForkedProcess, ReadOnlyQueue, InvalidArgument: as for `require_open`.
        """
        self.require_open()
        return self._operate

    @property
    def moving(self) -> Moving:
        """The moves of ranges between shards.

        Raises:
            QueueClosed, ForkedProcess, ReadOnlyQueue, InvalidArgument: as for `require_open`.
        """
        self.require_open()
        return self._moving

    # ---- opening and closing

    @staticmethod
    @same_arguments(Store.open)
    def open(*args: Any, **options: Any) -> Storage:
        """Open or create the queue in a directory. See `Store.open`."""
        return Storage(Store.open(*args, **options))

    @staticmethod
    @same_arguments(Store.in_memory)
    def in_memory(*args: Any, **options: Any) -> Storage:
        """Create a queue with nothing on disk, private to this object."""
        return Storage(Store.in_memory(*args, **options))

    def close(self) -> None:
        """Close every file. Leases stay. See `Queue.close`."""
        self._store.close()

    def die(self) -> None:
        """Close every file as the end of the process would: an open transaction is rolled back."""
        self._store.die()

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
        known = queue_db.read(path, read_only=read_only, older=older)
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

    @property
    def clock(self) -> Clock:
        """The clocks of the machine, or a test's."""
        return self._store.clock

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

    @property
    def tenancy(self) -> TenantRules | None:
        """The limits of tenants. None: the queue has none."""
        return self._store.tenancy

    @property
    def is_throttled(self) -> bool:
        """Whether a receive of this process passed over a tenant with messages until its rate permits more."""
        return any(shard.lanes.memory.order.is_throttled for shard in self._store.shards)

    # ---- sending

    def shard_of(self, key: bytes) -> int:
        """Return the shard that a stored key belongs to."""
        return self._store.shard_of(key).number

    def send(self, shard: int, items: Sequence[Item], checked: QueueConfig, moved: dict[bytes, int]) -> Sequence[Sent]:
        """Append messages to one shard, in order. All of them are appended, or none.

        Args:
            checked: the settings that they were validated against.
            moved: gets the shards of keys whose lanes are in another one.
        Raises:
            QueueFull, StoreFull, StoreError: nothing changed.
            InvalidArgument, MessageTooLarge: newer settings refuse one of them; nothing changed.
            OutcomeUnknown: it may have happened.
        """
        return self._store.send(self._store.shards[shard], items, checked, moved)

    def confirmed_together(self) -> AbstractContextManager[None]:
        """Confirm the calls of the block once, at its end, instead of each separately. Only in confirmed mode.

        Raises:
            NotConfirmed: at the end of the block. The effects of its calls are committed here.
        """
        confirming = self._store.confirming
        return confirming.together() if confirming.active else _NOTHING

    # ---- receiving, and waiting for messages

    def more(self, shard: int, held: Held, seq: int, limit: int) -> list[Row]:
        """Extend a lease over up to `limit` later messages of its lane, under the same token. Return them, seq ascending.

        Args:
            seq: of a message that the lease holds or held.
        Raises:
            LeaseLost, StoreError: nothing changed.
        """
        try:
            return receive.more(self._store.shards[shard], held, seq, limit)
        except Rerouted:
            return self._store.at_owner(held.key, lambda at: receive.more(at, held, seq, limit))

    def failures(self, keys: Sequence[bytes] | None) -> list[StoreError | None]:
        """Return why each shard that a receive of these keys (None: of any) reads is quarantined. None for each that serves."""
        return receive.failures(self._store, keys)

    def arrivals(self, shard: int) -> int:
        """Return a number that changes with every arrival in the shard. Takes no lock."""
        return self._store.shards[shard].newest()

    def patience(self, wait: int | None, *, receives: bool = True) -> Patience:
        """Begin a wait.

        Args:
            wait: microseconds; None: for ever.
            receives: the caller receives whenever it looks.
        """
        return Patience(self._store, wait, receives=receives)

    def ready(self) -> tuple[bool, int | None]:
        """Return whether a message may be ready and, if none is, the queue time at which one becomes ready by itself, if any."""
        return self._store.ready()

    def look_again(self, soonest: int | None) -> float:
        """Return the seconds after which a waiting receive looks again, if a message becomes ready at queue time `soonest`."""
        return receive.look_again(self._store, soonest)

    # ---- settling deliveries: each call takes settlements of one shard, and returns a result for each of them
    #
    # A settlement refused with LeaseLost changed nothing; the others take effect. A StoreError means that nothing changed, except
    # OutcomeUnknown: repeating that call then returns the same as if it were the first.

    def ack(self, shard: int, batches: Sequence[Settlement]) -> list[Lost]:
        """Ack messages. Return the refused seqs of each settlement."""
        return self._settled(shard, batches, Shard.ack)

    def ack_claimed(self, claimed: Claimed) -> list[Lost]:
        """Ack everything that a claim leased. Return the refused seqs of each lease; empty if there are none."""
        try:
            return self._store.shards[claimed.shard].ack_claimed(claimed)
        except Rerouted:
            return self.ack(claimed.shard, [held.all() for held in claimed.leases])

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
        return self._settled(shard, batches, lambda at, some: at.nack(some, delay, failure))

    def defer(self, shard: int, batches: Sequence[Settlement], delay: int, reason: str | None = None) -> list[LeaseLost | None]:
        """Do the same without charging an attempt. The reason is stored as the last error; None: that is kept."""
        return self._settled(shard, batches, lambda at, some: at.drain(bound(settling.defer, some, delay, reason)))

    def defer_failed(
        self, shard: int, batches: Sequence[Settlement], delay: int, failed: Sequence[AttemptFailure], *, began: bool
    ) -> list[LeaseLost | None]:
        """Do the same for messages that failed through no fault of their own, with what each attempt left.

        With `began` False, their handlers were not called: the error says why they wait.
        """
        of = {id(batch): one for batch, one in zip(batches, failed, strict=True)}

        def defer(at: Shard, some: Sequence[Settlement]) -> list[LeaseLost | None]:
            return at.drain(bound(settling.defer_failed, some, delay, [of[id(batch)] for batch in some], began))

        return self._settled(shard, batches, defer)

    def reject(self, shard: int, batches: Sequence[Settlement], failure: AttemptFailure) -> list[LeaseLost | None]:
        """Dead-letter a message of each lease with this error. The lane continues with the next message."""
        return self._settled(shard, batches, lambda at, some: at.drain(bound(settling.reject, some, failure)))

    def note(self, shard: int, batches: Sequence[Settlement], said: Sequence[str]) -> list[LeaseLost | None]:
        """Store the output of a message's handler so far, for a message of each lease."""
        of = {id(batch): one for batch, one in zip(batches, said, strict=True)}

        def note(at: Shard, some: Sequence[Settlement]) -> list[LeaseLost | None]:
            return at.drain(bound(settling.note, some, [of[id(batch)] for batch in some]))

        return self._settled(shard, batches, note)

    def start(self, shard: int, batches: Sequence[Settlement]) -> list[LeaseLost | None]:
        """Charge the attempt of a message of each lease: its handler starts now."""
        return self._settled(shard, batches, Shard.start)

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
        try:
            return part.drain(work) if acks else part.lease(work, lambda _refused: arrivals)
        except Rerouted:
            return self._advance_each(shard, acks, starting)

    def extend(self, shard: int, batches: Sequence[Settlement], length: int, *, late: bool = True) -> list[int | LeaseLost]:
        """Move the deadline of each lease to `length` microseconds from now. Return the new deadlines, in queue time.

        Args:
            late: also if the deadline has passed.
        """
        return self._settled(shard, batches, lambda at, some: at.drain(bound(settling.extend, some, length, late), synced=False))

    def release(self, shard: int, batches: Sequence[Settlement]) -> list[LeaseLost | None]:
        """Release a message of each lease, and everything later that it holds, unused."""
        return self._settled(shard, batches, lambda at, some: at.drain(bound(settling.release, some), synced=False))

    def _settled(
        self, shard: int, batches: Sequence[Settlement], call: Callable[[Shard, Sequence[Settlement]], Sequence[T]]
    ) -> list[T]:
        """Settle in the shard that the leases are of, and in others those of lanes that have moved."""
        at = self._store.shards[shard]
        try:
            return list(call(at, batches))
        except Rerouted:
            keys = [batch.key for batch in batches]
            return self._store.at_owners(at, keys, lambda to, some: call(to, [batches[i] for i in some]))

    def _advance_each(
        self, shard: int, acks: Sequence[Settlement], starting: Sequence[Settlement]
    ) -> dict[Settlement, LeaseLost]:
        """Do what `advance` does in the shards that the lanes are in now."""
        work = [*((batch, True) for batch in acks), *((batch, False) for batch in starting)]

        def advance(at: Shard, some: list[int]) -> Sequence[LeaseLost | None]:
            mine = [work[i] for i in some]
            refused = at.drain(Advance([b for b, acked in mine if acked], [b for b, acked in mine if not acked]))
            return [refused.get(batch) for batch, _ in mine]

        found = self._store.at_owners(self._store.shards[shard], [batch.key for batch, _ in work], advance)
        return {batch: error for (batch, _), error in zip(work, found, strict=True) if error is not None}

    # ---- replication

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

    def ship_reference(self) -> Callable[[], Storage | None]:
        """Return a weak reference to this object, for a thread that must not keep it alive. It returns None when that is gone."""
        store = weakref.ref(self._store)

        def found() -> Storage | None:
            there = store()
            return None if there is None else Storage(there)

        return found

    @property
    def short_of_space(self) -> bool:
        """Whether the disk is full, as far as any process reported."""
        return self._store.short_of_space or (self._store.directory is not None and self._store.waker.short_of_space)

    def checkpoint(self) -> None:
        """Checkpoint every WAL, unless it is kept for the shipper."""
        for shard in self._store.healthy():
            shard.checkpoint()

    def interrupt(self) -> None:
        """End the long reads that run now, such as those of a check in another thread, with a StoreError."""
        for shard in self._store.shards:
            shard.interrupt()


__all__ = [
    "AT_REBOOT",
    "HASH_MAX",
    "HEADER_BYTES_FREE",
    "LOOK_SECONDS",
    "MEMORY",
    "NAME_BITS",
    "NAME_MAX",
    "PAGE_BYTES",
    "POLL_SECONDS",
    "SHARDS_MAX",
    "Acks",
    "Affinity",
    "Allowance",
    "AppDatabase",
    "Applied",
    "Arriving",
    "Attempt",
    "AttemptFailure",
    "Block",
    "BlockSize",
    "Bulk",
    "BulkRows",
    "Capture",
    "Changes",
    "Claimed",
    "Committed",
    "Description",
    "Encode",
    "Fields",
    "Fork",
    "HandlerSpan",
    "Held",
    "Holding",
    "Image",
    "Item",
    "Joined",
    "Known",
    "Listed",
    "ListedColumns",
    "LiveConsumer",
    "Lost",
    "MessageRange",
    "OnlyConsumer",
    "OpenTransaction",
    "Options",
    "PackedColumns",
    "PageFiles",
    "Part",
    "Placed",
    "PlainRows",
    "Position",
    "ProcessHold",
    "QueueCut",
    "Rebuild",
    "Replication",
    "Request",
    "Rounds",
    "Row",
    "Rows",
    "RunningHandlers",
    "Sent",
    "Settlement",
    "ShipProgress",
    "ShipStatus",
    "Ships",
    "Size",
    "Staging",
    "Statement",
    "Storage",
    "StreamBatch",
    "Token",
    "Took",
    "TransactionName",
    "WalMovedOn",
    "Want",
    "WentBack",
    "WorkerSpans",
    "WriteTransaction",
    "adopt",
    "become_queue",
    "header_bytes_max",
    "headers_of",
    "held_alone",
    "is_marked_replica",
    "leased_columns",
    "mark_replica",
    "migrate",
    "new_file",
    "new_run",
    "page_files",
    "publish",
    "put_in_service",
    "rebuild",
    "replication_of",
    "require_valid",
    "salvage",
    "share_holder",
]  # fmt: skip
