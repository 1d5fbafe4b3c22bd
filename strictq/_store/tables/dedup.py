"""Dedup ids. A repeated one is found by the primary key, so the lane and its messages need nothing for it."""

from __future__ import annotations

from typing import Any, Final

import apsw

from ..._sql import LANE_TABLES

FORGET_STEP: Final = 8
"""How many ids whose windows have ended one send removes, so that each new id pays for the removal of old ones."""


def remember(db: apsw.Connection, row: tuple[bytes, str, int, int, int], now: int) -> int | None:
    """Remember (key, dedup id, seq, arrival number, end of its window).

    Returns:
        None: it is new. Otherwise the seq of the message that was sent with it.
    """
    run: Any = db.execute
    run(LANE_TABLES.add_dedup, (*row, now))
    if db.changes():
        return None
    found: int = run(LANE_TABLES.dedup_seq, row[:2]).get
    return found


def forget_some(db: apsw.Connection, now: int) -> None:
    """Remove some ids whose windows have ended."""
    run: Any = db.execute
    many: Any = db.executemany
    many(LANE_TABLES.drop_dedup, run(LANE_TABLES.old_dedups, (now, FORGET_STEP)).fetchall())
