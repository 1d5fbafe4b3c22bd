"""What a job does together with its ack, and what it can know of it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import InvalidArgument, Job, PendingReceipt, Queue, QueueConfig, Worker
from tests.support.injection import commit_fails
from tests.support.queues import AT_ONCE
from tests.worker import handlers


def test_a_jobs_sends_have_their_receipts_once_it_is_acked(q: Queue) -> None:
    q.send(b"", key="k")
    kept: list[PendingReceipt] = []

    def process(job: Job) -> None:
        if job.key == "k":
            kept.append(job.send(b"", key="out"))
            with pytest.raises(InvalidArgument, match="has not committed yet"):
                _ = kept[0].receipt

    Worker(q, process).run(drain=True)
    receipt = kept[0].receipt
    assert receipt is not None
    assert (receipt.key, receipt.seq, receipt.duplicate) == ("out", 1, False)
    assert q.status("out", 1).state == "resolved"


@pytest.mark.parametrize("runs", [False, True])
def test_a_failed_jobs_sends_have_none(q: Queue, runs: bool) -> None:
    q.send(b"", key="k")
    kept: list[PendingReceipt] = []

    def process(job: Job) -> None:
        if job.attempt == 1:
            kept.append(job.send(b"", key="out"))
            if runs:
                job.run(lambda db: None)
            raise ValueError

    Worker(q, process).run(drain=True)
    with pytest.raises(InvalidArgument, match="failed"):
        _ = kept[0].receipt
    assert q.peek("out") == []


def test_a_jobs_parameters_are_as_they_were_when_it_gave_them(q: Queue) -> None:
    q.app_schema("CREATE TABLE app_t (a INTEGER) STRICT")
    q.send(b"", key="k")

    def process(job: Job) -> None:
        row = [0]
        for n in range(3):
            row[0] = n
            job.execute("INSERT INTO app_t VALUES (?)", row)

    Worker(q, process).run(drain=True)
    assert q.query("SELECT a FROM app_t ORDER BY a") == [(0,), (1,), (2,)]


def test_a_key_state_that_is_too_large_is_refused_in_the_handler(make: Any) -> None:
    q = make(max_body_bytes=4)
    q.send(b"", key="k")
    refused: list[str] = []

    def process(job: Job) -> None:
        try:
            job.key_state = b"12345"
        except InvalidArgument as e:
            refused.append(str(e))
            job.key_state = b"1234"

    Worker(q, process).run(drain=True)
    assert "this one has 5" in refused[0]
    with q.transaction(key="k") as tx:
        assert tx.key_state == b"1234"


def test_a_bad_send_can_be_caught_in_another_process_as_in_a_thread(make: Any) -> None:
    q = make()
    q.send(b"", key="k")
    Worker(q, handlers.catches_a_bad_send, executor="process", concurrency=1, keys=["k"]).run(drain=True)
    assert [m.body for m in q.peek("out")] == [b"a body must be bytes-like, not str"]


@pytest.mark.parametrize("happened", [False, True])
def test_what_a_job_ran_is_not_lost_where_the_answer_of_the_commit_was(tmp_path: Path, happened: bool) -> None:
    """Only the handler can repeat it: it runs again, unless the first one turns out to have happened."""
    with strictq.open(tmp_path / "queue", config=QueueConfig(**AT_ONCE)) as q, ExitStack() as stack:
        q.app_schema("CREATE TABLE app_t (a INTEGER) STRICT")
        q.send(b"", key="k")
        attempts: list[int] = []

        def process(job: Job) -> None:
            attempts.append(job.attempt)
            if job.attempt == 1:
                stack.enter_context(commit_fails(q, happened=happened))
            job.run(lambda db: db.execute("INSERT INTO app_t VALUES (1)"))
            job.send(b"", key="out")

        Worker(q, process, keys=["k"]).run(drain=True)
        assert q.query("SELECT a FROM app_t") == [(1,)]
        assert q.explain("out").depth == 1
        assert q.status("k", 1).state == "resolved"
        assert attempts == ([1] if happened else [1, 2])


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_what_a_job_sends_inherits_the_headers_that_are_named(make: Any, executor: Any) -> None:
    q = make()
    q.send(b"", key="k", headers={"request-id": "r-1", "tenant": "t", "other": "x"}, size_hint=3.0, process_seconds=0.5)
    Worker(
        q, handlers.sends_with_headers, executor=executor, concurrency=1, keys=["k"], propagate=["request-id", "tenant", "absent"]
    ).run(drain=True)
    assert [(m.body, m.headers) for m in q.peek("out")] == [
        (b"plain", {"request-id": "r-1", "tenant": "t"}),
        (b'"json"', {"request-id": "r-1", "tenant": "t"}),
        (b"own", {"request-id": "mine", "tenant": "t", "own": "1"}),
        (b"3.0 None 0.5", {"request-id": "r-1", "tenant": "t"}),
    ]


def test_nothing_is_inherited_unless_it_is_named(q: Queue) -> None:
    q.send(b"", key="k", headers={"request-id": "r-1"})
    Worker(q, handlers.sends_with_headers, concurrency=1, keys=["k"]).run(drain=True)
    assert [m.headers for m in q.peek("out")] == [{}, {}, {"request-id": "mine", "own": "1"}, {}]


def test_each_job_of_a_batch_hands_on_its_own(q: Queue) -> None:
    q.send_many([strictq.Message(b"", key="k", headers={"request-id": f"r-{n}"}) for n in range(3)])

    def process(jobs: list[Job]) -> None:
        for job in jobs:
            job.send(b"", key="out")

    Worker(q, process_batch=process, keys=["k"], propagate=iter(["request-id"])).run(drain=True)
    assert [m.headers for m in q.peek("out")] == [{"request-id": f"r-{n}"} for n in range(3)]


@pytest.mark.parametrize("names", ["request-id", 7, [""], [None]])
def test_headers_to_hand_on_are_names(q: Queue, names: Any) -> None:
    with pytest.raises(InvalidArgument, match="header"):
        Worker(q, print, propagate=names)


@pytest.mark.parametrize("headers", [7, {"a": 1}])
def test_headers_that_are_none_are_refused_as_ever(q: Queue, headers: Any) -> None:
    q.send(b"", key="k", headers={"request-id": "r-1"})

    def process(job: Job) -> None:
        with pytest.raises(InvalidArgument, match="headers must map str to str"):
            job.send(b"", key="out", headers=headers)

    Worker(q, process, propagate=["request-id"]).run(drain=True)
    assert q.stats().acks == 1
