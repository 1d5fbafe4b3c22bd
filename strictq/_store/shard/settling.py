"""A holder's operations on its leases: start, ack, nack, defer, reject, extend, grow, release.

Every operation carries the token, and is refused if that is dead. It plans on memory before anything changes. The messages of all
lanes with one token are one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from ..._values import retries
from ..._values.config import QueueConfig
from ..._values.errors import LeaseLost
from ..._values.keys import ASIDE, decode_key, is_keyless
from ..lane import entries as kinds
from ..lane.entries import LaneHolder, encode_keys
from ..lane.live_lane import LiveLane, parse_done
from ..lane.memory import Group
from ..tables import trouble
from . import ending, expiring, history, sending
from .failures import AttemptFailure, with_failure
from .leases import ID, KEY, Claimed, Lost, Row, Settlement
from .messages import row_of
from .shard_lanes import ShardLanes, Tx

T = TypeVar("T")
RESOLVED = "the message is resolved or not of this lease"
GIVES_BACK = (kinds.NACK, kinds.DEFER)


class Ack:
    """The acks of one call, as an operation that merges with those of other threads."""

    __slots__ = ("_batches",)

    def __init__(self, batches: Sequence[Settlement]) -> None:
        self._batches = batches

    def __call__(self, tx: Tx) -> list[Lost]:
        return ack(tx, self._batches)

    def together(self, tx: Tx, others: list[Ack]) -> list[list[Lost]]:
        """Ack the leases of all of them in one pass."""
        found = iter(ack(tx, [batch for each in others for batch in each._batches]))
        return [[next(found) for _ in each._batches] for each in others]


class AckClaimed(Ack):
    """The ack of everything that a claim leased."""

    __slots__ = ("_claimed",)

    def __init__(self, claimed: Claimed) -> None:
        self._claimed = claimed

    @property
    def _batches(self) -> list[Settlement]:  # type: ignore[override]
        return [held.all() for held in self._claimed.leases]

    def __call__(self, tx: Tx) -> list[Lost]:
        if ack_claimed(tx, self._claimed):
            return []
        refused = ack(tx, self._batches)
        return refused if any(refused) else []


class Advance:
    """What a worker commits together in one shard: acks, starts of the messages behind them, and other starts.

    No lease occurs in it twice. A lane may: a worker that leased a lane again may not have noticed yet that it lost the earlier
    lease.
    """

    __slots__ = ("_acks", "_starting")

    def __init__(self, acks: Sequence[Settlement], starting: Sequence[Settlement]) -> None:
        """Prepare the operation.

        Args:
            acks: one message of each lease; `Settlement.start` is the message that starts with it.
            starting: a handler of these messages starts now.
        """
        self._acks = acks
        self._starting = starting

    def __call__(self, tx: Tx) -> dict[Settlement, LeaseLost]:
        """Run it. Return the refused settlements, which changed nothing. The others took effect."""
        refused: dict[Settlement, LeaseLost] = {}
        for batch, found in zip(self._acks, ack(tx, self._acks), strict=True):
            if found:
                refused[batch] = next(iter(found.values()))
        outcomes = zip(self._starting, start(tx, self._starting), strict=True)
        return refused | {batch: error for batch, error in outcomes if error is not None}


# ---- plans: what a live lease holds


def held_lane(store: ShardLanes, key: bytes, token: int) -> LiveLane | None:
    """Return a key's lane if a live lease with this token has it."""
    lane = store.memory.lanes.get(key)
    if lane is None or lane.rest:
        lane = store.loader.lane(key)
    grant = lane.grant
    return lane if grant is not None and grant.token == token else None


def held_ids(lane: LiveLane, seqs: Sequence[int]) -> list[int] | None:
    """Return the arrival numbers of these messages if the lane's lease holds all of them unresolved. Otherwise None."""
    rare, n = lane.rare, len(seqs)
    if rare is not None and rare.front_held:
        known = dict(lane.leased())
        return [known[seq] for seq in seqs] if all(seq in known for seq in seqs) else None
    window, first = lane.ids, lane.first
    at, end = seqs[0] - first, seqs[-1] - first + 1
    if window is None or at < 0 or end > lane.held:
        return None
    ids = window[at:end] if end - at == n else [window[seq - first] for seq in seqs]
    return None if 0 in ids else ids


