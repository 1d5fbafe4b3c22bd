"""Sending: every message that is new to a shard, whatever its source, passes `send` or `send_alone`, which number it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from ..._config import QueueConfig
from ..._errors import QueueFull
from ..._keys import ASIDE, is_keyless
from ..commit.tx import SECOND, Tx
from ..lane.live_lane import LiveLane
from ..lane.memory import BODY_BYTES_KEPT, M_BODY, M_ID, MessageRow, ShardMemory
from ..tables import dedup
from . import forgetting, message_opts, parking
from .messages import Item, Sent, SentInTurn, require_valid, times_of
from .shard_lanes import ShardLanes

_ID_OF: Final = itemgetter(M_ID)
_BODY_OF: Final = itemgetter(M_BODY)
QUEUE_WIDE = b""
"""Stands for a key in the dedup ids of the whole queue. No lane has this key."""


class Append:
    """The sends of one call, as an operation that merges with those of other threads."""

    __slots__ = ("_checked", "_elsewhere", "_items")

    def __init__(self, items: Sequence[Item], checked: QueueConfig, elsewhere: int) -> None:
        self._items = items
        self._checked = checked
        self._elsewhere = elsewhere

    def __call__(self, tx: Tx) -> Sequence[Sent]:
        if tx.config is not self._checked:
            require_valid(self._items, tx.config)
        return send(tx, self._items, depth_elsewhere=self._elsewhere)

    def together(self, tx: Tx, others: list[Append]) -> list[Sequence[Sent]]:
        """Append the messages of all of them in one pass."""
        for each in others:
            if tx.config is not each._checked:
                require_valid(each._items, tx.config)
        items = [item for each in others for item in each._items]
        sent = iter(send(tx, items, depth_elsewhere=max(each._elsewhere for each in others)))
        return [[next(sent) for _ in each._items] for each in others]


def send(tx: Tx, items: Sequence[Item], *, depth_elsewhere: int | None = None) -> Sequence[Sent]:
    """Append messages to their lanes. All of them are appended, or none.

    Args:
        depth_elsewhere: unresolved messages of the other shards; None: max_depth does not apply.
    Raises:
        QueueFull: they would exceed max_depth.
    """
    store = tx.lanes
    memory, config, now = store.memory, tx.config, tx.now
    _require_depth(tx, store, items, depth_elsewhere)
    plain_expires = times_of(now, None, config).expires
    lanes, floor, first = memory.lanes, memory.floor, memory.top + 1
    store.loader.load({item[0] for item in items}.difference(lanes))
    rows: list[MessageRow] = []
    some: list[LiveLane] = []
    seqs: list[int] = []
    earlier: dict[int, Sent] = {}
    apart: list[MessageRow] = []
    delayed = deduped = False
    arrival, begun = first, 0
    for key, body, options, times in items:
        lane = lanes[key]
        seq = lane.tail + 1
        if seq == 1:
            seq += floor
        if options is None:
            row: MessageRow = (arrival, key, seq, now, None, plain_expires, None, body)
        else:
            sent_at, due, expires = times or times_of(now, options, config)
            dedup_id = options.dedup_id
            if dedup_id is not None and (known := _remembered(tx, key, dedup_id, seq, arrival)) is not None:
                earlier[len(seqs) + len(earlier)] = known
                continue
            deduped |= dedup_id is not None
            row = (arrival, key, seq, sent_at, due, expires, message_opts.encode(options), body)
            if due is not None:
                delayed = True
                if due > now and is_keyless(key) and ASIDE not in key:
                    apart.append(row)
        if not lane.tail:
            memory.totals.lanes += 1
            begun += 1
        lane.tail = seq
        arrival += 1
        rows.append(row)
        some.append(lane)
        seqs.append(seq)
    if delayed:
        # Before any of them is applied, because the row of a lane may be ahead.
        store.loader.fill_delayed([(row[1], row[4]) for row in rows])
    store.log.insert(rows)
    before = listed(memory)
    memory.arrived(some, rows)
    keep_bodies(memory, rows)
    for row in apart:
        parking.park(tx, lanes[row[1]], row[0], row[2])
    if memory.parked and (apart or deduped):
        forgetting.forget_ended(tx)
    if begun and config.idle_lane_seconds is not None:
        forgetting.forget_some(tx, begun, int(config.idle_lane_seconds * SECOND))
    if listed(memory) != before:
        tx.wake = True
    sent = SentInTurn(first, seqs)
    if not earlier:
        return sent
    new = iter(sent)
    return [earlier.get(n) or next(new) for n in range(len(items))]


def listed(memory: ShardMemory) -> tuple[int, int, int]:
    """Return a state that changes when a lane becomes ready, or waits for a delay."""
    order = memory.order
    return len(order.arrived), len(order.ready), len(order.delays)


def _require_depth(tx: Tx, store: ShardLanes, items: Sequence[Item], elsewhere: int | None) -> None:
    limit = tx.config.max_depth
    if limit is None or elsewhere is None:
        return
    room = limit - store.memory.totals.pending - elsewhere
    if len(items) <= room:
        return
    new = 0
    ids: set[tuple[bytes, str]] = set()
    for key, _, options, _ in items:
        dedup_id = None if options is None else options.dedup_id
        if dedup_id is not None:
            wide = tx.config.dedup_scope == "queue"
            name = (QUEUE_WIDE if wide else key, dedup_id)
            if name in ids or dedup.find(tx.db, *name, tx.now) is not None:
                continue
            ids.add(name)
        new += 1
    if new and new > room:
        raise store.refuse(QueueFull(f"the queue has reached max_depth={limit}"))


def _remembered(tx: Tx, key: bytes, dedup_id: str, seq: int, arrival: int) -> Sent | None:
    """Remember a dedup id. If it is known, return the place of the earlier message, and its key."""
    until = tx.now + int(tx.config.dedup_window_seconds * SECOND)
    dedup.forget_some(tx.db, tx.now)
    if tx.config.dedup_scope == "queue":
        known = dedup.find(tx.db, key, dedup_id, tx.now)
        if known is None:
            known = dedup.remember(tx.db, (QUEUE_WIDE, dedup_id, seq, arrival, until, key), tx.now)
        if known is not None:
            return known[0], known[1], known[2] or key
    known = dedup.remember(tx.db, (key, dedup_id, seq, arrival, until, None), tx.now)
    return None if known is None else (known[0], known[1], key)


def keep_bodies(memory: ShardMemory, rows: Sequence[MessageRow]) -> None:
    """Keep recent messages with their bodies, which saves reading them. Large ones would fill memory."""
    memory.bytes_kept += sum(map(len, map(_BODY_OF, rows)))
    kept = rows if memory.bytes_kept <= BODY_BYTES_KEPT else [row[:M_BODY] for row in rows]
    memory.rows.update(zip(map(_ID_OF, rows), kept, strict=True))


def send_alone(store: ShardLanes, item: Item, now: int, config: QueueConfig) -> tuple[bool, Sent] | None:
    """Append one message without a dedup id with a single statement. Return whether its lane is ready now, and its place.

    Returns:
        None: that is not possible now, and nothing was written.
    """
    memory = store.memory
    key, body, options, _ = item
    opts = due = expires = None
    if options is not None or config.ttl_seconds is not None:
        opts = None if options is None else message_opts.encode(options)
        _, due, expires = times_of(now, options, config)
    lane = memory.lanes.get(key)
    if lane is None:
        if key not in memory.tails:
            return None
        memory.unsure = True
        store.loader.load((key,))
        memory.unsure = False
        lane = memory.lanes[key]
    if due is not None and (lane.rest or is_keyless(key)):
        return None  # the head must be read, or the message is parked
    arrival, seq = memory.top + 1, lane.tail + 1
    if seq == 1:
        seq += memory.floor
    row: MessageRow = (arrival, key, seq, now, due, expires, opts, body)
    memory.unsure = True
    if not store.insert_alone(row):
        return None
    if not lane.tail:
        memory.totals.lanes += 1
    lane.tail = seq
    before = lane.listed, lane.due
    memory.arrived((lane,), (row,))
    memory.bytes_kept += len(body)
    memory.rows[arrival] = row if memory.bytes_kept <= BODY_BYTES_KEPT else row[:M_BODY]
    memory.unsure = False
    return (lane.listed, lane.due) != before, (seq, arrival, None)
