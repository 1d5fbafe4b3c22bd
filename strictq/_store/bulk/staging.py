"""Staged files: what the tasks of a batch have written, until the batch is applied or abandoned.

    orders.strictq/staging/<digest of the writer>/<batch number>-<run>/<file>

A run is one attempt at a batch, and its files are private to it. Files are found by their recorded names and never by listing
a directory, so what a killed task left behind is never read. It is deleted with its batch, or by `sweep`.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from ..._platform.files import failure, lock_file, open_regular, opened, remove_tree, sync_directory, typed
from ..._values import hints
from ..._values.errors import StoreError

DIRECTORY: Final = "staging"
LOCK: Final = "lock"
ABANDONED_SECONDS: Final = 3 * 86_400.0
"""The age at which an undecided run is taken for dead. (A live one is as old as its batch takes.)"""
LOCK_SECONDS: Final = 60.0
_MODE: Final = 0o700
_RUN: Final = re.compile(r"(\d{1,19})-[0-9a-f]{12}")
_FILE: Final = re.compile(r"\d{1,19}-[0-9a-f]{12}/[0-9a-f]{16}\.arrow")


def new_run() -> str:
    """Return a name that no other attempt at a batch has."""
    return os.urandom(6).hex()


def new_file(number: int, run: str) -> str:
    """Return a name that no other file of a batch has."""
    return f"{number}-{run}/{os.urandom(8).hex()}.arrow"


def digest(writer: str) -> str:
    """Return the name of a writer's directory. The writer's name may contain any characters."""
    from hashlib import blake2b  # imported late: few programs stage files

    return blake2b(writer.encode(), digest_size=16).hexdigest()


class Staging:
    """The staged files of one writer."""

    def __init__(self, queue: Path, writer: str) -> None:
        self.root = queue / DIRECTORY
        self.place = self.root / digest(writer)

    def create(self, number: int, run: str) -> tuple[str, BinaryIO]:
        """Create an empty file of a run. Return its name for `path`, and the file.

        Raises:
            StoreError: it can't be created.
        """
        name = new_file(number, run)
        path = self.place / name
        try:
            self._make_directories(path)
            return name, os.fdopen(open_regular(path, os.O_CREAT | os.O_EXCL | os.O_RDWR), "wb")
        except OSError as e:
            raise failure(f"a staging file can't be made in {self.root}", e) from e

    def put(self, name: str, offset: int, data: bytes) -> None:
        """Write a piece of a file at its offset. The first piece creates the file. A repeated piece changes nothing.

        Raises:
            StoreError: it can't be written, an earlier piece is missing, or the name is not that of a staged file.
        """
        path = self.path(name)
        try:
            if offset == 0:
                self._make_directories(path)
            with opened(path, os.O_RDWR if offset else os.O_CREAT | os.O_RDWR) as fd:
                if os.fstat(fd).st_size < offset:
                    raise StoreError(f"the staging file {name} has lost a piece", shard=-1, hint=hints.RUN_BATCH_AGAIN)
                rest = memoryview(data)
                while rest:
                    written = os.pwrite(fd, rest, offset)
                    rest, offset = rest[written:], offset + written
        except OSError as e:
            raise failure("a staging file can't be written", e) from e

    def _make_directories(self, path: Path) -> None:
        for part in (self.root, self.place, path.parent):
            with suppress(FileExistsError):
                os.mkdir(part, _MODE)
        _require_directory(self.root)

    def path(self, name: str) -> Path:
        """Return the path of a staged file.

        Raises:
            StoreError: the name is not that of a staged file.
        """
        if not _FILE.fullmatch(name):
            raise StoreError(f"{name!r} is not the name of a staging file", shard=-1)
        return self.place / name

    def sync(self, names: Sequence[str]) -> None:
        """Make these files survive a power cut."""
        try:
            for name in names:
                with opened(self.path(name), os.O_RDONLY) as fd:
                    os.fsync(fd)
            for directory in {self.path(name).parent for name in names}:
                sync_directory(directory)
            for directory in (self.place, self.root, self.root.parent):
                sync_directory(directory)
        except OSError as e:
            raise failure("a staging file could not be synced", e) from e

    def drop(self, names: Iterable[str]) -> None:
        """Delete single files, and directories that are empty without them."""
        for name in names:
            with suppress(OSError):
                self.path(name).unlink()
            with suppress(OSError):
                self.path(name).parent.rmdir()

    def drop_run(self, number: int, run: str) -> None:
        """Delete all files of one attempt."""
        remove_tree(self.place / f"{number}-{run}")

    def drop_up_to(self, number: int) -> None:
        """Delete all files of this batch and of earlier ones. The batch is complete, so they are not needed."""
        for entry in _entries(self.place):
            found = _RUN.fullmatch(entry.name)
            if found and int(found[1]) <= number:
                remove_tree(entry.path)

    def close(self) -> None:
        """Delete the writer's directory if it is empty."""
        _remove_empty(self.place)

    @contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold the writer's lock, so that two processes do not do the same work. Yield False if another one holds it.

        The lock prevents work from being done twice at the same time. The tables prevent it from being committed twice.
        """
        if not self.place.is_dir():
            yield True
            return
        with typed("the lock of a staging directory can't be opened"):
            fd = open_regular(self.place / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            yield lock_file(fd, seconds=LOCK_SECONDS if wait else 0.0)
        finally:
            os.close(fd)


def sweep(queue: Path, keep: Iterable[tuple[str, int]], *, now: float | None = None) -> None:
    """Delete what killed writers left behind, when it is old enough that they will not continue.

    Args:
        keep: tokens (writer, number) of batches that are decided and incomplete.
    """
    root = queue / DIRECTORY
    decided = {(digest(writer), number) for writer, number in keep}
    oldest = (time.time() if now is None else now) - ABANDONED_SECONDS
    for writer in _entries(root):
        for run in _entries(Path(writer.path)):
            found = _RUN.fullmatch(run.name)
            if found and (writer.name, int(found[1])) not in decided and _newest(run) < oldest:
                remove_tree(run.path)
        with suppress(OSError):
            if os.stat(writer.path).st_mtime < oldest:
                _remove_empty(Path(writer.path))


def _require_directory(path: Path) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise StoreError(f"{path} is not a directory", shard=-1)


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove_empty(place: Path) -> None:
    """Delete a writer's directory if it holds nothing but its lock."""
    if all(entry.name == LOCK for entry in _entries(place)):
        with suppress(OSError):
            (place / LOCK).unlink(missing_ok=True)
            place.rmdir()


def _newest(run: os.DirEntry[str]) -> float:
    """Return when a run was last written to."""
    times = [os.stat(run.path).st_mtime]
    for entry in _entries(Path(run.path)):
        with suppress(FileNotFoundError):
            times.append(entry.stat().st_mtime)
    return max(times)
