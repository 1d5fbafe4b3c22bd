"""The log of a replica: consecutive segments in two files that are used alternately.

A segment is durable when `append` returns. It is dropped when live/ has it on the disk. While segments are appended to one file,
the full one is dropped as a whole, so nothing is copied and no append waits. It is not truncated: the next appends replace its
content, and a sync takes half the time if the file does not grow. So older segments, with smaller numbers, may follow those of a
file.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from .._platform import files
from .._values.errors import ReplicaGap, SchemaMismatch, StoreCorrupt, StoreError
from .replica_home import LOGS, ReplicaState
from .segment import ANY, MAGIC, START_BYTES, SegmentHeader, decode_header, hash_of, header_bytes, header_of, segment_bytes
from .voting import NOTHING, LogPosition

PRIMARY_N: Final = 1 << 61
"""The position of a promoted replica."""
ROTATE_BYTES: Final = 16 << 20
"""Size at which appends switch to the other file, if that is empty, bytes."""
WINDOW_BYTES: Final = 1 << 20


class Logged(NamedTuple):
    """The place and header of a segment in the log."""

    header: SegmentHeader
    hash: str
    file: int
    at: int
    size: int


class LogPlace(NamedTuple):
    file: int
    at: int
    size: int


def _applied(state: ReplicaState) -> int:
    return -1 if state.applied is None else state.applied.n


class ReplicaLog:
    """See the module. For one process. One thread may append while another one reads.

    Args:
        state: the replica's state.
    """

    def __init__(self, home: Path, key: bytes, state: ReplicaState) -> None:
        self._home = home
        self._key = key
        self._histories = {state.history_id} if state.applied is None else {state.history_id, state.applied.history_id}
        self._histories.discard("")  # that of a replica without one, which a message's body could have
        self._applied = _applied(state)
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
            StoreFull, StoreError: the files can't be written.
        """
        seen = None
        while True:
            found = [self._scan(file) for file in range(len(self._fds))]
            self._active = int(self._last[1] > self._last[0])
            missing = self._missing(found)
            if missing is None:
                break
            if seen == (found, self._applied):  # otherwise the receiving process was at work during the scan
                raise ReplicaGap(f"segment {missing} is damaged in the replica's log", missing)
            seen = found, self._applied
            with suppress(StoreCorrupt):
                self._applied = _applied(ReplicaState.read(self._home))
        older = 1 - self._active
        if found[older] and not self._leads_up(found):
            self._ends[older], self._last[older] = 0, -1  # a torn append replaced some of its dropped segments
            found[older] = []
        if repair:
            for file, fd in enumerate(self._fds):
                with files.typed("the replica's log can't be written"), files.naming(self._home / LOGS[file]):
                    if file == self._active and os.fstat(fd).st_size > self._ends[file]:
                        os.ftruncate(fd, self._ends[file])
                    os.fsync(fd)  # the process may have been killed before it synced the last append
        return sorted((each for logged in found for each in logged), key=lambda each: each.header.n)

    def _missing(self, found: list[list[Logged]]) -> int | None:
        """Return the number of a confirmed segment that is damaged; None: there is none."""
        newest = max(self._last)
        if any(self._newer_follows(file) for file in range(len(found))):
            return newest + 1
        run = found[self._active]
        if not run or self._leads_up(found) or run[0].header.n <= self._applied + 1:
            return None
        return max(self._last[1 - self._active], self._applied) + 1

    def _leads_up(self, found: list[list[Logged]]) -> bool:
        """Return whether the segments of the active file need none that is missing."""
        first = found[self._active][0].header
        return first.begins_base or self._last[1 - self._active] == first.n - 1

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
            except SchemaMismatch:
                if at == 0:
                    raise
                break  # a segment of a newer release begins here, or older bytes that look like it: the state's format decides
            if out and header.n <= out[-1].header.n:
                break
            out.append(Logged(header, hash_of(data), file, at, len(data)))
            self._histories.add(header.history_id)
            at += len(data)
        self._ends[file], self._last[file] = at, out[-1].header.n if out else -1
        return out

    def _newer_follows(self, file: int) -> bool:
        """Return whether segments that are newer than all others follow the last one of a file.

        Then the next one was confirmed: each append is synced.
        """
        at = self._ends[file]
        while window := os.pread(self._fds[file], WINDOW_BYTES, at):
            after = len(window) - len(MAGIC) + 1  # what begins later may continue in the next window
            begin = window.find(MAGIC)
            while begin >= 0:
                n, size = self._segment_at(file, at + begin)
                if n > max(self._last):
                    return True
                after = max(after, begin + size)
                begin = window.find(MAGIC, begin + size)
            at += max(after, 1)
        return False

    def _segment_at(self, file: int, at: int) -> tuple[int, int]:
        """Return number and size of the segment at this place; (ANY, 1): there is none.

        The pages of a segment contain message bodies, and a body can look like a segment. It can't imitate one of the replica's
        history, because senders do not know the history's random id. The pages of an intact segment are skipped.
        """
        fd = self._fds[file]
        try:
            start = os.pread(fd, START_BYTES, at)
            size = segment_bytes(start, ANY)
            if header_of(os.pread(fd, START_BYTES + header_bytes(start, ANY), at), ANY).history_id not in self._histories:
                return ANY, 1
            return decode_header(os.pread(fd, size, at), ANY, self._key).n, size
        except (ReplicaGap, SchemaMismatch):
            return ANY, 1

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
            with files.naming(self._home / LOGS[file]):
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

    @property
    def places(self) -> list[LogPlace]:
        """The ranges of the files that have segments."""
        return [LogPlace(file, 0, end) for file, end in enumerate(self._ends)]

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
        with suppress(OSError):
            if os.fstat(self._fds[file]).st_size > 2 * ROTATE_BYTES:  # the next replica was away for long
                os.ftruncate(self._fds[file], ROTATE_BYTES)

    def empty(self, file: int) -> None:
        """Drop the segments of a file, and release its space.

        Raises:
            StoreError: this failed; the segments are still there.
        """
        with files.typed("the replica's log can't be emptied"), files.naming(self._home / LOGS[file]):
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
    with closing(ReplicaLog(home, key, state)) as log:
        for logged in log.load(repair=False):
            if logged.header.n > found.n and not logged.header.more:
                found = LogPosition(logged.header.term, logged.header.n, logged.hash)
    return found
