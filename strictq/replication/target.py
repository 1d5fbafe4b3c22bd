"""Where segments go: a directory, on another disk or on a share that is mounted.

    replica.json         whose replica it is
    0000000000000000.seg the segments; a name is written once
    floor                restores begin at no segment before this one
    restore-….json       a restore is running, and reads from this segment on

A segment is written beside its place, synced, and linked under its name, which fails where another writer was faster.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from .. import _files as files
from .. import _hints as hints
from .._errors import Diverged, InvalidArgument, ReplicaGap, StoreError, TargetUnavailable
from .segment import SEGMENT_BYTES_MAX, START_BYTES, SegmentHeader, hash_of, header_bytes, header_of

IDENTITY: Final = "replica.json"
FLOOR: Final = "floor"
MARKER: Final = "restore-"
MARKER_SECONDS: Final = 600.0
"""A restore that did not show itself for so long has ended without removing its marker."""
SMALL_BYTES: Final = 1 << 16
_NAME: Final = re.compile(r"([0-9a-f]{16})\.seg")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def parse(text: str | os.PathLike[str]) -> Path:
    """The directory that a target names: "file:/path", or a path.

    Raises:
        InvalidArgument: it names something else.
    """
    if not isinstance(text, str | os.PathLike) or isinstance(os.fspath(text), bytes):
        raise InvalidArgument(f"a target must be a str or a path, not {type(text).__name__}")
    name = os.fspath(text)
    scheme = _SCHEME.match(name)
    if scheme and scheme[1].lower() == "file":
        name = name[scheme.end() :]
        if name.startswith("//"):
            host, _, rest = name[2:].partition("/")
            if host not in ("", "localhost"):
                raise InvalidArgument(f"a file: target is on this machine, not on {host!r}", hint=hints.TARGET_IS)
            name = f"/{rest}"
    elif scheme:
        raise InvalidArgument(f"strictq does not know targets of the kind {scheme[1]!r}", hint=hints.TARGET_IS)
    if not name or "\0" in name:
        raise InvalidArgument("a target must not be empty or contain NUL characters", hint=hints.TARGET_IS)
    return Path(os.path.realpath(os.path.expanduser(name)))


class DirectoryTarget:
    """The segments in one directory. One shipper writes to it; any number of restores read it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return f"file:{self.path}"

    # ---- whose it is

    def create(self, queue: Path) -> None:
        """Make the directory if it is missing, and see that it may become this queue's replica.

        Raises:
            InvalidArgument: it is the queue, lies in it, has it in it, or holds something else; nothing was changed.
            TargetUnavailable: it can't be made or looked at.
        """
        queue = Path(os.path.realpath(queue))
        if self.path == queue or queue in self.path.parents or self.path in queue.parents:
            raise InvalidArgument(
                f"{self.path} and the queue {queue} must not lie in one another; nothing was changed", hint=hints.OTHER_DIRECTORY
            )
        with self._reached("it can't be made"):
            if self.path.exists() and not self.path.is_dir():
                raise InvalidArgument(f"{self.path} is not a directory", hint=hints.TARGET_IS)
            if not self.path.exists():
                files.make_directories(self.path.parent)
                self.path.mkdir(mode=0o700)
                files.sync_directory(self.path.parent)
            entries = os.listdir(self.path)
        if "queue.db" in entries:
            raise InvalidArgument(f"{self.path} is a queue; nothing was changed", hint=hints.OTHER_DIRECTORY)
        if IDENTITY not in entries and entries:
            raise InvalidArgument(f"{self.path} has other files in it; nothing was changed", hint=hints.EMPTY_TARGET)

    def identity(self) -> dict[str, Any] | None:
        """Whose replica it is; None: nobody's.

        Raises:
            TargetUnavailable: it can't be read.
        """
        raw = self._small(IDENTITY)
        if raw is None:
            return None
        try:
            found = json.loads(raw)
            if isinstance(found, dict) and isinstance(found.get("queue_id"), str):
                return found
        except (ValueError, RecursionError):
            pass
        raise TargetUnavailable(f"{self.path / IDENTITY} is damaged", str(self), transient=False)

    def claim(self, identity: dict[str, Any]) -> None:
        """Make it the replica of a queue, if it is nobody's.

        Raises:
            Diverged: it is another queue's, or another history's.
        """
        found = self.identity()
        if found is None:
            self._publish(IDENTITY, json.dumps(identity).encode())
            found = self.identity()
        self.require(identity, found)

    def require(self, identity: dict[str, Any], found: dict[str, Any] | None = None) -> None:
        """
        Raises:
            TargetUnavailable: it is nobody's: perhaps its disk is not mounted.
            Diverged: it is another queue's.
        """
        found = self.identity() if found is None else found
        if found is None:
            raise TargetUnavailable(
                f"{self.path} is no replica any more: it was emptied, or its disk is not mounted", str(self),
                hint=hints.CONFIGURE_AGAIN,
            )  # fmt: skip
        if found["queue_id"] != identity["queue_id"]:
            raise Diverged(f"{self.path} is the replica of another queue", hint=hints.EMPTY_TARGET)
        if found.get("history_id") != identity["history_id"]:
            raise Diverged(
                f"{self.path} is the replica of another history of this queue, before a restore", hint=hints.EMPTY_TARGET
            )

    # ---- segments

    def numbers(self) -> list[int]:
        """The numbers of the segments that are there, ascending."""
        with self._reached("it can't be read"):
            found = [_NAME.fullmatch(name) for name in os.listdir(self.path)]
        return sorted(int(match[1], 16) for match in found if match is not None)

    def get(self, n: int) -> bytes:
        """A segment.

        Raises:
            ReplicaGap: it is missing, or is no file that a shipper wrote.
            TargetUnavailable: it can't be read.
        """
        try:
            fd = files.open_regular(self._segment(n), os.O_RDONLY)
        except FileNotFoundError:
            raise ReplicaGap(f"segment {n} is missing", n) from None
        except StoreError as e:
            raise ReplicaGap(f"segment {n}: {e}", n) from e
        except OSError as e:
            raise self._failure("a segment can't be read", e) from e
        try:
            with self._reached("a segment can't be read"):
                size = os.fstat(fd).st_size
                if size > SEGMENT_BYTES_MAX:
                    raise ReplicaGap(f"segment {n} is damaged: it is too large", n)
                return _read(fd, size)
        finally:
            os.close(fd)

    def header(self, n: int) -> SegmentHeader:
        """What a segment says it is; its hash is not verified.

        Raises:
            ReplicaGap, SchemaMismatch, TargetUnavailable: it can't be read.
        """
        try:
            fd = files.open_regular(self._segment(n), os.O_RDONLY)
        except FileNotFoundError:
            raise ReplicaGap(f"segment {n} is missing", n) from None
        except StoreError as e:
            raise ReplicaGap(f"segment {n}: {e}", n) from e
        except OSError as e:
            raise self._failure("a segment can't be read", e) from e
        try:
            with self._reached("a segment can't be read"):
                start = os.read(fd, START_BYTES)
                return header_of(start + os.read(fd, header_bytes(start, n)), n)
        finally:
            os.close(fd)

    def put(self, n: int, data: bytes) -> None:
        """Write a segment; durable on return. Writing the same one twice is the same as once.

        Raises:
            Diverged: another writer wrote one with this number.
            TargetUnavailable: it can't be written, or the one before is gone.
        """
        with self._reached("it can't be read"):
            there = not n or self._segment(n - 1).exists()
        if not there:
            self._require_there()
            raise ReplicaGap(f"segment {n - 1} is missing", n - 1)
        self._publish(f"{n:016x}.seg", data)

    def _require_there(self) -> None:
        if self.identity() is None:
            raise TargetUnavailable(
                f"{self.path} is no replica any more: it was emptied, or its disk is not mounted", str(self),
                hint=hints.CONFIGURE_AGAIN,
            )  # fmt: skip

    def _publish(self, name: str, data: bytes) -> None:
        part = self.path / f".{name}.{os.urandom(6).hex()}.tmp"
        with self._reached("it can't be written"):
            try:
                self._write(part, data)
                try:
                    os.link(part, self.path / name)
                except FileExistsError:
                    self._same_or_diverged(name, data)
                except OSError as e:
                    if e.errno not in _NO_LINKS:
                        raise
                    if (self.path / name).exists():  # no hard links here; one shipper writes
                        self._same_or_diverged(name, data)
                    else:
                        os.rename(part, self.path / name)
                files.sync_directory(self.path)
            finally:
                with suppress(OSError):
                    part.unlink(missing_ok=True)

    def _same_or_diverged(self, name: str, data: bytes) -> None:
        found = (self.path / name).read_bytes()
        if found != data:
            raise Diverged(f"another process wrote {self.path / name}: two copies of the queue ship to the same place")

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, files.FILE_MODE)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def size(self, n: int) -> int:
        """Bytes of a segment; 0 where it is missing."""
        with suppress(OSError):
            return self._segment(n).stat().st_size
        return 0

    def hash_of(self, n: int) -> str | None:
        """The hash that a segment says it has; None: it is missing."""
        try:
            return hash_of(self.get(n))
        except ReplicaGap:
            return None

    def _segment(self, n: int) -> Path:
        return self.path / f"{n:016x}.seg"

    # ---- retention, and restores that run

    def delete_before(self, n: int) -> int:
        """Delete the segments before `n`, but none that a restore reads. Returns how many were deleted.

        First the floor is raised, then the markers of restores are looked at. A restore does it the other way round: its marker
        first, then the floor. So either its marker is seen here, or it sees the floor.
        """
        with self._reached("old segments can't be deleted"):
            floor = self.path / f".{FLOOR}.tmp"
            floor.unlink(missing_ok=True)
            self._write(floor, str(n).encode())
            os.replace(floor, self.path / FLOOR)
            files.sync_directory(self.path)
            upto = min([n, *self._restores()])
            gone = 0
            for number in self.numbers():
                if number >= upto:
                    break
                self._segment(number).unlink(missing_ok=True)
                gone += 1
            for name in os.listdir(self.path):
                if name.startswith(".") and name.endswith(".tmp"):
                    (self.path / name).unlink(missing_ok=True)
        return gone

    def floor(self) -> int:
        """Restores begin at no segment before this one."""
        raw = self._small(FLOOR)
        return int(raw) if raw is not None and raw.isdigit() else 0

    def _restores(self) -> Iterator[int]:
        """The first segment that each running restore reads. One that ended without removing its marker counts no more."""
        now = (self.path / FLOOR).stat().st_mtime  # by the clock of whoever keeps the files
        for name in os.listdir(self.path):
            if not name.startswith(MARKER):
                continue
            marker = self.path / name
            try:
                found = marker.lstat()
            except FileNotFoundError:
                continue
            if not stat.S_ISREG(found.st_mode):
                continue
            if now - found.st_mtime > MARKER_SECONDS:
                marker.unlink(missing_ok=True)
                continue
            raw = self._small(name)
            yield int(raw) if raw is not None and raw.isdigit() else 0

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """While the block lasts, no segment is deleted that the restore in it reads, where the directory can be written to."""
        marker = Reading(self.path / f"{MARKER}{os.urandom(8).hex()}.json")
        try:
            yield marker
        finally:
            marker.end()

    # ---- helpers

    def _small(self, name: str) -> bytes | None:
        """A small file; None: it is missing."""
        try:
            fd = files.open_regular(self.path / name, os.O_RDONLY)
        except FileNotFoundError:
            self._require_directory()
            return None
        except StoreError as e:
            raise TargetUnavailable(str(e), str(self), transient=False) from e
        except OSError as e:
            raise self._failure("it can't be read", e) from e
        try:
            with self._reached("it can't be read"):
                return os.read(fd, SMALL_BYTES)
        finally:
            os.close(fd)

    def _require_directory(self) -> None:
        if not self.path.is_dir():
            raise TargetUnavailable(f"there is no directory {self.path}", str(self))

    @contextmanager
    def _reached(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise self._failure(what, e) from e

    def _failure(self, what: str, error: OSError) -> TargetUnavailable:
        return TargetUnavailable(f"{self.path}: {what}: {error.strerror or error}", str(self))


class Reading:
    """The marker of a running restore."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = self._write(b"0")

    def _write(self, data: bytes) -> bool:
        try:
            files.replace(self._path, data)
        except (OSError, StoreError):
            return False  # a medium that can't be written to: nobody deletes there, either
        return True

    def begin(self, n: int) -> None:
        """No segment before `n` is needed."""
        if self._written:
            self._write(str(n).encode())

    def go_on(self) -> None:
        """Show that the restore runs."""
        if self._written:
            with suppress(OSError):
                os.utime(self._path)

    def end(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _read(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    while block := os.read(fd, min(max(size, 1), 1 << 24)):
        parts.append(block)
        if sum(map(len, parts)) > SEGMENT_BYTES_MAX:
            break
    return b"".join(parts)
