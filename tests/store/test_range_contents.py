"""What else knows shards when a range moves: the program's rows, dedup ids, outputs, history, writers of batches, consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import (
    ConfigError,
    ForwardPending,
    HistoryRecord,
    InvalidArgument,
    LeaseLost,
    Message,
    MoveBlocked,
    MoveInProgress,
    Queue,
    Receipt,
    SchemaMismatch,
    StoreBusy,
    StoreFull,
    UnknownMessage,
)
from strictq._client import advice
from strictq._platform import files
from strictq._store.api import Size, Token
from strictq._store.bulk import bulk as bulk_module
from strictq._store.bulk import scan
from strictq._store.bulk.columns import BlockSize
from strictq._store.disk import layout
from strictq._store.shard import moving as steps
from strictq._store.tables import app_rows, mark
from strictq._store.whole import live_consumers, moving, outbox
from strictq._values.hashing import hash_key
from strictq._values.keys import Key, encode_key
from strictq.testing import FakeClock
from tests.support.internals import connection_of, store_of
from tests.support.moved_ranges import finish
from tests.support.queues import Opener
from tests.support.recorded_batches import holder, read

HALF = 1 << 63
END = (1 << 64) - 1


def leaves(key: Key) -> bool:
    return hash_key(encode_key(key)) >= HALF


def split(q: Queue) -> None:
    """Move the upper half of the hashes to a new shard."""
    q.split(0, at=HALF)


def begin(q: Queue) -> None:
    """Begin to split, and stop before anything has left, as if the mover had died. No thread continues the move."""
    store_of(q)._upkeep.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving.Moving, "_continue", lambda *_: None)
        split(q)
    assert q.topology().moving is not None


# ---- the program's rows


WIDE = ", ".join(f"c{n} INTEGER" for n in range(20))
TABLES = f"""
CREATE TABLE app_text (
    account TEXT COLLATE NOCASE, n INTEGER, double INTEGER AS (2 * n), {WIDE}, UNIQUE (account COLLATE BINARY, n)
);
CREATE TABLE app_any (n INTEGER, owner ANY) STRICT;
CREATE INDEX app_any_owner ON app_any (owner);
CREATE TABLE app_number (id INTEGER PRIMARY KEY, "a ""b" BLOB);
CREATE TABLE app_empty (x);
"""
COLUMNS = {"app_text": "account", "App_Any": "OWNER", "app_number": "id"}
KEYS: list[Key] = [kind for n in range(20) for kind in (f"Key-{n}", f"key-{n}", b"key-%d" % n, n, f"{n}")]


def fill_tables(q: Queue) -> None:
    q.app_schema(TABLES, key_columns=COLUMNS)
    for n, key in enumerate(KEYS):
        if n % 2:
            q.send(b"", key=key)  # the others have no lane
        with q.transaction(key=key) as tx:
            tx.execute("INSERT INTO app_any VALUES (1, ?), (2, ?)", (key, key))
            if isinstance(key, str):
                tx.execute("INSERT INTO app_text (account, n, c19) VALUES (?, 1, 7)", (key,))
            if isinstance(key, int):
                tx.execute("INSERT INTO app_number VALUES (?, x'00ff')", (key,))


def rows(q: Queue, key: Key | None = None) -> list[str]:
    tables = ("app_text", "app_any", "app_number")
    return sorted(repr((table, row)) for table in tables for row in q.query(f"SELECT * FROM {table}", key=key))


def test_rows_of_the_program_move_with_their_keys(disk: Opener) -> None:
    q, other = disk(), disk()
    fill_tables(q)
    with q.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_any VALUES (3, NULL), (3, 1.5), (3, '')")  # of no key
    expected = rows(q)
    split(q)
    assert rows(q) == rows(other) == expected
    (here, there) = (set(map(str, q.query("SELECT owner FROM app_any", key=key))) for key in ("key-0", "key-1"))
    assert leaves("key-0") != leaves("key-1"), "one of each"
    assert not here & there - {str((None,))}
    for key in KEYS:
        assert len(q.query("SELECT n FROM app_any WHERE owner = ? AND typeof(owner) = typeof(?)", (key, key), key=key)) == 2, key
        with other.transaction(key=key) as tx:
            tx.execute("UPDATE app_any SET n = n + 10 WHERE owner = ? AND typeof(owner) = typeof(?)", (key, key))
    assert len(q.query("SELECT n FROM app_any WHERE n > 10")) == 2 * len(KEYS)
    q.merge(1, into=0)
    assert len(rows(q, "k")) == len(expected)
    assert q.check() == []


def test_many_rows_move_in_several_steps(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MESSAGES_MAX", 5)
    sent: list[int] = []

    def packed(tables: dict[Any, list[Any]], _width: int) -> list[Any]:
        sent.append(sum(map(len, tables.values())))
        return []

    monkeypatch.setattr(app_rows, "packed", packed)
    q = disk()
    fill_tables(q)
    split(q)
    assert max(sent) <= 5
    assert sum(n > 0 for n in sent) > 10


def test_a_key_without_a_lane_takes_its_rows_along_when_it_is_used(disk: Opener) -> None:
    q = disk()
    fill_tables(q)
    expected = rows(q)
    begin(q)
    other = disk()
    for key in KEYS:
        with other.transaction(key=key) as tx:
            tx.execute("UPDATE app_any SET n = -n WHERE owner = ? AND typeof(owner) = typeof(?)", (key, key))
            tx.execute("UPDATE app_any SET n = -n WHERE owner = ? AND typeof(owner) = typeof(?)", (key, key))
        assert other.send(b"", key=key).seq in (1, 2)
    assert rows(other) == expected
    finish(q)
    assert rows(other) == expected
    assert q.check() == []


def test_rows_move_in_memory() -> None:
    with strictq.open(":memory:") as q:
        fill_tables(q)
        expected = rows(q)
        q.split(0, parts=3)
        assert rows(q) == expected
        q.merge(2, into=0)
        for key in KEYS:
            with q.transaction(key=key) as tx:
                tx.execute("DELETE FROM app_any WHERE owner = ? AND typeof(owner) = typeof(?)", (key, key))
        assert q.query("SELECT * FROM app_any") == []
        assert q.check() == []


def test_a_table_that_is_defined_after_a_split(disk: Opener) -> None:
    q = disk()
    split(q)
    for n in range(2):
        q.app_schema("CREATE TABLE IF NOT EXISTS app_late (owner PRIMARY KEY)", key_columns={"app_late": "owner"})
        for key in (HERE, THERE) if n == 0 else ():
            with disk().transaction(key=key) as tx:
                tx.execute("INSERT INTO app_late VALUES (?)", (key,))
    q.merge(1, into=0)
    q.split(0)
    assert set(disk().query("SELECT owner FROM app_late")) == {(HERE,), (THERE,)}
    q.app_schema("DROP TABLE app_late; CREATE TABLE app_late (account PRIMARY KEY)")  # without the key column
    with q.transaction(key=HERE) as tx:
        tx.execute("INSERT INTO app_late VALUES (?)", (HERE,))
    with pytest.raises(MoveBlocked, match="the table app_late has rows"):
        q.isolate(HERE)
    with strictq.open(q.path, read_only=True) as look:
        assert look.query("SELECT account FROM app_late", key=HERE) == [(HERE,)]


@pytest.mark.parametrize(
    ("sql", "columns", "says"),
    [
        ("CREATE TABLE app_t (a TEXT)", {"app_t": "a"}, "no index of app_t begins with a"),
        ("CREATE TABLE app_t (a TEXT, b, UNIQUE (b, a))", {"app_t": "a"}, "no index of app_t begins with a"),
        ("CREATE TABLE app_t (a TEXT); CREATE INDEX app_i ON app_t (a) WHERE a > 1", {"app_t": "a"}, "no index of app_t"),
        ("CREATE TABLE app_t (a TEXT COLLATE NOCASE PRIMARY KEY)", {"app_t": "a"}, "a UNIQUE or PRIMARY KEY of app_t lacks a"),
        ("CREATE TABLE app_t (a TEXT, b UNIQUE); CREATE INDEX app_i ON app_t (a)", {"app_t": "a"}, "lacks a"),
        ("CREATE TABLE app_t (n INTEGER PRIMARY KEY, a); CREATE INDEX app_i ON app_t (a)", {"app_t": "a"}, "two shards may"),
        ("CREATE TABLE app_t (a AS (1), b UNIQUE)", {"app_t": "a"}, "no table app_t with a stored column a"),
        ("CREATE TABLE app_t (a PRIMARY KEY)", {"app_t": "b"}, "no table app_t with a stored column b"),
        ("CREATE TABLE app_t (a PRIMARY KEY)", {"app_u": "a"}, "no table app_u"),
        ("CREATE TABLE app_t (a PRIMARY KEY)", {"lane": "key"}, "lane is not one of the program's"),
        ("CREATE TABLE app_t (a PRIMARY KEY)", {"app_t": 1}, "must name tables and columns"),
        ("CREATE TABLE app_t (a PRIMARY KEY)", {"app_t": "a\nb"}, "must name tables and columns"),
        ("CREATE TABLE app_t (a PRIMARY KEY)", ["app_t"], "must be a dict"),
    ],
)
def test_key_columns_that_are_refused(q: Queue, sql: str, columns: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        q.app_schema(sql, key_columns=columns)
    q.app_schema("CREATE TABLE app_t (a PRIMARY KEY)")  # the name is free
    q.app_schema("CREATE TABLE app_t (a PRIMARY KEY)", key_columns={"app_t": "a"})
    with pytest.raises(InvalidArgument, match="the keys of app_t are in a already"):
        q.app_schema("CREATE INDEX IF NOT EXISTS app_i ON app_t (a)", key_columns={"app_t": "b"})


@pytest.fixture
def q(disk: Opener) -> Queue:
    return disk()


def test_rows_without_a_key_column_stay(q: Queue) -> None:
    q.app_schema(ledger := "CREATE TABLE app_ledger (account TEXT, n INTEGER, UNIQUE (account, n))")
    split(q)
    q.merge(1, into=0)
    with q.transaction(key="a") as tx:
        tx.execute("INSERT INTO app_ledger VALUES ('a', 1)")
    before = q.topology()
    with pytest.raises(MoveBlocked, match="the table app_ledger has rows") as refused:
        split(q)
    assert "key_columns" in refused.value.hint
    assert q.topology() == before
    q.app_schema(ledger, key_columns={"app_ledger": "account"})
    connection_of(q).execute("DELETE FROM meta WHERE name = 'app_keys'")  # as if an older version had run it
    split(q)
    assert q.query("SELECT * FROM app_ledger", key="a") == [("a", 1)]


def test_a_table_without_a_key_column_stops_a_move(q: Queue) -> None:
    q.send(b"", key=next(key for key in KEYS if leaves(key)))
    begin(q)
    q.app_schema("CREATE TABLE app_late (x)")
    with q.transaction(key=next(key for key in KEYS if not leaves(key))) as tx:
        tx.execute("INSERT INTO app_late VALUES (1)")
    with pytest.raises(MoveBlocked, match="the table app_late has rows"):
        moving.resume(store_of(q))
    assert q.topology().moving is not None
    assert q.topology().shards[1].lanes == 0, "no lane has left its rows behind"
    with q.transaction(key=next(key for key in KEYS if not leaves(key))) as tx:
        tx.execute("DELETE FROM app_late")
    moving.resume(store_of(q))
    assert q.topology().moving is None
    assert q.check() == []


def test_rows_of_a_range_in_the_shard_that_gets_it(q: Queue) -> None:
    fill_tables(q)
    split(q)
    key = next(key for key in KEYS if isinstance(key, str) and leaves(key))
    with q.transaction(key=next(key for key in KEYS if not leaves(key))) as tx:
        tx.execute("INSERT INTO app_text (account, n) VALUES (?, 1)", (key,))  # of another shard's key
    before = rows(q)
    with pytest.raises(MoveBlocked, match="the table app_text of shard 0 has rows of keys of the range already"):
        q.merge(1, into=0)
    assert q.topology().moving is None
    assert rows(q) == before
    with pytest.MonkeyPatch.context() as patch, pytest.raises(MoveBlocked, match="rows of the table app_text can't arrive"):
        patch.setattr(steps, "rows_in_the_way", lambda *_: None)  # such a row is written while the range moves
        q.merge(1, into=0)
    with q.transaction(key=next(key for key in KEYS if not leaves(key))) as tx:
        tx.execute("DELETE FROM app_text WHERE account = ? COLLATE BINARY", (key,))
    moving.resume(store_of(q))
    assert q.topology().moving is None
    assert len(rows(q)) == len(before) - 1
    assert q.check() == []


# ---- receipts, outputs and history


def test_a_receipt_names_the_shard_where_the_message_is(disk: Opener) -> None:
    q, late, later = (disk(keyless="random", keyless_lanes=64) for _ in range(3))
    split(q)
    for other in (late, later):  # they have not heard of the move
        one = other.send(b"", key=None) if other is late else other.send_many([Message(b"", key=None)])[0]
        assert other.status(one).state == "ready"
    key = next(key for key in KEYS if leaves(key))
    third = disk(keyless="random")
    sent = third.send_many([Message(b"", key=key), Message(b"", key="0"), *(Message(b"", key=None) for _ in range(20))])
    assert sent[0].shard == 1
    assert {receipt.shard for receipt in sent} == {0, 1}
    assert {third.status(receipt).state for receipt in sent} == {"ready"}


def test_messages_of_a_time_are_purged_where_others_arrived_later(disk: Opener, clock: FakeClock) -> None:
    """Arrival numbers do not ascend with times any more."""
    q = disk(shards=2)
    q.send_many([Message(b"old", key=f"old-{n}") for n in range(20)])
    clock.advance(1000.0)
    q.send_many([Message(b"new", key=f"{age}-{n}") for n in range(20) for age in ("old", "new")])
    q.merge(0, into=1)
    assert q.purge("old-0", older_than=500.0) == 1
    assert q.purge(older_than=500.0) == 19
    assert {d.body for d in q.receive(100)} == {b"new"}
    assert q.stats().depth == 40


def test_the_receipt_of_a_keyless_message_that_has_moved(disk: Opener) -> None:
    q = disk(keyless="random", output_seconds=100.0)
    sent = q.send_many([Message(b"", key=None) for _ in range(40)])
    ended = q.receive(1)[0]
    ended.ack(output="done")
    acked = next(receipt for receipt in sent if receipt.id == ended.id)
    split(q)
    found = [q.status(receipt).state for receipt in sent if _is_there(q, receipt)]
    assert 0 < len(found) < 40
    assert set(found) <= {"ready", "resolved"}
    assert q.output(acked) == "done"
    with pytest.raises(UnknownMessage, match="resolved, or has moved"):
        q.output(next(receipt for receipt in sent if receipt is not acked and not _is_there(q, receipt)))
    after = q.send_many([Message(b"", key=None) for _ in range(40)])
    q.ack_many(q.receive(100))
    assert {q.status(receipt).state for receipt in after} == {"resolved"}, "nothing has left since"
    many = q.send_many([Message(b"", key=None) for _ in range(200)])
    q.merge(0, into=1)  # their rows are deleted, too
    assert not any(_is_there(q, receipt) for receipt in many if receipt.shard == 0)


def _is_there(q: Queue, receipt: Receipt) -> bool:
    try:
        q.status(receipt)
    except UnknownMessage:
        return False
    return True


def test_outputs_and_records_are_found_in_every_shard_that_had_a_key(disk: Opener) -> None:
    q = disk(history="bodies", output_seconds=100.0)
    key = next(key for key in KEYS if leaves(key))

    def run(seq: int) -> None:
        q.send(b"%d" % seq, key=key)
        (d,) = q.receive(1, keys=[key])
        d.ack(output=f"said {seq}")

    run(1)
    run(2)
    split(q)
    run(3)
    q.merge(1, into=0)
    run(4)
    for each in (q, disk(), disk()):
        assert [each.output(key, seq) for seq in (1, 2, 3, 4)] == [f"said {seq}" for seq in (1, 2, 3, 4)]
        found: list[HistoryRecord] = []
        while page := each.history(key=key, shard=found[-1].shard if found else None, after=found[-1].n if found else 0, limit=1):
            found += page
        assert sorted(record.seq for record in found) == [1, 2, 3, 4]
        assert len(found) == 4
        with pytest.raises(InvalidArgument, match="records of this key are in several shards"):
            each.history(key=key, after=1)
    assert q.history(key="other") == []
    q.purge_history(key)
    assert q.history(key=key) == []


# ---- sends of transactions

THERE = next(key for key in KEYS if leaves(key))
HERE = next(key for key in KEYS if not leaves(key))


def hand_on(q: Queue, body: bytes) -> None:
    with q.transaction(key=HERE) as tx:
        tx.send(body, THERE)


def test_a_send_that_arrived_and_moved_does_not_arrive_again(disk: Opener) -> None:
    """The origin was killed before it deleted the send, and the key has left the shard where it arrived."""
    q, other = disk(shards=2), disk()
    with pytest.MonkeyPatch.context() as patch, suppress(ForwardPending):
        patch.setattr(outbox, "forget", lambda *_: (_ for _ in ()).throw(StoreBusy("killed", shard=0)))
        hand_on(q, b"1")
    assert q.stats().outbox == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store_of(q)), "forward", lambda *_: None)
        hand_on(q, b"2")
        q.move(HALF, END, to=None)
        hand_on(q, b"3")
    for each in (q, other, q):  # two forward
        store_of(each).forward()
    assert [d.body for d in other.receive(10, keys=[THERE])] == [b"1", b"2", b"3"]
    assert q.stats().outbox == 0
    assert q.check() == []


@contextmanager
def dying_forwarders() -> Iterator[None]:
    """Let each process that forwards a send in this block die before it deletes the send from the outbox."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox, "forget", lambda *_: (_ for _ in ()).throw(StoreBusy("killed", shard=0)))
        yield


