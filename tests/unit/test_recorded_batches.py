"""Recorded batches for a named consumer: what is taken, in which order, up to where."""

from __future__ import annotations

import pytest

from strictq import InvalidArgument, Queue, RecordedBatchGone
from strictq.spark._recorded_batches import Holder
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill, keys_by_shard, labels
from tests.support.recorded_batches import by_key, drain, encode, holder, read

pytestmark = pytest.mark.own_messages("acks of the queue")


@pytest.mark.one_shard("the order of two lanes")
def test_a_recorded_batch_has_what_was_ready_in_order(q: Queue) -> None:
    fill(q, "a", 3)
    fill(q, "b", 2)
    h = holder(q)
    assert (h.acked, h.last) == (0, 0)
    assert h.take(0) == 1
    assert read(q, h, 1) == [("sa", 1, "1"), ("sa", 2, "2"), ("sa", 3, "3"), ("sb", 1, "1"), ("sb", 2, "2")]
    assert q.stats().in_flight == 5
    assert q.receive() == []
    assert q.check() == []


def test_the_same_start_gives_the_same_recorded_batch_whatever_came_meanwhile(q: Queue) -> None:
    fill(q, "a", 2)
    h = holder(q)
    assert h.take(0, messages_max=1) == 1
    first = read(q, h, 1)
    fill(q, "b", 2)
    assert h.take(0) == 1
    assert h.take(0, messages_max=1) == 1
    assert read(q, h, 1) == first == [("sa", 1, "1")]


def test_start_is_acked_and_the_lanes_go_on(q: Queue) -> None:
    fill(q, "a", 4)
    h = holder(q)
    assert [h.take(n, messages_max=3) for n in (0, 1)] == [1, 2]
    assert read(q, h, 2) == [("sa", 4, "4")]
    assert q.stats().acks == 3
    assert q.status("a", 3).state == "resolved"
    assert h.take(2) == 2
    stats = q.stats()
    assert (stats.acks, stats.depth) == (4, 0)
    assert q.check() == []


@pytest.mark.parametrize("upto", [-1, 2, 77])
def test_a_batch_that_was_never_received_is_not_acked(q: Queue, upto: int) -> None:
    fill(q, "a", 4)
    h = holder(q)
    h.take(0, messages_max=3)
    with pytest.raises(RecordedBatchGone, match=f"has received 1 batches, so it can't ack batch {upto}"):
        h.ack(upto)
    stats = q.stats()
    assert (stats.acks, stats.in_flight, h.acked) == (0, 3, 0)
    assert h.take(0) == 1
    h.ack(1)
    h.ack(0)
    assert (q.stats().acks, h.acked) == (3, 1)


def test_a_batch_that_is_recorded_ahead_is_not_acked(q: Queue) -> None:
    for n in range(6):
        fill(q, f"k{n}", 1)
    h = holder(q, deferring=True)
    assert [h.take(n, messages_max=2, ahead=True) for n in (0, 1)] == [1, 2]
    h.wait()
    with pytest.raises(RecordedBatchGone, match="can't ack batch 3"):
        h.ack(3)
    assert h.take(2, messages_max=2, ahead=True) == 3
    h.ack(3)
    assert q.stats().depth == 0


def test_the_newest_batch_is_withdrawn(q: Queue) -> None:
    fill(q, "a", 4)
    h = holder(q)
    assert [h.take(n, messages_max=2) for n in (0, 1)] == [1, 2]
    h.withdraw_newest()
    assert (h.last, h.acked, q.stats().in_flight) == (1, 1, 0)
    with pytest.raises(RecordedBatchGone):
        h.ack(2)
    fill(q, "b", 1)
    assert h.take(1) == 2
    assert by_key(read(q, h, 2)) == {"sa": [3, 4], "sb": [1]}
    assert [d.attempt for d in q.receive()] == []
    assert q.check() == []


def test_a_lane_gives_nothing_to_the_next_before_the_ack(q: Queue) -> None:
    fill(q, "a", 5)
    h = holder(q)
    h.take(0, messages_max=2)
    assert q.receive() == []
    h.take(1, messages_max=2)
    assert by_key(read(q, h, 2)) == {"sa": [3, 4]}


def test_delays_and_holds_are_respected(q: Queue, clock: FakeClock) -> None:
    q.send(b"later", "late", delay=10.0)
    q.send(b"behind", "late")
    fill(q, "held", 1)
    q.hold("held")
    h = holder(q)
    assert h.take(0) == 0
    clock.advance(11.0)
    assert read(q, h, h.take(0)) == [("slate", 1, "later"), ("slate", 2, "behind")]
    q.release("held")
    assert read(q, h, h.take(1)) == [("sheld", 1, "1")]


def test_a_worker_and_a_named_consumer_share_a_queue(q: Queue) -> None:
    for key in ("a", "b", "c"):
        fill(q, key, 2)
    mine = q.receive(2)
    h = holder(q)
    n = h.take(0)
    assert by_key(read(q, h, n)) == {"sb": [1, 2], "sc": [1, 2]}
    q.ack_many(mine)
    fill(q, "a", 1)
    assert labels(q.receive()) == [("a", 3)]
    assert h.take(n) == n


def test_two_consumers_have_numbers_and_leases_of_their_own(q: Queue) -> None:
    fill(q, "a", 1)
    fill(q, "b", 1)
    one, two = holder(q, "one"), holder(q, "two")
    assert (one.take(0, messages_max=1), two.take(0)) == (1, 1)
    assert (read(q, one, 1), read(q, two, 1)) == ([("sa", 1, "1")], [("sb", 1, "1")])
    assert [(c.name, c.in_flight, c.open, c.active) for c in q.consumers()] == [("one", 1, 1, True), ("two", 1, 1, True)]


