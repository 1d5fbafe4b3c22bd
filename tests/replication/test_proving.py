"""A replica that promotes copies of itself: what it reports, what it notices, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from strictq import InvalidArgument, Queue, Replica
from strictq.replication import proving, replica_log
from strictq.replication.promoting import promote
from strictq.replication.replica_home import LOGS, is_received_for, read_proof
from tests.support import injection
from tests.support.command import in_process
from tests.support.replicas import bodies, ship_to, until_level
from tests.support.running import PATIENCE_SECONDS, until

HOUR = 3600.0


class LaterClock(strictq.SystemClock):
    """This machine's clock, so that readers of live/ know its boot; the time can be let pass."""

    def __init__(self) -> None:
        self.passed = 0

    def boot(self) -> int:
        return super().boot() + self.passed

    def advance(self, seconds: float) -> None:
        self.passed += int(seconds * 1_000_000)


@pytest.fixture
def clock() -> LaterClock:
    return LaterClock()


@pytest.fixture
def replica(home: Path, token: Path, clock: LaterClock) -> Iterator[Replica]:
    with Replica(home, token_file=token, clock=clock) as opened:
        yield opened


def proved(replica: Replica, clock: LaterClock, seconds: float = HOUR) -> strictq.ReplicaProof:
    """Let this time pass, and return the result of the proof that is then due."""
    before = replica.proof
    clock.advance(seconds)
    until(lambda: replica.proof is not before)
    return replica.proof


def copies(home: Path) -> list[Path]:
    return list(home.glob(f"{proving.SCRATCH}*"))


def test_a_replica_proves_that_it_can_be_promoted(q: Queue, replica: Replica, home: Path, token: Path, clock: LaterClock) -> None:
    assert replica.proof == strictq.ReplicaProof()
    q.send(b"1", key="k")
    ship_to(q, replica.address, token)
    until_level(q, home)
    first = proved(replica, clock, proving.FIRST_SECONDS)
    assert first.error is None
    shipped = q.replication()
    assert shipped is not None
    assert (first.segment, first.state_at) == (shipped.segment, shipped.confirmed_at)
    q.send(b"2", key="k")
    until_level(q, home)
    second = proved(replica, clock)
    assert first.segment is not None
    assert second.segment is not None
    assert second.segment > first.segment
    assert replica.error is None
    until(lambda: not copies(home))
    assert bodies(home) == [b"1", b"2"]
    with strictq.open(home, read_only=True) as r:
        status = r.replication()
    assert status is not None
    assert status.proof == second
    assert read_proof(home) == second


def test_an_empty_replica_has_nothing_to_prove(q: Queue, replica: Replica, home: Path, token: Path, clock: LaterClock) -> None:
    clock.advance(HOUR)
    ship_to(q, replica.address, token)
    until(lambda: replica.proof.at is not None)
    assert replica.proof.error is None


