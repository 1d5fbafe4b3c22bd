"""Which process ships, when another takes over, and what happens while the target can't be reached."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import strictq
from strictq import ConfigError, InvalidArgument, Queue
from strictq.replication import keeper
from strictq.replication.directory import DirectoryTarget
from strictq.replication.keeper import ShipKeeper
from strictq.replication.restoring import look, points_of, restore
from tests.support.command import in_process
from tests.support.queues import Opener
from tests.support.replicas import is_shipped
from tests.support.running import PATIENCE_SECONDS, ROOT, until
from tests.support.shipping import begin_tasks, pass_on, problems_of, require_states, working

TASKS = 30
FAST = 0.02


def messages(target: Path, name: str = "r") -> int:
    """How many the newest state has."""
    place = target.with_name(name)
    restore(target, place)
    with strictq.open(place, read_only=True) as r:
        assert r.check() == []
        ready = r.stats().ready
    shutil.rmtree(place)
    return ready


# ---- configuring


def test_a_queue_that_is_not_replicated(q: Queue, tmp_path: Path) -> None:
    assert q.replication() is None
    assert q.stats().replication is None
    assert not q.detach()
    q.send(b"x", key="k")
    assert not [name for name in os.listdir(q.path) if name.startswith("ship")]


def test_what_was_sent_arrives(q: Queue, target: Path) -> None:
    found = q.configure_replication(f"file:{target}", interval_seconds=FAST)
    assert (found.mode, found.target, found.term) == ("async", f"file:{target}", 1)
    q.send(b"x", key="k")
    until(lambda: is_shipped(q))
    status = q.stats().replication
    assert status is not None
    assert (status.shipping, status.lag_seconds, status.last_error, status.stopped) == (True, 0.0, None, False)
    assert status.confirmed_at == pytest.approx(time.time(), abs=60)
    assert messages(target) == 1


def test_the_status_says_what_is_missing(q: Queue, target: Path) -> None:
    q.configure_replication(target, interval_seconds=3600)
    until(lambda: is_shipped(q))
    q.send(b"x", key="k")
    status = q.replication()
    assert status is not None
    assert status.lag_bytes
    assert status.lag_seconds is not None
    assert status.lag_seconds > 0


@pytest.mark.parametrize(
    "options",
    [{"mode": "x"}, {"timeout_seconds": -1}, {"interval_seconds": -1}, {"interval_seconds": "1"}, {"max_lag_bytes": 5},
     {"keep_seconds": -1}, {"target": "ftp://host/x"}, {"target": 5}],
)  # fmt: skip
def test_arguments_that_are_refused(q: Queue, target: Path, options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        q.configure_replication(**({"target": target} | options))  # type: ignore[arg-type]
    assert q.replication() is None
    assert not target.exists()


def test_a_queue_in_memory_has_no_replica(target: Path) -> None:
    with strictq.open(":memory:") as q:
        with pytest.raises(ConfigError):
            q.configure_replication(target)
        assert q.replication() is None
    assert not target.exists()


def test_a_queue_that_is_detached_ships_no_longer(q: Queue, target: Path) -> None:
    q.configure_replication(target, interval_seconds=FAST)
    q.send(b"1", key="k")
    assert q.detach()
    assert not q.detach()
    q.send(b"2", key="k")
    status = q.replication()
    assert status is not None
    assert (status.mode, status.shipping, status.lag_bytes) == ("off", False, 0)
    assert messages(target) == 1
    q._storage.checkpoint()
    assert not [t for t in threading.enumerate() if t.name == "strictq-shipper"]
    q.configure_replication(target, interval_seconds=FAST)  # and again, in the same chain
    until(lambda: is_shipped(q))
    assert messages(target) == 2


def test_another_target_can_be_chosen(q: Queue, target: Path, tmp_path: Path) -> None:
    q.configure_replication(target, interval_seconds=FAST)
    q.send(b"1", key="k")
    until(lambda: is_shipped(q))
    q.configure_replication(tmp_path / "t2", interval_seconds=FAST)
    q.send(b"2", key="k")
    until(lambda: is_shipped(q))
    assert (messages(target), messages(tmp_path / "t2")) == (1, 2)


def test_another_process_can_choose_the_target_and_detach(tmp_path: Path, target: Path) -> None:
    """The one that ships writes nothing, so no write tells it."""
    one, other = strictq.open(tmp_path / "q"), strictq.open(tmp_path / "q")
    one.configure_replication(target, interval_seconds=FAST)
    until(lambda: is_shipped(one))
    other.configure_replication(tmp_path / "t2", interval_seconds=FAST)
    other.send(b"1", key="k")
    until(lambda: is_shipped(other))
    assert messages(tmp_path / "t2") == 1
    other.detach()
    until(lambda: not [t for t in threading.enumerate() if t.name == "strictq-shipper"])
    one.close()
    other.close()


def test_a_queue_that_only_looks_ships_nothing(q: Queue, target: Path) -> None:
    q.configure_replication(target, interval_seconds=FAST)
    until(lambda: is_shipped(q))
    with strictq.open(q.path, read_only=True) as looking:
        status = looking.replication()
        assert status is not None
        assert status.shipping
        q.close()
        status = looking.stats().replication
        assert status is not None
        assert not status.shipping


def test_closing_ships_the_rest(tmp_path: Path, target: Path) -> None:
    with strictq.open(tmp_path / "q") as q:
        q.configure_replication(target, interval_seconds=3600)
        for n in range(5):
            q.send(b"%d" % n, key="k")
    assert messages(target) == 5


def test_the_last_one_to_close_ships_what_is_left(tmp_path: Path, target: Path) -> None:
    one, other = strictq.open(tmp_path / "q"), strictq.open(tmp_path / "q")
    one.configure_replication(target, interval_seconds=3600)
    one.close()
    other.send(b"x", key="k")
    other.close()
    assert messages(target) == 1


def test_a_short_lived_process_ships_what_it_sent(tmp_path: Path, target: Path) -> None:
    with strictq.open(tmp_path / "q") as q:
        q.configure_replication(target, interval_seconds=3600)
    for n in range(3):
        with strictq.open(tmp_path / "q") as q:
            q.send(b"x", key="k")
        assert messages(target) == n + 1
    assert sum(DirectoryTarget(target).header(n).is_base for n in DirectoryTarget(target).numbers()) == 1


# ---- two processes


def test_only_one_ships_and_the_other_takes_over(tmp_path: Path, target: Path) -> None:
    one, other = strictq.open(tmp_path / "q"), strictq.open(tmp_path / "q")
    one.configure_replication(target, interval_seconds=FAST)
    until(lambda: is_shipped(one))
    other.send(b"1", key="k")
    until(lambda: is_shipped(other))
    shippers = [t for t in threading.enumerate() if t.name == "strictq-shipper"]
    assert len(shippers) == 1
    one.close()
    other.send(b"2", key="k")
    until(lambda: is_shipped(other))
    other.close()
    assert messages(target) == 2


@pytest.mark.parametrize("rounds", [3])
def test_processes_that_are_killed_lose_nothing_that_was_shipped(tmp_path: Path, target: Path, rounds: int) -> None:
    """Whoever ships is killed with -9 at any moment, and so are those who write."""
    with strictq.open(tmp_path / "q", durability="process", shards=3) as q:
        begin_tasks(q, range(TASKS))
        q.configure_replication(target, interval_seconds=FAST)
    seen = points_of(target)[-1][0]
    for _ in range(rounds):
        with working(tmp_path / "q", 2) as workers:
            for worker in workers:
                before = points_of(target)[-1][0]
                until(lambda before=before: points_of(target)[-1][0] >= before + 5)  # type: ignore[misc]
                worker.send_signal(signal.SIGKILL)
                worker.wait()
    with strictq.open(tmp_path / "q", durability="process") as q:
        for _ in range(5):
            pass_on(q)
    found = [n for n, _ in points_of(target) if n > seen]
    assert len(found) >= 10 * rounds
    require_states(target, tmp_path, found, 8)
    assert problems_of(tmp_path / "q") == []


FOREIGN = """
import sys, time
import apsw
from strictq._store.disk import checksums

