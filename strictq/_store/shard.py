"""One shard: one SQLite file, its connections, and what runs on them. It knows nothing of other shards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import apsw

from .._clock import Clock
from .._errors import InvalidArgument, SchemaMismatch, StoreCorrupt, StoreError, StoreFull, StrictqError
from .._sql import SHARD
from . import catalog, checksums, files, migrate
from .calls import Operation
from .catalog import Range
from .commit import Host, Writer
from .connection import MEMORY, NONSENSE, check_file, connect, leak, translate
from .frame import Tx
from .log import logger
from .program import AppDatabase, Guard, Rows
from .shard_wal import ShardWal, WalHost

T = TypeVar("T")

DRAIN_TRIES: Final = 3
READ_CACHE_KIB: Final = 4 * 1024


class ShardHost(Host, WalHost, Protocol):
    """What a shard asks of the queue it belongs to."""

    app_schema: list[tuple[int, str]]
    clock: Clock

    def make_room(self) -> None: ...


class Shard:
    """A range of the hash space in one file."""

    def __init__(self, host: ShardHost, part: Range, directory: Path | None, *, grouped: bool) -> None:
        self.number = part.shard
        self.range = part
        self.path = None if directory is None else directory / part.file
        self.gave = False
        """The last claim found something: the next one need not look first."""
        self.incarnation = ""
        self._host = host
        self._guard: Guard | None = None
        self._writer = Writer(self._open, part.shard, host, grouped=grouped, in_memory=self.path is None)
        self.wal = ShardWal(host, self.number, self.path, self._writer, self._connect)
        self._reader: apsw.Connection | None = None
        self._reader_lock = threading.Lock()
        self.checkpoint_lock = threading.Lock()
        self.failed: StoreError | None = None
        """Why this shard is quarantined."""

    # ---- opening

    def _open(self) -> apsw.Connection:
        """A connection for writing, verified to be on the right file."""
        host = self._host
        try:
            db = self._connect(host.catalog.durability)
            try:
                if self.path is None:
                    catalog.lay_out_shard(db, host.catalog, self.range, host.clock)
                migrate.require(db, migrate.SHARD_ID, self.number, read_only=host.read_only)
                catalog.verify_shard(db, host.catalog, self.range)
                self.wal.verify(db)
                self.incarnation = db.execute(SHARD.read_meta, ("incarnation",)).get
                self._guard = Guard(db)
                if self._writer.distrusted and self.path is not None and not host.read_only:
                    self.wal.write_again(db)
                if not host.read_only:
                    try:
                        self.apply_app_schema(db)
                    except InvalidArgument as e:
                        # The rows of this shard, which was out of reach when it was recorded, do not fit. app_schema() says so.
                        logger().error("shard %d: the program's tables are not as app_schema() wants them: %s", self.number, e)
                    self.wal.watch(db)
            except BaseException:
                db.close()
                raise
            return db
        except apsw.Error as e:
            error = translate(e, self.number)
            if isinstance(e, apsw.CantOpenError) and host.read_only:
                error = StoreError(
                    "its -shm file is missing, and a read-only directory has no room to make one",
                    shard=self.number, cause=e, hint="open it where the directory may be written",
                )  # fmt: skip
            if isinstance(error, StoreCorrupt | SchemaMismatch):
                host.quarantine(self.number, error)
            raise error from e
        except (StoreCorrupt, SchemaMismatch) as e:
            host.quarantine(self.number, e)
            raise

    def _connect(self, durability: Any, **options: Any) -> apsw.Connection:
        if self.path is None:
            return connect(MEMORY, durability=durability)
        check_file(self.path, self.number)
        return connect(str(self.path), durability=durability, read_only=self._host.read_only, **options)

    def apply_app_schema(self, db: apsw.Connection) -> None:
        """Run what app_schema() recorded and this shard has not run yet."""
        done: int = db.execute(SHARD.read_meta, ("app_schema",)).get
        if not self._host.app_schema or self._host.app_schema[-1][0] <= done:
            return
        assert self._guard is not None
        db.execute("BEGIN IMMEDIATE")
        try:
            done = db.execute(SHARD.read_meta, ("app_schema",)).get
            for number, sql in self._host.app_schema:
                if number > done:
                    AppDatabase(db, self._guard, "schema").execute(sql)
                    db.execute(SHARD.write_meta, ("app_schema", number))
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    # ---- running

    def run(self, operation: Operation[T]) -> T:
        """Run an operation in a write transaction; durable on return. See Writer.run for what it raises."""
        self.require()
        result = self._writer.run(operation)
        if self.wal.overgrown:
            # Writers outrun the engine's thread: whoever comes now waits for a checkpoint, or the WAL would grow for ever
            # (or, on a full disk, take what room there is).
            with suppress(StrictqError):  # what was run is committed, whatever becomes of the checkpoint
                self.checkpoint()
        return result

    def drain(self, operation: Operation[T]) -> T:
        """The same for what makes room (acks, receives): on a full disk the reserve is given up for it."""
        for _ in range(DRAIN_TRIES):
            try:
                return self.run(operation)
            except StoreFull:
                self._host.make_room()
        return self.run(operation)

    def alone(self) -> Any:
        """A write transaction for a program's own SQL; a context manager giving Tx."""
        self.require()
        return self._writer.alone()

    def app(self, tx: Tx) -> AppDatabase:
        assert self._guard is not None
        return AppDatabase(tx.db, self._guard)

    def try_schema(self, sql: str) -> None:
        """Run the program's schema and undo it.

        Raises:
            InvalidArgument: it is wrong, or touches more than app_* tables.
        """

        def rehearse(db: apsw.Connection) -> None:
            assert self._guard is not None
            db.execute("BEGIN IMMEDIATE")
            try:
                AppDatabase(db, self._guard, "schema").execute(sql)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

        self.require()
        self._writer.use(rehearse)

    def define(self) -> None:
        """Apply newly recorded app_schema statements."""
        self.require()
        self._writer.use(self.apply_app_schema)

    def read(self, look: Callable[[apsw.Connection], T]) -> T:
        """A short look in a read transaction."""
        self.require()
        return self._writer.read(look)

    def glance(self, look: Callable[[apsw.Connection], T]) -> T:
        """A look by a single statement, which needs no transaction around it."""
        self.require()
        return self._writer.use(look)

    def require(self) -> None:
        """Raise what this shard was quarantined for."""
        if self.failed is not None:
            raise _again(self.failed)

    def query(self, sql: str, params: Any) -> Rows:
        """A program's query, in a read transaction of its own connection: it may take its time without holding writers up."""
        if self.path is None:
            self.require()
            return self._writer.use(lambda db: self._query(db, self._guard, sql, params))
        return self.look(lambda db: self._query(db, Guard(db), sql, params))

    def look(self, look: Callable[[apsw.Connection], T]) -> T:
        """A long look, on a connection that no writer waits for."""
        self.require()
        if self.path is None:
            return self._writer.read(look)
        if self._reader is None:
            self._writer.read(lambda _db: None)  # the writing connection verifies the file when it opens
        self._writer.require()
        with self._reader_lock:
            try:
                if self._reader is None:
                    self._reader = self._connect("process", cache_kib=READ_CACHE_KIB)
                    checksums.require(self._reader, self.number)
                elif self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")  # whoever looked before was interrupted on its way
                self._reader.execute("BEGIN")
                try:
                    return look(self._reader)
                finally:
                    if self._reader.in_transaction:  # a page that can't be read ends it
                        self._reader.execute("ROLLBACK")
            except (apsw.Error, *NONSENSE) as e:
                error = translate(e, self.number)
                if isinstance(error, StoreCorrupt):
                    self._host.quarantine(self.number, error)
                raise error from e

    @staticmethod
    def _query(db: apsw.Connection, guard: Guard | None, sql: str, params: Any) -> Rows:
        assert guard is not None
        return AppDatabase(db, guard, "read").execute(sql, params)

    # ---- its WAL

    def checkpoint(self) -> tuple[int, int]:
        """See ShardWal.checkpoint. A quarantined shard is left alone."""
        with self.checkpoint_lock:
            return (0, 0) if self.failed is not None else self.wal.checkpoint()

    def shorten_wal(self) -> None:
        """See ShardWal.shorten. What fails here changes nothing: the commits are in the WAL."""
        # Somebody who is at it leaves little to do; and it may be this thread, interrupted by a signal whose handler closes.
        if self.failed is None and self._writer.opened and self.checkpoint_lock.acquire(blocking=False):
            try:
                with suppress(StrictqError, OSError):
                    self.wal.shorten()
            finally:
                self.checkpoint_lock.release()

    def cut_wal(self) -> None:
        """Checkpoint, and give the WAL's space back to the file system."""
        self.checkpoint()
        with self.checkpoint_lock:
            self.wal.cut()

    def has_room(self, size: int) -> bool:
        """Could what is sent now, of about so many bytes, still be brought into the database?"""
        if self.wal.stuck:
            with suppress(StrictqError):
                self.checkpoint()
        return self.wal.has_room(size)

    def sync(self) -> None:
        """Make every commit of this shard survive a power cut, at any durability."""
        if self.path is not None:
            try:
                files.sync_wal(self.path)
            except OSError as e:
                self._writer.distrust()
                raise StoreError(f"its WAL could not be synced: {e.strerror}", shard=self.number, cause=e) from e

    # ---- the end, and forks

    def require_outside(self) -> None:
        """Refuse what can't be done while this thread is inside a transaction of the shard."""
        self._writer.require_outside()

    def close(self) -> None:
        if self._writer.opened and self.failed is None:
            with suppress(StrictqError, OSError):
                self._writer.use(self.wal.mark)
        self._writer.close()
        with self.checkpoint_lock, self._reader_lock:
            self._close_helpers()

    def _close_helpers(self) -> None:
        db, self._reader = self._reader, None
        if db is not None:
            with suppress(apsw.Error):
                db.close()
        self.wal.close_checkpointer()

    def quiesce(self) -> bool:
        """Before a fork. False: it can't be prepared; nothing is held."""
        if not self.checkpoint_lock.acquire(timeout=10.0):
            return False
        if not self._reader_lock.acquire(timeout=10.0):
            self.checkpoint_lock.release()
            return False
        if not self._writer.quiesce():
            self._reader_lock.release()
            self.checkpoint_lock.release()
            return False
        self._close_helpers()
        return True

    def resume(self, *, child: bool) -> None:
        self._writer.resume(child=child)
        if child:
            self._reader_lock = threading.Lock()
            self.checkpoint_lock = threading.Lock()
        else:
            self._reader_lock.release()
            self.checkpoint_lock.release()

    def abandon(self) -> None:
        self._writer.abandon()
        if self._reader is not None:
            leak(self._reader)
        self.wal.abandon()


def _again(error: StoreError) -> StoreError:
    """The same error as a new object: one that is raised again and again would gather tracebacks."""
    fresh = type(error).__new__(type(error))
    fresh.__dict__.update(error.__dict__)
    fresh.args = error.args
    return fresh
