"""A holder's operations on its leases: start, ack, nack, defer, reject, extend, grow, release.

Every operation carries the token and is refused if that is dead. The common case of `ack`, leases that are acked whole, is a
few statements over all lanes. If a lease does not fit that case, it is rolled back and done lane by lane.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import apsw

from ..._errors import LeaseLost
from ..._keys import ASIDE, decode_key, is_keyless
from ..._sql import CLAIM, LANES, SETTLE
from ..commit.tx import Tx, insert_rows
from ..hot import tier
from ..hot.memory import Memory
from ..onelane import settling
from ..tables import key_states
from . import failures, lanes, resolution, retries
from .claim import HEAD_PAGE, is_plain, with_body
from .failures import AttemptFailure
from .leases import SEQ, Claimed, Lost, Row, Settlement

_LANE = attrgetter("lane")
T = TypeVar("T")


class Ack:
    """The acks of one call, as an operation that merges with those of other threads."""

    __slots__ = ("_batches",)

    def __init__(self, batches: Sequence[Settlement]) -> None:
        self._batches = batches

    def __call__(self, tx: Tx) -> list[Lost]:
        return ack(tx, self._batches)

    def together(self, tx: Tx, others: list[Ack]) -> list[list[Lost]]:
        """Ack the leases of all of them in one pass."""
        lost = iter(ack(tx, [batch for each in others for batch in each._batches]))
        return [[next(lost) for _ in each._batches] for each in others]


class AckClaimed(Ack):
    """The ack of everything that a claim leased."""

    __slots__ = ("_claimed",)

    def __init__(self, claimed: Claimed) -> None:
        self._claimed = claimed

    @property
    def _batches(self) -> list[Settlement]:  # type: ignore[override]
        return [held.all() for held in self._claimed.leases]

    def __call__(self, tx: Tx) -> list[Lost]:
        hot, claimed = tx.hot, self._claimed
        if claimed.all_hot and tx.config.history == "off":
            if hot is not None and tier.ack_claimed(tx, hot, claimed):
                return []
            if tx.lanes is not None and settling.ack_claimed(tx, claimed):
                return []
        lost = ack(tx, self._batches)
        return lost if any(lost) else []


def ack(tx: Tx, batches: Sequence[Settlement]) -> list[Lost]:
    """Ack messages. The valid acks take effect; the others are returned."""
    if tx.lanes is not None:
        return settling.ack(tx, batches)
    hot = tx.hot
    if hot is not None and hot.lanes and tx.config.history == "off":
        left = tier.ack(tx, hot, batches)
        if not left:
            return [{} for _ in batches]
        if len(left) < len(batches):
            lost = dict(zip(left, ack(tx, left), strict=True))
            return [lost.get(batch, {}) for batch in batches]
    locate(tx, batches)
    done = False
    if whole := [b for b in batches if b.whole]:
        tx.run("SAVEPOINT whole")
        done = ack_whole(tx, whole)
        if not done:
            tx.run("ROLLBACK TO whole")
        tx.run("RELEASE whole")
    return [{} if done and b.whole else _ack_each(tx, b) for b in batches]


def locate(tx: Tx, batches: Sequence[Settlement]) -> None:
    """Find the lanes of settlements whose holder knows only the keys. A settlement without a lane is refused as lost.

    This is repeated at each call: an earlier transaction that found the lane may have been rolled back, and the lane with it.
    """
    for b in batches:
        if not b.given:
            b.lane = lanes.find(tx, b.key) or 0


def _ack_each(tx: Tx, batch: Settlement) -> Lost:
    """Ack the batch. If it is refused, ack message by message, so that the valid ones take effect."""
    try:
        ack_lane(tx, batch)
    except LeaseLost as e:
        if len(batch.seqs) == 1:
            return {batch.seqs[0]: e}
        lost: Lost = {}
        for seq in batch.seqs:
            lost |= _ack_each(tx, Settlement(batch.lane, batch.key, batch.token, [seq], end=batch.end))
        return lost
    return {}


def _one_by_one(tx: Tx, batches: Sequence[Settlement], act: Callable[[Settlement], T]) -> list[T | LeaseLost]:
    """Call `act` for each. A refused one changed nothing; the others take effect."""
    locate(tx, batches)
    results: list[T | LeaseLost] = []
    for b in batches:
        try:
            results.append(act(b))
        except LeaseLost as e:
            results.append(e)
    return results


def _hot_first(
    tx: Tx,
    batches: Sequence[Settlement],
    on_hot: Callable[[Tx, Memory, Sequence[Settlement]], list[Settlement]],
    done: T,
    act: Callable[[Settlement], T],
) -> list[T | LeaseLost]:
    """Do the same, first with the leases of hot lanes.

    Args:
        on_hot: handles the leases of hot lanes, and returns the other settlements.
        done: the result for each that it handled.
    """
    left = batches
    if tx.hot is not None and tx.hot.lanes:
        left = on_hot(tx, tx.hot, batches)
    if not left:
        return [done] * len(batches)
    outcomes = _one_by_one(tx, left, act)
    if len(left) == len(batches):
        return outcomes
    found = dict(zip(left, outcomes, strict=True))
    return [found.get(batch, done) for batch in batches]


def ack_whole(tx: Tx, batches: Sequence[Settlement]) -> bool:
    """Ack all of these leases in one pass, each of them whole.

    Return False if one differs from its delivery. The caller must then roll back.
    """
    ordered = sorted(batches, key=_LANE) if len(batches) > 1 else batches
    leases = [(b.lane, b.token, b.seqs[0], b.seqs[-1], len(b.seqs)) for b in ordered]
    finished = lanes.remove_acked(tx, ordered, SETTLE.end_whole_lease, leases)
    if finished is None:
        return False
    list_rest(tx, finished, batches)
    return True


def list_rest(tx: Tx, lane_rows: list[tuple[Any, ...]], batches: Sequence[Settlement]) -> None:
    """List the lanes that have messages left, at the arrival of their new heads."""
    rest = tx.run(SETTLE.next_heads, (apsw.carray(array("q", [row[-1] for row in lane_rows])),)).fetchall()
    list_heads(tx, rest)
    if len(rest) < len(lane_rows):
        for b in batches:
            if ASIDE in b.key and is_keyless(b.key):
                lanes.end_aside(tx, b.lane)


def list_heads(tx: Tx, rest: Sequence[tuple[Any, ...]]) -> None:
    """List lanes at the arrival of their heads, from rows of `next_heads`."""
    ready = []
    for lane, seq, arrival, due, held, solo_to in rest:
        if held:
            continue
        if due is not None and due > tx.now:
            tx.run(LANES.add_delayed, (lane, due))
            tx.wake = True
        else:
            ready.append((arrival, lane, solo_to >= seq))
    if ready:
        insert_rows(tx, lanes.READY, ready)
        tx.wake = True


def ack_lane(tx: Tx, batch: Settlement) -> bool:
    """Ack messages of one lane. Return False if exactly this was done before, under this token.

    Raises:
        LeaseLost: nothing changed.
    """
    if tx.lanes is not None:
        return settling.ack_lane(tx, batch)
    hot = tx.hot
    if hot is not None and tx.config.history == "off" and not tier.ack(tx, hot, [batch]):
        return True
    locate(tx, [batch])
    lease, rows = _held_rows(tx, batch, "ack")
    if lease is None:
        return False
    lanes.remove(tx, batch.lane, rows, batch.end)
    tx.count_acks(len(rows))
    resolution.remember(tx, batch.lane, batch.token, "ack", batch.seqs)
    shrink(tx, lease, len(rows), start=batch.start)
    return True


def is_held(tx: Tx, batch: Settlement) -> bool:
    """Return whether a live lease holds these messages, all unresolved. False: they were acked before, under this token.

    Raises:
        LeaseLost: neither is the case.
    """
    if tx.lanes is not None:
        return settling.is_held(tx, batch)
    if tx.hot is not None and tier.holds(tx.hot, batch):
        return True
    locate(tx, [batch])
    return _held_rows(tx, batch, "ack")[0] is not None


def done_before(tx: Tx, batch: Settlement) -> bool:
    """Return whether the lane's last resolution acked this batch."""
    if tx.lanes is not None:
        return settling.done_before(tx, batch)
    locate(tx, [batch])
    row = tx.run(LANES.get, (batch.lane,)).get
    return row is not None and resolution.remembers(lanes.Lane._make(row), batch.token, "ack", batch.seqs)


