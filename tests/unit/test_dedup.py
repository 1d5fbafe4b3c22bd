"""A send that is repeated with its dedup id stores nothing."""

from __future__ import annotations

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
