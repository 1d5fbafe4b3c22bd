"""Power cuts of a target directory's disk, and of the disk on which a queue is restored."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Final

import attrs

import strictq
from strictq import StrictqError
from strictq.replication.restoring import restore
from strictq.testing import FakeClock
from tests.support.powercut import quiet, recording
from tests.support.powercut_disk import MODES, Disk, Op, Platter, put_out
from tests.support.powercut_verify import Broken
from tests.support.powercut_verify import require as demand
from tests.support.shipped_runs import TARGET, Contents, ShippedRun
from tests.support.shipping import ship_once

RESTORED: Final = "r"
LATER: Final = 1_000
"""The term of a shipper that continues: later than all of a run."""


@attrs.define
class TargetJudge:
    """Restores queues from targets after power cuts, and lets shipping continue.

    Attributes:
        images: the number of different images, by the treatment of unsynced data. To each, a queue was shipped.
    """

    place: Path
    run: ShippedRun
    clock: FakeClock = attrs.field(factory=lambda: FakeClock(1_700_005_000.0, 10_000.0))
    """Later than a run, in the same boot of the primary's host."""
    images: Counter[str] = attrs.Factory(Counter)
    _seen: set[object] = attrs.Factory(set)
    _known: set[object] = attrs.Factory(set)

    def judge(self, *, every: int = 1) -> int:
        """Cut the power at each `every`-th point of a run, and after each round. Return the number of images.

        Raises:
            Broken: something shipped is missing, or shipping does not continue.
        """
        before = self.images.total()
        platter, shipped, putting = Platter(self.run.start), -1, -1
        for n, op in enumerate(self.run.ops):
            platter.follow(op)
            if op.kind == "shipped":
                shipped = op.at
            elif op.kind == "putting":
                putting = op.at
            elif n % every:
                continue
            for mode in MODES if platter.pending else MODES[:1]:
                chance = random.Random(n)
                disk = platter.cut(mode, chance)
                key = disk.fingerprint(), shipped, putting
                if key in self._seen:
                    continue
                self._seen.add(key)
                put_out(disk, self.place, chance)
                try:
                    with quiet(self.clock):
                        self._go_on(self.place, shipped, putting)
                except (StrictqError, Broken) as e:
                    where = f"seed {self.run.seed}, behind entry {n}, {mode}, segment {shipped} shipped, {putting} on its way"
                    raise Broken(f"{where}: {type(e).__name__}: {e}") from e
                self.images[mode] += 1
        return self.images.total() - before

    def _go_on(self, image: Path, shipped: int, putting: int) -> None:
        if shipped >= 0:
            self._restore(image, shipped, None)
        queue, has = self.run.queues[putting]
        shutil.copytree(queue, image / "q")
        with strictq.open(image / "q", clock=self.clock, create=False) as q:
            if (image / TARGET / "replica.json").exists():  # otherwise an operator configures it again
                ship_once(q, image / TARGET, term=LATER)
                self._restore(image, 0, has)

    def _restore(self, image: Path, least: int, wanted: Contents | None) -> None:
        """Restore the newest state. Require it to be what the queue had at that cut, or what it has now."""
        shutil.rmtree(image / RESTORED, ignore_errors=True)
        made = restore(image / TARGET, image / RESTORED)
        demand(made.segment >= least, f"the newest state is of segment {made.segment}")
        if wanted is None:
            demand(made.segment in self.run.states, f"the newest state is of segment {made.segment}, which ends no cut")
            wanted = self.run.states[made.segment]
        files = {path.name: path.read_bytes() for path in (image / RESTORED).glob("shard-????.db*")}
        known = id(wanted), *((name, hash(data)) for name, data in sorted(files.items()))
        if known not in self._known:
            with strictq.open(image / RESTORED, read_only=True, clock=self.clock) as r:
                wanted.require_of(r, f"the restored state of segment {made.segment}")
            self._known.add(known)


# ---- a restored queue


@attrs.frozen
class RestoredRun:
    """The recording of a restore. The entry "restored" ends it."""

    run: ShippedRun
    start: Disk
    ops: list[Op]


def record_restore(place: Path, run: ShippedRun) -> RestoredRun:
    """Restore what a run shipped, and do nothing after that."""
    clock = FakeClock()
    root = place / "recorded-restore"
    root.mkdir()
    with recording(root, clock) as journal:
        restore(place / "recorded" / TARGET, journal.root / RESTORED, alone=True)
        journal.note("restored")
        journal.recording = False
    return RestoredRun(run, journal.start, journal.ops)


def judge_restored(made: RestoredRun, image: Path, *, every: int = 1) -> Counter[str]:
    """Require a queue with this name to be complete, and to exist once the restore has returned. Return the images.

    Raises:
        Broken: it is not.
    """
    clock, platter, done = FakeClock(), Platter(made.start), False
    judged: set[object] = set()
    images: Counter[str] = Counter()
    wanted = made.run.states[made.run.last]
    for n, op in enumerate(made.ops):
        platter.follow(op)
        done = done or op.kind == "restored"
        if n % every and op.kind != "restored":
            continue
        for mode in MODES if platter.pending else MODES[:1]:
            chance = random.Random(n)
            disk = platter.cut(mode, chance)
            if (disk.fingerprint(), done) in judged:
                continue
            judged.add((disk.fingerprint(), done))
            put_out(disk, image, chance)
            where = f"seed {made.run.seed}, restored, behind entry {n}, {mode}"
            if not (image / RESTORED).exists():
                demand(not done, f"{where}: it is missing")
                continue
            try:
                with quiet(clock), strictq.open(image / RESTORED, clock=clock, create=False) as q:
                    wanted.require_of(q, where)
            except StrictqError as e:
                raise Broken(f"{where}: {e}") from e
            images[mode] += 1
    return images
