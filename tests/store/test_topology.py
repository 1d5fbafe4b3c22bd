"""The shard of a key, which never changes, on any platform; and files that differ from the topology."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strictq
from strictq import Message, StoreCorrupt, StoreError, StrictqError
from strictq._store.disk.topology import HASHES, SHARDS_MAX, Range, ShardList
from strictq._values.hashing import hash_key
from strictq._values.keys import encode_key, keyless_by_hash, keyless_lane
from strictq.testing import FakeClock
from tests.support.internals import fold, store_of, tamper
from tests.support.queues import Opener, drain, fill, keys_by_shard, shard_file
from tests.support.running import in_threads

# Computed once, and never to change: the place of stored messages depends on them. (key, hash)
VECTORS: list[tuple[str | bytes | int, int]] = [
    ("a", 0xA4E5032C0D419313),
    ("customer-42", 0x6EE41B463B2D49F4),
    ("é", 0xBAB7C93E186FFDF3),
    ("日本", 0xD4760B7FA58BAE47),
    ("x" * 1024, 0x2F40A04435D7FA50),
    (b"a", 0xEE3F6B40991A6C7A),
    (b"\x00", 0x9362BB8AF3B13A92),
    (b"customer-42", 0x7C9E9FE05786E564),
    (0, 0x7AF38095FD650CB3),
    (1, 0xAE2A1EFFBA11CF0A),
    (-1, 0xF6A29EC6C79464A7),
    (42, 0x0E43B9C5CFC40C96),
    (10**30, 0xB6AB1337D40FD2D1),
    ("1", 0x89A147DA21BB2954),
    (b"1", 0x992E9A7E321EFCDA),
]
KEYLESS = {0: 0xA985AB8AD00828C6, 1: 0xC16952960BCB12FD, 63: 0xA296D1E47F6CC40F}


@pytest.mark.parametrize(("key", "hashed"), VECTORS, ids=lambda v: repr(v)[:20])
def test_hashes_are_what_they_always_were(key: str | bytes | int, hashed: int) -> None:
    assert hash_key(encode_key(key)) == hashed


@pytest.mark.parametrize(("lane", "hashed"), KEYLESS.items())
def test_keyless_lanes_lie_where_they_always_lay(lane: int, hashed: int) -> None:
    assert hash_key(keyless_lane(lane)) == hashed


def test_a_dedup_id_chooses_the_lane_it_always_chose() -> None:
    assert [keyless_by_hash(d) for d in ("a", "order-1", "é")] == DEDUP_LANES


DEDUP_LANES = [b"n47", b"n61", b"n47"]


@pytest.mark.parametrize("shards", range(1, SHARDS_MAX + 1))
def test_even_ranges_cover_every_hash_once(shards: int) -> None:
    ranges = ShardList.even(shards).ranges
    assert ranges[0].lo == 0
    assert ranges[-1].hi == HASHES - 1
    for one, two in itertools.pairwise(ranges):
        assert two.lo == one.hi + 1
    sizes = {r.hi - r.lo + 1 for r in ranges}
    assert max(sizes) - min(sizes) <= 1
    assert len({r.file for r in ranges}) == shards


@given(st.integers(1, SHARDS_MAX), st.integers(0, HASHES - 1))
def test_every_hash_has_one_owner(shards: int, hashed: int) -> None:
    topology = ShardList.even(shards)
    owners = [r.shard for r in topology if r.owns(hashed)]
    assert owners == [topology.owner(hashed)]


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 16, 17, 100, 256])
def test_routing_agrees_with_the_ranges(tmp_path: Path, shards: int) -> None:
    """By bisection, and for the hashes at both ends of every range."""
    with strictq.open(":memory:", shards=shards) as q:
        for key, hashed in VECTORS:
            shard = store_of(q).shard_of(encode_key(key))
            assert shard.range.owns(hashed)
            assert shard.range == ShardList.even(shards).ranges[shard.number]


def test_where_keys_lie_in_a_queue_of_four_never_changes() -> None:
    with strictq.open(":memory:", shards=4) as q:
        assert [store_of(q).shard_of(encode_key(key)).number for key, _ in VECTORS] == [h >> 62 for _, h in VECTORS]


def test_ranges_with_a_gap_or_an_overlap_are_refused(disk: Opener) -> None:
    disk(shards=3).close()
    for harm in (
        "UPDATE topology SET hash_hi = '5555555555555553' WHERE shard = 0",
        "UPDATE topology SET hash_lo = '5555555555555554' WHERE shard = 1",
        "DELETE FROM topology WHERE shard = 2",
        "DELETE FROM topology",
        "UPDATE topology SET file = 'shard-0007.db' WHERE shard = 1",
        "DELETE FROM queue",
        # The whole space, but not in the order of the shards' numbers.
        "UPDATE topology SET hash_lo = CASE shard WHEN 0 THEN '5555555555555555' ELSE '0000000000000000' END,"
        " hash_hi = CASE shard WHEN 0 THEN 'aaaaaaaaaaaaaaa9' ELSE '5555555555555554' END WHERE shard < 2",
    ):
        saved = (Path(disk.path) / "queue.db").read_bytes()
        with disk.open(durability=None) as q:
            assert q.check() == []
            tamper(Path(disk.path) / "queue.db", harm)
            assert [(problem.shard, problem.rule) for problem in q.check()] == [(-1, "unreadable")]
        with pytest.raises(StoreCorrupt):
            disk.open(durability=None)
        (Path(disk.path) / "queue.db").write_bytes(saved)
    disk.open(durability=None).send(b"", "k")


def test_an_uneven_topology_is_looked_up_by_range() -> None:
    cuts = [0, 10, 1 << 40, HASHES - 1, HASHES]
    topology = ShardList([Range(i, f"shard-{i:04}.db", cuts[i], cuts[i + 1] - 1) for i in range(4)])
    hashes = [0, 9, 10, (1 << 40) - 1, 1 << 40, HASHES - 2, HASHES - 1]
    assert [topology.owner(h) for h in hashes] == [0, 0, 1, 1, 2, 2, 3]


def test_a_write_to_a_range_that_another_process_changed_is_refused(disk: Opener) -> None:
    """A range moves only with a new version in the shard, which every write compares before it changes anything."""
    q = disk(shards=2)
    q.send(b"1", "a")
    shard = q.send(b"2", "a").shard
    tamper(
        shard_file(disk.path, shard),
        "UPDATE meta SET value = '8000000000000001' WHERE name = 'hash_lo'",
        "INSERT INTO journal SELECT max(id) + 1, 23, max(at), max(top), 0, 0, NULL, x'' FROM journal",
        "UPDATE mark SET config_version = config_version + 1, counted = (SELECT max(id) FROM journal)",
    )
    for write in (lambda: q.send(b"3", "a"), lambda: q.receive(keys=["a"]), lambda: q.hold("a"), lambda: q.purge("a")):
        with pytest.raises(StoreError, match="range of keys"):
            write()
    assert q.stats().shards[shard].ready == 2
    other = next(key for key in ("b", "c", "d", "e") if store_of(q).shard_of(encode_key(key)).number != shard)
    assert q.send(b"4", other).shard != shard


@pytest.mark.parametrize("shards", [1, 3])
def test_receipts_explain_and_stats_say_where_a_key_lies(shards: int) -> None:
    with strictq.open(":memory:", shards=shards) as q:
        hashes = {key: hash_key(encode_key(key)) for key, _ in VECTORS}
        receipts = [*q.send_many(Message(b"", key=key) for key in hashes), *(q.send(b"", key=key) for key in hashes)]
        ranges = {s.shard: (int(s.hash_lo, 16), int(s.hash_hi, 16)) for s in q.stats().shards}
        for r in receipts:
            assert r.key is not None
            lo, hi = ranges[r.shard]
            assert lo <= hashes[r.key] <= hi
            assert q.explain(r.key).shard == r.shard
        assert {r.shard for r in receipts} == set(range(shards))


@pytest.mark.parametrize("name", ["not json", "[]", '{"lease_seconds": "x"}'])
def test_a_configuration_that_cannot_be_read_is_a_typed_error(disk: Opener, name: str) -> None:
    disk().close()
    quoted = name.replace("'", "''")
    tamper(Path(disk.path) / "queue.db", f"UPDATE queue SET config = '{quoted}'")
    with pytest.raises(StrictqError):
        disk.open(durability=None)


@pytest.mark.parametrize("name", ["queue_id", "shard", "hash_lo", "hash_hi"])
def test_a_shard_keeps_a_copy_of_what_it_belongs_to_and_it_is_verified(disk: Opener, name: str) -> None:
    q = disk(shards=2)
    keys = keys_by_shard(2)
    fill(q, keys[0], 1)
    fill(q, keys[1], 1)
    q.close()
    tamper(shard_file(disk.path, 1), f"UPDATE meta SET value = 'other' WHERE name = '{name}'")
    q = disk.open()
    with pytest.raises(StoreCorrupt, match=name):
        q.send(b"", keys[1])
    assert q.send(b"", keys[0]).seq == 2, "the others go on"
    assert drain(q) == [(keys[0], 1), (keys[0], 2)]
    assert [p.shard for p in q.check()] == [1]


def test_swapped_shards_are_refused_and_not_written_to(disk: Opener) -> None:
    q = disk(shards=3)
    keys = keys_by_shard(3)
    for key in keys.values():
        fill(q, key, 2)
    q.close()
    place = Path(disk.path)
    for n in (1, 2):
        fold(shard_file(place, n))
    one, two = shard_file(place, 1).read_bytes(), shard_file(place, 2).read_bytes()
    shard_file(place, 1).write_bytes(two)
    shard_file(place, 2).write_bytes(one)
    q = disk()
    for n in (1, 2):
        with pytest.raises(StoreCorrupt):
            q.send(b"", keys[n])
    assert drain(q) == [(keys[0], 1), (keys[0], 2)]
    assert shard_file(place, 1).read_bytes() == two
    q.close()
    shard_file(place, 1).write_bytes(one)
    shard_file(place, 2).write_bytes(two)
    assert sorted(drain(disk())) == sorted((keys[n], s) for n in (1, 2) for s in (1, 2))


def test_a_shard_of_another_queue_is_refused(disk: Opener, tmp_path: Path, clock: FakeClock) -> None:
    disk(shards=2).close()
    other = Opener(str(tmp_path / "other"), clock)
    q = other(shards=2)
    q.send_many([Message(b"", key=f"k{n}") for n in range(10)])
    q.close()
    fold(shard_file(other.path, 1))
    for suffix in ("-wal", "-shm"):
        Path(f"{shard_file(disk.path, 1)}{suffix}").unlink()
    shutil.copy(shard_file(other.path, 1), shard_file(disk.path, 1))
    q = disk()
    with pytest.raises(StoreCorrupt, match="queue_id"):
        q.send(b"", keys_by_shard(2)[1])


def test_queue_ids_differ_and_survive_a_move(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "a") as a, strictq.open(tmp_path / "b") as b:
        assert a.queue_id != b.queue_id
        queue_id = a.queue_id
        a.send(b"", "k")
    (tmp_path / "a").rename(tmp_path / "moved")
    with strictq.open(tmp_path / "moved") as q:
        assert q.queue_id == queue_id
        assert drain(q) == [("k", 1)]


def test_openers_that_race_to_create_share_one_queue(tmp_path: Path) -> None:
    opened = in_threads([lambda: strictq.open(tmp_path / "q", shards=3, durability="process") for _ in range(6)])
    assert len({q.queue_id for q in opened}) == 1
    for n, q in enumerate(opened):
        assert q.send(b"", "k").seq == n + 1
    for q in opened:
        q.close()
    assert [p.name for p in tmp_path.iterdir()] == ["q"], "what the losers built is gone"
