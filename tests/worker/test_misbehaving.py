"""Handlers that raise what nobody should raise, or return what nobody expects: their message fails, and the worker goes on."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

import strictq
from strictq import Event, Message, Observer, Queue, QueueClosed, StrictqError, Worker, WorkerEvent
from strictq.worker.dispatch import Handover
from tests.support.running import PATIENCE_SECONDS

BACKENDS = ["asyncio", "trio"]


class Unspeakable(Exception):
    """Its text can't be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def after(q: Queue, worker: Worker, reason: str) -> None:
    """The first message of two failed for good with that reason; the second one was done, by the same slot."""
    assert reason in (q.dead_letters()[0].reason or "")
    assert worker.stats().acked == 1
    assert q.stats().depth == 0
    assert q.check() == []


def fill(make: Any, max_attempts: int = 1) -> Queue:
    q: Queue = make(max_attempts=max_attempts)
    q.send(b"bad", key="k")
    q.send(b"good", key="k")
    return q


@pytest.mark.parametrize("error", [GeneratorExit(), asyncio.CancelledError(), Unspeakable(), BaseException("base")])
@pytest.mark.parametrize("stage", ["prepare", "process"])
def test_a_plain_handler_may_raise_anything(make: Any, error: BaseException, stage: str) -> None:
    q = fill(make)

    def handler(job: Any) -> None:
        if job.body == b"bad":
            raise error

    worker = Worker(
        q, handler if stage == "process" else lambda job: None, handler if stage == "prepare" else None, concurrency=1
    )
    worker.run(drain=True)
    after(q, worker, type(error).__name__)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("error", [Unspeakable(), BaseException("base"), GeneratorExit()])
@pytest.mark.parametrize("stage", ["prepare", "process"])
def test_an_async_handler_as_well(make: Any, backend: str, error: BaseException, stage: str) -> None:
    q = fill(make)

    async def handler(job: Any) -> None:
        if job.body == b"bad":
            raise error

    async def nothing(job: Any) -> None:
        pass

    worker = Worker(q, handler if stage == "process" else nothing, handler if stage == "prepare" else None, concurrency=1)

    async def main() -> None:
        with anyio.fail_after(30.0):
            await worker.serve(drain=True)

    anyio.run(main, backend=backend)
    after(q, worker, type(error).__name__)


def test_an_async_batch_handler_as_well(make: Any) -> None:
    q = fill(make)

    async def handler(jobs: list[Any]) -> None:
        if jobs[0].body == b"bad":
            raise GeneratorExit

    worker = Worker(q, process_batch=handler, batch_max=1, concurrency=1)
    worker.run(drain=True)
    after(q, worker, "GeneratorExit")


class BrokenLog(logging.Handler):
    """A program's log handler whose disk is full."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError(28, "No space left on device")


@pytest.fixture
def broken_log() -> Iterator[None]:
    log, handler = logging.getLogger("strictq"), BrokenLog()
    log.addHandler(handler)
    before, log.level = log.level, logging.DEBUG
    yield
    log.removeHandler(handler)
    log.level = before


@pytest.mark.parametrize("is_async", [False, True])
def test_a_log_handler_that_raises_ends_no_run(
    make: Any, broken_log: None, capsys: pytest.CaptureFixture[str], is_async: bool
) -> None:
    q = fill(make)

    def handler(job: Any) -> None:
        if job.body == b"bad":
            raise ValueError("it is logged")

    async def handler_async(job: Any) -> None:
        handler(job)

    worker = Worker(q, handler_async if is_async else handler, concurrency=1)
    worker.run(drain=True)
    after(q, worker, "ValueError")
    assert "No space left on device" in capsys.readouterr().err, "it is reported as logging reports it"


class Unprintable(Exception):
    """Neither its text nor its repr can be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("error", [ValueError("the observer's"), Unprintable()])
def test_an_observer_that_raises_ends_no_run(make: Any, error: Exception, broken_log: None) -> None:
    q = fill(make)

    class Observing(Observer):
        def worker_event(self, event: WorkerEvent) -> None:
            raise error

        def event(self, event: Event) -> None:
            raise error

        def count(self, name: str, n: int, shard: int) -> None:
            raise error

        def duration(self, name: str, seconds: float, shard: int) -> None:
            raise error

    def handler(job: Any) -> None:
        if job.body == b"bad":
            raise Unprintable

    def told(event: WorkerEvent) -> None:
        raise error

    q.observe(Observing())
    q.on_event(lambda event: told(event))  # type: ignore[arg-type]
    worker = Worker(q, handler, concurrency=1, on_event=told)
    worker.run(drain=True)
    after(q, worker, "Unprintable")


