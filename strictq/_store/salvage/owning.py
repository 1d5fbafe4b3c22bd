"""Which ranges of keys the shards of a damaged queue own, and which lanes were on their way from one to another.

The ranges of a shard that are lost follow from those of the others: each hash belongs to one shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import attrs

from ..disk.topology import Range
from ..lane.ranges import Ranges, completed, hash_of
from ..lane.totals import StoredMark
from ..shard.checking import is_key
from ..tables import mark, parcels
from .known import INVALID
from .reading import ShardPages

_LANES: Final = ":lanes"
"""The end of the name under which a shard notes what has arrived from another one."""


class Owned(NamedTuple):
    """What one shard owns.

    Attributes:
        ranges: None: no range of the queue has moved, as far as is known.
        is_stored: the shard itself says so. False: it follows from what the others own.
        arrived: the newest parcel of the shard that has arrived in another one.
    """

    ranges: Ranges | None
    is_stored: bool
    arrived: int


def of_queue(shards: Sequence[ShardPages], parts: Sequence[Range], note: Callable[[int, str], None]) -> list[Owned]:
    """Return what each shard of a queue owns."""
    metas = [_meta(pages) for pages in shards]
    stored = [_ranges(meta) for meta in metas]
    arrived = [0] * len(metas)
    by_incarnation = {meta.get("incarnation"): number for number, meta in enumerate(metas)}
    for pages in shards:
        for _, row in pages.rows("inlet"):
            name, _, kind = str(row[0]).rpartition(":")
            if f":{kind}" == _LANES and name in by_incarnation:
                number = by_incarnation[name]
                arrived[number] = max(arrived[number], row[1])
    features = [_features(pages) for pages in shards]
    if not (any(stored) or any((known or 0) & mark.RANGES for known in features)):
        return [Owned(None, is_stored=False, arrived=n) for n in arrived]
    for number, (known, part) in enumerate(zip(features, parts, strict=True)):
        if stored[number] is None and known is not None and not known & mark.RANGES:
            stored[number] = Ranges(own=(part[2:],) if part.lo <= part.hi else ())  # the first move was about to begin
        elif stored[number] is None:
            note(number, "which ranges of keys it owns is lost: it owns those that no other shard owns")
    ranges = completed(stored, lambda number: _hashes(shards[number]))
    return [Owned(one, is_stored=own is not None, arrived=n) for one, own, n in zip(ranges, stored, arrived, strict=True)]


def _features(pages: ShardPages) -> int | None:
    """Return the features of a shard. None: they are lost."""
    fields = len(attrs.fields(StoredMark))
    return next((StoredMark(*row[1 : 1 + fields]).features for _, row in pages.rows("mark") if len(row) > fields), None)


def _hashes(pages: ShardPages) -> Iterator[int]:
    for _, row in pages.rows("lane"):
        if is_key(row[0]):
            yield hash_of(row[0])


def _meta(pages: ShardPages) -> dict[Any, Any]:
    return {row[0]: row[1] for _, row in pages.rows("meta") if len(row) == 2}


def _ranges(meta: dict[Any, Any]) -> Ranges | None:
    try:
        return Ranges.from_text(meta[parcels.NAME])
    except INVALID:
        return None
