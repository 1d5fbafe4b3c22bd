"""check() finds every broken invariant, repairs what it can without a loss, and never fails itself."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest

import strictq
from strictq import Message, Queue
from strictq._store.lanes import check as check_module
from strictq.testing import FakeClock
from tests.support.internals import connected, connection_of, fold, seal, store_of, tamper
from tests.support.queues import Opener, drain, fill, keys_by_shard, shard_file

pytestmark = pytest.mark.usefixtures("cold")  # they read the tables

PAGE = 4096


def furnish(disk: Opener, clock: FakeClock) -> tuple[Queue, dict[str, int]]:
    """Return a queue with a lane in every state, and the lanes' numbers."""
    q = disk(shards=2)
    keys = _keys(0)
    q.send_many([Message(b"%d" % n, key=keys[name]) for name in NAMES for n in range(4)])
    q.send(b"x" * 5000, keys["ready"], headers={"a": "b"})
    (batch,) = [q.receive(2, keys=[keys["leased"]])]
    assert len(batch) == 2
    (dying,) = q.receive(1, keys=[keys["dead"]])
    dying.reject("no")
    (dying,) = q.receive(1, keys=[keys["waiting"]])
    dying.reject("no")
    q.receive(2, keys=[keys["waiting"]], lease_seconds=1000.0)
    q.redrive(keys["waiting"])
    q.hold(keys["held"])
    q.send(b"", keys["delayed"], delay=1000.0)
    q.send(b"", keys["once"], dedup_id="d")
    q.receive(2, keys=[keys["expired"]], lease_seconds=1.0)
    clock.advance(2.0)
    q.receive(1, keys=[keys["nobody"]])
    (d,) = q.receive(1, keys=[keys["once"]])
    with q.transaction(d) as tx:
        tx.key_state = b"state"
    assert q.check() == []
    rows = store_of(q).shards[0].read(lambda db: db.execute("SELECT id, key FROM lane").fetchall())
    ids = {raw[1:].decode(): lane for lane, raw in rows}
    return q, {name: ids[key] for name, key in keys.items() if key in ids}


NAMES = ["ready", "leased", "dead", "waiting", "held", "once", "expired"]


def _keys(shard: int) -> dict[str, str]:
    """Return a key for each purpose, all in one shard."""
    found: dict[str, str] = {}
    with strictq.open(":memory:", shards=2) as q:
        for name in [*NAMES, "delayed", "nobody"]:
            n = 0
            while store_of(q).shard_of(b"s%s-%d" % (name.encode(), n)).number != shard:
                n += 1
            found[name] = f"{name}-{n}"
    return found


@attrs.frozen
class Seed:
    """One broken invariant: the rule that reports it, how it is made, and whether check(fix=True) repairs it."""

    rule: str
    sql: tuple[str, ...]
    fixable: bool = False
    name: str = ""


def seed(rule: str, *sql: str, fixable: bool = False, name: str = "") -> Any:
    made = Seed(rule, sql, fixable, name)
    return pytest.param(made, id=f"{rule}: {name}" if name else rule)


