"""Queues made by hand, and input made to break: each is refused with a typed error, nothing of it runs, and nothing hangs.

A few hundred examples. For a long campaign set STRICTQ_FUZZ to the number of examples of each test:

    STRICTQ_FUZZ=20000 python -m pytest -n 4 tests/faults/test_hostile.py
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strictq
from strictq import Message, QueueConfig, StoreCorrupt, StrictqError
from strictq.testing import FakeClock
from tests.support.internals import connected, connection_of, store_of, tamper
from tests.support.powercut import quiet
from tests.support.queues import Opener, fill, keys_by_shard, labels, shard_file

FUZZ = int(os.environ.get("STRICTQ_FUZZ", "60"))
fuzz = settings(
    max_examples=FUZZ,
    deadline=None,
    derandomize=FUZZ <= 100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def exercise(path: Path, clock: FakeClock) -> None:
    """Everything that reads or writes what somebody may have prepared. Only typed errors may come of it."""
    try:
        q = strictq.open(path, clock=clock, create=False)
    except StrictqError:
        return
    with q:
        steps: list[Callable[[], Any]] = [
            lambda: q.send_many([Message(b"x", key=f"k{n}") for n in range(4)]),
            lambda: q.send(b"x" * 2000, "k1", dedup_id="d", headers={"a": "b"}),
            q.stats,
            lambda: q.peek("k1"),
            lambda: q.explain("k1"),
            lambda: q.status("k1", 1),
            lambda: q.top_keys(),
            lambda: [d.headers for d in q.dead_letters()],
            lambda: [(d.key, d.headers, d.enqueued_at, d.attempt, d.key_state) for d in q.receive(3)],
            lambda: q.ack_many(q.receive(100)),
            lambda: q.redrive(),
            lambda: q.configure(lease_seconds=21.0),
            q.check,
            lambda: q.check(fix=True),
            lambda: q.purge("k1"),
        ]
        for step in steps:
            with _typed_errors_only():
                step()


class _typed_errors_only:
    def __enter__(self) -> None: ...

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> bool:
        return isinstance(error, StrictqError)


# --- a schema that is not ours -------------------------------------------------------------------------------------------

CRAFTED = {
    "a trigger": ["CREATE TRIGGER t AFTER INSERT ON message BEGIN DELETE FROM message; END"],
    "a trigger with a program's name": ["CREATE TRIGGER app_t AFTER INSERT ON message BEGIN DELETE FROM message; END"],
    "a trigger on a program's table": [
        "CREATE TABLE app_x (a)", "CREATE TRIGGER app_t AFTER INSERT ON app_x BEGIN DELETE FROM message; END"
    ],
    "a view in a table's place": ["DROP TABLE dedup", "CREATE VIEW dedup AS SELECT 1 lane, 'd' dedup_id, 1 seq, 1 id, 1 until"],
    "a table of another shape": ["DROP TABLE dedup", "CREATE TABLE dedup (lane, dedup_id, seq, id, until, more)"],
    "a generated column": ["ALTER TABLE key_state ADD COLUMN g INTEGER AS (length(value))"],
    "a CHECK that calls": [
        "DROP TABLE key_state", "CREATE TABLE key_state (lane INTEGER PRIMARY KEY, value CHECK (random() > value))"
    ],
    "a default that calls": [
        "DROP TABLE key_state", "CREATE TABLE key_state (lane INTEGER PRIMARY KEY, value DEFAULT (randomblob(1000000000)))"
    ],
    "an index on a call": ["CREATE INDEX i ON message (abs(seq))"],
    "an index of a program's on our table": ["CREATE INDEX app_i ON message (sent_at)"],
    "a virtual table": ["DROP TABLE dedup", "CREATE VIRTUAL TABLE dedup USING fts5 (lane, dedup_id, seq, id, until)"],
    "a virtual table of a program's": ["CREATE VIRTUAL TABLE app_v USING fts5 (a)"],
    "a table too many": ["CREATE TABLE surplus (a)"],
    "a table too few": ["DROP TABLE inlet"],
    "an index too few": ["DROP INDEX lane_due"],
}  # fmt: skip


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_schema_is_quarantined_and_nothing_of_it_runs(disk: Opener, name: str) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    for key in keys.values():
        fill(q, key, 3)
    q.close()
    tamper(shard_file(disk.path, 0), *CRAFTED[name])
    before = tamper(shard_file(disk.path, 0), "SELECT count(*) FROM message")
    q = disk()
    with pytest.raises(StoreCorrupt, match="schema"):
        q.send(b"", keys[0])
    assert labels(q.receive(100)) == [(keys[1], 1), (keys[1], 2), (keys[1], 3)]
    q.close()
    assert tamper(shard_file(disk.path, 0), "SELECT count(*) FROM message") == before


@pytest.mark.parametrize("verb", ["send", "send_dedup", "receive", "peek", "stats"])
def test_a_shard_without_the_row_where_memory_begins(disk: Opener, verb: str) -> None:
    verbs: dict[str, Callable[[strictq.Queue], object]] = {
        "send": lambda q: q.send(b"", "k"),
        "send_dedup": lambda q: q.send(b"", "k", dedup_id="a"),
        "receive": lambda q: q.receive(),
        "peek": lambda q: q.peek("k"),
        "stats": lambda q: q.stats(),
    }
    q = disk(shards=1)
    fill(q, "k", 3)
    q.close()
    tamper(shard_file(disk.path, 0), "DELETE FROM mark")
    q = disk()
    if verb == "stats":
        (shard,) = q.stats().shards
        assert "the row of `mark` is missing" in str(shard.quarantined)
        return
    with pytest.raises(StoreCorrupt, match="the row of `mark` is missing"):
        verbs[verb](q)


def test_a_crafted_catalog_is_refused(disk: Opener) -> None:
    disk().close()
    tamper(Path(disk.path) / "queue.db", "CREATE TRIGGER t AFTER UPDATE ON queue BEGIN DELETE FROM topology; END")
    with pytest.raises(StoreCorrupt, match="schema"):
        disk()


def test_what_a_program_and_an_analyst_may_add_is_fine(disk: Opener) -> None:
    q = disk()
    q.app_schema(
        "CREATE TABLE app_x (a INTEGER) STRICT; CREATE INDEX app_i ON app_x (a); CREATE VIEW app_v AS SELECT a FROM app_x"
    )
    q.send(b"", "k")
    q.close()
    tamper(shard_file(disk.path), "ANALYZE")
    q = disk()
    assert labels(q.receive()) == [("k", 1)]
    assert q.query("SELECT * FROM app_v") == []


def test_every_connection_trusts_nothing(disk: Opener) -> None:
    q = disk()
    db = connection_of(q)
    for option in ("TRUSTED_SCHEMA", "ENABLE_TRIGGER", "ENABLE_LOAD_EXTENSION", "DQS_DML", "DQS_DDL"):
        assert db.config(getattr(apsw, f"SQLITE_DBCONFIG_{option}"), -1) == 0, option
    assert db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1) == 1


# --- values that no strictq writes ---------------------------------------------------------------------------------------

NUMBERS = [-1, 0, 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]
numbers = st.sampled_from(NUMBERS) | st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30) | st.sampled_from(
    ["{}", "[]", "null", "{", '{"a": 1}', "[" * 3000, "../../etc/passwd", "shard-0000.db", "full", "-1", "é" * 1000]
)
blobs = st.binary(max_size=20) | st.sampled_from([b"s", b"i", b"ix", b"s\xff", b"n", b"n!", b"", b"i" + b"9" * 5000])

CATALOG_COLUMNS = {
    "queue": {"queue_id": texts, "created_at": numbers, "durability": texts, "config": texts, "config_version": numbers,
              "epoch": numbers, "boot_id": texts, "time_offset": numbers},
    "topology": {"shard": numbers, "file": texts, "hash_lo": texts, "hash_hi": texts},
    "estimate": {"stage": texts, "model": texts},
    "app_schema": {"id": numbers, "sql": texts},
}  # fmt: skip
SHARD_COLUMNS = {
    "meta": {"value": numbers | texts | blobs},
    "counter": dict.fromkeys(
        ("config_version", "epoch", "time_offset", "last_time", "last_id", "last_token", "last_lane", "last_outbox",
         "seq_floor", "next_deadline", "lanes", "pending", "sends"), numbers),
    "lane": {"key": blobs, "last_seq": numbers, "resolved": numbers, "solo_to": numbers, "hold": texts, "held_at": numbers,
             "active_at": numbers, "done_token": numbers, "done_lo": numbers, "done_hi": numbers, "done_gaps": texts},
    "message": {"seq": numbers, "id": numbers, "sent_at": numbers, "due": numbers, "expires": numbers, "attempts": numbers,
                "headers": texts, "error": texts, "body": blobs},
    "ready": {"position": numbers, "lane": numbers, "careful": numbers},
    "delayed": {"lane": numbers, "due": numbers},
    "lease": {"token": numbers, "lo": numbers, "hi": numbers, "pending": numbers, "deadline": numbers, "expired": numbers},
    "dead": {"seq": numbers, "id": numbers, "died_at": numbers, "attempts": numbers, "headers": texts, "redrive": numbers},
    "dedup": {"seq": numbers, "until": numbers},
    "outbox": {"destination": numbers, "id": numbers, "key": blobs, "body": blobs},
}  # fmt: skip


@st.composite
def changes(draw: st.DrawFn, columns: dict[str, dict[str, st.SearchStrategy[Any]]]) -> tuple[str, str, Any]:
    table = draw(st.sampled_from(sorted(columns)))
    column = draw(st.sampled_from(sorted(columns[table])))
    value = draw(columns[table][column])
    return table, column, value


def crafted(place: Path) -> tuple[Path, FakeClock]:
    """A queue with something in every table."""
    clock = FakeClock()
    with quiet(clock), strictq.open(place / "original", clock=clock, shards=2, config=QueueConfig(max_attempts=2)) as q:
        q.app_schema("CREATE TABLE app_x (a INTEGER) STRICT")
        for n in range(4):
            q.send_many([Message(bytes(1000 * (n % 2) + 1), key=f"k{n}", headers={"a": "b"}) for _ in range(4)])
        q.send(b"", "k1", dedup_id="d", delay=100.0)
        q.receive(1, per_key=1)[0].reject("no")
        q.receive(2, per_key=2)
        q.hold("k2")
        store_of(q).set_estimates({"prepare": "{}"})
    return place / "original", clock


def change(file: Path, table: str, column: str, value: Any) -> None:
    db = connected(file)
    try:
        db.execute(f"UPDATE OR REPLACE {table} SET {column} = ?", (value,)).fetchall()
    except apsw.Error:
        return  # SQLite itself would not have it: a STRICT table, a constraint
    finally:
        db.close()


@pytest.mark.parametrize("name", ["queue.db", "shard-0000.db"])
def test_values_that_nobody_writes(place: Path, name: str) -> None:
    original, clock = crafted(place)

    @fuzz
    @given(st.lists(changes(CATALOG_COLUMNS if name == "queue.db" else SHARD_COLUMNS), min_size=1, max_size=2))
    def run(made: list[tuple[str, str, Any]]) -> None:
        copy = place / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(original, copy)
        for table, column, value in made:
            change(copy / name, table, column, value)
        with quiet(clock):
            exercise(copy, clock)

    run()


# --- files that are none ---------------------------------------------------------------------------------------------------

PARTS = [
    "queue.db",
    "queue.db-journal",
    "shard-0000.db",
    "shard-0000.db-wal",
    "shard-0000.db-shm",
    "presence",
    "wake",
    "reserve",
    "marks",
]


@pytest.mark.parametrize("kind", ["fifo", "link", "dangling", "directory", "device"])
@pytest.mark.parametrize("name", PARTS)
def test_something_else_in_a_files_place(place: Path, name: str, kind: str) -> None:
    original, clock = crafted(place)
    file = original / name
    aside = place / "aside"
    aside.write_bytes(b"theirs" * 1000)
    if file.exists():
        file.unlink()
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(aside)
    elif kind == "dangling":
        file.symlink_to(place / "nowhere")
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    with quiet(clock):
        exercise(original, clock)
    assert aside.read_bytes() == b"theirs" * 1000, "what a link led to is not written to"
    assert not (place / "nowhere").exists()


# --- arguments ---------------------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@fuzz
@given(key=anything, body=anything, headers=anything, delay=anything, ttl=anything, dedup_id=anything, hint=anything)
def test_whatever_is_sent(key: Any, body: Any, headers: Any, delay: Any, ttl: Any, dedup_id: Any, hint: Any) -> None:
    with strictq.open(":memory:") as q:
        try:
            receipt = q.send(body, key, headers=headers, delay=delay, ttl=ttl, dedup_id=dedup_id, size_hint=hint)
        except StrictqError:
            assert q.stats().depth == 0, "what is refused changes nothing"
        else:
            assert receipt.seq == 1
            (found,) = q.peek(key)
            assert (found.body, found.headers) == (body, dict(headers or {}))
        assert q.check() == []


@fuzz
@given(key=st.text(min_size=1, max_size=300) | st.binary(min_size=1, max_size=300) | st.integers(), body=st.binary(max_size=2000),
       headers=st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=5))  # fmt: skip
def test_what_is_sent_comes_out_as_it_was(key: Any, body: bytes, headers: dict[str, str]) -> None:
    with strictq.open(":memory:", shards=3) as q:
        try:
            q.send(body, key, headers=headers)
        except strictq.InvalidArgument:
            return
        (d,) = q.receive()
        assert (d.key, type(d.key), d.body, d.headers) == (key, type(key), body, headers)


@fuzz
@given(
    st.dictionaries(st.sampled_from([a.name for a in QueueConfig.__attrs_attrs__]) | st.text(max_size=8), anything, max_size=4)
)
def test_whatever_is_configured(values: dict[str, Any]) -> None:
    try:
        config = QueueConfig().evolve(**values)
    except StrictqError:
        return
    assert QueueConfig.from_json(config.to_json()) == config
    with strictq.open(":memory:", config=config) as q:
        q.send(b"", "k")
        assert q.check() == []


VERBS = ["receive", "peek", "status", "hold", "release", "redrive", "purge", "extend", "explain"]


@fuzz
@given(st.lists(st.tuples(st.sampled_from(VERBS), anything, anything), max_size=4))
def test_whatever_is_called(calls: list[tuple[str, Any, Any]]) -> None:
    with strictq.open(":memory:") as q:
        q.send(b"", "k")
        for name, one, two in calls:
            verbs: dict[str, Callable[[], Any]] = {
                "receive": lambda one=one, two=two: q.receive(one, per_key=two),
                "peek": lambda one=one, two=two: q.peek(one, two),
                "status": lambda one=one, two=two: q.status(one, two),
                "hold": lambda one=one, two=two: q.hold(one, two),
                "release": lambda one=one: q.release(one),
                "redrive": lambda one=one, two=two: q.redrive(one, two),
                "purge": lambda one=one, two=two: q.purge(one, dead=two),
                "extend": lambda one=one, two=two: q.extend_many(one, two),
                "explain": lambda one=one: q.explain(one),
            }
            with _typed_errors_only():
                verbs[name]()
        assert q.check() == []
