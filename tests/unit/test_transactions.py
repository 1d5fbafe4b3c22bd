"""One transaction: the ack, the sends, the key's state and the program's own tables, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import strictq
from strictq import InvalidArgument, LeaseLost, Queue, StrictqError
from strictq._values.keys import Key
from strictq.testing import FakeClock
from tests.support.injection import record_app_schema
from tests.support.queues import Opener, ack_all, drain, fill, keys_by_shard, labels, seqs

LEDGER = "CREATE TABLE IF NOT EXISTS app_ledger (n INTEGER PRIMARY KEY, what TEXT NOT NULL) STRICT"


class Boom(Exception):
    """What a handler of these tests raises."""


@pytest.fixture
def ledger(make: Opener) -> Queue:
    """A queue of two shards with a table of the program's own."""
    q = make(shards=2)
    q.app_schema(LEDGER)
    return q


def elsewhere(call: Callable[[], object]) -> None:
    """In another thread, which is not inside the transaction."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def take(q: Queue, key: Key = "k") -> strictq.Delivery:
    """Send a message to a key and receive it."""
    q.send(b"in", key)
    (d,) = q.receive(1, keys=[key])
    return d


def test_success_acks_and_applies_everything(ledger: Queue) -> None:
    d = take(ledger)
    with ledger.transaction(d) as tx:
        tx.send(b"out", "next", headers={"a": "b"})
        tx.key_state = b"seen"
        tx.execute("INSERT INTO app_ledger VALUES (?, ?)", (1, "one"))
    assert ledger.status("k", 1).state == "resolved"
    (out,) = ledger.receive()
    assert (out.key, out.seq, out.body, out.headers) == ("next", 1, b"out", {"a": "b"})
    assert ledger.query("SELECT n, what FROM app_ledger") == [(1, "one")]
    assert take(ledger).key_state == b"seen"
    assert ledger.check() == []


def test_an_exception_means_nothing_happened(ledger: Queue) -> None:
    d = take(ledger)
    with pytest.raises(Boom), ledger.transaction(d) as tx:
        tx.send(b"out", "next")
        tx.key_state = b"seen"
        tx.execute("INSERT INTO app_ledger VALUES (?, ?)", (1, "one"))
        raise Boom
    assert ledger.status("k", 1).state == "in_flight"
    assert ledger.peek("next") == []
    assert ledger.query("SELECT * FROM app_ledger") == []
    assert d.key_state is None
    d.ack()
    assert ledger.send(b"", "next").seq == 1


@pytest.mark.parametrize("given", ["k", ["a delivery"]], ids=["a key", "a list"])
def test_what_is_not_a_delivery_gets_a_hint_at_the_other_arguments(q: Queue, given: Any) -> None:
    with pytest.raises(InvalidArgument, match="expected a Delivery, not") as refused, q.transaction(given):
        pass
    assert "key=... or deliveries=[...]" in refused.value.hint


def test_transaction_settles_its_delivery_once(q: Queue) -> None:
    d = take(q)
    with q.transaction(d):
        pass
    with pytest.raises(LeaseLost):
        d.ack()
    with pytest.raises(LeaseLost), q.transaction(d) as tx:
        tx.send(b"", "next")
    assert q.peek("next") == []


def test_dead_token_applies_nothing(ledger: Queue, clock: FakeClock) -> None:
    ledger.send(b"", "k")
    (old,) = ledger.receive(lease_seconds=5.0)
    clock.advance(6.0)
    (new,) = ledger.receive()
    with pytest.raises(LeaseLost), ledger.transaction(old) as tx:
        tx.send(b"", "next")
        tx.key_state = b"stale"
        tx.execute("INSERT INTO app_ledger VALUES (1, 'stale')")
    assert ledger.peek("next") == []
    assert ledger.query("SELECT * FROM app_ledger") == []
    assert new.key_state is None
    new.ack()


def test_late_transaction_of_a_lane_nobody_took_is_honoured(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    (d,) = q.receive(lease_seconds=5.0)
    clock.advance(60.0)
    with q.transaction(d) as tx:
        tx.send(b"", "next")
    assert labels(q.receive()) == [("next", 1)]


def test_transaction_wants_the_lowest_unresolved_of_its_lease(q: Queue) -> None:
    fill(q, "k", 2)
    one, two = q.receive()
    with pytest.raises(StrictqError), q.transaction(two) as tx:
        tx.send(b"", "next")
    assert q.peek("next") == []
    assert q.status("k", 2).state == "in_flight"
    for d in (one, two):
        with q.transaction(d):
            pass
    assert q.stats().depth == 0


def test_sends_reach_any_shard_before_the_call_returns(make: Opener) -> None:
    q = make(shards=4)
    targets = list(keys_by_shard(4).values())
    d = take(q)
    with q.transaction(d) as tx:
        for key in targets:
            tx.send(key.encode(), key)
            tx.send(b"second", key)
    assert {key: [p.body for p in q.peek(key)] for key in targets} == {key: [key.encode(), b"second"] for key in targets}
    assert {d.shard for d in q.receive(20)} == {0, 1, 2, 3}
    assert q.stats().outbox == 0
    assert q.check() == []


def test_sends_to_the_own_key_follow(q: Queue) -> None:
    fill(q, "k", 2)
    (d,) = q.receive(1)
    with q.transaction(d) as tx:
        tx.send(b"again", "k")
    got = q.receive()
    assert [(g.seq, g.body) for g in got] == [(2, b"2"), (3, b"again")]


def test_sends_carry_delay_and_dedup_id(make: Opener, clock: FakeClock) -> None:
    q = make(shards=4)
    for n in range(8):
        with q.transaction(key=n) as tx:
            tx.send(b"", "late", delay=10.0, dedup_id="once")
    assert len(q.peek("late")) == 1
    assert q.receive() == []
    clock.advance(11.0)
    assert labels(q.receive()) == [("late", 1)]


def test_bad_send_inside_a_transaction_changes_nothing(q: Queue) -> None:
    d = take(q)
    with pytest.raises(strictq.InvalidArgument), q.transaction(d) as tx:
        tx.send(b"good", "next")
        tx.send("bad", "next")  # type: ignore[arg-type]
    assert q.peek("next") == []
    d.ack()


def test_max_depth_does_not_stop_a_handlers_sends(make: Opener) -> None:
    q = make(shards=2, max_depth=1)
    d = take(q)
    with q.transaction(d) as tx:
        for n in range(6):
            tx.send(b"", n)
    assert q.stats().depth == 6


def test_key_state_is_read_written_and_deleted(q: Queue) -> None:
    for before, after in ((None, b"1"), (b"1", b""), (b"", b"\x00" * 10_000), (b"\x00" * 10_000, None), (None, None)):
        d = take(q)
        assert d.key_state == before
        with q.transaction(d) as tx:
            assert tx.key_state == before
            tx.key_state = after
            assert tx.key_state == after


def test_key_state_belongs_to_its_key(q: Queue) -> None:
    with q.transaction(key="a") as tx:
        tx.key_state = b"a"
    with q.transaction(key="b") as tx:
        assert tx.key_state is None
    with q.transaction(key=b"a") as tx:
        assert tx.key_state is None
    with q.transaction(key="a") as tx:
        assert tx.key_state == b"a"


@pytest.mark.parametrize("bad", ["text", 5, bytearray(b"x")])
def test_key_state_must_be_bytes(q: Queue, bad: object) -> None:
    with pytest.raises(strictq.InvalidArgument), q.transaction(key="k") as tx:
        tx.key_state = bad  # type: ignore[assignment]
    with q.transaction(key="k") as tx:
        assert tx.key_state is None


def test_key_state_outlives_reopening(disk: Opener) -> None:
    q = disk()
    with q.transaction(key="k") as tx:
        tx.key_state = b"durable"
    q.close()
    assert take(disk()).key_state == b"durable"


def test_transaction_without_a_delivery(ledger: Queue) -> None:
    with ledger.transaction(key="k") as tx:
        tx.send(b"1", "k")
        tx.send(b"2", "other")
        tx.execute("INSERT INTO app_ledger VALUES (1, 'x')")
    assert sorted(drain(ledger)) == [("k", 1), ("other", 1)]
    assert ledger.query("SELECT what FROM app_ledger", key="k") == [("x",)]


def test_transaction_without_anything_to_hang_on(q: Queue) -> None:
    with pytest.raises(strictq.InvalidArgument), q.transaction():
        pass


def test_run_reads_its_own_writes_inside_the_transaction(ledger: Queue) -> None:
    d = take(ledger)

    def work(db: Any) -> int:
        db.execute("INSERT INTO app_ledger VALUES (?, ?)", (1, "one"))
        db.execute("INSERT INTO app_ledger VALUES (?, ?)", (2, "two"))
        return int(db.execute("SELECT count(*) FROM app_ledger").get)

    with ledger.transaction(d) as tx:
        assert tx.run(work) == 2
    assert ledger.query("SELECT n FROM app_ledger ORDER BY n") == [(1,), (2,)]


def test_run_sees_what_execute_wrote(ledger: Queue) -> None:
    with ledger.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_ledger VALUES (1, 'one')")
        assert tx.run(lambda db: db.execute("SELECT what FROM app_ledger WHERE n = ?", (1,)).get) == "one"
        assert tx.run(lambda db: list(db.execute("SELECT n, what FROM app_ledger"))) == [(1, "one")]
        assert tx.run(lambda db: db.execute("SELECT n, what FROM app_ledger").get) == (1, "one")
        assert tx.run(lambda db: db.execute("SELECT n FROM app_ledger WHERE n = 9").get) is None


def test_exception_inside_run_undoes_everything(ledger: Queue) -> None:
    d = take(ledger)

    def work(db: Any) -> None:
        db.execute("INSERT INTO app_ledger VALUES (1, 'one')")
        raise Boom

    with pytest.raises(Boom), ledger.transaction(d) as tx:
        tx.send(b"", "next")
        tx.run(work)
    assert ledger.query("SELECT * FROM app_ledger") == []
    assert ledger.peek("next") == []
    d.ack()


FORBIDDEN = [
    "ROLLBACK",
    "COMMIT",
    "BEGIN",
    "SAVEPOINT s",
    "RELEASE s",
    "ATTACH ':memory:' AS other",
    "DETACH main",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA user_version = 999",
    "PRAGMA writable_schema = ON",
    "PRAGMA foreign_keys",
    "VACUUM",
    "DROP TABLE lane",
    "DELETE FROM message",
    "DELETE FROM lease",
    "UPDATE lane SET last_seq = 0",
    "SELECT * FROM lease",
    "INSERT INTO meta VALUES (1, 2)",
    "DELETE FROM sqlite_schema",
    "CREATE TABLE mine (x)",
    "CREATE TRIGGER app_t AFTER INSERT ON app_ledger BEGIN DELETE FROM lease; END",
    "CREATE VIEW app_v AS SELECT * FROM lease",
    "ALTER TABLE lane ADD COLUMN x",
    "ALTER TABLE app_ledger RENAME TO lane2",
    "SELECT load_extension('x')",
    "SELECT 1; DROP TABLE lane",
    "this is not SQL",
    "SELECT * FROM app_absent",
    "SELECT ?",
]


@pytest.mark.no_second_process("the SQL is refused whatever the shard has")
@pytest.mark.parametrize("sql", FORBIDDEN)
def test_forbidden_sql_undoes_the_whole_transaction(ledger: Queue, sql: str) -> None:
    d = take(ledger)
    with pytest.raises(StrictqError), ledger.transaction(d) as tx:
        tx.send(b"", "next")
        tx.key_state = b"x"
        tx.execute("INSERT INTO app_ledger VALUES (1, 'one')")
        tx.execute(sql)
    assert unharmed(ledger, d)


@pytest.mark.no_second_process("the SQL is refused whatever the shard has")
@pytest.mark.parametrize("sql", FORBIDDEN)
def test_forbidden_sql_that_the_program_swallows_does_no_harm(ledger: Queue, sql: str) -> None:
    d = take(ledger)

    def work(db: Any) -> None:
        try:
            list(db.execute(sql))
        except Exception as e:
            raise Boom from e

    with pytest.raises(Boom), ledger.transaction(d) as tx:
        tx.send(b"", "next")
        tx.run(work)
    assert unharmed(ledger, d)


def unharmed(q: Queue, d: strictq.Delivery) -> bool:
    """The transaction on d left no trace, and the queue works as before."""
    assert q.status("k", 1).state == "in_flight"
    assert q.peek("next") == []
    assert q.query("SELECT * FROM app_ledger") == []
    assert q.check() == []
    with q.transaction(d) as tx:
        tx.send(b"", "next")
    assert drain(q) == [("next", 1)]
    return True


@pytest.mark.parametrize("conflict", ["ABORT", "FAIL", "ROLLBACK"])
def test_failing_statement_undoes_the_whole_transaction(ledger: Queue, conflict: str) -> None:
    d = take(ledger)
    with pytest.raises(StrictqError), ledger.transaction(d) as tx:
        tx.send(b"", "next")
        tx.execute("INSERT INTO app_ledger VALUES (1, 'one')")
        tx.execute(f"INSERT OR {conflict} INTO app_ledger VALUES (1, 'again')")
    assert unharmed(ledger, d)


def test_or_rollback_that_is_swallowed_cannot_commit_half(ledger: Queue) -> None:
    d = take(ledger)

    def work(db: Any) -> None:
        db.execute("INSERT INTO app_ledger VALUES (1, 'one')")
        try:
            db.execute("INSERT OR ROLLBACK INTO app_ledger VALUES (1, 'again')")
        except Exception:
            db.execute("INSERT INTO app_ledger VALUES (2, 'half')")

    with pytest.raises(Exception), ledger.transaction(d) as tx:
        tx.send(b"", "next")
        tx.run(work)
    assert unharmed(ledger, d)


@pytest.mark.slow
def test_sql_that_never_ends_is_stopped(ledger: Queue) -> None:
    d = take(ledger)
    forever = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(StrictqError), ledger.transaction(d) as tx:
        tx.send(b"", "next")
        tx.run(lambda db: db.execute(forever).get)
    assert unharmed(ledger, d)


def test_queue_still_serves_others_after_forbidden_sql(disk: Opener) -> None:
    one, two = disk(), disk()
    with pytest.raises(StrictqError), one.transaction(key="k") as tx:
        tx.execute("ROLLBACK")
    two.send(b"", "k")
    one.send(b"", "k")
    assert seqs(two.receive()) == [1, 2]


def test_app_schema_is_for_app_tables_only(make: Opener) -> None:
    q = make()
    for sql in ("CREATE TABLE mine (x)", "DROP TABLE lane", "PRAGMA user_version = 9", "ATTACH 'x' AS y"):
        with pytest.raises(StrictqError):
            q.app_schema(sql)
    assert q.check() == []


def test_app_schema_again_and_indexes(ledger: Queue) -> None:
    ledger.app_schema(LEDGER)
    ledger.app_schema("CREATE INDEX IF NOT EXISTS app_ledger_what ON app_ledger (what)")
    with ledger.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_ledger VALUES (1, 'one')")
    assert ledger.query("SELECT n FROM app_ledger WHERE what = 'one'") == [(1,)]


def test_app_schema_of_several_statements(make: Opener) -> None:
    q = make(shards=2)
    q.app_schema("CREATE TABLE app_a (x); CREATE TABLE app_b (x)")
    with q.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_b VALUES (1)")
    assert q.query("SELECT x FROM app_b") == [(1,)]
    assert q.query("SELECT x FROM app_a") == []


def test_app_tables_outlive_reopening(disk: Opener) -> None:
    q = disk(shards=2)
    q.app_schema(LEDGER)
    with q.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_ledger VALUES (1, 'one')")
    q.close()
    assert disk().query("SELECT what FROM app_ledger") == [("one",)]


def test_query_reads_over_all_shards_or_one(make: Opener) -> None:
    q = make(shards=4)
    q.app_schema(LEDGER)
    keys = list(keys_by_shard(4).values())
    for n, key in enumerate(keys):
        with q.transaction(key=key) as tx:
            tx.execute("INSERT INTO app_ledger VALUES (?, ?)", (n, key))
    assert sorted(q.query("SELECT n FROM app_ledger")) == [(n,) for n in range(4)]
    assert q.query("SELECT n FROM app_ledger WHERE n >= ?", (2,), key=keys[3]) == [(3,)]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO app_ledger VALUES (1, 'x')",
        "DELETE FROM app_ledger",
        "DROP TABLE app_ledger",
        "SELECT * FROM message",
        "PRAGMA user_version",
        "ATTACH ':memory:' AS y",
        "nonsense",
    ],
)
def test_query_only_reads_app_tables(ledger: Queue, sql: str) -> None:
    with pytest.raises(StrictqError):
        ledger.query(sql)
    with ledger.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_ledger VALUES (1, 'still there')")
    assert ledger.query("SELECT what FROM app_ledger") == [("still there",)]


@pytest.mark.slow
def test_query_that_never_ends_is_stopped(ledger: Queue) -> None:
    with pytest.raises(StrictqError):
        ledger.query("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n")
    ledger.send(b"", "k")


@pytest.mark.parametrize(
    "use",
    [
        lambda tx: tx.send(b"", "next"),
        lambda tx: tx.execute("SELECT 1"),
        lambda tx: tx.run(lambda db: None),
        lambda tx: setattr(tx, "key_state", b"x"),
    ],
)
def test_transaction_object_is_useless_afterwards(q: Queue, use: Callable[[Any], object]) -> None:
    with q.transaction(key="k") as tx:
        pass
    with pytest.raises(StrictqError):
        use(tx)
    assert q.peek("next") == []


def test_handlers_effects_happen_once_however_often_it_crashes(make: Opener, clock: FakeClock) -> None:
    q = make(shards=2, max_attempts=None, lease_seconds=5.0)
    q.app_schema(LEDGER)
    fill(q, "k", 3)
    crashes = 0
    for _ in range(50):
        batch = q.receive()
        if not batch:
            break
        d = batch[0]
        try:
            with q.transaction(d) as tx:
                done = int(tx.key_state or b"0") + 1
                tx.key_state = b"%d" % done
                tx.execute("INSERT INTO app_ledger VALUES (?, ?)", (d.seq, d.body.decode()))
                tx.send(d.body, "out")
                if crashes % 3 != 2:
                    crashes += 1
                    raise Boom
                crashes += 1
        except Boom:
            clock.advance(6.0)
        else:
            if len(batch) > 1:
                d.lease.release()
        drained = q.receive(10, keys=["out"])
        ack_all(drained)
    assert sorted(q.query("SELECT n FROM app_ledger")) == [(1,), (2,), (3,)]
    assert [q.status("out", n).state for n in (1, 2, 3)] == ["resolved"] * 3
    with pytest.raises(strictq.UnknownMessage):
        q.status("out", 4)
    with q.transaction(key="k") as tx:
        assert tx.key_state == b"3"


def test_delivery_that_an_earlier_nack_gave_back_is_lost(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, three = q.receive()
    two.nack()
    with pytest.raises(LeaseLost), q.transaction(three) as tx:
        tx.send(b"", "next")
    assert q.peek("next") == []
    one.ack()


UNIQUE = "CREATE UNIQUE INDEX app_once ON app_ledger (what)"


def twice_in_one_shard(q: Queue) -> None:
    """Rows that an index can't have, in the last shard."""
    last = keys_by_shard(q.shards)[q.shards - 1]
    with q.transaction(key=last) as tx:
        tx.execute("INSERT INTO app_ledger VALUES (1, 'same'), (2, 'same')")


