"""Operators' actions: hold and release lanes, list and redrive dead letters, purge, end retry delays.

First the steps inside one transaction, then the operations over many. Each step is bounded, so that other writers do not wait
long for the write lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import apsw

from ..._errors import OutcomeUnknown, StoreError
from ..._keys import is_keyless
from ..._sql import INSPECT, LANES, OPERATE
from ..commit.calls import Operation, bound
from ..commit.tx import Tx
from ..hot import cooling
from ..onelane import operating
from ..shard import Shard
from . import history, lanes, sweeps

if TYPE_CHECKING:
    from ..store import Store

T = TypeVar("T")

PURGE_STEP: Final = 1000
"""The number of messages that one transaction of a purge removes."""
RELEASE_STEP: Final = 200
REDRIVE_STEP: Final = 500
_WALK_STEP: Final = 200


def hold(tx: Tx, key: bytes, reason: str) -> None:
    """Stop deliveries of this key. A live lease may finish."""
    if tx.lanes is not None:
        operating.hold(tx, key, reason)
        return
    lane = lanes.find(tx, key)
    if lane is None:
        lane = lanes.create(tx, key)
    tx.run(LANES.set_hold, (reason, tx.now, lane))
    lanes.unlist(tx, lane)


def release(tx: Tx, key: bytes) -> bool:
    """End a hold. Attempts restart from 0, and what was held as poison is ready. Return whether the lane was held."""
    if tx.lanes is not None:
        return operating.release(tx, key)
    lane = lanes.find(tx, key)
    return lane is not None and _release(tx, lane)


def release_keyless(tx: Tx) -> int:
    """End holds of keyless messages, in one bounded step. Return how many, at most RELEASE_STEP."""
    if tx.lanes is not None:
        return operating.release_keyless(tx)
    held = (lane for lane, key in tx.run(OPERATE.held_lanes).fetchall() if is_keyless(key))
    return sum(_release(tx, lane) for lane in islice(held, RELEASE_STEP))


def _release(tx: Tx, lane: int) -> bool:
    row = lanes.get(tx, lane)
    if row.hold is None:
        return False
    tx.run(LANES.set_hold, (None, None, lane))
    if row.hold == lanes.POISON_HOLD:
        tx.run(LANES.end_retry_delays, (lane, row.charged_to))  # an operator who fixed the cause wants the retry now
    tx.run(LANES.reset_attempts, (lane, row.charged_to))
    tx.run(LANES.clear_charges, (lane,))
    lease = lanes.lease_of(tx, lane)
    if lease is None:
        lanes.place(tx, lane)
    elif lease.expired:
        lanes.list_ready(tx, lane, tx.new_position(), careful=True)
    return True


def dead_letters(db: apsw.Connection, key: bytes | None, limit: int) -> list[tuple[Any, ...]]:
    """Return dead letters of one key, or of the shard."""
    if key is None:
        return db.execute(OPERATE.dead_letters, (limit,)).fetchall()
    lane = db.execute(LANES.by_key, (key,)).get
    return [] if lane is None else db.execute(OPERATE.dead_letters_of, (lane, limit)).fetchall()


def redrive(tx: Tx, lane: int, seqs: Sequence[int] | None) -> int:
    """Redrive dead messages of a lane, now or when its lease ends. Return how many, at most REDRIVE_STEP."""
    cooling.cool_lane(tx, lane)
    if seqs is None:
        seqs = [seq for (seq,) in tx.run(OPERATE.dead_of, (lane, REDRIVE_STEP))]
    else:
        seqs = sorted({seq for seq in seqs if tx.run(OPERATE.is_dead, (lane, seq)).get == 0})
    if not seqs:
        return 0
    if lanes.lease_of(tx, lane) is not None:
        tx.many(OPERATE.wait_redrive, [(lane, seq) for seq in seqs])
        tx.run(OPERATE.lease_waits, (lane,))
        return len(seqs)
    for seq in seqs:
        lanes.revive(tx, lane, seq)
    lanes.unlist(tx, lane)
    lanes.place(tx, lane)
    return len(seqs)


def lanes_with_dead(db: apsw.Connection, after: int, limit: int) -> list[int]:
    """Return the next lanes that have dead letters."""
    return [lane for (lane,) in db.execute(OPERATE.lanes_with_dead, (after, limit))]


def purge_lane(tx: Tx, lane: int) -> tuple[int, bool]:
    """Remove the lane's unleased messages, dead letters that wait to be redriven, and dedup ids, in one bounded step.

    Returns:
        The number of messages, and whether anything may be left.
    """
    cooling.cool_lane(tx, lane)
    lease = lanes.lease_of(tx, lane)
    if lease is not None and not lease.ack_first and (lease.expired or lease.deadline <= tx.now):
        # Its time is over and no consumer took the lane. It ends here, and its messages are purged with the others.
        lanes.retake(tx, lease)
        lease = None
    lo, hi = (0, -1) if lease is None else (lease.lo, lease.hi)
    rows = [(seq, i, bool(apart)) for seq, i, apart in tx.run(OPERATE.messages_outside, (lane, lo, hi, PURGE_STEP))]
    if rows:
        lanes.remove(tx, lane, rows, history.PURGED)
        tx.totals.purged += len(rows)
    waiting = tx.run(OPERATE.waiting_rows, (lane, PURGE_STEP)).fetchall()
    if waiting:
        tx.many(LANES.delete_dead, [(lane, seq) for seq, _, _ in waiting])
        _forget_dead(tx, lane, waiting)
    before = tx.db.total_changes()
    tx.run(OPERATE.delete_dedup_of, (lane, PURGE_STEP))
    forgotten = tx.db.total_changes() - before
    if lease is None:
        lanes.unlist(tx, lane)
        lanes.place(tx, lane)
    return len(rows) + len(waiting), PURGE_STEP in (len(rows), len(waiting), forgotten)


def purge_dead(tx: Tx, lane: int) -> tuple[int, bool]:
    """Remove dead letters, in one bounded step."""
    rows = tx.run(OPERATE.dead_rows, (lane, PURGE_STEP)).fetchall()
    if rows:
        tx.run(OPERATE.delete_dead_to, (lane, rows[-1][0]))
        _forget_dead(tx, lane, rows)
        lanes.end_aside(tx, lane, forget=True)
    return len(rows), len(rows) == PURGE_STEP


def _forget_dead(tx: Tx, lane: int, rows: Sequence[tuple[int, int, int]]) -> None:
    """Delete the bodies of purged dead letters, count them, and clear the lease's redrive mark if none of them waits for it."""
    tx.many(LANES.delete_body, [(i,) for _, i, apart in rows if apart])
    tx.totals.dead -= len(rows)
    tx.totals.purged += len(rows)
    tx.run(OPERATE.forget_redrives, (lane,))


