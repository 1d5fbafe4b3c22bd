"""The lanes that wait in a worker: tenants take turns, and a quiet one does not wait behind a flood."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import strictq
from strictq import Job, Message, QueueConfig
from strictq._values.tenants import TenantLimit, TenantRules
from strictq.worker.fair_lanes import FairLanes


def lane(key: object) -> Any:
    return SimpleNamespace(lease=SimpleNamespace(key=key))


def waiting(*keys: object, limits: tuple[TenantLimit, ...] = ()) -> FairLanes:
    lanes = FairLanes(TenantRules("/", limits))
    for key in keys:
        lanes.append(lane(key))
    return lanes


def taken(lanes: FairLanes, n: int | None = None) -> list[Any]:
    return [lanes.popleft().lease.key for _ in range(len(lanes) if n is None else n)]


def test_tenants_take_turns_and_keep_their_own_order() -> None:
    lanes = waiting("a/1", "a/2", "a/3", "b/1", b"a/4", 7, "b/2")
    assert [one.lease.key for one in lanes] == ["a/1", "b/1", 7, "a/2", "b/2", "a/3", b"a/4"]
    assert lanes[0].lease.key == "a/1"
    assert taken(lanes) == ["a/1", "b/1", 7, "a/2", "b/2", "a/3", b"a/4"]
    assert len(lanes) == 0


def test_one_that_comes_late_is_served_next_and_saves_up_nothing() -> None:
    lanes = waiting(*(f"loud/{n}" for n in range(10)))
    assert taken(lanes, 5) == [f"loud/{n}" for n in range(5)]
    for n in range(3):
        lanes.append(lane(f"quiet/{n}"))
    assert taken(lanes, 6) == ["quiet/0", "loud/5", "quiet/1", "loud/6", "quiet/2", "loud/7"]


def test_weights_count() -> None:
    keys = [f"{name}/{n}" for n in range(6) for name in ("a", "b")]
    found = taken(waiting(*keys, limits=(TenantLimit("a", weight=3.0),)), 8)
    assert sum(key.startswith("a") for key in found) == 6


def test_what_comes_back_is_first_again() -> None:
    lanes = waiting("a/1", "b/1")
    first = lanes.popleft()
    lanes.appendleft(first)
    assert first in lanes
    assert lanes.popleft() is first
    second = lanes[0]
    lanes.remove(second)
    assert len(lanes) == 0
    with pytest.raises(ValueError, match="does not wait"):
        lanes.remove(second)


def test_a_worker_serves_a_quiet_tenant_beside_a_flood(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", config=QueueConfig(tenant_separator="/", process_seconds=0.001)) as q:
        q.send_many([Message(b"", key=f"loud/{n}") for n in range(300)])
        order: list[object] = []
        sent = threading.Event()

        def process(job: Job) -> None:
            order.append(job.key)
            if len(order) == 20:
                q.send(b"", key="quiet/1")
                sent.set()

        strictq.Worker(q, process, concurrency=1).run(drain=True)
        assert sent.is_set()
        assert len(order) == 301
        assert order.index("quiet/1") < 250, "it did not wait for all that was leased before it"
