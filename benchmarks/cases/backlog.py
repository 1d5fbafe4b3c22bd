"""Waiting messages must not slow down others: a large backlog, a blocked lane, and the disk space that they leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from benchmarks.bench import Bench
from benchmarks.measure import Figure, Sample, disk_bytes, interleave, prebuilt, sample
from benchmarks.workload import drain, fill, fill_lane, life, messages, open_queue, warm
from strictq import Queue

BATCH: Final = 1000
BLOCKED_KEY: Final = "blocked"


def backlog(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    large = bench.backlog()
    with bench.place("small-backlog") as place, ExitStack() as stack:
        q_small = stack.enter_context(open_queue(place / "queue", "process"))
        warm(q_small, sizes.keys)
        fill(q_small, sizes.small_backlog, sizes.keys)
        q_large = stack.enter_context(open_queue(large, "process"))
        yield _compare(
            bench,
            q_large,
            q_small,
            "backlog",
            f"whole life behind a backlog of {sizes.backlog:,}",
            f"backlog of {sizes.small_backlog:,}",
            0.6,
            bench.smaller(sizes.backlog, 10_000_000),
        )


def blocked(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    with bench.place("blocked") as place, ExitStack() as stack:
        q_plain = stack.enter_context(open_queue(place / "plain", "process"))
        q = stack.enter_context(open_queue(place / "queue", "process"))
        warm(q_plain, sizes.keys)
        warm(q, sizes.keys)
        fill_lane(q, sizes.blocked, BLOCKED_KEY)
        note = bench.smaller(sizes.blocked, 1_000_000)
        (d,) = q.receive(1, keys=[BLOCKED_KEY])
        what = f"whole life beside a leased lane of {sizes.blocked:,}"
        yield _compare(bench, q, q_plain, "blocked", what, "no such lane", 0.8, note)
        d.lease.release()
        q.hold(BLOCKED_KEY)
        what = f"whole life beside a held lane of {sizes.blocked:,}"
        yield _compare(bench, q, q_plain, "blocked", what, "no such lane", 0.8, note)


def disk(bench: Bench) -> Iterator[Figure]:
    """Measure the disk space after a backlog was drained, including the write-ahead log."""
    sizes = bench.sizes
    with bench.place("disk") as place, open_queue(place / "queue", "process") as q:
        fill(q, sizes.drained, sizes.keys)
        full = disk_bytes(place) / 2**20
        drain(q)
        drained = disk_bytes(place) / 2**20
    note = f"{full:.0f} MiB before, {full * 2**20 / sizes.drained:.0f} bytes a message"
    yield Figure(
        case="disk",
        what=f"on disk after a drain of {sizes.drained:,}",
        unit="MiB",
        values=[drained],
        durability="process",
        batch=10_000,
        keys=sizes.keys,
        note=note,
    )


def _compare(bench: Bench, ours: Queue, base: Queue, case: str, what: str, against: str, goal: float, note: str) -> Figure:
    todo = messages(bench.sizes.batches, bench.sizes.keys)

    def run(q: Queue) -> Sample:
        return sample(len(todo), lambda: life(q, todo, BATCH))

    with prebuilt():
        pairs = interleave(bench.rounds, lambda: run(ours), lambda: run(base))
    return pairs.figure(
        case,
        what,
        against,
        unit="times",
        goal=bench.goal("at least", goal),
        durability="process",
        batch=BATCH,
        keys=bench.sizes.keys,
        note=note,
    )
