"""Directories made by the last version of format 2 are migrated to the next format: nothing is lost, doubled or reordered."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import LeaseLost, Queue
from strictq._store.disk import formats as migrate
from strictq._store.lane import live_lane
from strictq._store.migrating import moving, reader
from strictq._values.keys import decode_key
from strictq.handle import Handle
from strictq.testing import FakeClock
from tests.support import format_1, format_2
from tests.support.format_2 import Facts, key_of, label, shown
from tests.support.recorded_batches import holder, read

KINDS = format_2.kinds()
STEP_SECONDS = 60.0
STEPS_MAX = 200
BYTES_MAX = 450_000


def migrated(kind: str, place: Path, **options: Any) -> tuple[Queue, Facts, FakeClock]:
    """Return a queue of the next format, the facts about it, and its clock."""
    facts = format_2.facts_of(kind)
    clock = format_2.clock_of(facts)
    path = format_2.unpacked(kind, place / "made")
    found = strictq.migrate(path, clock=clock)
    assert (found.before, found.format, found.done) == (2, migrate.FORMAT, True)
    return strictq.open(path, clock=clock, **options), facts, clock


def settle(q: Queue, facts: Facts) -> None:
    """Use the handles of the process that made the queue."""

    def handles(name: str) -> Iterator[strictq.DeliveryRef]:
        for key, token, seq in facts.get(name, ()):
            yield q.delivery(str(Handle(q.queue_id, token, seq, key.encode())))

    for ref in handles("lost"):
        with pytest.raises(LeaseLost):
            ref.ack()
    for name in ("settled", "live"):
        for ref in handles(name):
            ref.ack()


class Waiting:
    """What must still come out of a queue, by key; what has no key, by shard and id."""

    def __init__(self, facts: Facts, clock: FakeClock) -> None:
        report = facts["report"]
        acked = {(key, seq) for key, _, seq in facts.get("live", ())}
        self.clock = clock
        self.hints: dict[str, Any] | None = facts.get("hints", {})
        self.lanes: dict[str, list[Any]] = {
            key: [m for m in lane.get("messages", ()) if (key, m["seq"]) not in acked] for key, lane in report["lanes"].items()
        }
        self.arrives = dict(facts.get("arrives", {}))
        for key, seqs in facts.get("returns", {}).items():
            dead = {d["seq"]: d for d in report["dead"] if d.get("key") == key}
            self.lanes[key] = [dead[seq] for seq in seqs] + self.lanes[key]
        # Handles of all that are in flight are known, or of none.
        known = bool(facts.get("live"))
        self.keyless = {place: m for place, m in report["keyless"].items() if not known or m.get("state") != "in_flight"}

    @property
    def now(self) -> int:
        return format_2.at(self.clock.now) or 0

    def forget_batches(self, q: Queue, name: str, batches: dict[str, list[list[Any]]]) -> None:
        """Compare the batches of a named consumer, and ack them."""
        with closing(holder(q, name)) as h:
            for n, messages in batches.items():
                assert [list(found) for found in read(q, h, int(n))] == messages
                for key, seq, _ in messages:
                    self.lanes[key] = [m for m in self.lanes[key] if m["seq"] != seq]
            h.ack(h.last)

    def drain(self, q: Queue) -> None:
        """Receive and ack all, while time passes."""
        for _ in range(STEPS_MAX):
            while some := q.receive(100):
                for d in some:
                    self.take(d)
                    d.ack()
            if not q.stats().depth:
                return
            self.clock.advance(STEP_SECONDS)
        pytest.fail("it does not run dry")

    def take(self, d: strictq.Delivery) -> None:
        """Require a delivery to be the next one of its lane."""
        if d.key is None:
            m = self.keyless.pop(f"{d.shard}/{d.id}")
        else:
            lane = self.lanes[label(d.key)]
            if not lane:
                self.arrives[label(d.key)] -= 1
                assert self.arrives[label(d.key)] >= 0
                return
            while (m := lane.pop(0))["seq"] != d.seq:
                assert m["expires"] <= self.now, (m, d)
            if self.hints is not None:
                hints = self.hints.get(label(d.key), {}).get(str(d.seq), [None, None, None])
                assert [d.size_hint, d.prepare_seconds, d.process_seconds] == hints
        assert (d.id, shown(d.body), d.headers) == (m["id"], m["body"], m.get("headers", {}))

    def require_over(self, q: Queue) -> None:
        """Require all to have come out, except for what has expired."""
        left = [m for lane in self.lanes.values() for m in lane] + list(self.keyless.values())
        assert [m for m in left if m.get("expires", self.now) >= self.now] == []
        assert not any(self.arrives.values())
        assert q.stats().depth == 0


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_out_once_in_order(kind: str, place: Path) -> None:
    q, facts, clock = migrated(kind, place)
    with q:
        assert q.check() == []
        for key, dedup_id, seq, i in facts.get("dedup", ()):
            receipt = q.send(b"again", None if key is None else key_of(key), dedup_id=dedup_id)
            assert (receipt.duplicate, receipt.seq, receipt.id) == (True, seq, i)
        settle(q, facts)
        waiting = Waiting(facts, clock)
        for name, batches in facts.get("batches", {}).items():
            waiting.forget_batches(q, name, batches)
        for key, lane in facts["report"]["lanes"].items():
            if any(m.get("state") == "held" for m in lane.get("messages", ())) or lane.get("state") == "held":
                assert q.release(key_of(key))
        q.release(None)
        waiting.drain(q)
        waiting.require_over(q)
        assert q.check() == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_is_reported_of_it(kind: str, place: Path) -> None:
    q, facts, clock = migrated(kind, place, read_only=True)
    with q:
        report = json.loads(json.dumps(format_2.reported(q, map(key_of, facts["tails"]), facts["keyless"])))
        for have, known in zip(report["counts"], facts["report"]["counts"], strict=True):
            assert have.pop("lanes", 0) <= known.pop("lanes", 0), "a lane to which nothing was sent does not count"
        if facts.get("returns"):
            require_returned(report, facts)
        for found in (report, facts["report"]):
            found["dead"].sort(key=lambda d: (d.get("key", ""), d["seq"]))  # format 2 lists them by lane
        assert report == facts["report"]
        for sql, rows in facts.get("app", ()):
            assert [list(row) for row in q.query(sql)] == rows
    with strictq.open(q.path, clock=clock) as q:
        for key, tail in facts["tails"].items():
            assert q.send(b"new", key_of(key)).seq >= tail + 1, "it is higher if a message of the outbox came"


def require_returned(report: Facts, facts: Facts) -> None:
    """Require dead letters whose redrive waits for a lease to be unresolved, and count them as format 2 does."""
    known = facts["report"]
    for key, seqs in facts["returns"].items():
        lane = report["lanes"][key]
        back = [m for m in lane["messages"] if m["seq"] in seqs]
        assert len(back) == len(seqs)
        del report["lanes"][key], known["lanes"][key]
    report["counts"] = known["counts"] = report["dead"] = known["dead"] = []


# ---- interrupted, and large


def test_an_interrupted_move_begins_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = format_2.facts_of("backlog_shards")
    path = format_2.unpacked("backlog_shards", place / "made")
    clock = format_2.clock_of(facts)
    monkeypatch.setattr(reader, "PART_MESSAGES", 20)
    real, calls = moving._Move._part, []

    stop = 0

    @contextmanager
    def failing(self: Any) -> Iterator[None]:
        calls.append(1)
        with real(self):
            yield
            if len(calls) == stop:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(moving._Move, "_part", failing)
        for n in (1, 2, 5, 9, 30):
            stop = n
            calls.clear()
            with pytest.raises(KeyboardInterrupt):
                strictq.migrate(path, clock=clock)
            with strictq.open(path, clock=clock) as q:  # queue.db has the next format already
                assert any("is older" in (shard.quarantined or "") for shard in q.stats().shards)
    assert strictq.migrate(path, clock=clock).done
    with strictq.open(path, clock=clock) as q:
        assert q.check() == []
        waiting = Waiting(facts, clock)
        waiting.drain(q)
        waiting.require_over(q)


def test_its_progress_is_reported_message_by_message(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = format_2.facts_of("backlog_shards")
    path = format_2.unpacked("backlog_shards", place / "made")
    monkeypatch.setattr(reader, "PART_MESSAGES", 20)
    seen: list[tuple[str, int, int]] = []
    strictq.migrate(
        path, clock=format_2.clock_of(facts), on_progress=lambda *at: seen.append(("files", *at)),
        on_messages=lambda *at: seen.append(("messages", *at)),
    )  # fmt: skip
    files = [one[1:] for one in seen if one[0] == "files"]
    assert files == [(n, len(files)) for n in range(1, len(files) + 1)]
    messages = [one[1:] for one in seen if one[0] == "messages"]
    assert len(messages) > len(files)
    assert all(0 < done <= total for done, total in messages)
    with strictq.open(path, clock=format_2.clock_of(facts)) as q:
        assert sum(total for done, total in messages if done == total) == q.stats().depth


def test_a_dry_run_says_how_much_room_it_needs(place: Path) -> None:
    path = format_2.unpacked("backlog_shards", place / "made")
    before = {file.name: file.read_bytes() for file in path.glob("*.db")}
    found = strictq.migrate(path, dry_run=True)
    assert (found.before, found.format, found.done) == (2, migrate.FORMAT, False)
    assert found.needs_bytes > sum(map(len, before.values()))
    assert {file.name: file.read_bytes() for file in path.glob("*.db")} == before


def test_format_1_is_migrated_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    path = format_1.unpacked("busy", tmp_path / "q")
    found = strictq.migrate(path, clock=clock)
    assert (found.before, found.format, found.done) == (1, migrate.FORMAT, True)
    with strictq.open(path, clock=clock) as q:
        assert q.check() == []
        format_1.require_busy(q)


def test_messages_far_apart_are_delivered_in_order(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane whose old dead letters return has a gap that its row does not list position by position."""
    monkeypatch.setattr(live_lane, "HOLES_MAX", 10)
    q, facts, clock = migrated("far_apart", place)
    with q:
        assert q.check() == []
        assert q.status("retried", 1).attempts == 1
        first, second, third = (
            q.delivery(str(Handle(q.queue_id, token, seq, key.encode()))) for key, token, seq in facts["live"]
        )
        first.ack()
        third.ack()
        with pytest.raises(LeaseLost):
            third.nack()
        second.ack()
        assert q.receive(1, keys=["retried"]) == []
        clock.advance(60.0)
        rest = {"free": [1, 2, *range(93, 101)], "leased": [*range(95, 101)], "behind": [1, 2, 93, 94, *range(96, 101)]}
        for key, seqs in rest.items():
            found = []
            while some := q.receive(100, keys=[key]):
                found += [d.seq for d in some]
                q.ack_many(some)
            assert found == seqs, key
        (d,) = q.receive(1, keys=["retried"])
        assert (d.seq, d.attempt) == (1, 2)
        assert q.check() == []


