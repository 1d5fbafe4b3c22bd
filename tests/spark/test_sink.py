"""The sink: rows become messages, in order, once for each job id or micro-batch; what can't is refused whole."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strictq
from strictq import QueueConfig
from tests.support.sparks import assert_ledger, entries, ledger, staged, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., str]:
    """Makes the queue of this test, and gives its path."""

    def make_queue(shards: int = 2, **settings: Any) -> str:
        path = str(tmp_path / "test.strictq")
        strictq.open(path, shards=shards, durability="process", config=QueueConfig(**settings)).close()
        return path

    return make_queue


def save(df: DataFrame, path: str, **options: str) -> None:
    df.write.format("strictq").options(**{"path": path, "jobId": "job", **options}).mode("append").save()


def depth(path: str) -> int:
    with strictq.open(path) as q:
        return q.stats().depth


# ---- batches


def test_a_job_is_written_in_order_and_once(spark: SparkSession, make: Callable[..., str]) -> None:
    path = make()
    df = ledger(spark, 5_000).repartition(5)  # which throws the order of every key over
    write(df, path, "first")
    write(df, path, "first")
    assert depth(path) == 5_000
    write(ledger(spark, 500, start=5_000), path, "second")
    assert staged(path) == []
    assert_ledger(path, 5_500)


def test_a_job_id_with_other_rows_is_refused(spark: SparkSession, make: Callable[..., str]) -> None:
    path = make()
    write(ledger(spark, 100), path, "job")
    with pytest.raises(Exception, match="was written with 100 messages, and is now repeated with 101; nothing more was written"):
        write(ledger(spark, 101), path, "job")
    write(ledger(spark, 101), path, "job", onMismatch="skip")
    assert staged(path) == []
    assert_ledger(path, 100)


def test_no_rows_are_no_job(spark: SparkSession, make: Callable[..., str]) -> None:
    path = make()
    write(ledger(spark, 0), path, "job")
    write(ledger(spark, 10), path, "job")
    assert_ledger(path, 10)


@pytest.mark.parametrize(
    ("type_of_key", "expected"),
    [("STRING", ["0", "1", "2"]), ("BINARY", [b"0", b"1", b"2"]), ("BIGINT", [0, 1, 2]), ("TINYINT", [0, 1, 2])],
)
def test_types_of_keys(spark: SparkSession, make: Callable[..., str], type_of_key: str, expected: list[Any]) -> None:
    path = make()
    key = "CAST(CAST(id AS STRING) AS BINARY)" if type_of_key == "BINARY" else f"CAST(id AS {type_of_key})"
    save(spark.range(3).selectExpr(f"{key} AS key", "CAST(id AS STRING) AS body"), path)
    with strictq.open(path) as q:
        assert sorted((d.key, d.body) for d in q.receive()) == [(k, b"%d" % n) for n, k in enumerate(expected)]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "order",
    [
        "id",
        "CAST(id AS DOUBLE)",
        "lpad(id, 5, '0')",
        "CAST(id AS DECIMAL(20, 3))",
        "timestamp_micros(id)",
        "date_add('2026-01-01', int(id))",
    ],
)
def test_the_order_column_may_have_any_type_with_an_order(spark: SparkSession, make: Callable[..., str], order: str) -> None:
    path = make()
    df = spark.range(0, 200, 1, 4).selectExpr("'k' AS key", "CAST(id AS STRING) AS body", f"{order} AS at").repartition(3)
    save(df, path, orderBy="at")
    with strictq.open(path) as q:
        assert [int(d.body) for d in q.receive(500)] == list(range(200))


def test_without_an_order_column_the_rows_order_counts(spark: SparkSession, make: Callable[..., str]) -> None:
    path = make()
    save(spark.range(0, 300, 1, 3).selectExpr("CAST(id % 3 AS STRING) AS key", "CAST(id AS STRING) AS body"), path)
    with strictq.open(path) as q:
        ds = q.receive(500)
        for key in "012":
            assert [int(d.body) for d in ds if d.key == key] == list(range(int(key), 300, 3))


def test_options_of_messages(spark: SparkSession, make: Callable[..., str]) -> None:
    path = make()
    df = spark.sql(
        """SELECT * FROM VALUES
        ('a', '1', map('kind', 'x'), 5.0D, 1.0D, 2, 0.5, NULL, NULL),
        ('a', '2', NULL, NULL, NULL, NULL, NULL, 'once', NULL),
        ('a', '3', NULL, NULL, NULL, NULL, NULL, 'once', NULL),
        ('b', '4', map(), NULL, NULL, NULL, NULL, NULL, 3600)
        AS t (key, body, headers, size_hint, prepare_seconds, process_seconds, ttl, dedup_id, delay)"""
    ).drop("ttl")
    save(df.coalesce(1), path)
    with strictq.open(path) as q:
        first, second = q.receive()
        assert (first.body, first.headers, first.size_hint, first.prepare_seconds, first.process_seconds) == (
            b"1", {"kind": "x"}, 5.0, 1.0, 2.0,
        )  # fmt: skip
        assert (second.body, second.headers, second.size_hint) == (b"2", {}, None)
        assert q.explain("b").state == "delayed"
        assert q.check() == []


def test_large_bodies(spark: SparkSession, make: Callable[..., str]) -> None:
    path = make()
    save(spark.range(6).selectExpr("'k' AS key", "repeat(CAST(id AS STRING), int(pow(10, id))) AS body"), path)
    with strictq.open(path) as q:
        assert sorted(len(d.body) for d in q.receive()) == [10**n for n in range(6)]
        assert q.check() == []


def test_rows_without_a_key_where_the_queue_allows_them(spark: SparkSession, make: Callable[..., str]) -> None:
    path = make(keyless="round_robin", keyless_lanes=8)
    df = spark.range(100).selectExpr(
        "IF(id % 2 = 0, NULL, 'k') AS key", "CAST(id AS STRING) AS body", "IF(id < 50, CONCAT('d', id % 10), NULL) AS dedup_id"
    )
    save(df, path)
    with strictq.open(path) as q:
        ds = q.receive(1_000)
        assert len([d for d in ds if d.key is None]) == 25 + 5
        assert len([d for d in ds if d.key == "k"]) == 25 + 5
        assert q.check() == []


def test_several_parts_and_shards(spark: SparkSession, make: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed in this process, so that parts can be made small."""
    from strictq._store.api import Staging, Token, new_run
    from strictq.spark import _apply, _sink_rows, _staged, sink

    path = make(shards=3)
    monkeypatch.setattr(_staged.Cut.__new__, "__defaults__", (70, 1_000_000))
    place = Staging(Path(path), "job a")
    files = []
    run = new_run()
    for table in ledger(spark, 2_000, keys=30).toArrow().to_reader(max_chunksize=300):
        output = sink.Output(place, 0, run)
        output.write(_sink_rows.staged(table, _sink_rows.Layout("s", (), "n", False, 1000)))
        output.close()
        assert output.name is not None
        files.append(_apply.StagedFile(output.name, output.rows))
    with strictq.open(path) as q:
        _apply.apply(q, Token.job("a"), files, skip_others=False)
        assert {s.depth for s in q.stats().shards} != {0}
    assert staged(path) == []
    assert_ledger(path, 2_000, keys=30)


