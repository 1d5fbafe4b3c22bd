"""A queue as a stream: batches that can be repeated, acks that follow Spark's commits, order and leases as everywhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strictq
from strictq import Message, Queue
from strictq.spark import _ack_listener
from strictq.spark import source as spark_source
from tests.support.ledgers import Ledger, bodies, send_chains
from tests.support.running import until

from .streams import END_SECONDS, load, run, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = [f"k{n}" for n in range(20)]


@pytest.fixture
def q(queue_path: str) -> Iterator[Queue]:
    with strictq.open(queue_path, shards=2, durability="process") as q:
        yield q


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def acked(q: Queue) -> bool:
    return q.stats().depth == 0


def failing_once(ledger: Ledger, *, at: int, after: bool) -> Callable[[DataFrame, int], None]:
    """A sink that fails in a batch, before or after it has written."""
    failed: list[int] = []

    def write(df: DataFrame, batch: int) -> None:
        if batch == at and not failed and not after:
            failed.append(batch)
            raise RuntimeError("the sink fails")
        ledger.write(df, batch)
        if batch == at and not failed:
            failed.append(batch)
            raise RuntimeError("the sink fails")

    return write


def test_large_batches_of_many_keys(spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path) -> None:
    """Such a batch is acked while the next one runs. The sink fails on the way."""
    for n in range(3):
        q.send_many([Message(b"%d" % n, key=f"k{k}") for k in range(8_000)])
    df = load(spark, q.path, maxMessagesPerTrigger=6_000)
    with pytest.raises(Exception, match="the sink fails"):
        run(df, checkpoint, failing_once(ledger, at=2, after=True))
    run(df, checkpoint, ledger)
    assert ledger.sizes() == [6_000] * 4
    assert ledger.chains() == {f"k{k}": ["0", "1", "2"] for k in range(8_000)}
    until(lambda: acked(q))
    assert q.check() == []


@pytest.mark.smoke
def test_everything_comes_once_in_order_and_is_acked(spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path) -> None:
    send_chains(q, KEYS, 20)
    run(load(spark, q.path, maxMessagesPerTrigger=150), checkpoint, ledger)
    assert ledger.sizes() == [150, 150, 100]
    ledger.require(dict.fromkeys(KEYS, 20))
    until(lambda: acked(q))  # the last batch, too: the listener acks it
    assert q.check() == []
    send_chains(q, KEYS, 5, first=21)
    run(load(spark, q.path), checkpoint, ledger)
    ledger.require(dict.fromkeys(KEYS, 25))


def test_columns(spark: SparkSession, q: Queue, checkpoint: Path) -> None:
    q.configure(keyless="random")
    q.send(b"\x00\xff", "kö", headers={"a": "1", "b": "ü"})
    q.send(b"", None)
    rows: list[Any] = []
    run(load(spark, q.path), checkpoint, lambda df, _: rows.extend(df.orderBy("key").collect()))
    keyless, keyed = rows
    assert (keyed.key, keyed.seq, keyed.body, keyed.headers, keyed.attempt) == ("kö", 1, b"\x00\xff", {"a": "1", "b": "ü"}, 1)
    assert (keyless.key, keyless.body, keyless.headers) == (None, b"", None)
    assert keyed.shard in (0, 1)
    assert keyed.id > 0
    assert abs(keyed.enqueued_at.timestamp() - time.time()) < 600


def chosen(spark: SparkSession, q: Queue, schema: str, **options: str) -> DataFrame:
    return spark.readStream.format("strictq").options(path=q.path, consumer="etl", **options).schema(schema).load()


def test_columns_may_change_between_two_runs_of_a_query(spark: SparkSession, q: Queue, checkpoint: Path) -> None:
    """A batch that is repeated has what is asked for now: it was recorded with everything."""
    q.send_many([Message(b"%d" % n, key=f"k{n}", headers={"n": str(n)}) for n in range(10)])
    found: list[tuple[int, list[str], list[Any]]] = []

    def write(df: DataFrame, batch: int) -> None:
        found.append((batch, df.columns, sorted((tuple(r) for r in df.collect()), key=str)))
        if len(found) < 4:
            raise RuntimeError("the sink fails")

    for schema in ("key STRING", "body STRING, seq BIGINT", "headers MAP<STRING, STRING>, body BINARY", "seq BIGINT, key STRING"):
        if len(found) < 3:
            with pytest.raises(Exception, match="the sink fails"):
                run(chosen(spark, q, schema), checkpoint, write)
        else:
            run(chosen(spark, q, schema), checkpoint, write)
    keys = [f"k{n}" for n in range(10)]
    assert found == [
        (0, ["key"], [(key,) for key in keys]),
        (0, ["body", "seq"], [(str(n), 1) for n in range(10)]),
        (0, ["headers", "body"], [({"n": str(n)}, b"%d" % n) for n in range(10)]),
        (0, ["seq", "key"], [(1, key) for key in keys]),
    ]
    q.send(b"more", "k0")
    run(load(spark, q.path), checkpoint, write)
    assert found[-1][2][0][:3] == ("k0", 2, b"more")


def test_a_stream_of_bodies_that_are_no_text(spark: SparkSession, q: Queue, checkpoint: Path) -> None:
    q.send(b"\xff", 7)
    bodies: list[Any] = []
    for schema, message in (("body STRING, key BIGINT", "a body is not UTF-8"), ("key STRING", "another keyType")):
        with pytest.raises(Exception, match=message):
            run(chosen(spark, q, schema), checkpoint, lambda df, _: bodies.extend(df.collect()))
    run(chosen(spark, q, "body BINARY"), checkpoint, lambda df, _: bodies.extend(r.body for r in df.collect()))
    assert bodies == [b"\xff"], "the same batch"


def test_keys_of_several_types_are_an_error_that_says_what_to_do(
    spark: SparkSession, q: Queue, checkpoint: Path, ledger: Ledger
) -> None:
    q.send(b"x", "a")
    q.send(b"x", 7)
    with pytest.raises(Exception, match=r"the key .* does not fit keyType=string.*or to stored"):
        run(load(spark, q.path), checkpoint, ledger)
    assert q.stats().in_flight <= 1, "a shard whose keys fit may have been handed out"
    assert q.check() == []


def test_wrong_options_are_named(spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path) -> None:
    with pytest.raises(Exception, match="maxMessagesPerTrigger must be a whole number from 1 to 1,000,000, not 'abc'"):
        run(load(spark, q.path, maxMessagesPerTrigger="abc"), checkpoint, ledger)
    with pytest.raises(Exception, match="there is no queue at"):
        run(load(spark, f"{q.path}/nowhere"), checkpoint, ledger)
    assert q.consumers() == []


def test_an_empty_queue_ends_at_once(spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path) -> None:
    run(load(spark, q.path), checkpoint, ledger)
    assert ledger.sizes() in ([], [0]), "Spark runs an empty batch 0 where it has no offset yet"
    assert q.consumers()[0].last == 0
    q.send(b"x", "a")
    run(load(spark, q.path), checkpoint, ledger)
    assert sum(ledger.sizes()) == 1


def test_available_now_ends_although_messages_keep_coming(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path
) -> None:
    send_chains(q, KEYS, 5)

    def write(df: DataFrame, batch: int) -> None:
        ledger.write(df, batch)
        send_chains(q, KEYS, 1, first=6 + batch)

    run(load(spark, q.path, maxMessagesPerTrigger=40), checkpoint, write)
    assert ledger.sizes() == [40, 40, 20]
    ledger.require(dict.fromkeys(KEYS, 5))
    run(load(spark, q.path), checkpoint, ledger)
    ledger.require(dict.fromkeys(KEYS, 8))


def test_delays_holds_and_workers_beside_the_stream(spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path) -> None:
    send_chains(q, KEYS[:4], 3)
    q.hold(KEYS[0])
    q.send(b"late", KEYS[4], delay=1000.0)
    (mine,) = q.receive(1, keys=[KEYS[1]], lease_seconds=3600.0)
    run(load(spark, q.path), checkpoint, ledger)
    ledger.require(dict.fromkeys(KEYS[2:4], 3))
    until(lambda: q.stats().in_flight == 1)
    q.release(KEYS[0])
    mine.nack(delay=0.0)
    run(load(spark, q.path), checkpoint, ledger)
    ledger.require(dict.fromkeys(KEYS[:4], 3))
    assert q.check() == []


def test_a_worker_gets_nothing_that_a_batch_holds(spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path) -> None:
    send_chains(q, KEYS, 4)
    seen: list[int] = []

    def write(df: DataFrame, batch: int) -> None:
        seen.append(len(q.receive(1000)))
        ledger.write(df, batch)

    run(load(spark, q.path), checkpoint, write)
    assert seen == [0]
    ledger.require(dict.fromkeys(KEYS, 4))


@pytest.mark.parametrize("after", [False, True], ids=["before the sink", "after the sink"])
def test_a_failed_batch_comes_again_as_it_was(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path, after: bool
) -> None:
    send_chains(q, KEYS, 10)
    sink = failing_once(ledger, at=1, after=after)
    df = load(spark, q.path, maxMessagesPerTrigger=80)
    with pytest.raises(Exception, match="the sink fails"):
        run(df, checkpoint, sink)
    assert q.stats().in_flight == 80
    send_chains(q, KEYS, 1, first=11)
    run(df, checkpoint, sink)
    ledger.require(dict.fromkeys(KEYS, 11))
    assert ledger.sizes()[:2] == [80, 80]
    assert q.check() == []


@pytest.mark.parametrize("listening", [True, False])
def test_the_last_batch_of_a_query_that_looks_no_further(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, listening: bool
) -> None:
    send_chains(q, KEYS, 2)
    with monkeypatch.context() as patch:
        if not listening:
            patch.setattr(_ack_listener, "acknowledge", lambda *_: 0)
        query = start(load(spark, q.path), checkpoint, ledger, once=True)
        assert query.awaitTermination(END_SECONDS)
        if listening:
            until(lambda: acked(q))
            return
        assert q.stats().in_flight == 40
        run(load(spark, q.path), checkpoint, ledger)
    assert q.stats().depth == 0, "the next start acks"
    ledger.require(dict.fromkeys(KEYS, 2))


def test_a_query_that_runs_on(spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path) -> None:
    query = start(load(spark, q.path), checkpoint, ledger, processingTime="10 milliseconds")
    try:
        for n in range(1, 4):
            send_chains(q, KEYS[:3], 2, first=2 * n - 1)
            until(lambda: acked(q))
    finally:
        query.stop()
    ledger.require(dict.fromkeys(KEYS[:3], 6))
    until(lambda: not q.consumers()[0].active)


def test_a_query_that_stops_gives_back_the_batch_that_it_recorded_ahead(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path
) -> None:
    most, keys = 5_000, [f"k{n}" for n in range(25_000)]
    send_chains(q, keys, 1)
    ahead: list[bool] = []

    def write(df: DataFrame, batch: int) -> None:
        until(lambda: (batch == 0 or q.stats().in_flight > most) or q.stats().ready < most)
        ahead.append(q.stats().in_flight > most)
        ledger.write(df, batch)

    query = start(load(spark, q.path, maxMessagesPerTrigger=most), checkpoint, write, processingTime="0 seconds")
    try:
        until(lambda: len(ahead) > 2)
    finally:
        query.stop()
    assert any(ahead)
    until(lambda: not q.consumers()[0].active)
    assert q.stats().in_flight <= most, "the batch in work"
    assert q.consumers()[0].open <= 1
    run(load(spark, q.path, maxMessagesPerTrigger=most), checkpoint, ledger)
    ledger.require(dict.fromkeys(keys, 1))


def test_a_signal_while_a_query_stops_ends_nothing_early(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark closes the connection of the process, which lets it stop, and also sends SIGTERM, in any order."""
    send_chains(q, ["a"], 1)
    genuine, closed = spark_source.Holder.close, []

    def close(self: spark_source.Holder) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        genuine(self)
        closed.append(self)

    monkeypatch.setattr(spark_source, "is_of_spark", lambda: True)
    monkeypatch.setattr(spark_source.Holder, "close", close)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        reader = spark_source.StreamReader({"path": q.path, "consumer": "etl"}, spark_source.read_schema("string"))
        reader.initialOffset()
        reader.stop()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(closed) == 1
    assert not q.consumers()[0].active


