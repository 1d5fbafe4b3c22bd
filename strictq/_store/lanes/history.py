"""Records of finished messages of format 2."""

from __future__ import annotations

from collections.abc import Sequence

from ..._sql import HISTORY
from ..commit.tx import Tx
from ..onelane.history import ACKED, DROPPED, EXPIRED, PURGED, End, trim


def keep(tx: Tx, ranges: Sequence[tuple[int, int, int, End]]) -> None:
    """Record messages before they are removed: (lane, first seq, last seq, end). Does nothing if no records are kept."""
    config = tx.config
    if config.history == "off" or not ranges:
        return
    bodies = config.history == "bodies"
    before = tx.db.total_changes()
    tx.many(
        HISTORY.keep,
        [
            (tx.now, end.attempts, end.prepare_seconds, end.process_seconds, end.outcome, bodies, lane, lo, hi, end.output)
            for lane, lo, hi, end in ranges
        ],
    )
    trim(tx, tx.db.total_changes() - before)


__all__ = ["ACKED", "DROPPED", "EXPIRED", "PURGED", "End", "keep"]
