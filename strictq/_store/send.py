"""Sending: seqs are issued here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .._config import QueueConfig
from .._errors import InvalidArgument, MessageTooLarge, QueueFull
from .._sql import SEND, repeated
from . import lanes
from .frame import SECOND, Tx, insert_rows

FORGET_STEPS_MAX: Final = 64
"""Steps of forgetting idle lanes in one transaction, however many lanes are new."""
INLINE_BYTES_MAX: Final = 800
"""Larger bodies lie in a table of their own: in `message` they would spill over a page (1,002 bytes of a 4 KiB page)."""
_LOOKUPS: Final = repeated(SEND.lanes_by_key, 64, 16, 4, 1)
INSERTS: Final = repeated(SEND.insert_plain, 128, 16, 4, 1)


class Options(NamedTuple):
    """What a message has beyond key and body, in stored units: microseconds, JSON."""

    dedup_id: str | None = None
    delay: int = 0
    ttl: int | None = None
    headers: str | None = None
    size_hint: float | None = None
    prepare_seconds: float | None = None
    process_seconds: float | None = None


class Times(NamedTuple):
    """When a forwarded message was sent, and is due, and expires: fixed by its transaction, in queue time."""

    sent_at: int
    due: int | None
    expires: int | None


Item = tuple[bytes, bytes, Options | None, Times | None]
"""Stored key, body, options (None: plain), times (None: now)."""
Sent = tuple[int, int, bool]
"""seq, id, duplicate."""


class Tail:
    """A lane while messages are appended to it."""

    __slots__ = ("lane", "seq", "unlisted")

    def __init__(self, lane: int, seq: int, unlisted: bool) -> None:
        self.lane = lane
        self.seq = seq
        self.unlisted = unlisted
        """Empty and free: its first message lists it."""


def times_of(now: int, options: Options | None, config: QueueConfig) -> Times:
    """When a message that is sent now is due and expires."""
    ttl = options.ttl if options is not None and options.ttl is not None else None
    if ttl is None and config.ttl_seconds is not None:
        ttl = int(config.ttl_seconds * SECOND)
    delay = options.delay if options is not None else 0
    return Times(now, now + delay if delay > 0 else None, None if ttl is None else now + ttl)


class Append:
    """The sends of one call, as an operation that merges with those of other threads."""

    __slots__ = ("_checked", "_elsewhere", "_items")

    def __init__(self, items: Sequence[Item], checked: QueueConfig, elsewhere: int) -> None:
        self._items = items
        self._checked = checked
        self._elsewhere = elsewhere

    def __call__(self, tx: Tx) -> list[Sent]:
        if tx.config is not self._checked:
            require_valid(self._items, tx.config)
        return send(tx, self._items, depth_elsewhere=self._elsewhere)

    def together(self, tx: Tx, others: list[Append]) -> list[list[Sent]]:
        """One pass over the messages of all of them."""
        for each in others:
            if tx.config is not each._checked:
                require_valid(each._items, tx.config)
        items = [item for each in others for item in each._items]
        sent = iter(send(tx, items, depth_elsewhere=max(each._elsewhere for each in others)))
        return [[next(sent) for _ in each._items] for each in others]


def require_valid(items: Sequence[Item], config: QueueConfig) -> None:
    """Refuse what a configuration, newer than the one they were checked against, does not allow.

    Raises:
        MessageTooLarge, InvalidArgument: nothing changed.
    """
    for item in items:
        if config.keyless == "refuse" and lanes.is_keyless(item[0]):
            raise InvalidArgument("a message needs a key", hint="or configure the queue with keyless='random'")
        if len(item[1]) > config.max_body_bytes:
            raise MessageTooLarge(f"a body may have {config.max_body_bytes:,} bytes, this one has {len(item[1]):,}")


def send(tx: Tx, items: Sequence[Item], *, depth_elsewhere: int | None = None) -> list[Sent]:
    """Append messages to their lanes. All of them, or none.

    Args:
        depth_elsewhere: unresolved messages of the other shards; None: max_depth does not apply.
    Raises:
        QueueFull: they would bring the queue over max_depth.
    """
    now = tx.now
    totals = tx.totals
    # In key order, so that the index is walked and not jumped about in.
    keys = [items[0][0]] if len(items) == 1 else sorted({item[0] for item in items})
    known = tails(tx, keys)
    plain_times = times_of(now, None, tx.config)
    expires = plain_times.expires
    arrival = totals.last_id
    plain: list[tuple[int, int, int, int, int | None, bytes]] = []
    ready: list[tuple[int, int, int]] = []
    sent: list[Sent] = []
    for key, body, options, times in items:
        tail = known[key]
        if options is None and times is None and len(body) <= INLINE_BYTES_MAX:
            arrival += 1
            tail.seq = seq = tail.seq + 1
            plain.append((tail.lane, seq, arrival, now, expires, body))
            if tail.unlisted:
                tail.unlisted = False
                ready.append((arrival, tail.lane, 0))
            sent.append((seq, arrival, False))
            continue
        totals.last_id = arrival
        sent.append(_send_full(tx, tail, key, body, options, times or times_of(now, options, tx.config)))
        arrival = totals.last_id
    totals.last_id = arrival
    _insert_plain(tx, plain)
    if ready:
        insert_rows(tx, lanes.READY, ready)
        tx.wake = True
    stored = sum(1 for s in sent if not s[2]) if len(plain) != len(sent) else len(sent)
    totals.pending += stored
    totals.sends += stored
    limit = tx.config.max_depth
    if limit is not None and stored and depth_elsewhere is not None and totals.pending + depth_elsewhere > limit:
        raise QueueFull(f"the queue has reached max_depth={limit}")
    return sent


def tails(tx: Tx, keys: Sequence[bytes]) -> dict[bytes, Tail]:
    """The lane of each of these keys, made if there is none. They are sorted, and each is there once."""
    found: dict[bytes, Tail] = {}
    at, left = 0, len(keys)
    for n, statement in _LOOKUPS.items():
        while left >= n:
            for key, lane, newest, last_seq, free in tx.run(statement, keys[at : at + n]):
                found[key] = Tail(lane, newest if newest > last_seq else last_seq, not newest and bool(free))
            at += n
            left -= n
    if (known := len(found)) != len(keys):
        new = [key for key in keys if key not in found]
        for lane, key in enumerate(new, lanes.create_many(tx, new)):
            found[key] = Tail(lane, tx.totals.seq_floor, True)
        if tx.config.idle_lane_seconds is not None:
            # New lanes pay for forgetting idle ones; never one that is being written to.
            keep = {tail.lane for tail in found.values()}
            for _ in range(min(len(keys) - known, FORGET_STEPS_MAX)):
                lanes.forget_idle(tx, keep=keep)
    return found


def _insert_plain(tx: Tx, rows: list[tuple[int, int, int, int, int | None, bytes]]) -> None:
    if len(rows) > 1:
        rows.sort()  # lane order: neighbours in the table are written together
    insert_rows(tx, INSERTS, rows)


def _send_full(tx: Tx, tail: Tail, key: bytes, body: bytes, options: Options | None, times: Times) -> Sent:
    """One message with options, a large body, or times of its own."""
    options = options or Options()
    dedup_id = options.dedup_id
    if dedup_id is not None:
        lanes.forget_dedups(tx)
        known = tx.run(SEND.find_dedup, (tail.lane, dedup_id, tx.now)).get
        if known is not None:
            return known[0], known[1], True
    arrival = tx.new_id()
    parent = tail.lane
    if times.due is not None and times.due > tx.now and lanes.is_keyless(key):
        # A delayed keyless message waits in a lane of its own, so that others overtake it.
        aside = lanes.create_aside(tx, key, arrival)
        tail = Tail(aside, 0, True)
    tail.seq += 1
    apart = len(body) > INLINE_BYTES_MAX
    tx.run(
        SEND.insert_full,
        (tail.lane, tail.seq, arrival, times.sent_at, times.due, times.expires, options.headers, options.size_hint,
         options.prepare_seconds, options.process_seconds, None if apart else body),
    )  # fmt: skip
    if apart:
        tx.run(SEND.insert_body, (arrival, body))
    if dedup_id is not None:
        until = tx.now + int(tx.config.dedup_window_seconds * SECOND)
        tx.run(SEND.remember_dedup, (parent, dedup_id, tail.seq, arrival, until))
    if tail.unlisted:
        tail.unlisted = False
        lanes.list_first(tx, tail.lane, arrival, times.due)
    return tail.seq, arrival, False
