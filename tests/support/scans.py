"""Bulk reads in small steps, and what the files of a queue have, to compare with what is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from strictq import Queue
from strictq._store.bulk import packing, scan
from tests.support.internals import store_of

IN_THE_FILES = """
SELECT l.key, m.seq, ifnull(m.body, b.data), m.headers, m.sent_at, m.attempts, m.id
FROM message m JOIN lane l ON l.id = m.lane LEFT JOIN body b ON b.id = m.id
"""
DEAD_IN_THE_FILES = """
SELECT l.key, m.seq, ifnull(m.body, b.data), m.headers, m.sent_at, m.attempts, m.id, m.kind, m.reason, m.died_at
FROM dead m JOIN lane l ON l.id = m.lane LEFT JOIN body b ON b.id = m.id
"""
ALWAYS, AT_TWO, NEVER_AGAIN = 0, 2, 1000
"""Messages of a lane from which on lanes are read by themselves."""
SAMPLE = packing.SAMPLE
"""Lanes after which it is asked whether they are deep."""


def small_steps(patch: pytest.MonkeyPatch, step: int, by_lane: int) -> None:
    """Steps of so many rows, or of one more message that is packed; lanes are asked at once whether they are deep."""
    patch.setattr(packing, "SAMPLE", 1)
    patch.setattr(scan, "DEEP", by_lane)
    patch.setattr(scan, "STEP", step)
    patch.setattr(scan, "PACKED_STEP", step + 1)
    patch.setattr(scan, "PAUSE_MAX", 2)


def packed_steps(patch: pytest.MonkeyPatch, step: int, by_lane: int) -> None:
    """Steps of so many packed messages, and lanes that are deep from so many on."""
    patch.setattr(scan, "PACKED_STEP", step)
    patch.setattr(scan, "DEEP", by_lane)


def small_pieces(patch: pytest.MonkeyPatch, step: int) -> None:
    """Hand-outs whose messages are packed so many at a time."""
    patch.setattr(packing, "STEP", step)


def stored(q: Queue, statement: str) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Shard, arrival number, and the other columns as a table shows them, of every message (or dead letter), in SQL."""
    skew = q._storage.skew
    for shard in store_of(q).shards:
        for key, seq, body, headers, sent_at, attempts, arrival, *died in shard.look(lambda db: db.execute(statement).fetchall()):
            if died:
                died[2] += skew
            known = list(json.loads(headers).items()) if headers else None
            column = None if key[:1] == b"n" else key
            yield shard.number, arrival, (column, seq, body, known, sent_at + skew, attempts, *died)
