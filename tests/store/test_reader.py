"""Another program reads a shard, following docs/explanation/storage.md alone, with Python's own sqlite3."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest

from strictq import Delivery, Message, Queue
from tests.support.folds import narrow_by
from tests.support.queues import Opener, shard_file

CLAIM, MORE, ACK, ACK_FIRST, NACK, DEFER, REJECT, DROP, PURGE, EXPIRE, START, EXTEND, RELEASE, HOLD, RELEASE_HOLD = range(1, 16)
NOTE, VOID, FOLD = 23, 24, 25
RESOLVES = (ACK, ACK_FIRST, REJECT, DROP, PURGE, EXPIRE)


@attrs.define
class Lane:
    """The files' information about one key."""

    waiting: dict[int, int] = attrs.Factory(dict)
    """The arrival number of each unresolved message, by seq."""
    lsn: int = 0
    tail: int = 0
    token: int | None = None
    leased: set[int] = attrs.Factory(set)
    held: bool = False

    def seq_of(self, arrival: int) -> int:
        return next(seq for seq, i in self.waiting.items() if i == arrival)


def numbers(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, len(data), 8)]


def keys_of(data: bytes) -> list[bytes]:
    keys, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        keys.append(data[at + 4 : end])
        at = end
    return keys


class Reader:
    """The state of one shard. Uses nothing of strictq."""

    def __init__(self, path: Path) -> None:
        self.lanes: dict[bytes, Lane] = defaultdict(Lane)
        self.owner: dict[int, bytes] = {}
        self.bodies: dict[int, bytes] = {}
        self.due: dict[int, int] = {}
        with closing(sqlite3.connect(path)) as db:
            self._read_rows(db)
            self._read_logs(db)

    def _read_rows(self, db: sqlite3.Connection) -> None:
        """Read lanes as they were when their rows were written."""
        parts: dict[bytes, dict[int, int]] = defaultdict(dict)
        for key, first, ids in db.execute("SELECT key, first, ids FROM pending"):
            parts[key] |= dict(enumerate(numbers(ids), first))
        for key, lsn, tail, first, token, held, held_at, opts, ids_from, ids in db.execute(
            "SELECT key, lsn, tail, first, token, held, held_at, opts, ids_from, ids FROM lane"
        ):
            rare: dict[str, Any] = json.loads(opts or "{}")
            known = parts[key] | dict(enumerate(numbers(ids or b""), ids_from or 0))
            gone = set(rare.get("holes", ()))
            lane = self.lanes[key] = Lane(lsn=lsn, tail=tail, token=token, held=held_at is not None)
            lane.waiting = {seq: i for seq, i in sorted(known.items()) if i and first <= seq <= tail and seq not in gone}
            if token is not None:
                lane.leased = {i for seq, i in lane.waiting.items() if first <= seq < first + held}
            self.owner |= dict.fromkeys(lane.waiting.values(), key)

    def _read_logs(self, db: sqlite3.Connection) -> None:
        """Read in the order of the journal, and before each of its rows the messages up to its `top`."""
        messages = iter(db.execute("SELECT id, key, seq, due, body FROM message WHERE id > 0 ORDER BY id").fetchall())
        row = next(messages, None)

        def arrive(upto: float) -> None:
            nonlocal row
            while row is not None and row[0] <= upto:
                arrival, key, seq, due, body = row
                self.owner[arrival], self.bodies[arrival], self.due[arrival] = key, body, due or 0
                lane = self.lanes[key]
                if seq > lane.tail:
                    lane.waiting[seq] = arrival
                    lane.tail = seq
                row = next(messages, None)

        for entry, kind, top, token, holder, data in db.execute(
            "SELECT id, kind, top, token, holder, data FROM journal WHERE id > 0 ORDER BY id"
        ):
            arrive(top)
            if kind in (NOTE, VOID, FOLD):
                continue
            by_key = kind in (HOLD, RELEASE_HOLD) or (kind == RELEASE and holder is not None)
            groups: dict[bytes, list[int]] = {key: [] for key in keys_of(data)} if by_key else defaultdict(list)
            for i in () if by_key else numbers(data):
                # If the row of a message is gone, its lane's row includes this entry.
                if abs(i) in self.owner:
                    groups[self.owner[abs(i)]].append(abs(i))
            for key, ids in groups.items():
                if self.lanes[key].lsn < entry:
                    self._apply(self.lanes[key], kind, token, ids)
        arrive(float("inf"))

    @staticmethod
    def _apply(lane: Lane, kind: int, token: int, ids: list[int]) -> None:
        if kind == CLAIM:
            lane.token, lane.leased = token, set(ids)
        elif kind in RESOLVES:
            for seq in [seq for seq, i in lane.waiting.items() if i in ids]:
                del lane.waiting[seq]
            lane.leased -= set(ids)
            lane.token = lane.token if lane.leased else None
        elif kind == RELEASE:
            lane.leased = {i for i in lane.leased if ids and lane.seq_of(i) < lane.seq_of(ids[0])}
            lane.token = lane.token if lane.leased else None
        elif kind in (HOLD, RELEASE_HOLD):
            lane.held = kind == HOLD
        else:
            assert kind in (START, EXTEND)

    def place(self, lane: Lane) -> int | None:
        """Return the place of a ready lane: the arrival of its first message. (No lane was retried here.)"""
        if lane.token is not None or lane.held or not lane.waiting:
            return None
        head = min(lane.waiting.values())
        return None if self.due[head] else head


