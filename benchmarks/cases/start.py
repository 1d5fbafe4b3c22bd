"""The time to start, and the memory of a large queue. Measured in fresh processes, except for `:memory:`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import strictq
from benchmarks.bench import Bench
from benchmarks.measure import Figure, run_child


def memory(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    report = run_child("memory", path=bench.backlog(), number=sizes.batches, keys=sizes.keys, batch=1000)
    if report["peak"] is None:
        return
    steps = f"{report['imported']:.0f} once imported, {report['opened']:.0f} opened, {report['now']:.0f} at the end"
    yield Figure(
        case="memory",
        what=f"peak resident memory at {sizes.backlog:,} messages, interpreter included",
        unit="MiB",
        values=[report["peak"]],
        goal=bench.goal("below", 120.0),
        durability="process",
        batch=1000,
        keys=sizes.keys,
        note=_join(steps, bench.smaller(sizes.backlog, 10_000_000)),
    )


def opening(bench: Bench) -> Iterator[Figure]:
    path = bench.backlog()
    reports = [run_child("open", path=path) for _ in range(bench.sizes.starts + 1)][1:]
    note = bench.smaller(bench.sizes.backlog, 10_000_000)
    what = f"open a queue with {bench.sizes.backlog:,} messages"
    yield Figure(
        case="open",
        what=what,
        unit="ms",
        values=[r["open"] * 1000 for r in reports],
        goal=bench.goal("below", 20.0),
        durability="process",
        note=note,
    )
    yield Figure(
        case="open",
        what="the same, and receive a first message",
        unit="ms",
        values=[r["first"] * 1000 for r in reports],
        goal=bench.goal("below", 80.0),
        durability="process",
        note=note,
    )
    yield Figure(
        case="open",
        what="open it for reading and count it: stats()",
        unit="ms",
        values=[run_child("stats", path=path)["stats"] * 1000 for _ in range(bench.sizes.starts)],
        durability="process",
        note=note,
    )


def opening_in_memory(bench: Bench) -> Iterator[Figure]:
    milliseconds = []
    for _ in range(bench.sizes.starts + 1):
        started = time.perf_counter()
        q = strictq.open(":memory:")
        milliseconds.append((time.perf_counter() - started) * 1000)
        q.close()
    yield Figure(
        case="open-memory",
        what='open(":memory:")',
        unit="ms",
        values=milliseconds[1:],
        goal=bench.goal("below", 5.0),
        note=f"the first one took {milliseconds[0]:.1f} ms",
    )


def importing(bench: Bench) -> Iterator[Figure]:
    reports = [run_child("import") for _ in range(bench.sizes.starts + 1)][1:]
    yield Figure(
        case="import",
        what="import strictq and reach strictq.open",
        unit="ms",
        values=[r["import"] * 1000 for r in reports],
        goal=bench.goal("below", 70.0),
    )


def _join(*notes: str) -> str:
    return "; ".join(n for n in notes if n)
