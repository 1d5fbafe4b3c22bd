"""The floor: the same messages through bare apsw, without the features of a queue.

The least work possible: one table with only the columns that a message needs; append, read by rowid range, delete by rowid
range, each a cached statement, in the same batches, at the same synchronous level. No keys, no order per key, no leases, no
second process. The ratio of strictq's rate to it is independent of this machine, this disk and this version of SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import apsw

from strictq._sql import Statements

PAGE_BYTES: Final = 4096
WAL_PAGES: Final = 8000
_SQL: Final = Statements("floor")

Row = tuple[int, int, int, bytes]


def rows(number: int, body: bytes) -> list[Row]:
    """Return the rows that the floor appends: the columns that every queue needs, and the body."""
    return [(i % 1000, i // 1000, i, body) for i in range(number)]


class Floor:
    """A table in a SQLite file, used in the fastest way that apsw allows.

    One row stays for ever, so that an id is not used again while later ones wait. AUTOINCREMENT would do the same, but it writes
    a second page with each commit.
    """

    def __init__(self, directory: Path, durability: Literal["full", "process"]) -> None:
        directory.mkdir(parents=True)
        self._db = apsw.Connection(str(directory / "floor.db"))
        # Each pragma separately and drained: journal_mode returns a row, and statements after it run only when that is read.
        for pragma in (_SQL.page_size, _SQL.wal, _SQL.full if durability == "full" else _SQL.process, _SQL.cache):
            self._db.execute(pragma).fetchall()
        self._db.wal_autocheckpoint(WAL_PAGES)
        self._db.execute(_SQL.schema)
        self._db.execute(_SQL.insert, (0, 0, 0, b""))
        self._stays = self._db.last_insert_rowid()
        self._last, self._waiting = self._stays, 0
        self._prewarm()

    def _prewarm(self) -> None:
        """Write the WAL to its full size, as in a long-running queue."""
        page = bytes(PAGE_BYTES - 96)
        with self._db:
            self._db.executemany(_SQL.insert, ((0, 0, 0, page) for _ in range(WAL_PAGES + 100)))
        self.empty()
        self._db.execute(_SQL.checkpoint).fetchall()

    def append(self, part: Sequence[Row]) -> None:
        """Append rows in one transaction; a single row in autocommit mode."""
        self._waiting += len(part)
        if len(part) == 1:
            self._db.execute(_SQL.insert, part[0])
            return
        self._db.execute(_SQL.begin)
        self._db.executemany(_SQL.insert, part)
        self._db.execute(_SQL.commit)

    def read(self, number: int) -> list[Any]:
        """Return the oldest rows, by id range: id, lane, seq, sent_at, body."""
        return self._db.execute(_SQL.read, (self._last, self._last + number)).fetchall()

    def delete(self, number: int) -> None:
        """Delete the oldest rows in one statement."""
        self._db.execute(_SQL.delete, (self._last, self._last + number))
        self._last, self._waiting = self._last + number, self._waiting - number
        if not self._waiting:
            self._last = self._stays  # the next id follows the newest row

    def life(self, rows: list[Row], batch: int) -> None:
        """Append, read and delete rows, batch by batch."""
        if batch == 1:
            self._life_one_by_one(rows)
            return
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            self.append(part)
            self.delete(len(self.read(len(part))))

    def _life_one_by_one(self, rows: list[Row]) -> None:
        # Autocommit with three statements per message is the least possible work, so it is the harder floor.
        execute, last = self._db.execute, self._last
        insert, read, delete = _SQL.insert, _SQL.read, _SQL.delete
        step = 1 if self._waiting else 0  # an empty table gives each row the same id
        for row in rows:
            execute(insert, row)
            execute(read, (last, last + 1)).fetchall()
            execute(delete, (last, last + 1))
            last += step
        self._last = last

    def append_one_by_one(self, rows: list[Row]) -> None:
        """Append each row with one autocommit insert."""
        execute, insert = self._db.execute, _SQL.insert
        self._waiting += len(rows)
        for row in rows:
            execute(insert, row)

    def empty(self) -> None:
        """Delete everything that waits. Not measured."""
        self._db.execute(_SQL.empty, (self._stays,))
        self._last, self._waiting = self._stays, 0

    @property
    def connection(self) -> apsw.Connection:
        """The connection, to query its settings."""
        return self._db

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Floor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def sqlite_version() -> str:
    """Return the SQLite version that both sides use."""
    return apsw.sqlite_lib_version()
