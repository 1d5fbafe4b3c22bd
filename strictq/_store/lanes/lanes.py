"""Lanes and their state: every other operation moves a lane through the functions here.

A lane with messages is in exactly one place: listed in `ready`, listed in `delayed`, held (`lane.hold`), or under a lease that
has not expired. `place` puts an unleased lane where it belongs; `unlist` removes it from both lists. Messages leave `message`
only through `remove` (some of one lane) and `remove_acked` (whole ranges of many lanes), so that the lane's `last_seq` and
`resolved`, the running totals, bodies stored out of line and history records always stay consistent. (`salvage` removes rows,
too: those of a damaged file whose body is lost.)
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from random import randint
from typing import Any, Final, NamedTuple, Protocol

from ..._keys import ASIDE, is_keyless
from ..._sql import LANES, SEND, SETTLE, repeated
from ..commit.tx import SECOND, Tx, insert_rows
from ..disk.stored import present
from ..hot import cooling
from ..onelane import failures, retries
from . import history

REVIVE_STEP: Final = 500
"""The number of waiting redrives that one transaction puts back."""
FORGET_STEP: Final = 8
"""The number of dedup ids, or lanes, that a send checks for expiry."""
POISON_HOLD: Final = "poison"
READY: Final = repeated(LANES.add_ready, 64, 16, 4, 1)
NEW: Final = repeated(LANES.insert, 64, 16, 4, 1)
REPEATED_WITHIN: Final = 60 * SECOND
"""How long the end of an aside is remembered: see `end_aside`."""
SAYS_STARTS: Final = 2
"""How far `lease.started` is before `lo` while nothing is started, if the holder calls start before each handler. It is 1 before
`lo` if the holder may run a handler without calling start."""
ENDED: Final = ""
"""The dedup id that keeps the lane of an ended aside. No message is sent to such a lane, so it has no other id."""


class Lane(NamedTuple):
    """A row of `lane`."""

    id: int
    key: bytes
    last_seq: int
    resolved: int
    solo_to: int
    charged_to: int
    hold: str | None
    held_at: int | None
    active_at: int
    done_token: int | None
    done_kind: str | None
    done_lo: int | None
    done_hi: int | None
    done_gaps: str | None


class LeaseRow(NamedTuple):
    """A row of `lease`."""

    lane: int
    token: int
    consumer: str
    lo: int
    hi: int
    started: int
    pending: int
    leased_at: int
    deadline: int
    expired: int
    ack_first: int
    redrive: int
    closed: int


def find(tx: Tx, key: bytes) -> int | None:
    """Return the lane of a key, if it exists. A hot lane is cooled first."""
    cooling.cool_key(tx, key)
    lane: int | None = tx.run(LANES.by_key, (key,)).get
    return lane


def number(tx: Tx, key: bytes) -> int | None:
    """Return the id of a key's lane, to refer to it. A hot lane stays hot. None: it has no row."""
    hot = None if tx.hot is None else tx.hot.lanes.get(key)
    if hot is not None:
        return cooling.number(tx, hot)
    lane: int | None = tx.run(LANES.by_key, (key,)).get
    return lane


def get(tx: Tx, lane: int) -> Lane:
    return Lane._make(present(tx.run(LANES.get, (lane,)).get, "the row of a lane"))


def create(tx: Tx, key: bytes) -> int:
    """Create a lane. It starts above the floor, so that a forgotten lane never issues a seq twice."""
    return create_many(tx, [key])


def create_many(tx: Tx, keys: Sequence[bytes]) -> int:
    """Create a lane for each key, with ascending numbers from the one returned."""
    totals = tx.totals
    first, floor = totals.last_lane + 1, totals.seq_floor
    insert_rows(tx, NEW, [(first + n, key, floor, floor, tx.now) for n, key in enumerate(keys)])
    totals.last_lane += len(keys)
    totals.lanes += len(keys)
    return first


def lease_of(tx: Tx, lane: int) -> LeaseRow | None:
    row = tx.run(LANES.lease, (lane,)).get
    return None if row is None else LeaseRow._make(row)


def tail(tx: Tx, lane: Lane) -> int:
    """Return the newest seq that the lane ever issued."""
    newest: int | None = tx.run(LANES.tail, (lane.id,)).get
    return max(newest or 0, lane.last_seq)


# ---- the place of a lane


def unlist(tx: Tx, lane: int) -> None:
    tx.run(LANES.drop_ready, (lane,))
    tx.run(LANES.drop_delayed, (lane,))


