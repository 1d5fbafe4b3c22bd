"""Callers of the commit path: what each wants done, who they are, and how one waits for another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, TypeVarTuple

from ... import _hints as hints
from ... import _process
from ..._errors import InvalidArgument
from .tx import Tx

T = TypeVar("T")
On = TypeVar("On")
Rest = TypeVarTuple("Rest")
Operation = Callable[[Tx], T]
"""What runs inside a write transaction."""

transaction_of: ContextVar[object | None] = ContextVar("strictq_transaction", default=None)
"""In an async transaction: names it. Its calls run in any worker thread, so the thread can't."""


class TransactionName:
    """Names the transaction of this context from now on, whatever threads its calls run in."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = transaction_of.set(object())

    def end(self) -> None:
        with suppress(ValueError):  # it ends in another task than it began in, which does not have its name
            transaction_of.reset(self._before)


class OpenTransaction:
    """A transaction of the public API while its block runs. The context of the block, and copies of it, find it here.

    It is ended, and not taken out of its context: a block may end in another context than it began in, and a task that was
    started inside it keeps its copy of the context when the block is over.
    """

    __slots__ = ("_outer", "_pid", "_store")

    def __init__(self, store: object) -> None:
        outer: OpenTransaction | None = open_transaction.get()
        while outer is not None and outer._store is None:
            outer = outer._outer
        self._outer: OpenTransaction | None = outer
        self._store: object | None = store
        self._pid = _process.pid
        open_transaction.set(self)

    def end(self) -> None:
        self._store = None

    @staticmethod
    def require_none(store: object) -> None:
        """Refuse a write through `store` inside one of its transactions: it would stay where the transaction is undone.

        Raises:
            InvalidArgument: this context is inside such a transaction; nothing changed.
        """
        block = open_transaction.get()
        while block is not None:
            # In a child that was forked inside the block, the block never ends.
            if block._store is store and block._pid == _process.pid:
                raise InvalidArgument(
                    "this is inside a transaction of the queue, and would not be part of it; nothing was changed",
                    hint=hints.USE_TX_METHODS,
                )
            block = block._outer


open_transaction: ContextVar[OpenTransaction | None] = ContextVar("strictqopen_transaction", default=None)
"""The innermost; transactions of different queues may be open inside each other."""


def bound(act: Callable[[On, *Rest], T], *rest: *Rest) -> Callable[[On], T]:
    """`act` with all its arguments but the first given now. A lambda in a loop would see what the next turn makes of them."""
    return lambda on: act(on, *rest)


def nobody() -> None:
    """The leader where there is none."""
    return


def whoami() -> object:
    """Who opens a transaction that stays open: the async transaction, or else the thread."""
    return transaction_of.get() or threading.get_ident()


def is_mine(owner: object) -> bool:
    """Does the caller wait for itself, if it waits for this owner of a lock?

    A task that was started inside an async transaction has its name, too, also when that is over: so other calls go by their
    thread, or two such tasks would take each other for the transaction.
    """
    return owner == threading.get_ident() or (owner is not None and owner is transaction_of.get())


class Mergeable(Protocol):
    """An operation that can be run together with others of its kind, cheaper than each by itself."""

    def __call__(self, tx: Tx) -> Any: ...

    def together(self, tx: Tx, others: list[Any]) -> list[Any]:
        """Run these (this one is the first of them), in order; their results. All, or an exception."""
        ...


class Call:
    """One caller's operation in a group."""

    __slots__ = ("__weakref__", "error", "finished", "operation", "result", "seconds", "synced", "wake")

    def __init__(self, operation: Operation[Any], seconds: float = 0.0, synced: bool = True) -> None:
        self.operation = operation
        self.synced = synced
        """At "full": must be on the disk when it returns."""
        self.seconds = seconds
        """How long it waits for a transaction to begin."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.wake: threading.Lock | None = None

    def follow(self) -> None:
        """It will be answered, or made leader, by another thread."""
        self.wake = threading.Lock()
        self.wake.acquire()

    def release(self) -> None:
        """Wake the caller; a second time does nothing."""
        if self.wake is not None and self.wake.locked():
            self.wake.release()

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        self.result = result
        self.error = error
        self.finished = True

    def unfinish(self) -> None:
        """What it did, or met, is undone."""
        self.result = self.error = None
        self.finished = False
