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
from tests.support.running import PATIENCE_SECONDS, until
from tests.support.shipping import ship_once

NEWER = json.dumps({"format": 2, "queue_id": "q", "history_id": "0" * 32}).encode()
"""The identity of a target of a newer version."""
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

    def ship(self, target: str, **options: object) -> None:
        """Configure a replica on another host as the target."""
        self.configure(target, token_file=self.token, **options)

    def restore(self, source: str | Path, **options: float) -> None:
        strictq.restore(source, self.place / "new", **options)  # type: ignore[arg-type]

    def receive(self, home: str | Path = "second", **options: str) -> Replica:
        """Begin to receive in a directory; relative to `place`."""
        return Replica(self.place / home, token_file=self.token, **options)

    def other(self, name: str = "other") -> Queue:
        """Another queue."""
        return strictq.open(self.place / name, durability="process")

    def closed(self, name: str = "other") -> Path:
        """The directory of another queue."""
        self.other(name).close()
        return self.place / name

    def written(self, name: str, data: bytes) -> Path:
        """A new file."""
        file = self.place / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        return file


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


# ---- what is refused, and takes more than a call


def _target_of_another_queue(w: World) -> None:
    with w.other() as other:
        other.configure_replication(w.place / "theirs", interval_seconds=FAST)
    w.configure(w.place / "theirs")


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
            w.ship(f"tcp://127.0.0.1:{port}")
        finally:
            thread.join()


def _replica_of_another_queue(w: World) -> None:
    with w.other() as other:
        other.configure_replication(w.address, token_file=w.token)


def _replica_of_another_history(w: World) -> None:
    strictq.restore(w.target, w.place / "restored", alone=True)
    with strictq.open(w.place / "restored") as restored:
        restored.configure_replication(w.address, token_file=w.token)


def _a_newer_replica(w: World) -> None:
    home = w.place / "newer-home"
    with Replica(home, token_file=w.token):
        pass
    state = json.loads((home / STATE).read_bytes())
    (home / STATE).write_text(json.dumps(state | {"format": FORMAT + 1}))
    Replica(home, token_file=w.token)


def _a_chain_of_strangers(w: World) -> None:
    with w.receive() as second:
        strictq.members(w.q.path, form=[w.address, f"tcp://{second.address}"], token_file=w.token)


