"""Pages that another SQLite program brought into a shard's file, without their checksums.

A program that opens a shard without the checksum layer (checksums.py), and is the last to close it, checkpoints and deletes the
WAL. The pages are right, but each keeps the checksum of its previous content. strictq rewrites those checksums. It accepts a
page with a wrong checksum only if all of this holds:

- The shard's mark, which has a checksum of its own, says that the WAL had frames and that strictq did not empty it.
- The WAL is gone.
- A page that the newest commit may have written has a wrong checksum: the last one of `message` or of `journal`. Every commit
  adds a row to one of them, so a foreign checkpoint wrote it, too.
- No page is a single bit away from its checksum, as far as that can be determined.
- SQLite's integrity check and strictq's own find nothing.

Otherwise a wrong checksum is damage.
Source: docs/explanation/storage.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import apsw

from ..._sql import SHARD
from ..._values import hints
from ..._values.errors import StoreCorrupt
from . import checksums, layout, wal_file
from .pages import PAGE_BYTES, SUM_BYTES, USABLE, mended, right_child, sum_of
from .stored import OF_PYTHON

WHAT: Final = "another SQLite program checkpointed its WAL, without the checksums of pages"
DEPTH_MAX: Final = 20
"""The maximum depth of a table's tree, as in SQLite."""


def repair(
    path: Path, db: apsw.Connection, shard: int, *, read_only: bool, problem: Callable[[apsw.Connection], str | None]
) -> int:
    """Rewrite the checksums that a foreign checkpoint left wrong. Return their number; 0 if there was no such checkpoint.

    The caller has found that the mark reports frames and that the WAL is gone.

    Args:
        db: a connection that does not verify what it reads.
        problem: returns what is wrong with the shard's tables, or None.
    Raises:
        StoreCorrupt: there was a foreign checkpoint, and the queue is open read-only, or not all conditions hold. Nothing
            changed.
    """
    with StoredPages(path, read_only=read_only) as pages:
        roots: list[Any] = db.execute(SHARD.written_tables).fetchall()
        newest = [_last_leaf(pages, root) for (root,) in roots]
        if all(map(pages.sound, newest)):
            return 0
        if read_only:
            raise StoreCorrupt(WHAT, shard=shard, hint=hints.OPEN_FOR_REPAIR)
        db.execute("BEGIN IMMEDIATE")
        try:
            if wal_file.has_header(path) or all(map(pages.sound, newest)):
                return 0  # another process has repaired it
            wrong = [number for number in range(1, pages.count + 1) if not pages.sound(number)]
            flipped = [number for number in wrong if mended(pages.read(number))]
            found = f"a bit flipped in page {flipped[0]}" if flipped else _verified(db, problem)
            if found:
                raise StoreCorrupt(f"{WHAT}, and besides: {found}", shard=shard)
            # The newest pages are the evidence. Rewrite them last, so that an interrupted repair starts again.
            pages.seal(number for number in wrong if number not in newest)
            pages.seal(newest)
            wal_file.write_mark(path.with_name(layout.MARKS), shard, wal_file.EMPTY)
            return len(wrong)
        finally:
            db.execute("ROLLBACK")


def _last_leaf(pages: StoredPages, root: int) -> int:
    """Return the page with the newest row of a table."""
    number = root
    for _ in range(DEPTH_MAX):
        child = right_child(pages.read(number), number)
        if child is None or not 0 < child <= pages.count:
            break
        number = child
    return number


def _verified(db: apsw.Connection, problem: Callable[[apsw.Connection], str | None]) -> str | None:
    try:
        return problem(db)
    except StoreCorrupt as e:
        return str(e)
    except (apsw.Error, *OF_PYTHON) as e:
        return f"{type(e).__name__}: {e}"


class StoredPages:
    """The pages of a database file, read through the checksum layer. The contents of its WAL are ignored.

    SQLite opens the file, so that this process keeps SQLite's locks on it. The layer verifies only reads of whole pages, so a
    page is read in two parts.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        access = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
        self._file = apsw.VFSFile(checksums.vfs(), str(path), [apsw.SQLITE_OPEN_MAIN_DB | access, 0])
        self._sums = apsw.Connection(":memory:")
        self.count = self._file.xFileSize() // PAGE_BYTES

    def __enter__(self) -> StoredPages:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.xClose()
        self._sums.close()

    def read(self, number: int) -> bytes:
        at = (number - 1) * PAGE_BYTES
        return self._file.xRead(USABLE, at) + self._file.xRead(SUM_BYTES, at + USABLE)

    def says(self, number: int, content: bytes) -> bool:
        """Return whether a page has this content, apart from the checksum, which a page in a WAL does not have."""
        return self.read(number)[:USABLE] == content[:USABLE]

    def sound(self, number: int) -> bool:
        """Return whether the page's checksum is right. Uses the layer's function; Python takes fifty times as long."""
        return bool(self._sums.execute("SELECT verify_checksum(?)", (self.read(number),)).get)

    def seal(self, numbers: Iterable[int]) -> None:
        """Write only the checksums of these pages. Durable on return."""
        for number in numbers:
            self._file.xWrite(sum_of(self.read(number)), number * PAGE_BYTES - SUM_BYTES)
        self._file.xSync(apsw.SQLITE_SYNC_FULL)
