"""A backup is one state of a queue in use, over all its shards, or nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strictq
from strictq import BackedUp, ConfigError, InvalidArgument, LeaseLost, Message, Queue, QueueClosed, StoreBusy, StoreError
from tests.support.checker import check
from tests.support.command import in_process
from tests.support.history import Event, Recorder
from tests.support.recorded import SCHEMA, Recorded
from tests.support.running import PATIENCE_SECONDS, ROOT
from tests.support.shipping import begin_tasks, pass_on, problems_of

TASKS = 40
ROUNDS = 4
KEYS = ("a", "b", "c", 4, b"5")


def bodies(path: Path, key: str = "k") -> list[bytes]:
    with strictq.open(path, read_only=True) as q:
        return [m.body for m in q.peek(key)]


def beside(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with strictq.open(tmp_path / "q", durability="process", shards=2) as opened:
        yield opened


# ---- what a copy is


@pytest.mark.smoke
def test_a_copy_is_read_as_it_is_and_adopted_to_be_used(q: Queue, tmp_path: Path) -> None:
    q.app_schema("CREATE TABLE app_seen (n INTEGER)")
    with q.transaction(key="k") as tx:
        tx.key_state = b"state"
        tx.execute("INSERT INTO app_seen VALUES (7)")
    q.configure(max_attempts=7)
    q.send(b"1", key="k")
    done = q.backup(tmp_path / "copy")
    q.send(b"2", key="k")
    assert (done.path, done.queue_id) == (str(tmp_path / "copy"), q.queue_id)
    assert done.copied_bytes % 4096 == 0 < done.copied_bytes
    with strictq.open(tmp_path / "copy", read_only=True) as copy:
        assert [m.body for m in copy.peek("k")] == [b"1"]
        assert copy.query("SELECT n FROM app_seen") == [(7,)]
        assert (copy.config.max_attempts, copy.shards, copy.durability) == (7, 2, "process")
        assert copy.check() == []
        assert copy.replication() is None or copy.replication().mode == "waiting"  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="original may still be in service") as refused:
        strictq.open(tmp_path / "copy")
    assert "strictq adopt" in (refused.value.hint or "")
    adopted = strictq.adopt(tmp_path / "copy")
    assert adopted.copied_history_id == done.history_id != adopted.history_id
    with strictq.open(tmp_path / "copy") as copy:
        (d,) = copy.receive()
        assert (d.body, d.seq, d.key_state) == (b"1", 1, b"state")
        assert copy.send(b"3", key="k").seq == 2
        assert copy.check() == []


def test_only_the_owner_may_read_a_copy(q: Queue, tmp_path: Path) -> None:
    q.backup(tmp_path / "new" / "copy")
    copy = tmp_path / "new" / "copy"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in copy.iterdir()} == {0o600}
    assert beside(tmp_path / "new") == ["copy"]


def test_no_old_token_settles_anything_in_an_adopted_copy(q: Queue, tmp_path: Path) -> None:
    q.send_many([Message(b"%d" % n, key="k") for n in range(3)])
    old = q.receive(lease_seconds=10_000)[0]
    q.backup(tmp_path / "copy")
    strictq.adopt(tmp_path / "copy")
    with strictq.open(tmp_path / "copy") as copy:
        with pytest.raises(LeaseLost):
            copy.delivery(old.handle).ack()
        again = copy.receive()[0]  # the lease of the original does not hold here
        assert (again.body, again.seq) == (old.body, old.seq)
        assert again.token > old.token
        with pytest.raises(LeaseLost):
            copy.delivery(old.handle).ack()
        for _ in range(3):  # neither does one that the original issues later
            old.lease.release()
            old = q.receive()[0]
            assert again.token > old.token
    old.ack()


def test_what_waits_in_an_outbox_arrives_once_in_an_adopted_copy(
    q: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = next(f"k{n}" for n in range(100) if q._storage.shard_of(f"sk{n}".encode()) == 0)
    there = next(f"k{n}" for n in range(100) if q._storage.shard_of(f"sk{n}".encode()) == 1)
    with monkeypatch.context() as patch:
        patch.setattr("strictq._store.whole.outbox.forward", lambda *_: None)
        with q.transaction(key=here) as tx:
            tx.send(b"sent", key=there)
        assert q.stats().outbox == 1
        q.backup(tmp_path / "copy")
    strictq.adopt(tmp_path / "copy")
    for _ in range(2):
        with strictq.open(tmp_path / "copy") as copy:
            assert [m.body for m in copy.peek(there)] == [b"sent"]
            assert copy.stats().outbox == 0


def test_a_copy_of_a_copy(q: Queue, tmp_path: Path) -> None:
    q.send(b"1", key="k")
    q.backup(tmp_path / "copy")
    with strictq.open(tmp_path / "copy", read_only=True) as copy:
        copy.backup(tmp_path / "second")
    assert bodies(tmp_path / "second") == [b"1"]


def test_a_replicated_queue_is_backed_up_while_it_ships(q: Queue, tmp_path: Path) -> None:
    q.configure_replication(tmp_path / "target", interval_seconds=0.01)
    for n in range(20):
        q.send(b"%d" % n, key="k")
        if n % 5 == 0:
            q.backup(tmp_path / f"copy{n}")
    for n in range(0, 20, 5):
        assert len(bodies(tmp_path / f"copy{n}", "k")) == min(n + 1, 10)
        strictq.adopt(tmp_path / f"copy{n}")
        with strictq.open(tmp_path / f"copy{n}") as copy:
            assert copy.check() == []
            assert copy.stats().depth == n + 1


# ---- under load


def in_background(work: Callable[[], object], failed: list[BaseException], count: int = 3) -> Callable[[], None]:
    """Repeat work in threads. Return the function that ends them."""
    stop = threading.Event()

    def run() -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()

    def end() -> None:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)

    return end


def test_a_copy_under_load_is_a_state_that_the_queue_had(tmp_path: Path) -> None:
    failed: list[BaseException] = []
    with strictq.open(tmp_path / "q", shards=4, durability="process") as q:
        begin_tasks(q, range(TASKS))
        end = in_background(lambda: pass_on(q), failed)
        try:
            for n in range(ROUNDS):
                q.backup(tmp_path / f"copy{n}")
        finally:
            end()
    assert failed == []
    for n in range(ROUNDS):
        strictq.adopt(tmp_path / f"copy{n}")
        assert problems_of(tmp_path / f"copy{n}") == [], f"of copy {n}"


def work_on(recorded: Recorded, rounds: int) -> None:
    """Send, receive, settle and transact, so that no lease is left."""
    for n in range(rounds):
        recorded.send_many([recorded.new(key) for key in KEYS])
        for d in recorded.receive(8, lease_seconds=60.0, per_key=2):
            if n % 3 == 0:
                recorded.act("nack", d, arg=0.0)
            elif n % 3 == 1:
                recorded.transact(d, None, [recorded.new(KEYS[n % len(KEYS)])])
            else:
                recorded.act("ack", d)
            if n % 3 != 2:
                recorded.act("release", d)


def drained(path: Path, events: list[Event]) -> list[Event]:
    """Continue a history on a queue until it is empty."""
    recorder = Recorder()
    recorder.events = list(events)
    with strictq.open(path) as q:
        assert q.check() == []
        recorded = Recorded(q, recorder)
        work_on(recorded, 5)
        while got := recorded.receive(100, lease_seconds=60.0):
            recorded.act_many("ack", got)
        assert (q.stats().depth, q.stats().outbox) == (0, 0)
        recorded.final(KEYS)
        assert q.check() == []
    return recorder.events


def test_the_history_goes_on_in_the_original_and_in_the_copy(tmp_path: Path) -> None:
    """What was done before the backup is in both; each of them continues by the rules."""
    failed: list[BaseException] = []
    recorder = Recorder()
    with strictq.open(tmp_path / "q", shards=3, durability="process") as q:
        q.app_schema(SCHEMA)
        work_on(Recorded(q, recorder), 30)
        end = in_background(lambda: q.send(b"beside it", key="other"), failed, count=2)
        try:
            q.backup(tmp_path / "copy")
        finally:
            end()
        q.purge("other")
    assert failed == []
    strictq.adopt(tmp_path / "copy")
    with strictq.open(tmp_path / "copy") as copy:
        copy.purge("other")
    for path in (tmp_path / "copy", tmp_path / "q"):
        assert check(drained(path, recorder.events)) == [], path


# ---- all or nothing

KILLED = """
import os, signal, sys, threading
import strictq
from tests.support.shipping import pass_on

