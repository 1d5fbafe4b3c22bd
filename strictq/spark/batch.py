"""Queues as a table: what is pending, dead, or finished, without leasing it. Imported late, with pyspark."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .. import _hints as hints
from .._errors import InvalidArgument, QueueNotFound, StrictqError
from ..opening import open as open_queue
from . import _block_protocol
from ._opened import looking, settle
from ._options import BatchOptions
from ._plain import plain
from ._scanning import Records, Scan, fetched
from ._shown import RowView

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from ..queue import Queue

_log = logging.getLogger("strictq")


def _opened(path: str, state: str) -> Queue:
    """The queue, to plan from. What is pending may be in the logs of hot lanes: who may write brings it to the tables."""
    if state == "pending" and os.access(path, os.W_OK):
        return open_queue(path, create=False)
    return open_queue(path, read_only=True)


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


@plain("partitions", "read")
class BatchReader(DataSourceReader):
    """`spark.read.format("strictq")`. What is acked, or no longer kept, between the plan and its reading is left out."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = BatchOptions.of(options, schema)
        self._server = options.get("server")
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        paths = self._options.paths
        if not paths.many:
            return self._planned(paths.one)
        tasks: list[InputPartition] = []
        seen: dict[str, str] = {}
        missing = paths.missing()
        for path in sorted({*paths.found(), *missing}):
            try:
                if path in missing:
                    raise QueueNotFound(f"there is no queue at {path}")
                planned = self._planned(path, seen)
            except (StrictqError, OSError) as e:
                if self._options.fail_on_missing:
                    if isinstance(e, StrictqError):
                        e.hint = hints.FAIL_ON_MISSING
                    raise
                _log.warning("the queue at %s is left out: %s", path, e)
            else:
                tasks += planned
        return tasks

    def _planned(self, path: str, seen: dict[str, str] | None = None) -> list[InputPartition]:
        """The tasks of one queue.

        Args:
            seen: queues that were planned: id → path.
        """
        options = self._options
        server = _block_protocol.find(self._server, path)
        kind = Records if options.state == "history" else Scan
        with _opened(path, options.state) as queue:
            if seen is not None and seen.setdefault(queue.queue_id, path) != path:
                if os.path.samefile(seen[queue.queue_id], path):
                    return []
                raise InvalidArgument(f"{path} is a copy of {seen[queue.queue_id]}", hint=hints.ONE_COPY)
            return [TableTask(path, queue.queue_id, what, server) for what in kind.planned(queue, options)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, TableTask):
            return  # where there is no task, Spark makes one without a partition
        view = RowView.of(self._schema, self._options.body, many=self._options.paths.many)
        path, queue_id = partition.path, partition.queue_id
        if partition.server is not None:
            batches = fetched(partition.server, queue_id, partition.what, view.inner)
        else:
            batches = partition.what.batches(looking(path, queue_id), view.inner)
        for batch in batches:
            yield view.show(batch, queue_id, path)
        settle()
