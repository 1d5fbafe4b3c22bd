"""Ranges of keys move between shards while the queue runs: nothing is lost, doubled or overtaken, whoever dies, and when."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import pytest

import strictq
from strictq import InvalidArgument, LeaseLost, Message, MoveBlocked, MoveInProgress, Queue, UnknownMessage
from strictq._platform import files
from strictq._store.bulk import scan
from strictq._store.disk import layout
from strictq._store.disk.topology import OwnerMap, ShardList
from strictq._store.lane.ranges import Passage, Ranges, completed
from strictq._store.shard import moving as steps
from strictq._store.shard.shard_file import Shard
from strictq._store.tables import parcels
from strictq._store.whole import holders, moving
from strictq._values.hashing import hash_key
from strictq._values.keys import encode_key
from strictq.testing import FakeClock
from tests.support import recorded_batches
from tests.support.internals import connection_of, connections, store_of, tamper
from tests.support.moved_ranges import (
    CONFIG,
    HI,
    KEYS,
    LO,
    LOOSE,
    MOVING,
    STAYING,
    Killed,
    after_each_commit,
    finish,
    kept,
    moves,
    notes,
    prepare,
    small_steps,
    state_of,
    unfinished,
)
from tests.support.queues import Opener, drain, fill, seqs
from tests.support.recorded_batches import holder, read
from tests.support.replicas import is_shipped
from tests.support.running import run_python, until

EVERY = int(os.environ.get("STRICTQ_STATEMENTS_EVERY", "12"))
"""Of so many statements, a process dies at one."""


@pytest.fixture
def q(disk: Opener) -> Queue:
    return disk(keyless="random")


def seen(q: Queue) -> dict[str, Any]:
    """Return what users see of every key."""
    found: dict[str, Any] = {}
    for key in KEYS:
        told = q.explain(key)
        found[key] = (
            [(m.seq, m.body, m.headers, m.attempts, m.state) for m in q.peek(key, 100)],
            [(d.seq, d.reason, d.body, d.attempts) for d in q.dead_letters(key)],
            (told.state, told.depth, told.head_seq),
            [(q.status(key, seq).state, q.status(key, seq).attempts, q.status(key, seq).last_error) for seq in (1, 2, 3)],
            state_of(q, key),
        )
    counts = q.stats()
    found["counts"] = counts.depth, counts.dead, counts.ready, counts.in_flight, counts.delayed, counts.held
    found["keyless"] = sorted(m.body for m in q.peek(None, 1000) if m.key is None)
    found["loose"] = [state_of(q, key) for key in LOOSE]
    found["notes"] = notes(q), [[note for note in notes(q, key) if note[0] == key] for key in KEYS + LOOSE]
    return found


def test_a_move_changes_nothing_that_users_see(q: Queue, disk: Opener, clock: FakeClock) -> None:
    held = prepare(q, clock)
    before = seen(q)
    other = disk()
    moved = q.move(LO, HI, to=None)
    assert moved.lanes >= len([key for key in KEYS if moves(key)])
    assert seen(q) == before
    assert seen(other) == before, "an object that has not heard of the move"
    with strictq.open(q.path, read_only=True, clock=clock) as look:
        assert seen(look) == before
    assert q.check() == []
    # Leases, dedup ids and resolutions moved with their keys.
    for d in held.values():
        d.extend(500.0)
        d.ack()
        with pytest.raises(LeaseLost):
            other.delivery(d.handle).nack()
    assert other.send(b"again", key=KEYS[4], dedup_id="the-one").duplicate
    assert other.send(b"next", key=KEYS[0]).seq == 5
    newest = max(d.token for d in held.values())
    assert all(d.token > newest for d in q.receive(3, keys=[key for key in held if moves(key)])), "tokens only grow"
    clock.advance(40.0)
    assert q.merge(1, into=0).lanes == moved.lanes
    assert q.topology().shards[1].retired
    q.release(KEYS[6])
    clock.advance(100.0)
    got = drain(other)
    for key in KEYS:
        mine = [seq for of, seq in got if of == key]
        assert mine == sorted(set(mine)), key
    assert other.stats().depth == 0
    assert q.check() == []


def test_a_read_passes_few_of_the_lanes_that_stay(q: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(q, clock)
    before, lanes = seen(q), q.stats().lanes
    monkeypatch.setattr(steps, "PASSED_MAX", 3)
    found: list[list[bytes]] = []
    real = steps.ahead
    monkeypatch.setattr(steps, "ahead", lambda *args: found.append((ahead := real(*args)).keys) or ahead)
    assert q.isolate(MOVING).lanes == 1
    assert len(found) == 1 + lanes // 3
    assert [keys for keys in found if keys] == [[encode_key(MOVING)]]
    assert seen(q) == before
    assert q.check() == []


def test_every_verb_finds_a_key_that_has_moved(q: Queue, disk: Opener, clock: FakeClock) -> None:
    """Each is the first call of an object that has not heard of the move."""
    key = MOVING
    fill(q, key, 30)
    (_,) = q.receive(1, keys=[key])
    q.reject(key, 1, "bad", force=True)
    q.move(LO, HI, to=None)
    fresh = lambda: disk()  # noqa: E731
    assert fresh().send(b"", key=key).seq == 31
    assert seqs_of(fresh().send_many([Message(b"", key=key), Message(b"", key=STAYING)])) == [32, 1]
    assert fresh().status(key, 2).state == "ready"
    assert fresh().explain(key).depth == 31
    assert [m.seq for m in fresh().peek(key, 2)] == [2, 3]
    assert [d.seq for d in fresh().dead_letters(key)] == [1]
    assert fresh().redrive(key) == 1
    fresh().hold(key, "why")
    assert fresh().release(key)
    assert fresh().resolve(key, 1)
    assert fresh().reject(key, 2, "no")
    assert fresh().purge(key, dead=True) >= 1
    fill(q, key, 3)
    (d,) = fresh().receive(1, keys=[key])
    other = fresh()
    other.delivery(d.handle).extend(100.0)
    assert seqs(d.lease.more(1)) == [d.seq + 1]
    fresh().delivery(d.handle).ack()
    with fresh().transaction(key=key) as tx:
        tx.key_state = b"state"
        tx.send(b"", key)
        tx.send(b"", STAYING)
    assert state_of(fresh(), key) == b"state"
    assert q.check() == []


def seqs_of(receipts: Any) -> list[int]:
    return [receipt.seq for receipt in receipts]


def test_a_key_that_is_new_during_a_move(q: Queue, clock: FakeClock) -> None:
    fill(q, MOVING, 1)
    begin(q)
    names = [f"new-{n}" for n in range(40)]
    for name in names:
        assert q.explain(name).depth == 0
        assert q.send(b"1", key=name).seq == 1
        assert q.send(b"2", key=name).seq == 2
    got = drain(q)
    assert [seq for key, seq in got if key == names[0]] == [1, 2]
    finish(q)
    for name in names:
        assert q.send(b"3", key=name).seq == 3, "no seq is issued twice"
    assert q.check() == []


@pytest.mark.parametrize("stop", ["_continue", "_end"])
@pytest.mark.parametrize("act", ["nack", "send", "expire"])
def test_a_keyless_message_must_wait_while_its_lane_moves(
    disk: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, act: str, stop: str
) -> None:
    """Its new lane is where the lane is that it was sent to, which has not left, or has arrived."""
    q = disk(keyless="random", keyless_lanes=2, retry_delay_seconds=5.0)
    for n in range(20):
        q.send(b"%d" % n, key=None)
    with monkeypatch.context() as patch:
        patch.setattr(moving.Moving, stop, lambda *_: None)
        q.move(0, HI, to=None)
    deliveries = q.receive(2, per_key=1, lease_seconds=1.0)
    if act == "nack":
        for d in deliveries:
            d.nack(delay=5.0)
    elif act == "send":
        q.send(b"late", key=None, delay=5.0)
    clock.advance(2.0)
    q.receive(1)[0].lease.release()
    assert q.topology().moving is not None
    finish(q)
    assert q.check() == []
    clock.advance(100.0)
    got = []
    while deliveries := q.receive(100):
        got += [d.body for d in deliveries]
        q.ack_many(deliveries)
    assert q.stats().depth == 0
    assert sorted(got) == sorted([*(b"%d" % n for n in range(20)), *([b"late"] if act == "send" else [])])


def test_a_key_that_was_forgotten_before_its_range_moved(disk: Opener, clock: FakeClock) -> None:
    q = disk(idle_lane_seconds=60.0)
    for _ in range(5):
        q.send(b"", key=MOVING)
    assert len(drain(q)) == 5
    clock.advance(1000.0)
    for _ in range(3):
        store_of(q).forget()
        clock.advance(1000.0)
    begin(q)
    assert q.send(b"", key=MOVING).seq > 5, "a new lane in the middle of the move"
    finish(q)
    drain(q)
    other = next(key for key in KEYS if moves(key) and key != MOVING)
    assert q.send(b"", key=other).seq > 5
    assert q.check() == []


def begin(q: Queue) -> None:
    """Begin to move the range to a new shard, and stop before any lane leaves, as if the mover had died."""
    store_of(q)._upkeep.stop()  # it would finish the move
    with unfinished():
        q.move(LO, HI, to=None)
    assert q.topology().moving is not None


# ---- death at any statement


@contextmanager
def killed_at(q: Queue, n: int) -> Iterator[list[int]]:
    """Raise at the n-th statement of any connection of the queue. Yield the number of statements so far, in a list."""
    count = [0]

    def trace(_cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
        count[0] += 1
        if count[0] >= n:
            raise Killed
        return True

    def hook(db: apsw.Connection) -> None:
        db.exec_trace = trace

    for db in connections(q):
        db.exec_trace = trace
    apsw.connection_hooks.append(hook)
    try:
        yield count
    finally:
        apsw.connection_hooks.remove(hook)
        for db in apsw.connections():
            db.exec_trace = None


def statements_of_a_move(place: Path, clock: FakeClock) -> int:
    with strictq.open(place / "all", durability="process", config=CONFIG, clock=clock) as q:
        store_of(q)._upkeep.stop()
        prepare(q, clock)
        with killed_at(q, 1 << 60) as count:
            q.move(LO, HI, to=None)
    return count[0]


def die_and_go_on(place: Path, clock: FakeClock, n: int) -> None:
    """Kill a mover at its n-th statement. Then use every key, before and after the move is finished."""
    path = place / f"queue-{n}"
    q = strictq.open(path, durability="process", config=CONFIG, clock=clock)
    store_of(q)._upkeep.stop()  # no other thread runs its statements
    held = prepare(q, clock)
    handles = {key: d.handle for key, d in held.items()}
    with suppress(Killed), killed_at(q, n):  # the last ones are not always reached
        q.move(LO, HI, to=None)
    store_of(q).die()
    with strictq.open(path, clock=clock) as q:
        store_of(q)._upkeep.stop()
        expected = {key: 5 + (key in (KEYS[3], KEYS[4], KEYS[5])) for key in KEYS}
        for key in KEYS:
            assert q.send(b"before the repair", key=key).seq == expected[key], key
        for handle in handles.values():
            q.delivery(handle).ack()
        for key in LOOSE:
            with q.transaction(key=key) as tx:
                assert tx.key_state == key.encode(), (key, n)
                tx.execute("UPDATE app_note SET n = n + 1 WHERE owner = ?", (key,))
        finish(q)
        assert q.check() == []
        assert q.send(b"again", key=KEYS[4], dedup_id="the-one").duplicate
        q.release(KEYS[6])
        clock.advance(100.0)
        got = drain(q)
        for key in KEYS:
            first = 1 if q.status(key, 1).state == "ready" else 2
            dead = [d.seq for d in q.dead_letters(key)]
            mine = [seq for of, seq in got if of == key]
            assert mine == [s for s in range(mine[0], expected[key] + 1) if s not in dead], (key, n)
            assert mine[0] in (1, 2, first), (key, n)
            assert state_of(q, key) == key.encode()
        assert sum(of is None for of, _ in got) == 6, n
        assert notes(q) == [(key, 1) for key in sorted(KEYS)] + [(key, 2) for key in LOOSE]
        assert q.stats().depth == 0
    shutil.rmtree(path)


@pytest.mark.slow
def test_the_mover_dies_at_some_statement(place: Path, clock: FakeClock) -> None:
    count = statements_of_a_move(place, clock)
    assert count > 100
    for n in range(1, count, max(count // 12, 1)):
        die_and_go_on(place, clock, n)


@pytest.mark.slow
def test_the_mover_dies_at_any_statement(place: Path, clock: FakeClock) -> None:
    count = statements_of_a_move(place, clock)
    for n in range(2, count + 1, 3):
        die_and_go_on(place, clock, n)


def stop_at(q: Queue, step: str, *, lo: int = LO, hi: int = HI, to: int | None = None, source: int = 0) -> None:
    """Move a range, to a new shard if none is named, and stop at a step of its first parcel, as if the mover had died."""

    def die(*_: object) -> None:
        raise Killed

    store_of(q)._upkeep.stop()  # it would finish the move
    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(steps, step, die)
        q.move(lo, hi, to=to)
    assert q.topology().moving is not None
    assert parcels_of(q, source), "lanes are on their way"


def parcels_of(q: Queue, shard: int = 0) -> list[int]:
    return store_of(q).shards[shard].read(parcels.numbers)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["arrive", "sweep"])
def test_a_process_dies_at_any_statement_that_carries_or_sweeps(
    q: Queue, disk: Opener, place: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It carries or sweeps what another one left, in several steps. The next one does the rest."""
    monkeypatch.setattr(parcels, "SWEPT_MAX", 5)
    prepare(q, clock)
    before = seen(q)
    stop_at(q, step)
    store_of(q).die()
    n, reached = 1 - EVERY, True
    while reached:
        n += EVERY
        path = place / f"copy-{n}"
        shutil.copytree(q.path, path)
        reached = False
        with strictq.open(path, clock=clock) as one:
            store_of(one)._upkeep.stop()
            origin, target = store_of(one).shards
            with suppress(Killed), killed_at(one, n) as count:
                moving.carry(origin, target)
                moving.sweep(origin, target)
            reached = count[0] >= n
            store_of(one).die()
        with strictq.open(path, clock=clock) as other:
            store_of(other)._upkeep.stop()
            assert seen(other) == before, n
            finish(other)
            assert parcels_of(other) == []
            assert other.check() == [], n
        shutil.rmtree(path)
    assert n > 40


