"""docs/explanation/storage.md is enough for another program to read a queue.

A reader that was written from that page alone, with the standard library's sqlite3, agrees with strictq's own reports. It runs in
a process of its own, because two SQLite libraries in one process would drop each other's locks.
"""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strictq import Message, Queue, UnknownMessage
from strictq._store.lane.memory import StoreLimits
from strictq._store.shard import shard_lanes
from strictq._values.keys import decode_key, encode_key
from strictq.testing import FakeClock
from tests.support import outside_reader
from tests.support.internals import store_of
from tests.support.powercut import Recorder
from tests.support.powercut_run import ALL_KEYS, KEYS, Named, Program
from tests.support.queues import Opener
from tests.support.recorded import SCHEMA
from tests.support.running import PATIENCE_SECONDS

STEPS = 120
Answer = list[dict[str, Any]]


class Outside:
    """The process of the reader."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, outside_reader.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self, q: Queue) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([q.path, store_of(q).now()]), file=self._process.stdin, flush=True)
        found: Answer = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> None:
        self._process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    process = Outside()
    yield process
    process.end()


def test_it_is_written_without_strictq() -> None:
    text = Path(outside_reader.__file__).read_text(encoding="utf-8")
    imported = {line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= {"__future__", *sys.stdlib_module_names}


class Wider(Program):
    """The program of the power cuts on a queue of two shards, with keyless messages, poison, short leases and forgotten lanes."""

    def __init__(self, seed: int, disk: Opener) -> None:
        r = random.Random(seed)
        q = disk(
            shards=2, lease_seconds=20.0, max_attempts=r.choice((None, 2, 4)), on_expire=r.choice(("drop", "dead_letter")),
            on_poison="dead_letter", keyless="round_robin", keyless_lanes=3, idle_lane_seconds=r.choice((None, 5.0)),
        )  # fmt: skip
        if r.random() < 0.5 and q.config.max_attempts is not None:
            q.configure(on_poison=r.choice(("hold", "drop")))
        q.app_schema(SCHEMA)
        super().__init__(Named(q, Recorder()), disk.clock, r)

    def step(self) -> None:
        mine = (self.send_some, self.receive_some, self.receive_some, self.operate_on_some)
        if self.random.random() < 0.4:
            self.random.choice(mine)()
        else:
            super().step()
        self.held = self.held[-50:]

    def send_some(self) -> None:
        r = self.random
        deep = r.random() < 0.3
        self.queue.send_many(
            Message(
                r.randbytes(4), key="a" if deep else r.choice((*KEYS, None, None)), ttl=r.choice((None, None, 40.0)),
                delay=r.choice((0.0, 0.0, 0.0, 6.0)), headers=r.choice((None, {"h": "x"})), size_hint=r.choice((None, 3.0)),
            )
            for _ in range(r.randrange(1, 30 if deep else 6))
        )  # fmt: skip

    def receive_some(self) -> None:
        r = self.random
        self.held += self.queue.receive(
            r.randrange(1, 25), per_key=r.choice((None, 1, 3)), lease_seconds=r.choice((1.0, 20.0, 20.0))
        )
        self.clock.advance(r.choice((0.0, 0.5, 3.0, 15.0)))
        r.shuffle(self.held)

    def operate_on_some(self) -> None:
        key = self.random.choice(KEYS)
        if self.held and self.random.random() < 0.6:
            self.recorded.act("reject", self.random.choice(self.held))
        self.queue.redrive(self.random.choice((key, None)))
        self.queue.release(self.random.choice((key, None)))
        if self.random.random() < 0.1:
            self.queue.purge(key, dead=True)
        for message in self.queue.peek(key, 3):
            if message.state != "in_flight":
                self.queue.resolve(key, message.seq)
                return


def require_agreement(q: Queue, answer: Answer) -> Counter[str]:
    """Compare what was read outside with strictq's reports. Return how often each state was met."""
    seen: Counter[str] = Counter()
    stats = q.stats()
    keyless: list[Any] = []
    for shard, found in zip(stats.shards, answer, strict=True):
        lanes = found["lanes"]
        states = Counter(m[2] for lane in lanes.values() for m in lane["messages"])
        assert shard.depth == sum(states.values())
        assert shard.dead == len(found["dead"])
        assert (shard.in_flight, shard.held) == (states["in_flight"], states["held"])
        assert shard.lanes == sum(lane["tail"] > 0 for lane in lanes.values())
        for stored, lane in lanes.items():
            raw = bytes.fromhex(stored)
            rows = [(seq, i, state, attempts, bytes.fromhex(body)) for seq, i, state, attempts, body in lane["messages"]]
            if raw.startswith(b"n"):
                keyless += [row[1:] for row in rows]
                continue
            key = decode_key(raw)
            assert [(m.seq, m.id, m.state, m.attempts, m.body) for m in q.peek(key, 10_000)] == rows
            require_statuses(q, key, lane["tail"], rows, {seq for k, seq, *_ in found["dead"] if k == stored})
        seen += states
        seen["dead"] += len(found["dead"])
        seen["waiting"] += sum(len(lane["waiting"]) for lane in lanes.values())
    assert sorted((m.id, m.state, m.attempts, m.body) for m in q.peek(None, 10_000) if m.key is None) == sorted(keyless)
    return seen


