"""The log of a replica: consecutive segments in two files that are used alternately.

A segment is durable when `append` returns. It is dropped when live/ has it on the disk. While segments are appended to one file,
the full one is dropped as a whole, so nothing is copied and no append waits. It is not truncated: the next appends replace its
content, and a sync takes half the time if the file does not grow. So older segments, with smaller numbers, may follow those of a
file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from .. import _files as files
from .._errors import ReplicaGap, StoreError
from .replica_home import LOGS, ReplicaState
from .segment import ANY, MAGIC, START_BYTES, SegmentHeader, decode_header, hash_of, segment_bytes
from .voting import NOTHING, LogPosition

PRIMARY_N: Final = 1 << 61
"""The position of a promoted replica."""
ROTATE_BYTES: Final = 16 << 20
"""Size at which appends switch to the other file, if that is empty, bytes."""


class Logged(NamedTuple):
    """The place and header of a segment in the log."""

    header: SegmentHeader
    hash: str
    file: int
    at: int
    size: int


class LogPlace(NamedTuple):
    """The place of a segment in the log."""

    file: int
    at: int
    size: int


class ReplicaLog:
    """See the module. For one process. One thread may append while another one reads."""

    def __init__(self, home: Path, key: bytes) -> None:
        self._key = key
        self._fds: list[int] = []
        self._ends = [0, 0]
        self._last = [-1, -1]
        self._active = 0
        self._broken = False
        try:
            for name in LOGS:
                self._fds.append(files.open_regular(home / name, os.O_RDWR | os.O_CREAT))
            files.sync_directory(home)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        opened, self._fds = self._fds, []
        for fd in opened:
            os.close(fd)

    @property
    def size(self) -> int:
        """The size of both files, bytes."""
        return sum(self._ends)

    # ---- loading

    def load(self, *, repair: bool = True) -> list[Logged]:
        """Return all segments, ascending. The torn rest of the last append is cut off, because it was not confirmed.

        Args:
            repair: False: do not change the files.
        Raises:
            ReplicaGap: a confirmed segment is damaged; nothing was changed.
        """
        found = [self._scan(file) for file in range(len(self._fds))]
        for file in range(len(found)):
            while self._newer_follows(file):
                before = self._last[file]
                found[file] = self._scan(file)
                if self._last[file] == before:  # otherwise the receiving process was appending it during the first scan
                    n = before + 1 if before >= 0 else self._last[1 - file] + 1
                    raise ReplicaGap(f"segment {n} is damaged in the replica's log", n)
        self._active = int(self._last[1] > self._last[0])
        fd, end = self._fds[self._active], self._ends[self._active]
        if repair and os.fstat(fd).st_size > end:
            os.ftruncate(fd, end)
            os.fsync(fd)
        return sorted((each for logged in found for each in logged), key=lambda each: each.header.n)

    def _scan(self, file: int) -> list[Logged]:
        """Return the segments of a file up to the first one that is damaged, or older than the one before."""
        fd, out, at = self._fds[file], list[Logged](), 0
        size = os.fstat(fd).st_size
        while at < size:
            try:
                start = os.pread(fd, START_BYTES, at)
                data = os.pread(fd, segment_bytes(start, ANY), at)
                header = decode_header(data, ANY, self._key)
            except ReplicaGap:
                break
            if out and header.n <= out[-1].header.n:
                break
            out.append(Logged(header, hash_of(data), file, at, len(data)))
            at += len(data)
        self._ends[file], self._last[file] = at, out[-1].header.n if out else -1
        return out

    def _newer_follows(self, file: int) -> bool:
        """Return whether newer segments follow the last one of a file. Then the next one was confirmed: each append is synced."""
        last = self._last[file] if self._last[file] >= 0 else self._last[1 - file]
        fd, at = self._fds[file], self._ends[file]
        rest = os.pread(fd, max(0, os.fstat(fd).st_size - at), at)
        begin = rest.find(MAGIC)
        while begin >= 0:
            step = 1
            try:
                data = rest[begin : begin + segment_bytes(rest[begin : begin + START_BYTES], ANY)]
                n = decode_header(data, ANY, self._key).n
                step = len(data)  # its pages may contain anything, even a segment: it is in some message's body
            except ReplicaGap:
                n = ANY
            if n > last:
                return True
            begin = rest.find(MAGIC, begin + step)
        return False

    # ---- appending, reading, emptying

    def append(self, header: SegmentHeader, data: bytes) -> Logged:
        """Append a segment, durably on return.

        Raises:
            StoreFull, StoreError: it was not appended; nothing else was changed.
        """
        if self._broken:
            raise StoreError("the replica's log could not be repaired after an error: restart the replica", shard=-1)
        other = 1 - self._active
        if self._ends[self._active] >= ROTATE_BYTES and not self._ends[other]:
            self._active = other
        file = self._active
        fd, at = self._fds[file], self._ends[file]
        try:
            done = 0
            left = memoryview(data)
            while done < len(data):
                done += os.pwrite(fd, left[done:], at + done)
            files.sync_data(fd)
        except OSError as e:
            self._broken = True
            try:
                os.ftruncate(fd, at)
                os.fsync(fd)
                self._broken = False
            except OSError:
                pass  # the next start checks what was written
            raise files.failure("the replica's log can't be written", e) from e
        self._ends[file] = at + len(data)
        self._last[file] = header.n
        return Logged(header, hash_of(data), file, at, len(data))

    def read(self, logged: Logged | LogPlace) -> bytes:
        with files.typed("the replica's log can't be read"):
            return os.pread(self._fds[logged.file], logged.size, logged.at)

    def droppable(self, upto: int) -> int | None:
        """Return the file that can be reused once live/ has all segments up to `upto` on the disk; None: there is none.

        It is never the file that segments are appended to.
        """
        other = 1 - self._active
        return other if self._ends[other] and self._last[other] <= upto else None

    def last(self, file: int) -> int:
        """Return the number of the last segment in this file; -1: it is empty."""
        return self._last[file]

    def all_upto(self, n: int) -> bool:
        """Return whether the log has no segment after this number."""
        return max(self._last) <= n

    def reuse(self, file: int) -> None:
        """Drop the segments of a file that live/ has on the disk. Later appends replace them."""
        self._ends[file], self._last[file] = 0, -1

    def empty(self, file: int) -> None:
        """Drop the segments of a file, and release its space.

        Raises:
            StoreError: this failed; the segments are still there.
        """
        with files.typed("the replica's log can't be emptied"):
            os.ftruncate(self._fds[file], 0)
            os.fsync(self._fds[file])
        self.reuse(file)


def position_of(home: Path, key: bytes) -> LogPosition:
    """Return the position of a replica that this process does not receive for. A promoted one is ahead of all of its term.

    Raises:
        ReplicaGap, StoreError: it can't be read.
    """
    state = ReplicaState.read(home)
    if state.role == "promoted":
        return LogPosition(state.term, PRIMARY_N, "")
    found = NOTHING if state.applied is None else LogPosition(state.applied.term, state.applied.n, state.applied_hash)
    log = ReplicaLog(home, key)
    try:
        for logged in log.load(repair=False):
            if logged.header.n > found.n and not logged.header.more:
                found = LogPosition(logged.header.term, logged.header.n, logged.hash)
    finally:
        log.close()
    return found
