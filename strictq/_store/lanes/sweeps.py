"""What a claim does first: leases that ran out and delays that are over make their lanes ready, in bounded steps.

And what a worker does when a dependency is back: delays that failures caused end now.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import apsw

from ..._sql import CLAIM, LANES
from ..commit.tx import NEVER, Tx
from ..hot import cooling
from . import lanes

SWEEP_STEP: Final = 64
"""Leases and delays looked at in one claim, each."""
MANY_LEASES: Final = 5_000
END_STEP: Final = 100
"""Delays that one transaction ends."""
SCAN_PAUSE: Final = 20_000
"""Microseconds by which the end of a lease may be noticed late where there are many."""


def expire_leases(tx: Tx) -> bool:
    """List the lanes of leases that ran out, at the end of the order. The lease stays until the lane is retaken.

    The counter row has a time before which no lease ends, so that leases need no index of their deadlines, which every
    receive and every ack would have to keep.

    Returns: there are more than one step takes.
    """
    if tx.now < tx.totals.next_deadline:
        return False
    rows = tx.run(CLAIM.expired_leases, (tx.now, SWEEP_STEP)).fetchall()
    for lane, ack_first in rows:
        if ack_first:
            lease = lanes.lease_of(tx, lane)
            assert lease is not None
            lanes.release_lane(tx, lease)
            continue
        tx.run(CLAIM.mark_expired, (lane,))
        if lanes.get(tx, lane).hold is None:
            lanes.list_ready(tx, lane, tx.new_position(), careful=True)
    if len(rows) == SWEEP_STEP:
        return True
    soonest, live = tx.run(CLAIM.next_deadline).get
    if soonest is None:
        soonest = NEVER
    elif live > MANY_LEASES:
        soonest = max(soonest, tx.now + SCAN_PAUSE)  # so many are not looked through at every claim
    tx.totals.next_deadline = soonest
    tx.dirty = True
    return False


def end_claims(tx: Tx, tokens: Sequence[int]) -> None:
    """The leases of a worker that died are over now, as if their deadlines had come."""
    hot = tx.hot
    if hot is not None and hot.lanes:
        wanted = set(tokens)
        cooling.cool(tx, [lane for lane in hot.lanes.values() if lane.lease is not None and lane.lease.claim.token in wanted])
    before = tx.db.total_changes()
    tx.run(CLAIM.end_claims, (tx.now, apsw.carray(array("q", tokens))))
    if tx.db.total_changes() > before:
        tx.totals.next_deadline = min(tx.totals.next_deadline, tx.now)
        tx.wake = True


def wake_delayed(tx: Tx) -> bool:
    """List the lanes whose delay is over, at the end of the order. Returns: there are more than one step takes."""
    rows = tx.run(CLAIM.due_lanes, (tx.now, SWEEP_STEP)).fetchall()
    for (lane,) in rows:
        tx.run(LANES.drop_delayed, (lane,))
        lanes.place(tx, lane, at_end=True)
    return len(rows) == SWEEP_STEP


def failure_delays(db: apsw.Connection, after: int, now: int) -> list[int]:
    """A step of the walk over lanes that wait because their head failed: END_STEP lanes at most, from `after` on."""
    return [lane for (lane,) in db.execute(CLAIM.failure_delays, (after, now, END_STEP))]


def soonest_failure_delay(db: apsw.Connection, now: int) -> list[int]:
    """The one of them whose delay ends first, if there is one."""
    return [lane for (lane,) in db.execute(CLAIM.soonest_failure_delay, (now,))]


def end_failure_delays(tx: Tx, some: Sequence[int]) -> int:
    """Let the delays of these lanes be over now, as far as failures caused them. Returns how many were.

    They are listed by the claims that follow, as all whose delay is over: they do not go before lanes that are ready.
    """
    ended = 0
    for lane in some:
        seq = tx.run(CLAIM.failure_delay_of, (lane, tx.now)).get
        if seq is not None:
            tx.run(LANES.set_due, (tx.now, None, None, None, lane, seq))
            tx.run(LANES.move_delayed, (tx.now, lane))
            tx.wake = True
            ended += 1
    return ended
