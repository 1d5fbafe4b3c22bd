"""Read one shard of format 2, in parts of bounded size."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import apsw

from ..._sql import MIGRATING
from ..._values.errors import StoreCorrupt
from ..commit.connection import connect
from .logs import OldLogs
from .values import STARTS, OldDeadLetter, OldDedup, OldFailure, OldLane, OldLease, OldMessage, OldResolution

PART_MESSAGES: Final = 20_000
"""The most messages of a part."""
PART_BYTES: Final = 16 << 20
"""A part ends with the message whose body reaches this size."""
_PART_ROWS: Final = 1_000
"""The number of rows that one statement reads of what has small rows."""
_LEASED: Final = slice(15, 26)


class OldShard:
    """A shard of format 2, as plain values. No process may write to it meanwhile.

    Between two parts, no statement is unfinished, so another connection may write to other tables and checkpoint.

    Raises:
        StoreCorrupt: rows contradict each other.
        apsw.Error: the file can't be read.
    """

    def __init__(self, file: Path, number: int) -> None:
        """
        Args:
            file: the shard's file, which is complete: no torn WAL is left to be truncated.
            number: the shard's number, for errors.
        """
        self._number = number
        self._db = connect(str(file), durability="full", read_only=True)
        try:
            self._db.pragma("temp_store", "file")  # a list of ten million messages does not fit into memory
            cursor = self._db.execute(MIGRATING.counter)
            names = [name for name, *_ in cursor.get_description()]
            self._counter = dict(zip(names, self._present(cursor.get, "counter row"), strict=True))
            self._logs = OldLogs(self._db, number, self._counter.pop("inbox_top"), self._counter.pop("journal_top"))
        except BaseException:
            self._db.close()
            raise
        self._listed = False

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def totals(self) -> dict[str, Any]:
        """Return the columns of the counter row, with what the logs add to them."""
        totals: dict[str, Any] = dict(self._counter)
        self._logs.add_to(totals)
        return totals

    def meta(self) -> dict[str, Any]:
        """Return the shard's identity, its copy of the configuration, and rare totals, by name."""
        return dict(self._all(MIGRATING.meta))

    def messages(self) -> Iterator[list[OldMessage]]:
        """Yield the unresolved messages in the order of their arrival, in parts. Only one part is in memory."""
        self._list_messages()
        for rows in self._parts(MIGRATING.messages, (0,), (0,), PART_MESSAGES):
            yield [self._message(*row) for row in rows]

    def lanes(self) -> Iterator[OldLane]:
        """Yield every lane, key ascending."""
        hot = sorted(self._logs.lanes, reverse=True)
        for row in self._rows(MIGRATING.lanes, (b"",)):
            while hot and hot[-1] < row[0]:
                yield self._hot(hot.pop(), None)
            lane = self._cold(row)
            yield self._hot(hot.pop(), lane) if hot and hot[-1] == lane.key else lane
        while hot:
            yield self._hot(hot.pop(), None)

    def dead(self) -> Iterator[OldDeadLetter]:
        """Yield the dead letters, lane by lane, seq ascending."""
        for lane, key, *rest, redrive, body in self._rows(MIGRATING.dead, (0, 0), at=(0, 2)):
            key, body = self._present(key, f"lane {lane}"), self._present(body, f"body of dead letter {rest[1]}")
            yield OldDeadLetter._make((key, *rest, bool(redrive), body))

    def dedup(self) -> Iterator[OldDedup]:
        """Yield the dedup ids."""
        for lane, dedup_id, key, seq, arrival, until in self._rows(MIGRATING.dedup, (-1, ""), at=(0, 1)):
            key = self._present(key, f"lane of the dedup id {dedup_id!r}")
            yield OldDedup(key, dedup_id, seq if lane else None, arrival, until)

    def key_states(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each key that has a state, and the state."""
        for lane, key, value in self._rows(MIGRATING.key_states, (0,)):
            yield self._present(key, f"lane {lane}"), value

    # ---- parts

    def _list_messages(self) -> None:
        """List all messages by arrival, in a temporary file: `message` has no index of arrival numbers."""
        if self._listed:
            return
        self._db.execute(MIGRATING.make_arrival)
        try:
            self._db.execute(MIGRATING.list_cold)
            hot = (each for lane in self._logs.lanes.values() for each in lane.waiting)
            self._db.executemany(MIGRATING.list_hot, hot)
        except apsw.ConstraintError as e:
            raise StoreCorrupt(f"two messages have one arrival number: {e}", shard=self._number, cause=e) from e
        self._listed = True

    def _message(self, i: int, key: bytes | None, *row: Any) -> OldMessage:
        *values, attempts, first_at, error, output, errors, body = row
        attempts = attempts or 0  # a message in the logs has none of these
        failure = None
        if (attempts, first_at, error, output, errors) != (0, None, None, None, None):
            failure = OldFailure(attempts & STARTS, attempts >> 32, first_at, error, output, errors)
        key, body = self._present(key, f"lane of message {i}"), self._present(body, f"body of message {i}")
        return OldMessage._make((i, key, *values, body, failure))

    def _cold(self, row: Sequence[Any]) -> OldLane:
        key, lane, last_seq, hold, held_at, solo_to, charged_to, active_at, position, due = row[:10]
        seqs, ids = array("q"), array("q")
        for seq, arrival in self._all(MIGRATING.lane_messages, (lane,)):
            seqs.append(seq)
            ids.append(arrival)
        tail = max(last_seq, seqs[-1]) if seqs else last_seq
        return OldLane(
            key, tail, seqs, ids, position, due, _lease(*row[_LEASED]), hold, held_at, solo_to, charged_to, active_at,
            _resolution(*row[10:15]),
        )  # fmt: skip

    def _hot(self, key: bytes, row: OldLane | None) -> OldLane:
        """Return a lane that is in the logs.

        Args:
            row: what the tables have of it.
        """
        hot = self._logs.lanes[key]
        ids, seqs = (array("q", (each[n] for each in hot.waiting)) for n in (0, 1))
        lane = OldLane(
            key, hot.tail, seqs, ids, hot.position, None, hot.lease, None, None, 0, 0, hot.active_at, hot.done
        )  # fmt: skip
        if row is None:
            return lane
        if row.ids or row.tail > lane.tail or (row.lease, row.position, row.due, row.hold) != (None, None, None, None):
            raise StoreCorrupt(f"the lane of key {key!r} is in the logs, and in the tables as well", shard=self._number)
        return lane._replace(
            solo_to=row.solo_to,
            charged_to=row.charged_to,
            active_at=max(row.active_at, lane.active_at),
            done=lane.done or row.done,
        )

    def _parts(self, statement: str, after: tuple[Any, ...], at: tuple[int, ...], most: int) -> Iterator[list[Any]]:
        """Yield the rows of a statement that takes the last row before, and a limit, in parts. The last column may be a body.

        Args:
            after: what it takes for the first part.
            at: the columns with these values.
            most: rows of a part. It has fewer if their bodies reach PART_BYTES.
        """
        while rows := self._part(statement, (*after, most)):
            yield rows
            after = tuple(rows[-1][n] for n in at)

    def _part(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        rows: list[Any] = []
        size = 0
        cursor = self._db.execute(statement, values)
        try:
            for row in cursor:
                rows.append(row)
                size += len(row[-1]) if isinstance(row[-1], bytes) else 0
                if size >= PART_BYTES:
                    break
        finally:
            cursor.close(True)
        return rows

    def _rows(self, statement: str, after: tuple[Any, ...], at: tuple[int, ...] = (0,)) -> Iterator[Any]:
        """Yield the same rows one by one."""
        return chain.from_iterable(self._parts(statement, after, at, _PART_ROWS))

    def _all(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        rows: list[Any] = self._db.execute(statement, values).fetchall()
        return rows

    def _present(self, value: Any, what: str) -> Any:
        if value is None:
            raise StoreCorrupt(f"the {what} is missing", shard=self._number)
        return value


def _lease(token: int | None, *rest: Any) -> OldLease | None:
    if token is None:
        return None
    *values, expired, ack_first, closed = rest
    return OldLease._make((token, *values, bool(expired), bool(ack_first), bool(closed)))


def _resolution(token: int | None, kind: str, lo: int, hi: int, gaps: str | None) -> OldResolution | None:
    return None if token is None else OldResolution(token, kind, lo, hi, json.loads(gaps) if gaps else [])
