"""What an operator does: hold and release lanes, look at dead letters and put them back, purge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import apsw

from .._sql import LANES, OPERATE
from . import history, lanes
from .frame import Tx

PURGE_STEP: Final = 1000
"""Messages that one transaction of a purge removes."""
RELEASE_STEP: Final = 200
REDRIVE_STEP: Final = 500


def hold(tx: Tx, key: bytes, reason: str) -> None:
    """Hand out nothing more of this key; a lease that is live may finish."""
    lane = lanes.find(tx, key)
    if lane is None:
        lane = lanes.create(tx, key)
    tx.run(LANES.set_hold, (reason, tx.now, lane))
    lanes.unlist(tx, lane)


def release(tx: Tx, key: bytes) -> bool:
    """End a hold; attempts start again from 0, and what was held as poison is ready. Returns whether the lane was held."""
    lane = lanes.find(tx, key)
    return lane is not None and _release(tx, lane)


def release_keyless(tx: Tx) -> int:
    """A bounded step: end holds of keyless messages. Returns how many, RELEASE_STEP at most."""
    held = (lane for lane, key in tx.run(OPERATE.held_lanes).fetchall() if lanes.is_keyless(key))
    return sum(_release(tx, lane) for lane in islice(held, RELEASE_STEP))


def _release(tx: Tx, lane: int) -> bool:
    row = lanes.get(tx, lane)
    if row.hold is None:
        return False
    tx.run(LANES.set_hold, (None, None, lane))
    if row.hold == lanes.POISON_HOLD:
        tx.run(LANES.end_retry_delays, (lane, row.charged_to))  # who looked into it wants to see it done
    tx.run(LANES.reset_attempts, (lane, row.charged_to))
    tx.run(LANES.clear_charges, (lane,))
    lease = lanes.lease_of(tx, lane)
    if lease is None:
        lanes.place(tx, lane)
    elif lease.expired:
        lanes.list_ready(tx, lane, tx.new_id(), careful=True)
    return True


def dead_letters(db: apsw.Connection, lane: int | None, limit: int) -> list[tuple[Any, ...]]:
    """Dead letters of one lane, or of the shard."""
    if lane is not None:
        return db.execute(OPERATE.dead_letters_of, (lane, limit)).fetchall()
    return db.execute(OPERATE.dead_letters, (limit,)).fetchall()


def redrive(tx: Tx, lane: int, seqs: Sequence[int] | None) -> int:
    """Put dead messages of a lane back, now or when its lease ends. Returns how many, REDRIVE_STEP at most."""
    if seqs is None:
        seqs = [seq for (seq,) in tx.run(OPERATE.dead_of, (lane, REDRIVE_STEP))]
    else:
        seqs = sorted({seq for seq in seqs if tx.run(OPERATE.is_dead, (lane, seq)).get == 0})
    if not seqs:
        return 0
    if lanes.lease_of(tx, lane) is not None:
        tx.many(OPERATE.wait_redrive, [(lane, seq) for seq in seqs])
        tx.run(OPERATE.lease_waits, (lane,))
        return len(seqs)
    for seq in seqs:
        lanes.revive(tx, lane, seq)
    lanes.unlist(tx, lane)
    lanes.place(tx, lane)
    return len(seqs)


def lanes_with_dead(db: apsw.Connection, after: int, limit: int) -> list[int]:
    """A step of the walk over lanes that have dead letters."""
    return [lane for (lane,) in db.execute(OPERATE.lanes_with_dead, (after, limit))]


def purge_lane(tx: Tx, lane: int) -> tuple[int, bool]:
    """One bounded step: remove messages that nobody holds, and dedup ids of the lane.

    Returns:
        How many messages, and whether anything may be left.
    """
    lease = lanes.lease_of(tx, lane)
    if lease is not None and not lease.ack_first and (lease.expired or lease.deadline <= tx.now):
        # Its time is over and nobody took the lane: it ends here, and its messages are purged with the others.
        lanes.retake(tx, lease)
        lease = None
    lo, hi = (0, -1) if lease is None else (lease.lo, lease.hi)
    rows = [(seq, i, bool(apart)) for seq, i, apart in tx.run(OPERATE.messages_outside, (lane, lo, hi, PURGE_STEP))]
    if rows:
        lanes.remove(tx, lane, rows, history.PURGED)
        tx.totals.purged += len(rows)
    before = tx.db.total_changes()
    tx.run(OPERATE.delete_dedup_of, (lane, PURGE_STEP))
    forgotten = tx.db.total_changes() - before
    if lease is None:
        lanes.unlist(tx, lane)
        lanes.place(tx, lane)
    return len(rows), PURGE_STEP in (len(rows), forgotten)


def purge_dead(tx: Tx, lane: int) -> tuple[int, bool]:
    """One bounded step: remove dead letters."""
    rows = tx.run(OPERATE.dead_rows, (lane, PURGE_STEP)).fetchall()
    if rows:
        tx.run(OPERATE.delete_dead_to, (lane, rows[-1][0]))
        tx.many(LANES.delete_body, [(i,) for _, i, apart in rows if apart])
        tx.totals.dead -= len(rows)
        tx.totals.purged += len(rows)
        tx.run(OPERATE.forget_redrives, (lane,))
        lanes.end_aside(tx, lane, forget=True)
    return len(rows), len(rows) == PURGE_STEP


def next_lane(db: apsw.Connection, after: int) -> int | None:
    """The next lane with messages."""
    lane: int | None = db.execute(OPERATE.next_lane, (after,)).get
    return lane


def next_dedup_lane(db: apsw.Connection, after: int) -> int | None:
    """The next lane with dedup ids."""
    lane: int | None = db.execute(OPERATE.next_dedup_lane, (after,)).get
    return lane


def next_dead_lane(db: apsw.Connection, after: int) -> int | None:
    """The next lane with dead letters."""
    lane: int | None = db.execute(OPERATE.lanes_with_dead, (after, 1)).get
    return lane
