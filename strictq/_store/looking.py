"""What the public layer calls to look at a shard, in one place."""

from __future__ import annotations

from .check import check
from .inspect import explain, key_state, peek, stats, status, top_keys

__all__ = ["check", "explain", "key_state", "peek", "stats", "status", "top_keys"]
