"""The depths of tenants are counted by every change, and stored by folds."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from strictq import Message, Queue
from strictq._store.lane import entries
from strictq._store.lane.live_lane import LiveLane
from strictq._store.lane.memory import ShardMemory, StoreLimits
from strictq._store.lane.tenant_counts import TenantCounts
from strictq._values.keys import encode_key
from strictq._values.tenants import TenantRules
from tests.support.folds import fold, narrow
from tests.support.internals import store_of
from tests.support.queues import Opener


def depths(q: Queue) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for shard in store_of(q).shards:
        found.update(shard.survey(lambda lanes: lanes.tenant_depths()))
    return found


def test_dead_letters_that_are_purged_do_not_count(disk: Opener) -> None:
    """While all unresolved messages are of one tenant: its own dead letters, and another one's."""
    q = disk(tenant_separator="/")
    keys = ("t/a", "u/a")
    for key in keys:
        q.send(b"bad", key)
        q.receive(1)[0].reject("no")
    q.send(b"", "t/b")
    assert depths(q) == {b"t": 1}
    for key in keys:
        q.purge(key, dead=True)
    assert q.stats().dead == 0
    assert depths(q) == truth(q) == {b"t": 1}


def test_another_process_changes_the_separator(disk: Opener) -> None:
    """Lanes that this one has named by the separator before."""
    q, other = disk(tenant_separator="/"), disk()
    q.send_many([Message(b"", key=key) for key in ("a/x-1", "b/x-1", "b/y-2") for _ in range(3)])
    q.nack_many(q.receive(3, per_key=1))
    other.configure(tenant_separator="-")
    other.send(b"", "c/z-3")
    for d in q.receive(3, per_key=1):
        d.ack()
    assert depths(q) == depths(other) == truth(other) == {b"a/x": 2, b"b/x": 2, b"b/y": 2, b"c/z": 1}


def test_lanes_forget_the_names_that_they_keep_once_counts_have_another_separator() -> None:
    key = encode_key("a/x-1")
    memory = ShardMemory(0, StoreLimits())
    memory.take_turns(TenantRules("/", ()))
    lane = memory.lanes[key] = LiveLane(key, 0)
    assert lane.tenant_by(b"/") == b"a"
    counts = TenantCounts(b"-", [b"b", b"c"])
    memory.count_tenants(counts)
    assert memory.tenancy is None  # until the settings are read again
    counts.arrived([lane, lane], pending=2)
    assert counts.changes == {b"a/x": 2}
    counts.apply((0, entries.ACK, *[None] * 8), [(lane, [1])])
    assert counts.changes == {b"a/x": 1}
    counts.follow_leases([(key, 5)], [])
    assert counts.note([lane]) == {b"a/x"}  # not leased any more
    assert counts.leased == {}


@pytest.mark.parametrize("seed", range(4))
def test_the_depths_of_tenants_are_those_of_their_keys(disk: Opener, seed: int) -> None:
    """After each kind of change, folds and a new start, with lanes at rest; also where the separator was set later."""
    chance = random.Random(seed)
    late = seed % 2
    with narrow(chance.choice((4, 24, 1000))):
        q = disk(max_attempts=2, retry_delay_seconds=0.0, **({} if late else {"tenant_separator": "/"}))
        for step in range(250):
            what = chance.random()
            if what < 0.5:
                q.send_many([Message(b"", key=f"t{chance.randrange(5)}/{chance.randrange(9)}") for _ in range(3)])
            elif what < 0.52:  # what comes next may be the only tenant for a while
                for d in q.receive(1000):
                    d.ack()
                for _ in range(9):
                    q.send(b"", key="t3/x" if chance.random() < 0.9 else "u/x")
                    for d in q.receive(3, per_key=1):
                        chance.choice((d.ack, d.nack, lambda d=d: d.reject("no")))()
            elif what < 0.9:
                for d in q.receive(chance.choice((1, 5)), per_key=1):
                    chance.choice((d.ack, d.ack, d.nack, lambda d=d: d.reject("no")))()
            elif what < 0.93:
                q.purge(f"t{chance.randrange(5)}/{chance.randrange(9)}")
            elif what < 0.96:
                q.redrive()
            else:
                fold(q)
            if step == 100 and late:
                q.configure(tenant_separator="/")
            if step % 50 == 49 and not (late and step < 100):
                assert depths(q) == truth(q)
        assert depths(q) == truth(q)
        assert q.check() == []
        q.configure(tenant_separator="t")
        q.configure(tenant_separator="/")
        assert depths(q) == truth(q)
        q.close()
        assert depths(disk()) == truth(disk())


def truth(q: Queue) -> dict[bytes, int]:
    return {one.tenant.encode(): one.depth for one in q.tenants() if one.depth}
