"""One hot lane: its messages, its lease, its last acks, and the rows it becomes when it cools."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..commit.tx import NEVER
from ..lanes import resolution
from ..onelane.leases import BODY, EXPIRES, HEADERS, ID, PREPARE, PROCESS, SENT_AT, SEQ, SIZE_HINT, Row

_SEQ_BITS: Final = 64
_SEQ_MASK: Final = (1 << _SEQ_BITS) - 1
NO_ROWS: Final[list[Row]] = []
"""The rows of every lane without messages. Never changed: a lane gets its own list with its first message."""


class Claim(NamedTuple):
    """What the leases of one claim have in common.

    Attributes:
        before: how far before its first message `started` of a lease is, while nothing is started. See `lanes.SAYS_STARTS`.
        charged: a single message in its lease counts as started.
    """

    token: int
    at: int
    deadline: int
    before: int
    charged: bool
    consumer: str


class HotLease:
    """The lease on the first messages of a hot lane.

    Attributes:
        lo, hi: its messages are those of the lane with lo <= seq <= hi.
        low: the arrival number of the first message that it ever held.
        started: as in the table `lease`.
        pending: how many are unresolved. They are the first rows of the lane.
    """

    __slots__ = ("claim", "hi", "lo", "low", "pending", "started")

    claim: Claim
    lo: int
    hi: int
    low: int
    started: int
    pending: int


# A plain tuple, because the garbage collector does not traverse it again.
Done = tuple[int, int, Sequence[int]]
"""A hot lane's acks in the last row of the journal that has any, for a retried call: the token, the lowest of their arrival
numbers, and the seqs, ascending."""
DONE_LOW: Final = 1


class HotLane:
    """One hot lane. `send.issue` numbers its messages like those of a `Tail`.

    Attributes:
        seq: the newest issued seq.
        next: the first unused seq of those that `issue` reserved last.
        rows: unresolved messages, seq ascending; the lease's first.
        touched: the arrival number of its newest message, resolved or not.
        listed: the arrival number of its place in the order, which may be stale; 0: it has none.
        expires: the time before which no message of it expires.
        number: the id of its row in `lane`; 0: it is unknown, or there is none.
        gone: it has cooled. Its key may be hot again, as another object.
        rowless: whether it has no row in `lane`, as of the last `Memory.figures`; None: that has not looked it up.
    """

    __slots__ = (
        "active_at", "done", "expires", "gone", "key", "lease", "listed", "next", "number", "rowless", "rows", "seq", "touched",
    )  # fmt: skip

    def __init__(self, key: bytes, seq: int, number: int = 0) -> None:
        self.key = key
        self.number = number
        self.seq = seq
        self.next = seq + 1
        self.rows: list[Row] = NO_ROWS
        self.lease: HotLease | None = None
        self.done: Done | None = None
        self.touched = 0
        self.active_at = 0
        self.expires = NEVER
        self.listed = 0
        self.gone = False
        self.rowless: bool | None = None

    @classmethod
    def of_tail(cls, key: bytes, tail: int) -> HotLane:
        """Create the lane that has this tail, when it becomes hot again."""
        return cls(key, tail & _SEQ_MASK, tail >> _SEQ_BITS)

    @property
    def tail(self) -> int:
        """The id of its row, and its last seq, as one number: the garbage collector skips a dict of numbers."""
        return self.number << _SEQ_BITS | self.seq

    @property
    def low(self) -> int:
        """The lowest row of the inbox that this lane still needs."""
        low: int = self.touched
        if self.lease is not None:
            low = self.lease.low
        elif self.rows:
            low = self.rows[0][ID]
        return low

    @property
    def mark(self) -> int:
        """The arrival number by which the journal names its lease: that of the last unresolved message.

        An older one may be cut from the inbox while later ones of the lease remain. Then the row would name no lane.
        """
        assert self.lease is not None
        mark: int = self.rows[self.lease.pending - 1][ID]
        return mark

    def is_over(self, now: int) -> bool:
        """Return whether one of its messages may have expired."""
        return now >= self.expires

    def copy(self) -> HotLane:
        """Return a copy that later changes of memory do not affect."""
        lane = copy.copy(self)
        lane.rows, lane.lease = list(self.rows), copy.copy(self.lease)
        return lane

    # Its rows in the tables, under a given number.

    def state_row(self, number: int) -> tuple[int, int, int, int]:
        """Return last_seq, resolved, active_at and the number."""
        rows = self.rows
        last_seq = rows[0][SEQ] - 1 if rows and rows[-1][SEQ] == self.seq else self.seq
        return last_seq, self.seq - len(rows), self.active_at, number

    def acks_row(self, number: int) -> tuple[int | str | None, ...]:
        """Return its last acks (token, lowest and highest seq, gaps; all None: those in its row), active_at and the number."""
        if self.done is None:
            return None, None, None, None, self.active_at, number
        token, _, seqs = self.done
        lo, hi = seqs[0], seqs[-1]
        return token, lo, hi, resolution.gaps(seqs) if hi - lo >= len(seqs) else None, self.active_at, number

    def lane_row(self, number: int) -> tuple[int | str | None, ...]:
        """Return what `acks_row` does, last_seq and resolved."""
        return (*self.acks_row(number), *self.state_row(number)[:2])

    def message_rows(self, number: int) -> list[tuple[Any, ...]]:
        """Return rows of (number, seq, id, sent_at, expires, headers, size_hint, prepare_seconds, process_seconds, body)."""
        return [
            (number, r[SEQ], r[ID], r[SENT_AT], r[EXPIRES], r[HEADERS], r[SIZE_HINT], r[PREPARE], r[PROCESS], r[BODY])
            for r in self.rows
        ]

    def lease_row(self, number: int) -> tuple[int, int, str, int, int, int, int, int, int] | None:
        """Return number, token, consumer, lo, hi, started, pending, leased_at and deadline of its lease. None: it has none."""
        lease = self.lease
        if lease is None:
            return None
        claim = lease.claim
        return (
            number, claim.token, claim.consumer, lease.lo, lease.hi, lease.started, lease.pending, claim.at, claim.deadline,
        )  # fmt: skip
