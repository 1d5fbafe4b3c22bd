"""The time of a commit, read from the pages that it wrote.

Every transaction takes its time under the shard's write lock. In format 2, most write the counter row, whose `last_time` is that
time. The time of one that writes only to the logs of hot lanes is that of the newest row that it added to them.

In format 3, every transaction adds a row to one of the two logs, and the newest of its rows there has its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..disk.pages import Cell, Row, Unreadable, first_row, last_cell, record

LAST_TIME: Final = 4
"""The index of that column in the counter row's record."""
_LEAF_TABLE: Final = 13
_JOURNAL_COLUMNS: Final = 11
_JOURNAL_AT: Final = 2
_INBOX_COLUMNS: Final = 10
_INBOX_SENT_AT: Final = 3
_LOG_COLUMNS: Final = 8
"""Both logs of format 3 have so many."""
_KINDS_MAX: Final = 255
_ENTRY_KIND, _ENTRY_AT = 1, 2
_MESSAGE_KEY, _MESSAGE_SENT_AT = 1, 3


def time_of(pages: Mapping[int, Callable[[], bytes]], counter: int | None) -> int | None:
    """Return the queue time of a commit.

    Args:
        pages: the pages that the commit wrote. Each is read when it is needed.
        counter: the page of the counter row; None: the shard has format 3.
    Returns:
        None: the commit changed no messages (it defined tables of the program) and has no time.
    """
    if counter is None:
        times = [at for read in pages.values() if (at := _newest_entry(read(), pages)) is not None]
        return max(times, default=None)
    if counter in pages:
        at = first_row(pages[counter]())[LAST_TIME]
        if not isinstance(at, int):
            raise Unreadable("the counter row has no time")
        return at
    times = [at for read in pages.values() if (at := _newest_of_log(read(), pages)) is not None]
    return max(times, default=None)


def _newest_of_log(page: bytes, pages: Mapping[int, Callable[[], bytes]]) -> int | None:
    """Return the time of the last row of a leaf of the inbox or the journal. None: it is not such a leaf."""
    if page[0] != _LEAF_TABLE:
        return None
    last = last_cell(page, 0)
    if last is None or last.payload is None:
        return None
    row = _record(last, pages)
    if len(row) == _JOURNAL_COLUMNS:
        at = row[_JOURNAL_AT]
    elif len(row) == _INBOX_COLUMNS:
        at = row[_INBOX_SENT_AT]
    else:
        return None
    return at if isinstance(at, int) else None


def _newest_entry(page: bytes, pages: Mapping[int, Callable[[], bytes]]) -> int | None:
    """Return the time of the last row of a leaf of one of the logs of format 3. None: it is not such a leaf."""
    if page[0] != _LEAF_TABLE:
        return None
    last = last_cell(page, 0)
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
    assert cell.payload is not None
    try:
        return record(_Written(pages), cell.payload, cell.size, cell.overflow)
    except Unreadable:
        return ()  # an older row: its record continues in a page that this commit did not write


class _Written:
    """The pages of a commit, for `record`."""

    def __init__(self, pages: Mapping[int, Callable[[], bytes]]) -> None:
        self._pages = pages

    def page(self, number: int) -> bytes:
        """Return a page.

        Raises:
            Unreadable: the commit did not write it.
        """
        if number not in self._pages:
            raise Unreadable(f"page {number} was written by another commit")
        return self._pages[number]()
