"""The reader of format 2 reads what this version's public API reports: of recorded directories, and on random walks.

STRICTQ_MIGRATING_STEPS=5000 makes each walk so long, and STRICTQ_MIGRATING_SEED selects others.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Delivery, InvalidArgument, LeaseLost, Message, Queue, QueueConfig, StoreCorrupt
from strictq._keys import Key, decode_key, encode_key, is_keyless
from strictq._sql import MIGRATING
from strictq._store.commit.calls import bound
from strictq._store.commit.tx import NEVER, Tx
from strictq._store.hot.lane import HotLane
from strictq._store.lanes.leases import ID
from strictq._store.migrating import reader
from strictq._store.migrating.reader import OldShard
from strictq._store.migrating.values import OldFailure, OldLane, OldLease, OldMessage, OldResolution
from strictq.testing import FakeClock
from tests.store import test_folds
from tests.store.test_folds import FAST, SLOW
from tests.support import format_1, format_2
from tests.support.format_2 import Facts, brief, key_of, label, shown
from tests.support.hot import cut_to, narrow
from tests.support.internals import shard_of, tamper
from tests.support.powercut_campaign import fast_directory
from tests.support.queues import shard_file

STEPS = int(os.environ.get("STRICTQ_MIGRATING_STEPS", "120"))
SEED = int(os.environ.get("STRICTQ_MIGRATING_SEED", "0"))
WALKS = 3
COMPARED_EVERY = 6
NO_FAILURE = OldFailure(0, 0, None, None, None, None)
TOTALS = (
    "sends", "receives", "claims", "acks", "retries", "redeliveries", "expired", "dropped", "purged", "dead", "lanes",
)  # fmt: skip


# ---- what the reader reads, in the form of the API's reports


class Read:
    """A queue's files as the reader reads them, reported as `format_2.reported` reports what the API says."""

    def __init__(self, path: Path, now: int) -> None:
        """
        Args:
            now: queue time.
        """
        self.now = now
        self.lanes: dict[bytes, OldLane] = {}
        self.messages: dict[tuple[int, int], OldMessage] = {}
        self.dedup: set[tuple[str, int | None, int]] = set()
        self.report: Facts = {"counts": [], "lanes": {}, "keyless": {}, "dead": [], "history": [], "consumers": []}
        self._consumers: dict[str, dict[str, Any]] = {}
        self._batches: dict[str, dict[int, str]] = {}
        self.totals: list[dict[str, Any]] = []
        for number, file in enumerate(sorted(path.glob("shard-????.db"))):
            with closing(OldShard(file, number)) as shard:
                self._add(shard, number)
        for name, found in sorted(self._consumers.items()):
            batches = self._batches.get(name, {})
            kept = sum(state != "released" for state in batches.values())
            self.report["consumers"].append(found | {"open": list(batches.values()).count("open"), "kept": kept})

    def _add(self, shard: OldShard, number: int) -> None:
        parts = list(shard.messages())
        messages = {m.id: m for m in chain.from_iterable(parts)}
        assert list(messages) == sorted(messages)
        lanes = list(shard.lanes())
        assert [lane.key for lane in lanes] == sorted(lane.key for lane in lanes)
        in_lanes = [(lane.key, seq, i) for lane in lanes for seq, i in zip(lane.seqs, lane.ids, strict=True)]
        assert sorted(in_lanes) == sorted((m.key, m.seq, m.id) for m in messages.values())
        self.messages |= {(number, i): m for i, m in messages.items()}
        self.dedup |= {(d.dedup_id, d.seq, d.id) for d in shard.dedup()}
        dead = list(shard.dead())
        states = dict(shard.key_states())
        for lane in lanes:
            assert lane.key not in self.lanes
            self.lanes[lane.key] = lane
            some = [self._message(lane, messages[i]) for i in lane.ids]
            if is_keyless(lane.key):
                self.report["keyless"] |= {f"{number}/{m['id']}": m for m in some}
            else:
                of_lane = sum(d.key == lane.key for d in dead)
                key_state = shown(states.get(lane.key))
                found = self._lane(lane, [messages[i] for i in lane.ids[:1]])
                found |= {"dead": of_lane, "shard": number, "key_state": key_state, "messages": some}
                self.report["lanes"][_named(lane.key)] = brief(found, format_2.LANE_DEFAULTS)
        for d in dead:
            self.report["dead"].append(
                brief(
                    {
                        "key": _named(d.key), "seq": d.seq, "id": d.id, "body": shown(d.body), "kind": d.kind, "reason": d.reason,
                        "headers": json.loads(d.headers or "{}"), "attempts": d.attempts, "sent": d.sent_at, "died": d.died_at,
                        "output": d.output, "errors": json.loads(d.errors or "null"),
                    },
                    format_2.MESSAGE_DEFAULTS,
                )
            )  # fmt: skip
        self.report["history"].append([_record(*row) for row in shard.kept("history")])
        self._add_consumers(shard, lanes)
        self._count(shard, lanes)

    def _add_consumers(self, shard: OldShard, lanes: list[OldLane]) -> None:
        for name, _, last, acked, _ in shard.kept("consumer"):
            known = self._consumers.setdefault(name, {"name": name, "last": 0, "acked": 0, "in_flight": 0})
            known |= {"last": max(known["last"], last), "acked": max(known["acked"], acked)}
        for name, n, state, token, *_ in shard.kept("handout"):
            self._batches.setdefault(name, {})[n] = state
            endless = [lane.lease for lane in lanes if lane.lease is not None and lane.lease.deadline == NEVER]
            if state == "open":
                self._consumers[name]["in_flight"] += sum(lease.pending for lease in endless if lease.token == token)

    def _count(self, shard: OldShard, lanes: list[OldLane]) -> None:
        totals = shard.totals()
        self.totals.append(totals)
        pending = sum(len(lane.ids) for lane in lanes)
        assert totals["pending"] == pending
        assert totals["lanes"] == len(lanes)
        counts = {name: totals[name] for name in TOTALS} | {
            name: shard.meta().get(name, 0) for name in ("dead_letters", "rejected", "redriven")
        }
        running = {lane.key: 0 if (lease := self._live(lane)) is None else lease.pending for lane in lanes}
        counts["in_flight"] = sum(running.values())
        counts["delayed"] = sum(len(lane.ids) for lane in lanes if lane.due is not None and lane.due > self.now)
        counts["held"] = sum(len(lane.ids) - running[lane.key] for lane in lanes if lane.hold is not None)
        counts["ready"] = pending - counts["in_flight"] - counts["delayed"] - counts["held"]
        counts["outbox"] = len(list(shard.kept("outbox")))
        counts["handout_bytes"] = sum(row[5] for row in shard.kept("handout"))
        self.report["counts"].append({name: counts[name] for name in format_2.COUNTS if counts[name]})

    def _live(self, lane: OldLane) -> OldLease | None:
        lease = lane.lease
        return None if lease is None or lease.expired or lease.deadline <= self.now else lease

    def _lane(self, lane: OldLane, head: list[OldMessage]) -> dict[str, Any]:
        found: dict[str, Any] = {"depth": len(lane.ids)}
        if head:
            error = (head[0].failure or NO_FAILURE).error
            found |= {"head": head[0].seq, "solo": lane.solo_to >= head[0].seq, "error": error}
        if (lease := self._live(lane)) is not None:
            end = None if lease.deadline == NEVER else lease.deadline
            return found | {
                "state": "in_flight", "since": lease.leased_at, "until": end, "by": lease.consumer, "token": lease.token,
            }  # fmt: skip
        if lane.hold is not None:
            return found | {"state": "held", "since": lane.held_at, "by": lane.hold}
        if head and lane.due is not None and lane.due > self.now:
            return found | {"state": "delayed", "until": lane.due}
        return found | {"state": "ready", "since": head[0].sent_at} if head else found

    def _message(self, lane: OldLane, m: OldMessage) -> dict[str, Any]:
        failure = m.failure or NO_FAILURE
        lease, live = lane.lease, self._live(lane)
        leased = lease is not None and lease.lo <= m.seq <= lease.hi
        until, consumer = None, None
        if live is not None and leased and not live.ack_first:
            state, consumer, until = "in_flight", live.consumer, None if live.deadline == NEVER else live.deadline
        elif lane.hold is not None:
            state = "held"
        elif any(due is not None and due > self.now for due in (lane.due, m.due)):
            state, until = "delayed", m.due
        else:
            state = "ready"
        started = lease is not None and lease.lo <= m.seq <= lease.started
        return brief(
            {
                "seq": m.seq, "id": m.id, "body": shown(m.body), "headers": json.loads(m.headers or "{}"), "state": state,
                "attempts": failure.starts + started, "sent": m.sent_at, "due": m.due, "expires": m.expires, "consumer": consumer,
                "until": until, "error": failure.error, "output": failure.output, "errors": json.loads(failure.errors or "null"),
            },
            format_2.MESSAGE_DEFAULTS,
        )  # fmt: skip


