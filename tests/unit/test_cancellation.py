"""Interrupts and cancellation: whoever is stopped at the worst moment leaves nothing behind, and nobody waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

import strictq
from tests.support.running import PATIENCE_SECONDS, run_python

INTERRUPTED = """
import random, signal, sys, threading
import strictq

class Interrupt(BaseException):
    pass

def interrupt(*_):
    raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
q = strictq.open(sys.argv[1], durability=sys.argv[2])
dice = random.Random(7)
interrupts = 0
for _ in range(600):
    try:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.00002, 0.0006))
        q.send(b"", "k")
        for d in q.receive(3):
            d.ack()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        interrupts += 1
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            interrupts += 1
other = threading.Thread(target=lambda: q.send(b"last", "k"), daemon=True)
other.start()
other.join(30)
assert not other.is_alive(), "the shard waits for somebody who is gone"
assert interrupts > 100, interrupts
assert q.check() == []
print("alive")
"""


@pytest.mark.parametrize("durability", ["full", "process"])
def test_interrupts_at_any_moment_leave_the_shard_to_others(tmp_path: Path, durability: str) -> None:
    assert run_python(INTERRUPTED, tmp_path / "queue", durability) == "alive\n"


def test_a_cancelled_async_transaction_writes_nothing() -> None:
    async def main() -> list:
        async with strictq.open_async(":memory:") as q:
            await q.app_schema("CREATE TABLE app_t (x TEXT) STRICT")

            def late(db):
                time.sleep(0.3)
                db.execute("INSERT INTO app_t VALUES ('cancelled')")

            async def first() -> None:
                async with q.transaction(key="k") as tx:
                    await tx.run(late)

            task = asyncio.create_task(first())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with q.transaction(key="k") as tx:
                await tx.run(lambda db: time.sleep(0.4))
            return await q.query("SELECT x FROM app_t")

    assert asyncio.run(main()) == []


def test_a_receive_that_asyncio_cancels_gives_back(monkeypatch) -> None:
    async def main() -> str:
        async with strictq.open_async(":memory:") as q:
            await q.send(b"", "k")
            storage: Any = q.sync._storage
            receive = storage.receive
            monkeypatch.setattr(storage, "receive", lambda *a, **options: (receive(*a, **options), time.sleep(0.3))[0])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(q.receive(), 0.1)
            await asyncio.sleep(0.4)
            return (await q.explain("k")).state

    assert asyncio.run(main()) == "ready"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_open_async_transaction_does_not_refuse_other_tasks(backend) -> None:
    async def main() -> None:
        async with strictq.open_async(":memory:") as q:

            async def hold() -> None:
                async with q.transaction(key="k") as tx:
                    await tx.run(lambda db: None)
                    await anyio.sleep(0.2)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hold)
                await anyio.sleep(0.05)
                await q.send(b"", "other")

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_async_consume_gives_everything_back(backend) -> None:
    async def main() -> list[str]:
        async with strictq.open_async(":memory:") as q:
            for n in range(3):
                await q.send(b"", n)
            with anyio.CancelScope() as scope:
                async with aclosing(q.consume()) as deliveries:
                    async for d in deliveries:
                        await d.ack()
                        scope.cancel()
            return [(await q.explain(n)).state for n in range(3)]

    assert anyio.run(main, backend=backend) == ["empty", "ready", "ready"]


def test_a_task_inside_a_transaction_still_can_not_wait_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with strictq.open_async(tmp_path / "queue") as q:
            with pytest.raises(strictq.InvalidArgument, match="inside a transaction"):
                async with q.transaction(key="k") as tx:
                    assert await tx.get_key_state() is None
                    await q.send(b"", "k")

    anyio.run(main)


def test_a_transaction_may_end_in_another_task_than_it_began_in(tmp_path: Path) -> None:
    """Fixtures and dependencies that are async generators do that."""

    async def main() -> None:
        async with strictq.open_async(tmp_path / "queue") as q:
            block = q.transaction(key="k")
            tx = await asyncio.create_task(block.__aenter__())
            assert await tx.get_key_state() is None
            tx.set_key_state(b"s")
            tx.send(b"", "k")
            await asyncio.create_task(block.__aexit__(None, None, None))
            (d,) = await q.receive()
            assert await d.key_state() == b"s"

    asyncio.run(main())


class Cancelling:
    """Stands before anyio's way into a thread, and cancels the task there: before the call begins, or while it is at work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before = self.within = 0
        self._real = anyio.to_thread.run_sync
        monkeypatch.setattr(anyio.to_thread, "run_sync", self)

    async def __call__(self, call: Callable[[], object], **options: Any) -> object:
        task, loop, cancelled = asyncio.current_task(), asyncio.get_running_loop(), threading.Event()
        assert task is not None

        def work() -> object:
            loop.call_soon_threadsafe(task.cancel)
            loop.call_soon_threadsafe(cancelled.set)
            assert cancelled.wait(PATIENCE_SECONDS)
            return call()

        if self.within:
            self.within -= 1
            self.before = 2  # and again, when what was leased is to be given back
            return await self._real(work, **options)
        if self.before:
            self.before -= 1
            task.cancel()
        return await self._real(call, **options)


def cancelled(main: Callable[[], Any]) -> None:
    """Run a task that cancels itself."""

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(main())

    asyncio.run(run())


@pytest.mark.parametrize("consuming", [False, True], ids=["receive", "consume"])
def test_a_receive_that_asyncio_cancels_again_gives_back_what_it_leased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consuming: bool
) -> None:
    async def main() -> None:
        async with strictq.open_async(tmp_path / "queue") as q:
            await q.send_many([strictq.Message(b"", key=n) for n in range(3)])
            cancelling = Cancelling(monkeypatch)
            if not consuming:
                cancelling.within = 1
                await q.receive()
            async with aclosing(q.consume()) as deliveries:
                async for _ in deliveries:
                    cancelling.before = 3
                    await q.stats()

    cancelled(main)
    monkeypatch.undo()
    with strictq.open(tmp_path / "queue") as q:
        in_flight = [n for n in range(3) if q.explain(n).state == "in_flight"]
        assert in_flight == ([0] if consuming else []), "what a consumer was given is its own"


@pytest.mark.parametrize("how", ["ack", "nack", "done", "transaction"])
def test_the_end_of_a_block_that_asyncio_cancels_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async def main() -> None:
        async with strictq.open_async(tmp_path / "queue") as q:
            await q.send(b"", "k")
            (d,) = await q.receive(ack_first=how == "done")
            cancelling = Cancelling(monkeypatch)
            if how == "transaction":
                async with q.transaction(d) as tx:
                    tx.send(b"", "next")
                    cancelling.before = 2
            async with d:
                cancelling.before = 2
                if how == "nack":
                    raise LookupError

    cancelled(main)
    monkeypatch.undo()
    with strictq.open(tmp_path / "queue") as q:
        assert q.stats().in_flight == 0
        assert q.explain("k").state == ("delayed" if how == "nack" else "empty")
        assert q.stats().depth == (1 if how in ("nack", "transaction") else 0)


def test_a_queue_whose_closing_asyncio_cancels_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = []

    async def main() -> None:
        async with strictq.open_async(tmp_path / "queue") as q:
            queues.append(q.sync)
            Cancelling(monkeypatch).before = 2

    cancelled(main)
    with pytest.raises(strictq.QueueClosed):
        queues[0].stats()
