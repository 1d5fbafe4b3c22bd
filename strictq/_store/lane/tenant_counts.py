"""How many unresolved messages each tenant has in a shard, and which of its lanes are leased.

Messages are counted as the totals are: what entries and messages up to the mark add up to is stored, in the table `tenant_depth`,
and what later ones change is kept here until the mark is written again. While all unresolved messages are of one tenant, the
messages of a call are counted together. Leases are those of the rows at rest, changed by entries, from the first question on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from ..._values.tenants import tenant_of
from . import entries as kinds
from .entries import Entry
from .live_lane import LiveLane

_RESOLVES: Final = frozenset((kinds.ACK, kinds.ACK_FIRST, kinds.REJECT, kinds.DROP, kinds.PURGE, kinds.EXPIRE))
COUNTED: Final = _RESOLVES | {kinds.REDRIVE}
"""Entries that change how many unresolved messages there are."""


class TenantCounts:
    """The counts of one shard.

    Attributes:
        separator: what ends a tenant's name in a key.
        sole: the tenant of all unresolved messages. None: several have some, or none has.
        stored: depths at the mark, of tenants that were looked for since.
        leased: by tenant and key, the deadlines of leased lanes, loaded or not. None: they are not followed.
    """

    __slots__ = ("_changes", "_of_sole", "_prefix", "leased", "separator", "sole", "stored")

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
        self._changes: dict[bytes, int] = {}
        self.stored: dict[bytes, int] = {}
        self._of_sole = 0
        """What has changed since the mark while `sole` had all messages."""
        self.sole: bytes | None = None
        self._prefix = b""
        if len(names) == 1:
            self._let_be_sole(names[0])

    @property
    def changes(self) -> dict[bytes, int]:
        """What has changed since the mark."""
        if self.sole is not None and self._of_sole:
            self._changes[self.sole] = self._changes.get(self.sole, 0) + self._of_sole
            self._of_sole = 0
        return self._changes

    def _let_be_sole(self, name: bytes | None) -> None:
        _ = self.changes  # they are those of the one before
        self.sole = name
        self._prefix = b"s" + name + self.separator if name else b""

    def _are_of_sole(self, keys: Sequence[bytes]) -> bool:
        """Return whether lanes are those of `sole`. Most keys are not looked at one by one."""
        prefix, separator = self._prefix, self.separator
        if len(keys) == 1:
            if keys[0].startswith(prefix) if prefix else separator not in keys[0]:
                return True
        elif prefix:
            if min(keys).startswith(prefix) and max(keys).startswith(prefix):
                return True  # what lies between two strings begins as they do
        elif separator not in b"".join(keys):
            return True
        return all(tenant_of(key, separator) == self.sole for key in keys)

    def arrived(self, lanes: Sequence[LiveLane], keys: Sequence[bytes], pending: int) -> None:
        """Count messages that arrived.

        Args:
            lanes, keys: of each message.
            pending: how many messages were unresolved before.
        """
        if self.sole is None or not self._are_of_sole(keys):
            self._let_be_sole(None if pending else tenant_of(keys[0], self.separator))
            if self.sole is not None and not self._are_of_sole(keys):
                self._let_be_sole(None)
        if self.sole is not None:
            self._of_sole += len(keys)
            return
        changes = self._changes
        for name, n in Counter(map(self._name_of, lanes)).items():
            changes[name] = changes.get(name, 0) + n

    def _name_of(self, lane: LiveLane) -> bytes:
        """Return the tenant of a lane. The name that turns keep at it may be of a separator that was set before, or since."""
        return tenant_of(lane.key, self.separator)

    def add(self, key: bytes, messages: int) -> None:
        """Count messages of a lane that became unresolved, or resolved (negative)."""
        name = tenant_of(key, self.separator)
        if name != self.sole and self.sole is not None:
            self._let_be_sole(None)
        self._changes[name] = self._changes.get(name, 0) + messages

    def apply(self, entry: Entry, groups: Sequence[tuple[LiveLane, list[int]]]) -> None:
        """Count what an entry behind the mark changes. Its groups are whole: no lane's row is ahead of the mark."""
        kind = entry[1]
        if kind in kinds.OF_DEAD and entry[kinds.HOLDER] == kinds.DEAD:
            return  # dead letters are not unresolved
        if kind in _RESOLVES:
            if self.sole is not None:
                self._of_sole -= len(entry[7] or b"") // 8
                return
            changes = self._changes
            for lane, ids in groups:
                name = self._name_of(lane)
                changes[name] = changes.get(name, 0) - len(ids)
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
        for lane in lanes:
            if not lane.rest:
                self.note(lane)

    def note(self, lane: LiveLane) -> bytes | None:
        """Note whether a lane is leased. Return its tenant if its lease has ended, or ends earlier than before."""
        leased = self.leased
        if leased is None:
            return None
        name, grant = self._name_of(lane), lane.grant
        held = leased.get(name)
        if grant is not None:
            if held is None:
                held = leased[name] = {}
            before = held.get(lane.key, 0)
            held[lane.key] = grant.deadline
            return name if grant.deadline < before else None
        if held is None or held.pop(lane.key, None) is None:
            return None
        if not held:
            del leased[name]
        return name

    def in_flight(self, tenant: bytes, now: int) -> list[int]:
        """Return the deadlines of a tenant's leases that are not over. They must be followed."""
        assert self.leased is not None
        return [deadline for deadline in self.leased.get(tenant, {}).values() if deadline > now]
