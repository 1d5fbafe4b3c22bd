"""The format of a segment: what is written is read again, and nothing else is."""

from __future__ import annotations

import os
import random
import struct
import zlib

import attrs
import pytest

from strictq import ReplicaGap, SchemaMismatch
from strictq.replication.segment import (
    BODY_BYTES_MAX,
    MAGIC,
    PagesOf,
    SegmentHeader,
    decode,
    decode_header,
    digest,
    encode,
    hash_of,
    header_bytes,
    header_of,
)

PAGE = 4096
SEED = 11


def header(**changes: object) -> SegmentHeader:
    made = SegmentHeader(
        queue_id="q", history_id="h", term=1, n=7, first=7, more=False, base=0, older_base=-1, base_bytes=1, chain_bytes=2,
        prev="ab", x=3, wall=4, boot_id="b", shards=2, parts=(PagesOf(0, 9, 2), PagesOf(-1, 1, 1)),
        positions={0: ("aa", 1, "bb", 2), 1: ("", 0, "", 0)},
    )  # fmt: skip
    return attrs.evolve(made, **changes)


def pages() -> list[tuple[int, bytes]]:
    rng = random.Random(SEED)
    return [(2, rng.randbytes(PAGE)), (9, bytes(PAGE)), (1, rng.randbytes(PAGE))]


def test_what_is_written_is_read_again() -> None:
    data = encode(header(), pages())
    read, parts = decode(data, 7)
    assert read == header()
    assert [(part.shard, part.size, [number for number, _ in own]) for part, own in parts] == [(0, 9, [2, 9]), (-1, 1, [1])]
    assert [image for _, own in parts for _, image in own] == [image for _, image in pages()]
    assert decode_header(data, 7) == header()
    assert hash_of(data) == data[-32:].hex()
    assert len(data) < 3 * PAGE  # an empty page takes nothing


def test_what_is_not_compressed_is_read_again() -> None:
    data = encode(header(), pages(), compress=False)
    assert len(data) > 3 * PAGE
    assert decode(data, 7) == decode(encode(header(), pages()), 7)
    assert decode_header(data, 7) == header()
    assert header_of(data[: 40 + header_bytes(data[:40], 7)], 7) == header()
    with pytest.raises(ReplicaGap):
        decode(data[:-1], 7)


def test_what_compression_would_enlarge_is_not_compressed() -> None:
    rng = random.Random(SEED)
    data = encode(header(parts=(PagesOf(0, 9, 1),)), [(2, rng.randbytes(PAGE))])
    assert len(data) <= len(encode(header(parts=(PagesOf(0, 9, 1),)), [(2, bytes(PAGE))], compress=False))
    assert decode(data, 7)[1][0][1] == [(2, random.Random(SEED).randbytes(PAGE))]


def test_a_segment_without_pages() -> None:
    data = encode(header(parts=()), [])
    assert decode(data, 7) == (header(parts=()), [])


def test_the_header_is_read_without_the_rest() -> None:
    data = encode(header(), pages())
    start = data[:40]
    assert header_of(data[: 40 + header_bytes(start, 7)], 7) == header()


def test_every_flipped_bit_is_found() -> None:
    data = encode(header(), pages())
    rng = random.Random(SEED)
    for bit in [*range(48 * 8), *(rng.randrange(len(data) * 8) for _ in range(400)), *range((len(data) - 32) * 8, len(data) * 8)]:
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises((ReplicaGap, SchemaMismatch)):
            decode(bytes(broken), 7)


def test_a_torn_segment_is_found() -> None:
    data = encode(header(), pages())
    for size in (0, 1, 8, 39, 40, 100, len(data) - 33, len(data) - 1):
        with pytest.raises(ReplicaGap) as e:
            decode(data[:size], 7)
        assert e.value.segment == 7


def test_a_segment_in_the_place_of_another_is_found() -> None:
    with pytest.raises(ReplicaGap, match="to another segment"):
        decode(encode(header(), pages()), 8)


def test_a_segment_of_a_newer_format_is_refused() -> None:
    data = bytearray(encode(header(), pages()))
    data[7] += 1
    with pytest.raises(SchemaMismatch):
        decode(bytes(data), 7)


def test_pages_behind_the_end_of_their_file_are_refused() -> None:
    with pytest.raises(ReplicaGap, match="behind the end"):
        decode(encode(header(parts=(PagesOf(0, 8, 2), PagesOf(-1, 1, 1))), pages()), 7)


@pytest.mark.parametrize("body", [BODY_BYTES_MAX + 1, 1 << 62, 5])
def test_what_decompresses_to_more_than_it_says_is_refused(body: int) -> None:
    head = zlib.compress(b"{}")
    bomb = zlib.compress(bytes(1 << 22))
    data = MAGIC + struct.pack(">QQQQ", len(head), 2, len(bomb), body) + head + bomb
    with pytest.raises(ReplicaGap):
        decode(data + digest(data), 7)


@pytest.mark.parametrize(
    "head", [b"[]", b"{}", b'{"format":1}', b'{"format":1,"parts":[[1]],"positions":{}}', b"\xff", b"[" * 100_000]
)
def test_a_header_that_makes_no_sense_is_refused(head: bytes) -> None:
    stored = zlib.compress(head)
    data = MAGIC + struct.pack(">QQQQ", len(stored), len(head), 8, 0) + stored + zlib.compress(b"")
    with pytest.raises(ReplicaGap):
        decode(data + digest(data), 7)


def test_a_strangers_bytes_are_refused() -> None:
    with pytest.raises(ReplicaGap):
        decode(os.urandom(5000), 7)
