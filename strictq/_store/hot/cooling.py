"""Cooling: the contents of hot lanes move to the tables of `lanes/`, and their rows are deleted from the logs.

A lane cools when an operation needs what only those tables have (`cool`), or when its oldest row in the inbox is old (`fold`). A
row of the journal records that for every other process's memory, in the same transaction.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from ..._sql import HOT, LANES, repeated
from ..commit.tx import Tx, insert_rows
from ..onelane.leases import ID
from .journal import COOL, ENTRY_HI, ENTRY_ID, encoded_keys
from .lane import DONE_LOW, HotLane
from .memory import Memory

WINDOW: Final = 12_288
"""The number of rows in the inbox beyond which lanes cool."""
STEP: Final = 1_024
"""The number of rows of the inbox that one transaction folds, unless it adds more."""
SLICES: Final = 8
"""The number of steps that are folded together. Each has a transaction of its own, which updates neighbouring rows."""
EVENTS_MAX: Final = 8 * WINDOW
"""The number of rows in the journal beyond which every lane cools."""
TAILS_MAX: Final = 131_072
"""The number of lanes that cooled empty whose last seq memory keeps, so that a send need not look for them."""
LANE_ROWS_MAX: Final = 4_096
"""A lane with more unresolved messages is a backlog, and cools."""
_NUMBER_OF: Final = attrgetter("number")
_IDS: Final = repeated(HOT.lanes_of, 64, 16, 4, 1)
_NEW: Final = repeated(LANES.insert, 64, 16, 4, 1)
_READY: Final = repeated(LANES.add_ready, 64, 16, 4, 1)
_MESSAGES: Final = repeated(HOT.insert_message, 64, 16, 4, 1)


def cool(tx: Tx, some: Iterable[HotLane]) -> None:
    """Move some hot lanes to the tables, with their messages and leases as they are."""
    assert tx.hot is not None
    _cool(tx, tx.hot, list(some), 0)


def cool_key(tx: Tx, key: bytes) -> None:
    """Move the lane of this key to the tables, if it is hot. Must precede every write to the row of a lane."""
    hot = tx.hot
    if hot is not None:
        if (lane := hot.lanes.get(key)) is not None:
            _cool(tx, hot, [lane], 0)
        hot.tails.pop(key, None)


def forget_rows(tx: Tx) -> None:
    """Forget row numbers in memory: rows of lanes were deleted."""
    if tx.hot is not None:
        tx.hot.forget_numbers()


def cool_lane(tx: Tx, lane: int) -> None:
    """Do the same for the lane with this id."""
    if tx.hot is not None and tx.hot.lanes and (row := tx.run(LANES.get, (lane,)).get) is not None:
        cool_key(tx, row[1])


def cool_all(tx: Tx) -> None:
    """Move every hot lane to the tables, and empty the logs."""
    if tx.hot is not None and (tx.hot.ids or tx.hot.lanes):
        _cool(tx, tx.hot, list(tx.hot.lanes.values()), tx.hot.top)


def cool_some(tx: Tx) -> bool:
    """Take a bounded step towards `cool_all`. Return whether no lane is hot any more."""
    hot = tx.hot
    if hot is not None and hot.lanes:
        if len(hot.ids) > STEP:
            _cool_to(tx, hot, hot.ids[STEP - 1], STEP)
        else:
            cool_all(tx)
    return hot is None or not hot.lanes


def cut(tx: Tx) -> None:
    """Delete the rows that no lane needs: on a full disk, they take the room of new messages."""
    hot = tx.hot
    if hot is not None and hot.ids:
        needed = min((lane.low for lane in hot.lanes.values() if lane.rows), default=hot.top + 1)
        n = bisect_left(hot.ids, needed)
        if n >= STEP or n == len(hot.ids):
            _cool_to(tx, hot, needed - 1, n)


def fold(tx: Tx) -> None:
    """Cool the lanes with the oldest rows, and delete rows that no lane needs, in one bounded step.

    Does nothing if the logs are short.
    """
    hot = tx.hot
    if hot is None:
        return
    if len(hot.events) > EVENTS_MAX:
        cool_all(tx)
        return
    over = len(hot.ids) - WINDOW
    due = (SLICES + hot.slices) * STEP
    if over < due:
        return
    if not hot.slices:
        hot.sweep_to = hot.ids[over - 1]
        leaving = [lane for lane in hot.owners(over) if lane.low <= hot.sweep_to]
        hot.deep = 2 * sum(len(lane.rows) for lane in leaving) > over
        hot.sweep = sorted(leaving, key=_NUMBER_OF, reverse=True)
    hot.slices += 1
    part: list[HotLane] = []
    left = STEP + over - due
    while hot.sweep and left > 0:
        lane = hot.sweep.pop()
        if not lane.gone and lane.low <= hot.sweep_to:
            part.append(lane)
            left -= 1 + len(lane.rows)
    if hot.sweep and hot.slices < SLICES:
        _cool(tx, hot, part, 0)
    else:  # the last slice also cuts the logs
        deep = hot.deep
        _cool_to(tx, hot, hot.sweep_to, bisect_right(hot.ids, hot.sweep_to))
        hot.deep = deep


def is_fold_due(hot: Memory) -> bool:
    """Return whether `fold` has work to do."""
    return len(hot.ids) - WINDOW >= (SLICES + hot.slices) * STEP or len(hot.events) > EVENTS_MAX


def _cool_to(tx: Tx, hot: Memory, upto: int, count: int) -> None:
    owners = hot.owners(count)
    leaving: list[HotLane] = []
    known: list[HotLane] = []
    for lane in owners:
        if lane.low <= upto:
            leaving.append(lane)
        elif lane.done is not None and lane.done[DONE_LOW] <= upto:
            known.append(lane)  # the lane stays hot, and its row keeps its last acks, for a retried call
    if known:
        hot.unsure = True
        _number(tx, known)
        tx.many(HOT.write_acks, [lane.acks_row(lane.number) for lane in known])
    hot.deep = 2 * sum(len(lane.rows) for lane in leaving) > count
    _cool(tx, hot, leaving, upto, known)


def number(tx: Tx, lane: HotLane) -> int:
    """Return the id of the row of a lane that stays hot. The row is created if there is none."""
    assert tx.hot is not None
    tx.hot.unsure = True  # the id becomes unknown if this is rolled back
    _number(tx, [lane])
    return lane.number


def _cool(tx: Tx, hot: Memory, leaving: Sequence[HotLane], upto: int, known: Sequence[HotLane] = ()) -> None:
    """Write the contents of lanes to the tables, and remove them from the logs.

    Args:
        upto: rows of the inbox up to here are deleted: no other lane needs them.
        known: lanes that stay hot, and whose last acks are in their rows now.
    """
    if not leaving and not upto:
        return
    hot.unsure = True
    _number(tx, leaving)
    _write(tx, hot, sorted(leaving, key=_NUMBER_OF))
    keys = [lane.key for lane in leaving if lane.touched > upto]
    kept = [lane.key for lane in known]
    hot.seen += 1
    tx.run(HOT.insert_event, (hot.seen, COOL, tx.now, hot.top, len(keys), 0, upto, 0, 0, None, encoded_keys([*keys, *kept])))
    hot.events.append((hot.seen, COOL, tx.now, 0, hot.top if keys or kept else upto))
    hot.cool(keys, upto, kept)
    if upto:
        tx.run(HOT.cut_inbox, (upto,))
        cut = 0
        while len(hot.events) > 1 and hot.events[0][ENTRY_HI] <= upto:
            cut = hot.events.popleft()[ENTRY_ID]
        if cut:
            tx.run(HOT.cut_journal, (cut,))
    tx.dirty = True  # the counter row includes what was deleted


def _number(tx: Tx, leaving: Sequence[HotLane]) -> None:
    """Find the ids of lanes. Rows of `lane` are created where there are none."""
    unknown = {lane.key: lane for lane in leaving if not lane.number}
    keys = sorted(unknown)
    at, left = 0, len(keys)
    for n, statement in _IDS.items():
        while left >= n:
            for key, number in tx.run(statement, keys[at : at + n]):
                unknown.pop(key).number = number
            at += n
            left -= n
    if unknown:
        first = tx.totals.last_lane + 1
        new = [unknown[key] for key in keys if key in unknown]
        for n, lane in enumerate(new):
            lane.number = first + n
        insert_rows(tx, _NEW, [(lane.number, lane.key, 0, 0, tx.now) for lane in new])
        tx.totals.last_lane += len(new)
        tx.totals.lanes += len(new)


def _write(tx: Tx, hot: Memory, leaving: Sequence[HotLane]) -> None:
    """Write what lanes hold. They are in the order of their ids."""
    tails = {lane.key: lane.tail for lane in leaving if not lane.rows and lane.lease is None}
    if len(tails) < len(leaving):
        insert_rows(tx, _MESSAGES, [row for lane in leaving for row in lane.message_rows(lane.number)])
    tx.many(HOT.write_lane, [lane.lane_row(lane.number) for lane in leaving])
    if len(tails) < len(leaving):
        if leases := [row for lane in leaving if (row := lane.lease_row(lane.number)) is not None]:
            tx.many(HOT.insert_lease, leases)
            tx.totals.next_deadline = min(tx.totals.next_deadline, *(row[-1] for row in leases))
        insert_rows(tx, _READY, [(lane.rows[0][ID], lane.number, 0) for lane in leaving if lane.rows and lane.lease is None])
    hot.tails.update(tails)
    if len(hot.tails) > TAILS_MAX:
        for key in list(islice(hot.tails, TAILS_MAX // 4)):
            del hot.tails[key]
