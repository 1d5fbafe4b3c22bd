"""Dead letters. Their messages stay where they are in `message`, so neither a death nor a redrive moves a body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from ..._sql import LANE_TABLES


def bury(db: apsw.Connection, key: bytes, messages: Sequence[tuple[int, int]], at: int, kind: str, reason: str | None) -> None:
    """Note that messages (seq, arrival number) became dead letters."""
    many: Any = db.executemany
    many(LANE_TABLES.bury, [(key, i, seq, at, kind, reason) for seq, i in messages])


def some(db: apsw.Connection, key: bytes, most: int) -> list[tuple[int, int]]:
    """Return (arrival number, seq) of a lane's dead letters, the oldest first."""
    found: Any = db.execute(LANE_TABLES.dead_of, (key, most)).fetchall()
    return list(found)


def unbury(db: apsw.Connection, key: bytes, arrivals: Sequence[int]) -> None:
    """Forget that messages are dead letters."""
    many: Any = db.executemany
    many(LANE_TABLES.unbury, [(key, i) for i in arrivals])