@pytest.mark.parametrize("step", ["arrive", "sweep"])
def test_messages_stay_until_their_lanes_have_arrived(q: Queue, clock: FakeClock, step: str) -> None:
    prepare(q, clock)
    before = seen(q)
    stop_at(q, step)
    number = parcels_of(q)[0]
    arrivals = store_of(q).shards[0].read(lambda db: parcels.arrivals(parcels.rows(db, number)))
    assert rows_of(q, arrivals) == len(arrivals) > 0
    assert q.check() == []
    assert seen(q) == before, "whoever misses a lane carries it"
    finish(q)
    assert parcels_of(q) == []
    assert q.check() == [], "what is left of them is noted as resolved"


@pytest.mark.parametrize("step", ["arrive", "sweep"])
def test_a_parcel_that_an_older_version_put(q: Queue, clock: FakeClock, step: str) -> None:
    """It does not list its messages."""
    prepare(q, clock)
    before = seen(q)
    stop_at(q, step)
    connection_of(q).execute(f"DELETE FROM parcel WHERE kind = {parcels.REST}")
    assert q.check() == []
    assert seen(q) == before
    finish(q)
    assert seen(q) == before
    assert parcels_of(q) == []
    assert q.check() == []


def rows_of(q: Queue, arrivals: list[int]) -> int:
    found: list[Any] = connection_of(q).execute("SELECT id FROM message").fetchall()
    return len({i for (i,) in found}.intersection(arrivals))


