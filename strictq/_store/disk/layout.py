"""The directory of a queue: its file names, its atomic creation, and operations on WAL files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ..._platform import files
from ..._values import hints
from ..._values.errors import InvalidArgument, QueueNotFound, ReadOnlyQueue

CATALOG: Final = "queue.db"
WAKE: Final = "wake"
PRESENCE: Final = "presence"
RESERVE: Final = "reserve"
MARKS: Final = "marks"
CONSUMER: Final = "consumer-"
BREAKER: Final = "breaker-"
PROGRESS: Final = "progress-"
SPANS: Final = "spans-"
WATCH: Final = "console-watch"
"""Its time is when a console last looked at the workers' spans."""
HOLDER: Final = "holder-"
LIVE: Final = "live-"
RATES: Final = "rates"
MOVE_LOCK: Final = "move.lock"
SHIP_LOCK: Final = "ship.lock"
SHIP_STATUS: Final = "ship-status"
SHIP_ROUNDS: Final = "ship-rounds"
FORK: Final = "fork"
REPLICA_MARK: Final = "replica"
"""Exists among the files of a living replica, which only the replica's own process may write to."""
_DIRECTORY_MODE: Final = 0o700
_SPARE: Final = 3
"""Descriptors that the removal of a directory needs: the directory, its listing, and the module that removes it."""


def shard_file(shard: int) -> str:
    return f"shard-{shard:04d}.db"


def check_own(directory: Path, *, writing: bool) -> None:
    """Check the files that are not SQLite's before any of them is opened.

    Raises:
        StoreError: one of them is not a regular file, or is to be written and has another name; nothing was changed.
    """
    for name in (WAKE, PRESENCE, MARKS, RESERVE):
        with suppress(FileNotFoundError):
            files.require_regular(directory / name, os.lstat(directory / name), writing=writing)


def find(path: Path, *, replica: bool = False) -> bool:
    """Return whether there is a queue at this path.

    Args:
        replica: accept the files of a living replica, too.
    Raises:
        InvalidArgument: the path is a file, or the directory is world-writable.
        QueueNotFound: it is a directory with something else in it.
        ReadOnlyQueue: it is a living replica.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    except OSError as e:
        raise InvalidArgument(f"{path} can't be accessed: {e.strerror}") from e
    if not stat.S_ISDIR(mode):
        raise InvalidArgument(f"{path} is not a directory", hint=hints.NOT_A_DIRECTORY)
    try:
        entries = os.listdir(path)
    except PermissionError as e:
        raise InvalidArgument(f"{path} can't be read: {e.strerror}") from e
    if CATALOG not in entries:
        if entries:
            hint = hints.NOT_A_QUEUE
            raise QueueNotFound(f"{path} is a directory, but not a queue", hint=hint)
        return False
    if REPLICA_MARK in entries and not replica:
        raise ReadOnlyQueue(
            f"{path} is part of a replica that receives changes; nothing was changed", hint=hints.PROMOTE.of(path=path.parent)
        )
    if mode & stat.S_IWOTH and hasattr(os, "geteuid"):
        raise InvalidArgument(f"{path} is world-writable", hint=hints.CHMOD.of(path=path))
    catalog = os.lstat(path / CATALOG).st_mode
    if not stat.S_ISREG(catalog):
        raise InvalidArgument(f"{path / CATALOG} is not a regular file")
    return True


def publish(path: Path, build: Callable[[Path], None]) -> None:
    """Create a queue's directory atomically: build it under a temporary name, sync it, and rename it.

    A process that opens it sees all of it or nothing. If another process was faster, its queue stays and this one is deleted.
    """
    parent = path.parent
    building = parent / f".{path.name}.{os.urandom(6).hex()}.new"
    spare: list[int] = []
    missing: list[Path] = []
    try:
        spare.extend(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_SPARE))
        files.make_directories(parent, missing)
        building.mkdir(mode=_DIRECTORY_MODE)
        build(building)
        files.sync_directory(building)
        try:
            os.rename(building, path)
        except OSError:
            if not (path / CATALOG).exists():
                raise
        files.sync_directory(parent)
    except OSError as e:
        if e.errno in files.ILL:
            raise files.failure(f"{path} can't be created", e) from e
        raise InvalidArgument(f"{path} can't be created: {e.strerror or e}") from e
    finally:
        for fd in spare:  # frees the descriptors that the removal needs
            os.close(fd)
        if building.exists():
            files.remove_tree(building)
        files.remove_empty(missing)


# ---- WALs


@contextmanager
def _wal(path: Path, flags: int) -> Iterator[int | None]:
    try:
        fd = files.open_regular(f"{path}-wal", flags)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def sync_wal(path: Path) -> None:
    """Sync a shard's WAL. Opening and closing the -wal file is safe; the database and its -shm must never be opened this way."""
    with _wal(path, os.O_RDONLY) as fd:
        if fd is not None:
            os.fsync(fd)


def rewrite_wal(path: Path, at: int) -> None:
    """Rewrite a shard's WAL in place from an offset, and sync it. The caller holds the shard's write lock."""
    with _wal(path, os.O_RDWR) as fd:
        if fd is not None:
            while block := os.pread(fd, 1 << 20, at):
                at += os.pwrite(fd, block, at)
            os.fsync(fd)


def cut_wal(path: Path, at: int) -> None:
    """Truncate a shard's WAL at an offset, and sync it. The caller holds the shard's write lock."""
    with _wal(path, os.O_RDWR) as fd:
        if fd is not None and os.fstat(fd).st_size > at:
            os.ftruncate(fd, at)
            os.fsync(fd)


def wal_bytes(path: Path) -> int:
    """Return the size of a shard's WAL."""
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0


def mark_replica(directory: Path, *, living: bool = True) -> None:
    """Mark the files in a directory as a living replica, or as a queue of its own. Durable on return.

    Raises:
        StoreError: the mark can't be written or removed.
    """
    with files.typed("the replica can't be marked"):
        mark = directory / REPLICA_MARK
        if living != mark.exists():
            if living:
                files.create_empty(mark)
            else:
                mark.unlink()
        files.sync_directory(directory)


def is_marked_replica(directory: Path) -> bool:
    """Return whether the files in a directory are those of a living replica."""
    return (directory / REPLICA_MARK).exists()
