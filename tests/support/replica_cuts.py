"""Power cuts of a living replica's host: a recorded replica, and the judgement of what is found after a cut at any point.

The replica receives in one thread. Its steps of applying receive further segments in between, as the seed says, so a recording
follows from its seed.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

import strictq
from strictq import QueueNotFound, StoreBusy, StrictqError
from strictq.replication import received, replica_log
from strictq.replication.promoting import promote
from strictq.replication.received import ReceivedSegments
from strictq.replication.replica_home import CONTACT, LIVE, LOGS, ApplyingMark, ReplicaState, at_replica
from strictq.replication.target import Beat
from strictq.testing import FakeClock
from tests.support.powercut import Journal, quiet, recording
from tests.support.powercut_disk import MODES, Disk, Op, Platter, put_out
from tests.support.powercut_verify import Broken
from tests.support.powercut_verify import require as demand
from tests.support.shipped_runs import ShippedRun

HOME: Final = "r"
"""The replica's place under the recorded directory."""
PAUSES: Final = ("page", "applied", "synced", "stored", "trimmed")
"""The steps in which a replica holds no lock, so that another thread may store a segment."""


@attrs.define
class ReplicaPromises:
    """What a replica has promised.

    Attributes:
        have: it certainly has so many segments.
        generation: it certainly has stored the mode of this generation.
        had: it was promoted when it had so many segments; -1: its promotion has not begun.
        promoted: whether the promotion has returned.
    """

    have: int = 0
    generation: int = 0
    had: int = -1
    promoted: bool = False

    def follow(self, op: Op) -> bool:
        """Apply an entry of the journal. Return whether there is a promise more."""
        if op.kind == "confirmed":
            self.have = max(self.have, op.at)
        elif op.kind == "mode":
            self.generation = op.at
        elif op.kind == "promoting":
            self.had = op.at
        elif op.kind == "promoted":
            self.promoted = True
        else:
            return False
        return True


@attrs.frozen
class ReplicaFacts:
    """What a replica had when it was started after a power cut."""

    have: int
    generation: int
    role: str

    def require(self, promises: ReplicaPromises) -> None:
        """Require what was promised.

        Raises:
            Broken: it is missing.
        """
        if self.role == "replica":
            demand(not promises.promoted, "it was promoted, and is a replica again")
            demand(self.have >= promises.have, f"of {promises.have} segments that were confirmed, it has {self.have}")
            demand(self.generation >= promises.generation, "it has forgotten a mode")
        else:
            demand(promises.had >= 0, f"it is {self.role}, and was not to be promoted")


@attrs.frozen
class ReceivedRun:
    """The recording of a replica that receives the segments of a run."""

    shipped: ShippedRun
    start: Disk
    ops: list[Op]
    promises: ReplicaPromises
    """Those at the start."""


class IdleThread:
    """A thread that does nothing."""

    def __init__(self, **_options: object) -> None: ...

    def start(self) -> None: ...

    def join(self) -> None: ...


class Unthreaded:
    """The module threading for replicas, with threads that do nothing."""

    Thread = IdleThread

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@contextmanager
def one_thread() -> Iterator[None]:
    """Stop replicas from applying segments by themselves in this block; the caller applies them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(received, "threading", Unthreaded())
        yield


class Receiving:
    """A replica that receives the rest of a run's segments, applies them at random moments, and is restarted."""

    def __init__(
        self, home: Path, run: ShippedRun, clock: FakeClock, chance: random.Random, *,
        note: Callable[[str, int], object], generation: int, calm: bool = False,
    ) -> None:  # fmt: skip
        self.home, self.run, self.clock, self.random = home, run, clock, chance
        self._note = note
        self._generation = generation
        self._calm = calm
        self._busy = True
        """Whether no segment can be stored now: it starts, ends, or is storing one."""
        self._left = 0
        self._replica = self._begin()

    @property
    def have(self) -> int:
        """The number of segments that it has."""
        return self._replica.last_number + 1

    @property
    def facts(self) -> ReplicaFacts:
        state = self._replica.state
        return ReplicaFacts(self.have, state.generation, state.role)

    def _begin(self) -> ReceivedSegments:
        self._busy = True
        replica = ReceivedSegments(self.home, self.clock, on_step=self._on_step)
        if replica.state.role == "replica":
            header = self.run.headers[0]
            replica.claim(header.queue_id, header.history_id, "")
        self._busy = False
        return replica

    def _on_step(self, step: str) -> None:
        if step in PAUSES and not self._busy and self._left and self.random.random() < 0.3:
            self._busy = True
            self._put()
            self._busy = False

    def _put(self) -> None:
        n = self.have
        if n < len(self.run.segments):
            self._left -= 1
            self._replica.put(n, self.run.segments[n])
            self._note("confirmed", n + 1)

    def receive(self, count: int) -> None:
        """Receive until so many more segments have arrived, or there are no more."""
        self._left = min(count, len(self.run.segments) - self.have)
        while self._left > 0:
            self._put()
            self.clock.advance(self.random.choice((0.0, 0.3, 1.0)))
            if self._calm:
                continue
            chance = self.random.random()
            if chance < 0.4:
                self._apply()
            elif chance < 0.5:
                self._beat()
            elif chance < 0.6:
                self._restart()

    def _apply(self) -> None:
        if self._replica._ready:
            self._replica._apply_some()
            self._replica._trim()

    def _beat(self) -> None:
        self._generation += 1
        header = self.run.headers[self.have - 1]
        said = self.random.random() < 0.5, self._generation
        self._replica.beat(Beat(header.queue_id, header.history_id, header.term, header.x, *said))
        self._note("mode", self._generation)

    def _restart(self) -> None:
        self._busy = True
        if self.random.random() < 0.5:
            self._replica.close()
        else:
            self._replica.leave()  # as if the process was killed
        self._replica = self._begin()

    def close(self) -> None:
        self._busy = True
        self._replica.close()

    def promote(self) -> None:
        self.close()
        had = self.have
        self.clock.advance(60)
        if self.run.complete_at(had - 1) < 0:
            return  # it has no complete state yet
        self._note("promoting", had)
        promote(self.home, clock=self.clock)
        self._note("promoted", 0)