def plan(store: ShardLanes, batch: Settlement, kind: int) -> Group | None:
    """Return the lane and the messages of a settlement. None: exactly this was done before, under this token.

    Raises:
        LeaseLost: the token is dead, or a message is resolved or not part of this lease. Nothing changed.
    """
    lane = held_lane(store, batch.key, batch.token)
    ids = None if lane is None else held_ids(lane, batch.seqs)
    if lane is not None and ids is not None:
        return lane, ids
    if was_done(store, batch.key, batch.token, kind, batch.seqs):
        return None
    raise lost(store, batch, "the lease was lost" if lane is None else RESOLVED)


def was_done(store: ShardLanes, key: bytes, token: int, kind: int, seqs: Iterable[int]) -> bool:
    """Return whether a lane's last resolution did this under this token, so that the repeated call succeeds."""
    lane = store.loader.lane(key)
    done = lane.done
    if done is None and lane.bare:
        store.loader.require_snapshot()
        done = parse_done(store.rows.row(key).done)
    if done is None or done[0] != token:
        return False
    same = done[1] in GIVES_BACK if kind in GIVES_BACK else done[1] == kind
    _, _, low, high, left_out = done
    return same and all(low <= seq <= high and seq not in left_out for seq in seqs)


def lost(store: ShardLanes, batch: Settlement, why: str = "the lease was lost") -> LeaseLost:
    """Return the error that refuses a settlement. It names the other consumer that holds the lane now."""
    error = LeaseLost(decode_key(batch.key), batch.seqs[0], batch.token, why)
    lane = store.memory.lanes.get(batch.key)
    grant = None if lane is None else lane.grant
    if grant is not None and grant.token != batch.token and grant.deadline > store.now and not is_keyless(batch.key):
        error.holder = LaneHolder.decode(grant.holder).consumer
    return error


# ---- ack


def ack(tx: Tx, batches: Sequence[Settlement]) -> list[Lost]:
    """Ack messages. The valid acks take effect; the others are returned."""
    store = tx.lanes
    refused: list[Lost] = [{} for _ in batches]
    together: dict[int, list[tuple[Settlement, LiveLane, list[int]]]] = {}
    named: set[bytes] = set()
    for n, batch in enumerate(batches):
        if batch.key in named:
            _write_acks(tx, together)  # a lane is named once in an entry
            together, named = {}, set()
        try:
            found = plan(store, batch, kinds.ACK)
        except LeaseLost as e:
            refused[n] = {batch.seqs[0]: e} if len(batch.seqs) == 1 else _ack_each(tx, batch)
            continue
        if found is not None:
            named.add(batch.key)
            together.setdefault(batch.token, []).append((batch, *found))
    _write_acks(tx, together)
    return refused


def ack_claimed(tx: Tx, claimed: Claimed) -> bool:
    """Ack everything that a claim leased. Return False, and do nothing, unless all of it is still leased and unresolved."""
    groups = _all_claimed(tx.lanes, claimed)
    if groups is None:
        return False
    before = sending.listed(tx.lanes.memory)
    if groups and (grant := groups[0][0].grant) is not None:
        ending.keep(tx, [i for _, ids in groups for i in ids], history.ACKED, grant.at)
    tx.lanes.append(kinds.ACK, groups, token=claimed.token)
    tx.wake = tx.wake or sending.listed(tx.lanes.memory) != before
    return True


def _all_claimed(store: ShardLanes, claimed: Claimed) -> list[Group] | None:
    """Return the lanes of a claim with their messages. None: not all of it is still leased and unresolved, in plain lanes."""
    lanes, token = store.memory.lanes, claimed.token
    groups: list[Group] = []
    for rows in claimed.rows:
        row = rows[0]
        lane = lanes.get(row[KEY])
        if lane is None or lane.rare is not None or (grant := lane.grant) is None or grant.token != token:
            return None
        window, n = lane.ids, len(rows)
        if window is None or n > lane.held:
            return None
        ids = window if n == len(window) else window[:n]
        if ids[0] != row[ID] or (n > 1 and ids != [row[ID] for row in rows]):
            return None
        groups.append((lane, ids))
    return groups


