"""The cost of the data source compared with Spark's own. Needs the extra `spark` and Java."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import strictq
from benchmarks.bench import Bench
from benchmarks.measure import ROOT, Durability, Figure, Pairs, Sample, sample

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHARDS = 2
ROWS = {"full": 1_000_000, "short": 200_000, "tiny": 2000}


@contextmanager
def session(directory: Path, master: str = f"local[{SHARDS}]") -> Iterator[SparkSession]:
    """Start a session on two cores with the fast settings, and all of its files in a directory."""
    from pyspark.sql import SparkSession

    import strictq.spark

    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(SHARDS),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        **strictq.spark.session_options(),
    }
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    try:
        spark.sparkContext.setLogLevel("OFF")
        strictq.spark.register(spark)
        yield spark
    finally:
        spark.stop()


def messages(spark: SparkSession, rows: int, keys: int, place: Path) -> DataFrame:
    """Return rows with a key and a body of 100 bytes, read from Parquet files."""
    df = spark.range(0, rows, 1, SHARDS).selectExpr(
        f"CAST(id % {keys} AS STRING) AS key", "rpad(CAST(id AS STRING), 100, sha2(CAST(id AS STRING), 512)) AS body"
    )
    df.write.parquet(str(place))
    return spark.read.parquet(str(place))


def sink(bench: Bench) -> Iterator[Figure]:
    rows, keys = ROWS[bench.sizes.name], bench.sizes.keys
    with bench.place("sink") as place, session(place) as spark:
        df = messages(spark, rows, keys, place / "rows")
        levels: tuple[Durability, ...] = ("process", "full")
        writes: dict[str, Callable[[Path], None]] = {
            "json": lambda to: df.write.json(str(to)),
            "parquet": lambda to: df.write.parquet(str(to)),
            **{level: lambda to: _send(df, to) for level in levels},
        }
        samples: dict[str, list[Sample]] = {name: [] for name in writes}
        for number in range(bench.rounds + 1):
            # One warm-up round. Then every way runs in every round, starting with another one each time.
            names = list(writes)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                to = place / "to"
                if name in levels:
                    strictq.open(to, shards=SHARDS, durability=name).close()  # type: ignore[arg-type]
                taken = sample(rows, lambda name=name, to=to: writes[name](to))  # type: ignore[misc]
                if name in levels:
                    with strictq.open(to, read_only=True) as q:
                        assert q.stats().depth == rows
                shutil.rmtree(to)
                if number:
                    samples[name].append(taken)
    for level in levels:
        yield Figure(
            case="sink",
            what=f"df.write of {rows:,} rows of 100 bytes to {SHARDS} shards",
            unit="per second",
            values=[s.rate for s in samples[level]],
            ours=statistics.median(s.rate for s in samples[level]),
            goal=bench.goal("at least", 500_000.0) if bench.sizes.name == "full" else None,
            durability=level,
            keys=keys,
        )
        for other in ("json", "parquet"):
            pairs = Pairs(
                [Sample(s.seconds, s.messages) for s in samples[level]], [Sample(s.seconds, s.messages) for s in samples[other]]
            )
            yield pairs.figure(
                "sink", f"the same, beside {other}", f"df.write.{other}", unit="times", durability=level, keys=keys
            )


def _send(df: DataFrame, path: Path) -> None:
    df.write.format("strictq").option("path", str(path)).option("jobId", "job").mode("append").save()
