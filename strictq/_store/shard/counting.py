"""Counts of a shard and ages of its messages, and its deepest lanes.

The totals are sums that every entry changes. What depends on the present time is derived from the lanes that are leased, delayed
or held: the loaded ones are listed in memory, those at rest in indexes. Ages come from the oldest messages. Nothing else is read,
so the cost depends neither on the backlog nor on the number of ready lanes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from ..._sql import LOOKS
from ..._values.keys import is_keyless
from ..._values.tenants import tenant_of
from ..lane.entries import NEVER, LaneHolder
from ..lane.live_lane import Grant, LiveLane
from ..lane.memory import M_SENT_AT
from ..lane.order import PLACE_BITS
from . import claiming
from .looking import LaneView, depth_of, lane_at_rest
from .shard_lanes import ShardLanes

AGES_OVER: Final = 1_000
"""The number of unresolved messages that are examined for an age."""
READY_OVER: Final = 10_000
"""The same for the age of the oldest ready one."""
FEW: Final = 1_000
"""How many lanes at rest a look reads while writers wait for it."""
_STEP: Final = 500


class ShardFigures(NamedTuple):
    """What the present time makes of a shard's unresolved messages.

    Attributes:
        in_flight: those of leases that are not over their deadlines.
        delayed, held: those of lanes whose first message is delayed, and of held ones.
        oldest: when the oldest one was sent.
        unattempted: when the oldest one without an attempt was sent.
    """

    in_flight: int
    delayed: int
    held: int
    oldest: int | None
    unattempted: int | None


class _Count:
    """Adds lanes up."""

    def __init__(self, now: int) -> None:
        self._now = now
        self.in_flight = self.delayed = self.held = 0

    def add(self, lane: LiveLane) -> None:
        rare, grant = lane.rare, lane.grant
        leased = 0
        if grant is not None and grant.deadline > self._now:
            ids = (lane.ids or [])[: lane.held]
            leased = len(ids) - ids.count(0) + (rare.front_held if rare is not None else 0)
            self.in_flight += leased
        if rare is not None and rare.hold is not None:
            self.held += depth_of(lane) - leased
        elif grant is None and lane.due > self._now:
            self.delayed += depth_of(lane)


def _head(lane: LiveLane) -> int | None:
    """Return the lowest arrival number of a lane's unresolved messages."""
    ids, rare = lane.ids, lane.rare
    if rare is None and ids and ids[0]:
        return ids[0]
    early = [] if rare is None else [i for _, i in (*rare.front, *rare.waiting)]
    return min((*early, *_some(ids), *_some(lane.new)), default=None)


def _some(ids: list[int] | None) -> list[int]:
    """Return the first unresolved one of some ids."""
    return next(([i] for i in ids or () if i), [])


def figures(store: ShardLanes, now: int, most: int | None = None) -> ShardFigures | None:
    """Return the figures of a shard.

    Args:
        most: how many lanes at rest to read. None: all that must be read.
    Returns:
        None: there are more.
    """
    count = _Count(now)
    for grant in _live_grants(store, now):
        for lane in grant.lanes:
            if lane.grant is not grant:
                continue
            if lane.rare is None and lane.ids is not None:
                count.in_flight += lane.held - lane.ids[: lane.held].count(0)  # the common case
            else:
                count.add(lane)
    for lane in _loaded_and_waiting(store, now):
        if lane.grant is None or lane.grant.deadline <= now:
            count.add(lane)
    lanes, keys = store.memory.lanes, set[bytes]()
    for (key,) in store.run(LOOKS.lanes_apart, (now,)):
        if _is_at_rest(lanes, key):
            keys.add(key)
            if most is not None and len(keys) > most:
                return None
    for lane in lanes_at_rest(store, sorted(keys)):
        count.add(lane)
    return ShardFigures(count.in_flight, count.delayed, count.held, *_ages(store))


def held_by(store: ShardLanes, now: int) -> Counter[str]:
    """Return the number of messages that each consumer holds now, by its name."""
    found: Counter[str] = Counter()
    for lane, grant in _leased(store, now):
        found[LaneHolder.decode(grant.holder).consumer] += len(lane.leased())
    return found


class Leased(NamedTuple):
    """A lane's lease that is not over its deadline: see LaneLease. Times are the queue's."""

    at: int
    key: bytes
    consumer: str
    token: int
    first: int
    messages: int
    deadline: int


