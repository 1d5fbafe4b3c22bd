"""queue.db: the queue's identity and settings, the location of its shards, and the boot it belongs to."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import apsw

from .. import _files as files
from .. import _hints as hints
from .._clock import Clock
from .._config import QueueConfig
from .._errors import ConfigError, OutcomeUnknown, StoreCorrupt, StoreError
from .._sql import CATALOG, CHECK, FORMAT_3, LOG, REPLICATION, SHARD
from . import migrate
from .commit.connection import Durability, check_file, connect, connect_catalog, translate
from .commit.tx import EPOCHS, NEVER
from .disk import layout, reserve, wal_file
from .disk.stored import json_of, present
from .lane.totals import RunningTotals, StoredMark
from .migrating import counters
from .tables import mark
from .topology import Range, Topology, problem_of

_HASH: Final = re.compile(r"[0-9a-f]{1,16}")


class Replication(NamedTuple):
    """The history that a queue belongs to, and the target its changes are shipped to.

    Attributes:
        history_id: names one line of changes. A restored queue has another one than its original.
        mode: "off", "async" or "confirmed". "fenced": its replica was promoted. "waiting": restored, and not yet put in service.
        target: "" if the queue is not shipped.
        settings: the shipper's settings, as JSON.
        floor_time: queue time of the cut that this queue was restored from. Its time continues after it.
    """

    history_id: str
    term: int = 1
    mode: str = "off"
    target: str = ""
    settings: str = "{}"
    floor_time: int = 0

    @property
    def ships(self) -> bool:
        """Whether the queue is shipped to a target."""
        return self.mode in ("async", "confirmed")

    @property
    def timeout_seconds(self) -> float:
        """How long a call waits for a confirmation, in confirmed mode."""
        return float(json.loads(self.settings).get("timeout_seconds", 0.0))


class Fork(NamedTuple):
    """The point at which a queue left the history that it continues.

    Attributes:
        history_id, term: of that history.
        at: queue time of the cut.
        shards: for each shard, the last arrival number and the last outbox number that both histories have.
    """

    history_id: str
    term: int
    at: int
    shards: tuple[tuple[int, int], ...]


class Catalog(NamedTuple):
    """The contents of queue.db."""

    queue_id: str
    durability: Durability
    config: QueueConfig
    config_version: int
    epoch: int
    boot_id: str
    time_offset: int
    topology: Topology
    replication: Replication | None = None
    """None: the queue was never replicated."""
    format: int = migrate.FORMAT


def new(shards: int, durability: Durability, config: QueueConfig, clock: Clock) -> Catalog:
    """Return the catalog of a queue that is to be created. Its time starts at the wall clock's.

    Raises:
        ConfigError: the settings do not suit the number of shards.
    """
    require_scope(config, shards)
    return Catalog(
        os.urandom(16).hex(), durability, config, 1, 1, clock.boot_id(), clock.wall() - clock.boot(), Topology.even(shards),
        format=migrate.FORMAT,
    )  # fmt: skip


def require_scope(config: QueueConfig, shards: int) -> None:
    """Refuse a queue-wide dedup scope in a queue of several shards: no transaction spans the shards that it would have to search.

    Raises:
        ConfigError: the scope does not suit the number of shards; nothing was changed.
    """
    if config.dedup_scope == "queue" and shards > 1:
        raise ConfigError(
            f"dedup_scope='queue' needs a queue of one shard, and this one has {shards}; nothing was changed",
            hint=hints.ONE_SHARD_OR_KEY,
        )


def build(directory: Path, catalog: Catalog, clock: Clock) -> None:
    """Write all files of a new queue into an empty directory."""
    path = directory / layout.CATALOG
    files.create_empty(path)
    with _opened(path, fresh=True) as db, _writing(db):
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
        try:
            shard = connect(str(directory / part.file), durability="full", fresh=True)
            try:
                lay_out_shard(shard, catalog, part)
                shard.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                shard.close()
        except apsw.Error as e:
            raise translate(e, part.shard) from e
    files.create_empty(directory / layout.PRESENCE)
    files.create_empty(directory / layout.WAKE)
    files.create_empty(directory / layout.MARKS, wal_file.marks_bytes(len(catalog.topology)))
    reserve.Reserve(directory).make()


def lay_out_shard(db: apsw.Connection, catalog: Catalog, part: Range) -> None:
    """Create the tables of a new shard, and store in it the identity of the queue that it belongs to."""
    with _writing(db):
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


def read(directory: Path, *, read_only: bool = False, older: bool = False) -> Catalog:
    """Return the current contents of queue.db.

    Args:
        older: accept an older format, too.
    Raises:
        StoreCorrupt, SchemaMismatch: it can't be read; nothing changed.
    """
    path = directory / layout.CATALOG
    try:
        with _opened(path, read_only=read_only) as db:
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
        queue_id, cast(Durability, durability), stored, version, epoch, boot_id, offset, Topology(parts), replication,
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


def damage(directory: Path) -> list[str]:
    """Return the problems that SQLite's integrity check finds in queue.db."""
    with _opened(directory / layout.CATALOG, read_only=True) as db:
        return [str(row[0]) for row in db.execute(CHECK.integrity) if row[0] != "ok"]


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


