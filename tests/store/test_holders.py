"""A worker's leases end with its process, and with the children that work for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import strictq
from strictq._store import holders
from tests.support.running import PATIENCE_SECONDS, ROOT
from tests.support.shipping import until

WORKER = """
import os, sys, time
import strictq

def handle(job):
    print("at work", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    with strictq.open(sys.argv[1]) as q:
        strictq.Worker(q, handle, executor=sys.argv[2], concurrency=1).run()
"""


@contextmanager
def worker(path: Path, script: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker process until it is in its first handler."""
    script.write_text(WORKER)
    process = subprocess.Popen([sys.executable, str(script), str(path), *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
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


@pytest.mark.parametrize("hot", [True, False], ids=["hot", "cold"])
def test_a_killed_workers_lanes_go_on_at_once(path: Path, tmp_path: Path, hot: bool) -> None:
    with strictq.open(path) as q:
        q.configure(hot_lanes=hot)
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
            q._storage._store.end_dead()
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
        q._storage._store.end_dead()
        assert q.receive(10) == []


def test_claims_beyond_those_that_are_noted(tmp_path: Path) -> None:
    holder = holders.ProcessHold(tmp_path)
    holder.begin()
    holder.note((n % 3, n) for n in range(1, holders.CLAIMS + 10))
    assert list(holders.dead(tmp_path)) == []
    holder.leave()  # like the end of the process
    (claims,) = holders.dead(tmp_path)
    assert sorted(token for tokens in claims.values() for token in tokens) == list(range(10, holders.CLAIMS + 10))
    assert all(token % 3 == shard for shard, tokens in claims.items() for token in tokens)
    assert list(holders.dead(tmp_path)) == []


def test_a_file_that_was_not_done_with_is_met_again(tmp_path: Path) -> None:
    holder = holders.ProcessHold(tmp_path)
    holder.begin()
    holder.note([(0, 7)])
    holder.leave()
    for claims in holders.dead(tmp_path):
        assert claims == {0: [7]}
        break  # the caller that ends the leases fails
    assert [dict(claims) for claims in holders.dead(tmp_path)] == [{0: [7]}]


def test_what_is_no_file_of_ours_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "holder-odd").write_bytes(b"\xff" * 33)
    (tmp_path / "holder-directory").mkdir()
    assert [dict(claims) for claims in holders.dead(tmp_path)] == [{}]
    deadline = time.monotonic() + 1.0
    assert list(holders.dead(tmp_path)) == []
    assert time.monotonic() < deadline + PATIENCE_SECONDS
