"""The one iterator of the order of ready lanes, and the plan of a claim.

The batch rule: take the oldest ready lane that nobody holds, with as many of its messages as fit. Repeat while there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..._config import QueueConfig
from ..commit.tx import SECOND, Tx
from ..lane import entries as kinds
from ..lane.entries import NEVER, encode_groups, encode_holder
from ..lane.live_lane import TAKEN, LiveLane
from ..lane.memory import M_BODY, M_OPTS, Group, MessageRow
from ..lane.order import place_of_retry
from ..tables import resting, trouble
from . import ending, expiring, history, retries
from .leases import KEY, Claimed, Request, Row
from .loading import NeedsTransactionError
from .message_opts import row_of

if TYPE_CHECKING:
    from .shard_lanes import ShardLanes

LOADED_TOGETHER: Final = 32
"""How many lanes at rest are loaded at once, in the order of their index."""
ENDED_STEP: Final = 512
"""How many ended delays and leases one claim handles. The rest is left to the next one."""
CULL_STEP: Final = 200
"""How many messages, expired or out of attempts, one claim removes. The rest is left to the next one."""
SIZED_TOGETHER: Final = 1_000
"""How many messages of a claim that is limited in bytes are planned before their sizes are read."""
ALONE_MAX: Final = 16
"""A claim of more messages is a transaction: its cost does not matter, and lanes at rest need it."""
Fill = Callable[["ShardLanes", Claimed, list[Group]], None]


def _plain(lane: LiveLane, most: int) -> list[int] | None:
    """Return the messages to lease of a lane of which nothing else must be considered: the common case. None: it is another."""
    ids = lane.ids
    if ids is None or lane.rare is not None or lane.grant is not None or lane.due or lane.expires:
        return None
    if len(ids) > most:
        ids = ids[:most]
    elif lane.split and len(ids) < most:
        return None
    return None if 0 in ids else ids


class Claiming:
    """Plans claims on one shard."""

    def __init__(self, store: ShardLanes) -> None:
        self._store = store
        self._db = store.db
        self._loader = store.loader
        self._memory = store.memory
        self._taken: list[LiveLane] = []
        self._tx: Tx | None = None
        self.cut_short = False
        """Whether the last plan left work that is bounded to the next claim."""

    def plan(self, request: Request, now: int, config: QueueConfig, tx: Tx | None) -> list[Group]:
        """Take lanes from the order, with the messages to lease. The caller applies the claim, or calls `refuse`.

        Args:
            config: the queue's settings.
            tx: None: the claim is a single statement, so nothing else may be written.
        """
        if self._memory.unplaced:
            self._loader.place_all()
        self._taken, self._tx, self.cut_short = [], tx, False
        groups: list[Group] = []
        passed: list[LiveLane] = []
        room, cull, bytes_left = request.room, CULL_STEP, request.bytes_max
        bounded = request.arrived_to is not None
        sized = unsized = 0
        if self._is_something_over(now):
            self._list_what_is_over(now)
        named = iter(self._in_order(request.keys)) if request.keys is not None else None
        in_order = named is None and not bounded
        while room > 0:
            if bytes_left is not None and unsized >= SIZED_TOGETHER:
                bytes_left = self._fit(groups, sized, bytes_left)
                sized, unsized = len(groups), 0
                if bytes_left <= 0:
                    break
            if in_order:
                least = 1 if bytes_left is None else max(1, room - SIZED_TOGETHER)
                left = self._take_arrived(room, least, request.per_key or room, groups)
                if left < room:
                    unsized += room - left
                    room = left
                    continue
            lane = self._next() if named is None else self._next_of(named, now)
            if lane is None:
                break
            limit = room if request.per_key is None or request.per_key > room else request.per_key
            if not bounded and (plain := _plain(lane, limit)) is not None:
                groups.append((lane, plain))
                room -= len(plain)
                unsized += len(plain)
                continue
            if lane.grant is not None:
                expiring.expire(self._require_tx(), lane)
            chosen = []
            while cull > 0:
                while cull > 0 and 0 < lane.expires <= now and (over := self._cull(lane, min(limit, cull), now)):
                    cull -= over
                chosen = self._choose(lane, limit, now) if cull > 0 else []
                given_up = self._first_given_up(lane, chosen, config) if chosen else None
                if given_up is None:
                    break
                if chosen[0] != given_up:
                    chosen = chosen[: chosen.index(given_up)]
                    break
                cull -= 1
                self._give_up(lane, given_up)  # later messages take its place, and some of them may have expired
            if cull <= 0:
                self.cut_short = True
                self._put_back(lane)
                break
            if chosen and request.arrived_to is not None:
                chosen = [i for i in chosen if i <= request.arrived_to]
                if not chosen:
                    passed.append(lane)  # it keeps its place, and is listed again at the end
                    continue
            if chosen:
                groups.append((lane, chosen))
                room -= len(chosen)
                unsized += len(chosen)
            else:
                self._put_back(lane)
        if bytes_left is not None and unsized:
            self._fit(groups, sized, bytes_left)
        if passed:
            self._list_again(passed)
        return groups

    def _take_arrived(self, room: int, least: int, limit: int, groups: list[Group]) -> int:
        """Take plain lanes whose heads wait since their arrival, in one pass. Return the room that is left.

        Args:
            least: stop once there is less room than this.
        """
        order, lanes, taken = self._memory.order, self._memory.lanes, self._taken
        keys, places = order.arrived, order.arrived_at
        others = min(order.ready[0][0] if order.ready else NEVER, order.ready_rest.next)
        while room >= least and places:
            place = places[0]
            if place >= others:
                break
            lane = lanes.get(keys[0])
            if lane is None or lane.listed != place:
                places.popleft()
                keys.popleft()
                continue
            chosen = _plain(lane, limit if limit < room else room)
            if chosen is None:
                break
            places.popleft()
            keys.popleft()
            lane.listed = -place
            taken.append(lane)
            order.front = place
            groups.append((lane, chosen))
            room -= len(chosen)
        return room

    def _take(self, lane: LiveLane) -> None:
        lane.listed = -lane.listed or TAKEN
        self._taken.append(lane)

    def _require_tx(self) -> Tx:
        if self._tx is None:
            raise NeedsTransactionError
        return self._tx

    def refuse(self) -> None:
        """List the lanes again that a plan has taken, and whose claim was not written."""
        for lane in self._taken:
            if lane.listed < 0:
                place, lane.listed = -lane.listed, 0
                if place != -TAKEN:
                    self._memory.order.list(lane, place)
        self._taken = []

    def _list_again(self, lanes: Iterable[LiveLane]) -> None:
        """List lanes of the running plan where they were."""
        for lane in lanes:
            if lane.listed < 0:
                place, lane.listed = -lane.listed, 0
                if place != -TAKEN:
                    self._memory.order.list(lane, place)
                else:
                    self._memory.place(lane)

    def _put_back(self, lane: LiveLane) -> None:
        """Place a lane that has nothing to deliver now."""
        lane.listed = 0
        if lane.grant is None:
            self._memory.place(lane)

    def look_ahead(self) -> None:
        """Find the next lanes at rest in each index, and the next ends of delays and leases."""
        order, lanes = self._memory.order, self._memory.lanes
        order.drop_past(lanes)
        for statement, cursor in (
            (resting.READY, order.ready_rest), (resting.DELAYED, order.delayed_rest), (resting.LEASED, order.leased_rest),
        ):  # fmt: skip
            if cursor.next == -NEVER or not cursor.ahead:
                resting.look_ahead(self._db, statement, cursor)
        for statement, cursor in ((resting.DELAYED, order.delayed_rest), (resting.LEASED, order.leased_rest)):
            while cursor.ahead and (lane := lanes.get(cursor.ahead[0][1])) is not None and not lane.rest:
                cursor.after = cursor.ahead.popleft()  # a loaded lane may differ from its row
                resting.look_ahead(self._db, statement, cursor)

    # ---- the order

    def _next(self) -> LiveLane | None:
        """Return the ready lane with the oldest head, in memory or at rest, and take it."""
        memory = self._memory
        order, lanes = memory.order, memory.lanes
        while True:
            ready, places = order.ready, order.arrived_at
            from_heap = bool(ready and (not places or ready[0][0] < places[0]))
            if from_heap:
                place, key = ready[0]
            elif places:
                place, key = places[0], order.arrived[0]
            else:
                place, key = NEVER, b""
            if order.ready_rest.next < place:
                self._load_ready()
                continue
            if place == NEVER:
                return None
            if from_heap:
                heappop(ready)
            else:
                places.popleft()
                order.arrived.popleft()
            lane = lanes.get(key)
            if lane is None or lane.listed != place:
                continue
            self._take(lane)
            order.front = place
            return lane

    def _in_order(self, keys: Sequence[bytes]) -> list[LiveLane]:
        """Return the lanes of keys in their order of readiness."""
        self._loader.require_snapshot()
        lanes = [self._loader.lane(key) for key in keys]
        lanes.sort(key=lambda lane: lane.listed or NEVER)
        return lanes

    def _next_of(self, lanes: Iterator[LiveLane], now: int) -> LiveLane | None:
        """Return the next of the named lanes that may be claimed, and take it."""
        for lane in lanes:
            if lane.listed < 0 or (lane.grant is not None and lane.grant.deadline > now):
                continue
            if not (lane.ids or lane.rare or lane.split):
                continue
            self._take(lane)
            return lane
        return None

    def _load_ready(self) -> None:
        """Load the next lanes at rest, also those behind the next loaded one: they are needed soon, and are cheaper together."""
        self._loader.require_snapshot()
        cursor = self._memory.order.ready_rest
        self._loader.fill_heads(resting.take(self._db, resting.READY, cursor, NEVER, LOADED_TOGETHER))
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
        """List lanes whose delays or leases have ended behind all that arrived before, in the order of these ends.

        One claim lists a bounded number. The next one goes on.
        """
        memory = self._memory
        order = memory.order
        left = ENDED_STEP
        while left > 0:
            due = order.delays[0][0] if order.delays else NEVER
            end = order.ends[0][0] if order.ends else NEVER
            if self._load_over(min(due, end, now)):
                continue
            if min(due, end) > now:
                return
            left -= 1
            if due < end:
                lane = memory.lanes.get(heappop(order.delays)[1])
                if lane is not None and lane.due == due and lane.grant is None and not lane.listed:
                    self._list_last(lane)
                continue
            grant = heappop(order.ends)[2]
            for lane in grant.lanes:
                if (
                    lane.grant is grant
                    and not lane.listed
                    and (lane.ids or lane.rare or lane.split)
                    and memory.lanes.get(lane.key) is lane
                ):
                    self._list_last(lane)
                    left -= 1
        self.cut_short = True

    def _load_over(self, upto: int) -> bool:
        """Load some lanes at rest whose delays or leases ended by this time. Return False if there are none."""
        order, found = self._memory.order, False
        for statement, cursor in ((resting.DELAYED, order.delayed_rest), (resting.LEASED, order.leased_rest)):
            if cursor.next <= upto:
                found = True
                self._loader.require_snapshot()
                self._loader.fill_heads(resting.take(self._db, statement, cursor, upto, LOADED_TOGETHER))
        if found:
            self._loader.place_all()
        return found

    def _list_last(self, lane: LiveLane) -> None:
        memory = self._memory
        if lane.rare is not None and lane.rare.hold is not None:
            return
        memory.order.serial += 1
        memory.order.list(lane, place_of_retry(memory.order.serial, memory.top))

    # ---- a lane's messages

    def _choose(self, lane: LiveLane, limit: int, now: int) -> list[int]:
        """Return the messages of a free lane that may be delivered together."""
        rare = lane.rare
        if lane.due > now or (rare is not None and rare.hold is not None):
            return []
        front = rare.front[:limit] if rare is not None else []
        if rare is not None and front:
            if front[0][0] <= rare.solo:
                return [front[0][1]]
            redriven = self._until_due([i for _, i in front], [seq for seq, _ in front], lane, now)
            if len(redriven) < len(front) or len(front) == limit:
                return redriven
            return redriven + self._choose_window(lane, limit - len(front), now)
        return self._choose_window(lane, limit, now)

    def _choose_window(self, lane: LiveLane, limit: int, now: int) -> list[int]:
        """Return the messages behind the redriven ones that may be delivered together."""
        loader, rare = self._loader, lane.rare
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

    @staticmethod
    def _first_given_up(lane: LiveLane, chosen: list[int], config: QueueConfig) -> int | None:
        """Return the first of these messages that is out of attempts. None: there is none."""
        tried = lane.rare.tried if lane.rare is not None else {}
        if tried:
            for i in chosen:
                if i in tried and retries.given_up(config, *tried[i][:2]):
                    return i
        return None

    def _give_up(self, lane: LiveLane, arrival: int) -> None:
        tx = self._require_tx()
        known = trouble.of(tx.db, arrival)
        starts, crashes, _ = lane.attempts(arrival)
        reason = retries.why(tx.config, starts, crashes, tx.now - (known.first_at or tx.now), known.error)
        ending.apply_poison(tx, lane, arrival, reason)

    def _fit(self, groups: list[Group], begin: int, left: int) -> int:
        """Drop the messages whose bodies and headers don't fit, of groups from `begin` on. Return the bytes that are left.

        The first message of a claim fits, whatever its size. Bodies are not read, so a claim may plan more than fits.
        """
        sizes = self._sizes([i for _, ids in groups[begin:] for i in ids])
        for n in range(begin, len(groups)):
            lane, ids = groups[n]
            for at, size in enumerate(islice(sizes, len(ids))):
                if size > left and (at or n):
                    if at:
                        groups[n] = lane, ids[:at]
                    over = [lane for lane, _ in groups[n + bool(at) :]]
                    del groups[n + bool(at) :]
                    self._list_again(over)
                    return 0
                left -= size
        return left

    def _sizes(self, arrivals: list[int]) -> Iterator[int]:
        """Yield the sizes of messages. Reads some at a time, because few of a deep lane may fit."""
        for at in range(0, len(arrivals), SIZED_TOGETHER):
            yield from self._loader.log.sizes(arrivals[at : at + SIZED_TOGETHER])

    def _cull(self, lane: LiveLane, most: int, now: int) -> int:
        """Resolve expired messages among the next ones of a free lane. Return how many there were."""
        loader, tx = self._loader, self._require_tx()
        while lane.split and sum(1 for i in lane.ids or () if i) < most:
            loader.extend(lane, most)
        spared = lane.rare.redriven if lane.rare is not None else ()
        window = [i for i in lane.ids or () if i and i not in spared]
        times = loader.log.times(window)
        over = [i for i in window[:most] if 0 < (times.get(i, (None, None))[1] or NEVER) <= now]
        if over:
            ending.expire(tx, lane, over)
        if not lane.split:
            gone = set(over)
            lane.expires = min((end for i in window if i not in gone and (end := times.get(i, (None, None))[1])), default=0)
        return len(over)


def claim(tx: Tx, request: Request) -> Claimed:
    """Lease the oldest ready messages, whole lanes at a time (or `per_key` messages of each)."""
    out, groups = planned(tx, request)
    if groups:
        write(tx, request, out, groups)
    return out


def planned(tx: Tx, request: Request, add: Fill | None = None) -> tuple[Claimed, list[Group]]:
    """Plan a claim, and read its messages. The caller calls `write`, or lets the plan be refused.

    Args:
        add: adds the messages; None: `fill`.
    """
    store = tx.lanes
    claiming = store.claiming
    out = _prepared(store, request, tx.now, tx.config)
    groups = claiming.plan(request, max(tx.now, store.memory.at), tx.config, tx)
    out.more = claiming.cut_short
    if groups:
        (add or fill)(store, out, groups)
        out.token = store.memory.new_token()
    return out, groups


def write(tx: Tx, request: Request, out: Claimed, groups: list[Group]) -> None:
    """Write a planned claim."""
    store = tx.lanes
    holder = encode_holder(request.consumer, request.charge, request.starts)
    store.append(kinds.CLAIM, groups, token=out.token, deadline=out.deadline, holder=holder)
    if request.ack_first:
        ending.keep(tx, [i for _, ids in groups for i in ids], history.ACKED, tx.now)
        store.append(kinds.ACK_FIRST, groups, token=out.token)


def claim_alone(
    store: ShardLanes, request: Request, now: int, config: QueueConfig, old: int = 0
) -> tuple[Claimed, list[Group]] | None:
    """Plan a claim that a single statement writes. None: that is not possible now, and nothing changed.

    Args:
        old: messages up to this one are leased by a transaction.
    """
    memory, claiming = store.memory, store.claiming
    if request.room > ALONE_MAX or request.ack_first or request.endless or request.keys is not None or request.packed:
        return None
    memory.unsure = True  # the plan changes the order
    store.loader.alone = True
    try:
        groups = claiming.plan(request, max(now, memory.at), config, None)
    except NeedsTransactionError:
        groups = []
    store.loader.alone = False
    if not groups or (old and any(ids[0] <= old for _, ids in groups)):
        claiming.refuse()
        memory.unsure = False
        return None
    out = _prepared(store, request, now, config)
    fill(store, out, groups)
    out.token = memory.new_token()
    return out, groups


def write_alone(store: ShardLanes, out: Claimed, groups: list[Group], request: Request, now: int) -> bool:
    """Commit a planned claim. Return False if another process wrote meanwhile: then nothing changed."""
    memory = store.memory
    holder = encode_holder(request.consumer, request.charge, request.starts)
    at = now if now > memory.at else memory.at
    entry = (memory.seen + 1, kinds.CLAIM, at, memory.top, out.token, out.deadline, holder, encode_groups(groups))
    if store.append_alone(entry, groups):
        return True
    memory.unsure = True
    store.claiming.refuse()
    memory.unsure = False
    return False


def _prepared(store: ShardLanes, request: Request, now: int, config: QueueConfig) -> Claimed:
    lease = int(config.lease_seconds * SECOND) if request.lease is None else request.lease
    out = Claimed(store.shard, lease)
    out.deadline = NEVER if request.endless or lease > NEVER - now else now + lease
    return out


def fill(store: ShardLanes, out: Claimed, groups: list[Group]) -> None:
    """Add the messages of the lanes that a claim takes. One whose row is gone belongs to a process that slept past its lease."""
    shard, get = store.shard, store.memory.rows.get
    messages: dict[int, MessageRow] | None = None
    n = 0
    for lane, chosen in groups:
        plain = lane.rare is None
        some: list[Row] = []
        for i in chosen:
            row = get(i)
            if row is None or len(row) == M_BODY:
                if messages is None:
                    messages = store.whole([i for _, ids in groups for i in ids])
                row = messages.get(i)
                if row is None:
                    continue
            some.append(row if plain and row[M_OPTS] is None else _rare_row(lane, row, shard))
        if some:
            if some[0][KEY] != lane.key:  # a parked message, whose row has the key that it was sent to
                some = [_rare_row(lane, row, shard) for row in some]
            out.rows.append(some)
            n += len(some)
    out.messages = n


def _rare_row(lane: LiveLane, row: MessageRow, shard: int) -> Row:
    starts, _, _ = lane.attempts(row[0])
    rare = lane.rare
    suspect = rare is not None and rare.solo >= row[2]
    return row_of(row, lane.key, starts, suspect, shard)
