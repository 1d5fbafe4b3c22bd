"""Inside a transaction the queue object refuses every other write: it would stay where the transaction is undone."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import anyio
import pytest

import strictq
from strictq import AsyncQueue, Delivery, InvalidArgument, Message, Queue
from strictq.testing import awaited
from tests.support.queues import Opener, fill, seqs
from tests.support.running import PATIENCE_SECONDS

WRITES: dict[str, Callable[[Queue, Delivery], object]] = {
    "send": lambda q, d: q.send(b"", "other"),
    "send_many": lambda q, d: q.send_many([Message(b"", key="other")]),
    "receive": lambda q, d: q.receive(),
    "consume": lambda q, d: next(q.consume(wait=0.0)),
    "ack": lambda q, d: d.ack(),
    "nack": lambda q, d: d.nack(),
    "reject": lambda q, d: d.reject("no"),
    "start": lambda q, d: d.start(),
    "with": lambda q, d: d.__enter__(),
    "more": lambda q, d: d.lease.more(),
    "release a lease": lambda q, d: d.lease.release(),
    "ack_many": lambda q, d: q.ack_many([d]),
    "nack_many": lambda q, d: q.nack_many([d]),
    "reject by seq": lambda q, d: q.reject("k", 1, "no"),
    "redrive": lambda q, d: q.redrive(),
    "hold": lambda q, d: q.hold("k"),
    "release": lambda q, d: q.release("k"),
    "purge": lambda q, d: q.purge(),
    "purge_history": lambda q, d: q.purge_history(),
    "configure": lambda q, d: q.configure(max_attempts=2),
    "app_schema": lambda q, d: q.app_schema("CREATE TABLE app_t (a INTEGER) STRICT"),
    "reset_estimates": lambda q, d: q.reset_estimates(),
    "release_consumer": lambda q, d: q.release_consumer("etl"),
    "check, fixing": lambda q, d: q.check(fix=True),
    "transaction": lambda q, d: q.transaction(key="other").__enter__(),
    "transaction of the same": lambda q, d: q.transaction(d).__enter__(),
    "worker": lambda q, d: strictq.Worker(q, print).run(drain=True),
}
READS: dict[str, Callable[[Queue, Delivery], object]] = {
    "peek": lambda q, d: q.peek("k"),
    "stats": lambda q, d: q.stats(),
    "status": lambda q, d: q.status("k", 1),
    "explain": lambda q, d: q.explain("k"),
    "query": lambda q, d: q.query("SELECT 1"),
    "key_state": lambda q, d: d.key_state,
    "dead_letters": lambda q, d: q.dead_letters(),
    "check": lambda q, d: q.check(),
    "extend": lambda q, d: d.extend(60.0),
    "extend_many": lambda q, d: q.extend_many([d], 60.0),
}


class Boom(Exception):
    """What a handler of these tests raises."""


def take(q: Queue) -> Delivery:
    """The first of two messages of a key that one lease holds."""
    fill(q, "k", 2)
    return q.receive()[0]


def dump(q: Queue) -> Any:
    """What there is, as far as these writes could change it."""
    keys = [q.peek(key) for key in ("k", "other")]
    states = [(m.state, m.attempts) for m in (q.status("k", 1), q.status("k", 2))]
    return keys, states, q.config, q.explain("k").state


def test_a_send_that_is_not_of_the_transaction_is_refused(q: Queue) -> None:
    d = take(q)
    with pytest.raises(Boom), d, q.transaction(d):
        with pytest.raises(InvalidArgument, match=r"tx\.send"):
            q.send(b"next", "other")
        raise Boom
    assert q.peek("other") == []
    assert q.status("k", 1).state == "ready"


@pytest.mark.parametrize("name", WRITES)
def test_writes_are_refused_and_change_nothing(q: Queue, name: str) -> None:
    d = take(q)
    before = dump(q)
    with q.transaction(d) as tx:
        with pytest.raises(InvalidArgument, match="inside a transaction"):
            WRITES[name](q, d)
        assert dump(q) == before
        tx.send(b"next", "other")
    assert q.status("k", 1).state == "resolved"
    assert seqs(q.peek("other")) == [1]
    assert q.check() == []


@pytest.mark.parametrize("name", READS)
def test_reads_and_extensions_are_allowed(q: Queue, name: str) -> None:
    d = take(q)
    with q.transaction(d):
        READS[name](q, d)
    assert q.status("k", 1).state == "resolved"


def test_a_transaction_that_was_made_before_can_not_be_entered(q: Queue) -> None:
    one, two = q.transaction(key="a"), q.transaction(key="b")
    with one, pytest.raises(InvalidArgument, match="inside a transaction"):
        two.__enter__()
    with two as tx:
        tx.key_state = b"b"


@pytest.mark.parametrize("error", [None, Boom])
def test_the_queue_writes_again_after_the_block(q: Queue, error: type[Boom] | None) -> None:
    d = take(q)
    with ExitStack() as stack:
        if error is not None:
            stack.enter_context(pytest.raises(error))
        with q.transaction(d):
            if error is not None:
                raise error
    q.send(b"", "other")
    with q.transaction(key="k"):
        pass


def test_a_transaction_that_could_not_be_entered_leaves_the_queue_open(q: Queue) -> None:
    d = take(q)
    d.ack()
    with pytest.raises(strictq.LeaseLost):
        q.transaction(d).__enter__()
    q.send(b"", "other")


def test_the_queue_is_not_closed_under_a_transaction_that_has_not_written_yet(q: Queue) -> None:
    with q.transaction(key="k") as tx:
        tx.send(b"", "next")
        with pytest.raises(InvalidArgument, match="inside a transaction"):
            q.close()
    assert q.explain("next").depth == 1


def test_another_queue_object_is_not_concerned(disk: Opener) -> None:
    one, two = disk(), disk()
    with one.transaction(key="k"):
        two.send(b"", "k")
        with two.transaction(key="k") as inner:
            inner.send(b"", "other")
            with pytest.raises(InvalidArgument):
                one.send(b"", "k")
        two.send(b"", "k")
        with pytest.raises(InvalidArgument):
            one.send(b"", "k")
    assert seqs(one.peek("k")) == [1, 2]
    assert seqs(one.peek("other")) == [1]


def test_another_thread_is_not_concerned(q: Queue) -> None:
    with q.transaction(key="k"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(q.send, b"", "k").result().seq == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_that_was_forked_inside_may_write(disk: Opener) -> None:
    q = disk()
    with q.transaction(key="k"):
        child = multiprocessing.get_context("fork").Process(target=q.send, args=(b"", "other"))
        child.start()
        child.join(PATIENCE_SECONDS)
    assert child.exitcode == 0
    assert seqs(q.peek("other")) == [1]


# ---- awaited


def awaiting(q: Queue, run: Callable[[AsyncQueue], Awaitable[None]]) -> None:
    """Run it in asyncio."""

    async def main() -> None:
        await run(awaited(q))

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_awaited_writes_are_refused(q: Queue, backend: str) -> None:
    fill(q, "k", 1)

    async def run() -> None:
        aq = awaited(q)
        (d,) = await aq.receive()
        async with aq.transaction(d) as tx:
            for write in (
                lambda: aq.send(b"", "other"),
                lambda: aq.send_many([Message(b"", key="other")]),
                lambda: aq.receive(),
                lambda: d.ack(),
                lambda: d.nack(),
                lambda: aq.configure(max_attempts=2),
                lambda: aq.purge(),
                lambda: aq.transaction(key="other").__aenter__(),
            ):
                with pytest.raises(InvalidArgument, match="inside a transaction"):
                    await write()
            with pytest.raises(InvalidArgument, match="inside a transaction"):
                q.send(b"", "other")
            assert len(await aq.peek("k")) == 1
            await d.extend(60.0)
            tx.send(b"", "other")
        assert (await aq.send(b"", "other")).seq == 2

    anyio.run(run, backend=backend)


def test_a_task_that_was_started_inside_writes_when_the_transaction_is_over(q: Queue) -> None:
    async def run(aq: AsyncQueue) -> None:
        refused, over = asyncio.Event(), asyncio.Event()

        async def later() -> int:
            with pytest.raises(InvalidArgument):
                await aq.send(b"", "other")
            refused.set()
            await over.wait()
            async with aq.transaction(key="k") as tx:
                tx.send(b"", "other")
            return (await aq.send(b"", "other")).seq

        async with aq.transaction(key="k"):
            task = asyncio.create_task(later())
            await refused.wait()
        over.set()
        assert await task == 2

    awaiting(q, run)


def test_a_task_that_was_started_before_writes_meanwhile(q: Queue) -> None:
    async def run(aq: AsyncQueue) -> None:
        inside, written = asyncio.Event(), asyncio.Event()

        async def other() -> None:
            await inside.wait()
            await aq.send(b"", "other")
            written.set()

        task = asyncio.create_task(other())
        async with aq.transaction(key="k"):
            inside.set()
            await written.wait()
        await task

    awaiting(q, run)
    assert seqs(q.peek("other")) == [1]


@pytest.mark.own_messages("a worker receives from every key")
def test_a_worker_is_not_concerned(q: Queue) -> None:
    """Its handlers write through the queue as they like, and through the job together with the ack."""
    fill(q, "k", 3)

    def process(job: strictq.Job) -> None:
        q.send(b"at once", "log")
        job.send(b"with the ack", "out")

    strictq.Worker(q, process, keys=["k"]).run(drain=True)
    assert seqs(q.peek("out")) == seqs(q.peek("log")) == [1, 2, 3]
