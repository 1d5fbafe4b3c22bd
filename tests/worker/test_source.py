"""A source that confirms acks later than it gets them, as one behind a network does: what the worker does meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import strictq
from strictq import InvalidArgument, LeaseLost, Message, Queue, Reject, Worker
from strictq.worker.ending import Ending
from strictq.worker.estimates import Estimates
from strictq.worker.limits import Limits
from strictq.worker.prefetch import Buffer
from strictq.worker.renewal import Leases
from strictq.worker.schedule import Board
from strictq.worker.source import BEFORE_NEXT, BEHIND, GROWING, SHARING, AckOutcome, LocalSource
from strictq.worker.state import State
from tests.support.running import PATIENCE_SECONDS, until


class Later(LocalSource):
    """A local queue whose acks are confirmed when the test says so, or at the end of the run."""

    capabilities = frozenset({SHARING, GROWING})

    def __init__(self, queue: Queue, confirm: Any = BEFORE_NEXT, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(queue, clock=clock)
        self.queue_id = "later"
        self.confirm = confirm
        self.handed: list[tuple[Any, Any]] = []
        self.outcomes: list[AckOutcome] = []
        self.handlers: list[tuple[str, Any, int]] = []
        self.crash: Callable[[BaseException], None] | None = None
        self.is_closed = False
        self.gone: list[Any] = []
        """Deliveries whose leases are lost, as the source notes when it gets their acks."""
        self.buries = True
        """Whether a rejected message can be made a dead letter."""

    # ---- as a queue

    def _source(self, **_options: Any) -> Later:
        return self

    # ---- as a source

    def open(self, wake: Any, crash: Any, tell: Any, **options: Any) -> None:
        self.crash = crash
        super().open(wake, crash, tell, **options)

    def close(self, deadline: float) -> None:
        assert deadline > self.clock()
        while self.handed:
            self.answer()
        super().close(deadline)

    def take(self, room: int, per_key: int, keys: Any = None) -> Sequence[Any]:
        return super().take(room, 20, keys)  # whole lanes, as those of an endpoint are

    def began(self, delivery: Any) -> None:
        self.handlers.append(("began", delivery.key, delivery.seq))

    def returned(self, delivery: Any) -> None:
        self.handlers.append(("returned", delivery.key, delivery.seq))

    def settle(self, acks: Any, starts: Any, receive: Any = None) -> Any:
        assert receive is None
        assert all(after is None for _, after in acks)
        gone = {d: lost(d) for d, _ in acks if d in self.gone}
        self.handed += [(d, None) for d, _ in acks if d not in gone]
        return gone if self.confirm == BEHIND else {**gone, **super().settle([], starts)}

    def fail(self, delivery: Any, ending: Any) -> float | None:
        if ending.kind == "rejected" and self.buries:
            self.handed.append((delivery, ending))
            return None
        if ending.kind == "rejected":
            super().fail(delivery, Ending("failed", ending.reason, 900.0))
            return 900.0
        return super().fail(delivery, ending)

    def completed(self) -> Sequence[AckOutcome]:
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    # ---- for the test

    def answer(self, error: Exception | None = None) -> None:
        """Confirm the ack that was handed over first, or let it fail."""
        delivery, ending = self.handed.pop(0)
        if error is None and ending is not None:
            super().fail(delivery, ending)
        elif error is None:
            assert self.ack_each([delivery]) == [None]
        self.report_outcome(delivery, error)

    def report_outcome(self, delivery: Any, error: Exception | None) -> None:
        self.outcomes.append(AckOutcome(delivery, error))
        self._wake()


@pytest.fixture
def q() -> Iterator[Queue]:
    with strictq.open(":memory:") as q:
        yield q


def lost(d: Any) -> LeaseLost:
    return LeaseLost(d.key, d.seq, d.token, "another consumer may have it")


class Run:
    """A worker in a thread."""

    def __init__(self, source: Any, process: Callable[[Any], Any] | None = None, **options: Any) -> None:
        self.seen: list[tuple[Any, int]] = []
        self.events: list[Any] = []
        self.errors: list[BaseException] = []
        self._process = process
        self.worker = Worker(source, self.process, on_event=self.events.append, **options)
        self.thread = threading.Thread(target=self.run)

    def process(self, job: Any) -> None:
        self.seen.append((job.key, job.seq))
        if self._process is not None:
            self._process(job)

    def run(self) -> None:
        try:
            self.worker.run()
        except BaseException as e:
            self.errors.append(e)

    def kinds(self, *kinds: str) -> list[tuple[str, Any, int]]:
        return [(e.kind, e.key, e.seq) for e in self.events if e.kind in kinds]


@contextmanager
def running(source: Any, process: Callable[[Any], Any] | None = None, **options: Any) -> Iterator[Run]:
    run = Run(source, process, **options)
    run.thread.start()
    try:
        yield run
    finally:
        run.worker.stop()
        run.thread.join(PATIENCE_SECONDS)
        assert not run.thread.is_alive()


def send(q: Queue, *keys: str) -> None:
    q.send_many([Message(b"", key=key) for key in keys])


def test_a_message_is_acked_when_the_source_says_so(q: Queue) -> None:
    send(q, "a")
    source = Later(q)
    with running(source) as run:
        until(lambda: source.handed)
        assert run.worker.stats().acked == 0
        assert run.kinds("acked") == []
        source.answer()
        until(lambda: run.worker.stats().acked)
    assert run.kinds("acked") == [("acked", "a", 1)]
    assert source.handlers == [("began", "a", 1), ("returned", "a", 1)]


@pytest.mark.parametrize("prepares", [False, True])
def test_a_lane_that_waits_leaves_its_slot_and_its_next_message_waits(q: Queue, prepares: bool) -> None:
    send(q, "a", "a", "b", "c")
    source = Later(q)
    prepare = (lambda job: job.seq) if prepares else None
    with running(source, prepare=prepare, concurrency=1) as run:
        until(lambda: len(source.handed) == 3, "the other lanes to have the slot meanwhile")
        assert run.seen == [("a", 1), ("b", 1), ("c", 1)]
        source.answer()
        until(lambda: len(source.handed) == 3)
        assert run.seen[3:] == [("a", 2)]


def test_with_behind_ten_acks_of_a_lane_may_be_unconfirmed(q: Queue) -> None:
    send(q, *["a"] * 12)
    source = Later(q, BEHIND)
    with running(source, concurrency=2) as run:
        until(lambda: len(source.handed) == 10)
        assert run.worker.stats().running == 0
        source.answer()
        until(lambda: len(source.handed) == 10, "the eleventh message")
        assert run.seen == [("a", n) for n in range(1, 12)]
        assert run.worker.stats().acked == 1
        while source.handed:
            source.answer()
        until(lambda: len(run.seen) == 12)
    assert run.worker.stats().acked == 12


@pytest.mark.parametrize("confirm", [BEFORE_NEXT, BEHIND])
def test_nothing_more_of_a_lane_starts_after_a_lost_message(q: Queue, confirm: Any) -> None:
    send(q, "a", "a", "b")
    source = Later(q, confirm)
    go = threading.Event()
    cancelled: list[bool] = []

    def process(job: Any) -> None:
        if job.seq == 2:
            go.wait(PATIENCE_SECONDS)
            cancelled.append(job.cancelled)

    with running(source, process, concurrency=1) as run:
        until(lambda: source.handed)
        if confirm == BEHIND:
            until(lambda: len(run.seen) == 2)
        source.answer(lost(source.handed[0][0]))
        until(lambda: run.worker.stats().lost)
        until(lambda: ("b", 1) in run.seen)
        go.set()
    assert run.kinds("lost")[0] == ("lost", "a", 1)
    assert ("acked", "a", 1) not in run.kinds("acked")
    assert cancelled == ([True] if confirm == BEHIND else [])
    assert (("a", 2) in run.seen) == (confirm == BEHIND)


def test_an_ack_that_failed_for_now_is_handed_over_again(q: Queue) -> None:
    send(q, "a", "a")
    source = Later(q)
    with running(source) as run:
        until(lambda: source.handed)
        first = source.handed[0][0]
        source.answer(strictq.StoreBusy("for now", shard=0))
        until(lambda: source.handed)
        assert source.handed[0][0] is first
        assert run.seen == [("a", 1)]
        source.answer()
        until(lambda: len(run.seen) == 2)


def test_a_rejected_message_counts_when_it_is_a_dead_letter(q: Queue) -> None:
    send(q, "a", "a")
    source = Later(q)

    def process(job: Any) -> None:
        if job.seq == 1:
            raise Reject("no order")

    with running(source, process) as run:
        until(lambda: source.handed)
        assert (run.worker.stats().rejected, run.seen) == (0, [("a", 1)])
        source.answer()
        until(lambda: run.worker.stats().rejected)
        until(lambda: len(run.seen) == 2)
    assert run.kinds("rejected", "acked") == [("rejected", "a", 1), ("acked", "a", 2)]


def test_a_rejected_message_that_cannot_be_a_dead_letter_is_retried(q: Queue) -> None:
    send(q, "a", "a")
    source = Later(q)
    source.buries = False

    def process(_job: Any) -> None:
        raise Reject("no order")

    with running(source, process) as run:
        until(lambda: run.kinds("retried"))
        (event,) = [e for e in run.events if e.kind == "retried"]
        assert (event.wait_seconds, "no order" in event.detail) == (900.0, True)
    assert (run.seen, run.worker.stats().retried, run.worker.stats().rejected) == ([("a", 1)], 1, 0)


def test_a_failure_at_the_limit_of_receives_is_the_last(q: Queue) -> None:
    """The endpoint decides it: the message is visible again, and the next receive makes a dead letter of it."""
    send(q, "a")
    source = Later(q)
    q.configure(max_attempts=1, on_poison="hold")
    source.fail = lambda d, ending: 1.0  # type: ignore[method-assign,assignment]

    def process(_job: Any) -> None:
        raise ValueError("no number")

    with running(source, process) as run:
        until(lambda: run.kinds("poison", "retried"))
    (event,) = [e for e in run.events if e.kind in ("poison", "retried")]
    assert event.kind == "poison"
    assert event.detail == "ValueError: no number; out of attempts: the next receive makes it a dead letter"


def test_an_ack_that_comes_too_late_is_lost_at_once(q: Queue) -> None:
    send(q, "a", "a")
    source = Later(q)
    with running(source, lambda job: source.gone.append(job._delivery)) as run:
        until(lambda: run.worker.stats().lost)
        assert source.handed == []
    assert run.kinds("lost", "acked") == [("lost", "a", 1)]
    assert run.seen == [("a", 1)]


def test_a_lease_that_cannot_be_extended_cancels_its_handler(q: Queue) -> None:
    send(q, "a", "a")
    source, began, go = Later(q), threading.Event(), threading.Event()
    jobs: list[Any] = []

    def process(job: Any) -> None:
        jobs.append(job)
        began.set()
        go.wait(PATIENCE_SECONDS)

    with running(source, process) as run:
        assert began.wait(PATIENCE_SECONDS)
        source.report_outcome(jobs[0]._delivery, lost(jobs[0]))
        until(lambda: jobs[0].cancelled)
        go.set()
        until(lambda: ("returned", "a", 1) in source.handlers, "the source to be told of a handler that is lost, too")
    assert run.kinds("lost")[0] == ("lost", "a", 1)


def test_a_later_message_that_is_lost_takes_only_those_behind_it(q: Queue) -> None:
    send(q, "a", "a", "a")
    source = Later(q)
    board = Board(Limits(concurrency=1), Estimates())
    state = State(source, board, board.estimates)
    board.add(q.receive(3), 1e9)
    (lane,) = board.lanes.values()
    first, second, _ = lane.jobs
    state.lose_job(second, lost(second))
    assert (lane.alive, list(lane.jobs), board.jobs, state.lost) == (True, [first], 1, 1)
    state.lose_job(first, lost(first))
    assert (lane.alive, board.jobs, state.lost) == (False, 0, 2)


def test_a_deadline_is_on_the_monotonic_clock(q: Queue) -> None:
    """The source's own clock counts the time in which the machine slept, and programs compare with time.monotonic()."""
    send(q, "a")
    left: list[float] = []
    source = Later(q, clock=lambda: time.monotonic() + 50_000.0)
    with running(source, lambda job: left.append(job.deadline - time.monotonic()), timeout_seconds=1_000.0):
        until(lambda: source.handed)
    assert 0.0 < left[0] <= 1_000.0


