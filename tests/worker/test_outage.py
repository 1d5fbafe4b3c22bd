"""A dependency of the handlers that is down: what a worker does meanwhile, and when it is back."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

import strictq
from benchmarks.outage import Dependency, DependencyDown, fill, handle, judge
from strictq import Breaker, Defer, Event, InvalidArgument, Job, Queue, QueueConfig, Reject, Retry, Worker, WorkerEvent
from strictq._values.keys import encode_key
from strictq.testing import Drained, FakeClock, drain, drain_async
from strictq.worker import AsyncJob
from tests.support.running import PATIENCE_SECONDS, until
from tests.worker.conftest import Make
from tests.worker.handlers import afail_while_the_file_is_there, fail_while_the_file_is_there

MESSAGES, KEYS = 800, 80
QUICK = Breaker(probe_seconds=0.01, probe_seconds_max=0.05)
"""Outages of real workers are as short as that."""


def outage(q: Queue, clock: FakeClock, seconds: float, **options: Any) -> tuple[Dependency, list[tuple[Any, int, int, str]]]:
    """The dependency goes down for so long of the queue's time when a message of each key is done."""
    dependency = Dependency(KEYS, seconds, lambda: clock.now)
    fill(q, MESSAGES, KEYS)
    done = drain(q, handle(dependency), failures="retry", breaker=Breaker(), **options)
    assert done.acked == MESSAGES
    return dependency, done.failures


@pytest.mark.in_turn
@pytest.mark.parametrize("seconds", [5.0, 600.0])
@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("shards", [1, 3])
def test_an_outage_kills_no_message_and_changes_no_order(seconds: float, concurrency: int, shards: int) -> None:
    clock = FakeClock()
    with strictq.open(":memory:", shards=shards, clock=clock) as q:
        dependency, _ = outage(q, clock, seconds, concurrency=concurrency)
        outcome = judge(q, dependency, MESSAGES, KEYS)
        assert outcome.good, outcome
        assert (outcome.accepted, outcome.dead, outcome.lost, outcome.repeated, outcome.reordered) == (MESSAGES, 0, 0, 0, 0)
        assert q.check() == []


def test_an_outage_charges_each_message_once_at_most() -> None:
    clock = FakeClock()
    with strictq.open(":memory:", clock=clock) as q:
        attempts: list[int] = []

        def process(job: Job) -> None:
            attempts.append(job.attempt)
            work(job)

        dependency = Dependency(KEYS, 600.0, lambda: clock.now)
        work = handle(dependency)
        fill(q, MESSAGES, KEYS)
        drain(q, process, failures="retry", breaker=Breaker())
        assert max(attempts) <= 2
        assert dependency.refused < KEYS + 200, "a message of each key, and one after another while it is down"


def test_without_a_breaker_the_same_outage_is_seen_to_fail_messages() -> None:
    """What the tests above see is the breaker's doing. Fewer messages show it: each fails several times."""
    clock = FakeClock()
    with strictq.open(":memory:", clock=clock, config=QueueConfig(max_attempts=3, retry_delay_seconds=1.0)) as q:
        dependency = Dependency(20, 600.0, lambda: clock.now)
        fill(q, 200, 20)
        drain(q, handle(dependency), failures="retry", breaker=None)
        assert not judge(q, dependency, 200, 20).good


class Running:
    """A worker at work in a thread, on a dependency that the test lets go down and come back."""

    def __init__(self, q: Queue, **options: Any) -> None:
        self.q = q
        self.down = threading.Event()
        self.calls: list[tuple[Any, int]] = []
        self.events: list[WorkerEvent] = []
        self.worker = Worker(q, self.process, on_event=self.events.append, **{"breaker": QUICK, **options})
        self.thread = threading.Thread(target=self.worker.run)

    def process(self, job: Job) -> None:
        if self.down.is_set():
            raise DependencyDown("connection refused")
        self.calls.append((job.key, job.seq))

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()

    def kinds(self) -> list[str]:
        return [e.kind for e in self.events if e.kind.startswith("breaker")]


