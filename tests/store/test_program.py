"""The restrictions of programs' SQL. What programs may do with the public verbs is in tests/unit/test_transactions.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import strictq
from strictq import InvalidArgument, Queue
from strictq._sql import CATALOG, LOG, LOOKS, OPERATE, OUTBOX, SHARD, TABLES, repeat
from strictq._store.commit import app_database
from strictq._values.config import BODY_BYTES_MAX
from tests.support.internals import at_rest, connection_of, shard_of
from tests.support.queues import Opener, drain, fill

BLOCKS = {
    "catalog": CATALOG, "log": LOG, "looks": LOOKS, "operate": OPERATE, "tables": TABLES,
    "outbox": OUTBOX, "shard": SHARD,
}  # fmt: skip


def _engines_statements() -> Iterator[tuple[str, str]]:
    for where, block in BLOCKS.items():
        for name in block.names():
            sql = getattr(block, name)
            yield f"{where}.{name}", repeat(sql, 4) if "{{" in sql else sql


ENGINES = dict(_engines_statements())
ENGINES |= {"BEGIN IMMEDIATE": "BEGIN IMMEDIATE", "COMMIT": "COMMIT", "ROLLBACK": "ROLLBACK", "SAVEPOINT": "SAVEPOINT operation"}


@pytest.fixture
def q(disk: Opener) -> Queue:
    """Return a queue that has run its statements, so that they are in the statement cache."""
    queue = disk()
    queue.app_schema("CREATE TABLE app_t (x INTEGER PRIMARY KEY, y TEXT) STRICT")
    fill(queue, "k", 6)
    for d in queue.receive(2):
        d.ack()
    queue.receive(1)[0].nack()
    queue.send(b"x" * 5000, "large", dedup_id="d")
    return queue


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """Yield one such queue for many refusals."""
    with strictq.open(tmp_path_factory.mktemp("program") / "queue", durability="process") as queue:
        queue.app_schema("CREATE TABLE app_t (x INTEGER PRIMARY KEY, y TEXT) STRICT")
        fill(queue, "k", 6)
        for d in queue.receive(2):
            d.ack()
        queue.receive(1)[0].nack()
        yield queue


@pytest.mark.parametrize("table", ["message", "dead", "history"])
def test_no_program_adds_a_column_to_the_engines_tables(used: Queue, table: str) -> None:
    with pytest.raises(InvalidArgument, match="more than read and write rows"), used.transaction(key="k") as tx:
        tx.execute(f"ALTER TABLE {table} ADD COLUMN app_colour TEXT")


@pytest.mark.parametrize("name", ENGINES)
def test_a_text_of_the_engines_own_is_refused_to_programs(used: Queue, name: str) -> None:
    """The engine's statement is prepared, and permitted, in the connection's cache.

    The same text of a program must not find it.
    """
    sql = ENGINES[name]
    before = used.stats().depth
    refusal = "more than read .*the program's own app_"
    if (name.startswith("catalog.") and name != "catalog.schema") or name == "shard.lease_index":
        refusal = "no such table"  # the tables of queue.db and of older formats do not exist there
    if name in ("log.insert_deduped_alone", "log.append_troubled_alone", "log.append_recorded_alone"):
        refusal = "more than read .*the program's own|no such table"  # views of the connection, made when they are first needed
    # Found before the authorizer is asked; see below.
    if name == "shard.history_2":
        refusal = "duplicate column name"
    with pytest.raises(InvalidArgument, match=refusal), used.transaction(key="k") as tx:
        tx.run(lambda db: db.execute(sql))
    assert at_rest(used)
    assert used.stats().depth == before
    if not sql.startswith(("BEGIN", "COMMIT", "SAVEPOINT", "ROLLBACK")):
        with pytest.raises(InvalidArgument, match=refusal):
            used.query(sql)


def test_a_refusal_says_which_call_the_sql_is_for(used: Queue) -> None:
    with pytest.raises(InvalidArgument, match="more than read the program's own") as refused:
        used.query("DELETE FROM app_t")
    assert "tx.execute()" in refused.value.hint
    with pytest.raises(InvalidArgument, match="more than read and write rows") as refused, used.transaction(key="k") as tx:
        tx.execute("CREATE TABLE app_u (x INTEGER)")
    assert "q.app_schema()" in refused.value.hint
    with pytest.raises(InvalidArgument, match="more than define and fill") as refused:
        used.app_schema("CREATE TABLE ledger (x INTEGER)")
    assert "name your tables app_" in refused.value.hint


def test_the_engines_statements_are_not_spoiled_by_a_programs(q: Queue) -> None:
    """A program's statement, refused or permitted, does not enter the cache that the engine reads."""
    for sql in ENGINES.values():
        with pytest.raises(InvalidArgument), q.transaction(key="k") as tx:
            tx.execute(sql)
    q.check(), q.stats(), q.purge("large"), q.dead_letters(), q.top_keys(), q.explain("k")
    assert drain(q) == [("k", n) for n in (3, 4, 5, 6)]
    assert q.check() == []


