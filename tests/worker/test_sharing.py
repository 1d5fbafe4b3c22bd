"""Lanes that a worker holds and has not started go to consumers that are idle: in this process, and in others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Message, Queue, Worker
from strictq.worker.estimates import Estimates
from strictq.worker.limits import Limits
from strictq.worker.prefetch import Buffer
from strictq.worker.renewal import Leases
from strictq.worker.schedule import Board
from strictq.worker.source import LocalSource
from strictq.worker.state import State
from tests.support.running import PATIENCE_SECONDS, ROOT, until


class Busy:
    """A worker with one slot, whose first handler does not come back until it may; it holds more lanes than that one."""

    def __init__(self, q: Queue, **options: Any) -> None:
        self.q = q
        self.go = threading.Event()
        self.done: list[tuple[Any, int, int]] = []
        self.events: list[Any] = []
        self.worker = Worker(q, self.process, concurrency=1, on_event=self.events.append, **options)
        self.thread = threading.Thread(target=self.worker.run)

    def process(self, job: Any) -> None:
        self.go.wait(PATIENCE_SECONDS)
        self.done.append((job.key, job.seq, job.attempt))

    def __enter__(self) -> Busy:
        self.thread.start()
        until(lambda: self.worker.stats().running == 1 and self.worker.stats().buffered > 0, "the busy worker")
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self.worker.stop()
        self.thread.join()


def fill(q: Queue, lanes: int = 8, each: int = 1) -> None:
    q.send_many([Message(b"", key=key) for key in range(lanes) for _ in range(each)])


def test_an_idle_receive_is_given_what_another_worker_has_not_started(make: Any) -> None:
    q = make()
    fill(q)
    with Busy(q) as busy:
        got: list[Any] = []

        def collect() -> None:
            while len(got) < 7:
                for d in q.receive(10, wait=60.0):
                    got.append((d.key, d.seq, d.attempt))
                    d.ack()

        thread = threading.Thread(target=collect)
        thread.start()
        thread.join(PATIENCE_SECONDS)
        assert len(got) == 7
        assert busy.worker.stats().running == 1
    assert sorted(key for key, _, _ in [*got, *busy.done]) == list(range(8))
    assert {attempt for _, _, attempt in got} == {1}, "what was handed back was charged to nobody"
    assert q.stats().redeliveries == 0
    assert {e.key for e in busy.events if e.kind == "released"} == {key for key, _, _ in got}


def test_an_idle_async_receive_as_well(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue", durability="process") as q:
        fill(q, lanes=4)
        with Busy(q):

            async def collect() -> int:
                got = 0
                async with strictq.open_async(tmp_path / "queue") as aq:
                    while got < 3:
                        for d in await aq.receive(10, wait=60.0):
                            await d.ack()
                            got += 1
                return got

            assert asyncio.run(asyncio.wait_for(collect(), 60.0)) == 3


@pytest.mark.parametrize("prepares", [False, True])
def test_an_idle_worker_is_given_half_and_half_again(make: Any, prepares: bool) -> None:
    q = make()
    fill(q, each=3)
    prepare: Callable[[Any], Any] | None = (lambda job: job.seq) if prepares else None
    with Busy(q, prepare=prepare) as busy:
        seen: list[tuple[Any, int, int]] = []
        other = Worker(q, lambda job: seen.append((job.key, job.seq, job.attempt)), prepare, concurrency=2)
        thread = threading.Thread(target=other.run)
        thread.start()
        until(lambda: len(seen) == 21, "the idle worker to have all lanes but one")
        other.stop()
        thread.join()
    assert {key for key, _, _ in seen} | {key for key, _, _ in busy.done} == set(range(8))
    for key in {key for key, _, _ in seen}:
        assert [(seq, attempt) for k, seq, attempt in seen if k == key] == [(1, 1), (2, 1), (3, 1)]
    assert q.check() == []


PROGRAM = """
import itertools, os, sys, strictq
from strictq import Worker
with strictq.open(sys.argv[1], create=False) as q:
    done = itertools.count(1)
    def process(job):
        assert job.attempt == 1
        os.write(1, b"%d %d\\n" % (job.key, job.seq))
        if next(done) == int(sys.argv[2]):
            worker.stop()
    worker = Worker(q, process)
    worker.run()
"""


@pytest.mark.slow
def test_another_process_is_given_what_this_one_has_not_started(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with strictq.open(path, durability="process") as q:
        fill(q, lanes=8, each=2)
        with Busy(q) as busy:
            command = [sys.executable, "-c", PROGRAM, str(path), "14"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            assert done.returncode == 0, done.stderr
            assert busy.done == []
        lines = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
        keys = {key for key, _ in lines}
        assert len(keys) == 7
        assert sorted(lines) == sorted((key, seq) for key in keys for seq in (1, 2))
        assert q.stats().redeliveries == 0


def test_nobody_idle_nothing_handed_back(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(q)
    with Busy(q) as busy:
        looked = []
        waker = type(q._storage.waker)
        whole = waker.is_another_idle

        def look(self: Any, name: int) -> bool:
            looked.append(whole(self, name))
            return looked[-1]

        monkeypatch.setattr(waker, "is_another_idle", look)
        until(lambda: len(looked) > 5, "the worker to look")
        assert not any(looked)
        assert busy.worker.stats().buffered == 7


def test_a_receive_for_some_keys_is_not_helped_by_others(q: Queue) -> None:
    fill(q)
    with Busy(q) as busy:
        assert q.receive(1, wait=0.3, keys=["another"]) == []
        assert busy.worker.stats().buffered == 7


@pytest.mark.parametrize(("seconds", "left"), [(0.001, 49), (0.01, 29), (1.0, 24)])
def test_quick_work_is_not_handed_back(q: Queue, seconds: float, left: int) -> None:
    """What this worker will have done in a moment would only be delayed: half of what lies behind that goes."""
    fill(q, lanes=50)
    board = Board(Limits(concurrency=1, batch=50), Estimates(given_process=seconds))
    board.add(q.receive(50, per_key=1), 0.0)
    state = State(LocalSource(q, clock=lambda: 100.0), board, board.estimates)
    buffer = Buffer(state, Leases(state))
    board.take_work()
    assert not buffer.share(100.0), "nobody is idle"
    q._storage.waker.show_idle()
    assert buffer.share(100.0) is (left < 49)
    assert board.buffered == left
    assert not buffer.share(100.0), "not again at once"
    assert q.stats().in_flight == left + 1


def test_lanes_at_work_or_being_prepared_are_not_parted_with(q: Queue) -> None:
    for key in "abcde":
        q.send(b"", key=key, process_seconds=1.0, prepare_seconds=0.1)
    board = Board(Limits(concurrency=1, prepares=True, prepared_max=3), Estimates())
    board.add(q.receive(5, per_key=1), time.monotonic() - q._storage.now() / 1e6)
    now = time.monotonic()
    board.plan(now)
    first = board.take_prepare(now)
    assert first is not None
    assert [lane.jobs[0].key for lane in board.unstarted()] == ["e", "d", "c", "b"], "the last one leased first"
    board.prepared(first, None, None, 0, now)
    pairs, starting = board.take_work()
    assert (pairs, [job.key for job in starting]) == ([], ["a"])
    assert [lane.jobs[0].key for lane in board.unstarted()] == ["e", "d", "c", "b"]


def test_a_worker_with_fewer_lanes_than_slots_keeps_them(q: Queue) -> None:
    fill(q, lanes=3)
    board = Board(Limits(concurrency=4, prepares=True), Estimates())
    board.add(q.receive(5, per_key=1), 0.0)
    assert board.unstarted() == []
