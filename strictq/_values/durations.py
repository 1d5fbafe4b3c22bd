"""Estimates of handler durations, learned per stage from measured durations as a function of the message's size.

A weighted linear regression of duration on size. The newest sample has weight 1/HORIZON, so the estimate follows a change
within a few hundred messages. The error of an outlier is clipped, so that a wrong size hint
or one disk stall does not distort the estimate.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import attrs

from .stats import DurationEstimate

HORIZON: Final = 100
"""The number of most recent samples that determine the estimate."""
OUTLIER: Final = 6.0
"""Errors are clipped to this many mean deviations."""
SIZE_MAX: Final = 1e12
SECONDS_MAX: Final = 1e9


@attrs.define
class Model:
    """The learned durations of one stage, in seconds, by size in the unit of the size hints.

    Attributes:
        samples: number of durations learned.
        mean_size, mean_seconds: weighted means.
        variance: of the sizes; covariance: of sizes and seconds; deviation: mean absolute error of the estimates, seconds.
    """

    samples: int = 0
    mean_size: float = 0.0
    mean_seconds: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0
    deviation: float = 0.0

    def learn(self, size: float, seconds: float) -> None:
        """Learn one duration. Ignore negative values and NaN."""
        if not (0.0 <= seconds <= SECONDS_MAX) or not size >= 0.0:
            return
        size = min(size, SIZE_MAX)
        n = self.samples
        if n == 0:
            self.samples, self.mean_size, self.mean_seconds = 1, size, seconds
            return
        expected = self._line(size)
        off = seconds - expected
        if n >= 10 and self.deviation > 0.0:
            limit = OUTLIER * self.deviation
            off = min(max(off, -limit), limit)
            seconds = max(0.0, expected + off)
        weight = max(1.0 / (n + 1), 1.0 / HORIZON)
        keep = 1.0 - weight
        distance = size - self.mean_size
        self.covariance = keep * (self.covariance + weight * distance * (seconds - self.mean_seconds))
        self.variance = keep * (self.variance + weight * distance * distance)
        self.mean_size += weight * distance
        self.mean_seconds += weight * (seconds - self.mean_seconds)
        self.deviation += max(weight, 1.0 / 30 if n > 30 else weight) * (abs(off) - self.deviation)
        self.samples = n + 1

    @property
    def slope(self) -> float:
        """Seconds per unit of size; 0 if the sizes differ too little to fit a slope."""
        if self.variance <= 1e-9 * (1.0 + self.mean_size * self.mean_size):
            return 0.0
        # Shrunk while there are few samples, because two points always fit a line.
        return self.covariance / self.variance * min(1.0, self.samples / 5)

    def _line(self, size: float) -> float:
        return self.mean_seconds + self.slope * (size - self.mean_size)

    def predict(self, size: float) -> float | None:
        """Return the estimated seconds for a message of that size, never negative; None: nothing was learned."""
        if self.samples == 0:
            return None
        if not size >= 0.0:
            return self.mean_seconds
        return max(0.0, self._line(min(size, SIZE_MAX)))

    def snapshot(self) -> DurationEstimate:
        """Return the current estimate as a report for users."""
        return DurationEstimate(self.samples, self.mean_seconds, self.mean_size, self.slope, self.deviation)

    def to_json(self) -> str:
        """Return the stored form."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Model:
        """Read the stored form. An unreadable value gives an empty model, which learns again."""
        if not text:
            return cls()
        try:
            values: dict[str, Any] = json.loads(text)
            samples = int(values.pop("samples"))
            model = cls(samples, **{name: float(value) for name, value in values.items()})
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
            return cls()
        numbers = (model.mean_size, model.mean_seconds, model.variance, model.covariance, model.deviation)
        return model if model.samples >= 0 and all(map(math.isfinite, numbers)) else cls()
