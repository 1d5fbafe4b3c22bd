"""The records of finished messages as a table, where the queue keeps them. Imported late, with pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .._store import looking as store
from ..opening import open as open_queue
from . import _served
from ._arrow import arrow_schema
from ._opened import looking
from ._options import BatchOptions
from ._scanning import Records, fetched

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@attrs.frozen
class Finished(InputPartition):
    """What one task reads: some records of a shard.

    Attributes:
        server: where to read them; None: in the queue's files.
    """

    path: str
    queue_id: str
    records: Records
    server: _served.Served | None


class FinishedReader(DataSourceReader):
    """`spark.read` with `state=history`. Records that go between the plan and their reading are left out."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = BatchOptions.of(options, schema)
        self._server = options.get("server")
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        server = _served.find(self._server, options.path)
        out: list[InputPartition] = []
        with open_queue(options.path, read_only=True) as queue:
            for shard in queue._store.shards:
                oldest = queue.history(shard=shard.number, limit=1)
                if not oldest:
                    continue
                newest = shard.look(store.newest_record)
                for first in range(oldest[0].n, newest + 1, options.partition_messages):
                    last = min(first + options.partition_messages - 1, newest)
                    out.append(Finished(options.path, queue.queue_id, Records(shard.number, first, last), server))
        return out

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, Finished):
            return  # where there is no task, Spark makes one without a partition
        schema = arrow_schema(self._schema)
        if partition.server is not None:
            yield from fetched(partition.server, partition.queue_id, partition.records, schema)
        else:
            yield from partition.records.batches(looking(partition.path, partition.queue_id), schema)
