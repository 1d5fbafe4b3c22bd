"""Operations on hot lanes with one statement, which is its own transaction.

A send, a receive or an ack of hot lanes writes one row of a log. The statement that writes it compares both logs and the gate
with memory, as every transaction does when it begins, and writes nothing if they differ. So BEGIN, that read and COMMIT are
omitted. Memory changes after the statement. A result of None means that nothing changed, and a normal operation must do it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Final

import apsw

from ..._config import QueueConfig
from ..._sql import HOT
from ..commit.tx import SECOND, TOKEN_BITS, Totals, add_acks
from ..commit.writer import Writer
from ..lanes.attempts import Attempt, DirectHost
from ..lanes.lanes import SAYS_STARTS
from ..lanes.leases import BODY, ID, SEQ, Claimed, Lost, Row, Settlement
from ..lanes.messages import Item, Sent
from ..lanes.send import INLINE_BYTES_MAX
from . import cooling, tier
from .journal import ACK, CLAIM
from .lane import Claim, HotLane
from .memory import Memory

# Bypasses the constructor's argument handling, which costs as much again.
_claim_of: Final = tuple.__new__


class Direct:
    """Sends, receives and acks of the hot lanes of one shard."""

    def __init__(self, host: DirectHost, shard: int, hot: Memory, writer: Writer) -> None:
        self._host = host
        self._shard = shard
        self._hot = hot
        self._writer = writer
        self._observers = host.observers
        self._settings: tuple[QueueConfig, int] | None = None
        self._sends = self._settles = False
        self._lease = 0

    def _may(self, settings: tuple[QueueConfig, int]) -> bool:
        """Return whether the settings permit it, and no observer must be called."""
        if settings is not self._settings:
            config = settings[0]
            self._settles = config.history == "off"
            self._sends = self._settles and config.hot_lanes and config.max_depth is None and config.ttl_seconds is None
            self._lease = int(config.lease_seconds * SECOND)
            self._settings = settings
        return self._settles and not self._observers.counts and not self._observers.durations

    def send(self, item: Item, checked: QueueConfig) -> Sent | None:
        """Append a plain message.

        Args:
            checked: the settings that it was validated against.
        """
        settings = self._host.settings
        if (
            not self._may(settings) or not self._sends or checked is not settings[0] or self._hot.cramped
            or item[2] is not None or len(item[1]) > INLINE_BYTES_MAX
        ):  # fmt: skip
            return None
        done = self._writer.direct(_send, item, settings)
        if done is None:
            return None
        if done[0]:
            self._host.wake()
        return done[1]

    def claim(self, attempt: Attempt, seconds: float | None) -> Claimed | None:
        """Lease from hot lanes alone, as `claim.claim` would.

        Args:
            seconds: how long to wait for the write lock; None: BUSY_SECONDS.
        """
        settings, request = self._host.settings, attempt.request
        if (
            not self._may(settings) or request.keys is not None or request.ack_first or request.endless
            or request.arrived_to is not None or request.bytes_max is not None
        ):  # fmt: skip
            return None
        attempt.lease = self._lease if request.lease is None else request.lease
        return self._writer.direct(self._claim, attempt, settings, seconds, synced=False)

    def ack(self, batches: Sequence[Settlement]) -> list[Lost] | None:
        """Ack these messages if live leases of hot lanes hold all of them."""
        settings = self._host.settings
        if not self._may(settings):
            return None
        ready = self._writer.direct(_ack, batches, settings)
        if ready is None:
            return None
        if ready:
            self._host.wake()
        return [{}] if len(batches) == 1 else [{} for _ in batches]

    def ack_one(self, key: bytes, token: int, seq: int) -> bool:
        """Ack the only message that a live lease of a hot lane holds. Return False if a normal ack must do it."""
        settings = self._host.settings
        ready = self._writer.direct(_ack_one, (key, token, seq), settings) if self._may(settings) else None
        if ready:
            self._host.wake()
        return ready is not None

    def _claim(self, db: apsw.Connection, hot: Memory, totals: Totals, now: int, attempt: Attempt) -> Claimed | None:
        if now >= hot.next_deadline or now >= totals.next_deadline or not hot.is_known_quiet(now):
            return None
        request = attempt.request
        hot.unsure = True
        taken, messages, room = hot.order.take(request.room, request.per_key or request.room, now)
        if room > 0 and taken and hot.order.head() is not None:
            hot.release(taken)  # the next lane is not for hot lanes alone
            taken = []
        if not taken:
            hot.unsure = False
            return None
        counter, length = totals.last_token + 1, attempt.lease
        token, deadline, n = (totals.epoch << TOKEN_BITS) + counter, now + length, request.room - room
        before = SAYS_STARTS if request.starts else 1
        claim = _claim_of(Claim, (token, now, deadline, before, request.charge, request.consumer))
        data, newest = _numbers(messages)
        event = hot.seen + 1
        row = (event, CLAIM, now, hot.top, n, token, deadline, before, request.charge, request.consumer, data, hot.gate)
        claimed = Claimed(self._shard, length)
        claimed.messages, claimed.token, claimed.deadline = n, token, deadline
        claimed.hot, claimed.ids = messages, array("q", data)
        changes = db.total_changes()
        attempt.brought.append((attempt.shard, attempt, claimed))
        try:
            self._writer.omit_sync(db)
            db.execute(HOT.append_event, row)
            if db.total_changes() == changes:
                _refused(hot, taken)
                return None
            hot.seen = event
            hot.lease(zip(taken, messages, strict=True), claim)
            totals.last_token = counter
            totals.receives += n
            totals.claims += 1
            hot.note((event, CLAIM, now, n, newest), totals)
            hot.unsure = False
            attempt.committed = True
        except apsw.BusyError:
            _refused(hot, taken)
            raise
        except BaseException:
            attempt.committed = db.total_changes() != changes
            raise
        return claimed


def _refused(hot: Memory, taken: list[HotLane]) -> None:
    """Restore memory: nothing was written."""
    hot.release(taken)
    hot.unsure = hot.is_current = False


def _numbers(messages: Sequence[Sequence[Row]]) -> tuple[bytes, int]:
    """Return the arrival numbers of these messages as the journal stores them, and the largest."""
    if len(messages) == 1 and len(rows := messages[0]) == 1:
        newest: int = rows[0][ID]
        return newest.to_bytes(8, sys.byteorder), newest
    ids = array("q", [row[ID] for rows in messages for row in rows])
    return ids.tobytes(), max(ids)


def _send(db: apsw.Connection, hot: Memory, totals: Totals, now: int, item: Item) -> tuple[bool, Sent] | None:
    key, body = item[0], item[1]
    known = hot.lanes.get(key)
    if known is not None:
        lane = known
        if len(lane.rows) >= cooling.LANE_ROWS_MAX:
            return None
    else:
        tail = hot.tails.get(key)
        if tail is None or hot.deep:
            return None
        lane = HotLane.of_tail(key, tail)
    if cooling.is_fold_due(hot):
        return None  # it must be folded first
    arrival, seq = totals.last_id + 1, lane.seq + 1
    hot.unsure = True
    try:
        db.execute(HOT.append_arrival, (arrival, key, seq, now, body, hot.seen, hot.top, hot.gate))
    except apsw.BusyError:
        hot.unsure = False
        raise
    if not db.changes():
        hot.unsure = hot.is_current = False
        return None
    if known is None:
        hot.lanes[key] = lane
        del hot.tails[key]
    lane.seq = seq
    totals.last_id = arrival
    totals.pending += 1
    totals.sends += 1
    first = hot.arrive([lane], [(arrival, 0, key, 0, seq, None, None, 0, arrival, now, None, None, None, None, body)])
    hot.unsure = False
    return first, (seq, arrival, None)


def _ack(db: apsw.Connection, hot: Memory, totals: Totals, now: int, batches: Sequence[Settlement]) -> bool | None:
    lanes: list[HotLane] = []
    messages: list[list[Row]] = []
    for batch in batches:
        lane = hot.lanes.get(batch.key)
        if lane is None or batch.start is not None:
            return None
        rows = tier.held(lane, batch)
        if rows is None or None in [row[BODY] for row in rows]:
            return None
        lanes.append(lane)
        messages.append(rows)
    if len(lanes) > 1 and len(set(lanes)) < len(lanes):
        return None
    return _resolve(db, hot, totals, now, lanes, messages)


def _ack_one(db: apsw.Connection, hot: Memory, totals: Totals, now: int, what: tuple[bytes, int, int]) -> bool | None:
    key, token, seq = what
    lane = hot.lanes.get(key)
    if lane is None or (lease := lane.lease) is None or lease.claim.token != token or lease.pending != 1:
        return None
    row = lane.rows[0]
    if row[SEQ] != seq or row[BODY] is None:
        return None
    return _resolve(db, hot, totals, now, [lane], [[row]])


def _resolve(
    db: apsw.Connection, hot: Memory, totals: Totals, now: int, lanes: list[HotLane], messages: list[list[Row]]
) -> bool | None:
    """Write the ack of these messages. Return whether a lane is ready now. None: nothing was written."""
    data, newest = _numbers(messages)
    event, n = hot.seen + 1, len(data) // 8
    hot.unsure = True
    try:
        db.execute(HOT.append_event, (event, ACK, now, hot.top, n, 0, 0, 0, False, None, data, hot.gate))
    except apsw.BusyError:
        hot.unsure = False
        raise
    if not db.changes():
        hot.unsure = hot.is_current = False
        return None
    hot.seen = event
    totals.pending -= n
    totals.acks += n
    totals.ack_rate, totals.ack_rate_at = add_acks(totals.ack_rate, totals.ack_rate_at, now, n)
    ready = hot.ack(zip(lanes, messages, strict=True), now)
    hot.note((event, ACK, now, n, newest), totals)
    hot.unsure = False
    return ready
