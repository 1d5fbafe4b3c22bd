"""What the public layer calls inside a transaction, in one place: the operations, whatever module they live in."""

from __future__ import annotations

from typing import Final

from .._keys import KEYLESS
from .advance import Advance
from .claim import Claimed, Held, Request
from .frame import Tx
from .history import ACKED, End
from .lanes import ASIDE, is_keyless
from .outbox import put as put_in_outbox
from .program import AppDatabase, Rows
from .send import INLINE_BYTES_MAX, Item, Sent, require_valid, send
from .settle import (
    Ack,
    Batch,
    Lost,
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

DEDUP_LANES: Final = 64


def smaller(request: Request, room: int) -> Request:
    """The same request for fewer messages."""
    return request._replace(room=room)


def head_of(batch: Batch) -> Batch:
    """The batch's first message alone."""
    return Batch(batch.lane, batch.key, batch.token, [batch.seqs[0]])


def shared_key(key: bytes) -> bytes:
    """The key that state is kept under: a keyless message in a lane of its own shares that of the lane it came from."""
    return key.split(ASIDE)[0] if is_keyless(key) else key


def keyless_lane(lane: int) -> bytes:
    """The stored key of one of the lanes for keyless messages."""
    return KEYLESS + b"%d" % lane


def keyless_by_hash(dedup_id: str) -> bytes:
    """The lane that a dedup id chooses: the same one whatever `keyless_lanes` is, so that a repeated send is recognised."""
    from .._hashing import hash_key

    return keyless_lane(hash_key(dedup_id.encode()) % DEDUP_LANES)


__all__ = [
    "ACKED", "INLINE_BYTES_MAX", "Ack", "Advance", "AppDatabase", "Batch", "Claimed", "End", "Held", "Item", "Lost", "Request",
    "Rows", "Sent", "Tx", "ack_lane", "done_before",
    "extend", "head_of", "key_state", "keyless_by_hash", "keyless_lane", "lowest_unresolved", "more", "nack", "put_in_outbox",
    "reject", "release", "release_all", "require_valid", "send", "set_key_state", "shared_key", "smaller", "start",
]  # fmt: skip
