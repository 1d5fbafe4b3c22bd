"""The setup of connections, the accepted versions of SQLite, and what reaches the disk when."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import apsw
import pytest

import strictq
from strictq import ConfigError, Message, Queue, StoreCorrupt
from strictq._store.commit import checkpoint, connection
from strictq._store.commit.connection import connect, connect_catalog, require_sound_sqlite
from tests.support.internals import connection_of, connections, shard_of, store_of, tamper
from tests.support.queues import Opener, drain, fill, shard_file
from tests.support.running import PATIENCE_SECONDS, ROOT, run_python, until

FULL, NORMAL, EXTRA = 2, 1, 3


@pytest.mark.parametrize(("durability", "synchronous"), [("full", FULL), ("process", NORMAL)])
def test_durability_is_what_sqlite_really_does(disk: Opener, durability: str, synchronous: int) -> None:
    """A pragma after `journal_mode` in one string would not run: NORMAL would be FULL, or the reverse."""
    q = disk.open(durability=durability)
    q.send(b"", "k")
    q.check()
    shard_of(q).checkpoint()
    found = list(connections(q))
    assert len(found) == 3, "a writer, a reader and a checkpointer"
    for db in found:
        assert db.pragma("journal_mode") == "wal"
    writer = connection_of(q)
    assert writer.pragma("synchronous") == synchronous
    checkpointer = shard_of(q).wal._checkpointer
    assert checkpointer is not None
    assert checkpointer.pragma("synchronous") == synchronous


def test_a_stronger_level_is_kept_where_it_is_asked_for(disk: Opener) -> None:
    disk.open(durability="process").close()
    assert connection_of(disk.open(durability="full")).pragma("synchronous") == FULL
    assert connection_of(disk.open(durability=None)).pragma("synchronous") == NORMAL


def test_the_catalog_is_synced_at_every_step(disk: Opener) -> None:
    q = disk()
    db = connect_catalog(str(Path(q.path) / "queue.db"))
    assert db.pragma("synchronous") == EXTRA
    assert db.pragma("journal_mode") == "delete"
    db.close()


def test_no_connection_checkpoints_by_itself(disk: Opener) -> None:
    q = disk()
    q.send(b"", "k")
    q.stats()
    shard_of(q).checkpoint()
    for db in connections(q):
        assert db.pragma("wal_autocheckpoint") == 0
        assert db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, -1) == 1


@pytest.mark.parametrize("step", ["_harden", "_set_up_file"])
def test_a_connection_that_fails_while_it_is_set_up_leaves_the_wal(
    step: str, disk: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection may be the last one to close. SQLite would then checkpoint, and delete the WAL by its name."""
    q = disk()
    fill(q, "a", 20)
    store_of(q).die()
    file = shard_file(q.path, 0)
    before = Path(f"{file}-wal").read_bytes()

    def fail(db: apsw.Connection, *_: Any, **__: Any) -> None:
        db.execute("SELECT count(*) FROM message").fetchall()
        raise apsw.IOError("for this test")

    with monkeypatch.context() as patch:
        patch.setattr(connection, step, fail)
        with pytest.raises(apsw.IOError):
            connect(str(file), durability="full")
    gc.collect()
    assert len(before) > 20 * 4096
    assert Path(f"{file}-wal").read_bytes() == before
    assert len(drain(disk())) == 20


def test_the_wal_keeps_its_size_over_a_checkpoint(disk: Opener) -> None:
    """A commit into a growing WAL costs twice as much as one into a WAL of its full size."""
    q = disk()
    q.send_many([Message(b"x" * 500, key=f"k{n % 50}") for n in range(2000)])
    wal = Path(f"{shard_file(q.path)}-wal")
    size = wal.stat().st_size
    pages, done = shard_of(q).checkpoint()
    assert pages == done > 0
    q.send(b"", "k")
    assert wal.stat().st_size == size


def test_a_checkpoint_is_one_even_on_a_fresh_connection(disk: Opener) -> None:
    """On a connection that has never read, SQLite checkpoints nothing and returns (-1, -1)."""
    q = disk()
    q.send(b"", "k")
    assert shard_of(q).wal._checkpointer is None
    pages, done = shard_of(q).checkpoint()
    assert pages == done > 0


