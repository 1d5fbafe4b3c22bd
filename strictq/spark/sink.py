"""Write to a queue: tasks stage rows in files, which become messages when Spark commits. Imported late, with pyspark.

Spark creates a writer in one process, sends copies of it to the tasks, and commits in a third process. Tasks do not
open the queue. See docs/explanation/spark.md for the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .._client import validate
from .._platform.files import failure, real_path
from .._store.api import Staging, Storage, StreamBatch, Token, new_run
from .._values import hints
from .._values.errors import InvalidArgument, QueueNotFound, StoreError
from ..opening import open as open_queue
from ._apply import StagedFile, apply, finish_others
from ._block_client import RemoteStaging, Upload
from ._block_protocol import Served, find
from ._option_names import Use, require_known
from ._options import number
from ._paths import path_of
from ._plain import plain
from ._sink_rows import Layout, layout, staged
from ._tables import READ_ONLY

if TYPE_CHECKING:
    from pyarrow import RecordBatch

ON_MISMATCH: Final = ("fail", "skip")
ROOM_WAIT_SECONDS: Final = 60
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
APPLICATION_ID: Final = "spark.app.id"
EXECUTION_ID: Final = "spark.sql.execution.root.id"
"""A number of the application. All writes of a batch in `foreachBatch` have the same, and no two executions of a batch."""


@attrs.frozen
class TaskCommit(WriterCommitMessage):
    """A task's message to the commit: the file that it wrote.

    Attributes:
        writer, number: its batch.
        origin: the batch of a stream that writes it in `foreachBatch`.
        run: the identifier of the try.
        partition: its position among the tasks.
        name: the name of the file; None: there were no rows.
        rows: number of its rows.
    """

    writer: str
    number: int
    origin: StreamBatch | None
    run: str
    partition: int
    name: str | None
    rows: int


@attrs.frozen
class Target:
    """The state shared by all copies of a writer.

    Attributes:
        server: the block server for staging; None: tasks stage in the queue's directory.
        wait: seconds that a batch waits for room.
    """

    path: Path
    queue_id: str
    layout: Layout
    skip_others: bool
    run: str
    server: Served | None
    wait: float

    def staging(self, writer: str) -> Staging | RemoteStaging:
        """Return the staging area of a writer for tasks."""
        if self.server is not None:
            return RemoteStaging(self.server, self.queue_id, writer)
        return Staging(self.path, writer)


def target(options: Mapping[str, str], schema: StructType, use: Use, *, overwrite: bool, table: bool = False) -> Target:
    """Validate a write as far as possible before the first row.

    Raises:
        InvalidArgument, QueueNotFound, StoreError: the write is not possible; nothing was changed.
    """
    if overwrite:
        raise InvalidArgument("a queue can't be overwritten", hint=hints.APPEND_ONLY)
    require_known(options, use)
    path = Path(real_path(path_of(options)))
    on_mismatch = options.get("onMismatch", "fail").lower()
    if on_mismatch not in ON_MISMATCH:
        raise InvalidArgument(f"the option onMismatch must be {' or '.join(ON_MISMATCH)}, not {on_mismatch!r}")
    known_queue = Storage.facts(path)
    if known_queue is None:
        raise QueueNotFound(f"there is no queue at {path}", hint=hints.MAKE_QUEUE_IN_DRIVER)
    read_only = READ_ONLY if table else ()
    columns = layout(schema, options.get("orderBy"), known_queue.config, options.get("bodyColumn"), read_only)
    server = find(options.get("server"), str(path))
    wait = number(options, "roomWaitSeconds", ROOM_WAIT_SECONDS, 86_400, 0)
    return Target(path, known_queue.queue_id, columns, on_mismatch == "skip", new_run(), server, wait)


class Output:
    """The file of one task, created with its first row."""

    def __init__(self, place: Staging | RemoteStaging, number: int, run: str) -> None:
        self._place = place
        self._number = number
        self._run = run
        self._file: BinaryIO | Upload | None = None
        self._writer: pa.ipc.RecordBatchWriter | None = None
        self.name: str | None = None
        self.rows = 0

    def write(self, batch: RecordBatch) -> None:
        if self._writer is None:
            self.name, self._file = self._place.create(self._number, self._run)
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)
        self.rows += len(batch)

    def close(self) -> None:
        if self._writer is not None and self._file is not None:
            self._writer.close()
            self._file.flush()
            self._file.close()

    def discard(self) -> None:
        """Delete the file."""
        if self._file is not None and self.name is not None:
            with suppress(OSError, pa.ArrowException):
                self._file.close()
            self._place.drop([self.name])


def stage(
    target: Target, token: Token, partition: int, batches: Iterator[RecordBatch], origin: StreamBatch | None = None
) -> TaskCommit:
    """Write the rows of one task to a separate file. An incomplete file is deleted, unless the process is killed."""
    output = Output(target.staging(token.writer), token.number, target.run)
    try:
        for batch in batches:
            if len(batch):
                output.write(staged(batch, target.layout))
        output.close()
    except OSError as e:
        output.discard()
        raise failure("a staging file can't be written", e) from e
    except BaseException:
        output.discard()
        raise
    return TaskCommit(token.writer, token.number, origin, target.run, partition, output.name, output.rows)


def commit(target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Write the rows staged by the tasks as messages of the queue: all of them, exactly once."""
    done = sorted((m for m in messages if isinstance(m, TaskCommit)), key=lambda m: m.partition)
    if len(done) != len(messages):
        raise StoreError("a task did not report what it wrote; nothing was written", shard=-1, hint=hints.RUN_BATCH_AGAIN)
    if not done:
        return
    token = Token(done[0].writer, done[0].number)
    with open_queue(target.path, create=False) as queue:
        finish_others(queue)
        files = [StagedFile(m.name, m.rows) for m in done if m.name is not None]
        apply(queue, token, files, skip_others=target.skip_others, origin=done[0].origin, wait=target.wait)


