"""The pages of a shard's database file, as they lie on the disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import apsw

from . import checksums
from .pages import PAGE_BYTES, SUM_BYTES, USABLE, sum_of


class StoredPages:
    """The pages of a database file, through the layer of checksums; what its WAL says is not seen.

    SQLite opens the file, so no lock that it holds for a connection of this process is dropped. The layer verifies whole pages
    only; a page is read in two parts.
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
        """Does a page have this content? Checksums apart: a page in a WAL has none."""
        return self.read(number)[:USABLE] == content[:USABLE]

    def sound(self, number: int) -> bool:
        """Is its checksum right? By the layer's own function: in Python it takes fifty times as long."""
        return bool(self._sums.execute("SELECT verify_checksum(?)", (self.read(number),)).get)

    def seal(self, numbers: Iterable[int]) -> None:
        """Write the checksums of these pages, and nothing else of them; durable on return."""
        for number in numbers:
            self._file.xWrite(sum_of(self.read(number)), number * PAGE_BYTES - SUM_BYTES)
        self._file.xSync(apsw.SQLITE_SYNC_FULL)
