"""Counts of a shard and ages of its messages, and its deepest lanes.

The totals are sums that every entry changes. What depends on the present time is derived from the lanes that are leased, delayed
or held: the loaded ones are listed in memory, those at rest in indexes. Ages come from the oldest messages. Nothing else is read,
so the cost depends neither on the backlog nor on the number of ready lanes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from ..._keys import is_keyless
from ..._sql import LOOKS
from ..lane.live_lane import LiveLane
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
    for lane in _loaded_apart(store, now):
        count.add(lane)
    lanes, keys = store.memory.lanes, set[bytes]()
    for statement, values in (
        (LOOKS.leased_lanes, (now,)), (LOOKS.delayed_lanes, (now,)), (LOOKS.held_lanes, ()),
    ):  # fmt: skip
        for (key,) in store.run(statement, values):
            if _is_at_rest(lanes, key):
                keys.add(key)
                if most is not None and len(keys) > most:
                    return None
    for lane in lanes_at_rest(store, sorted(keys)):
        count.add(lane)
    return ShardFigures(count.in_flight, count.delayed, count.held, *_ages(store))


def _loaded_apart(store: ShardLanes, now: int) -> Iterable[LiveLane]:
    """Return loaded lanes that are leased, delayed or held now, each once."""
    memory = store.memory
    lanes, order = memory.lanes, memory.order
    found = {
        lane.key: lane
        for deadline, _, grant in order.ends if deadline > now and grant.left
        for lane in grant.lanes if lane.grant is grant
    }  # fmt: skip
    keys = [key for due, key in order.delays if due > now]
    found |= {key: lane for key in (*keys, *memory.holds) if (lane := lanes.get(key)) is not None and not lane.rest}
    return found.values()


def _is_at_rest(lanes: dict[bytes, LiveLane], key: bytes) -> bool:
    """Return whether the head of a lane is known only from its row."""
    lane = lanes.get(key)
    return lane is None or lane.rest


def _ages(store: ShardLanes) -> tuple[int | None, int | None]:
    """Return when the oldest unresolved message was sent, and the oldest one without an attempt.

    If none of the first AGES_OVER has no attempt, the second time is that of the last of them.
    """
    oldest = last = None
    for n, (i, key, seq) in enumerate(store.arrivals.unresolved()):
        if n == 0:
            oldest = i
        if n == AGES_OVER or not _was_attempted(store, i, key, seq):
            last = i
            break
    return _sent_at(store, oldest), _sent_at(store, last)


def _was_attempted(store: ShardLanes, arrival: int, key: bytes, seq: int) -> bool:
    lane = store.loader.lane(store.loader.keys_of([arrival])[arrival] if is_keyless(key) else key)
    if lane.attempts(arrival)[0]:
        return True
    waits = lane.rare is not None and (seq, arrival) in lane.rare.waiting
    return lane.grant is not None and lane.low <= seq <= lane.started and not waits


def _sent_at(store: ShardLanes, arrival: int | None) -> int | None:
    at: int | None = None if arrival is None else store.run(LOOKS.sent_at, (arrival,)).get
    return at


def lanes_at_rest(store: ShardLanes, keys: Iterable[bytes], step: int = _STEP) -> Iterator[LiveLane]:
    """Return lanes as their rows say, without loading them."""
    lanes, rows = store.memory.lanes, store.rows
    some: list[bytes] = []

    def read() -> Iterator[LiveLane]:
        for row in rows.load(some):
            yield lane_at_rest(rows, row, lanes.get(row.key))

    for key in keys:
        some.append(key)
        if len(some) == step:
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


def deepest(store: ShardLanes, n: int, by: str, now: int) -> list[tuple[LaneView, int, int]]:
    """Return the n deepest lanes, or those with the oldest messages, with depth and when the oldest was sent.

    Reads every lane that has messages.
    """
    best: list[tuple[int, bytes, int, int, LiveLane]] = []
    for lane in _with_messages(store):
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


def _with_messages(store: ShardLanes) -> Iterator[LiveLane]:
    lanes = store.memory.lanes
    for lane in list(lanes.values()):
        if not lane.rest:
            yield lane
    run: Any = store.db.execute
    after = b""
    while rows := run(LOOKS.lanes_with_messages, (after, _STEP)).fetchall():
        after = rows[-1][0]
        yield from lanes_at_rest(store, [key for (key,) in rows if _is_at_rest(lanes, key)])


__all__ = ["FEW", "ShardFigures", "deepest", "figures", "lanes_at_rest", "waiting"]
