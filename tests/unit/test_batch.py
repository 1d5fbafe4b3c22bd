"""What a receive returns: a sequence that is settled whole, and as a with block leaves nothing in flight."""

from __future__ import annotations

import asyncio
import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from strictq import AsyncBatch, Batch, InvalidArgument, LeaseLost, Message, PartialFailure, Queue, StoreBusy
from strictq._client.leased import ACKED, OPEN
from strictq._store.api import Claimed, Lost, Storage
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


def test_it_does_what_a_list_does(q: Queue) -> None:
    assert q.receive() == []
    assert not q.receive()
    assert repr(q.receive()) == "[]"
    fill(q, "a", 3)
    batch = q.receive()
    assert isinstance(batch, Batch)
    assert batch == list(batch) == copy.copy(batch) == batch.copy()
    assert seqs(batch[1:]) == [2, 3]
    assert len(batch) == 3
    assert batch[0] in batch
    assert repr(batch) == repr(list(batch))
    assert seqs(sorted(batch, key=lambda d: -d.seq)) == [3, 2, 1]
    assert seqs(batch + [batch[0]]) == [1, 2, 3, 1]  # noqa: RUF005 - this is about +


# ---- settled whole


def is_untouched(batch: Batch) -> bool:
    """Whether no delivery of it was made."""
    return batch._elements is None


@pytest.fixture(params=["disk", "memory"])
def stored(request: pytest.FixtureRequest, disk: Opener, make: Opener) -> Queue:
    """A queue of two shards, on disk or in memory."""
    if request.param == "memory":
        return make(shards=2)
    return disk(shards=2)


KEYS = [f"k{n}" for n in range(12)]


def send_to_all(q: Queue, count: int = 2, body: bytes = b"") -> None:
    q.send_many([Message(body, key=key) for _ in range(count) for key in KEYS])


def test_a_batch_that_nobody_looked_into_is_acked_whole(stored: Queue) -> None:
    send_to_all(stored)
    batch = stored.receive(100)
    assert batch
    assert len(batch) == 24
    stored.ack_many(batch)
    assert is_untouched(batch)
    assert stored.stats().depth == 0
    stored.ack_many(Batch(stored._client, batch._request, batch._leased))  # again, under the same tokens
    assert {d._state for d in batch} == {ACKED}
    with pytest.raises(LeaseLost, match="already acked"):
        batch[0].ack()
    with pytest.raises(PartialFailure):
        stored.ack_many(batch)
    assert stored.receive() == []
    assert stored.check() == []


def test_an_unused_batch_is_released_by_its_block(stored: Queue) -> None:
    send_to_all(stored)
    with stored.receive(100):
        pass
    assert stored.stats().in_flight == 0
    assert {m.attempts for key in KEYS for m in stored.peek(key)} == {0}
    with stored.receive(100) as batch:
        stored.ack_many(batch)
    assert is_untouched(batch)
    assert stored.stats().depth == 0


def test_a_batch_that_was_read_is_acked_whole(stored: Queue) -> None:
    send_to_all(stored, body=b"x" * 2_000)  # too large for the table of messages
    batch = stored.receive(100)
    assert {d.body for d in batch} == {b"x" * 2_000}
    batch.sort(key=lambda d: d.seq)
    batch.reverse()
    stored.ack_many(batch)
    assert {d._state for d in batch} == {ACKED}
    assert stored.stats().depth == 0
    assert stored.check() == []


def test_only_what_is_in_the_list_is_acked(stored: Queue) -> None:
    send_to_all(stored)
    batch = stored.receive(100)
    kept = batch.pop(0)
    batch.remove(batch[3])
    with batch:
        stored.ack_many(batch)
    assert stored.stats().depth == 2
    kept.ack()
    assert stored.stats().depth == 1


def test_what_was_settled_before_is_reported_and_the_rest_acked(stored: Queue) -> None:
    send_to_all(stored)
    batch = stored.receive(100)
    batch[0].ack()
    with pytest.raises(PartialFailure) as failed:
        stored.ack_many(batch)
    assert [r is None for r in failed.value.results] == [False] + [True] * 23
    assert stored.stats().depth == 0


def test_what_a_lease_took_in_later_is_not_acked_with_the_batch(stored: Queue) -> None:
    fill(stored, "a", 2)
    batch = stored.receive()
    fill(stored, "a", 2)
    (third, fourth) = batch[0].lease.more()
    stored.ack_many(batch)
    assert [(third._state, fourth._state), stored.stats().in_flight] == [(OPEN, OPEN), 2]
    stored.ack_many([third, fourth])
    assert stored.stats().depth == 0


