"""Append to the logs of a shard, and read them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import apsw

from ..._sql import HISTORY, LOG, TABLES, repeated, with_steps
from ..._values.errors import StoreCorrupt
from ..lane.entries import Entry
from ..lane.memory import M_ID, MessageRow

_INSERT: Final = repeated(LOG.insert, 128, 16, 4, 1)
PAIRS: Final = with_steps(LOG.pairs, keep_ended=TABLES.keep_ended, forget=HISTORY.forget)
"""The views by which one statement writes two tables."""
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
        self._total_changes: Any = db.total_changes
        self._has_pairs = False

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

    def append_alone(self, entry: Entry, trouble: tuple[Any, ...] | None = None, record: tuple[Any, ...] | None = None) -> bool:
        """Commit an entry in a single statement. Return False if another process wrote meanwhile: then nothing was changed.

        Args:
            trouble: a row of that table to write with it.
            record: what the records of the messages that it ends have, as `ending.record` returns it.
        """
        if trouble is not None:
            return self._write_pair(LOG.append_troubled_alone, (*entry, *trouble))
        if record is not None:
            return self._write_pair(LOG.append_recorded_alone, (*entry, *record))
        self._run(LOG.append_alone, entry)
        return bool(self._changes())

    def insert(self, rows: Sequence[MessageRow]) -> None:
        run, at, left = self._run, 0, len(rows)
        for n, statement in _INSERT.items():
            while left >= n:
                run(statement, tuple(chain.from_iterable(rows[at : at + n])))
                at += n
                left -= n

    def insert_alone(self, row: MessageRow, seen: int, dedup: tuple[str, int, bool] | None = None) -> bool:
        """Commit a message in a single statement. Return False if another process wrote meanwhile: then nothing was changed.

        Args:
            dedup: its dedup id, the end of its window, and whether it is one of the whole queue. False is also returned if the
                id is known.
        """
        if dedup is not None:
            return self._write_pair(LOG.insert_deduped_alone, (*row, seen, *dedup))
        self._run(LOG.insert_alone, (*row, seen))
        return bool(self._changes())

    def _write_pair(self, statement: str, values: tuple[Any, ...]) -> bool:
        """Write rows of two tables in a single statement. Return whether it wrote anything."""
        if not self._has_pairs:
            self._run(PAIRS)
            self._has_pairs = True
        before = self._total_changes()
        self._run(statement, values)
        return bool(self._total_changes() != before)

    # ---- reading

    def entries_after(self, seen: int) -> list[Entry]:
        found: list[Entry] = self._run(LOG.entries, (seen,)).fetchall()
        return found

    def messages_after(self, top: int, body_bytes: int) -> list[MessageRow]:
        """Return the messages behind this one. Bodies longer than `body_bytes` are None."""
        found: list[MessageRow] = self._run(LOG.messages, (top, body_bytes)).fetchall()
        return found

    def news(self, seen: int, top: int, most: int, body_bytes: int) -> tuple[list[Entry], list[MessageRow]] | None:
        """Return the entries and the messages behind these, with a single statement. None: there are so many, or more."""
        found: list[Any] = self._run(LOG.news, (seen, top, most, body_bytes)).fetchall()
        if len(found) >= most:
            return None
        if not found or type(found[-1][1]) is not bytes:
            return found, []
        at = next(n for n, row in enumerate(found) if type(row[1]) is bytes)
        return found[:at], found[at:]

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

    def sent_before(self, at: int, top: int) -> int:
        """Return the arrival number up to which messages were sent before a queue time.

        Times ascend with arrival numbers, except those of lanes that came from other shards. So this is a hint if ranges moved.

        Args:
            top: the newest message.
        """
        low, high = 0, top + 1
        while low + 1 < high:
            middle = (low + high) // 2
            found = self._run(LOG.sent_from, (middle,)).fetchone()
            if found is None or found[1] >= at:
                high = middle
            else:
                low = found[0]
        return low

    def sent_at(self, arrivals: Sequence[int]) -> dict[int, int]:
        """Return when messages were sent. Those that were deleted are missing."""
        if not arrivals:
            return {}  # an array of SQLite must have a value
        return dict(self._run(LOG.sent_at, (apsw.carray(array("q", arrivals)),)).fetchall())

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
