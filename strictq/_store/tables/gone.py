"""Resolved messages whose rows still exist.

Rows are deleted some time after their messages are resolved: runs of them at once, and the others once half of their bucket, 128
arrival numbers, is resolved. So a page is rewritten a few times, not once for each of its rows, and the space is at most about
twice what is pending. A bucket's bits are read when it is touched, because another process may have written it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw

from ..._errors import StoreCorrupt
from ..._sql import LANE_TABLES
from ..log.log_rows import LogRows

BUCKET_BITS: Final = 7
_BUCKET: Final = 1 << BUCKET_BITS
BUCKET_MASK: Final = _BUCKET - 1
_BYTES: Final = _BUCKET // 8
_RUN_MIN: Final = 16
"""A run of so many rows is deleted at once."""


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
    begin = before = numbers[0]
    for i in [*numbers[1:], 1 << 62]:
        if i == before + 1:
            before = i
            continue
        if before - begin + 1 >= _RUN_MIN and before < top:
            ranges.append((begin, before))
        else:
            for one in range(begin, before + 1):
                bucket = one >> BUCKET_BITS
                few[bucket] = few.get(bucket, 0) | 1 << (one & _BUCKET - 1)
        begin = before = i
    log.delete_ranges(ranges)
    if db.execute(LANE_TABLES.any_trouble).get:
        db.executemany(LANE_TABLES.drop_trouble, ranges)
    if few:
        _in_buckets(db, log, shard, few, top)


def _in_buckets(db: apsw.Connection, log: LogRows, shard: int, few: dict[int, int], top: int) -> None:
    kill: list[int] = []
    full: list[tuple[int]] = []
    keep: list[tuple[int, bytes]] = []
    for bucket, bits in sorted(few.items()):
        all_bits = bits | bits_of(db, shard, bucket)
        newest = 1 << (top & _BUCKET - 1) if bucket == top >> BUCKET_BITS else 0
        if all_bits.bit_count() * 2 >= _BUCKET:
            kill += [(bucket << BUCKET_BITS) + at for at in range(_BUCKET) if (all_bits & ~newest) >> at & 1]
            if all_bits & newest:
                keep.append((bucket, newest.to_bytes(_BYTES, "little")))
            else:
                full.append((bucket,))
        else:
            keep.append((bucket, all_bits.to_bytes(_BYTES, "little")))
    log.delete(kill)
    many: Any = db.executemany
    if kill and db.execute(LANE_TABLES.any_trouble).get:
        many(LANE_TABLES.drop_trouble, [(i, i) for i in kill])
    many(LANE_TABLES.drop_gone, full)
    many(LANE_TABLES.write_gone, keep)


def empty(db: apsw.Connection, log: LogRows, shard: int, top: int, most: int) -> None:
    """Delete the rows of all resolved messages of so many buckets.

    Args:
        top: the newest message, whose row must stay for now.
    """
    run: Any = db.execute
    many: Any = db.executemany
    buckets: list[int] = [bucket for (bucket,) in run(LANE_TABLES.some_gone, (most,)).fetchall()]
    kill: list[int] = []
    for bucket in buckets:
        bits = bits_of(db, shard, bucket)
        kill += [i for at in range(_BUCKET) if bits >> at & 1 and (i := (bucket << BUCKET_BITS) + at) != top]
    log.delete(kill)
    if kill and run(LANE_TABLES.any_trouble).get:
        many(LANE_TABLES.drop_trouble, [(i, i) for i in kill])
    newest = 1 << (top & _BUCKET - 1)
    if top >> BUCKET_BITS in buckets and bits_of(db, shard, top >> BUCKET_BITS) & newest:
        buckets.remove(top >> BUCKET_BITS)
        run(LANE_TABLES.write_gone, (top >> BUCKET_BITS, newest.to_bytes(_BYTES, "little")))
    many(LANE_TABLES.drop_gone, [(bucket,) for bucket in buckets])


def write(db: apsw.Connection, bucket: int, bits: int) -> None:
    """Set the bits of a bucket."""
    run: Any = db.execute
    if bits:
        run(LANE_TABLES.write_gone, (bucket, bits.to_bytes(_BYTES, "little")))
    else:
        run(LANE_TABLES.drop_gone, (bucket,))


def bits_of(db: apsw.Connection, shard: int, bucket: int) -> int:
    """Return the resolved messages of a bucket that still have rows, as bits.

    Raises:
        StoreCorrupt: no fold wrote them.
    """
    bits: Any = db.execute(LANE_TABLES.read_gone, (bucket,)).get
    if bits is None:
        return 0
    if len(bits) != _BYTES:
        raise StoreCorrupt(f"the bits of bucket {bucket} of `gone` have {len(bits)} bytes", shard=shard)
    return int.from_bytes(bits, "little")
