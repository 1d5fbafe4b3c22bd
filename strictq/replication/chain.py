"""What a target holds: where its chain of segments ends, and which states of the queue can be made of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .._errors import ReplicaGap, SchemaMismatch
from .segment import SegmentHeader, decode_header, hash_of
from .target import ShipTarget


class ChainHead(NamedTuple):
    """Where a chain ends.

    Attributes:
        n: the number of its last segment.
        hash: of that; "" if it is damaged.
        complete: the last segment of the newest cut that is all there; None: there is none, or it is damaged.
    """

    n: int
    hash: str
    complete: SegmentHeader | None


class Point(NamedTuple):
    """A state of the queue that can be restored: the segments from its base to its own last one.

    Attributes:
        n: the number of the last segment, which names it.
        base: the number of the first segment of the base.
        x, wall: queue time and wall time, microseconds.
    """

    n: int
    base: int
    x: int
    wall: int


def head_of(target: ShipTarget) -> ChainHead | None:
    """Where the chain in a target ends; None: there is no segment.

    Raises:
        TargetUnavailable: it can't be read.
        SchemaMismatch: its last segment is of a newer strictq.
    """
    numbers = target.numbers()
    if not numbers:
        return None
    last = numbers[-1]
    try:
        data = target.get(last)
        header = decode_header(data, last, target.key)
    except ReplicaGap:
        return ChainHead(last, "", None)
    try:
        complete = header if not header.more else _before(target, header)
    except ReplicaGap:
        complete = None
    return ChainHead(last, hash_of(data), complete)


def _before(target: ShipTarget, header: SegmentHeader) -> SegmentHeader | None:
    """The last segment of the newest cut before an incomplete one."""
    while header.more:
        if not header.first:
            return None
        n = header.first - 1
        header = decode_header(target.get(n), n, target.key)
    return header


def bases(target: ShipTarget, newest: SegmentHeader) -> Iterator[SegmentHeader]:
    """The first segment of each cut that has all of the queue, the newest first, as far as they are there."""
    n = newest.base
    floor = target.floor()
    while n >= floor and n >= 0:
        try:
            header = target.header(n)
        except (ReplicaGap, SchemaMismatch):
            return
        yield header
        if header.older_base >= n:
            return
        n = header.older_base


def points(target: ShipTarget, *, since: int | None = None) -> Iterator[Point]:
    """The states that can be restored, by what the segments say of themselves, ascending.

    Args:
        since: the number of the first segment of the base to begin with; None: the oldest one.
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
            base = -1  # a hole: what follows needs another base
        expected = n + 1
        if header.first == n:
            begun = n
        if begun != header.first or header.more:
            continue
        if header.is_base:
            base = header.first
        if base >= 0:
            yield Point(n, base, header.x, header.wall)
