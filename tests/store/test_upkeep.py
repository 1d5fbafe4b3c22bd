"""The engine's own thread, where it can't be had."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Literal

import pytest

from strictq import Message, Queue, StoreBusy, StoreFull
from strictq._store import connection, shard_wal, upkeep
from tests.support.internals import PATIENCE_SECONDS
from tests.support.queues import Opener

PAGES = 20
PAGE_BYTES = 4096
FRAME_BYTES = 24 + PAGE_BYTES


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


def frames(wal: Path) -> int:
    """What SQLite would read of a WAL: the frames that continue its header."""
    raw = wal.read_bytes()
    salts, n = raw[16:24], 0
    while raw[32 + n * FRAME_BYTES + 8 :][:8] == salts:
        n += 1
    return n


@pytest.mark.parametrize("durability", ["full", "process"])
def test_who_opens_a_closed_queue_has_little_to_read(
    disk: Opener, durability: Literal["full", "process"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_wal, "WAL_PAGES_MIN", 1000)  # no checkpoint of its own
    monkeypatch.setattr(shard_wal, "LONG_PAGES", PAGES)
    q = disk.open(durability=durability, shards=2)
    load(q, 10)
    kept = q.send_many([Message(b"x" * 600, key=f"k{n}") for n in range(30)])
    wals = sorted(Path(str(q.path)).glob("shard-*-wal"))
    sizes = [wal.stat().st_size for wal in wals]
    assert min(map(frames, wals)) > PAGES
    q.close()
    assert [frames(wal) for wal in wals] == [1, 1], "the counter row"
    assert [wal.stat().st_size for wal in wals] == sizes, "a WAL that has its size is faster to write"
    again = disk.open(durability=durability)
    assert again.check() == []
    assert sorted((d.key, d.seq) for d in again.receive(100)) == sorted((r.key, r.seq) for r in kept)


def test_a_short_wal_is_left_as_it_is(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_wal, "WAL_PAGES_MIN", 1000)
    q = disk()
    q.send(b"", "k")
    (wal,) = Path(str(q.path)).glob("shard-*-wal")
    before = frames(wal)
    q.close()
    assert frames(wal) == before > 1


def test_a_queue_closes_though_its_wal_can_not_be_shortened(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_wal, "WAL_PAGES_MIN", 1000)
    monkeypatch.setattr(shard_wal, "LONG_PAGES", PAGES)
    q = disk()
    load(q, 10)
    receipt = q.send(b"", "k")

    def full(self: shard_wal.ShardWal, *, wait: bool) -> tuple[int, int]:
        raise StoreFull("the disk is full", shard=0)

    with monkeypatch.context() as patch:
        patch.setattr(shard_wal.ShardWal, "checkpoint", full)
        q.close()
    (d,) = disk().receive()
    assert (d.key, d.seq) == (receipt.key, receipt.seq)


def test_a_signal_whose_handler_closes_may_come_while_the_queue_is_closed(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_wal, "WAL_PAGES_MIN", 1000)
    monkeypatch.setattr(shard_wal, "LONG_PAGES", PAGES)
    q = disk()
    load(q, 10)
    real = shard_wal.ShardWal.checkpoint
    interrupted = []

    def checkpoint(self: shard_wal.ShardWal, *, wait: bool) -> tuple[int, int]:
        done = real(self, wait=wait)
        interrupted.append(q.close())  # as a handler would, in this thread
        return done

    monkeypatch.setattr(shard_wal.ShardWal, "checkpoint", checkpoint)
    q.close()
    assert interrupted == [None]
    monkeypatch.undo()
    assert disk().check() == []


def test_a_neighbour_in_another_thread_waits_for_locks_while_the_queue_is_closed(
    disk: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_wal, "WAL_PAGES_MIN", 1000)
    monkeypatch.setattr(shard_wal, "LONG_PAGES", PAGES)
    q, other = disk(), disk()
    load(q, 10)
    with pytest.raises(StoreBusy), other.transaction(key="k") as tx:
        tx.run(lambda db: None)
        q._store.shards[0].shorten_wal()
        monkeypatch.setattr(connection, "BUSY_SECONDS", 0.3)
        started = time.monotonic()
        try:
            q.send(b"", "k")
        finally:
            assert time.monotonic() - started >= 0.3


def test_closing_does_not_wait_for_those_who_write(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_wal, "WAL_PAGES_MIN", 1000)
    monkeypatch.setattr(shard_wal, "LONG_PAGES", PAGES)
    q, other = disk(), disk()
    load(q, 10)
    q.send(b"", "k")
    with other.transaction(key="k") as tx:
        tx.run(lambda db: None)  # it has the write lock, and this thread would wait for itself
        started = time.monotonic()
        q.close()
        assert time.monotonic() - started < connection.BUSY_SECONDS
        tx.send(b"", key="k")
    assert [d.seq for d in other.receive(10)] == [1, 2]
    assert other.check() == []


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
