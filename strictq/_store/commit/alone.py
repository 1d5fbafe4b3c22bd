"""A write transaction that stays open while a program uses it."""

from __future__ import annotations

import time

from ..._values import hints
from ..._values.errors import ForkedProcess
from .calls import whoami
from .connection import BUSY_SECONDS, after_commit
from .tx import AnyTx
from .writer import Writer


class Alone:
    """A write transaction of one caller, from `begin` to `commit` or `close`.

    Making one acquires nothing, so that its owner can hold it before it begins. `close` ends it wherever it was interrupted.
    Owners call it twice, because an interrupt can end the first call before its first step.
    """

    __slots__ = ("_began", "_held", "_tx", "_writer")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._held: list[bool] = []
        self._tx: AnyTx | None = None
        self._began = 0.0

    def begin(self) -> AnyTx:
        """Acquire the shard, and begin.

        Raises:
            StoreBusy, StoreError: nothing changed. Call `close`.
        """
        writer = self._writer
        writer.require_outside()
        self._began = time.monotonic()
        self._held += map(writer._lock.acquire, (True,), (BUSY_SECONDS,))
        writer._taken(self._held, BUSY_SECONDS)
        writer._owner = whoami()
        self._tx = tx = writer._begin()
        return tx

    def undone(self, error: BaseException) -> BaseException:
        """Roll back because of this error. Return the error to raise.

        Raises:
            ForkedProcess: a fork rolled it back.
        """
        if not (self._held and self._held[0]):
            return error
        if self._tx is not None:
            self._require_ours(self._tx)
        return self._writer._undo(error, of_program=True)

    def _require_ours(self, tx: AnyTx) -> None:
        """Raise if a fork inside the block closed the connection, which rolled the transaction back for both sides."""
        if self._writer._db is not tx.db:
            raise ForkedProcess("the process forked inside an open transaction; nothing was changed", hint=hints.FORK_OUTSIDE)

    def commit(self) -> None:
        """Commit, release the shard, and report what happened.

        Raises:
            StoreFull, StoreError, ForkedProcess: nothing changed.
            OutcomeUnknown: the COMMIT failed.
        """
        writer, tx = self._writer, self._tx
        assert tx is not None
        try:
            self._require_ours(tx)
            writer._finish(tx)
        except BaseException as e:
            raise self.undone(e) from None
        writer._end(tx)
        self.close()
        try:
            writer._announce(tx)
            writer._observers.timed("transaction", self._began, writer._shard)
        except Exception as e:
            raise after_commit(e, writer._shard)  # noqa: B904 - it has its cause

    def close(self) -> None:
        """Roll back what is still open, and release the shard. A second call does nothing."""
        held, writer = self._held, self._writer
        if not (held and held[0]):
            return
        try:
            try:
                writer._leave(held)
            finally:
                writer._leave(held)
        finally:
            writer._owner = 0
            self._held = []  # before the release, which an interrupt may follow, but not precede
            writer._lock.release()

    def __del__(self) -> None:
        if getattr(self, "_held", None):  # its owner was dropped without an end
            self.close()
