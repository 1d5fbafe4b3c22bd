"""Streams of the tests: started in one line, and run to their end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.ledgers import Ledger
from tests.support.running import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

END_SECONDS = PATIENCE_SECONDS
STARTS = 4


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
    """Run a query with AvailableNow to its end; what it fails with is raised.

    Spark gives a Python process ten seconds to start, whatever else the machine does: where that was not enough, the query is
    started again, as somebody would by hand.
    """
    for _ in range(STARTS - 1):
        try:
            return _run(df, checkpoint, sink)
        except Exception as e:
            if "failed to connect back" not in str(e):
                raise
    return _run(df, checkpoint, sink)


def _run(df: DataFrame, checkpoint: Path, sink: Ledger | Callable[[DataFrame, int], None]) -> StreamingQuery:
    query = start(df, checkpoint, sink)
    assert query.awaitTermination(END_SECONDS), "the query does not end"
    return query
