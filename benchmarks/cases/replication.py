"""The cost of a replica for the process that ships: the same work in a queue with one, and in a queue without."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs

import strictq
from benchmarks.bench import Bench
from benchmarks.measure import Durability, Figure, Pairs, Sample, child, interleave, prebuilt, report_of, sample
from benchmarks.workload import life, messages, open_queue, send_one_by_one, warm
from strictq import Message, Queue

INTERVAL_SECONDS: Final = 0.2
GOAL: Final = 0.85
THREADS: Final = 16
PATIENCE_SECONDS: Final = 60.0
Work = Callable[[Queue, list[Message]], object]
Ships = Callable[[Queue, Path], AbstractContextManager[object]]
"""Ships a queue to a directory's target for the duration of the block."""


@contextmanager
def to_directory(q: Queue, place: Path) -> Iterator[None]:
    q.configure_replication(place / "target", interval_seconds=INTERVAL_SECONDS)
    yield


@contextmanager
def to_confirming_replica(q: Queue, place: Path) -> Iterator[None]:
    """Ship to a replica in a separate process on this machine and its disk. Every call waits for it."""
    (place / "token").write_text(secrets.token_urlsafe(32), encoding="ascii")
    with child("replica", path=place / "replica", token_file=place / "token") as process:
        address = report_of(process)["address"]
        q.configure_replication(f"tcp://{address}", "confirmed", token_file=place / "token")
        try:
            yield
        finally:
            q.detach()


def batches(bench: Bench) -> Iterator[Figure]:
    """Measure send, receive and ack in batches of 100 and of 1,000."""
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
    """Measure single durable sends."""
    yield from _compared(
        bench, "sends", "single durable sends, shipped", "full", bench.sizes.singles, send_one_by_one, after=Queue.purge, batch=1
    )


def confirmed(bench: Bench) -> Iterator[Figure]:
    """Measure the same with every call waiting for a replica in another process."""
    for batch, goal in ((100, 0.5), (1000, 0.8)):
        yield from _compared(
            bench,
            "confirmed",
            "whole life of a message, confirmed",
            "process",
            bench.sizes.batches // (2000 // batch if batch < 1000 else 1),
            lambda q, todo, batch=batch: life(q, todo, batch),  # type: ignore[misc]
            batch=batch,
            ships=to_confirming_replica,
            goal=goal,
        )
    yield from _compared(
        bench,
        "confirmed",
        f"single durable sends by {THREADS} threads, confirmed",
        "full",
        bench.sizes.singles,
        _by_threads,
        after=Queue.purge,
        batch=1,
        ships=to_confirming_replica,
        goal=0.3,
    )
    yield from _compared(
        bench,
        "confirmed",
        "single durable sends, confirmed",
        "full",
        bench.sizes.singles // 4,
        send_one_by_one,
        after=Queue.purge,
        batch=1,
        ships=to_confirming_replica,
        goal=None,
    )


def _by_threads(q: Queue, todo: list[Message]) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        for done in [threads.submit(send_one_by_one, q, todo[n::THREADS]) for n in range(THREADS)]:
            done.result()


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
    ships: Ships = to_directory,
    goal: float | None = GOAL,
) -> Iterator[Figure]:
    keys = bench.sizes.keys
    with ExitStack() as stack:
        place = stack.enter_context(bench.place("replication"))
        shipped = stack.enter_context(open_queue(place / "shipped", durability))
        plain = stack.enter_context(open_queue(place / "plain", durability))
        stack.enter_context(ships(shipped, place))
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
        case,
        what,
        "not shipped",
        unit="times",
        goal=None if goal is None else bench.goal("at least", goal),
        durability=durability,
        batch=batch,
        keys=keys,
    )
    yield _processor(case, pairs, durability, batch, keys)
    if ships is not to_directory:
        return
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
    """Measure the restore of a base and its later segments, in messages per second."""
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
    """Wait until the replica has all changes."""
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
