"""Delays hold a lane; messages that nobody took in time expire."""

from __future__ import annotations

import pytest

from strictq import Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill, labels, seqs


def test_delayed_head_holds_its_lane(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", delay=10.0)
    q.send(b"", "k")
    q.send(b"", "other")
    assert labels(q.receive()) == [("other", 1)]
    clock.advance(9.9)
    assert q.receive() == []
    clock.advance(0.2)
    assert seqs(q.receive()) == [1, 2]


def test_delayed_message_ends_the_batch_of_its_lane(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    q.send(b"", "k", delay=10.0)
    q.send(b"", "k")
    (d,) = q.receive()
    assert d.seq == 1
    d.ack()
    assert q.receive() == []
    clock.advance(10.1)
    assert seqs(q.receive()) == [2, 3]


def test_shorter_delay_behind_a_longer_one_does_not_overtake(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", delay=20.0)
    q.send(b"", "k", delay=5.0)
    clock.advance(10.0)
    assert q.receive() == []
    clock.advance(10.1)
    assert seqs(q.receive()) == [1, 2]


def test_delay_outlives_reopening_and_a_reboot(disk: Opener, clock: FakeClock) -> None:
    q = disk()
    q.send(b"", "k", delay=100.0)
    q.close()
    clock.advance(10.0)
    q = disk()
    assert q.receive() == []
    q.close()
    clock.reboot(80.0)
    q = disk()
    assert q.receive() == []
    clock.advance(10.1)
    assert seqs(q.receive()) == [1]


def test_delay_is_not_moved_by_wall_clock_jumps(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", delay=10.0)
    clock.jump_wall(1e6)
    assert q.receive() == []
    clock.jump_wall(-2e6)
    clock.advance(10.1)
    assert seqs(q.receive()) == [1]


def test_many_delayed_lanes_hide_nothing(q: Queue, clock: FakeClock) -> None:
    for n in range(300):
        q.send(b"", n, delay=10.0 + n)
    q.send(b"", "now")
    assert labels(q.receive(1)) == [("now", 1)]
    clock.advance(20.5)
    assert sorted(d.key for d in q.receive(300)) == list(range(11))


def test_delayed_is_shown(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", delay=10.0)
    due = pytest.approx(clock.wall() / 1e6 + 10.0, abs=1e-3)
    (peeked,) = q.peek("k")
    assert (peeked.state, peeked.due_at) == ("delayed", due)
    status = q.status("k", 1)
    assert (status.state, status.until) == ("delayed", due)
    why = q.explain("k")
    assert (why.state, why.until) == ("delayed", due)
    assert q.stats().delayed == 1


def test_message_expires_by_its_ttl(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", ttl=10.0)
    q.send(b"", "k")
    clock.advance(10.1)
    assert seqs(q.receive()) == [2]
    assert q.status("k", 1).state == "resolved"
    assert q.stats().expired == 1
    assert q.dead_letters() == []


def test_message_lives_until_its_ttl(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", ttl=10.0)
    clock.advance(9.9)
    assert seqs(q.receive()) == [1]


def test_queue_ttl_is_the_default_and_a_messages_own_overrules_it(make: Opener, clock: FakeClock) -> None:
    q = make(ttl_seconds=10.0)
    q.send(b"", "a")
    q.send(b"", "b", ttl=100.0)
    q.send(b"", "c", ttl=5.0)
    clock.advance(6.0)
    assert labels(q.receive(1, keys=["c"])) == []
    clock.advance(5.0)
    assert labels(q.receive()) == [("b", 1)]


def test_expired_message_is_dead_lettered_if_wanted(make: Opener, clock: FakeClock) -> None:
    q = make(on_expire="dead_letter")
    q.send(b"old", "k", ttl=10.0)
    clock.advance(10.1)
    assert q.receive() == []
    (dead,) = q.dead_letters()
    assert (dead.seq, dead.body, dead.kind, dead.attempts) == (1, b"old", "expired", 0)


def test_leased_message_does_not_expire(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", ttl=10.0)
    (d,) = q.receive(lease_seconds=100.0)
    clock.advance(50.0)
    assert q.receive() == []
    assert q.status("k", 1).state == "in_flight"
    d.ack()
    assert q.stats().expired == 0


def test_expiry_frees_a_lane_held_up_by_a_delay(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", delay=100.0, ttl=10.0)
    q.send(b"", "k")
    clock.advance(101.0)
    assert seqs(q.receive()) == [2]


def test_run_of_expired_messages_hides_nothing(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2_000, ttl=1.0)
    q.send(b"", "k")
    q.send(b"", "other")
    clock.advance(2.0)
    got: set[tuple[object, int]] = set()
    for _ in range(50):
        got |= set(labels(q.receive()))
    assert got == {("k", 2_001), ("other", 1)}
    assert q.stats().expired == 2_000


def test_ttl_outlives_reopening(disk: Opener, clock: FakeClock) -> None:
    q = disk()
    q.send(b"", "k", ttl=10.0)
    q.close()
    clock.advance(11.0)
    assert disk().receive() == []


def test_wall_clock_jump_expires_nothing(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", ttl=10.0)
    clock.jump_wall(1.7e9)
    assert seqs(q.receive()) == [1]


def test_expiry_is_shown(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", ttl=10.0)
    (peeked,) = q.peek("k")
    assert peeked.expires_at == pytest.approx(clock.wall() / 1e6 + 10.0, abs=1e-3)


def test_the_queues_clock_is_that_of_delays_and_leases(q: Queue, clock: FakeClock) -> None:
    begin = q.now()
    q.send(b"", "k", delay=10.0)
    clock.jump_wall(1e6)
    clock.advance(9.5)
    assert q.now() - begin == pytest.approx(9.5)
    assert q.receive() == []
    clock.advance(0.5)
    (d,) = q.receive(lease_seconds=7.0)
    assert d.lease.expires_in == pytest.approx(7.0)
    assert q.now() - begin == pytest.approx(10.0)
