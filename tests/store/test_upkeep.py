"""The engine's own thread, also when it can't start, and the state of a queue after its close."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Literal

import apsw
import pytest

import strictq
from strictq import Message, Queue
from strictq._store.commit import checkpoint, connection, writer
from strictq._store.whole import store, upkeep
from tests.support.internals import connected, connections, store_of
from tests.support.queues import Opener, shard_file
from tests.support.running import PATIENCE_SECONDS, until

PAGES = 20
PAGE_BYTES = 4096


@pytest.fixture(autouse=True)
def small_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoint at 20 pages instead of 8,000."""
    monkeypatch.setattr(checkpoint, "WAL_PAGES", PAGES)
    monkeypatch.setattr(checkpoint, "WAL_PAGES_MIN", PAGES)


def refuse(_thread: threading.Thread) -> None:
    """Fail like the start of a thread if there are too many, or the interpreter is shutting down."""
    raise RuntimeError("can't start new thread")


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)


def load(q: Queue, rounds: int) -> None:
    """Write about eight pages per round."""
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
    assert wal.stat().st_size < 10 * checkpoint.WAL_GROWTH * PAGES * PAGE_BYTES


def wals_of(q: Queue) -> list[Path]:
    return sorted(Path(str(q.path)).glob("shard-*-wal"))


@pytest.mark.parametrize("durability", ["full", "process"])
def test_the_last_to_close_leaves_empty_wals(disk: Opener, durability: Literal["full", "process"]) -> None:
    q = disk.open(durability=durability, shards=2)
    load(q, 10)
    kept = q.send_many([Message(b"x" * 600, key=f"k{n}") for n in range(30)])
    q.close()
    assert [wal.stat().st_size for wal in wals_of(q)] == [0, 0]
    again = disk.open(durability=durability)
    assert again.check() == []
    assert sorted((d.key, d.seq) for d in again.receive(100)) == sorted((r.key, r.seq) for r in kept)


def test_only_the_last_to_close_empties_wals(disk: Opener) -> None:
    q, other = disk(), disk()
    q.send(b"", "k")
    (wal,) = wals_of(q)
    before = wal.read_bytes()
    q.close()
    assert wal.read_bytes() == before != b""
    other.close()
    assert wal.read_bytes() == b""


def test_a_process_without_close_leaves_its_wal(disk: Opener) -> None:
    q = disk()
    q.send(b"", "k")
    (wal,) = wals_of(q)
    store_of(q).die()
    assert wal.stat().st_size > 0


def test_who_only_looks_leaves_the_wal_alone(disk: Opener) -> None:
    q = disk()
    q.send(b"", "k")
    (wal,) = wals_of(q)
    store_of(q).die()
    before = wal.read_bytes()
    with strictq.open(disk.path, read_only=True) as look:
        assert look.stats().ready == 1
    assert wal.read_bytes() == before


def test_a_reader_keeps_the_wal(disk: Opener) -> None:
    """A reader of another program, for example. Closing does not wait for it, and the commits stay in the WAL."""
    q = disk()
    q.send(b"", "k")
    (wal,) = wals_of(q)
    reader = connected(shard_file(disk.path))
    reader.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM message WHERE id > 0").get == 1
    q.send(b"", "k")
    started = time.monotonic()
    q.close()
    assert time.monotonic() - started < connection.BUSY_SECONDS
    assert wal.stat().st_size > 0
    assert reader.execute("SELECT count(*) FROM message WHERE id > 0").get == 1
    reader.close()
    assert [d.seq for d in disk().receive(10)] == [1, 2]


@pytest.mark.parametrize("first", ["parent", "child"])
def test_a_fork_counts_as_a_process_of_its_own(disk: Opener, first: str) -> None:
    """Of parent and child, the one that closes last empties the WAL."""
    q = disk()
    q.send(b"", "k")
    (wal,) = wals_of(q)
    child_goes, child_went = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            q.send(b"", "k")
            os.write(child_went[1], b"1")
            os.read(child_goes[0], 1)
            q.close()
            os._exit(0)
        finally:
            os._exit(1)
    q.send(b"", "k")
    os.read(child_went[0], 1)

    def end_child() -> None:
        os.write(child_goes[1], b"1")
        assert os.waitpid(pid, 0)[1] == 0

    for end in (q.close, end_child) if first == "parent" else (end_child, q.close):
        assert wal.stat().st_size > 0
        end()
    assert wal.stat().st_size == 0
    assert [d.seq for d in disk().receive(10)] == [1, 2, 3]


def test_a_queue_closes_though_its_wal_can_not_be_emptied(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    q = disk()
    load(q, 10)
    receipt = q.send(b"", "k")

    def fail(*_args: object) -> None:
        raise apsw.FullError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "at_once", fail)
        q.close()
    (wal,) = wals_of(q)
    assert wal.stat().st_size > 0
    (d,) = disk().receive()
    assert (d.key, d.seq) == (receipt.key, receipt.seq)


