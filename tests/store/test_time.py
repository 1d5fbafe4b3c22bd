"""Clocks that jump, machines that reboot, and two machines on one directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import strictq
from strictq import ConfigError, LeaseLost, Message
from strictq._store.disk import locks
from strictq._store.lane.live_lane import LiveLane
from strictq._store.shard import claiming
from strictq._store.whole import epoch
from strictq.testing import FakeClock
from tests.support.folds import fold
from tests.support.internals import shard_of, store_of, tamper
from tests.support.queues import Opener, drain, fill, labels, shard_file
from tests.support.running import PATIENCE_SECONDS, ROOT

DAY = 86400.0
YEARS_1970_TO_NOW = 1_700_000_000.0


@pytest.mark.parametrize("jump", [-30 * 365 * DAY, -3600.0, -1.0, 1.0, 3600.0, 30 * 365 * DAY])
def test_a_lease_is_as_long_as_it_is_whatever_the_wall_clock_does(disk: Opener, clock: FakeClock, jump: float) -> None:
    q = disk(lease_seconds=30.0)
    fill(q, "k", 1)
    (d,) = q.receive()
    clock.jump_wall(jump)
    with disk.open() as other:
        clock.advance(29.0)
        assert other.receive() == []
        assert q.explain("k").state == "in_flight"
        clock.advance(2.0)
        (again,) = other.receive()
    assert again.token > d.token
    with pytest.raises(LeaseLost):
        d.ack()


@pytest.mark.parametrize("jump", [-30 * 365 * DAY, 30 * 365 * DAY])
def test_delays_ttls_and_dedup_windows_do_not_follow_the_wall_clock(disk: Opener, clock: FakeClock, jump: float) -> None:
    q = disk(dedup_window_seconds=60.0)
    q.send(b"", "delayed", delay=50.0)
    q.send(b"", "mortal", ttl=50.0)
    q.send(b"", "once", dedup_id="d")
    q.hold("once")
    clock.jump_wall(jump)
    assert labels(q.receive()) == [("mortal", 1)]
    q.purge("mortal")
    assert q.send(b"", "once", dedup_id="d").duplicate
    q.send(b"", "mortal2", ttl=50.0)
    clock.advance(61.0)
    assert labels(q.receive()) == [("delayed", 1)], "both mortals are past their time now, and nobody holds them"
    assert not q.send(b"", "once", dedup_id="d").duplicate


def test_a_shard_with_empty_logs_does_not_keep_the_others_from_a_new_boot(disk: Opener, clock: FakeClock) -> None:
    disk(shards=2).close()
    tamper(shard_file(disk.path), "DELETE FROM message")
    clock.reboot()
    with disk.open(durability=None) as q:
        assert [shard.quarantined is None for shard in q.stats().shards] == [False, True]


def test_a_machine_that_boots_in_1970_and_then_learns_the_time_expires_nothing(tmp_path: Path) -> None:
    """An edge device without a battery for its clock."""
    clock = FakeClock(wall_seconds=60.0, boot_seconds=60.0)
    opener = Opener(str(tmp_path / "queue"), clock)
    q = opener()
    q.send(b"", "mortal", ttl=3600.0)
    q.send(b"", "delayed", delay=3600.0)
    fill(q, "leased", 1)
    (leased,) = q.receive(keys=["leased"])
    clock.jump_wall(YEARS_1970_TO_NOW)
    assert labels(q.receive()) == [("mortal", 1)]
    leased.ack()
    assert q.explain("delayed").state == "delayed"
    until = q.explain("delayed").until
    assert until is not None
    assert abs(until - (YEARS_1970_TO_NOW + 60 + 3600)) < 5, "and shown in the time that is known now"
    clock.advance(3601.0)
    assert labels(q.receive(keys=["delayed"])) == [("delayed", 1)]
    opener.close()


def test_a_reboot_into_1970_never_turns_time_back(disk: Opener, clock: FakeClock) -> None:
    q = disk(dedup_window_seconds=1000.0)
    q.send(b"", "mortal", ttl=3600.0)
    q.send(b"", "delayed", delay=100.0)
    before = q.now()
    q.close()
    clock.reboot()
    clock.jump_wall(-YEARS_1970_TO_NOW)
    q = disk()
    assert q.now() >= before
    assert labels(q.receive()) == [("mortal", 1)]
    clock.advance(101.0)
    clock.jump_wall(YEARS_1970_TO_NOW)
    assert labels(q.receive()) == [("mortal", 1), ("delayed", 1)]
    assert q.check() == []


def test_a_reboot_ends_leases_raises_the_epoch_and_keeps_everything_else(disk: Opener, clock: FakeClock) -> None:
    q = disk(shards=2, lease_seconds=1000.0)
    fill(q, "a", 3)
    fill(q, "b", 2)
    q.send(b"", "later", delay=500.0)
    q.send(b"", "mortal", ttl=500.0)
    held = {d.key: d for d in q.receive(100, per_key=1)}
    tokens = {key: d.token for key, d in held.items()}
    epoch = store_of(q).epoch
    q.close()
    clock.reboot(down_seconds=100.0)
    q = disk()
    assert store_of(q).epoch == epoch + 1
    got = q.receive(100)
    assert {d.key for d in got} == {"a", "b", "mortal"}
    for d in got:
        assert d.token > tokens[d.key]
    q.ack_many([d for d in got if d.key != "mortal"])
    clock.advance(399.0)
    assert "later" not in [d.key for d in q.receive(100)]
    clock.advance(2.0)
    assert "later" in [d.key for d in q.receive(100)], "the 100 seconds that it was off count"
    assert q.check() == []


def test_the_ttl_goes_on_while_the_machine_is_off(disk: Opener, clock: FakeClock) -> None:
    q = disk()
    q.send(b"", "k", ttl=100.0)
    q.close()
    clock.reboot(down_seconds=101.0)
    assert disk().receive() == []


def test_tokens_ascend_over_many_boots_even_where_nothing_was_written(disk: Opener, clock: FakeClock) -> None:
    q = disk()
    fill(q, "k", 1)
    tokens = []
    for n in range(5):
        (d,) = q.receive()
        tokens.append(d.token)
        if n % 2:
            d.lease.release()
        q.close()
        clock.reboot()
        if n % 2:
            disk().close()
            clock.reboot()
        q = disk()
    assert tokens == sorted(set(tokens))


def test_a_power_cut_that_takes_the_newest_commits_repeats_no_token(disk: Opener, clock: FakeClock) -> None:
    """The shard loses what it issued. The epoch does not: it is synced before the first token of a boot."""
    q = disk()
    fill(q, "k", 1)
    shard_of(q).checkpoint()
    q.close()
    wal = Path(disk.path) / "shard-0000.db-wal"
    marks = Path(disk.path) / "marks"
    before = wal.read_bytes(), marks.read_bytes()
    q = disk()
    (d,) = q.receive()
    lost_token = d.token
    q.close()
    wal.write_bytes(before[0])
    marks.write_bytes(before[1])
    Path(disk.path, "shard-0000.db-shm").unlink()
    clock.reboot()
    (d,) = disk().receive()
    assert d.token > lost_token


def test_shards_that_were_not_written_since_the_boot_end_their_leases_too(disk: Opener, clock: FakeClock) -> None:
    q = disk(shards=4, lease_seconds=10_000.0)
    for n in range(40):
        q.send(b"", f"k{n}")
    assert len(q.receive(100)) == 40
    q.close()
    clock.reboot()
    assert len(disk().receive(100)) == 40


# --- two kernels ----------------------------------------------------------------------------------------------------------

HOLDER = "import sys, strictq\nwith strictq.open(sys.argv[1]) as q:\n print('open', flush=True)\n sys.stdin.read()\n"


@contextmanager
def held_elsewhere(path: str) -> Iterator[None]:
    """Keep the queue open in another process."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield
        process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()


