"""A connection that only reads, beside the one that writes: no look on it waits for a transaction that is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import apsw

from ... import _files as files
from ..._errors import StoreCorrupt
from ..disk import checksums
from .calls import bound
from .connection import BUSY_SECONDS, NONSENSE, UNBINDABLE, leak, translate
from .writer import Host, Writer, in_read_transaction

if TYPE_CHECKING:
    from ..hot.look import Shadows

T = TypeVar("T")

READ_CACHE_KIB: Final = 4 * 1024


class Reader:
    """One connection, opened at the first look. Looks wait for each other.

    Args:
        connect: opens a connection to the shard.
        writer: the shard's writer; it verifies the file when it opens.
        shadows: what `look` sees besides the tables.
    """

    def __init__(
        self,
        connect: Callable[..., apsw.Connection],
        writer: Writer,
        shard: int,
        host: Host,
        shadows: Shadows | None = None,
    ) -> None:
        self._shadows = shadows
        self._connect = connect
        self._writer = writer
        self._shard = shard
        self._host = host
        self.db: apsw.Connection | None = None
        self._lock = threading.Lock()

    def look(self, look: Callable[[apsw.Connection], T], *, shadows: bool | None = True) -> T:
        """Run `look` in a read transaction.

        Args:
            shadows: it sees these, too. None: it looks at nothing that they are beside.
        """
        return self.glance(lambda db: in_read_transaction(db, look) if self._shadows is None else self._looked(db, look, shadows))

    def hot_outlook(self) -> tuple[bool, int]:
        """See Shadows.outlook."""
        assert self._shadows is not None
        return self.glance(bound(in_read_transaction, self._shadows.outlook))

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
            shadows.forget()
            raise

    def glance(self, look: Callable[[apsw.Connection], T]) -> T:
        """Run `look`, which is a single statement or keeps its own transaction."""
        if not self._writer.opened:
            self._writer.read(lambda _db: None)
        with self._lock:
            self._writer.require()
            try:
                return look(self._connection())
            except OSError as e:
                raise files.failure("it can't be read", e, self._shard) from e
            except (apsw.Error, *NONSENSE, *UNBINDABLE) as e:
                error = translate(e, self._shard)
                if isinstance(error, StoreCorrupt):
                    self._host.quarantine(self._shard, error)
                raise error from e

    def _connection(self) -> apsw.Connection:
        if self.db is None:
            self.db = self._connect("process", cache_kib=READ_CACHE_KIB)
            checksums.require(self.db, self._shard)
        elif self.db.in_transaction:
            self.db.execute("ROLLBACK")  # the look before was interrupted on its way
        return self.db

    # ---- the end, and forks

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        db, self.db = self.db, None
        if db is not None:
            with suppress(apsw.Error):
                db.close()

    def quiesce(self) -> bool:
        """Before a fork: wait for the look under way and close the connection. False: it did not end in time."""
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            return False
        self._close()
        return True

    def resume(self, *, child: bool) -> None:
        """After a fork that `quiesce` prepared."""
        if child:
            self._lock = threading.Lock()
        else:
            self._lock.release()

    def abandon(self) -> None:
        """In a child whose fork was not prepared: never touch, and never close, the parent's connection."""
        if self.db is not None:
            leak(self.db)
