"""The indexes of lanes at rest, read in order: ready ones by place, delayed ones by due time, leased ones by deadline."""

from __future__ import annotations

from typing import Any, Final

import apsw

from ..._sql import TABLES
from ..lane.entries import NEVER
from ..lane.order import RestCursor

READY: Final = TABLES.ready
DELAYED: Final = TABLES.delayed
LEASED: Final = TABLES.leased
_AHEAD: Final = 256


def look_ahead(db: apsw.Connection, statement: str, cursor: RestCursor) -> None:
    """Find the next value of an index behind what was read, and set `cursor.next`."""
    if not cursor.ahead:
        rows: Any = db.execute(statement, (*cursor.after, _AHEAD)).fetchall()
        cursor.ahead.extend(rows)
    cursor.next = cursor.ahead[0][0] if cursor.ahead else NEVER


def take(db: apsw.Connection, statement: str, cursor: RestCursor, upto: int, most: int) -> list[bytes]:
    """Return the keys of the next lanes up to a value, and move the cursor behind them."""
    look_ahead(db, statement, cursor)
    keys: list[bytes] = []
    ahead = cursor.ahead
    while ahead and ahead[0][0] <= upto and len(keys) < most:
        cursor.after = ahead.popleft()
        keys.append(cursor.after[1])
    look_ahead(db, statement, cursor)
    return keys