def test_the_directories_are_small() -> None:
    assert len(KINDS) > 20
    assert sum(file.stat().st_size for file in format_2.PLACE.iterdir()) < BYTES_MAX


def test_labels_of_keys() -> None:
    for key in ("a", "é", "1", 1, -1, b"1", b"\x00\xff"):
        assert key_of(label(key)) == key
    assert decode_key(b"i1") == 1


def test_history_from_before_an_upgrade_is_restored_and_then_migrated(place: Path) -> None:
    facts = format_2.facts_of("replicated")
    clock = format_2.clock_of(facts)
    path, target = format_2.unpacked("replicated", place / "made"), place / "made" / "target"
    strictq.restore(target, place / "restored", alone=True)
    with pytest.raises(strictq.SchemaMismatch, match="its format 2 is older"):
        strictq.open(place / "restored", clock=clock)
    with strictq.open(path, clock=clock, migrate=True) as q:  # and ships a new base
        depth = q.stats().depth
        while (found := q.stats().replication) is None or found.lag_bytes:
            clock.advance(0.5)
            time.sleep(0.01)
    strictq.restore(target, place / "restored later", alone=True)
    for name in ("restored", "restored later"):
        with strictq.open(place / name, clock=clock, migrate=name == "restored") as q:
            assert q.check() == []
            assert q.stats().depth == depth > 0
            waiting = Waiting(format_2.facts_of("replicated") | {"live": ()}, clock)  # its leases are over
            waiting.drain(q)
            waiting.require_over(q)
