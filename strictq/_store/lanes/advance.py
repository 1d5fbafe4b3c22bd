"""What a worker commits together: acks, starts of the messages behind them, and other starts."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from ..._errors import LeaseLost
from ..._sql import SETTLE
from ..commit.tx import Tx
from ..hot import tier
from ..onelane import settling
from . import lanes, settle
from .leases import Settlement

_LANE = attrgetter("lane")


class Advance:
    """An operation on one shard. No lease occurs in it twice.

    A lane may: a worker that leased a lane again may not have noticed yet that it lost the earlier lease.
    """

    __slots__ = ("_heads", "_last", "_starting")

    def __init__(
        self, last: Sequence[tuple[Settlement, int, int]], heads: Sequence[Settlement], starting: Sequence[Settlement]
    ) -> None:
        """Prepare the operation.

        Args:
            last: acks of the last message of a lease that its holder knows, with the lease's range.
            heads: acks of one message of leases that hold more; `Settlement.start` is the message that starts with it.
            starting: a handler of these messages starts now.
        """
        self._last = last
        self._heads = heads
        self._starting = starting

    def __call__(self, tx: Tx) -> dict[Settlement, LeaseLost]:
        """Run it. Return the refused settlements, which changed nothing. The others took effect."""
        if tx.lanes is not None:
            return settling.advance(tx, self._last, self._heads, self._starting)
        heads, last, starting = self._heads, self._last, self._starting
        hot = tx.hot
        if hot is not None and hot.lanes and tx.config.history == "off":
            left = set(tier.ack(tx, hot, [*heads, *(batch for batch, _, _ in last)]))
            heads = [batch for batch in heads if batch in left]
            last = [entry for entry in last if entry[0] in left]
            starting = tier.start(tx, hot, starting)
        settle.locate(tx, [*heads, *(batch for batch, _, _ in last), *starting])
        singly: list[Settlement] = []
        if heads and not _ack_heads(tx, heads):
            singly += heads
        if last and not _ack_last(tx, last):
            singly += [batch for batch, _, _ in last]
        refused: dict[Settlement, LeaseLost] = {}
        if singly:
            for batch, lost in zip(singly, settle.ack(tx, singly), strict=True):
                if lost:
                    refused[batch] = next(iter(lost.values()))
        if starting:
            refused |= _start_all(tx, starting)
        return refused


def _ack_heads(tx: Tx, batches: Sequence[Settlement]) -> bool:
    """Ack one message each of leases that continue, in three statements for all.

    If one does not fit, change nothing, return False.
    """
    ordered = sorted(batches, key=_LANE)
    started = [(b.seqs[0] if b.start is None else b.start, b.lane, b.token, b.seqs[0], b.seqs[0]) for b in ordered]
    return _finish(tx, ordered, SETTLE.end_head, started) is not None


def _ack_last(tx: Tx, work: Sequence[tuple[Settlement, int, int]]) -> bool:
    """Ack the last message each of leases, which end with it, in a few statements for all. Return as `_ack_heads`."""
    work = sorted(work, key=lambda entry: entry[0].lane)
    ordered = [b for b, _, _ in work]
    finished = _finish(tx, ordered, SETTLE.end_whole_lease, [(b.lane, b.token, lo, hi, 1) for b, lo, hi in work])
    if finished is None:
        return False
    settle.list_rest(tx, finished, ordered)
    return True


def _finish(tx: Tx, batches: Sequence[Settlement], leases: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]] | None:
    """Run `lanes.remove_acked`, and roll it back if it returns None."""
    tx.run("SAVEPOINT advance")
    finished = lanes.remove_acked(tx, batches, leases, rows)
    if finished is None:
        tx.run("ROLLBACK TO advance")
    tx.run("RELEASE advance")
    return finished


def _start_all(tx: Tx, batches: Sequence[Settlement]) -> dict[Settlement, LeaseLost]:
    before = tx.db.total_changes()
    tx.many(SETTLE.start_many, [(b.seqs[0], b.lane, b.token, b.seqs[0], b.seqs[0]) for b in sorted(batches, key=_LANE)])
    if tx.db.total_changes() - before == len(batches):
        return {}
    return {b: e for b, e in zip(batches, settle.start(tx, batches), strict=True) if e is not None}
