"""Records of finished messages: each end leaves one, with its times, and no more stay than were asked for."""

from __future__ import annotations

import random
from collections import Counter

import anyio
import pytest

import strictq
from strictq import HistoryRecord, InvalidArgument, Message, Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill

pytestmark = pytest.mark.one_shard("the records of a shard are in order")


def ends(q: Queue) -> list[tuple[object, int, str, int]]:
    """(key, seq, outcome, attempts) of every record of the first shard."""
    return [(r.key, r.seq, r.outcome, r.attempts) for r in q.history()]


def test_nothing_is_kept_unless_asked_for(q: Queue) -> None:
    fill(q, "k", 2)
    q.ack_many(q.receive())
    assert q.history() == []


@pytest.mark.parametrize("way", ["whole", "one by one", "transaction", "ack_first", "backwards"])
def test_an_acked_message_leaves_a_record(make: Opener, clock: FakeClock, way: str) -> None:
    q = make(history="records")
    q.send_many([Message(b"12345", key="k", size_hint=7.0) for _ in range(3)])
    clock.advance(10.0)
    ds = q.receive(ack_first=way == "ack_first")
    clock.advance(2.0)
    if way == "whole":
        q.ack_many(ds)
    elif way == "backwards":
        for d in reversed(ds):
            d.ack()
    elif way != "ack_first":
        for d in ds:
            if way == "transaction":
                with q.transaction(d):
                    pass
            else:
                d.ack()
    records = q.history()
    assert sorted(ends(q)) == [("k", n, "acked", 1) for n in (1, 2, 3)]
    done = 0.0 if way == "ack_first" else 2.0
    for r, receipt in zip(sorted(records, key=lambda r: r.seq), ds, strict=True):
        assert (r.shard, r.id, r.size, r.size_hint, r.body) == (0, receipt.id, 5, 7.0, None)
        assert r.first_attempt_at == pytest.approx(r.enqueued_at + 10.0)
        assert r.done_at == pytest.approx(r.enqueued_at + 10.0 + done)
        assert (r.prepare_seconds, r.process_seconds) == (None, None)


def test_the_first_attempt_is_the_one_that_failed(make: Opener, clock: FakeClock) -> None:
    q = make(history="records")
    q.send(b"", "k")
    clock.advance(1.0)
    q.receive()[0].nack()
    clock.advance(1.0)
    q.receive(lease_seconds=5.0)  # nobody says anything: the lease runs out
    clock.advance(6.0)
    q.receive()[0].ack()
    (r,) = q.history()
    assert r.attempts == 3
    assert r.first_attempt_at == pytest.approx(r.enqueued_at + 1.0)
    assert r.done_at == pytest.approx(r.enqueued_at + 8.0)


def test_every_way_to_end(make: Opener, clock: FakeClock) -> None:
    q = make(history="records", max_attempts=2)
    q.send(b"", "rejected")
    q.receive()[0].reject("no")
    q.send(b"", "poison")
    for _ in range(2):
        q.receive()[0].nack()
    q.send(b"", "expired", ttl=1.0)
    clock.advance(2.0)
    q.receive()
    q.send(b"", "purged")
    q.purge("purged")
    assert ends(q) == [
        ("rejected", 1, "rejected", 1),
        ("poison", 1, "poison", 2),
        ("expired", 1, "expired", 0),
        ("purged", 1, "purged", 0),
    ]
    assert [r.first_attempt_at is None for r in q.history()] == [False, False, True, True]


def test_a_dropped_message(make: Opener) -> None:
    q = make(history="records", max_attempts=1, on_poison="drop")
    q.send(b"", "k")
    q.receive()[0].nack()
    assert ends(q) == [("k", 1, "dropped", 1)]


def test_a_redriven_message_has_a_record_of_each_end(make: Opener) -> None:
    q = make(history="records")
    q.send(b"", "k")
    q.receive()[0].reject("no")
    q.redrive("k")
    q.receive()[0].ack()
    assert ends(q) == [("k", 1, "rejected", 1), ("k", 1, "acked", 1)]


