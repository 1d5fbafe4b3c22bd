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
from ..commit.tx import NEVER, SECOND, Tx
from ..onelane import forgetting
from ..shard import Shard
from ..tables import dedup
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
        self._parked_at = 0
        self._next_lane = 0
        """The lane at which the walk over the lanes continues; 0: at the first."""
        self._after = b""
        """The same in a shard of format 3: the last key that was read."""

    def turn(self, now: int, config: QueueConfig) -> int:
        """Remove what is due, in bounded steps. Return when the next turn is due, in queue time.

        Raises:
            StoreError: the shard failed; earlier steps took effect.
        """
        if now >= self._dedups_at:
            self._forget_dedups(now, config)
        due = self._dedups_at
        if self._shard.lanes is not None:
            if now >= self._parked_at:
                self._forget_parked(now)
            due = min(due, self._parked_at)
        if config.idle_lane_seconds is None:
            return due
        if now >= self._lanes_at:
            idle = int(config.idle_lane_seconds * SECOND)
            if self._shard.lanes is None:
                self._forget_lanes(now, idle)
            else:
                self._forget_idle(now, idle)
        return min(due, self._lanes_at)

    def _forget_dedups(self, now: int, config: QueueConfig) -> None:
        for _ in range(STEPS_MAX):
            soonest: int | None = self._shard.glance(lambda db: db.execute(SEND.next_dedup).get)
            if soonest is None or soonest > now:
                # Ids that arrive until then are kept for at least a window from now, and ends of asides for REPEATED_WITHIN.
                later = now + min(int(config.dedup_window_seconds * SECOND), lanes.REPEATED_WITHIN)
                self._dedups_at = later if soonest is None else min(soonest, later)
                return
            self._shard.run(_forget_dedups)

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

    # ---- format 3

    def _forget_idle(self, now: int, idle: int) -> None:
        """Forget idle lanes: changed ones, which must be folded, and then those of the rows."""
        oldest, steps = now - idle, STEPS_MAX
        if not self._after:
            found = self._shard.view(lambda lanes: forgetting.idle_in_memory(lanes, oldest, -NEVER, STEP))
            self._run_forget(found, oldest)
            steps -= bool(found)
        for _ in range(steps):
            last, keys = self._shard.view(lambda lanes: forgetting.idle_at_rest(lanes, self._after, STEP, oldest))
            if last is None:
                self._after, self._lanes_at = b"", now + idle // 2
                return
            self._run_forget(keys, oldest)
            self._after = last

    def _forget_parked(self, now: int) -> None:
        """Do the same for the lanes of parked messages that ended."""
        oldest, after = now - forgetting.REPEATED_WITHIN, b""
        self._run_forget(self._shard.view(lambda lanes: forgetting.idle_in_memory(lanes, -NEVER, oldest, STEP)), oldest)
        for _ in range(STEPS_MAX):
            last, keys = self._shard.view(bound(forgetting.parked_at_rest, after, STEP, oldest))
            if last is None:
                self._parked_at = now + forgetting.REPEATED_WITHIN
                return
            self._run_forget(keys, oldest)
            after = last

    def _run_forget(self, keys: list[bytes], oldest: int) -> None:
        if keys:
            self._shard.run(lambda tx: forgetting.forget(tx, keys, oldest))


def _forget_dedups(tx: Tx) -> None:
    if tx.lanes is not None:
        dedup.forget_some(tx.db, tx.now, STEP)
    else:
        lanes.forget_dedups(tx, STEP)


def _idle_among(db: apsw.Connection, arguments: tuple[int, int, int]) -> tuple[int | None, int]:
    row: tuple[int | None, int] = db.execute(LANES.idle_among, arguments).get
    return row


def _forget_lanes(tx: Tx, first: int) -> None:
    lanes.forget_idle(tx, first, STEP)
