"""Invariants of a queue that is opened after a power cut."""

from __future__ import annotations

import copy
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import attrs

import strictq
from strictq import Delivery, Queue
from strictq._store.lane import entries as kinds
from strictq._store.shard.recorded_batches import has_consumers
from strictq._store.tables import parcels
from strictq._store.whole import moving
from strictq._values.keys import decode_key
from strictq.spark._recorded_batches import Holder
from strictq.testing import FakeClock
from tests.support.checker import Policy, check
from tests.support.history import OK, Event, Handed, Invoke, Recorder, Return, Wanted
from tests.support.internals import store_of
from tests.support.moved_ranges import state_of
from tests.support.powercut import Snapshot, quiet
from tests.support.powercut_disk import ROOT, Disk, put_out
from tests.support.powercut_reading import Reader
from tests.support.powercut_run import (
    ALL_KEYS,
    CATALOG,
    CONSUMER,
    ENDLESS,
    PLACE,
    BatchRow,
    Level,
    Named,
    RecordedBatch,
    batch_of,
    config_of,
    files_of,
    handed,
    output_of,
)  # fmt: skip
from tests.support.recorded_batches import encode

_KEYS: Final = {repr(key): key for key in ALL_KEYS}


@attrs.define
class Span:
    """The snapshots of a file that may be found: from the last one that must be durable to the last one begun."""

    low: int = -1
    high: int = -1
    durable: int = -1
    newest: int = -1
    """The last one whose commit returned."""


@attrs.define
class Point:
    """What a program knew when the power was cut, and what must therefore be found."""

    spans: dict[str, Span] = attrs.Factory(dict)
    events: int = 0
    marks: set[str] = attrs.Factory(set)


class Broken(AssertionError):
    """A promise was broken."""


def require(condition: object, why: str) -> None:
    if not condition:
        raise Broken(why)


def require_sound(queue: Queue) -> None:
    problems = queue.check()
    require(not problems, f"check: {problems[:3]}")


ENDS: Final = frozenset((kinds.ACK, kinds.ACK_FIRST, kinds.REJECT, kinds.DROP, kinds.PURGE, kinds.EXPIRE))
"""Kinds of entries that resolve messages."""


@attrs.define
class Parcel:
    """Lanes that have left a shard.

    Attributes:
        arrivals: the numbers of its messages, whose rows are still in the shard.
        dead: the places of its dead letters.
    """

    arrivals: set[int] = attrs.Factory(set)
    dead: set[tuple[str, int]] = attrs.Factory(set)
    held: list[Any] = attrs.Factory(list)
    tokens: dict[str, int] = attrs.Factory(dict)