def _named(stored: bytes) -> str | None:
    key = decode_key(stored)
    return None if key is None else label(key)


def _record(*row: Any) -> dict[str, Any]:
    n, key, seq, i, sent, first, done, attempts, prepare, process, size, hint, outcome, body, errors, output = row
    return brief(
        {
            "n": n, "key": _named(key), "seq": seq, "id": i, "sent": sent, "first": first, "done": done, "attempts": attempts,
            "prepare": prepare, "process": process, "size": size, "hint": hint, "outcome": outcome, "body": shown(body),
            "output": output, "errors": json.loads(errors or "null"),
        },
        {"attempts": 0},
    )  # fmt: skip


def require_equal(read: Read, report: Facts) -> None:
    """Require the files to contain what the API reports."""
    for name, lane in report["lanes"].items():
        if name not in read.report["lanes"]:
            assert set(lane) == {"shard"}, "a key without a lane has something"
            continue
        assert read.report["lanes"][name] == lane
    assert set(read.report["lanes"]) <= set(report["lanes"])
    for part in ("counts", "keyless", "history", "consumers"):
        assert read.report[part] == report[part], part

    def order(d: dict[str, Any]) -> tuple[str, int, int]:
        return d.get("key", ""), d["seq"], d["id"]

    assert sorted(read.report["dead"], key=order) == sorted(report["dead"], key=order)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with fast_directory(tmp_path) as directory:
        yield directory


