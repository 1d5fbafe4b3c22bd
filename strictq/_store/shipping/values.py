"""The values that capturing takes and returns. Cheap to import, for code that only checks whether there is anything to ship."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ..disk.wal_file import FRAME_HEADER_BYTES

PAGE_BYTES: Final = 4096
FRAME_BYTES: Final = FRAME_HEADER_BYTES + PAGE_BYTES
CATALOG_FILE: Final = -1
"""queue.db, in place of a shard's number."""
Image = tuple[int, bytes]
"""A page: its number from 1, and its content."""


class WalMovedOn(Exception):
    """The WAL can't be read further from the capture's position. The whole shard has to be shipped."""


class WentBack(Exception):
    """The shard's newest write is older than what was captured of it before: it is an older copy."""


class Position(NamedTuple):
    """The position up to which a shard was captured.

    A frame's header holds the running checksum of all frames before it. If it is equal, so is the whole history of that WAL.

    Attributes:
        header: of the WAL, hexadecimal; "": there was none.
        frames: how many of them were captured.
        last: the header of the last one, hexadecimal.
        time: queue time of the newest commit in it.
    """

    header: str
    frames: int
    last: str
    time: int


class ChangedFile(NamedTuple):
    """What changed in one file.

    Attributes:
        shard: its number; CATALOG_FILE for queue.db.
        size: of the file, in pages.
        pages: how many `images` yields.
    """

    shard: int
    size: int
    pages: int
    images: Iterator[Image]


class QueueCut(NamedTuple):
    """A state of the queue, as its changes since the previous cut.

    Attributes:
        x: its point in queue time.
        wall: the same by the wall clock, microseconds since 1970.
        whole: whether it contains every file completely, and needs no earlier cut.
        positions: the position up to which each shard is captured.
    """

    x: int
    wall: int
    whole: bool
    parts: list[ChangedFile]
    positions: dict[int, Position]
