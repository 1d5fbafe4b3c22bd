"""What a claim does first: leases that ran out and delays that are over make their lanes ready, in bounded steps."""

from __future__ import annotations

from typing import Final

from .._sql import CLAIM, LANES
from . import lanes
from .frame import NEVER, Tx

SWEEP_STEP: Final = 64
"""Leases and delays looked at in one claim, each."""
MANY_LEASES: Final = 5_000
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
            lanes.list_ready(tx, lane, tx.new_id(), careful=True)
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


def wake_delayed(tx: Tx) -> bool:
    """List the lanes whose delay is over, at the end of the order. Returns: there are more than one step takes."""
    rows = tx.run(CLAIM.due_lanes, (tx.now, SWEEP_STEP)).fetchall()
    for (lane,) in rows:
        tx.run(LANES.drop_delayed, (lane,))
        lanes.place(tx, lane, at_end=True)
    return len(rows) == SWEEP_STEP
