"""The records of finished messages as a table, where the queue keeps them. Imported late, with pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .._store import looking as store
from ..opening import open as open_queue
from ._arrow import arrow_schema
from ._opened import looking
from ._options import BatchOptions
from ._records import CHUNK, record_batch

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@attrs.frozen
class Records(InputPartition):
    """What one task reads: a range of a shard's numbers, both ends included."""

    path: str
    queue_id: str
    shard: int
    first: int
    last: int


class FinishedReader(DataSourceReader):
    """`spark.read` with `state=history`. Records that go between the plan and their reading are left out."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = BatchOptions.of(options, schema)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        out: list[InputPartition] = []
        with open_queue(options.path, read_only=True) as queue:
            for shard in queue._store.shards:
                oldest = queue.history(shard=shard.number, limit=1)
                if not oldest:
                    continue
                newest = shard.look(store.newest_record)
                for first in range(oldest[0].n, newest + 1, options.partition_messages):
                    last = min(first + options.partition_messages - 1, newest)
                    out.append(Records(options.path, queue.queue_id, shard.number, first, last))
        return out

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, Records):
            return  # where there is no task, Spark makes one without a partition
        queue = looking(partition.path, partition.queue_id)
        schema = arrow_schema(self._schema)
        after = partition.first - 1
        while after < partition.last:
            limit = min(CHUNK, partition.last - after)
            page = [r for r in queue.history(shard=partition.shard, after=after, limit=limit) if r.n <= partition.last]
            if not page:
                return
            after = page[-1].n
            yield record_batch(page).cast(schema)
