"""Handlers whose call would run nothing: refused, and never acked as if they had run."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

import strictq
from strictq import InvalidArgument, Job, Queue, Worker
from strictq.testing import FakeClock, drain, drain_async, run_until_idle, run_until_idle_async


def generator(job: Any) -> Iterator[None]:
    yield None


async def async_generator(job: Any) -> AsyncIterator[None]:
    yield None


async def coroutine(job: Any) -> None:
    """An async handler as it should be."""


def keyed(job: Any, *, key: str = "") -> Iterator[None]:
    yield None


@functools.wraps(generator)
def decorated(job: Any) -> Any:
    return generator(job)


class Methods:
    """A bound method, a static one and a class method that are generator functions."""

    def bound(self, job: Any) -> Iterator[None]:
        yield None

    @staticmethod
    def static(job: Any) -> Iterator[None]:
        yield None

    @classmethod
    def of_class(cls, job: Any) -> Iterator[None]:
        yield None


class Calls:
    """Its __call__ is a generator function."""

    def __call__(self, job: Any) -> Iterator[None]:
        yield None


class AsyncCalls:
    """Its __call__ is an async generator function."""

    async def __call__(self, job: Any) -> AsyncIterator[None]:
        yield None


UNRUNNABLE: dict[str, Callable[[Any], Any]] = {
    "generator": generator,
    "async generator": async_generator,
    "partial": functools.partial(keyed, key="k"),
    "partial of a partial": functools.partial(functools.partial(keyed), key="k"),
    "partial of an async generator": functools.partial(async_generator),
    "method": Methods().bound,
    "static method": Methods.static,
    "class method": Methods.of_class,
    "object": Calls(),
    "async object": AsyncCalls(),
    "partial of an object": functools.partial(Calls()),
    "partial of a method": functools.partial(Methods().bound),
    "wraps": decorated,
    "wraps of an object": functools.update_wrapper(lambda job: Calls()(job), Calls()),
    "contextmanager": contextmanager(generator),
    "cache": functools.lru_cache(generator),
}
HIDING: dict[str, Callable[[Any], Any]] = {
    "generator": lambda job: generator(job),
    "async generator": lambda job: async_generator(job),
    "coroutine": lambda job: coroutine(job),
    "generator expression": lambda job: (n for n in range(3)),
}


async def _async_hiding(job: Any) -> Any:
    return generator(job)


@pytest.fixture
def q() -> Iterator[Queue]:
    with strictq.open(":memory:", clock=FakeClock(), config=strictq.QueueConfig(max_attempts=2, retry_delay_seconds=0.0)) as q:
        q.send(b"", "k")
        yield q


@pytest.mark.parametrize("stage", ["process", "prepare"])
@pytest.mark.parametrize("handler", UNRUNNABLE.values(), ids=UNRUNNABLE)
def test_a_generator_function_is_refused(q: Queue, handler: Any, stage: str) -> None:
    handlers = {"process": print} | {stage: handler}
    with pytest.raises(InvalidArgument, match=f"{stage} is a generator function") as refused:
        Worker(q, **handlers)
    assert "without yield" in refused.value.hint


@pytest.mark.parametrize("handler", UNRUNNABLE.values(), ids=UNRUNNABLE)
def test_drain_refuses_it(q: Queue, handler: Any) -> None:
    with pytest.raises(InvalidArgument, match="generator function"):
        drain(q, handler)
    with pytest.raises(InvalidArgument, match="generator function"):
        anyio.run(drain_async, q, handler)
    assert q.status("k", 1).state == "ready"


@pytest.mark.parametrize("stage", ["process", "prepare"])
@pytest.mark.parametrize("handler", [*HIDING.values(), _async_hiding], ids=[*HIDING, "async"])
def test_what_a_handler_returns_is_not_acked_unrun(q: Queue, handler: Any, stage: str) -> None:
    ran: list[int] = []
    handlers = {"process": lambda job: ran.append(job.seq)} | {stage: handler}
    Worker(q, **handlers).run(drain=True)
    (dead,) = q.dead_letters()
    assert dead.attempts == 2
    assert dead.reason.startswith("InvalidArgument: the handler returned a")
    assert ran == []


@pytest.mark.parametrize("handler", [*HIDING.values(), _async_hiding], ids=[*HIDING, "async"])
def test_drain_raises_it(q: Queue, handler: Any) -> None:
    with pytest.raises(InvalidArgument, match="the handler returned a"):
        drain(q, handler)
    assert q.status("k", 1).state != "resolved"


@pytest.mark.parametrize(
    "handler",
    [coroutine, functools.partial(coroutine), lambda job: None, lambda job: iter([1]), lambda job: [1]],
    ids=["coroutine", "partial", "None", "iterator", "list"],
)
def test_handlers_that_run_are_welcome(q: Queue, handler: Any) -> None:
    assert drain(q, handler).acked == 1


def test_an_async_decorator_may_iterate_over_what_it_decorates(q: Queue) -> None:
    ran: list[int] = []

    async def steps(job: Job) -> AsyncIterator[None]:
        ran.append(job.seq)
        yield None

    @functools.wraps(steps)
    async def handler(job: Job) -> None:
        async for _ in steps(job):
            pass

    Worker(q, handler).run(drain=True)
    assert ran == [1]
    assert q.status("k", 1).state == "resolved"


def test_a_consumer_that_would_not_run_is_refused(q: Queue) -> None:
    def consume() -> Iterator[None]:
        yield None

    async def consume_async() -> None:
        """Awaited by run_until_idle_async, and by nothing else."""

    def hiding() -> Awaitable[None]:
        return consume_async()

    with pytest.raises(InvalidArgument, match="generator function"):
        run_until_idle(q, consume)
    with pytest.raises(InvalidArgument, match="returned a coroutine"):
        run_until_idle(q, hiding)
    with pytest.raises(InvalidArgument, match="generator function"):
        anyio.run(run_until_idle_async, q, consume)


@pytest.mark.parametrize("work", HIDING.values(), ids=HIDING)
def test_work_of_a_transaction_that_did_not_run_undoes_it(q: Queue, work: Any) -> None:
    (d,) = q.receive()
    with pytest.raises(InvalidArgument, match="work returned a"), q.transaction(d) as tx:
        tx.send(b"", "other")
        tx.run(work)
    assert q.peek("other") == []
    assert q.status("k", 1).state == "in_flight"
