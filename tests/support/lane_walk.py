"""A random walk of two openers of one shard of format 3, checked after each step by a naive model and by a memory built afresh.

A step may be interrupted: a statement fails, or an exception is raised at a random call of a function. It must then have had all
of its effect or none. The limits are tiny, so that folds, windows, evictions and rebuilds happen all the time.

To extend it by a kind of entry: add a method `step_…` that returns the rows which the step must append, and the effect to
`naive_lanes`.
"""

from __future__ import annotations

import random
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import apsw

from strictq import LeaseLost
from strictq._store.commit import connection
from strictq._store.lane.entries import LaneHolder, encode_keys
from strictq._store.lane.memory import StoreLimits
from strictq._store.onelane.claiming import ClaimRequest
from strictq._store.onelane.shard_file import NewMessage, ShardFile
from tests.support import naive_lanes as naive

SECOND = 1_000_000
INTERRUPTED = 0.08
DEDUP_WINDOW = 3 * SECOND
NEWEST = "SELECT (SELECT max(id) FROM journal), (SELECT max(id) FROM message)"


class Interrupted(BaseException):
    """What an interrupted step raises."""


def new_file(path: Path) -> None:
    path.touch()
    db = connection.connect(str(path), durability="process", fresh=True)
    ShardFile.create(db)
    db.close()


def open_shard(path: Path, limits: StoreLimits, now: Callable[[], int]) -> ShardFile:
    db = connection.connect(str(path), durability="process")
    return ShardFile(db, 0, now, limits=limits, dedup_window=DEDUP_WINDOW)


class Held:
    """A lease as its holder knows it."""

    def __init__(self, token: int, groups: Sequence[tuple[bytes, list[int]]]) -> None:
        self.token = token
        self.groups = {key: list(ids) for key, ids in groups}


