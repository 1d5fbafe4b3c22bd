"""Files that are not SQLite's: opened only if they are regular files, replaced atomically, locked, and synced.

All such I/O in a queue's directory is here and in `_store/disk/`.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from .._values import hints
from .._values.errors import InvalidArgument, StoreError, StoreFull

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

FILE_MODE: Final = 0o600
MTIME_STEP_NS: Final = 100_000_000
"""The longest step of a file system's timestamps."""
FULL: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file has reached its size limit (ulimit -f, or the file system's)",
}
"""Why a write has no room."""
_LIMITS: Final = (errno.EMFILE, errno.ENFILE)
ILL: Final = (*FULL, *_LIMITS, errno.EIO, errno.ENOMEM)
"""Errors caused by the system's state, not by the path."""
_IRREGULAR: Final = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""Errors of opening a symbolic link, a directory, a socket, or a FIFO without a reader."""
_CONNECTION: Final = 5
"""Upper bound of a connection's descriptors: database, WAL or journal, -shm, the directory, and one of strictq's."""


def real_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path without symbolic links.

    Raises:
        InvalidArgument: it is relative, and the current directory was deleted; nothing was changed.
    """
    try:
        return os.path.realpath(path)
    except FileNotFoundError:
        raise InvalidArgument(
            f"the path {os.fspath(path)!r} is relative, and the current directory was deleted", hint=hints.CHANGE_DIRECTORY
        ) from None


# ---- errors of the operating system


def failure(what: str, error: OSError, shard: int = -1) -> StoreError:
    """Return the StoreError for an error of the operating system.

    Raises:
        OSError: the given one, if it has no number: the program raised it, such as the TimeoutError of a signal handler.
    """
    if error.errno is None:
        raise error
    if error.errno in FULL:
        return StoreFull(FULL[error.errno], shard=shard, cause=error, file=error.filename)
    if error.errno in _LIMITS:
        return out_of_descriptors(error, shard)
    return StoreError(f"{what}: {error.strerror or error}", shard=shard, cause=error)


def out_of_descriptors(error: BaseException, shard: int) -> StoreError:
    text = "this process, or the machine, has no file descriptor left; nothing was changed"
    return StoreError(text, shard=shard, cause=error, hint=hints.NO_DESCRIPTORS, transient=True)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Name the file in OSErrors of the block. Those of a descriptor have no name."""
    try:
        yield
    except OSError as e:
        if e.filename is None:
            e.filename = str(path)
        raise


@contextmanager
def typed(what: str, shard: int = -1) -> Iterator[None]:
    """Raise OSErrors of the block as StoreErrors. The block may import modules late."""
    try:
        yield
    except OSError as e:
        raise failure(what, e, shard) from e


def late() -> AbstractContextManager[None]:
    """Return a context manager for a late import, which raises OSErrors as StoreErrors."""
    return typed("a module can't be loaded")


def require_descriptors() -> None:
    """Raise if too few descriptors are free, before a step that would mistake a file it cannot open for a missing one.

    Raises:
        StoreError: too few descriptors are free; transient.
    """
    taken: list[int] = []
    try:
        with typed("files can't be opened"):
            taken.extend(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_CONNECTION))
    finally:
        for fd in taken:
            os.close(fd)


# ---- opening and writing


def open_regular(path: Path | str, flags: int) -> int:
    """Open a regular file without hard links in the queue's directory. Never block, as opening a FIFO would.

    Never open a database or its -shm with this. `check_file` of connection.py checks them without opening.

    Raises:
        StoreError: it is not a regular file, or it is opened for writing and has hard links; nothing was changed.
        OSError: it can't be opened.
    """
    odd = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        fd = os.open(path, flags | odd, FILE_MODE)
    except OSError as e:
        if e.errno in _IRREGULAR:
            require_regular(Path(path), os.lstat(path), writing=False)
        raise
    try:
        require_regular(Path(path), os.fstat(fd), writing=bool(flags & (os.O_WRONLY | os.O_RDWR)))
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def opened(path: Path | str, flags: int) -> Iterator[int]:
    """Do the same for the block, and yield the descriptor."""
    fd = open_regular(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def require_regular(path: Path, found: os.stat_result, *, writing: bool, shard: int = -1) -> None:
    """Raise unless this is a regular file; for writing, also if it has hard links.

    Raises:
        StoreError: the file is refused; nothing was changed.
    """
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(
            f"{path.name} is {_KINDS.get(stat.S_IFMT(found.st_mode), 'a device')}, not a regular file; nothing was changed",
            shard=shard, hint=hints.REMOVE_OR_RESTORE.of(path=path),
        )  # fmt: skip
    if writing and found.st_nlink > 1:
        raise StoreError(
            f"{path.name} has {found.st_nlink} names (hard links), and writing to it would change them all; nothing was changed",
            shard=shard, hint=hints.UNLINK,
        )  # fmt: skip


_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
}


def create_empty(path: Path, size: int = 0) -> None:
    """Create a file of zeros, readable by its owner only, before SQLite opens it. The journals inherit its permissions."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE)
    try:
        if size:
            with naming(path):
                os.write(fd, bytes(size))
    finally:
        os.close(fd)


