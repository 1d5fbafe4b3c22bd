"""queue.db: the queue's identity and settings, the location of its shards, and the boot it belongs to."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import apsw

from ..._platform import files
from ..._platform.clock import Clock
from ..._sql import CATALOG, CHECK, REPLICATION
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import ConfigError, StoreError
from ..commit.connection import Durability, check_file, connect, connect_catalog, in_write_transaction, translate
from ..commit.tx import EPOCHS, NEVER
from ..disk import formats as migrate
from ..disk import layout, reserve, wal_file
from ..disk.stored import json_of, present
from ..disk.topology import Range, ShardList, problem_of
from . import shard_identity
from .contents import Catalog, Fork, Replication

_HASH: Final = re.compile(r"[0-9a-f]{1,16}")


def build(directory: Path, catalog: Catalog, clock: Clock) -> None:
    """Write all files of a new queue into an empty directory."""
    path = directory / layout.CATALOG
    files.create_empty(path)
    with _opened(path, fresh=True) as db, in_write_transaction(db):
        db.execute(CATALOG.schema).fetchall()
        db.execute(
            CATALOG.insert_queue,
            (
                catalog.queue_id,
                clock.wall(),
                catalog.durability,
                catalog.config.to_json(),
                catalog.boot_id,
                catalog.time_offset,
            ),
        )
        db.executemany(CATALOG.insert_topology, [(r.shard, r.file, *r.bounds) for r in catalog.topology])
        migrate.stamp(db, migrate.CATALOG_ID, catalog.format)
    for part in catalog.topology:
        files.create_empty(directory / part.file)
        _lay_out(directory / part.file, catalog, part)
    files.create_empty(directory / layout.PRESENCE)
    files.create_empty(directory / layout.WAKE)
    files.create_empty(directory / layout.MARKS, wal_file.marks_bytes(len(catalog.topology)))
    reserve.Reserve(directory).make()


def read(directory: Path, *, read_only: bool = False, older: bool = False) -> Catalog:
    """Return the current contents of queue.db.

    Args:
        older: accept an older format, too.
    Raises:
        StoreCorrupt, SchemaMismatch: it can't be read; nothing changed.
    """
    with _opened(directory / layout.CATALOG, read_only=read_only) as db:
        return _contents(db, older=older)


def audit(directory: Path) -> tuple[Catalog, list[str]]:
    """Return the current contents of queue.db, and the problems that SQLite's integrity check finds in it.

    Raises:
        StoreCorrupt, SchemaMismatch: it can't be read.
    """
    with _opened(directory / layout.CATALOG, read_only=True) as db:
        return _contents(db), [str(row[0]) for row in db.execute(CHECK.integrity) if row[0] != "ok"]


def _contents(db: apsw.Connection, *, older: bool = False) -> Catalog:
    try:
        replicated = migrate.require(db, migrate.CATALOG_ID, -1, older=older)
        version_of_files = migrate.version_of(db, migrate.CATALOG_ID)
        row = present(db.execute(CATALOG.read_queue).get, "the row with the queue's identity")
        parts = [Range(s, f, _hash(lo), _hash(hi)) for s, f, lo, hi in db.execute(CATALOG.read_topology)]
        if problem := problem_of(parts):
            raise apsw.CorruptError(problem)
        shipped = db.execute(REPLICATION.read).get if replicated else None
        replication = None if shipped is None else _replication(*shipped)
        queue_id, durability, config, version, epoch, boot_id, offset = row
        if problem := _nonsense(durability, version, epoch, offset):
            raise apsw.CorruptError(problem)
        stored = config_of(config)
    except UnicodeDecodeError as e:
        raise translate(e, -1) from e
    return Catalog(
        queue_id, cast(Durability, durability), stored, version, epoch, boot_id, offset, ShardList(parts), replication,
        version_of_files,
    )  # fmt: skip


def _hash(text: str) -> int:
    if not _HASH.fullmatch(text):
        raise apsw.CorruptError("a range of the topology is not two hashes")
    return int(text, 16)


def _replication(*row: Any) -> Replication:
    known = Replication(*row)
    settings = json_of(known.settings)
    if not isinstance(settings, dict) or not isinstance(settings.get("timeout_seconds", 0.0), int | float):
        raise apsw.CorruptError("the settings of the replication are invalid")
    return known


def config_of(text: str) -> QueueConfig:
    """Return a stored configuration.

    Raises:
        apsw.CorruptError: it is invalid.
    """
    values = json_of(text)
    try:
        return QueueConfig.from_values(values)
    except ConfigError as e:
        raise apsw.CorruptError(f"the stored configuration is invalid: {e}") from e


def _nonsense(durability: str, version: int, epoch: int, offset: int) -> str | None:
    """Return what is wrong with values that strictq never writes, or None."""
    if durability not in ("full", "process"):
        return f"its durability is {durability!r}"
    if not 0 < epoch < EPOCHS or not 0 < version < NEVER or abs(offset) > NEVER:
        return "its numbers are out of their range"
    return None


def bring_up(directory: Path, to: int) -> None:
    """Bring queue.db to a later format."""
    with _opened(directory / layout.CATALOG) as db:
        migrate.require(db, migrate.CATALOG_ID, -1, older=True)
        migrate.bring_up(db, migrate.CATALOG_ID, -1, to)


def raise_epoch(directory: Path, boot_id: str, time_offset: int) -> None:
    """Store a new epoch, synced: tokens issued from now on exceed all tokens issued before, also those that a power cut lost."""
    with _opened(directory / layout.CATALOG) as db, in_write_transaction(db):
        db.execute(CATALOG.raise_epoch, (boot_id, time_offset))


def begin_at_epoch(directory: Path, epoch: int) -> None:
    """Set the first epoch of a new queue that continues another one, so that its tokens exceed the other's."""
    with _opened(directory / layout.CATALOG) as db, in_write_transaction(db):
        db.execute(CATALOG.begin_at_epoch, (epoch,))


