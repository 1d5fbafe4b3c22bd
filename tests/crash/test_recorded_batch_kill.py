"""kill -9 of a named consumer's holder, and of a worker beside it, at any moment: the ledger has every message once, in order."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import strictq
from strictq import Message
from tests.support.recorded_batch_programs import open_queue
from tests.support.running import PATIENCE_SECONDS, ROOT, until

KEYS = [f"k{n}" for n in range(9)]
KILLS = 12


def start(name: str, place: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.recorded_batch_programs", name, str(place)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n", process.communicate(timeout=PATIENCE_SECONDS)[1]
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """It must have been running: an error of its own would have ended it."""
    assert process.poll() is None, process.communicate(timeout=PATIENCE_SECONDS)[1]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.in_turn
@pytest.mark.parametrize("program", ["stream", "defer", "ahead"])
def test_the_holder_and_a_worker_are_killed_again_and_again(tmp_path: Path, program: str) -> None:
    chance = random.Random(7)
    sent = dict.fromkeys(KEYS, 0)
    strictq.open(tmp_path / "queue", shards=2, durability="process").close()
    with open_queue(tmp_path) as q:
        for turn in range(KILLS):
            batch = [chance.choice(KEYS) for _ in range(60)]
            for key in batch:
                sent[key] += 1
            q.send_many([Message(b"x", key=key) for key in batch])
            stream = start(program, tmp_path)
            worker = start("work", tmp_path) if turn % 2 else None
            time.sleep(chance.uniform(0.0, 0.15))
            kill(stream)
            if worker is not None:
                kill(worker)
            assert q.check() == []
        stream = start(program, tmp_path)
        until(lambda: not q.stats().depth)
        kill(stream)
        assert q.check() == []
    ledger = sorted((int(file.stem), json.loads(file.read_text())) for file in tmp_path.glob("*.ledger"))
    assert [n for n, _ in ledger] == list(range(1, len(ledger) + 1)), "no number is left out"
    handed: dict[str, list[int]] = {key: [] for key in KEYS}
    for _, rows in ledger:
        for key, seq, _ in rows:
            handed[key[1:]].append(seq)
    worked = {(key, seq) for file in tmp_path.glob("worker-*") for key, seq in map(json.loads, file.read_text().splitlines())}
    for key, seqs in handed.items():
        assert seqs == sorted(set(seqs)), f"{key}: in order, each once"
        assert {(key, seq) for seq in set(range(1, sent[key] + 1)) - set(seqs)} <= worked, f"{key}: nothing is lost"
