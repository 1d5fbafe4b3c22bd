"""One message at a time: every call is a commit and, at full durability, an fsync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.bench import Bench
from benchmarks.measure import Durability, Figure
from benchmarks.workload import drain, life_in_transactions, life_one_by_one, send_one_by_one
from strictq import Message, Queue
from strictq.bench.floor import Floor

LIFE_GOALS: Final[tuple[tuple[Durability, float], ...]] = (("process", 0.40), ("full", 0.65))
SEND_GOALS: Final[tuple[tuple[Durability, float], ...]] = (("process", 0.55), ("full", 0.70))
REHEARSALS: Final = 3


def one_by_one(bench: Bench) -> Iterator[Figure]:
    for durability, goal in LIFE_GOALS:
        yield _life(bench, "one-by-one", durability, "whole life, one at a time", life_one_by_one, goal)


def transactions(bench: Bench) -> Iterator[Figure]:
    yield _life(bench, "transactions", "full", "the same, acked by a transaction with key_state", life_in_transactions, None)


def send(bench: Bench) -> Iterator[Figure]:
    for durability, goal in SEND_GOALS:
        pairs = bench.against_floor(
            f"send-{durability}",
            durability,
            bench.sizes.singles,
            bench.sizes.keys,
            send_one_by_one,
            Floor.append_one_by_one,
            after_ours=drain,
            after_base=Floor.empty,
            rehearsals=REHEARSALS if durability == "full" else 0,
        )
        yield pairs.figure(
            "send",
            "a single durable send" if durability == "full" else "a single send",
            "autocommit insert",
            goal=bench.goal("at least", goal),
            durability=durability,
            batch=1,
            keys=bench.sizes.keys,
        )


def _life(
    bench: Bench,
    name: str,
    durability: Durability,
    what: str,
    ours: Callable[[Queue, list[Message]], None],
    goal: float | None,
) -> Figure:
    pairs = bench.against_floor(
        f"{name}-{durability}",
        durability,
        bench.sizes.singles,
        bench.sizes.keys,
        ours,
        lambda floor, lines: floor.life(lines, 1),
        rehearsals=REHEARSALS if durability == "full" else 0,
    )
    return pairs.figure(
        name,
        what,
        "floor, one at a time",
        goal=None if goal is None else bench.goal("at least", goal),
        durability=durability,
        batch=1,
        keys=bench.sizes.keys,
    )