def set_config(directory: Path, config: QueueConfig, expected: int) -> int | None:
    """Replace version `expected` of the configuration. Return the new version, or None if another version is stored by now."""
    with _opened(directory / layout.CATALOG) as db, in_write_transaction(db):
        rows: list[Any] = db.execute(CATALOG.set_config, (config.to_json(), expected)).fetchall()
    return rows[0][0] if rows else None


def set_replication(directory: Path, replication: Replication, fork: Fork | None = None) -> int:
    """Store where the queue ships to. Return the new version of the settings, by which every process notices the change.

    Args:
        fork: the queue begins a new history, which left the previous one at this point.
    """
    with _opened(directory / layout.CATALOG) as db, in_write_transaction(db):
        if db.execute(REPLICATION.has_table).get is None:
            db.execute(REPLICATION.schema).fetchall()
            migrate.stamp(db, migrate.CATALOG_ID, migrate.version_of(db, migrate.CATALOG_ID) + migrate.REPLICATED)
        db.execute(REPLICATION.write, tuple(replication))
        if fork is not None:
            db.execute(REPLICATION.add_fork, (*fork[:3], json.dumps(fork.shards)))
        version: int = db.execute(REPLICATION.raise_version).get
    return version


def add_shard(directory: Path) -> Catalog:
    """Add a shard that owns nothing yet. Return the new contents. The caller holds the lock of moves.

    Its file is complete before queue.db names it. One that an interrupted call left is replaced: no process has opened it.
    """
    known = read(directory)
    wider = known.topology.with_one_more()
    part = wider.ranges[-1]
    place = directory / part.file
    with files.typed("the shard's file can't be created", part.shard):
        for name in (part.file, f"{part.file}-wal", f"{part.file}-shm"):
            (directory / name).unlink(missing_ok=True)
        files.create_empty(place)
    _lay_out(place, known, part)
    with files.typed("the shard's file can't be created", part.shard):
        files.sync_directory(directory)
    with _opened(directory / layout.CATALOG) as db, in_write_transaction(db):
        db.execute(CATALOG.insert_topology, (part.shard, part.file, *part.bounds))
        db.execute(CATALOG.raise_version)
    return read(directory)


