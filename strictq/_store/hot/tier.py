"""Operations on hot lanes: messages are sent to them, leased from them, acked and started there.

Each function does what it can here and leaves the rest to the tables: lanes that it can't serve cool, or are named in its result.
Everything is checked before anything changes, so a refusal does not require memory to be rebuilt.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ..._sql import HOT, LANES, repeated
from ..commit.tx import Tx, insert_values
from ..lanes.leases import BODY, ID, KEY, SEQ, Claimed, Row, Settlement
from .journal import ACK, CLAIM, EXTEND, RELEASE, START
from .lane import Claim, HotLane, HotLease
from .memory import Memory

if TYPE_CHECKING:
    from ..lanes.messages import Item

_SEQ_OF: Final = itemgetter(SEQ)
_KEY_OF, _BODY_OF = itemgetter(0), itemgetter(1)
INSERTS: Final = repeated(HOT.insert_plain, 128, 16, 4, 1)
_INSERT: Final = INSERTS[1]
_WIDTH: Final = 4
"""The number of values of a plain message in the inbox, without those that all messages of a statement share."""


def write_plain(
    tx: Tx, hot: Memory, lanes: dict[bytes, HotLane], items: Sequence[Item], first: int, expires: int | None
) -> list[int]:
    """Add messages without options, with bodies that fit into a row, to the inbox and to their lanes.

    Args:
        lanes: by key. `issue` has reserved their seqs.
        first: the arrival number of the first one.
    Returns:
        Their seqs.
    """
    hot.unsure = True
    seqs, ready = hot.arrive_plain(lanes, items, first, tx.now, expires)
    n = len(items)
    values: list[Any] = [None] * (_WIDTH * n)  # one list: a tuple for each would trigger the garbage collector more often
    values[::_WIDTH] = range(first, first + n)
    values[1::_WIDTH] = map(_KEY_OF, items)
    values[2::_WIDTH] = seqs
    values[3::_WIDTH] = map(_BODY_OF, items)
    insert_values(tx, INSERTS, values, _WIDTH, (tx.now, expires))
    tx.hot_changes += n
    if ready:
        tx.wake = True
    return seqs


def write_arrivals(tx: Tx, hot: Memory, lanes: Sequence[HotLane], arrivals: Sequence[Row]) -> None:
    """Add numbered messages to the inbox, their arrival numbers ascending, and to their lanes."""
    hot.unsure = True
    for i, _, key, _, seq, _, expires, _, _, at, headers, size, prepare, process, body in arrivals:
        if headers is None and size is None and prepare is None and process is None:
            tx.run(_INSERT, (at, expires, i, key, seq, body))
        else:
            tx.run(HOT.insert_full, (i, key, seq, at, expires, headers, size, prepare, process, body))
    tx.hot_changes += len(arrivals)
    if hot.arrive(lanes, arrivals):
        tx.wake = True


def take(tx: Tx, hot: Memory, taken: Sequence[HotLane], messages: Sequence[Sequence[Row]], claim: Claim) -> array[int]:
    """Lease the first messages of some lanes, which were popped from the order. Return their arrival numbers."""
    ids = array("q", [row[ID] for rows in messages for row in rows])
    _note(tx, hot, CLAIM, ids, claim)
    hot.lease(zip(taken, messages, strict=True), claim)
    return ids


def ack_claimed(tx: Tx, hot: Memory, claimed: Claimed) -> bool:
    """Ack everything that a claim leased from hot lanes. All bodies are among its rows.

    Returns:
        Whether all of it is still leased and unresolved. Otherwise nothing is done.
    """
    token, lanes = claimed.token, hot.lanes
    picked: list[HotLane] = []
    for rows in claimed.hot:
        lane = lanes.get(rows[0][KEY])
        if lane is None or (lease := lane.lease) is None or lease.claim.token != token or lease.pending != len(rows):
            return False
        picked.append(lane)
    hot.unsure = True
    tx.totals.pending -= claimed.messages
    tx.count_acks(claimed.messages)
    _note(tx, hot, ACK, claimed.ids)
    if hot.ack(zip(picked, claimed.hot, strict=True), tx.now):
        tx.wake = True
    return True


def ack(tx: Tx, hot: Memory, batches: Sequence[Settlement]) -> list[Settlement]:
    """Ack messages that live leases of hot lanes hold unresolved.

    Returns:
        The other settlements. Nothing is done for those.
    """
    picked: dict[HotLane, list[Row]] = {}
    starting: list[tuple[HotLane, int]] = []
    left: list[Settlement] = []
    lanes = hot.lanes
    for batch in batches:
        lane = lanes.get(batch.key)
        if lane is None or lane.lease is None or lane.lease.claim.token != batch.token:
            left.append(batch)
            continue
        known = picked.get(lane)
        rows = _unresolved(lane, lane.lease, batch.seqs, known)
        if rows is None:
            left.append(batch)
            continue
        if known is None:
            picked[lane] = rows
        else:
            known += rows
            known.sort(key=_SEQ_OF)
        if batch.start is not None:
            starting.append((lane, batch.start))
    if not picked:
        return left
    ids = array("q", [row[ID] for rows in picked.values() for row in rows])
    apart = [(row[ID],) for rows in picked.values() for row in rows if row[BODY] is None]
    hot.unsure = True
    if apart:
        before = tx.db.total_changes()
        tx.many(LANES.delete_body, apart)
        tx.hot_changes += tx.db.total_changes() - before
    tx.totals.pending -= len(ids)
    tx.count_acks(len(ids))
    _note(tx, hot, ACK, ids)
    if hot.ack(picked.items(), tx.now):
        tx.wake = True
    if starting:
        _start(tx, hot, [(lane, seq) for lane, seq in starting if lane.lease is not None and seq <= lane.lease.hi])
    return left


def holds(hot: Memory, batch: Settlement) -> bool:
    """Return whether a live lease of a hot lane holds these messages, all of them unresolved."""
    lane = _held(hot, batch)
    return lane is not None and lane.lease is not None and _unresolved(lane, lane.lease, batch.seqs, None) is not None


def held(lane: HotLane, batch: Settlement) -> list[Row] | None:
    """Return the rows of a settlement if the lane's live lease holds all of them unresolved, else None."""
    lease = lane.lease
    return None if lease is None or lease.claim.token != batch.token else _unresolved(lane, lease, batch.seqs, None)


