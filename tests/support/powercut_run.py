"""The recorded program: every operation on a queue, chosen by a seed."""

from __future__ import annotations

import copy
import itertools
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import attrs
import pytest

import strictq
from strictq import Delivery, InvalidArgument, Message, MoveBlocked, Queue, QueueConfig, Transaction
from strictq._store.shard import moving as steps
from strictq._store.whole import moving
from strictq._values.findings import ShardRange
from strictq._values.hashing import hash_key
from strictq._values.keys import decode_key, encode_key
from strictq.spark._recorded_batches import Holder, read_block, rejected
from strictq.testing import FakeClock
from tests.support.folds import Folds, narrow, require_memories
from tests.support.history import OK, Act, Event, Handed, Wanted
from tests.support.history_lanes import FOREVER
from tests.support.internals import store_of
from tests.support.powercut import Journal, Recorder, Snapshot, read_file, recording
from tests.support.recorded import Recorded, body_of, mid_of
from tests.support.recorded_batches import encode
from tests.support.witness import Witness, require_same

KEYS: Final[tuple[Any, ...]] = ("a", "b", "c", 4, b"\xff5")
SHORT_LIVED: Final = "short-lived"
AT_ONCE: Final = "at-once"
TENANTS: Final = ("t/1", "t/2", "u/1")
"""Keys of tenants, if the queue has tenants."""
ALL_KEYS: Final = (*KEYS, *TENANTS, SHORT_LIVED, AT_ONCE)
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS app_effects (effect TEXT NOT NULL, lane TEXT NOT NULL, n INTEGER NOT NULL, owner ANY) STRICT;
CREATE INDEX IF NOT EXISTS app_effects_owner ON app_effects (owner);
"""
"""Effects of transactions, which move with their keys."""
SHARDS_MAX: Final = 5
"""No more shards are added."""
CONSUMER: Final = "etl"
ENDLESS: Final = 1 << 61
"""The lease of a recorded batch, in nanoseconds."""
PLACE: Final = "q.strictq"
"""The queue's place under the recorded directory."""
CATALOG: Final = "queue.db"
CONFIG: Final = QueueConfig(lease_seconds=20.0, max_attempts=None, dedup_window_seconds=300.0, on_expire="dead_letter")
WIDE: Final = attrs.evolve(CONFIG, tenant_separator="/", output_seconds=1e6)
Level = Literal["full", "process"]
KINDS: Final[tuple[tuple[Level, int], ...]] = (
    ("full", 1), ("full", 2), ("full", 3), ("process", 1), ("process", 2), ("process", 3),
)  # fmt: skip
"""Queues of each durability and several numbers of shards."""


def output_of(key: str, seq: int) -> str:
    """Return the output with which the handler of a message ends, if it is acked alone."""
    return f"{seq} of {key} is done"


class BatchRow(NamedTuple):
    """A message of a recorded batch."""

    key: str
    seq: int
    token: int
    body: bytes


@attrs.define
class RecordedBatch:
    """A recorded batch that the program got.

    Attributes:
        at: how many events there were when it had it. until: when it was withdrawn.
    """

    n: int
    rows: list[BatchRow]
    at: int
    until: int = FOREVER


def batch_of(q: Queue, n: int) -> list[BatchRow]:
    """Return the messages of a recorded batch, shard by shard, whether it is acked or not. Empty: there is none."""
    rows: list[BatchRow] = []
    token_of = "SELECT token FROM handout WHERE consumer = ? AND n = ?"
    for part in q._storage.recorded_batches.parts(CONSUMER, n):
        token = store_of(q).shards[part.shard].read(lambda db: db.execute(token_of, (CONSUMER, n)).get)
        out = rejected(q, CONSUMER, n, part.shard)
        found = json.loads(read_block(q, CONSUMER, n, part.shard, part.part))
        for key, seq, body, arrival in found:
            if arrival not in out:
                name = repr(decode_key(key.encode(errors="surrogateescape")))
                rows.append(BatchRow(name, seq, token, body.encode(errors="surrogateescape")))
    return rows


