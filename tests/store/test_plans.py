"""How SQLite runs the engine's statements: with an index, without scanning messages, and prepared once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import apsw
import pytest

import strictq
from strictq import Message, Queue
from strictq._sql import (
    APPLIED,
    HISTORY,
    LOG,
    LOOKS,
    OPERATE,
    OUTBOX,
    RECORDED_BATCHES,
    SCAN,
    SHARD,
    TABLES,
    Statements,
    choose,
    repeat,
)
from strictq._store.shard.shard_lanes import Tx
from strictq._store.tables.log_rows import PAIRS
from tests.support.internals import shard_of, writer_of
from tests.support.queues import Opener, shard_file


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """Yield a shard with rows in every table, without statistics or with all that SQLite gathers."""
    path = tmp_path_factory.mktemp("plans") / "queue"
    with strictq.open(path, durability="process") as q:
        q.send_many([Message(b"", key=f"k{n % 40}") for n in range(400)])
        q.ack_many(q.receive(30))
        q.receive(10)
        q.receive(1, per_key=1)[0].reject("no")
        q.hold("k30")
        q.send(b"", "late", delay=1000.0)
        q.send(b"", "once", dedup_id="d")
        shard_of(q).run(write_lanes)
        for n in range(100):
            q.hold(f"held-{n}")  # an entry each: statistics of an almost empty table are no use
    connection = apsw.Connection(str(shard_file(path)))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.execute(PAIRS)
    yield connection
    connection.close()


def write_lanes(tx: Tx) -> None:
    """Write the rows of all lanes."""
    tx.lanes.folder.slice(tx.now)


def plan(db: apsw.Connection, sql: str) -> list[str]:
    """Return the steps of EXPLAIN QUERY PLAN."""
    if "{{" in sql:
        sql = repeat(sql, 4)
    sql = choose(sql, re.findall(r"/\*\?(\w+)\*/", sql))
    names = max([int(n) for n in re.findall(r"\?(\d+)", sql)] or [sql.count("?")])
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * names)]


PINNED: list[tuple[Statements, str, list[str]]] = [
    (LOG, "entries", ["SEARCH journal USING INTEGER PRIMARY KEY (rowid>?)"]),
    (LOG, "messages", ["SEARCH message USING INTEGER PRIMARY KEY (rowid>?)"]),
    (LOG, "keys", ["SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"]),
    (LOG, "times", ["SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"]),
    (LOG, "sizes", ["SCAN c VIRTUAL TABLE INDEX 1:", "SEARCH m USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"]),
    (LOG, "whole", ["SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"]),
    (LOG, "whole_range", ["SEARCH message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]),
    (LOG, "cut", ["SEARCH journal USING INTEGER PRIMARY KEY (rowid<?)"]),
    (LOG, "delete_range", [
        "SEARCH message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
        "SCALAR SUBQUERY 1",
        "SEARCH message",
    ]),
    (TABLES, "load", ["SEARCH lane USING PRIMARY KEY (key=?)"]),
    (TABLES, "parts", [
        "SEARCH pending USING PRIMARY KEY (key=? AND first>?)",
        "SCALAR SUBQUERY 1",
        "SEARCH pending USING PRIMARY KEY (key=? AND first<?)",
    ]),
    (TABLES, "ready", ["SEARCH lane USING COVERING INDEX lane_ready ((position,key)>(?,?))"]),
    (TABLES, "delayed", ["SEARCH lane USING COVERING INDEX lane_due ((due,key)>(?,?))"]),
    (TABLES, "leased", ["SEARCH lane USING INDEX lane_leased ((deadline,key)>(?,?))"]),
    (TABLES, "endless", ["SEARCH lane USING COVERING INDEX lane_endless (token=? AND key>?)"]),
    (TABLES, "read_gone", ["SEARCH gone USING INTEGER PRIMARY KEY (rowid=?)"]),
    (TABLES, "trouble_of", ["SEARCH trouble USING INTEGER PRIMARY KEY (rowid=?)"]),
    (TABLES, "key_state", ["SEARCH key_state USING INDEX sqlite_autoindex_key_state_1 (key=?)"]),
    (TABLES, "dedup_seq", ["SEARCH dedup USING PRIMARY KEY (key=? AND dedup_id=?)"]),
    (TABLES, "old_dedups", ["SEARCH dedup USING COVERING INDEX dedup_until (until<?)"]),
    (LOOKS, "dead_letter", ["SEARCH dead USING INDEX dead_seq (key=? AND seq=?)"]),
    (LOOKS, "idle_lanes", ["SEARCH lane USING PRIMARY KEY (key>?)"]),
    (OPERATE, "held", ["SEARCH lane USING INDEX lane_held (key>?)"]),
    (OPERATE, "dead_after", ["SEARCH dead USING PRIMARY KEY ((key,id)>(?,?))"]),
    (SCAN, "depths", ["SEARCH lane USING PRIMARY KEY (key>?)"]),
    (APPLIED, "find", ["SEARCH applied USING PRIMARY KEY (writer=? AND batch=?)"]),
    (APPLIED, "newest", ["SEARCH applied USING PRIMARY KEY (writer=?)"]),
    (APPLIED, "origin", ["SEARCH applied USING PRIMARY KEY (writer>? AND writer<?)"]),
    (APPLIED, "set_files", ["SEARCH applied USING PRIMARY KEY (writer=? AND batch=?)"]),
    (APPLIED, "forget_batches", ["SEARCH applied USING PRIMARY KEY (writer=? AND batch<?)"]),
    (APPLIED, "outlived", ["SEARCH applied USING INDEX applied_until (until<?)"]),
    (APPLIED, "open_batches", ["SCAN applied USING INDEX applied_open"]),
    (OUTBOX, "waiting", ["SEARCH outbox USING PRIMARY KEY (destination=?)"]),
    (OUTBOX, "delete", ["SEARCH outbox USING PRIMARY KEY (destination=? AND id<?)"]),
    (OUTBOX, "high_water", ["SEARCH inlet USING PRIMARY KEY (origin=?)"]),
    (RECORDED_BATCHES, "open_batches", ["SEARCH handout USING INDEX handout_open (consumer=? AND n<?)"]),
    (RECORDED_BATCHES, "batch_of", ["SEARCH handout USING INDEX handout_open (consumer=?)"]),
    (
        RECORDED_BATCHES,
        "block",
        ["SEARCH handout_block USING INDEX sqlite_autoindex_handout_block_1 (consumer=? AND n=? AND part=?)"],
    ),
]  # fmt: skip


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("block", "name", "steps"), PINNED, ids=_name)
def test_a_hot_statement_uses_its_index_and_nothing_else(
    db: apsw.Connection, block: Statements, name: str, steps: list[str]
) -> None:
    assert plan(db, getattr(block, name)) == steps


BLOCKS = {
    "applied": APPLIED, "recorded_batches": RECORDED_BATCHES, "history": HISTORY, "log": LOG, "looks": LOOKS,
    "operate": OPERATE, "tables": TABLES, "outbox": OUTBOX, "scan": SCAN,
}  # fmt: skip
DDL = ("schema", "pairs")
STATEMENTS = [
    (f"{where}.{name}", getattr(block, name)) for where, block in BLOCKS.items() for name in block.names() if name not in DDL
]
WHOLE = {
    *(f"looks.{name}" for name in ("dead_letters", "dead_reasons", "dead_rows", "all_dead", "all_gone", "parts_of_none")),
    *(f"looks.{name}" for name in ("trouble_of_none", "dedup_over_top", "other_keys", "recorded_batches", "outbox")),
}
"""Statements of check() and of lists of everything."""
FROM_THE_END = {"log.last_time", "log.append_void"}
"""They read the newest row alone."""
BOUNDED_SORTS = {"tables.keep_ended", "outbox.in_order"}
"""They sort what they take, or the sends that wait for moments."""
INDEXES_OF_FEW = ("lane_held", "lane_leased", "lane_due")


@pytest.mark.parametrize(("name", "sql"), STATEMENTS, ids=[name for name, _ in STATEMENTS])
def test_no_statement_scans_messages_or_sorts(db: apsw.Connection, name: str, sql: str) -> None:
    """P6: the cost of a call does not grow with the backlog. (check() alone reads everything.)"""
    if name in WHOLE:
        return
    for step in plan(db, sql):
        assert "TEMP B-TREE" not in step or name in BOUNDED_SORTS, step
        if step.startswith("SCAN") and name not in FROM_THE_END:
            table = step.split()[1]
            assert table not in {"message", "m", "journal", "pending", "p", "dead", "d", "dedup", "key_state"}, step
            if table in {"lane", "l"}:
                assert any(index in step for index in INDEXES_OF_FEW), step


@pytest.mark.parametrize(("name", "sql"), STATEMENTS, ids=[name for name, _ in STATEMENTS])
def test_plans_do_not_depend_on_statistics(db: apsw.Connection, name: str, sql: str) -> None:
    """A user's ANALYZE must not change how the queue runs."""
    before = plan(db, sql)
    db.execute("SAVEPOINT analyzed")
    try:
        db.execute("ANALYZE")
        after = plan(db, sql)
    finally:
        db.execute("ROLLBACK TO analyzed")
        db.execute("RELEASE analyzed")
    for step in after:
        if re.match(r"SCAN (message|m|journal|pending|p|lane|l|dead|d|dedup)\b", step):
            assert step in before, f"{step}, not as before: {before}"