def _live(tx: Tx, batch: Settlement) -> lanes.LeaseRow | None:
    lease = lanes.lease_of(tx, batch.lane)
    return lease if lease is not None and lease.token == batch.token and not lease.ack_first else None


def _lost(batch: Settlement, seq: int | None = None, why: str = "the lease was lost") -> LeaseLost:
    return LeaseLost(decode_key(batch.key), batch.seqs[0] if seq is None else seq, batch.token, why)


def _held_rows(tx: Tx, batch: Settlement, kind: str) -> tuple[lanes.LeaseRow | None, list[tuple[int, int, bool]]]:
    """Return the lease and all of the batch's unresolved rows, or (None, []) if exactly this was done before.

    Raises:
        LeaseLost: the token is dead, or a message is resolved or not part of this lease. Nothing changed.
    """
    lease = _live(tx, batch)
    seqs = batch.seqs
    if lease is not None and lease.lo <= seqs[0] and seqs[-1] <= lease.hi:
        wanted = set(seqs)
        rows = [
            (seq, arrival, bool(apart))
            for seq, arrival, apart, _ in tx.run(SETTLE.rows_between, (batch.lane, seqs[0], seqs[-1]))
            if seq in wanted
        ]
        if len(rows) == len(wanted):
            return lease, rows
    row = tx.run(LANES.get, (batch.lane,)).get
    if row is not None and resolution.remembers(lanes.Lane._make(row), batch.token, kind, seqs):
        return None, []
    why = "the lease was lost" if lease is None else "the message is resolved or not of this lease"
    raise _lost(batch, why=why)


