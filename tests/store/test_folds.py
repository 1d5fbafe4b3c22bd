"""Random walks in which lanes change while folds cut the journal, compared with a model after each step.

Two queue objects on one directory send, receive several messages of a lane at once, and ack them in parts, in any order. They
extend and release leases. The windows are tiny, so folds cut a part of what a lease or an ack names. The model
predicts every delivery. After each step the memory of both objects must equal one that is built anew, and after each
fold also that of another process.

STRICTQ_FOLD_STEPS=20000 makes each walk so long, and STRICTQ_FOLD_SEED selects others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import attrs
import pytest

import strictq
from strictq import Delivery, Message, Queue, QueueConfig
from strictq.testing import FakeClock
from tests.support.folds import narrow, require_memories
from tests.support.powercut_campaign import fast_directory
from tests.support.witness import Witness

STEPS = int(os.environ.get("STRICTQ_FOLD_STEPS", "150"))
SEED = int(os.environ.get("STRICTQ_FOLD_SEED", "0"))
WALKS = 3
SLOW = [f"slow-{n}" for n in range(5)]
"""Keys whose messages wait while folds cut the journal."""
FAST = [f"fast-{n}" for n in range(8)]
WAITING_MAX = 5
"""A lane with so many messages gets no more."""
LEASE_SECONDS = 1_000_000.0


@attrs.define
class Lane:
    """The unresolved messages of a key, by seq, with their arrival numbers and bodies; and its lease: owner and deliveries."""

    waiting: dict[int, tuple[int, bytes]] = attrs.Factory(dict)
    sent: int = 0
    owner: int | None = None
    held: list[Delivery] = attrs.Factory(list)

    def head(self) -> int:
        """Return the arrival number of its first message."""
        return next(iter(self.waiting.values()))[0]


class Walk:
    """One walk, and its model. Everything follows from the seed."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock()
        config = QueueConfig(lease_seconds=LEASE_SECONDS, max_attempts=None)
        first = strictq.open(path, shards=1, config=config, durability="process", clock=self.clock)
        self.queues = [first, strictq.open(path, durability="process", clock=self.clock)]
        self.lanes = {key: Lane() for key in [*SLOW, *FAST]}
        self.acked: list[tuple[int, str]] = []

    def close(self) -> None:
        for q in self.queues:
            q.close()

    def run(self, steps: int, witness: Witness) -> None:
        acts = [self.send, self.receive, self.ack, self.churn, self.release]
        acts += self.random.choices([self.extend, self.start, self.repeat, *acts * 3], k=12)
        for _ in range(steps):
            self.random.choice(acts)(self.random.randrange(2))
            self.clock.advance(self.random.choice((0.0, 0.001)))
            require_memories(*self.queues)
            self.compare(self.queues[self.random.randrange(2)], self.random.choice(list(self.lanes)))
            witness.watch(self.queues[0])

    def compare(self, q: Queue, key: str) -> None:
        """Compare a lane, as a queue object shows it, with the model."""
        lane = self.lanes[key]
        held = {d.seq for d in lane.held}
        expected = [(seq, body, "in_flight" if seq in held else "ready") for seq, (_, body) in lane.waiting.items()]
        assert [(m.seq, m.body, m.state) for m in q.peek(key, 1000)] == expected

    # ---- steps

    def send(self, who: int, keys: list[str] = SLOW) -> None:
        keys = [key for key in keys if len(self.lanes[key].waiting) < WAITING_MAX]
        some = self.random.choices(keys, k=self.random.choice((1, 1, 2, 5))) if keys else []
        q = self.queues[who]
        bodies = [b"%d" % (self.lanes[key].sent + n) for n, key in enumerate(some)]
        if len(some) == 1:
            receipts = [q.send(bodies[0], some[0])]
        else:
            receipts = q.send_many([Message(body, key=key) for body, key in zip(bodies, some, strict=True)])
        for key, body, receipt in zip(some, bodies, receipts, strict=True):
            lane = self.lanes[key]
            lane.sent += 1
            assert receipt.seq == lane.sent
            lane.waiting[lane.sent] = (receipt.id, body)

    def receive(self, who: int) -> list[Delivery]:
        room = self.random.choice((1, 2, 5, 30, 30))
        most = self.random.choice((None, None, None, 1, 2))
        got = self.queues[who].receive(room, per_key=most)
        expected: list[tuple[str, int]] = []
        ready = [key for key, lane in self.lanes.items() if lane.waiting and lane.owner is None]
        for key in sorted(ready, key=lambda key: self.lanes[key].head()):
            expected += [(key, seq) for seq in list(self.lanes[key].waiting)[: min(most or room, room - len(expected))]]
        assert [(d.key, d.seq) for d in got] == expected
        for d in got:
            lane = self.lanes[str(d.key)]
            assert d.body == lane.waiting[d.seq][1]
            lane.owner = who
            lane.held.append(d)
        return got

    def _leased(self, who: int) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.owner == who]

    def ack(self, who: int) -> None:
        """Ack some deliveries of some lanes: the first ones, or any."""
        lanes = self._leased(who)
        some: list[Delivery] = []
        for lane in self.random.sample(lanes, min(len(lanes), self.random.choice((1, 1, 2, 9)))):
            count = self.random.randint(1, len(lane.held))
            some += lane.held[:count] if self.random.random() < 0.7 else self.random.sample(lane.held, count)
        self._ack(who, sorted(some, key=lambda d: d.id))

    def _ack(self, who: int, some: list[Delivery]) -> None:
        if len(some) == 1:
            some[0].ack()
        elif some:
            self.queues[who].ack_many(some)
        for d in some:
            lane = self.lanes[str(d.key)]
            del lane.waiting[d.seq]
            lane.held.remove(d)
            if not lane.held:
                lane.owner = None
        if some:
            self.acked = [(who, some[-1].handle)]

    def repeat(self, _who: int) -> None:
        """Repeat the last ack through the other object, as a caller does that got no answer."""
        for who, handle in self.acked:
            self.queues[1 - who].delivery(handle).ack()

    def release(self, who: int) -> None:
        for lane in self._leased(who):
            lane.held[0].lease.release()
            lane.owner, lane.held = None, []

    def extend(self, who: int) -> None:
        for lane in self._leased(who):
            lane.held[0].extend(LEASE_SECONDS + self.random.randint(1, 9))

    def start(self, who: int) -> None:
        for lane in self._leased(who):
            lane.held[0].start()

    def churn(self, who: int) -> None:
        """Pass messages of other keys through the queue, so that the window moves on."""
        self.send(who, FAST)
        self.receive(who)
        self._ack(who, [d for key in FAST if self.lanes[key].owner == who for d in self.lanes[key].held])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with fast_directory(tmp_path) as directory:
        yield directory


def walk(place: Path, seed: int) -> None:
    r = random.Random(seed)
    window, step = r.choice((4, 12, 20, 30)), r.choice((1, 2, 5))
    with (
        narrow(window, step),
        closing(Witness(place)) as other,
        closing(Walk(place / "q", seed)) as made,
    ):
        made.run(STEPS, other)
        assert other.folds.count > 2, "nothing was folded"


@pytest.mark.parametrize("seed", range(SEED, SEED + WALKS))
def test_lanes_that_change_across_folds(place: Path, seed: int) -> None:
    walk(place, seed)


def test_restored_copies_and_promoted_replicas(place: Path) -> None:
    """They have the journal of their original, whatever was cut there."""
    with narrow(8, step=2), closing(Witness(place)) as other, closing(Walk(place / "q", SEED)) as made:

        def compare(q: Queue) -> None:
            for key in made.lanes:
                made.compare(q, key)

        for _ in range(6):
            made.run(STEPS // 10, other)
            other.require_replicas(made.queues[0], compare, place / "target")
        assert other.folds.count > 2, "nothing was folded"
