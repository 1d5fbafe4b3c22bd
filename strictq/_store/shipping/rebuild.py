"""A queue's directory, made of pages that were shipped.

Pages in a WAL have no valid checksums. They are written through the checksum layer, which adds them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw

from ..._platform import files
from ..._sql import REPLICATION
from ..._values.errors import StoreCorrupt, StoreFull
from ..catalog import queue_db, shard_identity
from ..catalog.contents import Catalog, Fork, Replication
from ..commit.connection import check_file, connect, connect_catalog, translate
from ..disk import checksums, layout, reserve, wal_file
from ..disk import formats as migrate
from ..disk.topology import Range
from . import fork_point
from .values import CATALOG_FILE, PAGE_BYTES

EPOCH_STEP: Final = 1024
"""A restored queue's epoch is the next multiple of this. Reboots of its original can't reach it, so no token is issued twice."""

COPY_BYTES: Final = 4 << 20


class PageFiles:
    """The files of a queue, written page by page below SQLite. No connection may have them open meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, apsw.VFSFile] = {}
        checksums.vfs()

    def write(self, shard: int, size: int, pages: Iterator[tuple[int, bytes]]) -> None:
        """Write pages of a shard, or of queue.db, and set the file's size in pages.

        Raises:
            StoreFull, StoreError: they can't be written.
        """
        with _typed(shard, self._path_of(shard)):
            file = self._file(shard)
            for number, image in pages:
                file.xWrite(bytearray(image), (number - 1) * PAGE_BYTES)  # the layer writes the checksum into the image
            if size * PAGE_BYTES < file.xFileSize():
                file.xTruncate(size * PAGE_BYTES)

    def _path_of(self, shard: int) -> Path:
        return self._directory / (layout.CATALOG if shard == CATALOG_FILE else layout.shard_file(shard))

    def _file(self, shard: int) -> apsw.VFSFile:
        if shard not in self._files:
            path = self._path_of(shard)
            with suppress(FileExistsError):
                files.create_empty(path)
            check_file(path, shard, writing=True)
            flags = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE, 0]
            file = self._files[shard] = apsw.VFSFile(checksums.VFS, str(path), flags)
            if file.xFileSize():
                # The first page shows the layer that it has checksums to make. It may be torn: then the log has it whole.
                with suppress(apsw.IOError):
                    file.xRead(PAGE_BYTES, 0)
        return self._files[shard]

    def copy_to(self, to: Path, go_on: Callable[[], None]) -> None:
        """Copy the files to another directory. Another thread may write meanwhile; then the copy mixes older and newer pages.

        Args:
            go_on: called before each part; may raise to end the copying.
        Raises:
            StoreFull, StoreError: a file can't be read or written.
        """
        for path in sorted(self._directory.glob("*.db")):
            with _typed(-1, path):
                # Read through SQLite: closing a plain file would end the locks of this process's connections to it.
                file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
                try:
                    with (to / path.name).open("xb") as copied:
                        go_on()
                        while part := file.xRead(COPY_BYTES, copied.tell()):
                            copied.write(part)
                            go_on()
                finally:
                    file.xClose()

    def sync(self) -> None:
        """Sync everything that was written, file names included.

        Raises:
            StoreError: it failed.
        """
        with _typed(-1):
            for file in self._files.values():
                file.xSync(apsw.SQLITE_SYNC_FULL)
            files.sync_directory(self._directory)

    def close(self) -> None:
        """Close the files."""
        opened, self._files = self._files, {}
        for file in opened.values():
            with suppress(apsw.Error):
                file.xClose()


class Rebuild(PageFiles):
    """A queue that is being made of what was shipped. No process may have its directory open."""

    def finish(self, replication: Replication, boot: tuple[str, int] | None = None) -> None:
        """Sync all of it, as a queue of its own history whose tokens are above those of its original.

        Args:
            boot: the machine's present boot, and what is added to the boot clock for queue time. None: the next process that
                opens it decides that, and timed leases are then over.
        Raises:
            StoreCorrupt, SchemaMismatch: what was shipped is not a queue.
        """
        self.sync()
        self.close()
        with _typed(-1):
            known = queue_db.read(self._directory, older=True)
            ends, unresolved = [], {}
            for part in known.topology:
                end, unresolved[part.shard] = self._verified(known, part)
                ends.append(end)
            own = {layout.PRESENCE: 0, layout.WAKE: 0, layout.MARKS: wal_file.marks_bytes(len(known.topology))}
            for name, size in own.items():
                with suppress(FileExistsError):  # an interrupted promotion made it
                    files.create_empty(self._directory / name, size)
            reserve.Reserve(self._directory).make()
            before = known.replication
            fork = None
            if before is not None:
                fork = Fork(before.history_id, before.term, replication.floor_time, tuple(ends))
                fork_point.write(self._directory, fork.history_id, unresolved)
            if boot is None:
                queue_db.set_epoch(self._directory, epoch_behind(known))
            else:
                db = connect_catalog(str(self._directory / layout.CATALOG))
                try:
                    db.execute(REPLICATION.promoted, (epoch_behind(known), *boot))
                finally:
                    db.close()
            files.sync_directory(self._directory)
            queue_db.set_replication(self._directory, replication, fork)

    def _verified(self, known: Catalog, part: Range) -> tuple[tuple[int, int], fork_point.Unresolved | None]:
        """Return the last numbers that a shard issued, and its unresolved messages.

        Raises:
            StoreCorrupt, SchemaMismatch: it is not the shard that queue.db names.
        """
        if not (self._directory / part.file).exists():
            raise StoreCorrupt("it was not shipped", shard=part.shard)
        shard = connect(str(self._directory / part.file), durability="process", cache_kib=256)
        try:
            checksums.require(shard, part.shard)
            shard_identity.verify_shard(shard, known, part)
            issued = shard_identity.issued(shard)
            if migrate.version_of(shard, migrate.SHARD_ID) < migrate.ONE_LANE:
                return issued, None  # it was shipped before an upgrade, and is to be migrated
            return issued, fork_point.unresolved(shard, part.shard)
        finally:
            shard.close()


def epoch_behind(known: Catalog) -> int:
    """Return the epoch of a queue that continues another one's state. Reboots of the other one can't reach it."""
    return (known.epoch // EPOCH_STEP + 1) * EPOCH_STEP


@contextmanager
def _typed(shard: int, path: Path | None = None) -> Iterator[None]:
    try:
        yield
    except apsw.FullError as e:
        raise StoreFull(files.FULL[errno.ENOSPC], shard=shard, cause=e, file=None if path is None else str(path)) from e
    except apsw.Error as e:
        raise translate(e, shard) from e
    except OSError as e:
        raise files.failure("the queue can't be written", e, shard) from e
