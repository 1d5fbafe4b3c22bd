"""Many keys with few messages each: the cost of the source and the sink per lane."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import strictq
from benchmarks.bench import Bench
from benchmarks.measure import Figure

from .spark import ROWS, SHARDS, messages, session
from .spark_source import BATCHES, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = 0.7
"""Keys per message."""
MANY_SHARDS = 64
FEW_SHARDS = 4


def sparse(bench: Bench) -> Iterator[Figure]:
    """Measure a stream over lanes of one or two messages, and a stream over many shards."""
    rows = ROWS[bench.sizes.name]
    keys, each = int(KEYS * rows), rows // BATCHES
    with bench.place("sparse") as place, session(place) as spark:
        df = messages(spark, rows, keys, place / "rows")
        runs = [_triggers(spark, df, place, each, SHARDS) for _ in range(bench.rounds)]
        yield Figure(
            case="sparse", what=f"latestOffset of the trigger time, {each:,} messages a batch of {keys:,} keys", unit="times",
            values=[latest / trigger for trigger, latest in runs], goal=bench.goal("below", 0.5), durability="process", keys=keys,
            note=f"trigger {_median_ms(t for t, _ in runs)} ms, latestOffset {_median_ms(at for _, at in runs)} ms",
        )  # fmt: skip
        usual = messages(spark, rows, bench.sizes.keys, place / "usual")
        few, many = [], []
        for _ in range(bench.rounds):
            few.append(_triggers(spark, usual, place, each, FEW_SHARDS)[0])
            many.append(_triggers(spark, usual, place, each, MANY_SHARDS)[0])
        yield Figure(
            case="sparse", what=f"trigger time with {MANY_SHARDS} shards, beside {FEW_SHARDS}", unit="times",
            values=[a / b for a, b in zip(many, few, strict=True)], goal=bench.goal("below", 1.3), durability="process",
            keys=bench.sizes.keys, note=f"{_median_ms(many)} and {_median_ms(few)} ms, {each:,} messages a batch",
        )  # fmt: skip


def _triggers(spark: SparkSession, df: DataFrame, place: Path, each: int, shards: int) -> tuple[float, float]:
    """Return the median seconds of a trigger and of its latestOffset, without the query's first two and last triggers."""
    directory = Path(tempfile.mkdtemp(prefix="sparse-", dir=place))
    path = directory / "queue"
    strictq.open(path, shards=shards, durability="process").close()
    df.write.format("strictq").option("path", str(path)).option("jobId", "fill").mode("append").save()
    reader = spark.readStream.format("strictq").option("path", str(path)).option("consumer", "benchmark")
    stream = reader.schema(SCHEMA).option("maxMessagesPerTrigger", each).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    done = [p.durationMs for p in query.recentProgress if p.numInputRows]
    assert sum(p.numInputRows for p in query.recentProgress) == df.count()
    shutil.rmtree(directory / "checkpoint")
    middle = done[2:-1] or done
    trigger, latest = (statistics.median(d[name] for d in middle) / 1000 for name in ("triggerExecution", "latestOffset"))
    return trigger, latest


def _median_ms(seconds: Iterable[float]) -> str:
    return f"{1000 * statistics.median(seconds):,.0f}"