def _ack_each(tx: Tx, batch: Settlement) -> Lost:
    """Ack message by message, so that the valid ones take effect."""
    found: Lost = {}
    for seq in batch.seqs:
        found |= ack(tx, [Settlement(batch.key, batch.token, [seq], end=batch.end)])[0]
    return found


def _write_acks(tx: Tx, together: dict[int, list[tuple[Settlement, LiveLane, list[int]]]]) -> None:
    store = tx.lanes
    for token, some in together.items():
        ended: dict[tuple[history.End, int | None], list[int]] = {}
        for batch, lane, ids in some:
            ended.setdefault((batch.end, None if lane.grant is None else lane.grant.at), []).extend(ids)
        for (end, leased_at), ids in ended.items():
            ending.keep(tx, ids, end, leased_at)
        if tx.config.output_seconds:
            ending.keep_outputs(tx, ((lane, ids, said) for batch, lane, ids in some if (said := batch.end.output) is not None))
        starting = [(lane, ids, batch.start) for batch, lane, ids in some if batch.start is not None]
        is_next = len(starting) == len(some) and all(_is_next(*one) for one in starting)
        groups = [(lane, ids) for _, lane, ids in some]
        store.append(kinds.ACK, groups, token=token, holder=kinds.NEXT if is_next else None)
        _start(store, token, [(lane, head) for lane, _, seq in starting if (head := _startable(lane, seq))])
        for _, lane, _ in some:
            if lane.grant is None and lane.listed:
                tx.wake = True


def ack_lane(tx: Tx, batch: Settlement) -> bool:
    """Ack messages of one lane. Return False if exactly this was done before, under this token.

    Raises:
        LeaseLost: nothing changed.
    """
    store = tx.lanes
    try:
        found = plan(store, batch, kinds.ACK)
    except LeaseLost as e:
        raise store.refuse(e) from None
    if found is None:
        return False
    _write_acks(tx, {batch.token: [(batch, *found)]})
    return True


def is_held(tx: Tx, batch: Settlement) -> bool:
    """Return whether a live lease holds these messages, all unresolved. False: they were acked before, under this token.

    Raises:
        LeaseLost: neither is the case.
    """
    store = tx.lanes
    try:
        return plan(store, batch, kinds.ACK) is not None
    except LeaseLost as e:
        raise store.refuse(e) from None


def done_before(tx: Tx, batch: Settlement) -> bool:
    """Return whether the lane's last resolution acked this batch."""
    return was_done(tx.lanes, batch.key, batch.token, kinds.ACK, batch.seqs)


def lowest_unresolved(tx: Tx, batch: Settlement) -> int | None:
    """Return the first message that a live lease still holds. None: the token is dead, or the batch was given back."""
    lane = held_lane(tx.lanes, batch.key, batch.token)
    if lane is None or not is_of_lease(lane, batch.seqs[0]):
        return None
    left = lane.leased()
    return left[0][0] if left else None


def is_of_lease(lane: LiveLane, seq: int) -> bool:
    """Return whether a message is, or was, of the lane's live lease, and was not given back."""
    return lane.low <= seq <= lane.lease_end


# ---- starts


def start(tx: Tx, batches: Sequence[Settlement]) -> list[LeaseLost | None]:
    """Charge an attempt of these messages, one of each batch, durably: their handlers start."""
    store = tx.lanes
    results: list[LeaseLost | None] = []
    together: dict[int, list[Group]] = {}
    for batch in batches:
        lane = held_lane(store, batch.key, batch.token)
        if lane is None or not is_of_lease(lane, batch.seqs[0]):
            results.append(lost(store, batch))
            continue
        results.append(None)
        if ids := _startable(lane, batch.seqs[0]):
            together.setdefault(batch.token, []).append((lane, ids))
    for token, groups in together.items():
        _start(store, token, groups)
    return results


def _startable(lane: LiveLane, seq: int) -> list[int] | None:
    """Return the message if its start is not known yet."""
    return held_ids(lane, [seq]) if lane.grant is not None and lane.started < seq else None


