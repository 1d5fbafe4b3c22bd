"""Make a SPARK_HOME with an archive of the classes that Spark's JVMs load: `python -m tests.support.spark_classes HOME`.

A JVM that maps the archive neither parses nor verifies these classes, which saves a third of its processor time. Making it
takes as long as eight JVMs save, so `.ci/run` makes one for all tests. A JVM without a usable archive loads its classes as usual.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.support.sparks import JAVA_OPTIONS, archived, environment, ledger, make_home, settings, write


def main(home: Path) -> None:
    assert make_home(home), "pyspark is not installed"
    os.environ["SPARK_HOME"] = str(home)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={archived(home)}"
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        os.environ.update(environment(place))
        load_classes(place)


def load_classes(place: Path) -> None:
    """Do in one session what most tests do: a batch, a table, a stream, Parquet, functions on Arrow batches."""
    from pyspark.sql import SparkSession

    import strictq.spark

    spark = SparkSession.builder.master("local[2]").config(map=settings(place)).getOrCreate()
    gateway = spark.sparkContext._gateway
    strictq.spark.register(spark)
    path, files = str(place / "queue"), str(place / "files")
    strictq.open(path).close()
    write(ledger(spark, 100), path, "job")
    table = spark.read.format("strictq").option("path", path).load()
    table.mapInArrow(lambda batches: batches, table.schema).groupBy("key").count().orderBy("key").collect()
    ledger(spark, 100).write.json(str(place / "json"))
    ledger(spark, 100).write.parquet(files)
    rows = spark.readStream.schema(ledger(spark, 0).schema).parquet(files)
    writer = rows.writeStream.format("strictq").options(path=path, orderBy="n", checkpointLocation=str(place / "sink"))
    writer.trigger(availableNow=True).start().awaitTermination()
    source = spark.readStream.format("strictq").options(path=path, consumer="c").load()
    collected = source.writeStream.foreachBatch(lambda df, _: df.collect()).option("checkpointLocation", str(place / "source"))
    collected.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # it writes the archive


if __name__ == "__main__":
    main(Path(sys.argv[1]))
