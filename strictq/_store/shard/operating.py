"""What operators do: hold, release, settle, redrive and purge. Each function is a bounded part of a transaction.

Also the end of delays that failures caused, for a worker whose dependency has recovered.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from itertools import groupby, islice, takewhile
from operator import attrgetter
from typing import Final

from ..._sql import OPERATE, RECORDED_BATCHES
from ..._values import hints
from ..._values.errors import InvalidArgument, UnknownMessage
from ..._values.keys import ASIDE, decode_key, is_keyless
from ..lane import entries as kinds
from ..lane.entries import NEVER, LaneHolder, encode_groups, encode_keys, pack
from ..lane.live_lane import LiveLane
from ..lane.memory import Group
from ..tables import dead, dedup, trouble
from ..tables.dead import DeadRow
from . import ending, expiring, forgetting, history
from .settling import FAILURE_MARK
from .shard_lanes import ShardLanes, Tx

STEP: Final = 1_000
"""The number of messages that one transaction of a purge removes, and of lanes that it looks at."""
RELEASE_STEP: Final = 200
REDRIVE_STEP: Final = 500
DELAY_STEP: Final = 100
"""The number of delays that one transaction ends."""


# ---- holds


def hold(tx: Tx, key: bytes, reason: str) -> None:
    """Stop deliveries of this key. A live lease may finish."""
    store = tx.lanes
    store.append(kinds.HOLD, [(store.loader.lane(key), [])], holder=reason, data=encode_keys([key]))


def release(tx: Tx, key: bytes) -> bool:
    """End a hold. Attempts restart from 0, and what was held as poison is ready. Return whether the lane was held."""
    lane = tx.lanes.loader.lane(key)
    if not _is_held(lane):
        return False
    _release(tx, [lane])
    return True


def release_keyless(tx: Tx) -> int:
    """End holds of keyless messages, in one bounded step. Return how many, at most RELEASE_STEP."""
    store = tx.lanes
    lanes = store.memory.lanes
    found = list(islice((lane for lane in lanes.values() if is_keyless(lane.key) and _is_held(lane)), RELEASE_STEP))
    after = b""
    while len(found) < RELEASE_STEP and (rows := store.run(OPERATE.held, (after, RELEASE_STEP)).fetchall()):
        after = rows[-1][0]
        keys = [key for (key,) in rows if is_keyless(key) and ((lane := lanes.get(key)) is None or lane.rest)]
        store.loader.fill_heads(keys)
        found += [lane for key in keys if _is_held(lane := lanes[key])]
    _release(tx, found)
    return len(found)


def _is_held(lane: LiveLane) -> bool:
    return lane.rare is not None and lane.rare.hold is not None


def _release(tx: Tx, lanes: Sequence[LiveLane]) -> None:
    if not lanes:
        return
    for lane in lanes:
        for arrival, (starts, _, _) in lane.with_rare_state().tried.items():
            if starts:
                trouble.set_(tx.db, arrival, trouble.of(tx.db, arrival)._replace(attempts=0))
    keys = [lane.key for lane in lanes]
    tx.lanes.append(kinds.RELEASE_HOLD, [(lane, []) for lane in lanes], data=encode_keys(keys))
    tx.wake = True


# ---- one message


def settle_one(tx: Tx, key: bytes, seq: int, reason: str | None, *, force: bool) -> bool:
    """Settle an unresolved message in the place of its consumer. A batch that holds it is read without it from now on.

    Args:
        reason: dead-letter it for this reason; None: ack it.
        force: end a timed lease that holds it.
    Returns:
        Whether it was unresolved.
    Raises:
        UnknownMessage: that seq was never issued for that key.
        InvalidArgument: a consumer with a timed lease has it, and `force` is False. Nothing changed.
    """
    store = tx.lanes
    lane = store.loader.lane(key)
    if not 1 <= seq <= lane.tail:
        raise store.refuse(UnknownMessage(f"key {decode_key(key)!r} has no message with seq {seq}"))
    arrival = _arrival_of(store, lane, seq)
    if arrival is None:
        return False
    if lane.grant is not None and lane.grant.deadline <= tx.now:
        expiring.expire(tx, lane)  # its time is over, and no consumer took the lane
    grant = lane.grant
    charged = grant is not None and arrival in [i for _, i in lane.leased()]
    in_batch = None
    if grant is not None and charged:
        consumer = LaneHolder.decode(grant.holder).consumer
        if grant.deadline == NEVER:
            in_batch = consumer, tx.run(RECORDED_BATCHES.batch_of, (consumer, grant.token)).get
        elif force:
            charged = seq <= lane.started
            tx.report("lease_lost", key, lane.low, grant.token, f"an operator ended the lease of {consumer}")
        else:
            raise store.refuse(
                InvalidArgument(f"seq {seq} of key {decode_key(key)!r} is held by {consumer}", hint=hints.LEASED_REJECT)
            )
    if reason is None:
        ending.keep(tx, [arrival], history.End("acked", int(charged)), None if grant is None or in_batch is None else grant.at)
    if grant is not None and grant.deadline != NEVER and lane.holds([arrival]):
        # Its holder's ack is refused from now on: the token is not remembered for this message.
        store.append(kinds.RELEASE, [(lane, [])], token=grant.token, holder=kinds.BY_KEY, data=encode_keys([key]))
    if reason is None:
        store.append(kinds.ACK, [(lane, [arrival])])
    else:
        starts = lane.attempts(arrival)[0] + charged
        ending.bury(tx, lane, arrival, kind="rejected", reason=reason, starts=starts)
    if in_batch is not None and in_batch[1] is not None:
        tx.run(RECORDED_BATCHES.add_rejected, (*in_batch, arrival))
    tx.wake = True
    return True


def _arrival_of(store: ShardLanes, lane: LiveLane, seq: int) -> int | None:
    """Return the arrival number of an unresolved message, and load the lane's ids up to it. None: it is resolved."""
    rare = lane.rare
    if rare is not None:
        known = dict((*rare.front, *rare.waiting)).get(seq)
        if known is not None:
            return known
    while lane.split and seq >= lane.first + len(lane.ids or ()):
        store.loader.extend(lane, seq + 1 - lane.first - len(lane.ids or ()))
    at = seq - lane.first
    ids = lane.ids or []
    return ids[at] or None if 0 <= at < len(ids) else None


