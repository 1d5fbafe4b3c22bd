"""What the public layer calls inside a transaction, in one place: the operations, whatever module they live in."""

from __future__ import annotations

import attrs

from .._keys import KEYLESS, hash_key
from .advance import Advance
from .claim import Claimed, Held, Request
from .frame import Tx
from .outbox import put as put_in_outbox
from .program import AppDatabase, Rows
from .send import INLINE_BYTES_MAX, Item, Sent, send
from .settle import (
    Batch,
    ack,
    ack_lane,
    done_before,
    extend,
    key_state,
    lowest_unresolved,
    more,
    nack,
    reject,
    release,
    release_all,
    set_key_state,
    start,
)


def smaller(request: Request, room: int) -> Request:
    """The same request for fewer messages."""
    return attrs.evolve(request, room=room)


def head_of(batch: Batch) -> Batch:
    """The batch's first message alone."""
    return Batch(batch.lane, batch.key, batch.token, [batch.seqs[0]])


def keyless_lane(lane: int) -> bytes:
    """The stored key of one of the lanes for keyless messages."""
    return KEYLESS + b"%d" % lane


def keyless_by_hash(dedup_id: str, lanes: int) -> bytes:
    """The lane that a dedup id chooses: always the same one, so that a repeated send is recognised."""
    return keyless_lane(hash_key(dedup_id.encode()) % lanes)


__all__ = [
    "INLINE_BYTES_MAX", "Advance", "AppDatabase", "Batch", "Claimed", "Held", "Item", "Request", "Rows", "Sent", "Tx",
    "ack", "ack_lane", "done_before",
    "extend", "head_of", "key_state", "keyless_by_hash", "keyless_lane", "lowest_unresolved", "more", "nack", "put_in_outbox",
    "reject", "release", "release_all", "send", "set_key_state", "smaller", "start",
]  # fmt: skip
