"""Waking those who wait for messages: at once within the process, within 50 ms from another one.

Across processes it is one small memory-mapped file: whoever commits something claimable writes a value that was never
there before, and whoever waits compares eight bytes every few milliseconds. The cost does not grow with shards or messages.
In the same file whoever waits in vain leaves the time, for workers that hold more than they can begin with; whoever saw a
sync fail says so there, for the processes that were not told; and whoever commits without a sync counts that. These outlive the
process that wrote them, but not the machine's boot.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from ... import _files as files

POLL_SECONDS: Final = 0.02
_SLOT: Final = struct.Struct("=Q")
_SHORT: Final = _SLOT.size
"""Where the mapped file says that the reserve for a full disk is in use."""
_IDLE: Final = 2 * _SLOT.size
"""Where it says who waited in vain last, and when."""
_BOOT: Final = 3 * _SLOT.size
"""Where it says of which boot the bytes behind it are."""
_SUSPECTS: Final = 4 * _SLOT.size
"""A byte for each shard: whether its WAL is to be written again."""
SUSPECTS_MAX: Final = 256
_UNSYNCED: Final = _SUSPECTS + SUSPECTS_MAX
"""A byte for each shard: how many commits since the last one that was synced."""
_BYTES: Final = _UNSYNCED + SUSPECTS_MAX
_READ_BYTES: Final = 3 * _SLOT.size
"""What those need that only look."""
NAME_BITS: Final = 24
NAMES: Final = (1 << NAME_BITS) - 1
IDLE_SECONDS: Final = 0.1
"""So long after it showed itself, a consumer counts as idle. It does so several times in that."""


class Waker:
    """Tells waiters that something may be claimable now."""

    def __init__(self, path: Path | None = None, *, read_only: bool = False) -> None:
        self._map: mmap.mmap | bytearray | None = None
        self._read_only = read_only
        if path is not None:
            try:
                self._map = _map(path, read_only)
            except (OSError, ValueError):  # without it, waiters look for themselves once a second
                files.require_descriptors()
        self._count = 0
        self._name = int.from_bytes(os.urandom(4), "little")
        self._listeners: set[Callable[[], None]] = set()
        self._condition = threading.Condition()
        self._waiting = 0
        self._idle_waiting = 0
        self._idle_here = 0
        self.users: WeakSet[object] = WeakSet()
        self.ended = False
        """The last user has left: the file is not mapped any more."""

    def leave(self, user: object) -> None:
        """Be one user less; the last one lets go of the file. Whoever still waits hears this process only."""
        with _lock:
            self.users.discard(user)
            if not self.users and not self.ended:
                self.ended = True
                if self._map is not None:
                    # Another thread may be reading the mapping: it is closed with the last reference to it.
                    self._map = bytearray(self._map)

    def notify(self) -> None:
        """Something became claimable. Cheap when nobody waits."""
        self._count += 1
        if self._map is not None and not self._read_only:
            # Never a value that was there before: a random name of this object, and a count of its own.
            _SLOT.pack_into(self._map, 0, (self._name << 32) | (self._count & 0xFFFFFFFF))
        if self._waiting:
            with self._condition:
                self._condition.notify_all()
        for listener in tuple(self._listeners):
            listener()

    def seen(self) -> tuple[int, int]:
        """What to hand to `wait`: taken before looking for messages, so that nothing is missed in between."""
        return self._count, self._shared()

    def _shared(self) -> int:
        value: int = _SLOT.unpack_from(self._map, 0)[0] if self._map is not None else 0
        return value

    def wait(self, seen: tuple[int, int], seconds: float, *, idle: bool = False) -> None:
        """Return when `notify` was called since `seen`, here or in another process, or when the time is over.

        Args:
            idle: the caller would take any message: see `somebody_idle`.
        """
        until = time.monotonic() + seconds
        step = POLL_SECONDS if self._map is not None else 3600.0
        with self._condition:
            self._waiting += 1
            self._idle_waiting += idle
            try:
                while self.seen() == seen:
                    left = until - time.monotonic()
                    if left <= 0:
                        return
                    if idle:
                        self.show_idle()
                    self._condition.wait(min(left, step))
            finally:
                self._waiting -= 1
                self._idle_waiting -= idle

    def show_idle(self, name: int | None = None) -> None:
        """Some consumer would take any message, and there is none. To be repeated while that is so.

        Args:
            name: the consumer's, NAME_BITS bits chosen at random; None: one that holds nothing when it shows itself.
        """
        name = self._name & NAMES if name is None else name
        stamp = (time.monotonic_ns() // 1_000_000 << NAME_BITS | name) & 0xFFFFFFFF_FFFFFFFF
        self._idle_here = stamp
        if self._map is not None and not self._read_only:
            _SLOT.pack_into(self._map, _IDLE, stamp)

    def somebody_idle(self, name: int) -> bool:
        """Does a consumer other than `name` wait in vain, in this or another process? Costs nothing to speak of.

        Only the last one that showed itself is known: enough, because a worker hands back in small steps, and looks again.
        """
        if self._idle_waiting:
            return True
        stamp = self._idle_here if self._map is None else _SLOT.unpack_from(self._map, _IDLE)[0]
        # In another time namespace the clock may show anything: then nobody is idle.
        age = time.monotonic_ns() // 1_000_000 - (stamp >> NAME_BITS)
        return stamp & NAMES != name and 0 <= age < 1000 * IDLE_SECONDS

    @property
    def short_of_space(self) -> bool:
        """Has some process given the reserve up, as far as can be told without asking the file system?

        Asking it at every send would let go of the interpreter's lock each time, which costs threads a quarter of their speed.
        """
        return self._map is None or self._map[_SHORT] != 0

    def tell_space(self, short: bool) -> None:
        """Let every process know whether the reserve is in use."""
        if self._map is not None and not self._read_only:
            self._map[_SHORT] = short

    def begin_boot(self, boot: str) -> None:
        """Forget what failed before the machine booted: what is in the files now is what is on the disk."""
        from hashlib import blake2b  # only those who write need it

        tag = int.from_bytes(blake2b(boot.encode(), digest_size=_SLOT.size).digest(), "big")
        if self._map is not None and not self._read_only and _SLOT.unpack_from(self._map, _BOOT)[0] != tag:
            self._map[_SUSPECTS:_BYTES] = bytes(_BYTES - _SUSPECTS)
            _SLOT.pack_into(self._map, _BOOT, tag)

    def suspects(self, shard: int) -> int:
        """Did a sync of this shard's WAL fail, in any process, and nobody wrote it again since? Not 0: which failure it was."""
        return self._map[_SUSPECTS + shard] if self._map is not None and not self._read_only else 0

    def suspect(self, shard: int) -> None:
        """A sync of this shard's WAL failed: the kernel may take for written what it could not write."""
        if self._map is not None and not self._read_only:
            self._map[_SUSPECTS + shard] = self._map[_SUSPECTS + shard] % 255 + 1

    def trust(self, shard: int, failure: int) -> None:
        """What that failure left unsure was written again, and synced. Another failure since then stays."""
        if failure and self.suspects(shard) == failure:
            assert self._map is not None
            self._map[_SUSPECTS + shard] = 0

    def unsynced(self, shard: int) -> int:
        """How many commits of this shard followed its last synced one, at most. Unknown: more than there may be."""
        return self._map[_UNSYNCED + shard] if self._map is not None and not self._read_only else 255

    def count_unsynced(self, shard: int, commits: int) -> None:
        """Say so, with the shard's write lock held: before a commit that is not synced, and after one that is."""
        if self._map is not None and not self._read_only:
            self._map[_UNSYNCED + shard] = commits

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` on every notify of this process, from the notifying thread, until `unlisten`."""
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)

    def after_fork_in_child(self) -> None:
        """The threads that waited exist in the parent only; and what this side writes must be its own."""
        self._name = int.from_bytes(os.urandom(4), "little")
        self._condition = threading.Condition()
        self._waiting = self._idle_waiting = 0
        self._listeners.clear()


def _map(path: Path, read_only: bool) -> mmap.mmap:
    """
    Raises:
        StoreError: it is not a regular file, or has another name and is to be written.
        OSError, ValueError: it can't be mapped.
    """
    fd = files.open_regular(path, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT)
    try:
        size = os.fstat(fd).st_size
        if size < _BYTES and not read_only:
            # Written, not truncated to size: storing into a hole that a full disk has no block for kills the process.
            os.pwrite(fd, bytes(_BYTES - size), size)
        if read_only:
            return mmap.mmap(fd, _READ_BYTES, access=mmap.ACCESS_READ)
        return mmap.mmap(fd, _BYTES, access=mmap.ACCESS_WRITE)
    finally:
        os.close(fd)


_shared_wakers: WeakValueDictionary[tuple[int, int, bool], Waker] = WeakValueDictionary()
_lock = threading.RLock()  # a signal's handler may close a queue


def _after_fork_in_child() -> None:
    """The thread that held the lock at the fork exists in the parent only."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def waker_of(directory: Path, name: str, user: object, *, read_only: bool) -> Waker:
    """The waker of a queue's directory: one for all queue objects of this process that use it.

    Args:
        user: keeps the file mapped until it calls `leave`, or is gone.
    """
    status = os.stat(directory)
    place = (status.st_dev, status.st_ino, read_only)
    with _lock:
        waker = _shared_wakers.get(place)
        if waker is None or waker.ended:
            waker = _shared_wakers[place] = Waker(directory / name, read_only=read_only)
        waker.users.add(user)
        return waker
