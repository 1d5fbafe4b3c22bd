"""Giving back, rejecting, and messages that are out of attempts."""

from __future__ import annotations

import pytest

from strictq import LeaseLost, Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill, labels, seqs


def test_nack_hands_out_again_first(q: Queue) -> None:
    fill(q, "k", 3)
    (d,) = q.receive(1)
    d.nack()
    again = q.receive()
    assert seqs(again) == [1, 2, 3]


def test_nack_gives_back_everything_later_of_the_lease(q: Queue) -> None:
    fill(q, "k", 4)
    one, two, three, four = q.receive()
    two.nack()
    for d in (three, four):
        with pytest.raises(LeaseLost):
            d.ack()
    assert q.receive() == [], "1 is still held"
    one.ack()
    assert seqs(q.receive()) == [2, 3, 4]


def test_nack_leaves_what_was_acked_acked(q: Queue) -> None:
    fill(q, "k", 3)
    one, _two, three = q.receive()
    three.ack()
    one.nack()
    got = []
    while batch := q.receive():
        got += seqs(batch)
        for d in batch:
            d.ack()
    assert got == [1, 2]


def test_nack_charges_its_message_and_not_the_later_ones(q: Queue) -> None:
    fill(q, "k", 3)
    one, *_ = q.receive()
    one.nack()
    assert [q.status("k", n).attempts for n in (1, 2, 3)] == [1, 0, 0]


def test_nack_after_start_charges_once(q: Queue) -> None:
    fill(q, "k", 2)
    one, _ = q.receive()
    one.start()
    one.nack()
    assert q.status("k", 1).attempts == 1


def test_nack_of_a_single_delivery_charges_once(q: Queue) -> None:
    q.send(b"", "k")
    for attempt in (1, 2, 3):
        (d,) = q.receive()
        assert d.attempt == attempt
        d.nack()
    assert q.status("k", 1).attempts == 3