def shrink(
    tx: Tx, lease: lanes.LeaseRow, gone: int, *, hi: int | None = None, start: int | None = None, at_end: bool = False
) -> None:
    """Reduce a lease's messages (to those up to `hi`, if its end was given back). End it if none is left."""
    left = lease.pending - gone
    if left == 0:
        lanes.release_lane(tx, lease, at_end=at_end)
        return
    if hi is None:
        tx.run(SETTLE.shrink, (left, lease.lane))
    else:
        tx.run(SETTLE.close, (left, hi, lease.lane))
    if start is not None and start <= lease.hi:
        tx.run(SETTLE.set_started, (start, lease.lane))


def start(tx: Tx, batches: Sequence[Settlement]) -> list[LeaseLost | None]:
    """Charge an attempt of these messages, one of each batch, durably: their handlers start."""
    if tx.lanes is not None:
        return settling.start(tx, batches)
    return _hot_first(tx, batches, tier.start, None, lambda b: _start_lane(tx, b))


def _start_lane(tx: Tx, batch: Settlement) -> None:
    lease = _live(tx, batch)
    if lease is None or not lease.lo <= batch.seqs[0] <= lease.hi:
        raise _lost(batch)
    if lease.started < batch.seqs[0]:
        tx.run(SETTLE.set_started, (batch.seqs[0], batch.lane))


def nack(tx: Tx, batches: Sequence[Settlement], delay: int | None, failure: AttemptFailure) -> list[int | LeaseLost | None]:
    """Give back each batch's one message and everything later that its lease holds, to be retried first.

    Returns:
        For each: microseconds until the next attempt. None: the message was out of attempts.
    """
    if tx.lanes is not None:
        return settling.nack(tx, batches, delay, failure)
    return _one_by_one(tx, batches, lambda b: _nack_lane(tx, b, delay, failure))


def _nack_lane(tx: Tx, batch: Settlement, delay: int | None, failure: AttemptFailure) -> int | None:
    lease, _ = _held_rows(tx, batch, "nack")
    if lease is None:
        return 0
    lane, seq = batch.lane, batch.seqs[0]
    # The message was in a handler, whether or not its start was reported. Later ones are charged only if theirs was.
    started = max(seq, lease.started)
    rows = tx.run(SETTLE.rows_between, (lane, seq, lease.hi)).fetchall()
    tx.run(LANES.charge, (lane, seq, started, retries.FAILED))
    tx.run(LANES.set_charged, (started, lane))
    stored = rows[0][3] + retries.FAILED
    tx.totals.retries += 1
    resolution.remember(tx, lane, batch.token, "nack", [seq])
    wait = retries.retry_delay(tx.config, batch.key, retries.starts(stored)) if delay is None else delay
    due = lanes.due_after(tx, wait, failed=delay is None)
    _note_failure(tx, lane, seq, due, retries.starts(stored), failure)
    failing = tx.now - tx.run(LANES.message, (lane, seq)).get[12]
    given_up = retries.given_up(tx.config, stored, failing)
    if given_up:
        lanes.apply_poison(tx, lane, batch.key, seq, stored, retries.why(tx.config, stored, failing, failure.error))
    _give_back(tx, lease, batch, len(rows), due, aside=not given_up)
    return None if given_up else wait


def defer(tx: Tx, batches: Sequence[Settlement], delay: int, reason: str | None) -> list[LeaseLost | None]:
    """Give back each batch's one message and everything later that its lease holds, without charging an attempt."""
    if tx.lanes is not None:
        return settling.defer(tx, batches, delay, reason)
    return _one_by_one(tx, batches, lambda b: _defer_lane(tx, b, delay, AttemptFailure(reason), failed=False, began=False))


