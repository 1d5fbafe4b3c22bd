"""A process that holds large leases and dies of one message: that one is delivered alone, and its neighbours come in batches."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import strictq
from strictq import Delivery, Message, Queue, QueueConfig
from tests.support.campaign import PATIENCE_SECONDS, spawn

KEYS = ("a", "b", "c", "d")
MESSAGES = 30
DEADLY = ("b", 5)
WAYS = pytest.mark.parametrize("how", ["consume", "with", "worker"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of four keys, with one message that kills its process."""
    where = tmp_path / "queue"
    with strictq.open(where, durability="process", config=QueueConfig(max_attempts=3)) as q:
        q.send_many([Message(b"deadly" if (key, n) == DEADLY else b"", key=key) for key in KEYS for n in range(1, MESSAGES + 1)])
    return where


def handled(log: Path) -> list[tuple[str, int, int]]:
    """Key, seq and attempt of every message that came into a handler."""
    rows = [line.split() for line in log.read_text().splitlines()]
    return [(key, int(seq), int(attempt)) for key, seq, attempt in rows]


def unresolved(q: Queue) -> set[tuple[object, int]]:
    return {(key, m.seq) for key in KEYS for m in q.peek(key, MESSAGES)}


def take_all(q: Queue, keys: set[object]) -> dict[object, list[Delivery]]:
    """The first delivery of each of these keys: the batch that came with it."""
    got: dict[object, list[Delivery]] = {}
    while got.keys() != keys:
        batch = q.receive(1_000, lease_seconds=PATIENCE_SECONDS, wait=PATIENCE_SECONDS)
        assert batch, "a lease of a dead process goes on"
        for d in batch:
            got.setdefault(d.key, []).append(d)
    return got


@WAYS
def test_only_what_was_started_is_alone_after_a_kill(path: Path, tmp_path: Path, how: str) -> None:
    log = tmp_path / "log"
    assert spawn("programs", "killed", path, how, log).wait(PATIENCE_SECONDS) == -signal.SIGKILL
    assert handled(log)[-1] == (*DEADLY, 1)
    with strictq.open(path) as q:
        left = unresolved(q)
        got = take_all(q, {key for key, _ in left})
        key, seq = DEADLY
        assert [(d.seq, d.attempt) for d in got.pop(key)] == [(seq, 2)]
        assert q.explain(key).solo
        for other, batch in got.items():
            assert {(other, d.seq) for d in batch} == {m for m in left if m[0] == other}, "in one batch"
            assert {d.attempt for d in batch} == {1}


@WAYS
def test_a_message_that_kills_its_process_is_given_up_and_no_other_is_charged(path: Path, tmp_path: Path, how: str) -> None:
    log = tmp_path / "log"
    exits = []
    for _ in range(4):
        exits.append(spawn("programs", "killed", path, how, log).wait(PATIENCE_SECONDS))
        with strictq.open(path) as q:
            if q.stats().depth == 0:
                break
            # What the dead process held is ready when its leases are over, which need not end together.
            for key in {key for key, _ in unresolved(q)}:
                q.receive(1, keys=[key], wait=PATIENCE_SECONDS)[0].lease.release()
    assert exits == [-signal.SIGKILL] * 3 + [0]
    innocent = sorted(row for row in handled(log) if row[:2] != DEADLY)
    assert innocent == sorted((key, n, 1) for key in KEYS for n in range(1, MESSAGES + 1) if (key, n) != DEADLY)
    with strictq.open(path) as q:
        assert [(d.key, d.seq, d.attempts) for d in q.dead_letters()] == [(*DEADLY, 3)]
