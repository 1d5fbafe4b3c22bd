"""Assertions hold where they should, and where they fail they say what a person needs to know."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pytest

import strictq
from strictq import Queue, testing
from strictq.testing import assert_dead, assert_sent, assert_settled


@pytest.fixture
def q() -> Iterator[Queue]:
    with testing.open(max_attempts=2) as q:
        yield q


def failure(call: object, *args: object, **options: object) -> str:
    with pytest.raises(AssertionError) as caught:
        call(*args, **options)  # type: ignore[operator]
    return str(caught.value)


def shown(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def test_sent(q: Queue) -> None:
    q.send(b"created", "order-7", headers={"a": "b"})
    q.send_many([strictq.Message.json({"cents": 5}, key="order-7")])
    q.receive(1)
    first, second = assert_sent(q, "order-7", [b"created", {"cents": 5}])
    assert (first.state, first.headers) == ("in_flight", {"a": "b"})
    assert second.seq == 2
    assert_sent(q, "order-7", [b"created", b'{"cents":5}'])
    assert_sent(q, "order-8", [])
    assert_sent(testing.awaited(q), "order-7", (b for b in [b"created", {"cents": 5}]))


def test_sent_says_what_differs(q: Queue) -> None:
    q.send(b"created", "order-7")
    q.send(b"payed", "order-7")
    q.send(b"x", "order-77")
    text = failure(assert_sent, q, "order-7", [b"created", b"paid", b"shipped"])
    assert text == shown(
        """
        key 'order-7': expected 3 messages in its lane, found 2 messages
          seq  state  expected    found
          1    ready  b'created'  b'created'
          2    ready  b'paid'     b'payed'    <--
                      b'shipped'  nothing     <--
          key 'order-7': seq 1 can be received now (2 unresolved)
          other keys with messages: 'order-77'
        """
    )


def test_sent_says_where_else_it_may_be(q: Queue) -> None:
    q.send(b"1", "k")
    q.receive()[0].reject("torn")
    text = failure(assert_sent, q, "k", [b"1"])
    assert "dead: key 'k', seq 1, rejected: torn" in text
    q.send(b"left over", "none")
    assert "expected no message in its lane, found 1 message" in failure(assert_sent, q, "none", [])
    assert "nothing" in failure(assert_sent, q, "none", [])


def test_a_body_that_is_no_json_differs_from_a_value(q: Queue) -> None:
    q.send(b"\xff", "k")
    assert "b'\\xff'" in failure(assert_sent, q, "k", [{"cents": 5}])
    q.send(b"null", "n")
    assert_sent(q, "n", [None])


def test_long_bodies_and_long_lanes_are_cut(q: Queue) -> None:
    q.send_many([strictq.Message(b"x" * 1000, key="k") for _ in range(500)])
    text = failure(assert_sent, q, "k", [])
    assert len(text) < 5000
    assert "and 470 more" in text


def test_dead(q: Queue) -> None:
    q.send(b"spam", "k")
    q.send(b"1", "k")
    for d in q.receive():
        d.reject("it is spam") if d.body == b"spam" else d.ack()
    (dead,) = assert_dead(q, "k", [b"spam"], kind="rejected", reason="spam")
    assert dead.seq == 1
    assert_dead(q, "other", [])
    text = failure(assert_dead, q, "k", [b"spam"], kind="poison", reason="torn")
    assert text == shown(
        """
        key 'k': expected 1 dead letter, kind 'poison', reason 'torn'; found 1 dead letter
          seq  expected  found    kind      reason
          1    b'spam'   b'spam'  rejected  it is spam  <--
          key 'k': no message is waiting
        """
    )
    assert "expected no dead letter; found 1 dead letter" in failure(assert_dead, q, "k", [])


def test_dead_says_what_is_alive(q: Queue) -> None:
    q.send(b"1", "k")
    text = failure(assert_dead, q, "k", [b"1"])
    assert "found no dead letter" in text
    assert "seq 1 can be received now" in text


def test_settled(q: Queue) -> None:
    assert_settled(q)
    q.send_many([strictq.Message(b"%d" % n, key="k") for n in range(3)])
    one, two, three = q.receive()
    one.ack()
    assert_settled(q, "k", [1])
    text = failure(assert_settled, q, "k", [1, 2])
    assert text.startswith("key 'k': 1 of 2 messages are not resolved\n  seq  state      attempts")
    assert "key 'k' is not settled: 2 unresolved, 0 dead" in failure(assert_settled, q, "k")
    two.ack()
    three.reject("torn")
    assert "dead: key 'k', seq 3, rejected: torn" in failure(assert_settled, q, "k")
    assert failure(assert_settled, q).startswith("the queue is not settled: 0 ready, 0 in flight, 0 delayed, 0 held, 1 dead\n")
    q.purge("k", dead=True)
    assert_settled(q)
    assert_settled(q, "k")
    assert_settled(q, "never used")


def test_settled_says_why_each_key_waits(q: Queue) -> None:
    q.send(b"", "a", delay=60.0)
    q.send(b"", "b")
    q.receive(consumer="printer-2")
    text = failure(assert_settled, q)
    assert "1 in flight, 1 delayed" in text
    assert "held by printer-2" in text


@pytest.mark.parametrize("wrong", [b"one", "one", {"a": 1}, 5, None])
def test_bodies_are_a_list(q: Queue, wrong: object) -> None:
    with pytest.raises(strictq.InvalidArgument, match="list of bodies"):
        assert_sent(q, "k", wrong)  # type: ignore[arg-type]


def test_other_misuse(q: Queue) -> None:
    with pytest.raises(strictq.InvalidArgument, match="kind"):
        assert_dead(q, "k", [], kind="dead")
    with pytest.raises(strictq.InvalidArgument, match="pass the key"):
        assert_settled(q, seqs=[1])
    with pytest.raises(strictq.UnknownMessage):
        assert_settled(q, "k", [1])
