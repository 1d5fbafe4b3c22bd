"""The log of a replica: its files are used again, and nothing of their former content is taken for a later segment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from strictq import ReplicaGap
from strictq.replication import replica_log
from strictq.replication.replica_home import LOGS, ReplicaState
from strictq.replication.replica_log import Logged, ReplicaLog
from strictq.replication.segment import MAGIC, PagesOf, SegmentHeader, encode, hash_of

PAGE = 4096
FIRST = 1


def chain(count: int) -> list[tuple[SegmentHeader, bytes]]:
    """Segments 1, 2, ... of the same size, so that one that replaces another ends where that one ended."""
    out: list[tuple[SegmentHeader, bytes]] = []
    prev = "00" * 32
    for n in range(FIRST, FIRST + count):
        header = SegmentHeader(
            queue_id="q", history_id="h", term=1, n=n, first=n, more=False, base=1, older_base=-1, base_bytes=1, chain_bytes=1,
            prev=prev, x=3, wall=4, boot_id="b", shards=1, parts=(PagesOf(0, 9, 1),), positions={},
        )  # fmt: skip
        data = encode(header, [(1, bytes([n]) * PAGE)], compress=False)
        out.append((header, data))
        prev = hash_of(data)
    assert len({len(data) for _, data in out}) == 1
    return out


SEGMENTS = chain(9)
SIZE = len(SEGMENTS[0][1])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def opened(home: Path, applied: int = 0) -> ReplicaLog:
    """The log of a replica whose live/ has the segments up to this one."""
    header = SEGMENTS[applied - FIRST][0] if applied else None
    return ReplicaLog(home, b"", ReplicaState(history_id="h", applied=header))


@pytest.fixture
def log(home: Path) -> Iterator[ReplicaLog]:
    log = opened(home)
    log.load()
    yield log
    log.close()


def append(log: ReplicaLog, first: int, last: int) -> None:
    for header, data in SEGMENTS[first - FIRST : last + 1 - FIRST]:
        log.append(header, data)


def rotate(patch: pytest.MonkeyPatch, log: ReplicaLog, first: int, last: int) -> None:
    """Append these to the other file, which must be free."""
    patch.setattr(replica_log, "ROTATE_BYTES", 1)
    append(log, first, first)
    patch.undo()
    append(log, first + 1, last)


def reused(patch: pytest.MonkeyPatch, log: ReplicaLog, last: int) -> None:
    """Segments 1 to 3 in the first file, 4 in the second; then 5 to `last` in the first, in the place of the older ones."""
    append(log, 1, 3)
    rotate(patch, log, 4, 4)
    assert log.droppable(2) is None
    assert log.droppable(3) == 0
    log.reuse(0)
    rotate(patch, log, 5, last)


def found(home: Path, *, repair: bool = True, applied: int = 3) -> list[int]:
    """What a new process finds. Each can be read."""
    log = opened(home, applied)
    try:
        loaded = log.load(repair=repair)
        for each in loaded:
            assert log.read(each) == SEGMENTS[each.header.n - FIRST][1]
        return [each.header.n for each in loaded]
    finally:
        log.close()


def change(home: Path, at: int, data: bytes | None = None) -> None:
    with (home / LOGS[0]).open("r+b") as file:
        file.seek(at)
        if data is None:
            data = bytes([file.read(1)[0] ^ 0x55])
            file.seek(at)
        file.write(data)


def test_a_file_that_is_used_again_does_not_grow(home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    reused(monkeypatch, log, 7)
    assert (home / LOGS[0]).stat().st_size == 3 * SIZE
    assert log.size == 4 * SIZE
    assert found(home, repair=False) == [4, 5, 6, 7]


@pytest.mark.parametrize("last", [5, 6])
def test_older_segments_behind_the_newest_are_not_taken(
    home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    reused(monkeypatch, log, last)
    assert found(home, repair=False) == list(range(4, last + 1))
    assert (home / LOGS[0]).stat().st_size == 3 * SIZE
    assert found(home) == list(range(4, last + 1))
    again = opened(home, 3)
    again.load()
    append(again, last + 1, 9)
    again.close()
    assert found(home) == list(range(4, 10))


def test_before_a_file_is_written_again_its_segments_are_found(
    home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, 1, 3)
    rotate(monkeypatch, log, 4, 6)
    log.reuse(0)
    assert found(home) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("written", [200, 1000, SIZE - 40, SIZE - 1])
def test_an_append_that_was_cut_off_leaves_what_was_there(
    home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """At the beginning of a file that is used again, and behind another segment."""
    append(log, 1, 3)
    rotate(monkeypatch, log, 4, 4)
    log.reuse(0)
    change(home, 0, SEGMENTS[5 - FIRST][1][:written])
    assert found(home) == [4]
    again = opened(home, 3)
    again.load()
    rotate(monkeypatch, again, 5, 5)
    change(home, SIZE, SEGMENTS[6 - FIRST][1][:written])
    again.close()
    assert found(home) == [4, 5]


@pytest.mark.parametrize("at", [3, 20, 45, 300])
@pytest.mark.parametrize("n", [5, 6])
def test_a_damaged_segment_with_newer_ones_behind_it_was_confirmed(
    home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch, n: int, at: int
) -> None:
    reused(monkeypatch, log, 7)
    change(home, (n - 5) * SIZE + at)
    before = [(home / name).read_bytes() for name in LOGS]
    for repair in (False, True):
        with pytest.raises(ReplicaGap, match=f"segment {n} is damaged in the replica's log"):
            found(home, repair=repair)
    assert [(home / name).read_bytes() for name in LOGS] == before


def test_an_emptied_file_has_nothing(home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    reused(monkeypatch, log, 6)
    log.empty(0)
    assert (home / LOGS[0]).stat().st_size == 0
    assert found(home) == [4]


@pytest.mark.parametrize("rotated", [False, True])
def test_what_is_appended_during_a_look_is_not_taken_for_damage(
    home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch, rotated: bool
) -> None:
    """`strictq promote --dry-run` reads the log of a replica that receives."""
    append(log, 1, 2)
    real, begun = ReplicaLog._scan, list[int]()

    def scan(self: ReplicaLog, file: int) -> list[Logged]:
        logged = real(self, file)
        if self is not log and not begun:
            begun.append(file)
            append(log, 3, 4)
            if rotated:
                replica_log.ROTATE_BYTES = 1
            append(log, 5, 5)
        return logged

    monkeypatch.setattr(replica_log, "ROTATE_BYTES", replica_log.ROTATE_BYTES)
    monkeypatch.setattr(ReplicaLog, "_scan", scan)
    assert found(home, repair=False, applied=0) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("history", ["h", "not-the-replicas"])
def test_a_segment_in_the_pages_of_an_older_one_is_not_taken_for_a_newer_one(home: Path, log: ReplicaLog, history: str) -> None:
    """A message's body may be anything, and pages are not compressed in confirmed mode."""
    (_, first), (second, _) = SEGMENTS[:2]
    inner = encode(attrs.evolve(second, n=99, first=99, parts=(), history_id=history), [], compress=False)
    older = encode(attrs.evolve(second, n=0, first=0), [(1, inner.ljust(PAGE, b" "))], compress=False)
    assert inner in older
    (home / LOGS[0]).write_bytes(first + older)
    assert found(home, repair=False) == [1]


