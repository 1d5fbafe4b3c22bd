"""Traps of SQLite, of files and of transactions. Each was met once; none may be met again.

Those of connections and checkpoints are in test_connection.py, of a full disk in test_disk_full.py, of clocks in
test_time.py, of shared and failed commits in test_commit.py, of programs' SQL in test_program.py, of forks in
tests/multiprocess/test_fork.py.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

import strictq
from strictq import Delivery, Message, Queue, StrictqError
from strictq._store.commit import checkpoint
from strictq._store.whole.store import EAGER_SHARDS, Store
from strictq.testing import FakeClock
from tests.support.internals import ALONE, at_rest, connection_of, shard_of, store_of, tamper, writer_of
from tests.support.queues import Opener, ack_all, drain, fill, keys_by_shard, seqs, shard_file
from tests.support.running import PATIENCE_SECONDS, in_threads, mounted, run_python, unmounted

# --- numbers that are never used twice ----------------------------------------------------------------------------------


def test_numbers_go_on_after_the_queue_was_emptied_and_reopened(disk: Opener) -> None:
    """A plain rowid would start at 1 again once its table is empty."""
    q = disk(shards=2)
    ids: list[tuple[int, int]] = []
    tokens: list[int] = []
    last_seq = 0
    for n in range(4):
        fill(q, "k", 3)
        q.send(b"x" * 5000, "k")
        got = q.receive(10)
        ids += [(d.shard, d.id) for d in got]
        tokens.append(got[0].token)
        assert seqs(got) == [last_seq + 1, last_seq + 2, last_seq + 3, last_seq + 4]
        last_seq += 4
        q.ack_many(got)
        assert q.stats().depth == 0
        if n % 2:
            q.purge(dead=True)
        q.close()
        q = disk()
    assert len(set(ids)) == len(ids) == 16
    assert ids == sorted(ids), "one lane lies in one shard, where arrivals ascend"
    assert tokens == sorted(set(tokens))


def test_numbers_go_on_after_a_forgotten_lane(disk: Opener, clock: FakeClock) -> None:
    q = disk(idle_lane_seconds=1.0)
    old = [f"old{n}" for n in range(30)]
    for key in old:
        fill(q, key, 2)
    first = q.receive(100)
    issued = {(d.key, d.seq) for d in first}
    ids, tokens = max(d.id for d in first), max(d.token for d in first)
    q.ack_many(first)
    q.close()
    q = disk()
    clock.advance(100.0)
    for n in range(200):
        q.send(b"", f"new{n}")  # each new lane looks for idle ones
    drain(q)
    assert q.stats().lanes < len(old) + 200, "none was forgotten"
    for key in old:
        q.send(b"", key)
    for d in q.receive(100, keys=old):
        assert (d.key, d.seq) not in issued
        assert d.id > ids
        assert d.token > tokens
    assert q.check() == []


# --- transactions -------------------------------------------------------------------------------------------------------


class Boom(Exception):
    """A handler's failure."""


def _raises(call: Callable[[], object], *errors: type[BaseException]) -> None:
    with suppress(*errors):
        call()
        raise AssertionError("it was to fail")


