"""The recorded program: every operation on a queue, chosen by a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, Literal

import attrs

import strictq
from strictq import Delivery, Message, Queue, QueueConfig
from strictq.testing import FakeClock
from tests.support.folds import Folds, narrow
from tests.support.history import Event
from tests.support.internals import store_of
from tests.support.powercut import Journal, Recorder, read_file, recording
from tests.support.recorded import SCHEMA, Recorded, body_of
from tests.support.witness import Witness, require_same

KEYS: Final[tuple[Any, ...]] = ("a", "b", "c", 4, b"\xff5")
SHORT_LIVED: Final = "short-lived"
AT_ONCE: Final = "at-once"
ALL_KEYS: Final = (*KEYS, SHORT_LIVED, AT_ONCE)
PLACE: Final = "q.strictq"
"""The queue's place under the recorded directory."""
CONFIG: Final = QueueConfig(lease_seconds=20.0, max_attempts=None, dedup_window_seconds=300.0, on_expire="dead_letter")
Level = Literal["full", "process"]
KINDS: Final[tuple[tuple[Level, int], ...]] = (
    ("full", 1), ("full", 2), ("full", 3), ("process", 1), ("process", 2), ("process", 3),
)  # fmt: skip
"""Queues of each durability and several numbers of shards."""


class Named(Recorded):
    """A recorded queue whose messages have the same names in every run."""

    def __init__(self, queue: Queue, recorder: Recorder, prefix: str = "m") -> None:
        super().__init__(queue, recorder)
        self._numbers = itertools.count()
        self._prefix = prefix

    def name(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def receive(self, max_messages: int = 10, *, ack_first: bool = False, **options: Any) -> list[Delivery]:
        """Receive. A lease need not survive a power cut, unless its messages are resolved."""
        with self._passing(not ack_first):
            return super().receive(max_messages, ack_first=ack_first, **options)

    def more(self, d: Delivery, count: int) -> list[Delivery]:
        """Grow a lease, which need not survive either."""
        with self._passing(True):
            return super().more(d, count)

    def act(self, verb: str, d: Delivery, *, arg: float | None = None) -> str:
        """Settle a delivery. Changes of the lease alone need not survive."""
        with self._passing(verb in ("extend", "release", "done")):
            return super().act(verb, d, arg=arg)

    @contextmanager
    def _passing(self, passing: bool) -> Iterator[None]:
        journal = getattr(self.recorder, "journal", None)
        if journal is None:
            yield
            return
        journal.passing = passing
        try:
            yield
        finally:
            journal.passing = False

    def big(self, key: Any) -> Message:
        """Return a message whose body takes pages of its own."""
        while len(body_of(mid := self.name())) < 5000:
            pass
        return Message(body_of(mid), key=key)


@attrs.frozen
class Run:
    """A recording, and how often logs were cut."""

    journal: Journal
    events: list[Event]
    level: Level
    clock: FakeClock
    folds: int = 0


class Program:
    """One consumer and producer, with every other operation in between."""

    def __init__(self, recorded: Named, clock: FakeClock, chance: random.Random) -> None:
        self.recorded = recorded
        self.queue = recorded.queue
        self.clock = clock
        self.random = chance
        self.held: list[Delivery] = []
        self.shortened: set[tuple[Any, int]] = set()
        self.folds = Folds()

    def work(self, steps: int) -> None:
        """Make so many steps. After each fold, memory is compared with one that is built from the tables."""
        for _ in range(steps):
            self.step()
            self.folds.watch(self.queue)

    def step(self) -> None:
        """Make one call, or a few that belong together."""
        acts = [(self.send, 6), (self.receive, 4), (self.settle, 8), (self.transact, 5), (self.operate, 1), (self.keep, 2)]
        (act,) = self.random.choices([a for a, _ in acts], [w for _, w in acts])
        act()
        self.clock.advance(self.random.choice((0.0, 0.1, 2.0)))

    def message(self) -> Message:
        chance, key = self.random.random(), self.random.choice(KEYS)
        if chance < 0.1:
            return self.recorded.big(key)
        if chance < 0.2:
            return self.recorded.new(key, dedup_id=self.random.choice("xyz"))
        if chance < 0.3:
            return self.recorded.new(key, delay=self.random.choice((0.5, 30.0)))
        if chance < 0.35:
            return self.recorded.new(SHORT_LIVED, ttl=3.0)
        return self.recorded.new(key)

    def send(self) -> None:
        if self.random.random() < 0.6:
            self.recorded.send(self.message())
        else:
            self.recorded.send_many([self.message() for _ in range(self.random.randint(2, 12))])

    def receive(self) -> None:
        if self.random.random() < 0.1:
            self.recorded.send(self.recorded.new(AT_ONCE))
            for d in self.recorded.receive(1, lease_seconds=20.0, keys=[AT_ONCE], ack_first=True):
                self.recorded.act("done", d)
            return
        keys = [k for k in ALL_KEYS if k != AT_ONCE]
        per_key = self.random.choice((None, None, 1))
        self.held += self.recorded.receive(self.random.randint(1, 8), lease_seconds=20.0, per_key=per_key, keys=keys)

    def settle(self) -> None:
        if not self.held:
            return self.receive()
        if self.random.random() < 0.3:
            some, self.held = self.held[:4], self.held[4:]
            verb = self.random.choice(("ack", "ack", "nack"))
            self.shortened.update((d.key, d.token) for d in some if verb == "nack")
            return self.recorded.act_many(verb, some)
        d = self.held.pop(0)
        verb = self.random.choice(("ack", "ack", "ack", "nack", "defer", "reject", "start", "extend", "release", "more"))
        if verb == "extend" and (d.key, d.token) in self.shortened:
            verb = "ack"  # an extend of what was given back extends the rest of its lease
        if verb in ("nack", "defer", "release"):
            self.shortened.add((d.key, d.token))
        if verb == "more":
            self.held += self.recorded.more(d, 3)
        else:
            arg = {"extend": 30.0}.get(verb, self.random.choice((0.0, 5.0)) if verb in ("nack", "defer") else None)
            self.recorded.act(verb, d, arg=arg)
        if verb in ("start", "extend", "more"):
            self.held.insert(0, d)
        return None

    def transact(self) -> None:
        sends = [self.recorded.new(self.random.choice(KEYS)) for _ in range(self.random.randint(0, 3))]
        if self.random.random() < 0.2 and sends:
            sends.append(self.recorded.big(self.random.choice(KEYS)))
        d = self.held.pop(0) if self.held and self.random.random() < 0.7 else None
        self.recorded.transact(d, self.random.choice(KEYS), sends, fail=self.random.random() < 0.1)

    def operate(self) -> None:
        verb = self.random.choice(("hold", "unhold", "redrive", "purge"))
        key = self.random.choice(KEYS)
        if verb == "purge" and self.random.random() < 0.7:
            verb = "redrive"
        self.recorded.operate(verb, key)

    def keep(self) -> None:
        """Do what an engine does beside its callers, and make rare calls."""
        shard = self.random.choice(store_of(self.queue).shards)
        chance = self.random.random()
        if chance < 0.6:
            shard.checkpoint()
        elif chance < 0.7:
            shard.cut_wal()
        elif chance < 0.8:
            store_of(self.queue).tidy()
        elif chance < 0.9:
            self.queue.configure(retry_delay_max_seconds=float(self.random.randint(10, 1000)))
        else:
            self.queue.app_schema(f"CREATE TABLE IF NOT EXISTS app_more_{self.random.randint(0, 9)} (x INTEGER) STRICT")


def windows(seed: int) -> AbstractContextManager[None]:
    """Return a block in which logs are folded after a few rows, or, for every third seed, as late as usual."""
    chance = random.Random(f"windows of {seed}")
    if seed % 3 == 0:
        return nullcontext()
    return narrow(chance.choice((1, 3, 8)), chance.choice((1, 2)))


def record(root: Path, *, seed: int, level: Level, shards: int, steps: int, witness: Witness | None = None) -> Run:
    """Create a queue under `root` and work on it.

    Args:
        witness: opens copies of it, restored ones and promoted replicas at the end.
    """
    clock = FakeClock()
    chance = random.Random(seed)
    with recording(root, clock) as journal, windows(seed):
        recorder = Recorder()
        recorder.journal = journal
        queue = strictq.open(Path(journal.root, PLACE), shards=shards, durability=level, config=CONFIG, clock=clock)
        journal.note("opened")
        queue.app_schema(SCHEMA)
        journal.note("ready")
        program = Program(Named(queue, recorder), clock, chance)
        program.work(steps)
        journal.note("last")
        journal.recording = False
        if witness is not None:
            witness.require(queue)
            witness.require_replicas(queue, lambda promoted: require_same(promoted, queue, ALL_KEYS))
        queue.close()
    return Run(journal, recorder.events, level, clock, program.folds.count)


def resume(root: Path, run: Run, events: list[Event], *, seed: int, steps: int, clock: FakeClock) -> Run:
    """Open the queue under `root` after a cut, and continue working on it. All of that is recorded, for a second cut."""
    known = {file.name: read_file(file) for file in sorted((root / PLACE).glob("*.db"))}
    with recording(root, clock, known) as journal, windows(seed):
        recorder = Recorder()
        recorder.events.extend(events)
        call = recorder.invoke("reboot")
        recorder.result(call, "reboot")
        recorder.journal = journal
        journal.note("event", at=len(recorder.events))
        journal.note("opened")
        journal.note("ready")
        queue = strictq.open(Path(journal.root, PLACE), clock=clock)
        program = Program(Named(queue, recorder, f"again-{seed}"), clock, random.Random(seed))
        program.work(steps)
        journal.note("last")
        journal.recording = False
        queue.close()
    return Run(journal, recorder.events, run.level, clock, program.folds.count)
