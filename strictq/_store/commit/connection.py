"""Open SQLite connections, and translate SQLite's errors into strictq's."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NoReturn

import apsw

from ..._platform import files
from ..._values import hints
from ..._values.errors import (
    ConfigError,
    InvalidArgument,
    OutcomeUnknown,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StrictqError,
)
from ..disk import checksums
from ..disk.stored import OF_PYTHON, is_of_c, is_of_sqlite

Durability = Literal["full", "process"]

BUSY_SECONDS: Final = 10.0
"""How long a call waits for a write lock before it raises StoreBusy."""
SHORT_STEP_SECONDS: Final = 0.0002
"""The interval between two attempts to get a lock, at first. Each costs about ten microseconds of processor time."""
SHORT_STEPS_SECONDS: Final = 0.05
LONG_STEP_SECONDS: Final = 0.001
CACHE_KIB: Final = 16 * 1024
STATEMENTS_CACHED: Final = 1000
"""The number of executions for which an unused prepared statement stays cached. apsw's cache is a ring of that many places, and
each row of an executemany takes one."""
MEMORY: Final = ":memory:"

_BROKEN_SQLITE: Final = ((3, 51, 3), (3, 52, 0))


def require_sound_sqlite(version: str) -> None:
    """Refuse a linked SQLite that can skip committed frames when two connections write and checkpoint at once.

    Raises:
        ConfigError: the version is older than 3.51.3, or is 3.52.0.
    """
    parts = tuple(int(p) for p in version.split(".")[:3])
    oldest, withdrawn = _BROKEN_SQLITE
    if parts < oldest or parts == withdrawn:
        raise ConfigError(f"SQLite {version} can lose committed writes in WAL mode", hint=hints.INSTALL_APSW)


def connect(
    path: str,
    *,
    durability: Durability,
    read_only: bool = False,
    cache_kib: int = CACHE_KIB,
    fresh: bool = False,
    verify: bool = True,
) -> apsw.Connection:
    """Return a configured connection to a shard's file, or to a new in-memory database.

    Args:
        fresh: the file is new and empty: set WAL mode, which it keeps. The mode of an existing file is not changed.
        verify: False: read pages even if their checksums are wrong.
    """
    if path == MEMORY:
        db = apsw.Connection(MEMORY, statementcachesize=STATEMENTS_CACHED)
    else:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
        db = apsw.Connection(path, flags=flags, vfs=checksums.vfs(), statementcachesize=STATEMENTS_CACHED)
    try:
        # The engine checkpoints itself (upkeep.py); SQLite must not, neither on commit nor on close. Set this before anything
        # can fail: closing a connection that was not set up would checkpoint and delete the WAL.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.wal_autocheckpoint(0)
        if not verify:
            db.pragma("checksum_verification", False)
        _harden(db)
        db.convert_binding = _refuse_binding
        db.set_busy_handler(LockWait())
        if path == MEMORY:
            db.pragma("journal_mode", "memory")
        else:
            _set_up_file(db, durability, cache_kib, fresh=fresh, read_only=read_only)
        db.pragma("temp_store", "memory")
    except BaseException:
        db.close()
        raise
    return db


def _set_up_file(db: apsw.Connection, durability: Durability, cache_kib: int, *, fresh: bool, read_only: bool) -> None:
    if fresh:
        checksums.lay_out(db)
    # Run each pragma by itself: journal_mode returns a row, and in one string the next statements would wait until it is read.
    if fresh and db.pragma("journal_mode", "wal") != "wal":
        raise StoreError("the file system does not support WAL mode", shard=-1)
    db.pragma("synchronous", "full" if durability == "full" else "normal")
    # If fsync does not reach past the drive's cache (macOS), use the call that does.
    db.pragma("fullfsync", durability == "full")
    db.pragma("checkpoint_fullfsync", True)
    db.pragma("cache_size", -cache_kib)
    if not read_only:
        import ctypes  # only writers need it

        # A durable commit to a WAL of full size is twice as fast as one to a WAL that grows, so the file is kept.
        keep = ctypes.c_int(1)
        db.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(keep))


def connect_catalog(path: str, *, read_only: bool = False, fresh: bool = False) -> apsw.Connection:
    """Return a connection to queue.db: rollback journal, every commit synced. It is opened for one step and then closed.

    Args:
        fresh: the file is new and empty.
    """
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    db = apsw.Connection(path, flags=flags, vfs=checksums.vfs())
    try:
        _harden(db)
        db.set_busy_handler(LockWait())
        if fresh:
            checksums.lay_out(db)
        if not read_only:
            db.pragma("synchronous", "extra")
    except BaseException:
        db.close()
        raise
    return db


def _harden(db: apsw.Connection) -> None:
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    db.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    db.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
    # Plans must not depend on bound values: otherwise SQLite prepares half of our statements again at every call.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    db.pragma("cell_size_check", True)


def _refuse_binding(_cursor: object, _number: int, value: object) -> NoReturn:
    """Refuse a value of a type that SQLite does not have. Called by apsw.

    Raises:
        InvalidArgument: always. The TypeError that apsw would raise looks like one of the program's.
    """
    raise InvalidArgument(f"SQLite can't store a value of type {type(value).__name__}; nothing was changed")


class LockWait:
    """A busy handler that waits for locks in short steps. The steps of SQLite's own grow to 100 ms, which starves a process.

    A busy process holds the lock nearly always, and releases it for some tenths of a millisecond at a time. A process that
    checks less often is overtaken again and again: one send in a thousand by 24 transactions or more in steps of 1 ms, by 10 in
    these.
    """

    __slots__ = ("_started", "seconds")

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        """How long to wait. None: BUSY_SECONDS."""
        self._started = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._started = now
        waited = now - self._started
        limit = BUSY_SECONDS if self.seconds is None else self.seconds
        if waited > limit or not limit:
            return False
        time.sleep(SHORT_STEP_SECONDS if waited < SHORT_STEPS_SECONDS else LONG_STEP_SECONDS)
        return True


@contextmanager
def at_once(db: apsw.Connection) -> Iterator[None]:
    """Do not wait for locks within the block: raise BusyError at once."""
    db.set_busy_timeout(0)
    try:
        yield
    finally:
        db.set_busy_handler(LockWait())


def check_file(path: Path, shard: int, *, writing: bool) -> None:
    """Verify that a database exists, and that it and SQLite's files beside it are regular files, without opening them.

    Opening and closing one as a plain file would drop this process's SQLite locks on it. Readers write to the -shm, too.

    Raises:
        StoreCorrupt: the database is missing, or one of the files is a link or not a regular file.
        StoreError: one of them is to be written, and has another name (a hard link).
    """
    for part in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(f"{path.name}{part}")
        try:
            found = os.lstat(file)
        except FileNotFoundError:
            if part:
                continue
            raise StoreCorrupt(f"{file.name} is missing", shard=shard) from None
        if stat.S_ISLNK(found.st_mode):
            raise StoreCorrupt(f"{file.name} is a symbolic link, which is refused", shard=shard)
        if not stat.S_ISREG(found.st_mode):
            raise StoreCorrupt(f"{file.name} is not a regular file", shard=shard)
        files.require_regular(file, found, writing=writing or part == "-shm", shard=shard)


@contextmanager
def in_write_transaction(db: apsw.Connection) -> Iterator[None]:
    """Run the block in a write transaction, for queue.db and for files that no process has open yet.

    Raises:
        OutcomeUnknown: the COMMIT failed, and may have taken effect.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    try:
        db.execute("COMMIT")
    except (apsw.BusyError, apsw.FullError):
        raise  # the journal was not deleted, so closing the connection rolls it back
    except apsw.Error as e:
        raise OutcomeUnknown(f"COMMIT failed: {e}", shard=-1, cause=e) from e


