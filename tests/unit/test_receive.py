"""Receiving: the three batch rules, per_key, keys, long polling, and that nothing starves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import strictq
from strictq import Message, Queue
from strictq._client import receiving as _receiving
from strictq.testing import FakeClock
from tests.support.injection import behind_next_commit
from tests.support.queues import Opener, ack_all, drain, fill, keys_by_shard, labels, seqs
from tests.support.running import PATIENCE_SECONDS


@pytest.fixture
def ticking() -> Iterator[Queue]:
    """A queue in memory on the machine's own clock, for what waits."""
    with strictq.open(":memory:") as q:
        yield q


def test_empty_queue_gives_nothing(q: Queue) -> None:
    assert q.receive() == []


def test_batch_takes_the_oldest_lane_first_then_more_of_it_then_the_next(q: Queue) -> None:
    for key in ("a", "b", "a", "c", "a", "b"):
        q.send(b"", key)
    assert labels(q.receive(4)) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_batch_ends_inside_a_lane_where_it_is_full(q: Queue) -> None:
    fill(q, "a", 3)
    fill(q, "b", 3)
    assert labels(q.receive(2)) == [("a", 1), ("a", 2)]
    assert labels(q.receive(10)) == [("b", 1), ("b", 2), ("b", 3)], "the rest of a is behind a's holder"


def test_a_lane_that_is_held_by_a_lease_is_passed_over(q: Queue) -> None:
    fill(q, "a", 2)
    (d,) = q.receive(1)
    assert q.receive() == []
    q.send(b"", "b")
    assert labels(q.receive()) == [("b", 1)]
    d.ack()
    assert labels(q.receive()) == [("a", 2)]


def test_oldest_head_counts_not_oldest_lane(q: Queue) -> None:
    for key in ("a", "b", "c", "a"):
        q.send(b"", key)
    assert labels(q.receive(1)) == [("a", 1)]
    assert labels(q.receive(1)) == [("b", 1)]


def test_batch_is_filled_up_behind_expired_messages(q: Queue, clock: FakeClock) -> None:
    fill(q, "a", 5, ttl=5.0)
    clock.advance(6.0)
    fill(q, "b", 12)
    assert labels(q.receive(10)) == [("b", n) for n in range(1, 11)]


def test_batch_is_filled_up_behind_a_lane_that_goes_out_one_by_one(disk: Opener, clock: FakeClock) -> None:
    """In one process: one that builds its memory anew finds the end of the lease later."""
    q = disk()
    fill(q, "a", 5)
    q.receive(5, lease_seconds=5.0)
    clock.advance(6.0)
    assert q.receive(keys=["absent"]) == []
    fill(q, "b", 12)
    assert labels(q.receive(10)) == [("a", 1), *(("b", n) for n in range(1, 10))]


def test_per_key_one_gives_heads_of_many_lanes(q: Queue) -> None:
    for key in ("a", "a", "b", "b", "c"):
        q.send(b"", key)
    assert labels(q.receive(10, per_key=1)) == [("a", 1), ("b", 1), ("c", 1)]


def test_per_key_bounds_each_lane(q: Queue) -> None:
    fill(q, "a", 5)
    fill(q, "b", 1)
    fill(q, "c", 5)
    assert labels(q.receive(5, per_key=2)) == [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("c", 2)]


def test_keys_limits_what_is_looked_at(q: Queue) -> None:
    for key in ("a", "b", "c", 1, b"b"):
        q.send(b"", key)
    assert {key for key, _ in labels(q.receive(keys=["b", 1, "absent"]))} == {"b", 1}
    assert [key for key, _ in labels(q.receive())] == ["a", "c", b"b"]


def test_keys_given_twice_count_once(q: Queue) -> None:
    fill(q, "a", 2)
    assert labels(q.receive(keys=["a", "a"])) == [("a", 1), ("a", 2)]


def test_keys_reaches_behind_a_long_backlog(q: Queue) -> None:
    q.send_many([Message(b"", key=n) for n in range(2_000)])
    q.send(b"", "last")
    assert labels(q.receive(1, keys=["last"])) == [("last", 1)]


