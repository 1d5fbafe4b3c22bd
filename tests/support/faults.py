"""Failures of the disk, of memory and of locks at a chosen moment, under a running program."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import attrs
import pytest

import strictq
from strictq import Queue
from strictq._store.commit import connection
from strictq.testing import FakeClock
from tests.support import history_lanes
from tests.support.checker import Policy, check
from tests.support.folds import require_memories
from tests.support.history import OK, Event, Return
from tests.support.internals import store_of
from tests.support.powercut import Journal, Recorder, quiet, recording
from tests.support.powercut_run import ALL_KEYS, CONFIG, KEYS, PLACE, Level, Named, Program, windows
from tests.support.recorded import SCHEMA

FOREVER: Final = 1 << 60
STEPS: Final = (12, 40)
CODES: Final[dict[str, tuple[str, int]]] = {
    "read": ("read", apsw.SQLITE_IOERR_READ),
    "write": ("write", apsw.SQLITE_IOERR_WRITE),
    "sync": ("sync", apsw.SQLITE_IOERR_FSYNC),
    "truncate": ("truncate", apsw.SQLITE_IOERR_TRUNCATE),
    "size": ("size", apsw.SQLITE_IOERR_FSTAT),
    "full": ("write", apsw.SQLITE_FULL),
    "open": ("open", apsw.SQLITE_CANTOPEN),
    "delete": ("delete", apsw.SQLITE_IOERR_DELETE),
    "busy": ("lock", apsw.SQLITE_BUSY),
    "lock": ("lock", apsw.SQLITE_IOERR_LOCK),
    "fsync": ("fsync", 5),
    "put": ("put", 28),
}
"""Fault → the calls that fail, and the error: SQLite's code, or an errno for calls that are not SQLite's."""


@attrs.define
class Plan:
    """Fails calls number `first` to `first + times - 1` of a kind, counted from its activation."""

    fault: str
    first: int
    times: int = 1
    only: str = ""
    count: int = 0
    fired: int = 0

    def __call__(self, kind: str, path: str) -> None:
        wanted, code = CODES[self.fault]
        if kind != wanted or not path.endswith(self.only):
            return
        self.count += 1
        if not self.first <= self.count < self.first + self.times:
            return
        self.fired += 1
        if kind in ("fsync", "put"):
            raise OSError(code, os.strerror(code))
        raise apsw.exception_for(code)


@attrs.define
class Count:
    """Counts calls instead of failing them."""

    kinds: Counter[str] = attrs.Factory(Counter)

    def __call__(self, kind: str, path: str) -> None:
        self.kinds[kind] += 1


class Disturbed(Named):
    """A recorded queue whose operators' calls take several steps. A failed one may have done some of them."""

    def operate(self, verb: str, key: Any, *, dead: bool = False) -> str:
        before = len(self.recorder.events)
        outcome = super().operate(verb, key, dead=dead)
        for event in self.recorder.events[before:]:
            if isinstance(event, Return) and event.outcome != OK:
                event.outcome = "OutcomeUnknown"
        return outcome


class Disturbance(Program):
    """The program of the power cuts. It ignores strictq's own errors from its rare calls."""

    failed = 0
    steps = 0

    def keep(self) -> None:
        try:
            if self.random.random() < 0.4:
                # Like another process that joins: everything is read from the disk again.
                self.random.choice(store_of(self.queue).shards)._writer._drop_connection()
            else:
                super().keep()
        except strictq.StrictqError:
            self.failed += 1

    def step(self) -> None:
        super().step()
        self.held = self.held[-20:]
        self.steps += 1
        if self.steps % 8 == 0:
            self._seldom()

    def _seldom(self) -> None:
        """Write queue.db, and release the reserve."""
        try:
            self.queue.configure(retry_delay_max_seconds=float(self.random.randint(10, 1000)))
        except strictq.StrictqError:
            self.failed += 1
        reserve = store_of(self.queue).reserve
        if reserve is not None and self.steps % 16 == 0:
            reserve.give_up()
            reserve._next_try = 0.0
            reserve.there()


