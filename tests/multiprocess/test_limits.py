"""Limits of tenants over several processes, also when one of them dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import strictq
from strictq import Message, QueueConfig
from tests.support.running import PATIENCE_SECONDS, until

HOLDER = """
import os, sys, time, strictq

def process(job):
    os.write(1, f"{job.key}\\n".encode())  # a whole line, also from two threads
    time.sleep(600)

with strictq.open(sys.argv[1]) as q:
    strictq.Worker(q, process, concurrency=8, lease_seconds=600).run()
"""
ROUNDS = """
import json, sys, time, strictq
q = strictq.open(sys.argv[1])
most = got = 0
until = time.monotonic() + 60
while time.monotonic() < until:
    batch = q.receive(4, per_key=1, wait=0.2)
    held = sum(one.in_flight for one in q.tenants() if one.tenant == "a")
    most = max(most, held)
    got += len(batch)
    q.ack_many(batch)
    if not batch and not q.stats().ready:
        break
q.close()
print(json.dumps([most, got]))
"""
WAITS = """
import sys, strictq
from strictq._store.whole import receive
receive.LOOK_AGAIN_SECONDS = 3600  # it must be woken
left = receive.Patience.left
def waits(patience, soonest):
    print("waits", flush=True)
    receive.Patience.left = left
    return left(patience, soonest)
receive.Patience.left = waits
with strictq.open(sys.argv[1]) as q:
    print([d.key for d in q.receive(1, wait=3600)], flush=True)
"""


@contextmanager
def running(script: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("shards", [1, 2])
def test_a_killed_worker_frees_its_slots(tmp_path: Path, shards: int) -> None:
    path = tmp_path / "q"
    with strictq.open(path, shards=shards, config=QueueConfig(tenant_separator="/", max_attempts=None)) as q:
        q.limit("a", concurrency=2)
        q.send_many([Message(b"", key=f"a/{n}") for n in range(8)])
        with running(HOLDER, path) as worker:
            assert {line_of(worker), line_of(worker)} < {f"a/{n}" for n in range(8)}
            assert not q.receive(8)
            assert q.tenants()[0].in_flight <= 2 + (shards - 1)
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        until(lambda: q.receive(8, wait=0.1), "its slots are free")


@pytest.mark.parametrize("shards", [1, 2])
def test_a_tenant_has_so_many_keys_in_flight_over_processes(tmp_path: Path, shards: int) -> None:
    """In one shard exactly. A claim in another shard at the same time exceeds it by what it leases."""
    path = tmp_path / "q"
    with strictq.open(path, shards=shards, config=QueueConfig(tenant_separator="/")) as q:
        q.limit("a", concurrency=3)
        q.send_many([Message(b"", key=f"a/{n}") for n in range(60)])
    with running(ROUNDS, path) as one, running(ROUNDS, path) as other:
        results = [json.loads(line_of(one)), json.loads(line_of(other))]
    assert sum(got for _, got in results) == 60
    assert max(most for most, _ in results) <= 3 * shards


def test_a_pause_that_ends_is_noticed_by_a_consumer_that_waits(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with strictq.open(path, config=QueueConfig(tenant_separator="/")) as q:
        q.limit("a", paused=True)
        q.send(b"", key="a/1")
        with running(WAITS, path) as waiting:
            assert line_of(waiting) == "waits"
            q.limit("a", paused=False)
            assert waiting.communicate(timeout=PATIENCE_SECONDS) == ("['a/1']\n", None)


def test_a_slot_that_is_freed_wakes_a_consumer_of_another_process(tmp_path: Path) -> None:
    """The consumer that frees it has met no limit, and takes keys by arrival."""
    path = tmp_path / "q"
    with strictq.open(path, config=QueueConfig(tenant_separator="/")) as q:
        q.limit("a", concurrency=1)
        q.send_many([Message(b"", key=f"a/{n}") for n in range(2)])
        (d,) = q.receive(1, lease_seconds=600)
        with running(WAITS, path) as waiting:
            assert line_of(waiting) == "waits"
            d.ack()
            assert waiting.communicate(timeout=PATIENCE_SECONDS) == ("['a/1']\n", None)
