"""Read-only reports on a shard. Every function runs in one read transaction."""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw
import attrs

from ... import _hints as hints
from ..._clock import QueueTime
from ..._config import QueueConfig
from ..._errors import UnknownMessage
from ..._keys import ASIDE, KEYLESS, decode_key, is_keyless
from ..._sql import CLAIM, HANDOUT, HOT, INSPECT, LANES, SHARD
from ..._stats import ShardStats
from ..._types import State
from ..commit.tx import NEVER, RARE, SECOND, Totals, decayed_rate
from ..disk.stored import present
from ..lane.totals import RunningTotals
from ..onelane import counting, looking
from ..onelane.looking import ViewOfLane
from ..onelane.shard_lanes import ShardLanes
from ..topology import Range
from . import failures
from .headers import headers as stored_headers
from .lanes import Lane, LeaseRow
from .leases import BODY, EXPIRES, HEADERS, ID, SENT_AT, SEQ
from .retries import span

if TYPE_CHECKING:
    from ..._findings import AttemptError, Explanation, KeyDepth, MessageStatus, PeekedMessage
    from ..hot.lane import HotLane
    from ..hot.memory import Figures

AGES_OVER: Final = 10_000
"""The number of lanes in one state whose heads are read for ages."""


_SEQ_OF: Final = itemgetter(SEQ)
AFTER_ASIDES: Final = bytes([ASIDE[0] + 1])
"""Appended to the key of a lane for keyless messages, it sorts after the keys of all lanes with a single message of it."""


class _View(looking.ViewOfLane):
    """A lane of the tables of format 2."""

    def __init__(self, db: apsw.Connection, lane: int, now: int) -> None:
        self.db = db
        self.now = now
        self._take(Lane._make(present(db.execute(LANES.get, (lane,)).get, "the row of a lane")))
        row = db.execute(LANES.lease, (lane,)).get
        self.last_lease = None if row is None else _lease(LeaseRow._make(row))
        self.due = db.execute(INSPECT.delayed, (lane,)).get
        self.tail = max(db.execute(LANES.tail, (lane,)).get or 0, self._lane.last_seq)
        self.depth = self.tail - self._lane.resolved

    def _take(self, lane: Lane) -> None:
        self._lane = lane
        self.key, self.hold, self.held_at, self.solo = lane.key, lane.hold, lane.held_at, lane.solo_to

    def messages(self, first: int, limit: int) -> Sequence[looking.Message]:
        return [row[:8] for row in self._peeked(first, limit)]

    def _peeked(self, first: int, limit: int) -> Iterable[tuple[Any, ...]]:
        """Return the first messages from a seq on, with the columns of INSPECT.peek."""
        return self.db.execute(INSPECT.peek, (self._lane.id, first, limit))

    def head(self) -> looking.HeadOfLane | None:
        for seq, _, _, _, attempts, sent_at, _, _, error, crashed, first_at in self._peeked(0, 1):
            return looking.HeadOfLane(seq, sent_at, attempts, error, crashed, first_at)
        return None

    def message(self, seq: int) -> tuple[int, int | None, str | None, str | None, str | None] | None:
        row: Any = self.db.execute(INSPECT.message, (self._lane.id, seq)).get
        found: tuple[int, int | None, str | None, str | None, str | None] | None = row
        return found

    def dead(self, seq: int) -> tuple[int, str | None, str | None, str | None] | None:
        row: tuple[int, str | None, str | None, str | None] | None = self.db.execute(INSPECT.dead, (self._lane.id, seq)).get
        return row

    def dead_count(self) -> int:
        n: int = self.db.execute(INSPECT.dead_count, (self._lane.id,)).get
        return n

    def was_postponed(self, seq: int) -> bool:
        return (self._lane.done_kind, self._lane.done_lo) == ("nack", seq)


def _lease(row: LeaseRow) -> looking.LeaseOfLane:
    return looking.LeaseOfLane(
        row.lo, row.hi, row.started, row.consumer, row.token, row.leased_at, row.deadline, bool(row.ack_first), bool(row.expired)
    )


