"""Counts of a shard and ages of its messages, and its deepest lanes.

The totals are sums that every entry changes. What depends on the present time is derived from loaded lanes, whose number is
bounded, and from the indexes of lanes at rest: leased, delayed and held ones are read, ready ones only as far as ages need it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from ..._sql import LANE_LOOKS, LANE_TABLES
from ..lane.live_lane import LaneAtRest, LiveLane
from ..lane.order import PLACE_BITS
from .looking import LaneView, depth_of, lane_at_rest
from .shard_lanes import ShardLanes

AGES_OVER: Final = 10_000
"""The number of ready lanes at rest that are examined for ages."""
FEW: Final = 1_000
"""How many lanes at rest a look reads while writers wait for it."""
_STEP: Final = 500
_NONE: Final = 1 << 62


class ShardFigures(NamedTuple):
    """What the present time makes of a shard's unresolved messages.

    Attributes:
        in_flight: those of leases that are not over their deadlines.
        delayed, held: those of lanes whose first message is delayed, and of held ones.
        oldest: when the oldest head of a lane was sent. `oldest_ready`: of a ready one.
        unattempted: when the oldest message without an attempt was sent.
    """

    in_flight: int
    delayed: int
    held: int
    oldest: int | None
    oldest_ready: int | None
    unattempted: int | None


class _Count:
    """Adds lanes up."""

    def __init__(self, now: int) -> None:
        self._now = now
        self.in_flight = self.delayed = self.held = 0
        self.oldest = self.oldest_ready = self.unattempted = _NONE

    def add(self, lane: LiveLane) -> None:
        ids, rare, grant = lane.ids, lane.rare, lane.grant
        if not ids and rare is None and not lane.new:
            return
        head = _head(lane)
        if head is None:
            return
        self.oldest = min(self.oldest, head)
        leased = 0
        if grant is not None and grant.deadline > self._now:
            leased = len(lane.leased())
            self.in_flight += leased
        if rare is not None and rare.hold is not None:
            self.held += depth_of(lane) - leased
        elif grant is None and lane.due > self._now:
            self.delayed += depth_of(lane)
        elif not leased:
            self.oldest_ready = min(self.oldest_ready, head)
        if head < self.unattempted and (first := _unattempted(lane)) is not None:
            self.unattempted = min(self.unattempted, first)


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


def _unattempted(lane: LiveLane) -> int | None:
    """Return the first message of a lane that no handler was started for."""
    rare, is_leased, new = lane.rare, lane.grant is not None, lane.new or ()
    if rare is None and not is_leased:
        return _head(lane)
    early = [] if rare is None else [*rare.front, *rare.waiting]
    for seq, i in (*early, *enumerate(lane.ids or (), lane.first), *enumerate(new, lane.tail - len(new) + 1)):
        if i and not (is_leased and lane.low <= seq <= lane.started) and not lane.attempts(i)[0]:
            return i
    return None


def figures(store: ShardLanes, now: int, most: int | None = None) -> ShardFigures | None:
    """Return the figures of a shard.

    Args:
        most: how many lanes at rest to read. None: all that must be read.
    Returns:
        None: there are more.
    """
    count = _Count(now)
    lanes = store.memory.lanes
    for lane in list(lanes.values()):
        if not lane.rest:
            while lane.deep and not any(lane.ids or ()):
                store.loader.extend(lane)  # a held lane is not listed, so nothing has needed its head
            count.add(lane)
    run: Any = store.db.execute
    keys: set[bytes] = set()
    for statement in (LANE_LOOKS.leased_lanes, LANE_LOOKS.delayed_lanes, LANE_LOOKS.held_lanes):
        for (key,) in run(statement):
            if _is_at_rest(lanes, key):
                keys.add(key)
                if most is not None and len(keys) > most:
                    return None
    retried = [key for (key,) in run(LANE_LOOKS.retried_lanes, (AGES_OVER, (1 << PLACE_BITS) - 1)) if _is_at_rest(lanes, key)]
    keys.update(retried)
    if most is not None and len(keys) > most:
        return None
    for lane in lanes_at_rest(store, sorted(keys)):
        count.add(lane)
    ready = (key for _, key in run(LANE_TABLES.ready, (-_NONE, b"", AGES_OVER)).fetchall() if _is_at_rest(lanes, key))
    for lane in lanes_at_rest(store, ready, step=8):
        count.add(lane)
        if _unattempted(lane) is not None:
            break  # heads of later ones arrived later, but for retried ones
    oldest, oldest_ready, unattempted = (_sent_at(store, i) for i in (count.oldest, count.oldest_ready, count.unattempted))
    return ShardFigures(count.in_flight, count.delayed, count.held, oldest, oldest_ready, unattempted)


def _is_at_rest(lanes: dict[bytes, LiveLane], key: bytes) -> bool:
    """Return whether the head of a lane is known only from its row."""
    lane = lanes.get(key)
    return lane is None or lane.rest


def _sent_at(store: ShardLanes, arrival: int) -> int | None:
    at: int | None = None if arrival == _NONE else store.run(LANE_LOOKS.sent_at, (arrival,)).get
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
    """Return the number of ready messages, as in `stats`, and when the oldest head of their lanes was sent."""
    found = figures(store, now)
    assert found is not None
    return store.memory.totals.pending - found.in_flight - found.delayed - found.held, found.oldest_ready


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
    while rows := run(LANE_LOOKS.lanes_with_messages, (after, _STEP)).fetchall():
        after = rows[-1][0]
        yield from lanes_at_rest(store, [key for (key,) in rows if _is_at_rest(lanes, key)])


__all__ = ["FEW", "LaneAtRest", "ShardFigures", "deepest", "figures", "lanes_at_rest", "waiting"]
