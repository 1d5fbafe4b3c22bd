"""Power cuts in numbers: the choice of images of a recorded run, and the loop that verifies them."""

from __future__ import annotations

import copy
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.support.powercut import Journal
from tests.support.powercut_disk import MODES, Disk, Mode, Op, Platter, put_out
from tests.support.powercut_run import Run, resume
from tests.support.powercut_verify import Broken, Point, Span, Verifier


@attrs.frozen
class Cut:
    """A moment, and the state of the disk after a power cut at it."""

    index: int
    mode: Mode
    disk: Disk
    point: Point


@attrs.define
class Tally:
    """The number of verified images.

    Attributes:
        modes: images, by the treatment of unsynced data. Each is counted once, and only if something was opened for it.
        files: databases that were opened and read, each with contents that no earlier image had.
        queues: images on which the whole queue was opened, drained and judged.
        known: other images, for which nothing had to be opened: other moments, or other combinations, of known files.
    """

    modes: Counter[str] = attrs.Factory(Counter)
    files: int = 0
    queues: int = 0
    known: int = 0

    @property
    def images(self) -> int:
        return self.modes.total()

    def __iadd__(self, other: Tally) -> Tally:
        self.modes += other.modes
        self.files += other.files
        self.queues += other.queues
        self.known += other.known
        return self


class Tracker:
    """Follows a journal: what the program knows at each point, and what must be durable by then."""

    def __init__(self, journal: Journal) -> None:
        self.point = Point({name: Span(0, 0, 0, 0) for name in journal.known})
        self._snapshots = journal.snapshots
        self._wals: dict[int, str] = {}
        for names in journal.start.directories.values():
            for name, number in names.items():
                self._see(name, number)

    def _see(self, name: str, number: int) -> None:
        if name.endswith("-wal"):
            self._wals[number] = name.removesuffix("-wal")

    def follow(self, op: Op) -> bool:
        """Apply one more entry. Return whether the program knows more now, or more must be durable."""
        spans = self.point.spans
        if op.kind == "link":
            self._see(op.name, op.other)
            return False
        if op.kind == "begin":
            spans.setdefault(op.name, Span()).high = op.at
        elif op.kind == "passing":
            spans[op.name].newest = op.at
        elif op.kind == "end":
            spans[op.name].newest = op.at
            made = self._snapshots[op.name]
            if op.at <= 0 or made[op.at].digest != made[op.at - 1].digest:  # otherwise it wrote nothing, and so synced nothing
                spans[op.name].low = op.at
        elif op.kind == "sync" and op.file in self._wals:
            span = spans.get(self._wals[op.file])
            if span is not None:
                span.durable = max(span.durable, span.newest)
        elif op.kind == "event":
            self.point.events = op.at
        elif op.kind in ("opened", "ready", "last"):
            self.point.marks.add(op.kind)
        else:
            return False
        return True


def cuts(run: Run, *, seed: int, per_point: int, every: int = 1) -> Iterator[Cut]:
    """Yield images of a run: at most `per_point` different ones at each `every`-th point of its journal."""
    chance = random.Random(seed)
    platter, tracker = Platter(run.journal.start), Tracker(run.journal)
    phase = chance.randrange(every)
    seen: set[int] = set()
    point, told = tracker.point, ""
    for index, op in enumerate(run.journal.ops):
        platter.follow(op)
        if tracker.follow(op) or not told:
            point = copy.deepcopy(tracker.point)
            told = repr(point)
        if index % every != phase and op.kind not in ("sync", "syncdir", "rename", "unlink"):
            continue
        if not platter.pending:
            modes: list[Mode] = ["none"]
        else:
            modes = ["none", "all", *chance.choices(MODES[2:], k=per_point)][: max(per_point, 1)]
            chance.shuffle(modes)
        for mode in modes:
            disk = platter.cut(mode, chance)
            key = hash((disk.fingerprint(), told))
            if key not in seen:
                seen.add(key)
                yield Cut(index, mode, disk, point)


def campaign(run: Run, place: Path, *, seed: int, per_point: int, every: int = 1, limit: int = 1 << 60) -> Tally:
    """Verify images of a run. Return how many.

    Raises:
        Broken: names the cut that broke a promise.
    """
    tally = Tally()
    chance = random.Random(seed)
    verifier = Verifier(run.level, run.journal.snapshots, run.events, run.clock, place, run.batches)
    for cut in cuts(run, seed=seed, per_point=per_point, every=every):
        try:
            opened = verifier.verify(cut.disk, cut.point, chance)
        except Broken as e:
            raise Broken(f"cut after entry {cut.index} of the journal, {cut.mode}, seed {seed}: {e}") from e
        tally.modes[cut.mode] += opened
        tally.known += not opened
        if tally.images >= limit:
            break
    tally.files, tally.queues = verifier.reader.opened, verifier.queues
    shutil.rmtree(place, ignore_errors=True)
    return tally


def cut_again(run: Run, place: Path, *, seed: int, images: int, per_point: int, every: int = 4, steps: int = 3) -> Tally:
    """Cut the power, open the queue, cut again while it recovers and works, and verify the rest."""
    tally = Tally()
    chance = random.Random(seed)
    chosen = [c for c in cuts(run, seed=seed, per_point=1, every=20) if "ready" in c.point.marks]
    for n, cut in enumerate(chance.sample(chosen, min(images, len(chosen)))):
        put_out(cut.disk, place, chance)
        clock = copy.copy(run.clock)
        clock.reboot(down_seconds=5.0)
        second = resume(place, run, run.events[: cut.point.events], seed=seed * 1000 + n, steps=steps, clock=clock)
        tally += campaign(second, place, seed=seed + n, per_point=per_point, every=every)
    return tally