def test_a_stop_waits_for_the_outcomes(q: Queue) -> None:
    send(q, "a", "a", "b")
    source = Later(q)
    with running(source) as run:
        until(lambda: len(source.handed) == 2)
    assert (run.errors, run.worker.stats().acked, run.worker.stats().lost) == ([], 2, 0)
    assert q.stats().ready == 1


def test_an_error_that_ends_a_thread_of_the_source_ends_the_run(q: Queue) -> None:
    source = Later(q)
    with running(source) as run:
        until(lambda: source.crash)
        assert source.crash is not None
        source.crash(AttributeError("'NoneType' object has no attribute 'get'"))
        run.thread.join(PATIENCE_SECONDS)
        assert [type(e) for e in run.errors] == [AttributeError]


@pytest.mark.parametrize(("trip", "lanes"), [(0.0, 2), (0.02, 4), (0.03, 5), (1.0, 50)])
def test_the_buffer_holds_lanes_for_the_round_trip(q: Queue, trip: float, lanes: int) -> None:
    """Slots × (1 + round trip ÷ duration): while the acks of some lanes are on their way, others run."""
    send(q, *[str(n) for n in range(50)])
    source = Later(q)
    source.round_trip = trip
    board = Board(Limits(concurrency=2, batch=50, low_water=0), Estimates(given_process=0.02))
    state = State(source, board, board.estimates)
    buffer = Buffer(state, Leases(state))
    deliveries = q.receive(50, per_key=1)
    board.add(deliveries[: lanes - 1], 0.0)
    assert buffer.is_low()
    board.add(deliveries[lanes - 1 : lanes], 0.0)
    assert not buffer.is_low()


