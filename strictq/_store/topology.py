"""The hash range of each shard.

A key belongs to the shard whose range contains its hash. Ranges are stored, not computed from the number of shards, so that a
shard can later be split or moved without moving every key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from .disk import layout

SHARDS_MAX: Final = 256
HASHES: Final = 1 << 64


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


class Topology:
    """The ranges of all shards, in the order of their numbers, which is the order of their hashes.

    Raises:
        ValueError: the ranges have a gap or an overlap, are not in order, or two shards name the same file.
    """

    __slots__ = ("_starts", "ranges")

    def __init__(self, ranges: Sequence[Range]) -> None:
        if problem := problem_of(ranges):
            raise ValueError(problem)
        self.ranges = tuple(ranges)
        self._starts = [part.lo for part in ranges]

    @classmethod
    def even(cls, shards: int) -> Topology:
        """Cut the whole hash space into equal ranges."""
        cuts = [i * HASHES // shards for i in range(shards + 1)]
        return cls([Range(i, layout.shard_file(i), cuts[i], cuts[i + 1] - 1) for i in range(shards)])

    def owner(self, hashed: int) -> int:
        """Return the number of the shard that holds the keys with this hash."""
        return self.ranges[bisect_right(self._starts, hashed) - 1].shard

    def __len__(self) -> int:
        return len(self.ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)


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
        if part.lo != expected or part.hi < part.lo:
            return f"the topology does not cover the hash space: shard {number} begins at {part.lo:016x}, not {expected:016x}"
        expected = part.hi + 1
    if expected != HASHES:
        return f"the topology does not cover the hash space: it ends at {expected - 1:016x}"
    return None