def test_another_boot_while_somebody_has_it_open_is_another_kernel(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch, "ANOTHER_KERNEL_SECONDS", 0.1)
    path = str(tmp_path / "queue")
    with strictq.open(path) as q:
        q.send(b"", "k")
    with held_elsewhere(path):
        before = tamper(Path(path) / "queue.db", "SELECT * FROM queue")
        with pytest.raises(ConfigError) as caught:
            strictq.open(path, clock=clock)  # the clock says that the machine has booted since
        assert caught.value.hint
        assert tamper(Path(path) / "queue.db", "SELECT * FROM queue") == before
        with strictq.open(path) as same, strictq.open(path, read_only=True, clock=clock) as looker:
            assert same.stats().depth == looker.stats().depth == 1
    with strictq.open(path, clock=clock) as q:
        assert store_of(q).epoch == 2
        assert drain(q) == [("k", 1)]


def test_who_opens_at_the_same_moment_after_a_boot_does_not_wait_for_another_kernel(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "queue")
    strictq.open(path).close()
    alone = locks.Presence.alone
    first: list[strictq.Queue] = []
    waited: list[float] = []

    def overtaken(self: locks.Presence, seconds: float) -> bool:
        if not first:  # the catalog was read, and now another process is faster
            monkeypatch.setattr(locks.Presence, "alone", alone)
            first.append(strictq.open(path, clock=clock))
            monkeypatch.setattr(locks.Presence, "alone", overtaken)
        waited.append(seconds)
        return alone(self, min(seconds, 0.01))

    monkeypatch.setattr(locks.Presence, "alone", overtaken)
    with strictq.open(path, clock=clock) as second:
        assert store_of(second).epoch == store_of(first[0]).epoch == 2
    first[0].close()
    tried = [seconds for seconds in waited if seconds]  # a close does not wait
    assert len(tried) == 1
    assert tried[0] < epoch.ANOTHER_KERNEL_SECONDS


