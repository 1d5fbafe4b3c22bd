"""The counter row of a shard of formats 1 and 2, which is compared as the shard is opened to be migrated."""

from __future__ import annotations

import math
from typing import Any, Final

import apsw

from ..._sql import MIGRATING
from ..._values.errors import StoreCorrupt
from ..commit.tx import EPOCHS, NEVER, TOKEN_BITS

_EPOCH: Final = 1
_LAST_TOKEN: Final = 5
_ACK_RATE: Final = 23


def epoch(db: apsw.Connection) -> int | None:
    """Return the epoch of the last write that began one. None: the row is missing."""
    known: int | None = db.execute(MIGRATING.epoch).get
    return known


def last_time(db: apsw.Connection) -> int:
    """Return the queue time of the last write."""
    has_logs = db.execute(MIGRATING.has_logs).get is not None
    at: int = db.execute(MIGRATING.last_time if has_logs else MIGRATING.last_counted_time).get
    return at


def issued(db: apsw.Connection) -> tuple[int, int]:
    """Return the newest arrival number and the newest outbox number."""
    has_logs = db.execute(MIGRATING.has_logs).get is not None
    numbers: tuple[int, int] = db.execute(MIGRATING.issued if has_logs else MIGRATING.counted_as_issued).get
    return numbers


def verify(db: apsw.Connection, shard: int) -> None:
    """Verify that strictq could have written all values. Numbers near the limits of what SQLite stores would overflow.

    Raises:
        StoreCorrupt: it could not.
    """
    row: Any = db.execute(MIGRATING.read_counter).get
    if row is None:
        return  # the migration reports it
    numbers = [value for value in row if isinstance(value, int)]
    possible = 0 <= row[_EPOCH] < EPOCHS and 0 <= row[_LAST_TOKEN] < 1 << TOKEN_BITS and math.isfinite(row[_ACK_RATE])
    if not possible or not all(-NEVER <= n <= NEVER for n in numbers):
        raise StoreCorrupt("its counters are out of range", shard=shard)
