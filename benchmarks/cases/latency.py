"""The duration of a single send while others send, receive and ack batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measure import Durability, Figure, child, percentile, prebuilt, report_of
from benchmarks.workload import BODY, busy_messages, keep_busy, key_name, open_queue, warm
from strictq import Message, Queue

BATCH = 100
GOAL_MS = 10.0


def latency(bench: Bench) -> Iterator[Figure]:
    levels: tuple[Durability, ...] = ("full", "process")
    for durability in levels:
        with bench.place("latency") as place, open_queue(place / "queue", durability) as q:
            warm(q, bench.sizes.keys)
            with _busy_process(place / "queue", durability, bench.sizes.keys):
                milliseconds = _time_sends(q, bench.sizes.load_seconds, bench.sizes.keys)
            yield from _figures(bench, milliseconds, durability, "a second process")
            with _busy_threads(q, bench.sizes.keys):
                milliseconds = _time_sends(q, bench.sizes.load_seconds, bench.sizes.keys)
            yield from _figures(bench, milliseconds, durability, "2 threads")


def _time_sends(q: Queue, seconds: float, keys: int) -> list[float]:
    """Return the milliseconds of each of as many sends as fit, ascending. The load's consumers drain them."""
    took: list[float] = []
    clock = time.perf_counter
    end = clock() + seconds
    before = clock()
    while before < end:
        q.send(BODY, key_name(len(took) % keys))
        after = clock()
        took.append((after - before) * 1000)
        before = after
    return sorted(took)


def _figures(bench: Bench, ordered: list[float], durability: Durability, load: str) -> Iterator[Figure]:
    rest = " ".join(f"p{p:g} {percentile(ordered, p):.2f}" for p in (50, 99))
    yield Figure(
        case="latency",
        what=f"p99.9 of a single send beside {load}",
        unit="ms",
        values=[percentile(ordered, 99.9)],
        goal=bench.goal("below", GOAL_MS),
        durability=durability,
        batch=BATCH,
        keys=bench.sizes.keys,
        note=f"{rest} max {ordered[-1]:.2f} ms, {len(ordered):,} sends",
    )


@contextmanager
def _busy_process(path: Path, durability: Durability, keys: int) -> Iterator[None]:
    with child("load", path=path, durability=durability, keys=keys, batch=BATCH) as process:
        report_of(process)
        yield


@contextmanager
def _busy_threads(q: Queue, keys: int) -> Iterator[None]:
    stop = threading.Event()
    failed: list[BaseException] = []

    def work(todo: list[Message]) -> None:
        try:
            keep_busy(q, todo, BATCH, stop)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(busy_messages(keys, BATCH, seed),)) for seed in (1, 2)]
    with prebuilt():
        for w in workers:
            w.start()
        try:
            yield
        finally:
            stop.set()
            for w in workers:
                w.join()
    if failed:
        raise failed[0]
