"""The indexes of lanes at rest, read in order: ready ones by place, delayed ones by due time, leased ones by deadline."""

from __future__ import annotations

from typing import Any, Final

import apsw

from ..._sql import TABLES, TURNS
from ..lane.entries import NEVER
from ..lane.turns import RestCursor

READY: Final = TABLES.ready
OF_TENANT: Final = TURNS.ready
DELAYED: Final = TABLES.delayed
LEASED: Final = TABLES.leased
_AHEAD: Final = 256
_AHEAD_OF_TENANT: Final = 8
"""There may be many tenants, and each gets few messages of a claim."""


def look_ahead(db: apsw.Connection, statement: str, cursor: RestCursor, tenant: bytes | None = None, below: int = NEVER) -> None:
    """Find the next value of an index behind what was read, and set `cursor.next`.

    Args:
        tenant: read only lanes of this one, with the statement for that.
        below: read only lanes with lower values.
    """
    if not cursor.ahead:
        values = (*cursor.after, _AHEAD) if tenant is None else (tenant, *cursor.after, _AHEAD_OF_TENANT)
        rows: Any = db.execute(statement, values).fetchall()
        cursor.ahead.extend(rows if below == NEVER else [row for row in rows if row[0] < below])
    cursor.next = cursor.ahead[0][0] if cursor.ahead else NEVER


def take(
    db: apsw.Connection,
    statement: str,
    cursor: RestCursor,
    upto: int,
    most: int,
    tenant: bytes | None = None,
    below: int = NEVER,
) -> list[bytes]:
    """Return the keys of the next lanes up to a value, and move the cursor behind them."""
    look_ahead(db, statement, cursor, tenant, below)
    keys: list[bytes] = []
    ahead = cursor.ahead
    while ahead and ahead[0][0] <= upto and len(keys) < most:
        cursor.after = ahead.popleft()
        keys.append(cursor.after[1])
    look_ahead(db, statement, cursor, tenant, below)
    return keys
