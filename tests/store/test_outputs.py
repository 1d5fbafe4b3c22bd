"""The table of kept outputs: when a shard gets it, what other versions see, and what knows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Message, Queue, QueueConfig, SchemaMismatch, StoreCorrupt
from strictq._sql import OUTPUTS
from strictq._store.shard import ending
from strictq._store.shard.shard_lanes import Tx
from strictq._store.tables import mark, outputs
from strictq._store.whole import forgetting
from strictq.testing import FakeClock
from tests.support.forks import fork
from tests.support.internals import shard_of, store_of, tamper
from tests.support.queues import Opener, fill

KEPT: dict[str, Any] = {"output_seconds": 600.0}


def leave(q: Queue, key: str, output: str) -> int:
    """Send a message and ack it with an output. Return its seq."""
    seq = q.send(b"", key).seq
    (d,) = q.receive(keys=[key])
    d.ack(output=output)
    return seq


def tables(q: Queue) -> int:
    """Return how many shards have the table."""
    found = store_of(q).shards
    assert [s.read(_has_table) for s in found] == [s.view(lambda lanes: outputs.has_table(lanes.memory.mark)) for s in found]
    return sum(s.read(_has_table) for s in found)


def _has_table(db: Any) -> bool:
    return bool(db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'kept_output'").get)


def rows(q: Queue) -> int:
    return int(shard_of(q).read(lambda db: db.execute("SELECT count(*) FROM kept_output").get))


def test_a_shard_gets_the_table_with_its_first_output(disk: Opener) -> None:
    with disk(shards=2) as q:
        fill(q, "k", 1)
        q.receive()[0].ack(output="not kept")
        q.configure(**KEPT)
        fill(q, "k", 1)
        q.receive()[0].ack()
        assert tables(q) == 0
    with disk() as q, disk() as other:
        assert leave(q, "k", "kept") == 3
        assert tables(q) == 1
        assert other.output("k", 3) == "kept"
        assert leave(other, "k", "kept too") == 4
        assert q.output("k", 4) == "kept too"
        assert q.check() == other.check() == []
        q.purge(history=True)
        assert other.output("k", 4) is None
    with disk() as q:
        assert tables(q) == 1
        assert q.check() == []


def test_an_ack_that_is_rolled_back_makes_no_table(q: Queue) -> None:
    q.configure(**KEPT)
    fill(q, "k", 1)

    def fail(tx: Tx) -> None:
        ending.add_outputs(tx, [(1, b"s" + b"k", 1, tx.now, "never")])
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        shard_of(q).run(fail)
    assert tables(q) == 0
    shard = shard_of(q)
    with pytest.raises(ValueError, match="broken"):
        shard.run(lambda tx: (_fails_beside(tx), fail(tx)))
    assert tables(q) == 0
    leave(q, "k2", "kept")
    assert tables(q) == 1


def _fails_beside(tx: Tx) -> None:
    """Keep an output, and roll back to before it, as a group does with one of its operations."""
    tx.run("SAVEPOINT one")
    position = tx.lanes.commits
    ending.add_outputs(tx, [(2, b"s" + b"k", 2, tx.now, "never")])
    error = ValueError()
    tx.run("ROLLBACK TO one")
    tx.lanes.undone(error, position - 1)
    assert not outputs.has_table(tx.lanes.memory.mark)


def test_a_failure_beside_it_in_a_group_keeps_the_table(q: Queue) -> None:
    q.configure(**KEPT)
    fill(q, "k", 1)

    def keep(tx: Tx) -> None:
        ending.add_outputs(tx, [(1, b"s" + b"k", 1, tx.now + 10**9, "kept")])
        tx.lanes.undone(ValueError(), tx.lanes.commits - 1)  # another operation of the group was rolled back
        ending.add_outputs(tx, [(2, b"s" + b"k", 2, tx.now + 10**9, "kept")])

    shard_of(q).run(keep)
    assert tables(q) == 1
    assert rows(q) == 2


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Makes this version one that does not know the table, until `undo`."""
    return monkeypatch


def test_a_running_process_of_an_older_version_refuses_the_shard_and_breaks_nothing(
    disk: Opener, older: pytest.MonkeyPatch
) -> None:
    with disk(**KEPT) as q, disk() as old:
        fill(old, "other", 1)
        leave(q, "k", "kept")
        older.setattr(mark, "KNOWN_FEATURES", 0)
        with pytest.raises(SchemaMismatch, match="bits 0x1"):
            old.send(b"", "k")
        with pytest.raises(SchemaMismatch, match="bits 0x1"):
            old.receive()
        older.undo()
        assert q.output("k", 1) == "kept"
        assert q.check() == []
        assert leave(q, "k", "too") == 2