def forward_again(q: Queue) -> None:
    with suppress(ForwardPending):
        store_of(q).forward()


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_send_that_arrived_follows_its_key_through_shards(disk: Opener, clock: FakeClock, forgotten: bool) -> None:
    """It names shard 1, and arrived in shard 2. Its key moves on, to shard 1 and to shard 3."""
    q = disk(shards=2, idle_lane_seconds=10.0)
    store_of(q)._upkeep.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store_of(q)), "forward", lambda *_: None)
        hand_on(q, b"1")
        q.move(HALF, END, to=None)
    with dying_forwarders():
        forward_again(q)
        (d,) = q.receive(1, keys=[THERE])
        assert (d.body, d.seq) == (b"1", 1)
        d.ack()
        if forgotten:
            for _ in range(5):
                clock.advance(1000.0)
                store_of(q).forget()
            assert q.topology().shards[2].lanes == 0
        for to in (1, None, 2, 1):
            q.move(HALF, END, to=to, on_progress=lambda *_: forward_again(q))
            forward_again(q)
            assert q.receive(1, keys=[THERE]) == []
    store_of(q).forward()
    assert q.receive(1, keys=[THERE]) == []
    assert q.stats().outbox == 0
    assert q.check() == []


def test_a_send_arrives_in_the_shard_that_it_names_while_the_range_comes_back(disk: Opener) -> None:
    q = disk(shards=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store_of(q)), "forward", lambda *_: None)
        hand_on(q, b"1")
        q.move(HALF, END, to=None)
        patch.setattr(moving.Moving, "_continue", lambda *_: None)
        q.move(HALF, END, to=1)
    store_of(q)._upkeep.stop()
    with dying_forwarders():
        forward_again(q)
    forward_again(q)
    assert [d.body for d in q.receive(10, keys=[THERE])] == [b"1"]
    moving.resume(store_of(q))
    assert q.stats().outbox == 0
    assert q.check() == []


