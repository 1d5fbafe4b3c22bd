"""Idle lanes, and dedup ids whose window is over, are forgotten even if nothing new arrives."""

from __future__ import annotations

import itertools

import pytest

from strictq import Message, Queue
from strictq._store.whole import forgetting
from strictq.testing import FakeClock
from tests.support.injection import maintain, maintain_every
from tests.support.internals import connection_of, store_of
from tests.support.queues import Opener, fill
from tests.support.running import until

pytestmark = [
    pytest.mark.one_shard("what one turn does in a shard"),
    pytest.mark.own_messages("lanes and rows of the queue"),
]


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the engine's thread from running: the tests call its work."""
    maintain_every(monkeypatch, 3600.0)


def pass_turn(q: Queue) -> None:
    """Do the periodic work of the engine's thread. An in-memory queue does it at a receive."""
    if q.path is None:
        assert q.receive(1, keys=["no such key"]) == []
    else:
        maintain(q)


def rows(q: Queue, table: str) -> int:
    return sum(connection_of(q, n).execute(f"SELECT count(*) FROM {table}").get for n in range(len(store_of(q).shards)))


def writes(q: Queue) -> int:
    return sum(connection_of(q, n).total_changes() for n in range(len(store_of(q).shards)))


def test_dedup_ids_are_forgotten_after_their_window(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2, dedup_window_seconds=60.0)
    q.send_many([Message(b"", key=n % 7, dedup_id=str(n)) for n in range(1000)])
    pass_turn(q)
    clock.advance(59.0)
    pass_turn(q)
    assert rows(q, "dedup") == 1000
    clock.advance(2.0)
    pass_turn(q)
    assert rows(q, "dedup") == 0
    assert q.check() == []
    assert q.stats().depth == 1000


def test_idle_lanes_are_forgotten_after_their_time(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2, idle_lane_seconds=100.0, dedup_window_seconds=10.0)
    q.send_many([Message(b"", key=n, dedup_id="once" if n % 2 else None) for n in range(93)])
    q.ack_many(q.receive(93))
    clock.advance(60.0)
    q.send(b"", 1)  # it is in use
    pass_turn(q)
    clock.advance(39.0)
    pass_turn(q)
    assert q.stats().lanes == 93
    clock.advance(100.0)
    pass_turn(q)
    assert (q.stats().lanes, rows(q, "lane")) == (1, 1)
    (d,) = q.receive()
    assert (d.key, d.seq) == (1, 2)
    assert q.send(b"", 2).seq > 1, "seqs are never issued twice"
    assert q.check() == []


def test_lanes_that_something_is_left_of_are_kept(make: Opener, clock: FakeClock) -> None:
    q = make(idle_lane_seconds=100.0)
    for key in ("waiting", "dead", "held", "state", "leased"):
        fill(q, key, 1)
    q.receive(1, keys=["dead"])[0].reject("no")
    (d,) = q.receive(1, keys=["state"])
    with q.transaction(d) as tx:
        tx.key_state = b"kept"
    q.receive(1, keys=["held"])[0].ack()
    q.hold("held")
    (late,) = q.receive(1, keys=["leased"], lease_seconds=1000.0, ack_first=True)
    for _ in range(3):
        clock.advance(200.0)
        pass_turn(q)
    assert q.stats().lanes == 5
    late.done()
    q.release("held")
    for _ in range(3):
        clock.advance(200.0)
        pass_turn(q)
    assert q.stats().lanes == 3
    assert q.check() == []


def test_a_turn_is_bounded_and_the_next_one_goes_on(make: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "STEP", 3)
    monkeypatch.setattr(forgetting, "STEPS_MAX", 2)
    q = make(idle_lane_seconds=100.0, dedup_window_seconds=10.0)
    q.send_many([Message(b"", key=n) for n in range(20)])
    q.send_many([Message(b"", key="k", dedup_id=str(n)) for n in range(20)])
    q.ack_many(q.receive(40))
    clock.advance(200.0)
    left = [(20, 21)]
    for _ in range(20):
        pass_turn(q)
        clock.advance(20.0)
        left.append((rows(q, "dedup"), rows(q, "lane")))
    assert [ids for ids, _ in left[:5]] == [20, 14, 8, 2, 0]
    assert max(before - after for (_, before), (_, after) in itertools.pairwise(left)) == 6
    assert left[-1] == (0, 0)


def test_a_queue_with_nothing_to_forget_is_not_written(make: Opener, clock: FakeClock) -> None:
    q = make(idle_lane_seconds=100.0)
    q.send_many([Message(b"", key=n, dedup_id="x") for n in range(300)])
    before = writes(q)
    for _ in range(10):
        clock.advance(20.0)
        pass_turn(q)
    assert writes(q) == before


def test_the_engines_thread_forgets(disk: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    maintain_every(monkeypatch, 0.01)
    q = disk(idle_lane_seconds=1.0)
    q.send(b"", "k")
    q.receive()[0].ack()
    clock.advance(10.0)
    until(lambda: q.stats().lanes == 0, "the engine's thread")
