"""A queue as a stream: each micro-batch is a durable batch of a named consumer. Imported late, with pyspark.

Spark calls the offset methods in one process per query, and `read` in its workers. Only the former holds the
consumer. See docs/explanation/spark.md for the steps.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from .._store.api import Part
from .._values import hints
from .._values.errors import ConsumerBusy, QueueNotFound, RecordedBatchGone, ServerUnreachable
from ..opening import open as open_queue
from ..queue import Queue
from . import _block_client, _block_protocol
from ._arrow import Builder, arrow_schema, encoder, unpack
from ._opened import looking, settle
from ._options import StreamOptions
from ._paths import FIRST_SHARD, place_of
from ._plain import OFFSET_METHODS, is_of_spark, plain
from ._recorded_batches import RECORDED_BATCH_MESSAGES_MAX, Holder, read_block, rejected
from ._shown import BODY, RowView
from ._table_columns import read_schema

if TYPE_CHECKING:
    from types import FrameType

    from pyarrow import RecordBatch

    from .._store.api import Encode


REPORT_SHARE: Final = 10
"""Counting the remaining messages takes at most 1/n of the time."""


@attrs.frozen
class Blocks(InputPartition):
    """The blocks of a recorded batch that one task reads, in order.

    Attributes:
        blocks: (shard, first, last) each.
        server: the block server to read from; None: read the queue's files.
        messages: number of their messages.
    """

    path: str
    queue_id: str
    consumer: str
    n: int
    blocks: tuple[tuple[int, int, int], ...]
    server: _block_protocol.Served | None
    messages: int


@plain(*OFFSET_METHODS, "read")
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Implements `spark.readStream.format("strictq")`. An offset has the queue, the consumer, and the number of a batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, checked: StreamOptions | None = None) -> None:
        self._given = options
        self._checked = checked
        self._server = options.get("server")
        self._served: _block_protocol.Served | None = None
        self._schema = schema
        self._queue: Queue | None = None
        self._held: Holder | None = None
        self._place: tuple[int, int] | None = None
        """The identity of the open queue's first shard."""
        self._arrived: dict[int, int] | None = None
        self._report_at = 0.0
        self._reported: dict[str, Any] | None = None

    @cached_property
    def _options(self) -> StreamOptions:
        """The options, validated at the first use. For an error in the constructor, Spark's runner would show another one."""
        return self._checked or StreamOptions.of(self._given, self._schema)

    # ---- process of the query

    def _holder(self) -> Holder:
        """Return the consumer, held from the first call on."""
        if self._held is None:
            options = self._options
            place = place_of(options.path, FIRST_SHARD)  # before it is opened, so that a queue that replaces it is noticed
            queue = open_queue(options.path, create=False)
            try:
                held = Holder(queue, options.consumer, self._encode(queue), keep=options.keep, packed=True, deferring=True)
                held.attach(options.wait_seconds)
            except ConsumerBusy as e:
                queue.close()
                e.hint = hints.CONSUMER_IN_QUERY
                raise
            except BaseException:
                queue.close()
                raise
            self._queue, self._held, self._place = queue, held, place
            _stop_on_sigterm()
        return self._held

    def is_in_place(self) -> bool:
        """Return whether the path still has the queue that is open; True if none is."""
        return self._held is None or place_of(self._options.path, FIRST_SHARD) == self._place

    def _encode(self, queue: Queue, mark: Mapping[str, str] | None = None) -> Encode:
        """Return the function that packs batches. It packs all columns, because another query may have to repeat the batches.

        Args:
            mark: metadata to write into every block.
        """
        key_type = self._options.key_type
        builder = Builder(arrow_schema(read_schema(key_type)).with_metadata(mark), key_type)
        return encoder(builder, lambda: queue._storage.skew)

    def _offset(self, after: int, n: int) -> dict[str, Any]:
        """Return the offset after batch n. A micro-batch that ends here has the batches after `after`.

        A micro-batch is identified by its end alone, because Spark requests the initial offset again when it repeats batch 0, and
        it may have changed by then.
        """
        options = self._options
        assert self._queue is not None
        known = self._queue._storage.replicating.known
        history = {} if known is None else {"history": known.history_id}
        return {
            "queue": self._queue.queue_id, "consumer": options.consumer, "after": after, "n": n, "path": options.path, **history,
        }  # fmt: skip

    def _number(self, offset: Mapping[str, Any]) -> int:
        """Return the batch number of an offset.

        Raises:
            RecordedBatchGone: the offset belongs to another queue or consumer, or to the original of a copy.
        """
        self._holder()
        assert self._queue is not None
        if "queues" in offset:
            raise RecordedBatchGone("the checkpoint is of several queues", hint=hints.FLEET_CHECKPOINT)
        for what, ours in (("queue", self._queue.queue_id), ("consumer", self._options.consumer)):
            if offset.get(what) != ours:
                raise RecordedBatchGone(
                    f"the checkpoint is of {what} {offset.get(what)!r}, and this is {ours!r}",
                    hint=hints.OWN_CHECKPOINT,
                )
        if self._is_original(offset):
            # Batches recorded after the copy's last segment are not in it. Their numbers would be reused for other messages.
            raise RecordedBatchGone(
                "the checkpoint is of the queue from which this one was restored or promoted", hint=hints.NEW_CHECKPOINT
            )
        return int(offset["n"])

    def _is_original(self, offset: Mapping[str, Any]) -> bool:
        """Return whether an offset belongs to the queue from which this one was restored or promoted."""
        assert self._queue is not None
        known, history = self._queue._storage.replicating.known, offset.get("history")
        return history != (known and known.history_id) and (history is not None or (known is not None and known.floor_time > 0))

    def initialOffset(self) -> dict[str, Any]:
        acked = self._holder().acked
        return self._offset(acked, acked)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._arrived = self._holder().arrived()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        n = self._number(start)
        if not self.is_in_place():
            raise QueueNotFound(
                f"the queue at {self._options.path} was removed, or replaced by another one, since this query opened it",
                hint=hints.QUEUE_BACK,
            )
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else RECORDED_BATCH_MESSAGES_MAX
        size = self._options.bytes_max
        following = self._holder().take(
            n, messages_max=most, bytes_max=size, arrived=self._arrived, ahead=isinstance(limit, ReadMaxRows)
        )
        return start if following == n else self._offset(n, following)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest offset for Spark's progress: the remaining messages of the query.

        Counting takes longer the more lanes are leased, and Spark calls this after every poll. So counting takes at most a
        tenth of the time, and the last count is repeated in between.
        """
        if self._held is None:
            return None
        began = time.monotonic()
        if began >= self._report_at:
            self._reported = self._count(self._held)
            self._report_at = began + REPORT_SHARE * (time.monotonic() - began)
        return self._reported

    def _count(self, held: Holder) -> dict[str, Any]:
        assert self._queue is not None
        stats, unprocessed = self._queue.stats(), held.unprocessed()
        return {
            "queue": self._queue.queue_id, "consumer": self._options.consumer, "n": held.last, "lag": stats.ready + unprocessed,
            "oldest_age_seconds": stats.oldest_age_seconds, "path": self._options.path,
        }  # fmt: skip

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last = self._number(end)
        if start == end:
            return []
        held = self._holder()
        return [p for n in range(int(end["after"]) + 1, last + 1) for p in self._split(n, held.parts(n))]

    def _split(self, n: int, parts: Iterable[Part]) -> Iterator[Blocks]:
        """Yield tasks of about the wanted size. A lane is never split between two, because its order would be lost."""
        options = self._options
        assert self._queue is not None
        queue_id, server = self._queue.queue_id, self._find_server()
        blocks: list[tuple[int, int, int]] = []
        messages = 0
        for part in parts:
            if part.fresh and messages >= options.partition_messages:
                yield Blocks(options.path, queue_id, options.consumer, n, tuple(blocks), server, messages)
                blocks, messages = [], 0
            if blocks and blocks[-1][0] == part.shard:
                blocks[-1] = (part.shard, blocks[-1][1], part.part)
            else:
                blocks.append((part.shard, part.part, part.part))
            messages += part.messages
        if blocks:
            yield Blocks(options.path, queue_id, options.consumer, n, tuple(blocks), server, messages)

    def _find_server(self) -> _block_protocol.Served | None:
        """Return the current server, which may have replaced another one. While there is none, tasks wait at the last address."""
        try:
            self._served = _block_protocol.find(self._server, self._options.path)
        except ServerUnreachable:
            if self._served is None:
                raise
        return self._served

    def commit(self, end: dict[str, Any]) -> None:
        self._holder().ack(self._number(end))

    def stop(self) -> None:
        if _handles_signals():  # Spark's SIGTERM may come while this runs, and would end it between two shards
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        held, self._held = self._held, None
        queue, self._queue = self._queue, None
        if held is not None:
            held.close()
        if queue is not None:
            queue.close()

    # ---- in the workers

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, Blocks):
            return  # an empty batch has a task without a partition
        view = RowView.of(self._schema, self._given.get("bodyColumn") or BODY, many=False)
        yield from recorded(partition, view, partition.path)
        settle()


def _stop_on_sigterm() -> None:
    """Let the process of a query call `stop`. Spark ends it with SIGTERM, sent twice, which would end it at once."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    if _handles_signals():
        signal.signal(signal.SIGTERM, end)


def _handles_signals() -> bool:
    """Return whether this is a process that Spark started for a query, in the thread that may handle its signals."""
    return is_of_spark() and threading.current_thread() is threading.main_thread()


def recorded(task: Blocks, view: RowView, path: str) -> Iterator[RecordBatch]:
    """Yield the messages of a task.

    Args:
        path: the value of the column path.
    """
    consumer, n = task.consumer, task.n
    if task.server is not None:
        for data in _block_client.blocks(task.server, task.queue_id, consumer, n, task.blocks):
            yield view.show(unpack(data, view.inner, ()), task.queue_id, path)
        return
    queue = looking(task.path, task.queue_id)
    for shard, first, last in task.blocks:
        without = rejected(queue, consumer, n, shard)
        for part in range(first, last + 1):
            data = read_block(queue, consumer, n, shard, part)
            yield view.show(unpack(data, view.inner, without), task.queue_id, path)
