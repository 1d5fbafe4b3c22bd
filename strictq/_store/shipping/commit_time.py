"""The time of a commit, read from the pages that it wrote.

Every transaction takes its time under the shard's write lock, and adds a row to `message` or `journal`. The newest of its rows
there has its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..disk.pages import Cell, Row, Unreadable, last_cell, record

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