# ---- streams


def start(df: DataFrame, path: str, checkpoint: Path, **options: str) -> Any:
    writer = df.writeStream.format("strictq").options(**{"path": path, "orderBy": "n", **options})
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    return query


def test_a_stream_is_written_once_over_restarts(spark: SparkSession, make: Callable[..., str], tmp_path: Path) -> None:
    path = make()
    source = str(tmp_path / "source")
    for n in range(4):
        ledger(spark, 250, start=250 * n, partitions=1).write.mode("append").parquet(source)
    schema = ledger(spark, 0).schema
    df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(source).repartition(3)
    start(df, path, tmp_path / "checkpoint")
    start(df, path, tmp_path / "checkpoint")
    ledger(spark, 100, start=1_000, partitions=1).write.mode("append").parquet(source)
    start(df, path, tmp_path / "checkpoint")
    assert staged(path) == []
    found = entries(path)
    assert sorted(n for _, n in found) == list(range(1_100))
    assert found != sorted(found, key=lambda entry: entry[1])  # files come in no order, and batches follow them


# ---- what is refused before the first row

GOOD = "SELECT 'k' AS key, 'b' AS body"


@pytest.mark.parametrize(
    ("sql", "options", "match"),
    [
        ("SELECT 'b' AS body", {}, "the column key is missing"),
        ("SELECT 'k' AS key", {}, "the column body is missing"),
        ("SELECT 'k' AS key, 'b' AS body, 1 AS seq", {}, "the column seq is not part of a message"),
        ("SELECT 'k' AS key, 1 AS body", {}, "the column body must be binary or string, not int"),
        ("SELECT 1.5D AS key, 'b' AS body", {}, "the column key must be binary or string or .*, not double"),
        ("SELECT 'k' AS key, 'b' AS body, 'soon' AS delay", {}, "the column delay must be .*, not string"),
        ("SELECT 'k' AS key, 'b' AS body, map('a', 1) AS headers", {}, "the column headers must be map of string to string"),
        (GOOD, {"orderBy": "n"}, "the column n of option orderBy is missing"),
        ("SELECT 'k' AS key, 'b' AS body, array(1) AS n", {"orderBy": "n"}, "the column n must be .*, not array"),
        (GOOD, {"jobId": ""}, "the option jobId is missing"),
        (GOOD, {"jobId": "x" * 300}, "jobId must have 1 to 256 characters"),
        (GOOD, {"onMismatch": "ignore"}, "onMismatch must be fail or skip"),
        (GOOD, {"orderedBy": "n"}, r"there is no option orderedby \(did you mean orderBy\?\)"),
        (GOOD, {"topic": "t"}, r"there is no option topic \(use the option path\)"),
        (GOOD, {"consumer": "c"}, r"there is no option consumer of df\.write \(it is an option of spark\.readStream\)"),
        (GOOD, {"path": "s3a://bucket/q"}, "a queue is on a local disk, not at s3a:"),
        (GOOD, {"path": ""}, "the option path is missing"),
        (GOOD, {"path": "/nowhere/at/all"}, "QueueNotFound: there is no queue at /nowhere/at/all"),
    ],
)  # fmt: skip
def test_what_can_never_work_is_refused_at_once(
    spark: SparkSession, make: Callable[..., str], sql: str, options: dict[str, str], match: str
) -> None:
    path = make()
    with pytest.raises(Exception, match=match):
        save(spark.sql(sql), **{"path": path, **options})
    assert depth(path) == 0
    assert staged(path) == []


