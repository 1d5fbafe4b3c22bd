"""Migration from an older format: forward only, the whole queue at once, one transaction per step and file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import strictq
from strictq import QueueNotFound, SchemaMismatch, StoreBusy, StoreCorrupt, StoreError, StoreFull, StrictqError
from strictq._store.disk import formats as migrate
from strictq._store.disk.formats import CATALOG_ID, FORMAT, SHARD_ID
from strictq._store.whole import upgrade
from strictq.testing import FakeClock
from tests.support.format_1 import require_busy, unpacked
from tests.support.formats import NEWER, NEXT, add_column, become_next
from tests.support.internals import connected, store_of, tamper
from tests.support.queues import Opener, drain, fill, shard_file
from tests.support.running import ROOT, run_python


@pytest.fixture
def old(disk: Opener) -> Opener:
    """Return a queue of two shards in this format, which becomes the older one."""
    q = disk(shards=2)
    fill(q, "k", 3)
    fill(q, "other", 2)
    q.close()
    return disk


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes this strictq one of the next format."""

    def to(shard_step: Callable[[apsw.Connection], None] = add_column, formats: int = 1) -> None:
        become_next(monkeypatch, shard_step, formats)

    return to


def version(file: Path) -> int:
    """Return the format of a closed file."""
    ((found,),) = tamper(file, "PRAGMA user_version")
    return int(found)


def files_of(queue: Path | str) -> list[Path]:
    return [Path(queue) / "queue.db", *sorted(Path(queue).glob("shard-????.db"))]


def versions(opener: Opener) -> list[int]:
    return [version(file) for file in files_of(opener.path)]


def test_every_file_says_what_it_is(old: Opener) -> None:
    for file, kind in zip(files_of(old.path), (CATALOG_ID, SHARD_ID, SHARD_ID), strict=True):
        assert tamper(file, "PRAGMA application_id") == [(kind,)]
        assert version(file) == FORMAT


def test_an_older_queue_is_refused_and_not_touched_until_it_is_migrated(old: Opener, later: Callable[..., None]) -> None:
    later()
    before = [file.read_bytes() for file in files_of(old.path)]
    for read_only in (False, True):
        with pytest.raises(SchemaMismatch, match=rf"format {FORMAT} is older than {NEXT}") as caught:
            old.open(read_only=read_only, durability=None)
        assert caught.value.hint_code == "migrate"
    assert [file.read_bytes() for file in files_of(old.path)] == before
    found = strictq.migrate(old.path, clock=old.clock)
    assert (found.before, found.format, found.files, found.old, found.done) == (FORMAT, NEXT, 3, 3, True)
    assert versions(old) == [NEXT] * 3
    with old.open(durability=None) as q:
        assert sorted(drain(q)) == [("k", 1), ("k", 2), ("k", 3), ("other", 1), ("other", 2)]
        assert q.check() == []


def test_a_queue_is_migrated_as_it_is_opened_if_that_is_asked_for(old: Opener, later: Callable[..., None]) -> None:
    later()
    with (
        strictq.open(old.path, migrate=True, clock=old.clock) as q,
        strictq.open(old.path, migrate=True, clock=old.clock) as other,
    ):
        assert q.stats().depth == other.stats().depth == 5
    assert versions(old) == [NEXT] * 3


