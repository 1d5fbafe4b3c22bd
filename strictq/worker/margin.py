"""The safety margin of a worker: how much earlier than estimated a prepare starts, learned from how wrong estimates were."""

from __future__ import annotations

import math
from typing import Final

import attrs

from .._durations import OUTLIER

JITTER_SECONDS: Final = 0.005


@attrs.define
class Margin:
    """How much earlier than estimated a prepare starts: as much as estimates are usually wrong.

    Fed with how much margin each message would have needed; keeps a mean and a mean deviation of it, as TCP does of its
    round trips, and gives a value that few messages exceed.
    """

    spread: float = 3.0
    samples: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    def learn(self, needed: float) -> None:
        """A prepare that had to be `needed` seconds earlier than its estimate to be just in time; negative: could be later."""
        if not math.isfinite(needed):
            return
        self.samples += 1
        weight = max(1.0 / self.samples, 1.0 / 20)
        off = needed - self.mean
        if self.samples > 5:  # one that waited for something else says nothing of the others
            limit = OUTLIER * self.deviation + JITTER_SECONDS
            off = min(max(off, -limit), limit)
        self.mean += weight * off
        self.deviation += weight * (abs(off) - self.deviation)

    @property
    def seconds(self) -> float:
        """The margin now; 0 until something was learned."""
        # A mean deviation of few samples says little.
        sure = min(1.0, self.samples / 10)
        return max(0.0, self.mean + self.spread * sure * self.deviation) if self.samples else 0.0
