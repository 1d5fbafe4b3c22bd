"""Guarantee the order within a key in a Spark plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .._client import validate
from .._platform.extras import need_spark
from .._values import hints
from .._values.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PARTITIONS_MAX = 1_000_000


def ordered(df: DataFrame, *, key: str = "key", order_by: str = "seq", partitions: int | None = None) -> DataFrame:
    """Return the same rows, with the rows of each key together in one partition, in ascending order.

    Spark keeps the order of rows through row-wise operations (select, filter, withColumn, Python UDFs, mapInPandas,
    mapInArrow), so it lasts until the next shuffle. After `repartition`, a join or a grouping by another column, call this again:
    later operations on the returned DataFrame cannot be checked here.

    Args:
        df: a batch or streaming DataFrame. Each micro-batch of a stream is ordered separately, with one partition in memory.
        key: the column whose values are kept together. NULL counts as a separate key.
        order_by: the column that orders the rows of a key. The order of rows with equal values is undefined; NULL comes first.
        partitions: 1..1,000,000; None: `spark.sql.shuffle.partitions`.
    Raises:
        InvalidArgument: df is not a DataFrame; a column is missing, repeated, or of a type without an order; or partitions is out
            of range.
        MissingExtra: pyspark or pyarrow is not installed.
    Source: docs/explanation/spark.md
    """
    need_spark()
    from pyspark.sql import DataFrame

    from ._sink_rows import BYTES, ORDERED, WHOLE

    if not isinstance(df, DataFrame):
        raise InvalidArgument(f"df must be a DataFrame, not {type(df).__name__}", hint=hints.GIVE_FRAME)
    for name in (key, order_by):
        found = [field.dataType for field in df.schema.fields if field.name == name]
        if len(found) != 1:
            there = ", ".join(df.columns)
            raise InvalidArgument(f"there must be one column {name}, not {len(found)}", hint=hints.COLUMNS_ARE.of(columns=there))
        kinds = (*BYTES, *WHOLE) if name == key else ORDERED
        if not isinstance(found[0], kinds):
            raise InvalidArgument(f"rows can't be ordered by the column {name} of type {found[0].simpleString()}")
    if partitions is None:
        partitions = int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    # An explicit number, because without one Spark may merge partitions, or split a large one, at run time.
    together = df.repartition(validate.whole("partitions", partitions, 1, PARTITIONS_MAX), df[key])
    if not df.isStreaming:
        return together.sortWithinPartitions(key, order_by)

    def arranged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow
        from pyarrow import compute

        rows = list(batches)
        if rows:
            # NULL first, as with sortWithinPartitions.
            order = [(key, "ascending"), (order_by, "ascending")]
            table = pyarrow.Table.from_batches(rows)
            places = compute.sort_indices(table, sort_keys=order, null_placement="at_start")
            yield from table.take(places).to_batches(max_chunksize=10_000)

    # Spark refuses to sort a stream, although each of its micro-batches could be sorted.
    return together.mapInArrow(arranged, df.schema)
