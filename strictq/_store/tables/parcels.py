"""Lanes on their way from this shard to another one, with everything that belongs to them; and the ranges that the shard owns.

A parcel is written in the transaction in which its lanes leave, and is not changed until it has arrived. So any process may
carry it, any number of times. The rows of its messages stay in `message` until then: they never change, and a large lane would
wait while they are copied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import apsw

from ..._sql import RANGES, SHARD
from ..._values.errors import StoreCorrupt
from ..lane.damage import is_of_values
from ..lane.entries import pack, unpack
from ..lane.live_lane import LaneAtRest
from ..lane.ranges import Ranges

LANE, DEAD, TROUBLE, DEDUP, STATE, FLOORS, APP, REST = range(1, 9)
"""What a row of a parcel is of. FLOORS: the number above which new lanes begin, that of the newest token, the features of the
shard, the move, and the sends of transactions that had arrived. APP: rows of the program's own tables. REST: arrival numbers of
its messages, packed, which are swept last; then nothing else is left of the parcel."""
COLUMNS: Final = 18
SWEPT_MAX: Final = 1_024
"""So many messages are deleted in one transaction."""
NAME: Final = "ranges"
"""The name of the ranges, among what the shard says of itself."""
NUMBER: Final = "last_parcel"
"""The name of the number of the newest parcel, among what the shard says of itself."""
Row = tuple[Any, ...]


def create(db: apsw.Connection) -> None:
    """Create the table, in the transaction of the first move."""
    db.execute(RANGES.schema).fetchall()


def ranges(db: apsw.Connection, shard: int) -> Ranges:
    """Return the ranges of a shard that has the feature.

    Raises:
        StoreCorrupt: they can't be read.
    """
    text: Any = db.execute(SHARD.read_meta, (NAME,)).get
    try:
        return Ranges.from_text(text)
    except (ValueError, TypeError, KeyError) as e:
        if not is_of_values(e):
            raise
        raise StoreCorrupt(f"its ranges can't be read: {e}", shard=shard, cause=e) from e


def stored_ranges(db: apsw.Connection, shard: int) -> Ranges | None:
    """Return the ranges of a shard. None: none has moved from it or to it."""
    return None if db.execute(SHARD.read_meta, (NAME,)).get is None else ranges(db, shard)


def set_ranges(db: apsw.Connection, found: Ranges) -> None:
    db.execute(SHARD.write_meta, (NAME, found.to_text()))


def put(db: apsw.Connection, rows: dict[int, list[Any]], arrivals: Sequence[int]) -> tuple[int, dict[int, list[Any]]]:
    """Write a parcel, with a number that no other parcel of the shard ever has. Return the number, and its rows by kind.

    Args:
        rows: by kind.
        arrivals: the arrival numbers of its messages, in order.
    """
    number = newest(db) + 1
    db.execute(SHARD.write_meta, (NUMBER, number))
    whole = {**rows, REST: [(pack(arrivals[at : at + SWEPT_MAX]),) for at in range(0, len(arrivals), SWEPT_MAX)]}
    for kind, some in whole.items():
        db.executemany(RANGES.put, [(number, kind, n, *row, *[None] * (COLUMNS - len(row))) for n, row in enumerate(some)])
    return number, whole


def newest(db: apsw.Connection) -> int:
    """Return the number of the newest parcel that ever left. 0: none has."""
    number: int | None = db.execute(SHARD.read_meta, (NUMBER,)).get
    return number or 0


def numbers(db: apsw.Connection) -> list[int]:
    """Return the parcels that were not swept."""
    return [number for (number,) in db.execute(RANGES.numbers)]


def rows(db: apsw.Connection, number: int) -> dict[int, list[Any]]:
    """Return the rows of a parcel, by kind. Empty: it was swept."""
    return by_kind(db.execute(RANGES.rows, (number,)).fetchall())


def by_kind(rows: Iterable[Sequence[Any]]) -> dict[int, list[Any]]:
    """Return the columns of rows of the table, by kind."""
    found: dict[int, list[Any]] = {}
    for _, kind, _, *columns in rows:
        found.setdefault(kind, []).append(LaneAtRest._make(columns) if kind == LANE else tuple(columns))
    return found


def listed(found: Mapping[int, list[Any]]) -> list[int]:
    """Return the arrival numbers of the messages of a parcel, dead letters included, in order."""
    if REST not in found:  # it has no messages, or an older version put it
        return arrivals(found)
    return [i for row in found[REST] for i in unpack(row[0])]


def arrivals(found: Mapping[int, list[Any]]) -> list[int]:
    """Return the same from all rows of a parcel, of which some may be lost."""
    of_lanes = (unresolved(row) for row in found.get(LANE, ()))
    rest = (unpack(row[0]) for row in found.get(REST, ()))
    return sorted({row[1] for row in found.get(DEAD, ())}.union(*of_lanes, *rest))


def all_arrivals(db: apsw.Connection) -> set[int]:
    """Return the arrival numbers of all messages that have left, and whose rows are still here."""
    return {i for number in numbers(db) for i in arrivals(rows(db, number))}


def unresolved(row: LaneAtRest) -> set[int]:
    """Return the arrival numbers of all unresolved messages of a row that has all ids of its lane."""
    found = set(unpack(row.ids or b""))
    found.discard(0)
    if row.opts is not None:
        opts: dict[str, Any] = json.loads(row.opts)
        found.update(i for name in ("front", "waiting") for _, i in opts.get(name, ()))
    return found


def sweep(db: apsw.Connection, number: int) -> tuple[list[int], bool]:
    """Forget a parcel that has arrived. Return some of its messages, which the caller deletes, and whether there are more."""
    rest: list[Any] = db.execute(RANGES.rest, (number, REST)).fetchall()
    n, some = (rest[0][0], unpack(rest[0][1])) if rest else (0, listed(rows(db, number)))
    db.execute(RANGES.sweep, (number, REST, n))
    return some, len(rest) > 1
