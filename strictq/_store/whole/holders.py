"""Ends a worker's leases when its process dies: a file lists the tokens of its claims while the process holds a lock on it.

The lock ends with the process, however that ends, and with the children that share it. Any process that finds the file unlocked
ends those leases. It also learns from the file which message can be blamed for the death: the only one that was running, or none
if several were. Without the file or the note, a lease ends at its deadline, and what was started is charged.
"""

from __future__ import annotations

import os
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ..._platform.files import Lock, lock_file
from ..._values.errors import StoreError
from ..disk import locks
from ..disk.layout import HOLDER

CLAIMS: Final = 4096
"""The number of records: one of `_SINGLE`, and the newest claims. Leases of older claims end at their deadlines."""
_CLAIM: Final = struct.Struct("<QQ")
"""Shard and token. No token is 0, so other versions ignore the record of `_SINGLE`."""
_SINGLE: Final = _CLAIM.pack(1, 0)
"""The first record while no two messages have ever been running together in the process."""
_SEVERAL: Final = _CLAIM.pack(0, 0)
LOOK_SECONDS: Final = 1.0
"""How long to wait for another process that ends the same dead process's leases."""


class ProcessHold(Lock):
    """The claims of one process. Any number of workers share it."""

    def __init__(self, directory: Path) -> None:
        name = f"{HOLDER}{os.urandom(8).hex()}"
        super().__init__(directory / f".{name}")
        self._name = directory / name
        self._noted = 0
        self._workers = 0

    def begin(self) -> None:
        """Register one more worker. The file appears under its name complete and locked.

        Raises:
            OSError, StoreError: the file can't be made; leases then end at their deadlines.
        """
        self._workers += 1
        if self._fd is not None:
            return
        self._lock(shared=True, seconds=0.0)
        if self._fd is not None:
            os.pwrite(self._fd, _SINGLE, 0)
            os.ftruncate(self._fd, CLAIMS * _CLAIM.size)
            os.rename(self._path, self._name)
            self._path = self._name

    def note(self, claims: Iterable[tuple[int, int]]) -> None:
        """Note committed claims.

        Args:
            claims: shard and token of each.
        """
        if self._fd is None:
            return
        for shard, token in claims:
            with suppress(OSError):
                os.pwrite(self._fd, _CLAIM.pack(shard, token), (1 + self._noted % (CLAIMS - 1)) * _CLAIM.size)
            self._noted += 1

    def note_several(self) -> None:
        """Note that several messages may be running from now on, so that none of them is blamed alone."""
        if self._fd is not None:
            with suppress(OSError):  # at worst, one message is charged that only ran beside another
                os.pwrite(self._fd, _SEVERAL, 0)

    def end(self) -> None:
        """Unregister a worker. The last one has released all its leases, and removes the file."""
        self._workers -= 1
        if not self._workers and self._fd is not None:
            with suppress(OSError):
                os.unlink(self._path)
            self.leave()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors for a child that works on the leased messages. By inheriting them it holds the lock, too."""
        return () if self._fd is None else (self._fd,)

    @property
    def file(self) -> str | None:
        """The file's path for `share`, in a child that inherits no descriptors."""
        return None if self._fd is None else str(self._path)


def share(file: str | None) -> Lock | None:
    """Share the lock of another process's file, until this process or the returned lock ends."""
    if file is None:
        return None
    held = Lock(Path(file), look=True)
    with suppress(StoreError, OSError):
        held.share(0.0)
    return held


class Dead(NamedTuple):
    """What is known of a dead process.

    Attributes:
        claims: tokens by shard.
        single: no two messages have ever been running together in it.
    """

    claims: dict[int, list[int]]
    single: bool


def dead(directory: Path, names: Iterable[str]) -> Iterator[Dead]:
    """Yield each dead process of these files. Its file is removed when the next one is requested."""
    for path, fd in locks.each(directory, names):
        with suppress(OSError):
            if _is_dead(fd):
                data = os.pread(fd, CLAIMS * _CLAIM.size, 0)
                yield Dead(_claims(data), data.startswith(_SINGLE))
                path.unlink(missing_ok=True)


def _is_dead(fd: int) -> bool:
    """Lock the file exclusively. Return False if its process is alive.

    Another process may be ending these leases. Wait for it: a receive that went on could charge what it is about to clear.
    """
    until = time.monotonic() + LOOK_SECONDS
    while True:
        if lock_file(fd):
            return os.fstat(fd).st_nlink > 0
        if lock_file(fd, shared=True):
            return False  # its process shares the lock
        if time.monotonic() >= until:
            return False
        time.sleep(0.002)


def _claims(data: bytes) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for shard, token in _CLAIM.iter_unpack(data[: len(data) // _CLAIM.size * _CLAIM.size]):
        if 0 < token < 1 << 63:
            found[shard].append(token)
    return found
