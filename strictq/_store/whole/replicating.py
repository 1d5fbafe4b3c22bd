"""What replication and backups need of a queue: where it ships to, which process ships, and what changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..._platform import files
from ..._values import hints
from ..._values.errors import ConfigError
from ..catalog.contents import Replication
from ..disk import layout
from ..shipping.confirming import Rounds

if TYPE_CHECKING:
    from ..._values.findings import BackedUp
    from ..shipping.capture import Capture
    from .merging_histories import Merging
    from .store import Store


class Replicating:
    """The replication of a queue."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def known(self) -> Replication | None:
        """Where the queue ships to, as this process last saw it. None: it was never replicated."""
        return self._store.replication

    def set(self, replication: Replication) -> None:
        """Store where the queue ships to, for every process. See `Queue.configure_replication`."""
        self._store.set_replication(replication)

    def ship(self) -> None:
        """Start the shipper here, unless another process ships."""
        self._store.shipping.tend()

    def stop(self, *, flush: bool) -> None:
        """Stop this process's shipper. flush: ship a last round first."""
        self._store.shipping.stop(flush=flush)

    def capture(self) -> Capture:
        """Begin to capture changes of the queue's files. The caller holds the lock of `lock`."""
        from ..shipping.capture import Capture

        assert self._store.directory is not None
        return Capture(self._store.directory, self._store.clock, self._store.suspect)

    def backup(self, path: Path, on_progress: Callable[[int, int], object]) -> BackedUp:
        """Copy the queue, which may be in use, to a path where nothing exists. See `Queue.backup`."""
        with files.late():
            from ..shipping.backup import backup

        store = self._store
        if store.directory is None:
            raise ConfigError("a queue in memory has no files to back up")
        if store.look is not None:
            raise ConfigError("a living replica can't be backed up; nothing was created", hint=hints.BACK_UP_PRIMARY)
        return backup(store.directory, path, store.clock, store.suspect, on_progress)

    def lock(self) -> files.Lock:
        """Return the lock for the shipping process. It is not acquired yet."""
        assert self._store.directory is not None
        return files.Lock(self._store.directory / layout.SHIP_LOCK)

    def rounds(self) -> Rounds | None:
        """Return the shipper's counter of rounds, for calls that wait in confirmed mode. None: in async mode."""
        known = self._store.replication
        return self._store.confirming.rounds(known) if known is not None and known.mode == "confirmed" else None

    @property
    def merging(self) -> Merging:
        """What a merge with another history of the queue needs of it."""
        from .merging_histories import Merging

        return Merging(self._store)
