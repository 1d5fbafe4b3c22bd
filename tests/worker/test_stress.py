"""Workers in processes, killed at any moment, with handlers that fail, hang and die at random: every rule is checked."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Worker
from tests.support.campaign import Campaign, tally
from tests.support.history import Event, Invoke
from tests.support.running import PATIENCE_SECONDS, until
from tests.worker import worker_process


class Workers(Campaign):
    """A campaign whose processes are workers."""

    pids: set[int]
    dead: set[int]
    kinds: tuple[str, ...] = ("plain", "async", "process")

    def start(self, **options: Any) -> None:
        self._started += 1
        kind = options.get("kind") or self.kinds[self._started % len(self.kinds)]
        self.run(worker_process.work, self.queue, self.histories, self.seed * 100 + self._started, kind)
        self.pids.add(self.workers[-1].pid)

    def tend(self, processes: int, seconds: float, *, any_process: bool = False) -> None:
        """Keep so many at work for so long; those that a handler killed are replaced, and some are killed from here."""
        chance = random.Random(self.seed)
        for _ in range(processes):
            self.start()
        for worker in self.workers:
            until(lambda w=worker: self.written(w) > 4000 or w.exitcode is not None, "a worker to begin")
        end = time.monotonic() + seconds
        # Then quietly, until handlers in processes of their own had their part: on a busy machine they take long to start.
        while (disturb := time.monotonic() < end) or (
            not any_process and not self.makers() - self.pids and time.monotonic() < end + PATIENCE_SECONDS
        ):
            time.sleep(chance.uniform(0.05, 0.3))
            for worker in [w for w in self.workers if w.exitcode is not None]:
                assert worker.exitcode == -9, self.logs()
                self.dead.add(worker.pid)
                self.workers.remove(worker)
                self.start()
            if not disturb:
                continue
            victim = chance.choice(self.workers)
            if chance.random() < 0.2:
                self.kill(victim)
                self.start()
            elif chance.random() < 0.1:
                self.freeze(victim)

    def makers(self) -> set[int]:
        """The processes in which handlers ran that had effects."""
        with strictq.open(self.queue, read_only=True) as q:
            return {int(effect[1:].partition("-")[0], 16) for (effect,) in q.query("SELECT effect FROM app_effects")}

    def killed(self, events: list[Event]) -> dict[int, int]:
        """All that did not end by themselves: their handlers' processes may keep the leases for longer."""
        caller = {event.call: event.process for event in events if isinstance(event, Invoke)}
        last: dict[int, int] = {}
        for event in events:
            process = caller[event.call]
            last[process] = max(last.get(process, 0), event.at)
        return {worker: at for worker, at in last.items() if worker in self.dead}

    def kill(self, worker: ForkServerProcess) -> None:
        super().kill(worker)
        self.dead.add(worker.pid)

    def end(self) -> None:
        workers = list(self.workers)
        for worker in workers:
            worker.terminate()
        self.finish((0, -9, -15))  # -15: it had not yet begun
        self.dead |= {w.pid for w in workers if w.exitcode == -9}


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Workers]:
    campaign = Workers(tmp_path, lease=0.5)
    campaign.pids = set()
    campaign.dead = set()
    yield campaign
    campaign.abandon()


@pytest.mark.in_turn
@pytest.mark.parametrize("shards", [1, 2])
def test_processes_that_fail_hang_and_die(campaign: Workers, shards: int) -> None:
    campaign.shards, campaign.seed = shards, shards
    campaign.create()
    campaign.tend(3, 3.0)
    campaign.end()
    counts = tally(campaign.settle())
    for verb in ("send", "receive", "ack", "start", "transact", "nack"):
        assert counts[verb] > 5, counts
    assert campaign.makers() & campaign.pids, "handlers in threads and tasks"
    assert campaign.makers() - campaign.pids, "handlers in processes of their own"


@pytest.mark.in_turn
@pytest.mark.parametrize("shards", [1, 2])
def test_batches_that_fail_in_part_and_as_a_whole(campaign: Workers, shards: int) -> None:
    campaign.shards, campaign.seed, campaign.kinds = shards, shards + 10, ("batch", "async batch")
    campaign.create()
    campaign.tend(3, 3.0, any_process=True)
    campaign.end()
    counts = tally(campaign.settle())
    for verb in ("send", "receive", "ack", "start", "transact", "nack", "reject"):
        assert counts[verb] > 5, counts


def test_a_message_that_kills_its_process_ends_as_poison_and_its_neighbours_do_not(tmp_path: Path) -> None:
    """The first process ran others, too, so its death is charged to none. The next ones run it alone, and are charged to it."""
    path = tmp_path / "queue"
    config = strictq.QueueConfig(max_attempts=3, lease_seconds=0.3)
    with strictq.open(path, durability="process", config=config) as q:
        for n in range(30):
            q.send(b"kill" if n == 3 else b"fine", key=n % 10)
    program = (
        "import sys, strictq, os\n"
        "from strictq import Worker\n"
        "def process(job):\n"
        "    if job.body == b'kill': os.kill(os.getpid(), 9)\n"
        "with strictq.open(sys.argv[1]) as q: Worker(q, process, concurrency=1).run()\n"
    )
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", program, str(path)], timeout=PATIENCE_SECONDS)
        assert done.returncode == -9
    with strictq.open(path) as q:
        seen: list[int] = []
        worker = Worker(q, lambda job: seen.append(job.attempt))
        until(lambda: _drained(q, seen), "the leases of the dead to end")
        assert worker.stats().acked == 0
        (dead,) = q.dead_letters()
        assert (dead.body, dead.kind, dead.attempts) == (b"kill", "poison", 3)
        assert q.stats().acks == 29


def _drained(q: strictq.Queue, seen: list[int]) -> bool:
    Worker(q, lambda job: seen.append(job.attempt)).run(drain=True)
    return q.stats().depth == 0
