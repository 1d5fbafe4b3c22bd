"""Confirmed mode: what a call returned is on the replica, whatever is killed; and what can't be confirmed is not promised."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import (
    Fenced,
    InvalidArgument,
    LeaseLost,
    Message,
    NotConfirmed,
    OutcomeUnknown,
    PartialFailure,
    Queue,
    QueueConfig,
    Replica,
    StrictqError,
    TargetUnavailable,
)
from strictq.replication.directory import DirectoryTarget
from strictq.replication.promoting import promote
from strictq.replication.received import ReceivedSegments
from strictq.replication.replica_home import ReplicaState
from strictq.replication.target import Beat
from tests.support.replicas import Receiver, bodies, free_port, receiving
from tests.support.running import ROOT, in_threads, until

SLOW = 3600.0
"""No round is made unless a call wants one."""
TIMEOUT = 0.4


def confirm(q: Queue, address: str, token: Path, **options: Any) -> None:
    """Let the calls of the queue wait for the replica there."""
    q.configure_replication(
        f"tcp://{address}", "confirmed", token_file=token, **({"interval_seconds": SLOW} | options)
    )  # fmt: skip


@pytest.fixture
def receiver(home: Path) -> Iterator[Receiver]:
    with receiving(home) as started:
        yield started


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    config = QueueConfig(max_attempts=3, on_poison="dead_letter")
    with strictq.open(tmp_path / "q", durability="process", shards=3, config=config) as opened:
        opened.app_schema("CREATE TABLE IF NOT EXISTS app_done (id INTEGER PRIMARY KEY)")
        yield opened


@pytest.fixture
def confirmed(q: Queue, receiver: Receiver, token: Path) -> Queue:
    confirm(q, receiver.address, token)
    return q


_copies = itertools.count()


def lost(home: Path, receiver: Receiver, tmp_path: Path) -> Path:
    """The replica as it is at this moment, which is when the primary's host is lost, promoted."""
    copy = tmp_path / f"copy-{next(_copies)}"
    receiver.signal(signal.SIGSTOP)
    try:
        shutil.copytree(home, copy)
    finally:
        receiver.signal(signal.SIGCONT)
    promote(copy, force=True)
    return copy


# ---- what returned is there


def _send(q: Queue) -> None:
    q.send(b"new", key="new")


def _send_many(q: Queue) -> None:
    q.send_many([Message(b"%d" % n, key=f"many-{n}") for n in range(30)])


def _ack(q: Queue) -> None:
    q.receive(1, keys=["a"])[0].ack()


def _nack(q: Queue) -> None:
    q.receive(1, keys=["a"])[0].nack(delay=3600)


def _reject(q: Queue) -> None:
    q.receive(1, keys=["a"])[0].reject("no")


def _transaction(q: Queue) -> None:
    (d,) = q.receive(1, keys=["a"])
    with q.transaction(d) as tx:
        for n in range(6):
            tx.send(b"%d" % n, key=f"sent-{n}")
        tx.key_state = b"state"


def _sql(q: Queue) -> None:
    (d,) = q.receive(1, keys=["a"])
    with q.transaction(d) as tx:
        tx.run(lambda db: db.execute("INSERT INTO app_done VALUES (1)"))


def _extend(q: Queue) -> None:
    q.receive(1, keys=["a"], lease_seconds=1)[0].lease.extend(3600)


def _operate(q: Queue) -> None:
    q.hold("b", "why")
    q.receive(1, keys=["a"])[0].reject("no")
    q.redrive("a")
    q.purge("a")


