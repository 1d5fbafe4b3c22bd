"""Which hashes a shard owns, once ranges of them have moved between shards.

A lane is in exactly one shard. During a move, the lanes of the range leave one after the other. So until the move has ended, a
lane belongs to the shard that has its row, and only a lane without a row must ask who may create it: the shard that the range
leaves never does, and the other one does once it is known that the first one has no such lane.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final

import attrs

from ..._values.errors import StrictqError
from ..._values.keys import shared_key

NOWHERE: Final = -1
"""Of a hash that a shard never owned."""
Span = tuple[int, int]
"""The first and the last hash of an interval."""
_LAST: Final = (1 << 64) - 1
_BACK: Final = "-back"
"""The end of the name of a move that brings back what has left."""


@attrs.frozen
class Passage:
    """A move, as one of its two shards knows it.

    Attributes:
        move: names it.
        lo, hi: the range.
        shard: the other one.
        parcels: how many parcels have left; 0 where they arrive.
        cancelled: nothing more leaves, and what has left comes back.
    """

    move: str
    lo: int
    hi: int
    shard: int
    parcels: int = 0
    cancelled: bool = False

    def has(self, hashed: int) -> bool:
        return self.lo <= hashed <= self.hi

    def back(self, shard: int) -> Passage:
        """Return the move that brings everything back, once this one is cancelled.

        Args:
            shard: the other one, for the shard that is to have it.
        """
        return Passage(f"{self.move}{_BACK}", self.lo, self.hi, shard)

    @property
    def is_back(self) -> bool:
        """Whether this brings everything back of a move that was cancelled."""
        return self.move.endswith(_BACK)


class Rerouted(StrictqError):
    """A key has no lane in this shard, and this shard may not create one. Never leaves the store: the call is routed again.

    Attributes:
        key: the stored key.
        origin: the shard that refused.
        shard: the one to ask.
        passage: the move by which the range leaves, if it has not ended. Then `floor` is what new lanes must begin above.
        left: every range that left the shard, and where it went.
    """

    def __init__(
        self, key: bytes, origin: int, shard: int, *, passage: Passage | None, floor: int, left: tuple[tuple[int, int, int], ...]
    ) -> None:
        super().__init__(f"the key's range has moved from shard {origin} to shard {shard}")
        self.key = key
        self.origin = origin
        self.shard = shard
        self.passage = passage
        self.floor = floor
        self.left = left


@attrs.frozen
class Ranges:
    """The ranges of one shard.

    Attributes:
        own: what it owns. During a move this includes the range that leaves, and not the one that arrives.
        left: the ranges that left, the latest last, each with the shard that it went to.
        leaving, arriving: the move that runs.
        keyless_upto: the newest arrival number when keyless messages left. Those up to it may be in another shard.
    """

    own: tuple[Span, ...] = ()
    left: tuple[tuple[int, int, int], ...] = ()
    leaving: Passage | None = None
    arriving: Passage | None = None
    keyless_upto: int = 0

    # ---- who has a lane

    def owns(self, hashed: int) -> bool:
        return any(lo <= hashed <= hi for lo, hi in self.own)

    def may_hold(self, hashed: int) -> bool:
        """Return whether a lane with this hash may have a row here."""
        return self.owns(hashed) or (self.arriving is not None and self.arriving.has(hashed))

    def had(self, hashed: int) -> bool:
        """Return whether a range with this hash has left. It may have come back."""
        return any(lo <= hashed <= hi for lo, hi, _ in self.left)

    def may_create(self, hashed: int) -> bool:
        """Return whether a lane with this hash that has no row may be created here."""
        return self.owns(hashed) and not (self.leaving is not None and self.leaving.has(hashed))

    def reroute(self, key: bytes, origin: int, floor: int) -> Rerouted:
        """Return the error for a key that has no lane here.

        Args:
            origin: this shard's number.
            floor: what new lanes of this shard begin above.
        """
        hashed = hash_of(key)
        if self.leaving is not None and self.leaving.has(hashed):
            return Rerouted(key, origin, self.leaving.shard, passage=self.leaving, floor=floor, left=self.left)
        if self.arriving is not None and self.arriving.has(hashed):
            return Rerouted(key, origin, self.arriving.shard, passage=None, floor=floor, left=())
        shard = next((to for lo, hi, to in reversed(self.left) if lo <= hashed <= hi), NOWHERE)
        return Rerouted(key, origin, shard, passage=None, floor=floor, left=self.left)

    # ---- changes

    def with_range(self, lo: int, hi: int) -> Ranges:
        """Return these with another range."""
        spans = sorted([*self.without(lo, hi).own, (lo, hi)])
        merged: list[Span] = []
        for begin, end in spans:
            if merged and begin == merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((begin, end))
        return attrs.evolve(self, own=tuple(merged))

    def without(self, lo: int, hi: int) -> Ranges:
        """Return these without a range."""
        left: list[Span] = []
        for begin, end in self.own:
            if begin < lo:
                left.append((begin, min(end, lo - 1)))
            if end > hi:
                left.append((max(begin, hi + 1), end))
        return attrs.evolve(self, own=tuple(left))

    def moved_to(self, lo: int, hi: int, shard: int) -> Ranges:
        """Return these after a range has left."""
        kept = tuple(one for one in self.left if one[0] < lo or one[1] > hi)
        return attrs.evolve(self.without(lo, hi), left=(*kept, (lo, hi, shard)))

    # ---- as they are stored

    def to_text(self) -> str:
        return json.dumps(attrs.asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Ranges:
        """Return what `to_text` wrote.

        Raises:
            ValueError, TypeError, KeyError: it did not.
        """
        found: dict[str, Any] = json.loads(text)
        return cls(
            tuple((lo, hi) for lo, hi in found["own"]),
            tuple((lo, hi, to) for lo, hi, to in found["left"]),
            None if found["leaving"] is None else Passage(**found["leaving"]),
            None if found["arriving"] is None else Passage(**found["arriving"]),
            int(found["keyless_upto"]),
        )


def completed(found: Sequence[Ranges | None], lanes: Callable[[int], Iterable[int]]) -> list[Ranges]:
    """Return the ranges of all shards, of which some are lost (None).

    A lost shard has the hashes that no other one is known to own. If several are lost, each has those from the hash of one of its
    lanes up to that of the next lane of another one.

    Args:
        lanes: returns the hashes of the lanes of a shard.
    """
    known = {number: one for number, one in enumerate(found) if one is not None}
    lost = {number: Ranges() for number, one in enumerate(found) if one is None}
    for number in lost:
        for other, one in known.items():
            if one.leaving is not None and one.leaving.shard == number:
                lost[number] = attrs.evolve(lost[number], arriving=attrs.evolve(one.leaving, shard=other, parcels=0))
            if one.arriving is not None and one.arriving.shard == number:
                leaving = attrs.evolve(one.arriving, shard=other)
                lost[number] = attrs.evolve(lost[number].with_range(leaving.lo, leaving.hi), leaving=leaving)
    gaps = unowned([*known.values(), *lost.values()])
    at = sorted((hashed, number) for number in lost for hashed in lanes(number)) if len(lost) > 1 else []
    cuts = [(0, at[0][1] if at else number) for number in list(lost)[:1]]
    cuts += [after for before, after in pairwise(at) if before[1] != after[1]]
    for (lo, number), (end, _) in pairwise([*cuts, (_LAST + 1, 0)]):
        for begin, hi in gaps:
            if max(begin, lo) <= min(hi, end - 1):
                lost[number] = lost[number].with_range(max(begin, lo), min(hi, end - 1))
    everything = [(lo, hi, number) for number, one in sorted({**known, **lost}.items()) for lo, hi in one.own]
    for number, one in lost.items():
        lost[number] = attrs.evolve(one, left=tuple(span for span in everything if span[2] != number))
    return [one for _, one in sorted({**known, **lost}.items())]


def unowned(shards: Sequence[Ranges]) -> list[Span]:
    """Return the intervals that none of these shards owns."""
    found: list[Span] = []
    expected = 0
    for lo, hi in sorted(span for one in shards for span in one.own):
        if lo > expected:
            found.append((expected, lo - 1))
        expected = max(expected, hi + 1)
    return found if expected > _LAST else [*found, (expected, _LAST)]


def hash_of(key: bytes) -> int:
    """Return the hash that chooses the shard of a lane. A parked keyless message stays with the lane that it was sent to."""
    return _hash_key()(shared_key(key))


@cache
def _hash_key() -> Callable[[bytes], int]:
    from ..._values.hashing import hash_key  # imported late: it loads OpenSSL, which a queue of one shard does not need

    return hash_key
