"""Processes of a stream that die: drivers, runners and workers are killed with -9, and the ledger stays whole."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import strictq
from strictq import Queue
from tests.support.ledgers import Ledger, send_chains
from tests.support.running import until
from tests.support.sparks import run_driver

from .streams import END_SECONDS, load, run, start

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession

KEYS = [f"k{n}" for n in range(30)]
SENT = 10


def open_queue(place: Path) -> Queue:
    return strictq.open(place / "queue", shards=2, durability="process")


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    """A queue of two shards with 300 messages."""
    with open_queue(tmp_path) as q:
        send_chains(q, KEYS, SENT)
        yield q


def finish(spark: SparkSession, q: Queue, place: Path) -> None:
    """Start the query again where it was, and compare everything."""
    ledger = Ledger(place / "ledger")
    run(load(spark, q.path, maxMessagesPerTrigger=100), place / "checkpoint", ledger)
    ledger.require(dict.fromkeys(KEYS, SENT))
    assert q.stats().depth == 0
    assert q.check() == []


@pytest.mark.in_turn
@pytest.mark.parametrize("when", ["sink", "ack", "last"])
def test_the_driver_is_killed(
    spark: SparkSession, q: Queue, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, when: str
) -> None:
    home = tmp_path_factory.mktemp("s")  # a short name: Spark's sockets lie in it, and their paths have at most 107 bytes
    ended, said = run_driver(tmp_path, home, "stream", when, tmp_path)
    assert ended == -signal.SIGKILL, said
    held = q.stats().in_flight
    assert held == (300 if when == "ack" else 100), "what the batch has stays leased"
    others = q.receive(1000)
    assert len(others) == q.stats().depth - held
    for d in others:
        if d.seq == 1:
            d.nack(delay=0.0)
    finish(spark, q, tmp_path)


def holder_of(q: Queue) -> int:
    """The process that holds the consumer: it has the lock's file open."""
    (lock,) = Path(q.path).glob("consumer-*")
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if any(os.path.samefile(fd, lock) for fd in (process / "fd").iterdir() if fd.exists()):
                    return int(process.name)
            except OSError:
                continue
    raise AssertionError("not in use")


def test_the_source_runner_is_killed(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    df = load(spark, q.path, maxMessagesPerTrigger=100)
    query = start(df, tmp_path / "checkpoint", ledger, processingTime="10 milliseconds")
    try:
        until(lambda: len(ledger.batches()) >= 2)
        os.kill(holder_of(q), signal.SIGKILL)
        with pytest.raises(Exception, match=r"."):
            query.awaitTermination(END_SECONDS)
    finally:
        query.stop()
    finish(spark, q, tmp_path)


def test_the_source_runner_is_killed_while_it_acks_and_records_ahead(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    """Both run in a thread behind a large batch. Kills at different moments of a batch hit them."""
    many, most, kills = [f"m{n}" for n in range(30_000)], 6_000, 2
    send_chains(q, many, 1)
    ledger = Ledger(tmp_path / "ledger")
    for turn in range(1, kills + 1):
        query = start(
            load(spark, q.path, maxMessagesPerTrigger=most), tmp_path / "checkpoint", ledger, processingTime="0 seconds"
        )
        try:
            begun = len(ledger.batches())
            until(lambda begun=begun: len(ledger.batches()) > begun)  # type: ignore[misc]
            time.sleep(0.1 * turn)
            os.kill(holder_of(q), signal.SIGKILL)
            with pytest.raises(Exception, match=r"."):
                query.awaitTermination(END_SECONDS)
        finally:
            query.stop()
        assert q.stats().in_flight <= 3 * most, "a batch that is not acked yet, the one in work, and the one ahead"
        assert q.check() == []
    run(load(spark, q.path, maxMessagesPerTrigger=most), tmp_path / "checkpoint", ledger)
    ledger.require({**dict.fromkeys(KEYS, SENT), **dict.fromkeys(many, 1)})
    assert q.stats().depth == 0
    assert q.check() == []


def test_a_worker_is_killed_in_a_task(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    marker = tmp_path / "killed"

    def die(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for n, batch in enumerate(batches):
            if n == 0 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    ledger = Ledger(tmp_path / "ledger")
    df = load(spark, q.path, maxMessagesPerTrigger=100)
    run(df.mapInArrow(die, df.schema), tmp_path / "checkpoint", ledger)
    assert marker.exists(), "and Spark ran the task again"
    finish(spark, q, tmp_path)
