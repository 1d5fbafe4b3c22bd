"""A pipeline on Spark: the overlap of two equal stages, compared with running them one after another."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import strictq
import strictq.spark
from benchmarks.bench import Bench
from benchmarks.measure import Figure, Sample, interleave

from .spark import SHARDS, session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

BATCHES = {"full": 10, "short": 6, "tiny": 2}
STAGE_SECONDS = {"full": 1.0, "short": 0.5, "tiny": 0.02}
MESSAGES = 64
"""Messages per batch, each of a different key, eight processed at a time."""
CONCURRENCY = 8


class Stages:
    """Two stages that only wait: prepare once per batch, on an executor; process in this program, for the same time."""

    def __init__(self, spark: SparkSession, queue: strictq.Queue, seconds: float) -> None:
        self._spark = spark
        self._queue = queue
        self._prepare_seconds = self._process_seconds = seconds

    def send(self, batches: int) -> None:
        """Send messages for this many batches."""
        self._queue.send_many(strictq.Message(b"x" * 100, key=f"k{n % MESSAGES}") for n in range(MESSAGES * batches))

    def run(self) -> strictq.spark.PipelineStats:
        """Process all ready messages, batch by batch."""
        wait, each = self._prepare_seconds, self._process_seconds * CONCURRENCY / MESSAGES

        def prepare(batch: pa.RecordBatch) -> pa.RecordBatch:
            time.sleep(wait)
            return batch.select(["seq"]).rename_columns(["number"])

        flow = strictq.spark.pipeline(
            self._spark, self._queue, prepare=prepare, prepared="number bigint", process=lambda _: time.sleep(each),
            concurrency=CONCURRENCY, batch_size=MESSAGES, batch_size_max=MESSAGES, batch_seconds=1_000.0,
        )  # fmt: skip
        return flow.run()

    def equal(self) -> float:
        """Set the time of process to the measured time of prepare, including Spark's overhead of a job. Return it, seconds."""
        self.run_alone(1)
        stats = [self.run_alone(1) for _ in range(3)]
        self._process_seconds = statistics.median(s.prepare_seconds / s.batches for s in stats)
        return self._process_seconds

    def run_alone(self, batches: int) -> strictq.spark.PipelineStats:
        self.send(batches)
        return self.run()


def pipeline(bench: Bench) -> Iterator[Figure]:
    batches = BATCHES[bench.sizes.name]
    with (
        bench.place("pipeline") as place,
        session(place) as spark,
        strictq.open(place / "q", shards=SHARDS, durability="process") as q,
    ):
        stages = Stages(spark, q, STAGE_SECONDS[bench.sizes.name])
        each = stages.equal()
        parts: list[tuple[float, float]] = []

        def ours() -> Sample:
            stages.send(batches)
            return _timed(stages, batches, parts)

        def base() -> Sample:
            seconds = 0.0
            for _ in range(batches):  # with a single batch, nothing can be prepared ahead
                stages.send(1)
                seconds += _timed(stages, 1, []).seconds
            return Sample(seconds, batches * MESSAGES)

        pairs = interleave(bench.rounds, ours, base)
    prepare, process = (statistics.median(part) / batches for part in zip(*parts, strict=True))
    yield pairs.figure(
        "pipeline", f"{batches} batches in two equal stages, beside one stage after the other", "them in turn", unit="times",
        durability="process", keys=MESSAGES, goal=bench.goal("at least", 1.6),
        note=f"stages meant to take {each:.2f} s each; prepare took {prepare:.2f}, process {process:.2f}; "
        f"at most {2 * batches / (batches + 1):.2f} is possible",
    )  # fmt: skip


def _timed(stages: Stages, batches: int, parts: list[tuple[float, float]]) -> Sample:
    began = time.perf_counter()
    stats = stages.run()
    seconds = time.perf_counter() - began
    assert stats.acked == batches * MESSAGES
    parts.append((stats.prepare_seconds, stats.process_seconds))
    return Sample(seconds, stats.acked)
