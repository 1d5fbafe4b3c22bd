"""When prepares start and messages run, with a clock that stands still until the test moves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strictq
from strictq import Message, Queue
from strictq.worker.estimates import Estimates
from strictq.worker.job import PREPARED, READY, Job
from strictq.worker.limits import Limits
from strictq.worker.schedule import Board


class Stage:
    """A board whose keeper and handlers are this test: everything takes as long as the test says."""

    def __init__(self, q: Queue, estimates: Estimates | None = None, **limits: object) -> None:
        self.q = q
        self.now = 100.0
        self.estimates = estimates or Estimates()
        self.board = Board(Limits(prepares=True, **limits), self.estimates)  # type: ignore[arg-type]
        self.due: float | None = None

    def lease(self, per_key: int = 10) -> None:
        self.board.add(self.q.receive(1000, per_key=per_key, lease_seconds=3600), self.now - self.q._storage.now() / 1e6)
        self.turn()

    def turn(self) -> None:
        """What the keeper does in a round, the store being infinitely fast."""
        pairs, starting = self.board.take_work()
        self.board.settled(pairs, starting, self.now)
        self.due = self.board.plan(self.now)

    def to(self, now: float) -> None:
        self.now = now
        self.turn()

    def preparing(self) -> list[tuple[object, int]]:
        """Let those begin that may; which they are."""
        begun = []
        while job := self.board.take_prepare(self.now):
            begun.append((job.key, job.seq))
            setattr(self, f"p{job.key}{job.seq}", job)
        return begun

    def prepared(self, key: object, seq: int, error: Exception | None = None, weight: int = 1) -> None:
        job: Job = getattr(self, f"p{key}{seq}")
        assert self.board.prepared(job, f"result {seq}", error, weight, self.now)
        self.turn()

    def processing(self) -> list[tuple[object, int]]:
        begun = []
        while job := self.board.take(self.now):
            begun.append((job.key, job.seq))
            setattr(self, f"r{job.key}{job.seq}", job)
        self.turn()
        return begun

    def processed(self, key: object, seq: int) -> None:
        job: Job = getattr(self, f"r{key}{seq}")
        assert self.board.processed(job)
        self.board.done.append(job)
        self.turn()

    def start_first(self, key: object = "k") -> None:
        assert self.preparing()[0] == (key, 1)
        self.prepared(key, 1)
        assert self.processing() == [(key, 1)]


@pytest.fixture
def q() -> Iterator[Queue]:
    with strictq.open(":memory:") as q:
        yield q


def send(q: Queue, count: int, key: str = "k", **options: float) -> None:
    q.send_many([Message(b"x", key=key, **options) for _ in range(count)])  # type: ignore[arg-type]


def test_with_2_s_and_300_ms_prepare_starts_after_1700_ms(q: Queue) -> None:
    send(q, 3, process_seconds=2.0, prepare_seconds=0.3)
    stage = Stage(q)
    stage.lease()
    stage.start_first()
    assert stage.due == pytest.approx(101.7)
    assert stage.preparing() == []
    stage.to(101.699)
    assert stage.preparing() == []
    stage.to(101.7001)
    assert stage.preparing() == [("k", 2)]
    stage.to(102.0)
    stage.prepared("k", 2)
    assert stage.processing() == []  # its result is there, but message 1 is not acked
    stage.processed("k", 1)
    assert stage.processing() == [("k", 2)]
    assert stage.due == pytest.approx(103.7)


def test_an_estimate_that_is_too_long_costs_the_wait_for_prepare_and_no_more(q: Queue) -> None:
    send(q, 2, process_seconds=2.0, prepare_seconds=0.3)
    stage = Stage(q)
    stage.lease()
    stage.start_first()
    stage.to(100.5)
    stage.processed("k", 1)  # after 0.5 s, not 2
    assert stage.preparing() == [("k", 2)]  # at once
    assert stage.processing() == []
    stage.to(100.8)
    stage.prepared("k", 2)
    assert stage.processing() == [("k", 2)]


def test_an_estimate_that_is_too_short_has_the_result_wait(q: Queue) -> None:
    send(q, 2, process_seconds=0.5, prepare_seconds=0.3)
    stage = Stage(q)
    stage.lease()
    stage.start_first()
    stage.to(100.2001)
    assert stage.preparing() == [("k", 2)]
    stage.to(100.5)
    stage.prepared("k", 2)
    stage.to(103.0)
    assert stage.processing() == []
    stage.processed("k", 1)
    assert stage.processing() == [("k", 2)]
    assert list(stage.board.waits)[-1] == pytest.approx(2.5)


def test_without_an_estimate_it_starts_at_once(q: Queue) -> None:
    send(q, 2)
    stage = Stage(q)
    stage.lease()
    assert stage.preparing() == [("k", 1), ("k", 2)]


def test_a_learned_estimate_follows_the_size_hint(q: Queue) -> None:
    estimates = Estimates()
    for size in range(1, 50):
        estimates.process.learn(float(size), 0.1 * size)
        estimates.prepare.learn(float(size), 0.01 * size)
    q.send(b"x", key="k", size_hint=20.0)
    q.send(b"x", key="k", size_hint=10.0)
    stage = Stage(q, estimates)
    stage.lease()
    stage.start_first()
    assert stage.due == pytest.approx(102.0 - 0.1, abs=0.05)


def test_a_lying_size_hint_changes_the_time_and_never_the_order(q: Queue) -> None:
    estimates = Estimates()
    for size in range(1, 50):
        estimates.process.learn(float(size), 0.1 * size)
        estimates.prepare.learn(float(size), 0.01 * size)
    for size in (1e300, 0.0, 5.0):
        q.send(b"x", key="k", size_hint=size)
    stage = Stage(q, estimates)
    stage.lease()
    stage.start_first()
    stage.to(100.5)
    stage.processed("k", 1)  # nothing like what 1e300 promised
    assert ("k", 2) in stage.preparing()
    stage.prepared("k", 2)
    assert stage.processing() == [("k", 2)]
    stage.preparing()
    stage.prepared("k", 3)
    assert stage.processing() == []
    stage.processed("k", 2)
    assert stage.processing() == [("k", 3)]


def test_the_margin_makes_it_earlier(q: Queue) -> None:
    estimates = Estimates()
    for needed in (0.1, -0.1) * 20:
        estimates.margin.learn(needed)
    margin = estimates.margin.seconds
    assert margin > 0.1
    send(q, 2, process_seconds=2.0, prepare_seconds=0.3)
    stage = Stage(q, estimates)
    stage.lease()
    stage.start_first()
    assert stage.due == pytest.approx(101.7 - margin)


def test_the_margin_learns_from_results_that_come_late(q: Queue) -> None:
    send(q, 40, process_seconds=1.0, prepare_seconds=0.2)
    stage = Stage(q)
    stage.lease(per_key=40)
    stage.start_first()
    lateness = []
    for seq in range(1, 31):
        begun = stage.now
        assert stage.due is not None
        stage.to(stage.due + 1e-9)
        assert stage.preparing() == [("k", seq + 1)]
        back = stage.now + 0.3  # prepares take longer than they say
        if back < begun + 1.0:
            stage.to(back)
            stage.prepared("k", seq + 1)
            stage.to(begun + 1.0)
            stage.processed("k", seq)
        else:
            stage.to(begun + 1.0)
            stage.processed("k", seq)
            stage.to(back)
            stage.prepared("k", seq + 1)
        lateness.append(max(0.0, back - begun - 1.0))
        assert stage.processing() == [("k", seq + 1)]
    assert lateness[0] == pytest.approx(0.1)
    assert max(lateness[-10:]) < 0.02


def test_prepare_that_takes_longer_than_process_runs_several_messages_ahead(q: Queue) -> None:
    send(q, 10, process_seconds=1.0, prepare_seconds=2.5)
    stage = Stage(q)
    stage.lease()
    assert stage.preparing() == [("k", 1)]
    stage.to(101.0001)  # message 1 will run from 102.5 to 103.5: message 2 is needed then
    assert stage.preparing() == [("k", 2)]
    stage.to(102.0001)
    assert stage.preparing() == [("k", 3)]
    stage.to(102.5)
    stage.prepared("k", 1)
    assert stage.processing() == [("k", 1)]


def test_lanes_are_independent(q: Queue) -> None:
    for key in "ab":
        send(q, 2, key, process_seconds=2.0, prepare_seconds=0.3)
    stage = Stage(q, concurrency=2)
    stage.lease()
    assert sorted(stage.preparing()) == [("a", 1), ("b", 1)]
    stage.prepared("a", 1)
    assert stage.processing() == [("a", 1)]
    stage.to(101.0)
    stage.prepared("b", 1)
    assert stage.processing() == [("b", 1)]
    stage.to(101.7001)
    assert stage.preparing() == [("a", 2)]
    stage.to(102.7001)
    assert stage.preparing() == [("b", 2)]


def test_a_lane_that_waits_for_a_slot_is_prepared_for_the_time_it_gets_one(q: Queue) -> None:
    send(q, 1, "a", process_seconds=2.0, prepare_seconds=0.3)
    send(q, 1, "b", process_seconds=2.0, prepare_seconds=0.3)
    stage = Stage(q, concurrency=1)
    stage.lease()
    stage.start_first("a")
    assert stage.due == pytest.approx(101.7)
    stage.to(101.7001)
    assert stage.preparing() == [("b", 1)]
    stage.prepared("b", 1)
    assert stage.processing() == []
    stage.to(102.0)
    stage.processed("a", 1)
    assert stage.processing() == [("b", 1)]


def test_no_more_is_prepared_ahead_than_allowed(q: Queue) -> None:
    for n in range(20):
        send(q, 3, f"k{n}")
    stage = Stage(q, concurrency=2, prepared_max=5)
    stage.lease()
    assert len(stage.preparing()) == 5
    assert stage.board.prepared_count == 5


def test_results_over_the_byte_limit_stop_preparing_ahead_until_they_are_used(q: Queue) -> None:
    send(q, 4)
    stage = Stage(q, concurrency=1, prepared_bytes_max=1000)
    stage.lease()
    stage.preparing()
    stage.prepared("k", 1)
    assert stage.processing() == [("k", 1)]
    stage.preparing()
    stage.prepared("k", 2, weight=5000)
    assert stage.board.prepared_bytes >= 5000
    stage.processed("k", 1)
    assert stage.processing() == [("k", 2)]  # used all the same
    assert stage.board.prepared_bytes < 5000


def test_a_failed_prepare_fails_its_message_when_its_turn_comes(q: Queue) -> None:
    send(q, 2)
    stage = Stage(q)
    stage.lease()
    stage.start_first()
    error = RuntimeError("no such file")
    stage.prepared("k", 2, error)
    assert stage.board.failed == []  # it is not its turn
    stage.processed("k", 1)
    assert [(job.seq, e) for job, e in stage.board.failed] == [(2, error)]
    assert stage.processing() == []


def test_nothing_is_used_after_its_lease(q: Queue) -> None:
    """A local hold never outlives the durable one."""
    send(q, 2, "a", process_seconds=1.0, prepare_seconds=0.1)
    send(q, 2, "b", process_seconds=1.0, prepare_seconds=0.1)
    stage = Stage(q, concurrency=1)
    stage.lease()
    stage.start_first("a")
    lane = next(lane for lane in stage.board.lanes.values() if lane.jobs[0].key == "b")
    stage.to(100.95)
    assert stage.preparing() == [("a", 2)]
    stage.prepared("a", 2)
    stage.to(101.0)
    stage.processed("a", 1)
    assert stage.processing() == [("a", 2)]
    stage.to(101.95)
    assert stage.preparing() == [("b", 1)]
    stage.prepared("b", 1)
    stage.to(102.0)
    stage.processed("a", 2)  # its slot goes to b, whose handler would begin now
    lane.until = stage.now
    assert stage.processing() == []
    assert stage.board.expired == [lane]


def test_what_was_retried_is_started_only_when_it_runs(q: Queue) -> None:
    """Many messages are started ahead of very quick handlers; one that may have killed its process is not among them."""
    for n in range(6):
        send(q, 1, f"k{n}")
    for d in q.receive(2, per_key=1):
        d.nack()
    estimates = Estimates()
    for _ in range(10):
        estimates.process.learn(1.0, 1e-5)
    board = Board(Limits(concurrency=1), estimates)
    assert board.ahead() > 6
    board.add(q.receive(10, per_key=1), 0.0 - q._storage.now() / 1e6)
    board.select()
    assert [job.attempt for job in board.starting] == [1, 1, 1, 1]
    starting = board.take_work()[1]
    board.settled([], starting, 0.0)
    assert all(job._stage == READY for job in starting)
    assert [job._stage == PREPARED for job in starting] == [False] * 4


def test_what_was_given_back_at_the_stop_is_not_prepared_any_more(q: Queue) -> None:
    """It was to be prepared, and no handler had it yet: whoever takes it later would prepare a message that is not ours."""
    send(q, 2, process_seconds=2.0, prepare_seconds=0.3)
    stage = Stage(q)
    stage.lease()
    stage.start_first()
    stage.to(101.8)  # the second one is to be prepared now
    assert [job.seq for job in stage.board.stop()] == [2]
    assert stage.preparing() == []
    stage.processed("k", 1)
    assert stage.board.idle


def test_what_comes_later_in_a_lane_never_takes_the_place_of_what_comes_first(q: Queue) -> None:
    send(q, 1, "busy", process_seconds=1.0, prepare_seconds=0.0)
    send(q, 1, "k", process_seconds=0.01, prepare_seconds=0.01)
    send(q, 3, "k", process_seconds=0.01, prepare_seconds=0.8)  # due long before the first one is
    stage = Stage(q, concurrency=1, prepared_max=2)
    stage.lease()
    stage.start_first("busy")
    assert stage.due == pytest.approx(101.0 + 0.01 - 0.8)  # so that the second one is ready when its turn comes
    stage.to(100.9)
    assert stage.preparing() == [("k", 1), ("k", 2)]
    stage.to(101.0)
    stage.processed("busy", 1)
    stage.prepared("k", 1)
    assert stage.processing() == [("k", 1)]


SECONDS = st.sampled_from([0.0, 0.01, 0.1, 0.8, 3.0])


@pytest.mark.slow
@settings(deadline=None)  # on a busy machine an example may take any time
@given(
    st.lists(st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), min_size=1, max_size=10), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_a_worker_never_stands_still(
    lanes: list[list[tuple[float, float, float, float]]], concurrency: int, prepared_max: int
) -> None:
    """Whatever is estimated, and however long it really takes."""
    with strictq.open(":memory:") as q:
        real: dict[tuple[object, int], tuple[float, float]] = {}
        for key, messages in enumerate(lanes):
            for seq, (prepare, process, really_prepare, really_process) in enumerate(messages, 1):
                q.send(b"x", key, prepare_seconds=prepare, process_seconds=process)
                real[key, seq] = really_prepare, really_process
        stage = Stage(q, concurrency=concurrency, prepared_max=prepared_max)
        stage.lease()
        ends: list[tuple[float, str, object, int]] = []
        done: list[tuple[object, int]] = []
        while True:
            begun = stage.preparing()
            ends += [(stage.now + real[job][0], "prepare", *job) for job in begun]
            ends += [(stage.now + real[job][1], "process", *job) for job in stage.processing()]
            times = [end for end, *_ in ends]
            if stage.due is not None:
                times.append(max(stage.now, stage.due))
            if not times:
                break
            stage.to(min(times) + 1e-6)
            for end in sorted(e for e in ends if e[0] <= stage.now):
                ends.remove(end)
                _, what, key, seq = end
                if what == "prepare":
                    stage.prepared(key, seq)
                else:
                    stage.processed(key, seq)
                    done.append((key, seq))
        assert sorted(done) == sorted(real)
