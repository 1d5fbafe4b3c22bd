"""Rows of lanes at rest: load them, read windows of their ids, and write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import apsw

from ..._sql import TABLES, repeated
from ..._values.errors import StoreCorrupt
from ..lane.damage import is_of_values
from ..lane.entries import ID_BYTES, pack, unpack
from ..lane.live_lane import LaneAtRest, LiveLane
from .log_rows import in_parts

_LOAD: Final = repeated(TABLES.load, 256, 32, 4, 1)
_DROP_PARTS: Final = repeated(TABLES.drop_parts, 256, 32, 4, 1)
_EMPTY: Final = repeated(TABLES.write_empty, 64, 8, 1)
_HEAD_COLUMNS: Final = 16


class LaneRows:
    """The tables `lane` and `pending`, over one connection."""

    def __init__(self, db: apsw.Connection, shard: int, chunk: int) -> None:
        self._db = db
        self._run: Any = db.execute
        self._many: Any = db.executemany
        self._shard = shard
        self._chunk = chunk

    def load(self, keys: Iterable[bytes]) -> list[LaneAtRest]:
        """Return the rows of lanes, in the order of keys. Those without a row are missing."""
        rows = [LaneAtRest._make(row) for row in in_parts(self._run, _LOAD, sorted(keys))]
        for row in rows:
            if not 1 <= row.first <= row.tail + 1:
                raise StoreCorrupt(f"the row of lane {row.key!r} has first {row.first} and tail {row.tail}", shard=self._shard)
        return rows

    def row(self, key: bytes) -> LaneAtRest:
        """Return the row of a lane that must be at rest.

        Raises:
            StoreCorrupt: it is missing.
        """
        rows = self.load([key])
        if not rows:
            raise StoreCorrupt(f"the row of lane {key!r} is missing", shard=self._shard)
        return rows[0]

    def window(self, row: LaneAtRest, seq: int, want: int) -> list[int]:
        """Return at least `want` ids of a lane from a seq on, or all of them.

        Raises:
            StoreCorrupt: the parts of its ids do not fit together.
        """
        ids: list[int] = []
        following, end = seq, row.tail + 1
        if seq >= end:
            return ids
        own = end if row.ids_from is None else row.ids_from
        try:
            while following < own and len(ids) < want:
                some = self._run(TABLES.parts, (row.key, following, 2 + want // self._chunk)).fetchall()
                before = following
                for first, part in some:
                    if not len(ids) and first <= following:
                        ids += unpack(part)[following - first :]
                    elif first == following:
                        ids += unpack(part)
                    else:
                        break
                    following = seq + len(ids)
                if following == before:
                    break
            if len(ids) < want and following >= own:
                ids += unpack(row.ids or b"")[following - own :]
                following = seq + len(ids)
                if following != end:
                    raise ValueError(f"its ids end at seq {following - 1}, not at {end - 1}")
        except ValueError as e:
            if not is_of_values(e):
                raise
            raise StoreCorrupt(f"the ids of lane {row.key!r} are invalid: {e}", shard=self._shard, cause=e) from e
        if len(ids) < want and following != end:
            raise StoreCorrupt(f"table `pending` lacks seq {following} of lane {row.key!r}", shard=self._shard)
        return ids

    # ---- writing

    def write(self, lanes: Sequence[LiveLane], lsn: int) -> None:
        """Write the rows of lanes as of an entry. They are absolute, except that ids are appended to a deep lane."""
        empty: list[Any] = []
        whole: list[Sequence[Any]] = []
        deep: list[tuple[Any, ...]] = []
        cleared: list[bytes] = []
        passed: list[tuple[bytes, int]] = []
        for lane in lanes:
            if lane.rest:
                self._append(lane, lsn)
                continue
            if lane.lsn and not lane.deep:
                cleared.append(lane.key)
            if lane.is_plain_and_empty:
                empty += (lane.key, lsn, lane.tail, lane.tail + 1, lane.active, lane.done_text())
                continue
            row = lane.row(lsn)
            if lane.deep:
                self._append(lane, lsn)
                deep.append(row[:_HEAD_COLUMNS])
                passed.append((lane.key, lane.first))
            else:
                whole.append((*row[:_HEAD_COLUMNS], lane.first, pack(lane.ids or ())))
        self._write_empty(empty)
        self._changed_all(TABLES.write_head, deep)
        if cleared and self._run(TABLES.any_part).get:
            list(in_parts(self._run, _DROP_PARTS, cleared))
        self._many(TABLES.drop_parts_before, passed)
        self.put(whole)

    def put(self, rows: Sequence[Sequence[Any]], statement: str = TABLES.write) -> None:
        """Write rows that have all ids of their lanes, of which no parts are stored."""
        full = self._chunk * ID_BYTES
        whole: list[Sequence[Any]] = []
        parts: list[tuple[bytes, int, bytes]] = []
        for row in rows:
            first, ids = row[_HEAD_COLUMNS:]
            if not ids or len(ids) <= full:
                whole.append(row)
                continue
            sealed = (len(ids) - 1) // full * full
            parts += [(row[0], first + at // ID_BYTES, ids[at : at + full]) for at in range(0, sealed, full)]
            whole.append((*row[:_HEAD_COLUMNS], first + sealed // ID_BYTES, ids[sealed:]))
        self._many(statement, whole)
        self._many(TABLES.insert_part, parts)

    def _write_empty(self, values: list[Any]) -> None:
        at, width = 0, 6
        for n, statement in _EMPTY.items():
            while len(values) - at >= n * width:
                self._run(statement, tuple(values[at : at + n * width]))
                at += n * width

    def _append(self, lane: LiveLane, lsn: int) -> None:
        """Add a lane's new ids to its row, and seal what is full as parts."""
        new, key, full = lane.new or [], lane.key, self._chunk * ID_BYTES
        first = lane.tail - len(new) + 1
        if new:
            # The two have one condition: a row that is sealed and not cleared would have its ids twice, or lose them.
            least = full if len(new) <= self._chunk else 1
            self._run(TABLES.seal, (key, least))
            self._run(TABLES.unseal, (key, least, first))
            if len(new) > self._chunk:
                sealed = (len(new) - 1) // self._chunk * self._chunk
                size = self._chunk
                self._many(TABLES.insert_part, [(key, first + at, pack(new[at : at + size])) for at in range(0, sealed, size)])
                new = new[sealed:]
                self._run(TABLES.unseal, (key, 0, first + sealed))
        self._changed_all(TABLES.append, [(key, lsn, lane.tail, lane.expires or None, pack(new))])

    def _changed_all(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        before = self._db.total_changes()
        self._many(statement, rows)
        if self._db.total_changes() - before != len(rows):
            raise StoreCorrupt("the row of a deep lane is missing", shard=self._shard)