def test_an_interrupt_while_a_wal_is_emptied_leaves_nothing_open(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    q = disk.open(shards=2)
    load(q, 10)

    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "at_once", interrupt)
    with pytest.raises(KeyboardInterrupt):
        q.close()
    assert not list(connections(q))
    monkeypatch.undo()
    assert disk().check() == []


def test_a_signal_whose_handler_closes_may_come_while_the_queue_is_closed(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    q = disk()
    load(q, 10)
    real = checkpoint.ShardWal.leave
    interrupted = []

    def leave(self: checkpoint.ShardWal, db: apsw.Connection, *, last: bool) -> None:
        real(self, db, last=last)
        interrupted.append(q.close())  # like a handler, in this thread

    monkeypatch.setattr(checkpoint.ShardWal, "leave", leave)
    q.close()
    assert interrupted == [None]
    monkeypatch.undo()
    assert disk().check() == []


def test_closing_does_not_wait_for_those_who_write(disk: Opener) -> None:
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
        assert store_of(q)._upkeep._thread is None
    load(q, 5)
    assert store_of(q)._upkeep._thread is not None


def test_outboxes_have_their_turn_while_wals_grow_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PERIOD_SECONDS", 0.01)
    tidied = threading.Event()

    class Busy:
        """Whenever one shard's WAL is checkpointed, the other one's has grown."""

        def checkpoint(self, shard: int) -> None:
            thread.wal_grew(1 - shard)

        def tidy(self) -> None:
            tidied.set()

        def rests(self) -> bool:
            return False

    kept = Busy()
    thread = upkeep.Upkeep(kept)
    thread.wal_grew(0)
    try:
        assert tidied.wait(PATIENCE_SECONDS)
    finally:
        thread.stop()


@pytest.mark.slow
def test_a_queue_with_nothing_to_do_has_no_thread_until_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PERIOD_SECONDS", 0.01)

    class Kept:
        done = False

        def checkpoint(self, _shard: int) -> None: ...

        def tidy(self) -> None:
            self.done = True

        def rests(self) -> bool:
            return self.done

    kept = Kept()
    thread = upkeep.Upkeep(kept)
    thread.start()
    try:
        for _ in range(3):
            until(lambda: kept.done and thread._thread is None)
            kept.done = False
    finally:
        thread.stop()


def test_a_queue_rests_until_a_process_commits(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TIMESTAMP_NS", 0)
    q = disk(shards=2)
    store_of(q)._upkeep.stop()
    assert not store_of(q).rests()
    for _ in range(2):
        store_of(q).tidy()
        assert store_of(q).rests()
        q.send(b"", key="k")
        assert not store_of(q).rests()
        store_of(q).tidy()
        with disk() as other:
            other.send(b"", key="k")
        assert not store_of(q).rests()


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_hook_that_fails_takes_nothing_back(disk: Opener, caplog: pytest.LogCaptureFixture, error: type[Exception]) -> None:
    q = disk()
    wal = store_of(q).shards[0].wal

    def fail(_pages: int) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal, "_look_for_room", fail)
        wal._looked_at, wal._quiet_to = -1_000_000, 0
        assert q.send(b"1", "k").seq == 1
        assert [d.body for d in q.receive()] == [b"1"]
    assert "an action after a commit failed" in caplog.text


@pytest.mark.parametrize("durability", ["full", "process"])
def test_no_caller_fails_because_a_checkpoint_takes_longer_than_calls_wait(
    disk: Opener, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, on a disk whose syncs take seconds because other programs keep it busy."""
    waited: set[int] = set()
    held, go = threading.Event(), threading.Event()
    finish, waits_on = checkpoint.ShardWal._finish_checkpoint, writer.Writer._waits_on

    def finish_late(self: checkpoint.ShardWal, db: apsw.Connection) -> tuple[int, int]:
        held.set()
        assert go.wait(PATIENCE_SECONDS)
        return finish(self, db)

    def seen(self: writer.Writer, seconds: float) -> bool:
        waited.add(threading.get_ident())
        return waits_on(self, seconds)

    monkeypatch.setattr(writer, "BUSY_SECONDS", 0.01)
    monkeypatch.setattr(checkpoint.ShardWal, "_finish_checkpoint", finish_late)
    monkeypatch.setattr(writer.Writer, "_waits_on", seen)
    q = disk.open(durability=durability)
    shard = store_of(q).shards[0]
    shard.wal.pages += 1  # the second pass has work
    sent: list[object] = []

    def send() -> None:
        try:
            sent.append(q.send(b"", "k").seq)
        except strictq.StrictqError as e:
            sent.append(e)

    checkpointing = threading.Thread(target=shard.checkpoint)
    checkpointing.start()
    assert held.wait(PATIENCE_SECONDS)
    callers = [threading.Thread(target=send) for _ in range(2)]
    for caller in callers:
        caller.start()
    until(lambda: len(waited) == 2, "both callers to have waited in vain")
    go.set()
    for thread in (*callers, checkpointing):
        thread.join(PATIENCE_SECONDS)
    assert sorted(map(str, sent)) == ["1", "2"]
