"""What a shard of format 2 contains. Times are queue time in microseconds; keys are in their stored form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

STARTS: Final = (1 << 32) - 1
"""The part of a message's `attempts` that counts starts of handlers. The higher bits count those without an outcome."""


class OldFailure(NamedTuple):
    """What failed attempts left with a message.

    Attributes:
        starts: starts of its handlers, in leases that have ended.
        crashes: how many of them ended without an outcome. 0 if `retry_for_seconds` is 0.
        first_at: start of the first failed attempt; if none has failed, of the first one whose lease expired.
        error, output: why the last attempt failed, and what its handler printed.
        errors: JSON, the last few failed attempts: [[attempt, time, error, traceback or null], …].
    """

    starts: int
    crashes: int
    first_at: int | None
    error: str | None
    output: str | None
    errors: str | None


class OldMessage(NamedTuple):
    """An unresolved message.

    Attributes:
        id: arrival number, unique in the shard.
        due, expires: when its delay and its TTL end.
        headers: JSON.
        failure: None: no attempt has failed.
    """

    id: int
    key: bytes
    seq: int
    sent_at: int
    due: int | None
    expires: int | None
    headers: str | None
    size_hint: float | None
    prepare_seconds: float | None
    process_seconds: float | None
    body: bytes
    failure: OldFailure | None


class OldResolution(NamedTuple):
    """The last resolution of a lane, which may be repeated under its token.

    Attributes:
        kind: "ack", "nack" or "reject".
        lo, hi, gaps: the seqs: a range, without some.
    """

    token: int
    kind: str
    lo: int
    hi: int
    gaps: Sequence[int]


class OldLease(NamedTuple):
    """The lease of a lane.

    Attributes:
        lo, hi: its messages are the unresolved ones of the lane with lo <= seq <= hi, unless `ack_first`.
        started: handlers were started for its messages up to this seq. Before the first start: lo - 2 if the holder calls start
            before each handler, otherwise lo - 1.
        pending: number of its unresolved messages.
        deadline: 2**62: it belongs to a named consumer's batch, and does not end by itself.
        expired: a claim saw it past its deadline, and listed the lane again.
        ack_first: its messages are resolved, and only the lane is held.
        closed: its last messages were returned, so it no longer grows.
    """

    token: int
    consumer: str
    lo: int
    hi: int
    started: int
    pending: int
    leased_at: int
    deadline: int
    expired: bool = False
    ack_first: bool = False
    closed: bool = False


class OldLane(NamedTuple):
    """The lane of a key. Without messages, it keeps its tail.

    Attributes:
        tail: the newest seq that was issued.
        seqs, ids: its unresolved messages and their arrival numbers, seq ascending.
        position: its place in the order of ready lanes; None: it is not listed.
        due: when its first message is due; None: it is not listed as delayed.
        hold, held_at: why it is held, and since when; None: it is not.
        solo_to: messages up to this seq are delivered one at a time.
        charged_to: no later message has attempts.
        active_at: when a message last left it; 0: never.
    """

    key: bytes
    tail: int
    seqs: Sequence[int]
    ids: Sequence[int]
    position: int | None
    due: int | None
    lease: OldLease | None
    hold: str | None
    held_at: int | None
    solo_to: int
    charged_to: int
    active_at: int
    done: OldResolution | None


class OldDeadLetter(NamedTuple):
    """A dead letter, with its message.

    Attributes:
        kind: "rejected", "poison" or "expired".
        redrive: it returns to its lane when the lane's lease ends.
    """

    key: bytes
    seq: int
    id: int
    sent_at: int
    died_at: int
    kind: str
    reason: str | None
    attempts: int
    headers: str | None
    size_hint: float | None
    prepare_seconds: float | None
    process_seconds: float | None
    output: str | None
    errors: str | None
    redrive: bool
    body: bytes


class OldDedup(NamedTuple):
    """A dedup id.

    Attributes:
        seq, id: the message that it stands for. seq is None in the second row of an id with `dedup_scope="queue"`.
        until: when its window ends.
    """

    key: bytes
    dedup_id: str
    seq: int | None
    id: int
    until: int
