"""The sink under faults: whatever dies and wherever, each row is one message in the end, in order, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strictq
import strictq.spark
from tests.support.sparks import assert_ledger, cluster, entries, ledger, run_driver, staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    """An empty queue of two shards."""
    place = str(tmp_path / "test.strictq")
    strictq.open(place, shards=2, durability="process").close()
    return place


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the files of a Spark of its own. Its name is short: a Unix socket in it has a path of at most 107 bytes."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def faulty(spark: SparkSession) -> Any:
    """Registers the data source with faults; gives its module, which needs pyspark."""
    from tests.support import spark_faults

    spark.dataSource.register(spark_faults.FaultySource)
    return spark_faults


def write(df: DataFrame, path: str, faults: dict[str, str]) -> None:
    options = {"path": path, "jobId": "job", "orderBy": "n", **faults}
    df.write.format("faulty").options(**options).mode("append").save()


def start(df: DataFrame, path: str, checkpoint: Path, faults: dict[str, str]) -> Any:
    """Run a stream over what is there, until it ends or fails."""
    options = {"path": path, "orderBy": "n", "checkpointLocation": str(checkpoint), **faults}
    query = df.writeStream.format("faulty").options(**options).trigger(availableNow=True).start()
    while query.isActive:
        time.sleep(0.01)
    return query


def stream(spark: SparkSession, source: Path, *, files: int = 3) -> DataFrame:
    """A stream of a ledger in files, one for each micro-batch."""
    if not source.exists():
        for n in range(files):
            ledger(spark, ROWS // files, start=ROWS // files * n, partitions=1).write.mode("append").parquet(str(source))
    schema = ledger(spark, 0).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))


def assert_all_there(path: str, *, rows: int = ROWS) -> None:
    assert staged(path) == []
    assert_ledger(path, rows)


# ---- tasks


@pytest.mark.parametrize("fault", ["task fails", "task dies"])
def test_a_task_that_fails_once(spark: SparkSession, faulty: Any, path: str, tmp_path: Path, fault: str) -> None:
    faults = faulty.arm(tmp_path / "faults", fault)
    write(ledger(spark, ROWS), path, faults)
    assert faulty.left(tmp_path / "faults") == []
    assert staged(path) == []
    assert_ledger(path, ROWS)


def test_a_row_function_that_fails_once(spark: SparkSession, faulty: Any, path: str, tmp_path: Path) -> None:
    """The rows before it have reached the sink when the task ends."""
    flag = tmp_path / "fail"
    flag.touch()

    def once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if flag.exists() and batch["n"].max() >= ROWS - 100:
                flag.unlink()
                raise OSError("unplugged")

    df = ledger(spark, ROWS)
    write(df.mapInPandas(once, df.schema), path, faulty.arm(tmp_path / "faults"))
    assert not flag.exists()
    assert staged(path) == []
    assert_ledger(path, ROWS)


def test_a_task_that_fails_for_good_leaves_nothing(spark: SparkSession, faulty: Any, path: str, tmp_path: Path) -> None:
    # In one task: another one that is still at work when Spark aborts may stage a file afterwards, which goes with its age.
    df = ledger(spark, ROWS).coalesce(1).selectExpr("key", "n", "IF(n = 1999, CAST(raise_error('no') AS STRING), body) AS body")
    with pytest.raises(Exception, match="no"):
        write(df, path, faulty.arm(tmp_path / "faults"))
    assert staged(path) == []
    assert entries(path) == []


def test_two_attempts_of_one_task_are_one(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """As in speculation: both write a whole file, and Spark takes the word of one of them."""
    from strictq._store.api import Token, new_run
    from strictq.spark import sink

    df = ledger(spark, ROWS)
    target = sink.target({"path": path, "orderBy": "n"}, df.schema, "write", overwrite=False)
    batches = df.toArrow().to_batches()
    token = Token.query("q", 0)
    first, second = (sink.stage(target, token, 0, iter(batches)) for _ in range(2))
    assert len(staged(path)) == 2
    assert first.name != second.name
    sink.commit(target, [second])
    sink.commit(target, [first])
    assert new_run() != target.run
    assert_all_there(path)


# ---- the commit


@pytest.mark.parametrize("fault", ["commit fails after a part", "commit fails after it"])
def test_a_job_whose_commit_fails_goes_on(spark: SparkSession, faulty: Any, path: str, tmp_path: Path, fault: str) -> None:
    faults = faulty.arm(tmp_path / "faults", fault)
    with pytest.raises(Exception, match="unplugged"):
        write(ledger(spark, ROWS), path, faults)
    # Partitioned otherwise, and in another order: what was decided counts.
    write(ledger(spark, ROWS).repartition(7), path, faults)
    assert staged(path) == []
    assert_ledger(path, ROWS)


@pytest.mark.in_turn
@pytest.mark.parametrize("fault", ["commit fails after a part", "commit fails after it"])
def test_a_stream_whose_commit_fails_goes_on(spark: SparkSession, faulty: Any, path: str, tmp_path: Path, fault: str) -> None:
    df = stream(spark, tmp_path / "source", files=2)
    faults = faulty.arm(tmp_path / "faults", fault)
    assert start(df, path, tmp_path / "checkpoint", faults).exception() is not None
    assert start(df.repartition(5), path, tmp_path / "checkpoint", faults).exception() is None
    assert_all_there(path)


def test_rows_computed_anew_do_not_mix_with_the_first_ones(spark: SparkSession, faulty: Any, path: str, tmp_path: Path) -> None:
    """The keys are random, so a second try puts rows into other shards: taken together they would be lost and doubled."""
    df = ledger(spark, ROWS).selectExpr("concat(body, ':', uuid()) AS key", "n", "body")
    faults = faulty.arm(tmp_path / "faults", "commit fails after a part")
    with pytest.raises(Exception, match="unplugged"):
        write(df, path, faults)
    write(df, path, faults)
    with strictq.open(path) as q:
        ds = q.receive(100_000)
        assert sorted(int(d.body.split(b":")[1]) for d in ds) == list(range(ROWS))
        assert all(str(d.key).startswith(d.body.decode()) for d in ds)


def test_another_write_finishes_what_a_dead_one_began(spark: SparkSession, faulty: Any, path: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="unplugged"):
        write(ledger(spark, ROWS), path, faulty.arm(tmp_path / "faults", "commit fails after a part"))
    options = {"path": path, "jobId": "another", "orderBy": "n", **faulty.arm(tmp_path / "faults")}
    ledger(spark, 10, start=ROWS).write.format("faulty").options(**options).mode("append").save()
    assert staged(path) == []
    assert_ledger(path, ROWS + 10)


# ---- checkpoints


def test_the_newest_checkpoint_files_are_lost(spark: SparkSession, faulty: Any, path: str, tmp_path: Path) -> None:
    """As after a power cut: Spark syncs none of them."""
    df = stream(spark, tmp_path / "source")
    checkpoint = tmp_path / "checkpoint"
    start(df, path, checkpoint, {**faulty.arm(tmp_path / "faults")})
    newest = max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit())
    for log in ("commits", "offsets", "sources/0"):
        for p in (checkpoint / log).glob(f"*{newest}*"):
            p.unlink()
    assert start(df.repartition(3), path, checkpoint, faulty.arm(tmp_path / "faults")).exception() is None
    assert_all_there(path, rows=ROWS // 3 * 3)


def test_a_batch_that_comes_again_with_more_rows_is_refused(spark: SparkSession, faulty: Any, path: str, tmp_path: Path) -> None:
    """Its newest checkpoint files are lost, and the source has had more since: to skip it would lose that."""
    checkpoint, source = tmp_path / "checkpoint", tmp_path / "source"
    ledger(spark, 100, partitions=1).write.parquet(str(source))
    df = spark.readStream.schema(ledger(spark, 0).schema).parquet(str(source))
    faults = faulty.arm(tmp_path / "faults")
    start(df, path, checkpoint, faults)
    for log in ("commits", "offsets", "sources/0"):
        shutil.rmtree(checkpoint / log)
    ledger(spark, 50, start=100, partitions=1).write.mode("append").parquet(str(source))
    query = start(df, path, checkpoint, faults)
    assert "was written with 100 messages, and is now repeated with 150" in str(query.exception())
    assert staged(path) == []
    assert_ledger(path, 100)


# ---- the driver


@pytest.mark.in_turn
@pytest.mark.parametrize("fault", ["driver dies after the commit", "commit dies after a part"])
def test_a_driver_that_is_killed(spark: SparkSession, faulty: Any, path: str, tmp_path: Path, home: Path, fault: str) -> None:
    """A driver of its own, killed with -9 between the sink's commit and Spark's, or between two parts of it."""
    df = stream(spark, tmp_path / "source")
    _, said = run_driver(tmp_path, home, "sink", path, tmp_path, fault)
    assert (tmp_path / "faults").exists(), said
    assert faulty.left(tmp_path / "faults") == [], said
    assert "was not killed" not in said
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    with strictq.open(path, read_only=True) as q:
        assert 0 < q.stats().depth <= ROWS // 3
    assert start(df.repartition(3), path, tmp_path / "checkpoint", faulty.arm(tmp_path / "faults")).exception() is None
    assert_all_there(path, rows=ROWS // 3 * 3)


# ---- executors of their own


@pytest.mark.slow
def test_speculation_and_killed_executors(spark: SparkSession, faulty: Any, path: str, tmp_path: Path, home: Path) -> None:
    """Two executors: a task that is slow is run twice at once, and an executor that is killed loses what it did."""
    with cluster(tmp_path / "cluster") as master:
        code, said = run_driver(tmp_path, home, "speculation", path, tmp_path, master)
    assert code == 0, said
    assert faulty.left(tmp_path / "faults") == []
    assert list((tmp_path / "faults").glob(f"{faulty.COPY}*")), "Spark ran a task twice at once"
    assert_ledger(path, 2_000)
    assert staged(path) == []


def test_a_writer_that_is_killed_by_its_process_id(spark: SparkSession, faulty: Any, path: str, tmp_path: Path) -> None:
    """The process that has the staging file open, killed from outside while it waits for more rows."""
    killed: list[int] = []

    def kill() -> None:
        until = time.monotonic() + 60.0
        while not killed and time.monotonic() < until:
            for file in staged(path):
                for fd in Path("/proc").glob("[0-9]*/fd/*"):
                    try:
                        if os.readlink(fd) == file and int(fd.parts[2]) != os.getpid():
                            os.kill(int(fd.parts[2]), signal.SIGKILL)
                            killed.append(int(fd.parts[2]))
                            return
                    except OSError:
                        continue
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    write(ledger(spark, ROWS), path, faulty.arm(tmp_path / "faults", "task waits"))
    thread.join()
    assert killed
    assert staged(path) == []
    assert_ledger(path, ROWS)
