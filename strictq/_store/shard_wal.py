"""The WAL of an open shard: what of it is on the disk for sure, how far it may grow, and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import apsw

from .._errors import StoreBusy, StoreCorrupt, StoreError
from .._sql import SHARD
from . import checksums, files, wal
from .catalog import Catalog
from .commit import Writer
from .connection import Durability, at_once, failed_sync, leak, translate
from .log import logger

WAL_PAGES: Final = 8000
"""Pages in a queue's WALs at which they are checkpointed, shared by its shards: 16 MiB."""
WAL_PAGES_MIN: Final = 250
SHORT_WAL_PAGES: Final = 64
"""The same while the disk is full: what a consumer was given must last for every shard."""
ROOM_BYTES: Final = 8 << 20
"""What a WAL leaves of the disk, besides the room for its pages in the database."""
WAL_GROWTH: Final = 3
"""How many times that size a WAL may reach before writers wait for its checkpoint."""
LONG_PAGES: Final = 1000
"""Pages of a WAL from which on it is not left to whoever opens the shard next, who would read all of it: 4 MiB."""
PAGE_BYTES: Final = 4096


class WalHost(Protocol):
    """What the WAL of a shard asks of the queue it belongs to."""

    catalog: Catalog
    stored_durability: Durability
    read_only: bool
    short_of_space: bool

    def wal_grew(self, shard: int) -> None: ...
    def suspects(self, shard: int) -> int: ...
    def trust(self, shard: int, failure: int) -> None: ...


