"""strictq on Spark: a queue as a data source and as a sink of PySpark.

```python
import strictq.spark

strictq.spark.register(spark)
df.write.format("strictq").option("path", "orders.strictq").option("jobId", "import-2026-11").mode("append").save()
```

pyspark is imported when something here is called, never by `import strictq.spark`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..queue import Queue
from ._extra import need, require
from ._pipeline import Pipeline, PipelineStats, pipeline
from .ordering import ordered
from .serving import BlockServer, serve
from .settings import session_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ._outcomes import BatchJob
    from .export import Exported

__all__ = [
    "BatchJob",
    "BlockServer",
    "Pipeline",
    "PipelineStats",
    "export_history",
    "ordered",
    "pipeline",
    "register",
    "serve",
    "session_options",
]


def register(spark: SparkSession) -> None:
    """Make `format("strictq")` known to a Spark session. Calling it again does nothing more.

    Args:
        spark: the session whose reads and writes are to use strictq queues.
    Raises:
        MissingExtra: pyspark or pyarrow is not installed; nothing changed.
        ConfigError: this pyspark is too old, or the interpreter of Spark's Python processes (PYSPARK_PYTHON) is not there, is of
            another version than this program's, or lacks a package; nothing changed. Only the driver's machine is looked at.
    Source: docs/howto/spark.md
    """
    require()
    from ._interpreter import require_interpreter
    from ._listener import listen
    from .datasource import StrictqDataSource

    require_interpreter(spark)
    spark.dataSource.register(StrictqDataSource)
    listen(spark)


def export_history(
    queue: Queue,
    out: str | os.PathLike[str],
    *,
    bodies: bool = True,
    forget: bool = False,
    file_records: int = 500_000,
    on_progress: Callable[[int, int], object] | None = None,
) -> Exported:
    """Roll a queue's records of finished messages out to Parquet files, going on where the last export to `out` ended.

    Each file has a range of one shard's records and appears whole, synced, under a name that says which; so a crash leaves
    neither a hole nor a record twice. Records that are made meanwhile are left for the next run. Needs no Spark.

    Args:
        out: a directory of its own, made if it is missing; on a local file system.
        bodies: with the bodies that the queue kept (`history="bodies"`); False: without.
        forget: remove records from the queue once the file they are in is durable.
        file_records: most records of one file, 1..100,000,000.
        on_progress: called with the records written so far, and how many there may be.
    Raises:
        MissingExtra: pyarrow is not installed; nothing changed.
        InvalidArgument: `out` is inside the queue's directory; nothing changed.
        ExportError: `out` has something else in it, or lacks a file, or can't be written. Files that were made stay.
        StoreError: the queue can't be read; files that were made stay.
    Source: docs/howto/history.md
    """
    need("pyarrow")
    from .export import export

    return export(queue, out, bodies=bodies, forget=forget, file_records=file_records, on_progress=on_progress)


def __getattr__(name: str) -> object:
    if name == "BatchJob":  # it stands beside what needs pyarrow
        require()
        from ._outcomes import BatchJob

        return BatchJob
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