def _is_next(lane: LiveLane, ids: list[int], seq: int) -> bool:
    """Return whether a lease begins with these messages, and this one follows them."""
    window, n = lane.ids, len(ids)
    return (
        lane.rare is None and window is not None and n < lane.held
        and window[:n] == ids and window[n] != 0 and seq == lane.first + n
    )  # fmt: skip


def _start(store: ShardLanes, token: int, groups: Sequence[Group]) -> None:
    if groups:
        store.append(kinds.START, groups, token=token)


# ---- what gives messages back


def _one_by_one(batches: Sequence[Settlement], act: Callable[[Settlement], T]) -> list[T | LeaseLost]:
    """Call `act` for each. A refused one changed nothing; the others take effect."""
    results: list[T | LeaseLost] = []
    for batch in batches:
        try:
            results.append(act(batch))
        except LeaseLost as e:
            results.append(e)
    return results


def nack(tx: Tx, batches: Sequence[Settlement], delay: int | None, failure: AttemptFailure) -> list[int | LeaseLost | None]:
    """Give back each batch's one message and everything later that its lease holds, to be retried first.

    Returns:
        For each: microseconds until the next attempt. None: the message was out of attempts.
    """
    return _one_by_one(batches, lambda b: _nack(tx, b, delay, failure))


def _nack(tx: Tx, batch: Settlement, delay: int | None, failure: AttemptFailure) -> int | None:
    store = tx.lanes
    found = plan(store, batch, kinds.NACK)
    if found is None:
        return 0
    lane, (arrival,) = found
    left = _failed(store, found, tx.now, tx.config, delay, failure)
    trouble.set_(tx.db, arrival, left.noted)
    store.append(kinds.NACK, [found], token=batch.token, deadline=left.due)
    tx.wake = True
    if left.given_up is not None:
        ending.apply_poison(tx, lane, arrival, left.given_up)
        return None
    _set_aside(tx, lane, arrival, batch.seqs[0], left.due)
    return left.wait


class _Failed(NamedTuple):
    """What a nack makes of a message.

    Attributes:
        noted: what its attempts left.
        wait: microseconds until it is due. `due`: when that is; 0: now.
        given_up: why it is out of attempts; None: it is not.
    """

    noted: trouble.Trouble
    wait: int
    due: int
    given_up: str | None


def _failed(
    store: ShardLanes, found: Group, now: int, config: QueueConfig, delay: int | None, failure: AttemptFailure
) -> _Failed:
    """Return what a nack makes of a leased message. Nothing is changed."""
    lane, (arrival,) = found
    noted = expiring.attempted(store.db, lane, arrival, failure, now, now, crashed=False)
    starts, crashes, _ = lane.attempts(arrival)
    wait = retries.retry_delay(config, lane.key, starts + 1) if delay is None else delay
    due = due_after(now, wait, failed=delay is None) or 0
    failing = now - (noted.first_at or now)
    given_up = None
    if retries.given_up(config, starts + 1, crashes, failing):
        given_up = retries.why(config, starts + 1, crashes, failing, failure.error)
    return _Failed(noted, wait, due, given_up)


def _set_aside(tx: Tx, lane: LiveLane, arrival: int, seq: int, due: int) -> None:
    """Move a message that was given back, if it is keyless, to a lane of its own, so that it blocks no other message."""
    if is_keyless(lane.key) and ASIDE not in lane.key:
        ending.park(tx, lane, arrival, seq, due)


def defer(tx: Tx, batches: Sequence[Settlement], delay: int, reason: str | None) -> list[LeaseLost | None]:
    """Give back each batch's one message and everything later that its lease holds, without charging an attempt."""
    return _one_by_one(batches, lambda b: _defer(tx, b, delay, AttemptFailure(reason), failed=False, began=False))


def defer_failed(
    tx: Tx, batches: Sequence[Settlement], delay: int, failures: Sequence[AttemptFailure], began: bool
) -> list[LeaseLost | None]:
    """Do the same for messages that failed through no fault of their own, or that wait with such ones and did not begin.

    `end_failure_delays` may end their delays.
    """
    left = iter(failures)
    return _one_by_one(batches, lambda b: _defer(tx, b, delay, next(left), failed=True, began=began))