class Walk:
    """One walk."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = r = random.Random(seed)
        self.path = directory / f"walk-{seed}.db"
        new_file(self.path)
        self.now = 1_000 * SECOND
        self.limits = [
            StoreLimits(
                window=r.choice((1, 3, 12)), slice=r.choice((1, 3, 10)), head=r.choice((1, 2, 8)), chunk=r.choice((2, 4, 9)),
                loaded_max=r.choice((4, 20, 500)), tails_max=r.choice((3, 500)),
            )
            for _ in range(2)
        ]  # fmt: skip
        self.reader = connection.connect(str(self.path), durability="process")
        self.openers = [self.open(i) for i in range(2)]
        self.keys = [b"sk%02d" % i for i in range(r.choice((2, 5, 16)))]
        self.model = naive.NaiveShard()
        self.bodies: dict[int, bytes] = {}
        self.leases: list[Held] = []
        self.firsts: list[tuple[int, list[bytes]]] = []
        self.dedups: dict[tuple[bytes, str], tuple[int, int]] = {}
        self.done: Counter[str] = Counter()
        self.log: list[str] = []

    def open(self, which: int) -> ShardFile:
        return open_shard(self.path, self.limits[which], lambda: self.now)

    # ---- running

    def run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.step()
            self.drain()
        except BaseException:
            print("\n".join(self.log[-12:]), self.limits, file=sys.stderr)
            raise
        finally:
            for shard in self.openers:
                shard.close()
            self.reader.close()

    def step(self) -> None:
        r = self.random
        which = r.randrange(2)
        shard = self.openers[which]
        names, weights = zip(*STEPS.items(), strict=True)
        name = r.choices(names, weights)[0]
        interrupted = r.random() < INTERRUPTED and name != "reopen"
        before = self.model.seen, self.model.top
        self.log.append(f"{before} {which} {name} {'interrupted' if interrupted else ''}")
        act = getattr(self, f"step_{name}")
        expected: list[Any] | None = None
        try:
            with self.interrupting(shard, interrupted):
                expected = act(shard)
        except Interrupted:
            name = "interrupted"
            with suppress(apsw.ConnectionClosedError):
                if shard._db.in_transaction:
                    shard._db.execute("ROLLBACK")  # a process that dies leaves no transaction open
            if r.random() < 0.5:
                shard.close()
                self.openers[which] = self.open(which)
        self.done[name] += 1
        new = self.read_log()
        self.log[-1] += f" -> {new}"
        if expected is not None:
            assert new == expected, (name, new, expected)
        elif new:
            assert self.asked is not None, ("an interrupted step changed something", new)
            assert self.whole(new, self.asked), ("an interrupted step was done in part", new, self.asked)
        self.check_afresh()
        if r.random() < 0.5:
            # Only in half of the steps: comparing catches up, and errors are in long lags.
            for opener in self.openers:
                self.check_live(opener)

    asked: list[Any] | None = None
    """The rows that an interrupted step may have appended; None: no row. A name: those that `whole` describes."""

    @staticmethod
    def whole(new: list[Any], asked: list[Any]) -> bool:
        """Return whether these are all rows of a step. What it takes may be the store's choice."""
        if asked == ["claim"]:
            return bool(new[-1][0] == naive.CLAIM)
        if asked == ["claim_first"]:
            return bool(new[-1][0] == naive.ACK_FIRST and new[-2] == (naive.CLAIM, new[-1][1]))
        if asked == ["more"]:
            return [row[0] for row in new] == [naive.MORE]
        if asked == ["forget"]:
            return [row[0] for row in new] == [naive.FORGET]
        if asked[0] == "purge":
            return {i for row in new if row[0] == naive.PURGE for i in row[1]} == asked[1]
        return new == asked

    def interrupting(self, shard: ShardFile, wanted: bool) -> Interruption:
        return Interruption(shard, self.random if wanted else None)

    # ---- what the file says

    def read_log(self) -> list[Any]:
        """Feed the model with the rows that were written. Return (kind, what it names) of entries, and the keys of messages."""
        model = self.model
        run: Any = self.reader.execute
        messages = run(
            "SELECT id, key, seq, sent_at, due, expires, body FROM message WHERE id > ? ORDER BY id", (model.top,)
        ).fetchall()
        entries = run("SELECT * FROM journal WHERE id > ? ORDER BY id", (model.seen,)).fetchall()
        found: list[Any] = []
        if entries and entries[0][0] > model.seen + 1:
            # Folds come first in a transaction. The last slice cuts the entries of the slices before it.
            assert entries[0][1] == naive.FOLD, entries[0]
            assert entries[0][0] - 1 == run("SELECT cut FROM mark").get
            model.seen = entries[0][0] - 1
        for entry in entries:
            while messages and messages[0][0] <= entry[3]:
                self.arrive(messages.pop(0), found)
            model.apply(entry)
            if entry[1] not in (naive.FOLD, naive.NOTE, naive.VOID):
                found.append((entry[1], self.named(entry)))
        for message in messages:
            self.arrive(message, found)
        return found

    def arrive(self, message: tuple[Any, ...], found: list[Any]) -> None:
        self.model.arrive(message)
        self.bodies[message[0]] = message[6]
        found.append(message[1])

    @staticmethod
    def named(entry: tuple[Any, ...]) -> Any:
        if entry[1] in (naive.HOLD, naive.RELEASE_HOLD, naive.FORGET) or (entry[1] in (naive.RELEASE, naive.EXTEND) and entry[6]):
            return entry[7]
        return [abs(i) for (i,) in struct.iter_unpack("<q", entry[7])]

    def check_afresh(self) -> None:
        """A memory that is built anew equals the model."""
        fresh = ShardFile(self.reader, 0, lambda: self.now, limits=self.random.choice(self.limits))
        self.compare(fresh, "fresh")
        if self.random.random() < 0.05:
            problems = fresh.check()
            assert not problems, problems

    def check_live(self, shard: ShardFile) -> None:
        self.compare(shard, "live")

    def compare(self, shard: ShardFile, what: str) -> None:
        states = shard.look(lambda: {key: naive.shown(shard.lane(key)) for key in self.keys})
        for key, state in states.items():
            wanted = self.model.lanes[key].state() if key in self.model.lanes else naive.NaiveLane(key).state()
            assert state == wanted, (what, key, state, wanted)
        totals = shard.totals()
        for name, value in self.model.totals.items():
            assert getattr(totals, name) == value, (what, name, getattr(totals, name), value)

    # ---- steps: each returns the rows that it must append

    def some_messages(self) -> list[NewMessage]:
        r = self.random
        return [
            NewMessage(
                r.choice(self.keys), b"%d" % r.randrange(1 << 30),
                self.now + r.choice((1, 3)) * SECOND if r.random() < 0.05 else None,
                self.now + r.choice((1, 5)) * SECOND if r.random() < 0.05 else None,
            )
            for _ in range(r.choice((1, 1, 1, 2, 7, 20)))
        ]  # fmt: skip

    def step_send(self, shard: ShardFile) -> list[Any]:
        messages = self.some_messages()
        self.asked = [message.key for message in messages]
        top = self.model.top
        seqs = [shard.send(messages[0])] if len(messages) == 1 else shard.send_many(messages)
        rows: Any = self.reader.execute("SELECT seq, body FROM message WHERE id > ? ORDER BY id", (top,)).fetchall()
        assert rows == [(seq, message.body) for seq, message in zip(seqs, messages, strict=True)]
        return self.asked

    def step_claim(self, shard: ShardFile) -> list[Any] | None:
        r = self.random
        room, per_key = r.choice((1, 1, 2, 5, 20)), r.choice((None, None, 1, 2))
        keys = tuple(r.sample(self.keys, min(len(self.keys), 3))) if r.random() < 0.1 else None
        lease = r.choice((1, 2, 100)) * SECOND
        holder = LaneHolder("c", r.random() < 0.5, r.random() < 0.3)
        dead_letters = r.random() < 0.5
        request = ClaimRequest(room, per_key, keys, r.random() < 0.7, dead_letters)
        self.asked = ["claim"]
        # What could be claimed. A suspect is delivered alone, and a redriven message not together with later ones.
        could = {key: lane.ready(self.now) for key, lane in self.model.lanes.items() if keys is None or key in keys}
        claimed = shard.claim(request, lease, holder)
        new = self.peek_log()
        for row in claimed.rows:
            assert bytes(row[7]) == self.bodies[row[0]]
        ids = [i for _, some in claimed.groups for i in some]
        assert [row[0] for row in claimed.rows] == ids
        claims = [entry for entry in new if entry[0] == naive.CLAIM]
        assert [i for _, some in claims for i in some] == ids, (claims, claimed.groups)
        most = sum(min(len(some), per_key or room) for some in could.values())
        few = any(some for some in could.values())
        if not ids:
            assert not few, ("nothing was claimed", could)
        elif not any(lane.solo or any(m.redriven for m in lane.messages) or lane.lease for lane in self.model.lanes.values()):
            # It may be more: a claim of named keys also resolves an expired message that is delayed.
            assert len(ids) >= min(room, most), ("too few", len(ids), room, most)
        assert len(ids) <= room
        if per_key:
            assert all(len(some) <= per_key for _, some in claimed.groups)
        if ids:
            self.leases.append(Held(claimed.token, claimed.groups))
        return new

    def peek_log(self) -> list[Any]:
        """Return what `read_log` will return, for steps whose rows the store chooses."""
        run: Any = self.reader.execute
        entries = run("SELECT * FROM journal WHERE id > ? ORDER BY id", (self.model.seen,)).fetchall()
        return [(entry[1], self.named(entry)) for entry in entries if entry[1] not in (naive.FOLD, naive.NOTE, naive.VOID)]

    def settle(
        self, kind: int, call: Callable[[int, list[tuple[bytes, list[int]]]], object], *, one: bool = True
    ) -> list[Any] | None:
        """Settle some messages of a lease, which may be lost."""
        r, model = self.random, self.model
        self.asked = None
        if not self.leases:
            return []
        held = r.choice(self.leases)
        keys = [key for key, ids in held.groups.items() if ids]
        if not keys:
            self.leases.remove(held)
            return []
        if not one and r.random() < 0.5:
            settled = [(key, held.groups[key][:]) for key in keys]  # all of it
        else:
            settled = [
                (key, sorted(r.sample(held.groups[key], 1 if one else r.randrange(1, len(held.groups[key]) + 1))))
                for key in r.sample(keys, r.randrange(1, len(keys) + 1))
            ]
        valid = all(
            (lane := model.lanes.get(key)) is not None and lane.lease is not None and lane.lease.token == held.token
            and {m.id for m in lane.lease.held}.issuperset(ids)
            for key, ids in settled
        )  # fmt: skip
        ids = [i for _, some in settled for i in some]
        asked = [(kind, ids)]
        self.asked = asked if valid else None
        try:
            call(held.token, settled)
        except LeaseLost:
            assert not valid, ("refused", kind, settled)
            for key, some in settled:
                held.groups[key] = [i for i in held.groups[key] if i not in some]
            return []
        assert valid, ("accepted", kind, settled)
        for key, some in settled:
            if kind in naive.RESOLVING:
                held.groups[key] = [i for i in held.groups[key] if i not in some]
            elif kind in (naive.NACK, naive.DEFER, naive.RELEASE):
                held.groups[key] = held.groups[key][: held.groups[key].index(some[0])]
        return asked

    def step_ack(self, shard: ShardFile) -> list[Any] | None:
        return self.settle(naive.ACK, shard.ack, one=False)

    def step_release(self, shard: ShardFile) -> list[Any] | None:
        return self.settle(naive.RELEASE, shard.release)

    def step_nack(self, shard: ShardFile) -> list[Any] | None:
        due = self.random.choice((0, 0, self.now + SECOND))
        return self.settle(naive.NACK, lambda token, settled: shard.nack(token, settled, due))

    def step_defer(self, shard: ShardFile) -> list[Any] | None:
        due = self.random.choice((0, self.now + 2 * SECOND))
        return self.settle(naive.DEFER, lambda token, settled: shard.defer(token, settled, due))

    def step_start(self, shard: ShardFile) -> list[Any] | None:
        return self.settle(naive.START, shard.start)

    def step_uncharge(self, shard: ShardFile) -> list[Any] | None:
        return self.settle(naive.START, shard.uncharge)

    def step_extend(self, shard: ShardFile) -> list[Any] | None:
        seconds = self.random.choice((1, 50)) * SECOND
        return self.settle(naive.EXTEND, lambda token, settled: shard.extend(token, settled, seconds))

    def step_more(self, shard: ShardFile) -> list[Any] | None:
        self.asked = ["more"]
        if not self.leases:
            return []
        held = self.random.choice(self.leases)
        key = self.random.choice(list(held.groups))
        lane = self.model.lanes.get(key)
        valid = lane is not None and lane.lease is not None and lane.lease.token == held.token
        try:
            rows = shard.more(held.token, key, self.random.choice((1, 4)))
        except LeaseLost:
            assert not valid
            return []
        assert valid
        held.groups[key] += [row[0] for row in rows]
        return [(naive.MORE, [row[0] for row in rows])] if rows else []

    def step_look(self, shard: ShardFile) -> list[Any]:
        self.asked = None
        key = self.random.choice(self.keys)
        tail, head, token = shard.head(key)
        lane = self.model.lanes.get(key, naive.NaiveLane(key))
        assert (tail, head) == (lane.tail, lane.messages[0].id if lane.messages else None)
        assert token == (lane.lease and lane.lease.token)
        return []

    def step_reopen(self, shard: ShardFile) -> list[Any]:
        self.asked = None
        which = self.openers.index(shard)
        shard.close()
        self.openers[which] = self.open(which)
        return []

    def step_wait(self, _shard: ShardFile) -> list[Any]:
        self.asked = None
        self.now += self.random.choice((1, SECOND // 3, SECOND, 5 * SECOND))
        return []

    # ---- operators' steps

    def on_key(self, kind: int, key: bytes) -> list[Any]:
        self.asked = [(kind, encode_keys([key]))]
        return self.asked

    def step_hold(self, shard: ShardFile) -> list[Any]:
        key = self.random.choice(self.keys)
        asked = self.on_key(naive.HOLD, key)
        shard.hold(key, "for a while")
        return asked

    def step_release_hold(self, shard: ShardFile) -> list[Any]:
        key = self.random.choice(self.keys)
        asked = self.on_key(naive.RELEASE_HOLD, key)
        shard.release_hold(key)
        return asked

    def step_reject(self, shard: ShardFile) -> list[Any] | None:
        return self.settle(naive.REJECT, lambda token, settled: shard.reject(token, settled, "bad"), one=False)

    def step_drop(self, shard: ShardFile) -> list[Any] | None:
        return self.settle(naive.DROP, shard.drop, one=False)

    def dead_of(self, key: bytes) -> list[int]:
        return sorted(i for i, message in self.model.dead.items() if message.key == key)

    def step_redrive(self, shard: ShardFile) -> list[Any]:
        key, most = self.random.choice(self.keys), self.random.choice((1, 3, 100))
        ids = self.dead_of(key)[:most]
        self.asked = [(naive.REDRIVE, ids)] if ids else []
        assert shard.redrive(key, most) == len(ids)
        return self.asked

    def step_purge_dead(self, shard: ShardFile) -> list[Any]:
        key = self.random.choice(self.keys)
        ids = self.dead_of(key)
        self.asked = [(naive.PURGE, ids)] if ids else []
        assert shard.purge_dead(key) == len(ids)
        return self.asked

    def step_purge(self, shard: ShardFile) -> list[Any]:
        key = self.random.choice(self.keys)
        lane = self.model.lanes.get(key, naive.NaiveLane(key))
        ids = {m.id for m in [*lane.messages, *lane.waiting]}
        self.asked = ["purge", ids]
        assert shard.purge(key) == len(ids)
        new = self.peek_log()
        assert self.whole(new, self.asked), (new, ids)
        return new

    def step_claim_first(self, shard: ShardFile) -> list[Any]:
        self.asked = ["claim_first"]
        claimed = shard.claim_first(ClaimRequest(self.random.choice((1, 4)), self.random.choice((None, 1))), SECOND)
        new = self.peek_log()
        if claimed.groups:
            assert self.whole(new, self.asked), new
            assert [row[0] for row in claimed.rows] == new[-1][1]
            self.firsts.append((claimed.token, [key for key, _ in claimed.groups]))
        return new

    def step_finish(self, shard: ShardFile) -> list[Any]:
        self.asked = []
        if not self.firsts:
            return []
        token, keys = self.firsts.pop(self.random.randrange(len(self.firsts)))
        lanes = [self.model.lanes.get(key) for key in keys]
        valid = all(lane is not None and lane.lease is not None and lane.lease.token == token for lane in lanes)
        self.asked = [(naive.RELEASE, encode_keys(keys))] if valid else []
        try:
            shard.finish(token, keys)
        except LeaseLost:
            assert not valid
            return []
        assert valid
        return self.asked

    def step_forget(self, shard: ShardFile) -> list[Any]:
        self.asked = ["forget"]
        forgotten = shard.forget(self.random.sample(self.keys, 2))
        for key in forgotten:
            assert not any(of == key and until > self.now for (of, _), (_, until) in self.dedups.items())
        return [(naive.FORGET, encode_keys(forgotten))] if forgotten else []

    def step_dedup(self, shard: ShardFile) -> list[Any]:
        r, known, tails = self.random, dict(self.dedups), {key: lane.tail for key, lane in self.model.lanes.items()}
        messages, seqs, self.asked = [], [], []
        for _ in range(r.choice((1, 1, 3))):
            key, dedup_id = r.choice(self.keys), r.choice("ab")
            messages.append(NewMessage(key, b"", dedup_id=dedup_id))
            seq, until = known.get((key, dedup_id), (0, 0))
            if until <= self.now:
                seq = (tails.get(key, 0) or self.model.floor) + 1
                tails[key] = seq
                known[key, dedup_id] = seq, self.now + DEDUP_WINDOW
                self.asked.append(key)
            seqs.append(seq)
        try:
            assert shard.send_many(messages) == seqs
        finally:
            if self.asked and self.reader.execute("SELECT max(id) FROM message").get > self.model.top:
                self.dedups = known
        return self.asked

    def step_note(self, shard: ShardFile) -> list[Any]:
        self.asked = None
        shard.note()
        return []

    def step_void(self, shard: ShardFile) -> list[Any]:
        self.asked = None
        shard.void()
        return []

    # ---- the end

    def drain(self) -> None:
        """Every message is delivered in order, once."""
        self.now += 1_000 * SECOND
        shard = self.random.choice(self.openers)
        last: dict[bytes, int] = {}
        while True:
            claimed = shard.claim(ClaimRequest(self.random.choice((1, 7, 50))), SECOND)
            self.read_log()
            if not claimed.groups:
                break
            for row in claimed.rows:
                assert row[2] > last.get(row[1], 0)
                last[row[1]] = row[2]
            shard.ack(claimed.token, claimed.groups)
            self.read_log()
        left = [lane for lane in self.model.lanes.values() if lane.messages and not lane.hold]
        assert not left, left
        for opener in self.openers:
            self.check_live(opener)
            problems = opener.check()
            assert not problems, problems
        self.check_rows()

    def check_rows(self) -> None:
        """No row of an unresolved or dead message was deleted."""
        run: Any = self.reader.execute
        rows = {i for (i,) in run("SELECT id FROM message")}
        needed = set(self.model.sent).difference(self.model.resolved)
        assert needed <= rows, needed - rows


class Interruption:
    """Interrupts a step: a statement fails, or a call of a function does."""

    def __init__(self, shard: ShardFile, source: random.Random | None) -> None:
        self.db = shard._db
        self.source = source
        self.left = 0
        self.by_statement = False

    def __enter__(self) -> None:
        if self.source is None:
            return
        self.by_statement = self.source.random() < 0.5
        if self.by_statement:
            self.left = self.source.randrange(1, 9)
            self.db.exec_trace = self.before_statement
        else:
            self.left = self.source.randrange(1, 60)
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


STEPS = {
    "send": 35, "claim": 30, "ack": 22, "release": 3, "nack": 5, "defer": 2, "start": 2, "uncharge": 1, "extend": 2, "more": 3,
    "look": 3, "reopen": 3, "wait": 6, "hold": 1, "release_hold": 2, "reject": 3, "drop": 1, "redrive": 3, "purge": 1,
    "purge_dead": 1, "claim_first": 2, "finish": 1, "forget": 2, "dedup": 3, "note": 1, "void": 1,
}  # fmt: skip
"""The kinds of steps, and how often each is taken."""


def walk(seed: int, directory: Path, steps: int = 80) -> Counter[str]:
    """Take one walk, and return how often each kind of step was taken."""
    one = Walk(seed, directory)
    one.run(steps)
    one.path.unlink()
    return one.done


def main() -> None:
    """Take the walks of a range of seeds: python -m tests.support.lane_walk FIRST LAST [STEPS]."""
    import tempfile
    import traceback

    first, last, *steps = map(int, sys.argv[1:])
    done: Counter[str] = Counter()
    failed = []
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(first, last):
            try:
                done += walk(seed, Path(directory), *steps)
            except BaseException as e:
                if isinstance(e, KeyboardInterrupt):
                    raise
                failed.append(seed)
                if len(failed) <= 3:
                    print("seed", seed)
                    traceback.print_exc(limit=-5)
    print(f"{last - first} walks, failed {failed}; {dict(done)}", apsw.sqlite_lib_version())


if __name__ == "__main__":
    main()
