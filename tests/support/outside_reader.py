"""A program that reads a queue of format 3 with nothing but the standard library, written from docs/explanation/storage.md.

It is what a reader in another language would be, so it imports nothing of strictq. `python outside_reader.py` answers requests,
one a line: a JSON array of the queue's directory and the queue time. It must run in a process that does not use strictq.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

CLAIM, MORE, ACK, ACK_FIRST, NACK, DEFER, REJECT, DROP, PURGE, EXPIRE, START, EXTEND, RELEASE = range(1, 14)
HOLD, RELEASE_HOLD, REDRIVE, RANGE, PARK, MOVE_OUT, MOVE_IN, RANGES, FORGET, NOTE, VOID, FOLD = range(14, 26)
RESOLVES = (ACK, ACK_FIRST, REJECT, DROP, PURGE, EXPIRE)
NAMES_KEYS = (HOLD, RELEASE_HOLD, FORGET)


class Lane:
    """A lane. Everything of it that has an end in time is left to the reader of `now`."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.lsn = self.tail = 0
        self.unresolved: dict[int, int] = {}
        """Arrival numbers by seq."""
        self.leased: set[int] = set()
        self.lease: tuple[int, int, str] | None = None
        """Token, deadline, consumer."""
        self.low = self.started = 0
        self.waiting: set[int] = set()
        """Seqs whose redrive waits for the end of the lease."""
        self.redriven: set[int] = set()
        self.tried: dict[int, tuple[int, int]] = {}
        """By arrival number: starts that ended, and when the message is due."""
        self.hold: str | None = None

    def has(self, arrival: int) -> bool:
        return arrival in self.unresolved.values()

    def seq_of(self, arrival: int) -> int:
        return next(seq for seq, i in self.unresolved.items() if i == arrival)

    def end_lease(self) -> None:
        self.lease = None
        self.leased = set()
        self.waiting = set()

    def charge(self, arrival: int, due: int | None = None, starts: int = 1) -> None:
        before, until = self.tried.get(arrival, (0, 0))
        self.tried[arrival] = (before + starts, until if due is None else due)


def ints(data: bytes | None) -> list[int]:
    data = data or b""
    return [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, len(data), 8)]


def groups(data: bytes | None) -> list[list[int]]:
    """Return an entry's arrival numbers, lane by lane."""
    found: list[list[int]] = []
    for i in ints(data):
        if i > 0:
            found.append([i])
        else:
            found[-1].append(-i)
    return found


def keys(data: bytes | None) -> Iterator[bytes]:
    data = data or b""
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        yield data[at + 4 : end]
        at = end