def test_a_lane_stays_while_sends_of_its_shard_wait(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    q = disk(shards=2)
    q.send(b"", key=HERE)
    with q.transaction(key=other_key_of(0)) as tx:
        tx.key_state = b"a state of a key without a lane"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store_of(q)), "forward", lambda *_: None)
        hand_on(q, b"1")
        patch.setattr(moving, "WAIT_SECONDS", -1.0)
        with pytest.raises(MoveBlocked, match="do not arrive"):
            q.split(0, at=1)
        store_of(q)._upkeep.stop()
        with pytest.raises(StoreBusy, match="must arrive before"), q.transaction(key=other_key_of(0)) as tx:
            assert tx.key_state
    assert q.topology().shards[2].lanes == 0
    moving.resume(store_of(q))
    with q.transaction(key=other_key_of(0)) as tx:
        assert tx.key_state
    assert [d.body for d in q.receive(10, keys=[THERE])] == [b"1"]
    assert q.check() == []


def test_a_send_that_waits_reaches_a_key_without_a_lane_whose_range_moves(disk: Opener) -> None:
    """The key may not leave before the shard's sends have arrived, and this send needs it to leave."""
    q = disk(shards=2)
    q.move(0, 0, to=1)  # ranges have moved, so a send to the same shard waits for those before it
    loose = other_key_of(0)
    with q.transaction(key=loose) as tx:
        tx.key_state = b"a state of a key without a lane"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store_of(q)), "forward", lambda *_: None)
        hand_on(q, b"1")
        with q.transaction(key=HERE) as tx:
            tx.send(b"2", loose)
        patch.setattr(moving.Moving, "_continue", lambda *_: None)
        q.split(0, at=2)
    store_of(q).forward()
    assert q.stats().outbox == 0
    (d,) = q.receive(1, keys=[loose])
    assert (d.body, d.key_state) == (b"2", b"a state of a key without a lane")
    moving.resume(store_of(q))
    assert q.topology().moving is None
    assert q.check() == []


