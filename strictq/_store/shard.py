"""One shard: one SQLite file, its connections, and what runs on them. It knows nothing of other shards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import apsw

from .._clock import Clock
from .._errors import InvalidArgument, SchemaMismatch, StoreBusy, StoreCorrupt, StoreError, StoreFull, StrictqError
from .._sql import SHARD
from . import catalog, checksums, files, migrate, pages, wal
from .calls import Operation
from .catalog import Catalog, Range
from .commit import Host, Writer, failed_sync
from .connection import MEMORY, NONSENSE, Durability, check_file, connect, leak, translate
from .frame import Tx
from .log import logger
from .program import AppDatabase, Guard, Rows

T = TypeVar("T")

WAL_PAGES: Final = 8000
"""Pages in a queue's WALs at which they are checkpointed, shared by its shards: 16 MiB."""
WAL_PAGES_MIN: Final = 250
SHORT_WAL_PAGES: Final = 64
"""The same while the disk is full: what a consumer was given must last for every shard."""
ROOM_BYTES: Final = 8 << 20
"""What a WAL leaves of the disk, besides the room for its pages in the database."""
WAL_GROWTH: Final = 3
"""How many times that size a WAL may reach before writers wait for its checkpoint."""
PAGE_BYTES: Final = 4096
DRAIN_TRIES: Final = 3
READ_CACHE_KIB: Final = 4 * 1024


class ShardHost(Host, Protocol):
    """What a shard asks of the queue it belongs to."""

    catalog: Catalog
    stored_durability: Durability
    read_only: bool
    app_schema: list[tuple[int, str]]
    clock: Clock
    reserve: files.Reserve | None
    short_of_space: bool

    def wal_grew(self, shard: int) -> None: ...
    def make_room(self) -> None: ...
    def trust(self, shard: int, failure: int) -> None: ...


