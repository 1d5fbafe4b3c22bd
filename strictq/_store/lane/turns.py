"""The order of ready lanes if keys have tenants: tenants take turns, and each one's oldest lane comes first.

A turn goes to the tenant with the lowest virtual time. It grows with each message that the tenant gets, by the inverse of its
weight, so tenants with much to do get messages in proportion to their weights, and one with little to do is served at once. A
tenant that had nothing to do begins at the time of the last turn: nothing is saved up.

Lanes before a mark are sidelined: while a tenant has fresh ones, these get one message in ten. Nothing is rewritten for that: the
mark is a place in the order, and each tenant has two lists, one on each side of it. A queue without tenants that sidelines is one
with a single tenant.

Each lane that is ready is listed here or at rest, as in `order`. Entries are dropped lazily.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from ..._values.tenants import TenantRules
from .entries import NEVER
from .live_lane import LiveLane, messages_of_tenants

_STALE_MIN: Final = 4_096
_MOVED_SINGLY: Final = 64
"""Of more lanes that a mark sidelines at once, the lists are built anew."""
_STEPS_OF_MARK: Final = 64
"""A mark that moves with time moves so often in the age at which lanes are sidelined."""
FRESH_FOR_EACH_OLD: Final = 9
"""How many fresh messages a tenant gets for each sidelined one, while it has both."""
_ENTRIES_MIN: Final = 64
TENANTS_MAX: Final = 100_000
"""Of more tenants, those with nothing to do are forgotten. They lose nothing but their place."""


class RestCursor:
    """How far an index of lanes at rest was read.

    Attributes:
        after: lanes up to this (value, key) were read.
        ahead: (value, key) of the next ones. Never rows: they may be written before they are used.
        next: no lane at rest that is to be read has a lower value.
    """

    __slots__ = ("after", "ahead", "next")

    def __init__(self) -> None:
        self.after: tuple[int, bytes] = (-NEVER, b"")
        self.ahead: deque[tuple[int, bytes]] = deque()
        self.next = -NEVER

    def lower(self, value: int) -> None:
        """Let a lane be read that was evicted. What was read ahead may lack it."""
        self.after = min(self.after, (value, b""))
        self.next = min(self.next, value)
        self.ahead.clear()


class ReadyLanes:
    """Ready lanes of one tenant: its fresh ones, or its sidelined ones.

    Attributes:
        ready: a heap of (place, key) of the loaded ones.
        rest: how far those at rest were read.
        front: the place that was served last, or of the first one.
    """

    __slots__ = ("front", "ready", "rest")

    def __init__(self, ready: list[tuple[int, bytes]] | None = None, rest: RestCursor | None = None, front: int = 0) -> None:
        """List some lanes, or none.

        Args:
            rest: None: no lane is at rest.
        """
        self.ready = [] if ready is None else ready
        if rest is None:
            rest = RestCursor()
            rest.after, rest.next = (NEVER, b""), NEVER
        self.rest = rest
        self.front = front

    @property
    def may_have_some(self) -> bool:
        """Return whether a ready lane may be listed here or at rest."""
        return bool(self.ready) or self.rest.next < NEVER

    def add(self, place: int, key: bytes) -> None:
        """List a loaded lane."""
        if not self.ready:
            self.front = place
        heappush(self.ready, (place, key))

    def drop_stale(self, lanes: dict[bytes, LiveLane]) -> None:
        """Forget entries that are not valid any more."""
        self.ready = list({one for one in self.ready if (lane := lanes.get(one[1])) is not None and lane.listed == one[0]})
        heapify(self.ready)


class Tenant:
    """One tenant.

    Attributes:
        fresh: its ready lanes from the mark on. `old`: those before it; None: there never were any.
        mark: the place that divides them.
        owed: fresh messages that it got while old ones waited, less FRESH_FOR_EACH_OLD for each old one.
        time: its virtual time. `turn`: its valid entry in the list of turns; None: it has nothing to do, as far as is known.
        blocked: the number of its entry among the blocked ones, because it is throttled and takes no turns; 0: it is not.
        weight: its share by these `rules`.
    """

    __slots__ = ("blocked", "fresh", "mark", "name", "old", "owed", "rules", "time", "turn", "weight")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.fresh = ReadyLanes()
        self.old: ReadyLanes | None = None
        self.mark = 0
        self.owed = 0
        self.time = 0.0
        self.turn: tuple[float, int] | None = None
        self.blocked = 0
        self.rules: TenantRules | None = None
        self.weight = 1.0

    @property
    def sides(self) -> tuple[ReadyLanes, ...]:
        """Return its lists of ready lanes."""
        return (self.fresh,) if self.old is None else (self.fresh, self.old)

    @property
    def may_have_some(self) -> bool:
        """Return whether it may have a ready lane."""
        return self.fresh.may_have_some or (self.old is not None and self.old.may_have_some)

    @property
    def listed(self) -> int:
        """Return how many entries its lists have, valid or not."""
        return len(self.fresh.ready) + (0 if self.old is None else len(self.old.ready))

    def side_of(self, place: int) -> ReadyLanes:
        """Return the list that a lane of a place belongs to."""
        return self.fresh if place >= self.mark else self._sidelined()

    def _sidelined(self) -> ReadyLanes:
        if self.old is None:
            self.old = ReadyLanes()
        return self.old

    def next_side(self) -> ReadyLanes:
        """Return the list whose first lane comes next. The caller has looked for the lanes at rest of both."""
        old = self.old
        if old is None or not old.may_have_some:
            self.owed = 0
            return self.fresh
        if not self.fresh.may_have_some:
            self.owed = 0
            return old
        return old if self.owed >= FRESH_FOR_EACH_OLD else self.fresh

    def permitted(self, place: int, messages: int, room: int) -> int:
        """Return how many messages of a lane may be taken: of an old one, while fresh ones wait, its share of the claim.

        Args:
            room: how many more messages the claim takes.
        """
        if place >= self.mark or not self.fresh.may_have_some:
            return messages
        return max(1, min(messages, max(self.owed, room) // (FRESH_FOR_EACH_OLD + 1)))

    def note_taken(self, place: int, messages: int) -> None:
        """Count what was taken of a lane."""
        if place < self.mark:
            if self.fresh.may_have_some:
                self.owed -= FRESH_FOR_EACH_OLD * messages
        elif self.old is not None and self.old.may_have_some:
            self.owed += messages

    def sideline(self, mark: int) -> None:
        """Let lanes before a place be old ones. Lanes at rest are looked for again where that is needed."""
        if mark < self.mark:
            ready = sorted(one for side in self.sides for one in side.ready)
            self.fresh, self.old = ReadyLanes(ready, RestCursor(), self.fresh.front), None
        fresh, ready, rest = self.fresh, self.fresh.ready, self.fresh.rest
        for _ in range(_MOVED_SINGLY):
            if not ready or ready[0][0] >= mark:
                break
            self._sidelined().add(*heappop(ready))
        else:  # a mark that moves far
            old = self._sidelined()
            old.ready += [one for one in ready if one[0] < mark]
            heapify(old.ready)
            fresh.ready = [one for one in ready if one[0] >= mark]
            heapify(fresh.ready)
        if rest.next < mark:
            later = self._sidelined().rest
            if later.next >= NEVER:
                later.after = rest.after  # all before that were read
            later.ahead.clear()
            later.next = min(later.next, rest.next)
            while rest.ahead and rest.ahead[0][0] < mark:
                rest.ahead.popleft()
            rest.after = max(rest.after, (mark, b""))
            rest.next = rest.ahead[0][0] if rest.ahead else mark
        self.mark = mark


class TenantTurns:
    """The tenants of one shard, in memory and at rest.

    Attributes:
        rules: the limits of tenants, and what ends a tenant's name in a key.
        found: the tenants with lanes at rest are known.
        listed: grows with each lane that is listed.
        mark: the place before which lanes are sidelined. 0: none are.
        heap: (time, serial, tenant) of those that take turns. Valid is an entry that equals the tenant's `turn`.
        serial: the newest number of an entry.
    """

    __slots__ = (
        "_blocked", "_marked", "_separator", "_swept", "clock", "found", "heap", "listed", "mark", "rules", "serial", "tenants",
    )  # fmt: skip

    def __init__(self, rules: TenantRules) -> None:
        self.rules = rules
        self._separator = rules.separator
        self._blocked: list[tuple[int, int, Tenant]] = []
        self.tenants: dict[bytes, Tenant] = {}
        self.clock = 0.0
        self.found = False
        self.listed = 0
        self.mark = 0
        self._marked = 0
        """The time of the mark."""
        self.heap: list[tuple[float, int, Tenant]] = []
        self.serial = 0
        self._swept = 0
        """What `listed` was when stale entries were looked for."""

    def named(self, name: bytes) -> Tenant:
        """Return a tenant."""
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = Tenant(name)
        return tenant

    def of(self, lane: LiveLane) -> Tenant:
        """Return the tenant of a lane."""
        name = lane.tenant or lane.tenant_by(self._separator)
        return self.tenants.get(name) or self.named(name)

    def list(self, place: int, lane: LiveLane) -> None:
        """List a ready lane."""
        tenant = self.of(lane)
        (tenant.fresh if place >= tenant.mark else tenant.side_of(place)).add(place, lane.key)
        self.listed += 1
        if tenant.turn is None and not tenant.blocked:
            self._begin(tenant)

    def rests(self, place: int, lane: LiveLane) -> None:
        """Let an evicted lane be found at rest."""
        tenant = self.of(lane)
        tenant.side_of(place).rest.lower(place)
        if tenant.turn is None and not tenant.blocked:
            self._begin(tenant)

    def look(self, name: bytes) -> None:
        """Look for lanes of a tenant at rest, from the first one on."""
        tenant = self.named(name)
        if tenant.mark:
            tenant.sideline(0)
        tenant.fresh.rest = RestCursor()
        if tenant.turn is None:
            self._begin(tenant)

    def _begin(self, tenant: Tenant) -> None:
        tenant.time = max(tenant.time, self.clock)
        self._queue(tenant)

    def _queue(self, tenant: Tenant) -> None:
        self.serial += 1
        tenant.turn = (tenant.time, self.serial)
        heappush(self.heap, (*tenant.turn, tenant))

    def first(self) -> Tenant | None:
        """Return the tenant whose turn it is. None: no tenant has anything to do."""
        heap = self.heap
        while heap:
            time, serial, tenant = heap[0]
            if tenant.turn == (time, serial):
                if tenant.mark != self.mark:
                    tenant.sideline(self.mark)
                return tenant
            heappop(heap)
        return None

    def begin(self, name: bytes, lanes: ReadyLanes) -> None:
        """Let a tenant take turns that had all messages until now, so that its lanes were listed by arrival alone."""
        tenant = self.named(name)
        tenant.fresh, tenant.old, tenant.mark = lanes, None, 0
        self.found = True
        self.listed += len(lanes.ready) + 1
        if tenant.may_have_some and tenant.turn is None and not tenant.blocked:
            self._begin(tenant)

    def end(self, name: bytes | None) -> ReadyLanes:
        """Return the lanes of the tenant that has all ready ones, none of them sidelined. No tenant takes turns any more.

        Args:
            name: None: no lane is ready.
        """
        for _, _, other in self.heap:
            other.turn = None
        self.heap = []
        if name is None:
            return ReadyLanes()
        tenant = self.named(name)
        lanes, tenant.fresh, tenant.turn, tenant.owed = tenant.fresh, ReadyLanes(), None, 0
        return lanes

    def divides(self, name: bytes) -> bool:
        """Return whether a tenant may have sidelined lanes."""
        tenant = self.named(name)
        if tenant.mark != self.mark:
            tenant.sideline(self.mark)
        return tenant.old is not None and tenant.old.may_have_some

    def adopt(self, rules: TenantRules) -> None:
        """Take turns by other limits. No tenant is throttled until it is found to be."""
        self.rules = rules
        self.unblock(NEVER)

    def has_nothing(self, tenant: Tenant) -> None:
        """Take a tenant from the turns until a lane of it is listed."""
        tenant.turn = None
        if len(self.tenants) > TENANTS_MAX and not tenant.listed and not tenant.blocked:
            del self.tenants[tenant.name]

    def block(self, tenant: Tenant, until: int) -> None:
        """Let a throttled tenant take no turns until a time of the boot clock. Its lanes cost nothing meanwhile."""
        tenant.turn = None
        self.serial += 1
        tenant.blocked = self.serial
        if len(self._blocked) > 2 * len(self.tenants) + _ENTRIES_MIN:
            self._blocked = [one for one in self._blocked if one[2].blocked == one[1]]
            heapify(self._blocked)
        heappush(self._blocked, (until, self.serial, tenant))

    def unblock(self, now: int) -> None:
        """Let tenants take turns again whose time has come."""
        while self.blocked_until <= now and self._blocked:
            self._unblock(heappop(self._blocked)[2])

    def _unblock(self, tenant: Tenant) -> None:
        tenant.blocked = 0
        if tenant.may_have_some:
            self._begin(tenant)

    def slot_is_free(self, name: bytes) -> bool:
        """Note that a lease of a tenant has ended. Return whether that lets another lane of it be leased."""
        if self.rules.of(name).concurrency is None:
            return False
        tenant = self.named(name)
        if tenant.blocked:
            self._unblock(tenant)
        return tenant.turn is not None or not self.found

    @property
    def has_blocked(self) -> bool:
        """Return whether a tenant may be throttled."""
        return self.blocked_until < NEVER or bool(self._blocked)

    @property
    def blocked_until(self) -> int:
        """When, by the boot clock, the next blocked tenant may take turns again; NEVER: none will by itself."""
        blocked = self._blocked
        while blocked and blocked[0][2].blocked != blocked[0][1]:
            heappop(blocked)
        return blocked[0][0] if blocked else NEVER

    def charge_sole(self, name: bytes, messages: int, last: int) -> None:
        """Note that the tenant that has all messages gets some, of the last of its lanes so many."""
        if self._separator:
            tenant = self.tenants.get(name) or self.named(name)
            weight = self.weight_of(tenant)
            self.clock = max(tenant.time, self.clock) + (messages - last) / weight
            tenant.time = self.clock + last / weight

    def weight_of(self, tenant: Tenant) -> float:
        """Return a tenant's share, relative to those of the others."""
        if tenant.rules is not self.rules:
            tenant.rules, tenant.weight = self.rules, self.rules.of(tenant.name).weight
        return tenant.weight

    def charge(self, tenant: Tenant, messages: int) -> None:
        """Note that a tenant gets messages."""
        if not self._separator:
            return  # it is the only one
        self.clock = max(self.clock, tenant.time)
        tenant.time += messages / self.weight_of(tenant)
        if tenant.turn is not None:
            self._queue(tenant)

    def charge_all(self, groups: Sequence[tuple[LiveLane, Sequence[int]]]) -> None:
        """Note that the tenants of lanes get messages, as if one lane after the other were charged."""
        if not self._separator:
            return
        got, last = messages_of_tenants(groups, self._separator)
        for name, n in got.items():
            tenant = self.tenants.get(name) or self.named(name)
            weight = self.weight_of(tenant)
            self.clock = max(self.clock, tenant.time + (n - last[name]) / weight)
            tenant.time += n / weight
            if tenant.turn is not None:
                self._queue(tenant)

    def mark_time(self, now: int) -> int | None:
        """Return the time before whose messages lanes are to be sidelined, if it is far enough from that of the mark."""
        before = self.rules.sidelined_before(now)
        return None if 0 <= before - self._marked <= self.rules.sideline // _STEPS_OF_MARK else before

    def move_mark(self, place: int, before: int) -> None:
        """Sideline lanes before a place.

        Args:
            before: the time that it stands for.
        """
        self.mark, self._marked = place, before

    def uncharge(self, charged: dict[Tenant, float]) -> None:
        """Set tenants back to the times that they had before a plan."""
        for tenant, time in reversed(charged.items()) if self._separator else ():
            tenant.time = time
            if tenant.turn is not None:
                self._queue(tenant)

    def drop_stale(self, lanes: dict[bytes, LiveLane]) -> None:
        """Forget entries that are not valid any more, once they are most of all."""
        if len(self.heap) > 4 * len(self.tenants) + _STALE_MIN:
            self.heap = [one for one in self.heap if one[2].turn == one[:2]]
            heapify(self.heap)
        if self.listed - self._swept < _STALE_MIN:
            return
        # Entries of evicted lanes, and in a process that claims nothing, of lanes that others have claimed.
        if sum(tenant.listed for tenant in self.tenants.values()) < 2 * len(lanes) + _STALE_MIN:
            self._swept = self.listed
            return
        for tenant in self.tenants.values():
            for side in tenant.sides:
                side.drop_stale(lanes)
            if tenant.turn is not None and not tenant.may_have_some:
                tenant.turn = None
        if len(self.tenants) > TENANTS_MAX:
            self.tenants = {name: one for name, one in self.tenants.items() if one.turn is not None or one.blocked}
        self._swept = self.listed
