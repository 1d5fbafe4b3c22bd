"""A driver program that is killed while it runs a pipeline: `python -m tests.support.pipeline_driver WHEN QUEUE HOME`.

WHEN: "process" (a handler in this program, in the middle of a batch), or "commit" (executors have processed a batch, and part
of it is committed). HOME: for Spark's own files.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import strictq
import strictq.spark
from strictq.spark._settler import Settler
from tests.support.pipelines import PREPARED, chain, double
from tests.support.sparks import environment, settings

LEASE_SECONDS = 2.0
BATCH = 30
DIES_AT = 45
"""In the second batch, while a third one is leased ahead."""


def main(when: str, path: str, home: Path) -> None:
    """Run the pipeline until it is killed. Never returns."""
    os.environ.update(environment(home))
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config(map=settings(home)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    count = itertools.count(1)  # its next() is one step of the interpreter, so threads can share it

    def kill() -> None:
        if next(count) == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    def process(job: strictq.spark.BatchJob) -> None:
        if when == "process":
            kill()
        chain(job)

    commit = Settler._commit

    def commit_or_die(self: Settler, *message: Any) -> None:
        commit(self, *message)
        kill()

    where: Any = "driver"
    if when == "commit":
        Settler._commit, where = commit_or_die, "executors"  # type: ignore[method-assign]
        process = chain
    with strictq.open(path, durability="process") as q:
        strictq.spark.pipeline(
            spark, q, prepare=double, prepared=PREPARED, process=process, where=where, key_state=True, concurrency=2,
            batch_size=BATCH, batch_size_max=BATCH, lease_seconds=LEASE_SECONDS,
        ).run()  # fmt: skip
    raise AssertionError("nothing killed it")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
