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
from collections.abc import Iterable, Iterator
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


Wanted = tuple[bytes, Rate, int]
"""The name of a tenant and of what is limited, its rate, and a number of messages."""
_Stored = tuple[int, int]


class RateFile:
    """The file of one queue, or the same in memory."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        """Prepare the file. A path of None: there is one process."""
        self._path = path
        self._clock = clock
        self.now = clock.boot
        self._pid = process.pid
        self._fd: int | None = None
        self._memory: dict[int, _Stored] = {}
        self._lock = threading.Lock()

    def take(self, wanted: Iterable[Wanted], *, whole: bool = False) -> list[tuple[int, int]]:
        """Take as much as each rate permits now. The file is locked once.

        Args:
            whole: take all that is wanted of a rate, or nothing. More than the burst may be taken at once, if nothing was taken
                lately.
        Returns:
            How much was taken of each rate, and in how many microseconds the rest (at least one) may be taken.
        """
        got: list[tuple[int, int]] = []
        with self._locked() as fd:
            now = self.now()
            for name, rate, n in wanted:
                place, (step, ahead) = _place_of(name), _pace(rate)
                stored = self._stored(fd, place)
                at = _theoretical(stored, step, now)
                room, least = (now + ahead - at) // step, 1
                if not whole:
                    n = max(0, min(n, room))
                elif room < (least := min(n, ahead // step)):
                    n = 0
                at += n * step
                if n or (at > now and stored[1] != step):
                    self._store(fd, place, at, step)
                got.append((n, max(0, at + least * step - now - ahead)))
        return got

    def give(self, unused: Iterable[Wanted]) -> None:
        """Return what was taken and not used."""
        with self._locked() as fd:
            now = self.now()
            for name, rate, n in unused:
                place, (step, _) = _place_of(name), _pace(rate)
                at = _theoretical(self._stored(fd, place), step, now)
                self._store(fd, place, max(0, at - n * step), step)

    def look(self, name: bytes, rate: Rate) -> tuple[int, int]:
        """Return how many messages may be taken, and in how many microseconds one more. Writes nothing, not even the file."""
        (step, ahead), now = _pace(rate), self.now()
        at = _theoretical(self._seen(_place_of(name)), step, now)
        room = max(0, (now + ahead - at) // step)
        return room, at + (room + 1) * step - now - ahead

    def _seen(self, place: int) -> _Stored:
        with self._threads():
            if self._path is None or self._fd is not None:
                return self._stored(self._fd, place)
        try:
            fd = open_regular(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return 0, 0
        except OSError as e:
            raise failure(f"the {self._path.name} file can't be opened", e) from e
        try:
            return self._stored(fd, place) if os.pread(fd, _BOOT.size, 0) == self._boot() else (0, 0)
        finally:
            os.close(fd)

    def _threads(self) -> threading.Lock:
        """Return the lock of this process's threads."""
        if self._pid != process.pid:  # a fork's child: its parent may have had the lock, and shares the descriptor's lock
            self._pid, self._lock = process.pid, threading.Lock()
            self.close()
        return self._lock

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Lock the file. Yields its descriptor; None: there is one process."""
        with self._threads():
            if self._path is None:
                yield None
                return
            if self._fd is None:
                self._fd = self._open(self._path)
            fd = self._fd
            try:
                _lock(fd)
                yield fd
            finally:
                _unlock(fd)

    def _stored(self, fd: int | None, place: int) -> _Stored:
        if fd is None:
            return self._memory.get(place, (0, 0))
        data = os.pread(fd, _SLOT.size, place)
        return _SLOT.unpack(data) if len(data) == _SLOT.size else (0, 0)

    def _store(self, fd: int | None, place: int, at: int, step: int) -> None:
        if fd is None:
            self._memory[place] = at, step
            return
        try:  # noqa: SIM105 - it is half the cost
            os.pwrite(fd, _SLOT.pack(at, step), place)
        except OSError:
            pass  # a full disk: limits hold less exactly

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
def _pace(rate: Rate) -> tuple[int, int]:
    """Return the microseconds of one message, and how many the theoretical arrival time may be ahead."""
    step = max(1, int(_SECOND / rate.per_second))
    return step, step * (max(1, int(rate.per_second)) if rate.burst is None else rate.burst)


def _theoretical(stored: _Stored, step: int, now: int) -> int:
    """Return the theoretical arrival time of a tenant, by a rate of this step."""
    at, before = stored
    if at <= now:
        return now
    return at if before in (step, 0) else now + (at - now) * step // before


@lru_cache(maxsize=4_096)
def _place_of(name: bytes) -> int:
    """Return where a tenant's slot is in the file."""
    from ..._values.hashing import hash_key  # imported late: it loads OpenSSL

    return (1 + hash_key(name) % SLOTS) * _SLOT.size


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
