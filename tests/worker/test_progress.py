"""`job.progress`: what running handlers report, as any process sees it."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import InvalidArgument, Message, Progress, Queue, Receipt, Worker
from strictq._store.api import RunningHandlers
from strictq.worker import load
from tests.support.command import in_process, json_lines
from tests.worker import handlers
from tests.worker.conftest import Make, running


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PROGRESS_SECONDS", 0.02)


def told(q: Queue, *message: Any) -> tuple[float, str] | None:
    found = q.status(*message).progress
    return None if found is None else (found.fraction, found.text)


def until(q: Queue, wanted: tuple[float, str] | None, *message: Any) -> None:
    end = time.monotonic() + 60
    while (found := told(q, *message)) != wanted:
        assert time.monotonic() < end, (found, wanted)
        time.sleep(0.01)


class Steps:
    """A handler that reports one step after another, each once the test allows it."""

    def __init__(self) -> None:
        self.go_on = threading.Semaphore(0)

    def report(self, job: Any) -> None:
        for n in range(1, 3):
            job.progress(n / 4, f"page {n} of 4")
            assert self.go_on.acquire(timeout=60)

    async def report_async(self, job: Any) -> None:
        import asyncio

        await asyncio.to_thread(self.report, job)

    def report_first(self, jobs: list[Any]) -> None:
        self.report(jobs[0])


def workers(q: Queue, steps: Steps) -> Iterator[Worker]:
    yield Worker(q, steps.report)
    yield Worker(q, steps.report_async)
    yield Worker(q, process_batch=steps.report_first)
    yield Worker(q, lambda job: None, steps.report)


@pytest.mark.parametrize("which", range(4), ids=["plain", "async", "batch", "prepare"])
def test_every_kind_of_handler_reports_its_newest_progress(make: Make, which: int) -> None:
    q, steps = make(), Steps()
    q.send(b"", key="k")
    before = time.time()
    with running(list(workers(q, steps))[which]):
        until(q, (0.25, "page 1 of 4"), "k", 1)
        steps.go_on.release()
        until(q, (0.5, "page 2 of 4"), "k", 1)
        found = q.status("k", 1).progress
        assert isinstance(found, Progress)
        assert before <= found.at <= time.time()
        assert q.explain("k").progress == found
        assert q.status("k", 1).to_dict()["progress"] == {"fraction": 0.5, "text": "page 2 of 4", "at": found.at}
        steps.go_on.release()
    assert told(q, "k", 1) is None
    assert q.explain("k").progress is None


def test_handlers_in_processes_report_too(make: Make, tmp_path: Path) -> None:
    q, done = make(), tmp_path / "done"
    q.send(str(done).encode(), key="k")
    with running(Worker(q, handlers.reports, executor="process", concurrency=1)):
        until(q, (0.75, "waits"), "k", 1)  # the newest one, although more were made than are sent
        done.touch()
    assert told(q, "k", 1) is None


def test_a_failed_attempt_leaves_no_progress(make: Make) -> None:
    q, go_on = make(retry_delay_seconds=60.0, retry_delay_max_seconds=60.0), threading.Event()

    def fails(job: Any) -> None:
        job.progress(0.4)
        go_on.wait(60)
        raise ValueError

    q.send_many([Message(b"", key="k")] * 2)
    with running(Worker(q, fails)):
        until(q, (0.4, ""), "k", 1)
        assert told(q, "k", 2) is None
        go_on.set()
    assert (q.status("k", 1).state, told(q, "k", 1)) == ("delayed", None)


def test_keyless_messages_have_progress(make: Make) -> None:
    q, steps = make(keyless="random", shards=2), Steps()
    receipt: Receipt = q.send(b"")
    with running(Worker(q, steps.report)):
        until(q, (0.25, "page 1 of 4"), receipt)
        steps.go_on.release(2)


def test_each_handler_has_its_own(make: Make) -> None:
    q, go_on = make(shards=2), threading.Event()

    def reports(job: Any) -> None:
        job.progress(1 / job.key, str(job.key))
        go_on.wait(60)

    q.send_many([Message(b"", key=n) for n in range(1, 5)])
    with running(Worker(q, reports, concurrency=4)):
        for n in range(1, 5):
            until(q, (1 / n, str(n)), n, 1)
        go_on.set()


def test_a_killed_worker_has_no_progress(tmp_path: Path) -> None:
    code = """
