"""Spark's reads of a queue compared with its reads of files: tables, large micro-batches, and the cost of the smallest one."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import strictq
from benchmarks.bench import Bench
from benchmarks.measure import Figure, Pairs, Sample, interleave, sample

from .spark import ROWS, SHARDS, messages, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES = 10
SMALL_BATCHES = 20
SCHEMA = "key STRING, body STRING"
"""The columns of the files, also requested from the queue, so that both sides read the same columns."""


def source(bench: Bench) -> Iterator[Figure]:
    with bench.place("source") as place, session(place) as spark:
        yield from _tables(bench, spark, place)
        yield from _streams(bench, spark, place)


def _tables(bench: Bench, spark: SparkSession, place: Path) -> Iterator[Figure]:
    rows, keys = ROWS[bench.sizes.name], bench.sizes.keys
    df = messages(spark, rows, keys, place / "rows")
    df.write.json(str(place / "json"))
    path = fill(df, place)
    tables: dict[str, DataFrame] = {
        "json": spark.read.schema(SCHEMA).json(str(place / "json")),
        "parquet": spark.read.parquet(str(place / "rows")),
    }
    reader = spark.read.format("strictq").option("path", str(path))
    every, queue = reader.load(), reader.schema(SCHEMA).load()
    goals = {"json": 1.0, "parquet": 0.5}
    for name, table in tables.items():
        pairs = interleave(bench.rounds, lambda: read(queue, rows), lambda table=table: read(table, rows))  # type: ignore[misc]
        yield pairs.figure(
            "source", f"spark.read of {rows:,} messages of 100 bytes, beside {name}", f"spark.read.{name}", unit="times",
            keys=keys, durability="process", goal=bench.goal("at least", goals[name]), note="key and body of both",
        )  # fmt: skip
    pairs = interleave(bench.rounds, lambda: read(every, rows), lambda: read(tables["json"], rows))
    yield pairs.figure(
        "source", f"spark.read of all columns of {rows:,} messages of 100 bytes, beside json", "spark.read.json", unit="times",
        keys=keys, durability="process", note="eight columns beside the two of the files",
    )  # fmt: skip


def _streams(bench: Bench, spark: SparkSession, place: Path) -> Iterator[Figure]:
    rows, keys = ROWS[bench.sizes.name], bench.sizes.keys
    large = _beside_json(bench, spark, place, rows // BATCHES, BATCHES)
    yield Figure(
        case="source", what=f"trigger time at {rows // BATCHES:,} messages a batch, beside JSON files", unit="times",
        values=[a.seconds / b.seconds for a, b in zip(large.ours, large.base, strict=True)],
        ours=statistics.median(s.rate for s in large.ours), base=statistics.median(s.rate for s in large.base),
        against="JSON files", goal=bench.goal("below", 1.3), durability="process", keys=keys,
    )  # fmt: skip
    small = _beside_json(bench, spark, place, 1, SMALL_BATCHES)
    yield Figure(
        case="source", what="trigger time of a batch of one message, beside JSON files", unit="times",
        values=[a.seconds / b.seconds for a, b in zip(small.ours, small.base, strict=True)],
        ours=statistics.median(s.rate for s in small.ours), base=statistics.median(s.rate for s in small.base),
        against="JSON files", goal=bench.goal("below", 1.5), durability="process", keys=keys,
        note="the fixed cost of a micro-batch",
    )  # fmt: skip


def _beside_json(bench: Bench, spark: SparkSession, place: Path, each: int, batches: int) -> Pairs:
    """Return the median trigger times of a stream over the same rows:

    from a queue, and from a directory with a file per batch.
    """
    df = messages(spark, each * batches, bench.sizes.keys, place / f"stream-{each}")
    files = place / f"json-{each}"
    df.repartition(batches).write.json(str(files))

    def ours() -> Sample:
        reader = spark.readStream.format("strictq").option("path", str(fill(df, place))).option("consumer", "benchmark")
        return trigger(reader.schema(SCHEMA).option("maxMessagesPerTrigger", each).load(), place / "checkpoint", each)

    def base() -> Sample:
        return trigger(
            spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(files)), place / "checkpoint", each
        )

    return interleave(bench.rounds, ours, base)


def trigger(df: DataFrame, checkpoint: Path, each: int) -> Sample:
    """Return the median time of a trigger, without the first two of the query."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = df.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    milliseconds = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]
    return Sample(statistics.median(milliseconds[2:]) / 1000, each)


def fill(df: DataFrame, place: Path) -> Path:
    """Create a queue with these rows. Never reuse a path, because the driver may ack and report after a query's end."""
    path = Path(tempfile.mkdtemp(prefix="filled-", dir=place)) / "queue"
    strictq.open(path, shards=SHARDS, durability="process").close()
    df.write.format("strictq").option("path", str(path)).option("jobId", "fill").mode("append").save()
    return path


def read(df: DataFrame, rows: int) -> Sample:
    """Read all rows and discard them."""
    throw_away: Callable[[], None] = df.write.format("noop").mode("overwrite").save
    return sample(rows, throw_away)
