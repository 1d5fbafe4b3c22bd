"""The log of a replica: its files are used again, and nothing of their former content is taken for a later segment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from strictq import ReplicaGap
from strictq.replication import replica_log
from strictq.replication.replica_home import LOGS
from strictq.replication.replica_log import Logged, ReplicaLog
from strictq.replication.segment import PagesOf, SegmentHeader, encode, hash_of

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


@pytest.fixture
def log(home: Path) -> Iterator[ReplicaLog]:
    opened = ReplicaLog(home, b"")
    opened.load()
    yield opened
    opened.close()


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


def found(home: Path, *, repair: bool = True) -> list[int]:
    """What a new process finds. Each can be read."""
    log = ReplicaLog(home, b"")
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
    again = ReplicaLog(home, b"")
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
    again = ReplicaLog(home, b"")
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


def test_what_is_appended_during_a_look_is_not_taken_for_damage(
    home: Path, log: ReplicaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`strictq promote --dry-run` reads the log of a replica that receives."""
    append(log, 1, 2)
    real, begun = ReplicaLog._scan, list[int]()

    def scan(self: ReplicaLog, file: int) -> list[Logged]:
        logged = real(self, file)
        if self is not log and not begun:
            begun.append(file)
            append(log, 3, 5)
        return logged

    monkeypatch.setattr(ReplicaLog, "_scan", scan)
    assert found(home, repair=False) == [1, 2, 3, 4, 5]


def test_a_segment_in_the_pages_of_an_older_one_is_not_taken_for_a_newer_one(home: Path, log: ReplicaLog) -> None:
    """A message's body may be anything, and pages are not compressed in confirmed mode."""
    (_, first), (second, _) = SEGMENTS[:2]
    inner = encode(attrs.evolve(second, n=99, first=99, parts=()), [], compress=False)
    older = encode(attrs.evolve(second, n=0, first=0), [(1, inner.ljust(PAGE, b" "))], compress=False)
    assert inner in older
    (home / LOGS[0]).write_bytes(first + older)
    assert found(home, repair=False) == [1]