def record(root: Path, run: ShippedRun, *, seed: int, limit: int = 1 << 30) -> ReceivedRun:
    """Record a replica that receives a run's segments, or some of them, and is promoted."""
    root.mkdir()
    return _record(root, run, FakeClock(), random.Random(seed), ReplicaPromises(), limit)


def _record(
    root: Path, run: ShippedRun, clock: FakeClock, chance: random.Random, before: ReplicaPromises, limit: int
) -> ReceivedRun:
    with one_thread(), recording(root, clock) as journal, _small(chance):
        if before.had < 0:
            receiving = Receiving(journal.root / HOME, run, clock, chance, note=_noting(journal), generation=before.generation)
            if chance.random() < 0.3:
                limit = min(limit, chance.randint(1, len(run.segments)))  # the primary is lost before it has shipped the rest
            receiving.receive(limit)
            if chance.random() < 0.4:
                receiving.promote()
            else:
                receiving.close()
        else:
            journal.note("promoting", at=before.had)
            promote(journal.root / HOME, force=True, clock=clock)
            journal.note("promoted")
        journal.recording = False
    return ReceivedRun(run, journal.start, journal.ops, before)


def _noting(journal: Journal) -> Callable[[str, int], None]:
    return lambda kind, at: journal.note(kind, at=at)


