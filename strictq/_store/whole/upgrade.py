"""Migration of a whole queue from an older file format to this one, while no process has it open."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import apsw
import attrs

from ..._platform import files
from ..._platform.clock import Clock
from ..._values.errors import QueueNotFound, StoreFull, StrictqError
from ..._values.findings import Migration
from ..catalog import queue_db
from ..commit.connection import check_file, connect, translate
from ..disk import formats as migrate
from ..disk import layout, locks
from ..migrating import moving
from . import epoch
from .store import Store

ALONE_SECONDS: Final = 1.0
SHARD_BYTES: Final = 64 << 10
"""How much a step may add to a shard and to its WAL, unless it rewrites messages."""


Progress = Callable[[int, int], None]
"""Is called with how much is done, and how much there is."""


def upgrade(
    directory: Path, clock: Clock, *, dry_run: bool = False, on_progress: Progress = lambda _done, _all: None,
    on_messages: Progress = lambda _done, _all: None,
) -> Migration:  # fmt: skip
    """Bring every file of a queue to this version's format. See `strictq.migrate`."""
    if not layout.find(directory):
        raise QueueNotFound(f"there is no queue at {directory}")
    layout.check_own(directory, writing=True)
    found = _look(directory)
    if dry_run or found.done:
        return found
    with locks.held_alone(directory, ALONE_SECONDS, look=False) as presence:
        free = files.free_bytes(directory / layout.CATALOG)
        if free is not None and free < found.needs_bytes:
            raise StoreFull(
                f"the migration needs {found.needs_bytes:,} bytes, and the disk has {free:,}; nothing was changed", shard=-1
            )
        # queue.db comes first: from then on older versions refuse the queue, even if some shards are not migrated yet.
        queue_db.bring_up(directory, found.format)
        on_progress(1, found.files)
        _bring_up_shards(directory, clock, presence, on_progress, on_messages)
    return attrs.evolve(found, done=True)


def _look(directory: Path) -> Migration:
    known = queue_db.read(directory, older=True)
    to = max(known.format, migrate.FORMAT)
    found = {layout.CATALOG: _format(directory / layout.CATALOG, -1, migrate.CATALOG_ID)}
    found |= {part.file: _format(directory / part.file, part.shard, migrate.SHARD_ID) for part in known.topology}
    old = [directory / name for name, number in found.items() if number < to]
    copied = [directory / name for name, number in found.items() if number < migrate.ONE_LANE]
    needs = len(old) * SHARD_BYTES + sum(path.stat().st_size + layout.wal_bytes(path) for path in copied)
    return Migration(min(found.values()), to, len(found), len(old), needs, done=not old)


def _format(file: Path, shard: int, kind: int) -> int:
    check_file(file, shard, writing=True)
    try:
        db = connect(str(file), durability="full")
        try:
            migrate.require(db, kind, shard, older=True)
            return migrate.version_of(db, kind)
        finally:
            db.close()
    except apsw.Error as e:
        raise translate(e, shard) from e


def _bring_up_shards(
    directory: Path, clock: Clock, presence: locks.Presence, on_progress: Progress, on_messages: Progress
) -> None:
    """Migrate each shard as the queue's only process.

    A shard is opened as for writing, which verifies it before its steps run.
    """
    known = epoch.begin(directory, queue_db.read(directory), clock)
    store = Store(directory, known, clock, durability="full")
    store.presence = presence
    store.mover = partial(moving.move, on_messages=on_messages)
    failures: list[StrictqError] = []
    try:
        for done, shard in enumerate(store.shards, 2):
            try:
                shard.open()
            except StrictqError as e:
                failures.append(e)  # a damaged shard keeps its format; the others are still migrated
            on_progress(done, len(store.shards) + 1)
    finally:
        store.close()
    if failures:
        raise failures[0]