def send(q: Queue, keys: int, each: int = 1) -> None:
    q.send_many([strictq.Message(b"x", key=f"k{n}") for _ in range(each) for n in range(keys)])


def test_while_it_is_open_the_worker_holds_nothing_and_others_may_work(make: Make) -> None:
    q = make(retry_delay_seconds=3600.0, retry_delay_max_seconds=3600.0)
    running = Running(q, breaker=Breaker(probe_seconds=3600.0, probe_seconds_max=3600.0))
    running.down.set()
    send(q, 100, 3)
    with running:
        until(lambda: running.kinds() == ["breaker_opened"] and q.stats().in_flight == 0)
        assert q.stats().dead == 0
        others = q.receive(1000)
        assert others
        assert all(d.attempt == 1 for d in others)  # what had been leased ahead was not charged
        started = time.monotonic()
    assert time.monotonic() - started < PATIENCE_SECONDS / 2  # a stop does not wait for the next probe


def test_when_it_closes_everything_is_done_in_order(q: Queue) -> None:
    running = Running(q)
    running.down.set()
    send(q, 50, 4)
    with running:
        until(lambda: sum(e.kind == "deferred" for e in running.events) > 60)  # many probes have failed
        running.down.clear()
        until(lambda: q.stats().depth == 0)
        until(lambda: running.kinds()[-1] == "breaker_closed")
    assert q.stats().dead == 0
    for n in range(50):
        assert [seq for key, seq in running.calls if key == f"k{n}"] == [1, 2, 3, 4]


def test_what_waits_because_it_failed_is_due_when_it_closes_and_what_was_asked_for_is_not(make: Make) -> None:
    q = make(retry_delay_seconds=3600.0, retry_delay_max_seconds=3600.0, shards=2)
    q.send(b"x", key="delayed send", delay=3600.0)
    for key, delay in (("asked", 3600.0), ("policy", None)):
        q.send(b"x", key=key)
        q.receive(1)[0].nack(delay=delay, reason="an error")
    q.send(b"x", key="deferred")
    q.receive(1)[0].defer(3600.0)
    running = Running(q)
    running.down.set()
    send(q, 40)
    with running:
        until(lambda: running.kinds() == ["breaker_opened"])
        running.down.clear()
        until(lambda: q.stats().depth == 3)
    assert ("policy", 1) in running.calls
    assert {key for key in ("delayed send", "asked", "deferred") if q.explain(key).state == "delayed"} == {
        "delayed send", "asked", "deferred"
    }  # fmt: skip


def test_a_poison_message_does_not_keep_it_open(q: Queue) -> None:
    q.send(b"x", key="poison")
    send(q, 60)
    down = threading.Event()
    down.set()
    seen = []

    def process(job: Job) -> None:
        seen.append(job.key)
        if down.is_set() or job.key == "poison":
            raise ValueError("no")

    events: list[WorkerEvent] = []
    worker = Worker(q, process, breaker=QUICK, on_event=events.append)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: any(e.kind == "breaker_opened" for e in events))
    down.clear()
    until(lambda: q.stats().acks == 60)
    worker.stop()
    thread.join()
    assert "poison" in seen