def test_a_job_of_another_source_has_no_effects(q: Queue) -> None:
    send(q, "a")
    told: list[str] = []

    def process(job: Any) -> None:
        for use in (
            lambda: job.send(b"", key="b"), lambda: job.execute("SELECT 1"), lambda: job.run(print), lambda: job.key_state,
            lambda: setattr(job, "key_state", b""),
        ):  # fmt: skip
            with pytest.raises(InvalidArgument, match="not available on a queue behind an endpoint") as caught:
                use()
            told.append(caught.value.hint_code)
        job.output("said")
        job.progress(0.5)
        assert (job.sequence_number, job.message_id, job.attributes, job.source, job.source_seq) == (None,) * 5

    source = Later(q)
    with running(source, process) as run:
        until(lambda: source.handed or run.kinds("retried"))
        assert run.kinds("retried") == []
    assert told == ["effects_are_local"] * 5


@pytest.mark.parametrize(("options", "what"), [({"keys": ["a"]}, "keys"), ({"process_batch": print}, "process_batch")])
def test_arguments_that_another_source_refuses(q: Queue, options: dict[str, Any], what: str) -> None:
    process = None if what == "process_batch" else print
    with pytest.raises(InvalidArgument, match=f"^{what} is not available on a queue behind an endpoint"):
        Worker(Later(q), process, **options)


