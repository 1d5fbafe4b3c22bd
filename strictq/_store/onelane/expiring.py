"""The end of leases that are over: their deadline has passed, their holder has died, or the machine has booted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ..commit.tx import NEVER, Tx
from ..lane import entries as kinds
from ..lane.entries import LaneHolder, encode_keys
from ..lane.live_lane import LiveLane
from ..lanes import failures
from ..tables import resting, trouble

STEP: Final = 1_000
"""How many lanes one entry names."""


def expire(tx: Tx, lane: LiveLane) -> None:
    """End a lease by an entry of its own. What was started is charged, and may have killed its holder."""
    end(tx, [lane])


def end(tx: Tx, some: Sequence[LiveLane]) -> None:
    """End the leases of these lanes."""
    store = tx.lanes
    assert store is not None
    if not some:
        return
    for lane in some:
        grant = lane.grant
        left = lane.leased()
        if grant is None or not left:
            continue
        consumer = LaneHolder.decode(grant.holder).consumer
        error, at = failures.of_lost_lease(consumer, grant.at, grant.deadline, tx.now)
        for seq, arrival in left:
            if seq <= lane.started:
                note_attempt(tx, lane, arrival, failures.AttemptFailure(error), at, crashed=True)
        tx.report("lease_lost", lane.key, lane.low, grant.token, f"the lease of {consumer} ran out")
    mark = kinds.OVER_SUSPECT if tx.config.max_attempts is not None else kinds.OVER
    store.append(kinds.RELEASE, [(lane, []) for lane in some], holder=mark, data=encode_keys([lane.key for lane in some]))
    tx.wake = True


def note_attempt(
    tx: Tx, lane: LiveLane, arrival: int, failure: failures.AttemptFailure, at: int, *, crashed: bool
) -> trouble.Trouble:
    """Store what an attempt left that ends now, before the entry that charges it. Return all that attempts left."""
    known = trouble.of(tx.db, arrival)
    starts, crashes, _ = lane.attempts(arrival)
    first_at = known.first_at
    # At a first failure the time is set anew, because retry_for_seconds counts from there and not from a crash.
    if first_at is None or (not crashed and starts == crashes):
        first_at = tx.now if lane.grant is None else lane.grant.at
    noted = trouble.Trouble(
        starts + 1, first_at, failure.error or known.error, failure.output or known.output,
        failures.with_failure(known.errors, starts + 1, at, failure),
    )  # fmt: skip
    trouble.set_(tx.db, arrival, noted)
    return noted


def end_timed_leases(tx: Tx) -> None:
    """Let every lease that has a deadline be over: the machine has booted since. Its token lives until the lane is claimed."""
    store = tx.lanes
    assert store is not None
    after: tuple[int, bytes] = (-NEVER, b"")
    while rows := store.run(resting.LEASED, (*after, STEP)).fetchall():
        after = rows[-1]
        store.loader.fill_heads([key for _, key in rows])
    by_token: dict[int, list[LiveLane]] = defaultdict(list)
    for lane in store.memory.lanes.values():
        if lane.grant is not None and lane.grant.deadline < NEVER:
            by_token[lane.grant.token].append(lane)
    for token, lanes in by_token.items():
        for at in range(0, len(lanes), STEP):
            some = lanes[at : at + STEP]
            keys = encode_keys([lane.key for lane in some])
            store.append(kinds.EXTEND, [(lane, []) for lane in some], token=token, holder=kinds.BY_KEY, data=keys)
    tx.wake = True
