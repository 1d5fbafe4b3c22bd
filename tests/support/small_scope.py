"""Every sequence of a few operations of two consumers on two keys, each compared with an oracle of lists and a dictionary.

The consumers are two queue objects on one directory, so each works with the other's writes. Sequences that differ only in the
names of the consumers or of the keys are equal: the first consumer and the first key of a sequence are always A and "a". Time
stands still except for `expire`. After its last operation each sequence is examined completely, and drained. If that operation is
a fold, every memory must equal one that is built from the tables, also that of another process: of every sequence, or of a share.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import attrs

import strictq
from strictq import Delivery, LeaseLost, QueueConfig
from strictq._store.shard import checking
from strictq._store.upkeep import Upkeep
from strictq.testing import FakeClock
from tests.support.folds import fold, require_memories
from tests.support.internals import shard_of, store_of
from tests.support.witness import Witness

KEYS: Final = ("a", "b")
LEASE_SECONDS: Final = 30.0
MAX_ATTEMPTS: Final = 2
ALONE: Final = 2
"""Sequences up to this length have their own queue."""
TOGETHER: Final = 50
"""The number of longer ones that share a queue: opening one takes as long as the work in it."""
CONFIG: Final = QueueConfig(
    lease_seconds=LEASE_SECONDS, max_attempts=MAX_ATTEMPTS, retry_delay_seconds=0.0, retry_for_seconds=0.0
)
Step = tuple[str, int, str | int]
"""A verb, the consumer, and the argument: a key, a number of messages, or the number of a delivery."""
Sequence = tuple[Step, ...]


# ---- the oracle


@attrs.define
class Message:
    """`redriving`: unresolved, but not delivered before the lease of its lane ends."""

    seq: int
    state: Literal["waiting", "leased", "gone", "dead", "redriving"] = "waiting"
    attempts: int = 0


@attrs.define
class Lease:
    """`low`: its first message. `charged`: its only message, charged at its delivery; 0: it had several."""

    token: int
    low: int
    members: list[int]
    charged: int
    is_over: bool = False


@attrs.define
class Lane:
    """A key.

    Attributes:
        one_by_one_to, perhaps_to: up to this seq messages must, or may, be delivered alone.
        is_plain: it was only sent to and acked.
    """

    messages: list[Message] = attrs.Factory(list)
    lease: Lease | None = None
    is_held: bool = False
    one_by_one_to: int = 0
    perhaps_to: int = 0
    token: int = 0
    is_plain: bool = True

    def of(self, *states: str) -> list[Message]:
        """Return its messages in these states, in order."""
        return [m for m in self.messages if m.state in states]

    def unresolved(self) -> list[Message]:
        """Return its unresolved messages, in order."""
        return self.of("waiting", "leased", "redriving")

    def is_free(self) -> bool:
        """Return whether it has something to deliver."""
        return not self.is_held and (self.lease is None or self.lease.is_over) and bool(self.of("waiting", "leased", "redriving"))

    def end_lease(self) -> None:
        """Give back what it holds unresolved, and put back dead letters that waited for that."""
        self.lease = None
        for m in self.of("leased"):
            m.state = "waiting"
        for m in self.of("redriving"):
            m.state, m.attempts = "waiting", 0
            self.is_plain = False
            self.perhaps_to, self.one_by_one_to = max(self.perhaps_to, self.one_by_one_to, m.seq), 0

    def lapse(self) -> None:
        """Let a claim take the lane, whose lease, if any, was over."""
        lease = self.lease
        if lease is None:
            return
        self.is_plain = False
        if lease.charged:
            suspect = lease.charged
            if self.messages[suspect - 1].attempts >= MAX_ATTEMPTS:
                self.messages[suspect - 1].state = "dead"
        else:
            suspect = lease.members[0] if lease.members[0] > lease.low else lease.members[-1]
        self.one_by_one_to = max(self.one_by_one_to, suspect)
        self.end_lease()

    def settled(self, seq: int, verb: str) -> None:
        """Record that a holder acked, nacked or rejected a message."""
        lease, m = self.lease, self.messages[seq - 1]
        assert lease is not None
        if verb == "nack":
            self.is_plain = False
            m.attempts += not lease.charged
            for later in [s for s in lease.members if s >= seq]:
                lease.members.remove(later)
                self.messages[later - 1].state = "waiting"
            if m.attempts >= MAX_ATTEMPTS:
                m.state = "dead"
        else:
            m.state = "gone" if verb == "ack" else "dead"
            self.is_plain &= verb == "ack"
            lease.members.remove(seq)
        if not lease.members:
            self.end_lease()


# ---- the queue


@attrs.define
class Given:
    """A delivery, its consumer, and whether it was settled through this object."""

    consumer: int
    delivery: Delivery
    is_settled: bool = False


class Place:
    """A queue in a directory, and two queue objects. Sequences follow each other in it, each with its own keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
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
    """One sequence, and the oracle's state. A key is called `a` or `b`; in the queue a number follows it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.queues = place.queues
        self.lanes = {key: Lane() for key in KEYS}
        self.given: list[Given] = []
        self.arrivals: dict[str, list[int]] = {key: [] for key in KEYS}
        self.suffix = str(place.sequences)
        place.sequences += 1

    def enabled(self, before: Sequence) -> list[Step]:
        """Return every step that has an effect now, without those that differ only by names."""
        consumers = [0, 1] if any(who for _, who, _ in before) else [0, 1][: 1 + bool(before)]
        keys = [key for n, key in enumerate(KEYS) if n == 0 or self.lanes[KEYS[0]].messages or self.lanes[KEYS[0]].is_held]
        steps: list[Step] = []
        for c in consumers:
            steps += [("send", c, key) for key in keys]
            if any(lane.unresolved() for lane in self.lanes.values()):
                steps += [("receive", c, 1), ("receive", c, 10)]
            for key in keys:
                lane = self.lanes[key]
                steps.append(("release" if lane.is_held else "hold", c, key))
                if lane.of("dead"):
                    steps.append(("redrive", c, key))
            if before and before[-1][0] != "fold" and any(lane.messages for lane in self.lanes.values()):
                steps.append(("fold", c, 0))
            if any(who == c for _, who, _ in before):
                steps.append(("restart", c, 0))
        for n, given in enumerate(self.given):
            if not given.is_settled:
                verbs = ("ack", "nack", "reject") if self._is_valid(given.delivery) else ("ack",)
                steps += [(verb, given.consumer, n) for verb in verbs]
        if any(lane.lease is not None and not lane.lease.is_over for lane in self.lanes.values()):
            steps.append(("expire", 0, 0))
        return steps

    def _is_valid(self, d: Delivery) -> bool:
        lease = self.lanes[str(d.key)[0]].lease
        return lease is not None and lease.token == d.token and d.seq in lease.members

    def step(self, step: Step) -> None:
        """Run a step, and compare its result."""
        verb, who, what = step
        getattr(self, f"_{verb}")(who, what)

    def _send(self, who: int, key: str) -> None:
        lane = self.lanes[key]
        seq = len(lane.messages) + 1
        receipt = self.queues[who].send(b"%d" % seq, key=key + self.suffix)
        assert (receipt.key, receipt.seq, receipt.duplicate) == (key + self.suffix, seq, False)
        lane.messages.append(Message(seq))
        self.arrivals[key].append(receipt.id)
        self.place.sends += 1

    def _receive(self, who: int, most: int) -> None:
        got = self.queues[who].receive(most)
        assert len(got) <= most
        assert {str(d.key)[1:] for d in got} <= {self.suffix}
        order = list(dict.fromkeys(str(d.key)[0] for d in got))
        plain = {key: self._plain_head(key) for key in KEYS}
        room = most
        for key in order:
            assert room > 0
            room -= self._take(key, [d for d in got if str(d.key)[0] == key], room)
        left = [key for key in KEYS if key not in order and self.lanes[key].is_free()]
        for key in left:
            if room or self._was_given_up(key):
                self.lanes[key].lapse()
        if room:
            assert not any(self.lanes[key].is_free() for key in left), f"{left} had something, and there was room"
        heads = [plain[key] for key in [*order, *left] if plain[key]]
        assert heads == sorted(heads), "the oldest head comes first"
        self.given += [Given(who, d) for d in got]

    def _was_given_up(self, key: str) -> bool:
        """Return whether a claim of another lane found the last attempt of this lane's only message used up."""
        lane = self.lanes[key]
        if lane.lease is None or lane.lease.charged == 0 or lane.messages[lane.lease.charged - 1].attempts < MAX_ATTEMPTS:
            return False
        return self.queues[0].status(key + self.suffix, lane.lease.charged).state == "dead"

    def _plain_head(self, key: str) -> int:
        """Return the arrival of a deliverable head, if its lane was only sent to and acked; else 0."""
        lane = self.lanes[key]
        if not lane.is_plain or not lane.is_free() or lane.lease is not None:
            return 0
        return self.arrivals[key][lane.unresolved()[0].seq - 1]

    def _take(self, key: str, got: list[Delivery], room: int) -> int:
        lane = self.lanes[key]
        assert lane.is_free(), f"{key} had nothing to give out"
        lane.lapse()
        waiting = lane.of("waiting")
        head = waiting[0].seq
        batch = waiting[: 1 if head <= lane.one_by_one_to else room]
        seqs = [m.seq for m in batch]
        assert [d.seq for d in got] in ([seqs, seqs[:1]] if head <= lane.perhaps_to else [seqs]), f"{key}: wanted {seqs}"
        batch = batch[: len(got)]
        (token,) = {d.token for d in got}
        assert token > lane.token, "tokens ascend"
        lane.token = token
        alone = len(got) == 1
        lane.lease = Lease(token, batch[0].seq, [m.seq for m in batch], batch[0].seq if alone else 0)
        for d, m in zip(got, batch, strict=True):
            m.state = "leased"
            m.attempts += alone
            assert (d.body, d.attempt) == (b"%d" % d.seq, max(m.attempts, 1 if alone else m.attempts + 1))
        return len(got)

    def _settle(self, verb: str, n: int) -> None:
        given = self.given[n]
        d = given.delivery
        act = {"ack": d.ack, "nack": d.nack, "reject": lambda: d.reject("no")}[verb]
        if not self._is_valid(d):
            try:
                act()
            except LeaseLost:
                return
            raise AssertionError(f"{verb} of {d.key} {d.seq} under a dead token")
        act()
        given.is_settled = True
        self.lanes[str(d.key)[0]].settled(d.seq, verb)
        self.place.acks += verb == "ack"

    def _ack(self, _who: int, n: int) -> None:
        self._settle("ack", n)

    def _nack(self, _who: int, n: int) -> None:
        self._settle("nack", n)

    def _reject(self, _who: int, n: int) -> None:
        self._settle("reject", n)

    def _hold(self, who: int, key: str) -> None:
        self.queues[who].hold(key + self.suffix)
        self.lanes[key].is_held = True
        self.lanes[key].is_plain = False

    def _release(self, who: int, key: str) -> None:
        self.queues[who].release(key + self.suffix)
        lane = self.lanes[key]
        lane.is_held = False
        lane.perhaps_to, lane.one_by_one_to = max(lane.perhaps_to, lane.one_by_one_to), 0
        for m in lane.unresolved():
            m.attempts = int(lane.lease is not None and m.seq == lane.lease.charged and m.state == "leased")

    def _redrive(self, who: int, key: str) -> None:
        lane = self.lanes[key]
        assert self.queues[who].redrive(key + self.suffix) == len(lane.of("dead"))
        for m in lane.of("dead"):
            m.state = "redriving"
        if lane.lease is None:
            lane.end_lease()

    def _fold(self, who: int, _: int) -> None:
        fold(self.queues[who])

    def _restart(self, who: int, _: int) -> None:
        """Kill the process, and start another one in its place, which knows handles."""
        store_of(self.queues[who]).die()
        self.queues[who] = q = self.place.open()
        for given in self.given:
            if given.consumer == who:
                given.delivery = q.delivery(given.delivery.handle)

    def _expire(self, _who: int, _: int) -> None:
        self.place.clock.advance(LEASE_SECONDS + 1.0)
        for lane in self.lanes.values():
            if lane.lease is not None:
                lane.lease.is_over = True

    # ---- at the end of a sequence

    def look(self, who: int) -> None:
        """Compare what a consumer sees with the oracle, and every memory with the tables."""
        q = self.queues[who]
        shard = shard_of(q)
        assert shard.look(lambda db: list(checking.problems(db, 0, shard.range.owns, 1))) == []
        stats = q.stats()
        flying = held = unresolved = dead = 0
        for key, lane in self.lanes.items():
            messages = lane.unresolved()
            members = lane.lease.members if lane.lease is not None and not lane.lease.is_over else []
            unresolved += len(messages)
            dead += len(lane.of("dead"))
            flying += len(members)
            if lane.is_held:
                held += len(messages) - len(members)
            seen = q.peek(key + self.suffix)
            assert [(m.seq, m.body) for m in seen] == [(m.seq, b"%d" % m.seq) for m in messages], key
            states = ["in_flight" if m.seq in members else "held" if lane.is_held else "ready" for m in messages]
            assert [m.state for m in seen] == states, key
            if not (lane.lease is not None and lane.lease.is_over):
                assert [m.attempts for m in seen] == [m.attempts for m in messages], key
        found = (stats.depth, stats.in_flight, stats.held, stats.dead, stats.sends, stats.acks)
        assert found == (unresolved, flying, held, dead, self.place.sends, self.place.acks)
        letters = {(x.key, x.seq) for x in q.dead_letters()}
        assert letters == {(key + self.suffix, m.seq) for key, lane in self.lanes.items() for m in lane.of("dead")}
        require_memories(*self.queues)

    def drain(self, who: int) -> None:
        """Receive everything unresolved in order, and ack it."""
        for key, lane in self.lanes.items():
            if lane.is_held:
                self._release(who, key)
        self._expire(0, 0)
        for n in range(100):
            self._receive((who + n) % 2, 10 if n % 3 else 1)
            for given, each in enumerate(self.given):
                if not each.is_settled and self._is_valid(each.delivery):
                    self._settle("ack", given)
            for key, lane in self.lanes.items():
                if lane.of("dead"):
                    self._redrive(who, key)
            if not any(lane.of("waiting", "leased", "redriving") for lane in self.lanes.values()):
                break
        else:
            raise AssertionError("it does not run dry")
        require_memories(*self.queues)


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

    def __init__(self, directory: Path, witnessed: float = 1.0) -> None:
        """
        Args:
            directory: where the queue is.
            witnessed: the share of folds after which another process opens a copy.
        """
        self._witnessed = witnessed
        self.done: Counter[str] = Counter()
        self._path = directory / "small.strictq"
        self._witness = Witness(directory)
        strictq.open(self._path, shards=1, durability="process", config=CONFIG, clock=FakeClock()).close()
        self._blank = {file.name: file.read_bytes() for file in self._path.iterdir() if file.name != "reserve"}
        self._place: Place | None = None

    def run(self, sequence: Sequence) -> list[Step]:
        """Run one, and return the steps that could follow it. Short ones, and some of the others, begin with an empty queue.

        Raises:
            AssertionError: it differs from the oracle.
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
        self._place = Place(self._path)
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
        """Return every sequence of this length."""
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
