"""The program of the tests: every call on a queue, in any order, each compared with a model written from the documentation.

Two queue objects work on one queue, as two processes would. Time moves only when the program says so, the wall clock jumps, and
the machine reboots. Who runs the program decides where the queue is, which calls are made, and what must hold after each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import Any, ClassVar, Final

import pytest

import strictq
from strictq import InvalidArgument, LeaseLost, Message, PartialFailure, QueueConfig
from strictq._values.keys import Key
from strictq.testing import FakeClock
from tests.support.model import Model, Settings, micros

KEYS: Final[tuple[Key, ...]] = ("a", b"a", 1, "ключ")
SCHEMA: Final = "CREATE TABLE IF NOT EXISTS app_log (n INTEGER PRIMARY KEY) STRICT"
HELD_MAX: Final = 30
"""So many deliveries are remembered, settled and lost ones included."""


class Failure(Exception):
    """A failure inside a transaction of these tests."""


def begin(open_: Callable[..., Any], settings: Settings, *, shards: int, in_memory: bool = False) -> list[Any]:
    """Create a queue for a program with these settings. Return two objects of it; in memory the same one twice."""
    first = open_(shards=shards, config=QueueConfig(**asdict(settings)))
    first.app_schema(SCHEMA)
    return [first, first if in_memory else open_()]


class Program:
    """Makes calls, and tells the model of each.

    Whole seconds pass, and everything else ends at a fraction of one, so nothing is due exactly now.

    Attributes:
        acts: the calls that `step` makes, and how often.
        queues: the objects; a call names one by its number.
        deliveries: each with the number of its object, the newest last.
    """

    acts: ClassVar[dict[str, int]] = {
        "some_send": 2, "some_receive": 1, "some_ack_first": 1, "some_done": 1, "some_settlement": 3, "some_work": 1,
        "some_death": 1, "some_ack_many": 1, "some_nack_many": 1, "some_transaction": 1, "some_time": 1, "some_restart": 1,
        "some_operation": 1,
    }  # fmt: skip
    keys: Sequence[Key] = KEYS
    delays: Sequence[float] = [0.0] * 8 + [3.5, 40.5]
    ttls: Sequence[float | None] = [None] * 6 + [10.5, 50.5]
    dedup_ids: Sequence[str | None] = [None, None, "x", "y"]
    leases: Sequence[float | None] = [None, 5.5, 100.5]
    rooms: Sequence[int] = [1, 2, 3, 10]
    per_keys: Sequence[int | None] = [None, None, 1, 2]

    def __init__(
        self, chance: random.Random, queues: list[Any], model: Model, clock: FakeClock, reopen: Callable[[], Any]
    ) -> None:
        """
        Args:
            queues: two objects of a queue that has SCHEMA. If both are the same one, it is never closed.
            model: of this queue.
            reopen: opens another object.
        """
        self.random, self.queues, self.model, self.clock = chance, queues, model, clock
        self.deliveries: list[tuple[int, Any]] = []
        self.first_come: list[tuple[int, Any]] = []
        self.bodies = 0
        self.skew = 0.0
        self._reopen = reopen
        self._acts = [name for name, weight in self.acts.items() for _ in range(weight)]

    def step(self) -> None:
        """Make one call, or a few that belong together."""
        getattr(self, self.random.choice(self._acts))()

    def close(self) -> None:
        for q in self.queues:
            q.close()

    def look(self, key: Key, seq: int) -> strictq.MessageStatus:
        status: strictq.MessageStatus = self.queues[0].status(key, seq)
        return status

    def body(self) -> bytes:
        self.bodies += 1
        return b"%d" % self.bodies + b"." * (5_000 if self.bodies % 7 == 0 else 0)

    def one(self) -> int:
        """Choose an object."""
        return self.random.choice((0, 1))

    def some_key(self) -> Key:
        return self.random.choice(self.keys)

    def some_keys(self, least: int, most: int) -> list[Key]:
        return [self.some_key() for _ in range(self.random.choice(range(least, most + 1)))]

    # ---- sending

    def some_send(self) -> None:
        r = self.random
        if r.choice((False, True)):
            self.send_many(self.one(), self.some_keys(1, 8))
        else:
            options = {"delay": r.choice(self.delays), "ttl": r.choice(self.ttls), "dedup_id": r.choice(self.dedup_ids)}
            self.send(self.one(), self.some_key(), **options)

    def send(self, h: int, key: Key, **options: Any) -> None:
        body = self.body()
        self.model.sent(key, body, self.queues[h].send(body, key, **options), **options)

    def send_many(self, h: int, keys: Sequence[Key]) -> None:
        messages = [Message(self.body(), key=key) for key in keys]
        receipts = self.queues[h].send_many(messages)
        together = {receipt.id for receipt in receipts}
        for message, receipt in zip(messages, receipts, strict=True):
            assert message.key is not None
            self.model.sent(message.key, message.body, receipt, together=together)

    # ---- receiving

    def receive(
        self, h: int, max_messages: int, *, per_key: int | None = None, keys: list[Key] | None = None,
        lease_seconds: float | None = None, ack_first: bool = False,
    ) -> list[Any]:  # fmt: skip
        options: dict[str, Any] = {"per_key": per_key, "keys": keys, "lease_seconds": lease_seconds, "ack_first": ack_first}
        got: list[Any] = self.queues[h].receive(max_messages, **options)
        self.model.received(got, self.look, max_messages=max_messages, **options)
        if ack_first:
            self.first_come += [(h, d) for d in got]
        else:
            self.deliveries += [(h, d) for d in got]
            del self.deliveries[:-HELD_MAX]
        return got

    def some_receive(self) -> None:
        r = self.random
        keys = r.choice((None, None, self.some_keys(1, 3)))
        self.receive(
            self.one(), r.choice(self.rooms), per_key=r.choice(self.per_keys), keys=keys, lease_seconds=r.choice(self.leases)
        )

    def some_ack_first(self) -> None:
        self.receive(self.one(), self.random.choice((1, 2, 3)), per_key=1, lease_seconds=5.5, ack_first=True)

    def some_done(self) -> None:
        if not self.first_come:
            return
        _, d = self.first_come.pop(self.random.choice(range(len(self.first_come))))
        lease = self.model.lanes[d.key].lease
        if self.model.alive(d) and lease is not None and lease.deadline > self.model.now:
            d.done()
            self.model.done(d)

    # ---- a holder's verbs

    def some_delivery(self) -> tuple[int, Any] | None:
        """Choose a delivery: the newest first, which most likely can still be settled."""
        if not self.deliveries:
            return None
        return self.deliveries[-1 - self.random.choice(range(len(self.deliveries)))]

    def some_settlement(self) -> None:
        if (one := self.some_delivery()) is not None:
            verb = self.random.choice(
                ("ack", "ack", "ack", "nack", "nack", "defer", "reject", "start", "extend", "give_back", "more")
            )
            self.settle(verb, one, self.random.choice((None, None, 0.0, 2.5, 30.5)))

    def settle(self, verb: str, one: tuple[int, Any], seconds: float | None = None) -> bool:
        """Use a delivery's verb. Return whether its lease still held it. If not, the verb must be refused."""
        h, d = one
        valid = self.model.valid(d)
        if verb in ("start", "extend", "give_back", "more"):
            getattr(self, verb)(h, d, seconds)
            return valid
        wait = seconds or 0.0
        call, tell = {
            "ack": (d.ack, lambda: self.model.acked(d)),
            "nack": (lambda: d.nack(delay=seconds, reason="again"), lambda: self.model.nacked(d, seconds)),
            "defer": (lambda: d.defer(wait), lambda: self.model.deferred(d, wait)),
            "reject": (lambda: d.reject("bad"), lambda: self.model.rejected(d)),
        }[verb]
        if valid:
            call()
            tell()
        else:
            with pytest.raises(LeaseLost):
                call()
        return valid

    def start(self, _h: int, d: Any, _: float | None = None) -> None:
        if self.model.valid(d):
            if self.model.lowest(d):  # handlers start in order
                d.start()
                assert d.attempt == self.model.started(d)
        else:
            # If the attempt was charged at delivery, there is nothing to write, and so nothing that must notice.
            with suppress(LeaseLost):
                d.start()

    def extend(self, _h: int, d: Any, seconds: float | None = None) -> None:
        seconds = 120.5 if seconds is None else 500.5  # never less than the remaining time
        try:
            d.extend(seconds)
        except LeaseLost:
            assert not self.model.valid(d)
        else:
            # Also through a settled delivery, because it is the lease that is extended.
            assert self.model.alive(d)
            self.model.extended(d, seconds)

    def give_back(self, _h: int, d: Any, _: float | None = None) -> None:
        if self.model.alive(d):
            d.lease.release()
            self.model.given_back(d, self.look)
        else:
            with pytest.raises(LeaseLost):
                d.lease.release()

    def more(self, h: int, d: Any, seconds: float | None = None) -> None:
        count = 3 if seconds is None else 1
        if self.model.alive(d):
            got = d.lease.more(count)
            self.model.grown(d, got, count)
            self.deliveries += [(h, x) for x in got]
        else:
            with pytest.raises(LeaseLost):
                d.lease.more(count)

    def some_work(self) -> None:
        """Let a consumer take a batch and handle it in order."""
        verbs = ("start", "ack", "ack", "nack", "defer", "reject", "leave")
        outcomes = [self.random.choice(verbs) for _ in range(self.random.choice((1, 2, 3, 4)))]
        h = self.one()
        for d, outcome in zip(self.receive(h, len(outcomes), lease_seconds=5.5), outcomes, strict=False):
            if outcome != "leave":
                self.settle(outcome, (h, d))

    def some_death(self) -> None:
        """Let a consumer take a batch, perhaps begin to work, and disappear until its lease has expired."""
        h = self.one()
        got = self.receive(h, self.random.choice((1, 2, 3, 4)), lease_seconds=5.5)
        if got and self.random.choice((False, True)):
            self.start(h, got[0])
        self.advance(self.random.choice((6, 6, 31)))

    def some_deliveries(self, h: int, most: int, *, one_per_key: bool) -> list[Any]:
        mine = [d for owner, d in self.deliveries if owner == h]
        chosen: dict[Any, Any] = {}
        for _ in range(self.random.choice(range(1, most + 1)) if mine else 0):
            d = mine[-1 - self.random.choice(range(len(mine)))]
            chosen.setdefault(d.key if one_per_key else (d.key, d.seq, d.token), d)
        return list(chosen.values())

    def some_ack_many(self) -> None:
        h = self.one()
        ds = self.some_deliveries(h, 6, one_per_key=False)
        self.settle_many(ds, lambda: self.queues[h].ack_many(ds), self.model.acked)

    def some_nack_many(self) -> None:
        h, delay = self.one(), self.random.choice((None, 2.5))
        ds = self.some_deliveries(h, 4, one_per_key=True)
        self.settle_many(ds, lambda: self.queues[h].nack_many(ds, delay=delay), lambda d: self.model.nacked(d, delay))

    def settle_many(self, ds: list[Any], call: Callable[[], object], tell: Callable[[Any], None]) -> None:
        valid = [self.model.valid(d) for d in ds]
        if all(valid):
            call()
        else:
            with pytest.raises((PartialFailure, LeaseLost)) as caught:
                call()
            if isinstance(caught.value, PartialFailure):
                results = caught.value.results
                assert [r is None for r in results] == valid
                assert all(r is None or isinstance(r, LeaseLost) for r in results)
            else:
                assert not any(valid)
        for d, ok in zip(ds, valid, strict=True):
            if ok:
                tell(d)

    # ---- transactions

    def some_transaction(self) -> None:
        r = self.random
        one = self.some_delivery() if r.choice((False, True)) else None
        sends, fail = self.some_keys(0, 4), r.choice((False, True))
        if one is None:
            self.transact(self.one(), None, self.some_key(), sends, b"by hand %d" % self.bodies, fail=fail)
        else:
            self.transact(*one, one[1].key, sends, r.choice((None, b"", b"one", b"two" * 1_000)), fail=fail)

    def transact(self, h: int, d: Any, key: Key, sends: list[Key], state: bytes | None, *, fail: bool = False) -> None:
        """Ack `d`, if there is one, send, and change the key's state and the program's own table."""
        model = self.model
        sent = [(to, self.body()) for to in sends]
        refused: Any = ()
        if d is not None and not (model.valid(d) and model.lowest(d)):
            # At the beginning or at the commit: either way before anything counts.
            refused = InvalidArgument if model.valid(d) else LeaseLost
        expected = pytest.raises((refused, Failure)) if refused else pytest.raises(Failure) if fail else nullcontext()
        q = self.queues[h]
        with expected, q.transaction(key=key) if d is None else q.transaction(d) as tx:
            assert refused or tx.key_state == model.lane(key).state
            for to, body in sent:
                tx.send(body, to)
            tx.key_state = state
            tx.execute("INSERT INTO app_log VALUES (?)", (len(model.app_rows),))
            assert tx.run(lambda db: db.execute("SELECT count(*) > 0 FROM app_log").get) == 1
            if fail:
                raise Failure
        if refused or fail:
            return
        if d is not None:
            model.acked(d)
        for to, body in sent:
            model.sent(to, body, None)
        model.lane(key).state = state
        model.app_rows.append(len(model.app_rows))

    # ---- time, closing and rebooting

    def advance(self, seconds: int) -> None:
        self.clock.advance(float(seconds))
        self.model.now += micros(seconds)

    def some_time(self) -> None:
        jump = self.random.choice((0.0, 0.0, -1e6, -50.0, 50.0, 1e6))
        self.clock.jump_wall(jump)
        self.skew += jump
        self.advance(self.random.choice((1, 6, 31, 101)))

    def some_restart(self) -> None:
        if self.queues[0] is self.queues[1]:
            return
        down = self.random.choice((None, None, 0, 10, 200))
        if down is None:
            self.reopen(self.one())
        else:
            self.reboot(down)

    def reopen(self, h: int) -> None:
        self.queues[h].close()
        self.queues[h] = self._reopen()
        self._forget({h})

    def reboot(self, down_seconds: int) -> None:
        self.close()
        # Between two boots only the wall clock counts. The model does not predict the effects of a wrong one.
        self.clock.jump_wall(-self.skew)
        self.skew = 0.0
        self.clock.reboot(float(down_seconds))
        self.model.now += micros(down_seconds)
        self.model.rebooted()
        self.queues[:] = [self._reopen(), self._reopen()]
        self._forget({0, 1})

    def _forget(self, owners: set[int]) -> None:
        for h, d in self.deliveries[-1:]:
            if h in owners:
                with pytest.raises(strictq.QueueClosed):
                    d.ack()
        self.deliveries = [(h, d) for h, d in self.deliveries if h not in owners]
        self.first_come = [(h, d) for h, d in self.first_come if h not in owners]

    # ---- an operator's verbs

    def some_operation(self) -> None:
        known = [key for key, lane in self.model.lanes.items() if lane.messages]
        if known:
            verb = self.random.choice(("hold", "release", "release", "redrive", "redrive", "redrive_all", "purge"))
            getattr(self, verb)(self.one(), self.random.choice(known))

    def hold(self, h: int, key: Key) -> None:
        self.queues[h].hold(key, "for a reason")
        self.model.put_on_hold(key)

    def release(self, h: int, key: Key) -> None:
        self.queues[h].release(key)
        self.model.let_go(key, self.look)

    def redrive(self, h: int, key: Key | None) -> None:
        self.model.redriven(key, self.queues[h].redrive(key))

    def redrive_all(self, h: int, _: Key) -> None:
        self.redrive(h, None)

    def purge(self, h: int, key: Key) -> None:
        if self.model.purge_may_be_judged(key):
            self.model.settle_doubts(self.look)
            self.model.purge(key, self.queues[h].purge(key))

    # ---- what must always hold

    def agree(self, h: int | None = None, *, check: bool = True) -> None:
        """Compare everything that one of the objects shows with the model. `check()` takes most of the time of it."""
        q = self.queues[self.bodies % 2 if h is None else h]
        self.model.settle_doubts(self.look)
        if check:
            assert q.check() == []
        self.model.compare_stats(q.stats())
        self.model.compare_dead(q.dead_letters(limit=10_000))
        for key in self.keys:
            self.model.compare_lane(key, q.peek(key, 1_000))
        assert [n for (n,) in sorted(q.query("SELECT n FROM app_log"))] == self.model.app_rows

    def drain(self) -> None:
        """Receive everything unresolved, once the operator permits it and time has passed."""
        for _ in range(3_000):
            for key, lane in list(self.model.lanes.items()):
                if lane.messages:
                    self.release(0, key)
            self.advance(1_000)
            for d in self.receive(0, 100):
                d.ack()
                self.model.acked(d)
            if not self.model.unresolved():
                break
        assert not self.model.unresolved()
        self.agree()
