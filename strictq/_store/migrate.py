"""Formats of the files, and the way from an older one to this one. Forward only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import apsw

from .._errors import SchemaMismatch, StoreCorrupt, StoreError
from . import checksums

FORMAT: Final = 1
"""The format this version writes, in PRAGMA user_version of every file."""
CATALOG_ID: Final = 0x73717100
"""PRAGMA application_id of queue.db."""
SHARD_ID: Final = 0x73717101
"""PRAGMA application_id of a shard."""

Step = Callable[[apsw.Connection], None]
STEPS: dict[int, dict[int, Step]] = {CATALOG_ID: {}, SHARD_ID: {}}
"""For each kind of file: the step that leads from a format to the next one. Each runs in a transaction with its stamp."""


def stamp(db: apsw.Connection, kind: int, version: int = FORMAT) -> None:
    """Mark a file with its kind and format; inside the transaction that makes it so."""
    db.pragma("application_id", kind)
    db.pragma("user_version", version)


def require(db: apsw.Connection, kind: int, shard: int, *, read_only: bool, target: int | None = None) -> None:
    """Bring a file to this version's format.

    Raises:
        SchemaMismatch: it is of a newer format, or of an older one and may not be written. Nothing changed.
        StoreCorrupt: it is a file of another kind, or its pages have no checksums.
    """
    target = FORMAT if target is None else target
    found = db.pragma("application_id")
    version = db.pragma("user_version")
    if found != kind:
        raise StoreCorrupt("the file is empty or not one of strictq's", shard=shard)
    if db.filename:
        checksums.require(db, shard)
    if version > target:
        raise SchemaMismatch(f"its format {version} is newer than {target}, the newest this strictq knows", shard=shard)
    if version < target and read_only:
        raise SchemaMismatch(
            f"its format {version} is older than {target}",
            shard=shard,
            hint="open it once without read_only to migrate it",
        )
    while version < target:
        version = _step(db, kind, shard, target)


def _step(db: apsw.Connection, kind: int, shard: int, target: int) -> int:
    """One migration, unless another process was faster. Returns the format reached."""
    db.execute("BEGIN IMMEDIATE")
    try:
        version: int = db.pragma("user_version")
        if version < target:
            try:
                step = STEPS[kind][version]
            except KeyError:
                raise StoreError(f"there is no way from format {version} to {target}", shard=shard) from None
            step(db)
            version += 1
            stamp(db, kind, version)
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return version
