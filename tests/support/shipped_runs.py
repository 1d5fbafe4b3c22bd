"""A queue that is shipped while a program chosen by a seed works on it, and what it had at each cut, counted beside it."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, get_args

import attrs
import pytest

import strictq
from strictq import Delivery, Message, Queue, QueueConfig, TargetUnavailable
from strictq.replication import shipper as shipping
from strictq.replication.directory import DirectoryTarget
from strictq.replication.segment import SegmentHeader, decode_header
from strictq.replication.shipper import Shipper
from strictq.testing import FakeClock
from tests.support.folds import Folds
from tests.support.powercut import recording
from tests.support.powercut_disk import Disk, Op
from tests.support.powercut_run import Level, windows
from tests.support.powercut_verify import require as demand
from tests.support.shipping import shipper_of
from tests.support.witness import Witness

KEYS: Final = ("a", "b", "c", "d", "e", "f")
SCHEMA: Final = "CREATE TABLE IF NOT EXISTS app_passed (lane TEXT NOT NULL, n INTEGER NOT NULL) STRICT"
LEASE_SECONDS: Final = 10_000.0
"""No lease ends while the program runs."""
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
TARGET: Final = "t"
"""The target's place under the recorded directory."""


@attrs.define
class Contents:
    """What a queue has, as the calls that returned determine it.

    Attributes:
        lanes: the unresolved messages of each key: seq and body.
        dead: the dead letters of each key.
        sent: the number of messages that were sent to each key.
        passed: the number of transactions of each key, which is its state, too.
    """

    lanes: dict[str, dict[int, bytes]] = attrs.Factory(lambda: {key: {} for key in KEYS})
    dead: dict[str, dict[int, bytes]] = attrs.Factory(lambda: {key: {} for key in KEYS})
    sent: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(KEYS, 0))
    passed: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(KEYS, 0))

    def send(self, key: str, body: bytes) -> None:
        self.sent[key] += 1
        self.lanes[key][self.sent[key]] = body

    def require_of(self, q: Queue, where: str) -> None:
        """Require that a queue has exactly this, and that check() finds nothing.

        Raises:
            Broken: it has something else.
        """
        for key in KEYS:
            lane = [(m.seq, m.body) for m in q.peek(key, 1_000)]
            demand(lane == sorted(self.lanes[key].items()), f"{where}: {_differs(f'lane {key}', self.lanes[key], dict(lane))}")
            dead = {m.seq: m.body for m in q.dead_letters(key)}
            demand(dead == self.dead[key], f"{where}: {_differs(f'dead letters of {key}', self.dead[key], dead)}")
        rows = sorted((row[0], row[1]) for row in q.query("SELECT lane, n FROM app_passed"))
        wanted = [(key, n) for key in KEYS for n in range(self.passed[key])]
        demand(rows == wanted, f"{where}: app_passed has {rows} instead of {wanted}")
        demand(not (found := q.check()), f"{where}: check: {found[:3]}")

    def require_usable(self, q: Queue, clock: FakeClock, where: str) -> None:
        """Require that a queue that has this hands it out in order, and that new messages continue its seqs.

        Raises:
            Broken: it does not.
        """
        clock.advance(LEASE_SECONDS + 1)
        got: dict[str, list[tuple[int, bytes]]] = {key: [] for key in KEYS}
        while batch := q.receive(100):
            for d in batch:
                got[str(d.key)].append((d.seq, d.body))
            q.ack_many(batch)
        for key in KEYS:
            wanted = sorted(self.lanes[key].items())
            demand(got[key] == wanted, f"{where}: {_differs(f'what {key} delivers', dict(wanted), dict(got[key]))}")
            with q.transaction(key=key) as tx:
                demand(int(tx.key_state or b"0") == self.passed[key], f"{where}: the state of {key} is {tx.key_state!r}")
            demand(q.send(b"new", key).seq == self.sent[key] + 1, f"{where}: a seq of {key} was issued twice, or left out")


def _differs(what: str, wanted: dict[int, bytes], found: dict[int, bytes]) -> str:
    missing, more = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = sorted(seq for seq in wanted.keys() & found.keys() if wanted[seq] != found[seq])
    return f"{what}: missing {missing}, not expected {more}, with other bodies {other}, or out of order"


