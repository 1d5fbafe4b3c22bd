"""Sending: `issue` numbers all messages that are new to a shard, whatever their source.

Calls of `send`, sends that arrive from another shard's outbox, and bulk writes take their seqs and arrival numbers from `issue`,
which also counts the messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from ..._config import QueueConfig
from ..._errors import QueueFull
from ..._keys import is_keyless
from ..._lazy import LazyList
from ..._sql import HOT, SEND, repeated
from ..commit.tx import SECOND, Tx, insert_rows
from ..hot import cooling, tier
from ..hot.lane import HotLane
from ..hot.memory import Memory
from ..onelane import sending
from . import lanes
from .leases import Row
from .messages import Item, Options, Sent, Times, require_valid, times_of

FORGET_STEPS_MAX: Final = 64
"""The maximum number of steps in one transaction that forget idle lanes, however many lanes are new."""
QUEUE_WIDE: Final = 0
"""Stands for a lane in the dedup ids of the whole queue. No lane has this number."""
INLINE_BYTES_MAX: Final = 800
"""Larger bodies are stored out of line: in `message` they would overflow a page (1,002 bytes of a 4 KiB page)."""
_LOOKUPS: Final = repeated(SEND.lanes_by_key, 64, 16, 4, 1)
INSERTS: Final = repeated(SEND.insert_plain, 128, 16, 4, 1)


class SentInTurn(LazyList[Sent]):
    """The results for consecutive messages of the inbox, computed on first use."""

    __slots__ = ("_first", "_seqs")

    def __init__(self, first: int, seqs: Sequence[int]) -> None:
        self._elements = None
        self._first = first
        self._seqs = seqs

    def _count(self) -> int:
        return len(self._seqs)

    def _make(self) -> list[Sent]:
        return [(seq, arrival, None) for arrival, seq in enumerate(self._seqs, self._first)]


_PlainRow = tuple[int, int, int, int, int | None, bytes | None]
"""Lane, seq, id, sent_at, expires, body (None: stored out of line)."""


_KEY, _BODY, _OPTIONS = itemgetter(0), itemgetter(1), itemgetter(2)


class Tail:
    """A lane while messages are appended to it.

    Attributes:
        seq: the last issued seq.
        next: the first unused seq of those that `issue` reserved last.
        unlisted: the lane is empty and free, so its first message lists it.
    """

    __slots__ = ("lane", "next", "seq", "unlisted")

    def __init__(self, lane: int, seq: int, unlisted: bool) -> None:
        self.lane = lane
        self.seq = seq
        self.next = seq + 1
        self.unlisted = unlisted


def issue(tx: Tx, wanted: Iterable[tuple[Tail | HotLane, int]]) -> int:
    """Reserve numbers for new messages, and count them: the next seqs of each lane, and arrival numbers of the shard.

    Nothing else issues a seq or the id of a message. (A message that keeps its id is moved: a keyless message in a lane of its
    own is the first there, and a redriven one returns at its own seq.)

    Args:
        wanted: lanes, each once, and the number of messages for each: `Tail.next` up to `Tail.seq`. All of them must be written.
    Returns:
        The first arrival number; the others follow. In a lane they must ascend with seq.
    """
    n = 0
    for tail, count in wanted:
        tail.next = tail.seq + 1
        tail.seq += count
        n += count
    totals = tx.totals
    first = totals.last_id + 1
    totals.last_id += n
    totals.pending += n
    totals.sends += n
    return first


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
    if tx.lanes is not None:
        return sending.send(tx, items, depth_elsewhere=depth_elsewhere)
    totals = tx.totals
    counts = {items[0][0]: 1} if len(items) == 1 else Counter(map(_KEY, items))
    hot = tx.hot
    if hot is not None:
        lanes_of = _hot_lanes(tx, hot, items, counts)
        if len(lanes_of) == len(counts):
            limit = tx.config.max_depth
            if limit is not None and depth_elsewhere is not None and totals.pending + len(items) + depth_elsewhere > limit:
                raise QueueFull(f"the queue has reached max_depth={limit}")
            return _send_hot(tx, hot, items, counts, lanes_of)
        if lanes_of:
            return _send_apart(tx, items, lanes_of, depth_elsewhere)
    if hot is not None and hot.ids and not hot.lanes:
        cooling.cool_all(tx)  # no lane needs the logs, and only sends to hot lanes cut them
    known = tails(tx, sorted(counts))  # in key order, so that the index is read sequentially
    before = totals.pending
    sent: list[Sent] = []
    rows: list[_PlainRow] = []
    if any(map(_OPTIONS, items)):
        for plain, run in groupby(items, key=_is_plain):
            if plain:
                some = list(run)
                _number(tx, some, Counter(map(_KEY, some)), known, rows, sent)
            else:
                sent += [_send_full(tx, known[item[0]], *item) for item in run]
    else:
        _number(tx, items, counts, known, rows, sent)
    if len(rows) > 1:
        rows.sort()  # in lane order, so that neighbours in the table are written together
    insert_rows(tx, INSERTS, rows)
    limit = tx.config.max_depth
    if limit is not None and depth_elsewhere is not None and before < totals.pending and totals.pending + depth_elsewhere > limit:
        raise QueueFull(f"the queue has reached max_depth={limit}")
    return sent


def _hot_lanes(tx: Tx, hot: Memory, items: Sequence[Item], counts: dict[bytes, int]) -> dict[bytes, HotLane]:
    """Return those lanes of these keys that are hot, or become so with their next message because they are free and empty.

    A lane does not become hot if it gets a message with options that need the tables, or too many messages.
    """
    if tx.config.history != "off" or not tx.config.hot_lanes or hot.cramped:
        return {}
    unfit: set[bytes] | tuple[()] = ()
    if any(map(_OPTIONS, items)):
        unfit = {key for key, _, options, times in items if options is not None and not _suits_the_logs(options, times)}
    if hot.deep:
        hot.deep = bool(tx.run(HOT.listed).get[0])
    known = hot.lanes
    found: dict[bytes, HotLane] = {}
    missing: list[bytes] = []
    for key, n in counts.items():
        lane = known.get(key)
        if key in unfit or n > cooling.LANE_ROWS_MAX:
            continue
        if lane is None:
            if hot.deep:
                continue
            if (tail := hot.tails.pop(key, None)) is not None:
                found[key] = HotLane.of_tail(key, tail)
            else:
                missing.append(key)
        elif len(lane.rows) + n <= cooling.LANE_ROWS_MAX:
            found[key] = lane
    if missing:
        missing.sort()
        rows = {row[0]: row for row in _look_up(tx, missing)}
        for key in missing:
            row = rows.get(key)
            if row is None:
                found[key] = HotLane(key, tx.totals.seq_floor)
            elif not row[2] and row[4]:
                found[key] = HotLane(key, row[3], row[1])
    return found


def _suits_the_logs(options: Options, times: Times | None) -> bool:
    return options.dedup_id is None and (options.delay <= 0 if times is None else times.due is None)


def _send_hot(
    tx: Tx, hot: Memory, items: Sequence[Item], counts: dict[bytes, int], lanes_of: dict[bytes, HotLane]
) -> Sequence[Sent]:
    """Append messages to hot lanes."""
    hot.unsure = True
    arrival = issue(tx, zip(map(lanes_of.__getitem__, counts), counts.values(), strict=True))
    now = tx.now
    expires = None if tx.config.ttl_seconds is None else times_of(now, None, tx.config).expires
    first = arrival
    if not any(map(_OPTIONS, items)) and max(map(len, map(_BODY, items))) <= INLINE_BYTES_MAX:
        hot.lanes.update(lanes_of)
        seqs = tier.write_plain(tx, hot, lanes_of, items, first, expires)
        _fold(tx, hot)
        return SentInTurn(first, seqs)
    owners = [lanes_of[item[0]] for item in items]
    arrivals: list[Row] = []
    seqs = []
    stored: bytes | None
    for lane, (key, body, options, times) in zip(owners, items, strict=True):
        seq = lane.next
        lane.next = seq + 1
        seqs.append(seq)
        stored = body
        if len(body) > INLINE_BYTES_MAX:
            tx.run(SEND.insert_body, (arrival, body))
            tx.hot_changes += 1
            stored = None
        if options is None:
            row: Row = (arrival, 0, key, 0, seq, None, expires, 0, arrival, now, None, None, None, None, stored)
        else:
            at, _, ends = times or times_of(now, options, tx.config)
            row = (
                arrival, 0, key, 0, seq, None, ends, 0, arrival, at, options.headers, options.size_hint, options.prepare_seconds,
                options.process_seconds, stored,
            )  # fmt: skip
        arrivals.append(row)
        arrival += 1
    hot.lanes.update(lanes_of)
    tier.write_arrivals(tx, hot, owners, arrivals)
    _fold(tx, hot)
    return SentInTurn(first, seqs)


def _fold(tx: Tx, hot: Memory) -> None:
    """Fold after a send, if the logs are long."""
    if cooling.is_fold_due(hot):
        before = tx.totals.last_lane
        cooling.fold(tx)
        if tx.config.idle_lane_seconds is not None:
            _forget_some(tx, tx.totals.last_lane - before, ())


def _forget_some(tx: Tx, new: int, keep: Container[int]) -> None:
    """Forget idle lanes in proportion to the new ones."""
    for _ in range(min(new, FORGET_STEPS_MAX)):
        lanes.forget_some_idle(tx, keep=keep)


def _send_apart(tx: Tx, items: Sequence[Item], lanes_of: dict[bytes, HotLane], depth_elsewhere: int | None) -> Sequence[Sent]:
    """Send in two parts, because some lanes are hot and some are cold."""
    cold = [item for item in items if item[0] not in lanes_of]
    some = [item for item in items if item[0] in lanes_of]
    first = iter(send(tx, cold, depth_elsewhere=depth_elsewhere))
    second = iter(send(tx, some, depth_elsewhere=depth_elsewhere))
    return [next(second if item[0] in lanes_of else first) for item in items]


def _look_up(tx: Tx, keys: Sequence[bytes]) -> Iterator[tuple[bytes, int, int, int, int]]:
    """Yield rows of SEND.lanes_by_key for the keys that have a lane in the tables."""
    at, left = 0, len(keys)
    for n, statement in _LOOKUPS.items():
        while left >= n:
            yield from tx.run(statement, keys[at : at + n])
            at += n
            left -= n


def tails(tx: Tx, keys: Sequence[bytes]) -> dict[bytes, Tail]:
    """Return the lane of each of these keys, created if there is none. Hot lanes are cooled first.

    Args:
        keys: sorted, without duplicates.
    """
    if tx.hot is not None:
        cooling.cool(tx, [hot for key in keys if (hot := tx.hot.lanes.get(key)) is not None])
        for key in keys:
            tx.hot.tails.pop(key, None)
    found: dict[bytes, Tail] = {}
    for key, lane, newest, last_seq, free in _look_up(tx, keys):
        found[key] = Tail(lane, newest if newest > last_seq else last_seq, not newest and bool(free))
    if (known := len(found)) != len(keys):
        new = [key for key in keys if key not in found]
        for lane, key in enumerate(new, lanes.create_many(tx, new)):
            found[key] = Tail(lane, tx.totals.seq_floor, True)
        if tx.config.idle_lane_seconds is not None:
            # Never one that is being written to.
            _forget_some(tx, len(keys) - known, {tail.lane for tail in found.values()})
    return found


def _is_plain(item: Item) -> bool:
    return item[2] is None


def _number(
    tx: Tx, items: Sequence[Item], counts: dict[bytes, int], known: dict[bytes, Tail], rows: list[_PlainRow], sent: list[Sent]
) -> None:
    """Assign numbers to messages without options, and list their lanes. Appends the rows to insert to `rows`."""
    arrival = issue(tx, [(known[key], n) for key, n in counts.items()])
    now = tx.now
    expires = times_of(now, None, tx.config).expires
    ready: list[tuple[int, int, int]] = []
    stored: bytes | None
    for key, body, _, _ in items:
        tail = known[key]
        seq = tail.next
        tail.next = seq + 1
        stored = body
        if len(body) > INLINE_BYTES_MAX:
            tx.run(SEND.insert_body, (arrival, body))
            stored = None
        rows.append((tail.lane, seq, arrival, now, expires, stored))
        if tail.unlisted:
            tail.unlisted = False
            ready.append((arrival, tail.lane, 0))
        sent.append((seq, arrival, None))
        arrival += 1
    if ready:
        insert_rows(tx, lanes.READY, ready)
        tx.wake = True


def _send_full(tx: Tx, tail: Tail, key: bytes, body: bytes, options: Options | None, times: Times | None) -> Sent:
    """Append one message with options."""
    assert options is not None
    times = times or times_of(tx.now, options, tx.config)
    dedup_id = options.dedup_id
    if dedup_id is not None:
        lanes.forget_dedups(tx)
        known = tx.run(SEND.find_dedup, (tail.lane, dedup_id, tx.now)).get
        if known is not None:
            return known[0], known[1], key
        if tx.config.dedup_scope == "queue":
            elsewhere: Sent | None = tx.run(SEND.find_dedup_anywhere, (dedup_id, tx.now)).get
            if elsewhere is not None:
                return elsewhere
    parent = tail.lane
    if times.due is not None and times.due > tx.now and is_keyless(key):
        # A delayed keyless message waits in a lane of its own, so that it does not block others.
        tail = Tail(0, 0, True)
        arrival = issue(tx, ((tail, 1),))
        tail.lane = lanes.create_aside(tx, key, arrival)
    else:
        arrival = issue(tx, ((tail, 1),))
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
        if tx.config.dedup_scope == "queue":
            tx.run(SEND.remember_dedup, (QUEUE_WIDE, dedup_id, parent, arrival, until))
    if tail.unlisted:
        tail.unlisted = False
        lanes.list_first(tx, tail.lane, arrival, times.due)
    return tail.seq, arrival, None
