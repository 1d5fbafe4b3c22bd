"""Check a shard: a memory that is built anew is compared with the rows of messages, of dead letters, and with `gone`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw

from ..._sql import LANE_LOOKS, LANE_TABLES
from ..lane.live_lane import LiveLane
from ..lane.memory import ShardMemory
from ..tables import gone
from .loading import Loader

STEP: Final = 1_000


def problems(db: apsw.Connection, loader: Loader) -> Iterator[str]:
    """Return what is wrong, in one read transaction with a memory that has just been built.

    Every row of a message is that of an unresolved message of its lane, of a dead letter, or of a resolved message that is noted
    in `gone` or waits for the next fold. Every unresolved message has its row.
    """
    memory = loader.memory
    run: Any = db.execute
    fresh = {i for _, ids in memory.gone for i in ids}
    found: dict[bytes, set[int]] = {}
    pending = 0
    for lane in lanes_of(db, loader):
        unresolved = unresolved_of(lane)
        pending += len(unresolved)
        found[lane.key] = {i for _, i in unresolved}
        rows = loader.log.keys([i for _, i in unresolved])
        for seq, i in unresolved:
            if rows.get(i) != (lane.key, seq):
                yield f"message {seq} of lane {lane.key!r} has no row {i} in `message`"
    if pending != memory.totals.pending:
        yield f"{pending} messages are unresolved, and the totals say {memory.totals.pending}"
    after = 0
    while rows := run(LANE_TABLES.some_messages, (after, STEP)).fetchall():
        after = rows[-1][0]
        for i, key, seq in rows:
            places = (
                (i in found.get(key, ()))
                + bool(run(LANE_LOOKS.dead_with, (i,)).get)
                + (i in fresh or bool(gone.bits_of(db, memory.shard, i >> gone.BUCKET_BITS) >> (i & 127) & 1))
            )
            if places != 1 and not (places == 0 and i == memory.top):
                yield f"row {i} of `message`, seq {seq} of lane {key!r}, is in {places} of: lane, dead letters, resolved"


def unresolved_of(lane: LiveLane) -> list[tuple[int, int]]:
    """Return (seq, arrival number) of the unresolved messages of a lane that is wholly loaded."""
    rare = lane.rare
    some = [(seq, i) for seq, i in enumerate(lane.ids or (), lane.first) if i]
    return some if rare is None else [*rare.front, *rare.waiting, *some]


def lanes_of(db: apsw.Connection, loader: Loader) -> Iterator[LiveLane]:
    """Return all lanes, each with all of its ids: those with rows, and those that are only in the logs."""
    run: Any = db.execute
    memory: ShardMemory = loader.memory
    after = b""
    done: set[bytes] = set()
    while rows := run(LANE_TABLES.some_lanes, (after, STEP)).fetchall():
        after = rows[-1][0]
        for (key,) in rows:
            done.add(key)
            yield _whole(loader, key)
    for key in [key for key in memory.lanes if key not in done]:
        yield _whole(loader, key)


def _whole(loader: Loader, key: bytes) -> LiveLane:
    lane = loader.lane(key)
    while lane.split:
        loader.extend(lane, lane.deep)
    return lane
