"""One segment: pages of a queue's files, and a header. Its bytes are the same at every target.

    magic, 8 bytes | sizes of header and pages, stored and decompressed | header, JSON | pages | BLAKE2b of all before it

The BLAKE2b may be keyed with a secret that the target does not have. Header and pages are each compressed if their sizes differ.
For a replica in confirmed mode they are not: on a network of 1 Gbit/s, compressing takes longer than sending. `prev` of a header
is the hash of the previous segment, so a chain of segments proves that none of them is missing or replaced. A cut is one segment,
or several; only the last of them has `more` false.
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

from .._store.api import PAGE_BYTES, Image
from .._values.errors import ReplicaGap, SchemaMismatch

MAGIC: Final = b"strictq\x01"
FORMAT: Final = 1
HASH_BYTES: Final = 32
ANY: Final = -1
"""Stands for any segment number."""
PAGES_MAX: Final = 4096
"""Pages per segment: 16 MiB."""
HEADER_BYTES_MAX: Final = 1 << 20
BODY_BYTES_MAX: Final = PAGES_MAX * (PAGE_BYTES + 4)
LEVEL: Final = 1
"""The compression level. Shipping must keep up with writers."""
_SIZES: Final = struct.Struct(">QQQQ")
START_BYTES: Final = len(MAGIC) + _SIZES.size
SEGMENT_BYTES_MAX: Final = START_BYTES + 2 * (HEADER_BYTES_MAX + BODY_BYTES_MAX)
"""The size limit of a segment. Nothing larger is read."""


@attrs.frozen
class PagesOf:
    """The part of one file that a segment has.

    Attributes:
        shard: its number; -1 for queue.db.
        size: size of the file after the cut, pages.
        count: number of its pages in the segment.
    """

    shard: int
    size: int
    count: int


@attrs.frozen
class SegmentHeader:
    """The header of a segment.

    Attributes:
        n: its number in the chain.
        first: the number of the first segment of its cut.
        more: whether the cut continues in the next segment.
        base: the number of the first segment of the newest cut with the whole queue, where a restore begins.
        older_base: the same of the base before; -1: there is none.
        base_bytes, chain_bytes: stored bytes of the base, and of the segments since.
        prev: the hash of the previous segment, hexadecimal; "" at the start of a chain.
        x, wall: the cut's queue time and wall time, microseconds.
        shards: number of shards of the queue.
        positions: the position of each shard, with which a shipper continues; only in the last segment of a cut.
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
        """Whether its cut has the whole queue."""
        return self.base == self.first

    @property
    def begins_base(self) -> bool:
        """Whether it is the first segment of such a cut, which needs no earlier segment."""
        return self.base == self.first == self.n


_KINDS: Final = {
    **dict.fromkeys(("queue_id", "history_id", "prev", "boot_id"), str),
    **dict.fromkeys(("term", "n", "first", "base", "older_base", "base_bytes", "chain_bytes", "x", "wall", "shards"), int),
    "more": bool,
}
"""Types of a header's fields, checked because a header may come from another host."""


def encode(header: SegmentHeader, pages: list[Image], key: bytes = b"", *, compress: bool = True) -> bytes:
    """Return the bytes of a segment. The last HASH_BYTES of them are its hash.

    Args:
        compress: False: prefer speed to size.
    """
    assert len(pages) == sum(part.count for part in header.parts)
    assert len(pages) <= PAGES_MAX
    head = json.dumps(header_values(header), separators=(",", ":")).encode()
    numbers = struct.pack(f">{len(pages)}I", *(number for number, _ in pages))
    body = b"".join((numbers, *(image for _, image in pages)))
    packed = (_packed(head), _packed(body)) if compress else (head, body)
    data = b"".join((MAGIC, _SIZES.pack(len(packed[0]), len(head), len(packed[1]), len(body)), *packed))
    return data + digest(data, key)


def header_values(header: SegmentHeader) -> dict[str, Any]:
    values = attrs.asdict(header, recurse=False)
    values["format"] = FORMAT
    values["parts"] = [attrs.astuple(part) for part in header.parts]
    values["positions"] = {str(shard): position for shard, position in header.positions.items()}
    return values


