"""Files that are not SQLite's: opened so that no link or FIFO is taken for one, replaced whole, locked, and synced.

All such I/O in a queue's directory is here and in `_store/disk/`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from . import _hints as hints
from ._errors import StoreError, StoreFull

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

FILE_MODE: Final = 0o600
MTIME_STEP_NS: Final = 100_000_000
"""A file system's times move in steps; none has longer ones than this."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_LIMITS: Final = (errno.EMFILE, errno.ENFILE)
ILL: Final = (*_FULL, *_LIMITS, errno.EIO, errno.ENOMEM)
"""What the system, and not the path, is to blame for."""
_IRREGULAR: Final = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""What opening something else than a file fails with: a link, a directory, a FIFO that has no reader or a socket."""
_CONNECTION: Final = 5
"""Descriptors that a connection takes at most: database, WAL or journal, -shm, the directory, and one of ours beside it."""


# ---- what the system refuses


def failure(what: str, error: OSError, shard: int = -1) -> StoreError:
    """Our error for one of the operating system's."""
    if error.errno in _FULL:
        return StoreFull("the disk is full", shard=shard, cause=error)
    if error.errno in _LIMITS:
        return out_of_descriptors(error, shard)
    return StoreError(f"{what}: {error.strerror or error}", shard=shard, cause=error)


def out_of_descriptors(error: BaseException, shard: int) -> StoreError:
    text = "this process, or the machine, has no file descriptor left; nothing was changed"
    return StoreError(text, shard=shard, cause=error, hint=hints.NO_DESCRIPTORS, transient=True)


@contextmanager
def typed(what: str, shard: int = -1) -> Iterator[None]:
    """Raise our error for one of the operating system's: also where a module is imported when it is needed."""
    try:
        yield
    except OSError as e:
        raise failure(what, e, shard) from e


def late() -> AbstractContextManager[None]:
    """Around an import that is done when it is needed."""
    return typed("a module can't be loaded")


def require_descriptors() -> None:
    """Refuse to go on with too few descriptors, where a file that can't be opened is taken for one that is not there.

    Raises:
        StoreError: transient.
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
    """Open a file in the queue's directory, if it is one and has no other name. Never waits, as opening a FIFO would.

    A database and its -shm must never be opened so: see `check_file` of connection.py, which looks at them without opening.

    Raises:
        StoreError: it is something else, or another name leads to it too and it is to be written; nothing was changed.
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


def require_regular(path: Path, found: os.stat_result, *, writing: bool, shard: int = -1) -> None:
    """Refuse what is not a regular file; and what is written, if it has another name.

    Raises:
        StoreError: nothing was changed.
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
    """A new file of zeros that only its owner may read. Before SQLite opens it: the journals take its permissions over."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE)
    try:
        if size:
            os.write(fd, bytes(size))
    finally:
        os.close(fd)


def replace(path: Path, data: bytes) -> None:
    """Let a small file have this content, for whoever opens it from now on. Not synced: it may be gone after a power cut."""
    part = path.with_name(f"{path.name}.part")
    fd = open_regular(part, os.O_CREAT | os.O_WRONLY)
    try:
        os.ftruncate(fd, 0)  # not as it is opened: it may have another name
        os.write(fd, data)
    finally:
        os.close(fd)
    os.replace(part, path)


def replace_durably(path: Path, data: bytes) -> None:
    """The same, so that a power cut leaves this content or the one before, and after the return this one."""
    part = path.with_name(f"{path.name}.part")
    fd = open_regular(part, os.O_CREAT | os.O_WRONLY)
    try:
        os.ftruncate(fd, 0)
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(part, path)
    sync_directory(path.parent)


def content(path: Path, most: int) -> bytes | None:
    """The first bytes of a small file; None: it is not there, or can't be read."""
    try:
        fd = open_regular(path, os.O_RDONLY)
    except (OSError, StoreError):
        return None
    try:
        return os.read(fd, most)
    except OSError:
        return None
    finally:
        os.close(fd)


def changed_at(path: Path) -> int | None:
    """Another value whenever the file was written; None: it was written so recently that a later write may not show."""
    try:
        at = os.stat(path).st_mtime_ns
    except OSError:
        return None
    return at if abs(time.time_ns() - at) > MTIME_STEP_NS else None


def free_bytes(path: Path | None) -> int | None:
    """What the disk of a file has left for this user; None: nobody can say."""
    if path is None:
        return None
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


# ---- directories


def sync_directory(path: Path) -> None:
    if os.name == "nt":  # pragma: no cover - directories can't be synced there
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: Path, made: list[Path] | None = None) -> None:
    """mkdir -p, so that it survives a power cut: each new name is synced in the directory that holds it.

    Args:
        made: gets the directories that were missing, for a caller that removes them if it fails later.
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
    """Remove the directories that `make_directories` made, if there is nothing in them."""
    for new in reversed(made):
        with suppress(OSError):
            new.rmdir()


def remove_tree(path: Path | str) -> None:
    """Remove a directory and what is in it, as far as that goes."""
    import shutil  # late: it brings every compressor of the standard library, and few programs get here

    shutil.rmtree(path, ignore_errors=True)


# ---- names and locks


def named(directory: Path, kind: str, name: str) -> Path:
    """The file of something with a name that may hold what a file name may not: the name is hashed."""
    with late():
        from hashlib import blake2b

    return directory / f"{kind}{blake2b(name.encode(), digest_size=8).hexdigest()}"


class Lock:
    """An OS lock on a file in the queue's directory; it ends with the process, however that ends."""

    def __init__(self, path: Path, *, look: bool = False) -> None:
        """Args: look: never make the file, nor open it for writing."""
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
                return True  # who only looks: nobody can hold what is not there
            except OSError as e:
                if e.errno in ILL:
                    raise failure(f"the {self._path.name} file can't be opened", e) from e
                raise StoreError(
                    f"the {self._path.name} file can't be opened: {e.strerror}", shard=-1, cause=e,
                    hint=hints.LOOK_READ_ONLY,
                ) from e  # fmt: skip
        until = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    return False
                time.sleep(0.01)
            else:
                return True

    def alone(self, seconds: float) -> bool:
        """Hold it with nobody else, if that can be had in time."""
        return self._lock(shared=False, seconds=seconds)

    def share(self, seconds: float) -> bool:
        """Hold it together with others that share it, if that can be had in time."""
        return self._lock(shared=True, seconds=seconds)

    def leave(self) -> None:
        """Let go of it. In a forked child: of the child's share; the parent keeps it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
