"""Read pages of a shard without SQLite, to recover the verifiable part of a damaged file.

SQLite stops at the first damaged page. This module verifies each page separately, and recovers the pages below a damaged one
where their place is certain. The formats are SQLite's (https://sqlite.org/fileformat2.html).
Source: docs/howto/damage.md
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs

from ..._platform import files
from .wal_file import FRAME_HEADER_BYTES, Frame, Mark, Wal, running

PAGE_BYTES: Final = 4096
SUM_BYTES: Final = 8
USABLE: Final = PAGE_BYTES - SUM_BYTES
_SUM: Final = struct.Struct("<II")
_WORD: Final = 0xFFFFFFFF
_LOWER: Final = frozenset(1 << bit for bit in range(23))
"""The bits of a word whose flips the checksum distinguishes: for bit k it repeats after 3 << 30 - k pairs of words."""
_LOCAL_MIN: Final = (USABLE - 12) * 32 // 255 - 23
_LOCAL_MAX_TABLE: Final = USABLE - 35
_LOCAL_MAX_INDEX: Final = (USABLE - 12) * 64 // 255 - 23
_INTERIOR_INDEX, _INTERIOR_TABLE, _LEAF_INDEX, _LEAF_TABLE = 2, 5, 10, 13
_DEPTH_MAX: Final = 40
Row = tuple[Any, ...]


class Unreadable(Exception):
    """A page is damaged, or has impossible content."""


def sum_of(page: bytes) -> bytes:
    """Return the checksum that belongs at the end of a page."""
    return _SUM.pack(*running(page[:USABLE], (0, 0), "<"))


def sound(page: bytes) -> bool:
    """Return whether a page's checksum is right."""
    return len(page) == PAGE_BYTES and sum_of(page) == page[USABLE:]


def mended(page: bytes) -> bytes | None:
    """Return the page as it was before one bit flipped. None: the checksum does not identify the bit, or more is wrong.

    The checksum is linear. So the difference between the two sums is followed back, word by word, to one that a single bit
    causes. For the lower bits of a word that is nearly always unique.
    """
    wanted, computed = _SUM.unpack(page[USABLE:]), _SUM.unpack(sum_of(page))
    a, b = (wanted[0] - computed[0]) & _WORD, (wanted[1] - computed[1]) & _WORD
    if a == 0:
        return None  # the flip is in the page's last word, or in the sum
    found: list[bytes] = []
    if b == 0 and wanted[0] ^ computed[0] in _LOWER:
        found.append(page[:USABLE] + _SUM.pack(*computed))
    for pair in range(USABLE - 8, -8, -8):
        if a in (b, 0):
            at = pair if a else pair + 4
            word = int.from_bytes(page[at : at + 4], "little")
            before = word + b & _WORD
            if word ^ before in _LOWER:
                found.append(page[:at] + before.to_bytes(4, "little") + page[at + 4 :])
        b = b - a & _WORD
        a = a - b & _WORD
    return found[0] if len(found) == 1 else None


class Cell(NamedTuple):
    """One cell of a page of a tree.

    Attributes:
        child: the page left of it, in interior pages.
        rowid: in tables.
        payload: the part of its record that the page holds; None in interior pages of tables.
        size: of the whole record.
        overflow: the page with the next part of the record.
    """

    child: int | None
    rowid: int | None
    payload: bytes | None
    size: int
    overflow: int | None


