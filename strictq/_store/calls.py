"""Callers of the commit path: what each wants done, who they are, and how one waits for another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, TypeVarTuple

from .frame import Tx

T = TypeVar("T")
On = TypeVar("On")
Rest = TypeVarTuple("Rest")
Operation = Callable[[Tx], T]
"""What runs inside a write transaction."""

transaction_of: ContextVar[object | None] = ContextVar("strictq_transaction", default=None)
"""In an async transaction: names it. Its calls run in any worker thread, so the thread can't."""


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

    __slots__ = ("__weakref__", "error", "finished", "operation", "result", "wake")

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
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

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result
