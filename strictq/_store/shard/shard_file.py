"""One shard: one SQLite file, its connections, and what runs on them. It has no knowledge of other shards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import apsw

from ..._platform import files
from ..._platform.clock import Clock
from ..._platform.log import log
from ..._sql import LOG, SHARD
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import (
    InvalidArgument,
    LeaseLost,
    OutcomeUnknown,
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StrictqError,
    UnknownMessage,
)
from ..._values.types import Event
from ..catalog import shard_identity
from ..catalog.contents import Catalog
from ..commit.app_database import AppDatabase, Guard, Rows
from ..commit.checkpoint import ShardWal, WalHost
from ..commit.connection import MEMORY, after_commit, check_file, connect, translate
from ..commit.reader import Reader
from ..commit.tx import Host, Operation, bound
from ..commit.writer import Alone, Writer
from ..disk import formats as migrate
from ..disk import layout
from ..disk.stored import present
from ..disk.topology import Range
from ..tables import app_rows, mark
from . import claiming, sending, settling
from .claiming import Attempt
from .failures import AttemptFailure
from .leases import Claimed, Held, Lost, Settlement
from .messages import Item, Sent
from .settling import Ack, AckClaimed
from .shard_lanes import ShardLanes, Tx

A = TypeVar("A")
T = TypeVar("T")

DRAIN_TRIES: Final = 3
MEMORY_SECONDS: Final = 0.1
"""How long a read waits for other threads of this process, to use the writer's memory."""
CHECKPOINT_WAIT_SECONDS: Final = 0.1
"""How long a checkpoint waits for the shard's write lock when other shards may need a checkpoint, too."""


class KnownEmpty(NamedTuple):
    """A look that found nothing claimable in a shard.

    Attributes:
        state: before it, a value that changes with what any process makes claimable, and with the commits of this one.
        until: the `time.monotonic()` up to which it is believed. A process may die before it changes the value.
        soonest: the queue time before which nothing becomes claimable by itself.
    """

    state: tuple[int | None, int]
    until: float
    soonest: int


class Confirms(Protocol):
    """Confirmed mode: calls return when a replica has what they wrote."""

    @property
    def active(self) -> bool:
        """Whether the queue is in confirmed mode."""
        ...

    def require(self) -> None:
        """Refuse a call that could not be confirmed."""
        ...

    def wait(self) -> None:
        """Wait until the replica has what is committed."""
        ...


Mover = Callable[[apsw.Connection, Path, int, Callable[[int], bool]], None]
"""Moves the file of a shard of format 2 to the next format: connection, file, shard, and whether the shard owns a hash."""


class ShardHost(Host, WalHost, Protocol):
    """What a shard needs from its queue."""

    app_schema: list[tuple[int, str]]
    catalog: Catalog
    clock: Clock
    mover: Mover | None

    @property
    def confirming(self) -> Confirms: ...

    @property
    def keeps_wal(self) -> bool: ...
    def is_drained(self) -> bool: ...
    def make_room(self) -> None: ...