def _defer(tx: Tx, batch: Settlement, delay: int, failure: AttemptFailure, *, failed: bool, began: bool) -> None:
    # A nack and a defer give back the same messages, and a retried call must find the same record.
    store = tx.lanes
    found = plan(store, batch, kinds.DEFER)
    if found is None:
        return
    lane, (arrival,) = found
    due = due_after(tx.now, delay, failed=failed) or 0
    known = trouble.of(tx.db, arrival)
    noted = known
    if began:
        starts = lane.attempts(arrival)[0] + 1
        noted = known._replace(
            errors=with_failure(known.errors, starts, tx.now, failure), error=failure.error or known.error,
            output=failure.output or known.output,
        )  # fmt: skip
    elif failure.error is not None:  # not an attempt's error: only the reason why it waits
        noted = known._replace(error=failure.error)
    if noted != known:
        trouble.set_(tx.db, arrival, noted)
    store.append(kinds.DEFER, [found], token=batch.token, deadline=due)
    tx.wake = True
    _set_aside(tx, lane, arrival, batch.seqs[0], due)


FAILURE_MARK = 63
"""The low six bits of `due`, in microseconds, if a failure caused the delay. No other delay of a retry has these bits, so nothing
else is needed to distinguish them."""


def due_after(now: int, delay: int, *, failed: bool) -> int | None:
    """Return when a message that is given back is due; None: now. At most 63 µs earlier or 1 µs later than asked.

    Args:
        failed: it failed, and the delay is the queue's retry delay.
    """
    if delay <= 0:
        return None
    due = now + delay
    if failed:
        return due - (due - FAILURE_MARK) % (FAILURE_MARK + 1)
    return due + 1 if due & FAILURE_MARK == FAILURE_MARK else due


def reject(tx: Tx, batches: Sequence[Settlement], failure: AttemptFailure) -> list[LeaseLost | None]:
    """Dead-letter messages now, one of each batch. The error is the reason."""
    return _one_by_one(batches, lambda b: _reject(tx, b, failure))


def _reject(tx: Tx, batch: Settlement, failure: AttemptFailure) -> None:
    found = plan(tx.lanes, batch, kinds.REJECT)
    if found is None:
        return
    lane, (arrival,) = found
    starts = lane.attempts(arrival)[0] + 1
    known = trouble.of(tx.db, arrival)
    errors = with_failure(known.errors, starts, tx.now, failure)
    trouble.set_(tx.db, arrival, known._replace(errors=errors, output=failure.output or known.output))
    ending.bury(tx, lane, arrival, kind="rejected", reason=failure.error, starts=starts, token=batch.token)
    tx.wake = True


def note(tx: Tx, batches: Sequence[Settlement], said: Sequence[str]) -> list[LeaseLost | None]:
    """Store the output so far of the handlers of these messages, one of each batch."""
    texts = iter(said)
    return _one_by_one(batches, lambda b: _note(tx, b, next(texts)))


def _note(tx: Tx, batch: Settlement, said: str) -> None:
    lane = held_lane(tx.lanes, batch.key, batch.token)
    if lane is None or not is_of_lease(lane, batch.seqs[0]):
        raise lost(tx.lanes, batch)
    ids = held_ids(lane, batch.seqs[:1])
    if ids is not None:
        trouble.set_(tx.db, ids[0], trouble.of(tx.db, ids[0])._replace(output=said))


def release(tx: Tx, batches: Sequence[Settlement]) -> list[LeaseLost | None]:
    """Release a message of each lease, and everything later that it holds, unused."""
    return _one_by_one(batches, lambda b: _release(tx, b))


def _release(tx: Tx, batch: Settlement) -> None:
    store = tx.lanes
    lane = held_lane(store, batch.key, batch.token)
    if lane is None:
        raise lost(store, batch)
    left = lane.leased()
    ids = [i for seq, i in left if seq >= batch.seqs[0]]
    if ids and len(ids) < len(left):
        store.append(kinds.RELEASE, [(lane, ids[:1])], token=batch.token)
    elif ids or not left:
        store.append(kinds.RELEASE, [(lane, [])], token=batch.token, holder=kinds.BY_KEY, data=encode_keys([lane.key]))
    tx.wake = True


# ---- leases that last longer, or grow


