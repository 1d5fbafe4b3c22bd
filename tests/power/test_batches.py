"""A batch, and a power cut at any moment: a decided batch can be completed, and a complete one is stored."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import strictq
from strictq._store.api import Item, Size, Staging, Token, new_run
from strictq._values.keys import encode_key
from strictq.testing import FakeClock
from tests.support.powercut import Journal, quiet, recording
from tests.support.powercut_disk import Disk, Op, Platter, put_out
from tests.support.powercut_run import PLACE
from tests.support.queues import keys_by_shard

TOKEN = Token.query("q", 0)
KEYS = keys_by_shard(2)
BODY = b"a body that takes its time"


def stage(staging: Staging, shard: int) -> str:
    """Stage a file with one message of a shard. Bypasses Python's own buffers, so that it is recorded."""
    name, file = staging.create(0, new_run())
    with file:
        os.write(file.fileno(), json.dumps([shard, BODY.decode()]).encode())
    return name


def bring(q: strictq.Queue, path: Path, names: list[str]) -> None:
    """Write the parts of a decided batch, each to its shard, and finish it."""
    for name in names:
        shard, body = json.loads(Staging(path, TOKEN.writer).path(name).read_bytes())
        item: Item = (encode_key(KEYS[shard]), body.encode(), None, None)
        q._storage.bulk.put(TOKEN, shard, 0, [item])
    q._storage.bulk.finish(TOKEN, range(q.shards))


def record(place: Path, clock: FakeClock) -> Journal:
    """Write a batch over both shards, from its staged files to its end."""
    (place / "recorded").mkdir()
    with recording(place / "recorded", clock) as journal:
        path = journal.root / PLACE
        q = strictq.open(path, shards=2, durability="process", clock=clock)
        staging = Staging(path, TOKEN.writer)
        journal.note("batch")
        names = [stage(staging, shard) for shard in KEYS]
        staging.sync(names)
        q._storage.bulk.decide(TOKEN, Size(2), json.dumps(names))
        bring(q, path, names)
        journal.note("whole")
        journal.recording = False
        q.close()
    return journal


def images(journal: Journal) -> Iterator[tuple[bool, Disk]]:
    """Yield whether the program knows that all is done, and a disk: each shard's WAL is complete, or only synced parts are."""
    platter = Platter(journal.start)
    wals = [journal.number(journal.root / PLACE / f"shard-{shard:04d}.db-wal") for shard in KEYS]
    begun = done = False
    for op in journal.ops:
        platter.follow(op)
        begun, done = begun or op.kind == "batch", done or op.kind == "whole"
        if not begun or op.kind in ("begin", "end"):
            continue
        for lucky in ((), wals[:1], wals[1:], wals):
            cut = copy.deepcopy(platter)
            for wal in lucky:
                cut.follow(Op("sync", wal))
            yield done, cut.cut("none", random.Random(0))


def test_a_batch_is_nothing_or_can_be_finished_whenever_the_power_goes(place: Path) -> None:
    clock = FakeClock()
    journal = record(place, clock)
    clock.reboot()
    seen: set[tuple[str, int]] = set()
    judged: set[int] = set()
    for done, disk in images(journal):
        if (key := hash((done, disk.fingerprint()))) in judged:
            continue
        judged.add(key)
        put_out(disk, place / "image", random.Random(0))
        path = place / "image" / PLACE
        with quiet(clock), strictq.open(path, clock=clock, create=False) as q:
            assert q.check() == []
            known = q._storage.bulk.known(TOKEN)
            there = [shard for shard, key in KEYS.items() if [m.body for m in q.peek(key)] == [BODY]]
            seen.add(("none" if known is None else "whole" if known.whole else "decided", len(there)))
            if known is None:
                assert there == [], "nobody decided for it"
                assert not done
                continue
            if known.files is not None:
                bring(q, path, json.loads(known.files))
            assert [[m.body for m in q.peek(key)] for key in KEYS.values()] == [[BODY], [BODY]]
            assert q.check() == []
    assert seen >= {("none", 0), ("decided", 0), ("decided", 1), ("decided", 2), ("whole", 2)}