def test_a_refused_ack_leaves_none(make: Opener, clock: FakeClock) -> None:
    q = make(history="records")
    fill(q, "k", 2)
    late = q.receive(lease_seconds=1.0)
    clock.advance(2.0)
    (now,) = q.receive()
    with pytest.raises(strictq.PartialFailure):
        q.ack_many(late)
    assert q.history() == []
    now.ack()
    assert ends(q) == [("k", 1, "acked", 1)]


def test_a_transaction_that_fails_leaves_none(make: Opener) -> None:
    q = make(history="records")
    q.send(b"", "k")
    (d,) = q.receive()
    with pytest.raises(ZeroDivisionError), q.transaction(d) as tx:
        tx.key_state = b"x"
        _ = 1 // 0
    assert q.history() == []


@pytest.mark.parametrize("size", [3, 5_000])
def test_bodies_where_wanted(make: Opener, size: int) -> None:
    q = make(history="bodies")
    q.send(b"x" * size, "k")
    q.receive()[0].ack()
    (r,) = q.history()
    assert (r.body, r.size) == (b"x" * size, size)
    assert q.check() == []


def test_keyless_messages_have_no_key(make: Opener) -> None:
    q = make(history="records", keyless="random")
    q.send(b"", delay=0.0)
    q.receive()[0].nack(delay=0.0)
    q.receive()[0].ack()
    (r,) = q.history()
    assert (r.key, r.attempts) == (None, 2)


def test_no_more_are_kept_than_may_be(make: Opener) -> None:
    q = make(history="records", history_records_max=100)
    for _ in range(30):
        q.send_many([Message(b"", key="k")] * 20)
        q.ack_many(q.receive(20))
    assert [r.seq for r in q.history()] == list(range(501, 601))


def test_old_ones_go(make: Opener, clock: FakeClock) -> None:
    q = make(history="records", history_seconds=60.0)
    for _ in range(3):
        fill(q, "k", 5)
        q.ack_many(q.receive())
        clock.advance(50.0)
    assert [r.seq for r in q.history()] == list(range(6, 16)), "older than a minute when the last ones ended: 1 to 5"


def test_lowering_the_limit_removes_in_bounded_steps(make: Opener) -> None:
    q = make(history="records")
    q.send_many([Message(b"", key=n) for n in range(500)])
    q.ack_many(q.receive(500))
    q.configure(history_records_max=10)
    q.send(b"", "k")
    q.receive()[0].ack()
    left = len(q.history())
    assert 400 < left < 500, "one step"
    for _ in range(20):
        q.send(b"", "k")
        q.receive()[0].ack()
    assert len(q.history()) == 10


def test_reading_on(make: Opener) -> None:
    q = make(history="records", shards=3)
    q.send_many([Message(b"", key=n % 50) for n in range(300)])
    while ds := q.receive(37):
        q.ack_many(ds)
    found: list[HistoryRecord] = []
    for shard in range(q.shards):
        after = 0
        while page := q.history(shard=shard, after=after, limit=7):
            assert [r.n for r in page] == sorted(r.n for r in page)
            after = page[-1].n
            found += page
    assert Counter((r.key, r.seq) for r in found) == Counter((k, n) for k in range(50) for n in range(1, 7))


def test_numbers_go_on_when_all_are_gone(make: Opener) -> None:
    q = make(history="records")
    fill(q, "k", 3)
    q.ack_many(q.receive())
    last = q.history()[-1].n
    q.purge(history=True)
    assert q.history() == []
    q.send(b"", "k")
    q.receive()[0].ack()
    (r,) = q.history()
    assert r.n > last


def test_of_one_key_and_purging_it(make: Opener) -> None:
    q = make(history="records", shards=2)
    for key in ("a", "b"):
        fill(q, key, 3)
    while ds := q.receive():
        q.ack_many(ds)
    assert [(r.key, r.seq) for r in q.history(key="a")] == [("a", 1), ("a", 2), ("a", 3)]
    assert q.purge("a", history=True) == 0
    assert q.history(key="a") == []
    assert len(q.history(key="b")) == 3


