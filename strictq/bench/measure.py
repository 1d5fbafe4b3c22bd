"""Measure the rates of send, receive and ack for strictq and for the floor, alternately in one run."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

import attrs

import strictq
from strictq.bench.floor import PAGE_BYTES, WAL_PAGES, Floor, Row, rows

LARGE_BYTES: Final = 100_000
LARGE_BATCH: Final = 20
WARM_AT_ONCE: Final = 10_000
PHASES: Final = ("send", "receive", "ack", "whole life", "send one by one")
Seconds = defaultdict[str, float]


@attrs.frozen(kw_only=True)
class BenchPlan:
    """The parameters of a measurement.

    Attributes:
        messages: number per round, in batches of `batch`; singles: number per round that are sent one by one.
    """

    durability: Literal["full", "process"]
    messages: int
    singles: int
    batch: int
    keys: int
    body_bytes: int
    rounds: int


@attrs.frozen
class Figure:
    """One line of the result: messages per second of strictq and of the floor, medians of the rounds, and their ratio.

    Attributes:
        low, high: the smallest and the largest ratio of a round.
    """

    what: str
    strictq: float
    floor: float
    ratio: float
    low: float
    high: float


def measure(directory: Path, plan: BenchPlan) -> Iterator[list[Figure]]:
    """Measure in an existing directory. After each round, yield the figures so far."""
    body = bytes(i * 167 % 251 for i in range(plan.body_bytes))
    keys = [f"key-{n}" for n in range(plan.keys)]
    todo = [strictq.Message(body, key=keys[i * 7919 % plan.keys]) for i in range(plan.messages)]
    lines = rows(plan.messages, body)
    ours: list[Seconds] = []
    base: list[Seconds] = []
    with ExitStack() as stack:
        floor = stack.enter_context(Floor(directory / "floor", plan.durability))
        config = strictq.QueueConfig(lease_seconds=3600.0)
        q = stack.enter_context(strictq.open(directory / "queue", durability=plan.durability, config=config))
        warm(q, keys)
        sides: list[Callable[[], None]] = [
            lambda: base.append(_floor(floor, lines, plan)),
            lambda: ours.append(_queue(q, todo, plan)),
        ]
        for number in range(plan.rounds):
            for side in sides if number % 2 else reversed(sides):
                side()
            yield _figures(ours, base, plan)


def warm(q: strictq.Queue, keys: list[str]) -> None:
    """Create every lane and grow the WAL to its full size, as in a long-running queue. Leave the queue empty.

    The floor's WAL has its full size, too. A durable commit to a growing WAL costs twice as much.
    """
    for start in range(0, len(keys), WARM_AT_ONCE):
        q.send_many([strictq.Message(b"", key=key) for key in keys[start : start + WARM_AT_ONCE]])
        drain(q)
    for _ in range(WAL_PAGES * PAGE_BYTES // (LARGE_BYTES * LARGE_BATCH) + 1):
        q.send_many([strictq.Message(bytes(LARGE_BYTES), key=keys[n % len(keys)]) for n in range(LARGE_BATCH)])
        drain(q)


def drain(q: strictq.Queue, batch: int = 10_000) -> int:
    """Receive and ack until no message is ready. Return the number of messages."""
    done = 0
    while ds := q.receive(batch):
        q.ack_many(ds)
        done += len(ds)
    return done


def _queue(q: strictq.Queue, todo: list[strictq.Message], plan: BenchPlan) -> Seconds:
    spent: Seconds = defaultdict(float)
    clock = time.perf_counter
    for start in range(0, len(todo), plan.batch):
        part = todo[start : start + plan.batch]
        a = clock()
        q.send_many(part)
        b = clock()
        spent["send"] += b - a
        missing = len(part)
        while missing:
            a = clock()
            ds = q.receive(missing)
            b = clock()
            q.ack_many(ds)
            spent["receive"] += b - a
            spent["ack"] += clock() - b
            missing -= len(ds)
    a = clock()
    for m in todo[: plan.singles]:
        q.send(m.body, m.key)
    spent["send one by one"] = clock() - a
    drain(q)
    return spent


def _floor(floor: Floor, lines: list[Row], plan: BenchPlan) -> Seconds:
    spent: Seconds = defaultdict(float)
    clock = time.perf_counter
    for start in range(0, len(lines), plan.batch):
        part = lines[start : start + plan.batch]
        a = clock()
        floor.append(part)
        b = clock()
        floor.read(len(part))
        c = clock()
        floor.delete(len(part))
        spent["send"] += b - a
        spent["receive"] += c - b
        spent["ack"] += clock() - c
    a = clock()
    floor.append_one_by_one(lines[: plan.singles])
    spent["send one by one"] = clock() - a
    floor.empty()
    return spent


def _figures(ours: list[Seconds], base: list[Seconds], plan: BenchPlan) -> list[Figure]:
    found = []
    for what in PHASES:
        number = min(plan.singles, plan.messages) if what == "send one by one" else plan.messages
        a, b = ([number / _spent(seconds, what) for seconds in side] for side in (ours, base))
        ratios = [x / y for x, y in zip(a, b, strict=True)]
        found.append(
            Figure(what, statistics.median(a), statistics.median(b), statistics.median(ratios), min(ratios), max(ratios))
        )
    return found


def _spent(seconds: Seconds, what: str) -> float:
    if what == "whole life":
        return sum(seconds[part] for part in ("send", "receive", "ack"))
    return seconds[what]
