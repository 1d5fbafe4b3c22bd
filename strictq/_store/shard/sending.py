"""Sending: every message that is new to a shard, whatever its source, passes `send` or `send_alone`, which number it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import QueueFull, refusal_of
from ..._values.keys import ASIDE, decode_key, is_keyless
from ..._values.tenants import tenant_of
from ..commit.tx import SECOND
from ..lane.live_lane import LiveLane
from ..lane.memory import BODY_BYTES_KEPT, MessageRow, ShardMemory, without_body
from ..lane.totals import add_acks
from ..tables import dedup, mark
from . import ending, forgetting
from .looking import depth_of
from .messages import Item, Sent, SentInTurn, encode, require_valid, times_of
from .shard_lanes import ShardLanes, Tx

QUEUE_WIDE = b""
"""Stands for a key in the dedup ids of the whole queue. No lane has this key."""


RETRY_SECONDS: Final = (0.05, 60.0)
"""The least and the most that a refusal asks to wait."""


class Elsewhere(NamedTuple):
    """What the other shards had at the beginning of a call: unresolved messages, and those of limited tenants."""

    messages: int = 0
    tenants: Mapping[bytes, int] = {}

    @classmethod
    def most(cls, known: Sequence[Elsewhere]) -> Elsewhere:
        """Return the most of what several calls have seen."""
        tenants: dict[bytes, int] = {}
        for each in known:
            for name, n in each.tenants.items():
                tenants[name] = max(tenants.get(name, 0), n)
        return cls(max(each.messages for each in known), tenants)


NOTHING_ELSEWHERE: Final = Elsewhere()


class Append:
    """The sends of one call, as an operation that merges with those of other threads."""

    __slots__ = ("_checked", "_elsewhere", "_items")

    def __init__(self, items: Sequence[Item], checked: QueueConfig | None, elsewhere: Elsewhere) -> None:
        self._items = items
        self._checked = checked
        self._elsewhere = elsewhere

    def __call__(self, tx: Tx) -> Sequence[Sent]:
        if tx.config is not self._checked:
            require_valid(self._items, tx.config)
        return send(tx, self._items, elsewhere=self._elsewhere)

    def together(self, tx: Tx, others: list[Append]) -> list[Sequence[Sent]]:
        """Append the messages of all of them in one pass."""
        for each in others:
            if tx.config is not each._checked:
                require_valid(each._items, tx.config)
        items = [item for each in others for item in each._items]
        sent = iter(send(tx, items, elsewhere=Elsewhere.most([each._elsewhere for each in others])))
        return [[next(sent) for _ in each._items] for each in others]


def send(tx: Tx, items: Sequence[Item], *, elsewhere: Elsewhere | None = None) -> Sequence[Sent]:
    """Append messages to their lanes. All of them are appended, or none.

    Args:
        elsewhere: what the other shards have; None: maximum depths do not apply.
    Raises:
        QueueFull: they would exceed a maximum depth.
    """
    store = tx.lanes
    memory, config, now = store.memory, tx.config, tx.now
    if elsewhere is not None:
        _require_depth(tx, items, elsewhere)
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
            row = (arrival, key, seq, sent_at, due, expires, encode(options), body)
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
    if deduped and not memory.mark.features & mark.DEDUP_IDS:
        store.add_feature(mark.DEDUP_IDS)
    store.log.insert(rows)
    before = listed(memory)
    memory.arrived(some, rows)
    memory.keep_bodies(rows)
    for row in apart:
        ending.park(tx, lanes[row[1]], row[0], row[2])
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
    return memory.order.listed


def _require_depth(tx: Tx, items: Sequence[Item], elsewhere: Elsewhere) -> None:
    """Refuse messages that would exceed a maximum depth. Those with a known dedup id are not sent, so they don't count."""
    full = _full(tx, items, elsewhere)
    if full is not None and any(options is not None and options.dedup_id is not None for _, _, options, _ in items):
        full = _full(tx, _new(tx, items), elsewhere)
    if full is not None:
        raise tx.lanes.refuse(full)


def _full(tx: Tx, items: Sequence[Item], elsewhere: Elsewhere) -> QueueFull | None:
    """Return why there is no room for messages. None: there is."""
    store, config = tx.lanes, tx.config
    over = 0 if config.max_depth is None else store.memory.totals.pending + elsewhere.messages + len(items) - config.max_depth
    if over > 0 and items:
        return QueueFull(f"the queue has reached max_depth={config.max_depth}", retry_after=seconds_until(tx, over))
    rules = store.memory.tenancy
    if rules is not None and not rules.limits_depth:
        rules = None
    if rules is None and config.max_key_depth is None:
        return None
    refused: dict[bytes, QueueFull] = {}
    keys = [item[0] for item in items]
    if rules is not None and (errors := full_tenants(tx, rules.messages_of(keys), elsewhere)):
        refused |= {key: errors[name] for key in keys if (name := tenant_of(key, rules.separator)) in errors}
    if config.max_key_depth is not None:
        for key, n in Counter(keys).items():
            over = 0 if is_keyless(key) else depth_of(store.loader.lane(key)) + n - config.max_key_depth
            if over > 0 and key not in refused:
                given = decode_key(key)
                refused[key] = QueueFull(
                    f"key {given!r} has reached max_key_depth={config.max_key_depth}", key=given,
                    retry_after=seconds_until(tx, over), hint=hints.KEY_FULL,
                )  # fmt: skip
    return refusal_of(refused) if refused else None


