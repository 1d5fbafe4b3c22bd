"""Fault injection for tests of every layer: it takes a queue or a path, and returns nothing internal to the store."""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import apsw
import pytest

from strictq import Queue, StoreCorrupt, StoreError
from strictq._store.commit import connection
from strictq._store.commit.writer import Writer
from strictq._store.shard.shard_file import Shard
from strictq._store.shard.shard_lanes import Tx
from strictq._store.shipping.rebuild import PageFiles
from strictq._store.whole import epoch, receive, upkeep
from strictq._values.keys import Key, encode_key
from tests.support.internals import ALONE, failing, shard_of, store_of, tamper
from tests.support.internals import fold as fold


class AfterCommit:
    """In the block, after this thread's first COMMIT to files in a directory, lets what needs the disk or SQLite fail.

    That is every statement, every new connection and every file that is opened, also while SQLite ends the COMMIT. They are
    numbered from 0.

    Args:
        fails: returns whether the step with this number fails.
    """

    def __init__(self, directory: Path, fails: Callable[[int], bool]) -> None:
        self._directory = str(directory)
        self._fails = fails
        self._thread = threading.get_ident()
        self._committed = False
        self.steps = 0

    def __enter__(self) -> AfterCommit:
        for db in apsw.connections():
            if db.filename.startswith(self._directory):
                self._trace(db)
        apsw.connection_hooks.append(self._connection)
        _watch_opens()
        _after_commit.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _after_commit.remove(self)
        apsw.connection_hooks.remove(self._connection)

    def _trace(self, db: apsw.Connection) -> None:
        while db.exec_trace != self._statement:
            with suppress(apsw.ThreadingViolationError):  # the queue's own thread uses it
                db.exec_trace = self._statement

    def _step(self) -> bool:
        if self not in _after_commit or not self._committed or threading.get_ident() != self._thread:
            return False
        self.steps += 1
        return self._fails(self.steps - 1)

    def _statement(self, cursor: apsw.Cursor, sql: str, _bindings: object) -> bool:
        if self._step():
            raise apsw.exception_for(apsw.SQLITE_IOERR_READ)
        if sql.startswith("COMMIT") or sql in ALONE:
            self._committed |= threading.get_ident() == self._thread
        return True

    def _connection(self, db: apsw.Connection) -> None:
        if not db.filename.startswith(self._directory):
            return
        if self._step():
            raise apsw.exception_for(apsw.SQLITE_CANTOPEN)
        self._trace(db)

    def opens(self, path: str) -> None:
        """Let the opening of a file in the directory fail, if it is this step's turn."""
        if path.startswith(self._directory) and self._step():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


_after_commit: list[AfterCommit] = []
"""Those whose block runs now."""


@cache
def _watch_opens() -> None:
    """Tell them of every file that is opened.

    An audit hook can't be removed, and slows whatever the process does later. So there is one for all blocks.
    """

    def opened(event: str, arguments: tuple[object, ...]) -> None:
        if _after_commit and event == "open":
            for each in _after_commit:
                each.opens(str(arguments[0]))

    sys.addaudithook(opened)


@contextmanager
def commit_fails(q: Queue, *, happened: bool, number: int = 0) -> Iterator[None]:
    """Let the next commit of a shard in this block fail, once, before or after it took effect."""
    with pytest.MonkeyPatch.context() as patch, failing(q, "COMMIT", apsw.IOError("no answer"), after=happened, number=number):
        _no_shortcuts(patch)
        yield