def handed(rows: list[BatchRow]) -> list[Handed]:
    return [Handed(row.key, row.seq, mid_of(row.body), row.token, ENDLESS) for row in rows]


class Named(Recorded):
    """A recorded queue whose messages have the same names in every run."""

    def __init__(self, queue: Queue, recorder: Recorder, prefix: str = "m") -> None:
        super().__init__(queue, recorder)
        self._numbers = itertools.count()
        self._prefix = prefix
        self.batches: list[RecordedBatch] = []

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

    def ack(self, d: Delivery) -> None:
        """Ack, with an output if the queue keeps outputs."""
        d.ack(output=output_of(repr(d.key), d.seq) if self.queue.config.output_seconds else None)

    def take(self, holder: Holder, start: int, messages_max: int) -> int:
        """Ack the recorded batches up to one, and take the next one. Return its number."""
        call = self.recorder.invoke("receive", [Wanted(ENDLESS)])
        n = holder.take(start, messages_max=messages_max)
        rows = batch_of(self.queue, n) if n > start else []
        self.recorder.result(call, "receive", OK, handed(rows))
        if rows:
            self.batches.append(RecordedBatch(n, rows, len(self.recorder.events)))
        return n

    def ack_batch(self, holder: Holder, n: int, rows: list[BatchRow]) -> None:
        call = self.recorder.invoke("ack", [Act(row.key, row.seq, row.token) for row in rows])
        holder.ack(n)
        self.recorder.result(call, "ack")

    def withdraw_batch(self, holder: Holder, batch: RecordedBatch) -> None:
        batch.until = len(self.recorder.events)
        call = self.recorder.invoke("release", {Act(row.key, None, row.token) for row in batch.rows})
        holder.withdraw_newest()
        self.recorder.result(call, "release")

    def leave(self, tx: Transaction, effect: str, key: Any, n: int) -> None:
        """Leave the effect in a row that moves with the key."""
        tx.execute("INSERT INTO app_effects VALUES (?, ?, ?, ?)", (effect, repr(key), n, key))

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
    batches: list[RecordedBatch] = attrs.Factory(list)


class Program:
    """One consumer and producer, with the other operations on messages in between."""

    keys: tuple[Any, ...] = KEYS

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
        acts = self.acts()
        (act,) = self.random.choices([a for a, _ in acts], [w for _, w in acts])
        act()
        self.clock.advance(self.random.choice((0.0, 0.1, 2.0)))

    def acts(self) -> list[tuple[Callable[[], object], float]]:
        """Return what a step may be, and how often."""
        return [(self.send, 6), (self.receive, 4), (self.settle, 8), (self.transact, 5), (self.operate, 1), (self.keep, 2)]

    def message(self) -> Message:
        chance, key = self.random.random(), self.random.choice(self.keys)
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
        if self.random.random() < 0.3 and len(self.held) > 1:
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
        sends = [self.recorded.new(self.random.choice(self.keys)) for _ in range(self.random.randint(0, 3))]
        if self.random.random() < 0.2 and sends:
            sends.append(self.recorded.big(self.random.choice(self.keys)))
        d = self.held.pop(0) if self.held and self.random.random() < 0.7 else None
        self.recorded.transact(d, self.random.choice(self.keys), sends, fail=self.random.random() < 0.1)

    def operate(self) -> None:
        verb = self.random.choice(("hold", "unhold", "redrive", "purge"))
        key = self.random.choice(self.keys)
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


class Died(Exception):
    """The mover of a range is gone."""


