"""Messages without a key: refused, or spread over lanes that never block each other."""

from __future__ import annotations

from contextlib import suppress

import pytest

import strictq
from strictq import Message, Queue
from strictq.testing import FakeClock
from tests.support.injection import commit_fails
from tests.support.queues import Opener, ack_all

SPREADS = ["random", "round_robin"]


def test_refused_by_default(q: Queue) -> None:
    with pytest.raises(strictq.InvalidArgument):
        q.send(b"")
    with pytest.raises(strictq.InvalidArgument):
        q.send_many([Message(b"")])
    assert q.stats().depth == 0


@pytest.mark.parametrize("spread", SPREADS)
def test_goes_there_and_back_without_a_key(make: Opener, spread: str) -> None:
    q = make(shards=2, keyless=spread)
    bodies = {b"%d" % n for n in range(50)}
    receipts = q.send_many([Message(body) for body in sorted(bodies)])
    assert {r.key for r in receipts} == {None}
    got = q.receive(50)
    assert {d.body for d in got} == bodies
    assert {d.key for d in got} == {None}
    ack_all(got)
    assert q.stats().depth == 0


def test_round_robin_spreads_evenly(make: Opener) -> None:
    q = make(keyless="round_robin", keyless_lanes=4)
    for _ in range(8):
        q.send(b"")
    assert len(q.receive(10, per_key=1)) == 4


@pytest.mark.parametrize("spread", SPREADS)
def test_keyless_lanes_are_not_a_users_keys(make: Opener, spread: str) -> None:
    q = make(keyless=spread, keyless_lanes=1)
    q.send(b"none")
    for key in ("0", 0, b"0", "n0"):
        assert q.send(b"", key).seq == 1
    assert len(q.receive(per_key=1)) == 5


@pytest.mark.parametrize("spread", SPREADS)
def test_delayed_message_blocks_no_other(make: Opener, spread: str) -> None:
    q = make(keyless=spread, keyless_lanes=1)
    q.send(b"late", delay=60.0)
    q.send(b"now")
    assert [d.body for d in q.receive()] == [b"now"]


@pytest.mark.parametrize("spread", SPREADS)
def test_nacked_message_blocks_no_other(make: Opener, clock: FakeClock, spread: str) -> None:
    q = make(keyless=spread, keyless_lanes=1)
    q.send(b"1")
    q.send(b"2")
    (d,) = q.receive(1)
    d.nack(delay=60.0)
    (other,) = q.receive()
    assert {d.body, other.body} == {b"1", b"2"}
    other.ack()
    clock.advance(61.0)
    (again,) = q.receive()
    assert again.body == d.body
    assert again.attempt == 2


@pytest.mark.no_second_process("a send forgets lanes of its process's memory; the others are left to upkeep")
@pytest.mark.one_shard("lanes are forgotten shard by shard")
@pytest.mark.parametrize("together", [False, True])
def test_nacked_again_and_again_it_blocks_no_other(make: Opener, clock: FakeClock, together: bool) -> None:
    q = make(keyless="random", keyless_lanes=1, max_attempts=None)
    for body in (b"bad", b"2", b"3"):
        q.send(body)
    done = []
    for _ in range(12):
        for d in q.receive(10 if together else 1):
            if d.body == b"bad":
                d.nack()
                break
            done.append(d.body)
            d.ack()
    assert done == [b"2", b"3"]
    assert q.check() == []
    (d,) = q.receive()
    assert (d.body, d.attempt) == (b"bad", 13 if together else 11)
    d.ack()
    assert q.stats().lanes == 2, "its lane stays for a while, for the sake of an ack that is repeated"
    clock.advance(61.0)
    q.send(b"", delay=1.0)
    assert q.stats().lanes == 2, "it went when the next one came"
    assert q.check() == []


@pytest.mark.one_shard("the shard whose commit fails")
@pytest.mark.own_messages("acks of the queue")
@pytest.mark.parametrize("end", ["ack", "transaction", "ack_many"])
@pytest.mark.parametrize("aside", ["delayed", "nacked"])
def test_its_end_may_be_repeated_too(make: Opener, clock: FakeClock, aside: str, end: str) -> None:
    """As with any other message: where nobody knows whether the first call happened, the second succeeds, and does nothing."""
    q = make(keyless="random", keyless_lanes=1)
    q.send(b"", delay=1.0 if aside == "delayed" else 0.0)
    clock.advance(2.0)
    (d,) = q.receive()
    if aside == "nacked":
        d.nack()
        (d,) = q.receive()

    def once() -> None:
        if end == "ack":
            d.ack()
        elif end == "ack_many":
            q.ack_many([d])
        else:
            with q.transaction(d) as tx:
                tx.send(b"", "next")

    with commit_fails(q, happened=True), suppress(strictq.StrictqError):
        once()
    once()
    assert len(q.peek("next")) == (end == "transaction")
    assert q.stats().acks == 1
    assert q.check() == []


