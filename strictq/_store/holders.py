"""What a worker leases ends with its process: a file names the tokens of its claims, and is valid while a process holds it.

The lock ends with the process, however that ends, and with the children that share it. Whoever finds the file without a holder
ends those leases. Nothing else depends on it: without the file, or if a token was not noted, a lease ends by its deadline.
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
"""As many claims are noted; leases of older ones end by their deadlines."""
_CLAIM: Final = struct.Struct("<QQ")
"""Shard and token; no token is 0."""


class ProcessHold(Lock):
    """The claims of one process. Any number of workers share it."""

    def __init__(self, directory: Path) -> None:
        name = f"{HOLDER}{os.urandom(8).hex()}"
        super().__init__(directory / f".{name}")
        self._name = directory / name
        self._noted = 0
        self._workers = 0

    def begin(self) -> None:
        """Be one worker more. The file appears under its name locked and whole.

        Raises:
            OSError, StoreError: it can't be made; leases end by their deadlines then.
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
        """Claims were committed.

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
        """Be one worker less; the last one gave everything back, and removes the file."""
        self._workers -= 1
        if not self._workers and self._fd is not None:
            with suppress(OSError):
                os.unlink(self._path)
            self.leave()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """To be inherited by a child that works on what is held: it holds the file, too."""
        return () if self._fd is None else (self._fd,)

    @property
    def file(self) -> str | None:
        """For `share`, in a child that inherits nothing."""
        return None if self._fd is None else str(self._path)


class _Share(Lock):
    def take(self) -> None:
        self._lock(shared=True, seconds=0.0)


def share(file: str | None) -> Lock | None:
    """Hold a file of another process as long as this one lives, or the lock that is returned."""
    if file is None:
        return None
    held = _Share(Path(file), look=True)
    with suppress(StoreError, OSError):
        held.take()
    return held


def dead(directory: Path) -> Iterator[dict[int, list[int]]]:
    """The claims of each process that is gone: tokens by shard. Its file is removed when the next is asked for."""
    try:
        names = [name for name in os.listdir(directory) if name.startswith(HOLDER)]
    except OSError:
        return
    for name in names if fcntl is not None else ():
        try:
            fd = open_regular(directory / name, os.O_RDONLY)
        except (OSError, StoreError):
            continue  # it was removed meanwhile, or is none of ours
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield _claims(os.read(fd, CLAIMS * _CLAIM.size))
            (directory / name).unlink(missing_ok=True)
        except OSError:
            continue  # somebody holds it
        finally:
            os.close(fd)


def _claims(data: bytes) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for shard, token in _CLAIM.iter_unpack(data[: len(data) // _CLAIM.size * _CLAIM.size]):
        if 0 < token < 1 << 63:
            found[shard].append(token)
    return found