def test_it_is_reported_in_stats_events_and_the_log(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    q = make()
    told: list[Event] = []
    q.on_event(told.append)
    running = Running(q, consumer="me", breaker=Breaker(probe_seconds=0.05, probe_seconds_max=0.05))
    running.down.set()
    send(q, 100)
    assert q.stats().breakers == ()
    assert running.worker.stats().breaker is None
    with caplog.at_level(logging.INFO, "strictq.worker"), running:
        until(lambda: q.stats().breakers and q.stats().breakers[0].probes > 1)
        (breaker,) = q.stats().breakers
        assert breaker.consumer == "me"
        assert breaker.error == "DependencyDown: connection refused"
        assert breaker.failures == breaker.ends >= 20
        assert abs(breaker.since - time.time()) < PATIENCE_SECONDS
        shown = running.worker.stats().breaker
        assert shown is not None
        assert shown.error == breaker.error
        running.down.clear()
        until(lambda: q.stats().breakers == () and q.stats().depth == 0)
    opened, closed = (r for r in caplog.records if r.getMessage().startswith("breaker"))
    assert opened.levelno == closed.levelno == logging.WARNING
    assert "handlers failed within 10 s" in opened.getMessage()
    assert "DependencyDown: connection refused" in opened.getMessage()
    assert [e.kind for e in told] == ["worker_started", "breaker_opened", "breaker_closed", "worker_stopped"]
    assert running.kinds() == ["breaker_opened", "breaker_closed"]


@pytest.mark.parametrize("error", [Reject("bad"), Defer(0.0), KeyboardInterrupt()])
def test_what_says_nothing_of_a_dependency_does_not_count(q: Queue, error: BaseException) -> None:
    send(q, 50)
    left = [50]

    def process(_job: Job) -> None:
        if left[0]:
            left[0] -= 1
            raise error

    events: list[WorkerEvent] = []
    worker = Worker(q, process, concurrency=1, breaker=QUICK, on_event=events.append)
    try:
        worker.run(drain=True)
    except KeyboardInterrupt:
        assert isinstance(error, KeyboardInterrupt)
    assert not any(e.kind == "breaker_opened" for e in events)


def test_a_drain_whose_handler_always_fails_ends(tmp_path: Path) -> None:
    """With the settings of a new queue: each key's head failed once, and waits; what is behind it waits with it."""

    def process(_job: Job) -> None:
        raise DependencyDown

    config = QueueConfig(retry_delay_seconds=600.0)
    with strictq.open(tmp_path / "drained", config=config, durability="process") as q:
        send(q, 100, each=2)
        worker = Worker(q, process)
        worker.run(drain=True)
        stats = q.stats()
    assert (stats.delayed, stats.dead, stats.in_flight, stats.breakers) == (200, 0, 0, ())
    assert worker.stats().retried == 100


def test_retry_and_time_outs_count(q: Queue) -> None:
    send(q, 30)
    down = [True]

    def process(job: Job) -> None:
        if down[0]:
            if int(job.key[1:]) % 2:  # type: ignore[index, arg-type]
                raise Retry
            while not job.cancelled:
                time.sleep(0.001)

    events: list[WorkerEvent] = []

    def told(event: WorkerEvent) -> None:
        events.append(event)
        if event.kind == "breaker_opened":
            down[0] = False

    Worker(q, process, breaker=QUICK, timeout_seconds=0.05, concurrency=30, on_event=told).run(drain=True)
    assert [e.kind for e in events if e.kind.startswith("breaker")] == ["breaker_opened", "breaker_closed"]
    assert q.stats().depth == 0


def test_a_probe_that_is_rejected_is_followed_by_another(q: Queue) -> None:
    send(q, 40)
    reject = [False]
    events: list[WorkerEvent] = []
    rejected: list[str] = []

    def process(job: Job) -> None:
        if not reject[0]:
            raise ValueError("no")
        if len(rejected) < 3:
            rejected.append(job.key)  # type: ignore[arg-type]
            raise Reject("bad")

    def told(event: WorkerEvent) -> None:
        events.append(event)
        reject[0] = reject[0] or event.kind == "breaker_opened"

    Worker(q, process, breaker=QUICK, concurrency=1, on_event=told).run(drain=True)
    assert len(rejected) == 3
    assert q.stats().depth == 0
    assert q.stats().dead == 3


def test_a_failing_prepare_opens_it(q: Queue) -> None:
    send(q, 60)
    down = [True]

    def prepare(_job: Job) -> None:
        if down[0]:
            raise DependencyDown("connection refused")

    def told(event: WorkerEvent) -> None:
        if event.kind == "breaker_opened":
            down[0] = False

    Worker(q, lambda _job: None, prepare, breaker=QUICK, on_event=told).run(drain=True)
    assert not down[0]
    assert q.stats().depth == q.stats().dead == 0


@pytest.mark.parametrize("kind", ["process", "async"])
def test_it_works_for_child_processes_and_async_handlers(q: Queue, tmp_path: Path, kind: str) -> None:
    down = tmp_path / "down"
    down.touch()
    q.send_many([strictq.Message(os.fsencode(down), key=f"k{n}") for n in range(60)])
    events: list[WorkerEvent] = []

    def told(event: WorkerEvent) -> None:
        events.append(event)
        if event.kind == "breaker_opened":
            down.unlink()

    handler = afail_while_the_file_is_there if kind == "async" else fail_while_the_file_is_there
    executor: Any = "process" if kind == "process" else "thread"
    Worker(q, handler, executor=executor, concurrency=2, breaker=QUICK, on_event=told).run(drain=True)
    assert [e.kind for e in events if e.kind.startswith("breaker")] == ["breaker_opened", "breaker_closed"]
    assert q.stats().dead == 0
    assert sum(e.kind == "acked" for e in events) + q.stats().delayed == 60


def test_an_async_drain_skips_the_time_between_probes() -> None:
    clock = FakeClock()
    with strictq.open(":memory:", clock=clock) as q:
        dependency = Dependency(KEYS, 600.0, lambda: clock.now)
        work = handle(dependency)
        fill(q, MESSAGES, KEYS)

        async def process(job: AsyncJob) -> None:
            work(job)

        async def run() -> Drained:
            return await drain_async(q, process, failures="retry", breaker=Breaker())

        done = anyio.run(run)
        assert 600.0 <= done.seconds <= 610.0
        assert judge(q, dependency, MESSAGES, KEYS).good


def test_without_one_nothing_opens(make: Make) -> None:
    q = make(max_attempts=2, retry_delay_seconds=0.0)
    send(q, 40)

    def process(_job: Job) -> None:
        raise ValueError("no")

    Worker(q, process, breaker=None).run(drain=True)
    assert q.stats().dead == 40


def test_a_breaker_is_a_breaker(q: Queue) -> None:
    with pytest.raises(InvalidArgument, match="breaker must be a Breaker or None"):
        Worker(q, print, breaker=True)  # type: ignore[arg-type]


def test_workers_of_some_keys_end_delays_of_those_keys(make: Make) -> None:
    q = make(retry_delay_seconds=3600.0, retry_delay_max_seconds=3600.0)
    for key in ("mine", "other"):
        q.send(b"x", key=key)
        q.receive(1)[0].nack(reason="an error")
    assert q._storage.operate.end_failure_delays([encode_key("mine"), encode_key("no such key")], one=True) == 1
    assert q._storage.operate.end_failure_delays([encode_key("mine")]) == 0
    assert [d.key for d in q.receive(10)] == ["mine"]
    assert q._storage.operate.end_failure_delays(None) == 1
    assert [d.key for d in q.receive(10)] == ["other"]


def test_many_delays_end_in_steps_over_all_shards(make: Make) -> None:
    q = make(retry_delay_seconds=3600.0, retry_delay_max_seconds=3600.0, shards=3)
    send(q, 1000)
    q.nack_many(q.receive(1000, per_key=1))
    assert q.stats().delayed == 1000
    assert q._storage.operate.end_failure_delays(None, one=True) == 1
    assert q._storage.operate.end_failure_delays(None) == 999
    received = 0
    while found := q.receive(1000):  # a receive lists a bounded number of lanes whose delay is over
        received += len(found)
    assert received == 1000
    assert q.check() == []


@pytest.mark.parametrize("kind", ["plain", "async", "batch"])
def test_one_tenants_outage_stops_that_tenants_messages_only(make: Make, kind: str) -> None:
    q = make(shards=2)
    down, done, events = threading.Event(), list[tuple[Any, int]](), list[WorkerEvent]()
    down.set()

    def process(job: Job) -> None:
        if down.is_set() and str(job.key).startswith("down/"):
            raise DependencyDown("connection refused")
        done.append((job.key, job.seq))

    async def process_async(job: Job) -> None:
        process(job)

    def process_batch(jobs: list[Job]) -> None:
        for job in jobs:
            try:
                process(job)
            except DependencyDown as e:
                job.fail(e)

    options: dict[str, Any] = {"process_batch": process_batch} if kind == "batch" else {}
    handler = {"plain": process, "async": process_async, "batch": None}[kind]
    rules = Breaker(probe_seconds=0.05, probe_seconds_max=0.2, starts_min=5)
    worker = Worker(q, handler, breaker=rules, on_event=events.append, **options)
    q.send_many([strictq.Message(b"x", key=f"down/{n}") for _ in range(4) for n in range(60)])
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(lambda: any(b.group == "down" for b in q.stats().breakers))
        for n in range(30):
            q.send(b"x", key=f"well-{n}/a")
        until(lambda: q.stats().acks == 30)
        (shown,) = q.stats().breakers
        assert (shown.group, shown.error) == ("down", "DependencyDown: connection refused")
        assert worker.stats().breaker is not None
        explained = q.explain("down/59")
        assert explained.attempts <= 1
        down.clear()
        until(lambda: q.stats().depth == 0)
        until(lambda: q.stats().breakers == ())
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)
    assert q.stats().dead == 0
    for n in range(60):
        assert [seq for key, seq in done if key == f"down/{n}"] == [1, 2, 3, 4]
    told = [e.detail for e in events if e.kind.startswith("breaker")]
    assert all(text.startswith("group 'down': ") for text in told)
    assert q.check() == []


