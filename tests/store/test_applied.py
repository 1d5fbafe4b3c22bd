"""Batches that are written once: decided, put in parts, finished; and messages that come by columns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs
import pytest

import strictq
from strictq import ConfigError, Message, Queue, QueueFull
from strictq._keys import encode_key
from strictq._store import applied, bulk
from strictq._store.applied import BATCHES_KEPT, JOB_SECONDS, Size, Token
from strictq._store.bulk import Chunk
from strictq._store.send import INLINE_BYTES_MAX
from strictq.testing import FakeClock
from tests.support.queues import Opener, ack_all, drain, keys_by_shard, labels


@attrs.define
class Rows:
    """Messages in columns, from pairs of key and body in the order of their arrival."""

    pairs: list[tuple[str, bytes]]

    @property
    def keys(self) -> list[bytes]:
        return [encode_key(k) for k in dict.fromkeys(key for key, _ in self.pairs)]

    @property
    def firsts(self) -> list[int]:
        given = [encode_key(key) for key, _ in self.pairs]
        return [given.index(key) for key in self.keys]

    @property
    def count(self) -> int:
        return len(self.pairs)

    def chunks(self, lanes: list[int], tails: list[int], arrival: int) -> Iterable[Chunk]:
        lane = dict(zip(self.keys, lanes, strict=True))
        tail = dict(zip(self.keys, tails, strict=True))
        rows = []
        for n, (key, body) in enumerate(self.pairs):
            stored = encode_key(key)
            tail[stored] += 1
            rows.append((lane[stored], tail[stored], arrival + 1 + n, body))
        rows.sort()
        for at in range(0, len(rows), 7):
            some = rows[at : at + 7]
            apart = [i for i, row in enumerate(some) if len(row[3]) > INLINE_BYTES_MAX]
            yield Chunk([r[0] for r in some], [r[1] for r in some], [r[2] for r in some], [r[3] for r in some], apart)


def put(q: Queue, token: Token, part: int, pairs: list[tuple[str, bytes]], shard: int = 0) -> None:
    applied.put(q._store, q._store.shards[shard], token, part, lambda tx: bulk.append(tx, Rows(pairs)))


def write(q: Queue, token: Token, pairs: list[tuple[str, bytes]]) -> applied.Applied | None:
    return applied.put_whole(q._store, token, Size(len(pairs)), lambda tx: bulk.append(tx, Rows(pairs)))


# ---- messages by columns


def test_columns_are_what_send_many_would_have_made(disk: Opener) -> None:
    pairs = [(f"k{n % 3}", b"%d" % n) for n in range(20)]
    q = disk()
    q.send(b"before", "k1")
    write(q, Token.job("a"), pairs)
    q.send(b"after", "k2")
    with strictq.open(":memory:") as other:
        other.send(b"before", "k1")
        other.send_many([Message(body, key=key) for key, body in pairs])
        other.send(b"after", "k2")
        expected = [(d.key, d.seq, d.id, d.body) for d in other.receive(100)]
    assert [(d.key, d.seq, d.id, d.body) for d in q.receive(100)] == expected
    assert q.check() == []
    assert q.stats().sends == 22


def test_large_bodies_lie_apart(disk: Opener) -> None:
    q = disk()
    bodies = [b"x" * INLINE_BYTES_MAX, b"y" * (INLINE_BYTES_MAX + 1), b"", b"z" * 100_000]
    write(q, Token.job("a"), [("k", body) for body in bodies])
    ds = q.receive()
    assert [d.body for d in ds] == bodies
    ack_all(ds)
    assert q.check() == []


def test_lanes_that_are_held_leased_or_waiting_stay_so(disk: Opener) -> None:
    q = disk()
    q.send(b"0", "held")
    q.send(b"0", "leased")
    q.send(b"0", "waits")
    (leased,) = q.receive(1, keys=["leased"])
    q.hold("held")
    write(q, Token.job("a"), [("held", b"1"), ("leased", b"1"), ("waits", b"1"), ("new", b"1")])
    assert q.check() == []
    assert labels(q.receive(10)) == [("waits", 1), ("waits", 2), ("new", 1)]
    leased.ack()
    assert labels(q.receive(10)) == [("leased", 2)]
    q.release("held")
    assert labels(q.receive(10)) == [("held", 1), ("held", 2)]


def test_the_queues_ttl_holds_for_columns(disk: Opener, clock: FakeClock) -> None:
    q = disk(ttl_seconds=10.0)
    write(q, Token.job("a"), [("k", b"1")])
    clock.advance(11.0)
    assert q.receive() == []
    assert q.check() == []


# ---- once


def test_a_batch_is_written_once(disk: Opener) -> None:
    q = disk()
    assert write(q, Token.query("a", 0), [("k", b"1")]) is None
    assert write(q, Token.query("a", 0), [("k", b"1")]) == (0, 1, None)
    assert write(q, Token.query("a", 1), [("k", b"2")]) is None
    assert write(q, Token.query("b", 0), [("k", b"3")]) is None
    assert write(q, Token.job("a"), [("k", b"4")]) is None
    q.close()
    q = disk()
    assert write(q, Token.query("a", 1), [("k", b"2")]) == (0, 1, None)
    assert [d.body for d in q.receive()] == [b"1", b"2", b"3", b"4"]


def test_parts_go_on_where_they_stopped(disk: Opener) -> None:
    token = Token.query("a", 7)
    q = disk(shards=2)
    by_shard = keys_by_shard(2)
    parts = {s: [[(key, b"%d" % n)] for n in range(3)] for s, key in by_shard.items()}
    assert applied.look(q._store, token) is None
    assert applied.decide(q._store, token, Size(6), "these files") == (0, 6, "these files")
    put(q, token, 0, parts[0][0], shard=0)
    put(q, token, 1, parts[0][1], shard=0)
    q.close()  # the writer died here
    q = disk()
    # Another try would have brought other files: the first decision stays.
    known = applied.decide(q._store, token, Size(99), "other files")
    assert known.rows == 6
    assert known.files == "these files"
    assert not known.whole
    assert applied.open_batches(q._store) == [(token.writer, 7)]
    for s in (0, 1):
        for part in range(3):
            put(q, token, part, parts[s][part], shard=s)
    applied.finish(q._store, token, q._store.shards)
    assert applied.open_batches(q._store) == []
    known = applied.look(q._store, token)
    assert known is not None
    assert known.whole
    assert sorted((d.key, d.body) for d in q.receive(100)) == sorted(pair for s in parts for p in parts[s] for pair in p)
    assert q.check() == []


def test_a_writer_that_comes_back_late_writes_nothing(disk: Opener) -> None:
    """It was stopped between its decision and its part, and another process has gone on to later batches."""
    q = disk()
    late = Token.query("a", 0)
    applied.decide(q._store, late, Size(1), "files")
    put(q, late, 0, [("k", b"0")])
    applied.finish(q._store, late, q._store.shards)
    for number in range(1, BATCHES_KEPT + 5):
        write(q, Token.query("a", number), [("k", b"%d" % number)])
    put(q, late, 0, [("k", b"0")])
    assert q.stats().depth == BATCHES_KEPT + 5


def test_the_newest_batches_are_remembered_and_older_ones_refused(disk: Opener) -> None:
    q = disk()
    for number in range(BATCHES_KEPT + 10):
        write(q, Token.query("a", number), [("k", b"")])
    for number in range(10, BATCHES_KEPT + 10):
        assert applied.look(q._store, Token.query("a", number)) is not None
    with pytest.raises(ConfigError, match="batch 9 of query a comes after batch 109"):
        applied.look(q._store, Token.query("a", 9))
    with pytest.raises(ConfigError):
        write(q, Token.query("a", 9), [("k", b"")])
    assert q.stats().depth == BATCHES_KEPT + 10
    (rows,) = q._store.shards[0].read(lambda db: db.execute("SELECT count(*) FROM applied").fetchone())
    assert rows == BATCHES_KEPT


def test_a_job_is_forgotten_in_the_end(disk: Opener, clock: FakeClock) -> None:
    q = disk()
    write(q, Token.job("old"), [("k", b"")])
    clock.advance(JOB_SECONDS - 1.0)
    write(q, Token.job("new"), [("k", b"")])
    assert applied.look(q._store, Token.job("old")) is not None
    clock.advance(2.0)
    write(q, Token.query("any", 0), [("k", b"")])
    assert applied.look(q._store, Token.job("old")) is None
    assert applied.look(q._store, Token.job("new")) is not None


# ---- all or nothing


def test_a_part_that_fails_leaves_nothing(disk: Opener) -> None:
    q = disk()

    def fail(tx: object) -> None:
        bulk.append(tx, Rows([("k", b"1")]))  # type: ignore[arg-type]
        raise OSError("unplugged")

    with pytest.raises(OSError, match="unplugged"):
        applied.put_whole(q._store, Token.job("a"), Size(1), fail)
    assert q.stats().depth == 0
    assert write(q, Token.job("a"), [("k", b"1")]) is None


def test_max_depth_is_for_the_whole_batch(disk: Opener) -> None:
    q = disk(shards=2, max_depth=3)
    by_shard = keys_by_shard(2)
    q.send(b"", by_shard[0])
    q.send(b"", by_shard[1])
    with pytest.raises(QueueFull, match="none was written"):
        applied.decide(q._store, Token.query("a", 0), Size(2), "files")
    with pytest.raises(QueueFull):
        write(q, Token.query("a", 0), [(by_shard[0], b"")] * 2)
    assert applied.decide(q._store, Token.query("a", 0), Size(1), "files").rows == 1


def test_settings_are_looked_at_again_where_it_is_written(disk: Opener) -> None:
    q = disk(max_body_bytes=10)
    token = Token.job("a")
    with pytest.raises(strictq.MessageTooLarge, match="column body"):
        applied.decide(q._store, token, Size(1, body_bytes_max=11), "files")
    with pytest.raises(strictq.InvalidArgument, match="column key"):
        applied.decide(q._store, token, Size(1, keyless=True), "files")
    assert applied.look(q._store, token) is None


def test_a_full_disk_refuses_a_batch(disk: Opener) -> None:
    q = disk()
    q._store.waker.tell_space(True)
    assert q._store.reserve is not None
    q._store.reserve._room = lambda: False  # type: ignore[method-assign]
    Path(q.path, "reserve").unlink()
    with pytest.raises(strictq.StoreFull):
        write(q, Token.job("a"), [("k", b"1")])
    assert drain(q) == []
