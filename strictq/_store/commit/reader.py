"""A read-only connection beside the writing one: its reads do not wait for a running transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import apsw

from ..._platform import files
from ..._values.errors import StoreCorrupt
from ..disk import checksums
from ..disk.stored import OF_PYTHON
from .connection import BUSY_SECONDS, Connected, translate
from .tx import Host
from .writer import DAMAGE, Writer, in_read_transaction

T = TypeVar("T")

READ_CACHE_KIB: Final = 4 * 1024


class Reader(Connected):
    """One connection, opened at the first read. Reads wait for each other.

    Args:
        connect: opens a connection to the shard.
        writer: the shard's writer; it verifies the file when it opens.
    """

    def __init__(
        self,
        connect: Callable[..., apsw.Connection],
        writer: Writer,
        shard: int,
        host: Host,
    ) -> None:
        self._connect = connect
        self._writer = writer
        self._shard = shard
        self._host = host
        self._lock = threading.Lock()

    def interrupt(self) -> None:
        """End a read that runs now in another thread, with an error."""
        db = self._db
        if db is not None:
            with suppress(apsw.ConnectionClosedError):
                db.interrupt()

    def look(self, look: Callable[[apsw.Connection], T]) -> T:
        """Run `look` in a read transaction."""
        return self.glance(lambda db: in_read_transaction(db, look))

    def glance(self, look: Callable[[apsw.Connection], T]) -> T:
        """Run `look`, which is a single statement or has its own transaction."""
        if not self._writer.opened:
            self._writer.read(lambda _db: None)
        with self._lock:
            try:
                return self._glanced(look)
            except BaseException:
                try:
                    self._leave()
                finally:
                    self._leave()
                raise

    def _glanced(self, look: Callable[[apsw.Connection], T]) -> T:
        self._writer.require()
        try:
            return look(self._connection())
        except OSError as e:
            raise files.failure("it can't be read", e, self._shard) from e
        except DAMAGE as e:
            self._host.quarantine(self._shard, e)
            raise
        except (apsw.Error, *OF_PYTHON) as e:
            error = translate(e, self._shard)
            if error is e:
                raise
            if isinstance(error, StoreCorrupt):
                self._host.quarantine(self._shard, error)
            raise error from e

    def _leave(self) -> None:
        """End the read that an interrupt left open. See `Writer._leave`."""
        db = self._db
        if db is None:
            return
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
            reads = db.txn_state("main") != apsw.SQLITE_TXN_NONE
        except apsw.Error:
            reads = True
        if reads:
            self._drop_connection()

    def _connection(self) -> apsw.Connection:
        if self._db is None:
            db = self._connect("process", cache_kib=READ_CACHE_KIB)
            checksums.require(db, self._shard)
            self._db = db
        elif self._db.in_transaction:
            self._db.execute("ROLLBACK")  # the previous read was interrupted
        return self._db

    # ---- the end, and forks

    def close(self) -> None:
        with self._lock:
            self._drop_connection()

    def quiesce(self) -> bool:
        """Wait for the running read and close the connection, before a fork. Return False if the read did not end in time."""
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            return False
        self._drop_connection()
        return True

    def resume(self, *, child: bool) -> None:
        """Admit reads again after a fork that `quiesce` prepared."""
        if child:
            self._lock = threading.Lock()
        else:
            self._lock.release()
