"""Append to the logs of a shard, and read them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import apsw

from ..._errors import StoreCorrupt
from ..._sql import LOG, repeated
from ..lane.entries import Entry
from ..lane.memory import M_ID, MessageRow

_INSERT: Final = repeated(LOG.insert, 128, 16, 4, 1)
_KEYS: Final = repeated(LOG.keys, 256, 32, 4, 1)
_TIMES: Final = repeated(LOG.times, 256, 32, 4, 1)
_WHOLE: Final = repeated(LOG.whole, 256, 32, 4, 1)


def in_parts(run: Any, statements: dict[int, str], values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Run a statement over many values, as few times as possible, and return its rows."""
    at = 0
    for n, statement in statements.items():
        while len(values) - at >= n:
            yield from run(statement, tuple(values[at : at + n])).fetchall()
            at += n


class LogRows:
    """The two logs, over one connection."""

    def __init__(self, db: apsw.Connection, shard: int) -> None:
        self._shard = shard
        self._run: Any = db.execute
        self._many: Any = db.executemany
        self._changes: Any = db.changes

    def newest(self) -> tuple[int, int]:
        """Return the newest entry and the newest message. Every write transaction changes one of them."""
        found = self._run(LOG.newest).get
        if None in found:
            raise StoreCorrupt("its journal or its table of messages is empty", shard=self._shard)
        newest: tuple[int, int] = found
        return newest

    # ---- appending

    def append(self, entry: Entry) -> None:
        self._run(LOG.append, entry)

    def append_alone(self, entry: Entry) -> bool:
        """Commit an entry in a single statement. Return False if another process wrote meanwhile: then nothing was changed."""
        self._run(LOG.append_alone, entry)
        return bool(self._changes())

    def insert(self, rows: Sequence[MessageRow]) -> None:
        run, at, left = self._run, 0, len(rows)
        for n, statement in _INSERT.items():
            while left >= n:
                run(statement, tuple(chain.from_iterable(rows[at : at + n])))
                at += n
                left -= n

    def insert_alone(self, row: MessageRow, seen: int) -> bool:
        """Commit a message in a single statement. Return False if another process wrote meanwhile: then nothing was changed."""
        self._run(LOG.insert_alone, (*row, seen))
        return bool(self._changes())

    # ---- reading

    def entries_after(self, seen: int) -> list[Entry]:
        found: list[Entry] = self._run(LOG.entries, (seen,)).fetchall()
        return found

    def messages_after(self, top: int) -> list[MessageRow]:
        found: list[MessageRow] = self._run(LOG.messages, (top,)).fetchall()
        return found

    def keys(self, arrivals: Iterable[int]) -> dict[int, tuple[bytes, int]]:
        """Return the keys and seqs of messages. Deleted ones are missing."""
        return {i: (key, seq) for i, key, seq in in_parts(self._run, _KEYS, sorted(arrivals))}

    def times(self, arrivals: Iterable[int]) -> dict[int, tuple[int | None, int | None]]:
        """Return `due` and `expires` of those messages that have one."""
        return {i: (due, expires) for i, due, expires in in_parts(self._run, _TIMES, sorted(arrivals))}

    def whole(self, arrivals: Iterable[int]) -> dict[int, MessageRow]:
        """Return messages with their bodies. Deleted ones are missing."""
        wanted = sorted(arrivals)
        if len(wanted) > 4 and wanted[-1] - wanted[0] < 2 * len(wanted):
            some = set(wanted)
            rows = self._run(LOG.whole_range, (wanted[0], wanted[-1])).fetchall()
            return {row[M_ID]: row for row in rows if row[M_ID] in some}
        return {row[M_ID]: row for row in in_parts(self._run, _WHOLE, wanted)}

    def sent_at(self, arrivals: Sequence[int]) -> list[int]:
        """Return when messages were sent. Those that were deleted are missing."""
        if not arrivals:
            return []  # an array of SQLite must have a value
        return [at for (at,) in self._run(LOG.sent_at, (apsw.carray(array("q", arrivals)),)).fetchall()]

    def sizes(self, arrivals: Sequence[int]) -> list[int]:
        """Return the bytes of bodies and options of messages, in their order. Those that were deleted have none."""
        if not arrivals:
            return []
        return [size for (size,) in self._run(LOG.sizes, (apsw.carray(array("q", arrivals)),)).fetchall()]

    # ---- cutting

    def last_before(self, cut: int, position: int) -> tuple[int, int] | None:
        """Return the newest entry below a position, and its top. None: it is the last cut."""
        found: tuple[int, int] | None = self._run(LOG.last_before, (cut, position)).get
        return found

    def cut(self, upto: int) -> None:
        self._run(LOG.cut, (upto,))

    def delete_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Delete rows of resolved messages. The newest row stays, so that arrival numbers never restart."""
        self._many(LOG.delete_range, ranges)

    def delete(self, arrivals: Sequence[int]) -> None:
        self._many(LOG.delete_one, [(i,) for i in arrivals])
