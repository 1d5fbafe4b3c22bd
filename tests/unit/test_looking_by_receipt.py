"""Looking at messages without their keys: keyless ones by their receipts, and the oldest ones of all keys."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import strictq
from strictq import InvalidArgument, Message, Queue, Receipt, UnknownMessage
from strictq.testing import FakeClock
from tests.support.queues import AT_ONCE, Opener


@pytest.fixture(params=["random", "round_robin"])
def keyless(request: pytest.FixtureRequest, make: Opener) -> Queue:
    return make(shards=2, keyless=request.param, keyless_lanes=5, **AT_ONCE)


@pytest.mark.parametrize("key", ["k", 42, -1, b"\xff"])
def test_a_receipt_with_a_key_finds_its_message(q: Queue, key: Any) -> None:
    receipts = [q.send(b"%d" % n, key) for n in range(3)]
    for n, receipt in enumerate(receipts):
        assert q.status(receipt) == q.status(key, n + 1)
        assert [(m.seq, m.body) for m in q.peek(receipt)] == [(n + 1, b"%d" % n)]
    q.receive(1)[0].ack()
    assert q.status(receipts[0]).state == "resolved"
    assert q.peek(receipts[0]) == []


def test_every_keyless_message_is_found_by_its_receipt(keyless: Queue) -> None:
    receipts = keyless.send_many([Message(b"%d" % n) for n in range(200)])
    for n, receipt in enumerate(receipts):
        (found,) = keyless.peek(receipt)
        assert (found.key, found.seq, found.id, found.body) == (None, receipt.seq, receipt.id, b"%d" % n)
        status = keyless.status(receipt)
        assert (status.key, status.seq, status.state) == (None, receipt.seq, "ready")


def test_it_is_found_wherever_it_went(keyless: Queue, clock: FakeClock) -> None:
    """In its lane, in a lane of its own, among the dead letters, and gone."""
    receipts = {}
    for body in (b"acked", b"failed", b"rejected"):
        receipts[body] = keyless.send(body)
        (d,) = keyless.receive()
        if body == b"acked":
            d.ack()
        elif body == b"failed":
            d.nack(delay=50.0, reason="no paper")
        else:
            d.reject("never", output="page 1")
    late = keyless.send(b"late", delay=100.0)
    same = keyless.send(b"same", dedup_id="d-1")
    assert keyless.send(b"same", dedup_id="d-1")._replace(duplicate=False) == same
    states = {body: keyless.status(receipt) for body, receipt in receipts.items()}
    assert states[b"acked"].state == "resolved"
    assert (states[b"failed"].state, states[b"failed"].last_error, states[b"failed"].attempts) == ("delayed", "no paper", 1)
    assert (states[b"rejected"].state, states[b"rejected"].last_error) == ("dead", "never")
    assert (states[b"rejected"].key, states[b"rejected"].last_output) == (None, "page 1")
    assert keyless.status(late).state == "delayed"
    assert keyless.status(same).state == "ready"
    assert [m.body for m in keyless.peek(late)] == [b"late"]
    assert [m.body for m in keyless.peek(receipts[b"failed"])] == [b"failed"]
    assert keyless.peek(receipts[b"rejected"]) == keyless.peek(receipts[b"acked"]) == []
    (d,) = keyless.receive()
    assert (d.body, keyless.status(same).state) == (b"same", "in_flight")


def test_many_in_lanes_of_their_own_are_passed_over(make: Opener, clock: FakeClock) -> None:
    q = make(keyless="round_robin", keyless_lanes=3)
    late = [q.send(b"late %d" % n, delay=1000.0) for n in range(50)]
    plain = [q.send(b"plain %d" % n) for n in range(50)]
    assert [q.peek(r)[0].body for r in late] == [b"late %d" % n for n in range(50)]
    assert [q.peek(r)[0].body for r in plain] == [b"plain %d" % n for n in range(50)]


def test_gaps_in_a_lane_do_not_hide_what_is_left(make: Opener) -> None:
    q = make(keyless="round_robin", keyless_lanes=1)
    receipts = q.send_many([Message(b"%d" % n) for n in range(30)])
    q.send_many([Message(b"", key="other") for _ in range(5)])
    more = q.send_many([Message(b"%d" % n) for n in range(30, 40)])
    acked = {2, 3, 5, 8, 13, 21, 34}
    ds = [d for d in q.receive(100) if d.key is None]
    q.ack_many([ds[n] for n in sorted(acked)])
    assert [n for n, r in enumerate([*receipts, *more]) if q.status(r).state == "resolved"] == sorted(acked)


def test_ids_and_shards_that_are_none(keyless: Queue) -> None:
    receipt = keyless.send(b"")
    with pytest.raises(UnknownMessage, match="has issued no id 1000"):
        keyless.status(receipt._replace(id=1000))
    for bad in (receipt._replace(id=0), receipt._replace(shard=2), receipt._replace(shard=-1), receipt._replace(id="1")):
        with pytest.raises(InvalidArgument):
            keyless.status(bad)
        with pytest.raises(InvalidArgument):
            keyless.peek(bad)


def test_a_key_needs_a_seq_and_a_receipt_has_one(q: Queue) -> None:
    receipt = q.send(b"", "k")
    with pytest.raises(InvalidArgument, match="needs the seq"):
        q.status("k")
    with pytest.raises(InvalidArgument, match="contains the seq"):
        q.status(receipt, 1)
    with pytest.raises(UnknownMessage):
        q.status(Receipt("k", 2, receipt.id))


def test_the_oldest_of_all_keys(make: Opener, clock: FakeClock) -> None:
    q = make(shards=3, keyless="random")
    sent = []
    for n in range(30):
        clock.advance(1.0)
        q.send(b"%d" % n, None if n % 7 == 0 else f"k{n % 4}")
        sent.append(b"%d" % n)
    assert [m.body for m in q.peek(limit=12)] == sent[:12]
    assert [m.body for m in q.peek(None, 100)] == sent
    q.hold("k1")
    (d,) = q.receive(1, keys=["k2"])
    found = q.peek(limit=30)
    assert {m.state for m in found if m.key == "k1"} == {"held"}
    assert next(m.state for m in found if m.key == "k2") == "in_flight"
    assert [m.body for m in found] == sent
    d.ack()
    assert [m.body for m in q.peek(limit=30)] == [body for body in sent if body != d.body]


def test_there_may_be_none(q: Queue) -> None:
    assert q.peek() == []


def test_the_awaited_queue_looks_the_same(make: Opener) -> None:
    async def look() -> None:
        async with strictq.open_async(":memory:", config=strictq.QueueConfig(keyless="random")) as q:
            receipt = await q.send(b"a")
            assert [m.body for m in await q.peek(receipt)] == [m.body for m in await q.peek()] == [b"a"]
            assert (await q.status(receipt)).state == "ready"

    anyio.run(look)
