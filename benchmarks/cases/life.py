"""A message's whole life: send_many, receive, ack_many, in batches."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.measure import Durability, Figure
from benchmarks.workload import life


def usual(bench: Bench) -> Iterator[Figure]:
    yield _life(bench, "life", "process", 1000, bench.sizes.batches, bench.sizes.keys, 0.34)


def large(bench: Bench) -> Iterator[Figure]:
    yield _life(bench, "life-large", "process", 10_000, bench.sizes.large_batches, bench.sizes.keys, 0.40)


def wide(bench: Bench) -> Iterator[Figure]:
    yield _life(bench, "life-wide", "process", 1000, bench.sizes.wide_batches, bench.sizes.wide_keys, 0.20)


def full(bench: Bench) -> Iterator[Figure]:
    yield _life(bench, "life-full", "full", 100, bench.sizes.full_batches, bench.sizes.keys, 0.60)


def _life(bench: Bench, name: str, durability: Durability, batch: int, number: int, keys: int, goal: float) -> Figure:
    pairs = bench.against_floor(
        name,
        durability,
        number,
        keys,
        lambda q, todo: life(q, todo, batch),
        lambda floor, lines: floor.life(lines, batch),
    )
    return pairs.figure(
        name,
        "whole life of a message",
        "floor",
        goal=bench.goal("at least", goal),
        durability=durability,
        batch=batch,
        keys=keys,
    )
