"""Kept outputs of acked messages: `output_seconds`, `q.output`, and what leaves one."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import strictq
from strictq import ConfigError, InvalidArgument, LeaseLost, Queue, QueueConfig, UnknownMessage
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill


def test_an_ack_may_leave_an_output(make: Opener) -> None:
    q = make(output_seconds=60.0)
    fill(q, "k", 6)
    assert q.output("k", 1) is None
    for n, d in enumerate(q.receive(keys=["k"])):
        if n == 0:
            d.ack(output="of an ack")
        elif n == 1:
            q.delivery(d.handle).ack(output="of a handle")
        elif n == 2:
            with q.transaction(d) as tx:
                tx.output("of a transaction,")
                tx.output("two lines")
        elif n == 3:
            d.ack(output="")
        else:
            d.ack()
    outputs = ["of an ack", "of a handle", "of a transaction,\ntwo lines", "", None, None]
    assert [q.output("k", n) for n in range(1, 7)] == outputs
    assert q.check() == []
    if make.kind.in_memory:
        return
    with make() as other:
        assert [other.output("k", n) for n in range(1, 7)] == outputs
    with make.open(read_only=True) as reader:
        assert [reader.output("k", n) for n in range(1, 7)] == outputs


def test_consume_goes_on_after_an_ack_with_an_output(make: Opener) -> None:
    q = make(output_seconds=60.0)
    fill(q, "k", 3)
    for d in q.consume(keys=["k"], wait=0.0):
        d.ack(output=f"{d.attempt}")
    assert [q.output("k", n) for n in (1, 2, 3)] == ["1", "1", "1"]
    assert q.stats().retries == 0


def test_nothing_is_kept_unless_it_is_asked_for(make: Opener) -> None:
    q = make()
    (receipt,) = fill(q, "k", 1)
    (d,) = q.receive(keys=["k"])
    d.ack(output="lost")
    assert q.output(receipt) is None
    assert (q.config.output_seconds, q.configure(output_seconds=5.0).output_seconds) == (0.0, 5.0)
    assert q.output(receipt) is None


def test_an_output_is_kept_for_its_time(make: Opener, clock: FakeClock) -> None:
    q = make(output_seconds=60.0)
    fill(q, "k", 2)
    first, second = q.receive(keys=["k"])
    first.ack(output="one")
    q.configure(output_seconds=0.0)
    second.ack(output="none is kept any more")
    clock.advance(59.9)
    assert [q.output("k", n) for n in (1, 2)] == ["one", None]
    clock.advance(0.2)
    assert q.output("k", 1) is None
    assert q.status("k", 1).state == "resolved"


def test_only_an_ack_leaves_an_output(make: Opener) -> None:
    q = make(output_seconds=60.0, max_attempts=2)
    fill(q, "k", 4)
    (d,) = q.receive(1, keys=["k"])
    d.nack(output="of the first attempt", reason="no paper")
    (d,) = q.receive(1, keys=["k"])
    assert q.output("k", 1) is None
    d.ack()
    assert q.output("k", 1) is None, "the output of an attempt that failed is in the status"
    (d,) = q.receive(1, keys=["k"])
    d.reject("no", output="page 1")
    assert q.output("k", 2, wait=60.0) is None, "it has ended"
    assert q.dead_letters("k")[0].output == "page 1"
    with pytest.raises(ValueError, match="broken"), q.transaction(q.receive(1, keys=["k"])[0]) as tx:
        tx.output("never")
        raise ValueError("broken")
    assert q.output("k", 3) is None
    q.resolve("k", 3)
    assert q.output("k", 3, wait=60.0) is None


def test_a_lost_lease_keeps_the_output_of_the_other_holder(make: Opener, clock: FakeClock) -> None:
    q = make(output_seconds=60.0, lease_seconds=5.0)
    fill(q, "k", 1)
    (late,) = q.receive(keys=["k"])
    clock.advance(6.0)
    (d,) = q.receive(keys=["k"])
    with pytest.raises(LeaseLost):
        late.ack(output="late")
    assert q.output("k", 1) is None
    d.ack(output="in time")
    with pytest.raises(LeaseLost), q.transaction(late) as tx:
        tx.output("late")
    assert q.output("k", 1) == "in time"


def test_keyless_messages_are_found_by_their_receipts(make: Opener) -> None:
    q = make(output_seconds=60.0, keyless="random", shards=2)
    receipts = [q.send(b"%d" % n) for n in range(8)]
    assert {q.output(r) for r in receipts} == {None}
    while batch := q.receive():
        for d in batch:
            d.ack(output=f"of {d.body.decode()}")
    assert [q.output(r) for r in receipts] == [f"of {n}" for n in range(8)]


def test_an_output_of_any_length_is_kept_up_to_the_size_of_a_body(make: Opener) -> None:
    q = make(output_seconds=60.0, history="records", shards=1)
    fill(q, "k", 2)
    whole = "é" * 20_000
    first, second = q.receive(keys=["k"])
    first.ack(output=whole + "\ud800")
    q.configure(max_body_bytes=10)
    second.ack(output=whole)
    assert q.output("k", 1) == whole + "?"
    assert q.output("k", 2) == whole[:10]
    assert [r.output for r in q.history(key="k")] == [whole[:10_000], whole[:10]]


def test_purging_records_deletes_outputs(make: Opener) -> None:
    q = make(output_seconds=60.0)
    for key in ("a", "b"):
        fill(q, key, 3)
        for d in q.receive(keys=[key]):
            d.ack(output=f"{key}{d.seq}")
    q.purge("a")
    assert q.output("a", 1) == "a1"
    assert q.purge("a", history=True) == 0
    assert [q.output("a", n) for n in (1, 2, 3)] == [None] * 3
    assert [q.output("b", n) for n in (1, 2, 3)] == ["b1", "b2", "b3"]
    q.purge(history=True)
    assert [q.output("b", n) for n in (1, 2, 3)] == [None] * 3
    assert q.check() == []


def test_bad_input_is_refused(q: Queue) -> None:
    with pytest.raises(UnknownMessage):
        q.output("k", 1)
    (receipt,) = fill(q, "k", 1)
    with pytest.raises(UnknownMessage):
        q.output("k", 2)
    bad: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("k",), {}), (("k", 0), {}), (("k", True), {}), ((receipt, 1), {}), ((None, 1), {}), (("k", 1), {"wait": -1.0}),
        (("k", 1), {"wait": "1"}), (([], 1), {}),
    ]  # fmt: skip
    for args, options in bad:
        with pytest.raises(InvalidArgument):
            q.output(*args, **options)
    (d,) = q.receive(keys=["k"])
    for output in (b"bytes", 1):
        with pytest.raises(InvalidArgument):
            d.ack(output=output)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="a str"), q.transaction(d) as tx:
        tx.output(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="acks a delivery"), q.transaction(key="k") as tx:
        tx.output("nowhere")
    d.ack()
    for value in (-1.0, None, True, "1", float("inf")):
        with pytest.raises(ConfigError):
            q.configure(output_seconds=value)


def test_the_same_awaited(make: Opener) -> None:
    q = make(output_seconds=60.0, shards=1)
    q.close()
    if make.kind.in_memory:
        return

    async def run() -> None:
        async with strictq.open_async(make.path, clock=make.clock) as aq:
            receipts = [await aq.send(b"", key="k") for _ in range(3)]
            first, second, third = (await aq.receive(keys=["k"]))[:3]
            await first.ack(output="one")
            async with aq.transaction(second) as tx:
                tx.output("two")
            await aq.delivery(third.handle).ack(output="three")
            assert [await aq.output(r) for r in receipts] == ["one", "two", "three"]
            assert await aq.output("k", 1) == "one"
            with pytest.raises(UnknownMessage):
                await aq.output("k", 4)
            with pytest.raises(InvalidArgument):
                await aq.output("k")

    anyio.run(run)


def test_a_configuration_knows_whether_acks_leave_something() -> None:
    kept = [QueueConfig(), QueueConfig(output_seconds=1.0), QueueConfig(history="records")]
    assert [config.keeps_ends for config in kept] == [False, True, True]
