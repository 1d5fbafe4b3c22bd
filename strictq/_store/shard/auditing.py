"""A memory that notes which entries of the journal can't have been written: each must fit to the state before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..lane import entries as kinds
from ..lane.entries import TOKEN_BITS, Entry
from ..lane.live_lane import LiveLane
from ..lane.memory import Group, ShardMemory
from ..lane.totals import RunningTotals, StoredMark
from .loading import KINDS_WITHOUT_LANES

_OF_LEASE: Final = frozenset((
    kinds.MORE, kinds.ACK, kinds.ACK_FIRST, kinds.NACK, kinds.DEFER, kinds.REJECT, kinds.DROP, kinds.START, kinds.EXTEND,
    kinds.RELEASE,
))  # fmt: skip
"""Kinds of entries whose token, if they have one, is that of the lanes' leases."""
_RESOLVES: Final = frozenset((kinds.ACK, kinds.REJECT, kinds.DROP, kinds.PURGE, kinds.EXPIRE))


class AuditedMemory(ShardMemory):
    """The memory of a check.

    Attributes:
        findings: what is wrong with entries.
    """

    def clear(self, mark: StoredMark, totals: RunningTotals) -> None:
        super().clear(mark, totals)
        self.findings: list[str] = []
        self._last_claim = 0
        self._last_top = 0

    def apply(self, entry: Entry, groups: Sequence[Group]) -> None:
        where = f"row {entry[0]} of its journal"
        self.findings += [f"{where} {problem}" for problem in self._problems(entry, groups)]
        super().apply(entry, groups)

    def ack_one(self, entry: Entry) -> bool:  # noqa: ARG002 - the base defines the signature
        """Leave every entry to `apply`, which compares it with the state before it."""
        return False

    def _problems(self, entry: Entry, groups: Sequence[Group]) -> Iterator[str]:
        _, kind, at, top, token, _, _, data = entry
        if at < self.at:
            yield "is older than the row before it"
        if top < self._last_top:
            yield "has an older newest message than the row before it"
        self._last_top = max(top, self._last_top)
        if not data and kind not in KINDS_WITHOUT_LANES:
            yield "names no message and no key"
        if kind == kinds.CLAIM:
            if token <= self._last_claim:
                yield "has a token that was issued before"
            if token >> TOKEN_BITS > self.mark.epoch:
                yield "has a token of a later epoch"
            self._last_claim = max(token, self._last_claim)
        for lane, ids in groups:
            problem = self._problem(kind, token, lane, ids)
            if problem is not None:
                yield f"{problem} of lane {lane.key!r}"

    @staticmethod
    def _problem(kind: int, token: int, lane: LiveLane, ids: list[int]) -> str | None:
        if kind == kinds.CLAIM:
            return None if _unresolved(lane)[: len(ids)] == ids else "claims other messages than the first ones"
        if kind in _OF_LEASE and token:
            if lane.grant is None or lane.grant.token != token:
                return "has another token than the lease"
            if kind == kinds.MORE:
                n = len(lane.leased())
                return None if _unresolved(lane)[n : n + len(ids)] == ids else "claims other messages than the next ones"
            return None if {i for _, i in lane.leased()}.issuperset(ids) else "names messages that are not in the lease"
        if kind in _RESOLVES:
            waiting = [i for _, i in lane.rare.waiting] if lane.rare is not None else []
            known = {*_unresolved(lane), *(lane.new or ()), *waiting}
            return None if known.issuperset(ids) else "resolves messages that are not unresolved"
        return None


def _unresolved(lane: LiveLane) -> list[int]:
    """Return the loaded unresolved messages of a lane, in the order in which they are delivered."""
    front = [i for _, i in lane.rare.front] if lane.rare is not None else []
    return [*front, *filter(None, lane.ids or ())]


__all__ = ["AuditedMemory"]