def place(tx: Tx, lane: int, *, at_end: bool = False) -> None:
    """List an unleased and unlisted lane where it belongs.

    A lane that was retried, or whose delay is over, goes to the end of the order (`at_end`), so that it can't keep others
    waiting. Any other lane is listed at the arrival of its oldest message.
    """
    more = revive_some(tx, lane)
    head = tx.run(LANES.head, (lane,)).get
    if head is None:
        end_aside(tx, lane)
        return
    _, arrival, due = head
    row = get(tx, lane)
    if row.hold is not None:
        return
    if due is not None and due > tx.now:
        tx.run(LANES.add_delayed, (lane, due))
    else:
        list_ready(tx, lane, tx.new_position() if at_end else arrival, careful=more or row.solo_to >= head[0])
    tx.wake = True  # a waiting receive must know of a new delay, too


def list_ready(tx: Tx, lane: int, position: int, *, careful: bool) -> None:
    tx.run(READY[1], (position, lane, careful))
    tx.wake = True


def list_first(tx: Tx, lane: int, arrival: int, due: int | None) -> None:
    """List a free lane that has just received its first message."""
    if due is not None and due > tx.now:
        tx.run(LANES.add_delayed, (lane, due))
        tx.wake = True
    else:
        list_ready(tx, lane, arrival, careful=False)


def end_aside(tx: Tx, lane: int, *, forget: bool = False) -> None:
    """Delete the lane of one keyless message after its end.

    If it has a last resolution, that is kept for repeated calls until `forget`.
    """
    found = tx.run(LANES.get, (lane,)).get
    if found is None:
        return
    row = Lane._make(found)
    if is_keyless(row.key) and ASIDE in row.key and not tx.run(LANES.lane_has_rows, (lane,)).get:
        if row.done_token is not None and not forget:
            tx.run(SEND.remember_dedup, (lane, ENDED, row.last_seq, 0, tx.now + REPEATED_WITHIN))
        else:
            tx.run(LANES.delete, (lane,))
            tx.totals.lanes -= 1


def release_lane(tx: Tx, lease: LeaseRow, *, at_end: bool = False) -> None:
    """End a lease: delete its row, and list the lane again, with the redrives that waited."""
    tx.run(LANES.delete_lease, (lease.lane,))
    unlist(tx, lease.lane)  # an expired lease leaves its lane listed
    place(tx, lease.lane, at_end=at_end)


# ---- delays


FAILURE_MARK: Final = 63
"""The low six bits of `due`, in microseconds, if a failure caused the delay. No other delay of a retry has these bits, so no
column is needed to distinguish them: see `sweeps.end_failure_delays`."""


def due_after(tx: Tx, delay: int, *, failed: bool) -> int | None:
    """Return when a message that is given back is due; None: now. At most 63 µs earlier or 1 µs later than asked.

    Args:
        failed: it failed, and the delay is the queue's retry delay.
    """
    if delay <= 0:
        return None
    due = tx.now + delay
    if failed:
        return due - (due - FAILURE_MARK) % (FAILURE_MARK + 1)
    return due + 1 if due & FAILURE_MARK == FAILURE_MARK else due


# ---- removal from `message`


def remove(
    tx: Tx, lane: int, rows: Sequence[tuple[int, int, bool]], end: history.End | None, *, keep_bodies: bool = False
) -> None:
    """Remove messages from a lane: rows of (seq, id, body is out of line), ascending. The caller counts the reason.

    Args:
        end: the content of their records. None: they continue elsewhere.
    """
    if not rows:
        return
    lo, hi = rows[0][0], rows[-1][0]
    together = hi - lo + 1 == len(rows)
    if end is not None:
        history.keep(tx, [(lane, lo, hi, end)] if together else [(lane, seq, seq, end) for seq, _, _ in rows])
    if together:
        tx.run(LANES.delete_range, (lane, lo, hi))
    else:
        tx.many(LANES.delete_message, ((lane, seq) for seq, _, _ in rows))
    if not keep_bodies:
        tx.many(LANES.delete_body, ((arrival,) for _, arrival, apart in rows if apart))
    tx.run(LANES.resolve, (hi, len(rows), tx.now, lane))
    tx.totals.pending -= len(rows)


class Acked(Protocol):
    """A holder's acks in one lane: consecutive unresolved messages, or the whole lease.

    Attributes:
        seqs: ascending.
        apart: arrival ids of the bodies that are stored out of line.
        end: the content of their records.
    """

    lane: int
    token: int
    seqs: Sequence[int]
    apart: Sequence[int]
    end: history.End


