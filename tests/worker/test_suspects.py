"""A suspect runs alone in its process: boards whose keepers and handlers are the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import strictq
from strictq import Message, Queue
from strictq.testing import FakeClock
from strictq.worker.batches import BatchBoard
from strictq.worker.estimates import Estimates
from strictq.worker.job import Job
from strictq.worker.limits import Limits
from strictq.worker.schedule import Board
from strictq.worker.suspects import Turns

LEASE = 30.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def q(clock: FakeClock) -> Iterator[Queue]:
    with strictq.open(":memory:", clock=clock) as queue:
        yield queue


class Stage:
    """A worker of a queue whose store is infinitely fast."""

    def __init__(self, turns: Turns, *, batch_max: int = 0, **limits: int | bool) -> None:
        make = BatchBoard if batch_max else Board
        self.board = make(Limits(batch_max=batch_max, **limits), Estimates(), turns=turns)  # type: ignore[arg-type]
        self.woken = 0
        self.jobs: dict[object, Job] = {}
        turns.join(self.board, self.wake, None)

    def wake(self) -> None:
        self.woken += 1

    def lease(self, q: Queue) -> None:
        self.board.add(q.receive(100, lease_seconds=LEASE), 0.0)

    def turn(self) -> None:
        for _ in range(3):
            pairs, starting = self.board.take_work()
            self.board.settled(pairs, starting, 0.0)
            self.board.plan(0.0)

    def begin(self) -> list[object]:
        """Start what may run, in order; return the keys."""
        self.turn()
        begun: list[Job] = []
        if isinstance(self.board, BatchBoard):
            while group := self.board.take_group(-1.0):
                begun += group.jobs
        else:
            while job := self.board.take(-1.0):
                begun.append(job)
        self.jobs |= {job.key: job for job in begun}
        return [job.key for job in begun]

    def prepare(self) -> list[object]:
        """Start the prepares that may run; return the keys."""
        self.turn()
        begun = []
        while job := self.board.take_prepare(0.0):
            begun.append(job)
        self.jobs |= {job.key: job for job in begun}
        return [job.key for job in begun]

    def prepared(self, key: object) -> None:
        assert self.board.prepared(self.jobs[key], None, None, 1, 0.0)

    def end(self, key: object) -> None:
        """The handler of this key returns, and its message is acked."""
        job = self.jobs.pop(key)
        assert self.board.processed(job)
        if isinstance(self.board, BatchBoard):
            assert job._group is not None
            job._group.taken = False
            self.board.acked([job], 0.0)
        else:
            self.board.done.append(job)
        self.turn()


def suspect(q: Queue, clock: FakeClock, *keys: str) -> None:
    """Let these messages be started by a holder that dies."""
    for d in q.receive(100, keys=list(keys), lease_seconds=LEASE):
        d.start()
    clock.advance(LEASE)


def send(q: Queue, *keys: str) -> None:
    q.send_many([Message(b"", key=key) for key in keys])


def test_suspects_run_one_at_a_time_and_before_the_others(q: Queue, clock: FakeClock) -> None:
    send(q, "a", "b", "c", "d")
    suspect(q, clock, "b", "d")
    stage = Stage(Turns(), concurrency=8)
    stage.lease(q)
    assert stage.begin() == ["b"]
    assert stage.begin() == []
    stage.end("b")
    assert stage.begin() == ["d"]
    stage.end("d")
    assert stage.begin() == ["a", "c"]


def test_a_suspect_waits_for_what_runs_and_lanes_go_on_after_it(q: Queue, clock: FakeClock) -> None:
    send(q, "a", "a", "b", "b", "s")
    suspect(q, clock, "s")
    stage = Stage(Turns(), concurrency=8)
    stage.board.add(q.receive(100, keys=["a", "b"]), 0.0)
    assert stage.begin() == ["a", "b"]
    stage.lease(q)
    stage.end("a")
    assert stage.begin() == [], "neither the suspect nor the second message of a"
    stage.end("b")
    assert stage.begin() == ["s"]
    stage.end("s")
    assert sorted(map(str, stage.begin())) == ["a", "b"]


def test_a_turn_ends_with_the_suspect_also_if_its_lane_goes_on(q: Queue, clock: FakeClock) -> None:
    """An operator's hold and release end the suspicion while the suspect runs, so that its lease may grow."""
    send(q, "s")
    suspect(q, clock, "s")
    turns = Turns()
    stage, other = Stage(turns, concurrency=8, prepares=True), Stage(turns, concurrency=8)
    stage.lease(q)
    assert stage.prepare() == ["s"]
    stage.prepared("s")
    assert stage.begin() == ["s"]
    q.hold("s")
    q.release("s")
    send(q, "s")
    (lane,) = stage.board.growing()
    stage.board.add(lane.lease.more(4), 0.0)
    stage.end("s")
    assert turns.owner is None
    assert not other.board.paused
    assert stage.prepare() == ["s"]
    stage.prepared("s")
    assert stage.begin() == ["s"]


