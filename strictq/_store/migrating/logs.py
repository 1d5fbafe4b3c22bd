"""Replay the logs of hot lanes of format 2: the rows of `inbox` and `journal`, in the order in which they were written."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import apsw

from ..._sql import MIGRATING
from ..._values.errors import StoreCorrupt
from ..commit.tx import NEVER, TOKEN_BITS, add_acks
from .values import OldLease, OldResolution

_CLAIM, _ACK, _START, _COOL, _EXTEND, _RELEASE = 1, 2, 3, 4, 5, 6
"""Kinds of rows of the journal."""
_ID_BYTES: Final = 8
_KEY_BYTES: Final = 2
_ID, _SEQ = 0, 1


class _Claimed(NamedTuple):
    """What the leases of one claim have in common.

    Attributes:
        before: how far before its first message `started` of a lease is, while nothing is started.
        charged: a single message in its lease counts as started.
        torn: it names messages that were deleted.
    """

    token: int
    consumer: str
    at: int
    deadline: int
    before: int
    charged: bool
    torn: bool


class OldHotLane:
    """A lane that is in the logs.

    Attributes:
        waiting: arrival number and seq of its unresolved messages, seq ascending. Those of the lease come first.
        done: token and seqs of its last acks; None: its row in `lane` has them.
        active_at: when a message last left it; 0: its row in `lane` says so.
        torn: the token of a lease that was made together with messages that have been deleted; 0: there is none.
        row: the id of its row in `lane`; None: there is none.
    """

    __slots__ = ("active_at", "done", "key", "lease", "row", "tail", "torn", "waiting")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.tail = self.active_at = self.torn = 0
        self.waiting: list[tuple[int, int]] = []
        self.lease: OldLease | None = None
        self.done: OldResolution | None = None
        self.row: int | None = None

    @property
    def position(self) -> int | None:
        """The place in the order of ready lanes: the arrival number of its first message. None: it is not ready."""
        return self.waiting[0][_ID] if self.waiting and self.lease is None else None


class OldLogs:
    """The hot lanes of a shard, and what the logs add to its counter row. No other process may write to the shard.

    Raises:
        StoreCorrupt: a row is missing or contradicts those before it.

    Attributes:
        lanes: by key.
    """

    def __init__(self, db: apsw.Connection, shard: int, inbox_top: int, journal_top: int) -> None:
        """
        Args:
            shard: its number, for errors.
            inbox_top, journal_top: the counter row includes the rows of the logs up to these.
        """
        self._shard = shard
        self._inbox_top, self._journal_top = inbox_top, journal_top
        self.lanes: dict[bytes, OldHotLane] = {}
        self._owners: dict[int, OldHotLane] = {}
        self._arrivals = array("q")
        self._counts: list[tuple[int, int, int, int]] = []
        self._last_time = self._last_token = self._top = self._seen = 0
        self._replay(db)
        if self._seen < journal_top or self._top < inbox_top:
            raise self._corrupt("its logs end before the rows that the counter row includes")
        self._look_up(db)

    def add_to(self, totals: dict[str, Any]) -> None:
        """Add to the totals of the counter row, by column, what it does not include."""
        new = [event for event in self._counts if event[0] > self._journal_top]
        sends = sum(arrival > self._inbox_top for arrival in self._arrivals)
        acks = sum(count for _, kind, _, count in new if kind == _ACK)
        totals["sends"] += sends
        totals["pending"] += sends - acks
        totals["acks"] += acks
        totals["claims"] += sum(kind == _CLAIM for _, kind, _, _ in new)
        totals["receives"] += sum(count for _, kind, _, count in new if kind == _CLAIM)
        totals["lanes"] += sum(lane.row is None for lane in self.lanes.values())
        totals["last_time"] = max(totals["last_time"], self._last_time)
        totals["last_id"] = max(totals["last_id"], self._top)
        totals["last_token"] = max(totals["last_token"], self._last_token)
        ends = [lane.lease.deadline for lane in self.lanes.values() if lane.lease is not None]
        totals["next_deadline"] = min(totals["next_deadline"], *ends, NEVER)
        for _, kind, at, count in new:
            if kind == _ACK:
                totals["ack_rate"], totals["ack_rate_at"] = add_acks(totals["ack_rate"], totals["ack_rate_at"], at, count)

    def _replay(self, db: apsw.Connection) -> None:
        events: list[Any] = db.execute(MIGRATING.events).fetchall()
        arrivals: Iterator[Any] = iter(db.execute(MIGRATING.arrivals).fetchall())
        following = next(arrivals, None)
        for i, kind, at, top, count, token, deadline, before, charged, consumer, data in events:
            if self._seen and i != self._seen + 1:
                raise self._corrupt(f"its journal has no row {self._seen + 1}")
            self._seen = i
            while following is not None and following[_ID] <= top:
                self._arrive(*following)
                following = next(arrivals, None)
            self._last_time, self._top = max(self._last_time, at), max(self._top, top)
            if kind == _COOL:
                keys = list(_keys_in(data))
                self._cool(keys[:count], keys[count:])
                continue
            if not count or len(data) != count * _ID_BYTES:
                raise self._corrupt(f"row {i} of its journal counts {count} messages but names a different number")
            self._counts.append((i, kind, at, count))
            groups = self._lanes_of(i, data)
            if kind == _CLAIM:
                torn = sum(map(len, groups.values())) < count
                claim = _Claimed(token, consumer or "", at, deadline, before, bool(charged), torn)
                for lane, places in groups.items():
                    self._claim(i, lane, places, claim)
                self._last_token = max(self._last_token, token & ((1 << TOKEN_BITS) - 1))
            else:
                for lane, places in groups.items():
                    self._happen(i, kind, lane, places, at, deadline)
        while following is not None:
            self._arrive(*following)
            following = next(arrivals, None)

    def _arrive(self, arrival: int, key: bytes, seq: int, sent_at: int) -> None:
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = OldHotLane(key)
        lane.tail = seq
        lane.waiting.append((arrival, seq))
        self._owners[arrival] = lane
        self._arrivals.append(arrival)
        self._last_time, self._top = max(self._last_time, sent_at), arrival

    def _lanes_of(self, event: int, data: bytes) -> dict[OldHotLane, list[int]]:
        """Return the places in `waiting` of the messages that a row names, by lane, except those that were deleted."""
        groups: dict[OldHotLane, list[int]] = {}
        arrivals = [int.from_bytes(data[at : at + _ID_BYTES], "little") for at in range(0, len(data), _ID_BYTES)]
        for arrival in sorted(set(arrivals)):
            lane = self._owners.get(arrival)
            if lane is not None:
                place = bisect_left(lane.waiting, (arrival,))
                if place == len(lane.waiting) or lane.waiting[place][_ID] != arrival:
                    raise self._corrupt(f"row {event} of its journal names messages that are resolved")
                groups.setdefault(lane, []).append(place)
        return groups

    def _claim(self, event: int, lane: OldHotLane, places: list[int], claim: _Claimed) -> None:
        """Lease the first messages of a lane."""
        n = len(places)
        if (lane.lease is not None and lane.lease.token != lane.torn) or places[-1] != n - 1:
            raise self._corrupt(f"row {event} of its journal leases messages twice")
        lo, hi = lane.waiting[0][_SEQ], lane.waiting[n - 1][_SEQ]
        started = lo if n == 1 and claim.charged else lo - claim.before
        lane.lease = OldLease(claim.token, claim.consumer, lo, hi, started, n, claim.at, claim.deadline)
        lane.torn = claim.token if claim.torn else 0

    def _happen(self, event: int, kind: int, lane: OldHotLane, places: list[int], at: int, deadline: int) -> None:
        """Apply a row about messages of a lease."""
        lease = lane.lease
        if lease is None or places[-1] >= lease.pending:
            raise self._corrupt(f"row {event} of its journal names messages that are not leased")
        if kind == _ACK:
            seqs = [lane.waiting[place][_SEQ] for place in places]
            for place in reversed(places):
                del lane.waiting[place]
            lane.done = OldResolution(lease.token, "ack", seqs[0], seqs[-1], gaps_in(seqs))
            lane.active_at = at
            left = lease.pending - len(places)
            lane.lease = lease._replace(pending=left) if left else None
        elif kind == _START:
            lane.lease = lease._replace(started=max(lease.started, lane.waiting[places[-1]][_SEQ]))
        elif kind == _EXTEND:
            lane.lease = lease._replace(deadline=deadline)
        elif kind == _RELEASE:
            lane.lease = None
        else:
            raise self._corrupt(f"row {event} of its journal has the unknown kind {kind}")

    def _cool(self, keys: Iterable[bytes], known: Iterable[bytes]) -> None:
        """Remove lanes that have cooled. Where all messages of a lane were deleted as it cooled, it is not there.

        Args:
            known: keys of lanes that stay hot, and whose rows have their last acks.
        """
        for key in known:
            if (lane := self.lanes.get(key)) is not None:
                lane.done, lane.active_at = None, 0
        for key in keys:
            self.lanes.pop(key, None)

    def _look_up(self, db: apsw.Connection) -> None:
        """Find the rows of lanes, and end leases whose release was not recognized, because it names a deleted message.

        Earlier versions named the first unresolved message of a lease. It may have been acked and deleted later, under a later
        token, which is in the lane's row: a lane's last acks are there before their messages are deleted.
        """
        for lane in self.lanes.values():
            row: Any = db.execute(MIGRATING.row_of, (lane.key,)).get
            if row is None:
                continue
            lane.row, acked = row
            if lane.lease is not None and lane.lease.token == lane.torn and acked is not None and acked > lane.torn:
                lane.lease = None

    def _corrupt(self, what: str) -> StoreCorrupt:
        return StoreCorrupt(what, shard=self._shard)


def gaps_in(seqs: Sequence[int]) -> Sequence[int]:
    """Return the seqs that are missing between the first and the last of some."""
    found = set(seqs)
    return [seq for seq in range(seqs[0], seqs[-1]) if seq not in found]


def _keys_in(data: bytes) -> Iterator[bytes]:
    """Yield the keys in the data of a row about cooled lanes. Each is preceded by its length."""
    at = 0
    while at < len(data):
        start = at + _KEY_BYTES
        at = start + int.from_bytes(data[at:start], "little")
        yield data[start:at]