# ---- dead letters


def redrive(tx: Tx, key: bytes, seqs: Sequence[int] | None) -> int:
    """Redrive dead messages of a lane, now or when its lease ends. Return how many; at most REDRIVE_STEP without `seqs`."""
    tx.lanes.loader.load((key,))  # its dead letters are where the lane is
    return _redrive(tx, dead.of_lane(tx.db, key, REDRIVE_STEP) if seqs is None else dead.with_seqs(tx.db, key, seqs))


def redrive_some(tx: Tx, last: tuple[bytes, int]) -> tuple[int, tuple[bytes, int] | None]:
    """Redrive the next dead messages of the shard, in one bounded step.

    Args:
        last: key and arrival number up to which they were redriven.
    Returns:
        How many there were, and the next `last`. None: there are no more.
    """
    rows = dead.after(tx.db, last, REDRIVE_STEP)
    return _redrive(tx, rows), (rows[-1].key, rows[-1].arrival) if len(rows) == REDRIVE_STEP else None


def _redrive(tx: Tx, rows: Sequence[DeadRow]) -> int:
    if not rows:
        return 0
    store = tx.lanes
    for row in rows:
        known = trouble.of(tx.db, row.arrival)
        anew = known._replace(attempts=0, first_at=None, error=row.reason)
        if anew != known:
            trouble.set_(tx.db, row.arrival, anew)
    dead.unbury(tx.db, rows)
    by_kind: dict[str | None, tuple[list[Group], list[tuple[bytes, list[int]]]]] = {}
    for key, some in groupby(rows, attrgetter("key")):
        of_lane = list(some)
        # A message may have died before it was parked, or afterwards, so the entry says where it goes.
        groups, named = by_kind.setdefault(kinds.PARKED if is_keyless(key) and ASIDE in key else None, ([], []))
        groups.append((store.loader.lane(key), [number for row in of_lane for number in (row.seq, row.arrival)]))
        named.append((key, [row.arrival for row in of_lane]))
    for holder, (groups, named) in by_kind.items():
        store.append(kinds.REDRIVE, groups, holder=holder, data=encode_groups(named))
    tx.wake = True
    return len(rows)


# ---- purge


