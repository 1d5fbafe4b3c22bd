"""Page checksums, so that no damaged page is used: SQLite's own cksumvfs, which comes with apsw.

It is a layer between SQLite and the files. The last eight bytes of each database page are a checksum of the others, computed
when the page is written and verified when it is read. Loading the layer makes it the default of the whole process, which is not
strictq's decision: the default is restored at once, and strictq's connections name the layer. It passes databases without those
eight bytes through, so a connection that another thread opens in between is not affected.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import apsw

from ..._values import hints
from ..._values.errors import ConfigError, StoreCorrupt

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