class Wide(Program):
    """The same beside operators: ranges move, tenants are limited, the queue pauses, and backups are taken."""

    keys = (*KEYS, *TENANTS)
    holder: Holder | None = None

    def acts(self) -> list[tuple[Callable[[], object], float]]:
        beside = [(self.rearrange, 1.5), (self.limit, 0.7), (self.delay_others, 0.7), (self.back_up, 0.2)]
        return [*super().acts(), (self.batch, 2), *beside]

    def batch(self) -> None:
        """Ack or withdraw the recorded batch of a named consumer, or take the next one. Its process may begin anew before."""
        if self.holder is not None and self.random.random() < 0.2:
            self.holder.close()
            self.holder = None
        if self.holder is None:
            self.holder = Holder(self.queue, CONSUMER, encode, packed=self.random.random() < 0.5)
            self.holder.attach(0.0)
        holder, recorded = self.holder, self.recorded
        n = holder.last
        if n > holder.acked:
            newest = next((batch for batch in recorded.batches if batch.n == n and batch.until == FOREVER), None)
            rows = batch_of(self.queue, n)
            if newest is None:  # the power was cut before it was known
                call = recorded.recorder.invoke("receive", [Wanted(ENDLESS)])
                recorded.recorder.result(call, "receive", OK, handed(rows))
                newest = RecordedBatch(n, rows, len(recorded.recorder.events))
                recorded.batches.append(newest)
            assert rows == newest.rows, "a recorded batch changed"
            if self.random.random() < 0.2:
                recorded.withdraw_batch(holder, newest)
            elif self.random.random() < 0.8:
                recorded.ack_batch(holder, n, rows)
            return
        recorded.take(holder, n, self.random.randint(1, 8))

    def rearrange(self) -> None:
        """Move a range. After each of its steps, another call is made, or the move is cancelled, or its mover dies."""
        topology = self.queue.topology()
        cancels = topology.moving is not None and self.random.random() < 0.3
        # An unfinished move is finished first, and then the shards may own other ranges.
        with suppress(InvalidArgument, MoveBlocked, Died):
            if cancels:
                self.queue.cancel_move()
                return
            self._move([shard for shard in topology.shards if shard.ranges], len(topology.shards))

    def _move(self, owners: list[ShardRange], shards: int) -> None:
        owner = self.random.choice(owners)
        lo, hi = self.random.choice(owner.ranges)
        others = [number for number in range(shards) if number != owner.shard]
        chance, grows = self.random.random(), shards < SHARDS_MAX
        if chance < 0.3 and grows:
            self.queue.split(owner.shard, parts=2, on_progress=self._meanwhile)
        elif chance < 0.4 and grows:
            self.queue.isolate(self.random.choice(self.keys), on_progress=self._meanwhile)
        elif others and chance < 0.7:
            self.queue.merge(owner.shard, into=self.random.choice(others), on_progress=self._meanwhile)
        elif others:
            inside = [hashed for key in self.keys if lo <= (hashed := hash_key(encode_key(key))) <= hi] or [hi]
            at = self.random.choice(inside)
            lo, hi = self.random.choice(((lo, at), (at, hi), (lo, hi)))
            self.queue.move(lo, hi, to=self.random.choice(others), on_progress=self._meanwhile)

    def close(self) -> None:
        if self.holder is not None:
            self.holder.close()
        self.queue.close()

    def _meanwhile(self, _done: int, _all: int) -> None:
        chance = self.random.random()
        if chance < 0.1:
            raise Died
        if chance < 0.2:
            self.queue.cancel_move()
        elif chance < 0.7:
            self.random.choice((self.send, self.receive, self.settle, self.transact, self.operate))()

    def limit(self) -> None:
        """Set a limit of a tenant, or remove all of one."""
        if self.queue.config.tenant_separator is None:
            self.queue.configure(tenant_separator="/")
        tenant = self.random.choice(("t", "u", "t*", "*"))
        if self.random.random() < 0.5:
            self.queue.limit(tenant, remove=True)
            return
        limits: tuple[dict[str, Any], ...] = (
            {"max_depth": 3}, {"send_rate": 1.0}, {"receive_rate": 0.5}, {"concurrency": 1}, {"paused": True}, {"weight": 5.0},
        )  # fmt: skip
        self.queue.limit(tenant, **self.random.choice(limits))

    def delay_others(self) -> None:
        """Pause the queue, or sideline its backlog, or end that."""
        now = self.clock.wall() / 1e6
        self.random.choice((
            self.queue.pause, self.queue.resume, self.queue.resume, lambda: self.queue.sideline(now),
            lambda: self.queue.sideline(now - 5.0), lambda: self.queue.sideline(None),
        ))()  # fmt: skip

    def back_up(self) -> None:
        """Take a backup. It has what the queue has, and can be put in service."""
        with tempfile.TemporaryDirectory(dir=Path(self.queue.path).parent.parent) as place:
            copy = Path(place, "copy")
            self.queue.backup(copy)
            with strictq.open(copy, read_only=True, clock=self.clock) as q:
                require_same(q, self.queue, ALL_KEYS)
                assert q.check() == []
            strictq.adopt(copy, clock=self.clock)
            with strictq.open(copy, clock=self.clock) as q:
                require_memories(q)
                require_same(q, self.queue, ALL_KEYS)
                assert q.check() == []