REFUSED = [
    "SELECT count(*) FROM journal",
    "SELECT 1 FROM message",
    "SELECT * FROM main.message",
    'SELECT * FROM "Message"',
    "SELECT (SELECT body FROM message)",
    "WITH app_x AS (SELECT * FROM message) SELECT * FROM app_x",
    "SELECT * FROM app_t WHERE x IN (SELECT seq FROM message)",
    "SELECT * FROM sqlite_schema",
    "SELECT count(*) FROM sqlite_schema",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM temp.sqlite_schema",
    "SELECT * FROM sqlite_temp_schema",
    "SELECT * FROM dbstat",
    "SELECT * FROM sqlite_dbpage",
    "SELECT * FROM pragma_table_info('lane')",
    "SELECT * FROM pragma_journal_mode('delete')",
    "SELECT * FROM json_each((SELECT value FROM meta))",
    "INSERT INTO app_t SELECT id, NULL FROM message",
    "INSERT INTO app_t (x) VALUES ((SELECT max(seq) FROM message))",
    "UPDATE app_t SET y = (SELECT value FROM meta)",
    "DELETE FROM app_t WHERE EXISTS (SELECT 1 FROM lane)",
    "INSERT INTO app_t VALUES (9, 'x') RETURNING (SELECT count(*) FROM lane)",
    "INSERT INTO sqlite_schema VALUES (1, 2, 3, 4, 5)",
    "UPDATE sqlite_schema SET sql = ''",
    "CREATE TEMP TABLE app_temp (x)",
    "CREATE TEMP VIEW app_v AS SELECT 1",
    "CREATE TEMP TRIGGER app_g AFTER INSERT ON app_t BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE app_f USING fts5(x)",
    "CREATE TABLE app_new (x)",
    "DROP TABLE app_t",
    "ANALYZE",
    "REINDEX",
    "VACUUM INTO 'stolen.db'",
    "EXPLAIN SELECT * FROM message",
    "EXPLAIN QUERY PLAN DELETE FROM message",
    "PRAGMA synchronous = OFF",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA main.journal_mode = DELETE",
    "ATTACH 'stolen.db' AS app_other",
    "SELECT fts3_tokenizer('simple')",
    "SELECT load_extension('x')",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_what_programs_may_not_do(used: Queue, sql: str, tmp_path: Path) -> None:
    sql = sql.replace("/tmp", str(tmp_path))
    depth = used.stats().depth
    with pytest.raises(InvalidArgument), used.transaction(key="k") as tx:
        tx.run(lambda db: db.execute("INSERT INTO app_t VALUES (1, 'undone')"))
        tx.run(lambda db: db.execute(sql))
    with pytest.raises(InvalidArgument):
        used.query(sql)
    assert used.query("SELECT * FROM app_t") == []
    assert used.stats().depth == depth
    assert list(tmp_path.iterdir()) == []
    assert connection_of(used).pragma("synchronous") == 1
    assert connection_of(used).pragma("journal_mode") == "wal"
    assert used.check() == []


NAMES = "SELECT name FROM main.sqlite_schema WHERE type IN ('table', 'view') UNION SELECT name FROM temp.sqlite_temp_schema"


def test_programs_learn_nothing_about_any_table_of_the_engine(disk: Opener) -> None:
    """Not even how many rows it has: SQLite asks about such a statement with the table's name alone."""
    q = disk()
    q.app_schema("CREATE TABLE app_t (x INTEGER PRIMARY KEY, y TEXT) STRICT")
    fill(q, "k", 3)
    q.receive(1)
    assert q.stats().in_flight == 1
    names = {row[0] for row in shard_of(q).look(lambda db: list(db.execute(NAMES)))} - {"app_t"}
    assert names >= {"message", "journal", "lane", "mark", "handout"}
    for name in sorted(names):
        for sql in (f"SELECT count(*) FROM {name}", f"SELECT 1 FROM {name} LIMIT 1", f"SELECT * FROM {name}"):
            with pytest.raises(InvalidArgument):
                q.query(sql)
            with pytest.raises(InvalidArgument), q.transaction(key="k") as tx:
                tx.execute(sql)
    assert q.query("WITH mine(i) AS (VALUES (1), (2)) SELECT count(*) FROM mine") == [(2,)]


HUGE = [
    "SELECT randomblob(1000000000)",
    "SELECT zeroblob(1000000000)",
    "SELECT length(hex(zeroblob(400000000)))",
    "SELECT printf('%.*c', 900000000, 'x')",
    "SELECT replace(hex(zeroblob(1000000)), '0', hex(zeroblob(1000)))",
    "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 2000) SELECT group_concat(hex(zeroblob(100000)), '') FROM n",
    "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 900) SELECT json_group_array(hex(zeroblob(100000))) FROM n",
    "WITH n(s) AS (VALUES ('x') UNION ALL SELECT s || s FROM n WHERE length(s) < 900000000) SELECT max(length(s)) FROM n",
]


@pytest.mark.parametrize("sql", HUGE)
def test_a_value_of_a_programs_sql_is_bounded(used: Queue, sql: str) -> None:
    with pytest.raises(InvalidArgument, match="larger than 67,108,864 bytes"):
        used.query(sql)
    with pytest.raises(InvalidArgument, match="larger than 67,108,864 bytes"), used.transaction(key="k") as tx:
        tx.execute(sql)
    assert at_rest(used)
    assert connection_of(used).limit(apsw.SQLITE_LIMIT_LENGTH) >= BODY_BYTES_MAX, "the engine is not bounded"


def test_a_body_fits_into_a_programs_table_whatever_its_size(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_database, "VALUE_BYTES_MAX", 1024)
    q = disk(max_body_bytes=3_000_000)
    q.app_schema("CREATE TABLE app_body (x BLOB) STRICT")
    body = bytes(3_000_000)
    with q.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_body VALUES (?)", (body,))
    assert q.query("SELECT x FROM app_body") == [(body,)]
    with pytest.raises(InvalidArgument, match="larger than"), q.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_body VALUES (zeroblob(?))", (len(body) + 2_000_000,))


REFUSED_SCHEMA = [
    "CREATE TABLE mine (x)",
    "CREATE TABLE app_copy AS SELECT * FROM message",
    "CREATE TRIGGER app_g AFTER INSERT ON app_t BEGIN DELETE FROM message; END",
    "CREATE TRIGGER app_g AFTER DELETE ON message BEGIN INSERT INTO app_t VALUES (1, ''); END",
    "CREATE TEMP TABLE app_x (x)",
    "CREATE VIRTUAL TABLE app_x USING fts5(y)",
    "CREATE INDEX app_i ON message (id)",
    "CREATE UNIQUE INDEX app_i ON lane (tail)",
    "DROP TABLE message",
    "DROP INDEX lane_leased",
    "ALTER TABLE message ADD COLUMN x",
    "ALTER TABLE lane RENAME TO app_lane",
    "PRAGMA user_version = 7",
    "INSERT INTO meta VALUES ('a', 1)",
    "CREATE TABLE app_x (x); COMMIT",
    "CREATE TABLE app_x (x); ATTACH ':memory:' AS other",
    "DELETE FROM sqlite_schema",
    "ANALYZE",
    "REINDEX",
    "VACUUM",
    "",
    "   ",
    "-- nothing",
    "SELECT",
]


@pytest.mark.parametrize("sql", REFUSED_SCHEMA)
def test_what_a_programs_schema_may_not_do(q: Queue, sql: str) -> None:
    tables = set(_names(q))
    if sql.startswith("--"):
        q.app_schema(sql)  # harmless
    else:
        with pytest.raises(InvalidArgument):
            q.app_schema(sql)
    assert set(_names(q)) == tables
    q.close()
    assert at_rest(q)


def _names(q: Queue) -> list[str]:
    return [name for (name,) in shard_of(q).look(lambda db: db.execute("SELECT name FROM sqlite_schema").fetchall())]


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE app_t RENAME TO later",
        "CREATE INDEX later ON app_t (y)",
    ],
)
def test_names_that_a_later_format_may_want_are_not_taken(q: Queue, sql: str) -> None:
    """Names of programs' tables, indexes and views must start with app_."""
    with pytest.raises(InvalidArgument):
        q.app_schema(sql)
    assert "later" not in _names(q)


