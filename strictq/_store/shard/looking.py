"""Looks at one lane: from memory, or from its row and what arrived since.

A look reads one lane, however many there are. It loads no more of a deep lane than its head: what lies behind is read from the
parts of its ids and is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import apsw

from ..._sql import LOOKS
from ..._values.errors import StoreCorrupt, UnknownMessage
from ..._values.keys import is_keyless
from ..._values.types import State
from ..lane.entries import LaneHolder
from ..lane.live_lane import Grant, LaneAtRest, LiveLane, lease_of_row
from ..lane.memory import M_BODY, M_DUE, M_EXPIRES, M_OPTS, M_SENT_AT, MessageRow
from ..lane.ranges import Rerouted
from ..tables import trouble
from ..tables.lane_rows import LaneRows
from .messages import Opts, decode
from .shard_lanes import ShardLanes

STEP: Final = 1_000
WINDOW: Final = 16
"""How many unleased messages of a lane are read from its row, for the first one without an attempt."""
Message = tuple[int, int, bytes, Opts, int, int, int | None, int | None]
"""Of an unresolved message: seq, arrival number, body, options, attempts, and when it was sent, is due and expires."""


class HeadOfLane(NamedTuple):
    """The first unresolved message of a lane.

    Attributes:
        attempts: starts of its handler. `crashed`: those of them without an outcome.
        first_at: when it was first delivered; None: no attempt has ended.
    """

    seq: int
    sent_at: int
    attempts: int
    error: str | None
    crashed: int
    first_at: int | None


class LeaseOfLane(NamedTuple):
    """A lane's lease, which may be over its deadline.

    Attributes:
        lo, hi: the first and the last seq of its messages.
        started: the last seq whose handler was started; below `lo`: none.
        ack_first: its messages were acked when they were leased.
    """

    lo: int
    hi: int
    started: int
    consumer: str
    token: int
    leased_at: int
    deadline: int
    ack_first: bool


class LaneView:
    """One lane, as a read transaction sees it.

    Attributes:
        tail: the newest seq. `depth`: the number of unresolved messages.
        due: when its first message may be delivered; None: at any time, or another state of the lane decides.
        hold, held_at: why, and since when, it is held.
        solo: messages up to this seq are delivered one at a time.
        last_lease: the lease, even if it is over its deadline: its starts count until it is ended.
    """

    def __init__(self, store: ShardLanes, lane: LiveLane, now: int) -> None:
        self._store = store
        self._lane = lane
        self.db = store.db
        self.now = now
        self.key = lane.key
        self.tail = lane.tail
        self.depth = depth_of(lane)
        rare = lane.rare
        hold = None if rare is None else rare.hold
        self.held_at: int | None = None if hold is None else hold[0]
        self.hold: str | None = None if hold is None else hold[1]
        head = rare.front[0][0] if rare is not None and rare.front else lane.first
        self.solo = 0 if rare is None or rare.solo < head else rare.solo
        self.due = lane.due or None if lane.grant is None else None
        self.last_lease = _lease_of(lane)
        self.place = max(0, lane.listed)
        """Its place in the order of ready lanes. 0: it has none."""
        self._waiting = frozenset(seq for seq, _ in rare.waiting) if rare is not None else frozenset()

    @property
    def lease(self) -> LeaseOfLane | None:
        """The lease, if it is not over its deadline."""
        lease = self.last_lease
        return lease if lease is not None and lease.deadline > self.now else None

    def sent_before(self, at: int) -> int:
        """Return the arrival number up to which messages of the shard were sent before a queue time."""
        return self._store.log.sent_before(at, self._store.memory.top)

    def state_of(self, seq: int, due: int | None) -> State:
        """Return the state of an unresolved message."""
        lease = self.lease
        # A redriven message waits for the end of the lease, whatever the lease holds around it.
        if lease is not None and lease.lo <= seq <= lease.hi and not lease.ack_first and seq not in self._waiting:
            return "in_flight"
        behind = self.state_behind()
        return "delayed" if behind == "ready" and due is not None and due > self.now else behind

    def state_behind(self) -> Literal["ready", "delayed", "held"]:
        """Return the state of messages that the lease does not hold."""
        if self.hold is not None:
            return "held"
        if self.due is not None and self.due > self.now:
            return "delayed"
        return "ready"

    def attempts(self, seq: int, stored: int) -> int:
        """Return the attempts of a message with the one that its lease has started."""
        lease = self.last_lease
        # What was returned, or waits for the end of the lease, is not of it.
        is_started = lease is not None and lease.lo <= seq <= min(lease.hi, lease.started) and seq not in self._waiting
        return stored + is_started

    def messages(self, first: int, limit: int) -> Sequence[Message]:
        """Return the first unresolved messages from a seq on."""
        ids = self.unresolved(first, limit)
        rows = self._store.whole([i for _, i in ids])
        lane, shard = self._lane, self._store.shard
        return [
            (
                seq, i, row[M_BODY], decode(row[M_OPTS], shard), lane.attempts(i)[0], row[M_SENT_AT], self._due(i, row),
                None if self._counts_no_time(i) else row[M_EXPIRES],
            )
            for seq, i in ids if (row := rows.get(i)) is not None
        ]  # fmt: skip

    def head(self) -> HeadOfLane | None:
        """Return the first unresolved message."""
        for seq, i in self.unresolved(0, 1):
            known, (starts, crashed, _) = trouble.of(self.db, i), self._lane.attempts(i)
            return HeadOfLane(seq, self._row(i)[M_SENT_AT], starts, known.error, crashed, known.first_at)
        return None

    def message(self, seq: int) -> tuple[int, int | None, str | None, str | None, str | None] | None:
        """Return attempts, due, error, output and errors of an unresolved message."""
        i = self.arrival_of(seq)
        if i is None:
            return None
        known = trouble.of(self.db, i)
        return self._lane.attempts(i)[0], self._due(i, self._row(i)), known.error, known.output, known.errors

    def dead(self, seq: int) -> tuple[int, str | None, str | None, str | None] | None:
        """Return attempts, reason, output and errors of a dead letter."""
        row = self.db.execute(LOOKS.dead_letter, (self.key, seq)).get if self._store.memory.totals.dead else None
        if row is None:
            return None
        known = trouble.of(self.db, row[0])
        return known.attempts, row[1], known.output, known.errors

    def dead_count(self) -> int:
        """Return the number of its dead letters."""
        n: int = self.db.execute(LOOKS.dead_count, (self.key,)).get if self._store.memory.totals.dead else 0
        return n

    def was_postponed(self, seq: int) -> bool:
        """Return whether a consumer postponed its first message, which has this seq."""
        i, rare = self.arrival_of(seq), self._lane.rare
        return i is not None and rare is not None and i in rare.tried

    def arrival_of(self, seq: int) -> int | None:
        """Return the arrival number of an unresolved message."""
        found = self.unresolved(seq, 1)
        return found[0][1] if found and found[0][0] == seq else None

    def unresolved(self, first: int, limit: int) -> list[tuple[int, int]]:
        """Return (seq, arrival number) of the first unresolved messages from a seq on."""
        lane, rare = self._lane, self._lane.rare
        early = [] if rare is None else [one for one in (*rare.front, *rare.waiting) if one[0] >= first]
        found: list[tuple[int, int]] = []
        for one in self._in_order(max(first, lane.first), limit):
            found.append(one)
            if len(found) == limit:
                break
        return sorted([*early, *found])[:limit] if early else found

    def _in_order(self, first: int, limit: int) -> Iterator[tuple[int, int]]:
        """Return the unresolved messages from a seq on that are not redriven ones before the others."""
        lane = self._lane
        ids, new = lane.ids or [], lane.new or []
        at = lane.first + len(ids)
        for n in range(first - lane.first, len(ids)):
            if ids[n]:
                yield lane.first + n, ids[n]
        at, end = max(first, at), lane.tail - len(new)
        if at <= end and lane.deep:
            rows = self._store.rows
            row = rows.row(lane.key)
            back = lane.rare.back if lane.rare is not None else {}
            holes = lane.holes or ()
            while at <= end:
                some = rows.window(row, at, limit)[: end - at + 1]
                if not some:
                    raise StoreCorrupt(f"the row of lane {lane.key!r} lacks seq {at}", shard=self._store.shard)
                for seq, i in enumerate(some, at):
                    if (i := back.get(seq, i)) and (seq not in holes or seq in back):
                        yield seq, i
                at += len(some)
        for seq, i in enumerate(new, end + 1):
            if i and seq >= first:
                yield seq, i

    def _row(self, arrival: int) -> MessageRow:
        row = self._store.whole([arrival]).get(arrival)
        if row is None:
            raise StoreCorrupt(f"message {arrival} of lane {self.key!r} has no row", shard=self._store.shard)
        return row

    def _counts_no_time(self, arrival: int) -> bool:
        rare = self._lane.rare
        return rare is not None and arrival in rare.redriven

    def _due(self, arrival: int, row: MessageRow) -> int | None:
        rare = self._lane.rare
        if rare is not None and arrival in rare.tried:
            return rare.tried[arrival][2] or None
        due: int | None = None if self._counts_no_time(arrival) else row[M_DUE]
        return due


def depth_of(lane: LiveLane) -> int:
    """Return the number of a lane's unresolved messages."""
    ids, new, rare = lane.ids or (), lane.new or (), lane.rare
    depth = len(ids) - (ids.count(0) if ids else 0) + lane.deep + len(new) - (new.count(0) if new else 0)
    if lane.deep and lane.holes:
        behind = lane.first + len(ids)
        depth -= sum(1 for seq in lane.holes if seq >= behind)
    return depth if rare is None else depth + len(rare.front) + len(rare.waiting)


