"""The states of a queue in the segments at a target: those that can be restored, and those that are lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .._values.errors import ReplicaGap
from .segment_files import SegmentFiles


class Point(NamedTuple):
    """A state of the queue: the segments from its base to its last one.

    Attributes:
        n: the number of the last segment, which identifies the state.
        base: the number of the first segment of the base; -1: unknown.
        x, wall: queue time and wall time, microseconds. For a segment whose header can't be read: just after the state before.
        lost: the number of a missing or damaged segment that the state needs; None: it can be restored.
    """

    n: int
    base: int
    x: int
    wall: int
    lost: int | None = None


def states(target: SegmentFiles) -> Iterator[Point]:
    """Yield the states in ascending order, according to the segments' headers.

    A missing segment, or one whose header can't be read, stands for a state that is lost, because it may have completed one. The
    states behind it are lost up to the next base.
    """
    floor = target.floor()
    base = -1
    begun: int | None = None
    expected: int | None = None
    lost: int | None = None
    x = wall = -1
    for n, header in target.headers([n for n in target.numbers() if n >= floor]):
        hole = expected if expected not in (None, n) else n if isinstance(header, ReplicaGap) else None
        expected = n + 1
        if hole is not None:
            base, begun, x, wall = -1, None, x + 1, wall + 1
            lost = hole if lost is None else lost
            yield Point(hole, base, x, wall, lost)
        if isinstance(header, ReplicaGap):
            continue
        if header.first == n:
            begun = n
        if header.more:
            continue
        x, wall = header.x, header.wall
        whole = begun == header.first
        if whole and header.is_base:
            base, lost = header.base, None
        elif lost is None and (base < 0 or not whole):
            lost = header.base if base < 0 else header.first
        yield Point(n, header.base, x, wall, lost)


def points(target: SegmentFiles) -> list[Point]:
    """Return the states that can be restored."""
    return [state for state in states(target) if state.lost is None]
