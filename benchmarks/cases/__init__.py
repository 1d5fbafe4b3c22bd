"""Every case by its name, in the order of the table."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Case

from . import (
    backlog,
    checksums,
    command,
    concurrent,
    latency,
    life,
    replication,
    single,
    spark,
    spark_pipeline,
    spark_serve,
    spark_source,
    spark_sparse,
    start,
    worker,
)

CASES: Final[dict[str, Case]] = {
    "life": life.usual,
    "life-large": life.large,
    "life-wide": life.wide,
    "life-full": life.full,
    "checksums": checksums.checksums,
    "one-by-one": single.one_by_one,
    "send": single.send,
    "transactions": single.transactions,
    "threads": concurrent.threads,
    "processes": concurrent.processes,
    "latency": latency.latency,
    "blocked": backlog.blocked,
    "disk": backlog.disk,
    "backlog": backlog.backlog,
    "worker-overlap": worker.overlap,
    "worker-rate": worker.throughput,
    "worker-wake": worker.wake,
    "worker-memory": worker.memory,
    "memory": start.memory,
    "open": start.opening,
    "command": command.command,
    "open-memory": start.opening_in_memory,
    "import": start.importing,
}

SPARK: Final[dict[str, Case]] = {
    "sink": spark.sink,
    "source": spark_source.source,
    "sparse": spark_sparse.sparse,
    "pipeline": spark_pipeline.pipeline,
    "serve": spark_serve.serve,
}
"""Cases that need Spark."""

REPLICATION: Final[dict[str, Case]] = {
    "batches": replication.batches,
    "sends": replication.sends,
    "confirmed": replication.confirmed,
    "restores": replication.restores,
}
"""The cost of a replica."""

SUITES: Final = {"queue": CASES, "replication": REPLICATION, "spark": SPARK}
