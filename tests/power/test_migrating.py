"""The power is cut in the middle of a migration: the next run finishes it, and nothing is lost."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import strictq
from strictq import SchemaMismatch
from strictq._store.migrating import moving, reader
from strictq.testing import FakeClock
from tests.store.test_moving import Waiting
from tests.support import format_2
from tests.support.format_1 import require_busy, unpacked
from tests.support.powercut import quiet, recording
from tests.support.powercut_disk import MODES, Platter, put_out

EVERY = 12


@pytest.mark.in_turn
@pytest.mark.parametrize("phase", range(0, EVERY, 4))
def test_a_cut_at_any_point_of_a_migration(phase: int, place: Path) -> None:
    clock = FakeClock()
    (place / "recorded").mkdir()
    unpacked("busy", place / "recorded" / "q")
    with recording(place / "recorded", clock) as journal:
        strictq.migrate(journal.root / "q", clock=clock)
    platter = Platter(journal.start)
    chance = random.Random(phase)
    refused = partly = whole = 0
    for index, op in enumerate(journal.ops):
        platter.follow(op)
        if index % EVERY != phase and op.kind not in ("sync", "syncdir"):
            continue
        put_out(platter.cut(chance.choice(MODES) if platter.pending else "none", chance), place / "image", chance)
        later = FakeClock(boot_seconds=5_000.0)
        later.reboot()
        with quiet(later):
            try:
                with strictq.open(place / "image" / "q", clock=later) as q:
                    reasons = [shard.quarantined for shard in q.stats().shards if shard.quarantined is not None]
                assert all(re.search("format [12] is older", reason) for reason in reasons)
                partly += bool(reasons)
                whole += not reasons
            except SchemaMismatch:
                refused += 1
            with strictq.open(place / "image" / "q", clock=later, migrate=True) as q:
                require_busy(q)
    assert min(refused, partly, whole) > 0, (refused, partly, whole)


@pytest.mark.parametrize(("kind", "every"), [("backlog_shards", 4), ("retries", 1)])
def test_a_cut_at_any_point_of_a_move_to_the_next_format(
    kind: str, every: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard has format 2 until its last transaction. The backlog takes long, so it is cut at some of its syncs."""
    monkeypatch.setattr(reader, "PART_MESSAGES", 20)
    monkeypatch.setattr(moving, "WAL_BYTES", 1 << 16)
    facts = format_2.facts_of(kind)
    (place / "recorded").mkdir()
    source = format_2.unpacked(kind, place / "made")
    source.rename(place / "recorded" / "q")
    with recording(place / "recorded", format_2.clock_of(facts)) as journal:
        strictq.migrate(journal.root / "q", clock=format_2.clock_of(facts))
    platter = Platter(journal.start)
    chance = random.Random(kind)
    found, syncs = set(), 0
    for index, op in enumerate(journal.ops):
        platter.follow(op)
        syncs += op.kind in ("sync", "syncdir")
        if syncs % every if op.kind in ("sync", "syncdir") else index % (40 * every):
            continue
        put_out(platter.cut(chance.choice(MODES) if platter.pending else "none", chance), place / "image", chance)
        later = format_2.clock_of(facts)
        later.reboot()
        with quiet(later):
            done = strictq.migrate(place / "image" / "q", clock=later)
            found.add((done.old, done.files))
            with strictq.open(place / "image" / "q", clock=later) as q:
                assert q.check() == []
                waiting = Waiting(facts, later)
                waiting.drain(q)
                waiting.require_over(q)
    assert len(found) >= 3, "some cuts left a part of the files migrated"
