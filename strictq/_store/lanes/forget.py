"""Background removal of dedup ids whose window is over, and of lanes that have been idle for long.

Sends of new ids and new lanes remove some of them (`lanes.forget_dedups`, `lanes.forget_some_idle`). This module removes the
rest. It reads first whether there is anything to do, so that a shard is written only then.
"""

from __future__ import annotations

from typing import Final

import apsw

from ..._config import QueueConfig
from ..._sql import LANES, SEND
from ..commit.calls import bound
from ..commit.tx import SECOND, Tx
from ..shard import Shard
from . import lanes

STEP: Final = 100
"""The number of dedup ids that one transaction removes, or of lanes that it reads: a few milliseconds of the write lock."""
STEPS_MAX: Final = 40
"""The maximum number of steps of each kind in one turn of a shard. The rest is left to the next turn."""


class Forgetting:
    """The background removal in one shard, in this process. Knows when to look again, in queue time."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._dedups_at = 0
        self._lanes_at = 0
        self._next_lane = 0
        """The lane at which the walk over the lanes continues; 0: at the first."""

    def turn(self, now: int, config: QueueConfig) -> int:
        """Remove what is due, in bounded steps. Return when the next turn is due, in queue time.

        Raises:
            StoreError: the shard failed; earlier steps took effect.
        """
        if now >= self._dedups_at:
            self._forget_dedups(now, config)
        if config.idle_lane_seconds is None:
            return self._dedups_at
        if now >= self._lanes_at:
            self._forget_lanes(now, int(config.idle_lane_seconds * SECOND))
        return min(self._dedups_at, self._lanes_at)

    def _forget_dedups(self, now: int, config: QueueConfig) -> None:
        for _ in range(STEPS_MAX):
            soonest: int | None = self._shard.glance(lambda db: db.execute(SEND.next_dedup).get)
            if soonest is None or soonest > now:
                # Ids that arrive until then are kept for at least a window from now, and ends of asides for REPEATED_WITHIN.
                later = now + min(int(config.dedup_window_seconds * SECOND), lanes.REPEATED_WITHIN)
                self._dedups_at = later if soonest is None else min(soonest, later)
                return
            self._shard.run(lambda tx: lanes.forget_dedups(tx, STEP))

    def _forget_lanes(self, now: int, idle: int) -> None:
        for _ in range(STEPS_MAX):
            first = self._next_lane
            arguments = (first, STEP, now - idle)
            last, found = self._shard.glance(bound(_idle_among, arguments))
            if last is None:
                # All lanes were read. Start again in time to find each within half of `idle` after it became idle.
                self._next_lane, self._lanes_at = 0, now + idle // 2
                return
            if found:
                self._shard.run(bound(_forget_lanes, first))
            self._next_lane = last + 1


def _idle_among(db: apsw.Connection, arguments: tuple[int, int, int]) -> tuple[int | None, int]:
    row: tuple[int | None, int] = db.execute(LANES.idle_among, arguments).get
    return row


def _forget_lanes(tx: Tx, first: int) -> None:
    lanes.forget_idle(tx, first, STEP)