def test_large_bodies_and_bytes_max(q: Queue) -> None:
    for size in (3_000, 500, 500, 9_000):
        q.send(b"x" * size, "k")
    h = holder(q)
    counts = []
    n = 0
    while (following := h.take(n, bytes_max=4_000)) != n:
        n = following
        counts.append(len(read(q, h, n)))
    assert counts == [3, 1]
    assert q.check() == []


@pytest.mark.one_shard("the approximate size of a batch")
def test_bytes_max_cuts_between_lanes_and_loses_none(q: Queue) -> None:
    for key in "abcdef":
        q.send(b"x" * 900, key)
    h = holder(q)
    assert by_key(read(q, h, h.take(0, bytes_max=2_000))) == {"sa": [1], "sb": [1]}
    assert q.check() == []
    assert sorted(by_key(drain(q, h))) == ["sc", "sd", "se", "sf"]


def test_limits_are_checked(q: Queue) -> None:
    h = holder(q)
    for options in ({"messages_max": 0}, {"messages_max": 10**9}, {"bytes_max": 0}):
        with pytest.raises(InvalidArgument):
            h.take(0, **options)
    for name in ("", "x" * 257, "a\0b"):
        with pytest.raises(InvalidArgument):
            Holder(q, name, encode)
    with pytest.raises(InvalidArgument, match="attach first"):
        _ = Holder(q, "new", encode).last


def test_headers_of_attempts_and_expired_messages(q: Queue, clock: FakeClock) -> None:
    q.send(b"old", "a", ttl=5.0)
    q.send(b"new", "a")
    clock.advance(6.0)
    h = holder(q)
    assert read(q, h, h.take(0)) == [("sa", 2, "new")]
    assert q.stats().expired == 1
    assert q.check() == []


# --- bounded by arrival


def test_only_what_had_arrived(q: Queue) -> None:
    fill(q, "a", 2)
    h = holder(q)
    seen = h.arrived()
    fill(q, "a", 2)
    fill(q, "b", 1)
    assert read(q, h, h.take(0, arrived=seen)) == [("sa", 1, "1"), ("sa", 2, "2")]
    assert h.take(1, arrived=seen) == 1
    assert q.check() == []
    assert by_key(read(q, h, h.take(1))) == {"sa": [3, 4], "sb": [1]}


def test_what_was_retried_meanwhile_is_of_its_arrival(q: Queue) -> None:
    """A nacked lane goes to the end of the order, behind newer lanes; its messages are no newer for that."""
    fill(q, "a", 2)
    fill(q, "c", 1)
    h = holder(q)
    seen = h.arrived()
    fill(q, "b", 1)
    (d,) = q.receive(1, keys=["a"])
    d.nack(delay=0.0)
    assert by_key(read(q, h, h.take(0, arrived=seen))) == {"sc": [1], "sa": [1, 2]}
    assert h.take(1, arrived=seen) == 1
    assert q.check() == []


def test_an_expired_head_does_not_let_a_newer_message_in(q: Queue, clock: FakeClock) -> None:
    q.send(b"old", "a", ttl=5.0)
    h = holder(q)
    seen = h.arrived()
    q.send(b"new", "a")
    clock.advance(6.0)
    assert h.take(0, arrived=seen) == 0
    assert q.check() == []
    assert read(q, h, h.take(0)) == [("sa", 2, "new")]


# ---- many shards

MANY = 10


def shards_of(h: Holder, n: int) -> set[int]:
    return {part.shard for part in h.parts(n)}


def test_a_recorded_batch_that_can_not_hold_everything_has_parts_of_few_shards_in_turn(disk: Opener) -> None:
    q = disk(shards=MANY)
    keys = keys_by_shard(MANY)
    for key in keys.values():
        fill(q, key, 20)
    h = holder(q)
    n, taken, got = 0, [], []
    while (following := h.take(n, messages_max=40)) != n:
        n = following
        taken.append(shards_of(h, n))
        got += read(q, h, n)
        assert len(read(q, h, n)) == 40
    assert [sorted(shards) for shards in taken[:2]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert by_key(got) == {f"s{key}": list(range(1, 21)) for key in keys.values()}
    assert q.stats().depth == 0
    assert q.check() == []


def test_what_the_shards_whose_turn_it_is_can_not_give_comes_of_the_others(disk: Opener) -> None:
    q = disk(shards=MANY)
    keys = keys_by_shard(MANY)
    for shard, key in keys.items():
        for n in range(20):
            q.send(b"%d" % n, key, delay=60.0 if shard < 8 else 0.0)
    h = holder(q)
    assert h.take(0, messages_max=40, arrived=h.arrived()) == 1
    assert shards_of(h, 1) == {8, 9}
    assert h.take(1, messages_max=40, arrived=h.arrived()) == 2
    assert shards_of(h, 2) == {8, 9}


def test_a_shard_that_gives_nothing_is_acked_all_the_same(disk: Opener) -> None:
    q = disk(shards=MANY)
    for key in keys_by_shard(MANY).values():
        fill(q, key, 20)
    h = holder(q)
    h.take(0, messages_max=40)
    h.take(1, messages_max=40)
    (consumer,) = q.consumers()
    assert (consumer.acked, consumer.open, consumer.in_flight) == (1, 1, 40)
    assert q.stats().acks == 40


def test_everything_that_fits_comes_at_once_whatever_shard_has_it(disk: Opener) -> None:
    q = disk(shards=MANY)
    for key in keys_by_shard(MANY).values():
        fill(q, key, 2)
    h = holder(q)
    h.take(0, messages_max=100)
    assert shards_of(h, 1) == set(range(MANY))
