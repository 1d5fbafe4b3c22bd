"""Background removal of dedup ids whose window is over, of old outputs, and of lanes that have been idle for long.

Sends of new ids and new lanes, and acks with outputs, remove some of them. This module removes the rest. It reads first whether
there is anything to do, so that a shard is written only then.
"""

from __future__ import annotations

from typing import Final

from ..._values.config import QueueConfig
from ..commit.tx import NEVER, SECOND, bound
from ..shard import forgetting as steps
from ..shard.shard_file import Shard
from ..shard.shard_lanes import ShardLanes, Tx
from ..tables import dedup, outputs

STEP: Final = 100
"""The number of dedup ids that one transaction removes, or of lanes that it reads: a few milliseconds of the write lock."""
STEPS_MAX: Final = 40
"""The maximum number of steps of each kind in one turn of a shard. The rest is left to the next turn."""
OUTPUTS_SECONDS: Final = 60
"""How often to look for outputs while none are kept: another process may change that."""


class Forgetting:
    """The background removal in one shard, in this process. Knows when to look again, in queue time."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._dedups_at = 0
        self._outputs_at = 0
        self._lanes_at = 0
        self._parked_at = 0
        self._after = b""
        """The last key that the walk over the lanes has read; empty: it begins anew."""

    def turn(self, now: int, config: QueueConfig) -> int:
        """Remove what is due, in bounded steps. Return when the next turn is due, in queue time.

        Raises:
            StoreError: the shard failed; earlier steps took effect.
        """
        if now >= self._dedups_at:
            self._forget_dedups(now, config)
        if now >= self._outputs_at:
            self._forget_outputs(now, config)
        if now >= self._parked_at:
            self._forget_parked(now)
        due = min(self._dedups_at, self._outputs_at, self._parked_at)
        if config.idle_lane_seconds is None:
            return due
        if now >= self._lanes_at:
            self._forget_idle(now, int(config.idle_lane_seconds * SECOND))
        return min(due, self._lanes_at)

    def _forget_dedups(self, now: int, config: QueueConfig) -> None:
        for _ in range(STEPS_MAX):
            soonest: int | None = self._shard.glance(dedup.soonest)
            if soonest is None or soonest > now:
                later = now + int(config.dedup_window_seconds * SECOND)  # ids that arrive until then are kept for longer
                self._dedups_at = later if soonest is None else min(soonest, later)
                return
            self._shard.run(_forget_dedups)

    def _forget_outputs(self, now: int, config: QueueConfig) -> None:
        for _ in range(STEPS_MAX):
            soonest = self._shard.view(_next_output)
            if soonest is None or soonest > now:
                later = now + int((config.output_seconds or OUTPUTS_SECONDS) * SECOND)
                self._outputs_at = later if soonest is None else min(soonest, later)
                return
            self._shard.run(_forget_outputs)

    def _forget_idle(self, now: int, idle: int) -> None:
        """Forget idle lanes: changed ones, which must be folded, and then those of the rows."""
        oldest, left = now - idle, STEPS_MAX
        if not self._after:
            found = self._shard.view(lambda lanes: steps.idle_in_memory(lanes, oldest, -NEVER, STEP))
            self._run_forget(found, oldest)
            left -= bool(found)
        for _ in range(left):
            last, keys = self._shard.view(lambda lanes: steps.idle_at_rest(lanes, self._after, STEP, oldest))
            if last is None:
                self._after, self._lanes_at = b"", now + idle // 2
                return
            self._run_forget(keys, oldest)
            self._after = last

    def _forget_parked(self, now: int) -> None:
        """Do the same for the lanes of parked messages that ended."""
        oldest, after = now - steps.REPEATED_WITHIN, b""
        self._run_forget(self._shard.view(lambda lanes: steps.idle_in_memory(lanes, -NEVER, oldest, STEP)), oldest)
        for _ in range(STEPS_MAX):
            last, keys = self._shard.view(bound(steps.parked_at_rest, after, STEP, oldest))
            if last is None:
                self._parked_at = now + steps.REPEATED_WITHIN
                return
            self._run_forget(keys, oldest)
            after = last

    def _run_forget(self, keys: list[bytes], oldest: int) -> None:
        if keys:
            self._shard.run(lambda tx: steps.forget(tx, keys, oldest))


def _forget_dedups(tx: Tx) -> None:
    dedup.forget_some(tx.db, tx.now, STEP)


def _next_output(lanes: ShardLanes) -> int | None:
    return outputs.soonest(lanes.db) if outputs.has_table(lanes.memory.mark) else None


def _forget_outputs(tx: Tx) -> None:
    outputs.forget_some(tx.db, tx.now, STEP)
