"""Forget lanes that have been empty for long and have nothing that must be kept.

The row of a lane may be deleted only if it is clean, and every entry about its lane is cut from the journal. Otherwise a process
that slept through the lane's life would meet an entry whose lane it can't find. A quiet queue folds rarely, so a step folds first
where that is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from ..._sql import LOOKS, TABLES
from ..._values.keys import ASIDE, KEYLESS, is_keyless
from ..commit.tx import SECOND
from ..lane import entries as kinds
from ..lane.entries import encode_keys
from ..lane.live_lane import LiveLane
from .shard_lanes import ShardLanes, Tx

REPEATED_WITHIN: Final = 60 * SECOND
"""How long the end of a parked message is remembered, so that a call that is repeated succeeds."""
SLICES_MAX: Final = 3
"""How many slices of a fold one step writes: the changed lanes of a quiet queue, and one that cuts the journal."""
FOLD_SECONDS: Final = 15 * SECOND
"""How old the oldest entry must be for a send to fold so that lanes may be forgotten."""
SEND_STEP: Final = 8
"""How many ended or idle lanes a send forgets for each new one, so that each new one pays for the removal of old ones."""
SENDS_MAX: Final = 32
"""For how many new lanes one send does so."""


def is_parked(key: bytes) -> bool:
    """Return whether a lane holds one parked keyless message."""
    return is_keyless(key) and ASIDE in key


def _is_idle(store: ShardLanes, lane: LiveLane, oldest: int) -> bool:
    return _is_empty(lane) and lane.active <= oldest and not store.run(TABLES.must_keep, (lane.key,)).get


def _is_empty(lane: LiveLane) -> bool:
    lane.tidy()
    return lane.tail > 0 and lane.is_plain_and_empty


def _whole(store: ShardLanes, key: bytes) -> LiveLane:
    """Return a lane with all that its row says."""
    lane = store.loader.lane(key)
    if lane.bare and key not in store.memory.dirty:
        store.loader.adopt(store.rows.row(key))
    return lane


def idle_in_memory(store: ShardLanes, oldest: int, parked_oldest: int, most: int) -> list[bytes]:
    """Return keys of changed lanes that have been empty for long, whose rows do not say so yet.

    Args:
        oldest, parked_oldest: the time before which they became empty, of lanes and of those of parked messages.
    """
    lanes = store.memory.lanes
    some = (
        key for key in list(store.memory.dirty)
        if _is_idle(store, lanes[key], parked_oldest if is_parked(key) else oldest)
    )  # fmt: skip
    return list(islice(some, most))


def idle_at_rest(store: ShardLanes, after: bytes, most: int, oldest: int) -> tuple[bytes | None, list[bytes]]:
    """Read some rows of lanes, and return the last key, and those of lanes that have been empty for long.

    Returns:
        None, if there are no more rows.
    """
    rows: list[Any] = store.run(LOOKS.idle_lanes, (after, most, oldest)).fetchall()
    return (rows[-1][0] if rows else None), [key for key, idle in rows if idle and not is_parked(key)]


def parked_at_rest(store: ShardLanes, after: bytes, most: int, oldest: int) -> tuple[bytes | None, list[bytes]]:
    """Do the same for lanes of parked messages."""
    rows: list[Any] = store.run(LOOKS.ended_lanes, (max(after, KEYLESS), most, oldest)).fetchall()
    return (rows[-1][0] if rows else None), [key for key, ended in rows if ended]


def forget(tx: Tx, keys: Sequence[bytes], oldest: int, *, fold: bool = True) -> int:
    """Forget those of these lanes that have been empty for long. Return how many.

    Args:
        oldest: the time before which they became empty.
        fold: write rows and cut the journal first, if they need it.
    """
    store = tx.lanes
    memory = store.memory
    some = [lane for key in dict.fromkeys(keys) if _is_idle(store, lane := _whole(store, key), oldest)]
    slices = SLICES_MAX if fold else 0
    while slices and any(lane.key in memory.dirty or lane.lsn > memory.mark.cut for lane in some):
        store.folder.slice(tx.now)
        some = [_whole(store, lane.key) for lane in some]  # a slice has put them to rest
        slices -= 1
    return drop(tx, [lane for lane in some if lane.key not in memory.dirty and lane.lsn <= memory.mark.cut])


def drop(tx: Tx, some: Sequence[LiveLane]) -> int:
    """Delete the rows of lanes, and tell every process. Return how many."""
    store = tx.lanes
    if some:
        tx.many(TABLES.drop_lane, [(lane.key,) for lane in some])
        # The seqs of a parked message's lane are those of another one, which goes on.
        floor = max((lane.tail for lane in some if not is_parked(lane.key)), default=0)
        groups = [(lane, list[int]()) for lane in some]
        store.append(kinds.FORGET, groups, token=floor, data=encode_keys([lane.key for lane in some]))
    return len(some)


def forget_ended(tx: Tx) -> None:
    """Forget some lanes of parked messages that ended long ago. Folds seldom."""
    store = tx.lanes
    memory, oldest = store.memory, tx.now - REPEATED_WITHIN
    keys: list[bytes] = []
    for key in list(islice(memory.parked, SEND_STEP)):
        lane = _whole(store, key)
        if not _is_empty(lane):
            del memory.parked[key]
            if lane.tail:
                memory.parked[key] = None  # to the end
        elif lane.active <= oldest:
            keys.append(key)
    if keys:
        forget(tx, keys, oldest, fold=_may_fold(store, tx.now))


def _may_fold(store: ShardLanes, now: int) -> bool:
    """Return whether a send may fold so that lanes can be forgotten: seldom, because a busy queue folds by itself."""
    began: int | None = store.run(LOOKS.oldest_entry, (store.memory.mark.cut,)).get
    return began is not None and began <= now - FOLD_SECONDS


def forget_some(tx: Tx, begun: int, idle: int) -> None:
    """Forget some idle lanes of those that memory knows to be empty. Every new lane pays for a few, so few lanes are idle.

    Args:
        begun: the number of new lanes.
        idle: how long a lane must have been empty, microseconds.
    """
    store = tx.lanes
    memory, oldest = store.memory, tx.now - idle
    if (
        (first := next(iter(memory.dirty), None)) is not None
        and _is_idle(store, memory.lanes[first], oldest)
        and _may_fold(store, tx.now)
    ):
        for _ in range(SLICES_MAX):
            store.folder.slice(tx.now)
    keys: list[bytes] = []
    for key in list(islice(memory.tails, min(begun, SENDS_MAX) * SEND_STEP)):
        if memory.tails[key] <= 0 or is_parked(key):
            memory.tails[key] = memory.tails.pop(key)  # to the end
            continue
        lane = _whole(store, key)
        if lane.active > oldest:
            break  # those behind it were put to rest later
        keys.append(key)
    forget(tx, keys, oldest, fold=False)


__all__ = [
    "REPEATED_WITHIN",
    "drop",
    "forget",
    "forget_ended",
    "forget_some",
    "idle_at_rest",
    "idle_in_memory",
    "is_parked",
    "parked_at_rest",
]