def test_the_second_worker_of_a_process_waits(q: Queue, clock: FakeClock) -> None:
    turns = Turns()
    one, other = Stage(turns, concurrency=8), Stage(turns, concurrency=8)
    send(q, "a", "a", "s")
    suspect(q, clock, "s")
    other.board.add(q.receive(100, keys=["a"]), 0.0)
    assert other.begin() == ["a"]
    one.lease(q)
    assert one.begin() == [], "the other worker runs a handler"
    other.end("a")
    assert other.begin() == [], "it does not go on"
    turns.nudge(other.board)
    assert one.woken == 1
    assert one.begin() == ["s"]
    assert other.begin() == []
    woken = other.woken
    one.end("s")
    assert other.woken == woken + 1
    assert other.begin() == ["a"]


def test_two_workers_with_suspects_take_turns(q: Queue, clock: FakeClock) -> None:
    turns = Turns()
    one, other = Stage(turns, concurrency=8), Stage(turns, concurrency=8)
    send(q, "s", "t")
    suspect(q, clock, "s", "t")
    one.board.add(q.receive(100, keys=["s"]), 0.0)
    other.board.add(q.receive(100, keys=["t"]), 0.0)
    assert one.begin() == ["s"]
    assert other.begin() == []
    one.end("s")
    assert other.begin() == ["t"]


@pytest.mark.parametrize("how", ["leave", "stop", "lose"])
def test_a_worker_that_no_longer_waits_lets_the_others_go_on(q: Queue, clock: FakeClock, how: str) -> None:
    turns = Turns()
    one, other = Stage(turns, concurrency=8), Stage(turns, concurrency=8)
    send(q, "a", "b", "s")
    suspect(q, clock, "s")
    other.board.add(q.receive(100, keys=["a", "b"]), 0.0)
    assert other.begin() == ["a", "b"]
    one.lease(q)
    assert one.begin() == []
    assert turns.owner is one.board
    if how == "leave":
        turns.leave(one.board)
    elif how == "stop":
        one.board.stop()
    else:
        one.board.drop(one.board.suspects[0])
    assert turns.owner is None
    assert other.woken


def test_a_suspects_prepare_runs_alone_too(q: Queue, clock: FakeClock) -> None:
    send(q, "a", "b", "s")
    suspect(q, clock, "s")
    stage = Stage(Turns(), concurrency=8, prepares=True)
    stage.board.add(q.receive(100, keys=["a", "b"]), 0.0)
    assert stage.prepare() == ["a", "b"]
    stage.prepared("a")
    assert stage.begin() == ["a"]
    stage.lease(q)
    stage.end("a")
    assert stage.prepare() == [], "b's prepare is running"
    stage.prepared("b")
    assert (stage.begin(), stage.prepare()) == ([], ["s"])
    stage.prepared("s")
    assert (stage.begin(), stage.prepare()) == (["s"], [])
    stage.end("s")
    assert stage.begin() == ["b"]


def test_a_prepare_that_has_not_begun_waits_for_the_suspect(q: Queue, clock: FakeClock) -> None:
    send(q, "a", "s")
    suspect(q, clock, "s")
    stage = Stage(Turns(), concurrency=8, prepares=True)
    stage.board.add(q.receive(100, keys=["a"]), 0.0)
    stage.turn()
    assert len(stage.board.to_prepare) == 1
    stage.lease(q)
    assert stage.prepare() == ["s"]
    stage.prepared("s")
    assert stage.begin() == ["s"]
    stage.end("s")
    assert stage.prepare() == ["a"]
    assert stage.board.prepared_count == 1


def test_a_suspect_is_a_batch_by_itself(q: Queue, clock: FakeClock) -> None:
    send(q, "a", "b", "s", "t")
    suspect(q, clock, "s", "t")
    stage = Stage(Turns(), concurrency=2, batch_max=10)
    stage.lease(q)
    assert stage.begin() == ["s"]
    stage.end("s")
    assert stage.begin() == ["t"]
    stage.end("t")
    assert stage.begin() == ["a", "b"]


def test_idle_workers_get_the_suspects_that_wait(q: Queue, clock: FakeClock) -> None:
    send(q, "s", "t", "u")
    suspect(q, clock, "s", "t", "u")
    stage = Stage(Turns(), concurrency=8)
    stage.lease(q)
    assert stage.begin() == ["s"]
    assert [lane.jobs[0].key for lane in stage.board.unstarted()] == ["u", "t"]
