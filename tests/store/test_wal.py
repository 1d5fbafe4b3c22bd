"""A damaged WAL is distinguished from one that a power cut tore, and from what ordinary work leaves behind its end."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import apsw
import pytest

import strictq
from strictq import StoreCorrupt
from strictq._store.disk import layout, wal_file
from strictq.testing import FakeClock
from tests.support.internals import PAGE_BYTES, connection_of, shard_of, store_of
from tests.support.powercut import quiet
from tests.support.queues import drain, shard_file

FRAME = wal_file.FRAME_HEADER_BYTES + PAGE_BYTES


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Return a queue of ten commits as a crash leaves it: its files, copied while it is open."""
    return crashed(tmp_path, "full")


def crashed(tmp_path: Path, durability: str, commits: int = 10) -> Path:
    with quiet(FakeClock()), strictq.open(tmp_path / "live", durability=durability) as q:  # type: ignore[arg-type]
        for n in range(commits):
            q.send(b"%d" % n, "k")
        return copied(tmp_path)


def copied(tmp_path: Path) -> Path:
    place = tmp_path / "left"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(tmp_path / "live", place, ignore=shutil.ignore_patterns("*-shm"))
    return place


def wal_of(queue: Path) -> Path:
    return Path(f"{shard_file(queue)}-wal")


def commits_of(queue: Path) -> list[int]:
    """Return the numbers of the frames that commit."""
    with wal_file.Wal.of(shard_file(queue)) as found:
        assert found is not None
        header = found.header()
        assert header is not None
        assert header.sound
        return list(found.commits(header))


def hit(queue: Path, frame: int, at: int = 1000) -> None:
    """Flip a bit of a frame."""
    raw = bytearray(wal_of(queue).read_bytes())
    raw[wal_file.HEADER_BYTES + (frame - 1) * FRAME + at] ^= 4
    wal_of(queue).write_bytes(raw)


def bodies(queue: Path) -> list[bytes]:
    with strictq.open(queue, create=False) as q:
        return [d.body for d in q.receive(100)]


ALL = [b"%d" % n for n in range(10)]


def test_what_a_crash_leaves_is_whole(left: Path) -> None:
    assert len(commits_of(left)) == 10
    assert bodies(left) == ALL


@pytest.mark.parametrize("commit", range(9))
@pytest.mark.parametrize("at", [0, 5, 9, 13, 3000])
def test_a_hole_before_the_last_commit_is_damage(left: Path, commit: int, at: int) -> None:
    """Any part of a frame may be damaged: page number, size, salt, checksum, content."""
    hit(left, commits_of(left)[commit], at)
    if commit == 8 and at == 13:  # what the last commit continued
        pytest.skip("its checksum is damaged, which the last commit continued: told by the mark only")
    with pytest.raises(StoreCorrupt, match="WAL"):
        bodies(left)
    assert strictq.open(left).check()[0].rule == "unreadable"


def test_what_a_power_cut_tears_is_not_damage(left: Path) -> None:
    """Any part of the last commit may be missing."""
    last = commits_of(left)[-1]
    hit(left, last)
    assert bodies(left) == ALL[:-1]


def test_at_process_a_power_cut_may_leave_holes_anywhere(tmp_path: Path) -> None:
    left = crashed(tmp_path, "process")
    hit(left, commits_of(left)[4])
    assert bodies(left) == ALL[:4]


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("commit", range(10))
def test_after_a_process_ended_every_commit_is_known(tmp_path: Path, durability: str, commit: int) -> None:
    with quiet(FakeClock()), strictq.open(tmp_path / "live", durability=durability) as q:  # type: ignore[arg-type]
        for body in ALL:
            q.send(body, "k")
        store_of(q).die()
    hit(tmp_path / "live", commits_of(tmp_path / "live")[commit])
    with pytest.raises(StoreCorrupt, match="WAL"):
        bodies(tmp_path / "live")


def test_after_a_checkpoint_every_commit_before_it_is_known(tmp_path: Path) -> None:
    """Otherwise old pages of the WAL would hide newer ones of the database."""
    with quiet(FakeClock()), strictq.open(tmp_path / "live", durability="process") as q:
        for body in ALL:
            q.send(body, "k")
        shard_of(q).checkpoint()
        left = copied(tmp_path)
    hit(left, commits_of(left)[-1])
    with pytest.raises(StoreCorrupt, match="WAL"):
        bodies(left)


