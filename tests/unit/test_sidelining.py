"""Sidelined messages: new ones pass a backlog, which gets one message in ten, and no key changes its order."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import ConfigError, InvalidArgument, Message, Queue, ReadOnlyQueue
from strictq.testing import FakeClock, clock_of
from tests.support.command import in_process
from tests.support.folds import fold, narrow, require_memories, takes_turns
from tests.support.queues import Opener

NOW = 4e9
"""A time in the future, which counts as now."""


def send(q: Queue, name: str, count: int) -> None:
    q.send_many([Message(b"", key=f"{name}-{n}") for n in range(count)])


def kinds(keys: list[Any]) -> str:
    """Return the first letters of keys."""
    return "".join(str(key)[0] for key in keys)


def received(q: Queue, count: int, each: int = 1) -> list[Any]:
    """Receive and ack messages, and return their keys."""
    keys: list[Any] = []
    for _ in range(count // each):
        with q.receive(each) as batch:
            keys += [d.key for d in batch]
            q.ack_many(list(batch))
    return keys


@pytest.mark.one_shard("turns are taken in each shard")
@pytest.mark.parametrize("each", [1, 10, 100])
def test_new_messages_pass_a_backlog(make: Opener, clock: FakeClock, each: int) -> None:
    q = make()
    send(q, "old", 150)
    clock.advance(60.0)
    assert q.sideline(NOW)
    send(q, "new", 90)
    assert kinds(received(q, 100, each)).count("o") == 10
    assert kinds(received(q, 100, each)) == "o" * 100, "nothing newer is left"
    send(q, "new", 9)
    assert kinds(received(q, 10)).count("n") == 9


@pytest.mark.one_shard("turns are taken in each shard")
def test_a_deep_key_of_the_backlog_gets_one_message_in_ten(make: Opener, clock: FakeClock) -> None:
    q = make()
    q.send_many([Message(b"", key="old")] * 500)
    clock.advance(1.0)
    q.sideline(NOW)
    send(q, "new", 200)
    keys = received(q, 200, each=100)
    assert 18 <= kinds(keys).count("o") <= 20


@pytest.mark.one_shard("turns are taken in each shard")
def test_the_end_restores_the_order_of_arrival(make: Opener, clock: FakeClock) -> None:
    q = make()
    send(q, "old", 30)
    clock.advance(1.0)
    assert (q.sideline(clock.wall() / 1e6), q.stats().sidelined_before) == (True, pytest.approx(clock.wall() / 1e6))
    send(q, "new", 30)
    assert kinds(received(q, 10)) == "n" * 9 + "o"
    assert (q.sideline(None), q.sideline(None), q.stats().sidelined_before) == (True, False, None)
    assert kinds(received(q, 29)) == "o" * 29
    assert q.check() == []


@pytest.mark.own_messages("those of the other process become old as well")
@pytest.mark.one_shard("each shard has its own order")
def test_lanes_come_by_arrival_until_one_is_sidelined(make: Opener, clock: FakeClock) -> None:
    q = make(sideline_seconds=60.0)
    for _ in range(3):
        send(q, "a", 20)
        assert len(received(q, 20, each=10)) == 20
        clock.advance(100.0)
    send(q, "b", 100)
    clock.advance(100.0)
    send(q, "c", 10)
    assert not takes_turns(q)
    assert len(received(q, 1)) == 1
    assert takes_turns(q)
    assert len(received(q, 109)) == 109
    send(q, "d", 20)
    assert len(received(q, 20)) == 20
    assert not takes_turns(q)


@pytest.mark.one_shard("turns are taken in each shard")
def test_each_tenant_sidelines_its_own_backlog(make: Opener, clock: FakeClock) -> None:
    q = make(tenant_separator="/")
    for name in ("a", "b"):
        q.send_many([Message(b"", key=f"{name}/old-{n}") for n in range(50)])
    clock.advance(1.0)
    q.sideline(NOW)
    q.send_many([Message(b"", key=f"b/new-{n}") for n in range(50)])
    keys = received(q, 40)
    assert (kinds(keys).count("a"), kinds(keys).count("b")) == (20, 20)
    assert [key.split("/")[1][:3] for key in keys if key[0] == "b"] == (["new"] * 9 + ["old"]) * 2


@pytest.mark.one_shard("turns are taken in each shard")
def test_the_age_moves_with_time(make: Opener, clock: FakeClock) -> None:
    q = make(sideline_seconds=60.0)
    send(q, "a", 30)
    assert q.stats().sidelined_before == pytest.approx(clock.wall() / 1e6 - 60.0)
    clock.advance(59.0)
    send(q, "b", 30)
    assert kinds(received(q, 3)) == "aaa"
    clock.advance(2.0)
    assert kinds(received(q, 10)) == "b" * 9 + "a"
    clock.advance(60.0)
    assert kinds(received(q, 3)) == "aaa", "both are old"
    send(q, "c", 30)
    assert kinds(received(q, 20)) == ("c" * 9 + "a") * 2
    q.configure(sideline_seconds=None)
    assert kinds(received(q, 20)).count("a") == 20


def test_a_new_message_of_an_old_key_waits_for_it(q: Queue) -> None:
    q.send(b"1", key="k")
    clock = clock_of(q)
    clock.advance(1.0)
    q.sideline(NOW)
    q.send_many([Message(b"2", key="k"), Message(b"", key="other")])
    bodies = [d.body for _ in range(3) for d in received_one(q) if d.key == "k"]
    assert bodies == [b"1", b"2"]


def received_one(q: Queue) -> list[strictq.Delivery]:
    got = list(q.receive(1))
    q.ack_many(got)
    return got


def test_explain_says_that_a_key_is_sidelined(q: Queue) -> None:
    q.send(b"", key="old")
    clock_of(q).advance(1.0)
    q.sideline(NOW)
    q.send(b"", key="new")
    text = "seq 1 can be received now; it is sidelined, so newer messages get nine turns in ten"
    assert (q.explain("old").state, q.explain("old").text) == ("ready", text)
    assert q.explain("new").text == "seq 1 can be received now"
    assert len(q.receive(10)) == 2
    assert q.explain("old").state == "in_flight"


@pytest.mark.parametrize(
    "wrong", ["now", -1.0, float("nan"), float("inf"), 1e300, True, datetime(2026, 1, 1)], ids=str
)  # fmt: skip
def test_what_is_no_time_is_refused(q: Queue, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="before must be"):
        q.sideline(wrong)
    assert q.config.sideline_before is None


@pytest.mark.parametrize("wrong", [0.0, -1.0, True, "1"])
def test_a_wrong_age_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="sideline_seconds must be"):
        strictq.QueueConfig(sideline_seconds=wrong)


def test_a_datetime_is_a_time(make: Opener, clock: FakeClock) -> None:
    q = make()
    assert q.sideline(datetime.fromtimestamp(clock.wall() / 1e6 - 5.0, UTC))
    assert q.stats().sidelined_before == pytest.approx(clock.wall() / 1e6 - 5.0)


def test_it_is_refused_read_only(disk: Opener) -> None:
    path = disk().path
    with strictq.open(path, read_only=True) as looks, pytest.raises(ReadOnlyQueue):
        looks.sideline(NOW)


def test_the_async_twin_does_the_same(tmp_path: Path) -> None:
    async def main() -> tuple[bool, bool]:
        async with strictq.open_async(tmp_path / "q") as q:
            return await q.sideline(NOW), await q.sideline(None)

    assert asyncio.run(main()) == (True, True)


def test_the_command_sidelines_and_ends_it(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.send(b"", key="old")
        found = json.loads(in_process("sideline", q.path, "--json").stdout)
        assert found == {"sidelined_before": pytest.approx(found["sidelined_before"]), "changed": True}
        assert "are sidelined" in in_process("stats", q.path).stdout
        assert "it is sidelined" in in_process("explain", q.path, "old").stdout
        assert in_process("sideline", q.path, "--older-than", "3600").stdout.startswith("messages sent before 20")
        assert in_process("explain", q.path, "old").stdout.count("sidelined") == 0
        assert in_process("sideline", q.path, "--end").stdout == "no messages are sidelined\n"
        assert in_process("sideline", q.path, "--end").stdout == "no messages are sidelined; nothing was changed\n"
        assert in_process("sideline", q.path, "--end", "--older-than", "1").exit_code == 2


WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.5, "slow": 1.0}
RATE = 0.2
"""Messages per second that the tenant "slow" gets."""


class OrderModel:
    """The order with lists: whose turn it is, of which keys, and how long the others and the backlog have waited."""

    def __init__(self) -> None:
        self.ready: dict[str, list[int]] = defaultdict(list)
        self.times: dict[str, float] = defaultdict(float)
        self.clock = 0.0
        self.paused: str | None = None
        self.slow_at = 0.0
        """When "slow" gets its next message."""
        self.passed: dict[str, int] = defaultdict(int)
        """How many messages others got while a tenant had some and could get one."""
        self.mark = 0
        self.waited: dict[str, int] = defaultdict(int)

    def pause(self, name: str | None) -> None:
        """Pause a tenant, or let it go on (None). No other change of settings has an effect on the turns."""
        if name is None and self.paused is not None:
            self.times[self.paused] = max(self.times[self.paused], self.clock)
            self.passed[self.paused] = 0
        self.paused = name

    def may_get(self, now: float) -> list[str]:
        return [
            name for name, keys in self.ready.items() if keys and name != self.paused and (name != "slow" or now >= self.slow_at)
        ]

    def send(self, name: str, number: int) -> None:
        if not self.ready[name]:
            self.times[name] = max(self.times[name], self.clock)
            self.passed[name] = 0
        self.ready[name].append(number)

    def take(self, name: str, number: int, now: float) -> None:
        waiting = self.may_get(now)
        assert name in waiting, f"{name} has to wait"
        if name == "slow":
            self.slow_at = now + 1 / RATE
        elif (others := [self.times[other] for other in waiting if other != "slow"]) and "slow" not in self.ready:
            assert self.times[name] == pytest.approx(min(others)), f"it is not the turn of {name}"
        for other in waiting:
            if other not in (name, "slow"):
                self.passed[other] += 1
                most = sum(weight / WEIGHTS[other] + 1 for one, weight in WEIGHTS.items() if one != other) + 1
                assert self.passed[other] <= most, f"{other} starves"
        self.passed[name] = 0
        self.clock = max(self.clock, self.times[name])
        self.times[name] += 1 / WEIGHTS[name]
        self.take_of_tenant(name, number)

    def take_of_tenant(self, name: str, number: int) -> None:
        old = [n for n in self.ready[name] if n < self.mark]
        fresh = [n for n in self.ready[name] if n >= self.mark]
        assert number in (old[:1] + fresh[:1]), "an older one of the same side waits"
        if number >= self.mark:
            self.waited[name] = self.waited[name] + 1 if old else 0
            assert self.waited[name] <= 9, "the backlog waits for more than nine others"
        else:
            assert not fresh or self.waited[name] == 9, "the backlog comes too soon"
            self.waited[name] = 0
        self.ready[name].remove(number)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_order_is_that_of_a_naive_model(disk: Opener, clock: FakeClock, seed: int) -> None:
    """Also of lanes that were evicted and are found at rest, with weights, pauses and rates, and a mark that moves anywhere."""
    chance = random.Random(seed)
    with narrow(chance.choice((4, 24, 1000))):
        if seed % 2:
            q = disk(tenant_separator="/")
            for name in "bc":
                q.limit(name, weight=WEIGHTS[name])
            q.limit("slow", receive_rate=RATE, burst=1)
        else:
            q = disk()
        names = ("a", "a", "b", "c") + (("slow",) if seed % 4 == 3 else ()) if seed % 2 else ("a",)
        follow_model(q, clock, chance, names)


def follow_model(q: Queue, clock: FakeClock, chance: random.Random, names: tuple[str, ...]) -> None:
    model, sent_at, mark_moves = OrderModel(), [], 0

    def take() -> bool:
        now = clock.wall() / 1e6
        batch = list(q.receive(1))
        for d in batch:
            name, number = str(d.key).split("/")
            model.take(name, int(number), now)
            d.ack()
        assert batch or not model.may_get(now)
        return bool(batch)

    for _ in range(300):
        what = chance.random()
        if what < 0.5:
            for _ in range(chance.choice((1, 1, 8))):
                name = chance.choice(names)
                q.send(b"", key=f"{name}/{len(sent_at)}")
                model.send(name, len(sent_at))
                sent_at.append(clock.wall() / 1e6)
                clock.advance(1.0)
        elif what < 0.9:
            take()
        elif what < 0.94:
            fold(q)
        elif what < 0.96 and len(names) > 1:
            model.pause(chance.choice((None, "b")))
            q.limit("b", paused=model.paused is not None)
        elif sent_at:
            mark = chance.choice((0, len(sent_at), chance.randrange(len(sent_at)), model.mark))
            q.sideline(None if mark == 0 else [*sent_at, clock.wall() / 1e6][mark])
            model.mark = mark
            mark_moves += 1
    if model.paused is not None:
        q.limit("b", paused=False)
        model.pause(None)
    while any(model.ready.values()):
        if not take():
            clock.advance(1.0)
    assert mark_moves > 2
    require_memories(q)
    assert q.check() == []


def test_a_backlog_at_rest_is_delivered_whole_and_in_order(disk: Opener, clock: FakeClock) -> None:
    """The mark moves by age while lanes are evicted on both of its sides."""
    with narrow(8):
        q = disk(sideline_seconds=30.0)
        seen: dict[str, list[int]] = defaultdict(list)
        chance, sent = random.Random(7), 0
        while sent < 300 or q.stats().depth:
            for _ in range(chance.randrange(8) if sent < 300 else 0):
                q.send(b"%d" % sent, key=f"k{chance.randrange(150)}")
                sent += 1
            clock.advance(chance.choice((0.0, 0.5, 9.0)))
            for d in q.receive(chance.choice((1, 3, 6))):
                seen[str(d.key)].append(d.seq)
                d.ack()
            if chance.random() < 0.1:
                fold(q)
        assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in seen.values())
        assert sum(map(len, seen.values())) == sent
        assert q.check() == []