# ---- recorded directories


@pytest.mark.parametrize("kind", format_2.kinds())
def test_recorded_directories(kind: str, place: Path) -> None:
    facts = format_2.facts_of(kind)
    path = format_2.unpacked(kind, place / "made")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    read = Read(path, facts["clock"][0])
    after = {file.name: file.read_bytes() for file in path.iterdir() if not file.name.endswith("-shm")}
    assert after == before, "it writes nothing"
    require_equal(read, facts["report"])
    for key, tail in facts["tails"].items():
        lane = read.lanes.get(encode_key(key_of(key)))
        assert (0 if lane is None else lane.tail) == tail
    for key, dedup_id, seq, i in facts.get("dedup", ()):
        assert (dedup_id, seq, i) in read.dedup, key
    for key, token, seq in facts.get("settled", ()):
        done = read.lanes[key.encode()].done
        assert done is not None
        assert (done.token, done.kind) == (token, "ack")
        assert seq in set(range(done.lo, done.hi + 1)) - set(done.gaps)
    hints = {(_named(m.key), str(m.seq)): [m.size_hint, m.prepare_seconds, m.process_seconds] for m in read.messages.values()}
    for key, by_seq in facts.get("hints", {}).items():
        for seq, expected in by_seq.items():
            assert hints.get((key, seq), expected) == expected


