"""Random walks of several objects of one queue, of which some sleep while ranges move, compared with a naive model.

Moves stop at random places, as if their movers had died: before lanes leave, while they are on their way, and before the move
ends. Folds, windows and parcels are tiny, so that memory is built anew, evicted and swept all the time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Delivery, LeaseLost, Message, Queue, QueueConfig
from strictq._store.shard import moving as steps
from strictq._store.tables import parcels
from strictq._store.whole import moving
from strictq._values.errors import StrictqError
from strictq._values.hashing import hash_key
from strictq._values.keys import encode_key
from strictq.testing import FakeClock
from tests.support.folds import narrow_by
from tests.support.internals import store_of
from tests.support.moved_ranges import Killed, state_of

KEYS = [f"key-{n}" for n in range(10)]
RARE = [f"rare-{n}" for n in range(12)]
"""Keys that are often new when a range moves."""
QUIET = [f"quiet-{n}" for n in range(6)]
"""Keys that have a state and rows of the program, and no lane before a move gives them one."""
OBJECTS = 3
STEPS = 160
TABLE = "CREATE TABLE app_count (owner TEXT PRIMARY KEY, n INTEGER)"


class Walk:
    """One walk, and what the queue must have."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = random.Random(seed)
        clock = FakeClock()
        config = QueueConfig(retry_delay_seconds=0.0, max_attempts=None)
        self.queues = [strictq.open(path, shards=2, durability="process", config=config, clock=clock)]
        self.queues += [strictq.open(path, clock=clock) for _ in range(OBJECTS - 1)]
        for q in self.queues:
            store_of(q)._upkeep.stop()
        self.awake = list(self.queues)
        self.queues[0].app_schema(TABLE, key_columns={"app_count": "owner"})
        self.sent: dict[str, int] = dict.fromkeys(KEYS + RARE, 0)
        self.pending: dict[str, list[int]] = {key: [] for key in KEYS + RARE}
        self.held: dict[str, tuple[Queue, list[Delivery]]] = {}
        """By key, the object that received messages, and those that are left."""
        self.counts: dict[str, int] = defaultdict(int)
        self.tokens: dict[str, int] = dict.fromkeys(KEYS + RARE, 0)
        self.steps: list[Callable[[Queue], object]] = [
            *[self.send] * 5, *[self.receive] * 5, *[self.settle] * 6, self.count, self.count, self.look, self.look, self.move,
            self.move, self.cancel, self.resume, self.doze, self.forget,
        ]  # fmt: skip

    def run(self) -> None:
        for _ in range(STEPS):
            self.random.choice(self.steps)(self.random.choice(self.awake))
        self.end()

    def some(self, most: int) -> list[str]:
        """Return some keys."""
        keys = self.random.sample(KEYS, self.random.randint(1, most))
        return [*keys[1:], self.random.choice(RARE)] if self.random.random() < 0.2 else keys

    # ---- steps

    def send(self, q: Queue) -> None:
        keys = self.some(4)
        if len(keys) == 1:
            receipts = [q.send(b"", key=keys[0])]
        else:
            receipts = list(q.send_many([Message(b"x" * self.random.choice((0, 0, 2_000)), key=key) for key in keys]))
        for key, receipt in zip(keys, receipts, strict=True):
            self.sent[key] += 1
            assert receipt.seq == self.sent[key], key
            self.pending[key].append(receipt.seq)

    def receive(self, q: Queue) -> None:
        keys = self.random.choice((None, self.random.sample(KEYS, 3)))
        found: dict[str, list[Delivery]] = defaultdict(list)
        for d in q.receive(self.random.randint(1, 6), keys=keys, lease_seconds=1e6):
            found[str(d.key)].append(d)
        for key, ds in found.items():
            assert key not in self.held, f"{key} has a holder"
            assert [d.seq for d in ds] == self.pending[key][: len(ds)], key
            assert ds[0].token > self.tokens[key], "tokens only grow"
            self.tokens[key] = ds[0].token
            self.held[key] = q, ds

    def settle(self, q: Queue) -> None:
        if not self.held:
            return
        key = self.random.choice(list(self.held))
        holder, ds = self.held[key]
        d, how = ds[0], self.random.choice(("ack", "ack", "handle", "nack", "extend", "transaction"))
        if how == "ack":
            d.ack()
        elif how == "handle":
            q.delivery(d.handle).ack()
        elif how == "nack":
            d.nack()
            del self.held[key]
            with pytest.raises(LeaseLost):
                q.delivery(d.handle).ack()
            return
        elif how == "extend":
            d.extend(1e6)
            return
        else:
            other = self.some(1)[0]
            with holder.transaction(d) as tx:
                tx.send(b"", other)
            self.sent[other] += 1
            self.pending[other].append(self.sent[other])
        self.pending[key].remove(d.seq)
        del ds[0]
        if not ds:
            del self.held[key]

    def count(self, q: Queue) -> None:
        key = self.random.choice(QUIET) if self.random.random() < 0.5 else self.some(1)[0]
        with q.transaction(key=key) as tx:
            assert tx.key_state == (b"%d" % self.counts[key] if self.counts[key] else None), key
            self.counts[key] += 1
            tx.key_state = b"%d" % self.counts[key]
            tx.execute("INSERT INTO app_count VALUES (?1, 1) ON CONFLICT DO UPDATE SET n = n + 1", (key,))

    def look(self, q: Queue) -> None:
        for key in [*self.random.sample(KEYS, 2), self.random.choice(RARE)]:
            assert [m.seq for m in q.peek(key, 100)] == self.pending[key], key
        key = self.random.choice(QUIET)
        assert state_of(q, key) == (b"%d" % self.counts[key] if key in self.counts else None), key

    def move(self, q: Queue) -> None:
        """Move some range, and stop somewhere."""
        self.resume(q)
        shards = [shard for shard in q.topology().shards if not shard.retired]
        source = self.random.choice(shards)
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            self.stop_somewhere(patch)
            if len(shards) > 2:
                into = self.random.choice([shard for shard in shards if shard is not source])
                q.merge(source.shard, into=into.shard)
            elif self.random.random() < 0.3 and source.ranges[0][0] < hash_key(encode_key(KEYS[0])) <= source.ranges[0][1]:
                q.isolate(KEYS[0])
            elif sum(hi - lo for lo, hi in source.ranges):
                q.split(source.shard)

    def cancel(self, q: Queue) -> None:
        """Cancel the move that was stopped, and stop somewhere."""
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            self.stop_somewhere(patch)
            q.cancel_move()

    def stop_somewhere(self, patch: pytest.MonkeyPatch) -> None:
        name = self.random.choice(("arrive", "leave", "sweep", "leave_loose", "tell", "ahead", None, None))
        if name is None:
            return
        step, left = getattr(steps, name), self.random.randint(0, 3)

        def stopping(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return step(*args, **options)

        patch.setattr(steps, name, stopping)

    def resume(self, q: Queue) -> None:
        q.topology()  # it learns of new shards
        moving.resume(store_of(q))

    def doze(self, _: Queue) -> None:
        """Let other objects sleep, or wake."""
        self.awake = self.random.sample(self.queues, self.random.randint(1, OBJECTS))

    def forget(self, q: Queue) -> None:
        store_of(q).forget()

    # ---- the end

    def end(self) -> None:
        q = self.random.choice(self.queues)
        self.resume(q)
        store_of(q).forward()
        assert q.topology().moving is None
        assert q.check() == []
        for q in self.queues:
            assert {key: [m.seq for m in q.peek(key, 1000)] for key in self.pending} == self.pending
            assert dict(q.query("SELECT owner, n FROM app_count")) == dict(self.counts)
            assert q.stats().depth == sum(map(len, self.pending.values()))
        for shard in store_of(q).shards:
            if shard.read(lambda db, n=shard.number: parcels.stored_ranges(db, n)) is not None:
                assert shard.read(parcels.numbers) == [], "everything that has arrived is swept"
        for q in self.queues:
            q.close()


@pytest.mark.parametrize("seed", range(4))
def test_walks_of_objects_that_sleep_while_ranges_move(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow_by(monkeypatch)
    monkeypatch.setattr(steps, "LANES_MAX", 2)
    monkeypatch.setattr(steps, "SCAN", 3)
    monkeypatch.setattr(steps, "PASSED_MAX", 3)
    walk = Walk(seed, tmp_path / "queue")
    try:
        walk.run()
    except (AssertionError, StrictqError):
        print(f"seed {seed}")
        raise