@pytest.mark.parametrize("stage", ["prepare", "process"])
def test_a_cancellation_that_nobody_asked_for_is_an_error_like_any_other(make: Any, stage: str) -> None:
    """As when a handler awaits something that somebody else cancelled."""
    q = fill(make)

    async def handler(job: Any) -> None:
        if job.body == b"bad":
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone

    async def nothing(job: Any) -> None:
        pass

    worker = Worker(q, handler if stage == "process" else nothing, handler if stage == "prepare" else None, concurrency=1)

    async def main() -> None:
        await asyncio.wait_for(worker.serve(drain=True), 30.0)

    asyncio.run(main())
    after(q, worker, "CancelledError")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_async_handler_that_swallows_its_cancellation_does_no_harm(make: Any, backend: str) -> None:
    """Its time was over; it comes back much later as if nothing had been: nothing of it happens."""
    q = make()
    q.send(b"", key="k")
    q.send(b"", key="k")

    async def handler(job: Any) -> None:
        if job.seq == 1 and job.attempt == 1:
            try:
                await anyio.sleep(60.0)
            except BaseException:
                job_was.append(job.cancelled)

    job_was: list[bool] = []
    worker = Worker(q, handler, concurrency=1, timeout_seconds=1.0)

    async def main() -> None:
        with anyio.fail_after(30.0):
            await worker.serve(drain=True)

    anyio.run(main, backend=backend)
    assert job_was == [True]
    assert (worker.stats().acked, worker.stats().timeouts) == (2, 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_in_an_async_handler_ends_serve(q: Queue, backend: str) -> None:
    """That is the program's to handle; what was held is given back."""
    for n in range(5):
        q.send(b"", key=n)

    async def handler(job: Any) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        await Worker(q, handler, concurrency=1).serve()

    with pytest.raises(BaseException) as caught:
        anyio.run(main, backend=backend)
    assert _has(caught.value, KeyboardInterrupt)
    assert q.stats().in_flight == 0
    assert q.stats().depth == 5
    assert [q.status(n, 1).attempts for n in range(5)] == [0] * 5


def ends(q: Queue, worker: Worker, error: type[BaseException]) -> None:
    """SystemExit is charged to its message, KeyboardInterrupt to nobody; what came behind it was never started."""
    charged = int(error is SystemExit)
    assert [(m.seq, m.attempts) for m in q.peek("k")] == [(1, charged), (2, 0)]
    assert (worker.stats().retried, q.stats().dead, q.stats().in_flight) == (charged, 0, 0)
    assert q.status("k", 1).last_error == ("SystemExit: 3" if charged else None)
    assert q.check() == []


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("stage", ["prepare", "process"])
def test_a_plain_handler_that_ends_the_program_stops_the_worker(make: Any, error: BaseException, stage: str) -> None:
    q = fill(make, max_attempts=3)

    def handler(job: Any) -> None:
        if job.body == b"bad":
            raise error

    events: list[str] = []
    worker = Worker(
        q,
        handler if stage == "process" else lambda job: None,
        handler if stage == "prepare" else None,
        concurrency=1,
        on_event=lambda e: events.append(e.kind),
    )
    with pytest.raises(type(error)) as caught:
        worker.run()
    assert caught.value is error
    assert ("retried" if isinstance(error, SystemExit) else "released") in events
    ends(q, worker, type(error))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stage", ["prepare", "process"])
def test_an_async_handler_that_calls_sys_exit_does_so_too(make: Any, backend: str, stage: str) -> None:
    q = fill(make, max_attempts=3)

    async def handler(job: Any) -> None:
        if job.body == b"bad":
            sys.exit(3)

    async def nothing(job: Any) -> None:
        pass

    worker = Worker(q, handler if stage == "process" else nothing, handler if stage == "prepare" else None, concurrency=1)

    async def main() -> None:
        with anyio.fail_after(30.0):
            await worker.serve()

    with pytest.raises(SystemExit) as caught:
        anyio.run(main, backend=backend)
    assert caught.value.code == 3
    ends(q, worker, SystemExit)


def ending_beside(work: Callable[[Any], None]) -> Callable[[Any], None]:
    """A handler that ends the program as soon as a message of the key "other" is at work."""
    began = threading.Event()

    def handler(job: Any) -> None:
        if job.key == "other":
            began.set()
            work(job)
        else:
            assert began.wait(PATIENCE_SECONDS)
            sys.exit("no more")

    return handler


def test_what_runs_is_finished_before_the_program_ends(q: Queue) -> None:
    q.send(b"bad", key="k")
    q.send(b"good", key="k")
    q.send(b"slow", key="other")
    asked_to_end = threading.Event()

    def slow(job: Any) -> None:
        assert asked_to_end.wait(PATIENCE_SECONDS)
        job.send(b"", key="effect")

    def on_event(event: Any) -> None:
        if event.kind == "retried":
            asked_to_end.set()

    worker = Worker(q, ending_beside(slow), concurrency=2, on_event=on_event)
    with pytest.raises(SystemExit, match="no more"):
        worker.run()
    assert worker.stats().acked == 1
    assert q.stats().depth == 3, "both of k, and what the slow one sent"
    assert q.status("k", 1).attempts == 1


def test_grace_ends_the_wait_of_a_program_that_ends(q: Queue) -> None:
    q.send(b"bad", key="k")
    q.send(b"hangs", key="other")
    over = threading.Event()
    try:
        with pytest.raises(SystemExit):
            Worker(q, ending_beside(lambda _job: over.wait(30.0)), concurrency=2).run(grace_seconds=0.0)
    finally:
        over.set()
    assert q.status("k", 1).attempts == 1
    assert q.stats().in_flight == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_queue_that_is_closed_under_a_worker_is_one_clear_error(q: Queue, is_async: bool) -> None:
    q.send(b"", key="k")
    q.send(b"", key="k")

    def close(job: Any) -> None:
        q.close()

    async def close_too(job: Any) -> None:
        q.close()

    worker = Worker(q, close_too if is_async else close, concurrency=1)
    with pytest.raises(QueueClosed, match="closed while a worker ran on it") as caught:
        worker.run()
    assert "stop the worker" in caught.value.hint
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None


def _has(error: BaseException, kind: type[BaseException]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_has(e, kind) for e in error.exceptions)
    return isinstance(error, kind)


@pytest.mark.parametrize("text", ["x" * 1_000_000, "\udcff", "a\0b"], ids=["long", "surrogate", "NUL"])
def test_what_it_says_may_be_anything(make: Any, text: str) -> None:
    q = fill(make)

    def handler(job: Any) -> None:
        if job.body == b"bad":
            job.output(text)
            raise ValueError(text)

    worker = Worker(q, handler, concurrency=1)
    worker.run(drain=True)
    after(q, worker, "ValueError")


def test_a_result_may_be_anything(q: Queue) -> None:
    """What prepare returns need not even have a size."""

    class Odd:
        def __sizeof__(self) -> int:
            raise RuntimeError

    q.send(b"", key="k")
    seen: list[object] = []
    worker = Worker(q, lambda job: seen.append(job.prepared), lambda job: Odd())
    worker.run(drain=True)
    assert isinstance(seen[0], Odd)


def test_results_over_the_byte_limit_are_used_and_nothing_more_is_prepared_ahead(q: Queue) -> None:
    for n in range(40):
        q.send(b"", key=n % 4)
    most: list[int] = []
    worker = Worker(q, lambda job: most.append(worker.stats().prepared_bytes), lambda job: b"x" * 1000, prepared_bytes_max=1500)
    worker.run(drain=True)
    assert len(most) == 40
    # Those that began before any was weighed are over by then. A slot's own result is needed at once, whatever it weighs.
    assert max(most[20:]) <= 1500 + 1000 + 4 * 1000


def test_a_worker_may_be_stopped_and_looked_at_from_its_own_handlers(q: Queue) -> None:
    for n in range(20):
        q.send(b"", key=n)

    def process(job: Any) -> None:
        worker.stats()
        worker.stop()

    worker = Worker(q, process, concurrency=2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert 1 <= worker.stats().acked <= 20
    assert q.stats().in_flight == 0


def test_what_must_not_fail_ends_the_run_instead_of_a_thread(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of the worker's own: it is told, and what was held is given back."""
    q.send(b"", key="k")
    q.send(b"", key="other")

    def broken(*_: object) -> bool:
        raise AssertionError("a mistake")

    monkeypatch.setattr(Handover, "processed", broken)
    with pytest.raises(AssertionError, match="a mistake"):
        Worker(q, lambda job: None, concurrency=1).run(drain=True)
    assert q.stats().depth == 2


@pytest.mark.parametrize("several", [False, True], ids=["one queue", "two queues"])
@pytest.mark.parametrize("left", range(7))
def test_no_more_threads_end_the_run_and_leave_nothing_leased(
    make: Any, monkeypatch: pytest.MonkeyPatch, left: int, several: bool
) -> None:
    """The error names the cause, and handlers that run are finished."""
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("can't start new thread")  # what CPython raises
        start(thread)

    queues = [make()]
    if several:
        queues.append(strictq.open(":memory:"))
    for q in queues:
        q.send_many([Message(b"", key=n) for n in range(20)])
    worker = Worker(queues, lambda _job: time.sleep(0.01), concurrency=16)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(StrictqError, match="can't start new thread") as raised:
            worker.run(drain=True)
    assert "ulimit" in raised.value.hint
    for q in queues:
        stats = q.stats()
        assert (stats.in_flight, stats.acks + stats.ready) == (0, 20)
        assert stats.retries == stats.redeliveries == 0
        q.close()
