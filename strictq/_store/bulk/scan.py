"""Read the messages of a shard without leasing them, while consumers work on it.

A range has the lanes between two keys, so a key's messages are in one range. It is read in steps, each a short read transaction,
in the order of keys and seqs. A step continues after the last seq of the previous one. Memory says which messages of a lane are
unresolved, and the lane's row does if the lane is not loaded; it is not loaded for a scan. So no message is read twice, and none
that stays is missed. Messages that arrived after the plan are left out.

A keyless message that is parked moves to a lane of its own, and keeps its key and its seq. Such lanes follow the one that their
messages come from in the order of keys. All of them are read as one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import apsw

from ..._sql import SCAN, choose
from ..._values.errors import InvalidArgument, StoreBusy, StoreCorrupt
from ..._values.keys import ASIDE, is_keyless
from ..commit.tx import bound
from ..lane.live_lane import LaneAtRest, LiveLane
from ..lane.memory import M_KEY, MessageRow
from ..shard import columns, moving
from ..shard.leases import PackedColumns, Row
from ..shard.loading import EMPTY
from ..shard.messages import row_of
from ..shard.shard_file import Shard
from ..shard.shard_lanes import ShardLanes
from .columns import MessageRange

STEP: Final = 10_000
"""The number of messages in a step."""
STEP_BYTES: Final = 16 * 1024 * 1024
"""The approximate number of bytes of their bodies and headers."""
LANES_STEP: Final = 10_000
"""The number of lanes that one step reads, and of rows of lanes that one step of a plan reads."""
ROWS_TOGETHER: Final = 128
"""The number of lanes at rest whose rows are read together."""
END: Final = b"\xff"
"""Behind every key."""
_NUMBER_BYTES: Final = 7
"""How many bytes of a key are one number of a range's place."""


class Span(NamedTuple):
    """What one task reads.

    Attributes:
        newest: arrival number of the newest message that belongs to it.
        departed: the number of the newest parcel of lanes that had left the shard.
        begin, end: the first key, and the one behind the last.
        keys: only these, ascending; empty: all.
    """

    newest: int
    departed: int
    begin: bytes
    end: bytes
    keys: tuple[bytes, ...] = ()

    def place(self) -> tuple[int, ...]:
        """Return it as whole numbers."""
        numbers = [self.newest, self.departed]
        for key in (self.begin, self.end, *self.keys):
            numbers.append(len(key))
            numbers += [int.from_bytes(key[at : at + _NUMBER_BYTES], "big") for at in range(0, len(key), _NUMBER_BYTES)]
        return tuple(numbers)

    @classmethod
    def of(cls, place: Sequence[int]) -> Span:
        """Return what `place` returned.

        Raises:
            InvalidArgument: no range has this place.
        """
        keys: list[bytes] = []
        try:
            (newest, departed), at = place[:2], 2
            while at < len(place):
                left, key = place[at], b""
                at += 1
                while left > 0:
                    key += place[at].to_bytes(min(left, _NUMBER_BYTES), "big")
                    left -= _NUMBER_BYTES
                    at += 1
                keys.append(key)
            begin, end, *some = keys
        except (IndexError, ValueError, OverflowError) as e:
            raise InvalidArgument("this is no range of messages that a queue has planned") from e
        return cls(newest, departed, begin, end, tuple(some))

    def require(self, db: apsw.Connection, shard: int) -> None:
        """Verify that no lane has left since the plan.

        Raises:
            StoreBusy: one has. The other shard leaves it out, because it arrived there after the plan.
        """
        if moving.departed(db) != self.departed:
            raise StoreBusy("a range of its keys has moved since the read was planned", shard=shard)


# ---- the plan


