"""From an older format to this one: forward only, one transaction a step, and never by somebody who only looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from strictq import SchemaMismatch, StoreCorrupt, StoreError, StrictqError
from strictq._store import migrate
from strictq._store.migrate import CATALOG_ID, FORMAT, SHARD_ID
from tests.support.formats import NEXT, add_column, become_next
from tests.support.internals import connected, store_of, tamper
from tests.support.queues import Opener, drain, fill, shard_file
from tests.support.running import in_threads

pytestmark = pytest.mark.usefixtures("cold")  # they look into the tables


@pytest.fixture
def old(disk: Opener) -> Opener:
    """A queue of two shards, of this format, which is about to be the older one."""
    q = disk(shards=2)
    fill(q, "k", 3)
    fill(q, "other", 2)
    q.close()
    return disk


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this strictq one of the next format."""

    def to(shard_step: Callable[[apsw.Connection], None] = add_column) -> None:
        become_next(monkeypatch, shard_step)

    return to


def version(file: Path) -> int:
    """The format of a closed file."""
    ((found,),) = tamper(file, "PRAGMA user_version")
    return int(found)


def files_of(opener: Opener) -> list[Path]:
    return [Path(opener.path) / "queue.db", shard_file(opener.path, 0), shard_file(opener.path, 1)]


def test_every_file_says_what_it_is(old: Opener) -> None:
    for file, kind in zip(files_of(old), (CATALOG_ID, SHARD_ID, SHARD_ID), strict=True):
        assert tamper(file, "PRAGMA application_id") == [(kind,)]
        assert version(file) == FORMAT


def test_an_older_queue_is_migrated_when_it_is_opened(old: Opener, upgrade: Callable[..., None]) -> None:
    upgrade()
    q = old.open(durability=None)
    assert sorted(drain(q)) == [("k", 1), ("k", 2), ("k", 3), ("other", 1), ("other", 2)]
    assert q.check() == []
    q.close()
    assert [version(f) for f in files_of(old)] == [NEXT] * 3
    colours = [c for n in (0, 1) for (c,) in tamper(shard_file(old.path, n), "SELECT colour FROM lane")]
    assert colours == ["blue", "blue"]


@pytest.mark.parametrize("kind", ["catalog", "shard"])
def test_a_file_that_another_process_migrates_while_it_is_verified_is_not_damaged(
    kind: str, old: Opener, upgrade: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its format and its tables are read one after the other."""
    upgrade()
    number = -1 if kind == "catalog" else 0
    real, came = migrate.require_schema, []

    def late(db: apsw.Connection, kind: int, shard: int, version: int) -> None:
        if shard == number and not came:
            came.append(shard)
            old.open(durability=None).close()
        real(db, kind, shard, version)

    monkeypatch.setattr(migrate, "require_schema", late)
    q = old.open(durability=None)
    assert came
    assert [s.quarantined for s in q.stats().shards] == [None, None]
    assert q.check() == []


def test_a_step_runs_once_even_if_two_come_at_once(old: Opener, upgrade: Callable[..., None]) -> None:
    ran: list[int] = []

    def counting(db: apsw.Connection) -> None:
        if db.filename:  # and not where it is asked what a file of that format looks like
            ran.append(1)
        add_column(db)

    upgrade(counting)
    queues = in_threads([lambda: old.open(durability=None) for _ in range(4)])
    assert all(not isinstance(q, BaseException) for q in queues), queues
    assert len(ran) == 2, "once for each shard"


def test_a_failing_step_changes_nothing(old: Opener, upgrade: Callable[..., None]) -> None:
    def failing(db: apsw.Connection) -> None:
        add_column(db)
        db.execute("DELETE FROM message")
        db.execute("INSERT INTO no_such_table VALUES (1)")

    upgrade(failing)
    q = old.open(durability=None)
    with pytest.raises(StrictqError):
        q.send(b"", "k")
    q.close()
    assert [version(f) for f in files_of(old)[1:]] == [FORMAT] * 2
    upgrade(add_column)
    q = old.open(durability=None)
    assert sorted(drain(q)) == [("k", 1), ("k", 2), ("k", 3), ("other", 1), ("other", 2)]


def test_a_step_that_is_interrupted_changes_nothing(old: Opener) -> None:
    file = shard_file(old.path, 0)
    db = connected(file)

    def interrupted(db: apsw.Connection) -> None:
        add_column(db)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as m:
        m.setitem(migrate.STEPS, SHARD_ID, {FORMAT: interrupted})
        with pytest.raises(KeyboardInterrupt):
            migrate.require(db, SHARD_ID, 0, read_only=False, target=NEXT)
    assert not db.in_transaction
    assert db.pragma("user_version") == FORMAT
    assert "colour" not in [c[1] for c in db.execute("PRAGMA table_info(lane)")]
    db.close()


def test_several_steps_each_have_a_transaction_of_their_own(old: Opener) -> None:
    db = connected(shard_file(old.path, 0))
    seen: list[int] = []

    def step(db: apsw.Connection) -> None:
        assert db.in_transaction
        seen.append(db.pragma("user_version"))
        if len(seen) == 3:
            raise LookupError

    with pytest.MonkeyPatch.context() as m:
        m.setitem(migrate.STEPS, SHARD_ID, {FORMAT + n: step for n in range(3)})
        with pytest.raises(LookupError):
            migrate.require(db, SHARD_ID, 0, read_only=False, target=FORMAT + 3)
    assert seen == [FORMAT, FORMAT + 1, FORMAT + 2]
    assert db.pragma("user_version") == FORMAT + 2, "what was reached stays"
    assert not db.in_transaction
    db.close()


def test_a_way_that_is_missing_is_a_typed_error(old: Opener) -> None:
    db = connected(shard_file(old.path, 0))
    with pytest.raises(StoreError, match="no way"):
        migrate.require(db, SHARD_ID, 0, read_only=False, target=NEXT)
    assert not db.in_transaction
    db.close()


def test_who_only_looks_does_not_migrate(old: Opener, upgrade: Callable[..., None]) -> None:
    upgrade()
    with pytest.raises(SchemaMismatch) as caught:
        old.open(read_only=True, durability=None)
    assert "read_only" in caught.value.hint
    assert [version(f) for f in files_of(old)] == [FORMAT] * 3
    old.open(durability=None).close()
    assert old.open(read_only=True, durability=None).stats().depth == 5


@pytest.mark.parametrize("which", [0, 1])
def test_a_newer_file_is_refused_and_not_touched(old: Opener, which: int) -> None:
    """queue.db refuses the queue; a shard alone is quarantined, and the others serve."""
    file = files_of(old)[which]
    tamper(file, f"PRAGMA user_version = {NEXT}")
    before = file.read_bytes()
    if which == 0:
        with pytest.raises(SchemaMismatch) as caught:
            old.open(durability=None)
        assert "upgrade" in caught.value.hint
    else:
        q = old.open(durability=None)
        assert "SchemaMismatch" in repr(store_of(q).shards[0].failed)
        assert store_of(q).shards[1].failed is None
        with pytest.raises(SchemaMismatch):
            store_of(q).shards[0].run(lambda tx: None)
        q.close()
    assert file.read_bytes() == before
    assert version(file) == NEXT


def test_a_file_of_the_other_kind_is_refused(old: Opener) -> None:
    queue_db, shard, _ = files_of(old)
    for file, kind in ((queue_db, SHARD_ID), (shard, CATALOG_ID)):
        db = connected(file)
        with pytest.raises(StoreCorrupt):
            migrate.require(db, kind, 0, read_only=False)
        db.close()
