"""The lanes that wait for a slot of a worker, if the queue has tenants: tenants take turns here, too.

A worker leases messages ahead. If a flood has filled that, first in, first out, the next message of a quiet tenant would wait
behind all of it. So each lane gets a time when it comes: that of the last lane that was taken, or of the end of its tenant's
lanes before it, whichever is later. The lane with the lowest time is taken first.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from .._values.keys import encode_key
from .._values.tenants import TenantRules, tenant_of
from .job import HeldLane


class FairLanes:
    """Has the methods of a deque that the scheduler uses. Lanes stay in the order of their tenants' turns."""

    def __init__(self, rules: TenantRules) -> None:
        self._rules = rules
        self._heap: list[tuple[float, int, HeldLane]] = []
        self._ends: dict[bytes, float] = {}
        self._clock = 0.0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[HeldLane]:
        return (lane for _, _, lane in sorted(self._heap))

    def __contains__(self, lane: object) -> bool:
        return any(lane is one for _, _, one in self._heap)

    def __getitem__(self, _first: int) -> HeldLane:
        return self._heap[0][2]

    def append(self, lane: HeldLane) -> None:
        """Add a lane behind those of its tenant."""
        tenant = tenant_of(encode_key(lane.lease.key), self._rules.separator)
        start = max(self._clock, self._ends.get(tenant, 0.0))
        self._ends[tenant] = start + 1.0 / self._rules.of(tenant).weight
        self._push(start, lane)

    def appendleft(self, lane: HeldLane) -> None:
        """Add a lane before all others."""
        self._push(self._heap[0][0] if self._heap else self._clock, lane, first=True)

    def _push(self, start: float, lane: HeldLane, *, first: bool = False) -> None:
        self._serial += 1
        heappush(self._heap, (start, -self._serial if first else self._serial, lane))

    def remove(self, lane: HeldLane) -> None:
        """Take a lane out of turn.

        Raises:
            ValueError: it does not wait.
        """
        place = next((place for place, one in enumerate(self._heap) if one[2] is lane), None)
        if place is None:
            raise ValueError("the lane does not wait")
        del self._heap[place]
        heapify(self._heap)

    def popleft(self) -> HeldLane:
        """Take the lane whose turn it is."""
        start, _, lane = heappop(self._heap)
        self._clock = max(self._clock, start)
        if not self._heap:
            self._ends.clear()  # nobody waits, so nobody is ahead of others
        return lane