class _HotView(_View):
    """A hot lane. It has no delay, and its messages have no attempts, errors or outputs."""

    def __init__(self, db: apsw.Connection, hot: HotLane, now: int) -> None:
        self.db = db
        self.now = now
        number = db.execute(LANES.by_key, (hot.key,)).get or 0
        row = db.execute(LANES.get, (number,)).get or (0, hot.key, 0, 0, 0, 0, None, None, 0, None, None, None, None, None)
        self._take(Lane._make(row))
        lease = hot.lease_row(number)
        self.last_lease = None if lease is None else _lease(LeaseRow(*lease, expired=0, ack_first=0, redrive=0, closed=0))
        self.due = None
        self.tail = hot.seq
        self.depth = len(hot.rows)
        self._rows = hot.rows

    def _from(self, seq: int) -> int:
        return bisect_left(self._rows, seq, key=_SEQ_OF)

    def _peeked(self, first: int, limit: int) -> Iterable[tuple[Any, ...]]:
        at = self._from(first)
        return [
            (
                row[SEQ], row[ID], self.db.execute(CLAIM.body, (row[ID],)).get if row[BODY] is None else row[BODY], row[HEADERS],
                0, row[SENT_AT], None, row[EXPIRES], None, 0, None,
            )
            for row in self._rows[at : at + limit]
        ]  # fmt: skip

    def message(self, seq: int) -> tuple[int, int | None, str | None, str | None, str | None] | None:
        found = self._rows[self._from(seq) :][:1]
        return (0, None, None, None, None) if found and found[0][SEQ] == seq else None


def view(db: apsw.Connection, hot: HotLane | None, key: bytes, now: int) -> ViewOfLane | None:
    """Return the lane of a key, in a shard of format 2. None: nothing was ever sent to it."""
    if hot is not None:
        return _HotView(db, hot, now)
    lane = db.execute(LANES.by_key, (key,)).get
    return None if lane is None else _View(db, lane, now)


def keyless(db: apsw.Connection, hot: HotLane | None, arrival: int, now: int, shard: int) -> tuple[ViewOfLane, int] | None:
    """Return lane and seq of a keyless message that is unresolved or dead, in a shard of format 2.

    Args:
        hot: the hot lane that it was sent to.
    Raises:
        UnknownMessage: the number was never issued.
    """
    if not 1 <= arrival <= db.execute(HOT.last_id).get:
        raise UnknownMessage(f"shard {shard} has issued no id {arrival}")
    if hot is not None and is_keyless(hot.key):
        seqs = [row[SEQ] for row in hot.rows if row[ID] == arrival]
        if seqs:
            return _HotView(db, hot, now), seqs[0]
    found = find_keyless(db, INSPECT.next_message, arrival) or find_keyless(db, INSPECT.next_dead, arrival)
    return None if found is None else (_View(db, found[0], now), found[1])


def peek_oldest(db: apsw.Connection, limit: int, time: QueueTime, shard: int) -> list[PeekedMessage]:
    """Return the oldest messages of the first lanes of each state. A lane's messages are in its order."""
    heads = {lane: (arrival, lane, seq) for lane, seq, arrival in db.execute(INSPECT.heads, (AGES_OVER,))}
    waiting = list(heads.values())
    heapq.heapify(waiting)
    views: dict[int, _View] = {}
    found: list[PeekedMessage] = []
    while waiting and len(found) < limit:
        _, lane, seq = waiting[0]
        if lane not in views:
            views[lane] = _View(db, lane, time.now())
        found += peeked(views[lane], seq, 1, time, shard)
        following = db.execute(INSPECT.next_message, (lane, seq + 1)).get
        if following is None:
            heapq.heappop(waiting)
        else:
            heapq.heapreplace(waiting, (following[1], lane, following[0]))
    return found


def find_keyless(db: apsw.Connection, following: str, arrival: int) -> tuple[int, int] | None:
    """Return lane and seq of the keyless message with an arrival number. Costs a few seeks per lane for keyless messages.

    Arrival numbers ascend in a lane, so it is found by bisection. A message in a lane of its own has the number in the lane's
    key.

    Args:
        following: INSPECT.next_message or next_dead.
    """
    behind = KEYLESS
    while (key := db.execute(INSPECT.next_keyless, (behind,)).get) is not None:
        base = key.split(ASIDE)[0]
        behind = base + AFTER_ASIDES
        for each in (base, base + ASIDE + b"%d" % arrival):
            lane = db.execute(LANES.by_key, (each,)).get
            seq = None if lane is None else _seq_of(db, following, lane, arrival)
            if seq is not None:
                return lane, seq
    return None


