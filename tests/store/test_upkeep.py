"""The engine's own thread, where it can't be had."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from strictq import Message, Queue
from strictq._store import shard_wal, upkeep
from tests.support.internals import PATIENCE_SECONDS
from tests.support.queues import Opener

PAGES = 20
PAGE_BYTES = 4096


@pytest.fixture(autouse=True)
def small_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints at 20 pages instead of 8,000."""
    monkeypatch.setattr(shard_wal, "WAL_PAGES", PAGES)
    monkeypatch.setattr(shard_wal, "WAL_PAGES_MIN", PAGES)


def refuse(_thread: threading.Thread) -> None:
    """What starting a thread does where there are too many, or where the interpreter is shutting down."""
    raise RuntimeError("can't start new thread")


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)


def load(q: Queue, rounds: int) -> None:
    """Writes about eight pages a round."""
    for n in range(rounds):
        sent = q.send_many([Message(b"x" * 600, key=f"k{n}-{i}") for i in range(30)])
        assert len(sent) == 30
        q.ack_many(q.receive(30))


@pytest.mark.usefixtures("no_threads")
def test_what_was_committed_returns_though_no_thread_can_be_started(disk: Opener) -> None:
    q = disk()
    load(q, 40)
    assert q.stats().depth == 0
    assert q.check() == []


@pytest.mark.usefixtures("no_threads")
def test_writers_checkpoint_themselves_while_there_is_no_thread(disk: Opener) -> None:
    q = disk()
    load(q, 40)
    (wal,) = Path(str(q.path)).glob("shard-*-wal")
    assert wal.stat().st_size < 10 * shard_wal.WAL_GROWTH * PAGES * PAGE_BYTES


def test_the_thread_starts_once_it_can_be_had(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        q = disk()
        load(q, 5)
        assert q._store._upkeep._thread is None
    load(q, 5)
    assert q._store._upkeep._thread is not None


def test_a_hook_that_fails_takes_nothing_back(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite calls it when the commit is done: what goes wrong in it is not the caller's."""
    q = disk()

    def broken(self: shard_wal.ShardWal, pages: int) -> None:
        raise MemoryError

    monkeypatch.setattr(shard_wal.ShardWal, "_look_for_room", broken)
    load(q, 10)
    assert q.stats().acks == 300


def test_outboxes_have_their_turn_while_wals_grow_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PERIOD_SECONDS", 0.01)
    tidied = threading.Event()

    class Busy:
        """Whenever one shard's WAL is checkpointed, the other one's has grown."""

        def checkpoint(self, shard: int) -> None:
            thread.wal_grew(1 - shard)

        def tidy(self) -> None:
            tidied.set()

    kept = Busy()
    thread = upkeep.Upkeep(kept)
    thread.wal_grew(0)
    try:
        assert tidied.wait(PATIENCE_SECONDS)
    finally:
        thread.stop()