class Shard:
    """The lanes of one shard."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.lanes: dict[bytes, Lane] = {}
        self.messages: dict[int, tuple[Any, ...]] = {
            row[0]: row for row in db.execute("SELECT id, key, seq, sent_at, due, expires, body FROM message WHERE id > 0")
        }
        for row in db.execute("SELECT key FROM lane").fetchall():
            self.rest(row[0])
        cut, mid = db.execute("SELECT cut, mid FROM mark").fetchone()
        later = iter(sorted(i for i in self.messages if i > mid))
        following = next(later, None)
        for entry in db.execute("SELECT * FROM journal WHERE id > ? ORDER BY id", (cut,)).fetchall():
            while following is not None and following <= entry[3]:
                self.arrive(following)
                following = next(later, None)
            self.apply(*entry)
        while following is not None:
            self.arrive(following)
            following = next(later, None)

    # ---- rows at rest

    def rest(self, key: bytes) -> None:
        lane = self.lanes[key] = Lane(key)
        row = self.db.execute(
            "SELECT lsn, tail, first, token, deadline, held, started, holder, held_at, opts, ids_from, ids FROM lane"
            " WHERE key = ?",
            (key,),
        ).fetchone()
        lane.lsn, lane.tail, first, token, deadline, held, started, holder, held_at, opts, ids_from, ids = row
        rare = json.loads(opts) if opts else {}
        back, holes = dict(rare.get("back", ())), set(rare.get("holes", ()))
        parts = self.db.execute("SELECT first, ids FROM pending WHERE key = ? ORDER BY first", (key,)).fetchall()
        for begin, part in [*parts, (ids_from or 0, ids)]:
            for seq, i in enumerate(ints(part), begin):
                if not first <= seq <= lane.tail or (seq in holes and seq not in back):
                    continue
                if i := back.get(seq, i):
                    lane.unresolved[seq] = i
        window = set(lane.unresolved)
        for seq, i in rare.get("front", []) + rare.get("waiting", []):
            lane.unresolved[seq] = i
        lane.waiting = {seq for seq, _ in rare.get("waiting", ())}
        lane.redriven = set(rare.get("redriven", ()))
        lane.tried = {i: (starts, due) for i, starts, _, due in rare.get("tried", ())}
        if held_at is not None:
            lane.hold = rare["hold"][1]
        if token is not None:
            _, low, who = holder.split(",", 2)
            lane.lease, lane.low, lane.started = (token, deadline, who[1:]), int(low), started
            lane.leased = {seq for seq in window if first <= seq < first + held}
            lane.leased |= {seq for seq, _ in rare.get("front", [])[: rare.get("front_held", 0)]}

    # ---- what follows

    def lane(self, key: bytes) -> Lane:
        return self.lanes.setdefault(key, Lane(key))

    def arrive(self, arrival: int) -> None:
        _, key, seq, *_ = self.messages[arrival]
        lane = self.lane(key)
        if seq > lane.tail:
            lane.tail = seq
            lane.unresolved[seq] = arrival

    def named(self, entry: int, data: bytes | None) -> Iterator[tuple[Lane, list[int]]]:
        """Return the lanes that an entry concerns and that do not include it, each with its messages."""
        for ids in groups(data):
            if ids[0] not in self.messages:
                continue  # its lane's row includes the entry
            _, key, seq, *_ = self.messages[ids[0]]
            for name in (parked(key, seq), key):
                lane = self.lanes.get(name)
                if lane is not None and lane.lsn < entry and lane.has(ids[0]):
                    yield lane, ids
                    break

    def of_keys(self, entry: int, data: bytes | None) -> Iterator[Lane]:
        for key in keys(data):
            lane = self.lane(key)
            if lane.lsn < entry:
                yield lane

    def apply(
        self, entry: int, kind: int, at: int, top: int, token: int, deadline: int, holder: str | None, data: bytes | None
    ) -> None:
        """Apply a row of the journal."""
        if kind in (NOTE, VOID, FOLD) or (kind in (ACK, PURGE) and holder == "d"):
            return
        if kind not in range(CLAIM, FOLD) or kind in (RANGE, MOVE_OUT, MOVE_IN, RANGES):
            raise ValueError(f"row {entry} of the journal has the unknown kind {kind}")
        if kind in NAMES_KEYS or (kind in (RELEASE, EXTEND) and holder is not None):
            for lane in self.of_keys(entry, data):
                self.apply_to_lane(lane, kind, deadline, holder)
        elif kind == REDRIVE:
            self.redrive(entry, holder, data)
        elif kind == PARK:
            self.park(entry, deadline, holder or "", groups(data)[0][0])
        else:
            for lane, ids in list(self.named(entry, data)):
                self.apply_to_messages(lane, ids, kind, token, deadline, holder)

    def apply_to_lane(self, lane: Lane, kind: int, deadline: int, holder: str | None) -> None:
        if kind == FORGET:
            del self.lanes[lane.key]
        elif kind == HOLD:
            lane.hold = holder or ""
        elif kind == RELEASE_HOLD:
            poison = lane.hold == "poison"
            lane.tried = {i: (0, 0 if poison and starts else due) for i, (starts, due) in lane.tried.items()}
            lane.hold = None
        elif kind == EXTEND:
            if lane.lease is not None:
                lane.lease = (lane.lease[0], deadline, lane.lease[2])
        else:
            if holder in ("x", "s"):
                for seq in lane.leased:
                    if seq <= lane.started:
                        lane.charge(lane.unresolved[seq])
            lane.end_lease()

    def apply_to_messages(self, lane: Lane, ids: list[int], kind: int, token: int, deadline: int, holder: str | None) -> None:
        first = lane.seq_of(ids[0])
        if kind == CLAIM:
            charged = (holder or "")[0] in "13" and len(ids) == 1
            lane.lease = (token, deadline, (holder or "")[1:])
            lane.low, lane.started = first, first if charged else first - 1
            lane.leased = {lane.seq_of(i) for i in ids}
        elif kind == MORE:
            lane.leased |= {lane.seq_of(i) for i in ids}
        elif kind in RESOLVES:
            was_leased = bool(lane.leased)
            for i in ids:
                seq = lane.seq_of(i)
                del lane.unresolved[seq]
                lane.leased.discard(seq)
                lane.waiting.discard(seq)
                lane.tried.pop(i, None)
            if was_leased and not lane.leased and kind != ACK_FIRST:
                lane.end_lease()
        elif kind in (NACK, DEFER):
            lane.charge(ids[0], due=deadline, starts=int(kind == NACK and token != 0))
            if token:
                back = {seq for seq in lane.leased if seq >= first}
                if kind == NACK:
                    for seq in back - {first}:
                        if seq <= lane.started:
                            lane.charge(lane.unresolved[seq])
                self.give_back(lane, back)
        elif kind == RELEASE:
            self.give_back(lane, {seq for seq in lane.leased if seq >= first})
        elif kind == START:
            lane.started = lane.low - 1 if holder == "s" else first - 1 if holder == "u" else max(lane.started, first)

    @staticmethod
    def give_back(lane: Lane, seqs: set[int]) -> None:
        lane.leased -= seqs
        if not lane.leased:
            lane.end_lease()

    def redrive(self, entry: int, holder: str | None, data: bytes | None) -> None:
        for i in (i for ids in groups(data) for i in ids):
            if i not in self.messages:
                continue
            _, key, seq, *_ = self.messages[i]
            lane = self.lane(parked(key, seq) if holder == "a" and b"!" not in key else key)
            if lane.lsn < entry:
                lane.unresolved[seq] = i
                lane.tried.pop(i, None)
                lane.redriven.add(i)
                if lane.lease is not None:
                    lane.waiting.add(seq)

    def park(self, entry: int, due: int, said: str, arrival: int) -> None:
        if arrival not in self.messages:
            return
        _, key, seq, *_ = self.messages[arrival]
        starts, _, expires = map(int, said.split(","))
        lane = self.lane(key)
        if lane.lsn < entry and lane.has(arrival):
            del lane.unresolved[lane.seq_of(arrival)]
            lane.tried.pop(arrival, None)
        aside = self.lane(parked(key, seq))
        if aside.lsn < entry:
            aside.tail, aside.unresolved = seq, {seq: arrival}
            aside.tried = {arrival: (starts, due)} if starts or due else {}
            aside.redriven = {arrival} if expires == -1 else set()

    # ---- what a reader wants to know

    def due(self, lane: Lane, arrival: int) -> int:
        """Return when a message may be delivered; 0: at any time."""
        if arrival in lane.tried:
            return lane.tried[arrival][1]
        return 0 if arrival in lane.redriven else self.messages[arrival][4] or 0

    def states(self, lane: Lane, now: int) -> Iterator[tuple[int, int, str, int]]:
        """Return seq, arrival number, state and attempts of the unresolved messages, in the order of delivery."""
        seqs = sorted(lane.unresolved)
        free = [seq for seq in seqs if seq not in lane.waiting]
        is_live = lane.lease is not None and lane.lease[1] > now
        delayed = bool(free) and lane.lease is None and self.due(lane, lane.unresolved[free[0]]) > now
        for seq in seqs:
            i = lane.unresolved[seq]
            state = "ready"
            if is_live and seq in lane.leased:
                state = "in_flight"
            elif lane.hold is not None:
                state = "held"
            elif delayed or (seq not in lane.waiting and self.due(lane, i) > now):
                state = "delayed"
            yield seq, i, state, lane.tried.get(i, (0, 0))[0] + (seq in lane.leased and lane.low <= seq <= lane.started)


def parked(key: bytes, seq: int) -> bytes:
    return key + b"!s%d" % seq


def hash_of(key: bytes) -> int:
    if key.startswith(b"n"):
        key = key.split(b"!")[0]
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    db.execute("BEGIN")  # one state of all tables
    return db


def read(queue: Path, now: int) -> list[dict[str, Any]]:
    """Return what every shard of a queue contains."""
    with closing(opened(queue / "queue.db")) as db:
        topology = db.execute("SELECT file, hash_lo, hash_hi FROM topology ORDER BY shard").fetchall()
    found = []
    for file, low, high in topology:
        with closing(opened(queue / file)) as db:
            assert db.execute("PRAGMA application_id").fetchone() == (0x73717101,)
            assert db.execute("PRAGMA user_version").fetchone() == (3,)
            assert db.execute("SELECT features & ~8 FROM mark").fetchone() == (0,)
            shard = Shard(db)
            dead = db.execute("SELECT key, seq, id, kind FROM dead ORDER BY key, seq").fetchall()
        for key in shard.lanes:
            assert int(low, 16) <= hash_of(key) <= int(high, 16), "a key belongs to the shard whose range has its hash"
        found.append({
            "lanes": {key.hex(): told(shard, lane, now) for key, lane in shard.lanes.items()},
            "dead": [[key.hex(), seq, i, kind] for key, seq, i, kind in dead],
        })  # fmt: skip
    return found


def told(shard: Shard, lane: Lane, now: int) -> dict[str, Any]:
    messages: Iterable[tuple[int, int, str, int]] = shard.states(lane, now)
    return {
        "tail": lane.tail,
        "hold": lane.hold,
        "lease": lane.lease,
        "waiting": sorted(lane.waiting),
        "messages": [[seq, i, state, attempts, shard.messages[i][6].hex()] for seq, i, state, attempts in messages],
    }


if __name__ == "__main__":
    for line in sys.stdin:
        path, at = json.loads(line)
        print(json.dumps(read(Path(path), at)), flush=True)
