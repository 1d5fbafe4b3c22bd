"""What a holder does with what it leased: start, ack, nack, reject, extend, grow, release.

Every operation carries the token and is refused when it is dead. The common case of `ack`, leases that are acked whole,
is a few statements over all lanes; whatever does not fit it is undone and done lane by lane.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import apsw

from .._errors import LeaseLost
from .._keys import decode_key
from .._sql import CLAIM, LANES, SETTLE
from . import history, lanes
from .claim import HEAD_PAGE, SEQ, Row, is_plain, with_body
from .frame import SECOND, Tx, insert_rows


class Batch:
    """Deliveries of one lane under one token. (Made for every lane of an ack: kept light.)

    Attributes:
        seqs: ascending.
        whole: these are all messages of the lease, as far as its holder knows.
        apart: arrival ids of the bodies that lie apart; needed where it is whole.
        start: the next delivery of the lease, whose handler starts with this ack.
        end: what is recorded of it, where history is kept.
    """

    __slots__ = ("apart", "end", "key", "lane", "seqs", "start", "token", "whole")

    def __init__(
        self,
        lane: int,
        key: bytes,
        token: int,
        seqs: Sequence[int],
        whole: bool = False,
        apart: Sequence[int] = (),
        start: int | None = None,
        end: history.End = history.ACKED,
    ) -> None:
        self.lane = lane
        self.key = key
        self.token = token
        self.seqs = seqs
        self.whole = whole
        self.apart = apart
        self.start = start
        self.end = end


_LANE = attrgetter("lane")
Lost = dict[int, LeaseLost]
"""The seqs of a batch that were refused, and why; empty: all of it took effect."""


class Ack:
    """The acks of one call, as an operation that merges with those of other threads."""

    __slots__ = ("_batches",)

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches

    def __call__(self, tx: Tx) -> list[Lost]:
        return ack(tx, self._batches)

    def together(self, tx: Tx, others: list[Ack]) -> list[list[Lost]]:
        """One pass over the leases of all of them."""
        lost = iter(ack(tx, [batch for each in others for batch in each._batches]))
        return [[next(lost) for _ in each._batches] for each in others]


def ack(tx: Tx, batches: Sequence[Batch]) -> list[Lost]:
    """Resolve messages for good. The valid ones take effect, the others come back."""
    done = False
    if whole := [b for b in batches if b.whole]:
        tx.run("SAVEPOINT whole")
        done = ack_whole(tx, whole)
        if not done:
            tx.run("ROLLBACK TO whole")
        tx.run("RELEASE whole")
    return [{} if done and b.whole else _each(ack_lane, tx, b) for b in batches]


def _each(act: Callable[..., object], tx: Tx, batch: Batch, *args: object) -> Lost:
    """Do it for the batch; if it is refused, message by message, so that the valid ones take effect."""
    try:
        act(tx, batch, *args)
    except LeaseLost as e:
        if len(batch.seqs) == 1:
            return {batch.seqs[0]: e}
        lost: Lost = {}
        for seq in batch.seqs:
            lost |= _each(act, tx, Batch(batch.lane, batch.key, batch.token, [seq], end=batch.end), *args)
        return lost
    return {}


def ack_whole(tx: Tx, batches: Sequence[Batch]) -> bool:
    """All of these leases, each acked whole, in one go. False: one of them is not as it was handed out, and what was done is
    to be undone.
    """
    leases = []
    ranges = []
    lane_rows = []
    now = tx.now
    n = 0
    # In lane order: neighbours in the tables are written together.
    for b in sorted(batches, key=_LANE) if len(batches) > 1 else batches:
        seqs, lane = b.seqs, b.lane
        lo, hi, k = seqs[0], seqs[-1], len(seqs)
        n += k
        leases.append((lane, b.token, lo, hi, k))
        ranges.append((lane, lo, hi))
        lane_rows.append((hi, k, now, b.token, lo, hi, lane))
    db = tx.db
    history.keep(tx, [(b.lane, b.seqs[0], b.seqs[-1], b.end) for b in batches] if tx.config.history != "off" else ())
    before = db.total_changes()
    tx.many(SETTLE.end_whole_lease, leases)
    if db.total_changes() - before != len(leases):
        return False
    tx.many(SETTLE.delete_range, ranges)
    if db.total_changes() - before != len(leases) + n:
        return False
    tx.many(SETTLE.finish_lane, lane_rows)
    if apart := [(i,) for b in batches for i in b.apart]:
        tx.many(LANES.delete_body, apart)
    tx.totals.pending -= n
    tx.count_acks(n)
    list_rest(tx, lane_rows, batches)
    return True


def list_rest(tx: Tx, lane_rows: list[tuple[Any, ...]], batches: Sequence[Batch]) -> None:
    """List the lanes that have messages left, where their new heads arrived."""
    rest = tx.run(SETTLE.next_heads, (apsw.carray(array("q", [row[-1] for row in lane_rows])),)).fetchall()
    ready = []
    for lane, seq, arrival, due, held, solo_to in rest:
        if held:
            continue
        if due is not None and due > tx.now:
            tx.run(LANES.add_delayed, (lane, due))
            tx.wake = True
        else:
            ready.append((arrival, lane, solo_to >= seq))
    if ready:
        insert_rows(tx, lanes.READY, ready)
        tx.wake = True
    if len(rest) < len(lane_rows):
        for b in batches:
            if lanes.ASIDE in b.key and lanes.is_keyless(b.key):
                lanes.end_aside(tx, b.lane)


def ack_lane(tx: Tx, batch: Batch) -> bool:
    """Resolve messages of one lane. False: exactly this was done before, under this token.

    Raises:
        LeaseLost: nothing changed.
    """
    lease, rows = _held_rows(tx, batch, "ack")
    if lease is None:
        return False
    lanes.remove(tx, batch.lane, rows, batch.end)
    tx.count_acks(len(rows))
    lanes.remember(tx, batch.lane, batch.token, "ack", batch.seqs)
    shrink(tx, lease, len(rows), start=batch.start)
    return True


def done_before(tx: Tx, batch: Batch) -> bool:
    """Was this batch acked by the lane's last resolution?"""
    row = tx.run(LANES.get, (batch.lane,)).get
    return row is not None and lanes.remembers(lanes.Lane._make(row), batch.token, "ack", batch.seqs)


