"""An operator settles a message in the place of its consumer: `reject(..., force=True)` and `resolve`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import strictq
from strictq import Event, InvalidArgument, LeaseLost, Queue, ReadOnlyQueue, UnknownMessage
from strictq.testing import FakeClock
from tests.support.queues import Opener, drain, fill, labels, seqs
from tests.support.recorded_batches import holder, read
from tests.support.running import PATIENCE_SECONDS

Settle = Callable[[Queue, str, int], bool]

FORCED: dict[str, Settle] = {
    "reject": lambda q, key, seq: q.reject(key, seq, "it hangs", force=True),
    "resolve": lambda q, key, seq: q.resolve(key, seq),
}


@pytest.fixture(params=FORCED)
def verb(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def queue(make: Opener) -> Queue:
    return make(max_attempts=5)


def outcomes(q: Queue) -> tuple[int, int, int]:
    """Return the acks, the rejected messages, and the depth."""
    s = q.stats()
    return s.acks, s.rejected, s.depth


@pytest.mark.own_messages("acks of the queue")
@pytest.mark.parametrize("seq", [1, 2, 3])
def test_a_held_message_is_settled_and_its_lease_ends(queue: Queue, verb: str, seq: int) -> None:
    q = queue
    fill(q, "k", 4)
    fill(q, "other", 1)
    held = q.receive(3, keys=["k"])
    held[0].start()
    (other,) = q.receive(1, keys=["other"])
    with pytest.raises(InvalidArgument, match="is held by") as refused:
        q.reject("k", seq, "it hangs")
    assert "force=True" in refused.value.hint
    assert FORCED[verb](q, "k", seq) is True
    assert outcomes(q) == ((1, 0, 4) if verb == "resolve" else (0, 1, 4))
    assert [(d.seq, d.kind, d.reason, d.attempts) for d in q.dead_letters()] == (
        [(seq, "rejected", "it hangs", int(seq == 1))] if verb == "reject" else []
    )
    assert FORCED[verb](q, "k", seq) is False, "it is resolved"
    for d in held:
        settlements: list[Callable[[], Any]] = [
            d.ack, d.nack, lambda d=d: d.reject("no"), lambda d=d: d.extend(9.0), lambda d=d: d.defer(1.0),
        ]  # fmt: skip
        for late in settlements:
            with pytest.raises(LeaseLost) as lost:
                late()
            assert "settled by another process" in lost.value.hint
    other.ack()
    again = q.receive(10)
    assert labels(again) == [("k", n) for n in (1, 2, 3, 4) if n != seq]
    assert {d.attempt for d in again} == {1}, "the lease ended uncharged"
    assert again[0].token > held[0].token
    q.ack_many(again)
    assert q.check() == []


def test_messages_that_no_lease_holds(queue: Queue, verb: str, clock: FakeClock) -> None:
    q = queue
    fill(q, "k", 5)
    assert FORCED[verb](q, "k", 2) is True
    (d,) = q.receive(1)
    assert FORCED[verb](q, "k", 3) is True, "behind the lease"
    d.ack()
    held = q.receive(1)
    assert seqs(held) == [4]
    held[0].start()
    clock.advance(100.0)
    assert FORCED[verb](q, "k", 4) is True, "the lease has run out"
    assert [d.attempts for d in q.dead_letters()] == ([0, 0, 1] if verb == "reject" else [])
    with pytest.raises(LeaseLost):
        held[0].ack()
    assert drain(q) == [("k", 5)]
    assert FORCED[verb](q, "k", 1) is False
    for seq in (6, 10**6):
        with pytest.raises(UnknownMessage):
            FORCED[verb](q, "k", seq)
    with pytest.raises(UnknownMessage):
        FORCED[verb](q, "never", 1)
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(InvalidArgument):
            FORCED[verb](q, "k", wrong)  # type: ignore[arg-type]
    assert q.check() == []


def test_an_ack_before_it_can_still_be_repeated(queue: Queue, verb: str) -> None:
    q = queue
    fill(q, "k", 3)
    first, second, _ = q.receive(3)
    handle = first.handle
    first.ack()
    FORCED[verb](q, "k", 2)
    q.delivery(handle).ack()
    with pytest.raises(LeaseLost):
        second.ack()
    assert drain(q) == [("k", 3)]


def test_a_held_key_stays_held_and_waiting_redrives_return(queue: Queue, verb: str) -> None:
    q = queue
    fill(q, "k", 3)
    q.receive(1)[0].reject("no")
    q.receive(2)
    assert q.redrive("k") == 1
    q.hold("k", "wait")
    assert FORCED[verb](q, "k", 2) is True
    assert q.receive(10) == []
    q.release("k")
    assert drain(q) == [("k", 1), ("k", 3)]
    assert q.check() == []


def test_a_resolved_on_receive_message_is_resolved(queue: Queue, verb: str) -> None:
    fill(queue, "k", 2)
    (d,) = queue.receive(1, ack_first=True)
    assert FORCED[verb](queue, "k", 1) is False
    assert FORCED[verb](queue, "k", 2) is True
    d.done()
    assert drain(queue) == []


def test_a_transaction_of_the_holder_has_no_effect(queue: Queue, verb: str) -> None:
    fill(queue, "k", 1)
    (d,) = queue.receive(1)
    FORCED[verb](queue, "k", 1)
    with pytest.raises(LeaseLost), queue.transaction(d) as tx:
        tx.send(b"effect", key="effects")
    assert queue.peek("effects") == []


@pytest.mark.one_shard("the history of the first shard")
def test_events_and_history(make: Opener, verb: str) -> None:
    events: list[Event] = []
    q = make(on_event=events.append, history="bodies")
    fill(q, "k", 2)
    d = q.receive(2)[0]
    d.start()
    FORCED[verb](q, "k", 1)
    kinds = ["lease_lost"] + ["dead_letter"] * (verb == "reject")
    assert [(e.kind, e.key, e.seq) for e in events] == [(kind, "k", 1) for kind in kinds]
    assert events[0].token == d.token
    (record,) = q.history()
    assert (record.seq, record.outcome, record.attempts) == (1, "acked" if verb == "resolve" else "rejected", 1)


def test_a_named_consumers_batch_is_read_without_it(disk: Opener) -> None:
    q = disk()
    fill(q, "a", 3)
    h = holder(q)
    h.take(0)
    assert q.resolve("a", 2) is True
    assert h.take(0) == 1
    assert read(q, h, 1) == [("sa", 1, "1"), ("sa", 3, "3")]
    assert outcomes(q) == (1, 0, 2)
    h.take(1)
    h.ack(1)
    assert outcomes(q) == (3, 0, 0)
    assert q.check() == []


def test_another_process_may_settle_and_a_reader_may_not(disk: Opener, verb: str) -> None:
    q = disk()
    fill(q, "k", 2)
    held = q.receive(2)
    other = disk.open(durability=None)
    assert FORCED[verb](other, "k", 1) is True
    with pytest.raises(LeaseLost):
        held[0].ack()
    reader = disk.open(read_only=True, durability=None)
    with pytest.raises(ReadOnlyQueue):
        FORCED[verb](reader, "k", 2)
    assert drain(q) == [("k", 2)]
    assert disk.open(durability=None).check() == []


def test_asynchronously(make: Opener) -> None:
    path = make.path

    async def run() -> None:
        async with strictq.open_async(path, clock=make.clock) as q:
            for n in range(3):
                await q.send(b"%d" % n, key="k")
            held = await q.receive(3)
            assert await q.resolve("k", 1) is True
            with pytest.raises(LeaseLost):
                await held[0].ack()
            (again, *_) = await q.receive(3)
            assert await q.reject("k", again.seq, "it hangs", force=True) is True
            assert [d.seq for d in await q.dead_letters()] == [2]

    asyncio.run(run())


def test_a_worker_whose_handler_hangs_loses_the_job_and_goes_on(disk: Opener, verb: str) -> None:
    """Its lease is extended for ever, so nothing else ends it."""
    with strictq.open(disk.path, config=strictq.QueueConfig(lease_seconds=1.0)) as q:
        fill(q, "k", 2)
        started, freed = threading.Event(), threading.Event()
        lost: list[int] = []
        done: list[tuple[int, bytes]] = []

        def process(job: strictq.Job) -> None:
            if job.seq == 1:
                started.set()
                while not job.cancelled:
                    freed.wait(0.01)
                freed.set()
                job.send(b"effect", key="effects")
            done.append((job.seq, job.body))

        def heard(event: Any) -> None:
            if event.kind == "lost":
                lost.append(event.seq)

        worker = strictq.Worker(q, process, concurrency=2, on_event=heard)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            assert started.wait(PATIENCE_SECONDS)
            assert FORCED[verb](q, "k", 1) is True
            assert freed.wait(PATIENCE_SECONDS), "the worker notices at its next extension"
            ended = threading.Event()
            while q.stats().depth and not ended.wait(0.01):
                pass
        finally:
            freed.set()
            worker.stop()
            thread.join()
        assert done == [(2, b"2")]
        assert set(lost) == {1}
        assert q.peek("effects") == []
        assert q.check() == []
