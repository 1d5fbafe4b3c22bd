"""The disk fails, memory ends, locks are not to be had: at any call, once or from then on.

Whatever raised OutcomeUnknown may have happened, whatever raised anything else did not, and what returned holds: the whole
history of a program that met failures goes through the checker. When they are over, the same queue object works again, and
so does a new one. Every kind of call is failed at points spread over all of its calls.

Some four hundred points. For a long campaign set STRICTQ_FAULT_POINTS to their number (shared by the kinds of failure),
and STRICTQ_FAULT_SEED to start from other random numbers:

    STRICTQ_FAULT_POINTS=10000 python -m pytest -n 4 tests/faults
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import apsw
import pytest

import strictq
from strictq import OutcomeUnknown, StoreError
from strictq.testing import FakeClock
from tests.support.faults import CODES, FOREVER, STEPS, Disturbance, Disturbed, Plan, Scene, fail_some, fresh, play
from tests.support.history import OK
from tests.support.internals import store_of
from tests.support.powercut import Journal, Recorder, quiet, recording
from tests.support.powercut_campaign import campaign
from tests.support.powercut_disk import Platter, put_out
from tests.support.powercut_run import CONFIG, PLACE, Level, Run
from tests.support.queues import keys_by_shard
from tests.support.recorded import SCHEMA

POINTS = int(os.environ.get("STRICTQ_FAULT_POINTS", "400"))
SEED = int(os.environ.get("STRICTQ_FAULT_SEED", "1"))
IMAGES = int(os.environ.get("STRICTQ_POWERCUT_IMAGES", "6000")) // 20
"""Of each run with failed syncs."""


@pytest.mark.in_turn
@pytest.mark.parametrize("fault", CODES)
def test_a_failure_at_any_call(fault: str, place: Path) -> None:
    wanted = POINTS // len(CODES)
    done = fired = 0
    for seed in itertools.count(SEED):
        runs, failed = fail_some(place, fault, seed=seed, calls=max(wanted // 4, 1))
        done += runs
        fired += failed
        if done >= wanted:
            break
        assert seed < SEED + 50 or done, f"nothing ever does what {fault} fails"
    assert fired >= done // 2


@pytest.mark.parametrize("fault", ["read", "write", "sync", "open", "size", "busy", "lock"])
def test_the_other_shards_never_stop(fault: str, place: Path) -> None:
    """Whatever one shard's disk does, each call on the keys of another one works."""
    keys = keys_by_shard(2)
    sick = Plan(fault, 1, FOREVER)

    def plan() -> Callable[[str, str], None]:
        return lambda kind, path: sick(kind, path) if "shard-0000" in path else None

    def watch(scene: Scene) -> None:
        store_of(scene.queue).shards[0]._writer._drop_connection()
        recorded = scene.program.recorded
        for _ in range(5):
            assert recorded.send(recorded.new(keys[1])) is not None
        recorded.operate("unhold", keys[1])
        recorded.send_many([recorded.new(key) for key in keys.values()])
        scene.clock.advance(100.0)
        got = [d for _ in range(3) for d in recorded.receive(100, lease_seconds=30.0)]
        assert sum(1 for d in got if d.key == keys[1]) == 6
        for d in got:
            if d.shard == 1:
                assert recorded.act("ack", d) == OK

    play(fresh(place), plan, seed=3, steps=STEPS, watch=watch)
    assert sick.fired


def test_memory_that_ends(place: Path) -> None:
    """SQLite's memory limit: calls fail, nothing is lost, and everything goes on when there is memory again."""

    failed: list[str] = []

    def watch(scene: Scene) -> None:
        recorded = scene.program.recorded
        store_of(scene.queue).shards[0]._writer._drop_connection()
        for room in (0, 2_000, 10_000, 50_000, 200_000, 1_000_000):
            apsw.hard_heap_limit(apsw.memory_used() + room)
            try:
                before = len(scene.recorder.events)
                for _ in range(8):
                    recorded.send_many([recorded.big("a"), recorded.big("b"), recorded.big("c")])
                    scene.program.step()
                failed.extend(e.outcome for e in scene.recorder.events[before:] if getattr(e, "outcome", OK) != OK)
            finally:
                apsw.hard_heap_limit(0)

    play(fresh(place), lambda: None, seed=5, steps=STEPS, watch=watch)
    assert {"StoreError", "PartialFailure", "OutcomeUnknown"} & set(failed), failed


def test_a_storm_of_locks_that_passes_is_not_noticed(place: Path) -> None:
    storm = Plan("busy", 1, 3)

    def watch(scene: Scene) -> None:
        for shard in store_of(scene.queue).shards:
            shard._writer._drop_connection()
        scene.journal.fault = storm
        scene.queue.configure(retry_delay_seconds=0.0, lease_seconds=21.0)  # queue.db is locked by its files

    play(fresh(place), lambda: None, seed=6, steps=STEPS, watch=watch, busy_seconds=60.0)  # however slow the machine is
    assert storm.fired == 3


