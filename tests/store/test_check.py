"""check() finds every broken invariant, repairs what it can without a loss, and never fails itself."""

from __future__ import annotations

import ast
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest

import strictq
from strictq import Message, Queue
from strictq._store.catalog import queue_db
from strictq._store.shard import checking
from strictq._store.whole import check as check_module
from strictq.testing import FakeClock
from tests.support.folds import fold as write_rows
from tests.support.internals import connected, connection_of, fold, seal, shard_of, store_of, tamper
from tests.support.queues import Opener, drain, fill, keys_by_shard, labels, shard_file

PAGE = 4096
NAMES = [
    "ready", "deep", "leased", "dead", "held", "delayed", "retried", "redriven", "holed", "waiting", "done", "state", "empty",
]  # fmt: skip


def put_to_rest(q: Queue) -> None:
    """Write the rows of all lanes, cut the journals, and let memory forget the lanes."""
    for shard in store_of(q).shards:
        write_rows(q, shard.number)
        shard.run(lambda tx: tx.lanes.begin_anew())


@cache
def names(shard: int = 0, shards: int = 2) -> dict[str, str]:
    """Return a key for each purpose, all in one shard."""
    found: dict[str, str] = {}
    with strictq.open(":memory:", shards=shards) as q:
        for name in [*NAMES, "other", "another"]:
            n = 0
            while store_of(q).shard_of(b"s%s-%d" % (name.encode(), n)).number != shard:
                n += 1
            found[name] = f"{name}-{n}"
    return found


def furnish(q: Queue, clock: FakeClock) -> None:
    """Bring a lane into every state."""
    key = names()
    q.send_many([Message(b"%d" % n, key=key[name]) for name in NAMES if name not in ("deep", "empty") for n in range(4)])
    q.send_many([Message(b"", key=key["deep"], dedup_id=str(n)) for n in range(1500)])
    q.send_many([Message(b"", key=n) for n in range(40)])
    q.ack_many(q.receive(40, keys=list(range(40))))
    q.send(b"", key["empty"])
    q.receive(1, keys=[key["empty"]])[0].ack()
    for d in q.receive(700, keys=[key["deep"]])[::2]:
        d.ack()
    q.receive(2, keys=[key["leased"]], lease_seconds=1e6)
    q.receive(1, keys=[key["dead"]])[0].reject("no")
    q.hold(key["held"], "a reason")
    (first,) = q.receive(1, keys=[key["delayed"]])
    first.defer(1000.0)
    (first,) = q.receive(1, keys=[key["retried"]])
    first.nack(delay=0.0)
    first, second, *_ = q.receive(4, keys=[key["redriven"]])
    second.reject("no")
    first.ack()
    q.redrive(key["redriven"])
    q.receive(4, keys=[key["holed"]])[1].ack()
    q.receive(1, keys=[key["waiting"]])[0].reject("no")
    q.receive(2, keys=[key["waiting"]], lease_seconds=1e6)
    q.redrive(key["waiting"])
    (d,) = q.receive(1, keys=[key["state"]])
    with q.transaction(d) as tx:
        tx.key_state = b"state"
    q.send(b"", delay=1.0)
    clock.advance(100.0)
    q.receive(1, keys=[key["done"]])[0].ack()


def reports(q: Queue) -> list[Any]:
    """Return what every look says."""
    keys = [*names().values(), 3]
    stats = attrs.evolve(q.stats(), disk_bytes=0, wal_bytes=0, shards=())
    found: list[Any] = [stats, q.peek(limit=60), q.dead_letters(), q.top_keys(20), q.top_keys(20, by="age")]
    for key in keys:
        found += [q.explain(key), q.peek(key, limit=2000)]
        found += [q.status(key, seq) for seq in (1, 2, 3) if key != 3 and not str(key).startswith(("empty", "other", "another"))]
    return found


