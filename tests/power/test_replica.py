"""After a power cut of a target, everything shipped is stored, and shipping continues. A restored queue is complete.

`python -m tests.campaigns replicas` does this with as many programs as one likes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strictq._platform import files
from strictq._store.shipping.rebuild import Rebuild
from strictq.replication.directory import DirectoryTarget
from tests.support.powercut_verify import Broken
from tests.support.shipped_runs import ship
from tests.support.target_cuts import TargetJudge, judge_restored, record_restore

SEEDS = (1, 2)
EVERY = 8
"""One of so many points is cut in the normal case."""
Weaken = Callable[[pytest.MonkeyPatch], None]


def attack(place: Path, seed: int, *, every: int, weaken: Weaken = lambda _patch: None) -> int:
    """Record a target with a safety measure removed, and judge it. Return the number of images."""
    with pytest.MonkeyPatch.context() as patch:
        weaken(patch)
        run = ship(place, seed=seed)
    assert any(op.kind == "unlink" and op.name.endswith(".seg") for op in run.ops), "retention did nothing"
    assert run.folds, "nothing was folded"
    return TargetJudge(place / "image", run).judge(every=every)


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_shipped_survives_a_power_cut_of_the_target(place: Path, seed: int) -> None:
    assert attack(place, seed, every=EVERY) > 50


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
def test_each_sync_of_the_target_is_needed(weaken: Weaken, place: Path) -> None:
    with pytest.raises(Broken):
        attack(place, SEEDS[0], every=1, weaken=weaken)


# ---- a restored queue


def attack_restore(place: Path, weaken: Weaken = lambda _patch: None) -> None:
    """Record a restore with a safety measure removed, and judge it."""
    run = ship(place, seed=SEEDS[0])
    with pytest.MonkeyPatch.context() as patch:
        weaken(patch)
        made = record_restore(place, run)
    judge_restored(made, place / "image")


def test_a_restored_queue_is_all_there_whenever_the_power_goes(place: Path) -> None:
    attack_restore(place)


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
def test_each_sync_of_a_restore_is_needed(weaken: Weaken, place: Path) -> None:
    with pytest.raises(Broken):
        attack_restore(place, weaken)
