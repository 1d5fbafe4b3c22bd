"""The directory that a queue ships to: what may become one, names that are written once, and what restores are protected from."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

import strictq
from strictq import Diverged, InvalidArgument, ReplicaGap, TargetUnavailable
from strictq.replication.directory import DirectoryTarget
from strictq.replication.places import parse
from strictq.replication.segment_files import MARKER_SECONDS

OWN = {"format": 1, "queue_id": "q", "history_id": "h"}


@pytest.fixture
def target(tmp_path: Path) -> DirectoryTarget:
    made = DirectoryTarget(tmp_path / "t")
    made.prepare(tmp_path / "q")
    made.claim(OWN)
    return made


def test_names_of_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        tmp_path / "t",
        f"{tmp_path}/t",
        f"file:{tmp_path}/t",
        f"file://{tmp_path}/t",
        f"FILE://localhost{tmp_path}/t",
        "t",
    ):
        assert parse(name) == f"file:{tmp_path}/t", name


@pytest.mark.parametrize("name", ["", "ftp://host/x", "tcp://host", "tcps:host", "file://host/x", "a\0b", b"t", 5, "C:\\x"])
def test_names_that_are_refused(name: object) -> None:
    with pytest.raises(InvalidArgument):
        parse(name)  # type: ignore[arg-type]


def test_a_directory_is_made_for_its_owner_alone(target: DirectoryTarget) -> None:
    assert stat.S_IMODE(target.path.stat().st_mode) == 0o700
    target.put(0, b"data")
    for file in target.path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("place", ["q", "q/inside", "."])
def test_the_queue_itself_is_no_target(tmp_path: Path, place: str) -> None:
    with strictq.open(tmp_path / "q") as q, pytest.raises(InvalidArgument, match="contain each other"):
        q.configure_replication(tmp_path / place)
    assert not (tmp_path / "q" / "inside").exists()


def test_another_queue_is_no_target(tmp_path: Path) -> None:
    strictq.open(tmp_path / "other").close()
    with strictq.open(tmp_path / "q") as q, pytest.raises(InvalidArgument, match="is a queue"):
        q.configure_replication(tmp_path / "other")


def test_a_directory_with_something_else_in_it_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "letter.txt").write_text("dear", encoding="utf-8")
    (tmp_path / "file").touch()
    with strictq.open(tmp_path / "q") as q:
        with pytest.raises(InvalidArgument, match="other files"):
            q.configure_replication(tmp_path / "t")
        with pytest.raises(InvalidArgument, match="not a directory"):
            q.configure_replication(tmp_path / "file")
        assert q.replication() is None
    assert os.listdir(tmp_path / "t") == ["letter.txt"]


def test_the_replica_of_another_queue_is_no_target(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "a") as a:
        a.configure_replication(tmp_path / "t")
    before = {file: file.read_bytes() for file in (tmp_path / "t").iterdir()}
    with strictq.open(tmp_path / "b") as b, pytest.raises(Diverged, match="another queue"):
        b.configure_replication(tmp_path / "t")
    assert {file: file.read_bytes() for file in (tmp_path / "t").iterdir()} == before


def test_a_name_is_written_once(target: DirectoryTarget) -> None:
    target.put(0, b"data")
    target.put(0, b"data")
    with pytest.raises(Diverged):
        target.put(0, b"other")
    assert target.get(0) == b"data"
    assert target.numbers() == [0]
    assert sorted(os.listdir(target.path)) == ["0000000000000000.seg", "replica.json"]


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links(target: DirectoryTarget, monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    def link(*_: object) -> None:
        raise OSError(refusal, "no links here")

    monkeypatch.setattr(os, "link", link)
    target.put(0, b"data")
    target.put(0, b"data")
    with pytest.raises(Diverged):
        target.put(0, b"other")
    assert target.get(0) == b"data"


def test_a_put_behind_a_hole_is_refused(target: DirectoryTarget) -> None:
    target.put(0, b"data")
    with pytest.raises(ReplicaGap) as e:
        target.put(2, b"data")
    assert e.value.segment == 1


def test_a_target_that_was_emptied_is_not_written_to(target: DirectoryTarget) -> None:
    """An empty directory may be the place where a disk is to be mounted."""
    target.put(0, b"data")
    for file in target.path.iterdir():
        file.unlink()
    with pytest.raises(TargetUnavailable, match="not mounted"):
        target.put(1, b"data")
    with pytest.raises(TargetUnavailable, match="not mounted"):
        target.require(OWN)
    assert os.listdir(target.path) == []


def test_a_target_that_is_gone(target: DirectoryTarget) -> None:
    for file in target.path.iterdir():
        file.unlink()
    target.path.rmdir()
    for use in (target.numbers, target.identity, lambda: target.put(0, b"x"), lambda: target.put(1, b"x")):
        with pytest.raises(TargetUnavailable):
            use()
    assert not target.path.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "link", "open"])
def test_a_put_that_fails_leaves_nothing(
    target: DirectoryTarget, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(TargetUnavailable, match=os.strerror(number)) as e:
            target.put(0, b"data")
        assert e.value.transient
    assert target.numbers() == []
    assert os.listdir(target.path) == ["replica.json"]
    target.put(0, b"data")


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_is_no_regular_file_is_no_segment(target: DirectoryTarget, kind: str) -> None:
    place = target.path / "0000000000000000.seg"
    if kind == "link":
        place.symlink_to(target.path / "replica.json")
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
    with pytest.raises(ReplicaGap):
        target.get(0)


def test_a_damaged_identity_is_reported(target: DirectoryTarget) -> None:
    (target.path / "replica.json").write_bytes(b"\xff{")
    with pytest.raises(TargetUnavailable, match="damaged"):
        target.identity()


# ---- retention


def test_what_a_restore_reads_is_not_deleted(target: DirectoryTarget) -> None:
    for n in range(6):
        target.put(n, b"%d" % n)
    with target.reading() as reading:
        assert target.delete_before(2) == 0  # where it begins is not known yet
        reading.begin(3)
        assert target.delete_before(5) == 3
        assert target.numbers() == [3, 4, 5]
        assert target.floor() == 5
    assert target.delete_before(5) == 2
    assert target.numbers() == [5]
    assert not list(target.path.glob("restore-*"))


def test_a_restore_that_was_killed_holds_nothing_up_for_ever(target: DirectoryTarget) -> None:
    for n in range(3):
        target.put(n, b"%d" % n)
    left = target.path / "restore-0011223344556677.json"
    left.write_bytes(b"0")
    os.utime(left, (0, 0))
    assert target.delete_before(2) == 2
    assert not left.exists()
    left.write_bytes(b"1")
    fresh = left.stat().st_mtime - MARKER_SECONDS / 2
    os.utime(left, (fresh, fresh))
    target.put(3, b"3")
    assert target.delete_before(3) == 0


def test_what_an_interrupted_put_left_is_removed(target: DirectoryTarget) -> None:
    target.put(0, b"0")
    (target.path / ".0000000000000001.seg.aabb.tmp").write_bytes(b"half")
    target.delete_before(0)
    assert sorted(os.listdir(target.path)) == ["0000000000000000.seg", "floor", "replica.json"]
