"""A worker's leases end with its process, and with the children that work for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import strictq
from strictq._store.disk import locks
from strictq._store.disk.layout import HOLDER
from strictq._store.whole import holders
from tests.support.running import PATIENCE_SECONDS, ROOT, until

WORKER = """
import os, sys, time
import strictq

def handle(job):
    os.write(1, b"at work\\n")
    time.sleep(600)

if __name__ == "__main__":
    with strictq.open(sys.argv[1]) as q:
        strictq.Worker(q, handle, executor=sys.argv[2], concurrency=int(sys.argv[3])).run()
"""


@contextmanager
def worker(path: Path, script: Path, executor: str, concurrency: int = 1) -> Iterator[subprocess.Popen[str]]:
    """Run a worker process until it is in as many handlers as it can run."""
    script.write_text(WORKER)
    command = [sys.executable, str(script), str(path), executor, str(concurrency)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for _ in range(concurrency):
            assert process.stdout.readline() == "at work\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def files(path: Path) -> list[str]:
    return [name for name in os.listdir(path) if name.lstrip(".").startswith("holder-")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a queue with messages of two keys, and long leases."""
    with strictq.open(tmp_path / "queue", config=strictq.QueueConfig(lease_seconds=3600.0), shards=2) as q:
        q.send_many([strictq.Message(b"%d" % n, key=f"k{n % 2}") for n in range(4)])
    return tmp_path / "queue"


def test_a_killed_workers_lanes_go_on_at_once(path: Path, tmp_path: Path) -> None:
    with strictq.open(path) as q:
        with worker(path, tmp_path / "worker.py", "thread") as process:
            until(lambda: q.stats().in_flight == 4)  # the handler starts before the worker has leased the rest
            assert q.receive(10) == []
            assert len(files(path)) == 1
            process.kill()
            process.wait()
            got = [d for key in ("k0", "k1") for d in q.receive(10, keys=[key], wait=PATIENCE_SECONDS)]
        assert {d.key: d.seq for d in reversed(got)} == {"k0": 1, "k1": 1}
        assert (got[0].body, got[0].attempt) == (b"0", 2)  # the start of its handler counts
        until(lambda: files(path) == [])
        assert q.check() == []


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, False], ids=["late", "at once"])
def test_what_ran_beside_others_is_suspect_and_not_charged(path: Path, tmp_path: Path, late: bool) -> None:
    """Also if the leases have ended at their deadlines before any process looks."""
    with strictq.open(path) as q:
        q.configure(lease_seconds=2.0 if late else 3600.0)
        with worker(path, tmp_path / "worker.py", "thread", 2) as process:
            process.kill()
            process.wait()
        if late:
            time.sleep(2.0)
        got = {d.key: d for d in q.receive(1, wait=PATIENCE_SECONDS) + q.receive(10, wait=PATIENCE_SECONDS)}
        assert {(d.key, d.body, d.attempt) for d in got.values()} == {("k0", b"0", 1), ("k1", b"1", 1)}
        for key, d in got.items():
            assert q.explain(key).solo
            assert [(e.attempt, "it ran several messages" in e.error) for e in d.errors] == [(1, True)]
        assert files(path) == []
        assert q.check() == []


@pytest.mark.slow
def test_a_child_ends_with_its_worker(path: Path, tmp_path: Path) -> None:
    with strictq.open(path) as q, worker(path, tmp_path / "worker.py", "process") as process:
        process.kill()
        process.wait()
        assert q.receive(1, wait=PATIENCE_SECONDS), "its child, which is in a handler, keeps the lease"


