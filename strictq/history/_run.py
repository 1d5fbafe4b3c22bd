"""One run of an export. Imported late, with pyarrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from .._values import hints
from .._values.errors import ExportError
from .._values.findings import HistoryRecord
from ..queue import Queue
from ._export import Exported
from ._files import ExportFile, UnfinishedFile, export_files
from ._records import CHUNK, record_batch

FILE_BYTES: Final = 512 * 1024 * 1024
"""Bytes in memory, before compression, at which a file ends if `file_records` does not end it earlier."""


class ExportRun:
    """One run from one queue to one directory, which this object keeps locked."""

    def __init__(self, queue: Queue, directory: Path, *, bodies: bool, forget: bool, file_records: int) -> None:
        self._queue = queue
        self._directory = directory
        self._bodies = bodies
        self._forget = forget
        self._file_records = file_records
        self._records = self._forgotten = self._missing = 0
        self._made: list[Path] = []
        self._issued = {shard: queue._storage.reports.history_end(shard) for shard in range(queue.shards)}
        there = export_files(directory, queue.queue_id)
        self._at = {shard: self._end_of(shard, there.pop(shard, [])) for shard in range(queue.shards)}
        if there:
            path = next(iter(there.values()))[0].path
            raise ExportError(f"{path} belongs to a shard that the queue does not have", str(path), hint=hints.MOVE_AWAY)

    def _end_of(self, shard: int, there: list[ExportFile]) -> int:
        """Return the number after which to continue. Earlier records are in files, or are lost."""
        if not there:
            first = self._queue.history(shard=shard, limit=1)
            return first[0].n - 1 if first else 0
        last = there[-1]
        now = self._queue.history(shard=shard, after=last.last - 1, limit=1)
        if self._issued[shard] < last.last or (now and now[0].n == last.last and not last.ends_with(now[0])):
            raise ExportError(
                f"the queue is older than {last.path.name}: was it restored from a copy?",
                str(last.path), hint=hints.EXPORT_ELSEWHERE,
            )  # fmt: skip
        return last.last

    @property
    def total(self) -> int:
        """Return an upper bound of the number of records to export."""
        return sum(self._issued[shard] - at for shard, at in self._at.items())

    def run(self, on_progress: Callable[[int, int], object] | None) -> Exported:
        total = self.total

        def tell() -> None:
            if on_progress is not None:
                on_progress(self._records, total)

        for shard in self._at:
            # Covers the files of an earlier run that ended between publishing a file and deleting its records.
            self._drop(shard)
            while self._make_file(shard, tell):
                self._drop(shard)
        return Exported(self._records, tuple(self._made), self._missing, self._forgotten, dict(self._at))

    def _make_file(self, shard: int, tell: Callable[[], None]) -> bool:
        """Write the next file of a shard. Return False if there are no more records."""
        after = self._at[shard]
        last: HistoryRecord | None = None
        with UnfinishedFile(self._directory) as unfinished:
            while unfinished.records < self._file_records and unfinished.bytes < FILE_BYTES:
                page = self._page(shard, last.n if last else after, min(CHUNK, self._file_records - unfinished.records))
                if not page:
                    break
                unfinished.add(record_batch(page, bodies=self._bodies))
                last = page[-1]
                self._records += len(page)
                tell()
            if last is None:
                return False
            made = unfinished.publish(self._queue.queue_id, shard, after + 1, last.n, last.id)
        self._at[shard] = made.last
        self._missing += made.last - after - made.records
        self._made.append(made.path)
        return True

    def _page(self, shard: int, after: int, limit: int) -> list[HistoryRecord]:
        # Only records that existed at the start. Otherwise messages that finish meanwhile could keep the run going forever.
        upto = self._issued[shard]
        return [r for r in self._queue.history(shard=shard, after=after, limit=limit) if r.n <= upto] if after < upto else []

    def _drop(self, shard: int) -> None:
        if self._forget:
            self._forgotten += self._queue._storage.operate.forget_history(shard=shard, upto=self._at[shard])
