"""Records everything that a queue writes to disk, for power cuts.

SQLite's files are recorded by a VFS over SQLite's own. The queue's other files, and directories, are recorded in the functions of
`os` that make and change them. Files really are written, so that the recorded program can run on.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import pytest

from strictq._store.commit import connection
from strictq._store.disk import checksums, reserve
from strictq._store.whole import upkeep
from strictq.testing import FakeClock
from tests.support import history, recorded
from tests.support.internals import ALONE
from tests.support.powercut_disk import ROOT, Disk, Op

RESERVE_BYTES: Final = 65536
_numbers = itertools.count()
_real_open, _real_close = os.open, os.close


@attrs.frozen(eq=False)
class Snapshot:
    """All rows of a database file at a commit."""

    digest: bytes
    tables: dict[str, list[tuple[Any, ...]]]
    columns: dict[str, list[str]]

    def one(self, table: str) -> dict[str, Any]:
        """Return the only row of a table."""
        return dict(zip(self.columns[table], self.tables[table][0], strict=True))

    def all(self, table: str) -> Iterator[dict[str, Any]]:
        for row in self.tables.get(table, ()):
            yield dict(zip(self.columns[table], row, strict=True))


def _tables(execute: Callable[..., Any]) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables, without the engine's own code."""
    names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    return {name: execute(f'SELECT * FROM "{name}"').fetchall() for (name,) in execute(names).fetchall()}


def _digest(tables: dict[str, list[tuple[Any, ...]]]) -> bytes:
    return hashlib.blake2b(repr(list(tables.items())).encode(), digest_size=16).digest()


def digest(db: apsw.Connection) -> bytes:
    """Return the digest of this database's snapshot."""
    return _digest(_tables(db.execute))


def snapshot(db: apsw.Connection) -> Snapshot:
    """Read everything."""
    execute = super(Watched, db).execute if isinstance(db, Watched) else db.execute
    tables = _tables(execute)
    columns = {name: [row[1] for row in execute(f'PRAGMA table_info("{name}")').fetchall()] for name in tables}
    return Snapshot(_digest(tables), tables, columns)