@pytest.mark.parametrize("kind", ["backlog_hot", "backlog_cold", "backlog_shards", "retries", "ttl"])
def test_the_order_of_ready_lanes(kind: str, place: Path) -> None:
    facts = format_2.facts_of(kind)
    path = format_2.unpacked(kind, place / "made")
    expected: dict[int, list[Key | None]] = {}
    for number, file in enumerate(sorted(path.glob("shard-????.db"))):
        with closing(OldShard(file, number)) as shard:
            ready = sorted((lane.position, lane.key) for lane in shard.lanes() if lane.position is not None)
        expected[number] = [decode_key(key) for _, key in ready]
    with strictq.open(path, clock=format_2.clock_of(facts)) as q:
        found: dict[int, list[Key | None]] = {number: [] for number in expected}
        for d in q.receive(1_000, per_key=1):
            found[d.shard].append(d.key)
    gone = {None, "hot-gone", "cold-gone"}  # its messages have expired, which a claim finds out
    assert found == {number: [key for key in keys if key not in gone] for number, keys in expected.items()}


def test_leases_that_earlier_versions_released_by_a_deleted_message(place: Path) -> None:
    clock = FakeClock()
    path = format_1.unpacked("lost_releases", place / "q", format_2.PLACE)
    with strictq.open(path, clock=clock, read_only=True) as q:
        read = Read(path, clock.wall())
        require_equal(read, format_2.reported(q, ["again", "once", *_others(read)]))
    assert {key: lane.lease is not None for key, lane in read.lanes.items() if lane.ids} == {b"sagain": True, b"sonce": False}


def _others(read: Read) -> list[Key]:
    return [key for stored in read.lanes if (key := decode_key(stored)) is not None and key not in ("again", "once")]


def test_tables_that_stay_as_they_are(place: Path) -> None:
    path = format_2.unpacked("app", place / "made")
    with closing(OldShard(shard_file(path), 0)) as shard:
        tables = shard.kept_tables()
        assert {"outbox", "history", "applied", "handout", "app_blob", "app_done"} < set(tables)
        found = {table: sorted(shard.kept(table)) for table in tables}
    assert found == {table: sorted(tamper(shard_file(path), f"SELECT * FROM {table}")) for table in tables}
    assert [len(found[table]) for table in ("applied", "app_blob", "app_done")] == [3, 8, 8]


def test_ids_of_the_whole_queue(place: Path) -> None:
    path = format_2.unpacked("dedup_queue", place / "made")
    with closing(OldShard(shard_file(path), 0)) as shard:
        found = {(d.dedup_id, d.key, d.seq) for d in shard.dedup()}
    assert {("id-1", b"sk1", 1), ("id-1", b"sk1", None)} < found


def test_parts_are_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("backlog_hot", "backlog_cold", "dead", "dedup", "app"):
        path = format_2.unpacked(kind, place / kind)
        with closing(OldShard(shard_file(path), 0)) as shard:
            whole = [list(chain(*shard.messages())), *map(list, (shard.lanes(), shard.dead(), shard.dedup(), shard.key_states()))]
        with monkeypatch.context() as patch, closing(OldShard(shard_file(path), 0)) as shard:
            patch.setattr(reader, "PART_MESSAGES", 7)
            patch.setattr(reader, "PART_BYTES", 2_000)
            patch.setattr(reader, "_PART_ROWS", 2)
            parts = list(shard.messages())
            assert [list(chain(*parts)), *map(list, (shard.lanes(), shard.dead(), shard.dedup(), shard.key_states()))] == whole
        assert all(len(part) <= 7 and sum(len(m.body) for m in part[:-1]) < 2_000 for part in parts)
        assert len(parts) > 2 or kind not in ("backlog_hot", "backlog_cold")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        ("DELETE FROM journal WHERE id = 2", "no row 2"),
        ("UPDATE journal SET kind = 9 WHERE kind = 2", "unknown kind 9"),
        ("UPDATE journal SET count = count + 1 WHERE kind = 2", "a different number"),
        ("UPDATE journal SET kind = 1, token = token + 1 WHERE kind = 3", "leases messages twice"),
        ("DELETE FROM journal WHERE id <= (SELECT min(id) FROM journal WHERE kind = 1)", "not leased"),
        ("UPDATE journal SET kind = 2, data = (SELECT data FROM journal WHERE kind = 2) WHERE kind = 3", "are resolved"),
        (
            "INSERT INTO lane (id, key, last_seq, resolved, active_at, hold) VALUES (1, x'736b', 0, 0, 0, 'x')",
            "in the tables as well",
        ),
        (
            "DELETE FROM journal WHERE id = (SELECT max(id) FROM journal); UPDATE counted SET journal_top = 9",
            "end before the rows",
        ),
        ("DELETE FROM body", "body of message 2 is missing"),
    ],
)
def test_contradictions_are_corruption(place: Path, damage: str, match: str) -> None:
    with strictq.open(place / "q", shards=1, durability="process", clock=FakeClock()) as q:
        q.send_many([Message(body, key="k") for body in (b"", b"x" * 5_000, b"")])
        first, _, third = q.receive(3)
        first.ack()
        third.start()
    tamper(shard_file(place / "q"), damage)
    with pytest.raises(StoreCorrupt, match=match), closing(OldShard(shard_file(place / "q"), 0)) as shard:
        list(shard.messages())
        list(shard.lanes())