def ranges(shard: Shard, *, dead: bool, per_task: int, keys: Collection[bytes] | None) -> list[MessageRange]:
    """Divide what is pending (or dead) now into ranges of about this many messages. A lane belongs to one range.

    Args:
        keys: only the messages of these keys of the shard, in one range; None: all.
    """
    newest, departed, messages = shard.view(lambda lanes: (lanes.memory.top, moving.departed(lanes.db), _count(lanes, dead=dead)))
    if keys is not None:
        some = tuple(sorted(shard.view(bound(_with_lanes, keys))))
        spans = [Span(newest, departed, some[0], END, some)] if some else []
    elif not messages:
        spans = []
    else:
        # Tasks of one size: a last task with few messages would cost as much to start as any.
        parts = max(1, round(messages / per_task))
        cuts = list(_cuts(_depths(shard, dead=dead), -(-messages // parts))) if parts > 1 else []
        spans = [Span(newest, departed, begin, end) for begin, end in zip([b"", *cuts], [*cuts, END], strict=True)]
    return [MessageRange(shard.number, dead, span.place()) for span in spans]


def _with_lanes(lanes: ShardLanes, keys: Collection[bytes]) -> list[bytes]:
    with lanes.loader.giving(EMPTY):  # a key that was never used is in no shard of a move
        return [key for key in keys if lanes.loader.lane(key).tail]


def _count(lanes: ShardLanes, *, dead: bool) -> int:
    totals = lanes.memory.totals
    return totals.dead if dead else totals.pending


def _cuts(depths: Iterable[tuple[bytes, int]], per_task: int) -> Iterator[bytes]:
    """Yield the keys at which all ranges but the first begin."""
    n, before = 0, None
    for key, depth in depths:
        family = _family(key)
        if n >= per_task and family != before:
            yield family
            n = 0
        n += depth
        before = family


def _depths(shard: Shard, *, dead: bool) -> Iterator[tuple[bytes, int]]:
    """Yield the keys of lanes in order, each with about as many messages as it has."""
    after = b""
    while True:
        rows = shard.look(bound(_dead_depths, after)) if dead else shard.survey(bound(_some_depths, after))
        if not rows:
            return
        yield from rows
        after = rows[-1][0]


def _dead_depths(db: apsw.Connection, after: bytes) -> list[tuple[bytes, int]]:
    found: Any = db.execute(SCAN.dead_depths, (after, LANES_STEP)).fetchall()
    return list(found)


def _some_depths(lanes: ShardLanes, after: bytes) -> list[tuple[bytes, int]]:
    loaded = lanes.memory.lanes
    at_rest: list[tuple[bytes, int]] = lanes.run(SCAN.depths, (after, LANES_STEP)).fetchall()
    end = at_rest[-1][0] if len(at_rest) == LANES_STEP else None
    own = sorted(
        (key, len(lane.ids or ()) + lane.deep + len(lane.new or ()))
        for key, lane in loaded.items()
        if key > after and (end is None or key <= end)
    )
    return list(merge([row for row in at_rest if row[0] not in loaded], own))


# ---- reading


def read(shard: Shard, part: MessageRange, wanted: Collection[str]) -> Iterator[PackedColumns | list[Row]]:
    """Yield the messages of a range that still exist, in steps. Pending ones are columns where they permit it.

    Args:
        wanted: of key, seq, id, sent_at, attempts, headers, body. Rows have all of them.
    """
    span = Span.of(part.place)
    if part.dead:
        yield from _dead(shard, span)
        return
    reading = _Pending(span, wanted)
    while not reading.whole:
        found = shard.survey(reading.step)
        if found is not None:
            yield found


Member = tuple[LiveLane, LaneAtRest | None]
"""A lane; and its row, if it is not loaded."""
Chosen = list[tuple[bytes, list[tuple[int, int]]]]
"""Families, with (seq, arrival number) of messages."""


class _Pending:
    """The position of a reading of pending messages, and its next step.

    Attributes:
        family, seq: the next step begins in this family of lanes, behind this seq.
        whole: there is nothing more.
    """

    def __init__(self, span: Span, wanted: Collection[str]) -> None:
        self.family, self.seq = span.begin, 0
        self.whole = False
        self._span = span
        self._packed = choose(SCAN.packed, wanted)
        self._wanted = wanted

    def step(self, lanes: ShardLanes) -> PackedColumns | list[Row] | None:
        """Read the next step. None: it has no message."""
        self._span.require(lanes.db, lanes.shard)
        chosen: Chosen = []
        tried: dict[int, int] = {}
        room, newest = STEP, self._span.newest
        self.whole = True
        for n, (family, members) in enumerate(self._families(lanes)):
            if room <= 0:
                break
            if family != self.family:
                self.family, self.seq = family, 0
            if n == LANES_STEP:
                self.whole = False
                break
            found = sorted(chain.from_iterable(_unresolved(lanes, lane, row, self.seq, room) for lane, row in members))[:room]
            if not found:
                continue
            self.seq = found[-1][0]
            some = [one for one in found if one[1] <= newest]
            if some:
                chosen.append((family, some))
                room -= len(some)
                for lane, _ in members:
                    if lane.rare is not None:
                        tried |= {i: starts for i, (starts, _, _) in lane.rare.tried.items() if starts}
        if room <= 0:
            self.whole = False  # the last family may have more
        if not chosen:
            return None
        if "body" in self._wanted or "headers" in self._wanted:
            self._cut(lanes, chosen)
        ids = [i for _, some in chosen for _, i in some]
        if "attempts" not in self._wanted or not tried.keys() & set(ids):
            packed = self._columns(lanes, chosen, ids)
            if packed is not None:
                return packed
        return self._rows(lanes, ids, tried)

    def _families(self, lanes: ShardLanes) -> Iterator[tuple[bytes, list[Member]]]:
        """Yield families of lanes, from the position on. Some are empty."""
        loaded = lanes.memory.lanes
        span = self._span
        if span.keys:
            keys = [key for key in span.keys if key >= self.family]
            at_rest = {row.key: row for row in lanes.rows.load(key for key in keys if key not in loaded)}
            found = ((key, at_rest.get(key)) for key in keys if key in loaded or key in at_rest)
        else:
            own = sorted(key for key in loaded if self.family <= key < span.end)
            found = merge(((key, None) for key in own), self._at_rest(lanes), key=itemgetter(0))
        for family, some in groupby(found, lambda one: _family(one[0])):
            yield family, [_member(lanes, key, row) for key, row in some]

    def _at_rest(self, lanes: ShardLanes) -> Iterator[tuple[bytes, LaneAtRest | None]]:
        """Yield the rows of lanes that are not loaded, in order."""
        loaded = lanes.memory.lanes
        after, at_least = self.family, 1
        while keys := lanes.run(SCAN.keys, (after, at_least, self._span.end, ROWS_TOGETHER)).fetchall():
            after, at_least = keys[-1][0], 0
            for row in lanes.rows.load(key for (key,) in keys if key not in loaded):
                yield row.key, row

    def _cut(self, lanes: ShardLanes, chosen: Chosen) -> None:
        """Drop what would make the step too large, but not its first message, and set the position back."""
        sizes = lanes.log.sizes([i for _, some in chosen for _, i in some])
        if sum(sizes) <= STEP_BYTES:
            return
        left, each = STEP_BYTES, iter(sizes)
        for n, (family, some) in enumerate(chosen):
            for at in range(len(some)):
                left -= next(each)
                if left < 0 and (n or at):
                    last = some[at - 1][0] if at else 0
                    chosen[n:] = [(family, some[:at])] if at else []
                    self.family, self.seq, self.whole = family, last, False
                    return

    def _columns(self, lanes: ShardLanes, chosen: Chosen, ids: list[int]) -> PackedColumns | None:
        """Return messages as columns. None: they have headers, which are wanted."""
        found = columns.of(lanes, ids, self._packed)
        if found is None:
            return None
        keys = [family for family, _ in chosen] if "key" in self._wanted else []
        return PackedColumns(lanes.shard, len(ids), keys, [len(some) for _, some in chosen], *found)

    def _rows(self, lanes: ShardLanes, ids: list[int], tried: dict[int, int]) -> list[Row]:
        messages = lanes.whole(ids)
        if len(messages) != len(ids):
            raise _missing(lanes)
        return [row_of(message := messages[i], message[M_KEY], tried.get(i, 0), False, lanes.shard) for i in ids]


def _family(key: bytes) -> bytes:
    """Return the key of the lane that a lane's messages were sent to."""
    return key.split(ASIDE)[0] if is_keyless(key) else key


def _member(lanes: ShardLanes, key: bytes, row: LaneAtRest | None) -> Member:
    if row is None:
        lane = lanes.memory.lanes[key]
        if lane.rest:
            lanes.loader.fill(lane)
        return lanes.memory.lanes[key], None
    lane = LiveLane(key, row.tail)
    lane.first = row.first
    lane.deep = row.tail - row.first + 1
    if row.opts is not None:
        try:
            lane.adopt_opts(row.opts)
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise StoreCorrupt(f"the row of lane {key!r} is invalid: {e}", shard=lanes.shard, cause=e) from e
    return lane, row


def _unresolved(lanes: ShardLanes, lane: LiveLane, row: LaneAtRest | None, after: int, most: int) -> list[tuple[int, int]]:
    """Return (seq, arrival number) of a lane's unresolved messages behind a seq, ascending. At most `most`, or all that are left.

    Args:
        row: its row, if it is not loaded.
    """
    window, rare, holes = lane.ids or [], lane.rare, lane.holes or ()
    back = rare.back if rare is not None else {}
    begin = max(0, after + 1 - lane.first)
    found = [(seq, i) for seq, i in enumerate(window[begin:], lane.first + begin) if i]
    seq, end = max(lane.first + len(window), after + 1), lane.first + len(window) + lane.deep
    while len(found) < most and seq < end:
        if row is None:
            row = lanes.rows.row(lane.key)
        ids = lanes.rows.window(row, seq, min(most, end - seq))[: end - seq]
        if not ids:
            raise StoreCorrupt(f"the row of lane {lane.key!r} lacks seq {seq}", shard=lanes.shard)
        found += [(at, arrival) for at, i in enumerate(ids, seq) if (arrival := back.get(at, i)) and at not in holes]
        seq += len(ids)
    if seq >= end and lane.new:
        found += [(at, i) for at, i in enumerate(lane.new, lane.tail - len(lane.new) + 1) if i and at > after]
    if rare is not None and (rare.front or rare.waiting):
        found = sorted([*found, *(one for one in (*rare.front, *rare.waiting) if one[0] > after)])
    return found[:most]


def _missing(lanes: ShardLanes) -> StoreCorrupt:
    return StoreCorrupt("an unresolved message has no row in `message`", shard=lanes.shard)


# ---- dead letters


def _dead(shard: Shard, span: Span) -> Iterator[list[Row]]:
    """Yield dead letters in steps, as rows followed by kind, reason and time of death."""
    spans = [(key, key + b"\0") for key in span.keys] or [(span.begin, span.end)]
    for begin, end in spans:
        at: tuple[bytes, int] | None = (begin, 0)
        while at is not None:
            rows, at = shard.look(bound(_some_dead, at, end, span, shard.number))
            if rows:
                yield rows


def _some_dead(
    db: apsw.Connection, at: tuple[bytes, int], end: bytes, span: Span, shard: int
) -> tuple[list[Row], tuple[bytes, int] | None]:
    """Return the next dead letters, and the position behind them. None: there are no more."""
    span.require(db, shard)
    rows: list[Row] = []
    left = STEP_BYTES
    cursor = db.execute(SCAN.dead, (*at, end, span.newest, STEP))
    try:
        for key, i, seq, sent_at, opts, body, attempts, *died in cursor:
            message: MessageRow = (i, key, seq, sent_at, None, None, opts, body)
            rows.append((*row_of(message, key, attempts, False, shard), *died))
            at = key, i
            left -= len(body)
            if left < 0:
                return rows, at
    finally:
        cursor.close()
    return rows, at if len(rows) == STEP else None
