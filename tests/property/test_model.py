"""Random walks over the public interface, compared step by step with a model written from the documentation.

Two consumers work on one directory (or in memory), over one to four shards, in blocking and in awaited form. Time moves only when
the walk says so, the wall clock jumps, and the machine reboots. After every step each lane, the dead letters, the statistics, the
program's own table and `check()` must agree with the model. At the end everything is drained, and every message must be resolved.

In most walks lanes are folded after a few rows. After each fold, the memories of both consumers must equal one
that is built from the tables. In some walks, another process and a fork of it open a copy of the queue after the first folds. At
the end they also open a restored copy and a promoted replica.

STRICTQ_HYPOTHESIS_EXAMPLES=2000 runs that many walks of 80 steps per form instead of the default few short ones.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any, ClassVar

import anyio.from_thread
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import strictq
from strictq import InvalidArgument, LeaseLost, Message, PartialFailure, QueueConfig
from strictq._keys import Key
from strictq.testing import FakeClock
from tests.support.blocking import open_blocking
from tests.support.folds import Folds, narrow
from tests.support.model import Model, Settings, micros
from tests.support.powercut_campaign import fast_directory
from tests.support.witness import Witness, require_same

EXAMPLES = int(os.environ.get("STRICTQ_HYPOTHESIS_EXAMPLES", "0"))
WITNESSED_FOLDS = 4
"""After so many folds of a walk, another process opens a copy."""
PROFILE = settings(
    max_examples=EXAMPLES or 50,
    stateful_step_count=80 if EXAMPLES else 30,
    deadline=None,
    derandomize=not EXAMPLES,  # the default runs the same walks each time; the long form takes others
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)

KEYS: list[Key] = ["a", b"a", 1, "ключ"]
# Time passes in whole seconds, and everything else ends at a fraction of one, so nothing is due exactly now.
key = st.sampled_from(KEYS)
delay = st.sampled_from([0.0] * 8 + [3.5, 40.5])
ttl = st.sampled_from([None] * 6 + [10.5, 50.5])
dedup_id = st.sampled_from([None, None, "x", "y"])
pick = st.integers(0, 50)
handle = st.integers(0, 1)


@pytest.fixture(scope="module", autouse=True)
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let another process open copies of the queues of this module."""
    with fast_directory(tmp_path_factory.mktemp("witness")) as place, closing(Witness(place)) as QueueMachine.other:
        yield
    assert QueueMachine.folded or not QueueMachine.narrowed, "nothing was folded"


class Failure(Exception):
    """A failure inside a transaction of these tests."""


