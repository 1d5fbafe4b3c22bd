"""Postponing a message: its lane waits, and no attempt is charged."""

from __future__ import annotations

import anyio
import pytest

import strictq
from strictq import InvalidArgument, LeaseLost, PartialFailure, Queue
from strictq.testing import FakeClock, awaited
from tests.support.queues import Opener, fill, labels, seqs


def test_the_lane_waits_and_only_it(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 3)
    one, two, _ = q.receive()
    one.ack()
    two.defer(10.0)
    q.send(b"", "k")
    q.send(b"", "other")
    assert labels(q.receive()) == [("other", 1)]
    assert q.status("k", 2).state == "delayed"
    clock.advance(9.9)
    assert q.receive() == []
    clock.advance(0.2)
    assert seqs(q.receive()) == [2, 3, 4]


def test_it_gives_back_everything_later_of_its_lease_and_nothing_earlier(q: Queue) -> None:
    fill(q, "k", 4)
    one, two, three, four = q.receive()
    two.defer(0.0)
    for d in (two, three, four):
        with pytest.raises(LeaseLost):
            d.ack()
    assert q.receive() == [], "1 is still held"
    one.ack()
    assert seqs(q.receive()) == [2, 3, 4]


@pytest.mark.parametrize("started", ["alone in its lease", "start()", "with", "not started"])
def test_no_attempt_is_charged_however_often(make: Opener, clock: FakeClock, started: str) -> None:
    q = make(max_attempts=2)
    fill(q, "k", 1 if started == "alone in its lease" else 3)
    q.receive(1)[0].nack(delay=0.0, reason="broken")
    for _ in range(10):
        d, *_ = q.receive()
        assert (d.seq, d.attempt) == (1, 2)
        if started == "start()":
            d.start()
        if started == "with":
            with d:
                d.defer(5.0)
        else:
            d.defer(5.0)
        status = q.status("k", 1)
        assert (status.state, status.attempts, status.last_error) == ("delayed", 1, "broken")
        clock.advance(5.1)
    assert q.stats().retries == 1, "a deferral is not a retry"
    d, *_ = q.receive()
    d.nack()
    assert [(x.seq, x.attempts) for x in q.dead_letters()] == [(1, 2)]


def test_starts_of_what_it_takes_along_are_not_charged(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, _ = q.receive()
    one.start()
    two.start()
    one.defer(0.0)
    assert [q.status("k", n).attempts for n in (1, 2, 3)] == [0, 0, 0]


def test_starts_before_it_stay_charged(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    one, two = q.receive(lease_seconds=5.0)
    one.start()
    two.defer(0.0)
    clock.advance(6.0)
    (again,) = q.receive()
    assert (again.seq, again.attempt) == (1, 2), "its handler was started, and never heard of again"


def test_a_late_one_is_honoured_until_the_lane_is_taken(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    (d,) = q.receive(1, lease_seconds=5.0)
    clock.advance(6.0)
    d.defer(0.0)
    (d,) = q.receive(1, lease_seconds=5.0)
    assert d.attempt == 1
    clock.advance(6.0)
    (taken,) = q.receive(1)
    assert taken.attempt == 2
    with pytest.raises(LeaseLost):
        d.defer(0.0)


@pytest.mark.one_shard("the history of the first shard")
def test_history_counts_from_the_attempt_that_was_charged(make: Opener, clock: FakeClock) -> None:
    q = make(history="records")
    sent = q.send(b"", "k")
    clock.advance(100.0)
    q.receive()[0].defer(100.0)
    clock.advance(100.1)
    q.receive()[0].ack()
    (record,) = q.history()
    assert (record.seq, record.attempts) == (sent.seq, 1)
    assert record.first_attempt_at == pytest.approx(record.enqueued_at + 200.1)


def test_a_keyless_message_holds_up_no_other(make: Opener, clock: FakeClock) -> None:
    q = make(keyless="random", keyless_lanes=1)
    for n in range(3):
        q.send(b"%d" % n)
    one, *_ = q.receive()
    one.defer(10.0)
    rest = q.receive()
    assert [d.body for d in rest] == [b"1", b"2"]
    clock.advance(10.1)
    (again,) = q.receive()
    assert (again.body, again.attempt) == (b"0", 1)
    q.ack_many([*rest, again])
    assert q.check() == []


@pytest.mark.parametrize("delay", [-1.0, float("nan"), float("inf"), "1", None, True])
def test_a_wrong_delay_changes_nothing(q: Queue, delay: object) -> None:
    fill(q, "k", 2)
    one, two = q.receive()
    with pytest.raises(InvalidArgument):
        one.defer(delay)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        strictq.Defer(delay)  # type: ignore[arg-type]
    q.ack_many([one, two])


def test_it_is_settled_then(q: Queue) -> None:
    fill(q, "k", 2)
    one, two = q.receive()
    one.defer(1.0)
    for call in (lambda: one.defer(1.0), one.ack, one.nack, two.ack):
        with pytest.raises(LeaseLost):
            call()
    with pytest.raises((LeaseLost, PartialFailure)):
        q.ack_many([one, two])


def test_a_delivery_of_ack_first_is_not_deferred(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive(ack_first=True)
    with pytest.raises(LeaseLost):
        d.defer(1.0)


def test_awaited(q: Queue, clock: FakeClock) -> None:
    async def main() -> None:
        fill(q, "k", 2)
        (d,) = await awaited(q).receive(1)
        await d.defer(3.0)
        with pytest.raises(LeaseLost):
            await d.ack()

    anyio.run(main)
    assert q.receive() == []
    clock.advance(3.1)
    assert [(d.seq, d.attempt) for d in q.receive()] == [(1, 1), (2, 1)]


def test_a_reason_is_shown_and_is_no_failure(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    d, *_ = q.receive()
    d.defer(60.0, "it waits for the rate limit")
    status = q.status("k", 1)
    assert (status.state, status.attempts, status.last_error, status.errors) == (
        "delayed", 0, "it waits for the rate limit", (),
    )  # fmt: skip
    assert q.explain("k").text.endswith(
        "(it was postponed); later messages of the key wait; last error: it waits for the rate limit"
    )
    assert q._storage.operate.end_failure_delays(None) == 0, "only delays that failures caused are ended"
    clock.advance(60.1)
    (d, *_) = q.receive()
    q.delivery(d.handle).defer(1.0)
    assert q.status("k", 1).last_error == "it waits for the rate limit", "without a reason, it is kept"
    clock.advance(1.1)
    (d, *_) = q.receive()
    q.delivery(d.handle).defer(1.0, "another")
    assert q.status("k", 1).last_error == "another"


def test_a_reason_given_in_an_event_loop(q: Queue) -> None:
    async def use() -> None:
        fill(q, "k", 1)
        aq = awaited(q)
        (d,) = await aq.receive()
        await d.defer(60.0, "why")
        assert (await aq.status("k", 1)).last_error == "why"

    anyio.run(use)