def test_check_finds_a_parcel_without_its_messages(q: Queue) -> None:
    fill(q, MOVING, 3)
    stop_at(q, "arrive")
    connection_of(q).execute("DELETE FROM message WHERE id = 2")
    assert [problem.detail for problem in q.check() if problem.rule == "parcel"] == ["parcel 1 has no row 2 in `message`"]


def test_a_caller_that_slept_through_a_move_carries_nothing_of_a_later_one(q: Queue) -> None:
    for key in KEYS:
        fill(q, key, 3)
    q.move(LO, HI, to=None)
    stop_at(q, "arrive", lo=0, hi=LO - 1)
    origin, target = store_of(q).shards[:2]
    moving.carry(origin, target)
    assert parcels_of(q), "it belongs to another shard"
    finish(q)
    assert q.check() == []
    assert [shard.retired for shard in q.topology().shards] == [True, False, False]
    assert q.send(b"", key=STAYING).seq == 4
    assert len(drain(q)) == 3 * len(KEYS) + 1


@pytest.mark.slow
def test_another_process_finishes_what_a_mover_left(disk: Opener, clock: FakeClock) -> None:
    q = disk(keyless="random")
    prepare(q, clock)
    begin(q)
    q.close()
    code = (
        "import sys, time, strictq\n"
        "with strictq.open(sys.argv[1]) as q:\n"
        "    until = time.monotonic() + 60\n"
        "    while q.topology().moving is not None and time.monotonic() < until:\n"
        "        time.sleep(0.02)\n"
        "    print(q.topology().moving, len(q.check()))"
    )
    assert run_python(code, q.path).strip() == "None 0"


@contextmanager
def after_each_look_ahead(work: Callable[[steps.Ahead], object]) -> Iterator[None]:
    """Run `work` between the search for the next lanes of a move and the step in which they leave."""
    real = Shard.look

    def look(shard: Shard, *args: Any) -> Any:
        found = real(shard, *args)
        if isinstance(found, steps.Ahead):
            work(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shard, "look", look)
        yield