def test_every_statement_can_be_prepared(db: apsw.Connection) -> None:
    for block in BLOCKS.values():
        for name in block.names():
            if name not in DDL:
                assert plan(db, getattr(block, name)) is not None
    for name in ("read_meta", "write_meta"):
        assert plan(db, getattr(SHARD, name)) is not None


# --- prepared once --------------------------------------------------------------------------------------------------------


def _send_receive_ack(q: Queue) -> None:
    q.send(b"x", "single")
    q.send_many([Message(b"x", key=f"k{n}") for n in range(85)])
    q.ack_many(q.receive(100))


def _settle_one_by_one(q: Queue) -> None:
    q.send_many([Message(b"x" * 900, key=f"k{n % 3}") for n in range(9)])
    for d in q.receive(20):
        d.ack()


def _nacks(q: Queue) -> None:
    q.send(b"x", "k", headers={"a": "b"}, delay=0.0, ttl=100.0)
    for _ in range(2):
        (d,) = q.receive()
        d.start()
        d.nack(delay=0.0)
    (d,) = q.receive()
    d.extend(10.0)
    d.ack()


def _transactions(q: Queue) -> None:
    q.send(b"x", "k")
    (d,) = q.receive()
    with q.transaction(d) as tx:
        tx.key_state = b"1"
        tx.send(b"y", "k")
    q.ack_many(q.receive(1))