def _verbs(q: Queue, clock: FakeClock) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every verb, in an order in which each has something to do."""

    def one(key: str) -> Delivery:
        q.send(b"", key)
        (d,) = q.receive(1, keys=[key])
        return d

    def failing_block() -> None:
        with q.transaction(key="t") as tx:
            tx.run(lambda db: db.execute("INSERT INTO app_t VALUES (1)"))
            raise Boom

    def with_sql(sql: str) -> None:
        with q.transaction(key="t") as tx:
            tx.execute(sql)

    def run_sql(sql: str) -> None:
        with q.transaction(key="t") as tx:
            tx.run(lambda db: db.execute(sql))

    def reads_state() -> None:
        with q.transaction(key="t") as tx:
            assert tx.key_state is None

    def everything(d: Delivery) -> None:
        with q.transaction(d) as tx:
            tx.send(b"", "next")
            tx.key_state = b"s"
            tx.execute("INSERT INTO app_t VALUES (2)")

    def hold_on(d: Delivery) -> None:
        d.start()
        d.extend(9.0)
        d.lease.more()
        d.lease.release()

    def stale(act: Callable[[Delivery], object]) -> None:
        d = one("stale")
        clock.advance(100.0)
        ack_all(q.receive(1, keys=["stale"]))
        _raises(lambda: act(d), strictq.LeaseLost)

    yield "app_schema", lambda: q.app_schema("CREATE TABLE app_t (x INTEGER PRIMARY KEY) STRICT")
    yield "bad app_schema", lambda: _raises(lambda: q.app_schema("CREATE TABLE nope (x)"), strictq.InvalidArgument)
    yield "send", lambda: q.send(b"", "a")
    yield "large send", lambda: q.send(b"x" * 5000, "a", dedup_id="d")
    yield "duplicate", lambda: q.send(b"x", "a", dedup_id="d")
    yield "delayed send", lambda: q.send(b"", "later", delay=5.0, ttl=60.0, headers={"h": "1"})
    yield "send_many", lambda: q.send_many([Message(b"", key=f"m{n}") for n in range(150)])
    yield "empty send_many", lambda: q.send_many([])
    yield "peek", lambda: q.peek("a")
    yield "status", lambda: q.status("a", 1)
    yield "unknown status", lambda: _raises(lambda: q.status("a", 99), strictq.UnknownMessage)
    yield "explain", lambda: q.explain("a")
    yield "stats", q.stats
    yield "top_keys", q.top_keys
    yield "receive", lambda: q.receive(5)
    yield "receive per_key", lambda: q.receive(5, per_key=1)
    yield "receive keys", lambda: q.receive(5, keys=["m1", "m2"])
    yield "receive nothing", lambda: q.receive(5, keys=["nobody"])
    yield "ack", lambda: one("b").ack()
    yield "ack_first", lambda: [d.done() for d in (q.send(b"", "af"), q.receive(1, keys=["af"], ack_first=True))[1]]
    yield "nack", lambda: one("c").nack(delay=1.0, reason="r")
    yield "reject", lambda: one("d").reject("no")
    yield (
        "start, extend, more, release",
        lambda: (lambda d: (d.start(), d.extend(9.0), d.lease.more(), d.lease.release()))(one("e")),
    )
    yield "lost ack", lambda: stale(lambda d: d.ack())
    yield "lost nack", lambda: stale(lambda d: d.nack())
    yield "lost extend", lambda: stale(lambda d: d.extend(1.0))
    yield "lost start", lambda: stale(lambda d: d.lease.release())
    yield "lost transaction", lambda: stale(everything)
    yield "lost more", lambda: stale(lambda d: d.lease.more())
    yield "dead_letters", q.dead_letters
    yield "redrive", q.redrive
    yield "hold", lambda: q.hold("m3")
    yield "release", lambda: q.release("m3")
    yield "transaction", lambda: everything(one("f"))
    yield "transaction without writes", reads_state
    yield "failing transaction", lambda: _raises(failing_block, Boom)
    yield "refused SQL", lambda: _raises(lambda: with_sql("DELETE FROM message"), strictq.InvalidArgument)
    yield "failing SQL", lambda: _raises(lambda: with_sql("INSERT INTO app_t VALUES (2)"), strictq.InvalidArgument)
    yield "OR ROLLBACK", lambda: _raises(lambda: run_sql("INSERT OR ROLLBACK INTO app_t VALUES (2)"), StrictqError)
    yield "ROLLBACK", lambda: _raises(lambda: run_sql("ROLLBACK"), StrictqError)
    yield "query", lambda: q.query("SELECT * FROM app_t")
    yield "refused query", lambda: _raises(lambda: q.query("DELETE FROM app_t"), strictq.InvalidArgument)
    yield "configure", lambda: q.configure(max_depth=1)
    yield "QueueFull", lambda: _raises(lambda: q.send(b"", "full"), strictq.QueueFull)
    yield "configure back", lambda: q.configure(max_depth=None)
    yield "check", q.check
    yield "check and fix", lambda: q.check(fix=True)
    yield "checkpoint", lambda: shard_of(q).checkpoint()
    yield "expiry", lambda: (clock.advance(3600.0), q.receive(50))
    yield "purge", lambda: q.purge(dead=True)


@pytest.mark.parametrize("durability", ["process", "full"])
def test_no_verb_leaves_a_transaction_open(disk: Opener, clock: FakeClock, durability: str) -> None:
    """An `INSERT … RETURNING` read by one next(), or an error in the middle, would keep the write lock for ever."""
    q = disk.open(shards=2, durability=durability)
    rival = [apsw.Connection(str(shard_file(q.path, n))) for n in (0, 1)]
    for name, verb in _verbs(q, clock):
        verb()
        assert at_rest(q), name
        for db in rival:
            db.execute("BEGIN IMMEDIATE")  # without waiting for a lock
            db.execute("ROLLBACK")
    for db in rival:
        db.close()


class Traced:
    """Records every statement that reaches a connection, in order."""

    def __init__(self, db: apsw.Connection) -> None:
        self.statements: list[str] = []
        db.trace_v2(apsw.SQLITE_TRACE_STMT, self._add)

    def _add(self, event: Any) -> None:
        sql = event["sql"]
        # Not the parts of a statement whose trigger writes two tables, nor the making of that trigger.
        if not event["trigger"] and " NEW." not in sql and "(NEW." not in sql and not sql.startswith("CREATE TEMP"):
            self.statements.append(sql)


def test_every_transaction_that_writes_begins_immediate(disk: Opener, clock: FakeClock) -> None:
    """A deferred one that writes after it read fails with BUSY_SNAPSHOT, whatever the busy timeout."""
    q = disk()
    traced = Traced(connection_of(q))
    for _, verb in _verbs(q, clock):
        verb()
    begun = ""
    wrote = 0
    for sql in traced.statements:
        word = sql.split()[0].upper()
        if word == "BEGIN":
            begun = sql
        elif word in {"INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE"} and sql not in ALONE:
            wrote += 1
            assert begun == "BEGIN IMMEDIATE", sql
        elif word in {"COMMIT", "ROLLBACK"} and "TO" not in sql.split():
            begun = ""
    assert wrote > 80


@pytest.mark.parametrize("durability", ["process", "full"])
def test_readers_that_turn_writers_never_meet_a_stale_snapshot(disk: Opener, durability: str) -> None:
    """Two objects read and then write in one transaction each, as fast as they can."""
    queues = [disk.open(durability=durability), disk.open(durability=durability)]

    def count(q: Queue) -> None:
        for _ in range(60):
            with q.transaction(key="k") as tx:
                tx.key_state = b"%d" % (int(tx.key_state or b"0") + 1)
                tx.send(b"", "k")

    assert in_threads([lambda q=q: count(q) for q in queues]) == [None, None]  # type: ignore[misc]
    with queues[0].transaction(key="k") as tx:
        assert tx.key_state == b"120"
    assert drain(queues[1]) == [("k", n) for n in range(1, 121)]


def test_a_call_inside_a_transaction_of_its_own_thread_is_refused_at_once(disk: Opener) -> None:
    q = disk.open(durability="full")
    with q.transaction(key="k") as tx:
        tx.key_state = tx.key_state
        for call in (lambda: q.send(b"", "k"), q.receive, q.stats, lambda: q.peek("k"), q.close):
            with pytest.raises(strictq.InvalidArgument, match="inside a transaction"):
                call()
    assert q.send(b"", "k").seq == 1


# --- files --------------------------------------------------------------------------------------------------------------

AUDITED = """
import json, os, sys
opened = []
def note(event, args):
    if event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
        opened.append(os.fspath(args[0]))
