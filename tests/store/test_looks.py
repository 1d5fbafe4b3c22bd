"""Reports beside a writer: each sees one state, the same for lanes at rest and for those in memory, and reads one lane."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import apsw
import attrs
import pytest

import strictq
from strictq import Delivery, LeaseLost, Message, Queue, UnknownMessage
from strictq._store.shard import counting, forgetting
from strictq._store.shard import shard_file as shard_module
from strictq.testing import FakeClock
from tests.support.folds import fold, narrow
from tests.support.internals import shard_of
from tests.support.queues import Opener, fill
from tests.support.running import PATIENCE_SECONDS

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]
VARYING = ("disk_bytes", "wal_bytes", "empty_receives")
"""Each queue object writes its empty receives later."""
STATEMENTS_MAX = 40
"""What a look at one key may execute, however many lanes there are."""
FEW = {"explain": 5, "status": 5, "peek": 4}
"""What one may execute if its lane is in memory: BEGIN, whether anything was written, what was, what attempts left, ROLLBACK."""


def reports(q: Queue, sent: dict[Any, int]) -> dict[str, Any]:
    """Return what every report says."""
    of_key = {
        key: (q.explain(key), q.peek(key, 1000), [q.status(key, seq + 1) for seq in range(0, n, 7)]) for key, n in sent.items()
    }
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
            assert leave.wait(PATIENCE_SECONDS)
        finally:
            alone.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert opened.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        leave.set()
        thread.join()


class Walk:
    """Random calls of two queue objects on one directory. Remembers how many messages were sent to each key."""

    def __init__(self, path: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.sent: Counter[str] = Counter()
        config = strictq.QueueConfig(retry_delay_seconds=0.0, max_attempts=3)
        self.queues = [strictq.open(path, shards=1, config=config, clock=self.clock, durability="process") for _ in range(2)]
        self.held: list[Delivery] = []

    def step(self) -> None:
        q, chance = self.random.choice(self.queues), self.random
        key = f"k{chance.randrange(12)}"
        act = chance.choice(["send"] * 4 + ["receive"] * 3 + ["settle"] * 4 + ["hold", "release", "redrive", "wait", "start"])
        if act == "send":
            n = chance.choice([1, 1, 1, 9])
            q.send_many([Message(b"x", key=key, delay=chance.choice([0.0] * 6 + [5.0])) for _ in range(n)])
            self.sent[key] += n
        elif act == "receive":
            self.held += q.receive(chance.choice([1, 5, 20]), per_key=chance.choice([None, 1]), lease_seconds=30.0)
        elif act == "hold":
            q.hold(key)
            self.sent[key] += 0
        elif act == "release":
            q.release(key)
        elif act == "redrive":
            q.redrive(chance.choice([None, key]))
        elif act == "wait":
            self.clock.advance(chance.choice([1.0, 40.0]))
        elif self.held:
            d = self.held.pop(chance.randrange(len(self.held)))
            try:
                if act == "start":
                    d.start()
                    self.held.append(d)
                else:
                    chance.choice([d.ack, d.ack, d.ack, d.nack, lambda: d.reject("no"), lambda: d.defer(3.0), d.lease.release])()
            except LeaseLost:
                pass


@pytest.mark.parametrize("seed", SEEDS)
def test_reports_are_those_of_lanes_at_rest(queue_path: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with narrow():
        walk = Walk(queue_path, seed)
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
                fold(q)
                shard_of(q).run(lambda tx: tx.lanes.begin_anew())
                assert reports(q, walk.sent) == found
                assert reports(other, walk.sent) == found
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
    connections = [db for db in (shard._writer._db, shard._glances._db, shard._reader._db) if db is not None]
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


@pytest.mark.parametrize("name", FEW)
def test_a_look_at_one_key_beside_a_writer_opens_one_snapshot(disk: Opener, name: str) -> None:
    q = disk(shards=1)
    other = disk.open()
    q.send(b"", key="a")
    (d,) = q.receive(1)
    other.send(b"", key="b")
    LOOKS[name](q, d)
    other.send(b"", key="b")
    assert statements_of(q, lambda: LOOKS[name](q, d)) <= FEW[name]


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


def test_lanes_are_counted_though_others_are_forgotten(disk: Opener) -> None:
    q = disk(shards=1, idle_lane_seconds=100.0)
    other = disk.open()

    def require(lanes: int) -> None:
        for each in (q, other):
            assert each.stats().lanes == lanes

    for key in ("a", "b"):
        q.send(b"", key=key)
    require(2)
    q.ack_many(q.receive(2))
    fold(q)
    require(2)
    for key in ("a", "c"):
        q.send(b"", key=key)
    require(3)
    with q.transaction(key="c") as tx:
        tx.key_state = b"1"
    require(3)
    disk.clock.advance(200.0)
    shard_of(q).run(lambda tx: forgetting.forget(tx, [b"sa", b"sb", b"sc"], tx.now - 1))
    require(2)
    fold(q)
    require(2)
    assert q.check() == []


def test_a_keyless_message_is_found(disk: Opener) -> None:
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


def test_a_redriven_message_is_the_oldest_again(disk: Opener) -> None:
    q = disk(shards=1)
    other = disk.open()
    q.send(b"", key="a")
    q.receive(1)[0].reject("no")
    disk.clock.advance(10.0)
    q.send(b"", key="b")
    disk.clock.advance(10.0)
    for each in (q, other):
        assert (each.stats().oldest_age_seconds, each.stats().first_attempt_age_seconds) == (10.0, 10.0)
    q.redrive("a")
    for each in (q, other):
        assert (each.stats().oldest_age_seconds, each.stats().first_attempt_age_seconds) == (20.0, 20.0)
    q.purge("a")
    for each in (q, other):
        assert each.stats().oldest_age_seconds == 10.0
    q.purge()
    for each in (q, other):
        assert (each.stats().oldest_age_seconds, each.stats().first_attempt_age_seconds) == (None, None)


def test_the_age_of_the_first_attempt_is_a_bound_if_many_messages_had_one(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "AGES_OVER", 3)
    q = disk(shards=1, retry_delay_seconds=0.0)
    for n in range(6):
        q.send(b"", key=n)
        disk.clock.advance(1.0)
    for d in q.receive(2, per_key=1):
        d.nack()
    assert q.stats().first_attempt_age_seconds == 4.0
    for d in q.receive(4, keys=[2, 3, 4, 5], per_key=1):
        d.nack()
    assert q.stats().oldest_age_seconds == 6.0
    q, other = disk.open(), disk.open()
    assert [each.stats().first_attempt_age_seconds for each in (q, other, other)] == [3.0, 3.0, None], "it goes on where it ended"
    q.send(b"", key=6)
    assert [each.stats().first_attempt_age_seconds for each in (q, other)] == [0.0, 0.0]


@pytest.mark.parametrize("at_rest", [False, True])
def test_leased_delayed_and_held_messages_are_counted_in_every_state(disk: Opener, at_rest: bool) -> None:
    q = disk(shards=1, retry_delay_seconds=0.0)
    other = disk.open()
    for key in ("leased", "delayed", "held", "both", "ready", "over"):
        fill(q, key, 3)
    q.receive(2, keys=["leased"], lease_seconds=1000.0)
    q.receive(2, keys=["both"], lease_seconds=1000.0)[0].ack()
    q.receive(2, keys=["over"], lease_seconds=5.0)
    q.hold("both")
    q.hold("held")
    q.receive(1, keys=["delayed"])[0].defer(100.0)
    disk.clock.advance(10.0)
    for seconds, delayed in ((0.0, 3), (100.0, 0)):
        disk.clock.advance(seconds)
        if at_rest:
            fold(q)
            shard_of(q).run(lambda tx: tx.lanes.begin_anew())
        for each in (q, other):
            stats = each.stats()
            assert (stats.in_flight, stats.held, stats.delayed, stats.ready) == (3, 4, delayed, 10 - delayed)
    q.release("both")
    q.release("held")
    q.receive(20, keys=["over", "delayed"])  # of "over" one message, because it may have killed its holder
    for each in (q, other):
        stats = each.stats()
        assert (stats.in_flight, stats.held, stats.delayed, stats.depth) == (7, 0, 0, 17)
