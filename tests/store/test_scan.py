"""Read pending messages without leasing them while consumers work: none is read twice, and none that stays is missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from strictq import Message, Queue
from strictq._keys import decode_key
from strictq._store.bulk import scan
from strictq._store.lanes.leases import BODY, ID, KEY, SEQ
from tests.support.internals import shard_of
from tests.support.queues import Opener, fill

pytestmark = pytest.mark.usefixtures("cold")  # they read the tables


def read(q: Queue, plan: scan.Plan, between: Callable[[], object] = lambda: None, *, dead: bool = False) -> Iterator[Any]:
    """Yield every row of a plan. Calls `between` before each step."""
    between()
    for task in plan.tasks:
        for segment in task:
            for rows in (scan.dead if dead else scan.pending)(shard_of(q), plan, segment):
                yield from rows
                between()


def bodies(rows: Iterator[Any]) -> list[str]:
    return [row[BODY].decode() for row in rows]


@pytest.fixture
def q(disk: Opener) -> Queue:
    return disk()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "STEP", 3)


@pytest.mark.parametrize("per_task", [1, 4, 7, 1000])
def test_everything_once_in_lane_order_whatever_the_tasks(q: Queue, per_task: int) -> None:
    for key in ("a", "b", "c"):
        fill(q, key, 5)
    q.send(b"x" * 3000, "big")
    q.send(b"later", "late", delay=100.0)
    q.receive(2)
    plan = scan.plan_shard(shard_of(q), dead=False, per_task=per_task)
    found = [(decode_key(row[KEY]), row[SEQ]) for row in read(q, plan)]
    assert found == [(k, n) for k in "abc" for n in range(1, 6)] + [("big", 1), ("late", 1)]
    assert len(plan.tasks) <= max(1, 17 // per_task + 1)


@pytest.mark.parametrize("dead", [False, True])
def test_the_messages_of_some_keys(q: Queue, dead: bool) -> None:
    for key in ("a", "b", "c", "d"):
        fill(q, key, 5)
        for n in range(1, 6 if dead else 1):
            q.reject(key, n, "no")
    found = {}
    for keys in ([b"sd", b"sa", b"snobody"], [b"snobody"], []):
        (part, *more) = scan.ranges(shard_of(q), dead=dead, per_task=2, keys=keys) or [None]
        assert not more
        plan, segments = (None, []) if part is None else scan.planned(part)
        found[len(keys)] = [
            (decode_key(row[KEY]), row[SEQ])
            for segment in segments
            for rows in (scan.dead if dead else scan.pending)(shard_of(q), plan, segment)
            for row in rows
        ]
    assert found == {3: [(k, n) for k in "ad" for n in range(1, 6)], 1: [], 0: []}


def test_nothing_is_no_task(q: Queue) -> None:
    assert scan.plan_shard(shard_of(q), dead=False, per_task=10).tasks == ()
    fill(q, "a", 1)
    assert scan.plan_shard(shard_of(q), dead=True, per_task=10).tasks == ()


def test_many_lanes_are_taken_to_be_alike(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WALK_LANES", 10)
    q.send_many([Message(b"%d" % n, key=f"k{n}") for n in range(50)])
    plan = scan.plan_shard(shard_of(q), dead=False, per_task=20)
    assert [(s.after, s.last) for (s,) in plan.tasks] == [(0, 25), (25, 50)]
    assert sorted(map(int, bodies(read(q, plan)))) == list(range(50))


@pytest.mark.parametrize("walked", [0, 1000])
def test_a_few_messages_more_than_a_task_has_are_no_task_of_their_own(
    q: Queue, walked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "WALK_LANES", walked)
    q.send_many([Message(b"%d" % n, key=f"k{n}") for n in range(21)])
    assert [len(scan.plan_shard(shard_of(q), dead=False, per_task=n).tasks) for n in (21, 20, 15, 14, 10, 5, 1)] == [
        1, 1, 1, 2, 2, 4, 21,
    ]  # fmt: skip


def test_newer_messages_are_left_out(q: Queue) -> None:
    fill(q, "a", 4)
    plan = scan.plan_shard(shard_of(q), dead=False, per_task=100)

    def send() -> None:
        q.send(b"new", "a")
        q.send(b"new", "b")

    assert bodies(read(q, plan, send)) == ["1", "2", "3", "4"]


def test_acked_messages_drop_out_and_the_others_stay(q: Queue) -> None:
    for key in ("a", "b", "c", "d"):
        fill(q, key, 4)
    plan = scan.plan_shard(shard_of(q), dead=False, per_task=100)
    held = {d.key: d for d in q.receive(4, per_key=1)}

    def ack() -> None:
        if held:
            held.pop(max(held)).ack()

    found = [(decode_key(row[KEY]), row[SEQ]) for row in read(q, plan, ack)]
    assert len(set(found)) == len(found)
    assert {(k, n) for k in "abcd" for n in (2, 3, 4)} <= set(found)


def test_retried_messages_are_read_once(q: Queue) -> None:
    fill(q, "a", 10)
    plan = scan.plan_shard(shard_of(q), dead=False, per_task=100)

    def nack() -> None:
        for d in q.receive(1):
            d.nack(delay=0.0)

    assert bodies(read(q, plan, nack)) == [str(n) for n in range(1, 11)]


def test_keyless_messages_that_are_put_aside_are_read_once(disk: Opener) -> None:
    q = disk(keyless="round_robin", keyless_lanes=1, max_attempts=None)
    for n in range(12):
        q.send(b"%d" % n)
    q.send(b"aside before", delay=50.0)
    q.send(b"keyed", "k")
    (d,) = q.receive(1)
    d.nack(delay=50.0)  # parked before the plan
    plan = scan.plan_shard(shard_of(q), dead=False, per_task=5)

    def put_aside() -> None:
        for d in q.receive(2, per_key=2):
            if d.key is None:
                d.nack(delay=50.0)
                return

    rows = list(read(q, plan, put_aside))
    assert sorted(bodies(iter(rows))) == sorted([str(n) for n in range(12)] + ["aside before", "keyed"])
    assert len({row[ID] for row in rows}) == len(rows)


def test_a_keyless_lane_that_ran_empty_meanwhile(disk: Opener) -> None:
    q = disk(keyless="round_robin", keyless_lanes=1, max_attempts=None)
    q.send(b"1")
    plan = scan.plan_shard(shard_of(q), dead=False, per_task=5)
    q.receive(1)[0].nack(delay=50.0)
    assert bodies(read(q, plan)) == ["1"]


def test_dead_letters(q: Queue) -> None:
    fill(q, "a", 3)
    fill(q, "b", 3)
    for key in ("a", "b"):
        for seq in (1, 2):
            q.reject(key, seq, f"no {seq}")
    plan = scan.plan_shard(shard_of(q), dead=True, per_task=3)
    q.redrive("a", [1])
    q.reject("b", 3, "later")
    found = [(decode_key(row[KEY]), row[SEQ], *row[BODY + 1 : BODY + 3]) for row in read(q, plan, dead=True)]
    assert found == [
        ("a", 2, "rejected", "no 2"), ("b", 1, "rejected", "no 1"), ("b", 2, "rejected", "no 2"), ("b", 3, "rejected", "later"),
    ]  # fmt: skip


def test_large_bodies_come_in_smaller_steps(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "STEP_BYTES", 2_500)
    monkeypatch.setattr(scan, "STEP", 100)
    for n in range(7):
        q.send(b"%d" % n * 1000, "a")
    plan = scan.plan_shard(shard_of(q), dead=False, per_task=100)
    ((segment,),) = plan.tasks
    assert [len(rows) for rows in scan.pending(shard_of(q), plan, segment)] == [3, 3, 1]