def defer_failed(
    tx: Tx, batches: Sequence[Settlement], delay: int, failures: Sequence[AttemptFailure], began: bool
) -> list[LeaseLost | None]:
    """Do the same for messages that failed through no fault of their own, or that wait with such ones and did not begin.

    `sweeps.end_failure_delays` may end their delays.
    """
    if tx.lanes is not None:
        return settling.defer_failed(tx, batches, delay, failures, began)
    left = iter(failures)
    return _one_by_one(tx, batches, lambda b: _defer_lane(tx, b, delay, next(left), failed=True, began=began))


def _defer_lane(tx: Tx, batch: Settlement, delay: int, failure: AttemptFailure, *, failed: bool, began: bool) -> None:
    # Recorded as a nack: both give back the same messages, and a retried call must find the same record.
    lease, _ = _held_rows(tx, batch, "nack")
    if lease is None:
        return
    seq = batch.seqs[0]
    due = lanes.due_after(tx, delay, failed=failed)
    rows = tx.run(SETTLE.rows_between, (batch.lane, seq, lease.hi)).fetchall()
    if began:
        _note_failure(tx, batch.lane, seq, due, retries.starts(rows[0][3]) + 1, failure)
    else:  # not an attempt's error: only the reason why it waits
        tx.run(LANES.set_due, (due, failure.error, None, None, batch.lane, seq))
    resolution.remember(tx, batch.lane, batch.token, "nack", [seq])
    _give_back(tx, lease, batch, len(rows), due, aside=True)


def _note_failure(tx: Tx, lane: int, seq: int, due: int | None, attempt: int, failure: AttemptFailure) -> None:
    """Store when the message is due again, and the error and output of its attempt."""
    errors = None if failure.error is None else _errors_with(tx, lane, seq, attempt, failure)
    tx.run(LANES.set_due, (due, failure.error, errors, failure.output, lane, seq))


def _errors_with(tx: Tx, lane: int, seq: int, attempt: int, failure: AttemptFailure) -> str | None:
    return failures.with_failure(tx.run(LANES.errors, (lane, seq)).get, attempt, tx.now, failure)


def _give_back(tx: Tx, lease: lanes.LeaseRow, batch: Settlement, n: int, due: int | None, *, aside: bool) -> None:
    """End the lease's hold of the batch's first message and everything later, `n` messages in all.

    Args:
        aside: move that message, if it is keyless, to a lane of its own, so that it blocks no other message.
    """
    seq = batch.seqs[0]
    moved = None
    if aside and is_keyless(batch.key) and ASIDE not in batch.key:
        moved = lanes.move_aside(tx, lanes.get(tx, batch.lane), seq, due)
    shrink(tx, lease, n, hi=max(seq - 1, lease.lo), at_end=True)
    if moved is not None:
        lanes.place(tx, moved, at_end=True)  # behind the messages that it blocked


def reject(tx: Tx, batches: Sequence[Settlement], failure: AttemptFailure) -> list[LeaseLost | None]:
    """Dead-letter messages now, one of each batch. The error is the reason."""
    if tx.lanes is not None:
        return settling.reject(tx, batches, failure)
    return _one_by_one(tx, batches, lambda b: _reject_lane(tx, b, failure))


def _reject_lane(tx: Tx, batch: Settlement, failure: AttemptFailure) -> None:
    lease, rows = _held_rows(tx, batch, "reject")
    if lease is None:
        return
    seq = rows[0][0]
    starts = tx.run(LANES.message, (batch.lane, seq)).get[5] + (1 if seq <= lease.started else 0)
    errors = _errors_with(tx, batch.lane, seq, starts, failure)
    tx.run(LANES.set_outcome, (errors, failure.output, batch.lane, seq))
    lanes.bury(tx, batch.lane, batch.key, seq, kind="rejected", reason=failure.error, starts=starts)
    resolution.remember(tx, batch.lane, batch.token, "reject", [seq])
    shrink(tx, lease, 1)


def note(tx: Tx, batches: Sequence[Settlement], said: Sequence[str]) -> list[LeaseLost | None]:
    """Store the output so far of the handlers of these messages, one of each batch."""
    if tx.lanes is not None:
        return settling.note(tx, batches, said)
    texts = iter(said)
    return _one_by_one(tx, batches, lambda b: _note_lane(tx, b, next(texts)))


def _note_lane(tx: Tx, batch: Settlement, said: str) -> None:
    lease = _live(tx, batch)
    if lease is None or not lease.lo <= batch.seqs[0] <= lease.hi:
        raise _lost(batch)
    tx.run(LANES.set_output, (said, batch.lane, batch.seqs[0]))


