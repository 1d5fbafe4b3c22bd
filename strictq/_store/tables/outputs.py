"""Outputs of finished messages, kept for those who wait for them, if the configuration says so.

A shard has the table, and a bit of `mark.features`, once it has kept an output. A version that does not know the table refuses
such a shard, because it would neither write outputs nor delete old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw

from ..._sql import OUTPUTS, repeat
from ..lane.totals import StoredMark
from . import mark

Kept = tuple[int, bytes, int, int, str]
"""A row: arrival number, key, seq, the time at which it may be deleted, and the output."""
NAMED_MAX: Final = 500


def has_table(stored: StoredMark) -> bool:
    """Return whether a shard has kept any output."""
    return bool(stored.features & mark.KEPT_OUTPUTS)


def create(db: apsw.Connection) -> None:
    """Create the table, in the transaction that keeps the first output."""
    db.execute(OUTPUTS.schema).fetchall()
    db.execute(OUTPUTS.add_feature, (mark.KEPT_OUTPUTS,))


def keep(db: apsw.Connection, rows: Sequence[Kept]) -> None:
    db.executemany(OUTPUTS.keep, rows)


def of(db: apsw.Connection, key: bytes, seq: int, now: int) -> str | None:
    """Return the output of a message. None: none is kept."""
    output: str | None = db.execute(OUTPUTS.of, (key, seq, now)).get
    return output


def of_arrival(db: apsw.Connection, arrival: int, now: int) -> str | None:
    """Return the output of a message by its arrival number. None: none is kept."""
    output: str | None = db.execute(OUTPUTS.of_arrival, (arrival, now)).get
    return output


def soonest(db: apsw.Connection) -> int | None:
    """Return when the next output may be deleted. None: there are none."""
    until: int | None = db.execute(OUTPUTS.next_end).get
    return until


def forget_some(db: apsw.Connection, now: int, limit: int) -> None:
    """Delete some outputs whose time is over."""
    db.execute(OUTPUTS.forget, (now, limit))


def purge_some(db: apsw.Connection, key: bytes | None, limit: int) -> int:
    """Delete outputs of a key, or of all, in a bounded step. Return how many."""
    before = db.total_changes()
    if key is None:
        db.execute(OUTPUTS.purge, (limit,))
    else:
        db.execute(OUTPUTS.purge_of, (key, limit))
    return db.total_changes() - before


def of_arrivals(db: apsw.Connection, arrivals: Sequence[int]) -> dict[int, tuple[int, str]]:
    """Return time and output of those of these messages that have one."""
    found: dict[int, tuple[int, str]] = {}
    for start in range(0, len(arrivals), NAMED_MAX):
        some = arrivals[start : start + NAMED_MAX]
        rows: list[Any] = db.execute(repeat(OUTPUTS.rows, len(some)), tuple(some)).fetchall()
        found.update((i, (until, output)) for i, until, output in rows)
    return found
