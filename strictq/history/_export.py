"""The export of a queue's records of finished messages to Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import attrs

from .._client import validate
from .._platform.extras import need
from .._values import hints
from .._values.errors import InvalidArgument
from ..queue import Queue


@attrs.frozen
class Exported:
    """The result of an export.

    Attributes:
        records: number of records written.
        files: new files, in the order of their creation.
        missing: number of records that the queue had deleted before their export, because of its limits or a purge.
        forgotten: number of exported records deleted from the queue.
        upto: shard → number of its last exported record.
    """

    records: int
    files: tuple[Path, ...]
    missing: int
    forgotten: int
    upto: dict[int, int]


def export_history(
    queue: Queue,
    out: str | os.PathLike[str],
    *,
    bodies: bool = True,
    forget: bool = False,
    file_records: int = 500_000,
    on_progress: Callable[[int, int], object] | None = None,
) -> Exported:
    """Export a queue's records of finished messages to Parquet files. Continue where the last export to `out` ended.

    Each file has a range of one shard's records, named in the file name. A file appears only when it is complete and synced, so
    a crash neither loses nor duplicates a record. Records that are added meanwhile are left for the next run. Needs no Spark.

    Args:
        out: a separate directory on a local file system; created if missing.
        bodies: include the bodies that the queue kept (`history="bodies"`).
        forget: delete records from the queue once their file is durable.
        file_records: most records per file, 1..100,000,000.
        on_progress: called with the number of records written and an upper bound of the total.
    Raises:
        MissingExtra: pyarrow is not installed; nothing was changed.
        InvalidArgument: `out` is inside the queue's directory; nothing was changed.
        ExportError: `out` contains other files, lacks a file, or cannot be written. Finished files are kept.
        StoreError: the queue cannot be read. Finished files are kept.
    Source: docs/howto/history.md
    """
    need("pyarrow", "history")
    from ._files import locked
    from ._run import ExportRun

    validate.whole("file_records", file_records, 1, 100_000_000)
    queue._storage.require_open(writing=forget)
    directory = Path(os.path.abspath(os.fspath(out)))
    if queue.path != ":memory:" and directory.resolve().is_relative_to(Path(queue.path).resolve()):
        raise InvalidArgument(f"{directory} is inside the queue's own directory", hint=hints.EXPORT_BESIDE)
    with locked(directory):
        return ExportRun(queue, directory, bodies=bodies, forget=forget, file_records=file_records).run(on_progress)
