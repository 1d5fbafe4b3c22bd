"""Ship a queue manually, round by round, and queues whose every restored state can be judged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import strictq
from strictq import LeaseLost, Message, Queue
from strictq._store.api import ShipProgress
from strictq.replication.places import parse, target_of
from strictq.replication.restoring import restore
from strictq.replication.segment import SegmentHeader
from strictq.replication.shipper import Shipper
from tests.support.running import ROOT

HISTORY = "f" * 32


def shipper_of(
    q: Queue,
    target: Path | str,
    *,
    key: bytes = b"",
    term: int = 1,
    keep_seconds: float = 86_400.0,
    verify_seconds: float = 86_400.0,
    on_put: Callable[[SegmentHeader], None] = lambda _header: None,
) -> Shipper:
    """Return a shipper of this queue that no thread runs."""
    place = target_of(parse(target), key)
    place.prepare(Path(q.path))
    place.claim({"format": 1, "queue_id": q.queue_id, "history_id": HISTORY})
    progress = ShipProgress(Path(q.path))
    storage = q._storage
    return Shipper(
        storage.replicating.capture(),
        place,
        storage.clock,
        progress,
        history_id=HISTORY,
        term=term,
        keep_seconds=keep_seconds,
        verify_seconds=verify_seconds,
        on_put=on_put,
    )


def ship_once(q: Queue, target: Path | str, **options: Any) -> Shipper:
    """Do what a shipper does that starts, ships everything, and ends."""
    shipper = shipper_of(q, target, **options)
    try:
        shipper.round()
    finally:
        shipper.close()
    return shipper


@contextmanager
def shipping_to(q: Queue, target: Path | str, **options: Any) -> Iterator[Shipper]:
    """Yield a shipper that is closed at the end of the block."""
    shipper = shipper_of(q, target, **options)
    try:
        yield shipper
    finally:
        shipper.close()


# ---- a queue whose every state can be judged: each task passes through the stages, and is in one place at a time

STAGES = 6
"""Keys "stage-0" …, several of which are in each shard."""


def begin_tasks(q: Queue, numbers: range) -> None:
    q.send_many([Message(b"%d" % n, key="stage-0") for n in numbers])


def pass_on(q: Queue, limit: int = 20) -> int:
    """Receive tasks, and send each to the next stage, in one transaction with the ack."""
    passed = 0
    for d in q.receive(limit, lease_seconds=2):  # a killed process holds its lanes for that long
        stage = int(str(d.key).partition("-")[2])
        with suppress(LeaseLost), q.transaction(d) as tx:
            tx.send(d.body, key=f"stage-{(stage + 1) % STAGES}")
            passed += 1
    return passed


def problems_of(path: Path) -> list[str]:
    """Return what is wrong with a queue of tasks: the findings of check(), and tasks that are missing or in two places.

    Tasks are numbered in the order in which they were sent, so a state has all of them from 0 to its newest.
    """
    wrong: list[str] = []
    with strictq.open(path, durability="process") as q:  # opening it forwards what was in outboxes
        wrong += [f"{p.rule}: {p.detail}" for p in q.check()]
        found: list[int] = []
        for stage in range(STAGES):
            messages = q.peek(f"stage-{stage}", 100_000)
            found += [int(m.body) for m in messages]
            if [m.seq for m in messages] != sorted(m.seq for m in messages):
                wrong.append(f"stage {stage} is out of order")
    if sorted(found) != list(range(len(found))):
        missing = set(range(max(found, default=-1) + 1)) - set(found)
        twice = sorted({n for n in found if found.count(n) > 1})
        wrong.append(f"tasks that are missing: {sorted(missing)[:5]}, that are there twice: {twice[:5]}")
    return wrong


def require_states(target: Path | str, place: Path, numbers: Sequence[int], count: int) -> None:
    """Restore some of these states, the last one included, and require each to be one that a queue of tasks had."""
    for n in sorted({*numbers[:: max(len(numbers) // count, 1)], numbers[-1]}):
        restore(target, place / f"r{n}", cut=n, alone=True)
        assert problems_of(place / f"r{n}") == [], f"of state {n}"


WORKER = """
import sys
import strictq
from tests.support.shipping import pass_on

with strictq.open(sys.argv[1], durability="process") as q:
    print("ready", flush=True)
    while True:
        pass_on(q)
"""


@contextmanager
def working(path: Path, count: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield processes that forward tasks. They are killed at the end of the block. One of those with the queue open ships."""
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(path)], cwd=ROOT, stdout=subprocess.PIPE) for _ in range(count)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
