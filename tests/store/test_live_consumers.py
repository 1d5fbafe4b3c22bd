"""Live consumers: how they divide the shards, and whose shards each of them claims from, on a clock that the test moves."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from strictq._store.whole.live_consumers import Affinity, Description, LiveConsumer, divide, live
from tests.support.running import PATIENCE_SECONDS, ROOT


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def join(place: Path, clock: Clock, affinity: Affinity = "prefer", *, shards: int = 4, lease: float = 30.0) -> LiveConsumer:
    one = LiveConsumer(place, range(shards), Description("loop", "me", "here", os.getpid(), "1", affinity, 0.0), lease, clock)
    one.join()
    return one


@pytest.mark.parametrize(("shards", "consumers"), list(itertools.product((1, 2, 3, 4, 7, 16, 64), range(1, 9))))
def test_every_shard_has_one_owner_and_the_loads_differ_by_one(shards: int, consumers: int) -> None:
    ids = [f"{n:016x}" for n in range(consumers)]
    owners = divide(range(shards), ids)
    assert sorted(owners) == list(range(shards))
    loads = Counter(owners.values())
    assert {loads[each] for each in ids} <= {shards // consumers, -(-shards // consumers)}


def test_few_shards_move_when_one_leaves() -> None:
    ids = [f"{n:016x}" for n in range(5)]
    for gone in ids:
        before, after = divide(range(64), ids), divide(range(64), [each for each in ids if each != gone])
        stayed = [shard for shard, owner in before.items() if owner != gone]
        assert sum(before[shard] != after[shard] for shard in stayed) <= 16


def test_all_compute_the_same_division(tmp_path: Path, clock: Clock) -> None:
    consumers = [join(tmp_path, clock, "own") for _ in range(3)]
    clock.now += 0.3
    claimed = [one.turn() for one in consumers]
    assert sorted(shard for some in claimed for shard in some or ()) == [0, 1, 2, 3]


def test_one_that_does_not_divide_claims_everywhere_and_takes_nothing_from_others(tmp_path: Path, clock: Clock) -> None:
    apart, one = join(tmp_path, clock, "none"), join(tmp_path, clock, "own")
    clock.now += 0.3
    assert apart.turn() is None
    assert one.turn() == {0, 1, 2, 3}


def test_the_shards_of_a_slow_one_are_helped_and_those_of_a_dead_one_change_hands(tmp_path: Path, clock: Clock) -> None:
    slow, helper, own = join(tmp_path, clock), join(tmp_path, clock), join(tmp_path, clock, "own")

    def turn(*ones: LiveConsumer) -> list[frozenset[int]]:
        clock.now += 0.3
        found = [one.turn() or frozenset() for one in ones]
        for one in ones:
            one.found(0, behind=False)
        return found

    for _ in range(2):
        first, second, third = turn(slow, helper, own)
    assert [first, second, third] == [slow.own, helper.own, own.own]
    assert sorted([*first, *second, *third]) == [0, 1, 2, 3]
    for _ in range(4):
        helps, stays = turn(helper, own)  # 1.2 s since the slow one turned
    assert helps == second | first, "who prefers helps"
    assert stays == third, "who takes only its own does not"
    for _ in range(100):
        helps, stays = turn(helper, own)
    assert helps | stays == {0, 1, 2, 3}, "after the length of a lease it counts as gone"
    assert not helps & stays
    for _ in range(2):
        found = turn(slow, helper, own)
    assert found == [first, second, third], "it is back"


def test_one_that_finds_nothing_helps_one_that_is_behind(tmp_path: Path, clock: Clock) -> None:
    busy, idle = join(tmp_path, clock, shards=2), join(tmp_path, clock, shards=2)
    for one in (busy, idle, busy):
        clock.now += 0.3
        one.turn()
    assert idle.turn() == idle.own
    for _ in range(3):
        clock.now += 0.3
        busy.turn()
        busy.found(10, behind=True)
        idle.turn()
        idle.found(0, behind=False)
    assert idle.turn() == {0, 1}
    idle.found(1, behind=False)
    assert idle.turn() == idle.own, "it found one of its own"
    clock.now += 0.2
    assert idle.turn() == {0, 1}
    busy.found(0, behind=False)
    clock.now += 0.3
    busy.turn()
    assert idle.turn() == idle.own


def test_who_left_is_gone_and_its_file_too(tmp_path: Path, clock: Clock) -> None:
    one, other = join(tmp_path, clock, "own"), join(tmp_path, clock, "own")
    one.end()
    one.end()
    clock.now += 0.3
    assert other.turn() == {0, 1, 2, 3}
    assert [seen.id for seen in live(tmp_path)] == [other.id]
    assert one.turn() is None
    other.end()
    assert os.listdir(tmp_path) == []


def test_a_killed_one_is_gone_and_its_file_too(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from strictq._store.whole.live_consumers import Description, LiveConsumer
one = LiveConsumer(Path(sys.argv[1]), range(4), Description("loop", "me", "here", 1, "1", "own", 0.0), 30.0)
one.join()
print("joined", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "joined\n"
    assert len(live(tmp_path)) == 1
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert live(tmp_path) == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b"\0" * 16 + b"[1]", b"\0" * 16 + b'{"kind": 1}', b"\xff" * 8192])
def test_files_that_are_no_consumers_are_passed_over(tmp_path: Path, clock: Clock, data: bytes) -> None:
    one = join(tmp_path, clock, "own")
    odd = os.open(tmp_path / "live-odd", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(odd, data)
        import fcntl

        fcntl.flock(odd, fcntl.LOCK_EX)
        (tmp_path / "live-directory").mkdir()
        clock.now += 0.3
        assert one.turn() == {0, 1, 2, 3}
        assert [seen.id for seen in live(tmp_path)] == [one.id]
    finally:
        os.close(odd)


def test_a_long_name_fits(tmp_path: Path, clock: Clock) -> None:
    one = join(tmp_path, clock)
    one.describe(name="\U0001f600" * 10_000, running=3)
    (seen,) = live(tmp_path)
    assert seen.described.name == "\U0001f600" * 100
    assert seen.described.running == 3
