"""The one iterator of the order of ready lanes, and the plan of a claim.

The batch rule: take the oldest ready lane that nobody holds, with as many of its messages as fit. Repeat while there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heapreplace
from itertools import islice
from typing import Any, Final, Protocol

import apsw

from ..._values import retries
from ..._values.config import QueueConfig
from ..._values.tenants import COMMON, TenantLimit, TenantRules
from ..commit.tx import SECOND
from ..lane import entries as kinds
from ..lane.entries import NEVER, encode_groups, encode_holder
from ..lane.live_lane import TAKEN, LiveLane, messages_of_tenants, tenants_of
from ..lane.memory import M_BODY, M_EXPIRES, M_ID, M_OPTS, Group, MessageRow
from ..lane.order import place_of_arrival, place_of_retry
from ..lane.turns import ReadyLanes, Tenant, TenantTurns
from ..tables import resting, trouble, turn_rows
from . import ending, expiring, history
from .leases import KEY, Claimed, Request, Row
from .loading import NeedsTransactionError
from .messages import row_of
from .permits import Permits
from .shard_lanes import ShardLanes, Tx

LOADED_TOGETHER: Final = 32
"""How many lanes at rest are loaded at once, in the order of their index."""
LOADED_OF_TENANT: Final = 4
"""The same for one of many tenants, which may get only a few of the messages of a claim."""
ENDED_STEP: Final = 512
"""How many ended delays and leases one claim handles. The rest is left to the next one."""
CULL_STEP: Final = 200
"""How many messages, expired or out of attempts, one claim removes. The rest is left to the next one."""
SLOTS_LOOK: Final = 20_000
"""The microseconds after which a tenant is looked at again whose leases in other shards may have ended."""
SIZED_TOGETHER: Final = 1_000
"""How many messages of a claim that is limited in bytes are planned before their sizes are read."""
ALONE_MAX: Final = 16
"""A claim of more messages is a transaction: its cost does not matter, and lanes at rest need it."""
Fill = Callable[[ShardLanes, Claimed, list[Group]], None]


class Commit(Protocol):
    """The transaction of a claim."""

    @property
    def committed(self) -> bool:
        """Whether it is committed."""
        ...


Brought = tuple[Any, Commit, Claimed]
"""The Shard of a claim, its transaction, and its leases."""


class Attempt:
    """An attempted claim by a single statement.

    Attributes:
        brought: gets the claim just before it is committed, for a caller that is interrupted.
    """

    __slots__ = ("brought", "committed", "request")

    def __init__(self, request: Request, brought: list[Brought]) -> None:
        self.request = request
        self.brought = brought
        self.committed = False


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


def _at_rest(turns: TenantTurns, tenant: Tenant) -> tuple[str, bytes | None]:
    """Return the statement that reads a tenant's lanes at rest, and the name that it takes."""
    return (resting.OF_TENANT, tenant.name) if turns.rules.separator else (resting.READY, None)


def _below(tenant: Tenant, side: ReadyLanes) -> int:
    """Return the place before which the lanes of a list are."""
    return NEVER if side is tenant.fresh else tenant.mark


def of(store: ShardLanes) -> Claiming:
    """Return the planner of claims of these lanes."""
    found: Claiming | None = store.planner
    if found is None:
        found = store.planner = Claiming(store)
    return found


def outlook(store: ShardLanes, now: int) -> tuple[bool, int]:
    """Return whether a lane may be ready, and a time before which no lease, no delay and no throttling of a tenant ends.

    Memory agrees with the file.
    """
    of(store).look_ahead(now)
    order = store.memory.order
    at = min(order.next_end, order.next_due)
    if order.turns is not None and order.turns.blocked_until < NEVER:
        at = min(at, now + max(1, order.turns.blocked_until - store.rates.now()))
    return order.may_have_ready, at


