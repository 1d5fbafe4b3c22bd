"""Queues that Spark's processes keep open: the one that is there now, whatever was there before."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from strictq import QueueNotFound, StoreError
from strictq.spark import _opened, _paths


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is open before or after."""
    monkeypatch.setattr(_opened, "_opened", {})
    yield
    for _, q in _opened._opened.values():
        q.close()


def make(path: Path, key: str) -> str:
    """A queue with one message, in the place of any other. Returns its id."""
    shutil.rmtree(path, ignore_errors=True)
    with strictq.open(path, durability="process") as q:
        q.send(b"", key)
        return q.queue_id


def test_it_is_opened_once(tmp_path: Path) -> None:
    name = make(tmp_path / "q", "k")
    first = _opened.looking(str(tmp_path / "q"), name)
    assert _opened.looking(str(tmp_path / "q"), name) is first


@pytest.mark.parametrize("same", ["nothing", "inode", "queue"])
def test_a_queue_in_the_place_of_one_that_was_removed(tmp_path: Path, same: str) -> None:
    """Its catalog may have the number of the removed one, and it may be a copy of that queue, with the same id."""
    path = tmp_path / "q"
    name = make(path, "old")
    if same == "queue":
        with strictq.open(path) as q:
            q.backup(tmp_path / "copy")
        strictq.adopt(tmp_path / "copy")
    else:
        make(tmp_path / "copy", "new")
    with strictq.open(path) as q:
        q.send(b"", "old")
    assert len(_opened.looking(str(path), name).peek("old")) == 2
    for file in path.iterdir():
        if same == "nothing" or file.name != "queue.db":
            file.unlink()
    for file in (tmp_path / "copy").iterdir():
        shutil.copyfile(file, path / file.name)  # into the same file if there is one
    with strictq.open(path) as q:
        name, key = q.queue_id, "old" if same == "queue" else "new"
    assert [m.seq for m in _opened.looking(str(path), name).peek(key)] == [1]


def test_who_asks_for_another_queue_closes_none(tmp_path: Path) -> None:
    name = make(tmp_path / "q", "k")
    opened = _opened.looking(str(tmp_path / "q"), name)
    with pytest.raises(QueueNotFound, match="was replaced"):
        _opened.looking(str(tmp_path / "q"), "0" * 32)
    assert [m.seq for m in opened.peek("k")] == [1], "somebody else may be reading in it"
    assert _opened.looking(str(tmp_path / "q"), name) is opened


def test_another_queue_than_was_planned_is_an_error(tmp_path: Path) -> None:
    make(tmp_path / "q", "k")
    for _ in range(2):
        with pytest.raises(QueueNotFound, match="was replaced since this was planned"):
            _opened.looking(str(tmp_path / "q"), "0" * 32)
    shutil.rmtree(tmp_path / "q")
    with pytest.raises(QueueNotFound, match="there is no queue at"):
        _opened.looking(str(tmp_path / "q"), "0" * 32)


def test_a_process_without_permission_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is there, but an executor that runs as another user can't read it."""
    path, name = str(tmp_path / "q"), make(tmp_path / "q", "k")
    stat = os.stat

    def refused(place: object, **options: object) -> os.stat_result:
        if str(place).startswith(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        return stat(place, **options)  # type: ignore[call-overload, no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refused)
        with pytest.raises(StoreError, match=r"the queue at .* can't be opened: Permission denied") as e:
            _opened.looking(path, name)
        assert "as the owner" in str(e.value)
        paths = _paths.paths_of({"paths": f'["{path}", "{path}-other"]'})
        assert (list(paths.found()), paths.missing()) == ([path, f"{path}-other"], [])
    assert (list(paths.found()), paths.missing()) == ([path], [f"{path}-other"])


def test_a_process_takes_what_is_imported_out_of_its_garbage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(_opened, "_settled", False)
    monkeypatch.setattr(_opened.gc, "freeze", lambda: frozen.append(1))
    for _ in range(3):
        _opened.settle()
    assert frozen == [1]
