"""A worker's estimates: the message's own, else the worker's or the queue's, else the learned ones."""

from __future__ import annotations

import math
from typing import Final

import attrs

from .._values.config import QueueConfig
from .._values.durations import OUTLIER, Model

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


@attrs.define
class Estimates:
    """The durations that a worker expects, by priority: the message's own estimate, the worker's arguments, the queue's
    configuration, the learned durations.

    Attributes:
        given_…: seconds from the worker's arguments or the queue's configuration; None: learned.
        learning: whether to learn measured durations.
    """

    prepare: Model = attrs.Factory(Model)
    process: Model = attrs.Factory(Model)
    given_prepare: float | None = None
    given_process: float | None = None
    learning: bool = True
    margin: Margin = attrs.Factory(Margin)

    def of_process(self, given: float | None, size: float) -> float | None:
        """Return the estimated seconds of process; None: unknown. `given` is the message's own estimate."""
        if given is not None:
            return given
        return self.given_process if self.given_process is not None else self.process.predict(size)

    def of_prepare(self, given: float | None, size: float) -> float | None:
        """Return the estimated seconds of prepare; None: unknown. `given` is the message's own estimate."""
        if given is not None:
            return given
        return self.given_prepare if self.given_prepare is not None else self.prepare.predict(size)

    def to_rows(self) -> dict[str, str]:
        """Return the form that is stored with the queue."""
        return {"prepare": self.prepare.to_json(), "process": self.process.to_json()}

    def take_defaults(self, config: QueueConfig) -> None:
        """Use the queue's configuration where the worker has no argument."""
        self.given_prepare = config.prepare_seconds if self.given_prepare is None else self.given_prepare
        self.given_process = config.process_seconds if self.given_process is None else self.given_process

    def load(self, rows: dict[str, str]) -> None:
        for stage, text in rows.items():
            if stage == "prepare":
                self.prepare = Model.from_json(text)
            elif stage == "process":
                self.process = Model.from_json(text)

    def reset(self) -> None:
        """Delete the learned models."""
        self.prepare, self.process, self.margin = Model(), Model(), Margin()
