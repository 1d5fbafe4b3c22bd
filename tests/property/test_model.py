"""Walks of the program of tests/support/program.py, on disk and in memory, in blocking and in awaited form.

After every step each lane, the dead letters, the statistics and the program's own table must agree with the model, and after some
`check()` must find nothing. At the end everything is drained, and every message must be resolved. In most walks lanes are folded
after a few rows. After each fold, the memories of both objects must equal one that is built from the tables. In some walks,
another process and a fork of it open a copy of the queue after the first folds. At the end they also open a restored copy and a
promoted replica.

STRICTQ_HYPOTHESIS_EXAMPLES=2000 runs that many walks of 80 steps per form instead of the default few short ones.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from tempfile import TemporaryDirectory
from typing import Any

import anyio.from_thread
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import strictq
from strictq.testing import FakeClock
from tests.support.blocking import open_blocking
from tests.support.folds import Folds, narrow
from tests.support.model import Model, Settings
from tests.support.program import KEYS, Program, begin
from tests.support.running import fast_directory
from tests.support.witness import Witness, require_same

EXAMPLES = int(os.environ.get("STRICTQ_HYPOTHESIS_EXAMPLES", "0"))
STEPS = 80 if EXAMPLES else 30
CHECKED = 4
"""After so many steps of a short walk, and at its end, `check()` looks for what the model cannot see. It takes half the time."""
WITNESSED_FOLDS = 4
"""After so many folds of a walk, another process opens a copy."""


class Folded:
    """How many walks had small windows, and how often logs were cut in walks."""

    narrowed = 0
    count = 0


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Another process that opens copies of the queues of this module."""
    with fast_directory(tmp_path_factory.mktemp("witness")) as place, closing(Witness(place)) as witness:
        yield witness
    assert Folded.count or not Folded.narrowed, "nothing was folded"


def some_settings(r: random.Random) -> Settings:
    max_attempts = r.choice([1, 2, 3, None])
    policy: Any = r.choice(["dead_letter", "hold", "drop"])
    return Settings(
        max_attempts=max_attempts,
        on_poison=policy if max_attempts else "dead_letter",
        retry_delay_seconds=r.choice([0.0, 0.0, 0.7]),
        retry_for_seconds=r.choice([0.0, 40.7]),
        on_expire=r.choice(["drop", "dead_letter"]),
        ttl_seconds=r.choice([None, None, 100.5]),
    )


def walk(r: random.Random, other: Witness, *, in_memory: bool, awaited: bool) -> None:
    clock, folds = FakeClock(), Folds()
    given_settings, shards = some_settings(r), r.choice((1, 2, 3, 4))
    window, step = r.choice((None, 1, 3, 8)), r.choice((1, 2))
    witnessed = r.choice([True] if EXAMPLES else [False] * 9 + [True]) and not in_memory
    with ExitStack() as stack:
        place = ":memory:" if in_memory else stack.enter_context(TemporaryDirectory(prefix="strictq-model-"))
        portal = stack.enter_context(anyio.from_thread.start_blocking_portal()) if awaited else None
        if window is not None and not in_memory:
            Folded.narrowed += 1
            stack.enter_context(narrow(window, step))

        def open_(**options: Any) -> Any:
            options |= {"durability": "process", "clock": clock}
            return strictq.open(place, **options) if portal is None else open_blocking(portal, place, **options)

        def bare() -> list[Any]:
            """Return the different objects, as the store's tests need them."""
            return [q.sync if awaited else q for q in dict.fromkeys(program.queues)]

        queues = begin(open_, given_settings, shards=shards, in_memory=in_memory)
        program = Program(r, queues, Model(given_settings, one_shard=shards == 1), clock, open_)
        stack.callback(program.close)
        for n in range(STEPS):
            program.step()
            program.agree(check=bool(EXAMPLES) or n % CHECKED == 0)
            # In memory there are no logs.
            if not in_memory and folds.watch(*bare()) and witnessed and folds.count <= WITNESSED_FOLDS:
                other.require(bare()[0])
        Folded.count += max(folds.count, 0)
        if witnessed:
            other.require(bare()[0])
            other.require_replicas(bare()[0], lambda promoted: require_same(promoted, program.queues[0], KEYS))
        program.drain()


@pytest.mark.parametrize(("form", "walks"), [("disk", 50), pytest.param("memory", 25, marks=pytest.mark.smoke), ("awaited", 15)])
def test_it_is_as_the_model_says(form: str, walks: int, other: Witness) -> None:
    """The awaited form has the same core, and so the fewest walks."""

    @settings(
        max_examples=EXAMPLES or walks,
        deadline=None,
        derandomize=not EXAMPLES,  # the default runs the same walks each time; the long form takes others
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(r=st.randoms(use_true_random=False))
    def check(r: random.Random) -> None:
        walk(r, other, in_memory=form == "memory", awaited=form == "awaited")

    check()