class File:
    """The newest committed pages: a database, and its WAL over it."""

    def __init__(self, database: Path, mark: Mark | None, unsynced: int | None) -> None:
        """Open the files.

        Args:
            database: files that no process has open.
            unsynced: how many commits a power cut may have torn, besides the last one; None: any number.
        """
        self._fd = files.open_regular(database, os.O_RDONLY)
        self.pages = os.fstat(self._fd).st_size // PAGE_BYTES
        self._newest: dict[int, bytes | None] = {}
        """Page → its content in the WAL. None: that is damaged, or may be."""
        self.notes: list[str] = []
        self.readable: Callable[[], bool] = lambda: False
        """Whether SQLite reads the database if checksums are ignored. Called when a page has a wrong one."""
        self.unverified: set[int] = set()
        """Pages that were read in spite of a wrong checksum."""
        with Wal.of(database) as wal:
            if wal is not None:
                self._read_wal(wal, mark, unsynced)
            else:
                files.require_descriptors()  # or the content of the WAL would be lost silently

    def close(self) -> None:
        os.close(self._fd)

    def page(self, number: int) -> bytes:
        """Return a page.

        Raises:
            Unreadable: it does not exist, or is damaged.
        """
        if not 1 <= number <= self.pages:
            raise Unreadable(f"there is no page {number}")
        page = self._newest.get(number, b"")
        if page is None:
            raise Unreadable(f"the newest state of page {number} is damaged")
        page = page or os.pread(self._fd, PAGE_BYTES, (number - 1) * PAGE_BYTES)
        if number not in self._newest and not sound(page):
            return self._believed(number, page)
        return page

    def _believed(self, number: int, page: bytes) -> bytes:
        """Return a page whose checksum is wrong: as it was before a bit flipped, or as it is if SQLite reads the database."""
        if len(page) == PAGE_BYTES:
            if (whole := mended(page)) is not None:
                self._newest[number] = whole
                self.notes.append(f"a bit of page {number} had flipped; its checksum says which one")
                return whole
            if self.readable():
                self.unverified.add(number)
                return page
        raise Unreadable(f"page {number} is damaged")

    def _read_wal(self, wal: Wal, mark: Mark | None, unsynced: int | None) -> None:
        header = wal.header()
        if header is None:
            return
        if not header.sound:
            mended = wal.mended(header)
            if mended is None:
                self.notes.append("the header of the WAL is damaged; what the WAL held is lost")
                return
            header = mended
        frames = list(wal.frames(header))
        known = mark.frames if mark is not None and mark.salts == header.salts else 0
        end = _end(frames, known, unsynced)
        for number, frame in enumerate(frames[:end], 1):
            if not frame.good:
                self.notes.append(f"frame {number} of the WAL is damaged: it held page {frame.page}")
                if frame.instead:
                    self._newest[frame.instead] = None
            self._newest[frame.page] = wal.frame(number, PAGE_BYTES, page=True)[FRAME_HEADER_BYTES:] if frame.good else None
        for number in range(len(frames) + 1, known + 1):  # these frames existed, and no later frame determines their content
            self.notes.append(f"frame {number} of the WAL is damaged")
            page = wal.page_of(number, PAGE_BYTES)
            if page <= max([self.pages, *self._newest]):
                self._newest[page] = None
        sizes = [frame.commit for frame in frames[:end] if frame.commit and frame.good]
        self.pages = max([sizes[-1] if sizes else self.pages, *self._newest])


def _end(frames: list[Frame], known: int, unsynced: int | None) -> int:
    """Return how many frames were committed: at least those of the mark, and all up to the first hole.

    Behind a hole, a commit counts if another one continues it and so many commits precede it that not all of them can be
    unsynced.
    """
    end = continued = 0
    whole = True
    for number, frame in enumerate(frames, 1):
        if not frame.good:
            whole, continued = False, 0
        if frame.commit and frame.good:
            continued += number < len(frames) and frames[number].good
            if whole or number <= known or (unsynced is not None and continued > unsynced):
                end, whole = number, True  # from here on the frames have no hole again
    return max(end, min(known, len(frames)))


# ---- trees