SEEDS = [
    seed("handout", "INSERT INTO handout_rejected VALUES ('etl', 9, 1)", name="rejected of none"),
    seed("handout", "INSERT INTO handout VALUES ('etl', 1, 'acked', 1, 0, 0, 1)", name="of nobody"),
    seed("key", "UPDATE lane SET key = x'7a7a' WHERE id = {ready}", name="of no type"),
    seed("key", "UPDATE lane SET key = x'73' WHERE id = {ready}", name="empty"),
    seed("key", "UPDATE lane SET key = x'73ff' WHERE id = {ready}", name="not UTF-8"),
    seed("key", "UPDATE lane SET key = x'69787878' WHERE id = {ready}", name="not a number"),
    seed("hash_range", "UPDATE lane SET key = x'{other}' WHERE id = {ready}"),
    seed("orphan", "DELETE FROM lane WHERE id = {ready}", "UPDATE counter SET lanes = lanes - 1", name="message"),
    seed("orphan", "INSERT INTO ready (position, lane) VALUES (-1, 999)", name="ready"),
    seed("orphan", "INSERT INTO delayed (lane, due) VALUES (999, 5)", name="delayed"),
    seed("orphan", "INSERT INTO key_state VALUES (999, x'00')", name="key_state"),
    seed("orphan", "INSERT INTO dedup VALUES (999, 'x', 1, 1, 9999999999999999)", name="dedup"),
    seed(
        "orphan", "INSERT INTO lease (lane, token, consumer, lo, hi, started, pending, leased_at, deadline)"
        " VALUES (999, 5, 'c', 1, 1, 1, 0, 0, 0)", name="lease",
    ),
    seed("lane_counts", "UPDATE lane SET resolved = resolved + 1 WHERE id = {ready}", name="resolved"),
    seed("lane_counts", "UPDATE lane SET last_seq = last_seq + 10 WHERE id = {ready}", name="last_seq"),
    seed(
        "lane_counts", "DELETE FROM message WHERE lane = {ready} AND seq = 2",
        "UPDATE counter SET pending = pending - 1", name="a message that vanished",
    ),
    seed("dead_seq", "UPDATE dead SET seq = 77 WHERE lane = {dead}", name="never issued"),
    seed("dead_seq", "UPDATE dead SET seq = 3 WHERE lane = {dead}", name="in the lane as well"),
    seed("dead_seq", "UPDATE dead SET lane = 999 WHERE lane = {dead}", name="of no lane"),
    seed(
        "arrival", "UPDATE message SET id = (SELECT id FROM message WHERE lane = {held} AND seq = 1)"
        " WHERE lane = {ready} AND seq = 1",
    ),
    seed("value", "UPDATE message SET attempts = -1 WHERE lane = {ready} AND seq = 1", name="attempts"),
    seed("value", "UPDATE message SET headers = 'not json' WHERE lane = {ready} AND seq = 1", name="headers"),
    seed("value", "UPDATE message SET expires = -5 WHERE lane = {ready} AND seq = 1", name="expires"),
    seed("dedup", "UPDATE dedup SET id = 999999"),
    seed("place", "DELETE FROM ready WHERE lane = {ready}", fixable=True, name="ready, but not listed"),
    seed("place", "DELETE FROM delayed WHERE lane = {delayed}", fixable=True, name="delayed, but not listed"),
    seed("place", "UPDATE lane SET hold = NULL, held_at = NULL WHERE id = {held}", fixable=True, name="no longer held"),
    seed("place", "UPDATE lane SET hold = 'x', held_at = 1 WHERE id = {ready}", fixable=True, name="held, and listed"),
    seed("place", "INSERT INTO ready (position, lane) VALUES (-1, {leased})", fixable=True, name="leased, and listed"),
    seed("place", "INSERT INTO delayed (lane, due) VALUES ({ready}, 5)", fixable=True, name="listed twice"),
    seed("place", "UPDATE delayed SET due = due + 1 WHERE lane = {delayed}", fixable=True, name="due at another time"),
    seed("place", "DELETE FROM ready WHERE lane = {expired}", fixable=True, name="expired, but not listed"),
    seed("place", "UPDATE ready SET careful = 0 WHERE lane = {expired}", fixable=True, name="to be claimed carefully"),
    seed("place", "UPDATE lane SET solo_to = 3 WHERE id = {ready}", fixable=True, name="solo"),
    seed("place", "DELETE FROM lease WHERE lane = {leased}", fixable=True, name="no longer leased"),
    seed(
        "place", "INSERT INTO lane (id, key, last_seq, resolved, active_at) VALUES (900, x'{empty}', 0, 0, 0)",
        "INSERT INTO ready (position, lane) VALUES (-1, 900)", "UPDATE counter SET lanes = lanes + 1, last_lane = 900",
        fixable=True, name="listed, but empty",
    ),
    seed("redrive", "DELETE FROM lease WHERE lane = {waiting}", fixable=True, name="its lease is gone"),
    seed("redrive", "UPDATE dead SET redrive = 1 WHERE lane = {dead}", fixable=True, name="there was no lease"),
    seed("lease", "UPDATE lease SET pending = pending + 1 WHERE lane = {leased}", fixable=True, name="counts too many"),
    seed("lease", "UPDATE lease SET pending = 0 WHERE lane = {leased}", fixable=True, name="counts none"),
    seed(
        "lease", "UPDATE lease SET lo = 50, hi = 60, started = 49, pending = 0 WHERE lane = {leased}",
        name="holds nothing",
    ),
    seed("token", "UPDATE lease SET token = token + 1000000 WHERE lane = {leased}"),
    seed("lease_order", "UPDATE lease SET lo = 2, pending = 1 WHERE lane = {leased}"),
    seed("body", "DELETE FROM body", name="of a message"),
    seed("body", "UPDATE dead SET body = NULL WHERE lane = {dead}", name="of a dead letter"),
    seed("body_unused", "INSERT INTO body VALUES (7777, x'00')", fixable=True),
    seed("counter", "UPDATE counter SET last_id = 1", name="last_id"),
    seed("counter", "UPDATE counter SET last_lane = 1", name="last_lane"),
    seed("counter", "UPDATE counter SET last_token = 0", name="last_token"),
    seed("counter", "UPDATE counter SET epoch = 0, last_token = 0", name="epoch"),
    seed(
        "counter", "INSERT INTO outbox (destination, id, key, sent_at, body) VALUES (1, 50, x'{other}', 1, x'')",
        name="last_outbox",
    ),
    seed("counter", "UPDATE counter SET pending = pending + 5", fixable=True, name="pending"),
    seed("counter", "UPDATE counter SET dead = 0", fixable=True, name="dead"),
    seed("counter", "UPDATE counter SET lanes = lanes + 1", fixable=True, name="lanes"),
    seed("counter", "UPDATE counter SET next_deadline = 1 << 62", fixable=True, name="next_deadline"),
    seed(
        "integrity", "PRAGMA ignore_check_constraints = ON", "UPDATE message SET seq = -1 WHERE lane = {ready} AND seq = 1",
        name="a constraint",
    ),
    # What no specific rule covers, and an operator would want to know.
    seed("counter", "DELETE FROM counter", name="it is gone"),
    seed("counter", "UPDATE dead SET id = 999999", name="arrival of a dead letter"),
    seed("lease", "UPDATE lease SET hi = 60, pending = 4 WHERE lane = {leased}", name="past the tail"),
    seed("lease", "UPDATE lease SET started = lo - 3 WHERE lane = {leased}", name="started before it began"),
    seed(
        "outbox", "INSERT INTO outbox (destination, id, key, sent_at, body) VALUES (77, 1, x'{other}', 1, x'')",
        "UPDATE counter SET last_outbox = 1", name="to no shard",
    ),
    seed("value", "UPDATE lane SET hold = CAST(x'ff' AS TEXT), held_at = 1 WHERE id = {held}", name="text that is none"),
]  # fmt: skip


