"""A program forks with a live queue: nothing is lost, and parent and child both go on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import strictq
from strictq import QueueConfig
from tests.support import history
from tests.support.campaign import spawn
from tests.support.checker import check
from tests.support.fork_program import KEYS, STATES
from tests.support.history import Recorder
from tests.support.recorded import SCHEMA, Recorded
from tests.support.running import PATIENCE_SECONDS, until

ALL_KEYS = [*KEYS, "awaited"]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("state", STATES)
def test_fork(state: str, shards: int, tmp_path: Path) -> None:
    path, histories = tmp_path / "q.strictq", tmp_path / "history"
    histories.mkdir()
    with strictq.open(path, shards=shards, durability="process", config=QueueConfig(max_attempts=None)) as queue:
        queue.app_schema(SCHEMA)
    program = spawn("fork_program", state, path, histories, stderr=subprocess.PIPE, start_new_session=True)
    try:
        _, errors = program.communicate(timeout=PATIENCE_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # its children too
        program.wait()
    assert program.returncode == 0, errors.decode()

    recorder = Recorder(histories / "end.jsonl")
    with strictq.open(path, durability="process", create=False) as queue:
        assert queue.check() == []
        _account_for_transactions(queue)
        recorded = Recorded(queue, recorder)
        while queue.stats().depth:
            got = recorded.receive(500, lease_seconds=30.0, wait=0.05, keys=ALL_KEYS)
            if got:
                recorded.act_many("ack", got)
        recorded.final(ALL_KEYS)
        assert queue.check() == []
    recorder.close()
    events = history.read_all(histories)
    assert len(events) > 20
    assert check(events) == []


def _account_for_transactions(queue: strictq.Queue) -> None:
    """Each message of "main" that was acked left one effect and one message, and no other did."""
    effects = sorted(int(seq) for (seq,) in queue.query("SELECT effect FROM app_effects WHERE lane = 'main'"))
    handed_on = [int(m.body) + 1 for m in queue.peek("handed-on", 100)]
    assert sorted(handed_on) == effects == sorted(set(effects))
    for m in queue.peek("main", 100):
        assert m.seq not in effects
    while got := queue.receive(100, keys=["main", "handed-on"]):
        queue.ack_many(got)


BUILDING = """
import os, signal, sys, threading
from strictq._platform.lazy import LazyList

class Slow(LazyList):
    _elements = None

    def _count(self):
        return 1

    def _make(self):
        begun.set()
        end.wait()
        return [1]

begun, end = threading.Event(), threading.Event()
built = Slow()
thread = threading.Thread(target=lambda: list(built))
thread.start()
begun.wait()
if (child := os.fork()) == 0:
    signal.alarm(30)
    end.set()
    os._exit(list(built) != [1])
_, status = os.waitpid(child, 0)
end.set()
thread.join()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_no_list_that_another_thread_builds_stops_a_child() -> None:
    done = subprocess.run([sys.executable, "-c", BUILDING], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr


def is_removed(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def test_a_fork_beside_a_replicated_queue_that_was_deleted(tmp_path: Path) -> None:
    """Nothing can be shipped there any more. Other queues work on."""
    with strictq.open(tmp_path / "q", durability="process") as deleted:
        deleted.configure_replication(tmp_path / "target", interval_seconds=0.01)
        until(lambda: is_removed(tmp_path / "q"))  # the shipper may create a file meanwhile
        child = os.fork()
        if child == 0:
            with strictq.open(tmp_path / "other") as other:
                other.send(b"1", key="k")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with strictq.open(tmp_path / "other") as other:
            assert other.peek("k")[0].body == b"1"