def extend(tx: Tx, batches: Sequence[Settlement], length: int) -> list[int | LeaseLost]:
    """Move the deadline of each lane's whole lease, counted from now. Return the new deadlines."""
    if tx.lanes is not None:
        return settling.extend(tx, batches, length)
    deadline = tx.now + length
    return _hot_first(
        tx, batches, lambda tx, hot, some: tier.extend(tx, hot, some, deadline), deadline, lambda b: _extend_lane(tx, b, length)
    )


def _extend_lane(tx: Tx, batch: Settlement, length: int) -> int:
    lease = lanes.lease_of(tx, batch.lane)
    if lease is None or lease.token != batch.token:
        raise _lost(batch)
    if lease.expired:
        lanes.unlist(tx, batch.lane)  # no other consumer has taken the lane: this holder continues
    deadline = tx.now + length
    tx.run(SETTLE.set_deadline, (deadline, batch.lane))
    tx.totals.next_deadline = min(tx.totals.next_deadline, deadline)
    tx.wake = True
    return deadline


def more(tx: Tx, batch: Settlement, limit: int) -> list[Row]:
    """Extend a live lease over later messages of its lane, under the same token.

    Return nothing if no more of the lane may be delivered: behind a delayed, held, expired or solo message, before a redriven
    one, or after the deadline.

    Raises:
        LeaseLost: nothing changed.
    """
    if tx.lanes is not None:
        return settling.more(tx, batch, limit)
    locate(tx, [batch])
    lease = _live(tx, batch)
    if lease is None:
        raise _lost(batch)
    lane = lanes.get(tx, batch.lane)
    if (
        lease.expired
        or lease.redrive
        or lease.closed
        or lease.deadline <= tx.now
        or lane.hold is not None
        or lane.solo_to >= lease.lo
        or tx.run(SETTLE.earlier, (batch.lane, lease.lo)).get
    ):
        return []
    rows: list[Row] = []
    for row in tx.run(CLAIM.lane_messages, (batch.lane, 0, 0, lease.hi + 1, min(limit, HEAD_PAGE))).fetchall():
        if not is_plain(row, tx.now, tx):
            break
        rows.append(with_body(tx, row))
    if rows:
        tx.run(SETTLE.grow, (rows[-1][SEQ], len(rows), batch.lane))
        tx.totals.receives += len(rows)
    return rows


def release(tx: Tx, batches: Sequence[Settlement]) -> list[LeaseLost | None]:
    """Release each batch's first message and everything later that its lease holds, unused. No attempt is charged."""
    if tx.lanes is not None:
        return settling.release(tx, batches)
    return _hot_first(tx, batches, tier.release, None, lambda b: _release_lane(tx, b))


def _release_lane(tx: Tx, batch: Settlement) -> None:
    lease = lanes.lease_of(tx, batch.lane)
    if lease is None or lease.token != batch.token:
        raise _lost(batch)
    if not lease.ack_first and batch.seqs[0] > lease.hi:
        return  # given back before, together with an earlier message
    rows = [] if lease.ack_first else tx.run(SETTLE.rows_between, (batch.lane, batch.seqs[0], lease.hi)).fetchall()
    shrink(tx, lease, len(rows), hi=max(batch.seqs[0] - 1, lease.lo))


def key_state(tx: Tx, key: bytes) -> bytes | None:
    if tx.lanes is not None:
        return key_states.of(tx.db, key)
    lane = lanes.number(tx, key)
    return None if lane is None else tx.run(SETTLE.key_state, (lane,)).get


def set_key_state(tx: Tx, key: bytes, value: bytes | None) -> None:
    if tx.lanes is not None:
        key_states.set_(tx.db, key, value)
        return
    lane = lanes.number(tx, key)
    if lane is None:
        if value is None:
            return
        lane = lanes.create(tx, key)
    if value is None:
        tx.run(SETTLE.delete_key_state, (lane,))
    else:
        tx.run(SETTLE.set_key_state, (lane, value))


def lowest_unresolved(tx: Tx, batch: Settlement) -> int | None:
    """Return the first message that a live lease still holds. None: the token is dead, or the batch was given back."""
    if tx.lanes is not None:
        return settling.lowest_unresolved(tx, batch)
    if tx.hot is not None and (first := tier.lowest(tx.hot, batch)) is not None:
        return first
    locate(tx, [batch])
    lease = _live(tx, batch)
    if lease is None or not lease.lo <= batch.seqs[0] <= lease.hi:
        return None
    rows = tx.run(SETTLE.rows_between, (batch.lane, lease.lo, batch.seqs[0])).fetchall()
    return rows[0][0] if rows else None
