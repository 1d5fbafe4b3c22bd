"""The pages of a shard's database file, as they are on the disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import apsw

from . import checksums
from .pages import PAGE_BYTES, SUM_BYTES, USABLE, sum_of


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
