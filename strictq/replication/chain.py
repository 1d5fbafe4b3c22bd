"""The restorable states of the segments at a target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .._errors import ReplicaGap
from .segment_files import SegmentFiles


class Point(NamedTuple):
    """A restorable state of the queue: the segments from its base to its last one.

    Attributes:
        n: the number of the last segment, which identifies the state.
        base: the number of the first segment of the base.
        x, wall: queue time and wall time, microseconds.
    """

    n: int
    base: int
    x: int
    wall: int


def points(target: SegmentFiles, *, since: int | None = None) -> Iterator[Point]:
    """Yield the restorable states in ascending order, according to the segments' headers.

    Args:
        since: the number of the first segment of the first base; None: the oldest one.
    """
    numbers = target.numbers()
    floor = target.floor()
    base = -1
    begun: int | None = None
    expected: int | None = None
    first = floor if since is None else since
    for n, header in target.headers([n for n in numbers if n >= first]):
        if isinstance(header, ReplicaGap):
            base, begun, expected = -1, None, None
            continue
        if n != expected:
            base = -1  # after a missing segment, the chain needs another base
        expected = n + 1
        if header.first == n:
            begun = n
        if begun != header.first or header.more:
            continue
        if header.is_base:
            base = header.first
        if base >= 0:
            yield Point(n, base, header.x, header.wall)
