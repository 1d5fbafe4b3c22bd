"""Every sequence of a few operations of two consumers on two keys, each compared with the model.

The consumers are two queue objects on one directory, so each works with the other's writes. Sequences that differ only in the
names of the consumers or of the keys are equal: the first consumer and the first key of a sequence are always A and "a". Time
stands still except for `expire`. If ranges move, the queue has two shards, and a move of a key to the other one is stopped
before its lane has left, or has arrived, as if its process had died; it is continued or cancelled later.

After its last operation each sequence is examined completely, and drained. If that operation is a fold, every memory must equal
one that is built from the tables, also that of another process: of every sequence, or of a share.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import attrs

import strictq
from strictq import Delivery
from strictq._store.shard import moving as steps_of_moves
from strictq._store.whole import moving
from strictq._store.whole.upkeep import Upkeep
from strictq._values.hashing import hash_key
from strictq._values.keys import encode_key
from strictq.testing import FakeClock
from tests.support.folds import fold, require_memories
from tests.support.internals import store_of
from tests.support.model import Model, Settings
from tests.support.moved_ranges import Killed
from tests.support.program import Program, begin
from tests.support.witness import Witness

KEYS: Final = ("a", "b")
LEASE_SECONDS: Final = 30
SETTINGS: Final = Settings(lease_seconds=LEASE_SECONDS, max_attempts=2)
ALONE: Final = 2
"""Sequences up to this length have their own queue."""
TOGETHER: Final = 20
"""The number of longer ones that share a queue: opening one takes as long as the work in it, and all its lanes are checked."""
Step = tuple[str, int, str | int]
"""A verb, the consumer, and the argument: a key, a number of messages, or the number of a delivery."""
Sequence = tuple[Step, ...]


@attrs.define
class Given:
    """A delivery, its consumer, and whether it was settled through this object."""

    consumer: int
    delivery: Delivery
    is_settled: bool = False


class Place:
    """A queue in a directory, and two queue objects. Sequences follow each other in it, each with its own keys."""

    def __init__(self, path: Path, shards: int) -> None:
        self.path = path
        self.shards = shards
        self.clock = FakeClock()
        self.sequences = self.sends = self.acks = 0
        self.queues = [self.open(), self.open()]

    def open(self) -> strictq.Queue:
        """Open it like a new process."""
        return strictq.open(self.path, durability="process", clock=self.clock)

    def close(self) -> None:
        """Close it as if both processes were killed."""
        for q in self.queues:
            store_of(q).die()


class World:
    """One sequence: a program whose steps are chosen outside. A key is called `a` or `b`; in the queue a number follows it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.queues = place.queues
        self.model = model = Model(SETTINGS, one_shard=place.shards == 1)
        self.is_moving = False
        model.sends, model.acks = place.sends, place.acks
        self.program = Program(random.Random(), place.queues, model, place.clock, place.open)
        self.program.keys = [f"{key}{place.sequences}" for key in KEYS]
        self.lanes = {key: model.lane(name) for key, name in zip(KEYS, self.program.keys, strict=True)}
        self.given: list[Given] = []
        place.sequences += 1

    def enabled(self, before: Sequence) -> list[Step]:
        """Return every step that has an effect now, without those that differ only by names."""
        consumers = [0, 1] if any(who for _, who, _ in before) else [0, 1][: 1 + bool(before)]
        first = self.lanes[KEYS[0]]
        keys = [key for n, key in enumerate(KEYS) if n == 0 or first.messages or first.on_hold]
        steps: list[Step] = []
        for c in consumers:
            steps += [("send", c, key) for key in keys]
            if self.unresolved():
                steps += [("receive", c, 1), ("receive", c, 10)]
            for key in keys:
                steps.append(("release" if self.lanes[key].on_hold else "hold", c, key))
                if self.dead(key):
                    steps.append(("redrive", c, key))
            if before and before[-1][0] != "fold" and any(lane.messages for lane in self.lanes.values()):
                steps += [("fold", c, number) for number in range(self.place.shards)]
            if self.is_moving:
                steps += [("finish", c, 0), ("cancel", c, 0)]
            elif self.place.shards > 1:
                steps += [("move", c, key) for key in keys] + [("leave", c, key) for key in keys if self.lanes[key].messages]
            if any(who == c for _, who, _ in before):
                steps.append(("restart", c, 0))
        for n, given in enumerate(self.given):
            if not given.is_settled:
                verbs = ("ack", "nack", "reject") if self.model.valid(given.delivery) else ("ack",)
                steps += [(verb, given.consumer, n) for verb in verbs]
        if any(lane.lease is not None and lane.lease.deadline > self.model.now for lane in self.lanes.values()):
            steps.append(("expire", 0, 0))
        return steps

    def unresolved(self) -> bool:
        """Return whether there is something to receive, now or later."""
        return any(lane.unresolved() or any(m.redriving for m in lane.messages) for lane in self.lanes.values())

    def dead(self, key: str) -> bool:
        return any(m.state == "dead" and not m.redriving for m in self.lanes[key].messages)

    def step(self, step: Step) -> None:
        """Run a step, and compare its result."""
        verb, who, what = step
        if verb in ("send", "hold", "release", "redrive"):
            getattr(self.program, verb)(who, self.lanes[str(what)].key)
        elif verb == "receive":
            self._carry(who)
            self.given += [Given(who, d) for d in self.program.receive(who, int(what))]
        elif verb == "fold":
            fold(self.queues[who], int(what))
        elif verb in ("move", "leave"):
            self._move(who, self.lanes[str(what)].key, has_left=verb == "leave")
        elif verb in ("finish", "cancel"):
            self._end_move(who, verb)
        elif verb == "restart":
            self._restart(who)
        elif verb == "expire":
            self.program.advance(LEASE_SECONDS + 1)
        else:
            given = self.given[int(what)]
            given.is_settled = self.program.settle(verb, (who, given.delivery))

    def _move(self, who: int, key: Any, *, has_left: bool) -> None:
        """Begin to move a key to the other shard, and die before its lane has left, or has arrived."""
        q, hashed = self.queues[who], hash_key(encode_key(key))
        (here,) = (shard.shard for shard in q.topology().shards if any(lo <= hashed <= hi for lo, hi in shard.ranges))

        def die(*_args: object) -> None:
            raise Killed

        with suppress(Killed), _set(steps_of_moves, **{"read" if has_left else "ahead": die}):
            q.move(hashed, hashed, to=1 - here)
        self.is_moving = True
        self._forget_arrivals()

    def _end_move(self, who: int, verb: str) -> None:
        q = self.queues[who]
        assert q.cancel_move() if verb == "cancel" else moving.resume(store_of(q))
        assert q.topology().moving is None
        self.is_moving = False
        self._forget_arrivals()

    def _carry(self, who: int) -> None:
        """Use every key: what has left is in no count, and is not received, until a call that names its key has carried it."""
        for key in self.program.keys if self.is_moving else ():
            self.queues[who].peek(key, 1)

    def _forget_arrivals(self) -> None:
        """Accept other arrival numbers."""
        for lane in self.lanes.values():
            for message in lane.messages:
                message.id = None

    def _restart(self, who: int) -> None:
        """Kill the process, and start another one in its place, which knows handles."""
        store_of(self.queues[who]).die()
        self.queues[who] = q = self.place.open()
        for given in self.given:
            if given.consumer == who:
                given.delivery = q.delivery(given.delivery.handle)

    # ---- at the end of a sequence

    def look(self, who: int) -> None:
        """Compare what a consumer sees with the model, and every memory with the tables: check() does that with its own."""
        if self.is_moving:
            assert self.queues[who].check() == []
            self._carry(who)
        self.program.agree(who)
        require_memories(self.queues[1 - who])

    def drain(self, who: int) -> None:
        """Receive everything unresolved in order, and ack it."""
        if self.is_moving and who:
            self.step(("finish", who, 0))
        for key, lane in self.lanes.items():
            if lane.on_hold:
                self.step(("release", who, key))
        self.step(("expire", 0, 0))
        for n in range(100):
            self.step(("receive", (who + n) % 2, 10 if n % 3 else 1))
            for given, each in enumerate(self.given):
                if not each.is_settled and self.model.valid(each.delivery):
                    self.step(("ack", each.consumer, given))
            for key in KEYS:
                if self.dead(key):
                    self.step(("redrive", who, key))
            if not self.unresolved():
                break
        else:
            raise AssertionError("it does not run dry")
        if self.is_moving:
            self.step(("finish", who, 0))
            assert self.queues[who].check() == []
        require_memories(*self.queues)
        self.place.sends, self.place.acks = self.model.sends, self.model.acks


