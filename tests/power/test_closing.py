"""The power is cut while the last process closes a queue: during its checkpoint, and the truncation of its WAL."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import strictq
from strictq.testing import FakeClock
from tests.support.powercut import Journal, quiet, recording
from tests.support.powercut_disk import MODES, Disk, Platter, put_out
from tests.support.powercut_run import PLACE, Level

SENT, ACKED = 12, 4


def record(place: Path, clock: FakeClock, level: Level) -> Journal:
    """Send and ack some messages, each in its own commit, and close the queue."""
    (place / "recorded").mkdir()
    with recording(place / "recorded", clock) as journal:
        q = strictq.open(journal.root / PLACE, durability=level, clock=clock)
        for n in range(SENT):
            q.send(b"%d" % n, "k")
        for _ in range(ACKED):
            q.receive(1)[0].ack()
        journal.note("closing")
        q.close()
        journal.note("closed")
    return journal


def images(journal: Journal) -> Iterator[tuple[bool, Disk]]:
    """Yield whether the close was over, and a possible disk, for every moment from the beginning of the close."""
    platter = Platter(journal.start)
    begun = done = False
    for n, op in enumerate(journal.ops):
        platter.follow(op)
        begun, done = begun or op.kind == "closing", done or op.kind == "closed"
        if begun and op.kind not in ("begin", "end"):
            for mode in MODES:
                yield done, copy.deepcopy(platter).cut(mode, random.Random(n))


@pytest.mark.parametrize("level", ["full", "process"])
def test_nothing_is_lost_whenever_the_power_goes(level: Level, place: Path) -> None:
    clock = FakeClock()
    journal = record(place, clock, level)
    clock.reboot()
    judged: set[int] = set()
    for done, disk in images(journal):
        if (key := hash((done, disk.fingerprint()))) in judged:
            continue
        judged.add(key)
        put_out(disk, place / "image", random.Random(0))
        with quiet(clock), strictq.open(place / "image" / PLACE, clock=clock, create=False) as q:
            assert q.check() == []
            left = [m.seq for m in q.peek("k", 100)]  # a receive delivers a started message alone
            assert left == list(range(left[0], left[-1] + 1)) if left else True, "in order, without a hole"
            if level == "full" or done:
                assert left == list(range(ACKED + 1, SENT + 1))
            assert q.send(b"", "k").seq == (left[-1] if left else 0) + 1, "no seq is issued twice"
    assert len(judged) > 10