def next_lane(db: apsw.Connection, after: int) -> int | None:
    """Return the next lane with messages."""
    lane: int | None = db.execute(INSPECT.next_lane, (after,)).get
    return lane


def next_dedup_lane(db: apsw.Connection, after: int) -> int | None:
    """Return the next lane with dedup ids."""
    lane: int | None = db.execute(OPERATE.next_dedup_lane, (after,)).get
    return lane


def next_waiting_lane(db: apsw.Connection, after: int) -> int | None:
    """Return the next lane with dead letters that are redriven when a lease ends."""
    lane: int | None = db.execute(OPERATE.next_waiting_lane, (after,)).get
    return lane


def next_dead_lane(db: apsw.Connection, after: int) -> int | None:
    """Return the next lane with dead letters."""
    lane: int | None = db.execute(OPERATE.lanes_with_dead, (after, 1)).get
    return lane


# ---- over many transactions: each generator yields the count of each committed step


def _run(steps: Iterable[int]) -> int:
    """Run steps, and return the sum of their counts.

    Raises:
        OutcomeUnknown: a step failed after others were committed.
    """
    total, begun = 0, False
    try:
        for n in steps:
            total += n
            begun = True
    except StoreError as e:
        if not begun or isinstance(e, OutcomeUnknown):
            raise
        raise OutcomeUnknown(f"only a part was done: {total} messages, and then {e}", shard=e.shard, cause=e) from e
    return total


