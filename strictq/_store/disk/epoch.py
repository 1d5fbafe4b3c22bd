"""How a process joins those of this boot, and how the first of them begins a new epoch."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ... import _hints as hints
from ..._clock import Clock
from ..._errors import ConfigError, StrictqError
from .. import catalog
from ..catalog import Catalog
from ..shipping import status
from . import locks

ANOTHER_KERNEL_SECONDS: Final = 5.0
BEGIN_STEP_SECONDS: Final = 0.05


def join(directory: Path, known: Catalog, presence: locks.Presence, clock: Clock) -> Catalog:
    """Join the processes of this boot. The first of them begins a new epoch."""
    boot = clock.boot_id()
    until = time.monotonic() + ANOTHER_KERNEL_SECONDS
    while known.boot_id != boot:
        # Wait in short steps: a process that opens the queue at the same time may have begun the epoch, and keeps the queue open.
        if presence.alone(BEGIN_STEP_SECONDS):
            known = catalog.read(directory)
            if known.boot_id != boot:
                catalog.raise_epoch(directory, boot, next_offset(directory, known, clock))
                known = catalog.read(directory)
            break
        known = catalog.read(directory)
        if known.boot_id != boot and time.monotonic() >= until:
            presence.leave()
            raise ConfigError(
                "another machine, or a virtual one, has this queue open",
                hint=hints.ONE_KERNEL,
            )
    presence.join()
    return known


def next_offset(directory: Path, known: Catalog, clock: Clock) -> int:
    """Return the time offset of a new boot.

    Time continues at the wall clock's, but never before the last write of a readable shard.
    """
    newest = clock.wall()
    for part in known.topology:
        with suppress(StrictqError):
            newest = max(newest, catalog.last_time(directory, part))
    if known.replication is not None:  # a shipped history is complete up to its progress, so time must not go back behind it
        newest = max(newest, known.replication.floor_time, status.ShipProgress.read(directory))
    return newest - clock.boot()