@pytest.mark.own_messages("reports of one state")
def test_a_queue_in_every_state_has_no_problems_and_looks_the_same_at_rest(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2, keyless="random")
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
    """One broken invariant: the rule that reports it, how it is made, and whether check(fix=True) repairs it."""

    rule: str
    sql: tuple[str, ...]
    fixable: bool = False


def seed(rule: str, *sql: str, fixable: bool = False, name: str = "") -> Any:
    return pytest.param(Seed(rule, sql, fixable), id=f"{rule}: {name}" if name else rule)


def blob(key: str) -> str:
    return f"x'{b's'.hex()}{key.encode().hex()}'"


READY, DEEP, LEASED, DEAD, HELD, DELAYED, WAITING, EMPTY = (
    blob(names()[name]) for name in ("ready", "deep", "leased", "dead", "held", "delayed", "waiting", "empty")
)
OTHER = blob(names(1)["other"])
FREE = "token = NULL, deadline = NULL, held = NULL, started = NULL, holder = NULL"

SEEDS = [
    seed("key", "UPDATE lane SET key = x'7a7a' WHERE key = " + READY, name="of no type"),
    seed("key", "UPDATE lane SET key = x'73' WHERE key = " + READY, name="empty"),
    seed("key", "UPDATE lane SET key = x'73ff' WHERE key = " + READY, name="not UTF-8"),
    seed("key", "UPDATE lane SET key = x'69787878' WHERE key = " + READY, name="not a number"),
    seed("key", "UPDATE key_state SET key = x'7a7a'", name="of a state"),
    seed("key", f"UPDATE message SET key = x'7a7a' WHERE key = {READY} AND seq = 4", name="of a message"),
    seed("hash_range", f"UPDATE lane SET key = {OTHER} WHERE key = {READY}", name="lane"),
    seed("hash_range", f"UPDATE dedup SET key = {OTHER} WHERE dedup_id = '7'", name="dedup id"),
    seed("hash_range", f"UPDATE dead SET key = {OTHER}", name="dead letter"),
    seed("place", f"UPDATE lane SET position = NULL WHERE key = {READY}", fixable=True, name="ready, but not listed"),
    seed("place", f"UPDATE lane SET due = 5 WHERE key = {READY}", fixable=True, name="listed twice"),
    seed("place", f"UPDATE lane SET due = NULL WHERE key = {DELAYED}", fixable=True, name="delayed, but not listed"),
    seed("place", f"UPDATE lane SET due = due + 1 WHERE key = {DELAYED}", fixable=True, name="due at another time"),
    seed("place", f"UPDATE lane SET held_at = NULL WHERE key = {HELD}", fixable=True, name="held, not listed so"),
    seed("place", f"UPDATE lane SET held_at = 5 WHERE key = {READY}", fixable=True, name="not held, and listed so"),
    seed("place", f"UPDATE lane SET position = 5 WHERE key = {HELD}", fixable=True, name="held, and listed"),
    seed("place", f"UPDATE lane SET opts = NULL, held_at = NULL WHERE key = {HELD}", fixable=True, name="no longer held"),
    seed("place", f"UPDATE lane SET position = 5 WHERE key = {LEASED}", fixable=True, name="leased, and listed"),
    seed("place", f"UPDATE lane SET {FREE} WHERE key = {LEASED}", fixable=True, name="no longer leased"),
    seed("place", f"UPDATE lane SET position = 5 WHERE key = {EMPTY}", fixable=True, name="listed, but empty"),
    seed("lane", f"UPDATE lane SET tail = tail + 1 WHERE key = {READY}", name="tail"),
    seed("lane", f"UPDATE lane SET first = 9 WHERE key = {READY}", name="first"),
    seed("lane", f"UPDATE lane SET ids = x'00' WHERE key = {READY}", name="ids"),
    seed("lane", f"UPDATE lane SET opts = '[' WHERE key = {HELD}", name="opts"),
    seed("lane", f"UPDATE lane SET opts = CAST(x'ff' AS TEXT) WHERE key = {HELD}", name="text that is none"),
    seed("lane", f"UPDATE lane SET done = '[' WHERE key = {EMPTY}", name="done"),
    seed("lane", f"UPDATE lane SET holder = '' WHERE key = {LEASED}", name="holder"),
    seed("lane", f"DELETE FROM pending WHERE key = {DEEP}", name="parts"),
    seed("lane", f"DELETE FROM pending WHERE key = {DEEP} AND first = (SELECT max(first) FROM pending)", name="the last part"),
    seed("gone", f"UPDATE lane SET first = 2, ids_from = 2, ids = substr(ids, 9) WHERE key = {READY}", name="a lost head"),
    seed("counter", f"UPDATE lane SET first = 2, ids_from = 2, ids = substr(ids, 9) WHERE key = {READY}", name="a lost head"),
    seed("gone", f"DELETE FROM lane WHERE key = {READY}", name="the row of a lane"),
    seed("pending", "INSERT INTO pending VALUES (x'737a', 1, x'')", fixable=True),
    seed("message", f"DELETE FROM message WHERE key = {READY} AND seq = 2", name="gone"),
    seed("message", f"UPDATE message SET seq = 77 WHERE key = {READY} AND seq = 2", name="another seq"),
    seed("message", f"UPDATE message SET key = {LEASED} WHERE key = {READY} AND seq = 4", name="another lane's"),
    seed("arrival", f"UPDATE lane SET ids = (SELECT ids FROM lane WHERE key = {HELD}) WHERE key = {READY}"),
    seed("redrive", f"UPDATE lane SET {FREE} WHERE key = {WAITING}", fixable=True),
    seed("token", f"UPDATE lane SET token = token + 1000000 WHERE key = {LEASED}", name="of a lease"),
    seed("token", "UPDATE mark SET last_token = 0", name="last_token"),
    seed("token", "UPDATE mark SET epoch = 0, last_token = 0", name="epoch"),
    seed("token", f"UPDATE lane SET {FREE}", "UPDATE mark SET last_token = 2", name="of a settled lease"),
    seed("lsn", f"UPDATE lane SET lsn = 1000000 WHERE key = {READY}"),
    seed("lease", f"UPDATE lane SET started = 99 WHERE key = {LEASED}", name="started past the tail"),
    seed("lease", f"UPDATE lane SET started = -3 WHERE key = {LEASED}", name="started before it began"),
    seed("lease", f"UPDATE lane SET held = 60 WHERE key = {LEASED}", name="past the tail"),
    seed("lease_order", f"UPDATE lane SET holder = replace(holder, ',1,', ',2,') WHERE key = {LEASED}"),
    seed("dead_seq", "UPDATE dead SET seq = 99", name="never issued"),
    seed("dead_seq", "DELETE FROM message WHERE id IN (SELECT id FROM dead)", name="its message is gone"),
    seed("dead_seq", f"UPDATE dead SET key = {READY}", name="of another lane"),
    seed(
        "dead_seq", f"INSERT INTO dead SELECT key, id, seq, 1, 'rejected', 'no' FROM message WHERE key = {READY} AND seq = 1",
        "UPDATE mark SET dead = dead + 1", name="in the lane as well",
    ),
    seed("body", f"UPDATE message SET body = NULL WHERE key = {READY} AND seq = 2", name="of a message"),
    seed("body", "UPDATE message SET body = NULL WHERE id IN (SELECT id FROM dead)", name="of a dead letter"),
    seed("value", f"UPDATE message SET opts = 'x' WHERE key = {READY} AND seq = 2", name="headers"),
    seed("value", f"UPDATE message SET expires = -5 WHERE key = {READY} AND seq = 2", name="expires"),
    seed("value", "UPDATE trouble SET attempts = -1 WHERE attempts > 0", name="attempts"),
    seed("expires", f"UPDATE message SET expires = 1 << 60 WHERE key = {READY} AND seq = 2"),
    seed("gone", "DELETE FROM gone", fixable=True, name="resolved rows are not noted"),
    seed("gone", "UPDATE gone SET bits = x'00'", fixable=True, name="too few bits"),
    seed("gone", "UPDATE gone SET bits = CAST(zeroblob(16) AS BLOB)", fixable=True, name="no bits"),
    seed(
        "gone", "INSERT OR REPLACE INTO gone VALUES (99999, CAST(zeroblob(15) || x'01' AS BLOB), zeroblob(16))", fixable=True,
        name="no row",
    ),
    seed(
        "gone", "INSERT OR REPLACE INTO gone SELECT id / 128, unhex('ffffffffffffffffffffffffffffffff'), zeroblob(16)"
        f" FROM message WHERE key = {READY} AND seq = 1", fixable=True, name="of unresolved messages",
    ),
    seed("trouble", "INSERT INTO trouble VALUES (999999, 1, NULL, NULL, NULL, NULL)", fixable=True),
    seed("dedup", "UPDATE dedup SET id = 999999"),
    seed("mark", "UPDATE mark SET counted = 1000000"),
    seed("counter", "UPDATE mark SET pending = pending + 5", fixable=True, name="pending"),
    seed("counter", "UPDATE mark SET dead = 7", fixable=True, name="dead"),
    seed("counter", "UPDATE mark SET lanes = lanes + 1", fixable=True, name="lanes"),
    seed(
        "counter", f"INSERT INTO outbox (destination, id, key, sent_at, body) VALUES (1, 50, {OTHER}, 1, x'')",
        name="last_outbox",
    ),
    seed(
        "outbox", f"INSERT INTO outbox (destination, id, key, sent_at, body) VALUES (77, 1, {OTHER}, 1, x'')",
        "INSERT OR REPLACE INTO meta VALUES ('last_outbox', 1)", name="to no shard",
    ),
    seed("integrity", "PRAGMA ignore_check_constraints = ON", "UPDATE mark SET one = 2", name="a constraint"),
    seed("unreadable", "DELETE FROM mark", name="mark"),
    seed("log", "UPDATE mark SET cut = cut - 1", name="a gap"),
    seed("recorded_batch", "INSERT INTO handout_rejected VALUES ('etl', 9, 1)", name="rejected of none"),
    seed("recorded_batch", "INSERT INTO handout VALUES ('etl', 1, 'acked', 1, 0, 0, 1)", name="of no consumer"),
    seed("recorded_batch", f"UPDATE lane SET deadline = 4611686018427387904 WHERE key = {LEASED}", name="endless"),
]  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeClock, int]:
    """Return a closed queue in every state, at rest; the clock that it was made with; and how many messages it has."""
    clock = FakeClock()
    opener = Opener(str(tmp_path_factory.mktemp("template") / "queue"), clock)
    q = opener(shards=2, keyless="random")
    furnish(q, clock)
    put_to_rest(q)
    stats = q.stats()
    opener.close()
    fold(shard_file(opener.path, 0))
    return Path(opener.path), clock, stats.depth + stats.dead