import sys, strictq
def report(job):
    job.progress(0.5, "half of it")
    sys.stdin.read()
with strictq.open(sys.argv[1]) as q:
    q.send(b"", key="k")
    strictq.Worker(q, report).run()
"""
    path = tmp_path / "q"
    with strictq.open(path) as q:
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE)
        end = time.monotonic() + 60
        while not q.stats().depth:
            assert time.monotonic() < end
            time.sleep(0.01)
        until(q, (0.5, "half of it"), "k", 1)
        with strictq.open(path, read_only=True) as reader:
            assert told(reader, "k", 1) == (0.5, "half of it")
        (found,) = json_lines(in_process("status", path, "k", 1, "--json").stdout)
        assert found["progress"] | {"at": 0} == {"fraction": 0.5, "text": "half of it", "at": 0}
        for words in (("status", path, "k", 1), ("explain", path, "k")):
            assert "progress 50%, half of it, reported " in " ".join(in_process(*words).stdout.split())
        process.kill()
        process.communicate()
        assert told(q, "k", 1) is None
        assert len(list(path.glob("progress-*"))) == 1
        notice = q._storage.notice(RunningHandlers)
        notice.put(RunningHandlers({}))  # the next report removes what the dead left
        assert len(list(path.glob("progress-*"))) == 1
        notice.remove()


# ---- the reports


def reported(q: Queue) -> Callable[[float], int]:
    """Returns how many writes a worker has made, after its keeper looked at this time."""
    job = type("Job", (), {"_progress": (0.0, "", 0.0), "_delivery": q.receive()[0]})()
    board = type("Board", (), {"lock": threading.Lock(), "running": {job}, "preparing": set()})
    writes: list[object] = []
    source = type("Source", (), {"report": lambda _, kind, found: writes.append(found)})()
    report = load.ProgressReport(type("State", (), {"source": source, "board": board}))  # type: ignore[arg-type]

    def look(now: float) -> int:
        job._progress = (0.5, "", now)
        report.tell(now)
        return len(writes)

    return look


def test_a_worker_writes_four_times_a_second_at_most(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PROGRESS_SECONDS", 0.25)
    q.send(b"", key="k")
    look = reported(q)
    for n in range(1, 101):
        look(n / 100)
    assert look(1.0) == 4


def test_a_full_disk_is_logged_once_and_ignored(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    q = make()
    monkeypatch.setattr(type(q._storage.notice(RunningHandlers)), "put", full)
    q.send(b"", key="k")

    def reports(job: Any) -> None:
        for n in range(10):
            job.progress(n / 10)
            time.sleep(0.03)

    with caplog.at_level(logging.WARNING, "strictq.worker"):
        worker = Worker(q, reports)
        worker.run(drain=True)
    assert worker.stats().acked == 1
    assert [r.message for r in caplog.records] == [
        "the progress of handlers could not be reported to other processes: [Errno 28] No space left on device"
    ]


@pytest.mark.parametrize(
    "given",
    [(-0.1,), (1.1,), (float("nan"),), (True,), ("0.5",), (None,), (0.5, None), (0.5, b""), (0.5, "x" * 141), (10**400,)],
    ids=str,
)
def test_bad_input_is_refused(q: Queue, given: tuple[Any, ...]) -> None:
    seen: list[Any] = []

    def reports(job: Any) -> None:
        job.progress(0.5, "before")
        with pytest.raises(InvalidArgument, match=r"^(fraction|text) "):
            job.progress(*given)
        seen.append(job._progress[:2])

    q.send(b"", key="k")
    Worker(q, reports).run(drain=True)
    assert seen == [(0.5, "before")]
