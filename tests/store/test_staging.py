"""Staged files: private, named, and deleted when they are no longer needed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from strictq import StoreError
from strictq._store.bulk.staging import ABANDONED_SECONDS, Staging, new_file, new_run, sweep


def left(root: Path) -> list[str]:
    """Return every file in the staging directory."""
    return sorted(str(p.relative_to(root / "staging")) for p in root.rglob("*") if p.is_file())


def make(place: Staging, number: int = 0, run: str | None = None, data: bytes = b"data") -> str:
    name, file = place.create(number, run or new_run())
    with file:
        file.write(data)
    return name


def test_files_are_private_and_found_by_name(tmp_path: Path) -> None:
    place = Staging(tmp_path, "query a/../b \n")
    name = make(place)
    assert place.path(name).read_bytes() == b"data"
    assert stat.S_IMODE(place.path(name).stat().st_mode) == 0o600
    directories = [p for p in tmp_path.rglob("*") if p.is_dir()]
    assert len(directories) == 3
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o700 for p in directories)
    place.sync([name])


@pytest.mark.parametrize("name", ["", "../x", "/etc/passwd", "0-aaaaaaaaaaaa/../../x.arrow", "0-aaaaaaaaaaaa/x.arrow\n"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="not the name"):
        Staging(tmp_path, "w").path(name)


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "staging").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="not a directory"):
        make(Staging(tmp_path, "w"))
    assert not any(p.is_file() for p in (tmp_path / "elsewhere").rglob("*"))


def test_a_run_goes_alone_and_a_batch_with_all_before_it(tmp_path: Path) -> None:
    place = Staging(tmp_path, "w")
    other = make(Staging(tmp_path, "other"))
    run = new_run()
    for number in (1, 2, 3):
        make(place, number)
    make(place, 2, run)
    make(place, 2, run)
    place.drop_run(2, run)
    assert len(left(tmp_path)) == 4
    place.drop_up_to(2)
    assert len(left(tmp_path)) == 2
    place.drop_up_to(3)
    with place.locked():
        pass
    place.close()
    assert not place.place.exists()
    assert [Path(p).name for p in left(tmp_path)] == [Path(other).name]


def test_a_single_file_goes_with_its_empty_directory(tmp_path: Path) -> None:
    place = Staging(tmp_path, "w")
    name = make(place)
    place.drop([name, name])
    assert left(tmp_path) == []
    assert not place.path(name).parent.exists()


def test_only_one_process_at_a_time_does_the_work(tmp_path: Path) -> None:
    place = Staging(tmp_path, "w")
    make(place)
    with place.locked() as first, Staging(tmp_path, "w").locked(wait=False) as second:
        assert (first, second) == (True, False)
    with place.locked(wait=False) as again:
        assert again


def test_what_the_dead_left_is_swept_by_age(tmp_path: Path) -> None:
    decided, abandoned = make(Staging(tmp_path, "decided"), 4), make(Staging(tmp_path, "abandoned"), 4)
    keep = [("decided", 4)]
    now = max(p.stat().st_mtime for p in tmp_path.rglob("*"))
    sweep(tmp_path, keep, now=now + ABANDONED_SECONDS - 60)
    assert len(left(tmp_path)) == 2
    sweep(tmp_path, keep, now=now + ABANDONED_SECONDS + 60)
    assert [Path(p).name for p in left(tmp_path)] == [Path(decided).name]
    assert abandoned
    sweep(tmp_path, (), now=now + 2 * ABANDONED_SECONDS)
    assert left(tmp_path) == []
    sweep(tmp_path, (), now=now + 9 * ABANDONED_SECONDS)
    assert os.listdir(tmp_path / "staging") == []


def test_a_queue_without_staged_files_has_nothing_to_sweep(tmp_path: Path) -> None:
    sweep(tmp_path, ())
    assert os.listdir(tmp_path) == []


def test_pieces_make_a_file_and_may_come_again(tmp_path: Path) -> None:
    place = Staging(tmp_path, "w")
    name = new_file(3, new_run())
    for offset, piece in ((0, b"one "), (4, b"two "), (4, b"two "), (0, b"one "), (8, b"three")):
        place.put(name, offset, piece)
    assert place.path(name).read_bytes() == b"one two three"
    assert stat.S_IMODE(place.path(name).stat().st_mode) == 0o600


def test_a_piece_without_those_before_it_is_refused(tmp_path: Path) -> None:
    place = Staging(tmp_path, "w")
    name = new_file(3, new_run())
    with pytest.raises(StoreError, match="can't be written"):
        place.put(name, 4, b"two")
    place.put(name, 0, b"one")
    with pytest.raises(StoreError, match="lost a piece"):
        place.put(name, 4, b"two")
    assert place.path(name).read_bytes() == b"one"
    with pytest.raises(StoreError, match="not the name"):
        place.put("../" + name, 0, b"")