def other_key_of(shard: int) -> Key:
    return next(key for key in KEYS if key not in (HERE, THERE) and leaves(key) == bool(shard))


# ---- reads of whole tables, and writers of batches


def table(q: Queue, keys: list[Key] | None = None, *, dead: bool = False) -> list[str]:
    bulk = q._storage.bulk
    raw = None if keys is None else [encode_key(key) for key in keys]
    parts = bulk.plan(dead=dead, messages=1_000, keys=raw)
    return [repr(row) for part in parts for block in bulk.read(part, EVERYTHING, BlockSize(100, 1 << 20)) for row in block.keys]


EVERYTHING = {"key", "seq", "id", "sent_at", "attempts", "headers", "body"}


def test_a_table_is_read_where_keys_are(disk: Opener) -> None:
    q, other = disk(), disk()
    q.send_many([Message(b"", key=key) for key in KEYS])
    expected = sorted(table(q))
    split(q)
    assert sorted(table(disk())) == sorted(table(other)) == expected
    assert len(table(disk(), [THERE, HERE, "never used"])) == 2
    begin_back(q)
    assert len(table(other, [THERE, HERE, "never used"])) == 2


def begin_back(q: Queue) -> None:
    """Begin to merge the second shard into the first one, and stop."""
    store_of(q)._upkeep.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving.Moving, "_continue", lambda *_: None)
        q.merge(1, into=0)


