"""Tenants of a queue that was restored, promoted or salvaged: their order, depths and limits are those of the original."""

from __future__ import annotations

from pathlib import Path

import pytest

import strictq
from strictq import Message, Queue, QueueFull, Replica
from tests.support.folds import fold
from tests.support.replicas import FAST, is_shipped, ship_to, until_level
from tests.support.running import until


@pytest.fixture
def tenants(q: Queue) -> Queue:
    """A queue with tenants whose keys are at rest, in memory and leased."""
    q.configure(tenant_separator="/")
    q.limit("loud", max_depth=30)
    q.limit("quiet", concurrency=1)
    q.send_many([Message(b"", key=f"loud/{n}") for n in range(20)])
    fold(q)
    q.send_many([Message(b"", key=f"quiet/{n}") for n in range(3)])
    q.receive(1, keys=["loud/0"])[0].ack()
    return q


def require_same(path: Path) -> None:
    """Check that the queue at a path has the tenants of the fixture."""
    with strictq.open(path) as q:
        assert q.check() == []
        assert {one.tenant: one.depth for one in q.stats().tenants} == {"loud": 19, "quiet": 3}
        assert {one.tenant: one.depth for one in q.tenants()} == {"loud": 19, "quiet": 3}
        for n in range(11):
            q.send(b"", key=f"loud/{n}")
        with pytest.raises(QueueFull, match="tenant 'loud'"):
            q.send(b"", key="loud/1")
        with q.receive(10, keys=["quiet/0"]):
            keys = {str(d.key) for _ in range(20) for d in q.receive(3, per_key=1)}
        assert len(keys) == 20, "the loud ones' keys; the quiet one has one in flight"
        assert not any(key.startswith("quiet") for key in keys)


def test_of_a_restored_queue(tenants: Queue, target: Path, tmp_path: Path) -> None:
    tenants.configure_replication(target, interval_seconds=FAST)
    until(lambda: is_shipped(tenants))
    tenants.close()
    strictq.restore(target, tmp_path / "restored", alone=True)
    require_same(tmp_path / "restored")


def test_of_a_promoted_replica(tenants: Queue, replica: Replica, home: Path, token: Path) -> None:
    ship_to(tenants, replica.address, token)
    until_level(tenants, home)
    done = strictq.promote(home, force=True)
    require_same(Path(done.path))


def test_of_a_salvaged_queue(tenants: Queue, tmp_path: Path) -> None:
    tenants.close()
    strictq.salvage(tenants.path, tmp_path / "salvaged")
    require_same(tmp_path / "salvaged")
