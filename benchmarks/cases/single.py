"""One message at a time, at full durability: every call is a commit, and every commit an fsync."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.bench import Bench
from benchmarks.measure import Figure
from benchmarks.workload import drain, life_in_transactions, life_one_by_one, send_one_by_one
from strictq import Message, Queue
from strictq.bench.floor import Floor


def one_by_one(bench: Bench) -> Iterator[Figure]:
    yield _life(bench, "one-by-one", "whole life, one at a time", life_one_by_one, 0.4)


def transactions(bench: Bench) -> Iterator[Figure]:
    yield _life(bench, "transactions", "the same, acked by a transaction with key_state", life_in_transactions, None)


def send(bench: Bench) -> Iterator[Figure]:
    pairs = bench.against_floor(
        "send",
        "full",
        bench.sizes.singles,
        bench.sizes.keys,
        send_one_by_one,
        Floor.append_one_by_one,
        after_ours=drain,
        after_base=Floor.empty,
    )
    yield pairs.figure(
        "send",
        "a single durable send",
        "autocommit insert",
        goal=bench.goal("at least", 0.6),
        durability="full",
        batch=1,
        keys=bench.sizes.keys,
    )


def _life(bench: Bench, name: str, what: str, ours: Callable[[Queue, list[Message]], None], goal: float | None) -> Figure:
    pairs = bench.against_floor(
        name,
        "full",
        bench.sizes.singles,
        bench.sizes.keys,
        ours,
        lambda floor, lines: floor.life(lines, 1),
    )
    return pairs.figure(
        name,
        what,
        "floor, one at a time",
        goal=None if goal is None else bench.goal("at least", goal),
        durability="full",
        batch=1,
        keys=bench.sizes.keys,
    )
