"""A queue as a table: what is pending, dead, or finished, without leasing it. Imported late, with pyspark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..opening import open as open_queue
from . import _block_protocol
from ._arrow import arrow_schema
from ._opened import looking, settle
from ._options import BatchOptions
from ._scanning import Records, Scan, fetched

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from ..queue import Queue


def _opened(options: BatchOptions) -> Queue:
    """The queue, to plan from. What is pending may be in the logs of hot lanes: who may write brings it to the tables."""
    if options.state == "pending" and os.access(options.path, os.W_OK):
        return open_queue(options.path, create=False)
    return open_queue(options.path, read_only=True)


@attrs.frozen
class TableTask(InputPartition):
    """What one task reads, as it was when the job was planned.

    Attributes:
        server: where to read it; None: in the queue's files.
    """

    path: str
    queue_id: str
    what: Scan | Records
    server: _block_protocol.Served | None


class BatchReader(DataSourceReader):
    """`spark.read.format("strictq")`. What is acked, or no longer kept, between the plan and its reading is left out."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = BatchOptions.of(options, schema)
        self._server = options.get("server")
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        server = _block_protocol.find(self._server, options.path)
        kind = Records if options.state == "history" else Scan
        with _opened(options) as queue:
            return [TableTask(options.path, queue.queue_id, what, server) for what in kind.planned(queue, options)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, TableTask):
            return  # where there is no task, Spark makes one without a partition
        schema = arrow_schema(self._schema)
        if partition.server is not None:
            yield from fetched(partition.server, partition.queue_id, partition.what, schema)
        else:
            yield from partition.what.batches(looking(partition.path, partition.queue_id), schema)
        settle()
