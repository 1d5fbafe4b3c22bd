"""After a power cut of a target, everything shipped is stored, and shipping continues. A restored queue is complete."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import strictq
from strictq import StrictqError
from strictq import _files as files
from strictq._store.shipping.rebuild import Rebuild
from strictq.replication import shipper as shipping
from strictq.replication.directory import DirectoryTarget
from strictq.replication.restoring import restore
from strictq.testing import FakeClock
from tests.support.powercut import quiet, recording
from tests.support.powercut_campaign import fast_directory
from tests.support.powercut_disk import MODES, Op, Platter, put_out
from tests.support.powercut_verify import Broken
from tests.support.shipping import ship_once, shipping_to

ROUNDS = 10
EVERY = 2
"""One of so many points is cut in the normal case."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with fast_directory(tmp_path) as directory:
        yield directory


@attrs.frozen
class ShippedRun:
    """The recording. Entries "shipped" have the number of messages that the target certainly has by then."""

    start: Any
    ops: list[Op]
    queues: list[Path]
    """Copies of the queue, by its number of messages."""


def record(place: Path, clock: FakeClock) -> ShippedRun:
    """Ship a message per round, and sometimes a base, after which old segments are deleted."""
    (place / "recorded").mkdir()
    queues = [place / "none"]
    with recording(place / "recorded", clock) as journal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipping, "CHAIN_SEGMENTS_MAX", 3)
        with strictq.open(place / "q", durability="process", clock=clock) as q:
            q.send(b"0", key="k")
            queues.append(_copied(place / "q", place / "q-1"))
            with shipping_to(q, journal.root / "t", keep_seconds=0) as shipper:
                for n in range(1, ROUNDS):
                    shipper.round()
                    journal.note("shipped", at=n)
                    clock.advance(1)
                    q.send(b"%d" % n, key="k")
                    queues.append(_copied(place / "q", place / f"q-{n + 1}"))
                shipper.round()
                journal.note("shipped", at=ROUNDS)
        journal.recording = False
    assert any(op.kind == "unlink" and op.name.endswith(".seg") for op in journal.ops), "retention did nothing"
    return ShippedRun(journal.start, journal.ops, queues)


def _copied(queue: Path, to: Path) -> Path:
    shutil.copytree(queue, to)
    return to


def judge(run: ShippedRun, image: Path, clock: FakeClock, *, every: int) -> int:
    """Cut the power at each point, and verify the result. Return the number of images.

    Raises:
        Broken: something shipped is missing, or shipping does not continue.
    """
    platter, shipped, judged = Platter(run.start), 0, set()
    for n, op in enumerate(run.ops):
        platter.follow(op)
        if op.kind == "shipped":
            shipped = op.at
        elif n % every:
            continue
        for mode in MODES:
            chance = random.Random(n)
            disk = platter.cut(mode, chance)
            if (disk.fingerprint(), shipped) in judged:
                continue
            judged.add((disk.fingerprint(), shipped))
            put_out(disk, image, chance)
            try:
                if shipped:
                    require(image, shipped, clock)
                # The queue is in its last state, including the message in transit.
                live = run.queues[min(shipped + 1, ROUNDS)]
                shutil.copytree(live, image / "q")
                with quiet(clock), strictq.open(image / "q", durability="process", clock=clock) as q:
                    if not _is_ours(image / "t"):
                        continue  # an operator configures it again
                    ship_once(q, image / "t")
                require(image, min(shipped + 1, ROUNDS), clock)
            except StrictqError as e:
                raise Broken(f"behind entry {n}, {mode}, of {shipped} shipped: {e}") from e
    return len(judged)


def _is_ours(target: Path) -> bool:
    return (target / "replica.json").exists()


def require(image: Path, least: int, clock: FakeClock) -> None:
    """Restore the newest state, and require its first messages: at least this many."""
    shutil.rmtree(image / "r", ignore_errors=True)
    with quiet(clock):
        restore(image / "t", image / "r")
        with strictq.open(image / "r", read_only=True, clock=clock) as r:
            found = [m.body for m in r.peek("k", 100)]
    if found != [b"%d" % n for n in range(len(found))] or len(found) < least:
        raise Broken(f"{least} messages were shipped, and there are {found}")


