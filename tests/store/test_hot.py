"""Hot lanes: after any operation, every memory equals the logs, and the logs record what happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import strictq
from strictq import Message, QueueConfig
from strictq._sql import HOT as hot_sql
from strictq._store import shard as shard_module
from strictq._store.commit import writer
from strictq._store.commit.tx import Tx, add_acks
from strictq._store.hot import cooling, memory
from strictq._store.hot.journal import decoded_keys, encoded_keys
from strictq.testing import FakeClock
from tests.support.format_1 import unpacked
from tests.support.hot import narrow_by, require_agreement
from tests.support.internals import connection_of, shard_of, store_of
from tests.support.powercut_campaign import fast_directory
from tests.support.running import ROOT
from tests.support.witness import Witness

KEYS = ["a", "b", b"c", 4, "e" * 300]
HOT = QueueConfig(hot_lanes=True, retry_delay_seconds=0.0, max_attempts=None)
WARM = [
    "send", "send_many", "receive", "receive", "receive", "ack", "ack", "ack_many", "ack_many", "ack_part", "start", "extend",
    "release", "look", "transact", "transact_any", "ttl", "drain_some", "drain_some",
]  # fmt: skip
"""Operations that leave a lane hot."""
ACTS = [
    *WARM, "nack", "defer", "reject", "hold", "delayed", "dedup", "wait", "transaction", "transact", "at_most_once", "more",
]  # fmt: skip

LOST_RELEASES = ROOT / "tests" / "store" / "format_2"
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
"""Two in the quick run, six in all."""


@pytest.fixture(name="narrow")
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooling, "LANE_ROWS_MAX", 12)
    narrow_by(monkeypatch)


class Walk:
    """A random program of two queue objects on one directory, with its expectations."""

    def __init__(self, path: str, seed: int, shards: int, acts: list[str] = ACTS) -> None:
        self.random = random.Random(seed)
        self.acts = acts
        self.clock = FakeClock()
        first = strictq.open(path, shards=shards, config=HOT, durability="process", clock=self.clock)
        self.queues = [first, strictq.open(path, clock=self.clock)]
        self.hands: list[strictq.Delivery] = []
        self.owners: dict[int, strictq.Queue] = {}
        self.sent: dict[Any, int] = defaultdict(int)
        self.acked: dict[Any, set[int]] = defaultdict(set)
        self.states: dict[Any, bytes] = {}

    def step(self) -> None:
        r = self.random
        q = r.choice(self.queues)
        getattr(self, r.choice(self.acts))(q)

    def send(self, q: strictq.Queue, **options: Any) -> None:
        key = self.random.choice(KEYS)
        receipt = q.send(b"x" * self.random.choice([1, 900]), key=key, **options)
        self.sent[key] += 1
        assert receipt.seq == self.sent[key]

    def delayed(self, q: strictq.Queue) -> None:
        self.send(q, delay=self.random.choice([0.5, 40.0]))

    def ttl(self, q: strictq.Queue) -> None:
        self.send(q, ttl=1_000_000.0, headers={"h": "1"}, size_hint=3.0)

    def dedup(self, q: strictq.Queue) -> None:
        key = self.random.choice(KEYS)
        receipt = q.send(b"d", key=key, dedup_id="d")
        if not receipt.duplicate:
            self.sent[key] += 1
            assert receipt.seq == self.sent[key]

    def send_many(self, q: strictq.Queue) -> None:
        keys = [self.random.choice(KEYS) for _ in range(self.random.randrange(1, 12))]
        for receipt, key in zip(q.send_many([Message(b"m", key=key) for key in keys]), keys, strict=True):
            self.sent[key] += 1
            assert (receipt.key, receipt.seq) == (key, self.sent[key])

    def receive(self, q: strictq.Queue) -> None:
        r = self.random
        options: dict[str, Any] = r.choice([{}, {}, {"per_key": 1}, {"per_key": 2}, {"keys": [r.choice(KEYS)]}])
        got = q.receive(r.randrange(1, 30), lease_seconds=r.choice([30.0, 5.0]), **options)
        self.hands += got
        self.owners |= {id(d): q for d in got}

    def _pick(self, n: int = 1) -> list[strictq.Delivery]:
        self.random.shuffle(self.hands)
        some, self.hands = self.hands[:n], self.hands[n:]
        return some

    def _settle(self, act: Any, d: strictq.Delivery) -> bool:
        try:
            act()
        except strictq.LeaseLost:
            return False
        return True

    def _acked(self, d: strictq.Delivery) -> None:
        assert d.seq not in self.acked[d.key], f"seq {d.seq} of {d.key!r} was handed out after its ack"
        self.acked[d.key].add(d.seq)

    def ack(self, _q: strictq.Queue) -> None:
        for d in self._pick():
            if self._settle(d.ack, d):
                self._acked(d)
                again = self.queues[0].delivery(d.handle)
                again.ack()  # repeating the call does nothing

    def ack_many(self, q: strictq.Queue) -> None:
        self._ack_all(self._pick(len(self.hands)))

    def ack_part(self, q: strictq.Queue) -> None:
        self._ack_all(self._pick(self.random.randrange(1, 6)))

    def _ack_all(self, some: list[strictq.Delivery]) -> None:
        for q in self.queues:
            mine = [d for d in some if self.owners[id(d)] is q]
            if mine:
                self._ack_through(q, mine)

    def _ack_through(self, owner: strictq.Queue, some: list[strictq.Delivery]) -> None:
        some.sort(key=lambda d: d.id)
        try:
            owner.ack_many(some)
            lost: set[int] = set()
        except strictq.LeaseLost:
            assert len(some) == 1
            return
        except strictq.PartialFailure as e:
            lost = {id(d) for d, error in zip(some, e.results, strict=True) if error is not None}
        for d in some:
            if id(d) not in lost:
                self._acked(d)

    def nack(self, _q: strictq.Queue) -> None:
        for d in self._pick():
            self._settle(d.nack, d)

    def defer(self, _q: strictq.Queue) -> None:
        for d in self._pick():
            self._settle(lambda: d.defer(0.0), d)  # noqa: B023 - called at once

    def start(self, _q: strictq.Queue) -> None:
        if self.hands:
            d = self.random.choice(self.hands)
            self._settle(d.start, d)

    def extend(self, _q: strictq.Queue) -> None:
        if self.hands:
            d = self.random.choice(self.hands)
            self._settle(lambda: d.extend(60.0), d)

    def reject(self, q: strictq.Queue) -> None:
        for d in self._pick():
            if self._settle(lambda: d.reject("no"), d):  # noqa: B023 - called at once
                q.redrive(key=d.key)

    def release(self, _q: strictq.Queue) -> None:
        for d in self._pick():
            self._settle(d.lease.release, d)
            self._settle(d.lease.release, d)  # a second time there is nothing to give back

    def hold(self, q: strictq.Queue) -> None:
        key = self.random.choice(KEYS)
        q.hold(key)
        if self.random.random() < 0.8:
            q.release(key)

    def wait(self, _q: strictq.Queue) -> None:
        self.clock.advance(self.random.choice([1.0, 6.0, 31.0]))

    def look(self, q: strictq.Queue) -> None:
        key = self.random.choice(KEYS)
        depth = q.explain(key).depth
        assert len(q.peek(key, 1000)) == depth
        assert sum(k.depth for k in q.top_keys(100)) == q.stats().depth

    def transaction(self, q: strictq.Queue) -> None:
        key = self.random.choice(KEYS)
        with q.transaction(key="a") as tx:
            tx.send(b"t", key=key)
        self.sent[key] += 1

    def transact(self, _q: strictq.Queue) -> None:
        """Ack, set a state and send in one transaction. The state counts the transactions of its key."""
        for d in self._pick():
            key = self.random.choice(KEYS)
            try:
                with self.owners[id(d)].transaction(d) as tx:
                    known = tx.key_state if self.random.random() < 0.5 else None
                    assert known in (None, self.states.get(d.key))
                    tx.key_state = state = b"%d" % self.random.randrange(1000)
                    tx.send(b"t", key=key)
            except (strictq.LeaseLost, strictq.InvalidArgument):
                continue
            self.states[d.key] = state
            self.sent[key] += 1
            self._acked(d)

    def transact_any(self, _q: strictq.Queue) -> None:
        """Ack a part of a lease in a transaction."""
        if not self.hands:
            return
        lease = self.random.choice(self.hands).lease
        some = [d for d in self.hands if d.lease is lease and self.random.random() < 0.7]
        if not some:
            return
        self.hands = [d for d in self.hands if d not in some]
        with suppress(strictq.LeaseLost), self.owners[id(some[0])].transaction(deliveries=some):
            pass
        if all(d._state for d in some):
            for d in some:
                self._acked(d)

    def at_most_once(self, q: strictq.Queue) -> None:
        for d in q.receive(self.random.randrange(1, 5), ack_first=True):
            self._acked(d)
            if self.random.random() < 0.8:
                d.done()

    def more(self, _q: strictq.Queue) -> None:
        if self.hands:
            d = self.random.choice(self.hands)
            with suppress(strictq.LeaseLost):
                got = d.lease.more(3)
                self.hands += got
                self.owners |= {id(each): self.owners[id(d)] for each in got}

    def drain_some(self, q: strictq.Queue) -> None:
        """Ack everything that is ready, so that lanes are empty again."""
        got = q.receive(100)
        self.owners |= {id(d): q for d in got}
        self._ack_all([*got, *self._pick(len(self.hands))])

    def drain(self) -> None:
        """Ack everything that was sent, in order."""
        q = self.queues[0]
        self.hands.clear()
        for key in KEYS:
            q.release(key)
        self.clock.advance(100.0)
        for _ in range(10_000):
            got = q.receive(50)
            if not got:
                break
            for d in got:
                assert all(seq in self.acked[d.key] for seq in range(1, d.seq))
                d.ack()
                self._acked(d)
        assert {key: set(range(1, n + 1)) for key, n in self.sent.items()} == {key: self.acked[key] for key in self.sent}


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("acts", [WARM, ACTS, [*WARM * 4, *ACTS]], ids=["warm", "all", "mixed"])
def test_every_memory_agrees(
    queue_path: str, tmp_path: Path, acts: list[str], seed: int, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CATCH_UP_MAX", 2_000 if seed % 2 else 3)
    walk = Walk(queue_path, seed, shards, acts)
    with fast_directory(tmp_path) as place, closing(Witness(place)) as other:
        for n in range(250):
            walk.step()
            if n % 3 == 0:
                require_agreement(*walk.queues)
                other.watch(walk.queues[0])
    walk.drain()
    require_agreement(*walk.queues)
    for q in walk.queues:
        q.close()


@pytest.mark.usefixtures("narrow")
def test_rows_that_were_cut_before_a_memory_had_any(queue_path: str) -> None:
    """It knew messages, and no row of the journal. The first row that it finds is not the first that existed."""
    with strictq.open(queue_path, config=HOT, shards=1) as q, strictq.open(queue_path) as other:
        q.send(b"1", key="a")
        assert other.peek("a")[0].body == b"1"
        for n in range(2, 60):
            for d in q.receive(10):
                d.ack()
            q.send(b"%d" % n, key="a")
        require_agreement(q, other)
        assert [m.body for m in other.peek("a")] == [b"59"]
        assert [d.body for d in other.receive(10)] == [b"59"]


def test_what_others_wrote_is_learned_before_the_write_lock_is_taken(queue_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CATCH_UP_MAX", 10)
    with strictq.open(queue_path, config=HOT, shards=1) as q, strictq.open(queue_path) as other:
        q.send(b"", key="a")
        statements: list[str] = []
        connection_of(q).trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: statements.append(event["sql"]))
        for n, learns in ((10, False), (11, True)):
            other.send_many([Message(b"", key="b")] * n)
            statements.clear()
            q.send(b"", key="b")
            arrivals = statements.index(hot_sql.arrivals)
            begins = [at for at, sql in enumerate(statements) if sql == "BEGIN IMMEDIATE"]
            assert [at < arrivals for at in begins] == ([True, False] if learns else [True])
            assert ("ROLLBACK" in statements[:arrivals]) == learns
        require_agreement(q, other)


def test_a_receive_beside_a_thread_that_commits_learns_from_its_memory(queue_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another memory would have to read everything that this one knows: hundreds of milliseconds, beside busy threads."""
    monkeypatch.setattr(shard_module, "MEMORY_SECONDS", 60.0)
    with strictq.open(queue_path, config=HOT, shards=1) as q:
        looking = threading.Event()
        glance = shard_of(q).glance
        monkeypatch.setattr(shard_of(q), "glance", lambda *args: (glance(*args), looking.set())[0])
        got: list[int] = []
        thread = threading.Thread(target=lambda: got.append(len(q.receive(10))))
        with q.transaction(key="a") as tx:
            tx.send(b"", key="a")
            thread.start()
            assert looking.wait(60.0)
        thread.join(60.0)
        assert got in ([0], [1])
        assert shard_of(q)._glances._memory.rebuilds == 0


