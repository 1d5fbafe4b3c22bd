"""The table of the ready lanes at rest of each tenant. A shard has it once its queue had a separator of tenants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import apsw

from ..._sql import SHARD, TURNS, repeated
from ..._values.tenants import tenant_of
from ..lane.live_lane import LiveLane
from .log_rows import in_parts

_DROP: Final = repeated(TURNS.drop, 256, 32, 4, 1)
SEPARATOR = "turn_separator"
"""The entry of `meta` that says by which separator the table was filled."""


def separator_of(db: apsw.Connection) -> str | None:
    """Return the separator by which the table is filled. None: it is empty, or missing."""
    found: str | None = db.execute(SHARD.read_meta, (SEPARATOR,)).get
    return found or None


def rebuild(db: apsw.Connection, separator: str | None, *, create: bool) -> None:
    """Fill the table by another separator, in a transaction. Takes about a second for each million of ready lanes.

    Args:
        separator: None: the queue has no tenants any more.
        create: the shard has no such table yet.
    """
    if create:
        db.execute(TURNS.schema).fetchall()
    db.execute(TURNS.clear).fetchall()
    if separator is not None:
        db.execute(TURNS.fill, (separator.encode(),)).fetchall()
    db.execute(SHARD.write_meta, (SEPARATOR, separator or ""))


def tenants(db: apsw.Connection) -> list[bytes]:
    """Return the names of all tenants with ready lanes at rest."""
    return [name for (name,) in db.execute(TURNS.tenants)]


def write(db: apsw.Connection, lanes: Iterable[LiveLane], separator: bytes) -> None:
    """Write where lanes are listed that come to rest."""
    ready: list[tuple[Any, ...]] = []
    others: list[bytes] = []
    for lane in lanes:
        if lane.rest:
            continue  # only its tail is loaded, and its row keeps the rest
        place = lane.place
        if place is None:
            if lane.lsn:  # otherwise it has no row yet
                others.append(lane.key)
        else:
            ready.append((lane.key, tenant_of(lane.key, separator), place))
    db.executemany(TURNS.write, ready)
    if others and db.execute(TURNS.any).get:
        for _ in in_parts(db.execute, _DROP, others):
            pass
