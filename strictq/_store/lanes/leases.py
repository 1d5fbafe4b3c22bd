"""What a lease brings, and what its holder names when it settles: the values on both sides of a receive and of an ack."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ..._errors import LeaseLost
from ..bulk import packing
from . import history, retries

if TYPE_CHECKING:
    from ..bulk.columns import PackedColumns

# Columns of a row from CLAIM.ready_messages and its kin.
POSITION, CAREFUL, KEY, LANE, SEQ, DUE, EXPIRES, ATTEMPTS, ID, SENT_AT, HEADERS, SIZE_HINT, PREPARE, PROCESS, BODY = range(15)

Row = tuple[Any, ...]
"""A message that was leased. `Fields` reads it."""


class Fields:
    """What a row says, by name: `Fields.seq(row)`. An object made of each row would cost a tenth of a receive.

    Attributes:
        id: arrival number in the shard.
        headers: JSON, or None.
        sent_at: queue time, microseconds.
    """

    seq: Final[Callable[[Row], int]] = itemgetter(SEQ)
    id: Final[Callable[[Row], int]] = itemgetter(ID)
    body: Final[Callable[[Row], bytes]] = itemgetter(BODY)
    headers: Final[Callable[[Row], str | None]] = itemgetter(HEADERS)
    sent_at: Final[Callable[[Row], int]] = itemgetter(SENT_AT)
    size_hint: Final[Callable[[Row], float | None]] = itemgetter(SIZE_HINT)
    prepare_seconds: Final[Callable[[Row], float | None]] = itemgetter(PREPARE)
    process_seconds: Final[Callable[[Row], float | None]] = itemgetter(PROCESS)

    @staticmethod
    def starts(row: Row) -> int:
        """How many handlers of it were started before."""
        return retries.starts(row[ATTEMPTS])


class Held:
    """A lease as it was given: one lane's messages, in order. (Made for every lane of a receive: kept light.)

    Its holder settles messages through it; `of_handle` makes one for a holder that knows no more than the key and the token.

    Attributes:
        lane: 0: not known; the operation finds it by the key. No one but the store uses it.
        apart: arrival ids, by seq, of the bodies that lie apart.
        pieces: its messages column by column, and then there are no rows.
    """

    __slots__ = ("apart", "deadline", "key", "lane", "pieces", "rows", "token")

    def __init__(self, lane: int, key: bytes, token: int, deadline: int, rows: Sequence[Row]) -> None:
        self.lane = lane
        self.key = key
        self.token = token
        self.deadline = deadline
        self.rows = rows
        self.apart: Mapping[int, int] = _NONE
        self.pieces: Sequence[packing.Piece] = ()

    @classmethod
    def of_handle(cls, key: bytes, token: int) -> Held:
        return cls(0, key, token, 0, ())

    def __len__(self) -> int:
        return len(self.rows) or sum(piece.messages for piece in self.pieces)

    def whole(self, seqs: range) -> Settlement:
        """All its messages, as far as its holder knows."""
        return Settlement(self.lane, self.key, self.token, seqs, True, tuple(self.apart.values()) if self.apart else ())

    def all(self) -> Settlement:
        """All its messages, as they were leased."""
        rows = self.rows
        lo, hi = rows[0][SEQ], rows[-1][SEQ]
        if hi - lo + 1 == len(rows):
            return self.whole(range(lo, hi + 1))
        return self.some([row[SEQ] for row in rows])

    def some(self, seqs: Sequence[int], *, start: int | None = None, took: Took | None = None) -> Settlement:
        """Some of its messages.

        Args:
            seqs: ascending.
            start: the next message of the lease, whose handler starts with this ack.
            took: what a worker measured of its handler; kept with its record.
        """
        apart = tuple(self.apart[seq] for seq in seqs if seq in self.apart) if self.apart else ()
        end = history.ACKED if took is None else history.End("acked", 1, *took)
        return Settlement(self.lane, self.key, self.token, seqs, False, apart, start, end)


_NONE: Final[Mapping[int, int]] = {}
_NO_IDS: Final = array("q")
Took = tuple[float | None, float, str | None]
"""Seconds that prepare (None: there was none) and process took, and what the handler had to say."""


class Claimed:
    """What one claim brought, from one shard.

    Attributes:
        shard: its number.
        lease: its length, microseconds.
        messages: of all its leases.
        token, deadline: of all its leases.
        more: bounded work was cut short: claim again, there may be something ready.
        hot: the messages of each lease of a hot lane. `leases` makes more of them when they are asked for.
        ids: their arrival numbers.
        all_hot: these are all that it leased, with their bodies.
        columns: messages of lanes that have few: leased like the others, as a whole, without an object for each.
    """

    __slots__ = (
        "_leases", "_made", "all_hot", "columns", "deadline", "hot", "ids", "lease", "messages", "more", "shard", "token",
    )  # fmt: skip

    def __init__(self, shard: int, lease: int) -> None:
        self.shard = shard
        self.lease = lease
        self.messages = 0
        self.token = 0
        self.deadline = 0
        self.more = False
        self.hot: list[Sequence[Row]] = []
        self.ids: array[int] = _NO_IDS
        self.all_hot = True
        self.columns: list[PackedColumns] = []
        self._leases: list[Held] = []
        self._made = 0
        """Those of `hot` of which there are leases."""

    @property
    def leases(self) -> list[Held]:
        """What it leased, in the order of the claim."""
        made, some = self._made, self.hot
        if made < len(some):
            rest = [Held(0, rows[0][KEY], self.token, self.deadline, rows) for rows in some[made:]]
            self._leases, self._made = [*self._leases, *rest], len(some)  # the same, where another thread does it, too
        return self._leases

    def add(self, held: Held) -> None:
        """Add the lease of a lane that is not hot."""
        self.leases.append(held)
        self.all_hot = False

    def keep(self, leases: list[Held]) -> None:
        """Only these are left of it."""
        self.hot, self._made, self._leases, self.all_hot = [], 0, leases, False
        self.messages = sum(map(len, leases))


class Settlement:
    """Messages of one lane under one token, to be settled. `Held` makes it. (Made for every lane of an ack: kept light.)

    Attributes:
        lane: 0: not known to its holder; see `settle.locate`.
        given: its holder knew the lane.
        seqs: ascending.
        whole: these are all messages of the lease, as far as its holder knows.
        apart: arrival ids of the bodies that lie apart; needed where it is whole, or acked by `Advance`.
        start: the next message of the lease, whose handler starts with this ack.
        end: what is recorded of it, where history is kept.
    """

    __slots__ = ("apart", "end", "given", "key", "lane", "seqs", "start", "token", "whole")

    def __init__(
        self,
        lane: int,
        key: bytes,
        token: int,
        seqs: Sequence[int],
        whole: bool = False,
        apart: Sequence[int] = (),
        start: int | None = None,
        end: history.End = history.ACKED,
    ) -> None:
        self.lane = lane
        self.given = lane != 0
        self.key = key
        self.token = token
        self.seqs = seqs
        self.whole = whole
        self.apart = apart
        self.start = start
        self.end = end


Lost = dict[int, LeaseLost]
"""The seqs of a settlement that were refused, and why; empty: all of it took effect."""
