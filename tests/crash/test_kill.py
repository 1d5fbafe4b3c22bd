"""Processes that die by kill -9 or sleep past their leases, at any moment, lose nothing and repeat nothing.

Worker processes (`tests/support/stress_worker.py`) do everything one can do to one queue while this process kills,
stops and restarts them. Afterwards the queue is drained and every answer that anybody ever got goes through the
checker. Each round waits until every worker has got something done since the last one, so that a dead worker cannot
pass for one that survived.

A few seconds each. For a long campaign set STRICTQ_CAMPAIGN_SECONDS to its length in seconds (shared by the four kinds
of queue), and STRICTQ_CAMPAIGN_SEED to start from other random numbers:

    STRICTQ_CAMPAIGN_SECONDS=3600 python -m pytest tests/crash/test_kill.py -k campaign
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

import strictq
from tests.support.campaign import Campaign, spawn, tally
from tests.support.formats import become_next
from tests.support.recorded import SCHEMA
from tests.support.running import PATIENCE_SECONDS, until

SECONDS = float(os.environ.get("STRICTQ_CAMPAIGN_SECONDS", "6")) / 4
SEED = int(os.environ.get("STRICTQ_CAMPAIGN_SEED", "1"))
VERBS = ("ack", "nack", "defer", "reject", "extend", "start", "more", "release", "transact")


@pytest.mark.in_turn
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("durability", ["process", "full"])
def test_campaign(shards: int, durability: Literal["full", "process"], tmp_path: Path) -> None:
    end = time.monotonic() + SECONDS
    for number in itertools.count():
        # A queue of its own every while: histories are checked in memory.
        directory = tmp_path / str(number)
        directory.mkdir()
        campaign = Campaign(directory, shards, durability, threads=2 if shards == 4 else 1, seed=SEED + number)
        # Either another process opens copies, or so little is kept in memory that folds and evictions happen all the time.
        campaign.witnessed = (shards, durability) != (1, "process")
        campaign.window = 200 if campaign.witnessed else 6
        try:
            campaign.create()
            campaign.disturb(processes=2 if SECONDS < 10 else 4, seconds=min(20.0, end - time.monotonic()))
            campaign.stop()
        finally:
            campaign.abandon()
        counts = tally(campaign.settle())
        for verb in ("send", "receive", "ack", "transact"):
            assert counts[verb] > 10, counts
        shutil.rmtree(directory)  # after a failure it stays
        if time.monotonic() >= end:
            break


def test_a_zombie_changes_nothing_that_others_have_taken(tmp_path: Path) -> None:
    """A process is stopped past its leases; half of its lanes are taken meanwhile; then it goes on, unaware."""
    path = tmp_path / "q.strictq"
    taken = [f"taken-{verb}" for verb in VERBS]
    quiet = [f"quiet-{verb}" for verb in VERBS]
    with strictq.open(path, shards=4, durability="process") as queue:
        queue.app_schema(SCHEMA)
        for key in taken + quiet:
            queue.send(b"1", key)
        zombie = spawn("programs", "zombie", path, *VERBS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            until(lambda: _stopped(zombie), "the zombie to stop")
            held: list[strictq.Delivery] = []
            end = time.monotonic() + PATIENCE_SECONDS
            while len(held) < len(taken):
                held += queue.receive(100, keys=taken, wait=1.0)
                assert time.monotonic() < end
            zombie.send_signal(signal.SIGCONT)
            out, _ = zombie.communicate(timeout=PATIENCE_SECONDS)
        finally:
            zombie.kill()
            zombie.wait()
        outcomes = json.loads(out)
        assert {key: outcomes[key] for key in taken} == dict.fromkeys(taken, "LeaseLost")
        assert {key: outcomes[key] for key in quiet} == dict.fromkeys(quiet, "ok")  # late, and honoured

        queue.ack_many(held)
        assert queue.query("SELECT effect FROM app_effects") == [("quiet-transact",)]
        assert [queue.status(key, 1).state for key in taken] == ["resolved"] * len(taken)
        assert [d.key for d in queue.dead_letters()] == ["quiet-reject"]
        assert {m.body for m in queue.peek("sent-by-zombie")} == {b"quiet-transact"}
        assert queue.check() == []


def _stopped(process: subprocess.Popen[bytes]) -> bool:
    assert process.returncode is None
    return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


def test_a_kill_in_the_middle_of_a_transaction_leaves_all_of_it_or_nothing(tmp_path: Path) -> None:
    """Over and over: a process hands messages on, each in one transaction with an effect and a state, and is killed."""
    path = tmp_path / "q.strictq"
    total = 28
    config = strictq.QueueConfig(max_attempts=None, keyless="random")
    with strictq.open(path, shards=3, durability="process", config=config) as queue:
        queue.app_schema(SCHEMA)
        queue.send_many([strictq.Message(b"%d" % n, key=f"in-{n % 7}") for n in range(total)])
        rounds = 0
        for n in range(7):
            queue.hold(f"out-{n}")
        while (stats := queue.stats()).outbox or stats.depth > stats.held:
            rounds += 1
            assert rounds < 1000
            goal = _effects(queue) + rounds % 7 + 1
            pipeline = spawn("programs", "pipeline", path)
            try:
                until(partial(_reached, queue, goal, pipeline), "the pipeline to get on")
            finally:
                pipeline.kill()
                pipeline.wait()
            assert pipeline.returncode in (-9, 0), "it failed by itself"
        for which in ("!=", "="):
            effects = queue.query(f"SELECT effect FROM app_effects WHERE lane {which} 'None'")
            assert sorted(int(effect) for (effect,) in effects) == list(range(total))
        for n in range(7):
            queue.release(f"out-{n}")
        out = []
        while got := queue.receive(100):
            out += [(d.key, int(d.body)) for d in got]
            queue.ack_many(got)
        assert sorted(n for _, n in out) == list(range(total))
        for lane in range(7):
            # What was sent from one lane to one lane arrives in the order in which it was handled.
            assert [n for key, n in out if key == f"out-{lane}"] == list(range(lane, total, 7))
            with queue.transaction(key=f"in-{lane}") as tx:
                assert tx.key_state == b"%d" % len(range(lane, total, 7))
        assert queue.check() == []


def test_a_kill_while_a_queue_is_made(tmp_path: Path) -> None:
    """Whatever was made of it when its maker died, the next one to open it finds or makes a whole queue."""
    killed = 0
    for attempt in range(8):
        path = tmp_path / f"{attempt}.strictq"
        maker = spawn("programs", "maker", path, stdout=subprocess.PIPE)
        try:
            assert maker.stdout is not None
            assert maker.stdout.readline() == b"opening\n"
            time.sleep(attempt * 0.004)
        finally:
            maker.kill()
        out, _ = maker.communicate()
        killed += b"sent" not in out
        with strictq.open(path, shards=4) as queue:
            queue.send(b"after", "k")
            bodies = [d.body for d in queue.receive(10)]
            assert bodies in ([b"after"], [b"hello", b"after"])
            assert bodies[0] == b"hello" or b"sent" not in out
            assert queue.check() == []
    assert killed > 0


def test_a_kill_while_a_queue_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each shard, before and in its step: whoever opens it next finishes, and everything is there."""
    path = tmp_path / "q.strictq"
    with strictq.open(path, shards=3) as queue:
        for key in range(12):
            queue.send(b"%d" % key, key)
    for attempt in range(4):
        migrator = spawn("programs", "migrator", path, stdout=subprocess.PIPE)
        try:
            assert migrator.stdout is not None
            said = migrator.stdout.readline()
            time.sleep(attempt * 0.1)  # before the step, in its transaction, in the next shard
        finally:
            migrator.kill()
        out, _ = migrator.communicate()
        if b"done" in said + out:
            break
    else:
        attempt += 1
    assert attempt > 0, "it was never killed"
    become_next(monkeypatch)
    with strictq.open(path, migrate=True) as queue:
        assert queue.check() == []
        assert sorted(int(d.body) for d in queue.receive(100)) == list(range(12))


def test_a_kill_in_the_middle_of_a_checkpoint_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "q.strictq"
    strictq.open(path, shards=2, durability="process").close()
    sent = 0
    for attempt in range(8):
        program = spawn("programs", "checkpointer", path, stdout=subprocess.PIPE)
        try:
            assert program.stdout is not None
            said = [int(program.stdout.readline()) for _ in range(10)]
            time.sleep(attempt * 0.003)
        finally:
            program.kill()
        out, _ = program.communicate()
        said += [int(line) for line in out.splitlines(keepends=True) if line.endswith(b"\n")]
        assert said == list(range(said[0], said[0] + len(said)))
        assert said[0] in (sent + 1, sent + 2), "one may have been sent and not told"
        sent = said[-1]
        with strictq.open(path) as queue:
            assert queue.check() == []
            assert len(queue.peek("k", 100_000)) in (sent, sent + 1)


def _effects(queue: strictq.Queue) -> int:
    return sum(n for (n,) in queue.query("SELECT count(*) FROM app_effects"))


def _reached(queue: strictq.Queue, goal: int, process: subprocess.Popen[bytes]) -> bool:
    return _effects(queue) >= goal or process.poll() is not None