@pytest.mark.parametrize("prepares", [False, True])
def test_a_worker_goes_on_after_an_outage_of_everything(make: Make, prepares: bool) -> None:
    q = make()
    down = threading.Event()
    down.set()

    def fetch(job: Job) -> None:
        if down.is_set():
            raise DependencyDown("connection refused")

    def handle(job: Job) -> None:
        if not prepares:
            fetch(job)

    rules = Breaker(starts_min=4, window_seconds=0.5, probe_seconds=0.02, probe_seconds_max=0.05)
    worker = Worker(q, handle, fetch if prepares else None, concurrency=2, breaker=rules)
    q.send_many([strictq.Message(b"", key=f"busy/{n}") for n in range(40)])
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(lambda: any(b.group == "busy" for b in q.stats().breakers))
        sent = 40

        def worker_opens() -> bool:
            nonlocal sent
            q.send_many([strictq.Message(b"", key=f"{group}{sent}/x") for group in ("busy/new", "b", "c", "d")])
            sent += 4
            return any(b.group is None for b in q.stats().breakers)

        until(worker_opens)
        down.clear()
        until(lambda: q.stats().depth == 0)
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)
    stats = q.stats()
    assert (stats.acks, stats.dead) == (sent, 0)


def test_a_message_that_waits_for_its_group_is_charged_nothing_and_says_why(make: Make) -> None:
    q = make()
    events: list[WorkerEvent] = []

    def process(job: Job) -> None:
        raise DependencyDown("connection refused")

    worker = Worker(q, process, breaker=Breaker(probe_seconds=3600.0, probe_seconds_max=3600.0), on_event=events.append)
    send_all = [strictq.Message(b"x", key=f"down/{n}") for n in range(100)]
    q.send_many(send_all)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(lambda: q.stats().delayed == 100)
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)
    begun = {e.key for e in events if e.kind == "processing"}
    waiting = [f"down/{n}" for n in range(100) if f"down/{n}" not in begun]
    assert len(waiting) > 50
    for key in waiting:
        status = q.status(key, 1)
        assert (status.attempts, status.errors) == (0, ())
        assert status.last_error == "it waits because handlers of the group 'down' fail: DependencyDown: connection refused"
