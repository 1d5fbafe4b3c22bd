"""What a worker does with messages: order, effects, failures, stopping; plain and async handlers alike."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio

import strictq
from strictq import Defer, InvalidArgument, Job, Queue, QueueClosed, Reject, Retry, Worker
from strictq.worker.loop import Keeper
from tests.support.running import PATIENCE_SECONDS, until

LEASED_SECONDS = 1.2
"""Of a handler that runs for longer than its lease, which is 1 s: it is extended some times meanwhile."""
Kind = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
TIMEOUT_SECONDS = 1.0
"""Of a handler that hangs; on a busy machine one that does not takes some tenths of it."""


def plain(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return handler


def awaited(handler: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    async def run(job: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return handler(job)

    return run


@pytest.fixture(params=[plain, awaited], ids=["plain", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


def in_thread(worker: Worker, **options: Any) -> threading.Thread:
    thread = threading.Thread(target=worker.run, kwargs=options)
    thread.start()
    return thread


def test_a_drain_sees_what_became_ready_since_it_looked(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, work, late = Keeper._plan, Keeper._work, [b"2"]
    worked = True

    def working(keeper: Keeper, now: float) -> bool:
        nonlocal worked
        worked = work(keeper, now)
        return worked

    def sending(keeper: Keeper) -> float | None:
        if keeper._board.idle and not worked and late:
            q.send(late.pop(), key="a")  # as a handler does that commits between the two looks of a round
        return plan(keeper)

    monkeypatch.setattr(Keeper, "_work", working)
    monkeypatch.setattr(Keeper, "_plan", sending)
    seen: list[bytes] = []
    q.send(b"1", key="a")
    Worker(q, lambda job: seen.append(job.body)).run(drain=True)
    assert seen == [b"1", b"2"]


@pytest.mark.parametrize("prepares", [False, True])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_every_message_once_and_in_order(make: Any, kind: Kind, prepares: bool, concurrency: int) -> None:
    q = make(shards=2)
    for n in range(200):
        q.send(b"%d" % n, key=f"k{n % 7}")
    seen = defaultdict(list)
    worker = Worker(
        q,
        kind(lambda job: seen[job.key].append((job.seq, job.prepared))),
        kind(lambda job: job.seq * 10) if prepares else None,
        concurrency=concurrency,
    )
    worker.run(drain=True)
    for got in seen.values():
        assert got == [(n, 10 * n if prepares else None) for n in range(1, len(got) + 1)]
    assert sum(map(len, seen.values())) == 200
    assert q.stats().depth == 0
    assert worker.stats().acked == 200
    assert q.check() == []


def test_lanes_run_side_by_side_and_a_lane_never_does(q: Queue, kind: Kind) -> None:
    for n in range(40):
        q.send(b"", key=n % 4)
    lock, now, most, clashes = threading.Lock(), set(), [0], []

    def process(job: Job) -> None:
        with lock:
            clashes.extend([job.key] if job.key in now else [])
            now.add(job.key)
            most[0] = max(most[0], len(now))
        barrier.wait() if job.seq == 1 else None
        with lock:
            now.discard(job.key)

    barrier = threading.Barrier(4, timeout=PATIENCE_SECONDS)
    if kind is awaited:

        async def handler(job: Job) -> None:
            await anyio.to_thread.run_sync(process, job)

        Worker(q, handler).run(drain=True)
    else:
        Worker(q, process).run(drain=True)
    assert clashes == []
    assert most[0] == 4


def test_effects_commit_with_the_ack(make: Any, kind: Kind) -> None:
    q = make(shards=3)
    q.app_schema("CREATE TABLE app_seen (lane TEXT, n INTEGER) STRICT")
    for n in range(30):
        q.send(b"%d" % n, key=f"k{n % 5}")

    def process(job: Job) -> None:
        if job.key == "out":
            return
        job.key_state = b"%d" % (int(job.key_state or b"0") + 1)
        job.send(job.body, key="out")
        job.execute("INSERT INTO app_seen VALUES (?, ?)", (job.key, job.seq))
        if job.attempt == 1:
            raise ValueError("none of it may happen")

    worker = Worker(q, kind(process))
    worker.run(drain=True)
    assert q.stats().depth == 0
    assert sorted(q.query("SELECT * FROM app_seen")) == sorted((f"k{k}", n) for k in range(5) for n in range(1, 7))
    for k in range(5):
        with q.transaction(key=f"k{k}") as tx:
            assert tx.key_state == b"6"
    assert q.stats().acks == 60
    assert worker.stats().retried == 30


def test_run_works_inside_the_transaction(q: Queue) -> None:
    q.app_schema("CREATE TABLE app_sum (n INTEGER) STRICT")
    q.transaction(key="k").__enter__().__exit__(None, None, None)
    for n in range(1, 6):
        q.send(b"%d" % n, key="k")
    sums = []

    def process(job: Job) -> None:
        job.execute("INSERT INTO app_sum VALUES (?)", (int(job.body),))
        sums.append(job.run(lambda db: db.execute("SELECT sum(n) FROM app_sum").get))
        if job.seq == 3 and job.attempt == 1:
            raise ValueError

    Worker(q, process).run(drain=True)
    assert sums == [1, 3, 6, 6, 10, 15]


def test_run_is_awaited_in_an_async_handler(q: Queue) -> None:
    q.app_schema("CREATE TABLE app_sum (n INTEGER) STRICT")
    for n in range(1, 4):
        q.send(b"%d" % n, key=n)

    async def process(job: Any) -> None:
        await job.run(lambda db: db.execute("INSERT INTO app_sum VALUES (?)", (int(job.body),)).get)

    Worker(q, process).run(drain=True)
    assert q.query("SELECT sum(n) FROM app_sum") == [(6,)]


def test_a_raise_is_retried_first_and_says_why(make: Any, kind: Kind) -> None:
    q = make(max_attempts=3)
    q.send(b"bad", key="k")
    q.send(b"good", key="k")
    seen = []

    def process(job: Job) -> None:
        seen.append((job.seq, job.attempt))
        job.output("looked at it")
        if job.body == b"bad":
            raise ValueError("no paper")

    events: list[tuple[str, int, str]] = []
    worker = Worker(q, kind(process), on_event=lambda e: events.append((e.kind, e.seq, e.detail)))
    worker.run(drain=True)
    assert seen == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert [e for e in events if e[0] in ("retried", "poison", "acked")] == [
        ("retried", 1, "ValueError: no paper"),
        ("retried", 1, "ValueError: no paper"),
        ("poison", 1, "ValueError: no paper; out of attempts: it is a dead letter now"),
        ("acked", 2, ""),
    ]
    assert (worker.stats().retried, worker.stats().poison) == (3, 1)
    (dead,) = q.dead_letters()
    assert (dead.kind, dead.reason, dead.attempts) == ("poison", "ValueError: no paper", 3)


def test_retry_with_a_delay_holds_its_lane_and_no_other(make: Any, kind: Kind) -> None:
    q = make()
    q.send(b"", key="late")
    q.send(b"", key="late")
    q.send(b"", key="other")
    seen = []

    def process(job: Job) -> None:
        seen.append((job.key, job.seq, job.attempt))
        job.output("said")
        if job.key == "late" and job.attempt == 1:
            raise Retry(3600.0, "come back later")

    Worker(q, kind(process)).run(drain=True)
    assert sorted(seen) == [("late", 1, 1), ("other", 1, 1)]
    status = q.status("late", 1)
    assert (status.state, status.last_error, status.last_output) == ("delayed", "come back later", "said")


def test_what_a_handler_says_is_kept_with_the_record(make: Any, kind: Kind) -> None:
    q = make(history="records")
    q.send(b"plain", key="a")
    q.send(b"with effects", key="b")
    q.send(b"silent", key="c")

    def process(job: Job) -> None:
        if job.body != b"silent":
            job.output(f"read {job.body!r}")
            job.output("wrote")
        if job.body == b"with effects":
            job.key_state = b"x"

    Worker(q, kind(process)).run(drain=True)
    records = [r for shard in range(q.shards) for r in q.history(shard=shard)]
    assert {r.key: r.output for r in records} == {"a": "read b'plain'\nwrote", "b": "read b'with effects'\nwrote", "c": None}


def test_status_shows_what_a_handler_that_runs_has_said(make: Any, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("settling", "loop"):
        monkeypatch.setattr(f"strictq.worker.{module}.NOTE_SECONDS", 0.02)
    q = make()
    q.send(b"", key="k")
    seen = []

    def process(job: Job) -> None:
        for n in range(2):
            job.output(f"step {n}")
            until(lambda n=n: str(q.status("k", 1).last_output).endswith(f"step {n}"))  # type: ignore[misc]
            seen.append((q.status("k", 1).state, q.status("k", 1).last_output))

    # In an event loop's thread nothing else runs while a handler blocks; the keeper has a thread of its own.
    Worker(q, kind(process)).run(drain=True)
    assert seen == [("in_flight", "step 0"), ("in_flight", "step 0\nstep 1")]
    assert q.stats().acks == 1


def test_a_handler_sees_why_the_attempts_before_failed(make: Any, kind: Kind) -> None:
    q = make(max_attempts=3)
    q.send(b"", key="k")
    seen = []

    def process(job: Job) -> None:
        seen.append([(e.attempt, e.error, e.traceback is not None) for e in job.errors])
        if job.attempt == 1:
            assert job.last_error is None
            raise ValueError("no paper")
        if job.attempt == 2:
            raise Retry(0.0, "still none")
        assert job.last_error == job.errors[-1]
        raise Reject("never any") from OSError("no printer")

    Worker(q, kind(process)).run(drain=True)
    first, second = (1, "ValueError: no paper", True), (2, "still none", False)
    assert seen == [[], [first], [first, second]]
    (dead,) = q.dead_letters()
    assert [(e.attempt, e.error) for e in dead.errors] == [first[:2], second[:2], (3, "never any")]
    assert "in process\n" in str(dead.errors[0].traceback)
    assert str(dead.errors[2].traceback).endswith("OSError: no printer")


@pytest.mark.parametrize("stage", ["prepare", "process"])
def test_defer_holds_its_lane_and_charges_nothing(make: Any, kind: Kind, stage: str) -> None:
    q = make(shards=1, max_attempts=1, history="records")
    for n in range(3):
        q.send(b"%d" % n, key="limited")
    q.send(b"", key="other")
    done, events = [], []

    def process(job: Job) -> None:
        done.append((job.key, job.seq))

    def limited(job: Job) -> None:
        job.output("said")
        if job.key == "limited" and job.seq == 2:
            raise Defer(3600.0)
        if stage == "process":
            process(job)

    handlers = [kind(limited)] if stage == "process" else [kind(process), kind(limited)]
    worker = Worker(q, *handlers, concurrency=1, on_event=lambda e: events.append((e.kind, e.seq)))
    worker.run(drain=True)
    assert sorted(done) == [("limited", 1), ("other", 1)]
    stats = worker.stats()
    assert (stats.acked, stats.deferred, stats.retried, stats.poison) == (2, 1, 0, 0)
    assert [seq for what, seq in events if what == "deferred"] == [2]
    assert [(m.seq, m.state, m.attempts) for m in q.peek("limited")] == [(2, "delayed", 0), (3, "delayed", 0)]
    assert q.stats().retries == 0
    assert q.check() == []


def test_reject_dead_letters_and_the_lane_goes_on(q: Queue, kind: Kind) -> None:
    for _ in range(3):
        q.send(b"", key="k")
    seen = []

    def process(job: Job) -> None:
        seen.append(job.seq)
        if job.seq == 2:
            raise Reject("unwanted")

    Worker(q, kind(process)).run(drain=True)
    assert seen == [1, 2, 3]
    assert [(d.seq, d.kind, d.reason) for d in q.dead_letters()] == [(2, "rejected", "unwanted")]


def test_a_failed_prepare_is_a_failed_message_and_process_never_sees_it(make: Any, kind: Kind) -> None:
    q = make(max_attempts=2)
    for _ in range(3):
        q.send(b"", key="k")
    processed, prepared = [], []

    def prepare(job: Job) -> int:
        prepared.append((job.seq, job.attempt))
        if job.seq == 2:
            raise OSError("no such file")
        return job.seq

    Worker(q, kind(lambda job: processed.append((job.seq, job.prepared))), kind(prepare)).run(drain=True)
    assert processed == [(1, 1), (3, 3)]
    assert [p for p in prepared if p[0] == 2] == [(2, 1), (2, 2)]
    assert [d.reason for d in q.dead_letters()] == ["OSError: no such file"]


def test_prepare_may_only_look(q: Queue) -> None:
    q.send(b"", key="k")
    errors = []

    def prepare(job: Job) -> None:
        for attempt in (
            lambda: job.send(b"", key="x"),
            lambda: job.execute("SELECT 1"),
            lambda: job.run(lambda db: None),
            lambda: setattr(job, "key_state", b""),
        ):
            with pytest.raises(InvalidArgument, match="prepare"):
                attempt()
            errors.append(1)
        assert job.key_state is None

    Worker(q, lambda job: None, prepare).run(drain=True)
    assert len(errors) == 4


def test_wrong_sql_fails_the_message(make: Any, kind: Kind) -> None:
    q = make(max_attempts=1)
    q.send(b"", key="k")
    Worker(q, kind(lambda job: job.execute("INSERT INTO nowhere VALUES (1)"))).run(drain=True)
    (dead,) = q.dead_letters()
    assert "nowhere" in (dead.reason or "")


def test_a_message_that_always_ends_its_program_runs_out_of_attempts(make: Any) -> None:
    q = make(max_attempts=2)
    q.send(b"", key="k")

    def process(job: Job) -> None:
        raise SystemExit(3)

    for _ in range(2):
        with pytest.raises(SystemExit):
            Worker(q, process).run(drain=True)
    Worker(q, process).run(drain=True)
    assert [d.reason for d in q.dead_letters()] == ["SystemExit: 3"]


def test_a_plain_function_that_returns_a_coroutine_is_a_clear_error(make: Any) -> None:
    q = make(max_attempts=1)
    q.send(b"", key="k")

    async def handler(job: Job) -> None:
        return None

    Worker(q, lambda job: handler(job)).run(drain=True)
    assert "async def" in (q.dead_letters()[0].reason or "")


def test_a_message_that_arrives_while_its_lane_is_at_work_is_prepared_meanwhile(q: Queue) -> None:
    prepared, go = threading.Event(), threading.Event()
    q.send(b"", key="k")

    def prepare(job: Job) -> None:
        if job.seq == 2:
            prepared.set()

    def process(job: Job) -> None:
        if job.seq == 1:
            go.set()
            assert prepared.wait(PATIENCE_SECONDS)

    worker = Worker(q, process, prepare)
    thread = in_thread(worker)
    assert go.wait(PATIENCE_SECONDS)
    q.send(b"", key="k")
    until(lambda: worker.stats().acked == 2)
    worker.stop()
    thread.join()
    assert q.stats().redeliveries == 0


# ---- time


@pytest.mark.slow
def test_a_handler_that_hangs_is_given_up_and_nothing_of_it_happens(make: Any, kind: Kind) -> None:
    q = make(lease_seconds=30.0)
    q.send(b"first", key="k")
    q.send(b"second", key="k")
    zombie_done, release, seen, errors = threading.Event(), threading.Event(), [], []

    def process(job: Job) -> None:
        seen.append((job.seq, job.attempt))
        if job.seq == 1 and job.attempt == 1:
            try:
                job.send(b"from the zombie", key="out")
                release.wait(PATIENCE_SECONDS)
                assert job.cancelled
                job.send(b"too late", key="out")
            except strictq.LeaseLost as e:
                errors.append(e)
            finally:
                zombie_done.set()

    if kind is awaited:

        async def handler(job: Any) -> None:
            await anyio.to_thread.run_sync(process, job, abandon_on_cancel=True)

        worker = Worker(q, handler, timeout_seconds=TIMEOUT_SECONDS, concurrency=1)
    else:
        worker = Worker(q, process, timeout_seconds=TIMEOUT_SECONDS, concurrency=1)
    thread = in_thread(worker)
    until(lambda: worker.stats().acked == 2)
    release.set()
    assert zombie_done.wait(PATIENCE_SECONDS)
    worker.stop()
    thread.join()
    assert seen == [(1, 1), (1, 2), (2, 1)]
    assert len(errors) == 1
    assert worker.stats().timeouts == 1
    assert q.stats().depth == 0, "what the zombie sent never arrived"


@pytest.mark.slow
def test_leases_are_extended_while_handlers_run(make: Any, kind: Kind) -> None:
    q = make(lease_seconds=30.0)
    q.send(b"", key="k")
    seen = []

    async def slow(job: Any) -> None:
        seen.append(job.attempt)
        await anyio.sleep(LEASED_SECONDS)

    def slow_plain(job: Any) -> None:
        seen.append(job.attempt)
        time.sleep(LEASED_SECONDS)

    Worker(q, slow if kind is awaited else slow_plain, lease_seconds=1.0).run(drain=True)
    assert seen == [1]
    assert q.stats().redeliveries == 0


def test_a_lease_lost_in_mid_flight_cancels_its_job(make: Any, kind: Kind) -> None:
    q = make(lease_seconds=0.3)
    q.send(b"", key="k")
    began, cancelled = threading.Event(), threading.Event()

    def process(job: Job) -> None:
        if began.is_set():  # the second hand-off; what was released has its first attempt again
            return
        began.set()
        until(lambda: job.cancelled)
        cancelled.set()

    async def handler(job: Any) -> None:
        if began.is_set():
            return
        began.set()
        try:
            await anyio.sleep(PATIENCE_SECONDS)
        finally:
            cancelled.set()

    worker = Worker(q, handler if kind is awaited else process)
    thread = in_thread(worker)
    assert began.wait(PATIENCE_SECONDS)
    # As if this process had been stopped for longer than its lease: somebody else took the lane.
    held = next(iter(worker._board.lanes))._held
    q._storage.release(0, [held.some([1])])
    (other,) = q.receive(1, keys=["k"], lease_seconds=60.0) or [None]
    assert cancelled.wait(PATIENCE_SECONDS)
    if other is not None:
        other.ack()
    until(lambda: q.stats().depth == 0)
    worker.stop()
    thread.join()
    assert worker.stats().lost >= 1


# ---- stopping


def test_stop_finishes_what_runs_and_gives_back_the_rest(q: Queue, kind: Kind) -> None:
    for n in range(50):
        q.send(b"", key=n % 5)
    began, go = threading.Event(), threading.Event()

    def process(job: Job) -> None:
        began.set()
        go.wait(PATIENCE_SECONDS)

    async def handler(job: Any) -> None:
        await anyio.to_thread.run_sync(process, job)

    worker = Worker(q, handler if kind is awaited else process, concurrency=2)
    thread = in_thread(worker)
    assert began.wait(PATIENCE_SECONDS)
    until(lambda: worker.stats().running == 2)
    worker.stop()
    until(lambda: worker.stats().buffered == 0)
    go.set()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    stats = q.stats()
    assert (stats.acks, stats.in_flight, stats.depth) == (2, 0, 48)
    assert {d.attempt for d in q.receive(100)} == {1}, "what was given back was not charged"


def test_stop_with_a_deadline_waits_no_longer(q: Queue, kind: Kind) -> None:
    q.send(b"", key="k")
    began, go = threading.Event(), threading.Event()

    def process(job: Job) -> None:
        began.set()
        go.wait(PATIENCE_SECONDS)

    async def handler(job: Any) -> None:
        began.set()
        await anyio.sleep(PATIENCE_SECONDS)

    worker = Worker(q, handler if kind is awaited else process)
    thread = in_thread(worker)
    assert began.wait(PATIENCE_SECONDS)
    worker.stop(0.05)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    go.set()
    assert q.stats().in_flight == 0
    assert "stopped" in (q.explain("k").last_error or "")


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["deadline", "timeout", "crash"])
@pytest.mark.parametrize("ahead", [False, True], ids=["first", "behind one that runs"])
def test_a_prepare_that_hangs_keeps_nobody_from_stopping(make: Any, kind: Kind, ends: str, ahead: bool) -> None:
    q = make()
    q.send_many([strictq.Message(b"", key="k")] * 2)
    hangs, go = threading.Event(), threading.Event()

    def hang(job: Job) -> None:
        if job.seq == 1 + ahead:
            hangs.set()
            go.wait(PATIENCE_SECONDS)

    async def hang_async(job: Any) -> None:
        if job.seq == 1 + ahead:
            hangs.set()
            await anyio.sleep(PATIENCE_SECONDS)

    def process(job: Job) -> None:
        assert hangs.wait(PATIENCE_SECONDS)
        if ends != "deadline":  # else it is waited for no longer, either
            until(lambda: worker._stop is not None or q._storage.closed)

    async def process_async(job: Any) -> None:
        await anyio.to_thread.run_sync(process, job)

    handlers = (process_async, hang_async) if kind is awaited else (process, hang)
    worker = Worker(q, *handlers, prepare_timeout_seconds=0.05 if ends == "timeout" else None)

    def run() -> None:
        with suppress(QueueClosed):
            worker.run()

    thread = threading.Thread(target=run)
    thread.start()
    assert hangs.wait(PATIENCE_SECONDS)
    if ends == "crash":
        q.close()
    else:
        worker.stop(0.05 if ends == "deadline" else None)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    go.set()


def test_a_prepare_at_work_is_waited_for_at_the_stop(q: Queue, kind: Kind) -> None:
    q.send_many([strictq.Message(b"", key="k")] * 2)
    began, go, over = threading.Event(), threading.Event(), threading.Event()

    def prepare(job: Job) -> None:
        began.set()
        go.wait(PATIENCE_SECONDS)
        over.set()

    async def prepare_async(job: Any) -> None:
        await anyio.to_thread.run_sync(prepare, job)

    worker = Worker(q, lambda job: None, prepare_async if kind is awaited else prepare)
    thread = in_thread(worker)
    assert began.wait(PATIENCE_SECONDS)
    worker.stop()
    until(lambda: q.stats().in_flight == 0)  # its message is given back at once
    assert thread.is_alive()
    go.set()
    thread.join(PATIENCE_SECONDS)
    assert over.is_set()
    assert not thread.is_alive()


def test_workers_share_a_queue_under_one_name(q: Queue) -> None:
    for n in range(100):
        q.send(b"", key=n % 10)
    seen = defaultdict(list)
    workers = [Worker(q, lambda job: seen[job.key].append(job.seq), consumer="mailer", batch=10) for _ in range(3)]
    threads = [in_thread(w, drain=True) for w in workers]
    for thread in threads:
        thread.join()
    assert all(seqs == list(range(1, 11)) for seqs in seen.values())
    assert sum(w.stats().acked for w in workers) == 100


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_serve_in_the_callers_loop(q: Queue, backend: str) -> None:
    for n in range(60):
        q.send(b"", key=n % 6)
    seen = defaultdict(list)

    async def process(job: Any) -> None:
        await anyio.lowlevel.checkpoint()
        seen[job.key].append((job.seq, job.prepared))

    async def main() -> None:
        await Worker(q, process, lambda job: job.seq).serve(drain=True)

    anyio.run(main, backend=backend)
    assert all(got == [(n, n) for n in range(1, 11)] for got in seen.values())
    assert q.stats().acks == 60


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_serve_gives_back_what_it_holds(q: Queue, backend: str) -> None:
    for n in range(20):
        q.send(b"", key=n)

    async def process(job: Any) -> None:
        await anyio.sleep(PATIENCE_SECONDS)

    async def main() -> None:
        worker = Worker(q, process, concurrency=3)
        async with anyio.create_task_group() as group:
            group.start_soon(worker.serve)
            while worker.stats().running < 3:
                await anyio.sleep(0.002)
            group.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    stats = q.stats()
    assert (stats.in_flight, stats.ready, stats.acks) == (0, 20, 0)


def test_an_async_queue_will_do(tmp_path: Any) -> None:
    seen = []

    async def main() -> None:
        async with strictq.open_async(tmp_path / "queue", durability="process") as aq:
            await aq.send(b"hello", key=1)
            await Worker(aq, lambda job: seen.append(job.body)).serve(drain=True)

    asyncio.run(main())
    assert seen == [b"hello"]


# ---- seeing it


def test_events_tell_each_change(q: Queue, kind: Kind) -> None:
    q.send(b"", key="k")
    events = []
    worker = Worker(q, kind(lambda job: None), kind(lambda job: None), on_event=events.append)
    worker.run(drain=True)
    assert [e.kind for e in events] == ["leased", "preparing", "prepared", "processing", "acked"]
    assert {(e.key, e.seq, e.attempt) for e in events} == {("k", 1, 1)}
    assert events[-1].seconds >= 0.0
    assert [e.at for e in events] == sorted(e.at for e in events)


def test_problems_are_logged_with_key_seq_and_token(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    q = make(max_attempts=1)
    q.send(b"", key="k")

    def process(job: Job) -> None:
        raise ValueError("no paper")

    Worker(q, process).run(drain=True)
    (record,) = [r for r in caplog.records if r.name == "strictq.worker"]
    assert record.levelname == "ERROR", "it is a dead letter"
    assert record.strictq["key"] == "k"  # type: ignore[attr-defined]
    assert record.strictq["seq"] == 1  # type: ignore[attr-defined]
    assert record.strictq["token"] > 0  # type: ignore[attr-defined]
    assert "no paper" in record.getMessage()
    assert __file__ in record.getMessage(), "where it happened"


def test_an_attempt_that_is_not_the_last_is_not_shown_as_the_last(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """max_attempts alone does not end the attempts of a queue with retry_for_seconds."""
    q = make(max_attempts=2, retry_for_seconds=3600.0)
    q.send(b"", key="k")
    attempts: list[int] = []

    def process(job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt < 4:
            raise ValueError("no paper")

    Worker(q, process).run(drain=True)
    assert attempts == [1, 2, 3, 4]
    said = [r.getMessage() for r in caplog.records if r.name == "strictq.worker"]
    assert [re.findall(r" (attempt \S+): .*; next try at ", text) for text in said] == [
        ["attempt 1/2"],
        ["attempt 2"],
        ["attempt 3"],
    ]


def test_each_change_is_one_record_at_debug(q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    q.send(b"", key="k")
    with caplog.at_level(logging.DEBUG, "strictq.worker"):
        Worker(q, lambda job: None, lambda job: None).run(drain=True)
    records = [r for r in caplog.records if r.name == "strictq.worker"]
    started, *records, stopped = records
    assert (started.levelname, stopped.levelname) == ("INFO", "INFO")
    assert started.getMessage() == f"worker started: {q.path}, 8 messages at once"
    assert stopped.getMessage() == f"worker stopped: {q.path}, 1 acked"
    assert [r.getMessage().split()[0] for r in records] == ["leased", "preparing", "prepared", "processing", "acked"]
    assert {r.levelname for r in records} == {"DEBUG"}
    assert [r.strictq["seconds"] is not None for r in records] == [False, False, True, False, True]  # type: ignore[attr-defined]


def test_a_failing_hook_does_no_harm(q: Queue) -> None:
    q.send(b"", key="k")

    def hook(event: object) -> None:
        raise RuntimeError

    worker = Worker(q, lambda job: None, on_event=hook)
    worker.run(drain=True)
    assert worker.stats().acked == 1


# ---- bad input


def sync_handler(job: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"batch": 0}, "batch"),
        ({"low_water": -1}, "low_water"),
        ({"batch": 10, "low_water": 11}, "low_water"),
        ({"prepared_max": 0}, "prepared_max"),
        ({"prepared_bytes_max": -1}, "prepared_bytes_max"),
        ({"timeout_seconds": 0.0}, "timeout_seconds"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds"),
        ({"prepare_timeout_seconds": -1.0}, "prepare_timeout_seconds"),
        ({"executor": "gpu"}, "executor"),
        ({"lease_seconds": -1.0}, "lease_seconds"),
        ({"keys": "k"}, "keys"),
        ({"consumer": ""}, "consumer"),
        ({"on_event": 1}, "on_event"),
    ],
)
def test_arguments_that_can_never_work(q: Queue, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        Worker(q, sync_handler, **options)


@pytest.mark.parametrize("handler", [None, 1, "process", lambda: None, lambda a, b: None])
def test_handlers_must_take_the_job(q: Queue, handler: Any) -> None:
    with pytest.raises(InvalidArgument, match="process must"):
        Worker(q, handler)
    if handler is not None:
        with pytest.raises(InvalidArgument, match="prepare must"):
            Worker(q, sync_handler, handler)


def test_not_a_queue() -> None:
    with pytest.raises(InvalidArgument, match="not the URL of a queue") as caught:
        Worker("orders.strictq", sync_handler)
    assert caught.value.hint_code == "open_directory"
    with pytest.raises(InvalidArgument, match="Queue"):
        Worker(7, sync_handler)  # type: ignore[arg-type]


def test_run_inside_an_event_loop(q: Queue) -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgument, match="serve"):
            Worker(q, sync_handler).run()

    asyncio.run(main())
    trio.run(main)


def test_run_after_stop_and_run_twice(q: Queue) -> None:
    worker = Worker(q, sync_handler)
    worker.run(drain=True)
    with pytest.raises(InvalidArgument, match="once"):
        worker.run()
    worker = Worker(q, sync_handler)
    worker.stop()
    with pytest.raises(InvalidArgument, match="stopped"):
        worker.run()
    with pytest.raises(InvalidArgument, match="deadline"):
        worker.stop(-1.0)


def test_a_stop_that_comes_while_it_begins_ends_it(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal would: after run() was called, before there is anything to stop."""
    q.send(b"", key="k")
    worker = Worker(q, sync_handler)
    whole = worker._begin

    def begin(*args: Any) -> Any:
        worker.stop()
        return whole(*args)

    monkeypatch.setattr(worker, "_begin", begin)
    worker.run()
    assert q.stats().acks == 0
    assert q.stats().in_flight == 0


