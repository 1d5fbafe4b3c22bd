"""A replica that becomes a queue: when it may, what it has then, and what its primary is told."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import strictq
from strictq import (
    Diverged,
    Fenced,
    InvalidArgument,
    LeaseLost,
    PrimaryAlive,
    Queue,
    QueueNotFound,
    ReadOnlyQueue,
    Replica,
    ReplicaGap,
    StoreBusy,
    StoreFull,
)
from strictq.replication import promoting as module
from strictq.replication.promoting import promote
from strictq.replication.received import ReceivedSegments
from strictq.replication.replica_home import LOGS, LastContact, ReplicaState
from strictq.replication.restoring import look
from strictq.replication.segment import SegmentHeader, decode, encode
from strictq.testing import FakeClock
from tests.support.command import in_process
from tests.support.replicas import (
    bodies,
    forget_contact,
    free_port,
    receiving,
    segments,
    ship_to,
    until_applied,
    until_level,
)
from tests.support.running import ROOT, in_threads, until
from tests.support.shipping import ship_once


@pytest.fixture
def lost(q: Queue, home: Path, token: Path) -> Path:
    """A replica with two messages, whose primary was not heard of for an hour. Nobody receives for it."""
    with Replica(home, token_file=token) as opened:
        q.send(b"1", key="k")
        q.send(b"2", key="k")
        ship_to(q, opened.address, token)
        until_level(q, home)
        q.close()
    forget_contact(home)
    return home


def received(home: Path) -> list[bytes]:
    """What a promoted queue hands out, and that it works."""
    with strictq.open(home) as r:
        assert r.check() == []
        found = [d.body for d in r.receive(100)]
        r.send(b"new", key="new")
        return found


# ---- when it may


@pytest.mark.smoke
def test_a_promoted_replica_is_a_queue(lost: Path, q: Queue) -> None:
    done = strictq.promote(lost)
    assert (done.path, done.queue_id, done.term, done.missing_segments, done.alive) == (
        str(lost / "live"), q.queue_id, 2, 0, False,
    )  # fmt: skip
    assert done.silent_seconds == pytest.approx(3600, abs=60)
    with strictq.open(lost) as r:
        status = r.replication()
        assert status is not None
        assert (status.history_id, status.term, status.mode, status.target) == (done.history_id, 2, "off", "")
        assert r.path == done.path
    assert received(lost) == [b"1", b"2"]
    assert bodies(Path(done.path), "new") == [b"new"]


def test_a_dry_run_changes_nothing(lost: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(lost.rglob("*")) if path.is_file()}
    done = promote(lost, dry_run=True)
    assert (done.history_id, done.term, done.missing_segments, done.alive) == (None, 2, 0, False)
    assert done.at == pytest.approx(time.time(), abs=60)
    assert {path: path.read_bytes() for path in sorted(lost.rglob("*")) if path.is_file()} == before
    with pytest.raises(ReadOnlyQueue):
        strictq.open(lost)


def test_a_primary_that_was_heard_of_may_live(q: Queue, replica: Replica, home: Path, token: Path) -> None:
    q.send(b"1", key="k")
    ship_to(q, replica.address, token)
    until_level(q, home)
    assert promote(home, dry_run=True).alive
    with pytest.raises(PrimaryAlive, match="nothing was promoted") as e:
        promote(home)
    assert e.value.contact_at == pytest.approx(time.time(), abs=60)
    assert not replica.promoted
    q.send(b"2", key="k")
    until_level(q, home)
    done = promote(home, force=True)
    assert done.term == 2
    assert replica.promoted
    assert received(home) == [b"1", b"2"]


def test_a_primary_that_came_back_while_the_replica_was_handed_over(lost: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._report
    monkeypatch.setattr(module, "_report", lambda *a: attrs.evolve(real(*a), alive=len(seen) > 0 or bool(seen.append(1))))
    seen: list[int] = []
    with pytest.raises(PrimaryAlive):
        promote(lost)
    assert ReplicaState.read(lost).role == "replica"


def test_what_is_no_replica(tmp_path: Path, q: Queue, token: Path) -> None:
    for path in (tmp_path, tmp_path / "none", Path(q.path)):
        with pytest.raises(QueueNotFound):
            promote(path)
    for odd in (5, "", None):
        with pytest.raises(InvalidArgument):
            promote(odd)  # type: ignore[arg-type]
    Replica(tmp_path / "new", token_file=token).close()
    with pytest.raises(QueueNotFound, match="no complete state"):
        promote(tmp_path / "new")
    assert ReplicaState.read(tmp_path / "new").term == 1


def test_a_look_keeps_it_from_being_promoted(lost: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKS_SECONDS", 0.0)
    with strictq.open(lost, read_only=True), pytest.raises(StoreBusy, match="open for reading"):
        promote(lost)
    assert ReplicaState.read(lost).role == "replica"
    promote(lost)


def test_a_receiver_that_does_not_let_go(q: Queue, home: Path, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HAND_OVER_SECONDS", 0.3)
    with receiving(home) as receiver:
        ship_to(q, receiver.address, token)
        until_level(q, home)
        q.close()
        receiver.signal(signal.SIGSTOP)
        with pytest.raises(StoreBusy, match="does not close it") as e:
            promote(home, force=True)
        assert "strictq replica" in e.value.hint
        receiver.signal(signal.SIGCONT)
        monkeypatch.undo()
        assert promote(home, force=True).term == 2


def test_two_promotions_at_once_are_one(lost: Path) -> None:
    results = in_threads([lambda: promote(lost), lambda: promote(lost)])
    done = [r for r in results if not isinstance(r, StoreBusy)]
    assert done
    assert len({r.history_id for r in done}) == 1
    assert promote(lost).history_id == done[0].history_id
    assert ReplicaState.read(lost).term == 2


def test_a_request_that_a_killed_process_left_holds_nobody(lost: Path, q: Queue, token: Path) -> None:
    (lost / "promoting").touch()
    with Replica(lost, token_file=token) as replica:
        assert replica.receiving()
    assert promote(lost).term == 2


# ---- what it has


def test_what_was_confirmed_and_not_applied_is_there(q: Queue, home: Path, tmp_path: Path) -> None:
    """The process that receives is killed behind its confirmations; a later cut did not arrive whole."""
    from strictq.replication import shipper as shipping

    for n in range(4):
        q.send(b"%d" % n, key="k")
        ship_once(q, tmp_path / "t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipping, "PAGES_MAX", 5)
        q.send(os.urandom(60_000), key="k")
        ship_once(q, tmp_path / "t")
    data = segments(tmp_path / "t")
    replica = ReceivedSegments(home, strictq.SystemClock())
    replica.claim(q.queue_id, "f" * 32, "")
    replica.close()
    (home / LOGS[0]).write_bytes(b"".join(data[:6]) + data[6][:100])
    assert promote(home, dry_run=True).missing_segments == 2
    done = promote(home)
    assert (done.segment, done.missing_segments) == (3, 2)
    assert received(home) == [b"%d" % n for n in range(4)]
    assert [(home / name).stat().st_size for name in LOGS] == [0, 0]


def test_a_log_with_a_hole_promotes_nothing(lost: Path, q: Queue, tmp_path: Path) -> None:
    with strictq.open(tmp_path / "other") as other:
        ship_once(other, tmp_path / "t")
    header, parts = decode(segments(tmp_path / "t")[0], 0)
    known = ReplicaState.read(lost).applied
    assert known is not None
    n = known.n + 2
    later = encode(attrs.evolve(header, n=n, first=n, prev="0" * 64), [page for _, pages in parts for page in pages])
    (lost / LOGS[0]).write_bytes(later)
    with pytest.raises(ReplicaGap, match=f"segment {n - 1} is damaged"):
        promote(lost)
    with pytest.raises(ReadOnlyQueue):
        strictq.open(lost)


@pytest.mark.parametrize(("name", "named"), [("state.part", "state"), ("log-0", "log-0")])
def test_a_full_disk_names_the_file_that_failed(lost: Path, monkeypatch: pytest.MonkeyPatch, name: str, named: str) -> None:
    def full(call: str) -> Callable[..., Any]:
        real = getattr(os, call)

        def fails(fd: int, *rest: Any) -> Any:
            if isinstance(fd, int) and os.readlink(f"/proc/self/fd/{fd}").endswith(name):
                raise OSError(errno.ENOSPC, "full")
            return real(fd, *rest)

        return fails

    with monkeypatch.context() as patch:
        for call in ("write", "fsync", "ftruncate"):
            patch.setattr(os, call, full(call))
        with pytest.raises(StoreFull, match=rf"^{lost}/{named}: the disk is full"):
            strictq.promote(lost, force=True)
    strictq.promote(lost, force=True)
    with strictq.open(lost) as q:
        assert q.check() == []


def test_leases_of_the_primary_end_by_their_deadlines(q: Queue, home: Path, token: Path, replica: Replica) -> None:
    for key in ("a", "b"):
        q.send(key.encode(), key=key)
    (short,) = q.receive(1, lease_seconds=0.5)
    (long,) = q.receive(1, lease_seconds=3600)
    ship_to(q, replica.address, token)
    until_level(q, home)
    promote(home, force=True)
    with strictq.open(home) as r:
        (d,) = r.receive(10, wait=30)
        assert d.key == short.key
        assert d.token > max(short.token, long.token)
        assert d.token >> 40 == 1024
        assert d.attempt == 2  # it was started, as far as anybody knows
        assert r.stats().in_flight == 2
        assert r.receive(10) == []
        with pytest.raises(LeaseLost):
            r.delivery(short.handle).ack()
        r.delivery(long.handle).ack()  # its holder may come over
        assert r.check() == []


def test_leases_of_consumers_that_are_dead_end_at_once(q: Queue, home: Path, token: Path, replica: Replica) -> None:
    q.send(b"1", key="a")
    (before,) = q.receive(1, lease_seconds=3600)
    ship_to(q, replica.address, token)
    until_level(q, home)
    promote(home, force=True, dead=True)
    with strictq.open(home) as r:
        (d,) = r.receive(10)
        assert (d.body, d.attempt) == (b"1", 2)
        assert d.token > before.token


def test_time_goes_on_from_where_the_primary_was(q: Queue, home: Path, token: Path, replica: Replica) -> None:
    """Whatever the wall clock of the replica's host shows: delays and windows are as long as they were."""
    q.send(b"later", key="d", delay=3600)
    q.send(b"1", key="k", dedup_id="once")
    ship_to(q, replica.address, token)
    until_level(q, home)
    before = q._storage.now()
    promote(home, force=True)
    with strictq.open(home) as r:
        assert 0 <= r._storage.now() - before < 60_000_000
        assert r.stats().delayed == 1
        assert r.send(b"1", key="k", dedup_id="once").duplicate
    with strictq.open(home) as again:
        assert again._storage.now() - before < 60_000_000


