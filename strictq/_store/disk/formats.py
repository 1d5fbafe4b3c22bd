"""File formats, and the migration of an older one to this one. There is no way back."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import apsw

from ..._sql import CATALOG, FORMAT_2, FORMAT_3, OUTPUTS, RANGES, REPLICATION, SHARD, SHARD_SCHEMA, TENANT_DEPTHS, TURNS
from ..._values import hints
from ..._values.errors import SchemaMismatch, StoreCorrupt, StoreError
from . import checksums

FORMAT: Final = 3
"""The format this version writes, in PRAGMA user_version of every file.

2: a shard has the logs of hot lanes, and the errors of attempts. 3: a lane is a row, and every change is a row of a journal.
"""
ONE_LANE: Final = 3
"""The first format whose shards have lanes of one kind. `migrating.moving` brings older ones to it."""
REPLICATED: Final = 0x100
"""Added to the format of queue.db once the queue is replicated. Releases without replication then refuse it as too new."""
CATALOG_ID: Final = 0x73717100
"""PRAGMA application_id of queue.db."""
SHARD_ID: Final = 0x73717101
"""PRAGMA application_id of a shard."""

Object = tuple[str, str, str | None]
Step = Callable[[apsw.Connection], None]


def _nothing(_: apsw.Connection) -> None:
    """Change nothing: only the format's number differs."""


def _add_logs(db: apsw.Connection) -> None:
    db.execute(FORMAT_2).fetchall()


STEPS: dict[int, dict[int, Step]] = {CATALOG_ID: {1: _nothing, 2: _nothing}, SHARD_ID: {1: _add_logs}}
"""For each kind of file, the step that leads from a format to the next one. Each runs in one transaction with its stamp.

A shard of format 2 is moved to format 3 in many transactions: see `migrating.moving`.
"""
LEFT_OVER: Final = "next_"
"""The names of tables that an interrupted move to the next format left in a shard begin so."""


OLDEST: Final = 1
"""The format before the first step, which the schemas in _sql describe."""
_SCHEMAS: Final = {CATALOG_ID: CATALOG.schema, SHARD_ID: SHARD_SCHEMA}
_OPTIONAL: Final = (
    (CATALOG_ID, OLDEST, "replication", REPLICATION.schema),
    (SHARD_ID, ONE_LANE, "turn", TURNS.schema),
    (SHARD_ID, ONE_LANE, "tenant_depth", TENANT_DEPTHS.schema),
    (SHARD_ID, ONE_LANE, "parcel", RANGES.schema),
    (SHARD_ID, ONE_LANE, "kept_output", OUTPUTS.schema),
)
"""Tables that a file has only once they are needed: the kind of file, its first format that may have them, a table, the SQL."""
_SPACE: Final = re.compile(r"--[^\n]*|\s+")
_QUOTED: Final = re.compile(r'"(\w+)"')
"""A name as SQLite writes it where it renames a table."""


def stamp(db: apsw.Connection, kind: int, version: int) -> None:
    """Mark a file with its kind and format, within the transaction that brings it to that format."""
    db.pragma("application_id", kind)
    db.pragma("user_version", version)


def _plain_version(found: int, kind: int) -> int:
    """Return the format that a value of PRAGMA user_version stands for."""
    return found - REPLICATED if kind == CATALOG_ID and found >= REPLICATED else found


def require(db: apsw.Connection, kind: int, shard: int, *, older: bool = False, wanted: int | None = None) -> bool:
    """Refuse a file of another format. Return whether it is the queue.db of a queue that was ever replicated.

    Args:
        older: accept an older format, too.
        wanted: the format of the queue, for a shard. None: this version's.
    Raises:
        SchemaMismatch: its format is newer, or older. Nothing changed.
        StoreCorrupt: it is another kind of file, its pages have no checksums, or its schema differs.
    """
    found = db.pragma("application_id")
    stored: int = db.pragma("user_version")
    version = _plain_version(stored, kind)
    if found != kind or version < OLDEST:
        raise StoreCorrupt("the file is empty or not one of strictq's", shard=shard)
    if db.filename:
        checksums.require(db, shard)
    if version > (FORMAT if wanted is None else wanted):
        raise SchemaMismatch(f"its format {version} is newer than {FORMAT}, the newest that this strictq supports", shard=shard)
    least = FORMAT if wanted is None else wanted
    if version < least and not older:
        raise SchemaMismatch(f"its format {version} is older than {least}", shard=shard, hint=hints.MIGRATE)
    if db.filename:
        try:
            require_schema(db, kind, shard, version, unfinished=older)
        except StoreCorrupt:
            if db.pragma("user_version") == stored:
                raise
            # Another process has migrated it, or configured its replication, since user_version was read.
            return require(db, kind, shard, older=older, wanted=wanted)
    return stored != version