def test_two_queries_with_one_name(spark: SparkSession, q: Queue, ledger: Ledger, tmp_path: Path) -> None:
    query = start(load(spark, q.path), tmp_path / "one", ledger, processingTime="10 milliseconds")
    try:
        send_chains(q, KEYS, 1)
        until(lambda: acked(q))
        with pytest.raises(Exception, match="consumer 'etl' is in use by a running process"):
            run(load(spark, q.path, consumerWaitSeconds=0), tmp_path / "two", ledger)
        run(load(spark, q.path, consumer="other"), tmp_path / "three", Ledger(tmp_path / "other"))
        send_chains(q, KEYS, 1, first=2)
        until(lambda: acked(q))
    finally:
        query.stop()
    ledger.require(dict.fromkeys(KEYS, 2))
    assert q.check() == []


def test_a_deleted_checkpoint_goes_on_after_the_last_ack(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path, tmp_path: Path
) -> None:
    send_chains(q, KEYS, 10)
    with pytest.raises(Exception, match="the sink fails"):
        run(load(spark, q.path, maxMessagesPerTrigger=80), checkpoint, failing_once(ledger, at=1, after=False))
    shutil.rmtree(checkpoint)
    again = Ledger(tmp_path / "again")
    run(load(spark, q.path, maxMessagesPerTrigger=200), checkpoint, again)
    assert again.sizes() == [80, 40], "first what was outstanding, as it was"
    joined = ledger.chains()
    for key, chain in again.chains().items():
        joined.setdefault(key, []).extend(chain)
    assert joined == {key: [body.decode() for body in bodies(key, 10)] for key in KEYS}
    until(lambda: acked(q))
    assert q.check() == []


