"""Batches of a named consumer: numbered, recorded as blocks in the transaction that leases them, and leased until acked.

Every function works on one shard. A batch's leases have no deadline. They end by an ack, by a release, or message by message when
an operator rejects one. Recorded blocks never change, so reading a batch again gives the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw

from ... import _hints as hints
from ..._errors import ConsumerLost, HandoutGone, InvalidArgument, StoreCorrupt, UnknownMessage
from ..._keys import decode_key
from ..._sql import HANDOUT, LANES, SETTLE
from ..bulk import packing
from ..bulk.columns import PackedColumns
from ..commit.tx import NEVER, Totals, Tx
from ..disk.stored import present
from ..onelane import operating, recording
from . import claim, history, lanes, retries, settle
from .leases import Claimed, Held, Request, Settlement

if TYPE_CHECKING:
    from ..onelane.shard_lanes import ShardLanes

PRUNE_STEP: Final = 2
"""The number of old batches that one transaction deletes."""
RELEASE_STEP: Final = 500
"""The number of lanes that one transaction of a release gives back."""
LANES_STEP: Final = 2_000
"""The same in a shard of format 3, where it is one entry."""
OLDEST_OVER: Final = 10_000
"""The number of lanes of a batch whose heads are read for ages."""


class Block(NamedTuple):
    """Some messages of a batch, packed.

    Attributes:
        fresh: it begins with a lane that no earlier block of this shard's part has.
    """

    messages: int
    fresh: bool
    data: bytes


class Part(NamedTuple):
    """A block as it is stored in a shard, without its data."""

    shard: int
    part: int
    messages: int
    bytes: int
    fresh: bool


Encode = Callable[[Sequence[Held | PackedColumns], int], Iterable[Block]]
"""Packs the leases of a shard (its number), lane by lane and in order. Runs inside the write transaction."""


class Known(NamedTuple):
    """A shard's state of a consumer.

    Attributes:
        open: batches that are neither acked nor released.
        released: batches that were released and are still recorded.
    """

    epoch: int
    last: int
    acked: int
    floor: int
    open: frozenset[int]
    released: frozenset[int]


def look(db: apsw.Connection, name: str) -> Known:
    row: Any = db.execute(HANDOUT.consumer, (name,)).get
    if row is None:
        return Known(0, 0, 0, 0, frozenset(), frozenset())
    unresolved: list[Any] = db.execute(HANDOUT.open_handouts, (name, NEVER)).fetchall()
    released: list[Any] = db.execute(HANDOUT.released, (name,)).fetchall()
    epoch, last, acked, floor = row
    return Known(epoch, last, acked, floor, frozenset(n for n, _ in unresolved), frozenset(n for n, _ in released))


def pending_behind(db: apsw.Connection, name: str, n: int, pending: int | None = None) -> int:
    """Return an estimate of the unresolved messages, without those that an ack of batches up to n resolves.

    Messages that were rejected from those batches are subtracted twice. An exact count would read every lease.

    Args:
        pending: the unresolved messages of the shard. None: read them, in a shard of format 1 or 2.
    """
    in_flight: Any = db.execute(HANDOUT.open_messages, (name, n)).get
    return max((Totals.read(db).pending if pending is None else pending) - int(in_flight), 0)


def recorded_behind(db: apsw.Connection, name: str, n: int) -> int:
    """Return the number of messages of open batches after n, counted as they were delivered."""
    found: int = db.execute(HANDOUT.open_messages_behind, (name, n)).get
    return found


# ---- the holder of the consumer


def take_over(tx: Tx, name: str, epoch: int) -> bool:
    """Begin an epoch of the consumer, which fences every earlier holder. Return False if a later one has begun."""
    tx.run(HANDOUT.add_consumer, (name,))
    if tx.run(HANDOUT.consumer, (name,)).get[0] >= epoch:
        return False
    tx.run(HANDOUT.set_epoch, (epoch, name))
    return True


def require(tx: Tx, name: str, epoch: int) -> None:
    """Raise if this epoch of the consumer is over.

    Raises:
        ConsumerLost: nothing changed.
    """
    row = tx.run(HANDOUT.consumer, (name,)).get
    if row is None or row[0] != epoch:
        raise ConsumerLost(f"consumer {name!r} was taken over or released")


# ---- recording, acknowledging, forgetting


def record(tx: Tx, name: str, n: int, request: Request, encode: Encode) -> tuple[int, int, bool]:
    """Lease what is ready, and record it as this shard's part of batch n.

    Returns:
        The number of messages, the bytes of their blocks, and whether bounded work was cut short, so that another claim is
        needed.
    """
    if tx.lanes is not None:
        claimed, packed = recording.claim(tx, request, lambda claimed: _packed(tx, claimed, encode))
        blocks = packed or []
    else:
        claimed = claim.with_bodies(tx, claim.claim(tx, request))
        blocks = _packed(tx, claimed, encode) if claimed.token else []
    if not claimed.token:
        return 0, 0, claimed.more
    messages = claimed.messages
    assert sum(b.messages for b in blocks) == messages, "the encoder must pack what it was given"
    size = sum(len(b.data) for b in blocks)
    tx.run(HANDOUT.insert_handout, (name, n, claimed.token, messages, size, tx.now))
    tx.many(HANDOUT.insert_block, [(name, n, part, b.messages, b.fresh, b.data) for part, b in enumerate(blocks)])
    tx.run(HANDOUT.set_last, (n, name))
    return messages, size, False


def _packed(tx: Tx, claimed: Claimed, encode: Encode) -> list[Block]:
    try:
        return list(encode([*claimed.leases, *claimed.columns], tx.shard))
    except (TypeError, OverflowError) as e:
        # Unchanged, these errors would be taken for damage to the file.
        raise InvalidArgument(f"the messages can't be packed: {e}") from e


def ack(tx: Tx, name: str, upto: int) -> int:
    """Ack the messages of this shard's open batches up to a number. Return how many; a repetition returns 0."""
    resolved = 0
    for n, token in tx.run(HANDOUT.open_handouts, (name, upto)).fetchall():
        resolved += recording.ack(tx, token) if tx.lanes is not None else _ack_leases(tx, token)
        tx.run(HANDOUT.resolve, (name, n))
        tx.run(HANDOUT.set_acked, (n, name))
    return resolved


