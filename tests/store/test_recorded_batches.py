"""Batches of named consumers whose statements fail in the middle, and damaged rows of batches."""

from __future__ import annotations

from pathlib import Path

import pytest

import strictq
from strictq import Queue, StoreFull
from strictq.spark._recorded_batches import Holder
from tests.support.folds import fold
from tests.support.internals import failing, store_of, tamper
from tests.support.queues import Opener, fill, keys_by_shard, shard_file
from tests.support.recorded_batches import by_key, holder, read


def one_shard_each(disk: Opener, n: int) -> tuple[Queue, dict[int, str], Holder]:
    """Return a queue of two shards, n messages of a key in each, and a holder."""
    q = disk(shards=2)
    keys = keys_by_shard(2)
    for key in keys.values():
        fill(q, key, n)
    return q, keys, holder(q)


def test_after_a_crash_between_two_shards_the_part_is_the_recorded_batch(disk: Opener) -> None:
    q, keys, h = one_shard_each(disk, 2)
    shards = store_of(q).rotation()
    second = shards[0]  # the next rotation begins with the other one
    with failing(q, "INSERT INTO handout ", KeyboardInterrupt(), number=second.number), pytest.raises(KeyboardInterrupt):
        h.take(0)
    done = 1 - second.number
    assert read(q, h, h.take(0)) == [(f"s{keys[done]}", 1, "1"), (f"s{keys[done]}", 2, "2")]
    disk.close()
    q = disk()
    h = holder(q)
    assert h.take(0) == 1
    assert by_key(read(q, h, 1)) == {f"s{keys[done]}": [1, 2]}
    assert by_key(read(q, h, h.take(1))) == {f"s{keys[second.number]}": [1, 2]}
    assert q.check() == []


def test_after_a_crash_between_two_acks_the_other_shard_follows(disk: Opener) -> None:
    q, _, h = one_shard_each(disk, 1)
    h.take(0)
    with failing(q, "UPDATE handout SET state = 'acked'", KeyboardInterrupt(), number=1), pytest.raises(KeyboardInterrupt):
        h.take(1)
    disk.close()
    q = disk()
    assert [(c.acked, c.open, c.in_flight) for c in q.consumers()] == [(1, 1, 1)]
    h = holder(q)
    assert (h.acked, q.stats().acks) == (1, 2)
    assert h.take(0) == 1, "an older start is still served"
    assert q.check() == []


def test_a_shard_that_fails_does_not_take_the_others_part_along(disk: Opener) -> None:
    q, keys, h = one_shard_each(disk, 1)
    second = store_of(q).rotation()[0].number
    with failing(q, "INSERT INTO handout ", strictq.StoreBusy("busy", shard=second), number=second):
        assert h.take(0) == 1
    assert by_key(read(q, h, 1)) == {f"s{keys[1 - second]}": [1]}
    assert by_key(read(q, h, h.take(1))) == {f"s{keys[second]}": [1]}


@pytest.mark.own_messages("acks of the queue")
@pytest.mark.one_shard("the shard whose disk is full")
def test_on_a_full_disk_acks_go_on(q: Queue) -> None:
    fill(q, "a", 2)
    h = holder(q)
    h.take(0, messages_max=1)
    with failing(q, "INSERT INTO handout ", StoreFull("full", shard=0)), pytest.raises(StoreFull):
        h.take(1)
    assert q.stats().acks == 1
    assert by_key(read(q, h, h.take(1))) == {"sa": [2]}


def test_a_release_that_was_cut_short_is_finished(disk: Opener) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    for key in keys.values():
        fill(q, key, 2)
    h = holder(q)
    h.take(0)
    h.close()
    with failing(q, "UPDATE handout SET state = 'released'", KeyboardInterrupt(), number=1), pytest.raises(KeyboardInterrupt):
        q.release_consumer("etl")
    problems = q.check()
    assert {p.rule for p in problems} == {"recorded_batch"}
    assert all(p.fixable for p in problems)
    disk.close()
    q = disk()
    h = holder(q)
    assert (h.acked, h.last) == (1, 1)
    assert q.check() == []
    assert q.stats().acks == 0
    assert by_key(read(q, h, h.take(1))) == {f"s{key}": [1, 2] for key in keys.values()}


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM handout_block WHERE part = 0",
        "UPDATE handout_block SET data = zeroblob(3)",
        "UPDATE handout SET messages = messages + 1",
        "DELETE FROM handout",
        "DELETE FROM consumer",
        "UPDATE consumer SET last = 0",
        "UPDATE consumer SET acked = 1",
        "UPDATE handout SET state = 'acked'",
        "INSERT INTO handout_rejected VALUES ('etl', 9, 1)",
        "UPDATE lane SET token = NULL, deadline = NULL, held = NULL, started = NULL, holder = NULL",
        "UPDATE lane SET holder = replace(holder, 'etl', 'other')",
    ],
)
def test_check_finds_what_is_wrong_with_recorded_batches(disk: Opener, damage: str) -> None:
    q = disk()
    fill(q, "a", 6)
    h = holder(q)
    h.take(0)
    assert q.check() == []
    fold(q)
    disk.close()
    tamper(shard_file(q.path), damage)
    assert "recorded_batch" in {p.rule for p in disk().check()}


def test_nothing_ready_is_no_recorded_batch_and_writes_nothing(disk: Opener) -> None:
    q = disk(shards=2)
    h = holder(q)
    before = [shard._writer.use(lambda db: db.total_changes()) for shard in store_of(q).shards]
    assert [h.take(0) for _ in range(20)] == [0] * 20
    assert [shard._writer.use(lambda db: db.total_changes()) for shard in store_of(q).shards] == before
    assert q.consumers()[0].last == 0


def test_a_list_without_streams_loads_no_lanes(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", durability="process") as q:
        q.send_many([strictq.Message(b"", key=f"k{n}") for n in range(50)])
        with strictq.open(tmp_path / "q", read_only=True) as look:
            assert look.consumers() == []
            assert not any(shard._reader_lanes.memory.lanes for shard in look._storage._store.shards)