def test_app_schema_that_does_not_fit_the_rows_of_one_shard_changes_nothing(make: Opener) -> None:
    q = make(shards=3)
    q.app_schema(LEDGER)
    twice_in_one_shard(q)
    with pytest.raises(strictq.InvalidArgument, match="UNIQUE"):
        q.app_schema(UNIQUE)
    q.app_schema("CREATE INDEX app_once ON app_ledger (what)")  # the name was taken nowhere
    for key in keys_by_shard(3).values():
        assert q.send(b"", key).seq == 1


def test_app_schema_that_a_shard_can_not_have_does_not_keep_the_queue_from_being_opened(disk: Opener) -> None:
    """It was recorded while the shard was quarantined, say."""
    q = disk(shards=2)
    q.app_schema(LEDGER)
    twice_in_one_shard(q)
    q.close()
    record_app_schema(disk.path, UNIQUE)
    q = disk()
    assert [q.send(b"", key).seq for key in keys_by_shard(2).values()] == [1, 1]
    assert len(drain(q)) == 2
    with pytest.raises(strictq.InvalidArgument, match="UNIQUE"):
        q.app_schema(UNIQUE)
    with q.transaction(key=keys_by_shard(2)[1]) as tx:
        tx.execute("DELETE FROM app_ledger WHERE n = 2")
    q.app_schema(UNIQUE)
    q.close()
    assert disk().check() == []


@pytest.mark.parametrize("way", ["ack", "nack", "reject", "another transaction", "ack, then run"])
def test_a_delivery_that_is_settled_inside_its_transaction_takes_the_rest_along(ledger: Queue, way: str) -> None:
    """By another thread. All of it or nothing: nothing, and the caller is told."""
    d = take(ledger)

    def settle() -> None:
        if way == "nack":
            d.nack()
        elif way == "reject":
            d.reject("no")
        elif way == "another transaction":
            with ledger.transaction(d) as inner:
                inner.send(b"inner", "inner")
        else:
            d.ack()

    with pytest.raises(LeaseLost), ledger.transaction(d) as tx:
        tx.send(b"out", "next")
        tx.key_state = b"s"
        elsewhere(settle)
        if way == "ack, then run":
            tx.run(lambda db: db.execute("INSERT INTO app_ledger VALUES (1, 'one')"))
    assert ledger.peek("next") == []
    assert d.key_state is None
    assert ledger.query("SELECT * FROM app_ledger") == []
    assert len(ledger.peek("inner")) == (way == "another transaction")
    assert ledger.check() == []
