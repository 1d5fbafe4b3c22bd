"""The readable part of a damaged queue is saved. The rest is reported, and never invented."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import statistics
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

import strictq
from strictq import InvalidArgument, Message, QueueConfig, QueueNotFound, RecordedBatchGone, Salvaged, StoreBusy, StoreCorrupt
from strictq._store.disk import locks
from strictq._values.findings import LostRange
from strictq._values.keys import encode_key
from strictq.testing import FakeClock
from tests.support.folds import fold, narrow
from tests.support.format_1 import unpacked
from tests.support.internals import PAGE_BYTES, store_of, tamper
from tests.support.powercut import quiet
from tests.support.queues import fill, keys_by_shard, shard_file
from tests.support.recorded_batches import Label, by_key, drain, holder, read

FLIPS = int(os.environ.get("STRICTQ_FLIPS", "100")) // 2
SEED = int(os.environ.get("STRICTQ_FLIP_SEED", "1"))
KEYS = 30
SCHEMA = """
CREATE TABLE app_ledger (n INTEGER PRIMARY KEY, what TEXT) STRICT;
CREATE TABLE app_log (line TEXT, PRIMARY KEY (line)) STRICT, WITHOUT ROWID;
"""


@attrs.frozen
class Told:
    """A message as it was sent."""

    body: bytes
    headers: dict[str, str]


@attrs.define
class Made:
    """A closed queue with rows in every table, and its contents."""

    path: Path
    clock: FakeClock
    pending: dict[tuple[Any, int], Told] = attrs.Factory(dict)
    dead: dict[tuple[Any, int], Told] = attrs.Factory(dict)
    issued: dict[Any, int] = attrs.Factory(dict)
    token: int = 0


def make(directory: Path, *, checkpointed: bool, folded: bool = False) -> Made:
    chance = random.Random(5)
    made = Made(directory / "queue", FakeClock())
    config = QueueConfig(max_attempts=None)
    small = narrow() if folded else nullcontext()
    with small, quiet(made.clock), strictq.open(made.path, shards=2, clock=made.clock, config=config) as q:
        q.app_schema(SCHEMA)
        for part in range(4):
            for n in range(KEYS):
                size = chance.choice((10, 300, 700, 2000, 9000))
                messages = [
                    Message(chance.randbytes(size), key=f"k{n}", headers={"n": str(i)} if i % 3 else {}) for i in range(10)
                ]
                for message, receipt in zip(messages, q.send_many(messages), strict=True):
                    made.pending[receipt.key, receipt.seq] = Told(message.body, dict(message.headers or {}))
                    made.issued[receipt.key] = receipt.seq
            if part < 3 or checkpointed:
                for shard in store_of(q).shards:
                    shard.checkpoint()
        for n in range(0, KEYS, 2):
            for i, d in enumerate(q.receive(5, keys=[f"k{n}"])):
                made.token = max(made.token, d.token)
                told = made.pending.pop((d.key, d.seq))
                if i % 2:
                    d.reject("no")
                    made.dead[d.key, d.seq] = told
                else:
                    with q.transaction(d) as tx:
                        tx.key_state = b"state"
                        tx.execute("INSERT INTO app_ledger (what) VALUES (?)", (str(d.key),))
                        tx.execute("INSERT INTO app_log VALUES (?)", (f"{d.key} {d.seq}",))
        q.hold("k1")
        if checkpointed:
            for shard in store_of(q).shards:
                shard.checkpoint()
        store_of(q).die()  # closing it would empty the WALs
    return made


def contents(path: Path, clock: FakeClock) -> tuple[dict[tuple[Any, int], Told], dict[tuple[Any, int], Told]]:
    with quiet(clock), strictq.open(path, clock=clock, create=False) as q:
        pending = {(f"k{n}", m.seq): Told(m.body, dict(m.headers)) for n in range(KEYS) for m in q.peek(f"k{n}", 1000)}
        dead = {(d.key, d.seq): Told(d.body, dict(d.headers)) for d in q.dead_letters(limit=10_000)}
    return pending, dead


def digest(path: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(path.iterdir()) if p.is_file()}


@pytest.mark.parametrize("folded", [False, True], ids=["logs", "folded"])
@pytest.mark.parametrize("checkpointed", [True, False])
def test_an_undamaged_queue_comes_through_whole(place: Path, checkpointed: bool, folded: bool) -> None:
    made = make(place, checkpointed=checkpointed, folded=folded)
    before = digest(made.path)
    found = strictq.salvage(made.path, place / "out", clock=made.clock)
    assert found == Salvaged(len(made.pending), len(made.dead), (), ())
    assert digest(made.path) == before, "the damaged files are not touched"
    assert contents(place / "out", made.clock) == (made.pending, made.dead)
    with quiet(made.clock), strictq.open(place / "out", clock=made.clock) as q, strictq.open(made.path, clock=made.clock) as old:
        assert q.check() == []
        assert q.config == old.config
        for sql in ("SELECT * FROM app_ledger", "SELECT * FROM app_log"):
            assert sorted(q.query(sql), key=repr) == sorted(old.query(sql), key=repr)
        for n in range(KEYS):
            assert q.send(b"", f"k{n}").seq == made.issued[f"k{n}"] + 1
        assert q.explain("k1").state == "held"
        batch = q.receive(1000)
        assert {d.key_state for d in batch if d.key in {f"k{n}" for n in range(0, KEYS, 2)}} == {b"state"}
        assert min(d.token for d in batch) > made.token
        stats, before_stats = q.stats(), old.stats()
        assert (stats.sends, stats.dead) == (before_stats.sends + KEYS, before_stats.dead)


def test_what_else_a_queue_remembers_comes_through(place: Path) -> None:
    """Sends in an outbox, dedup ids and history records are saved."""
    clock = FakeClock()
    here, there = keys_by_shard(2).values()
    config = QueueConfig(history="bodies", dedup_window_seconds=3600.0)
    with quiet(clock), strictq.open(place / "queue", shards=2, clock=clock, config=config) as q:
        assert q.send(b"once", there, dedup_id="id").seq == 1
        for n in range(3):
            q.send(b"%d" % n, here)
        (first, *_) = q.receive(1, keys=[here])
        first.ack()
        store_of(q).shards[1].failed = StoreCorrupt("for this test", shard=1)
        (second, *_) = q.receive(1, keys=[here])
        with pytest.raises(strictq.ForwardPending), q.transaction(second) as tx:
            tx.key_state = b"state"
            tx.send(b"forwarded", there)
        store_of(q).shards[1].failed = None
        before = [(r.key, r.seq, r.outcome, r.body) for r in q.history()]
    found = strictq.salvage(place / "queue", place / "out", clock=clock)
    assert (found.messages, found.lost, found.notes) == (3, (), ()), "opening the new queue forwards the send"
    with quiet(clock), strictq.open(place / "out", clock=clock) as q:
        assert q.send(b"again", there, dedup_id="id").duplicate
        assert [(m.seq, m.body) for m in q.peek(there)] == [(1, b"once"), (2, b"forwarded")]
        assert [(r.key, r.seq, r.outcome, r.body) for r in q.history()] == before
        assert len(before) == 2
        (d,) = q.receive(1, keys=[here])
        assert (d.seq, d.key_state) == (3, b"state")
        assert q.check() == []


def handed_out(place: Path, clock: FakeClock) -> list[list[Label]]:
    """Make a closed queue with a named consumer at work: batches 1 and 2 are acked, 3 is open."""
    with quiet(clock), strictq.open(place / "queue", shards=2, clock=clock) as q:
        for key in keys_by_shard(2).values():
            fill(q, key, 9)
        h = holder(q)
        for n in range(3):
            h.take(n, messages_max=4)
        labels = [read(q, h, n) for n in (1, 2, 3)]
        for shard in store_of(q).shards:
            shard.checkpoint()
    return labels


def test_errors_and_outputs_come_through(place: Path) -> None:
    settings = QueueConfig(max_attempts=2, retry_delay_seconds=0.0, retry_for_seconds=0.0, history="records")
    with strictq.open(place / "queue", config=settings) as q:
        for key in ("failed", "dead", "acked"):
            q.send(b"", key)
            q.receive(keys=[key])[0].nack(reason=f"first of {key}", output="page 1")
        q.receive(keys=["dead"])[0].nack(reason="second")
        q.receive(keys=["acked"])[0].ack()
        before = (q.status("failed", 1), q.dead_letters(), q.history())
    strictq.salvage(place / "queue", place / "saved")
    with strictq.open(place / "saved") as q:
        assert (q.status("failed", 1), q.dead_letters(), q.history()) == before
        assert [e.error for e in q.dead_letters()[0].errors] == ["first of dead", "second"]


@pytest.mark.parametrize("folded", [False, True], ids=["logs", "folded"])
def test_what_messages_went_through_comes_through(place: Path, folded: bool) -> None:
    """Attempts, delays, holds, redriven and parked messages, dead letters, and what was in flight."""
    clock, path = FakeClock(), place / "queue"
    config = QueueConfig(max_attempts=4, retry_delay_seconds=0.0, keyless="random", keyless_lanes=1, on_poison="hold")
    keys = ("nacked", "redriven", "held", "expiring", "poison", "released", "delayed")
    small = narrow(8, 2) if folded else nullcontext()
    with small, quiet(clock), strictq.open(path, clock=clock, config=config) as q:
        q.send_many([Message(b"%d" % n) for n in range(4)])
        a, b, c = q.receive(3)
        c.ack()
        b.reject("never")
        a.nack(delay=300.0, reason="later")
        for key in (*keys[:-1], "leased"):
            q.send_many([Message(b"%d" % n, key=key, ttl=5000.0 if key == "expiring" else None) for n in range(4)])
        q.send_many([Message(b"1", key="delayed", delay=500.0), Message(b"2", key="delayed")])
        first, second = q.receive(2, keys=["nacked"])
        first.ack()
        second.nack(delay=100.0, reason="not yet")
        for d in q.receive(3, keys=["redriven"]):
            if d.seq < 3:
                d.reject("no")
            else:
                d.ack()
        q.redrive("redriven", seqs=[1])
        q.hold("held", "for a while")
        for key in ("poison", "released"):
            while got := q.receive(1, keys=[key]):
                got[0].nack(reason="bad")
        q.release("released")
        leased = q.receive(3, keys=["leased"])
        leased[0].start()
        store_of(q).die()

    def seen(path: Path) -> list[Any]:
        with quiet(clock), strictq.open(path, clock=clock, create=False) as q:
            assert q.check() == []
            stats = q.stats()
            found: list[Any] = [stats.depth, stats.dead, stats.held, stats.delayed, stats.lanes, stats.retries, q.dead_letters()]
            for key in keys:
                messages = q.peek(key, 10)
                found += [q.explain(key), messages, [q.status(key, m.seq) for m in messages]]
            return found

    before = seen(path)
    found = strictq.salvage(path, place / "out", clock=clock)
    assert (found.lost, found.notes, found.unverified) == ((), (), ())
    assert seen(place / "out") == before
    with quiet(clock), strictq.open(place / "out", clock=clock) as q:
        assert [(m.state, m.attempts) for m in q.peek("leased", 10)] == [("ready", 1), *[("ready", 0)] * 3]
        assert [d.seq for d in q.receive(10, keys=["leased"])] == [1], "it may have killed its consumer"
        assert [d.seq for d in q.receive(10, keys=["redriven"])] == [1, 4]
        clock.advance(400.0)
        assert [(d.body, d.attempt) for d in q.receive(100) if d.key is None] == [(b"3", 1), (b"0", 2)]


def test_rows_that_format_1_wrote_come_through(place: Path) -> None:
    """They lack the columns that were added later. The shard was migrated, so its tables begin elsewhere."""
    clock = FakeClock()
    old = unpacked("busy", place / "old")
    strictq.migrate(old, clock=clock)

    def held(path: Path) -> Any:
        with strictq.open(path, clock=clock) as q:
            assert q.check() == []
            return [
                (m.key, m.seq, m.body) for key in ("backlog0", "large", "nacked", "held") for m in q.peek(key)
            ], q.dead_letters()

    saved = strictq.salvage(old, place / "saved", clock=clock)
    assert (saved.lost, saved.notes) == ((), ())
    found = held(place / "saved")
    assert found == held(old)
    assert len(found[0]) == 10
    assert len(found[1]) == 1


@pytest.mark.parametrize("catalog", ["whole", "lost"])
def test_an_older_format_is_refused(place: Path, catalog: str) -> None:
    old = unpacked("busy", place / "old")
    if catalog == "lost":
        (old / "queue.db").write_bytes(os.urandom(PAGE_BYTES))
    before = digest(old)
    with pytest.raises(strictq.SchemaMismatch, match="its format is 1") as caught:
        strictq.salvage(old, place / "in" / "saved")
    assert "the version of strictq that wrote it" in caught.value.hint
    assert digest(old) == before
    assert not (place / "in").exists()


def test_a_named_consumer_goes_on_where_it_was(place: Path) -> None:
    clock = FakeClock()
    labels = handed_out(place, clock)
    found = strictq.salvage(place / "queue", place / "out", clock=clock)
    assert (found.lost, found.notes) == ((), ())
    with quiet(clock), strictq.open(place / "out", clock=clock) as q:
        assert q.check() == []
        assert q.stats().in_flight == 4
        h = holder(q)
        assert (h.acked, h.last) == (2, 3)
        assert [read(q, h, n) for n in (1, 2, 3)] == labels
        assert len(q.receive(100)) == 0, "their lanes are held by what is open"
        assert h.take(2) == 3
        assert read(q, h, 3) == labels[2]
        rest = drain(q, h)
        assert by_key([*labels[0], *labels[1], *labels[2], *rest]) == {
            f"s{k}": list(range(1, 10)) for k in keys_by_shard(2).values()
        }
        assert q.check() == []
    with quiet(clock), strictq.open(place / "queue", clock=clock) as old, strictq.open(place / "out", clock=clock) as new:
        assert new.check() == []
        before, after = (max(k.epoch for k in q._storage.recorded_batches.known("etl").values()) for q in (old, new))
        assert after > before


@pytest.mark.parametrize("table", ["handout_block", "handout", "consumer", "message"])
def test_a_recorded_batch_that_is_not_whole_is_released_and_reported(place: Path, table: str) -> None:
    """Its messages become ready, and it can't be read as a smaller batch."""
    clock = FakeClock()
    labels = handed_out(place, clock)
    file = shard_file(place / "queue", 0)
    ((root,),) = tamper(file, f"SELECT rootpage FROM sqlite_schema WHERE name = '{table}'")
    raw = bytearray(file.read_bytes())
    raw[(root - 1) * PAGE_BYTES : root * PAGE_BYTES] = os.urandom(PAGE_BYTES)
    file.write_bytes(raw)
    found = strictq.salvage(place / "queue", place / "out", clock=clock)
    assert found.notes
    with quiet(clock), strictq.open(place / "out", clock=clock) as q:
        assert q.check() == []
        h = holder(q)
        seen = {(key, seq) for some in labels[:2] for key, seq, _ in some}
        for n in (1, 2, 3):
            with suppress(RecordedBatchGone):
                assert read(q, h, n) == labels[n - 1]
        with pytest.raises(RecordedBatchGone):
            read(q, h, 3 if table != "handout_block" else 1)
        h.close()
        got = [(f"s{d.key}", d.seq) for _ in range(5) for d in q.receive(100)]
        assert not seen & set(got)
        everything = {(f"s{key}", seq) for key in keys_by_shard(2).values() for seq in range(1, 10)}
        missing = everything - seen - set(got)
        assert len(got) + len(missing) == 10
        assert all(is_covered(found.lost, key[1:], seq) for key, seq in missing), missing