def step(done, total):
    if done * 10 >= total * int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

q = strictq.open(sys.argv[1])
def work():
    while True:
        pass_on(q)
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
q.backup(sys.argv[2], on_progress=step)
"""


@pytest.mark.parametrize("tenths", [3, 10])
def test_a_killed_backup_leaves_no_target(tmp_path: Path, tenths: int) -> None:
    with strictq.open(tmp_path / "q", shards=4, durability="process") as q:
        begin_tasks(q, range(TASKS))
        q.send_many([Message(b"x" * 10_000, key="large") for _ in range(400)])
        q.hold("large")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "q"), str(tmp_path / "copy"), str(tenths)],
        cwd=ROOT,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "copy").exists()
    with strictq.open(tmp_path / "q") as q:  # the original is not affected, and can be backed up again
        assert q.check() == []
        q.backup(tmp_path / "copy")
    strictq.adopt(tmp_path / "copy")
    assert problems_of(tmp_path / "copy") == []
    assert problems_of(tmp_path / "q") == []


def test_a_failed_backup_creates_nothing(q: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        pass

    def stop(_done: int, _total: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        q.backup(tmp_path / "copy", on_progress=stop)
    monkeypatch.setattr("strictq._store.shipping.rebuild.Rebuild.sync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
    with pytest.raises(StoreError):
        q.backup(tmp_path / "copy")
    assert beside(tmp_path) == ["q"]


def test_progress_ascends_to_the_whole(q: Queue, tmp_path: Path) -> None:
    q.send_many([Message(b"x" * 10_000, key="k") for _ in range(400)])
    seen: list[tuple[int, int]] = []
    done = q.backup(tmp_path / "copy", on_progress=lambda *step: seen.append(step))
    assert seen == sorted(seen)
    assert len(seen) > 4
    assert {total for _, total in seen} == {done.copied_bytes}
    assert (seen[0][0], seen[-1][0]) == (0, done.copied_bytes)


def test_another_queue_that_appears_meanwhile_stays(q: Queue, tmp_path: Path) -> None:
    def step(_done: int, _total: int) -> None:
        if not (tmp_path / "copy").exists():
            with strictq.open(tmp_path / "copy") as other:
                other.send(b"other", key="k")

    with pytest.raises(InvalidArgument, match="exists"):
        q.backup(tmp_path / "copy", on_progress=step)
    assert bodies(tmp_path / "copy") == [b"other"]
    assert beside(tmp_path) == ["copy", "q"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("own", [True, False])
def test_a_fork_ends_a_backup(q: Queue, tmp_path: Path, *, own: bool) -> None:
    """A child must not inherit locks on the shards: it could never write to them."""
    q.send_many([Message(b"x" * 10_000, key="k") for _ in range(400)])
    begun, codes = threading.Event(), []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            try:
                q.send(b"of the child", key="child")
                with strictq.open(q.path) as again:
                    again.receive(1, keys=["child"])[0].ack()
                os._exit(0)
            except BaseException:
                os._exit(1)
        codes.append(os.waitpid(child, 0)[1])

    def step(_done: int, _total: int) -> None:
        begun.set()
        if own:
            fork()

    def fork_beside() -> None:
        begun.wait()
        if not own:
            fork()

    thread = threading.Thread(target=fork_beside)
    thread.start()
    try:
        with pytest.raises(StoreBusy, match="forked") as busy:
            while True:  # the fork may have come late
                q.backup(tmp_path / "copy", on_progress=step)
                os.rename(tmp_path / "copy", tmp_path / f"late-{len(codes)}")
                begun.clear()
                thread.join()
                thread = threading.Thread(target=fork_beside)
                thread.start()
    finally:
        begun.set()
        thread.join()
    assert busy.value.transient
    assert set(codes) == {0}
    assert not (tmp_path / "copy").exists()
    q.backup(tmp_path / "copy")
    assert q.check() == []


# ---- what is refused


def test_what_can_not_be_backed_up(q: Queue, tmp_path: Path) -> None:
    with strictq.open(":memory:") as memory, pytest.raises(ConfigError, match="in memory"):
        memory.backup(tmp_path / "copy")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for target in (tmp_path / "there", tmp_path / "link", q.path):
        with pytest.raises(InvalidArgument, match="exists; nothing was created"):
            q.backup(target)
    with pytest.raises(InvalidArgument, match="inside the queue"):
        q.backup(Path(q.path) / "copy")
    for bad in (None, 7, b"copy", "", "a\0b", "file://copy", ":memory:"):
        with pytest.raises(InvalidArgument, match="target must"):
            q.backup(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="on_progress must be callable"):
        q.backup(tmp_path / "copy", on_progress=7)  # type: ignore[arg-type]
    q.close()
    with pytest.raises(QueueClosed):
        q.backup(tmp_path / "copy")
    assert beside(tmp_path) == ["link", "q", "there"]


def test_a_read_only_object_makes_a_backup_too(q: Queue, tmp_path: Path) -> None:
    q.send(b"1", key="k")
    q.close()
    with strictq.open(tmp_path / "q", read_only=True) as look:
        look.backup(tmp_path / "copy")
    assert bodies(tmp_path / "copy") == [b"1"]


def test_a_living_replica_is_not_backed_up(q: Queue, tmp_path: Path) -> None:
    from tests.support.replicas import ship_to, token_file, until_level

    token = token_file(tmp_path)
    with strictq.Replica(tmp_path / "home", token_file=token) as replica:
        ship_to(q, replica.address, token)
        q.send(b"1", key="k")
        until_level(q, tmp_path / "home")
        with strictq.open(tmp_path / "home", read_only=True) as look, pytest.raises(ConfigError, match="living replica"):
            look.backup(tmp_path / "copy")


# ---- the twins


def test_the_async_queue(tmp_path: Path) -> None:
    async def main() -> BackedUp:
        async with strictq.open_async(tmp_path / "q") as q:
            await q.send(b"1", key="k")
            return await q.backup(tmp_path / "copy", on_progress=lambda *_: None)

    assert asyncio.run(main()).path == str(tmp_path / "copy")
    assert bodies(tmp_path / "copy") == [b"1"]


def test_the_command(q: Queue, tmp_path: Path) -> None:
    q.send(b"1", key="k")
    done = in_process("backup", q.path, str(tmp_path / "copy"), "--json")
    assert done.exit_code == 0
    shown = json.loads(done.stdout)
    assert {"path", "queue_id", "history_id", "at", "copied_bytes", "seconds"} == shown.keys()
    assert bodies(tmp_path / "copy") == [b"1"]
    assert f"run strictq adopt {tmp_path / 'third'}\n" in in_process("backup", q.path, str(tmp_path / "third")).stdout
    again = in_process("backup", q.path, str(tmp_path / "copy"))
    assert (again.exit_code, "exists; nothing was created" in again.stderr) == (2, True)
    assert in_process("backup", str(tmp_path / "none"), str(tmp_path / "other")).exit_code == 2
    told = in_process("backup", q.path, str(tmp_path / "other"))
    assert "strictq adopt" in told.stdout
    assert in_process("backup", q.path, str(tmp_path / "quiet"), "-q").stdout == ""
