"""Bulk reads in small steps, and the contents of a queue's files for comparison."""

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
"""Messages of a lane from which lanes are read separately."""
SAMPLE = packing.SAMPLE
"""Lanes after which their depth is considered."""


def small_steps(patch: pytest.MonkeyPatch, step: int, by_lane: int) -> None:
    """Use steps of this many rows, or of one more packed message. The depth of lanes is considered at once."""
    patch.setattr(packing, "SAMPLE", 1)
    patch.setattr(scan, "DEEP", by_lane)
    patch.setattr(scan, "STEP", step)
    patch.setattr(scan, "PACKED_STEP", step + 1)
    patch.setattr(scan, "PAUSE_MAX", 2)


def packed_steps(patch: pytest.MonkeyPatch, step: int, by_lane: int) -> None:
    """Use steps of this many packed messages, and count lanes as deep from `by_lane` messages."""
    patch.setattr(scan, "PACKED_STEP", step)
    patch.setattr(scan, "DEEP", by_lane)


def small_pieces(patch: pytest.MonkeyPatch, step: int) -> None:
    """Pack the messages of batches this many at a time."""
    patch.setattr(packing, "STEP", step)


def stored(q: Queue, statement: str) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Yield shard, arrival number, and the other columns of every message (or dead letter), as SQL reads them."""
    skew = q._storage.skew
    for shard in store_of(q).shards:
        for key, seq, body, headers, sent_at, attempts, arrival, *died in shard.look(lambda db: db.execute(statement).fetchall()):
            if died:
                died[2] += skew
            known = list(json.loads(headers).items()) if headers else None
            column = None if key[:1] == b"n" else key
            yield shard.number, arrival, (column, seq, body, known, sent_at + skew, attempts, *died)