def _lease_of(lane: LiveLane) -> LeaseOfLane | None:
    grant = lane.grant
    if grant is None:
        return None
    is_settled = lane.lease_is_settled
    hi = lane.lease_end
    if is_settled:
        hi = lane.done[3] if lane.done is not None and lane.done[0] == grant.token else lane.low
    holder = LaneHolder.decode(grant.holder)
    return LeaseOfLane(lane.low, hi, lane.started, holder.consumer, grant.token, grant.at, grant.deadline, is_settled)


# ---- lanes at rest, without loading them


def lane_at_rest(rows: LaneRows, row: LaneAtRest, arrived: LiveLane | None = None) -> LiveLane:
    """Return a lane with its head, as its row says. It is no part of memory.

    Args:
        arrived: the lane in memory, if only what arrived since its row was written is known there.
    """
    lane = LiveLane(row.key, row.tail)
    lane.first, lane.due, lane.expires, lane.lsn, lane.active = row.first, row.due or 0, row.expires or 0, row.lsn, row.active_at
    want = WINDOW + (row.held or 0)
    lane.ids = rows.window(row, row.first, want)[:want] or None
    lane.deep = row.tail - row.first + 1 - len(lane.ids or ())
    lane.adopt_opts(row.opts)
    lane.fill_holes()
    if row.token is not None:
        at, low, holder = lease_of_row(row)
        lane.grant = Grant(row.token, row.deadline or 0, at, holder, [lane])
        lane.held, lane.low, lane.started = row.held or 0, low, row.started or 0
    elif row.held_at is None:
        lane.listed = row.position or 0
    if arrived is not None:
        lane.new, lane.tail = arrived.new, arrived.tail
    lane.split = lane.deep > 0
    return lane


