"""Batches that are written once: decided, put in parts, finished; and messages sent by columns."""

from __future__ import annotations

from pathlib import Path

import pytest

import strictq
from strictq import ConfigError, Message, Queue, QueueFull
from strictq._store.api import Applied, Bulk, PlainRows, Size, StreamBatch, Token
from strictq._store.bulk.applied import BATCHES_KEPT, JOB_SECONDS
from strictq._values.keys import encode_key
from strictq.testing import FakeClock
from tests.support.internals import failing, store_of
from tests.support.queues import Opener, ack_all, drain, keys_by_shard, labels


def rows(pairs: list[tuple[str, bytes]]) -> PlainRows:
    """Return messages in columns, from pairs of key and body in the order of their arrival."""
    keys = list(dict.fromkeys(key for key, _ in pairs))
    places = [[n for n, (key, _) in enumerate(pairs) if key == each] for each in keys]
    flat = [n for some in places for n in some]
    return PlainRows([encode_key(key) for key in keys], list(map(len, places)), flat, [pairs[n][1] for n in flat])


def bulk(q: Queue) -> Bulk:
    return q._storage.bulk


def put(q: Queue, token: Token, part: int, pairs: list[tuple[str, bytes]], shard: int = 0) -> None:
    bulk(q).put(token, shard, part, rows(pairs))


def write(q: Queue, token: Token, pairs: list[tuple[str, bytes]], origin: StreamBatch | None = None) -> Applied | None:
    return bulk(q).put_whole(token, Size(len(pairs)), rows(pairs), origin)


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


def test_bodies_of_any_size(disk: Opener) -> None:
    q = disk()
    bodies = [b"x" * 800, b"y" * 801, b"", b"z" * 100_000]
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
    assert bulk(q).known(token) is None
    assert bulk(q).decide(token, Size(6), "these files") == (0, 6, "these files")
    put(q, token, 0, parts[0][0], shard=0)
    put(q, token, 1, parts[0][1], shard=0)
    q.close()  # the writer died here
    q = disk()
    # Another attempt would have other files: the first decision stays.
    known = bulk(q).decide(token, Size(99), "other files")
    assert known.rows == 6
    assert known.files == "these files"
    assert not known.whole
    assert bulk(q).unfinished() == [(token.writer, 7)]
    for s in (0, 1):
        for part in range(3):
            put(q, token, part, parts[s][part], shard=s)
    bulk(q).finish(token, range(q.shards))
    assert bulk(q).unfinished() == []
    known = bulk(q).known(token)
    assert known is not None
    assert known.whole
    assert sorted((d.key, d.body) for d in q.receive(100)) == sorted(pair for s in parts for p in parts[s] for pair in p)
    assert q.check() == []


def test_a_writer_that_comes_back_late_writes_nothing(disk: Opener) -> None:
    """Its writer was stopped between its decision and its part, and another process has continued with later batches."""
    q = disk()
    late = Token.query("a", 0)
    bulk(q).decide(late, Size(1), "files")
    put(q, late, 0, [("k", b"0")])
    bulk(q).finish(late, range(q.shards))
    for number in range(1, BATCHES_KEPT + 5):
        write(q, Token.query("a", number), [("k", b"%d" % number)])
    put(q, late, 0, [("k", b"0")])
    assert q.stats().depth == BATCHES_KEPT + 5


def test_the_newest_batches_are_remembered_and_older_ones_refused(disk: Opener) -> None:
    q = disk()
    for number in range(BATCHES_KEPT + 10):
        write(q, Token.query("a", number), [("k", b"")])
    for number in range(10, BATCHES_KEPT + 10):
        assert bulk(q).known(Token.query("a", number)) is not None
    with pytest.raises(ConfigError, match="batch 9 of query a comes after batch 109"):
        bulk(q).known(Token.query("a", 9))
    with pytest.raises(ConfigError):
        write(q, Token.query("a", 9), [("k", b"")])
    assert q.stats().depth == BATCHES_KEPT + 10
    (rows,) = store_of(q).shards[0].read(lambda db: db.execute("SELECT count(*) FROM applied").fetchone())
    assert rows == BATCHES_KEPT


