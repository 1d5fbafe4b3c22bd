"""Maximum depths of tenants and keys: exact, and only the noisy one is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import strictq
from strictq import Message, PartialFailure, QueueConfig, QueueFull, TenantDepth, Throttled
from strictq.testing import FakeClock
from tests.support.folds import takes_turns
from tests.support.queues import Opener


def test_a_tenant_has_at_most_its_depth(make: Opener) -> None:
    q = make(tenant_separator="/", shards=2)
    q.limit("acme", max_depth=3)
    for n in range(3):
        q.send(b"", key=f"acme/{n}")
    with pytest.raises(QueueFull, match="tenant 'acme' has reached max_depth=3") as caught:
        q.send(b"", key="acme/9")
    assert (caught.value.tenant, caught.value.key, caught.value.hint_code) == ("acme", None, "tenant_full")
    assert 0.05 <= caught.value.retry_after <= 60
    q.send(b"", key="other/1")
    q.receive(1, keys=["acme/0"])[0].ack()
    q.send(b"", key="acme/9")
    with pytest.raises(QueueFull):
        q.send(b"", key="acme/9")


def test_a_key_has_at_most_its_depth(make: Opener) -> None:
    q = make(max_key_depth=3)
    for _ in range(3):
        q.send(b"", key="k")
    with pytest.raises(QueueFull, match="key 'k' has reached max_key_depth=3") as caught:
        q.send(b"", key="k")
    assert (caught.value.key, caught.value.tenant, caught.value.hint_code) == ("k", None, "key_full")
    q.send(b"", key="another")
    q.receive(1, keys=["k"])[0].ack()
    q.send(b"", key="k")
    with pytest.raises(QueueFull):
        q.send(b"", key="k")


@pytest.mark.one_shard("each shard takes its messages, or refuses them")
def test_only_the_messages_of_the_noisy_are_refused(make: Opener) -> None:
    q = make(tenant_separator="/", max_key_depth=4)
    q.limit("loud", max_depth=5)
    q.limit("fast", send_rate=1.0, burst=2)
    q.send(b"", key="fast/1")
    keys = ["a/1", "loud/1", "fast/1", "loud/1", "a/2", *["a/deep"] * 5, *["loud/2"] * 4, "fast/2", "fast/3"]
    with pytest.raises(PartialFailure) as caught:
        q.send_many([Message(b"", key=key) for key in keys])
    refused = {key: r for key, r in zip(keys, caught.value.results, strict=True) if isinstance(r, Exception)}
    assert refused.keys() == {"loud/1", "loud/2", "a/deep", "fast/1", "fast/2", "fast/3"}
    assert isinstance(refused["loud/1"], QueueFull)
    assert refused["loud/1"].tenant == "loud"
    assert isinstance(refused["a/deep"], QueueFull)
    assert refused["a/deep"].key == "a/deep"
    assert isinstance(refused["fast/1"], Throttled)
    assert refused["fast/1"].tenant == "fast"
    assert Counter(str(d.key) for d in q.receive(100)) == {"a/1": 1, "a/2": 1, "fast/1": 1}


@pytest.mark.own_messages("of all tenants")
def test_stats_have_the_deepest_tenants(make: Opener) -> None:
    q = make()
    assert (q.stats().tenants, q.stats().other_tenants) == ((), 0)
    q.send(b"", key="plain")
    q.configure(tenant_separator="/")
    q.send_many([Message(b"", key=f"t{n:03}/{m}") for n in range(103) for m in range(1 + (n == 7))])
    found = q.stats()
    assert found.tenants[:3] == (TenantDepth("t007", 2), TenantDepth("", 1), TenantDepth("t000", 1))
    assert (len(found.tenants), found.other_tenants) == (100, 4)
    assert sum(one.depth for one in found.tenants) + found.other_tenants == found.depth


def test_sends_of_a_handler_are_not_limited(make: Opener) -> None:
    q = make(tenant_separator="/", max_key_depth=1)
    q.limit("*", max_depth=1)
    q.send(b"", key="a/1")
    (d,) = q.receive(1)
    with q.transaction(d) as tx:
        tx.send(b"", key="b/1")
        tx.send(b"", key="b/1")
    assert q.top_keys(1)[0].depth == 2
    with pytest.raises(QueueFull):
        q.send(b"", key="b/2")


def test_a_known_dedup_id_is_answered_at_the_limit(make: Opener) -> None:
    q = make(tenant_separator="/", max_key_depth=1)
    q.limit("a", max_depth=1)
    first = q.send(b"", key="a/1", dedup_id="x")
    assert q.send(b"", key="a/1", dedup_id="x") == first._replace(duplicate=True)
    with pytest.raises(QueueFull):
        q.send(b"", key="a/1", dedup_id="y")


@pytest.mark.one_shard("a receive passes over shards that another process writes to")
def test_a_tenant_has_at_most_so_many_keys_in_flight(make: Opener, clock: FakeClock) -> None:
    q = make(tenant_separator="/", lease_seconds=10.0, shards=2)
    q.limit("a", concurrency=2)
    for n in range(6):
        for _ in range(2):
            q.send(b"", key=f"a/{n}")
    q.send_many([Message(b"", key=f"b/{n}") for n in range(5)])
    first = q.receive(100)
    assert Counter(str(d.key)[0] for d in first if d.seq == 1) == {"a": 2, "b": 5}
    assert not q.receive(100)
    assert q.tenants()[0].in_flight == 2
    waits = next(f"a/{n}" for n in range(6) if f"a/{n}" not in {d.key for d in first})
    explained = q.explain(waits)
    assert (explained.state, "tenant a has 2 keys in flight" in explained.text) == ("throttled", True)
    held = next(d.key for d in first if str(d.key).startswith("a"))
    q.ack_many([d for d in first if d.key == held])
    clock.advance(0.1)
    again = q.receive(100)
    assert len({d.key for d in again}) == 1
    assert not q.receive(100)
    clock.advance(10.0)
    assert len({d.key for d in q.receive(100) if str(d.key).startswith("a")}) == 2
    q.limit("a", concurrency=None)
    assert len({d.key for d in q.receive(100) if str(d.key).startswith("a")}) >= 2


@pytest.mark.one_shard("other shards are looked at every 20 ms")
def test_a_lease_that_ends_sooner_frees_its_slot_then(make: Opener, clock: FakeClock) -> None:
    """As it does where the process of a worker died: its leases then end at once."""
    q = make(tenant_separator="/", lease_seconds=600.0)
    q.limit("a", concurrency=1)
    for n in range(2):
        q.send(b"", key=f"a/{n}")
    (d,) = q.receive(1)
    assert not q.receive(1)
    d.extend(1.0)
    assert not q.receive(1)
    clock.advance(1.1)
    assert len(q.receive(10)) == 1


@pytest.mark.one_shard("one call leases in each shard")
def test_one_receive_leases_no_more_keys_than_permitted(make: Opener) -> None:
    q = make(tenant_separator="/")
    q.limit("*", concurrency=3)
    q.send_many([Message(b"", key=f"a/{n}") for n in range(10)])
    for _ in range(3):
        batch = q.receive(10)
        assert len(batch) == 3
        q.ack_many(batch)


@pytest.mark.one_shard("a receive passes over shards that another process writes to")
@pytest.mark.own_messages("those of the other process are another tenant's")
@pytest.mark.one_shard("each shard has its own tenants")
@pytest.mark.parametrize("limit", [{"concurrency": 12}, {"receive_rate": 0.001, "burst": 52}])
def test_tenants_take_no_turns_until_a_limit_is_reached(make: Opener, limit: dict[str, Any]) -> None:
    """Then exactly as much is delivered as the limit permits, also of lanes that came by arrival."""
    q = make(tenant_separator="/", lease_seconds=600.0)
    q.limit("*", **limit)
    for _ in range(4):
        q.send_many([Message(b"", key=f"{name}/{n}") for n in range(10) for name in "ab"])
        with q.receive(30) as batch:
            assert len(batch) == 20
            assert not takes_turns(q)
            q.ack_many(list(batch))
    q.send_many([Message(b"", key=f"{name}/{n}") for n in range(20) for name in "ab"])
    first = q.receive(100)
    assert Counter(str(d.key)[0] for d in first) == {"a": 12, "b": 12}
    assert takes_turns(q)
    assert not q.receive(100)
    q.ack_many(first)
    q.limit("*", receive_rate=None, burst=None)
    assert len(q.receive(100)) == 16
    q.send(b"", key="a/99")
    assert len(q.receive(100)) == 1
    assert not takes_turns(q)
    assert not q.check()


def test_a_send_rate_adapts_to_the_age_of_the_oldest_message(make: Opener, clock: FakeClock) -> None:
    q = make(tenant_separator="/", shards=2)
    q.limit("a", send_rate=10.0, burst=1, target_age_seconds=5.0)
    q.send(b"", key="a/1")
    clock.advance(5.0)
    q.send(b"", key="a/2")
    with pytest.raises(Throttled, match="more than 10 messages a second"):
        q.send(b"", key="a/2")
    clock.advance(20.0)
    q.send(b"", key="a/2")
    with pytest.raises(Throttled, match="more than 2 messages a second") as caught:
        q.send(b"", key="a/2")
    assert caught.value.retry_after == pytest.approx(0.5, abs=0.01)
    q.ack_many(q.receive(10))
    clock.advance(1.0)
    q.send(b"", key="a/3")
    with pytest.raises(Throttled, match="more than 10 messages a second"):
        q.send(b"", key="a/3")


def test_a_limit_may_be_bad_input() -> None:
    for wrong in (0, -1, 1.5, True, "3", 2**54):
        with pytest.raises(strictq.ConfigError, match="max_depth must be a whole number from 1 to"):
            strictq.TenantLimit("a", max_depth=wrong)  # type: ignore[arg-type]
        with pytest.raises(strictq.ConfigError, match="max_key_depth must be"):
            QueueConfig(max_key_depth=wrong)  # type: ignore[arg-type]
    for name in ("burst", "concurrency"):
        for wrong in (0, -1, 1.5, True, "3"):
            with pytest.raises(strictq.ConfigError, match=f"{name} must be a whole number from 1 to"):
                strictq.TenantLimit("a", send_rate=1.0, **{name: wrong})  # type: ignore[arg-type]
    for age in (0, -1.0, float("nan"), True, "3"):
        with pytest.raises(strictq.ConfigError, match="target_age_seconds must be a number from"):
            strictq.TenantLimit("a", send_rate=1.0, target_age_seconds=age)  # type: ignore[arg-type]
    with pytest.raises(strictq.ConfigError, match="target_age_seconds reduces send_rate: give that"):
        strictq.TenantLimit("a", target_age_seconds=1.0)


def test_a_refused_limit_changes_nothing(make: Opener) -> None:
    q = make()
    with pytest.raises(strictq.ConfigError, match="limits need tenant_separator"):
        q.limit("a", max_depth=1)
    q.configure(tenant_separator="/")
    before = q.limit("a", max_depth=5, concurrency=2)
    for wrong in ({"burst": 1}, {"max_depth": 0}, {"concurrency": -2}, {"target_age_seconds": 1.0}):
        with pytest.raises(strictq.ConfigError):
            q.limit("a", **wrong)  # type: ignore[arg-type]
    assert q.config.limits == (before,)
