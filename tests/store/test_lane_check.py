"""check() of format 3 finds what is broken, repairs what loses nothing, and reports on lanes at rest are those of loaded ones."""

from __future__ import annotations

from typing import Any

import apsw
import attrs
import pytest

from strictq import Message, Queue
from strictq.testing import FakeClock
from tests.support.folds import fold
from tests.support.internals import shard_of, tamper
from tests.support.queues import Opener, drain, shard_file

KEYS = ["ready", "deep", "leased", "dead", "held", "delayed", "retried", "redriven", "holed", "empty"]


def put_to_rest(q: Queue) -> None:
    """Write the rows of all lanes, cut the journal, and let memory forget them."""
    fold(q)
    shard_of(q).run(lambda tx: tx.lanes.begin_anew())


def furnish(q: Queue, clock: FakeClock) -> None:
    """Bring a lane into every state."""
    q.send_many([Message(b"%d" % n, key=key) for key in KEYS if key not in ("deep", "empty") for n in range(4)])
    q.send_many([Message(b"", key="deep", dedup_id=str(n)) for n in range(1500)])
    q.send_many([Message(b"", key=n) for n in range(40)])
    q.ack_many(q.receive(40, keys=list(range(40))))
    q.send(b"", "empty")
    q.receive(1, keys=["empty"])[0].ack()
    for d in q.receive(700, keys=["deep"])[::2]:
        d.ack()
    q.receive(2, keys=["leased"], lease_seconds=1e6)
    q.receive(1, keys=["dead"])[0].reject("no")
    q.hold("held", "a reason")
    (first,) = q.receive(1, keys=["delayed"])
    first.defer(1000.0)
    (first,) = q.receive(1, keys=["retried"])
    first.nack(delay=0.0)
    first, second, *_ = q.receive(4, keys=["redriven"])
    second.reject("no")
    first.ack()
    q.redrive("redriven")
    q.receive(4, keys=["holed"])[1].ack()
    q.send(b"", delay=1.0)
    clock.advance(100.0)


def reports(q: Queue) -> list[Any]:
    """Return what every look says."""
    keys = [*KEYS, 3]
    stats = attrs.evolve(q.stats(), disk_bytes=0, wal_bytes=0, shards=())
    found: list[Any] = [stats, q.peek(limit=60), q.dead_letters(), q.top_keys(20), q.top_keys(20, by="age")]
    for key in keys:
        found += [q.explain(key), q.peek(key, limit=2000)]
        found += [q.status(key, seq) for seq in (1, 2, 3) if key not in (3, "empty")]
    return found


def test_a_queue_in_every_state_has_no_problems_and_looks_the_same_at_rest(make: Opener, clock: FakeClock) -> None:
    q = make(shards=1, keyless="random")
    furnish(q, clock)
    assert q.check() == []
    before = reports(q)
    put_to_rest(q)
    assert q.check() == []
    for one, other in zip(before, reports(q), strict=True):
        assert other == one
    assert q.check() == []


@attrs.frozen
class Seed:
    rule: str
    sql: tuple[str, ...]
    fixable: bool = False


def seed(rule: str, *sql: str, fixable: bool = False, name: str = "") -> Any:
    return pytest.param(Seed(rule, sql, fixable), id=f"{rule}: {name}" if name else rule)


READY, DEEP, HELD, DELAYED, LEASED = (
    f"x'{b's'.hex()}{key.encode().hex()}'" for key in ("ready", "deep", "held", "delayed", "leased")
)

