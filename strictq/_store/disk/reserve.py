"""The reserve: disk space that is given up when the disk is full, so that consumers can still ack."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from ... import _files as files
from .layout import RESERVE

RESERVE_BYTES: Final = 2 * 1024 * 1024
"""Kept so that consumers can still ack when the disk is full; deleted then, and sends are refused until it is back."""
SMALL_RESERVE_BYTES: Final = RESERVE_BYTES // 4
"""Made instead where the queue's own files, which do not shrink, leave no room for more."""
RESERVE_ROOM_BYTES: Final = 3 * RESERVE_BYTES
"""The reserve is made again when the disk has so much room: with less, it would take back what a consumer was just given."""


class Room(Protocol):
    """What a queue's own files have left, on a disk that they have filled. They do not shrink by themselves."""

    def has_room(self, size: int) -> bool:
        """Would so many bytes more leave the disk with what short WALs take, once these are cut?"""
        ...

    def is_drained(self) -> bool:
        """Are half of the databases' pages, or more, free for the next messages?"""
        ...

    def cut_wals(self) -> None: ...


class Reserve:
    """A file of a fixed size that is given up when the disk is full.

    Args:
        tell: called with whether the reserve is in use, each time that this object learns it.
        queue: whose files are on the disk; without it, only the whole reserve is made.
    """

    def __init__(self, directory: Path, tell: Callable[[bool], None] | None = None, queue: Room | None = None) -> None:
        self._path = directory / RESERVE
        self._tell = tell or (lambda _short: None)
        self._queue = queue
        self._next_try = 0.0

    def there(self) -> bool:
        """Is it there? If not, make it again if there is room; a failing try is repeated after a second."""
        there = self._look()
        self._tell(not there)
        return there

    def size(self) -> int:
        """Bytes that it would free. One with another name frees none when it is deleted; `make` puts a new file in its place."""
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
        """How large a reserve the disk has room for; 0: no larger one than there is."""
        if (files.free_bytes(self._path) or 0) >= RESERVE_ROOM_BYTES:
            return RESERVE_BYTES
        small = size < SMALL_RESERVE_BYTES and self._queue is not None and self._queue.has_room(SMALL_RESERVE_BYTES)
        return SMALL_RESERVE_BYTES if small and self._queue is not None and self._queue.is_drained() else 0

    def make(self, size: int = RESERVE_BYTES) -> bool:
        """Write it in full; False if the disk has not room for it."""
        part = self._path.with_name(f"{RESERVE}.{os.urandom(4).hex()}.new")
        try:
            fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, files.FILE_MODE)
            try:
                for _ in range(size // 65536):
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
