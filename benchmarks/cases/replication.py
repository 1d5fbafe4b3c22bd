"""What shipping to a directory costs the process that does it: the same work in a queue that ships, and in one that does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs

import strictq
from benchmarks.bench import Bench
from benchmarks.measure import Durability, Figure, Pairs, Sample, interleave, prebuilt, sample
from benchmarks.workload import life, messages, open_queue, warm
from strictq import Message, Queue

INTERVAL_SECONDS: Final = 0.2
GOAL: Final = 0.85
PATIENCE_SECONDS: Final = 60.0
Work = Callable[[Queue, list[Message]], object]


def batches(bench: Bench) -> Iterator[Figure]:
    """Send, receive and ack, in batches of 100 and of 1,000."""
    for batch in (100, 1000):
        yield from _compared(
            bench,
            "batches",
            "whole life of a message, shipped",
            "process",
            bench.sizes.batches // (2000 // batch if batch < 1000 else 1),
            lambda q, todo, batch=batch: life(q, todo, batch),  # type: ignore[misc]
            batch=batch,
        )


def sends(bench: Bench) -> Iterator[Figure]:
    """Single durable sends."""

    def one_by_one(q: Queue, todo: list[Message]) -> None:
        for m in todo:
            q.send(m.body, m.key)

    yield from _compared(
        bench, "sends", "single durable sends, shipped", "full", bench.sizes.singles, one_by_one, after=Queue.purge, batch=1
    )


def _compared(
    bench: Bench,
    case: str,
    what: str,
    durability: Durability,
    number: int,
    work: Work,
    *,
    batch: int,
    after: Callable[[Queue], object] = lambda _q: None,
) -> Iterator[Figure]:
    keys = bench.sizes.keys
    with ExitStack() as stack:
        place = stack.enter_context(bench.place("replication"))
        shipped = stack.enter_context(open_queue(place / "shipped", durability))
        plain = stack.enter_context(open_queue(place / "plain", durability))
        shipped.configure_replication(place / "target", interval_seconds=INTERVAL_SECONDS)
        for q in (shipped, plain):
            warm(q, keys)
        until_shipped(shipped)
        todo = messages(number, keys)
        stack.enter_context(prebuilt())
        lags: list[float] = []
        stored: list[float] = []

        def run(q: Queue) -> Sample:
            before, spent = stored_bytes(place / "target"), time.process_time()
            found = sample(number, lambda: work(q, todo))
            if q is shipped:
                lags.append(_lag(q))
                until_shipped(q)
                stored.append((stored_bytes(place / "target") - before) / number)
            found = attrs.evolve(found, processor=time.process_time() - spent)
            after(q)
            until_shipped(shipped)
            return found

        pairs = interleave(bench.rounds, lambda: run(shipped), lambda: run(plain))
    yield pairs.figure(
        case, what, "not shipped", unit="times", goal=bench.goal("at least", GOAL), durability=durability, batch=batch, keys=keys
    )
    yield _processor(case, pairs, durability, batch, keys)
    at = {"durability": durability, "batch": batch, "keys": keys}
    yield Figure(case=case, what="bytes shipped a message", unit="bytes", values=stored[1:], **at)  # type: ignore[arg-type]
    yield Figure(case=case, what="lag at the end of a round", unit="ms", values=lags[1:], **at)  # type: ignore[arg-type]


def _processor(case: str, pairs: Pairs, durability: Durability, batch: int, keys: int) -> Figure:
    return Figure(
        case=case,
        what="processor time of the same, shipping included",
        unit="times",
        values=[(a.processor or 0) / (b.processor or 1) for a, b in zip(pairs.ours, pairs.base, strict=True)],
        against="not shipped",
        durability=durability,
        batch=batch,
        keys=keys,
    )


def restores(bench: Bench) -> Iterator[Figure]:
    """Making a queue of a base and what followed, in messages a second."""
    number = min(bench.sizes.drained, 1_000_000)
    with bench.place("restore") as place:
        with open_queue(place / "q", "process") as q:
            q.configure_replication(place / "target", interval_seconds=INTERVAL_SECONDS)
            for start in range(0, number, 10_000):
                q.send_many(messages(min(10_000, number - start), bench.sizes.keys, seed=start))
        rates = []
        for n in range(bench.rounds):
            started = time.perf_counter()
            strictq.restore(place / "target", place / f"r{n}")
            rates.append(number / (time.perf_counter() - started))
    yield Figure(
        case="restores",
        what=f"messages restored, of {number:,}",
        unit="per second",
        values=rates,
        goal=bench.goal("at least", 500_000),
        durability="process",
    )


def until_shipped(q: Queue) -> None:
    """Wait until the replica has everything."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (found := q.replication()) is not None and (found.lag_bytes or found.segment is None):
        if time.monotonic() > end:
            raise RuntimeError(f"it was never shipped: {found.last_error}")
        time.sleep(0.005)


def _lag(q: Queue) -> float:
    found = q.replication()
    return 1000 * (found.lag_seconds or 0.0) if found is not None else 0.0


def stored_bytes(target: Path) -> int:
    return sum(file.stat().st_size for file in target.glob("*.seg"))
