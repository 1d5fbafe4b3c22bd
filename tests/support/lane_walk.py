"""A random walk of two openers of one shard of format 3, checked after each step by a naive model and by a memory built afresh.

A step may be interrupted: a statement fails, or an exception is raised at a random call of a function. It must then have had all
of its effect or none. The limits are tiny, so that folds, windows, evictions and rebuilds happen all the time.

To extend it by a kind of entry: add a method `step_…` that sets `asked`, which says whether rows are those of the whole step, and
the effect to `naive_lanes`.
"""

from __future__ import annotations

import copy
import random
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import apsw

from strictq import LeaseLost, TenantLimit
from strictq._store.commit import connection
from strictq._store.lane.entries import decode_keys, encode_keys
from strictq._store.lane.live_lane import LiveLane
from strictq._store.lane.memory import StoreLimits
from strictq._store.shard import batch_leases, claiming, expiring, forgetting, operating, sending, settling
from strictq._store.shard.failures import AttemptFailure
from strictq._store.shard.leases import BODY, ID, KEY, SEQ, Claimed, Request, Settlement
from strictq._store.shard.looking import depth_of
from strictq._store.shard.messages import Item, Options
from strictq._store.shard.shard_lanes import ShardLanes, Tx
from strictq._values.config import QueueConfig
from strictq._values.errors import QueueFull
from tests.support import naive_lanes as naive
from tests.support.lane_file import LaneFile, new_file, request, state_of

SECOND = 1_000_000
INTERRUPTED = 0.08
DEDUP_WINDOW = 3 * SECOND
HOUSEKEEPING = (naive.FOLD, naive.NOTE, naive.VOID, naive.FORGET)
OVER = ("x", "s")
BESIDE_CLAIMS = (naive.EXPIRE, naive.REJECT, naive.DROP, naive.HOLD, naive.PARK)
"""Kinds of entries that a claim, or a nack, may write before or after its own."""
Asked = Callable[[list[Any]], bool]


class Interrupted(BaseException):
    """What an interrupted step raises."""


class Held:
    """A lease as its holder knows it: of each lane, the arrival numbers of its messages by seq."""

    def __init__(self, claimed: Claimed) -> None:
        self.token = claimed.token
        self.groups = {held.key: {row[SEQ]: row[ID] for row in held.rows} for held in claimed.leases}