def _ack_leases(tx: Tx, token: int) -> int:
    lanes_held, messages, first, last, unlike = tx.run(HANDOUT.sum_of_leases, (token,)).get
    few_each = messages < packing.PAYS * lanes_held
    if few_each and not unlike and tx.config.history == "off" and not tx.run(HANDOUT.any_apart).get:
        _ack_together(tx, token, lanes_held, messages, (first, last))
        return int(messages)
    return _ack_by_lane(tx, token)


def _ack_together(tx: Tx, token: int, lanes_held: int, messages: int, between: tuple[int, int]) -> None:
    """Ack many leases of few messages each, with statements over all of them. A call per lane would take most of the time.

    Args:
        between: the first and the last of their lanes. If no other lane between them has messages, as with new keys, a single
            range contains all of the batch's messages.
    """
    before = tx.db.total_changes()
    alone = False
    if tx.run(HANDOUT.count_between, (*between, messages + 1)).get == messages:
        alone = True
        tx.run(HANDOUT.delete_between, between)
    else:
        tx.run(HANDOUT.delete_single if messages == lanes_held else HANDOUT.delete_messages, (token,))
    if tx.db.total_changes() - before != messages:
        raise StoreCorrupt("the leases of a batch do not match its messages", shard=tx.shard)
    tx.run(HANDOUT.finish_lanes, (token, tx.now))
    if not alone:  # else no lane between them has a message left
        settle.list_heads(tx, tx.run(HANDOUT.next_heads, (token,)).fetchall())
    tx.run(HANDOUT.delete_leases, (token,))
    tx.totals.pending -= messages
    tx.count_acks(messages)


def _ack_by_lane(tx: Tx, token: int) -> int:
    apart: dict[int, list[int]] = {}
    if tx.run(HANDOUT.any_apart).get:  # if there is none, the messages need not be read
        for lane, arrival in tx.run(HANDOUT.apart, (token,)):
            apart.setdefault(lane, []).append(arrival)
    whole: list[Settlement] = []
    others: list[Settlement] = []
    for lane, key, lo, hi, pending, redrive in tx.run(HANDOUT.leases, (token,)).fetchall():
        seqs: Sequence[int] = range(lo, hi + 1)
        as_handed_out = len(seqs) == pending and not redrive
        if len(seqs) != pending:
            seqs = [row[0] for row in tx.run(SETTLE.rows_between, (lane, lo, hi))]
        batch = Settlement(lane, key, token, seqs, whole=True, apart=apart.get(lane, ()))
        (whole if as_handed_out else others).append(batch)
    # No other call can end these leases. Without a savepoint SQLite need not copy every page that it deletes messages from.
    if (whole and not settle.ack_whole(tx, whole)) or (others and any(settle.ack(tx, others))):
        raise StoreCorrupt("the leases of a batch do not match its messages", shard=tx.shard)
    return sum(len(b.seqs) for b in whole) + sum(len(b.seqs) for b in others)


