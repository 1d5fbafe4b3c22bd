"""The sizes of each form of the benchmarks."""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class Sizes:
    """Numbers of messages, lanes, rounds and seconds.

    Attributes:
        rounds: rounds per comparison, unless --rounds is given.
        keys, wide_keys: number of lanes of the usual and of the wide cases.
        batches, wide_batches, large_batches, full_batches: messages per round, in batches of 1,000, of 1,000 over many
            keys, of 10,000, and of 100 at full durability.
        singles: messages per round if each is a separate commit.
        backlog, small_backlog: number of waiting messages.
        blocked: number of messages in the blocked lane.
        drained: messages that are sent and drained, to measure the disk space afterwards.
        load_seconds: seconds for which single sends are timed under load.
        starts: number of processes started to measure the start.
    """

    name: str
    rounds: int
    keys: int = 1000
    wide_keys: int = 100_000
    batches: int
    wide_batches: int
    large_batches: int
    full_batches: int
    singles: int
    backlog: int
    small_backlog: int = 10_000
    blocked: int
    drained: int
    load_seconds: float
    starts: int


FULL: Final = Sizes(
    name="full",
    rounds=7,
    batches=200_000,
    wide_batches=100_000,
    large_batches=300_000,
    full_batches=50_000,
    singles=4000,
    backlog=10_000_000,
    blocked=1_000_000,
    drained=1_000_000,
    load_seconds=30.0,
    starts=15,
)

SHORT: Final = Sizes(
    name="short",
    rounds=3,
    batches=30_000,
    wide_batches=20_000,
    large_batches=50_000,
    full_batches=8000,
    singles=500,
    backlog=300_000,
    blocked=100_000,
    drained=50_000,
    load_seconds=2.0,
    starts=5,
)

TINY: Final = Sizes(
    name="tiny",
    rounds=1,
    keys=50,
    wide_keys=200,
    batches=2000,
    wide_batches=2000,
    large_batches=2000,
    full_batches=200,
    singles=20,
    backlog=2000,
    small_backlog=200,
    blocked=200,
    drained=500,
    load_seconds=0.1,
    starts=2,
)