SEEDS = [
    seed("place", f"UPDATE lane SET position = NULL WHERE key = {READY}", fixable=True, name="not listed"),
    seed("place", f"UPDATE lane SET due = NULL WHERE key = {DELAYED}", fixable=True, name="not due"),
    seed("place", f"UPDATE lane SET due = 5 WHERE key = {DELAYED}", fixable=True, name="due at another time"),
    seed("place", f"UPDATE lane SET held_at = NULL WHERE key = {HELD}", fixable=True, name="held, not listed"),
    seed("place", f"UPDATE lane SET position = 5 WHERE key = {HELD}", fixable=True, name="held, and listed"),
    seed("place", f"UPDATE lane SET position = 5 WHERE key = {LEASED}", fixable=True, name="leased, and listed"),
    seed("lane", f"UPDATE lane SET tail = tail + 1 WHERE key = {READY}", name="tail"),
    seed("lane", f"UPDATE lane SET ids = x'00' WHERE key = {READY}", name="ids"),
    seed("lane", f"UPDATE lane SET opts = '[' WHERE key = {HELD}", name="opts"),
    seed("lane", f"DELETE FROM pending WHERE key = {DEEP}", name="parts"),
    seed("pending", "INSERT INTO pending VALUES (x'737a', 1, x'')", fixable=True),
    seed("message", f"DELETE FROM message WHERE key = {READY} AND seq = 2", name="gone"),
    seed("message", f"UPDATE message SET seq = 77 WHERE key = {READY} AND seq = 2", name="another seq"),
    seed("key", "UPDATE lane SET key = x'7a7a' WHERE key = " + READY),
    seed("token", f"UPDATE lane SET token = token + 1000000 WHERE key = {LEASED}"),
    seed("lsn", f"UPDATE lane SET lsn = 1000000 WHERE key = {READY}"),
    seed("lease", f"UPDATE lane SET started = 99 WHERE key = {LEASED}"),
    seed("dead_seq", "UPDATE dead SET seq = 99"),
    seed("dead_seq", "DELETE FROM message WHERE id IN (SELECT id FROM dead)", name="its message is gone"),
    seed("body", f"UPDATE message SET body = NULL WHERE key = {READY} AND seq = 2"),
    seed("value", f"UPDATE message SET opts = 'x' WHERE key = {READY} AND seq = 2"),
    seed("value", f"UPDATE message SET expires = -5 WHERE key = {READY} AND seq = 2", name="expires"),
    seed("gone", "DELETE FROM gone", fixable=True, name="resolved rows are not noted"),
    seed(
        "gone",
        "INSERT OR REPLACE INTO gone VALUES (99999, CAST(zeroblob(15) || x'01' AS BLOB), zeroblob(16))",
        fixable=True,
        name="no row",
    ),
    seed("trouble", "INSERT INTO trouble VALUES (999999, 1, NULL, NULL, NULL, NULL)", fixable=True),
    seed("dedup", "UPDATE dedup SET id = 999999"),
    seed("counter", "UPDATE mark SET pending = pending + 5", fixable=True, name="pending"),
    seed("counter", "UPDATE mark SET dead = 7", fixable=True, name="dead"),
    seed("counter", "UPDATE mark SET lanes = lanes + 1", fixable=True, name="lanes"),
    seed("unreadable", "DELETE FROM mark", name="mark"),
    seed("log", "UPDATE mark SET cut = cut - 1", name="a gap"),
    seed("handout", "INSERT INTO handout_rejected VALUES ('etl', 9, 1)", name="rejected of none"),
    seed("handout", f"UPDATE lane SET deadline = 4611686018427387904 WHERE key = {LEASED}", name="endless"),
]


@pytest.mark.parametrize("broken", SEEDS)
def test_a_broken_invariant_is_reported_and_mended_where_nothing_is_lost(disk: Opener, clock: FakeClock, broken: Seed) -> None:
    q = disk(shards=1, keyless="random")
    furnish(q, clock)
    put_to_rest(q)
    before = q.stats()
    q.close()
    try:
        tamper(shard_file(disk.path, 0), *broken.sql)
    except apsw.ConstraintError:
        pytest.skip("the schema refuses it")
    q = disk()
    problems = q.check()
    assert broken.rule in {p.rule for p in problems}, problems
    found = [p for p in problems if p.rule == broken.rule]
    assert not broken.fixable or any(p.fixable for p in found)
    mended = q.check(fix=True)
    assert [p.rule for p in mended if p.fixable] == [p.rule for p in mended if p.fixed]
    if broken.fixable:
        assert q.check() == []
        q.release("held")
        clock.advance(2e6)
        q.redrive()
        got = drain(q)
        assert len(got) == len(set(got)) == before.depth + before.dead
        assert q.check() == []


def test_a_memory_that_differs_from_the_file_is_reported_and_built_anew(disk: Opener, clock: FakeClock) -> None:
    q = disk(shards=1, keyless="random")
    furnish(q, clock)
    lanes = shard_of(q).lanes
    assert lanes is not None
    lanes.memory.lanes[b"sready"].tail += 1
    lanes.memory.totals.pending += 3
    assert {p.rule for p in q.check()} == {"memory"}
    assert all(p.fixed for p in q.check(fix=True))
    assert q.check() == []