class ShippedProgram:
    """Sends, receives, settles and operates. `has` is what the queue then has."""

    def __init__(self, clock: FakeClock, chance: random.Random) -> None:
        self.clock = clock
        self.random = chance
        self.has = Contents()
        self.held: list[Delivery] = []
        self.abandoned: set[str] = set()
        """Keys with leases that nothing in `held` has."""
        self.folds = Folds()
        self._bodies = 0

    def step(self, q: Queue) -> None:
        """Make one call, or a few that belong together."""
        acts = [(self.send, 6), (self.receive, 4), (self.settle, 6), (self.transact, 4), (self.operate, 1), (self.configure, 1)]
        (act,) = self.random.choices([a for a, _ in acts], [w for _, w in acts])
        act(q)
        self.folds.watch(q)
        self.clock.advance(self.random.choice((0.001, 0.1, 2.0)))

    def _body(self) -> bytes:
        self._bodies += 1
        size = self.random.choice((0, 0, 10, 200, 6_000))
        return b"%d:" % self._bodies + self.random.randbytes(size)

    def send(self, q: Queue) -> None:
        made = [Message(self._body(), key=self.random.choice(KEYS)) for _ in range(self.random.choice((1, 1, 2, 7)))]
        if len(made) == 1:
            q.send(made[0].body, made[0].key)
        else:
            q.send_many(made)
        for message in made:
            self.has.send(str(message.key), bytes(message.body))

    def receive(self, q: Queue) -> None:
        self.held += q.receive(self.random.randint(1, 6), lease_seconds=LEASE_SECONDS)

    def settle(self, q: Queue) -> None:
        for _ in range(self.random.randint(1, 4)):
            if not self.held:
                return self.receive(q)
            d = self.held.pop(0)
            verb = self.random.choice(("ack", "ack", "ack", "reject", "nack"))
            if verb == "nack":
                d.nack(delay=0.0)
                self.held = [other for other in self.held if other.key != d.key]  # the lane's lease has ended
                continue
            body = self.has.lanes[str(d.key)].pop(d.seq)
            if verb == "ack":
                d.ack()
            else:
                d.reject("rejected")
                self.has.dead[str(d.key)][d.seq] = body
        return None

    def transact(self, q: Queue) -> None:
        """Ack and send to other keys in one transaction, which also changes the state of a key and a table of the program."""
        d = self.held.pop(0) if self.held and self.random.random() < 0.7 else None
        key = self.random.choice(KEYS) if d is None else str(d.key)
        sends = [(self.random.choice(KEYS), self._body()) for _ in range(self.random.randint(0, 3))]
        n = self.has.passed[key]
        with q.transaction(d) if d is not None else q.transaction(key=key) as tx:
            demand(int(tx.key_state or b"0") == n, f"the state of {key} is {tx.key_state!r}")
            tx.key_state = b"%d" % (n + 1)
            tx.execute("INSERT INTO app_passed VALUES (?, ?)", (key, n))
            for to, body in sends:
                tx.send(body, key=to)
        self.has.passed[key] = n + 1
        if d is not None:
            del self.has.lanes[key][d.seq]
        for to, body in sends:
            self.has.send(to, body)

    def abandon(self) -> None:
        """Forget the deliveries of a queue object that was closed. Their leases go on, so a purge leaves these messages."""
        self.abandoned |= {str(d.key) for d in self.held}
        self.held.clear()

    def operate(self, q: Queue) -> None:
        free = [key for key in KEYS if key not in {d.key for d in self.held} | self.abandoned]
        if not free:
            return
        key = self.random.choice(free)
        if self.random.random() < 0.5:
            q.redrive(key)
            self.has.lanes[key].update(self.has.dead[key])
            self.has.dead[key].clear()
        else:
            q.purge(key)
            self.has.lanes[key].clear()

    def configure(self, q: Queue) -> None:
        q.configure(retry_delay_max_seconds=float(self.random.randint(10, 1_000)))


@attrs.define
class ShippedRun:
    """The recording of a target. Entries "shipped" and "putting" have the number of a segment.

    Attributes:
        start, ops: what was written to the target.
        segments, headers: each of them, whether it is still at the target or not.
        states: what the queue had, by the number of the last segment of each complete cut.
        queues: copies of the queue, as it was while a segment was put; -1: before the first one.
        folds: how often logs were cut.
    """

    seed: int
    start: Disk = attrs.field(factory=Disk)
    ops: list[Op] = attrs.Factory(list)
    segments: list[bytes] = attrs.Factory(list)
    headers: list[SegmentHeader] = attrs.Factory(list)
    states: dict[int, Contents] = attrs.Factory(dict)
    queues: dict[int, tuple[Path, Contents]] = attrs.Factory(dict)
    folds: int = 0

    @property
    def last(self) -> int:
        """The number of the last segment, with which a cut is complete."""
        return max(self.states)

    def complete_at(self, n: int) -> int:
        """Return the last segment of the newest complete cut up to this segment; -1: there is none."""
        return max((each for each in self.states if each <= n), default=-1)


