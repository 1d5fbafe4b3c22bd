"""Bulk reads in small steps, and the contents of a queue's files for comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from strictq import Queue
from strictq._store.bulk import scan
from strictq._store.shard import columns
from strictq._store.shard.messages import decode
from strictq._store.shard.shard_lanes import ShardLanes
from tests.support.internals import store_of

IN_THE_FILES = "SELECT id, key, seq, sent_at, opts, body FROM message WHERE id > 0"
DEAD_IN_THE_FILES = """
SELECT m.id, m.key, m.seq, m.sent_at, m.opts, m.body, ifnull(t.attempts, 0), d.kind, d.reason, d.died_at
FROM dead d JOIN message m ON m.id = d.id LEFT JOIN trouble t ON t.id = d.id
"""


def small_steps(patch: pytest.MonkeyPatch, step: int) -> None:
    """Read so many messages in a step."""
    patch.setattr(scan, "STEP", step)


def small_pieces(patch: pytest.MonkeyPatch, step: int) -> None:
    """Pack the messages of batches this many at a time."""
    patch.setattr(columns, "STEP", step)


def stored(q: Queue, *, dead: bool) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Yield shard, arrival number, and the other columns of every unresolved message, or dead letter."""
    skew = q._storage.skew
    for shard in store_of(q).shards:
        for arrival, key, seq, sent_at, opts, body, attempts, *died in shard.survey(_dead if dead else _unresolved):
            if died:
                died[2] += skew
            headers = decode(opts, shard.number)[0]
            known = list(json.loads(headers).items()) if headers else None
            column = None if key[:1] == b"n" else key
            yield shard.number, arrival, (column, seq, body, known, sent_at + skew, attempts, *died)


def _dead(lanes: ShardLanes) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = lanes.run(DEAD_IN_THE_FILES).fetchall()
    return found


def _unresolved(lanes: ShardLanes) -> list[tuple[Any, ...]]:
    rows = lanes.run(IN_THE_FILES).fetchall()
    keys = lanes.loader.keys_of([row[0] for row in rows])
    found: list[tuple[Any, ...]] = []
    for row in rows:
        lane = lanes.loader.lane(keys[row[0]])
        while lane.deep:
            lanes.loader.extend(lane)
        rare = lane.rare
        there = {*(lane.ids or ()), *(() if rare is None else (i for _, i in (*rare.front, *rare.waiting)))}
        if row[0] in there:
            found.append((*row, lane.attempts(row[0])[0]))
    return found
