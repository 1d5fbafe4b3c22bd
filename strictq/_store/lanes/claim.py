"""Receiving: the choice and order of the lanes to claim, and the messages at their heads.

The cost of a claim is proportional to what it returns: ready lanes are listed in order, and a lane's messages are stored
together. No messages are scanned and skipped. Maintenance (expired leases, ended delays, messages that expired or are out of
attempts) is done in bounded steps, so that a run of it neither holds the lock for long nor hides another lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import apsw

from ..._sql import CLAIM, HOT, LANES, repeated
from ..bulk import packing
from ..bulk.columns import PackedColumns
from ..commit.tx import NEVER, SECOND, Tx, insert_rows
from ..hot import cooling, tier
from ..hot.lane import Claim, HotLane
from ..hot.memory import Memory
from ..onelane import claiming
from . import history, lanes, retries, sweeps
from .leases import (
    ATTEMPTS,
    BODY,
    CAREFUL,
    DUE,
    EXPIRES,
    HEADERS,
    ID,
    KEY,
    LANE,
    POSITION,
    SEQ,
    SUSPECT,
    Claimed,
    Held,
    Request,
    Row,
)

CULL_STEP: Final = 200
"""The number of messages, expired or out of attempts, that one claim removes. The rest is left to the next one."""
HEAD_PAGE: Final = 256

_BODY_OF: Final = itemgetter(BODY)
_LEASES: Final = repeated(CLAIM.insert_lease, 64, 16, 4, 1)
_ENDLESS: Final = repeated(CLAIM.insert_endless, 128, 16, 4, 1)


class _Claim:
    """One running claim."""

    def __init__(self, tx: Tx, request: Request) -> None:
        self.tx = tx
        self.request = request
        self.room = request.room
        self.token = 0
        self.cull = CULL_STEP
        self.stop = False
        self.rows: list[tuple[Any, ...]] = []
        self.hot: list[HotLane] = []
        """The leased hot lanes. `out.hot` has their messages."""
        self.after = -1
        """The position of the cold lane that was read last."""
        self.positions: list[int] = []
        length = request.lease
        self.out = Claimed(tx.shard, int(tx.config.lease_seconds * SECOND) if length is None else length)
        self.deadline = self.out.deadline = NEVER if request.endless else tx.now + self.out.lease
        self.bytes_left = request.bytes_max
        self.last = 0
        """The last position that this claim reads. Lanes that it moves to the end of the order are left to the next claim."""

    def fit(self, rows: list[Row]) -> list[Row]:
        """Return as many of a lane's first messages as the request's limits on arrival and bytes permit."""
        newest = self.request.arrived_to
        if newest is not None and rows and rows[-1][ID] > newest:
            rows = [row for row in rows if row[ID] <= newest]  # in a lane, arrival numbers ascend
        if self.bytes_left is None:
            return rows
        for n, row in enumerate(rows):
            body = row[BODY]
            size = len(body) if body is not None else self.tx.run(CLAIM.body_size, (row[ID],)).get
            size += len(row[HEADERS] or "")
            if size > self.bytes_left and (n or self.token):
                self.stop = True
                return rows[:n]
            self.bytes_left -= size
        return rows

    def fits(self, piece: packing.Piece) -> bool:
        """Return whether the whole piece is plain and within the request's limits."""
        newest = self.request.arrived_to
        return (
            not piece.unlike
            and piece.messages <= self.room
            and (newest is None or piece.newest <= newest)
            and (self.bytes_left is None or len(piece.bodies) <= self.bytes_left)
        )

    def fit_together(self, chunks: list[packing.Lanes]) -> bool:
        """Return whether all of these lanes are within the request's limits on arrival and bytes."""
        newest = self.request.arrived_to
        if newest is not None and any(of.newest > newest for of in chunks):
            return False
        return self.bytes_left is None or sum(len(of.bodies) for of in chunks) <= self.bytes_left

    def take(self, rows: list[Row]) -> None:
        """Lease one lane's first messages."""
        first = rows[0]
        self._lease(first[POSITION], first[LANE], first[KEY], first[SEQ], rows[-1][SEQ], len(rows), rows)

    def take_piece(self, piece: packing.Piece) -> None:
        """Lease one lane's first messages, and as many more of it as are like them."""
        tx = self.tx
        held = self._lease(piece.position, piece.lane, piece.key, piece.lo, piece.hi, piece.messages, [])
        held.pieces = pieces = []
        while True:
            pieces.append(piece)
            if self.bytes_left is not None:
                self.bytes_left -= len(piece.bodies)
            if piece.hi == piece.tail or not self.room:
                return
            piece = packing.following(tx, piece, min(self.room, packing.STEP))
            if not self.fits(piece):
                return  # the rest of this lane is left to the next claim
            self.room -= piece.messages
            lane, token, consumer, lo, _, started, pending, *rest = self.rows[-1]
            self.rows[-1] = (lane, token, consumer, lo, piece.hi, started, pending + piece.messages, *rest)

    def take_together(self, listed: list[tuple[int, int, int]], chunks: list[packing.Lanes]) -> None:
        """Lease whole lanes that are consecutive in the order.

        Args:
            listed: position, carefulness and lane, of each.
            chunks: their messages.
        """
        tx, request = self.tx, self.request
        assert request.endless
        assert not request.charge
        token = self.token or self._new_token()
        self.out.all_hot = False
        for of in chunks:
            values: list[int] = [0] * (4 * len(of.lanes))
            values[::4], values[1::4], values[2::4], values[3::4] = of.lanes, of.lows, of.highs, of.depths
            at = 0
            for n, statement in _ENDLESS.items():
                while len(values) - at >= 4 * n:
                    tx.run(statement, (*values[at : at + 4 * n], token, request.consumer, tx.now, self.deadline))
                    at += 4 * n
            columns = PackedColumns(tx.shard, of.messages, of.keys, of.depths, of.seqs, of.ids, of.sent_at, of.sizes, of.bodies)
            self.out.columns.append(columns)
            self.room -= of.messages
            if self.bytes_left is not None:
                self.bytes_left -= len(of.bodies)
        tx.run(CLAIM.drop_positions, (listed[0][0], listed[-1][0]))

    def _lease(self, position: int, lane: int, key: bytes, lo: int, hi: int, n: int, rows: list[Row]) -> Held:
        token = self.token or self._new_token()
        request = self.request
        # The handler of a single message counts as started now, which saves the transaction of a start.
        started = lo if n == 1 and request.charge else lo - (lanes.SAYS_STARTS if request.starts else 1)
        pending = 0 if request.ack_first else n
        self.rows.append((lane, token, request.consumer, lo, hi, started, pending, self.tx.now, self.deadline, request.ack_first))
        self.positions.append(position)
        held = Held(lane, key, token, self.deadline, rows)
        self.out.add(held)
        self.room -= n
        return held

    def _new_token(self) -> int:
        self.token = self.out.token = token = self.tx.new_token()
        return token

    def take_hot(self, lane: HotLane, rows: list[Row]) -> None:
        """Lease the first messages of a hot lane."""
        self.hot.append(lane)
        self.out.hot.append(rows)
        self.room -= len(rows)

    def finish(self) -> Claimed:
        tx = self.tx
        if self.token or self.hot:
            self.out.messages = n = self.request.room - self.room
            tx.totals.receives += n
            tx.totals.claims += 1
        if self.hot:
            assert tx.hot is not None
            request = self.request
            before = lanes.SAYS_STARTS if request.starts else 1
            token = self.token or self._new_token()
            claim = Claim(token, tx.now, self.deadline, before, request.charge, request.consumer)
            self.out.ids = tier.take(tx, tx.hot, self.hot, self.out.hot, claim)
        if self.rows:
            self._unlist()
            if len(self.rows) > 1:
                self.rows.sort()
            insert_rows(tx, _LEASES, self.rows)
            tx.totals.next_deadline = min(tx.totals.next_deadline, self.deadline)
            if self.request.ack_first:
                for held in self.out.leases:
                    self._resolve(held)
        return self.out

    def _unlist(self) -> None:
        if self.request.keys is None and self.request.arrived_to is None:
            # All lanes in between were claimed, too, or moved to the end of the order. A claim that skips a lane must stop there.
            self.tx.run(CLAIM.drop_positions, (self.positions[0], self.positions[-1]))
        else:
            self.tx.many(CLAIM.drop_position, [(p,) for p in self.positions])

    def _resolve(self, held: Held) -> None:
        """Resolve the messages now, for ack_first. Only the lane stays leased."""
        tx = self.tx
        gone = [(r[SEQ], r[ID], r[BODY] is None) for r in held.rows]
        held.rows = [with_body(tx, row) for row in held.rows]
        lanes.remove(tx, held.lane, gone, history.ACKED)
        tx.count_acks(len(held.rows))


