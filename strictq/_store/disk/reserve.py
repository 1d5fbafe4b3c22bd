"""The reserve: disk space that is released when the disk is full, so that consumers can still ack."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from ..._platform import files
from .layout import RESERVE

RESERVE_BYTES: Final = 2 * 1024 * 1024
"""Kept so that consumers can still ack when the disk is full. It is then deleted, and sends are refused until it is restored."""
SMALL_RESERVE_BYTES: Final = RESERVE_BYTES // 4
"""The size made instead if the queue's own files, which do not shrink, leave no room for more."""
RANDOM_BYTES: Final = RESERVE_BYTES // 8
"""The size of the random block that the reserve repeats. btrfs and ZFS compress 128 KiB at a time, so they do not shrink it.
Random bytes for all of the reserve would be a third of the processor time in which a queue is created."""
RESERVE_ROOM_BYTES: Final = 3 * RESERVE_BYTES
"""The free space at which the reserve is made again. With less, it would take back the space that a consumer was just given."""


class Room(Protocol):
    """The room that a queue's own files have left on a disk that they have filled. They do not shrink by themselves."""

    def has_room(self, size: int) -> bool:
        """Return whether this many more bytes leave the disk enough room for short WALs, once the WALs are truncated."""
        ...

    def is_drained(self) -> bool:
        """Return whether at least half of the databases' pages are free for new messages."""
        ...

    def cut_wals(self) -> None: ...


class Reserve:
    """A file of a fixed size that is deleted when the disk is full.

    Args:
        tell: called with whether the reserve is in use, each time that this object finds out.
        queue: whose files are on the disk. Without it, only the full reserve is made.
    """

    def __init__(self, directory: Path, tell: Callable[[bool], None] | None = None, queue: Room | None = None) -> None:
        self._path = directory / RESERVE
        self._tell = tell or (lambda _short: None)
        self._queue = queue
        self._next_try = 0.0

    def there(self) -> bool:
        """Return whether the reserve exists. If it does not, try to make it, at most once a second."""
        there = self._look()
        self._tell(not there)
        return there

    def size(self) -> int:
        """Return how many bytes its deletion would free. A file with another hard link frees none; `make` replaces it."""
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0

    def _look(self) -> bool:
        size = self.size()
        if size >= RESERVE_BYTES:
            return True
        now = time.monotonic()
        wanted = 0 if now < self._next_try else self._affordable(size)
        if not wanted:
            return size >= SMALL_RESERVE_BYTES
        self._next_try = now + 1.0
        if self._queue is not None and wanted < RESERVE_BYTES:
            self._queue.cut_wals()
            if not self._queue.has_room(wanted):  # checkpoints have made the databases larger
                return False
        return self.make(wanted) or size >= SMALL_RESERVE_BYTES

    def _affordable(self, size: int) -> int:
        """Return the size of the reserve that the disk has room for; 0: no larger one than the present one."""
        if (files.free_bytes(self._path) or 0) >= RESERVE_ROOM_BYTES:
            return RESERVE_BYTES
        small = size < SMALL_RESERVE_BYTES and self._queue is not None and self._queue.has_room(SMALL_RESERVE_BYTES)
        return SMALL_RESERVE_BYTES if small and self._queue is not None and self._queue.is_drained() else 0

    def make(self, size: int = RESERVE_BYTES) -> bool:
        """Write the reserve in full. Return False if the disk has no room for it."""
        part = self._path.with_name(f"{RESERVE}.{os.urandom(4).hex()}.new")
        try:
            fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, files.FILE_MODE)
            try:
                block = os.urandom(min(size, RANDOM_BYTES))
                for _ in range(size // len(block)):
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
        """Delete the reserve. Return False if it did not exist."""
        self._tell(True)  # report first, or a sender that asks in between takes the room
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return False
        return True
