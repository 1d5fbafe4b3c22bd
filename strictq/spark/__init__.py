"""strictq on Spark: a queue as a data source and as a sink of PySpark.

```python
import strictq.spark

strictq.spark.register(spark)
df.write.format("strictq").option("path", "orders.strictq").option("jobId", "import-2026-11").mode("append").save()
```

pyspark is imported by the first call of a function here, not by `import strictq.spark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._platform.extras import need_spark
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
    """Register `format("strictq")` with a Spark session, and make it the active one of this thread. It can be called again.

    Spark looks for a source in the active session of the thread that reads or writes. A thread that your program starts has
    none, and does not find the source until it calls this.

    Args:
        spark: the session that reads and writes queues.
    Raises:
        MissingExtra: pyspark or pyarrow is not installed; nothing was changed.
        InvalidArgument: it is not a session; nothing was changed.
        ConfigError: this pyspark is too old, or the interpreter of Spark's Python processes (PYSPARK_PYTHON) is missing, has
            another version than this program's, or lacks a package; nothing was changed. Only the driver's machine is checked.
    Source: docs/howto/spark.md
    """
    need_spark()
    from ._ack_listener import listen
    from ._interpreter import require_interpreter, require_session
    from .datasource import StrictqDataSource

    require_session(spark)
    require_interpreter(spark)
    spark.dataSource.register(StrictqDataSource)
    spark.createDataFrame([], "nothing int")  # what makes a session active, in public
    listen(spark)


def __getattr__(name: str) -> object:
    if name == "BatchJob":  # its module needs pyarrow
        need_spark()
        from ._outcomes import BatchJob

        return BatchJob
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