def _lane_of(shard: Shard, key: bytes) -> int | None:
    """Return the lane of a key. A hot lane is cooled first."""
    if shard.hot is not None:
        return shard.run(bound(lanes.find, key))
    lane: int | None = shard.read(lambda db: db.execute(LANES.by_key, (key,)).get)
    return lane


def redrive_key(store: Store, key: bytes, seqs: Sequence[int] | None) -> int:
    shard = store.shard_of(key)
    if shard.lanes is not None:
        return _run(_redrive_lane(shard, key, seqs))
    lane = _lane_of(shard, key)
    return 0 if lane is None else _run(_redrive_lane(shard, lane, seqs))


def _redrive_lane(shard: Shard, lane: int | bytes, seqs: Sequence[int] | None) -> Iterator[int]:
    n = REDRIVE_STEP
    while n == REDRIVE_STEP:
        n = shard.run(lambda tx: operating.redrive(tx, lane, seqs) if isinstance(lane, bytes) else redrive(tx, lane, seqs))
        yield n
        if seqs is not None:
            return


def redrive_all(store: Store) -> int:
    return _run(_redrive_all(store))


def _redrive_all(store: Store) -> Iterator[int]:
    for shard in store.healthy():
        if shard.lanes is not None:
            yield from _in_steps(shard.run, operating.redrive_some, (b"", 0))
            continue
        after = 0
        while found := shard.read(bound(lanes_with_dead, after, _WALK_STEP)):
            for lane in found:
                yield from _redrive_lane(shard, lane, None)
            after = found[-1]


def _in_steps(
    run: Callable[[Operation[tuple[int, T | None]]], tuple[int, T | None]],
    step: Callable[[Tx, T], tuple[int, T | None]],
    begin: T,
) -> Iterator[int]:
    """Run a step in transactions of its own, each of which begins where the one before ended."""
    after: T | None = begin
    while after is not None:
        n, after = run(bound(step, after))
        yield n


def release_all_keyless(store: Store) -> int:
    """End the holds of all keyless messages, in steps."""
    return _run(_release_all_keyless(store))


def _release_all_keyless(store: Store) -> Iterator[int]:
    for shard in store.healthy():
        while n := shard.run(release_keyless):
            yield n


def purge(store: Store, key: bytes | None, *, dead: bool, records: bool) -> int:
    """Remove messages, and with `records` also those of finished messages, of a key or of all. Return the number of messages."""
    return _run(_purge(store, key, dead, records))


def _purge(store: Store, key: bytes | None, dead: bool, records: bool) -> Iterator[int]:
    if store.catalog.has_lanes:
        yield from _purge_next_format(store, key, dead)
    elif key is not None:
        shard = store.shard_of(key)
        lane = _lane_of(shard, key)
        if lane is not None:
            yield from _purge_lane(shard, lane, dead)
    else:
        for shard in store.healthy():
            shard.cool()
            dead_lane = next_dead_lane if dead else next_waiting_lane
            for walk in (next_lane, next_dedup_lane, dead_lane):
                after = 0
                while (lane := shard.glance(bound(walk, after))) is not None:
                    yield from _purge_lane(shard, lane, dead)
                    after = lane
    if records:
        for _ in _forget_history(store, key, None, None):
            yield 0