@pytest.mark.parametrize("history", ["", "guessed"])
@pytest.mark.parametrize("magic", [MAGIC, MAGIC[:-1] + b"\x02"])
def test_a_segment_in_the_pages_of_a_torn_one_is_not_taken_for_a_newer_one(
    home: Path, log: ReplicaLog, magic: bytes, history: str
) -> None:
    """Whoever sends messages does not know the random id of the queue's history, and can't make one of it."""
    (second, _), (_, first) = SEGMENTS[1], SEGMENTS[0]
    fake = encode(attrs.evolve(second, n=99, first=99, parts=(), history_id=history), [], compress=False)
    torn = encode(second, [(1, (magic + fake[len(MAGIC) :]).ljust(PAGE, b" "))], compress=False)
    (home / LOGS[0]).write_bytes(first + torn[:-1])
    for applied in (0, 1):
        assert found(home, repair=False, applied=applied) == [1]
    assert found(home) == [1]


def test_a_sector_of_the_first_append_to_a_file_that_is_used_again(
    home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, a later sector of it may be there without the first: the older segments behind it prove nothing."""
    append(log, 1, 3)
    rotate(monkeypatch, log, 4, 4)
    log.reuse(0)
    change(home, SIZE + 1000, bytes(512))
    for repair in (False, True):
        assert found(home, repair=repair, applied=3) == [4]
        with pytest.raises(ReplicaGap, match="segment 2 is damaged"):
            found(home, repair=repair, applied=1)


def test_what_is_found_is_synced(home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be killed before it syncs an append, and the next one tells the primary that it has the segment."""
    append(log, 1, 1)
    synced, real, file = list[int](), os.fsync, (home / LOGS[0]).stat().st_ino

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    assert found(home, repair=False) == [1]
    assert file not in synced
    assert found(home) == [1]
    assert file in synced


def test_a_file_that_grew_gives_its_space_back(home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, 1, 6)
    rotate(monkeypatch, log, 7, 7)
    monkeypatch.setattr(replica_log, "ROTATE_BYTES", SIZE)
    log.reuse(0)
    assert (home / LOGS[0]).stat().st_size == SIZE
    append(log, 8, 9)
    assert found(home, applied=6) == [7, 8, 9]


def test_a_damaged_segment_is_found_window_by_window(home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, 1, 4)
    change(home, 2 * SIZE + 300)
    for size in (len(MAGIC), len(MAGIC) + 1, 100, SIZE - 1, SIZE):
        monkeypatch.setattr(replica_log, "WINDOW_BYTES", size)
        with pytest.raises(ReplicaGap, match="segment 3 is damaged"):
            found(home)


@pytest.mark.parametrize("shift", range(len(MAGIC)))
def test_what_looks_like_a_newer_format_behind_the_newest_segment(
    home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    """A body has it again and again, and an older segment with that body is replaced by a shorter one."""
    body = (b"x" * shift + (MAGIC[:-1] + b"\x02") * (2 * PAGE // len(MAGIC)))[: 2 * PAGE]
    header = attrs.evolve(SEGMENTS[0][0], parts=(PagesOf(0, 9, 2),))
    log.append(header, encode(header, [(1, body[:PAGE]), (2, body[PAGE:])], compress=False))
    rotate(monkeypatch, log, 2, 2)
    log.reuse(0)
    rotate(monkeypatch, log, 3, 3)
    assert found(home, applied=2) == [2, 3]


@pytest.mark.parametrize("repair", [False, True])
def test_the_first_segment_of_the_older_file_is_damaged(
    home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch, repair: bool
) -> None:
    append(log, 1, 3)
    rotate(monkeypatch, log, 4, 4)
    change(home, 300)
    with pytest.raises(ReplicaGap, match="is damaged"):
        found(home, repair=repair, applied=0)
    assert found(home, repair=repair, applied=3) == [4]


def test_damage_is_found_after_another_history_was_claimed(home: Path, log: ReplicaLog) -> None:
    append(log, 1, 3)
    change(home, 300)
    later = ReplicaLog(home, b"", ReplicaState(history_id="another", applied=SEGMENTS[0][0]))
    with pytest.raises(ReplicaGap):
        later.load()
    later.close()
    assert (home / LOGS[0]).stat().st_size == 3 * SIZE


def test_a_look_changes_nothing(home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, 1, 6)
    rotate(monkeypatch, log, 7, 7)
    change(home, 2 * SIZE + 300)
    monkeypatch.setattr(replica_log, "ROTATE_BYTES", SIZE)
    assert found(home, repair=False, applied=6) == [7]
    assert (home / LOGS[0]).stat().st_size == 6 * SIZE