modes = (apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_RESTART, apsw.SQLITE_CHECKPOINT_TRUNCATE)
shards = [apsw.Connection(path, vfs=checksums.vfs()) for path in sys.argv[1:]]
for shard in shards:
    shard.wal_autocheckpoint(0)
    shard.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    shard.execute("SELECT * FROM sqlite_schema").fetchall()
print("ready", flush=True)
while True:
    for mode in modes:
        for shard in shards:
            try:
                shard.wal_checkpoint(mode=mode)
            except apsw.BusyError:
                pass
        time.sleep(0.01)
"""


def test_somebody_else_who_checkpoints_all_the_time(tmp_path: Path, target: Path) -> None:
    """While a shipper runs it lets nobody begin a WAL again; while none runs, shards are shipped whole afterwards."""
    path = tmp_path / "q"
    with strictq.open(path, durability="process", shards=3) as q:
        begin_tasks(q, range(TASKS))
        q.configure_replication(target, interval_seconds=FAST)
        files = [str(path / f"shard-{n:04d}.db") for n in range(3)]
        foreign = subprocess.Popen([sys.executable, "-c", FOREIGN, *files], stdout=subprocess.PIPE, cwd=ROOT)
        try:
            assert foreign.stdout is not None
            assert foreign.stdout.readline() == b"ready\n"
            for _ in range(4):
                before = points_of(target)[-1][0] if points_of(target) else 0
                while points_of(target)[-1][0] < before + 6:
                    pass_on(q)
                with strictq.open(path, durability="process") as other:
                    q._storage.replicating.stop(flush=False)  # nobody ships for a while
                    for _ in range(3):
                        pass_on(other)
                q._storage.replicating.ship()
        finally:
            foreign.kill()
            foreign.wait()
            assert foreign.stdout is not None
            foreign.stdout.close()
    found = [n for n, _ in points_of(target)]
    require_states(target, tmp_path, found, 8)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("lost", ["0000000000000001.seg", "replica.json"])
def test_a_gap_is_reported_and_healed(tmp_path: Path, target: Path, lost: str) -> None:
    with strictq.open(tmp_path / "queue", durability="process") as q:
        q.configure_replication(target, interval_seconds=0.02)
        for n in range(4):
            q.send(b"%d" % n, key="k")
            until(lambda n=n: len(points_of(target)) > n)  # type: ignore[misc]
    (target / lost).unlink()
    events: list[strictq.Event] = []
    with strictq.open(tmp_path / "queue", on_event=events.append) as q:
        q.send(b"4", key="k")
        until(lambda: is_shipped(q))
    (gap,) = [event for event in events if event.kind == "replication_gap"]
    assert "until the whole queue is shipped again" in gap.detail
    strictq.restore(target, tmp_path / "r")
    with strictq.open(tmp_path / "r", read_only=True) as r:
        assert r.stats().ready == 5


def test_the_command_reports_a_gap_and_heals_it(tmp_path: Path, target: Path) -> None:
    with strictq.open(tmp_path / "queue", durability="process") as q:
        q.configure_replication(target, interval_seconds=FAST)
        for n in range(3):
            q.send(b"%d" % n, key="k")
            until(lambda n=n: len(points_of(target)) > n)  # type: ignore[misc]
    (target / "0000000000000001.seg").unlink()
    said = in_process("replicate", tmp_path / "queue", "--once")
    assert said.exit_code == 1
    assert "segment 1 is missing" in said.output
    assert in_process("replicate", tmp_path / "queue", "--once").exit_code == 0
    assert in_process("replicas", target).exit_code == 0


def test_a_fork_does_not_share_the_shipper(q: Queue, target: Path) -> None:
    q.configure_replication(target, interval_seconds=FAST)
    q.send(b"1", key="k")
    until(lambda: is_shipped(q))
    pid = os.fork()
    if not pid:
        code = 1
        try:
            q.send(b"2", key="k")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    q.send(b"3", key="k")
    until(lambda: is_shipped(q))
    assert messages(target) == 3


# ---- a target that can't be reached


def test_a_target_that_is_away_for_a_while(q: Queue, target: Path, tmp_path: Path) -> None:
    q.configure_replication(target, interval_seconds=FAST)
    q.send(b"1", key="k")
    until(lambda: is_shipped(q))
    os.rename(target, tmp_path / "away")
    target.mkdir()  # as the place of a disk that is not mounted
    q.send(b"2", key="k")
    until(lambda: (status := q.replication()) is not None and status.last_error)
    status = q.replication()
    assert status is not None
    assert "not mounted" in str(status.last_error)
    assert status.lag_bytes
    assert not status.stopped
    q.send(b"3", key="k")
    target.rmdir()
    os.rename(tmp_path / "away", target)
    until(lambda: is_shipped(q))
    status = q.replication()
    assert status is not None
    assert status.last_error is None
    assert messages(target) == 3
    assert sum(DirectoryTarget(target).header(n).is_base for n in DirectoryTarget(target).numbers()) == 1


def test_a_target_that_is_away_too_long(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The WAL is not kept for it for ever; what it lacks is shipped whole."""
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.configure_replication(target, interval_seconds=FAST, max_lag_bytes=1 << 20)
        until(lambda: is_shipped(q))
        os.rename(target, tmp_path / "away")
        for n in range(60):
            q.send(os.urandom(50_000), key=f"k{n}")
        until(lambda: (status := q.replication()) is not None and status.lapsed)
        (d,) = q.receive(1)
        d.ack()
        os.rename(tmp_path / "away", target)
        until(lambda: is_shipped(q))
        status = q.replication()
        assert status is not None
        assert not status.lapsed
    assert messages(target) == 60 - 1