def test_a_new_queue_may_be_opened_so(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", migrate=True) as q:
        assert q.send(b"", key="k").seq == 1
    with strictq.open(":memory:", migrate=True) as q:
        assert q.send(b"", key="k").seq == 1


def test_a_dry_run_changes_nothing(old: Opener, later: Callable[..., None]) -> None:
    later()
    before = [file.read_bytes() for file in files_of(old.path)]
    found = strictq.migrate(old.path, dry_run=True)
    assert (found.old, found.done) == (3, False)
    assert found.needs_bytes == 3 * upgrade.SHARD_BYTES
    assert [file.read_bytes() for file in files_of(old.path)] == before


def test_a_queue_of_this_format_has_nothing_to_do_even_while_it_is_open(old: Opener) -> None:
    with old.open(durability=None):
        found = strictq.migrate(old.path)
    assert (found.old, found.done, found.needs_bytes) == (0, True, 0)


def test_a_migration_needs_the_queue_alone(old: Opener, later: Callable[..., None]) -> None:
    q = old.open(durability=None)
    later()
    with pytest.raises(StoreBusy, match="nothing was changed"):
        strictq.migrate(old.path)
    q.close()
    assert versions(old) == [FORMAT] * 3
    strictq.migrate(old.path)


def test_a_migration_that_the_disk_has_no_room_for_changes_nothing(
    old: Opener, later: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    later()
    monkeypatch.setattr(upgrade.files, "free_bytes", lambda _path: 1000)
    with pytest.raises(StoreFull, match="nothing was changed"):
        strictq.migrate(old.path)
    assert versions(old) == [FORMAT] * 3


def test_there_must_be_a_queue(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound):
        strictq.migrate(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_its_progress_is_reported_file_by_file(old: Opener, later: Callable[..., None]) -> None:
    later()
    seen: list[tuple[int, int]] = []
    strictq.migrate(old.path, on_progress=lambda done, files: seen.append((done, files)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_file_that_another_process_migrates_while_it_is_verified_is_not_damaged(
    old: Opener, later: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its format and its tables are read one after the other."""
    later()
    real, came = migrate.require_schema, []

    def late(db: apsw.Connection, kind: int, shard: int, version: int, *, unfinished: bool = False) -> None:
        if not came:
            came.append(shard)
            strictq.migrate(old.path)
        real(db, kind, shard, version, unfinished=unfinished)

    monkeypatch.setattr(migrate, "require_schema", late)
    strictq.migrate(old.path)  # looks at queue.db, which another process migrates at the same time
    assert came == [-1]
    with old.open(durability=None) as q:
        assert q.check() == []


def test_a_failing_step_changes_nothing_of_its_shard_and_the_next_run_goes_on(old: Opener, later: Callable[..., None]) -> None:
    def failing(db: apsw.Connection) -> None:
        add_column(db)
        if db.filename.endswith("0.db"):
            db.execute("DELETE FROM message")
            db.execute("INSERT INTO no_such_table VALUES (1)")

    later(lambda db: failing(db) if db.filename else add_column(db))
    with pytest.raises(StrictqError):
        strictq.migrate(old.path)
    assert versions(old) == [NEXT, FORMAT, NEXT]
    later(add_column)
    found = strictq.migrate(old.path)
    assert (found.old, found.before) == (1, FORMAT)
    assert versions(old) == [NEXT] * 3
    with old.open(durability=None) as q:
        assert q.check() == []


def test_a_shard_whose_migration_is_not_done_is_out_of_service_and_says_why(old: Opener, later: Callable[..., None]) -> None:
    later()
    strictq.migrate(old.path)
    tamper(shard_file(old.path, 0), f"PRAGMA user_version = {FORMAT}", "ALTER TABLE history DROP COLUMN colour")
    with old.open(durability=None) as q:
        assert isinstance(store_of(q).shards[0].failed, SchemaMismatch)
        assert store_of(q).shards[1].failed is None
    with old.open(durability=None, migrate=True) as q:
        assert q.check() == []
        assert q.stats().depth == 5


def test_a_step_that_is_interrupted_changes_nothing(old: Opener, later: Callable[..., None]) -> None:
    db = connected(shard_file(old.path, 0))

    def interrupted(db: apsw.Connection) -> None:
        add_column(db)
        raise KeyboardInterrupt

    later(interrupted)
    with pytest.raises(KeyboardInterrupt):
        migrate.bring_up(db, SHARD_ID, 0)
    assert not db.in_transaction
    assert db.pragma("user_version") == FORMAT
    assert "colour" not in [c[1] for c in db.execute("PRAGMA table_info(history)")]
    db.close()


def test_several_steps_each_have_a_transaction_of_their_own(old: Opener, later: Callable[..., None]) -> None:
    db = connected(shard_file(old.path, 0))
    seen: list[int] = []

    def step(db: apsw.Connection) -> None:
        assert db.in_transaction
        seen.append(db.pragma("user_version"))
        if len(seen) == 3:
            raise LookupError

    later(step, 3)
    with pytest.raises(LookupError):
        migrate.bring_up(db, SHARD_ID, 0)
    assert seen == [FORMAT, FORMAT + 1, FORMAT + 2]
    assert db.pragma("user_version") == FORMAT + 2, "what was reached stays"
    assert not db.in_transaction
    db.close()


def test_a_way_that_is_missing_is_a_typed_error(old: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    db = connected(shard_file(old.path, 0))
    monkeypatch.setattr(migrate, "FORMAT", NEXT)
    with pytest.raises(StoreError, match="cannot be upgraded"):
        migrate.bring_up(db, SHARD_ID, 0)
    assert not db.in_transaction
    db.close()


@pytest.mark.parametrize("which", [0, 1])
def test_a_newer_file_is_refused_and_not_touched(old: Opener, which: int) -> None:
    """queue.db refuses the queue. A single shard is quarantined, and the others serve."""
    file = files_of(old.path)[which]
    tamper(file, f"PRAGMA user_version = {NEWER}")
    before = file.read_bytes()
    if which == 0:
        for again in (lambda: old.open(durability=None), lambda: strictq.migrate(old.path)):
            with pytest.raises(SchemaMismatch) as caught:
                again()
            assert "upgrade" in caught.value.hint
    else:
        q = old.open(durability=None)
        assert "SchemaMismatch" in repr(store_of(q).shards[0].failed)
        assert store_of(q).shards[1].failed is None
        with pytest.raises(SchemaMismatch):
            store_of(q).shards[0].run(lambda tx: None)
        q.close()
    assert file.read_bytes() == before
    assert version(file) == NEWER


def test_a_file_of_the_other_kind_is_refused(old: Opener) -> None:
    queue_db, shard, _ = files_of(old.path)
    for file, kind in ((queue_db, SHARD_ID), (shard, CATALOG_ID)):
        db = connected(file)
        with pytest.raises(StoreCorrupt):
            migrate.require(db, kind, 0)
        db.close()


# ---- what format 1 was


def test_a_queue_of_format_1_keeps_all_it_holds(tmp_path: Path) -> None:
    clock = FakeClock()
    path = unpacked("busy", tmp_path / "q")
    with pytest.raises(SchemaMismatch, match="format 1 is older"):
        strictq.open(path, clock=clock)
    found = strictq.migrate(path, clock=clock)
    assert (found.before, found.old, found.done) == (1, 3, True)
    with strictq.open(path, clock=clock) as q:
        require_busy(q)
        clock.advance(700.0)  # the lease that format 1 gave is over
        (first,) = q.receive(2, keys=["leased"])
        assert first.seq == 1, "alone: it may have been started"
        assert first.token > 1099511627778, "the token of that lease"
        first.ack()
        assert drain(q) == [("leased", 2), ("leased", 3)]


def test_a_queue_of_format_1_is_migrated_after_a_reboot(tmp_path: Path) -> None:
    """The first process of a boot begins a new epoch, which ends the leases of the boot before."""
    clock = FakeClock()
    path = unpacked("busy", tmp_path / "q")
    clock.reboot()
    with strictq.open(path, clock=clock, migrate=True) as q:
        (d,) = q.receive(1, keys=["leased"])
        assert d.seq == 1
        assert d.token > 1099511627778, "the token of its lease of the boot before"
        d.ack()
        q.receive(1, keys=["leased"])[0].ack()
        q.receive(1, keys=["leased"])[0].ack()
        assert q.check() == []
        assert q.stats().dead == 1


def test_an_idle_queue_of_format_1_goes_on_with_its_seqs(tmp_path: Path) -> None:
    path = unpacked("idle", tmp_path / "q")
    with strictq.open(path, migrate=True, clock=FakeClock()) as q:
        assert [q.send(b"", key=f"k{n}").seq for n in range(3)] == [4, 4, 4]
        assert q.check() == []


def test_the_version_before_refuses_this_format(tmp_path: Path) -> None:
    """It refuses every unknown format by its number alone."""
    path = unpacked("idle", tmp_path / "q")
    strictq.migrate(path, clock=FakeClock())
    assert [version(file) for file in files_of(path)] == [FORMAT] * 3


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    path = unpacked("busy", tmp_path / "q")
    script = "import sys; from strictq.cli import main; main()"
    assert "3 files of 3 would be migrated from format 1 to 3" in run_python(script, "migrate", path, "--dry-run")
    assert "migrated 3 files from format 1 to 3" in run_python(script, "migrate", path)
    assert "nothing to do" in run_python(script, "migrate", path)
    assert ROOT.is_dir()
