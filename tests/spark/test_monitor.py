"""What the driver tells of its queries, and that it disturbs none."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import strictq
from strictq import QueryReport, Queue
from strictq._client import consumers
from strictq.spark._ack_listener import QUERIES_MAX, Monitor, Read
from tests.support.ledgers import Ledger, send_chains
from tests.support.recorded_batches import holder
from tests.support.running import until

from .streams import load, run, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = [f"k{n}" for n in range(10)]


class Clock:
    """Seconds since 1970, as the test says."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def q(queue_path: str) -> Iterator[Queue]:
    with strictq.open(queue_path, shards=2, durability="process") as q:
        yield q


@pytest.fixture
def clock() -> Clock:
    return Clock()


def told(q: Queue) -> QueryReport:
    (c,) = q.consumers()
    assert c.query is not None
    return c.query


def read(q: Queue, messages: int) -> list[Read]:
    return [Read(q.path, q.queue_id, "etl", messages)]


# ---- without Spark


def test_rates_are_of_the_last_minute(q: Queue, clock: Clock) -> None:
    holder(q)
    monitor = Monitor(clock)
    monitor.batch("run", "query", "orders", 0, 2.0, read(q, 100))
    assert told(q) == QueryReport("orders", "query", "running", 0, 100, 2.0, 50.0, clock.now)
    clock.now += 8.0
    monitor.batch("run", "query", "orders", 1, 1.0, read(q, 300))
    assert (told(q).batch, told(q).messages, told(q).messages_per_second) == (1, 300, 40.0)
    clock.now += 30.0
    monitor.idle("run")
    assert (told(q).at, told(q).messages_per_second) == (clock.now, 10.0)
    clock.now += 25.0
    monitor.idle("run")
    assert told(q).messages_per_second == pytest.approx(300 / 56.0), "the first batch is more than a minute old"
    clock.now += 60.0
    monitor.idle("run")
    assert (told(q).messages_per_second, told(q).batch, told(q).messages) == (0.0, 1, 300)
    monitor.end("run", None)
    assert told(q).state == "ended"


def test_a_batch_of_more_than_a_minute_has_a_rate(q: Queue, clock: Clock) -> None:
    holder(q)
    monitor = Monitor(clock)
    monitor.batch("run", "query", None, 0, 200.0, read(q, 1000))
    assert told(q).messages_per_second == 5.0


def test_an_empty_batch_is_a_sign_of_life(q: Queue, clock: Clock) -> None:
    holder(q)
    monitor = Monitor(clock)
    monitor.batch("run", "query", None, 0, 0.1, read(q, 0))
    assert (told(q).batch, told(q).messages, told(q).messages_per_second) == (0, 0, 0.0)
    monitor.batch("run", "query", None, 1, 1.0, read(q, 5))
    clock.now += 9.0
    monitor.batch("run", "query", None, 2, 0.1, read(q, 0))
    assert (told(q).batch, told(q).messages, told(q).at) == (1, 5, clock.now)


def test_what_it_can_not_write_it_says_once(q: Queue, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(clock)
    gone = [Read(str(tmp_path / "gone"), q.queue_id, "etl", 5)]
    with caplog.at_level(logging.WARNING, "strictq"):
        for n in range(3):
            monitor.batch("run", "query", None, n, 1.0, gone)
        monitor.idle("run")
        monitor.end("run", "it failed")
        monitor.end("run", "again")
        monitor.idle("nobody")
    assert len(caplog.records) == 1
    assert not (tmp_path / "gone").exists()


def test_it_forgets_runs_whose_end_was_never_reported(q: Queue, clock: Clock) -> None:
    monitor = Monitor(clock)
    for n in range(QUERIES_MAX + 5):
        monitor.batch(f"run-{n}", "query", None, 0, 1.0, [])
    assert len(monitor._runs) == QUERIES_MAX


# ---- with Spark


def test_a_query_is_seen_while_it_runs_and_after_its_end(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    send_chains(q, KEYS, 4)
    ledger = Ledger(tmp_path / "ledger")
    df = load(spark, q.path, maxMessagesPerTrigger=30)
    query = start(df, tmp_path / "checkpoint", ledger, processingTime="10 milliseconds")
    try:
        until(lambda: (c := q.consumers()[0] if q.consumers() else None) is not None and c.lag == 0 and c.query is not None)
        until(lambda: told(q).batch == 1)
        seen = told(q)
        assert (seen.state, seen.messages, seen.name, seen.id) == ("running", 10, None, str(query.id))
        assert seen.messages_per_second > 0.0
        assert seen.batch_seconds > 0.0
        assert abs(seen.at - time.time()) < 600
    finally:
        query.stop()
    until(lambda: told(q).state == "ended")
    send_chains(q, KEYS, 1, first=5)
    (c,) = q.consumers()
    assert c.lag == len(KEYS), "what comes after its end waits for it"
    assert (told(q).batch, told(q).messages) == (1, 10)
    ledger.require(dict.fromkeys(KEYS, 4))


def test_a_query_that_fails_says_why(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    send_chains(q, KEYS, 2)

    def write(df: DataFrame, batch: int) -> None:
        df.collect()
        if batch == 1:
            raise RuntimeError("the sink fails")

    df = load(spark, q.path, maxMessagesPerTrigger=15)
    with pytest.raises(Exception, match="the sink fails"):
        run(df, tmp_path / "checkpoint", write)
    until(lambda: bool(q.consumers()) and q.consumers()[0].query is not None and told(q).state == "failed")
    assert "the sink fails" in (told(q).error or "")
    assert (told(q).batch, q.consumers()[0].lag) == (0, 5)


def test_reports_that_can_not_be_written_fail_no_query(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    send_chains(q, KEYS, 2)
    file = consumers.report_of(Path(q.path), "etl")
    file.with_name(f"{file.name}.part").mkdir()
    ledger = Ledger(tmp_path / "ledger")
    run(load(spark, q.path, maxMessagesPerTrigger=15), tmp_path / "checkpoint", ledger)
    ledger.require(dict.fromkeys(KEYS, 2))
    until(lambda: q.stats().depth == 0)
    assert q.consumers()[0].query is None


@pytest.mark.parametrize(
    ("installed", "error", "warns"),
    [
        (False, "[X] TransformWithStateInPySpark driver worker exited unexpectedly (crashed)", True),
        (True, "[X] TransformWithStateInPySpark driver worker exited unexpectedly (crashed)", False),
        (False, "the sink fails", False),
        (False, None, False),
    ],
)
def test_a_stateful_query_without_protobuf_is_explained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, installed: bool, error: str | None, warns: bool
) -> None:
    """Spark says which process ended, and not why."""
    from strictq.spark import _ack_listener

    monkeypatch.setattr(_ack_listener, "has_protobuf", lambda: installed)
    event = SimpleNamespace(runId="r", exception=error)
    with caplog.at_level(logging.WARNING, "strictq"):
        _ack_listener.AckListener().onQueryTerminated(event)  # type: ignore[arg-type]
    assert ("pip install" in caplog.text) == warns
