"""The sizes of each form of the comparison."""

from __future__ import annotations

import math
from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class PeerSizes:
    """Numbers of messages and seconds.

    Attributes:
        rounds: rounds per comparison, unless --rounds is given.
        seconds: the approximate time of a peer in one round, from which its number of messages follows.
        batch_seconds_max: a peer that would take longer for one batch is not run, and a longer round is not repeated.
        fill_seconds: the time limit for filling a peer's backlog. It is measured with the messages sent until then.
        messages: the most messages per round.
        batches, full_batches: batch sizes at "process" and at "full".
        keys, backlogs, blocked, held: the sizes, each with the corresponding size of the long form.
        latencies: number of timed single calls.
    """

    name: str
    rounds: int
    seconds: float
    batch_seconds_max: float
    fill_seconds: float
    messages: int
    usual_keys: int = 1000
    batches: tuple[int, ...] = (1, 10, 100, 1000, 10_000)
    full_batches: tuple[int, ...]
    keys: tuple[tuple[int, int], ...]
    backlogs: tuple[tuple[int, int], ...]
    blocked: tuple[int, int]
    held: tuple[int, int]
    threads: tuple[int, ...] = (1, 8)
    processes: tuple[int, ...] = (1, 2, 4)
    latencies: int


LONG: Final = PeerSizes(
    name="long",
    rounds=3,
    seconds=1.5,
    batch_seconds_max=20.0,
    fill_seconds=180.0,
    messages=500_000,
    full_batches=(1, 10, 100, 1000, 10_000),
    keys=((1, 1), (1000, 1000), (100_000, 100_000), (1_000_000, 1_000_000)),
    backlogs=((10_000, 10_000), (100_000, 100_000), (1_000_000, 1_000_000), (10_000_000, 10_000_000)),
    blocked=(1_000_000, 1_000_000),
    held=(1_000_000, 1_000_000),
    latencies=10_000,
)

SHORT: Final = PeerSizes(
    name="short",
    rounds=2,
    seconds=0.2,
    batch_seconds_max=6.0,
    fill_seconds=4.0,
    messages=50_000,
    full_batches=(1, 100),
    keys=((1, 1), (1000, 1000), (10_000, 100_000), (30_000, 1_000_000)),
    backlogs=((1000, 10_000), (10_000, 1_000_000), (50_000, 10_000_000)),
    blocked=(20_000, 1_000_000),
    held=(20_000, 1_000_000),
    latencies=1000,
)

TINY: Final = PeerSizes(
    name="tiny",
    rounds=1,
    seconds=0.01,
    batch_seconds_max=math.inf,
    fill_seconds=1.0,
    messages=40,
    usual_keys=5,
    batches=(1, 20),
    full_batches=(1,),
    keys=((1, 1), (10, 1000)),
    backlogs=((20, 10_000), (40, 10_000_000)),
    blocked=(20, 1_000_000),
    held=(40, 1_000_000),
    threads=(1, 2),
    processes=(1, 2),
    latencies=5,
)
