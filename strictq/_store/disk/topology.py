"""The hash range that each shard was created with, and a map of which shard owns a hash now.

A key belongs to the shard whose range contains its hash. Ranges are stored, not computed from the number of shards, so that a
shard can be split without moving every key. Once ranges have moved, the shards themselves say what they own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from . import layout

SHARDS_MAX: Final = 256
HASHES: Final = 1 << 64
NOTHING: Final = (1, 0)
"""The range of a shard that was added later: it is created without a hash, and ranges move to it."""


class Range(NamedTuple):
    """The hashes of one shard, both ends included, and the file that holds them."""

    shard: int
    file: str
    lo: int
    hi: int

    def owns(self, hashed: int) -> bool:
        """Return whether this shard holds the keys with this hash."""
        return self.lo <= hashed <= self.hi

    @property
    def bounds(self) -> tuple[str, str]:
        """Both ends as they are stored: 16 hex digits each."""
        return f"{self.lo:016x}", f"{self.hi:016x}"


class ShardList:
    """The ranges of all shards, in the order of their numbers, which is the order of their hashes. Shards that were added follow.

    Raises:
        ValueError: the ranges have a gap or an overlap, are not in order, or two shards name the same file.
    """

    __slots__ = ("_starts", "ranges")

    def __init__(self, ranges: Sequence[Range]) -> None:
        if problem := problem_of(ranges):
            raise ValueError(problem)
        self.ranges = tuple(ranges)
        self._starts = [part.lo for part in ranges if part[2:] != NOTHING]

    @classmethod
    def even(cls, shards: int) -> ShardList:
        """Cut the whole hash space into equal ranges."""
        cuts = [i * HASHES // shards for i in range(shards + 1)]
        return cls([Range(i, layout.shard_file(i), cuts[i], cuts[i + 1] - 1) for i in range(shards)])

    def owner(self, hashed: int) -> int:
        """Return the number of the shard that holds the keys with this hash."""
        return self.ranges[bisect_right(self._starts, hashed) - 1].shard

    @property
    def created(self) -> int:
        """The number of shards that the queue was created with."""
        return len(self._starts)

    def with_one_more(self) -> ShardList:
        """Return this with another shard, which owns nothing."""
        number = len(self.ranges)
        return ShardList([*self.ranges, Range(number, layout.shard_file(number), *NOTHING)])

    def __len__(self) -> int:
        return len(self.ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardList) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)


class OwnerMap:
    """Which shard owns a hash, as far as this process knows. A shard that is asked in vain says where the range went."""

    __slots__ = ("_spans",)

    def __init__(self, topology: ShardList) -> None:
        parts = [part for part in topology if part[2:] != NOTHING]
        self._spans = [part.lo for part in parts], [part.shard for part in parts]

    def owner(self, hashed: int) -> int:
        """Return the number of the shard to ask for a hash."""
        starts, owners = self._spans
        return owners[bisect_right(starts, hashed) - 1]

    def assign(self, lo: int, hi: int, shard: int) -> None:
        """Note that a shard owns a range."""
        starts, owners = self._spans
        begin, end = bisect_right(starts, lo) - 1, bisect_right(starts, hi) - 1
        cuts, names = [lo], [shard]
        if starts[begin] < lo:
            cuts.insert(0, starts[begin])
            names.insert(0, owners[begin])
        if hi + 1 < HASHES and (end + 1 == len(starts) or starts[end + 1] != hi + 1):
            cuts.append(hi + 1)
            names.append(owners[end])
        self._spans = [*starts[:begin], *cuts, *starts[end + 1 :]], [*owners[:begin], *names, *owners[end + 1 :]]


def problem_of(ranges: Sequence[Range]) -> str | None:
    """Return what is wrong with these ranges, or None."""
    if not 1 <= len(ranges) <= SHARDS_MAX:
        return f"the topology has {len(ranges)} shards, not 1 to {SHARDS_MAX}"
    expected = 0
    for number, part in enumerate(ranges):
        if part.shard != number:
            return f"the topology has shard {part.shard} where shard {number} belongs"
        if part.file != layout.shard_file(number):
            return f"the topology names the file {part.file!r} for shard {number}"
        if expected == HASHES and part[2:] == NOTHING:
            continue
        if part.lo != expected or part.hi < part.lo:
            return f"the topology does not cover the hash space: shard {number} begins at {part.lo:016x}, not {expected:016x}"
        expected = part.hi + 1
    if expected != HASHES:
        return f"the topology does not cover the hash space: it ends at {expected - 1:016x}"
    return None