def claim(tx: Tx, request: Request) -> Claimed:
    """Lease the oldest ready heads, whole lanes at a time (or `per_key` messages of each)."""
    if tx.lanes is not None:
        return claiming.claim(tx, request)
    work = _Claim(tx, request)
    hot = tx.hot
    if hot is not None and hot.lanes:
        if not _ready_for_hot(work, hot):
            return work.finish()
        if request.keys is None and hot.are_tables_quiet(tx):
            work.last = tx.totals.last_id
            _claim_both(work, hot, quiet=True)
            return work.finish()
    work.out.more = sweeps.expire_leases(tx) | sweeps.wake_delayed(tx)
    work.last = tx.totals.last_id if request.arrived_to is None else min(request.arrived_to, tx.totals.last_id)
    if request.keys is not None:
        _claim_keys(work, request.keys)
    elif hot is not None and hot.lanes:
        _claim_both(work, hot, quiet=False)
    elif request.per_key is None:
        if request.packed:
            _claim_packed(work)
        else:
            _claim_whole(work)
        if request.arrived_to is not None:
            _claim_moved(work, request.arrived_to)
    else:
        _claim_heads(work, request.per_key)
    return work.finish()


def _ready_for_hot(work: _Claim, hot: Memory) -> bool:
    """Cool what this claim can't take hot. Return False if one transaction can't cool all of it: then claim again."""
    tx, request = work.tx, work.request
    if tx.now >= hot.next_deadline and (over := hot.expired(tx.now, sweeps.SWEEP_STEP)):
        cooling.cool(tx, over)
    if request.endless or request.arrived_to is not None or request.bytes_max is not None:
        work.out.more = not cooling.cool_some(tx)
        return not work.out.more
    return True