def purge_lane(tx: Tx, key: bytes, before: int | None = None, *, in_flight: bool = False) -> tuple[int, bool]:
    """Remove the lane's unleased messages, those whose redrive waits, and dedup ids, in one bounded step.

    Args:
        before: only messages that were sent before this queue time, and no dedup ids.
        in_flight: end a timed lease before.
    Returns:
        The number of messages, and whether anything may be left.
    """
    lane = tx.lanes.loader.lane(key)
    if in_flight:
        _end_timed_lease(tx, lane)
    n = _purge(tx, _old(tx.lanes, _unleased(tx, lane, STEP), before))
    if before is not None:
        return n, n == STEP
    return n, STEP in (n, dedup.purge(tx.db, key, STEP))


def _old(store: ShardLanes, groups: list[Group], before: int | None) -> list[Group]:
    """Return the first messages of each group, up to one that was not sent before a queue time. None: all.

    Arrival numbers do not say that of a lane that came from another shard.
    """
    if before is None:
        return groups
    first = store.log.sent_at([ids[0] for _, ids in groups])
    found: list[Group] = []
    for lane, ids in groups:
        if first.get(ids[0], before) < before:
            at = store.log.sent_at(ids)
            found.append((lane, list(takewhile(lambda i, at=at: at.get(i, before) < before, ids))))  # type: ignore[misc]
    return found


def purge_some(tx: Tx, after: bytes, before: int | None = None, *, in_flight: bool = False) -> tuple[int, bytes | None]:
    """Remove the messages of the next lanes of the shard, in the order of their keys, in one bounded step.

    Args:
        after: the key up to which they were removed.
        before: only messages that were sent before this queue time.
        in_flight: end timed leases before.
    Returns:
        The number of messages, and the next `after`. None: there are no more lanes.
    """
    store = tx.lanes
    keys, end = _next_keys(store, after)
    store.loader.fill_heads(keys)
    groups: list[Group] = []
    n = 0
    for key in keys:
        lane = store.loader.lane(key)
        if in_flight:
            _end_timed_lease(tx, lane)
        some = _old(store, _unleased(tx, lane, STEP - n), before)
        groups += some
        n += sum(len(ids) for _, ids in some)
        if n == STEP:
            end = after  # more of this lane may be left
            break
        after = key
    _purge(tx, groups)
    return n, end


def _next_keys(store: ShardLanes, after: bytes) -> tuple[list[bytes], bytes | None]:
    """Return the keys of the next lanes that may have messages, and the key up to which all were found; None: all were."""
    lanes = store.memory.lanes
    rows = store.run(OPERATE.with_messages, (after, STEP)).fetchall()
    loaded = nsmallest(STEP, (key for key in lanes if key > after))
    ends = [found[-1] for found in ([key for key, _ in rows], loaded) if len(found) == STEP]
    end = min(ends, default=None)
    keys = {key for key, has_any in rows if has_any}.union(loaded)
    return sorted(key for key in keys if end is None or key <= end), end


def _unleased(tx: Tx, lane: LiveLane, most: int) -> list[Group]:
    """Return messages of a lane that no lease holds, at most so many. An expired lease ends first."""
    store = tx.lanes
    if lane.grant is not None and lane.grant.deadline <= tx.now and lane.leased():
        expiring.expire(tx, lane)
    rare = lane.rare
    front: list[int] = []
    if rare is not None:
        front = sorted([i for _, i in (*rare.front[rare.front_held :], *rare.waiting)])[:most]
    most -= len(front)
    ids = _behind_lease(lane, most)
    while len(ids) < most and lane.split:
        store.loader.extend(lane, most + len(lane.holes or ()))
        ids = _behind_lease(lane, most)
    return [(lane, some) for some in (front, ids) if some]


def _end_timed_lease(tx: Tx, lane: LiveLane) -> None:
    """End a lease that has a deadline, and with it its token. Its messages are not charged. A batch keeps its messages."""
    grant = lane.grant
    if grant is None or grant.deadline == NEVER or not lane.leased():
        return
    tx.report(
        "lease_lost", lane.key, lane.low, grant.token, f"a purge ended the lease of {LaneHolder.decode(grant.holder).consumer}"
    )
    tx.lanes.append(kinds.RELEASE, [(lane, [])], token=grant.token, holder=kinds.BY_KEY, data=encode_keys([lane.key]))