def test_lost_leases_of_an_unused_batch_are_reported_in_their_places(stored: Queue, clock: FakeClock) -> None:
    send_to_all(stored)
    batch = stored.receive(100, lease_seconds=10.0)
    clock.advance(11.0)
    taken = stored.receive(keys=["k3"])
    with pytest.raises(PartialFailure) as failed:
        stored.ack_many(batch)
    assert [(d.key, d._state) for d, r in zip(batch, failed.value.results, strict=True) if r is not None] == [("k3", OPEN)] * 2
    assert stored.stats().depth == 2
    stored.ack_many(taken)
    assert stored.check() == []


def test_a_failed_shard_leaves_its_deliveries_open(stored: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    send_to_all(stored)
    batch = stored.receive(100)
    ack = Storage.ack_claimed

    def of_one_shard(storage: Storage, claimed: Claimed) -> list[Lost]:
        if claimed.shard == 0:
            raise StoreBusy("held elsewhere", shard=0)
        return ack(storage, claimed)

    with monkeypatch.context() as patched, pytest.raises(PartialFailure) as failed:
        patched.setattr(Storage, "ack_claimed", of_one_shard)
        stored.ack_many(batch)
    assert {(d.shard, d._state, r is None) for d, r in zip(batch, failed.value.results, strict=True)} == {
        (0, OPEN, False), (1, ACKED, True),
    }  # fmt: skip
    stored.ack_many([d for d in batch if d._state == OPEN])
    assert stored.stats().depth == 0


def test_another_queue_object_refuses_a_batch(disk: Opener) -> None:
    q = disk()
    fill(q, "a", 2)
    batch = q.receive()
    with pytest.raises(InvalidArgument, match="another queue object"):
        disk().ack_many(batch)
    q.ack_many(batch)


def test_a_batch_of_ack_first_has_nothing_to_ack(stored: Queue) -> None:
    fill(stored, "a", 2)
    batch = stored.receive(ack_first=True)
    with pytest.raises(PartialFailure):
        stored.ack_many(batch)


def test_messages_with_gaps_between_them_are_acked_whole(stored: Queue) -> None:
    fill(stored, "a", 4)
    with stored.receive() as batch:
        batch[1].ack()
    again = stored.receive()
    assert seqs(again) == [1, 3, 4]
    stored.ack_many(again)
    assert stored.stats().depth == 0
    fill(stored, "a", 1)
    assert seqs(stored.receive()) == [5]


def test_two_threads_that_use_a_batch_first_get_the_same_deliveries(q: Queue) -> None:
    fill(q, "a", 50)
    batch = q.receive(50)
    start = threading.Barrier(4)

    def look() -> list[int]:
        start.wait()
        return [id(d) for d in batch]

    with ThreadPoolExecutor(4) as pool:
        looks = [future.result() for future in [pool.submit(look) for _ in range(4)]]
    assert looks == looks[:1] * 4


def test_deliveries_made_while_the_batch_is_acked_are_acked(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(q, "a", 3)
    batch = q.receive()
    ack = Storage.ack_claimed

    def meanwhile(storage: Storage, claimed: Claimed) -> list[Lost]:
        assert len(list(batch)) == 3
        return ack(storage, claimed)

    monkeypatch.setattr(Storage, "ack_claimed", meanwhile)
    q.ack_many(batch)
    assert {d._state for d in batch} == {ACKED}


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


def test_an_async_batch_is_acked_whole(q: Queue) -> None:
    fill(q, "a", 3)

    async def run() -> None:
        aq = awaited(q)
        batch = await aq.receive()
        await aq.ack_many(batch)
        assert batch._elements is None
        with pytest.raises(LeaseLost, match="already acked"):
            await batch[0].ack()
        fill(q, "a", 3)
        async with await aq.receive() as batch:
            del batch[0]
            await aq.ack_many(batch)
        assert seqs(await aq.receive()) == [4]

    anyio.run(run)


def test_a_batch_that_was_given_back_elsewhere_and_taken_again_is_refused(disk: Opener) -> None:
    q = disk()
    for key in ("a", "b"):
        q.send(b"", key=key)
    batch = q.receive(10)
    q._storage.release(0, [held.all() for claimed in batch._leased for held in claimed.leases])  # as another process may
    again = q.receive(10)
    with pytest.raises((LeaseLost, PartialFailure)):
        q.ack_many(batch)
    assert q.stats().in_flight == 2
    q.ack_many(again)
    assert q.stats().depth == 0
