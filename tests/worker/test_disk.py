"""A worker on a disk that fails: nothing is lost, nothing happens twice, and it goes on when there is room again."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Message, Worker
from strictq.testing import FakeClock
from tests.support.faults import FOREVER, Plan
from tests.support.injection import impatient
from tests.support.powercut import Journal, recording
from tests.support.powercut_run import PLACE
from tests.support.running import PATIENCE_SECONDS, fast_directory, until

LANES, EACH = 5, 20


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with fast_directory(tmp_path) as directory, pytest.MonkeyPatch.context() as patch:
        (directory / "work").mkdir()
        with recording(directory / "work", FakeClock()) as journal:
            impatient(patch, 0.02)
            yield journal


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["full", "write", "sync"])
def test_a_disk_that_fails_for_a_while(journal: Journal, fault: str) -> None:
    clock = FakeClock()
    seen: dict[Any, list[int]] = defaultdict(list)
    half, stuck = threading.Event(), Plan(fault, 1, FOREVER)

    def process(job: Any) -> None:
        if job.key == 0 and job.seq == EACH // 2 and not half.is_set():  # once: it may come again after the disk works again
            journal.fault = stuck
            half.set()
        seen[job.key].append(job.seq)
        job.execute("INSERT INTO app_seen VALUES (?, ?)", (job.key, job.seq))

    with strictq.open(Path(journal.root, PLACE), durability="full", clock=clock) as q:
        q.app_schema("CREATE TABLE app_seen (lane INTEGER, n INTEGER) STRICT")
        q.configure(max_attempts=None)
        q.send_many([Message(b"", key=n % LANES) for n in range(LANES * EACH)])
        worker = Worker(q, process, concurrency=3)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            assert half.wait(PATIENCE_SECONDS)
            until(lambda: stuck.fired >= 3, "the disk to fail")
        finally:
            journal.fault = None

        def over() -> bool:
            clock.advance(0.2)  # a receive of unknown outcome may have leased what nobody holds: that ends by itself
            return q.stats().depth == 0

        until(over, "the worker to go on")
        worker.stop()

        def ended() -> bool:
            clock.advance(0.2)  # an ack of unknown outcome is tried again
            return not thread.is_alive()

        until(ended, "the worker to end")
        assert sorted(q.query("SELECT * FROM app_seen")) == [(k, n) for k in range(LANES) for n in range(1, EACH + 1)]
        assert q.check() == []
    for seqs in seen.values():
        assert list(dict.fromkeys(seqs)) == list(range(1, EACH + 1)), "first looks ascend, whatever had to be repeated"
