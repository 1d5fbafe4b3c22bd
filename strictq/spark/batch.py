"""A queue as a table: what is pending, or dead, without leasing it. Imported late, with pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .._store import scan
from ..opening import open as open_queue
from . import _served
from ._arrow import arrow_schema
from ._opened import looking
from ._options import BatchOptions
from ._scanning import Scan, fetched

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@attrs.frozen
class Lanes(InputPartition):
    """What one task reads: some lanes of a shard, as they were when the job was planned.

    Attributes:
        server: where to read them; None: in the queue's files.
    """

    path: str
    queue_id: str
    scan: Scan
    server: _served.Served | None


class BatchReader(DataSourceReader):
    """`spark.read.format("strictq")`. Messages that are acked between the plan and their reading are left out."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = BatchOptions.of(options, schema)
        self._server = options.get("server")
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        server, dead = _served.find(self._server, options.path), options.state == "dead"
        out: list[InputPartition] = []
        with open_queue(options.path, read_only=True) as queue:
            for shard in queue._store.shards:
                plan = scan.plan_shard(shard, dead=dead, per_task=options.partition_messages)
                for segments in plan.tasks:
                    part = Scan(shard.number, dead, options.key_type, plan.newest, plan.last_lane, segments)
                    out.append(Lanes(options.path, queue.queue_id, part, server))
        return out

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, Lanes):
            return  # where there is no task, Spark makes one without a partition
        schema = arrow_schema(self._schema)
        if partition.server is not None:
            yield from fetched(partition.server, partition.queue_id, partition.scan, schema)
        else:
            yield from partition.scan.batches(looking(partition.path, partition.queue_id), schema)
