"""What the public layer calls to look at a shard, in one place."""

from __future__ import annotations

from .check import check
from .history import issued as records_issued
from .history import newest as newest_record
from .history import page as history_page
from .inspect import explain, key_state, peek, stats, status, top_keys

__all__ = [
    "check",
    "explain",
    "history_page",
    "key_state",
    "newest_record",
    "peek",
    "records_issued",
    "stats",
    "status",
    "top_keys",
]