def test_purging_the_records_alone(make: Opener) -> None:
    q = make(history="records", shards=2)
    for key in ("a", "b", "c"):
        fill(q, key, 3)
    q.ack_many([d for d in q.receive(100) if d.seq < 3])
    before = q.stats().depth
    assert q.purge_history("a") == 2
    assert [(r.key, r.seq) for s in range(q.shards) for r in q.history(shard=s) if r.key == "a"] == []
    assert q.purge_history("a") == q.purge_history("nobody's") == 0
    assert q.purge_history() == 4
    assert [r for s in range(q.shards) for r in q.history(shard=s)] == []
    assert q.stats().depth == before == 3
    assert q.stats().purged == 0
    assert q.check() == []


def test_it_outlives_reopening_and_what_is_forgotten(disk: Opener, clock: FakeClock) -> None:
    q = disk(history="records", idle_lane_seconds=1.0)
    q.send(b"", "gone")
    q.receive()[0].ack()
    clock.advance(10.0)
    q.send_many([Message(b"", key=n) for n in range(50)])
    q.close()
    q = disk()
    assert ends(q) == [("gone", 1, "acked", 1)]
    q.close()
    assert [r.key for r in disk.open(read_only=True).history()] == ["gone"]


def test_switching_it_on_and_off(q: Queue) -> None:
    for setting in ("off", "records", "off"):
        q.configure(history=setting)
        q.send(b"", setting)
        q.receive()[0].ack()
    assert ends(q) == [("records", 1, "acked", 1)]


def test_bad_arguments(q: Queue) -> None:
    for call in (
        lambda: q.history(limit=0),
        lambda: q.history(shard=1),
        lambda: q.history(after=-1),
        lambda: q.history(shard=True),
        lambda: q.history(key=""),
    ):
        with pytest.raises(InvalidArgument):
            call()


def test_async(tmp_path: object, clock: FakeClock) -> None:
    async def main() -> None:
        async with strictq.open_async(":memory:", clock=clock, config=strictq.QueueConfig(history="records")) as q:
            await q.send(b"", "k")
            (d,) = await q.receive()
            await d.ack()
            assert [r.seq for r in await q.history()] == [1]
            assert await q.purge_history() == 1
            assert await q.history() == []
            assert await q.purge(history=True) == 0

    anyio.run(main)


def test_every_message_ends_once(make: Opener, clock: FakeClock) -> None:
    """A random life of many messages: what is neither waiting nor dead has exactly one record more than its redrives."""
    rng = random.Random(7)
    q = make(history="records", max_attempts=3, history_records_max=100_000)
    sent = redriven = 0
    for _ in range(200):
        for _ in range(rng.randrange(6)):
            q.send(b"", rng.choice("abc"), ttl=rng.choice([None, 5.0]))
            sent += 1
        for d in q.receive(rng.randrange(1, 6)):
            try:
                match rng.randrange(6):
                    case 0:
                        d.nack()
                    case 1:
                        d.reject("no")
                    case 2:
                        pass
                    case _:
                        d.ack()
            except strictq.LeaseLost:
                pass
        if rng.random() < 0.05:
            redriven += q.redrive()
        clock.advance(rng.choice([0.0, 1.0, 40.0]))
    clock.advance(100.0)
    while ds := q.receive():
        for d in ds:
            d.ack()
        clock.advance(40.0)
    stats = q.stats()
    assert stats.depth == 0
    assert len(q.history(limit=100_000)) == sent + redriven
    assert q.check() == []


def test_the_number_of_the_last_record_outlives_it(make: Opener) -> None:
    q = make(history="records")
    assert q._storage.reports.history_end(0) == 0
    fill(q, "k", 5)
    q.ack_many(q.receive())
    assert q._storage.reports.history_end(0) == 5
    assert q._storage.operate.forget_history(shard=0, upto=3) == 3
    assert [r.n for r in q.history()] == [4, 5]
    assert q._storage.operate.forget_history(shard=0, upto=5) == 2
    assert (q.history(), q._storage.reports.history_end(0)) == ([], 5)