def test_a_table_of_a_later_version_is_named_as_such(disk: Opener) -> None:
    """The tables are checked before the bits are read."""
    with disk() as q:
        fill(q, "k", 1)
        file = Path(disk.path) / "shard-0000.db"
    tamper(file, "CREATE TABLE later (a)")
    with disk() as q, pytest.raises(StoreCorrupt, match="later"):
        q.peek("k")
    tamper(file, "UPDATE mark SET features = 1099511627776")
    with disk() as q, pytest.raises(SchemaMismatch, match="bits 0x10000000000"):
        q.peek("k")


# ---- deleting


@pytest.mark.one_shard("looks into a shard")
def test_old_outputs_are_deleted_in_the_background(disk: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "STEP", 10)
    q = disk(output_seconds=60.0)
    for n in range(35):
        leave(q, f"k{n}", "kept")
    store_of(q).forget()
    assert rows(q) == 35
    clock.advance(61.0)
    steps: list[int] = []
    before = forgetting.outputs.forget_some
    monkeypatch.setattr(forgetting.outputs, "forget_some", lambda db, now, limit: (steps.append(limit), before(db, now, limit)))
    store_of(q).forget()
    assert rows(q) == 0
    assert steps == [10] * 4


def test_acks_delete_old_outputs(q: Queue, clock: FakeClock) -> None:
    q.configure(output_seconds=60.0)
    for n in range(10):
        leave(q, f"k{n}", "kept")
    clock.advance(61.0)
    for n in range(5):
        leave(q, f"l{n}", "kept")
    assert sum(s.read(_count) for s in store_of(q).shards if s.read(_has_table)) <= 5 + 10


def _count(db: Any) -> int:
    return int(db.execute("SELECT count(*) FROM kept_output").get)


def test_each_statement_uses_an_index(disk: Opener) -> None:
    q = disk(**KEPT)
    leave(q, "k", "kept")
    indexed = {
        "of": "INDEX kept_output_seq (key=? AND seq=?)",
        "of_arrival": "INTEGER PRIMARY KEY (rowid=?)",
        "next_end": "COVERING INDEX kept_output_until",
        "forget": "COVERING INDEX kept_output_until (until<?)",
        "purge_of": "COVERING INDEX kept_output_seq (key=?)",
    }
    for name, wanted in indexed.items():
        sql = getattr(OUTPUTS, name)
        plan = shard_of(q).read(lambda db, sql=sql: db.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?")).fetchall())
        assert any(wanted in row[3] for row in plan), (name, plan)


# ---- what knows the table


def test_salvage_saves_outputs(disk: Opener, tmp_path: Path) -> None:
    q = disk(shards=2, **KEPT)
    for n in range(20):
        leave(q, f"k{n}", f"of {n}")
    q.close()
    found = strictq.salvage(disk.path, tmp_path / "saved", clock=disk.clock)
    assert (found.lost, found.notes) == ((), ())
    with strictq.open(tmp_path / "saved", clock=disk.clock) as saved:
        assert [saved.output(f"k{n}", 1) for n in range(20)] == [f"of {n}" for n in range(20)]
        assert saved.check() == []
        leave(saved, "k0", "again")
        assert saved.output("k0", 2) == "again"


def test_check_finds_an_output_of_another_shards_key(disk: Opener) -> None:
    q = disk(shards=2, **KEPT)
    leave(q, "k", "kept")
    shard = store_of(q).shard_of(b"sk").number
    here, there = store_of(q).shards[shard], store_of(q).shards[1 - shard]
    key = here.read(lambda db: db.execute("SELECT key FROM kept_output").get)
    there.run(lambda tx: ending.add_outputs(tx, [(1, key, 1, tx.now + 10**9, "astray")]))
    assert [(p.rule, p.shard) for p in q.check()] == [("hash_range", there.number)]


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Queue]:
    with strictq.open(tmp_path / "old", durability="process", shards=2, config=QueueConfig(**KEPT)) as opened:
        yield opened


def test_restored_and_merged_queues_have_the_outputs(old: Queue, tmp_path: Path) -> None:
    leave(old, "before", "of before")
    old.send_many([Message(b"", key=f"k{n}") for n in range(6)])
    new = fork(old, tmp_path / "new")
    for d in old.receive(4, per_key=1):
        d.ack(output=f"{d.key} of old")
    done = {f"k{n}": old.output(f"k{n}", 1) for n in range(6)}
    old.close()
    with strictq.open(new) as q:
        assert q.output("before", 1) == "of before"
        assert all(q.output(key, 1) is None for key in done)
    merged = strictq.merge(old.path, new)
    assert len(merged.acked) == 4
    with strictq.open(new) as q:
        assert {key: q.output(key, 1) for key in done} == done
        assert q.check() == []