def test_a_checkpoint_that_is_older_than_what_is_kept_is_refused(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path, tmp_path: Path
) -> None:
    send_chains(q, KEYS[:2], 10)
    df = load(spark, q.path, maxMessagesPerTrigger=4, keepBatches=1)
    run(df, checkpoint, ledger)
    old = tmp_path / "old"
    shutil.copytree(checkpoint, old)
    for n in range(2, 5):
        for kind in ("offsets", "commits"):
            for name in (f"{n}", f".{n}.crc"):
                (old / kind / name).unlink(missing_ok=True)
    with pytest.raises(Exception, match=r"no longer kept.*start with a new checkpoint"):
        run(df, old, Ledger(tmp_path / "other"))
    send_chains(q, KEYS[:2], 1, first=11)
    other = Ledger(tmp_path / "other")
    run(load(spark, q.path), tmp_path / "new", other)
    ledger.require(dict.fromkeys(KEYS[:2], 10))
    assert other.chains() == {key: [bodies(key, 1, first=11)[0].decode()] for key in KEYS[:2]}, "only what was not acked"
    assert q.check() == []


def test_a_copy_refuses_the_checkpoint_of_its_original(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path, tmp_path: Path
) -> None:
    """Batches that were recorded after the last segment have numbers that the copy would give to other batches."""
    send_chains(q, KEYS[:2], 1)
    run(load(spark, q.path), checkpoint, ledger)
    q.configure_replication(tmp_path / "replica", interval_seconds=0.05)
    send_chains(q, KEYS[:2], 1, first=2)
    run(load(spark, q.path), checkpoint, ledger)  # the original is the same queue, replicated or not
    until(lambda: (status := q.replication()) is not None and status.segment is not None and status.lag_bytes == 0)
    strictq.restore(tmp_path / "replica", tmp_path / "copy", alone=True)
    with strictq.open(tmp_path / "copy", durability="full") as copy:
        send_chains(copy, KEYS[:1], 1, first=3)
        with pytest.raises(Exception, match="the checkpoint is of the queue from which this one was restored"):
            run(load(spark, copy.path), checkpoint, ledger)
        assert copy.stats().in_flight == 0
        other = Ledger(tmp_path / "other-ledger")
        run(load(spark, copy.path), tmp_path / "new", other)
        assert copy.stats().depth == 0
    send_chains(q, KEYS[:2], 1, first=3)
    run(load(spark, q.path), checkpoint, ledger)