def bring_up(directory: Path, to: int) -> None:
    """Bring queue.db to a later format."""
    with _opened(directory / layout.CATALOG) as db:
        migrate.require(db, migrate.CATALOG_ID, -1, older=True)
        migrate.bring_up(db, migrate.CATALOG_ID, -1, to)


def raise_epoch(directory: Path, boot_id: str, time_offset: int) -> None:
    """Store a new epoch, synced: tokens issued from now on exceed all tokens issued before, also those that a power cut lost."""
    with _opened(directory / layout.CATALOG) as db, _writing(db):
        db.execute(CATALOG.raise_epoch, (boot_id, time_offset))


def begin_at_epoch(directory: Path, epoch: int) -> None:
    """Set the first epoch of a new queue that continues another one, so that its tokens exceed the other's."""
    with _opened(directory / layout.CATALOG) as db, _writing(db):
        db.execute(CATALOG.begin_at_epoch, (epoch,))


def set_config(directory: Path, config: QueueConfig, expected: int) -> int | None:
    """Replace version `expected` of the configuration. Return the new version, or None if another version is stored by now."""
    with _opened(directory / layout.CATALOG) as db, _writing(db):
        rows: list[Any] = db.execute(CATALOG.set_config, (config.to_json(), expected)).fetchall()
    return rows[0][0] if rows else None


def set_replication(directory: Path, replication: Replication, fork: Fork | None = None) -> int:
    """Store where the queue ships to. Return the new version of the settings, by which every process notices the change.

    Args:
        fork: the queue begins a new history, which left the previous one at this point.
    """
    with _opened(directory / layout.CATALOG) as db, _writing(db):
        if db.execute(REPLICATION.has_table).get is None:
            db.execute(REPLICATION.schema).fetchall()
            migrate.stamp(db, migrate.CATALOG_ID, migrate.version_of(db, migrate.CATALOG_ID) + migrate.REPLICATED)
        db.execute(REPLICATION.write, tuple(replication))
        if fork is not None:
            db.execute(REPLICATION.add_fork, (*fork[:3], json.dumps(fork.shards)))
        version: int = db.execute(REPLICATION.raise_version).get
    return version


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
    with _opened(directory / layout.CATALOG) as db, _writing(db):
        db.execute(REPLICATION.restored, (epoch, f"restored-{os.urandom(8).hex()}"))


def add_app_schema(directory: Path, sql: str) -> list[tuple[int, str]]:
    """Record the program's own tables for all shards, including future ones. Return all that is recorded."""
    with _opened(directory / layout.CATALOG) as db, _writing(db):
        db.execute(CATALOG.add_app_schema, (sql,))
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
    with _opened(directory / layout.CATALOG) as db, _writing(db):
        if models is None:
            db.execute(CATALOG.reset_estimates)
        else:
            db.executemany(CATALOG.set_estimate, list(models.items()))


def differences(stored: QueueConfig, given: QueueConfig) -> dict[str, Any]:
    """Return the given settings that differ from the stored ones, with the values given.

    Settings not given are not compared.
    """
    return {name: getattr(given, name) for name in sorted(given.given) if getattr(given, name) != getattr(stored, name)}


def in_words(stored: QueueConfig, different: dict[str, Any]) -> str:
    """Return differences as text: "max_attempts 7 stored and 3 given"."""
    return ", ".join(f"{name} {getattr(stored, name)!r} stored and {value!r} given" for name, value in different.items())


def agree(catalog: Catalog, shards: int | None, durability: Durability | None, config: QueueConfig | None) -> Durability:
    """Verify that what `open` was given agrees with what is stored. Return the durability to use, which may be a stronger one.

    Raises:
        ConfigError: it does not agree; nothing changed.
    """
    if shards is not None and shards != len(catalog.topology):
        raise ConfigError(f"the queue's number of shards is {len(catalog.topology)}, not {shards}", hint=hints.LEAVE_SHARDS_OUT)
    if config is not None and (different := differences(catalog.config, config)):
        raise ConfigError(
            f"the queue is configured otherwise: {in_words(catalog.config, different)}; nothing was changed",
            hint=hints.LEAVE_SETTINGS_OUT,
        )
    if durability == "process" and catalog.durability == "full":
        raise ConfigError(
            "the queue is stored with durability 'full' and can't be opened at the weaker 'process'",
            hint=hints.LEAVE_DURABILITY_OUT,
        )
    return durability or catalog.durability


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


@contextmanager
def _writing(db: apsw.Connection) -> Iterator[None]:
    """Run the block in a write transaction on queue.db.

    Raises:
        OutcomeUnknown: the COMMIT failed, and may have taken effect.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    try:
        db.execute("COMMIT")
    except (apsw.BusyError, apsw.FullError):
        raise  # the journal was not deleted, so closing the connection rolls it back
    except apsw.Error as e:
        raise OutcomeUnknown(f"COMMIT failed: {e}", shard=-1, cause=e) from e