# --- a sync that fails, and a kernel that then takes what it could not write for written ------------------------------


def test_what_is_acknowledged_after_a_failed_sync_survives_a_power_cut(place: Path) -> None:
    clock = FakeClock()
    with recording(fresh(place), clock) as journal:
        queue = strictq.open(journal.root / PLACE, clock=clock)
        queue.send(b"before", "k")
        journal.fault = Plan("sync", 1, 1, "-wal")
        with pytest.raises(OutcomeUnknown):
            queue.send(b"unknown", "k")
        journal.fault = None
        queue.send(b"after", "k")
        journal.recording = False
        queue.close()
    assert b"after" in bodies(place, journal, clock)


def test_what_is_forwarded_after_a_failed_sync_is_whole_after_a_power_cut(place: Path) -> None:
    """At "process", the origin is synced before it forwards; if that fails once, a second try must not be a lie."""
    clock = FakeClock()
    here, there = keys_by_shard(2).values()
    with recording(fresh(place), clock) as journal:
        queue = strictq.open(journal.root / PLACE, clock=clock, shards=2, durability="process")
        queue.send(b"in", here)
        store_of(queue).shards[0].checkpoint()
        (d,) = queue.receive()
        failed: list[str] = []

        def fault(kind: str, path: str) -> None:
            if kind == "fsync" and not failed:
                failed.append(path)
                journal.lose(path)
                raise OSError(5, "Input/output error")

        journal.fault = fault
        with pytest.raises(strictq.ForwardPending), queue.transaction(d) as tx:
            tx.send(b"out", there)
        store_of(queue).forward()
        assert failed
        journal.recording = False
        queue.close()
    assert bodies(place, journal, clock) == [b"out"]  # and not b"in" as well


def _fails_once(journal: Journal, kind: str) -> Callable[[str, str], None]:
    """The next fsync of a WAL by the project itself fails, and what it should have written is taken for written."""
    failed: list[str] = []

    def fault(done: str, path: str) -> None:
        if done == kind and not failed:
            failed.append(path)
            journal.lose(path)
            raise OSError(5, "Input/output error")

    return fault


def test_what_another_process_forwards_after_a_failed_sync_is_whole_after_a_power_cut(place: Path) -> None:
    """It was not told of the failure, and would take its own sync, which succeeds, for the truth."""
    clock = FakeClock()
    here, there = keys_by_shard(2).values()
    with recording(fresh(place), clock) as journal:
        one = strictq.open(journal.root / PLACE, clock=clock, shards=2, durability="process")
        two = strictq.open(journal.root / PLACE, clock=clock)
        one.send(b"in", here)
        store_of(one).shards[0].checkpoint()
        (d,) = one.receive()
        journal.fault = _fails_once(journal, "fsync")
        with pytest.raises(strictq.ForwardPending), one.transaction(d) as tx:
            tx.send(b"out", there)
        store_of(two).forward()
        journal.recording = False
        one.close()
        two.close()
    assert bodies(place, journal, clock) == [b"out"]  # and not b"in" as well


def test_another_process_that_checkpoints_after_a_failed_sync_does_not_mix_pages(place: Path) -> None:
    clock = FakeClock()
    with recording(fresh(place), clock) as journal:
        one = strictq.open(journal.root / PLACE, clock=clock, durability="process")
        two = strictq.open(journal.root / PLACE, clock=clock)
        for n in range(40):
            one.send(bytes([n]) * 3000, "k")
            if n == 10:
                store_of(one).shards[0].checkpoint()
        journal.fault = Plan("sync", 1, 1, "-wal")
        with pytest.raises(StoreError):
            store_of(one).shards[0].checkpoint()
        journal.fault = None
        journal.note("failed")
        store_of(two).shards[0].checkpoint()
        journal.recording = False
        one.close()
        two.close()
    for end in range(next(n for n, op in enumerate(journal.ops) if op.kind == "failed"), len(journal.ops) + 1):
        found = bodies(place, journal, clock, end, "prefix")
        assert found == [bytes([n]) * 3000 for n in range(len(found))], "a prefix, as a power cut may leave it"


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
def test_a_process_that_dies_between_a_failed_sync_and_its_repair_leaves_it_to_the_next(place: Path, others: int) -> None:
    """Whoever opens the shard then finds the commit in the WAL, which nobody knows to be on the disk, and writes behind it."""
    clock = FakeClock()
    with recording(fresh(place), clock) as journal:
        one = strictq.open(journal.root / PLACE, clock=clock)
        beside = [strictq.open(journal.root / PLACE, clock=clock) for _ in range(others)]
        one.send(b"before", "k")
        journal.fault = Plan("sync", 1, 1, "-wal")
        with pytest.raises(OutcomeUnknown):
            one.send(b"unknown", "k")
        journal.fault = None
        store_of(one).die()
        one = strictq.open(journal.root / PLACE, clock=clock)
        for queue in (one, *beside):
            queue.send(b"after", "k")
        journal.recording = False
        for queue in (one, *beside):
            queue.close()
    found = bodies(place, journal, clock)
    assert found.count(b"after") == 1 + others
    assert found.count(b"before") == 1


