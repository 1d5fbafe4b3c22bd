"""Claiming column by column: SQLite packs a lane's messages, for a fifth of the cost of making a row of each in Python.

For batches, which want many messages at once. Only for plain messages: without headers, never attempted, with their bodies in the
row, neither delayed nor expired.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import apsw

from ..._sql import CLAIM
from ..commit.tx import Tx

STEP: Final = 5_000
"""The maximum number of messages in a piece. None of their bodies is stored out of line, so they have at most some megabytes."""
PAUSE: Final = 100
"""The number of messages that are read as rows after one that is not plain, before columns are tried again. Doubles each time."""
PAUSE_MAX: Final = 10_000
LANES_MIN: Final = 64
"""The minimum number of lanes that are packed together. If there is room for fewer, rows are read."""
LANES_FIRST: Final = 1_000
"""The number of lanes that are read together before their depth is known."""
SAMPLE: Final = 32
"""The number of lanes after which `pays` is consulted."""
PAYS: Final = 10
"""The average number of messages in a lane from which packing pays (measured)."""


class Piece(NamedTuple):
    """Consecutive messages of one lane.

    Attributes:
        careful: the lane must be read message by message.
        tail: the lane's last seq.
        unlike: one of the messages is not plain; the columns are then unusable.
        seqs, ids, sent_at, sizes: a number for each message, in decimal, separated by commas. The user of a piece verifies that
            seqs ascend.
        bodies: concatenated, with the lengths in `sizes`.
        messages: their number.
        lo, hi: the first and the last seq.
        newest: the last arrival number.
    """

    position: int
    careful: int
    lane: int
    key: bytes
    tail: int
    unlike: int
    seqs: str
    ids: str
    sent_at: str
    sizes: str
    bodies: bytes
    messages: int
    lo: int
    hi: int
    newest: int


def ready(tx: Tx, after: int, last: int, step: int) -> Iterator[Piece]:
    """Yield the first messages of each ready lane, at most `step` of each, the oldest ready head first.

    Args:
        after, last: the positions to read, excluding `after`. Positions must not change while this is read.
    """
    found = tx.run(CLAIM.ready_packed, (after, last, step, tx.now))
    try:
        yield from map(_piece, found)
    finally:
        found.close(True)


def pays(lanes: int, messages: int, each: int | None = None) -> bool:
    """Return whether packing pays, after this many lanes and messages. A lane with one message costs more than its row.

    Args:
        each: messages of a lane from which it pays; None: PAYS.
    """
    return lanes < SAMPLE or messages >= (PAYS if each is None else each) * lanes


def following(tx: Tx, piece: Piece, step: int) -> Piece:
    """Return at most `step` messages after a piece that does not end its lane."""
    return _piece(tx.run(CLAIM.lane_packed, (piece.lane, piece.hi, step, tx.now, piece.position)).get)


class Lanes(NamedTuple):
    """Whole lanes, all of them plain.

    Attributes:
        lanes: ascending.
        lows, highs, depths: the first and the last seq of each, and its number of messages.
        messages: of all of them.
        seqs, ids, sent_at, sizes, bodies: as in `Piece`, lane by lane.
        newest: the last arrival number of all of them.
    """

    lanes: Sequence[int]
    keys: list[bytes]
    lows: Sequence[int]
    highs: Sequence[int]
    depths: Sequence[int]
    messages: int
    seqs: str
    ids: str
    sent_at: str
    sizes: str
    bodies: bytes
    newest: int


def together(tx: Tx, lanes: Sequence[int], depth: float, room: int) -> list[Lanes]:
    """Return all messages of many lanes, about STEP at a time.

    They are read in the order of lanes, not of their turns, so that each page of the table is read once.

    Args:
        lanes: ascending.
        depth: the approximate number of messages in each.
    Returns:
        Nothing if there are more than `room`, or one of them is not plain.
    """
    found: list[Lanes] = []
    step = int(STEP / depth) + 1
    for at in range(0, len(lanes), step):
        some = _whole_lanes(tx, lanes[at : at + step], min(2 * STEP, room))
        if some is None:
            return []
        found.append(some)
        room -= some.messages
    return found


def _whole_lanes(tx: Tx, lanes: Sequence[int], limit: int) -> Lanes | None:
    """Return these lanes. None: there are more messages than the limit, one of them is not plain, or a lane has none."""
    given = apsw.carray(array("q", lanes))
    count, unlike, lane_text, seq_text, ids, sent_at, sizes, bodies, newest = tx.run(
        CLAIM.lanes_packed, (given, limit + 1, tx.now)
    ).get
    if unlike or not count or count > limit:
        return None
    found, seqs = list(map(int, lane_text.split(","))), list(map(int, seq_text.split(",")))
    begins: Sequence[int] = range(count + 1)
    if found != lanes:
        begins = [0, *(n for n in range(1, count) if found[n] != found[n - 1]), count]
        if [found[n] for n in begins[:-1]] != lanes:
            return None
    lengths, joined = tx.run(CLAIM.keys_packed, (given,)).get
    keys = [joined[a:b] for a, b in pairwise(accumulate(map(int, lengths.split(",")), initial=0))]
    return Lanes(
        lanes, keys, [seqs[n] for n in begins[:-1]], [seqs[n - 1] for n in begins[1:]], [b - a for a, b in pairwise(begins)],
        count, seq_text, ids, sent_at, sizes, bodies or b"", newest,
    )  # fmt: skip


def _piece(row: tuple[Any, ...]) -> Piece:
    """Make a piece of a row. Values that follow from the texts are computed here: in SQLite they cost 3 % per column."""
    *columns, bodies = row
    seqs, ids = columns[6], columns[7]
    return Piece._make((*columns, bodies or b"", seqs.count(",") + 1, int(seqs.partition(",")[0]), _last(seqs), _last(ids)))


def _last(numbers: str) -> int:
    return int(numbers[numbers.rfind(",") + 1 :])
