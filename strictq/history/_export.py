"""The export of a queue's records of finished messages to Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import attrs

from .. import _hints as hints
from .. import _validate as validate
from .._errors import InvalidArgument
from .._extras import need
from ..queue import Queue


@attrs.frozen
class Exported:
    """What an export did.

    Attributes:
        records: written to files now.
        files: made now, in the order in which they were made.
        missing: records that the queue had removed before this export came to them: by its limits, or by a purge.
        forgotten: records removed from the queue, because they are in files.
        upto: shard → the last record that the directory has.
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
    """Roll a queue's records of finished messages out to Parquet files, going on where the last export to `out` ended.

    Each file has a range of one shard's records and appears whole, synced, under a name that says which; so a crash leaves
    neither a hole nor a record twice. Records that are made meanwhile are left for the next run. Needs no Spark.

    Args:
        out: a directory of its own, made if it is missing; on a local file system.
        bodies: with the bodies that the queue kept (`history="bodies"`); False: without.
        forget: remove records from the queue once the file they are in is durable.
        file_records: most records of one file, 1..100,000,000.
        on_progress: called with the records written so far, and how many there may be.
    Raises:
        MissingExtra: pyarrow is not installed; nothing changed.
        InvalidArgument: `out` is inside the queue's directory; nothing changed.
        ExportError: `out` has something else in it, or lacks a file, or can't be written. Files that were made stay.
        StoreError: the queue can't be read; files that were made stay.
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
