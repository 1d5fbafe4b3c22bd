"""Restore a queue from a target: its newest state, or that of an earlier point in time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from .._platform.clock import MICROSECONDS
from .._store import api
from .._store.api import Replication
from .._values import hints
from .._values.errors import InvalidArgument, QueueNotFound, ReplicaGap, StoreCorrupt, TargetUnavailable
from .._values.findings import ReplicaReport, Restored
from .keys import read_key
from .newest_pages import NewestPages
from .places import files_of, parse
from .replica_home import given_path
from .segment import decode, hash_of
from .segment_files import Reading, SegmentFiles

if TYPE_CHECKING:
    from .._store.api import Rebuild

COLLECTED_PAGES: Final = 16_384
"""So many pages, 64 MiB, are collected before they are written. Segments have many pages in common."""
MARK_SECONDS: Final = 5.0
TRIES: Final = 3
Step = Callable[[int, int], object]


def look(source: str | os.PathLike[str]) -> ReplicaReport:
    """Return the contents of a target, according to the segments' headers.

    Raises:
        InvalidArgument: it is not a target of a queue.
        TargetUnavailable: it can't be read.
    """
    target, identity = _opened(source, None)
    numbers = target.numbers()
    known = list(states(target))
    found = [state for state in known if state.lost is None]
    return ReplicaReport(
        target=str(target),
        queue_id=str(identity["queue_id"]),
        history_id=str(identity.get("history_id", "")),
        segments=len(numbers),
        stored_bytes=target.stored_bytes(numbers),
        points=len(found),
        oldest_at=found[0].wall / MICROSECONDS if found else None,
        newest_at=found[-1].wall / MICROSECONDS if found else None,
        newest=found[-1].n if found else None,
        missing=known[-1].lost if known else None,
    )


def points_of(source: str | os.PathLike[str]) -> list[tuple[int, float]]:
    """Return the restorable states: their numbers, and their times in seconds since 1970."""
    target, _ = _opened(source, None)
    return [(point.n, point.wall / MICROSECONDS) for point in points(target)]


def restore(
    source: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    at: float | datetime | None = None,
    cut: int | None = None,
    alone: bool = False,
    dry_run: bool = False,
    key_file: str | os.PathLike[str] | None = None,
    on_progress: Step | None = None,
) -> Restored:
    """Create a queue from a replica: from its newest state, or from that of a point in time.

    The queue has the messages, key states and settings that its original had then. As after a power cut, timed leases have ended,
    and started attempts are charged. Tokens continue above those of the original. The source is not changed.

    Args:
        source: the target, as passed to `configure_replication`.
        to: the new queue's directory, which must not exist.
        at: restore the newest state that is not later than this: seconds since 1970 or an aware datetime. None: the newest state.
        cut: instead, restore the state with this number, from `strictq replicas TARGET --points`.
        alone: the original is out of service, so the queue may be written to at once. Otherwise, the queue can only be opened
            with read_only=True, until it is put in service.
        dry_run: only find and report the state.
        key_file: the key file that was passed to `configure_replication`, or a copy of it.
        on_progress: called with the number of finished segments and the total.
    Raises:
        InvalidArgument: `to` exists, there is no replica, there is no such state, or `at` is ambiguous; nothing was created.
        ReplicaGap: the state needs a segment that is missing or damaged; nothing was created. The hint names the newest earlier
            state that can be restored.
        TargetUnavailable, StoreFull, StoreCorrupt: nothing was created.
    Source: docs/howto/replication.md
    """
    if at is not None and cut is not None:
        raise InvalidArgument("restore takes at or cut, not both")
    wanted = None if at is None else _microseconds(at)
    if cut is not None and (isinstance(cut, bool) or not isinstance(cut, int)):
        raise InvalidArgument(f"cut must be the number of a segment, not {cut!r}")
    path = given_path(to, "to must be the path of the new queue")
    if os.path.lexists(os.path.expanduser(to)) or os.path.lexists(path):
        raise InvalidArgument(f"{path} exists; nothing was created", hint=hints.NEW_PATH)
    target, identity = _opened(source, b"" if key_file is None else read_key(key_file))
    if target.holds(path):
        raise InvalidArgument(f"{path} is inside the replica; nothing was created", hint=hints.NEW_PATH)
    for left in reversed(range(TRIES)):
        with target.reading() as reading:
            known = list(states(target))
            point = _choose(target, known, wanted, cut)
            numbers = [n for n in target.numbers() if point.base <= n <= point.n]
            reading.begin(point.base)
            try:
                return _made(target, identity, path, point, numbers, alone, dry_run, reading, on_progress)
            except ReplicaGap as e:
                # A target that can't be written to has no restore markers, so old segments may be deleted meanwhile.
                if not left or target.floor() <= point.base:
                    raise _gap(Exception.__str__(e), e.segment, target, known) from e
                if wanted is not None or cut is not None:
                    raise ReplicaGap(Exception.__str__(e), e.segment, hint=hints.AGAIN_FROM_NEWER) from e
    raise AssertionError


def _opened(source: str | os.PathLike[str], key: bytes | None) -> tuple[SegmentFiles, dict[str, object]]:
    """Return the target and its identity. With key None, no segment is verified."""
    target = files_of(parse(source), key or b"")
    try:
        identity = target.identity()
    except TargetUnavailable as e:
        if isinstance(e.__cause__, FileNotFoundError):
            raise QueueNotFound(Exception.__str__(e), hint=hints.TARGET_IS) from e
        raise
    if identity is None:
        raise InvalidArgument(f"{target} is not a replica: no queue ships to it", hint=hints.TARGET_IS)
    if key is not None:
        target.require_key(identity)
    return target, identity


def _microseconds(at: float | datetime) -> int:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidArgument("at must have a time zone", hint=hints.AWARE_DATETIME)
        return round(at.timestamp() * MICROSECONDS)
    if isinstance(at, bool) or not isinstance(at, int | float) or not abs(at) < 1e12:
        raise InvalidArgument(f"at must be seconds since 1970 or an aware datetime, not {at!r}")
    return round(at * MICROSECONDS)


def _choose(target: SegmentFiles, known: list[Point], wanted: int | None, cut: int | None) -> Point:
    """Return the requested state.

    Raises:
        ReplicaGap: it is lost, or there is no state.
        InvalidArgument: there is no such state.
    """
    if not known:
        raise ReplicaGap(f"{target} has no complete state of the queue", 0, hint=hints.POINTS_ARE.of(target=target))
    if cut is not None:
        point = next((each for each in reversed(known) if each.n <= cut), None)
        if point is None or (point.n != cut and point.lost is None):
            raise InvalidArgument(f"there is no state with the number {cut}", hint=hints.POINTS_ARE.of(target=target))
    elif wanted is not None:
        point = _at(target, known, wanted)
    else:
        point = known[-1]
    if point.lost is not None:
        which = "the newest state" if cut is wanted is None else "this state"
        raise _gap(f"{which} needs segment {point.lost}, which is missing or damaged", point.lost, target, known)
    return point


def _gap(why: str, segment: int, target: SegmentFiles, known: list[Point]) -> ReplicaGap:
    """Return the error for a segment that is missing or damaged. Its hint names the newest state that does not need it."""
    before = [state for state in known if state.lost is None and state.n < segment]
    hint = hints.CUT_BEFORE.of(cut=before[-1].n, at=_shown(before[-1].wall)) if before else hints.POINTS_ARE.of(target=target)
    return ReplicaGap(f"{why}; nothing was created", segment, hint=hint)


def _at(target: SegmentFiles, known: list[Point], wanted: int) -> Point:
    """Return the newest state that is not later than `wanted`.

    Raises:
        InvalidArgument: there is none, or the wall clock was set back, so that the time occurred more than once.
    """
    before = [i for i, point in enumerate(known) if point.wall <= wanted]
    if not before:
        raise InvalidArgument(
            f"the oldest state is of {_shown(known[0].wall)}; {_shown(wanted)} is before it",
            hint=hints.POINTS_ARE.of(target=target),
        )
    if before != list(range(len(before))):
        # The clock was set back. The last state before the wanted time was first passed is the earliest candidate.
        first = next(i for i in range(len(known)) if known[i].wall > wanted) - 1
        raise InvalidArgument(
            f"the wall clock was set back: {_shown(wanted)} occurred more than once",
            hint=hints.CHOOSE_CUT.of(cut=known[max(first, 0)].n),
        )
    return known[before[-1]]


def _shown(wall: int) -> str:
    return datetime.fromtimestamp(wall / MICROSECONDS, UTC).isoformat(timespec="milliseconds")


def _made(
    target: SegmentFiles,
    identity: dict[str, object],
    path: Path,
    point: Point,
    numbers: list[int],
    alone: bool,
    dry_run: bool,
    reading: Reading,
    on_progress: Step | None,
) -> Restored:
    history_id = None
    if not dry_run:
        history_id = os.urandom(16).hex()
        own = Replication(history_id, 1, "off" if alone else "waiting", "", "{}", point.x)

        def build(place: Path) -> None:
            with closing(api.rebuild(place)) as rebuild:
                _apply(target, point, numbers, rebuild, identity, reading, on_progress)
                rebuild.finish(own)

        api.publish(path, build)
        facts = api.Storage.facts(path, read_only=True, older=True)
        if facts is None or facts.queue_id != identity["queue_id"]:
            raise StoreCorrupt("the replica's segments belong to another queue", shard=-1)
    return Restored(
        path=str(path),
        queue_id=str(identity["queue_id"]),
        history_id=history_id,
        at=point.wall / MICROSECONDS,
        segment=point.n,
        base=point.base,
        segments=len(numbers),
        stored_bytes=target.stored_bytes(numbers),
        waiting=not alone,
    )


def _apply(
    target: SegmentFiles,
    point: Point,
    numbers: list[int],
    rebuild: Rebuild,
    identity: dict[str, object],
    reading: Reading,
    on_progress: Step | None,
) -> None:
    """Write the pages of every complete cut from the base to the state. Every segment is verified, and none may be missing.

    Raises:
        ReplicaGap: a segment is missing, is damaged, or does not follow the previous one.
    """
    ends = _ends(target, numbers)
    expected, before = point.base, None
    newest = NewestPages()
    marked = time.monotonic()
    for done, (n, data) in enumerate(target.segments(numbers), 1):
        if n != expected:
            raise ReplicaGap(f"segment {expected} is missing", expected)
        header, parts = decode(data, n, target.key)
        if header.queue_id != identity["queue_id"] or header.history_id != identity["history_id"]:
            raise ReplicaGap(f"segment {n} is of another queue or history", n)
        if before is not None and header.prev != before:
            raise ReplicaGap(f"segment {n} does not follow segment {n - 1}: one of them was replaced", n)
        if header.first in ends:
            newest.add(parts)
            if newest.count > COLLECTED_PAGES:
                newest.write(rebuild)
        expected, before = n + 1, hash_of(data)
        if time.monotonic() - marked > MARK_SECONDS:
            reading.go_on()
            marked = time.monotonic()
        if on_progress is not None:
            on_progress(done, len(numbers))
    if expected != point.n + 1:
        raise ReplicaGap(f"segment {expected} is missing", expected)
    newest.write(rebuild)


def _ends(target: SegmentFiles, numbers: list[int]) -> set[int]:
    """Return the first segments of the complete cuts. The segments of abandoned cuts are ignored."""
    whole: set[int] = set()
    for _, header in target.headers(numbers):
        if isinstance(header, ReplicaGap):
            raise header
        if not header.more:
            whole.add(header.first)
    return whole


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