def _claim_both(work: _Claim, hot: Memory, *, quiet: bool) -> None:
    """Claim hot and cold lanes in one order, that of positions. The position of a hot lane is its head's arrival number.

    Args:
        quiet: no cold lane is listed.
    """
    tx, last = work.tx, work.last
    most = work.request.per_key or work.room
    while work.room > 0 and not work.stop:
        head = hot.order.head()
        cold = None if quiet else tx.run(HOT.next_cold, (work.after,)).get
        if cold is not None and cold > last:
            cold = None
        if head is not None and (cold is None or head[0] < cold):
            quiet = _take_hot(work, hot, head[1], most, cold) and quiet
        elif cold is not None:
            work.last = last if head is None else min(head[0] - 1, last)  # the hot lane may cool, and is then listed there
            if work.request.per_key is None:
                _claim_whole(work)
            else:
                _claim_heads(work, work.request.per_key)
            work.after = max(work.after, work.last)
        else:
            return


def _take_hot(work: _Claim, hot: Memory, lane: HotLane, most: int, cold: int | None) -> bool:
    """Lease a hot lane, and later ones up to a cold lane's position. Return False if a lane cooled and is the next cold one."""
    now = work.tx.now
    hot.unsure = True
    if work.request.ack_first:
        cooling.cool(work.tx, _until_full(work, hot, most, cold))
        return False
    if cold is None:
        taken, messages, work.room = hot.order.take(work.room, most, now)
        work.hot += taken
        work.out.hot += messages
        if work.room <= 0 or (head := hot.order.head()) is None:
            return True
        lane = head[1]
    while True:
        if lane.is_over(now):
            cooling.cool(work.tx, [lane])  # it keeps its position in the cold order, where it is next
            return False
        hot.order.pop()
        work.take_hot(lane, lane.rows[: min(most, work.room)])
        if work.room <= 0:
            return True
        head = hot.order.head()
        if head is None or (cold is not None and head[0] > cold):
            return True
        lane = head[1]