def test_nack_delay_holds_the_lane_and_only_it(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    (d,) = q.receive(1)
    d.nack(delay=10.0)
    q.send(b"", "other")
    assert labels(q.receive()) == [("other", 1)]
    clock.advance(9.9)
    assert q.receive() == []
    clock.advance(0.2)
    assert seqs(q.receive()) == [1, 2]


def test_nack_reason_is_kept(q: Queue) -> None:
    q.send(b"", "k")
    q.receive()[0].nack(reason="no route")
    assert q.status("k", 1).last_error == "no route"
    assert q.explain("k").last_error == "no route"


def test_retry_delay_grows_up_to_its_maximum(make: Opener, clock: FakeClock) -> None:
    q = make(retry_delay_seconds=1.0, retry_backoff=2.0, retry_delay_max_seconds=3.0, max_attempts=None)
    q.send(b"", "k")
    for middle in (1.0, 2.0, 2.4, 2.4):  # a quarter below the maximum, so that lanes can differ by a quarter
        (d,) = q.receive()
        d.nack()
        clock.advance(0.75 * middle - 0.01)
        assert q.receive() == []
        clock.advance(0.5 * middle + 0.02)


def test_nack_delay_overrules_the_backoff(make: Opener, clock: FakeClock) -> None:
    q = make(retry_delay_seconds=100.0)
    q.send(b"", "k")
    q.receive()[0].nack(delay=0.0)
    (d,) = q.receive()
    d.nack(delay=1.0)
    clock.advance(1.1)
    assert seqs(q.receive()) == [1]


def test_delay_of_a_nack_is_not_moved_by_wall_clock_jumps(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    q.receive()[0].nack(delay=10.0)
    clock.jump_wall(1e6)
    assert q.receive() == []
    clock.jump_wall(-2e6)
    clock.advance(10.1)
    assert seqs(q.receive()) == [1]


def exhaust(q: Queue, attempts: int) -> None:
    for _ in range(attempts):
        (d,) = q.receive(1)
        d.nack(reason="broken")


def test_poison_is_dead_lettered_and_the_lane_goes_on(make: Opener) -> None:
    q = make(max_attempts=3, on_poison="dead_letter")
    fill(q, "k", 2)
    exhaust(q, 3)
    (dead,) = q.dead_letters()
    assert (dead.key, dead.seq, dead.body, dead.kind, dead.attempts) == ("k", 1, b"1", "poison", 3)
    assert dead.reason == "broken"
    assert q.status("k", 1).state == "dead"
    assert seqs(q.receive()) == [2]


def test_poison_ignores_the_retry_delay_for_what_follows(make: Opener) -> None:
    q = make(max_attempts=1, retry_delay_seconds=60.0)
    fill(q, "k", 2)
    exhaust(q, 1)
    assert seqs(q.receive()) == [2]


@pytest.mark.one_shard("the order of two lanes")
def test_poison_holds_the_lane_until_an_operator_comes(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=2, on_poison="hold")
    fill(q, "k", 2)
    q.send(b"", "other")
    exhaust(q, 1)
    q.receive(1, keys=["k"])[0].nack()
    clock.advance(1e6)
    assert labels(q.receive()) == [("other", 1)]
    assert q.status("k", 1).state == "held"
    assert q.explain("k").state == "held"
    assert q.stats().held == 2
    q.release("k")
    (d,) = q.receive(1)
    assert (d.seq, d.attempt) == (1, 1)
    d.ack()
    assert seqs(q.receive()) == [2]


def test_poison_is_dropped(make: Opener) -> None:
    q = make(max_attempts=2, on_poison="drop")
    fill(q, "k", 2)
    exhaust(q, 2)
    assert q.status("k", 1).state == "resolved"
    assert q.dead_letters() == []
    assert q.stats().dropped == 1
    assert seqs(q.receive()) == [2]


@pytest.mark.parametrize("policy", ["dead_letter", "hold", "drop"])
def test_expiries_use_up_attempts_too(make: Opener, clock: FakeClock, policy: str) -> None:
    q = make(max_attempts=2, on_poison=policy, lease_seconds=5.0)
    q.send(b"", "k")
    for attempt in (1, 2):
        (d,) = q.receive()
        assert d.attempt == attempt
        clock.advance(6.0)
    assert q.receive() == []
    expected = {"dead_letter": "dead", "hold": "held", "drop": "resolved"}
    assert q.status("k", 1).state == expected[policy]


def test_no_limit_of_attempts(make: Opener) -> None:
    q = make(max_attempts=None)
    q.send(b"", "k")
    exhaust(q, 30)
    (d,) = q.receive()
    assert d.attempt == 31


def test_late_ack_of_the_last_attempt_is_honoured(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=1, lease_seconds=5.0)
    q.send(b"", "k")
    (d,) = q.receive()
    clock.advance(6.0)
    d.ack()
    assert q.receive() == []
    assert q.dead_letters() == []


def test_reject_dead_letters_at_once(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, three = q.receive()
    two.reject("not for us")
    (dead,) = q.dead_letters()
    assert (dead.seq, dead.kind, dead.reason) == (2, "rejected", "not for us")
    assert q.status("k", 2).last_error == "not for us"
    one.ack()
    three.ack()
    assert q.stats().depth == 0
    assert q.stats().dead == 1


def test_a_reject_out_of_a_batch_counts_as_an_attempt_like_a_nack(make: Opener) -> None:
    q = make(history="records")
    fill(q, "k", 4)
    one, two, three, four = q.receive()
    one.reject("first")
    two.reject("second")
    three.start()
    three.reject("third")
    four.nack(delay=0, reason="busy")
    (four,) = q.receive()
    four.reject("fourth")
    assert [(d.seq, d.attempts, [e.attempt for e in d.errors]) for d in q.dead_letters()] == [
        (1, 1, [1]), (2, 1, [1]), (3, 1, [1]), (4, 2, [1, 2]),
    ]  # fmt: skip
    assert [(r.seq, r.attempts) for r in q.history(key="k")] == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert q.status("k", 1).attempts == 1


def test_reject_of_the_only_message_frees_the_lane(q: Queue) -> None:
    fill(q, "k", 2)
    (d,) = q.receive(1)
    d.reject("no")
    assert seqs(q.receive()) == [2]


def test_poison_inside_a_batch_keeps_the_rest(make: Opener) -> None:
    q = make(max_attempts=1)
    fill(q, "k", 3)
    one, two, _ = q.receive()
    one.ack()
    two.nack()
    assert seqs(q.dead_letters()) == [2]
    assert seqs(q.receive()) == [3]
