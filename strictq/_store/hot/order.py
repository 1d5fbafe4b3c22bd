"""The order in which the ready hot lanes of a shard are claimed: by the arrival of their heads, oldest first.

Everything that takes hot lanes takes them from here. Another policy, such as fair shares between tenants, is another class with
these methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from ..onelane.leases import BODY, ID, Row
from .lane import HotLane


class ReadyOrder:
    """The hot lanes that may be ready.

    A lane is inserted when it becomes ready. When it no longer is, its entry stays and is skipped later: an entry counts only if
    its arrival number is `HotLane.listed`, and the arrival number of the lane's head.
    """

    __slots__ = ("_fifo", "_fifo_at", "_heap")

    def __init__(self) -> None:
        self._fifo: deque[HotLane] = deque()
        """Lanes that were empty. Their heads are the newest messages, so they arrive sorted."""
        self._fifo_at: deque[int] = deque()
        """Their arrival numbers. A tuple for each lane would be another object for the garbage collector."""
        self._heap: list[tuple[int, HotLane]] = []
        """Lanes that had a lease, by the arrival numbers of their heads."""

    def __bool__(self) -> bool:
        """Return whether a lane may be ready."""
        return bool(self._fifo or self._heap)

    def append(self, lane: HotLane, arrival: int) -> None:
        """Insert a lane whose head is the newest message of the shard."""
        self._fifo.append(lane)
        self._fifo_at.append(arrival)
        lane.listed = arrival

    def insert(self, lane: HotLane) -> None:
        """Insert a lane into the order, at the arrival of its head, unless it is there."""
        arrival = lane.rows[0][ID]
        if lane.listed != arrival:
            lane.listed = arrival
            heappush(self._heap, (arrival, lane))

    def head(self) -> tuple[int, HotLane] | None:
        """Return the ready lane with the oldest head, and that head's arrival number. None: no lane is ready."""
        fifo, fifo_at, heap = self._fifo, self._fifo_at, self._heap
        while fifo or heap:
            first = heap and (not fifo or heap[0][0] < fifo_at[0])
            arrival, lane = heap[0] if first else (fifo_at[0], fifo[0])
            if lane.listed == arrival:
                if lane.rows and lane.rows[0][ID] == arrival and lane.lease is None and not lane.gone:
                    return arrival, lane
                lane.listed = 0
            if first:
                heappop(heap)
            else:
                self._shift()
        return None

    def _shift(self) -> HotLane:
        """Remove the first lane from `_fifo`. Without calls, which an interrupt could follow: `head` changes nothing else."""
        lane = self._fifo[0]
        del self._fifo_at[0]
        del self._fifo[0]
        return lane

    def take(self, room: int, most: int, now: int) -> tuple[list[HotLane], list[Sequence[Row]], int]:
        """Remove the next lanes from the order, with the first `most` messages of each.

        Stops when the room is used up, or at a lane whose messages may have expired or have bodies stored out of line.

        Returns:
            The lanes, their messages, and the remaining room.
        """
        taken: list[HotLane] = []
        messages: list[Sequence[Row]] = []
        fifo, fifo_at, heap = self._fifo, self._fifo_at, self._heap
        while room > 0:
            if heap or not fifo:
                head = self.head()
                if head is None:
                    break
                lane = head[1]
                waiting = lane.rows
            else:  # as `head`, written out, because it runs for every lane
                arrival, lane = fifo_at[0], fifo[0]
                waiting = lane.rows
                if lane.listed != arrival:
                    self._shift()
                    continue
                if not waiting or waiting[0][ID] != arrival or lane.lease is not None or lane.gone:
                    lane.listed = 0
                    self._shift()
                    continue
            rows = waiting[: most if most < room else room]
            if now >= lane.expires or (rows[0][BODY] is None if len(rows) == 1 else None in [row[BODY] for row in rows]):
                break
            if heap:
                self.pop()
            else:
                fifo.popleft()
                fifo_at.popleft()
                lane.listed = 0
            taken.append(lane)
            messages.append(rows)
            room -= len(rows)
        return taken, messages, room

    def pop(self) -> None:
        """Remove what `head` returned from the order."""
        if self._heap and (not self._fifo or self._heap[0][0] < self._fifo_at[0]):
            _, lane = heappop(self._heap)
        else:
            lane = self._shift()
        lane.listed = 0
