"""What a worker expects of a message: what it says, what the worker or the queue was told, or what was learned."""

from __future__ import annotations

import attrs

from .._config import QueueConfig
from .._durations import Model
from .margin import Margin


@attrs.define
class Estimates:
    """What a worker expects of a message: what the message says, else what the worker was told, else what the queue's
    configuration says, else what was learned.

    Attributes:
        given_…: seconds a stage takes, as the worker was told, or else the queue; None: learned.
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

    def take_defaults(self, config: QueueConfig) -> None:
        """Expect what the queue's configuration says, where the worker was told nothing."""
        self.given_prepare = config.prepare_seconds if self.given_prepare is None else self.given_prepare
        self.given_process = config.process_seconds if self.given_process is None else self.given_process

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
