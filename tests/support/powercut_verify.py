"""What must be true of a queue that is opened after a power cut."""

from __future__ import annotations

import copy
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import apsw
import attrs

import strictq
from strictq import Queue
from strictq._keys import decode_key
from strictq.testing import FakeClock
from tests.support.checker import Policy, check
from tests.support.history import Event, Handed, Recorder, Return
from tests.support.powercut import Snapshot, quiet, read_file
from tests.support.powercut_run import ALL_KEYS, PLACE, Level, Named

CATALOG: Final = "queue.db"


@attrs.define
class Span:
    """Which of a file's snapshots may be found: from the last one that must be durable to the last one begun."""

    low: int = -1
    high: int = -1
    durable: int = -1


@attrs.define
class Point:
    """What a program had been told when the power went, and what must be found for it."""

    spans: dict[str, Span] = attrs.Factory(dict)
    events: int = 0
    marks: set[str] = attrs.Factory(set)


class Broken(AssertionError):
    """A promise was broken."""


def require(condition: object, why: str) -> None:
    if not condition:
        raise Broken(why)


class Facts:
    """What a shard's snapshot says, by key."""

    def __init__(self, snap: Snapshot) -> None:
        bodies = {row["id"]: row["data"] for row in snap.all("body")}
        self.keys: dict[int, Any] = {row["id"]: decode_key(row["key"]) for row in snap.all("lane")}
        self.held = [self.keys[row["id"]] for row in snap.all("lane") if row["hold"] is not None]
        self.pending = {
            (repr(self.keys[row["lane"]]), row["seq"]): row["body"] if row["body"] is not None else bodies[row["id"]]
            for row in snap.all("message")
        }
        self.dead: set[tuple[str, int]] = set()
        for row in snap.all("dead"):
            place = (repr(self.keys[row["lane"]]), row["seq"])
            if row["redrive"]:  # it goes back when the lease ends, and a reboot ends it
                self.pending[place] = row["body"] if row["body"] is not None else bodies[row["id"]]
            else:
                self.dead.add(place)
        self.outbox = {(row["destination"], row["id"]): (repr(decode_key(row["key"])), row["body"]) for row in snap.all("outbox")}
        self.inlet = {row["origin"]: row["high_water"] for row in snap.all("inlet")}
        self.incarnation = next(row["value"] for row in snap.all("meta") if row["name"] == "incarnation")
        counter = snap.one("counter")
        self.last_outbox: int = counter["last_outbox"]
        self.epoch: int = counter["epoch"]
        self.tokens: dict[str, int] = defaultdict(int)
        for row in snap.all("lease"):
            self.tokens[repr(self.keys[row["lane"]])] = row["token"]