def prune(tx: Tx, name: str, upto: int) -> int:
    """Delete resolved batches up to a number, in one bounded step. Return the last deleted one, or 0."""
    old = tx.run(HANDOUT.too_old, (name, upto, PRUNE_STEP)).fetchall()
    for (n,) in old:
        _delete(tx, name, n)
        tx.run(HANDOUT.set_floor, (n, name))
    return old[-1][0] if old else 0


def _delete(tx: Tx, name: str, n: int) -> None:
    for statement in (HANDOUT.delete_blocks, HANDOUT.delete_rejected, HANDOUT.delete_handout):
        tx.run(statement, (name, n))


# ---- releasing


def release(tx: Tx, name: str, upto: int = NEVER) -> int:
    """Mark open batches up to a number as released: they can't be acked or read any more. `finish_release` ends their leases.

    Returns:
        How many were open.
    """
    found = tx.run(HANDOUT.open_handouts, (name, upto)).fetchall()
    for n, _ in found:
        tx.run(HANDOUT.give_up, (name, n))
        tx.run(HANDOUT.set_acked, (n, name))
        tx.run(HANDOUT.delete_blocks, (name, n))
    return len(found)


def finish_release(tx: Tx, name: str) -> tuple[int, bool]:
    """Give back lanes of released batches, in one bounded step, without charging an attempt.

    Returns:
        The number of messages, and whether there are more.
    """
    messages = 0
    for _, token in tx.run(HANDOUT.released, (name,)).fetchall():
        if tx.lanes is not None:
            returned, ended = recording.give_back(tx, token, LANES_STEP)
            messages += returned
            if ended == LANES_STEP:
                return messages, True
            continue
        found = tx.run(HANDOUT.some_leases, (token, RELEASE_STEP)).fetchall()
        messages += _end_leases(tx, found)
        if len(found) == RELEASE_STEP:
            return messages, True
    return messages, False


def withdraw(tx: Tx, name: str, epoch: int, n: int) -> None:
    """Undo this shard's part of the newest batch, and charge no attempt. In one step: a part is recorded whole or not at all.

    Raises:
        ConsumerLost: this epoch of the consumer is over. Nothing changed.
    """
    require(tx, name, epoch)
    token = dict(tx.run(HANDOUT.open_handouts, (name, n)).fetchall()).get(n)
    if token is None:
        return
    if tx.lanes is not None:
        recording.give_back(tx, token)
    else:
        _end_leases(tx, tx.run(HANDOUT.unlike_leases, (token,)).fetchall())
        settle.list_heads(tx, tx.run(HANDOUT.next_heads, (token,)).fetchall())
        tx.run(HANDOUT.delete_leases, (token,))
    _delete(tx, name, n)
    tx.run(HANDOUT.set_back_last, (name,))


def _end_leases(tx: Tx, found: Iterable[tuple[Any, ...]]) -> int:
    """Give back lanes of a batch one by one, without charging an attempt. Return the number of their messages."""
    messages = 0
    for (lane,) in found:
        lease = lanes.lease_of(tx, lane)
        assert lease is not None
        lanes.release_lane(tx, lease)
        messages += lease.pending
    return messages


