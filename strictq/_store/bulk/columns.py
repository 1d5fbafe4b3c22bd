"""Messages as blocks of columns: what a bulk read gives, and what is made of the rows of a claim."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from ..lanes.leases import ATTEMPTS, BODY, HEADERS, ID, SENT_AT, SEQ, Held, Row
from ..lanes.retries import starts

_BODY, _HEADERS, _ID = itemgetter(BODY), itemgetter(HEADERS), itemgetter(ID)
_SENT_AT, _SEQ = itemgetter(SENT_AT), itemgetter(SEQ)

Runs = Callable[[str, int], tuple[Sequence[int], Sequence[int]]]
"""Reads so many numbers with commas between them: where they change, each new one, and how often it comes."""


class PackedColumns(NamedTuple):
    """Messages as SQLite packed them. Where these are wanted they have no headers, no attempts, and small bodies.

    What is not wanted is empty.

    Attributes:
        messages: how many.
        keys: stored ones, of the lanes in their order.
        depths: how many messages of each lane there are, lane by lane.
        seqs, ids, sent_at, sizes: a number for each message, in decimal, with commas between them.
        bodies: one behind the other, as long as `sizes` says.
    """

    shard: int
    messages: int
    keys: list[bytes]
    depths: Sequence[int]
    seqs: str
    ids: str
    sent_at: str
    sizes: str
    bodies: bytes


class ListedColumns(NamedTuple):
    """Messages as lists, with an entry for each of them.

    Attributes:
        fresh: the first of them is the first of its lane that is given.
        keys, depths: as in `PackedColumns`.
        sent_at: queue time, microseconds.
        attempts: handlers that were started and whose lease has ended.
        headers: JSON; None: there are none.
        died: where they are dead letters: kind, reason, and time of death, of each.
    """

    shard: int
    fresh: bool
    keys: list[bytes]
    depths: list[int]
    seqs: list[int]
    ids: list[int]
    sent_at: list[int]
    attempts: list[int]
    headers: list[str | None]
    bodies: list[bytes]
    died: list[tuple[Any, ...]]


class BlockSize(NamedTuple):
    """Most messages of a block of columns, and bytes of their bodies, unless one message has more."""

    messages: int
    bytes: int


class MessageRange(NamedTuple):
    """Messages of a shard that one reader takes, as they were planned.

    Attributes:
        dead: they are dead letters.
        place: which ones: whole numbers from 0 that mean something to the store alone.
    """

    shard: int
    dead: bool
    place: tuple[int, ...]


def leased_columns(leases: Iterable[Held], shard: int, size: BlockSize) -> Iterator[ListedColumns]:
    """The messages of leases that hold them one by one, as blocks of whole lanes, where they fit."""
    return listed(((held.key, held.rows) for held in leases), shard, size)


def listed(lanes: Iterable[tuple[bytes, Sequence[Row]]], shard: int, size: BlockSize) -> Iterator[ListedColumns]:
    """Blocks of whole lanes, where they fit.

    Args:
        lanes: stored key, and rows of a claim or a scan, with their bodies.
    """
    some: deque[tuple[bytes, int]] = deque()
    rows: list[Row] = []
    for key, messages in lanes:
        if rows and len(rows) + len(messages) > size.messages:
            yield from _cut(some, rows, shard, size)
            rows = []
        some.append((key, len(messages)))
        rows += messages
    yield from _cut(some, rows, shard, size)


def _cut(lanes: deque[tuple[bytes, int]], rows: list[Row], shard: int, size: BlockSize) -> Iterator[ListedColumns]:
    """Rows, the first of a new lane, in blocks that are not too large."""
    at, fresh = 0, True
    while at < len(rows):
        end = _end(rows, at, size)
        keys: list[bytes] = []
        depths: list[int] = []
        left = end - at
        whole = True
        while left:
            key, depth = lanes.popleft()
            n = min(depth, left)
            keys.append(key)
            depths.append(n)
            left -= n
            whole = n == depth
            if not whole:
                lanes.appendleft((key, depth - n))
        some = rows[at:end]
        # A column at a time: zip(*rows) takes more time than all else here.
        yield ListedColumns(
            shard, fresh, keys, depths, list(map(_SEQ, some)), list(map(_ID, some)), list(map(_SENT_AT, some)),
            [starts(row[ATTEMPTS]) for row in some], list(map(_HEADERS, some)), list(map(_BODY, some)),
            [row[BODY + 1 :] for row in some] if len(some[0]) > BODY + 1 else [],
        )  # fmt: skip
        at, fresh = end, whole


def _end(rows: Sequence[Row], at: int, size: BlockSize) -> int:
    """Where a block that begins at a row ends."""
    end = min(at + size.messages, len(rows))
    if sum(map(len, map(_BODY, rows[at:end]))) <= size.bytes:
        return end
    filled = 0
    for n in range(at, end):
        filled += len(rows[n][BODY])
        if filled > size.bytes:
            return max(n, at + 1)
    return end
