"""Scenarios on a local cluster whose executors must not access the queues' files; `spark_drivers.cluster` runs them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

import strictq
import strictq.spark
from strictq import Message, Queue
from strictq.spark import BlockServer, _block_protocol
from tests.spark import streams
from tests.support.ledgers import Ledger, send_chains
from tests.support.sparks import ROOT, assert_ledger, ledger, staged

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

KEYS = [f"k{n}" for n in range(12)]
SENT = 10
GUARD = ROOT / "tests" / "support" / "guarded"
SCENARIOS: dict[str, Callable[[World], None]] = {}


def scenario(function: Callable[[World], None]) -> Callable[[World], None]:
    SCENARIOS[function.__name__] = function
    return function


@attrs.define
class World:
    """What a scenario works with.

    Attributes:
        queues: the directory that executors must not access.
        place: the directory for everything else of this scenario.
    """

    spark: SparkSession
    queues: Path
    place: Path

    def queue(self, name: str = "queue", **config: Any) -> Queue:
        if config:
            return strictq.open(self.queues / name, shards=2, durability="process", config=strictq.QueueConfig(**config))
        return strictq.open(self.queues / name, shards=2, durability="process")

    def stream(self, options: dict[str, str], **more: object) -> DataFrame:
        reader = self.spark.readStream.format("strictq").options(**options).option("consumer", "etl")
        for name, value in {"maxMessagesPerTrigger": 40, "messagesPerPartition": 10, **more}.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def run(self, df: DataFrame, sink: Callable[[DataFrame, int], None]) -> None:
        streams.run(df, self.place / "checkpoint", sink)

    def once(self, name: str) -> Callable[[], bool]:
        """Return a function for executors that returns True only at its first call, in any of them."""
        mark = str(self.place / name)

        def first() -> bool:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
            return True

        return first

    def fails(self, action: Callable[[], object]) -> str:
        """Return the text of the error that an action raises."""
        try:
            action()
        except Exception as e:
            return str(e)
        raise AssertionError("it does not fail")


def streamed(world: World, change: Callable[[DataFrame], DataFrame] = lambda df: df, **tls: Any) -> None:
    """Run a stream through a server, and compare everything. `change` may alter it on executors."""
    with world.queue() as q:
        send_chains(q, KEYS, SENT)
        with strictq.spark.serve(q, **tls) as server:
            sink = Ledger(world.place / "ledger")
            world.run(change(world.stream(server.options)), sink.write)
            sink.require(dict.fromkeys(KEYS, SENT))
        assert q.stats().depth == 0
        assert q.check() == []


def kill_server(server: BlockServer) -> int:
    """Kill the serving process, or its successor. Return its pid."""
    until = time.monotonic() + streams.END_SECONDS
    while time.monotonic() < until:
        pid = server.pid
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # killed already, and not yet replaced
            time.sleep(0.01)
        else:
            return pid
    raise AssertionError("no server comes")


# ---- what the guard notices


@scenario
def without_a_server_executors_touch_the_files(world: World) -> None:
    """Verify that the guard notices a source, a table and a sink that use the files. What passes under it therefore does not."""
    with world.queue(history="records") as q:
        q.send(b"one", key="done")
        with q.receive()[0]:
            pass
        q.send(b"one", key="k")  # one task: each try at it starts a Python process
        options = {"path": q.path}
        sink = Ledger(world.place / "ledger")
        assert "touched the queue's files" in world.fails(lambda: world.run(world.stream(options), sink.write))
        table = world.spark.read.format("strictq").options(**options).load()
        assert "touched the queue's files" in world.fails(table.count)
        history = world.spark.read.format("strictq").options(**options).option("state", "history").load()
        assert "touched the queue's files" in world.fails(history.count)
        rows = _few(world).write.format("strictq").options(**options, jobId="job").mode("append")
        assert "touched the queue's files" in world.fails(rows.save)


# ---- reading and writing


@scenario
def a_stream(world: World) -> None:
    streamed(world)


@scenario
def a_stream_of_some_columns(world: World) -> None:
    with world.queue() as q:
        q.send_many([Message(b"%d" % n, key=f"k{n % 7}") for n in range(100)])
        q.send(b"\xff", "k0")
        with strictq.spark.serve(q) as server:
            reader = world.spark.readStream.format("strictq").options(**server.options, consumer="etl")
            found: list[Any] = []
            assert "a body is not UTF-8" in world.fails(
                lambda: world.run(reader.schema("body STRING").load(), lambda df, _: found.extend(df.collect()))
            )
            world.run(reader.schema("seq BIGINT, body BINARY").load(), lambda df, _: found.extend(df.collect()))
            assert len({tuple(r) for r in found}) == len(found) == 101
        assert q.check() == []


@scenario
def a_stream_with_tls(world: World) -> None:
    import trustme

    ours = trustme.CA()
    certificate = ours.issue_cert("127.0.0.1")
    files = {name: world.place / f"{name}.pem" for name in ("certificate", "private_key", "authority")}
    certificate.cert_chain_pems[0].write_to_path(files["certificate"])
    certificate.private_key_pem.write_to_path(files["private_key"])
    ours.cert_pem.write_to_path(files["authority"])
    tls: dict[str, Any] = dict(files)
    streamed(world, **tls)
    with world.queue() as q, strictq.spark.serve(q, **tls) as server:
        _write(world, server, "job", rows=200)
        assert q.stats().depth == 200


@scenario
def tables(world: World) -> None:
    with world.queue(history="bodies") as q:
        q.send_many([Message(b"%d" % n, key=f"k{n % 7}") for n in range(500)])
        q.send_many([Message(b"%d" % n, key="done") for n in range(100)])
        q.ack_many(q.receive(100, keys=["done"]))
        for n in range(7):
            q.reject(f"k{n}", 1, "why not")
        with strictq.spark.serve(q) as server:
            table = world.spark.read.format("strictq").options(**server.options).option("messagesPerPartition", 50).load()
            assert sorted(int(r.body) for r in table.collect()) == list(range(7, 500))
            some = world.spark.read.format("strictq").options(**server.options).schema("body STRING, seq BIGINT").load()
            assert sorted((int(r.body), r.seq) for r in some.collect()) == [(n, n // 7 + 1) for n in range(7, 500)]
            dead = world.spark.read.format("strictq").options(**server.options).option("state", "dead").load()
            assert {(r.key, r.seq, r.reason) for r in dead.collect()} == {(f"k{n}", 1, "why not") for n in range(7)}
            history = world.spark.read.format("strictq").options(**server.options).option("state", "history")
            done = history.option("messagesPerPartition", 30).load().where("key = 'done'")
            assert sorted(int(r.body) for r in done.collect()) == list(range(100))


def _write(world: World, server: BlockServer, job: str, rows: int = 2_000, **more: str) -> None:
    df = ledger(world.spark, rows, partitions=2)
    df.write.format("strictq").options(**server.options, jobId=job, orderBy="n", **more).mode("append").save()


def _few(world: World) -> DataFrame:
    """Return rows of one task."""
    return ledger(world.spark, 10, partitions=1).select("key", "body")


@scenario
def a_batch_write(world: World) -> None:
    with world.queue() as q, strictq.spark.serve(q) as server:
        for _ in range(2):
            _write(world, server, "job")
        assert staged(q.path) == []
    assert_ledger(q.path, 2_000)


@scenario
def from_one_queue_to_another(world: World) -> None:
    with world.queue("from") as source, world.queue("to") as target:
        source.send_many([Message(b"%d" % n, key=f"k{n % 7}") for n in range(100)])
        with strictq.spark.serve(source) as reads, strictq.spark.serve(target) as writes:
            checkpoint = str(world.place / "checkpoint")
            df = world.stream(reads.options).select("key", "seq", "body")
            writer = df.writeStream.format("strictq").options(**writes.options, orderBy="seq", checkpointLocation=checkpoint)
            assert writer.trigger(availableNow=True).start().awaitTermination(streams.END_SECONDS)
        assert staged(target.path) == []
        for key in range(7):
            assert [int(m.body) for m in target.peek(f"k{key}", 100)] == list(range(key, 100, 7))


@scenario
def a_pipeline_needs_no_server(world: World) -> None:
    with world.queue() as q:
        q.send_many([Message(b"%d" % n, key=f"k{n % 5}") for n in range(100)])

        def process(job: strictq.spark.BatchJob) -> None:
            job.send(b"%d" % (int(job.body) + 1), key=f"to-{job.key}")

        def prepare(batch: Any) -> Any:
            return batch.select(["seq"]).rename_columns(["number"])

        q.hold("to-k0")
        pipeline = strictq.spark.pipeline(
            world.spark, q, process=process, prepare=prepare, prepared="number bigint", where="executors", batch_size=50
        )
        for n in range(1, 5):
            q.hold(f"to-k{n}")
        assert pipeline.run().acked == 100
        for n in range(5):
            assert [int(m.body) for m in q.peek(f"to-k{n}", 100)] == list(range(n + 1, 101, 5))


@scenario
def large_bodies(world: World) -> None:
    size = 64 * 1024 * 1024
    with world.queue(max_body_bytes=size) as q, strictq.spark.serve(q) as server:
        for n in range(2):
            q.send(bytes([n]) * size, key="k")
        found: list[tuple[int, str]] = []

        def sink(df: DataFrame, _: int) -> None:
            found.extend(
                (r.size, r.first) for r in df.selectExpr("length(body) AS size", "hex(left(body, 1)) AS first").collect()
            )

        world.run(world.stream(server.options), sink)
        assert found == [(size, "00"), (size, "01")]
        # Not a constant, which Spark would put into the plan.
        df = world.spark.range(1).selectExpr("'k' AS key", f"repeat('x', {size} + CAST(id AS INT)) AS body")
        df.write.format("strictq").options(**server.options, jobId="large").mode("append").save()
        (message,) = q.peek("k")
        assert message.body == b"x" * size


@scenario
def a_message_that_was_rejected(world: World) -> None:
    """Verify that it is omitted from a batch that was recorded with it."""
    with world.queue() as q, strictq.spark.serve(q) as server:
        q.send_many([Message(b"%d" % n, key=f"k{n % 3}") for n in range(30)])

        def refuse(df: DataFrame, _: int) -> None:
            raise ValueError("not this one")

        df = world.stream(server.options)
        assert "not this one" in world.fails(lambda: world.run(df, refuse))
        assert q.reject("k1", 1, "it is the one")
        found: list[int] = []
        world.run(df, lambda df, _: found.extend(int(r.body) for r in df.collect()))
        assert sorted(found) == [n for n in range(30) if n != 1]


# ---- faults


@scenario
def the_server_is_killed_in_every_batch(world: World) -> None:
    """Kill it from the driver between batches, and from an executor in the middle of a task."""
    with world.queue() as q:
        send_chains(q, KEYS, SENT)
        with strictq.spark.serve(q) as server:
            sink = Ledger(world.place / "ledger")
            first, pids = world.once("killed"), set[int]()

            def kill(batches: Iterator[RecordBatch], pid: int = server.pid) -> Iterator[RecordBatch]:
                for batch in batches:
                    if first():
                        os.kill(pid, signal.SIGKILL)
                    yield batch

            def write(df: DataFrame, batch: int) -> None:
                sink.write(df, batch)
                pids.add(kill_server(server))

            df = world.stream(server.options)
            world.run(df.mapInArrow(kill, df.schema), write)
            sink.require(dict.fromkeys(KEYS, SENT))
            assert not first()
            assert len(pids) > 1
        assert q.stats().depth == 0


@scenario
def the_server_is_killed_under_a_table_and_a_sink(world: World) -> None:
    with world.queue() as q:
        q.send_many([Message(b"%d" % n, key=f"k{n % 7}") for n in range(500)])
        with strictq.spark.serve(q) as server:
            first, pid = world.once("killed"), server.pid

            def kill(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
                for batch in batches:
                    if first():
                        os.kill(pid, signal.SIGKILL)
                    yield batch

            table = world.spark.read.format("strictq").options(**server.options).option("messagesPerPartition", 50).load()
            rows = table.select("key", "seq", "body").mapInArrow(kill, "key STRING, seq BIGINT, body BINARY")
            with world.queue("to") as target, strictq.spark.serve(target) as writes:
                first, pid = world.once("killed too"), writes.pid
                rows.mapInArrow(kill, rows.schema).write.format("strictq").options(
                    **writes.options, jobId="job", orderBy="seq"
                ).mode("append").save()
                assert staged(target.path) == []
                for key in range(7):
                    assert [int(m.body) for m in target.peek(f"k{key}", 100)] == list(range(key, 500, 7))


@scenario
def another_server_takes_the_place(world: World) -> None:
    """Close a query's server while it runs. Tasks wait until another one has the same address."""
    with world.queue() as q:
        send_chains(q, KEYS, SENT)
        token = "a-token-of-ones-own"
        servers = [strictq.spark.serve(q, token=token)]
        port = int(servers[0].address.rpartition(":")[2])
        sink = Ledger(world.place / "ledger")
        waiting: list[threading.Timer] = []

        def write(df: DataFrame, batch: int) -> None:
            if batch:
                sink.write(df, batch)
                return
            servers[0].close()
            waiting.append(threading.Timer(1.0, lambda: servers.append(strictq.spark.serve(q, port=port, token=token))))
            waiting[0].start()
            sink.write(df, batch)  # its tasks find no server at first

        world.run(world.stream(servers[0].options), write)
        sink.require(dict.fromkeys(KEYS, SENT))
        waiting[0].join()
        servers[1].close()


