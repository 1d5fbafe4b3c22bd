"""Power cuts of a forwarder's queue at "full": no message may be lost, and none may arrive twice within the endpoint's window."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

import strictq
from strictq import Forwarder, QueueConfig
from strictq.testing import FakeClock
from tests.remote.arrived import arrived, by_key, to
from tests.support.fake_sqs import CUT, FakeSqs, Fault, meanwhile
from tests.support.powercut import Journal, quiet, recording
from tests.support.powercut_disk import Disk, Mode, Platter, put_out
from tests.support.powercut_run import PLACE

CONFIG = QueueConfig(max_attempts=None)
KEYS = "abc"
ROUNDS = 3
MODES: tuple[Mode, ...] = ("none", "torn", "subset")


def forward(q: strictq.Queue, sqs: FakeSqs) -> None:
    with suppress(strictq.ServerUnreachable):  # the lost answer; the messages remain
        Forwarder(q, to(sqs), concurrency=1, batch=3, per_key=2).run(drain=True)


def record(place: Path, clock: FakeClock) -> tuple[Journal, list[dict[str, Any]]]:
    """Send and forward in turns, with one answer lost. Return the journal, and the requests that took effect."""
    (place / "recorded").mkdir()
    requests: list[dict[str, Any]] = []
    sqs = FakeSqs(clock)

    def choose(action: str, parameters: Any) -> Fault | None:
        def done() -> None:
            requests.append(dict(parameters))
            journal.note("request")

        if action != "send_message_batch":
            return None
        return attrs.evolve(CUT, after=done) if len(requests) == 3 else meanwhile(after=done)

    with recording(place / "recorded", clock) as journal:
        journal.reads_commits = False
        q = strictq.open(journal.root / PLACE, clock=clock, config=CONFIG)
        sqs.choose = choose
        for n in range(ROUNDS):
            for key in KEYS:
                for part in "xy":
                    q.send(f"{n}{part}".encode(), key)
                    journal.note("sent", key)
            forward(q, sqs)
            clock.advance(2)
        forward(q, sqs)
        assert q.stats().depth == 0
        journal.recording = False
        q.close()
    return journal, requests


def cuts(journal: Journal, chance: random.Random, share: float) -> Iterator[tuple[dict[str, int], int, Disk]]:
    """Yield how many sends of each key had returned, how many requests had taken effect, and a disk, at some moments."""
    platter, sent, requests = Platter(journal.start), dict.fromkeys(KEYS, 0), 0
    for op in journal.ops:
        platter.follow(op)
        if op.kind == "sent":
            sent[op.name] += 1
        elif op.kind == "request":
            requests += 1
        if sum(sent.values()) and chance.random() < share:
            yield dict(sent), requests, platter.cut(chance.choice(MODES), chance)


def cut_the_power(place: Path, seed: int, share: float = 1.0) -> int:
    """Forward what each of the disks after a cut has, to the endpoint as it was then. Return the number of disks."""
    clock, chance = FakeClock(), random.Random(seed)
    journal, requests = record(place, clock)
    clock.reboot()
    bodies = [f"{n}{part}".encode() for n in range(ROUNDS) for part in "xy"]
    judged: set[tuple[int, bytes]] = set()
    for sent, done, disk in cuts(journal, chance, share):
        if (state := (done, disk.fingerprint())) in judged:
            continue
        judged.add(state)
        put_out(disk, place / "image", chance)
        sqs = FakeSqs(clock)
        target = to(sqs)
        for parameters in requests[:done]:
            sqs.send_message_batch(**parameters)
        with quiet(clock), strictq.open(place / "image" / PLACE, clock=clock, create=False) as q:
            Forwarder(q, target, concurrency=1).run(drain=True)
            assert q.stats().depth == 0
            assert q.check() == []
        found = by_key(arrived(sqs))
        for key, count in sent.items():
            assert found.get(key, []) == bodies[: max(count, len(found.get(key, [])))]
    return len(judged)
