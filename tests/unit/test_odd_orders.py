"""Operations in orders that nobody plans: each of these once broke a promise."""

from __future__ import annotations

import pytest

import strictq
from strictq import Message, Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener


def test_leaving_consume_after_a_nack_in_the_middle_keeps_the_lease_sound(q: Queue) -> None:
    q.send_many([Message(b"", key="k") for _ in range(5)])
    got = []
    for d in q.consume(wait=0.0):
        got.append(d)
        if d.seq == 3:
            d.nack()
            break
    assert q.check() == []  # "the lease of lane 1 counts 2 messages, 3 lie in 1..3"
    got[0].nack()  # StoreError: CHECK constraint failed: pending >= 0


def test_released_keyless_poison_is_tried_again(make: Opener) -> None:
    q = make(keyless="random", max_attempts=1, on_poison="hold")
    q.send(b"x")
    q.receive()[0].nack()
    assert q.release(None)
    assert [d.body for d in q.receive()] == [b"x"]


def test_bodies_of_what_a_lease_grew_over_go_with_it(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    q.send(b"x" * 5_000, "k")
    q.ack_many([d, *d.lease.more()])
    assert q.check() == []


def test_started_and_given_back_cannot_start_again(q: Queue) -> None:
    q.send_many([Message(b"", key="k")] * 2)
    one, two = q.receive()
    one.start()
    two.start()
    one.nack()
    q.receive(1)  # somebody else has the lane
    with pytest.raises(strictq.LeaseLost):
        two.start()


def test_keyless_settings_count_at_the_next_write(disk: Opener) -> None:
    one = disk(keyless="random")
    other = disk()
    other.configure(keyless="refuse")
    with pytest.raises(strictq.InvalidArgument):
        one.send(b"")


def test_keyless_dedup_survives_another_number_of_lanes(make: Opener) -> None:
    q = make(keyless="random", keyless_lanes=64)
    q.send(b"", dedup_id="zz3")
    q.configure(keyless_lanes=7)
    assert q.send(b"", dedup_id="zz3").duplicate


@pytest.mark.own_messages("lanes of the queue")
def test_idle_lanes_are_forgotten_also_under_send_many(make: Opener, clock: FakeClock) -> None:
    q = make(idle_lane_seconds=1.0)
    for turn in range(20):
        q.send_many([Message(b"", key=f"{turn}-{n}") for n in range(100)])
        q.ack_many(q.receive(100))
        clock.advance(10.0)
    assert q.stats().lanes < 500  # 1,848 of 2,000


def test_a_known_dedup_id_is_answered_also_over_max_depth(q: Queue) -> None:
    q.send(b"", "k", dedup_id="a")
    q.send(b"", "k")
    q.configure(max_depth=1)
    assert q.send(b"", "k", dedup_id="a").duplicate


@pytest.mark.own_messages("lanes of the queue")
def test_purged_dead_letters_take_their_private_lane_with_them(make: Opener, clock: FakeClock) -> None:
    q = make(keyless="random", keyless_lanes=1)
    q.send(b"", delay=1.0)
    clock.advance(2.0)
    q.receive()[0].reject("no")
    q.purge(dead=True)
    assert q.stats().lanes == 1
