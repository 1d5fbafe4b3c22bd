"""The safety margin of a worker: how much earlier than estimated prepare starts, learned from estimation errors."""

from __future__ import annotations

import math
from typing import Final

import attrs

from .._values.durations import OUTLIER

JITTER_SECONDS: Final = 0.005


@attrs.define
class Margin:
    """Learns how much earlier than estimated prepare must start.

    Each message adds the margin that it would have needed. The mean and the mean deviation are kept, as TCP does for its
    round trips, and the result is a value that few messages exceed.
    """

    spread: float = 3.0
    samples: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    def learn(self, needed: float) -> None:
        """Add a prepare that should have started `needed` seconds earlier to be just in time; negative: later."""
        if not math.isfinite(needed):
            return
        self.samples += 1
        weight = max(1.0 / self.samples, 1.0 / 20)
        off = needed - self.mean
        if self.samples > 5:  # an outlier is no evidence about the others
            limit = OUTLIER * self.deviation + JITTER_SECONDS
            off = min(max(off, -limit), limit)
        self.mean += weight * off
        self.deviation += weight * (abs(off) - self.deviation)

    @property
    def seconds(self) -> float:
        """The margin in seconds; 0 until a prepare was measured."""
        # The mean deviation of few samples is unreliable.
        sure = min(1.0, self.samples / 10)
        return max(0.0, self.mean + self.spread * sure * self.deviation) if self.samples else 0.0