@contextmanager
def opened(path: Path) -> Iterator[apsw.Connection]:
    """Open an ordinary connection to a database, which changes nothing except through SQLite's own recovery."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checksums.vfs())
    try:
        db.wal_autocheckpoint(0)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        yield db
    finally:
        db.close()


def require_whole(db: apsw.Connection) -> None:
    """Verify a database.

    Raises:
        apsw.CorruptError: a page is damaged, or an index differs from its table.
    """
    if (found := db.execute("PRAGMA integrity_check(1)").get) != "ok":
        raise apsw.CorruptError(found)


def read_file(path: Path) -> Snapshot:
    """Read everything in a database file."""
    with opened(path) as db:
        require_whole(db)
        return snapshot(db)


class Journal:
    """What happened under `root`, in order, and the snapshot that each commit of each database made."""

    def __init__(self, root: Path, known: dict[str, Snapshot]) -> None:
        """Begin a journal.

        Args:
            known: snapshots of the databases that exist already.
        """
        self.root = Path(os.path.realpath(root))
        self.start = Disk()
        self._next = self.start.take_in(self.root)
        self._paths: dict[str, int] = {str(self.root): ROOT}
        self._learn(self.root, ROOT)
        self.ops: list[Op] = []
        self.known = tuple(known)
        self.snapshots: dict[str, list[Snapshot]] = {name: [snap] for name, snap in known.items()}
        self.recording = False
        self.reads_commits = True
        """Whether snapshots are taken, which takes a third of a run's time."""
        self.passing = False
        """Whether a power cut may lose what is committed now, at any durability."""
        self.descriptors: dict[int, int] = {}
        self.fault: Callable[[str, str], None] | None = None
        """Called with an operation and its path before it is done. May raise instead."""

    def lose(self, path: Any) -> None:
        """Record that a sync of this file failed. The kernel then considers written what it could not write."""
        if self.recording and self.knows(path):
            self.ops.append(Op("lost", self.number(path)))

    def hit(self, kind: str, path: Any) -> None:
        if self.fault is not None and self.recording and path is not None:
            self.fault(kind, str(path))

    def _learn(self, place: Path, directory: int) -> None:
        for name, number in self.start.directories.get(directory, {}).items():
            self._paths[str(place / name)] = number
            self._learn(place / name, number)

    def mine(self, path: Any) -> bool:
        return self.recording and isinstance(path, str | Path) and str(path).startswith(f"{self.root}{os.sep}")

    def note(self, kind: str, name: str = "", at: int = 0) -> None:
        """Record an entry about the program, not about the disk."""
        if self.recording:
            self.ops.append(Op(kind, at=at, name=name))

    def number(self, path: Any) -> int:
        return self._paths[str(path)]

    def knows(self, path: Any) -> bool:
        return str(path) in self._paths

    def create(self, path: Any, *, directory: bool = False) -> int:
        """Record the name of a new file or directory."""
        number, self._next = self._next, self._next + 1
        parent, name = os.path.split(str(path))
        self._paths[str(path)] = number
        self.ops.append(Op("link", self.number(parent), int(directory), name=name, other=number))
        return number

    def unlink(self, path: Any) -> None:
        parent, name = os.path.split(str(path))
        if self._paths.pop(str(path), None) is not None:
            self.ops.append(Op("unlink", self.number(parent), name=name))

    def rename(self, old: Any, new: Any) -> None:
        (parent, name), (new_parent, new_name) = os.path.split(str(old)), os.path.split(str(new))
        assert parent == new_parent, "no queue moves files between directories"
        number = self.number(old)
        self.ops.append(Op("rename", self.number(parent), name=name, other=number, other_name=new_name))
        for path in [p for p in self._paths if p == str(old) or p.startswith(f"{old}{os.sep}")]:
            self._paths[str(new) + path[len(str(old)) :]] = self._paths.pop(path)

    def write(self, number: int, at: int, data: bytes) -> None:
        if self.recording:
            self.ops.append(Op("write", number, at, bytes(data)))

    def truncate(self, number: int, size: int) -> None:
        if self.recording:
            self.ops.append(Op("truncate", number, size))

    def link(self, old: Any, new: Any) -> None:
        """Record another name of a file."""
        parent, name = os.path.split(str(new))
        number = self._paths[str(new)] = self.number(old)
        self.ops.append(Op("link", self.number(parent), name=name, other=number))

    def sync(self, number: int) -> None:
        if self.recording:
            self.ops.append(Op("sync", number))

    def sync_directory(self, path: Any) -> None:
        if self.recording:
            self.ops.append(Op("syncdir", self.number(path)))

    def committing(self, name: str, db: apsw.Connection) -> int:
        """Record that a COMMIT begins. Reads what it would commit, inside the transaction."""
        if not self.reads_commits:
            return -1
        made = self.snapshots.setdefault(name, [])
        made.append(snapshot(db))
        self.note("begin", name, len(made) - 1)
        return len(made) - 1


class _File(apsw.VFSFile):
    def __init__(self, journal: Journal, name: Any, flags: list[int]) -> None:
        self._journal = journal
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._path = path
        self._number = -1
        made = path is not None and journal.mine(path) and not os.path.exists(path)
        if path is not None:
            journal.hit("open", path)
        super().__init__("unix", name, flags)
        # SQLite's own VFS syncs the directory with the first sync of a journal that it may have made.
        kinds = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
        self._names_it = bool(flags[0] & apsw.SQLITE_OPEN_CREATE) and bool(flags[0] & kinds)
        if path is not None and journal.mine(path):
            self._number = journal.create(path) if made else journal.number(path)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._journal.hit("read", self._path)
        return super().xRead(amount, offset)

    def xLock(self, level: int) -> None:
        self._journal.hit("lock", self._path)
        super().xLock(level)

    def xFileSize(self) -> int:
        self._journal.hit("size", self._path)
        return super().xFileSize()

    def xWrite(self, data: bytes, offset: int) -> None:
        self._journal.hit("write", self._path)
        super().xWrite(data, offset)
        if self._number >= 0:
            self._journal.write(self._number, offset, data)

    def xTruncate(self, size: int) -> None:
        self._journal.hit("truncate", self._path)
        super().xTruncate(size)
        if self._number >= 0:
            self._journal.truncate(self._number, size)

    def xSync(self, flags: int) -> None:
        try:
            self._journal.hit("sync", self._path)
        except apsw.Error:
            self._journal.lose(self._path)
            raise
        super().xSync(flags)
        if self._number >= 0:
            self._journal.sync(self._number)
            if self._names_it:
                self._journal.sync_directory(os.path.dirname(self._path))
                self._names_it = False


