"""The samples of the charts: their rates, their cost, and the stream that carries them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq.server.app import Application, parts_of
from strictq.server.console import sampler as _sampler
from strictq.server.console.sampler import Sampler, Series
from strictq.server.parts import Message, Scope, ServerContext, ServerSettings
from strictq.server.queues import Queues
from tests.support.queues import fill


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def test_rates_are_differences_of_totals() -> None:
    series = Series()

    async def work() -> None:
        with strictq.open(":memory:") as q:
            series.add(q.stats(), 100.0)
            fill(q, "a", 6)
            series.add(q.stats(), 102.0)
            q.receive(2)[0].ack()
            series.add(q.stats(), 103.0)
            series.add(q.stats(), 103.0)

    asyncio.run(work())
    assert [point.get("sends_rate") for point in series.points] == [None, 3.0, 0.0, None]
    assert [point.get("acks_rate") for point in series.points] == [None, 0.0, 1.0, None]
    assert [point["depth"] for point in series.points] == [0, 6, 5, 5]


def test_only_so_many_points_are_kept() -> None:
    series = Series()

    async def work() -> None:
        with strictq.open(":memory:") as q:
            stats = q.stats()
            for n in range(_sampler.POINTS_MAX + 5):
                series.add(stats, float(n))

    asyncio.run(work())
    assert (len(series.points), series.points[0]["t"]) == (_sampler.POINTS_MAX, 5.0)


def test_the_sampler_waits_fifty_times_what_a_sample_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks, and however many queues there are: at most 2 % of a core."""
    queues = Queues()
    slept: list[float] = []
    reads = iter(range(10**6))

    tasks: list[object] = []
    really_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if asyncio.current_task() not in tasks:  # the loop of another test's server
            await really_sleep(seconds)
            return
        slept.append(seconds)
        await asyncio.wait_for(asyncio.Event().wait(), None) if len(slept) == 4 else None

    async def work() -> None:
        sampler = Sampler(queues, cpu=lambda: next(reads) * 0.25)
        monkeypatch.setattr(_sampler.asyncio, "sleep", sleep)
        task = asyncio.create_task(sampler.run())
        tasks.append(task)
        for _ in range(4):
            while len(slept) < 4 and not task.done():
                await asyncio.to_thread(lambda: None)
                for name in sampler.series:
                    sampler.look_now(name)
        task.cancel()

    with strictq.open(":memory:") as a, strictq.open(":memory:") as b:
        queues.lend("a", a)
        queues.lend("b", b)
        asyncio.run(work())
    assert slept == [12.5] * 4


def test_queues_come_and_go(place: Path) -> None:
    queues = Queues((place,))

    async def work() -> None:
        sampler = Sampler(queues)
        sampler.find(["a", "b"])
        gone = sampler.series["a"]
        sampler.find(["b", "c"])
        assert sorted(sampler.series) == ["b", "c"]
        assert "any more" in gone.error

    asyncio.run(work())


def test_the_stream_carries_samples_and_ends_when_the_client_leaves(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sampler, "WATCHED_SECONDS", 0.02)
    context = ServerContext(ServerSettings(directories=(place,)))
    application = Application(parts_of(["console"], context), context)
    (part,) = application.parts
    sampler: Sampler = part._sampler  # type: ignore[attr-defined]
    received: list[dict[str, Any]] = []
    gone = asyncio.Event()

    async def client(query: str, ended: list[Message]) -> None:
        incoming: list[Message] = [{"type": "http.request", "body": b""}]

        async def receive() -> Message:
            if incoming:
                return incoming.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if (body := message.get("body", b"")).startswith(b"data: "):
                received.append(json.loads(body[6:]))
            else:
                ended.append(message)

        scope: Scope = {
            "type": "http", "method": "GET", "path": "/console/events", "query_string": query.encode(), "root_path": "",
            "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1),
        }  # fmt: skip
        await application(scope, receive, send)

    async def work() -> None:
        await application.start()
        try:
            await until(lambda: "orders" in sampler.series)
            refused: list[Message] = []
            await client("queue=other", refused)
            assert refused[0]["status"] == 404
            first = asyncio.create_task(client("queue=orders", []))
            await until(lambda: received)
            assert sampler.series["orders"].viewers == 1
            fill(q, "a", 3)
            await until(lambda: received[-1]["stats"]["ready"] == 3)
            assert received[-1]["points"][-1]["depth"] == 3
            assert received[-1]["has"] == {"tenants": False, "streams": False, "sqs": False}
            gone.set()
            await first
            assert sampler.series["orders"].viewers == 0
            gone.clear()
            ended: list[Message] = []
            second = asyncio.create_task(client("queue=orders", ended))
            await until(lambda: sampler.series["orders"].viewers)
            application.drain()
            await second
            assert ended[-1] == {"type": "http.response.body", "body": b""}
        finally:
            await application.stop()

    with strictq.open(place / "orders.strictq", durability="process") as q:
        asyncio.run(work())


@pytest.mark.parametrize("turns", range(4))
def test_sampling_ends_also_while_a_sample_is_asked_for(turns: int) -> None:
    async def work() -> None:
        sampler = Sampler(Queues())
        task = asyncio.create_task(sampler.run())
        await until(lambda: sampler._more._waiters)
        sampler._more.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=10.0)
        was_ended = task.done()
        task.cancel()
        assert was_ended

    asyncio.run(work())


def test_a_queue_that_cannot_be_read_is_reported(place: Path) -> None:
    (place / "bad.strictq").mkdir()
    (place / "bad.strictq" / "queue.db").write_bytes(b"no database")

    async def work() -> None:
        sampler = Sampler(Queues((place,)))
        task = asyncio.create_task(sampler.run())
        await until(lambda: "bad" in sampler.series and sampler.series["bad"].error)
        task.cancel()

    asyncio.run(work())


def test_a_directory_that_disappears_while_it_is_read_ends_no_sampling(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = [True]
    read = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path == place and gone:
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    strictq.open(place / "orders.strictq", durability="process").close()

    async def work() -> None:
        queues = Queues((place,))
        sampler = Sampler(queues)
        task = asyncio.create_task(sampler.run())
        monkeypatch.setattr(_sampler, "UNWATCHED_SECONDS", 0.01)
        assert queues.paths() == {}
        gone.clear()
        await until(lambda: "orders" in sampler.series)
        assert not task.done()
        task.cancel()
        queues.close()

    asyncio.run(work())