def test_what_another_process_acks_is_counted_once(queue_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count(rate: float, rate_at: int, now: int, n: int) -> tuple[float, int]:
        counted.append(n)
        return add_acks(rate, rate_at, now, n)

    monkeypatch.setattr(memory, "add_acks", count)
    with strictq.open(queue_path, config=HOT, shards=1) as q, strictq.open(queue_path) as other:
        q.send_many([Message(b"", key=f"k{n % 10}") for n in range(200)])
        for acker, reader in ((q, other), (other, q)):
            shard_of(reader).run(lambda _tx: None)
            counted.clear()
            for _ in range(50):
                for d in acker.receive(2):
                    d.ack()
                shard_of(reader).run(lambda _tx: None)
            assert len(counted) == 100
        require_agreement(q, other)


def test_what_an_undone_transaction_counted_is_forgotten(queue_path: str) -> None:
    with strictq.open(queue_path, config=HOT, shards=1) as q:
        q.send(b"1", key="a")

        def undone(tx: Tx) -> None:
            tx.totals.acks += 5
            tx.totals.pending -= 1
            raise strictq.InvalidArgument("no")

        with pytest.raises(strictq.InvalidArgument, match="no"):
            shard_of(q).run(undone)
        require_agreement(q)
        q.hold("a")
        assert q.stats().acks == 0
        assert q.check() == []


@pytest.mark.usefixtures("narrow")
def test_a_tail_is_not_trusted_where_another_process_went_on(queue_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooling, "EVENTS_MAX", 10_000)  # lanes cool one after the other, and no memory has to be rebuilt
    with strictq.open(queue_path, config=HOT, shards=1) as q, strictq.open(queue_path) as other:

        def pass_over(through: strictq.Queue, name: str) -> None:
            """Send and ack messages of other keys until everything earlier has cooled. Both objects see each of them."""
            for n in range(60):
                through.send(b"", key=f"{name}{n}")
                for d in through.receive(10):
                    d.ack()
                shard_of(q).run(lambda _tx: None)

        assert q.send(b"", key="a").seq == 1
        pass_over(q, "x")
        hot = shard_of(q).hot
        assert hot is not None
        assert b"sa" in hot.tails
        assert other.send(b"", key="a").seq == 2
        pass_over(other, "y")
        assert q.send(b"", key="a").seq == 3
        pass_over(q, "z")
        assert b"sa" in hot.tails
        assert q.send(b"", key="a", delay=5.0).seq == 4
        assert q.send(b"", key="a").seq == 5
        require_agreement(q, other)


def test_a_tail_is_not_trusted_once_its_lane_was_hot_again(queue_path: str) -> None:
    with strictq.open(queue_path, config=HOT, shards=1) as q, strictq.open(queue_path) as other:
        assert q.send(b"1", key="a").seq == 1
        q.ack_many(q.receive(1))
        shard_of(q).cool()
        hot = shard_of(q).hot
        assert hot is not None
        assert b"sa" in hot.tails
        assert other.send(b"2", key="a").seq == 2
        (d,) = q.receive(1, ack_first=True)  # it cools its lane
        d.done()
        assert q.send(b"3", key="a").seq == 3
        require_agreement(q, other)
        assert [(d.seq, d.body) for d in other.receive(10)] == [(3, b"3")]


def settle_others(q: strictq.Queue, names: Iterable[int]) -> None:
    """Send and ack messages of other keys."""
    for n in names:
        q.send(b"", key=f"x{n}")
        for d in q.receive(1, keys=[f"x{n}"]):
            d.ack()


@pytest.mark.usefixtures("narrow")
def test_a_lane_whose_tail_is_known_is_held(queue_path: str) -> None:
    with strictq.open(queue_path, config=HOT, shards=1) as q:
        settle_others(q, range(40))
        hot = shard_of(q).hot
        assert hot is not None
        assert b"sx0" in hot.tails
        q.hold("x0")
        q.send(b"", key="x0")
        assert q.receive(10) == []
        q.release("x0")
        assert [d.seq for d in q.receive(10)] == [2]


@pytest.mark.usefixtures("narrow")
def test_an_ack_is_repeated_after_its_rows_were_cut(queue_path: str) -> None:
    """The lane stays hot, and its row remembers."""
    with strictq.open(queue_path, config=HOT, shards=1) as q:
        q.send(b"1", key="a")
        (d,) = q.receive(1)
        d.ack()
        settle_others(q, range(15))
        second = q.send(b"2", key="a")
        settle_others(q, range(15, 36))
        hot = shard_of(q).hot
        assert hot is not None
        assert d.id not in hot.ids
        assert second.id in hot.ids
        assert hot.lanes[b"sa"].done is None
        with strictq.open(queue_path) as other:
            for each in (q, other):
                each.delivery(d.handle).ack()


@pytest.mark.usefixtures("narrow")
def test_a_lane_that_cools_while_a_fold_is_under_way_is_not_folded_again(
    queue_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooling, "SLICES", 3)
    monkeypatch.setattr(cooling, "EVENTS_MAX", 1000)
    with strictq.open(queue_path, shards=1, config=HOT, durability="process") as q, strictq.open(queue_path) as other:
        hot = shard_of(q).hot
        assert hot is not None
        others = iter(range(100))
        while not hot.slices:
            settle_others(q, [next(others)])
        folding = hot.sweep[-1].key[1:].decode()
        q.hold(folding)
        while hot.slices < 2:
            settle_others(q, [next(others)])
        require_agreement(q, other)
        q.send(b"held", key=folding)
        assert q.receive(10) == []
        q.release(folding)
        assert [(d.key, d.seq) for d in q.receive(10)] == [(folding, 2)]


@pytest.mark.usefixtures("narrow")
def test_the_logs_are_empty_behind_a_backlog(queue_path: str) -> None:
    """Its lanes have cooled, and what is sent to them is not in the logs: so no fold would cut these."""
    with strictq.open(queue_path, config=HOT, shards=1) as q:
        hot = shard_of(q).hot
        assert hot is not None
        for n in range(80):
            q.send(b"", key=f"x{n % 4}")
            if hot.deep and not hot.lanes:
                break
        q.send(b"", key="x0")
        assert not hot.lanes
        assert not hot.ids
        assert [d.seq for d in q.receive(100, keys=["x0"])] == list(range(1, n // 4 + 3))
        require_agreement(q)


def test_a_settlement_that_was_undone_finds_its_lane_anew(queue_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt of a nack gives the lane a row. On a full disk that is rolled back, and the call is repeated."""
    with strictq.open(queue_path, config=HOT, shards=1) as q:
        q.send(b"1", key="a")
        q.send(b"2", key="b")
        mine, other = q.receive(2)
        writer = shard_of(q)._writer
        run = writer.run
        tries: list[str] = []

        def fail_once(operation: Any, seconds: float | None = None, **options: bool) -> Any:
            def undone(tx: Tx) -> None:
                operation(tx)
                raise strictq.StoreFull("the disk is full", shard=0)

            tries.append("nack")
            if len(tries) > 1:
                return run(operation, seconds, **options)
            try:
                return run(undone, seconds, **options)
            finally:
                monkeypatch.setattr(writer, "run", run)
                other.extend(60.0)
                q.hold("b")  # the other lane gets the row that this one had
                monkeypatch.setattr(writer, "run", fail_once)

        monkeypatch.setattr(writer, "run", fail_once)
        mine.nack()
        monkeypatch.undo()
        q.release("b")
        assert [(d.key, d.attempt) for d in q.receive(10)] == [("a", 2)]
        other.ack()
        assert q.check() == []


def test_a_lane_that_cools_between_cold_ones_keeps_its_place(queue_path: str) -> None:
    """A claim removes the cold lane behind it from the order, and all in between. This lane must be one of those."""
    clock = FakeClock()
    with strictq.open(queue_path, config=HOT, clock=clock, shards=1) as q:
        q.send(b"1", key="cold")
        q.send(b"2", key="hot", ttl=5.0)
        q.send(b"3", key="hot")
        q.send(b"4", key="colder")
        for key in ("cold", "colder"):
            q.hold(key)
            q.release(key)
        clock.advance(6.0)
        assert [d.body for d in q.receive(10)] == [b"1", b"3", b"4"]
        assert q.check() == []


class Interrupted(BaseException):
    """What a signal raises between two statements."""


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("seed", SEEDS)
def test_interrupts_between_any_two_statements(queue_path: str, seed: int) -> None:
    """After any interrupt, memory is neither ahead of the tables nor behind them."""
    walk = Walk(queue_path, seed, 1)
    r = random.Random(seed)
    for _ in range(150):
        left = r.randrange(1, 12)

        def trace(_cursor: object, _sql: str, _bindings: object) -> bool:
            nonlocal left
            if threading.current_thread() is not threading.main_thread():
                return True  # upkeep, which no signal interrupts
            left -= 1
            if left == 0:
                raise Interrupted
            return True

        connections = [shard_of(q, 0)._writer._db for q in walk.queues]
        for db in connections:
            if isinstance(db, apsw.Connection):
                db.exec_trace = trace
        q = r.choice(walk.queues)
        try:
            match r.randrange(4):
                case 0:
                    q.send(b"1", key=r.choice(KEYS))
                case 1:
                    walk.hands += q.receive(r.randrange(1, 9))
                case 2 if walk.hands:
                    d = walk.hands.pop(r.randrange(len(walk.hands)))
                    d.ack()
                case _:
                    q.send_many([Message(b"m", key=r.choice(KEYS)) for _ in range(5)])
        except (Interrupted, strictq.StrictqError):
            pass
        finally:
            for db in connections:
                if isinstance(db, apsw.Connection):
                    db.exec_trace = None
        require_agreement(*walk.queues)
    for q in walk.queues:
        q.close()


_PROGRAM = """
import random, sys
import strictq
from strictq._sql import HOT as hot_sql
from strictq._store import shard as shard_module
from strictq._store.commit import writer
from strictq._store.commit.calls import bound
from strictq._store.commit.tx import Totals, Tx
from strictq._store.hot import cooling
cooling.WINDOW, cooling.STEP, cooling.SLICES, cooling.EVENTS_MAX = 24, 4, 2, 60
r = random.Random(int(sys.argv[2]))
q = strictq.open(sys.argv[1])
print("ready", flush=True)
while True:
    for _ in range(r.randrange(4)):
        receipt = q.send(b"x", key=r.choice("abcdef"))
        print("sent", receipt.key, receipt.seq, flush=True)
    for d in q.receive(r.randrange(1, 8), lease_seconds=1.0):
        print("got", d.key, d.seq, flush=True)
        choice = r.random()
        try:
            if choice < 0.8:
                d.ack()
                print("acked", d.key, d.seq, flush=True)
            elif choice < 0.9:
                d.nack(delay=0.0)
        except strictq.LeaseLost:
            pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_kills_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """Two processes are killed repeatedly. Acked messages are not delivered again, and sent ones are stored in order."""
    path = tmp_path / "q"
    strictq.open(path, config=HOT, durability="process").close()
    sent: dict[str, set[int]] = defaultdict(set)
    acked: dict[str, set[int]] = defaultdict(set)
    r = random.Random(seed)
    for turn in range(4):
        outputs = [tmp_path / f"{turn}-{n}" for n in range(2)]
        running = []
        for n, output in enumerate(outputs):
            with output.open("w") as f:
                running.append(
                    subprocess.Popen([sys.executable, "-c", _PROGRAM, str(path), str(seed * 100 + turn * 2 + n)], stdout=f)
                )
        deadline = time.monotonic() + 60
        while not all("ready" in output.read_text() for output in outputs) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(r.uniform(0.1, 0.6))
        for process in running:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        for output in outputs:
            for line in output.read_text().splitlines():
                what, *rest = line.split()
                if len(rest) == 2 and rest[1].isdigit() and line in output.read_text().split("\n"):
                    key, seq = rest[0], int(rest[1])
                    if what == "sent":
                        sent[key].add(seq)
                    elif what == "acked":
                        assert seq not in acked[key]
                        acked[key].add(seq)
        with strictq.open(path) as q:
            assert q.check() == []
            for key, seqs in sent.items():
                there = {m.seq for m in q.peek(key, 100_000)}
                assert not there & acked[key], "an acked message is back"
                assert seqs - acked[key] <= there | set(range(1, min(there, default=max(seqs) + 1))), "a sent message is gone"


def test_turning_them_on_and_off(queue_path: str) -> None:
    with strictq.open(queue_path, config=QueueConfig(hot_lanes=False)) as q, strictq.open(queue_path) as other:
        q.send(b"1", key="a")
        q.configure(hot_lanes=True)
        other.send(b"2", key="a")
        other.send(b"1", key="b")
        memory = shard_of(q, 0).hot
        assert memory is not None
        q.send(b"2", key="b")
        assert list(memory.lanes) == [b"sb"]
        q.configure(hot_lanes=False)
        q.send(b"3", key="b")
        assert not memory.lanes
        assert [(d.key, d.seq, d.body) for d in other.receive(10)] == [
            ("a", 1, b"1"), ("a", 2, b"2"), ("b", 1, b"1"), ("b", 2, b"2"), ("b", 3, b"3"),
        ]  # fmt: skip
        assert q.check() == []


def test_a_hole_in_the_journal_is_corruption(queue_path: str) -> None:
    with strictq.open(queue_path, config=HOT) as q:
        for n in range(3):
            q.send(b"%d" % n, key="a")
            q.receive(1)[0].ack()
    db = apsw.Connection(str(Path(queue_path) / "shard-0000.db"), vfs="cksmvfs")
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.execute("DELETE FROM journal WHERE id = 3")
    db.close()
    with strictq.open(queue_path) as q, pytest.raises(strictq.StoreCorrupt, match="journal has no row 3"):
        q.send(b"", key="a")


def test_a_lease_is_extended_and_released_by_its_last_message(queue_path: str) -> None:
    """A fold may cut its first message while the others remain. Then the row of the journal would name no lane."""
    with strictq.open(queue_path, config=HOT, shards=1) as q:
        receipts = q.send_many([Message(b"", key="a")] * 4)
        first, _, third = q.receive(3)
        third.ack()
        first.extend(60.0)
        first.lease.release()
        named = tuple(connection_of(q).execute("SELECT data FROM journal WHERE kind IN (5, 6)"))
        assert [int.from_bytes(data, "little") for (data,) in named] == [receipts[1].id] * 2


def test_releases_by_a_message_that_was_cut(tmp_path: Path) -> None:
    """An earlier version, which named the first message of a lease, made this queue, and then found it corrupt.

    In both lanes, a lease of messages 1 and 2 was released. Then "again" was leased, its message 1 was acked, and it was released
    and leased again. Of "once", message 1 alone was leased and acked. Both messages 1 were cut.
    """
    path = unpacked("lost_releases", tmp_path, LOST_RELEASES)
    clock = FakeClock()
    with strictq.open(path, clock=clock, read_only=True) as q:
        assert [[(m.seq, m.state) for m in q.peek(key)] for key in ("again", "once")] == [[(2, "in_flight")], [(2, "ready")]]
    with strictq.open(path, clock=clock) as q, strictq.open(path, clock=clock) as other:
        require_agreement(q, other)
        assert [(d.key, d.seq) for d in q.receive(10)] == [("once", 2)]
        require_agreement(q, other)
        clock.advance(601.0)
        assert [(d.key, d.seq) for d in other.receive(10)] == [("again", 2), ("once", 2)]
        require_agreement(q, other)


def test_salvage_saves_hot_messages(tmp_path: Path) -> None:
    """Unacked messages are saved at their seqs. Acked ones are not, and their seqs are not issued again."""
    path, out = tmp_path / "q", tmp_path / "out"
    q = strictq.open(path, config=HOT, durability="process")
    for n in range(4):
        for key in ("a", "b", "c", "d"):
            q.send(b"%d" % n * (1 if key == "a" else 1000), key=key)
    for d in q.receive(6):  # all of a, the first two of b
        d.ack()
    q.hold("c")  # it cools
    for d in q.receive(4, keys=None):
        assert d.key in ("b", "d")
    for _ in range(2):
        q.send(b"new", key="d")
    store_of(q).die()
    saved = strictq.salvage(path, out)
    assert (saved.messages, saved.dead, saved.lost) == (12, 0, ())
    with strictq.open(out) as q:
        assert q.check() == []
        found = {key: [(m.seq, m.body[:3]) for m in q.peek(key, 10)] for key in ("a", "b", "c", "d")}
        assert found == {
            "a": [],
            "b": [(3, b"222"), (4, b"333")],
            "c": [(1, b"000"), (2, b"111"), (3, b"222"), (4, b"333")],
            "d": [(1, b"000"), (2, b"111"), (3, b"222"), (4, b"333"), (5, b"new"), (6, b"new")],
        }
        assert q.explain("c").state == "held"
        assert [q.send(b"", key=key).seq for key in ("a", "b", "d")] == [5, 5, 7]


def test_keys_in_a_row_of_the_journal() -> None:
    keys = [b"sa", b"", b"b" + bytes(1024), b"i-1"]
    assert decoded_keys(encoded_keys(keys)) == keys


@pytest.mark.usefixtures("narrow")
def test_idle_lanes_are_forgotten_once_they_have_cooled(queue_path: str) -> None:
    clock = FakeClock()
    with strictq.open(queue_path, config=HOT.evolve(idle_lane_seconds=1.0), clock=clock, shards=1) as q:
        for turn in range(20):
            q.send_many([Message(b"", key=f"{turn}-{n}") for n in range(100)])
            q.ack_many(q.receive(100))
            clock.advance(10.0)
        assert q.stats().lanes < 500
        assert q.check() == []
        assert q.send(b"", key="0-0").seq > 1
