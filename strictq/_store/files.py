"""The files of a queue that are not SQLite's, and the directory itself. All such disk I/O is here and in wal.py."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from .._errors import InvalidArgument, QueueNotFound, StoreBusy, StoreError, StoreFull

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

CATALOG: Final = "queue.db"
WAKE: Final = "wake"
PRESENCE: Final = "presence"
RESERVE: Final = "reserve"
MARKS: Final = "marks"
CONSUMER: Final = "consumer-"
QUERY: Final = "query-"
RESERVE_BYTES: Final = 2 * 1024 * 1024
"""Kept so that consumers can still ack when the disk is full; deleted then, and sends are refused until it is back."""
RESERVE_ROOM: Final = 3
JOIN_SECONDS: Final = 10.0
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700


MTIME_STEP_NS: Final = 100_000_000
"""A file system's times move in steps; none has longer ones than this."""


def shard_file(shard: int) -> str:
    return f"shard-{shard:04d}.db"


def find(path: Path) -> bool:
    """Is there a queue at this path?

    Raises:
        InvalidArgument: the path is a file, or others may write to the directory.
        QueueNotFound: it is a directory with something else in it.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    except OSError as e:
        raise InvalidArgument(f"{path} can't be looked at: {e.strerror}") from e
    if not stat.S_ISDIR(mode):
        raise InvalidArgument(f"{path} is not a directory", hint="a queue is a directory; choose another path")
    try:
        entries = os.listdir(path)
    except PermissionError as e:
        raise InvalidArgument(f"{path} can't be read: {e.strerror}") from e
    if CATALOG not in entries:
        if entries:
            hint = "check the path; a new queue needs one that does not exist"
            raise QueueNotFound(f"{path} is a directory, but not a queue", hint=hint)
        return False
    if mode & stat.S_IWOTH and hasattr(os, "geteuid"):
        raise InvalidArgument(f"everybody may write to {path}", hint=f"chmod 700 {path}")
    catalog = os.lstat(path / CATALOG).st_mode
    if not stat.S_ISREG(catalog):
        raise InvalidArgument(f"{path / CATALOG} is not a regular file")
    return True


def publish(path: Path, build: Callable[[Path], None]) -> None:
    """Make a queue's directory whole in one step: built beside its place, synced, and renamed.

    Whoever opens it sees all of it or nothing. If another process was faster, its queue stays and ours is dropped.
    """
    parent = path.parent
    building = parent / f".{path.name}.{os.urandom(6).hex()}.new"
    try:
        make_directories(parent)
        building.mkdir(mode=_DIRECTORY_MODE)
        build(building)
        sync_directory(building)
        try:
            os.rename(building, path)
        except OSError:
            if not (path / CATALOG).exists():
                raise
        sync_directory(parent)
    except OSError as e:
        if e.errno == 28:
            raise StoreFull("the disk is full", shard=-1, cause=e) from e
        raise InvalidArgument(f"{path} can't be created: {e.strerror or e}") from e
    finally:
        remove_tree(building)


def remove_tree(path: Path | str) -> None:
    """Remove a directory and what is in it, as far as that goes."""
    import shutil  # late: it brings every compressor of the standard library, and few programs get here

    shutil.rmtree(path, ignore_errors=True)


def make_directories(path: Path) -> None:
    """mkdir -p, so that it survives a power cut: each new name is synced in the directory that holds it."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_directory(new.parent)


def changed_at(path: Path) -> int | None:
    """Another value whenever the file was written; None: it was written so recently that a later write may not show."""
    try:
        at = os.stat(path).st_mtime_ns
    except OSError:
        return None
    return at if abs(time.time_ns() - at) > MTIME_STEP_NS else None


