"""An outbox in the program's own database is relayed in order, without loss and without doubles."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import InvalidArgument, PartialFailure, Queue, QueueFull, ReadOnlyQueue, relay
from tests.support.outboxes import Connect, postgres_outbox, sqlite_outbox

PLACE = {"sqlite": "?", "postgresql": "%s"}


@pytest.fixture(scope="module")
def server() -> Iterator[Connect]:
    with postgres_outbox() as connect:
        yield connect


class Program:
    """A program with an outbox."""

    def __init__(self, kind: str, connect: Connect) -> None:
        self.connect = connect
        self.place = PLACE[kind]
        self.db = connect()

    def put(self, *rows: tuple[Any, ...]) -> None:
        """Commit rows of key, body and perhaps headers."""
        cursor = self.db.cursor()
        for key, body, *headers in rows:
            cursor.execute(
                f"INSERT INTO outbox (key, body, headers) VALUES ({self.place}, {self.place}, {self.place})",
                (key, body, headers[0] if headers else None),
            )
        self.db.commit()

    def left(self, column: str = "id") -> list[Any]:
        cursor = self.db.cursor()
        cursor.execute(f"SELECT {column} FROM outbox ORDER BY id")
        found = [value for (value,) in cursor.fetchall()]
        self.db.commit()
        return found


@pytest.fixture(params=["sqlite", "postgresql"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    if request.param == "sqlite":
        with sqlite_outbox(tmp_path) as connect, closing(Program("sqlite", connect).db):
            yield Program("sqlite", connect)
        return
    made = Program("postgresql", request.getfixturevalue("server"))
    made.db.execute("TRUNCATE outbox")
    made.db.commit()
    with closing(made.db):
        yield made


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with strictq.open(tmp_path / "q", durability="process", shards=2) as opened:
        yield opened


def bodies(q: Queue, *keys: Any) -> list[bytes]:
    return [m.body for key in keys for m in q.peek(key, 10_000)]


def test_rows_become_messages_in_their_order(q: Queue, program: Program) -> None:
    program.put(*((f"key-{n % 3}", b"%d" % n) for n in range(25)))
    assert relay(program.db, q, batch=10) == 25
    assert program.left() == []
    assert relay(program.db, q) == 0
    for key in range(3):
        assert bodies(q, f"key-{key}") == [b"%d" % n for n in range(key, 25, 3)]
    program.put(("key-0", b"later"))
    assert relay(program.db, q) == 1
    assert bodies(q, "key-0")[-1] == b"later"


def test_headers_and_values_of_every_kind(q: Queue, program: Program) -> None:
    program.put(("k", b"\x00\xff", '{"a": "b"}'), ("k", b""))
    assert relay(program.db, q) == 2
    first, second = q.peek("k")
    assert (first.body, first.headers, second.body, second.headers) == (b"\x00\xff", {"a": "b"}, b"", {})


def test_keys_and_bodies_of_other_types(q: Queue, tmp_path: Path) -> None:
    with sqlite_outbox(tmp_path) as connect:
        program = Program("sqlite", connect)
        program.put((7, "ä"), (b"\xff", b"bytes"))
        assert relay(program.db, q) == 2
        assert bodies(q, 7, b"\xff") == ["ä".encode(), b"bytes"]
        q.configure(keyless="random")
        program.put((None, b"keyless"))
        assert relay(program.db, q) == 1
        assert q.stats().ready == 3
        program.db.close()


def test_marked_rows_stay(q: Queue, program: Program) -> None:
    program.put(("k", b"1"), ("k", b"2"))
    assert relay(program.db, q, mark="relayed_at") == 2
    assert len(program.left()) == 2
    assert None not in program.left("relayed_at")
    assert relay(program.db, q, mark="relayed_at") == 0
    program.put(("k", b"3"))
    assert relay(program.db, q, mark="relayed_at") == 1
    assert bodies(q, "k") == [b"1", b"2", b"3"]


def test_rows_that_commit_late_are_not_lost(q: Queue, program: Program) -> None:
    """Ids are issued before the commit. A row with a smaller id than relayed ones is relayed when it is there."""
    if program.place == "?":
        pytest.skip("SQLite has one writer at a time")
    program.put(("k", b"first"))
    slow = program.connect()
    slow.execute("INSERT INTO outbox (key, body) VALUES ('slow', 'late')")
    program.put(("k", b"second"))
    assert relay(program.db, q) == 2
    slow.commit()
    assert relay(program.db, q) == 1
    assert bodies(q, "k", "slow") == [b"first", b"second", b"late"]
    assert program.left() == []
    slow.close()


@pytest.mark.slow
def test_a_relay_that_is_killed_loses_nothing_and_doubles_nothing(tmp_path: Path, program: Program) -> None:
    """Before and after each call of the database and of the queue."""
    program.put(*((f"key-{n % 2}", b"%d" % n) for n in range(12)))
    strictq.open(tmp_path / "q", durability="process", shards=2).close()
    kills, ended = 0, False
    while not ended:
        child = os.fork()
        if child == 0:
            _relay_until_killed(tmp_path / "q", program, kills)
        _, code = os.waitpid(child, 0)
        ended = os.waitstatus_to_exitcode(code) == 0
        assert ended or os.waitstatus_to_exitcode(code) == -signal.SIGKILL
        kills += 1
        if kills % 5 == 0 and not ended:
            program.put(("key-0", b"more"))
    assert kills > 10
    assert program.left() == []
    with strictq.open(tmp_path / "q", durability="process") as q:
        more = [b"more"] * bodies(q, "key-0").count(b"more")
        assert bodies(q, "key-0") == [b"%d" % n for n in range(0, 12, 2)] + more
        assert bodies(q, "key-1") == [b"%d" % n for n in range(1, 12, 2)]
        assert len(more) == (kills - 1) // 5
        assert q.check() == []


def _relay_until_killed(path: Path, program: Program, after: int) -> None:
    """Relay in this process, which is killed after so many calls."""
    calls = 0

    def step() -> None:
        nonlocal calls
        if calls == after:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1

    class Watched:
        """Anything, with a step before and after each of its calls."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            method = getattr(self._inner, name)

            def call(*args: Any) -> Any:
                step()
                found = method(*args)
                step()
                return Watched(found) if name == "cursor" else found

            return call

    try:
        with strictq.open(path, durability="process") as q:
            send_many, style = q.send_many, "qmark" if program.place == "?" else "pyformat"

            def watched(messages: Any) -> Any:
                step()
                found = send_many(messages)
                step()
                return found

            q.send_many = watched  # type: ignore[method-assign]
            relay(Watched(program.connect()), q, batch=5, paramstyle=style)  # type: ignore[arg-type]
    except BaseException:
        os._exit(1)
    os._exit(0)