def behind_next_commit(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Call a function after the next commit, before its caller continues."""
    end = Writer._end
    _no_shortcuts(monkeypatch)

    def slow(self: Writer, tx: Tx) -> None:
        end(self, tx)
        monkeypatch.setattr(Writer, "_end", end)
        happens()

    monkeypatch.setattr(Writer, "_end", slow)


def _no_shortcuts(patch: pytest.MonkeyPatch) -> None:
    """Run everything as an operation in a transaction."""
    patch.setattr(Shard, "_direct", lambda *_, **__: None)


def refuse_writes(patch: pytest.MonkeyPatch, refusal: Callable[[int], StoreError | None]) -> None:
    """Decide before each write, receive and settlement of a shard whether it fails, and how.

    Args:
        refusal: gets the shard's number. After a StoreCorrupt the shard stays quarantined.
    """
    _no_shortcuts(patch)
    for name in ("run", "drain"):
        whole = getattr(Shard, name)

        def call(self: Shard, operation: Any, *rest: Any, whole: Callable[..., Any] = whole, **options: Any) -> Any:
            error = refusal(self.number)
            if error is None:
                return whole(self, operation, *rest, **options)
            if isinstance(error, StoreCorrupt):
                self.failed = error
            raise error

        patch.setattr(Shard, name, call)


def quarantine(q: Queue, number: int) -> None:
    """Quarantine a shard as damaged, as after a page with a wrong checksum."""
    shard_of(q, number).failed = StoreCorrupt("damaged", shard=number)


def lose_ready(q: Queue, key: Key) -> None:
    """Remove a key's lane from the order of ready lanes, as a bug would. It is never delivered again, and check() finds it."""
    shard, raw = store_of(q).shard_of(encode_key(key)), encode_key(key)

    def lose(tx: Tx) -> None:
        while raw in tx.lanes.memory.dirty:
            tx.lanes.folder.slice(tx.now)
        tx.lanes.folder.slice(tx.now)  # cuts what else would load the lane
        tx.run("UPDATE lane SET position = NULL WHERE key = ?", (raw,))
        tx.lanes.begin_anew()

    shard.run(lose)


def maintain(q: Queue) -> None:
    """Do what the queue's own thread does every two seconds."""
    store_of(q).tidy()


def maintain_every(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the queue's own thread do that at this interval."""
    patch.setattr(upkeep, "PERIOD_SECONDS", seconds)


def receive_waits_for_busy_shards(patch: pytest.MonkeyPatch) -> None:
    """Let a receive wait for shards that the engine's threads are writing to. It skips them if other shards have messages."""
    patch.setattr(receive, "PASSING_SECONDS", connection.BUSY_SECONDS)


def impatient(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Limit the wait for SQLite's locks, and for a sign that another kernel uses the directory."""
    patch.setattr(connection, "BUSY_SECONDS", seconds)
    patch.setattr(epoch, "ANOTHER_KERNEL_SECONDS", seconds)


def restamp(file: Path, by: int) -> int:
    """Change the format version in a file of a closed queue. Return the new one."""
    ((version,),) = tamper(file, "PRAGMA user_version")
    tamper(file, f"PRAGMA user_version = {version + by}")
    return int(version) + by


def record_app_schema(q_path: str, sql: str) -> None:
    """Store the schema of a program's tables in queue.db of a closed queue, even if it does not fit its shards."""
    tamper(Path(q_path) / "queue.db", f"INSERT INTO app_schema (sql) VALUES ('{sql}')")


def damage_pages(path: Path) -> None:
    """Overwrite the middle of each page but the first of a shard's file, below SQLite."""
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE, 0])
    try:
        for at in range(4096, file.xFileSize(), 4096):
            file.xWrite(b"damage", at + 2000)
    finally:
        file.xClose()


def before_each_step_of_a_copy(patch: pytest.MonkeyPatch, act: Callable[[int], object]) -> None:
    """Call `act` with the number of the step, from 1, before each step in which a replica's files are copied."""
    copy = PageFiles.copy_to

    def copy_to(pages: PageFiles, to: Path, go_on: Callable[[], None]) -> None:
        steps = itertools.count(1)

        def step() -> None:
            act(next(steps))
            go_on()

        copy(pages, to, step)

    patch.setattr(PageFiles, "copy_to", copy_to)


def read_for_ever(q: Queue, began: Callable[[], object]) -> None:
    """Read the first shard until that is interrupted."""

    def endless(db: apsw.Connection) -> None:
        began()
        db.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n").fetchall()

    shard_of(q).look(endless)