def test_a_message_is_parked_while_its_lane_is_about_to_leave(q: Queue, clock: FakeClock) -> None:
    q.send_many([Message(b"%d" % n, key=None) for n in range(40)])
    held = q.receive(40, per_key=1)

    def park(_: steps.Ahead) -> None:
        while held:
            held.pop().defer(20.0)

    with after_each_look_ahead(park):
        q.split(0)
        q.merge(0, into=1)
    assert q.topology().shards[0].lanes == 0
    assert q.check() == []
    clock.advance(30.0)
    assert sorted(d.body for d in q.receive(40, per_key=40)) == sorted(b"%d" % n for n in range(40))


def test_what_is_read_before_lanes_leave_is_bounded(q: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        q.send_many([Message(bytes(2_000), key=f"key-{n}") for _ in range(12 if n == 7 else 2)])
    monkeypatch.setattr(steps, "BYTES_MAX", 10_000)
    most: list[tuple[int, int]] = []
    with after_each_look_ahead(
        lambda found: most.append((len(found.keys), sum(len(row[-1]) for row in found.messages.values())))
    ):
        assert q.move(0, HI, to=None).lanes == 30
    assert all(size <= 10_000 or lanes == 1 for lanes, size in most)
    assert sum(lanes for lanes, _ in most) == 30, "no lane is looked for twice"
    assert q.check() == []


# ---- cancel, and what stops a move


def test_cancel(q: Queue, clock: FakeClock) -> None:
    prepare(q, clock)
    before = seen(q)
    assert not q.cancel_move()
    begin(q)
    q.send(b"", key="new in the middle")
    assert q.cancel_move()
    assert q.topology().moving is None
    assert [shard.retired for shard in q.topology().shards] == [False, True]
    assert q.explain("new in the middle").depth == 1
    q.purge("new in the middle")
    assert seen(q) == before
    assert q.check() == []


def test_cancel_a_move_that_runs(q: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(q, clock)
    before = seen(q)
    monkeypatch.setattr(steps, "LANES_MAX", 3)
    cancelled: list[bool] = []
    with pytest.raises(MoveBlocked, match="cancelled"):
        q.move(LO, HI, to=None, on_progress=lambda *_: cancelled.append(q.cancel_move()))
    assert cancelled == [True], "nothing more leaves"
    assert q.topology().moving is None
    assert [(shard.retired, shard.lanes) for shard in q.topology().shards] == [(False, q.stats().lanes), (True, 0)]
    assert seen(q) == before
    assert q.check() == []


def test_a_key_that_is_new_while_a_cancelled_move_comes_back(q: Queue, clock: FakeClock) -> None:
    prepare(q, clock)
    begin(q)
    names: list[str] = []

    def send() -> None:
        names.append(f"new-{len(names)}")
        for _ in range(2):
            q.send(b"", key=names[-1])
        assert q.explain(names[0]).depth == 2

    with after_each_commit(send):
        assert q.cancel_move()
    assert len(names) >= 6
    assert [q.send(b"", key=name).seq for name in names] == [3] * len(names)
    assert q.topology().moving is None
    assert q.check() == []


def cancel_and_die(q: Queue, n: int) -> None:
    """Cancel the move, and die behind the n-th transaction."""
    count = 0

    def die() -> None:
        nonlocal count
        count += 1
        if count == n:
            raise Killed

    with suppress(Killed), after_each_commit(die):
        q.cancel_move()
    assert count == n, "so many steps are needed"


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize("n", range(1, 7))
def test_a_cancel_that_dies_is_finished(q: Queue, clock: FakeClock, n: int, source: int) -> None:
    """It dies behind its n-th transaction. The shard that the range leaves is the first one, or the second one."""
    prepare(q, clock)
    if source:
        q.move(0, HI, to=None)
    stop_at(q, "sweep", to=0 if source else None, source=source)
    before = seen(q)
    cancel_and_die(q, n)
    for key in KEYS:
        assert q.send(b"new", key=f"new-{key}").seq == 1
    finish(q)
    for key in KEYS:
        assert q.send(b"new", key=f"new-{key}").seq == 2
        q.purge(f"new-{key}")
    assert q.topology().moving is None
    assert [shard.retired for shard in q.topology().shards] == [source == 1, source == 0]
    assert seen(q) == before
    assert q.check() == []


@pytest.mark.parametrize("n", range(1, 7))
def test_a_key_without_a_lane_is_used_while_a_cancelled_move_comes_back(q: Queue, clock: FakeClock, n: int) -> None:
    """The cancel dies behind its n-th transaction. Then each key that has a state and rows, and no lane, is used."""
    prepare(q, clock)
    begin(q)
    cancel_and_die(q, n)
    for key in LOOSE:
        assert state_of(q, key) == key.encode()
        with q.transaction(key=key) as tx:
            assert tx.key_state == key.encode()
            tx.execute("UPDATE app_note SET n = 2 WHERE owner = ?", (key,))
            tx.key_state = b"new"
    finish(q)
    assert q.check() == []
    assert {state_of(q, key) for key in LOOSE} == {b"new"}
    assert [note for note in notes(q) if note[0] in LOOSE] == [(key, 2) for key in LOOSE]


def test_a_move_is_cancelled_while_a_key_without_a_lane_is_about_to_leave(
    q: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(q, clock)
    begin(q)
    real = steps.leave_loose

    def cancel_first(tx: Any, *args: Any) -> Any:
        ranges = tx.lanes.memory.ranges
        if not ranges.leaving.cancelled:
            leaving = attrs.evolve(ranges.leaving, cancelled=True)
            steps.tell(tx, attrs.evolve(ranges, leaving=leaving, arriving=leaving.back(1)))
        return real(tx, *args)

    monkeypatch.setattr(steps, "leave_loose", cancel_first)
    key = next(key for key in LOOSE if moves(key))
    with q.transaction(key=key) as tx:
        assert tx.key_state == key.encode()
    finish(q)
    assert q.check() == []
    assert state_of(q, key) == key.encode()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_reader_finds_the_state_of_a_key_without_a_lane_from_either_shard(
    q: Queue, disk: Opener, clock: FakeClock, cancelled: bool
) -> None:
    """The range was in shard 1, is in shard 0, and moves to shard 1 again. Readers begin to look in either."""
    prepare(q, clock)
    q.move(LO, HI, to=None)
    late = disk()
    store_of(late)._upkeep.stop()
    key = next(key for key in LOOSE if moves(key))
    assert state_of(late, key) == key.encode()  # it has learnt that shard 1 has the key
    before = seen(q)
    q.merge(1, into=0)
    connection_of(q).execute("DELETE FROM lane WHERE key IN (SELECT key FROM key_state) AND tail = 0")
    q.close()
    q = disk()
    store_of(q)._upkeep.stop()
    with unfinished():
        q.move(LO, HI, to=1)
        if cancelled:
            q.cancel_move()
    assert [state_of(reader, key) for reader in (q, late)] == [key.encode()] * 2
    finish(q)
    assert q.check() == []
    assert seen(q) == before


def test_a_move_is_cancelled_again_and_again(q: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(q, clock)
    before = seen(q)
    monkeypatch.setattr(steps, "LANES_MAX", 3)
    cancelled: list[bool] = []

    def cancel() -> None:
        if q.topology().shards[-1].lanes and q.topology().moving is not None:
            cancelled.append(q.cancel_move())

    with pytest.raises(MoveBlocked, match="cancelled"), after_each_commit(cancel):
        q.move(LO, HI, to=None)
    assert len(cancelled) > 3
    assert not q.cancel_move()
    assert [shard.retired for shard in q.topology().shards] == [False, True]
    assert seen(q) == before
    assert q.check() == []


NEW: Final = next(key for key in (f"new-{n}" for n in range(100)) if moves(key))
LOOKS: Final[dict[str, Callable[[Queue], object]]] = {
    "state": lambda q: state_of(q, NEW),
    "peek": lambda q: q.peek(NEW, 10),
    "explain": lambda q: q.explain(NEW),
    "status": lambda q: q.status(NEW, 1),
    "dead letters": lambda q: q.dead_letters(NEW),
    "query": lambda q: q.query("SELECT 1", key=NEW),
    "Spark": lambda q: [scan.ranges(shard, dead=False, per_task=1000, keys=[encode_key(NEW)]) for shard in store_of(q).shards],
}
"""Looks at a key that was never used."""


@pytest.mark.parametrize("stopped", ["before a lane leaves", "arrive", "cancelled"])
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_at_a_new_key_gives_it_no_lane(q: Queue, disk: Opener, clock: FakeClock, look: str, stopped: str) -> None:
    """Another process sends to the key meanwhile. The one that looked finds the lane of that message."""
    prepare(q, clock)
    if stopped == "arrive":
        stop_at(q, stopped)
    else:
        begin(q)
    if stopped == "cancelled":
        with unfinished():
            q.cancel_move()
    other = disk()
    store_of(other)._upkeep.stop()
    with suppress(UnknownMessage):
        LOOKS[look](q)
    assert [other.send(b"", key=NEW).seq, q.send(b"", key=NEW).seq] == [1, 2]
    finish(q)
    assert q.check() == []
    assert q.explain(NEW).depth == 2


@pytest.mark.parametrize("to", ["arrived", "on its way"])
def test_a_verb_over_all_keys_finds_those_that_move_meanwhile(disk: Opener, clock: FakeClock, to: str) -> None:
    """The keys of shard 1 move to shard 0 once the verb has been there."""
    q = disk(shards=2)
    verbs: list[Callable[[], int]] = [q.redrive, lambda: q.purge(older_than=10.0), q.purge, lambda: q.purge(dead=True)]
    for verb in verbs:
        for key in KEYS:
            fill(q, key, 2)
            q.reject(key, q.explain(key).head_seq or 0, "bad", force=True)
        clock.advance(20.0)
        moved: list[int] = []

        def move(moved: list[int] = moved) -> None:
            if not moved:
                moved.append(1)
                if to == "arrived":
                    q.merge(1, into=0)
                else:
                    stop_at(q, "arrive", lo=1 << 63, to=0, source=1)

        expected = q.stats()
        with after_each_commit(move):
            n = verb()
        finish(q)
        assert n == {0: expected.dead, 3: expected.depth + expected.dead}.get(verbs.index(verb), expected.depth)
        q.purge(dead=True)
        q.move(1 << 63, HI, to=1)
    assert q.check() == []


def test_an_observer_sends_while_keys_move(q: Queue) -> None:
    """A hook runs in the thread that moves, which would wait for itself if it brought keys to their new shard, too."""
    q.send_many([Message(b"", key=f"key-{n}") for n in range(40)])

    class Sends(strictq.Observer):
        sent, inside = 0, False

        def duration(self, name: str, seconds: float, shard: int) -> None:
            if name == "commit" and not self.inside and self.sent < 100:
                self.inside = True
                with q.transaction(key=f"key-{self.sent % 40}") as tx:
                    tx.send(b"", key=f"sent-{self.sent}")
                q.send(b"", key=f"other-{self.sent}")
                self.sent += 1
                self.inside = False

    sends = Sends()
    with q.observe(sends), small_steps():
        q.split(0)
        q.merge(1, into=0)
    assert sends.sent > 10
    for n in range(sends.sent):
        assert [q.send(b"", key=f"{name}-{n}").seq for name in ("sent", "other")] == [2, 2]
    assert q.check() == []


def test_only_one_range_moves_at_a_time(q: Queue) -> None:
    lock = files.Lock(Path(q.path) / layout.MOVE_LOCK)
    assert lock.alone(0.0)
    with pytest.raises(MoveInProgress, match="another range"):
        q.split(0)
    lock.leave()
    assert q.split(0).messages == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda q: q.split(5), "there is no shard 5"),
        (lambda q: q.split(0, parts=1), "parts must be"),
        (lambda q: q.split(0, at=-1), "at must be"),
        (lambda q: q.merge(0, into=0), "into itself"),
        (lambda q: q.move(5, 4, to=None), "hi must be"),
        (lambda q: q.move(0, 1, to=0), "owns this range already"),
        (lambda q: q.move(0, 1, to=9), "there is no shard 9"),
        (lambda q: q.isolate(""), "must not be empty"),
        (lambda q: q.split(0, on_progress=1), "on_progress"),
    ],
)
def test_bad_input(q: Queue, call: Callable[[Queue], object], says: str) -> None:
    fill(q, MOVING, 1)
    with pytest.raises(InvalidArgument, match=says):
        call(q)
    assert len(q.topology().shards) == 1
    assert q.topology().moving is None


def test_dedup_ids_of_the_whole_queue(disk: Opener) -> None:
    q = disk(dedup_scope="queue")
    with pytest.raises(strictq.ConfigError, match="dedup_scope"):
        q.split(0)


def test_in_memory() -> None:
    with strictq.open(":memory:") as q:
        for key in KEYS:
            fill(q, key, 3)
        assert q.split(0, parts=3).messages > 0
        assert q.check() == []
        assert len(drain(q)) == 36


# ---- what else knows shards


def test_sends_of_transactions_follow_a_key_in_order(disk: Opener) -> None:
    q = disk(shards=2)
    there = next(key for key in KEYS if hash_key(encode_key(key)) >= 1 << 63)
    here = next(key for key in KEYS if hash_key(encode_key(key)) < 1 << 63)
    other = disk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store_of(q)), "forward", lambda *_: None)
        with q.transaction(key=here) as tx:
            tx.send(b"1", there)
        q.move(1 << 63, (1 << 64) - 1, to=0)
        with q.transaction(key=here) as tx:
            tx.send(b"2", there)
    # The first one waits for a shard that the key has left, and the second one must not overtake it in this one.
    q.split(0, at=1 << 62)
    with other.transaction(key=here) as tx:
        tx.send(b"3", there)
    store_of(other).forward()
    assert [d.body for d in q.receive(10, keys=[there])] == [b"1", b"2", b"3"]
    assert q.stats().outbox == 0
    assert q.check() == []