def extend(tx: Tx, batches: Sequence[Settlement], length: int, late: bool = True) -> list[int | LeaseLost]:
    """Move the deadline of each lane's whole lease, counted from now. Return the new deadlines.

    Args:
        late: also if the deadline has passed, and no other consumer has taken the lane.
    """
    store, deadline = tx.lanes, min(tx.now + length, kinds.NEVER)
    results: list[int | LeaseLost] = []
    together: dict[int, dict[bytes, LiveLane]] = {}
    for batch in batches:
        lane = held_lane(store, batch.key, batch.token)
        if lane is None:
            results.append(lost(store, batch))
            continue
        if not late and lane.grant is not None and lane.grant.deadline <= tx.now:
            results.append(lost(store, batch, "the lease has ended"))
            continue
        results.append(deadline)
        together.setdefault(batch.token, {})[lane.key] = lane
    for token, lanes in together.items():
        groups: list[Group] = [(lane, []) for lane in lanes.values()]
        data = encode_keys(lanes)
        store.append(kinds.EXTEND, groups, token=token, deadline=deadline, holder=kinds.BY_KEY, data=data)
        tx.wake = True
    return results


def more(tx: Tx, batch: Settlement, limit: int) -> list[Row]:
    """Extend a lease over up to `limit` later messages of its lane, under the same token. Return them, seq ascending.

    Raises:
        LeaseLost: nothing changed.
    """
    store = tx.lanes
    lane = held_lane(store, batch.key, batch.token)
    if lane is None or not is_of_lease(lane, batch.seqs[0]):
        raise store.refuse(lost(store, batch))
    ids = _growth(tx, store, lane, limit)
    if not ids:
        return []
    store.append(kinds.MORE, [(lane, ids)], token=batch.token)
    messages = store.whole(ids)
    return [row_of(messages[i], lane.key, lane.attempts(i)[0], False, store.shard) for i in ids if i in messages]


def _growth(tx: Tx, store: ShardLanes, lane: LiveLane, most: int) -> list[int]:
    """Return the messages behind a lease that may join it: plain ones of a lease that is whole and not over."""
    grant, rare = lane.grant, lane.rare
    if (
        tx.config.paused
        or grant is None
        or not lane.held
        or grant.deadline <= tx.now
        or (rare is not None and (rare.hold or rare.front or rare.waiting or rare.closed))
    ):
        return []
    while lane.split and len(lane.ids or ()) < lane.held + most:
        if not store.loader.extend(lane, most):
            break
    behind = [(seq, i) for seq, i in enumerate((lane.ids or [])[lane.held :], lane.first + lane.held) if i][:most]
    times = store.log.times([i for _, i in behind]) if lane.expires or (rare is not None and rare.delayed) else {}
    found: list[int] = []
    for seq, i in behind:
        due, expires = times.get(i, (None, None))
        spared = rare is not None and i in rare.redriven
        if rare is not None:
            starts, crashes, until = lane.attempts(i)
            due = until if starts or until else due
            if seq <= rare.solo or retries.given_up(tx.config, starts, crashes):
                break
        if not spared and ((due or 0) > tx.now or 0 < (expires or 0) <= tx.now):
            break
        found.append(i)
    return found


# ---- single statements


def ack_one_alone(store: ShardLanes, now: int, given: tuple[bytes, int, int, QueueConfig]) -> bool | None:
    """Ack one message, of which key, token and seq are given, with a single statement. Return as `ack_alone`."""
    memory = store.memory
    key, token, seq, config = given
    lane = memory.lanes.get(key)
    if lane is None or (grant := lane.grant) is None or grant.token != token:
        return None
    ids = held_ids(lane, (seq,))
    if ids is None:
        return None
    entry = (
        memory.seen + 1, kinds.ACK, now if now > memory.at else memory.at, memory.top, token, 0, None,
        ids[0].to_bytes(8, "little", signed=True),
    )  # fmt: skip
    groups = [(lane, ids)]
    if not store.append_alone(entry, groups, record=_record(config, entry[2], groups, history.ACKED)):
        return None
    store.wake |= lane.listed != 0
    return True