def _purge_next_format(store: Store, key: bytes | None, dead: bool) -> Iterator[int]:
    if key is not None:
        shard = store.shard_of(key)
        for step in (operating.purge_lane, *([operating.purge_dead] if dead else [])):
            more = True
            while more:
                n, more = shard.drain(bound(step, key))
                yield n
        return
    for shard in store.healthy():
        yield from _in_steps(shard.drain, operating.purge_some, b"")
        last: tuple[bytes, str] | None = (b"", "")
        while last is not None:
            last = shard.drain(bound(operating.purge_dedups, last))
        if dead:
            yield from _in_steps(shard.drain, operating.purge_some_dead, (b"", 0))


def _purge_lane(shard: Shard, lane: int, dead: bool) -> Iterator[int]:
    for step in (purge_lane, *([purge_dead] if dead else [])):
        more = True
        while more:
            n, more = shard.drain(bound(step, lane))
            yield n


def forget_history(store: Store, key: bytes | None, shard: int | None, upto: int | None) -> int:
    """Remove records of finished messages, of a key, of a shard or of all, up to a number or all present ones."""
    return _run(_forget_history(store, key, shard, upto))


def _forget_history(store: Store, key: bytes | None, shard: int | None, upto: int | None) -> Iterator[int]:
    if key is not None:
        shard = store.shard_of(key).number
    for each in store.healthy() if shard is None else [store.shards[shard]]:
        at, end = 0, each.read(history.newest) if upto is None else upto
        while at < end:
            gone, at = each.drain(bound(history.purge_step, at, end, key))
            yield gone


def end_failure_delays(store: Store, keys: Sequence[bytes] | None, *, one: bool = False) -> int:
    """End delays that failures caused, in steps.

    Args:
        keys: only these keys'.
        one: at most one, the first to end in its shard.
    Returns:
        How many there were.
    """
    return _run(_end_failure_delays(store, keys, one))


def _end_failure_delays(store: Store, keys: Sequence[bytes] | None, one: bool) -> Iterator[int]:
    if store.catalog.has_lanes:
        yield from _end_delays_of(store, keys, one) if keys is not None else _end_all_delays(store, one)
        return
    for shard, found in (
        _with_failure_delays(store, one) if keys is None else _lanes_of(store, keys, 1 if one else sweeps.END_STEP)
    ):
        n = shard.drain(bound(sweeps.end_failure_delays, found))
        yield n
        if one and n:
            return


def _end_delays_of(store: Store, keys: Sequence[bytes], one: bool) -> Iterator[int]:
    step = 1 if one else operating.DELAY_STEP
    for shard in store.healthy():
        mine = [key for key in keys if store.shard_of(key) is shard]
        for start in range(0, len(mine), step):
            n = shard.drain(bound(operating.end_delays_of, mine[start : start + step]))
            yield n
            if one and n:
                return


def _end_all_delays(store: Store, one: bool) -> Iterator[int]:
    for shard in (shard for shard in store.rotation() if shard.failed is None):
        for n in _in_steps(shard.drain, partial(operating.end_some_delays, most=1 if one else operating.DELAY_STEP), (0, b"")):
            yield n
            if one and n:
                return
            if one:
                break


def _with_failure_delays(store: Store, one: bool) -> Iterator[tuple[Shard, list[int]]]:
    for shard in (shard for shard in store.rotation() if shard.failed is None):
        now, after = store.now(), 0
        if one:
            if found := shard.look(bound(sweeps.soonest_failure_delay, now)):
                yield shard, found
            continue
        while found := shard.look(bound(sweeps.failure_delays, after, now)):
            yield shard, found
            after = found[-1]


def _lanes_of(store: Store, keys: Sequence[bytes], step: int) -> Iterator[tuple[Shard, list[int]]]:
    for shard in store.healthy():
        mine = [key for key in keys if store.shard_of(key) is shard]
        looked = [_lane_of(shard, key) for key in mine]
        found = [lane for lane in looked if lane is not None]
        for start in range(0, len(found), step):
            yield shard, found[start : start + step]
