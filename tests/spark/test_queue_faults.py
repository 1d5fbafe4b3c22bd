"""Queues and options that are not as a query needs them: an error says so, and then nothing is lost, doubled or reordered."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import strictq
from strictq import Job, Queue, QueueConfig, Worker
from tests.support.injection import restamp
from tests.support.ledgers import Ledger, bodies, send_chains
from tests.support.queues import shard_file
from tests.support.running import mounted, unmounted
from tests.support.sparks import assert_ledger, ledger, staged, write

from .streams import END_SECONDS, load, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = [f"k{n}" for n in range(12)]
SENT = 5
SIZE = 64 * 1024 * 1024


@pytest.fixture
def q(queue_path: str) -> Iterator[Queue]:
    """A queue of two shards with chains of messages."""
    with strictq.open(queue_path, shards=2, durability="process") as q:
        send_chains(q, KEYS, SENT)
        yield q


@contextmanager
def read_only(path: str) -> Iterator[None]:
    """The directory as on a read-only medium: nobody can write to it, not even root."""
    place = Path(path)
    if hasattr(os, "geteuid") and os.geteuid() != 0:
        files = [p for p in place.rglob("*") if p.is_file()]
        for p, mode in ((place, 0o500), *((p, 0o400) for p in files)):
            p.chmod(mode)
        try:
            yield
        finally:
            for p, mode in ((place, 0o700), *((p, 0o600) for p in files)):
                p.chmod(mode)
        return
    if not mounted("--bind", path, path):
        pytest.skip("mounting is not permitted here, and permissions do not stop root")
    try:
        assert mounted("-o", "remount,bind,ro", path)
        yield
    finally:
        unmounted(place)


def finish(spark: SparkSession, path: str, place: Path, sink: Ledger | None = None, **options: object) -> None:
    """Run the query as it should be, and compare everything."""
    sink = sink or Ledger(place / "ledger")
    run(load(spark, path, **options), place / "checkpoint", sink)
    sink.require(dict.fromkeys(KEYS, SENT))
    with strictq.open(path) as q:
        assert (q.stats().depth, q.check()) == (0, [])


# ---- the directory


def test_it_can_not_be_written(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    path = q.path
    q.close()
    with read_only(path):
        with pytest.raises(Exception, match=r"can't be (opened|written)"):
            run(load(spark, path), tmp_path / "checkpoint", Ledger(tmp_path / "ledger"))
        with pytest.raises(Exception, match=r"(?i)read-only|permission|can't be (opened|written)"):
            write(ledger(spark, 10), path, "job")
        # To look at it is possible, or the error says why not: SQLite needs files that only a writer can make.
        why, found = "", 0
        try:
            found = spark.read.format("strictq").option("path", path).load().count()
        except Exception as e:
            why = str(e)
        assert found == len(KEYS) * SENT or "read" in why
    assert staged(path) == []
    finish(spark, path, tmp_path)


def test_it_is_missing_and_comes_back(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    path, sink = q.path, Ledger(tmp_path / "ledger")
    q.close()
    away = f"{path}-away"

    def vanishing(df: DataFrame, batch: int) -> None:
        if batch == 1:
            os.rename(path, away)
        sink.write(df, batch)

    with pytest.raises(Exception, match=r"there is no queue at|No such file"):
        run(load(spark, path, maxMessagesPerTrigger=25), tmp_path / "checkpoint", vanishing)
    with pytest.raises(Exception, match="there is no queue at"):
        run(load(spark, path), tmp_path / "checkpoint", sink)
    with pytest.raises(Exception, match="there is no queue at"):
        spark.read.format("strictq").option("path", path).load().collect()
    with pytest.raises(Exception, match="there is no queue at"):
        write(ledger(spark, 10), path, "job")
    assert not Path(path).exists(), "nobody makes a new one in its place"
    os.rename(away, path)
    finish(spark, path, tmp_path, sink)


def test_it_has_a_newer_format(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    path = q.path
    q.close()
    for file in (Path(path) / "queue.db", shard_file(path)):
        newer = restamp(file, 1)
        with pytest.raises(Exception, match=rf"format {newer} is newer"):
            run(load(spark, path), tmp_path / "checkpoint", Ledger(tmp_path / "ledger"))
        with pytest.raises(Exception, match=rf"format {newer} is newer"):
            spark.read.format("strictq").option("path", path).load().collect()
        restamp(file, -1)
        with strictq.open(path) as again:
            assert again.stats().in_flight == 0, "the other shard, too, has handed out nothing"
    finish(spark, path, tmp_path)


def test_a_sink_whose_queue_has_a_newer_format(spark: SparkSession, queue_path: str) -> None:
    strictq.open(queue_path, shards=2, durability="process").close()
    for file in (Path(queue_path) / "queue.db", shard_file(queue_path)):
        newer = restamp(file, 1)
        with pytest.raises(Exception, match=rf"format {newer} is newer"):
            write(ledger(spark, 100), queue_path, "job")
        restamp(file, -1)
    write(ledger(spark, 100), queue_path, "job")
    assert staged(queue_path) == []
    assert_ledger(queue_path, 100)


# ---- schemas and options


def test_another_schema(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    reader = spark.readStream.format("strictq").options(path=q.path, consumer="etl").schema("key STRING, n BIGINT")
    with pytest.raises(Exception, match="a queue has columns of its own, and n is none of them"):
        run(reader.load(), tmp_path / "checkpoint", lambda df, _: df.collect())
    with pytest.raises(Exception, match="a queue has columns of its own: seq is BIGINT, not STRING"):
        spark.read.format("strictq").option("path", q.path).schema("seq STRING").load().collect()
    assert q.consumers() == [], "refused before anything was read"
    with pytest.raises(Exception, match="the column n is not part of a message"):
        spark.sql("SELECT 'k' AS key, 'b' AS body, 1 AS n").write.format("strictq").options(path=q.path, jobId="j").mode(
            "append"
        ).save()
    finish(spark, q.path, tmp_path)


def test_another_key_type_for_a_batch_that_comes_again(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    def fail(df: DataFrame, batch: int) -> None:
        raise RuntimeError("the sink fails")

    with pytest.raises(Exception, match="the sink fails"):
        run(load(spark, q.path), tmp_path / "checkpoint", fail)
    with pytest.raises(Exception, match="recorded with another keyType"):
        run(load(spark, q.path, keyType="binary"), tmp_path / "checkpoint", lambda df, _: df.collect())
    finish(spark, q.path, tmp_path)


@pytest.mark.parametrize("most", ["0", "abc"])
def test_a_limit_that_is_none(spark: SparkSession, q: Queue, tmp_path: Path, most: str) -> None:
    with pytest.raises(Exception, match=f"maxMessagesPerTrigger must be a whole number from 1 to 1,000,000, not '{most}'"):
        run(load(spark, q.path, maxMessagesPerTrigger=most), tmp_path / "checkpoint", Ledger(tmp_path / "ledger"))
    assert (q.stats().in_flight, q.consumers()) == (0, [])
    finish(spark, q.path, tmp_path, maxMessagesPerTrigger=31)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"consumer": "etl", "maxMessagePerTrigger": "10"}, r"did you mean maxMessagesPerTrigger\?"),
        ({"consumer": "etl", "maxOffsetsPerTrigger": "10"}, "use the option maxMessagesPerTrigger"),
        ({"consumer": "etl", "startingOffsets": "latest"}, r"to skip a backlog, call q\.purge"),
        ({"consumer": "etl", "keepBatches": "many"}, "keepBatches must be a whole number"),
        ({"consumer": "etl", "state": "dead"}, "a stream reads what is pending"),
        ({"consumer": "x" * 300}, "the option consumer must have 1 to 256 characters"),
        ({"maxMessagesPerTrigger": "10"}, "the option consumer is missing"),
        ({"consumer": "etl", "keyType": "long"}, "keyType must be one of string, binary, int, stored"),
        ({"consumer": "etl", "path": "hdfs://host/q"}, r"not at hdfs: \(.*strictq\.spark\.serve"),
        ({"consumer": "etl", "path": "file://host/q"}, "not at the host host"),
        ({"consumer": "etl", "path": ":memory:"}, "can't read a queue in memory"),
        ({"consumer": "etl", "path": "/nowhere/at/all"}, "there is no queue at /nowhere/at/all"),
        ({"consumer": "etl", "path": ""}, "the option path is missing"),
        ({"consumer": "etl", "jobId": "j"}, r"jobid of spark\.readStream \(it is an option of df\.write"),
    ],
)
def test_a_stream_that_can_never_run_is_refused_when_it_is_loaded(
    spark: SparkSession, q: Queue, options: dict[str, str], match: str
) -> None:
    with pytest.raises(Exception, match=match) as e:
        spark.readStream.format("strictq").options(**{"path": q.path, **options}).load()
    assert "strictq._values.errors" in str(e.value)
    assert "Traceback" not in str(e.value), "the reason alone"


def test_with_a_schema_the_same_is_said_once_when_the_query_starts(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    """Spark asks nothing about the columns then, so nothing is known before."""
    df = spark.readStream.format("strictq").options(path=q.path, jobId="j").schema("key STRING").load()
    with pytest.raises(Exception, match="it is an option of df") as e:
        run(df, tmp_path / "checkpoint", lambda df, _: df.collect())
    assert "UnboundLocalError" not in str(e.value)


def test_a_path_may_be_a_uri_of_this_host(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "with space"
    with strictq.open(path, durability="process") as q:
        q.send(b"x", "k")
    for uri in (path.as_uri(), f"file:{path}", f"file://localhost{path}"):
        assert spark.read.format("strictq").load(uri).count() == 1
    with strictq.open(path) as q:
        df = spark.sql("SELECT 'k' AS key, 'y' AS body")
        df.write.format("strictq").options(path=path.as_uri(), jobId="j").mode("append").save()
        assert q.stats().depth == 2


def test_sql_reads_a_queue_as_a_view(spark: SparkSession, q: Queue) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW of_queue USING strictq OPTIONS (path '{q.path}', messagesPerPartition '10')")
    try:
        assert spark.sql("SELECT count(*) FROM of_queue WHERE key = 'k1'").collect()[0][0] == SENT
    finally:
        spark.sql("DROP VIEW of_queue")


def test_sql_reads_and_writes_a_queue_as_a_table(spark: SparkSession, q: Queue) -> None:
    """Spark asks the source for the columns when the table is made, and gives it their metadata with every use."""
    spark.sql(f"CREATE TABLE queue_table USING strictq OPTIONS (path '{q.path}')")
    try:
        depth = q.stats().depth
        assert spark.sql("SELECT count(*) FROM queue_table WHERE key = 'k1'").collect()[0][0] == SENT
        spark.sql("INSERT INTO queue_table WITH ('jobId' = 'j') (key, body) VALUES ('new', CAST('x' AS BINARY))")
        assert q.stats().depth == depth + 1
        assert [m.body for m in q.peek("new")] == [b"x"]
    finally:
        spark.sql("DROP TABLE queue_table")


# ---- beside others


def test_a_worker_and_a_query_share_a_queue(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    """Both note what they process, one line a message, in one file: as it was processed, whoever did it."""
    notes = tmp_path / "notes"
    writing = threading.Lock()
    query_began = threading.Event()

    def note(rows: list[tuple[str, bytes, str]]) -> None:
        with writing, notes.open("a", encoding="utf-8") as file:
            for key, body, who in rows:
                file.write(json.dumps([key, body.decode(), who]) + "\n")

    def process(job: Job) -> None:
        note([(str(job.key), job.body, "worker")])
        query_began.wait(END_SECONDS)

    def sink(df: DataFrame, batch: int) -> None:
        note([(r.key, bytes(r.body), "query") for r in df.select("key", "body").collect()])
        query_began.set()

    worker = Worker(q, process, concurrency=2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until = threading.Event()
        while not notes.exists():  # the worker has begun, and holds some keys
            until.wait(0.01)
        for n in range(SENT + 1, SENT + 4):
            run(load(spark, q.path, maxMessagesPerTrigger=10), tmp_path / "checkpoint", sink)
            send_chains(q, KEYS, 1, first=n)
        while q.stats().depth:
            until.wait(0.01)
    finally:
        query_began.set()
        worker.stop()
        thread.join()
    found: dict[str, list[bytes]] = {}
    parties: set[str] = set()
    for line in notes.read_text(encoding="utf-8").splitlines():
        key, body, who = json.loads(line)
        found.setdefault(key, []).append(body.encode())
        parties.add(who)
    assert parties == {"worker", "query"}
    assert found == {key: bodies(key, SENT + 3) for key in KEYS}
    assert q.check() == []


def test_a_body_of_64_mib_from_one_queue_to_another(spark: SparkSession, tmp_path: Path) -> None:
    config = QueueConfig(max_body_bytes=SIZE)
    with strictq.open(tmp_path / "raw", durability="process", config=config) as raw:
        raw.send_many([strictq.Message(b"first", key="a"), strictq.Message(b"\x07" * SIZE, key="a")])
        raw.send(b"last", key="a")
        with strictq.open(tmp_path / "cleaned", durability="process", config=config) as cleaned:
            df = load(spark, raw.path).select("key", "seq", "body")
            options = {"path": cleaned.path, "orderBy": "seq", "checkpointLocation": str(tmp_path / "checkpoint")}
            query = df.writeStream.format("strictq").options(**options).trigger(availableNow=True).start()
            assert query.awaitTermination(END_SECONDS)
            first, large, last = cleaned.receive(3)
            assert (first.body, len(large.body), set(large.body), last.body) == (b"first", SIZE, {7}, b"last")
            assert (raw.stats().depth, raw.check(), cleaned.check()) == (0, [], [])
