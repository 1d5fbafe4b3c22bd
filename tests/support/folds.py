"""Folds of a queue's shards: small windows, and what must hold of every memory after one."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import strictq
from strictq._store.lane.memory import StoreLimits
from strictq._store.shard import checking, shard_lanes
from strictq._store.shard.shard_lanes import ShardLanes, Tx
from tests.support.internals import shard_of, store_of

if TYPE_CHECKING:
    import pytest  # not in the programs that tests start: it takes as long as strictq


def _small(window: int, step: int) -> Any:
    return functools.partial(
        StoreLimits, window=max(window // 4, 1), slice=step, head=3, chunk=4, loaded_max=2 * window, tails_max=4 * window
    )


def narrow_by(patch: pytest.MonkeyPatch, window: int = 24, step: int = 4) -> None:
    """Fold after a few rows, in small slices, and evict early, in shards that are opened until the patch is undone."""
    patch.setattr(shard_lanes, "StoreLimits", _small(window, step))


@contextmanager
def narrow(window: int = 24, step: int = 4) -> Iterator[None]:
    """Do the same in this block."""
    holder: Any = shard_lanes
    before = holder.StoreLimits
    holder.StoreLimits = _small(window, step)
    try:
        yield
    finally:
        holder.StoreLimits = before


def fold(q: strictq.Queue, number: int = 0) -> None:
    """Write the rows of all changed lanes of a shard, delete what is resolved, and cut the journal."""

    def all_slices(tx: Tx) -> None:
        while tx.lanes.memory.dirty or tx.lanes.memory.fold_to:
            tx.lanes.folder.slice(tx.now)
        tx.lanes.folder.slice(tx.now)

    shard_of(q, number).run(all_slices)


def takes_turns(q: strictq.Queue) -> bool:
    """Return whether a shard lists its ready lanes in another order than that of arrival: by tenants, or fresh ones first."""
    return any(shard.lanes.memory.order.turns is not None for shard in store_of(q).shards)


def require_agreement(*queues: strictq.Queue) -> None:
    """Require the memories of all queue objects to equal one that is built anew, and check() to find nothing."""
    require_memories(*queues)
    assert queues[0].check() == []


def require_memories(*queues: strictq.Queue) -> None:
    """Require the memories of all queue objects to equal one that is built anew."""

    def differences(tx: Tx) -> list[str] | None:
        return None if has_begun(tx) else list(checking.differences(tx.lanes))

    for q in queues:
        for shard in store_of(q).shards:
            while (found := shard.run(differences)) is None:
                pass
            assert found == [], (shard.number, found)


def has_begun(tx: Tx) -> bool:
    """Return whether other calls of the same transaction have changed memory. What it knows of a lane may be incomplete then."""
    return tx.db.total_changes() != tx.lanes._begun[2]


def lanes_as_text(lanes: ShardLanes) -> str:
    """Return what is known of every lane of a shard, as text."""
    known = {lane.key: checking.brief(lanes, lane) for lane in checking.lanes_of(lanes.db, lanes.loader)}
    return repr(sorted((key, what) for key, what in known.items() if what[0]))


class Folds:
    """Notices that a queue's journals were cut. Then every memory must equal one that is built from what is left.

    Attributes:
        count: how often they were cut. The first look, which also compares, is not counted.
    """

    def __init__(self) -> None:
        self.count = -1
        self._cuts: list[int] = []

    def watch(self, *queues: strictq.Queue) -> bool:
        """Return whether a journal was cut since the last call. If so, compare the memories of these objects of one queue."""
        cuts = [cut_to(queues[0], number) for number in range(len(store_of(queues[0]).shards))]
        if cuts == self._cuts:
            return False
        require_memories(*queues)
        self._cuts = cuts
        self.count += 1
        return True


def cut_to(q: strictq.Queue, number: int = 0) -> int:
    """Return the last row of a shard's journal that a fold has cut; 0: none was."""
    return shard_of(q, number).view(lambda lanes: lanes.memory.mark.cut)
