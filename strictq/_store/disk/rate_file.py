"""Rates over all processes: a file with the next time of each limited tenant, by the generic cell rate algorithm.

The theoretical arrival time of a tenant is when all that it has taken would have come at its exact rate. It may be ahead of the
present by the burst. One number per tenant is enough, and an idle tenant needs no upkeep. Beside it is the step that it was
reckoned by: if the rate is changed, as many messages are owed as before, at the new rate. The times are those of the boot clock,
and the file begins anew with each boot.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from ..._platform import process
from ..._platform.clock import Clock
from ..._platform.files import failure, open_regular

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

RECEIVE: Final = b"receive "
SEND: Final = b"send "
"""What the rates of a tenant are named by, before its name."""
SLOTS: Final = 65_536
"""Tenants with the same slot share their rate. The file is sparse."""
_BOOT: Final = struct.Struct("<QQ")
_SLOT: Final = struct.Struct("<QQ")
"""The theoretical arrival time, and the step of the rate that it was reckoned by."""
_SECOND: Final = 1_000_000
LOCK_SECONDS: Final = 0.1
"""How long to wait for another process's lock. A process that was stopped with the lock delays others by no more."""


class Rate(NamedTuple):
    """A rate in messages per second, and how many messages may come at once."""

    per_second: float
    burst: int | None

    @property
    def step(self) -> int:
        """The microseconds of one message."""
        return max(1, int(_SECOND / self.per_second))

    @property
    def ahead(self) -> int:
        """How many microseconds the theoretical arrival time may be ahead."""
        return self.step * (max(1, int(self.per_second)) if self.burst is None else self.burst)


class _StoredTime:
    """The theoretical arrival time of one tenant, at one rate."""

    def __init__(self, stored: tuple[int, int], now: int, rate: Rate) -> None:
        at, step = stored
        owed = max(0, at - now)
        self.changed = owed > 0 and step != rate.step
        if self.changed and step:
            owed = owed * rate.step // step
        self.now = now
        self.at = now + owed

    def set(self, at: int) -> None:
        self.at, self.changed = at, True

    def take(self, rate: Rate, wanted: int, *, whole: bool = False) -> tuple[int, int]:
        """Take as much as the rate permits. See RateFile.take."""
        step, now, ahead = rate.step, self.now, rate.ahead
        room = max(0, (now + ahead - self.at) // step)
        if whole:
            enough = min(wanted, ahead // step)
            if room < enough:
                return 0, self.at + enough * step - now - ahead
            self.set(self.at + wanted * step)
            return wanted, 0
        taken = min(wanted, room)
        if taken:
            self.set(self.at + taken * step)
        return taken, max(0, self.at + step - now - ahead)


class RateFile:
    """The file of one queue, or the same in memory."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        """Prepare the file. A path of None: there is one process."""
        self._path = path
        self._clock = clock
        self.now = clock.boot
        self._pid = process.pid
        self._fd: int | None = None
        self._memory: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def take(self, name: bytes, rate: Rate, wanted: int, *, whole: bool = False) -> tuple[int, int]:
        """Take as much as the rate permits now.

        Args:
            name: of the tenant and of what is limited.
            whole: take all that is wanted, or nothing. More than the burst may be taken at once, if nothing was taken lately.
        Returns:
            How much was taken, and in how many microseconds the rest (at least one) may be taken.
        """
        with self._slot(name, rate) as slot:
            return slot.take(rate, wanted, whole=whole)

    def give(self, name: bytes, rate: Rate, messages: int) -> None:
        """Return what was taken and not used."""
        with self._slot(name, rate) as slot:
            slot.set(max(0, slot.at - messages * rate.step))

    def wait(self, name: bytes, rate: Rate) -> int:
        """Return in how many microseconds one message may be taken. Writes nothing, not even the file."""
        number = _number(name)
        stored = self._memory.get(number, (0, 0))
        if self._path is not None:
            try:
                fd = open_regular(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return 0
            except OSError as e:
                raise failure(f"the {self._path.name} file can't be opened", e) from e
            try:
                stored = _read(fd, number) if os.pread(fd, _BOOT.size, 0) == self._boot() else (0, 0)
            finally:
                os.close(fd)
        return _StoredTime(stored, self.now(), rate).take(rate, 0)[1]

    @contextmanager
    def _slot(self, name: bytes, rate: Rate) -> Iterator[_StoredTime]:
        number = _number(name)
        if self._pid != process.pid:  # a fork's child: its parent may have had the lock, and shares the descriptor's lock
            self._pid, self._lock = process.pid, threading.Lock()
            self.close()
        with self._lock:
            if self._path is None:
                slot = _StoredTime(self._memory.get(number, (0, 0)), self.now(), rate)
                yield slot
                if slot.changed:
                    self._memory[number] = slot.at, rate.step
                return
            if self._fd is None:
                self._fd = self._open(self._path)
            fd = self._fd
            try:
                _lock(fd)
                slot = _StoredTime(_read(fd, number), self.now(), rate)
                yield slot
                if slot.changed:
                    with suppress(OSError):  # a full disk: limits hold less exactly
                        os.pwrite(fd, _SLOT.pack(slot.at, rate.step), _place(number))
            finally:
                _unlock(fd)

    def _open(self, path: Path) -> int:
        """Return a descriptor of the file, which is of this boot."""
        try:
            fd = open_regular(path, os.O_RDWR | os.O_CREAT)
        except OSError as e:
            raise failure(f"the {path.name} file can't be opened", e) from e
        try:
            _lock(fd)
            if os.pread(fd, _BOOT.size, 0) != self._boot():
                with suppress(OSError):  # a full disk
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, self._boot(), 0)
            _unlock(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _boot(self) -> bytes:
        from ..._values.hashing import hash_key

        return _BOOT.pack(hash_key(self._clock.boot_id().encode()), 0)

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


@lru_cache(maxsize=4_096)
def _number(name: bytes) -> int:
    from ..._values.hashing import hash_key  # imported late: it loads OpenSSL

    return hash_key(name) % SLOTS


def _place(number: int) -> int:
    return (1 + number) * _SLOT.size


def _read(fd: int, number: int) -> tuple[int, int]:
    data = os.pread(fd, _SLOT.size, _place(number))
    at, step = _SLOT.unpack(data) if len(data) == _SLOT.size else (0, 0)
    return at, step


def _lock(fd: int) -> None:
    """Lock the file. If that takes too long, go on without: limits hold less exactly."""
    if fcntl is None:  # pragma: no cover - Windows
        return
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return
            time.sleep(0.0005)
        else:
            return


def _unlock(fd: int) -> None:
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_UN)