def test_a_worker_of_a_local_queue_and_another_one(q: Queue) -> None:
    send(q, "a", "a", "b")
    with strictq.open(":memory:") as other:
        send(other, "c", "c")
        source = Later(q)
        with running([source, other], concurrency=1) as run:
            until(lambda: len(source.handed) == 2)
            until(lambda: len(run.seen) == 4)
            source.answer()
            until(lambda: len(run.seen) == 5)
        assert run.worker.stats().acked == 5
        assert [seq for key, seq in run.seen if key == "a"] == [1, 2]
        assert [seq for key, seq in run.seen if key == "c"] == [1, 2]


def test_an_app_on_another_source(q: Queue) -> None:
    source = Later(q)
    app = strictq.App(source)  # type: ignore[arg-type]
    done: list[int] = []

    @app.handler("count", max_running=1)
    def count(n: int) -> None:
        done.append(n)

    for n in range(2):
        q.send(app.message("count", key="a", n=n))
    q.send(b"{}", key="b", headers={"strictq-type": "unknown"})
    events: list[Any] = []
    worker = app.worker(on_event=events.append)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: source.handed and worker.stats().deferred)
    source.answer()
    until(lambda: done == [0, 1])
    worker.stop()
    thread.join(PATIENCE_SECONDS)
    assert app.tick() == []
    with pytest.raises(InvalidArgument, match="a schedule needs a local queue"):
        app.schedule("* * * * *")(count)


def test_a_url_is_connected_and_closed_with_the_run(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Connection(Later):
        def close(self, deadline: float | None = None) -> None:
            if deadline is None:
                self.is_closed = True
            else:
                super().close(deadline)

    def connect(url: str) -> Connection:
        made.append((url, Connection(q)))
        return made[-1][1]  # type: ignore[no-any-return]

    monkeypatch.setattr("strictq.remote.queue.connect", connect)
    url = "sqs+http://127.0.0.1:1/queue/orders.fifo"
    with pytest.raises(InvalidArgument, match=r"^keys is not available"):
        Worker(url, print, keys=["a"])
    worker = Worker(url, print)
    assert [(name, c.is_closed) for name, c in made] == [(url, True), (url, False)]
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: made[-1][1].crash)
    worker.stop()
    thread.join(PATIENCE_SECONDS)
    assert made[-1][1].is_closed
    with pytest.raises(InvalidArgument, match="each given once"):
        Worker([url, url], print)
    with pytest.raises(InvalidArgument, match="a Queue or the URL of one"):
        Worker(7, print)  # type: ignore[arg-type]
