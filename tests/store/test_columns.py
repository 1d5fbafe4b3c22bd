"""Rows of a claim as blocks of columns."""

from __future__ import annotations

from typing import Any

import strictq
from strictq._store.bulk.columns import BlockSize, leased_columns, listed

ROWS, BYTES = 20, 1000
SIZE = BlockSize(ROWS, BYTES)


def row(seq: int, body: bytes = b"x", headers: str | None = None, attempts: int = 0) -> tuple[Any, ...]:
    """Return a message's row, as a claim returns it."""
    return (100 + seq, b"", seq, 1_000_000 * seq, None, None, headers, body, attempts, 0)


def test_blocks_hold_whole_lanes_where_they_fit() -> None:
    lanes = [(b"a", [row(n) for n in range(1, 16)]), (b"b", [row(n) for n in range(1, 4 * ROWS)]), (b"c", [row(1)])]
    made = list(listed(lanes, 3, SIZE))
    assert [(b.keys, b.depths, b.fresh) for b in made] == [
        ([b"a"], [15], True), ([b"b"], [ROWS], True), ([b"b"], [ROWS], False), ([b"b"], [ROWS], False),
        ([b"b"], [ROWS - 1], False), ([b"c"], [1], True),
    ]  # fmt: skip
    assert [seq for b in made for seq in b.seqs] == [*range(1, 16), *range(1, 4 * ROWS), 1]
    assert {b.shard for b in made} == {3}


def test_small_lanes_share_a_block() -> None:
    lanes = [(b"%d" % n, [row(1), row(2), row(3)]) for n in range(7)]
    made = list(listed(lanes, 0, SIZE))
    assert [(b.keys, b.depths, b.fresh) for b in made] == [
        ([b"%d" % n for n in range(6)], [3] * 6, True), ([b"6"], [3], True),
    ]  # fmt: skip


def test_blocks_are_cut_by_bytes() -> None:
    half, twice = bytes(BYTES // 2), bytes(2 * BYTES)
    made = list(listed([(b"a", [row(n, half) for n in range(1, 6)]), (b"b", [row(1, twice), row(2)])], 0, SIZE))
    assert [(b.keys, b.depths, b.fresh) for b in made] == [
        ([b"a"], [2], True), ([b"a"], [2], False), ([b"a"], [1], False), ([b"b"], [1], True), ([b"b"], [1], False),
    ]  # fmt: skip


def test_rows_of_a_claim_have_these_columns() -> None:
    with strictq.open(":memory:") as q:
        q.send(b"body", "k", headers={"a": "b"})
        d = q.receive()[0]
        d.nack(delay=0.0)
        (d,) = q.receive()
        (block,) = leased_columns([d.lease._held], d.shard, SIZE)
    assert block[:6] == (d.shard, True, [b"sk"], [1], [1], [d.id])
    assert block[7:] == ([1], ['{"a": "b"}'], [b"body"], [])