def test_the_checkpoint_of_another_queue_is_refused(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path, tmp_path: Path
) -> None:
    send_chains(q, KEYS[:2], 1)
    run(load(spark, q.path), checkpoint, ledger)
    with strictq.open(tmp_path / "other.strictq", durability="process") as other:
        send_chains(other, KEYS, 1)
        with pytest.raises(Exception, match=r"the checkpoint is of queue .*the query's own checkpoint"):
            run(load(spark, other.path), checkpoint, ledger)
        assert other.stats().in_flight == 0
    send_chains(q, KEYS[:2], 1, first=2)
    with pytest.raises(Exception, match="the checkpoint is of consumer 'etl'"):
        run(load(spark, q.path, consumer="load"), checkpoint, ledger)
    assert q.stats().in_flight == 0
    run(load(spark, q.path), checkpoint, ledger)
    ledger.require(dict.fromkeys(KEYS[:2], 2))


@pytest.mark.parametrize(("most", "kinds"), [(80, "offsets commits"), (200, "commits")])
def test_the_newest_checkpoint_files_are_lost(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path, most: int, kinds: str
) -> None:
    """Spark syncs nothing: a power cut takes its newest files, though the queue has acked what they tell of."""
    send_chains(q, KEYS, 10)
    df = load(spark, q.path, maxMessagesPerTrigger=most)
    run(df, checkpoint, ledger)
    sizes = ledger.sizes()
    until(lambda: acked(q))
    for kind in kinds.split():
        for name in (f"{len(sizes) - 1}", f".{len(sizes) - 1}.crc"):
            (checkpoint / kind / name).unlink(missing_ok=True)
    send_chains(q, KEYS, 1, first=11)
    run(df, checkpoint, ledger)
    assert ledger.sizes() == [*sizes, 20]
    ledger.require(dict.fromkeys(KEYS, 11))
    assert q.check() == []


