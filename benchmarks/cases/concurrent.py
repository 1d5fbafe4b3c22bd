"""Several threads that send, and two processes that send, receive and ack."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measure import Figure, Sample, child, interleave, prebuilt, report_of, sample, signal_to
from benchmarks.workload import drain, messages, open_queue, send_one_by_one, warm
from strictq import Message, Queue

THREADS = 8
SHARDS = 4


def threads(bench: Bench) -> Iterator[Figure]:
    number, keys = bench.sizes.singles, bench.sizes.keys
    with bench.place("threads") as place, open_queue(place / "queue", "full") as q:
        warm(q, keys)
        todo = messages(number, keys)

        def run(count: int) -> Sample:
            try:
                return _sample_threads(q, todo, count)
            finally:
                drain(q)

        with prebuilt():
            pairs = interleave(bench.rounds, lambda: run(THREADS), lambda: run(1))
    yield pairs.figure(
        "threads",
        f"single sends by {THREADS} threads",
        "1 thread",
        unit="times",
        goal=bench.goal("at least", 2.5),
        durability="full",
        batch=1,
        keys=keys,
    )


def _sample_threads(q: Queue, todo: list[Message], count: int) -> Sample:
    start = threading.Barrier(count + 1)
    failed: list[BaseException] = []

    def work(part: list[Message]) -> None:
        start.wait()
        try:
            send_one_by_one(q, part)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(todo[n::count],)) for n in range(count)]
    for w in workers:
        w.start()

    def all_of_them() -> None:
        start.wait()
        for w in workers:
            w.join()

    result = sample(len(todo), all_of_them)
    if failed:
        raise failed[0]
    return result


def processes(bench: Bench) -> Iterator[Figure]:
    """Compare two processes with one, over one shard, where they take turns, and over several."""
    for shards in (1, SHARDS):
        yield _processes(bench, shards)


def _processes(bench: Bench, shards: int) -> Figure:
    number, keys, batch = bench.sizes.batches, bench.sizes.keys, 1000
    with bench.place("processes") as place:
        path = place / "queue"
        with open_queue(path, "process", shards=shards) as q:
            warm(q, keys)
        pairs = interleave(
            bench.rounds,
            lambda: _sample_processes(path, number, keys, batch, 2),
            lambda: _sample_processes(path, number, keys, batch, 1),
        )
    return pairs.figure(
        "processes",
        f"2 processes, each sends, receives and acks, {shards} shard{'s' if shards > 1 else ''}",
        "1 process",
        unit="times",
        durability="process",
        batch=batch,
        keys=keys,
    )


def _sample_processes(path: Path, number: int, keys: int, batch: int, count: int) -> Sample:
    with ExitStack() as stack:
        part = number // count
        workers = [
            stack.enter_context(child("everything", path=path, number=part, keys=keys, batch=batch, seed=n)) for n in range(count)
        ]
        for w in workers:
            report_of(w)
        for w in workers:
            signal_to(w)
        reports = [report_of(w) for w in workers]
    acked = sum(r["acked"] for r in reports)
    if acked != part * count:
        raise RuntimeError(f"{part * count} messages were sent and {acked} acked")
    # perf_counter is the same clock in all processes of the machine.
    seconds = max(r["ended"] for r in reports) - min(r["started"] for r in reports)
    return Sample(seconds, acked, sum(r["written"] for r in reports) if all(r["written"] for r in reports) else None)
