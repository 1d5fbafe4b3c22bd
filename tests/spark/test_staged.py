"""A staged batch, cut into the parts that its shards take; without Spark's session."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq._store.api import Bulk, PlainRows, Staging, Token, new_run

pa = pytest.importorskip("pyarrow")

from strictq.spark import _apply, _staged  # noqa: E402 - needs pyarrow
from strictq.spark._sink_rows import ORDER  # noqa: E402
from strictq.spark._staged import Cut, StagedRows  # noqa: E402

SHARDS = 3


def shard_of(key: bytes) -> int:
    """Any shard, by the bytes of the key."""
    return sum(key) % SHARDS


def staged(place: Path, files: list[list[dict[str, list[Any]]]]) -> StagedRows:
    """Files of record batches, each as columns."""
    paths = []
    for number, batches in enumerate(files):
        path = place / f"{number}.arrow"
        schema = pa.schema(
            [pa.field(name, pa.int64() if name == ORDER else pa.string() if name == "dedup_id" else pa.binary())
             for name in batches[0]]
        )  # fmt: skip
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                writer.write_batch(pa.RecordBatch.from_pydict(batch, schema=schema))
        paths.append((path, sum(len(batch["key"]) for batch in batches)))
    return StagedRows(paths)


def random_files(seed: int, keys: int, *, keyless: bool = False, ordered: bool = False) -> list[list[dict[str, list[Any]]]]:
    """Some files with batches of different sizes. A body says which row it is."""
    chosen = random.Random(seed)
    row = 0
    files = []
    for _ in range(3):
        batches = []
        for _ in range(chosen.randrange(1, 5)):
            n = chosen.randrange(1, 60)
            found: list[Any] = [b"s%d" % chosen.randrange(keys) for _ in range(n)]
            if keyless:
                found = [None if chosen.random() < 0.3 else key for key in found]
            batch: dict[str, list[Any]] = {"key": found, "body": [b"%d" % (row + i) for i in range(n)]}
            if ordered:
                batch[ORDER] = [chosen.randrange(20) for _ in range(n)]
            batches.append(batch)
            row += n
        files.append(batches)
    return files


def sent(rows: StagedRows, cut: Cut) -> dict[int, list[list[tuple[bytes, list[int], list[int]]]]]:
    """Of each shard the parts: of each key in it, in order, the bodies and their places."""
    found = {}
    for shard, parts in rows.parts(shard_of, cut).items():
        found[shard] = []
        for part in parts:
            plain = part.rows()
            assert isinstance(plain, PlainRows)
            assert sorted(plain.places) == list(range(len(plain.bodies)))
            at, groups = 0, []
            for key, count in zip(plain.keys, plain.counts, strict=True):
                places = list(plain.places[at : at + count])
                assert places == sorted(places)
                groups.append((key, [int(b) for b in plain.bodies[at : at + count]], places))
                at += count
            found[shard].append(groups)
    return found


def expected(files: list[list[dict[str, list[Any]]]], lanes: int) -> dict[int, dict[bytes, list[int]]]:
    """The same by dicts: of each shard its keys by their first row, those of keyless lanes behind; rows in order within one."""
    groups: dict[bytes, list[tuple[int, int]]] = {}
    alone: dict[bytes, list[tuple[int, int]]] = {b"n%d" % n: [] for n in range(lanes)}
    row = keyless = 0
    for batch in (batch for batches in files for batch in batches):
        for place, key in enumerate(batch["key"]):
            order = batch.get(ORDER, [0] * len(batch["key"]))[place]
            if key is None:
                alone[b"n%d" % (keyless % lanes)].append((order, row))
                keyless += 1
            else:
                groups.setdefault(key, []).append((order, row))
            row += 1
    found: dict[int, dict[bytes, list[int]]] = {}
    for key, rows in [*groups.items(), *((key, rows) for key, rows in alone.items() if rows)]:
        found.setdefault(shard_of(key), {})[key] = [row for _, row in sorted(rows)]
    return found


def few_bits(key: bytes) -> int:
    return (sum(key) % 5) << 40


def as_it_is(key: bytes) -> int:
    return hash(key)


@pytest.mark.parametrize("hashed", [as_it_is, few_bits], ids=["hashes", "colliding_hashes"])
@pytest.mark.parametrize("keys", [1, 7, 1000])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("keyless", [False, True])
@pytest.mark.parametrize("size", [7, 1000])
def test_rows_are_grouped_by_key_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: Callable[[bytes], int], keys: int, ordered: bool, keyless: bool,
    size: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(_staged, "_hash", hashed)
    monkeypatch.setattr(_staged, "COMPARED", 10)
    for seed in range(5):
        files = random_files(seed, keys, keyless=keyless, ordered=ordered)
        rows = staged(tmp_path, files)
        wanted = expected(files, lanes=4)
        found = sent(rows, Cut(4, rows=size))
        assert set(found) == set(wanted)
        for shard, parts in found.items():
            assert all(sum(len(bodies) for _, bodies, _ in groups) <= size for groups in parts)
            whole: dict[bytes, list[int]] = {}
            for key, bodies, _ in (group for groups in parts for group in groups):
                whole.setdefault(key, []).extend(bodies)
            assert list(whole.items()) == list(wanted[shard].items()), "also the order of the keys"
        # Whoever goes on with the batch cuts it in the same way.
        assert sent(StagedRows([(tmp_path / f"{n}.arrow", sum(len(b["key"]) for b in f)) for n, f in enumerate(files)]),
                    Cut(4, rows=size)) == found  # fmt: skip


def test_a_part_has_at_most_so_many_bytes_and_one_row_at_least(tmp_path: Path) -> None:
    bodies = [b"%d" % (10**n) for n in (1, 30, 2, 90, 3, 1, 1)]
    rows = staged(tmp_path, [[{"key": [b"s\x03"] * len(bodies), "body": bodies}]])
    (parts,) = sent(rows, Cut(4, bytes=40)).values()
    assert [[len(b"%d" % body) for _, bodies, _ in part for body in bodies] for part in parts] == [[2, 31, 3], [91], [4, 2, 2]]


def test_numbers_that_do_not_fit_beside_a_place_are_sorted_all_the_same(tmp_path: Path) -> None:
    rows = staged(tmp_path, [[{"key": [b"s"], "body": [b""]}]])
    values = [3 << 60, 1, 3 << 60, 0, 1]
    np = pytest.importorskip("numpy")
    assert rows._sorted(np.array(values, np.int64)).tolist() == [3, 1, 4, 0, 2]
    assert rows._sorted(np.array([v % 7 for v in values], np.int64)).tolist() == sorted(range(5), key=lambda n: values[n] % 7)


def test_planning_takes_some_bytes_a_row_whatever_the_keys(tmp_path: Path) -> None:
    """As Python and numpy count them: what lies in the mapped files is not theirs."""
    n, size = 200_000, 10_000
    files = [
        [{"key": [b"scustomer-%09d" % (at + i) for i in range(size)], "body": [b"x"] * size} for at in range(0, n, size)],
    ]
    rows = staged(tmp_path, files)
    del files
    tracemalloc.start()
    try:
        parts = rows.parts(shard_of, Cut(4))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(found) for found in parts.values()) == 3 * SHARDS
    assert most / n < 48, "of keys alone, a list of bytes objects has 70"


def test_a_file_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    staged(tmp_path, [[{"key": [b"s"] * 100, "body": [b"x"] * 100}]])
    path = tmp_path / "0.arrow"
    with pytest.raises(strictq.StoreError, match=r"0\.arrow is incomplete"):
        StagedRows([(path, 99)])
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(strictq.StoreError, match=r"0\.arrow can't be read"):
        StagedRows([(path, 100)])
    path.write_bytes(b"")
    with pytest.raises(strictq.StoreError, match=r"0\.arrow can't be read"):
        StagedRows([(path, 100)])
    path.unlink()
    with pytest.raises(strictq.StoreError, match=r"0\.arrow is missing"):
        StagedRows([(path, 100)])


JOB = Token.job("a")


def job_file(queue: Path, begin: int = 0) -> _apply.StagedFile:
    """Stage 200 rows of different keys for JOB."""
    name, file = Staging(queue, JOB.writer).create(0, new_run())
    rows = {"key": [b"s%d" % n for n in range(200)], "body": [b"%d" % (begin + n) for n in range(200)]}
    batch = pa.RecordBatch.from_pydict(rows, schema=pa.schema([("key", pa.binary()), ("body", pa.binary())]))
    with file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    return _apply.StagedFile(name, 200)


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a queue whose JOB was killed between two shards. It has no staged files."""
    put = Bulk.put
    calls = 0

    def killed(bulk: Bulk, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise KeyboardInterrupt
        put(bulk, *args)

    path = tmp_path / "queue"
    with strictq.open(path, shards=3, durability="process") as q:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Bulk, "put", killed)
            _apply.apply(q, JOB, [job_file(path)], skip_others=False)
        assert 0 < q.stats().depth < 200
        q.backup(tmp_path / "copy")
    strictq.adopt(tmp_path / "copy")
    return tmp_path / "copy"


