"""The state of one write transaction: the lanes, the time, the configuration, and the events to report afterwards."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, Generic, Protocol, TypeVar, TypeVarTuple

import apsw

from ..._platform import process as _process
from ..._platform.observe import Observers
from ..._values import hints
from ..._values.config import QueueConfig
from ..._values.errors import InvalidArgument, StoreError
from ..._values.keys import decode_key
from ..._values.types import Event
from ..disk.rate_file import RateFile
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


T = TypeVar("T")
On = TypeVar("On")
Rest = TypeVarTuple("Rest")
Operation = Callable[[AnyTx], T]
"""A function that runs inside a write transaction."""

transaction_of: ContextVar[object | None] = ContextVar("strictq_transaction", default=None)
"""The name of the async transaction in this context. Its calls run in any worker thread, so a thread's id can't identify it."""


class TransactionName:
    """Name the transaction of this context from now on, whichever threads its calls run in."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = transaction_of.set(object())

    def end(self) -> None:
        with suppress(ValueError):  # it ends in another task, whose context does not have this name
            transaction_of.reset(self._before)


class OpenTransaction:
    """A transaction of the public API while its block runs. The context of the block, and copies of it, find it here.

    It is marked as closed instead of being removed from its context. A block may end in another context than it began in, and a
    task that was started inside it keeps its copy of the context after the block.

    Attributes:
        is_open: whether the block runs. Its owner sets it, as the last step of entering the block: an interrupt can follow any
            call, but no assignment.
    """

    __slots__ = ("_outer", "_pid", "_store", "is_open")

    is_open: bool

    def __init__(self, store: object) -> None:
        outer: OpenTransaction | None = open_transaction.get()
        while outer is not None and not outer.is_open:
            outer = outer._outer
        self._outer: OpenTransaction | None = outer
        self._store = store
        self._pid = _process.pid
        self.is_open = False
        open_transaction.set(self)

    @staticmethod
    def require_none(store: object) -> None:
        """Refuse a write through `store` inside one of its transactions: it would remain if the transaction is rolled back.

        Raises:
            InvalidArgument: this context is inside such a transaction; nothing changed.
        """
        block = open_transaction.get()
        while block is not None:
            # In a child that was forked inside the block, the block never ends.
            if block.is_open and block._store is store and block._pid == _process.pid:
                raise InvalidArgument(
                    "this is inside a transaction of the queue, and would not be part of it; nothing was changed",
                    hint=hints.USE_TX_METHODS,
                )
            block = block._outer


open_transaction: ContextVar[OpenTransaction | None] = ContextVar("strictqopen_transaction", default=None)
"""The innermost open transaction. Transactions of different queues may be nested."""


def bound(act: Callable[[On, *Rest], T], *rest: *Rest) -> Callable[[On], T]:
    """Bind all arguments of `act` except the first. A lambda in a loop would see the values of later iterations."""
    return lambda on: act(on, *rest)


def whoami() -> object:
    """Return the identity of the caller of a transaction that stays open: the async transaction, or else the thread."""
    return transaction_of.get() or threading.get_ident()


def is_mine(owner: object) -> bool:
    """Return whether a caller that waits for this owner of a lock would wait for itself.

    A task that was started inside an async transaction keeps its name, even after the transaction. Other calls are therefore
    identified by their thread; otherwise two such tasks would be taken for the same transaction.
    """
    return owner == threading.get_ident() or (owner is not None and owner is transaction_of.get())


class Host(Protocol):
    """What the commit path needs from its queue."""

    settings: tuple[QueueConfig, int]
    epoch: int
    keeps_leases: bool
    time_offset: int
    observers: Observers
    rates: RateFile

    def now(self) -> int: ...
    def adopt_config(self, text: str, version: int) -> None: ...
    def reload_epoch(self) -> None: ...
    def take_empty_receives(self, shard: int) -> int: ...
    def wake(self) -> None: ...
    def note_change(self, shard: int) -> None: ...
    def report(self, events: list[Event]) -> None: ...
    def quarantine(self, shard: int, error: StoreError) -> None: ...
    def suspects(self, shard: int) -> int: ...
    def suspect(self, shard: int) -> None: ...
    def synced(self, shard: int) -> int | None: ...
    def note_synced(self, shard: int, commit: int) -> None: ...


class Totals(Protocol):
    """What the shard's rows add up to, as of the running transaction."""

    config_version: int

    @property
    def pending(self) -> int: ...
    @property
    def last_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    def counts(self) -> tuple[int, ...]: ...


class Lanes(Protocol):
    """The memory of a shard, which follows the file: see shard_lanes.py."""

    db: apsw.Connection
    now: int
    is_current: bool
    unsure: bool
    wake: bool
    totals: Any

    @property
    def commits(self) -> int: ...
    def begin(self, db: apsw.Connection, most: float = ...) -> Totals | None: ...
    def follow(self, db: apsw.Connection) -> object: ...
    def follow_alone(self) -> bool: ...
    def agrees(self, config_version: int, epoch: int) -> bool: ...
    def undone(self, error: Exception, commits: int) -> None: ...
    def rolled_back(self, error: BaseException) -> None: ...
    def separate(self, config: QueueConfig) -> None: ...
    def finish(self, tx: Any, empties: Host) -> None: ...
    def begin_epoch(self, tx: Any, epoch: int, time_offset: int, *, keeps_leases: bool) -> None: ...
