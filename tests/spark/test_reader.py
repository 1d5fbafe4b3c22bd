"""The readers of one queue without a JVM: what they refuse, and what they read of a queue that they must not write to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import strictq
from strictq import ConsumerBusy, InvalidArgument, Message, Queue, QueueConfig, QueueNotFound
from strictq.spark import batch
from strictq.spark._options import columns, size
from strictq.spark.batch import BatchReader
from tests.support import scans
from tests.support.fleets import Loop
from tests.support.ledgers import send_chains
from tests.support.running import until

KEYS = ("a", "b")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "queue")


def make(path: str) -> Queue:
    return strictq.open(path, shards=2, durability="process")


# ---- streams


def removed(path: str) -> None:
    shutil.rmtree(path)


def replaced(path: str) -> None:
    shutil.rmtree(path)
    with make(path) as q:
        send_chains(q, KEYS, 3)


def replaced_by_its_copy(path: str) -> None:
    shutil.copytree(path, f"{path}-copy")
    shutil.rmtree(path)
    os.rename(f"{path}-copy", path)


@pytest.mark.parametrize("happens", [removed, replaced, replaced_by_its_copy])
def test_a_query_notices_that_its_queue_is_another_one(path: str, happens: Callable[[str], None]) -> None:
    """It has the files of the old one open, where no message will ever arrive."""
    with make(path) as q:
        send_chains(q, KEYS, 3)
    loop = Loop(path)
    loop.process()
    assert loop.step()
    assert not loop.step()
    happens(path)
    with pytest.raises(
        QueueNotFound, match=r"was removed, or replaced by another one, since this query opened it \(bring it back"
    ):
        loop.step()
    loop.kill()


def test_a_stream_that_is_read_twice_by_its_query(path: str) -> None:
    """As a self-join does. The second reader says what to do."""
    with make(path) as q:
        send_chains(q, KEYS, 3)
    loop, other = Loop(path), Loop(path, consumerWaitSeconds=0)
    loop.process()
    assert loop.step()
    other.process()
    with pytest.raises(ConsumerBusy, match=r"as a self-join or a union does, must do that in foreachBatch"):
        other.step()
    loop.kill()
    assert other.step()
    other.kill()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("64m", 64 << 20),
        ("64M", 64 << 20),
        ("64mb", 64 << 20),
        (" 2gb ", 2 << 30),
        ("1t", 1 << 40),
        ("7k", 7168),
        ("9b", 9),
    ],
)
def test_sizes_in_the_notation_of_spark(text: str, expected: int) -> None:
    assert size({"maxBytesPerTrigger": text}, "maxBytesPerTrigger", 5, 1 << 40) == expected


@pytest.mark.parametrize("text", ["", "0", "0m", "-1", "m", "1.5m", "64 m", "64mib", "2t", "64x", "\u0664m"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(
        InvalidArgument, match=r"maxBytesPerTrigger must be a number of bytes from 1 to .*, or a size such as 64m"
    ):
        size({"maxBytesPerTrigger": text}, "maxBytesPerTrigger", 5, 1 << 40)


# ---- tables of queues that can't be opened for writing


def rows(path: str, **options: str) -> list[tuple[str | None, int, bytes, tuple[tuple[str, str], ...]]]:
    """Return key, seq, body and headers of a table's rows."""
    given = {"path": path, **options}
    reader = BatchReader(given, columns(given))
    found = []
    for task in reader.partitions():
        for each in reader.read(task):
            found += [(r["key"], r["seq"], r["body"], tuple(r["headers"] or ())) for r in each.to_pylist()]
    return found


def fill(q: Queue) -> None:
    """Send messages of every kind, so that some are only in the journal."""
    q.send_many(Message(b"%d" % n, key=f"k{n % 7}") for n in range(50))
    q.send_many(Message(b"%d" % n, key=None) for n in range(20))
    q.send(b"x" * 100_000, "large", headers={"a": "b"})
    q.send(b"later", "late", delay=100.0)
    with q.receive(20) as held:
        held[0].ack()
        held[-1].nack()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    scans.small_steps(monkeypatch, 3)


def assert_same(found: list[tuple[str | None, int, bytes, tuple[tuple[str, str], ...]]], original: Queue) -> None:
    """Compare with what the original has, and look at the order of each key."""
    expected = rows(original.path)
    assert len(found) == len(expected) == original.stats().depth
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    for key in {key for key, *_ in found if key is not None}:
        seqs = [seq for k, seq, *_ in found if k == key]
        assert seqs == sorted(seqs), f"{key} is out of order"


@pytest.mark.usefixtures("small_steps")
def test_a_restored_copy_that_is_not_in_service(tmp_path: Path) -> None:
    config = QueueConfig(keyless="round_robin", keyless_lanes=3)
    with strictq.open(tmp_path / "queue", shards=2, durability="process", config=config) as q:
        q.configure_replication(tmp_path / "replica", interval_seconds=0.05)
        fill(q)
        until(lambda: (status := q.replication()) is not None and status.segment is not None and status.lag_bytes == 0)
        strictq.restore(tmp_path / "replica", tmp_path / "copy")
        found = rows(str(tmp_path / "copy"), messagesPerPartition="10")
        of_keys = rows(str(tmp_path / "copy"), keys='["k1", "large"]')
        with pytest.raises(strictq.ConfigError, match="its original may still be in service"):
            strictq.open(tmp_path / "copy")
        assert_same(found, q)
        assert sorted(of_keys) == sorted(row for row in found if row[0] in ("k1", "large"))


@pytest.mark.usefixtures("small_steps")
def test_a_queue_in_a_directory_that_is_not_writable(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has it open, and writes to it."""
    config = QueueConfig(keyless="round_robin", keyless_lanes=3)
    with strictq.open(path, shards=2, durability="process", config=config) as q:
        fill(q)
        with monkeypatch.context() as patch:
            patch.setattr(batch.os, "access", lambda *_: False)
            found = rows(path, messagesPerPartition="10")
        assert_same(found, q)
