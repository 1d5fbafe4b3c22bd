"""An operator holds a lane and lets it go."""

from __future__ import annotations

import pytest

from strictq import Queue
from strictq.testing import FakeClock
from tests.support.folds import narrow_by
from tests.support.queues import Opener, fill, labels, seqs


def test_held_lane_is_not_handed_out_and_blocks_no_other(q: Queue) -> None:
    fill(q, "k", 2)
    q.send(b"", "other")
    q.hold("k", "customer called")
    assert labels(q.receive()) == [("other", 1)]
    assert q.receive(keys=["k"]) == []
    q.release("k")
    assert seqs(q.receive()) == [1, 2]


def test_hold_is_shown(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    q.hold("k", "customer called")
    why = q.explain("k")
    assert (why.state, why.by, why.head_seq, why.depth) == ("held", "customer called", 1, 2)
    assert why.since == pytest.approx(clock.wall() / 1e6, abs=1e-3)
    assert "customer called" in why.text
    assert q.status("k", 1).state == "held"
    assert {p.state for p in q.peek("k")} == {"held"}
    assert (q.stats().held, q.stats().ready) == (2, 0)


def test_current_lease_may_finish(q: Queue) -> None:
    fill(q, "k", 3)
    one, two = q.receive(2)
    q.hold("k")
    one.ack()
    two.ack()
    assert q.receive() == []
    assert q.status("k", 2).state == "resolved"
    q.release("k")
    assert seqs(q.receive()) == [3]


def test_nacked_message_of_a_held_lane_stays(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    q.hold("k")
    d.nack()
    assert q.receive() == []
    q.release("k")
    assert seqs(q.receive()) == [1]


def test_lease_of_a_held_lane_that_expires_is_not_retaken(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    (d,) = q.receive(lease_seconds=5.0)
    q.hold("k")
    clock.advance(6.0)
    assert q.receive() == []
    d.ack()
    assert q.stats().depth == 0


def test_sends_to_a_held_lane_go_on(q: Queue) -> None:
    q.send(b"", "k")
    q.hold("k")
    assert q.send(b"", "k").seq == 2
    q.release("k")
    assert seqs(q.receive()) == [1, 2]


def test_release_resets_attempts(make: Opener) -> None:
    q = make(max_attempts=2)
    q.send(b"", "k")
    q.receive()[0].nack()
    q.hold("k")
    q.release("k")
    (d,) = q.receive()
    assert d.attempt == 1
    d.nack()
    assert q.dead_letters() == []


def test_what_a_poison_policy_held_is_ready_when_it_is_released(make: Opener) -> None:
    q = make(max_attempts=1, on_poison="hold")
    fill(q, "k", 2)
    q.receive(1)[0].nack(delay=3600.0)
    assert q.receive() == []
    q.release("k")
    assert seqs(q.receive()) == [1, 2]


def test_a_message_that_waits_goes_on_waiting_when_an_operator_ends_his_own_hold(make: Opener, clock: FakeClock) -> None:
    q = make()
    fill(q, "k", 2)
    q.receive(1)[0].nack(delay=60.0)
    q.hold("k")
    q.release("k")
    assert q.receive() == []
    clock.advance(61.0)
    assert seqs(q.receive()) == [1, 2]


def test_release_of_a_lane_that_is_not_held_does_no_harm(q: Queue) -> None:
    fill(q, "k", 2)
    q.release("k")
    assert seqs(q.receive()) == [1, 2]


def test_holding_twice_is_released_once(q: Queue) -> None:
    q.send(b"", "k")
    q.hold("k", "one")
    q.hold("k", "two")
    assert q.explain("k").by == "two"
    q.release("k")
    assert seqs(q.receive()) == [1]


def test_hold_outlives_reopening(disk: Opener) -> None:
    q = disk()
    q.send(b"", "k")
    q.hold("k", "why")
    q.close()
    q = disk()
    assert q.receive() == []
    assert q.explain("k").by == "why"
    q.release("k")
    assert seqs(q.receive()) == [1]


def test_hold_by_another_object_is_seen(disk: Opener) -> None:
    one, two = disk(), disk()
    one.send(b"", "k")
    two.hold("k")
    assert one.receive() == []
    two.release("k")
    assert seqs(one.receive()) == [1]


def test_hold_outlasts_a_delay(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", delay=5.0)
    q.hold("k")
    clock.advance(6.0)
    assert q.receive() == []
    q.release("k")
    assert seqs(q.receive()) == [1]


def test_redrive_into_a_held_lane_waits_with_it(q: Queue) -> None:
    fill(q, "k", 2)
    (d,) = q.receive(1)
    d.reject("no")
    q.hold("k")
    assert q.redrive("k") == 1
    assert q.receive() == []
    q.release("k")
    assert seqs(q.receive()) == [1, 2]


def test_a_late_nack_that_holds_the_lane_takes_it_out_of_the_order(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=1, on_poison="hold")
    fill(q, "k", 3)
    one, two, _ = q.receive(lease_seconds=10.0)
    clock.advance(20.0)
    assert q.receive(keys=["other"]) == []  # sees the lease run out, and lists the lane again
    two.nack(reason="broken")
    assert q.check() == []
    assert q.receive() == [], "a held lane is handed to nobody"
    one.ack()
    assert q.release("k")
    assert seqs(q.receive()) == [2, 3]
    assert q.check() == []


def test_a_lane_that_a_late_nack_held_is_released_while_its_lease_is_still_there(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=1, on_poison="hold")
    fill(q, "k", 3)
    _, two, _ = q.receive(lease_seconds=10.0)
    clock.advance(20.0)
    assert q.receive(keys=["other"]) == []
    two.nack(reason="broken")
    assert q.release("k")
    assert q.check() == []
    assert seqs(q.receive()) == [1]


def test_a_held_backlog_is_counted_although_its_lease_held_all_that_is_loaded(
    disk: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow_by(monkeypatch, 4)
    q = disk()
    fill(q, "k", 9)
    for _ in range(6):
        q.send(b"", "other")  # folds
    batch = q.receive(2, keys=["k"])
    q.hold("k")
    q.ack_many(batch)
    assert (q.stats().held, q.stats().ready) == (7, 6)


def test_a_started_message_that_was_returned_does_not_count_as_started(q: Queue) -> None:
    fill(q, "k", 2)
    first, second = q.receive()
    second.start()
    second.defer(5.0)
    assert [m.attempts for m in q.peek("k")] == [1, 0]
    first.ack()
    assert [m.attempts for m in q.peek("k")] == [0]