class Walk:
    def __init__(self, seed: int, directory: Path) -> None:
        self.random = r = random.Random(seed)
        self.path = directory / f"walk-{seed}.db"
        self.saved = directory / f"walk-{seed}-saved.db"
        new_file(self.path)
        self.now = 1_000 * SECOND
        self.limits = [
            StoreLimits(
                window=r.choice((1, 3, 12, 60)), slice=r.choice((1, 3, 10)), head=r.choice((1, 2, 8)), chunk=r.choice((2, 4, 9)),
                loaded_max=r.choice((4, 20, 500)), tails_max=r.choice((3, 500)), deleted=r.choice((1, 4, 500)),
            )
            for _ in range(2)
        ]  # fmt: skip
        most = r.choice((None, None, 1, 2, 3))
        self.config = QueueConfig(
            max_attempts=most, on_poison="dead_letter" if most is None else r.choice(("dead_letter", "drop", "hold")),
            retry_delay_seconds=r.choice((0.0, 1.0)), retry_for_seconds=r.choice((0.0, 0.0, 2.0)),
            on_expire=r.choice(("drop", "dead_letter")), ttl_seconds=r.choice((None, None, None, 20.0)), keyless="random",
            dedup_window_seconds=DEDUP_WINDOW / SECOND, dedup_scope=r.choice(("key", "queue")),
            max_depth=r.choice((None, None, None, 20)), history=r.choice(("off", "off", "off", "records")),
        )  # fmt: skip
        shared = random.Random(f"tenants {seed}")
        if shared.random() < 0.5:  # the keys are k00, k01 …: the tenants are "k", "k1", and the others
            self.config = self.config.evolve(
                tenant_separator=shared.choice(("0", "1", "5")),
                limits=(TenantLimit("k", weight=shared.choice((0.5, 1.0, 7.0))), TenantLimit("*", weight=2.0)),
            )
        if shared.random() < 0.4:  # one step is a second, about
            self.config = self.config.evolve(sideline_seconds=shared.choice((0.5, 3.0, 20.0)))
        self.epoch = self.version = self.stamped_epoch = 0
        self.extended: list[int] = []
        self.keeps_leases = r.random() < 0.3
        self.reader = connection.connect(str(self.path), durability="process")
        self.openers = [self.open(i) for i in range(2)]
        self.sleeper = self.open(r.randrange(2))
        self.keys = [b"sk%02d" % i for i in range(r.choice((2, 5, 16)))] + [b"n%d" % i for i in range(r.choice((0, 1, 3)))]
        self.model = naive.NaiveShard()
        self.bodies: dict[int, bytes] = {}
        self.leases: list[Held] = []
        self.batches: list[int] = []
        self.firsts: list[tuple[int, list[bytes]]] = []
        self.dedups: dict[tuple[bytes, str], tuple[int, bytes, int]] = {}
        self.copied: Any = None
        self.done: Counter[str] = Counter()
        self.log: list[str] = []
        self.asked: Asked = list.__eq__
        self.arrivals: list[int] = []

    def open(self, which: int) -> LaneFile:
        opener = LaneFile(self.path, lambda: self.now, limits=self.limits[which], config=self.config)
        self.set_up(opener)
        return opener

    def set_up(self, opener: LaneFile) -> None:
        opener.epoch, opener.version, opener.keeps_leases = self.epoch, self.version, self.keeps_leases

    # ---- running

    def run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.step()
            self.drain()
        except BaseException:
            print("\n".join(self.log[-12:]), self.limits, self.config, file=sys.stderr)
            raise
        finally:
            for shard in (*self.openers, self.sleeper):
                shard.close()
            self.reader.close()

    def step(self) -> None:
        r = self.random
        which = r.randrange(2)
        shard = self.openers[which]
        names, weights = zip(*STEPS.items(), strict=True)
        name = r.choices(names, weights)[0]
        interrupted = r.random() < INTERRUPTED and name not in NEVER_INTERRUPTED
        before = self.model.seen, self.model.top
        self.log.append(f"{before} {which} {name} {'interrupted' if interrupted else ''}")
        act = getattr(self, f"step_{name}")
        self.asked = nothing
        shard.forget_rows()
        was_interrupted = False
        try:
            with Interruption(shard, r if interrupted else None):
                act(shard)
        except Interrupted:
            was_interrupted = True
            with suppress(apsw.ConnectionClosedError):
                if shard.db.in_transaction:
                    shard.db.execute("ROLLBACK")  # a process that dies leaves no transaction open
            if r.random() < 0.5:
                shard.close()
                self.openers[which] = self.open(which)
        self.done["interrupted" if was_interrupted else name] += 1
        new = self.read_log(shard)
        self.log[-1] += f" -> {new}"
        if not was_interrupted or new:
            assert self.asked(new), (name, was_interrupted, new)
        self.check_file(new)
        self.check_afresh()
        if r.random() < 0.5:
            # Only in half of the steps: comparing catches up, and errors are in long lags.
            for opener in self.openers:
                self.compare(opener, "live")
        if r.random() < 0.04:
            self.compare(self.sleeper, "asleep")

    # ---- what the file says

    def read_log(self, shard: LaneFile) -> list[Any]:
        """Feed the model with the rows that an opener wrote, and return them as `seen_by` does."""
        model = self.model
        newest, top = self.reader.execute("SELECT (SELECT max(id) FROM journal), (SELECT max(id) FROM message)").get
        entries = [shard.entries[i] for i in range(model.seen + 1, newest + 1)]
        messages = [shard.messages[i] for i in range(model.top + 1, top + 1)]
        for entry in entries:
            while messages and messages[0][0] <= entry[3]:
                self.arrive(messages.pop(0))
            model.apply(entry)
        found = self.shown(entries)
        for message in messages:
            self.arrive(message)
        arrived = [shard.messages[i][1] for i in self.arrivals]
        self.arrivals = []
        return arrived + found

    def shown(self, entries: Sequence[Any]) -> list[Any]:
        """Return (kind, what it names) of entries, but not of those that a verb may add anywhere."""
        return [
            (entry[1], self.named(entry))
            for entry in entries
            if entry[1] not in HOUSEKEEPING
            and not (entry[1] == naive.RELEASE and entry[6] in OVER)
            and not (entry[1] == naive.EXTEND and not entry[5])  # an epoch begins
        ]

    def written(self, shard: LaneFile) -> list[Any]:
        """Return what `read_log` will return, for steps whose rows the store chooses."""
        newest = self.reader.execute("SELECT max(id) FROM journal").get
        return self.shown([shard.entries[i] for i in range(self.model.seen + 1, newest + 1)])

    def arrive(self, message: tuple[Any, ...]) -> None:
        self.model.arrive(message)
        self.bodies[message[0]] = message[7]
        self.arrivals.append(message[0])

    @staticmethod
    def named(entry: tuple[Any, ...]) -> Any:
        if entry[1] in (naive.HOLD, naive.RELEASE_HOLD, naive.FORGET) or (entry[1] in (naive.RELEASE, naive.EXTEND) and entry[6]):
            return entry[7]
        return [abs(i) for (i,) in struct.iter_unpack("<q", entry[7])]

    def check_file(self, new: list[Any]) -> None:
        """What an opener wrote is beside the logs, too."""
        run: Any = self.reader.execute
        model = self.model
        if new:
            assert run("SELECT epoch, config_version FROM mark").get == (self.epoch, self.version)
            if self.stamped_epoch != self.epoch and not self.keeps_leases:
                for lane in model.lanes.values():
                    # An endless lease stays, and the step itself may have extended one.
                    over = lane.lease is None or lane.lease.token >> 40 == self.epoch or lane.lease.deadline == 0
                    assert over or (lane.lease and lane.lease.deadline in (1 << 62, *self.extended)), lane
            self.stamped_epoch = self.epoch
        noted = {i for (i,) in run("SELECT id FROM trouble")}
        unresolved = {m.id for lane in model.lanes.values() for m in [*lane.messages, *lane.waiting]} | set(model.dead)
        assert model.noted & unresolved <= noted, ("trouble is missing", model.noted & unresolved - noted)
        for i in noted:
            assert run("SELECT 1 FROM message WHERE id = ?", (i,)).get, ("trouble without its message", i)
        if self.config.history != "off":
            assert dict(run("SELECT arrival, count(*) FROM history GROUP BY arrival")) == model.ends
        buried = {(key, i) for key, i in run("SELECT key, id FROM dead")}
        assert buried == {(m.key, i) for i, m in model.dead.items()}

    def check_afresh(self) -> None:
        """A memory that is built anew equals the model."""
        fresh = LaneFile(self.path, lambda: self.now, limits=self.random.choice(self.limits), db=self.reader)
        self.compare(fresh, "fresh")
        if self.random.random() < 0.05:
            problems = fresh.check()
            assert not problems, problems

    def compare(self, shard: LaneFile, what: str) -> None:
        model = self.model

        def look(lanes: ShardLanes) -> None:
            for key in {*self.keys, *model.lanes}:
                wanted = model.lanes.get(key) or naive.NaiveLane(key)
                depth = depth_of(lanes.loader.lane(key))
                assert depth == len(wanted.messages) + len(wanted.waiting), (what, key, depth)
                lane = shard.whole_lane(key)
                state = naive.shown(state_of(lane))
                assert state == wanted.state(), (what, key, state, wanted.state())
                self.check_expiry(lane, wanted)
                if wanted.done is not None:
                    token, kind, seqs = wanted.done
                    assert settling.was_done(lanes, key, token, kind, sorted(seqs)), (what, key, wanted.done)
                    assert not settling.was_done(lanes, key, token, kind, [max(seqs) + 1]), (what, key, wanted.done)
            for name, value in model.totals.items():
                assert getattr(lanes.memory.totals, name) == value, (what, name, getattr(lanes.memory.totals, name), value)
            assert lanes.memory.floor == model.floor, what

        shard.look(look)

    def check_expiry(self, lane: LiveLane, wanted: naive.NaiveLane) -> None:
        ends = [m.expires for m in wanted.messages if m.expires is not None and not m.redriven]
        assert not ends or 0 < lane.expires <= min(ends), (lane.key, lane.expires, ends)

    # ---- sends

    def some_items(self) -> list[Item]:
        r = self.random
        return [
            (
                r.choice(self.keys), b"%d" % r.randrange(1 << 30),
                Options(
                    delay=r.choice((1, 3)) * SECOND if r.random() < 0.5 else 0,
                    ttl=r.choice((1, 5)) * SECOND if r.random() < 0.5 else None,
                    headers='{"a":1}' if r.random() < 0.5 else None,
                ) if r.random() < 0.15 else None,
                None,
            )
            for _ in range(r.choice((1, 1, 1, 2, 7, 20)))
        ]  # fmt: skip

    def is_parked(self, item: Item) -> bool:
        return item[0].startswith(b"n") and item[2] is not None and item[2].delay > 0

    def step_send(self, shard: LaneFile) -> None:
        items = self.some_items()
        self.asked = sent = self.of_items(items)
        full = self.config.max_depth is not None and self.model.totals["pending"] + len(items) > self.config.max_depth
        rebuilds = self.rebuilds(shard)
        try:
            done = shard.send(items)
        except QueueFull:
            assert full
            self.asked = nothing
            self.check_refusal(shard, rebuilds)
            return
        assert not full
        self.asked = sent
        assert [(shard.messages[i][1], seq, shard.messages[i][7]) for seq, i, _ in done] == [
            (item[0], seq, item[1]) for item, (seq, _, _) in zip(items, done, strict=True)
        ]

    def rebuilds(self, shard: LaneFile) -> int:
        """Return how often an opener's memory was built anew; -1 if the next call may have to do it."""
        memory = shard.memory
        return memory.rebuilds if not memory.unsure and (memory.seen, memory.top) == (self.model.seen, self.model.top) else -1

    def check_refusal(self, shard: LaneFile, rebuilds: int) -> None:
        """A refusal does not cost a memory, unless the transaction also began an epoch or a configuration."""
        if rebuilds >= 0 and self.stamped():
            self.compare(shard, "refused")
            assert shard.memory.rebuilds == rebuilds

    def stamped(self) -> bool:
        return bool(self.reader.execute("SELECT epoch, config_version FROM mark").get == (self.epoch, self.version))

    def of_items(self, items: Sequence[Item]) -> Asked:
        keys, parked = [item[0] for item in items], sum(map(self.is_parked, items))

        def asked(new: list[Any]) -> bool:
            return new[: len(keys)] == keys and [row[0] for row in new[len(keys) :]] == [naive.PARK] * parked

        return asked

    def step_dedup(self, shard: LaneFile) -> None:
        r, known = self.random, dict(self.dedups)
        tails = {key: lane.tail for key, lane in self.model.lanes.items()}
        items: list[Item] = []
        seqs: list[tuple[int, bytes | None]] = []
        new: list[Item] = []
        if self.config.max_depth is not None:
            return
        for _ in range(r.choice((1, 1, 3))):
            key, dedup_id = r.choice(self.keys), r.choice("ab")
            item: Item = (key, b"", Options(dedup_id=dedup_id), None)
            items.append(item)
            scope = b"" if self.config.dedup_scope == "queue" else key
            seq, of, until = known.get((scope, dedup_id), (0, b"", 0))
            if until > self.now:
                seqs.append((seq, of))
                continue
            seq = (tails.get(key, 0) or self.model.floor) + 1
            tails[key] = seq
            known[scope, dedup_id] = seq, key, self.now + DEDUP_WINDOW
            new.append(item)
            seqs.append((seq, None))
        self.asked = self.of_items(new)
        top = self.model.top
        try:
            assert [(seq, of) for seq, _, of in shard.send(items)] == seqs
        finally:
            if self.reader.execute("SELECT max(id) FROM message").get > top:
                self.dedups = known

    # ---- claims

    def given_up(self, lane: naive.NaiveLane, message: naive.Sent) -> bool:
        """Return whether a claim finds a message of a free lane to be out of attempts. The end of a lease charges it."""
        config, lease = self.config, lane.lease
        if config.max_attempts is None:
            return False
        charged = lease is not None and message in lease.held and message.seq <= lease.started
        return (message.crashes if config.retry_for_seconds else message.starts) + charged >= config.max_attempts

    def could_claim(self, key: bytes, lane: naive.NaiveLane) -> list[naive.Sent]:
        if self.config.on_poison != "hold" or key.startswith(b"n"):
            return lane.ready(self.now, lambda m: self.given_up(lane, m))
        found = lane.ready(self.now)
        return found[: next((at for at, m in enumerate(found) if self.given_up(lane, m)), len(found))]

    def some_request(self) -> Request:
        r = self.random
        keys = None
        if r.random() < 0.1:
            known = [key for key in self.model.lanes if key not in self.keys]
            keys = tuple(r.sample(self.keys + known, min(len(self.keys + known), 3)))
        return request(
            r.choice((1, 1, 2, 5, 20)), r.choice((None, None, 1, 2)), lease=r.choice((1, 2, 100)) * SECOND, keys=keys,
            charge=r.random() < 0.5, starts=r.random() < 0.3, endless=r.random() < 0.05,
            arrived_to=self.model.top - r.randrange(20) if r.random() < 0.1 else None,
            bytes_max=r.choice((1, 30, 100)) if r.random() < 0.1 else None,
        )  # fmt: skip

    def step_claim(self, shard: LaneFile) -> None:
        asked = self.some_request()
        # What could be claimed. A suspect is delivered alone, and a redriven message not together with later ones. An epoch that
        # begins ends leases, which is not foreseen here.
        could = {
            key: [m for m in self.could_claim(key, lane) if asked.arrived_to is None or m.id <= asked.arrived_to]
            for key, lane in self.model.lanes.items()
            if asked.keys is None or key in asked.keys
        }
        plain = not any(
            lane.solo or any(m.redriven or m.starts for m in lane.messages) or lane.lease for lane in self.model.lanes.values()
        )
        self.asked = of_claim
        claimed = shard.claim(asked)
        self.log[-1] += f" {asked} claimed {claimed.token} {[(h.key, [row[SEQ] for row in h.rows]) for h in claimed.leases]}"
        new = self.written(shard)
        ids = [row[ID] for held in claimed.leases for row in held.rows]
        for held in claimed.leases:
            for row in held.rows:
                assert bytes(row[BODY]) == self.bodies[row[ID]]
                assert row[KEY] == held.key
        claims = [named for kind, named in new if kind == naive.CLAIM]
        assert [i for some in claims for i in some] == ids, (claims, ids)
        most = sum(min(len(some), asked.per_key or asked.room) for some in could.values())
        if not ids:
            assert not any(could.values()), ("nothing was claimed", could)
        elif plain and asked.bytes_max is None:
            # It may be more: a claim of named keys also resolves an expired message that is delayed.
            assert len(ids) >= min(asked.room, most), ("too few", len(ids), asked.room, most)
        assert len(ids) <= asked.room
        if asked.per_key:
            assert all(len(held.rows) <= asked.per_key for held in claimed.leases)
        if asked.arrived_to is not None:
            assert all(i <= asked.arrived_to for i in ids)
        if asked.bytes_max is not None and len(ids) > 1:
            assert sum(len(self.bodies[i]) for i in ids) <= asked.bytes_max
        if ids:
            self.leases.append(Held(claimed))

    def step_claim_first(self, shard: LaneFile) -> None:
        def asked(new: list[Any]) -> bool:
            if not any(kind == naive.CLAIM for kind, _ in new):
                return of_claim(new)
            return bool(of_claim(new[:-1]) and new[-1] == (naive.ACK_FIRST, new[-2][1]))

        self.asked = asked
        one = request(self.random.choice((1, 4)), self.random.choice((None, 1)), lease=SECOND, ack_first=True)
        claimed = shard.transact(lambda tx: claiming.claim(tx, one))
        if claimed.leases:
            assert [row[ID] for held in claimed.leases for row in held.rows] == self.written(shard)[-1][1]
            self.firsts.append((claimed.token, [held.key for held in claimed.leases]))

    def step_finish(self, shard: LaneFile) -> None:
        """End leases that `ack_first` left."""
        if not self.firsts:
            return
        token, keys = self.firsts.pop(self.random.randrange(len(self.firsts)))
        live = [key for key in keys if self.lease(key, token)]
        asked = [(naive.RELEASE, encode_keys([key])) for key in live]
        self.asked = lambda new: bool(new == asked)
        results = shard.transact(lambda tx: settling.release(tx, [Settlement(key, token, [1]) for key in keys]))
        assert [key for key, lost in zip(keys, results, strict=True) if lost is None] == live

    # ---- settlements

    def lease(self, key: bytes, token: int) -> naive.NaiveLease | None:
        """Return a lane's lease if it has this token."""
        lane = self.model.lanes.get(key)
        lease = lane.lease if lane else None
        return lease if lease is not None and lease.token == token else None

    def is_over(self, lease: naive.NaiveLease) -> bool:
        """Return whether an operation finds that a lease is over. The first write after a boot ends those with a deadline."""
        boots = self.stamped_epoch != self.epoch and not self.keeps_leases and lease.deadline < 1 << 62
        return lease.deadline <= self.now or boots

    def is_held(self, batch: Settlement, ids: Sequence[int]) -> bool:
        lease = self.lease(batch.key, batch.token)
        return lease is not None and {m.id for m in lease.held}.issuperset(ids)

    def was_done(self, batch: Settlement, kind: int, seqs: Sequence[int] = ()) -> bool:
        """Return whether an interrupted call did this before, and nothing else was done with the lane since."""
        lane = self.model.lanes.get(batch.key)
        if lane is None or lane.done is None:
            return False
        token, done, named = lane.done
        same = done == kind or {done, kind} == {naive.NACK, naive.DEFER}
        return token == batch.token and same and named.issuperset(seqs or batch.seqs)

    def some_batches(self, *, one: bool = True) -> list[tuple[Settlement, list[int]]]:
        """Return settlements of messages of a lease, which may be lost, with the arrival numbers of their messages."""
        r = self.random
        if not self.leases:
            return []
        held = r.choice(self.leases)
        keys = [key for key, ids in held.groups.items() if ids]
        if not keys:
            self.leases.remove(held)
            return []
        found: list[tuple[Settlement, list[int]]] = []
        everything = not one and r.random() < 0.5
        for key in keys if everything else r.sample(keys, r.randrange(1, len(keys) + 1)):
            known = held.groups[key]
            n = len(known) if everything else 1 if one else r.randrange(1, len(known) + 1)
            seqs = sorted(r.sample(sorted(known), n))
            found.append((Settlement(key, held.token, seqs), [known[seq] for seq in seqs]))
        return found

    def forget_held(self, batch: Settlement, seqs: Sequence[int]) -> None:
        for held in self.leases:
            if held.token == batch.token:
                held.groups[batch.key] = {seq: i for seq, i in held.groups[batch.key].items() if seq not in seqs}

    def forget_behind(self, batch: Settlement) -> None:
        for held in self.leases:
            if held.token == batch.token:
                known = held.groups[batch.key]
                held.groups[batch.key] = {seq: i for seq, i in known.items() if seq < batch.seqs[0]}

    def valid_ids(self, some: Sequence[tuple[Settlement, list[int]]]) -> list[int]:
        return [i for batch, ids in some for i in ids if self.is_held(batch, [i])]

    def step_ack(self, shard: LaneFile) -> None:
        some = self.some_batches(one=False)
        if not some:
            return
        valid = self.valid_ids(some)

        def asked(new: list[Any]) -> bool:
            return all(row[0] == naive.ACK for row in new) and sorted(i for _, ids in new for i in ids) == sorted(valid)

        self.asked = asked
        known = {(batch.key, seq) for batch, _ in some for seq in batch.seqs if self.was_done(batch, naive.ACK, [seq])}
        lost = shard.ack([batch for batch, _ in some])
        for (batch, ids), errors in zip(some, lost, strict=True):
            unheld = {seq for seq, i in zip(batch.seqs, ids, strict=True) if i not in valid and (batch.key, seq) not in known}
            # An ack of a part of a batch is the lane's last resolution, so what was done before it is refused.
            assert unheld <= set(errors) <= {seq for seq, i in zip(batch.seqs, ids, strict=True) if i not in valid}
            self.forget_held(batch, batch.seqs)

    def step_ack_lane(self, shard: LaneFile) -> None:
        """Ack as a transaction of a program does: all of it, or it is refused and nothing changes."""
        some = self.some_batches(one=False)[:1]
        if not some:
            return
        ((batch, ids),) = some
        valid = self.is_held(batch, ids)
        self.asked = lambda new: bool(valid and new == [(naive.ACK, ids)])
        rebuilds = self.rebuilds(shard)
        known = self.was_done(batch, naive.ACK)
        try:
            result = shard.transact(lambda tx: settling.ack_lane(tx, batch))
        except LeaseLost:
            assert not valid
            assert not known
            self.asked = nothing
            self.check_refusal(shard, rebuilds)
        else:
            assert result == valid
            assert valid or known
            if not valid:
                self.asked = nothing
        self.forget_held(batch, batch.seqs)

    def give_back(self, kind: int, call: Callable[[list[Settlement]], list[Any]]) -> list[Any]:
        """Settle one message of each of some lanes. Return the results of those that their leases held."""
        some = self.some_batches()
        valid = [(batch, ids) for batch, ids in some if self.is_held(batch, ids)]
        rows = [(kind, ids) for _, ids in valid]

        def asked(new: list[Any]) -> bool:
            own = [row for row in new if row[0] == kind]
            return own == rows and all(row[0] == kind or row[0] in BESIDE_CLAIMS for row in new)

        if not some:
            return []
        self.asked = asked
        results = call([batch for batch, _ in some])
        for (batch, ids), result in zip(some, results, strict=True):
            assert isinstance(result, LeaseLost) != (self.is_held(batch, ids) or self.was_done(batch, kind))
            self.forget_behind(batch)
        held = [self.is_held(batch, ids) for batch, ids in some]
        return [result for result, one in zip(results, held, strict=True) if one]

    def step_nack(self, shard: LaneFile) -> None:
        delay = self.random.choice((None, 0, SECOND))
        failure = AttemptFailure("failed")
        results = self.give_back(naive.NACK, lambda some: shard.nack(some, delay, failure))
        new = self.written(shard)
        nacked = [ids[0] for kind, ids in new if kind == naive.NACK]
        ended = [ids[0] for kind, ids in new if kind in (naive.REJECT, naive.DROP)]
        parked = [ids[0] for kind, ids in new if kind == naive.PARK]
        for i, wait in zip(nacked, results, strict=True):
            message = self.model.sent[i]
            if self.config.max_attempts is None:
                assert wait is not None
            elif not self.config.retry_for_seconds:
                assert (wait is None) == (message.starts + 1 >= self.config.max_attempts), message
            if wait is None and self.config.on_poison != "hold":
                assert i in ended
            elif message.key.startswith(b"n") and b"!" not in message.key:
                assert i in parked, message
        assert sum(kind == naive.HOLD for kind, _ in new) == (results.count(None) if self.config.on_poison == "hold" else 0)

    def step_defer(self, shard: LaneFile) -> None:
        delay = self.random.choice((0, 2 * SECOND))
        if self.random.random() < 0.5:
            self.give_back(naive.DEFER, lambda some: shard.transact(lambda tx: settling.defer(tx, some, delay, "later")))
            return
        failure = AttemptFailure("elsewhere")
        failed = lambda tx, some: settling.defer_failed(tx, some, delay, [failure] * len(some), began=True)  # noqa: E731
        self.give_back(naive.DEFER, lambda some: shard.transact(lambda tx: failed(tx, some)))

    def step_release(self, shard: LaneFile) -> None:
        some = self.some_batches()
        if not some:
            return
        rows: list[Any] = []
        lost: list[Settlement] = []
        for batch, _ in some:
            lease = self.lease(batch.key, batch.token)
            if lease is None:
                lost.append(batch)
                continue
            back = [m.id for m in lease.held if m.seq >= batch.seqs[0]]
            if back and len(back) < len(lease.held):
                rows.append((naive.RELEASE, back[:1]))
            elif back or not lease.held:
                rows.append((naive.RELEASE, encode_keys([batch.key])))
        self.asked = lambda new: bool(new == rows)
        results = shard.transact(lambda tx: settling.release(tx, [batch for batch, _ in some]))
        assert lost == [batch for (batch, _), result in zip(some, results, strict=True) if result is not None]
        for batch, _ in some:
            self.forget_behind(batch)

    def step_reject(self, shard: LaneFile) -> None:
        self.settle_each(shard, naive.REJECT, lambda tx, some: settling.reject(tx, some, AttemptFailure("bad", "output")))

    def settle_each(self, shard: LaneFile, kind: int, call: Callable[[Tx, list[Settlement]], list[Any]]) -> list[Any]:
        """Resolve one message of each of some lanes, each by an entry of its own."""
        some = self.some_batches()
        rows = [(kind, ids) for batch, ids in some if self.is_held(batch, ids)]
        self.asked = lambda new: bool(new == rows)
        if not some:
            return []
        results = shard.transact(lambda tx: call(tx, [batch for batch, _ in some]))
        for (batch, ids), result in zip(some, results, strict=True):
            assert isinstance(result, LeaseLost) != (self.is_held(batch, ids) or self.was_done(batch, kind))
            self.forget_held(batch, batch.seqs)
        return results

    def step_start(self, shard: LaneFile) -> None:
        some = self.some_batches()
        started = [
            ids[0] for batch, ids in some
            if self.is_held(batch, ids) and (lease := self.lease(batch.key, batch.token)) and lease.started < batch.seqs[0]
        ]  # fmt: skip
        self.asked = lambda new: [i for kind, ids in new for i in ids if kind == naive.START] == started
        if not some:
            return
        if len(some) > 1 or not shard.may_be_alone or not settling.start_alone(shard.lanes, self.now, some[0][0]):
            shard.transact(lambda tx: settling.start(tx, [batch for batch, _ in some]))

    def step_advance(self, shard: LaneFile) -> None:
        """Ack the first message of a lane and start the next one, as a worker does."""
        if not self.leases:
            return
        held = self.random.choice(self.leases)
        key, known = self.random.choice(list(held.groups.items()))
        if len(known) < 2:
            return
        (first, i), (second, j) = sorted(known.items())[:2]
        batch = Settlement(key, held.token, [first], start=second)
        valid, both = self.is_held(batch, [i]), self.is_held(batch, [j])
        rows = [(naive.ACK, [i])] if valid else []
        if valid and both and (lease := self.lease(key, held.token)) and lease.started < second:
            rows.append((naive.START, [j]))

        def asked(new: list[Any]) -> bool:
            lease = self.lease(key, held.token)
            starts_by_ack = new == rows[:1] and lease is not None and lease.started >= second
            return new == rows or starts_by_ack

        self.asked = asked
        known = self.was_done(batch, naive.ACK)
        if self.random.random() < 0.5:
            refused: object = shard.ack([batch])[0]
        else:
            refused = shard.transact(lambda tx: settling.Advance([batch], [])(tx))
        assert bool(refused) != (valid or known)
        self.forget_held(batch, [first])

    def step_extend(self, shard: LaneFile) -> None:
        some = self.some_batches()
        length = self.random.choice((1, 50)) * SECOND
        self.extended = [self.now + length]
        live = {batch.key: None for batch, _ in some if self.lease(batch.key, batch.token)}
        rows = [(naive.EXTEND, encode_keys(live))] if live else []
        self.asked = lambda new: bool(new == rows)
        if some:
            results = shard.transact(lambda tx: settling.extend(tx, [batch for batch, _ in some], length))
            assert [batch.key in live for batch, _ in some] == [result == self.now + length for result in results]

    def step_more(self, shard: LaneFile) -> None:
        if not self.leases:
            return
        held = self.random.choice(self.leases)
        key = self.random.choice(list(held.groups))
        known = held.groups[key]
        if not known:
            return
        seq, lease = min(known), self.lease(key, held.token)
        self.asked = lambda new: [row[0] for row in new] in ([], [naive.MORE])
        try:
            rows = shard.transact(lambda tx: settling.more(tx, Settlement(key, held.token, [seq]), self.random.choice((1, 4))))
        except LeaseLost:
            assert lease is None or not lease.held or seq > lease.held[-1].seq or seq < lease.low
            self.asked = nothing
            return
        assert lease is not None
        ids = [row[ID] for row in rows]
        self.asked = lambda new: bool(new == ([(naive.MORE, ids)] if ids else []))
        known |= {row[SEQ]: row[ID] for row in rows}

    def step_worker_dies(self, shard: LaneFile) -> None:
        """End the leases of a worker that died. They are over at once."""
        if not self.leases:
            return
        tokens = [held.token for held in self.random.sample(self.leases, min(len(self.leases), 2))]
        self.extended = [self.now]

        def asked(new: list[Any]) -> bool:
            leases = [lane.lease for lane in self.model.lanes.values() if lane.lease and lane.lease.token in tokens]
            over = all(lease.deadline <= self.now for lease in leases)
            return over and all(kind in (naive.START, naive.EXTEND) for kind, _ in new)

        self.asked = asked
        shard.transact(lambda tx: expiring.end_claims(tx, {tx.shard: tokens}, self.random.random() < 0.5))

    # ---- recorded batches

    def step_batch(self, shard: LaneFile) -> None:
        """Lease messages for a recorded batch. If it can't be packed, nothing is leased."""
        fails = self.random.random() < 0.3

        def pack(claimed: Claimed) -> int:
            if fails:
                raise QueueFull("it can't be packed")
            return claimed.messages

        asked = request(self.random.choice((2, 20)), endless=True, lease=1, packed=True)
        self.asked = of_claim
        try:
            claimed, packed = shard.transact(lambda tx: batch_leases.claim(tx, asked, pack))
        except QueueFull:
            assert fails
            self.asked = nothing
            self.compare(shard, "refused")
            return
        new = self.written(shard)
        ids = [i for kind, some in new if kind == naive.CLAIM for i in some]
        assert (packed or 0) == len(ids)
        packed_ids = [int(i) for columns in claimed.columns for i in columns.ids.split(",")]
        assert sorted([*(row[ID] for rows in claimed.rows for row in rows), *packed_ids]) == sorted(ids)
        if ids:
            self.batches.append(claimed.token)

    def batch_lanes(self, token: int) -> list[naive.NaiveLane]:
        return [lane for lane in self.model.lanes.values() if lane.lease and lane.lease.token == token]

    def step_batch_ack(self, shard: LaneFile) -> None:
        if not self.batches:
            return
        token = self.random.choice(self.batches)
        ids = {m.id for lane in self.batch_lanes(token) if lane.lease for m in lane.lease.held}
        self.asked = lambda new: {i for _, some in new for i in some} == ids and len(new) == bool(ids)
        assert shard.transact(lambda tx: batch_leases.ack(tx, token)) == len(ids)

    def step_batch_release(self, shard: LaneFile) -> None:
        if not self.batches:
            return
        token, most = self.random.choice(self.batches), self.random.choice((None, 1))
        keys = {lane.key for lane in self.batch_lanes(token)}
        n = len(keys) if most is None else min(most, len(keys))

        def asked(new: list[Any]) -> bool:
            ended = [key for kind, data in new if kind == naive.RELEASE for key in decode_keys(data)]
            return len(new) == bool(keys) and len(ended) == n and keys.issuperset(ended)

        self.asked = asked
        assert shard.transact(lambda tx: batch_leases.give_back(tx, token, most))[1] == n

    # ---- groups

    def step_group(self, shard: LaneFile) -> None:
        """Several operations in one transaction, some of which fail after they have written, or are refused."""
        r = self.random
        rows: list[Any] = []
        leases: list[Held] = []
        operations = [
            self.in_group(work, shard, rows, leases, r.random() < 0.3)
            for work in r.choices((self.do_send, self.do_ack, self.do_claim, self.do_nack), k=r.choice((2, 3, 5)))
        ]
        self.asked = lambda new: bool(sorted(map(repr, new)) == sorted(map(repr, rows)))
        results = shard.group(operations)
        for result in results:
            assert result is None or isinstance(result, (KeyError, LeaseLost, QueueFull)), result
        self.leases += leases

    def in_group(
        self,
        work: Callable[[Tx, list[Held]], None],
        shard: LaneFile,
        rows: list[Any],
        leases: list[Held],
        fails: bool,
    ) -> Callable[[Tx], None]:
        def operation(tx: Tx) -> None:
            seen, top = shard.memory.seen, shard.memory.top
            found: list[Held] = []
            work(tx, found)
            if fails:
                raise KeyError
            assert tx.lanes is not None
            rows.extend(shard.messages[i][1] for i in range(top + 1, tx.lanes.memory.top + 1))
            rows.extend(self.shown([shard.entries[i] for i in range(seen + 1, tx.lanes.memory.seen + 1)]))
            leases.extend(found)

        return operation

    def do_send(self, tx: Tx, _: list[Held]) -> None:
        sending.send(tx, self.some_items(), elsewhere=sending.NOTHING_ELSEWHERE)
        if self.random.random() < 0.2:
            settling.ack_lane(tx, Settlement(self.keys[0], 5, [1]))  # refused, after the send has been applied

    def do_ack(self, tx: Tx, _: list[Held]) -> None:
        for batch, _ids in self.some_batches(one=False):
            settling.ack_lane(tx, batch)

    def do_claim(self, tx: Tx, leases: list[Held]) -> None:
        claimed = claiming.claim(tx, self.some_request())
        if claimed.leases:
            leases.append(Held(claimed))

    def do_nack(self, tx: Tx, _: list[Held]) -> None:
        settling.nack(tx, [batch for batch, _ in self.some_batches()], None, AttemptFailure("failed"))

    # ---- looks, time, and what happens to processes

    def step_look(self, shard: LaneFile) -> None:
        key = self.random.choice(self.keys)
        tail, messages, *_ = naive.shown(shard.lane(key))
        lane = self.model.lanes.get(key, naive.NaiveLane(key))
        assert (tail, messages) == (lane.tail, [(m.seq, m.id) for m in lane.messages])

    def step_reopen(self, shard: LaneFile) -> None:
        which = self.openers.index(shard)
        shard.close()
        self.openers[which] = self.open(which)

    def step_wait(self, _shard: LaneFile) -> None:
        self.now += self.random.choice((1, SECOND // 3, SECOND, 5 * SECOND))

    def step_reboot(self, _shard: LaneFile) -> None:
        """Begin an epoch. The next write of either opener ends the leases of the earlier ones."""
        self.epoch += 1
        for opener in self.openers:
            self.set_up(opener)

    def step_configure(self, _shard: LaneFile) -> None:
        self.version += 1
        for opener in self.openers:
            self.set_up(opener)

    def step_copy(self, _shard: LaneFile) -> None:
        """Keep the files as they are, as those of a machine that loses power later."""
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{self.path}{suffix}", f"{self.saved}{suffix}")
        self.copied = copy.deepcopy((self.model, self.bodies, self.dedups))

    def step_lose_suffix(self, _shard: LaneFile) -> None:
        """Boot with the files as of an earlier commit. Leases of the lost part are still held by processes elsewhere."""
        if self.copied is None:
            return
        for opener in (*self.openers, self.sleeper):
            opener.close()
        self.reader.close()
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{self.saved}{suffix}", f"{self.path}{suffix}")
        Path(f"{self.path}-shm").unlink(missing_ok=True)
        self.model, self.bodies, self.dedups = copy.deepcopy(self.copied)
        self.epoch += 1
        self.version += 1
        self.reader = connection.connect(str(self.path), durability="process")
        self.openers = [self.open(i) for i in range(2)]
        self.sleeper = self.open(self.random.randrange(2))

    # ---- operators' steps

    def step_hold(self, shard: LaneFile) -> None:
        key = self.random.choice(self.keys)
        self.asked = lambda new: bool(new == [(naive.HOLD, encode_keys([key]))])
        shard.transact(lambda tx: operating.hold(tx, key, "for a while"))

    def step_release_hold(self, shard: LaneFile) -> None:
        held = [key for key, lane in self.model.lanes.items() if lane.hold]
        key = self.random.choice(held or self.keys)
        self.asked = lambda new: bool(new == ([(naive.RELEASE_HOLD, encode_keys([key]))] if key in held else []))
        assert shard.transact(lambda tx: operating.release(tx, key)) == (key in held)

    def step_release_keyless(self, shard: LaneFile) -> None:
        held = {key for key, lane in self.model.lanes.items() if lane.hold and key.startswith(b"n")}
        self.asked = lambda new: {key for _, data in new for key in decode_keys(data)} == held
        assert shard.transact(operating.release_keyless) == len(held)

    def step_settle_one(self, shard: LaneFile) -> None:
        """Ack or reject a message in the place of its consumer."""
        lane = self.random.choice(list(self.model.lanes.values()) or [naive.NaiveLane(self.keys[0])])
        unresolved = [*lane.messages, *lane.waiting]
        if not unresolved:
            return
        message, reason = self.random.choice(unresolved), self.random.choice((None, "bad"))
        lease = lane.lease if lane.lease and message in lane.lease.held and not self.is_over(lane.lease) else None
        ends = lease is not None and lease.deadline < 1 << 62
        rows = [(naive.RELEASE, encode_keys([lane.key]))] if ends else []
        rows.append((naive.REJECT if reason else naive.ACK, [message.id]))
        self.asked = lambda new: bool(new == rows)
        assert shard.transact(lambda tx: operating.settle_one(tx, lane.key, message.seq, reason, force=True))

    def dead_of(self, key: bytes) -> list[int]:
        return sorted(i for i, message in self.model.dead.items() if message.key == key)

    def some_dead_key(self) -> bytes:
        return self.random.choice([m.key for m in self.model.dead.values()] or self.keys)

    def step_redrive(self, shard: LaneFile) -> None:
        key = self.some_dead_key()
        ids = self.dead_of(key)
        seqs = None
        if ids and self.random.random() < 0.5:
            ids = sorted(self.random.sample(ids, self.random.randrange(1, len(ids) + 1)))
            seqs = [self.model.sent[i].seq for i in ids]
        self.asked = lambda new: bool(new == ([(naive.REDRIVE, ids)] if ids else []))
        assert shard.transact(lambda tx: operating.redrive(tx, key, seqs)) == len(ids)

    def step_redrive_all(self, shard: LaneFile) -> None:
        ids = set(self.model.dead)
        self.asked = lambda new: {i for _, some in new for i in some} == ids
        assert shard.transact(lambda tx: operating.redrive_some(tx, (b"", 0))) == (len(ids), None)

    def step_purge_dead(self, shard: LaneFile) -> None:
        key = self.some_dead_key()
        ids = self.dead_of(key)
        self.asked = lambda new: bool(new == ([(naive.PURGE, ids)] if ids else []))
        assert shard.transact(lambda tx: operating.purge_dead(tx, key)) == (len(ids), False)

    def unleased(self, lane: naive.NaiveLane) -> set[int]:
        held = lane.lease.held if lane.lease and not self.is_over(lane.lease) else []
        return {m.id for m in [*lane.messages, *lane.waiting] if m not in held}

    def step_purge(self, shard: LaneFile) -> None:
        key = self.random.choice(self.keys)
        ids = self.unleased(self.model.lanes.get(key, naive.NaiveLane(key)))
        self.asked = lambda new: {i for _, some in new for i in some} == ids
        try:
            assert shard.transact(lambda tx: operating.purge_lane(tx, key)) == (len(ids), False)
        finally:
            known = set(self.reader.execute("SELECT key, dedup_id FROM dedup"))
            self.dedups = {name: at for name, at in self.dedups.items() if name in known}

    def step_purge_all(self, shard: LaneFile) -> None:
        ids = {i for lane in self.model.lanes.values() for i in self.unleased(lane)}
        self.asked = lambda new: {i for _, some in new for i in some} == ids
        assert shard.transact(lambda tx: operating.purge_some(tx, b"")) == (len(ids), None)

    def step_end_delays(self, shard: LaneFile) -> None:
        """End the delays of failures. They have a mark in their low bits."""
        heads = {
            lane.messages[0].id
            for lane in self.model.lanes.values()
            if lane.messages and not lane.lease and not lane.hold and (lane.messages[0].until or 0) > self.now
            and (lane.messages[0].until or 0) & 63 == 63
        }  # fmt: skip
        self.asked = lambda new: {i for _, some in new for i in some} == heads
        assert shard.transact(lambda tx: operating.end_some_delays(tx, (0, b""))) == (len(heads), None)

    def step_forget(self, shard: LaneFile) -> None:
        r, oldest = self.random, self.now - self.random.choice((0, SECOND))
        keys = r.sample([*self.keys, *self.model.lanes], 2)
        n = shard.transact(lambda tx: forgetting.forget(tx, keys, oldest, fold=r.random() < 0.5))
        forgotten = [key for entry in shard.entries.values() if entry[1] == naive.FORGET for key in decode_keys(entry[7])]
        assert len(forgotten) == n
        for key in forgotten:
            for (scope, _), (_, of, until) in self.dedups.items():
                assert scope != key or of != key or until <= self.now

    def step_note(self, shard: LaneFile) -> None:
        shard.transact(lambda tx: tx.run("UPDATE key_state SET value = value"))

    def step_state(self, shard: LaneFile) -> None:
        """Write something that is in no log. A note lets others know."""
        shard.transact(lambda tx: tx.run("INSERT OR REPLACE INTO key_state VALUES (x'7300', randomblob(4))"))

    def step_free(self, shard: LaneFile) -> None:
        """Delete resolved messages, as on a full disk."""
        shard.transact(lambda tx: shard.lanes.folder.free(tx.now))

    def step_void(self, shard: LaneFile) -> None:
        shard.transact(lambda tx: tx.lanes.append(naive.VOID, (), data=b"") and None)

    # ---- the end

    def drain(self) -> None:
        """Every message is delivered in order, once."""
        self.now += 1_000 * SECOND
        shard = self.random.choice(self.openers)
        last: dict[bytes, int] = {}
        while True:
            shard.forget_rows()
            claimed = shard.claim(request(self.random.choice((1, 7, 50)), lease=SECOND))
            self.read_log(shard)
            if not claimed.leases and not claimed.more:
                break
            shard.forget_rows()
            for held in claimed.leases:
                for row in held.rows:
                    assert row[SEQ] > last.get(held.key, 0)
                    last[held.key] = row[SEQ]
            if claimed.leases:
                assert not any(shard.ack([held.all() for held in claimed.leases]))
                self.read_log(shard)
        left = [
            lane for lane in self.model.lanes.values()
            if lane.messages and not lane.hold and not (lane.lease and lane.lease.deadline > self.now)
        ]  # fmt: skip
        assert not left, left
        for opener in (*self.openers, self.sleeper):
            self.compare(opener, "live")
            problems = opener.check()
            assert not problems, problems
        self.check_rows()

    def check_rows(self) -> None:
        """No row of an unresolved or dead message was deleted."""
        run: Any = self.reader.execute
        rows = {i for (i,) in run("SELECT id FROM message")}
        needed = set(self.model.sent).difference(self.model.resolved)
        assert needed <= rows, needed - rows


def nothing(new: list[Any]) -> bool:
    return not new


def of_claim(new: list[Any]) -> bool:
    """Return whether these are all rows of a claim. What it takes is the store's choice."""
    before = [kind for kind, _ in new if kind != naive.CLAIM]
    return all(kind in BESIDE_CLAIMS for kind in before) and (len(before) == len(new) or new[-1][0] == naive.CLAIM)


class Interruption:
    """Interrupts a step: a statement fails, or a call of a function does."""

    def __init__(self, shard: LaneFile, source: random.Random | None) -> None:
        self.db = shard.db
        self.source = source
        self.left = 0
        self.by_statement = False

    def __enter__(self) -> None:
        if self.source is None:
            return
        self.by_statement = self.source.random() < 0.5
        if self.by_statement:
            self.left = self.source.randrange(1, 12)
            self.db.exec_trace = self.before_statement
        else:
            self.left = self.source.randrange(1, 90)
            sys.setprofile(self.on_call)

    def __exit__(self, *_: object) -> None:
        if self.source is not None:
            sys.setprofile(None)
            with suppress(apsw.ConnectionClosedError):
                self.db.exec_trace = None

    def before_statement(self, _cursor: object, _sql: str, _bindings: object) -> bool:
        self.left -= 1
        if not self.left:
            raise Interrupted
        return True

    def on_call(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        # The end of a generator can't be interrupted.
        if "/_store/" in code.co_filename and event in ("call", "return") and code.co_name != "<genexpr>":
            self.left -= 1
            if not self.left:
                sys.setprofile(None)
                raise Interrupted


NEVER_INTERRUPTED = ("reopen", "copy", "lose_suffix", "reboot", "configure", "wait")
STEPS = {
    "send": 35, "claim": 30, "ack": 18, "ack_lane": 5, "release": 3, "nack": 6, "defer": 3, "start": 2, "advance": 3, "extend": 2,
    "more": 3, "group": 5, "look": 3, "reopen": 3, "wait": 6, "reboot": 1, "configure": 1, "copy": 1, "lose_suffix": 1, "hold": 1,
    "release_hold": 2, "release_keyless": 1, "settle_one": 3, "reject": 3, "redrive": 3, "redrive_all": 1, "purge": 1,
    "purge_all": 1, "purge_dead": 1, "end_delays": 2, "worker_dies": 1, "batch": 2,
    "batch_ack": 1, "batch_release": 1, "claim_first": 2, "finish": 1, "forget": 2,
    "dedup": 3, "note": 1, "state": 1, "void": 1, "free": 1,
}  # fmt: skip
"""The kinds of steps, and how often each is taken."""


def walk(seed: int, directory: Path, steps: int = 80) -> Counter[str]:
    """Take one walk, and return how often each kind of step was taken."""
    one = Walk(seed, directory)
    one.run(steps)
    for path in directory.glob(f"walk-{seed}*"):
        path.unlink()
    return one.done