@attrs.define
class Scene:
    """A working queue, with a disk that can fail."""

    root: Path
    journal: Journal
    clock: FakeClock
    queue: Queue
    recorder: Recorder
    program: Disturbance
    shards: int

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.program.step()
            if self.journal.fault is None:
                self.program.folds.watch(self.queue)

    def heal(self) -> None:
        """End the failures. The same object must be able to do everything again, at once."""
        self.journal.fault = None
        if store_of(self.queue).reserve is not None:
            store_of(self.queue).reserve._next_try = 0.0  # it is looked for once a second of real time
        assert [s.quarantined for s in self.queue.stats().shards] == [None] * self.shards, "an I/O error is no corruption"
        for key in KEYS:
            assert self.program.recorded.operate("unhold", key) == OK
            assert self.program.recorded.send(self.program.recorded.new(key)) is not None, self.recorder.events[-1]
        assert self.program.recorded.receive(1, lease_seconds=20.0) is not None
        assert self.recorder.events[-1].outcome == OK  # type: ignore[union-attr]
        require_memories(self.queue)

    def account(self) -> None:
        """Reopen the queue on a working disk, and verify that everything that returned holds and what raised changed nothing."""
        self.journal.fault = None
        self.journal.recording = False
        self.queue.close()
        with quiet(self.clock), strictq.open(self.root / PLACE, clock=self.clock, create=False) as queue:
            settle(queue, self.recorder, self.clock)


def settle(queue: Queue, recorder: Recorder, clock: FakeClock) -> list[Event]:
    """Drain a queue and check its whole history."""
    recorded = Disturbed(queue, recorder, "settled")
    assert queue.check() == []
    store_of(queue).forward()
    for key in KEYS:
        assert recorded.operate("unhold", key) == OK
    clock.advance(4000.0)
    for _ in range(100):
        batch = recorded.receive(500, lease_seconds=30.0)
        if not batch:
            break
        recorded.act_many("ack", batch)
        clock.advance(1.0)
    stats = queue.stats()
    assert (stats.depth, stats.outbox) == (0, 0)
    recorded.final(ALL_KEYS)
    assert queue.check() == []
    with pytest.MonkeyPatch.context() as patch:
        strict = history_lanes.HARMLESS | {"StoreError", "StoreCorrupt"}  # only OutcomeUnknown leaves the outcome open
        patch.setattr(history_lanes, "HARMLESS", strict)
        found = check(recorder.events, Policy())
    assert not found, found[:3]
    return recorder.events


def play(
    root: Path,
    plans: Callable[[], Callable[[str, str], None] | None],
    *,
    seed: int,
    level: Level = "full",
    shards: int = 2,
    steps: Sequence[int] = (12, 25),
    watch: Callable[[Scene], None] | None = None,
    busy_seconds: float = 0.02,
) -> Scene:
    """Work without failures, then with them, then without them again, and verify all of it."""
    clock = FakeClock()
    with recording(root, clock) as journal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "BUSY_SECONDS", busy_seconds)
        journal.reads_commits = False
        recorder = Recorder()
        queue = strictq.open(Path(journal.root, PLACE), shards=shards, durability=level, config=CONFIG, clock=clock)
        queue.app_schema(SCHEMA)
        program = Disturbance(Disturbed(queue, recorder), clock, random.Random(seed))
        scene = Scene(journal.root, journal, clock, queue, recorder, program, shards)
        scene.work(steps[0])
        journal.fault = plans()
        scene.work(steps[1])
        if watch is not None:
            watch(scene)
        scene.heal()
        scene.work(4)
        scene.account()
    return scene


def fail_some(place: Path, fault: str, *, seed: int, calls: int) -> tuple[int, int]:
    """Fail some of the calls of a seed's program, each once and then more often. Return the runs, and those with a failure.

    Args:
        place: the directory for the queues.
        calls: the maximum number of calls to fail, spread over all calls of that kind.
    Raises:
        AssertionError: names the failure that broke a promise.
    """
    count = Count()
    chance = random.Random(seed)
    done = fired = 0
    with windows(seed):
        play(fresh(place), lambda: count, seed=seed, steps=STEPS)
        there = count.kinds[CODES[fault][0]]
        for first in chance.sample(range(1, there + 1), min(there, calls)):
            for times in (1, chance.choice((3, FOREVER))):
                plan = Plan(fault, first, times)
                try:
                    play(fresh(place), lambda plan=plan: plan, seed=seed, steps=STEPS)  # type: ignore[misc]
                except Exception as e:
                    raise AssertionError(f"{plan} and seed {seed}: {e}") from e
                done += 1
                fired += plan.fired > 0
    return done, fired


def fresh(place: Path) -> Path:
    """Return an empty directory to work in."""
    shutil.rmtree(place / "work", ignore_errors=True)
    (place / "work").mkdir()
    return place / "work"
