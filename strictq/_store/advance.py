"""What a worker commits in one go: messages that are done, those behind them that start now, and others that start."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import attrs

from .._errors import LeaseLost
from .._sql import LANES, SETTLE
from . import history, settle
from .frame import Tx
from .settle import Batch

_LANE = attrgetter("lane")


@attrs.define(eq=False, repr=False)
class Advance:
    """An operation on one shard. No lease occurs in it twice; a lane may: a worker that took a lane back may not yet know
    that it had lost it.

    Attributes:
        last: acks of the last message of a lease, as far as its holder knows, with the lease's range.
        heads: acks of one message of leases that hold more; `Batch.start` is the one that starts with it.
        starting: a handler of these messages starts now.
    """

    last: list[tuple[Batch, int, int]] = attrs.Factory(list)
    heads: list[Batch] = attrs.Factory(list)
    starting: list[Batch] = attrs.Factory(list)

    def __call__(self, tx: Tx) -> dict[tuple[int, int], LeaseLost]:
        """What was refused, by lane and token: it changed nothing. The rest took effect."""
        singly: list[Batch] = []
        if self.heads and not _ack_heads(tx, self.heads):
            singly += self.heads
        if self.last and not _ack_last(tx, self.last):
            singly += [batch for batch, _, _ in self.last]
        refused: dict[tuple[int, int], LeaseLost] = {}
        if singly:
            for batch, lost in zip(singly, settle.ack(tx, singly), strict=True):
                if lost:
                    refused[batch.lane, batch.token] = next(iter(lost.values()))
        if self.starting:
            refused |= _start_all(tx, self.starting)
        return refused


def _ack_heads(tx: Tx, batches: Sequence[Batch]) -> bool:
    """One message each of leases that go on, in three statements for all. False: one is not so; nothing changed."""
    ordered = sorted(batches, key=_LANE)
    n = len(ordered)
    db = tx.db
    tx.run("SAVEPOINT heads")
    _record(tx, ordered)
    before = db.total_changes()
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


def _ack_last(tx: Tx, work: Sequence[tuple[Batch, int, int]]) -> bool:
    """The last message each of leases, which end with it, in a few statements for all. False: as for `_ack_heads`."""
    ordered = sorted(work, key=lambda entry: entry[0].lane)
    n = len(ordered)
    db = tx.db
    tx.run("SAVEPOINT last")
    _record(tx, [b for b, _, _ in ordered])
    before = db.total_changes()
    tx.many(SETTLE.end_whole_lease, [(b.lane, b.token, lo, hi, 1) for b, lo, hi in ordered])
    if db.total_changes() - before == n:
        tx.many(SETTLE.delete_range, [(b.lane, b.seqs[0], b.seqs[0]) for b, _, _ in ordered])
        if db.total_changes() - before == 2 * n:
            rows = [(b.seqs[0], 1, tx.now, b.token, b.seqs[0], b.seqs[0], b.lane) for b, _, _ in ordered]
            tx.many(SETTLE.finish_lane, rows)
            tx.run("RELEASE last")
            if apart := [(i,) for b, _, _ in ordered for i in b.apart]:
                tx.many(LANES.delete_body, apart)
            tx.totals.pending -= n
            tx.count_acks(n)
            settle.list_rest(tx, rows, [b for b, _, _ in ordered])
            return True
    tx.run("ROLLBACK TO last")
    tx.run("RELEASE last")
    return False


def _record(tx: Tx, batches: Sequence[Batch]) -> None:
    if tx.config.history != "off":
        history.keep(tx, [(b.lane, b.seqs[0], b.seqs[0], b.end) for b in batches])


def _start_all(tx: Tx, batches: Sequence[Batch]) -> dict[tuple[int, int], LeaseLost]:
    before = tx.db.total_changes()
    tx.many(SETTLE.start_many, [(b.seqs[0], b.lane, b.token, b.seqs[0], b.seqs[0]) for b in sorted(batches, key=_LANE)])
    refused: dict[tuple[int, int], LeaseLost] = {}
    if tx.db.total_changes() - before != len(batches):
        for batch in batches:
            try:
                settle.start(tx, batch)
            except LeaseLost as e:
                refused[batch.lane, batch.token] = e
    return refused
