"""Checksums of pages, so that no damaged page is ever believed: SQLite's own cksumvfs, which comes with apsw.

It is a layer between SQLite and the files: eight bytes at the end of each page of a database are the sum of the others,
computed when the page is written and compared when it is read. Loading it makes it the default of the whole process, which
is not ours to decide: the default is put back at once, and our connections ask for it by name. It passes through what has
no such eight bytes, so a connection that another thread opens in between loses nothing.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import apsw

from ... import _hints as hints
from ..._errors import ConfigError, StoreCorrupt

VFS: Final = "cksmvfs"
RESERVED_BYTES: Final = 8
"""At the end of each page. The layer does nothing for a database with any other number."""
USUAL_PLACE: Final = Path(apsw.__file__).with_name("sqlite_extra_binaries") / "cksumvfs.so"
_lock = threading.Lock()


def vfs() -> str:
    """The name of the layer, which is loaded with the first queue on disk (or was loaded by the program itself).

    Raises:
        ConfigError: this apsw was built without it.
    """
    if VFS not in apsw.vfs_names():
        with _lock:
            if VFS not in apsw.vfs_names():
                _load()
    return VFS


def _extension() -> str:
    """Where apsw has it. Its wheels keep it at one place; to import what apsw has to ask with takes longer than all the rest."""
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
    """Give every page of a new database room for its checksum; before anything is written."""
    db.reserve_bytes(reserve=RESERVED_BYTES)


def require(db: apsw.Connection, shard: int) -> None:
    """Are the pages that this connection reads verified?

    Raises:
        StoreCorrupt: they have no checksums.
    """
    if db.pragma("checksum_verification") == "1":
        return
    if db.reserve_bytes() == RESERVED_BYTES and not db.readonly("main"):
        # A power cut in the middle of a checkpoint left the first page torn, and the WAL has it whole: bring it over.
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if db.pragma("checksum_verification") == "1":
            return
    raise StoreCorrupt("its pages have no checksums: its header is damaged, or it was made before strictq 0.1.0", shard=shard)


def _forked() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