def damaged(made: Made, place: Path, name: str, chance: random.Random, bits: int) -> tuple[Path, list[int]]:
    copy = place / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(made.path, copy)
    raw = bytearray((copy / name).read_bytes())
    hits = [chance.randrange(len(raw) * 8) for _ in range(bits)]
    for bit in hits:
        raw[bit // 8] ^= 1 << bit % 8
    (copy / name).write_bytes(raw)
    return copy, hits


def is_covered(ranges: Sequence[LostRange], key: Any, seq: int) -> bool:
    return any((r.key is None or r.key == key) and r.first <= seq and (r.last is None or seq <= r.last) for r in ranges)


@pytest.mark.in_turn
@pytest.mark.parametrize("folded", [False, True], ids=["logs", "folded"])
@pytest.mark.parametrize(
    ("name", "checkpointed"),
    [("shard-0000.db", True), ("shard-0000.db", False), ("shard-0000.db-wal", False), ("queue.db", True)],
)
def test_what_is_saved_is_what_was_sent_and_what_is_lost_is_reported(
    place: Path, name: str, checkpointed: bool, folded: bool
) -> None:
    made = make(place, checkpointed=checkpointed, folded=folded)
    chance = random.Random(SEED)
    others = of_shard_1()
    parts = []
    for n in range(FLIPS // 4 + 1):
        copy, hits = damaged(made, place, name, chance, chance.choice((1, 1, 3, 20)))
        before = digest(copy)
        shutil.rmtree(place / "out", ignore_errors=True)
        found = strictq.salvage(copy, place / "out", clock=made.clock)
        assert digest(copy) == before
        pending, dead = contents(place / "out", made.clock)
        where = f"round {n}, bits {hits}: {found.notes}"
        for saved, sent in ((pending, made.pending), (dead, made.dead)):
            wrong = {k for k, v in saved.items() if sent.get(k) != v}
            if not any("acked a short time ago may be delivered again" in note for note in found.notes):
                assert all(is_covered(found.unverified, key, seq) for key, seq in wrong), where
            missing = sent.keys() - saved.keys()
            if "queue" in name:
                assert not missing, where
            for key, seq in missing:
                assert key not in others, where
                assert is_covered(found.lost, key, seq), (key, seq, where)
        parts.append(len(pending) / len(made.pending))
        with quiet(made.clock), strictq.open(place / "out", clock=made.clock) as q:
            assert q.check() == [], where
            for i in range(KEYS):
                assert q.send(b"", f"k{i}").seq > made.issued[f"k{i}"], where
    assert statistics.median(parts) > 0.9


def of_shard_1() -> set[Any]:
    """Return the keys in the undamaged shard."""
    with strictq.open(":memory:", shards=2) as q:
        return {f"k{n}" for n in range(KEYS) if store_of(q).shard_of(encode_key(f"k{n}")).number == 1}


def arrived(path: Path, clock: FakeClock, *, folded: bool) -> list[tuple[str, int]]:
    """Send to three lanes in turn, five messages per page. Return them in order of arrival."""
    with quiet(clock), strictq.open(path, clock=clock, durability="process") as q:
        sent = [(f"k{n % 3}", q.send(b"x" * 700, key=f"k{n % 3}").seq) for n in range(60)]
        if folded:
            fold(q)
        q.ack_many(q.receive(2, per_key=2))
    return sent


def page_of_messages(path: Path, which: int) -> tuple[int, set[int]]:
    """Return a page with messages, and the arrival numbers in it, according to SQLite's own statistics."""
    rows = tamper(
        shard_file(path),
        "SELECT pageno, ncell FROM dbstat WHERE name = 'message' AND pagetype = 'leaf' ORDER BY path",
    )
    before = sum(cells for _, cells in rows[: which % len(rows)]) - 1  # row 0 is no message
    page, cells = rows[which]
    return page, set(range(max(before, 0) + 1, before + cells + 1))


@pytest.mark.parametrize("folded", [False, True], ids=["logs", "folded"])
@pytest.mark.parametrize("which", [0, 4, -1])
def test_what_a_page_of_messages_held_is_reported_by_key(place: Path, which: int, folded: bool) -> None:
    """At its end the number of lost messages is unknown, for any lane and for lost lanes. No seq is issued twice."""
    clock = FakeClock()
    sent = arrived(place / "queue", clock, folded=folded)
    page, numbers = page_of_messages(place / "queue", which)
    gone = {sent[n - 1] for n in numbers}
    file = shard_file(place / "queue")
    raw = bytearray(file.read_bytes())
    raw[(page - 1) * PAGE_BYTES : page * PAGE_BYTES] = os.urandom(PAGE_BYTES)
    file.write_bytes(raw)
    found = strictq.salvage(place / "queue", place / "out", clock=clock)
    acked = {("k0", 1), ("k0", 2)}
    assert all(is_covered(found.lost, key, seq) for key, seq in gone - acked)
    with quiet(clock), strictq.open(place / "out", clock=clock) as q:
        assert q.check() == []
        left = {(f"k{n}", m.seq) for n in range(3) for m in q.peek(f"k{n}", 100)}
        assert left == set(sent) - gone - acked
        if which != -1:
            told = gone - acked if folded else gone  # which of a lane's new messages were acked is not known
            assert {r.key for r in found.lost} == {key for key, _ in told}
            assert sum(r.last - r.first + 1 for r in found.lost if r.last is not None) == len(told)
        else:
            assert any(r.key is None for r in found.lost)
        for n in range(3):
            assert q.send(b"", key=f"k{n}").seq > 20
        if which == -1:
            assert q.send(b"", key="never seen").seq > 60, "it may have been there, with nothing left of it"


@pytest.mark.parametrize(
    ("table", "part"),
    [
        *((table, "leaf") for table in ("lane", "pending", "gone", "dead", "journal", "trouble", "mark", "dedup", "key_state")),
        *((table, "root") for table in ("lane", "journal")),
    ],
)
def test_messages_outlive_the_other_tables(place: Path, table: str, part: str) -> None:
    """Each table is lost in turn. Messages come through, dead letters stay dead, and what is not certain is reported."""
    made = make(place, checkpointed=True, folded=True)
    file = shard_file(made.path, 0)
    kind = "AND pagetype = 'leaf'" if part == "leaf" else ""
    pages = [page for (page,) in tamper(file, f"SELECT pageno FROM dbstat WHERE name = '{table}' {kind} ORDER BY path")]
    raw = bytearray(file.read_bytes())
    for page in pages[:1]:
        raw[(page - 1) * PAGE_BYTES : page * PAGE_BYTES] = os.urandom(PAGE_BYTES)
    file.write_bytes(raw)
    found = strictq.salvage(made.path, place / "out", clock=made.clock)
    assert found.lost == ()
    assert any(table in note or "counters are lost" in note for note in found.notes), found.notes
    pending, dead = contents(place / "out", made.clock)
    assert {k: v for k, v in pending.items() if k in made.pending} == made.pending
    again = pending.keys() - made.pending.keys()
    assert all(is_covered(found.unverified, key, seq) for key, seq in again)
    assert not again or table in ("gone", "journal")
    assert dead.keys() >= made.dead.keys()
    assert dead == made.dead or table == "dead"
    with quiet(made.clock), strictq.open(place / "out", clock=made.clock) as q:
        assert q.check() == []
        for n in range(KEYS):
            assert q.send(b"", f"k{n}").seq > made.issued[f"k{n}"]
        if table not in ("lane", "journal"):
            assert q.explain("k1").state == "held"
        with suppress(strictq.UnknownMessage):
            q.release("k1")
        taken: dict[str, list[int]] = {}
        while batch := q.receive(100):
            for d in batch:
                assert d.token > made.token
                taken.setdefault(str(d.key), []).append(d.seq)
            q.ack_many(batch)
        assert all(seqs == sorted(set(seqs)) for seqs in taken.values())
        assert sum(map(len, taken.values())) == len(pending) + KEYS


def test_a_shard_that_is_gone_leaves_the_others(place: Path) -> None:
    made = make(place, checkpointed=True)
    shard_file(made.path, 0).unlink()
    found = strictq.salvage(made.path, place / "out", clock=made.clock)
    others = of_shard_1()
    assert contents(place / "out", made.clock)[0] == {k: v for k, v in made.pending.items() if k[0] in others}
    assert found.lost[0].key is None


def test_the_first_page_may_be_lost(place: Path) -> None:
    """The roots of the tables are known without it."""
    made = make(place, checkpointed=True)
    file = shard_file(made.path, 0)
    raw = file.read_bytes()
    file.write_bytes(os.urandom(PAGE_BYTES) + raw[PAGE_BYTES:])
    Path(f"{file}-wal").write_bytes(b"")
    found = strictq.salvage(made.path, place / "out", clock=made.clock)
    assert found.lost == ()
    assert any("own tables" in note for note in found.notes)
    assert contents(place / "out", made.clock) == (made.pending, made.dead)


def test_only_a_closed_queue_is_salvaged_and_nothing_is_overwritten(place: Path) -> None:
    made = make(place, checkpointed=True)
    with quiet(made.clock), strictq.open(made.path, clock=made.clock):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreBusy):
            patch.setattr("strictq._store.disk.locks.ALONE_SECONDS", 0.05)
            strictq.salvage(made.path, place / "out", clock=made.clock)
        assert not (place / "out").exists()
    (place / "out").mkdir()
    with pytest.raises(InvalidArgument, match="exists"):
        strictq.salvage(made.path, place / "out", clock=made.clock)
    with pytest.raises(QueueNotFound):
        strictq.salvage(place / "nowhere", place / "new", clock=made.clock)
    assert sorted(p.name for p in place.iterdir()) == ["out", "queue"]


def test_nobody_opens_a_queue_that_is_held_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(place, checkpointed=True)
    monkeypatch.setattr(locks, "JOIN_SECONDS", 0.05)
    presence = locks.Presence(made.path, look=True)
    assert presence.alone(1.0)
    with quiet(made.clock), pytest.raises(StoreBusy):
        strictq.open(made.path, clock=made.clock)
    presence.leave()
    with quiet(made.clock), strictq.open(made.path, clock=made.clock) as q:
        assert q.check() == []


def test_quarantine_names_the_way_out(place: Path) -> None:
    made = make(place, checkpointed=True)
    file = shard_file(made.path, 0)
    raw = bytearray(file.read_bytes())
    for page in range(1, len(raw) // PAGE_BYTES):
        raw[page * PAGE_BYTES + 2500] ^= 1
    file.write_bytes(raw)
    with (
        quiet(made.clock),
        strictq.open(made.path, clock=made.clock) as q,
        pytest.raises(StoreCorrupt, match=r"strictq\.salvage"),
    ):
        for n in range(KEYS):
            q.send(b"", f"k{n}")


def test_a_mended_bit_is_noted(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue") as q:
        q.send(b"x" * 700, "k")
    file = shard_file(tmp_path / "queue")
    data = bytearray(file.read_bytes())
    at = data.index(b"x" * 700)
    data[at + 300] ^= 1
    file.write_bytes(data)
    saved = strictq.salvage(tmp_path / "queue", tmp_path / "saved")
    assert (saved.messages, saved.lost) == (1, ())
    assert [note for note in saved.notes if f"a bit of page {at // 4096 + 1} had flipped" in note]
