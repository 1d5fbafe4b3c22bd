"""Batch handlers: what a batch has in it, and what becomes of each message when some fail."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import strictq
from strictq import Defer, InvalidArgument, Job, PendingReceipt, Queue, Reject, Retry, Worker
from tests.support.queues import fill
from tests.support.running import PATIENCE_SECONDS, until
from tests.worker.conftest import Make

Jobs = list[Job]
Handler = Callable[[Jobs], None]


@pytest.fixture(params=["plain", "async"])
def kind(request: pytest.FixtureRequest) -> Callable[[Handler], Callable[[Jobs], Any]]:
    """Makes a handler of either kind."""

    def make(handler: Handler) -> Callable[[Jobs], Any]:
        if request.param == "plain":
            return handler

        async def handle(jobs: Jobs) -> None:
            await anyio.lowlevel.checkpoint()
            handler(jobs)

        return handle

    return make


class Seen:
    """Collects batches as (key, seq, attempt)."""

    def __init__(self, then: Handler | None = None) -> None:
        self.batches: list[list[tuple[Any, int, int]]] = []
        self._then = then

    def __call__(self, jobs: Jobs) -> None:
        self.batches.append([(job.key, job.seq, job.attempt) for job in jobs])
        if self._then is not None:
            self._then(jobs)

    @property
    def first(self) -> list[tuple[Any, int]]:
        return [(key, seq) for batch in self.batches for key, seq, attempt in batch if attempt == 1]


def test_a_batch_has_messages_of_many_keys_and_several_of_one(q: Queue, kind: Any) -> None:
    for key in "abc":
        fill(q, key, 4)
    seen = Seen()
    Worker(q, process_batch=kind(seen), batch_max=100, concurrency=1).run(drain=True)
    (batch,) = seen.batches
    assert sorted(batch) == [(key, n, 1) for key in "abc" for n in range(1, 5)]
    for key in "abc":
        assert [seq for k, seq, _ in batch if k == key] == [1, 2, 3, 4]
    assert (q.stats().depth, q.stats().acks) == (0, 12)


def test_a_batch_has_few_messages_of_a_key_if_it_may(q: Queue, kind: Any) -> None:
    for key in "abcdef":
        fill(q, key, 9)
    seen = Seen()
    Worker(q, process_batch=kind(seen), batch_max=100, batch_per_key=2, concurrency=1).run(drain=True)
    assert max(Counter(key for key, _, _ in batch).most_common(1)[0][1] for batch in seen.batches) == 2
    assert max(map(len, seen.batches)) == 12
    for key in "abcdef":
        assert [seq for k, seq in seen.first if k == key] == list(range(1, 10))
    with pytest.raises(InvalidArgument, match="batch_per_key"):
        Worker(q, process_batch=kind(seen), batch_per_key=0)


def test_no_batch_is_larger_than_it_may_be(q: Queue, kind: Any) -> None:
    fill(q, "one", 95)
    for n in range(40):
        q.send(b"", n)
    seen = Seen()
    worker = Worker(q, process_batch=kind(seen), batch_max=10, concurrency=2)
    worker.run(drain=True)
    assert max(map(len, seen.batches)) == 10
    assert sum(map(len, seen.batches)) == 135 == worker.stats().acked
    assert [seq for key, seq in seen.first if key == "one"] == list(range(1, 96))


def test_a_key_with_more_than_a_batch_goes_on_where_it_was(q: Queue, kind: Any) -> None:
    fill(q, "k", 7)
    seen = Seen()
    Worker(q, process_batch=kind(seen), batch_max=5, concurrency=1).run(drain=True)
    assert [[seq for _, seq, _ in batch] for batch in seen.batches] == [[1, 2, 3, 4, 5], [6, 7]]


def test_messages_of_one_key_are_never_in_two_batches_at_once(q: Queue) -> None:
    for key in range(3):
        fill(q, key, 60)
    lock, at_work, most = threading.Lock(), Counter[Any](), Counter[Any]()

    def process(jobs: Jobs) -> None:
        keys = {job.key for job in jobs}
        with lock:
            at_work.update(keys)
            most.update({key: max(0, at_work[key] - most[key]) for key in keys})
        time.sleep(0.001)
        with lock:
            at_work.subtract(keys)

    Worker(q, process_batch=process, batch_max=7, concurrency=4).run(drain=True)
    assert set(most.values()) == {1}
    assert q.stats().acks == 180


def test_a_batch_that_is_not_full_waits_for_more(q: Queue, kind: Any) -> None:
    seen = Seen()
    worker = Worker(q, process_batch=kind(seen), batch_max=3, batch_wait_seconds=600.0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        q.send(b"", "a")
        until(lambda: q.stats().in_flight == 1, "the first message to be leased")
        q.send(b"", "a")  # of a lane that is leased
        q.send(b"", "b")
        until(lambda: worker.stats().acked == 3, "the batch to be full")
    finally:
        worker.stop()
        thread.join()
    (batch,) = seen.batches
    assert sorted(batch) == [("a", 1, 1), ("a", 2, 1), ("b", 1, 1)]


def test_a_batch_that_waited_long_enough_starts(q: Queue, kind: Any) -> None:
    q.send(b"", "a")
    seen = Seen()
    worker = Worker(q, process_batch=kind(seen), batch_max=3, batch_wait_seconds=0.05)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: worker.stats().acked == 1, "the batch to start")
    worker.stop()
    thread.join()
    assert seen.batches == [[("a", 1, 1)]]


def test_a_stop_gives_back_what_waits_for_a_batch(q: Queue, kind: Any) -> None:
    fill(q, "a", 2)
    worker = Worker(q, process_batch=kind(Seen()), batch_max=3, batch_wait_seconds=600.0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: q.stats().in_flight == 2, "the messages to be leased")
    worker.stop()
    thread.join()
    assert (q.stats().ready, q.stats().in_flight) == (2, 0)
    assert [d.attempt for d in q.receive()] == [1, 1]


# ---- partial success


def failing(error: Exception | str, *which: tuple[str, int]) -> Handler:
    def process(jobs: Jobs) -> None:
        for job in jobs:
            if (job.key, job.seq) in which and job.attempt == 1:
                job.fail(error)

    return process


@pytest.mark.parametrize("error", [Retry(reason="why"), ValueError("why"), "why"], ids=["Retry", "ValueError", "str"])
def test_one_that_failed_is_tried_again_and_the_others_are_acked(q: Queue, kind: Any, error: Any) -> None:
    for key in "abc":
        fill(q, key, 3)
    seen = Seen(failing(error, ("b", 2)))
    worker = Worker(q, process_batch=kind(seen), batch_max=100)
    worker.run(drain=True)
    again = [m for batch in seen.batches[1:] for m in batch]
    assert [(key, seq) for key, seq, _ in again] == [("b", 2), ("b", 3)], "what follows it in its key goes back with it"
    assert seen.batches[1:] == [[("b", 2, 2)], [("b", 3, 1)]], "alone, and the other one is charged nothing"
    assert (worker.stats().acked, worker.stats().retried, q.stats().depth) == (9, 1, 0)


def test_a_reason_is_kept_as_it_was_given(q: Queue, kind: Any) -> None:
    q.configure(max_attempts=1)
    q.send(b"", "a")

    def process(jobs: Jobs) -> None:
        jobs[0].fail("no such customer")

    Worker(q, process_batch=kind(process)).run(drain=True)
    (dead,) = q.dead_letters()
    assert "no such customer" in str(dead.reason)
    assert "Failed" not in str(dead.reason)


def test_one_that_is_rejected_stops_nothing(q: Queue, kind: Any) -> None:
    fill(q, "a", 5)
    seen = Seen(failing(Reject("broken"), ("a", 1), ("a", 3)))
    worker = Worker(q, process_batch=kind(seen))
    worker.run(drain=True)
    assert len(seen.batches) == 1
    assert [(d.seq, d.reason) for d in q.dead_letters()] == [(1, "broken"), (3, "broken")]
    assert (worker.stats().acked, worker.stats().rejected, q.stats().depth) == (3, 2, 0)


def test_one_that_is_deferred_is_charged_nothing(q: Queue, kind: Any) -> None:
    fill(q, "a", 3)
    Worker(q, process_batch=kind(failing(Defer(600.0), ("a", 2)))).run(drain=True)
    assert [(m.seq, m.state, m.attempts) for m in q.peek("a")] == [(2, "delayed", 0), (3, "delayed", 0)]


@pytest.mark.parametrize("shards", [1, 3])
def test_effects_happen_with_the_messages_that_succeed(make: Make, kind: Any, shards: int) -> None:
    q = make(shards=shards)
    q.app_schema("CREATE TABLE app_seen (key TEXT, seq INTEGER) STRICT")
    for key in "abcd":
        fill(q, key, 3)
    receipts: list[tuple[Job, PendingReceipt]] = []

    def process(jobs: Jobs) -> None:
        for job in jobs:
            receipts.append((job, job.send_json([job.key, job.seq, job.attempt], key="out")))
            job.execute("INSERT INTO app_seen VALUES (?, ?)", (job.key, job.seq))
            job.key_state = b"%d" % job.seq
        failing(ValueError("no"), ("b", 2))(jobs)

    Worker(q, process_batch=kind(process), keys=list("abcd")).run(drain=True)
    assert sorted(q.query("SELECT key, seq FROM app_seen")) == [(key, n) for key in "abcd" for n in (1, 2, 3)]
    sent = [m.json() for m in q.peek("out", 100)]
    assert sorted((key, seq) for key, seq, _ in sent) == [(key, n) for key in "abcd" for n in (1, 2, 3)]
    assert {attempt for key, seq, attempt in sent if (key, seq) == ("b", 2)} == {2}
    for job, receipt in receipts:
        if (job.key, job.seq, job.attempt) == ("b", 2, 1):
            with pytest.raises(InvalidArgument, match="failed"):
                _ = receipt.id


def test_sql_that_is_wrong_fails_its_message_alone(q: Queue, kind: Any) -> None:
    q.configure(max_attempts=1)
    for key in "ab":
        fill(q, key, 2)

    def process(jobs: Jobs) -> None:
        for job in jobs:
            if (job.key, job.seq) == ("a", 1):
                job.execute("INSERT INTO app_missing VALUES (1)")

    worker = Worker(q, process_batch=kind(process))
    worker.run(drain=True)
    assert [(d.key, d.seq) for d in q.dead_letters()] == [("a", 1)]
    assert worker.stats().acked == 3


# ---- batches that raise


def test_the_messages_of_a_batch_that_raises_are_tried_one_by_one(q: Queue, kind: Any) -> None:
    q.configure(max_attempts=2)
    for key in "abcd":
        fill(q, key, 2)

    def process(jobs: Jobs) -> None:
        if any((job.key, job.seq) == ("c", 1) for job in jobs):
            raise ValueError("a poison message")

    seen = Seen(process)
    worker = Worker(q, process_batch=kind(seen))
    worker.run(drain=True)
    assert [(d.key, d.seq, d.attempts) for d in q.dead_letters()] == [("c", 1, 2)]
    assert worker.stats().acked == 7
    assert all(len(batch) == 1 for batch in seen.batches if batch[0][2] > 1)


@pytest.mark.parametrize("error", [Reject("all of it"), Defer(600.0), Retry(600.0)], ids=["Reject", "Defer", "Retry"])
def test_what_a_batch_raises_is_of_all_its_messages(q: Queue, kind: Any, error: Exception) -> None:
    for key in "ab":
        fill(q, key, 2)

    def process(jobs: Jobs) -> None:
        raise error

    Worker(q, process_batch=kind(process)).run(drain=True)
    if isinstance(error, Reject):
        assert len(q.dead_letters()) == 4
    else:
        assert {m.state for key in "ab" for m in q.peek(key)} == {"delayed"}
        # The first one of each key stands for those behind it.
        assert [m.attempts for key in "ab" for m in q.peek(key)] == [int(isinstance(error, Retry)), 0] * 2


def test_one_poison_message_does_not_open_the_breaker(q: Queue, kind: Any) -> None:
    q.configure(max_attempts=2)
    for n in range(100):
        q.send(b"", n)

    def process(jobs: Jobs) -> None:
        if any(job.key == 50 for job in jobs):
            raise ValueError("a poison message")

    opened: list[Any] = []
    q.on_event(lambda event: opened.append(event.kind))
    worker = Worker(q, process_batch=kind(process), breaker=strictq.Breaker())
    worker.run(drain=True)
    assert "breaker_opened" not in opened
    assert (worker.stats().acked, len(q.dead_letters())) == (99, 1)


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
def test_a_handler_may_end_the_program(q: Queue, ending: BaseException) -> None:
    fill(q, "a", 2)

    def process(jobs: Jobs) -> None:
        raise ending

    with pytest.raises(type(ending)):
        Worker(q, process_batch=process).run()
    assert {m.attempts > 0 for m in q.peek("a")[:1]} == {isinstance(ending, SystemExit)}
    assert q.stats().in_flight == 0


def test_a_batch_that_takes_too_long_is_given_up(q: Queue, kind: Any) -> None:
    q.configure(max_attempts=1)
    fill(q, "a", 2)
    fill(q, "b", 1)
    release = threading.Event()

    def process(jobs: Jobs) -> None:
        if jobs[0].attempt == 1 and len(jobs) == 3:
            release.wait(PATIENCE_SECONDS)
            with pytest.raises(strictq.LeaseLost):
                jobs[0].send(b"", "out")

    worker = Worker(q, process_batch=process, timeout_seconds=0.05)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: len(q.dead_letters()) >= 2, "the batch to be given up")
    release.set()
    until(lambda: q.stats().depth == 0, "the rest")
    worker.stop()
    thread.join()
    assert sorted((d.key, d.seq) for d in q.dead_letters()) == [("a", 1), ("b", 1)]
    assert worker.stats().acked == 1
    assert q.peek("out") == []


def test_a_lane_that_is_lost_takes_no_other_with_it(make: Make) -> None:
    q = make(lease_seconds=600.0)
    fill(q, "a", 2)
    fill(q, "b", 2)

    def process(jobs: Jobs) -> None:
        if len(jobs) == 4:
            jobs[0]._delivery.lease.release()  # as if the lease had ended, and been retaken

    worker = Worker(q, process_batch=process)
    worker.run(drain=True)
    assert worker.stats().lost == 1
    assert q.stats().depth == 0
    assert worker.stats().acked == 4


# ---- what is refused


def test_what_goes_with_no_batch_is_refused(q: Queue) -> None:
    def one(job: Any) -> None: ...

    for options in (
        {},
        {"process": one, "process_batch": one},
        {"process_batch": one, "prepare": one},
        {"process_batch": one, "executor": "process"},
        {"process_batch": one, "batch_max": 0},
        {"process_batch": one, "batch_wait_seconds": -1.0},
        {"process_batch": lambda: None},
    ):
        with pytest.raises(InvalidArgument):
            Worker(q, **options)  # type: ignore[arg-type]


def test_verbs_that_are_for_batches_or_for_single_messages(q: Queue) -> None:
    q.send(b"", "a")
    q.send(b"", "b")
    told: list[str] = []

    def single(job: Job) -> None:
        with pytest.raises(InvalidArgument) as caught:
            job.fail("no")
        told.append(caught.value.hint_code)

    def batch(jobs: Jobs) -> None:
        with pytest.raises(InvalidArgument) as caught:
            jobs[0].run(lambda db: None)
        told.append(caught.value.hint_code)
        with pytest.raises(InvalidArgument, match="must be an exception or a str"):
            jobs[0].fail(5)  # type: ignore[arg-type]

    Worker(q, single, keys=["a"]).run(drain=True)
    Worker(q, process_batch=batch, keys=["b"]).run(drain=True)
    assert told == ["raise_instead", "use_job_execute"]
    assert q.stats().acks == 2