@contextmanager
def stepwise(seed: int) -> Iterator[None]:
    """Let few lanes leave at a time in this block, and let no move wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "LANES_MAX", random.Random(f"steps of {seed}").choice((1, 2, 4)))
        patch.setattr(moving, "WAIT_SECONDS", 0.0)
        yield


def files_of(catalog: Snapshot) -> set[str]:
    """Return the files of the shards that a queue has, by the contents of its catalog."""
    return {row["file"] for row in catalog.all("topology")}


def config_of(catalog: Snapshot) -> QueueConfig:
    return QueueConfig.from_json(catalog.one("queue")["config"])


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
    with recording(root, clock) as journal, windows(seed), stepwise(seed):
        recorder = Recorder()
        recorder.journal = journal
        config = WIDE if seed % 4 else CONFIG
        queue = strictq.open(Path(journal.root, PLACE), shards=shards, durability=level, config=config, clock=clock)
        journal.note("opened")
        queue.app_schema(SCHEMA, key_columns={"app_effects": "owner"})
        journal.note("ready")
        program = Wide(Named(queue, recorder), clock, chance)
        program.work(steps)
        journal.note("last")
        journal.recording = False
        if witness is not None:
            witness.require(queue)
            witness.require_replicas(queue, lambda promoted: require_same(promoted, queue, ALL_KEYS))
        program.close()
    return Run(journal, recorder.events, level, clock, program.folds.count, program.recorded.batches)


def resume(root: Path, run: Run, events: list[Event], *, seed: int, steps: int, clock: FakeClock) -> Run:
    """Open the queue under `root` after a cut, and continue working on it. All of that is recorded, for a second cut."""
    catalog = read_file(root / PLACE / CATALOG)
    known = {CATALOG: catalog, **{name: read_file(root / PLACE / name) for name in sorted(files_of(catalog))}}
    with recording(root, clock, known) as journal, windows(seed), stepwise(seed):
        recorder = Recorder()
        recorder.events.extend(events)
        call = recorder.invoke("reboot")
        recorder.result(call, "reboot")
        recorder.journal = journal
        journal.note("event", at=len(recorder.events))
        journal.note("opened")
        journal.note("ready")
        queue = strictq.open(Path(journal.root, PLACE), clock=clock)
        program = Wide(Named(queue, recorder, f"again-{seed}"), clock, random.Random(seed))
        for batch in run.batches:
            if batch.at <= len(events):
                kept = copy.copy(batch)
                if kept.until >= len(events):
                    kept.until = FOREVER  # the cut came before the withdrawal
                program.recorded.batches.append(kept)
        program.work(steps)
        journal.note("last")
        journal.recording = False
        program.close()
    return Run(journal, recorder.events, run.level, clock, program.folds.count, program.recorded.batches)