def test_a_job_is_forgotten_in_the_end(disk: Opener, clock: FakeClock) -> None:
    q = disk()
    write(q, Token.job("old"), [("k", b"")])
    clock.advance(JOB_SECONDS - 1.0)
    write(q, Token.job("new"), [("k", b"")])
    assert bulk(q).known(Token.job("old")) is not None
    clock.advance(2.0)
    write(q, Token.query("any", 0), [("k", b"")])
    assert bulk(q).known(Token.job("old")) is None
    assert bulk(q).known(Token.job("new")) is not None


# ---- batches that a stream writes in foreachBatch

FIRST = StreamBatch("query-1", 7, "app/3")
AGAIN = FIRST._replace(execution="app/9")
OTHER = FIRST._replace(query="query-2")


def repeat(q: Queue, token: Token, origin: StreamBatch, *, unknown: bool = False) -> None:
    bulk(q).require_repeat(token, origin, unknown=unknown)


@pytest.mark.parametrize("decided", [False, True])
def test_a_later_execution_of_a_batch_repeats_it(disk: Opener, decided: bool) -> None:
    q = disk()
    token = Token.job("a-7")
    if decided:
        bulk(q).decide(token, Size(1), "files", FIRST)
    else:
        write(q, token, [("k", b"1")], FIRST)
    with pytest.raises(ConfigError, match="batch 7 of query query-1 writes to this queue a second time as job a-7"):
        repeat(q, token, FIRST)
    repeat(q, token, AGAIN)
    with pytest.raises(ConfigError, match="a second time"):  # the write that may have been missing in the first execution
        repeat(q, token, AGAIN)
    with pytest.raises(
        ConfigError, match="job a-7 was written by batch 7 of query query-1, and now comes with batch 7 of query qu"
    ):
        repeat(q, token, OTHER)
    with pytest.raises(ConfigError, match="and now comes with batch 8 of query query-1; nothing was written"):
        repeat(q, token, AGAIN._replace(batch=8))
    with pytest.raises(ConfigError, match="a second time"):
        repeat(q, token, AGAIN)


def test_a_query_has_one_origin_of_its_newest_batch(disk: Opener) -> None:
    q = disk()
    for number in range(5):
        write(q, Token.query("query-1", number), [("k", b"")], FIRST._replace(batch=number))
        with pytest.raises(ConfigError, match=rf"batch {number} of query query-1 writes to this queue a second time; only the"):
            repeat(q, Token.query("query-1", number), FIRST._replace(batch=number))
    repeat(q, Token.query("query-1", 3), AGAIN._replace(batch=3))  # its checkpoint lost the newest files
    repeat(q, Token.query("query-1", 4), AGAIN._replace(batch=4))
    (rows,) = store_of(q).shards[0].read(lambda db: db.execute("SELECT count(*) FROM applied").fetchone())
    assert rows == 6


def test_a_batch_without_an_origin(disk: Opener) -> None:
    q = disk()
    write(q, Token.job("a-7"), [("k", b"")])
    with pytest.raises(ConfigError, match="job a-7 was written before, by an older version or outside foreachBatch"):
        repeat(q, Token.job("a-7"), FIRST)
    repeat(q, Token.job("a-7"), FIRST, unknown=True)
    with pytest.raises(ConfigError, match="a second time"):
        repeat(q, Token.job("a-7"), FIRST, unknown=True)


@pytest.mark.parametrize("name", ["a 7", "a", "a-7 query-1 app/3", "a-77", "\U0010ffff"])
def test_origins_of_writers_with_similar_names(disk: Opener, name: str) -> None:
    q = disk()
    write(q, Token.job(name), [("k", b"")], OTHER)
    write(q, Token.job("a-7"), [("k", b"")], FIRST)
    repeat(q, Token.job("a-7"), AGAIN)
    repeat(q, Token.job(name), OTHER._replace(execution="app/9"))