@pytest.mark.slow
def test_a_child_that_is_at_work_keeps_the_leases(path: Path, tmp_path: Path) -> None:
    """A handler's process may outlive its worker until it notices that."""
    with strictq.open(path) as q, worker(path, tmp_path / "worker.py", "process") as process:
        q.receive(10)
        (name,) = files(path)
        children = [
            int(pid) for task in Path(f"/proc/{process.pid}/task").iterdir() for pid in (task / "children").read_text().split()
        ]
        at_work = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
        for pid in at_work:
            os.kill(pid, signal.SIGSTOP)
        assert at_work
        process.kill()
        process.wait()
        try:
            q._storage._store.consumers.end_dead()
            assert files(path) == [name]
            assert q.receive(10) == []
        finally:
            for pid in at_work:
                os.kill(pid, signal.SIGKILL)
        assert q.receive(1, wait=PATIENCE_SECONDS)


def test_a_worker_that_stops_leaves_no_file(path: Path) -> None:
    with strictq.open(path) as q:
        seen: list[list[str]] = []
        strictq.Worker(q, lambda _job: seen.append(files(path))).run(drain=True)
        assert all(len(names) == 1 for names in seen)
        assert files(path) == []


def test_plain_receives_keep_their_leases(path: Path) -> None:
    """Another process may use a handle, so only a worker's leases end with its process."""
    program = (
        "import strictq, sys; print(len(strictq.open(sys.argv[1]).receive(10)), flush=True); import os; os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    with strictq.open(path) as q:
        q._storage._store.consumers.end_dead()
        assert q.receive(10) == []


def test_claims_beyond_those_that_are_noted(tmp_path: Path) -> None:
    holder = holders.ProcessHold(tmp_path)
    holder.begin()
    holder.note((n % 3, n) for n in range(1, holders.CLAIMS + 10))
    assert list(holders.dead(tmp_path, locks.names(tmp_path, HOLDER))) == []
    holder.leave()  # like the end of the process
    ((claims, single),) = holders.dead(tmp_path, locks.names(tmp_path, HOLDER))
    assert single
    assert sorted(token for tokens in claims.values() for token in tokens) == list(range(11, holders.CLAIMS + 10))
    assert all(token % 3 == shard for shard, tokens in claims.items() for token in tokens)
    assert list(holders.dead(tmp_path, locks.names(tmp_path, HOLDER))) == []


def test_a_file_that_was_not_done_with_is_met_again(tmp_path: Path) -> None:
    holder = holders.ProcessHold(tmp_path)
    holder.begin()
    holder.note([(0, 7)])
    holder.leave()
    for found in holders.dead(tmp_path, locks.names(tmp_path, HOLDER)):
        assert found == ({0: [7]}, True)
        break  # the caller that ends the leases fails
    assert list(holders.dead(tmp_path, locks.names(tmp_path, HOLDER))) == [({0: [7]}, True)]


def test_a_process_that_ran_several_messages_says_so_for_good(tmp_path: Path) -> None:
    holder = holders.ProcessHold(tmp_path)
    holder.begin()
    holder.note_several()
    holder.note((0, n) for n in range(1, holders.CLAIMS + 10))
    holder.leave()
    ((_, single),) = holders.dead(tmp_path, locks.names(tmp_path, HOLDER))
    assert not single


def test_a_look_waits_for_another_one_that_has_found_the_same_dead_process(tmp_path: Path) -> None:
    holder = holders.ProcessHold(tmp_path)
    holder.begin()
    holder.note([(0, 7)])
    holder.leave()
    first = holders.dead(tmp_path, locks.names(tmp_path, HOLDER))
    assert next(first) == ({0: [7]}, True)
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(list, holders.dead(tmp_path, locks.names(tmp_path, HOLDER)))
        with pytest.raises(TimeoutError):
            second.result(0.05)
        assert list(first) == []
        assert second.result(PATIENCE_SECONDS) == []


def test_what_is_no_file_of_ours_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "holder-odd").write_bytes(b"\xff" * 33)
    (tmp_path / "holder-directory").mkdir()
    assert list(holders.dead(tmp_path, locks.names(tmp_path, HOLDER))) == [({}, False)]
    deadline = time.monotonic() + 1.0
    assert list(holders.dead(tmp_path, locks.names(tmp_path, HOLDER))) == []
    assert time.monotonic() < deadline + PATIENCE_SECONDS
