"""How a process joins those of this boot, and how the first of them begins a new epoch."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..._platform.clock import Clock
from ..._values import hints
from ..._values.errors import ConfigError, StrictqError
from ..catalog import queue_db, shard_identity
from ..catalog.contents import Catalog
from ..disk import locks
from ..shipping import status

ANOTHER_KERNEL_SECONDS: Final = 5.0
BEGIN_STEP_SECONDS: Final = 0.05


def join(directory: Path, known: Catalog, presence: locks.Presence, clock: Clock) -> Catalog:
    """Join the processes of this boot. The first of them begins a new epoch."""
    boot = clock.boot_id()
    until = time.monotonic() + ANOTHER_KERNEL_SECONDS
    while known.boot_id != boot:
        # Wait in short steps: a process that opens the queue at the same time may have begun the epoch, and keeps the queue open.
        if presence.alone(BEGIN_STEP_SECONDS):
            known = begin(directory, queue_db.read(directory), clock)
            break
        known = queue_db.read(directory)
        if known.boot_id != boot and time.monotonic() >= until:
            presence.leave()
            raise ConfigError(
                "another machine, or a virtual one, has this queue open",
                hint=hints.ONE_KERNEL,
            )
    presence.join()
    return known


def begin(directory: Path, known: Catalog, clock: Clock) -> Catalog:
    """Begin a new epoch, unless one of this boot has begun. No other process has the queue open."""
    if known.boot_id == clock.boot_id():
        return known
    queue_db.raise_epoch(directory, clock.boot_id(), next_offset(directory, known, clock))
    return queue_db.read(directory)


def next_offset(directory: Path, known: Catalog, clock: Clock) -> int:
    """Return the time offset of a new boot.

    Time continues at the wall clock's, but never before the last write of a readable shard.
    """
    newest = clock.wall()
    for part in known.topology:
        with suppress(StrictqError):
            newest = max(newest, shard_identity.last_time(directory, part))
    if known.replication is not None:  # a shipped history is complete up to its progress, so time must not go back behind it
        newest = max(newest, known.replication.floor_time, status.ShipProgress.read(directory))
    return newest - clock.boot()
