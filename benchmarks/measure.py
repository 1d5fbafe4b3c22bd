"""Clocks, byte counters, rounds and figures: the parts of the cases that are independent of queues."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import attrs

ROOT = Path(__file__).resolve().parent.parent
"""The working directory of child processes, so that they find this package whether or not strictq is installed."""

Durability = Literal["full", "process"]
T = TypeVar("T", int, float)
Unit = Literal["of the floor", "times", "ms", "MiB", "bytes", "per second"]


@attrs.frozen
class Sample:
    """One timed run.

    Attributes:
        written: bytes that the process passed to write() during the run.
        processor: seconds of processor time of everything that worked for it.
    """

    seconds: float
    messages: int
    written: int | None = None
    processor: float | None = None

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


@attrs.frozen
class Goal:
    """What a figure should reach."""

    sense: Literal["at least", "below"]
    value: float

    def met_by(self, value: float) -> bool:
        return value >= self.value if self.sense == "at least" else value < self.value


@attrs.frozen(kw_only=True)
class Figure:
    """One measured figure: a line of the table.

    Attributes:
        values: one per round. Their median is reported, and their range as the spread.
        ours, base: median messages per second of strictq and of the other side.
        against: the name of the other side; empty if the figure is not a ratio.
        ours_bytes, base_bytes: bytes written per message, checkpoints included, mean over the rounds.
        ours_processor, base_processor: microseconds of processor time per message, mean over the rounds.
        size: the value that a case varies, for plots: waiting messages, keys, or the batch size.
    """

    case: str
    what: str
    unit: Unit
    values: Sequence[float]
    goal: Goal | None = None
    ours: float | None = None
    base: float | None = None
    against: str = ""
    ours_bytes: float | None = None
    base_bytes: float | None = None
    ours_processor: float | None = None
    base_processor: float | None = None
    durability: Durability | Literal["-"] = "-"
    batch: int | None = None
    keys: int | None = None
    size: int | None = None
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the goal was met; None: there is no goal."""
        return None if self.goal is None else self.goal.met_by(self.median)

    def as_json(self) -> dict[str, Any]:
        """Return the figure as JSON values."""
        fields = attrs.asdict(self)
        return {**fields, "median": self.median, "low": min(self.values), "high": max(self.values), "met": self.met}


@attrs.frozen
class Pairs:
    """Samples of the two sides of a comparison, round by round."""

    ours: list[Sample]
    base: list[Sample]

    def figure(self, case: str, what: str, against: str, *, unit: Unit = "of the floor", **rest: Any) -> Figure:
        """Return the ratio of the two rates as a figure."""
        return Figure(
            case=case,
            what=what,
            unit=unit,
            against=against,
            values=[a.rate / b.rate for a, b in zip(self.ours, self.base, strict=True)],
            ours=statistics.median(s.rate for s in self.ours),
            base=statistics.median(s.rate for s in self.base),
            ours_bytes=bytes_per_message(self.ours),
            base_bytes=bytes_per_message(self.base),
            ours_processor=processor_per_message(self.ours),
            base_processor=processor_per_message(self.base),
            **rest,
        )


def bytes_per_message(samples: Sequence[Sample]) -> float | None:
    """Return the mean bytes over all samples, because checkpoints happen in only some rounds."""
    if any(s.written is None for s in samples):
        return None
    return sum(s.written or 0 for s in samples) / sum(s.messages for s in samples)


def processor_per_message(samples: Sequence[Sample]) -> float | None:
    """Return the mean microseconds over all samples."""
    if any(s.processor is None for s in samples):
        return None
    return 1e6 * sum(s.processor or 0.0 for s in samples) / sum(s.messages for s in samples)


def processor_seconds(process: int) -> float | None:
    """Return the processor seconds of another process so far, with all its threads (Linux only)."""
    try:
        times = [path.read_text(encoding="ascii") for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    except OSError:
        return None
    # In nanoseconds. /proc/PID/stat has steps of 10 ms, which is a whole round here.
    taken = sum(int(text.split()[0]) for text in times)
    return taken / 1e9 if taken else None  # a kernel without this statistic reports 0


def written_bytes(process: int | str = "self") -> int | None:
    """Return the bytes that a process has passed to write() so far; None if they are not counted."""
    try:
        text = Path(f"/proc/{process}/io").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line[7:]) for line in text.splitlines() if line.startswith("wchar: ")), None)


def sample(
    messages: int,
    action: Callable[[], object],
    counter: Callable[[], int | None] = written_bytes,
    processor: Callable[[], float | None] = time.process_time,
) -> Sample:
    """Run `action` once, timed. `counter` returns the bytes written so far, `processor` the processor time used."""
    before, taken_before = counter(), processor()
    started = time.perf_counter()
    action()
    seconds = time.perf_counter() - started
    return Sample(seconds, messages, grown(before, counter()), grown(taken_before, processor()))


def grown(before: T | None, after: T | None) -> T | None:
    """Return the difference of two counter values; None if they were not counted."""
    return None if before is None or after is None else after - before


def interleave(rounds: int, ours: Callable[[], Sample], base: Callable[[], Sample]) -> Pairs:
    """Run both sides in every round, alternating which goes first, after one warm-up round of each."""
    base()
    ours()
    pairs = Pairs([], [])
    for number in range(rounds):
        if number % 2:
            pairs.ours.append(ours())
            pairs.base.append(base())
        else:
            pairs.base.append(base())
            pairs.ours.append(ours())
    return pairs


@contextmanager
def prebuilt() -> Iterator[None]:
    """Exclude the existing objects, such as messages to send, from garbage collection."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest of the ascending values that `percent` % of them do not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def disk_bytes(directory: Path) -> int:
    """Return the size of all files under a directory."""
    return sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())


def resident_mib(process: int | str = "self") -> tuple[float, float] | None:
    """Return the resident memory of a process now and at its peak, MiB (Linux only)."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return None
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in text.splitlines() if line.endswith(" kB")}
    return found["VmRSS"], found["VmHWM"]


def run_child(role: str, **arguments: object) -> dict[str, Any]:
    """Run a role of `benchmarks.child` in a fresh process, and return its report."""
    with child(role, **arguments) as process:
        return report_of(process)


@contextmanager
def child(role: str, **arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a role of `benchmarks.child`. A line on its stdin, or the end of it, is its signal."""
    command = [sys.executable, "-m", "benchmarks.child", role, json.dumps(arguments, default=os.fspath)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next report of a child: a JSON object from one line."""
    line = _pipe(process.stdout).readline()
    if not line:
        raise RuntimeError(f"a child process ended without a report, exit code {process.wait()}")
    report: dict[str, Any] = json.loads(line)
    return report


def signal_to(process: subprocess.Popen[str]) -> None:
    """Signal a child to continue."""
    pipe = _pipe(process.stdin)
    pipe.write("go\n")
    pipe.flush()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
