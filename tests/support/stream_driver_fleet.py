"""A driver that streams a fleet into a ledger until it is killed: `python -m tests.support.stream_driver_fleet PLACE HOME`.

A row's key in the ledger is its queue and its key.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import strictq.spark
from tests.support.sparks import environment, settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST = 120
"""The maximum number of messages in a batch."""


def stream(spark: SparkSession, place: Path, **options: Any) -> DataFrame:
    """Return the fleet's stream, with keys that include the queue."""
    reader = spark.readStream.format("strictq").option("consumer", "etl").option("maxMessagesPerTrigger", MOST)
    df = reader.options(**options).load(f"{place / 'fleet'}/*/")
    return df.selectExpr("concat(queue, '/', key) AS key", "seq", "body")


def main(place: Path, home: Path) -> None:
    """Run the stream until it is killed. Never returns."""
    os.environ.update(environment(home))
    from pyspark.sql import SparkSession

    from tests.support.ledgers import Ledger

    spark = SparkSession.builder.master("local[2]").config(map=settings(home)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    strictq.spark.register(spark)
    writer = stream(spark, place).writeStream.foreachBatch(Ledger(place / "ledger").write)
    writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(processingTime="10 milliseconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