@pytest.mark.parametrize("mode", ["overwrite", "error", "ignore"])
def test_only_appending_is_possible(spark: SparkSession, make: Callable[..., str], mode: str) -> None:
    path = make()
    with pytest.raises(Exception, match=r"can't be overwritten|cannot be written in the"):
        spark.sql(GOOD).write.format("strictq").options(path=path, jobId="a").mode(mode).save()
    assert depth(path) == 0


# ---- rows that are refused, with all that came with them


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ("'k' AS key, 'b' AS body, CAST('NaN' AS DOUBLE) AS n", "column n, key 'k': NULL or NaN"),
        ("NULL AS key, 'b' AS body, 1 AS n", "column key: NULL in row"),
        ("'' AS key, 'b' AS body, 1 AS n", "column key: an empty key in row"),
        ("repeat('k', 1025) AS key, 'b' AS body, 1 AS n", "column key: a key must be at most 1024 bytes"),
        ("'k' AS key, NULL AS body, 1 AS n", "column body, key 'k': NULL"),
        ("'k' AS key, repeat('x', 101) AS body, 1 AS n", "column body, key 'k': a body may have 100 bytes, this one has 101"),
    ],
)
def test_one_bad_row_refuses_the_batch(spark: SparkSession, make: Callable[..., str], bad: str, match: str) -> None:
    path = make(max_body_bytes=100)
    good = spark.range(0, 500, 1, 2).selectExpr("'good' AS key", "CAST(id AS STRING) AS body", "CAST(id AS DOUBLE) AS n")
    with pytest.raises(Exception, match=re.escape(match)):
        # One task: of several, one may still be at its file when the batch is given up, and that is swept later.
        save(good.union(spark.sql(f"SELECT {bad}")).coalesce(1), path, orderBy="n")
    assert depth(path) == 0
    assert staged(path) == []


def test_a_full_queue_takes_nothing_of_the_batch(spark: SparkSession, make: Callable[..., str]) -> None:
    path = make(max_depth=99)
    with pytest.raises(Exception, match=r"QueueFull: 100 messages more would bring .* over max_depth=99; none was written"):
        write(ledger(spark, 100), path, "a")  # it would never fit, so it waits for nothing
    assert depth(path) == 0
    assert staged(path) == []
    write(ledger(spark, 99), path, "a")
    assert_ledger(path, 99)


def test_a_batch_waits_for_room(spark: SparkSession, make: Callable[..., str]) -> None:
    path = make(max_depth=100)
    write(ledger(spark, 60), path, "a")
    with pytest.raises(Exception, match="over max_depth=100; none was written"):
        write(ledger(spark, 60, start=60), path, "b", roomWaitSeconds="0")
    got: list[int] = []

    def consume() -> None:
        with strictq.open(path) as q:
            while len(got) < 120 and (batch := q.receive(5, wait=60)):
                got.extend(d.seq for d in batch)
                q.ack_many(batch)

    consumer = threading.Thread(target=consume)
    consumer.start()
    write(ledger(spark, 60, start=60), path, "b")
    consumer.join()
    assert len(got) == 120
    assert depth(path) == 0


def test_a_batch_waits_for_the_rate_of_a_tenant(spark: SparkSession, make: Callable[..., str]) -> None:
    path = make(tenant_separator="/")
    limit(path, send_rate=0.01, burst=5)
    df = spark.range(0, 5, 1, 2).selectExpr("concat(if(id < 3, 'loud/', 'quiet/'), id) AS key", "'' AS body")
    save(df, path, jobId="a")
    with pytest.raises(Exception, match="Throttled: tenant 'loud' sends more than 0"):
        save(df, path, jobId="b", roomWaitSeconds="0")
    assert depth(path) == 5
    raised = threading.Timer(2, lambda: limit(path, send_rate=1000))
    raised.start()
    save(df, path, jobId="b")
    raised.join()
    assert depth(path) == 10


def limit(path: str, **limits: Any) -> None:
    with strictq.open(path) as q:
        q.limit("loud", **limits)
