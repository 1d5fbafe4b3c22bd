"""strictq on Spark: a queue as a data source and as a sink of PySpark.

```python
import strictq.spark

strictq.spark.register(spark)
df.write.format("strictq").option("path", "orders.strictq").option("jobId", "import-2026-11").mode("append").save()
```

pyspark is imported when something here is called, never by `import strictq.spark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._extras import need_spark
from ._pipeline import Pipeline, PipelineStats, pipeline
from .ordering import ordered
from .serving import BlockServer, serve
from .settings import session_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ._outcomes import BatchJob

__all__ = [
    "BatchJob",
    "BlockServer",
    "Pipeline",
    "PipelineStats",
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
    need_spark()
    from ._ack_listener import listen
    from ._interpreter import require_interpreter
    from .datasource import StrictqDataSource

    require_interpreter(spark)
    spark.dataSource.register(StrictqDataSource)
    listen(spark)


def __getattr__(name: str) -> object:
    if name == "BatchJob":  # it stands beside what needs pyarrow
        need_spark()
        from ._outcomes import BatchJob

        return BatchJob
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