def _until_full(work: _Claim, hot: Memory, most: int, cold: int | None) -> list[HotLane]:
    """Remove the next hot lanes from the order: as many as fill the request, up to a cold lane's position."""
    some: list[HotLane] = []
    room = work.room
    while room > 0 and (head := hot.order.head()) is not None and (cold is None or head[0] < cold):
        hot.order.pop()
        some.append(head[1])
        room -= min(len(head[1].rows), most)
    return some


def _claim_whole(work: _Claim) -> None:
    """Apply rules 1 to 3: claim the oldest ready head, as many more of its lane as fit, and repeat."""
    while work.room > 0 and not work.stop:
        limit = work.room
        rows = work.tx.run(CLAIM.ready_messages, (work.after, work.last, limit)).fetchall()
        if not rows:
            return
        work.after = rows[-1][POSITION]
        _take_lanes(work, rows, None, cut=len(rows) == limit)
        if len(rows) < limit:
            return


def _claim_packed(work: _Claim) -> None:
    """Do the same column by column. Read rows for a while if columns do not pay, a lane is not plain, or the room ends in it."""
    after, pause = -1, packing.PAUSE
    while work.room > 0 and not work.stop:
        lanes_before, room_before = len(work.rows), work.room
        for piece in packing.ready(work.tx, after, work.last, min(work.room, packing.STEP)):
            if piece.careful or not work.fits(piece):
                break
            work.take_piece(piece)
            after = piece.position
            if not work.room:
                return
            if not packing.pays(len(work.rows) - lanes_before, room_before - work.room):
                pause = packing.PAUSE_MAX
                break
        else:
            return
        after = _claim_together(work, after)
        limit = min(work.room, pause)
        pause = min(2 * pause, packing.PAUSE_MAX)
        rows = work.tx.run(CLAIM.ready_messages, (after, work.last, limit)).fetchall()
        if not rows:
            return
        after = rows[-1][POSITION]
        _take_lanes(work, rows, None, cut=len(rows) == limit)


def _claim_together(work: _Claim, after: int) -> int:
    """Claim lanes that have few messages, as many together as fit, in whole lanes. Return the last claimed position.

    Stops before a lane that is deep or not plain, and when the room is for few lanes.
    """
    lanes, depth = packing.LANES_FIRST, 1.0
    while (lanes := min(lanes, work.room)) >= packing.LANES_MIN:
        listed: list[tuple[int, int, int]] = work.tx.run(CLAIM.listed, (after, work.last, lanes)).fetchall()
        listed = listed[: next((n for n, (_, careful, _) in enumerate(listed) if careful), None)]
        if len(listed) < packing.LANES_MIN:
            break
        chunks = packing.together(work.tx, sorted(lane for _, _, lane in listed), depth, work.room)
        if not chunks or not work.fit_together(chunks):
            lanes = len(listed) // 8
            continue
        before = work.room
        work.take_together(listed, chunks)
        after = listed[-1][0]
        depth = (before - work.room) / len(listed)
        if depth >= packing.PAYS:
            break
        lanes = int(work.room / depth)
    return after


def _claim_moved(work: _Claim, arrived_to: int) -> None:
    """Claim lanes with earlier arrivals that have moved to the end of the order since, in a claim bounded by arrival."""
    if work.room <= 0 or work.stop:
        return
    for position, careful, lane in work.tx.run(CLAIM.arrived_before, (arrived_to, work.room)).fetchall():
        if work.room <= 0 or work.stop:
            return
        _take_lanes(work, work.tx.run(CLAIM.lane_messages, (lane, position, careful, 0, work.room)).fetchall(), None)


