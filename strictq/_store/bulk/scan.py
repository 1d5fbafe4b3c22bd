"""Read a shard's messages without leasing them, while consumers work on it.

A scan is planned once and read in steps, each a short read transaction. It is bounded by the newest arrival at the plan. A step
continues after the last message of the previous one, in lane order, which messages keep while they are pending. So no message is
read twice, and none that stays is missed. One kind moves: a keyless message that is parked in a lane of its own. So a keyless
lane is read together with what left it since the plan, by ranges of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, TypeVar

import apsw
import attrs

from ... import _hints as hints
from ..._errors import InvalidArgument, StoreCorrupt, StoreError
from ..._keys import ASIDE
from ..._sql import CLAIM, HOT, LANES, SCAN, choose
from ..commit.calls import bound
from ..commit.tx import NEVER, Totals
from ..hot.memory import newest_of
from ..lanes.leases import BODY, ID, KEY, LANE, SEQ, Row
from ..shard import Shard
from . import packing
from .columns import MessageRange, PackedColumns, Runs

T = TypeVar("T")

STEP: Final = 2_000
STEP_BYTES: Final = 16 * 1024 * 1024
PACKED_STEP: Final = 10_000
"""The number of messages in a step that SQLite packs column by column, or fewer than twice as many. None of their bodies is
stored out of line, so they have at most some megabytes."""
DEEP: Final = 30
"""The average number of messages in a lane from which packing each lane separately pays (measured)."""
PAUSE_MAX: Final = 32
"""The maximum number of steps that are read as rows before columns are tried again, after they did not fit."""
WALK_LANES: Final = 10_000
"""Up to this number, lanes are counted one by one for a plan. More are assumed to be equally deep."""


@attrs.frozen
class Segment:
    """Lanes that one task reads: those after `after` up to `last`, or one lane for keyless messages."""

    after: int
    last: int
    keyless: bool = False


COLD: Final = (0, 0, 0)
"""Of a plan whose messages are all in the tables."""


@attrs.frozen
class Plan:
    """A scan of one shard.

    Attributes:
        newest: arrival number of the newest message that belongs to it.
        last_lane: the newest lane.
        tasks: the segments of each task.
        as_of: what `newest_of` returned, if some of its messages are only in the logs of hot lanes, because the queue is open
            read-only. Lanes without a row have numbers that hold for this state alone. COLD: every message is in the tables.
    """

    newest: int
    last_lane: int
    tasks: tuple[tuple[Segment, ...], ...]
    as_of: tuple[int, int, int] = COLD


def plan(db: apsw.Connection, *, dead: bool, per_task: int) -> Plan:
    """Plan to read what is pending (or dead) now, in tasks of about this many messages. A lane belongs to one task."""
    totals = Totals.read(db)
    messages = totals.dead if dead else totals.pending
    if not messages:
        return Plan(totals.last_id, totals.last_lane, ())
    # Tasks of one size: a last task with few messages would cost as much to start as any.
    parts = max(1, round(messages / per_task))
    per_task = -(-messages // parts)
    apart: list[Any] = [] if dead else db.execute(SCAN.keyless).fetchall()
    keyless = {lane for (lane,) in apart}
    if dead or totals.lanes > WALK_LANES:
        size = -(-totals.last_lane // parts)
        cuts = [*range(size, totals.last_lane, size), totals.last_lane]
    else:
        cuts = list(_cuts(db, totals.last_lane, per_task))
    tasks: list[tuple[Segment, ...]] = []
    after = 0
    for cut in cuts:
        tasks.append(tuple(_segments(after, cut, keyless)))
        after = cut
    return Plan(totals.last_id, totals.last_lane, tuple(tasks))


def _cuts(db: apsw.Connection, last_lane: int, per_task: int) -> Iterator[int]:
    """Yield the last lanes of tasks, by counting messages."""
    n = 0
    rows: list[Any] = db.execute(SCAN.lanes_to, (0, WALK_LANES)).fetchall()
    for lane, depth in rows:
        n += depth
        if n >= per_task and lane < last_lane:
            yield lane
            n = 0
    yield last_lane


def _segments(after: int, last: int, keyless: set[int]) -> Iterator[Segment]:
    for lane in sorted(lane for lane in keyless if after < lane <= last):
        if lane - 1 > after:
            yield Segment(after, lane - 1)
        yield Segment(lane - 1, lane, keyless=True)
        after = lane
    if last > after:
        yield Segment(after, last)


def pending(shard: Shard, plan: Plan, segment: Segment) -> Iterator[list[Row]]:
    """Yield the messages of a segment in steps, as rows of a claim with their bodies."""
    if segment.keyless:
        return _keyless(shard, plan, segment.last)
    return _walk(shard, SCAN.messages, plan, segment)


def columns(
    shard: Shard, plan: Plan, segment: Segment, wanted: Collection[str], runs: Runs
) -> Iterator[PackedColumns | list[Row]]:
    """Yield what `pending` yields, as columns where the messages permit it. That costs a third of making rows of them in Python.

    Args:
        wanted: of key, seq, id, sent_at, attempts, headers, body. Rows have all of them.
        runs: parses many numbers. Callers have faster ways than Python's.
    """
    if segment.keyless:
        yield from _keyless(shard, plan, segment.last)
        return
    columns = _Columns(shard.number, plan, segment, wanted, runs)
    pause, paused = 1, 0
    while not columns.whole:
        found = None if paused else _look(shard, plan, columns.step)
        if found is not None:
            pause = 1
            if found.messages:
                yield found
            continue
        if paused:
            paused -= 1
        else:
            paused, pause = pause, min(2 * pause, PAUSE_MAX)
        rows, columns.whole = _look(shard, plan, bound(_step, SCAN.messages, (*columns.at, segment.last, plan.newest, STEP)))
        if rows:
            yield rows
            columns.at = rows[-1][LANE], rows[-1][SEQ]


class _Columns:
    """The position of a reading of columns, and its next step: lane by lane if lanes are deep, else across lanes.

    Attributes:
        at: the lane and seq after which the next step begins.
        whole: there is nothing more.
    """

    def __init__(self, shard: int, plan: Plan, segment: Segment, wanted: Collection[str], runs: Runs) -> None:
        self.at = segment.after, NEVER
        self.whole = False
        self._deep = True
        self._many_lanes: bool | None = None
        self._shard = shard
        self._bounds = segment.last, plan.newest, PACKED_STEP
        self._wanted = wanted
        self._runs = runs
        self._by_lane = choose(SCAN.deep, wanted)
        self._packed = choose(SCAN.packed, wanted)

    def step(self, db: apsw.Connection) -> PackedColumns | None:
        """Read the next step. Return None if it has to be read as rows."""
        if self._many_lanes is None:
            totals = Totals.read(db)
            # Empty lanes are walked over, too, so there must be few of them compared to the messages.
            self._many_lanes = totals.pending < DEEP * totals.lanes
        found = self._lanes(db) if self._deep and not self._many_lanes else self._messages(db)
        if found is not None:
            self._deep = packing.pays(len(found.depths), found.messages, DEEP)
        return found

    def _lanes(self, db: apsw.Connection) -> PackedColumns | None:
        keys: list[bytes] = []
        depths: list[int] = []
        columns: list[list[Any]] = []
        count, plain = 0, True
        rows = db.execute(self._by_lane, (*self.at, *self._bounds))
        try:
            for lane, key, depth, first, tail, headed, tried, *values in rows:
                plain = self._is_plain(depth, headed, tried, values[3])
                if not plain:
                    break
                if key is not None:
                    keys.append(key)
                depths.append(depth)
                columns.append(values)
                count += depth
                more = tail >= first + PACKED_STEP
                self.at = lane, first + PACKED_STEP - 1 if more else NEVER
                if more or count >= PACKED_STEP or not packing.pays(len(depths), count, DEEP):
                    break
            else:
                self.whole = True
        finally:
            rows.close(True)
        if not plain and not depths:
            return None
        *texts, bodies = zip(*columns, strict=True) if columns else ((),) * 5
        seqs, ids, sent_at, sizes = (",".join(text) if None not in text else "" for text in texts)
        return PackedColumns(self._shard, count, keys, depths, seqs, ids, sent_at, sizes, b"".join(filter(None, bodies)))

    def _messages(self, db: apsw.Connection) -> PackedColumns | None:
        found: Any = db.execute(self._packed, (*self.at, *self._bounds)).get
        headed, tried, lane_text, seqs, ids, sent_at, sizes, bodies = found
        if lane_text is None:
            self.whole = True
            return PackedColumns(self._shard, 0, [], [], "", "", "", "", b"")
        count = lane_text.count(",") + 1
        if not self._is_plain(count, headed, tried, sizes):
            return None
        lanes, depths = self._runs(lane_text, count)
        if any(lane >= following for lane, following in pairwise(lanes)):
            raise StoreCorrupt("messages that were read column by column are out of order", shard=self._shard)
        keys: list[Any] = []
        if "key" in self._wanted:
            keys = [key for (key,) in db.executemany(SCAN.key, [(lane,) for lane in lanes])]
        self.at, self.whole = (lanes[-1], int(seqs[seqs.rfind(",") + 1 :])), count < PACKED_STEP
        return PackedColumns(self._shard, count, keys, depths, seqs, ids or "", sent_at or "", sizes or "", bodies or b"")

    def _is_plain(self, count: int, headed: int | None, tried: int | None, sizes: str | None) -> bool:
        """Return whether columns suffice for this many messages. If a body is stored out of line, there are fewer sizes."""
        if headed or tried:
            return False
        return "body" not in self._wanted or (sizes is not None and sizes.count(",") + 1 == count)


def dead(shard: Shard, plan: Plan, segment: Segment) -> Iterator[list[Row]]:
    """Yield the dead letters of a segment in the same way, followed by kind, reason and time of death."""
    return _walk(shard, SCAN.dead, plan, segment)


def _walk(shard: Shard, statement: str, plan: Plan, segment: Segment) -> Iterator[list[Row]]:
    lane, seq = segment.after, NEVER
    while True:
        rows, whole = _look(shard, plan, bound(_step, statement, (lane, seq, segment.last, plan.newest, STEP)))
        if rows:
            yield rows
            lane, seq = rows[-1][LANE], rows[-1][SEQ]
        if whole:
            return


def _look(shard: Shard, plan: Plan, step: Callable[[apsw.Connection], T]) -> T:
    """Run a step of a plan in a read transaction.

    Raises:
        StoreError: the plan needs the logs of hot lanes, and another process has changed them since.
    """
    if plan.as_of == COLD:
        return shard.look(step, hot=False)

    def unchanged(db: apsw.Connection) -> T:
        if newest_of(db) != plan.as_of:
            raise StoreError(
                "its newest messages are in the logs of hot lanes, which changed while they were read",
                shard=shard.number,
                hint=hints.OPEN_WRITABLE,
            )
        return step(db)

    return shard.look(unchanged, hot=True)


def _step(db: apsw.Connection, statement: str, values: tuple[int, ...]) -> tuple[list[Row], bool]:
    """Return rows with their bodies, fewer if those are large, and whether there are no more."""
    found: list[Row] = db.execute(statement, values).fetchall()
    rows = _with_bodies(db, found)
    return rows, len(rows) == len(found) < values[-1]


def _with_bodies(db: apsw.Connection, rows: list[Row]) -> list[Row]:
    """Fetch the bodies that are stored out of line, up to the limit of one step."""
    if all(row[BODY] is not None for row in rows):
        return rows
    out: list[Row] = []
    size = 0
    for row in rows:
        if row[BODY] is None:
            data: Any = db.execute(CLAIM.body, (row[ID],)).get
            row = (*row[:BODY], data, *row[BODY + 1 :])
        out.append(row)
        size += len(row[BODY])
        if size > STEP_BYTES:
            break
    return out


def _keyless(shard: Shard, plan: Plan, lane: int) -> Iterator[list[Row]]:
    """Yield one keyless lane, and what left it since the plan. Each step has one range of arrivals, wherever they are now."""
    seq, seen = 0, 0

    def step(db: apsw.Connection) -> tuple[list[Row], list[Row], bool]:
        key: Any = db.execute(SCAN.key, (lane,)).get
        if key is None:
            return [], [], True
        rows, whole = _step(db, SCAN.messages, (lane, seq, lane, plan.newest, STEP))
        upto = plan.newest if whole else rows[-1][ID]
        moved: list[Row] = db.execute(
            SCAN.set_aside, (key + ASIDE, key + bytes([ASIDE[0] + 1]), plan.last_lane, seen, upto)
        ).fetchall()
        parent = [(*row[:KEY], key, lane, *row[LANE + 1 :]) for row in moved]
        return rows, [_with_bodies(db, [row])[0] for row in parent], whole

    whole = False
    while not whole:
        rows, moved, whole = _look(shard, plan, step)
        if rows or moved:
            yield sorted(rows + moved, key=itemgetter(ID)) if moved else rows
        if rows:
            seq, seen = rows[-1][SEQ], rows[-1][ID]


def plan_keys(db: apsw.Connection, keys: Collection[bytes]) -> Plan:
    """Plan to read what is pending (or dead) of these keys now: one task, with a segment for each key's lane."""
    totals = Totals.read(db)
    found = [db.execute(LANES.by_key, (key,)).get for key in keys]
    segments = tuple(Segment(lane - 1, lane) for lane in sorted(lane for lane in found if lane is not None))
    return Plan(totals.last_id, totals.last_lane, (segments,) if segments else ())