def remove_acked(tx: Tx, acks: Sequence[Acked], leases: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]] | None:
    """Remove acked messages from many lanes with a few statements for all of them, and count and remember the acks.

    Args:
        acks: in lane order, so that neighbours in the tables are written together.
        leases, rows: the statement that changes or ends each lease, and its arguments. It changes one row if the lease is live
            and as it was delivered.
    Returns:
        The arguments of `SETTLE.finish_lane` for each lane. None: a lease, or a range of messages, differs from its delivery,
        and the caller must roll back.
    """
    now, db = tx.now, tx.db
    ranges = []
    finished: list[tuple[Any, ...]] = []
    n = 0
    for ack in acks:
        seqs, lane = ack.seqs, ack.lane
        lo, hi, k = seqs[0], seqs[-1], len(seqs)
        n += k
        ranges.append((lane, lo, hi))
        finished.append((hi, k, now, ack.token, lo, hi, lane))
    if tx.config.history != "off":
        history.keep(tx, [(lane, lo, hi, ack.end) for (lane, lo, hi), ack in zip(ranges, acks, strict=True)])
    before = db.total_changes()
    tx.many(leases, rows)
    if db.total_changes() - before != len(ranges):
        return None
    tx.many(LANES.delete_range, ranges)
    if db.total_changes() - before != len(ranges) + n:
        return None
    tx.many(SETTLE.finish_lane, finished)
    if apart := [(i,) for ack in acks for i in ack.apart]:
        tx.many(LANES.delete_body, apart)
    tx.totals.pending -= n
    tx.count_acks(n)
    return finished


def bury(tx: Tx, lane: int, key: bytes, seq: int, *, kind: str, reason: str | None, starts: int) -> None:
    """Move a message to the dead letters, at its own seq."""
    tx.run(LANES.bury, (tx.now, kind, reason, starts, lane, seq))
    row = present(tx.run(LANES.message, (lane, seq)).get, f"message {seq} of a lane")
    remove(tx, lane, [(seq, row[1], False)], history.End(kind, starts - row[5]), keep_bodies=True)
    tx.totals.dead += 1
    tx.totals.dead_letters += 1
    tx.totals.rejected += kind == "rejected"
    tx.report("poison" if kind == "poison" else "dead_letter", key, seq, detail=reason or kind)


def revive(tx: Tx, lane: int, seq: int) -> None:
    """Put a dead message back at its seq, with 0 attempts, no TTL and no delay."""
    tx.run(LANES.redrive, (lane, seq))
    tx.run(LANES.delete_dead, (lane, seq))
    tx.run(LANES.unresolve, (1, lane))
    tx.totals.pending += 1
    tx.totals.dead -= 1
    tx.totals.redriven += 1


def revive_some(tx: Tx, lane: int) -> bool:
    """Put back dead letters whose redrive waited for a lease, in one bounded step. Return whether more of them wait.

    Until all are back nothing of the lane may be delivered: the lane is listed as one to be claimed carefully.
    """
    rows = tx.run(LANES.waiting_redrives, (lane, REVIVE_STEP)).fetchall()
    for (seq,) in rows:
        revive(tx, lane, seq)
    return len(rows) == REVIVE_STEP


def create_aside(tx: Tx, key: bytes, arrival: int) -> int:
    """Create a lane for one keyless message. It starts at 1 whatever the floor is: its key is never used again."""
    forget_dedups(tx)  # each new one pays for the removal of old ones
    totals = tx.totals
    totals.last_lane += 1
    totals.lanes += 1
    tx.run(NEW[1], (totals.last_lane, key.split(ASIDE)[0] + ASIDE + b"%d" % arrival, 0, 0, tx.now))
    return totals.last_lane


def move_aside(tx: Tx, lane: Lane, seq: int, due: int | None) -> int:
    """Move a keyless message to a lane of its own, so that it blocks no other message. Return that lane."""
    arrival = tx.run(LANES.message, (lane.id, seq)).get[1]
    aside = create_aside(tx, lane.key, arrival)
    tx.run(LANES.move, (aside, due, lane.id, seq))
    tx.run(LANES.set_charged, (1, aside))  # its attempts move with it, and a release must find them
    remove(tx, lane.id, [(seq, arrival, False)], None, keep_bodies=True)
    tx.totals.pending += 1
    return aside


# ---- poison