def test_a_queue_can_be_closed_while_its_target_is_away(tmp_path: Path, target: Path) -> None:
    q = strictq.open(tmp_path / "q", durability="process")
    q.configure_replication(target, interval_seconds=FAST)
    until(lambda: is_shipped(q))
    os.rename(target, tmp_path / "away")
    q.send(b"1", key="k")
    q.close()
    with strictq.open(tmp_path / "q", durability="process") as again:
        again.send(b"2", key="k")
    os.rename(tmp_path / "away", target)
    with strictq.open(tmp_path / "q", durability="process") as again:
        until(lambda: is_shipped(again))
    assert messages(target) == 2
    assert sum(DirectoryTarget(target).header(n).is_base for n in DirectoryTarget(target).numbers()) == 1


def test_a_full_disk_of_the_queue_comes_first(q: Queue, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica must not keep acks from what frees space."""
    q.configure_replication(target, interval_seconds=FAST)
    until(lambda: is_shipped(q))
    monkeypatch.setattr(type(q._storage), "short_of_space", True)
    q.send(b"1", key="k")
    until(lambda: (status := q.replication()) is not None and status.lapsed)
    monkeypatch.undo()
    q.send(b"2", key="k")
    until(lambda: is_shipped(q))
    assert messages(target) == 2


def test_shipping_that_must_not_go_on_stops_until_it_is_configured_again(tmp_path: Path, target: Path) -> None:
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.configure_replication(target, interval_seconds=FAST)
        until(lambda: is_shipped(q))
    shutil.copytree(tmp_path / "q", tmp_path / "copy")
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.send(b"1", key="k")
        until(lambda: is_shipped(q))
    with strictq.open(tmp_path / "copy", durability="process") as copy:
        copy.send(b"2", key="k")
        until(lambda: (status := copy.replication()) is not None and status.stopped)
        copy.send(b"3", key="k")
    assert messages(target) == 1
    with strictq.open(tmp_path / "copy", durability="process") as copy:
        status = copy.replication()
        assert status is not None
        assert status.stopped
        assert not status.shipping
        copy.configure_replication(tmp_path / "t2", interval_seconds=FAST)
        until(lambda: is_shipped(copy))
    assert messages(tmp_path / "t2") == 2
    assert messages(target) == 1


def test_an_unexpected_error_ends_the_thread_and_another_begins(
    disk: Opener, target: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    q = disk()
    calls = []

    def broken(self: ShipKeeper) -> float:
        calls.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(keeper, "BACKOFF_MAX_SECONDS", 5 * FAST)  # the rest before another thread begins
    with monkeypatch.context() as patched:
        patched.setattr(ShipKeeper, "step", broken)
        q.configure_replication(target, interval_seconds=FAST)
        until(lambda: calls)
    q.send(b"1", key="k")
    until(lambda: is_shipped(q))
    assert look(target).points


HANGING_AT_A_FORK = """
import os, sys, time
import strictq
from strictq.replication.keeper import ShipKeeper

q = strictq.open(sys.argv[1])
q.configure_replication(sys.argv[2], interval_seconds=0.05)
while not q.replication().shipping:
    time.sleep(0.01)
keepers = []
stop = ShipKeeper.stop
ShipKeeper.stop = lambda self, *, flush: keepers.append(self)  # it hangs in a call to its target
if (child := os.fork()) == 0:
    os._exit(keepers[0]._lock._fd is not None)
_, status = os.waitpid(child, 0)
assert keepers[0]._lock._fd is not None  # the parent's goes on
for keeper in keepers:
    stop(keeper, flush=False)
os._exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_does_not_hold_the_lock_of_a_keeper_that_hung_at_the_fork(tmp_path: Path) -> None:
    program = [sys.executable, "-c", HANGING_AT_A_FORK, str(tmp_path / "q"), str(tmp_path / "t")]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
