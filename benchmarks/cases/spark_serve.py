"""Reads through a block server compared with reads of the files, on a local cluster whose executors can do both."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import strictq
import strictq.spark
from benchmarks.bench import Bench
from benchmarks.measure import Figure, Pairs, Sample, interleave, sample

from .spark import ROWS, SHARDS, messages, session
from .spark_source import BATCHES, fill, read, trigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOAL = 0.85


def serve(bench: Bench) -> Iterator[Figure]:
    with bench.place("serve") as place, session(place, master=f"local-cluster[{SHARDS},1,1024]") as spark:
        rows, keys = ROWS[bench.sizes.name], bench.sizes.keys
        df = messages(spark, rows, keys, place / "rows")
        each = rows // BATCHES
        streams = _streams(bench, spark, df, place, each)
        yield streams.figure(
            "serve", f"spark.readStream through a server, {each:,} messages of 100 bytes a batch: trigger time", "local files",
            unit="times", keys=keys, durability="process", goal=bench.goal("at least", GOAL),
        )  # fmt: skip
        tables = _tables(bench, spark, df, place, rows)
        yield tables.figure(
            "serve", f"spark.read of {rows:,} messages through a server", "local files", unit="times", keys=keys,
            durability="process", goal=bench.goal("at least", GOAL),
        )  # fmt: skip
        yield _writes(bench, df, place, rows).figure(
            "serve", f"df.write of {rows:,} rows through a server", "local files", unit="times", keys=keys, durability="process"
        )


def _streams(bench: Bench, spark: SparkSession, df: DataFrame, place: Path, each: int) -> Pairs:
    def once(served: bool) -> Sample:
        queue = fill(df, place)
        with strictq.spark.serve(queue) as server:
            options = server.options if served else {"path": str(queue)}
            reader = spark.readStream.format("strictq").options(**options).option("consumer", "benchmark")
            # Two tasks per batch, one for each executor.
            reader = reader.option("maxMessagesPerTrigger", each).option("messagesPerPartition", each // SHARDS)
            return trigger(reader.load(), place / "checkpoint", each)

    return interleave(bench.rounds, lambda: once(True), lambda: once(False))


def _tables(bench: Bench, spark: SparkSession, df: DataFrame, place: Path, rows: int) -> Pairs:
    queue = fill(df, place)
    with strictq.spark.serve(queue) as server:
        local = spark.read.format("strictq").option("path", str(queue)).load()
        served = spark.read.format("strictq").options(**server.options).load()
        return interleave(bench.rounds, lambda: read(served, rows), lambda: read(local, rows))


def _writes(bench: Bench, df: DataFrame, place: Path, rows: int) -> Pairs:
    def once(served: bool) -> Sample:
        queue = place / "target"
        shutil.rmtree(queue, ignore_errors=True)
        strictq.open(queue, shards=SHARDS, durability="process").close()
        with strictq.spark.serve(queue) as server:
            writer = df.write.format("strictq").options(**(server.options if served else {"path": str(queue)}))
            taken = sample(rows, writer.option("jobId", "job").mode("append").save)
        with strictq.open(queue, read_only=True) as q:
            assert q.stats().depth == rows
        return taken

    return interleave(bench.rounds, lambda: once(True), lambda: once(False))
