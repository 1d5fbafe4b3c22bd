"""What SQLite, and the engine's own reading of WALs, find in the databases of images."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import apsw
import attrs

from strictq._store.commit import checkpoint
from strictq._store.disk import layout, wal_file
from tests.support.powercut import digest, opened, require_whole
from tests.support.powercut_disk import NONSENSE_SHARE, SHM_BYTES, Disk

WAL_HEADER_BYTES: Final = 32
WAL_FRAME_BYTES: Final = 24 + 4096
Contents = tuple[object, ...]


@attrs.define
class Reader:
    """Opens databases of images, and remembers their contents.

    Each is opened once for each of its contents: the bytes of the file, of its WAL or journal, and of the marks. SQLite then
    reports which frames of the WAL count. If those and the file equal, byte for byte, what was read before, so does everything
    that a reader sees, and its rows and indexes are not read again.

    Attributes:
        place: where one database after the other is written.
        level: the durability of the queue.
        opened: how many databases were opened.
        read: how many of those were read, row by row, and verified.
    """

    place: Path
    level: Literal["full", "process"]
    opened: int = 0
    read: int = 0
    _known: dict[Contents, tuple[bytes, str | None]] = attrs.Factory(dict)
    _pages: dict[Contents, bytes] = attrs.Factory(dict)

    def find(self, disk: Disk, directory: int, name: str, chance: random.Random, *, thorough: float) -> tuple[bytes, str | None]:
        """Return the digest of a database's rows, and what is wrong with its WAL.

        Args:
            thorough: how often it is read although its pages are known.
        Raises:
            apsw.Error: SQLite can't read it, or it is damaged.
        """
        beside = () if name == layout.CATALOG else (layout.MARKS,)
        names = (name, f"{name}-wal", f"{name}-journal", *beside)
        contents = (name, *disk.contents(directory, *names))
        known = self._known.get(contents)
        if known is None:
            self.opened += 1
            self._lay(disk, directory, name, names, chance)
            reread = chance.random() < thorough
            if beside:
                wal = disk.file(directory, f"{name}-wal")
                known = self._shard(name, contents, b"" if wal is None else wal, reread=reread)
            else:
                known = self._catalog(name), None
            self._known[contents] = known
        return known

    def _catalog(self, name: str) -> bytes:
        """Read a database with a rollback journal. SQLite decides whether to play that back, so all of it is read."""
        with opened(self.place / name) as db:
            self.read += 1
            require_whole(db)
            return digest(db)

    def _shard(self, name: str, contents: Contents, wal: bytes | bytearray, *, reread: bool) -> tuple[bytes, str | None]:
        with opened(self.place / name) as db:
            db.pragma("schema_version")  # reads the first page, and so determines which frames count
            frames, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
            counted = wal[: WAL_HEADER_BYTES + frames * WAL_FRAME_BYTES] if frames > 0 else b""
            pages = (*contents[:2], frames, hash(bytes(counted)))
            found = self._pages.get(pages)
            if found is None or reread:
                self.read += 1
                require_whole(db)
                found = self._pages[pages] = digest(db)
            number = int(name.removeprefix("shard-").removesuffix(".db"))
            return found, checkpoint.damage_of_wal(self.place / name, db, number, self.level, wal_file.boot_tag("another boot"))

    def _lay(self, disk: Disk, directory: int, name: str, names: Sequence[str], chance: random.Random) -> None:
        """Write the database and the files that belong to it, in place of the previous ones."""
        self.place.mkdir(mode=0o700, exist_ok=True)
        for file in names:
            data = disk.file(directory, file)
            if data is None:
                (self.place / file).unlink(missing_ok=True)
            else:
                _overwrite(self.place / file, data)
        shm = self.place / f"{name}-shm"
        if chance.random() < NONSENSE_SHARE:
            shm.write_bytes(chance.randbytes(SHM_BYTES))
        else:
            shm.unlink(missing_ok=True)


def _overwrite(path: Path, data: bytes | bytearray) -> None:
    """Overwrite a file instead of creating it: its pages are in memory already, which saves half of the time."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)