@attrs.define
class Tree:
    """One table, read from its root: its readable rows, and the key ranges in which rows are missing."""

    file: File
    root: int
    key_columns: int = 2
    """In a table without rowids, and in an index."""
    reached: set[int] = attrs.Factory(set)
    lost: list[tuple[Row | None, Row | None]] = attrs.Factory(list)
    """The keys before and after a damaged page. None: the page is the first, or the last."""
    unverified: bool = False
    """Whether a page of the row that was yielded last has a wrong checksum."""

    def rows(self) -> Iterator[tuple[int | None, Row]]:
        """Yield (rowid or None, record), in the order of keys."""
        yield from self._walk(self.root, None, None, 0)

    def _walk(self, number: int, lo: Row | None, hi: Row | None, depth: int) -> Iterator[tuple[int | None, Row]]:
        try:
            if number in self.reached or depth > _DEPTH_MAX:
                raise Unreadable(f"page {number} is part of itself")
            page = self.file.page(number)
            found = list(cells(page, number))
        except Unreadable:
            self.lost.append((lo, hi))
            return
        self.reached.add(number)
        before = lo
        for cell in found:
            try:
                row = self._record(cell)
            except Unreadable:
                row = None
            key = before if row is None and cell.rowid is None else self._key(cell.rowid, row)
            if cell.child is not None:
                beyond = key if key is not before else hi
                if cell.rowid is not None:
                    beyond = (cell.rowid + 1,)  # in a table with rowids, the child includes the key itself
                yield from self._walk(cell.child, before, beyond, depth + 1)
            if cell.payload is not None:
                if row is None:
                    self.lost.append((before, hi if cell.rowid is None else (cell.rowid + 1,)))
                else:
                    self.unverified = number in self.file.unverified or self._overflows(cell)
                    yield cell.rowid, row
            before = key
        right = right_child(page, number)
        if right is not None:
            yield from self._walk(right, before, hi, depth + 1)

    def _overflows(self, cell: Cell) -> bool:
        """Return whether the cell's record continues in a page whose checksum is wrong."""
        page, left = cell.overflow, cell.size - len(cell.payload or b"")
        while page and left > 0 and self.file.unverified:
            if page in self.file.unverified:
                return True
            page, left = int.from_bytes(self.file.page(page)[:4], "big"), left - (USABLE - 4)
        return False

    def _record(self, cell: Cell) -> Row | None:
        return None if cell.payload is None else record(self.file.page, cell.payload, cell.size, cell.overflow)

    def found_again(self, free: set[int] | None, is_ours: Callable[[int | None, Row], bool]) -> Iterator[tuple[int | None, Row]]:
        """Yield rows of pages below damaged ones. They fit between this tree's lost keys, and belong to no other tree.

        Args:
            free: the pages of the free list. None: it is unknown, so an old page can't be distinguished from a used one.
            is_ours: returns whether a row can belong to this table.
        """
        if free is None or not self.lost:
            return
        for number in range(2, self.file.pages + 1):
            if number in self.reached or number in free:
                continue
            try:
                page = self.file.page(number)
                rows = [(cell.rowid, self._record(cell)) for cell in cells(page, number)]
            except Unreadable:
                continue
            whole = [(rowid, row) for rowid, row in rows if row is not None]
            if whole and len(whole) == len(rows) and all(is_ours(*each) and self._is_missing(*each) for each in whole):
                self.reached.add(number)
                self.unverified = number in self.file.unverified
                yield from whole

    def _is_missing(self, rowid: int | None, row: Row) -> bool:
        key = self._key(rowid, row)
        return any((lo is None or lo < key) and (hi is None or key < hi) for lo, hi in self.lost)

    def _key(self, rowid: int | None, row: Row | None) -> Row:
        if rowid is not None:
            return (rowid,)
        assert row is not None
        return row[: self.key_columns]


def cells(page: bytes, number: int) -> Iterator[Cell]:
    """Yield the cells of a page of a tree.

    Raises:
        Unreadable: it is not such a page.
    """
    for at in _places(page, number):
        yield _cell(page, number, at)


def last_cell(page: bytes) -> Cell | None:
    """Return the cell with the greatest key, for a page of which no more is needed. None: it is empty."""
    places = _places(page, 0)
    return _cell(page, 0, places[-1]) if places else None


def _places(page: bytes, number: int) -> tuple[int, ...]:
    """Return the offsets of the cells, in the order of their keys."""
    start = 100 if number == 1 else 0
    kind = page[start]
    if kind not in (_INTERIOR_INDEX, _INTERIOR_TABLE, _LEAF_INDEX, _LEAF_TABLE):
        raise Unreadable(f"page {number} is not a page of a tree")
    (count,) = struct.unpack_from(">H", page, start + 3)
    first = start + (12 if kind in (_INTERIOR_INDEX, _INTERIOR_TABLE) else 8)
    if first + 2 * count > USABLE:
        raise Unreadable(f"page {number} has too many cells")
    return struct.unpack_from(f">{count}H", page, first)


