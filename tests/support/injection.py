"""Fault injection for tests of every layer: it takes a queue or a path, and returns nothing internal to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from strictq import Queue, StoreCorrupt, StoreError
from strictq._keys import Key, encode_key
from strictq._store import upkeep
from strictq._store.commit import connection
from strictq._store.commit.tx import Tx
from strictq._store.commit.writer import Writer
from strictq._store.disk import epoch
from strictq._store.shard import Shard
from tests.support.internals import failing, shard_of, store_of, tamper
from tests.support.internals import fold as fold


@contextmanager
def commit_fails(q: Queue, *, happened: bool, number: int = 0) -> Iterator[None]:
    """Let the next commit of a shard in this block fail, once, before or after it took effect."""
    with failing(q, "COMMIT", apsw.IOError("no answer"), after=happened, number=number):
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
    patch.setattr(Shard, "fast", None)


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
    shard = store_of(q).shard_of(encode_key(key))
    shard.cool()
    shard.run(lambda tx: tx.db.execute("DELETE FROM ready WHERE lane = (SELECT id FROM lane WHERE key = ?)", (encode_key(key),)))


def maintain(q: Queue) -> None:
    """Do what the queue's own thread does every two seconds."""
    store_of(q).tidy()


def maintain_every(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the queue's own thread do that at this interval."""
    patch.setattr(upkeep, "PERIOD_SECONDS", seconds)


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