def test_no_part_scans_what_is_before_it(place: Path) -> None:
    path = format_2.unpacked("backlog_hot", place / "made")
    with closing(OldShard(shard_file(path), 0)) as shard:
        list(shard.messages())
        for name in ("messages", "lanes", "lane_messages", "dead", "dedup", "key_states", "row_of"):
            sql = getattr(MIGRATING, name)
            plan = [row[3] for row in shard._db.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?"))]
            assert all(step.startswith("SEARCH") for step in plan), plan


# ---- random walks


KEYS = [f"k{n}" for n in range(9)]


class Walk:
    """Random calls of two queue objects on one directory, with windows so small that the logs are cut all the time."""

    def __init__(self, path: Path, seed: int, **settings: Any) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.path = path
        config = QueueConfig(
            lease_seconds=20.0, max_attempts=3, retry_delay_seconds=2.0, retry_for_seconds=0.0, keyless="round_robin",
            keyless_lanes=2, on_expire="dead_letter", **settings,
        )  # fmt: skip
        first = strictq.open(path, shards=1, config=config, durability="process", clock=self.clock)
        self.queues = [first, strictq.open(path, durability="process", clock=self.clock)]
        for q in self.queues:
            q._client.sending._turn = iter(range(10_000))  # type: ignore[assignment]  # it begins with a random lane
        self.held: list[Delivery] = []
        self.keyless: list[tuple[int, int]] = []
        self.compared = 0

    def close(self) -> None:
        for q in self.queues:
            q.close()

    def run(self) -> None:
        steps: list[Callable[[Queue], object]] = [
            self.send,
            self.send_many,
            self.send_many,
            self.receive,
            self.receive,
            self.ack,
            self.ack,
        ]
        rare = [
            self.send_with, self.nack, self.reject, self.release, self.extend, self.start, self.more, self.hold, self.end_hold,
            self.redrive, self.operate, self.purge, self.state, self.wait, self.send_keyless, self.once,
        ]  # fmt: skip
        for n in range(STEPS):
            step = self.random.choice(rare if self.random.random() < 0.35 else steps)
            with suppress(LeaseLost, InvalidArgument, strictq.PartialFailure):
                step(self.random.choice(self.queues))
            if n % COMPARED_EVERY == 0:
                self.compare()
        self.compare()

    def compare(self) -> None:
        q = self.random.choice(self.queues)
        read = Read(self.path, self.clock.wall())
        require_equal(read, format_2.reported(q, KEYS, self.keyless))
        shard_of(q).run(bound(require_memory, read))
        self.compared += 1

    # ---- steps

    def send(self, q: Queue) -> None:
        q.send(b"%d" % self.random.randrange(1_000), self.random.choice(KEYS))

    def send_many(self, q: Queue) -> None:
        some = self.random.choices(KEYS, k=self.random.choice((2, 5, 9)))
        q.send_many([Message(b"x" * self.random.choice((0, 3, 3, 1_200)), key=key) for key in some])

    def send_with(self, q: Queue) -> None:
        options: dict[str, Any] = self.random.choice(
            [
                {"delay": 3.0}, {"ttl": 5.0}, {"ttl": 500.0}, {"headers": {"a": "b"}}, {"size_hint": 2.0, "process_seconds": 1.0},
                {"dedup_id": self.random.choice("abc")},
            ]
        )  # fmt: skip
        q.send(b"with", self.random.choice(KEYS), **options)

    def send_keyless(self, q: Queue) -> None:
        receipt = q.send(b"without", delay=self.random.choice((0.0, 0.0, 4.0)))
        self.keyless.append((receipt.shard, receipt.id))

    def receive(self, q: Queue) -> None:
        most = self.random.choice((None, None, 1, 2))
        self.held += q.receive(self.random.choice((1, 2, 5, 20)), per_key=most, consumer=f"c{self.queues.index(q)}")

    def once(self, q: Queue) -> None:
        q.receive(2, ack_first=True, consumer="once")

    def some(self, count: int) -> list[Delivery]:
        """Take some deliveries of those that are held: neighbours, or any."""
        at = self.random.randrange(len(self.held) + 1)
        some = (
            self.held[at : at + count]
            if self.random.random() < 0.6
            else self.random.sample(self.held, min(count, len(self.held)))
        )
        self.held = [d for d in self.held if d not in some]
        return some

    def ack(self, q: Queue) -> None:
        some = self.some(self.random.choice((1, 2, 5, 30)))
        if some:
            q.ack_many(some)

    def nack(self, _: Queue) -> None:
        for d in self.some(1):
            if self.random.random() < 0.3:
                d.defer(2.0, "later")
            else:
                d.nack(delay=self.random.choice((None, 0.0)), reason="it failed", output=self.random.choice((None, "printed")))

    def reject(self, _: Queue) -> None:
        for d in self.some(1):
            d.reject("no good")

    def release(self, _: Queue) -> None:
        for d in self.some(1):
            d.lease.release()

    def extend(self, _: Queue) -> None:
        for d in self.held[:2]:
            d.extend(self.random.choice((10.0, 60.0)))

    def start(self, _: Queue) -> None:
        for d in self.random.sample(self.held, min(2, len(self.held))):
            d.start()

    def more(self, _: Queue) -> None:
        for d in self.held[-1:]:
            self.held += d.lease.more(2)

    def hold(self, q: Queue) -> None:
        q.hold(self.random.choice(KEYS), self.random.choice((None, "a reason")))

    def end_hold(self, q: Queue) -> None:
        for key in KEYS:
            q.release(key)
        q.release(None)

    def redrive(self, q: Queue) -> None:
        q.redrive(self.random.choice([*KEYS, None]))

    def operate(self, q: Queue) -> None:
        key = self.random.choice(KEYS)
        for m in q.peek(key, 3)[-1:]:
            if self.random.random() < 0.5:
                q.reject(key, m.seq, "on order", force=True)
            else:
                q.resolve(key, m.seq)

    def purge(self, q: Queue) -> None:
        if self.random.random() < 0.3:
            q.purge(self.random.choice(KEYS), dead=self.random.random() < 0.5)

    def state(self, q: Queue) -> None:
        with q.transaction(key=self.random.choice(KEYS)) as tx:
            tx.key_state = b"%d" % self.random.randrange(100)

    def wait(self, _: Queue) -> None:
        self.clock.advance(self.random.choice((0.001, 1.0, 4.0, 21.0)))


def require_memory(tx: Tx, read: Read) -> None:
    """Require the hot lanes to be those of this process's memory."""
    assert tx.hot is not None
    for key, hot in tx.hot.lanes.items():
        lane = read.lanes[key]
        assert (lane.tail, list(lane.ids), lane.active_at >= hot.active_at) == (hot.seq, [row[ID] for row in hot.rows], True)
        lease = hot.lease_row(0)
        assert lane.lease == (None if lease is None else OldLease(*lease[1:]))
        if hot.done is not None:
            token, _, seqs = hot.done
            assert lane.done == OldResolution(token, "ack", seqs[0], seqs[-1], sorted({*range(seqs[0], seqs[-1])} - {*seqs}))
        else:
            row = tx.db.execute("SELECT done_token, done_lo, done_hi FROM lane WHERE key = ? AND done_token > 0", (key,)).get
            assert (None if lane.done is None else (lane.done.token, lane.done.lo, lane.done.hi)) == row
    (totals,) = read.totals
    names = ("config_version", "epoch", "last_id", "last_token", "last_lane", "seq_floor", "pending", "ack_rate")
    assert [totals[name] for name in names] == [getattr(tx.totals, name) for name in names]


def walk(place: Path, seed: int, **settings: Any) -> None:
    r = random.Random(seed)
    window, step, slices = r.choice((12, 24, 40)), r.choice((1, 3)), r.choice((1, 2))
    with narrow(window, step, slices, events=8 * window), closing(Walk(place / "q", seed, **settings)) as made:
        made.run()
        assert made.compared > 5


@pytest.mark.parametrize("seed", range(SEED, SEED + WALKS))
def test_walks(place: Path, seed: int) -> None:
    walk(place, seed)


def test_walks_with_history(place: Path) -> None:
    walk(place, SEED, history="bodies")


class FoldWalk(test_folds.Walk):
    """A walk of plain calls, in which lanes with leases of several messages stay hot while the logs are cut."""

    def run_alone(self) -> None:
        acts = [self.send, self.receive, self.ack, self.churn, self.release, self.extend, self.start, self.repeat]
        acts += [*self.random.choices(acts, k=8), self.one_only]
        seen = 0
        for n in range(2 * STEPS):
            self.random.choice(acts)(self.random.randrange(2))
            self.clock.advance(0.001)
            before, seen = seen, cut_to(self.queues[0])
            if n % COMPARED_EVERY == 0 or seen != before:
                self.look()

    def look(self) -> None:
        """Compare what is read with what a queue object reports and knows."""
        q = self.queues[self.random.randrange(2)]
        read = Read(Path(q.path), self.clock.wall())
        require_equal(read, format_2.reported(q, self.lanes))
        shard_of(q).run(bound(require_memory, read))

    def one_only(self, who: int) -> None:
        """Release a lease of two messages, and ack the first one under another lease, so that it alone is deleted."""
        key = self.random.choice(SLOW)
        q, lane = self.queues[who], self.lanes[key]
        if lane.waiting:
            return
        self.send(who, [key])
        while len(lane.waiting) < 2:
            self.pass_by(q, who)
            self.send(who, [key])
        q.receive(len(lane.waiting), keys=[key])[0].lease.release()
        (d,) = q.receive(1, keys=[key])
        d.ack()
        del lane.waiting[d.seq]
        self.acked = []
        for _ in range(5):
            self.pass_by(q, who)
            self.look()

    def pass_by(self, q: Queue, who: int) -> None:
        """Pass messages of other keys through the queue."""
        self.send(who, FAST)
        some = q.receive(100, keys=FAST)
        q.ack_many(some)
        self.acked = []  # its lanes may have later resolutions now
        for d in some:
            del self.lanes[str(d.key)].waiting[d.seq]


@pytest.mark.parametrize("seed", range(SEED, SEED + WALKS))
@pytest.mark.parametrize("earlier", [False, True], ids=["", "earlier"])
def test_lanes_that_stay_hot_while_logs_are_cut(place: Path, monkeypatch: pytest.MonkeyPatch, seed: int, earlier: bool) -> None:
    """Earlier versions named the first message of a lease where it was extended or released. It may have been deleted since."""
    if earlier:
        monkeypatch.setattr(HotLane, "mark", property(lambda lane: lane.rows[0][ID]))
    window = random.Random(seed).choice((12, 20, 30))
    with narrow(window, 2, 2, events=8 * window), closing(FoldWalk(place / "q", seed)) as made:
        made.run_alone()
        assert cut_to(made.queues[0]) > 0, "nothing was cut"
