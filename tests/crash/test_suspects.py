"""A process dies of one message: that message is found, and no other one is charged for it.

Processes are killed by SIGKILL, and a log outside of the queue is checked.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

import strictq
from strictq import Delivery, Message, Queue, QueueConfig
from tests.support.campaign import spawn
from tests.support.deadly import BATCH_MAX, HOWS
from tests.support.running import PATIENCE_SECONDS

KEYS = ("a", "b", "c", "d")
MESSAGES = 30
DEADLY = ("b", 5)
KILLERS = int(os.environ.get("STRICTQ_KILLERS", str(len(HOWS))))
"""How many campaigns of killers among innocents are run."""
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


@pytest.mark.in_turn
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


# ---- several messages at once


@attrs.frozen
class Case:
    """One campaign.

    Attributes:
        keys: how many keys, each with some messages.
        deadly: how many of these keys have a message that kills its process.
        processes: how many worker processes are restarted when they die.
    """

    how: str
    concurrency: int
    keys: int
    deadly: int
    processes: int = 1
    max_attempts: int = 2
    shards: int = 1
    seed: int = 0

    @classmethod
    def of(cls, seed: int) -> Case:
        chance = random.Random(seed)
        keys = chance.randint(3, 24)
        deadly = chance.randint(1, min(3, keys - 1))
        how = HOWS[seed % len(HOWS)]
        return cls(
            how, chance.randint(1, 3 if how == "process" else 16), keys, deadly, chance.randint(1, 3), chance.randint(1, 3),
            chance.choice([1, 1, 4]), seed,
        )  # fmt: skip

    def messages(self) -> list[Message]:
        chance = random.Random(self.seed)
        bodies = {f"k{n}": [b""] * chance.randint(1, 4) for n in range(self.keys)}
        for key in chance.sample(sorted(bodies), self.deadly):
            bodies[key][chance.randrange(len(bodies[key]))] = b"deadly"
        if self.max_attempts > 2:
            some = next(key for key in bodies if b"deadly" not in bodies[key])
            bodies[some][0] = b"failing"
        rows = [Message(body, key=key) for key, some in bodies.items() for body in some]
        chance.shuffle(rows)
        return rows


def run(case: Case, directory: Path) -> tuple[list[Path], list[list[str]], int]:
    """Run a case until its queues are empty. Return the queues, the lines of the log, and how often a process died."""
    log = directory / "log"
    log.touch()
    paths = [directory / f"queue-{n}" for n in range(2 if case.how == "several" else 1)]
    config = QueueConfig(max_attempts=case.max_attempts, retry_for_seconds=0.0, retry_delay_seconds=0.01, lease_seconds=20.0)
    with ExitStack() as stack:
        queues = [
            stack.enter_context(strictq.open(path, durability="process", config=config, shards=case.shards)) for path in paths
        ]
        for n, message in enumerate(case.messages()):
            queues[n % len(queues)].send(message)
        deaths = 0
        running: list[subprocess.Popen[bytes] | None] = [None] * case.processes
        end = time.monotonic() + 4 * PATIENCE_SECONDS
        while any(q.stats().depth for q in queues):
            assert time.monotonic() < end, log.read_text()
            for n, process in enumerate(running):
                code = 0 if process is None else process.poll()
                if code is not None:
                    assert code in (0, -signal.SIGKILL)
                    deaths += code != 0
                    running[n] = spawn("deadly", log, case.how, case.concurrency, *paths)
            time.sleep(0.02)
        for process in running:
            if process is not None and process.wait(PATIENCE_SECONDS):
                deaths += 1
    return paths, [line.split() for line in log.read_text().splitlines()], deaths


def check(case: Case, directory: Path) -> None:
    """Run a case. Only the killers are given up; the others are done, uncharged and in order; the deaths are bounded."""
    paths, lines, deaths = run(case, directory)
    messages = case.messages()
    seqs: dict[object, int] = defaultdict(int)
    killers: set[tuple[int, object, int]] = set()
    bodies: dict[tuple[str, int, int], bytes] = {}
    for n, message in enumerate(messages):
        key = message.key, n % len(paths)
        seqs[key] += 1
        bodies[str(message.key), n % len(paths), seqs[key]] = message.body
        if message.body == b"deadly":
            killers.add((n % len(paths), message.key, seqs[key]))
    acks = 0
    for n, path in enumerate(paths):
        with strictq.open(path) as q:
            assert {(n, d.key, d.seq) for d in q.dead_letters()} == {k for k in killers if k[0] == n}
            assert {d.attempts for d in q.dead_letters()} <= {case.max_attempts}
            stats = q.stats()
            assert (stats.depth, stats.in_flight) == (0, 0)
            acks += stats.acks
            assert q.check() == []
    assert acks == len(messages) - len(killers)
    assert deaths <= len(killers) * (case.max_attempts + 1)
    if len(paths) == 1:
        check_log(case, lines, killers, bodies)


def check_log(
    case: Case, lines: list[list[str]], killers: set[tuple[int, object, int]], bodies: dict[tuple[str, int, int], bytes]
) -> None:
    deadly = {(str(key), seq) for _, key, seq in killers}
    back = BATCH_MAX - 1 if case.how == "batch" else 0  # a batch that a kill interrupted begins again
    done: dict[str, int] = defaultdict(int)
    at_work: dict[str, set[tuple[str, int]]] = defaultdict(set)
    died: dict[tuple[str, int], list[tuple[int, set[tuple[str, int]]]]] = defaultdict(list)
    for what, key, text, attempt, pid in lines:
        seq = int(text)
        if what == "ended":
            at_work[pid].discard((key, seq))
            assert done[key] - back <= seq <= done[key] + 1, f"{key} {seq} came into a handler after {done[key]}"
            done[key] = max(seq, done[key])
            continue
        at_work[pid].add((key, seq))
        if (key, seq) in deadly:
            died[key, seq].append((int(attempt), at_work[pid]))
            done[key] = max(seq, done[key])
        elif bodies[key, 0, seq] == b"":
            assert attempt == "1", f"{key} {seq} was charged"
    assert died.keys() == deadly
    for attempts in died.values():
        for attempt, others in attempts:
            if attempt > 1:
                assert len(others) == 1, "a suspect that was charged did not run alone"


@pytest.mark.in_turn
@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.slow] if n else []) for n, how in enumerate(HOWS)])
def test_a_killer_is_found_and_its_neighbours_go_on(tmp_path: Path, how: str) -> None:
    check(Case(how, concurrency=3 if how == "process" else 8, keys=9, deadly=1), tmp_path)


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(KILLERS))
def test_killers_among_innocents(tmp_path: Path, seed: int) -> None:
    check(Case.of(seed), tmp_path)
