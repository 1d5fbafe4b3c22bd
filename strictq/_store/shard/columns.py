"""Messages of lanes column by column, as SQLite packs them: for a part of the cost of making a row of each in Python.

Only for messages without options. The caller makes sure that none was attempted, if that is wanted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import apsw

from ..._sql import SCAN, choose
from ..._values.errors import StoreCorrupt
from ..lane.memory import Group
from . import claiming
from .leases import Claimed, PackedColumns
from .shard_lanes import ShardLanes

STEP: Final = 5_000
"""The number of messages that are packed together. A lane with more comes in pieces of its own."""
STEP_BYTES: Final = 8 * 1024 * 1024
"""If their bodies have more bytes, rows are made instead, because a block of them would be too large."""
ALL: Final = choose(SCAN.packed, {"headers", "id", "sent_at", "body"})

Columns = tuple[str, str, str, str, bytes]
"""seqs, ids, sent_at, sizes, bodies: as in PackedColumns."""


def of(store: ShardLanes, arrivals: Sequence[int], statement: str = ALL) -> Columns | None:
    """Return the columns of messages, in their order. None: one of them has options, which are wanted.

    Args:
        statement: SCAN.packed, with the wanted columns.
    Raises:
        StoreCorrupt: one of them has no row.
    """
    found: Any = store.run(statement, (apsw.carray(array("q", arrivals)),)).get
    count, headed, seqs, ids, sent_at, sizes, bodies = found
    if count != len(arrivals):
        raise StoreCorrupt("an unresolved message has no row in `message`", shard=store.shard)
    return None if headed else (seqs, ids or "", sent_at or "", sizes or "", bodies or b"")


def fill(store: ShardLanes, out: Claimed, groups: list[Group]) -> None:
    """Add the messages of the lanes that a claim takes: as columns where they permit it, else as rows."""
    as_rows: list[Group] = []
    some: list[Group] = []
    n = 0
    for group in groups:
        lane, ids = group
        if lane.rare is not None and lane.rare.tried:
            as_rows.append(group)
            continue
        if n + len(ids) > STEP:
            as_rows += _add_columns(store, out, some)
            some, n = [], 0
        some.append(group)
        n += len(ids)
    as_rows += _add_columns(store, out, some)
    claiming.fill(store, out, as_rows)
    out.messages += sum(columns.messages for columns in out.columns)


def _add_columns(store: ShardLanes, out: Claimed, groups: list[Group]) -> list[Group]:
    """Add whole lanes as columns: some lanes together, or a deep lane STEP messages at a time. Return those that must be rows."""
    ids = [i for _, some in groups for i in some]
    made: list[PackedColumns] = []
    for at in range(0, len(ids), STEP):
        found = of(store, ids[at : at + STEP])
        if found is None or len(found[-1]) > STEP_BYTES:
            return groups
        n = min(STEP, len(ids) - at)
        depths = [n] if len(groups) == 1 else [len(some) for _, some in groups]
        made.append(PackedColumns(store.shard, n, [lane.key for lane, _ in groups], depths, *found, fresh=not at))
    out.columns += made
    return []
