"""Reports beside a writer: each sees one state, the same as if every lane had cooled, and reads one lane."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest

import strictq
from strictq import Delivery, LeaseLost, Message, Queue, StoreError, UnknownMessage
from strictq._keys import encode_key
from strictq._store import shard as shard_module
from strictq._store.bulk import scan
from strictq._store.bulk.columns import MessageRange
from strictq._store.commit.tx import Tx
from strictq._store.hot.cooling import number
from strictq._store.lanes.lanes import create, forget_idle
from strictq._store.onelane.leases import KEY
from tests.store.test_hot import ACTS, WARM, Walk
from tests.support.hot import narrow
from tests.support.internals import shard_of
from tests.support.queues import Opener, fill

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]
VARYING = ("disk_bytes", "wal_bytes", "empty_receives")
"""Each queue object writes its empty receives later."""
STATEMENTS_MAX = 40
"""What a look at one key may execute, however many lanes are hot."""


def reports(q: Queue, sent: dict[Any, int]) -> dict[str, Any]:
    """Return what every report says."""
    of_key = {key: (q.explain(key), q.peek(key, 1000), [q.status(key, seq + 1) for seq in range(n)]) for key, n in sent.items()}
    stats = q.stats()
    shards = [attrs.asdict(shard) for shard in stats.shards]
    for shard in shards:
        for name in VARYING:
            del shard[name]
    return {"keys": of_key, "shards": shards}


@contextmanager
def transaction_of_another_thread(q: Queue) -> Iterator[None]:
    """Keep the write lock of a queue with one shard while the block runs."""
    opened, leave = threading.Event(), threading.Event()

    def hold() -> None:
        alone = shard_of(q).alone()
        try:
            alone.begin()
            opened.set()
            assert leave.wait(60.0)
        finally:
            alone.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert opened.wait(60.0)
    try:
        yield
    finally:
        leave.set()
        thread.join()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("acts", [WARM, [*WARM * 4, *ACTS]], ids=["warm", "mixed"])
def test_reports_are_those_of_cooled_lanes(queue_path: str, acts: list[str], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with narrow():
        walk = Walk(queue_path, seed, 1, acts)
        q, other = walk.queues
        for n in range(120):
            walk.step()
            if n % 5 == 0:
                found = reports(q, walk.sent)
                assert reports(other, walk.sent) == found
                with transaction_of_another_thread(q), monkeypatch.context() as patched:
                    patched.setattr(shard_module, "MEMORY_SECONDS", 0.0)
                    assert reports(q, walk.sent) == found
            if n % 20 == 0:
                shard_of(q).cool()
                assert reports(q, walk.sent) == found
        for each in walk.queues:
            each.close()


LOOKS: dict[str, Callable[[Queue, Delivery], object]] = {
    "explain": lambda q, d: q.explain(d.key),
    "peek": lambda q, d: q.peek(d.key),
    "status": lambda q, d: q.status(d.key, d.seq),
    "key_state": lambda _q, d: d.key_state,
    "stats": lambda q, _d: q.stats(),
}


def statements_of(q: Queue, act: Callable[[], object]) -> int:
    """Return how many statements the connections of the first shard execute while `act` runs."""
    executed: list[str] = []
    shard = shard_of(q)
    connections = [db for db in (shard._writer._db, shard._glances.db, shard._reader.db) if db is not None]
    for db in connections:
        db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: executed.append(event["sql"]))
    act()
    for db in connections:
        db.trace_v2(0, None)
    return len(executed)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("name", LOOKS)
def test_a_look_beside_a_writer_does_not_read_every_lane(
    disk: Opener, name: str, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if busy:
        monkeypatch.setattr(shard_module, "MEMORY_SECONDS", 0.0)
    q = disk(shards=1)
    other = disk.open()
    q.send(b"", key="a")
    (d,) = q.receive(1)

    def act() -> None:
        LOOKS[name](q, d)

    counts = []
    for n in (10, 500):
        other.send_many([Message(b"", key=f"{n}-{each}") for each in range(n)])
        act()
        with transaction_of_another_thread(q) if busy else nullcontext():
            act()
        other.send(b"", key=f"{n}-3")
        with transaction_of_another_thread(q) if busy else nullcontext():
            counts.append(statements_of(q, act))
    assert counts[0] == counts[1] < STATEMENTS_MAX


def test_a_lost_lease_is_explained_from_one_lane(disk: Opener) -> None:
    q = disk(shards=1)
    other = disk.open()
    q.send(b"", key="a")
    (d,) = q.receive(1)
    d.lease.release()
    q.receive(1)

    def act() -> None:
        with pytest.raises(LeaseLost):
            d.ack()

    counts = []
    for n in (10, 500):
        other.send_many([Message(b"", key=f"{n}-{each}") for each in range(n)])
        for _ in range(2):
            other.send(b"", key=f"{n}-3")
            counts.append(statements_of(q, act))
    assert counts[1] == counts[3] < STATEMENTS_MAX


def test_a_released_message_has_no_attempt_again(disk: Opener) -> None:
    q = disk(shards=1)
    other = disk.open()
    q.send(b"", key="a")
    disk.clock.advance(10.0)
    q.send(b"", key="b")
    disk.clock.advance(10.0)
    (held,) = q.receive(1)
    for each in (q, other):
        stats = each.stats()
        assert (stats.in_flight, stats.oldest_age_seconds, stats.first_attempt_age_seconds) == (1, 20.0, 10.0)
    held.lease.release()
    for each in (q, other):
        stats = each.stats()
        assert (stats.in_flight, stats.oldest_age_seconds, stats.first_attempt_age_seconds) == (0, 20.0, 20.0)


def test_messages_of_an_expired_lease_are_not_in_flight(disk: Opener) -> None:
    q = disk(shards=1, lease_seconds=30.0)
    other = disk.open()
    fill(q, "a", 3)
    fill(q, "b", 2)
    q.receive(3, keys=["a"])
    disk.clock.advance(20.0)
    q.receive(2, keys=["b"])
    for each in (q, other):
        assert each.stats().in_flight == 5
    disk.clock.advance(15.0)
    for each in (q, other):
        assert (each.stats().in_flight, each.stats().ready) == (2, 3)


def test_hot_lanes_are_counted_though_rows_are_created_and_deleted(disk: Opener) -> None:
    q = disk(shards=1, idle_lane_seconds=100.0)
    other = disk.open()

    def require(lanes: int) -> None:
        for each in (q, other):
            assert each.stats().lanes == lanes

    for key in ("a", "b"):
        q.send(b"", key=key)
    require(2)
    for d in q.receive(2):
        d.ack()
    shard_of(q).cool()
    require(2)
    for key in ("a", "c"):
        q.send(b"", key=key)
    require(3)
    with q.transaction(key="c") as tx:
        tx.key_state = b"1"
    require(3)
    disk.clock.advance(200.0)
    shard_of(q).run(lambda tx: forget_idle(tx, 1, 100))
    require(2)
    shard_of(q).cool()
    require(2)
    assert q.check() == []


def test_lanes_are_counted_after_as_many_were_created_as_deleted(disk: Opener) -> None:
    q = disk(shards=1, idle_lane_seconds=100.0)
    for n in range(3):
        q.send(b"", key=f"idle-{n}", delay=50.0)
        q.purge(f"idle-{n}")
    disk.clock.advance(200.0)
    q.send(b"", key="hot")
    assert q.stats().lanes == 4

    def create_and_forget(tx: Tx) -> None:
        assert tx.hot is not None
        number(tx, tx.hot.lanes[encode_key("hot")])
        create(tx, encode_key("another"))
        forget_idle(tx, 1, 2)
        tx.dirty = True

    shard_of(q).run(create_and_forget)
    rows = shard_of(q).read(lambda db: db.execute("SELECT count(*) FROM lane").get)
    assert q.stats().lanes == rows == 3


def test_a_keyless_message_is_found_in_a_hot_lane(disk: Opener) -> None:
    q = disk(shards=1, keyless="random", keyless_lanes=2)
    other = disk.open()
    receipts = [q.send(b"%d" % n) for n in range(20)]
    (held,) = q.receive(1)
    for each in (q, other):
        assert [m.body for r in receipts for m in each.peek(r)] == [b"%d" % n for n in range(20)]
        assert [each.status(r).state for r in receipts].count("in_flight") == 1
    held.ack()
    for each in (q, other):
        assert [each.status(r).state for r in receipts].count("resolved") == 1
        assert sum(len(each.peek(r)) for r in receipts) == 19
    with pytest.raises(UnknownMessage):
        q.status(receipts[-1]._replace(id=21))


@pytest.mark.parametrize("limit", [10, 100_000])
def test_a_look_gets_bodies_that_are_stored_out_of_line(disk: Opener, limit: int) -> None:
    q = disk(shards=1)
    other = disk.open()
    bodies = [b"a", b"b" * 100_000, b"c"]
    for body in bodies:
        q.send(body, key="k")
    assert [m.body for m in other.peek("k", limit)] == bodies


@pytest.mark.parametrize("change", ["a lane with a row", "a fold", "an ack", "a send"])
def test_a_read_only_plan_of_hot_lanes_holds_for_one_state(tmp_path: Path, change: str) -> None:
    """Lanes without a row have numbers of that state alone, so a later step could read some twice and others never."""
    with strictq.open(tmp_path / "q", shards=1) as q, strictq.open(tmp_path / "q", read_only=True) as look:
        keys = [f"k{n}" for n in range(5, -1, -1)]
        for key in keys:
            q.send(b"x", key=key)
        shard = shard_of(look)
        with strictq.open(tmp_path / "q", read_only=True) as executor:
            first, *rest = scan.ranges(shard, dead=False, per_task=2)
            assert rest
            others = shard_of(executor)

            def read(part: MessageRange) -> list[bytes]:
                plan, segments = scan.planned(part)
                return [bytes(row[KEY]) for segment in segments for rows in scan.pending(others, plan, segment) for row in rows]

            found = [key for part in (first, *rest) for key in read(part)]
            assert sorted(found) == [encode_key(key) for key in sorted(keys)], "no process writes"
            if change == "a lane with a row":
                q.send(b"later", key="another", delay=100.0)
            elif change == "a fold":
                shard_of(q).cool()
            elif change == "an ack":
                q.receive(1)[0].ack()
            else:
                q.send(b"y", key="k9")
            with pytest.raises(StoreError, match="changed while they were read"):
                read(rest[0])