def test_all_shards_are_reached(make: Opener) -> None:
    q = make(shards=4)
    q.send_many([Message(b"", key=n) for n in range(40)])
    got = q.receive(40)
    assert sorted(d.key for d in got) == list(range(40))
    assert {d.shard for d in got} == {0, 1, 2, 3}


def test_a_shard_that_was_empty_is_looked_at_after_any_send(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", shards=4) as q, strictq.open(tmp_path / "q") as other:
        for n in range(40):
            assert not q.receive(), "now each shard is known to be empty"
            other.send(b"", key=f"k{n}") if n % 2 else other.send_many([Message(b"", key=f"k{n}")])
            (d,) = q.receive(1)
            d.nack(delay=0)
            (d,) = other.receive(1)
            d.ack()


def test_shards_take_turns(make: Opener) -> None:
    q = make(shards=2)
    keys = keys_by_shard(2)
    for _ in range(5):
        for key in keys.values():
            q.send(b"", key)
    seen = set()
    for _ in range(4):
        (d,) = q.receive(1)
        seen.add(d.shard)
        d.ack()
    assert seen == {0, 1}


def test_wait_zero_finds_the_one_ready_lane_behind_many_blocked_ones(q: Queue) -> None:
    for n in range(500):
        q.send(b"", n)
    q.receive(500)
    q.send_many([Message(b"", key=f"late-{n}", delay=60.0) for n in range(500)])
    for n in range(0, 500, 5):
        q.send(b"", n)
    q.send(b"", "ready")
    assert labels(q.receive(1)) == [("ready", 1)]


@pytest.mark.one_shard("the order of two lanes")
def test_deep_lane_does_not_hide_another(q: Queue) -> None:
    q.send_many([Message(b"", key="deep")] * 3_000)
    q.send(b"", "other")
    q.receive(1)
    assert labels(q.receive(10)) == [("other", 1)]


def test_instantly_nacked_lanes_do_not_keep_others_waiting(make: Opener) -> None:
    q = make(max_attempts=None)
    for key in ("a", "b", "c"):
        q.send(b"", key)
    seen = set()
    for _ in range(12):
        (d,) = q.receive(1)
        seen.add(d.key)
        d.nack()
    assert seen == {"a", "b", "c"}


def test_a_busy_lane_does_not_starve_the_others(q: Queue) -> None:
    fill(q, "busy", 50)
    q.send(b"", "quiet")
    for round_number in range(60):
        (d,) = q.receive(1)
        if d.key == "quiet":
            return
        d.ack()
        q.send(b"%d" % round_number, "busy")
    raise AssertionError("the quiet key was never served")


def test_first_deliveries_ascend_over_batches(q: Queue) -> None:
    fill(q, "k", 25)
    got: list[int] = []
    while batch := q.receive(4):
        got += seqs(batch)
        ack_all(batch)
    assert got == list(range(1, 26))


@pytest.mark.one_shard("the number of the shard")
def test_delivery_carries_its_lease(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    one, two = q.receive(lease_seconds=12.0)
    assert one.token == two.token == one.lease.token
    assert (one.lease.key, one.shard) == ("k", 0)
    assert one.lease.expires_in == pytest.approx(12.0)
    clock.advance(2.0)
    assert one.lease.expires_in == pytest.approx(10.0)


def test_lease_seconds_default_is_the_queues(make: Opener) -> None:
    q = make(lease_seconds=7.0)
    q.send(b"", "k")
    (d,) = q.receive()
    assert d.lease.expires_in == pytest.approx(7.0)


def test_consume_ends_with_an_empty_finite_wait(q: Queue) -> None:
    fill(q, "a", 3)
    fill(q, "b", 2)
    got = []
    for d in q.consume(2, wait=0.0):
        got.append((d.key, d.seq))
        d.ack()
    assert sorted(got) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]
    assert q.stats().depth == 0


def test_with_acks_on_success_and_nacks_on_an_exception(q: Queue) -> None:
    fill(q, "k", 2)
    (d,) = q.receive(1)
    with d:
        pass
    (d,) = q.receive(1)
    with pytest.raises(ZeroDivisionError), d:
        raise ZeroDivisionError("handler")
    assert d.seq == 2
    status = q.status("k", 2)
    assert (status.state, status.attempts) == ("ready", 1)
    assert status.last_error is not None
    assert "ZeroDivisionError" in status.last_error


def test_with_starts_on_entry(q: Queue) -> None:
    fill(q, "k", 2)
    d, _ = q.receive(2)
    with d:
        assert q.status("k", 1).attempts == 1
    assert q.status("k", 1).state == "resolved"


def test_ack_first_resolves_on_receive_and_keeps_the_lane(q: Queue) -> None:
    fill(q, "k", 2)
    (d,) = q.receive(1, ack_first=True)
    assert q.status("k", 1).state == "resolved"
    assert q.receive() == [], "the lane stays leased until done()"
    d.done()
    assert labels(q.receive()) == [("k", 2)]


def test_ack_first_is_at_most_once_past_the_deadline(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    q.receive(1, ack_first=True, lease_seconds=5.0)
    clock.advance(6.0)
    assert labels(q.receive()) == [("k", 2)]


def test_ack_first_loses_nothing_to_a_slow_commit(disk: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane was given to another consumer before the receive returned; but its messages are nobody else's."""
    q, other = disk(), disk()
    fill(q, "k", 3)

    def late() -> None:
        clock.advance(12.0)
        assert labels(other.receive(1)) == [("k", 3)]

    behind_next_commit(monkeypatch, late)
    ds = q.receive(2, ack_first=True, lease_seconds=10.0)
    assert labels(ds) == [("k", 1), ("k", 2)]
    ds[0].done()
    with pytest.raises(strictq.LeaseLost):
        ds[1].done()


@pytest.mark.one_shard("the order of two lanes")
def test_consume_with_ack_first_loses_nothing_to_who_leaves_the_loop(q: Queue) -> None:
    """What is leased ahead is resolved, and could not be given back: so nothing is."""
    fill(q, "a", 3)
    fill(q, "b", 1)
    for d in q.consume(wait=0.0, ack_first=True):
        with d:
            assert (d.key, d.seq) == ("a", 1)
        break
    assert [m.seq for m in q.peek("a")] == [2, 3]
    got = []
    for d in q.consume(max_messages=2, wait=0.0, ack_first=True):
        with d:
            got.append((d.key, d.seq))
    assert got == [("a", 2), ("a", 3), ("b", 1)]


def test_done_is_for_ack_first_only(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    with pytest.raises(strictq.StrictqError):
        d.done()
    d.ack()


def test_consumer_is_shown_to_the_operator(q: Queue) -> None:
    q.send(b"", "k")
    q.receive(consumer="worker-7")
    assert q.status("k", 1).consumer == "worker-7"
    assert q.explain("k").by == "worker-7"


def test_wait_gives_up_after_its_time(ticking: Queue) -> None:
    assert ticking.receive(wait=0.02) == []


def test_wait_is_woken_by_a_send_in_this_process(ticking: Queue) -> None:
    got: list[strictq.Delivery] = []
    started = threading.Event()

    def consume() -> None:
        started.set()
        got.extend(ticking.receive(wait=20.0))

    thread = threading.Thread(target=consume)
    thread.start()
    started.wait()
    ticking.send(b"", "k")
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert labels(got) == [("k", 1)]


def test_wait_is_woken_by_another_object_on_the_directory(tmp_path: Path) -> None:
    got: list[strictq.Delivery] = []
    with strictq.open(tmp_path / "queue") as one, strictq.open(tmp_path / "queue") as two:
        thread = threading.Thread(target=lambda: got.extend(one.receive(wait=20.0)))
        thread.start()
        two.send(b"", "k")
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
        assert labels(got) == [("k", 1)]


def test_wait_is_woken_by_a_delay_running_out(ticking: Queue) -> None:
    ticking.send(b"", "k", delay=0.05)
    assert ticking.receive() == []
    assert labels(ticking.receive(wait=10.0)) == [("k", 1)]


def test_wait_is_woken_by_a_lease_running_out(ticking: Queue) -> None:
    ticking.send(b"", "k")
    ticking.receive(lease_seconds=0.05)
    assert labels(ticking.receive(wait=10.0)) == [("k", 1)]


def test_wait_is_woken_by_an_ack_that_frees_the_lane(ticking: Queue) -> None:
    fill(ticking, "k", 2)
    (first,) = ticking.receive(1)
    got: list[strictq.Delivery] = []
    thread = threading.Thread(target=lambda: got.extend(ticking.receive(wait=20.0)))
    thread.start()
    first.ack()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert labels(got) == [("k", 2)]


def test_closing_ends_a_wait(ticking: Queue) -> None:
    ended: list[object] = []

    def consume() -> None:
        try:
            ended.append(ticking.receive(wait=20.0))
        except strictq.QueueClosed as e:
            ended.append(e)

    thread = threading.Thread(target=consume)
    thread.start()
    ticking.close()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert len(ended) == 1


def test_two_objects_never_hold_one_lane(disk: Opener) -> None:
    one, two = disk(), disk()
    fill(one, "a", 2)
    fill(one, "b", 2)
    first = one.receive(2)
    second = two.receive(10)
    assert labels(first) == [("a", 1), ("a", 2)]
    assert labels(second) == [("b", 1), ("b", 2)]


@pytest.mark.own_messages("threads receive from every key")
def test_concurrent_consumers_share_the_work_without_overlap(make: Opener) -> None:
    q = make(shards=2)
    q.send_many([Message(b"", key=n % 10) for n in range(200)])
    seen: list[tuple[object, int]] = []
    lock = threading.Lock()

    def work() -> None:
        while batch := q.receive(7):
            with lock:
                seen.extend(labels(batch))
            ack_all(batch)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    # A thread ends when every ready lane is in another's hands; what is left is the last ones' remainder.
    seen += drain(q)
    assert len(seen) == len(set(seen)) == 200
    for key in range(10):
        mine = [seq for k, seq in seen if k == key]
        assert mine == sorted(mine)


@pytest.mark.own_messages("receives of the queue")
def test_a_second_of_waiting_counts_as_an_empty_receive(make: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    q = make(shards=2)
    time = SimpleNamespace(now=0.0)
    time.monotonic = lambda: time.now

    def wait(_storage: object, _seen: object, _seconds: float, *, idle: bool) -> None:
        time.now += 30.4
        if time.now > 60.0:
            q.send(b"", "k")

    monkeypatch.setattr(_receiving, "time", time)
    monkeypatch.setattr(type(q._storage.waker), "wait", wait)
    assert len(q.receive(wait=None)) == 1
    stats = q.stats()
    looks = stats.empty_receives - 60
    assert 4 <= looks <= 6, "two at each shard, and perhaps one at the shard without the key"
    assert [60 // 2 <= shard.empty_receives <= 60 // 2 + 3 for shard in stats.shards] == [True, True]
    assert stats.empty_receive_ratio == pytest.approx((60 + looks) / (61 + looks))


def test_estimates_are_the_messages_or_else_the_queues(make: Opener) -> None:
    q = make(process_seconds=2.0)
    q.send(b"", "told", prepare_seconds=0.5, process_seconds=0.0)
    q.send(b"", "untold")
    found = {d.key: (d.prepare_seconds, d.process_seconds) for d in q.receive()}
    assert found == {"told": (0.5, 0.0), "untold": (None, 2.0)}
    q.configure(prepare_seconds=0.25, process_seconds=None)
    q.send(b"", "later")
    assert [(d.prepare_seconds, d.process_seconds) for d in q.receive()] == [(0.25, None)]


@pytest.mark.own_messages("no other message may be ready")
def test_wait_ready_says_whether_a_receive_would_find_something(q: Queue, clock: FakeClock) -> None:
    assert not q.wait_ready(0.0)
    q.send(b"", "k", delay=5.0)
    assert not q.wait_ready(0.0)
    clock.advance(5.0)
    assert q.wait_ready()
    assert q.stats().in_flight == 0
    q.receive()
    assert not q.wait_ready(0)
    q.pause()
    clock.advance(31.0)
    assert not q.wait_ready(0)
    q.resume()
    assert q.wait_ready()
