"""Writes to queues in foreachBatch: each batch of each query once, and no write is dropped in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strictq
from strictq import ConfigError
from strictq._store.api import Bulk, PlainRows, Size, StreamBatch, Token
from tests.spark import streams
from tests.support.sparks import assert_ledger, ledger, staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 30
FILES = 3


class Unplugged(Exception):
    """The end of a batch before Spark has recorded it."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """An empty queue of two shards."""
    place = str(tmp_path / "test.strictq")
    strictq.open(place, shards=2, durability="process").close()
    return place


def depth(path: str) -> int:
    with strictq.open(path, read_only=True) as q:
        return q.stats().depth


# ---- in Spark


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of batches of the same number of rows."""
    place = str(tmp_path / "source")
    for n in range(FILES):
        ledger(spark, ROWS, start=ROWS * n, partitions=1).write.mode("append").parquet(place)
    return spark.readStream.schema(ledger(spark, 0).schema).option("maxFilesPerTrigger", 1).parquet(place)


def save(df: DataFrame, path: str, **options: str) -> None:
    df.write.format("strictq").options(**{"path": path, "orderBy": "n", **options}).mode("append").save()


def run(df: DataFrame, checkpoint: Path, write: Callable[[DataFrame, int], None]) -> str:
    """Run a query to its end. Return the error that ended it; empty: none."""
    try:
        streams.run(df, checkpoint, write)
    except Exception as e:
        return str(e)
    return ""


def test_a_batch_is_written_once_without_a_job_id(source: DataFrame, path: str, tmp_path: Path) -> None:
    """A program that sets a job group hides the id of Spark's run. That changes nothing."""
    other = str(tmp_path / "other.strictq")
    strictq.open(other, durability="process").close()
    failures = [0, 2]

    def write(df: DataFrame, number: int) -> None:
        df.sparkSession.sparkContext.setJobGroup("mine", f"batch {number}")
        save(df.repartition(2), path)
        df.createOrReplaceTempView("batch")
        df.sparkSession.sql(f"CREATE TABLE IF NOT EXISTS of_batches USING strictq OPTIONS (path '{other}')")
        df.sparkSession.sql("INSERT INTO of_batches (key, body) SELECT key, CAST(body AS BINARY) FROM batch ORDER BY n")
        if number in failures:
            failures.remove(number)
            raise Unplugged

    try:
        for expected in ("Unplugged", "Unplugged", ""):
            assert expected in run(source, tmp_path / "checkpoint", write)
    finally:
        source.sparkSession.sql("DROP TABLE IF EXISTS of_batches")
    assert failures == []
    for each in (path, other):
        assert staged(each) == []
        assert_ledger(each, FILES * ROWS)


def test_a_new_checkpoint_loses_nothing(source: DataFrame, path: str, tmp_path: Path) -> None:
    """The batches of the new query have the numbers of the old one. They are written, or refused by name."""
    named = str(tmp_path / "named.strictq")
    strictq.open(named, durability="process").close()

    def write(df: DataFrame, number: int) -> None:
        save(df, path)
        save(df, named, jobId=f"cleaning-{number}")

    assert run(source, tmp_path / "checkpoint", write) == ""
    shutil.rmtree(tmp_path / "checkpoint")
    error = run(source, tmp_path / "checkpoint", write)
    assert "job cleaning-0 was written by batch 0 of query " in error
    assert "and now comes with batch 0 of query " in error
    assert "leave the option jobId out" in error
    assert staged(named) == []
    assert depth(path) == (FILES + 1) * ROWS
    assert_ledger(named, FILES * ROWS)


def test_a_second_write_of_a_batch_is_refused(source: DataFrame, path: str, tmp_path: Path) -> None:
    def write(df: DataFrame, number: int) -> None:
        save(df.where("n % 2 = 0"), path, jobId=f"even-{number}")
        save(df.where("n % 2 = 1"), path)
        df.sparkSession.sparkContext.setJobGroup("mine", "another one for each write")
        save(df.where("n % 2 = 1"), path)

    for _ in range(2):
        error = run(source, tmp_path / "checkpoint", write)
        assert "writes to this queue a second time; only the first write was stored" in error
        assert staged(path) == []
    assert_ledger(path, ROWS)


# ---- step by step, as Spark calls the sink


def tasks(path: str, batch: Any, origin: Any, **options: str) -> Any:
    """Return the target of a write, and the report of its task. With an origin, it is in foreachBatch."""
    from pyspark.sql.types import StructType

    from strictq.spark import sink

    schema = StructType().add("key", "string").add("n", "long").add("body", "string")
    target = sink.target({"path": path, "orderBy": "n", **options}, schema, "write", overwrite=False)
    token = Token.job(options["jobId"]) if "jobId" in options else Token.query(origin.query, origin.batch)
    return target, sink.stage(target, token, 0, iter([batch]), origin)


def save_rows(path: str, rows: range, origin: Any, **options: str) -> None:
    """Write a ledger's rows, and abort like Spark if that fails."""
    import pyarrow as pa

    from strictq.spark import sink

    keys = [f"key-{n % 10}" for n in rows]
    batch = pa.RecordBatch.from_pydict(
        {"key": keys, "n": list(rows), "body": [f"{k}:{n}" for k, n in zip(keys, rows, strict=True)]}
    )
    target, done = tasks(path, batch, origin, **options)
    try:
        sink.commit(target, [done])
    except Exception:
        sink.abort_reported(target, [done])
        raise


@pytest.fixture
def at() -> Callable[..., StreamBatch]:
    """Makes the origins of writes: a batch, in an execution, of a query."""
    pytest.importorskip("pyspark")
    return lambda batch, execution, query="q1": StreamBatch(query, batch, f"app/{execution}")