def _seq_of(db: apsw.Connection, following: str, lane: int, arrival: int) -> int | None:
    """Return the seq of a lane's message with an arrival number."""
    row = db.execute(following, (lane, 1)).get
    if row is None or row[1] > arrival:
        return None
    lowest, highest = row[0], _View(db, lane, 0).tail
    while lowest <= highest:
        middle = (lowest + highest) // 2
        row = db.execute(following, (lane, middle)).get
        if row is not None and row[1] == arrival:
            seq: int = row[0]
            return seq
        if row is None or row[1] > arrival:
            highest = middle - 1
        else:
            lowest = row[0] + 1
    return None


def peeked(view: ViewOfLane, first: int, limit: int, time: QueueTime, shard: int) -> list[PeekedMessage]:
    """Return the first messages of a lane from a seq on."""
    from ..._findings import PeekedMessage

    return [
        PeekedMessage(
            key=decode_key(view.key), seq=seq, id=i, body=body, headers=stored_headers(headers, shard),
            state=view.state_of(seq, due), attempts=view.attempts(seq, attempts), enqueued_at=time.to_wall(sent_at),
            due_at=None if due is None else time.to_wall(due), expires_at=None if expires is None else time.to_wall(expires),
        )
        for seq, i, body, headers, attempts, sent_at, due, expires in view.messages(first, limit)
    ]  # fmt: skip


def status(view: ViewOfLane | None, key: bytes, seq: int, time: QueueTime) -> MessageStatus:
    """Return the status of one message.

    Raises:
        UnknownMessage: that seq was never issued.
    """
    if view is None or not 1 <= seq <= view.tail:
        raise UnknownMessage(f"key {decode_key(key)!r} has no message with seq {seq}")
    return status_in(view, seq, time)


def status_in(view: ViewOfLane, seq: int, time: QueueTime) -> MessageStatus:
    """Return the status of a message of a lane."""
    from ..._findings import MessageStatus

    shown: Any = decode_key(view.key)
    row = view.message(seq)
    if row is not None:
        attempts, due, error, output, errors = row
        state = view.state_of(seq, due)
        lease = view.lease if state == "in_flight" else None
        until = _end(lease) if lease else due if state == "delayed" and due is not None else None
        return MessageStatus(
            shown, seq, state, view.attempts(seq, attempts), lease.consumer if lease else None,
            None if until is None else time.to_wall(until), error, output, failures.shown(errors, time),
        )  # fmt: skip
    dead = view.dead(seq)
    if dead is not None:
        attempts, reason, output, errors = dead
        return MessageStatus(
            shown, seq, "dead", attempts, last_error=reason, last_output=output, errors=failures.shown(errors, time)
        )
    return MessageStatus(shown, seq, "resolved")


def errors(db: apsw.Connection, key: bytes, seq: int, time: QueueTime) -> tuple[AttemptError, ...]:
    """Return the errors of an unresolved message of a shard of format 2."""
    return failures.shown(db.execute(INSPECT.errors, (key, seq)).get, time)


def errors_in(view: ViewOfLane, seq: int, time: QueueTime) -> tuple[AttemptError, ...]:
    """Return the errors of an unresolved message of a lane."""
    row = view.message(seq)
    return () if row is None else failures.shown(row[4], time)


