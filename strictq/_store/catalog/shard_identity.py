"""What the file of a shard says of itself: the queue that it belongs to, its range, its epoch, and the time of its last write."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Final

import apsw

from ..._sql import FORMAT_3, LOG, MIGRATING, SHARD, TABLES
from ..._values.errors import StoreCorrupt
from ..commit.connection import check_file, connect, in_write_transaction, translate
from ..commit.tx import EPOCHS, NEVER, TOKEN_BITS
from ..disk import formats as migrate
from ..disk.stored import present
from ..disk.topology import Range
from ..lane.totals import RunningTotals, StoredMark
from ..tables import mark
from .contents import Catalog

_EPOCH: Final = 1
_LAST_TOKEN: Final = 5
_ACK_RATE: Final = 23
"""Places in the counter row of a shard of formats 1 and 2, which is compared as the shard is opened to be migrated."""


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
        _verify_counters(db, part.shard)
    for name, expected in _identity(catalog, part).items():
        found = db.execute(SHARD.read_meta, (name,)).get
        if found != expected:
            raise StoreCorrupt(f"{part.file} has {name} {found!r}, not {expected!r}: it is of another queue", shard=part.shard)


def epoch(db: apsw.Connection) -> int | None:
    """Return the epoch of the last write that began one. None: the row that has it is missing."""
    old = migrate.version_of(db, migrate.SHARD_ID) < migrate.ONE_LANE
    known: int | None = db.execute(MIGRATING.epoch if old else TABLES.epoch).get
    return known


def issued(db: apsw.Connection) -> tuple[int, int]:
    """Return the newest arrival number and the newest outbox number."""
    if migrate.version_of(db, migrate.SHARD_ID) < migrate.ONE_LANE:
        numbers: tuple[int, int] = db.execute(MIGRATING.issued if _has_logs(db) else MIGRATING.counted_as_issued).get
        return numbers
    return db.execute(LOG.newest).get[1], db.execute(SHARD.read_meta, ("last_outbox",)).get or 0


def last_time(directory: Path, part: Range) -> int:
    """Return the queue time of a shard's last write."""
    check_file(directory / part.file, part.shard, writing=True)
    try:
        db = connect(str(directory / part.file), durability="process")
        try:
            at: int
            if migrate.version_of(db, migrate.SHARD_ID) >= migrate.ONE_LANE:
                at = present(db.execute(LOG.last_time).get, "the newest row of its logs")
            else:
                at = db.execute(MIGRATING.last_time if _has_logs(db) else MIGRATING.last_counted_time).get
            return at
        finally:
            db.close()
    except apsw.Error as e:
        raise translate(e, part.shard) from e


def _has_logs(db: apsw.Connection) -> bool:
    return db.execute(MIGRATING.has_logs).get is not None


def _verify_counters(db: apsw.Connection, shard: int) -> None:
    """Verify that strictq could have written the counters. Numbers near the limits of what SQLite stores would overflow.

    Raises:
        StoreCorrupt: it could not.
    """
    row: Any = db.execute(MIGRATING.read_counter).get
    if row is None:
        return  # the migration reports it
    numbers = [value for value in row if isinstance(value, int)]
    possible = 0 <= row[_EPOCH] < EPOCHS and 0 <= row[_LAST_TOKEN] < 1 << TOKEN_BITS and math.isfinite(row[_ACK_RATE])
    if not possible or not all(-NEVER <= n <= NEVER for n in numbers):
        raise StoreCorrupt("its counters are out of range", shard=shard)
