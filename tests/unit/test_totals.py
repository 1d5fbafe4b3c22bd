"""Totals of what seldom happens: they survive restarts, and count what is done, not what was tried."""

from __future__ import annotations

from pathlib import Path

import pytest

import strictq
from strictq import Queue, QueueConfig
from tests.support.queues import AT_ONCE

NAMES = ("dead_letters", "rejected", "redriven", "expired", "dropped", "purged", "dead")


def totals(q: Queue) -> dict[str, int]:
    found = q.stats()
    assert all(getattr(found, name) == sum(getattr(s, name) for s in found.shards) for name in NAMES)
    return {name: getattr(found, name) for name in NAMES if getattr(found, name)}


def test_they_survive_restarts(tmp_path: Path) -> None:
    config = QueueConfig(max_attempts=1, **AT_ONCE)
    with strictq.open(tmp_path / "q", shards=2, durability="process", config=config) as q:
        assert totals(q) == {}
        for n in range(6):
            q.send(b"", key=n)
        for d in q.receive(6, per_key=1):
            d.reject("no") if d.key in (0, 1) else d.nack() if d.key == 2 else d.ack()
        assert totals(q) == {"dead_letters": 3, "rejected": 2, "dead": 3}
        assert q.redrive(0) == 1
    with strictq.open(tmp_path / "q") as q:
        assert totals(q) == {"dead_letters": 3, "rejected": 2, "redriven": 1, "dead": 2}
        q.receive(1)[0].reject("again")
        assert q.purge(dead=True) == 3
        assert totals(q) == {"dead_letters": 4, "rejected": 3, "redriven": 1, "purged": 3}
    with strictq.open(tmp_path / "q", read_only=True) as q:
        assert totals(q) == {"dead_letters": 4, "rejected": 3, "redriven": 1, "purged": 3}


def test_what_did_not_commit_is_not_counted(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.send(b"", key="k")
        (d,) = q.receive(1)
        d.reject("no")
        with pytest.raises(strictq.LeaseLost):
            q.delivery(d.handle).nack()
        with pytest.raises(strictq.UnknownMessage):
            q.reject("k", 7, "never sent")
        assert totals(q) == {"dead_letters": 1, "rejected": 1, "dead": 1}


def test_a_redriven_message_is_unresolved_at_once_though_a_lease_holds_its_lane(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", durability="process") as q:
        for _ in range(2):
            q.send(b"", key="k")
        first, second = q.receive(2)
        first.reject("no")
        assert q.redrive("k") == 1
        for _ in range(2):
            assert totals(q) == {"dead_letters": 1, "rejected": 1, "redriven": 1}
            assert (q.stats().ready, q.stats().in_flight, q.dead_letters()) == (1, 1, [])
            assert [(m.seq, m.state, m.attempts) for m in q.peek("k")] == [(1, "ready", 0), (2, "in_flight", 0)]
            assert q.redrive("k") == 0
        assert q.receive() == []
        second.ack()
        assert totals(q) == {"dead_letters": 1, "rejected": 1, "redriven": 1}
        assert [d.seq for d in q.receive()] == [1]