@scenario
def an_executor_is_killed(world: World) -> None:
    from tests.support.spark_faults import die_with_the_jvm

    first = world.once("killed")

    def kill(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            yield batch
            if first():
                die_with_the_jvm()

    streamed(world, lambda df: df.mapInArrow(kill, df.schema))
    assert not first()


@scenario
def a_wrong_token_and_nobody_there(world: World) -> None:
    with world.queue() as q:
        q.send(b"one", key="k")
        with strictq.spark.serve(q, wait_seconds=0.5) as server:
            known = _block_protocol.find(server.options["server"], q.path)
            assert known is not None
            wrong, closed = world.place / "wrong", world.place / "closed"
            _tell(wrong, attrs.evolve(known, token="another-token-than-its-own"))
            _tell(closed, known)
            table = world.spark.read.format("strictq").option("path", q.path)
            said = world.fails(table.option("server", str(wrong)).load().count)
            assert f"ServerRefused: the block server at {server.address} does not accept this token" in said, said
            assert "another-token" not in said
        said = world.fails(table.option("server", str(closed)).load().count)
        assert f"ServerUnreachable: the block server at {server.address} did not answer for 0.5 seconds" in said, said
        assert "the program that called strictq.spark.serve is running" in said, said
        assert known.token not in said
        said = world.fails(table.options(**server.options).load().count)
        assert "is no longer running" in said, said
        rows = _few(world).write.format("strictq").options(path=q.path, jobId="job", server=str(closed))
        said = world.fails(rows.mode("append").save)
        assert "ServerUnreachable" in said, said


def _tell(file: Path, served: _block_protocol.Served) -> None:
    fd = os.open(file, os.O_CREAT | os.O_WRONLY, 0o600)
    _block_protocol.write(fd, served)
    os.close(fd)


@scenario
def the_token_is_nowhere(world: World) -> None:
    """Verify that it is not in plans, progress, checkpoints, Spark's event log or the settings, but only in the queue's file."""
    with world.queue() as q:
        q.send_many([Message(b"%d" % n, key="k") for n in range(10)])
        with strictq.spark.serve(q) as server:
            df = world.stream(server.options)
            checkpoint = world.place / "checkpoint"
            writer = df.writeStream.foreachBatch(lambda df, _: df.collect()).option("checkpointLocation", str(checkpoint))
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(streams.END_SECONDS)
            table = world.spark.read.format("strictq").options(**server.options).load()
            table.collect()
            jvm: Any = world.spark._jvm
            extended = jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")
            plans = [
                table._jdf.queryExecution().explainString(extended), repr(server),
                json.dumps([p.json for p in query.recentProgress]), str(world.spark.sparkContext.getConf().getAll()),
                *(p.read_text(errors="replace") for p in checkpoint.rglob("*") if p.is_file()),
                *(p.read_text(errors="replace") for p in Path(os.environ["STRICTQ_EVENTS"]).rglob("*") if p.is_file()),
            ]  # fmt: skip
            assert "strictq" in plans[0]
            assert any("SparkListenerJobStart" in text for text in plans), "the event log was looked at"
            assert all(server.token not in text for text in plans)
