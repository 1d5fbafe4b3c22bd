"""check() finds what is wrong with the logs of a shard, and says whether it can repair it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import pytest

import strictq
from tests.support.folds import fold as write_rows
from tests.support.internals import fold, tamper
from tests.support.queues import Opener, fill, shard_file


def furnish(disk: Opener, *, folds: bool) -> None:
    """Make a closed queue whose logs have lanes in every state. With `folds`, some lanes are at rest, and logs were cut."""
    q = disk(shards=1)
    if folds:
        fill(q, "rest", 3)
        fill(q, "cut", 3)
        q.ack_many(q.receive(3, keys=["cut"]))
        write_rows(q)
    fill(q, "b", 4)
    one, two, _ = q.receive(3, keys=["b"])
    two.start()
    one.ack()
    fill(q, "a", 3)
    fill(q, "again", 1)
    q.hold("again")
    q.release("again")
    q.ack_many(q.receive(1, keys=["again"]))
    fill(q, "again", 2)
    q.send(b"x" * 5000, "big", headers={"a": "b"})
    fill(q, "done", 2)
    q.ack_many(q.receive(2, keys=["done"]))
    fill(q, "long", 1)
    (d,) = q.receive(1, keys=["long"])
    d.extend(1000.0)
    fill(q, "back", 1)
    (d,) = q.receive(1, keys=["back"])
    d.lease.release()
    if folds:
        fill(q, "rest", 1)
    assert q.check() == []
    q.close()
    fold(shard_file(disk.path))


@attrs.frozen
class Seed:
    """A change, the rules that report it (one of them is enough), and whether check(fix=True) repairs it."""

    name: str
    sql: tuple[str, ...]
    rules: tuple[str, ...] = ("log",)
    fixable: bool = False
    folds: bool = True


CLAIM, MORE, ACK, _, NACK, _, _, _, PURGE, _, START, EXTEND, RELEASE, HOLD = range(1, 15)
TOKEN = "(SELECT max(token) + 1 FROM journal)"
LIVE = "(SELECT max(token) FROM journal)"
NEWEST = "(SELECT max(id) + 1 FROM message)"
AGAIN = "INSERT INTO message SELECT {0}, key, {1}, sent_at, due, expires, opts, body FROM message WHERE id = {2}"


def blob(key: str) -> str:
    return f"x'{('s' + key).encode().hex()}'"


def message(key: str, seq: int) -> str:
    return f"(SELECT id FROM message WHERE key = {blob(key)} AND seq = {seq})"


def named(key: str, seq: int, *, negative: bool = False) -> str:
    """Return the data of an entry that names a message. (Ids are small here.)"""
    if negative:
        return f"unhex(printf('%02xffffffffffffff', 256 - {message(key, seq)}))"
    return f"unhex(printf('%02x00000000000000', {message(key, seq)}))"


def row(kind: int, data: str, *, token: str = "0", top: str = "max(top)", at: str = "max(at)") -> str:
    """Return a statement that appends an entry."""
    holder = "'1c'" if kind == CLAIM else "NULL"
    values = f"max(id) + 1, {kind}, {at}, {top}, {token}, 1 << 60, {holder}, {data}"
    return f"INSERT INTO journal SELECT {values} FROM journal HAVING true"


HELD = "CAST(x'02000000' || x'7361' AS BLOB)"
LEASED = f"(SELECT token FROM journal WHERE kind = {CLAIM} AND data = {named('long', 1)})"
OLDEST = "(SELECT min(token) FROM journal WHERE kind = 1)"
SEEDS = [
    # message
    Seed("a message vanished", (f"DELETE FROM message WHERE id = {message('a', 2)}",)),
    Seed("the first message of a lane vanished", (f"DELETE FROM message WHERE id = {message('a', 1)}",), folds=False),
    Seed("the first message vanished, and logs were cut", (f"DELETE FROM message WHERE id = {message('a', 1)}",)),
    Seed("the first one since the lane came to rest vanished", (f"DELETE FROM message WHERE id = {message('again', 2)}",)),
    Seed("a leased message vanished", (f"DELETE FROM message WHERE id = {message('long', 1)}",)),
    Seed("an acked message vanished", (f"DELETE FROM message WHERE id = {message('done', 2)}",)),
    Seed("the newest message vanished", (f"DELETE FROM message WHERE id = {message('back', 1)}",), folds=False),
    Seed("a message is there twice", (AGAIN.format(NEWEST, "seq", message("a", 3)),)),
    Seed("a seq is missing", (f"UPDATE message SET seq = seq + 1 WHERE id = {message('a', 3)}",)),
    Seed("a seq is none", (f"UPDATE message SET seq = 0 WHERE id = {message('big', 1)}",)),
    Seed("seqs are swapped", (f"UPDATE message SET seq = 5 - seq WHERE id IN ({message('a', 2)}, {message('a', 3)})",)),
    Seed(
        "keys are swapped",
        (
            f"UPDATE message SET key = iif(key = {blob('a')}, {blob('b')}, {blob('a')})"
            f" WHERE id IN ({message('a', 3)}, {message('b', 2)})",
        ),
    ),
    Seed("what is at rest comes again", (AGAIN.format(NEWEST, "1", message("rest", 1)),)),
    Seed("a key that is none", (f"UPDATE message SET key = x'7a' WHERE id = {message('big', 1)}",), ("key",)),
    Seed("a key of another shard's lane", (f"UPDATE message SET key = x'' WHERE id = {message('big', 1)}",), ("key",)),
    Seed("headers that are none", (f"UPDATE message SET opts = '[' WHERE id = {message('big', 1)}",), ("value",)),
    Seed("a body is missing", (f"UPDATE message SET body = NULL WHERE id = {message('a', 1)}",), ("body",)),
    Seed("no message is left", ("DELETE FROM message",), ("log", "unreadable")),
    # journal
    Seed("a row is missing", ("DELETE FROM journal WHERE id = (SELECT max(id) - 2 FROM journal)",)),
    Seed("the first rows are missing", ("DELETE FROM journal WHERE id <= (SELECT min(id) + 1 FROM journal)",), folds=False),
    Seed("all rows but the last are missing", ("DELETE FROM journal WHERE id < (SELECT max(id) FROM journal)",)),
    Seed("rows that were counted are missing", ("DELETE FROM journal WHERE id >= (SELECT counted FROM mark)",), ("mark", "log")),
    Seed("no row is left", ("DELETE FROM journal",), ("log", "unreadable")),
    Seed("a row of an unknown kind", (row(99, named("a", 1)),), ("log", "unreadable")),
    Seed("data that is cut off", (f"UPDATE journal SET data = substr(data, 1, 7) WHERE kind = {ACK}",)),
    Seed("data that is empty", (f"UPDATE journal SET data = x'' WHERE kind = {EXTEND}",)),
    Seed("keys that are cut off", (f"UPDATE journal SET data = substr(data, 1, 5) WHERE kind = {HOLD}",)),
    Seed("a message of no lane", (row(ACK, named("a", 1, negative=True)),)),
    Seed("a claim of a message that is not there", (f"DELETE FROM message WHERE id = {message('back', 1)}",)),
    Seed("a claim of what is leased", (row(CLAIM, named("long", 1), token=TOKEN),)),
    Seed("a claim of what is acked", (row(CLAIM, named("done", 1), token=TOKEN),)),
    Seed("a claim of a later message first", (row(CLAIM, named("a", 2), token=TOKEN),)),
    Seed(
        "a claim that names a message twice",
        (row(CLAIM, f"CAST({named('a', 1)} || {named('a', 1, negative=True)} AS BLOB)", token=TOKEN),),
    ),
    Seed("a claim of one lane twice", (row(CLAIM, f"CAST({named('a', 1)} || {named('a', 2)} AS BLOB)", token=TOKEN),)),
    Seed("a claim without flags", (row(CLAIM, named("a", 1), token=TOKEN).replace("'1c'", "'c'"),)),
    Seed("a token that was issued before", (row(CLAIM, named("a", 1), token=OLDEST),)),
    Seed("a token of a later epoch", (row(CLAIM, named("a", 1), token=f"{TOKEN} + (1 << 42)"),)),
    Seed("an ack without a claim", (row(ACK, named("a", 1), token=LIVE),)),
    Seed("an ack by another token", (row(ACK, named("long", 1), token=OLDEST),)),
    Seed("an ack that is older than the row before it", (row(ACK, named("long", 1), token=LEASED, at="min(at) - 1"),)),
    Seed("an ack whose top is older", (row(ACK, named("long", 1), token=LEASED, top="min(top)"),)),
    Seed("an ack of what is acked", (row(ACK, named("done", 1), token=LIVE),)),
    Seed("a purge of what is acked", (row(PURGE, named("done", 1)),)),
    Seed("a nack without a claim", (row(NACK, named("a", 1), token=LIVE),)),
    Seed("a start without a claim", (row(START, named("a", 1), token=LIVE),)),
    Seed("an extension without a claim", (row(EXTEND, named("a", 1), token=LIVE),)),
    Seed("a release without a claim", (row(RELEASE, named("a", 1), token=LIVE),)),
    Seed("growth without a claim", (row(MORE, named("a", 1), token=LIVE),)),
    Seed("a row that is older than the one before", (row(HOLD, HELD, at="min(at) - 1"),)),
    Seed("a top that is older than the one before", (row(HOLD, HELD, top="min(top)"),)),
    Seed("a top that is newer than any message", (row(HOLD, HELD, top="max(top) + 9"),)),
    # mark
    Seed("the row of mark is missing", ("DELETE FROM mark",), ("unreadable", "log")),
    Seed("mark includes messages that do not exist", ("UPDATE mark SET counted_top = 1000000",), ("counter",), fixable=True),
    Seed("mark includes entries that do not exist", ("UPDATE mark SET counted = 1000000",), ("mark",), fixable=True),
    Seed("mark has another total", ("UPDATE mark SET pending = pending + 1",), ("counter",), fixable=True),
    # between the logs and the rows
    Seed(
        "the row of a lane has a later seq",
        (f"UPDATE lane SET tail = 99, first = 99 WHERE key = {blob('rest')}",),
        ("log", "lane"),
    ),
    Seed("the row of a lane is gone", (f"DELETE FROM lane WHERE key = {blob('rest')}",), ("log", "gone", "counter")),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(seed, id=seed.name) for seed in SEEDS])
def test_what_is_wrong_is_reported_and_mended_where_it_can_be(disk: Opener, seed: Seed) -> None:
    furnish(disk, folds=seed.folds)
    tamper(shard_file(disk.path), *seed.sql)
    q = disk()
    found = q.check()
    assert {p.rule for p in found} & set(seed.rules), found
    assert any(p.fixable for p in found) is seed.fixable
    mended = q.check(fix=True)
    assert [p.fixed for p in mended] == [p.fixable for p in mended]
    left = q.check()
    assert (left == []) is seed.fixable
    use(q)


REFUSED = [
    "a row is missing", "data that is cut off", "keys that are cut off", "a message of no lane",
    "a claim of what is leased", "a claim of what is acked", "a claim without flags", "a claim of one lane twice",
    "a seq is missing",
]  # fmt: skip


@pytest.mark.parametrize("seed", [pytest.param(seed, id=seed.name) for seed in SEEDS if seed.name in REFUSED])
def test_no_memory_is_built_of_what_makes_no_sense(disk: Opener, seed: Seed) -> None:
    furnish(disk, folds=seed.folds)
    tamper(shard_file(disk.path), *seed.sql)
    with pytest.raises(strictq.StoreCorrupt, match=r"journal|messages"):
        disk().send(b"", "a")


def use(q: strictq.Queue) -> None:
    """Verify that each call works or fails as documented, whatever is wrong."""
    calls: list[Any] = [
        lambda: q.send(b"", "a"),
        lambda: q.ack_many(q.receive(100)),
        lambda: q.hold("b"),
        q.stats,
        lambda: q.peek("a"),
        q.purge,
    ]
    for call in calls:
        with suppress(strictq.StrictqError):
            call()


@pytest.mark.parametrize("folds", [True, False])
def test_what_is_right_is_left_alone(disk: Opener, folds: bool) -> None:
    furnish(disk, folds=folds)
    file = shard_file(disk.path)
    before = tamper(file, "SELECT * FROM journal ORDER BY id")
    q = disk()
    assert q.check(fix=True) == []
    q.close()
    assert tamper(file, "SELECT * FROM journal ORDER BY id") == before
    q = disk()
    left = [m.body for m in q.receive(100)]
    assert len(left) == 3 + 2 + 1 + 1 + (4 if folds else 0)
