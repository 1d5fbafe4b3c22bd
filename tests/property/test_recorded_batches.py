"""Named consumers, workers, operators, restarts and reboots in any order: every message is processed once, and batches repeat.

Journals are cut after a few rows. After each fold, memory must equal one that is built from the tables. At the
end of some walks, another process and a fork of it open a copy of the queue, a restored copy, and a promoted replica.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import strictq
from strictq import Delivery, Message, Queue, QueueConfig, RecordedBatchGone
from strictq._client.consumers import acknowledge
from strictq.spark import _recorded_batches
from strictq.spark._recorded_batches import Holder
from strictq.testing import FakeClock
from tests.support.folds import Folds, narrow
from tests.support.recorded_batches import Label, Lazy, holder, read
from tests.support.running import fast_directory
from tests.support.witness import Witness, require_same

KEYS = [f"k{n}" for n in range(5)]
KEEP = 3


@pytest.fixture(scope="module", autouse=True)
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let another process open copies of the queues of this module."""
    with fast_directory(tmp_path_factory.mktemp("witness")) as place, closing(Witness(place)) as RecordedBatchesMachine.other:
        yield
    assert RecordedBatchesMachine.folded or not RecordedBatchesMachine.narrowed, "nothing was folded"


class RecordedBatchesMachine(RuleBasedStateMachine):
    """What was sent, the contents of each batch, and what is processed; compared with the queue after every step."""

    deferring = ahead = False
    other: ClassVar[Witness]
    narrowed: ClassVar[int] = 0
    folded: ClassVar[int] = 0
    """Walks with small windows, and how often logs were cut in walks."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="strictq-recorded-batches-"))
        self.clock = FakeClock()
        self.sent: dict[str, int] = {}
        self.handed: dict[int, list[Label]] = {}
        self.given = 0  # the newest batch that the stream received
        self.done: set[tuple[str, int]] = set()
        self.dead: set[tuple[str, int]] = set()
        self.released: set[int] = set()
        self.working: list[Delivery] = []
        self.offset = 0  # the offset in the stream's checkpoint
        self.folds = Folds()
        self.witnessed = False
        self.patches = ExitStack()
        self.q: Queue
        self.h: Holder

    def _open(self) -> Queue:
        return strictq.open(
            self.place / "queue", shards=2, durability="process", clock=self.clock,
            config=QueueConfig(max_attempts=None, lease_seconds=30.0),
        )  # fmt: skip

    @initialize(
        window=st.sampled_from([1, 3, 8]),
        step=st.integers(1, 2),
        witnessed=st.sampled_from([False] * 9 + [True]),
    )
    def begin(self, window: int, step: int, witnessed: bool) -> None:
        RecordedBatchesMachine.narrowed += 1
        self.patches.enter_context(narrow(window, step))
        self.witnessed = witnessed
        self.q = self._open()
        self.h = holder(self.q, keep=KEEP, deferring=self.deferring)

    def teardown(self) -> None:
        try:
            if self.witnessed:
                self.other.require(self.q)
                self.other.require_replicas(self.q, lambda promoted: require_same(promoted, self.q, KEYS))
            self._drain()
        finally:
            self.patches.close()
            RecordedBatchesMachine.folded += max(self.folds.count, 0)
            self.q.close()
            shutil.rmtree(self.place, ignore_errors=True)

    # --- rules

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12))
    def send(self, keys: list[str]) -> None:
        for receipt in self.q.send_many([Message(b"m", key=key) for key in keys]):
            self.sent[str(receipt.key)] = receipt.seq

    @rule(most=st.integers(1, 8), committed=st.booleans(), killed=st.booleans())
    def take(self, most: int, committed: bool, killed: bool) -> None:
        """Let the stream take the next batch, or its present one again.

        A deferred ack may be lost with the process. Then the next process takes the same batch.
        """
        start = self.offset if not committed else min(self.given, self.offset + 1)
        n = self.h.take(start, messages_max=most, ahead=self.ahead)
        if self.deferring and killed and n > start:
            self.crash()
            assert self.h.take(start) == n
        self.h.wait()
        assert n in (start, start + 1)
        assert n == start + 1 or start == self.given
        self._ack_to(start)
        self.offset = start
        if n > start:
            rows = read(self.q, self.h, n)
            if n > self.given:
                self._is_new(n, rows)
            else:
                assert rows == [r for r in self.handed[n] if (r[0][1:], r[1]) not in self.dead], "a batch comes again as it was"

    def _is_new(self, n: int, rows: list[Label]) -> None:
        assert rows
        for key, seq, _ in rows:
            at = (key[1:], seq)
            assert at not in self.done, "done messages never come again"
            first = min(s for s in range(1, seq + 1) if (key[1:], s) not in self.done | self.dead)
            mine = [s for k, s, _ in rows if k == key]
            assert first in mine, "nothing is skipped"
            assert mine == sorted(mine), "in order"
        self.handed[n] = rows
        self.given = n

    def _ack_to(self, n: int) -> None:
        for number, rows in self.handed.items():
            if number <= n and number not in self.released:
                self.done |= {(key[1:], seq) for key, seq, _ in rows} - self.dead

    @rule()
    def listener(self) -> None:
        """Notify the driver that the newest batch is committed."""
        if self.given == 0 or self.given in self.released:
            return
        acknowledge(self.q._storage, "etl", self.given)
        self._ack_to(self.given)

    @rule()
    def crash(self) -> None:
        """Kill the holder and all other processes, and reopen the queue."""
        self.q.close()
        self.working.clear()
        self.q = self._open()
        self.h = holder(self.q, keep=KEEP, deferring=self.deferring)

    @rule()
    def reboot(self) -> None:
        self.q.close()
        self.working.clear()
        self.clock.reboot(down_seconds=5.0)
        self.q = self._open()
        self.h = holder(self.q, keep=KEEP, deferring=self.deferring)

    @rule()
    def fresh_checkpoint(self) -> None:
        self.offset = self.h.acked
        self.given = max(self.given, self.offset)

    @rule(back=st.integers(1, KEEP + 3))
    def old_checkpoint(self, back: int) -> None:
        """Lose Spark's newest files, so that it requests a batch that was acked."""
        n = self.offset - back
        if n < 0:
            return
        kept = n + 1 > self.offset - KEEP
        try:
            self.h.take(n)
            self.h.wait()
            rows = read(self.q, self.h, n + 1)
        except RecordedBatchGone:
            assert n + 1 in self.released or not kept or self.given - n > KEEP
        else:
            assert rows == [r for r in self.handed[n + 1] if (r[0][1:], r[1]) not in self.dead or (r[0][1:], r[1]) in self.done]

    @rule(most=st.integers(1, 4))
    def work(self, most: int) -> None:
        for d in self.q.receive(most):
            at = (str(d.key), d.seq)
            assert at not in self.done
            open_rows = [r for n, rows in self.handed.items() if n > self.h.acked and n not in self.released for r in rows]
            assert at not in {(k[1:], s) for k, s, _ in open_rows}, "what is handed out is nobody else's"
            self.working.append(d)

    @precondition(lambda self: self.working)
    @rule(good=st.booleans())
    def settle(self, good: bool) -> None:
        d = self.working.pop(0)
        try:
            if good:
                d.ack()
                self.done.add((str(d.key), d.seq))
            else:
                d.nack(delay=0.0)
                self.working = [w for w in self.working if w.lease is not d.lease]
        except strictq.LeaseLost:
            pass

    @rule(key=st.sampled_from(KEYS), seq=st.integers(1, 20))
    def reject(self, key: str, seq: int) -> None:
        try:
            if self.q.reject(key, seq, "no"):
                self.dead.add((key, seq))
        except (strictq.UnknownMessage, strictq.InvalidArgument):
            pass

    @rule()
    def release(self) -> None:
        """Release what is open, as an operator. The stream starts with a new checkpoint."""
        acked = self.h.acked
        self.h.close()
        after = holder(self.q, keep=KEEP)
        last = after.last
        after.close()
        self.q.release_consumer("etl")
        self.released |= set(range(acked + 1, last + 1))
        self.h = holder(self.q, keep=KEEP, deferring=self.deferring)
        assert self.h.acked == last
        self.offset = self.given = last

    # --- invariants

    @invariant()
    def the_queue_is_sound(self) -> None:
        assert self.q.check() == []
        self.folds.watch(self.q)

    @invariant()
    def nothing_is_lost(self) -> None:
        total = sum(self.sent.values())
        stats = self.q.stats()
        assert stats.depth == total - len(self.done) - len(self.dead)
        assert stats.dead == len(self.dead)

    def _drain(self) -> None:
        for d in self.working:
            try:
                d.ack()
                self.done.add((str(d.key), d.seq))
            except strictq.LeaseLost:
                continue
        self.working.clear()
        self.clock.advance(100.0)  # the leases of dead workers have expired
        self.fresh_checkpoint()
        while True:
            before = self.offset
            n = self.h.take(before)
            self.h.wait()
            self._ack_to(before)
            if n == before:
                break
            if n not in self.handed:
                self._is_new(n, read(self.q, self.h, n))
            self.offset = n
        everything = {(key, seq) for key, tail in self.sent.items() for seq in range(1, tail + 1)}
        assert self.done | self.dead == everything
        assert not self.done & self.dead


class DeferringMachine(RecordedBatchesMachine):
    """The same with a holder that records batches, also the smallest, before it acks the ones before them."""

    deferring = True

    def __init__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(_recorded_batches, "DEFERRED_MIN", 1)
        self._patch.setattr(_recorded_batches, "PAUSE_MAX", 0)
        self._patch.setattr(_recorded_batches, "_Deferred", Lazy)
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._patch.undo()


class AheadMachine(DeferringMachine):
    """The same with a holder that also records batches before they are wanted."""

    ahead = True


RecordedBatchesMachine.TestCase.settings = DeferringMachine.TestCase.settings = AheadMachine.TestCase.settings = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRecordedBatches = RecordedBatchesMachine.TestCase
TestDeferring = DeferringMachine.TestCase
TestAhead = AheadMachine.TestCase
