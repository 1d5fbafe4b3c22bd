"""Callers of the commit path: their operations, their identity, and how one waits for another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, TypeVarTuple

from ..._platform import process as _process
from ..._values import hints
from ..._values.errors import InvalidArgument
from .tx import AnyTx

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


def no_leader() -> None:
    """Stand for the leader while there is none."""
    return


def whoami() -> object:
    """Return the identity of the caller of a transaction that stays open: the async transaction, or else the thread."""
    return transaction_of.get() or threading.get_ident()


def is_mine(owner: object) -> bool:
    """Return whether a caller that waits for this owner of a lock would wait for itself.

    A task that was started inside an async transaction keeps its name, even after the transaction. Other calls are therefore
    identified by their thread; otherwise two such tasks would be taken for the same transaction.
    """
    return owner == threading.get_ident() or (owner is not None and owner is transaction_of.get())


class Mergeable(Protocol):
    """An operation that can be run together with others of its kind at a lower cost than separately."""

    def __call__(self, tx: AnyTx) -> Any: ...

    def together(self, tx: AnyTx, others: list[Any]) -> list[Any]:
        """Run these operations in order, this one first, and return their results. Run all of them, or raise an exception."""
        ...


class Call:
    """One caller's operation in a group."""

    __slots__ = ("__weakref__", "error", "finished", "operation", "result", "seconds", "synced", "wake")

    def __init__(self, operation: Operation[Any], seconds: float = 0.0, synced: bool = True) -> None:
        self.operation = operation
        self.synced = synced
        """Whether the call must be on the disk when it returns, at "full"."""
        self.seconds = seconds
        """How long the call waits for a transaction to begin."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.wake: threading.Lock | None = None

    def follow(self) -> None:
        """Let another thread finish this call, or make it the leader."""
        self.wake = threading.Lock()
        self.wake.acquire()

    def release(self) -> None:
        """Wake the caller. A second call does nothing."""
        if self.wake is not None and self.wake.locked():
            self.wake.release()

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        self.result = result
        self.error = error
        self.finished = True

    def unfinish(self) -> None:
        """Discard the outcome: the transaction was rolled back."""
        self.result = self.error = None
        self.finished = False
