"""What a lease gave back is not its any more, though the lease lives on."""

from __future__ import annotations

import pytest

import strictq
from strictq import LeaseLost, PartialFailure, Queue
from strictq.testing import FakeClock
from tests.support.queues import AT_ONCE


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue(clock: FakeClock) -> Queue:
    queue = strictq.open(":memory:", clock=clock, config=strictq.QueueConfig(**AT_ONCE))
    queue.send_many([strictq.Message(b"%d" % n, key="k") for n in range(4)])
    return queue


def test_an_ack_of_it_is_refused(queue: Queue) -> None:
    first, second, third, _ = queue.receive(4)
    first.ack()
    second.nack()
    with pytest.raises(LeaseLost):
        third.ack()
    assert [d.seq for d in queue.receive(4)] == [2, 3, 4]


def test_an_ack_of_it_among_others_is_refused(queue: Queue) -> None:
    first, second, third, fourth = queue.receive(4)
    second.ack()
    third.nack()
    with pytest.raises(PartialFailure) as failure:
        queue.ack_many([first, fourth])
    kept, lost = failure.value.results
    assert kept is None
    assert isinstance(lost, LeaseLost)
    assert [d.seq for d in queue.receive(4)] == [3, 4]


def test_the_lease_does_not_grow_over_it_again(queue: Queue) -> None:
    first, second, third, _ = queue.receive(4)
    second.nack()
    assert first.lease.more(4) == []
    with pytest.raises(LeaseLost):
        third.ack()
    first.ack()
    again = queue.receive(4)
    assert [d.seq for d in again] == [2, 3, 4]
    assert again[0].token > first.token


def test_a_start_under_a_dead_token_is_refused(queue: Queue, clock: FakeClock) -> None:
    late = queue.receive(1, lease_seconds=1.0)[0]
    clock.advance(2.0)
    assert queue.receive(1)[0].token > late.token
    with pytest.raises(LeaseLost):
        late.start()


def test_a_late_start_of_a_lane_that_nobody_took_is_honoured(queue: Queue, clock: FakeClock) -> None:
    late = queue.receive(1, lease_seconds=1.0)[0]
    clock.advance(2.0)
    late.start()
    late.ack()
