"""How long handlers take: learned for each stage from what they took, as a function of the message's size.

A weighted linear regression of duration on size. Old samples fade: the newest one counts 1/HORIZON, so it follows a change
within a few hundred messages. A sample that is far off what was expected counts as less far off, so that a lying size hint
or one stalled disk does not spoil what was learned.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import attrs

from ._stats import DurationEstimate

HORIZON: Final = 100
"""Samples that count."""
OUTLIER: Final = 6.0
"""Mean deviations beyond which a sample counts as this far off."""
SIZE_MAX: Final = 1e12
SECONDS_MAX: Final = 1e9


@attrs.define
class Model:
    """What is known of one stage's durations. Seconds, and whatever unit size hints have.

    Attributes:
        samples: how many were learned from.
        mean_size, mean_seconds: weighted means.
        variance: of the sizes; covariance: of sizes and seconds; deviation: mean distance from what was expected, seconds.
    """

    samples: int = 0
    mean_size: float = 0.0
    mean_seconds: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0
    deviation: float = 0.0

    def learn(self, size: float, seconds: float) -> None:
        """Take in one duration. What is no number, or negative, is not one."""
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
        """Seconds per unit of size; 0 where sizes do not differ enough to say."""
        if self.variance <= 1e-9 * (1.0 + self.mean_size * self.mean_size):
            return 0.0
        # Shrunk while there are few samples: two points make a line, but not a law.
        return self.covariance / self.variance * min(1.0, self.samples / 5)

    def _line(self, size: float) -> float:
        return self.mean_seconds + self.slope * (size - self.mean_size)

    def predict(self, size: float) -> float | None:
        """Seconds for a message of that size, never negative; None: nothing was learned."""
        if self.samples == 0:
            return None
        if not size >= 0.0:
            return self.mean_seconds
        return max(0.0, self._line(min(size, SIZE_MAX)))

    def snapshot(self) -> DurationEstimate:
        """What is known now, for people."""
        return DurationEstimate(self.samples, self.mean_seconds, self.mean_size, self.slope, self.deviation)

    def to_json(self) -> str:
        """The stored form."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Model:
        """Read the stored form; what can't be read counts as nothing learned: it is learned again."""
        try:
            values: dict[str, Any] = json.loads(text)
            samples = int(values.pop("samples"))
            model = cls(samples, **{name: float(value) for name, value in values.items()})
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
            return cls()
        numbers = (model.mean_size, model.mean_seconds, model.variance, model.covariance, model.deviation)
        return model if model.samples >= 0 and all(map(math.isfinite, numbers)) else cls()
