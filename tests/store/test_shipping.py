"""What is captured of a WAL: the times of commits, the frames of a cut, and where a WAL restarted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import strictq
from strictq import Queue, StoreCorrupt
from strictq._store.disk.wal_file import HEADER_BYTES
from strictq._store.shipping import tail
from strictq._store.shipping.tail import WalTail
from strictq._store.shipping.values import FRAME_BYTES, WalMovedOn
from strictq._store.whole import epoch
from strictq.testing import FakeClock
from tests.support.internals import connected, connection_of, shard_of, store_of
from tests.support.queues import Opener


@pytest.fixture
def q(disk: Opener) -> Queue:
    return disk.open()


def tail_of(q: Queue) -> WalTail:
    return WalTail(Path(q.path), shard_of(q).range, "process")


@pytest.fixture
def wal(q: Queue) -> Iterator[WalTail]:
    q.send(b"0", key="first")
    made = tail_of(q)
    made.begin_whole()
    made.confirm()
    yield made
    made.close()


def work(q: Queue, clock: FakeClock) -> list[int]:
    """Make commits of every kind, a second apart. Return their times."""
    times = []

    def at(step: Any) -> None:
        clock.advance(1)
        times.append(q._storage.now())
        step()

    held: list[Any] = []
    at(lambda: q.send(b"1", key="k" * 700))
    at(lambda: q.send(bytes(9000), key="a"))
    at(lambda: q.send(b"2", key="a"))
    at(lambda: held.extend(q.receive(3)))
    at(lambda: held[0].ack())
    at(lambda: held[1].nack(delay=0))
    at(lambda: q.hold("x"))
    at(lambda: q.send(b"3", key="b"))
    return times


def test_a_cut_has_the_commits_until_its_time(q: Queue, wal: WalTail, clock: FakeClock) -> None:
    before = wal.frames
    times = work(q, clock)
    seen = [before]
    for at in times:
        wal.advance(at - 1)
        assert wal.frames == seen[-1]
        wal.advance(at)
        assert wal.frames > seen[-1]
        assert wal.position().time == at
        seen.append(wal.frames)
    wal.advance(None)
    assert wal.frames == seen[-1]


def test_a_commit_that_defines_tables_goes_with_the_one_before(q: Queue, wal: WalTail, clock: FakeClock) -> None:
    q.send(b"1", key="a")
    now = q._storage.now()
    clock.advance(5)
    q.app_schema("CREATE TABLE app_x (n INTEGER) STRICT")
    wal.advance(now)
    behind = wal.frames
    clock.advance(5)
    q.send(b"2", key="a")
    wal.advance(now)
    assert wal.frames == behind
    wal.advance(None)
    assert wal.frames > behind


def test_what_is_captured_is_what_sqlite_reads(q: Queue, clock: FakeClock) -> None:
    """Compare page by page: the whole shard, and later changes."""
    shard = tail_of(q)
    work(q, clock)
    shard.begin_whole()
    pages = dict(shard.images())
    assert len(pages) == shard.count()
    shard.confirm()
    work(q, clock)
    shard.advance(None)
    changed = dict(shard.images())
    assert 0 < len(changed) == shard.count() < len(pages) + 10
    pages |= changed
    image = connection_of(q).serialize("main")
    assert shard.size == len(image) // 4096
    # Pages in a WAL have no valid checksums: ignore the last eight bytes.
    for number in range(1, shard.size + 1):
        assert pages[number][:4088] == image[(number - 1) * 4096 : number * 4096 - 8], number
    shard.close()


@pytest.mark.parametrize("kept", [0, 2, tail.KEPT_FRAMES])
def test_frames_are_the_same_whether_they_were_kept_or_not(
    q: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    first, second = tail_of(q), tail_of(q)
    for each in (first, second):
        each.begin_whole()
        each.confirm()
    for confirmed in (False, True, True):
        work(q, clock)
        second.advance(None)
        monkeypatch.setattr(tail, "KEPT_FRAMES", kept)
        first.advance(None)
        monkeypatch.undo()
        assert dict(first.images()) == dict(second.images())
        assert first.position() == second.position()
        if confirmed:
            first.confirm()
            second.confirm()
    first.close()
    second.close()


class Busy:
    """A reader that finds the header of the WAL's index being written, so often."""

    def __init__(self, real: Any, times: int) -> None:
        self._real = real
        self.left = times

    def wal_checkpoint(self, **options: Any) -> Any:
        """See apsw."""
        if self.left:
            self.left -= 1
            raise apsw.BusyError("database is locked")
        return self._real.wal_checkpoint(**options)


