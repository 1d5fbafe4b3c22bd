"""Pages that another SQLite program brought into a shard's file, without their checksums.

A program that opens a shard without the layer of checksums (checksums.py), and is the last to close it, checkpoints the WAL
and deletes it. The pages are right, but each keeps the checksum of what it held before. strictq writes those checksums
again. It believes a page with a wrong checksum only where all of this holds:

- The shard's mark, which has a checksum of its own, says that the WAL had frames and that strictq did not empty it.
- There is no WAL any more.
- A page has a wrong checksum that the newest commit may have written: that of the counter row, or the last one of a log of hot
  lanes. Every commit writes one of them, so a foreign checkpoint did, too.
- No page is a single bit away from its checksum, as far as that can be told.
- SQLite's integrity check and strictq's own find nothing.

Otherwise a wrong checksum is damage.
Source: docs/explanation/storage.md
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import apsw

from ... import _hints as hints
from ..._errors import StoreCorrupt
from ..._sql import SHARD
from ..commit.connection import NONSENSE
from . import layout, wal_file
from .pages import mended, right_child
from .stored_pages import StoredPages

WHAT: Final = "another SQLite program checkpointed its WAL, without the checksums of pages"
DEPTH_MAX: Final = 20
"""Levels of a table's tree; SQLite allows as many."""


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
                return 0  # another process was faster
            wrong = [number for number in range(1, pages.count + 1) if not pages.sound(number)]
            flipped = [number for number in wrong if mended(pages.read(number))]
            found = f"a bit flipped in page {flipped[0]}" if flipped else _verified(db, problem)
            if found:
                raise StoreCorrupt(f"{WHAT}, and besides: {found}", shard=shard)
            # The newest pages are the proof: they come last, so that what is interrupted here is begun again.
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
    except (apsw.Error, *NONSENSE) as e:
        return f"{type(e).__name__}: {e}"