def settle_one(tx: Tx, key: bytes, seq: int, reason: str | None, *, force: bool) -> bool:
    """Settle an unresolved message in the place of its consumer. A batch that holds it is read without it from now on.

    Args:
        reason: dead-letter it for this reason; None: ack it.
        force: end a timed lease that holds it.
    Returns:
        Whether it was unresolved.
    Raises:
        UnknownMessage: that seq was never issued for that key.
        InvalidArgument: a consumer with a timed lease has it, and `force` is False. Nothing changed.
    """
    if tx.lanes is not None:
        return operating.settle_one(tx, key, seq, reason, force=force)
    lane = lanes.find(tx, key)
    row = None if lane is None else lanes.get(tx, lane)
    if lane is None or row is None or not 1 <= seq <= lanes.tail(tx, row):
        raise UnknownMessage(f"key {decode_key(key)!r} has no message with seq {seq}")
    if not tx.run(SETTLE.rows_between, (lane, seq, seq)).fetchall():
        return False
    lease = lanes.lease_of(tx, lane)
    if lease is not None and (lease.expired or lease.deadline <= tx.now):
        # Its time is over, and no consumer took the lane. Messages resolved on receive had no handler that could have failed.
        (lanes.release_lane if lease.ack_first else lanes.retake)(tx, lease)
        lease = None
    holder = lease if lease is not None and lease.lo <= seq <= lease.hi and not lease.ack_first else None
    charged = holder is not None
    if holder is not None and holder.deadline != NEVER:
        if not force:
            raise InvalidArgument(
                f"seq {seq} of key {decode_key(key)!r} is held by {holder.consumer}",
                hint=hints.LEASED_REJECT,
            )
        # The token dies with the row. It is not remembered for this message, so that its holder's ack is refused.
        charged = seq <= holder.started
        tx.run(LANES.delete_lease, (lane,))
        tx.report("lease_lost", key, holder.lo, holder.token, f"an operator ended the lease of {holder.consumer}")
        lease = holder = None
    _, arrival, apart, stored = present(tx.run(SETTLE.rows_between, (lane, seq, seq)).get, f"message {seq} of a lane")
    if reason is None:
        lanes.remove(tx, lane, [(seq, arrival, bool(apart))], history.End("acked", int(charged)))
        tx.count_acks(1)
    else:
        lanes.bury(tx, lane, key, seq, kind="rejected", reason=reason, starts=retries.starts(stored) + charged)
    if holder is not None:
        n = tx.run(HANDOUT.handout_of, (holder.consumer, holder.token)).get
        if n is not None:
            tx.run(HANDOUT.add_rejected, (holder.consumer, n, arrival))
        settle.shrink(tx, holder, 1)
    if lease is None:
        lanes.unlist(tx, lane)
        lanes.place(tx, lane)
    return True


# ---- reading


def parts(db: apsw.Connection, name: str, n: int, shard: int) -> list[Part]:
    """Return this shard's blocks of a batch; empty if it has no part of it.

    Raises:
        HandoutGone: it was released.
    """
    state = db.execute(HANDOUT.state, (name, n)).get
    if state == "released":
        raise HandoutGone(f"batch {n} of consumer {name!r} was released, and other consumers may have received its messages")
    rows: list[Any] = db.execute(HANDOUT.parts, (name, n)).fetchall()
    return [Part(shard, part, messages, size, bool(fresh)) for part, messages, size, fresh in rows]


def block(db: apsw.Connection, name: str, n: int, part: int) -> bytes | None:
    data: bytes | None = db.execute(HANDOUT.block, (name, n, part)).get
    return data


def rejected(db: apsw.Connection, name: str, n: int) -> list[int]:
    """Return the arrival numbers of the messages to omit."""
    return [arrival for (arrival,) in db.execute(HANDOUT.rejected, (name, n))]


class Standing(NamedTuple):
    """A consumer in one shard, as an operator sees it."""

    name: str
    last: int
    acked: int
    open: frozenset[int]
    in_flight: int
    oldest: int | None
    since: int | None
    kept: frozenset[int]
    kept_bytes: int


def standings(db: apsw.Connection, store: ShardLanes | None = None) -> list[Standing]:
    """Return the consumers of a shard.

    Args:
        store: the lanes of a shard of format 3.
    """
    out = []
    rows: list[Any] = db.execute(HANDOUT.consumers).fetchall()
    for name, _, last, acked, _ in rows:
        unresolved: list[Any] = db.execute(HANDOUT.open_handouts, (name, NEVER)).fetchall()
        in_flight: int
        if store is not None:
            in_flight = db.execute(HANDOUT.unresolved_messages, (name,)).get
            sent = [recording.oldest(store, token, OLDEST_OVER) for _, token in unresolved]
        else:
            in_flight = sum(db.execute(HANDOUT.in_flight, (token,)).get for _, token in unresolved)
            sent = [db.execute(HANDOUT.oldest, (token, OLDEST_OVER)).get for _, token in unresolved]
        since = db.execute(HANDOUT.open_since, (name,)).get
        kept: list[tuple[Any, ...]] = db.execute(HANDOUT.kept, (name,)).fetchall()
        out.append(
            Standing(
                name, last, acked, frozenset(n for n, _ in unresolved), in_flight,
                min((at for at in sent if at is not None), default=None), since, frozenset(n for n, _ in kept),
                sum(size for _, size in kept),
            )
        )  # fmt: skip
    return out
