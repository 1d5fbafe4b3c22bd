"""Flipped bits in the files of a queue that no process has open, and what is delivered afterwards."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

import strictq
from strictq import Message, QueueConfig
from strictq.testing import FakeClock
from tests.support.internals import store_of
from tests.support.powercut import quiet
from tests.support.queues import keys_by_shard

DATABASE, WAL, SHM, CATALOG, MARKS = "shard-0000.db", "shard-0000.db-wal", "shard-0000.db-shm", "queue.db", "marks"
FILES: Final = (
    (DATABASE, True, "full"),
    (DATABASE, False, "process"),
    (WAL, False, "full"),
    (WAL, False, "process"),
    (WAL, True, "full"),
    (SHM, False, "full"),
    (CATALOG, True, "full"),
    (MARKS, False, "full"),
)
"""The file, whether all of the queue is in its databases, and its durability."""
Sent = dict[tuple[Any, int], tuple[bytes, dict[str, str]]]


@attrs.define
class Outcome:
    """The outcome of opening a queue with a flipped bit."""

    got: Sent = attrs.Factory(dict)
    told: list[str] = attrs.Factory(list)
    """The raised errors, and the events."""


@attrs.frozen
class Original:
    """A queue as its process left it."""

    path: Path
    clock: FakeClock
    sent: Sent
    keys: dict[int, str]

    def damaged(self, damage: Callable[[Path], None]) -> Outcome:
        """Damage a copy, and receive everything from it."""
        copy = self.path.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.path, copy)
        damage(copy)
        outcome = Outcome()
        with quiet(self.clock):
            try:
                queue = strictq.open(copy, clock=self.clock, on_event=lambda e: outcome.told.append(e.kind))
            except strictq.StrictqError as e:
                outcome.told.append(type(e).__name__)
                return outcome
            with queue:
                self._empty(queue, outcome)
        return outcome

    def flipped(self, name: str, chance: random.Random) -> Outcome:
        return self.damaged(lambda copy: flip(copy / name, chance))

    def _empty(self, queue: strictq.Queue, outcome: Outcome) -> None:
        for _ in range(20):
            try:
                batch = queue.receive(200)
                if not batch:
                    return
                outcome.got |= {(d.key, d.seq): (d.body, d.headers) for d in batch}
                queue.ack_many(batch)
            except strictq.StrictqError as e:
                outcome.told.append(type(e).__name__)


def flip(file: Path, chance: random.Random) -> None:
    bit = chance.randrange(file.stat().st_size * 8)
    with file.open("r+b") as f:
        f.seek(bit // 8)
        byte = f.read(1)[0]
        f.seek(bit // 8)
        f.write(bytes([byte ^ 1 << bit % 8]))


def original(directory: Path, *, checkpointed: bool, durability: Any = "full") -> Original:
    """Create a queue of two shards with some messages: all in the databases, or the newest part in the WALs."""
    clock = FakeClock()
    chance = random.Random(7)
    keys = keys_by_shard(2)
    path = directory / "original"
    sent: Sent = {}
    config = QueueConfig(max_attempts=None)
    with quiet(clock), strictq.open(path, shards=2, clock=clock, config=config, durability=durability) as queue:
        for part in range(8):
            messages = [
                Message(chance.randbytes(chance.choice((20, 200, 1500))), key=keys[n % 2], headers={"n": str(n)} if n % 3 else {})
                for n in range(40)
            ]
            for message, receipt in zip(messages, queue.send_many(messages), strict=True):
                sent[receipt.key, receipt.seq] = (message.body, dict(message.headers or {}))
            if checkpointed or part < 4:
                for shard in store_of(queue).shards:
                    shard.checkpoint()
        store_of(queue).die()  # closing it would empty the WALs
    return Original(path, clock, sent, keys)


def flip_some(made: Original, name: str, chance: random.Random, flips: int) -> int:
    """Flip bits of a file, one in each copy of the queue. Return how many were reported.

    Raises:
        AssertionError: one was silent, or the other shard stopped.
    """
    other = {k: v for k, v in made.sent.items() if k[0] == made.keys[1]}
    told = 0
    for n in range(flips):
        outcome = made.flipped(name, chance)
        told += bool(outcome.told)
        wrong = {k: v for k, v in outcome.got.items() if made.sent.get(k) != v}
        assert not wrong, f"flip {n} changed what was handed out"
        assert outcome.got == made.sent or outcome.told, f"flip {n} lost messages, and nobody was told"
        if name != CATALOG:
            assert {k: v for k, v in outcome.got.items() if k[0] == made.keys[1]} == other, f"flip {n} stopped the other shard"
    return told
