"""Forwarding: what outboxes hold goes to its shards, each step synced before the next one counts on it. outbox.py says why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._errors import ForwardPending, StoreCorrupt, StrictqError
from . import outbox
from .calls import bound
from .shard import Shard


def forward(shards: Sequence[Shard], origins: Iterable[Shard]) -> None:
    """Bring what waits in the outboxes of these shards to where it goes.

    Raises:
        ForwardPending: something could not be forwarded now; it will be.
    """
    failed: StrictqError | None = None
    for origin in origins:
        try:
            _from(shards, origin)
        except StrictqError as e:
            failed = e
    if failed is not None:
        raise ForwardPending(f"some sends have yet to arrive: {failed}") from failed


def _from(shards: Sequence[Shard], origin: Shard) -> None:
    """What one shard has for the others; a destination that fails does not hold up the next one."""
    failed: StrictqError | None = None
    for number in origin.read(outbox.destinations):
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
    while rows := origin.read(bound(outbox.waiting, number)):
        origin.sync()
        destination.drain(bound(outbox.arrive, origin.incarnation, rows))
        destination.sync()
        origin.drain(bound(outbox.forget, number, rows[-1][0]))
