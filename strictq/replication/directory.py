"""A replica in a directory, on another disk or on a mounted share.

A file is written under a temporary name, synced, and linked under its name, which fails if another writer was faster.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from .._platform import files
from .._platform.files import real_path
from .._values import hints
from .._values.errors import InvalidArgument, TargetUnavailable
from .segment_files import SegmentFiles, name_of
from .target import TargetOptions

_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_BLOCK_BYTES: Final = 1 << 24


class DirectoryTarget(SegmentFiles):
    """See SegmentFiles."""

    def __init__(self, path: Path, key: bytes = b"") -> None:
        super().__init__(key)  # if hard links are not supported, `_link` checks the name itself
        self.path = path

    @classmethod
    def parsed(cls, scheme: str, rest: str) -> str:
        if rest.startswith("//"):
            host, _, path = rest[2:].partition("/")
            if host not in ("", "localhost"):
                raise InvalidArgument(f"a file: target is on this machine, not on {host!r}", hint=hints.TARGET_IS)
            rest = f"/{path}"
        return f"{scheme}:{real_path(os.path.expanduser(rest))}"

    @classmethod
    def named(cls, name: str, key: bytes, _options: TargetOptions) -> DirectoryTarget:
        return cls(Path(name.partition(":")[2]), key)

    def __str__(self) -> str:
        return f"file:{self.path}"

    def holds(self, path: Path) -> bool:
        return self.path == path or self.path in path.parents

    def require_apart(self, queue: Path) -> None:
        queue = Path(real_path(queue))
        if self.path == queue or queue in self.path.parents or self.path in queue.parents:
            raise InvalidArgument(
                f"{self.path} and the queue {queue} must not contain each other; nothing was changed", hint=hints.OTHER_DIRECTORY
            )

    def make(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise InvalidArgument(f"{self.path} is not a directory", hint=hints.TARGET_IS)
        if not self.path.exists():
            files.make_directories(self.path.parent)
            self.path.mkdir(mode=0o700)
            files.sync_directory(self.path.parent)

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def read(self, name: str, most: int) -> bytes:
        fd = files.open_regular(self.path / name, os.O_RDONLY)
        try:
            parts: list[bytes] = []
            while most and (block := os.read(fd, min(most, _BLOCK_BYTES))):
                parts.append(block)
                most -= len(block)
            return b"".join(parts)
        finally:
            os.close(fd)

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def create(self, name: str, data: bytes) -> bool:
        part = self.path / f".{name}.{os.urandom(6).hex()}.tmp"
        try:
            self._write(part, data)
            made = self._link(part, self.path / name)
            files.sync_directory(self.path)  # even if the name exists: its writer may have died before the sync
            return made
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    @staticmethod
    def _link(part: Path, place: Path) -> bool:
        try:
            os.link(part, place)
        except FileExistsError:
            return False
        except OSError as e:
            if e.errno not in _NO_LINKS:
                raise
            if place.exists():  # hard links are not supported; only one shipper writes
                return False
            os.rename(part, place)
        return True

    def replace(self, name: str, data: bytes) -> None:
        files.replace(self.path / name, data)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, files.FILE_MODE)
        try:
            files.write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, names: list[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def tidy(self, names: list[str]) -> None:
        self.remove([name for name in names if name.startswith(".") and name.endswith(".tmp")])

    def written_at(self, name: str) -> float | None:
        try:
            found = (self.path / name).lstat()
        except FileNotFoundError:
            return None
        return found.st_mtime if stat.S_ISREG(found.st_mode) else None

    def stored_bytes(self, numbers: Iterable[int]) -> int:
        total = 0
        for n in numbers:
            with suppress(OSError):
                total += (self.path / name_of(n)).stat().st_size
        return total

    def is_write_once(self) -> bool:
        # Without hard links, checking and taking a name are two steps. The test would pass, but two concurrent writers would
        # not be detected.
        with self.reached("it can't be written"):
            part, name = (self.path / f".probe.{os.urandom(6).hex()}.tmp" for _ in range(2))
            try:
                self._write(part, b"")
                os.link(part, name)
                return self._refuses(part, name)
            except OSError as e:
                if e.errno in _NO_LINKS:
                    return False
                raise
            finally:
                self.remove([part.name, name.name])

    @staticmethod
    def _refuses(part: Path, name: Path) -> bool:
        try:
            os.link(part, name)
        except FileExistsError:
            return True
        return False

    def translated(self, what: str, error: Exception) -> TargetUnavailable | None:
        if not isinstance(error, OSError):
            return None
        if isinstance(error, FileNotFoundError) and not self.path.is_dir():
            return TargetUnavailable(f"there is no directory {self.path}", str(self))
        return TargetUnavailable(f"{self.path}: {what}: {error.strerror or error}", str(self))