@pytest.fixture
def messages(template: tuple[Path, FakeClock, int], disk: Opener, clock: FakeClock) -> int:
    """Put a copy of the template where `disk` opens queues. Return how many messages it has."""
    place, made_with, messages = template
    shutil.copytree(place, disk.path)
    clock.advance((made_with.boot() - clock.boot()) / 1e6)
    return messages


def contents(disk: Opener) -> list[tuple[Any, ...]]:
    """Return every message of the damaged shard."""
    return tamper(shard_file(disk.path, 0), "SELECT * FROM message ORDER BY id")


@pytest.mark.slow
@pytest.mark.parametrize("broken", SEEDS)
def test_a_broken_invariant_is_reported_and_mended_where_nothing_is_lost(
    disk: Opener, clock: FakeClock, messages: int, broken: Seed
) -> None:
    tamper(shard_file(disk.path, 0), *broken.sql)
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
    if broken.rule != "gone" or not broken.fixable:
        assert contents(disk) == before, "mending loses nothing"
    if broken.fixable:
        assert left == []
        _use_up(q, clock, messages)


def _use_up(q: Queue, clock: FakeClock, messages: int) -> None:
    """Use a repaired queue: everything in it is delivered once, in order."""
    q.release(names()["held"])
    clock.advance(2e6)
    q.redrive()
    got = []
    while batch := q.receive(100):
        got += labels(batch)
        q.ack_many(batch)
    assert len(got) == len(set(got)) == messages
    for key in {k for k, _ in got}:
        seqs = [s for k, s in got if k == key]
        assert key is None or seqs == sorted(seqs), key
    assert q.check() == []


