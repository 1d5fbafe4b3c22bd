"""Looking in: peek, status, explain, stats, top_keys. Looking changes nothing."""

from __future__ import annotations

import pytest

import strictq
from strictq import Message, Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill, seqs


def test_peek_shows_the_lane_in_order(q: Queue, clock: FakeClock) -> None:
    q.send(b"1", "k", headers={"a": "b"})
    q.send(b"2", "k", delay=5.0)
    q.send(b"3", "k", ttl=9.0)
    one, two, three = q.peek("k")
    assert [p.seq for p in (one, two, three)] == [1, 2, 3]
    assert [p.body for p in (one, two, three)] == [b"1", b"2", b"3"]
    assert (one.key, one.headers, one.state, one.attempts) == ("k", {"a": "b"}, "ready", 0)
    assert (one.due_at, one.expires_at) == (None, None)
    assert one.enqueued_at == pytest.approx(clock.wall() / 1e6, abs=1e-3)
    assert two.state == "delayed"


def test_peek_is_limited_and_changes_nothing(q: Queue) -> None:
    fill(q, "k", 30)
    assert seqs(q.peek("k")) == list(range(1, 11))
    assert seqs(q.peek("k", 3)) == [1, 2, 3]
    assert q.peek("absent") == []
    assert seqs(q.receive(30)) == list(range(1, 31))
    assert q.peek("k", 1)[0].state == "in_flight"


