"""The cost of page checksums: a message's life in a queue with them, and in one that was created without."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.bench import Bench
from benchmarks.measure import Figure, Sample, interleave, prebuilt, sample
from benchmarks.workload import life, messages, open_queue, warm
from strictq import Queue
from strictq._store.api import without_checksums

BATCH = 1000


def checksums(bench: Bench) -> Iterator[Figure]:
    number, keys = bench.sizes.batches, bench.sizes.keys
    with ExitStack() as stack:
        place = stack.enter_context(bench.place("checksums"))
        q = stack.enter_context(open_queue(place / "with", "process"))
        stack.enter_context(without_checksums())
        plain = stack.enter_context(open_queue(place / "without", "process"))
        for queue in (q, plain):
            warm(queue, keys)
        todo = messages(number, keys)
        stack.enter_context(prebuilt())
        spent: dict[str, list[float]] = {"with": [], "without": []}

        def run(name: str, queue: Queue) -> Sample:
            before = time.process_time()
            result = sample(number, lambda: life(queue, todo, BATCH))
            spent[name].append(time.process_time() - before)
            return result

        pairs = interleave(bench.rounds, lambda: run("with", q), lambda: run("without", plain))
    yield pairs.figure(
        "checksums",
        "whole life of a message, its pages verified",
        "without checksums",
        unit="times",
        durability="process",
        batch=BATCH,
        keys=keys,
    )
    # The first value of each is dropped, as in the figure above. On a busy machine, this figure is the more reliable one.
    yield Figure(
        case="checksums",
        what="processor time of the same",
        unit="times",
        values=[a / b for a, b in zip(spent["with"][1:], spent["without"][1:], strict=True)],
        against="without checksums",
        durability="process",
        batch=BATCH,
        keys=keys,
    )