def _harm(disk: Opener, seed: Seed, lanes: dict[str, int]) -> None:
    fold(shard_file(disk.path, 0))
    other = ("s" + keys_by_shard(2)[1]).encode().hex()
    empty = ("s" + next(k for n in range(99) if (k := f"empty-{n}") and _shard(k) == 0)).encode().hex()
    tamper(shard_file(disk.path, 0), *[s.format(other=other, empty=empty, **lanes) for s in seed.sql])


def _shard(key: str) -> int:
    with strictq.open(":memory:", shards=2) as q:
        return store_of(q).shard_of(b"s" + key.encode()).number


def contents(disk: Opener) -> dict[str, list[tuple[Any, ...]]]:
    """Return what must not be lost: every message, dead letter and body of the damaged shard."""
    file = shard_file(disk.path, 0)
    rows = tamper(file, "SELECT lane, seq, id, body FROM message UNION ALL SELECT lane, seq, id, body FROM dead ORDER BY 3")
    return {"messages": rows, "bodies": tamper(file, "SELECT data FROM body WHERE id <> 7777 ORDER BY id")}


@pytest.mark.parametrize("broken", SEEDS)
def test_a_broken_invariant_is_reported_and_mended_where_nothing_is_lost(disk: Opener, clock: FakeClock, broken: Seed) -> None:
    q, lanes = furnish(disk, clock)
    q.close()
    _harm(disk, broken, lanes)
    before = contents(disk)
    # Opening forwards what waits, so read that through a read-only queue.
    q = disk.open(read_only=True, durability=None) if "outbox" in broken.sql[0] else disk()
    problems = q.check()
    assert broken.rule in {p.rule for p in problems}, problems
    assert {p.shard for p in problems} == {0}, "the other shard is well"
    assert not any(p.fixed for p in problems)
    found = [p for p in problems if p.rule == broken.rule]
    assert any(p.fixable for p in found) is broken.fixable
    q.close()
    assert contents(disk) == before, "looking changes nothing"
    q = disk()

    mended = q.check(fix=True)
    assert [p.rule for p in mended if p.fixable] == [p.rule for p in mended if p.fixed]
    left = q.check()
    assert [p for p in left if p.fixable] == []
    q.close()
    if broken.rule != "redrive":  # that repair moves a message back into its lane
        assert contents(disk) == before, "mending loses nothing"
    if broken.fixable:
        assert left == []
        _use_up(disk, clock, before)