def test_status_follows_a_message(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    assert q.status("k", 1) == strictq.MessageStatus("k", 1, "ready")
    (d,) = q.receive(consumer="me", lease_seconds=10.0)
    s = q.status("k", 1)
    assert (s.state, s.attempts, s.consumer) == ("in_flight", 1, "me")
    assert s.until == pytest.approx(clock.wall() / 1e6 + 10.0, abs=1e-3)
    d.nack(delay=5.0, reason="busy")
    s = q.status("k", 1)
    assert (s.state, s.attempts, s.last_error, s.consumer) == ("delayed", 1, "busy", None)
    clock.advance(6.0)
    assert q.status("k", 1).state == "ready"
    q.receive()[0].ack()
    assert q.status("k", 1).state == "resolved"


def test_attempts_do_not_go_down_when_a_lease_runs_out(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    q.receive(lease_seconds=5.0)
    assert q.status("k", 1).attempts == 1
    clock.advance(6.0)
    assert q.status("k", 1).attempts == 1
    assert q.peek("k")[0].attempts == 1
    assert q.explain("k").attempts == 1


def test_status_of_what_was_never_sent(q: Queue) -> None:
    q.send(b"", "k")
    for key, seq in (("k", 2), ("absent", 1)):
        with pytest.raises(strictq.UnknownMessage):
            q.status(key, seq)


@pytest.mark.parametrize("seq", [0, -1, True, 1.0, "1", None])
def test_status_of_a_seq_that_cannot_be(q: Queue, seq: object) -> None:
    q.send(b"", "k")
    with pytest.raises((strictq.InvalidArgument, strictq.UnknownMessage)):
        q.status("k", seq)  # type: ignore[arg-type]


def test_explain_an_empty_key(q: Queue) -> None:
    why = q.explain("absent")
    assert (why.key, why.state, why.depth, why.dead, why.head_seq) == ("absent", "empty", 0, 0, None)
    assert why.text


def test_explain_a_ready_key(q: Queue) -> None:
    fill(q, "k", 3)
    why = q.explain("k")
    assert (why.state, why.head_seq, why.depth, why.attempts, why.solo) == ("ready", 1, 3, 0, False)
    assert why.token is None


def test_explain_a_key_in_flight(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 3)
    (d,) = q.receive(1, consumer="me", lease_seconds=10.0)
    why = q.explain("k")
    assert (why.state, why.head_seq, why.by, why.token, why.attempts) == ("in_flight", 1, "me", d.token, 1)
    assert why.since == pytest.approx(clock.wall() / 1e6, abs=1e-3)
    assert why.until == pytest.approx(clock.wall() / 1e6 + 10.0, abs=1e-3)
    assert "me" in why.text


def test_explain_counts_the_dead(q: Queue) -> None:
    fill(q, "k", 2)
    q.receive(1)[0].reject("no")
    why = q.explain("k")
    assert (why.dead, why.depth, why.head_seq) == (1, 1, 2)


def test_stats_of_an_empty_queue(make: Opener) -> None:
    s = make(shards=2).stats()
    assert (s.ready, s.in_flight, s.delayed, s.held, s.dead, s.depth) == (0, 0, 0, 0, 0, 0)
    assert s.oldest_age_seconds is None
    assert [x.shard for x in s.shards] == [0, 1]
    assert [x.quarantined for x in s.shards] == [None, None]


def test_stats_count_each_message_once(q: Queue) -> None:
    fill(q, "ready", 2)
    fill(q, "flying", 3)
    q.receive(2, keys=["flying"])
    q.send(b"", "delayed", delay=60.0)
    q.send(b"", "delayed")
    fill(q, "held", 2)
    q.hold("held")
    s = q.stats()
    assert (s.in_flight, s.ready, s.delayed, s.held) == (2, 3, 2, 2)
    assert s.depth == 9


@pytest.mark.one_shard("the order of two lanes")
def test_stats_ages(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    clock.advance(7.0)
    q.send(b"", "other")
    assert q.stats().oldest_age_seconds == pytest.approx(7.0)
    q.receive(1)[0].ack()
    assert q.stats().oldest_age_seconds == pytest.approx(0.0)


def test_stats_first_attempt_age(q: Queue, clock: FakeClock) -> None:
    """A lane counts whatever its head went through: with the first message that has no attempt."""
    assert q.stats().first_attempt_age_seconds is None
    fill(q, "k", 1)
    clock.advance(10.0)
    fill(q, "k", 2)
    clock.advance(10.0)
    (d,) = q.receive(1)
    assert q.stats().first_attempt_age_seconds == pytest.approx(10.0), "behind a leased head"
    d.nack(delay=0.0)
    assert q.stats().first_attempt_age_seconds == pytest.approx(10.0), "behind a retried head"
    q.receive(1)[0].nack(delay=60.0)
    assert q.stats().first_attempt_age_seconds == pytest.approx(10.0), "behind a delayed one"
    q.hold("k")
    assert q.stats().first_attempt_age_seconds == pytest.approx(10.0), "in a held lane"
    q.release("k")
    assert q.stats().first_attempt_age_seconds == pytest.approx(20.0), "attempts are 0 again"


def test_stats_first_attempt_age_ends_with_the_start(q: Queue, clock: FakeClock) -> None:
    for _ in range(3):
        fill(q, "k", 1)
        clock.advance(10.0)
    one, two, _three = q.receive(lease_seconds=5.0)
    ages = [q.stats().first_attempt_age_seconds]
    for d in (one, two):
        d.start()
        ages.append(q.stats().first_attempt_age_seconds)
    assert ages == [pytest.approx(30.0), pytest.approx(20.0), pytest.approx(10.0)]
    clock.advance(6.0)
    assert q.stats().first_attempt_age_seconds == pytest.approx(16.0), "the lease is over"
    q.receive(1)
    assert q.stats().first_attempt_age_seconds == pytest.approx(16.0), "and retaken"


def test_stats_first_attempt_age_of_many_lanes(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2)
    q.send_many([Message(b"", key=n % 3) for n in range(300)])
    clock.advance(3600.0)
    retried, delayed, _leased = q.receive(3, per_key=1)
    retried.nack(delay=0.0)
    delayed.nack(delay=60.0)
    s = q.stats()
    assert s.first_attempt_age_seconds == s.oldest_age_seconds == pytest.approx(3600.0)
    q.purge()
    assert q.stats().first_attempt_age_seconds is None


@pytest.mark.own_messages("totals of the queue")
def test_stats_totals(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2, max_attempts=None)
    q.send_many([Message(b"", key=n) for n in range(10)])
    ds = q.receive(10)
    for d in ds[:6]:
        d.ack()
    ds[6].nack()
    ds[7].reject("no")
    q.purge(ds[6].key)
    s = q.stats()
    assert (s.sends, s.receives, s.acks, s.dead, s.purged) == (10, 10, 6, 1, 1)
    assert s.retries == 1
    assert sum(x.sends for x in s.shards) == 10
    assert s.in_flight == 2


def test_stats_of_two_objects_agree(disk: Opener) -> None:
    one, two = disk(), disk()
    fill(one, "k", 3)
    two.receive(1)
    for s in (one.stats(), two.stats()):
        assert (s.ready, s.in_flight, s.sends, s.receives) == (2, 1, 3, 1)


def test_stats_outlive_reopening(disk: Opener) -> None:
    q = disk()
    fill(q, "k", 3)
    q.receive(1)[0].ack()
    q.close()
    s = disk().stats()
    assert (s.sends, s.receives, s.acks, s.depth) == (3, 1, 1, 2)
    assert s.disk_bytes > 0


def test_stats_is_a_frozen_snapshot(q: Queue) -> None:
    s = q.stats()
    q.send(b"", "k")
    assert s.depth == 0
    with pytest.raises(AttributeError):
        s.ready = 5  # type: ignore[misc]


def test_top_keys_by_depth(make: Opener) -> None:
    q = make(shards=2)
    for n in range(1, 8):
        fill(q, f"k{n}", n)
    top = q.top_keys(3)
    assert [(t.key, t.depth) for t in top] == [("k7", 7), ("k6", 6), ("k5", 5)]
    assert {t.state for t in top} == {"ready"}


def test_top_keys_by_age(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2)
    for key in ("old", "middle", "young"):
        q.send(b"", key)
        clock.advance(10.0)
    top = q.top_keys(2, by="age")
    assert [t.key for t in top] == ["old", "middle"]
    assert [t.oldest_age_seconds for t in top] == [pytest.approx(30.0), pytest.approx(20.0)]


def test_top_keys_does_not_name_empty_lanes(q: Queue) -> None:
    q.send(b"", "k")
    q.receive()[0].ack()
    assert q.top_keys() == []


def test_top_keys_says_why_a_key_waits(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2, tenant_separator="/", retry_delay_seconds=60.0)
    q.limit("slow", receive_rate=0.1, burst=1)
    q.send(b"", "slow/1")
    q.receive(1, lease_seconds=900.0)
    for key in ("held", "failed", "paused/1", "busy/1", "busy/2", "slow/2", "free"):
        q.send(b"", key)
    q.hold("held", "a decision")
    q.receive(1, keys=["failed"])[0].nack(reason="no answer")
    q.limit("paused", paused=True)
    q.receive(1, keys=["busy/1"])
    q.limit("busy", concurrency=1)
    found = {k.key: (k.state, k.reason) for k in q.top_keys(by="age")}
    assert found == {
        "held": ("held", "a decision"),
        "failed": ("delayed", "it failed once in 0 s"),
        "paused/1": ("throttled", "tenant paused is paused"),
        "busy/1": ("in_flight", None),
        "busy/2": ("throttled", "tenant busy has 1 key in flight, as many as its concurrency"),
        "slow/1": ("in_flight", None),
        "slow/2": ("throttled", "tenant slow gets 0.1 messages a second"),
        "free": ("ready", None),
    }
    for key, (state, _) in found.items():
        assert q.explain(key).state == state
    q.pause()
    paused = {k.key: (k.state, k.reason) for k in q.top_keys(by="age")}
    assert {key: of for key, of in paused.items() if of[0] == "paused"} == dict.fromkeys(
        ("paused/1", "busy/2", "slow/2", "free"), ("paused", "the queue is paused")
    )
    assert {key: of for key, of in paused.items() if of[0] != "paused"} == {
        key: found[key] for key in ("held", "failed", "busy/1", "slow/1")
    }


def test_top_keys_says_that_a_handler_type_is_paused_and_a_key_sidelined(make: Opener, clock: FakeClock) -> None:
    q = make()
    q.send(b"", "typed", headers={"strictq-type": "mail"})
    clock.advance(1.0)
    q.sideline(clock.wall() / 1e6)
    q.send(b"", "new")
    assert {k.key: (k.state, k.reason) for k in q.top_keys()} == {
        "typed": ("ready", "it is sidelined, so newer messages get nine turns in ten"), "new": ("ready", None),
    }  # fmt: skip
    q.sideline(None)
    q.pause("mail")
    assert {k.key: (k.state, k.reason) for k in q.top_keys()} == {
        "typed": ("ready", "handlers of 'mail' are paused"), "new": ("ready", None),
    }  # fmt: skip


def test_a_read_only_object_sees_a_new_limit_at_the_first_look(disk: Opener) -> None:
    q = disk(tenant_separator="/")
    q.send(b"", "a/1")
    for n, look in enumerate((lambda r: r.tenants()[0].paused, lambda r: r.top_keys()[0].state == "throttled")):
        with strictq.open(q.path, read_only=True) as reading:
            assert not look(reading)
            q.limit("a", paused=True)
            assert look(reading), n
            q.limit("a", paused=False)


def test_top_keys_by_something_else(q: Queue) -> None:
    with pytest.raises(strictq.InvalidArgument):
        q.top_keys(by="colour")  # type: ignore[arg-type]


def test_check_finds_nothing_in_a_busy_queue(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2, on_poison="hold", max_attempts=2)
    for key in range(20):
        fill(q, key, 3, ttl=50.0 if key % 3 == 0 else None)
    ds = q.receive(30)
    for n, d in enumerate(ds):
        if n % 4 == 0:
            d.ack()
        elif n % 4 == 1 and d.seq == 1:
            d.reject("no")
    q.hold(19)
    clock.advance(100.0)
    q.receive(20)
    q.redrive()
    assert q.check() == []


def test_leases_name_the_holder_of_every_leased_key(make: Opener) -> None:
    q = make(lease_seconds=10.0, keyless="random")
    clock = make.clock
    fill(q, "a", 3)
    (one, two) = q.receive(2, keys=["a"], consumer="billing")
    clock.advance(1.0)
    q.send(b"", key=b"b")
    q.send(b"", key=None)
    assert len(q.receive(consumer="other")) == 2
    first, *rest = q.leases()
    now = clock.wall() / 1e6
    assert (first.key, first.consumer, first.token, first.first_seq, first.messages) == ("a", "billing", one.token, 1, 2)
    assert (first.since, first.until) == (pytest.approx(now - 1.0, abs=1e-3), pytest.approx(now + 9.0, abs=1e-3))
    assert sorted((str(lease.key), lease.consumer, lease.messages) for lease in rest) == [
        ("None", "other", 1),
        ("b'b'", "other", 1),
    ]
    assert q.leases(1) == [first]
    one.ack()
    assert (q.leases(1)[0].first_seq, q.leases(1)[0].messages) == (2, 1)
    two.ack()
    assert [lease.consumer for lease in q.leases()] == ["other", "other"]
    clock.advance(11.0)
    assert q.leases() == []
    with pytest.raises(strictq.InvalidArgument):
        q.leases(0)


def test_top_keys_finds_keys_by_their_beginning(make: Opener) -> None:
    q = make(shards=1)
    for key, n in (("ab", 1), ("ab1", 2), ("ab\U0010ffff", 3), ("ac", 4), (b"ab2", 5), ("a", 6)):
        fill(q, key, n)

    def found(prefix: str | bytes) -> list[tuple[object, int]]:
        return [(k.key, k.depth) for k in q.top_keys(10, prefix=prefix)]

    wanted = [("ab\U0010ffff", 3), ("ab1", 2), ("ab", 1)]
    assert found("ab") == wanted
    assert found(b"ab") == [(b"ab2", 5)]
    assert found("zz") == []
    assert [k.depth for k in q.top_keys(2, prefix="a")] == [6, 4]
    assert [k.key for k in q.top_keys(1, by="age", prefix="ab")] == ["ab"]
    with pytest.raises(strictq.InvalidArgument):
        q.top_keys(prefix=3)  # type: ignore[arg-type]


def test_keys_at_rest_are_found_by_their_beginning(disk: Opener) -> None:
    """Those that no memory has: after another object opened the queue."""
    q = disk(shards=1)
    for n in range(1200):
        q.send(b"", key=f"order-{n:04}")
    q.send(b"", key="order")
    q.send(b"", key="zebra")
    q.close()
    with strictq.open(q.path, read_only=True) as again:
        assert len(again.top_keys(10_000, prefix="order-")) == 1200
        assert len(again.top_keys(10_000, prefix="order")) == 1201
        assert [k.key for k in again.top_keys(prefix="order-119")] == [f"order-119{n}" for n in reversed(range(10))]


@pytest.mark.one_shard("the age of one queue's messages")
@pytest.mark.own_messages("ages of the queue")
@pytest.mark.parametrize("end", ["release", "defer", "nack"])
def test_an_attempt_that_is_taken_back_counts_no_more(make: Opener, clock: FakeClock, end: str) -> None:
    q = make()
    for n in range(3):
        q.send(b"", key=f"k{n}")
        clock.advance(10.0)
    assert q.stats().first_attempt_age_seconds == pytest.approx(30.0)
    first, second = q.receive(1)[0], q.receive(1)[0]
    assert [q.stats().first_attempt_age_seconds for _ in range(2)] == [pytest.approx(10.0)] * 2
    second.ack()
    {"release": first.lease.release, "defer": lambda: first.defer(0.0), "nack": lambda: first.nack(delay=0.0)}[end]()
    assert q.stats().first_attempt_age_seconds == pytest.approx(10.0 if end == "nack" else 30.0)
    assert q.stats().oldest_age_seconds == pytest.approx(30.0)