def test_a_view_gives_no_way_around(q: Queue) -> None:
    """SQLite checks what a view reads when the view is used."""
    try:
        q.app_schema("CREATE VIEW app_v AS SELECT * FROM message")
    except InvalidArgument:
        return
    with pytest.raises(InvalidArgument):
        q.query("SELECT * FROM app_v")
    with pytest.raises(InvalidArgument), q.transaction(key="k") as tx:
        tx.run(lambda db: db.execute("SELECT * FROM app_v").get)
    assert q.check() == []


def test_a_foreign_key_to_our_tables_changes_nothing(q: Queue) -> None:
    try:
        q.app_schema("CREATE TABLE app_child (seq INTEGER REFERENCES message (seq) ON DELETE RESTRICT) STRICT")
    except InvalidArgument:
        return
    with q.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_child VALUES (4)")
    assert drain(q, 50)
    assert q.check() == []


ALLOWED = [
    "SELECT 1",
    "SELECT upper('a'), length(y), json_extract('[1]', '$[0]') FROM app_t",
    "SELECT count(*), sum(x) FROM app_t GROUP BY y ORDER BY 1",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10) SELECT sum(i) FROM n",
    "SELECT value FROM json_each('[1, 2]')",
    "INSERT INTO app_t VALUES (7, 'seven') ON CONFLICT (x) DO UPDATE SET y = excluded.y RETURNING x",
    "UPDATE app_t SET y = 'z' WHERE x = 7",
    "DELETE FROM app_t; INSERT INTO app_t VALUES (1, 'a'); SELECT * FROM app_t",
    "SELECT * FROM main.app_t",
    "SELECT * FROM APP_T",
    "REPLACE INTO app_t VALUES (1, 'b')",
    "WITH c AS (SELECT x FROM app_t) SELECT count(*) FROM c",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10) SELECT count(*) FROM n",
    "SELECT count(*) FROM app_t",
    "SELECT count(*) FROM (SELECT DISTINCT y FROM app_t)",
]