def _behind_lease(lane: LiveLane, most: int) -> list[int]:
    return list(islice(filter(None, islice(lane.ids or (), lane.held, None)), most))


def _purge(tx: Tx, groups: Sequence[Group]) -> int:
    ids = [i for _, some in groups for i in some]
    if ids:
        ending.keep(tx, ids, history.PURGED)
        tx.lanes.append(kinds.PURGE, groups)
    return len(ids)


def purge_dedups(tx: Tx, last: tuple[bytes, str]) -> tuple[bytes, str] | None:
    """Remove the next dedup ids of the shard, in one bounded step. Return the last one; None: there are no more."""
    names = dedup.purge_after(tx.db, last, STEP)
    return names[-1] if len(names) == STEP else None


def purge_dead(tx: Tx, key: bytes) -> tuple[int, bool]:
    """Remove dead letters of a lane, in one bounded step. Return how many, and whether more may be left."""
    tx.lanes.loader.load((key,))
    rows = dead.of_lane(tx.db, key, STEP)
    return _purge_dead(tx, rows), len(rows) == STEP


def purge_some_dead(tx: Tx, last: tuple[bytes, int]) -> tuple[int, tuple[bytes, int] | None]:
    """Remove the next dead letters of the shard, in one bounded step. Return how many, and the last; None: there are no more."""
    rows = dead.after(tx.db, last, STEP)
    return _purge_dead(tx, rows), (rows[-1].key, rows[-1].arrival) if len(rows) == STEP else None


def _purge_dead(tx: Tx, rows: Sequence[DeadRow]) -> int:
    if rows:
        dead.unbury(tx.db, rows)
        data = pack([row.arrival for row in rows])
        tx.lanes.append(kinds.PURGE, (), holder=kinds.DEAD, data=data)
        if parked := [row.key for row in rows if forgetting.is_parked(row.key)]:
            forgetting.forget(tx, parked, NEVER)
    return len(rows)


# ---- delays


def end_delays_of(tx: Tx, keys: Sequence[bytes]) -> int:
    """End the delays of the heads of these lanes that failures caused. Return how many there were.

    Later claims list them like all lanes whose delay is over, so they do not go before lanes that are ready.
    """
    store = tx.lanes
    store.loader.load(keys)
    groups: list[Group] = []
    for key in dict.fromkeys(keys):
        lane = store.loader.lane(key)
        if _waits(lane, tx.now):
            head = lane.rare.front[0][1] if lane.rare is not None and lane.rare.front else (lane.ids or [0])[0]
            groups.append((lane, [head]))
    if groups:
        store.append(kinds.DEFER, groups, deadline=tx.now)
        tx.wake = True
    return len(groups)


def _waits(lane: LiveLane, now: int) -> bool:
    """Return whether a free lane waits because its head failed."""
    rare = lane.rare
    if lane.grant is not None or rare is None or rare.hold is not None or not _is_of_failure(lane.due, now):
        return False
    head = rare.front[0][1] if rare.front else (lane.ids or [0])[0]
    return head in rare.tried


def _is_of_failure(due: int, now: int) -> bool:
    return due > now and due & FAILURE_MARK == FAILURE_MARK


def end_some_delays(tx: Tx, last: tuple[int, bytes], most: int = DELAY_STEP) -> tuple[int, tuple[int, bytes] | None]:
    """End the next delays that failures caused, the first to end first, in one bounded step.

    Args:
        last: end and key of the delays up to which this was done.
    Returns:
        How many there were, and the next `last`. None: there are no more.
    """
    store, memory = tx.lanes, tx.lanes.memory
    last = max(last, (tx.now, b""))
    loaded = {one for one in memory.order.delays if one > last and _is_of_failure(one[0], tx.now)}
    found = [
        (due, key)
        for due, key in loaded
        if (lane := memory.lanes.get(key)) is not None and lane.due == due and _waits(lane, tx.now)
    ]
    ends: list[tuple[int, bytes]] = []
    after = last
    while len(ends) < most and (rows := store.run(OPERATE.failure_delays, (*after, most)).fetchall()):
        after = rows[-1]
        ends += [(due, key) for due, key in rows if (lane := memory.lanes.get(key)) is None or lane.rest]
    chosen = nsmallest(most, found + ends)
    n = end_delays_of(tx, [key for _, key in chosen])
    return n, chosen[-1] if len(chosen) == most else None
