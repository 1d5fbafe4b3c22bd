"""Verify that a WAL still holds what was committed.

SQLite treats the first damaged frame as the end of the WAL, as if the power had failed there. Later commits would be lost
silently; and if some of them are in the database already, old pages would mix with new ones. So a shard is quarantined when its
WAL ends too early, which is known from two things:

- **The mark.** After a checkpoint, and when a shard is closed, a few bytes beside the shards record how many frames of the WAL
  with this salt were on the disk. That is a lower bound, true as long as the WAL has that salt. It is not synced: a power cut
  may leave an older mark, or none, and those are true as well.
- **Commits with successors.** At "full" no process writes after a commit that must be synced before it is. A receive is not
  synced, but at most UNSYNCED_MAX such commits follow each other. A power cut may tear these and the one behind them. So if more
  commits than that lie behind the end that SQLite found, each continued by the running checksum of its successor, then one of
  them was on the disk, and with it everything before it. Within a boot nothing is torn, and one such commit is enough. What an
  interrupted or rolled back commit leaves behind has no successor.

Neither detects damage to the last few commits before a power cut: it looks like the power cut's own effect.

The format of the WAL is SQLite's (https://sqlite.org/fileformat2.html#walformat).
Source: docs/explanation/storage.md
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple
from zlib import adler32, crc32

import apsw

from ..._platform import files
from ..._values.errors import StoreError

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
UNSYNCED_MAX: Final = 4
"""The maximum number of consecutive unsynced commits, at "full"."""
HOLE_FRAMES_MAX: Final = 1000
"""The number of consecutive unverifiable frames after which a WAL is taken to end."""
_MAGIC: Final = 0x377F0682
_HEADER: Final = struct.Struct(">IIII8sII")
_FRAME: Final = struct.Struct(">II8sII")
"""Page number, size of the database after a commit (0: no commit), salts, running checksum."""
_MARK: Final = struct.Struct(">I8sI8sI4x")
"""Shard, salts, frames, boot, CRC-32 of these."""
_NO_BOOT: Final = bytes(8)
Sums = tuple[int, int]


class Header(NamedTuple):
    """The header of a WAL.

    Attributes:
        order: byte order of the checksums, as struct names it.
        sound: whether its own checksum is right.
    """

    raw: bytes
    order: str
    page_bytes: int
    salts: bytes
    sums: Sums
    sound: bool


class Frame(NamedTuple):
    """A frame of a WAL: its page, the size of the database if it commits (else 0), and whether it is intact.

    Attributes:
        instead: for a frame that is not intact, another page that it may have held; 0: there is none.
    """

    page: int
    commit: int
    good: bool
    instead: int = 0


class Mark(NamedTuple):
    """What strictq records about a shard's WAL.

    Attributes:
        salts, frames: this many frames of the WAL with these salts were on the disk.
        boot: in this boot a process wrote to the WAL, or opened it to write. No frame need have been on the disk.
    """

    salts: bytes
    frames: int
    boot: bytes = _NO_BOOT

    def had_frames(self, boot: bytes) -> bool:
        """Return whether, in this boot, the WAL may have had frames that a power cut can't have taken."""
        return self.frames > 0 or self.boot == boot


def unsynced_max(mark: Mark | None, durability: str, boot: bytes) -> int | None:
    """Return how many commits of a WAL a power cut may have torn, besides the last one. None: any number."""
    if durability != "full":
        return None
    return 0 if mark is not None and mark.boot == boot else UNSYNCED_MAX


EMPTY: Final = Mark(bytes(8), 0)
"""The mark of a WAL that strictq emptied."""


def boot_tag(boot: str) -> bytes:
    """Return the name of a boot in a mark."""
    raw = boot.encode()
    return struct.pack(">II", crc32(raw), adler32(raw))  # avoids importing hashlib


def has_header(path: Path) -> bool:
    """Return whether there is a WAL that is long enough to hold anything."""
    with Wal.of(path) as wal:
        return wal is not None and wal.header() is not None


