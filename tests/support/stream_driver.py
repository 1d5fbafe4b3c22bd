"""A driver program that streams a queue into a ledger and kills itself: `python -m tests.support.stream_driver WHEN PLACE HOME`.

WHEN: "sink" (in batch 1, between Spark's offsets and its commit, before the sink has written), "ack" (after the sink and Spark's
commit of batch 0, before the queue is notified), "last" (the sink has written AvailableNow's last batch). HOME: for Spark's own
files.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import strictq.spark
from tests.support.ledgers import Ledger
from tests.support.running import PATIENCE_SECONDS
from tests.support.sparks import environment, settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST = 100
"""The maximum number of messages in a batch."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(when: str, place: Path, home: Path) -> None:
    """Run the stream until it is killed. Never returns."""
    os.environ.update(environment(home))
    from pyspark.sql import SparkSession

    from strictq.spark import _ack_listener

    spark = SparkSession.builder.master("local[2]").config(map=settings(home)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
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
    strictq.spark.register(spark)
    stream = spark.readStream.format("strictq").option("path", str(place / "queue")).option("consumer", "etl")
    df = stream.option("maxMessagesPerTrigger", MOST).load()
    # "once" runs a batch of everything, and no request for a next one, which would ack it.
    trigger: dict[str, Any] = {"once": True} if when == "ack" else {"availableNow": True}
    writer = df.writeStream.foreachBatch(write).option("checkpointLocation", str(place / "checkpoint"))
    writer.trigger(**trigger).start().awaitTermination()
    time.sleep(PATIENCE_SECONDS)
    raise AssertionError("nothing killed it")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