def _cell(page: bytes, number: int, at: int) -> Cell:
    kind = page[100 if number == 1 else 0]
    child = rowid = payload = overflow = None
    size = 0
    if kind in (_INTERIOR_INDEX, _INTERIOR_TABLE):
        (child,) = struct.unpack_from(">I", page, at)
        at += 4
    if kind != _INTERIOR_TABLE:
        size, at = varint(page, at)
    if kind in (_INTERIOR_TABLE, _LEAF_TABLE):
        rowid, at = varint(page, at)
    if kind != _INTERIOR_TABLE:
        local = _local(size, _LOCAL_MAX_TABLE if kind == _LEAF_TABLE else _LOCAL_MAX_INDEX)
        payload = page[at : at + local]
        if at + local > USABLE:
            raise Unreadable(f"a cell of page {number} exceeds the page")
        if local < size:
            (overflow,) = struct.unpack_from(">I", page, at + local)
    return Cell(child, rowid, payload, size, overflow)


def right_child(page: bytes, number: int) -> int | None:
    start = 100 if number == 1 else 0
    inner = page[start] in (_INTERIOR_INDEX, _INTERIOR_TABLE)
    return int.from_bytes(page[start + 8 : start + 12], "big") if inner else None


def _local(size: int, most: int) -> int:
    """Return how many bytes of a record its page holds. The rest overflows."""
    if size <= most:
        return size
    local = _LOCAL_MIN + (size - _LOCAL_MIN) % (USABLE - 4)
    return local if local <= most else _LOCAL_MIN


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and the offset of the next one."""
    value = 0
    try:
        for i in range(8):
            byte = data[at + i]
            value = value << 7 | byte & 0x7F
            if byte < 0x80:
                return value, at + i + 1
        value = value << 8 | data[at + 8]
    except IndexError:
        raise Unreadable("a number exceeds its record") from None
    return value - (1 << 64) if value >> 63 else value, at + 9


def record(page_of: Callable[[int], bytes], payload: bytes, size: int, overflow: int | None) -> Row:
    """Return the values of a record. Reads its overflow pages."""
    parts = [payload]
    missing = size - len(payload)
    while missing > 0:
        if not overflow:
            raise Unreadable("a record is truncated")
        page = page_of(overflow)
        overflow = int.from_bytes(page[:4], "big")
        parts.append(page[4 : 4 + min(missing, USABLE - 4)])
        missing -= len(parts[-1])
    data = b"".join(parts)
    end, at = varint(data, 0)
    values: list[Any] = []
    body = end
    while at < end:
        kind, at = varint(data, at)
        value, body = _value(data, kind, body)
        values.append(value)
    if body != len(data):
        raise Unreadable("a record does not have the length in its header")
    return tuple(values)


def _value(data: bytes, kind: int, at: int) -> tuple[Any, int]:
    if kind in (0, 8, 9):
        return (None, 0, 1)[kind % 7 if kind else 0], at
    if kind < 7:
        width = (0, 1, 2, 3, 4, 6, 8)[kind]
        return int.from_bytes(data[at : at + width], "big", signed=True), at + width
    if kind == 7:
        return struct.unpack_from(">d", data, at)[0], at + 8
    if kind < 12:
        raise Unreadable("a value has an unknown type")
    width = (kind - 12) // 2
    raw = data[at : at + width]
    try:
        return (raw.decode() if kind & 1 else raw), at + width
    except UnicodeDecodeError:
        raise Unreadable("a text is not UTF-8") from None


def free_pages(file: File) -> set[int] | None:
    """Return the pages of the free list. None: it can't be read to its end."""
    try:
        trunk, count = struct.unpack_from(">II", file.page(1), 32)
        free: set[int] = set()
        while trunk and trunk not in free:
            page = file.page(trunk)
            free.add(trunk)
            trunk, leaves = struct.unpack_from(">II", page)
            free.update(struct.unpack_from(f">{leaves}I", page, 8))
    except (Unreadable, struct.error):
        return None
    return free if len(free) == count else None
