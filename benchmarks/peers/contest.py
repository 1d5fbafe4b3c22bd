"""Peers and strictq, opened together and measured alternately."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.bench import Bench
from benchmarks.measure import Durability, Figure, Pairs, Sample, prebuilt, sample
from benchmarks.workload import warm

from . import ALL, notes
from .bare import BARE, Bare
from .peer import Host, Opening, Peer
from .sizes import PeerSizes
from .strict import Strictq
from .work import BODY, life, pairs

PILOTS: Final = (20, 200)
"""Messages of the runs that estimate a peer's rate. The second one runs only if the first was quick. They are a warm-up, too."""
GOALS: Final = {"SQLite": 5.0, "server": 1.0}
"""The goal: how many times as fast as a peer strictq should be. There is no goal for the bare database."""
BARE_CASES: Final = ("batch", "keys", "backlog")
"""The cases with the bare database: one consumer that receives the oldest messages."""

OURS: Final = "strictq"


@attrs.frozen(kw_only=True)
class Point:
    """One place of the table."""

    case: str
    what: str
    durability: Durability
    batch: int
    keys: int
    size: int | None = None
    writers: int = 1
    note: str = ""


@attrs.define
class Entrant:
    """One queue at one point."""

    name: str
    directory: Path
    durability: Durability
    host: Host
    peer: Peer
    number: int = 0
    samples: list[Sample] = attrs.field(factory=list)
    note: str = ""

    def todo(self, number: int, keys: int, seed: int = 1) -> list[Any]:
        return self.peer.native(pairs(number, keys, seed))

    def say(self, note: str) -> None:
        """Add a note to its figure. A note that was added before is not repeated."""
        if note not in self.note.split(notes.APART):
            self.note = notes.joined(self.note, note)

    def another(self) -> Peer:
        """Open a second connection to the same queue."""
        return type(self.peer)(Opening(self.directory, self.durability))

    def sample(self, number: int, action: Callable[[], object]) -> Sample:
        return sample(number, action, self.host.written, self.host.processor)


