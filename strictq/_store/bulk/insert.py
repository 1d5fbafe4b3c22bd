"""Sending by columns: large batches of plain messages, without an object for each message."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from ..._sql import SEND
from ..commit.tx import Tx, insert_rows
from ..lanes import lanes, send
from ..lanes.messages import Item, times_of
from ..lanes.send import INLINE_BYTES_MAX

COLUMNS: Final = 6
CHUNK_ROWS: Final = 16_384
"""The number of rows whose values are prepared for SQLite at once."""
CHUNK_KEYS: Final = 4_096
"""The number of lanes that are looked up, or created, at once."""


class PlainRows(NamedTuple):
    """Messages of one shard without options, key by key.

    Attributes:
        keys: stored keys, without duplicates.
        counts: the number of messages of each key.
        places: the place of every message, from 0, in the order of arrival of all of these; ascending within a key.
        bodies: the body of every message, those of a key in the order of its sequence.
    """

    keys: Sequence[bytes]
    counts: Sequence[int]
    places: Sequence[int]
    bodies: Sequence[bytes]


BulkRows = PlainRows | Sequence[Item]
"""Messages of one shard: in columns, or one by one in the order of arrival."""


def append(tx: Tx, rows: BulkRows) -> None:
    """Append messages to their lanes. All of them are appended, or none. The caller has checked max_depth."""
    if not isinstance(rows, PlainRows):
        send.send(tx, rows)
        return
    if tx.lanes is not None:
        for items in _in_order(rows):
            send.send(tx, items)
        return
    keys, counts, places = rows.keys, rows.counts, rows.places
    first = tx.totals.last_id + 1
    begins = array("q", accumulate(counts, initial=0))
    expires = times_of(tx.now, None, tx.config).expires
    listed = array("q", bytes(8 * len(places)))  # by place: the lane that its message lists, or 0
    in_key_order = sorted(range(len(keys)), key=keys.__getitem__)
    # Handle some lanes at a time: the state of all of them would need several times the memory of their messages.
    for at in range(0, len(keys), CHUNK_KEYS):
        some = in_key_order[at : at + CHUNK_KEYS]
        known = send.tails(tx, [keys[n] for n in some])
        send.issue(tx, [(known[keys[n]], counts[n]) for n in some])
        some.sort(key=lambda n: known[keys[n]].lane)  # so that neighbours in the table are written together
        _append_lanes(tx, rows, [(known[keys[n]], begins[n], counts[n]) for n in some], first, expires, listed)
    assert tx.totals.last_id == first + len(places) - 1, "nothing else issues arrival numbers meanwhile"
    for at in range(0, len(listed), CHUNK_ROWS):
        ready = [(first + at + n, lane, 0) for n, lane in enumerate(listed[at : at + CHUNK_ROWS]) if lane]
        if ready:
            insert_rows(tx, lanes.READY, ready)
            tx.wake = True


def _in_order(rows: PlainRows) -> Iterator[list[Item]]:
    """Yield the messages in the order of arrival, some at a time."""
    number = array("q", bytes(8 * len(rows.places)))  # by place: which of the bodies
    key_of = array("q", bytes(8 * len(rows.places)))
    for n, place in enumerate(rows.places):
        number[place] = n
    at = 0
    for key, count in enumerate(rows.counts):
        for place in rows.places[at : at + count]:
            key_of[place] = key
        at += count
    keys, bodies = rows.keys, rows.bodies
    for begin in range(0, len(number), CHUNK_ROWS):
        end = begin + CHUNK_ROWS
        yield [(keys[key], bodies[n], None, None) for key, n in zip(key_of[begin:end], number[begin:end], strict=True)]


def _append_lanes(
    tx: Tx, rows: PlainRows, some: list[tuple[send.Tail, int, int]], first: int, expires: int | None, listed: array[int]
) -> None:
    """Append messages of some lanes, given as (lane, begin of its messages, count). Note in `listed` which lanes to list."""
    lane_of: list[int] = []
    seqs: list[int] = []
    places: list[int] = []
    bodies: list[bytes] = []
    for tail, at, count in some:
        if tail.unlisted:
            listed[rows.places[at]] = tail.lane
        if count == 1:  # slices would take twice the time, and there may be a key for each message
            lane_of.append(tail.lane)
            seqs.append(tail.next)
            places.append(rows.places[at])
            bodies.append(rows.bodies[at])
        else:
            lane_of += [tail.lane] * count
            seqs += range(tail.next, tail.next + count)
            places += rows.places[at : at + count]
            bodies += rows.bodies[at : at + count]
        if len(seqs) >= CHUNK_ROWS:
            _insert(tx, lane_of, seqs, [first + place for place in places], bodies, expires)
            lane_of, seqs, places, bodies = [], [], [], []
    _insert(tx, lane_of, seqs, [first + place for place in places], bodies, expires)


def _insert(tx: Tx, lane_of: list[int], seqs: list[int], ids: list[int], bodies: list[bytes], expires: int | None) -> None:
    stored: list[bytes | None] = list(bodies)
    if max(map(len, bodies), default=0) > INLINE_BYTES_MAX:
        for i, body in enumerate(bodies):
            if len(body) > INLINE_BYTES_MAX:
                tx.run(SEND.insert_body, (ids[i], body))
                stored[i] = None
    flat: list[Any] = [expires] * (COLUMNS * len(seqs))
    flat[0::COLUMNS] = lane_of
    flat[1::COLUMNS] = seqs
    flat[2::COLUMNS] = ids
    flat[3::COLUMNS] = [tx.now] * len(seqs)
    flat[5::COLUMNS] = stored
    at, end = 0, len(flat)
    for rows, statement in send.INSERTS.items():
        size = rows * COLUMNS
        while end - at >= size:
            tx.run(statement, flat[at : at + size])
            at += size
