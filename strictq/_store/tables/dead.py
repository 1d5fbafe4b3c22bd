"""Dead letters. Their messages stay where they are in `message`, so neither a death nor a redrive moves a body."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw

from ..._sql import OPERATE, TABLES


class DeadRow(NamedTuple):
    """A dead letter. The key of a parked keyless message is that of the lane that it is parked in."""

    key: bytes
    arrival: int
    seq: int
    reason: str | None


def bury(db: apsw.Connection, key: bytes, messages: Sequence[tuple[int, int]], at: int, kind: str, reason: str | None) -> None:
    """Note that messages (seq, arrival number) became dead letters."""
    db.executemany(TABLES.bury, [(key, i, seq, at, kind, reason) for seq, i in messages])


def of_lane(db: apsw.Connection, key: bytes, most: int) -> list[DeadRow]:
    """Return a lane's dead letters, the oldest first."""
    return _rows(db.execute(OPERATE.dead_of, (key, most)))


def with_seqs(db: apsw.Connection, key: bytes, seqs: Sequence[int]) -> list[DeadRow]:
    """Return those of a lane's dead letters that have these seqs."""
    if not seqs:
        return []
    return _rows(db.execute(OPERATE.dead_with, (key, apsw.carray(array("q", seqs)))))


def after(db: apsw.Connection, last: tuple[bytes, int], most: int) -> list[DeadRow]:
    """Return the next dead letters of a shard, by key and arrival number."""
    return _rows(db.execute(OPERATE.dead_after, (*last, most)))


def _rows(found: Any) -> list[DeadRow]:
    return [DeadRow._make(row) for row in found.fetchall()]


def unbury(db: apsw.Connection, rows: Sequence[DeadRow]) -> None:
    """Forget that messages are dead letters."""
    db.executemany(TABLES.unbury, [(row.key, row.arrival) for row in rows])