@pytest.mark.parametrize(
    ("contact", "expected"),
    [
        (LastContact(1_000, 50, "here", 7), 1_100),  # the boot clock has moved by 100
        (LastContact(600, 50, "here", 7), 900),  # noted a moment before the last segment
        (LastContact(1_000, 50, "before the reboot", 7_000), 1_500),  # the wall clock by 500
        (LastContact(1_000, 50, "before the reboot", 9_000), 1_000),  # it was put back
        (None, 2_400),
    ],
)
def test_queue_time_by_the_clocks_of_the_replica(contact: LastContact | None, expected: int) -> None:
    applied = SegmentHeader("q", "h", 1, 0, 0, False, 0, -1, 0, 0, "", 900, 6_000, "b", 1, ())
    clock = types.SimpleNamespace(boot=lambda: 150, boot_id=lambda: "here", wall=lambda: 7_500)
    assert module._queue_time(applied, contact, clock) == expected  # type: ignore[arg-type]


def test_time_goes_on_by_the_wall_clock_after_a_reboot(lost: Path) -> None:
    clock = FakeClock()  # another boot id
    clock.jump_wall(time.time() - clock.wall() / 1e6 + 100)
    promote(lost, clock=clock)
    with strictq.open(lost, clock=clock) as r:
        assert r._storage.now() > 0
        assert len(r.receive(5)) == 2