class Shard:
    """A range of the hash space in one file."""

    def __init__(self, host: ShardHost, part: Range, directory: Path | None, *, grouped: bool) -> None:
        self.number = part.shard
        self.range = part
        self.path = None if directory is None else directory / part.file
        self.wal_pages = 0
        self.gave = False
        """The last claim found something: the next one need not look first."""
        self.incarnation = ""
        self._host = host
        self._guard: Guard | None = None
        self._checkpoint_at = max(WAL_PAGES // len(host.catalog.topology), WAL_PAGES_MIN)
        self._wal_max = WAL_GROWTH * self._checkpoint_at
        """Pages; less where the disk has little room: a checkpoint may have to add all of them to the database."""
        self._looked_at = 0
        self.stuck = False
        """The last checkpoint found no room on the disk."""
        self._writer = Writer(self._open, part.shard, host, grouped=grouped)
        self._reader: apsw.Connection | None = None
        self._reader_lock = threading.Lock()
        self._checkpointer: apsw.Connection | None = None
        self._mark: wal.Mark | None = None
        self._full = host.catalog.durability == "full"
        self._synced: wal.Mark | None = None
        """At "full": what of the WAL was on the disk when the last commit returned."""
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
                self._verify_wal(db)
                self.incarnation = db.execute(SHARD.read_meta, ("incarnation",)).get
                self._guard = Guard(db)
                if self._writer.distrusted and self.path is not None and not host.read_only:
                    self._write_wal_again(db)
                if not host.read_only:
                    try:
                        self.apply_app_schema(db)
                    except InvalidArgument as e:
                        # The rows of this shard, which was out of reach when it was recorded, do not fit. app_schema() says so.
                        logger().error("shard %d: the program's tables are not as app_schema() wants them: %s", self.number, e)
                    if self.path is not None:
                        # A WAL that outgrew its limit is cut back to it when it starts again.
                        db.pragma("journal_size_limit", WAL_GROWTH * self._checkpoint_at * PAGE_BYTES)
                        db.set_wal_hook(self._committed)
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

    def _verify_wal(self, db: apsw.Connection) -> None:
        if self.path is None:
            return
        found = damage_of_wal(self.path, db, self.number, every_commit_synced=self._host.stored_durability == "full")
        if found:
            raise StoreCorrupt(found, shard=self.number)

    def _mark_wal(self, db: apsw.Connection) -> None:
        """Note how far the WAL goes, so that damage to it will be noticed."""
        if self.path is None or self._host.read_only:
            return
        mark = wal.current_mark(self.path, db)
        if mark is not None and mark != self._mark:
            if self._host.stored_durability != "full":
                files.sync_wal(self.path)
            wal.write_mark(self.path.with_name(files.MARKS), self.number, mark)
            self._mark = mark

    def mark_synced(self) -> None:
        """Note what is on the disk for sure, for whoever writes the WAL again."""
        if self.path is None or self._synced is None:
            return
        file = self.path.with_name(files.MARKS)
        known = wal.read_mark(file, self.number)
        if known is None or known.salts != self._synced.salts or known.frames < self._synced.frames:
            wal.write_mark(file, self.number, self._synced)

    def _write_wal_again(self, db: apsw.Connection) -> None:
        """After a failed sync: the same bytes once more, so that the kernel writes them, and a sync that counts.

        A checkpoint instead would bring the database ahead of the WAL that is really on the disk, and a power cut would mix them.
        """
        assert self.path is not None
        db.execute("BEGIN IMMEDIATE")  # nobody appends meanwhile
        failure = self._host.suspects(self.number)
        try:
            # Not what is on the disk for sure: a power cut in the middle of writing may leave garbage.
            marked = wal.read_mark(self.path.with_name(files.MARKS), self.number)
            files.rewrite_wal(self.path, wal.end_of(self.path, self._synced, self._mark, marked))
        except OSError as e:
            raise StoreError(f"its WAL could not be synced: {e.strerror}", shard=self.number, cause=e) from e
        finally:
            db.execute("ROLLBACK")
        self._writer.trust()
        self._host.trust(self.number, failure)

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

    def _committed(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        """SQLite's WAL hook. The commit is done: whatever goes wrong here must not look as if it were not."""
        self.wal_pages = pages
        try:
            self._wal_grew(pages)
        except Exception:
            logger().exception("shard %d: what follows a commit failed; the commit stands", self.number)
        return apsw.SQLITE_OK

    def _wal_grew(self, pages: int) -> None:
        if not 0 <= pages - self._looked_at < SHORT_WAL_PAGES:
            self._look_for_room(pages)
        if self._full:
            known = self._synced
            # The salts are read only where the WAL may have begun again; if it did unseen, they do not fit, and say nothing.
            salts = known.salts if known is not None and pages > known.frames else wal.salts_of(self.path)
            self._synced = wal.Mark(salts, pages)
        if pages >= self._checkpoint_at:
            self._host.wal_grew(self.number)

    def _look_for_room(self, pages: int) -> None:
        self._looked_at = pages
        free = files.free_bytes(self.path)
        if free is not None:
            room = (free - ROOM_BYTES) // (2 * PAGE_BYTES * len(self._host.catalog.topology))
            self._wal_max = min(max(room, SHORT_WAL_PAGES), WAL_GROWTH * self._checkpoint_at)

    @property
    def cramped(self) -> bool:
        """The disk has little room left."""
        return self.stuck or self._wal_max < WAL_GROWTH * self._checkpoint_at

    def has_room(self, size: int) -> bool:
        """Could what is sent now, of about so many bytes, still be brought into the database?"""
        if self.stuck:
            with suppress(StrictqError):
                self.checkpoint()
        if self.stuck:
            return False
        free = files.free_bytes(self.path) if size > SHORT_WAL_PAGES * PAGE_BYTES else None
        return free is None or size <= free

    # ---- running

    def run(self, operation: Operation[T]) -> T:
        """Run an operation in a write transaction; durable on return. See Writer.run for what it raises."""
        self.require()
        result = self._writer.run(operation)
        if self.wal_pages >= (SHORT_WAL_PAGES if self._host.short_of_space else self._wal_max):
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

    # ---- checkpoints (upkeep.py calls them)

    def checkpoint(self) -> tuple[int, int]:
        """Bring the WAL's pages into the database, so that the next write starts the WAL again.

        PASSIVE, in two passes: the bulk while writers go on, and what they added meanwhile while none may write.
        Returns the pages in the WAL, and those of them that are checkpointed.
        """
        with self.checkpoint_lock:
            if self.path is None or self.failed is not None:
                return 0, 0
            try:
                if self._writer.distrusted:
                    self._writer.use(lambda _db: None)  # opens it again: no checkpoint before the WAL is on the disk
                if self._checkpointer is None:
                    self._checkpointer = self._connect(self._host.catalog.durability, cache_kib=256)
                    checksums.require(self._checkpointer, self.number)
                    # A connection that never read the database checkpoints nothing.
                    self._checkpointer.execute(SHARD.has_meta).fetchall()
                pages, done = self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                if done < pages or self.wal_pages > pages:
                    pages, done = self._writer.use(self._finish_checkpoint)
                if pages == done:
                    self.stuck = False
                    self._mark_wal(self._checkpointer)
                return pages, done
            except OSError as e:
                self._writer.distrust()
                raise StoreError(f"its WAL could not be synced: {e.strerror}", shard=self.number, cause=e) from e
            except (apsw.BusyError, StoreBusy):
                return 0, 0  # another process is at it
            except apsw.Error as e:
                if failed_sync(e):
                    self._writer.distrust()
                self.stuck = isinstance(e, apsw.FullError)
                raise translate(e, self.number) from e

    def _finish_checkpoint(self, db: apsw.Connection) -> tuple[int, int]:
        assert self._checkpointer is not None
        db.execute("BEGIN IMMEDIATE")
        try:
            return self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        finally:
            db.execute("ROLLBACK")

    def cut_wal(self) -> None:
        """Checkpoint, and give the WAL's space back to the file system."""
        self.checkpoint()

        def cut(_db: apsw.Connection) -> None:
            assert self._checkpointer is not None
            self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

        with self.checkpoint_lock:
            if self._checkpointer is not None:
                self._writer.use(cut)

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
                self._writer.use(self._mark_wal)
        self._writer.close()
        with self.checkpoint_lock, self._reader_lock:
            self._close_helpers()

    def _close_helpers(self) -> None:
        for db in (self._reader, self._checkpointer):
            if db is not None:
                with suppress(apsw.Error):
                    db.close()
        self._reader = self._checkpointer = None

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
        for db in (self._reader, self._checkpointer):
            if db is not None:
                leak(db)


def damage_of_wal(path: Path, db: apsw.Connection, shard: int, *, every_commit_synced: bool) -> str | None:
    """What is wrong with the WAL of the shard that this connection has read, by its mark and by itself."""

    def in_database(image: Callable[[int], bytes | None]) -> bool:
        """Does the WAL's counter row, which every transaction writes, say what the database says?"""
        page = image(db.execute(SHARD.counter_page).get)
        return page is None or pages.first_row(page)[1:] == db.execute(SHARD.read_counter).get

    mark = wal.read_mark(path.with_name(files.MARKS), shard)
    return wal.damage(path, db, mark, every_commit_synced=every_commit_synced, in_database=in_database)


def _again(error: StoreError) -> StoreError:
    """The same error as a new object: one that is raised again and again would gather tracebacks."""
    fresh = type(error).__new__(type(error))
    fresh.__dict__.update(error.__dict__)
    fresh.args = error.args
    return fresh