def test_two_relays_at_once_double_nothing(q: Queue, program: Program) -> None:
    program.put(*(("k", b"%d" % n) for n in range(6)))
    other = program.connect()

    class Slow:
        """A connection whose rows are relayed by another one before they are sent."""

        read = False
        cursor, rollback = other.cursor, other.rollback

        def commit(self) -> None:
            other.commit()
            if not self.read:
                self.read = True
                assert relay(program.db, q, batch=2) == 6

    assert relay(Slow(), q, paramstyle="qmark" if program.place == "?" else "pyformat") == 6
    assert bodies(q, "k") == [b"%d" % n for n in range(6)]
    other.close()


def test_databases_have_their_own_names(q: Queue, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        with sqlite_outbox(tmp_path / name) as connect:
            program = Program("sqlite", connect)
            program.put(("k", name.encode()))
            assert relay(program.db, q, source=name) == 1
            program.db.close()
    assert bodies(q, "k") == [b"first", b"second"]


# ---- failures


def test_a_row_that_can_not_be_sent_is_named_and_keeps_its_place(q: Queue, tmp_path: Path) -> None:
    q.configure(max_body_bytes=100)
    with sqlite_outbox(tmp_path) as connect:
        program = Program("sqlite", connect)
        for row, why in (
            (("k", b"x" * 101), "100"), ((None, b""), "key"), (("k", 7), "its body must be bytes, text or JSON"),
            (("k", b"", "[1]"), "its headers must be a JSON object"), (("k", b"", "{"), "its headers are not JSON"),
            (("k", b"", '{"a": 1}'), "headers"), ((1.5, b""), "key"),
        ):  # fmt: skip
            program.put(("k", b"before"), row, ("k", b"after"))
            before = len(bodies(q, "k"))
            for _ in range(2):
                with pytest.raises(InvalidArgument, match=rf"the row relay:outbox:\d+ can't be sent: .*{why}") as bad:
                    relay(program.db, q)
                assert "correct or delete the row" in (bad.value.hint or "")
                assert len(program.left()) == 2
                assert bodies(q, "k")[before:] == [b"before"]
            program.db.execute("DELETE FROM outbox WHERE id = (SELECT min(id) FROM outbox)")
            program.db.commit()
            assert relay(program.db, q) == 1
        program.db.close()


def test_rows_of_failed_shards_stay(q: Queue, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.put(*((f"key-{n % 4}", b"%d" % n) for n in range(8)))
    send, real = "strictq._store.api.Storage.send", strictq._client.sending.Storage.send  # type: ignore[attr-defined]

    def failing(self: Any, shard: int, *args: Any) -> Any:
        if shard == 0:
            raise strictq.StoreBusy("busy", shard=0)
        return real(self, shard, *args)

    with monkeypatch.context() as patch:
        patch.setattr(send, failing)
        with pytest.raises(PartialFailure):
            relay(program.db, q)
    sent = 8 - len(program.left())
    assert 0 < sent < 8
    assert relay(program.db, q) == 8 - sent
    for key in range(4):
        assert bodies(q, f"key-{key}") == [b"%d" % key, b"%d" % (key + 4)]


def test_a_full_or_read_only_queue_keeps_the_rows(q: Queue, program: Program, tmp_path: Path) -> None:
    program.put(("k", b"1"), ("k", b"2"))
    q.configure(max_depth=1)
    with pytest.raises(QueueFull):
        relay(program.db, q)
    with strictq.open(tmp_path / "q", read_only=True) as look, pytest.raises(ReadOnlyQueue):
        relay(program.db, look)
    assert len(program.left()) == 2
    with strictq.open(":memory:") as memory:
        assert relay(program.db, memory) == 2


def test_a_relay_waits_for_room(q: Queue, program: Program) -> None:
    program.put(*((f"loud/{n % 2}", b"%d" % n) for n in range(4)))
    q.configure(tenant_separator="/")
    q.limit("loud", max_depth=2)
    with pytest.raises(QueueFull, match="tenant 'loud' has reached max_depth=2"):
        relay(program.db, q, batch=1, wait=0.01)
    assert len(program.left()) == 2
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(lambda: [d.ack() or d.body for _ in range(4) for d in q.receive(1, wait=60)])
        assert relay(program.db, q, batch=1, wait=60) == 2
        assert len(got.result()) == 4
    with pytest.raises(InvalidArgument):
        relay(program.db, q, wait=-1.0)


def test_an_error_of_the_database_is_raised_as_it_is(q: Queue, program: Program) -> None:
    with pytest.raises(Exception, match="missing") as failed:
        relay(program.db, q, table="missing")
    assert not isinstance(failed.value, strictq.StrictqError)
    program.put(("k", b"1"))
    assert relay(program.db, q) == 1, "the transaction was rolled back"


def test_arguments_are_checked(q: Queue, tmp_path: Path) -> None:
    with sqlite_outbox(tmp_path) as connect:
        db = connect()
        for bad in ("outbox; DROP TABLE outbox", "", "a.b.c", "1a", 'out"box', "täble", "x" * 64, 7, None):
            with pytest.raises(InvalidArgument, match="table must match"):
                relay(db, q, table=bad)  # type: ignore[arg-type]
        for bad in ("relayed at", "a.b", 7):
            with pytest.raises(InvalidArgument, match="mark must match"):
                relay(db, q, mark=bad)  # type: ignore[arg-type]
        for bad in ("", "a:b", "x" * 65, None):
            with pytest.raises(InvalidArgument, match="source must match"):
                relay(db, q, source=bad)  # type: ignore[arg-type]
        for bad in (0, 10_001, True, "7"):
            with pytest.raises(InvalidArgument, match="batch must be a whole number"):
                relay(db, q, batch=bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="paramstyle must be one of"):
            relay(db, q, paramstyle="sql")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="takes a Queue"):
            relay(db, db)
        with pytest.raises(InvalidArgument, match="takes a DB-API connection"):
            relay("program.db", q)
        db.close()


def test_each_paramstyle(q: Queue, tmp_path: Path) -> None:
    """Those that SQLite understands; "format" and "pyformat" are psycopg's."""

    class Numbered:
        """A cursor or a connection of a module whose parameters have numbers: `:1` is a name for SQLite."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def cursor(self) -> Numbered:
            return Numbered(self._inner.cursor())

        def executemany(self, sql: str, rows: Any) -> None:
            self._inner.executemany(sql.replace(":1", "?"), rows)

    with sqlite_outbox(tmp_path) as connect:
        program = Program("sqlite", connect)
        for style in ("qmark", "named"):
            program.put(("k", style.encode()))
            assert relay(program.db, q, paramstyle=style) == 1
        program.put(("k", b"numeric"))
        assert relay(Numbered(program.db), q, paramstyle="numeric") == 1

        class Unknown:
            cursor = commit = rollback = print

        with pytest.raises(InvalidArgument, match="the paramstyle is unknown"):
            relay(Unknown(), q)
        program.db.close()
    assert bodies(q, "k") == [b"qmark", b"named", b"numeric"]


def test_an_async_queue_is_used_through_its_sync(program: Program, tmp_path: Path) -> None:
    import asyncio

    program.put(("k", b"1"))

    async def main() -> int:
        async with strictq.open_async(tmp_path / "q") as q:
            return relay(program.db, q)

    assert asyncio.run(main()) == 1
