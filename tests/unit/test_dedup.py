"""A send that is repeated with its dedup id stores nothing."""

from __future__ import annotations

from typing import Any

import pytest

import strictq
from strictq import Message, Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener, seqs


def test_second_send_repeats_the_first_receipt(q: Queue) -> None:
    first = q.send(b"1", "k", dedup_id="x")
    second = q.send(b"2", "k", dedup_id="x")
    assert not first.duplicate
    assert second.duplicate
    assert (second.key, second.seq, second.id) == ("k", first.seq, first.id)
    (d,) = q.receive()
    assert d.body == b"1"
    assert q.send(b"", "k").seq == 2, "a duplicate uses up no seq"


def test_other_ids_and_none_are_not_duplicates(q: Queue) -> None:
    got = [q.send(b"", "k", dedup_id=i) for i in ("x", "y", None, None, "X")]
    assert [(r.seq, r.duplicate) for r in got] == [(n, False) for n in (1, 2, 3, 4, 5)]


def test_ids_belong_to_their_key(q: Queue) -> None:
    assert not q.send(b"", "a", dedup_id="x").duplicate
    assert not q.send(b"", "b", dedup_id="x").duplicate
    assert not q.send(b"", b"a", dedup_id="x").duplicate
    assert q.send(b"", "a", dedup_id="x").duplicate


def test_id_is_remembered_after_the_message_is_gone(q: Queue) -> None:
    q.send(b"", "k", dedup_id="x")
    q.receive()[0].ack()
    r = q.send(b"", "k", dedup_id="x")
    assert (r.duplicate, r.seq) == (True, 1)
    assert q.receive() == []


def test_window_ends(make: Opener, clock: FakeClock) -> None:
    q = make(dedup_window_seconds=60.0)
    q.send(b"", "k", dedup_id="x")
    clock.advance(59.0)
    assert q.send(b"", "k", dedup_id="x").duplicate
    clock.advance(2.0)
    r = q.send(b"", "k", dedup_id="x")
    assert (r.duplicate, r.seq) == (False, 2)
    clock.advance(59.0)
    assert q.send(b"", "k", dedup_id="x").seq == 2


def test_window_is_not_moved_by_wall_clock_jumps(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k", dedup_id="x")
    clock.jump_wall(1e7)
    assert q.send(b"", "k", dedup_id="x").duplicate
    clock.jump_wall(-2e7)
    assert q.send(b"", "k", dedup_id="x").duplicate


def test_id_outlives_reopening(disk: Opener) -> None:
    q = disk()
    q.send(b"", "k", dedup_id="x")
    q.close()
    assert disk().send(b"", "k", dedup_id="x").duplicate


def test_another_object_sees_the_id(disk: Opener) -> None:
    one, two = disk(), disk()
    one.send(b"", "k", dedup_id="x")
    assert two.send(b"", "k", dedup_id="x").duplicate


def test_duplicates_within_one_call(q: Queue) -> None:
    messages = [Message(b"%d" % n, key="k", dedup_id=i) for n, i in enumerate(["x", "y", "x"])]
    receipts = q.send_many(messages)
    assert [(r.seq, r.duplicate) for r in receipts] == [(1, False), (2, False), (1, True)]
    assert seqs(q.receive()) == [1, 2]


def test_longest_id(q: Queue) -> None:
    assert not q.send(b"", "k", dedup_id="ü" * 256).duplicate
    assert q.send(b"", "k", dedup_id="ü" * 256).duplicate


def test_purge_forgets_the_ids_of_what_it_purges(q: Queue) -> None:
    q.send(b"", "k", dedup_id="x")
    assert q.purge("k") == 1
    r = q.send(b"", "k", dedup_id="x")
    assert (r.duplicate, r.seq) == (False, 2)


def test_dead_letter_keeps_its_id(q: Queue) -> None:
    q.send(b"", "k", dedup_id="x")
    q.receive()[0].reject("no")
    assert q.send(b"", "k", dedup_id="x").duplicate


# ---- the id of a message


@pytest.mark.parametrize("options", [
    {},
    {"headers": {"a": "{b}", "ü": "#1:"}},
    {"size_hint": 3.0},
    {"headers": {"a": "b"}, "process_seconds": 0.5},
], ids=["alone", "headers", "numbers", "both"])  # fmt: skip
@pytest.mark.parametrize("dedup_id", ["x", "3:{", '#7:"[]"', "ü" * 256])
def test_a_delivery_has_the_id_as_it_was_sent(q: Queue, options: Any, dedup_id: str) -> None:
    q.send(b"1", "k", dedup_id=dedup_id, **options)
    q.send(b"2", "k", **options)
    assert [m.dedup_id for m in q.peek("k")] == [dedup_id, None]
    ds = q.receive()
    assert [d.dedup_id for d in ds] == [dedup_id, None]
    for d in ds:
        found = {"headers": d.headers, "size_hint": d.size_hint, "process_seconds": d.process_seconds}
        assert found == {"headers": {}, "size_hint": None, "process_seconds": None, **options}


def test_it_is_kept_as_long_as_the_message(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=1)
    q.send(b"1", "k", dedup_id="x")
    clock.advance(3600.0)
    q.send(b"2", "k", dedup_id="x")
    first, second = q.receive()
    assert first.dedup_id == "x"
    first.reject("no")
    assert [d.dedup_id for d in q.dead_letters()] == ["x"]
    q.redrive("k")
    second.lease.release()
    assert [(d.seq, d.dedup_id) for d in q.receive()] == [(1, "x"), (2, "x")]
    assert q.check() == []


def test_the_id_of_content_is_its_hash(q: Queue) -> None:
    for _ in range(2):
        q.send(b"1", "k", dedup_id=strictq.CONTENT_HASH)
    (d,) = q.receive()
    assert d.dedup_id is not None
    assert d.dedup_id.startswith("blake2b:")


def test_a_send_with_an_id_that_is_forwarded_keeps_it(make: Opener) -> None:
    q = make(shards=4)
    with q.transaction(key="k") as tx:
        for n in range(8):
            tx.send(b"", n, dedup_id=f"id {n}")
    assert {(d.key, d.dedup_id) for d in q.receive()} == {(n, f"id {n}") for n in range(8)}
