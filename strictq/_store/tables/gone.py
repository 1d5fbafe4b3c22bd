"""Resolved messages whose rows still exist.

Rows are deleted some time after their messages are resolved: runs of them at once, and the others once half of the rows that are
left in their bucket, 128 arrival numbers, are resolved. So a page is rewritten a few times, not once for each of its rows, and
the space is at most about twice what is pending. What was deleted is noted, too: otherwise the last rows of a bucket would never
be deleted. A bucket is read when it is touched, because another process may have written it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import apsw

from ..._sql import LOG, TABLES
from ..._values.errors import StoreCorrupt
from ..._values.keys import keyless_lane
from .log_rows import LogRows

BUCKET_BITS: Final = 7
_BUCKET: Final = 1 << BUCKET_BITS
BUCKET_MASK: Final = _BUCKET - 1
_BYTES: Final = _BUCKET // 8
_ALL: Final = (1 << _BUCKET) - 1
_RUN_MIN: Final = 16
"""A run of so many rows is deleted at once."""
KEYS_TRIED: Final = 10_000
"""How many lanes for keyless messages are tried until one belongs to the shard."""


def delete(db: apsw.Connection, log: LogRows, shard: int, arrivals: Sequence[int], top: int) -> None:
    """Delete the rows of resolved messages, or note that they may be deleted.

    Args:
        top: the newest message, whose row must stay for now.
    """
    if not arrivals:
        return
    numbers = sorted(arrivals)
    ranges: list[tuple[int, int]] = []
    few: dict[int, int] = {}
    cut: dict[int, int] = {}
    begin = before = numbers[0]
    for i in [*numbers[1:], 1 << 62]:
        if i == before + 1 and i != top:
            before = i
            continue
        if before - begin + 1 >= _RUN_MIN:
            ranges.append((begin, before))
            for bucket in {begin >> BUCKET_BITS, before >> BUCKET_BITS}:  # those between have no other messages
                first = bucket << BUCKET_BITS
                low, high = max(begin - first, 0), min(before - first, BUCKET_MASK)
                cut[bucket] = cut.get(bucket, 0) | (1 << high + 1) - (1 << low)
        else:
            for one in range(begin, before + 1):
                bucket = one >> BUCKET_BITS
                few[bucket] = few.get(bucket, 0) | 1 << (one & BUCKET_MASK)
        begin = before = i
    log.delete_ranges(ranges)
    if db.execute(TABLES.any_trouble).get:
        db.executemany(TABLES.drop_trouble, ranges)
    _in_buckets(db, log, shard, few, cut, top)


def _in_buckets(db: apsw.Connection, log: LogRows, shard: int, few: dict[int, int], cut: dict[int, int], top: int) -> None:
    """Note what was resolved, and what was deleted, and delete what is most of a bucket."""
    states: list[tuple[int, int, int]] = []
    for bucket in sorted(few.keys() | cut.keys()):
        bits, deleted = _read(db, shard, bucket)
        states.append((bucket, bits | few.get(bucket, 0), deleted | cut.get(bucket, 0)))
    _write(db, log, states, top)


def _write(
    db: apsw.Connection, log: LogRows, states: Sequence[tuple[int, int, int]], top: int, *, deletes_all: bool = False
) -> None:
    """Write buckets, each with the bits of what is resolved and of what was deleted, and delete what is most of one."""
    kill: list[int] = []
    full: list[tuple[int]] = []
    keep: list[tuple[int, bytes, bytes]] = []
    for bucket, resolved, was_deleted in states:
        bits, deleted = resolved, was_deleted
        if deletes_all or bits.bit_count() * 2 >= _BUCKET - deleted.bit_count():
            newest = 1 << (top & BUCKET_MASK) if bucket == top >> BUCKET_BITS else 0
            kill += [(bucket << BUCKET_BITS) + at for at in range(_BUCKET) if (bits & ~newest) >> at & 1]
            deleted |= bits & ~newest
            bits &= newest
        if deleted == _ALL:
            full.append((bucket,))
        else:
            keep.append((bucket, bits.to_bytes(_BYTES, "little"), deleted.to_bytes(_BYTES, "little")))
    log.delete(kill)
    if kill and db.execute(TABLES.any_trouble).get:
        db.executemany(TABLES.drop_trouble, [(i, i) for i in kill])
    db.executemany(TABLES.drop_gone, full)
    db.executemany(TABLES.write_gone, keep)


def empty(db: apsw.Connection, log: LogRows, shard: int, top: int, most: int) -> None:
    """Delete the rows of all resolved messages of so many buckets.

    Args:
        top: the newest message, whose row must stay for now.
    """
    buckets: list[Any] = [bucket for (bucket,) in db.execute(TABLES.some_gone, (most,)).fetchall()]
    _write(db, log, [(bucket, *_read(db, shard, bucket)) for bucket in buckets], top, deletes_all=True)


def write(db: apsw.Connection, shard: int, bucket: int, bits: int) -> None:
    """Set the resolved messages of a bucket that still have rows."""
    _, deleted = _read(db, shard, bucket)
    db.execute(TABLES.write_gone, (bucket, bits.to_bytes(_BYTES, "little"), deleted.to_bytes(_BYTES, "little")))


def keep_newest(db: apsw.Connection, shard: int, top: int, owns: Callable[[int], bool]) -> None:
    """Let a row have the newest arrival number, so that it is never issued again. It is that of a resolved message.

    Args:
        owns: whether the hash of a key belongs to the shard.
    """
    from ..._values.hashing import hash_key  # imported late: it loads OpenSSL

    if db.execute(LOG.newest).get[1] < top:
        # A shard that was created without a range takes any key: nothing reads the row.
        key = next((key for n in range(KEYS_TRIED) if owns(hash_key(key := keyless_lane(n)))), keyless_lane(0))
        db.execute(TABLES.add_newest, (top, key))
        write(db, shard, top >> BUCKET_BITS, 1 << (top & BUCKET_MASK))


def bits_of(db: apsw.Connection, shard: int, bucket: int) -> int:
    """Return the resolved messages of a bucket that still have rows, as bits.

    Raises:
        StoreCorrupt: no fold wrote them.
    """
    return _read(db, shard, bucket)[0]


def _read(db: apsw.Connection, shard: int, bucket: int) -> tuple[int, int]:
    """Return the resolved messages of a bucket that still have rows, and those whose rows were deleted, as bits."""
    found: Any = db.execute(TABLES.read_gone, (bucket,)).get
    if found is None:
        return 0, 0
    if any(len(bits) != _BYTES for bits in found):
        raise StoreCorrupt(f"the bits of bucket {bucket} of `gone` have {len(found[0])} bytes", shard=shard)
    bits, deleted = (int.from_bytes(part, "little") for part in found)
    return bits, deleted
