"""The WAL of an open shard: the part of it that is known to be on the disk, its size limit, and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import apsw

from ..._platform import files
from ..._platform.clock import Clock
from ..._platform.log import log
from ..._sql import LOG, SHARD, TABLES
from ..._values.errors import StoreBusy, StoreCorrupt, StoreError, StoreFull
from ..disk import checksums, layout, wal_file
from .connection import Durability, LockWait, at_once, failed_sync, leak, no_room, translate
from .tx import TOKEN_BITS
from .writer import Writer

WAL_PAGES: Final = 8000
"""The number of pages in a queue's WALs at which they are checkpointed, shared by its shards: 31 MiB."""
WAL_PAGES_MIN: Final = 250
SHORT_WAL_PAGES: Final = 64
"""The same for each shard while the disk is full: the space released for consumers must suffice for all shards."""
ROOM_BYTES: Final = 8 << 20
"""The disk space that a WAL leaves free, besides the room for its pages in the database."""
WAL_GROWTH: Final = 3
"""The multiple of that size which a WAL may reach before writers wait for its checkpoint."""
PAGE_BYTES: Final = 4096
TOKENS_SKIPPED: Final = 1 << 24
"""The number of tokens skipped after a failed sync.

More than are issued between two syncs; 65,536 such skips fit into a boot.
"""


class WalHost(Protocol):
    """What the WAL of a shard needs from its queue."""

    stored_durability: Durability
    read_only: bool
    short_of_space: bool
    epoch: int
    clock: Clock

    def wal_grew(self, shard: int) -> None: ...
    def suspects(self, shard: int) -> int: ...
    def trust(self, shard: int, failure: int) -> None: ...


