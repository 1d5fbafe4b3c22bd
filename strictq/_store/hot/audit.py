"""Check the invariants of a shard's logs by reading them, without the code that works with them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import apsw

from ..._sql import HOT
from ..commit.tx import TOKEN_BITS
from .journal import ACK, CLAIM, COOL, EXTEND, ID_BYTES, RELEASE, START, decoded_keys


class _Lane:
    """`first`, `seq`: its first and last seq in the inbox.

    `waiting`: its unresolved messages; `leased`: how many of the first. `torn`: leased together with messages that have been cut.
    """

    __slots__ = ("first", "leased", "newest", "seq", "torn", "waiting")

    def __init__(self, first: int) -> None:
        self.first = first
        self.waiting: list[int] = []
        self.leased = 0
        self.torn = False
        self.seq = 0
        self.newest = 0


class Audit:
    """One check, in a read transaction that sees the tables alone."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._lanes: dict[bytes, _Lane] = {}
        self._cold: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._token = 0
        self._cut = 0

    def findings(self) -> Iterator[str]:
        """Yield what is wrong. Stops at a journal row that can't be read."""
        counted = self._db.execute(HOT.counted).get
        if counted is None:
            yield "the row of `counted` is missing"
            return
        events: list[Any] = self._db.execute(HOT.events, (0,)).fetchall()
        self._epoch = self._db.execute(HOT.epoch).get
        self._cut = max((e[6] for e in events if e[1] == COOL), default=0)
        yield from self._ends(events, *counted)
        arrivals = self._db.execute(HOT.arrived)
        ahead: list[tuple[int, bytes, int]] = []
        at = top = 0
        for event in events:
            i, kind, time, before, count, token, deadline, _, _, _, data = event
            if before < top or time < at:
                yield f"row {i} of the journal is older than the row before it"
            top, at = max(top, before), max(at, time)
            for arrival in chain(ahead, arrivals):
                if arrival[0] > before:
                    ahead = [arrival]
                    break
                yield from self._arrives(*arrival)
            else:
                ahead = []
            wrong = self._cools(data, count, deadline) if kind == COOL else self._happens(kind, data, count, token, before)
            if wrong is not None:
                yield f"row {i} of the journal {wrong}"
                return
        for arrival in chain(ahead, arrivals):
            yield from self._arrives(*arrival)
        yield from self._tables()

    def _ends(self, events: list[Any], inbox_top: int, journal_top: int) -> Iterator[str]:
        newest: int = self._db.execute(HOT.newest).get[1]
        first, last = (events[0][0], events[-1][0]) if events else (1, 0)
        if len(events) != last - first + 1:
            yield f"the journal has {len(events)} rows from {first} to {last}"
        if first > journal_top + 1 or (first > 1 and not self._cut):
            yield f"the journal begins with row {first}, and nothing says why"
        if journal_top > last:
            yield f"the journal ends with row {last}, but the counter row includes row {journal_top}"
        if inbox_top > newest:
            yield f"the inbox ends with message {newest}, but the counter row includes message {inbox_top}"

    def _arrives(self, i: int, key: bytes, seq: int) -> Iterator[str]:
        if i <= self._cut:
            yield f"message {i} is in the inbox, which was cut up to {self._cut}"
        self._keys[i] = key
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(seq)
            if seq <= self._cold.get(key, 0):
                yield f"message {i} of key {key!r} has seq {seq}, which an earlier one had"
        elif seq != lane.seq + 1:
            yield f"message {i} of key {key!r} has seq {seq}, but follows seq {lane.seq}"
        lane.seq, lane.newest = seq, i
        lane.waiting.append(i)

    def _cools(self, data: bytes, count: int, upto: int) -> str | None:
        keys = decoded_keys(data)
        if sum(2 + len(key) for key in keys) != len(data) or not 0 <= count <= len(keys):
            return f"names {len(keys)} keys in {len(data)} bytes, and counts {count}"
        gone = {*keys[:count], *(key for key, lane in self._lanes.items() if lane.newest <= upto)}
        for key in gone & self._lanes.keys():
            self._cold[key] = self._lanes.pop(key).seq
        return None

    def _happens(self, kind: int, data: bytes, count: int, token: int, top: int) -> str | None:
        """Apply a row, and return what is wrong with it, or None."""
        if kind not in (CLAIM, ACK, START, EXTEND, RELEASE):
            return f"has the unknown kind {kind}"
        if len(data) != count * ID_BYTES or not count:
            return f"counts {count} messages, and names {len(data) / ID_BYTES:g}"
        ids = [int.from_bytes(data[at : at + ID_BYTES], "little") for at in range(0, len(data), ID_BYTES)]
        if len(set(ids)) != count or max(ids) > top:
            return "names a message twice, or one that was sent later"
        if kind == CLAIM and (token <= self._token or token >> TOKEN_BITS > self._epoch):
            return f"has the token {token}, after {self._token} in epoch {self._epoch}"
        self._token = max(self._token, token)
        groups: dict[bytes, list[int]] = {}
        for i in ids:
            if i > self._cut:
                if i not in self._keys:
                    return f"names message {i}, which is not there"
                groups.setdefault(self._keys[i], []).append(i)
        for key, some in groups.items():
            lane = self._lanes.get(key)
            if lane is None:
                return f"names message {some[0]} of a lane that has cooled"
            held = lane.waiting[: lane.leased]
            if kind == CLAIM:
                # An earlier version may have released the lease by the name of a message that has been cut.
                if (held and not lane.torn) or sorted(some) != lane.waiting[: len(some)]:
                    return f"leases message {some[0]}, which is leased, resolved, or not the next"
                lane.leased, lane.torn = len(some), min(ids) <= self._cut
            elif not set(some) <= set(held):
                return f"is about message {some[0]}, which is not leased"
            elif kind == ACK:
                lane.waiting = [i for i in lane.waiting if i not in set(some)]
                lane.leased -= len(some)
            elif kind == RELEASE:
                lane.leased = 0
        return None

    def _tables(self) -> Iterator[str]:
        """Verify that a lane is either hot or cold, and that a cooled lane's row has its last seq."""
        floor: int = self._db.execute(HOT.floor).get
        for key, lane in self._lanes.items():
            row = self._db.execute(HOT.cold_rows, (key,)).get
            if row is not None and any(row[:-1]):
                yield f"the lane of key {key!r} is hot, and has rows in the tables"
            tail = floor if row is None else row[-1]
            if row is not None and tail > lane.seq:
                yield f"the lane of key {key!r} is hot with seq {lane.seq}, and its row has seq {tail}"
            # If rows were deleted, its first ones may be among them.
            elif not self._cut and lane.first > tail + 1:
                yield f"the lane of key {key!r} is hot from seq {lane.first} on, and its row has seq {tail}"
        for key, seq in self._cold.items():
            if key not in self._lanes and self._db.execute(HOT.cold_tail, (key,)).get < seq:
                yield f"the lane of key {key!r} has cooled with seq {seq}, and its row does not know that"
