"""What tenants take of their rates over all processes, and what of their turns memory keeps."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import apsw
import pytest

import strictq
from strictq import Message
from strictq._store.disk.rate_file import Rate, RateFile, Wanted
from strictq._store.lane.live_lane import LiveLane
from strictq._store.lane.turns import TenantTurns
from strictq._store.shard.leases import Request
from strictq._store.whole.receive import receive
from strictq._values.tenants import TenantRules
from strictq.testing import FakeClock
from tests.support.queues import Opener


def test_a_claim_takes_of_a_rate_once_and_returns_the_rest(
    disk: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = disk(tenant_separator="/")
    q.limit("a", receive_rate=1.0, burst=50)
    q.send_many([Message(b"", key=f"{name}/{n}") for n in range(20) for name in "ab"])
    q.limit("b", receive_rate=1.0, burst=50)
    wanted: list[list[int]] = []
    take = RateFile.take

    def taken(self: RateFile, some: list[Wanted]) -> list[tuple[int, int]]:
        wanted.append([n for _, _, n in some])
        return take(self, some)

    monkeypatch.setattr(RateFile, "take", taken)
    assert len(q.receive(20)) == 20  # it leaves some, so tenants take turns
    assert len(q.receive(20)) == 20
    assert wanted == [[10, 10], [10, 10]]
    q.send_many([Message(b"", key=f"{name}/more {n}") for n in range(40) for name in "ab"])
    assert len(q.receive(100)) == 60


def test_a_claim_leases_no_more_than_other_shards_left_of_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another shard takes of the rate between the look of a plan and its end."""
    with strictq.open(tmp_path / "q", config=strictq.QueueConfig(tenant_separator="/")) as q:
        q.limit("*", receive_rate=0.001, burst=4)
        q.send_many([Message(b"", key=f"{name}/{n}") for n in range(3) for name in "aabc"])
        assert len(q.receive(1)) == 1  # tenants take turns from now on
        take, rates = RateFile.take, q._storage._store.rates

        def late(self: RateFile, wanted: list[Wanted]) -> list[tuple[int, int]]:
            monkeypatch.undo()
            take(rates, [(b"receive a", Rate(0.001, 4), 2)])
            return take(self, wanted)

        monkeypatch.setattr(RateFile, "take", late)
        assert sorted(str(d.key)[0] for d in q.receive(100)) == ["a", *"bbb", *"ccc"]
        assert not q.receive(100)


def test_messages_too_large_for_a_claim_take_nothing_of_the_rate(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", config=strictq.QueueConfig(tenant_separator="/")) as q:
        q.limit("a", receive_rate=0.01, burst=10)
        q.send_many([Message(b"x" * 1000, key=f"a/{n}") for n in range(20)])
        store = q._storage._store
        for _ in range(10):
            leased: list[Any] = []
            receive(store, Request(10, None, None, "c", bytes_max=1500), leased, wait_for_busy=True)
            assert [one.messages for one in leased] == [1]
        assert not q.receive(10)


def test_a_process_that_only_sends_keeps_no_list_of_what_others_received() -> None:
    turns = TenantTurns(TenantRules("/", ()))
    for place in range(1, 10_001):
        turns.list(place, LiveLane(b"sa/%d" % (place % 100), 1))
    turns.drop_stale({})
    assert not sum(one.listed for one in turns.tenants.values())


def test_a_stopped_process_with_the_lock_of_the_rates_stops_nobody(tmp_path: Path) -> None:
    file = RateFile(tmp_path / "rates", FakeClock())
    file.take([(b"a", Rate(1.0, 10), 1)])
    fd = os.open(tmp_path / "rates", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        assert file.take([(b"a", Rate(1.0, 10), 20)])[0][0] == 9
    finally:
        os.close(fd)
        file.close()


def test_a_full_disk_and_an_interrupt_leave_the_rates_unlocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RateFile(tmp_path / "rates", FakeClock())

    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert file.take([(b"a", Rate(1.0, 10), 20)])[0][0] == 10
    with pytest.raises(KeyboardInterrupt), file._locked():
        raise KeyboardInterrupt
    fd = os.open(tmp_path / "rates", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    file.close()


@pytest.mark.parametrize("limit", [{"paused": True}, {"receive_rate": 0.001, "burst": 1}, {"concurrency": 1}])
def test_the_lanes_of_a_throttled_tenant_cost_no_transaction(tmp_path: Path, limit: dict[str, Any]) -> None:
    with strictq.open(tmp_path / "q", config=strictq.QueueConfig(tenant_separator="/")) as q:
        q.limit("a", **limit)
        q.send_many([Message(b"", key=f"a/{n}") for n in range(20)])
        q.receive(1)
        q.receive(1)
        begun: list[str] = []
        db = q._storage._store.shards[0].lanes.db
        db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: begun.append(event["sql"]))
        for _ in range(5):
            assert not q.receive(1)
        db.trace_v2(0, None)
        assert not [sql for sql in begun if sql.startswith(("BEGIN IMMEDIATE", "INSERT"))]
        assert q._storage.is_throttled == ("paused" not in limit)