def apply_poison(tx: Tx, lane: int, key: bytes, seq: int, stored: int, reason: str) -> bool:
    """Dead-letter or drop a message that is out of attempts, or hold its lane. Return whether the lane is held now."""
    policy = tx.config.on_poison
    if policy == "dead_letter":
        bury(tx, lane, key, seq, kind="poison", reason=reason, starts=retries.starts(stored))
        return False
    if policy == "drop":
        arrival, apart = _id_and_place(tx, lane, seq)
        remove(tx, lane, [(seq, arrival, apart)], history.DROPPED)
        tx.totals.dropped += 1
        tx.report("poison", key, seq, detail=f"dropped: {reason}")
        return False
    if is_keyless(key) and ASIDE not in key:
        lane = move_aside(tx, get(tx, lane), seq, None)
        tx.run(LANES.set_hold, (POISON_HOLD, tx.now, lane))
        tx.report("poison", key, seq, detail=f"held: {reason}")
        return False
    tx.run(LANES.set_hold, (POISON_HOLD, tx.now, lane))
    unlist(tx, lane)  # a late nack: the lane of an expired lease is listed
    tx.report("poison", key, seq, detail=f"held: {reason}")
    return True


def _id_and_place(tx: Tx, lane: int, seq: int) -> tuple[int, bool]:
    row = present(tx.run(LANES.message, (lane, seq)).get, f"message {seq} of a lane")
    return row[1], row[-1] is None


def charge_started(tx: Tx, lease: LeaseRow) -> None:
    """Make the attempts of a lease that ends by expiry permanent, and record its end as the error of each."""
    if lease.started >= lease.lo:
        tx.run(LANES.charge, (lease.lane, lease.lo, lease.started, retries.crashed(tx.config)))
        error, at = failures.of_lost_lease(lease.consumer, lease.leased_at, lease.deadline, tx.now)
        tx.run(LANES.note_lost, (error, at, failures.KEPT_MAX, lease.lane, lease.lo, lease.started, 0))


def _suspects_to(tx: Tx, lease: LeaseRow) -> int:
    """Return the last message of an expired lease that may have killed its holder; 0 if there is no such message."""
    if tx.config.max_attempts is None:
        return 0  # messages are never given up, so finding one changes nothing
    if lease.started >= lease.lo:
        return lease.started
    if lease.started == lease.lo - SAYS_STARTS:
        return 0
    # The holder may have run handlers without start(). If it settled some messages, it settles as it goes: then only the first
    # remaining message was in a handler. If that is wrong, each crash leaves fewer messages, until none is settled.
    head = tx.run(LANES.head, (lease.lane,)).get  # None: the shard is damaged
    return head[0] if head is not None and head[0] > lease.lo else lease.hi


def retake(tx: Tx, lease: LeaseRow) -> None:
    """End an expired lease, and thereby its token. The caller places the lane.

    Started messages are charged. Messages that may have killed the holder are delivered one at a time from now on.
    """
    charge_started(tx, lease)
    tx.run(LANES.set_solo, (_suspects_to(tx, lease), lease.started, lease.lane))
    tx.run(LANES.delete_lease, (lease.lane,))
    tx.totals.redeliveries += lease.pending
    tx.report("lease_lost", get(tx, lease.lane).key, lease.lo, lease.token, f"the lease of {lease.consumer} ran out")


# ---- forgetting


def forget_dedups(tx: Tx, limit: int = FORGET_STEP) -> None:
    """Delete dedup ids whose window is over, and equally old ended asides, in one bounded step."""
    old: list[Any] = tx.run(SEND.old_dedups, (tx.now, limit)).fetchall()
    if old:
        tx.many(SEND.delete_dedup, old)
        for lane, dedup_id in old:
            if dedup_id == ENDED:
                end_aside(tx, lane, forget=True)


def forget_some_idle(tx: Tx, *, keep: Container[int]) -> None:
    """Forget idle lanes at a random place, in one bounded step. Every new lane pays for one, so few lanes are idle."""
    forget_idle(tx, randint(1, tx.totals.last_lane), FORGET_STEP, keep=keep)


def forget_idle(tx: Tx, first: int, count: int, *, keep: Container[int] = ()) -> None:
    """Read some lanes, and forget those that were empty for `idle_lane_seconds`, in one bounded step."""
    if tx.config.idle_lane_seconds is None:
        return
    oldest = tx.now - int(tx.config.idle_lane_seconds * SECOND)
    for lane, last_seq, hold, active_at in tx.run(LANES.some_lanes, (first, count)).fetchall():
        if active_at <= oldest and hold is None and lane not in keep and not tx.run(LANES.lane_has_rows, (lane,)).get:
            tx.run(LANES.delete, (lane,))
            cooling.forget_rows(tx)
            tx.totals.lanes -= 1
            tx.totals.seq_floor = max(tx.totals.seq_floor, last_seq)
