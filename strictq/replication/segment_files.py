"""Targets that keep segments as files: a directory, or a place in an object store. What both have in common.

replica.json         whose replica it is
0000000000000000.seg the segments; a name is written once
floor                restores begin at no segment before this one
restore-….json       a restore is running, and reads from this segment on
probe                left by the test whether names really are written once
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from .. import _hints as hints
from .._errors import Diverged, InvalidArgument, ReplicaGap, SchemaMismatch, StoreError, StrictqError, TargetUnavailable
from .segment import SEGMENT_BYTES_MAX, START_BYTES, SegmentHeader, decode_header, hash_of, header_bytes, header_of
from .target import TARGET_FORMAT, ChainHead, ShipTarget

IDENTITY: Final = "replica.json"
FLOOR: Final = "floor"
MARKER: Final = "restore-"
PROBE: Final = "probe"
MARKER_SECONDS: Final = 600.0
"""A restore that did not show itself for so long has ended without removing its marker."""
SMALL_BYTES: Final = 1 << 16
HEAD_BYTES: Final = 1 << 12
"""Enough for most headers: one read from an object store."""
REMOVED_AT_ONCE: Final = 500
HEADERS_AT_ONCE: Final = 256
SEGMENTS_AT_ONCE: Final = 8
"""Of up to 16 MiB each."""
_NAME: Final = re.compile(r"([0-9a-f]{16})\.seg")


class SegmentFiles(ShipTarget):
    """The segments in one place. One shipper writes to it; any number of restores read it.

    The methods of the first part do the I/O; they raise what the system or the store raises.
    """

    # ---- the I/O

    def names(self) -> list[str]:
        """List what is there. Raise FileNotFoundError if the place is gone."""
        raise NotImplementedError

    def read(self, name: str, most: int) -> bytes:
        """Return the first bytes. Raise FileNotFoundError if it is missing."""
        raise NotImplementedError

    def read_many(self, names: list[str], most: int) -> Iterator[bytes | Exception]:
        """Return the first bytes of each, in order, or what reading it raised."""
        for name in names:
            try:
                yield self.read(name, most)
            except Exception as e:
                yield e

    def exists(self, name: str) -> bool:
        raise NotImplementedError

    def create(self, name: str, data: bytes) -> bool:
        """Write it under a new name, all of it or nothing; durable on return. Return False if the name is taken."""
        raise NotImplementedError

    def replace(self, name: str, data: bytes) -> None:
        """Write it under a name that may be taken, all of it or nothing. A power cut may bring back the one before."""
        raise NotImplementedError

    def remove(self, names: list[str]) -> None:
        """Delete these; some may be missing."""
        raise NotImplementedError

    def written_at(self, name: str) -> float | None:
        """Return when it was written, by the clock of whoever keeps it; None: it is missing."""
        raise NotImplementedError

    def stored_bytes(self, numbers: Iterable[int]) -> int:
        """Add up the bytes of segments."""
        raise NotImplementedError

    def make(self) -> None:
        """Make the place if that is missing and can be made."""

    # ---- whose it is

    def prepare(self, queue: Path) -> None:
        """Make the place if it is missing, and see that it may become this queue's replica.

        Raises:
            InvalidArgument: it is the queue, lies in it, has it in it, or holds something else; nothing was changed.
            TargetUnavailable: it can't be made or looked at.
        """
        self.require_apart(queue)
        with self.reached("it can't be made"):
            self.make()
            entries = self.names()
        if "queue.db" in entries:
            raise InvalidArgument(f"{self} is a queue; nothing was changed", hint=hints.OTHER_DIRECTORY)
        if IDENTITY not in entries and set(entries) - {PROBE}:
            raise InvalidArgument(f"{self} has other files in it; nothing was changed", hint=hints.EMPTY_TARGET)

    def identity(self) -> dict[str, Any] | None:
        """Whose replica it is; None: nobody's.

        Raises:
            TargetUnavailable: it can't be read.
            SchemaMismatch: it is of a newer strictq.
        """
        raw = self._small(IDENTITY)
        if raw is None:
            return None
        try:
            found = json.loads(raw)
            if isinstance(found, dict) and isinstance(found.get("queue_id"), str) and isinstance(found.get("format", 1), int):
                if found.get("format", 1) > TARGET_FORMAT:
                    raise SchemaMismatch(f"{self} was made by a newer strictq; nothing was changed", shard=-1)
                return found
        except (ValueError, RecursionError):
            pass
        raise TargetUnavailable(f"{self}: {IDENTITY} is damaged", str(self), transient=False)

    def _take(self, identity: dict[str, Any]) -> None:
        self._publish(IDENTITY, json.dumps(identity).encode())

    def is_write_once(self) -> bool:
        """Try whether a name that is taken is refused, as it must be where two writers meet.

        Raises:
            TargetUnavailable: it can't be written to.
        """
        with self.reached("it can't be written"):
            self.replace(PROBE, b"first")
            refused = not self.create(PROBE, b"second")
            self.remove([PROBE])
        return refused

    # ---- the chain

    def reach(self) -> None:
        self.numbers()

    def head(self) -> ChainHead | None:
        numbers = self.numbers()
        if not numbers:
            return None
        last = numbers[-1]
        try:
            data = self.get(last)
            header = decode_header(data, last, self.key)
        except ReplicaGap:
            return ChainHead(last, "", None)
        try:
            complete = header if not header.more else self._before(header)
        except ReplicaGap:
            complete = None
        return ChainHead(last, hash_of(data), complete)

    def _before(self, header: SegmentHeader) -> SegmentHeader | None:
        """The last segment of the newest cut before an incomplete one."""
        while header.more:
            if not header.first:
                return None
            n = header.first - 1
            header = decode_header(self.get(n), n, self.key)
        return header

    def bases(self, newest: SegmentHeader) -> Iterator[SegmentHeader]:
        """The first segment of each cut that has all of the queue, the newest first, as far as they are there."""
        n = newest.base
        floor = self.floor()
        while n >= floor and n >= 0:
            try:
                header = self.header(n)
            except (ReplicaGap, SchemaMismatch):
                return
            yield header
            if header.older_base >= n:
                return
            n = header.older_base

    def retain(self, limit: int) -> int:
        head = self.head()
        if head is None or head.complete is None:
            return 0
        for base in self.bases(head.complete):
            if base.wall <= limit:
                return self.delete_before(base.n)
        return 0

    # ---- segments

    def numbers(self) -> list[int]:
        """The numbers of the segments that are there, ascending."""
        with self.reached("it can't be read"):
            return sorted(_numbers(self.names()))

    def get(self, n: int) -> bytes:
        """A segment.

        Raises:
            ReplicaGap: it is missing, or is no file that a shipper wrote.
            TargetUnavailable: it can't be read.
        """
        return self._whole(n, self._segment(n, SEGMENT_BYTES_MAX + 1))

    def header(self, n: int) -> SegmentHeader:
        """What a segment says it is; its hash is not verified.

        Raises:
            ReplicaGap, SchemaMismatch, TargetUnavailable: it can't be read.
        """
        return self._header(n, self._segment(n, HEAD_BYTES))

    def headers(self, numbers: list[int]) -> Iterator[tuple[int, SegmentHeader | ReplicaGap]]:
        """What each of these segments says it is, or why that can't be said; an object store is asked for many at a time.

        Raises:
            SchemaMismatch, TargetUnavailable: they can't be read.
        """
        for n, found in self._many(numbers, HEAD_BYTES, HEADERS_AT_ONCE):
            try:
                yield n, self._header(n, self._content(n, found))
            except ReplicaGap as e:
                yield n, e

    def segments(self, numbers: list[int]) -> Iterator[tuple[int, bytes]]:
        """These segments, in order.

        Raises:
            ReplicaGap, TargetUnavailable: as `get`.
        """
        for n, found in self._many(numbers, SEGMENT_BYTES_MAX + 1, SEGMENTS_AT_ONCE):
            yield n, self._whole(n, self._content(n, found))

    def _many(self, numbers: list[int], most: int, at_once: int) -> Iterator[tuple[int, bytes | Exception]]:
        for start in range(0, len(numbers), at_once):
            batch = numbers[start : start + at_once]
            yield from zip(batch, self.read_many([name_of(n) for n in batch], most), strict=True)

    def _header(self, n: int, start: bytes) -> SegmentHeader:
        needed = START_BYTES + header_bytes(start, n)
        if needed > len(start) == HEAD_BYTES:
            start = self._segment(n, needed)
        return header_of(start, n)

    @staticmethod
    def _whole(n: int, data: bytes) -> bytes:
        if len(data) > SEGMENT_BYTES_MAX:
            raise ReplicaGap(f"segment {n} is damaged: it is too large", n)
        return data

    def _segment(self, n: int, most: int) -> bytes:
        (found,) = self.read_many([name_of(n)], most)
        return self._content(n, found)

    def _content(self, n: int, found: bytes | Exception) -> bytes:
        """What was read of a segment, or our error for what reading it raised."""
        if isinstance(found, bytes):
            return found
        if isinstance(found, FileNotFoundError):
            raise ReplicaGap(f"segment {n} is missing", n) from found
        if isinstance(found, StoreError):
            raise ReplicaGap(f"segment {n}: {found}", n) from found
        with self.reached("a segment can't be read"):
            raise found

    def put(self, n: int, data: bytes) -> None:
        """Write a segment; durable on return. Writing the same one twice is the same as once.

        Raises:
            Diverged: another writer wrote one with this number.
            TargetUnavailable: it can't be written, or the one before is gone.
        """
        with self.reached("it can't be read"):
            follows = not n or self.exists(name_of(n - 1))
        if not follows:
            if self.identity() is None:
                raise self._emptied()
            raise ReplicaGap(f"segment {n - 1} is missing", n - 1)
        self._publish(name_of(n), data)

    def _publish(self, name: str, data: bytes) -> None:
        with self.reached("it can't be written"):
            taken = (not self.write_once and self.exists(name)) or not self.create(name, data)
            if taken and self.read(name, len(data) + 1) != data:
                raise Diverged(f"another process wrote {name} to {self}: two copies of the queue ship to the same place")

    # ---- retention, and restores that run

    def delete_before(self, n: int) -> int:
        """Delete the segments before `n`, but none that a restore reads. Returns how many were deleted.

        First the floor is raised, then the markers of restores are looked at. A restore does it the other way round: its marker
        first, then the floor. So either its marker is seen here, or it sees the floor.
        """
        with self.reached("old segments can't be deleted"):
            self.replace(FLOOR, str(n).encode())
            names = self.names()
            upto = min([n, *self._restores(names)])
            old = [name_of(number) for number in sorted(_numbers(names)) if number < upto]
            for start in range(0, len(old), REMOVED_AT_ONCE):
                self.remove(old[start : start + REMOVED_AT_ONCE])
            self.tidy(names)
        return len(old)

    def tidy(self, names: list[str]) -> None:
        """Remove what interrupted writes left."""

    def floor(self) -> int:
        """Restores begin at no segment before this one."""
        raw = self._small(FLOOR)
        return int(raw) if raw is not None and raw.isdigit() else 0

    def _restores(self, names: list[str]) -> Iterator[int]:
        """The first segment that each running restore reads. One that ended without removing its marker counts no more."""
        now = self.written_at(FLOOR) or 0.0  # by the clock of whoever keeps the files
        for name in names:
            if not name.startswith(MARKER):
                continue
            written = self.written_at(name)
            if written is None:
                continue
            if now - written > MARKER_SECONDS:
                self.remove([name])
                continue
            raw = self._small(name)
            yield int(raw) if raw is not None and raw.isdigit() else 0

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """While the block lasts, no segment is deleted that the restore in it reads, where the place can be written to."""
        marker = Reading(self, f"{MARKER}{os.urandom(8).hex()}.json")
        try:
            yield marker
        finally:
            marker.end()

    # ---- helpers

    def _small(self, name: str) -> bytes | None:
        """A small file; None: it is missing."""
        with self.reached("it can't be read"):
            try:
                return self.read(name, SMALL_BYTES)
            except FileNotFoundError:
                self.names()  # is the place itself there?
                return None
            except StoreError as e:
                raise TargetUnavailable(str(e), str(self), transient=False) from e


class Reading:
    """The marker of a running restore."""

    def __init__(self, target: SegmentFiles, name: str) -> None:
        self._target = target
        self._name = name
        self._n = 0
        self._written = self._write()

    def _write(self) -> bool:
        try:
            with self._target.reached("it can't be written"):
                self._target.replace(self._name, str(self._n).encode())
        except StrictqError:
            return False  # a medium that can't be written to: nobody deletes there, either
        return True

    def begin(self, n: int) -> None:
        """No segment before `n` is needed."""
        self._n = n
        self.go_on()

    def go_on(self) -> None:
        """Show that the restore runs."""
        if self._written:
            self._write()

    def end(self) -> None:
        if self._written:
            with suppress(StrictqError), self._target.reached("it can't be written"):
                self._target.remove([self._name])


def name_of(n: int) -> str:
    """The name of a segment."""
    return f"{n:016x}.seg"


def _numbers(names: Iterable[str]) -> Iterator[int]:
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            yield int(match[1], 16)
