"""Workers on a remote queue, with their threads: what becomes of messages when something is wrong with it or its endpoint."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import strictq
from strictq import (
    Breaker,
    Defer,
    Event,
    ForkedProcess,
    QueueClosed,
    QueueNotFound,
    Reject,
    RemoteQueue,
    Retry,
    ServerRefused,
    Worker,
)
from strictq.testing import RunningClock
from tests.support.fake_sqs import (
    ACCESS_DENIED,
    EXPIRED_TOKEN,
    NO_CREDENTIALS,
    THROTTLED,
    UNREACHABLE,
    FakeSqs,
    Fault,
    entries_fail,
    entries_missing,
)
from tests.support.running import PATIENCE_SECONDS, until
from tests.worker import handlers

OPTIONS: dict[str, Any] = {"poll_seconds": 1, "lease_seconds": 30}


@pytest.fixture
def sqs() -> FakeSqs:
    return FakeSqs(RunningClock())


def connected(sqs: FakeSqs, name: str = "o.fifo", **attributes: Any) -> RemoteQueue:
    return strictq.connect(sqs.queue(name, **attributes), client=sqs, clock=sqs.clock, **OPTIONS)


def send(sqs: FakeSqs, q: RemoteQueue, *bodies: str, group: str = "g", **more: Any) -> None:
    for body in bodies:
        fifo = {"MessageGroupId": group, "MessageDeduplicationId": f"{group}-{body}"} if q.is_fifo else {}
        sqs.send_message(QueueUrl=q.queue_id, MessageBody=body, **fifo, **more)


@contextmanager
def working(sqs: FakeSqs, q: Any, process: Callable[[Any], object], **options: Any) -> Iterator[Worker]:
    """Run a worker in a thread until the block ends. Raise what ended its run."""
    worker = Worker(q, process, **options)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as e:
            raised.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        while thread.is_alive():
            sqs.end_polls()
            thread.join(0.02)
    if raised:
        raise raised[0]


class Handled:
    """A handler that notes what it was called with."""

    def __init__(self, then: Callable[[Any], object] = lambda _job: None) -> None:
        self.bodies: list[str] = []
        self._then = then

    def __call__(self, job: Any) -> None:
        self.bodies.append(job.body.decode())
        self._then(job)


def ended(worker: Worker, n: int) -> Callable[[], bool]:
    """Return whether so many acks are confirmed."""
    return lambda: worker.stats().acked >= n


# ---- what goes wrong for a while


@pytest.mark.parametrize(
    "fault",
    [EXPIRED_TOKEN, NO_CREDENTIALS, THROTTLED, UNREACHABLE, ACCESS_DENIED],
    ids=["expired", "no credentials", "throttled", "unreachable", "denied for a while"],
)
def test_nothing_is_lost_in_an_outage_of_the_endpoint(sqs: FakeSqs, fault: Fault) -> None:
    q = connected(sqs)
    events: list[Event] = []
    seen: list[str] = []
    q.on_event(events.append)
    handled = Handled()
    send(sqs, q, *(f"{n}" for n in range(5)))
    with working(sqs, q, handled, on_event=lambda e: seen.append(e.kind)) as worker:
        until(ended(worker, 5))
        sqs.inject(fault, times=math.inf)
        sqs.end_polls()
        until(lambda: "worker_source_failed" in seen)
        sqs.heal()
        send(sqs, q, *(f"{n}" for n in range(5, 10)))
        until(ended(worker, 10))
        until(lambda: "worker_source_works" in seen)
    assert handled.bodies == [f"{n}" for n in range(10)]
    kinds = [event.kind for event in events]
    assert kinds[0] == "worker_started"
    assert "worker_source_failed" in kinds
    assert "worker_source_works" in kinds


def test_random_faults_lose_nothing_and_keep_the_order(sqs: FakeSqs) -> None:
    """Every third call is throttled, has an entry that fails, or one that its answer does not mention."""
    q = connected(sqs)
    faults = [THROTTLED, entries_fail(0), entries_missing(0, happen=True)]
    calls = iter(range(10**6))

    def choose(action: str, _parameters: Any) -> Fault | None:
        n = next(calls)
        fault = faults[n // 3 % 3]
        return fault if n % 3 == 0 and (action.endswith("_batch") or fault is THROTTLED) else None

    handled: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for n in range(12):
        for group in handled:
            send(sqs, q, str(n), group=group)
    sqs.choose = choose
    with working(sqs, q, lambda job: handled[job.key].append(int(job.body)), concurrency=3) as worker:
        until(ended(worker, 36))
        sqs.heal()
    assert handled == {group: list(range(12)) for group in "abc"}
    assert sqs.bodies(q.queue_id) == []


@pytest.mark.slow
def test_an_outage_of_a_dependency_makes_no_dead_letters(sqs: FakeSqs) -> None:
    """5.4 (seen: 8 dead letters although the breaker was open)."""
    q = connected(sqs, RedrivePolicy=sqs.dead_letters("d.fifo", 5))
    down, failures = threading.Event(), 0
    down.set()

    def process(_job: Any) -> None:
        nonlocal failures
        if down.is_set():
            failures += 1
            raise ConnectionError("the database is down")

    for group in "abcdef":
        send(sqs, q, "1", "2", group=group)
    breaker = Breaker(starts_min=4, probe_seconds=0.02, probe_seconds_max=0.05)
    with working(sqs, q, process, concurrency=3, breaker=breaker) as worker:
        until(lambda: failures >= 30)
        down.clear()
        until(ended(worker, 12))
    assert sqs.bodies(sqs.get_queue_url(QueueName="d.fifo")["QueueUrl"]) == []


# ---- what ends a run


def test_a_queue_that_is_deleted_ends_the_run(sqs: FakeSqs) -> None:
    q = connected(sqs)
    with pytest.raises(QueueNotFound) as caught, working(sqs, q, handlers.nothing) as worker:
        until(lambda: sqs.made("receive_message"))
        sqs.delete_queue(QueueUrl=q.queue_id)
        sqs.end_polls()
        until(lambda: worker._keeper is not None and worker._keeper.crash is not None)
    assert caught.value.hint_code == "remote_queue"


@pytest.mark.parametrize(
    ("action", "permission"), [("receive_message", "sqs:ReceiveMessage"), ("delete_message_batch", "sqs:DeleteMessage")]
)
def test_a_permission_that_was_never_there_ends_the_run(sqs: FakeSqs, action: str, permission: str) -> None:
    q = connected(sqs)
    handled = Handled()
    send(sqs, q, "1")
    sqs.inject(ACCESS_DENIED, action, times=math.inf)
    with pytest.raises(ServerRefused) as caught, working(sqs, q, handled) as worker:
        until(lambda: worker._keeper is not None and worker._keeper.crash is not None)
    assert permission in caught.value.hint
    assert len(handled.bodies) <= 1


def test_a_defect_of_the_client_ends_the_run(sqs: FakeSqs) -> None:
    q = connected(sqs)
    sqs.choose = lambda action, _: 1 / 0 if action == "receive_message" else None  # type: ignore[return-value]
    with pytest.raises(ZeroDivisionError), working(sqs, q, handlers.nothing) as worker:
        until(lambda: worker._keeper is not None and worker._keeper.crash is not None)


def test_a_queue_that_is_closed_ends_the_run(sqs: FakeSqs) -> None:
    q = connected(sqs)
    with pytest.raises(QueueClosed), working(sqs, q, handlers.nothing) as worker:
        until(lambda: sqs.made("receive_message"))
        q.close()
        sqs.end_polls()
        until(lambda: worker._keeper is not None and worker._keeper.crash is not None)


def test_a_worker_in_a_child_of_a_fork(sqs: FakeSqs, monkeypatch: pytest.MonkeyPatch) -> None:
    q = connected(sqs)
    worker = Worker(q, handlers.nothing)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ForkedProcess):
        worker.run()
    with pytest.raises(ForkedProcess):
        Worker(q, handlers.nothing)


def test_a_stop_with_the_endpoint_down_ends(sqs: FakeSqs) -> None:
    q = connected(sqs)
    send(sqs, q, "1", "2")
    entered, leave = threading.Event(), threading.Event()

    def process(_job: Any) -> None:
        entered.set()
        leave.wait(PATIENCE_SECONDS)

    with working(sqs, q, process) as worker:
        assert entered.wait(PATIENCE_SECONDS)
        sqs.inject(UNREACHABLE, times=math.inf)
        worker.stop()
        leave.set()
    sqs.heal()
    assert sqs.bodies(q.queue_id) == ["1", "2"]  # they come back when their leases end


# ---- outcomes of handlers


def test_outcomes_of_handlers(sqs: FakeSqs) -> None:
    q = connected(sqs, RedrivePolicy=sqs.dead_letters("d.fifo", 10))
    order: list[str] = []

    def process(job: Any) -> None:
        body = job.body.decode()
        order.append(body)
        if body == "retry" and job.attempt == 1:
            raise Retry(0.0)
        if body == "defer" and order.count("defer") == 1:
            raise Defer(0.01)
        if body == "reject":
            raise Reject("not an order")

    send(sqs, q, "first", "retry", "defer", "reject", "last")
    with working(sqs, q, process) as worker:
        until(ended(worker, 4))
        until(lambda: worker.stats().rejected == 1)
        stats = worker.stats()
    assert order == ["first", "retry", "retry", "defer", "defer", "reject", "last"]
    assert (stats.acked, stats.retried, stats.deferred, stats.rejected) == (4, 1, 1, 1)
    (letter,) = sqs.stored(sqs.get_queue_url(QueueName="d.fifo")["QueueUrl"])
    assert letter.body == "reject"
    assert letter.content.attributes is not None
    assert letter.content.attributes["strictq-reason"]["StringValue"] == "not an order"


def test_a_later_message_waits_until_a_dead_letter_was_sent(sqs: FakeSqs) -> None:
    q = connected(sqs, RedrivePolicy=sqs.dead_letters("d.fifo", 10))
    gate, order = threading.Event(), []

    def process(job: Any) -> None:
        order.append(job.body.decode())
        if job.body == b"1":
            raise Reject("why")

    send(sqs, q, "1", "2")
    sqs.inject(Fault(before=lambda: gate.wait(PATIENCE_SECONDS)), "send_message")
    with working(sqs, q, process) as worker:
        until(lambda: sqs.made("send_message")[2:])
        assert order == ["1"]
        gate.set()
        until(ended(worker, 1))
    assert order == ["1", "2"]


def test_a_message_that_cannot_be_decoded_is_a_dead_letter(sqs: FakeSqs) -> None:
    q = connected(sqs, RedrivePolicy=sqs.dead_letters("d.fifo", 10))
    handled = Handled()
    send(sqs, q, "%%%", MessageAttributes={"strictq-encoding": {"DataType": "String", "StringValue": "base64"}})
    send(sqs, q, "fine")
    with working(sqs, q, handled) as worker:
        until(ended(worker, 1))
        until(lambda: worker.stats().rejected == 1)
    assert handled.bodies == ["fine"]
    assert sqs.bodies(sqs.get_queue_url(QueueName="d.fifo")["QueueUrl"]) == ["%%%"]


# ---- kinds of workers


def test_an_async_handler(sqs: FakeSqs) -> None:
    q = connected(sqs)
    bodies: list[bytes] = []

    async def process(job: Any) -> None:
        await asyncio.sleep(0)
        bodies.append(job.body)

    send(sqs, q, "1", "2", "3")
    with working(sqs, q, process) as worker:
        until(ended(worker, 3))
    assert bodies == [b"1", b"2", b"3"]


def test_a_worker_takes_the_async_twin_and_several_queues(sqs: FakeSqs) -> None:
    handled = Handled()
    here = strictq.open(":memory:")
    here.send(b"local", key="k")
    url = sqs.queue("o.fifo")

    async def main() -> None:
        async with strictq.connect_async(url, client=sqs, clock=sqs.clock, **OPTIONS) as q:
            send(sqs, q.sync, "remote")
            worker = Worker([here, q], handled)  # type: ignore[list-item]
            task = asyncio.create_task(worker.serve())
            while worker.stats().acked < 2:
                await asyncio.sleep(0.01)
            worker.stop()
            while not task.done():
                sqs.end_polls()
                await asyncio.sleep(0.01)
            await task

    asyncio.run(main())
    assert sorted(handled.bodies) == ["local", "remote"]


def test_a_standard_queue_runs_its_messages_in_parallel(sqs: FakeSqs) -> None:
    q = connected(sqs, "o")
    barrier = threading.Barrier(3)
    send(sqs, q, "1", "2", "3")
    with working(sqs, q, lambda _job: barrier.wait(PATIENCE_SECONDS), concurrency=3) as worker:
        until(ended(worker, 3))
    assert sqs.bodies(q.queue_id) == []


def test_behind_starts_the_next_message_before_the_delete_is_confirmed(sqs: FakeSqs) -> None:
    gate, second = threading.Event(), threading.Event()
    url = sqs.queue("o.fifo")
    for confirm in ("before_next", "behind"):
        q = strictq.connect(url, client=sqs, clock=sqs.clock, confirm=confirm, **OPTIONS)  # type: ignore[arg-type]
        gate.clear()
        second.clear()
        send(sqs, q, "1", "2", group=confirm)
        sqs.inject(Fault(before=lambda: gate.wait(PATIENCE_SECONDS)), "delete_message_batch")
        with working(sqs, q, lambda job: second.set() if job.body == b"2" else None) as worker:
            until(lambda: any(call.ended is None for call in sqs.made("delete_message_batch")))
            if confirm == "behind":
                assert second.wait(PATIENCE_SECONDS)
            else:
                assert not second.is_set()
            gate.set()
            until(ended(worker, 2))
        assert second.is_set()