class Facts:
    """The contents of a shard's snapshot, by key."""

    def __init__(self, snap: Snapshot) -> None:
        self.outbox = {(row["destination"], row["id"]): (repr(decode_key(row["key"])), row["body"]) for row in snap.all("outbox")}
        self.inlet = {row["origin"]: row["high_water"] for row in snap.all("inlet")}
        meta = {row["name"]: row["value"] for row in snap.all("meta")}
        self.incarnation = meta["incarnation"]
        self.has_effects = "app_effects" in snap.tables
        self.tokens: dict[str, int] = defaultdict(int)
        self.pending: dict[tuple[str, int], bytes] = {}
        self.dead: set[tuple[str, int]] = set()
        self.parcels: dict[int, Parcel] = defaultdict(Parcel)
        if "mark" in snap.tables:
            self.last_outbox: int = meta.get("last_outbox", 0)
            self.epoch: int = snap.one("mark")["epoch"]
            self._add_lanes(snap)
            return
        self._add_tables(snap)

    def _add_lanes(self, snap: Snapshot) -> None:
        """Add the contents of a shard of format 3. A message waits unless it is dead, `gone` notes it, or an entry ends it."""
        dead = {row["id"]: (repr(decode_key(row["key"])), row["seq"]) for row in snap.all("dead")}
        self.dead = set(dead.values())
        over = set(dead)
        for row in snap.all("gone"):
            bits = int.from_bytes(row["bits"], "little")
            over |= {row["bucket"] * 128 + at for at in range(128) if bits >> at & 1}
        held = {row["key"] for row in snap.all("lane") if row["held_at"] is not None}
        keys = {row["id"]: repr(decode_key(row["key"])) for row in snap.all("message") if row["id"]}
        for row in snap.all("lane"):
            if row["token"] is not None:
                self.tokens[repr(decode_key(row["key"]))] = row["token"]
        for row in sorted(snap.all("journal"), key=lambda row: row["id"]):
            kind, data = row["kind"], row["data"]
            if kind in (kinds.HOLD, kinds.RELEASE_HOLD):
                held = held | set(kinds.decode_keys(data)) if kind == kinds.HOLD else held - set(kinds.decode_keys(data))
            elif kind == kinds.CLAIM or kind in ENDS or kind == kinds.REDRIVE:
                numbers = set(map(abs, kinds.unpack(data)))
                if kind == kinds.CLAIM:
                    for key in {keys[i] for i in numbers if i in keys}:
                        self.tokens[key] = max(self.tokens[key], row["token"])
                over = over | numbers if kind in ENDS else over - numbers if kind == kinds.REDRIVE else over
        self.held = [decode_key(key) for key in held]
        places = {row["id"]: (keys[row["id"]], row["seq"]) for row in snap.all("message") if row["id"]}
        bodies = {row["id"]: row["body"] for row in snap.all("message") if row["id"]}
        for row in snap.all("parcel"):
            over |= self._add_parcel(row)
        self.waiting = {i: (places[i], body) for i, body in bodies.items() if i not in over}
        self.pending = dict(self.waiting.values())

    def _add_parcel(self, row: dict[str, Any]) -> set[int]:
        """Add a row of a parcel. Return the arrival number of a dead letter."""
        parcel, key, kind = self.parcels[row["number"]], row["c1"], row["kind"]
        if kind == parcels.LANE:
            if row["c8"] is not None:
                parcel.tokens[repr(decode_key(key))] = row["c8"]
            if row["c13"] is not None:
                parcel.held.append(decode_key(key))
        elif kind == parcels.DEAD:
            parcel.dead.add((repr(decode_key(key)), row["c3"]))
            return {row["c2"]}
        elif kind == parcels.REST:
            parcel.arrivals.update(kinds.unpack(key))
        return set()

    def with_parcels(self, arrived: int) -> Facts:
        """Return the contents with those of parcels that have left. Those up to `arrived` are elsewhere."""
        if not self.parcels:
            return self
        found = copy.copy(self)
        found.held, found.dead, found.tokens = list(self.held), set(self.dead), defaultdict(int, self.tokens)
        gone = {i for number, parcel in self.parcels.items() if number <= arrived for i in parcel.arrivals}
        found.pending = dict(message for i, message in self.waiting.items() if i not in gone)
        for parcel in (parcel for number, parcel in self.parcels.items() if number > arrived):
            found.held += parcel.held
            found.dead |= parcel.dead
            for key, token in parcel.tokens.items():
                found.tokens[key] = max(found.tokens[key], token)
        return found

    def _add_tables(self, snap: Snapshot) -> None:
        bodies = {row["id"]: row["data"] for row in snap.all("body")}
        self.keys: dict[int, Any] = {row["id"]: decode_key(row["key"]) for row in snap.all("lane")}
        self.held = [self.keys[row["id"]] for row in snap.all("lane") if row["hold"] is not None]
        self.pending = {
            (repr(self.keys[row["lane"]]), row["seq"]): row["body"] if row["body"] is not None else bodies[row["id"]]
            for row in snap.all("message")
        }
        for row in snap.all("dead"):
            place = (repr(self.keys[row["lane"]]), row["seq"])
            if row["redrive"]:  # it is redriven when the lease ends, and a reboot ends it
                self.pending[place] = row["body"] if row["body"] is not None else bodies[row["id"]]
            else:
                self.dead.add(place)
        counter = snap.one("counter")
        self.last_outbox = counter["last_outbox"]
        self.epoch = counter["epoch"]
        for row in snap.all("lease"):
            self.tokens[repr(self.keys[row["lane"]])] = row["token"]
        if "inbox" in snap.tables:
            self._add_hot(snap, bodies)

    def _add_hot(self, snap: Snapshot, bodies: dict[int, bytes]) -> None:
        """Add the contents of hot lanes' logs: a message waits if no ack names it, and its lane has not cooled since."""
        acked: set[int] = set()
        cooled: dict[bytes, int] = {}
        leased: dict[int, int] = {}
        for row in sorted(snap.all("journal"), key=lambda row: row["id"]):
            data = row["data"]
            if row["kind"] == 4:
                for _ in range(row["count"]):
                    size = int.from_bytes(data[:2], "little")
                    cooled[data[2 : 2 + size]] = row["top"]
                    data = data[2 + size :]
                continue
            numbers = {int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)}
            if row["kind"] == 1:
                leased |= dict.fromkeys(numbers, row["token"])
            elif row["kind"] == 2:
                acked |= numbers
        for row in snap.all("inbox"):
            key = repr(decode_key(row["key"]))
            if row["id"] in leased:
                self.tokens[key] = max(self.tokens[key], leased[row["id"]])
            if row["id"] not in acked and row["id"] > cooled.get(row["key"], 0):
                self.pending[key, row["seq"]] = row["body"] if row["body"] is not None else bodies[row["id"]]