def test_a_message_that_kills_every_batch_is_rejected_by_an_operator(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path
) -> None:
    send_chains(q, KEYS[:3], 2)
    q.send(b"poison", "bad")

    def write(df: DataFrame, batch: int) -> None:
        if any(bytes(row.body) == b"poison" for row in df.collect()):
            raise RuntimeError("it kills the job")
        ledger.write(df, batch)

    for _ in range(2):
        with pytest.raises(Exception, match="it kills the job"):
            run(load(spark, q.path), checkpoint, write)
    assert "in batch 1 of consumer etl" in q.explain("bad").text
    assert q.reject("bad", 1, "it kills the job")
    run(load(spark, q.path), checkpoint, write)
    ledger.require(dict.fromkeys(KEYS[:3], 2))
    assert [d.body for d in q.dead_letters()] == [b"poison"]


def test_a_released_consumer_needs_a_new_checkpoint(
    spark: SparkSession, q: Queue, ledger: Ledger, checkpoint: Path, tmp_path: Path
) -> None:
    send_chains(q, KEYS, 2)
    with pytest.raises(Exception, match="the sink fails"):
        run(load(spark, q.path), checkpoint, failing_once(ledger, at=0, after=False))
    until(lambda: not q.consumers()[0].active)
    assert q.release_consumer("etl") == 40
    with pytest.raises(Exception, match=r"was released.*new checkpoint"):
        run(load(spark, q.path), checkpoint, ledger)
    run(load(spark, q.path), tmp_path / "new", ledger)
    ledger.require(dict.fromkeys(KEYS, 2))


def test_a_body_of_64_mib(spark: SparkSession, queue_path: str, checkpoint: Path) -> None:
    size = 64 * 1024 * 1024
    config = strictq.QueueConfig(max_body_bytes=size)
    sizes: list[Any] = []
    with strictq.open(queue_path, durability="process", config=config) as q:
        q.send(b"small", "a")
        q.send(b"\x07" * size, "a")
        q.send(b"small", "a")
        run(
            load(spark, q.path, maxBytesPerTrigger=1000),
            checkpoint,
            lambda df, _: sizes.append([r[0] for r in df.selectExpr("length(body)").collect()]),
        )
    assert sizes == [[5], [size], [5]]


def test_lanes_are_not_split_between_tasks(spark: SparkSession, q: Queue, checkpoint: Path) -> None:
    q.send_many([Message(b"%d" % n, key=f"k{n % 5}") for n in range(20_000)])
    seen: list[Any] = []

    def tasks(df: DataFrame, _: int) -> None:
        from pyspark.sql.functions import spark_partition_id

        seen.extend(df.select("key", "seq", spark_partition_id().alias("task")).collect())

    run(load(spark, q.path, messagesPerPartition=1000), checkpoint, tasks)
    assert len({r.task for r in seen}) == 5
    where: dict[str, set[int]] = {}
    last: dict[str, int] = {}
    for r in seen:
        where.setdefault(r.key, set()).add(r.task)
        assert r.seq == last.get(r.key, 0) + 1
        last[r.key] = r.seq
    assert all(len(tasks) == 1 for tasks in where.values())


def test_progress_says_how_much_is_left(spark: SparkSession, queue_path: str, tmp_path: Path) -> None:
    with strictq.open(queue_path, shards=2, durability="process") as q:
        q.send_many([strictq.Message(b"x", key=f"k{n}") for n in range(50)])
        q.send(b"late", "late", delay=1000.0)
        query = run(load(spark, q.path, maxMessagesPerTrigger=20), tmp_path / "checkpoint", lambda df, _: df.collect())
        sources = [json.loads(progress.sources[0].json) for progress in query.recentProgress if progress.numInputRows]
    assert [source["numInputRows"] for source in sources] == [20, 20, 10]
    # The first count is of the first batch; a later one may be as old as ten times what it took.
    for source, most in zip(sources, (1, 2, 3), strict=True):
        left = source["latestOffset"]
        assert (left["queue"], left["consumer"], left["path"]) == (q.queue_id, "etl", q.path)
        assert 1 <= left["n"] <= most
        assert left["oldest_age_seconds"] >= 0
    lags = [source["latestOffset"]["lag"] for source in sources]
    assert lags[0] == 50
    assert lags == sorted(lags, reverse=True)
    assert set(lags) <= {50, 30, 10}
