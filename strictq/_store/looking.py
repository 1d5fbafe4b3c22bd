"""What the public layer calls to look at a shard, in one place."""

from __future__ import annotations

import apsw

from .handout import Standing, standings
from .history import issued as records_issued
from .history import newest as newest_record
from .history import page as history_page
from .inspect import explain, key_state, peek, stats, status, top_keys, waiting


def consumers(db: apsw.Connection, now: int) -> tuple[list[Standing], int, int | None]:
    """The named consumers, how many messages are ready, and when the oldest head of these was sent."""
    found = standings(db)
    return (found, *waiting(db, now)) if found else (found, 0, None)


__all__ = [
    "consumers",
    "explain",
    "history_page",
    "key_state",
    "newest_record",
    "peek",
    "records_issued",
    "stats",
    "status",
    "top_keys",
    "waiting",
]