def use(q: Queue, rng: random.Random, leases: list[Delivery]) -> None:
    """Run one step of a program."""
    key = f"k{rng.randrange(6)}"
    what = rng.choice("ssssssbrrraaaaAxedlh")
    if what == "s":
        q.send(rng.randbytes(rng.choice((3, 3, 900))), key)
    elif what == "b":
        q.send_many([Message(rng.randbytes(5), key=f"k{rng.randrange(6)}") for _ in range(rng.randrange(1, 9))])
    elif what == "r":
        leases += q.receive(rng.randrange(1, 6))
    elif what in "aA" and leases:
        some = [leases.pop(0) for _ in range(1 if what == "a" else len(leases))]
        q.ack_many(some)
    elif what == "x" and leases:
        leases[0].extend(500.0)
    elif what == "e" and leases:
        token = leases[0].lease.token
        leases[0].lease.release()
        leases[:] = [d for d in leases if d.lease.token != token or d.key != leases[0].key]
    elif what == "d":
        q.send(b"late", key, delay=100.0)
    elif what == "l" and leases:
        leases[0].start()
    elif what == "h":
        q.hold(key)
        if rng.random() < 0.7:
            q.release(key)


@pytest.mark.parametrize("seed", range(24))
def test_another_program_reads_what_the_queue_says(
    disk: Opener, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow_by(monkeypatch, 40)
    rng = random.Random(seed)
    q = disk(shards=1, lease_seconds=1000.0)
    leases: list[Delivery] = []
    for _ in range(rng.randrange(5, 150)):
        use(q, rng, leases)
    q.close()
    shutil.copytree(disk.path, tmp_path / "copy")
    read = Reader(shard_file(tmp_path / "copy"))
    q = disk.open()
    for number in range(6):
        key = f"k{number}"
        lane = read.lanes[b"s" + key.encode()]
        peeked = q.peek(key, 1000)
        assert [(m.seq, m.body) for m in peeked] == [(seq, read.bodies[i]) for seq, i in lane.waiting.items()]
        assert [m.seq for m in peeked if m.state == "in_flight"] == sorted(map(lane.seq_of, lane.leased))
        why = q.explain(key)
        assert why.token == lane.token
        assert (why.state == "held") == (lane.held and lane.token is None and bool(lane.waiting))
    ready = sorted((place, key) for key, lane in read.lanes.items() if (place := read.place(lane)) is not None)
    assert [b"s" + str(d.key).encode() for d in q.receive(100, per_key=1)] == [key for _, key in ready]
    for number in range(6):
        assert q.send(b"", f"k{number}").seq == read.lanes[b"sk%d" % number].tail + 1
