"""The internals that tests of the store need: connections, files, and failures at a chosen moment."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from strictq import Queue
from strictq._sql import LOG
from strictq._store.commit.writer import Writer
from strictq._store.disk import checksums
from strictq._store.shard.shard_file import Shard
from strictq._store.whole.store import Store

ALONE = frozenset(
    {LOG.append_alone, LOG.insert_alone, LOG.append_troubled_alone, LOG.append_recorded_alone, LOG.insert_deduped_alone}
)
"""Statements that are transactions of their own."""

PAGE_BYTES = 4096


def store_of(q: Queue) -> Store:
    """Return the store of an open queue, which is behind its api."""
    return q._storage._store


def shard_of(q: Queue, number: int = 0) -> Shard:
    return store_of(q).shards[number]


def writer_of(q: Queue, number: int = 0) -> Writer:
    """Return the commit path of one shard."""
    return shard_of(q, number)._writer


def connection_of(q: Queue, number: int = 0) -> apsw.Connection:
    """Return the writing connection of one shard, opened if necessary."""
    return writer_of(q, number).use(lambda db: db)


def connections(q: Queue) -> Iterator[apsw.Connection]:
    """Yield every connection that the queue has open now."""
    for shard in store_of(q).shards:
        for db in (shard._writer._db, shard._reader._db, shard._glances._db, shard.wal._checkpointer):
            if db is not None:
                yield db


def at_rest(q: Queue) -> bool:
    """Return whether no connection of the queue is inside a transaction, and none of its locks is held."""
    for shard in store_of(q).shards:
        if any(part._lock.locked() for part in (shard._writer, shard._reader, shard._glances)):
            return False
    return not any(db.in_transaction for db in connections(q))


def connected(file: Path, **options: Any) -> apsw.Connection:
    """Connect to a file of a closed queue, or any other, with page checksums."""
    return apsw.Connection(str(file), vfs=checksums.vfs(), **options)


def tamper(file: Path, *statements: str) -> list[tuple[Any, ...]]:
    """Run SQL on a file of a closed queue, without its safeguards. Return the rows of the last statement."""
    db = connected(file)
    try:
        rows: list[tuple[Any, ...]] = []
        for sql in statements:
            rows = db.execute(sql).fetchall()
        return rows
    finally:
        db.close()


def seal(file: bytearray, number: int) -> None:
    """Correct the checksum of a page, numbered from 1, so that its content counts as written."""
    a = b = 0
    end = number * PAGE_BYTES
    for x, y in struct.iter_unpack("<II", file[end - PAGE_BYTES : end - 8]):
        a = (a + x + b) & 0xFFFFFFFF
        b = (b + y + a) & 0xFFFFFFFF
    file[end - 8 : end] = struct.pack("<II", a, b)


def fold(file: Path) -> None:
    """Checkpoint a closed queue's WAL, so that the file is the only copy."""
    db = connected(file)
    db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close()


class Faulty:
    """A proxy for a connection in which chosen statements fail, before or after they took effect."""

    def __init__(self, db: apsw.Connection, fails: Callable[[str], BaseException | None], *, after: bool = False) -> None:
        self._db = db
        self._fails = fails
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *args: Any, **options: Any) -> Any:
        """Run the statement, unless it must fail."""
        error = self._fails(sql)
        if error is not None and not self._after:
            raise error
        cursor = self._db.execute(sql, *args, **options)
        if error is not None:
            cursor.fetchall()
            raise error
        return cursor


def _change_connection(q: Queue, number: int) -> None:
    """Let the next call take the writing connection anew, which it does in a transaction."""
    lanes = shard_of(q, number).lanes
    if lanes is not None:
        lanes.totals = None


@contextmanager
def failing(q: Queue, statement: str, error: BaseException, *, after: bool = False, number: int = 0) -> Iterator[list[str]]:
    """Let the next run of `statement` on the shard's writing connection fail, once. Yield the statements that failed.

    For "COMMIT", a statement that is its own transaction counts, too.
    """
    connection_of(q, number)
    writer = writer_of(q, number)
    failed: list[str] = []

    def fails(sql: str) -> BaseException | None:
        commits = statement == "COMMIT" and sql in ALONE
        if (commits or sql.startswith(statement)) and not failed:
            failed.append("COMMIT" if commits else sql)
            return error
        return None

    real = writer._db
    assert real is not None
    writer._db = Faulty(real, fails, after=after)  # type: ignore[assignment]
    _change_connection(q, number)
    try:
        yield failed
    finally:
        if isinstance(writer._db, Faulty):
            writer._db = real
        _change_connection(q, number)