def test_every_rule_has_a_seed() -> None:
    rules: set[str] = set()
    for module in (check_module, checking):
        for node in ast.walk(ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))):
            if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple) and isinstance(node.value.elts[0], ast.Constant):
                rules.add(node.value.elts[0].value)
    assert len(rules) > 15
    assert rules <= {p.values[0].rule for p in SEEDS} | {"turn", "tenant_depth", "parcel"}


def test_tenants_take_turns_with_the_lanes_that_are_ready(disk: Opener) -> None:
    q = disk(tenant_separator="/")
    for key in ("a/1", "a/2", "b/1", "common"):
        q.send(b"", key=key)
    q.receive(1)
    put_to_rest(q)
    assert q.check() == []
    for sql in ("DELETE FROM turn", "UPDATE turn SET position = position + 1", "INSERT INTO turn VALUES (x'7361', x'61', 5)"):
        connection_of(q).execute(sql)
        found = q.check()
        assert {(p.rule, p.fixable) for p in found} == {("turn", True)}, sql
        q.check(fix=True)
        assert q.check() == [], sql
    assert len(drain(q)) == 3


def test_the_depths_of_tenants_are_those_of_their_lanes(disk: Opener) -> None:
    q = disk(tenant_separator="/")
    for key in ("a/1", "a/1", "b/1", "common"):
        q.send(b"", key=key)
    q.receive(1)[0].ack()
    put_to_rest(q)
    q.send(b"", key="a/1")
    assert q.check() == []
    for sql in ("DELETE FROM tenant_depth", "UPDATE tenant_depth SET depth = depth + 1 WHERE tenant = x'62'"):
        connection_of(q).execute(sql)
        found = q.check()
        assert {(p.rule, p.fixable) for p in found} == {("tenant_depth", True)}, sql
        q.check(fix=True)
        assert q.check() == [], sql
    assert {t.tenant: t.depth for t in q.tenants()} == {"a": 2, "b": 1, "": 1}