sys.addaudithook(note)
import strictq
path = sys.argv[1]
for durability in ("process", "full"):
    with strictq.open(f"{path}-{durability}", shards=3, durability=durability) as q:
        q.app_schema("CREATE TABLE app_t (x INTEGER) STRICT")
        q.send_many([strictq.Message(b"x" * n * 20, key=f"k{n}") for n in range(100)])
        for d in q.receive(10):
            with q.transaction(d) as tx:
                tx.send(b"", "elsewhere")
                tx.send(b"", "k5")
                tx.execute("INSERT INTO app_t VALUES (1)")
        q.receive(1)[0].reject("no")
        q.redrive()
        q.stats(), q.check(), q.top_keys(), q.query("SELECT * FROM app_t"), q.configure(lease_seconds=9.0)
        for shard in q._storage._store.shards:
            shard.checkpoint()
        q._storage._store.tidy()
        with strictq.open(f"{path}-{durability}", create=False) as other:
            other.send(b"", "k1")
        with strictq.open(f"{path}-{durability}", read_only=True) as looker:
            looker.stats()
        if os.fork() == 0:
            q.send(b"", "child")
            os._exit(0)
        os.wait()
        q.purge(dead=True)
    strictq.open(f"{path}-{durability}").close()
print(json.dumps([os.fsdecode(p) for p in opened]))
"""


def test_sqlites_files_are_never_opened_as_plain_files(tmp_path: Path) -> None:
    """Closing any descriptor of a database or of its -shm drops this process's locks on it, and then commits are lost."""
    opened = json.loads(run_python(AUDITED, tmp_path / "q"))
    inside = [Path(p) for p in opened if p.startswith(str(tmp_path))]
    assert len(inside) > 20
    for p in inside:
        if p.parent.name.endswith(".new"):
            continue  # a queue that is being built: SQLite has not seen these files yet
        assert p.suffix != ".db", p
        assert not p.name.endswith("-shm"), p
        allowed = p.name in {"wake", "presence", "reserve", "marks"} or p.name.startswith("reserve.") or p.name.endswith("-wal")
        assert allowed or p.is_dir() or p.name.endswith(".new"), p


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o027])
def test_files_are_their_owners_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with strictq.open(tmp_path / "queue", shards=2) as q:
            q.send_many([Message(b"", key=f"k{n}") for n in range(20)])
            q.configure(lease_seconds=5.0)
            (tmp_path / "queue" / "reserve").unlink()
            assert store_of(q).reserve is not None
            assert store_of(q).reserve.there()
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "queue").iterdir()}
        mode = stat.S_IMODE((tmp_path / "queue").stat().st_mode)
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(modes, 0o600)
    assert {"queue.db", "shard-0000.db", "shard-0001.db-wal", "shard-0001.db-shm", "wake", "presence", "reserve"} <= set(modes)
    assert mode == 0o700


