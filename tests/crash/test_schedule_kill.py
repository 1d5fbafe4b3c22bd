"""Every tick of a schedule is sent once, though the processes that send them are killed with -9 at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import strictq
from tests.support.running import PATIENCE_SECONDS

pytest.importorskip("cronsim")

MINUTES = 150
KILLS = 12
START = datetime(2026, 1, 10, 12, tzinfo=UTC)
PROGRAM = """
import sys, strictq

class Minutes(strictq.SystemClock):
    now = int(sys.argv[2]) * 1_000_000
    def wall(self):
        return self.now

clock = Minutes()
app = strictq.App(strictq.open(sys.argv[1], create=False, clock=clock))

@app.schedule("* * * * *", key="ticks")
def report(): ...

for _ in range(int(sys.argv[3])):
    app.tick()
    print(".", end="", flush=True)
    clock.now += 60_000_000
"""


@pytest.mark.in_turn
@pytest.mark.parametrize("shards", [1, 4])
def test_each_tick_is_sent_once(tmp_path: Path, shards: int) -> None:
    path = tmp_path / "queue"
    with strictq.open(path, shards=shards, durability="process"):
        pass
    words = [sys.executable, "-c", PROGRAM, str(path), str(int(START.timestamp())), str(MINUTES + 1)]
    running: list[subprocess.Popen[bytes]] = []
    dice = random.Random(shards)
    try:
        for kill in range(KILLS):
            while len(running) < 3:
                running.append(subprocess.Popen(words, stdout=subprocess.PIPE))
            victim = running.pop(0)
            assert victim.stdout is not None
            # It sends, or finds that another has sent, so many ticks before it dies: those that come later start again.
            victim.stdout.read(1 + dice.randrange(1 + MINUTES * kill // KILLS))
            time.sleep(dice.random() * 0.002)
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
        running.append(subprocess.Popen(words, stdout=subprocess.PIPE))
        assert all(process.communicate(timeout=PATIENCE_SECONDS) and process.returncode == 0 for process in running)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    with strictq.open(path) as q:
        ticks = [d.headers["strictq-tick"] for d in q.receive(max_messages=10_000, keys=["ticks"])]
        assert q.check() == []
    assert ticks == [(START + timedelta(minutes=n)).isoformat() for n in range(1, MINUTES + 1)]