def _use_up(disk: Opener, clock: FakeClock, before: dict[str, list[tuple[Any, ...]]]) -> None:
    """Use a repaired queue: everything in it is delivered once, in order."""
    q = disk()
    for name in NAMES:
        q.release(_keys(0)[name])
    q.redrive()
    clock.advance(100_000.0)
    got = drain(q)
    assert len(got) == len(set(got)) == len(before["messages"])
    for key in {k for k, _ in got}:
        seqs = [s for k, s in got if k == key]
        assert seqs == sorted(seqs), key
    assert q.check() == []


def test_every_rule_has_a_seed() -> None:
    tree = ast.parse(Path(check_module.__file__).read_text(encoding="utf-8"))
    rules = {
        node.value.elts[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple) and isinstance(node.value.elts[0], ast.Constant)
    }
    assert len(rules) > 10
    assert rules <= {p.values[0].rule for p in SEEDS}  # type: ignore[attr-defined]


def test_a_sound_queue_has_no_problems(disk: Opener, clock: FakeClock) -> None:
    q, _ = furnish(disk, clock)
    before = contents(disk)
    assert q.check(fix=True) == []
    assert contents(disk) == before


def test_who_only_looks_may_check_but_not_mend(disk: Opener, clock: FakeClock) -> None:
    q, _ = furnish(disk, clock)
    q.close()
    tamper(shard_file(disk.path, 0), "UPDATE counter SET pending = pending + 1")
    looker = disk.open(read_only=True, durability=None)
    assert [p.rule for p in looker.check()] == ["counter"]
    with pytest.raises(strictq.ReadOnlyQueue):
        looker.check(fix=True)


MEANWHILE: list[tuple[str, str, Callable[[Queue, dict[str, str]], object]]] = [
    ("a send", "UPDATE counter SET pending = pending + 1", lambda q, keys: q.send(b"", keys["ready"])),
    ("a new key", "UPDATE counter SET lanes = lanes + 1", lambda q, keys: q.send(b"", keys["nobody"])),
    ("a redrive", "UPDATE dead SET redrive = 1 WHERE lane = {dead}", lambda q, keys: q.purge(keys["dead"], dead=True)),
    ("a claim", "DELETE FROM ready WHERE lane = {ready}", lambda q, keys: q.hold(keys["ready"])),
]


@pytest.mark.parametrize(("sql", "act"), [pytest.param(sql, act, id=name) for name, sql, act in MEANWHILE])
def test_mending_beside_a_running_queue_does_no_harm(
    disk: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, sql: str, act: Callable[[Queue, dict[str, str]], object]
) -> None:
    """Other writers continue between check and repair. What is broken at the time of the repair is repaired."""
    q, lanes = furnish(disk, clock)
    q.close()
    tamper(shard_file(disk.path, 0), sql.format(**lanes))
    q, other = disk(), disk()
    looked: list[int] = []
    real = check_module.check

    def look(db: apsw.Connection, shard: int, *rest: Any) -> Any:
        found = real(db, shard, *rest)
        if shard == 0 and not looked:
            looked.append(1)
            act(other, _keys(0))
        return found

    monkeypatch.setattr("strictq._store.lanes.check.check", look)
    q.check(fix=True)
    assert looked
    monkeypatch.undo()
    assert q.check() == []