@pytest.mark.parametrize("name", ["shard-0001.db", "queue.db"])
def test_a_link_in_a_files_place_is_refused(disk: Opener, tmp_path: Path, name: str) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    q.close()
    real = tmp_path / "elsewhere.db"
    (Path(disk.path) / name).rename(real)
    (Path(disk.path) / name).symlink_to(real)
    with pytest.raises(StrictqError):
        disk.open(durability=None).send(b"", keys[1])


@pytest.mark.parametrize("name", ["wake", "presence"])
def test_a_link_in_a_side_files_place_leads_nowhere(disk: Opener, tmp_path: Path, name: str) -> None:
    disk().close()
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    (Path(disk.path) / name).unlink()
    (Path(disk.path) / name).symlink_to(target)
    with suppress(StrictqError):
        disk.open().send(b"", "k")
    assert target.read_bytes() == b"precious"


def test_a_shards_file_name_comes_from_its_number_alone(disk: Opener, tmp_path: Path) -> None:
    """queue.db names files; a tampered one must not lead out of the directory."""
    disk().close()
    tamper(Path(disk.path) / "queue.db", "UPDATE topology SET file = '../elsewhere.db'")
    with pytest.raises(strictq.StoreCorrupt):
        disk.open(durability=None)
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize("key", ["../../etc/passwd", "a/b", "..", "con", "x" * 1000, b"/\x00/"])
def test_keys_never_name_files(disk: Opener, tmp_path: Path, key: Any) -> None:
    q = disk()
    before = sorted(p.name for p in tmp_path.rglob("*"))
    q.send(b"", key)
    assert [d.key for d in q.receive()] == [key]
    after = sorted(p.name for p in tmp_path.rglob("*"))
    assert after == before


@pytest.fixture
def read_only_directory(disk: Opener) -> Iterator[Callable[[], None]]:
    """Make the queue's directory read-only, like a medium, so that not even root can write to it."""
    place = Path(disk.path)
    done = False

    def make() -> None:
        nonlocal done
        if not mounted("--bind", str(place), str(place)):
            pytest.skip("mounting is not permitted here, and permissions do not stop root")
        done = True
        assert mounted("-o", "remount,bind,ro", str(place))

    yield make
    if done:
        disk.close()
        unmounted(place)