def state(q: Queue) -> tuple[object, ...]:
    """What a queue has, as far as its consumers can tell."""
    keys = ["a", "b", "new", *(f"many-{n}" for n in range(30)), *(f"sent-{n}" for n in range(6))]
    peeked = [(m.key, m.seq, m.body, m.attempts) for key in keys for m in q.peek(key, 100)]
    held = [(key, q.explain(key).state, q.explain(key).token is not None) for key in keys if q.peek(key)]
    dead = [(d.key, d.seq, d.body) for d in q.dead_letters()]
    rows = [tuple(row) for row in q.query("SELECT id FROM app_done")]
    return peeked, held, dead, rows


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "call", [_send, _send_many, _ack, _nack, _reject, _transaction, _sql, _extend, _operate], ids=lambda call: call.__name__
)
def test_what_a_call_returned_is_on_the_replica(
    confirmed: Queue, home: Path, receiver: Receiver, tmp_path: Path, call: Callable[[Queue], None]
) -> None:
    confirmed.send_many([Message(b"%d" % n, key=key) for key in ("a", "b") for n in range(2)])
    call(confirmed)
    copy = lost(home, receiver, tmp_path)
    expected = state(confirmed)
    with strictq.open(copy, durability="process") as promoted:
        assert state(promoted) == expected
        assert promoted.check() == []


@pytest.mark.slow
@pytest.mark.smoke
def test_a_repeated_call_that_writes_nothing_waits_too(q: Queue, home: Path, token: Path, tmp_path: Path) -> None:
    """The first ack was committed and not confirmed: the second one, which finds it done, must not return before it is."""
    port = free_port()
    with receiving(home, f"127.0.0.1:{port}") as receiver:
        confirm(q, receiver.address, token, timeout_seconds=TIMEOUT)
        q.send(b"1", key="k", dedup_id="d")
        (d,) = q.receive(1)
    handle = d.handle
    with pytest.raises(NotConfirmed):
        d.ack()
    with pytest.raises(NotConfirmed):
        q.delivery(handle).ack()
    with pytest.raises(NotConfirmed):
        d.ack()
    with receiving(home, f"127.0.0.1:{port}") as receiver:
        until(lambda: _works(q.delivery(handle).ack))
        d.ack()
        copy = lost(home, receiver, tmp_path)
    assert bodies(copy / "live") == []


def test_a_repeated_transaction_waits_too(q: Queue, home: Path, token: Path, tmp_path: Path) -> None:
    port = free_port()
    with receiving(home, f"127.0.0.1:{port}") as receiver:
        confirm(q, receiver.address, token, timeout_seconds=TIMEOUT)
        q.send(b"1", key="k")
        (d,) = q.receive(1)
    for _ in range(2):
        with pytest.raises(NotConfirmed), q.transaction(d) as tx:
            tx.send(b"2", key="k2")

    def again() -> None:
        with q.transaction(d) as tx:
            tx.send(b"2", key="k2")

    with receiving(home, f"127.0.0.1:{port}") as receiver:
        until(lambda: _works(again))
        copy = lost(home, receiver, tmp_path)
    assert (bodies(copy / "live"), bodies(copy / "live", "k2")) == ([], [b"2"])


def test_threads_wait_together(confirmed: Queue, home: Path, receiver: Receiver, tmp_path: Path) -> None:
    before = segments(confirmed)
    results = in_threads([lambda n=n: [confirmed.send(b"%d" % i, key=f"t{n}") for i in range(25)] for n in range(8)])  # type: ignore[misc]
    assert not [r for r in results if isinstance(r, BaseException)]
    assert segments(confirmed) - before < 200
    copy = lost(home, receiver, tmp_path)
    for n in range(8):
        assert bodies(copy / "live", f"t{n}") == [b"%d" % i for i in range(25)]


def segments(q: Queue) -> int:
    """How many were shipped, as it is shown half a second later at most."""
    found = q.replication()
    assert found is not None
    return found.segment or 0


def test_an_empty_receive_does_not_wait(q: Queue, home: Path, token: Path) -> None:
    with receiving(home) as receiver:
        confirm(q, receiver.address, token, timeout_seconds=3600)  # longer than the test's limit
        q.send(b"1", key="k")
        q.receive(1)[0].ack()
    assert q.receive(1) == []


