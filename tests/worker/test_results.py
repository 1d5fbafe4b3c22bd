"""Results: a worker's handlers leave outputs, and senders wait for them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import strictq
from strictq import Message, Queue, Reject, Worker
from tests.worker import handlers
from tests.worker.conftest import Make

KEPT: dict[str, Any] = {"output_seconds": 600.0}


def says(job: Any) -> None:
    job.output(f"{job.body.decode()} done")


async def says_async(job: Any) -> None:
    job.output(f"{job.body.decode()} done")


def says_in_batch(jobs: list[Any]) -> None:
    for job in jobs:
        if job.seq % 2 or job.body == b"last":
            job.output(f"{job.body.decode()} done")


def says_and_sends(job: Any) -> None:
    job.send(b"", key="out")
    job.output(f"{job.body.decode()} done")


def workers(q: Queue, keys: list[str]) -> dict[str, Worker]:
    return {
        "plain": Worker(q, says, keys=keys),
        "async": Worker(q, says_async, keys=keys),
        "prepare": Worker(q, says, lambda job: job.body, keys=keys),
        "effects": Worker(q, says_and_sends, keys=keys),
        "process": Worker(q, handlers.says_the_body, executor="process", concurrency=1, keys=keys),
    }


@pytest.mark.parametrize("kind", ["plain", "async", "prepare", "effects", "process"])
def test_every_kind_of_worker_keeps_outputs(make: Make, kind: str) -> None:
    q = make(**KEPT, keyless="random")
    receipts = q.send_many([Message(b"%d" % n, key=f"k{n % 3}") for n in range(9)])
    workers(q, ["k0", "k1", "k2"])[kind].run(drain=True)
    assert [q.output(r) for r in receipts] == [f"{n} done" for n in range(9)]
    assert q.check() == []


def test_a_batch_keeps_the_output_of_each_message(make: Make) -> None:
    q = make(**KEPT, history="records")
    receipts = q.send_many([Message(b"%d" % n, key="k") for n in range(1, 6)] + [Message(b"last", key="l")])
    worker = Worker(q, process_batch=says_in_batch)
    worker.run(drain=True)
    assert [q.output(r) for r in receipts] == ["1 done", None, "3 done", None, "5 done", "last done"]
    assert worker.stats().acked == 6
    records = [r for shard in range(q.shards) for r in q.history(shard=shard)]
    assert {r.output for r in records} == {"1 done", "3 done", "5 done", "last done", None}


def test_a_retry_leaves_the_output_of_the_last_attempt(make: Make) -> None:
    q = make(**KEPT)
    receipt = q.send(b"", key="k")

    def second_time(job: Any) -> None:
        job.output(f"attempt {job.attempt}")
        if job.attempt == 1:
            raise ValueError

    Worker(q, second_time).run(drain=True)
    assert q.output(receipt) == "attempt 2"


def test_lone_surrogates_in_an_output_fail_nothing(make: Make) -> None:
    q = make(**KEPT, history="records")
    receipt = q.send(b"", key="k")
    Worker(q, lambda job: job.output("a\ud800b")).run(drain=True)
    assert q.output(receipt) == "a?b"


# ---- waiting


@contextmanager
def serving(worker: Worker) -> Iterator[None]:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def test_a_sender_waits_for_its_result(make: Make) -> None:
    q = make(**KEPT, keyless="random")
    with serving(Worker(q, says)):
        for n in range(5):
            assert q.output(q.send(b"%d" % n, key="k"), wait=60.0) == f"{n} done"
        assert q.output(q.send(b"keyless"), wait=None) == "keyless done"


def test_a_wait_ends_with_the_message(make: Make) -> None:
    """Although no output will come: the message leaves none, or becomes a dead letter."""
    q = make(**KEPT)

    def silent(job: Any) -> None:
        if job.body == b"reject":
            raise Reject("no")

    with serving(Worker(q, silent)):
        assert q.output(q.send(b"", key="k"), wait=None) is None
        receipt = q.send(b"reject", key="k")
        assert q.output(receipt, wait=None) is None
    assert q.status("k", receipt.seq).state == "dead"


def test_a_wait_is_bounded(make: Make) -> None:
    q = make(**KEPT)
    receipt = q.send(b"", key="k")
    began = time.monotonic()
    assert q.output(receipt, wait=0.05) is None
    assert time.monotonic() - began >= 0.05


def test_waiting_awaited(make: Make, tmp_path: Path) -> None:
    async def run() -> None:
        async with strictq.open_async(tmp_path / "async", config=strictq.QueueConfig(**KEPT)) as aq:
            assert await aq.output(await aq.send(b"", key="other"), wait=0.01) is None
            worker = Worker(aq, says_async, keys=["k"])
            async with anyio.create_task_group() as group:
                group.start_soon(worker.serve)
                for n in range(3):
                    assert await aq.output(await aq.send(b"%d" % n, key="k"), wait=60.0) == f"{n} done"
                worker.stop()

    anyio.run(run)


def test_results_cross_processes(tmp_path: Path) -> None:
    code = """
import sys, strictq
with strictq.open(sys.argv[1]) as q:
    strictq.Worker(q, lambda job: job.output(job.body.decode().upper())).run()
"""
    path = tmp_path / "q"
    with strictq.open(path, config=strictq.QueueConfig(**KEPT)) as q:
        receipt = q.send(b"first", key="k")
        process = subprocess.Popen([sys.executable, "-c", code, str(path)])
        try:
            assert q.output(receipt, wait=60.0) == "FIRST"
            with strictq.open(path, read_only=True) as reader:
                assert reader.output(q.send(b"second", key="k"), wait=60.0) == "SECOND"
        finally:
            process.kill()
            process.wait()
        assert q.check() == []
