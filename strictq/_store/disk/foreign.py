"""Pages that another SQLite program brought into a shard's file, without their checksums.

A program that opens a shard without the layer of checksums (checksums.py), and is the last to close it, checkpoints the WAL
and deletes it. The pages are right, but each keeps the checksum of what it held before. strictq writes those checksums
again. It believes a page with a wrong checksum only where all of this holds:

- The shard's mark, which has a checksum of its own, says that the WAL had frames and that strictq did not empty it.
- There is no WAL any more.
- The page of the counter row has a wrong checksum. Every commit writes that page, so a foreign checkpoint did, too.
- No page is a single bit away from its checksum, as far as that can be told.
- SQLite's integrity check and strictq's own find nothing.

Otherwise a wrong checksum is damage.
Source: docs/explanation/storage.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import apsw

from ... import _hints as hints
from ..._errors import StoreCorrupt
from ..._sql import SHARD
from ..commit.connection import NONSENSE
from . import checksums, layout, wal_file
from .pages import PAGE_BYTES, SUM_BYTES, USABLE, mended, sum_of

WHAT: Final = "another SQLite program checkpointed its WAL, without the checksums of pages"


def repair(
    path: Path, db: apsw.Connection, shard: int, *, read_only: bool, problem: Callable[[apsw.Connection], str | None]
) -> int:
    """Write the checksums again that a foreign checkpoint left wrong. Returns how many; 0: there was none.

    The caller found that the mark speaks of frames and that the WAL is gone.

    Args:
        db: a connection that does not verify what it reads.
        problem: returns what is wrong with the shard's tables, or None.
    Raises:
        StoreCorrupt: there was one, and the queue is open for reading only, or not all is well. Nothing was changed.
    """
    with _Pages(path, read_only=read_only) as pages:
        counter = db.execute(SHARD.counter_page).get
        if counter is None or pages.sound(counter):
            return 0
        if read_only:
            raise StoreCorrupt(WHAT, shard=shard, hint=hints.OPEN_FOR_REPAIR)
        db.execute("BEGIN IMMEDIATE")
        try:
            if wal_file.has_header(path) or pages.sound(counter):
                return 0  # another process was faster
            wrong = [number for number in range(1, pages.count + 1) if not pages.sound(number)]
            flipped = [number for number in wrong if mended(pages.read(number))]
            found = f"a bit flipped in page {flipped[0]}" if flipped else _verified(db, problem)
            if found:
                raise StoreCorrupt(f"{WHAT}, and besides: {found}", shard=shard)
            # The counter's page is the proof: it comes last, so that what is interrupted here is begun again.
            pages.seal(number for number in wrong if number != counter)
            pages.seal([counter])
            wal_file.write_mark(path.with_name(layout.MARKS), shard, wal_file.EMPTY)
            return len(wrong)
        finally:
            db.execute("ROLLBACK")


def _verified(db: apsw.Connection, problem: Callable[[apsw.Connection], str | None]) -> str | None:
    try:
        return problem(db)
    except StoreCorrupt as e:
        return str(e)
    except (apsw.Error, *NONSENSE) as e:
        return f"{type(e).__name__}: {e}"


class _Pages:
    """The pages of a database, through the layer of checksums.

    SQLite opens the file, so no lock that it holds for a connection of this process is dropped. The layer verifies whole pages
    only; a page is read in two parts.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        access = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
        self._file = apsw.VFSFile(checksums.vfs(), str(path), [apsw.SQLITE_OPEN_MAIN_DB | access, 0])
        self._sums = apsw.Connection(":memory:")
        self.count = self._file.xFileSize() // PAGE_BYTES

    def __enter__(self) -> _Pages:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.xClose()
        self._sums.close()

    def read(self, number: int) -> bytes:
        at = (number - 1) * PAGE_BYTES
        return self._file.xRead(USABLE, at) + self._file.xRead(SUM_BYTES, at + USABLE)

    def sound(self, number: int) -> bool:
        """Is its checksum right? By the layer's own function: in Python it takes fifty times as long."""
        return bool(self._sums.execute("SELECT verify_checksum(?)", (self.read(number),)).get)

    def seal(self, numbers: Iterable[int]) -> None:
        """Write the checksums of these pages, and nothing else of them; durable on return."""
        for number in numbers:
            self._file.xWrite(sum_of(self.read(number)), number * PAGE_BYTES - SUM_BYTES)
        self._file.xSync(apsw.SQLITE_SYNC_FULL)
