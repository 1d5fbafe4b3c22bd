"""Events for the operator, given to hooks after what they tell of was committed."""

from __future__ import annotations

import pytest

from strictq import Event, LeaseLost, Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill


def only(events: list[Event], kind: str) -> Event:
    (event,) = [e for e in events if e.kind == kind]
    return event


@pytest.mark.one_shard("the number of the shard")
def test_reject_tells_of_a_dead_letter(make: Opener) -> None:
    events: list[Event] = []
    q = make(on_event=events.append)
    q.send(b"", "k")
    (d,) = q.receive()
    assert events == []
    d.reject("bad address")
    event = only(events, "dead_letter")
    assert (event.key, event.seq, event.shard) == ("k", 1, 0)
    assert "bad address" in event.detail


@pytest.mark.parametrize("policy", ["dead_letter", "hold", "drop"])
def test_poison_is_reported(make: Opener, policy: str) -> None:
    events: list[Event] = []
    q = make(on_event=events.append, max_attempts=1, on_poison=policy)
    q.send(b"", "k")
    q.receive()[0].nack(reason="boom")
    event = only(events, "poison")
    assert (event.key, event.seq) == ("k", 1)


def test_poison_found_at_a_claim_is_reported(make: Opener, clock: FakeClock) -> None:
    events: list[Event] = []
    q = make(on_event=events.append, max_attempts=1, lease_seconds=5.0)
    q.send(b"", "k")
    q.receive()
    clock.advance(6.0)
    assert q.receive() == []
    assert only(events, "poison").seq == 1


def test_expired_message_that_is_kept_is_reported(make: Opener, clock: FakeClock) -> None:
    events: list[Event] = []
    q = make(on_event=events.append, on_expire="dead_letter")
    q.send(b"", "k", ttl=5.0)
    clock.advance(6.0)
    assert q.receive() == []
    assert only(events, "dead_letter").seq == 1


def test_lost_lease_is_reported(make: Opener, clock: FakeClock) -> None:
    events: list[Event] = []
    q = make(on_event=events.append, lease_seconds=5.0)
    q.send(b"", "k")
    (old,) = q.receive()
    clock.advance(6.0)
    q.receive()
    with pytest.raises(LeaseLost):
        old.ack()
    lost = [e for e in events if e.kind == "lease_lost"]
    assert lost
    assert {(e.key, e.token) for e in lost} == {("k", old.token)}


def test_hooks_can_be_added_later(q: Queue) -> None:
    one: list[Event] = []
    two: list[Event] = []
    q.on_event(one.append)
    q.on_event(two.append)
    q.send(b"", "k")
    q.receive()[0].reject("no")
    assert len(one) == len(two) == 1


def test_hook_comes_after_the_commit_and_may_use_the_queue(make: Opener) -> None:
    seen: list[int] = []
    q = make()

    def hook(event: Event) -> None:
        seen.append(q.stats().dead)
        q.send(b"alarm", "alarms")

    q.on_event(hook)
    fill(q, "k", 2)
    q.receive(1)[0].reject("no")
    assert seen == [1]
    assert q.peek("alarms")[0].body == b"alarm"


def test_ordinary_work_tells_nothing(make: Opener) -> None:
    events: list[Event] = []
    q = make(on_event=events.append)
    fill(q, "k", 3)
    one, two, three = q.receive()
    one.ack()
    two.nack()
    with pytest.raises(LeaseLost):
        three.start()
    assert [e for e in events if e.kind != "lease_lost"] == []


def test_rolled_back_reject_tells_nothing(make: Opener) -> None:
    events: list[Event] = []
    q = make(on_event=events.append)
    q.send(b"", "k")
    (d,) = q.receive()
    with pytest.raises(ZeroDivisionError), q.transaction(d) as tx:
        tx.send(b"", "other")
        raise ZeroDivisionError
    assert events == []
