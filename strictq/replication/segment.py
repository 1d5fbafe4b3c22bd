"""One segment: pages of a queue's files, and what they mean. The same bytes for every target.

    magic, 8 bytes | sizes of what follows, as stored and as it is decompressed | header, JSON | pages | BLAKE2b of all of it

The BLAKE2b may be keyed with a secret that the target does not have. Header and pages are compressed. `prev` of a header is the
hash of the segment before, so a chain of segments proves that none of them is missing or another one. A cut is one segment, or
several; only the last of them has `more` false.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, Final

import attrs

from .._errors import ReplicaGap, SchemaMismatch
from .._store.api import PAGE_BYTES, Image

MAGIC: Final = b"strictq\x01"
FORMAT: Final = 1
HASH_BYTES: Final = 32
ANY: Final = -1
"""In the place of the number of a segment that may have any."""
PAGES_MAX: Final = 4096
"""In a segment: 16 MiB."""
HEADER_BYTES_MAX: Final = 1 << 20
BODY_BYTES_MAX: Final = PAGES_MAX * (PAGE_BYTES + 4)
LEVEL: Final = 1
"""Of compression: shipping must keep up with writers."""
_SIZES: Final = struct.Struct(">QQQQ")
START_BYTES: Final = len(MAGIC) + _SIZES.size
SEGMENT_BYTES_MAX: Final = START_BYTES + 2 * (HEADER_BYTES_MAX + BODY_BYTES_MAX)
"""No segment is larger, so nothing larger is read."""


@attrs.frozen
class PagesOf:
    """What a segment has of one file.

    Attributes:
        shard: its number; -1 for queue.db.
        size: of the file behind the cut, pages.
        count: of the pages that the segment has.
    """

    shard: int
    size: int
    count: int


@attrs.frozen
class SegmentHeader:
    """What a segment is.

    Attributes:
        n: its number in the chain.
        first: the number of the first segment of its cut.
        more: the cut goes on in the next segment.
        base: the number of the first segment of the newest cut that has all of the queue: a restore begins there.
        older_base: of the one before; -1: there is none.
        base_bytes, chain_bytes: stored bytes of that cut, and of the segments since.
        prev: the hash of the segment before, hexadecimal; "" at the begin of a chain.
        x, wall: the cut's point in queue time and by the wall clock, microseconds.
        shards: how many the queue has.
        positions: of each shard, for the shipper that goes on; only in the last segment of a cut.
    """

    queue_id: str
    history_id: str
    term: int
    n: int
    first: int
    more: bool
    base: int
    older_base: int
    base_bytes: int
    chain_bytes: int
    prev: str
    x: int
    wall: int
    boot_id: str
    shards: int
    parts: tuple[PagesOf, ...]
    positions: dict[int, tuple[str, int, str, int]] = attrs.Factory(dict)

    @property
    def is_base(self) -> bool:
        """Does its cut have all of the queue?"""
        return self.base == self.first

    @property
    def begins_base(self) -> bool:
        """Is it the first segment of such a cut? It needs nothing before it."""
        return self.base == self.first == self.n


_KINDS: Final = {
    **dict.fromkeys(("queue_id", "history_id", "prev", "boot_id"), str),
    **dict.fromkeys(("term", "n", "first", "base", "older_base", "base_bytes", "chain_bytes", "x", "wall", "shards"), int),
    "more": bool,
}
"""Types of a header's fields: what comes from another host may be anything."""


def encode(header: SegmentHeader, pages: list[Image], key: bytes = b"") -> bytes:
    """The bytes of a segment. Its hash is the last HASH_BYTES of them."""
    assert len(pages) == sum(part.count for part in header.parts)
    assert len(pages) <= PAGES_MAX
    head = json.dumps(header_values(header), separators=(",", ":")).encode()
    numbers = struct.pack(f">{len(pages)}I", *(number for number, _ in pages))
    body = b"".join((numbers, *(image for _, image in pages)))
    packed = zlib.compress(head, LEVEL), zlib.compress(body, LEVEL)
    data = b"".join((MAGIC, _SIZES.pack(len(packed[0]), len(head), len(packed[1]), len(body)), *packed))
    return data + digest(data, key)


def header_values(header: SegmentHeader) -> dict[str, Any]:
    """A header as values that JSON can hold."""
    values = attrs.asdict(header, recurse=False)
    values["format"] = FORMAT
    values["parts"] = [attrs.astuple(part) for part in header.parts]
    values["positions"] = {str(shard): position for shard, position in header.positions.items()}
    return values


