"""`max_running`: a limit for the handlers of one type, which holds up no other type."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import strictq
from strictq import App, InvalidArgument
from strictq.worker.estimates import Estimates
from strictq.worker.job import Job
from strictq.worker.limits import Limits
from strictq.worker.schedule import Board
from tests.worker import handlers
from tests.worker.conftest import Make, running


@contextmanager
def released(event: threading.Event) -> Iterator[None]:
    """Set an event at the end, also of a test that fails: handlers wait for it."""
    try:
        yield
    finally:
        event.set()


class Counted:
    """Counts the calls that run at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0
        self.done: list[Any] = []

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1

    def __call__(self, what: Any) -> None:
        with self:
            time.sleep(0.003)
            self.done.append(what)


def until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "async", "prepare"])
def test_a_type_at_its_limit_holds_up_no_other_type(make: Make, kind: str) -> None:
    q = make()
    app, slow, quick, go_on = App(q), Counted(), Counted(), threading.Event()
    q.configure(lease_seconds=60.0)

    @app.handler("report", max_running=2)
    def report(n: int) -> None:
        with slow:
            go_on.wait(60)

    if kind == "async":

        @app.handler("mail")
        async def mail_async(n: int) -> None:
            await anyio.to_thread.run_sync(quick, n)
    else:
        app.handler("mail")(quick_handler(quick))
    for n in range(40):
        app.send("report", key=f"r{n}", n=n)
    for n in range(40):
        app.send("mail", key=f"m{n}", n=n)
    worker = app.worker(concurrency=4, prepare=(lambda job: None) if kind == "prepare" else None)
    with running(worker), released(go_on):
        until(lambda: len(quick.done) == 40)
        until(lambda: slow.now == 2)
        found = worker.stats()
        assert found.running <= 4
        assert 0 < found.limited <= 38
        waiting = [q.status(f"r{n}", 1) for n in range(40)]
        assert sum(s.attempts for s in waiting) <= 2
    assert slow.most == 2
    assert (worker.stats().acked, worker.stats().limited, worker.stats().lost) == (80, 0, 0)
    assert q.stats().retries == 0


def quick_handler(quick: Counted) -> Any:
    def mail(n: int) -> None:
        quick(n)

    return mail


@pytest.mark.slow
def test_handlers_in_processes_have_limits(make: Make, tmp_path: Path) -> None:
    q = make()
    app = App(q)
    app.handler("report", max_running=1)(handlers.alone_in)
    app.handler("mail")(handlers.touches)
    for n in range(4):
        app.send("report", key=f"r{n}", place=str(tmp_path))
    for n in range(4):
        app.send("mail", key=f"m{n}", place=str(tmp_path), name=f"mail{n}")
    worker = app.worker(executor="process", concurrency=2)
    worker.run(drain=True)
    assert (worker.stats().acked, q.stats().retries) == (8, 0)
    assert len(list(tmp_path.glob("mail*"))) == 4


def test_the_order_of_a_key_with_several_types_stays(make: Make) -> None:
    q = make()
    app, most = App(q), {"a": Counted(), "b": Counted(), "c": Counted()}
    calls: list[tuple[str, int]] = []

    def handler_of(type: str) -> Any:
        def handle(k: str, n: int) -> None:
            with most[type]:
                time.sleep(0.001)
                calls.append((k, n))

        return handle

    for type, limit in (("a", 1), ("b", 2), ("c", None)):
        app.handler(type, max_running=limit)(handler_of(type))
    rng = random.Random(1)
    sent: Counter[str] = Counter()
    for _ in range(200):
        k = f"k{rng.randrange(12)}"
        app.send(rng.choice("abc"), key=k, k=k, n=sent[k])
        sent[k] += 1
    app.worker(concurrency=6).run(drain=True)
    assert {k: [n for key, n in calls if key == k] for k in sent} == {k: list(range(count)) for k, count in sent.items()}
    assert (most["a"].most, most["b"].most) == (1, 2)
    assert q.stats().retries == 0


def test_failures_free_their_places(make: Make) -> None:
    q = make(max_attempts=2)
    app, counted = App(q), Counted()

    @app.handler("t", max_running=1)
    def handle(n: int) -> None:
        counted(n)
        if n % 2:
            raise ValueError

    for n in range(10):
        app.send("t", key=n, n=n)
    worker = app.worker(concurrency=4)
    worker.run(drain=True)
    assert sorted(counted.done) == sorted([*range(10), *range(1, 10, 2)])
    assert counted.most == 1
    assert (worker.stats().acked, len(q.dead_letters()), worker.stats().limited) == (5, 5, 0)