@attrs.define
class Contest:
    """One run of the comparison: the participants, and facts about them."""

    sizes: PeerSizes
    bench: Bench
    names: Sequence[str]
    settings: dict[str, dict[str, dict[str, str]]] = attrs.field(factory=dict)
    left_out: list[str] = attrs.field(factory=list)

    def leave_out(self, point: Point, name: str, why: str) -> None:
        """Record that a peer has no figure here."""
        line = f"{point.case} ({point.what}, {point.durability}): {name}: {why}"
        self.left_out.append(line)
        print(f"\n  {line}", end="", file=sys.stderr, flush=True)

    @contextmanager
    def entrants(self, point: Point) -> Iterator[list[Entrant]]:
        """Open every participant in its own directory, and verify its durability."""
        with self.bench.place(point.case) as place, ExitStack() as stack:
            opened: list[Entrant] = []
            bare = {BARE: Bare} if point.case in BARE_CASES else {}
            for name, kind in {OURS: ALL[OURS], **{name: ALL[name] for name in self.names}, **bare}.items():
                directory = place / name
                directory.mkdir()
                host = stack.enter_context(kind.hosted(directory, point.durability))
                peer = kind(Opening(directory, point.durability, writers=point.writers))
                stack.callback(peer.close)
                settings = peer.settings()
                if peer.durable_at(settings) != point.durability:
                    raise RuntimeError(f"{name} is not at durability {point.durability!r}: {settings}")
                self.settings.setdefault(name, {})[point.durability] = settings
                opened.append(Entrant(name, directory, point.durability, host, peer))
            yield opened

    def compare(
        self,
        point: Point,
        prepare: Callable[[Entrant], None] | None = None,
        action: Callable[[Entrant, int], Sample] | None = None,
        rounds: int | None = None,
    ) -> Iterator[Figure]:
        """Prepare every entrant, then run them alternately. One that fails loses only its own figure.

        Args:
            action: one timed run over a number of messages; default: their whole life in batches.
        """
        with self.entrants(point) as entrants:
            running = []
            for e in entrants:
                try:
                    if isinstance(e.peer, Strictq):
                        warm(e.peer.q, point.keys)
                    if prepare is not None:
                        prepare(e)
                    if self._choose_number(e, point):
                        running.append(e)
                except Exception as error:
                    self._failed(e, point, error)
            action = action or self._life_of(running, point)
            with prebuilt():
                for number in range(rounds or self.bench.rounds):
                    turn = number % len(running) if running else 0
                    for e in [*running[turn:], *running[:turn]]:
                        if e.samples and e.samples[-1].seconds > self.sizes.batch_seconds_max:
                            continue
                        try:
                            e.samples.append(action(e, e.number))
                        except Exception as error:
                            self._failed(e, point, error)
                            running.remove(e)
        yield from self._figures(point, running)

    def _life_of(self, running: Sequence[Entrant], point: Point) -> Callable[[Entrant, int], Sample]:
        todos = {e.name: e.todo(e.number, point.keys) for e in running}

        def action(e: Entrant, number: int) -> Sample:
            def whole() -> None:
                life(e.peer, todos[e.name], point.batch)
                e.peer.rest()

            return e.sample(number, whole)

        return action

    def _choose_number(self, e: Entrant, point: Point) -> bool:
        """Set the number of messages per round:

        whole batches for about the time of a round, at least one. Return False if too slow.
        """
        for number in PILOTS:
            number = min(self.sizes.messages, number)
            todo = e.todo(number, point.keys)
            pilot = e.sample(number, partial(life, e.peer, todo, min(point.batch, number)))
            if pilot.seconds > self.sizes.seconds / 4:
                break
        # The others are compared with strictq, so it runs however long it takes.
        if e.name != OURS and point.batch / pilot.rate > self.sizes.batch_seconds_max:
            self.leave_out(point, e.name, f"not run: one batch would take about {point.batch / pilot.rate:.0f} s")
            return False
        batches = int(min(self.sizes.messages, pilot.rate * self.sizes.seconds) / point.batch)
        e.number = max(1, batches) * point.batch
        return True

    def _failed(self, e: Entrant, point: Point, error: Exception) -> None:
        if e.name == OURS:
            raise error
        self.leave_out(point, e.name, f"failed: {type(error).__name__}: {error}")

    def _figures(self, point: Point, running: Sequence[Entrant]) -> Iterator[Figure]:
        ours = next(e for e in running if e.name == OURS)
        for e in running:
            if e is ours:
                continue
            about = e.peer.about
            number = f"{ours.number:,} and {e.number:,} messages a round"
            if len(e.samples) < len(ours.samples):
                number += (
                    f", {len(e.samples)} round{'s' if len(e.samples) > 1 else ''} of it: it took {e.samples[-1].seconds:.0f} s"
                )
            both = min(len(ours.samples), len(e.samples))
            # With duplicated or missing messages, the rates cannot be compared.
            judged = about.kind in GOALS and not notes.miscounts(e.note)
            yield Pairs(ours.samples[:both], e.samples[:both]).figure(
                point.case,
                point.what,
                e.name,
                unit="times",
                goal=self.bench.goal("at least", GOALS[about.kind]) if judged else None,
                durability=point.durability,
                batch=point.batch,
                keys=point.keys,
                size=point.size,
                note=notes.joined(number, point.note, ours.note, e.note, notes.lacks(about.lacks)),
            )


def fill(e: Entrant, number: int, keys: int | None, seconds: float) -> int:
    """Fill a backlog within a time, of one key if `keys` is None. Return the number of messages.

    The messages are built in pieces, to save memory.
    """
    step = 10_000 if e.peer.about.sends.startswith("in one") else 500
    end, sent = time.perf_counter() + seconds, 0
    while sent < number and time.perf_counter() < end:
        some = min(step, number - sent)
        todo = e.peer.native([("blocked", BODY)] * some) if keys is None else e.todo(some, keys, seed=sent)
        e.peer.send(todo)
        sent += some
    if sent < number:
        e.say(notes.waiting(e.name, sent, seconds))
    return sent
