"""Calls that are one statement: only where memory is current, and always completely."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

import strictq
from strictq import Delivery, Message, Queue
from strictq._sql import LOG
from strictq._store.commit.writer import Writer
from strictq._store.disk.wal_file import UNSYNCED_MAX
from strictq._store.shard.shard_file import Shard
from strictq._store.tables import mark
from strictq._store.whole.store import Store
from strictq._values.keys import encode_key
from strictq.testing import FakeClock
from tests.support.folds import cut_to, fold, narrow, require_agreement
from tests.support.internals import connection_of, shard_of, store_of
from tests.support.queues import Opener
from tests.support.running import PATIENCE_SECONDS

ARRIVAL, EVENT = LOG.insert_alone, LOG.append_alone


@pytest.fixture(params=["process", "full"])
def q(request: pytest.FixtureRequest, queue_path: str) -> Iterator[Queue]:
    """Yield a queue with current memory, and empty lanes "a" and "b"."""
    with strictq.open(queue_path, durability=request.param, shards=1) as q:
        for _ in range(2):
            q.send_many([Message(b"", key=key) for key in ("a", "b")])
            q.ack_many(q.receive(2))
        yield q


def statements(q: Queue, act: Callable[[], object]) -> list[str]:
    """Return what runs on the writing connection, apart from whether commits are synced."""
    return [sql for sql in traced(connection_of(q), act) if not sql.startswith("PRAGMA synchronous")]


def traced(db: apsw.Connection, act: Callable[[], object]) -> list[str]:
    seen: list[str] = []
    tracer: Any = lambda event: seen.append(event["sql"])  # noqa: E731
    db.trace_v2(apsw.SQLITE_TRACE_STMT, tracer)
    act()
    db.trace_v2(0, None)
    return seen


@pytest.mark.parametrize("limit", ["of the queue", "of a tenant"])
def test_a_refused_send_asks_each_other_shard_once_for_its_depth(
    queue_path: str, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    of_queue = limit == "of the queue"
    config = strictq.QueueConfig(max_depth=1) if of_queue else strictq.QueueConfig(tenant_separator="/")
    with strictq.open(queue_path, shards=3, config=config) as q:
        if not of_queue:
            q.limit("a", max_depth=1)
        q.send(b"", "a/1")
        asked: list[int] = []
        pending, tenant_depths = Shard.pending, Shard.tenant_depths

        def counted(shard: Shard, *tenants: Any) -> Any:
            asked.append(shard.number)
            return tenant_depths(shard, *tenants) if tenants else pending(shard)

        monkeypatch.setattr(Shard, "pending", counted)
        monkeypatch.setattr(Shard, "tenant_depths", counted)
        with pytest.raises(strictq.QueueFull):
            q.send(b"", "a/1")
        assert sorted(asked) == sorted({0, 1, 2} - {store_of(q).shard_of(encode_key("a/1")).number})


def test_a_receive_claims_at_once_where_something_arrived(queue_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with strictq.open(queue_path, shards=2) as q:
        assert not q.receive()  # a look finds that both shards are empty
        q.send(b"", "a")
        looked: list[int] = []
        outlook = Store.outlook

        def counted(store: Store, shard: Shard, seconds: float | None = None) -> tuple[bool, int | None]:
            looked.append(shard.number)
            return outlook(store, shard, seconds)

        monkeypatch.setattr(Store, "outlook", counted)
        assert len(q.receive()) == 1
        assert store_of(q).shard_of(encode_key("a")).number not in looked


def test_each_of_a_send_a_receive_and_an_ack_is_one_statement(q: Queue) -> None:
    hands: list[Delivery] = []
    for key in ("a", "b", "a"):
        assert statements(q, lambda: q.send(b"1", key=key)) == [ARRIVAL]  # noqa: B023 - called at once
    assert statements(q, lambda: hands.extend(q.receive(2, per_key=1))) == [EVENT]
    assert [(d.key, d.seq) for d in hands] == [("a", 3), ("b", 3)]
    assert statements(q, lambda: q.ack_many(hands)) == [EVENT]
    (d,) = q.receive(1)
    assert statements(q, d.ack) == [EVENT]
    with pytest.raises(strictq.LeaseLost):
        d.ack()
    assert q.stats().depth == 0
    assert (q.stats().sends, q.stats().acks) == (7, 7)


def test_a_send_with_options_and_one_to_a_new_key_are_one_statement(q: Queue) -> None:
    for first in ("0", "00"):  # the first one is noted in `mark`, the second one makes the connection's views
        q.send(b"", key="a", dedup_id=first)
    ran = statements(q, lambda: q.send(b"", key="a", dedup_id="1"))
    assert ran[0] == LOG.insert_deduped_alone
    assert "BEGIN IMMEDIATE" not in ran
    assert statements(q, lambda: q.send(b"", key="a", headers={"h": "1"}, ttl=60.0)) == [ARRIVAL]
    assert statements(q, lambda: q.send(b"", key="a", delay=60.0)) == [ARRIVAL]
    assert statements(q, lambda: q.send(b"", key="new"))[-1] == ARRIVAL
    assert [m.state for m in q.peek("a")] == ["ready"] * 4 + ["delayed"]  # three with dedup ids


def ack_recorded(q: Queue, clock: FakeClock) -> list[object]:
    """Ack messages in each way. Return what is recorded of them."""
    q.configure(history="bodies", history_records_max=7)
    q.send_many([Message(f"{key}{n}".encode(), key=key, headers={"h": key}) for n in range(4) for key in "abc"])
    clock.advance(1.0)
    q.receive(1, keys=["c"])[0].nack(0.0, "bad")
    clock.advance(1.0)
    q.receive(1, keys=["a"])[0].ack()
    for _ in range(2):
        clock.advance(1.0)
        q.receive(1, keys=["b"])[0].ack()
    clock.advance(1.0)
    q.ack_many(q.receive(5, per_key=2))
    clock.advance(1.0)
    q.ack_many(list(q.receive(2, per_key=1)))
    return list(q.history())


def test_acks_whose_messages_are_recorded_are_one_statement(disk: Opener, clock: FakeClock) -> None:
    """It writes the records that a transaction writes, and removes old ones."""
    with disk.open(shards=1) as q:
        records = ack_recorded(q, clock)
        assert len(records) == 7
        q.send(b"", "d")
        (d,) = q.receive(1, keys=["d"])
        ran = statements(q, d.ack)
        assert (ran[0], "BEGIN IMMEDIATE" in ran) == (LOG.append_recorded_alone, False)
        q.send_many([Message(b"", key=key) for key in "deede"])
        some = q.receive(5, keys=["d", "e"])
        ran = statements(q, lambda: q.ack_many(some))
        assert (ran[0], "BEGIN IMMEDIATE" in ran) == (LOG.append_recorded_alone, False)
        assert len(list(q.history())) == 7
        require_agreement(q, q)
        assert q.check() == []


def test_an_ack_in_a_transaction_writes_the_same_records(
    queue_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for path in (queue_path, str(tmp_path / "other")):
        clock = FakeClock()
        with strictq.open(path, shards=1, clock=clock) as q:
            found.append(ack_recorded(q, clock))
        monkeypatch.setattr(Shard, "_direct", lambda *_, **__: None)
    assert found[0] == found[1]


def test_calls_between_two_slices_of_a_fold_are_one_statement(queue_path: str) -> None:
    folding, transactions = 0, 0
    with narrow(window=200), strictq.open(queue_path, durability="process", shards=1) as q:
        for n in range(600):
            key = f"k{n % 40}"
            for act in (lambda: q.send(b"", key=key), lambda: q.receive()[0].ack()):  # noqa: B023 - called at once
                in_fold = shard_of(q, 0).lanes.memory.fold_to > 0
                ran = statements(q, act)
                folding += in_fold
                transactions += in_fold and "BEGIN IMMEDIATE" in ran
        assert cut_to(q) > 0
    assert folding > 100
    assert transactions < folding / 4


def features_of(q: Queue) -> int:
    return store_of(q).shards[0].view(lambda lanes: lanes.memory.mark.features)


@pytest.mark.parametrize("many", [False, True])
def test_the_first_dedup_id_is_noted_for_older_versions(disk: Opener, many: bool) -> None:
    q = disk()
    q.send(b"", "k")
    assert features_of(q) == 0
    sends = [Message(b"", key="k", dedup_id=i) for i in "ab"]
    if many:
        q.send_many(sends)
    else:
        for one in sends:
            q.send(one)
    q.close()
    q = disk()
    assert features_of(q) == mark.DEDUP_IDS
    assert [d.dedup_id for d in q.receive()] == [None, "a", "b"]


def test_a_known_dedup_id_writes_nothing_and_an_old_one_is_replaced(disk: Opener, clock: FakeClock) -> None:
    with disk.open(shards=1, config=strictq.QueueConfig(dedup_window_seconds=10.0)) as q:
        first = q.send(b"1", key="a", dedup_id="x")
        q.send(b"1", key="a", dedup_id="y")
        again = q.send(b"2", key="a", dedup_id="x")
        assert (again.seq, again.id, again.duplicate) == (first.seq, first.id, True)
        clock.advance(11.0)
        assert not q.send(b"3", key="a", dedup_id="z").duplicate
        assert [d.body for d in q.receive()] == [b"1", b"1", b"3"]
        known = connection_of(q).execute("SELECT dedup_id, seq FROM dedup").fetchall()
        assert known == [("y", 2), ("z", 3)], "the send has removed an old one"
        require_agreement(q, q)


def test_a_dedup_id_of_the_whole_queue_is_one_statement(disk: Opener, clock: FakeClock) -> None:
    with disk.open(shards=1, config=strictq.QueueConfig(dedup_window_seconds=10.0)) as q:
        q.send(b"", key="b", dedup_id="of b")
        q.configure(dedup_scope="queue")
        q.send_many([Message(b"", key="a", dedup_id="0"), Message(b"", key="b")])
        q.send(b"", key="a", dedup_id="1")  # makes the connection's views
        ran = statements(q, lambda: q.send(b"", key="a", dedup_id="2"))
        assert ran[0] == LOG.insert_deduped_alone
        assert "BEGIN IMMEDIATE" not in ran
        first = q.send(b"", key="a", dedup_id="3")
        again = q.send(b"", key="b", dedup_id="3")
        assert (again.key, again.seq, again.id, again.duplicate) == ("a", first.seq, first.id, True)
        assert q.send(b"", key="b", dedup_id="of b").duplicate, "an id of the key, from before"
        clock.advance(11.0)
        before = connection_of(q).execute("SELECT count(*) FROM dedup").get
        again = q.send(b"", key="b", dedup_id="3")
        assert (again.key, again.seq, again.duplicate) == ("b", 3, False)
        rows = connection_of(q).execute("SELECT key, seq, of FROM dedup WHERE dedup_id = '3' ORDER BY key").fetchall()
        assert rows[0] == (b"", 3, encode_key("b"))
        assert (encode_key("b"), 3, None) in rows
        assert connection_of(q).execute("SELECT count(*) FROM dedup").get <= before, "as many old ones are removed as are added"
        require_agreement(q, q)


@pytest.mark.parametrize("shards", [1, 3])
def test_sends_below_a_maximum_depth_are_one_statement(disk: Opener, shards: int) -> None:
    with disk.open(shards=shards, config=strictq.QueueConfig(max_depth=10, max_key_depth=4)) as q, disk.open() as other:
        q.send_many([Message(b"", key=key, dedup_id="0") for key in "axyz"])
        db = connection_of(q, store_of(q).shard_of(encode_key("a")).number)
        for _ in range(3):
            assert traced(db, lambda: q.send(b"", key="a"))[-1] == ARRIVAL
        with pytest.raises(strictq.QueueFull, match="max_key_depth=4"):
            q.send(b"", key="a")
        for n in range(3):
            other.send(b"", key=f"other {n}")
        with pytest.raises(strictq.QueueFull, match="max_depth=10"):
            q.send(b"", key="x")
        assert q.send(b"", key="x", dedup_id="0").duplicate
        assert q.stats().depth == 10
        q.receive(1, keys=["y"])[0].ack()
        q.send(b"", key="y")


def test_a_maximum_depth_of_a_key_counts_what_is_at_rest(disk: Opener) -> None:
    config = strictq.QueueConfig(max_key_depth=3)
    with disk.open(shards=1, config=config) as q:
        q.send_many([Message(b"", key="k")] * 3)
        fold(q)
    with disk.open() as q:
        assert shard_of(q, 0).lanes.memory.lanes == {}
        for _ in range(2):
            with pytest.raises(strictq.QueueFull, match="max_key_depth=3"):
                q.send(b"", key="k")
        q.receive(1)[0].ack()
        q.send(b"", key="k")


def test_a_nack_is_one_statement(q: Queue) -> None:
    q.send(b"1", key="a")
    for reason in ("first", "second"):
        (d,) = q.receive(1)
        ran = statements(q, lambda: d.nack(0.0, reason, output="said"))  # noqa: B023 - called at once
        assert LOG.append_troubled_alone in ran
        assert "BEGIN IMMEDIATE" not in ran
    found = q.status("a", d.seq)
    assert (found.attempts, found.last_error, found.last_output) == (2, "second", "said")
    assert [error.error for error in found.errors] == ["first", "second"]
    with pytest.raises(strictq.LeaseLost):
        d.nack()
    require_agreement(q)


def test_an_ack_of_nothing_does_nothing(q: Queue) -> None:
    assert q._storage.ack(0, []) == []


ELSEWHERE: dict[str, Callable[[Queue], object]] = {
    "sent": lambda other: other.send(b"other", key="a"),
    "sent to another": lambda other: other.send(b"other", key="b"),
    "received": lambda other: other.receive(1),
    "acked": lambda other: [d.ack() for d in other.receive(1)],
    "held another": lambda other: other.hold("c"),
    "held it": lambda other: other.hold("a"),
    "configured": lambda other: other.configure(history="records"),
}


@pytest.mark.parametrize("verb", ["send", "receive", "ack"])
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_where_another_process_wrote_nothing_is_written(q: Queue, queue_path: str, elsewhere: str, verb: str) -> None:
    q.send(b"1", key="a")
    held = q.receive(1)
    q.send(b"2", key="b")
    q.send(b"3", key="a")
    received: list[Delivery] = []
    with strictq.open(queue_path) as other:
        ELSEWHERE[elsewhere](other)
        act = {"send": lambda: q.send(b"4", key="a"), "receive": lambda: received.extend(q.receive(1)), "ack": held[0].ack}[verb]
        ran = statements(q, act)
        assert ran[0] == (ARRIVAL if verb == "send" else EVENT)
        assert ran[1] in ("BEGIN", "BEGIN IMMEDIATE", LOG.news)
        if verb == "send":
            assert [m.seq for m in other.peek("a")] == list(range(3, 6 + (elsewhere == "sent")))
        elif verb == "receive":
            assert [d.key for d in received] == ([] if elsewhere in ("received", "acked") else ["b"])
        else:
            assert [r.outcome for r in other.history()] == (["acked"] if elsewhere == "configured" else [])
            assert {m.seq for m in other.peek("a")} == {4, 5} if elsewhere == "sent" else {4}
        require_agreement(q, other)
        other.release("a")


def test_at_full_sends_and_acks_are_synced_and_few_receives_follow_each_other_without(queue_path: str) -> None:
    on, off = "PRAGMA synchronous=FULL", "PRAGMA synchronous=NORMAL"
    with strictq.open(queue_path, durability="full", shards=1) as q:
        for _ in range(2):
            q.send_many([Message(b"", key=key) for key in "abcdef"])
            q.ack_many(q.receive(6))
        for key in "abcdef":
            q.send(b"1", key=key)
        held: list[Delivery] = []
        receive = lambda: held.extend(q.receive(1))  # noqa: E731
        db = connection_of(q)
        assert traced(db, receive) == [off, EVENT]
        assert [traced(db, receive) for _ in range(UNSYNCED_MAX - 1)] == [[EVENT]] * (UNSYNCED_MAX - 1)
        assert traced(db, receive) == [on, EVENT]
        assert traced(db, receive) == [off, EVENT]
        assert traced(db, held[0].ack) == [on, EVENT]
        assert traced(db, lambda: q.send(b"2", key="a")) == [ARRIVAL]
        assert [d.key for d in held] == list("abcdef")


def test_at_full_callers_share_commits_until_one_is_alone_again(queue_path: str) -> None:
    with strictq.open(queue_path, durability="full", shards=1) as q, ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            q.send_many([Message(b"", key=key) for key in "abcd"])
            q.ack_many(q.receive(4))
        shard = store_of(q).shards[0]
        working, go = threading.Event(), threading.Event()

        def slow(_tx: object) -> None:
            working.set()
            go.wait(PATIENCE_SECONDS)

        def act() -> None:
            first = pool.submit(shard.run, slow)
            working.wait(PATIENCE_SECONDS)
            others = [pool.submit(q.send, b"1", key=key) for key in "abc"]
            while len(shard._writer._grouping._waiting) < len(others):
                time.sleep(0.001)
            go.set()
            for done in [first, *others]:
                done.result(60)

        assert statements(q, act).count("COMMIT") == 2
        assert "COMMIT" in statements(q, lambda: q.send(b"2", key="a"))
        assert statements(q, lambda: q.send(b"3", key="a")) == [ARRIVAL]


def test_settings_that_change_on_the_way_count(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread changes the settings after they were checked."""
    q.send(b"1", key="a")
    (d,) = q.receive(1)
    direct = Writer.direct

    def directed(self: Writer, *given: Any, **options: Any) -> Any:
        monkeypatch.setattr(Writer, "direct", direct)
        q.configure(history="records")
        return direct(self, *given, **options)

    monkeypatch.setattr(Writer, "direct", directed)
    d.ack()
    assert [(r.key, r.outcome) for r in q.history()] == [("a", "acked")]