# ---- its primary


def test_the_old_primary_is_refused(q: Queue, home: Path, token: Path, replica: Replica) -> None:
    q.send(b"1", key="k")
    ship_to(q, replica.address, token)
    until_level(q, home)
    promote(home, force=True)
    q.send(b"lost", key="k")
    until(lambda: (found := q.replication()) is not None and found.stopped)
    status = q.replication()
    assert status is not None
    assert "promoted" in str(status.last_error)
    with pytest.raises(Fenced, match="term 2") as e:
        q.configure_replication(f"tcp://{replica.address}", token_file=token)
    assert e.value.term == 2
    assert received(home) == [b"1"]


def test_the_old_primary_is_refused_when_the_receiver_is_started_again(lost: Path, q: Queue, token: Path, tmp_path: Path) -> None:
    promote(lost)
    with Replica(lost, token_file=token) as replica, strictq.open(tmp_path / "q") as old:
        assert replica.promoted
        with pytest.raises(Fenced):
            old.configure_replication(f"tcp://{replica.address}", token_file=token)
        assert received(lost) == [b"1", b"2"]  # it does not hold the queue


def test_an_idle_primary_learns_of_it_too(q: Queue, home: Path, token: Path, replica: Replica) -> None:
    ship_to(q, replica.address, token)
    until_level(q, home)
    promote(home, force=True)
    until(lambda: (found := q.replication()) is not None and found.stopped)


