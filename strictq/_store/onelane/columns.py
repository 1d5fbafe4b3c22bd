"""Messages of lanes column by column, as SQLite packs them: for a part of the cost of making a row of each in Python.

Only for messages without options. The caller makes sure that none was attempted, if that is wanted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import apsw

from ..._errors import StoreCorrupt
from ..._sql import LANE_SCAN, choose
from ..bulk.columns import PackedColumns
from ..bulk.packing import Piece
from ..lanes.leases import Claimed, Held
from . import claiming

if TYPE_CHECKING:
    from ..lane.memory import Group
    from .shard_lanes import ShardLanes

STEP: Final = 5_000
"""The number of messages that are packed together. A lane with more comes in pieces of its own."""
STEP_BYTES: Final = 8 * 1024 * 1024
"""If their bodies have more bytes, rows are made instead, because a block of them would be too large."""
ALL: Final = choose(LANE_SCAN.packed, {"headers", "id", "sent_at", "body"})

Columns = tuple[str, str, str, str, bytes]
"""seqs, ids, sent_at, sizes, bodies: as in PackedColumns."""


def of(store: ShardLanes, arrivals: Sequence[int], statement: str = ALL) -> Columns | None:
    """Return the columns of messages, in their order. None: one of them has options, which are wanted.

    Args:
        statement: LANE_SCAN.packed, with the wanted columns.
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
    held: list[Held] = []
    some: list[Group] = []
    messages = n = 0

    def together() -> None:
        nonlocal some, n, messages
        if some and not (n <= STEP and _add_columns(store, out, some)):
            as_rows.extend(some)
        elif some:
            messages += n
        some, n = [], 0

    for group in groups:
        lane, ids = group
        if lane.rare is not None and lane.rare.tried:
            as_rows.append(group)
        elif len(ids) > STEP:
            if (pieces := _pieces(store, group)) is None:
                as_rows.append(group)
            else:
                deep = Held(0, lane.key, store.memory.new_token(), out.deadline, ())
                deep.pieces = pieces
                held.append(deep)
                messages += len(ids)
        else:
            if n + len(ids) > STEP:
                together()
            some.append(group)
            n += len(ids)
    together()
    claiming.fill(store, out, as_rows)
    for deep in held:
        out.add(deep)
    out.messages += messages
    out.all_hot = out.all_hot and not out.columns


def _add_columns(store: ShardLanes, out: Claimed, groups: list[Group]) -> bool:
    """Add whole lanes as columns. Return False if they must be rows."""
    ids = [i for _, some in groups for i in some]
    found = of(store, ids)
    if found is None or len(found[-1]) > STEP_BYTES:
        return False
    keys, depths = [lane.key for lane, _ in groups], [len(some) for _, some in groups]
    out.columns.append(PackedColumns(store.shard, len(ids), keys, depths, *found))
    return True


def _pieces(store: ShardLanes, group: Group) -> list[Piece] | None:
    """Return a deep lane in pieces. None: it must be rows."""
    lane, ids = group
    pieces: list[Piece] = []
    for at in range(0, len(ids), STEP):
        some = ids[at : at + STEP]
        found = of(store, some)
        if found is None or len(found[-1]) > STEP_BYTES:
            return None
        seqs = found[0]
        lo, hi = int(seqs.partition(",")[0]), int(seqs[seqs.rfind(",") + 1 :])
        pieces.append(Piece(0, 0, 0, lane.key, lane.tail, 0, *found, len(some), lo, hi, some[-1]))
    return pieces
