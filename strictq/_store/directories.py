"""What is done to the directory of a queue as a whole, while no process has it open."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .. import _files as files
from .._clock import Clock
from . import catalog
from .disk import layout

if TYPE_CHECKING:
    from .._findings import Migration, Salvaged
    from .shipping.rebuild import Rebuild


def salvage(path: Path, out: Path, clock: Clock) -> Salvaged:
    """Make a new queue at `out` of what is left of the one at `path`. See `strictq.salvage`."""
    with files.typed("the queue can't be salvaged"):
        from .salvage.salvage import salvage

        return salvage(path, out, clock)


def migrate(path: Path, clock: Clock, *, dry_run: bool, on_progress: Callable[[int, int], None]) -> Migration:
    """Bring a queue's files to this version's format. See `strictq.migrate`."""
    with files.typed("the queue can't be migrated"):
        from .upgrade import upgrade

        return upgrade(Path(os.path.realpath(path)), clock, dry_run=dry_run, on_progress=on_progress)


def rebuild(directory: Path) -> Rebuild:
    """A queue that is made of pages, in an empty directory."""
    from .shipping.rebuild import Rebuild

    return Rebuild(directory)


def publish(path: Path, build: Callable[[Path], None]) -> None:
    """Make a directory whole in one step: what `build` makes beside its place is renamed to it."""
    layout.publish(path, build)


def put_in_service(path: Path) -> bool:
    """Let a restored queue be written to. Returns whether it was waiting for that."""
    known = catalog.read(path)
    if known.replication is None or known.replication.mode != "waiting":
        return False
    catalog.set_replication(path, known.replication._replace(mode="off"))
    return True
