"""Read-only reports on a shard. Every function runs in one read transaction."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._platform.clock import QueueTime
from ..._sql import LOOKS, RECORDED_BATCHES
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import UnknownMessage
from ..._values.handlers import TYPE_HEADER, paused
from ..._values.keys import decode_key
from ..._values.retries import span
from ..._values.stats import ShardStats
from ..commit.tx import NEVER, RARE, SECOND, decayed_rate
from ..lane.order import place_of_arrival
from . import counting, failures, looking
from .looking import LaneView
from .messages import headers_of
from .shard_lanes import ShardLanes

if TYPE_CHECKING:
    from ..._values.findings import AttemptError, Explanation, KeyDepth, MessageStatus, PeekedMessage

Limited = Callable[[bytes], "str | None"]
"""Returns why the tenant of a stored key gets no message now; None: it gets them."""


def peeked(view: LaneView, first: int, limit: int, time: QueueTime, shard: int) -> list[PeekedMessage]:
    """Return the first messages of a lane from a seq on."""
    from ..._values.findings import PeekedMessage

    key, wall = decode_key(view.key), time.converter()
    return [
        PeekedMessage(
            key=key, seq=seq, id=i, body=body, headers=headers_of(opts[0], shard),
            state=view.state_of(seq, due), attempts=view.attempts(seq, attempts), enqueued_at=wall(sent_at),
            due_at=None if due is None else wall(due), expires_at=None if expires is None else wall(expires),
            dedup_id=opts[4],
        )
        for seq, i, body, opts, attempts, sent_at, due, expires in view.messages(first, limit)
    ]  # fmt: skip


def status(view: LaneView | None, key: bytes, seq: int, time: QueueTime) -> MessageStatus:
    """Return the status of one message.

    Raises:
        UnknownMessage: that seq was never issued.
    """
    if view is None or not 1 <= seq <= view.tail:
        raise UnknownMessage(f"key {decode_key(key)!r} has no message with seq {seq}")
    return status_in(view, seq, time)


def status_in(view: LaneView, seq: int, time: QueueTime) -> MessageStatus:
    """Return the status of a message of a lane."""
    from ..._values.findings import MessageStatus

    shown: Any = decode_key(view.key)
    row = view.message(seq)
    if row is not None:
        attempts, due, error, output, errors = row
        state = view.state_of(seq, due)
        lease = view.lease if state == "in_flight" else None
        until = _end(lease) if lease else due if state == "delayed" and due is not None else None
        return MessageStatus(
            shown, seq, state, view.attempts(seq, attempts), lease.consumer if lease else None,
            None if until is None else time.to_wall(until), error, output, failures.shown(errors, time),
        )  # fmt: skip
    dead = view.dead(seq)
    if dead is not None:
        attempts, reason, output, errors = dead
        return MessageStatus(
            shown, seq, "dead", attempts, last_error=reason, last_output=output, errors=failures.shown(errors, time)
        )
    return MessageStatus(shown, seq, "resolved")


def errors(view: LaneView, seq: int, time: QueueTime) -> tuple[AttemptError, ...]:
    """Return the errors of an unresolved message of a lane."""
    row = view.message(seq)
    return () if row is None else failures.shown(row[4], time)


def explain(view: LaneView | None, key: bytes, time: QueueTime, shard: int, config: QueueConfig) -> Explanation:
    """Return why a lane is, or is not, delivered now."""
    from ..._values.findings import Explanation

    shown: Any = decode_key(key)
    if view is None:
        return Explanation(shown, "empty", hints.NEVER_SENT, None, 0, 0, 0, None, None, None, None, None, False, shard)
    head = view.head()
    seq, attempts, error = (None, 0, None) if head is None else (head.seq, view.attempts(head.seq, head.attempts), head.error)
    solo = seq is not None and view.solo >= seq
    state: Any = "empty"
    since = until = by = token = None
    text, rest = hints.EMPTY, ""
    filled: dict[str, Any] = {}
    if view.lease is not None:
        lease = view.lease
        state, since, until, by, token = "in_flight", lease.leased_at, _end(lease), lease.consumer, lease.token
        what = f"seq {lease.lo} is" if lease.lo == lease.hi else f"seq {lease.lo} to {lease.hi} are"
        if until is None:
            n = view.db.execute(RECORDED_BATCHES.batch_of, (by, token)).get
            text, filled = hints.IN_RECORDED_BATCH, {"what": what, "n": n, "by": by}
        else:
            text, filled = hints.LEASED, {"what": what, "by": by, "left": _span(lease.deadline - view.now)}
        if view.hold is not None:
            rest = f"; then the lane is held: {view.hold}"
    elif view.hold is not None:
        state, since, by = "held", view.held_at, view.hold
        text, filled = hints.LANE_HELD, {"by": by}
    elif head is not None and view.due is not None and view.due > view.now:
        state, until = "delayed", view.due
        why = _why_delayed(view, head, attempts, config)
        text, filled = hints.DELAYED, {"seq": seq, "left": _span(view.due - view.now), "why": why}
    elif head is not None:
        state, since = "ready", head.sent_at
        text, filled = hints.SIDELINED if _is_sidelined(view, config) else hints.READY, {"seq": seq}
        if solo:
            rest = ", one message at a time, because a holder of it was lost"
        if config.paused:
            state, since, text = "paused", None, hints.PAUSED
    if config.paused and state != "paused" and state != "empty":
        rest += f"; {hints.IS_PAUSED}"
    if config.paused_types and seq is not None and (kind := _type_of(view, seq, shard)) in config.paused_types:
        rest += f"; {paused(kind)}"
        error = None if error == paused(kind) else error
    if error and state != "empty":
        rest += f"; last error: {error}"
    return Explanation(
        shown, state, text.of(**filled, rest=rest), seq, view.depth, view.dead_count(), attempts,
        None if since is None else time.to_wall(since), None if until is None else time.to_wall(until),
        by, token, error, solo, shard,
    )  # fmt: skip


def _is_sidelined(view: LaneView, config: QueueConfig) -> bool:
    """Return whether a ready lane gets its turns only beside newer ones."""
    before = 0 if config.turns is None else config.turns.sidelined_before(view.now)
    return bool(before) and 0 < view.place < place_of_arrival(view.sent_before(before) + 1)


def _type_of(view: LaneView, seq: int, shard: int) -> str | None:
    """Return the handler type of a message."""
    for found, _, _, opts, *_ in view.messages(seq, 1):
        if found == seq:
            return (headers_of(opts[0], shard) or {}).get(TYPE_HEADER)
    return None


def _why_delayed(view: LaneView, head: looking.HeadOfLane, starts: int, config: QueueConfig) -> str:
    first_at = head.first_at
    if starts == head.crashed:
        return "it was postponed" if view.was_postponed(head.seq) else "it was sent with a delay"
    failed = starts - head.crashed
    why = "it failed once" if failed == 1 else f"it failed {failed:,} times"
    if first_at is None:
        return why
    why += f" in {span(view.now - first_at)}"
    left = first_at + int(config.retry_for_seconds * SECOND) - view.now
    if config.max_attempts is not None and config.retry_for_seconds and left > 0:
        why += f"; it is not given up in the next {span(left)}"
    return why


def _end(lease: looking.LeaseOfLane) -> int | None:
    """Return when a lease ends by itself. None: it belongs to a batch, and does not."""
    return None if lease.deadline == NEVER else lease.deadline


def _span(microseconds: int) -> str:
    seconds = microseconds / SECOND
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def stats(
    lanes: ShardLanes, bounds: tuple[str, str], time: QueueTime, path: Path | None, unwritten_empties: int, most: int | None
) -> ShardStats | None:
    """Return the counts of a shard.

    Args:
        bounds: the first and the last hash of its range.
        most: how many lanes at rest to read.
    Returns:
        None: more must be read.
    """
    now, t = time.now(), lanes.memory.totals
    found = counting.figures(lanes, now, most)
    if found is None:
        return None
    rare: dict[str, Any] = {name: getattr(t, name) for name in RARE}
    rate = decayed_rate(t, now)
    disk, wal = _sizes(path)
    outbox, kept = lanes.run(LOOKS.kept).get
    return ShardStats(
        shard=lanes.shard, hash_lo=bounds[0], hash_hi=bounds[1],
        ready=t.pending - found.in_flight - found.delayed - found.held, in_flight=found.in_flight, delayed=found.delayed,
        held=found.held, dead=t.dead, lanes=t.lanes, oldest_age_seconds=_age(now, found.oldest),
        first_attempt_age_seconds=_age(now, found.unattempted),
        sends=t.sends, receives=t.receives, claims=t.claims, empty_receives=t.empty_receives + unwritten_empties,
        acks=t.acks, retries=t.retries,
        redeliveries=t.redeliveries, expired=t.expired, dropped=t.dropped, purged=t.purged,
        **rare,
        outbox=outbox,
        drain_seconds=t.pending / rate if rate > 1e-6 else (0.0 if t.pending == 0 else None), disk_bytes=disk, wal_bytes=wal,
        recorded_batch_bytes=kept,
    )  # fmt: skip


def _age(now: int, sent: int | None) -> float | None:
    return None if sent is None else max(now - sent, 0) / SECOND


def _sizes(path: Path | None) -> tuple[int, int]:
    """Return the sizes of the database and of its WAL, without opening them."""
    if path is None:
        return 0, 0
    wal = 0
    with suppress(FileNotFoundError):
        wal = os.stat(f"{path}-wal").st_size
    return os.stat(path).st_size + wal, wal


def top_keys(
    lanes: ShardLanes,
    n: int,
    by: str,
    time: QueueTime,
    prefix: bytes,
    config: QueueConfig,
    limited: Callable[[bytes], str | None],
) -> list[KeyDepth]:
    """Return the n deepest lanes, or those with the oldest messages. Reads every lane with messages and this prefix."""
    from ..._values.findings import KeyDepth

    now = time.now()
    return [
        KeyDepth(
            decode_key(view.key), depth, max(now - sent_at, 0) / SECOND, *_state_and_reason(view, config, lanes.shard, limited)
        )
        for view, depth, sent_at in counting.deepest(lanes, n, by, now, prefix)
    ]  # fmt: skip


def _state_and_reason(view: LaneView, config: QueueConfig, shard: int, limited: Limited) -> tuple[Any, str | None]:
    """Return the state of a lane as `explain` does, and why it waits."""
    if view.lease is not None:
        return "in_flight", None
    state = view.state_behind()
    if state == "held":
        return state, view.hold
    head = view.head()
    if head is None:
        return state, None
    if state == "delayed":
        return state, _why_delayed(view, head, view.attempts(head.seq, head.attempts), config)
    if config.paused:
        return "paused", hints.IS_PAUSED
    if (why := limited(view.key)) is not None:
        return "throttled", why
    if config.paused_types and (kind := _type_of(view, head.seq, shard)) in config.paused_types:
        return state, paused(kind)
    return state, hints.IS_SIDELINED if _is_sidelined(view, config) else None


__all__ = ["errors", "explain", "peeked", "stats", "status", "status_in", "top_keys"]