def test_what_a_failed_sync_lost_gives_no_token_a_second_time(place: Path) -> None:
    """A lease is not synced, a sync fails, the kernel drops what it could not write, and the process dies."""
    clock = FakeClock()
    with recording(fresh(place), clock) as journal:
        home = journal.root / PLACE
        queue = strictq.open(home, clock=clock)
        queue.send(b"body", "k")
        (wal,) = home.rglob("*.db-wal")
        on_disk = wal.read_bytes()
        (lost,) = queue.receive()
        journal.fault = Plan("sync", 1, 1, "-wal")
        with pytest.raises(OutcomeUnknown):
            queue.send(b"unknown", "k")
        journal.fault = None
        journal.recording = False
        after = place / "after"
        shutil.copytree(home, after, ignore=shutil.ignore_patterns("*-shm"))
        (after / wal.relative_to(home)).write_bytes(on_disk)
        store_of(queue).die()
    with quiet(clock), strictq.open(after, clock=clock, create=False) as queue:
        (again,) = queue.receive()
        assert (again.body, again.attempt) == (b"body", 1), "the lease was lost"
        assert again.token > lost.token
        again.ack()
        assert queue.check() == []


def test_a_failed_sync_of_the_boot_before_is_over(place: Path) -> None:
    """After a reboot what is in the files is what is on the disk: nothing is written over itself, which a power cut may spoil."""
    clock = FakeClock()
    with recording(fresh(place), clock) as journal:
        with strictq.open(journal.root / PLACE, clock=clock) as queue:
            queue.send(b"before", "k")
            journal.fault = Plan("sync", 1, 1, "-wal")
            with pytest.raises(OutcomeUnknown):
                queue.send(b"unknown", "k")
            store_of(queue).die()
        journal.fault = None
        clock.reboot()
        mark = len(journal.ops)
        with strictq.open(journal.root / PLACE, clock=clock) as queue:
            queue.send(b"after", "k")
        assert not [op for op in journal.ops[mark:] if op.kind == "write" and len(op.data) > 4096]
        journal.recording = False


def bodies(
    place: Path, journal: Journal, clock: FakeClock, end: int | None = None, mode: Literal["none", "prefix"] = "none"
) -> list[bytes]:
    """What is in the queue if the power is cut now (or after `end` entries), and what was not synced is gone."""
    platter = Platter(journal.start)
    for op in journal.ops[:end]:
        platter.follow(op)
    put_out(platter.cut(mode, random.Random(end)), place / "image", random.Random(0))
    clock.reboot()
    with quiet(clock), strictq.open(place / "image" / PLACE, clock=clock, create=False) as queue:
        assert queue.check() == []
        return sorted(d.body for d in queue.receive(100))


@pytest.mark.in_turn
@pytest.mark.parametrize("objects", [1, 2], ids=["one", "two"])
@pytest.mark.parametrize("level", ["full", "process"])
@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_failed_syncs_and_then_a_power_cut(seed: int, level: Level, objects: int, place: Path) -> None:
    """As above, at any sync of any of SQLite's files, under everything one can do; beside another process, as it were."""
    clock = FakeClock()
    chance = random.Random(seed)
    with recording(fresh(place), clock) as journal:
        recorder = Recorder()
        recorder.journal = journal
        path = Path(journal.root, PLACE)
        queues = [strictq.open(path, shards=2, durability=level, config=CONFIG, clock=clock)]
        journal.note("opened")
        queues[0].app_schema(SCHEMA)
        queues += [strictq.open(path, clock=clock) for _ in range(objects - 1)]
        journal.note("ready")
        programs = [
            Disturbance(Disturbed(queue, recorder, f"m{n}"), clock, random.Random(seed + n)) for n, queue in enumerate(queues)
        ]
        for _ in range(3):
            journal.fault = Plan("sync", 1 + 3 * (seed % 5), 1)
            for _ in range(15 * objects):
                chance.choice(programs).step()
        journal.recording = False
        for queue in queues:
            queue.close()
    run = Run(journal, recorder.events, level, clock)
    campaign(run, place / "image", seed=seed, per_point=3, every=8, limit=IMAGES)


def test_a_failure_is_reported_as_what_it_is(place: Path) -> None:
    with recording(fresh(place), FakeClock()) as journal:
        queue = strictq.open(journal.root / PLACE)
        queue.send(b"", "k")
        store_of(queue).shards[0]._writer._drop_connection()
        journal.fault = Plan("read", 1, 1)
        with pytest.raises(StoreError) as caught:
            queue.send(b"", "k")
        assert not isinstance(caught.value, OutcomeUnknown)
        assert isinstance(caught.value.cause, apsw.IOError)
        assert queue.send(b"", "k").seq == 2
        journal.recording = False
        queue.close()