@pytest.mark.parametrize("missing", ["-shm", "-wal"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_read_only_medium_without_shm_says_what_to_do(
    disk: Opener, read_only_directory: Callable[[], None], shards: int, missing: str
) -> None:
    """SQLite can't create the -shm, and its immutable mode would miss what is in the WAL."""
    q = disk(shards=shards)
    fill(q, "k", 3)
    q.close()
    Path(f"{shard_file(disk.path, shards - 1)}{missing}").unlink()
    read_only_directory()
    with pytest.raises(strictq.StoreError, match=missing) as caught:
        disk.open(read_only=True, durability=None)
    assert not isinstance(caught.value, strictq.StoreCorrupt), "nothing is damaged"
    assert caught.value.hint
    with pytest.raises(StrictqError) as refused:
        disk.open(durability=None)
    assert "read_only" in refused.value.hint


def test_a_shard_that_cannot_be_read_is_not_counted_as_empty(disk: Opener, read_only_directory: Callable[[], None]) -> None:
    """So many shards are not opened with the queue."""
    shards = EAGER_SHARDS + 1
    q = disk(shards=shards)
    fill(q, "k", 3)
    q.close()
    Path(f"{shard_file(disk.path, shards - 1)}-shm").unlink()
    read_only_directory()
    with disk.open(read_only=True, durability=None) as q, pytest.raises(strictq.StoreError, match="-shm"):
        q.stats()


def test_a_read_only_medium_with_shm_is_readable_or_says_why(disk: Opener, read_only_directory: Callable[[], None]) -> None:
    q = disk()
    fill(q, "k", 3)
    q.close()
    read_only_directory()
    q = disk.open(read_only=True, durability=None)
    hint, found = "", []
    try:
        found = seqs(q.peek("k"))
    except strictq.StoreError as e:
        hint = e.hint
    assert hint or found == [1, 2, 3]


def test_a_looker_beside_a_writer_sees_each_commit_and_holds_nobody_up(disk: Opener) -> None:
    q = disk()
    looker = disk.open(read_only=True, durability=None)
    for n in range(1, 6):
        q.send(b"", "k")
        assert looker.stats().depth == n
        assert seqs(looker.peek("k")) == list(range(1, n + 1))
    with q.transaction(key="k") as tx:
        tx.key_state = tx.key_state or b"state"
        tx.send(b"", "k")
        assert looker.stats().depth == 5, "not committed yet"
    assert looker.stats().depth == 6
    assert looker.check() == []
    assert drain(q) == [("k", n) for n in range(1, 7)]
    q.close()
    assert looker.stats().depth == 0


def test_a_looker_writes_nothing_at_all(disk: Opener) -> None:
    q = disk()
    fill(q, "k", 3)
    q.close()
    place = Path(disk.path)
    before = {p.name: p.read_bytes() for p in place.iterdir() if not p.name.endswith("-shm")}
    looker = disk.open(read_only=True, durability=None)
    looker.stats(), looker.check(), looker.peek("k"), looker.dead_letters(), looker.top_keys(), looker.explain("k")
    looker.close()
    assert {p.name: p.read_bytes() for p in place.iterdir() if not p.name.endswith("-shm")} == before


# --- values -------------------------------------------------------------------------------------------------------------


def test_text_bytes_and_numbers_are_three_keys(disk: Opener) -> None:
    """In SQLite text 'a' and blob x'61' are different, 1 and '1' may be the same: keys are bytes with their type."""
    q = disk(shards=4)
    same = ["1", b"1", 1, "-1", b"-1", -1, "s1", b"s1", "i1"]
    for n, key in enumerate(same):
        for _ in range(n + 1):
            q.send(b"", key)
    got: dict[Any, int] = {}
    for d in q.receive(100):
        name = (type(d.key), d.key)
        got[name] = got.get(name, 0) + 1
    assert got == {(type(key), key): n + 1 for n, key in enumerate(same)}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_never_reaches_sqlite_where_it_would_be_null(disk: Opener, bad: float) -> None:
    q = disk()
    q.send(b"", "k")
    (d,) = q.receive()
    for call in (
        lambda: q.send(b"", "k", size_hint=bad),
        lambda: q.send(b"", "k", prepare_seconds=bad),
        lambda: q.send(b"", "k", process_seconds=bad),
        lambda: q.send(b"", "k", delay=bad),
        lambda: q.send(b"", "k", ttl=bad),
        lambda: q.receive(lease_seconds=bad),
        lambda: q.receive(wait=bad),
        lambda: d.extend(bad),
        lambda: d.nack(delay=bad),
        lambda: q.configure(lease_seconds=bad),
        lambda: strictq.QueueConfig(retry_backoff=bad),
    ):
        with pytest.raises(ValueError):
            call()
    assert q.check() == []


# --- limits -------------------------------------------------------------------------------------------------------------


def test_max_depth_lets_a_handlers_sends_through(disk: Opener) -> None:
    """Otherwise handlers that forward messages, here or to another shard, could never drain a full queue."""
    q = disk(shards=2, max_depth=2)
    keys = keys_by_shard(2)
    q.send(b"", keys[0])
    q.send(b"", keys[1])
    with pytest.raises(strictq.QueueFull):
        q.send(b"", keys[0])
    for d in q.receive():
        with q.transaction(d) as tx:
            for key in keys.values():
                tx.send(b"", key)
    assert q.stats().depth == 4
    with pytest.raises(strictq.QueueFull):
        q.send(b"", keys[1])
    assert len(drain(q)) == 4
    q.send(b"", keys[0])


def test_a_lock_that_is_never_had_is_a_busy_store_and_nothing_changed(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("connection", "writer"):
        monkeypatch.setattr(f"strictq._store.commit.{module}.BUSY_SECONDS", 0.1)
    q = disk()
    q.send(b"", "k")
    rival = apsw.Connection(str(shard_file(q.path)))
    rival.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(strictq.StoreBusy) as caught:
            q.send(b"", "k")
        assert caught.value.transient
        with pytest.raises(strictq.StoreBusy):
            q.receive()
        assert seqs(q.peek("k")) == [1], "looking needs no write lock"
    finally:
        rival.execute("ROLLBACK")
        rival.close()
    assert q.send(b"", "k").seq == 2
    assert at_rest(q)


def test_a_lock_is_looked_for_again_in_steps_short_enough_for_the_gaps_of_a_busy_process(
    disk: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own steps grow to 100 ms. A process that is never idle releases the lock for less than one."""
    q = disk()
    q.send(b"", "k")
    steps: list[float] = []
    watch = SimpleNamespace(monotonic=lambda: sum(steps), sleep=steps.append)
    monkeypatch.setattr("strictq._store.commit.connection.time", watch)
    rival = apsw.Connection(str(shard_file(q.path)))
    rival.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(strictq.StoreBusy):
            q.send(b"", "k")
    finally:
        rival.execute("ROLLBACK")
        rival.close()
    first = steps[: bisect(list(accumulate(steps)), 0.04)]
    assert max(first) < 0.0003
    assert max(steps) < 0.002
    assert 9 < sum(steps) < 11, "as long as a call waits for a lock"


def test_a_thread_that_holds_the_shard_is_waited_for(disk: Opener) -> None:
    q = disk()
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with q.transaction(key="k") as tx:
            tx.key_state = tx.key_state or b"x"
            inside.set()
            assert leave.wait(PATIENCE_SECONDS)

    def send() -> int:
        assert inside.wait(PATIENCE_SECONDS)
        threading.Timer(0.05, leave.set).start()
        return q.send(b"", "k").seq

    assert in_threads([hold, send]) == [None, 1]
    assert not writer_of(q)._lock.locked()


def test_bodies_of_any_size_come_back_whole(disk: Opener) -> None:
    q = disk()
    sizes = [0, 1, 799, 800, 801, 1002, 4096, 70_000]
    q.send_many([Message(bytes(n % 251 for n in range(size)), key="k") for size in sizes])
    got = q.receive(20)
    assert [d.body for d in got] == [bytes(n % 251 for n in range(size)) for size in sizes]
    q.ack_many(got)


def test_thresholds_of_checkpoints_are_shared_by_the_shards() -> None:
    assert checkpoint.WAL_PAGES // 16 >= checkpoint.WAL_PAGES_MIN


def test_stats_do_without_a_queue_db_that_can_not_be_read(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    q = disk()
    q.send(b"x", key=1)

    def broken(self: object) -> dict[str, str]:
        raise strictq.StoreError("queue.db can't be read", shard=-1)

    monkeypatch.setattr(Store, "estimates", broken)
    assert q.stats().depth == 1
    assert q.stats().process.samples == 0
