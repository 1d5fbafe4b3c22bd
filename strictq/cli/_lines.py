"""Lines of a file, a pipe or a terminal, in pieces. Available lines are returned at once, even if a piece is not full."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from strictq.cli._command import USAGE, Failure

READ_BYTES: Final = 1 << 20
PIECE_BYTES_MAX: Final = 16 << 20
"""A piece ends at this size, even if it has few lines."""
GZIP_MAGIC: Final = b"\x1f\x8b"
GZIP_WINDOW: Final = 31


class TooLong:
    """Stands for a line that was too long to keep."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


Line = bytes | TooLong


class Lines:
    """The lines of a source, without their newlines. A gzip file is decompressed.

    Attributes:
        size: bytes of the source, if known; position: bytes read so far.
        is_packed: stdin has gzip data, which is only decompressed from a file.
    """

    def __init__(
        self, path: Path | None, longest: int, waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """Open a source.

        Args:
            path: a file; None: stdin.
            longest: bytes; a longer line is not kept in memory.
            waiting: a context manager entered while opening and during each read.
        """
        self._path = path
        self._longest = longest
        self._waiting = waiting
        self._descriptor: int | None = None
        self._file: io.BufferedIOBase | None = None
        self._unpacked_bytes = 0
        self.position = 0
        self.is_packed = False
        self.size: int | None = None
        self._open()

    @property
    def name(self) -> str:
        return "stdin" if self._path is None else str(self._path)

    @property
    def is_terminal(self) -> bool:
        return self._descriptor is not None and os.isatty(self._descriptor)

    def _open(self) -> None:
        if self._path is None:
            if sys.stdin is None:
                raise Failure("there is no stdin to read", USAGE)
            try:
                self._descriptor = sys.stdin.fileno()
            except (io.UnsupportedOperation, AttributeError):
                self._file = sys.stdin.buffer  # type: ignore[assignment]
                return
        else:
            try:
                with self._waiting():  # opening a FIFO waits for its writer
                    self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as e:
                raise Failure(f"{self._path}: {e.strerror}", USAGE) from None
        found = os.fstat(self._descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise Failure(f"{self.name} is a directory, not a file", USAGE)
        if stat.S_ISREG(found.st_mode):
            self.size = found.st_size

    def close(self) -> None:
        """Close the file; stdin stays open."""
        if self._path is not None and self._descriptor is not None:
            os.close(self._descriptor)

    def pieces(self, count: int) -> Iterator[list[Line]]:
        """Yield lists of at most `count` lines; shorter ones if the source has no more lines at the moment.

        Raises:
            Damaged: the source is truncated or damaged; every complete line before was yielded.
        """
        piece: list[Line] = []
        began = self._unpacked_bytes
        try:
            for lines in self._lines():
                piece += lines
                full = len(piece) // count * count
                for start in range(0, full, count):
                    yield piece[start : start + count]
                if full:
                    piece = piece[full:]
                    began = self._unpacked_bytes
                if piece and (self._unpacked_bytes - began >= PIECE_BYTES_MAX or not self._more_is_there()):
                    yield piece
                    piece = []
                    began = self._unpacked_bytes
        except Damaged:
            if piece:
                yield piece
            raise
        if piece:
            yield piece

    def _lines(self) -> Iterator[list[Line]]:
        """Yield the complete lines of each read; at the end, the line without a newline."""
        begun: list[bytes] = []
        size = 0
        for chunk in self._unpacked():
            self._unpacked_bytes += len(chunk)
            head, *rest = chunk.split(b"\n")
            size += len(head)
            # One byte more than allowed is kept, because a carriage return at the end may be removed later.
            if size <= self._longest + 1:
                begun.append(head)
            else:
                begun = []
            if not rest:
                yield []
                continue
            line: Line = b"".join(begun) if size <= self._longest + 1 else TooLong(size)
            begun = [rest.pop()]
            size = len(begun[0])
            yield [line, *rest]
        if size:
            yield [b"".join(begun) if size <= self._longest + 1 else TooLong(size)]

    def _unpacked(self) -> Iterator[bytes]:
        chunks = self._chunks()
        first = next(chunks, b"")
        self.is_packed = self._path is None and first.startswith(GZIP_MAGIC)
        if self._path is None or not first.startswith(GZIP_MAGIC):
            yield first
            yield from chunks
            return
        unpack = zlib.decompressobj(GZIP_WINDOW)
        chunk: bytes | None = first
        while chunk is not None:
            try:
                while chunk:
                    yield unpack.decompress(chunk, READ_BYTES)
                    chunk = unpack.unconsumed_tail
                    if unpack.eof and (chunk := unpack.unused_data):
                        unpack = zlib.decompressobj(GZIP_WINDOW)  # a file may have several members
            except zlib.error as e:
                raise Damaged(f"the gzip data is damaged: {e}") from None
            chunk = next(chunks, None)
        if not unpack.eof:
            raise Damaged("the gzip data ends too early")

    def _chunks(self) -> Iterator[bytes]:
        while True:
            with self._waiting():
                chunk = self._read()
            if not chunk:
                return
            self.position += len(chunk)
            yield chunk

    def _read(self) -> bytes:
        if self._descriptor is None:
            assert self._file is not None
            return self._file.read1(READ_BYTES)
        try:
            return os.read(self._descriptor, READ_BYTES)
        except OSError as e:
            raise Damaged(f"cannot read further: {e.strerror}") from None

    def _more_is_there(self) -> bool:
        """Return whether a read would return at once."""
        if self.size is not None or self._descriptor is None:
            return True
        return bool(select.select([self._descriptor], [], [], 0)[0])


class Damaged(Exception):
    """The source is truncated or damaged. The lines that were read are valid."""