def agree(q: Queue, outside: Outside) -> Counter[str]:
    """Compare them in one state: what a background thread forgets between two reports is compared again."""
    while True:
        answer = outside.read(q)
        try:
            return require_agreement(q, answer)
        except (AssertionError, UnknownMessage):
            if outside.read(q) == answer:
                raise


def require_statuses(q: Queue, key: Any, tail: int, rows: list[Any], dead: set[int]) -> None:
    """Compare the state of some messages of a key: a message is resolved if it was sent, and is neither unresolved nor dead."""
    known = {row[0]: row[2] for row in rows}
    for seq in {1, tail // 2, tail, *sorted(dead)[-2:]} - {0}:
        if seq <= tail:
            assert q.status(key, seq).state == known.get(seq, "dead" if seq in dead else "resolved")


def require_order(q: Queue, clock: FakeClock, outside: Outside) -> None:
    """Receive everything. What comes first of each key is what the reader lists first."""
    q.configure(max_attempts=None, on_poison="dead_letter")
    clock.advance(1_000.0)
    for key in (*ALL_KEYS, None):
        q.release(key)
    while batch := q.receive(20):
        # What has expired was dropped by the receive.
        lanes = {k: [m[1] for m in lane["messages"]] for found in outside.read(q) for k, lane in found["lanes"].items()}
        for key in ALL_KEYS:
            mine = [d.id for d in batch if d.key == key]
            assert mine == lanes.get(encode_key(key).hex(), [])[: len(mine)]
        q.ack_many(batch)
    assert q.stats().depth == 0
    agree(q, outside)


SEEDS = range(8)


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[int, Counter[str]]]:
    """Collect the states that each program met. Together they met every one."""
    found: dict[int, Counter[str]] = {}
    yield found
    if len(found) == len(SEEDS):
        states = sum(found.values(), Counter[str]())
        assert all(states[state] for state in ("ready", "in_flight", "delayed", "held", "dead", "waiting")), states


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_written_from_the_page_agrees(
    disk: Opener, outside: Outside, monkeypatch: pytest.MonkeyPatch, seen: dict[int, Counter[str]], seed: int
) -> None:
    met = seen[seed] = Counter()
    r = random.Random(seed)
    limits = functools.partial(
        StoreLimits, window=r.choice((1, 5, 40)), slice=r.choice((1, 3, 20)), head=r.choice((1, 3, 8)), chunk=r.choice((2, 5)),
        loaded_max=r.choice((3, 20, 500)), tails_max=r.choice((3, 100)),
    )  # fmt: skip
    monkeypatch.setattr(shard_lanes, "StoreLimits", limits)
    program = Wider(seed, disk)
    for n in range(STEPS):
        program.step()
        if n % 3 == 0:
            met.update(agree(program.queue, outside))
    assert program.queue.check() == []
    require_order(program.queue, program.clock, outside)