class ShippingWorld:
    """What `ship` works with: the queue, its shipper, and the program, all of which follow from the seed."""

    def __init__(self, place: Path, run: ShippedRun, clock: FakeClock, chance: random.Random) -> None:
        self.place, self.run, self.clock, self.random = place, run, clock, chance
        self.program = ShippedProgram(clock, chance)
        self.keep_seconds = chance.choice((0.0, 1.0, 86_400.0))
        self.seal_at = chance.choice((4, 12, 40, 1_000))
        self.term = 1
        self.failures = 2
        """So many puts fail, after which the cut is put again."""
        self.durability: Level = chance.choice(LEVELS)
        config = QueueConfig(max_attempts=None, on_expire="dead_letter")
        self.q = strictq.open(
            place / "q", durability=self.durability, clock=clock, shards=chance.choice((1, 2, 3)), config=config
        )
        self.q.app_schema(SCHEMA)

    def copy_queue(self, n: int) -> None:
        to = self.place / f"q{n}"
        shutil.rmtree(to, ignore_errors=True)  # the cut before was abandoned
        shutil.copytree(self.q.path, to)
        self.run.queues[n] = to, copy.deepcopy(self.program.has)

    def shipper(self, target: Path) -> Shipper:
        shipper = shipper_of(self.q, target, keep_seconds=self.keep_seconds, on_put=self._on_put, term=self.term)
        shipper._capture._seal_at = self.seal_at
        return shipper

    def _on_put(self, header: SegmentHeader) -> None:
        if not header.more:
            self.run.states[header.n] = copy.deepcopy(self.program.has)
        elif self.failures and self.random.random() < 0.2:
            self.failures -= 1
            raise TargetUnavailable("the target does not answer", "")

    def begin_again(self, target: Path, shipper: Shipper) -> Shipper:
        """Close the shipper, sometimes also the queue, and return another one."""
        shipper.close()
        self.term += self.random.random() < 0.5
        if self.random.random() < 0.5:
            self.q.close()
            self.q = strictq.open(self.place / "q", durability=self.durability, clock=self.clock)
            self.program.abandon()
        return self.shipper(target)


def ship(place: Path, *, seed: int, rounds: int = 6, witness: Witness | None = None) -> ShippedRun:
    """Work on a queue and ship it to a directory, which is recorded. A round ends with a complete cut.

    Args:
        witness: opens copies of it at the end.
    """
    chance, clock, run = random.Random(seed), FakeClock(), ShippedRun(seed)
    root = place / "recorded"
    root.mkdir()
    with recording(root, clock) as journal, windows(seed), pytest.MonkeyPatch.context() as patch:
        world = ShippingWorld(place, run, clock, chance)
        real = DirectoryTarget.put

        def put(target: DirectoryTarget, n: int, data: bytes) -> None:
            world.copy_queue(n)
            run.segments[n:], run.headers[n:] = [data], [decode_header(data, n)]
            journal.note("putting", at=n)
            real(target, n, data)

        patch.setattr(DirectoryTarget, "put", put)
        patch.setattr(shipping, "PAGES_MAX", chance.choice((20, 60, 4_096)))
        patch.setattr(shipping, "CHAIN_SEGMENTS_MAX", chance.choice((3, 12, 30, 10_000)))
        world.copy_queue(-1)
        target = journal.root / TARGET
        shipper = world.shipper(target)
        for _ in range(rounds):
            for _ in range(chance.randint(1, 5)):
                world.program.step(world.q)
            _round(shipper, lambda: journal.note("shipped", at=run.last))
            if chance.random() < 0.15:
                shipper = world.begin_again(target, shipper)
        shipper.close()
        journal.recording = False
        if witness is not None:
            witness.require(world.q)
        world.q.close()
    run.start, run.ops, run.folds = journal.start, journal.ops, world.program.folds.count
    return run


def _round(shipper: Shipper, shipped: Callable[[], None]) -> None:
    """Repeat a round until the target has taken all of it."""
    while True:
        try:
            shipper.round()
        except TargetUnavailable:
            continue
        shipped()
        return