def _claim_heads(work: _Claim, per_key: int) -> None:
    while work.room > 0 and not work.stop:
        want = min(HEAD_PAGE, -(-work.room // per_key))
        listed = work.tx.run(CLAIM.ready_lanes, (work.after, work.last, want)).fetchall()
        if not listed:
            return
        work.after = listed[-1][0]
        rows = work.tx.many(CLAIM.heads_of, [(position, per_key) for position, _ in listed]).fetchall()
        _take_lanes(work, rows, per_key)
        if len(listed) < want:
            return


def _claim_keys(work: _Claim, keys: Sequence[bytes]) -> None:
    """Claim only these lanes, in their order of readiness."""
    tx = work.tx
    listed: list[tuple[int, int, int, bytes]] = []
    for key in keys:
        if tx.hot is not None and (hot := tx.hot.lanes.get(key)) is not None and not work.request.ack_first:
            if hot.lease is None and hot.rows and not hot.is_over(tx.now):
                listed.append((hot.rows[0][ID], 0, 0, key))
                continue
            if hot.lease is not None or not hot.rows:
                continue
        lane = lanes.find(tx, key)
        row = None if lane is None else tx.run(CLAIM.ready_of, (lane,)).get
        if row is not None:
            listed.append((row[0], row[1], lane or 0, key))
    for position, careful, lane, key in sorted(listed):
        if work.room <= 0 or work.stop:
            return
        limit = work.room if work.request.per_key is None else min(work.room, work.request.per_key)
        if lane:
            _take_lanes(work, tx.run(CLAIM.lane_messages, (lane, position, careful, 0, limit)).fetchall(), limit)
        else:
            assert tx.hot is not None
            tx.hot.unsure = True
            taken = tx.hot.lanes[key]
            work.take_hot(taken, taken.rows[:limit])


def _take_lanes(work: _Claim, rows: list[Row], per_key: int | None, *, cut: bool = False) -> None:
    """Lease lane by lane from rows in the order of position and seq.

    Args:
        cut: a limit cut the rows, so the last lane may have more.
    """
    now = work.tx.now
    bounded = work.request.arrived_to is not None or work.bytes_left is not None
    at, end = 0, len(rows)
    while at < end and work.room > 0 and not work.stop:
        first = rows[at]
        position = first[POSITION]
        plain = not first[CAREFUL]
        stop = at
        while stop < end and (row := rows[stop])[POSITION] == position:
            if row[DUE] is not None or row[EXPIRES] is not None or row[ATTEMPTS]:
                plain = plain and is_plain(row, now, work.tx)
            stop += 1
        chunk = rows[at:stop] if stop - at < work.room else rows[at : at + work.room]
        if cut and stop == end and stop - at < work.room and plain:
            # Earlier lanes took fewer than their rows, so there is room for more of this one than was read.
            chunk = work.tx.run(CLAIM.lane_messages, (first[LANE], position, 0, 0, work.room)).fetchall()
            plain = all(is_plain(row, now, work.tx) for row in chunk)
        at = stop
        if plain:
            if bounded:
                chunk = work.fit(chunk)
                if work.stop and not chunk:
                    return  # the byte limit is reached: the lane stays where it is
                if not chunk:
                    continue
            work.take(chunk)
        elif work.cull <= 0:
            # This transaction's budget is spent. The rest stays where it is. If nothing was found, the next transaction continues
            # from here.
            work.out.more = work.stop = True
            return
        else:
            _take_carefully(work, first, work.room if per_key is None else min(per_key, work.room))


def is_plain(row: Row, now: int, tx: Tx) -> bool:
    """Return whether this message needs no special treatment."""
    return (
        (row[DUE] is None or row[DUE] <= now)
        and (row[EXPIRES] is None or row[EXPIRES] > now)
        and not (row[ATTEMPTS] and retries.given_up(tx.config, row[ATTEMPTS]))
    )


def _take_carefully(work: _Claim, first: Row, limit: int) -> None:
    """Claim one lane that has an expired lease, a solo range, or messages that expired, are delayed or out of attempts."""
    tx = work.tx
    lane = first[LANE]
    lease = lanes.lease_of(tx, lane)
    if lease is not None:
        lanes.retake(tx, lease)
    if lanes.revive_some(tx, lane):
        work.out.more, work.cull = True, 0
        return _end_careful(work, first, [])
    row = lanes.get(tx, lane)
    found: list[Row] = []
    start = 0
    while len(found) < limit:
        page = min(limit - len(found), HEAD_PAGE)
        rows = tx.run(CLAIM.lane_messages, (lane, first[POSITION], 1, start, page)).fetchall()
        for message in rows:
            start = message[SEQ] + 1
            if message[DUE] is not None and message[DUE] > tx.now:
                return _end_careful(work, first, found)
            if not is_plain(message, tx.now, tx):
                if work.cull <= 0:
                    work.out.more = True
                    return _end_careful(work, first, found)
                work.cull -= 1
                if _cull(tx, row, message):
                    return _end_careful(work, first, found)
                continue
            if not found and message[SEQ] <= row.solo_to:
                return _end_careful(work, first, [(first[POSITION], SUSPECT, *message[KEY:])])
            found.append(message)
        if len(rows) < page:
            break
    return _end_careful(work, first, found)


def _end_careful(work: _Claim, first: Row, found: list[Row]) -> None:
    tx, lane = work.tx, first[LANE]
    if found:
        fitting = work.fit(found)
        if fitting:
            work.take(fitting)
        elif work.stop and found[0][ID] > first[ID] == first[POSITION]:
            # It keeps its turn. If the head was parked, the place of its arrival belongs to another lane now. Never list it at an
            # earlier place: those up to the last claimed lane are deleted.
            lanes.unlist(tx, lane)
            lanes.list_ready(tx, lane, found[0][ID], careful=True)
        if fitting or work.stop:
            return
    # There is nothing to deliver: the lane is delayed, held, empty, or cut short. In the last case it goes to the end of the
    # order.
    lanes.unlist(tx, lane)
    lanes.place(tx, lane, at_end=True)


def _cull(tx: Tx, lane: lanes.Lane, message: Row) -> bool:
    """Remove a message that expired or is out of attempts. Return whether its lane is held now."""
    seq = message[SEQ]
    if message[EXPIRES] is not None and message[EXPIRES] <= tx.now:
        tx.totals.expired += 1
        if tx.config.on_expire == "dead_letter":
            lanes.bury(
                tx, lane.id, lane.key, seq, kind="expired", reason="its TTL was over", starts=retries.starts(message[ATTEMPTS])
            )
        else:
            lanes.remove(tx, lane.id, [(seq, message[ID], message[BODY] is None)], history.EXPIRED)
        return False
    stored = message[ATTEMPTS]
    *_, error, _, first_at, _ = tx.run(LANES.message, (lane.id, seq)).get
    reason = retries.why(tx.config, stored, tx.now - (first_at or tx.now), error)
    return lanes.apply_poison(tx, lane.id, lane.key, seq, stored, reason)


def with_bodies(tx: Tx, claimed: Claimed) -> Claimed:
    """Fetch the bodies that are stored out of line."""
    if claimed.all_hot:
        if None not in map(_BODY_OF, chain.from_iterable(claimed.hot)):
            return claimed
        claimed.all_hot = False
    for held in claimed.leases:
        for row in held.rows:
            if row[BODY] is None:
                held.apart = {row[SEQ]: row[ID] for row in held.rows if row[BODY] is None}
                held.rows = [with_body(tx, row) for row in held.rows]
                break
    return claimed


def with_body(tx: Tx, row: Row) -> Row:
    return row if row[BODY] is not None else (*row[:BODY], tx.run(CLAIM.body, (row[ID],)).get)


Outlook = tuple[int, int, int | None, int, int, int, int]
"""Whether a lane is listed as ready; the time before which no lease ends; the next due time; the epoch of the last write; the
version of the settings; the newest rows of journal and inbox."""


def outlook(db: apsw.Connection) -> Outlook:
    """Return what can be claimed from the tables."""
    row: Outlook = db.execute(CLAIM.outlook).get
    return row


def outlook_with_logs(db: apsw.Connection) -> Outlook:
    """Return the same for a shard that has logs."""
    row: Outlook = db.execute(HOT.outlook).get
    return row


def soonest(db: apsw.Connection) -> int | None:
    """Return exactly when the next lease or delay ends. None: never."""
    at: int | None = db.execute(CLAIM.soonest).get
    return at
