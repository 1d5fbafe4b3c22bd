"""Streams of the tests: started in one line, and run to their end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.ledgers import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

END_SECONDS = 120


def load(spark: SparkSession, path: str, consumer: str = "etl", **options: object) -> DataFrame:
    """The stream of a queue."""
    reader = spark.readStream.format("strictq").option("path", path).option("consumer", consumer)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def start(df: DataFrame, checkpoint: Path, sink: Ledger | Callable[[DataFrame, int], None], **trigger: Any) -> StreamingQuery:
    """Start a query; without a trigger, with AvailableNow."""
    write = sink.write if isinstance(sink, Ledger) else sink
    writer = df.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def run(df: DataFrame, checkpoint: Path, sink: Ledger | Callable[[DataFrame, int], None]) -> StreamingQuery:
    """Run a query with AvailableNow to its end; what it fails with is raised."""
    query = start(df, checkpoint, sink)
    assert query.awaitTermination(END_SECONDS), "the query does not end"
    return query