def require_schema(db: apsw.Connection, kind: int, shard: int, version: int, *, unfinished: bool = False) -> None:
    """Verify that a file has the tables of its format, and otherwise only the program's own.

    A trigger, a view in a table's place or a CHECK that calls functions would run foreign code in our transactions.

    Args:
        unfinished: accept what an interrupted move to the next format left.
    Raises:
        StoreCorrupt: the schema differs.
    """
    objects: list[Any] = db.execute(SHARD.objects).fetchall()
    there = {name for _, name, *_ in objects}
    optional = "\n".join(
        sql for of, version_from, table, sql in _OPTIONAL if of == kind and version >= version_from and table in there
    )
    expected = dict(_expected(kind, version, tuple(STEPS[kind].items()), optional))
    for type_, name, table, root, sql in objects:
        found = (type_, table, _plain(sql))
        if str(name).startswith("sqlite_stat") or (kind == SHARD_ID and _is_programs(type_, name, table, root)):
            continue
        if unfinished and type_ in ("table", "index") and str(table).startswith(LEFT_OVER):
            continue
        if expected.pop(name, None) != found:
            raise StoreCorrupt(f"its schema is not strictq's: {type_} {name!r}", shard=shard)
    if expected:
        raise StoreCorrupt(f"its schema is not strictq's: {min(expected)!r} is missing", shard=shard)


def _is_programs(type_: str, name: str, table: str, root: int) -> bool:
    if type_ == "table":
        return name.startswith("app_") and root > 0  # a virtual table has no root
    if type_ == "index":
        return table.startswith("app_")
    return type_ == "view" and name.startswith("app_")


@lru_cache(maxsize=256)  # the shards of a queue have the same schema
def _plain(sql: str | None) -> str | None:
    return None if sql is None else _QUOTED.sub(r"\1", _SPACE.sub(" ", sql)).strip()


@lru_cache
def _expected(kind: int, version: int, steps: tuple[tuple[int, Step], ...], optional: str) -> tuple[tuple[str, Object], ...]:
    """Return name → type, table and SQL of every object in a new file of this format.

    Args:
        optional: SQL of tables that not every file has.
    """
    db = apsw.Connection(":memory:")
    try:
        is_one_lane = kind == SHARD_ID and version >= ONE_LANE
        db.execute(FORMAT_3 if is_one_lane else _SCHEMAS[kind]).fetchall()
        for before, step in steps:
            if (ONE_LANE if is_one_lane else OLDEST) <= before < version:
                step(db)
        if optional:
            db.execute(optional).fetchall()
        objects: list[Any] = db.execute(SHARD.objects).fetchall()
        return tuple((name, (type_, table, _plain(sql))) for type_, name, table, _, sql in objects)
    finally:
        db.close()


def version_of(db: apsw.Connection, kind: int) -> int:
    """Return the format of a file that `require` accepted."""
    return _plain_version(db.pragma("user_version"), kind)


def bring_up(db: apsw.Connection, kind: int, shard: int, to: int | None = None) -> None:
    """Bring a file that `require` accepted to a later format, one transaction per step. No other process has it open.

    Args:
        to: the format; None: this version's.
    """
    to = FORMAT if to is None else to
    while (version := version_of(db, kind)) < to:
        db.execute("BEGIN IMMEDIATE")
        try:
            try:
                step = STEPS[kind][version]
            except KeyError:
                raise StoreError(f"format {version} cannot be upgraded to {to}", shard=shard) from None
            step(db)
            stamp(db, kind, db.pragma("user_version") + 1)
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