def test_a_directory_confirms(q: Queue, tmp_path: Path) -> None:
    q.configure_replication(tmp_path / "t", "confirmed", interval_seconds=SLOW)
    for n in range(3):
        q.send(b"%d" % n, key="k")
        strictq.restore(tmp_path / "t", tmp_path / f"r{n}", alone=True)
        assert bodies(tmp_path / f"r{n}") == [b"%d" % i for i in range(n + 1)]


def test_a_target_that_lets_names_be_overwritten_can_not_confirm(
    q: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryTarget, "is_write_once", lambda _self: False)
    with pytest.raises(InvalidArgument, match="can't confirm") as e:
        q.configure_replication(tmp_path / "t", "confirmed")
    assert e.value.hint_code == "confirms_not"
    assert q.replication() is None


# ---- without the replica


def test_without_its_replica_nothing_is_promised(q: Queue, home: Path, token: Path) -> None:
    port = free_port()
    with receiving(home, f"127.0.0.1:{port}") as receiver:
        confirm(q, receiver.address, token, timeout_seconds=TIMEOUT)
        q.send_many([Message(b"%d" % n, key="k") for n in range(3)])
        (d,) = q.receive(1)
    with pytest.raises(NotConfirmed, match="committed in this queue only") as e:
        q.send(b"late", key="late", dedup_id="d")
    assert isinstance(e.value, OutcomeUnknown)
    assert e.value.transient
    assert "Connection refused" in str(e.value)
    time.sleep(TIMEOUT)
    for call in (lambda: q.send(b"x", key="x"), lambda: q.send_many([Message(b"x", key="x")]), lambda: q.receive(1)):
        with pytest.raises((TargetUnavailable, PartialFailure), match=r"nothing was changed|refused"):
            call()
    assert q.peek("x") == []
    with pytest.raises(NotConfirmed):
        d.ack()
    assert [m.body for m in q.peek("k")] == [b"1", b"2"]
    assert q.check() == []
    with receiving(home, f"127.0.0.1:{port}"):
        until(lambda: _works(lambda: q.send(b"back", key="back")))
        d.ack()
        assert q.send(b"late", key="late", dedup_id="d").duplicate


def _works(call: Callable[[], object]) -> bool:
    try:
        call()
    except (NotConfirmed, TargetUnavailable):
        return False
    return True


def test_a_receive_that_is_not_confirmed_gives_its_leases_back(q: Queue, home: Path, token: Path) -> None:
    with receiving(home) as receiver:
        confirm(q, receiver.address, token, timeout_seconds=TIMEOUT)
        q.send_many([Message(b"%d" % n, key=f"k{n}") for n in range(6)])
    with pytest.raises(NotConfirmed):
        q.receive(10)
    stats = q.stats()
    assert (stats.in_flight, stats.ready) == (0, 6)
    q.detach(force=True)
    assert [d.attempt for d in q.receive(10)] == [1] * 6


def test_one_call_over_several_shards_fails_as_one(q: Queue, home: Path, token: Path) -> None:
    with receiving(home) as receiver:
        confirm(q, receiver.address, token, timeout_seconds=10 * TIMEOUT)
        q.send_many([Message(b"%d" % n, key=f"k{n}") for n in range(12)])
        received = q.receive(12)
        assert len({d.lease.shard for d in received}) == 3
    with pytest.raises(NotConfirmed):
        q.send_many([Message(b"x", key=f"x{n}") for n in range(12)])
    began = time.monotonic()
    with pytest.raises(NotConfirmed):
        q.ack_many(received)
    assert time.monotonic() - began < 30 * TIMEOUT, "the shards wait at the same time"
    assert q.stats().acks == 12