class QueueMachine(RuleBasedStateMachine):
    """The walk. Subclasses define where the queue is and how it is called."""

    in_memory: ClassVar[bool] = False
    awaited: ClassVar[bool] = False
    other: ClassVar[Witness]
    narrowed: ClassVar[int] = 0
    folded: ClassVar[int] = 0
    """Walks with small windows, and how often logs were cut in walks."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.skew = 0.0
        self.place = ":memory:" if self.in_memory else tempfile.mkdtemp(prefix="strictq-model-")
        self.portal_context = anyio.from_thread.start_blocking_portal() if self.awaited else None
        self.portal = self.portal_context.__enter__() if self.portal_context else None
        self.queues: list[Any] = []
        self.deliveries: list[tuple[int, Any]] = []
        self.first_come: list[tuple[int, Any]] = []
        self.bodies = 0
        self.model: Model
        self.folds = Folds()
        self.patches = ExitStack()
        self.witnessed = False

    # --- life --------------------------------------------------------------------------------------------------------

    @initialize(
        shards=st.integers(1, 4),
        policy=st.sampled_from(["dead_letter", "hold", "drop"]),
        max_attempts=st.sampled_from([1, 2, 3, None]),
        retry_delay=st.sampled_from([0.0, 0.0, 0.7]),
        retry_for=st.sampled_from([0.0, 40.7]),
        on_expire=st.sampled_from(["drop", "dead_letter"]),
        default_ttl=st.sampled_from([None, None, 100.5]),
        window=st.sampled_from([None, 1, 3, 8]),
        step=st.integers(1, 2),
        witnessed=st.sampled_from([True] if EXAMPLES else [False] * 9 + [True]),
    )
    def begin(
        self,
        shards: int,
        policy: Any,
        max_attempts: int | None,
        retry_delay: float,
        retry_for: float,
        on_expire: Any,
        default_ttl: float | None,
        window: int | None,
        step: int,
        witnessed: bool,
    ) -> None:
        if window is not None and not self.in_memory:
            QueueMachine.narrowed += 1
            self.patches.enter_context(narrow(window, step))
        self.witnessed = witnessed and not self.in_memory
        s = Settings(
            max_attempts=max_attempts,
            on_poison=policy if max_attempts else "dead_letter",
            retry_delay_seconds=retry_delay,
            retry_for_seconds=retry_for,
            on_expire=on_expire,
            ttl_seconds=default_ttl,
        )
        self.model = Model(s, one_shard=shards == 1)
        config = QueueConfig(
            lease_seconds=s.lease_seconds,
            max_attempts=s.max_attempts,
            on_poison=s.on_poison,
            retry_delay_seconds=s.retry_delay_seconds,
            retry_for_seconds=s.retry_for_seconds,
            dedup_window_seconds=s.dedup_window_seconds,
            ttl_seconds=s.ttl_seconds,
            on_expire=s.on_expire,
        )
        self.queues = [self._open(shards=shards, config=config)]
        self.queues.append(self.queues[0] if self.in_memory else self._open())
        self.queues[0].app_schema("CREATE TABLE IF NOT EXISTS app_log (n INTEGER PRIMARY KEY) STRICT")

    def _open(self, **options: Any) -> Any:
        options |= {"durability": "process", "clock": self.clock}
        if self.portal is not None:
            return open_blocking(self.portal, self.place, **options)
        return strictq.open(self.place, **options)

    def teardown(self) -> None:
        try:
            if self.queues and sys.exc_info()[0] is None:
                if self.witnessed:
                    q = self._bare()[0]
                    self.other.require(q)
                    self.other.require_replicas(q, lambda promoted: require_same(promoted, self.queues[0], KEYS))
                self._drain()
        finally:
            self.patches.close()
            QueueMachine.folded += max(self.folds.count, 0)
            for q in self.queues:
                q.close()
            if self.portal_context is not None:
                self.portal_context.__exit__(None, None, None)
            if not self.in_memory:
                shutil.rmtree(self.place)

    def _bare(self) -> list[Any]:
        """Return the different queue objects, as the store's tests need them."""
        return [q.sync if self.awaited else q for q in dict.fromkeys(self.queues)]

    def _drain(self) -> None:
        """Receive everything unresolved, once the operator permits it and time has passed."""
        for _ in range(3_000):
            for lane_key in list(self.model.lanes):
                self._let_go(lane_key)
            self._advance(1_000)
            got = self._receive(0, 100, None, None, None)
            for d in got:
                d.ack()
                self.model.acked(d)
            if not self.model.unresolved():
                break
        assert not self.model.unresolved()
        self.agree()

    def _look(self, lane_key: Key, seq: int) -> strictq.MessageStatus:
        status: strictq.MessageStatus = self.queues[0].status(lane_key, seq)
        return status

    def _body(self) -> bytes:
        self.bodies += 1
        return b"%d" % self.bodies + b"." * (5_000 if self.bodies % 7 == 0 else 0)

    # --- sending -----------------------------------------------------------------------------------------------------

    @rule(h=handle, key=key, delay=delay, ttl=ttl, dedup_id=dedup_id)
    def send(self, h: int, key: Key, delay: float, ttl: float | None, dedup_id: str | None) -> None:
        body = self._body()
        receipt = self.queues[h].send(body, key, delay=delay, ttl=ttl, dedup_id=dedup_id)
        self.model.sent(key, body, receipt, delay=delay, ttl=ttl, dedup_id=dedup_id)

    @rule(h=handle, keys=st.lists(key, min_size=1, max_size=8))
    def send_many(self, h: int, keys: list[Key]) -> None:
        messages = [Message(self._body(), key=k) for k in keys]
        receipts = self.queues[h].send_many(messages)
        assert len(receipts) == len(messages)
        together = {receipt.id for receipt in receipts}
        for message, receipt in zip(messages, receipts, strict=True):
            assert message.key is not None
            self.model.sent(message.key, message.body, receipt, together=together)

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _receive(
        self,
        h: int,
        max_messages: int,
        per_key: int | None,
        keys: list[Key] | None,
        lease_seconds: float | None,
        ack_first: bool = False,
    ) -> list[Any]:
        options: dict[str, Any] = {"per_key": per_key, "keys": keys, "lease_seconds": lease_seconds}
        got: list[Any] = self.queues[h].receive(max_messages, ack_first=ack_first, **options)
        self.model.received(got, self._look, max_messages=max_messages, ack_first=ack_first, **options)
        return got

    @rule(
        h=handle,
        max_messages=st.sampled_from([1, 2, 3, 10]),
        per_key=st.sampled_from([None, None, 1, 2]),
        keys=st.one_of(st.none(), st.none(), st.lists(key, min_size=1, max_size=3)),
        lease_seconds=st.sampled_from([None, 5.5, 100.5]),
    )
    def receive(
        self,
        h: int,
        max_messages: int,
        per_key: int | None,
        keys: list[Key] | None,
        lease_seconds: float | None,
    ) -> None:
        self.deliveries += [(h, d) for d in self._receive(h, max_messages, per_key, keys, lease_seconds)]
        del self.deliveries[:-30]

    @rule(h=handle, max_messages=st.integers(1, 3))
    def receive_ack_first(self, h: int, max_messages: int) -> None:
        self.first_come += [(h, d) for d in self._receive(h, max_messages, 1, None, 5.5, ack_first=True)]

    @precondition(lambda self: self.first_come)
    @rule(n=pick)
    def done(self, n: int) -> None:
        _, d = self.first_come.pop(n % len(self.first_come))
        lease = self.model.lanes[d.key].lease
        if self.model.alive(d) and lease is not None and lease.deadline > self.model.now:
            d.done()
            self.model.done(d)

    # --- a holder's verbs --------------------------------------------------------------------------------------------

    def _chosen(self, n: int) -> Any:
        # The newest first: smaller numbers are tried first, and the newest is most likely still alive.
        return self.deliveries[-1 - n % len(self.deliveries)][1]

    def _settle(self, d: Any, call: Callable[[], object], tell: Callable[[], object]) -> None:
        if self.model.valid(d):
            call()
            tell()
        else:
            with pytest.raises(LeaseLost):
                call()

    def _ack(self, n: int, _: Any) -> None:
        d = self._chosen(n)
        self._settle(d, d.ack, lambda: self.model.acked(d))

    def _nack(self, n: int, delay: float | None) -> None:
        d = self._chosen(n)
        self._settle(d, lambda: d.nack(delay=delay, reason="again"), lambda: self.model.nacked(d, delay))

    def _defer(self, n: int, delay: float | None) -> None:
        d = self._chosen(n)
        wait = 0.0 if delay is None else delay
        self._settle(d, lambda: d.defer(wait), lambda: self.model.deferred(d, wait))

    def _reject(self, n: int, _: Any) -> None:
        d = self._chosen(n)
        self._settle(d, lambda: d.reject("bad"), lambda: self.model.rejected(d))

    def _start(self, n: int, _: Any) -> None:
        d = self._chosen(n)
        if self.model.valid(d) and not self.model.lowest(d):
            return  # handlers start in order

        if self.model.valid(d):
            d.start()
            assert d.attempt == self.model.started(d)
        else:
            # If the attempt was charged at delivery, there is nothing to write, and so nothing that must notice.
            with suppress(LeaseLost):
                d.start()

    def _extend(self, n: int, seconds: float | None) -> None:
        d = self._chosen(n)
        seconds = 120.5 if seconds is None else 500.5  # never less than the remaining time
        try:
            d.extend(seconds)
        except LeaseLost:
            assert not self.model.valid(d)
        else:
            # Also through a settled delivery, because it is the lease that is extended.
            assert self.model.alive(d)
            self.model.extended(d, seconds)

    def _give_back(self, n: int, _: Any) -> None:
        d = self._chosen(n)
        if self.model.alive(d):
            d.lease.release()
            self.model.given_back(d, self._look)
        else:
            with pytest.raises(LeaseLost):
                d.lease.release()

    def _more(self, n: int, delay: float | None) -> None:
        count = 3 if delay is None else 1
        d = self._chosen(n)
        h = self.deliveries[-1 - n % len(self.deliveries)][0]
        if self.model.alive(d):
            got = d.lease.more(count)
            self.model.grown(d, got, count)
            self.deliveries += [(h, x) for x in got]
        else:
            with pytest.raises(LeaseLost):
                d.lease.more(count)

    @precondition(lambda self: self.deliveries)
    @rule(
        verb=st.sampled_from(["ack", "ack", "ack", "nack", "nack", "defer", "reject", "start", "extend", "give_back", "more"]),
        n=pick,
        seconds=st.sampled_from([None, None, 0.0, 2.5, 30.5]),
    )
    def settle(self, verb: str, n: int, seconds: float | None) -> None:
        getattr(self, f"_{verb}")(n, seconds)

    @rule(
        h=handle,
        outcomes=st.lists(st.sampled_from(["start", "ack", "ack", "nack", "defer", "reject", "leave"]), min_size=1, max_size=4),
    )
    def work(self, h: int, outcomes: list[str]) -> None:
        """Let a consumer take a batch and handle it in order."""
        ds = self._receive(h, len(outcomes), None, None, 5.5)
        self.deliveries += [(h, d) for d in ds]
        for place, outcome in zip(range(len(ds) - 1, -1, -1), outcomes, strict=False):
            if outcome != "leave":
                self.settle(outcome, place, None)

    @rule(h=handle, max_messages=st.integers(1, 4), start=st.booleans(), seconds=st.sampled_from([6, 6, 31]))
    def consumer_dies(self, h: int, max_messages: int, start: bool, seconds: int) -> None:
        """Let a consumer take a batch, perhaps begin to work, and disappear until its lease has expired."""
        ds = self._receive(h, max_messages, None, None, 5.5)
        self.deliveries += [(h, d) for d in ds]
        if ds and start:
            self._start(len(ds) - 1, None)
        self._advance(seconds)

    def _several(self, h: int, numbers: list[int], *, one_per_key: bool) -> list[Any]:
        mine = [d for owner, d in self.deliveries if owner == h]
        chosen: dict[Any, Any] = {}
        for n in numbers if mine else []:
            d = mine[-1 - n % len(mine)]
            chosen.setdefault(d.key if one_per_key else (d.key, d.seq, d.token), d)
        return list(chosen.values())

    def _settle_many(self, ds: list[Any], call: Callable[[], object], tell: Callable[[Any], None]) -> None:
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

    @rule(h=handle, numbers=st.lists(pick, min_size=1, max_size=6))
    def ack_many(self, h: int, numbers: list[int]) -> None:
        ds = self._several(h, numbers, one_per_key=False)
        self._settle_many(ds, lambda: self.queues[h].ack_many(ds), self.model.acked)

    @rule(h=handle, numbers=st.lists(pick, min_size=1, max_size=4), delay=st.sampled_from([None, 2.5]))
    def nack_many(self, h: int, numbers: list[int], delay: float | None) -> None:
        ds = self._several(h, numbers, one_per_key=True)
        self._settle_many(ds, lambda: self.queues[h].nack_many(ds, delay=delay), lambda d: self.model.nacked(d, delay))

    # --- transactions ------------------------------------------------------------------------------------------------

    def _work(self, tx: Any, sends: list[Key], state: bytes | None, fail: bool) -> list[tuple[Any, bytes]]:
        sent = [(k, self._body()) for k in sends]
        for k, body in sent:
            tx.send(body, k)
        tx.key_state = state
        tx.execute("INSERT INTO app_log VALUES (?)", (len(self.model.app_rows),))
        assert tx.run(lambda db: db.execute("SELECT count(*) > 0 FROM app_log").get) == 1
        if fail:
            raise Failure
        return sent

    def _done(self, lane_key: Key, sent: list[tuple[Any, bytes]], state: bytes | None) -> None:
        for k, body in sent:
            self.model.sent(k, body, None)
        self.model.lane(lane_key).state = state
        self.model.app_rows.append(len(self.model.app_rows))

    @precondition(lambda self: self.deliveries)
    @rule(
        n=pick,
        sends=st.lists(key, max_size=4),
        state=st.sampled_from([None, b"", b"one", b"two" * 1_000]),
        fail=st.booleans(),
    )
    def transaction(self, n: int, sends: list[Key], state: bytes | None, fail: bool) -> None:
        d = self._chosen(n)
        h = self.deliveries[-1 - n % len(self.deliveries)][0]
        q = self.queues[h]
        if not self.model.valid(d):
            # Refused at the beginning or at the commit: either way before anything counts.
            with pytest.raises((LeaseLost, Failure)), q.transaction(d) as tx:
                self._work(tx, sends, state, fail)
        elif not self.model.lowest(d):
            with pytest.raises((InvalidArgument, Failure)), q.transaction(d) as tx:
                self._work(tx, sends, state, fail)
        elif fail:
            with pytest.raises(Failure), q.transaction(d) as tx:
                self._work(tx, sends, state, fail)
        else:
            with q.transaction(d) as tx:
                sent = self._work(tx, sends, state, fail)
            self.model.acked(d)
            self._done(d.key, sent, state)

    @rule(h=handle, key=key, sends=st.lists(key, max_size=4), fail=st.booleans())
    def transaction_without_delivery(self, h: int, key: Key, sends: list[Key], fail: bool) -> None:
        state = b"by hand %d" % self.bodies
        try:
            with self.queues[h].transaction(key=key) as tx:
                assert tx.key_state == self.model.lane(key).state
                sent = self._work(tx, sends, state, fail)
        except Failure:
            assert fail
        else:
            assert not fail
            self._done(key, sent, state)

    # --- time --------------------------------------------------------------------------------------------------------

    def _advance(self, seconds: int) -> None:
        self.clock.advance(float(seconds))
        self.model.now += micros(seconds)

    @rule(seconds=st.sampled_from([1, 6, 31, 101]), jump=st.sampled_from([0.0, 0.0, -1e6, -50.0, 50.0, 1e6]))
    def time_goes_by(self, seconds: int, jump: float) -> None:
        self.clock.jump_wall(jump)
        self.skew += jump
        self._advance(seconds)

    # --- closing and rebooting ---------------------------------------------------------------------------------------

    @precondition(lambda self: not self.in_memory)
    @rule(down_seconds=st.sampled_from([None, None, 0, 10, 200]), h=handle)
    def restart(self, down_seconds: int | None, h: int) -> None:
        if down_seconds is None:
            self._reopen(h)
        else:
            self._reboot(down_seconds)

    def _reopen(self, h: int) -> None:
        self.queues[h].close()
        self.queues[h] = self._open()
        self._forget({h})

    def _reboot(self, down_seconds: int) -> None:
        for q in self.queues:
            q.close()
        # Between two boots only the wall clock counts. The model does not predict the effects of a wrong one.
        self.clock.jump_wall(-self.skew)
        self.skew = 0.0
        self.clock.reboot(float(down_seconds))
        self.model.now += micros(down_seconds)
        self.model.rebooted()
        self.queues = [self._open(), self._open()]
        self._forget({0, 1})

    def _forget(self, owners: set[int]) -> None:
        for h, d in self.deliveries[-1:]:
            if h in owners:
                with pytest.raises(strictq.QueueClosed):
                    d.ack()
        self.deliveries = [(h, d) for h, d in self.deliveries if h not in owners]
        self.first_come = [(h, d) for h, d in self.first_come if h not in owners]

    # --- an operator's verbs -----------------------------------------------------------------------------------------

    def _known(self, n: int) -> Key | None:
        keys = [k for k, lane in self.model.lanes.items() if lane.messages]
        return keys[n % len(keys)] if keys else None

    @rule(verb=st.sampled_from(["hold", "release", "release", "redrive", "redrive", "purge"]), h=handle, n=pick)
    def operate(self, verb: str, h: int, n: int) -> None:
        getattr(self, f"_{verb}")(h, n)

    def _hold(self, h: int, n: int) -> None:
        if (k := self._known(n)) is not None:
            self.queues[h].hold(k, "for a reason")
            self.model.put_on_hold(k)

    def _release(self, h: int, n: int) -> None:
        if (k := self._known(n)) is not None:
            self._let_go(k)

    def _let_go(self, k: Key) -> None:
        if self.model.lanes[k].messages:
            self.queues[0].release(k)
            self.model.let_go(k, self._look)

    def _redrive(self, h: int, n: int) -> None:
        k = self._known(n) if n % 2 else None
        self.model.redriven(k, self.queues[h].redrive(k))

    def _purge(self, h: int, n: int) -> None:
        k = self._known(n)
        if k is not None and self.model.purge_may_be_judged(k):
            self.model.settle_doubts(self._look)
            self.model.purge(k, self.queues[h].purge(k))

    # --- what must always hold ---------------------------------------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        if not self.queues:
            return
        q = self.queues[self.bodies % 2]
        self.model.settle_doubts(self._look)
        assert q.check() == []
        self.model.compare_stats(q.stats())
        self.model.compare_dead(q.dead_letters(limit=10_000))
        for k in KEYS:
            self.model.compare_lane(k, q.peek(k, 1_000))
        assert [n for (n,) in sorted(q.query("SELECT n FROM app_log"))] == self.model.app_rows
        if self.in_memory:
            return  # it has no logs
        if self.folds.watch(*self._bare()) and self.witnessed and self.folds.count <= WITNESSED_FOLDS:
            self.other.require(self._bare()[0])


class DiskMachine(QueueMachine):
    """Two objects on one directory."""


class MemoryMachine(QueueMachine):
    """Two consumers of one in-memory queue."""

    in_memory = True


class AsyncMachine(QueueMachine):
    """Two objects on one directory, through the awaited interface."""

    awaited = True


TestDisk = DiskMachine.TestCase
TestDisk.settings = PROFILE
TestMemory = MemoryMachine.TestCase
TestMemory.settings = PROFILE
TestMemory.pytestmark = [pytest.mark.smoke]  # type: ignore[attr-defined]
TestAsync = AsyncMachine.TestCase
TestAsync.settings = PROFILE
