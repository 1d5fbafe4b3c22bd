"""Read the messages of a shard without leasing them: none is read twice, and none that stays is missed."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import InvalidArgument, Message, Queue, QueueConfig
from strictq._store.bulk import scan
from strictq._store.bulk.columns import BlockSize, ListedColumns, MessageRange
from strictq._store.lane.memory import StoreLimits
from strictq._store.shard.leases import PackedColumns
from strictq._values.keys import Key, encode_key
from strictq.testing import FakeClock
from tests.support.internals import shard_of

EVERYTHING = {"key", "seq", "id", "sent_at", "attempts", "headers", "body"}
SIZE = BlockSize(1_000, 1 << 20)


@pytest.fixture
def q(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    return opened(tmp_path)


def opened(tmp_path: Path, **settings: Any) -> Queue:
    config = QueueConfig(keyless="round_robin", keyless_lanes=2, max_attempts=None, **settings)
    return strictq.open(tmp_path / "q", config=config, durability="process", clock=FakeClock())


Found = tuple[bytes | None, int, int, bytes]
"""Key, seq, arrival number, body."""


def rows_of(block: PackedColumns | ListedColumns) -> list[Found]:
    keys = [key for key, depth in zip(block.keys, block.depths, strict=True) for _ in range(depth)]
    if isinstance(block, ListedColumns):
        return list(zip(keys, block.seqs, block.ids, block.bodies, strict=True))
    seqs, ids, sizes = ([int(n) for n in text.split(",")] for text in (block.seqs, block.ids, block.sizes))
    bodies, at = [], 0
    for size in sizes:
        bodies.append(block.bodies[at : at + size])
        at += size
    return list(zip(keys, seqs, ids, bodies, strict=True))


def read(q: Queue, parts: list[MessageRange], between: Callable[[], object] = lambda: None) -> list[list[Found]]:
    """Return what each range has. Calls `between` before each block."""
    found: list[list[Found]] = []
    for part in parts:
        found.append([])
        for block in q._storage.bulk.read(part, EVERYTHING, SIZE):
            found[-1] += rows_of(block)
            between()
    return found


def plan(q: Queue, messages: int = 1_000, *, dead: bool = False, keys: list[bytes] | None = None) -> list[MessageRange]:
    return q._storage.bulk.plan(dead=dead, messages=messages, keys=keys)


@pytest.mark.parametrize("per_task", [1, 4, 7, 1_000])
def test_everything_once_in_the_order_of_keys_and_seqs(q: Queue, per_task: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "STEP", 3)
    receipts = [q.send(b"%d" % n, key=f"k{n % 5}", headers={"n": "1"} if n % 3 == 0 else None) for n in range(20)]
    parts = plan(q, per_task)
    found = read(q, parts)
    assert list(chain.from_iterable(found)) == sorted((encode_key(r.key), r.seq, r.id, b"%d" % n) for n, r in enumerate(receipts))
    assert len(parts) == {1: 5, 4: 5, 7: 3, 1_000: 1}[per_task]
    keys = [{key for key, *_ in part} for part in found]
    assert len(set.union(*keys)) == sum(map(len, keys)), "a key's messages are in one range"


def test_the_messages_of_some_keys(q: Queue) -> None:
    for n in range(12):
        q.send(b"%d" % n, key=f"k{n % 4}")
    parts = plan(q, 1, keys=[b"sk3", b"snever", b"sk1"])
    assert [(key, seq) for key, seq, *_ in read(q, parts)[0]] == [(key, seq) for key in (b"sk1", b"sk3") for seq in (1, 2, 3)]
    assert plan(q, 1, keys=[b"snever"]) == []
    assert plan(q, 1, keys=[]) == []


def test_the_dead_letters_of_some_keys(q: Queue) -> None:
    for n in range(12):
        q.send(b"%d" % n, key=f"k{n % 4}")
    for d in q.receive(12):
        d.reject("no")
    (part,) = plan(q, 1, dead=True, keys=[b"sk3", b"snever", b"sk1"])
    assert [(key, seq) for key, seq, *_ in read(q, [part])[0]] == [(key, seq) for key in (b"sk1", b"sk3") for seq in (1, 2, 3)]


def test_a_few_messages_more_than_a_task_has_are_no_task_of_their_own(q: Queue) -> None:
    q.send_many([Message(b"%d" % n, key=f"k{n}") for n in range(21)])
    assert [len(plan(q, n)) for n in (21, 20, 15, 14, 10, 5, 1)] == [1, 1, 1, 2, 2, 4, 21]


def test_nothing_is_no_task(q: Queue) -> None:
    assert plan(q) == []
    q.send(b"x", key="k")
    assert plan(q, dead=True) == []


def test_large_bodies_come_in_smaller_steps(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "STEP_BYTES", 2_500)
    for n in range(7):
        q.send(b"%d" % n * 1_000, key="ab"[n % 2])
    (part,) = plan(q)
    assert [getattr(block, "messages", None) for block in scan.read(shard_of(q), part, EVERYTHING)] == [2, 2, 2, 1]
    assert len(read(q, [part])[0]) == 7


def test_dead_letters(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "STEP", 2)
    for n in range(9):
        q.send(b"%d" % n, key=f"k{n % 3}", headers={"n": "1"})
    for d in q.receive(9, per_key=2):
        d.reject(f"no {d.seq}")
    parts = plan(q, 2, dead=True)
    blocks = [block for part in parts for block in q._storage.bulk.read(part, EVERYTHING, SIZE)]
    assert len(parts) == 3
    assert list(chain.from_iterable(map(rows_of, blocks))) == [
        (f"sk{k}".encode(), seq, k + 1 + 3 * (seq - 1), b"%d" % (k + 3 * (seq - 1))) for k in range(3) for seq in (1, 2)
    ]
    listed = [block for block in blocks if isinstance(block, ListedColumns)]
    assert len(listed) == len(blocks)
    assert [died[:2] for block in listed for died in block.died] == [
        ("rejected", f"no {seq}") for _ in range(3) for seq in (1, 2)
    ]
    assert {headers for block in listed for headers in block.headers} == {'{"n": "1"}'}


@pytest.mark.parametrize("place", [(), (1, 2), (1, 3, 2**40), (1, 1, 300, 0), (1, -1, 5, 0, 1), (1, 9, 1)])
def test_a_place_that_no_plan_has_is_refused(q: Queue, place: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="no range"):
        list(q._storage.bulk.read(MessageRange(0, False, place), EVERYTHING, SIZE))


def test_keys_are_kept_in_places() -> None:
    for keys in ((), (b"",), (b"s",), (b"s" * 7, b"\0\xff" * 40), (b"n0!12", b"\0" * 1_025)):
        span = scan.Span(5, 3, b"s\0" * 9, b"\xff", keys)
        assert scan.Span.of(span.place()) == span


class Walk:
    """Random calls beside a scan."""

    def __init__(self, q: Queue, seed: int) -> None:
        self.q = q
        self.random = random.Random(seed)
        self.sent: dict[int, tuple[Key | None, int, bytes]] = {}
        self.resolved: set[int] = set()
        self.held: list[Any] = []

    def send(self) -> None:
        chance = self.random
        many = [
            Message(
                b"%d" % chance.randrange(10**6), key=chance.choice([None, "a", "b", "c", 1, 2, b"x"]),
                headers={"h": "1"} if chance.random() < 0.2 else None, delay=chance.choice([0.0, 0.0, 0.0, 50.0]),
            )
            for _ in range(chance.randint(1, 8))
        ]  # fmt: skip
        for message, receipt in zip(many, self.q.send_many(many), strict=True):
            self.sent[receipt.id] = message.key, receipt.seq, message.body  # type: ignore[assignment]

    def step(self) -> None:
        chance = self.random
        match chance.randrange(6):
            case 0 | 1:
                self.send()
            case 2:
                self.held += self.q.receive(chance.randint(1, 6), per_key=chance.choice([None, 1, 2]))
            case 3 if self.held:
                d = self.held.pop(0)
                d.ack()
                self.resolved.add(d.id)
            case 4 if self.held:
                d = self.held.pop(chance.randrange(len(self.held)))
                self.held = [each for each in self.held if each.token != d.token or each.key != d.key or each.seq < d.seq]
                d.nack(delay=chance.choice([0.0, 30.0]))
            case _:
                shard = shard_of(self.q)
                assert shard.lanes is not None
                for lanes in (shard.lanes, shard._reader_lanes):
                    lanes.memory.limits = StoreLimits(
                        window=chance.randint(1, 8), slice=chance.randint(1, 4), head=2, chunk=4, loaded_max=chance.randint(1, 50)
                    )


@pytest.mark.parametrize("seed", range(40))
def test_none_is_read_twice_and_none_that_stays_is_missed(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "STEP", 1 + seed % 7)
    monkeypatch.setattr(scan, "ROWS_TOGETHER", 1 + seed % 3)
    monkeypatch.setattr(scan, "LANES_STEP", 1 + seed % 5)
    with opened(tmp_path) as q:
        walk = Walk(q, seed)
        for _ in range(60):
            walk.step()
        walk.send()
        parts = plan(q, walk.random.choice([1, 5, 1_000]))
        before, resolved = set(walk.sent), set(walk.resolved)
        found = read(q, parts, walk.step)
        ids = [i for part in found for _, _, i, _ in part]
        assert len(ids) == len(set(ids))
        assert set(ids) <= before - resolved
        assert before - walk.resolved <= set(ids)
        for part in found:
            for key, seq, i, body in part:
                sent = walk.sent[i]
                assert (sent[1], sent[2]) == (seq, body)
                assert sent[0] is None or key == encode_key(sent[0])
            for key in {key for key, *_ in part}:
                seqs = [seq for each, seq, *_ in part if each == key]
                assert seqs == sorted(seqs)
        families = [{key for key, *_ in part} for part in found]
        assert sum(map(len, families)) == len(set().union(*families))