def test_a_commit_that_is_being_made_visible_is_waited_for(q: Queue, wal: WalTail, monkeypatch: pytest.MonkeyPatch) -> None:
    q.send(b"1", key="a")
    busy = Busy(wal._idle, 3)
    monkeypatch.setattr(WalTail, "_idle", busy)
    wal.advance(None)
    assert busy.left == 0
    assert wal.has_changes
    busy.left = 10_000
    monkeypatch.setattr(tail, "BUSY_STEP_SECONDS", 0.0)
    with pytest.raises(apsw.BusyError):
        wal.advance(None)


def test_nobody_begins_a_wal_again_before_it_was_captured(q: Queue, wal: WalTail, clock: FakeClock) -> None:
    db = connected(Path(q.path) / "shard-0000.db")
    salts = wal.salts
    for _ in range(5):
        work(q, clock)
        db.wal_checkpoint()
        wal.advance(None)
        assert wal.salts == salts
        wal.confirm()
    wal.seal()
    assert wal.sealed
    work(q, clock)
    wal.advance(None)
    assert wal.salts != salts
    db.close()


def test_a_seal_gives_way_to_another_checkpoint(q: Queue, wal: WalTail, monkeypatch: pytest.MonkeyPatch) -> None:
    q.send(b"1", key="a")
    with monkeypatch.context() as busy:
        busy.setattr(wal, "_checkpoint", lambda: (0, -1))
        wal.seal()
    assert not wal.sealed
    assert wal.has_changes
    wal.confirm()
    wal.seal()
    assert wal.sealed


def test_a_seal_keeps_what_it_captured(q: Queue, wal: WalTail, clock: FakeClock) -> None:
    q.send(b"1", key="a")
    wal.seal()
    kept = dict(wal.images())
    assert kept
    q.send(b"2", key="a")  # restarts the WAL
    assert dict(wal.images()) == kept
    wal.advance(None)
    assert kept.keys() <= dict(wal.images()).keys()


def test_a_wal_that_goes_on_behind_what_was_captured_and_begins_again_is_not_followed(q: Queue, clock: FakeClock) -> None:
    first = tail_of(q)
    work(q, clock)
    work(q, clock)
    first.begin_whole()
    position = first.position()
    first.close()
    q.send(b"missed", key="z")
    shard_of(q).checkpoint()
    q.send(b"next", key="z")
    second = tail_of(q)
    assert not second.begin_at(position)
    second.close()


@pytest.mark.parametrize("missed", [False, True])
def test_a_wal_that_came_and_went_is_noticed(q: Queue, clock: FakeClock, missed: bool) -> None:
    db = connected(Path(q.path) / "shard-0000.db")
    db.execute("SELECT * FROM sqlite_schema").fetchall()  # a connection that has read nothing checkpoints nothing
    work(q, clock)
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    first = tail_of(q)
    first.begin_whole()
    position = first.position()
    assert position.header == ""
    first.close()
    if missed:
        clock.advance(1.0)
        q.send(b"missed", key="z")
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close()
    second = tail_of(q)
    assert second.begin_at(position) is not missed
    second.close()


@pytest.mark.parametrize("rolls_back", [False, True])
@pytest.mark.parametrize("missed", [False, True])
def test_a_wal_that_was_truncated_and_grew_to_the_same_length_is_not_followed(
    q: Queue, clock: FakeClock, missed: bool, rolls_back: bool
) -> None:
    """Nothing of the old WAL is left, so it can't be known whether it had more than was captured."""
    first = tail_of(q)
    work(q, clock)
    first.begin_whole()
    position = first.position()
    first.close()
    if missed:
        q.send(b"missed", key="z")
    db = connected(Path(q.path) / "shard-0000.db")
    db.execute("SELECT * FROM sqlite_schema").fetchall()  # a connection that has read nothing checkpoints nothing
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.pragma("synchronous", "normal")  # else commits are padded to a whole sector
    for n in range(position.frames):
        db.pragma("user_version", n + 1)  # a commit with one frame
    if rolls_back:
        db.pragma("cache_size", 1)
        db.execute("BEGIN; CREATE TABLE spilled (x)")
        db.executemany("INSERT INTO spilled VALUES (randomblob(9000))", [()] * 99)
        db.execute("ROLLBACK")
        assert Path(f"{q.path}/shard-0000.db-wal").stat().st_size > HEADER_BYTES + position.frames * FRAME_BYTES
    db.close()
    second = tail_of(q)
    assert second._look()[1] == position.frames
    assert not second.begin_at(position)
    second.close()


