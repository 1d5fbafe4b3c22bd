"""Dedup ids. A repeated one is found by the primary key, so the lane and its messages need nothing for it."""

from __future__ import annotations

from typing import Any, Final

import apsw

from ..._sql import OPERATE, TABLES

FORGET_STEP: Final = 8
"""How many ids whose windows have ended one send removes, so that each new id pays for the removal of old ones."""
Earlier = tuple[int, int, bytes | None]
"""Seq and arrival number of an earlier message with the same id, and its key if the id is of the whole queue."""


def remember(db: apsw.Connection, row: tuple[bytes, str, int, int, int, bytes | None], now: int) -> Earlier | None:
    """Remember (key, dedup id, seq, arrival number, end of its window, key if the first one is empty).

    Returns:
        None: it is new.
    """
    db.execute(TABLES.add_dedup, (*row, now))
    return None if db.changes() else find(db, row[0], row[1], now)


def find(db: apsw.Connection, key: bytes, dedup_id: str, now: int) -> Earlier | None:
    """Return the earlier message with a dedup id. None: there is none within the window."""
    found: Earlier | None = db.execute(TABLES.dedup_seq, (key, dedup_id, now)).get
    return found


def forget_some(db: apsw.Connection, now: int, limit: int = FORGET_STEP) -> None:
    """Remove some ids whose windows have ended."""
    db.executemany(TABLES.drop_dedup, db.execute(TABLES.old_dedups, (now, limit)).fetchall())


def soonest(db: apsw.Connection) -> int | None:
    """Return when the next window ends. None: there are no ids."""
    until: int | None = db.execute(TABLES.next_dedup).get
    return until


def purge(db: apsw.Connection, key: bytes, limit: int) -> int:
    """Remove ids of a key, in a bounded step. Return how many."""
    names = db.execute(OPERATE.dedups_of, (key, limit)).fetchall()
    db.executemany(TABLES.drop_dedup, names)
    db.executemany(OPERATE.drop_wide_dedup, [(dedup_id, key) for _, dedup_id in names])
    return len(names)


def purge_after(db: apsw.Connection, last: tuple[bytes, str], limit: int) -> list[tuple[bytes, str]]:
    """Remove the next ids of the shard, in a bounded step. Return their keys and ids."""
    names: list[Any] = db.execute(OPERATE.dedups_after, (*last, limit)).fetchall()
    db.executemany(TABLES.drop_dedup, names)
    return names
