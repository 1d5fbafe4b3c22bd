"""The end of leases that are over: their deadline has passed, their holder has died, or the machine has booted."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import apsw

from ..._sql import OPERATE
from ..commit.tx import NEVER
from ..lane import entries as kinds
from ..lane.entries import LaneHolder, encode_keys
from ..lane.live_lane import LiveLane
from ..lane.memory import Group
from ..tables import resting, trouble
from . import failures
from .shard_lanes import ShardLanes, Tx

STEP: Final = 1_000
"""How many lanes one entry names."""


def expire(tx: Tx, lane: LiveLane) -> None:
    """End a lease by an entry of its own. What was started is charged, and may have killed its holder."""
    end(tx, [lane])


def end(tx: Tx, some: Sequence[LiveLane]) -> None:
    """End the leases of these lanes."""
    store = tx.lanes
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
    noted = attempted(tx.db, lane, arrival, failure, at, tx.now, crashed=crashed)
    trouble.set_(tx.db, arrival, noted)
    return noted


def attempted(
    db: apsw.Connection, lane: LiveLane, arrival: int, failure: failures.AttemptFailure, at: int, now: int, *, crashed: bool
) -> trouble.Trouble:
    """Return all that attempts left of a message, with one that ends now and is not charged yet."""
    known = trouble.of(db, arrival)
    starts, crashes, _ = lane.attempts(arrival)
    first_at = known.first_at
    # At a first failure the time is set anew, because retry_for_seconds counts from there and not from a crash.
    if first_at is None or (not crashed and starts == crashes):
        first_at = now if lane.grant is None else lane.grant.at
    return trouble.Trouble(
        starts + 1, first_at, failure.error or known.error, failure.output or known.output,
        failures.with_failure(known.errors, starts + 1, at, failure),
    )  # fmt: skip


def end_timed_leases(tx: Tx) -> None:
    """Let every lease that has a deadline be over: the machine has booted since. Its token lives until the lane is claimed."""
    store = tx.lanes
    after: tuple[int, bytes] = (-NEVER, b"")
    while rows := store.run(resting.LEASED, (*after, STEP)).fetchall():
        after = rows[-1]
        store.loader.fill_heads([key for _, key in rows])
    for token, some in _by_token(store.memory.lanes.values()):
        timed = [lane for lane in some if lane.grant is not None and lane.grant.deadline < NEVER]
        if timed:
            _set_deadline(store, token, timed, 0)
    tx.wake = True


def end_every_timed(tx: Tx) -> None:
    """End every lease that has a deadline, and with it its token."""
    end_timed_leases(tx)  # also loads their lanes
    some = [lane for lane in tx.lanes.memory.lanes.values() if lane.grant is not None and lane.grant.deadline < NEVER]
    for at in range(0, len(some), STEP):
        end(tx, some[at : at + STEP])


def end_claims(tx: Tx, claims: Mapping[int, Sequence[int]], single: bool) -> bool:
    """End the leases of a worker that died, as if their deadlines had passed. Return whether ranges of the queue have moved.

    If several messages were running, any of them may be the cause. None is charged, and all are suspects, which run alone. A
    suspect that was running is the cause, and is charged when its lane is claimed.

    Args:
        claims: tokens, by the shard that issued them. Two shards may issue equal ones.
        single: no two messages were ever running together in the process.
    """
    store, wanted = tx.lanes, {issuer: frozenset(tokens) for issuer, tokens in claims.items()}
    tokens = [token for some in claims.values() for token in some]
    has_moved = store.memory.ranges is not None
    if not tokens:
        return has_moved
    rested = store.run(OPERATE.leased_by, (apsw.carray(array("q", tokens)),)).fetchall()
    store.loader.fill_heads([key for (key,) in rested])
    none: frozenset[int] = frozenset()
    lanes = [
        lane
        for lane in store.memory.lanes.values()
        if lane.grant is not None and lane.grant.token in wanted.get(_issuer(lane, store.shard), none)
    ]
    for token, some in _by_token(lanes):
        if not single and tx.config.max_attempts is not None:
            _suspect(tx, token, some)
        live = [lane for lane in some if lane.grant is not None and lane.grant.deadline > tx.now]
        if live:
            _set_deadline(store, token, live, tx.now)
            tx.wake = True
    return has_moved


def _issuer(lane: LiveLane, shard: int) -> int:
    """Return the shard that issued the token of a lane's lease."""
    return lane.rare.issuer - 1 if lane.rare is not None and lane.rare.issuer else shard


def _suspect(tx: Tx, token: int, lanes: Sequence[LiveLane]) -> None:
    """Make the started messages of these leases suspects instead of charging them."""
    groups: list[Group] = []
    for lane in lanes:
        started = [(seq, i) for seq, i in lane.leased() if seq <= lane.started]
        is_suspect = lane.rare is not None and lane.rare.solo >= lane.low
        if lane.grant is None or not started or is_suspect:
            continue
        consumer = LaneHolder.decode(lane.grant.holder).consumer
        failure = failures.AttemptFailure(failures.of_dead_process(consumer, lane.grant.at, tx.now))
        for _, arrival in started:
            known = trouble.of(tx.db, arrival)
            errors = failures.with_failure(known.errors, lane.attempts(arrival)[0] + 1, tx.now, failure)
            trouble.set_(tx.db, arrival, known._replace(error=failure.error, errors=errors))
        groups.append((lane, [started[-1][1]]))
    if groups:
        tx.lanes.append(kinds.START, groups, token=token, holder=kinds.SUSPECT)


def _by_token(lanes: Iterable[LiveLane]) -> list[tuple[int, list[LiveLane]]]:
    """Return the leased ones of these lanes, by claim. Claims of two shards may have the same token."""
    found: dict[tuple[int, int, str], list[LiveLane]] = defaultdict(list)
    for lane in lanes:
        if (grant := lane.grant) is not None:
            found[grant.token, grant.at, grant.holder].append(lane)
    return [(token, some) for (token, *_), some in found.items()]


def _set_deadline(store: ShardLanes, token: int, lanes: Sequence[LiveLane], deadline: int) -> None:
    """Let the leases of these lanes end at another time."""
    for at in range(0, len(lanes), STEP):
        some = lanes[at : at + STEP]
        keys = encode_keys([lane.key for lane in some])
        store.append(
            kinds.EXTEND, [(lane, []) for lane in some], token=token, deadline=deadline, holder=kinds.BY_KEY, data=keys
        )  # fmt: skip
