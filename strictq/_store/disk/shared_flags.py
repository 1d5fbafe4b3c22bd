"""Wake waiting receivers: at once within the process, within 50 ms from another one.

Processes share one small memory-mapped file. A process that commits something claimable writes a value that was never there
before, and one thread of each process with waiting receivers compares eight bytes per queue every few milliseconds. The cost does
not grow with shards, messages or receivers.
The same file holds four more facts: when a consumer last found no message, for workers that hold more than they can begin; which
shards had a failed sync, for the processes that did not see the error; which commit of a shard was the last synced one; and a
value for each shard that changes when something becomes claimable in it, for receives that pass over empty shards. These outlive
the process that wrote them, but not the machine's boot.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from ..._platform import files, fork

POLL_SECONDS: Final = 0.02
LINGER_SECONDS: Final = 1.0
"""How long the thread that looks for changes stays without a waiter: a waiting receive waits again."""
_SLOT: Final = struct.Struct("=Q")
_SHORT: Final = _SLOT.size
"""Offset of the flag that the reserve for a full disk is in use."""
_IDLE: Final = 2 * _SLOT.size
"""Offset of the consumer that last found no message, and when."""
_BOOT: Final = 3 * _SLOT.size
"""Offset of the boot that the following bytes belong to."""
_SUSPECTS: Final = 4 * _SLOT.size
"""Offset of a byte for each shard: not 0 if its WAL must be rewritten."""
SUSPECTS_MAX: Final = 256
_SYNCED: Final = _SUSPECTS + SUSPECTS_MAX
"""Offset of eight bytes for each shard: a synced commit."""
_CHANGES: Final = _SYNCED + SUSPECTS_MAX * _SLOT.size
"""Offset of eight bytes for each shard: the last process that committed something claimable, and its count."""
_BYTES: Final = _CHANGES + SUSPECTS_MAX * _SLOT.size
_READ_BYTES: Final = 3 * _SLOT.size
"""The part that read-only users need."""
NAME_BITS: Final = 24
NAMES: Final = (1 << NAME_BITS) - 1
FOREVER: Final = 3600.0
IDLE_SECONDS: Final = 0.1
"""How long a consumer counts as idle after it showed itself. It does so several times within that."""


class Waker:
    """Wakes waiters when a message may be claimable."""

    def __init__(self, path: Path | None = None, *, read_only: bool = False) -> None:
        self._map: mmap.mmap | bytearray | None = None
        self._is_private = path is None
        self._read_only = read_only
        if path is not None:
            try:
                self._map = _map(path, read_only)
            except (OSError, ValueError):  # without the file, waiters check once a second
                files.require_descriptors()
        self._count = self._changes = 0
        self._name = int.from_bytes(os.urandom(4), "little")
        self._listeners: set[Callable[[], None]] = set()
        self._condition = threading.Condition()
        self._waiting = 0
        self._idle_waiting = 0
        self._idle_here = 0
        self.users: WeakSet[object] = WeakSet()
        self.ended = False
        """Whether the last user has left, so that the file is not mapped any more."""

    def leave(self, user: object) -> None:
        """Remove a user. The last one unmaps the file; remaining waiters are then woken by this process only."""
        with _lock:
            self.users.discard(user)
            if not self.users and not self.ended:
                self.ended = True
                if self._map is not None:
                    # Another thread may be reading the mapping. It is closed with the last reference to it.
                    self._map = bytearray(self._map)

    def notify(self) -> None:
        """Wake waiters because something became claimable. Cheap if there is no waiter."""
        self._count += 1
        if self._map is not None and not self._read_only:
            # A value that was never there before: a random name of this object, and its own count.
            _SLOT.pack_into(self._map, 0, (self._name << 32) | (self._count & 0xFFFFFFFF))
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            with self._condition:
                self._condition.notify_all()
        for listener in tuple(self._listeners):
            listener()

    def hear(self, value: int) -> None:
        """Wake waiters because of a shared value that this object did not write."""
        if value >> 32 != self._name:
            self._wake()

    @property
    def hears_others(self) -> bool:
        """Whether other processes' calls of `notify` are noticed. No other process has a queue in memory."""
        return self._map is not None or self._is_private

    def seen(self) -> tuple[int, int]:
        """Return the state to pass to `wait`. Take it before looking for messages, so that none is missed in between."""
        return self._count, self._shared()

    def _shared(self) -> int:
        value: int = _SLOT.unpack_from(self._map, 0)[0] if self._map is not None else 0
        return value

    def wait(self, seen: tuple[int, int], seconds: float, *, idle: bool = False) -> None:
        """Wait until `notify` is called after `seen`, here or in another process, or until the time is over.

        Args:
            idle: the caller would take any message: see `is_another_idle`.
        """
        until = time.monotonic() + seconds
        with self._condition:
            self._waiting += 1
            try:
                with self.watched(idle=idle) as step:
                    while self.seen() == seen:
                        left = until - time.monotonic()
                        if left <= 0:
                            return
                        if idle:
                            self.show_idle()
                        self._condition.wait(min(left, step))
            finally:
                self._waiting -= 1

    @contextmanager
    def watched(self, *, idle: bool = False) -> Iterator[float]:
        """Let changes by other processes wake waiters and listeners within the block.

        Args:
            idle: as for `wait`.
        Yields:
            The seconds after which a waiter must compare `seen` by itself.
        """
        begun = False
        with self._condition:
            self._idle_waiting += idle
        try:
            begun = self._map is not None and _watch.begin(self, idle=idle)
            yield FOREVER if begun or self._map is None else POLL_SECONDS
        finally:
            with self._condition:
                self._idle_waiting -= idle
            if begun:
                _watch.end(self, idle=idle)

    def show_idle(self, name: int | None = None) -> None:
        """Show that a consumer finds no message and would take any. Must be repeated while that is so.

        Args:
            name: the consumer's, NAME_BITS random bits. None: a consumer that holds nothing when it shows itself.
        """
        name = self._name & NAMES if name is None else name
        stamp = (time.monotonic_ns() // 1_000_000 << NAME_BITS | name) & 0xFFFFFFFF_FFFFFFFF
        self._idle_here = stamp
        if self._map is not None and not self._read_only:
            _SLOT.pack_into(self._map, _IDLE, stamp)

    def is_another_idle(self, name: int) -> bool:
        """Return whether a consumer other than `name` finds no message, in this or another process. Costs next to nothing.

        Only the last one that showed itself is known. That suffices: a worker releases messages in small steps, and looks again.
        """
        if self._idle_waiting:
            return True
        stamp = self._idle_here if self._map is None else _SLOT.unpack_from(self._map, _IDLE)[0]
        # In another time namespace the clock may show anything: then no consumer counts as idle.
        age = time.monotonic_ns() // 1_000_000 - (stamp >> NAME_BITS)
        return stamp & NAMES != name and 0 <= age < 1000 * IDLE_SECONDS

    @property
    def short_of_space(self) -> bool:
        """Whether a process has released the reserve, as far as is known without asking the file system.

        Asking it at every send would release the interpreter's lock each time, which costs threads a quarter of their speed.
        """
        return self._map is None or self._map[_SHORT] != 0

    def tell_space(self, short: bool) -> None:
        """Publish to all processes whether the reserve is in use."""
        if self._map is not None and not self._read_only:
            self._map[_SHORT] = short

    def begin_boot(self, boot: str) -> None:
        """Clear the failures of the previous boot: what the files hold after a boot is what is on the disk."""
        from hashlib import blake2b  # only writers need it

        tag = int.from_bytes(blake2b(boot.encode(), digest_size=_SLOT.size).digest(), "big")
        if self._map is not None and not self._read_only and _SLOT.unpack_from(self._map, _BOOT)[0] != tag:
            self._map[_SUSPECTS:_BYTES] = bytes(_BYTES - _SUSPECTS)
            _SLOT.pack_into(self._map, _BOOT, tag)

    def suspects(self, shard: int) -> int:
        """Return a number other than 0 if a sync of this shard's WAL failed in any process and it was not rewritten.

        Identifies the failure.
        """
        return self._map[_SUSPECTS + shard] if self._map is not None and not self._read_only else 0

    def suspect(self, shard: int) -> None:
        """Record that a sync of this shard's WAL failed. The kernel may consider pages written that it could not write."""
        if self._map is not None and not self._read_only:
            self._map[_SUSPECTS + shard] = self._map[_SUSPECTS + shard] % 255 + 1

    def trust(self, shard: int, failure: int) -> None:
        """Clear this failure after the WAL was rewritten and synced. A later failure remains."""
        if failure and self.suspects(shard) == failure:
            assert self._map is not None
            self._map[_SUSPECTS + shard] = 0

    def synced(self, shard: int) -> int | None:
        """Return a commit of this shard up to which all were synced. None: unknown."""
        if self._map is None or self._read_only:
            return None
        commit: int = _SLOT.unpack_from(self._map, _SYNCED + shard * _SLOT.size)[0]
        return commit

    def note_synced(self, shard: int, commit: int) -> None:
        """Record a synced commit. No lock is needed: if an older one is recorded last, only more commits are synced."""
        if self._map is not None and not self._read_only:
            _SLOT.pack_into(self._map, _SYNCED + shard * _SLOT.size, commit)

    def note_change(self, shard: int) -> None:
        """Record that something became claimable in a shard."""
        self._changes += 1
        if self._map is not None and not self._read_only:
            _SLOT.pack_into(self._map, _CHANGES + shard * _SLOT.size, (self._name << 32) | (self._changes & 0xFFFFFFFF))

    def change(self, shard: int) -> int | None:
        """Return a value that changes when something becomes claimable in a shard. None: unknown."""
        if self._map is None or self._read_only:
            return None
        value: int = _SLOT.unpack_from(self._map, _CHANGES + shard * _SLOT.size)[0]
        return value

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` on every notify of this process, from the notifying thread, until `unlisten`."""
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)

    def after_fork_in_child(self) -> None:
        """Reset what a child must not share: waiting threads exist in the parent only, and the child needs its own name."""
        self._name = int.from_bytes(os.urandom(4), "little")
        self._condition = threading.Condition()
        self._waiting = self._idle_waiting = 0
        self._listeners.clear()


class _Watch:
    """The thread that looks for what other processes write, for all wakers of this process with waiters."""

    def __init__(self) -> None:
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()  # re-entrant, because a signal handler may receive
        self._stopped = False
        self._gate = threading.Lock()
        """Released to stop the thread. Waiting for a lock costs a third of waiting for an event."""
        self._gate.acquire()
        self._thread: threading.Thread | None = None
        self._values: dict[Waker, int] = {}
        self._counts: dict[Waker, int] = {}
        self._idle = 0
        """How many calls of `begin` were for idle consumers."""
        self._slots: tuple[list[Waker], list[mmap.mmap | bytearray | None], list[bytes]] | None = None
        """The watched ones, their maps, and the bytes of their values. None: they have changed."""

    def begin(self, waker: Waker, *, idle: bool) -> bool:
        """Watch a waker, until `end` was called as often. Return whether the thread runs.

        Args:
            idle: and let it show that it has an idle consumer.
        """
        with self._lock:
            self._start()
            if self._thread is None:
                return False
            self._counts[waker] = self._counts.get(waker, 0) + 1
            self._idle += idle
            if waker not in self._values:
                self._values[waker] = waker._shared()
                self._slots = None
            return True

    def end(self, waker: Waker, *, idle: bool) -> None:
        with self._lock:
            self._idle -= idle
            left = self._counts.pop(waker, 0) - 1
            if left > 0:
                self._counts[waker] = left
            else:
                self._values.pop(waker, None)
                self._slots = None

    def _start(self) -> None:
        if self._thread is None and not self._stopped:
            thread = threading.Thread(target=self._run, name="strictq-watch", daemon=True)
            with suppress(RuntimeError):  # there are too many threads, or the interpreter ends
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        needed = time.monotonic()
        gate = self._gate
        while not gate.acquire(timeout=POLL_SECONDS):
            with self._lock:
                if self._slots is None:
                    wakers = [*self._values]
                    maps = [waker._map for waker in wakers]
                    self._slots = wakers, maps, [_SLOT.pack(value) for value in self._values.values()]
                wakers, maps, known = self._slots
                now = time.monotonic()
                if wakers:
                    needed = now
                elif now - needed > LINGER_SECONDS:
                    self._thread = None
                    return
            # Two hundred of them must cost little.
            if [one[:_SHORT] for one in maps if one is not None] != known:
                self._tell(wakers)
            if self._idle:
                for waker in wakers:
                    if waker._idle_waiting:
                        waker.show_idle()

    def _tell(self, wakers: Iterable[Waker]) -> None:
        """Wake the waiters of those whose values have changed."""
        for waker in wakers:
            value = waker._shared()
            with self._lock:
                before = self._values.get(waker)
                if before is None or before == value:
                    continue
                self._values[waker] = value
                self._slots = None
            waker.hear(value)

    def before_fork(self) -> None:
        self._stopped = True
        self._gate.release()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=30.0)

    def after_fork(self, *, child: bool) -> None:
        if child:  # the waiters exist in the parent only
            self._reset()
            return
        with self._lock:
            self._stopped = False
            self._gate = threading.Lock()
            self._gate.acquire()
            self._thread = None
            if self._values:
                self._start()


_watch = _Watch()


def _map(path: Path, read_only: bool) -> mmap.mmap:
    """Map the file.

    Raises:
        StoreError: it is not a regular file, or is to be written and has another name.
        OSError, ValueError: it can't be mapped.
    """
    with files.opened(path, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT) as fd:
        size = os.fstat(fd).st_size
        if size < _BYTES and not read_only:
            # Write zeros instead of truncating to size: storing into a hole for which a full disk has no block kills the process.
            os.pwrite(fd, bytes(_BYTES - size), size)
        if read_only:
            return mmap.mmap(fd, _READ_BYTES, access=mmap.ACCESS_READ)
        return mmap.mmap(fd, _BYTES, access=mmap.ACCESS_WRITE)


_shared_wakers: WeakValueDictionary[tuple[int, int, bool], Waker] = WeakValueDictionary()
_lock = threading.RLock()  # re-entrant, because a signal handler may close a queue


def _after_fork_in_child() -> None:
    """Replace the lock: the thread that held it at the fork exists in the parent only."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def waker_of(directory: Path, name: str, user: object, *, read_only: bool) -> Waker:
    """Return the waker of a queue's directory, shared by all queue objects of this process that use it.

    Args:
        user: keeps the file mapped until it calls `leave`, or is freed.
    """
    status = os.stat(directory)
    place = (status.st_dev, status.st_ino, read_only)
    with _lock:
        waker = _shared_wakers.get(place)
        if waker is None or waker.ended:
            waker = _shared_wakers[place] = Waker(directory / name, read_only=read_only)
        waker.users.add(user)
        return waker