def header_from(values: dict[str, Any], number: int) -> SegmentHeader:
    """The header that `header_values` gave.

    Raises:
        ReplicaGap: it is none.
        SchemaMismatch: it is of a newer strictq.
    """
    try:
        values = dict(values)
        if values.pop("format") != FORMAT:
            raise SchemaMismatch(f"segment {number} is of a newer format", shard=-1)
        values["parts"] = tuple(PagesOf(*map(int, part)) for part in values["parts"])
        values["positions"] = {
            int(shard): (str(header), int(frames), str(last), int(time))
            for shard, (header, frames, last, time) in values["positions"].items()
        }
        header = SegmentHeader(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise _damaged(number, "its header makes no sense") from e
    for name, kind in _KINDS.items():
        if type(getattr(header, name)) is not kind:
            raise _damaged(number, f"its header has no sound {name}")
    return header


def digest(data: bytes, key: bytes = b"") -> bytes:
    return blake2b(data, digest_size=HASH_BYTES, key=key).digest()


def hash_of(data: bytes) -> str:
    """The hash of a segment, as `prev` of the next one has it."""
    return data[-HASH_BYTES:].hex()


def decode_header(data: bytes, number: int, key: bytes = b"") -> SegmentHeader:
    """What a segment is, once all of it is verified.

    Raises:
        ReplicaGap: it is damaged.
        SchemaMismatch: it is of a newer strictq.
    """
    _verified(data, number, key)
    return header_of(data, number)


def header_bytes(start: bytes, number: int) -> int:
    """How many bytes the stored header has, by the first START_BYTES of a segment.

    Raises:
        ReplicaGap: it is damaged.
        SchemaMismatch: it is of a newer strictq.
    """
    stored, size, _, _ = _sizes(start, number)
    if stored > HEADER_BYTES_MAX or size > HEADER_BYTES_MAX:
        raise _damaged(number, "its sizes are wrong")
    return stored


def header_of(data: bytes, number: int) -> SegmentHeader:
    """The header at the begin of a segment; the hash is not verified.

    Raises:
        ReplicaGap: it is damaged.
        SchemaMismatch: it is of a newer strictq.
    """
    stored, size, _, _ = _sizes(data, number)
    try:
        head = _unpacked(data[START_BYTES : START_BYTES + stored], size, HEADER_BYTES_MAX)
        values: dict[str, Any] = json.loads(head)
    except (ValueError, RecursionError, zlib.error) as e:
        raise _damaged(number, "its header makes no sense") from e
    header = header_from(values, number)
    if number not in (ANY, header.n) or sum(part.count for part in header.parts) > PAGES_MAX:
        raise _damaged(number, "its header is another segment's")
    return header


def decode(data: bytes, number: int, key: bytes = b"") -> tuple[SegmentHeader, list[tuple[PagesOf, list[Image]]]]:
    """A segment and its pages, by file.

    Raises:
        ReplicaGap: it is damaged.
        SchemaMismatch: it is of a newer strictq.
    """
    stored_head, _, stored_body, size = _verified(data, number, key)
    header = header_of(data, number)
    at = START_BYTES + stored_head
    try:
        body = _unpacked(data[at : at + stored_body], size, BODY_BYTES_MAX)
    except (ValueError, zlib.error) as e:
        raise _damaged(number, "its pages can't be decompressed") from e
    count = sum(part.count for part in header.parts)
    if len(body) != count * (PAGE_BYTES + 4):
        raise _damaged(number, "it has not the pages that its header says")
    numbers = struct.unpack_from(f">{count}I", body)
    images = _images(body, count)
    pages = [(number, next(images)) for number in numbers]
    out: list[tuple[PagesOf, list[Image]]] = []
    at = 0
    for part in header.parts:
        own = pages[at : at + part.count]
        if any(not 0 < page <= part.size for page, _ in own):
            raise _damaged(number, "it has pages behind the end of their file")
        out.append((part, own))
        at += part.count
    return header, out


def _images(body: bytes, count: int) -> Iterator[bytes]:
    for at in range(4 * count, len(body), PAGE_BYTES):
        yield body[at : at + PAGE_BYTES]


def segment_bytes(start: bytes, number: int) -> int:
    """How many bytes a segment has, by its first START_BYTES.

    Raises:
        ReplicaGap: it is damaged.
        SchemaMismatch: it is of a newer strictq.
    """
    stored_head, _, stored_body, _ = _sizes(start, number)
    size = START_BYTES + stored_head + stored_body + HASH_BYTES
    if size > SEGMENT_BYTES_MAX:
        raise _damaged(number, "its sizes are wrong")
    return size


def _verified(data: bytes, number: int, key: bytes) -> tuple[int, int, int, int]:
    """The sizes that a segment has in front.

    Raises:
        ReplicaGap: it is damaged: too short, too long, or its hash is wrong.
    """
    stored_head, head, stored_body, body = _sizes(data, number)
    if START_BYTES + stored_head + stored_body + HASH_BYTES != len(data) or head > HEADER_BYTES_MAX or body > BODY_BYTES_MAX:
        raise _damaged(number, "its sizes are wrong")
    if not compare_digest(digest(data[:-HASH_BYTES], key), data[-HASH_BYTES:]):
        raise _damaged(number, "its hash is wrong")
    return stored_head, head, stored_body, body


def _sizes(data: bytes, number: int) -> tuple[int, int, int, int]:
    if data[: len(MAGIC)] != MAGIC or len(data) < START_BYTES:
        if data[: len(MAGIC) - 1] == MAGIC[:-1] and data[len(MAGIC) - 1 : len(MAGIC)] > MAGIC[-1:]:
            raise SchemaMismatch(f"segment {number} is of a newer format", shard=-1)
        raise _damaged(number, "it is not a segment")
    sizes: tuple[int, int, int, int] = _SIZES.unpack_from(data, len(MAGIC))
    return sizes


def _unpacked(stored: bytes, size: int, most: int) -> bytes:
    """Decompress no more than what was announced."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(stored, min(size, most) + 1)
    if len(data) != size or not unpacker.eof:
        raise ValueError("the size is another one")
    return data


def _damaged(number: int, why: str) -> ReplicaGap:
    return ReplicaGap(f"{'a segment' if number == ANY else f'segment {number}'} is damaged: {why}", number)