def test_a_closed_queue(q: Queue) -> None:
    q.close()
    with pytest.raises(QueueClosed):
        Worker(q, sync_handler)


def test_a_queue_that_is_closed_under_a_worker(q: Queue) -> None:
    worker = Worker(q, sync_handler)
    errors = []

    def run() -> None:
        try:
            worker.run()
        except QueueClosed as e:
            errors.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: worker._keeper is not None)
    q.close()
    thread.join(PATIENCE_SECONDS)
    assert len(errors) == 1


@pytest.mark.parametrize("signature", [Retry, Reject])
def test_signals_are_checked(signature: Any) -> None:
    with pytest.raises(InvalidArgument):
        signature(-1.0 if signature is Retry else "")


def test_the_prepares_that_a_stop_calls_off_are_not_counted(q: Queue) -> None:
    for n in range(10):
        q.send(b"", f"k{n}")
    over = threading.Event()
    worker = Worker(q, lambda _: None, lambda _: over.wait(PATIENCE_SECONDS), concurrency=2, prepared_max=8)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: worker.stats().preparing == 2 and len(worker._board.to_prepare) == 6)
    assert worker.stats().prepared == 0
    worker.stop()
    until(lambda: q.stats().in_flight == 0)
    assert worker.stats().prepared == 0
    over.set()
    thread.join()
    assert worker.stats().prepared == 0
