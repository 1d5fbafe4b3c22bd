"""Claiming column by column: SQLite packs a lane's messages, which costs a fifth of making a row of each in Python.

For who wants many messages at once, and not one by one: a hand-out. Only for plain messages: without headers, never attempted,
their bodies in the row, neither delayed nor expired.
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
"""Most messages of a piece. No body of theirs lies apart: they are some megabytes at most."""
PAUSE: Final = 100
"""Messages that are read as rows behind one that is not plain, before columns are tried again; twice as many each time."""
PAUSE_MAX: Final = 10_000
LANES_MIN: Final = 64
"""Lanes that are packed together; where there is room for fewer, they come as rows."""
LANES_FIRST: Final = 1_000
"""Lanes that are read together before it is known how deep they are."""
SAMPLE: Final = 32
"""Lanes after which it is asked whether packing pays."""
PAYS: Final = 10
"""Messages of a lane, on an average, from which on it does (measured)."""


class Piece(NamedTuple):
    """Messages of one lane that follow one another.

    Attributes:
        careful: the lane is to be looked at message by message.
        tail: the lane's last seq.
        unlike: one of them is not plain, and then the columns are of no use.
        seqs, ids, sent_at, sizes: a number for each message, in decimal, with commas between them. Who uses them makes sure that
            seqs ascend.
        bodies: one behind the other, as long as `sizes` says.
        messages: how many.
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
    """The first messages of each ready lane, at most `step` of each: the oldest ready head first.

    Args:
        after, last: positions behind which and up to which. Positions must not be changed while this is read.
    """
    found = tx.run(CLAIM.ready_packed, (after, last, step, tx.now))
    try:
        yield from map(_piece, found)
    finally:
        found.close(True)


def pays(lanes: int, messages: int, each: int | None = None) -> bool:
    """Whether to go on, after so many: a lane that has one message costs more than its row does.

    Args:
        each: messages of a lane from which on it pays; None: PAYS.
    """
    return lanes < SAMPLE or messages >= (PAYS if each is None else each) * lanes


def following(tx: Tx, piece: Piece, step: int) -> Piece:
    """At most `step` messages behind a piece that does not end its lane."""
    return _piece(tx.run(CLAIM.lane_packed, (piece.lane, piece.hi, step, tx.now, piece.position)).get)


class Lanes(NamedTuple):
    """Whole lanes, all of them plain.

    Attributes:
        lanes: ascending.
        lows, highs, depths: the first and the last seq of each, and how many messages it has.
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
    """All messages of many lanes, about STEP at a time.

    In the order of lanes, and not of their turns: so each page of the table is read once, wherever its lanes stand.

    Args:
        lanes: ascending.
        depth: about how many messages each has.
    Returns:
        Nothing, where there are more than `room`, or one of them is not plain.
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
    """None: there are more messages than the limit, or one of them is not plain, or a lane has none."""
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
    """What can be told from the texts is not counted by SQLite: it costs 3 % a column."""
    *columns, bodies = row
    seqs, ids = columns[6], columns[7]
    return Piece._make((*columns, bodies or b"", seqs.count(",") + 1, int(seqs.partition(",")[0]), _last(seqs), _last(ids)))


def _last(numbers: str) -> int:
    return int(numbers[numbers.rfind(",") + 1 :])