def test_hardening_is_on_everywhere(disk: Opener) -> None:
    q = disk()
    q.send(b"", "k")
    q.stats()
    for db in connections(q):
        assert db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1) == 1
        assert db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, -1) == 0
        assert db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1


# --- which SQLite -----------------------------------------------------------------------------------------------------

UNSOUND = ["3.7.0", "3.39.5", "3.51.2", "3.52.0"]
SOUND = ["3.51.3", "3.51.10", "3.52.1", "3.53.0", "3.54.1", "4.0.0"]


@pytest.mark.parametrize("version", UNSOUND)
def test_an_sqlite_that_loses_commits_is_refused(version: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_sound_sqlite(version)
    assert "apsw" in caught.value.hint


@pytest.mark.parametrize("version", SOUND)
def test_a_sound_sqlite_is_accepted(version: str) -> None:
    require_sound_sqlite(version)


def test_the_linked_sqlite_is_looked_at_on_import() -> None:
    script = "import apsw\napsw.sqlite_lib_version = lambda: '3.51.2'\nimport strictq\nstrictq.open\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode != 0
    assert "ConfigError" in done.stderr


def test_the_package_requires_what_it_accepts() -> None:
    """apsw's version numbers are SQLite's, plus a fourth number."""
    (required,) = [r for r in requires("strictq") or [] if r.startswith("apsw")]
    assert sorted(re.findall(r"(?:>=|!=)[\d.]+", required)) == ["!=3.52.0.0", ">=3.51.3.0"]


# --- the WAL stays bounded ---------------------------------------------------------------------------------------------

THRESHOLD = 100


@pytest.fixture
def small_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoint at 100 pages instead of 8,000, so that a short load causes many checkpoints."""
    monkeypatch.setattr(checkpoint, "WAL_PAGES", THRESHOLD)
    monkeypatch.setattr(checkpoint, "WAL_PAGES_MIN", THRESHOLD)


def _load(q: Queue, rounds: int, check: Callable[[], object] = lambda: None) -> None:
    for n in range(rounds):
        q.send_many([Message(b"x" * 600, key=f"k{(n * 7 + i) % 200}") for i in range(60)])
        q.ack_many(q.receive(60))
        check()


@pytest.mark.usefixtures("small_wal")
def test_the_wal_stays_small_under_a_load_that_never_pauses(disk: Opener) -> None:
    q = disk()
    commits: list[int] = []
    connection_of(q).set_wal_hook(_counting(q, commits))
    _load(q, 300)
    written = sum(commits)
    size = Path(f"{shard_file(q.path)}-wal").stat().st_size // 4096
    assert written > 40 * THRESHOLD, "a load that would have made a large WAL"
    assert size < written / 4, f"{size} pages in the WAL after {written} written"
    assert q.check() == []


def _counting(q: Queue, commits: list[int]) -> Any:
    """Return the shard's WAL hook, which also counts the pages written."""
    last = 0

    def hook(db: apsw.Connection, name: str, pages: int) -> int:
        nonlocal last
        commits.append(pages - last if pages >= last else pages)
        last = pages
        return shard_of(q).wal._committed(db, name, pages)

    return hook


BESIDE = """
import sys, strictq
from strictq._store.commit import checkpoint
checkpoint.WAL_PAGES = checkpoint.WAL_PAGES_MIN = int(sys.argv[2])
with strictq.open(sys.argv[1], create=False) as q:
    print("ready", flush=True)
    rounds = 0
    for line in sys.stdin:
        q.send_many([strictq.Message(b"x" * 600, key=f"other{i}") for i in range(20)])
        q.stats()
        q.ack_many(q.receive(20, keys=[f"other{i}" for i in range(20)]))
        rounds += 1
    print(rounds)
"""


@pytest.mark.usefixtures("small_wal")
def test_the_wal_stays_small_beside_a_second_process(tmp_path: Path) -> None:
    """Neither process's connections pin the WAL for the other, and both checkpoint."""
    path = tmp_path / "queue"
    with strictq.open(path, durability="process") as q:
        other = subprocess.Popen(
            [sys.executable, "-c", BESIDE, str(path), str(THRESHOLD)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            stdin = other.stdin

            def step() -> None:
                stdin.write("\n")
                stdin.flush()

            _load(q, 100, step)
            out, _ = other.communicate(timeout=PATIENCE_SECONDS)
        finally:
            other.kill()
            other.wait()
        assert out == "100\n"
        size = Path(f"{shard_file(path)}-wal").stat().st_size // 4096
        assert size < 40 * THRESHOLD, f"{size} pages"
        assert q.check() == []


@pytest.mark.usefixtures("small_wal")
def test_a_long_query_delays_the_checkpoint_and_the_next_one_catches_up(disk: Opener) -> None:
    q = disk()
    q.app_schema("CREATE TABLE app_t (x INTEGER) STRICT")
    looking, looked = threading.Event(), threading.Event()

    def slow_look(_db: apsw.Connection) -> None:
        _db.execute("SELECT count(*) FROM message").fetchall()
        looking.set()
        assert looked.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=lambda: shard_of(q).look(slow_look))
    thread.start()
    try:
        assert looking.wait(PATIENCE_SECONDS)
        _load(q, 20)
        pages, done = shard_of(q).checkpoint()
        assert done < pages, "a reader still needs what lies in the WAL"
    finally:
        looked.set()
        thread.join()
    until(lambda: (lambda r: r[0] == r[1])(shard_of(q).checkpoint()), "a checkpoint of everything")
    q.send(b"", "k")
    assert shard_of(q).wal.pages < 50, "the WAL began anew"


# --- whose file it is --------------------------------------------------------------------------------------------------


def test_locks_survive_whatever_else_this_process_does_with_the_queue(disk: Opener) -> None:
    """A process loses its POSIX locks on a file when it closes any descriptor of it.

    Nothing may do that, not even a second queue.
    """
    q = disk()
    fill(q, "k", 3)
    script = (
        "import sys, apsw\ndb = apsw.Connection(sys.argv[1])\n"
        "try:\n db.execute('BEGIN IMMEDIATE')\n print('taken')\nexcept apsw.BusyError:\n print('held')\n"
    )
    with q.transaction(key="k") as tx:
        assert tx.key_state is None  # the write transaction is open now
        with disk.open() as other:
            other.stats()
            other.peek("k")
            other.check()
        with disk.open(read_only=True) as looker:
            looker.stats()
        assert run_python(script, shard_file(q.path)) == "held\n"
        tx.key_state = b"kept"
    assert run_python(script, shard_file(q.path)) == "taken\n"


def test_a_foreign_database_in_a_shards_place_is_refused_and_not_touched(disk: Opener) -> None:
    q = disk()
    q.send(b"", "k")
    q.close()
    file = shard_file(disk.path)
    for name in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        name.unlink()
    tamper(file, "CREATE TABLE theirs (x)", "INSERT INTO theirs VALUES (1)")
    before = file.read_bytes()
    with pytest.raises(StoreCorrupt):
        disk.open(durability=None).send(b"", "k")
    assert file.read_bytes() == before


def test_translation_is_by_class_never_by_text() -> None:
    pairs = [
        (apsw.BusyError, strictq.StoreBusy), (apsw.LockedError, strictq.StoreBusy), (apsw.FullError, strictq.StoreFull),
        (apsw.CorruptError, strictq.StoreCorrupt), (apsw.NotADBError, strictq.StoreCorrupt), (apsw.IOError, strictq.StoreError),
    ]  # fmt: skip
    for theirs, ours in pairs:
        found = connection.translate(theirs("no such text"), 3)
        assert type(found) is ours
        assert found.shard == 3
    other = ValueError("disk full, busy, malformed")
    assert connection.translate(other, 0) is other


def test_memory_databases_are_set_up_too() -> None:
    db = connect(connection.MEMORY, durability="process")
    assert db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1) == 1
    db.close()