def create_empty(path: Path, size: int = 0) -> None:
    """A new file of zeros that only its owner may read. Before SQLite opens it: the journals take its permissions over."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _FILE_MODE)
    try:
        if size:
            os.write(fd, bytes(size))
    finally:
        os.close(fd)


def replace(path: Path, data: bytes) -> None:
    """Let a small file have this content, for whoever opens it from now on. Not synced: it may be gone after a power cut."""
    part = path.with_name(f"{path.name}.part")
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(part, flags, _FILE_MODE)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
    os.replace(part, path)


def content(path: Path, most: int) -> bytes | None:
    """The first bytes of a small file; None: it is not there, or can't be read."""
    flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags)
    except OSError:
        return None
    try:
        return os.read(fd, most)
    except OSError:
        return None
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    if os.name == "nt":  # pragma: no cover - directories can't be synced there
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_wal(path: Path) -> None:
    """fsync a shard's WAL. Opening and closing the -wal file is safe; the database and its -shm must never be opened so."""
    try:
        fd = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rewrite_wal(path: Path, at: int) -> None:
    """Write a shard's WAL over itself, from a byte on, and sync it. The caller holds the shard's write lock."""
    try:
        fd = os.open(f"{path}-wal", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        while block := os.pread(fd, 1 << 20, at):
            at += os.pwrite(fd, block, at)
        os.fsync(fd)
    finally:
        os.close(fd)


def free_bytes(path: Path | None) -> int | None:
    """What the disk of a file has left for this user; None: nobody can say."""
    if path is None:
        return None
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


class Reserve:
    """A file of a fixed size that is given up when the disk is full."""

    def __init__(self, directory: Path, tell: Callable[[bool], None] | None = None) -> None:
        self._path = directory / RESERVE
        self._tell = tell or (lambda _short: None)
        """Told whether the reserve is in use, each time that this object learns it."""
        self._next_try = 0.0

    def there(self) -> bool:
        """Is it there? If not, make it again if there is room; a failing try is repeated after a second."""
        there = self._look()
        self._tell(not there)
        return there

    def _look(self) -> bool:
        with suppress(FileNotFoundError):
            if os.stat(self._path).st_size >= RESERVE_BYTES:
                return True
        now = time.monotonic()
        if not self._room() or now < self._next_try:
            return False
        self._next_try = now + 1.0
        return self.make()

    def _room(self) -> bool:
        """Has the disk room for several? With less, it would take back at once what a consumer was just given."""
        free = free_bytes(self._path)
        return free is not None and free >= RESERVE_ROOM * RESERVE_BYTES

    def make(self) -> bool:
        """Write it in full; False if the disk has not room for it."""
        part = self._path.with_name(f"{RESERVE}.{os.urandom(4).hex()}.new")
        try:
            fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _FILE_MODE)
            try:
                for _ in range(RESERVE_BYTES // 65536):
                    block = os.urandom(65536)  # a file system that compresses must not make it small
                    if os.write(fd, block) != len(block):
                        raise OSError(28, "short write")
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(part, self._path)
        except OSError:
            with suppress(OSError):
                os.unlink(part)
            return False
        return True

    def give_up(self) -> bool:
        """Delete it; False if it was gone already."""
        self._tell(True)  # first, or a sender that asks in between takes the room
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return False
        return True


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
            flags = os.O_RDONLY if self._look else os.O_RDWR | os.O_CREAT
            flags |= os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            try:
                self._fd = os.open(self._path, flags, _FILE_MODE)
            except FileNotFoundError:
                return True  # who only looks: nobody can hold what is not there
            except OSError as e:
                raise StoreError(
                    f"the {self._path.name} file can't be opened: {e.strerror}", shard=-1, cause=e,
                    hint="to look only, use read_only=True",
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

    def leave(self) -> None:
        """Let go of it. In a forked child: of the child's share; the parent keeps it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class Presence(Lock):
    """A shared lock that every process holds while it has the queue open.

    If it is held although this machine has booted since the queue was last used, the holder is another kernel.
    """

    def __init__(self, directory: Path, *, look: bool = False) -> None:
        super().__init__(directory / PRESENCE, look=look)

    def join(self) -> None:
        """Hold it, shared with the others.

        Raises:
            StoreBusy: somebody holds it alone: the queue is being salvaged, say.
        """
        if not self._lock(shared=True, seconds=JOIN_SECONDS):
            self.leave()
            raise StoreBusy("somebody holds the queue alone", shard=-1, hint="try again when its salvage is over")


class ConsumerLock(Lock):
    """Held by the one holder of a named consumer. The name is hashed: it may hold what a file name may not."""

    def __init__(self, directory: Path, consumer: str, *, look: bool = False) -> None:
        super().__init__(of_consumer(directory, CONSUMER, consumer), look=look)


def of_consumer(directory: Path, kind: str, consumer: str) -> Path:
    """A file of a named consumer's."""
    from hashlib import blake2b

    return directory / f"{kind}{blake2b(consumer.encode(), digest_size=8).hexdigest()}"


class PrivateLock:
    """The same for a queue in memory, which one process has for itself."""

    def __init__(self, taken: set[str], consumer: str) -> None:
        self._taken = taken
        self._consumer = consumer
        self._held = False

    def alone(self, seconds: float) -> bool:  # noqa: ARG002 - nobody else could let go of it meanwhile
        """Hold it, unless somebody does."""
        if not self._held and self._consumer in self._taken:
            return False
        self._taken.add(self._consumer)
        self._held = True
        return True

    def leave(self) -> None:
        """Let go of it."""
        if self._held:
            self._held = False
            self._taken.discard(self._consumer)
