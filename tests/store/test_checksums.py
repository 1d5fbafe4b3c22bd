"""Every page on the disk is verified, and other databases of the process are not affected."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw
import pytest

import strictq
from strictq import ConfigError, StoreCorrupt
from strictq._store.api import without_checksums
from strictq._store.disk import checksums
from tests.support.internals import PAGE_BYTES, connected, shard_of, store_of, tamper
from tests.support.queues import Opener, drain, fill, keys_by_shard, shard_file
from tests.support.running import run_python

FIRST = """
import sys, apsw, strictq
{before}
default = apsw.vfs_names()[0]
with strictq.open(sys.argv[1] + "/queue") as q:
    q.send(b"body", "k")
    q._storage._store.shards[0].checkpoint()
    assert apsw.vfs_names()[0] == default, apsw.vfs_names()
    print(default, q.receive()[0].body.decode())
    theirs = apsw.Connection(sys.argv[1] + "/theirs.db")
    theirs.execute("CREATE TABLE t (x)")
    print(theirs.reserve_bytes(), theirs.pragma("checksum_verification"))
"""


def test_the_host_programs_default_stays_what_it_was(tmp_path: Path) -> None:
    assert run_python(FIRST.format(before=""), tmp_path).split() == ["unix", "body", "0", "None"]


def test_a_default_that_the_host_chose_stays_and_is_used(tmp_path: Path) -> None:
    before = "apsw.set_default_vfs('unix-excl')"
    assert run_python(FIRST.format(before=before), tmp_path).split() == ["unix-excl", "body", "0", "None"]


def test_a_host_that_loaded_the_layer_itself_keeps_it_as_its_default(tmp_path: Path) -> None:
    before = "import apsw.sqlite_extra; apsw.sqlite_extra.load(apsw.Connection(':memory:'), 'cksumvfs')"
    found = run_python(FIRST.format(before=before), tmp_path).split()
    assert found[:2] == ["cksmvfs", "body"]
    assert found[2:] == ["0", "0"], "its databases have no checksums, for it did not ask for any"


def test_a_layer_at_another_place_is_found_as_apsw_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = checksums._extension()
    monkeypatch.setattr(checksums, "USUAL_PLACE", tmp_path / "nowhere")
    assert Path(checksums._extension()).samefile(usual)


def test_a_queue_in_memory_loads_nothing() -> None:
    script = "import apsw, strictq\nwith strictq.open(':memory:') as q:\n q.send(b'', 'k')\n print('cksmvfs' in apsw.vfs_names())"
    assert run_python(script) == "False\n"


def test_an_apsw_without_it_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apsw import sqlite_extra

    def missing(name: str) -> str:
        raise sqlite_extra.NotAvailable(name)

    monkeypatch.setattr(checksums, "VFS", "not-there")
    monkeypatch.setattr(sqlite_extra, "path", missing)
    monkeypatch.setattr(checksums, "USUAL_PLACE", tmp_path / "nowhere")
    with pytest.raises(ConfigError) as caught:
        strictq.open(tmp_path / "queue")
    assert "wheel" in caught.value.hint
    assert not (tmp_path / "queue").exists()


def test_a_forked_child_verifies_as_well(disk: Opener) -> None:
    q = disk()
    fill(q, "k", 3)
    pid = os.fork()
    if pid == 0:
        db = store_of(q).shards[0]._writer.use(lambda db: db)
        os._exit(0 if db.pragma("checksum_verification") == "1" and db.vfsname("main") is not None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert drain(q) == [("k", 1), ("k", 2), ("k", 3)]


def test_every_connection_verifies(disk: Opener) -> None:
    q = disk()
    q.app_schema("CREATE TABLE app_t (x INTEGER) STRICT")
    q.send(b"", "k")
    q.query("SELECT x FROM app_t")
    shard_of(q).checkpoint()
    shard = shard_of(q)
    for db in (shard._writer._db, shard._reader._db, shard.wal._checkpointer):
        assert db is not None
        assert db.pragma("checksum_verification") == "1"
        assert db.reserve_bytes() == checksums.RESERVED_BYTES


def test_a_queue_without_checksums_is_refused_and_not_touched(disk: Opener) -> None:
    """Such a queue was made before there were checksums."""
    q = disk(shards=2)
    keys = keys_by_shard(2)
    fill(q, keys[1], 2)
    q.close()
    old = shard_file(disk.path)
    new = old.with_name("rewritten")
    db = connected(old)
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    plain = apsw.Connection(str(new))
    with plain.backup("main", db, "main") as backup:
        backup.step()
    plain.reserve_bytes(reserve=0)
    plain.close()
    db.close()
    raw = bytearray(new.read_bytes())
    raw[20] = 0
    old.write_bytes(raw)
    new.unlink()
    for suffix in ("-wal", "-shm"):
        Path(f"{old}{suffix}").unlink(missing_ok=True)
    before = old.read_bytes()
    q = disk.open(durability=None)
    with pytest.raises(StoreCorrupt, match="no checksums"):
        q.send(b"", keys[0])
    assert drain(q) == [(keys[1], 1), (keys[1], 2)]
    q.close()
    assert old.read_bytes() == before


def test_a_queue_made_to_measure_the_cost_of_checksums_has_none(disk: Opener) -> None:
    with without_checksums():
        q = disk()
        fill(q, "k", 2)
        q.close()
        assert tamper(shard_file(disk.path), "PRAGMA checksum_verification") == [("0",)]
        assert len(drain(disk())) == 2
        disk.close()
    with pytest.raises(StoreCorrupt, match="no checksums"):
        disk().send(b"", "k")


def test_damage_is_met_while_the_queue_is_open_too(disk: Opener) -> None:
    """A page that is in no cache is verified when it is read again."""
    q = disk(shards=2)
    keys = keys_by_shard(2)
    for key in keys.values():
        q.send_many([strictq.Message(b"x" * 700, key=key) for _ in range(50)])
    for shard in store_of(q).shards:
        shard.checkpoint()
    shard_of(q)._writer._drop_connection()
    file = shard_file(disk.path)
    fd = os.open(file, os.O_RDWR)  # never closed: that would drop the queue's locks
    for page in range(2, file.stat().st_size // PAGE_BYTES):
        at = page * PAGE_BYTES + 2000
        os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
    with pytest.raises(strictq.StrictqError) as caught:
        q.send(b"", keys[0])
    assert isinstance(caught.value, StoreCorrupt)
    assert "salvage" in caught.value.hint
    q.send(b"", keys[1])
    got: list[object] = []
    with pytest.raises(strictq.PartialFailure) as partial:
        q.send_many([strictq.Message(b"", key=key) for key in keys.values()])
    assert sorted(type(r).__name__ for r in partial.value.results) == ["Receipt", "StoreCorrupt"]
    for _ in range(60):
        batch = q.receive(100)
        if not batch:
            break
        got += batch
        q.ack_many(batch)
    assert len(got) == 52
    assert [s.quarantined is None for s in q.stats().shards] == [False, True]
    q.close()
    shutil.rmtree(disk.path)
