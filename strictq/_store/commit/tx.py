"""The state of one write transaction: the lanes, the time, the configuration, and the events to report afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import apsw

from ..._values.config import QueueConfig
from ..._values.errors import InvalidArgument
from ..._values.keys import decode_key
from ..._values.types import Event
from ..lane.entries import NEVER as NEVER
from ..lane.entries import RATE_SECONDS
from ..lane.entries import TOKEN_BITS as TOKEN_BITS
from ..lane.totals import RunningTotals
from ..lane.totals import add_acks as add_acks

LanesT = TypeVar("LanesT")

SECOND: Final = 1_000_000
EPOCHS: Final = 1 << (62 - TOKEN_BITS)
"""The number of epochs that a token can represent."""


RARE: Final = ("dead_letters", "rejected", "redriven")
"""Totals of what seldom happens. Formats 1 and 2 have them in `meta`."""
COUNTED: Final = (
    "sends", "receives", "claims", "acks", "retries", "redeliveries", "expired", "dropped", "purged", "dead_letters",
)  # fmt: skip
"""The counters that observers see."""


class TxOf(Generic[LanesT]):
    """One write transaction on one shard, as operations see it. It holds the write lock.

    This floor does not know what lanes are. Those who do name the type: `Tx` in shard_lanes.py.
    """

    __slots__ = (
        "committed",
        "config",
        "counts_after",
        "counts_before",
        "db",
        "events",
        "lanes",
        "many",
        "now",
        "run",
        "shard",
        "totals",
        "undone",
        "wake",
    )

    def __init__(self, db: apsw.Connection, shard: int, lanes: LanesT, totals: Any, now: int, config: QueueConfig) -> None:
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
        self.totals = totals
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


AnyTx = TxOf[Any]


def decayed_rate(totals: RunningTotals, now: int) -> float:
    """Return the messages acked per second, weighted by exp(-age / RATE_SECONDS)."""
    return totals.ack_rate * math.exp(-max(now - totals.ack_rate_at, 0) / (RATE_SECONDS * SECOND))