def _per_key(q: Queue) -> None:
    q.send_many([Message(b"x", key=f"k{n % 30}") for n in range(90)])
    q.ack_many(q.receive(100, per_key=2))
    q.ack_many(q.receive(100, keys=[f"k{n}" for n in range(30)]))
    q.receive(1)


def _dedup(q: Queue) -> None:
    q.send(b"x", "k", dedup_id="same")
    q.ack_many(q.receive(1))


ROUNDS: list[Callable[[Queue], None]] = [_send_receive_ack, _settle_one_by_one, _nacks, _transactions, _per_key, _dedup]


@pytest.mark.parametrize("work", ROUNDS, ids=lambda f: f.__name__[1:])
@pytest.mark.parametrize("durability", ["process", "full"])
def test_statements_are_not_prepared_again_at_each_call(disk: Opener, work: Callable[[Queue], None], durability: str) -> None:
    """SQLite calls the authorizer whenever it prepares. With statistics and bound values it would do so at half of the calls."""
    q = disk.open(durability=durability, config=strictq.QueueConfig(max_attempts=None))
    asked: list[Any] = []

    def authorize(*what: Any) -> int:
        if what[:2] != (apsw.SQLITE_PRAGMA, "synchronous"):  # cheap, before and after a receive
            asked.append(what)
        return apsw.SQLITE_OK

    writer_of(q).use(lambda db: setattr(db, "authorizer", authorize))
    for _ in range(4):
        work(q)
    asked.clear()
    for _ in range(10):
        work(q)
    assert asked == [], f"{len(asked)} questions in 10 rounds, the first: {asked[:3]}"
    assert shard_of(q).failed is None