def test_a_wal_that_began_again_behind_what_was_captured_is_followed(q: Queue, clock: FakeClock) -> None:
    first = tail_of(q)
    work(q, clock)
    work(q, clock)
    first.begin_whole()
    position = first.position()
    first.close()
    shard_of(q).checkpoint()
    q.send(b"next", key="z")
    second = tail_of(q)
    assert second.begin_at(position)
    second.advance(None)
    assert second.has_changes
    second.close()


def test_another_copy_has_another_checksum_in_its_last_frame(q: Queue, disk: Opener, clock: FakeClock, tmp_path: Path) -> None:
    """Both have the same WAL up to the copy, and the same number of later frames."""
    q.configure_replication(tmp_path / "t")  # so that the WAL stays
    work(q, clock)
    disk.close()
    shutil.copytree(disk.path, tmp_path / "copy")
    one, other = disk(), strictq.open(tmp_path / "copy", clock=clock, durability="process")
    one.send(b"1", key="a")
    other.send(b"2", key="a")
    ours, theirs = tail_of(one), tail_of(other)
    for each in (ours, theirs):
        each.begin_whole()
    assert ours.position().header == theirs.position().header
    assert ours.position().frames == theirs.position().frames
    assert not ours.begin_at(theirs.position())
    assert ours.begin_at(ours.position())
    ours.close()
    theirs.close()
    other.close()


def test_two_wals_later_it_is_not_followed(q: Queue, clock: FakeClock) -> None:
    first = tail_of(q)
    work(q, clock)
    first.begin_whole()
    position = first.position()
    first.close()
    for _ in range(2):
        shard_of(q).checkpoint()
        q.send(b"next", key="z")
    second = tail_of(q)
    assert not second.begin_at(position)
    second.close()


def test_a_wal_that_is_another_one_is_not_read_on(q: Queue, wal: WalTail, clock: FakeClock) -> None:
    work(q, clock)
    wal._header = wal._header[:16] + bytes(8) + wal._header[24:]
    with pytest.raises(WalMovedOn):
        wal.advance(None)


def test_a_page_by_which_the_database_grew_must_be_there(q: Queue, wal: WalTail) -> None:
    q.send(bytes(50_000), key="a")
    found = list(wal._frames(wal.frames, wal._look()[1]))
    last = next(f for f in found if f.page == max(each.page for each in found))
    lost = [f if f is not last or f.commit else f._replace(page=1) for f in found]
    if last.commit:
        lost[-1] = last._replace(page=1)
    with pytest.raises(StoreCorrupt, match="lacks page"):
        wal._take(lost)


def test_the_page_of_the_locks_is_never_shipped(q: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "LOCK_PAGE", 5)
    shard = tail_of(q)
    work(q, clock)
    shard.begin_whole()
    pages = dict(shard.images())
    assert 5 not in pages
    assert len(pages) == shard.count() == shard.size - 1
    shard.close()


def test_a_boot_goes_on_behind_what_was_shipped(disk: Opener, clock: FakeClock, tmp_path: Path) -> None:
    q = disk()
    q.configure_replication(tmp_path / "t")
    q.send(b"1", key="a")
    disk.close()
    (Path(disk.path) / "ship.lock").write_bytes((q._storage.now() + 10**9).to_bytes(8, "big"))
    clock.reboot()
    clock.jump_wall(-(10**6))
    again = disk()
    assert store_of(again).now() > 10**9
    assert epoch.next_offset(Path(disk.path), store_of(again).catalog, clock) + clock.boot() >= q._storage.now() + 10**9


def test_other_pages_say_nothing_of_the_time() -> None:
    assert tail.time_of({3: lambda: bytes(4096)}) is None
