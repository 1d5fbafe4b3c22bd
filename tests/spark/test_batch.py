"""A queue as a table: pending and dead messages, not leased."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import strictq
from strictq import Message, Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def q(queue_path: str) -> Iterator[Queue]:
    """A queue of two shards."""
    with strictq.open(queue_path, shards=2, durability="process") as q:
        yield q


def table(spark: SparkSession, q: Queue, **options: object) -> DataFrame:
    reader = spark.read.format("strictq").option("path", q.path)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def test_what_is_pending(spark: SparkSession, q: Queue) -> None:
    q.send_many([Message(b"%d" % n, key=f"k{n % 7}", headers={"n": str(n)}) for n in range(70)])
    q.send(b"x" * 5000, "big")
    q.send(b"late", "late", delay=100.0)
    q.receive(3)
    df = table(spark, q, messagesPerPartition=10)
    rows: list[Any] = df.collect()
    assert len(rows) == 72
    assert sorted(int(r.body) for r in rows if r.key[0] == "k") == list(range(70))
    assert all(r.headers == {"n": r.body.decode()} for r in rows if r.key[0] == "k")
    assert {r.attempt for r in rows} == {0}
    q.ack_many(q.receive(1000))
    assert df.count() == q.stats().depth, "planned anew each time"
    assert q.consumers() == []


def test_what_is_dead(spark: SparkSession, q: Queue) -> None:
    q.send_many([Message(b"%d" % n, key=f"k{n}") for n in range(4)])
    q.reject("k1", 1, "why not")
    q.reject("k2", 1, "no")
    rows = table(spark, q, state="dead").orderBy("key").collect()
    assert [(r.key, r.seq, r.body, r.kind, r.reason) for r in rows] == [
        ("k1", 1, b"1", "rejected", "why not"), ("k2", 1, b"2", "rejected", "no"),
    ]  # fmt: skip
    assert rows[0].died_at >= rows[0].enqueued_at


def test_an_empty_queue_and_wrong_options(spark: SparkSession, q: Queue) -> None:
    assert table(spark, q).collect() == []
    q.send(b"x", 7)
    with pytest.raises(Exception, match="does not fit keyType=string"):
        table(spark, q).collect()
    with pytest.raises(Exception, match="the option state must be pending or dead, not 'done'"):
        table(spark, q, state="done").collect()
    with pytest.raises(Exception, match="there is no queue at"):
        spark.read.format("strictq").option("path", f"{q.path}/nowhere").load().collect()
