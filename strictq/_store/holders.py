"""Ends a worker's leases when its process dies: a file lists the tokens of its claims while the process holds a lock on it.

The lock ends with the process, however that ends, and with the children that share it. Any process that finds the file unlocked
ends those leases. This only makes their end earlier: without the file or the note, a lease ends at its deadline.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from .._errors import StoreError
from .._files import Lock, open_regular
from .disk.layout import HOLDER

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

CLAIMS: Final = 4096
"""The number of claims that are kept. Leases of older claims end at their deadlines."""
_CLAIM: Final = struct.Struct("<QQ")
"""Shard and token. No token is 0."""


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
                os.pwrite(self._fd, _CLAIM.pack(shard, token), self._noted % CLAIMS * _CLAIM.size)
            self._noted += 1

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


class _Share(Lock):
    def take(self) -> None:
        self._lock(shared=True, seconds=0.0)


def share(file: str | None) -> Lock | None:
    """Share the lock of another process's file, until this process or the returned lock ends."""
    if file is None:
        return None
    held = _Share(Path(file), look=True)
    with suppress(StoreError, OSError):
        held.take()
    return held


def dead(directory: Path) -> Iterator[dict[int, list[int]]]:
    """Yield the claims of each dead process: tokens by shard. Its file is removed when the next item is requested."""
    try:
        names = [name for name in os.listdir(directory) if name.startswith(HOLDER)]
    except OSError:
        return
    for name in names if fcntl is not None else ():
        try:
            fd = open_regular(directory / name, os.O_RDONLY)
        except (OSError, StoreError):
            continue  # it was removed meanwhile, or is not a holder's file
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield _claims(os.read(fd, CLAIMS * _CLAIM.size))
            (directory / name).unlink(missing_ok=True)
        except OSError:
            continue  # a process holds it
        finally:
            os.close(fd)


def _claims(data: bytes) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for shard, token in _CLAIM.iter_unpack(data[: len(data) // _CLAIM.size * _CLAIM.size]):
        if 0 < token < 1 << 63:
            found[shard].append(token)
    return found
