"""Locks that end with their process: on an open queue, and on a named consumer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ..._platform.files import Lock, names_in, opened
from ..._values import hints
from ..._values.errors import StoreBusy, StoreError
from .layout import PRESENCE

JOIN_SECONDS: Final = 10.0
ALONE_SECONDS: Final = 5.0


class Presence(Lock):
    """A shared lock that every process holds while it has the queue open.

    If it is held although this machine has booted since the queue was last used, the holder is another kernel.
    """

    def __init__(self, directory: Path, *, look: bool = False) -> None:
        super().__init__(directory / PRESENCE, look=look)

    def join(self) -> None:
        """Acquire the lock, shared with other processes.

        Raises:
            StoreBusy: a process holds it exclusively: for example, it salvages the queue.
        """
        if not self._lock(shared=True, seconds=JOIN_SECONDS):
            self.leave()
            raise StoreBusy(
                "the queue is closed to other users, in this process or another one", shard=-1, hint=hints.SALVAGE_RUNS
            )

    def is_last(self) -> bool:
        """Return whether no other process holds it. Called by an object that is about to leave.

        If another process holds it, this object's share ends here. If two ask at once, the second is therefore the last.
        """
        return self._lock(shared=False, seconds=0.0) and self._lock(shared=True, seconds=0.0)

    def split(self) -> None:
        """Acquire a new lock in a forked child. With the inherited one, parent and child would not exclude each other."""
        inherited, self._fd = self._fd, None
        if inherited is None:
            return
        try:
            own = self._lock(shared=True, seconds=0.0)
        except StoreError:
            own = False
        if own:
            os.close(inherited)
        else:
            self.leave()
            self._fd = inherited


@contextmanager
def held_alone(directory: Path, seconds: float | None = None, *, look: bool = True) -> Iterator[Presence]:
    """Keep every other process from opening a queue for writing.

    Args:
        look: do not write to the directory.
    Raises:
        StoreBusy: a process has it open.
    """
    presence = Presence(directory, look=look)
    try:
        if not presence.alone(ALONE_SECONDS if seconds is None else seconds):
            raise StoreBusy(
                f"{directory} is open, in this process or another one; nothing was changed", shard=-1, hint=hints.CLOSE_EVERYWHERE
            )
        yield presence
    finally:
        presence.leave()


def names(directory: Path, prefix: str) -> list[str]:
    """Return the names of the files that processes hold locks on while they live, and that dead ones left."""
    try:
        return sorted(name for name in names_in(directory) if name.startswith(prefix))
    except OSError:
        return []


def each(directory: Path, some: Iterable[str]) -> Iterator[tuple[Path, int]]:
    """Yield path and descriptor of each of these files that still exists and is a regular one."""
    for name in some:
        with suppress(OSError, StoreError), opened(directory / name, os.O_RDONLY) as fd:
            yield directory / name, fd


class PrivateLock:
    """The lock of a named consumer's single holder, for an in-memory queue, which a single process uses."""

    def __init__(self, taken: set[str], consumer: str) -> None:
        self._taken = taken
        self._consumer = consumer
        self._held = False

    def alone(self, seconds: float) -> bool:  # noqa: ARG002 - a wait is pointless: no other process can hold it
        """Acquire the lock, unless it is held."""
        if not self._held and self._consumer in self._taken:
            return False
        self._taken.add(self._consumer)
        self._held = True
        return True

    def leave(self) -> None:
        """Release the lock."""
        if self._held:
            self._held = False
            self._taken.discard(self._consumer)