def explain(view: ViewOfLane | None, key: bytes, time: QueueTime, shard: int, config: QueueConfig) -> Explanation:
    """Return why a lane is, or is not, delivered now."""
    from ..._findings import Explanation

    shown: Any = decode_key(key)
    if view is None:
        return Explanation(shown, "empty", hints.NEVER_SENT, None, 0, 0, 0, None, None, None, None, None, False, shard)
    head = view.head()
    seq, attempts, error = (None, 0, None) if head is None else (head.seq, view.attempts(head.seq, head.attempts), head.error)
    solo = seq is not None and view.solo >= seq
    state: Any = "empty"
    since = until = by = token = None
    text, rest = hints.EMPTY, ""
    filled: dict[str, Any] = {}
    if view.lease is not None:
        lease = view.lease
        state, since, until, by, token = "in_flight", lease.leased_at, _end(lease), lease.consumer, lease.token
        what = f"seq {lease.lo} is" if lease.lo == lease.hi else f"seq {lease.lo} to {lease.hi} are"
        if until is None:
            n = view.db.execute(HANDOUT.handout_of, (by, token)).get
            text, filled = hints.IN_HANDOUT, {"what": what, "n": n, "by": by}
        else:
            text, filled = hints.LEASED, {"what": what, "by": by, "left": _span(lease.deadline - view.now)}
        if view.hold is not None:
            rest = f"; then the lane is held: {view.hold}"
    elif view.hold is not None:
        state, since, by = "held", view.held_at, view.hold
        text, filled = hints.LANE_HELD, {"by": by}
    elif head is not None and view.due is not None and view.due > view.now:
        state, until = "delayed", view.due
        why = _why_delayed(view, head, attempts, config)
        text, filled = hints.DELAYED, {"seq": seq, "left": _span(view.due - view.now), "why": why}
    elif head is not None:
        state, since = "ready", head.sent_at
        text, filled = hints.READY, {"seq": seq}
        if solo:
            rest = ", one message at a time, because a holder of it was lost"
    if error and state != "empty":
        rest += f"; last error: {error}"
    return Explanation(
        shown, state, text.of(**filled, rest=rest), seq, view.depth, view.dead_count(), attempts,
        None if since is None else time.to_wall(since), None if until is None else time.to_wall(until),
        by, token, error, solo, shard,
    )  # fmt: skip


def _why_delayed(view: ViewOfLane, head: looking.HeadOfLane, starts: int, config: QueueConfig) -> str:
    first_at = head.first_at
    if starts == head.crashed:
        return "it was postponed" if view.was_postponed(head.seq) else "it was sent with a delay"
    failed = starts - head.crashed
    why = "it failed once" if failed == 1 else f"it failed {failed:,} times"
    if first_at is None:
        return why
    why += f" in {span(view.now - first_at)}"
    left = first_at + int(config.retry_for_seconds * SECOND) - view.now
    if config.max_attempts is not None and config.retry_for_seconds and left > 0:
        why += f"; it is not given up in the next {span(left)}"
    return why


def _end(lease: looking.LeaseOfLane) -> int | None:
    """Return when a lease ends by itself. None: it belongs to a batch, and does not."""
    return None if lease.deadline == NEVER else lease.deadline


def _span(microseconds: int) -> str:
    seconds = microseconds / SECOND
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def waiting(db: apsw.Connection, now: int) -> tuple[int, int | None]:
    """Return the number of ready messages, as in `stats`, and when the oldest head of their lanes was sent."""
    apart: int = sum(db.execute(sql, (now,)).get for sql in (INSPECT.in_flight, INSPECT.in_delayed, INSPECT.in_held))
    ready = db.execute(INSPECT.oldest_ready, (AGES_OVER,)).get
    over = db.execute(INSPECT.oldest_over, (now, AGES_OVER)).get
    return Totals.read(db).pending - apart, min((at for at in (ready, over) if at is not None), default=None)


def stats(
    db: apsw.Connection, hot: Figures | None, part: Range, time: QueueTime, path: Path | None, unwritten_empties: int
) -> ShardStats:
    now = time.now()
    t = Totals.read(db) if hot is None else hot.totals
    in_flight = db.execute(INSPECT.in_flight, (now,)).get + (0 if hot is None else hot.in_flight)
    delayed = db.execute(INSPECT.in_delayed, (now,)).get
    held = db.execute(INSPECT.in_held, (now,)).get
    oldest, unattempted = db.execute(INSPECT.oldest, (AGES_OVER,)).get
    if hot is not None:
        oldest, unattempted = _earlier(oldest, hot.oldest), _earlier(unattempted, hot.unattempted)
    rows: list[Any] = db.execute(SHARD.rare_totals).fetchall()
    rare = dict.fromkeys(RARE, 0) | dict(rows)
    return _stats(db, t, rare, (in_flight, delayed, held, oldest, unattempted), part, now, path, unwritten_empties)


