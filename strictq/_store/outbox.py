"""Sends of a transaction to other shards: written with the transaction, forwarded after it.

SQLite has no atomic commit over several WAL files. So the origin records the send in its own transaction, and forwarding repeats
until the destination has it: first in, first out per (origin, destination), and idempotent by a high-water mark that the
destination keeps for ever. The origin's WAL is synced before forwarding, and the destination's before the origin deletes the
send, so that no power cut leaves one half of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from .._errors import ForwardPending, StoreCorrupt, StrictqError
from .._sql import OUTBOX
from .commit.calls import bound
from .commit.tx import Tx
from .shard.messages import Item, Options, Sent, Times, times_of
from .shard.sending import send
from .shard_file import Shard

FORWARD_STEP: Final = 500


def put(tx: Tx, destination: int, item: Item) -> int:
    """Record a send to another shard in this transaction. Return its number. Delay, TTL and age count from now."""
    key, body, options, _ = item
    options = options or Options()
    times = times_of(tx.now, options, tx.config)
    number = tx.totals.last_outbox = tx.totals.last_outbox + 1
    tx.run(
        OUTBOX.insert,
        (destination, number, key, times.sent_at, times.due, times.expires, options.dedup_id, options.headers,
         options.size_hint, options.prepare_seconds, options.process_seconds, body),
    )  # fmt: skip
    return number


def destinations(db: Any) -> list[int]:
    return [shard for (shard,) in db.execute(OUTBOX.destinations)]


def waiting(db: Any, destination: int) -> list[tuple[Any, ...]]:
    """Return the next sends that wait for one destination, oldest first."""
    rows: list[tuple[Any, ...]] = db.execute(OUTBOX.waiting, (destination, FORWARD_STEP)).fetchall()
    return rows


def arrive(tx: Tx, origin: str, rows: list[tuple[Any, ...]]) -> list[tuple[int, Sent]]:
    """Send what has not arrived yet, at the destination. Return the numbers, and their places."""
    high = tx.run(OUTBOX.high_water, (origin,)).get or 0
    items: list[Item] = []
    numbers: list[int] = []
    for i, key, sent_at, due, expires, dedup_id, headers, size_hint, prepare_seconds, process_seconds, body in rows:
        if i > high:
            options = Options(dedup_id, 0, None, headers, size_hint, prepare_seconds, process_seconds)
            items.append((key, body, options, Times(sent_at, due, expires)))
            numbers.append(i)
            high = i
    if not items:
        return []
    sent = send(tx, items)
    tx.run(OUTBOX.set_high_water, (origin, high))
    return list(zip(numbers, sent, strict=True))


def forget(tx: Tx, destination: int, up_to: int) -> None:
    """Delete what has durably arrived, at the origin."""
    tx.run(OUTBOX.delete, (destination, up_to))


# ---- forwarding; each step is synced before the next one relies on it


def forward(shards: Sequence[Shard], origins: Iterable[Shard]) -> None:
    """Forward what waits in the outboxes of these shards.

    Raises:
        ForwardPending: something could not be forwarded now. It will be forwarded later.
    """
    failed: StrictqError | None = None
    for origin in origins:
        try:
            _from(shards, origin)
        except StrictqError as e:
            failed = e
    if failed is not None:
        raise ForwardPending(f"some sends have not arrived yet: {failed}") from failed


def _from(shards: Sequence[Shard], origin: Shard) -> None:
    """Forward one shard's sends to the others. A destination that fails does not block the next one."""
    failed: StrictqError | None = None
    for number in origin.read(destinations):
        try:
            if not 0 <= number < len(shards):
                raise StoreCorrupt(f"its outbox names shard {number}, which does not exist", shard=origin.number)
            _to(origin, shards[number])
        except StrictqError as e:
            failed = e
    if failed is not None:
        raise failed


def _to(origin: Shard, destination: Shard) -> None:
    number = destination.number
    while rows := origin.read(bound(waiting, number)):
        origin.sync()
        destination.drain(bound(arrive, origin.incarnation, rows))
        destination.sync()
        origin.drain(bound(forget, number, rows[-1][0]))
