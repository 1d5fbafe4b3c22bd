"""Clocks, byte counters, rounds and figures: everything the cases share that knows nothing of queues."""

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
"""Where children run, so that they find this package whether or not strictq is installed."""

Durability = Literal["full", "process"]
T = TypeVar("T", int, float)
Unit = Literal["of the floor", "times", "ms", "MiB", "bytes", "per second"]


@attrs.frozen
class Sample:
    """One timed run.

    Attributes:
        written: bytes that the process passed to write() meanwhile.
        processor: seconds of processor time that everything took that worked for it.
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
        values: one per round; what is reported is their median, and their range as the spread.
        ours, base: messages per second of strictq and of what it is compared with, medians.
        against: what `base` is; empty where the figure is no ratio.
        ours_bytes, base_bytes: bytes written per message, checkpoints included, mean over the rounds.
        ours_processor, base_processor: microseconds of processor time per message, mean over the rounds.
        size: what a case varies, for a plot over it: messages that wait, or keys, or a batch.
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
        """None where there is no goal."""
        return None if self.goal is None else self.goal.met_by(self.median)

    def as_json(self) -> dict[str, Any]:
        """Plain values for the JSON file."""
        fields = attrs.asdict(self)
        return {**fields, "median": self.median, "low": min(self.values), "high": max(self.values), "met": self.met}


@attrs.frozen
class Pairs:
    """Samples of the two sides of a comparison, round by round."""

    ours: list[Sample]
    base: list[Sample]

    def figure(self, case: str, what: str, against: str, *, unit: Unit = "of the floor", **rest: Any) -> Figure:
        """The ratio of the two rates."""
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
    """Mean over all samples, because checkpoints come in some rounds and not in others."""
    if any(s.written is None for s in samples):
        return None
    return sum(s.written or 0 for s in samples) / sum(s.messages for s in samples)


def processor_per_message(samples: Sequence[Sample]) -> float | None:
    """Microseconds, mean over all samples."""
    if any(s.processor is None for s in samples):
        return None
    return 1e6 * sum(s.processor or 0.0 for s in samples) / sum(s.messages for s in samples)


def processor_seconds(process: int) -> float | None:
    """Processor time of another process so far, all its threads together (Linux only)."""
    try:
        times = [path.read_text(encoding="ascii") for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    except OSError:
        return None
    # Nanoseconds: what /proc/PID/stat says has steps of 10 ms, which is a whole round here.
    taken = sum(int(text.split()[0]) for text in times)
    return taken / 1e9 if taken else None  # a kernel that does not keep it says 0


def written_bytes(process: int | str = "self") -> int | None:
    """Bytes a process has passed to write() so far, whatever the kernel did with them; None where nobody counts."""
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
    """Run it once, timed; `counter` says how many bytes were written so far, `processor` how much processor time was taken."""
    before, taken_before = counter(), processor()
    started = time.perf_counter()
    action()
    seconds = time.perf_counter() - started
    return Sample(seconds, messages, grown(before, counter()), grown(taken_before, processor()))


def grown(before: T | None, after: T | None) -> T | None:
    """What a counter counted in between; None where nobody counts."""
    return None if before is None or after is None else after - before


def interleave(rounds: int, ours: Callable[[], Sample], base: Callable[[], Sample]) -> Pairs:
    """Both sides in every round, taking turns at going first, after one round of each that does not count."""
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
    """Keep what exists now, such as a list of messages to send, out of the garbage collector's rounds."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values already in order: the smallest one that `percent` % of them do not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def disk_bytes(directory: Path) -> int:
    """Size of all files under a directory."""
    return sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())


def resident_mib(process: int | str = "self") -> tuple[float, float] | None:
    """Resident memory of a process now and at its peak, MiB (Linux only)."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return None
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in text.splitlines() if line.endswith(" kB")}
    return found["VmRSS"], found["VmHWM"]


def run_child(role: str, **arguments: object) -> dict[str, Any]:
    """Run a role of `benchmarks.child` in a fresh process and return what it reports."""
    with child(role, **arguments) as process:
        return report_of(process)


@contextmanager
def child(role: str, **arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A fresh process in a role of `benchmarks.child`; a line on its stdin, or the end of it, is its signal."""
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
    """The next line a child prints: a JSON object."""
    line = _pipe(process.stdout).readline()
    if not line:
        raise RuntimeError(f"a child process ended without a report, exit code {process.wait()}")
    report: dict[str, Any] = json.loads(line)
    return report


def signal_to(process: subprocess.Popen[str]) -> None:
    """Tell a child to go on."""
    pipe = _pipe(process.stdin)
    pipe.write("go\n")
    pipe.flush()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
