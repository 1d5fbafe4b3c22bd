"""Capture what changed in a whole queue since the last capture, as cuts: states that the queue really had.

A cut is a point of queue time, taken before any shard is read. It contains those commits of each shard that are not later. Every
transaction takes its time under its shard's write lock, so a cut that contains a commit also contains all that had returned
before that commit began. No lock over several shards is needed. queue.db is read after the shards.
Source: docs/explanation/replication.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from ..._platform import files
from ..._platform.clock import Clock
from ..catalog import queue_db
from ..catalog.contents import Catalog
from ..commit.checkpoint import WAL_PAGES, WAL_PAGES_MIN
from ..commit.connection import check_file, connect_catalog, translate
from ..disk import layout
from .tail import WalTail, sync_or_suspect
from .values import CATALOG_FILE, PAGE_BYTES, ChangedFile, Position, QueueCut, WalMovedOn


class Capture:
    """All shards of one queue, as the shipper sees them. Not thread-safe.

    Args:
        suspect: called with the number of a shard whose WAL could not be synced.
    """

    def __init__(self, directory: Path, clock: Clock, suspect: Callable[[int], Any]) -> None:
        self._directory = directory
        self._clock = clock
        self._suspect = suspect
        self._tails: list[WalTail] = []
        self._catalog: apsw.Connection | None = None
        self._catalog_version: int | None = None
        self._catalog_seen: int | None = None
        self._catalog_at: int | None = None
        """When queue.db was changed last, as long as its confirmed image is its present one."""
        self.known: Catalog = queue_db.read(directory)
        try:
            with _translated():
                check_file(directory / layout.CATALOG, CATALOG_FILE, writing=False)
                self._catalog = connect_catalog(str(directory / layout.CATALOG), read_only=True)
                self._add_tails()
        except BaseException:
            self.close()
            raise

    def _add_tails(self) -> bool:
        """Follow the shards that queue.db names and that are not followed yet. Return whether there were any."""
        parts = self.known.topology.ranges[len(self._tails) :]
        for part in parts:
            self._tails.append(WalTail(self._directory, part, self.known.durability))
        if parts:
            self._seal_at = max(WAL_PAGES // len(self._tails), WAL_PAGES_MIN)
        return bool(parts)

    def close(self) -> None:
        """Release every shard. From now on processes may checkpoint what was not captured."""
        for tail in self._tails:
            tail.close()
        self._tails = []
        db, self._catalog = self._catalog, None
        if db is not None:
            db.close()

    @property
    def queue_id(self) -> str:
        return self.known.queue_id

    @property
    def shards(self) -> int:
        """The number of the queue's shards that are followed."""
        return len(self._tails)

    # ---- where to begin

    def begin(self, positions: Mapping[int, Position] | None) -> int:
        """Continue from these positions. A shard that can't is shipped whole. None: ship everything.

        Returns:
            How many shards continue.
        Raises:
            WentBack: the queue is an older copy than the one that was shipped.
        """
        went_on = 0
        self._catalog_version = self._catalog_at = None
        with _translated():
            for tail in self._tails:
                position = None if positions is None else positions.get(tail.shard)
                if position is not None and tail.begin_at(position):
                    went_on += 1
                else:
                    tail.begin_whole()
        return went_on

    # ---- cuts

    def now(self) -> int:
        """Return the queue time."""
        return self._clock.boot() + self.known.time_offset

    def seal(self) -> bool:
        """Checkpoint the shards whose WAL has grown and has nothing unconfirmed. Return whether there was one."""
        sealed = False
        with _translated():
            for tail in self._tails:
                if tail.frames >= self._seal_at and not tail.sealed and not tail.has_changes:
                    self._guarded(tail, tail.seal)
                    sealed = True
        return sealed

    def cut(self) -> QueueCut | None:
        """Return what changed until now, or None.

        Changes stay in the result until `confirm`: after a failed attempt to ship them, the next cut repeats them.
        """
        with _translated():
            while True:
                x, wall = self._advance()
                for tail in self._tails:
                    sync_or_suspect(tail, self._suspect)
                image = self._changed_catalog()
                if not self._add_tails():
                    break
                self.begin(None)  # the first cut with a new shard has the whole queue, like the first of all
            parts = [ChangedFile(t.shard, t.size, t.count(), t.images()) for t in self._tails if t.has_changes]
            if not parts and image is None:
                return None
            whole = all(tail.whole for tail in self._tails) and image is not None
            if image is not None:
                pages = len(image) // PAGE_BYTES
                at = PAGE_BYTES
                content = iter([(i + 1, image[i * at : (i + 1) * at]) for i in range(pages)])
                parts.append(ChangedFile(CATALOG_FILE, pages, pages, content))
            return QueueCut(x, wall, whole, parts, {tail.shard: tail.position() for tail in self._tails})

    def _advance(self) -> tuple[int, int]:
        """Capture the commits of all shards up to now. Return the queue time and the wall time of that."""
        while True:
            x, wall = self.now(), self._clock.wall()
            if all(self._guarded(tail, partial(tail.advance, x)) for tail in self._tails):
                return x, wall
            # A shard that is captured whole may have commits that are later than x.

    @staticmethod
    def _guarded(tail: WalTail, work: Callable[[], None]) -> bool:
        """Run `work`. Return False if the shard's WAL could not be read further; the whole shard is then captured."""
        try:
            work()
        except WalMovedOn:
            tail.begin_whole()
            return False
        return True

    def _changed_catalog(self) -> bytes | None:
        """Return the image of queue.db, if it differs from the confirmed one."""
        assert self._catalog is not None
        at = files.changed_at(self._directory / layout.CATALOG)
        if at is not None and at == self._catalog_at:
            return None  # SQLite would open a transaction to find that out
        self._catalog_seen, self._catalog_at = self._catalog.pragma("data_version"), None
        if self._catalog_seen == self._catalog_version:
            self._catalog_at = at
            return None
        image = self._catalog.serialize("main")
        self.known = queue_db.read(self._directory)  # afterwards, so that it names every shard that the image names
        return image

    def confirm(self) -> None:
        """Mark the last cut as stored at the target."""
        for tail in self._tails:
            tail.confirm()
        self._catalog_version = self._catalog_seen

    def kept_bytes(self) -> int:
        """Return the size of all WALs, and of the pages of earlier WALs that are kept in memory."""
        with _translated():
            return sum(tail.carried_bytes + tail.wal_bytes() for tail in self._tails)

    def captured(self) -> list[tuple[str, int]]:
        """Return, for each shard, the salts of its WAL and how many of its frames were captured."""
        return [(tail.salts.hex(), tail.frames) for tail in self._tails]


@contextmanager
def _translated() -> Iterator[None]:
    """Translate errors of SQLite and of the operating system into strictq's."""
    try:
        yield
    except apsw.Error as e:
        raise translate(e, -1) from e
    except OSError as e:
        raise files.failure("its files can't be read", e) from e
