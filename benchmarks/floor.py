"""The floor: the same messages through bare apsw, with nothing of what makes a queue.

One table with an autoincrement id; append, read by rowid range, delete by rowid range, in the same batches, at the same
synchronous level. No keys, no order per key, no leases, no second process. What strictq reaches of it is its speed with
this machine, this disk and this version of SQLite divided out.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

import apsw

from .measure import Durability

PAGE_BYTES: Final = 4096
WAL_PAGES: Final = 8000
SYNCHRONOUS: Final = {"process": "normal", "full": "full"}

INSERT: Final = "insert into message(lane, seq, sent_at, body) values (?, ?, ?, ?)"
READ: Final = "select id, lane, seq, sent_at, body from message where id > ? and id <= ? order by id"
DELETE: Final = "delete from message where id > ? and id <= ?"

Row = tuple[int, int, int, bytes]


def rows(number: int, body: bytes) -> list[Row]:
    """What the floor appends: the columns without which no queue could do, and the body."""
    return [(i % 1000, i // 1000, i, body) for i in range(number)]


class Floor:
    """A table in a SQLite file, driven as fast as apsw goes."""

    def __init__(self, directory: Path, durability: Durability) -> None:
        directory.mkdir(parents=True)
        self._db = apsw.Connection(str(directory / "floor.db"))
        # Each pragma on its own and drained: journal_mode returns a row, and nothing after it runs until that is read.
        for pragma in (
            f"page_size={PAGE_BYTES}",
            "journal_mode=wal",
            f"synchronous={SYNCHRONOUS[durability]}",
            "cache_size=-65536",
        ):
            self._db.execute(f"pragma {pragma}").fetchall()
        self._db.wal_autocheckpoint(WAL_PAGES)
        self._db.execute("create table message(id integer primary key autoincrement, lane int, seq int, sent_at int, body blob)")
        self._last = self._prewarm()

    def _prewarm(self) -> int:
        """Write the WAL to its full size, as in a queue that has run for a while; return the last id used."""
        page = bytes(PAGE_BYTES - 96)
        with self._db:
            self._db.executemany(INSERT, ((0, 0, 0, page) for _ in range(WAL_PAGES + 100)))
        last = self._db.last_insert_rowid()
        self._db.execute("delete from message")
        self._db.execute("pragma wal_checkpoint(restart)").fetchall()
        return last

    def life(self, rows: list[Row], batch: int) -> None:
        """Append, read and delete them, batch by batch."""
        if batch == 1:
            self._life_one_by_one(rows)
            return
        execute, executemany = self._db.execute, self._db.executemany
        last = self._last
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            execute("begin immediate")
            executemany(INSERT, part)
            execute("commit")
            read = execute(READ, (last, last + len(part))).fetchall()
            execute("begin immediate")
            execute(DELETE, (last, last + len(part)))
            execute("commit")
            last += len(read)
        self._last = last

    def _life_one_by_one(self, rows: list[Row]) -> None:
        # Autocommit: three statements a message is the least that can be done, so the harder floor.
        execute, last = self._db.execute, self._last
        for row in rows:
            execute(INSERT, row)
            execute(READ, (last, last + 1)).fetchall()
            execute(DELETE, (last, last + 1))
            last += 1
        self._last = last

    def append_one_by_one(self, rows: list[Row]) -> None:
        """One autocommit insert each."""
        execute = self._db.execute
        for row in rows:
            execute(INSERT, row)

    def empty(self) -> None:
        """Delete everything, not measured."""
        self._last = self._db.last_insert_rowid()
        self._db.execute("delete from message")

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Floor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