def test_the_leases_of_a_dead_worker_end_where_its_keys_are(disk: Opener) -> None:
    q = disk(shards=2)
    here, there = (next(key for key in KEYS if (hash_key(encode_key(key)) >= 1 << 63) is high) for high in (False, True))
    tokens = set()
    for key in (here, there):
        q.send_many([Message(b"", key=key), Message(b"", key=key)])
        (d,) = q.receive(1, keys=[key])
        tokens.add(d.token)
    assert len(tokens) == 1, "two shards issue equal tokens"
    q.merge(1, into=0)
    store = store_of(q)
    store.shards[0].run(lambda tx: tx.lanes.rest())
    for issuer, key in ((1, there), (0, here)):
        dead = holders.Dead({issuer: [*tokens]}, single=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(holders, "dead", lambda *_, dead=dead: [dead])
            store.consumers.end_dead()
        assert [d.key for d in q.receive(10, per_key=1)] == [key]
    assert q.check() == []


def test_batches_of_a_named_consumer_go_on(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "WAIT_SECONDS", 0.1)
    q = disk(shards=2)
    q.send_many([Message(b"%d" % n, key=f"key-{n % 40}") for n in range(200)])
    h = holder(q)
    taken = read(q, h, h.take(0, messages_max=60))
    with pytest.raises(MoveBlocked, match="named consumer's batch"):
        q.split(0)
    assert q.topology().moving is not None
    h.ack(1)
    finish(q)
    taken += recorded_batches.drain(q, h, messages_max=60)
    assert sorted(taken) == sorted((f"skey-{n % 40}", n // 40 + 1, str(n)) for n in range(200))
    for key in {key for key, *_ in taken}:
        mine = [seq for of, seq, _ in taken if of == key]
        assert mine == sorted(mine)
    h.close()
    assert q.check() == []


def test_a_named_consumer_joins_a_shard_that_was_added_after_it_failed(disk: Opener) -> None:
    """It reads the state of all shards again, and finds one in which it has none yet."""
    q = disk()
    q.send_many([Message(b"%d" % n, key=f"key-{n % 40}") for n in range(200)])
    h = holder(q)
    h.take(0, messages_max=12)
    h.withdraw_newest()
    q.split(0)
    assert len(recorded_batches.drain(q, h, messages_max=60)) == 200
    h.close()
    assert q.check() == []


def test_a_range_stays_until_no_batch_has_a_lane_of_it(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also lanes that an earlier step of the move has passed."""
    monkeypatch.setattr(moving, "WAIT_SECONDS", 0.1)
    q = disk()
    q.send_many([Message(b"%d" % n, key=f"key-{n % 40}") for n in range(200)])
    h = holder(q)
    taken = read(q, h, h.take(0, messages_max=12))
    with small_steps(), pytest.raises(MoveBlocked, match="named consumer's batch"):
        q.move(0, HI, to=None)
    assert q.topology().moving is not None
    assert q.send(b"200", key="key-0").seq == 6
    h.ack(1)
    finish(q)
    taken += recorded_batches.drain(q, h, messages_max=60)
    assert [int(body) for key, _, body in taken if key == "skey-0"] == [0, 40, 80, 120, 160, 200]
    assert len(taken) == 201
    h.close()
    assert q.check() == []


def test_a_backup_and_a_salvage_of_moved_ranges(q: Queue, tmp_path: Path, clock: FakeClock) -> None:
    prepare(q, clock)
    q.move(LO, HI, to=None)
    expected = seen(q)
    q.backup(tmp_path / "copy")
    with strictq.open(tmp_path / "copy", read_only=True, clock=clock) as copy:
        assert seen(copy) == expected
    q.close()
    strictq.salvage(tmp_path / "queue", tmp_path / "saved")
    with strictq.open(tmp_path / "saved", clock=clock) as saved:
        assert saved.check() == []
        assert saved.stats().dead == expected["counts"][1]
        assert [shard.ranges for shard in saved.topology().shards] == [((0, LO - 1),), ((LO, HI),)]
        assert saved.send(b"", key=KEYS[0]).seq == 5


def test_a_parcel_of_a_move_that_has_ended_stops_others_and_is_salvaged(q: Queue, tmp_path: Path, clock: FakeClock) -> None:
    """An older version could let a key without a lane leave with a move that was cancelled."""
    prepare(q, clock)
    q.move(LO, HI, to=None)
    q.merge(1, into=0)
    expected = kept(q)
    with q.transaction(key="stranded") as tx:
        tx.key_state = b"of a key without a lane"

    def strand(tx: Any) -> None:
        passage = Passage("of an older version", 0, HI, 1)
        ranges = tx.lanes.memory.ranges
        steps.set_ranges(tx, attrs.evolve(ranges, leaving=passage))
        assert steps.leave_loose(tx, passage, [encode_key("stranded")]) == 1
        steps.tell(tx, ranges)

    store_of(q).shards[0].run(strand)
    assert state_of(q, "stranded") is None
    assert [problem.rule for problem in q.check()] == ["parcel"]
    with pytest.raises(MoveBlocked, match="of shard 0 has arrived nowhere"):
        q.move(LO, HI, to=1)
    q.close()
    strictq.salvage(tmp_path / "queue", tmp_path / "saved", clock=clock)
    with strictq.open(tmp_path / "saved", clock=clock) as saved:
        assert state_of(saved, "stranded") == b"of a key without a lane"
        assert kept(saved) == expected
        saved.move(LO, HI, to=1)
        assert state_of(saved, "stranded") == b"of a key without a lane"
        assert saved.check() == []


@pytest.mark.parametrize("step", ["arrive", "sweep"])
def test_a_salvage_in_the_middle_of_a_move(q: Queue, tmp_path: Path, clock: FakeClock, step: str) -> None:
    prepare(q, clock)
    expected = kept(q)
    stop_at(q, step)
    q.close()
    found = strictq.salvage(tmp_path / "queue", tmp_path / "saved", clock=clock)
    assert (found.lost, found.unverified) == ((), ())
    with strictq.open(tmp_path / "saved", clock=clock) as saved:
        assert kept(saved) == expected
        finish(saved)
        assert saved.check() == []
        assert kept(saved) == expected
        assert saved.send(b"again", key=KEYS[4], dedup_id="the-one").duplicate


@pytest.mark.parametrize("lost", [[0], [1], [0, 1]])
def test_a_salvage_of_lost_ranges(q: Queue, tmp_path: Path, clock: FakeClock, lost: list[int]) -> None:
    prepare(q, clock)
    q.move(LO, HI, to=None)
    expected = kept(q)
    files_of = [store_of(q).shards[number].path for number in lost]
    q.close()
    for file in files_of:
        assert file is not None
        tamper(file, "DELETE FROM meta WHERE name = 'ranges'")
    found = strictq.salvage(tmp_path / "queue", tmp_path / "saved", clock=clock)
    assert [note.partition(" of keys")[0] for note in found.notes] == [f"shard {n}: which ranges" for n in lost]
    with strictq.open(tmp_path / "saved", clock=clock) as saved:
        if len(lost) == 1:
            assert [shard.ranges for shard in saved.topology().shards] == [((0, LO - 1),), ((LO, HI),)]
        assert kept(saved) == expected
        assert saved.check() == []
        assert saved.send(b"", key="new").seq == 1


def test_check_compares_what_the_shards_own(q: Queue) -> None:
    q.split(0)
    half = 1 << 63
    for own, says, fixable in (
        (f"[[0,{half}]]", "another shard owns hashes from", False),
        (f"[[0,{half - 2}]]", "no shard owns the hashes from", True),
        ("[]", "no shard owns the hashes from 0000000000000000 to", True),
    ):
        db = connection_of(q)
        text = db.execute("SELECT value FROM meta WHERE name = 'ranges'").get
        db.execute("UPDATE meta SET value = json_set(?, '$.own', json(?)) WHERE name = 'ranges'", (text, own))
        store_of(q).shards[0].run(lambda tx: tx.lanes.begin_anew())
        found = [problem for problem in q.check() if problem.rule == "ranges"]
        assert [(says in problem.detail, problem.fixable) for problem in found] == [(True, fixable)], own
    assert [problem.fixed for problem in q.check(fix=True) if problem.rule == "ranges"] == [True]
    assert q.check() == []
    assert q.topology().shards[0].ranges == ((0, half - 1),)


@pytest.mark.parametrize("has_lanes", [True, False])
def test_hashes_that_no_shard_owns_go_to_the_one_that_has_their_lanes(q: Queue, has_lanes: bool) -> None:
    if has_lanes:
        fill(q, MOVING, 3)
    q.move(LO, HI, to=None)
    db = connection_of(q, 1)
    db.execute("UPDATE meta SET value = json_set(value, '$.own', json('[]')) WHERE name = 'ranges'")
    store_of(q).shards[1].run(lambda tx: tx.lanes.begin_anew())
    q.check(fix=True)
    assert q.check() == []
    assert q.topology().shards[1].ranges == ((LO, HI),)
    assert q.send(b"", key=MOVING).seq == (4 if has_lanes else 1)


def test_each_hash_has_one_owner_at_any_time(q: Queue, disk: Opener, clock: FakeClock) -> None:
    prepare(q, clock)
    other = disk()

    def look() -> None:
        spans = sorted(span for one in other.topology().shards for span in one.ranges)
        assert [lo for lo, _ in spans] == [0, *(hi + 1 for _, hi in spans[:-1])]
        assert spans[-1][1] == HI

    with small_steps(), after_each_commit(look):
        q.split(0)
        q.merge(1, into=0)
        with unfinished():
            q.move(LO, HI, to=1)
        q.cancel_move()
    assert other.topology().moving is None


@pytest.mark.parametrize("at", range(4))
def test_the_topology_while_another_process_moves_ranges(
    q: Queue, disk: Opener, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    q.move(LO, HI, to=None)
    other = disk()
    looks = 0
    look = Shard.view

    def view(shard: Shard, read: Any) -> Any:
        nonlocal looks
        found = look(shard, read)
        if shard in store_of(q).shards and (looks := looks + 1) == at + 1:
            other.merge(1, into=0)
        return found

    monkeypatch.setattr(Shard, "view", view)
    assert [one.ranges for one in q.topology().shards] == [((0, HI),), ()]


@pytest.mark.parametrize("at", range(4))
def test_check_while_another_process_adds_shards_and_moves(
    q: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Whatever it reads first: the ranges that a shard owned before, and those that another shard owns now, are no damage."""
    fill(q, MOVING, 3)
    q.move(LO, HI, to=None)
    with strictq.open(store_of(q).directory, clock=clock) as other:
        looks = 0
        look = Shard.view

        def view(shard: Shard, read: Any) -> Any:
            nonlocal looks
            if shard in store_of(q).shards and (looks := looks + 1) == at + 1:
                other.move(LO, HI, to=None)
            return look(shard, read)

        monkeypatch.setattr(Shard, "view", view)
        assert q.check() == []
        assert len(other.topology().shards) == 3


def test_check_finds_parcels_that_never_left(q: Queue) -> None:
    fill(q, MOVING, 3)
    q.move(LO, HI, to=None)
    connection_of(q, 1).execute("UPDATE inlet SET high_water = 9")
    assert [problem.detail.partition(" of ")[0] for problem in q.check() if problem.rule == "inlet"] == ["has had send 9"]


def test_a_restored_copy_of_moved_ranges(q: Queue, tmp_path: Path, clock: FakeClock) -> None:
    prepare(q, clock)
    q.move(LO, HI, to=None)
    expected = seen(q)
    strictq.open(tmp_path / "other", clock=clock).close()
    q.configure_replication(tmp_path / "target")
    until(lambda: is_shipped(q))
    q.close()
    with pytest.raises(strictq.ConfigError, match="ranges of keys have moved"):
        strictq.merge(q.path, tmp_path / "other", clock=clock)
    strictq.restore(tmp_path / "target", tmp_path / "restored", alone=True)
    with strictq.open(tmp_path / "restored", read_only=True, clock=clock) as copy:
        assert copy.check() == []
        assert [shard.ranges for shard in copy.topology().shards] == [((0, LO - 1),), ((LO, HI),)]
        assert seen(copy)[STAYING][0] == expected[STAYING][0]
        assert seen(copy)[MOVING][0] == expected[MOVING][0]


def test_an_object_that_has_not_heard_of_new_shards(q: Queue, disk: Opener) -> None:
    idle = disk()
    q.split(0)
    assert idle.check() == []
    assert len(idle.topology().shards) == 2


def test_opening_with_the_number_of_shards_that_it_was_created_with(disk: Opener) -> None:
    q = disk(shards=2)
    q.split(0)
    q.close()
    assert disk(shards=2).shards == 3
    with pytest.raises(strictq.ConfigError, match="number of shards is 3, not 4; it was created with 2"):
        disk(shards=4)


def test_a_shard_of_one_hash_is_not_divided(q: Queue) -> None:
    q.send(b"", key="hot")
    q.isolate("hot")
    isolated = q.topology().shards[-1]
    with pytest.raises(InvalidArgument, match="cannot be divided into 2 parts: it owns 1 of the hashes"):
        q.split(isolated.shard)


def test_advice(q: Queue) -> None:
    assert q.advise() == []
    q.send_many([Message(b"", key="busy") for _ in range(20_000)])
    q.send(b"", key="other")
    (advice,) = q.advise()
    assert (advice.what, advice.key) == ("isolate", "busy")
    q.isolate("busy")
    assert q.advise() == []
    assert [(s.lanes, s.messages) for s in q.topology().shards] == [(1, 1), (1, 20_000)]


# ---- the parts


def test_lost_ranges_follow_from_those_of_the_others() -> None:
    top = (1 << 64) - 1
    known = Ranges(own=((10, 19), (200, 299)))
    lanes = {0: [3, 30, 500], 1: [100, 150, 400]}
    one, other, new = completed([None, None, known], lanes.__getitem__)
    assert (one.own, other.own, new) == (((0, 9), (20, 99), (500, top)), ((100, 199), (300, 499)), known)
    assert one.left == ((100, 199, 1), (300, 499, 1), (10, 19, 2), (200, 299, 2))
    # Nothing is known at all, or a move from a lost shard, or to one, was running.
    none: dict[int, list[int]] = {0: [], 1: []}
    assert [one.own for one in completed([None, None], none.__getitem__)] == [((0, top),), ()]
    source, target = Ranges(own=((0, top),), leaving=Passage("m", 5, 9, 1, 4)), Ranges(arriving=Passage("m", 5, 9, 0))
    assert completed([source, None], none.__getitem__)[1] == Ranges(arriving=Passage("m", 5, 9, 0), left=((0, top, 0),))
    assert completed([None, target], none.__getitem__)[0] == Ranges(own=((0, top),), leaving=Passage("m", 5, 9, 1))


def test_the_map_of_owners() -> None:
    owners = OwnerMap(ShardList.even(2))
    half = 1 << 63
    owners.assign(10, 20, 7)
    owners.assign(half - 5, half + 5, 8)
    owners.assign(half + 6, (1 << 64) - 1, 9)
    points = [(0, 0), (9, 0), (10, 7), (20, 7), (21, 0), (half - 6, 0), (half - 5, 8), (half + 5, 8), (half + 6, 9)]
    assert [(at, owners.owner(at)) for at, _ in points] == points
    assert owners.owner((1 << 64) - 1) == 9


def test_ranges_as_they_are_stored() -> None:
    ranges = Ranges(own=((0, 99),)).moved_to(20, 29, 3).with_range(40, 40)
    assert ranges.own == ((0, 19), (30, 99))
    assert ranges.moved_to(0, 9, 4).left == ((20, 29, 3), (0, 9, 4))
    assert ranges.with_range(20, 29).own == ((0, 99),)
    passage = Passage("m", 30, 39, 2)
    leaving = Ranges(own=((0, 99),), leaving=passage)
    assert [leaving.may_create(n) for n in (29, 30, 39, 40)] == [True, False, False, True]
    assert Ranges.from_text(leaving.to_text()) == leaving
