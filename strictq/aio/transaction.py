"""The async Transaction."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from .._client.effects import Effects, Recording
from .._store.api import AppDatabase, TransactionName
from ..transaction import Transaction
from .threads import Calls

T = TypeVar("T")


class AsyncTransaction(Recording):
    """A Transaction to use with `async with`. Its reads are awaited; send and execute are recorded and not awaited."""

    def __init__(self, queue: Calls, make: Callable[[], Transaction]) -> None:
        self._queue = queue
        self._make = make
        self._tx: Transaction | None = None

    async def __aenter__(self) -> AsyncTransaction:
        # Its calls run in several threads, so the transaction, not the thread, holds the shard.
        self._name = TransactionName()
        self._tx = self._make()
        self._tx.__enter__()  # the last call, because an interrupt can follow any other one
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self._queue._run_inside_surely(self._inside.__exit__, kind, error, trace)
        finally:
            self._name.end()

    @property
    def _inside(self) -> Transaction:
        assert self._tx is not None, "a transaction works inside its async with block only"
        return self._tx

    def _effects_for(self, verb: str) -> Effects:
        return self._inside._effects_for(verb)

    def output(self, text: str) -> None:
        """Record output of the handler. See Transaction.output."""
        self._inside.output(text)

    async def run(self, work: Callable[[AppDatabase], T]) -> T:
        """Run a plain function in the transaction, in a worker thread. See Transaction.run."""
        return await self._queue._run_inside(self._inside.run, work)

    async def get_key_state(self) -> bytes | None:
        """Return the durable state of the key."""
        return await self._queue._run_inside(lambda: self._inside.key_state)

    def set_key_state(self, value: bytes | None) -> None:
        """Set the durable state of the key when the block ends."""
        self._inside.key_state = value
