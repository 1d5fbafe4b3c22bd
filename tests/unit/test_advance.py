"""What a worker does in one transaction a shard: acks, each with the start of the next message, and other starts."""

from __future__ import annotations

from strictq import LeaseLost, Queue
from strictq.testing import FakeClock
from tests.support.queues import fill


def test_a_dead_lease_is_refused_and_a_live_one_of_the_same_lane_is_not(q: Queue, clock: FakeClock) -> None:
    """A worker may hold both for a moment: it took a lane back that it had lost, before it knew of the loss."""
    fill(q, "k", 2)
    old, _ = q.receive(lease_seconds=5.0)
    clock.advance(6.0)
    (new,) = q.receive(1)
    failed = q._client.settling.advance([(old, None)], [new])
    assert list(failed) == [old]
    assert isinstance(failed[old], LeaseLost)
    clock.advance(3600.0)
    assert q.receive(1)[0].attempt == 2, "the start of the live one was charged"


def test_the_same_of_an_ack_and_of_a_start(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 4)
    (old,) = q.receive(1, lease_seconds=5.0)
    clock.advance(6.0)
    q.receive(1)[0].ack()
    first, second, _ = q.receive(3)
    failed = q._client.settling.advance([(first, second)], [old])
    assert list(failed) == [old]
    assert q.status("k", 2).state == "resolved"
    second.ack()
    assert (q.status("k", 3).state, q.stats().depth) == ("resolved", 1)


def test_a_dead_ack_does_not_undo_a_live_one_of_the_same_lane(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 1)
    fill(q, "other", 2)
    old = next(d for d in q.receive(lease_seconds=5.0) if d.key == "k")
    clock.advance(6.0)
    got = q.receive(10, lease_seconds=5.0)
    live = next(d for d in got if d.key == "k")
    other = next(d for d in got if d.key == "other")
    failed = q._client.settling.advance([(old, None), (live, None), (other, None)], [])
    assert list(failed) == [old]
    assert {s.state for s in (q.status("k", 1), q.status("other", 1))} == {"resolved"}
