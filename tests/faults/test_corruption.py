"""Bits that flip in the files of a closed queue: what is handed out is what was sent, or somebody is told.

A few hundred flips. For a long campaign set STRICTQ_FLIPS to their number (for each kind of file), and STRICTQ_FLIP_SEED to
start from other random numbers.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import strictq
from strictq import Message, QueueConfig
from strictq.testing import FakeClock
from tests.support.powercut import quiet
from tests.support.powercut_campaign import fast_directory
from tests.support.queues import keys_by_shard

FLIPS = int(os.environ.get("STRICTQ_FLIPS", "100"))
SEED = int(os.environ.get("STRICTQ_FLIP_SEED", "1"))
DATABASE, WAL, SHM, CATALOG = "shard-0000.db", "shard-0000.db-wal", "shard-0000.db-shm", "queue.db"


@attrs.define
class Outcome:
    """What became of a queue with a flipped bit."""

    got: dict[tuple[Any, int], tuple[bytes, dict[str, str]]] = attrs.Factory(dict)
    told: list[str] = attrs.Factory(list)


@attrs.frozen
class Original:
    """A queue as it was closed."""

    path: Path
    clock: FakeClock
    sent: dict[tuple[Any, int], tuple[bytes, dict[str, str]]]
    keys: dict[int, str]

    def flipped(self, name: str, chance: random.Random) -> Outcome:
        """Flip a bit of a file of a copy, and take everything out of it."""
        copy = self.path.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.path, copy)
        data = bytearray((copy / name).read_bytes())
        bit = chance.randrange(len(data) * 8)
        data[bit // 8] ^= 1 << (bit % 8)
        (copy / name).write_bytes(data)
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

    def _empty(self, queue: strictq.Queue, outcome: Outcome) -> None:
        outcome.told += [f"{p.shard} {p.rule}" for p in queue.check()]
        for _ in range(20):
            try:
                batch = queue.receive(200)
                if not batch:
                    return
                outcome.got |= {(d.key, d.seq): (d.body, d.headers) for d in batch}
                queue.ack_many(batch)
            except strictq.StrictqError as e:
                outcome.told.append(type(e).__name__)


def original(directory: Path, *, checkpointed: bool) -> Original:
    """A queue of two shards with some messages; all of it in the databases, or the newest part in the WALs."""
    clock = FakeClock()
    chance = random.Random(7)
    keys = keys_by_shard(2)
    path = directory / "original"
    sent: dict[tuple[Any, int], tuple[bytes, dict[str, str]]] = {}
    with quiet(clock), strictq.open(path, shards=2, clock=clock, config=QueueConfig(max_attempts=None)) as queue:
        for part in range(8):
            messages = [
                Message(chance.randbytes(chance.choice((20, 200, 1500))), key=keys[n % 2], headers={"n": str(n)} if n % 3 else {})
                for n in range(40)
            ]
            for message, receipt in zip(messages, queue.send_many(messages), strict=True):
                sent[receipt.key, receipt.seq] = (message.body, dict(message.headers or {}))
            if checkpointed or part < 4:
                for shard in queue._store.shards:
                    shard.checkpoint()
    return Original(path, clock, sent, keys)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with fast_directory(tmp_path) as directory:
        yield directory


@pytest.mark.parametrize(("name", "checkpointed"), [(DATABASE, True), (WAL, False), (SHM, False), (CATALOG, True)])
def test_errors_are_ours_and_the_other_shard_goes_on(name: str, checkpointed: bool, place: Path) -> None:
    made = original(place, checkpointed=checkpointed)
    chance = random.Random(SEED)
    for _ in range(FLIPS):
        outcome = made.flipped(name, chance)
        if name == CATALOG and outcome.told:
            continue
        other = {k: v for k, v in made.sent.items() if k[0] == made.keys[1]}
        assert {k: v for k, v in outcome.got.items() if k[0] == made.keys[1]} == other


@pytest.mark.parametrize(("name", "checkpointed"), [(SHM, False), (CATALOG, True)])
def test_what_is_wrong_is_never_silent(name: str, checkpointed: bool, place: Path) -> None:
    made = original(place, checkpointed=checkpointed)
    chance = random.Random(SEED)
    silent = 0
    for _ in range(FLIPS):
        outcome = made.flipped(name, chance)
        silent += outcome.got != made.sent and not outcome.told
    assert silent == 0, f"{silent} of {FLIPS} flips changed or lost a message, and nobody was told"
