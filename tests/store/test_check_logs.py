"""check() finds what is wrong with the logs of hot lanes, and reports whether it can repair it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import pytest

import strictq
from strictq._store.hot import cooling
from tests.support.internals import fold, shard_of, tamper
from tests.support.queues import Opener, fill, shard_file


def furnish(disk: Opener, monkeypatch: pytest.MonkeyPatch, *, cut: bool) -> None:
    """Make a closed queue with hot lanes in every state: some have cooled, and the logs of one were cut."""
    q = disk(shards=1, hot_lanes=True)
    if cut:
        fill(q, "cut", 3)
        q.ack_many(q.receive(10))
        with monkeypatch.context() as patch:
            patch.setattr(cooling, "WINDOW", 1)
            patch.setattr(cooling, "STEP", 1)
            patch.setattr(cooling, "SLICES", 1)
            shard_of(q).run(cooling.fold)
    fill(q, "b", 4)
    one, two, _ = q.receive(3)
    two.start()
    one.ack()
    fill(q, "a", 3)
    fill(q, "cold", 2)
    q.hold("cold")
    q.release("cold")
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
    assert q.check() == []
    q.close()
    fold(shard_file(disk.path))


@attrs.frozen
class Seed:
    """A change, the rule that reports it, and whether check(fix=True) repairs it."""

    name: str
    sql: tuple[str, ...]
    rule: str = "log"
    fixable: bool = False
    cut: bool = True


def message(key: str, seq: int) -> str:
    return f"(SELECT id FROM inbox WHERE key = x'{('s' + key).encode().hex()}' AND seq = {seq})"


def lane(key: str) -> str:
    return f"(SELECT id FROM lane WHERE key = x'{('s' + key).encode().hex()}')"


def named(key: str, seq: int) -> str:
    """Return the data of a journal row that names a message. (Ids are small here.)"""
    return f"unhex(printf('%02x%014x', {message(key, seq)}, 0))"


def row(kind: int, data: str, *, count: int = 1, token: str = "0", top: str = "9999", at: str = "max(at)") -> str:
    """Return one more row of the journal."""
    top = "(SELECT max(id) FROM inbox)" if top == "9999" else top
    return (
        f"INSERT INTO journal SELECT max(id) + 1, {kind}, {at}, {top}, {count}, {token}, 1 << 60, 1, 0, 'c', {data}"
        " FROM journal HAVING true"
    )


CLAIM, ACK, START, COOL, EXTEND, RELEASE = range(1, 7)
TOKEN = "max(token) + 1"
TWICE = f"CAST({named('a', 1)} || {named('a', 1)} AS BLOB)"
BIG = 10**9
AGAIN = "INSERT INTO inbox (id, key, seq, sent_at, body) SELECT {0}, key, {1}, sent_at, body FROM inbox WHERE id = {2}"
NEWEST = "(SELECT max(id) + 1 FROM inbox)"
SEEDS = [
    # inbox
    Seed("a message vanished", (f"DELETE FROM inbox WHERE id = {message('a', 2)}",)),
    Seed("the first message of a lane vanished", (f"DELETE FROM inbox WHERE id = {message('a', 1)}",), cut=False),
    Seed("the first message since it cooled vanished", (f"DELETE FROM inbox WHERE id = {message('again', 2)}",), cut=False),
    Seed("the first message vanished, and rows were cut", (f"DELETE FROM inbox WHERE id = {message('a', 1)}",), "counter", True),
    Seed("a leased message vanished", (f"DELETE FROM inbox WHERE id = {message('long', 1)}",)),
    Seed("an acked message vanished", (f"DELETE FROM inbox WHERE id = {message('done', 2)}",)),
    Seed("a message is there twice", (AGAIN.format(NEWEST, "seq", message("a", 3)),)),
    Seed("a seq is missing", (f"UPDATE inbox SET seq = seq + 1 WHERE id = {message('a', 3)}",)),
    Seed("a seq is none", (f"UPDATE inbox SET seq = 0 WHERE id = {message('big', 1)}",)),
    Seed("seqs are swapped", (f"UPDATE inbox SET seq = 5 - seq WHERE id IN ({message('a', 2)}, {message('a', 3)})",)),
    Seed(
        "keys are swapped",
        (f"UPDATE inbox SET key = iif(key = x'7361', x'7362', x'7361') WHERE id IN ({message('a', 3)}, {message('b', 2)})",),
    ),
    Seed("what was cut is there again", (AGAIN.format(1, "1", message("a", 1)),)),
    Seed("what has cooled comes again", (AGAIN.format(NEWEST, "1", message("cold", 1)),)),
    Seed("a key that is none", (f"UPDATE inbox SET key = x'7a' WHERE id = {message('big', 1)}",), "key"),
    Seed("headers that are none", (f"UPDATE inbox SET headers = 'no' WHERE id = {message('big', 1)}",), "value"),
    Seed("the inbox is empty", ("DELETE FROM inbox",)),
    # journal
    Seed("a row is missing", ("DELETE FROM journal WHERE id = (SELECT max(id) - 2 FROM journal)",)),
    Seed("the first rows are missing", ("DELETE FROM journal WHERE id <= (SELECT min(id) + 1 FROM journal)",), cut=False),
    Seed("all rows but the last are missing", ("DELETE FROM journal WHERE id < (SELECT max(id) FROM journal)",)),
    Seed("the last rows are missing", ("DELETE FROM journal WHERE id >= (SELECT journal_top FROM counted)",)),
    Seed("no row is left", ("DELETE FROM journal",)),
    Seed("a row of an unknown kind", (row(9, named("a", 1)),)),
    Seed("a count that is wrong", ("UPDATE journal SET count = count + 1 WHERE kind = 2",)),
    Seed("data that is cut off", ("UPDATE journal SET data = substr(data, 1, 7) WHERE kind = 5",)),
    Seed("data that is empty", ("UPDATE journal SET data = x'', count = 0 WHERE kind = 5",)),
    Seed("a claim of a message that is not there", (f"DELETE FROM inbox WHERE id = {message('back', 1)}",)),
    Seed("a claim of a message that was not sent yet", ("UPDATE journal SET top = 0 WHERE kind = 1",), cut=False),
    Seed("a claim of what is leased", (row(CLAIM, named("long", 1), token=TOKEN),)),
    Seed("a claim of what is acked", (row(CLAIM, named("done", 1), token=TOKEN),)),
    Seed("a claim of a later message first", (row(CLAIM, named("a", 2), token=TOKEN),)),
    Seed(
        "a claim that names a message twice",
        (row(CLAIM, f"CAST({named('a', 1)} || {named('a', 1)} AS BLOB)", count=2, token=TOKEN),),
    ),
    Seed("a token that was issued before", (row(CLAIM, named("a", 1), token="min(token) + 1"),)),
    Seed("a token of a later epoch", (row(CLAIM, named("a", 1), token="max(token) + (1 << 42)"),)),
    Seed("an ack without a claim", (row(ACK, named("a", 1)),)),
    Seed("an ack of what is acked", (row(ACK, named("done", 1)),)),
    Seed("an ack of what has cooled", (row(ACK, named("cold", 1)),)),
    Seed("a start without a claim", (row(START, named("a", 1)),)),
    Seed("an extension without a claim", (row(EXTEND, named("a", 1)),)),
    Seed("a release without a claim", (row(RELEASE, named("a", 1)),)),
    Seed("a row that is older than the one before", (row(ACK, named("long", 1), at="min(at) - 1"),)),
    Seed("a top that is older than the one before", (row(ACK, named("long", 1), top="1"),)),
    Seed("a lane cooled before what it got", ("UPDATE journal SET top = (SELECT min(id) FROM inbox) WHERE kind = 4 AND count",)),
    Seed("a row of cooled lanes that names no keys", ("UPDATE journal SET data = x'ff' WHERE kind = 4 AND count",)),
    Seed("a row of cooled lanes that counts too many", ("UPDATE journal SET count = 9 WHERE kind = 4 AND count",)),
    Seed("a lane that cooled is not named", ("UPDATE journal SET count = 0, data = x'' WHERE kind = 4 AND count",)),
    Seed("a lane cooled that is nowhere", (row(COOL, "x'02007361'").replace("1 << 60", "0"),)),
    # counted
    Seed("the row of counted is missing", ("DELETE FROM counted",)),
    Seed("counted includes what is not in the inbox", (f"UPDATE counted SET inbox_top = {BIG}",)),
    Seed("counted includes what is not in the journal", (f"UPDATE counted SET journal_top = {BIG}",)),
    Seed("counted includes too little of the inbox", ("UPDATE counted SET inbox_top = 0",), "counter", True),
    Seed("counted includes too little of the journal", ("UPDATE counted SET journal_top = 0",), "counter", True, cut=False),
    Seed("the counter row is missing", ("DELETE FROM counter",), "counter"),
    Seed("the counter row has another total", ("UPDATE counter SET pending = pending + 1",), "counter", True),
    # body
    Seed("a body is missing", ("DELETE FROM body",), "body"),
    Seed("a body belongs to no message", ("INSERT INTO body VALUES (7777, x'00')",), "body_unused", True),
    # between the logs and the tables
    Seed("a hot lane is listed", (f"INSERT INTO ready (position, lane) VALUES (-1, {lane('again')})",)),
    Seed("a hot lane is delayed", (f"INSERT INTO delayed (lane, due) VALUES ({lane('again')}, 5)",)),
    Seed("a hot lane is held", (f"UPDATE lane SET hold = 'x', held_at = 1 WHERE id = {lane('again')}",)),
    Seed(
        "a hot lane is leased",
        (
            "INSERT INTO lease (lane, token, consumer, lo, hi, started, pending, leased_at, deadline)"
            f" VALUES ({lane('again')}, 5, 'c', 2, 2, 1, 1, 0, 0)",
        ),
    ),
    Seed(
        "a hot lane has messages in the tables",
        (f"INSERT INTO message (lane, seq, id, sent_at, body) VALUES ({lane('again')}, 2, 5, 0, x'')",),
    ),
    Seed("the row of a hot lane has a later seq", (f"UPDATE lane SET last_seq = 99 WHERE id = {lane('again')}",)),
    Seed(
        "the row of a cooled lane has forgotten",
        (f"DELETE FROM message WHERE lane = {lane('cold')}", f"DELETE FROM lane WHERE id = {lane('cold')}"),
    ),
]


@pytest.mark.parametrize("seed", [pytest.param(seed, id=seed.name) for seed in SEEDS])
def test_what_is_wrong_is_reported_and_mended_where_it_can_be(disk: Opener, monkeypatch: pytest.MonkeyPatch, seed: Seed) -> None:
    furnish(disk, monkeypatch, cut=seed.cut)
    tamper(shard_file(disk.path), *seed.sql)
    q = disk()
    found = q.check()
    assert seed.rule in {p.rule for p in found}, found
    assert any(p.fixable for p in found if p.rule == seed.rule) is seed.fixable
    mended = q.check(fix=True)
    assert [p.fixed for p in mended] == [p.fixable for p in mended]
    left = q.check()
    assert (left == []) is seed.fixable
    use(q)


REFUSED = [
    "a row is missing", "a row of an unknown kind", "a count that is wrong", "data that is cut off", "data that is empty",
    "a claim of what is leased", "a claim of what is acked", "a claim of a later message first", "an ack without a claim",
    "an ack of what is acked", "a start without a claim", "an extension without a claim", "a release without a claim",
]  # fmt: skip


@pytest.mark.parametrize("seed", [pytest.param(seed, id=seed.name) for seed in SEEDS if seed.name in REFUSED])
def test_no_memory_is_built_of_what_makes_no_sense(disk: Opener, monkeypatch: pytest.MonkeyPatch, seed: Seed) -> None:
    furnish(disk, monkeypatch, cut=seed.cut)
    tamper(shard_file(disk.path), *seed.sql)
    with pytest.raises(strictq.StoreCorrupt, match="journal"):
        disk().send(b"", "a")


def use(q: strictq.Queue) -> None:
    """Verify that each call works or fails as documented, whatever is wrong."""
    calls: list[Any] = [
        lambda: q.send(b"", "a"),
        lambda: q.ack_many(q.receive(100)),
        lambda: q.hold("b"),
        q.stats,
        lambda: q.peek("a"),
        lambda: q.configure(hot_lanes=False),
    ]
    for call in calls:
        with suppress(strictq.StrictqError):
            call()


@pytest.mark.parametrize("cut", [True, False])
def test_what_is_right_is_left_alone(disk: Opener, monkeypatch: pytest.MonkeyPatch, cut: bool) -> None:
    furnish(disk, monkeypatch, cut=cut)
    file = shard_file(disk.path)
    tamper(file, "UPDATE counted SET gate = gate + 7")  # it means only that something else was written
    before = tamper(file, "SELECT * FROM journal ORDER BY id")
    q = disk()
    assert q.check() == []
    q.close()
    assert tamper(file, "SELECT * FROM journal ORDER BY id") == before
    q = disk()
    assert q.check(fix=True) == []
    left = [m.body for m in q.receive(100)]
    assert len(left) == 3 + 2 + 2 + 1 + 1
