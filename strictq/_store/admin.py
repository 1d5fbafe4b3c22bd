"""Operations over many transactions: in bounded steps, so that nobody waits long for the write lock."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import apsw

from .._errors import StrictqError
from .._sql import CHECK, INSPECT
from . import catalog, history, operate
from .calls import bound
from .frame import Totals
from .operate import hold, release
from .router import Store
from .shard import Shard

if TYPE_CHECKING:
    from .._findings import Problem

_WALK_STEP = 200


def dead_letters(db: apsw.Connection, key: bytes | None, limit: int) -> list[tuple[Any, ...]]:
    if key is None:
        return operate.dead_letters(db, None, limit)
    lane = db.execute(INSPECT.lane_of, (key,)).get
    return [] if lane is None else operate.dead_letters(db, lane, limit)


def redrive_key(store: Store, key: bytes, seqs: Sequence[int] | None) -> int:
    shard = store.shard_of(key)
    lane = shard.read(lambda db: db.execute(INSPECT.lane_of, (key,)).get)
    if lane is None:
        return 0
    return _redrive_lane(shard, lane, seqs)


def _redrive_lane(shard: Shard, lane: int, seqs: Sequence[int] | None) -> int:
    total = 0
    while True:
        n = shard.run(lambda tx: operate.redrive(tx, lane, seqs))
        total += n
        if seqs is not None or n < operate.REDRIVE_STEP:
            return total


def redrive_all(store: Store) -> int:
    total = 0
    for shard in store.healthy():
        after = 0
        while found := shard.read(bound(operate.lanes_with_dead, after, _WALK_STEP)):
            total += sum(_redrive_lane(shard, lane, None) for lane in found)
            after = found[-1]
    return total


def release_all_keyless(store: Store) -> int:
    """End the holds of all keyless messages, in steps."""
    total = 0
    for shard in store.healthy():
        while n := shard.run(operate.release_keyless):
            total += n
    return total


def purge(store: Store, key: bytes | None, *, dead: bool) -> int:
    if key is not None:
        shard = store.shard_of(key)
        lane = shard.read(lambda db: db.execute(INSPECT.lane_of, (key,)).get)
        return 0 if lane is None else _purge_lane(shard, lane, dead)
    total = 0
    for shard in store.healthy():
        for walk in (operate.next_lane, operate.next_dedup_lane, *([operate.next_dead_lane] if dead else [])):
            after = 0
            while (lane := shard.read(bound(walk, after))) is not None:
                total += _purge_lane(shard, lane, dead)
                after = lane
    return total


def _purge_lane(shard: Shard, lane: int, dead: bool) -> int:
    total = 0
    for step in (operate.purge_lane, *([operate.purge_dead] if dead else [])):
        more = True
        while more:
            n, more = shard.drain(bound(step, lane))
            total += n
    return total


def purge_history(store: Store, key: bytes | None) -> int:
    """Remove records of finished messages, up to those that are there now."""
    total = 0
    for shard in store.healthy() if key is None else [store.shard_of(key)]:
        total += forget_history(shard, shard.read(history.newest), key)
    return total


def forget_history(shard: Shard, upto: int, key: bytes | None = None) -> int:
    """Remove a shard's records up to a number, in steps."""
    total = at = 0
    while at < upto:
        gone, at = shard.drain(bound(history.purge_step, at, upto, key))
        total += gone
    return total


def check_catalog(store: Store) -> list[Problem]:
    """What is wrong with queue.db."""
    from .._findings import Problem

    if store.directory is None:
        return []
    try:
        known = catalog.read(store.directory, read_only=True)
        damage = catalog.damage(store.directory)
    except StrictqError as e:
        return [Problem(-1, "unreadable", str(e))]
    found = [Problem(-1, "integrity", text) for text in damage]
    if (known.queue_id, known.topology) != (store.catalog.queue_id, store.catalog.topology):
        found.append(Problem(-1, "identity", "queue.db is another queue's than when it was opened"))
    return found


def check_inlets(store: Store) -> list[Problem]:
    """Does a shard believe to have had more from another one than that ever sent? Then it would swallow what comes."""
    from .._findings import Problem

    sent: dict[str, int] = {}
    had: list[tuple[int, str, int]] = []
    for shard in store.healthy():
        try:
            rows: list[Any] = shard.look(lambda db: db.execute(CHECK.inlets).fetchall())
        except (StrictqError, TypeError):
            continue  # reported as unreadable, or as a missing counter row
        had += [(shard.number, origin, high) for origin, high in rows]
    # What was sent is read after what has arrived: meanwhile more may have been sent, and have arrived.
    for shard in store.healthy():
        with suppress(StrictqError, TypeError):
            sent[shard.incarnation] = shard.look(lambda db: Totals.read(db).last_outbox)
    return [
        Problem(number, "inlet", f"has had send {high} of shard file {origin}, which has sent {sent[origin]}")
        for number, origin, high in had
        if high > sent.get(origin, high)
    ]


__all__ = [
    "check_catalog",
    "check_inlets",
    "dead_letters",
    "forget_history",
    "hold",
    "purge",
    "purge_history",
    "redrive_all",
    "redrive_key",
    "release",
    "release_all_keyless",
]
