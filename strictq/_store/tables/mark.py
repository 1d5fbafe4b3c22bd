"""The row of `mark`: where memory begins, and the totals as of the last slice of a fold."""

from __future__ import annotations

from typing import Any, Final

import apsw
import attrs

from ..._sql import TABLES
from ..._values.errors import SchemaMismatch, StoreCorrupt
from ..lane.totals import RunningTotals, StoredMark

KEPT_OUTPUTS: Final = 1
"""The bit of a shard that has the table of kept outputs."""
TURNS: Final = 2
"""The bit of a shard with the table `turn`."""
TENANT_DEPTHS: Final = 4
"""The bit of a shard with the table `tenant_depth`."""
DEDUP_IDS: Final = 8
"""The bit of a shard with messages whose `opts` may have their dedup ids."""
RANGES: Final = 16
"""The bit of a shard that a range has moved from or to."""
KNOWN_FEATURES: Final = KEPT_OUTPUTS | TURNS | TENANT_DEPTHS | DEDUP_IDS | RANGES
"""The bits of `features` that this version knows. A later feature adds kinds of entries, columns or tables under a bit."""
_FIELDS: Final = len(attrs.fields(StoredMark))


def read(db: apsw.Connection, shard: int) -> tuple[StoredMark, RunningTotals]:
    """Return the mark and the totals.

    Raises:
        SchemaMismatch: the shard uses a feature of a later version.
        StoreCorrupt: the row is missing.
    """
    row: Any = db.execute(TABLES.read_mark).get
    if row is None:
        raise StoreCorrupt("the row of `mark` is missing", shard=shard)
    mark = StoredMark(*row[:_FIELDS])
    if mark.features & ~KNOWN_FEATURES:
        raise SchemaMismatch(f"it uses features of a newer strictq: bits {mark.features & ~KNOWN_FEATURES:#x}", shard=shard)
    return mark, RunningTotals(*row[_FIELDS:])


def write(db: apsw.Connection, mark: StoredMark, totals: RunningTotals) -> None:
    db.execute(TABLES.write_mark, (*attrs.astuple(mark), *attrs.astuple(totals)))