def _lay_out(path: Path, catalog: Catalog, part: Range) -> None:
    try:
        shard = connect(str(path), durability="full", fresh=True)
        try:
            shard_identity.lay_out_shard(shard, catalog, part)
            shard.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            shard.close()
    except apsw.Error as e:
        raise translate(e, part.shard) from e


def forks(directory: Path) -> list[Fork]:
    """Return the forks at which the queue left earlier histories.

    Raises:
        StoreCorrupt: they can't be read.
    """
    with _opened(directory / layout.CATALOG, read_only=True) as db:
        if db.execute(REPLICATION.has_table).get is None:
            return []
        rows: list[Any] = db.execute(REPLICATION.forks).fetchall()
        return [Fork(history, term, at, _arrivals(shards)) for history, term, at, shards in rows]


def _arrivals(text: str) -> tuple[tuple[int, int], ...]:
    found = json_of(text)
    pairs = [tuple(pair) for pair in found if isinstance(pair, list)] if isinstance(found, list) else []
    if not isinstance(found, list) or len(pairs) != len(found) or any([type(n) for n in pair] != [int, int] for pair in pairs):
        raise apsw.CorruptError("the earlier histories are invalid")
    return tuple((int(i), int(o)) for i, o in pairs)


def set_epoch(directory: Path, epoch: int) -> None:
    """Set the epoch of a copy that becomes a queue of its own. The next process that opens it begins a boot above this epoch."""
    with _opened(directory / layout.CATALOG) as db, in_write_transaction(db):
        db.execute(REPLICATION.restored, (epoch, f"restored-{os.urandom(8).hex()}"))


def add_app_schema(directory: Path, texts: Sequence[str]) -> list[tuple[int, str]]:
    """Record the program's own tables for all shards, including future ones. Return all that is recorded."""
    with _opened(directory / layout.CATALOG) as db, in_write_transaction(db):
        db.executemany(CATALOG.add_app_schema, [(text,) for text in texts])
        rows: list[Any] = db.execute(CATALOG.read_app_schema, (0,)).fetchall()
    return rows


def app_schema(directory: Path, after: int, *, read_only: bool = False) -> list[tuple[int, str]]:
    with _opened(directory / layout.CATALOG, read_only=read_only) as db:
        rows: list[Any] = db.execute(CATALOG.read_app_schema, (after,)).fetchall()
    return rows


def estimates(directory: Path, *, read_only: bool = False) -> dict[str, str]:
    """Return the models of durations that workers learned, by stage."""
    with _opened(directory / layout.CATALOG, read_only=read_only) as db:
        rows: list[Any] = db.execute(CATALOG.read_estimates).fetchall()
    return dict(rows)


def set_estimates(directory: Path, models: dict[str, str] | None) -> None:
    """Store the models of these stages. None deletes the models of all stages."""
    with _opened(directory / layout.CATALOG) as db, in_write_transaction(db):
        if models is None:
            db.execute(CATALOG.reset_estimates)
        else:
            db.executemany(CATALOG.set_estimate, list(models.items()))


@contextmanager
def _opened(path: Path, *, read_only: bool = False, fresh: bool = False) -> Iterator[apsw.Connection]:
    check_file(path, -1, writing=not read_only)
    db = None
    try:
        db = connect_catalog(str(path), read_only=read_only, fresh=fresh)
        yield db
    except apsw.ReadOnlyError as e:
        raise StoreError("queue.db can't be written", shard=-1, cause=e, hint=hints.OPEN_READ_ONLY) from e
    except apsw.Error as e:
        raise translate(e, -1, db) from e
    finally:
        if db is not None:
            db.close()
