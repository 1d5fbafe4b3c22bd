"""Many keys with few messages each: the cost of the source and the sink per lane."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import strictq
from benchmarks.bench import Bench
from benchmarks.measure import Figure, run_child

from .spark import ROWS, SHARDS, messages, session
from .spark_source import BATCHES, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = 0.7
"""Keys per message."""
SPARSE_ROWS = {"full": 1_000_000, "short": 1_000_000, "tiny": 2000}
"""With fewer rows the fixed costs of a trigger would hide the cost per lane."""
MANY_SHARDS = 64
FEW_SHARDS = 4
COMMITTED_ROWS = {"full": (1_000_000, 10_000_000), "short": (1_000_000, 3_000_000), "tiny": (2000, 4000)}
BODY_BYTES = 30
BASE_ROWS = 1000
"""Rows of the small commit whose memory is subtracted: that of imports and an open queue."""


def sparse(bench: Bench) -> Iterator[Figure]:
    """Measure commits of rows with a key each, a stream over lanes of one or two messages, and a stream over many shards."""
    yield from _commits(bench)
    rows, few_rows = SPARSE_ROWS[bench.sizes.name], ROWS[bench.sizes.name]
    keys, each = int(KEYS * rows), rows // BATCHES
    with bench.place("sparse") as place, session(place) as spark:
        df = messages(spark, rows, keys, place / "rows")
        runs = [_triggers(spark, df, place, each, SHARDS) for _ in range(bench.rounds)]
        yield Figure(
            case="sparse", what=f"latestOffset of the trigger time, {each:,} messages a batch of {keys:,} keys", unit="times",
            values=[latest / trigger for trigger, latest in runs], goal=bench.goal("below", 0.5), durability="process", keys=keys,
            note=f"trigger {_median_ms(t for t, _ in runs)} ms, latestOffset {_median_ms(at for _, at in runs)} ms",
        )  # fmt: skip
        usual = messages(spark, few_rows, bench.sizes.keys, place / "usual")
        each = few_rows // BATCHES
        few, many = [], []
        for _ in range(bench.rounds):
            few.append(_triggers(spark, usual, place, each, FEW_SHARDS)[0])
            many.append(_triggers(spark, usual, place, each, MANY_SHARDS)[0])
        yield Figure(
            case="sparse", what=f"trigger time with {MANY_SHARDS} shards, beside {FEW_SHARDS}", unit="times",
            values=[a / b for a, b in zip(many, few, strict=True)], goal=bench.goal("below", 1.3), durability="process",
            keys=bench.sizes.keys, note=f"{_median_ms(many)} and {_median_ms(few)} ms, {each:,} messages a batch",
        )  # fmt: skip


def _commits(bench: Bench) -> Iterator[Figure]:
    """Measure the memory of a process that commits, above that of one that commits a few rows."""
    base = _committed(bench, BASE_ROWS)
    for rows in COMMITTED_ROWS[bench.sizes.name]:
        found = _committed(bench, rows)
        if base["peak"] is None:
            return
        grown = found["peak"] - base["peak"]
        yield Figure(
            case="sparse", what=f"memory of the commit of {rows:,} rows to {FEW_SHARDS} shards, a row", unit="bytes",
            values=[2**20 * grown / rows], goal=bench.goal("below", 64.0), durability="process", keys=rows,
            note=f"{grown:,.0f} MiB above {base['peak']:,.0f}; {found['seconds']:,.1f} s",
        )  # fmt: skip


def _committed(bench: Bench, rows: int) -> dict[str, Any]:
    with bench.place("committed") as place:
        path = place / "queue"
        strictq.open(path, shards=FEW_SHARDS, durability="process").close()
        staged = run_child("staging", path=path, job="job", rows=rows, files=SHARDS, body_bytes=BODY_BYTES)
        return run_child("committing", path=path, job="job", files=staged["files"])


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