def test_a_damaged_page_is_noticed_and_shown(
    q: Queue, replica: Replica, home: Path, token: Path, clock: LaterClock, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(100):
        q.send(b"x" * 1000, key=f"k{n}")
    ship_to(q, replica.address, token)
    until_level(q, home)
    good = proved(replica, clock)
    replica.close()  # the log is empty then: nothing can replace the damaged pages
    injection.damage_pages(home / "live" / "shard-0000.db")
    with Replica(home, token_file=token, clock=clock) as again:
        found = proved(again, clock)
        assert found.error
        assert (found.at, found.segment) == (good.at, good.segment)
        assert again.error == f"it could not be promoted: {found.error}"
        assert "could not be promoted" in caplog.text
        assert read_proof(home) == found
        q.configure_replication(f"tcp://{again.address}", token_file=token, interval_seconds=0.02)
        q.send(b"later", key="k")
        until_level(q, home)  # it goes on receiving
    result = in_process("alarm", home, "--dead", 100, "--json")
    assert result.exit_code == 1
    assert found.error in result.stdout
    assert "could not be promoted" in in_process("stats", home).stdout


def test_a_damaged_last_segment_is_noticed(q: Queue, home: Path, token: Path, clock: LaterClock) -> None:
    with Replica(home, token_file=token, clock=clock) as replica:
        ship_to(q, replica.address, token)
        q.send(b"1", key="k")
        until_level(q, home)
        sizes = [(home / name).stat().st_size for name in LOGS]
        last = q.replication()
        assert last is not None
        path = home / LOGS[0]
        assert sizes[1] == 0
        with path.open("r+b") as file:
            file.seek(-1, 2)
            byte = file.read(1)
            file.seek(-1, 2)
            file.write(bytes([byte[0] ^ 1]))
        found = proved(replica, clock)
        assert found.error is not None
        assert f"segment {last.segment}, which was received, is damaged" in found.error


def test_a_proof_while_changes_arrive_has_them(
    q: Queue, replica: Replica, home: Path, token: Path, clock: LaterClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of live/ mixes pages of before and after changes, and the log drops nothing meanwhile."""
    monkeypatch.setattr(replica_log, "ROTATE_BYTES", 1 << 14)
    ship_to(q, replica.address, token)
    until_level(q, home)

    def send_more(step: int) -> None:
        if step % 2 == 0:  # a file was copied
            for n in range(20):
                q.send(b"x" * 500, key=f"{step}-{n}")
            until_level(q, home)

    injection.before_each_step_of_a_copy(monkeypatch, send_more)
    found = proved(replica, clock)
    shipped = q.replication()
    assert shipped is not None
    assert (found.error, found.segment) == (None, shipped.segment)


@pytest.mark.parametrize("end", ["close", "promote"])
def test_the_end_of_a_replica_ends_a_proof(
    q: Queue, replica: Replica, home: Path, token: Path, clock: LaterClock, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    q.send(b"1", key="k")
    ship_to(q, replica.address, token)
    until_level(q, home)
    running = threading.Event()
    interrupted = threading.Event()

    class Checked:
        """A check that would take for ever."""

        @property
        def reports(self) -> Checked:
            return self

        def check(self, *, fix: bool) -> list[strictq.Problem]:
            assert not fix
            running.set()
            assert interrupted.wait(PATIENCE_SECONDS)
            return [strictq.Problem(0, "unreadable", "interrupted")]

        def interrupt(self) -> None:
            interrupted.set()

        def close(self) -> None:
            pass

    monkeypatch.setattr(proving.api.Storage, "open", lambda *_, **__: Checked())
    clock.advance(HOUR)
    assert running.wait(PATIENCE_SECONDS)
    assert is_received_for(home)
    if end == "close":
        replica.close()
        assert not copies(home)
    else:
        monkeypatch.undo()
        q.close()
        promote(home, force=True)
        assert bodies(home) == [b"1"]
    assert interrupted.is_set()
    assert replica.proof == strictq.ReplicaProof()
    assert read_proof(home) == strictq.ReplicaProof()


def test_a_check_is_interrupted(q: Queue) -> None:
    running = threading.Event()
    said: list[BaseException] = []

    def look() -> None:
        try:
            injection.read_for_ever(q, running.set)
        except strictq.StrictqError as e:
            said.append(e)

    thread = threading.Thread(target=look)
    thread.start()
    assert running.wait(PATIENCE_SECONDS)

    def ended() -> bool:
        q._storage.interrupt()
        thread.join(0.01)
        return not thread.is_alive()

    until(ended)
    assert said
    assert q.check() == []


def test_without_space_nothing_is_copied(
    q: Queue, replica: Replica, home: Path, token: Path, clock: LaterClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship_to(q, replica.address, token)
    until_level(q, home)
    monkeypatch.setattr(proving.files, "free_bytes", lambda _path: 1)
    found = proved(replica, clock)
    assert found.error is not None
    assert "free bytes" in found.error
    monkeypatch.undo()
    assert proved(replica, clock).error is None
    assert replica.error is None


def test_a_copy_that_a_killed_process_left_is_removed(home: Path, token: Path) -> None:
    Replica(home, token_file=token).close()
    (home / f"{proving.SCRATCH}0" / "live").mkdir(parents=True)
    Replica(home, token_file=token).close()
    assert not copies(home)


def test_an_interval_that_is_refused(home: Path, token: Path) -> None:
    with pytest.raises(InvalidArgument, match="verify_seconds"):
        Replica(home, token_file=token, verify_seconds=0.5)