class Interrupted(BaseException):
    """What a signal raises."""


def interrupted(number: int, act: Callable[[], object]) -> bool:
    """Interrupt at the n-th point at which the interpreter checks for signals. Return False if there are fewer."""
    left = number

    def count(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and "_store" in frame.f_code.co_filename:
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise Interrupted

    sys.setprofile(count)
    try:
        act()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["send", "receive", "ack"])
def test_interrupts_at_any_moment(q: Queue, verb: str) -> None:
    number, ended = 0, False
    hands: list[Delivery] = []
    batches: list[Sequence[Delivery]] = []
    acts: dict[str, Callable[[], object]] = {
        "send": lambda: q.send(b"x", key="b"),
        "receive": lambda: batches.append(q.receive(2)),
        "ack": lambda: hands[0].ack(),
    }
    while not ended:
        number += 1
        while held := q.receive(100):
            q.ack_many(held)
        q.send(b"", key="a")
        q.send(b"", key="b")
        hands[:] = q.receive(1) if verb == "ack" else []
        q.send(b"", key="a")
        before = q.stats().depth
        ended = not interrupted(number, acts[verb])
        require_agreement(q)  # no lock is held, either
        stats = q.stats()
        if verb == "receive":
            assert stats.in_flight == (2 if ended else 0)
            q.ack_many(hands)
        else:
            assert abs(stats.depth - before) in ((1,) if ended else (0, 1))
        if verb == "ack" and stats.depth == before:
            hands[0].ack()
    assert number > 10


def test_a_start_and_an_ack_with_the_next_start_are_one_statement_each(q: Queue) -> None:
    q.send_many([Message(b"", key="a")] * 3)
    one_by_one = q.consume(3)
    hands: list[Delivery] = []
    follow = lambda: hands.append(next(one_by_one))  # noqa: E731
    assert statements(q, follow)[-2:] == [EVENT, EVENT]
    for d in hands:
        assert statements(q, d.ack) == [EVENT]
        if d.seq < 5:
            assert statements(q, follow) == []
    assert q.stats().acks == 7
    with strictq.open(q.path, read_only=True) as other:
        require_agreement(q, other)