def test_the_queue_is_whole_when_its_replica_is_gone_for_good(q: Queue, home: Path, token: Path, tmp_path: Path) -> None:
    with receiving(home) as receiver:
        confirm(q, receiver.address, token, timeout_seconds=TIMEOUT)
        q.send(b"1", key="k")
    with pytest.raises(TargetUnavailable, match="nothing was changed") as e:
        q.detach()
    assert e.value.hint_code == "leave_confirmed"
    with pytest.raises(TargetUnavailable):
        q.configure_replication(tmp_path / "t")
    status = q.replication()
    assert status is not None
    assert status.mode == "confirmed"
    assert q.detach(force=True)
    q.send(b"2", key="k")
    assert ReplicaState.read(home).confirmed  # it was not told


# ---- the mode


def test_the_replica_knows_whether_calls_wait_for_it(confirmed: Queue, home: Path, receiver: Receiver, token: Path) -> None:
    confirmed.send(b"1", key="k")
    until(lambda: promote(home, dry_run=True).confirmed)
    confirmed.configure_replication(f"tcp://{receiver.address}", "async", token_file=token)
    assert not promote(home, dry_run=True).confirmed
    confirm(confirmed, receiver.address, token)
    until(lambda: promote(home, dry_run=True).confirmed)
    confirmed.detach()
    assert not promote(home, dry_run=True).confirmed


def test_what_a_late_shipper_says_of_the_mode_changes_nothing(home: Path) -> None:
    replica = ReceivedSegments(home, strictq.SystemClock())
    try:
        replica.claim("q", "h", "")
        replica.beat(Beat("q", "h", 1, 0, True, 4))
        assert ReplicaState.read(home).confirmed
        replica.beat(Beat("q", "h", 1, 0, False, 5))
        replica.beat(Beat("q", "h", 1, 0, True, 4))
        assert not ReplicaState.read(home).confirmed
    finally:
        replica.close()


def test_a_queue_that_was_open_before_waits_too(q: Queue, home: Path, receiver: Receiver, token: Path, tmp_path: Path) -> None:
    with strictq.open(q.path, durability="process") as other:
        other.send(b"0", key="k")
        confirm(q, receiver.address, token)
        for n in range(1, 5):
            other.send(b"%d" % n, key="k")
            copy = lost(home, receiver, tmp_path)
            assert bodies(copy / "live") == [b"%d" % i for i in range(n + 1)]


WRITER = """
import sys, time
import strictq
path, out = sys.argv[1:]
with strictq.open(path, durability="process") as q, open(out, "w", buffering=1) as log:
    n = 0
    while True:
        q.send(b"%d" % n, key="k")
        log.write(f"{n}\\n")
        n += 1
"""


def writing(path: str | Path, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(out)], cwd=ROOT)


def written(out: Path) -> int:
    return len(out.read_text().splitlines()) if out.exists() else 0


def test_counts_of_rounds_that_another_process_emptied_come_back(confirmed: Queue) -> None:
    """Two processes that open a queue at once may both make the file."""
    confirmed.send(b"1", key="k")
    with (Path(confirmed.path) / "ship-rounds").open("r+b") as file:
        file.write(bytes(40))
    confirmed.send(b"2", key="k")
    assert confirmed.stats().depth == 2


def test_another_process_waits_and_takes_over_from_one_that_was_killed(
    q: Queue, home: Path, receiver: Receiver, token: Path, tmp_path: Path
) -> None:
    confirm(q, receiver.address, token)
    out = [tmp_path / "out-0", tmp_path / "out-1"]
    first = writing(q.path, out[0])
    try:
        until(lambda: written(out[0]) > 20)
        q.close()  # the other process ships from now on
        before = written(out[0])
        until(lambda: written(out[0]) > before + 20)
        second = writing(q.path, out[1])
        try:
            until(lambda: written(out[1]) > 20)
            first.kill()
            first.wait()
            before = written(out[1])
            until(lambda: written(out[1]) > before + 20)
            confirmed = sum(map(written, out))
            copy = lost(home, receiver, tmp_path)
        finally:
            second.kill()
            second.wait()
    finally:
        first.kill()
        first.wait()
    assert len(bodies(copy / "live")) >= confirmed


