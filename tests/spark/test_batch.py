"""A queue as a table: pending and dead messages, not leased."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strictq
from strictq import Message, Queue
from strictq.history._records import key_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@pytest.fixture
def q(queue_path: str) -> Iterator[Queue]:
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
    with pytest.raises(Exception, match="the option state must be pending or dead or history, not 'done'"):
        table(spark, q, state="done").collect()
    with pytest.raises(Exception, match="there is no queue at"):
        spark.read.format("strictq").option("path", f"{q.path}/nowhere").load().collect()


# ---- some columns


def chosen(spark: SparkSession, q: Queue, schema: str | StructType, **options: str) -> DataFrame:
    return spark.read.format("strictq").options(path=q.path, **options).schema(schema).load()


def test_the_columns_that_a_schema_names(spark: SparkSession, q: Queue) -> None:
    q.send_many([Message(b"%d" % n, key=f"k{n % 7}", headers={"n": str(n)} if n % 2 else None) for n in range(70)])
    q.send(b"x" * 5000, "big")
    every = table(spark, q)
    for schema in (
        "key STRING, body BINARY", "body STRING", "headers MAP<STRING, STRING>, seq BIGINT", "enqueued_at TIMESTAMP",
        "id BIGINT, attempt INT, shard INT, key STRING",
    ):  # fmt: skip
        df = chosen(spark, q, schema)
        rows, wanted = df.collect(), every.select(*df.columns)
        if dict(df.dtypes).get("body") == "string":
            wanted = wanted.selectExpr(*(f"CAST({name} AS STRING)" if name == "body" else name for name in df.columns))
        assert sorted(map(str, rows)) == sorted(map(str, wanted.collect())), schema
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW chosen (key STRING, seq BIGINT) USING strictq OPTIONS (path '{q.path}')")
    assert spark.sql("SELECT max(seq) AS last FROM chosen WHERE key = 'k3'").collect()[0].last == 10
    spark.catalog.dropTempView("chosen")


def test_the_type_of_the_column_key_says_what_keys_are(spark: SparkSession, q: Queue) -> None:
    q.send(b"\xff", 7)
    q.send(b"\xff", -8)
    assert sorted(r.key for r in chosen(spark, q, "key BIGINT").collect()) == [-8, 7]
    assert [r.body for r in chosen(spark, q, "body BINARY").collect()] == [b"\xff"] * 2, "whatever the keys are"
    with pytest.raises(Exception, match="does not fit keyType=binary"):
        chosen(spark, q, "key BINARY").collect()
    assert sorted(r.key for r in chosen(spark, q, "key BINARY", keyType="stored").collect()) == [b"i-8", b"i7"]
    with pytest.raises(Exception, match=r"a body is not UTF-8: b'\\xff'"):
        chosen(spark, q, "body STRING").collect()
    from pyspark.sql.types import StructType

    with pytest.raises(Exception, match="the schema has no columns"):
        chosen(spark, q, StructType([])).collect()


def test_columns_of_dead_letters_and_of_the_history(spark: SparkSession, q: Queue) -> None:
    q.configure(history="bodies")
    q.send_many([Message(b"%d" % n, key=f"k{n}") for n in range(4)])
    q.reject("k1", 1, "why not")
    q.ack_many(q.receive(10))
    assert [tuple(r) for r in chosen(spark, q, "reason STRING, body STRING", state="dead").collect()] == [("why not", "1")]
    done = chosen(spark, q, "outcome STRING, body STRING, key STRING", state="history").collect()
    assert sorted(map(tuple, done)) == [("acked", "0", "k0"), ("acked", "2", "k2"), ("acked", "3", "k3"), ("rejected", "1", "k1")]
    assert chosen(spark, q, "key STRING").collect() == []


def keep_records(q: Queue, count: int) -> None:
    """Messages of keys of all kinds that ended in several ways."""
    q.configure(history="bodies", keyless="random")
    kinds: list[Any] = ["a", 7, b"\xff", None]
    q.send_many([Message(b"%d" % n, key=kinds[n % len(kinds)]) for n in range(count)])
    while ds := q.receive(7):
        ds[0].reject("no")
        q.ack_many(ds[1:])


def test_what_is_finished(spark: SparkSession, q: Queue) -> None:
    assert table(spark, q, state="history").collect() == []
    keep_records(q, 100)
    df = table(spark, q, state="history", messagesPerPartition=9)
    rows = {(r.shard, r.n): r for r in df.collect()}
    records = [r for shard in range(q.shards) for r in q.history(shard=shard, limit=1000)]
    assert rows.keys() == {(r.shard, r.n) for r in records}
    assert len(rows) == 100
    for r in records:
        row = rows[r.shard, r.n]
        assert (row.seq, row.id, row.outcome, row.attempts, row.size, row.body) == (
            r.seq, r.id, r.outcome, r.attempts, r.size, r.body,
        )  # fmt: skip
        assert (row.key, row.key_type) == key_columns(r.key)
        assert abs(row.done_at.timestamp() - r.done_at) < 0.001
    assert df.rdd.getNumPartitions() >= 100 // 9
    q.purge(history=True)
    assert df.collect() == [], "planned anew each time"


def test_the_history_of_a_queue_has_the_columns_of_an_export(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    from strictq.history import export_history

    keep_records(q, 20)
    export_history(q, tmp_path / "out")
    exported, live = spark.read.parquet(str(tmp_path / "out")), table(spark, q, state="history")
    assert exported.dtypes == live.dtypes
    assert sorted(exported.collect()) == sorted(live.collect())


def test_the_history_has_no_key_type_to_choose_and_is_no_stream(spark: SparkSession, q: Queue) -> None:
    with pytest.raises(Exception, match="leave keyType out"):
        table(spark, q, state="history", keyType="int").collect()
    with pytest.raises(Exception, match="a stream reads what is pending"):
        stream = spark.readStream.format("strictq").options(path=q.path, consumer="etl", state="history").load()
        stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


def test_some_keys_alone(spark: SparkSession, q: Queue) -> None:
    q.send_many([Message(b"%d" % n, key=f"k{n % 7}") for n in range(70)])
    q.send(b"int", 3)
    q.reject("k2", 1, "no")
    rows = table(spark, q, keys='["k2", "k5", "nobody", "k5"]').collect()
    assert {r.key for r in rows} == {"k2", "k5"}
    assert sorted(int(r.body) for r in rows) == [n for n in range(70) if n % 7 in (2, 5) and n != 2]
    assert [r.body for r in table(spark, q, keys="[3]", keyType="int").collect()] == [b"int"]
    assert [(r.key, r.seq) for r in table(spark, q, keys='["k1", "k2"]', state="dead").collect()] == [("k2", 1)]
    assert table(spark, q, keys='["nobody"]').count() == 0
    for options, match in (
        ({"keys": "k1,k2"}, "must be a JSON list of keys"),
        ({"keys": "[1]"}, "must be a JSON list of keys"),
        ({"keys": '["x"]', "keyType": "stored"}, "with string or int keys"),
        ({"keys": '["x"]', "state": "history"}, "with string or int keys"),
    ):
        with pytest.raises(Exception, match=match):
            table(spark, q, **options)


def test_headers_may_be_left_out(spark: SparkSession, q: Queue) -> None:
    q.send(b"x", "k", headers={"a": "1"})
    assert table(spark, q, includeHeaders="true").columns == table(spark, q).columns
    df = table(spark, q, includeHeaders="false")
    assert df.columns == [name for name in table(spark, q).columns if name != "headers"]
    assert [(r.key, bytes(r.body)) for r in df.collect()] == [("k", b"x")]
    with pytest.raises(Exception, match="includeHeaders must be true or false, not 'yes'"):
        table(spark, q, includeHeaders="yes")
