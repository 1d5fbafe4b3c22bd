"""Tenants: they take turns, each one's oldest message first, in memory and at rest, and nobody starves."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import ConfigError, InvalidArgument, Message, PartialFailure, Queue, QueueFull, TenantLimit, Throttled, Worker
from strictq.testing import FakeClock
from tests.support.command import strictq_command
from tests.support.folds import fold, narrow, require_memories, takes_turns
from tests.support.queues import Opener
from tests.support.running import run_python


def tenant(key: object) -> str:
    return str(key).partition("/")[0] if "/" in str(key) else ""


@pytest.mark.one_shard("turns are taken in each shard")
def test_quiet_tenants_do_not_wait_behind_a_flood(make: Opener) -> None:
    q = make(tenant_separator="/")
    q.send_many([Message(b"", key=f"loud/{n}") for n in range(2000)])
    q.send_many([Message(b"", key=f"quiet-{n}/1") for n in range(50)])
    seen: list[str] = []
    for _ in range(6):
        batch = q.receive(10)
        seen += [tenant(d.key) for d in batch]
        q.ack_many(batch)
    assert sum(name.startswith("quiet") for name in seen) == 50


@pytest.mark.one_shard("turns are taken in each shard")
def test_without_a_separator_the_oldest_comes_first(make: Opener) -> None:
    q = make()
    q.send_many([Message(b"", key=f"loud/{n}") for n in range(100)])
    q.send(b"", key="quiet/1")
    assert all(tenant(d.key) == "loud" for d in q.receive(100))


def test_a_tenant_s_own_messages_keep_their_order(disk: Opener) -> None:
    q = disk(tenant_separator="/")
    for n in range(20):
        q.send(b"", key=f"a/{n % 7}")
        q.send(b"", key=f"b/{n % 5}")
    keys = [d.key for _ in range(30) for d in q.receive(1, per_key=1)]
    assert [key for key in keys if tenant(key) == "a"] == [f"a/{n}" for n in range(7)]
    assert [key for key in keys if tenant(key) == "b"] == [f"b/{n}" for n in range(5)]
    assert [tenant(key) for key in keys[:10]] == ["a", "b"] * 5


@pytest.mark.parametrize("wrong", ["", "x" * 17, 3, "\0", b"/", "\n"])
def test_a_wrong_separator_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="tenant_separator must be 1 to 16 printable characters"):
        strictq.QueueConfig(tenant_separator=wrong)  # type: ignore[arg-type]


@pytest.mark.one_shard("turns are taken in each shard")
def test_the_separator_changes_while_the_queue_has_messages(make: Opener) -> None:
    q = make()
    q.send_many([Message(b"", key=f"loud/{n}:x") for n in range(300)])
    q.send_many([Message(b"", key=f"quiet/{n}:x") for n in range(3)])
    assert [tenant(d.key) for d in q.receive(2)] == ["loud", "loud"]
    q.configure(tenant_separator="/")
    assert sorted({tenant(d.key) for d in q.receive(2)}) == ["loud", "quiet"]
    q.configure(tenant_separator=":")
    assert len({d.key for d in q.receive(4)}) == 4
    q.configure(tenant_separator=None)
    assert [tenant(d.key) for d in q.receive(2)] == ["loud", "loud"]
    assert q.check() == []


NOT_REACHED = {"receive_rate": 1e6, "concurrency": 10**6}
"""Limits that change nothing."""


class Model:
    """Weighted fair queueing with lists: what the oldest ready keys of each tenant are, and whose turn it may be."""

    def __init__(self) -> None:
        self.ready: dict[str, list[str]] = defaultdict(list)
        self.times: dict[str, float] = defaultdict(float)
        self.clock = 0.0

    def send(self, key: str) -> None:
        name = tenant(key)
        if not self.ready[name]:
            self.times[name] = max(self.times[name], self.clock)
        self.ready[name].append(key)

    def take(self, key: str, slack: float = 0.0) -> None:
        name = tenant(key)
        least = min(self.times[other] for other, keys in self.ready.items() if keys)
        assert self.times[name] <= least + slack, f"it is not the turn of {name}"
        assert self.ready[name][0] == key, "an older one of the tenant waits"
        del self.ready[name][0]
        self.clock = max(self.clock, self.times[name])
        self.times[name] += 1


@pytest.mark.parametrize("seed", range(8))
def test_turns_are_those_of_a_naive_model(disk: Opener, seed: int) -> None:
    """Also of lanes that were evicted and are found at rest, and after the queue was opened again."""
    chance = random.Random(seed)
    with narrow(chance.choice((4, 24, 1000))):
        take_turns(disk(tenant_separator="/"), chance)


@pytest.mark.parametrize("seed", range(4))
def test_turns_are_those_of_the_model_where_one_tenant_is_often_alone(disk: Opener, seed: int) -> None:
    """Then its lanes come by arrival alone, and cost as much as without a separator."""
    chance = random.Random(seed)
    with narrow(chance.choice((4, 24, 1000))):
        q = disk(tenant_separator="/")
        if seed % 2:
            q.limit("*", **NOT_REACHED)
        model, alone, sent = Model(), 0, 0
        for name in chance.choices(("a", "b", "ab", "", "A"), k=24):
            for _ in range(chance.randrange(30)):
                if name and chance.random() < 0.6:
                    key = f"{chance.choice(name)}/{sent}"
                    q.send(b"", key=key)
                    model.send(key)
                    sent += 1
                if chance.random() < 0.5:
                    take(q, model)
            if chance.random() < 0.4:
                while take(q, model):
                    pass
            if chance.random() < 0.4:
                fold(q)
            alone += not takes_turns(q)
        while take(q, model):
            pass
        assert not any(model.ready.values())
        assert 3 < alone < 24
        assert q.check() == []
        require_memories(q)


def take(q: Queue, model: Model) -> int:
    batch = q.receive(1)
    for d in batch:
        model.take(str(d.key))
        d.ack()
    return len(batch)


@pytest.mark.own_messages("those of the other process are another tenant's")
@pytest.mark.one_shard("each shard has its own tenants")
def test_a_tenant_alone_is_listed_by_arrival(make: Opener) -> None:
    """Until another one has messages, or it is throttled."""
    q = make(tenant_separator="/")
    for name in ("a", "b"):
        q.send_many([Message(b"", key=f"{name}/{n}") for n in range(20)])
        with q.receive(30) as batch:
            assert not takes_turns(q)
            q.ack_many(list(batch))
        assert not len(q.receive(1))
    q.limit("b", weight=3)
    q.send(b"", key="b/1")
    assert len(q.receive(1)) == 1
    assert not takes_turns(q)
    q.limit("b", paused=True)
    q.send(b"", key="b/2")
    assert not q.receive(1)
    assert takes_turns(q)
    q.limit("b", paused=False)
    assert len(q.receive(1)) == 1
    assert not takes_turns(q)
    q.send_many([Message(b"", key="b/3"), Message(b"", key="a/3"), *[Message(b"", key=f"c/{n}") for n in range(20)]])
    assert len(q.receive(5)) == 5
    assert takes_turns(q)
    assert len(q.receive(100)) == 17
    assert not takes_turns(q)


@pytest.mark.own_messages("those of the other process are more")
@pytest.mark.one_shard("each shard has its own tenants")
def test_turns_begin_with_a_claim_that_leaves_messages(make: Opener) -> None:
    """Or with so many ready keys that a claim would take long to divide them."""
    q = make(tenant_separator="/")
    for _ in range(3):
        q.send_many([Message(b"", key=f"{name}/{n}") for n in range(5) for name in "aab"])
        with q.receive(15) as batch:
            assert len(batch) == 15
            assert not takes_turns(q)
            q.ack_many(list(batch))
    q.send_many([Message(b"", key=f"a/{n}") for n in range(9)])
    q.send(b"", key="b/1")
    with q.receive(2) as batch:
        assert {tenant(d.key) for d in batch} == {"a", "b"}
    assert takes_turns(q)
    while batch := q.receive(3):
        q.ack_many(batch)
    assert not takes_turns(q)
    for name in "abc":
        q.send_many([Message(b"", key=f"{name}/{n}") for n in range(1500)])
    assert takes_turns(q)
    assert len(q.receive(5000)) == 4500


@pytest.mark.parametrize("seed", range(4))
def test_batches_are_those_of_the_model(disk: Opener, seed: int) -> None:
    """A batch that takes all may have it in any order, but it counts. The turns of others are a few messages off."""
    chance = random.Random(seed)
    model, sent = Model(), 0
    with narrow(chance.choice((4, 24, 1000))):
        q = disk(tenant_separator="/")
        if seed % 2:
            q.limit("*", **NOT_REACHED)
        for _ in range(200):
            for _ in range(chance.choice((1, 3, 12))):
                key = f"{chance.choice('aaab')}/{sent}"
                q.send(b"", key=key)
                model.send(key)
                sent += 1
            if chance.random() < 0.1:
                fold(q)
            most = chance.choice((2, 5, 9))
            batch = q.receive(most)
            leaves_some = most < sum(map(len, model.ready.values()))
            for d in batch:
                model.take(str(d.key), slack=5 if leaves_some else math.inf)
            q.ack_many(batch)
        assert q.check() == []
        require_memories(q)


def take_turns(q: Queue, chance: random.Random) -> None:
    model, sent = Model(), 0
    for _ in range(400):
        what = chance.random()
        if what < 0.55:
            name = chance.choice(("a", "a", "a", "b", "c", f"t{chance.randrange(40)}"))
            for _ in range(chance.choice((1, 1, 5))):
                key = f"{name}/{sent}"
                q.send(b"", key=key)
                model.send(key)
                sent += 1
        elif what < 0.95:
            for d in q.receive(1):
                assert isinstance(d.key, str)
                model.take(d.key)
                d.ack()
        elif what < 0.98:
            fold(q)
    while batch := q.receive(1):
        model.take(str(batch[0].key))
        batch[0].ack()
    assert not any(model.ready.values())
    assert q.check() == []


def test_all_of_a_queue_with_tenants_is_delivered_in_order(q: Queue) -> None:
    q.configure(tenant_separator="/")
    keys = [f"t{n % 13}/{n % 31}" for n in range(500)]
    q.send_many([Message(b"", key=key) for key in keys])
    fold(q)
    seen: dict[object, int] = defaultdict(int)
    while batch := q.receive(7):
        for d in batch:
            seen[d.key] += 1
            assert d.seq == seen[d.key]
        q.ack_many(batch)
    assert sum(seen.values()) == 500
    assert q.check() == []


# ---- limits


def test_weights_are_shares(disk: Opener) -> None:
    q = disk(tenant_separator="/")
    q.limit("a", weight=3)
    q.limit("*", weight=0.5)
    for name in ("a", "b"):
        q.send_many([Message(b"", key=f"{name}/{n}") for n in range(200)])
    seen = [tenant(d.key) for d in q.receive(70)]
    assert (seen.count("a"), seen.count("b")) == (60, 10)


def test_the_longest_name_that_matches_applies(make: Opener) -> None:
    q = make(tenant_separator="/")
    for name, weight in (("*", 2), ("free-*", 3), ("free-7", 4), ("free-77*", 5)):
        q.limit(name, weight=weight)
    for name in ("x", "free-1", "free-7", "free-778"):
        q.send(b"", key=f"{name}/1")
    q.send(b"", key="no tenant")
    assert {t.tenant: t.weight for t in q.tenants()} == {"x": 2, "free-1": 3, "free-7": 4, "free-778": 5, "": 2}


def test_a_paused_tenant_gets_nothing_until_it_goes_on(make: Opener) -> None:
    q = make(tenant_separator="/")
    for key in ("a/1", "b/1", "a/2"):
        q.send(b"", key=key)
    q.limit("a", paused=True)
    with q.receive(10) as batch:
        assert [d.key for d in batch] == ["b/1"]
    assert [t.throttled_seconds for t in q.tenants()] == [None, 0.0]
    found = q.explain("a/1")
    assert (found.state, found.head_seq) == ("throttled", 1)
    assert found.text == "seq 1 waits because tenant a is paused; q.limit('a', paused=False) ends that"
    q.send(b"", key="a/3")
    assert [d.key for d in q.receive(10)] == ["b/1"]
    assert {d.key for d in q.receive(10, keys=["a/1"])} == {"a/1"}, "who names a key gets it"
    q.limit("a", paused=False)
    assert {d.key for d in q.receive(10)} == {"a/2", "a/3"}


@pytest.mark.one_shard("deliveries of one receive")
def test_a_rate_of_deliveries_holds(make: Opener, clock: FakeClock) -> None:
    q = make(tenant_separator="/")
    q.limit("a", receive_rate=10, burst=5)
    q.send_many([Message(b"", key=f"a/{n}") for n in range(100)])
    q.send_many([Message(b"", key=f"b/{n}") for n in range(100)])
    seen = [tenant(d.key) for d in q.receive(50)]
    assert (seen.count("a"), seen.count("b")) == (5, 45)
    assert q.tenants()[0].throttled_seconds == pytest.approx(0.1)
    assert q.explain("a/9").text == "seq 1 waits because tenant a gets 10 messages a second; the next one in 0.1 s"
    assert q.explain("b/99").state == "ready"
    clock.advance(0.35)
    assert [tenant(d.key) for d in q.receive(50, per_key=1)].count("a") == 3
    clock.advance(10.0)
    seen = [tenant(d.key) for d in q.receive(100)]
    assert (seen.count("a"), seen.count("b")) == (5, 8)
    clock.advance(1.0)
    assert len(q.receive(100)) == 5
    assert q.receive(100) == []


@pytest.mark.one_shard("deliveries of one receive")
def test_a_rate_holds_over_lanes_with_many_messages(make: Opener, clock: FakeClock) -> None:
    q = make(tenant_separator="/")
    q.limit("a", receive_rate=1, burst=7)
    q.send_many([Message(b"", key=f"a/{n % 3}") for n in range(30)])
    assert len(q.receive(100)) == 7
    clock.advance(2.0)
    assert len(q.receive(100)) == 2


def test_a_waiting_receive_goes_on_when_the_rate_permits(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", config=strictq.QueueConfig(tenant_separator="/")) as q:
        q.limit("a", receive_rate=20, burst=1)
        q.send_many([Message(b"", key=f"a/{n}") for n in range(4)])
        assert len(q.receive(10)) == 1
        assert [len(q.receive(10, wait=60.0)) for _ in range(3)] == [1, 1, 1]


def test_a_rate_of_sends_refuses_only_its_tenant(make: Opener, clock: FakeClock) -> None:
    q = make(tenant_separator="/")
    q.limit("a", send_rate=10, burst=2)
    q.send(b"", key="a/1")
    q.send(b"", key="a/2")
    with pytest.raises(Throttled) as caught:
        q.send(b"", key="a/3")
    assert (caught.value.tenant, caught.value.retry_after, caught.value.transient) == ("a", pytest.approx(0.1), True)
    q.send(b"", key="b/1")
    with pytest.raises(PartialFailure) as partly:
        q.send_many([Message(b"", key=key) for key in ("b/2", "a/3", "c/1", "a/4")])
    results = partly.value.results
    assert [type(r).__name__ for r in results] == ["Receipt", "Throttled", "Receipt", "Throttled"]
    clock.advance(0.2)
    assert [r.seq for r in q.send_many([Message(b"", key="a/3"), Message(b"", key="a/3")])] == [1, 2]
    clock.advance(100.0)
    assert len(q.send_many([Message(b"", key="a/9")] * 50)) == 50, "more than the burst, at once, after a pause"
    with pytest.raises(Throttled) as caught:
        q.send(b"", key="a/9")
    assert caught.value.retry_after == pytest.approx(4.9)


def test_processes_share_a_rate(tmp_path: Path) -> None:
    config = strictq.QueueConfig(tenant_separator="/")
    with strictq.open(tmp_path / "q", config=config) as q:
        q.limit("a", send_rate=0.01, burst=5)
        program = "import sys, strictq\nq = strictq.open(sys.argv[1])\nfor n in range(3): q.send(b'', key=f'a/{n}')\n"
        run_python(program, tmp_path / "q")
        q.send(b"", key="a/1")
        q.send(b"", key="a/1")
        with pytest.raises(Throttled):
            q.send(b"", key="a/1")


def test_limits_are_changed_piece_by_piece_and_removed(make: Opener) -> None:
    q = make(tenant_separator="/")
    assert q.limit("a", weight=2) == TenantLimit("a", weight=2)
    assert q.limit("a", send_rate=5.0) == TenantLimit("a", weight=2, send_rate=5.0)
    assert q.limit("a", send_rate=None, paused=True) == TenantLimit("a", weight=2, paused=True)
    assert [t.tenant for t in q.tenants()] == ["a"]
    assert q.limit("a", remove=True) is None
    assert q.tenants() == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("a", {"weight": 0}), ("a", {"weight": -1}), ("a", {"weight": "x"}), ("a", {"weight": float("nan")}),
        ("a", {"send_rate": 0}), ("a", {"receive_rate": -5}), ("a", {"burst": 0, "send_rate": 1}), ("a", {"burst": 5}),
        ("a", {"paused": 1}), ("a*b", {"weight": 1}), ("x" * 257, {"weight": 1}),
    ],
)  # fmt: skip
def test_wrong_limits_change_nothing(make: Opener, name: str, wrong: dict[str, Any]) -> None:
    q = make(tenant_separator="/")
    with pytest.raises(ConfigError):
        q.limit(name, **wrong)
    assert q.config.limits == ()


def test_limits_need_a_separator(make: Opener) -> None:
    q = make()
    with pytest.raises(ConfigError, match="limits need tenant_separator") as caught:
        q.limit("a", weight=2)
    assert caught.value.hint == "set it first: q.configure(tenant_separator='/')"
    with pytest.raises(ConfigError, match="no tenants"):
        q.tenants()
    with pytest.raises(InvalidArgument):
        q.limit(3, weight=2)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_commands_show_and_change_limits(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", config=strictq.QueueConfig(tenant_separator="/")) as q:
        q.send(b"", key="acme/1")
    code, out, _ = strictq_command(tmp_path, "limit", "q", "acme", "--weight", "4", "--receive-rate", "2.5", "--json")
    assert code == 0
    nothing = dict.fromkeys(("max_depth", "send_rate", "burst", "concurrency", "target_age_seconds"))
    shown = {"tenant": "acme", "weight": 4.0, **nothing, "receive_rate": 2.5, "paused": False}
    assert json.loads(out) == shown
    assert json.loads(strictq_command(tmp_path, "limit", "q", "acme", "--json")[1]) == shown
    code, out, _ = strictq_command(tmp_path, "tenants", "q", "--json")
    assert (json.loads(out)["depth"], json.loads(out)["weight"]) == (1, 4.0)
    assert "acme" in strictq_command(tmp_path, "tenants", "q")[1]
    assert "acme" in strictq_command(tmp_path, "limit", "q", "acme", "--receive-rate", "none", "--pause")[1]
    code, _, err = strictq_command(tmp_path, "limit", "q", "acme", "--burst", "3")
    assert (code, "burst is of a send_rate or a receive_rate" in err) == (2, True)
    assert "send_rate           none" in strictq_command(tmp_path, "limit", "q", "acme", "--receive-rate", "2", "--burst", "3")[1]
    assert strictq_command(tmp_path, "limit", "q", "acme", "--receive-rate", "none", "--burst", "none")[0] == 0
    assert strictq_command(tmp_path, "limit", "q", "acme", "--remove")[0] == 0
    assert "no limits" in strictq_command(tmp_path, "limit", "q", "acme")[1]


def test_a_changed_rate_holds_for_what_was_taken_before(make: Opener, clock: FakeClock) -> None:
    q = make(tenant_separator="/")
    q.limit("a", receive_rate=0.01, burst=100)
    q.send_many([Message(b"", key="a/1")] * 300)
    batch = q.receive(200)
    assert len(batch) == 100
    q.ack_many(batch)
    q.limit("a", receive_rate=100.0)
    assert not q.receive(200)
    clock.advance(0.5)
    assert len(q.receive(200)) == 50


@pytest.mark.one_shard("there is one lane")
def test_refused_sends_take_nothing_of_the_rate(make: Opener, clock: FakeClock) -> None:
    q = make(tenant_separator="/", max_depth=2)
    q.limit("a", send_rate=10.0)
    for _ in range(2):
        q.send(b"", key="a/1")
    for _ in range(20):
        with pytest.raises(QueueFull):
            q.send(b"", key="a/1")
    q.configure(max_depth=100)
    for _ in range(8):
        q.send(b"", key="a/1")
    with pytest.raises(Throttled):
        q.send(b"", key="a/1")


def test_a_look_at_rates_writes_nothing(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", config=strictq.QueueConfig(tenant_separator="/")) as q:
        q.limit("a", receive_rate=1.0)
        q.send(b"", key="a/1")
    with strictq.open(tmp_path / "q", read_only=True) as q:
        assert [one.throttled_seconds for one in q.tenants()] == [0.0]
    assert not (tmp_path / "q" / "rates").exists()


def test_a_drain_waits_for_a_rate_but_not_for_a_paused_tenant(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", config=strictq.QueueConfig(tenant_separator="/")) as q:
        q.limit("a", receive_rate=20.0, burst=1)
        q.limit("b", paused=True)
        q.send_many([Message(b"", key=f"a/{n}") for n in range(6)] + [Message(b"", key="b/1")])
        Worker(q, lambda job: None).run(drain=True)
        assert [(one.tenant, one.depth) for one in q.tenants()] == [("b", 1), ("a", 0)]
