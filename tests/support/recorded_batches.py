"""Batches of named consumers in tests: messages packed as JSON lines, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from strictq import Queue, StrictqError
from strictq._store.api import Block, Fields, Held, PackedColumns
from strictq.spark._recorded_batches import Holder, read_block, rejected

Label = tuple[str, int, str]
"""Stored key, seq, body."""
PER_BLOCK = 4


def encode(leases: Sequence[Held | PackedColumns], shard: int) -> Iterator[Block]:
    """Yield blocks of a few messages of one lane each."""
    for held in leases:
        fresh = isinstance(held, Held) or held.fresh
        for key, found in [(held.key, list(one_by_one(held)))] if isinstance(held, Held) else by_lane(held):
            for at in range(0, len(found), PER_BLOCK):
                rows = [(text(key), seq, text(body), arrival) for seq, body, arrival in found[at : at + PER_BLOCK]]
                yield Block(len(rows), fresh and at == 0, json.dumps(rows).encode())
            fresh = True


def text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def one_by_one(held: Held) -> Iterator[tuple[int, bytes, int]]:
    """Yield seq, body and arrival number of each message of a lease."""
    yield from ((Fields.seq(r), Fields.body(r), Fields.id(r)) for r in held.rows)


def by_lane(columns: PackedColumns) -> Iterator[tuple[bytes, list[tuple[int, bytes, int]]]]:
    """Yield the same for each of many lanes, with its key."""
    found = unpacked(columns)
    for key, depth in zip(columns.keys, columns.depths, strict=True):
        yield key, list(islice(found, depth))
    assert next(found, None) is None


def unpacked(columns: PackedColumns) -> Iterator[tuple[int, bytes, int]]:
    """Yield seq, body and arrival number of each message of columns."""
    at = 0
    for seq, arrival, size in zip(
        columns.seqs.split(","), columns.ids.split(","), map(int, columns.sizes.split(",")), strict=True
    ):
        yield int(seq), columns.bodies[at : at + size], int(arrival)
        at += size
    assert at == len(columns.bodies)


class Lazy:
    """Does what is deferred when the holder waits for it, and not before. Who is killed before has not done it."""

    def __init__(self, work: Callable[[], Any], upto: int) -> None:
        self._work = work
        self.upto = upto

    def start(self) -> None:
        """Do nothing yet."""

    def join(self) -> Any:
        try:
            return self._work()
        except StrictqError:
            return None, None


def holder(q: Queue, consumer: str = "etl", *, packed: bool = True, **options: int) -> Holder:
    h = Holder(q, consumer, encode, packed=packed, **options)
    h.attach(0.0)
    return h


def read(q: Queue, h: Holder, n: int) -> list[Label]:
    labels: list[Label] = []
    for p in h.parts(n):
        out = set(rejected(q, h.name, n, p.shard))
        data = json.loads(read_block(q, h.name, n, p.shard, p.part))
        labels += [(key, seq, body) for key, seq, body, arrival in data if arrival not in out]
    return labels


def drain(q: Queue, h: Holder, **options: Any) -> list[Label]:
    """Take and ack until nothing is ready. Return the messages in order."""
    got: list[Label] = []
    n = h.last
    while (following := h.take(n, **options)) != n:
        n = following
        got += read(q, h, n)
    return got


def by_key(labels: Sequence[Label]) -> dict[str, list[int]]:
    """Return the seqs of each key, in order of delivery."""
    out: dict[str, list[int]] = {}
    for key, seq, _ in labels:
        out.setdefault(key, []).append(seq)
    return out
