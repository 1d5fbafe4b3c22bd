"""The workers' newest spans, which a console in another process reads."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Queue, Worker
from strictq._store.api import HandlerSpan
from strictq.worker import spans as _spans
from tests.support.running import until
from tests.worker.conftest import Make


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spans, "LOOK_SECONDS", 0.02)


def seen(q: Queue) -> list[HandlerSpan]:
    return [span for report in q._storage.watch_workers() for span in report.spans]


class Running:
    """A worker in a thread, whose handlers wait until they are allowed to end."""

    def __init__(self, q: Queue, **options: Any) -> None:
        self.go_on = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.worker = Worker(q, self.work, **options)
        self.thread = threading.Thread(target=self.worker.run)

    def work(self, job: Any) -> None:
        self.begun.release()
        assert self.go_on.acquire(timeout=60)
        if job.body == b"bad":
            raise strictq.Reject("no")

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self.go_on.release(100)
        self.thread.join()


def test_spans_tell_what_runs_and_what_ended(make: Make) -> None:
    q = make()
    with Running(q, prepare=lambda job: None, consumer="mailer"):
        until(lambda: q._storage.watch_workers())
        q.send(b"", key="k" * 300)
        q.send(b"bad", key=b"\xff")
        until(lambda: {span.stage for span in seen(q) if span.end is None} == {"process"})
        (report,) = q._storage.watch_workers()
        assert report.consumer == "mailer"
        assert {span.key[:4] for span in report.spans} == {"kkkk", "b'\\x"}


def test_handlers_that_began_before_anybody_looked_are_reported(make: Make) -> None:
    q = make()
    begun = time.time()
    with Running(q) as running:
        q.send_many([strictq.Message(b"", key="a"), strictq.Message(b"", key="b")])
        for _ in range(2):
            assert running.begun.acquire(timeout=60)
        until(lambda: {(span.stage, span.key, span.end) for span in seen(q)} == {("process", "a", None), ("process", "b", None)})
        assert all(begun - 1 < span.start <= time.time() for span in seen(q))
        running.go_on.release(2)
        until(lambda: {(span.key, span.outcome) for span in seen(q)} == {("a", "acked"), ("b", "acked")})


def test_ended_handlers_have_their_outcomes(make: Make) -> None:
    q = make()
    with Running(q, prepare=lambda job: None) as running:
        until(lambda: q._storage.watch_workers())
        running.go_on.release(2)
        q.send(b"", key="a")
        q.send(b"bad", key="b")
        until(lambda: {"acked", "rejected"} <= {span.outcome for span in seen(q)})
        found = {(span.stage, span.key, span.outcome): span for span in seen(q) if span.end is not None}
        assert ("process", "a", "acked") in found
        assert ("process", "b", "rejected") in found
        assert ("prepare", "a", "prepared") in found
        for span in found.values():
            assert span.end is not None
            assert time.time() - 60 < span.start <= span.end <= time.time() + 1


def test_another_process_watches_by_a_file_and_nothing_is_reported_otherwise(place: Path) -> None:
    with strictq.open(place / "q") as q, strictq.open(place / "q", read_only=True) as looking:
        q.send(b"", key="k")
        with Running(q) as running:
            until(lambda: q.stats().in_flight)
            assert not list((place / "q").glob("spans-*"))
            assert not running.worker._keeper.state.loud  # type: ignore[union-attr]
            until(lambda: seen(looking) or list((place / "q").glob("spans-*")))
            running.go_on.release()
            until(lambda: [span.outcome for span in seen(looking)] == ["acked"])
            assert next((place / "q").glob("spans-*")).stat().st_size <= 32 * 1024
            os.utime(place / "q" / "console-watch", (0, 0))
            until(lambda: not list((place / "q").glob("spans-*")))
            assert not running.worker._keeper.state.loud  # type: ignore[union-attr]
        assert q.check() == []


def test_many_long_spans_fit_their_slots(place: Path) -> None:
    with strictq.open(place / "q") as q:
        worker = Worker(q, lambda job: None)
        keeper = worker._begin(True, None)
        q._storage.watch_workers()
        keeper._spans.tell(0.0)
        for n in range(300):
            for kind in ("processing", "acked"):
                key = "\x01\U0001f600" * 200 if n % 2 else -(10**300)
                event = strictq.WorkerEvent(kind, key, 2**62 - n, 1, 1, 0.0, seconds=0.25 if kind == "acked" else None)
                keeper.state._tell(event)
        keeper._spans.tell(10.0)
        found = seen(q)
        assert [span.seq for span in found] == [2**62 - n for n in range(45, 300)]
        assert all(span.end == pytest.approx((span.start or 0) + 0.25, abs=1e-3) for span in found)
        assert len(found[0].key) > 4
        keeper._end()
    assert not list((place / "q").glob("spans-*"))


def test_a_handler_whose_end_no_event_tells_is_forgotten(place: Path) -> None:
    """Such as one that prepared a message, when an earlier message of its key failed, and both went back."""
    with strictq.open(place / "q") as q:
        keeper = Worker(q, lambda job: None)._begin(True, None)
        q._storage.watch_workers()
        keeper._spans.tell(0.0)
        keeper.state._tell(strictq.WorkerEvent("preparing", "k", 2, 1, 1, 0.0))
        keeper._spans.tell(10.0)
        assert seen(q) == []
        keeper._end()