class Shard:
    """A range of the hash space in one file."""

    def __init__(self, host: ShardHost, part: Range, directory: Path | None, *, grouped: bool) -> None:
        self.number = part.shard
        self.range = part
        self.path = None if directory is None else directory / part.file
        self.gave = False
        """Whether the last claim found something, or something has arrived since it did not. The next one need not look first."""
        self.empty: KnownEmpty | None = None
        """Set if the last look found nothing."""
        self.incarnation = ""
        self._full = grouped
        self._suspects: int | None = None
        self._host = host
        self._guard: Guard | None = None
        self.lanes = ShardLanes(part.shard, claims=not host.read_only, rates=host.rates)
        """The lanes as the holder of the write lock sees them."""
        self._writer = Writer(self._open, part, host, self.lanes, grouped=grouped, in_memory=self.path is None)
        self.wal = ShardWal(
            host, self.number, self.path, self._writer, self._connect,
            durability=host.catalog.durability, shards=len(host.catalog.topology),
        )  # fmt: skip
        self._reader = Reader(self._connect, self._writer, part.shard, host)
        """For reads that may take long."""
        self._glances = Reader(self._connect, self._writer, part.shard, host)
        """For short reads while the writing connection is in use."""
        self._reader_lanes, self._glance_lanes = ShardLanes(part.shard), ShardLanes(part.shard)
        self.checkpoint_lock = threading.Lock()
        self.carrying = threading.RLock()
        """Held by the thread that carries lanes from this shard to another one. A hook of its commits may carry some, too."""
        self.failed: StoreError | None = None
        """The reason why this shard is quarantined."""

    # ---- opening

    def _open(self) -> apsw.Connection:
        """Open a connection for writing, and verify that it has the right file."""
        host = self._host
        try:
            if self.wal.is_gone():
                self._repair()
            db = self._connect(host.catalog.durability)
            try:
                if self.path is None:
                    shard_identity.lay_out_shard(db, host.catalog, self.range)
                self._require_format(db)
                shard_identity.verify_shard(db, host.catalog, self.range)
                self.wal.verify(db)
                self.wal.drop_torn(db, shard_identity.epoch(db))
                self.incarnation = db.execute(SHARD.read_meta, ("incarnation",)).get
                self._suspects = None
                self._guard = self._guarded(db)
                if self._writer.distrusted and self.path is not None and not host.read_only:
                    self.wal.write_again(db)
                if host.mover is not None:
                    self._migrate(db, host.mover)
                if not host.read_only:
                    try:
                        self.apply_app_schema(db)
                    except InvalidArgument as e:
                        # The rows of this shard, which was unreachable when the schema was recorded, do not fit. app_schema()
                        # raises that, too.
                        log.error("shard %d: the program's tables differ from app_schema(): %s", self.number, e)
                    self.wal.watch(db)
            except BaseException:
                db.close()
                raise
            return db
        except apsw.Error as e:
            error = translate(e, self.number)
            if isinstance(e, apsw.CantOpenError) and host.read_only and (missing := self._missing()):
                error = StoreError(
                    f"its {missing} file is missing, and it cannot be created in a read-only directory",
                    shard=self.number, cause=e, hint=hints.OPEN_WRITABLE,
                )  # fmt: skip
            if isinstance(error, StoreCorrupt | SchemaMismatch):
                host.quarantine(self.number, error)
            raise error from e
        except (StoreCorrupt, SchemaMismatch) as e:
            host.quarantine(self.number, e)
            raise
        except OSError as e:
            raise files.failure("it can't be opened", e, self.number) from e

    def _require_format(self, db: apsw.Connection) -> None:
        host = self._host
        try:
            migrate.require(db, migrate.SHARD_ID, self.number, older=host.mover is not None, wanted=host.catalog.format)
        except StoreCorrupt:
            with suppress(apsw.Error, StoreCorrupt):
                mark.read(db, self.number)  # a later version may have added tables: SchemaMismatch says so
            raise

    def _migrate(self, db: apsw.Connection, move: Mover) -> None:
        """Bring the file to the format of its queue."""
        if migrate.version_of(db, migrate.SHARD_ID) < migrate.ONE_LANE:
            assert self.path is not None
            migrate.bring_up(db, migrate.SHARD_ID, self.number, migrate.ONE_LANE - 1)
            self.wal.watch(db)
            move(db, self.path, self.number, self.range.owns)
        migrate.bring_up(db, migrate.SHARD_ID, self.number)

    def _missing(self) -> str | None:
        """Return which of the files that SQLite creates beside the database is missing, or None."""
        assert self.path is not None
        return next((part for part in ("-shm", "-wal") if not self.path.with_name(self.path.name + part).exists()), None)

    def _repair(self) -> None:
        """Repair the effects of a foreign checkpoint, if there was one."""
        from ..disk import foreign  # imported late: needed only if a WAL is gone

        assert self.path is not None
        db = self._connect("full", verify=False)
        try:
            pages = foreign.repair(self.path, db, self.number, read_only=self._host.read_only, problem=self._problem)
        finally:
            db.close()
        if pages:
            detail = f"{foreign.WHAT}; strictq verified the shard and wrote the checksums of {pages} pages again"
            log.warning("shard %d: %s", self.number, detail)
            self._host.report([Event("shard_repaired", self.number, detail=detail)])

    def _problem(self, db: apsw.Connection) -> str | None:
        """Return what is wrong with the tables of this shard, or None."""
        from .checking import check  # imported late: needed only if a WAL is gone

        topology = self._host.catalog.topology
        shard_identity.verify_shard(db, self._host.catalog, self.range)
        found = check(db, self.number, self.range.owns, len(topology))
        return next((f"{problem.rule}: {problem.detail}" for problem, fix in found if fix is None), None)

    def _connect(self, durability: Any, **options: Any) -> apsw.Connection:
        if self.path is None:
            return connect(MEMORY, durability=durability)
        check_file(self.path, self.number, writing=not self._host.read_only)
        return connect(str(self.path), durability=durability, read_only=self._host.read_only, **options)

    def apply_app_schema(self, db: apsw.Connection) -> None:
        """Run the recorded app_schema() statements that this shard has not run yet."""
        done: int = present(db.execute(SHARD.read_meta, ("app_schema",)).get, "the number of app_schema")
        if not self._host.app_schema or self._host.app_schema[-1][0] <= done:
            return
        assert self._guard is not None
        db.execute("BEGIN IMMEDIATE")
        try:
            done = db.execute(SHARD.read_meta, ("app_schema",)).get
            for number, sql in self._host.app_schema:
                if number > done:
                    if (columns := app_rows.columns_of(sql)) is None:
                        AppDatabase(db, self._guard, "schema").execute(sql)
                    else:
                        app_rows.store(db, self.number, columns)
                    db.execute(SHARD.write_meta, ("app_schema", number))
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    # ---- running

    def run(self, operation: Operation[T], seconds: float | None = None, *, synced: bool = True) -> T:
        """Run an operation in a write transaction. Durable on return. See Writer.run for arguments and errors."""
        if self.failed is not None:
            self.require()
        confirming = self._host.confirming
        if confirming.active:
            confirming.require()
        result = self._writer.run(operation, seconds, synced=synced)
        try:
            self.keep_wal_short()
            if confirming.active:
                confirming.wait()
        except Exception as e:
            raise after_commit(e, self.number)  # noqa: B904 - it has its cause
        return result

    def drain(self, operation: Operation[T], seconds: float | None = None, *, synced: bool = True) -> T:
        """Run an operation that makes room (acks, receives). On a full disk the reserve is released for it."""
        for _ in range(DRAIN_TRIES):
            try:
                result = self.run(operation, seconds, synced=synced)
                break
            except StoreFull:
                self._host.make_room()
        else:
            result = self.run(operation, seconds, synced=synced)
        if self.path is not None and (self._host.short_of_space or self.wal.cramped):
            with suppress(StrictqError):  # the operation is committed
                self.run(_free)
        if self.wal.stuck and self._host.is_drained():
            # The database has room for new messages, but not for the last pages of the WAL. No later call may come to drain it.
            self._host.make_room()
        return result

    # ---- calls that are one statement, which is its own transaction
    #
    # A send, a receive or an ack writes one row of a log. The statement that writes it compares both logs with memory, as every
    # transaction does when it begins, and writes nothing if they differ. So BEGIN, that read and COMMIT are omitted. A result of
    # None means that nothing changed, and a transaction must do it.

    def _direct(
        self,
        settings: tuple[QueueConfig, int],
        work: Callable[[ShardLanes, int, A], T | None],
        given: A,
        seconds: float | None = None,
        *,
        synced: bool = True,
    ) -> T | None:
        """Run Writer.direct, unless the state of the shard or of the disk forbids it."""
        host, wal = self._host, self.wal
        if self.failed is not None or host.short_of_space or host.confirming.active or wal.cramped:
            return None
        done = self._writer.direct(work, given, settings, seconds, synced=synced)
        if wal.pages >= wal.pages_max:
            self.keep_wal_short()
        return done

    def send_alone(self, item: Item, checked: QueueConfig | None, elsewhere: int) -> Sent | None:
        """Append a message.

        Args:
            checked: the settings that it was validated against. None: it has no options, and its size is not checked yet.
            elsewhere: the unresolved messages of the other shards, if `max_depth` is set.
        """
        settings = self._host.settings
        config = settings[0]
        if checked is not config and (checked or len(item[1]) > config.max_body_bytes):
            return None
        return self._direct(settings, sending.send_alone, (item, config, elsewhere))

    def claim_alone(self, attempt: Attempt, seconds: float | None) -> Claimed | None:
        """Lease what is ready now.

        Args:
            seconds: how long to wait for the write lock; None: BUSY_SECONDS.
        """
        return self._direct(self._host.settings, self._claim, attempt, seconds, synced=False)

    def _claim(self, lanes: ShardLanes, now: int, attempt: Attempt) -> Claimed | None:
        request, db = attempt.request, lanes.db
        old = lanes.suspects if self._full else 0  # a power cut must not forget that they were leased: see `lease`
        planned = claiming.claim_alone(lanes, request, now, self._host.settings[0], old)
        if planned is None:
            return None
        claimed, groups = planned
        attempt.brought.append((self, attempt, claimed))
        changes = db.total_changes()
        try:
            if self._full:
                self._writer.omit_sync(db)
            if not claiming.write_alone(lanes, claimed, groups, request, now):
                attempt.brought.pop()
                return None
            attempt.committed = True
        except BaseException:
            attempt.committed = db.total_changes() != changes
            raise
        return claimed

    # ---- acks and nacks

    def ack_one(self, held: Held, seq: int) -> Lost:
        """Ack a message of a lease. Return its refusal."""
        settings = self._host.settings
        if self._direct(settings, settling.ack_one_alone, (held.key, held.token, seq, settings[0])):
            return {}
        return self.drain(Ack([held.some((seq,))]))[0]

    def ack(self, batches: Sequence[Settlement]) -> list[Lost]:
        """Ack messages. Return the refused seqs of each settlement."""
        settings = self._host.settings
        kept = settings[0].output_seconds > 0 and any(b.end.output is not None for b in batches)
        if not kept and self._direct(settings, settling.ack_alone, (batches, settings[0])):
            return [{} for _ in batches]
        return self.drain(Ack(batches))

    def ack_claimed(self, claimed: Claimed) -> list[Lost]:
        """Ack everything that a claim leased. Return the refused seqs of each lease; empty if there are none."""
        settings = self._host.settings
        if self._direct(settings, settling.ack_claimed_alone, (claimed, settings[0])):
            return []
        return self.drain(AckClaimed(claimed))

    def nack(self, batches: Sequence[Settlement], delay: int | None, failure: AttemptFailure) -> list[int | LeaseLost | None]:
        """Nack a message of each lease. See Storage.nack."""
        settings = self._host.settings
        done = self._direct(settings, settling.nack_alone, (batches, delay, failure, settings[0]))
        return self.drain(bound(settling.nack, batches, delay, failure)) if done is None else done

    def start(self, batches: Sequence[Settlement]) -> list[LeaseLost | None]:
        """Charge the attempt of a message of each lease. See Storage.start."""
        if len(batches) == 1 and self._direct(self._host.settings, settling.start_alone, batches[0]):
            return [None]
        return self.drain(bound(settling.start, batches))

    def keep_wal_short(self) -> None:
        """Checkpoint after a commit if the WAL has outgrown its limit."""
        if self.wal.overgrown:
            # Writers outrun the engine's thread. This one must wait for a checkpoint, or the WAL would grow for ever, and on a
            # full disk take the remaining room.
            with suppress(StrictqError):  # the operation is committed, even if the checkpoint fails
                self.checkpoint()

    def lease(self, claim: Operation[T], leased: Callable[[T], Iterable[int]], seconds: float | None = None) -> T:
        """Run `drain` with an operation that leases or starts messages: a power cut ends every lease, so it need not survive one.

        But then a message that crashes the machine would never be charged an attempt. So messages that the shard had when the
        machine booted are leased with a sync.

        Args:
            leased: returns, from the operation's result, the arrival number of the first message of each lease, or of each
                started message. No later message of its lane arrived before it.
        """
        if not self._full:
            return self.drain(claim, seconds)

        suspects = 0

        def operation(tx: Tx) -> T:
            nonlocal suspects
            if self._suspects is None:
                self._suspects = tx.run(SHARD.read_meta, ("suspects",)).get or 0
            suspects = self._suspects  # another thread may reopen the shard before this one has its result
            return claim(tx)

        result = self.drain(operation, seconds, synced=False)
        if suspects and any(arrival <= suspects for arrival in leased(result)):
            self.sync()
        return result

    def alone(self) -> Alone:
        """Return a write transaction for a program's own SQL. It has not begun."""
        self.require()
        confirming = self._host.confirming
        if confirming.active:
            confirming.require()
        return Alone(self._writer)

    def commit(self, alone: Alone) -> None:
        """Commit such a transaction."""
        alone.commit()
        self.confirm()

    def app(self, tx: Tx) -> AppDatabase:
        assert self._guard is not None
        return AppDatabase(tx.db, self._guard)

    def try_schema(self, sql: str, key_columns: Mapping[str, str]) -> None:
        """Run the program's schema and roll it back.

        Raises:
            InvalidArgument: it is wrong, touches more than app_* tables, or these columns can't have the tables' keys.
        """

        def rehearse(db: apsw.Connection) -> None:
            assert self._guard is not None
            db.execute("BEGIN IMMEDIATE")
            try:
                AppDatabase(db, self._guard, "schema").execute(sql)
                app_rows.require(db, key_columns)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

        self.require()
        self._writer.use(rehearse)

    def define(self) -> None:
        """Apply newly recorded app_schema statements."""
        self.require()
        self._writer.use(self.apply_app_schema)

    def open(self) -> None:
        """Open and verify the file, unless it is open."""
        self.require()
        self._writer.read(lambda _db: None)

    def read(self, look: Callable[[apsw.Connection], T]) -> T:
        """Run a short read of the tables in a read transaction. It sees committed data, and does not wait for a running one."""
        self.require()
        if self.path is None:
            return self._writer.read(look)
        try:
            return self._writer.read(look, 0.0)
        except StoreBusy:
            return self._glances.look(look)

    def view(self, look: Callable[[ShardLanes], T], seconds: float | None = None) -> T:
        """Run a short read of lanes, in a read transaction. On disk it waits only briefly for a running transaction.

        Args:
            look: gets lanes that agree with the file. It may load more of them.
            seconds: how long to wait; None: MEMORY_SECONDS. In memory, where all calls share one connection: BUSY_SECONDS.
        """
        if self.failed is not None:
            self.require()
        if self.path is None:
            return self._writer.read(partial(_viewed, self.lanes, look), seconds)
        try:
            return self._writer.read(partial(_viewed, self.lanes, look), MEMORY_SECONDS if seconds is None else seconds)
        except StoreBusy:
            return self._glances.look(partial(_viewed, self._glance_lanes, look))

    def survey(self, look: Callable[[ShardLanes], T]) -> T:
        """Run a long read of lanes, on a connection that no writer waits for."""
        self.require()
        if self.path is None:
            return self._writer.read(partial(_viewed, self.lanes, look))
        if not self._reader.opened:
            self._writer.require_outside()
        return self._reader.look(partial(_viewed, self._reader_lanes, look))

    def glance(self, look: Callable[[apsw.Connection], T], seconds: float | None = None) -> T:
        """Run a read of a single statement, which needs no transaction around it.

        Args:
            seconds: in memory, where all calls share one connection, how long to wait for it; None: BUSY_SECONDS.
        """
        self.require()
        if self.path is None:
            return self._writer.use(look, seconds)
        try:
            return self._writer.use(look, 0.0)
        except StoreBusy:
            return self._glances.glance(look)

    def bound_cache(self, kib: int) -> None:
        """Let the writing connection cache so much of the file at most, until it is opened again."""
        self._writer.use(lambda db: db.pragma("cache_size", -kib))

    @property
    def busy(self) -> bool:
        """Whether its writing connection is in use."""
        return self._writer.busy

    def tenant_depths(self, tenants: Iterable[bytes]) -> dict[bytes, int]:
        """Return the committed unresolved messages of tenants. As `pending`, it does not wait for a transaction."""
        return self.look_briefly(lambda lanes: {name: lanes.tenant_depth(name) for name in tenants})

    def look_briefly(self, look: Callable[[ShardLanes], T]) -> T:
        """Run a short read of lanes without waiting for a transaction. In memory, it then sees what that has written."""
        try:
            return self.view(look, 0.0)
        except StoreBusy:
            if self.path is not None:
                raise
            return look(self.lanes)

    def pending(self) -> int:
        """Return the committed number of unresolved messages. Never waits for a transaction."""
        if self.path is not None:
            return self.look_briefly(lambda lanes: lanes.memory.totals.pending)
        self.require()
        return self._writer.pending

    def newest(self) -> int:
        """Return the newest arrival number."""
        return self.glance(_newest_message)

    def unread(self) -> int:
        """Return about how many rows of its logs the next `view` reads first."""

        def look(db: apsw.Connection) -> int:
            seen, top = db.execute(LOG.newest).get
            memory = self.lanes.memory
            if not memory.unsure:
                return int(seen + top - memory.seen - memory.top)
            stored, _ = mark.read(db, self.number)
            return int(seen + top - stored.cut - stored.mid)

        return self.read(look)

    def require(self) -> None:
        """Raise the error that this shard was quarantined for."""
        if self.failed is not None:
            raise _again(self.failed)

    def query(self, sql: str, params: Any) -> Rows:
        """Run a program's query in a read transaction of its own connection, where it does not block writers."""
        if self.path is None:
            self.require()
            return self._writer.use(lambda db: self._query(db, self._guard, sql, params))
        return self.look(lambda db: self._query(db, self._guarded(db), sql, params))

    def look(self, look: Callable[[apsw.Connection], T]) -> T:
        """Run a long read of tables, on a connection that no writer waits for."""
        self.require()
        if self.path is None:
            return self._writer.read(look)
        if not self._reader.opened:
            self._writer.require_outside()
        return self._reader.look(look)

    def interrupt(self) -> None:
        """End a `look` that runs now in another thread, with an error."""
        self._reader.interrupt()

    def _guarded(self, db: apsw.Connection) -> Guard:
        return Guard(db, lambda: self._host.settings[0].max_body_bytes)

    @staticmethod
    def _query(db: apsw.Connection, guard: Guard | None, sql: str, params: Any) -> Rows:
        assert guard is not None
        return AppDatabase(db, guard, "read").execute(sql, params)

    # ---- its WAL

    def checkpoint(self, seconds: float | None = None) -> tuple[int, int]:
        """Run ShardWal.checkpoint, unless the shard is quarantined or its WAL is kept for the shipper."""
        with self.checkpoint_lock:
            return (0, 0) if self.failed is not None or self._host.keeps_wal else self.wal.checkpoint(seconds)

    def cut_wal(self) -> None:
        """Checkpoint, and return the WAL's space to the file system, unless other calls keep it in use."""
        self.checkpoint(CHECKPOINT_WAIT_SECONDS)
        with self.checkpoint_lock:
            if not self._host.keeps_wal:
                self.wal.cut(CHECKPOINT_WAIT_SECONDS)

    def has_room(self, size: int) -> bool:
        """Return whether a send of about this many bytes could still be brought into the database."""
        if self.wal.stuck:
            with suppress(StrictqError):
                self.checkpoint()
        return self.wal.has_room(size)

    def sync(self) -> None:
        """Make every commit of this shard survive a power cut, at any durability.

        Raises:
            OutcomeUnknown: what is committed may not survive one.
        """
        if self.path is not None:
            try:
                layout.sync_wal(self.path)
            except OSError as e:
                self._writer.distrust()
                raise OutcomeUnknown(f"its WAL could not be synced: {e.strerror}", shard=self.number, cause=e) from e
        self.confirm()

    def confirm(self) -> None:
        """Wait, in confirmed mode, until the replica has what is committed. For callers that only read.

        Raises:
            NotConfirmed: it may not have it.
        """
        if self._host.confirming.active:
            self._host.confirming.wait()

    # ---- the end, and forks

    def require_outside(self) -> None:
        """Refuse to go on inside this thread's own transaction of the shard."""
        self._writer.require_outside()

    def close(self, *, last: bool) -> None:
        """Close its connections.

        Args:
            last: no other process has the queue open.
        """
        self._writer.close(partial(self.wal.leave, last=last) if self.failed is None else None)
        self._reader.close()
        self._glances.close()
        with self.checkpoint_lock:
            self.wal.close_checkpointer()

    def quiesce(self) -> bool:
        """Prepare for a fork. Return False, and hold nothing, if that is not possible."""
        if not self.checkpoint_lock.acquire(timeout=10.0):
            return False
        held: list[Reader | Writer] = []
        for part in (self._reader, self._glances, self._writer):
            if not part.quiesce():
                for each in held:
                    each.resume(child=False)
                self.checkpoint_lock.release()
                return False
            held.append(part)
        self.wal.close_checkpointer()
        return True

    def resume(self, *, child: bool) -> None:
        self._writer.resume(child=child)
        self._reader.resume(child=child)
        self._glances.resume(child=child)
        if child:
            self.checkpoint_lock, self.carrying = threading.Lock(), threading.RLock()
        else:
            self.checkpoint_lock.release()

    def abandon(self) -> None:
        self._writer.abandon()
        self._reader.abandon()
        self._glances.abandon()
        self.wal.abandon()


def _free(tx: Tx) -> None:
    """Give back the room of resolved messages."""
    tx.lanes.folder.free(tx.now)


def _viewed(lanes: ShardLanes, look: Callable[[ShardLanes], T], db: apsw.Connection) -> T:
    """Run a read of lanes. If it is interrupted, or fails, memory is built anew."""
    memory = lanes.follow(db).memory
    memory.unsure = True
    try:
        found = look(lanes)
    except UnknownMessage:
        memory.unsure = False
        raise
    memory.unsure = False
    return found


def _newest_message(db: apsw.Connection) -> int:
    newest: int = db.execute(LOG.newest).get[1]
    return newest


def _again(error: StoreError) -> StoreError:
    """Return a copy of the error: one object that is raised again and again would accumulate tracebacks."""
    fresh = type(error).__new__(type(error))
    fresh.__dict__.update(error.__dict__)
    fresh.args = error.args
    return fresh