def test_the_refused_opener_holds_nothing(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch, "ANOTHER_KERNEL_SECONDS", 0.05)
    path = str(tmp_path / "queue")
    q = strictq.open(path)
    with pytest.raises(ConfigError):
        strictq.open(path, clock=clock)
    q.close()
    alone = locks.Presence(Path(path))
    assert alone.alone(0.0), "a lock was left behind"
    alone.leave()


def test_the_same_boot_is_never_refused(disk: Opener) -> None:
    opened = [disk() for _ in range(5)]
    assert all(store_of(q).epoch == 1 for q in opened)
    opened[0].close()
    fill(opened[1], "k", 1)
    assert drain(opened[2]) == [("k", 1)]


def test_presence_ends_with_its_process_even_by_kill(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch, "ANOTHER_KERNEL_SECONDS", 20.0)
    path = str(tmp_path / "queue")
    strictq.open(path).close()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    os.kill(process.pid, 9)
    process.communicate(timeout=PATIENCE_SECONDS)
    with strictq.open(path, clock=clock) as q:
        assert store_of(q).epoch == 2


@pytest.mark.parametrize("at_rest", [False, True])
def test_one_claim_handles_few_of_many_delays_and_leases_that_end_at_once(
    disk: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, at_rest: bool
) -> None:
    monkeypatch.setattr(claiming, "ENDED_STEP", 10)
    q = disk(shards=1, lease_seconds=50.0, max_attempts=None)
    q.send_many([Message(b"", key=f"leased-{n:02}") for n in range(30)])
    for n in range(30):
        clock.advance(0.001)
        assert [d.key for d in q.receive(1)] == [f"leased-{n:02}"]
    q.send_many([Message(b"", key=f"delayed-{n:02}", delay=60.0 + n / 1000) for n in range(30)])
    if at_rest:
        fold(q)
        shard_of(q).run(lambda tx: tx.lanes.begin_anew())
    clock.advance(100.0)
    q.send(b"", key="ready")
    listed: list[bytes] = []
    order = shard_of(q).lanes.memory.order
    real = type(order).list

    def count(self: object, lane: LiveLane, place: int) -> None:
        listed.append(lane.key)
        real(order, lane, place)

    monkeypatch.setattr(type(order), "list", count)
    came: list[object] = []
    for _ in range(61):
        listed.clear()
        came += [d.key for d in q.receive(1)]
        assert len(listed) < 30, "ten ends as a single statement, ten in a transaction, and the lanes of the claim itself"
    ends = [f"leased-{n:02}" for n in range(30)] + [f"delayed-{n:02}" for n in range(30)]
    assert came == ["ready", *ends]
    assert q.check() == []
