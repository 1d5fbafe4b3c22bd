"""What capturing gives and takes: light, for those that look whether there is anything to ship."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ..disk.wal_file import FRAME_HEADER_BYTES

PAGE_BYTES: Final = 4096
FRAME_BYTES: Final = FRAME_HEADER_BYTES + PAGE_BYTES
CATALOG_FILE: Final = -1
"""queue.db, where shards are numbered."""
Image = tuple[int, bytes]
"""A page: its number from 1, and its content."""


class WalMovedOn(Exception):
    """The WAL can't be read on from where the capture stands: the shard has to be shipped whole."""


class WentBack(Exception):
    """The shard's newest write is older than what was captured of it before: it is an older copy."""


class Position(NamedTuple):
    """How far a shard was captured.

    A frame's header holds the running checksum of all frames before it: where it is equal, so is all of the history of that WAL.

    Attributes:
        header: of the WAL, hexadecimal; "": there was none.
        frames: captured of it.
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
        size: of the file, pages.
        pages: how many `images` gives.
    """

    shard: int
    size: int
    pages: int
    images: Iterator[Image]


class QueueCut(NamedTuple):
    """A state of the queue, as what changed since the one before.

    Attributes:
        x: its point in queue time.
        wall: the same by the wall clock, microseconds since 1970.
        whole: it has all of every file, and needs no cut before it.
        positions: how far each shard is captured.
    """

    x: int
    wall: int
    whole: bool
    parts: list[ChangedFile]
    positions: dict[int, Position]