def test_what_was_shipped_survives_a_power_cut_of_the_target(place: Path) -> None:
    clock = FakeClock()
    assert judge(record(place, clock), place / "image", clock, every=EVERY) > 100


def _unsynced_segments(patch: pytest.MonkeyPatch) -> None:
    def write(path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.write(fd, data)
        os.close(fd)

    patch.setattr(DirectoryTarget, "_write", staticmethod(write))


def _unsynced_names(patch: pytest.MonkeyPatch) -> None:
    real = files.sync_directory
    patch.setattr(files, "sync_directory", lambda path: None if path.name == "t" else real(path))


def _unsynced_place(patch: pytest.MonkeyPatch) -> None:
    real = files.sync_directory
    patch.setattr(files, "sync_directory", lambda path: real(path) if path.name == "t" else None)


@pytest.mark.parametrize("weaken", [_unsynced_segments, _unsynced_names, _unsynced_place])
def test_each_sync_of_the_target_is_needed(
    weaken: Callable[[pytest.MonkeyPatch], None], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with monkeypatch.context() as patch:
        weaken(patch)
        run = record(place, clock)
    with pytest.raises(Broken):
        judge(run, place / "image", clock, every=1)


# ---- a restored queue


def record_restore(place: Path, clock: FakeClock) -> tuple[Any, list[Op]]:
    """Restore a queue, and do nothing after that."""
    with quiet(clock), strictq.open(place / "q", durability="process", shards=2, clock=clock) as q:
        for n in range(ROUNDS):
            q.send(b"%d" % n, key="k")
        ship_once(q, place / "t")
    (place / "recorded").mkdir()
    with recording(place / "recorded", clock) as journal:
        restore(place / "t", journal.root / "r", alone=True)
        journal.note("restored")
        journal.recording = False
    return journal.start, journal.ops


def judge_restored(start: Any, ops: list[Op], image: Path, clock: FakeClock) -> None:
    """Require a queue with this name to be complete, and to exist once the restore has returned.

    Raises:
        Broken: it is not.
    """
    platter, done, judged = Platter(start), False, set()
    for n, op in enumerate(ops):
        platter.follow(op)
        done = done or op.kind == "restored"
        for mode in MODES:
            chance = random.Random(n)
            disk = platter.cut(mode, chance)
            if (disk.fingerprint(), done) in judged:
                continue
            judged.add((disk.fingerprint(), done))
            put_out(disk, image, chance)
            if not (image / "r").exists():
                if done:
                    raise Broken("it is not there")
                continue
            try:
                with quiet(clock), strictq.open(image / "r", durability="process", clock=clock, create=False) as q:
                    if [m.body for m in q.peek("k", 100)] != [b"%d" % i for i in range(ROUNDS)] or q.check():
                        raise Broken(f"behind entry {n}, {mode}")
            except StrictqError as e:
                raise Broken(f"behind entry {n}, {mode}: {e}") from e


def test_a_restored_queue_is_all_there_whenever_the_power_goes(place: Path) -> None:
    clock = FakeClock()
    start, ops = record_restore(place, clock)
    judge_restored(start, ops, place / "image", clock)


class Unsynced:
    """A file whose sync does nothing."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def xSync(self, flags: int) -> None:
        """Leave it to the system."""


def _unsynced_pages(patch: pytest.MonkeyPatch) -> None:
    real = Rebuild._file

    def file(self: Rebuild, shard: int) -> Any:
        made = real(self, shard)
        if not isinstance(made, Unsynced):
            self._files[shard] = Unsynced(made)  # type: ignore[assignment]
        return self._files[shard]

    patch.setattr(Rebuild, "_file", file)


def _unsynced_directories(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "sync_directory", lambda _path: None)


@pytest.mark.parametrize("weaken", [_unsynced_pages, _unsynced_directories])
def test_each_sync_of_a_restore_is_needed(
    weaken: Callable[[pytest.MonkeyPatch], None], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with monkeypatch.context() as patch:
        weaken(patch)
        start, ops = record_restore(place, clock)
    with pytest.raises(Broken):
        judge_restored(start, ops, place / "image", clock)