class _Vfs(apsw.VFS):
    def __init__(self, journal: Journal) -> None:
        self.name = f"powercut-{os.getpid()}-{next(_numbers)}"
        self._journal = journal
        super().__init__(self.name, "unix")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(self._journal, name, flags)

    def xDelete(self, path: str, sync_directory: bool) -> None:
        self._journal.hit("delete", path)
        super().xDelete(path, sync_directory)
        if self._journal.mine(path):
            self._journal.unlink(path)
            if sync_directory:
                self._journal.sync_directory(os.path.dirname(path))


DIRECT: Final = ALONE


class Watched(apsw.Connection):
    """A connection that records its commits in the journal."""

    journal: Journal
    file = ""

    def execute(self, statements: str, *args: Any, **options: Any) -> Any:
        if self.file and statements in DIRECT and not self.in_transaction:
            # It commits by itself. In a transaction of its own it writes the same to the disk, and what it commits can be read.
            super().execute("BEGIN IMMEDIATE")
            before = self.total_changes()
            try:
                cursor = super().execute(statements, *args, **options)
                cursor.fetchall()
            except BaseException:
                super().execute("ROLLBACK")
                raise
            if self.total_changes() != before:
                self.execute("COMMIT")
            else:
                super().execute("ROLLBACK")
            return cursor
        # A read that keeps temporary tables ends with a COMMIT, too, and writes nothing.
        if statements != "COMMIT" or not self.file or self.txn_state("main") != apsw.mapping_txn_state["SQLITE_TXN_WRITE"]:
            return super().execute(statements, *args, **options)
        number = self.journal.committing(self.file, self)
        cursor = super().execute(statements, *args, **options)
        self.journal.note("passing" if self.journal.passing else "end", self.file, number)
        return cursor