@contextmanager
def _set(holder: Any, **values: object) -> Iterator[None]:
    """Set these attributes in this block."""
    before = {name: getattr(holder, name) for name in values}
    for name, value in values.items():
        setattr(holder, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


# ---- the enumeration


class Enumeration:
    """Runs sequences in a directory, one after the other.

    Attributes:
        done: how many there were, by length, and their number of steps.
    """

    def __init__(self, directory: Path, witnessed: float = 1.0, *, shards: int = 1) -> None:
        """
        Args:
            directory: where the queue is.
            witnessed: the share of folds after which another process opens a copy.
            shards: 2: ranges move.
        """
        self._witnessed = witnessed
        self._shards = shards
        self.done: Counter[str] = Counter()
        self._path = directory / "small.strictq"
        self._witness = Witness(directory)
        open_ = functools.partial(strictq.open, self._path, durability="process", clock=FakeClock())
        for q in begin(open_, SETTINGS, shards=shards):
            q.close()
        self._blank = {file.name: file.read_bytes() for file in self._path.iterdir() if file.name != "reserve"}
        self._place: Place | None = None

    def run(self, sequence: Sequence) -> list[Step]:
        """Run one, and return the steps that could follow it. Short ones, and some of the others, begin with an empty queue.

        Raises:
            AssertionError: it differs from the model.
        """
        with _set(Upkeep, _start=lambda _self: None):  # nothing else runs
            place = self._place
            if place is None or len(sequence) <= ALONE or place.sequences >= TOGETHER:
                place = self._renew()
            world = World(place)
            try:
                for step in sequence:
                    world.step(step)
                following = world.enabled(sequence)
                last = sequence[-1][1] if sequence else 0
                world.look(1 - last)
                if sequence and sequence[-1][0] == "fold" and random.Random(f"{sequence}").random() < self._witnessed:
                    self._witness.require(place.queues[last])
                    self.done["opened by another process"] += 1
                world.drain(1 - last)
            except BaseException as e:
                e.add_note(f"the sequence, number {place.sequences} of its queue: {sequence}")
                self.close()
                raise
        self.done["sequences"] += 1
        self.done[f"of {len(sequence)}"] += 1
        return following

    def _renew(self) -> Place:
        self._end()
        for file in self._path.iterdir():
            if file.name in self._blank:
                file.write_bytes(self._blank[file.name])
            elif file.name != "reserve":
                file.unlink()
        self._place = Place(self._path, self._shards)
        return self._place

    def close(self) -> None:
        """End the processes."""
        self._witness.close()
        self._end()

    def _end(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.close()

    def beginnings(self, length: int) -> list[Sequence]:
        found: list[Sequence] = [()]
        for _ in range(length):
            found = [(*sequence, step) for sequence in found for step in self.run(sequence)]
        return found

    def all_below(self, sequence: Sequence, depth: int, share: float = 1.0, seed: int = 0) -> None:
        """Run a sequence and all that begin with it, up to `depth` steps; of those with `depth` steps, this share."""
        following = self.run(sequence)
        if len(sequence) < depth:
            for step in following:
                longer = (*sequence, step)
                if len(longer) < depth or share == 1.0 or random.Random(f"{seed}{longer}").random() < share:
                    self.all_below(longer, depth, share, seed)
