"""The first step of a claim: expired leases and ended delays make their lanes ready, in bounded steps.

Also the end of delays that failures caused, for a worker whose dependency has recovered.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import apsw

from ..._sql import CLAIM, LANES
from ..commit.tx import NEVER, Tx
from ..hot import cooling
from ..onelane import expiring
from . import failures, lanes

SWEEP_STEP: Final = 64
"""The number of leases, and of delays, that one claim handles."""
MANY_LEASES: Final = 5_000
END_STEP: Final = 100
"""The number of delays that one transaction ends."""
SCAN_PAUSE: Final = 20_000
"""By how many microseconds the end of a lease may be noticed late if there are many."""


def expire_leases(tx: Tx) -> bool:
    """List the lanes of expired leases, at the end of the order. The lease stays until the lane is retaken.

    The counter row has a time before which no lease ends. So leases need no index of their deadlines, which every receive and
    every ack would have to update.

    Returns:
        Whether there are more than one step handles.
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
        soonest = max(soonest, tx.now + SCAN_PAUSE)  # there are too many to read at every claim
    tx.totals.next_deadline = soonest
    tx.dirty = True
    return False


def end_claims(tx: Tx, tokens: Sequence[int], single: bool) -> None:
    """End the leases of a worker that died, as if their deadlines had passed.

    If several messages were running, any of them may be the cause. None is charged, and all are suspects, which run alone. A
    suspect that was running is the cause, and is charged when its lane is retaken.

    Args:
        single: no two messages were ever running together in the process.
    """
    if tx.lanes is not None:
        expiring.end_claims(tx, tokens, single)
        return
    hot = tx.hot
    if hot is not None and hot.lanes:
        wanted = set(tokens)
        cooling.cool(tx, [lane for lane in hot.lanes.values() if lane.lease is not None and lane.lease.claim.token in wanted])
    if not single and tx.config.max_attempts is not None:
        _suspect(tx, tokens)
    before = tx.db.total_changes()
    tx.run(CLAIM.end_claims, (tx.now, apsw.carray(array("q", tokens))))
    if tx.db.total_changes() > before:
        tx.totals.next_deadline = min(tx.totals.next_deadline, tx.now)
        tx.wake = True


def _suspect(tx: Tx, tokens: Sequence[int]) -> None:
    """Make the started messages of these leases suspects instead of charging them."""
    for lane, consumer, lo, started, leased_at in tx.run(CLAIM.unblamed, (apsw.carray(array("q", tokens)),)).fetchall():
        error = failures.of_dead_process(consumer, leased_at, tx.now)
        tx.run(LANES.note_lost, (error, tx.now, failures.KEPT_MAX, lane, lo, started, 1))
        tx.run(LANES.set_solo, (started, 0, lane))
        tx.run(CLAIM.forget_start, (lanes.SAYS_STARTS, lane))


def wake_delayed(tx: Tx) -> bool:
    """List the lanes whose delay is over, at the end of the order. Return whether there are more than one step handles."""
    rows = tx.run(CLAIM.due_lanes, (tx.now, SWEEP_STEP)).fetchall()
    for (lane,) in rows:
        tx.run(LANES.drop_delayed, (lane,))
        lanes.place(tx, lane, at_end=True)
    return len(rows) == SWEEP_STEP


def failure_delays(db: apsw.Connection, after: int, now: int) -> list[int]:
    """Return the next lanes that wait because their head failed: at most END_STEP, after `after`."""
    return [lane for (lane,) in db.execute(CLAIM.failure_delays, (after, now, END_STEP))]


def soonest_failure_delay(db: apsw.Connection, now: int) -> list[int]:
    """Return the one whose delay ends first, if there is one."""
    return [lane for (lane,) in db.execute(CLAIM.soonest_failure_delay, (now,))]


def end_failure_delays(tx: Tx, some: Sequence[int]) -> int:
    """End the delays of these lanes that failures caused. Return how many there were.

    Later claims list them like all lanes whose delay is over, so they do not go before lanes that are ready.
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
