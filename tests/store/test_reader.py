"""Another program reads a shard, following docs/explanation/storage.md and hot-lanes.md alone, with Python's own sqlite3."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from strictq import Delivery, Message, Queue
from strictq._store.hot import cooling
from tests.support.queues import Opener, shard_file

CLAIM, ACK, START, COOL, EXTEND, RELEASE = range(1, 7)


@attrs.define
class Lane:
    """The files' information about one key."""

    waiting: dict[int, tuple[int, bytes]] = attrs.Factory(dict)
    """Arrival number: seq and body, in the order of seqs."""
    tail: int = 0
    token: int | None = None
    leased: set[int] = attrs.Factory(set)
    held: bool = False
    place: int | None = None


class Reader:
    """The state of one shard. Uses nothing of strictq."""

    def __init__(self, path: Path) -> None:
        self.lanes: dict[bytes, Lane] = defaultdict(Lane)
        with closing(sqlite3.connect(path)) as db:
            self._read_tables(db)
            self._read_logs(db)

    def _read_tables(self, db: sqlite3.Connection) -> None:
        keys: dict[int, bytes] = {}
        for number, key, last_seq, hold in db.execute("SELECT id, key, last_seq, hold FROM lane"):
            keys[number] = key
            self.lanes[key].tail, self.lanes[key].held = last_seq, hold is not None
        messages = """SELECT m.lane, m.seq, m.id, ifnull(m.body, b.data) FROM message m
                      LEFT JOIN body b ON m.body IS NULL AND b.id = m.id ORDER BY m.lane, m.seq"""
        for number, seq, arrival, body in db.execute(messages):
            lane = self.lanes[keys[number]]
            lane.waiting[arrival] = seq, body
            lane.tail = max(lane.tail, seq)
        for number, token, lo, hi in db.execute("SELECT lane, token, lo, hi FROM lease WHERE expired = 0"):
            lane = self.lanes[keys[number]]
            lane.token, lane.leased = token, {id_ for id_, (seq, _) in lane.waiting.items() if lo <= seq <= hi}
        for position, number in db.execute("SELECT position, lane FROM ready"):
            self.lanes[keys[number]].place = position

    def _read_logs(self, db: sqlite3.Connection) -> None:
        """Read in the order of the journal, and before each of its rows the rows of the inbox up to its `top`."""
        hot: dict[bytes, Lane] = {}
        newest: dict[bytes, int] = {}
        owner: dict[int, bytes] = {}
        inbox = iter(
            db.execute("""SELECT i.id, i.key, i.seq, ifnull(i.body, b.data) FROM inbox i
                          LEFT JOIN body b ON i.body IS NULL AND b.id = i.id ORDER BY i.id""").fetchall()
        )
        row = next(inbox, None)

        def arrive(upto: float) -> None:
            nonlocal row
            while row is not None and row[0] <= upto:
                arrival, key, seq, body = row
                lane = hot.setdefault(key, Lane())
                lane.waiting[arrival] = seq, body
                lane.tail = seq
                owner[arrival], newest[key] = key, arrival
                row = next(inbox, None)

        for kind, top, count, token, deadline, data in db.execute(
            "SELECT kind, top, count, token, deadline, data FROM journal ORDER BY id"
        ):
            arrive(top)
            if kind == COOL:
                at = 0
                for _ in range(count):
                    end = at + 2 + int.from_bytes(data[at : at + 2], "little")
                    hot.pop(data[at + 2 : end], None)
                    at = end
                for key in [key for key in hot if newest[key] <= deadline]:
                    del hot[key]
                continue
            groups: dict[bytes, set[int]] = defaultdict(set)
            for at in range(0, len(data), 8):
                arrival = int.from_bytes(data[at : at + 8], "little")
                whose = owner.get(arrival)
                if whose in hot and arrival in hot[whose].waiting:
                    groups[whose].add(arrival)
            for key, ids in groups.items():
                lane = hot[key]
                if kind == CLAIM:
                    lane.token, lane.leased = token, ids
                elif kind == ACK:
                    lane.leased -= ids
                    for arrival in ids:
                        del lane.waiting[arrival]
                    lane.token = lane.token if lane.leased else None
                elif kind == RELEASE:
                    lane.token, lane.leased = None, set()
                else:
                    assert kind in (START, EXTEND)
        arrive(float("inf"))
        for key, lane in hot.items():
            lane.place = min(lane.waiting) if lane.waiting and lane.token is None else None
            self.lanes[key] = lane


def use(q: Queue, rng: random.Random, leases: list[Delivery]) -> None:
    """Run one step of a program that uses the queue in every way that keeps lanes hot, and in some that cool them."""
    key = f"k{rng.randrange(6)}"
    what = rng.choice("ssssssbrrraaaaAxedlhf")
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
    elif what == "f" and rng.random() < 0.3:
        q.configure(hot_lanes=False)
        q.configure(hot_lanes=True)


@pytest.mark.parametrize("seed", range(24))
def test_another_program_reads_what_the_queue_says(
    disk: Opener, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooling, "WINDOW", 40)
    monkeypatch.setattr(cooling, "STEP", 4)
    rng = random.Random(seed)
    q = disk(shards=1, hot_lanes=True, lease_seconds=1000.0)
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
        assert [(m.seq, m.body) for m in peeked] == list(lane.waiting.values())
        assert [m.seq for m in peeked if m.state == "in_flight"] == [lane.waiting[each][0] for each in sorted(lane.leased)]
        why = q.explain(key)
        assert why.token == lane.token
        assert (why.state == "held") == (lane.held and lane.token is None and bool(lane.waiting))
    ready = sorted((lane.place, key) for key, lane in read.lanes.items() if lane.place is not None)
    assert [b"s" + str(d.key).encode() for d in q.receive(100, per_key=1)] == [key for _, key in ready]
    for number in range(6):
        assert q.send(b"", f"k{number}").seq == read.lanes[b"sk%d" % number].tail + 1
