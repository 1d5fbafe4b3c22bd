"""After a power cut at any moment, everything acknowledged is stored, and everything stored is right.

A program works on a queue while everything that is written to disk is recorded. Then disks are built as a power cut at any point
of the recording may leave them, and a queue is opened on each (`tests/support/powercut_verify.py` has the invariants). Some are
cut a second time while they are opened.

There are some six thousand images. For a long campaign set STRICTQ_POWERCUT_IMAGES to their number (shared by the kinds of
queue), and STRICTQ_POWERCUT_SEED to start from other random numbers. With pytest-xdist it uses several processors:

    STRICTQ_POWERCUT_IMAGES=1000000 python -m pytest -n 4 tests/power
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq._platform import files
from strictq._store.catalog import queue_db
from strictq._store.commit import connection
from strictq._store.disk import layout
from strictq._store.lane.memory import ShardMemory
from strictq._store.shard import shard_file
from strictq._store.whole import outbox
from strictq.testing import FakeClock
from tests.support.powercut import quiet, recording
from tests.support.powercut_campaign import Tally, campaign, cut_again
from tests.support.powercut_disk import MODES, Platter, put_out
from tests.support.powercut_run import KINDS, Level, record
from tests.support.powercut_verify import Broken

IMAGES = int(os.environ.get("STRICTQ_POWERCUT_IMAGES", "6000"))
SEED = int(os.environ.get("STRICTQ_POWERCUT_SEED", "1"))


def fresh(place: Path, name: str) -> Path:
    """Return an empty directory to record in."""
    shutil.rmtree(place / name, ignore_errors=True)
    (place / name).mkdir()
    return place / name


@pytest.mark.in_turn
@pytest.mark.parametrize(("level", "shards"), KINDS)
def test_a_cut_at_any_point(level: Level, shards: int, place: Path) -> None:
    tally = Tally()
    wanted = IMAGES * 5 // 6 // len(KINDS)
    for seed in itertools.count(SEED):
        run = record(fresh(place, "recorded"), seed=seed, level=level, shards=shards, steps=50)
        tally += campaign(run, place / "image", seed=seed, per_point=6, every=5, limit=wanted - tally.images)
        if tally.images >= wanted:
            break
    assert set(+tally.modes) == set(MODES)


def test_the_programs_fold(place: Path) -> None:
    assert record(fresh(place, "recorded"), seed=1, level="full", shards=2, steps=50).folds > 1


@pytest.mark.in_turn
@pytest.mark.parametrize(("level", "shards"), KINDS)
def test_a_second_cut_while_the_queue_is_opened(level: Level, shards: int, place: Path) -> None:
    images = 0
    wanted = IMAGES // 6 // len(KINDS)
    for seed in itertools.count(SEED):
        run = record(fresh(place, "recorded"), seed=seed, level=level, shards=shards, steps=25)
        images += cut_again(run, place / "image", seed=seed, images=3, per_point=3).images
        if images >= wanted:
            break


def test_a_queue_in_a_new_directory_is_there_after_a_cut(place: Path) -> None:
    """Its name is durable, and so are the names of the directories that were created for it."""
    root = fresh(place, "recorded")
    clock = FakeClock()
    with recording(root, clock) as journal:
        queue = strictq.open(journal.root / "new" / "newer" / "q.strictq", clock=clock)
        queue.send(b"body", "k")
        journal.recording = False
        queue.close()
    platter = Platter(journal.start)
    for op in journal.ops:
        platter.follow(op)
    put_out(platter.cut("none", random.Random(0)), place / "image", random.Random(0))
    with quiet(clock), strictq.open(place / "image" / "new" / "newer" / "q.strictq", create=False) as queue:
        assert [d.body for d in queue.receive()] == [b"body"]


def test_a_queue_gets_its_name_when_all_of_it_is_durable(place: Path) -> None:
    """On a file system where names become durable in any order, nothing of a queue that has its name may be missing."""
    clock = FakeClock()
    with recording(fresh(place, "recorded"), clock) as journal:
        queue = strictq.open(journal.root / "q.strictq", shards=2, clock=clock)
        journal.recording = False
        queue.close()
    platter = Platter(journal.start)
    named = next(n for n, op in enumerate(journal.ops) if op.other_name == "q.strictq")
    for op in journal.ops[:named]:
        platter.follow(op)
    building = journal.ops[named].other
    assert set(platter.durable.directories[building]) >= {"queue.db", "shard-0000.db", "shard-0001.db"}
    assert [op for op in platter.pending if op.file == building] == []


# --- the campaign would notice ----------------------------------------------------------------------------------------


def _weaker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        shard_file, "connect", lambda path, *, durability, **rest: connection.connect(path, durability="process", **rest)
    )


def _unsynced_checkpoints(patch: pytest.MonkeyPatch) -> None:
    def connect(path: str, *, durability: Any, cache_kib: int = connection.CACHE_KIB, **rest: Any) -> Any:
        db = connection.connect(path, durability=durability, cache_kib=cache_kib, **rest)
        if cache_kib == 256:
            db.pragma("synchronous", "off")
        return db

    patch.setattr(shard_file, "connect", connect)


def _unsynced_catalog(patch: pytest.MonkeyPatch) -> None:
    def connect(path: str, **options: Any) -> Any:
        db = connection.connect_catalog(path, **options)
        db.pragma("synchronous", "off")
        return db

    patch.setattr(queue_db, "connect_catalog", connect)


def _repeated_arrivals(patch: pytest.MonkeyPatch) -> None:
    real = outbox.arrive

    def arrive(tx: Any, origin: str, rows: Any) -> None:
        tx.run("DELETE FROM inlet WHERE origin = ?", (origin,))
        real(tx, origin, rows)

    patch.setattr(outbox, "arrive", arrive)


def _tokens_without_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardMemory, "new_token", lambda self: self.last_token + 1)


def _unsynced_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_file.Shard, "sync", lambda _self: None)


MUTATIONS: dict[str, tuple[Level, Callable[[pytest.MonkeyPatch], None]]] = {
    "commits are not synced": ("full", _weaker),
    "checkpoints are not synced": ("full", _unsynced_checkpoints),
    "the catalog is not synced": ("process", _unsynced_catalog),
    "a new queue's directory is not synced": ("full", lambda patch: patch.setattr(files, "sync_directory", lambda _path: None)),
    "what is forwarded is not synced": ("process", lambda patch: patch.setattr(layout, "sync_wal", lambda _path: None)),
    "the epoch is not raised": ("process", lambda patch: patch.setattr(queue_db, "raise_epoch", lambda *_args: None)),
    "tokens do not carry the epoch": ("process", _tokens_without_epoch),
    "an arrival is not remembered": ("full", _repeated_arrivals),
    "moves and recorded batches are not synced": ("process", _unsynced_steps),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_campaign_notices_when(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, mutate = MUTATIONS[name]
    mutate(monkeypatch)
    for seed in range(1, 6):
        run = record(fresh(place, "recorded"), seed=seed, level=level, shards=2, steps=40)
        try:
            campaign(run, place / "image", seed=seed, per_point=3, every=10, limit=400)
        except (Broken, strictq.StrictqError):
            return
    raise AssertionError("nothing was noticed")