def test_a_promoted_queue_ships_to_a_new_replica(lost: Path, token: Path, tmp_path: Path) -> None:
    promote(lost)
    with Replica(tmp_path / "second", token_file=token) as second, strictq.open(lost, durability="process") as r:
        r.send(b"3", key="k")
        ship_to(r, second.address, token)
        until_level(r, tmp_path / "second")
        r.close()
    assert bodies(tmp_path / "second") == [b"1", b"2", b"3"]
    forget_contact(tmp_path / "second")
    assert promote(tmp_path / "second").term == 3
    with strictq.open(tmp_path / "second") as r:
        assert r.receive(1)[0].token >> 40 == 2048


def test_the_command_line_promotes_and_ships_on(lost: Path, tmp_path: Path) -> None:
    shown = in_process("promote", lost, "--dry-run").stdout
    assert "would be the queue" in shown
    assert "last contact" in shown
    assert "is the queue" in in_process("promote", lost).stdout
    for words in (("replicate", lost, "--to", tmp_path / "t", "--once"), ("stats", lost), ("check", lost)):
        assert in_process(*words).exit_code == 0, words
    assert in_process("replicate", tmp_path / "none", "--to", tmp_path / "t").exit_code == 2
    assert look(tmp_path / "t").points


def test_the_diverged_primary_can_not_ship_to_the_new_replica(
    q: Queue, home: Path, token: Path, replica: Replica, tmp_path: Path
) -> None:
    ship_to(q, replica.address, token)
    until_level(q, home)
    promote(home, force=True)
    with Replica(tmp_path / "second", token_file=token) as second:
        with strictq.open(home, durability="process") as r:
            ship_to(r, second.address, token)
        with pytest.raises(Diverged):
            q.configure_replication(f"tcp://{second.address}", token_file=token)


# ---- interruptions

PROMOTER = """
import os, signal, sys
import strictq

def kill(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

strictq.promote(sys.argv[1], force=True, on_step=kill)
"""


@pytest.mark.in_turn
@pytest.mark.parametrize("step", ["fenced", "applied", "finished", "promoted"])
def test_a_promotion_that_is_killed_is_finished_by_the_next(q: Queue, home: Path, token: Path, step: str) -> None:
    with receiving(home) as receiver:
        q.send(b"1", key="k")
        ship_to(q, receiver.address, token)
        until_level(q, home)
        killed = subprocess.run([sys.executable, "-c", PROMOTER, str(home), step], cwd=ROOT)
        assert killed.returncode == -signal.SIGKILL
        q.send(b"lost", key="k")
        until(lambda: (found := q.replication()) is not None and found.stopped)  # fenced from the first step on
        with pytest.raises(ReadOnlyQueue):
            strictq.open(home)
        with pytest.raises(StoreBusy, match="was interrupted"):
            strictq.open(home, read_only=True)
        begun = ReplicaState.read(home).promoted_as
        done = promote(home)  # without force: the primary was fenced already
        assert done.history_id == begun
        assert done.term == 2
    assert received(home) == [b"1"]


# ---- what is lost


def test_a_promotion_beside_a_living_primary_has_a_state_of_it(q: Queue, home: Path, token: Path, replica: Replica) -> None:
    """Forced while it writes: what the promoted queue has is a prefix of what was sent."""
    ship_to(q, replica.address, token)
    stop = threading.Event()

    def write() -> int:
        n = 0
        while not stop.is_set():
            q.send(b"%d" % n, key="k")
            n += 1
        return n

    def fail_over() -> None:
        try:
            until(lambda: promote(home, dry_run=True).segment > 20, "segments")
            promote(home, force=True)
        finally:
            stop.set()

    sent, failed = in_threads([write, fail_over])
    assert failed is None
    found = bodies(home / "live")
    assert found == [b"%d" % n for n in range(len(found))]
    assert 0 < len(found) <= sent


def test_the_directory_can_be_moved_and_started_elsewhere(lost: Path, tmp_path: Path, token: Path) -> None:
    shutil.move(lost, tmp_path / "moved")
    with Replica(tmp_path / "moved", listen=f"127.0.0.1:{free_port()}", token_file=token):
        until_applied(tmp_path / "moved", 0)
        assert bodies(tmp_path / "moved") == [b"1", b"2"]
