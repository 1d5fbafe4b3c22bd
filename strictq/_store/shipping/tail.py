"""The end of one shard's WAL: which pages commits changed since the last capture, and when the WAL may restart.

A read transaction (a pin) is always open on the shard, and the next one begins before the last one ends. So SQLite lets no
process, of any version, restart the WAL before it was captured.

Two rules ensure that. A pin is replaced only after a capture whose time was taken after the pin began: then everything that a
checkpoint could have completed under the old pin was captured. And the WAL restarts only through `seal`, which captures the rest
while no process may write.
Source: docs/explanation/replication.md
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from ..._platform import files
from ..._sql import LOG, SHARD
from ..._values.errors import StoreCorrupt
from ..commit.connection import Durability, check_file, connect
from ..disk import checksums
from ..disk.pages import Cell, Row, Unreadable, last_cell, record
from ..disk.topology import Range
from ..disk.wal_file import FRAME_HEADER_BYTES, HEADER_BYTES, parse_header
from .values import FRAME_BYTES, PAGE_BYTES, Image, Position, WalMovedOn, WentBack

LOCK_PAGE: Final = (1 << 30) // PAGE_BYTES + 1
"""SQLite locks bytes of this page, at 1 GiB, and stores nothing in it."""
BLOCK_FRAMES: Final = 256
KEPT_FRAMES: Final = 64
"""So many frames, read at once to find out their pages, are kept until they are confirmed. More are read again."""
BUSY_TRIES: Final = 100
BUSY_STEP_SECONDS: Final = 0.0005
BULK_PASSES: Final = 3
REST_FRAMES: Final = 256
"""The most frames that a seal leaves for its second part, in which no process may write."""
_FRAME: Final = struct.Struct(">II8s")
"""Page number, size of the database after a commit (0: no commit), salts. The running checksum follows."""
_SALT: Final = struct.Struct(">I")
_SALTS: Final = slice(16, 24)


class WalFrame(NamedTuple):
    """One frame of a WAL: its number from 1, its page, and the size of the database if it commits, else 0."""

    number: int
    page: int
    commit: int


class WalTail:
    """One shard, as the shipper sees it."""

    def __init__(self, directory: Path, part: Range, durability: Durability) -> None:
        self.shard = part.shard
        self.size = 0
        """The database's pages after what was captured."""
        self.whole = False
        """Whether the whole shard was captured, not only its changes."""
        self.sealed = False
        """Whether the next write restarts the WAL."""
        self._path = directory / part.file
        self._readers: list[apsw.Connection] = []
        self._pinned: int | None = None
        self._fd: int | None = None
        self._header = b""
        self._done = 0
        self._last = ""
        self._time = 0
        self._block, self._block_after = b"", 0
        """The frames of the WAL that were read last, and the number of frames before them."""
        self._changed: dict[int, int] = {}
        """Page → its last captured frame, not confirmed yet."""
        self._carried: dict[int, bytes] = {}
        """Pages of a WAL that may have been restarted since, not confirmed yet."""
        try:
            check_file(self._path, self.shard, writing=True)
            for _ in range(2):
                self._readers.append(self._connect(durability))
            self._writer = self._connect(durability)
        except BaseException:
            self.close()
            raise

    def _connect(self, durability: Durability) -> apsw.Connection:
        db = connect(str(self._path), durability=durability, cache_kib=256)
        try:
            # A connection that never read the database checkpoints nothing, and its checksum layer makes none.
            checksums.require(db, self.shard)
            db.execute(SHARD.has_meta).fetchall()
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        """Close everything, the pin included."""
        self._pinned = None
        for db in (*self._readers, getattr(self, "_writer", None)):
            if db is not None:
                with suppress(apsw.Error):
                    db.close()
        self._readers = []
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    # ---- pins

    @property
    def _idle(self) -> apsw.Connection:
        """The reader that has no transaction."""
        return self._readers[1 if self._pinned == 0 else 0]

    def _pin(self) -> None:
        """Begin a new pin, and then end the old one."""
        new = 1 if self._pinned == 0 else 0
        self._readers[new].execute("BEGIN")
        try:
            self._readers[new].execute(SHARD.has_meta).fetchall()  # a transaction begins with its first read
        except BaseException:
            self._readers[new].execute("ROLLBACK")
            raise
        if self._pinned is not None:
            self._readers[self._pinned].execute("ROLLBACK")
        self._pinned = new

    def _look(self) -> tuple[bytes, int, int]:
        """Return the header of the WAL, the number of its committed frames, and how many of those are in the database."""
        if self._fd is None:
            try:
                self._fd = files.open_regular(f"{self._path}-wal", os.O_RDONLY)
            except FileNotFoundError:
                return b"", 0, 0
        tries = 0
        while True:
            before = os.pread(self._fd, HEADER_BYTES, 0)
            try:
                frames, checkpointed = self._idle.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
            except apsw.BusyError:
                # A commit was writing the header of the WAL's index, and SQLite does not wait for that here.
                tries += 1
                if tries == BUSY_TRIES:
                    raise
                time.sleep(BUSY_STEP_SECONDS)
                continue
            if os.pread(self._fd, HEADER_BYTES, 0) == before:
                return before, max(frames, 0), max(checkpointed, 0)

    # ---- where to begin

    def begin_whole(self) -> None:
        """Capture the whole shard as it is now."""
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            self._pin()
            self._header, self._done, checkpointed = self._look()
            self._last = self._frame_header(self._done)
            pinned = self._readers[self._pinned or 0]
            self.size = int(pinned.pragma("page_count"))
            self._time = self._newest(pinned)
        finally:
            self._writer.execute("ROLLBACK")
        self.whole, self.sealed = True, False
        self._changed, self._carried = {}, {}
        if checkpointed < self._done:  # otherwise the database has everything, and the WAL may restart
            self._changed = {frame.page: frame.number for frame in self._frames(0, self._done)}

    def begin_at(self, position: Position) -> bool:
        """Continue from another shipper's position. Return False if this WAL does not contain it any more.

        Raises:
            WentBack: the shard is an older copy than the one that was captured.
        """
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            self._pin()
            header, frames, checkpointed = self._look()
            pinned = self._readers[self._pinned or 0]
            newest = self._newest(pinned)
            if newest < position.time:
                raise WentBack
            known = bytes.fromhex(position.header)
            if not known and newest != position.time:
                return False  # there was no WAL, and one that was written since may have been truncated
            if header == known and frames >= position.frames and self._frame_header(position.frames) == position.last:
                self._done = position.frames
            elif self._follows(header, frames, known, position):
                self._done = 0
            else:
                return False
            self._header, self._last, self._time = header, position.last, position.time
            last = bytes.fromhex(position.last)
            self.size = _FRAME.unpack_from(last)[1] if last else int(pinned.pragma("page_count"))
            self.whole, self.sealed, self._changed, self._carried = False, False, {}, {}
            if checkpointed == frames:
                self._carry()  # the next write may restart the WAL
        finally:
            self._writer.execute("ROLLBACK")
        return True

    def _follows(self, header: bytes, frames: int, known: bytes, position: Position) -> bool:
        """Return whether this WAL follows the known one, and everything of that one had been captured.

        Old frames behind those of the new WAL show how far the known one went: either a frame of an earlier WAL is behind the
        last captured one, or that is still there, and the file ends with it. Otherwise the file may have been truncated.
        """
        if len(known) != HEADER_BYTES or len(header) != HEADER_BYTES or not parse_header(header).sound:
            return False
        if _salt(header) != (_salt(known) + 1) & 0xFFFFFFFF or frames > position.frames:
            return False
        assert self._fd is not None
        behind = os.pread(self._fd, FRAME_HEADER_BYTES, HEADER_BYTES + position.frames * FRAME_BYTES)
        is_older = len(behind) == FRAME_HEADER_BYTES and behind[8:16] not in (known[_SALTS], header[_SALTS])
        return is_older or (not behind and self._frame_header(position.frames) == position.last)

    def _newest(self, db: apsw.Connection) -> int:
        """Return the queue time of the newest write that a connection sees."""
        at: int = db.execute(LOG.last_time).get
        return at

    # ---- capturing

    @property
    def frames(self) -> int:
        """The number of captured frames of the WAL."""
        return self._done

    @property
    def salts(self) -> bytes:
        """The salts of the captured WAL."""
        return self._header[_SALTS]

    @property
    def has_changes(self) -> bool:
        """Whether anything captured is unconfirmed."""
        return bool(self._changed or self._carried or self.whole)

    def position(self) -> Position:
        """Return the position up to which the shard is captured."""
        return Position(self._header.hex(), self._done, self._last, self._time)

    def sync(self) -> None:
        """Sync what was captured on the primary: a replica must never have what a power cut takes from its primary."""
        if (self._changed or self.whole) and self._fd is not None:
            files.sync_data(self._fd)

    def advance(self, until: int | None) -> None:
        """Capture the commits whose time is not after `until`. None: all.

        Raises:
            WalMovedOn: the WAL is not the next one.
            StoreCorrupt: it is damaged.
        """
        header, frames, _ = self._look()
        if frames == 0:
            return
        if header != self._header:
            if self._changed or (self._header and _salt(header) != (_salt(self._header) + 1) & 0xFFFFFFFF):
                raise WalMovedOn
            self._header, self._done, self._last = header, 0, ""
        if frames <= self._done:
            return
        self.sealed = False
        found = list(self._frames(self._done, frames))
        if not found[-1].commit:
            raise StoreCorrupt("its WAL does not end with a commit", shard=self.shard)
        end = len(found) if until is None else self._within(found, until)
        if until is None:
            self._time = max(self._time, self._time_of_last(found))
        if end:
            self._take(found[:end])

    def _take(self, taken: list[WalFrame]) -> None:
        before = self.size
        for frame in taken:
            self._changed[frame.page] = frame.number
        self._done, self.size = taken[-1].number, taken[-1].commit
        self._last = self._frame_header(self._done)
        if self.size < before:
            self._changed = {page: number for page, number in self._changed.items() if page <= self.size}
            self._carried = {page: image for page, image in self._carried.items() if page <= self.size}
        elif not self.whole:
            new = set(range(before + 1, self.size + 1)) - {LOCK_PAGE} - self._changed.keys() - self._carried.keys()
            if new:
                raise StoreCorrupt(f"its WAL lacks page {min(new)}, which the database gained", shard=self.shard)

    def _within(self, found: list[WalFrame], until: int) -> int:
        """Return how many of these frames belong to commits that are not after `until`."""
        for begin, end in _commits(found):
            at = self._commit_time(found[begin:end])
            if at is None:
                continue  # it belongs with the previous one
            if at <= until:
                self._time = max(self._time, at)
                return self._end_before(found, end)
        return self._end_before(found, 0)

    def _end_before(self, found: list[WalFrame], accepted: int) -> int:
        """Return the end of the commits that follow `accepted` and have no time of their own."""
        last = accepted
        for begin, end in reversed(list(_commits(found[accepted:]))):
            if self._commit_time(found[accepted + begin : accepted + end]) is not None:
                break
            last = accepted + end
        return last

    def _time_of_last(self, found: list[WalFrame]) -> int:
        for begin, end in _commits(found):
            at = self._commit_time(found[begin:end])
            if at is not None:
                return at
        return self._time

    def _commit_time(self, frames: list[WalFrame]) -> int | None:
        pages: Mapping[int, Callable[[], bytes]] = {frame.page: partial(self._image, frame.number) for frame in frames}
        try:
            return time_of(pages)
        except Unreadable as e:
            raise StoreCorrupt(f"a page of its WAL can't be read: {e}", shard=self.shard) from e

    def images(self) -> Iterator[Image]:
        """Yield (page, content) of everything captured and unconfirmed, in ascending order of pages."""
        if not self.whole:
            for page in sorted({*self._changed, *self._carried}):
                number = self._changed.get(page)
                yield page, self._carried[page] if number is None else self._image(number)
            return
        database = apsw.VFSFile(checksums.vfs(), str(self._path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
        try:
            if database.xFileSize():
                database.xRead(PAGE_BYTES, 0)  # the first page shows the layer that there are checksums to verify
            for page in range(1, self.size + 1):
                if page == LOCK_PAGE:
                    continue
                number = self._changed.get(page)
                if page in self._carried and number is None:
                    yield page, self._carried[page]
                else:
                    yield page, database.xRead(PAGE_BYTES, (page - 1) * PAGE_BYTES) if number is None else self._image(number)
        finally:
            database.xClose()

    @property
    def carried_bytes(self) -> int:
        """The size of the pages that are kept in memory."""
        return len(self._carried) * PAGE_BYTES

    def wal_bytes(self) -> int:
        """Return the size of the committed part of the WAL."""
        return self._look()[1] * FRAME_BYTES

    def count(self) -> int:
        """Return how many pages `images` yields."""
        if self.whole:
            return self.size - (self.size >= LOCK_PAGE)
        return len({*self._changed, *self._carried})

    def confirm(self) -> None:
        """Mark what was captured as stored at the target."""
        self._changed, self._carried, self.whole = {}, {}, False
        self._block = b""

    # ---- restarting the WAL

    def seal(self) -> None:
        """Checkpoint the WAL, and let the next write restart it. Nothing captured may be unconfirmed.

        Most of it is checkpointed while others write. Then, while no process may write, the rest is captured and checkpointed,
        and a pin is begun that lets the WAL restart but not be checkpointed.
        """
        assert not self.has_changes
        for _ in range(BULK_PASSES):
            self._pin()
            pages, done = self._checkpoint()
            if pages - done <= REST_FRAMES:
                break
            self._carry()
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            self._carry()
            self._pin()
            pages, done = self._checkpoint()
            if pages == done == self._done:
                self._pin()
                self.sealed = True
        finally:
            self._writer.execute("ROLLBACK")

    def _checkpoint(self) -> tuple[int, int]:
        """Return the frames of the WAL, and how many of them are in the database now.

        (0, -1) if another process is checkpointing.
        """
        try:
            return self._idle.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            return 0, -1

    def _carry(self) -> None:
        """Capture everything, and keep it in memory: the WAL may restart before it is confirmed."""
        self.advance(None)
        if self._changed and self._fd is not None:
            files.sync_data(self._fd)
        self._carried |= {page: self._image(number) for page, number in self._changed.items()}
        self._changed = {}

    # ---- frames

    def _frames(self, after: int, upto: int) -> Iterator[WalFrame]:
        assert self._fd is not None or upto == 0
        salts = self._header[_SALTS]
        while after < upto:
            count = min(BLOCK_FRAMES, upto - after)
            raw = os.pread(self._fd or -1, count * FRAME_BYTES, HEADER_BYTES + after * FRAME_BYTES)
            if len(raw) != count * FRAME_BYTES:
                raise WalMovedOn
            self._block, self._block_after = raw if count <= KEPT_FRAMES else b"", after
            for i in range(count):
                page, commit, found = _FRAME.unpack_from(raw, i * FRAME_BYTES)
                if found != salts:
                    raise WalMovedOn
                yield WalFrame(after + i + 1, page, commit)
            after += count

    def _frame(self, number: int, size: int = FRAME_BYTES) -> bytes:
        """Return the first bytes of a frame."""
        assert self._fd is not None
        at = (number - 1 - self._block_after) * FRAME_BYTES
        if 0 <= at < len(self._block) and self._block[at + 8 : at + 16] == self._header[_SALTS]:
            return self._block[at : at + size]
        return os.pread(self._fd, size, HEADER_BYTES + (number - 1) * FRAME_BYTES)

    def _image(self, number: int) -> bytes:
        raw = self._frame(number)
        if len(raw) != FRAME_BYTES or raw[8:16] != self._header[_SALTS]:
            raise WalMovedOn
        return raw[FRAME_HEADER_BYTES:]

    def _frame_header(self, number: int) -> str:
        return self._frame(number, FRAME_HEADER_BYTES).hex() if number and self._fd is not None else ""


def _salt(header: bytes) -> int:
    """Return the first salt of a WAL, which grows by one at each restart."""
    value: int = _SALT.unpack_from(header, 16)[0] if len(header) == HEADER_BYTES else -1
    return value


def _commits(found: list[WalFrame]) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each commit in these frames, the newest first."""
    end = len(found)
    while end:
        begin = end - 1
        while begin and not found[begin - 1].commit:
            begin -= 1
        yield begin, end
        end = begin


def sync_or_suspect(tail: WalTail, suspect: Callable[[int], Any]) -> None:
    """Sync what was captured.

    Raises:
        StoreError: the sync failed. Every process is notified: nothing is written before the WAL is on the disk.
    """
    try:
        tail.sync()
    except OSError as e:
        suspect(tail.shard)
        raise files.failure("its WAL could not be synced", e, tail.shard) from e


_LEAF_TABLE: Final = 13
_LOG_COLUMNS: Final = 8
"""Both tables have so many."""
_KINDS_MAX: Final = 255
_ENTRY_KIND, _ENTRY_AT = 1, 2
_MESSAGE_KEY, _MESSAGE_SENT_AT = 1, 3


def time_of(pages: Mapping[int, Callable[[], bytes]]) -> int | None:
    """Return the queue time of a commit.

    Args:
        pages: the pages that the commit wrote. Each is read when it is needed.
    Returns:
        None: the commit changed no messages (it defined tables of the program) and has no time.
    """
    times = [at for read in pages.values() if (at := _newest_of_log(read(), pages)) is not None]
    return max(times, default=None)


def _newest_of_log(page: bytes, pages: Mapping[int, Callable[[], bytes]]) -> int | None:
    """Return the time of the last row of a leaf of `message` or `journal`. None: it is not such a leaf."""
    if page[0] != _LEAF_TABLE:
        return None
    last = last_cell(page)
    if last is None or last.payload is None:
        return None
    row = _record(last, pages)
    if len(row) != _LOG_COLUMNS or row[0] is not None:  # the number of a row is not in its record
        return None
    if all(isinstance(number, int) for number in row[_ENTRY_KIND : _LOG_COLUMNS - 2]) and 0 < row[_ENTRY_KIND] <= _KINDS_MAX:
        at = row[_ENTRY_AT]
    elif isinstance(row[_MESSAGE_KEY], bytes) and isinstance(row[_MESSAGE_KEY + 1], int):
        at = row[_MESSAGE_SENT_AT]
    else:
        return None
    return at if isinstance(at, int) else None


def _record(cell: Cell, pages: Mapping[int, Callable[[], bytes]]) -> Row:
    def written(number: int) -> bytes:
        if number not in pages:
            raise Unreadable(f"page {number} was written by another commit")
        return pages[number]()

    assert cell.payload is not None
    try:
        return record(written, cell.payload, cell.size, cell.overflow)
    except Unreadable:
        return ()  # an older row: its record continues in a page that this commit did not write
