"""The files of an export, one per shard and range of numbers. A file is complete or absent. Imported late, with pyarrow.

A file's name is `history-QUEUE-SHARD-FIRST-LAST.parquet`. The ranges of a shard's files are contiguous, so a missing file
between two others is detected. The oldest files may be deleted.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from .._platform import files
from .._platform.clock import MICROSECONDS
from .._values import hints
from .._values.errors import ExportError
from .._values.findings import HistoryRecord
from ._records import SCHEMA

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

_NAME: Final = re.compile(r"history-([0-9a-f]{32})-(\d{4})-(\d{12,19})-(\d{12,19})\.parquet")
_UNFINISHED: Final = re.compile(r"\.export-[0-9a-f]{12}\.tmp")
_IGNORED: Final = (".", "_")
"""Spark also ignores files whose names start with these."""
_METADATA: Final = b"strictq.history"
FORMAT: Final = 1
ROUNDED_SECONDS: Final = 0.000_005
"""Times that differ by less may be the same one, rounded differently."""
ROW_GROUP: Final = 100_000
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""A row group ends at either limit, because unwritten rows are in memory."""


@attrs.frozen
class ExportFile:
    """One file of an export.

    Attributes:
        first, last: its range of numbers, including records that the queue had already deleted.
        records: number of rows.
        last_id: the arrival number of its last record's message.
    """

    path: Path
    shard: int
    first: int
    last: int
    records: int
    last_id: int

    def ends_with(self, record: HistoryRecord) -> bool:
        """Return whether its last record may be this one, which has the same number.

        The times of a record are reported by the current wall clock, but the time between two of them does not change.
        """
        with damaged(self.path):
            rows = pq.ParquetFile(self.path)
            last = rows.read_row_group(rows.num_row_groups - 1, columns=["enqueued_at", "done_at"])
            took = (last["done_at"][-1].value - last["enqueued_at"][-1].value) / MICROSECONDS
        return record.id == self.last_id and abs(record.done_at - record.enqueued_at - took) < ROUNDED_SECONDS


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Raise the errors of reading a file as ExportError."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as e:
        raise ExportError(f"{path} is damaged", str(path), hint=hints.EXPORT_DAMAGED) from e


@contextmanager
def writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise ExportError(f"{path} can't be written: {e.strerror or e}", str(path), transient=e.errno in files.FULL) from e


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Create the directory if it is missing, and lock it against other exports.

    Raises:
        ExportError: another export is running there, or the directory cannot be created.
    """
    with writable(directory):
        files.make_directories(directory.parent)
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            files.sync_directory(directory.parent)
        if not directory.is_dir():
            raise ExportError(f"{directory} is not a directory", str(directory), hint=hints.ANOTHER_PATH)
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC) if fcntl is not None else None
    try:
        if fcntl is not None and fd is not None:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as e:
                raise ExportError(
                    f"another export is writing to {directory}", str(directory), hint=hints.LET_IT_FINISH, transient=True
                ) from e
        yield
    finally:
        if fd is not None:
            os.close(fd)


def export_files(directory: Path, queue_id: str) -> dict[int, list[ExportFile]]:
    """Return the files by shard, in order. Delete unfinished files of a killed export.

    Raises:
        ExportError: the directory contains other files, a file is damaged or missing, or two files overlap.
    """
    found: dict[int, list[ExportFile]] = {}
    with writable(directory):
        names = sorted(os.listdir(directory))
        for name in names:
            if _UNFINISHED.fullmatch(name):
                os.unlink(directory / name)
    for name in names:
        if not name.startswith(_IGNORED):
            file = _read(directory / name, queue_id)
            found.setdefault(file.shard, []).append(file)
    for of_shard in found.values():
        of_shard.sort(key=lambda p: p.first)
        for before, file in pairwise(of_shard):
            if file.first <= before.last:
                raise ExportError(
                    f"{before.path.name} and {file.path.name} have the same records",
                    str(file.path), hint=hints.EXPORT_FOREIGN,
                )  # fmt: skip
            if file.first != before.last + 1:
                raise ExportError(
                    f"records {before.last + 1:,} to {file.first - 1:,} of shard {file.shard} are missing from {directory}",
                    str(file.path), hint=hints.EXPORT_MISSING,
                )  # fmt: skip
    return found


def _read(path: Path, queue_id: str) -> ExportFile:
    match = _NAME.fullmatch(path.name)
    if match is None or not stat.S_ISREG(os.lstat(path).st_mode):
        raise ExportError(f"{path} is not a file of an export", str(path), hint=hints.EXPORT_ALONE)
    if match[1] != queue_id:
        raise ExportError(f"{path} is an export of another queue, {match[1]}", str(path), hint=hints.EXPORT_EACH)
    shard, first, last = int(match[2]), int(match[3]), int(match[4])
    with damaged(path):
        metadata = pq.read_metadata(path)
        footer: Any = json.loads((metadata.metadata or {})[_METADATA])
        file = ExportFile(path, shard, first, last, metadata.num_rows, int(footer["last_id"]))
        same = footer == _footer(queue_id, file)
    if not same:
        raise ExportError(f"{path} has other records than its name indicates", str(path), hint=hints.EXPORT_NAME)
    return file


def _footer(queue_id: str, file: ExportFile) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "queue_id": queue_id,
        "shard": file.shard,
        "first": file.first,
        "last": file.last,
        "records": file.records,
        "last_id": file.last_id,
    }


class UnfinishedFile:
    """A file being written: a context manager that deletes it unless it was published."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / f".export-{token_hex(6)}.tmp"
        with writable(self._path):
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._path, flags, 0o600), "wb")
        # Bodies differ, so a dictionary or bounds of them would store them twice.
        plain = [name for name in SCHEMA.names if name != "body"]
        self._writer = pq.ParquetWriter(
            self._file, SCHEMA, compression="zstd", use_dictionary=plain, write_statistics=plain, write_page_index=True
        )
        self._waiting: list[pa.RecordBatch] = []
        self.records = 0
        self.bytes = 0
        self._flushed = (0, 0)

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self.records += batch.num_rows
        self.bytes += batch.nbytes
        if self.records - self._flushed[0] >= ROW_GROUP or self.bytes - self._flushed[1] >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        with writable(self._path):
            self._writer.write_table(pa.Table.from_batches(self._waiting, SCHEMA), row_group_size=ROW_GROUP)
        self._waiting.clear()
        self._flushed = (self.records, self.bytes)

    def publish(self, queue_id: str, shard: int, first: int, last: int, last_id: int) -> ExportFile:
        """Write the rest, sync, rename, and sync the directory. After this, the file is durable."""
        name = f"history-{queue_id}-{shard:04d}-{first:012d}-{last:012d}.parquet"
        file = ExportFile(self._directory / name, shard, first, last, self.records, last_id)
        if self._waiting:
            self._flush()
        with writable(file.path):
            self._writer.add_key_value_metadata({_METADATA: json.dumps(_footer(queue_id, file)).encode()})
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._path, file.path)
            files.sync_directory(self._directory)
        return file

    def __enter__(self) -> UnfinishedFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._file.closed:
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
            with suppress(OSError):
                self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)