def test_a_copy_of_a_half_written_batch_is_completed_by_the_same_rows(half: Path) -> None:
    with strictq.open(half) as q:
        for _ in range(2):
            _apply.apply(q, JOB, [job_file(half)], skip_others=False)
        assert sorted((d.key, d.body) for d in q.receive(1000)) == sorted((f"{n}", b"%d" % n) for n in range(200))
        q.split(0)
        assert q.check() == []


def test_a_copy_of_a_half_written_batch_is_not_completed_by_other_rows(half: Path) -> None:
    """Their number is the same. A row could be in none of the shards, or in two."""
    with strictq.open(half) as q:
        depth = q.stats().depth
        _apply.finish_others(q)
        with pytest.raises(strictq.ConfigError, match="half written, its staged files are gone"):
            _apply.apply(q, JOB, [job_file(half, 1)], skip_others=False)
        with pytest.raises(strictq.MoveBlocked, match="incomplete batch"):
            q.split(0)
        for _ in range(2):
            _apply.apply(q, JOB, [job_file(half, 1)], skip_others=True)
        assert q.stats().depth == depth
        q.split(0)
        assert q.check() == []


def test_a_batch_is_divided_by_what_the_shards_own_now(tmp_path: Path) -> None:
    """By what a process knew before ranges moved, a part would be refused, and the next attempt would skip rows of another."""
    path = tmp_path / "queue"
    with strictq.open(path, shards=2, durability="process") as q, strictq.open(path) as stale:
        q.split(0)
        q.merge(1, into=2)
        file = job_file(path)
        for each in (stale, q):
            _apply.apply(each, JOB, [file], skip_others=False)
        assert [shard.depth > 0 for shard in q.stats().shards] == [True, False, True]
        assert q.stats().depth == 200
        assert q.check() == []
