"""What a worker commits in one go: messages that are done, those behind them that start now, and others that start."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import attrs

from .._errors import LeaseLost
from .._sql import LANES, SETTLE
from . import settle
from .frame import Tx
from .settle import Batch

_LANE = attrgetter("lane")


@attrs.define
class Advance:
    """An operation on one shard. No lane occurs in it twice.

    Attributes:
        whole: acks of leases that hold one message.
        heads: acks of one message of leases that hold more; `Batch.start` is the one that starts with it.
        others: any other acks.
        starting: a handler of these messages starts now.
    """

    whole: list[Batch] = attrs.Factory(list)
    heads: list[Batch] = attrs.Factory(list)
    others: list[Batch] = attrs.Factory(list)
    starting: list[Batch] = attrs.Factory(list)

    def __call__(self, tx: Tx) -> dict[int, LeaseLost]:
        """What was refused, by lane: it changed nothing. The rest took effect."""
        others = self.others
        if self.heads and not _ack_heads(tx, self.heads):
            others = others + self.heads
        refused: dict[int, LeaseLost] = {}
        for acks in (self.whole, others):
            if acks:
                for batch, lost in zip(acks, settle.ack(tx, acks), strict=True):
                    if lost:
                        refused[batch.lane] = next(iter(lost.values()))
        if self.starting:
            refused |= _start_all(tx, self.starting)
        return refused


def _ack_heads(tx: Tx, batches: Sequence[Batch]) -> bool:
    """One message each of leases that go on, in three statements for all. False: one is not so; nothing changed."""
    ordered = sorted(batches, key=_LANE)
    n = len(ordered)
    db = tx.db
    before = db.total_changes()
    tx.run("SAVEPOINT heads")
    tx.many(
        SETTLE.end_head, [(b.seqs[0] if b.start is None else b.start, b.lane, b.token, b.seqs[0], b.seqs[0]) for b in ordered]
    )
    if db.total_changes() - before == n:
        tx.many(SETTLE.delete_range, [(b.lane, b.seqs[0], b.seqs[0]) for b in ordered])
        if db.total_changes() - before == 2 * n:
            tx.many(SETTLE.finish_lane, [(b.seqs[0], 1, tx.now, b.token, b.seqs[0], b.seqs[0], b.lane) for b in ordered])
            tx.run("RELEASE heads")
            if apart := [(i,) for b in ordered for i in b.apart]:
                tx.many(LANES.delete_body, apart)
            tx.totals.pending -= n
            tx.count_acks(n)
            return True
    tx.run("ROLLBACK TO heads")
    tx.run("RELEASE heads")
    return False


def _start_all(tx: Tx, batches: Sequence[Batch]) -> dict[int, LeaseLost]:
    before = tx.db.total_changes()
    tx.many(SETTLE.start_many, [(b.seqs[0], b.lane, b.token, b.seqs[0], b.seqs[0]) for b in sorted(batches, key=_LANE)])
    refused: dict[int, LeaseLost] = {}
    if tx.db.total_changes() - before != len(batches):
        for batch in batches:
            try:
                settle.start(tx, batch)
            except LeaseLost as e:
                refused[batch.lane] = e
    return refused