def plan_shard(shard: Shard, *, dead: bool, per_task: int) -> Plan:
    """Run `plan` in a short read transaction. Pending messages are then in the tables until resolved, unless the plan is hot."""
    return _planned_by(shard, lambda db: plan(db, dead=dead, per_task=per_task), dead=dead)


def _planned_by(shard: Shard, look: Callable[[apsw.Connection], Plan], *, dead: bool) -> Plan:
    """Move hot lanes to the tables before the plan. If the queue is open read-only, let the readers look into their logs."""
    if dead or not shard.read_only:
        if not dead:
            shard.cool()
        return shard.look(look, hot=False)

    def with_logs(db: apsw.Connection) -> Plan:
        found = look(db)
        is_hot = db.execute(HOT.are_shown).get and db.execute(HOT.any_shown).get
        return attrs.evolve(found, as_of=newest_of(db)) if is_hot else found

    return shard.look(with_logs, hot=True)


def ranges(shard: Shard, *, dead: bool, per_task: int, keys: Collection[bytes] | None = None) -> list[MessageRange]:
    """Return a plan as ranges for readers, one for each task.

    Args:
        keys: only the messages of these keys of the shard; None: all.
    """
    if keys is None:
        found = plan_shard(shard, dead=dead, per_task=per_task)
    else:
        found = _planned_by(shard, bound(plan_keys, keys), dead=dead)
    return [
        MessageRange(
            shard.number,
            dead,
            (found.newest, found.last_lane, *found.as_of, *(n for s in task for n in (s.after, s.last, int(s.keyless)))),
        )
        for task in found.tasks
    ]


def planned(part: MessageRange) -> tuple[Plan, list[Segment]]:
    """Return the plan and the segments of a range.

    Raises:
        InvalidArgument: it is not a range of `ranges`.
    """
    if len(part.place) < 5 or len(part.place) % 3 != 2:
        raise InvalidArgument("this is no range of messages that a queue has planned")
    newest, last_lane, seen, top, gate, *numbers = part.place
    segments = [Segment(after, last, bool(keyless)) for after, last, keyless in zip(*[iter(numbers)] * 3, strict=True)]
    return Plan(newest, last_lane, (), (seen, top, gate)), segments


def read(shard: Shard, part: MessageRange, wanted: Collection[str], runs: Runs) -> Iterator[PackedColumns | list[Row]]:
    """Yield the messages of a range that still exist, in steps."""
    plan, segments = planned(part)
    for segment in segments:
        yield from dead(shard, plan, segment) if part.dead else columns(shard, plan, segment, wanted, runs)
