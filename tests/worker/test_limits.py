"""What a worker holds, and what it does when the disk is full."""

from __future__ import annotations

import threading
import time
from itertools import count
from typing import Any

import pytest

import strictq
from strictq import Message, Queue, StoreBusy, StoreCorrupt, StoreFull, Worker
from tests.support.injection import refuse_writes
from tests.support.running import PATIENCE_SECONDS, until


def test_the_buffer_is_bounded_by_its_limits_and_not_by_the_lanes(q: Queue) -> None:
    q.send_many([Message(b"", key=n) for n in range(5_000)])
    go, most = threading.Event(), []

    def process(job: Any) -> None:
        go.wait(PATIENCE_SECONDS)

    worker = Worker(q, process, batch=50)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: worker.stats().running >= 8)
    for _ in range(20):
        stats = worker.stats()
        most.append(stats.buffered + stats.running)
        time.sleep(0.002)
    in_flight = q.stats().in_flight
    go.set()
    worker.stop()
    thread.join()
    assert max(most) <= 8 * 8 + 50
    assert in_flight <= 8 * 8 + 50


@pytest.mark.parametrize("shards", [1, 2])
def test_a_shard_that_breaks_stops_nobody_but_its_own_keys(make: Any, monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """With no other shard, run() says so; what it held there is given up, and what lies in the others is done."""
    q = make(shards=shards)
    q.send_many([Message(b"", key=n) for n in range(40) for _ in range(5)])
    there = q.stats().shards[0].depth
    broken, first = StoreCorrupt("shard 0 is damaged", shard=0), threading.Event()
    refuse_writes(monkeypatch, lambda shard: broken if shard == 0 and first.is_set() else None)

    def process(job: Any) -> None:
        if job._delivery.shard == 0:
            first.set()

    worker = Worker(q, process)
    if shards == 1:
        with pytest.raises(StoreCorrupt, match="damaged"):
            worker.run(drain=True)
    else:
        worker.run(drain=True)
        assert q.stats().shards[1].depth == 0
        assert worker.stats().acked >= 200 - there
    assert worker.stats().lost > 0
    assert worker.stats().running == 0


@pytest.mark.in_turn
@pytest.mark.parametrize("error", [StoreFull, StoreBusy])
def test_a_store_that_fails_for_a_while_loses_and_doubles_nothing(
    q: Queue, monkeypatch: pytest.MonkeyPatch, error: type[strictq.StoreError]
) -> None:
    """Acks, starts, receives and commits all fail at times; every effect is there once in the end."""
    q.app_schema("CREATE TABLE app_seen (lane INTEGER, n INTEGER) STRICT")
    q.send_many([Message(b"", key=n % 5) for n in range(100)])
    calls = count(1)
    refuse_writes(monkeypatch, lambda shard: error("for a while", shard=shard) if next(calls) % 7 == 3 else None)
    seen: dict[int, list[int]] = {n: [] for n in range(5)}

    def process(job: Any) -> None:
        if job.attempt == 1:
            seen[job.key].append(job.seq)
        if job.seq % 2:
            job.execute("INSERT INTO app_seen VALUES (?, ?)", (job.key, job.seq))

    worker = Worker(q, process)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: not q.stats().depth)
    worker.stop()
    thread.join()
    monkeypatch.undo()
    assert all(seqs == list(range(1, 21)) for seqs in seen.values())
    assert sorted(q.query("SELECT * FROM app_seen")) == [(k, n) for k in range(5) for n in range(1, 21, 2)]
    assert q.check() == []