def replace(path: Path, data: bytes) -> None:
    """Replace the content of a small file atomically. It is not synced: a power cut may undo it."""
    part = path.with_name(f"{path.name}.part")
    with opened(part, os.O_CREAT | os.O_WRONLY) as fd:
        os.ftruncate(fd, 0)  # not with O_TRUNC: the file is checked for hard links after it is opened
        os.write(fd, data)
    os.replace(part, path)


def replace_durably(path: Path, data: bytes) -> None:
    """Replace the content atomically and durably.

    A power cut leaves the old content or the new one; after the return, the new.
    """
    part = path.with_name(f"{path.name}.part")
    with opened(part, os.O_CREAT | os.O_WRONLY) as fd, naming(path):
        os.ftruncate(fd, 0)
        write_all(fd, data)
        os.fsync(fd)
    os.replace(part, path)
    sync_directory(path.parent)


def content(path: Path, most: int) -> bytes | None:
    """Return the first bytes of a small file; None: it does not exist, or can't be read."""
    try:
        with opened(path, os.O_RDONLY) as fd:
            return os.read(fd, most)
    except (OSError, StoreError):
        return None


def changed_at(path: Path) -> int | None:
    """Return a value that changes with each write to the file; None: the last write is too recent to tell a later one apart."""
    try:
        at = os.stat(path).st_mtime_ns
    except OSError:
        return None
    return at if abs(time.time_ns() - at) > MTIME_STEP_NS else None


def names_in(directory: Path) -> Sequence[str]:
    """Return the names in a directory, which is read again only if it has changed.

    Raises:
        OSError: it can't be read.
    """
    changed = changed_at(directory)
    return os.listdir(directory) if changed is None else _names(directory, changed)


@lru_cache(maxsize=64)
def _names(directory: Path, _changed: int) -> Sequence[str]:
    return tuple(os.listdir(directory))


def free_bytes(path: Path | None) -> int | None:
    """Return the free bytes for this user on the disk of a file; None: unknown."""
    if path is None:
        return None
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def sync_data(fd: int) -> None:
    """Sync a file's content, with the part of its metadata that reading it needs."""
    if sys.platform in ("darwin", "win32"):
        os.fsync(fd)
    else:
        os.fdatasync(fd)


# ---- directories


def sync_directory(path: Path) -> None:
    if os.name == "nt":  # Windows can't sync directories
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: Path, made: list[Path] | None = None) -> None:
    """Create a directory and its parents durably: each new name is synced in its parent directory.

    Args:
        made: the created directories are appended here, for a caller that removes them if it fails later.
    """
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        if made is not None:
            made.append(new)
        sync_directory(new.parent)


def remove_empty(made: list[Path]) -> None:
    """Remove the directories that `make_directories` created, if they are empty."""
    for new in reversed(made):
        with suppress(OSError):
            new.rmdir()


def remove_tree(path: Path | str) -> None:
    """Remove a directory and its contents. Errors are ignored."""
    import shutil  # imported late: it imports every compressor of the standard library

    shutil.rmtree(path, ignore_errors=True)


# ---- names and locks


def named(directory: Path, kind: str, name: str) -> Path:
    """Return the path of a named object's file. The name is hashed, because it may contain any character."""
    with late():
        from hashlib import blake2b

    return directory / f"{kind}{blake2b(name.encode(), digest_size=8).hexdigest()}"


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of it to a file. A system call may write a part."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def lock_file(fd: int, *, shared: bool = False, seconds: float = 0.0) -> bool:
    """Lock an open file until it is closed. Return False if it is not free in time."""
    if fcntl is None:  # pragma: no cover - Windows
        return True
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.01)
        else:
            return True


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock on this file."""
    lock = Lock(path, look=True)
    try:
        return not lock.alone(0.0)
    except StoreError:
        return False
    finally:
        lock.leave()


class Lock:
    """An OS lock on a file in the queue's directory. It ends with the process, however that ends."""

    def __init__(self, path: Path, *, look: bool = False) -> None:
        """Prepare the lock. With look, never create the file or open it for writing."""
        self._path = path
        self._fd: int | None = None
        self._look = look

    def _lock(self, *, shared: bool, seconds: float) -> bool:
        if fcntl is None:  # pragma: no cover - Windows
            return True
        if self._fd is None:
            try:
                self._fd = open_regular(self._path, os.O_RDONLY if self._look else os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                return True  # look: no process can hold a lock on a missing file
            except OSError as e:
                if e.errno in ILL:
                    raise failure(f"the {self._path.name} file can't be opened", e) from e
                raise StoreError(
                    f"the {self._path.name} file can't be opened: {e.strerror}", shard=-1, cause=e,
                    hint=hints.LOOK_READ_ONLY,
                ) from e  # fmt: skip
        return lock_file(self._fd, shared=shared, seconds=seconds)

    def alone(self, seconds: float) -> bool:
        """Take the lock exclusively. Return False if it is not free in time."""
        return self._lock(shared=False, seconds=seconds)

    def share(self, seconds: float) -> bool:
        """Take the lock shared. Return False if another process holds it exclusively for all this time."""
        return self._lock(shared=True, seconds=seconds)

    def leave(self) -> None:
        """Release the lock. In a forked child, this releases the child's descriptor; the parent keeps the lock."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