def test_a_wal_that_began_anew_is_not_compared_with_an_old_mark(tmp_path: Path) -> None:
    live = tmp_path / "live"
    with quiet(FakeClock()), strictq.open(live) as q:
        for body in ALL[:9]:
            q.send(body, "k")
        store_of(q).die()
    old = (live / layout.MARKS).read_bytes()
    with quiet(FakeClock()), strictq.open(live) as q:
        shard_of(q).checkpoint()
        q.send(ALL[9], "k")
        store_of(q).die()
    (live / layout.MARKS).write_bytes(old)
    assert len(commits_of(live)) == 1
    assert bodies(live) == ALL


def test_a_wal_that_is_about_to_begin_anew_is_whole(tmp_path: Path) -> None:
    """SQLite reports it as empty before it writes the first byte. A failure in between leaves it like that."""
    live = tmp_path / "live"
    with quiet(FakeClock()), strictq.open(live) as q:
        for body in ALL:
            q.send(body, "k")
        shard_of(q).checkpoint()
        with pytest.raises(apsw.Error):
            _fail_the_truncation(live)
        with strictq.open(live) as other:
            assert other.check() == []
            assert drain(other) == [("k", n + 1) for n in range(10)]


def _fail_the_truncation(live: Path) -> None:
    class File(apsw.VFSFile):
        def xTruncate(self, size: int) -> None:
            raise apsw.exception_for(apsw.SQLITE_IOERR_TRUNCATE)

    class Vfs(apsw.VFS):
        def xOpen(self, name: object, flags: list[int]) -> apsw.VFSFile:
            return File("unix", name, flags)  # type: ignore[arg-type]

    vfs = Vfs("no-truncation", "unix")
    db = apsw.Connection(str(shard_file(live)), vfs="no-truncation")
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    try:
        db.execute("SELECT 1 FROM counter").fetchall()
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        db.close()
        vfs.unregister()


def test_what_is_undone_leaves_nothing_that_looks_like_a_commit(tmp_path: Path) -> None:
    """Frames that a transaction spilled before its rollback are behind the end, with the right salts."""
    with quiet(FakeClock()), strictq.open(tmp_path / "live") as q:
        q.send(ALL[0], "k")
        db = connection_of(q)
        db.pragma("cache_size", 10)
        for _ in range(2):
            db.execute("BEGIN IMMEDIATE")
            for n in range(300):
                db.execute("INSERT INTO message VALUES (?, x'7361', 1, 0, NULL, NULL, NULL, zeroblob(3000))", (1_000_000 + n,))
            db.execute("ROLLBACK")
            q.send(ALL[0], "k")
        left = copied(tmp_path)
    assert wal_of(left).stat().st_size > 250 * FRAME, "nothing was spilled"
    assert bodies(left) == [ALL[0]] * 3


@pytest.mark.slow
def test_a_bit_that_flips_in_a_page_is_not_taken_for_one_of_its_frames_numbers(left: Path) -> None:
    """In SQLite's sum, the highest bits of words of the page can look like those of the numbers."""
    with wal_file.Wal.of(shard_file(left)) as found:
        assert found is not None
        header = found.header()
        assert header is not None
        highest = 3 if header.order == "<" else 0
        whole = wal_of(left).read_bytes()
        for word in range(0, 1024, 7):
            raw = bytearray(whole)
            raw[wal_file.HEADER_BYTES + FRAME + 24 + word * 4 + highest] ^= 1 << (word % 4 + 4)
            wal_of(left).write_bytes(raw)
            frames = list(found.frames(header))
            assert not frames[1].good, word
            assert all(frame.good for n, frame in enumerate(frames) if n != 1)
        wal_of(left).write_bytes(whole)


