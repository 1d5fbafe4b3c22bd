"""Batches of a named consumer: numbered, recorded as blocks in the transaction that leases them, and leased until acked.

Every function works on one shard. A batch's leases have no deadline. They end by an ack, by a release, or message by message when
an operator rejects one. Recorded blocks never change, so reading a batch again gives the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import apsw

from ..._sql import RECORDED_BATCHES
from ..._values.errors import ConsumerLost, InvalidArgument, RecordedBatchGone
from ..commit.tx import NEVER
from . import batch_leases
from .leases import Claimed, Held, PackedColumns, Request
from .shard_lanes import ShardLanes, Tx

PRUNE_STEP: Final = 2
"""The number of old batches that one transaction deletes."""
RELEASE_STEP: Final = 2_000
"""The number of lanes that one transaction of a release gives back, in one entry."""
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
    row: Any = db.execute(RECORDED_BATCHES.consumer, (name,)).get
    if row is None:
        return Known(0, 0, 0, 0, frozenset(), frozenset())
    unresolved: list[Any] = db.execute(RECORDED_BATCHES.open_batches, (name, NEVER)).fetchall()
    released: list[Any] = db.execute(RECORDED_BATCHES.released, (name,)).fetchall()
    epoch, last, acked, floor = row
    return Known(epoch, last, acked, floor, frozenset(n for n, _ in unresolved), frozenset(n for n, _ in released))


def pending_behind(db: apsw.Connection, name: str, n: int, pending: int) -> int:
    """Return an estimate of the unresolved messages, without those that an ack of batches up to n resolves.

    Messages that were rejected from those batches are subtracted twice. An exact count would read every lease.

    Args:
        pending: the unresolved messages of the shard.
    """
    in_flight: Any = db.execute(RECORDED_BATCHES.open_messages, (name, n)).get
    return max(pending - int(in_flight), 0)


def recorded_behind(db: apsw.Connection, name: str, n: int) -> int:
    """Return the number of messages of open batches after n, counted as they were delivered."""
    found: int = db.execute(RECORDED_BATCHES.open_messages_behind, (name, n)).get
    return found


# ---- the holder of the consumer


def take_over(tx: Tx, name: str, epoch: int) -> bool:
    """Begin an epoch of the consumer, which fences every earlier holder. Return False if a later one has begun."""
    tx.run(RECORDED_BATCHES.add_consumer, (name,))
    if tx.run(RECORDED_BATCHES.consumer, (name,)).get[0] >= epoch:
        return False
    tx.run(RECORDED_BATCHES.set_epoch, (epoch, name))
    return True


def require(tx: Tx, name: str, epoch: int) -> None:
    """Raise if this epoch of the consumer is over.

    Raises:
        ConsumerLost: nothing changed.
    """
    row = tx.run(RECORDED_BATCHES.consumer, (name,)).get
    if row is None or row[0] != epoch:
        raise ConsumerLost(f"consumer {name!r} was taken over or released")


# ---- recording, acknowledging, forgetting


def record(tx: Tx, name: str, n: int, request: Request, encode: Encode) -> tuple[int, int, bool]:
    """Lease what is ready, and record it as this shard's part of batch n.

    Returns:
        The number of messages, the bytes of their blocks, and whether bounded work was cut short, so that another claim is
        needed.
    """
    ranges = tx.lanes.memory.ranges
    if ranges is not None and ranges.leaving is not None:
        return 0, 0, False  # a lane of a batch can't move, so new batches would hold the range for ever
    claimed, blocks = batch_leases.claim(tx, request, lambda claimed: _packed(tx, claimed, encode))
    if blocks is None:
        return 0, 0, claimed.more
    messages = claimed.messages
    assert sum(b.messages for b in blocks) == messages, "the encoder must pack what it was given"
    size = sum(len(b.data) for b in blocks)
    tx.run(RECORDED_BATCHES.insert_batch, (name, n, claimed.token, messages, size, tx.now))
    tx.many(RECORDED_BATCHES.insert_block, [(name, n, part, b.messages, b.fresh, b.data) for part, b in enumerate(blocks)])
    tx.run(RECORDED_BATCHES.set_last, (n, name))
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
    for n, token in tx.run(RECORDED_BATCHES.open_batches, (name, upto)).fetchall():
        resolved += batch_leases.ack(tx, token)
        tx.run(RECORDED_BATCHES.resolve, (name, n))
        tx.run(RECORDED_BATCHES.set_acked, (n, name))
    return resolved


def prune(tx: Tx, name: str, upto: int) -> int:
    """Delete resolved batches up to a number, in one bounded step. Return the last deleted one, or 0."""
    old = tx.run(RECORDED_BATCHES.too_old, (name, upto, PRUNE_STEP)).fetchall()
    for (n,) in old:
        _delete(tx, name, n)
        tx.run(RECORDED_BATCHES.set_floor, (n, name))
    return old[-1][0] if old else 0


def _delete(tx: Tx, name: str, n: int) -> None:
    for statement in (RECORDED_BATCHES.delete_blocks, RECORDED_BATCHES.delete_rejected, RECORDED_BATCHES.delete_batch):
        tx.run(statement, (name, n))


# ---- releasing


def release(tx: Tx, name: str, upto: int = NEVER) -> int:
    """Mark open batches up to a number as released: they can't be acked or read any more. `finish_release` ends their leases.

    Returns:
        How many were open.
    """
    found = tx.run(RECORDED_BATCHES.open_batches, (name, upto)).fetchall()
    for n, _ in found:
        tx.run(RECORDED_BATCHES.give_up, (name, n))
        tx.run(RECORDED_BATCHES.set_acked, (n, name))
        tx.run(RECORDED_BATCHES.delete_blocks, (name, n))
    return len(found)


def finish_release(tx: Tx, name: str) -> tuple[int, bool]:
    """Give back lanes of released batches, in one bounded step, without charging an attempt.

    Returns:
        The number of messages, and whether there are more.
    """
    messages = 0
    for _, token in tx.run(RECORDED_BATCHES.released, (name,)).fetchall():
        returned, ended = batch_leases.give_back(tx, token, RELEASE_STEP)
        messages += returned
        if ended == RELEASE_STEP:
            return messages, True
    return messages, False


def withdraw(tx: Tx, name: str, epoch: int, n: int) -> None:
    """Undo this shard's part of the newest batch, and charge no attempt. In one step: a part is recorded whole or not at all.

    Raises:
        ConsumerLost: this epoch of the consumer is over. Nothing changed.
    """
    require(tx, name, epoch)
    token = dict(tx.run(RECORDED_BATCHES.open_batches, (name, n)).fetchall()).get(n)
    if token is None:
        return
    batch_leases.give_back(tx, token)
    _delete(tx, name, n)
    tx.run(RECORDED_BATCHES.set_back_last, (name,))


# ---- reading


def parts(db: apsw.Connection, name: str, n: int, shard: int) -> list[Part]:
    """Return this shard's blocks of a batch; empty if it has no part of it.

    Raises:
        RecordedBatchGone: it was released.
    """
    state = db.execute(RECORDED_BATCHES.state, (name, n)).get
    if state == "released":
        raise RecordedBatchGone(
            f"batch {n} of consumer {name!r} was released, and other consumers may have received its messages"
        )
    rows: list[Any] = db.execute(RECORDED_BATCHES.parts, (name, n)).fetchall()
    return [Part(shard, part, messages, bool(fresh)) for part, messages, fresh in rows]


def block(db: apsw.Connection, name: str, n: int, part: int) -> bytes | None:
    data: bytes | None = db.execute(RECORDED_BATCHES.block, (name, n, part)).get
    return data


def rejected(db: apsw.Connection, name: str, n: int) -> list[int]:
    """Return the arrival numbers of the messages to omit."""
    return [arrival for (arrival,) in db.execute(RECORDED_BATCHES.rejected, (name, n))]


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


def has_consumers(db: apsw.Connection) -> bool:
    """Return whether a shard has consumers. Reads no lane."""
    return bool(db.execute(RECORDED_BATCHES.consumers).fetchall())


def standings(store: ShardLanes) -> list[Standing]:
    """Return the consumers of a shard."""
    db, out = store.db, []
    rows: list[Any] = db.execute(RECORDED_BATCHES.consumers).fetchall()
    for name, _, last, acked, _ in rows:
        unresolved: list[Any] = db.execute(RECORDED_BATCHES.open_batches, (name, NEVER)).fetchall()
        in_flight: int = db.execute(RECORDED_BATCHES.unresolved_messages, (name,)).get
        sent = [batch_leases.oldest(store, token, OLDEST_OVER) for _, token in unresolved]
        since = db.execute(RECORDED_BATCHES.open_since, (name,)).get
        kept: list[tuple[Any, ...]] = db.execute(RECORDED_BATCHES.kept, (name,)).fetchall()
        out.append(
            Standing(
                name, last, acked, frozenset(n for n, _ in unresolved), in_flight,
                min((at for at in sent if at is not None), default=None), since, frozenset(n for n, _ in kept),
                sum(size for _, size in kept),
            )
        )  # fmt: skip
    return out
