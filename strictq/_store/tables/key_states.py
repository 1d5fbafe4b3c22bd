"""The states of keys."""

from __future__ import annotations

import apsw

from ..._sql import TABLES
from . import mark


def of(db: apsw.Connection, key: bytes) -> bytes | None:
    """Return the state of a key. None: it has none."""
    value: bytes | None = db.execute(TABLES.key_state, (key,)).get
    return value


def settled(db: apsw.Connection, key: bytes) -> tuple[bool, bytes | None]:
    """Return whether no lane ever left or reached this shard, and the state of a key that has its lane here then."""
    value, features = db.execute(TABLES.settled_key_state, (key,)).get
    return not features & mark.RANGES, value


def set_(db: apsw.Connection, key: bytes, value: bytes | None) -> None:
    """Set the state of a key. None deletes it."""
    if value is None:
        db.execute(TABLES.delete_key_state, (key,))
    else:
        db.execute(TABLES.set_key_state, (key, value))
