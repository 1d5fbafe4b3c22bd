"""What the file of a shard says of itself: the queue that it belongs to, its range, its epoch, and the time of its last write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw

from ..._sql import FORMAT_3, LOG, SHARD, TABLES
from ..._values.errors import StoreCorrupt
from ..commit.connection import check_file, connect, in_write_transaction, translate
from ..disk import formats as migrate
from ..disk.stored import present
from ..disk.topology import Range
from ..lane.totals import RunningTotals, StoredMark
from ..tables import mark
from . import counters
from .contents import Catalog


def lay_out_shard(db: apsw.Connection, catalog: Catalog, part: Range) -> None:
    """Create the tables of a new shard, and store in it the identity of the queue that it belongs to."""
    with in_write_transaction(db):
        db.execute(FORMAT_3).fetchall()
        began = StoredMark(epoch=catalog.epoch, config_version=catalog.config_version, time_offset=catalog.time_offset)
        mark.write(db, began, RunningTotals())
        db.executemany(SHARD.write_meta, list(_identity(catalog, part).items()))
        named = [("config", catalog.config.to_json()), ("app_schema", 0), ("incarnation", os.urandom(16).hex())]
        db.executemany(SHARD.write_meta, named)
        migrate.stamp(db, migrate.SHARD_ID, catalog.format)


def _identity(catalog: Catalog, part: Range) -> dict[str, Any]:
    return {
        "queue_id": catalog.queue_id,
        "shard": part.shard,
        "hash_lo": part.bounds[0],
        "hash_hi": part.bounds[1],
    }


def verify_shard(db: apsw.Connection, catalog: Catalog, part: Range) -> None:
    """Verify that this file is the shard that the topology names.

    Raises:
        StoreCorrupt, SchemaMismatch: it is another file; nothing changed.
    """
    if db.execute(SHARD.has_meta).get is None:
        raise StoreCorrupt(f"{part.file} is empty or not a shard", shard=part.shard)
    if db.filename and db.pragma("journal_mode") != "wal":
        raise StoreCorrupt(f"{part.file} is not in WAL mode", shard=part.shard)
    if migrate.version_of(db, migrate.SHARD_ID) >= migrate.ONE_LANE:
        mark.read(db, part.shard)
    else:
        counters.verify(db, part.shard)
    for name, expected in _identity(catalog, part).items():
        found = db.execute(SHARD.read_meta, (name,)).get
        if found != expected:
            raise StoreCorrupt(f"{part.file} has {name} {found!r}, not {expected!r}: it is of another queue", shard=part.shard)


def epoch(db: apsw.Connection) -> int | None:
    """Return the epoch of the last write that began one. None: the row that has it is missing."""
    if migrate.version_of(db, migrate.SHARD_ID) < migrate.ONE_LANE:
        return counters.epoch(db)
    known: int | None = db.execute(TABLES.epoch).get
    return known


def issued(db: apsw.Connection) -> tuple[int, int]:
    """Return the newest arrival number and the newest outbox number."""
    if migrate.version_of(db, migrate.SHARD_ID) < migrate.ONE_LANE:
        return counters.issued(db)
    return db.execute(LOG.newest).get[1], db.execute(SHARD.read_meta, ("last_outbox",)).get or 0


def last_time(directory: Path, part: Range) -> int:
    """Return the queue time of a shard's last write."""
    check_file(directory / part.file, part.shard, writing=True)
    try:
        db = connect(str(directory / part.file), durability="process")
        try:
            if migrate.version_of(db, migrate.SHARD_ID) >= migrate.ONE_LANE:
                at: int = present(db.execute(LOG.last_time).get, "the newest row of its logs")
                return at
            return counters.last_time(db)
        finally:
            db.close()
    except apsw.Error as e:
        raise translate(e, part.shard) from e
