"""Sending by columns: what a large batch of plain messages costs without an object for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from .._sql import SEND
from . import lanes, send
from .frame import Tx, insert_rows
from .send import INLINE_BYTES_MAX, Item

COLUMNS = 6


class Chunk(NamedTuple):
    """Some messages, each list with one entry for each.

    Attributes:
        lanes, seqs: ascending by both.
        ids: arrival numbers; ascending within a lane.
        bodies: their content.
        apart: places of bodies over INLINE_BYTES_MAX.
    """

    lanes: list[int]
    seqs: list[int]
    ids: list[int]
    bodies: list[bytes]
    apart: list[int]


class Columns(Protocol):
    """Messages of one shard without options, in columns.

    Attributes:
        keys: stored keys, each once.
        firsts: for each key, the place of its first message among all of these, in order of arrival.
        count: how many messages.
    """

    @property
    def keys(self) -> Sequence[bytes]: ...
    @property
    def firsts(self) -> Sequence[int]: ...
    @property
    def count(self) -> int: ...

    def chunks(self, lanes: list[int], tails: list[int], arrival: int) -> Iterable[Chunk]:
        """The messages, in lane order over all chunks.

        Args:
            lanes, tails: for each key its lane, and the last seq that was issued in it.
            arrival: the last arrival number that was issued; these take the next `count`.
        """
        ...


def append(tx: Tx, columns: Columns) -> None:
    """Append messages to their lanes: what `send.send` does for plain items. All of them, or none."""
    totals = tx.totals
    keys = columns.keys
    tails = send.tails(tx, sorted(keys))
    expires = send.times_of(tx.now, None, tx.config).expires
    for chunk in columns.chunks([tails[k].lane for k in keys], [tails[k].seq for k in keys], totals.last_id):
        _insert(tx, chunk, expires)
    ready = [
        (totals.last_id + 1 + first, tail.lane, 0)
        for first, tail in zip(columns.firsts, (tails[k] for k in keys), strict=True)
        if tail.unlisted
    ]
    if ready:
        ready.sort()
        insert_rows(tx, lanes.READY, ready)
        tx.wake = True
    totals.last_id += columns.count
    totals.pending += columns.count
    totals.sends += columns.count


def append_items(tx: Tx, items: Sequence[Item]) -> None:
    """The same for messages with options, in order of arrival. max_depth does not apply: the caller looked at it."""
    send.send(tx, items)


def _insert(tx: Tx, chunk: Chunk, expires: int | None) -> None:
    n = len(chunk.lanes)
    bodies: list[bytes | None] = list(chunk.bodies)
    if chunk.apart:
        tx.many(SEND.insert_body, [(chunk.ids[i], bodies[i]) for i in chunk.apart])
        for i in chunk.apart:
            bodies[i] = None
    flat: list[Any] = [expires] * (COLUMNS * n)
    flat[0::COLUMNS] = chunk.lanes
    flat[1::COLUMNS] = chunk.seqs
    flat[2::COLUMNS] = chunk.ids
    flat[3::COLUMNS] = [tx.now] * n
    flat[5::COLUMNS] = bodies
    at, end = 0, len(flat)
    for rows, statement in send.INSERTS.items():
        size = rows * COLUMNS
        while end - at >= size:
            tx.run(statement, flat[at : at + size])
            at += size


__all__ = ["INLINE_BYTES_MAX", "Chunk", "Columns", "append", "append_items"]