def salts_of(path: Path | None) -> bytes:
    """Return the salts of a shard's WAL; empty if it has none, or none that can be read."""
    header = None
    if path is not None:
        # Called after a commit: an error when opening the file must not make it look as if the commit had failed.
        with suppress(OSError), Wal.of(path) as wal:
            header = None if wal is None else wal.header()
    return header.salts if header is not None and header.sound else b""


def frames_behind(path: Path, known: tuple[str, int]) -> int:
    """Return how many committed frames the WAL has behind the known ones, judged by frame headers without a connection.

    Args:
        known: salts, hexadecimal, and the number of frames of the WAL with these salts.
    """
    with Wal.of(path) as wal:
        header = None if wal is None else wal.header()
        if wal is None or header is None or not header.sound:
            return 0
        begin = known[1] if header.salts.hex() == known[0] else 0
        committed = begin
        for number in count(begin + 1):
            raw = wal.frame(number, header.page_bytes)
            if len(raw) < FRAME_HEADER_BYTES:
                break
            _page, commit, salts, _a, _b = _FRAME.unpack(raw)
            if salts != header.salts:
                break
            if commit:
                committed = number
    return committed - begin


def end_of(path: Path, *known: Mark | None) -> int:
    """Return the offset in a shard's WAL behind the frames known to be on the disk; 0 if nothing is known of this WAL."""
    with Wal.of(path) as wal:
        header = None if wal is None else wal.header()
    if header is None or not header.sound:
        return 0
    frames = max((mark.frames for mark in known if mark is not None and mark.salts == header.salts), default=0)
    return HEADER_BYTES + frames * (FRAME_HEADER_BYTES + header.page_bytes) if frames else 0


def running(data: bytes, sums: Sums, order: str) -> Sums:
    """Continue SQLite's WAL checksum over more bytes."""
    a, b = sums
    for x, y in struct.iter_unpack(f"{order}II", data):
        a = (a + x + b) & 0xFFFFFFFF
        b = (b + y + a) & 0xFFFFFFFF
    return a, b


def parse_header(raw: bytes) -> Header:
    magic, _version, page_bytes, _sequence, salts, a, b = _HEADER.unpack(raw)
    order = ">" if magic & 1 else "<"
    sound = magic & ~1 == _MAGIC and running(raw[:24], (0, 0), order) == (a, b)
    return Header(raw, order, page_bytes, salts, (a, b), sound)


