"""A worker's acks share a commit with its receives, and its starts are not synced: the effects of power cuts and kill -9."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import strictq
from strictq import QueueConfig, Worker, WorkerEvent
from strictq.testing import FakeClock
from tests.power.test_receiving import boot, syncs
from tests.support.internals import store_of
from tests.support.powercut import Journal, quiet, recording
from tests.support.powercut_disk import Platter, put_out
from tests.support.powercut_run import PLACE
from tests.support.running import PATIENCE_SECONDS

KEYS = [f"k{n}" for n in range(4)]


def test_no_power_cut_brings_an_acked_message_or_a_token_back(place: Path) -> None:
    clock = FakeClock()
    known: list[tuple[int, WorkerEvent]] = []
    """The worker's events, and how much was written by then."""
    root = place / "first"
    root.mkdir()
    with recording(root, clock) as journal:
        queue = strictq.open(journal.root / PLACE, clock=clock, shards=2)

        def note(event: WorkerEvent) -> None:
            known.append((len(journal.ops), event))

        for n in range(6):  # the worker runs out of messages in between
            queue.send_many([strictq.Message(b"%d" % n, key=key) for key in KEYS for _ in range(1 + n % 3)])
            Worker(queue, lambda _job: None, batch=4, low_water=3, concurrency=2, on_event=note).run(drain=True)
        journal.recording = False
        store_of(queue).die()
    clock.reboot()
    pick = random.Random(1)
    platter, done = Platter(journal.start), 0
    seen: set[int] = set()
    for n, cut_at in enumerate(sorted(pick.sample(range(known[0][0], len(journal.ops)), 40))):
        for op in journal.ops[done:cut_at]:
            platter.follow(op)
        done = cut_at
        image = place / f"image-{n}"
        put_out(platter.cut(pick.choice(("none", "some", "all")), pick), image, pick)
        before = [event for at, event in known if at <= cut_at]
        acked = {(event.key, event.seq) for event in before if event.kind == "acked"}
        last = {event.key: event.token for event in before}
        with quiet(clock), strictq.open(image / PLACE, clock=clock) as q:
            for d in q.receive(1000):
                assert (d.key, d.seq) not in acked
                assert d.token > last.get(d.key, 0)
                assert d.attempt in (1, 2)
            assert q.check() == []
        seen.add(len(acked))
    assert len(seen) > 5


def test_a_start_is_not_synced_unless_the_message_was_there_at_the_boot(place: Path) -> None:
    clock = FakeClock()
    counted: list[tuple[bytes, int]] = []

    def works(queue: strictq.Queue, journal: Journal) -> None:
        def process(job: strictq.Job) -> None:
            counted.append((job.body, syncs(journal)))

        Worker(queue, process, concurrency=1).run(drain=True)

    def sends_and_works(queue: strictq.Queue, journal: Journal) -> None:
        queue.send(b"new", "k")
        before = syncs(journal)
        works(queue, journal)
        assert counted == [(b"new", before)]
        assert syncs(journal) > before  # the ack
        queue.send(b"old", "other")

    image = boot(place / "first", clock, sends_and_works)
    counted.clear()

    def works_on_the_old_one(queue: strictq.Queue, journal: Journal) -> None:
        queue.send(b"", "first")  # the first write after a boot is synced anyway
        before = syncs(journal)
        works(queue, journal)
        assert dict(counted)[b"old"] > before

    boot(image, clock, works_on_the_old_one)


def test_a_message_that_brings_the_machine_down_in_a_worker_is_found(place: Path) -> None:
    """Each power cut after the first one charges it."""
    clock = FakeClock()
    attempts: list[int] = []

    def dies(queue: strictq.Queue, journal: Journal) -> None:
        if not attempts:
            queue.send(b"panic", "k")

        def process(job: strictq.Job) -> None:
            attempts.append(job.attempt)
            journal.recording = False
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Worker(queue, process, concurrency=1).run(drain=True)

    root = place / "boot"
    for _ in range(4):
        root = boot(root, clock, dies)
    assert attempts == [1, 1, 2, 3]


KILLED = """
import os, signal, sys, strictq
def process(job):
    os.kill(os.getpid(), signal.SIGKILL)
with strictq.open(sys.argv[1]) as q:
    strictq.Worker(q, process, concurrency=1).run()
"""


def test_kill_9_forgets_no_start(tmp_path: Path) -> None:
    config = QueueConfig(max_attempts=None, lease_seconds=1.0)
    with strictq.open(tmp_path / "queue", config=config) as q:
        q.send(b"", "k")
    for attempt in range(1, 4):
        ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "queue")], check=False, timeout=PATIENCE_SECONDS)
        assert ended.returncode == -signal.SIGKILL
        with strictq.open(tmp_path / "queue") as q:
            (d,) = q.receive(1, wait=10.0)
            assert d.attempt == attempt + 1
            d.lease.release()
