"""How SQLite runs the engine's statements: with an index, without scanning messages, and prepared once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import strictq
from strictq import Message, Queue
from strictq._sql import (
    APPLIED,
    CHECK,
    CLAIM,
    HANDOUT,
    HISTORY,
    INSPECT,
    LANES,
    OPERATE,
    OUTBOX,
    SCAN,
    SEND,
    SETTLE,
    SHARD,
    Statements,
    repeat,
)
from tests.support.internals import shard_of, writer_of
from tests.support.queues import Opener, shard_file


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """Yield a shard with rows in every table, without statistics or with all that SQLite gathers."""
    path = tmp_path_factory.mktemp("plans") / "queue"
    with strictq.open(path, durability="process", config=strictq.QueueConfig(hot_lanes=False)) as q:
        q.send_many([Message(b"", key=f"k{n % 40}") for n in range(400)])
        q.ack_many(q.receive(30))
        q.receive(10)
        q.receive(1, per_key=1)[0].reject("no")
        q.hold("k30")
        q.send(b"", "late", delay=1000.0)
        q.send(b"", "once", dedup_id="d")
    connection = apsw.Connection(str(shard_file(path)))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    yield connection
    connection.close()


def plan(db: apsw.Connection, sql: str) -> list[str]:
    """Return the steps of EXPLAIN QUERY PLAN."""
    if "{{" in sql:
        sql = repeat(sql, 4)
    names = max([int(n) for n in re.findall(r"\?(\d+)", sql)] or [sql.count("?")])
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * names)]


PINNED: list[tuple[Statements, str, list[str]]] = [
    (CLAIM, "ready_messages", [
        "SEARCH r USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
        "SEARCH l USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH m USING PRIMARY KEY (lane=?)",
    ]),
    (CLAIM, "ready_lanes", ["SEARCH r USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]),
    (CLAIM, "ready_of", ["SEARCH ready USING INDEX sqlite_autoindex_ready_1 (lane=?)"]),
    (CLAIM, "heads_of", [
        "SEARCH r USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH l USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH m USING PRIMARY KEY (lane=?)",
    ]),
    (CLAIM, "lane_messages", [
        "SEARCH l USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH m USING PRIMARY KEY (lane=? AND seq>?)",
    ]),
    (CLAIM, "due_lanes", ["SEARCH delayed USING COVERING INDEX delayed_due (due<?)"]),
    (CLAIM, "drop_position", ["SEARCH ready USING INTEGER PRIMARY KEY (rowid=?)"]),
    (CLAIM, "drop_positions", ["SEARCH ready USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]),
    (LANES, "delete_range", ["SEARCH message USING PRIMARY KEY (lane=? AND seq>? AND seq<?)"]),
    (CLAIM, "body", ["SEARCH body USING INTEGER PRIMARY KEY (rowid=?)"]),
    (SETTLE, "end_whole_lease", ["SEARCH lease USING INTEGER PRIMARY KEY (rowid=?)"]),
    (SETTLE, "finish_lane", ["SEARCH lane USING INTEGER PRIMARY KEY (rowid=?)"]),
    (SETTLE, "rows_between", ["SEARCH message USING PRIMARY KEY (lane=? AND seq>? AND seq<?)"]),
    (SETTLE, "set_started", ["SEARCH lease USING INTEGER PRIMARY KEY (rowid=?)"]),
    (SETTLE, "set_deadline", ["SEARCH lease USING INTEGER PRIMARY KEY (rowid=?)"]),
    (SETTLE, "shrink", ["SEARCH lease USING INTEGER PRIMARY KEY (rowid=?)"]),
    (SETTLE, "grow", ["SEARCH lease USING INTEGER PRIMARY KEY (rowid=?)"]),
    (SETTLE, "key_state", ["SEARCH key_state USING INTEGER PRIMARY KEY (rowid=?)"]),
    (LANES, "by_key", ["SEARCH lane USING COVERING INDEX sqlite_autoindex_lane_1 (key=?)"]),
    (LANES, "get", ["SEARCH lane USING INTEGER PRIMARY KEY (rowid=?)"]),
    (LANES, "head", ["SEARCH message USING PRIMARY KEY (lane=?)"]),
    (LANES, "tail", ["SEARCH message USING PRIMARY KEY (lane=?)"]),
    (LANES, "lease", ["SEARCH lease USING INTEGER PRIMARY KEY (rowid=?)"]),
    (LANES, "message", ["SEARCH message USING PRIMARY KEY (lane=? AND seq=?)"]),
    (LANES, "drop_ready", ["SEARCH ready USING INDEX sqlite_autoindex_ready_1 (lane=?)"]),
    (LANES, "drop_delayed", ["SEARCH delayed USING INTEGER PRIMARY KEY (rowid=?)"]),
    (LANES, "charge", [
        "SEARCH message USING PRIMARY KEY (lane=? AND seq>? AND seq<?)",
        "SCALAR SUBQUERY 1",
        "SEARCH lease USING INTEGER PRIMARY KEY (rowid=?)",
    ]),
    (LANES, "waiting_redrives", ["SEARCH dead USING COVERING INDEX dead_waiting (lane=?)"]),
    (LANES, "some_lanes", ["SEARCH lane USING INTEGER PRIMARY KEY (rowid>?)"]),
    (SEND, "find_dedup", ["SEARCH dedup USING PRIMARY KEY (lane=? AND dedup_id=?)"]),
    (SEND, "next_dedup", ["SEARCH dedup USING COVERING INDEX dedup_until"]),
    (SEND, "old_dedups", ["SEARCH dedup USING COVERING INDEX dedup_until (until<?)"]),
    (APPLIED, "find", ["SEARCH applied USING PRIMARY KEY (writer=? AND batch=?)"]),
    (APPLIED, "newest", ["SEARCH applied USING PRIMARY KEY (writer=?)"]),
    (APPLIED, "origin", ["SEARCH applied USING PRIMARY KEY (writer>? AND writer<?)"]),
    (APPLIED, "finish", ["SEARCH applied USING PRIMARY KEY (writer=? AND batch=?)"]),
    (APPLIED, "forget_batches", ["SEARCH applied USING PRIMARY KEY (writer=? AND batch<?)"]),
    (APPLIED, "outlived", ["SEARCH applied USING INDEX applied_until (until<?)"]),
    (SCAN, "packed", [
        "CO-ROUTINE (subquery-1)",
        "SEARCH m USING PRIMARY KEY ((lane,seq)>(?,?) AND lane<?)",
        "SCAN (subquery-1)",
    ]),
    (SCAN, "deep", [
        "SEARCH l USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
        "SEARCH m USING PRIMARY KEY (lane=? AND seq>? AND seq<?)",
        "CORRELATED SCALAR SUBQUERY 2",
        "SEARCH h USING PRIMARY KEY (lane=? AND seq>?)",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH t USING PRIMARY KEY (lane=?)",
    ]),
    (APPLIED, "open_batches", ["SCAN applied USING INDEX applied_open"]),
    (OUTBOX, "waiting", ["SEARCH outbox USING PRIMARY KEY (destination=?)"]),
    (OUTBOX, "delete", ["SEARCH outbox USING PRIMARY KEY (destination=? AND id<?)"]),
    (OUTBOX, "high_water", ["SEARCH inlet USING PRIMARY KEY (origin=?)"]),
    (HANDOUT, "open_handouts", ["SEARCH handout USING INDEX handout_open (consumer=? AND n<?)"]),
    (HANDOUT, "handout_of", ["SEARCH handout USING INDEX handout_open (consumer=?)"]),
    (HANDOUT, "leases", [
        "SEARCH e USING INDEX lease_handout (token=?)",
        "SEARCH l USING INTEGER PRIMARY KEY (rowid=?)",
    ]),
    (HANDOUT, "apart", [
        "SEARCH e USING INDEX lease_handout (token=?)",
        "SEARCH m USING PRIMARY KEY (lane=? AND seq>? AND seq<?)",
    ]),
    (HANDOUT, "block", ["SEARCH handout_block USING INDEX sqlite_autoindex_handout_block_1 (consumer=? AND n=? AND part=?)"]),
    (INSPECT, "next_message", ["SEARCH message USING PRIMARY KEY (lane=? AND seq>?)"]),
    (INSPECT, "next_dead", ["SEARCH dead USING PRIMARY KEY (lane=? AND seq>?)"]),
    (INSPECT, "next_keyless", ["SEARCH lane USING COVERING INDEX sqlite_autoindex_lane_1 (key>? AND key<?)"]),
    (INSPECT, "errors", [
        "SEARCH l USING COVERING INDEX sqlite_autoindex_lane_1 (key=?)",
        "SEARCH m USING PRIMARY KEY (lane=? AND seq=?)",
    ]),
    (INSPECT, "next_lane", ["SEARCH message USING PRIMARY KEY (lane>?)"]),
    (OPERATE, "messages_outside", ["SEARCH message USING PRIMARY KEY (lane=?)"]),
]  # fmt: skip


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("block", "name", "steps"), PINNED, ids=_name)
def test_a_hot_statement_uses_its_index_and_nothing_else(
    db: apsw.Connection, block: Statements, name: str, steps: list[str]
) -> None:
    assert plan(db, getattr(block, name)) == steps


@pytest.mark.parametrize("name", ["lanes_by_key"])
def test_keys_are_looked_up_in_the_index_on_keys(db: apsw.Connection, name: str) -> None:
    steps = plan(db, SEND.lanes_by_key)
    assert "SEARCH l USING INDEX sqlite_autoindex_lane_1 (key=?)" in steps
    assert "SEARCH m USING PRIMARY KEY (lane=?)" in steps
    assert "SEARCH e USING INTEGER PRIMARY KEY (rowid=?)" in steps
    assert not [s for s in steps if s.startswith("SCAN") and s != "SCAN CONSTANT ROW"]


def test_the_outlook_is_a_few_seeks(db: apsw.Connection) -> None:
    steps = plan(db, CLAIM.outlook)
    assert not any(re.match(r"SCAN (lease|e)\b", s) for s in steps), "it runs at every look of every waiting receive"
    assert any("delayed_due" in s for s in steps)
    assert any("ready" in s for s in steps)


def test_stats_of_held_and_delayed_lanes_walk_those_lanes_alone(db: apsw.Connection) -> None:
    held = plan(db, INSPECT.in_held)
    assert any("lane_held" in s for s in held)
    assert not any(re.match(r"SCAN (m|message|e|lease)\b", s) for s in held)
    delayed = plan(db, INSPECT.in_delayed)
    assert any("delayed_due" in s for s in delayed)
    assert not any(re.match(r"SCAN (m|message|l|lane)\b", s) for s in delayed)


def test_looking_at_keyless_messages_scans_nothing_where_hot_lanes_are_shown(q: Queue) -> None:
    """They are shown by views over the tables and memory, which must not lose an index."""
    q.configure(keyless="round_robin")
    q.send_many([Message(b"") for _ in range(20)])
    receipt = q.send(b"")

    def plans(look: apsw.Connection) -> list[str]:
        names = ("next_message", "next_dead", "next_keyless", "peek", "message")
        return [step for name in names for step in plan(look, getattr(INSPECT, name))]

    shown = shard_of(q).read(plans)
    assert not [s for s in shown if re.match(r"SCAN (main\.|temp\.)?(message|m|lane|l|hot_message|hot_lane|dead)\b", s)], shown
    assert q.status(receipt).state == "ready"


SHOWN = [(INSPECT, name) for name in sorted(INSPECT.names())] + [(HANDOUT, "oldest"), (SCAN, "lanes_to"), (SCAN, "messages")]


@pytest.mark.parametrize(("block", "name"), SHOWN, ids=_name)
def test_a_look_copies_no_table_where_hot_lanes_are_shown(disk: Opener, block: Statements, name: str) -> None:
    """SQLite can copy a whole view before it joins or sums it. `stats` of 10,000,000 messages once took 7 s and 800 MiB."""
    q = disk(shards=1)
    q.send_many([Message(b"", key=f"k{n % 7}") for n in range(40)])
    q.receive(3)
    steps = shard_of(q).look(lambda db: plan(db, getattr(block, name)))
    copied = r"MATERIALIZE (lane|message|lease|ready)\b|.*AUTOMATIC|SCAN main\.message"
    assert not [s for s in steps if re.match(copied, s)], steps
    assert not [s for s in steps if re.match(r"SCAN main\.lane\b", s) and "lane_held" not in s], steps


BLOCKS = {
    "claim": CLAIM, "handout": HANDOUT, "history": HISTORY, "inspect": INSPECT, "lanes": LANES, "operate": OPERATE,
    "outbox": OUTBOX, "scan": SCAN, "send": SEND, "settle": SETTLE,
}  # fmt: skip
STATEMENTS = [
    (f"{where}.{name}", getattr(block, name)) for where, block in BLOCKS.items() for name in block.names() if name != "schema"
]


@pytest.mark.parametrize(("name", "sql"), STATEMENTS, ids=[name for name, _ in STATEMENTS])
def test_no_statement_scans_messages_or_sorts(db: apsw.Connection, name: str, sql: str) -> None:
    """P6: the cost of a call does not grow with the backlog. (check() alone reads everything.)"""
    for step in plan(db, sql):
        assert "TEMP B-TREE" not in step, step
        if step.startswith("SCAN"):
            table = step.split()[1]
            assert table not in {"message", "m", "body", "b", "dedup", "key_state"}, step
            if table in {"lane", "l"}:
                assert "lane_held" in step, step


@pytest.mark.parametrize(("name", "sql"), STATEMENTS, ids=[name for name, _ in STATEMENTS])
def test_plans_do_not_depend_on_statistics(db: apsw.Connection, name: str, sql: str, tmp_path: Path) -> None:
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
        if re.match(r"SCAN (message|m|body|b|lane|l|dead|dedup)\b", step):
            assert step in before, f"{step}, not as before: {before}"


def test_every_statement_can_be_prepared(db: apsw.Connection) -> None:
    for block in (*BLOCKS.values(), CHECK):
        for name in block.names():
            if name not in {"integrity", "schema"}:
                assert plan(db, getattr(block, name)) is not None
    for name in (
        "read_counter",
        "write_counter",
        "set_epoch",
        "skip_tokens",
        "read_meta",
        "write_meta",
        "add_total",
        "rare_totals",
        "has_meta",
    ):
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