def test_an_origin_is_forgotten_with_its_job(disk: Opener, clock: FakeClock) -> None:
    q = disk()
    write(q, Token.job("a-7"), [("k", b"")], FIRST)
    clock.advance(JOB_SECONDS + 1.0)
    write(q, Token.query("any", 0), [("k", b"")])
    (rows,) = store_of(q).shards[0].read(lambda db: db.execute("SELECT count(*) FROM applied").fetchone())
    assert rows == 1


# ---- all or nothing


def test_a_part_that_fails_leaves_nothing(disk: Opener) -> None:
    q = disk()
    with failing(q, "INSERT INTO applied", OSError("unplugged")), pytest.raises(OSError, match="unplugged"):
        write(q, Token.job("a"), [("k", b"1")])
    assert q.stats().depth == 0
    assert q.check() == []
    assert write(q, Token.job("a"), [("k", b"1")]) is None


def test_max_depth_is_for_the_whole_batch(disk: Opener) -> None:
    q = disk(shards=2, max_depth=3)
    by_shard = keys_by_shard(2)
    q.send(b"", by_shard[0])
    q.send(b"", by_shard[1])
    with pytest.raises(QueueFull, match="none was written"):
        bulk(q).decide(Token.query("a", 0), Size(2), "files")
    with pytest.raises(QueueFull):
        write(q, Token.query("a", 0), [(by_shard[0], b"")] * 2)
    assert bulk(q).decide(Token.query("a", 0), Size(1), "files").rows == 1


def test_limits_of_tenants_are_for_the_whole_batch(disk: Opener, clock: FakeClock) -> None:
    q = disk(shards=2, tenant_separator="/")
    loud, quiet = ([f"{name}/{n}" for n in range(8)] for name in ("loud", "quiet"))
    q.limit("loud", max_depth=10, send_rate=1, burst=20)
    for key in loud:  # in both shards
        q.send(b"", key)
    assert bulk(q).tenant_separator == encode_key("x/")[-1:]
    size = Size(4, tenants={b"loud": 3, b"quiet": 1})
    for _ in range(9):  # what a refused batch has taken of the rate is given back
        with pytest.raises(QueueFull, match="tenant 'loud' has reached max_depth=10"):
            bulk(q).decide(Token.query("a", 0), size, "files")
    drain(q)
    assert bulk(q).decide(Token.query("a", 0), size, "files").rows == 4
    with pytest.raises(strictq.Throttled) as refused:
        bulk(q).put_whole(Token.query("a", 1), Size(10, tenants={b"loud": 10}), rows([(loud[0], b"")] * 10))
    assert refused.value.tenant == "loud"
    assert 0 < refused.value.retry_after <= 1
    write(q, Token.query("a", 1), [(quiet[0], b"")] * 10)
    clock.advance(1)
    bulk(q).put_whole(Token.query("a", 2), Size(10, tenants={b"loud": 10}), rows([(loud[0], b"")] * 10))
    q.limit("loud", max_depth=None, send_rate=None, burst=None)
    assert bulk(q).tenant_separator is None


def test_settings_are_looked_at_again_where_it_is_written(disk: Opener) -> None:
    q = disk(max_body_bytes=10)
    token = Token.job("a")
    with pytest.raises(strictq.MessageTooLarge, match="column body"):
        bulk(q).decide(token, Size(1, body_bytes_max=11), "files")
    with pytest.raises(strictq.InvalidArgument, match="column key"):
        bulk(q).decide(token, Size(1, keyless=True), "files")
    assert bulk(q).known(token) is None


def test_a_full_disk_refuses_a_batch(disk: Opener) -> None:
    q = disk()
    store_of(q).waker.tell_space(True)
    assert store_of(q).reserve is not None
    store_of(q).reserve._affordable = lambda _size: 0  # type: ignore[method-assign]
    Path(q.path, "reserve").unlink()
    with pytest.raises(strictq.StoreFull):
        write(q, Token.job("a"), [("k", b"1")])
    assert drain(q) == []
