"""Order within a key: broken by a shuffle, kept by `ordered`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import strictq
import strictq.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 20_000
KEYS = 50


def numbered(spark: SparkSession, rows: int = ROWS) -> DataFrame:
    """Rows in four partitions, each key's in all of them; `seq` ascends through the whole."""
    return spark.range(0, rows, 1, 4).selectExpr(f"CAST(id % {KEYS} AS STRING) AS key", "id AS seq")


def violations(df: DataFrame) -> int:
    """Rows that come after a later row of their key in the same partition, or in another partition than that."""

    def count(batches: Any) -> Any:
        import pandas

        last: dict[str, int] = {}
        wrong = 0
        for batch in batches:
            for key, seq in zip(batch["key"], batch["seq"], strict=True):
                wrong += last.get(key, -1) > seq
                last[key] = max(seq, last.get(key, -1))
        yield pandas.DataFrame({"wrong": [wrong], "keys": [len(last)]})

    found = df.mapInPandas(count, "wrong LONG, keys LONG").collect()
    return sum(row["wrong"] for row in found) + (sum(row["keys"] for row in found) - KEYS)


def test_a_shuffle_breaks_the_order_and_ordered_restores_it(spark: SparkSession) -> None:
    df = numbered(spark)
    assert violations(df.repartition(3)) > 0
    assert violations(df.repartition(3, "key").orderBy("key").repartition(3)) > 0
    assert violations(strictq.spark.ordered(df.repartition(3), partitions=3)) == 0


def test_the_order_lasts_through_what_works_row_by_row(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    df = strictq.spark.ordered(numbered(spark).repartition(5))
    plus = f.udf(lambda seq: seq + 1, "LONG")
    df = df.withColumn("seq", plus("seq")).filter("seq % 3 <> 0").mapInPandas(lambda batches: batches, df.schema)
    assert violations(df) == 0


def test_groups_by_the_key_are_in_order_too(spark: SparkSession) -> None:
    import pandas

    def wrong(group: pandas.DataFrame) -> pandas.DataFrame:
        return pandas.DataFrame({"wrong": [int((group["seq"].diff() < 0).sum())]})

    shuffled = numbered(spark).repartition(7)
    arranged = strictq.spark.ordered(shuffled)
    assert arranged.groupBy("key").applyInPandas(wrong, "wrong LONG").filter("wrong > 0").count() == 0


def test_partitions_are_as_many_as_asked_for(spark: SparkSession) -> None:
    assert strictq.spark.ordered(numbered(spark, 100), partitions=5).rdd.getNumPartitions() == 5
    assert strictq.spark.ordered(numbered(spark, 100)).rdd.getNumPartitions() == 2  # spark.sql.shuffle.partitions


@pytest.mark.parametrize("partitioned", [False, True], ids=["without", "with"])
def test_a_stream(spark: SparkSession, tmp_path: Path, partitioned: bool) -> None:
    source = str(tmp_path / "source")
    df = numbered(spark, 4_000)
    df.write.parquet(source)
    stream = spark.readStream.schema(df.schema).parquet(source).repartition(3)
    if partitioned:
        stream = strictq.spark.ordered(stream)
    name = f"ordered_{partitioned}"
    checked: list[int] = []
    writer = stream.writeStream.foreachBatch(lambda batch, _: checked.append(violations(batch)))
    query = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert (sum(checked) == 0) is partitioned


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        ("seq", {}, "one column key, not 0"),
        ("key", {}, "one column seq, not 0"),
        ("key, seq, seq", {}, "one column seq, not 2"),
        ("key, array(seq) AS seq", {}, "can't be ordered by the column seq of type array<bigint>"),
        ("CAST(key AS DOUBLE) AS key, seq", {}, "can't be ordered by the column key of type double"),
        ("key, seq", {"partitions": 0}, "partitions"),
        ("key, seq", {"order_by": "position"}, "one column position, not 0"),
    ],
)
def test_what_can_not_be_ordered_is_refused(spark: SparkSession, columns: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(strictq.InvalidArgument, match=match):
        strictq.spark.ordered(numbered(spark, 10).selectExpr(*columns.split(", ")), **options)
