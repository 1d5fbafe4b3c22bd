"""Walks in which lanes change while folds cut the journal, compared with the model after each step.

The windows are tiny, so folds cut a part of what a lease or an ack names. After each step the memories of both objects must equal
one that is built anew, and after each fold also that of another process.

STRICTQ_FOLD_STEPS=2000 and STRICTQ_FOLD_SEED=100 take longer walks, and others.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

import strictq
from strictq._values.keys import Key
from strictq.testing import FakeClock
from tests.support.folds import narrow, require_memories
from tests.support.internals import store_of
from tests.support.model import Model, Settings
from tests.support.program import Program, begin
from tests.support.witness import Witness

STEPS = int(os.environ.get("STRICTQ_FOLD_STEPS", "150"))
SEED = int(os.environ.get("STRICTQ_FOLD_SEED", "0"))
WALKS = 3
SLOW: list[Key] = [f"slow-{n}" for n in range(5)]
"""Keys whose messages wait while folds cut the journal."""
FAST: list[Key] = [f"fast-{n}" for n in range(8)]
WAITING_MAX = 5
"""A lane with so many messages gets no more."""
SETTINGS = Settings(lease_seconds=1_000_000.0, max_attempts=None)


class Churning(Program):
    """The program without expiry and delays, so that everything stands in the order of arrival."""

    acts: ClassVar = {
        "some_send": 3, "some_receive": 3, "some_ack": 3, "some_ack_many": 2, "churn": 3, "some_give_back": 3, "some_extend": 1,
        "some_start": 1, "repeat": 1,
    }  # fmt: skip
    keys = (*SLOW, *FAST)
    leases = (None,)
    rooms = (1, 2, 5, 30, 30)
    per_keys = (None, None, None, 1, 2)
    acked: str | None = None
    """The handle of the last delivery that was acked."""

    def step(self) -> None:
        self.deliveries = [(h, d) for h, d in self.deliveries if self.model.valid(d)]
        super().step()

    def some_send(self) -> None:
        keys = [key for key in SLOW if len(self.model.lane(key).unresolved()) < WAITING_MAX]
        some = self.random.choices(keys, k=self.random.choice((1, 1, 2, 5))) if keys else []
        if len(some) == 1:
            self.send(self.one(), some[0])
        elif some:
            self.send_many(self.one(), some)

    def some_receive(self) -> None:
        self.receive(self.one(), self.random.choice(self.rooms), per_key=self.random.choice(self.per_keys))

    def churn(self) -> None:
        """Pass messages of other keys through the queue, so that the window moves on."""
        h = self.one()
        self.send_many(h, self.random.sample(FAST, 3))
        self.receive(h, 30)
        done = [d for owner, d in self.deliveries if owner == h and d.key in FAST and self.model.valid(d)]
        self.settle_many(done, lambda: self.queues[h].ack_many(done), self.model.acked)

    def some_ack(self) -> None:
        if (one := self.some_delivery()) is not None and self.settle("ack", one):
            self.acked = one[1].handle

    def settle_many(self, ds: list[Any], call: Callable[[], object], tell: Callable[[Any], None]) -> None:
        valid = [d.handle for d in ds if self.model.valid(d)]
        super().settle_many(ds, call, tell)
        self.acked = valid[-1] if valid else self.acked

    def repeat(self) -> None:
        """Repeat the last ack through an object, as a caller does that got no answer."""
        if self.acked is not None:
            self.queues[self.one()].delivery(self.acked).ack()

    def some_give_back(self) -> None:
        if (one := self.some_delivery()) is not None:
            self.settle("give_back", one)

    def some_extend(self) -> None:
        if (one := self.some_delivery()) is not None:
            self.settle("extend", one)

    def some_start(self) -> None:
        if (one := self.some_delivery()) is not None:
            self.settle("start", one)


def walk(place: Path, seed: int) -> None:
    r, clock = random.Random(seed), FakeClock()
    window, step = r.choice((4, 12, 20, 30)), r.choice((1, 2, 5))
    open_ = functools.partial(strictq.open, place / "q", durability="process", clock=clock)
    with narrow(window, step), closing(Witness(place)) as other:
        program = Churning(r, begin(open_, SETTINGS, shards=1), Model(SETTINGS, one_shard=True), clock, open_)
        with closing(program):
            for _ in range(STEPS):
                program.step()
                clock.advance(r.choice((0.0, 0.001)))
                require_memories(*program.queues)
                key = r.choice(program.keys)
                program.model.compare_lane(key, program.queues[program.one()].peek(key, 1_000))
                other.watch(program.queues[0])
            program.agree()
        assert other.folds.count > 2, "nothing was folded"


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(SEED, SEED + WALKS))
def test_lanes_that_change_across_folds(place: Path, seed: int) -> None:
    walk(place, seed)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_folds_keep_up_with_calls_to_many_new_keys(place: Path, size: int) -> None:
    """Every call changes as many lanes as it has messages, and a process that opens the queue reads what is not folded."""
    with narrow(12, 2), strictq.open(place / "q", shards=1, durability="process") as q:
        for n in range(0, 2_000, size):
            q.send_many([strictq.Message(b"", key=f"key-{i}") for i in range(n, n + size)])
        memory = store_of(q).shards[0].lanes.memory
        assert len(memory.dirty) < 200
        assert memory.seen + memory.top - memory.mark.fold_position < 400
