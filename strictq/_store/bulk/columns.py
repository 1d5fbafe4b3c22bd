"""Messages as blocks of columns: the results of a bulk read, and of a claim's rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from ..shard.leases import BODY, ID, SENT_AT, SEQ, SUSPECT, Fields, Held, Row

_BODY, _ID = itemgetter(BODY), itemgetter(ID)
_SENT_AT, _SEQ = itemgetter(SENT_AT), itemgetter(SEQ)


class ListedColumns(NamedTuple):
    """Messages as lists, with an entry for each of them.

    Attributes:
        fresh: the first of them is the first one read of its lane.
        keys, depths: as in `PackedColumns`.
        sent_at: queue time, microseconds.
        attempts: started handlers whose lease has ended.
        headers: JSON; None: there are none.
        died: for dead letters, the kind, reason and time of death of each.
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
    """The maximum number of messages in a block, and of bytes in their bodies. A single message may be larger."""

    messages: int
    bytes: int


class MessageRange(NamedTuple):
    """Messages of a shard for one reader, as planned.

    Attributes:
        dead: they are dead letters.
        place: whole numbers from 0 that only the store interprets.
    """

    shard: int
    dead: bool
    place: tuple[int, ...]


def leased_columns(leases: Iterable[Held], shard: int, size: BlockSize) -> Iterator[ListedColumns]:
    """Yield the messages of leases that hold rows, as blocks of whole lanes where they fit."""
    return listed(((held.key, held.rows) for held in leases), shard, size)


def listed(lanes: Iterable[tuple[bytes, Sequence[Row]]], shard: int, size: BlockSize) -> Iterator[ListedColumns]:
    """Yield blocks of whole lanes where they fit.

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
    """Yield rows in blocks that are not too large. The first row begins a lane."""
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
        # Take one column at a time: zip(*rows) takes more time than everything else here.
        yield ListedColumns(
            shard, fresh, keys, depths, list(map(_SEQ, some)), list(map(_ID, some)), list(map(_SENT_AT, some)),
            list(map(Fields.starts, some)), list(map(Fields.headers, some)), list(map(_BODY, some)),
            [row[SUSPECT + 1 :] for row in some] if len(some[0]) > SUSPECT + 1 else [],
        )  # fmt: skip
        at, fresh = end, whole


def _end(rows: Sequence[Row], at: int, size: BlockSize) -> int:
    """Return the end of a block that begins at a row."""
    end = min(at + size.messages, len(rows))
    if sum(map(len, map(_BODY, rows[at:end]))) <= size.bytes:
        return end
    filled = 0
    for n in range(at, end):
        filled += len(rows[n][BODY])
        if filled > size.bytes:
            return max(n, at + 1)
    return end
