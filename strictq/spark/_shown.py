"""Convert a queue's columns to those that Spark expects. Imported late, with pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import pyarrow as pa
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from .._values import hints
from .._values.errors import InvalidArgument
from ._arrow import arrow_schema

BODY: Final = "body"
OF_QUEUES: Final = ("queue", "path")
"""The columns after the queues' own in a read of several queues: the origin of a row."""


def body_of(options: Mapping[str, str], others: StructType) -> str:
    """Return the option bodyColumn, the name of the column `body`.

    Raises:
        InvalidArgument: another column has the name.
    """
    name = options.get("bodyColumn") or BODY
    if name != BODY and name in (*others.names, *OF_QUEUES):
        raise InvalidArgument(f"the option bodyColumn must not be {name}: a queue has that column", hint=hints.BODY_COLUMN)
    return name


def shown(own: StructType, body: str, *, many: bool) -> StructType:
    """Return the columns of a queue as Spark sees them."""
    fields = [StructField(body if f.name == BODY else f.name, f.dataType, f.nullable) for f in own]
    if many:
        fields += [StructField(name, StringType(), nullable=False) for name in OF_QUEUES]
    return StructType(fields)


@attrs.frozen
class RowView:
    """A schema that Spark expects, and the one to read for it.

    Attributes:
        wanted: the exact schema for Spark.
        inner: the queue's columns, with its own names.
    """

    wanted: pa.Schema
    inner: pa.Schema
    body: str

    @classmethod
    def of(cls, schema: StructType, body: str, *, many: bool) -> RowView:
        """Return the view of a validated schema."""
        added = OF_QUEUES if many else ()
        own = [StructField(BODY if f.name == body else f.name, f.dataType, f.nullable) for f in schema if f.name not in added]
        # A batch without columns would have no number of rows.
        own = own or [StructField("shard", IntegerType(), nullable=False)]
        return cls(arrow_schema(schema), arrow_schema(StructType(own)), body)

    def show(self, batch: pa.RecordBatch, queue_id: str, path: str) -> pa.RecordBatch:
        """Convert a batch with the columns of `inner` to Spark's schema.

        Args:
            queue_id, path: the batch's queue.
        """
        if self.wanted.names == self.inner.names:
            return batch if batch.schema.metadata is None else batch.replace_schema_metadata(None)
        where = dict(zip(OF_QUEUES, (queue_id, path), strict=True))
        arrays = [
            batch.column(BODY if field.name == self.body else field.name)
            if field.name == self.body or field.name in self.inner.names
            else pa.repeat(pa.scalar(where[field.name], field.type), len(batch))
            for field in self.wanted
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.wanted)