def lowest(hot: Memory, batch: Settlement) -> int | None:
    """Return the first message that the live lease of a hot lane holds unresolved. None: the token is not that of one."""
    lane = _held(hot, batch)
    return None if lane is None else int(lane.rows[0][SEQ])


def extend(tx: Tx, hot: Memory, batches: Sequence[Settlement], deadline: int) -> list[Settlement]:
    """Move the deadlines of leases of hot lanes.

    Returns:
        The settlements that are not of live leases of hot lanes.
    """
    found, left = _leased(hot, batches, lambda _lane, _batch: True)
    if found:
        _note(tx, hot, EXTEND, array("q", [lane.mark for lane in found]), deadline=deadline)
        hot.extend(found, deadline)
        tx.wake = True
    return left


def release(tx: Tx, hot: Memory, batches: Sequence[Settlement]) -> list[Settlement]:
    """Release leases of hot lanes, unused.

    Returns:
        The settlements that are not of live leases of hot lanes, or of a part of one.
    """
    found, left = _leased(hot, batches, lambda lane, batch: batch.seqs[0] <= lane.rows[0][SEQ])
    if found:
        _note(tx, hot, RELEASE, array("q", [lane.mark for lane in found]))
        hot.release(found)
        tx.wake = True
    return left


def _leased(
    hot: Memory, batches: Sequence[Settlement], fits: Callable[[HotLane, Settlement], bool]
) -> tuple[list[HotLane], list[Settlement]]:
    """Return the hot lanes with these settlements' live leases, each once, and the settlements that have none or do not fit."""
    found: dict[HotLane, None] = {}
    left: list[Settlement] = []
    for batch in batches:
        lane = _held(hot, batch)
        if lane is None or not fits(lane, batch):
            left.append(batch)
        else:
            found[lane] = None
    return list(found), left


def start(tx: Tx, hot: Memory, batches: Sequence[Settlement]) -> list[Settlement]:
    """Record that handlers of messages of hot lanes start.

    Returns:
        The settlements that are not of live leases of hot lanes.
    """
    starting: list[tuple[HotLane, int]] = []
    left: list[Settlement] = []
    for batch in batches:
        lane = _held(hot, batch)
        if lane is None or lane.lease is None or not lane.lease.lo <= batch.seqs[0] <= lane.lease.hi:
            left.append(batch)
        else:
            starting.append((lane, batch.seqs[0]))
    _start(tx, hot, starting)
    return left


def _start(tx: Tx, hot: Memory, starting: Iterable[tuple[HotLane, int]]) -> None:
    some: list[tuple[HotLane, int]] = []
    ids = array("q")
    for lane, seq in starting:
        assert lane.lease is not None
        if lane.lease.started < seq:
            row = next((row for row in lane.rows[: lane.lease.pending] if row[SEQ] == seq), None)
            if row is not None:
                some.append((lane, seq))
                ids.append(row[ID])
    if some:
        _note(tx, hot, START, ids)
        hot.start(some)


def _held(hot: Memory, batch: Settlement) -> HotLane | None:
    """Return the hot lane of a settlement, if its token is live there."""
    lane = hot.lanes.get(batch.key)
    if lane is None or lane.lease is None or lane.lease.claim.token != batch.token:
        return None
    return lane


def _unresolved(lane: HotLane, lease: HotLease, seqs: Sequence[int], known: Sequence[Row] | None) -> list[Row] | None:
    """Return the rows of these seqs if the lane's lease holds all of them unresolved, else None."""
    n = lease.pending
    rows = lane.rows
    if known is None and len(seqs) <= n and rows[len(seqs) - 1][SEQ] == seqs[-1] and rows[0][SEQ] == seqs[0]:
        first = rows[: len(seqs)]
        if seqs[-1] - seqs[0] + 1 == len(seqs) or all(row[SEQ] == seq for row, seq in zip(first, seqs, strict=True)):
            return first
    wanted = set(seqs)
    if known is not None and not wanted.isdisjoint(row[SEQ] for row in known):
        return None
    found = [row for row in rows[:n] if row[SEQ] in wanted]
    return found if len(found) == len(seqs) == len(wanted) else None


def _note(tx: Tx, hot: Memory, kind: int, ids: array[int], claim: Claim | None = None, *, deadline: int = 0) -> None:
    """Write a row of the journal."""
    hot.unsure = True
    hot.seen += 1
    count = len(ids)
    token, deadline, before, charged, consumer = (
        (0, deadline, 0, False, None)
        if claim is None
        else (claim.token, claim.deadline, claim.before, claim.charged, claim.consumer)
    )
    tx.run(
        HOT.insert_event,
        (hot.seen, kind, tx.now, hot.top, count, token, deadline, before, charged, consumer, ids.tobytes()),
    )
    tx.hot_changes += 1
    hot.note((hot.seen, kind, tx.now, count, max(ids)), tx.totals)