class _Apsw:
    """The module apsw for connection.py, with recorded connections."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(apsw, name)

    def Connection(self, path: str, *args: Any, **options: Any) -> apsw.Connection:
        db = Watched(path, *args, **options)
        db.journal = self._journal
        if self._journal.mine(path):
            db.file = os.path.basename(path)
        return db


class _Os:
    """The functions of `os` that create, change and sync files."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        for name in (
            "open",
            "close",
            "write",
            "pwrite",
            "ftruncate",
            "fsync",
            "fdatasync",
            "mkdir",
            "link",
            "rename",
            "replace",
            "unlink",
        ):
            patch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        watch = getattr(self, f"_{name}")

        def call(*args: Any, **options: Any) -> Any:
            return watch(real, *args, **options)

        return call

    def _open(self, real: Any, path: Any, flags: int, *args: Any, **options: Any) -> int:
        journal = self._journal
        mine = journal.mine(path) or (journal.recording and str(path) == str(journal.root))
        made = mine and not os.path.exists(path)
        fd: int = real(path, flags, *args, **options)
        if mine:
            journal.descriptors[fd] = journal.create(path) if made else journal.number(path)
        return fd

    def _close(self, real: Any, fd: int) -> None:
        self._journal.descriptors.pop(fd, None)
        real(fd)

    def _write(self, real: Any, fd: int, data: Any) -> int:
        number = self._journal.descriptors.get(fd)
        at = 0 if number is None else os.lseek(fd, 0, os.SEEK_CUR)
        if number is not None:
            self._journal.hit("put", os.readlink(f"/proc/self/fd/{fd}"))
        done: int = real(fd, data)
        if number is not None:
            self._journal.write(number, at, bytes(data[:done]))
        return done

    def _pwrite(self, real: Any, fd: int, data: Any, at: int) -> int:
        done: int = real(fd, data, at)
        if fd in self._journal.descriptors:
            self._journal.write(self._journal.descriptors[fd], at, bytes(data[:done]))
        return done

    def _ftruncate(self, real: Any, fd: int, size: int) -> None:
        real(fd, size)
        if fd in self._journal.descriptors:
            self._journal.truncate(self._journal.descriptors[fd], size)

    def _fsync(self, real: Any, fd: int) -> None:
        number = self._journal.descriptors.get(fd)
        if number is not None:
            self._journal.hit("fsync", os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)
        if number is None or not self._journal.recording:
            return
        self._journal.ops.append(Op("syncdir" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync", number))

    _fdatasync = _fsync  # reading back needs the size, too, which this includes

    def _mkdir(self, real: Any, path: Any, *args: Any, **options: Any) -> None:
        real(path, *args, **options)
        if self._journal.mine(path):
            self._journal.create(path, directory=True)

    def _rename(self, real: Any, old: Any, new: Any) -> None:
        real(old, new)
        if self._journal.mine(old):
            self._journal.rename(old, new)

    _replace = _rename

    def _link(self, real: Any, old: Any, new: Any) -> None:
        real(old, new)
        if self._journal.mine(new):
            self._journal.link(old, new)

    def _unlink(self, real: Any, path: Any, **options: Any) -> None:
        real(path, **options)
        if self._journal.mine(path):
            self._journal.unlink(path)


class Recorder(history.Recorder):
    """A history whose events are also entries of the journal."""

    journal: Journal | None = None

    def _put(self, event: history.Event) -> None:
        super()._put(event)
        if self.journal is not None:
            self.journal.note("event", at=len(self.events))


@contextmanager
def quiet(clock: FakeClock) -> Iterator[pytest.MonkeyPatch]:
    """Disable the engine's own thread, use a small reserve, and record histories on the test's clock."""

    def now() -> int:
        clock.advance(0.001)
        return clock.wall() * 1000

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep.Upkeep, "_start", lambda _self: None)
        patch.setattr(reserve, "RESERVE_BYTES", RESERVE_BYTES)
        patch.setattr(reserve.Reserve.make, "__defaults__", (RESERVE_BYTES,))
        patch.setattr(history, "now", now)
        patch.setattr(recorded, "now", now)
        yield patch


@contextmanager
def recording(root: Path, clock: FakeClock, known: dict[str, Snapshot] | None = None) -> Iterator[Journal]:
    """Record what queues under `root` write in this block. Close them inside it, after unsetting `recording`."""
    journal = Journal(root, known or {})
    with quiet(clock) as patch, beneath_the_checksums(_Vfs(journal)):
        patch.setattr(connection, "apsw", _Apsw(journal))
        _Os(journal).patch(patch)
        journal.recording = True
        try:
            yield journal
        finally:
            journal.recording = False


@contextmanager
def beneath_the_checksums(vfs: apsw.VFS) -> Iterator[None]:
    """Put the page verification on top of this VFS in this block, so that the VFS sees what goes to the disk.

    The checksum layer uses the VFS that is the default when it is loaded, so it is loaded again. No queue may be open around the
    block.
    """
    name = vfs.name  # type: ignore[attr-defined]
    default = apsw.vfs_names()[0]
    if checksums.VFS in apsw.vfs_names():
        apsw.unregister_vfs(checksums.VFS)
    apsw.set_default_vfs(name)
    try:
        checksums.vfs()
        apsw.set_default_vfs(default)
        yield
    finally:
        apsw.set_default_vfs(default)
        apsw.unregister_vfs(checksums.VFS)
        vfs.unregister()
        checksums.vfs()
