"""The list that a receive returns: as a with block it leaves nothing in flight."""

from __future__ import annotations

import asyncio
import copy

import anyio
import pytest

from strictq import AsyncBatch, Batch, Queue
from strictq.testing import FakeClock, awaited
from tests.support.injection import refuse_writes
from tests.support.queues import Opener, fill, labels, seqs


class Boom(Exception):
    """What a handler of these tests raises."""


def states(q: Queue, key: str, count: int) -> list[tuple[str, int]]:
    """(state, attempts) of a key's first messages."""
    found = [q.status(key, seq) for seq in range(1, count + 1)]
    return [(m.state, m.attempts) for m in found]


def test_a_message_that_raises_leaves_none_of_its_batch_in_flight(q: Queue) -> None:
    for key in ("a", "b"):
        fill(q, key, 3)
    fill(q, "alone", 1)  # charged when it is received, because its lease holds nothing else
    with pytest.raises(Boom), q.receive() as batch:
        for d in batch:
            with d:
                if d.key == "b":
                    raise Boom("no")
    assert q.stats().in_flight == 0
    assert states(q, "a", 3) == [("resolved", 0)] * 3
    assert states(q, "b", 3) == [("ready", 1), ("ready", 0), ("ready", 0)]
    assert states(q, "alone", 1) == [("ready", 0)]
    assert q.status("b", 1).last_error == "Boom: no"
    assert sorted(labels(q.receive())) == [("alone", 1), ("b", 1), ("b", 2), ("b", 3)]
    assert q.check() == []


def test_what_was_never_started_is_released_uncharged(q: Queue) -> None:
    fill(q, "a", 2)
    fill(q, "b", 1)
    with pytest.raises(Boom), q.receive() as batch:
        batch[0].ack()
        raise Boom
    assert states(q, "a", 2) == [("resolved", 0), ("ready", 0)]
    assert states(q, "b", 1) == [("ready", 0)]


@pytest.mark.parametrize("way", ["start", "transaction"])
def test_what_was_started_and_not_settled_is_nacked(q: Queue, way: str) -> None:
    fill(q, "a", 3)
    with pytest.raises(Boom), q.receive() as batch:
        batch[0].ack()
        if way == "start":
            batch[1].start()
            raise Boom("why")
        with q.transaction(batch[1]):
            raise Boom("why")
    assert states(q, "a", 3) == [("resolved", 0), ("ready", 1), ("ready", 0)]
    assert q.status("a", 2).last_error == "Boom: why"


def test_a_start_behind_an_unstarted_message_gives_back_both(q: Queue) -> None:
    fill(q, "a", 3)
    with q.receive() as batch:
        batch[1].start()
    assert q.stats().in_flight == 0
    assert [attempts for _, attempts in states(q, "a", 3)] == [0, 1, 0]
    assert q.status("a", 2).last_error == "not settled when its batch ended"
    assert seqs(q.receive()) == [1, 2, 3]


def test_a_block_that_ends_well_gives_back_what_it_left(q: Queue) -> None:
    fill(q, "a", 3)
    with q.receive() as batch:
        batch[0].ack()
    assert seqs(q.receive()) == [2, 3]


def test_a_block_gives_back_what_it_took_out_of_the_list_in_any_order(q: Queue) -> None:
    fill(q, "a", 3)
    batch = q.receive()
    batch.reverse()
    with batch:
        while batch:
            batch.pop()
    assert q.stats().in_flight == 0


def test_a_block_that_settles_everything_writes_nothing_more(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(q, "a", 3)
    with q.receive() as batch:
        q.ack_many(batch)
        writes: list[int] = []
        refuse_writes(monkeypatch, writes.append)  # None: it is not refused
    assert writes == []
    assert q.stats().in_flight == 0


def test_leases_that_were_lost_meanwhile_are_left_to_their_new_holder(q: Queue, clock: FakeClock) -> None:
    fill(q, "a", 2)
    fill(q, "b", 2)
    with q.receive(lease_seconds=10.0) as late:
        late[0].start()
        late[2].start()
        clock.advance(11.0)
        taken = q.receive(keys=["a"]) + q.receive(keys=["a"])
    assert q.status("a", 1).state == "in_flight"
    for d in taken:
        d.ack()
    assert q.status("b", 1).state != "in_flight"


def test_a_give_back_that_fails_does_not_hide_the_error(disk: Opener) -> None:
    q = disk()
    fill(q, "a", 2)
    with pytest.raises(Boom), q.receive() as batch:
        batch[0].start()
        q.close()
        raise Boom
    assert disk().status("a", 1).state == "in_flight"


def test_a_lane_of_ack_first_is_free_when_the_block_ends(q: Queue) -> None:
    fill(q, "a", 3)
    with pytest.raises(Boom), q.receive(2, ack_first=True) as batch:
        batch[0].done()
        raise Boom
    assert seqs(q.receive()) == [3]


def test_without_a_block_it_stays_in_flight(q: Queue, clock: FakeClock) -> None:
    fill(q, "a", 1)
    q.receive()
    assert q.receive() == []
    clock.advance(31.0)
    assert seqs(q.receive()) == [1]


def test_it_is_a_list(q: Queue) -> None:
    assert q.receive() == []
    assert not q.receive()
    assert repr(q.receive()) == "[]"
    fill(q, "a", 3)
    batch = q.receive()
    assert isinstance(batch, Batch)
    assert isinstance(batch, list)
    assert batch == list(batch) == copy.copy(batch)
    assert seqs(batch[1:]) == [2, 3]
    assert len(batch) == 3
    assert batch[0] in batch
    assert repr(batch) == repr(list(batch))
    assert seqs(sorted(batch, key=lambda d: -d.seq)) == [3, 2, 1]
    assert seqs(batch + [batch[0]]) == [1, 2, 3, 1]  # noqa: RUF005 - this is about +


# ---- awaited


def test_an_async_batch_leaves_nothing_in_flight(q: Queue) -> None:
    fill(q, "a", 3)
    fill(q, "b", 1)

    async def run() -> None:
        aq = awaited(q)
        batch = await aq.receive()
        assert isinstance(batch, AsyncBatch)
        async with batch:
            for d in batch:
                async with d:
                    if d.seq == 2:
                        raise Boom("no")

    with pytest.raises(Boom):
        anyio.run(run)
    assert states(q, "a", 3) == [("resolved", 0), ("ready", 1), ("ready", 0)]
    assert states(q, "b", 1) == [("ready", 0)]


def test_a_cancelled_async_batch_leaves_nothing_in_flight(q: Queue) -> None:
    fill(q, "a", 3)

    async def run() -> None:
        inside = asyncio.Event()

        async def work() -> None:
            async with await awaited(q).receive():
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert states(q, "a", 3) == [("ready", 0)] * 3


def test_an_async_receive_of_nothing_is_an_empty_batch(q: Queue) -> None:
    async def run() -> None:
        async with await awaited(q).receive() as batch:
            assert batch == []

    anyio.run(run)
