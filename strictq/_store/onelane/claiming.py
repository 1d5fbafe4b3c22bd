"""The one iterator of the order of ready lanes, and the plan of a claim.

The batch rule: take the oldest ready lane that nobody holds, with as many of its messages as fit. Repeat while there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop
from typing import Final, NamedTuple

import apsw

from ..lane import entries as kinds
from ..lane.entries import NEVER, Entry, encode_keys
from ..lane.live_lane import TAKEN, LiveLane
from ..lane.memory import Group
from ..lane.order import RestCursor, place_of_retry
from ..tables import dead, resting
from .loading import Loader, NeedsTransactionError

LOADED_TOGETHER: Final = 32
"""How many lanes at rest are loaded at once, in the order of their index."""
CULL_STEP: Final = 200
"""How many expired messages one claim removes. The rest is left to the next one."""


class ClaimRequest(NamedTuple):
    """The limits of a claim.

    Attributes:
        room: the number of messages.
        per_key: messages of each lane; None: as many as fit.
        keys: only of these lanes.
        suspects: messages that may have killed the holder of an expired lease are delivered one at a time.
        dead_letters: messages whose TTL is over become dead letters.
    """

    room: int
    per_key: int | None = None
    keys: tuple[bytes, ...] | None = None
    suspects: bool = True
    dead_letters: bool = False


class Claiming:
    """Plans claims on one shard.

    Args:
        append: writes an entry of a transaction, and applies it.
    """

    def __init__(self, db: apsw.Connection, loader: Loader, append: Callable[..., Entry]) -> None:
        self._db = db
        self._loader = loader
        self._memory = loader.memory
        self._append = append
        self._taken: list[tuple[LiveLane, int]] = []

    def plan(self, request: ClaimRequest, now: int) -> list[Group]:
        """Take lanes from the order, with the messages to lease. The caller applies the claim, or calls `refuse`."""
        if self._memory.unplaced:
            self._loader.place_all()
        self._taken = []
        groups: list[Group] = []
        room, cull = request.room, CULL_STEP
        named = iter(request.keys) if request.keys is not None else None
        while room > 0:
            lane = self._next(now) if named is None else self._next_of(named, now)
            if lane is None:
                break
            limit = room if request.per_key is None or request.per_key > room else request.per_key
            rare = lane.rare
            if rare is None and lane.grant is None and not lane.due and not lane.expires:
                # The common case of `_choose`.
                ids = lane.ids
                if ids is not None and ids[0] and (len(ids) >= limit or not lane.split):
                    chosen = ids[:limit]
                    if 0 not in chosen:
                        groups.append((lane, chosen))
                        room -= len(chosen)
                        continue
            if lane.grant is not None:
                self._end_expired(lane, request)
            while cull > 0 and 0 < lane.expires <= now and (over := self._cull(lane, request, min(limit, cull), now)):
                cull -= over
            if cull <= 0:
                self._put_back(lane)
                break
            chosen = self._choose(lane, limit, now)
            if chosen:
                groups.append((lane, chosen))
                room -= len(chosen)
            else:
                self._put_back(lane)
        return groups

    def refuse(self) -> None:
        """List the lanes again that a plan has taken, and whose claim was not written."""
        for lane, place in self._taken:
            if lane.listed == TAKEN:
                lane.listed = 0
                self._memory.order.list(lane, place)
        self._taken = []

    def _put_back(self, lane: LiveLane) -> None:
        """Place a lane that has nothing to deliver now."""
        lane.listed = 0
        if lane.grant is None:
            self._memory.place(lane)

    # ---- the order

    def _next(self, now: int) -> LiveLane | None:
        """Return the ready lane with the oldest head, in memory or at rest, and take it."""
        memory = self._memory
        order, lanes = memory.order, memory.lanes
        arrived = order.arrived
        if self._is_something_over(now):
            self._list_what_is_over(now)
        while True:
            ready = order.ready
            if ready and (not arrived or ready[0][0] < arrived[0][0]):
                head, from_heap = ready[0], True
            elif arrived:
                head, from_heap = arrived[0], False
            else:
                head, from_heap = (NEVER, b""), False
            if order.ready_rest.next < head[0]:
                self._load_ready(head[0])
                continue
            if head[0] == NEVER:
                return None
            if from_heap:
                heappop(ready)
            else:
                arrived.popleft()
            lane = lanes.get(head[1])
            if lane is None or lane.listed != head[0]:
                continue
            self._taken.append((lane, head[0]))
            lane.listed = TAKEN
            order.front = head[0]
            return lane

    def _next_of(self, keys: Iterator[bytes], now: int) -> LiveLane | None:
        """Return the next of the named lanes that may be claimed, and take it."""
        self._loader.require_snapshot()
        for key in keys:
            lane = self._loader.lane(key)
            if lane.listed == TAKEN or (lane.grant is not None and lane.grant.deadline > now):
                continue
            if not (lane.ids or lane.rare or lane.split):
                continue
            self._taken.append((lane, lane.listed))
            lane.listed = TAKEN
            return lane
        return None

    def _load_ready(self, upto: int) -> None:
        self._loader.require_snapshot()
        cursor = self._memory.order.ready_rest
        self._loader.fill_heads(resting.take(self._db, resting.READY, cursor, upto, LOADED_TOGETHER))
        self._loader.place_all()

    def _is_something_over(self, now: int) -> bool:
        order = self._memory.order
        return bool(
            (order.delays and order.delays[0][0] <= now)
            or (order.ends and order.ends[0][0] <= now)
            or order.delayed_rest.next <= now
            or order.leased_rest.next <= now
        )

    def _list_what_is_over(self, now: int) -> None:
        """List the lanes whose delays or leases have ended behind all that arrived before."""
        order, loader = self._memory.order, self._loader
        for statement, cursor in ((resting.DELAYED, order.delayed_rest), (resting.LEASED, order.leased_rest)):
            while cursor.next <= now:
                loader.require_snapshot()
                loader.fill_heads(self._rested(statement, cursor, now))
        loader.place_all()
        memory = self._memory
        while order.delays and order.delays[0][0] <= now:
            due, key = heappop(order.delays)
            lane = memory.lanes.get(key)
            if lane is not None and lane.due == due and lane.grant is None and not lane.listed:
                self._list_last(lane)
        while order.ends and order.ends[0][0] <= now:
            grant = heappop(order.ends)[2]
            for lane in grant.lanes:
                if (
                    lane.grant is grant
                    and not lane.listed
                    and (lane.ids or lane.rare or lane.split)
                    and memory.lanes.get(lane.key) is lane
                ):
                    self._list_last(lane)

    def _rested(self, statement: str, cursor: RestCursor, now: int) -> list[bytes]:
        return resting.take(self._db, statement, cursor, now, LOADED_TOGETHER)

    def _list_last(self, lane: LiveLane) -> None:
        memory = self._memory
        if lane.rare is not None and lane.rare.hold is not None:
            return
        memory.order.serial += 1
        memory.order.list(lane, place_of_retry(memory.order.serial, memory.top))

    # ---- a lane's messages

    def _end_expired(self, lane: LiveLane, request: ClaimRequest) -> None:
        """End an expired lease by an entry of its own, so that the lane is free when its messages are chosen."""
        self._loader.require_snapshot()
        grant = lane.grant
        if grant is not None:
            mark = kinds.OVER_SUSPECT if request.suspects else kinds.OVER
            self._append(kinds.RELEASE, [(lane, [])], token=grant.token, holder=mark, data=encode_keys([lane.key]))

    def _choose(self, lane: LiveLane, limit: int, now: int) -> list[int]:
        """Return the messages of a free lane that may be delivered together."""
        loader, rare = self._loader, lane.rare
        if lane.due > now or (rare is not None and rare.hold is not None):
            return []
        if rare is not None and rare.front:
            some = rare.front[:limit]
            if some[0][0] <= rare.solo:
                return [some[0][1]]
            return self._until_due([i for _, i in some], [seq for seq, _ in some], lane, now)
        while True:
            window = lane.ids or []
            chosen = [i for i in window if i][:limit] if 0 in window[:limit] else window[:limit]
            if len(chosen) == limit or not lane.split:
                break
            if not loader.extend(lane, limit - len(chosen)):
                raise NeedsTransactionError  # only a snapshot that is behind finds a newer row
        if rare is None or not chosen:
            return chosen
        first = lane.first + window.index(chosen[0])
        if first <= rare.solo:
            return chosen[:1]
        seqs = [lane.first + at for at, i in enumerate(window) if i][: len(chosen)]
        return self._until_due(chosen, seqs, lane, now)

    def _until_due(self, chosen: list[int], seqs: Sequence[int], lane: LiveLane, now: int) -> list[int]:
        """Return the messages before the first one that is delayed, whose successors must wait for it."""
        memory = self._memory
        unknown = [i for i, seq in zip(chosen, seqs, strict=True) if memory.due_of(lane, i, seq) is None]
        if unknown:
            self._loader.read_dues(lane, unknown)
        for at, (i, seq) in enumerate(zip(chosen, seqs, strict=True)):
            if (memory.due_of(lane, i, seq) or 0) > now:
                return chosen[:at]
        return chosen

    def _cull(self, lane: LiveLane, request: ClaimRequest, most: int, now: int) -> int:
        """Resolve expired messages among the next ones of a free lane. Return how many there were."""
        loader = self._loader
        loader.require_snapshot()
        while lane.split and sum(1 for i in lane.ids or () if i) < most:
            loader.extend(lane, most)
        spared = lane.rare.redriven if lane.rare is not None else ()
        window = [i for i in lane.ids or () if i and i not in spared]
        times = loader.log.times(window)
        over = [i for i in window[:most] if 0 < (times.get(i, (None, None))[1] or NEVER) <= now]
        if over:
            if request.dead_letters:
                dead.bury(self._db, lane.key, [(lane.seq_of(i), i) for i in over], now, "expired", None)
            self._append(kinds.EXPIRE, [(lane, over)], holder=kinds.DEAD if request.dead_letters else None)
        if not lane.split:
            gone = set(over)
            lane.expires = min((end for i in window if i not in gone and (end := times.get(i, (None, None))[1])), default=0)
        return len(over)
