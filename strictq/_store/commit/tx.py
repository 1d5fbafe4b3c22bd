"""The state of one write transaction: the counter row, the time, the configuration, and the events to report afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import apsw
import attrs

from ..._config import QueueConfig
from ..._errors import InvalidArgument
from ..._keys import decode_key
from ..._sql import SHARD
from ..._types import Event
from ..lane.entries import NEVER as NEVER
from ..lane.entries import RATE_SECONDS
from ..lane.entries import TOKEN_BITS as TOKEN_BITS
from ..lane.entries import add_acks as add_acks

if TYPE_CHECKING:
    from ..lane.totals import RunningTotals
    from ..onelane.shard_lanes import ShardLanes

SECOND: Final = 1_000_000
EPOCHS: Final = 1 << (62 - TOKEN_BITS)
"""The number of epochs that a token can represent."""


@attrs.define(eq=False, repr=False)
class Totals:
    """The counter row. Field order is the order of the columns."""

    config_version: int
    epoch: int
    time_offset: int
    last_time: int
    last_id: int
    last_token: int
    last_lane: int
    last_outbox: int
    seq_floor: int
    next_deadline: int
    lanes: int
    pending: int
    dead: int
    sends: int
    receives: int
    claims: int
    empty_receives: int
    acks: int
    retries: int
    redeliveries: int
    expired: int
    dropped: int
    purged: int
    ack_rate: float
    ack_rate_at: int
    dead_letters: int = 0
    """Not a column, like the two below: messages dead-lettered in this transaction. `rejected` of them by a consumer."""
    rejected: int = 0
    redriven: int = 0

    def values(self) -> tuple[Any, ...]:
        values: tuple[Any, ...] = _VALUES(self)
        return values

    def counts(self) -> tuple[int, ...]:
        """Return the values of COUNTED."""
        counts: tuple[int, ...] = _COUNTS(self)
        return counts

    def are_possible(self) -> bool:
        """Return whether strictq could have written all values.

        Numbers near the limits of what SQLite stores would overflow.
        """
        numbers = [v for v in attrs.astuple(self) if isinstance(v, int)]
        return (
            0 <= self.epoch < EPOCHS
            and 0 <= self.last_token < 1 << TOKEN_BITS
            and all(-NEVER <= n <= NEVER for n in numbers)
            and math.isfinite(self.ack_rate)
        )

    @classmethod
    def read(cls, db: apsw.Connection) -> Totals:
        row = db.execute(SHARD.read_counter).get
        if row is None:
            raise apsw.CorruptError("the counter row is missing")
        return cls(*row)


RARE: Final = ("dead_letters", "rejected", "redriven")
"""Counts of one transaction that are added to totals in `meta`."""
_VALUES: Final = attrgetter(*(field.name for field in attrs.fields(Totals) if field.name not in RARE))
COUNTED: Final = (
    "sends", "receives", "claims", "acks", "retries", "redeliveries", "expired", "dropped", "purged", "dead_letters",
)  # fmt: skip
"""The counters that observers see."""
_COUNTS: Final = attrgetter(*COUNTED)


class Tx:
    """One write transaction on one shard, as operations see it. It holds the write lock."""

    __slots__ = (
        "changes_before",
        "committed",
        "config",
        "counts_after",
        "counts_before",
        "db",
        "dirty",
        "events",
        "hot",
        "hot_changes",
        "lanes",
        "many",
        "now",
        "run",
        "shard",
        "totals",
        "undone",
        "wake",
    )

    def __init__(self, db: apsw.Connection, shard: int, lanes: ShardLanes, totals: Any, now: int, config: QueueConfig) -> None:
        self.hot: Any = None  # until the code of format 2 is gone
        self.hot_changes, self.changes_before, self.dirty = 0, 0, False
        self.lanes = lanes
        self.counts_before: tuple[int, ...] | None = None
        """The counters at the beginning, if an observer counts. `counts_after`: after the COMMIT."""
        self.counts_after: tuple[int, ...] = ()
        self.committed = False
        self.undone = False
        """Whether the transaction was rolled back before its COMMIT."""
        self.db = db
        # The types of SQLite's values follow from the schema; they are not known statically.
        self.run: Callable[..., Any] = db.execute
        self.many: Callable[..., Any] = db.executemany
        self.shard = shard
        self.totals: Totals = totals
        self.now = now
        self.config = config
        self.events: list[Event] = []
        self.wake = False
        """Whether something became claimable, so that waiting receivers must be woken."""

    def require_whole(self) -> None:
        """Raise if SQLite has rolled the transaction back: later statements would each be committed separately.

        Raises:
            InvalidArgument: the program's SQL caused the rollback; nothing happened.
        """
        if not self.db.in_transaction:
            raise InvalidArgument("the program's SQL rolled the transaction back; nothing was changed")

    def new_position(self) -> int:
        """Return a position behind every listed lane. Arrival numbers, which `send.issue` issues, are positions, too."""
        self.totals.last_id += 1
        return self.totals.last_id

    def new_token(self) -> int:
        self.totals.last_token += 1
        return (self.totals.epoch << TOKEN_BITS) + self.totals.last_token

    def count_acks(self, n: int) -> None:
        """Count acks, and update their exponentially weighted rate."""
        totals = self.totals
        totals.acks += n
        totals.ack_rate, totals.ack_rate_at = add_acks(totals.ack_rate, totals.ack_rate_at, self.now, n)

    def report(
        self, kind: Any, key: bytes | None = None, seq: int | None = None, token: int | None = None, detail: str = ""
    ) -> None:
        """Add an event for the observers' hooks, which is reported after the commit."""
        self.events.append(
            Event(
                kind=kind,
                shard=self.shard,
                key=None if key is None else decode_key(key),
                seq=seq,
                token=token,
                detail=detail,
            )
        )


def insert_rows(tx: Tx, statements: dict[int, str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert many rows per statement, with the statements of `repeated`. Costs less than half of single-row INSERTs."""
    at, left = 0, len(rows)
    for n, statement in statements.items():
        while left >= n:
            tx.run(statement, tuple(chain.from_iterable(rows[at : at + n])))
            at += n
            left -= n


def insert_values(tx: Tx, statements: dict[int, str], values: list[Any], width: int, shared: tuple[Any, ...]) -> None:
    """Do the same for a flat list of the values of all rows.

    Args:
        shared: the first parameters of each statement.
    """
    at = 0
    for n, statement in statements.items():
        step = n * width
        while len(values) - at >= step:
            tx.run(statement, (*shared, *values[at : at + step]))
            at += step


def decayed_rate(totals: Totals | RunningTotals, now: int) -> float:
    """Return the messages acked per second, weighted by exp(-age / RATE_SECONDS)."""
    return totals.ack_rate * math.exp(-max(now - totals.ack_rate_at, 0) / (RATE_SECONDS * SECOND))
