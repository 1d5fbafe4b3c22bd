"""How many unresolved messages each tenant has in a shard, and which of its lanes are leased.

Messages are counted as the totals are: what entries and messages up to the mark add up to is stored, in the table `tenant_depth`,
and what later ones change is kept here until the mark is written again. Leases are those of the rows at rest, changed by entries,
from the first question on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from ..._values.tenants import tenant_of
from . import entries as kinds
from .entries import Entry
from .live_lane import LiveLane, messages_of_tenants, tenants_of

_RESOLVES: Final = frozenset((kinds.ACK, kinds.ACK_FIRST, kinds.REJECT, kinds.DROP, kinds.PURGE, kinds.EXPIRE))
COUNTED: Final = _RESOLVES | {kinds.REDRIVE}
"""Entries that change how many unresolved messages there are."""


class TenantCounts:
    """The counts of one shard.

    Attributes:
        changes: what has changed since the mark, by tenant.
        separator: what ends a tenant's name in a key.
        sole: the tenant of all unresolved messages. None: several have some, or none has.
        stored: depths at the mark, of tenants that were looked for since.
        leased: by tenant and key, the deadlines of leased lanes, loaded or not. None: they are not followed.
    """

    __slots__ = ("changes", "leased", "separator", "sole", "stored")

    def __init__(self, separator: bytes, names: Sequence[bytes] = ()) -> None:
        """Begin at a mark.

        Args:
            names: as for `forget_depths`.
        """
        self.separator = separator
        self.leased: dict[bytes, dict[bytes, int]] | None = None
        self.forget_depths(names)

    def forget_depths(self, names: Sequence[bytes]) -> None:
        """Begin at a mark that was written.

        Args:
            names: the tenants that have messages then, at least two of them if there are more.
        """
        self.changes: Counter[bytes] = Counter()
        self.stored: dict[bytes, int] = {}
        self.sole: bytes | None = names[0] if len(names) == 1 else None

    def arrived(self, lanes: Sequence[LiveLane], pending: int) -> None:
        """Count messages that arrived.

        Args:
            lanes: of each message.
            pending: how many messages were unresolved before.
        """
        names = tenants_of(lanes, self.separator)
        if not pending:
            self.sole = names[0]
        sole = self.sole
        if sole is not None and names.count(sole) == len(names):
            self.changes[sole] += len(names)
            return
        self.sole = None
        self.changes.update(names)

    def add(self, key: bytes, messages: int) -> None:
        """Count messages of a lane that became unresolved, or resolved (negative)."""
        name = tenant_of(key, self.separator)
        if name != self.sole:
            self.sole = None
        self.changes[name] += messages

    def apply(self, entry: Entry, groups: Sequence[tuple[LiveLane, list[int]]]) -> None:
        """Count what an entry behind the mark changes. Its groups are whole: no lane's row is ahead of the mark."""
        kind = entry[1]
        if kind in kinds.OF_DEAD and entry[kinds.HOLDER] == kinds.DEAD:
            return  # dead letters are not unresolved
        if kind in _RESOLVES:
            if self.sole is not None:
                self.changes[self.sole] -= len(entry[7] or b"") // 8
                return
            self.changes.subtract(messages_of_tenants(groups, self.separator)[0])
        elif kind == kinds.REDRIVE:
            for lane, pairs in groups:
                self.add(lane.key, len(pairs) // 2)

    def follow_leases(self, at_rest: Iterable[tuple[bytes, int]], lanes: Iterable[LiveLane]) -> None:
        """Follow which lanes are leased from now on.

        Args:
            at_rest: key and deadline of those that are leased by their rows.
            lanes: the loaded ones, which may differ from their rows.
        """
        self.leased = {}
        for key, deadline in at_rest:
            self.leased.setdefault(tenant_of(key, self.separator), {})[key] = deadline
        self.note(lane for lane in lanes if not lane.rest)

    def note(self, lanes: Iterable[LiveLane]) -> set[bytes]:
        """Note which lanes are leased. Return the tenants of those whose lease has ended, or ends earlier than before."""
        leased, freed = self.leased, set[bytes]()
        if leased is None:
            return freed
        for lane in lanes:
            name, key, grant = lane.tenant, lane.key, lane.grant
            if name is None:
                name = lane.tenant_by(self.separator)
            held = leased.get(name)
            if grant is not None:
                if held is None:
                    held = leased[name] = {}
                if grant.deadline < held.get(key, 0):
                    freed.add(name)
                held[key] = grant.deadline
            elif held is not None and held.pop(key, None) is not None:
                freed.add(name)
                if not held:
                    del leased[name]
        return freed

    def in_flight(self, tenant: bytes, now: int) -> list[int]:
        """Return the deadlines of a tenant's leases that are not over. They must be followed."""
        assert self.leased is not None
        return [deadline for deadline in self.leased.get(tenant, {}).values() if deadline > now]
