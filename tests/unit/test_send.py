"""Sending: sequences, receipts, and what a message carries from send to receive."""

from __future__ import annotations

import sys
import threading
from types import FrameType

import pytest

import strictq
from strictq import Message, Queue
from strictq._values.keys import Key
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill, labels, seqs


def test_seqs_of_a_key_count_from_one(q: Queue) -> None:
    assert [r.seq for r in fill(q, "k", 5)] == [1, 2, 3, 4, 5]


def test_seqs_of_keys_are_independent(q: Queue) -> None:
    got = [q.send(b"", key).seq for key in ("a", "b", "a", "b", "b")]
    assert got == [1, 1, 2, 2, 3]


def test_receipt_names_the_message(q: Queue) -> None:
    r = q.send(b"x", "k")
    (d,) = q.receive()
    assert (r.key, r.seq, r.id, r.duplicate) == (d.key, d.seq, d.id, False)


@pytest.mark.one_shard("ids ascend within a shard")
def test_ids_ascend_with_arrival(q: Queue) -> None:
    ids = [q.send(b"", key).id for key in ("a", "b", "c", "a")]
    assert ids == sorted(set(ids))


def test_seqs_are_not_reused_after_the_lane_is_empty(q: Queue) -> None:
    first = q.send(b"", "k")
    q.receive()[0].ack()
    second = q.send(b"", "k")
    assert (second.seq, second.id > first.id) == (2, True)


def test_seqs_go_on_after_reopening(disk: Opener) -> None:
    q = disk()
    fill(q, "k", 3)
    for d in q.receive():
        d.ack()
    q.close()
    assert disk().send(b"", "k").seq == 4


@pytest.mark.parametrize("key", ["k", "ключ", b"\x00\xff", 0, -1, 2**64, "\x00", "a" * 1024])
def test_key_comes_back_as_given(q: Queue, key: Key) -> None:
    q.send(b"x", key)
    (d,) = q.receive()
    assert (type(d.key), d.key) == (type(key), key)


def test_key_types_are_different_keys(q: Queue) -> None:
    keys: list[Key] = [1, "1", b"1", -1, "-1"]
    assert [q.send(b"", key).seq for key in keys] == [1] * len(keys)
    assert labels(q.receive()) == [(key, 1) for key in keys]


@pytest.mark.parametrize("body", [b"", b"\x00", bytes(range(256)), b"x" * 100_000, b"y" * 1_000_000])
def test_body_comes_back_as_given(q: Queue, body: bytes) -> None:
    q.send(body, "k")
    (d,) = q.receive()
    assert d.body == body


def test_everything_sent_comes_back(q: Queue, clock: FakeClock) -> None:
    q.send(b"x", "k", headers={"a": "1", "": "ü\x00"}, size_hint=7.5, prepare_seconds=0.25, process_seconds=2.0)
    (d,) = q.receive()
    assert d.headers == {"a": "1", "": "ü\x00"}
    assert (d.size_hint, d.prepare_seconds, d.process_seconds) == (7.5, 0.25, 2.0)
    assert d.enqueued_at == pytest.approx(clock.wall() / 1e6, abs=1e-3)
    assert d.key_state is None


def test_defaults_of_what_a_message_carries(q: Queue) -> None:
    q.send(b"four", "k")
    (d,) = q.receive()
    assert d.headers == {}
    assert d.prepare_seconds is None
    assert d.process_seconds is None


def test_json_goes_there_and_back(q: Queue) -> None:
    value = {"n": [1, 2.5, None, True], "ü": "\u20ac"}
    q.send_many([Message.json(value, key="k")])
    (d,) = q.receive()
    assert d.json() == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_message_json_refuses_what_json_cannot_say(value: object) -> None:
    with pytest.raises(strictq.InvalidArgument):
        Message.json(value)


def test_send_many_gives_receipts_in_order(make: Opener) -> None:
    q = make(shards=4)
    keys = ["a", "b", "c", "a", "d", "e", "a", "b"]
    receipts = q.send_many(Message(b"%d" % n, key=key) for n, key in enumerate(keys))
    assert [r.key for r in receipts] == keys
    assert [r.seq for r in receipts] == [1, 1, 1, 2, 1, 1, 3, 2]


def test_send_many_of_nothing(q: Queue) -> None:
    assert q.send_many([]) == []


def test_send_many_is_one_step_within_a_shard(q: Queue) -> None:
    with pytest.raises(strictq.InvalidArgument):
        q.send_many([Message(b"1", key="a"), Message(b"2", key="")])
    assert q.stats().depth == 0
    assert q.send(b"", "a").seq == 1


def test_send_many_with_one_bad_message_changes_no_shard(make: Opener) -> None:
    q = make(shards=4)
    with pytest.raises(strictq.InvalidArgument):
        q.send_many([*(Message(b"", key=n) for n in range(50)), Message(b"", key=1, delay=-1.0)])
    assert q.stats().depth == 0


def test_send_many_larger_than_any_statement_limit(q: Queue) -> None:
    receipts = q.send_many([Message(b"", key=n % 7) for n in range(5_000)])
    assert len(receipts) == 5_000
    assert q.stats().depth == 5_000
    got = q.receive(5_000)
    assert len(got) == 5_000
    for key in range(7):
        mine = [d.seq for d in got if d.key == key]
        assert mine == list(range(1, len(mine) + 1))


def test_queue_full_refuses_and_changes_nothing(make: Opener) -> None:
    q = make(max_depth=3)
    fill(q, "k", 3)
    with pytest.raises(strictq.QueueFull) as caught:
        q.send(b"", "other")
    assert caught.value.transient
    assert q.stats().depth == 3
    q.receive(1)[0].ack()
    assert q.send(b"", "k").seq == 4


def test_queue_full_refuses_a_batch_as_a_whole(make: Opener) -> None:
    q = make(max_depth=3)
    with pytest.raises(strictq.QueueFull):
        q.send_many([Message(b"", key="k")] * 4)
    assert q.stats().depth == 0


def test_concurrent_sends_make_one_sequence(make: Opener) -> None:
    q = make(shards=2)
    receipts: list[list[int]] = [[] for _ in range(4)]

    def work(mine: list[int]) -> None:
        mine += [q.send(b"", "k").seq for _ in range(25)]

    threads = [threading.Thread(target=work, args=(mine,)) for mine in receipts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(mine == sorted(mine) for mine in receipts)
    assert sorted(seq for mine in receipts for seq in mine) == list(range(1, 101))
    assert seqs(q.receive(100)) == list(range(1, 101))


def test_two_objects_on_one_directory_share_sequences(disk: Opener) -> None:
    one, two = disk(), disk()
    assert [x.send(b"", "k").seq for x in (one, two, two, one)] == [1, 2, 3, 4]
    assert seqs(two.receive()) == [1, 2, 3, 4]


def test_a_send_stays_short(disk: Opener) -> None:
    """How many Python functions a send of one message calls decides what it costs, more than anything that SQLite does."""
    q = disk.open(durability="process")
    for _ in range(3):
        q.send(b"body", "k")
    called: list[str] = []

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        q.send(b"body", "k")
    finally:
        sys.setprofile(None)
    assert len(called) <= 35, called
