"""Two stages over a queue: what is prepared in any order is processed in order, once, however it fails."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import strictq
import strictq.spark
from strictq import CONTENT_HASH, Defer, Message, Queue, QueueConfig, Reject, Retry, StoreBusy
from strictq._client.effects import Effects
from strictq.spark._outcomes import BatchJob, Outcome, from_arrow, run_lane, to_arrow
from strictq.spark._settler import Settler
from tests.support.injection import refuse_writes
from tests.support.pipelines import PREPARED, chain, double, expected
from tests.support.queues import AT_ONCE, keys_by_shard
from tests.support.running import PATIENCE_SECONDS, until
from tests.support.sparks import run_driver

from .streams import END_SECONDS

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession


@pytest.fixture
def q(queue_path: str) -> Iterator[Queue]:
    with strictq.open(queue_path, durability="process", shards=2, config=QueueConfig(max_attempts=2, **AT_ONCE)) as queue:
        yield queue


def fill(q: Queue, keys: int, each: int) -> None:
    """Numbered messages: n of a key is its n-th."""
    q.send_many([Message(b"%d" % n, key=f"k{k}") for n in range(1, each + 1) for k in range(keys)])


def test_spark_connect_is_refused_before_anything_is_received(q: Queue) -> None:
    """Its session has no context. A pipeline would notice that in its first batch."""

    class Connected:
        dataSource = None

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"`{name}` is not supported in Spark Connect")

    fill(q, 1, 1)
    for prepare in (None, double):
        with pytest.raises(strictq.ConfigError, match=r"a pipeline can't run on Spark Connect; nothing was received"):
            strictq.spark.pipeline(Connected(), q, process=chain, prepare=prepare, prepared=PREPARED if prepare else None)  # type: ignore[arg-type]
    assert q.stats().in_flight == 0


def double_frame(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(doubled=[2 * int(body) for body in frame["body"]])[["doubled"]]


def drain(q: Queue, prefix: str) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    while ds := q.receive(1000):
        for d in ds:
            assert isinstance(d.key, str)
            assert d.key.startswith(prefix)
            found.setdefault(d.key, []).append(d.body)
        q.ack_many(ds)
    return found


def test_all_that_a_send_can_say_travels_from_executors_to_the_driver() -> None:
    effects = Effects()
    due = datetime(2030, 1, 31, 8, 0, 0, 1, tzinfo=timezone(timedelta(hours=2)))
    effects.send(Message(bytearray(b"x"), key=7, dedup_id=CONTENT_HASH, at=due, ttl=5.0, headers={"a": "b"}, size_hint=2.0))
    effects.send(Message.json([1]))
    table = pa.Table.from_batches([to_arrow([(0, 1, Outcome(effects=effects))])])
    dated, plain = (send.message for send in from_arrow(table)[0, 1].effects.sends)
    content = "blake2b:" + hashlib.blake2b(b"x", digest_size=32).hexdigest()
    assert dated == Message(b"x", key=7, dedup_id=content, at=due, ttl=5.0, headers={"a": "b"}, size_hint=2.0)
    assert plain == Message(b"[1]")


@pytest.mark.parametrize("where", ["driver", "executors"])
def test_it_is_processed_in_order_once(spark: SparkSession, q: Queue, where: Any) -> None:
    fill(q, keys=7, each=40)
    for k in range(7):
        q.hold(f"out-k{k}")
    p = strictq.spark.pipeline(
        spark,
        q,
        prepare=double,
        prepared=PREPARED,
        process=chain,
        where=where,
        key_state=True,
        batch_size=100,
        batch_seconds=0.05,
    )
    stats = p.run()
    assert (stats.acked, stats.retried, stats.rejected, stats.lost) == (280, 0, 0, 0)
    assert stats.batches >= 3
    for k in range(7):
        q.release(f"out-k{k}")
    assert drain(q, "out-") == {f"out-k{k}": expected(40) for k in range(7)}
    assert q.check() == []


@pytest.mark.in_turn
@pytest.mark.parametrize("when", ["process", "commit"])
def test_the_driver_is_killed(
    spark: SparkSession, q: Queue, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, when: str
) -> None:
    """With -9, in the middle of a batch, another one leased ahead: what is committed stays, and everything else comes again."""
    home = tmp_path_factory.mktemp("s")  # a short name: Spark's sockets lie in it, and their paths have at most 107 bytes
    fill(q, keys=7, each=20)
    for k in range(7):
        q.hold(f"out-k{k}")
    ended, said = run_driver(tmp_path, home, "pipeline", when, q.path)
    assert ended == -signal.SIGKILL, said
    left = sum(len(q.peek(f"k{k}", 100)) for k in range(7))
    assert 0 < left < 140, "some of it is committed"
    acked = 0
    until = time.monotonic() + END_SECONDS
    while acked < left:  # as their leases end
        assert time.monotonic() < until
        stats = strictq.spark.pipeline(spark, q, prepare=double, prepared=PREPARED, process=chain, key_state=True).run(wait=1.0)
        assert (stats.retried, stats.rejected, stats.lost) == (0, 0, 0)
        acked += stats.acked
    assert acked == left
    for k in range(7):
        q.release(f"out-k{k}")
    assert drain(q, "out-") == {f"out-k{k}": expected(20) for k in range(7)}
    assert q.check() == []


def test_pandas_frames_and_int_keys(spark: SparkSession, q: Queue) -> None:
    q.send_many([Message(b"%d" % n, key=n % 3) for n in range(30)])
    seen: list[tuple[Any, int, int]] = []
    p = strictq.spark.pipeline(
        spark, q, prepare=double_frame, prepared=PREPARED, frames="pandas", key_type="int",
        process=lambda job: seen.append((job.key, job.seq, job.prepared["doubled"])), concurrency=1,
    )  # fmt: skip
    assert p.run().acked == 30
    assert sorted(seen) == [(k, n // 3 + 1, 2 * n) for k in range(3) for n in range(30) if n % 3 == k]


def test_without_prepare(spark: SparkSession, q: Queue) -> None:
    fill(q, keys=3, each=5)
    seen: list[tuple[Any, bytes]] = []
    lock = threading.Lock()

    def process(job: BatchJob) -> None:
        assert dict(job.prepared) == {}
        with lock:
            seen.append((job.key, job.body))

    assert strictq.spark.pipeline(spark, q, process=process).run().acked == 15
    for k in range(3):
        assert [body for key, body in seen if key == f"k{k}"] == [b"1", b"2", b"3", b"4", b"5"]


def test_one_key_overlaps_with_itself(spark: SparkSession, q: Queue, tmp_path: Path) -> None:
    """While the first batch is processed, the second one of the same key is prepared: each waits for the other to begin."""
    fill(q, keys=1, each=60)
    flag = tmp_path / "second batch is being prepared"

    def prepare(batch: pa.RecordBatch) -> pa.RecordBatch:
        if min(batch.column("seq").to_pylist()) > 20:
            flag.touch()
        return double(batch)

    seen: list[int] = []

    def process(job: BatchJob) -> None:
        until(lambda: flag.exists())
        seen.append(job.seq)

    p = strictq.spark.pipeline(spark, q, prepare=prepare, prepared=PREPARED, process=process, batch_size=20)
    assert p.run().acked == 60
    assert seen == list(range(1, 61))


def test_deep_lanes_are_processed_side_by_side(spark: SparkSession, q: Queue) -> None:
    """A batch has messages of many lanes, though the oldest lane alone would fill it: else handlers would have nothing to do."""
    for k in range(8):
        q.send_many([Message(b"%d" % n, key=f"k{k}") for n in range(1, 101)])
    together = threading.Barrier(8, timeout=PATIENCE_SECONDS)
    sizes: list[int] = []

    def process(job: BatchJob) -> None:
        if job.seq % 16 == 1 and job.seq < 96:
            together.wait()  # for a message of each of the eight lanes; more of a lane than of another one would break it

    p = strictq.spark.pipeline(
        spark, q, prepare=double, prepared=PREPARED, process=process, concurrency=8, batch_size=64, batch_size_max=64,
        batch_seconds=1_000.0, on_progress=lambda stats: sizes.append(stats.acked),
    )  # fmt: skip
    stats = p.run()
    assert (stats.acked, stats.retried, stats.lost) == (800, 0, 0)
    assert sizes == [64 * n for n in range(1, 13)] + [800], "every batch was full"


@pytest.mark.parametrize(
    ("keys", "each", "where", "lanes"),
    [
        (100, 10, "driver", [4] * 16),  # four lanes for each of four handlers
        (100, 10, "executors", [8] * 8),  # and for each of two cores
        (3, 1_000, "driver", [20, 22, 22]),  # all lanes there are
        (1, 1_000, "driver", [64]),
        (40, 1, "driver", [1] * 40),
    ],
)
def test_what_a_batch_is_made_of(spark: SparkSession, q: Queue, keys: int, each: int, where: Any, lanes: list[int]) -> None:
    for k in range(keys):
        q.send_many([Message(b"%d" % n, key=f"k{k}") for n in range(1, each + 1)])
    p = strictq.spark.pipeline(spark, q, process=print, where=where, concurrency=4, batch_size=64)
    batch = p._take(0.0)
    assert batch is not None
    assert sorted(map(len, batch.lanes.values())) == lanes
    assert all([d.seq for d in lane] == list(range(1, len(lane) + 1)) for lane in batch.lanes.values())
    following = p._take(0.0, batch)
    before, after = (
        {d.lease.key: [d.seq for d in lane] for lane in b.lanes.values() for d in lane[:1]} if b is not None else {}
        for b in (batch, following)
    )
    for key in before.keys() & after.keys():
        assert after[key][0] == before[key][-1] + 1, "it goes on where the batch in hand ends"
    p._give_back()
    assert (q.stats().in_flight, {m.attempts for k in range(keys) for m in q.peek(f"k{k}", 1)}) == (0, {0})


@pytest.mark.parametrize("where", ["driver", "executors"])
def test_a_failure_is_tried_again_before_anything_later(spark: SparkSession, q: Queue, tmp_path: Path, where: Any) -> None:
    fill(q, keys=3, each=10)
    q.app_schema("CREATE TABLE app_seen (key TEXT, n INTEGER) STRICT")
    flag = str(tmp_path / "failed once")

    def process(job: BatchJob) -> None:
        job.execute("INSERT INTO app_seen VALUES (?, ?)", (str(job.key), int(job.body)))
        if job.key == "k1" and job.body == b"4" and not os.path.exists(flag):
            open(flag, "w").close()
            raise ValueError("not now")

    stats = strictq.spark.pipeline(spark, q, process=process, where=where).run()
    assert (stats.acked, stats.retried) == (30, 1)
    for k in range(3):
        rows = q.query("SELECT n FROM app_seen WHERE key = ? ORDER BY rowid", (f"k{k}",), key=f"k{k}")
        assert [n for (n,) in rows] == list(range(1, 11))


@pytest.mark.in_turn
@pytest.mark.parametrize("stage", ["prepare", "driver", "executors"])
@pytest.mark.parametrize("death", ["exception", "exit"])
def test_a_poison_message_follows_the_policy_and_stops_nobody(spark: SparkSession, q: Queue, stage: str, death: str) -> None:
    """Every attempt fails, or kills its Python process: after max_attempts it is a dead letter, and its key goes on."""
    if (stage, death) == ("driver", "exit"):
        pytest.skip("a handler that kills the driver ends the program: nothing is there to go on")
    fill(q, keys=2, each=3)

    def die(body: bytes, key: Any) -> None:
        if key == "k1" and body == b"2":
            if death == "exit":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("poison")

    def prepare(batch: pa.RecordBatch) -> pa.RecordBatch:
        for body, key in zip(batch.column("body").to_pylist(), batch.column("key").to_pylist(), strict=True):
            if stage == "prepare":
                die(body, key)
        return double(batch)

    def process(job: BatchJob) -> None:
        if stage != "prepare":
            die(job.body, job.key)

    where: Any = "executors" if stage == "executors" else "driver"
    stats = strictq.spark.pipeline(spark, q, prepare=prepare, prepared=PREPARED, process=process, where=where).run()
    assert (stats.acked, stats.retried) == (5, 2)
    (dead,) = q.dead_letters()
    assert (dead.key, dead.seq, dead.kind, dead.attempts) == ("k1", 2, "poison", 2)
    assert "poison" in str(dead.reason) or "its Spark task failed" in str(dead.reason)
    assert q.stats().depth == 0


def test_reject_and_retry(spark: SparkSession, q: Queue) -> None:
    fill(q, keys=1, each=4)

    def process(job: BatchJob) -> None:
        job.output("looked at it")
        if job.body == b"2":
            raise Reject("not wanted")
        if job.body == b"3" and job.attempt == 1:
            raise Retry(delay=3600.0, reason="later")

    stats = strictq.spark.pipeline(spark, q, process=process).run()
    assert (stats.acked, stats.rejected, stats.retried) == (1, 1, 1)
    assert [(d.seq, d.reason) for d in q.dead_letters()] == [(2, "not wanted")]
    assert q.status("k0", 3).state == "delayed"
    assert (q.status("k0", 3).last_error, q.status("k0", 3).last_output) == ("later", "looked at it")


def test_a_rejected_message_of_prepare(spark: SparkSession, q: Queue) -> None:
    fill(q, keys=2, each=5)

    def prepare(batch: pa.RecordBatch) -> pa.RecordBatch:
        if b"3" in batch.column("body").to_pylist():
            raise Reject("three")
        return double(batch)

    stats = strictq.spark.pipeline(spark, q, prepare=prepare, prepared=PREPARED, process=lambda job: None).run()
    assert (stats.acked, stats.rejected) == (8, 2)


def test_effects_that_cannot_be_committed_are_the_messages_failure(spark: SparkSession, q: Queue) -> None:
    fill(q, keys=2, each=2)

    def process(job: BatchJob) -> None:
        if job.key == "k1":
            job.send(b"never", key="elsewhere")
            job.execute("INSERT INTO app_missing VALUES (1)")

    stats = strictq.spark.pipeline(spark, q, process=process).run()
    assert stats.acked == 2
    assert sorted((d.key, d.seq) for d in q.dead_letters()) == [("k1", 1), ("k1", 2)]
    assert q.peek("elsewhere") == []


def test_stop_gives_back_what_was_leased_ahead(spark: SparkSession, q: Queue) -> None:
    fill(q, keys=5, each=40)
    held: list[strictq.spark.Pipeline] = []

    def process(job: BatchJob) -> None:
        held[0].stop()

    held.append(strictq.spark.pipeline(spark, q, process=process, batch_size=50))
    stats = held[0].run()
    assert stats.acked == 50
    assert (q.stats().in_flight, q.stats().ready) == (0, 150)
    assert {m.attempts for k in range(5) for m in q.peek(f"k{k}", 100)} == {0}
    assert held[0].run().acked == 150, "and it can run again"


def test_a_lost_lease_is_nobodys_loss(spark: SparkSession, queue_path: str) -> None:
    """An operator gives the lane to somebody else while it is processed: its acks and effects are refused."""
    with strictq.open(queue_path, durability="process") as q, strictq.open(queue_path, durability="process") as other:
        fill(q, keys=1, each=3)
        got: list[strictq.Delivery] = []

        def process(job: BatchJob) -> None:
            job.send(b"effect", key="out")
            if not got:
                time.sleep(0.2)  # past the lease
                got.extend(other.receive(1))

        p = strictq.spark.pipeline(spark, q, process=process, lease_seconds=0.05)
        p._keep = lambda: None  # type: ignore[method-assign]  # nobody extends
        stats = p.run()
        assert (stats.acked, stats.lost) == (0, 1)
        assert [d.seq for d in got] == [1]
        assert q.peek("out") == []


def test_an_error_of_the_pipeline_gives_everything_back(spark: SparkSession, q: Queue) -> None:
    q.send_many([Message(b"1", key="text"), Message(b"2", key=2)])
    p = strictq.spark.pipeline(spark, q, prepare=double, prepared=PREPARED, process=lambda job: None)
    with pytest.raises(strictq.InvalidArgument, match="key_type"):
        p.run()
    assert (q.stats().in_flight, q.stats().ready) == (0, 2)


def test_waiting_for_more(spark: SparkSession, q: Queue) -> None:
    seen: list[bytes] = []
    p = strictq.spark.pipeline(spark, q, process=lambda job: seen.append(job.body))
    thread = threading.Thread(target=p.run, kwargs={"wait": None})
    thread.start()
    q.send(b"1", "k")
    until = time.monotonic() + 60.0
    while p.stats.acked < 1 and time.monotonic() < until:
        time.sleep(0.01)
    with pytest.raises(strictq.InvalidArgument, match="running"):
        p.run()
    p.stop()
    thread.join(PATIENCE_SECONDS)
    assert (seen, thread.is_alive()) == ([b"1"], False)


def steps(job: Any) -> Iterator[None]:
    yield None


async def awaited(job: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"process": 3}, "callable"),
        ({"process": steps}, "process is a generator function"),
        ({"process": awaited}, "process is async"),
        ({"prepare": steps, "prepared": "a bigint"}, "prepare is a generator function"),
        ({"prepare": double}, "prepared"),
        ({"prepare": double, "prepared": "no such type here"}, "columns"),
        ({"prepare": double, "prepared": "seq bigint"}, "own"),
        ({"where": "moon"}, "where"),
        ({"frames": "polars"}, "frames"),
        ({"key_type": "float"}, "key_type"),
        ({"concurrency": 0}, "concurrency"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 11, "batch_size_max": 10}, "batch_size"),
        ({"batch_seconds": 0.0}, "batch_seconds"),
        ({"lease_seconds": float("nan")}, "lease_seconds"),
        ({"consumer": ""}, "consumer"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_bad_arguments(spark: SparkSession, q: Queue, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(strictq.InvalidArgument, match=says):
        strictq.spark.pipeline(spark, q, **({"process": print} | arguments))


def test_a_path_is_not_a_queue(spark: SparkSession, queue_path: str) -> None:
    with pytest.raises(strictq.InvalidArgument, match="open Queue"):
        strictq.spark.pipeline(spark, queue_path, process=print)  # type: ignore[arg-type]


@pytest.mark.parametrize("process", [lambda job: steps(job), awaited], ids=["generator", "coroutine"])
def test_what_process_returns_is_not_acked_unrun(process: Any) -> None:
    jobs = [BatchJob("k", seq, b"", {}, 1, 0.0, {}, None) for seq in (1, 2)]
    one, two = run_lane(process, jobs, lambda: 0.0)
    assert (one.kind, two.kind) == ("failed", "skipped")
    assert "process returned a" in one.reason


def test_a_job_without_state_says_so() -> None:
    job = BatchJob("k", 1, b"", {}, 1, 0.0, {}, strictq.spark._outcomes.UNSET)
    with pytest.raises(strictq.InvalidArgument, match="key_state=True"):
        _ = job.key_state
    job.key_state = b"x"
    assert job.key_state == b"x"
    for call in (
        lambda: job.send("text"),
        lambda: job.send(b"", key=""),
        lambda: job.execute("", [object()]),
        lambda: job.execute(b""),
    ):  # type: ignore[arg-type,list-item]
        with pytest.raises(strictq.InvalidArgument):
            call()


def test_a_send_that_another_shard_can_not_take_yet_is_committed(
    spark: SparkSession, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = keys_by_shard(2).values()
    q.send(b"1", here)
    q.send(b"2", here)

    with monkeypatch.context() as m:
        refuse_writes(m, lambda shard: StoreBusy("not now", shard=1) if shard == 1 else None)
        done = strictq.spark.pipeline(spark, q, process=lambda job: job.send(job.body, key=there)).run()
    assert (done.acked, done.retried, done.lost) == (2, 0, 0)
    q._storage.transactions.forward(0)
    assert [m.body for m in q.peek(there)] == [b"1", b"2"]
    assert q.status(here, 2).state == "resolved"


@pytest.mark.parametrize(("error", "batches"), [(ValueError, 4), (OSError, 20)])
def test_bad_bodies_of_one_key_are_charged_together_and_an_outage_to_the_first(
    spark: SparkSession, q: Queue, error: type[Exception], batches: int
) -> None:
    """Ten bodies that no prepare can parse: each is tried as often as the queue says, in as many batches as one of them takes."""
    bad = range(2, 12)
    q.send_many([Message(b"bad" if n in bad else b"%d" % n, key=f"k{k}") for k in range(2) for n in range(1, 13)])

    def prepare(batch: pa.RecordBatch) -> pa.RecordBatch:
        if b"bad" in batch.column("body").to_pylist():
            raise error("not a number")
        return double(batch)

    done: list[tuple[Any, int]] = []
    stats = strictq.spark.pipeline(
        spark, q, prepare=prepare, prepared=PREPARED, process=lambda job: done.append((job.key, job.seq)), concurrency=1,
    ).run()  # fmt: skip
    assert stats.batches <= batches if error is ValueError else stats.batches >= batches
    assert (stats.acked, q.stats().depth) == (4, 0)
    assert sorted(done) == [("k0", 1), ("k0", 12), ("k1", 1), ("k1", 12)]
    dead = {(d.key, d.seq): d for d in q.dead_letters()}
    assert set(dead) == {(f"k{k}", n) for k in range(2) for n in bad}
    assert {(d.kind, d.attempts) for d in dead.values()} == {("poison", 2)}


def test_what_a_handler_said_is_kept_as_a_worker_keeps_it() -> None:
    """The reason of a Defer, and the traceback of a failure."""

    def process(job: BatchJob) -> None:
        raise Defer(60.0, "the bank is closed") if job.key == "later" else ValueError("a typo")

    with strictq.open(":memory:") as q:
        for key in ("later", "wrong"):
            q.send(b"", key=key)
        ds = q.receive()
        jobs = {d.lease: [BatchJob(d.key, d.seq, d.body, {}, d.attempt, 0.0, {}, None)] for d in ds}
        outcomes = {}
        for number, (lease, lane) in enumerate(jobs.items()):
            (outcome,) = run_lane(process, lane, time.monotonic)
            outcomes[lease] = list(from_arrow(pa.Table.from_batches([to_arrow([(number, 1, outcome)])])).values())
        counts = Settler(q, 2).settle({d.lease: [d] for d in ds}, outcomes)
        assert (counts.deferred, counts.retried) == (1, 1)
        assert q.status("later", 1).last_error == "the bank is closed"
        (error,) = q.status("wrong", 1).errors
        assert error.error == "ValueError: a typo"
        assert "in process" in (error.traceback or "")