def full_tenants(tx: Tx, messages: Mapping[bytes, int], elsewhere: Elsewhere) -> dict[bytes, QueueFull]:
    """Return the tenants whose maximum depth so many messages more would exceed, each with its refusal."""
    store, found = tx.lanes, {}
    rules = store.memory.tenancy
    if rules is None:
        return {}
    for tenant, n in messages.items():
        limit = rules.of(tenant).max_depth
        over = 0 if limit is None else store.tenant_depth(tenant) + elsewhere.tenants.get(tenant, 0) + n - limit
        if over > 0:
            shown = tenant.decode(errors="backslashreplace")
            found[tenant] = QueueFull(
                f"tenant {shown!r} has reached max_depth={limit}", tenant=shown, retry_after=seconds_until(tx, over),
                hint=hints.TENANT_FULL,
            )  # fmt: skip
    return found


def seconds_until(tx: Tx, messages: int) -> float:
    """Estimate when so many messages are resolved, by the shard's rate of acks."""
    least, most = RETRY_SECONDS
    totals = tx.lanes.memory.totals
    rate, _ = add_acks(totals.ack_rate, totals.ack_rate_at, tx.now, 0)
    return min(max(least, messages / rate), most) if rate > 0 else 1.0


def _new(tx: Tx, items: Iterable[Item]) -> list[Item]:
    """Return the messages whose dedup ids are not known."""
    new: list[Item] = []
    ids: set[tuple[bytes, str]] = set()
    for item in items:
        key, _, options, _ = item
        dedup_id = None if options is None else options.dedup_id
        if dedup_id is not None:
            name = (QUEUE_WIDE if tx.config.dedup_scope == "queue" else key, dedup_id)
            if name in ids or dedup.find(tx.db, *name, tx.now) is not None:
                continue
            ids.add(name)
        new.append(item)
    return new


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


def send_alone(store: ShardLanes, now: int, given: tuple[Item, QueueConfig, int]) -> Sent | None:
    """Append one message with a single statement. Return its place.

    Args:
        given: the message, the queue's settings, and the unresolved messages of the other shards.
    Returns:
        None: that is not possible now, and nothing was written.
    """
    memory = store.memory
    (key, body, options, _), config, elsewhere = given
    if config.max_depth is not None and memory.totals.pending + elsewhere >= config.max_depth:
        return None  # it is refused, or its dedup id is known
    opts = due = expires = dedup_row = None
    if options is not None or config.ttl_seconds is not None:
        if options is None or options.delay or options.ttl is not None or config.ttl_seconds is not None:
            _, due, expires = times_of(now, options, config)
        if due is not None and is_keyless(key):
            return None  # the message is parked
        if options is not None:
            opts = encode(options)
            if options.dedup_id is not None:
                if memory.parked or not memory.mark.features & mark.DEDUP_IDS:
                    return None  # ended lanes are forgotten, or the shard's first id is noted
                dedup_row = options.dedup_id, now + int(config.dedup_window_seconds * SECOND), config.dedup_scope == "queue"
    lane, is_new = memory.lanes.get(key), False
    if lane is None:
        memory.unsure = True
        if key in memory.tails:
            store.loader.load((key,))
            lane = memory.lanes[key]
        elif config.idle_lane_seconds is None:
            lane = store.loader.new_lane(key)
            is_new = lane is not None
        memory.unsure = False
    if lane is None or (due is not None and lane.rest):
        return None  # its row must be read, or idle lanes are forgotten
    most = None if is_keyless(key) else config.max_key_depth
    if most is not None and (lane.rest or depth_of(lane) >= most):
        memory.unsure = is_new
        return None
    arrival, seq = memory.top + 1, lane.tail + 1
    if seq == 1:
        seq += memory.floor
    row: MessageRow = (arrival, key, seq, now, due, expires, opts, body)
    memory.unsure = True
    if not store.insert_alone(row, dedup_row):
        memory.unsure = is_new  # what was read without a transaction may not belong to the rest of memory
        return None
    if not lane.tail:
        memory.totals.lanes += 1
    lane.tail = seq
    before = lane.listed, lane.due
    memory.arrived((lane,), (row,))
    memory.bytes_kept += len(body) if opts is None else len(body) + len(opts)
    memory.rows[arrival] = row if memory.bytes_kept <= BODY_BYTES_KEPT else without_body(row)
    memory.unsure = False
    store.wake = (lane.listed, lane.due) != before
    return seq, arrival, None
