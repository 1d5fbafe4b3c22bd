"""Hot lanes: queues without any, for tests that read the tables, and the invariants of every memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import strictq
from strictq import QueueConfig
from strictq._store.commit.tx import Totals, Tx
from strictq._store.hot import cooling
from strictq._store.hot.journal import COOL
from strictq._store.hot.memory import Memory
from strictq._store.lane.memory import StoreLimits
from strictq._store.lanes.leases import ID
from strictq._store.onelane import checking, shard_lanes
from tests.support.internals import shard_of, store_of


def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give QueueConfig no hot lanes until the end of a test, unless it requests them."""
    before = QueueConfig.__init__

    @functools.wraps(before)
    def init(self: QueueConfig, **given: Any) -> None:
        before(self, **given)
        if "hot_lanes" not in given:
            object.__setattr__(self, "hot_lanes", False)

    monkeypatch.setattr(QueueConfig, "__init__", init)


def narrow_by(patch: pytest.MonkeyPatch, window: int = 24, step: int = 4, slices: int = 2, events: int = 90) -> None:
    """Fold the logs after a few rows, in small steps, until the patch is undone. A test changes these further by the same one."""
    patch.setattr(cooling, "WINDOW", window)
    patch.setattr(cooling, "STEP", step)
    patch.setattr(cooling, "SLICES", slices)
    patch.setattr(cooling, "EVENTS_MAX", events)
    small = functools.partial(
        StoreLimits, window=max(window // 4, 1), slice=step, head=3, chunk=4, loaded_max=2 * window, tails_max=4 * window
    )
    patch.setattr(shard_lanes, "StoreLimits", small)  # of shards of format 3 that are opened from now on


@contextmanager
def narrow(window: int = 24, step: int = 4, slices: int = 2, events: int = 90) -> Iterator[None]:
    """Fold the logs after a few rows, in small steps, in this block."""
    with pytest.MonkeyPatch.context() as patch:
        narrow_by(patch, window, step, slices, events)
        yield


def state(memory: Memory) -> dict[bytes, Any]:
    """Return everything that a memory knows of its lanes."""
    return {
        key: (
            lane.seq,
            [row[ID] for row in lane.rows],
            lane.touched,
            lane.active_at,
            None
            if lane.lease is None
            else (lane.lease.claim, lane.lease.low, lane.lease.lo, lane.lease.hi, lane.lease.pending, lane.lease.started),
            None if lane.done is None else (lane.done[0], list(lane.done[2])),
        )
        for key, lane in memory.lanes.items()
    }


def ready(memory: Memory) -> list[bytes]:
    """Return the order of ready lanes in which claims would meet them."""
    waiting = [(lane.rows[0][ID], key) for key, lane in memory.lanes.items() if lane.rows and lane.lease is None]
    head = memory.order.head()
    assert (None if head is None else head[1].key) == (min(waiting)[1] if waiting else None)
    return [key for _, key in sorted(waiting)]


def require_agreement(*queues: strictq.Queue) -> None:
    """Require the memories of all queue objects to equal one that is built from the tables, and check() to find nothing."""
    require_memories(*queues)
    assert queues[0].check() == []


def require_memories(*queues: strictq.Queue) -> None:
    """Require the memories of all queue objects to equal one that is built from the tables."""
    for q in queues:
        for shard in store_of(q).shards:
            while not shard.run(_is_compared):
                pass


def _is_compared(tx: Tx) -> bool:
    """Compare memory and totals, as they are at the beginning of a transaction. Return False if they are no longer."""
    if tx.db.total_changes() != tx.changes_before:
        return False  # other calls of the same transaction have changed something
    if tx.lanes is not None:
        assert list(checking.differences(tx.lanes)) == []
        return True
    memory = tx.hot
    assert memory is not None
    fresh, totals = Memory(0), Totals.read(tx.db)
    fresh.agree(tx.db, totals)
    assert [getattr(totals, name) for name in SUMS] == [getattr(tx.totals, name) for name in SUMS]
    assert state(memory) == state(fresh)
    assert ready(memory) == ready(fresh)
    return True


class Folds:
    """Notices that a queue's logs were cut. Then every memory must equal one that is built from what is left.

    Attributes:
        count: how often they were cut. The first look, which also compares, is not counted.
    """

    def __init__(self) -> None:
        self.count = -1
        self._cuts: list[int] = []

    def watch(self, *queues: strictq.Queue) -> bool:
        """Return whether the logs were cut since the last call. If so, compare the memories of these objects of one queue."""
        cuts = [cut_to(queues[0], number) for number in range(len(store_of(queues[0]).shards))]
        if cuts == self._cuts:
            return False
        require_memories(*queues)
        self._cuts = cuts
        self.count += 1
        return True


def cut_to(q: strictq.Queue, number: int = 0) -> int:
    """Return the last row of a shard's inbox, or in format 3 of its journal, that a fold has cut; 0: none was."""
    shard = shard_of(q, number)
    if shard.lanes is not None:
        return shard.view(lambda lanes: lanes.memory.mark.cut)
    last = shard.look(lambda db: db.execute(_CUT).get, hot=None)
    return int(last or 0)


_CUT = f"SELECT max(deadline) FROM journal WHERE kind = {COOL}"
SUMS = ("config_version", "epoch", "last_lane", "lanes", "pending", "dead", "sends", "receives", "claims", "acks")