def translate(error: BaseException, shard: int, db: apsw.Connection | None = None) -> BaseException:
    """Return strictq's error for one of SQLite's, chosen by class and never by text. Return other errors unchanged.

    Others are those of the program's code that ran inside a transaction, and of the interpreter. They never mean damage.

    Args:
        db: the open connection that raised it, which knows why a write failed.
    """
    if isinstance(error, OF_PYTHON) and not is_of_c(error):
        return error
    if isinstance(error, UnicodeDecodeError):
        if not is_of_sqlite(error):
            return error
        return StoreCorrupt(f"it has text that is not UTF-8: {error}", shard=shard, cause=error)
    if isinstance(error, (*OF_PYTHON, apsw.BindingsError, apsw.TooBigError)):
        return InvalidArgument(
            f"a value can't be bound to a statement: {error}; nothing was changed",
            hint=hints.CHECK_ARGUMENTS,
        )
    if isinstance(error, StrictqError) or not isinstance(error, apsw.Error):
        return error
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA:
        return StoreCorrupt("a page is damaged: its checksum is wrong", shard=shard, cause=error)
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
        return StoreFull("the disk is full", shard=shard, cause=error)  # the -shm could not grow
    if full := no_room(error, db):
        return StoreFull(full, shard=shard, cause=error)
    if isinstance(error, apsw.CantOpenError | apsw.IOError):
        try:
            files.require_descriptors()  # SQLite does not report this as the reason
        except StoreError:
            return files.out_of_descriptors(error, shard)
    kind: type[StoreError] = StoreError
    for theirs, ours in _CLASSES:
        if isinstance(error, theirs):
            kind = ours
            break
    return kind(f"{type(error).__name__}: {error}", shard=shard, cause=error)


