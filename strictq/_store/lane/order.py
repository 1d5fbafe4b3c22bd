"""The order of ready lanes, and the times at which delays and leases end.

A place in the order is `arrival << PLACE_BITS` for a lane whose head waits since its arrival. A lane that was retried, or whose
delay or lease has ended, has a place behind every message that arrived before, so that it can't keep others waiting.

Every such lane is either listed here or at rest, with a value above the cursor of its index. Evicting a lane lowers the cursor.
Entries are dropped lazily: one is valid if the lane's `listed` equals its place.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final

from ..._values.tenants import TenantRules
from .entries import NEVER
from .live_lane import Grant, LiveLane
from .turns import ReadyLanes, RestCursor, TenantTurns

PLACE_BITS: Final = 20
_MASK: Final = (1 << PLACE_BITS) - 1
_STALE_MIN: Final = 4_096
_ENDS_MIN: Final = 256
_FEW: Final = 2_048


def place_of_arrival(arrival: int) -> int:
    """Return the place of a lane whose head has this arrival number."""
    return arrival << PLACE_BITS


def place_of_retry(entry: int, top: int) -> int:
    """Return the place of a lane that an entry put back: behind all that arrived before, in the order of entries."""
    return (top << PLACE_BITS) + (entry & _MASK)


class LaneOrder:
    """The lists of one shard's loaded lanes, and the cursors of those at rest.

    Attributes:
        arrived: keys of lanes that were empty when a message arrived. `arrived_at`: their places, ascending. They are two lists
            because a tuple for each would be another object for the garbage collector.
        ready: a heap of (place, key) of other ready lanes.
        delays: a heap of (due, key).
        ends: a heap of (deadline, serial, grant).
        front: the place that was taken last.
        tenancy: the turns of tenants, and what is sidelined. None: the queue has neither.
        turns: the same while it lists the ready lanes, in place of `arrived`, `ready` and `ready_rest`. None: they come by
            arrival alone. Either all are of one tenant, or each claim takes all of them. None or all of them are sidelined.
    """

    __slots__ = (
        "_ends_max", "arrived", "arrived_at", "delayed_rest", "delays", "ends", "front", "leased_rest", "ready", "ready_rest",
        "serial", "stale", "tenancy", "turns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.arrived: deque[bytes] = deque()
        self.arrived_at: deque[int] = deque()
        self.ready: list[tuple[int, bytes]] = []
        self.delays: list[tuple[int, bytes]] = []
        self.ends: list[tuple[int, int, Grant]] = []
        self.front = 0
        self.serial = 0
        self._ends_max = _ENDS_MIN
        self.stale = 0
        """Entries of evicted lanes, about."""
        self.tenancy: TenantTurns | None = None
        self.turns: TenantTurns | None = None
        self.ready_rest = RestCursor()
        self.delayed_rest = RestCursor()
        self.leased_rest = RestCursor()

    @property
    def may_have_ready(self) -> bool:
        """Return whether a ready lane may be listed here or at rest."""
        if self.turns is not None:
            return self.turns.first() is not None or not self.turns.found
        return bool(self.arrived or self.ready or self.ready_rest.next < NEVER)

    @property
    def is_short(self) -> bool:
        """Return whether few lanes are listed, so that the tenant of each is soon found."""
        return len(self.arrived) + len(self.ready) <= _FEW

    @property
    def is_throttled(self) -> bool:
        """Return whether a tenant waits for its rate."""
        return self.turns is not None and self.turns.blocked_until < NEVER

    @property
    def passes_over(self) -> bool:
        """Return whether a tenant takes no turns because it is paused or throttled."""
        return self.turns is not None and self.turns.has_blocked

    @property
    def listed(self) -> tuple[int, int, int]:
        """Return a state that changes when a lane becomes ready, or waits for a delay."""
        ready = len(self.ready) if self.turns is None else self.turns.listed
        return len(self.arrived), ready, len(self.delays)

    @property
    def next_end(self) -> int:
        """Return a time before which no lease ends."""
        return min(self.ends[0][0] if self.ends else NEVER, self.leased_rest.next)

    @property
    def next_due(self) -> int:
        """Return a time before which no delay ends."""
        return min(self.delays[0][0] if self.delays else NEVER, self.delayed_rest.next)

    def list(self, lane: LiveLane, place: int) -> None:
        """List a lane, unless a plan has taken it. Then the caller that applies or refuses the plan lists it."""
        if lane.listed >= 0 and lane.listed != place:
            lane.listed = place
            if self.turns is None:
                heappush(self.ready, (place, lane.key))
            else:
                self.turns.list(place, lane)

    def delay(self, lane: LiveLane) -> None:
        """Wait for the end of its head's delay."""
        heappush(self.delays, (lane.due, lane.key))

    def watch(self, grant: Grant) -> None:
        """Wait for the deadline of a grant."""
        ends = self.ends
        if len(ends) >= self._ends_max:
            # Most grants are settled long before their deadlines, and leave their entries here.
            ends = self.ends = [end for end in ends if end[2].left]
            heapify(ends)
            self._ends_max = max(_ENDS_MIN, 2 * len(ends))
        self.serial += 1
        heappush(ends, (grant.deadline, self.serial, grant))

    def evicted(self, lane: LiveLane) -> None:
        """Let a lane be found at rest, where its row lists it."""
        self.stale += 1
        if lane.grant is not None:
            self.leased_rest.lower(lane.grant.deadline)
        elif lane.due:
            self.delayed_rest.lower(lane.due)
        elif lane.listed > 0 and self.turns is not None:
            self.turns.rests(lane.listed, lane)
        elif lane.listed > 0:
            self.ready_rest.lower(lane.listed)

    def take_turns(self, rules: TenantRules | None, lanes: dict[bytes, LiveLane]) -> None:
        """Let tenants take turns by other rules. None: lanes come by arrival alone."""
        tenancy = self.tenancy
        if rules is not None and tenancy is not None and rules.separator == tenancy.rules.separator:
            tenancy.adopt(rules)
            return
        if self.turns is not None:
            self.turns = None
            self.ready = [(lane.listed, lane.key) for lane in lanes.values() if lane.listed > 0]
            heapify(self.ready)
            self.ready_rest = RestCursor()
        self.tenancy = None if rules is None else TenantTurns(rules)

    def begin_turns(self, sole: bytes | None, lanes: dict[bytes, LiveLane]) -> None:
        """Let tenants take turns, or fresh lanes pass sidelined ones.

        Args:
            sole: the tenant of all lanes so far. None: the tenant of each must be looked for.
        """
        turns = self.turns = self.tenancy
        assert turns is not None
        entries = sorted([*zip(self.arrived_at, self.arrived, strict=True), *self.ready])
        if sole is None:
            turns.found = self.ready_rest.next >= NEVER
            for place, key in entries:
                if (lane := lanes.get(key)) is not None and lane.listed == place:
                    turns.list(place, lane)
        else:
            turns.begin(sole, ReadyLanes(entries, self.ready_rest, self.front))
        self.arrived, self.arrived_at, self.ready = deque(), deque(), []
        self.ready_rest = RestCursor()

    def end_turns(self, sole: bytes | None) -> None:
        """List lanes by arrival alone.

        Args:
            sole: the tenant of all ready ones. None: no lane is ready, loaded or at rest.
        """
        assert self.turns is not None
        found, self.turns = self.turns.found, None
        assert self.tenancy is not None
        lanes = self.tenancy.end(sole)
        self.ready, self.front = lanes.ready, lanes.front
        self.ready_rest = lanes.rest if found else RestCursor()

    def slot_is_free(self, tenant: bytes) -> bool:
        """Note that a lease of a tenant has ended. Return whether that may let another lane of it be leased."""
        if self.turns is not None:
            return self.turns.slot_is_free(tenant)
        # No tenant is throttled here, but one may be in another process, whose receives wait.
        return self.tenancy is not None and self.tenancy.rules.of(tenant).concurrency is not None and self.may_have_ready

    def drop_past(self, lanes: dict[bytes, LiveLane]) -> None:
        """Forget the next ends of delays and leases that will not come, so that the first ones are exact."""
        delays, ends = self.delays, self.ends
        while delays and ((lane := lanes.get(delays[0][1])) is None or lane.due != delays[0][0] or lane.grant is not None):
            heappop(delays)
        while ends and not ends[0][2].left:
            heappop(ends)

    def drop_stale(self, lanes: dict[bytes, LiveLane]) -> None:
        """Forget entries that are not valid any more, once they are most of all.

        They are those of evicted lanes. If this process claims nothing, they are also those of lanes that others have claimed.
        """
        if self.turns is not None:
            self.turns.drop_stale(lanes)
        n = len(self.arrived) + len(self.ready) + len(self.delays)
        if n < _STALE_MIN or (self.stale < n // 2 and n < 2 * len(lanes) + _STALE_MIN):
            return
        self.stale = 0
        arrived = [
            (key, place)
            for key, place in zip(self.arrived, self.arrived_at, strict=True)
            if (lane := lanes.get(key)) is not None and lane.listed == place
        ]
        self.arrived, self.arrived_at = deque(key for key, _ in arrived), deque(place for _, place in arrived)
        self.ready = list({one for one in self.ready if (lane := lanes.get(one[1])) is not None and lane.listed == one[0]})
        heapify(self.ready)
        self.delays = list({one for one in self.delays if (lane := lanes.get(one[1])) is not None and lane.due == one[0]})
        heapify(self.delays)
