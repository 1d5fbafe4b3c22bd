"""Rolling a queue's records of finished messages out to Parquet. Imported late, with pyarrow."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from .. import _validate as validate
from .._errors import ExportError, InvalidArgument
from .._findings import HistoryRecord
from ..queue import Queue
from ._parts import Part, Unfinished, locked, parts
from ._records import CHUNK, record_batch

FILE_RECORDS: Final = 500_000
FILE_BYTES: Final = 512 * 1024 * 1024
"""In memory, before compression: a file ends where either is reached."""


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


class Export:
    """One run, of one queue to one directory, which this object holds locked."""

    def __init__(self, queue: Queue, directory: Path, *, bodies: bool, forget: bool, file_records: int) -> None:
        self._queue = queue
        self._directory = directory
        self._bodies = bodies
        self._forget = forget
        self._file_records = file_records
        self._records = self._forgotten = self._missing = 0
        self._made: list[Path] = []
        self._issued = {shard: queue._history_issued(shard) for shard in range(queue.shards)}
        there = parts(directory, queue.queue_id)
        self._at = {shard: self._end_of(shard, there.pop(shard, [])) for shard in range(queue.shards)}
        if there:
            path = next(iter(there.values()))[0].path
            raise ExportError(f"{path} is of a shard that the queue does not have", str(path), hint="move it away")

    def _end_of(self, shard: int, there: list[Part]) -> int:
        """The number after which to go on; what is before it is in files, or will never be."""
        if not there:
            first = self._queue.history(shard=shard, limit=1)
            return first[0].n - 1 if first else 0
        last = there[-1]
        now = self._queue.history(shard=shard, after=last.last - 1, limit=1)
        if self._issued[shard] < last.last or (now and now[0].n == last.last and now[0].id != last.last_id):
            raise ExportError(
                f"the queue has gone back to before {last.path.name}: was it restored from a copy?",
                str(last.path), hint="go on in another directory",
            )  # fmt: skip
        return last.last

    @property
    def total(self) -> int:
        """Records to come; fewer, where some are gone by now."""
        return sum(self._issued[shard] - at for shard, at in self._at.items())

    def run(self, on_progress: Callable[[int, int], object] | None) -> Exported:
        total = self.total

        def tell() -> None:
            if on_progress is not None:
                on_progress(self._records, total)

        for shard in self._at:
            # Files of an earlier run, which may have ended between making one and forgetting what is in it.
            self._drop(shard)
            while self._part(shard, tell):
                self._drop(shard)
        return Exported(self._records, tuple(self._made), self._missing, self._forgotten, dict(self._at))

    def _part(self, shard: int, tell: Callable[[], None]) -> bool:
        """Make the next file of a shard. False: there is nothing more for one."""
        after = self._at[shard]
        last: HistoryRecord | None = None
        with Unfinished(self._directory) as file:
            while file.records < self._file_records and file.bytes < FILE_BYTES:
                page = self._page(shard, last.n if last else after, min(CHUNK, self._file_records - file.records))
                if not page:
                    break
                file.add(record_batch(page, bodies=self._bodies))
                last = page[-1]
                self._records += len(page)
                tell()
            if last is None:
                return False
            part = file.publish(self._queue.queue_id, shard, after + 1, last.n, last.id)
        self._at[shard] = part.last
        self._missing += part.last - after - part.records
        self._made.append(part.path)
        return True

    def _page(self, shard: int, after: int, limit: int) -> list[HistoryRecord]:
        # Up to what was there when the run began: messages that end meanwhile would keep it going for ever.
        upto = self._issued[shard]
        return [r for r in self._queue.history(shard=shard, after=after, limit=limit) if r.n <= upto] if after < upto else []

    def _drop(self, shard: int) -> None:
        if self._forget:
            self._forgotten += self._queue._forget_history(shard, self._at[shard])


def export(
    queue: Queue,
    out: str | os.PathLike[str],
    *,
    bodies: bool,
    forget: bool,
    file_records: int,
    on_progress: Callable[[int, int], object] | None,
) -> Exported:
    """See strictq.spark.export_history."""
    validate.whole("file_records", file_records, 1, 100_000_000)
    queue._store.require_open(writing=forget)
    directory = Path(os.path.abspath(os.fspath(out)))
    if queue.path != ":memory:" and directory.resolve().is_relative_to(Path(queue.path).resolve()):
        raise InvalidArgument(f"{directory} is inside the queue's own directory", hint="export to a directory beside it")
    with locked(directory):
        run = Export(queue, directory, bodies=bodies, forget=forget, file_records=file_records)
        return run.run(on_progress)