_CLASSES: Final[tuple[tuple[type[apsw.Error], type[StoreError]], ...]] = (
    (apsw.BusyError, StoreBusy),
    (apsw.LockedError, StoreBusy),
    (apsw.CorruptError, StoreCorrupt),
    (apsw.NotADBError, StoreCorrupt),
)


def no_room(error: BaseException, db: apsw.Connection | None) -> str | None:
    """Return why a write had no room; None: it failed otherwise.

    SQLite has a class for a full disk only. For a quota and for a file that may not grow, it reports a failed write.
    """
    if isinstance(error, apsw.FullError):
        return files.FULL[errno.ENOSPC]
    if db is None or getattr(error, "extendedresult", 0) != apsw.SQLITE_IOERR_WRITE:
        return None
    return files.FULL.get(db.system_errno)


def after_commit(error: Exception, shard: int) -> Exception:
    """Return the error to raise for an exception that came once a COMMIT had begun: OutcomeUnknown for one of the program's."""
    if isinstance(error, StrictqError):
        return error
    found = OutcomeUnknown(f"{type(error).__name__} was raised once the COMMIT had begun: {error}", shard=shard, cause=error)
    found.__cause__ = error
    return found


def failed_sync(error: BaseException) -> bool:
    """Return whether SQLite reports that an fsync failed."""
    return getattr(error, "extendedresult", 0) in (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)


def leak(db: apsw.Connection) -> None:
    """Keep a connection that came through a fork from being closed: that would change shared memory of the parent."""
    import ctypes  # fork.py imported it before the fork

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))


Opener = Callable[[], apsw.Connection]


class Connected:
    """A holder of a connection, which is opened when it is needed."""

    _db: apsw.Connection | None = None

    @property
    def opened(self) -> bool:
        """Whether its connection is open."""
        return self._db is not None

    def _drop_connection(self) -> None:
        db = self._db
        if db is None:
            return
        try:
            db.close()
        except apsw.Error:
            pass
        finally:
            self._db = None  # behind the close, so that an interrupt can't come between the two

    def abandon(self) -> None:
        """Keep the parent's connection untouched and unclosed, in a child whose fork was not prepared."""
        if self._db is not None:
            leak(self._db)