def arrived(shards: dict[int, Facts], origin: Facts, to: int) -> int:
    """Return the newest send of a shard to another one that has arrived there, or where its key was by then.

    They arrive one after the other, so all earlier ones have arrived, too.
    """
    name = origin.incarnation
    return max(facts.inlet.get(name if number == to else f"{name}:{to}", 0) for number, facts in shards.items())


class Verifier:
    """Verifies images of one recorded run.

    What is read from a file depends only on its content and that of the files beside it, and a queue's answers depend only on
    what is read from its files. So a file is opened once for each of its contents, whatever the rest of the image is, and a
    queue once for each combination of those. Its answers are judged with each of the possible earlier histories.

    Attributes:
        reader: opens the files.
        queues: how many queues were opened and drained.
    """

    def __init__(
        self,
        level: Level,
        snapshots: dict[str, list[Snapshot]],
        events: list[Event],
        clock: FakeClock,
        place: Path,
        batches: Sequence[RecordedBatch] = (),
    ) -> None:
        """Prepare to verify.

        Args:
            place: where images are written.
        """
        self.level = level
        self.snapshots = snapshots
        self.events = events
        self.batches = batches
        self.clock = clock
        self.queues = 0
        self._image = place
        self.reader = Reader(place.with_name(f"{place.name}-file"), level)
        self._commits: dict[str, dict[bytes, list[int]]] = {name: defaultdict(list) for name in snapshots}
        for name, known in snapshots.items():
            for number, snap in enumerate(known):
                self._commits[name][snap.digest].append(number)
        self._acked = self._acked_alone(events)
        self._facts: dict[tuple[str, int], Facts] = {}
        self._sent_out: dict[str, dict[tuple[int, int], tuple[str, bytes]]] = {}
        self._agreed: set[tuple[object, ...]] = set()
        self._answers: dict[tuple[object, ...], Drained] = {}
        self._judged: set[tuple[object, ...]] = set()

    def verify(self, disk: Disk, point: Point, chance: random.Random, *, thorough: float = 0.02) -> bool:
        """Open what a cut at `point` left, and verify it.

        Args:
            thorough: how often known contents are opened, or read, nevertheless.
        Returns:
            Whether anything was opened.
        Raises:
            Broken: something is wrong.
        """
        before = self.reader.opened, self.queues
        place = disk.directories[ROOT].get(PLACE)
        found: dict[str, int] = {}
        if place is None:
            require("opened" not in point.marks, "the queue is gone")
            said: tuple[object, ...] = (disk.names(),)  # nothing reads what is there
        else:
            found = self._match(disk, place, point, chance, thorough)
            said = tuple(found.items())
            if said not in self._agreed:
                self._agree_over_shards(found)
                self._agreed.add(said)
        answers = self._answers.get(said)
        if answers is None or (place is not None and not found) or chance.random() < thorough:
            answers = self._answers[said] = self._serve(disk, found, chance)
            self._judged.discard((said, point.events))
        if (said, point.events) not in self._judged:
            self._judge(answers, point, found)
            self._judged.add((said, point.events))
        return before != (self.reader.opened, self.queues)

    def _acked_alone(self, events: list[Event]) -> set[tuple[str, int]]:
        """Return the key and the seq of each message whose ack of its own has returned. That of a batch has no output."""
        of_batches = {(row.key, row.token) for batch in self.batches for row in batch.rows}
        alone = {e.call: e.items[0] for e in events if isinstance(e, Invoke) and e.verb == "ack" and len(e.items) == 1}
        done = [alone[e.call] for e in events if isinstance(e, Return) and e.call in alone and e.outcome == "ok"]
        return {(item.key, item.seq) for item in done if (item.key, item.token) not in of_batches}

    def _shards(self) -> int:
        return sum(1 for name in self.snapshots if name != CATALOG) or 1

    # ---- the contents of the files

    def _match(self, disk: Disk, place: int, point: Point, chance: random.Random, thorough: float) -> dict[str, int]:
        """Require each file to have the contents of some commit that is new enough. Return the numbers of these commits."""
        found: dict[str, int] = {}
        for name, span in sorted(point.spans.items()):
            if name != CATALOG and name not in files_of(self.snapshots[CATALOG][found[CATALOG]]):
                continue  # a shard is complete before the catalog names it
            try:
                digest, damage = self.reader.find(disk, place, name, chance, thorough=thorough)
            except apsw.Error as e:
                raise Broken(f"{name} can't be read: {type(e).__name__}: {e}") from e
            require(damage is None, f"{name} would be quarantined: {damage}")
            numbers = self._commits[name].get(digest, [])
            at = bisect_right(numbers, span.high)
            require(at, f"{name} is as no commit left it")
            newest = numbers[at - 1]
            low = span.low if self.level == "full" or name == CATALOG else span.durable
            require(newest >= low, f"{name} is as commit {newest} left it, but {low} was durable")
            found[name] = newest
        return found

    def facts(self, name: str, number: int) -> Facts:
        known = self._facts.get((name, number))
        if known is None:
            known = self._facts[name, number] = Facts(self.snapshots[name][number])
        return known

    def _of_shards(self, found: dict[str, int]) -> dict[int, Facts]:
        shards = {int(name[6:10]): self.facts(name, n) for name, n in found.items() if name != CATALOG}
        for number, facts in shards.items():
            arrived = max(other.inlet.get(f"{facts.incarnation}:lanes", 0) for other in shards.values())
            shards[number] = facts.with_parcels(arrived)
        return shards

    def _agree_over_shards(self, found: dict[str, int]) -> None:
        """Require that no half of a transaction is missing, whatever each shard has lost."""
        shards = self._of_shards(found)
        for origin, facts in shards.items():
            for destination in shards:
                mark = arrived(shards, facts, destination)
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

    # ---- the queue's answers

    def _serve(self, disk: Disk, found: dict[str, int], chance: random.Random) -> Drained:
        """Open the queue, drain it, and continue to use it."""
        self.queues += 1
        put_out(disk, self._image, chance)
        clock = copy.copy(self.clock)
        clock.reboot(down_seconds=5.0)
        shards = None if found else self._shards()
        with quiet(clock), strictq.open(self._image / PLACE, clock=clock, shards=shards) as queue:
            try:
                return self._answered(queue, clock, found, chance)
            except strictq.StrictqError as e:
                raise Broken(f"{type(e).__name__}: {e}") from e

    def _answered(self, queue: Queue, clock: FakeClock, found: dict[str, int], chance: random.Random) -> Drained:
        require_sound(queue)
        stats = queue.stats()
        require(all(s.quarantined is None for s in stats.shards), "a shard is quarantined")
        require(stats.outbox == 0, "something waits in an outbox")
        recorder = Recorder()
        call = recorder.invoke("reboot")
        recorder.result(call, "reboot")
        recorded = Named(queue, recorder, "after")
        got = Drained(keeps_outputs=queue.config.output_seconds > 0)
        got.outputs = {place: _output(queue, *place) for place in self._acked}
        if found:
            self._settings(recorded, self.snapshots[CATALOG][found[CATALOG]])
        for facts in self._of_shards(found).values():
            for key in facts.held:
                recorded.operate("unhold", key)
        self._finish_batches(recorded, got, {place for facts in self._of_shards(found).values() for place in facts.pending})
        if queue.topology().moving is not None:
            if chance.random() < 0.5:
                for key in ALL_KEYS:
                    self._take(recorded, got, recorded.receive(2, lease_seconds=30.0, keys=[key]))
            moving.resume(store_of(queue))
            require(queue.topology().moving is None, "a move was not finished")
            require_sound(queue)
        clock.advance(4000.0)
        self._drain(recorded, clock, got)
        self._accounts(queue, got, found)
        self._still_works(recorded)
        if found and self.snapshots[CATALOG][found[CATALOG]].tables["app_schema"]:
            for key in ALL_KEYS:
                effects = queue.query("SELECT n FROM app_effects WHERE lane = ? ORDER BY n", (repr(key),), key=key)
                require(len(effects) == int(state_of(queue, key) or 0), f"key {key!r} and its rows are not in one state")
            recorded.final(ALL_KEYS)
            got.accounted = True
        require_sound(queue)
        got.events = recorder.events
        return got

    def _finish_batches(self, recorded: Named, got: Drained, pending: set[tuple[str, int]]) -> None:
        """Read all recorded batches, and ack those that are open. If one is acked in some shards, a new holder acks the rest."""
        queue = recorded.queue
        if not any(shard.read(has_consumers) for shard in store_of(queue).shards):
            return
        known = queue._storage.recorded_batches.known(CONSUMER).values()
        acked = max(shard.acked for shard in known)
        half = {n for shard in known for n in shard.open if n <= acked}
        holder = Holder(queue, CONSUMER, encode)
        holder.attach(0.0)
        for n in range(1, holder.last + 1):
            got.batches[n] = rows = batch_of(queue, n)
            require(rows, f"recorded batch {n} is gone")
            left = {(row.key, row.seq): row.body for row in rows}
            if n <= holder.acked:
                got.bodies.update({place: body for place, body in left.items() if n in half and place in pending})
                continue
            recorder = Recorder()
            call = recorder.invoke("receive", [Wanted(ENDLESS)])
            recorder.result(call, "receive", OK, handed(rows))
            got.received[n] = recorder.events
            got.bodies.update(left)
            recorded.ack_batch(holder, n, rows)
        holder.close()

    def _settings(self, recorded: Named, catalog: Snapshot) -> None:
        """Require the stored settings, and what is paused to be delivered to no one. Then end all limits."""
        queue = recorded.queue
        require(queue.config == config_of(catalog), "the settings are not the stored ones")
        if queue.config.paused:
            require(not recorded.receive(5, lease_seconds=30.0), "a paused queue delivers messages")
            queue.resume()
        for limit in queue.config.limits:
            queue.limit(limit.tenant, remove=True)

    def _judge(self, got: Drained, point: Point, found: dict[str, int]) -> None:
        """Require the answers to agree with everything that was answered before the cut."""
        ready = "ready" in point.marks
        events = self.events[: point.events] if ready else []
        before = self._tokens(events, found)
        for key, token in got.tokens.items():
            require(token > before.get(key, 0), f"token {token} of {key} was given before {before.get(key)}")
        for batch in self.batches if ready else ():
            if batch.at <= point.events <= batch.until:
                require(got.batches.get(batch.n) == batch.rows, f"recorded batch {batch.n} is gone, or has changed")
        known = {row.token for batch in self.batches if batch.at <= point.events for row in batch.rows}
        rest = [e for n, received in got.received.items() if got.batches[n][0].token not in known for e in received]
        if ready and self.level == "full":
            require(got.accounted, "the program's own table is gone")
            broken = check([*events, *rest, *got.events], Policy())
            require(not broken, f"the checker found {broken[:3]}")
            for place in self._acked_alone(events):
                require(not got.keeps_outputs or got.outputs[place], f"the output of {place} is gone")

    def _tokens(self, events: list[Event], found: dict[str, int]) -> dict[str, int]:
        """Return the newest token of each key that any client may have seen."""
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

    def _drain(self, recorded: Named, clock: FakeClock, got: Drained) -> None:
        for _ in range(200):
            batch = recorded.receive(500, lease_seconds=30.0)
            if not batch:
                return
            self._take(recorded, got, batch)
            clock.advance(1.0)
        raise Broken("the queue does not run dry")

    def _take(self, recorded: Named, got: Drained, batch: list[Delivery]) -> None:
        for d in batch:
            key = repr(d.key)
            require(d.seq > got.last[key], f"seq {d.seq} of {key} came after {got.last[key]}")
            got.last[key] = d.seq
            got.bodies[key, d.seq] = d.body
            got.tokens.setdefault(key, d.token)
        if batch:
            recorded.act_many("ack", batch)

    def _accounts(self, queue: Queue, got: Drained, found: dict[str, int]) -> None:
        """Require that exactly the stored messages were delivered or expired."""
        shards = self._of_shards(found)
        expected: dict[tuple[str, int], bytes] = {}
        arriving: list[tuple[str, bytes]] = []
        dead: set[tuple[str, int]] = set()
        for facts in shards.values():
            twice = expected.keys() & facts.pending.keys()
            require(not twice, f"{twice} are in two shards")
            expected |= facts.pending
            dead |= facts.dead
            for (to, number), sent in facts.outbox.items():
                if number > arrived(shards, facts, to):
                    arriving.append(sent)
        now_dead = {(repr(d.key), d.seq): d.body for d in queue.dead_letters(limit=10_000)}
        require(dead <= now_dead.keys() | expected.keys(), "a dead letter is gone")
        seen = got.bodies | {place: body for place, body in now_dead.items() if place not in dead}
        for place, output in got.outputs.items():
            require(output in (None, output_of(*place)), f"the output of {place} is {output!r}")
            require(output is None or place not in expected, f"{place} has its output, and was not acked")
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


def _output(queue: Queue, key: str, seq: int) -> str | None:
    """Return the output of a message. None: there is none, or the message was lost with the power."""
    try:
        return queue.output(_KEYS[key], seq)
    except strictq.UnknownMessage:
        return None


@attrs.define
class Drained:
    """What was read from a queue."""

    bodies: dict[tuple[str, int], bytes] = attrs.Factory(dict)
    tokens: dict[str, int] = attrs.Factory(dict)
    last: dict[str, int] = attrs.Factory(lambda: defaultdict(int))
    events: list[Event] = attrs.Factory(list)
    outputs: dict[tuple[str, int], str | None] = attrs.Factory(dict)
    """Those of messages that were ever acked, before anything was done."""
    batches: dict[int, list[BatchRow]] = attrs.Factory(dict)
    received: dict[int, list[Event]] = attrs.Factory(dict)
    """Of each batch that was open, that a client got it."""
    keeps_outputs: bool = False
    accounted: bool = False
    """Whether all remaining effects and messages were read at the end."""