@pytest.mark.no_second_process("a send forgets lanes of its process's memory; the others are left to upkeep")
@pytest.mark.one_shard("lanes are forgotten shard by shard")
def test_lanes_that_ended_long_ago_do_not_pile_up(make: Opener, clock: FakeClock) -> None:
    q = make(keyless="random", keyless_lanes=1)
    for _ in range(50):
        for _ in range(4):
            q.send(b"", delay=1.0)
        clock.advance(2.0)
        q.ack_many(q.receive())
    assert q.stats().lanes <= 1 + 4 * (60 // 2 + 2)
    assert q.stats().lanes > 100
    clock.advance(61.0)
    for n in range(20):
        q.send(b"", "k", dedup_id=str(n))
    assert q.stats().lanes == 2
    assert q.check() == []


@pytest.mark.parametrize("spread", SPREADS)
def test_dedup_id_chooses_the_lane(make: Opener, spread: str) -> None:
    q = make(shards=4, keyless=spread)
    first = [q.send(b"", dedup_id=f"id-{n}") for n in range(20)]
    again = [q.send(b"", dedup_id=f"id-{n}") for n in range(20)]
    assert not any(r.duplicate for r in first)
    assert all(r.duplicate for r in again)
    assert [(r.seq, r.id) for r in first] == [(r.seq, r.id) for r in again]
    assert q.stats().depth == 20


def test_keyless_message_can_be_dead_lettered_and_redriven(make: Opener) -> None:
    q = make(keyless="random")
    q.send(b"x")
    q.receive()[0].reject("no")
    (dead,) = q.dead_letters()
    assert (dead.key, dead.body) == (None, b"x")
    assert q.redrive() == 1
    assert [d.body for d in q.receive()] == [b"x"]


def test_many_nacks_in_a_row_lose_nothing(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2, keyless="round_robin", keyless_lanes=3, max_attempts=None)
    bodies = {b"%d" % n for n in range(12)}
    for body in sorted(bodies):
        q.send(body)
    for n, d in enumerate(q.receive(12, per_key=1)):
        d.nack(delay=float(n % 3))
    clock.advance(10.0)
    got = set()
    while batch := q.receive():
        got |= {d.body for d in batch}
        ack_all(batch)
    assert got == bodies


@pytest.mark.parametrize("aside", ["delayed", "nacked", "deferred"])
def test_a_parked_message_keeps_its_ttl(make: Opener, clock: FakeClock, aside: str) -> None:
    q = make(keyless="random", keyless_lanes=1)
    q.send(b"", ttl=10.0, delay=1.0 if aside == "delayed" else 0.0)
    if aside != "delayed":
        (d,) = q.receive()
        if aside == "nacked":
            d.nack(delay=1.0)
        else:
            d.defer(1.0)
    clock.advance(11.0)
    assert q.receive() == []
    assert q.stats().expired == 1
    assert q.check() == []


@pytest.mark.parametrize("parked", [True, False])
def test_a_dead_one_is_redriven_into_the_lane_that_it_had(disk: Opener, clock: FakeClock, parked: bool) -> None:
    q, other = disk(keyless="random", keyless_lanes=1), disk.open(durability=None)
    for body in (b"bad", b"2"):
        q.send(body)
    first, _ = q.receive()
    assert other.stats().in_flight == 2
    if parked:
        first.nack(delay=0.0)
    else:
        first.lease.release()
    for d in q.receive():
        if d.body == b"bad":
            d.reject("no")
        else:
            d.ack()
    (dead,) = other.dead_letters()
    assert (dead.key, dead.body) == (None, b"bad")
    assert other.redrive() == 1
    assert q.dead_letters() == []
    clock.advance(1_000.0)
    (again,) = other.receive()
    assert (again.body, again.attempt) == (b"bad", 1)
    again.ack()
    assert q.check() == []


def test_a_message_that_is_deferred_for_no_time_is_settled_in_its_own_lane(make: Opener) -> None:
    q = make(keyless="round_robin", keyless_lanes=1)
    first, second = q.send_many([Message(b"1"), Message(b"2")])
    (d,) = q.receive(1)
    d.defer(0.0)
    found = q.receive()
    assert sorted(d.id for d in found) == [first.id, second.id]
    for d in found:
        d.ack()
    assert q.stats().depth == 0
    assert q.check() == []


def test_many_held_ones_are_released_at_once(make: Opener) -> None:
    q = make(keyless="random", keyless_lanes=2, max_attempts=1, on_poison="hold")
    q.send_many([Message(b"%d" % n) for n in range(450)])
    q.send(b"", "k")
    for d in q.receive(1000, per_key=1):
        d.nack()
    while got := q.receive(1000, per_key=1):
        for d in got:
            d.nack()
    assert q.receive() == []
    assert q.release(None) is True
    assert len(q.receive(1000)) == 450, "the key stays held"
    assert q.release(None) is False
    assert q.check() == []