def nack_alone(
    store: ShardLanes, now: int, given: tuple[Sequence[Settlement], int | None, AttemptFailure, QueueConfig]
) -> list[int | LeaseLost | None] | None:
    """Nack one message with a single statement. Return as `nack`. None: that is not possible now, and nothing was written."""
    batches, delay, failure, config = given
    if len(batches) != 1:
        return None
    (batch,), memory = batches, store.memory
    key, token = batch.key, batch.token
    lane = memory.lanes.get(key)
    if lane is None or lane.rest or (grant := lane.grant) is None or grant.token != token or is_keyless(key):
        return None  # a keyless message is parked
    ids = held_ids(lane, batch.seqs)
    if ids is None:
        return None
    # What is read here is valid, because the statement writes nothing if another process wrote since memory was current.
    left = _failed(store, (lane, ids), now, config, delay, failure)
    if left.given_up is not None:
        return None
    data = kinds.encode_groups([(lane, ids)])
    entry = (memory.seen + 1, kinds.NACK, max(now, memory.at), memory.top, token, left.due, None, data)
    if not store.append_alone(entry, [(lane, ids)], (ids[0], *left.noted)):
        return None
    store.wake = True
    return [left.wait]


def start_alone(store: ShardLanes, now: int, batch: Settlement) -> bool | None:
    """Charge an attempt of one message with a single statement. None: that is not possible now, or it is charged."""
    memory, token = store.memory, batch.token
    lane = memory.lanes.get(batch.key)
    if lane is None or (grant := lane.grant) is None or grant.token != token:
        return None
    ids = _startable(lane, batch.seqs[0])
    if ids is None:
        return None
    data = ids[0].to_bytes(8, "little", signed=True)
    entry = (memory.seen + 1, kinds.START, max(now, memory.at), memory.top, token, 0, None, data)
    return store.append_alone(entry, [(lane, ids)]) or None


def ack_claimed_alone(store: ShardLanes, now: int, given: tuple[Claimed, QueueConfig]) -> bool | None:
    """Ack everything that a claim leased with a single statement. Return as `ack_alone`."""
    claimed, config = given
    groups = _all_claimed(store, claimed)
    if not groups or sum([len(ids) for _, ids in groups]) != claimed.messages:
        return None
    memory = store.memory
    before = sending.listed(memory)
    entry = (memory.seen + 1, kinds.ACK, max(now, memory.at), memory.top, claimed.token, 0, None, kinds.encode_groups(groups))
    if not store.append_alone(entry, groups, record=_record(config, entry[2], groups, history.ACKED)):
        return None
    store.wake |= sending.listed(memory) != before
    return True


def _record(config: QueueConfig, now: int, groups: Sequence[Group], end: history.End) -> tuple[Any, ...] | None:
    """Return what `ending.record` does of messages of one claim, which are leased."""
    grant = groups[0][0].grant
    if config.history == "off" or grant is None:
        return None
    return ending.record(config, now, [i for _, ids in groups for i in ids], end, grant.at)


def ack_alone(store: ShardLanes, now: int, given: tuple[Sequence[Settlement], QueueConfig]) -> bool | None:
    """Ack messages with a single statement. None: that is not possible now, and nothing was written."""
    batches, config = given
    if not batches or (config.history != "off" and any(batch.end is not batches[0].end for batch in batches)):
        return None
    memory, token = store.memory, batches[0].token
    lanes = memory.lanes
    groups: list[Group] = []
    named: set[bytes] = set()
    starts = 0
    for batch in batches:
        key = batch.key
        if batch.token != token or key in named:
            return None
        lane, ids = lanes.get(key), None
        if lane is not None and (grant := lane.grant) is not None and grant.token == token:
            ids = held_ids(lane, batch.seqs)
        if lane is None or ids is None:
            return None  # memory may be behind, so only a transaction refuses
        if batch.start is not None:
            if not _is_next(lane, ids, batch.start):
                return None
            starts += 1
        groups.append((lane, ids))
        named.add(key)
    if starts not in (0, len(groups)):
        return None
    data, holder = kinds.encode_groups(groups), kinds.NEXT if starts else None
    before = sending.listed(memory)
    entry = (memory.seen + 1, kinds.ACK, max(now, memory.at), memory.top, token, 0, holder, data)
    if not store.append_alone(entry, groups, record=_record(config, entry[2], groups, batches[0].end)):
        return None
    store.wake |= sending.listed(memory) != before
    return True