EVEN, ODD, ALL = range(0, ROWS, 2), range(1, ROWS, 2), range(ROWS)


def numbers(path: str) -> list[int]:
    assert staged(path) == []
    with strictq.open(path, read_only=True) as q:
        assert q.check() == []
        return sorted(int(m.body.split(b":")[1]) for n in range(10) for m in q.peek(f"key-{n}", 1_000))


@pytest.mark.parametrize("options", [{}, {"jobId": "good-0"}, {"onMismatch": "skip"}])
@pytest.mark.parametrize("first", [EVEN, range(0)])
def test_a_repeated_batch_repeats_its_first_write_only(
    path: str, at: Callable[..., Any], options: dict[str, str], first: range
) -> None:
    """Also if the first write had no rows: else the second one would be stored as the batch, which no repetition would fit."""
    save_rows(path, first, at(0, 1), **options)
    for execution in (1, 2):
        if execution > 1:
            save_rows(path, first, at(0, execution), **options)
        with pytest.raises(ConfigError, match="batch 0 of query q1 writes to this queue a second time"):
            save_rows(path, ODD, at(0, execution), **options)
    assert numbers(path) == list(first)


def test_a_second_write_that_the_first_execution_did_not_reach(path: str, at: Callable[..., Any]) -> None:
    """It must not be taken for the repetition of the first one, which has as many rows."""
    save_rows(path, EVEN, at(0, 1))
    save_rows(path, EVEN, at(0, 2))
    with pytest.raises(ConfigError, match="a second time"):
        save_rows(path, ODD, at(0, 2))
    assert numbers(path) == list(EVEN)


def test_job_ids_tell_the_writes_of_a_batch_apart(path: str, at: Callable[..., Any]) -> None:
    for execution in range(2):
        save_rows(path, EVEN, at(0, execution), jobId="even-0")
        save_rows(path, ODD, at(0, execution), jobId="odd-0")
    assert numbers(path) == list(ALL)


@pytest.mark.parametrize("other", [(1, 2, "q1"), (0, 2, "q2")])
def test_a_job_id_of_another_batch_or_query_is_refused(path: str, at: Callable[..., Any], other: tuple[int, int, str]) -> None:
    """Though it has as many rows, and even if the program accepts another number of them."""
    save_rows(path, ALL, at(0, 1), jobId="cleaning")
    batch, _, query = other
    match = (
        f"job cleaning was written by batch 0 of query q1, and now comes with batch {batch} of query {query}; nothing was writ"
    )
    for options in ({}, {"onMismatch": "skip"}):
        with pytest.raises(ConfigError, match=match):
            save_rows(path, ALL, at(*other), jobId="cleaning", **options)
    assert numbers(path) == list(ALL)


def test_a_write_that_died_between_its_parts_goes_on(path: str, at: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        def unplugged(*_: Any) -> None:
            raise OSError("unplugged")

        patch.setattr(Bulk, "finish", unplugged)
        with pytest.raises(OSError, match="unplugged"):
            save_rows(path, ALL, at(0, 1))
    save_rows(path, ALL, at(0, 2))
    with pytest.raises(ConfigError, match="a second time"):
        save_rows(path, ALL, at(0, 2))
    assert numbers(path) == list(ALL)


# ---- what older versions and plain writes have stored: without the query and the batch


@pytest.mark.parametrize("name", ["cleaning-{}", "{}"])
def test_the_newest_batch_of_an_older_version_is_recognised(path: str, at: Callable[..., Any], name: str) -> None:
    """Spark was stopped before it had recorded the batch."""
    for batch in (10, 11):
        save_rows(path, EVEN if batch == 10 else ODD, None, jobId=name.format(batch))
    save_rows(path, ODD, at(11, 1), jobId=name.format(11))
    with pytest.raises(ConfigError, match="a second time"):
        save_rows(path, ODD, at(11, 1), jobId=name.format(11))
    assert numbers(path) == list(ALL)


@pytest.mark.parametrize(("batch", "job"), [(0, "cleaning-0"), (1, "cleaning-1"), (1, "cleaning-21"), (1, "cleaning")])
def test_other_job_ids_of_an_older_version_are_refused(path: str, at: Callable[..., Any], batch: int, job: str) -> None:
    """They are those of an earlier query, as after a new checkpoint, although there are as many rows."""
    save_rows(path, EVEN, None, jobId=job)
    save_rows(path, ODD, None, jobId="cleaning-2")
    with pytest.raises(ConfigError, match=f"job {job} was written before, by an older version or outside foreachBatch"):
        save_rows(path, EVEN, at(batch, 1), jobId=job)
    assert numbers(path) == list(ALL)


def test_a_stream_that_becomes_foreach_batch(path: str, at: Callable[..., Any]) -> None:
    """The sink of streams names batches in the same way, and stores no origin."""
    with strictq.open(path) as q:
        q._storage.bulk.put_whole(Token.query("q1", 3), Size(0), PlainRows([], [], [], []))
    save_rows(path, range(0), at(3, 1))
    with pytest.raises(ConfigError, match="a second time"):
        save_rows(path, ALL, at(3, 1))
    assert numbers(path) == []


def test_a_job_id_of_a_stream_outside_of_it(path: str, at: Callable[..., Any]) -> None:
    """A plain write is recognised by its job id alone."""
    save_rows(path, ALL, at(0, 1), jobId="cleaning-0")
    save_rows(path, ALL, None, jobId="cleaning-0")
    assert numbers(path) == list(ALL)
