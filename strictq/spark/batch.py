"""A queue as a table: what is pending, or dead, without leasing it. Imported late, with pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .._store import scan
from .._store.handed import KEY, LANE
from ..opening import open as open_queue
from ._arrow import Builder, arrow_schema
from ._opened import looking
from ._options import BatchOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch


_lane = itemgetter(LANE)


@attrs.frozen
class Lanes(InputPartition):
    """What one task reads: some lanes of a shard, as they were when the job was planned."""

    path: str
    queue_id: str
    shard: int
    plan: scan.Plan
    segments: tuple[scan.Segment, ...]


class BatchReader(DataSourceReader):
    """`spark.read.format("strictq")`. Messages that are acked between the plan and their reading are left out."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = BatchOptions.of(options, schema)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        out: list[InputPartition] = []
        with open_queue(options.path, read_only=True) as queue:
            for shard in queue._store.shards:
                plan = scan.plan_shard(shard, dead=options.state == "dead", per_task=options.partition_messages)
                alone = attrs.evolve(plan, tasks=())  # a task needs to know of its own segments only
                out += [Lanes(options.path, queue.queue_id, shard.number, alone, segments) for segments in plan.tasks]
        return out

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, Lanes):
            return  # where there is no task, Spark makes one without a partition
        queue = looking(partition.path, partition.queue_id)
        builder = Builder(arrow_schema(self._schema), self._options.key_type, started=0)
        shard = queue._store.shards[partition.shard]
        skew = queue._store.time.skew()
        steps = scan.dead if self._options.state == "dead" else scan.pending
        for segment in partition.segments:
            for rows in steps(shard, partition.plan, segment):
                lanes: Iterator[tuple[bytes, list[Any]]] = (
                    (group[0][KEY], group) for group in (list(found) for _, found in groupby(rows, key=_lane))
                )
                for batch, _ in builder.batches(lanes, shard.number, skew):
                    yield batch