class Claiming:
    """Plans claims on one shard."""

    def __init__(self, store: ShardLanes) -> None:
        self._store = store
        self._db = store.db
        self._loader = store.loader
        self._memory = store.memory
        self._taken: list[LiveLane] = []
        self._now = 0
        """The time of the running plan. `_elsewhere`: by tenant, the keys in flight in other shards when it began."""
        self._elsewhere: Mapping[bytes, int] = {}
        self._leased: Counter[bytes] = Counter()
        """By tenant, the lanes that the running plan leases. `_full`: tenants that may lease no more because of these."""
        self._full: list[bytes] = []
        self._charged: dict[Tenant, float] = {}
        """The tenants that the running plan charged, and their times before."""
        self._owed: list[tuple[Tenant, int]] = []
        """What these tenants owed their sidelined lanes before the running plan."""
        self._in_flight: dict[bytes, list[int]] = {}
        """By tenant, the deadlines of its leases when the running plan looked for them."""
        self.permits = Permits(store.rates)
        self._tx: Tx | None = None
        self.cut_short = False
        """Whether the last plan left work that is bounded to the next claim."""

    def plan(self, request: Request, now: int, config: QueueConfig, tx: Tx | None) -> list[Group]:
        """Take lanes from the order, with the messages to lease. The caller applies the claim, or calls `refuse`.

        Args:
            config: the queue's settings.
            tx: None: the claim is a single statement, so nothing else may be written.
        """
        self._taken, self._tx, self.cut_short = [], tx, False  # first: a plan that fails in its next steps is refused, too
        self._charged, self._owed = {}, []
        if self._memory.unplaced:
            self._loader.place_all()
        tenancy = self._memory.order.tenancy
        if tenancy is not None:
            self._return_permits()  # of a plan that was interrupted, or rolled back
            self._leased, self._in_flight = Counter(), {}
            if self._memory.order.turns is not None or tenancy.rules.sidelines:
                self._settle_turns(tenancy, now)
        turns = self._memory.order.turns
        if turns is not None and turns.blocked_until < NEVER:
            turns.unblock(self._store.rates.now())
        self._now, self._elsewhere = now, request.elsewhere or {}
        groups: list[Group] = []
        passed: list[LiveLane] = []
        room, cull, bytes_left = request.room, CULL_STEP, request.bytes_max
        bounded = request.arrived_to is not None
        sized = unsized = 0
        drained = False
        if self._is_something_over(now):
            self._list_what_is_over(now)
        named = iter(self._in_order(request.keys, request.placed)) if request.keys is not None else None
        in_order = named is None and not bounded and turns is None
        in_turn = None if named is not None or bounded or bytes_left is not None else turns
        if in_turn is not None and not in_turn.rules.separator:
            in_turn = None
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
            elif in_turn is not None:
                left = self._take_turns(in_turn, room, request.per_key or room, groups)
                if left < room:
                    room = left
                    continue
            lane = self._next() if named is None else self._next_of(named, now)
            if lane is None:
                drained = named is None
                break
            limit = room if request.per_key is None or request.per_key > room else request.per_key
            if turns is not None and named is None:
                limit = self._permitted(turns, lane, limit, room)
            if not bounded and (plain := _plain(lane, limit)) is not None:
                groups.append((lane, plain))
                if turns is not None:
                    self._charge(turns, lane, len(plain))
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
                if turns is not None:
                    self._charge(turns, lane, len(chosen))
                groups.append((lane, chosen))
                room -= len(chosen)
                unsized += len(chosen)
            else:
                self._put_back(lane)
        if bytes_left is not None and unsized:
            self._fit(groups, sized, bytes_left)
        if passed:
            self._list_again(passed)
        if turns is not None:
            self._uncharge()
            if self.permits:
                self._take_permits(turns.rules, groups)
            if drained and not turns.rules.sidelines and not turns.has_blocked and turns.first() is None:
                self._memory.order.end_turns(None)
        elif tenancy is not None and named is None and self._must_take_turns(tenancy.rules, groups, bounded):
            self.refuse()
            self._memory.order.begin_turns(self._memory.sole_tenant, self._memory.lanes)
            return self.plan(request, now, config, tx)
        return groups

    def _must_take_turns(self, rules: TenantRules, groups: list[Group], bounded: bool) -> bool:
        """Return whether a plan by arrival leaves ready messages of several tenants, or takes more than is permitted."""
        contended = not bounded and self._memory.sole_tenant is None and self._first_listed() < NEVER
        return contended or not self._permit_all(rules, groups)

    def _permit_all(self, rules: TenantRules, groups: list[Group]) -> bool:
        """Take what a plan by arrival needs of its tenants' limits. Return False if one of them permits less."""
        if not rules.limits_deliveries or not groups:
            return True
        keys = Counter(tenants_of([lane for lane, _ in groups], rules.separator)) if rules.limits_keys else None
        messages = messages_of_tenants(groups, rules.separator)[0]
        for name in messages:
            rule = rules.of(name)
            if self._is_withheld(name, rule, 0 if keys is None else keys[name]):
                return False
            if rule.receive_rate is not None:
                self.permits.ask(name, rule)
        return not self.permits.take(messages)

    def _is_withheld(self, tenant: bytes, rule: TenantLimit, keys: int) -> bool:
        """Return whether a tenant gets nothing, because it is paused, or may not lease as many keys as the plan leases then."""
        return rule.paused or (
            rule.concurrency is not None and self._slots_full_until(tenant, rule.concurrency, keys) is not None
        )

    def _settle_turns(self, tenancy: TenantTurns, now: int) -> None:
        """Let tenants take turns only while that is another order than that of arrival: it costs more for each lane."""
        memory, rules = self._memory, tenancy.rules
        order, sole = memory.order, memory.sole_tenant
        if (before := tenancy.mark_time(now)) is not None:
            self._loader.require_snapshot()
            tenancy.move_mark(place_of_arrival(self._loader.log.sent_before(before, memory.top) + 1), before)
        if order.turns is None:
            if (sole is None and rules.sidelines) or (tenancy.mark and self._first_listed() < tenancy.mark):
                order.begin_turns(sole, memory.lanes)
        elif sole is not None and not rules.withholds(sole) and not tenancy.divides(sole):
            order.end_turns(sole)

    def _first_listed(self) -> int:
        """Return the place of the first ready lane, while no tenant takes turns; NEVER: there is none."""
        order, lanes = self._memory.order, self._memory.lanes
        places, ready, rest = order.arrived_at, order.ready, order.ready_rest
        while places and ((lane := lanes.get(order.arrived[0])) is None or lane.listed != places[0]):
            places.popleft()
            order.arrived.popleft()
        while ready and ((lane := lanes.get(ready[0][1])) is None or lane.listed != ready[0][0]):
            heappop(ready)
        if rest.next == -NEVER:
            self._loader.require_snapshot()
            resting.look_ahead(self._db, resting.READY, rest)
        return min(places[0] if places else NEVER, ready[0][0] if ready else NEVER, rest.next)

    def _return_permits(self) -> None:
        """Return what tenants were permitted for a claim that is not written."""
        if self.permits and self.permits.return_all():
            self._unblock_all()

    def keep_permits(self) -> None:
        """Note that the last plan is written."""
        if self._memory.order.tenancy is not None:
            self.permits.keep()

    def _take_permits(self, rules: TenantRules, groups: list[Group]) -> None:
        """Take what the plan leases of the rates. Drop the last messages of tenants whose rates permit less by now."""
        over = self.permits.take(messages_of_tenants(groups, rules.separator)[0])
        for at in range(len(groups) - 1, -1, -1) if over else ():
            lane, ids = groups[at]
            name = lane.tenant_by(rules.separator)
            n = min(over.get(name, 0), len(ids))
            if not n:
                continue
            over[name] -= n
            if n < len(ids):
                groups[at] = lane, ids[:-n]
            else:
                del groups[at]
                self._list_again([lane])

    def _unblock_all(self) -> None:
        """Let tenants take turns that the plan found throttled, perhaps only by what it has returned."""
        turns = self._memory.order.turns
        if turns is not None and turns.blocked_until < NEVER:
            turns.unblock(NEVER - 1)

    def _permitted(self, turns: TenantTurns, lane: LiveLane, limit: int, room: int) -> int:
        """Return how many messages of a lane that was taken its tenant's rate permits. It is not throttled."""
        tenant = turns.of(lane)
        rule = turns.rules.of(tenant.name)
        limit = tenant.permitted(-lane.listed, limit, room)
        return limit if rule.receive_rate is None else min(limit, self.permits.room(tenant.name, rule))

    def _charge(self, turns: TenantTurns, lane: LiveLane, messages: int) -> None:
        """Charge a tenant until the end of the plan. The entry of the claim charges it for good, in every process."""
        tenant = turns.of(lane)
        self.permits.use(tenant.name, messages)
        if tenant.old is not None:
            self._owed.append((tenant, tenant.owed))
            tenant.note_taken(-lane.listed, messages)
        self._charged.setdefault(tenant, tenant.time)
        self._leased[tenant.name] += 1
        turns.charge(tenant, messages)

    def _uncharge(self) -> None:
        turns = self._memory.order.turns
        if turns is not None:
            turns.uncharge(self._charged)
            for name in self._full:
                turns.slot_is_free(name)  # the next look knows when the leases end, or that they were not made
        self._charged, self._full = {}, []

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

    def _take_turns(self, turns: TenantTurns, room: int, limit: int, groups: list[Group]) -> int:
        """Take plain lanes of tenants that nothing is withheld from, in one pass. Return the room that is left.

        It does what the loop of `plan` does, until that must look for lanes at rest, or consider anything else.
        """
        lanes, taken, charged, heap = self._memory.lanes, self._taken, self._charged, turns.heap
        rules, limited = turns.rules, turns.rules.limits_deliveries
        while room > 0 and heap and turns.found:
            _, serial, tenant = heap[0]
            if tenant.turn is None or tenant.turn[1] != serial:
                heappop(heap)
                continue
            side = tenant.fresh
            ready, lane = side.ready, None
            while ready and ((lane := lanes.get(ready[0][1])) is None or lane.listed != ready[0][0]):
                heappop(ready)
            if tenant.old is not None or tenant.mark != turns.mark or lane is None or not ready:
                break
            place = ready[0][0]
            most = limit if limit < room else room
            if limited:
                name, rule = tenant.name, rules.of(tenant.name)
                if self._is_withheld(name, rule, self._leased[name] + 1):
                    break
                if rule.receive_rate is not None:
                    most = min(most, self.permits.room(name, rule))
            chosen = _plain(lane, most) if most and place <= side.rest.next else None
            if chosen is None:
                break
            heappop(ready)
            lane.listed = -place
            taken.append(lane)
            side.front = place
            groups.append((lane, chosen))
            room -= len(chosen)
            if limited:
                self.permits.use(name, len(chosen))
                self._leased[name] += 1
            time = tenant.time
            charged.setdefault(tenant, time)
            turns.clock = max(turns.clock, time)
            turns.serial += 1
            tenant.time = time = time + len(chosen) / turns.weight_of(tenant)
            tenant.turn = time, turns.serial
            heapreplace(heap, (time, turns.serial, tenant))
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
        self._uncharge()
        self._return_permits()
        for tenant, owed in reversed(self._owed):
            tenant.owed = owed
        self._owed = []
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

    def look_ahead(self, now: int) -> None:
        """Find the next lanes at rest in each index, and the next ends of delays and leases."""
        order, lanes = self._memory.order, self._memory.lanes
        order.drop_past(lanes)
        if order.tenancy is not None and (order.turns is not None or order.tenancy.rules.sidelines):
            self._settle_turns(order.tenancy, now)
        if order.turns is not None:
            self._return_permits()  # and forget what their rates permitted then
            order.turns.unblock(self._store.rates.now())
            self._now, self._elsewhere, self._leased, self._in_flight = now, {}, Counter(), {}
            self._first_with_work(order.turns)
        for statement, cursor in (
            *(((resting.READY, order.ready_rest),) if order.turns is None else ()),
            (resting.DELAYED, order.delayed_rest), (resting.LEASED, order.leased_rest),
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
        if order.turns is not None:
            return self._next_in_turn(order.turns)
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

    def _next_in_turn(self, turns: TenantTurns) -> LiveLane | None:
        """Return the oldest ready lane of the tenant whose turn it is, and take it."""
        lanes = self._memory.lanes
        while (tenant := self._first_with_work(turns)) is not None:
            side = tenant.next_side()
            if not side.ready or side.rest.next < side.ready[0][0]:
                self._loader.require_snapshot()
                self._loader.fill_heads(self._take_of_tenant(turns, tenant, side))
                self._loader.place_all()
                continue
            place, key = heappop(side.ready)
            lane = lanes.get(key)
            if lane is not None and lane.listed == place:
                self._take(lane)
                side.front = place
                return lane
        return None

    def _take_of_tenant(self, turns: TenantTurns, tenant: Tenant, side: ReadyLanes) -> list[bytes]:
        """Return the keys of a tenant's next lanes at rest on one side of the mark."""
        statement, name = _at_rest(turns, tenant)
        most = LOADED_TOGETHER if name is None else LOADED_OF_TENANT
        return resting.take(self._db, statement, side.rest, NEVER, most, name, _below(tenant, side))

    def _first_with_work(self, turns: TenantTurns) -> Tenant | None:
        """Return the tenant whose turn it is and that has a ready lane, in memory or at rest. Others leave the turns."""
        if not turns.found:
            self._loader.require_snapshot()
            for name in turn_rows.tenants(self._db) if turns.rules.separator else (COMMON,):
                turns.look(name)
            turns.found = True
        while (tenant := turns.first()) is not None:
            self._find_first(turns, tenant)
            if not tenant.may_have_some:
                turns.has_nothing(tenant)
            elif (until := self._throttled_until(turns, tenant)) is not None:
                turns.block(tenant, until)
            else:
                return tenant
        return None

    def _find_first(self, turns: TenantTurns, tenant: Tenant) -> None:
        """Find the first lanes of a tenant, loaded and at rest, on each side of the mark."""
        lanes = self._memory.lanes
        for side in tenant.sides:
            ready, rest = side.ready, side.rest
            while ready and ((lane := lanes.get(ready[0][1])) is None or lane.listed != ready[0][0]):
                heappop(ready)
            if rest.next < (ready[0][0] if ready else NEVER) and not rest.ahead:
                self._loader.require_snapshot()
                statement, named = _at_rest(turns, tenant)
                resting.look_ahead(self._db, statement, rest, named, _below(tenant, side))

    def first_place(self, name: bytes, now: int) -> int:
        """Return the place of a tenant's first ready lane; NEVER: it has none. Memory agrees with the file."""
        self.look_ahead(now)
        memory, order = self._memory, self._memory.order
        if order.turns is None and memory.sole_tenant is not None:
            return self._first_listed() if name == memory.sole_tenant else NEVER
        if order.turns is None:
            order.begin_turns(None, memory.lanes)
            self.look_ahead(now)
        turns = order.turns
        assert turns is not None
        tenant = turns.tenants.get(name)
        if tenant is None:
            return NEVER
        self._find_first(turns, tenant)
        return min(place for side in tenant.sides for place in (side.rest.next, *(one[0] for one in side.ready[:1])))

    def _throttled_until(self, turns: TenantTurns, tenant: Tenant) -> int | None:
        """Return until when, by the boot clock, a tenant gets nothing; NEVER: until it is changed. None: it gets messages now."""
        limit = turns.rules.of(tenant.name)
        if limit.paused:
            return NEVER
        if (
            limit.concurrency is not None
            and (until := self._slots_full_until(tenant.name, limit.concurrency, self._leased[tenant.name] + 1)) is not None
        ):
            return until
        if limit.receive_rate is None:
            return None
        wait = self.permits.wait(tenant.name, limit)
        return self._store.rates.now() + min(wait, SECOND) if wait else None  # another process may return what it does not use

    def _slots_full_until(self, tenant: bytes, concurrency: int, keys: int) -> int | None:
        """Return until when, by the boot clock, a tenant has no slots for so many keys of the plan. None: it has them."""
        ends = self._in_flight.get(tenant)
        if ends is None:
            counts = self._memory.counts
            ends = self._in_flight[tenant] = [] if counts is None else counts.in_flight(tenant, self._now)
        elsewhere = self._elsewhere.get(tenant, 0)
        if len(ends) + keys + elsewhere <= concurrency:
            return None
        if self._leased[tenant]:
            self._full.append(tenant)
        wait = min(ends, default=NEVER) - self._now
        return self._store.rates.now() + (min(wait, SLOTS_LOOK) if elsewhere else wait)

    def _in_order(self, keys: Sequence[bytes], placed: bool) -> list[LiveLane]:
        """Return the lanes of keys in their order of readiness."""
        loader = self._loader
        loader.require_snapshot()
        if placed:
            loader.fill_heads(keys)
            keys = [key for key in keys if key in self._memory.lanes]
        lanes = [loader.lane(key) for key in keys]
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
        seqs = [first] if len(chosen) == 1 else [lane.first + at for at, i in enumerate(window) if i][: len(chosen)]
        return self._until_due(chosen, seqs, lane, now)

    def _until_due(self, chosen: list[int], seqs: Sequence[int], lane: LiveLane, now: int) -> list[int]:
        """Return the messages before the first one that is delayed, whose successors must wait for it."""
        memory = self._memory
        dues = [memory.due_of(lane, i, seq) for i, seq in zip(chosen, seqs, strict=True)]
        if None in dues:
            self._loader.read_dues(lane, [i for i, due in zip(chosen, dues, strict=True) if due is None])
            dues = [memory.due_of(lane, i, seq) for i, seq in zip(chosen, seqs, strict=True)]
        for at, due in enumerate(dues):
            if (due or 0) > now:
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
    claiming = of(store)
    out = _prepared(store, request, tx.now, tx.config)
    if tx.config.paused:
        return out, []
    groups = claiming.plan(request, max(tx.now, store.memory.at), tx.config, tx)
    out.more = claiming.cut_short
    turns = store.memory.order.turns
    if turns is not None and turns.blocked_until < NEVER:
        out.throttled = max(0, turns.blocked_until - store.rates.now())
    if groups:
        (add or fill)(store, out, groups)
        out.token = store.memory.new_token()
    return out, groups


def write(tx: Tx, request: Request, out: Claimed, groups: list[Group]) -> None:
    """Write a planned claim."""
    store = tx.lanes
    holder = encode_holder(request.consumer, request.charge, request.starts)
    store.append(kinds.CLAIM, groups, token=out.token, deadline=out.deadline, holder=holder)
    of(store).keep_permits()
    if request.charge_all:
        started = [(lane, ids[-1:]) for lane, ids in groups if len(ids) > 1]  # the start of a message is that of all before it
        if started:
            store.append(kinds.START, started, token=out.token)
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
    memory, claiming = store.memory, of(store)
    if request.room > ALONE_MAX or request.ack_first or request.endless or request.keys is not None or request.packed:
        return None
    if request.charge_all and request.room > 1 and request.per_key != 1:
        return None  # the starts may need an entry of their own
    if config.paused:
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
    try:
        if store.append_alone(entry, groups):
            of(store).keep_permits()
            return True
    except apsw.BusyError:  # another process is writing: nothing changed, and the lanes that the plan took are ready
        memory.unsure = True
        of(store).refuse()
        memory.unsure = False
        raise
    memory.unsure = True
    of(store).refuse()
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
            if row is None or row[M_BODY] is None:
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
    if rare is not None and row[M_EXPIRES] is not None and row[M_ID] in rare.redriven:
        row = (*row[:M_EXPIRES], None, *row[M_OPTS:])  # a redrive cleared its TTL
    return row_of(row, lane.key, starts, suspect, shard)
