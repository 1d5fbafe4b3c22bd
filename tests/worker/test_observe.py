"""Observers of a queue on which a worker runs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import strictq
from strictq import Observer, Queue, Worker, WorkerEvent
from strictq.worker import load
from tests.support.running import PATIENCE_SECONDS, until
from tests.worker.conftest import Make


class Recorder(Observer):
    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.stages: Counter[str] = Counter()

    def worker_event(self, event: WorkerEvent) -> None:
        self.kinds.append(event.kind)

    def duration(self, name: str, seconds: float, shard: int) -> None:
        assert seconds >= 0
        if name in ("prepare", "process"):
            assert shard == 0
            self.stages[name] += 1


def test_an_observer_sees_what_the_workers_own_hook_sees(q: Queue) -> None:
    q.send(b"", key="k")
    q.send(b"", key="l")
    seen = Recorder()
    own: list[WorkerEvent] = []
    with q.observe(seen):
        Worker(q, lambda job: None, lambda job: None, on_event=own.append, concurrency=1).run(drain=True)
    assert seen.kinds == [event.kind for event in own]
    assert Counter(seen.kinds) == dict.fromkeys(("leased", "preparing", "prepared", "processing", "acked"), 2)
    assert seen.stages == {"prepare": 2, "process": 2}


def test_handlers_that_fail_are_timed_too_and_say_where(make: Make) -> None:
    q = make(max_attempts=1)
    q.send(b"", key="k")
    seen = Recorder()
    own: list[WorkerEvent] = []

    def fail(job: object) -> None:
        raise RuntimeError("boom")

    with q.observe(seen):
        Worker(q, fail, on_event=own.append).run(drain=True)
    assert seen.stages == {"process": 1}
    (poison,) = [event for event in own if event.kind == "poison"]
    assert poison.where.startswith(__file__)
    assert poison.where.endswith(" in fail")


def test_an_observer_of_events_alone_makes_no_worker_talk(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    from strictq.worker import state

    class Quiet(Observer):
        def event(self, event: strictq.Event) -> None:
            pass

    made: list[str] = []
    monkeypatch.setattr(state, "WorkerEvent", lambda kind, *rest: made.append(kind))
    q.send(b"", key="k")
    with q.observe(Quiet()):
        Worker(q, lambda job: None).run(drain=True)
    assert made == []
    assert q.stats().acks == 1


def test_an_observer_that_fails_does_no_harm(q: Queue) -> None:
    class Broken(Observer):
        def worker_event(self, event: WorkerEvent) -> None:
            raise RuntimeError

        def duration(self, name: str, seconds: float, shard: int) -> None:
            raise RuntimeError

        def count(self, name: str, n: int, shard: int) -> None:
            raise RuntimeError

    for n in range(5):
        q.send(b"", key=n)
    with q.observe(Broken()):
        worker = Worker(q, lambda job: None, lambda job: None)
        worker.run(drain=True)
    assert worker.stats().acked == q.stats().acks == 5


def test_the_busy_share_is_of_all_slots(q: Queue) -> None:
    """One of two slots is at work all the time: about half, less what starting takes."""
    for n in range(5):
        q.send(b"%d" % n, key="k")
    worker = Worker(q, lambda job: time.sleep(0.05), concurrency=2)
    assert worker.stats().busy_ratio == 0.0
    worker.run(drain=True)
    share = worker.stats().busy_ratio
    assert 0.0 < share <= 0.5
    time.sleep(0.01)
    assert worker.stats().busy_ratio == share, "it stays as it was at the end"


def test_a_handler_that_still_runs_is_busy(q: Queue) -> None:
    q.send(b"", key="k")
    begun, go_on = threading.Event(), threading.Event()

    def process(job: object) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    worker = Worker(q, process, concurrency=1)
    thread = threading.Thread(target=worker.run, kwargs={"drain": True})
    thread.start()
    assert begun.wait(PATIENCE_SECONDS)
    first = worker.stats().busy_ratio
    time.sleep(0.01)
    assert worker.stats().busy_ratio > first > 0.0
    go_on.set()
    thread.join()


def test_how_busy_a_worker_is_is_seen_while_it_runs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "REPORT_SECONDS", 0.02)
    q = make()
    q.send_many([strictq.Message(b"", key=n) for n in range(2)])
    go_on = threading.Event()
    worker = Worker(q, lambda job: go_on.wait(PATIENCE_SECONDS), concurrency=4, consumer="printer")
    assert (q.stats().workers, q.stats().busy_ratio) == ((), None)
    thread = threading.Thread(target=worker.run, kwargs={"drain": True})
    thread.start()
    until(lambda: any(w.busy_ratio == 0.5 for w in q.stats().workers))
    found = q.stats()
    go_on.set()
    thread.join()
    (one,) = found.workers
    assert (one.consumer, one.concurrency, one.running) == ("printer", 4, 2)
    assert found.busy_ratio == one.busy_ratio
    assert found.to_dict()["workers"] == [one.to_dict()]
    assert q.stats().workers == ()


def test_a_worker_that_is_killed_is_not_busy(tmp_path: Path) -> None:
    code = """
import os, sys, strictq
from strictq.worker import load
load.REPORT_SECONDS = 0.02
with strictq.open(sys.argv[1]) as q:
    q.send(b"", key="k")
    strictq.Worker(q, lambda job: sys.stdin.read()).run()
"""
    with strictq.open(tmp_path / "q") as q:
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "q")], stdin=subprocess.PIPE)
        until(lambda: q.stats().workers)
        process.kill()
        process.communicate()
        assert (q.stats().workers, q.stats().busy_ratio) == ((), None)
        assert not list((tmp_path / "q").glob("live-*")), "who looks removes what the dead left"
