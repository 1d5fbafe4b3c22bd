"""A stream from one queue into another is exactly once end to end, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import strictq
from strictq import Queue
from tests.support.ledgers import bodies, send_chains

from .streams import END_SECONDS, load

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession

KEYS = [f"k{n}" for n in range(12)]
SENT = 10


def received(q: Queue) -> dict[str, list[str]]:
    """The bodies of each key, in order."""
    return {key: [m.body.decode() for m in q.peek(key, 1000)] for key in KEYS}


def test_exactly_once_although_a_worker_is_killed(spark: SparkSession, queue_path: str, tmp_path: Path) -> None:
    marker = tmp_path / "killed"

    def clean(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            if not marker.exists() and 5 in batch.column("seq").to_pylist():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    with strictq.open(queue_path, shards=2, durability="process") as source:
        send_chains(source, KEYS, SENT)
        with strictq.open(tmp_path / "cleaned", shards=2, durability="process") as target:
            df = load(spark, source.path, maxMessagesPerTrigger=50).select("key", "seq", "body")
            query = (
                df.mapInArrow(clean, df.schema)
                .writeStream.format("strictq")
                .options(path=target.path, orderBy="seq", checkpointLocation=str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
            )
            assert query.start().awaitTermination(END_SECONDS), "Spark runs the task again"
            assert marker.exists()
            assert query.start().awaitTermination(END_SECONDS), "nothing is left"
            assert received(target) == {key: [b.decode() for b in bodies(key, SENT)] for key in KEYS}
            assert target.stats().sends == len(KEYS) * SENT
            assert json.loads(received(target)["k0"][-1])["n"] == SENT
            assert (source.stats().depth, source.check(), target.check()) == (0, [], [])
