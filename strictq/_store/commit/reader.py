"""A read-only connection beside the writing one: its reads do not wait for a running transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import apsw

from ... import _files as files
from ..._errors import StoreBusy, StoreCorrupt
from ..disk import checksums
from .connection import BUSY_SECONDS, OF_PYTHON, leak, translate
from .host import Host
from .writer import Writer, in_read_transaction

if TYPE_CHECKING:
    from ..hot.look import Shadows
    from ..hot.memory import Memory

P = TypeVar("P")
T = TypeVar("T")

READ_CACHE_KIB: Final = 4 * 1024


class Reader:
    """One connection, opened at the first read. Reads wait for each other.

    Args:
        connect: opens a connection to the shard.
        writer: the shard's writer; it verifies the file when it opens.
        memory: its own hot lanes.
        shadows: what `look` sees besides the tables.
    """

    def __init__(
        self,
        connect: Callable[..., apsw.Connection],
        writer: Writer,
        shard: int,
        host: Host,
        memory: Memory,
        shadows: Shadows | None = None,
    ) -> None:
        self._shadows = shadows
        self._memory = memory
        self._connect = connect
        self._writer = writer
        self._shard = shard
        self._host = host
        self.db: apsw.Connection | None = None
        self._lock = threading.Lock()

    def interrupt(self) -> None:
        """End a read that runs now in another thread, with an error."""
        db = self.db
        if db is not None:
            with suppress(apsw.ConnectionClosedError):
                db.interrupt()

    def look(self, look: Callable[[apsw.Connection], T], *, shadows: bool | None = True) -> T:
        """Run `look` in a read transaction.

        Args:
            shadows: `look` sees the shadows, too. None: it reads no table that has a shadow.
        """
        return self.glance(lambda db: in_read_transaction(db, look) if self._shadows is None else self._looked(db, look, shadows))

    def look_at(self, pick: Callable[[Memory, apsw.Connection], P], look: Callable[[apsw.Connection, P], T], seconds: float) -> T:
        """Run `look` in a read transaction, with a part of the hot lanes.

        Args:
            pick: takes this part from a memory, as of the read transaction.
            seconds: how long to wait for the writer's memory. This reader's own one has to read everything that was written
                since it was last used.
        """

        def picked(db: apsw.Connection) -> P:
            try:
                return self._writer.lend(lambda memory: pick(memory, db), seconds)
            except StoreBusy:
                return pick(self._memory, db)

        return self.look(lambda db: look(db, picked(db)), shadows=False)

    def _looked(self, db: apsw.Connection, look: Callable[[apsw.Connection], T], wanted: bool | None) -> T:
        shadows = self._shadows
        assert shadows is not None

        def shown(db: apsw.Connection) -> T:
            changed = shadows.prepare(db, wanted)
            found = look(db)
            if changed:
                db.execute("COMMIT")  # keeps the temporary tables
            return found

        try:
            return in_read_transaction(db, shown)
        except BaseException:
            try:
                shadows.forget()
            finally:
                shadows.forget()
            raise

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
        except (apsw.Error, *OF_PYTHON) as e:
            error = translate(e, self._shard)
            if error is e:
                raise
            if isinstance(error, StoreCorrupt):
                self._host.quarantine(self._shard, error)
            raise error from e

    def _leave(self) -> None:
        """End the read that an interrupt left open. See `Writer._leave`."""
        db = self.db
        if db is None:
            return
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
            reads = db.txn_state("main") != apsw.SQLITE_TXN_NONE
        except apsw.Error:
            reads = True
        if reads:
            self._close()

    def _connection(self) -> apsw.Connection:
        if self.db is None:
            db = self._connect("process", cache_kib=READ_CACHE_KIB)
            checksums.require(db, self._shard)
            self.db = db
        elif self.db.in_transaction:
            self.db.execute("ROLLBACK")  # the previous read was interrupted
        return self.db

    # ---- the end, and forks

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        db = self.db
        if db is None:
            return
        try:
            db.close()
        except apsw.Error:
            pass
        finally:
            self.db = None  # behind the close, so that an interrupt can't come between the two

    def quiesce(self) -> bool:
        """Wait for the running read and close the connection, before a fork. Return False if the read did not end in time."""
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            return False
        self._close()
        return True

    def resume(self, *, child: bool) -> None:
        """Admit reads again after a fork that `quiesce` prepared."""
        if child:
            self._lock = threading.Lock()
        else:
            self._lock.release()

    def abandon(self) -> None:
        """Keep the parent's connection untouched and unclosed, in a child whose fork was not prepared."""
        if self.db is not None:
            leak(self.db)
