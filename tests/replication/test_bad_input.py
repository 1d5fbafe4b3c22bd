"""Bad input to replication: each is refused with a typed error that says what happened, what changed and what to do.

Afterwards nothing is lost: the queue sends and receives, what its target and its replica have is unchanged, and shipping goes on.

Tests of single parts have the rest: names and arguments in test_target, test_replica (a certificate, a stranger's bytes, two
copies that ship to one replica) and test_objects; segments, each damaged in its own way, in test_received (an older term, a newer
format); damaged targets and odd times in test_restoring; keys in test_keys; members of a chain in test_chain; a target that hangs
in test_bounded; a promotion without a majority in test_chain.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

import strictq
from strictq import (
    ConfigError,
    Diverged,
    Fenced,
    InvalidArgument,
    PrimaryAlive,
    Queue,
    QueueNotFound,
    ReadOnlyQueue,
    Replica,
    SchemaMismatch,
    StoreBusy,
    StrictqError,
    TargetUnavailable,
)
from strictq.replication import received
from strictq.replication.directory import DirectoryTarget
from strictq.replication.replica_home import FORMAT, STATE, ReplicaState
from strictq.testing import FakeClock
from tests.support.replicas import FAST, bodies, forget_contact, free_port, is_shipped, ship_to, token_file, until_level
from tests.support.shipping import ship_once, until

UNCHANGED = r"[Nn]othing was \w+|The queue itself is unharmed|There is no queue"
DO = r"must|needs|takes"


@attrs.frozen
class World:
    """A queue with messages "1" and "2", a living replica of it, and a directory to which it was shipped before."""

    place: Path
    q: Queue
    replica: Replica
    home: Path
    target: Path
    token: Path

    @property
    def address(self) -> str:
        return f"tcp://{self.replica.address}"

    def configure(self, target: str | Path, **options: object) -> None:
        self.q.configure_replication(target, **options)  # type: ignore[arg-type]

    def other(self, name: str = "other") -> Queue:
        """Another queue."""
        return strictq.open(self.place / name, durability="process")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    token = token_file(tmp_path)
    home = tmp_path / "home"
    with strictq.open(tmp_path / "q", durability="process", shards=2) as q:
        q.send(b"1", key="k")
        ship_once(q, tmp_path / "target").close()
        with Replica(home, token_file=token) as replica:
            ship_to(q, replica.address, token)
            q.send(b"2", key="k")
            until_level(q, home)
            yield World(tmp_path, q, replica, home, tmp_path / "target", token)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def require_told(error: StrictqError, says: str) -> None:
    """What happened, what changed (where the message does not say it, the error's class promises it), and what to do."""
    text = Exception.__str__(error)
    assert re.search(says, text), text
    assert re.search(UNCHANGED, f"{text}\n{type(error).__doc__}"), f"it does not say what changed: {text}"
    assert error.hint or re.search(DO, text), f"it does not say what to do: {text}"


# ---- where to ship to


def _scheme(w: World) -> None:
    w.configure("ftp://host/backup")


def _no_host(w: World) -> None:
    w.configure("tcp:7400", token_file=w.token)


def _no_port(w: World) -> None:
    w.configure("tcps://replica.example", token_file=w.token)


def _nothing(w: World) -> None:
    w.configure("")


def _no_bucket(w: World) -> None:
    w.configure("s3://")


def _file_elsewhere(w: World) -> None:
    w.configure("file://other-host/backup")


def _the_queue_itself(w: World) -> None:
    w.configure(w.q.path)


def _inside_the_queue(w: World) -> None:
    w.configure(Path(w.q.path) / "backup")


def _around_the_queue(w: World) -> None:
    w.configure(w.place)


def _another_queue(w: World) -> None:
    w.other().close()
    w.configure(w.place / "other")


def _target_of_another_queue(w: World) -> None:
    with w.other() as other:
        other.configure_replication(w.place / "theirs", interval_seconds=FAST)
    w.configure(w.place / "theirs")


def _target_of_another_history(w: World) -> None:
    w.configure(w.target)


def _replica_directory(w: World) -> None:
    w.configure(w.home)


def _a_file(w: World) -> None:
    (w.place / "file").write_text("x")
    w.configure(w.place / "file")


def _other_files(w: World) -> None:
    (w.place / "full").mkdir()
    (w.place / "full" / "letter.txt").write_text("x")
    w.configure(w.place / "full")


def _newer_target(w: World) -> None:
    place = w.place / "newer"
    place.mkdir()
    identity = {"format": 2, "queue_id": w.q.queue_id, "history_id": "0" * 32}
    (place / "replica.json").write_text(json.dumps(identity))
    w.configure(place)


def _damaged_target(w: World) -> None:
    place = w.place / "damaged"
    place.mkdir()
    (place / "replica.json").write_bytes(b"\xff{")
    w.configure(place)


def _gone(w: World) -> None:
    w.configure("/proc/strictq/backup")


def _nobody_listens(w: World) -> None:
    w.configure(f"tcp://127.0.0.1:{free_port()}", token_file=w.token)


def _a_stranger_listens(w: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            w.configure(f"tcp://127.0.0.1:{port}", token_file=w.token)
        finally:
            thread.join()


def _no_token(w: World) -> None:
    w.configure(w.address)


def _wrong_token(w: World) -> None:
    (w.place / "wrong").write_text("x" * 32)
    w.configure(w.address, token_file=w.place / "wrong")


def _missing_token(w: World) -> None:
    w.configure(w.address, token_file=w.place / "missing")


def _tls_without_tls(w: World) -> None:
    w.configure(f"tcps://{w.replica.address}", token_file=w.token)


def _missing_authority(w: World) -> None:
    w.configure(f"tcps://{w.replica.address}", token_file=w.token, authority=w.place / "missing.pem")


def _a_network_in_the_clear(w: World) -> None:
    w.configure("tcp://10.0.0.2:7400", token_file=w.token)


def _replica_of_another_queue(w: World) -> None:
    with w.other() as other:
        other.configure_replication(w.address, token_file=w.token)


def _replica_of_another_history(w: World) -> None:
    strictq.restore(w.target, w.place / "restored", alone=True)
    with strictq.open(w.place / "restored") as restored:
        restored.configure_replication(w.address, token_file=w.token)


def _another_key(w: World) -> None:
    (w.place / "secret").write_bytes(os.urandom(32))
    w.configure(w.address, token_file=w.token, key_file=w.place / "secret")


# ---- to restore, promote, merge and receive


def _restore_over_a_directory(w: World) -> None:
    (w.place / "there").mkdir()
    strictq.restore(w.target, w.place / "there")


def _restore_over_the_queue(w: World) -> None:
    strictq.restore(w.target, w.q.path)


def _restore_into_the_target(w: World) -> None:
    strictq.restore(w.target, w.target / "new")


def _restore_before_the_base(w: World) -> None:
    strictq.restore(w.target, w.place / "new", at=1.0)


def _restore_no_time(w: World) -> None:
    strictq.restore(w.target, w.place / "new", at=float("nan"))


def _restore_no_such_state(w: World) -> None:
    strictq.restore(w.target, w.place / "new", cut=99)


def _restore_from_nowhere(w: World) -> None:
    strictq.restore(w.place / "nowhere", w.place / "new")


def _restore_from_a_queue(w: World) -> None:
    strictq.restore(w.q.path, w.place / "new")


def _restore_from_a_living_replica(w: World) -> None:
    strictq.restore(w.address, w.place / "new")


def _restore_from_a_newer_target(w: World) -> None:
    (w.place / "newer").mkdir()
    (w.place / "newer" / "replica.json").write_text(json.dumps({"format": 2, "queue_id": "q", "history_id": "h"}))
    strictq.restore(w.place / "newer", w.place / "new")


def _promote_beside_the_primary(w: World) -> None:
    strictq.promote(w.home)


def _promote_a_queue(w: World) -> None:
    strictq.promote(w.q.path)


def _promote_nothing(w: World) -> None:
    strictq.promote(w.place / "nowhere")


def _write_to_the_replica(w: World) -> None:
    strictq.open(w.home)


def _merge_with_itself(w: World) -> None:
    strictq.merge(w.q.path, w.q.path)


def _merge_another_queue(w: World) -> None:
    w.other("one").close()
    w.other("two").close()
    strictq.merge(w.place / "one", w.place / "two")


def _merge_a_living_replica(w: World) -> None:
    w.other().close()
    strictq.merge(w.home, w.place / "other")


def _merge_nothing(w: World) -> None:
    w.other().close()
    strictq.merge(w.place / "nowhere", w.place / "other")


def _adopt_while_it_is_open(w: World) -> None:
    strictq.adopt(w.q.path)


def _adopt_a_living_replica(w: World) -> None:
    strictq.adopt(w.home)


def _receive_into_the_queue(w: World) -> None:
    Replica(w.q.path, token_file=w.token)


def _receive_into_other_files(w: World) -> None:
    Replica(w.place, token_file=w.token)


def _receive_twice(w: World) -> None:
    Replica(w.home, token_file=w.token)


def _receive_at_a_port_that_is_taken(w: World) -> None:
    Replica(w.place / "second", listen=w.replica.address, token_file=w.token)


def _receive_in_the_clear(w: World) -> None:
    Replica(w.place / "second", listen="0.0.0.0:0", token_file=w.token)


def _receive_for_another_queue(w: World) -> None:
    Replica(w.place / "second", token_file=w.token, queue_id="")


def _forward_to_a_directory(w: World) -> None:
    Replica(w.place / "second", token_file=w.token, forward_to="file:/backup")


def _a_newer_replica(w: World) -> None:
    home = w.place / "newer-home"
    with Replica(home, token_file=w.token):
        pass
    state = json.loads((home / STATE).read_bytes())
    (home / STATE).write_text(json.dumps(state | {"format": FORMAT + 1}))
    Replica(home, token_file=w.token)


def _members_of_nothing(w: World) -> None:
    strictq.members(w.q.path, token_file=w.token)


def _a_chain_of_strangers(w: World) -> None:
    with Replica(w.place / "second", token_file=w.token) as second:
        strictq.members(w.q.path, form=[w.address, f"tcp://{second.address}"], token_file=w.token)


def _configure_no_seconds(w: World) -> None:
    w.configure(w.address, token_file=w.token, interval_seconds=-1)


CASES: list[tuple[Callable[[World], None], type[StrictqError], str]] = [
    (_scheme, InvalidArgument, "does not support targets of the kind 'ftp'"),
    (_no_host, InvalidArgument, "has no host"),
    (_no_port, InvalidArgument, "must be HOST:PORT"),
    (_nothing, InvalidArgument, "must not be empty"),
    (_no_bucket, InvalidArgument, "has no bucket"),
    (_file_elsewhere, InvalidArgument, "is on this machine"),
    (_the_queue_itself, InvalidArgument, "must not contain each other"),
    (_inside_the_queue, InvalidArgument, "must not contain each other"),
    (_around_the_queue, InvalidArgument, "must not contain each other"),
    (_another_queue, InvalidArgument, "is a queue"),
    (_target_of_another_queue, Diverged, "replica of another queue"),
    (_target_of_another_history, Diverged, "another history"),
    (_replica_directory, InvalidArgument, "contains other files"),
    (_a_file, InvalidArgument, "is not a directory"),
    (_other_files, InvalidArgument, "contains other files"),
    (_newer_target, SchemaMismatch, "newer strictq"),
    (_damaged_target, TargetUnavailable, "is damaged"),
    (_gone, TargetUnavailable, "there is no directory"),
    (_nobody_listens, TargetUnavailable, "can't be reached"),
    (_a_stranger_listens, TargetUnavailable, "can't be reached"),
    (_no_token, InvalidArgument, "needs token_file"),
    (_wrong_token, TargetUnavailable, "does not accept this token"),
    (_missing_token, ConfigError, "token file"),
    (_tls_without_tls, TargetUnavailable, "can't be reached"),
    (_missing_authority, ConfigError, "can't be used"),
    (_a_network_in_the_clear, InvalidArgument, "without TLS"),
    (_replica_of_another_queue, Diverged, "replica of another queue"),
    (_replica_of_another_history, Diverged, "another history"),
    (_another_key, InvalidArgument, "key"),
    (_configure_no_seconds, InvalidArgument, "interval_seconds"),
    (_restore_over_a_directory, InvalidArgument, "exists"),
    (_restore_over_the_queue, InvalidArgument, "exists"),
    (_restore_into_the_target, InvalidArgument, "is inside the replica"),
    (_restore_before_the_base, InvalidArgument, "is before it"),
    (_restore_no_time, InvalidArgument, "seconds since 1970"),
    (_restore_no_such_state, InvalidArgument, "no state with the number 99"),
    (_restore_from_nowhere, QueueNotFound, "there is no directory"),
    (_restore_from_a_queue, InvalidArgument, "is not a replica"),
    (_restore_from_a_living_replica, InvalidArgument, "is a replica on another host"),
    (_restore_from_a_newer_target, SchemaMismatch, "newer strictq"),
    (_promote_beside_the_primary, PrimaryAlive, "last contact with the primary"),
    (_promote_a_queue, QueueNotFound, "there is no replica"),
    (_promote_nothing, QueueNotFound, "there is no replica"),
    (_write_to_the_replica, ReadOnlyQueue, "is .*replica that receives changes"),
    (_merge_with_itself, InvalidArgument, "are the same queue"),
    (_merge_another_queue, InvalidArgument, "are different queues"),
    (_merge_a_living_replica, ReadOnlyQueue, "is .*replica that receives changes"),
    (_merge_nothing, QueueNotFound, "there is no queue"),
    (_adopt_while_it_is_open, StoreBusy, "open"),
    (_adopt_a_living_replica, ReadOnlyQueue, "is .*replica that receives changes"),
    (_receive_into_the_queue, InvalidArgument, "is a queue"),
    (_receive_into_other_files, InvalidArgument, "contains other files"),
    (_receive_twice, StoreBusy, "another process is receiving"),
    (_receive_at_a_port_that_is_taken, ConfigError, "can't listen"),
    (_receive_in_the_clear, InvalidArgument, "without TLS"),
    (_receive_for_another_queue, InvalidArgument, "queue_id"),
    (_forward_to_a_directory, InvalidArgument, "is not a replica on another host"),
    (_a_newer_replica, SchemaMismatch, "newer strictq"),
    (_members_of_nothing, ConfigError, "is not a member of a chain"),
    (_a_chain_of_strangers, Diverged, "does not receive this history"),
]


@pytest.mark.parametrize(("bad", "error", "says"), CASES, ids=[case[0].__name__[1:] for case in CASES])
def test_it_is_refused_and_nothing_is_lost(
    bad: Callable[[World], None], error: type[StrictqError], says: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr("strictq._store.directories.ALONE_SECONDS", 0.05)
    before, configured = content(world.target), world.q.replication()
    assert configured is not None
    with pytest.raises(error) as e:
        bad(world)
    assert content(world.target) == before
    after = world.q.replication()
    assert after is not None
    assert (after.target, after.mode, after.history_id) == (configured.target, configured.mode, configured.history_id)
    world.q.send(b"3", key="k")
    until_level(world.q, world.home)
    assert bodies(world.home) == [b"1", b"2", b"3"]
    for d in world.q.receive(3):
        d.ack()
    assert world.q.stats().depth == 0
    assert world.q.check() == []
    require_told(e.value, says)


# ---- a target that goes bad while the queue ships to it


class BadTarget:
    """Lets puts to a directory fail, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
        self.place = place
        self.failing: Callable[[], object] | None = None
        self.met = threading.Event()
        self.released = threading.Event()
        real = DirectoryTarget._write

        def write(path: Path, data: bytes) -> None:
            if self.failing is not None and path.parent == place:
                self.met.set()
                self.failing()
            real(path, data)

        monkeypatch.setattr(DirectoryTarget, "_write", staticmethod(write))

    def full(self) -> None:
        self.failing = lambda: self._raise(errno.ENOSPC)

    def read_only(self) -> None:
        self.failing = lambda: self._raise(errno.EROFS)

    def slow(self) -> None:
        self.failing = self.released.wait

    def gone(self) -> None:
        self.place.rename(self.place.with_name("elsewhere"))
        self.met.set()

    def emptied(self) -> None:
        self.gone()
        self.place.mkdir()

    def mend(self) -> None:
        self.failing = None
        self.released.set()
        elsewhere = self.place.with_name("elsewhere")
        if elsewhere.exists():
            if self.place.exists():
                self.place.rmdir()
            elsewhere.rename(self.place)

    @staticmethod
    def _raise(number: int) -> None:
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("full", "No space left"),
        ("read_only", "Read-only file system"),
        ("gone", "no directory"),
        ("emptied", "was emptied, or its disk is not mounted"),
        ("slow", None),
    ],
)
def test_a_target_that_goes_bad_loses_nothing(
    kind: str, says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t"
    bad = BadTarget(monkeypatch, target)
    with strictq.open(tmp_path / "q", durability="process", shards=2) as q:
        q.send(b"1", key="k")
        q.configure_replication(target, interval_seconds=FAST)
        until(lambda: is_shipped(q))
        before = content(target)
        getattr(bad, kind)()
        q.send(b"2", key="k")
        assert bad.met.wait(60)
        if says is not None:
            until(lambda: (found := q.replication()) is not None and says in str(found.last_error))
        for n in range(3, 6):
            q.send(b"%d" % n, key="k")
        assert [d.body for d in q.receive(1, keys=["k"])] == [b"1"]
        if kind not in ("gone", "emptied"):
            assert {name: data for name, data in content(target).items() if not name.startswith(".")} == before
        bad.mend()
        until(lambda: is_shipped(q))
        q.detach()
    strictq.restore(target, tmp_path / "r", alone=True)
    assert bodies(tmp_path / "r") == [b"%d" % n for n in range(1, 6)]


def test_a_replica_whose_disk_is_full_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite

    def full(fd: int, data: bytes, at: int) -> int:
        if "/log-" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        world.q.send(b"3", key="k")
        until(lambda: (found := world.q.replication()) is not None and "disk is full" in str(found.last_error))
        assert bodies(world.home) == [b"1", b"2"]
        assert [d.body for d in world.q.receive(1)] == [b"1"]
    until_level(world.q, world.home)
    assert bodies(world.home) == [b"1", b"2", b"3"]


def test_a_replica_that_was_promoted_refuses_its_primary_and_the_primary_goes_on(world: World) -> None:
    """Its term is later than the primary's."""
    forget_contact(world.home)
    strictq.promote(world.home, force=True)
    until(lambda: (found := world.q.replication()) is not None and found.stopped)
    with pytest.raises(Fenced) as e:
        world.configure(world.address, token_file=world.token)
    require_told(e.value, "was promoted")
    world.q.send(b"3", key="k")
    assert [d.body for d in world.q.receive(5)] == [b"1", b"2", b"3"]
    with strictq.open(world.home) as promoted:
        assert [m.body for m in promoted.peek("k", 10)] == [b"1", b"2"]
        assert ReplicaState.read(world.home).term == 2


# ---- clocks that jump

DAY = 86_400.0


@pytest.mark.parametrize("side", ["primary", "replica"])
@pytest.mark.parametrize("seconds", [DAY, -DAY])
def test_a_wall_clock_that_jumps_moves_no_deadline(tmp_path: Path, side: str, seconds: float) -> None:
    """Leases, delays and how long the primary is silent go by the boot clocks of both hosts."""
    clocks = {"primary": FakeClock(), "replica": FakeClock(wall_seconds=1_650_000_000.0, boot_seconds=70.0)}
    token, home = token_file(tmp_path), tmp_path / "home"
    with (
        Replica(home, token_file=token, clock=clocks["replica"]) as replica,
        strictq.open(tmp_path / "q", durability="process", clock=clocks["primary"]) as q,
    ):
        q.send(b"leased", key="a")
        q.send(b"delayed", key="b", delay=60)
        ship_to(q, replica.address, token)
        clocks[side].jump_wall(seconds)
        q.receive(1, lease_seconds=60)
        q.send(b"after", key="c")
        until(lambda: is_shipped(q))
        sent = q.replication()
        assert sent is not None
        assert sent.segment is not None
        until(lambda: strictq.promote(home, dry_run=True, clock=clocks["replica"]).segment == sent.segment)
    clocks["replica"].advance(30)
    found = strictq.promote(home, dry_run=True, clock=clocks["replica"])
    assert found.silent_seconds is not None
    assert 29 < found.silent_seconds < 31
    strictq.promote(home, clock=clocks["replica"])
    with strictq.open(home, durability="process", clock=clocks["replica"]) as promoted:
        assert [d.body for d in promoted.receive(10, lease_seconds=3600)] == [b"after"]
        clocks["replica"].advance(35)
        assert sorted(d.body for d in promoted.receive(10)) == [b"delayed", b"leased"]
        assert promoted.check() == []