@pytest.mark.parametrize("bit", range(0, wal_file.HEADER_BYTES * 8, 7))
def test_a_flipped_bit_of_the_header_is_damage(left: Path, bit: int) -> None:
    raw = bytearray(wal_of(left).read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    wal_of(left).write_bytes(raw)
    with pytest.raises(StoreCorrupt):
        bodies(left)


@pytest.mark.parametrize("torn_at", [4, 12, 16, 20, 24, 28])
def test_a_header_that_a_power_cut_tore_is_not(tmp_path: Path, torn_at: int) -> None:
    """The WAL was restarted, and only a part of its new header was written."""
    live = tmp_path / "live"
    with quiet(FakeClock()), strictq.open(live) as q:
        for body in ALL:
            q.send(body, "k")
        shard_of(q).checkpoint()
        old = wal_of(live).read_bytes()
        q.send(b"lost", "k")
        new = wal_of(live).read_bytes()[: wal_file.HEADER_BYTES]
        store_of(q).die()
    wal_of(live).write_bytes(new[:torn_at] + old[torn_at:])
    Path(f"{shard_file(live)}-shm").unlink()
    assert bodies(live) == ALL


@pytest.mark.parametrize("damage", [b"", b"\xff" * 32, struct.pack(">I8sII12x", 0, b"abcdefgh", 1 << 31, 7)])
def test_a_damaged_mark_is_no_mark(tmp_path: Path, damage: bytes) -> None:
    with quiet(FakeClock()), strictq.open(tmp_path / "live") as q:
        for body in ALL:
            q.send(body, "k")
    (tmp_path / "live" / layout.MARKS).write_bytes(damage)
    assert bodies(tmp_path / "live") == ALL


def test_without_the_file_of_marks_everything_else_works(tmp_path: Path) -> None:
    with quiet(FakeClock()), strictq.open(tmp_path / "live") as q:
        q.send(ALL[0], "k")
    (tmp_path / "live" / layout.MARKS).unlink()
    with strictq.open(tmp_path / "live") as q:
        q.send(ALL[1], "k")
        shard_of(q).checkpoint()
    assert bodies(tmp_path / "live") == ALL[:2]


@pytest.mark.parametrize("stand_in", ["directory", "link", "fifo"])
def test_what_is_no_file_of_marks_is_refused(tmp_path: Path, stand_in: str) -> None:
    with quiet(FakeClock()), strictq.open(tmp_path / "live") as q:
        q.send(ALL[0], "k")
    marks = tmp_path / "live" / layout.MARKS
    marks.unlink()
    if stand_in == "directory":
        marks.mkdir()
    elif stand_in == "link":
        marks.symlink_to(tmp_path / "elsewhere")
    elif stand_in == "fifo":
        os.mkfifo(marks)
    with pytest.raises(strictq.StoreError, match="marks is a"):
        strictq.open(tmp_path / "live")
    assert not (tmp_path / "elsewhere").exists()


def test_a_medium_that_nobody_can_write_to_is_verified_by_reading_it(left: Path) -> None:
    """SQLite does not report there how far it could read."""
    with wal_file.Wal.of(shard_file(left)) as found:
        assert found is not None
        header = found.header()
        assert header is not None
        whole = max(found.commits(header), default=0)
        assert not found.goes_on_after(whole, header, 0)
        commits = sum(1 for _ in found.commits(header))
        assert found.goes_on_after(0, header, commits - 2)
        assert not found.goes_on_after(0, header, commits - 1)
        assert found.frame(whole + 1, PAGE_BYTES, page=True) == b""


def test_what_was_synced_is_not_written_again(tmp_path: Path) -> None:
    """The repair after a failed sync begins behind the last commit that returned, in the present WAL."""
    with quiet(FakeClock()), strictq.open(tmp_path / "live", durability="full") as q:
        shard = shard_of(q)
        assert shard.path is not None
        for n in range(3):
            q.send(b"%d" % n, "k")
            assert (
                wal_file.end_of(shard.path, shard.wal._synced, None)
                == wal_file.HEADER_BYTES + commits_of(tmp_path / "live")[-1] * FRAME
            )
        shard.checkpoint()
        q.send(b"", "k")  # restarts the WAL, under other salts
        synced = shard.wal._synced
        assert synced is not None
        assert wal_file.end_of(shard.path, synced, None) == wal_file.HEADER_BYTES + synced.frames * FRAME
        assert synced.frames < 10
    other = wal_file.Mark(b"of older", 1_000)
    assert wal_file.end_of(shard.path, other, None) == 0, "another WAL's frames say nothing of this one's"
    assert wal_file.end_of(shard.path, None, None) == 0
    assert wal_file.end_of(tmp_path / "none", synced, None) == 0


def test_at_process_only_the_mark_counts(tmp_path: Path) -> None:
    with quiet(FakeClock()), strictq.open(tmp_path / "live", durability="process") as q:
        q.send(b"", "k")
        assert shard_of(q).wal._synced is None