@pytest.mark.parametrize("dead", [False, True])
def test_a_table_whose_keys_move_while_it_is_read(q: Queue, dead: bool) -> None:
    q.send_many([Message(b"", key=key) for key in KEYS])
    if dead:
        for d in q.receive(1000):
            d.reject("no")
    bulk = q._storage.bulk
    parts = bulk.plan(dead=dead, messages=1_000)
    split(q)
    with pytest.raises(StoreBusy, match="has moved since the read was planned"):
        list(bulk.read(parts[0], EVERYTHING, BlockSize(100, 1 << 20)))
    assert len(table(q, dead=dead)) == len(KEYS)


def test_a_table_that_is_planned_while_its_keys_move(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard that lanes go to is planned before they come, and the other one after they left."""
    q.send_many([Message(b"", key=key) for key in KEYS])
    split(q)
    plan, planned = scan.ranges, 0

    def ranges(shard: Any, **how: Any) -> Any:
        nonlocal planned
        planned += 1
        found = plan(shard, **how)
        if planned == 1:
            q.merge(1, into=0)
        return found

    monkeypatch.setattr(scan, "ranges", ranges)
    assert len(table(q)) == len(KEYS)
    assert planned == 4
    moved = iter(range(1_000))
    monkeypatch.setattr(bulk_module.Bulk, "_departed", lambda _: next(moved))
    with pytest.raises(StoreBusy, match="are moving"):
        table(q)


JOB = Token.job("a")


def test_no_range_moves_while_a_batch_is_incomplete(disk: Opener) -> None:
    q, other = disk(shards=2), disk()
    bulk = q._storage.bulk
    with bulk.still():
        bulk.decide(JOB, Size(2), "{}")
        with pytest.raises(MoveInProgress, match="a batch is written"), other._storage.bulk.still():
            other.split(0)
    calls: list[Callable[[], object]] = [lambda: other.split(0), lambda: other.merge(1, into=0), lambda: other.isolate("k")]
    for call in calls:
        with pytest.raises(MoveBlocked, match="writer 'job a' has an incomplete batch"):
            call()
    assert len(q.topology().shards) == 2
    bulk.finish(JOB, [])
    home = bulk.home(JOB)
    other.split(home)
    other.merge(home, into=1 - home)
    for each in (q, other, disk()):
        assert each._storage.bulk.home(JOB) == home, "it decides about the batches of a writer for ever"
        known = each._storage.bulk.known(JOB)
        assert known is not None
        assert known.whole


def test_a_batch_waits_for_a_move(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    q, other = disk(), disk()
    q.send_many([Message(b"", key=key) for key in KEYS])
    monkeypatch.setattr(moving, "WAIT_SECONDS", 0.05)
    lock = files.Lock(Path(q.path) / layout.MOVE_LOCK)
    assert lock.alone(0.0)
    with pytest.raises(MoveInProgress), other._storage.bulk.still():
        pass
    lock.leave()
    begin(q)
    for each in (other, disk()):
        with each._storage.bulk.still():  # a move whose process died is finished first
            assert each.topology().moving is None
            assert {each._storage.bulk.shard_of(encode_key(key)) for key in KEYS if leaves(key)} == {1}
            assert {each._storage.bulk.shard_of(encode_key(key)) for key in KEYS if not leaves(key)} == {0}


# ---- named consumers


def test_new_batches_leave_a_moving_range_alone(disk: Opener) -> None:
    q = disk(shards=2)
    q.send_many([Message(b"%d" % n, key=f"key-{n % 40}") for n in range(200)])
    h = holder(q)
    taken = read(q, h, h.take(0, messages_max=40))
    store_of(q)._upkeep.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving, "WAIT_SECONDS", 0.0)
        with pytest.raises(MoveBlocked, match="named consumer's batch"):
            q.split(0)
        patch.undo()
        patch.setattr("time.sleep", None)
        with pytest.raises(MoveBlocked, match="named consumer's batch"):
            moving.resume(store_of(q))  # a thread that has other work does not wait for it
    there = {key for key, *_ in read(q, h, h.take(1, messages_max=400))}
    assert there, "the other shard goes on"
    assert all(hash_key(key.encode()) >= HALF // 2 for key in there)
    h.ack(2)
    moving.resume(store_of(q))
    assert q.topology().moving is None
    while (n := h.take(h.last, messages_max=60)) != h.last - 1 and len(taken) < 200:
        found = read(q, h, n)
        if not found:
            break
        taken += found
    h.close()
    assert q.check() == []


# ---- dedup ids


def test_dedup_ids_move_with_their_keys(disk: Opener, clock: FakeClock) -> None:
    q = disk(keyless="random", dedup_window_seconds=100.0)
    keyed = [q.send(b"", key=key, dedup_id="once") for key in KEYS]
    keyless = [q.send(b"", key=None, dedup_id=f"id-{n}") for n in range(40)]
    for d in q.receive(1000):
        if d.key is None or d.seq == 1:
            d.ack()
    clock.advance(50.0)
    split(q)
    for each in (q, disk(), disk()):
        again = [each.send(b"", key=key, dedup_id="once") for key in KEYS]
        assert [(one.duplicate, one.seq) for one in again] == [(True, one.seq) for one in keyed]
        assert all(each.send(b"", key=None, dedup_id=f"id-{n}").duplicate for n in range(40))
        assert [each.send(b"", key=None, dedup_id=f"id-{n}").seq for n in range(40)] == [one.seq for one in keyless]
    assert not q.send(b"", key=THERE, dedup_id="another").duplicate
    q.purge(THERE)
    assert not q.send(b"", key=THERE, dedup_id="once").duplicate, "a purge forgets the ids of a key"
    clock.advance(51.0)
    assert not disk().send(b"", key=other_key_of(1), dedup_id="once").duplicate, "the window ends when it would have"
    q.merge(1, into=0)
    assert q.send(b"", key=other_key_of(1), dedup_id="once").duplicate
    assert q.check() == []


def test_dedup_ids_of_the_whole_queue_keep_it_in_one_shard(disk: Opener) -> None:
    q = disk(dedup_scope="queue")
    for call in (lambda: split(q), lambda: q.isolate("k"), lambda: q.move(0, 1, to=None)):
        with pytest.raises(ConfigError, match="dedup_scope='queue' needs a queue of one shard; nothing was changed"):
            call()
    assert len(q.topology().shards) == 1
    q.configure(dedup_scope="key")
    split(q)
    with pytest.raises(ConfigError, match="dedup_scope"):
        q.configure(dedup_scope="queue")


# ---- consumers


def test_consumers_divide_the_shards_that_own_ranges(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "IN_USE_SECONDS", 0.0)
    monkeypatch.setattr(live_consumers, "LOOK_SECONDS", 0.0)
    q, other = disk(shards=2), disk()
    with q.join(affinity="own") as one, other.join(affinity="own") as two:

        def owned() -> list[int]:
            for consumer in (one, two, one, two):
                consumer.receive(1, wait=0.0).__exit__(None, None, None)
            return [len(consumer.shards) for consumer in (one, two)]

        assert owned() == [1, 1]
        q.split(0, parts=3)
        other.send(b"", key=HERE)  # by its next write, another process knows the new shards
        q.send_many([Message(b"", key=key) for key in KEYS])
        assert owned() == [2, 2]
        assert set(one.shards) | set(two.shards) == {0, 1, 2, 3}
        needed = {d.key for consumer in (one, two) for d in consumer.receive(1000)}
        assert needed >= set(KEYS)
        q.merge(2, into=0)
        q.merge(1, into=0)
        assert owned() == [1, 1]
        assert set(one.shards) | set(two.shards) == {0, 3}, "those that are retired have nothing to claim"
        assert {shard for status in q.consumers() for shard in status.shards or ()} == {0, 3}
        assert q.consumers_needed(drain_seconds=60, sample_seconds=0, process_seconds=1.0).shards == 2


def test_advice_names_the_shard_where_a_key_is(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "BUSY_BACKLOG", 50)
    q = disk()
    split(q)
    q.send_many([Message(b"", key=THERE) for _ in range(60)])
    q.send(b"", key=other_key_of(1))
    for each in (q, disk()):
        (found,) = each.advise()
        assert (found.what, found.key, found.shard) == ("isolate", THERE, 1)


# ---- what refuses a move


def test_a_key_that_would_wait_for_long(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "LONG_LANE", 20)
    fill_tables(q)
    q.send_many([Message(b"", key=THERE) for _ in range(30)])
    calls: list[Callable[..., Any]] = [
        lambda **how: q.split(0, at=HALF, **how),
        lambda **how: q.isolate(THERE, **how),
        lambda **how: q.move(HALF, END, to=None, **how),
    ]
    for call in calls:
        with pytest.raises(MoveBlocked, match=f"key {THERE!r} has 3. messages or rows: it would wait for about 0 s; nothing"):
            call()
    assert len(q.topology().shards) == 1
    q.isolate(HERE)  # another key moves
    with pytest.raises(MoveBlocked):
        q.merge(0, into=1)
    assert q.merge(0, into=1, long_pause=True).messages > 30
    q.purge(THERE)
    with q.transaction(key=THERE) as tx:
        for n in range(30):
            tx.execute("INSERT INTO app_any VALUES (?, ?)", (n, THERE))
    with pytest.raises(MoveBlocked, match=f"key {THERE!r} has 32 messages or rows"):
        q.isolate(THERE)
    assert q.isolate(THERE, long_pause=True).lanes == 1
    assert len(q.query("SELECT n FROM app_any WHERE owner = ?", (THERE,), key=THERE)) == 32
    assert q.check() == []


def test_a_range_that_no_shard_owns_alone(disk: Opener) -> None:
    q = disk(shards=2)
    with pytest.raises(InvalidArgument, match="no shard owns all of this range"):
        q.move(HALF - 1, HALF, to=None)
    q.merge(1, into=0)
    for call in (lambda: q.split(1), lambda: q.merge(1, into=0)):
        with pytest.raises(InvalidArgument, match="owns no range"):
            call()
    assert len(q.topology().shards) == 2


def test_a_move_to_a_full_disk(q: Queue) -> None:
    q.send_many([Message(b"", key=key) for key in KEYS])
    store_of(q)._upkeep.stop()
    full = StoreFull("the disk is full", shard=1)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreFull):
        patch.setattr(steps, "arrive", lambda *_: (_ for _ in ()).throw(full))
        split(q)
    assert q.topology().moving is not None
    for key in KEYS:
        assert q.send(b"", key=key).seq == 2, "whoever needs a key carries it"
    moving.resume(store_of(q))
    assert q.topology().moving is None
    assert q.check() == []


def test_a_queue_of_moved_ranges_is_refused_by_a_version_that_does_not_know_them(disk: Opener) -> None:
    q = disk()
    split(q)
    q.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mark, "KNOWN_FEATURES", mark.KNOWN_FEATURES & ~mark.RANGES)
        with disk() as older, pytest.raises(SchemaMismatch, match="features of a newer strictq"):
            older.send(b"", key=HERE)
    assert disk().send(b"", key=HERE).seq == 1


# ---- what an object knows


def test_an_object_learns_where_keys_went_before_it_knows_every_shard(disk: Opener) -> None:
    q, late = disk(), disk()
    split(q)
    assert late.peek(THERE) == []
    a, b = (hash_key(encode_key(key)) for key in (HERE, other_key_of(0)))
    q.move(b, b, to=None)
    q.move(a, a, to=1)
    q.send(b"", key=other_key_of(0))
    assert late.peek(HERE) == []  # which tells where the other key went, too
    assert len(late.peek(other_key_of(0))) == 1


# ---- settlements of lanes that moved


def test_a_settlement_after_a_return_resolves_its_own_messages(disk: Opener) -> None:
    """The lane has come back with other arrival numbers, which name other messages than before."""
    q, other = disk(history="bodies"), disk()
    q.send_many([Message(b"%d" % n, key=THERE) for n in range(6)])
    ds = q.receive(4, keys=[THERE], lease_seconds=1e6)
    split(q)
    other.send_many([Message(b"x", key=other_key_of(1)) for _ in range(9)])
    ds[1].ack()  # where the lane has gone
    q.merge(1, into=0)
    ds[0].extend(1e6)
    for d in (ds[3], other.delivery(ds[0].handle)):
        d.ack()
    with pytest.raises(LeaseLost):
        ds[1].ack()
    assert [m.seq for m in q.peek(THERE, 10)] == [3, 5, 6]
    ds[2].nack()
    assert [(d.seq, d.body) for d in other.receive(10, keys=[THERE])] == [(3, b"2"), (5, b"4"), (6, b"5")]
    assert {(record.seq, record.body) for shard in (0, 1) for record in q.history(shard=shard)} == {
        (1, b"0"),
        (2, b"1"),
        (4, b"3"),
    }
    assert q.check() == []


def test_a_lease_that_began_elsewhere_grows_and_is_renewed(disk: Opener, clock: FakeClock) -> None:
    q = disk()
    q.send_many([Message(b"%d" % n, key=THERE) for n in range(3)])
    (d,) = q.receive(1, keys=[THERE], lease_seconds=100.0)
    split(q)
    assert [more.seq for more in d.lease.more(1)] == [2]
    clock.advance(99.0)
    d.lease.extend(100.0)
    clock.advance(99.0)
    assert q.receive(1, keys=[THERE]) == []
    d.ack()
    clock.advance(2.0)
    assert [found.seq for found in disk().receive(1, keys=[THERE])] == [2]
    with pytest.raises(LeaseLost):
        d.lease.extend(100.0)


def test_many_moves_leave_nothing_behind(q: Queue) -> None:
    q.send_many([Message(b"", key=key) for key in KEYS])
    split(q)
    for n in range(20):
        q.merge((n + 1) % 2, into=n % 2)
    shards = store_of(q).shards
    assert [shard.read(lambda db: db.execute("SELECT count(*) FROM parcel").get) for shard in shards] == [0, 0]
    assert all(shard.newest() <= 21 * len(KEYS) for shard in shards), "arrival numbers grow by what moves"
    assert [len(ranges.left) for shard in shards if (ranges := shard.view(lambda lanes: lanes.memory.ranges))] == [1, 1]
    assert len(q.receive(1000)) == len(KEYS)
    assert q.check() == []