class Wal:
    """The WAL of a shard as a plain file. It may be opened and closed beside SQLite; its database must never be."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @staticmethod
    @contextmanager
    def of(path: Path) -> Iterator[Wal | None]:
        """Open the WAL of the shard at this path. None: it has none."""
        try:
            fd = files.open_regular(f"{path}-wal", os.O_RDONLY)
        except (OSError, StoreError):
            yield None
            return
        try:
            yield Wal(fd)
        finally:
            os.close(fd)

    def header(self) -> Header | None:
        """Return the header. None: the file is too short to have one."""
        raw = os.pread(self._fd, HEADER_BYTES, 0)
        return parse_header(raw) if len(raw) == HEADER_BYTES else None

    def frame(self, number: int, page_bytes: int, *, page: bool = False) -> bytes:
        """Return a frame's header, numbered from 1, and its page if asked for. The result is shorter at the end of the file."""
        at = HEADER_BYTES + (number - 1) * (FRAME_HEADER_BYTES + page_bytes)
        return os.pread(self._fd, FRAME_HEADER_BYTES + (page_bytes if page else 0), at)

    def page_of(self, number: int, page_bytes: int) -> int:
        """Return the page number in a frame's header; 0 behind the end of the file."""
        raw = self.frame(number, page_bytes)
        page: int = _FRAME.unpack(raw)[0] if len(raw) == FRAME_HEADER_BYTES else 0
        return page

    def mended(self, header: Header) -> Header | None:
        """Correct one flipped bit in a header. None: more is wrong with it, or the frames do not belong to it."""
        for bit in range(HEADER_BYTES * 8):
            raw = bytearray(header.raw)
            raw[bit // 8] ^= 1 << bit % 8
            mended = parse_header(bytes(raw))
            if mended.sound and 512 <= mended.page_bytes <= 65536 and self._continues(1, mended, mended.sums):
                return mended
        return None

    def commits(self, header: Header) -> Iterator[int]:
        """Yield the numbers of the frames that commit, up to the first unreadable one. Slow: 0.1 ms a frame."""
        sums = header.sums
        for number in count(1):
            raw = self.frame(number, header.page_bytes, page=True)
            if len(raw) < FRAME_HEADER_BYTES + header.page_bytes:
                return
            _page, commit, salts, a, b = _FRAME.unpack_from(raw)
            sums = self._sums(raw, sums, header)
            if salts != header.salts or sums != (a, b):
                return
            if commit:
                yield number

    def frames(self, header: Header) -> Iterator[Frame]:
        """Yield every frame of this WAL, up to the last one that can be verified.

        A frame is verified by the checksum of the one before it, or, if only its header is damaged, by what that must have
        been. Slow: 0.1 ms a frame, 6 ms a damaged one.
        """
        held: list[Frame] = []
        sums = header.sums
        for number in count(1):
            raw = self.frame(number, header.page_bytes, page=True)
            if len(raw) < FRAME_HEADER_BYTES + header.page_bytes:
                return
            page, commit, salts, a, b = _FRAME.unpack_from(raw)
            found = Frame(page, commit, good=False)
            computed = self._sums(raw, sums, header)
            if computed == (a, b):
                found = Frame(page, commit, good=salts == header.salts or self._continues(number + 1, header, (a, b)))
            elif self._continues(number + 1, header, computed):
                found, (a, b) = Frame(page, commit, good=True), computed
            elif salts == header.salts:
                found = self._mended_frame(raw, sums, header) or found
            sums = (a, b)
            held.append(found)
            if found.good:
                yield from held
                held.clear()
            elif len(held) > HOLE_FRAMES_MAX:
                return

    def _mended_frame(self, raw: bytes, sums: Sums, header: Header) -> Frame | None:
        """Return the frame if exactly one bit of its page number or size is wrong.

        In SQLite's sum, a bit in the highest byte of a word of the page can have the same effect as the same bit of the
        numbers: its effect repeats within the length of a page. For such a bit it is unknown which of the two flipped.
        """
        stored = _FRAME.unpack_from(raw)[3:]
        for bit in range(64):
            head = bytearray(raw[:8])
            head[bit // 8] ^= 1 << bit % 8
            if self._sums(bytes(head) + raw[8:], sums, header) == stored:
                page, commit = struct.unpack(">II", head)
                if bit // 8 % 4 != (3 if header.order == "<" else 0):
                    return Frame(page, commit, good=True)
                read, size = struct.unpack_from(">II", raw)
                return Frame(read, size, good=False, instead=page if page != read else 0)
        return None

    @staticmethod
    def _sums(frame: bytes, sums: Sums, header: Header) -> Sums:
        return running(frame[FRAME_HEADER_BYTES:], running(frame[:8], sums, header.order), header.order)

    def goes_on_after(self, frames: int, header: Header, unsynced: int) -> bool:
        """Return whether more than `unsynced` commits behind this many frames are each continued by another frame."""
        before: Sums | None = None
        for number in count(frames + 1):
            raw = self.frame(number, header.page_bytes)
            if len(raw) < FRAME_HEADER_BYTES:
                return False
            _page, commit, salts, a, b = _FRAME.unpack(raw)
            if before is not None and salts == header.salts and self._continues(number, header, before):
                unsynced -= 1
                if unsynced < 0:
                    return True
            before = (a, b) if commit else None
        raise AssertionError

    def _continues(self, number: int, header: Header, sums: Sums) -> bool:
        """Return whether this frame follows one with that checksum."""
        raw = self.frame(number, header.page_bytes, page=True)
        if len(raw) < FRAME_HEADER_BYTES + header.page_bytes:
            return False
        _page, _commit, salts, a, b = _FRAME.unpack_from(raw)
        return salts == header.salts and self._sums(raw, sums, header) == (a, b)

    def images(self, header: Header) -> Iterator[tuple[int, bytes]]:
        """Yield each page that the WAL's commits wrote, with its last content there."""
        last = {}
        for number in range(1, max(self.commits(header), default=0) + 1):
            page, *_ = _FRAME.unpack(self.frame(number, header.page_bytes))
            last[page] = number
        for page, number in last.items():
            yield page, self.frame(number, header.page_bytes, page=True)[FRAME_HEADER_BYTES:]


def damage(
    path: Path,
    db: apsw.Connection,
    mark: Mark | None,
    *,
    unsynced: int | None,
    in_database: Callable[[Iterator[tuple[int, bytes]]], bool],
) -> str | None:
    """Return what is wrong with a shard's WAL, as seen by this connection, which has read the database. None: no visible damage.

    Args:
        unsynced: as from `unsynced_max`.
        in_database: given pages with their content in the WAL, returns whether the database file already has that content.
    """
    with Wal.of(path) as wal:
        header = wal.header() if wal is not None else None
        if wal is None or header is None:
            return None
        if not header.sound:
            mended = wal.mended(header)
            if mended is None or in_database(wal.images(mended)):
                # A power cut tore the header when the WAL was restarted. Then everything is in the database, or might as well be.
                return None
            return "the header of its WAL is damaged"
        frames = _frames(db, wal, header)
        if wal.header() != header:
            return None  # another process restarted it, which it does only if it could read all of it
        if not frames and any(wal.commits(header)):
            return None  # it is to be restarted, and nothing was written since: its contents are in the database
        if mark is not None and mark.salts == header.salts and frames < mark.frames:
            return f"its WAL is damaged: {frames} frames can be read, {mark.frames} were written"
        while unsynced is not None and wal.goes_on_after(frames, header, unsynced):
            # Another process may be committing now. But a commit is published before it has a successor.
            before, frames = frames, _frames(db, wal, header)
            if wal.header() != header:
                return None
            if frames == before:
                return f"its WAL is damaged: commits lie behind frame {frames}, where it can't be read on"
    return None


def end(db: apsw.Connection, page_bytes: int) -> int:
    """Return the offset in the WAL behind its newest commit, as seen by a connection that has read the database."""
    frames = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
    return HEADER_BYTES + frames * (FRAME_HEADER_BYTES + page_bytes) if frames > 0 else 0


def _frames(db: apsw.Connection, wal: Wal, header: Header) -> int:
    """Return how many frames of the WAL are committed, as SQLite sees it."""
    try:
        return db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
    except apsw.ReadOnlyError:
        return max(wal.commits(header), default=0)  # SQLite does not report it on a read-only medium


# ---- marks


def marks_bytes(shards: int) -> int:
    """Return the size of the file of marks."""
    return shards * _MARK.size


def read_mark(file: Path, shard: int) -> Mark | None:
    """Return the mark of a shard. None: it does not exist, or is damaged itself."""
    with suppress(OSError, StoreError), files.opened(file, os.O_RDONLY) as fd:
        raw = os.pread(fd, _MARK.size, shard * _MARK.size)
        if len(raw) == _MARK.size:
            number, salts, frames, boot, sum_ = _MARK.unpack(raw)
            if (number, sum_) == (shard, crc32(raw[:24])):
                return Mark(salts, frames, boot)
    return None


def write_mark(file: Path, shard: int, mark: Mark) -> None:
    """Write a mark. If that fails, the previous one remains, and remains true."""
    raw = struct.pack(">I8sI8s", shard, mark.salts, mark.frames, mark.boot)
    with suppress(OSError, StoreError), files.opened(file, os.O_WRONLY | os.O_CREAT) as fd:
        os.pwrite(fd, _MARK.pack(shard, mark.salts, mark.frames, mark.boot, crc32(raw)), shard * _MARK.size)


def current_mark(path: Path, db: apsw.Connection, boot: bytes) -> Mark | None:
    """Return a mark of the WAL's present end. The caller ensures that this part is on the disk before the mark is written."""
    with Wal.of(path) as wal:
        header = wal.header() if wal is not None else None
        if wal is None or header is None or not header.sound:
            return None
        frames = _frames(db, wal, header)
        return Mark(header.salts, frames, boot) if frames > 0 and wal.header() == header else None
