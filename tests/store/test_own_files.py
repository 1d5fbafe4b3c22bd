"""Irregular files, and files with another name, in a queue's directory: refused before a write, and never waited for."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import strictq
from strictq import StoreError, StrictqError
from strictq._client import consumers
from strictq._client.consumers import read_report, write_report
from strictq._platform import files
from strictq._store.bulk.staging import Staging, new_file, new_run
from strictq._store.disk import layout
from strictq.spark._recorded_batches import Holder
from tests.support.queues import fill, labels
from tests.support.running import PATIENCE_SECONDS

OURS = ["wake", "presence", "marks", "reserve"]
DATABASES = ["queue.db", "shard-0000.db", "shard-0000.db-wal", "shard-0000.db-shm"]
KINDS: dict[str, Callable[[Path, Path], object]] = {
    "a FIFO": lambda file, _: os.mkfifo(file),
    "a symbolic link": lambda file, other: file.symlink_to(other),
    "a directory": lambda file, _: file.mkdir(),
    "a socket": lambda file, _: bound_socket(file),
}


def bound_socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(file.parent)  # the path of a socket is short
        try:
            one.bind(file.name)
        finally:
            os.chdir(here)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a closed queue with three messages."""
    with strictq.open(tmp_path / "queue") as q:
        fill(q, "k", 3)
    return tmp_path / "queue"


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file() and not file.name.endswith("-shm")}


# ---- what is no file


@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "read_only"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OURS)
def test_what_is_no_file_is_refused(path: Path, name: str, kind: str, read_only: bool) -> None:
    other = path.with_name("other")
    other.write_bytes(b"theirs")
    (path / name).unlink(missing_ok=True)
    KINDS[kind](path / name, other)
    with pytest.raises(StoreError, match=f"{name} is {kind}, not a regular file; nothing was changed") as caught:
        strictq.open(path, read_only=read_only)
    assert str(path / name) in caught.value.hint
    assert other.read_bytes() == b"theirs"


def test_the_command_line_does_not_wait_for_a_fifo(path: Path) -> None:
    (path / "wake").unlink()
    os.mkfifo(path / "wake")
    done = subprocess.run(
        [sys.executable, "-m", "strictq", "stats", str(path)], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("strictq: queue.db: wake is a FIFO, not a regular file")
    assert "Traceback" not in done.stderr


def test_a_fifo_in_a_consumers_place_is_refused(path: Path) -> None:
    with strictq.open(path) as q:
        os.mkfifo(files.named(path, layout.CONSUMER, "etl"))
        os.mkfifo(consumers.report_of(path, "etl"))
        with pytest.raises(StoreError, match="is a FIFO"):
            Holder(q, "etl", lambda _leases, _shard: ()).attach()
        assert read_report(path, q.queue_id, "etl", active=True) is None
        assert q.consumers() == []


def test_a_fifo_among_staged_files_is_refused(path: Path) -> None:
    place, run = Staging(path, "w"), new_run()
    name, file = place.create(1, run)
    file.close()
    place.path(name).unlink()
    os.mkfifo(place.path(name))
    with pytest.raises(StoreError, match="is a FIFO"):
        place.put(name, 0, b"data")
    with pytest.raises(StoreError, match="is a FIFO"):
        place.sync([name])
    (place.place / "lock").unlink(missing_ok=True)
    os.mkfifo(place.place / "lock")
    with pytest.raises(StoreError, match="is a FIFO"), place.locked():
        pass
    found = strictq.salvage(path, path.with_name("saved"))
    assert found.messages == 3


@pytest.mark.parametrize("name", [*OURS, *DATABASES])
def test_a_salvage_does_not_wait_for_a_fifo(path: Path, name: str) -> None:
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    try:
        strictq.salvage(path, path.with_name("saved"))
    except StrictqError:
        assert not path.with_name("saved").exists()
    assert [p.name for p in path.parent.iterdir() if p.name.startswith(".")] == []


# ---- hard links


@pytest.mark.parametrize("name", [*OURS, *DATABASES])
def test_a_file_with_another_name_is_not_written(path: Path, name: str) -> None:
    if not (path / name).exists():
        (path / name).touch()  # SQLite leaves no -shm behind, and takes an empty one
    other = path.with_name("other")
    os.link(path / name, other)
    before, theirs = contents(path), other.read_bytes()
    said = rf"{name} has 2 names \(hard links\).*nothing was changed"
    with pytest.raises(StoreError, match=said) as caught, strictq.open(path) as q:
        q.send(b"", "k")
    assert "cp -al or rsync --link-dest" in caught.value.hint
    assert other.read_bytes() == theirs
    if name in OURS:
        assert contents(path) == before
    other.unlink()
    with strictq.open(path) as q:
        assert labels(q.receive()) == [("k", 1), ("k", 2), ("k", 3)]
        assert q.check() == []


def test_a_linked_copy_can_be_read_and_is_its_own_after_the_hint(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copytree(path, copy, copy_function=os.link)
    with pytest.raises(StoreError, match="hard links"):
        strictq.open(copy)
    for file in copy.iterdir():  # what the hint says
        shutil.copy2(file, f"{file}.new")
        os.replace(f"{file}.new", file)
    with strictq.open(copy) as q, strictq.open(path) as original:
        q.send(b"only here", "k")
        assert [queue.stats().depth for queue in (q, original)] == [4, 3]


def test_a_linked_query_file_is_not_written_through(path: Path) -> None:
    from strictq._values.findings import QueryReport

    part = consumers.report_of(path, "etl")
    part = part.with_name(f"{part.name}.part")
    other = path.with_name("other")
    other.write_bytes(b"theirs")
    os.link(other, part)
    report = QueryReport("name", "id", "running", 1, 1, 1.0, 1.0, 1.0)
    with pytest.raises(StoreError, match="hard links"):
        write_report(str(path), "0" * 32, "etl", report)
    assert other.read_bytes() == b"theirs"


def test_a_linked_consumer_lock_is_refused(path: Path) -> None:
    file = files.named(path, layout.CONSUMER, "etl")
    file.touch()
    os.link(file, path.with_name("other"))
    with strictq.open(path) as q, pytest.raises(StoreError, match="hard links"):
        Holder(q, "etl", lambda _leases, _shard: ()).attach()


def test_a_linked_staging_file_is_not_written_through(path: Path) -> None:
    place, other = Staging(path, "w"), path.with_name("other")
    name = new_file(1, new_run())
    place.put(name, 0, b"piece")
    os.link(place.path(name), other)
    with pytest.raises(StoreError, match="hard links"):
        place.put(name, 5, b"more")
    assert other.read_bytes() == b"piece"


def test_a_refused_open_holds_nothing(path: Path) -> None:
    """The same process can then salvage the queue, which requires exclusive access."""
    os.link(path / "wake", path.with_name("other"))
    with pytest.raises(StoreError):
        strictq.open(path)
    assert strictq.salvage(path, path.with_name("saved")).messages == 3


def test_the_names_in_a_directory_are_read_again_only_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: read.append(path) or listdir(path))
    assert list(files.names_in(tmp_path)) == []
    (tmp_path / "a").touch()
    for _ in range(2):
        assert list(files.names_in(tmp_path)) == ["a"]
    assert len(read) == 3  # it changed too recently to tell a later change apart
    os.utime(tmp_path, ns=(1, 1))
    for _ in range(2):
        assert list(files.names_in(tmp_path)) == ["a"]
    assert len(read) == 4
    (tmp_path / "b").touch()
    assert sorted(files.names_in(tmp_path)) == ["a", "b"]
    with pytest.raises(FileNotFoundError):
        files.names_in(tmp_path / "none")