@pytest.mark.parametrize("sql", ALLOWED)
def test_what_programs_may_do(q: Queue, sql: str) -> None:
    with q.transaction(key="k") as tx:
        tx.run(lambda db: db.execute(sql))
    assert at_rest(q)
    assert q.check() == []


def test_sql_that_never_ends_is_stopped_wherever_it_runs(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_database, "STEPS_MAX", 100_000)
    forever = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n"
    with pytest.raises(InvalidArgument, match="steps"):
        q.query(forever)
    with pytest.raises(InvalidArgument, match="steps"), q.transaction(key="k") as tx:
        tx.run(lambda db: db.execute("INSERT INTO app_t VALUES (1, 'a')"))
        tx.run(lambda db: db.execute(forever))
    assert q.query("SELECT * FROM app_t") == []
    assert at_rest(q)
    fill(q, "other", 50)  # the limit ended with the program's statement
    q.check()
    assert q.query("SELECT 1") == [(1,)]


@pytest.mark.parametrize("then", ["nothing", "key_state", "read", "send", "execute"])
def test_after_sql_undid_the_transaction_nothing_of_it_is_written(q: Queue, then: str) -> None:
    """If the program catches the error, the rest must not run outside of a transaction, statement by statement."""
    fill(q, "undone", 2)
    (d,) = q.receive(1, keys=["undone"])
    with q.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_t VALUES (1, 'a')")
    before = q.stats().depth
    with pytest.raises(InvalidArgument, match="nothing was changed"), q.transaction(d) as tx:
        with pytest.raises(InvalidArgument, match="UNIQUE"):
            tx.run(lambda db: db.execute("INSERT OR ROLLBACK INTO app_t VALUES (1, 'b')"))
        if then == "key_state":
            tx.key_state = b"s"
        elif then == "read":
            _ = tx.key_state
        elif then == "send":
            tx.send(b"", "k")
        elif then == "execute":
            tx.execute("INSERT INTO app_t VALUES (2, 'c')")
    assert q.stats().depth == before
    assert q.status("undone", 1).state == "in_flight"
    assert d.key_state is None
    assert q.query("SELECT * FROM app_t") == [(1, "a")]
    assert at_rest(q)
    assert q.check() == []
    d.ack()


