"""Driver programs of Spark, most of which are killed: `python -m tests.support.spark_drivers NAME HOME ARGUMENTS`.

HOME: for Spark's own files.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import strictq
import strictq.spark
from tests.support.ledgers import Ledger
from tests.support.running import PATIENCE_SECONDS
from tests.support.sparks import INTERPRETED, ROOT, environment, settings
from tests.support.warm import PYTHON

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM_MOST = 100
FLEET_MOST = 120
"""The maximum number of messages in a batch."""
LEASE_SECONDS = 2.0
BATCH = 30
DIES_AT = 45
"""In the second batch of a pipeline, while a third one is leased ahead."""


def session(home: Path, master: str = "local[2]", **more: str) -> SparkSession:
    os.environ.update(environment(home))
    from pyspark.sql import SparkSession

    builder = cast(Any, SparkSession.builder)
    spark: SparkSession = builder.master(master).config(map=settings(home) | INTERPRETED | more).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    strictq.spark.register(spark)
    return spark


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stream(home: Path, when: str, place: Path) -> None:
    """Stream a queue into a ledger, and kill itself.

    Args:
        when: "sink" (in batch 1, between Spark's offsets and its commit, before the sink has written), "ack" (after the sink and
            Spark's commit of batch 0, before the queue is notified), "last" (the sink has written AvailableNow's last batch).
    """
    spark = session(home)
    from strictq.spark import _ack_listener

    ledger = Ledger(place / "ledger")

    def write(df: DataFrame, batch: int) -> None:
        if when == "sink" and batch == 1:
            kill()
        ledger.write(df, batch)
        if when == "last" and batch == 2:
            kill()

    def progress(*_: Any) -> int:
        if when == "ack":
            kill()
        return 0

    _ack_listener.acknowledge = progress
    reader = spark.readStream.format("strictq").option("path", str(place / "queue")).option("consumer", "etl")
    df = reader.option("maxMessagesPerTrigger", STREAM_MOST).load()
    # "once" runs a batch of everything, and no request for a next one, which would ack it.
    trigger: dict[str, Any] = {"once": True} if when == "ack" else {"availableNow": True}
    writer = df.writeStream.foreachBatch(write).option("checkpointLocation", str(place / "checkpoint"))
    writer.trigger(**trigger).start().awaitTermination()
    time.sleep(PATIENCE_SECONDS)


def of_fleet(spark: SparkSession, place: Path, **options: Any) -> DataFrame:
    """Return a fleet's stream, with keys that include the queue."""
    reader = spark.readStream.format("strictq").option("consumer", "etl").option("maxMessagesPerTrigger", FLEET_MOST)
    df = reader.options(**options).load(f"{place / 'fleet'}/*/")
    return df.selectExpr("concat(queue, '/', key) AS key", "seq", "body")


def fleet(home: Path, place: Path) -> None:
    """Stream a fleet into a ledger until it is killed. A row's key in the ledger is its queue and its key."""
    writer = of_fleet(session(home), place).writeStream.foreachBatch(Ledger(place / "ledger").write)
    writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(processingTime="10 milliseconds")
    writer.start().awaitTermination()


def pipeline(home: Path, when: str, path: Path) -> None:
    """Run a pipeline, and kill itself.

    Args:
        when: "process" (a handler in this program, in the middle of a batch), or "commit" (executors have processed a batch, and
            part of it is committed).
    """
    from strictq.spark._settler import Settler
    from tests.support.pipelines import PREPARED, chain, double

    spark = session(home)
    count = itertools.count(1)  # its next() is one step of the interpreter, so threads can share it

    def kill_at_last() -> None:
        if next(count) == DIES_AT:
            kill()

    def process(job: strictq.spark.BatchJob) -> None:
        if when == "process":
            kill_at_last()
        chain(job)

    commit = Settler._commit

    def commit_or_die(self: Settler, *message: Any) -> None:
        commit(self, *message)
        kill_at_last()

    where: Any = "driver"
    if when == "commit":
        Settler._commit, where = commit_or_die, "executors"  # type: ignore[method-assign]
        process = chain
    with strictq.open(path, durability="process") as q:
        strictq.spark.pipeline(
            spark, q, prepare=double, prepared=PREPARED, process=process, where=where, key_state=True, concurrency=2,
            batch_size=BATCH, batch_size_max=BATCH, lease_seconds=LEASE_SECONDS,
        ).run()  # fmt: skip


def sink(home: Path, path: Path, place: Path, fault: str) -> None:
    """Write a stream to a queue, with a fault that kills it."""
    from tests.spark.test_sink_faults import start, stream
    from tests.support import spark_faults

    spark = session(home)
    spark.dataSource.register(spark_faults.FaultySource)
    start(stream(spark, place / "source"), str(path), place / "checkpoint", spark_faults.arm(place / "faults", fault))


def speculation(home: Path, path: Path, place: Path, master: str) -> None:
    """Write two batches to a queue: one with a task that is run twice at once, one with an executor that is killed."""
    from tests.support import spark_faults
    from tests.support.sparks import ledger

    more = {
        "spark.executor.memory": "512m", "spark.speculation": "true", "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "500ms", "spark.speculation.multiplier": "1.01", "spark.speculation.quantile": "0.5",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }  # fmt: skip
    spark = session(home, master, **more)
    spark.dataSource.register(spark_faults.FaultySource)
    for job, fault in (("slow", "task waits for its copy"), ("killed", "executor dies")):
        options = {"path": str(path), "jobId": job, "orderBy": "n", **spark_faults.arm(place / "faults", fault)}
        rows = ledger(spark, 1000, start=0 if job == "slow" else 1000, partitions=4)
        rows.write.format("faulty").options(**options).mode("append").save()
    spark.stop()


def cluster(home: Path, place: Path, *names: str) -> None:
    """Run scenarios on a local cluster whose executors must not access the queues' files.

    The outcome of each is appended to PLACE/outcomes as a line of JSON.
    """
    from tests.support.cluster_scenarios import GUARD, SCENARIOS, World

    os.environ.pop(PYTHON, None)  # the guard is installed when an interpreter starts
    queues, events = place / "forbidden", home / "events"
    queues.mkdir()
    events.mkdir()
    os.environ["STRICTQ_EVENTS"] = str(events)
    mine = {
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(GUARD), str(ROOT)]),
        "spark.executorEnv.STRICTQ_FORBIDDEN": str(queues),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.task.maxFailures": "2",
    }
    spark = session(home, "local-cluster[2,1,1024]", **mine)
    for name in names:
        here = place / name
        here.mkdir()
        try:
            SCENARIOS[name](World(spark, queues / name, here))
            error = None
        except BaseException:
            error = traceback.format_exc()
        with (place / "outcomes").open("a") as out:
            out.write(json.dumps({"name": name, "error": error}) + "\n")
    spark.stop()


PROGRAMS: dict[str, Callable[..., None]] = {f.__name__: f for f in (stream, fleet, pipeline, sink, speculation, cluster)}

if __name__ == "__main__":
    name, home, *arguments = sys.argv[1:]
    PROGRAMS[name](Path(home), *(Path(a) if a.startswith("/") else a for a in arguments))
    print(f"{name} was not killed")