CASES: list[tuple[str, Callable[[World], object], type[StrictqError], str]] = [
    ("scheme", lambda w: w.configure("ftp://host/backup"), InvalidArgument, "does not support targets of the kind 'ftp'"),
    ("no host", lambda w: w.ship("tcp:7400"), InvalidArgument, "has no host"),
    ("no port", lambda w: w.ship("tcps://replica.example"), InvalidArgument, "must be HOST:PORT"),
    ("nothing", lambda w: w.configure(""), InvalidArgument, "must not be empty"),
    ("no bucket", lambda w: w.configure("s3://"), InvalidArgument, "has no bucket"),
    ("file elsewhere", lambda w: w.configure("file://other-host/backup"), InvalidArgument, "is on this machine"),
    ("the queue itself", lambda w: w.configure(w.q.path), InvalidArgument, "must not contain each other"),
    ("inside the queue", lambda w: w.configure(Path(w.q.path) / "backup"), InvalidArgument, "must not contain each other"),
    ("around the queue", lambda w: w.configure(w.place), InvalidArgument, "must not contain each other"),
    ("another queue", lambda w: w.configure(w.closed()), InvalidArgument, "is a queue"),
    ("target of another queue", _target_of_another_queue, Diverged, "replica of another queue"),
    ("target of another history", lambda w: w.configure(w.target), Diverged, "another history"),
    ("replica directory", lambda w: w.configure(w.home), InvalidArgument, "contains other files"),
    ("a file", lambda w: w.configure(w.written("file", b"x")), InvalidArgument, "is not a directory"),
    ("other files", lambda w: w.configure(w.written("full/letter.txt", b"x").parent), InvalidArgument, "contains other files"),
    ("newer target", lambda w: w.configure(w.written("newer/replica.json", NEWER).parent), SchemaMismatch, "newer strictq"),
    (
        "damaged target",
        lambda w: w.configure(w.written("damaged/replica.json", b"\xff{").parent),
        TargetUnavailable,
        "is damaged",
    ),
    ("gone", lambda w: w.configure("/proc/strictq/backup"), TargetUnavailable, "there is no directory"),
    ("nobody listens", lambda w: w.ship(f"tcp://127.0.0.1:{free_port()}"), TargetUnavailable, "can't be reached"),
    ("a stranger listens", _a_stranger_listens, TargetUnavailable, "can't be reached"),
    ("no token", lambda w: w.configure(w.address), InvalidArgument, "needs token_file"),
    (
        "wrong token",
        lambda w: w.configure(w.address, token_file=w.written("wrong", b"x" * 32)),
        TargetUnavailable,
        "does not accept this token",
    ),
    ("missing token", lambda w: w.configure(w.address, token_file=w.place / "missing"), ConfigError, "token file"),
    ("tls without tls", lambda w: w.ship(f"tcps://{w.replica.address}"), TargetUnavailable, "can't be reached"),
    (
        "missing authority",
        lambda w: w.ship(f"tcps://{w.replica.address}", authority=w.place / "missing.pem"),
        ConfigError,
        "can't be used",
    ),
    ("a network in the clear", lambda w: w.ship("tcp://10.0.0.2:7400"), InvalidArgument, "without TLS"),
    ("replica of another queue", _replica_of_another_queue, Diverged, "replica of another queue"),
    ("replica of another history", _replica_of_another_history, Diverged, "another history"),
    ("another key", lambda w: w.ship(w.address, key_file=w.written("secret", os.urandom(32))), InvalidArgument, "key"),
    ("configure no seconds", lambda w: w.ship(w.address, interval_seconds=-1), InvalidArgument, "interval_seconds"),
    (
        "restore over a directory",
        lambda w: strictq.restore(w.target, w.written("there/file", b"x").parent),
        InvalidArgument,
        "exists",
    ),
    ("restore over the queue", lambda w: strictq.restore(w.target, w.q.path), InvalidArgument, "exists"),
    ("restore into the target", lambda w: strictq.restore(w.target, w.target / "new"), InvalidArgument, "is inside the replica"),
    ("restore before the base", lambda w: w.restore(w.target, at=1.0), InvalidArgument, "is before it"),
    ("restore no time", lambda w: w.restore(w.target, at=float("nan")), InvalidArgument, "seconds since 1970"),
    ("restore no such state", lambda w: w.restore(w.target, cut=99), InvalidArgument, "no state with the number 99"),
    ("restore from nowhere", lambda w: w.restore(w.place / "nowhere"), QueueNotFound, "there is no directory"),
    ("restore from a queue", lambda w: w.restore(w.q.path), InvalidArgument, "is not a replica"),
    ("restore from a living replica", lambda w: w.restore(w.address), InvalidArgument, "is a replica on another host"),
    (
        "restore from a newer target",
        lambda w: w.restore(w.written("newer/replica.json", NEWER).parent),
        SchemaMismatch,
        "newer strictq",
    ),
    ("promote beside the primary", lambda w: strictq.promote(w.home), PrimaryAlive, "last contact with the primary"),
    ("promote a queue", lambda w: strictq.promote(w.q.path), QueueNotFound, "there is no replica"),
    ("promote nothing", lambda w: strictq.promote(w.place / "nowhere"), QueueNotFound, "there is no replica"),
    ("write to the replica", lambda w: strictq.open(w.home), ReadOnlyQueue, "is .*replica that receives changes"),
    ("merge with itself", lambda w: strictq.merge(w.q.path, w.q.path), InvalidArgument, "are the same queue"),
    ("merge another queue", lambda w: strictq.merge(w.closed("one"), w.closed("two")), InvalidArgument, "are different queues"),
    ("merge a living replica", lambda w: strictq.merge(w.home, w.closed()), ReadOnlyQueue, "is .*replica that receives changes"),
    ("merge nothing", lambda w: strictq.merge(w.place / "nowhere", w.closed()), QueueNotFound, "there is no queue"),
    ("adopt while it is open", lambda w: strictq.adopt(w.q.path), StoreBusy, "open, in this process or another"),
    ("adopt a living replica", lambda w: strictq.adopt(w.home), ReadOnlyQueue, "is .*replica that receives changes"),
    ("receive into the queue", lambda w: w.receive(w.q.path), InvalidArgument, "is a queue"),
    ("receive into other files", lambda w: w.receive("."), InvalidArgument, "contains other files"),
    ("receive twice", lambda w: w.receive(w.home), StoreBusy, "another process is receiving"),
    ("receive at a port that is taken", lambda w: w.receive(listen=w.replica.address), ConfigError, "can't listen"),
    ("receive in the clear", lambda w: w.receive(listen="0.0.0.0:0"), InvalidArgument, "without TLS"),
    ("receive for another queue", lambda w: w.receive(queue_id=""), InvalidArgument, "queue_id"),
    (
        "forward to a directory",
        lambda w: w.receive(forward_to="file:/backup"),
        InvalidArgument,
        "is not a replica on another host",
    ),
    ("a newer replica", _a_newer_replica, SchemaMismatch, "newer strictq"),
    ("members of nothing", lambda w: strictq.members(w.q.path, token_file=w.token), ConfigError, "is not a member of a chain"),
    ("a chain of strangers", _a_chain_of_strangers, Diverged, "does not receive this history"),
]


@pytest.mark.parametrize(("bad", "error", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_it_is_refused_and_nothing_is_lost(
    bad: Callable[[World], None], error: type[StrictqError], says: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr("strictq._store.disk.locks.ALONE_SECONDS", 0.05)
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
        assert bad.met.wait(PATIENCE_SECONDS)
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


def test_a_restore_from_nowhere_has_one_hint(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound) as caught:
        strictq.restore(tmp_path / "nowhere", tmp_path / "out")
    assert str(caught.value) == f"there is no directory {tmp_path / 'nowhere'} ({caught.value.hint})"
