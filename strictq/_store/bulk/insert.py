"""Sending by columns: what a large batch of plain messages costs without an object for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from ..._sql import SEND
from ..commit.tx import Tx, insert_rows
from ..lanes import lanes, send
from ..lanes.send import INLINE_BYTES_MAX, Item

COLUMNS: Final = 6
CHUNK_ROWS: Final = 16_384
"""BulkRows whose values are laid out for SQLite at once."""


class PlainRows(NamedTuple):
    """Messages of one shard without options, key by key.

    Attributes:
        keys: stored keys, each once.
        counts: how many messages of each there are.
        places: of every message its place, from 0, in the order of arrival of all of these; ascending within a key.
        bodies: of every message, those of a key in the order of its sequence.
    """

    keys: Sequence[bytes]
    counts: Sequence[int]
    places: Sequence[int]
    bodies: Sequence[bytes]


BulkRows = PlainRows | Sequence[Item]
"""Messages of one shard: in columns, or one by one in the order of arrival."""


def append(tx: Tx, rows: BulkRows) -> None:
    """Append messages to their lanes. All of them, or none. max_depth does not apply: the caller looked at it."""
    if not isinstance(rows, PlainRows):
        send.send(tx, rows)
        return
    known = send.tails(tx, sorted(rows.keys))
    tails = [known[key] for key in rows.keys]
    first = send.issue(tx, zip(tails, rows.counts, strict=True))
    begins = list(accumulate(rows.counts, initial=0))[:-1]
    ready = [(first + rows.places[at], tail.lane, 0) for at, tail in zip(begins, tails, strict=True) if tail.unlisted]
    # Lane by lane: neighbours in the table are written together.
    order = sorted(range(len(tails)), key=lambda n: tails[n].lane)
    expires = send.times_of(tx.now, None, tx.config).expires
    lane_of: list[int] = []
    seqs: list[int] = []
    places: list[int] = []
    bodies: list[bytes] = []
    for n in order:
        tail, count, at = tails[n], rows.counts[n], begins[n]
        if count == 1:  # a slice of each would take twice the time, and there may be a key for each message
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
    if ready:
        ready.sort()
        insert_rows(tx, lanes.READY, ready)
        tx.wake = True


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
