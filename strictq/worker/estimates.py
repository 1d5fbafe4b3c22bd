"""What a worker expects of a message: what it says, what the worker was told, or what was learned; and the margin of that."""

from __future__ import annotations

import math
from typing import Final

import attrs

from .._durations import OUTLIER, Model

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


@attrs.define
class Estimates:
    """What a worker expects of a message: what the message says, else what the worker was told, else what was learned.

    Attributes:
        given: seconds a stage takes, as the worker was told; None: learned.
        learning: take in what is measured.
    """

    prepare: Model = attrs.Factory(Model)
    process: Model = attrs.Factory(Model)
    given_prepare: float | None = None
    given_process: float | None = None
    learning: bool = True
    margin: Margin = attrs.Factory(Margin)

    def of_process(self, told: float | None, size: float) -> float | None:
        """Seconds that process will take; None: unknown."""
        if told is not None:
            return told
        return self.given_process if self.given_process is not None else self.process.predict(size)

    def of_prepare(self, told: float | None, size: float) -> float | None:
        """Seconds that prepare will take; None: unknown."""
        if told is not None:
            return told
        return self.given_prepare if self.given_prepare is not None else self.prepare.predict(size)

    def to_rows(self) -> dict[str, str]:
        """What is stored with the queue."""
        return {"prepare": self.prepare.to_json(), "process": self.process.to_json()}

    def load(self, rows: dict[str, str]) -> None:
        """Continue from what is stored."""
        for stage, text in rows.items():
            if stage == "prepare":
                self.prepare = Model.from_json(text)
            elif stage == "process":
                self.process = Model.from_json(text)

    def reset(self) -> None:
        """Forget what was learned."""
        self.prepare, self.process, self.margin = Model(), Model(), Margin()