def abort(target: Target, token: Token, run: str) -> None:
    """Delete the files staged by the tasks of a try.

    Spark also aborts after a failed commit. If the batch was decided by then, the process that continues it needs the files.
    """
    with open_queue(target.path, create=False) as queue:
        known = queue._storage.bulk.known(token)
    if known is None or known.whole:
        place = Staging(target.path, token.writer)
        place.drop_run(token.number, run)
        place.close()


def abort_reported(target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Delete the files that tasks reported. If no task reported one, the next try of the batch deletes them."""
    for writer, batch, run in {(m.writer, m.number, m.run) for m in messages if isinstance(m, TaskCommit)}:
        abort(target, Token(writer, batch), run)


@plain("write", "commit", "abort")
class BatchWriter(DataSourceArrowWriter):
    """Implements `df.write.format("strictq")`: a job's rows, written once for each job id, or each batch in `foreachBatch`.

    Only tasks know whether they run in `foreachBatch`.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool, table: bool = False) -> None:
        require_known(options, "write")
        job = options.get("jobId")
        self._job = Token.job(validate.name("jobId", job)) if job else None
        self._no_job = hints.INSERT_JOB if table else hints.NAME_WRITE
        self._target = target(options, schema, "write", overwrite=overwrite, table=table)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskCommit:
        task = _task()
        origin = _origin(task)
        token = self._job or (origin and Token.query(origin.query, origin.batch))
        if token is None:
            raise InvalidArgument("the option jobId is missing", hint=self._no_job)
        return stage(self._target, token, task.partitionId(), iterator, origin)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._target, messages)
        if self._job is not None:
            Staging(self._target.path, self._job.writer).close()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._job is not None:
            abort(self._target, self._job, self._target.run)
        else:
            abort_reported(self._target, messages)


@plain("write", "commit", "abort")
class StreamWriter(DataSourceStreamArrowWriter):
    """Implements `df.writeStream.format("strictq")`: each micro-batch of a query, written once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._target = target(options, schema, "sink", overwrite=overwrite)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskCommit:
        task = _task()
        origin = _origin(task)
        if origin is None:
            raise StoreError("Spark did not provide the id of the query and batch; nothing was written", shard=-1)
        return stage(self._target, Token.query(origin.query, origin.batch), task.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if any(isinstance(m, TaskCommit) and m.number != batchId for m in messages):
            raise StoreError(f"tasks of another batch came with batch {batchId}; nothing was written", shard=-1)
        commit(self._target, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002 - Spark's signature
        abort_reported(self._target, messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark calls write() in a task"
    return task


def _origin(task: TaskContext) -> StreamBatch | None:
    """Return the batch of a stream to which a task belongs; None: to none, as far as Spark tells."""
    query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        return None
    application, execution = task.getLocalProperty(APPLICATION_ID), task.getLocalProperty(EXECUTION_ID)
    if application is None or execution is None:
        raise StoreError("Spark did not provide the id of the execution; nothing was written", shard=-1)
    return StreamBatch(query, int(batch), f"{application}/{execution}")