def _live(tx: Tx, batch: Batch) -> lanes.LeaseRow | None:
    lease = lanes.lease_of(tx, batch.lane)
    return lease if lease is not None and lease.token == batch.token and not lease.ack_first else None


def _lost(batch: Batch, seq: int | None = None, why: str = "the lease was lost") -> LeaseLost:
    return LeaseLost(decode_key(batch.key), batch.seqs[0] if seq is None else seq, batch.token, why)


def _held_rows(tx: Tx, batch: Batch, kind: str) -> tuple[lanes.LeaseRow | None, list[tuple[int, int, bool]]]:
    """The lease and the batch's unresolved rows, all of them; (None, []) if exactly this was done before.

    Raises:
        LeaseLost: the token is dead, or a message is resolved or not of this lease. Nothing changed.
    """
    lease = _live(tx, batch)
    seqs = batch.seqs
    if lease is not None and lease.lo <= seqs[0] and seqs[-1] <= lease.hi:
        wanted = set(seqs)
        rows = [
            (seq, arrival, bool(apart))
            for seq, arrival, apart, _ in tx.run(SETTLE.rows_between, (batch.lane, seqs[0], seqs[-1]))
            if seq in wanted
        ]
        if len(rows) == len(wanted):
            return lease, rows
    row = tx.run(LANES.get, (batch.lane,)).get
    if row is not None and lanes.remembers(lanes.Lane._make(row), batch.token, kind, seqs):
        return None, []
    why = "the lease was lost" if lease is None else "the message is resolved or not of this lease"
    raise _lost(batch, why=why)


def shrink(
    tx: Tx, lease: lanes.LeaseRow, gone: int, *, hi: int | None = None, start: int | None = None, at_end: bool = False
) -> None:
    """A lease has fewer messages (up to `hi`, where its end was given back); with none left it ends."""
    left = lease.pending - gone
    if left == 0:
        lanes.release_lane(tx, lease, at_end=at_end)
        return
    if hi is None:
        tx.run(SETTLE.shrink, (left, lease.lane))
    else:
        tx.run(SETTLE.close, (left, hi, lease.lane))
    if start is not None and start <= lease.hi:
        tx.run(SETTLE.set_started, (start, lease.lane))


def start(tx: Tx, batch: Batch) -> None:
    """A handler of this message starts: charge it, durably.

    Raises:
        LeaseLost: nothing changed.
    """
    lease = _live(tx, batch)
    if lease is None or not lease.lo <= batch.seqs[0] <= lease.hi:
        raise _lost(batch)
    if lease.started < batch.seqs[0]:
        tx.run(SETTLE.set_started, (batch.seqs[0], batch.lane))


def nack(tx: Tx, batches: Sequence[Batch], delay: int | None, reason: str | None, output: str | None = None) -> list[Lost]:
    """Give back each batch's first message and everything later that its lease holds, to be tried again first."""
    return [_each(_nack_lane, tx, b, delay, reason, output) for b in batches]


def _nack_lane(tx: Tx, batch: Batch, delay: int | None, reason: str | None, output: str | None) -> None:
    lease, _ = _held_rows(tx, batch, "nack")
    if lease is None:
        return
    lane, seq = batch.lane, batch.seqs[0]
    # The message was in a handler, whether or not its start was told; those behind it are charged only if it was.
    started = max(seq, lease.started)
    rows = tx.run(SETTLE.rows_between, (lane, seq, lease.hi)).fetchall()
    tx.run(LANES.charge, (lane, seq, started))
    tx.run(LANES.set_charged, (started, lane))
    attempts = rows[0][3] + 1
    tx.totals.retries += 1
    lanes.remember(tx, lane, batch.token, "nack", [seq])
    if delay is None:
        delay = int(tx.config.retry_delay(attempts) * SECOND)
    due = tx.now + delay if delay > 0 else None
    tx.run(LANES.set_due, (due, reason, output, lane, seq))
    aside = None
    if lanes.out_of_attempts(tx, attempts):
        lanes.apply_poison(tx, lane, batch.key, seq, attempts, reason)
    elif lanes.is_keyless(batch.key) and lanes.ASIDE not in batch.key:
        aside = lanes.move_aside(tx, lanes.get(tx, lane), seq, due)
    shrink(tx, lease, len(rows), hi=max(seq - 1, lease.lo), at_end=True)
    if aside is not None:
        lanes.place(tx, aside, at_end=True)  # behind those that it held up


