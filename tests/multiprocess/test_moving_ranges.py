"""Processes send and consume while ranges move, and those that move them are killed: all arrives, once, in order."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from tests.support.campaign import spawn
from tests.support.moving_worker import TABLE
from tests.support.running import PATIENCE_SECONDS, until

SECONDS = 8.0


def lines(path: Path) -> Iterator[list[object]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


@pytest.mark.slow
def test_movers_are_killed_beside_senders_and_consumers(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with strictq.open(path, shards=2, durability="process") as q:
        q.app_schema(TABLE, key_columns={"app_done": "key"})
    workers: list[subprocess.Popen[bytes]] = []
    kills = 0
    chance = random.Random(1)

    def start(what: str, seed: int, seconds: float) -> subprocess.Popen[bytes]:
        name = tmp_path / f"{what}-{seed}"
        with (tmp_path / f"{what}-{seed}.err").open("wb") as errors:
            workers.append(spawn("moving_worker", what, path, name, seed, seconds, stderr=errors))
        until(name.exists, f"{what} to begin")
        return workers[-1]

    try:
        for seed in (1, 2):
            start("send", seed, SECONDS)
            start("consume", seed, SECONDS + 1)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or kills < 2:
            mover = start("move", kills, 0.0)
            time.sleep(chance.uniform(0.05, 1.0))
            mover.kill()
            mover.wait()
            workers.remove(mover)
            kills += 1
        for worker in workers:
            assert worker.wait(PATIENCE_SECONDS) == 0, [file.read_text() for file in tmp_path.glob("*.err")]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    sent: dict[object, set[object]] = defaultdict(set)
    events: list[list[object]] = []
    for seed in (1, 2):
        for key, seq in lines(tmp_path / f"send-{seed}"):
            assert seq not in sent[key], "a seq is issued once"
            sent[key].add(seq)
        events += lines(tmp_path / f"consume-{seed}")
    with strictq.open(path) as q:
        until(lambda: q.topology().moving is None, "the last move to end")
        assert q.check() == []
        while q.stats().depth:
            for d in q.receive(200, wait=0.1):
                events.append(["got", d.key, d.seq, time.monotonic()])
                d.ack()
                events.append(["acked", d.key, d.seq, time.monotonic()])
        assert q.check() == []
        booked = {(key, seq) for what, key, seq, _ in events if what == "booked"}
        there = q.query("SELECT key, seq FROM app_done")
        assert booked <= set(there), "what was booked has its row"
        assert len(there) == len(set(there))
        counts = Counter(key for key, _ in there)
        for key in sent:
            with q.transaction(key=str(key)) as tx:
                assert int(tx.key_state or b"0") == counts[key], f"key {key}: its state and its rows differ"
    acked: dict[object, list[object]] = defaultdict(list)
    first: dict[object, dict[object, object]] = defaultdict(dict)
    for what, key, seq, at in sorted(events, key=lambda event: event[3]):  # type: ignore[arg-type, return-value]
        if what != "got":
            acked[key].append(seq)
        else:
            first[key].setdefault(seq, at)
    for key, seqs in sent.items():
        assert seqs == set(range(1, len(seqs) + 1)), key
        assert sorted(acked[key]) == sorted(seqs), f"key {key}: lost or doubled"  # type: ignore[type-var]
        assert list(first[key]) == sorted(first[key]), f"key {key}: overtaken"  # type: ignore[type-var]