@contextmanager
def _small(chance: random.Random) -> Iterator[None]:
    """Let the log be emptied often, and little be applied at a time, as the seed says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_log, "ROTATE_BYTES", chance.choice((1, 1, 8_192, 65_536)))
        patch.setattr(received, "APPLY_PAGES", chance.choice((1, 60, 4_096)))
        patch.setattr(received, "APPLY_BYTES", chance.choice((1, 64 << 20)))
        yield


@attrs.define
class ReplicaJudge:
    """Starts and promotes replicas after power cuts, and compares them with what was shipped.

    What was read once is not read again if the files are the same, byte for byte. An image that differs from an earlier one only
    in what was promised by then is compared with what was found in that one, and not counted.

    Attributes:
        images: the number of different images, by the treatment of unsynced data. In each, the replica was started.
        promotions: the number of images that were promoted and drained, each with contents that no earlier one had.
    """

    place: Path
    run: ShippedRun
    clock: FakeClock = attrs.field(factory=FakeClock)
    images: Counter[str] = attrs.Factory(Counter)
    promotions: int = 0
    _seen: dict[object, ReplicaFacts] = attrs.Factory(dict)
    _looked: set[object] = attrs.Factory(set)
    _ended: set[object] = attrs.Factory(set)

    def judge(self, made: ReceivedRun, *, every: int = 1) -> int:
        """Cut the power at every `every`-th point, and at each point of a promise more. Return the number of images.

        Raises:
            Broken: something confirmed is missing, or receiving or promoting does not continue.
        """
        before = self.images.total()
        for n, mode, disk, promises in cuts(made, lambda n, more: more or n % every == 0):
            key = disk.fingerprint(), promises.had
            try:
                if (facts := self._seen.get(key)) is not None:
                    facts.require(promises)
                    continue
                chance = random.Random(n)
                put_out(disk, self.place, chance)
                with quiet(self.clock), one_thread():
                    self._seen[key] = self._go_on(self.place / HOME, promises, chance)
            except (StrictqError, Broken) as e:
                raise Broken(f"seed {self.run.seed}, behind entry {n}, {mode}, {promises}: {type(e).__name__}: {e}") from e
            self.images[mode] += 1
        return self.images.total() - before

    def _go_on(self, home: Path, promises: ReplicaPromises, chance: random.Random) -> ReplicaFacts:
        self.clock.reboot()
        self._look(home)
        receiving = Receiving(
            home, self.run, self.clock, chance, note=lambda _kind, _at: None, generation=promises.generation,
            calm=chance.random() < 0.7,
        )  # fmt: skip
        facts = receiving.facts
        try:
            facts.require(promises)
            if facts.role == "replica":
                receiving.receive(chance.choice((0, 1, 2, 4, len(self.run.segments))))
                last = self.run.complete_at(receiving.have - 1)
            else:
                last = self.run.complete_at(promises.had - 1)
        finally:
            receiving.close()
        ended = (last, *_replica_contents(home))
        if last >= 0 and ended not in self._ended:
            self._look(home)
            self._promote(home, last)
            self._ended.add(ended)
        return facts

    def _promote(self, home: Path, last: int) -> None:
        self.promotions += 1
        promote(home, force=True, clock=self.clock)
        with strictq.open(home, clock=self.clock, create=False) as q:
            self.run.states[last].require_of(q, "the promoted queue")
            self.run.states[last].require_usable(q, self.clock, "the promoted queue")

    def _look(self, home: Path) -> None:
        """Look at a replica: that is refused, or shows the state that its mark names."""
        try:
            found = at_replica(home, self.clock, read_only=True)
        except (StoreBusy, QueueNotFound):
            return
        if found is None or found[1] is None:
            return  # it is none yet, or not any more
        found[1].leave()
        mark = ApplyingMark.read(home, self.clock)
        assert mark is not None
        looked = (mark.n, *_live_contents(home))
        if looked not in self._looked:
            with strictq.open(home, read_only=True, clock=self.clock) as q:
                demand(mark.n in self.run.states, f"a look sees a state of segment {mark.n}, which ends no cut")
                self.run.states[mark.n].require_of(q, f"a look at segment {mark.n}")
            self._looked.add(looked)


def _replica_contents(home: Path) -> tuple[object, ...]:
    """Return a value that is equal if a replica's state, log and live/ are, within this process, whatever its last contact."""
    state = attrs.evolve(ReplicaState.read(home), confirmed=False, generation=0)
    logs = [hash((home / name).read_bytes()) for name in LOGS if (home / name).exists()]
    return repr(state), (home / CONTACT).exists(), *logs, *_live_contents(home)


def _live_contents(home: Path) -> Iterator[object]:
    for path in sorted((home / LIVE).iterdir()):
        yield path.name, None if path.name.endswith("-shm") else hash(path.read_bytes())


def cuts(made: ReceivedRun, wanted: Callable[[int, bool], bool]) -> Iterator[tuple[int, str, Disk, ReplicaPromises]]:
    """Yield what a power cut may leave: the entry behind which it came, the treatment of unsynced data, and the promises then.

    Args:
        wanted: whether to cut behind this entry; it is also given whether the entry is a promise.
    """
    platter, promises = Platter(made.start), attrs.evolve(made.promises)
    for n, op in enumerate(made.ops):
        platter.follow(op)
        if not wanted(n, promises.follow(op)):
            continue
        for mode in MODES if platter.pending else MODES[:1]:
            yield n, mode, platter.cut(mode, random.Random(n)), attrs.evolve(promises)


def cut_again(judge: ReplicaJudge, made: ReceivedRun, root: Path, *, seed: int, times: int, every: int = 1) -> int:
    """Cut the power, and cut it again at each point while the replica catches up. Return the number of images."""
    chance = random.Random(seed)
    at = sorted(chance.sample(range(len(made.ops)), min(times, len(made.ops))))
    chosen = list(cuts(made, lambda n, _more: n in at))
    done = 0
    for n in at:
        _, _, disk, promises = chance.choice([cut for cut in chosen if cut[0] == n])
        put_out(disk, root, chance)
        clock = FakeClock()
        clock.advance(100.0)
        clock.reboot()
        if promises.had >= 0 and not promises.promoted and ReplicaState.read(root / HOME).role == "replica":
            promises = attrs.evolve(promises, had=-1)  # the promotion left nothing
        done += judge.judge(_record(root, judge.run, clock, chance, promises, 1 << 30), every=every)
        shutil.rmtree(root)
    return done
