"""Dead letters, and putting them back where they belong."""

from __future__ import annotations

import pytest

import strictq
from strictq import Message, Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener, drain, fill, labels, seqs


def test_dead_letter_tells_its_story(q: Queue, clock: FakeClock) -> None:
    q.send(b'{"a":1}', "k", headers={"h": "v"})
    sent = clock.wall() / 1e6
    clock.advance(5.0)
    (d,) = q.receive()
    d.reject("no such customer")
    (dead,) = q.dead_letters()
    assert (dead.key, dead.seq, dead.id, dead.json(), dead.headers) == ("k", 1, d.id, {"a": 1}, {"h": "v"})
    assert (dead.kind, dead.reason, dead.attempts) == ("rejected", "no such customer", 1)
    assert dead.enqueued_at == pytest.approx(sent, abs=1e-3)
    assert dead.died_at == pytest.approx(sent + 5.0, abs=1e-3)


def test_dead_letters_of_one_key_and_limited(make: Opener) -> None:
    q = make(shards=2)
    for key in ("a", "b"):
        fill(q, key, 3)
    for d in q.receive():
        d.reject("no")
    assert len(q.dead_letters()) == 6
    assert len(q.dead_letters(limit=4)) == 4
    assert [(d.key, d.seq) for d in q.dead_letters("b")] == [("b", 1), ("b", 2), ("b", 3)]
    assert q.dead_letters("absent") == []
    assert q.stats().dead == 6


def test_dead_letters_are_handed_to_nobody(q: Queue) -> None:
    q.send(b"", "k")
    q.receive()[0].reject("no")
    assert q.receive() == []
    assert q.stats().depth == 0


def test_redrive_restores_the_original_position(q: Queue) -> None:
    fill(q, "k", 4)
    one, two, *_ = q.receive(2)
    one.reject("no")
    two.ack()
    assert q.redrive("k") == 1
    assert q.dead_letters() == []
    assert drain(q) == [("k", 1), ("k", 3), ("k", 4)]


def test_redrive_goes_ahead_of_everything_later_also_when_that_was_served(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, three = q.receive()
    one.reject("no")
    two.reject("no")
    three.ack()
    q.send(b"", "k")
    assert q.redrive() == 2
    assert drain(q) == [("k", 1), ("k", 2), ("k", 4)]


def test_redrive_chosen_seqs(q: Queue) -> None:
    fill(q, "k", 3)
    for d in q.receive():
        d.reject("no")
    assert q.redrive("k", seqs=[3, 1]) == 2
    assert seqs(q.dead_letters()) == [2]
    assert drain(q) == [("k", 1), ("k", 3)]


def test_redrive_of_what_is_not_dead_does_nothing(q: Queue) -> None:
    fill(q, "k", 2)
    assert q.redrive("k") == 0
    assert q.redrive("absent") == 0
    assert q.redrive("k", seqs=[1]) == 0
    assert q.redrive() == 0
    assert drain(q) == [("k", 1), ("k", 2)]


def test_redrive_every_key_over_shards(make: Opener) -> None:
    q = make(shards=4)
    q.send_many([Message(b"", key=n) for n in range(20)])
    for d in q.receive(20):
        d.reject("no")
    assert q.redrive() == 20
    assert sorted(drain(q)) == [(n, 1) for n in range(20)]


def test_redrive_starts_attempts_anew(make: Opener) -> None:
    q = make(max_attempts=2)
    q.send(b"", "k")
    for _ in range(2):
        q.receive()[0].nack()
    assert q.redrive() == 1
    for attempt in (1, 2):
        (d,) = q.receive()
        assert d.attempt == attempt
        d.nack()
    assert seqs(q.dead_letters()) == [1]


def test_redrive_clears_the_ttl(make: Opener, clock: FakeClock) -> None:
    q = make(on_expire="dead_letter")
    q.send(b"", "k", ttl=5.0)
    clock.advance(6.0)
    assert q.receive() == []
    assert q.redrive() == 1
    clock.advance(1e6)
    assert seqs(q.receive()) == [1]


def test_redrive_waits_for_a_live_lease(q: Queue) -> None:
    fill(q, "k", 4)
    one, two, _three = q.receive(3)
    one.reject("no")
    assert q.redrive("k") == 1
    assert q.receive() == []
    assert two.lease.more(10) == [], "the redriven message comes before later ones"
    two.ack()
    two.lease.release()
    assert drain(q) == [("k", 1), ("k", 3), ("k", 4)]


def test_redrive_takes_effect_when_the_last_of_the_lease_is_acked(q: Queue) -> None:
    fill(q, "k", 3)
    one, two = q.receive(2)
    one.reject("no")
    q.redrive("k")
    two.ack()
    assert drain(q) == [("k", 1), ("k", 3)]


def test_redrive_into_a_delayed_lane_goes_first(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    q.send(b"", "k", delay=60.0)
    q.receive()[0].reject("no")
    q.redrive("k")
    assert labels(q.receive()) == [("k", 1)]


def test_dead_letters_outlive_reopening(disk: Opener) -> None:
    q = disk()
    q.send(b"x", "k")
    q.receive()[0].reject("no")
    q.close()
    q = disk()
    assert [d.body for d in q.dead_letters()] == [b"x"]
    assert q.redrive() == 1
    assert drain(q) == [("k", 1)]


def test_large_dead_letter_keeps_its_body(q: Queue) -> None:
    body = b"z" * 200_000
    q.send(body, "k")
    q.receive()[0].reject("no")
    assert q.dead_letters()[0].body == body
    q.redrive()
    assert q.receive()[0].body == body


def test_an_operators_reject_ends_a_lease_that_ran_out_as_a_receive_would(make: Opener, clock: FakeClock) -> None:
    events: list[strictq.Event] = []
    q = make.open(on_event=events.append)
    fill(q, "k", 4)
    q.receive(10, lease_seconds=10.0)[0].start()
    clock.advance(11.0)  # its process died in the first one
    assert q.reject("k", 3, "bad")
    assert [e.kind for e in events] == ["lease_lost", "dead_letter"]
    assert q.stats().redeliveries == 4
    (alone,) = q.receive(10)
    assert (alone.seq, alone.attempt) == (1, 2)
    alone.lease.release()
    q.hold("k")
    q.release("k")  # attempts start again
    assert [(d.seq, d.attempt) for d in q.receive(10)] == [(1, 1), (2, 1), (4, 1)]


def test_redriven_messages_are_leased_with_what_follows(q: Queue) -> None:
    fill(q, "k", 5)
    one, two, three, *_ = q.receive(3)
    one.reject("no")
    two.reject("no")
    three.ack()
    assert q.redrive() == 2
    batch = q.receive(3)
    assert seqs(batch) == [1, 2, 4]
    assert q.check() == []
    batch[2].nack(delay=0.0)
    batch[0].ack()
    assert q.receive() == []
    batch[1].nack(delay=0.0)
    assert drain(q) == [("k", 2), ("k", 4), ("k", 5)]
    assert q.check() == []


def test_a_lease_over_redriven_messages_may_end_with_its_deadline(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 3)
    q.receive(1)[0].reject("no")
    q.redrive()
    first, second = q.receive(2, lease_seconds=5.0)
    first.ack()
    second.start()
    clock.advance(6.0)
    (again,) = q.receive()
    assert (again.seq, again.attempt) == (2, 2)
    again.ack()
    assert drain(q) == [("k", 3)]
    assert q.check() == []