class ShardWal:
    """The state of one shard's WAL. An in-memory shard has none, and these methods do nothing.

    Only one thread at a time may checkpoint: the shard has a lock for that.

    Args:
        connect: opens another connection to the shard.
        shards: the number of the queue's shards, which share the limit.
    """

    def __init__(
        self, host: WalHost, shard: int, path: Path | None, writer: Writer, connect: Callable[..., apsw.Connection],
        *, durability: Durability, shards: int,
    ) -> None:  # fmt: skip
        self.pages = 0
        self.stuck = False
        """Whether the last checkpoint found no room on the disk."""
        self._host = host
        self._shard = shard
        self._path = path
        self._writer = writer
        self._connect = connect
        self._durability = durability
        self._shards = shards
        self._checkpoint_at = max(WAL_PAGES // shards, WAL_PAGES_MIN)
        self.pages_max = WAL_GROWTH * self._checkpoint_at
        """Limit in pages. It is lower if the disk has little room: a checkpoint may have to add all of them to the database."""
        self.cramped = False
        """Whether the disk has little room left."""
        self._looked_at = 0
        self._quiet_to = 0
        """Commits up to this page of the WAL need no action."""
        self._checkpointer: apsw.Connection | None = None
        self._mark: wal_file.Mark | None = None
        self._full = durability == "full"
        self._boot = b"" if path is None else wal_file.boot_tag(host.clock.boot_id())
        self._noted = False
        """Whether the mark says that the WAL has frames."""
        self._emptied = False
        self._synced: wal_file.Mark | None = None
        """At "full": the part of the WAL that was on the disk when the last synced commit returned."""

    # ---- what is on the disk

    def is_gone(self) -> bool:
        """Return whether the WAL is missing although, by the mark, it had frames that strictq did not checkpoint."""
        if self._path is None:
            return False
        mark = wal_file.read_mark(self._path.with_name(layout.MARKS), self._shard)
        return mark is not None and mark.had_frames(self._boot) and not wal_file.has_header(self._path)

    def verify(self, db: apsw.Connection) -> None:
        """Raise StoreCorrupt if the WAL is damaged."""
        if self._path is None:
            return
        found = damage_of_wal(self._path, db, self._shard, self._host.stored_durability, self._boot)
        if found:
            raise StoreCorrupt(found, shard=self._shard)

    def mark(self, db: apsw.Connection) -> None:
        """Record the end of the WAL, so that damage to it will be noticed."""
        if self._path is None or self._host.read_only:
            return
        mark = wal_file.current_mark(self._path, db, self._boot)
        if mark is not None and mark != self._mark:
            layout.sync_wal(self._path)
            wal_file.write_mark(self._path.with_name(layout.MARKS), self._shard, mark)
            self._mark = mark

    def drop_torn(self, db: apsw.Connection, epoch: int | None) -> None:
        """Truncate what a power cut left behind the WAL's last commit, and sync that. Called at the first open after a boot.

        New frames continue the checksums of the commits before them. If a second power cut tears them, old frames behind them
        could become valid again, and with those the commits that were lost.

        Args:
            epoch: of the last write that began one. None: the row that has it is missing.
        """
        if self._path is None or self._host.read_only or epoch is None:
            return  # without that row nothing is written to the shard; check() reports it
        if epoch >= self._host.epoch:
            return  # this boot has written to the shard already
        try:
            with self._at_its_end(db) as end:
                layout.cut_wal(self._path, end)
        except OSError as e:
            raise files.failure("its WAL could not be truncated", e, self._shard) from e

    @contextmanager
    def _at_its_end(self, db: apsw.Connection) -> Iterator[int]:
        """Hold the shard's write lock, and yield the offset behind the WAL's newest commit, as every connection sees it now."""
        other = self._connect("process", cache_kib=256)  # SQLite reports the end of a WAL outside of transactions only
        try:
            other.execute(SHARD.has_meta).fetchall()
            db.execute("BEGIN IMMEDIATE")  # keeps other writers from appending
            try:
                yield wal_file.end(other, PAGE_BYTES)
            finally:
                db.execute("ROLLBACK")
        finally:
            other.close()

    def mark_synced(self) -> None:
        """Record the part of the WAL that is known to be on the disk, for the connection that rewrites it."""
        if self._path is None or self._synced is None:
            return
        file = self._path.with_name(layout.MARKS)
        known = wal_file.read_mark(file, self._shard)
        if known is None or known.salts != self._synced.salts or known.frames < self._synced.frames:
            wal_file.write_mark(file, self._shard, self._synced)

    def write_again(self, db: apsw.Connection) -> None:
        """Rewrite the same bytes of the WAL after a failed sync, so that the kernel writes them, and sync them.

        A checkpoint instead would bring the database ahead of the WAL that is really on the disk; a power cut would then mix
        the two.

        What follows the newest commit is dropped. A commit whose sync failed may be complete there, and a power cut would bring
        it back after readers saw that it had not happened.

        Commits may be lost, among them leases. Their tokens are never issued again.
        """
        assert self._path is not None
        failure = self._host.suspects(self._shard)
        # Start from the recorded end, not from what is on the disk: a power cut in the middle of a write may leave garbage.
        marked = wal_file.read_mark(self._path.with_name(layout.MARKS), self._shard)
        try:
            with self._at_its_end(db) as end:
                layout.cut_wal(self._path, max(end, wal_file.HEADER_BYTES))
                layout.rewrite_wal(self._path, wal_file.end_of(self._path, self._synced, self._mark, marked))
        except OSError as e:
            raise StoreError(f"its WAL could not be synced: {e.strerror}", shard=self._shard, cause=e) from e
        db.execute("BEGIN IMMEDIATE")
        db.execute(TABLES.skip_tokens, (TOKENS_SKIPPED, (1 << TOKEN_BITS) - 1))
        db.execute(LOG.append_void)  # every memory is built anew
        db.execute("COMMIT")
        self._writer.trust()
        self._host.trust(self._shard, failure)

    # ---- how far it may grow

    def watch(self, db: apsw.Connection) -> None:
        """Set the size limit of the WAL, and have each commit's growth recorded."""
        if self._path is not None:
            # A WAL that outgrew its limit is truncated to it when it restarts.
            db.pragma("journal_size_limit", WAL_GROWTH * self._checkpoint_at * PAGE_BYTES)
            db.set_wal_hook(self._committed)
            self._note_frames()  # before there are any: a process may be killed between its first commit and the hook
            self._noted = False
            self._quiet_to = 0

    def _committed(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        """Handle SQLite's WAL hook. The commit is done, so an error here must not make it look as if it had failed."""
        before, self.pages = self.pages, pages
        if before < pages < self._quiet_to:
            return apsw.SQLITE_OK
        try:
            self._wal_grew(pages, began=pages <= before)
        except Exception:
            log.exception("shard %d: an action after a commit failed; the commit is not affected", self._shard)
        return apsw.SQLITE_OK

    def _wal_grew(self, pages: int, *, began: bool) -> None:
        if not 0 <= pages - self._looked_at < SHORT_WAL_PAGES:
            self._look_for_room(pages)
        if self._full and self._writer.syncs:
            known = self._synced
            # Read the salts only if the WAL may have restarted. If it restarted unnoticed, the old salts differ, and are ignored.
            salts = known.salts if known is not None and pages > known.frames else wal_file.salts_of(self._path)
            self._synced = wal_file.Mark(salts, pages, self._boot)
        if began or not self._noted:
            self._note_frames()
        if pages >= self._checkpoint_at:
            self._host.wal_grew(self._shard)
        self._quiet_to = 0 if self._full else min(self._looked_at + SHORT_WAL_PAGES, self._checkpoint_at)

    def _note_frames(self) -> None:
        """Record in the mark that the WAL has frames.

        At "full", the frames of a commit are on the disk. Otherwise, and before there are any, the mark counts for this boot
        only.
        """
        assert self._path is not None
        file = self._path.with_name(layout.MARKS)
        mark = wal_file.read_mark(file, self._shard)
        if self._synced is not None and (mark is None or not mark.frames):
            wal_file.write_mark(file, self._shard, self._synced)
        elif mark is None or not mark.had_frames(self._boot):
            wal_file.write_mark(file, self._shard, wal_file.EMPTY._replace(boot=self._boot))
        self._noted = True

    def _look_for_room(self, pages: int) -> None:
        self._looked_at = pages
        free = files.free_bytes(self._path)
        if free is not None:
            room = (free - ROOM_BYTES) // (2 * PAGE_BYTES * self._shards)
            self.pages_max = min(max(room, SHORT_WAL_PAGES), WAL_GROWTH * self._checkpoint_at)
            self._set_stuck(self.stuck)

    @property
    def overgrown(self) -> bool:
        """Whether writers must wait for a checkpoint."""
        return self.pages >= (SHORT_WAL_PAGES if self._host.short_of_space else self.pages_max)

    def _set_stuck(self, stuck: bool) -> None:
        self.stuck = stuck
        self.cramped = stuck or self.pages_max < WAL_GROWTH * self._checkpoint_at

    def has_room(self, size: int) -> bool:
        """Return whether a checkpoint could bring this many more bytes into the database."""
        if self.stuck:
            return False
        free = files.free_bytes(self._path) if size > SHORT_WAL_PAGES * PAGE_BYTES else None
        return free is None or size <= free

    # ---- checkpoints

    def checkpoint(self, seconds: float | None = None) -> tuple[int, int]:
        """Bring the WAL's pages into the database, so that the next write restarts the WAL.

        Runs PASSIVE in two passes: most pages while writers continue, then the pages that they added meanwhile, under the write
        lock.

        Args:
            seconds: how long the second pass waits for writers; None: BUSY_SECONDS.
        Returns:
            The pages in the WAL, and how many of them are checkpointed. (0, 0) if the wait timed out.
        """
        if self._path is None:
            return 0, 0
        try:
            if self._writer.distrusted:
                self._writer.use(lambda _db: None)  # reopens it, since the WAL must be on the disk before a checkpoint
            if self._checkpointer is None:
                self._checkpointer = self._connect(self._durability, cache_kib=256)
                checksums.require(self._checkpointer, self._shard)
                # A connection that never read the database checkpoints nothing.
                self._checkpointer.execute(SHARD.has_meta).fetchall()
            pages, done = self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if done < pages or self.pages > pages:
                pages, done = self._writer.maintain(self._finish_checkpoint, seconds)
            if pages == done:
                self._set_stuck(False)
                self.mark(self._checkpointer)
            return pages, done
        except OSError as e:
            self._writer.distrust()
            raise StoreError(f"its WAL could not be synced: {e.strerror}", shard=self._shard, cause=e) from e
        except (apsw.BusyError, StoreBusy):
            return 0, 0  # another process is checkpointing or writing
        except apsw.Error as e:
            if failed_sync(e):
                self._writer.distrust()
            ours = translate(e, self._shard, self._checkpointer)
            self._set_stuck(isinstance(ours, StoreFull))
            raise ours from e

    def _finish_checkpoint(self, db: apsw.Connection) -> tuple[int, int]:
        assert self._checkpointer is not None
        db.execute("BEGIN IMMEDIATE")
        try:
            return self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        finally:
            db.execute("ROLLBACK")

    def leave(self, db: apsw.Connection, *, last: bool) -> None:
        """Empty the WAL before the writing connection is closed, or record its end.

        Waits for no other connection: if one reads or writes, the WAL stays as it is.

        Args:
            last: no other process has the queue open.
        """
        if self._path is None or self._host.read_only:
            return
        if last:
            try:
                if wal_file.has_header(self._path):
                    with at_once(db):
                        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                pass  # another program reads it
            except (apsw.FullError, apsw.IOError) as e:
                if not no_room(e, db):
                    raise
            else:
                self._emptied = True  # the mark may still say that there were frames: see `mark_empty`
                return
        self.mark(db)

    def mark_empty(self) -> None:
        """Record that the WAL is empty, if `leave` emptied it and it is still empty.

        The caller ensures that no process has the queue open: a process that recorded frames in the mark does not record them
        again.
        """
        if self._path is not None and self._emptied and not wal_file.has_header(self._path):
            wal_file.write_mark(self._path.with_name(layout.MARKS), self._shard, wal_file.EMPTY)

    def cut(self, seconds: float) -> None:
        """Truncate the WAL after a checkpoint to return its space to the file system, if writers and readers finish in time."""

        def truncate(_db: apsw.Connection) -> None:
            assert self._checkpointer is not None
            self._checkpointer.set_busy_handler(LockWait(seconds))
            self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

        if self._checkpointer is not None:
            self._writer.maintain(truncate, seconds)

    def close_checkpointer(self) -> None:
        db, self._checkpointer = self._checkpointer, None
        if db is not None:
            with suppress(apsw.Error):
                db.close()

    def abandon(self) -> None:
        """Keep the parent's connection untouched and unclosed, in a child whose fork was not prepared."""
        if self._checkpointer is not None:
            leak(self._checkpointer)


def damage_of_wal(path: Path, db: apsw.Connection, shard: int, durability: Durability, boot: bytes) -> str | None:
    """Return the damage of the WAL of the shard that this connection has read, by its mark and by its own checksums, or None.

    Args:
        durability: the level at which every process has written to it.
    """

    def in_database(written: Iterator[tuple[int, bytes]]) -> bool:
        from ..disk.foreign import StoredPages  # imported late: only a WAL with a damaged header needs it

        with StoredPages(path, read_only=True) as stored:
            return all(number <= stored.count and stored.says(number, page) for number, page in written)

    mark = wal_file.read_mark(path.with_name(layout.MARKS), shard)
    unsynced = wal_file.unsynced_max(mark, durability, boot)
    return wal_file.damage(path, db, mark, unsynced=unsynced, in_database=in_database)