def longest_leased(store: ShardLanes, now: int, n: int) -> list[Leased]:
    """Return the n leases that began first and still hold messages. Reads every leased lane."""
    found = (
        Leased(
            grant.at, lane.key, LaneHolder.decode(grant.holder).consumer, grant.token, held[0][0], len(held), grant.deadline
        )
        for lane, grant in _leased(store, now)
        if (held := lane.leased())
    )  # fmt: skip
    return heapq.nsmallest(n, found)


def _leased(store: ShardLanes, now: int) -> Iterator[tuple[LiveLane, Grant]]:
    """Return the lanes whose leases are not over their deadlines."""
    lanes = store.memory.lanes
    keys = [key for (key,) in store.run(LOOKS.leased_lanes, (now,)) if _is_at_rest(lanes, key)]
    for lane in (*_loaded_apart(store, now), *lanes_at_rest(store, keys)):
        if lane.grant is not None and lane.grant.deadline > now:
            yield lane, lane.grant


def _loaded_apart(store: ShardLanes, now: int) -> Iterable[LiveLane]:
    """Return loaded lanes that are leased, delayed or held now, each once."""
    found = {lane.key: lane for grant in _live_grants(store, now) for lane in grant.lanes if lane.grant is grant}
    found |= {lane.key: lane for lane in _loaded_and_waiting(store, now)}
    return found.values()


def _live_grants(store: ShardLanes, now: int) -> Iterable[Grant]:
    """Return the grants of loaded lanes that are not over their deadlines, each once."""
    return {grant: None for _, _, grant in store.memory.order.ends if grant.left and grant.deadline > now}


def _loaded_and_waiting(store: ShardLanes, now: int) -> Iterable[LiveLane]:
    """Return loaded lanes that are delayed or held now, each once. Some of them may be leased."""
    memory = store.memory
    lanes = memory.lanes
    keys = [key for due, key in memory.order.delays if due > now]
    return {key: lane for key in (*keys, *memory.holds) if (lane := lanes.get(key)) is not None and not lane.rest}.values()


def _is_at_rest(lanes: dict[bytes, LiveLane], key: bytes) -> bool:
    """Return whether the head of a lane is known only from its row."""
    lane = lanes.get(key)
    return lane is None or lane.rest


def _ages(store: ShardLanes) -> tuple[int | None, int | None]:
    """Return when the oldest unresolved message was sent, and the oldest one without an attempt.

    If none of the first AGES_OVER has no attempt, the second time is that of the last of them. The next look goes on there.
    """
    arrivals = store.arrivals
    found, begin = arrivals.unresolved(), arrivals.attempted
    first, last = next(found, None), None
    oldest = None if first is None else first[0]
    left = arrivals.unresolved(begin) if first is None or first[0] <= begin else chain((first,), found)
    for n, (i, key, seq) in enumerate(left):
        last = i
        if n == AGES_OVER or not _was_attempted(store, i, key, seq):
            break
    else:
        last = None
    arrivals.note_attempted(last)
    sent_at = _sent_at(store, oldest)
    return sent_at, sent_at if last == oldest else _sent_at(store, last)


def _was_attempted(store: ShardLanes, arrival: int, key: bytes, seq: int) -> bool:
    lane = store.loader.lane(store.loader.keys_of([arrival])[arrival] if is_keyless(key) else key)
    if lane.attempts(arrival)[0]:
        return True
    waits = lane.rare is not None and (seq, arrival) in lane.rare.waiting
    return lane.grant is not None and lane.low <= seq <= lane.started and not waits


def _sent_at(store: ShardLanes, arrival: int | None) -> int | None:
    if arrival is None:
        return None
    memory = store.memory
    if (row := memory.rows.get(arrival) or memory.old_rows.get(arrival)) is not None:
        known: int = row[M_SENT_AT]
        return known
    at: int | None = store.run(LOOKS.sent_at, (arrival,)).get
    return at


def lanes_at_rest(store: ShardLanes, keys: Iterable[bytes]) -> Iterator[LiveLane]:
    """Return lanes as their rows say, without loading them."""
    lanes, rows = store.memory.lanes, store.rows
    some: list[bytes] = []

    def read() -> Iterator[LiveLane]:
        for row in rows.load(some):
            yield lane_at_rest(rows, row, lanes.get(row.key))

    for key in keys:
        some.append(key)
        if len(some) == _STEP:
            yield from read()
            some = []
    yield from read()