def lane_stats(
    lanes: ShardLanes, part: Range, time: QueueTime, path: Path | None, unwritten_empties: int, most: int | None
) -> ShardStats | None:
    """Return the counts of a shard of format 3.

    Args:
        most: how many lanes at rest to read.
    Returns:
        None: more must be read.
    """
    now, t = time.now(), lanes.memory.totals
    found = counting.figures(lanes, now, most)
    if found is None:
        return None
    t = attrs.evolve(t, pending=t.pending - found.redriving, dead=t.dead + found.redriving, redriven=t.redriven - found.redriving)
    rare = {name: getattr(t, name) for name in RARE}
    figures = (found.in_flight, found.delayed, found.held, found.oldest, found.unattempted)
    return _stats(lanes.db, t, rare, figures, part, now, path, unwritten_empties)


def _stats(
    db: apsw.Connection,
    t: Totals | RunningTotals,
    rare: dict[str, Any],
    figures: tuple[int, int, int, int | None, int | None],
    part: Range,
    now: int,
    path: Path | None,
    unwritten_empties: int,
) -> ShardStats:
    in_flight, delayed, held, oldest, unattempted = figures
    rate = decayed_rate(t, now)
    disk, wal = _sizes(path)
    return ShardStats(
        shard=part.shard, hash_lo=part.bounds[0], hash_hi=part.bounds[1],
        ready=t.pending - in_flight - delayed - held, in_flight=in_flight, delayed=delayed, held=held, dead=t.dead,
        lanes=t.lanes, oldest_age_seconds=_age(now, oldest), first_attempt_age_seconds=_age(now, unattempted),
        sends=t.sends, receives=t.receives, claims=t.claims, empty_receives=t.empty_receives + unwritten_empties,
        acks=t.acks, retries=t.retries,
        redeliveries=t.redeliveries, expired=t.expired, dropped=t.dropped, purged=t.purged,
        **rare,
        outbox=db.execute(INSPECT.outbox).get,
        drain_seconds=t.pending / rate if rate > 1e-6 else (0.0 if t.pending == 0 else None), disk_bytes=disk, wal_bytes=wal,
        handout_bytes=db.execute(HANDOUT.bytes_total).get,
    )  # fmt: skip


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((at for at in (one, other) if at is not None), default=None)


def _age(now: int, sent: int | None) -> float | None:
    return None if sent is None else max(now - sent, 0) / SECOND


def _sizes(path: Path | None) -> tuple[int, int]:
    """Return the sizes of the database and of its WAL, without opening them."""
    if path is None:
        return 0, 0
    wal = 0
    with suppress(FileNotFoundError):
        wal = os.stat(f"{path}-wal").st_size
    return os.stat(path).st_size + wal, wal


def top_keys(db: apsw.Connection, n: int, by: str, time: QueueTime) -> list[KeyDepth]:
    """Return the n deepest lanes, or those with the oldest heads. Costs three seeks for each lane that has messages."""
    from ..._findings import KeyDepth

    now = time.now()
    best: list[tuple[float, int, int, int]] = []
    lane = 0
    while (lane := db.execute(INSPECT.next_lane, (lane,)).get or 0) > 0:
        depth, sent_at = present(db.execute(INSPECT.depth_and_age, (lane,)).get, "a message of a lane")
        rank = depth if by == "depth" else now - sent_at
        entry = (rank, lane, depth, sent_at)
        if len(best) < n:
            heapq.heappush(best, entry)
        else:
            heapq.heappushpop(best, entry)
    out = []
    for _, lane, depth, sent_at in sorted(best, reverse=True):
        view = _View(db, lane, now)
        state: State = "in_flight" if view.lease is not None else view.state_behind()
        out.append(KeyDepth(decode_key(view.key), depth, max(now - sent_at, 0) / SECOND, state))
    return out


def top_lanes(lanes: ShardLanes, n: int, by: str, time: QueueTime) -> list[KeyDepth]:
    """Do the same in a shard of format 3. Reads every lane that has messages."""
    from ..._findings import KeyDepth

    now = time.now()
    return [
        KeyDepth(
            decode_key(view.key), depth, max(now - sent_at, 0) / SECOND,
            "in_flight" if view.lease is not None else view.state_behind(),
        )
        for view, depth, sent_at in counting.deepest(lanes, n, by, now)
    ]  # fmt: skip


def key_state(db: apsw.Connection, key: bytes) -> bytes | None:
    value: bytes | None = db.execute(INSPECT.key_state, (key,)).get
    return value


__all__ = ["errors", "explain", "key_state", "peeked", "stats", "status", "top_keys", "waiting"]