class Verifier:
    """Verifies images of one recorded run."""

    def __init__(self, level: Level, snapshots: dict[str, list[Snapshot]], events: list[Event], clock: FakeClock) -> None:
        self.level = level
        self.snapshots = snapshots
        self.events = events
        self.clock = clock
        self._facts: dict[tuple[str, int], Facts] = {}
        self._sent_out: dict[str, dict[tuple[int, int], tuple[str, bytes]]] = {}
        self._verified: set[tuple[object, ...]] = set()

    def verify(self, root: Path, point: Point, *, thorough: bool = False) -> None:
        """Open the queue that a cut at `point` left under `root`, and see that it is all right.

        Where the files have the same contents as those of an image before, after the same history, they are read and
        their structure is checked, but the queue is not opened and drained once more.

        Args:
            thorough: it is, nevertheless.
        Raises:
            Broken: it is not.
        """
        path = root / PLACE
        clock = copy.copy(self.clock)
        clock.reboot(down_seconds=5.0)
        found: dict[str, int] = {}
        if "opened" in point.marks:
            require(path.exists(), "the queue is gone")
        if path.exists():
            found = self._match(path, point)
            self._agree_over_shards(found)
            same = (tuple(found.items()), point.events)
            if found and same in self._verified and not thorough:
                return
            self._verified.add(same)
        with quiet(clock), strictq.open(path, clock=clock, shards=self._shards() if not found else None) as queue:
            try:
                self._serve(queue, point, clock, found)
            except strictq.StrictqError as e:
                raise Broken(f"{type(e).__name__}: {e}") from e

    def _shards(self) -> int:
        return sum(1 for name in self.snapshots if name != CATALOG) or 1

    # ---- what is in the files

    def _match(self, path: Path, point: Point) -> dict[str, int]:
        """Each file must say what it said at some commit, and at one that is new enough."""
        found: dict[str, int] = {}
        for name, span in point.spans.items():
            try:
                digest = read_file(path / name).digest
            except apsw.Error as e:
                raise Broken(f"{name} can't be read: {type(e).__name__}: {e}") from e
            known = self.snapshots[name]
            low = span.low if self.level == "full" or name == CATALOG else span.durable
            matches = [n for n in range(span.high, -1, -1) if known[n].digest == digest]
            require(matches, f"{name} is as no commit left it")
            best = next((n for n in matches if n >= low), None)
            require(best is not None, f"{name} is as commit {matches[0]} left it, but {low} was durable")
            assert best is not None
            found[name] = best
        return found

    def facts(self, name: str, number: int) -> Facts:
        known = self._facts.get((name, number))
        if known is None:
            known = self._facts[name, number] = Facts(self.snapshots[name][number])
        return known

    def _of_shards(self, found: dict[str, int]) -> dict[int, Facts]:
        return {int(name[6:10]): self.facts(name, n) for name, n in found.items() if name != CATALOG}

    def _agree_over_shards(self, found: dict[str, int]) -> None:
        """No half of a transaction is gone, whatever each shard has lost."""
        shards = self._of_shards(found)
        for origin, facts in shards.items():
            for destination, other in shards.items():
                mark = other.inlet.get(facts.incarnation, 0)
                require(
                    mark <= facts.last_outbox,
                    f"shard {destination} has {mark} of shard {origin}, which knows of {facts.last_outbox} only",
                )
                for to, number in self._ever_sent(origin):
                    if to == destination and mark < number <= facts.last_outbox:
                        require((to, number) in facts.outbox, f"send {number} of shard {origin} to {to} is lost")

    def _ever_sent(self, origin: int) -> dict[tuple[int, int], tuple[str, bytes]]:
        name = f"shard-{origin:04d}.db"
        known = self._sent_out.get(name)
        if known is None:
            known = self._sent_out[name] = {}
            for number in range(len(self.snapshots[name])):
                known.update(self.facts(name, number).outbox)
        return known

    # ---- what the queue answers

    def _serve(self, queue: Queue, point: Point, clock: FakeClock, found: dict[str, int]) -> None:
        require(queue.check() == [], f"check: {queue.check()[:3]}")
        stats = queue.stats()
        require(all(s.quarantined is None for s in stats.shards), "a shard is quarantined")
        require(stats.outbox == 0, "something waits in an outbox")
        recorder = Recorder()
        if "ready" in point.marks:
            recorder.events.extend(self.events[: point.events])
        call = recorder.invoke("reboot")
        recorder.result(call, "reboot")
        recorded = Named(queue, recorder, "after")
        before = self._tokens(recorder.events, found)
        for facts in self._of_shards(found).values():
            for key in facts.held:
                recorded.operate("unhold", key)
        clock.advance(4000.0)
        got = self._drain(recorded, clock)
        for key, token in got.tokens.items():
            require(token > before.get(key, 0), f"token {token} of {key} was given before {before.get(key)}")
        self._accounts(queue, got, found)
        self._still_works(recorded)
        if "ready" in point.marks and self.level == "full":
            recorded.final(ALL_KEYS)
            broken = check(recorder.events, Policy())
            require(not broken, f"the checker found {broken[:3]}")
        require(queue.check() == [], f"check: {queue.check()[:3]}")

    def _tokens(self, events: list[Event], found: dict[str, int]) -> dict[str, int]:
        """The newest token of each key that anybody may have seen."""
        tokens: dict[str, int] = defaultdict(int)
        for event in events:
            if isinstance(event, Return):
                for item in event.items:
                    if isinstance(item, Handed):
                        tokens[item.key] = max(tokens[item.key], item.token)
        for facts in self._of_shards(found).values():
            for key, token in facts.tokens.items():
                tokens[key] = max(tokens[key], token)
        return tokens

    def _drain(self, recorded: Named, clock: FakeClock) -> Drained:
        got = Drained()
        for _ in range(200):
            batch = recorded.receive(500, lease_seconds=30.0)
            if not batch:
                return got
            for d in batch:
                key = repr(d.key)
                require(d.seq > got.last[key], f"seq {d.seq} of {key} came after {got.last[key]}")
                got.last[key] = d.seq
                got.bodies[key, d.seq] = d.body
                got.tokens.setdefault(key, d.token)
            recorded.act_many("ack", batch)
            clock.advance(1.0)
        raise Broken("the queue does not run dry")

    def _accounts(self, queue: Queue, got: Drained, found: dict[str, int]) -> None:
        """What was handed out, or expired, is what was there, and nothing else."""
        shards = self._of_shards(found)
        expected: dict[tuple[str, int], bytes] = {}
        arriving: list[tuple[str, bytes]] = []
        dead: set[tuple[str, int]] = set()
        for facts in shards.values():
            expected |= facts.pending
            dead |= facts.dead
            for (to, number), sent in facts.outbox.items():
                if number > shards[to].inlet.get(facts.incarnation, 0):
                    arriving.append(sent)
        now_dead = {(repr(d.key), d.seq): d.body for d in queue.dead_letters(limit=10_000)}
        require(dead <= now_dead.keys() | expected.keys(), "a dead letter is gone")
        seen = got.bodies | {place: body for place, body in now_dead.items() if place not in dead}
        for place, body in expected.items():
            require(seen.get(place) == body, f"{place} is gone, or is not what was sent")
        more = sorted((key, body) for (key, seq), body in seen.items() if (key, seq) not in expected)
        require(more == sorted(arriving), f"{len(more)} messages more than expected, {len(arriving)} were on their way")

    def _still_works(self, recorded: Named) -> None:
        for key in ("a", "b", 4):
            seq = recorded.send(recorded.new(key))
            (d,) = recorded.receive(1, lease_seconds=30.0, keys=[key])
            require(d.seq == seq, "a new message is not the next one")
            require(recorded.act("ack", d) == "ok", "a new message can't be acked")


@attrs.define
class Drained:
    """What came out of a queue."""

    bodies: dict[tuple[str, int], bytes] = attrs.Factory(dict)
    tokens: dict[str, int] = attrs.Factory(dict)
    last: dict[str, int] = attrs.Factory(lambda: defaultdict(int))
