"""The reader of format 2 reads, of recorded directories, what the public API of the version that made them reported."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import StoreCorrupt
from strictq._sql import MIGRATING, select_all
from strictq._store.commit.tx import NEVER
from strictq._store.migrating import reader
from strictq._store.migrating.reader import OldShard
from strictq._store.migrating.values import OldFailure, OldLane, OldLease, OldMessage
from strictq._values.keys import Key, decode_key, encode_key, is_keyless
from strictq.testing import FakeClock
from tests.support import format_1, format_2
from tests.support.format_2 import Facts, brief, key_of, label, shown
from tests.support.internals import tamper
from tests.support.queues import shard_file

NO_FAILURE = OldFailure(0, 0, None, None, None, None)
TOTALS = (
    "sends", "receives", "claims", "acks", "retries", "redeliveries", "expired", "dropped", "purged", "dead", "lanes",
)  # fmt: skip


# ---- what the reader reads, in the form of the API's reports


def kept(shard: OldShard, table: str) -> list[Any]:
    """Return the rows of a table that a migration does not change."""
    return shard._db.execute(select_all(table)).fetchall()


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
        self.report["history"].append([_record(*row) for row in kept(shard, "history")])
        self._add_consumers(shard, lanes)
        self._count(shard, lanes)

    def _add_consumers(self, shard: OldShard, lanes: list[OldLane]) -> None:
        for name, _, last, acked, _ in kept(shard, "consumer"):
            known = self._consumers.setdefault(name, {"name": name, "last": 0, "acked": 0, "in_flight": 0})
            known |= {"last": max(known["last"], last), "acked": max(known["acked"], acked)}
        for name, n, state, token, *_ in kept(shard, "handout"):
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
        counts["outbox"] = len(kept(shard, "outbox"))
        counts["recorded_batch_bytes"] = sum(row[5] for row in kept(shard, "handout"))
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
    for key, by_seq in (facts.get("hints") or {}).items():
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
    strictq.migrate(path, clock=format_2.clock_of(facts))
    with strictq.open(path, clock=format_2.clock_of(facts)) as q:
        found: dict[int, list[Key | None]] = {number: [] for number in expected}
        for d in q.receive(1_000, per_key=1):
            found[d.shard].append(d.key)
    gone = {None, "hot-gone", "cold-gone"}  # its messages have expired, which a claim finds out
    assert found == {number: [key for key in keys if key not in gone] for number, keys in expected.items()}


def test_leases_that_earlier_versions_released_by_a_deleted_message(place: Path) -> None:
    clock = FakeClock()
    path = format_1.unpacked("lost_releases", place / "q", format_2.PLACE)
    read = Read(path, clock.wall())
    assert {key: lane.lease is not None for key, lane in read.lanes.items() if lane.ids} == {b"sagain": True, b"sonce": False}
    strictq.migrate(path, clock=clock)
    with strictq.open(path, clock=clock) as q:
        assert [q.explain(key).state for key in ("again", "once")] == ["in_flight", "ready"]
        assert q.check() == []


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
    file = shard_file(format_2.unpacked("few", place / "made"))
    tamper(file, damage)
    with pytest.raises(StoreCorrupt, match=match), closing(OldShard(file, 0)) as shard:
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