def header_from(values: dict[str, Any], number: int) -> SegmentHeader:
    """Return the header from its JSON values.

    Raises:
        ReplicaGap: the values are not a header.
        SchemaMismatch: it was made by a newer strictq.
    """
    try:
        values = dict(values)
        if values.pop("format") != FORMAT:
            raise SchemaMismatch(f"segment {number} has a newer format", shard=-1)
        values["parts"] = tuple(PagesOf(*map(int, part)) for part in values["parts"])
        values["positions"] = {
            int(shard): (str(header), int(frames), str(last), int(time))
            for shard, (header, frames, last, time) in values["positions"].items()
        }
        header = SegmentHeader(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise _damaged(number, "its header is invalid") from e
    for name, kind in _KINDS.items():
        if type(getattr(header, name)) is not kind:
            raise _damaged(number, f"its header has an invalid {name}")
    return header


def digest(data: bytes, key: bytes = b"") -> bytes:
    return blake2b(data, digest_size=HASH_BYTES, key=key).digest()


def hash_of(data: bytes) -> str:
    """Return the hash of a segment, in the form of the next segment's `prev`."""
    return data[-HASH_BYTES:].hex()


def decode_header(data: bytes, number: int, key: bytes = b"") -> SegmentHeader:
    """Return the header of a segment after verifying the whole segment.

    Raises:
        ReplicaGap: it is damaged.
        SchemaMismatch: it was made by a newer strictq.
    """
    _verified(data, number, key)
    return header_of(data, number)


def header_bytes(start: bytes, number: int) -> int:
    """Return the size of the stored header, bytes, from the first START_BYTES of a segment.

    Raises:
        ReplicaGap: it is damaged.
        SchemaMismatch: it was made by a newer strictq.
    """
    stored, size, _, _ = _sizes(start, number)
    if stored > HEADER_BYTES_MAX or size > HEADER_BYTES_MAX:
        raise _damaged(number, "its sizes are wrong")
    return stored


def header_of(data: bytes, number: int) -> SegmentHeader:
    """Return the header of a segment without verifying the hash.

    Raises:
        ReplicaGap: it is damaged.
        SchemaMismatch: it was made by a newer strictq.
    """
    stored, size, _, _ = _sizes(data, number)
    try:
        head = _unpacked(data[START_BYTES : START_BYTES + stored], size, HEADER_BYTES_MAX)
        values: dict[str, Any] = json.loads(head)
    except (ValueError, RecursionError, zlib.error) as e:
        raise _damaged(number, "its header is invalid") from e
    header = header_from(values, number)
    if number not in (ANY, header.n) or sum(part.count for part in header.parts) > PAGES_MAX:
        raise _damaged(number, "its header belongs to another segment")
    return header


SegmentPages = list[tuple[PagesOf, list[Image]]]
"""The pages of a segment, by file."""


def decode(data: bytes, number: int, key: bytes = b"") -> tuple[SegmentHeader, SegmentPages]:
    """Return the header of a segment, and its pages by file.

    Raises:
        ReplicaGap: it is damaged.
        SchemaMismatch: it was made by a newer strictq.
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
        raise _damaged(number, "it does not have the pages that its header lists")
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
    """Return the size of a segment, bytes, from its first START_BYTES.

    Raises:
        ReplicaGap: it is damaged.
        SchemaMismatch: it was made by a newer strictq.
    """
    stored_head, _, stored_body, _ = _sizes(start, number)
    size = START_BYTES + stored_head + stored_body + HASH_BYTES
    if size > SEGMENT_BYTES_MAX:
        raise _damaged(number, "its sizes are wrong")
    return size


def _verified(data: bytes, number: int, key: bytes) -> tuple[int, int, int, int]:
    """Return the sizes at the start of a segment, after verifying its length and hash.

    Raises:
        ReplicaGap: it is too short or too long, or its hash is wrong.
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
            raise SchemaMismatch(f"segment {number} has a newer format", shard=-1)
        raise _damaged(number, "it is not a segment")
    sizes: tuple[int, int, int, int] = _SIZES.unpack_from(data, len(MAGIC))
    return sizes


def _packed(data: bytes) -> bytes:
    packed = zlib.compress(data, LEVEL)
    return packed if len(packed) < len(data) else data


def _unpacked(stored: bytes, size: int, most: int) -> bytes:
    """Decompress at most the announced size. Data of that size is not compressed."""
    if len(stored) == size <= most:
        return stored
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(stored, min(size, most) + 1)
    if len(data) != size or not unpacker.eof:
        raise ValueError("the size differs")
    return data


def _damaged(number: int, why: str) -> ReplicaGap:
    return ReplicaGap(f"{'a segment' if number == ANY else f'segment {number}'} is damaged: {why}", number)
