"""Read queues as a table without leasing: pending messages, dead letters, or finished messages. Imported late, with pyspark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .._platform.log import log as _log
from .._store.api import Storage
from .._values import hints
from .._values.errors import InvalidArgument, QueueNotFound, StrictqError
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


def _opened(path: str, state: str) -> Queue:
    """Open the queue for planning. Pending messages may be in logs of hot lanes; opening for writing moves them to the tables.

    Tasks of a queue that is opened read-only look into these logs, which takes longer. A restored copy that is not in service
    can only be opened so.
    """
    if state == "pending" and os.access(path, os.W_OK):
        known = Storage.facts(Path(path), read_only=True)
        if known is None or known.replication is None or known.replication.mode != "waiting":
            return open_queue(path, create=False)
    return open_queue(path, read_only=True)


@attrs.frozen
class TableTask(InputPartition):
    """The part of a queue that one task reads, as of the job's planning.

    Attributes:
        server: the block server to read from; None: read the queue's files.
    """

    path: str
    queue_id: str
    what: Scan | Records
    server: _block_protocol.Served | None


@plain("partitions", "read")
class BatchReader(DataSourceReader):
    """Implements `spark.read.format("strictq")`. Messages acked or deleted since the planning are left out."""

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
        """Return the tasks of one queue.

        Args:
            seen: the queues planned so far: id → path.
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
            return  # without tasks, Spark makes one without a partition
        view = RowView.of(self._schema, self._options.body, many=self._options.paths.many)
        path, queue_id = partition.path, partition.queue_id
        if partition.server is not None:
            batches = fetched(partition.server, queue_id, partition.what, view.inner)
        else:
            batches = partition.what.batches(looking(path, queue_id), view.inner)
        for batch in batches:
            yield view.show(batch, queue_id, path)
        settle()
