"""Page checksums, so that no damaged page is used: SQLite's own cksumvfs, which comes with apsw.

It is a layer between SQLite and the files. The last eight bytes of each database page are a checksum of the others, computed
when the page is written and verified when it is read. Loading the layer makes it the default of the whole process, which is not
strictq's decision: the default is restored at once, and strictq's connections name the layer. It passes databases without those
eight bytes through, so a connection that another thread opens in between is not affected.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import apsw

from ..._values import hints
from ..._values.errors import ConfigError, StoreCorrupt
from .pages import PAGE_BYTES, SUM_BYTES, USABLE, sum_of

VFS: Final = "cksmvfs"
RESERVED_BYTES: Final = 8
"""Reserved at the end of each page. The layer does nothing for a database with any other number."""
USUAL_PLACE: Final = Path(apsw.__file__).with_name("sqlite_extra_binaries") / "cksumvfs.so"
_lock = threading.Lock()


def vfs() -> str:
    """Return the name of the layer. It is loaded with the first queue on disk, unless the program has loaded it itself.

    Raises:
        ConfigError: this apsw was built without it.
    """
    if VFS not in apsw.vfs_names():
        with _lock:
            if VFS not in apsw.vfs_names():
                _load()
    return VFS


def _extension() -> str:
    """Return the extension's path. It is at one place in apsw's wheels; importing the module that apsw would ask is slow."""
    if USUAL_PLACE.exists():
        return str(USUAL_PLACE)
    from apsw import sqlite_extra

    path: str = sqlite_extra.path("cksumvfs")
    return path


def _load() -> None:
    default = apsw.vfs_names()[0]
    try:
        extension = _extension()
    except Exception as e:
        raise ConfigError(
            f"this apsw has no cksumvfs, without which damaged pages would go unnoticed: {e}",
            hint=hints.UNPACK_APSW,
        ) from e
    db = apsw.Connection(":memory:")
    try:
        db.enable_load_extension(True)
        db.load_extension(extension)
    except apsw.Error as e:
        raise ConfigError(f"apsw's cksumvfs can't be loaded: {e}", hint=hints.APSW_WHEEL) from e
    finally:
        apsw.set_default_vfs(default)
        db.close()
    assert apsw.vfs_names()[0] == default


def lay_out(db: apsw.Connection) -> None:
    """Reserve room for a checksum in every page of a new database, before anything is written."""
    db.reserve_bytes(reserve=RESERVED_BYTES)


def require(db: apsw.Connection, shard: int) -> None:
    """Verify that this connection checks the pages that it reads.

    Raises:
        StoreCorrupt: they have no checksums.
    """
    if db.pragma("checksum_verification") == "1":
        return
    if db.reserve_bytes() == RESERVED_BYTES and not db.readonly("main"):
        # A power cut in the middle of a checkpoint may have torn the first page. The WAL has it complete: checkpoint it.
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if db.pragma("checksum_verification") == "1":
            return
    raise StoreCorrupt("its pages have no checksums: its header is damaged, or it was made before strictq 0.1.0", shard=shard)


def _forked() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class StoredPages:
    """The pages of a database file, read through the checksum layer. The contents of its WAL are ignored.

    SQLite opens the file, so that this process keeps SQLite's locks on it. The layer verifies only reads of whole pages, so a
    page is read in two parts.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        access = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
        self._file = apsw.VFSFile(vfs(), str(path), [apsw.SQLITE_OPEN_MAIN_DB | access, 0])
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
