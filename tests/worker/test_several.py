"""One worker on several queues."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import strictq
from strictq import InvalidArgument, Job, Message, Queue, QueueClosed, Worker
from strictq.testing import awaited
from tests.support.queues import fill
from tests.support.running import until


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[list[Queue]]:
    with strictq.open(tmp_path / "one", durability="process") as one, strictq.open(":memory:") as two:
        yield [one, two]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_the_messages_of_all_of_them_are_handled_in_order(queues: list[Queue], kind: str) -> None:
    for q in queues:
        for key in "ab":
            fill(q, key, 5)
    seen: list[tuple[str, Any, int]] = []

    def plain(job: Job) -> None:
        seen.append((job.queue_path, job.key, job.seq))

    async def asynchronous(job: Job) -> None:
        await anyio.lowlevel.checkpoint()
        plain(job)

    worker = Worker(queues, plain if kind == "plain" else asynchronous)
    worker.run(drain=True)
    for q in queues:
        for key in "ab":
            assert [seq for path, k, seq in seen if (path, k) == (q.path, key)] == [1, 2, 3, 4, 5]
        assert q.stats().acks == 10
    assert worker.stats().acked == 20
    assert [w.stats().acked for w in worker.workers] == [10, 10]


def test_a_batch_is_of_one_queue(queues: list[Queue]) -> None:
    for q in queues:
        fill(q, "a", 5)
    batches: list[set[str]] = []
    Worker(queues, process_batch=lambda jobs: batches.append({job.queue_path for job in jobs})).run(drain=True)
    assert sorted(batches, key=str) == sorted([{q.path} for q in queues], key=str)


def test_async_queues_are_served_in_the_callers_loop(queues: list[Queue]) -> None:
    for q in queues:
        fill(q, "a", 3)
    loops = set()

    async def process(job: Job) -> None:
        loops.add(threading.get_ident())

    async def run() -> None:
        await Worker([awaited(q) for q in queues], process).serve(drain=True)

    anyio.run(run)
    assert loops == {threading.get_ident()}
    assert [q.stats().acks for q in queues] == [3, 3]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_when_one_fails_the_others_stop_and_the_error_is_raised(queues: list[Queue], kind: str) -> None:
    fill(queues[0], "a", 1)
    fill(queues[1], "a", 1)

    def plain(job: Job) -> None:
        if job.queue_path == ":memory:":
            queues[1].close()

    async def asynchronous(job: Job) -> None:
        plain(job)

    with pytest.raises(QueueClosed):
        Worker(queues, plain if kind == "plain" else asynchronous).run()
    assert queues[0].stats().in_flight == 0


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_may_end_the_program(queues: list[Queue], kind: str) -> None:
    fill(queues[1], "a", 1)

    def plain(job: Job) -> None:
        raise SystemExit(7)

    async def asynchronous(job: Job) -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit) as caught:
        Worker(queues, plain if kind == "plain" else asynchronous).run()
    assert caught.value.code == 7


@pytest.mark.parametrize(
    ("kind", "ending"), [("plain", SystemExit(3)), ("plain", KeyboardInterrupt()), ("async", SystemExit(3))], ids=repr
)
def test_no_queue_waits_longer_than_the_grace_for_its_handlers(queues: list[Queue], kind: str, ending: BaseException) -> None:
    for q in queues:
        q.send(b"", "a")
    runs, over = threading.Event(), threading.Event()

    def plain(job: Job) -> None:
        if job.queue_path == queues[0].path:
            assert runs.wait(10.0)
            raise ending
        runs.set()
        over.wait(60.0)

    async def asynchronous(job: Job) -> None:
        if job.queue_path == queues[1].path:
            runs.set()
            await anyio.sleep(60.0)
        await anyio.to_thread.run_sync(plain, job)

    worker = Worker(queues, plain if kind == "plain" else asynchronous)
    with pytest.raises(type(ending)):
        worker.run(grace_seconds=0.05)
    over.set()
    assert queues[1].status("a", 1).last_error == "TimeoutError: the worker stopped before the handler was done"
    assert not queues[0].leases()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_signal_stops_all_of_them(queues: list[Queue], kind: str) -> None:
    for q in queues:
        q.send(b"", "a")

    def plain(job: Job) -> None: ...

    async def asynchronous(job: Job) -> None: ...

    worker = Worker(queues, plain if kind == "plain" else asynchronous)

    def interrupt() -> None:
        until(lambda: worker.stats().acked == 2, "both queues to be worked on")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    worker.run()
    thread.join()
    assert worker.stats().acked == 2


@pytest.mark.parametrize("kind", ["plain", "async", "batch"])
def test_they_share_the_slots(queues: list[Queue], kind: str) -> None:
    for q in queues:
        q.send_many([Message(b"", key=n) for n in range(30)])
    lock, running, most = threading.Lock(), 0, 0

    def count(change: int) -> None:
        nonlocal running, most
        with lock:
            running += change
            most = max(most, running)

    def plain(_job: object) -> None:
        count(1)
        time.sleep(0.001)
        count(-1)

    async def asynchronous(_job: Job) -> None:
        count(1)
        await anyio.sleep(0.001)
        count(-1)

    options: dict[str, Any] = {"concurrency": 3, "learn": False}
    if kind == "batch":
        worker = Worker(queues, process_batch=plain, batch_max=2, **options)
    else:
        worker = Worker(queues, plain if kind == "plain" else asynchronous, **options)
    worker.run(drain=True)
    assert 1 <= most <= 3
    assert [q.stats().acks for q in queues] == [30, 30]


@pytest.mark.parametrize("weights", [None, [3, 1], [1, 4.5]])
def test_messages_start_in_proportion_to_the_weights(queues: list[Queue], weights: list[float] | None) -> None:
    for q in queues:
        q.send_many([Message(b"", key=n % 20) for n in range(100)])
    seen: list[int] = []

    def process(job: Job) -> None:
        if not seen:
            until(lambda: all(w._board.share.wants for w in worker.workers), "lanes of both queues to wait")
            seen.clear()
        seen.append([q.path for q in queues].index(job.queue_path))

    worker = Worker(queues, process, concurrency=1, learn=False, weights=weights)
    worker.run(drain=True)
    part = 0.5 if weights is None else weights[0] / sum(weights)
    assert seen[:60].count(0) == pytest.approx(60 * part, abs=8)
    assert len(seen) == 200


def test_a_quiet_queue_does_not_wait_for_a_deep_key_of_another(queues: list[Queue]) -> None:
    queues[0].send_many([Message(b"", key="deep")] * 64)
    seen: list[bool] = []

    def process(job: Job) -> None:
        if len(seen) == 1:
            queues[1].send(b"", key="quiet")
            until(lambda: worker.workers[1]._board.share.wants, "the quiet queue's lane to wait")
        seen.append(job.key == "quiet")
        if seen[-1] or len(seen) > 60:
            worker.stop()

    worker = Worker(queues, process, concurrency=1, learn=False)
    worker.run()
    assert seen.index(True) <= 4


@pytest.mark.parametrize("weights", [[1], [1, 0], [1, -1], [1, True], [1, float("nan")], [1, "1"], 2, [1, 1, 1]])
def test_wrong_weights_are_refused(queues: list[Queue], weights: Any) -> None:
    with pytest.raises(InvalidArgument, match="weight"):
        Worker(queues, print, weights=weights)


def test_weights_need_several_queues(queues: list[Queue]) -> None:
    with pytest.raises(InvalidArgument, match="weights are for several queues"):
        Worker(queues[0], print, weights=[1.0])


def test_no_queue_or_one_twice_is_refused(queues: list[Queue]) -> None:
    for bad in ([], [queues[0], queues[0]], [queues[0], "path"]):
        with pytest.raises(InvalidArgument):
            Worker(bad, print)  # type: ignore[arg-type]