# ---- which lane


def view(store: ShardLanes, key: bytes, now: int) -> LaneView | None:
    """Return the lane of a key. None: nothing was ever sent to it, or it was forgotten, and it is not held."""
    lane = store.loader.lane(key)
    lane.tidy()
    return LaneView(store, lane, now) if lane.tail or lane.rare is not None else None


def keyless(store: ShardLanes, arrival: int, now: int) -> tuple[LaneView, int] | None:
    """Return lane and seq of a keyless message whose row exists: it is unresolved, dead, or was resolved a short time ago.

    Raises:
        UnknownMessage: the number was never issued, or its message may be in another shard.
    """
    if not 1 <= arrival <= store.memory.top:
        raise UnknownMessage(f"shard {store.shard} has issued no id {arrival}")
    places = store.log.keys([arrival])
    ranges = store.memory.ranges
    left = UnknownMessage(f"the keyless message {arrival} of shard {store.shard} is resolved, or has moved to another shard")
    if arrival not in places and ranges is not None and arrival <= ranges.keyless_upto:
        raise left
    if arrival not in places or not is_keyless(places[arrival][0]):
        return None
    try:
        lane = store.loader.lane(store.loader.keys_of([arrival])[arrival])
    except Rerouted:
        raise left from None
    return LaneView(store, lane, now), places[arrival][1]


def dead_letters(db: apsw.Connection, key: bytes | None, limit: int) -> list[tuple[Any, ...]]:
    """Return dead letters of one key, or of the shard. Needs no memory.

    Returns:
        Key, seq, arrival number, body, options, kind, reason, attempts, when it was sent, when it died, errors, and output.
    """
    run: Any = db.execute
    rows: list[Any] = (run(LOOKS.dead_letters, (limit,)) if key is None else run(LOOKS.dead_letters_of, (key, limit))).fetchall()
    return [_with_opts(row) for row in rows]


def dead_letter(db: apsw.Connection, key: bytes, seq: int) -> list[tuple[Any, ...]]:
    """Return one of them, as `dead_letters` does; an empty list if it is not dead."""
    run: Any = db.execute
    return [_with_opts(row) for row in run(LOOKS.dead_letter_of, (key, seq)).fetchall()]


def dead_reasons(db: apsw.Connection, limit: int) -> list[tuple[bytes, int, str, str | None, int]]:
    """Return key, seq, kind, reason and time of the shard's dead letters. Reads no messages."""
    run: Any = db.execute
    rows: list[tuple[bytes, int, str, str | None, int]] = run(LOOKS.dead_reasons, (limit,)).fetchall()
    return rows


def _with_opts(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:4], decode(row[4], -1), *row[5:])


__all__ = [
    "HeadOfLane",
    "LaneView",
    "LeaseOfLane",
    "dead_letter",
    "dead_letters",
    "dead_reasons",
    "depth_of",
    "keyless",
    "lane_at_rest",
    "view",
]
