"""After a power cut of a replica's host, everything confirmed is stored, and receiving and promoting continue.

`python -m tests.campaigns replicas` does this with as many programs as one likes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strictq._platform import files
from strictq._store.shipping.rebuild import PageFiles
from strictq.replication.replica_home import STATE, ApplyingMark
from tests.support.powercut_verify import Broken
from tests.support.replica_cuts import ReplicaJudge, cut_again, record
from tests.support.shipped_runs import ship

SEEDS = (2, 3)
RARE_SEED = 19
"""Of twenty programs, about one shows that a replica must know which of its pages may be unsynced."""
EVERY = 10
"""One of so many points is cut in the normal case."""
Weaken = Callable[[pytest.MonkeyPatch], None]


def attack(place: Path, seed: int, *, every: int, again: int = 0, weaken: Weaken = lambda _patch: None) -> int:
    """Record a replica with a safety measure removed, and judge it. Return the number of images."""
    run = ship(place, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        weaken(patch)
        made = record(place / "recorded-replica", run, seed=seed)
    judge = ReplicaJudge(place / "image", run)
    judge.judge(made, every=every)
    cut_again(judge, made, place / "again", seed=seed, times=again, every=every)
    return judge.images.total()


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_replica_confirmed_survives_a_power_cut(place: Path, seed: int) -> None:
    assert attack(place, seed, every=EVERY, again=1) > 60


def _unsynced_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "sync_data", lambda _fd: None)


def _unsynced_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageFiles, "sync", lambda _self: None)


def _unsynced_state(patch: pytest.MonkeyPatch) -> None:
    real = files.replace_durably

    def replace(path: Path, data: bytes) -> None:
        (files.replace if path.name == STATE else real)(path, data)

    patch.setattr(files, "replace_durably", replace)


def _unsynced_mark(patch: pytest.MonkeyPatch) -> None:
    """Keep the mark that live/ was synced when it is written to."""

    def begin(self: ApplyingMark) -> None:
        self._write(False, self._boot)

    patch.setattr(ApplyingMark, "begin", begin)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("weaken", "seed"), [(_unsynced_log, 2), (_unsynced_pages, 2), (_unsynced_state, 2), (_unsynced_mark, RARE_SEED)]
)
def test_each_sync_of_a_replica_is_needed(weaken: Weaken, seed: int, place: Path) -> None:
    with pytest.raises(Broken):
        attack(place, seed, every=2, weaken=weaken)