def test_a_statement_that_is_caught_leaves_the_others(q: Queue) -> None:
    with q.transaction(key="k") as tx:
        tx.run(lambda db: db.execute("INSERT INTO app_t VALUES (1, 'a')"))
        with pytest.raises(InvalidArgument):
            tx.run(lambda db: db.execute("INSERT INTO app_t VALUES (2, 'b'), (1, 'c')"))
    assert q.query("SELECT * FROM app_t") == [(1, "a")]


def test_values_are_those_of_the_call(q: Queue) -> None:
    with q.transaction(key="k") as tx:
        row: list[object] = [1, "a"]
        tx.execute("INSERT INTO app_t VALUES (?, ?)", row)
        row[:] = [2, "b"]
        tx.execute("INSERT INTO app_t VALUES (?, ?)", row)
        named = {"x": 3, "y": "c"}
        tx.execute("INSERT INTO app_t VALUES (:x, :y)", named)
        named.clear()
    assert q.query("SELECT * FROM app_t ORDER BY x") == [(1, "a"), (2, "b"), (3, "c")]


def test_the_fence_is_down_for_the_engine_and_up_for_the_next_program(q: Queue) -> None:
    with q.transaction(key="k") as tx:
        with pytest.raises(InvalidArgument):
            tx.run(lambda db: db.execute("DELETE FROM message"))
        with pytest.raises(InvalidArgument):
            tx.run(lambda db: db.execute("SELECT * FROM lane"))
        assert tx.key_state is None
        tx.key_state = b"s"
    with pytest.raises(InvalidArgument):
        q.query("SELECT * FROM lane")


def test_the_same_schema_a_second_time_does_nothing(disk: Opener) -> None:
    """A program repeats it at every start, without IF NOT EXISTS."""
    for _ in range(2):
        q = disk()
        q.app_schema("CREATE TABLE app_t (x INTEGER) STRICT")
        q.app_schema("CREATE TABLE app_t (x INTEGER) STRICT")
        q.close()


def test_every_shard_has_the_programs_tables_also_after_reopening(disk: Opener) -> None:
    q = disk(shards=3)
    q.app_schema("CREATE TABLE app_t (x INTEGER) STRICT")
    q.app_schema("CREATE INDEX app_i ON app_t (x)")
    with disk.open() as other:
        assert other.query("SELECT count(*) FROM app_t") == [(0,)] * 3
    q.close()
    assert disk().query("SELECT count(*) FROM app_t") == [(0,)] * 3