def reject(tx: Tx, batch: Batch, reason: str, output: str | None = None) -> None:
    """Dead-letter a message now.

    Raises:
        LeaseLost: nothing changed.
    """
    lease, rows = _held_rows(tx, batch, "reject")
    if lease is None:
        return
    seq = rows[0][0]
    attempts = tx.run(LANES.message, (batch.lane, seq)).get[5] + (1 if seq <= lease.started else 0)
    if output is not None:
        tx.run(LANES.set_output, (output, batch.lane, seq))
    lanes.bury(tx, batch.lane, batch.key, seq, kind="rejected", reason=reason, attempts=attempts)
    lanes.remember(tx, batch.lane, batch.token, "reject", [seq])
    shrink(tx, lease, 1)


def extend(tx: Tx, batches: Sequence[Batch], seconds: int) -> list[int | LeaseLost]:
    """New deadlines, counted from now, each for the lane's whole lease."""
    out: list[int | LeaseLost] = []
    deadline = tx.now + seconds
    for b in batches:
        lease = lanes.lease_of(tx, b.lane)
        if lease is None or lease.token != b.token:
            out.append(_lost(b))
            continue
        if lease.expired:
            lanes.unlist(tx, b.lane)  # nobody took the lane meanwhile: it is this holder's again
        tx.run(SETTLE.set_deadline, (deadline, b.lane))
        tx.totals.next_deadline = min(tx.totals.next_deadline, deadline)
        tx.wake = True
        out.append(deadline)
    return out


def more(tx: Tx, batch: Batch, limit: int) -> list[Row]:
    """Grow a live lease over later messages of its lane, under the same token.

    Returns nothing where the lane may not be handed out further: past a delayed, held, expired or solo message, before a
    redriven one, or when the deadline is over.

    Raises:
        LeaseLost: nothing changed.
    """
    lease = _live(tx, batch)
    if lease is None:
        raise _lost(batch)
    lane = lanes.get(tx, batch.lane)
    if (
        lease.expired
        or lease.redrive
        or lease.closed
        or lease.deadline <= tx.now
        or lane.hold is not None
        or lane.solo_to >= lease.lo
        or tx.run(SETTLE.earlier, (batch.lane, lease.lo)).get
    ):
        return []
    rows: list[Row] = []
    for row in tx.run(CLAIM.lane_messages, (batch.lane, 0, 0, lease.hi + 1, min(limit, HEAD_PAGE))).fetchall():
        if not is_plain(row, tx.now, tx):
            break
        rows.append(with_body(tx, row))
    if rows:
        tx.run(SETTLE.grow, (rows[-1][SEQ], len(rows), batch.lane))
        tx.totals.receives += len(rows)
    return rows


def release(tx: Tx, batch: Batch) -> None:
    """Give back, unused, the batch's first message and everything later that its lease holds: nobody is charged for it.

    Raises:
        LeaseLost: nothing changed.
    """
    lease = lanes.lease_of(tx, batch.lane)
    if lease is None or lease.token != batch.token:
        raise _lost(batch)
    if not lease.ack_first and batch.seqs[0] > lease.hi:
        return  # given back before, with an earlier message
    rows = [] if lease.ack_first else tx.run(SETTLE.rows_between, (batch.lane, batch.seqs[0], lease.hi)).fetchall()
    shrink(tx, lease, len(rows), hi=max(batch.seqs[0] - 1, lease.lo))


def release_all(tx: Tx, batches: Sequence[Batch]) -> None:
    """Give back several; those that are lost are left alone."""
    for batch in batches:
        with suppress(LeaseLost):
            release(tx, batch)


def key_state(tx: Tx, key: bytes) -> bytes | None:
    lane = lanes.find(tx, key)
    return None if lane is None else tx.run(SETTLE.key_state, (lane,)).get


def set_key_state(tx: Tx, key: bytes, value: bytes | None) -> None:
    lane = lanes.find(tx, key)
    if lane is None:
        if value is None:
            return
        lane = lanes.create(tx, key)
    if value is None:
        tx.run(SETTLE.delete_key_state, (lane,))
    else:
        tx.run(SETTLE.set_key_state, (lane, value))


def lowest_unresolved(tx: Tx, batch: Batch) -> int | None:
    """The first message that a live lease still holds; None: the token is dead, or the batch was given back."""
    lease = _live(tx, batch)
    if lease is None or not lease.lo <= batch.seqs[0] <= lease.hi:
        return None
    rows = tx.run(SETTLE.rows_between, (batch.lane, lease.lo, batch.seqs[0])).fetchall()
    return rows[0][0] if rows else None
