"""Handlers and consumers run until nothing is left to do, without sleeping."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

import strictq
from strictq import Defer, Queue, Reject, Retry, testing
from strictq.testing import (
    assert_dead,
    assert_sent,
    assert_settled,
    clock_of,
    drain,
    drain_async,
    run_until_idle,
    run_until_idle_async,
)

HOUR = 3600.0


@pytest.fixture
def q() -> Iterator[Queue]:
    with testing.open(max_attempts=3, retry_for_seconds=0.0, retry_delay_seconds=60.0) as q:
        yield q


def test_drain_handles_all_there_is(q: Queue) -> None:
    q.send(b"1", "a")
    q.send(b"2", "a", delay=HOUR)
    q.send(b"3", "b")
    seen: list[tuple[Any, bytes]] = []

    def handle(job: strictq.Job) -> None:
        seen.append((job.key, job.body))
        if job.key != "audit":
            job.send(b"did " + job.body, key="audit", delay=10.0)

    done = drain(q, handle)
    assert seen[:2] == [("a", b"1"), ("b", b"3")]
    assert [body for key, body in seen if key == "audit"] == [b"did 1", b"did 3", b"did 2"]
    assert (done.acked, done.retried, done.rejected, done.failures) == (6, 0, 0, [])
    assert done.seconds == pytest.approx(HOUR + 10.0)
    assert_settled(q)


def test_drain_leaves_what_is_delayed_if_asked(q: Queue) -> None:
    q.send(b"1", "a")
    q.send(b"2", "b", delay=HOUR)
    assert drain(q, lambda job: None, skip=False).acked == 1
    assert_sent(q, "b", [b"2"])


def test_drain_raises_what_the_handler_raised(q: Queue) -> None:
    q.send(b"1", "a")
    q.send(b"2", "b")
    seen = []

    def handle(job: strictq.Job) -> None:
        seen.append(job.body)
        raise KeyError("customer")

    with pytest.raises(KeyError, match="customer") as caught:
        drain(q, handle)
    assert caught.traceback[-1].name == "handle"
    assert seen == [b"1"]
    assert q.status("a", 1).state == "delayed"
    assert q.status("b", 1).state == "ready"


def test_drain_plays_retries_out_in_no_time(q: Queue) -> None:
    began = time.monotonic()
    q.send(b"bad", "a")
    q.send(b"good", "a")

    def handle(job: strictq.Job) -> None:
        if job.body == b"bad":
            raise ValueError("torn")

    done = drain(q, handle, failures="retry")
    assert [(key, seq, attempt) for key, seq, attempt, _ in done.failures] == [("a", 1, 1), ("a", 1, 2), ("a", 1, 3)]
    assert done.failures[0][3] == "ValueError: torn"
    assert done.seconds == pytest.approx(60.0 + 120.0, rel=0.25)
    assert_dead(q, "a", [b"bad"], kind="poison", reason="torn")
    assert_settled(q, "a", [2])
    assert time.monotonic() - began < 60.0


def test_drain_plays_the_default_retries_out() -> None:
    def handle(job: strictq.Job) -> None:
        raise ValueError("torn")

    with testing.open() as q:
        q.send(b"bad", "a")
        done = drain(q, handle, failures="retry")
        assert_dead(q, "a", [b"bad"], kind="poison")
    assert 6 * HOUR <= done.seconds <= 6 * HOUR + 1000.0
    assert 25 <= done.retried <= 50


def test_retry_and_reject_are_answers_not_failures(q: Queue) -> None:
    q.send(b"later", "a")
    q.send(b"never", "b")

    def handle(job: strictq.Job) -> None:
        if job.body == b"never":
            raise Reject("no")
        if job.attempt == 1:
            raise Retry(delay=5.0)

    done = drain(q, handle)
    assert (done.acked, done.retried, done.rejected) == (1, 1, 1)
    assert_dead(q, "b", [b"never"])


def test_drain_plays_deferrals_out_and_they_are_no_failures(q: Queue) -> None:
    """A service that is closed for a day, whatever max_attempts says."""
    q.send(b"", key="k")
    opens = q._storage.now() + 80_000_000_000
    attempts = []

    def process(job: strictq.Job) -> None:
        attempts.append(job.attempt)
        if q._storage.now() < opens:
            raise Defer(1000.0)

    done = testing.drain(q, process)
    assert (done.acked, done.deferred, done.retried, done.failures) == (1, 80, 0, [])
    assert done.seconds == 80_000.0
    assert attempts == [1] * 81


def test_drain_waits_for_the_lease_of_a_dead_consumer(q: Queue) -> None:
    q.send(b"1", "a")
    q.receive(consumer="dead")
    done = drain(q, lambda job: None)
    assert (done.acked, done.seconds) == (1, pytest.approx(30.0))


def test_drain_comes_to_an_end(q: Queue) -> None:
    q.configure(max_attempts=None)
    q.send(b"1", "a")
    with pytest.raises(AssertionError, match=r"not idle after 600 s of the queue's time: key 'a': .*for ever"):
        drain(q, lambda job: (_ for _ in ()).throw(ValueError("for ever")), failures="retry", seconds_max=600.0)

    def grow(job: strictq.Job) -> None:
        job.send(b"", key="more")

    q.purge()
    q.send(b"", "more")
    with pytest.raises(AssertionError, match="not idle after 5"):
        drain(q, grow, messages_max=50)


def test_drain_of_some_keys_ignores_the_others(q: Queue) -> None:
    q.send(b"", "a")
    q.send(b"", "b")
    q.send(b"", "c", delay=HOUR)
    assert drain(q, lambda job: None, keys=["a"]).acked == 1
    assert q.status("b", 1).state == "ready"


def test_drain_with_a_prepare_and_more_at_once(q: Queue) -> None:
    q.send_many([strictq.Message(b"%d" % n, key=n % 4) for n in range(40)])
    events: list[str] = []
    done = drain(q, lambda job: None, lambda job: job.body, concurrency=4, on_event=lambda e: events.append(e.kind))
    assert done.acked == 40
    assert events.count("acked") == 40


def test_misuse_is_refused(q: Queue) -> None:
    with pytest.raises(strictq.InvalidArgument, match="failures"):
        drain(q, lambda job: None, failures="ignore")  # type: ignore[arg-type]
    with pytest.raises(strictq.InvalidArgument, match="failures='retry'"):
        drain(q, len, executor="process")
    with pytest.raises(strictq.InvalidArgument, match="process must be a handler"):
        drain(q, None)  # type: ignore[arg-type]
    with strictq.open(":memory:") as real:
        with pytest.raises(strictq.InvalidArgument, match="own clock"):
            drain(real, lambda job: None)
        real.send(b"", "k")
        assert drain(real, lambda job: None, skip=False).acked == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_drain_inside_an_event_loop(backend: str, q: Queue) -> None:
    async def handle(job: Any) -> None:
        await anyio.lowlevel.checkpoint()
        if job.body == b"bad":
            raise ValueError("torn")

    async def main() -> None:
        aq = testing.awaited(q)
        with pytest.raises(strictq.InvalidArgument, match="drain_async"):
            drain(aq, handle)
        await aq.send(b"1", "a", delay=HOUR)
        assert (await drain_async(aq, handle)).acked == 1
        await aq.send(b"bad", "b")
        with pytest.raises(ValueError, match="torn"):
            await drain_async(aq, handle)
        assert len((await drain_async(aq, handle, failures="retry")).failures) == 2

    anyio.run(main, backend=backend)


# ---- consumers that would go on for ever


@pytest.mark.parametrize("wait", [None, 1.0])
def test_a_consumer_for_ever(q: Queue, wait: float | None) -> None:
    handled: list[tuple[Any, int]] = []

    def consumer() -> None:
        while True:
            try:
                for d in q.consume(wait=wait):
                    with d:
                        handled.append((d.key, d.attempt))
                        if d.key == "bad":
                            raise ValueError("torn")
            except Exception:
                continue

    q.send(b"", "a")
    q.send(b"", "bad")
    q.send(b"", "later", delay=HOUR)
    run_until_idle(q, consumer)
    assert handled == [("a", 1), ("bad", 1), ("bad", 2), ("bad", 3), ("later", 1)]
    assert_dead(q, "bad", [b""], reason="torn")
    run_until_idle(q, consumer)
    assert len(handled) == 5


def test_what_a_consumer_raises_is_raised(q: Queue) -> None:
    q.send(b"", "a")

    def consumer() -> None:
        for d in q.consume():
            with d:
                raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        run_until_idle(q, consumer)


def test_a_consumer_that_is_never_idle_is_ended(q: Queue) -> None:
    def forgets_to_ack() -> None:
        while True:
            q.receive(wait=None)

    q.configure(max_attempts=None)
    q.send(b"", "a")
    with pytest.raises(AssertionError, match="retried forever"):
        run_until_idle(q, forgets_to_ack, seconds_max=3600.0)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_async_consumer_for_ever(q: Queue, backend: str) -> None:
    handled: list[Any] = []
    aq = testing.awaited(q)

    async def consumer() -> None:
        async for d in aq.consume():
            async with d:
                handled.append(d.key)

    async def in_a_group() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(consumer)

    async def main() -> None:
        await aq.send(b"", "a")
        await aq.send(b"", "later", delay=HOUR)
        await run_until_idle_async(aq, consumer)
        await aq.send(b"", "once more", delay=HOUR)
        await run_until_idle_async(aq, in_a_group)

    anyio.run(main, backend=backend)
    assert handled == ["a", "later", "once more"]
    assert clock_of(q).now == pytest.approx(1_700_000_000.0 + 2 * HOUR, abs=1.0)