class ShardWal:
    """What one shard knows of its WAL. In memory there is none, and nothing here does anything.

    Checkpoints are for one thread at a time: the shard has a lock for them.

    Args:
        connect: opens another connection to the shard.
    """

    def __init__(
        self, host: WalHost, shard: int, path: Path | None, writer: Writer, connect: Callable[..., apsw.Connection]
    ) -> None:
        self.pages = 0
        self.stuck = False
        """The last checkpoint found no room on the disk."""
        self._host = host
        self._shard = shard
        self._path = path
        self._writer = writer
        self._connect = connect
        self._checkpoint_at = max(WAL_PAGES // len(host.catalog.topology), WAL_PAGES_MIN)
        self._most = WAL_GROWTH * self._checkpoint_at
        """Pages; less where the disk has little room: a checkpoint may have to add all of them to the database."""
        self._looked_at = 0
        self._checkpointer: apsw.Connection | None = None
        self._mark: wal.Mark | None = None
        self._full = host.catalog.durability == "full"
        self._synced: wal.Mark | None = None
        """At "full": what of the WAL was on the disk when the last commit returned."""

    # ---- what is on the disk

    def verify(self, db: apsw.Connection) -> None:
        """Refuse a damaged one."""
        if self._path is None:
            return
        found = damage_of_wal(self._path, db, self._shard, every_commit_synced=self._host.stored_durability == "full")
        if found:
            raise StoreCorrupt(found, shard=self._shard)

    def mark(self, db: apsw.Connection) -> None:
        """Note how far the WAL goes, so that damage to it will be noticed."""
        if self._path is None or self._host.read_only:
            return
        mark = wal.current_mark(self._path, db)
        if mark is not None and mark != self._mark:
            if self._host.stored_durability != "full":
                files.sync_wal(self._path)
            wal.write_mark(self._path.with_name(files.MARKS), self._shard, mark)
            self._mark = mark

    def mark_synced(self) -> None:
        """Note what is on the disk for sure, for whoever writes the WAL again."""
        if self._path is None or self._synced is None:
            return
        file = self._path.with_name(files.MARKS)
        known = wal.read_mark(file, self._shard)
        if known is None or known.salts != self._synced.salts or known.frames < self._synced.frames:
            wal.write_mark(file, self._shard, self._synced)

    def write_again(self, db: apsw.Connection) -> None:
        """After a failed sync: the same bytes once more, so that the kernel writes them, and a sync that counts.

        A checkpoint instead would bring the database ahead of the WAL that is really on the disk, and a power cut would mix them.
        """
        assert self._path is not None
        db.execute("BEGIN IMMEDIATE")  # nobody appends meanwhile
        failure = self._host.suspects(self._shard)
        try:
            # Not what is on the disk for sure: a power cut in the middle of writing may leave garbage.
            marked = wal.read_mark(self._path.with_name(files.MARKS), self._shard)
            files.rewrite_wal(self._path, wal.end_of(self._path, self._synced, self._mark, marked))
        except OSError as e:
            raise StoreError(f"its WAL could not be synced: {e.strerror}", shard=self._shard, cause=e) from e
        finally:
            db.execute("ROLLBACK")
        self._writer.trust()
        self._host.trust(self._shard, failure)

    # ---- how far it may grow

    def watch(self, db: apsw.Connection) -> None:
        """See that it keeps to its limits, and that what a commit adds is noted."""
        if self._path is not None:
            # A WAL that outgrew its limit is cut back to it when it starts again.
            db.pragma("journal_size_limit", WAL_GROWTH * self._checkpoint_at * PAGE_BYTES)
            db.set_wal_hook(self._committed)

    def _committed(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        """SQLite's WAL hook. The commit is done: whatever goes wrong here must not look as if it were not."""
        self.pages = pages
        try:
            self._wal_grew(pages)
        except Exception:
            logger().exception("shard %d: what follows a commit failed; the commit stands", self._shard)
        return apsw.SQLITE_OK

    def _wal_grew(self, pages: int) -> None:
        if not 0 <= pages - self._looked_at < SHORT_WAL_PAGES:
            self._look_for_room(pages)
        if self._full:
            known = self._synced
            # The salts are read only where the WAL may have begun again; if it did unseen, they do not fit, and say nothing.
            salts = known.salts if known is not None and pages > known.frames else wal.salts_of(self._path)
            self._synced = wal.Mark(salts, pages)
        if pages >= self._checkpoint_at:
            self._host.wal_grew(self._shard)

    def _look_for_room(self, pages: int) -> None:
        self._looked_at = pages
        free = files.free_bytes(self._path)
        if free is not None:
            room = (free - ROOM_BYTES) // (2 * PAGE_BYTES * len(self._host.catalog.topology))
            self._most = min(max(room, SHORT_WAL_PAGES), WAL_GROWTH * self._checkpoint_at)

    @property
    def overgrown(self) -> bool:
        """Is it time that writers wait for a checkpoint?"""
        return self.pages >= (SHORT_WAL_PAGES if self._host.short_of_space else self._most)

    @property
    def cramped(self) -> bool:
        """The disk has little room left."""
        return self.stuck or self._most < WAL_GROWTH * self._checkpoint_at

    def has_room(self, size: int) -> bool:
        """Could so many bytes more be brought into the database?"""
        if self.stuck:
            return False
        free = files.free_bytes(self._path) if size > SHORT_WAL_PAGES * PAGE_BYTES else None
        return free is None or size <= free

    # ---- checkpoints

    def checkpoint(self, *, wait: bool = True) -> tuple[int, int]:
        """Bring the WAL's pages into the database, so that the next write starts the WAL again.

        PASSIVE, in two passes: the bulk while writers go on, and what they added meanwhile while none may write; without `wait`
        only if no other process writes now. Returns the pages in the WAL, and those of them that are checkpointed.
        """
        if self._path is None:
            return 0, 0
        try:
            if self._writer.distrusted:
                self._writer.use(lambda _db: None)  # opens it again: no checkpoint before the WAL is on the disk
            if self._checkpointer is None:
                self._checkpointer = self._connect(self._host.catalog.durability, cache_kib=256)
                checksums.require(self._checkpointer, self._shard)
                # A connection that never read the database checkpoints nothing.
                self._checkpointer.execute(SHARD.has_meta).fetchall()
            pages, done = self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if done < pages or self.pages > pages:
                pages, done = self._writer.use(self._finish_checkpoint if wait else self._finish_at_once)
            if pages == done:
                self.stuck = False
                self.mark(self._checkpointer)
            return pages, done
        except OSError as e:
            self._writer.distrust()
            raise StoreError(f"its WAL could not be synced: {e.strerror}", shard=self._shard, cause=e) from e
        except (apsw.BusyError, StoreBusy):
            return 0, 0  # another process is at it
        except apsw.Error as e:
            if failed_sync(e):
                self._writer.distrust()
            self.stuck = isinstance(e, apsw.FullError)
            raise translate(e, self._shard) from e

    def _finish_checkpoint(self, db: apsw.Connection) -> tuple[int, int]:
        assert self._checkpointer is not None
        db.execute("BEGIN IMMEDIATE")
        try:
            return self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        finally:
            db.execute("ROLLBACK")

    def _finish_at_once(self, db: apsw.Connection) -> tuple[int, int]:
        with at_once(db):
            return self._finish_checkpoint(db)

    def shorten(self) -> None:
        """Before the shard is closed: if the WAL is long, checkpoint it, and write something, so that it begins again.

        SQLite reads a WAL to its end when nobody has the file open: after a checkpoint, too, as long as nothing was written. The
        file keeps its size. This does not wait for others who write: while they are there nobody has to read it.
        """

        def write(db: apsw.Connection) -> None:
            with at_once(db):
                db.execute(SHARD.skip_id)

        if self.pages >= LONG_PAGES:
            pages, done = self.checkpoint(wait=False)
            if 0 < pages == done:
                self._writer.use(write)

    def cut(self) -> None:
        """Give its space back to the file system, after a checkpoint."""

        def truncate(_db: apsw.Connection) -> None:
            assert self._checkpointer is not None
            self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

        if self._checkpointer is not None:
            self._writer.use(truncate)

    def close_checkpointer(self) -> None:
        db, self._checkpointer = self._checkpointer, None
        if db is not None:
            with suppress(apsw.Error):
                db.close()

    def abandon(self) -> None:
        """In a child whose fork was not prepared: never touch, and never close, the parent's connection."""
        if self._checkpointer is not None:
            leak(self._checkpointer)


def damage_of_wal(path: Path, db: apsw.Connection, shard: int, *, every_commit_synced: bool) -> str | None:
    """What is wrong with the WAL of the shard that this connection has read, by its mark and by itself."""

    def in_database(image: Callable[[int], bytes | None]) -> bool:
        """Does the WAL's counter row, which every transaction writes, say what the database says?"""
        from . import pages  # only where frames are damaged

        page = image(db.execute(SHARD.counter_page).get)
        return page is None or pages.first_row(page)[1:] == db.execute(SHARD.read_counter).get

    mark = wal.read_mark(path.with_name(files.MARKS), shard)
    return wal.damage(path, db, mark, every_commit_synced=every_commit_synced, in_database=in_database)
