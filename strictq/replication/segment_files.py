"""The common part of targets that keep segments as files: directories and object stores.

replica.json         the identity: the queue and history
0000000000000000.seg the segments; each name is written once
floor                the first segment at which a restore may begin
restore-….json       the marker of a running restore: its first segment
probe                left by an interrupted test of write-once names
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from .._values import hints
from .._values.errors import (
    Diverged,
    InvalidArgument,
    ReplicaGap,
    SchemaMismatch,
    StoreError,
    StrictqError,
    TargetUnavailable,
)
from .segment import SEGMENT_BYTES_MAX, START_BYTES, SegmentHeader, decode_header, hash_of, header_bytes, header_of
from .target import TARGET_FORMAT, ChainHead, ShipTarget

IDENTITY: Final = "replica.json"
FLOOR: Final = "floor"
MARKER: Final = "restore-"
PROBE: Final = "probe"
MARKER_SECONDS: Final = 600.0
"""A restore marker that was not renewed for this time belongs to a restore that ended without removing it."""
SMALL_BYTES: Final = 1 << 16
HEAD_BYTES: Final = 1 << 12
"""Large enough for most headers, so that an object store is read once."""
REMOVED_AT_ONCE: Final = 500
HEADERS_AT_ONCE: Final = 256
SEGMENTS_AT_ONCE: Final = 8
"""Each has up to 16 MiB."""
_NAME: Final = re.compile(r"([0-9a-f]{16})\.seg")


class SegmentFiles(ShipTarget):
    """The segments at one target. One shipper writes to it; any number of restores read it.

    The methods of the first part do the I/O, and raise the errors of the system or the store.
    """

    # ---- the I/O

    def names(self) -> list[str]:
        """List the names. Raise FileNotFoundError if the target is gone."""
        raise NotImplementedError

    def read(self, name: str, most: int) -> bytes:
        """Return the first bytes of a file. Raise FileNotFoundError if it is missing."""
        raise NotImplementedError

    def read_many(self, names: list[str], most: int) -> Iterator[bytes | Exception]:
        for name in names:
            try:
                yield self.read(name, most)
            except Exception as e:
                yield e

    def exists(self, name: str) -> bool:
        raise NotImplementedError

    def create(self, name: str, data: bytes) -> bool:
        """Write a new file atomically; durable on return. Return False if the name is taken."""
        raise NotImplementedError

    def replace(self, name: str, data: bytes) -> None:
        """Write or replace a file atomically. A power cut may restore the previous content."""
        raise NotImplementedError

    def remove(self, names: list[str]) -> None:
        """Delete files, of which some may be missing."""
        raise NotImplementedError

    def written_at(self, name: str) -> float | None:
        """Return the time of the last write, by the storage's clock; None: the file is missing."""
        raise NotImplementedError

    def stored_bytes(self, numbers: Iterable[int]) -> int:
        raise NotImplementedError

    def make(self) -> None:
        """Create the target's directory, if it is missing and can be created."""

    # ---- identity

    def prepare(self, queue: Path) -> None:
        self.require_apart(queue)
        with self.reached("it can't be made"):
            self.make()
            entries = self.names()
        if "queue.db" in entries:
            raise InvalidArgument(f"{self} is a queue; nothing was changed", hint=hints.OTHER_DIRECTORY)
        if IDENTITY not in entries and set(entries) - {PROBE}:
            raise InvalidArgument(f"{self} contains other files; nothing was changed", hint=hints.EMPTY_TARGET)

    def identity(self) -> dict[str, Any] | None:
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

    def is_claimed(self) -> bool:
        try:
            return self.identity() is not None
        except TargetUnavailable as e:
            if e.transient:
                raise
            return False

    def claim_again(self, identity: dict[str, Any]) -> None:
        """Replace an identity that can't be read.

        Raises:
            TargetUnavailable: it can't be written.
        """
        with self.reached("it can't be written"):
            self.remove([IDENTITY])
        self.claim(identity)

    def _take(self, identity: dict[str, Any]) -> None:
        self._publish(IDENTITY, json.dumps(identity).encode())

    def is_write_once(self) -> bool:
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
            return ChainHead(last, "", None, last)
        try:
            complete = header if not header.more else self._before(header)
        except ReplicaGap as e:
            return ChainHead(last, hash_of(data), None, e.segment)
        return ChainHead(last, hash_of(data), complete, None if complete is None else _hole(numbers, complete.base, last))

    def _before(self, header: SegmentHeader) -> SegmentHeader | None:
        """Return the last segment of the newest cut before an incomplete one."""
        while header.more:
            if not header.first:
                return None
            n = header.first - 1
            header = decode_header(self.get(n), n, self.key)
        return header

    def bases(self, newest: SegmentHeader) -> Iterator[SegmentHeader]:
        """Yield the first segment of each existing cut with the whole queue, the newest first."""
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
        """Return the numbers of the existing segments, ascending."""
        with self.reached("it can't be read"):
            found = sorted(_numbers(self.names()))
            if found and len(found) <= found[-1] - found[0]:
                # A listing may miss a name that was created meanwhile, and show a later one. A second listing has both.
                found = sorted(n for n in _numbers(self.names()) if n <= found[-1])
        return found

    def get(self, n: int) -> bytes:
        """Return a segment.

        Raises:
            ReplicaGap: it is missing, or a shipper did not write this file.
            TargetUnavailable: it can't be read.
        """
        return self._whole(n, self._segment(n, SEGMENT_BYTES_MAX + 1))

    def header(self, n: int) -> SegmentHeader:
        """Return the header of a segment. Its hash is not verified.

        Raises:
            ReplicaGap, SchemaMismatch, TargetUnavailable: it can't be read.
        """
        return self._header(n, self._segment(n, HEAD_BYTES))

    def headers(self, numbers: list[int]) -> Iterator[tuple[int, SegmentHeader | ReplicaGap]]:
        """Yield the header of each segment, or its error. An object store is asked for many at a time.

        Raises:
            SchemaMismatch, TargetUnavailable: they can't be read.
        """
        for n, found in self._many(numbers, HEAD_BYTES, HEADERS_AT_ONCE):
            try:
                yield n, self._header(n, self._content(n, found))
            except ReplicaGap as e:
                yield n, e

    def segments(self, numbers: list[int]) -> Iterator[tuple[int, bytes]]:
        """Yield segments in order.

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
        """Return the content of a segment, or raise the translated error of reading it."""
        if isinstance(found, bytes):
            return found
        if isinstance(found, FileNotFoundError):
            raise ReplicaGap(f"segment {n} is missing", n) from found
        if isinstance(found, StoreError):
            raise ReplicaGap(f"segment {n}: {found}", n) from found
        with self.reached("a segment can't be read"):
            raise found

    def put(self, n: int, data: bytes) -> None:
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

    # ---- retention, and running restores

    def delete_before(self, n: int) -> int:
        """Delete the segments before `n`, except those that a restore reads. Return the number deleted.

        First raises the floor, then reads the markers of restores. A restore does the reverse: it writes its marker
        first, then reads the floor. So either its marker is seen here, or it sees the floor.
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
        """Remove the rest of interrupted writes."""

    def floor(self) -> int:
        """Return the first segment at which a restore may begin."""
        raw = self._small(FLOOR)
        return int(raw) if raw is not None and raw.isdigit() else 0

    def _restores(self, names: list[str]) -> Iterator[int]:
        """Yield the first segment that each running restore reads. Outdated markers are removed."""
        now = self.written_at(FLOOR) or 0.0  # by the storage's clock
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
        """Protect the segments that the block's restore reads from deletion, if the target can be written to."""
        marker = Reading(self, f"{MARKER}{os.urandom(8).hex()}.json")
        try:
            yield marker
        finally:
            marker.end()

    # ---- helpers

    def _small(self, name: str) -> bytes | None:
        """Return a small file; None: it is missing."""
        with self.reached("it can't be read"):
            try:
                return self.read(name, SMALL_BYTES)
            except FileNotFoundError:
                self.names()  # raises if the target itself is gone
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
            return False  # a read-only medium, from which no process deletes
        return True

    def begin(self, n: int) -> None:
        """Release the segments before `n`."""
        self._n = n
        self.go_on()

    def go_on(self) -> None:
        """Renew the marker."""
        if self._written:
            self._write()

    def end(self) -> None:
        if self._written:
            with suppress(StrictqError), self._target.reached("it can't be written"):
                self._target.remove([self._name])


def name_of(n: int) -> str:
    return f"{n:016x}.seg"


def _hole(numbers: list[int], first: int, last: int) -> int | None:
    """Return the first number that is missing in this range; None: there are all."""
    at = bisect_left(numbers, first)
    if numbers[at : at + 1] == [first] and numbers[at + last - first : at + last - first + 1] == [last]:
        return None
    known = set(numbers)
    return next(n for n in range(first, last + 1) if n not in known)


def _numbers(names: Iterable[str]) -> Iterator[int]:
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            yield int(match[1], 16)
