"""Directories made by the last version of format 2: their contents are as recorded, and are delivered once, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import LeaseLost, Queue, UnknownMessage
from strictq._keys import decode_key
from strictq.handle import Handle
from strictq.testing import FakeClock
from tests.support import format_2
from tests.support.format_2 import Facts, key_of, label, shown
from tests.support.handouts import holder, read
from tests.support.powercut_campaign import fast_directory

KINDS = format_2.kinds()
STEP_SECONDS = 60.0
STEPS_MAX = 200
BYTES_MAX = 420_000


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with fast_directory(tmp_path) as directory:
        yield directory


def opened(kind: str, place: Path, **options: Any) -> tuple[Queue, Facts, FakeClock]:
    """Return a queue that is opened as its maker's process left it, the facts about it, and its clock."""
    facts = format_2.facts_of(kind)
    clock = format_2.clock_of(facts)
    return strictq.open(format_2.unpacked(kind, place / "made"), clock=clock, **options), facts, clock


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_reports_what_is_known(kind: str, place: Path) -> None:
    q, facts, _ = opened(kind, place, read_only=True)
    with q:
        report = format_2.reported(q, map(key_of, facts["tails"]), facts["keyless"])
        assert json.loads(json.dumps(report)) == facts["report"]
        for key, tail in facts["tails"].items():
            if tail:
                q.status(key_of(key), tail)
            with pytest.raises(UnknownMessage):
                q.status(key_of(key), tail + 1)
        for sql, rows in facts.get("app", ()):
            assert [list(row) for row in q.query(sql)] == rows
        assert q.check() == []


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_out_once_in_order(kind: str, place: Path) -> None:
    q, facts, clock = opened(kind, place)
    with q:
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
        self.hints = facts.get("hints", {})
        self.lanes: dict[str, list[Any]] = {
            key: [m for m in lane.get("messages", ()) if (key, m["seq"]) not in acked] for key, lane in report["lanes"].items()
        }
        self.arrives = dict(facts.get("arrives", {}))
        for key, seqs in facts.get("returns", {}).items():
            dead = {d["seq"]: d for d in report["dead"] if d.get("key") == key}
            self.lanes[key] = [dead[seq] for seq in seqs] + self.lanes[key]
        # Handles of all that are in flight are known.
        self.keyless = {place: m for place, m in report["keyless"].items() if m.get("state") != "in_flight"}

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
            hints = self.hints.get(label(d.key), {}).get(str(d.seq), [None, None, None])
            assert [d.size_hint, d.prepare_seconds, d.process_seconds] == hints
        assert (d.id, shown(d.body), d.headers) == (m["id"], m["body"], m.get("headers", {}))

    def require_over(self, q: Queue) -> None:
        """Require all to have come out, except for what has expired."""
        left = [m for lane in self.lanes.values() for m in lane] + list(self.keyless.values())
        assert [m for m in left if m.get("expires", self.now) >= self.now] == []
        assert not any(self.arrives.values())
        assert q.stats().depth == 0


def test_the_directories_are_small() -> None:
    assert len(KINDS) > 20
    assert sum(file.stat().st_size for file in format_2.PLACE.iterdir()) < BYTES_MAX


def test_labels_of_keys() -> None:
    for key in ("a", "é", "1", 1, -1, b"1", b"\x00\xff"):
        assert key_of(label(key)) == key
    assert decode_key(b"i1") == 1