# --- damage below the tables ---------------------------------------------------------------------------------------------


@pytest.fixture
def folded(disk: Opener) -> Path:
    """Return a shard's file, alone and large enough to be damaged anywhere."""
    q = disk()
    q.send_many([Message(b"x" * (n % 900), key=f"k{n % 30}", headers={"h": "é"}) for n in range(400)])
    q.receive(20)
    q.app_schema("CREATE TABLE app_t (x TEXT) STRICT")
    q.close()
    file = shard_file(disk.path)
    fold(file)
    for suffix in ("-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)
    return file


@pytest.mark.parametrize("start", range(10))
def test_flipped_bits_are_reported_or_unseen_but_never_crash(disk: Opener, folded: Path, start: int) -> None:
    whole = folded.read_bytes()
    chance = random.Random(start)
    for _ in range(6):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 1, 4, 40])):
            at = chance.randrange(100, len(damaged))
            damaged[at] ^= 1 << chance.randrange(8)
        folded.write_bytes(damaged)
        for suffix in ("-wal", "-shm"):
            Path(f"{folded}{suffix}").unlink(missing_ok=True)
        q = disk.open(durability=None)
        for problem in q.check():
            assert problem.shard == 0
            assert problem.rule
            assert problem.detail
        q.close()


def test_a_damaged_page_is_reported_by_its_place(disk: Opener, folded: Path) -> None:
    damaged = bytearray(folded.read_bytes())
    for page in range(2, len(damaged) // PAGE):
        damaged[page * PAGE] = 0xFF  # there is no such kind of page
    folded.write_bytes(damaged)
    problems = disk.open(durability=None).check()
    assert {p.rule for p in problems} <= {"integrity", "unreadable"}
    assert problems


def test_a_missing_index_entry_is_reported(disk: Opener, folded: Path) -> None:
    """The table and its index disagree: integrity_check sees it."""
    db = connected(folded)
    root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_lane_1'").get
    db.close()
    damaged = bytearray(folded.read_bytes())
    count = (root - 1) * PAGE + 3
    damaged[count : count + 2] = (int.from_bytes(damaged[count : count + 2], "big") - 1).to_bytes(2, "big")
    seal(damaged, root)
    folded.write_bytes(damaged)
    problems = disk.open(durability=None).check(fix=True)
    assert {p.rule for p in problems} == {"integrity"}
    assert not any(p.fixed for p in problems)


def test_a_quarantined_shard_is_reported_and_the_others_are_read(disk: Opener) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    fill(q, keys[0], 2)
    q.close()
    tamper(shard_file(disk.path, 1), "UPDATE meta SET value = 'other' WHERE name = 'queue_id'")
    tamper(shard_file(disk.path, 0), "UPDATE counter SET pending = pending + 1")
    q = disk()
    assert sorted((p.shard, p.rule) for p in q.check()) == [(0, "counter"), (1, "unreadable")]
    assert [p.shard for p in q.check(fix=True) if p.fixed] == [0]
    assert [p.shard for p in q.check()] == [1]


def test_a_page_that_only_a_check_reads_is_reported_for_what_it_is(disk: Opener) -> None:
    q = disk()
    fill(q, "k", 2)
    q.close()
    file = shard_file(disk.path)
    fold(file)
    ((root,),) = tamper(file, "SELECT rootpage FROM sqlite_schema WHERE name = 'dead'")
    damaged = bytearray(file.read_bytes())
    damaged[(root - 1) * PAGE + 2000] ^= 1
    file.write_bytes(damaged)
    q = disk()
    (problem,) = q.check()
    assert problem.rule == "unreadable"
    assert "its checksum is wrong" in problem.detail
    assert q.stats().shards[0].quarantined is not None


def test_findings_are_bounded(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "FINDINGS_MAX", 20)
    q = disk()
    q.send_many([Message(b"", key=f"k{n}") for n in range(100)])
    connection_of(q).execute("DELETE FROM ready")
    assert len(q.check()) == 20
    for _ in range(6):
        q.check(fix=True)
    assert q.check() == []
    assert len(drain(q)) == 100