def test_the_mode_outlives_every_process(q: Queue, home: Path, token: Path) -> None:
    """A shipper that ended, in whatever way, did not end confirmed mode."""
    with receiving(home) as receiver:
        confirm(q, receiver.address, token, timeout_seconds=TIMEOUT)
        q.send(b"1", key="k")
        q.close()
    with strictq.open(q.path, durability="process") as again, pytest.raises(NotConfirmed):
        again.send(b"2", key="k")


@pytest.mark.parametrize("odd", ["", "sync", None, 5])
def test_odd_modes(q: Queue, tmp_path: Path, odd: Any) -> None:
    with pytest.raises(InvalidArgument, match="'async' or 'confirmed'"):
        q.configure_replication(tmp_path / "t", odd)
    with pytest.raises(InvalidArgument, match="timeout_seconds"):
        q.configure_replication(tmp_path / "t", "confirmed", timeout_seconds=0)
    assert q.replication() is None


# ---- fenced


def test_behind_a_promotion_nothing_is_confirmed(q: Queue, home: Path, token: Path, tmp_path: Path) -> None:
    """Promoted while it writes: what returned before is there, and nothing returns afterwards, also after a restart."""
    with Replica(home, token_file=token) as replica:
        confirm(q, replica.address, token, timeout_seconds=5)
        stop = threading.Event()
        returned: list[int] = []

        def write() -> type[StrictqError] | None:
            for n in itertools.count():
                try:
                    q.send(b"%d" % n, key="k")
                except StrictqError as e:
                    return type(e)
                returned.append(n)
                if stop.is_set():
                    return None
            return None

        def fail_over() -> None:
            until(lambda: len(returned) > 20)
            promote(home, force=True)

        failed, promoted = in_threads([write, fail_over])
        stop.set()
        assert promoted is None
        assert failed in (NotConfirmed, Fenced, TargetUnavailable)
        found = bodies(home / "live")
        assert len(found) >= len(returned)
        until(lambda: (status := q.replication()) is not None and status.mode == "fenced")
        (depth,) = (q.stats().depth,)
        for call in (lambda: q.send(b"x", key="x"), lambda: q.receive(1), lambda: q.hold("k", "why")):
            with pytest.raises(Fenced, match="nothing was changed"):
                call()
        assert q.stats().depth == depth
        q.close()
        with strictq.open(q.path, durability="process") as again:
            with pytest.raises(Fenced):
                again.send(b"x", key="x")
            with pytest.raises(Fenced):
                again.configure_replication(tmp_path / "t")
            with pytest.raises(Fenced):
                again.detach()
            assert again.check() == []
            assert again.detach(force=True)
            again.send(b"x", key="x")


def test_a_consumer_of_the_old_primary_can_not_ack(q: Queue, home: Path, token: Path) -> None:
    with Replica(home, token_file=token) as replica:
        confirm(q, replica.address, token, timeout_seconds=5)
        q.send(b"1", key="k")
        (d,) = q.receive(1)
        promote(home, force=True)
        with pytest.raises((NotConfirmed, Fenced)):
            d.ack()
        with strictq.open(home, durability="process") as promoted:
            assert promoted.receive(1) == []  # its lease lasts until the deadline
            assert [m.body for m in promoted.peek("k")] == [b"1"]


def test_a_token_of_the_old_primary_is_refused_by_the_new_queue(confirmed: Queue, home: Path, receiver: Receiver) -> None:
    confirmed.send(b"1", key="k")
    (d,) = confirmed.receive(1, lease_seconds=0.2)
    handle = d.handle
    promote(home, force=True, dead=True)
    with strictq.open(home, durability="process") as promoted:
        (new,) = promoted.receive(1)
        assert new.token > d.token
        with pytest.raises(LeaseLost):
            promoted.delivery(handle).ack()
        new.ack()
