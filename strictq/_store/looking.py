"""What the public layer calls to look at a shard, in one place."""

from __future__ import annotations

from .check import check
from .history import newest as newest_record
from .history import page as history_page
from .inspect import explain, key_state, peek, stats, status, top_keys

__all__ = ["check", "explain", "history_page", "key_state", "newest_record", "peek", "stats", "status", "top_keys"]