def waiting(store: ShardLanes, now: int) -> tuple[int, int | None]:
    """Return the number of ready messages, as in `stats`, and when the oldest one was sent that a consumer could receive.

    If none of the first READY_OVER unresolved messages is ready, the time is that of the last of them.
    """
    found = figures(store, now)
    assert found is not None
    n = store.memory.totals.pending - found.in_flight - found.delayed - found.held
    if not n:
        return 0, None
    ready: dict[bytes, bool] = {}
    for at, (i, key, _) in enumerate(store.arrivals.unresolved()):
        of = store.loader.keys_of([i])[i] if is_keyless(key) else key
        if of not in ready:
            view = LaneView(store, store.loader.lane(of), now)
            ready[of] = view.lease is None and view.state_behind() == "ready"
        if ready[of] or at == READY_OVER:
            return n, _sent_at(store, i)
    return n, None


def deepest(store: ShardLanes, n: int, by: str, now: int, prefix: bytes = b"") -> list[tuple[LaneView, int, int]]:
    """Return the n deepest lanes, or those with the oldest messages, with depth and when the oldest was sent.

    Reads every lane that has messages and whose stored key begins with the prefix.
    """
    best: list[tuple[int, bytes, int, int, LiveLane]] = []
    for lane in _with_messages(store, prefix):
        head = _head(lane)
        if head is None:
            continue
        depth = depth_of(lane)
        entry = (depth if by == "depth" else -head, lane.key, depth, head, lane)
        if len(best) < n:
            heapq.heappush(best, entry)
        else:
            heapq.heappushpop(best, entry)
    return [
        (LaneView(store, lane, now), depth, _sent_at(store, head) or 0) for _, _, depth, head, lane in sorted(best, reverse=True)
    ]


def by_tenant(store: ShardLanes, separator: bytes) -> dict[bytes, tuple[int, int, int]]:
    """Return the number of messages and of lanes of each tenant, and when its oldest message was sent. Reads every such lane."""
    found: dict[bytes, tuple[int, int, int]] = {}
    for lane in _with_messages(store):
        head = _head(lane)
        if head is not None:
            name = tenant_of(lane.key, separator)
            depth, keys, oldest = found.get(name, (0, 0, head))
            found[name] = depth + depth_of(lane), keys + 1, min(oldest, head)
    return {name: (depth, keys, _sent_at(store, oldest) or 0) for name, (depth, keys, oldest) in found.items()}


def oldest_of_tenant(store: ShardLanes, tenant: bytes, now: int) -> int | None:
    """Return when a tenant's first ready message was sent, or a later one before which it was put back. None: it has none."""
    place = claiming.of(store).first_place(tenant, now)
    return None if place >= NEVER else _sent_at(store, place >> PLACE_BITS)


def depths_by_tenant(store: ShardLanes, separator: bytes) -> Counter[bytes]:
    """Return the number of unresolved messages of each tenant. Reads every lane that has messages."""
    found: Counter[bytes] = Counter()
    for lane in _with_messages(store):
        if depth := depth_of(lane):
            found[tenant_of(lane.key, separator)] += depth
    return found


def _with_messages(store: ShardLanes, prefix: bytes = b"") -> Iterator[LiveLane]:
    lanes = store.memory.lanes
    for lane in list(lanes.values()):
        if not lane.rest and lane.key.startswith(prefix):
            yield lane
    run: Any = store.db.execute
    if prefix and _is_at_rest(lanes, prefix):
        yield from lanes_at_rest(store, [prefix])
    after = prefix
    while rows := run(LOOKS.lanes_with_messages, (after, _STEP)).fetchall():
        keys = [key for (key,) in rows if key.startswith(prefix)]
        yield from lanes_at_rest(store, [key for key in keys if _is_at_rest(lanes, key)])
        if len(keys) < len(rows):
            return
        after = keys[-1]


__all__ = [
    "FEW", "Leased", "ShardFigures", "by_tenant", "deepest", "depths_by_tenant", "figures", "lanes_at_rest", "longest_leased",
    "waiting",
]  # fmt: skip