def test_a_backlog_that_is_too_long_to_hold_is_postponed_uncharged(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strictq.worker.settling.LIMITED_SECONDS", 0.05)
    q = make()
    app, slow, quick, go_on = App(q), Counted(), Counted(), threading.Event()

    @app.handler("report", max_running=1)
    def report(n: int) -> None:
        with slow:
            go_on.wait(60)

    app.handler("mail")(quick_handler(quick))
    for n in range(60):
        app.send("report", key=f"r{n}", n=n)
    for n in range(10):
        app.send("mail", key=f"m{n}", n=n)
    worker = app.worker(concurrency=2, batch=8)
    with running(worker), released(go_on):
        until(lambda: len(quick.done) == 10)
        until(lambda: any(s.state == "delayed" for s in (q.status(f"r{n}", 1) for n in range(60))))
        assert worker.stats().limited <= 8 + 16
        postponed = next(s for s in (q.status(f"r{n}", 1) for n in range(60)) if s.state == "delayed")
        assert (postponed.attempts, "max_running" in str(postponed.last_error)) == (0, True)
    assert (worker.stats().acked, slow.most, q.stats().retries, q.stats().depth) == (70, 1, 0, 0)


def test_the_limit_is_checked(make: Make) -> None:
    app = App(make())
    for value in (0, -1, True, 1.0, "2", 10_001):
        with pytest.raises(InvalidArgument, match="max_running"):
            app.handler("t", max_running=value)  # type: ignore[arg-type]
    assert app.handlers == {}
    app.handler("t", max_running=10_000)(handlers.touches)
    assert app.handlers["t"].max_running == 10_000


# ---- the board


@pytest.mark.parametrize("prepares", [False, True], ids=["plain", "prepare"])
@pytest.mark.parametrize("seed", range(12))
def test_a_board_keeps_the_limits_of_types_in_any_order_of_events(prepares: bool, seed: int) -> None:
    """Handlers end, fail and are refused at random; leases come and go."""
    rng = random.Random(seed)
    limits = {"a": 1, "b": rng.randint(1, 3)}
    with strictq.open(":memory:") as q:
        for n in range(120):
            q.send(rng.choice([b"a", b"b", b"c"]), key=f"k{rng.randrange(30)}" if n % 2 else f"l{n}")
        board = Board(Limits(concurrency=rng.randint(1, 6), prepares=prepares), Estimates())
        board.limit = lambda job: (job.body.decode(), limits[job.body.decode()]) if job.body.decode() in limits else None
        now, at_work, preparing = 0.0, list[Job](), list[Job]()
        done: list[tuple[Any, int]] = []
        left = 120
        for _ in range(100_000):
            now += 0.01
            leases = rng.random() < 0.3 or not board.jobs
            if leases and (batch := q.receive(rng.randint(1, 20), lease_seconds=3600)):
                board.add(batch, 1e9)
            pairs, starting = board.take_work()
            if rng.random() < 0.1:
                for job, after in pairs:
                    board.refused(job, after, ack=True)
                for job in starting:
                    board.refused(job, None, ack=False)
            else:
                for job, _ in pairs:
                    job._delivery.ack()
                    done.append((job.key, job.seq))
                    left -= 1
                board.settled(pairs, starting, now)
            board.plan(now)
            while (job := board.take_prepare(now)) is not None:
                preparing.append(job)
            while (job := board.take(now)) is not None:
                at_work.append(job)
            running = Counter(job.body.decode() for job in board.running)
            assert all(running[type] <= most for type, most in limits.items())
            assert len(board.running) <= board.limits.concurrency
            assert sum(lane.passed > 0 for lane in board.lanes.values()) == board.passed_lanes
            assert board.passed_jobs >= 0
            rng.shuffle(preparing)
            for job in preparing[: rng.randint(0, 3)]:
                preparing.remove(job)
                board.prepared(job, None, None, 1, now)
            rng.shuffle(at_work)
            for job in at_work[: rng.randint(0, 3)]:
                at_work.remove(job)
                if rng.random() < 0.1:  # it fails, and its lane is returned
                    assert board.processed(job)
                    job._delivery.nack(delay=0.0)
                    board.drop(job._lane)
                elif board.processed(job):
                    board.done.append(job)
            if rng.random() < 0.05:
                for first in board.surplus(rng.randint(0, 10)):
                    q._client.settling.release_rest([first._delivery])
            if not left:
                break
        assert not left
        assert board.idle
        assert sum(board._places.values()) == board.passed_lanes == board.passed_jobs == 0
        for key in {key for key, _ in done}:
            assert [seq for k, seq in done if k == key] == sorted(seq for k, seq in done if k == key)


def test_lanes_behind_those_that_are_passed_are_planned_at_once() -> None:
    """Otherwise their prepares begin only when something else wakes the keeper, up to five seconds later."""
    with strictq.open(":memory:") as q:
        for n in range(40):
            q.send(b"slow", key=f"s{n}")
        for n in range(40):
            q.send(b"quick", key=f"q{n}")
        board = Board(Limits(concurrency=4, prepares=True), Estimates())
        board.limit = lambda job: ("slow", 2) if job.body == b"slow" else None
        board.add(q.receive(100, lease_seconds=3600), 1e9)
        now, prepared = 1.0, Counter[bytes]()
        while (due := board.plan(now)) is not None and due <= now:
            while (job := board.take_prepare(now)) is not None:
                prepared[job.body] += 1
        assert (prepared[b"slow"], board.passed_lanes) == (2, 38)
        assert prepared[b"quick"] > 0