@pytest.mark.usefixtures("messages")
def test_a_sound_queue_has_no_problems(disk: Opener) -> None:
    q = disk()
    before = contents(disk)
    assert q.check(fix=True) == []
    assert contents(disk) == before


def test_a_check_opens_the_catalog_once(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    connect = queue_db.connect_catalog
    monkeypatch.setattr(queue_db, "connect_catalog", lambda path, **options: opened.append(path) or connect(path, **options))
    q = disk()
    fill(q, 5, 20)
    opened.clear()
    assert q.check() == []
    assert len(opened) == 1


@pytest.mark.usefixtures("messages")
def test_who_only_looks_may_check_but_not_mend(disk: Opener) -> None:
    tamper(shard_file(disk.path, 0), "UPDATE mark SET pending = pending + 1")
    looker = disk.open(read_only=True, durability=None)
    assert [p.rule for p in looker.check()] == ["counter"]
    with pytest.raises(strictq.ReadOnlyQueue):
        looker.check(fix=True)


def test_a_memory_that_differs_from_the_file_is_reported_and_built_anew(disk: Opener, clock: FakeClock) -> None:
    q = disk(shards=2, keyless="random")
    furnish(q, clock)
    lanes = shard_of(q).lanes
    lanes.memory.lanes[b"s" + names()["ready"].encode()].tail += 1
    lanes.memory.totals.pending += 3
    assert {p.rule for p in q.check()} == {"memory"}
    assert all(p.fixed for p in q.check(fix=True))
    assert q.check() == []


MEANWHILE: list[tuple[str, str, Callable[[Queue], object]]] = [
    ("a send", "UPDATE mark SET pending = pending + 1", lambda q: q.send(b"", names()["ready"])),
    ("a new key", "UPDATE mark SET lanes = lanes + 1", lambda q: q.send(b"", names()["another"])),
    ("a purge", f"UPDATE lane SET {FREE} WHERE key = {WAITING}", lambda q: q.purge(names()["waiting"], dead=True)),
    ("a hold", f"UPDATE lane SET position = NULL WHERE key = {READY}", lambda q: q.hold(names()["ready"])),
    ("an ack", "DELETE FROM gone", lambda q: q.ack_many(q.receive(4, keys=[names()["done"]]))),
]


@pytest.mark.usefixtures("messages")
@pytest.mark.parametrize(("sql", "act"), [pytest.param(sql, act, id=name) for name, sql, act in MEANWHILE])
def test_mending_beside_a_running_queue_does_no_harm(
    disk: Opener, monkeypatch: pytest.MonkeyPatch, sql: str, act: Callable[[Queue], object]
) -> None:
    """Other writers continue between check and repair. What is broken at the time of the repair is repaired."""
    tamper(shard_file(disk.path, 0), sql)
    q, other = disk(), disk()
    looked: list[int] = []
    real = check_module.check

    def look(db: apsw.Connection, shard: int, *rest: Any) -> Any:
        found = real(db, shard, *rest)
        if shard == 0 and not looked:
            looked.append(1)
            act(other)
        return found

    monkeypatch.setattr(check_module, "check", look)
    q.check(fix=True)
    assert looked
    monkeypatch.undo()
    put_to_rest(q)
    q.check(fix=True)  # a lane that another process changed is written by the fold alone
    assert q.check() == []


# --- damage below the tables ---------------------------------------------------------------------------------------------


@pytest.fixture
def folded(disk: Opener) -> Path:
    """Return a shard's file, alone and large enough to be damaged anywhere."""
    q = disk()
    q.send_many([Message(b"x" * (n % 900), key=f"k{n % 30}", headers={"h": "é"}) for n in range(400)])
    q.receive(20)
    q.app_schema("CREATE TABLE app_t (x TEXT) STRICT")
    put_to_rest(q)
    q.send_many([Message(b"y", key=f"k{n}") for n in range(40)])
    q.receive(20)
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
    root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'lane_ready'").get
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
    tamper(shard_file(disk.path, 0), "UPDATE mark SET pending = pending + 1")
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
    ((root,),) = tamper(file, "SELECT rootpage FROM sqlite_schema WHERE name = 'trouble'")
    damaged = bytearray(file.read_bytes())
    damaged[(root - 1) * PAGE + 2000] ^= 1
    file.write_bytes(damaged)
    q = disk()
    (problem,) = q.check()
    assert problem.rule == "unreadable"
    assert "its checksum is wrong" in problem.detail
    assert q.stats().shards[0].quarantined is not None


def test_findings_are_bounded(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "PROBLEMS_MAX", 20)
    q = disk()
    q.send_many([Message(b"", key=f"k{n}") for n in range(100)])
    put_to_rest(q)
    connection_of(q).execute("UPDATE lane SET position = NULL")
    assert len(q.check()) == 20
    for _ in range(6):
        q.check(fix=True)
    assert q.check() == []
    assert len(drain(q)) == 100
