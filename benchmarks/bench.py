"""The context of a case: sizes, rounds, a directory, and the large backlog that several cases share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from strictq import Message, Queue
from strictq.bench.floor import Floor, Row, rows

from .measure import Durability, Figure, Goal, Pairs, Sample, interleave, prebuilt, sample
from .sizes import Sizes
from .workload import BODY, fill, messages, open_queue, warm

Case = Callable[["Bench"], Iterator[Figure]]


@attrs.define
class Bench:
    """One run of the benchmarks."""

    sizes: Sizes
    rounds: int
    directory: Path
    _backlog: Path | None = None

    def goal(self, sense: str, value: float) -> Goal | None:
        """Return a goal, unless the sizes are too small for it to be meaningful."""
        assert sense in ("at least", "below")
        if self.sizes.name == "tiny":
            return None
        return Goal("at least" if sense == "at least" else "below", value)

    def smaller(self, number: int, meant: int) -> str:
        """Return a note that a figure uses a smaller size than its goal was set for; empty if it does not."""
        return "" if number >= meant else f"{number:,} here, goal for {meant:,}"

    @contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """Create a directory for a case, and remove it afterwards."""
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def backlog(self) -> Path:
        """Return the path of a closed queue with the large backlog at durability "process". It is filled at the first call."""
        if self._backlog is None:
            path = self.directory / "backlog"
            with open_queue(path, "process") as q:
                fill(q, self.sizes.backlog, self.sizes.keys)
            self._backlog = path
        return self._backlog

    def against_floor(
        self,
        name: str,
        durability: Durability,
        number: int,
        keys: int,
        ours: Callable[[Queue, list[Message]], object],
        base: Callable[[Floor, list[Row]], object],
        *,
        after_ours: Callable[[Queue], object] | None = None,
        after_base: Callable[[Floor], object] | None = None,
        rehearsals: int = 0,
    ) -> Pairs:
        """Compare with the floor. Everything is built and every lane exists before the clock starts.

        Args:
            rehearsals: rounds that are not measured. While a WAL grows to its full size, each sync also stores the new size.
            after_ours, after_base: restore each side's initial state; not measured.
        """
        with ExitStack() as stack:
            place = stack.enter_context(self.place(name))
            floor = stack.enter_context(Floor(place / "floor", durability))
            q = stack.enter_context(open_queue(place / "queue", durability))
            warm(q, keys)
            todo, lines = messages(number, keys), rows(number, BODY)
            stack.enter_context(prebuilt())

            def run_ours() -> Sample:
                result = sample(number, lambda: ours(q, todo))
                if after_ours:
                    after_ours(q)
                return result

            def run_base() -> Sample:
                result = sample(number, lambda: base(floor, lines))
                if after_base:
                    after_base(floor)
                return result

            for _ in range(rehearsals):
                run_base()
                run_ours()
            return interleave(self.rounds, run_ours, run_base)
