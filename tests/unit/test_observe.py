"""Observers: what they are given, that they change nothing, and that they cost nothing where nobody listens."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

import strictq
from strictq import Event, InvalidArgument, Message, Observer, Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill

STATS = ("sends", "receives", "claims", "acks", "retries", "redeliveries", "expired", "dropped", "purged", "empty_receives")


class Recorder(Observer):
    """Keeps all that it is given. `list.append` and the lock make it safe in threads."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.counts: Counter[tuple[str, int]] = Counter()
        self.durations: list[tuple[str, float, int]] = []
        self.calls = 0
        self._lock = threading.Lock()

    def event(self, event: Event) -> None:
        self.events.append(event)

    def count(self, name: str, n: int, shard: int) -> None:
        with self._lock:
            self.counts[name, shard] += n
            self.calls += 1

    def duration(self, name: str, seconds: float, shard: int) -> None:
        self.durations.append((name, seconds, shard))

    def total(self, name: str) -> int:
        """Over all shards."""
        return sum(n for (each, _), n in self.counts.items() if each == name)


def agree(seen: Recorder, q: Queue) -> None:
    """What was counted is what the queue's own counters say, shard by shard."""
    for shard in q.stats().shards:
        for name in STATS:
            assert seen.counts[name, shard.shard] == getattr(shard, name), (name, shard.shard)


@pytest.mark.own_messages("totals of the queue")
def test_counts_are_those_of_stats_for_each_shard(make: Opener, clock: FakeClock) -> None:
    q = make(shards=3, lease_seconds=5.0, max_attempts=3)
    seen = Recorder()
    q.observe(seen)
    q.send_many([Message(b"", key=n % 7) for n in range(40)])
    q.send(b"", key=1, ttl=1.0)
    q.receive(20)[0].ack()
    q.ack_many(q.receive(10))
    clock.advance(6.0)
    for d in q.receive(100, per_key=1):
        d.nack()
    d, *_ = q.receive(1)
    d.reject("no")
    q.purge(3)
    while q.receive(100):
        pass
    assert seen.total("sends") == 41
    assert min(seen.total(name) for name in ("acks", "retries", "redeliveries", "purged", "claims", "empty_receives")) > 0
    assert seen.total("dead_letters") == q.stats().dead == 1
    agree(seen, q)


@pytest.mark.own_messages("totals of the queue")
def test_expired_and_dropped_are_counted(make: Opener, clock: FakeClock) -> None:
    q = make(max_attempts=1, on_poison="drop")
    seen = Recorder()
    q.observe(seen)
    q.send(b"", "a", ttl=1.0)
    q.send(b"", "b")
    clock.advance(2.0)
    (d,) = q.receive()
    d.nack()
    assert (seen.total("expired"), seen.total("dropped"), seen.total("dead_letters")) == (1, 1, 0)
    agree(seen, q)


def test_dead_letters_are_counted_again_after_a_redrive(make: Opener) -> None:
    q = make()
    seen = Recorder()
    q.observe(seen)
    q.send(b"", "k")
    for _ in range(2):
        (d,) = q.receive()
        d.reject("no")
        q.redrive("k")
    assert seen.total("dead_letters") == 2


@pytest.mark.one_shard("one commit")
def test_a_commit_is_counted_once_and_one_undone_never(make: Opener) -> None:
    q = make()
    seen = Recorder()
    q.observe(seen)
    q.send_many([Message(b"", key=n) for n in range(1000)])
    assert (seen.calls, seen.counts["sends", 0]) == (1, 1000)
    with pytest.raises(ZeroDivisionError), q.transaction(key="k") as tx:
        tx.send(b"", "k")
        raise ZeroDivisionError
    assert seen.calls == 1


def test_durations(make: Opener) -> None:
    q = make(shards=2)
    seen = Recorder()
    q.observe(seen)
    shard = q.send(b"", "k").shard
    assert [(name, where) for name, _, where in seen.durations] == [("commit", shard)]
    q.app_schema("CREATE TABLE app_t (x)")
    seen.durations.clear()
    with q.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_t VALUES (1)")
    assert ("transaction", shard) in [(name, where) for name, _, where in seen.durations]
    assert all(seconds >= 0 for _, seconds, _ in seen.durations)


def test_a_receive_that_waits_says_how_long() -> None:
    seen = Recorder()
    with strictq.open(":memory:") as q, q.observe(seen):
        assert q.receive(wait=0.0) == []
        assert [d for d in seen.durations if d[0] == "receive_wait"] == []
        assert q.receive(wait=0.02) == []
        ((_, seconds, shard),) = [d for d in seen.durations if d[0] == "receive_wait"]
        assert shard == -1
        assert seconds > 0.0  # the look before took a part of what it was asked to wait


def test_only_what_is_overridden_is_called(q: Queue) -> None:
    class Nothing(Observer):
        pass

    class Counting(Observer):
        def count(self, name: str, n: int, shard: int) -> None:
            pass

    observers = q._storage.observers
    with q.observe(Nothing()):
        assert (observers.events, observers.worker_events, observers.counts, observers.durations) == ((), (), (), ())
    with q.observe(Counting()):
        assert len(observers.counts) == 1
        assert (observers.events, observers.durations) == ((), ())
    assert observers.counts == ()


def test_it_ends_with_close_or_a_with_block(q: Queue) -> None:
    one, two = Recorder(), Recorder()
    first = q.observe(one)
    with q.observe(two) as observation:
        assert observation.observer is two
        q.send(b"", "k")
    q.send(b"", "k")
    first.close()
    first.close()
    q.send(b"", "k")
    assert (one.total("sends"), two.total("sends")) == (2, 1)


def test_the_same_observer_twice_is_called_twice(q: Queue) -> None:
    seen = Recorder()
    with q.observe(seen):
        with q.observe(seen):
            q.send(b"", "k")
        q.send(b"", "k")
    assert seen.total("sends") == 3


@pytest.mark.parametrize("given", [None, print, Observer, object()])
def test_what_is_no_observer_is_refused(q: Queue, given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"must be a strictq\.Observer"):
        q.observe(given)


def test_hooks_and_observers_are_given_the_same_events(make: Opener) -> None:
    hooked: list[Event] = []
    later: list[Event] = []
    seen = Recorder()
    q = make(on_event=hooked.append)
    q.on_event(later.append)
    q.observe(seen)
    q.send(b"", "k")
    q.receive()[0].reject("bad")
    assert hooked == later == seen.events
    assert [e.kind for e in hooked] == ["dead_letter"]


def test_what_an_observer_raises_is_logged_and_changes_nothing(q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Observer):
        def event(self, event: Event) -> None:
            raise ValueError("no event today")

        def count(self, name: str, n: int, shard: int) -> None:
            raise ValueError("no count today")

        def duration(self, name: str, seconds: float, shard: int) -> None:
            raise ValueError("no duration today")

    behind = Recorder()
    q.observe(Broken())
    q.observe(behind)
    with caplog.at_level(logging.ERROR, "strictq"):
        assert q.send(b"", "k").seq == 1
        q.receive()[0].reject("bad")
    assert q.stats().dead == 1
    assert behind.total("dead_letters") == len(behind.events) == 1
    said = {str(r.exc_info[1]) for r in caplog.records if r.exc_info is not None}
    assert said == {"no event today", "no count today", "no duration today"}
    assert {r.name for r in caplog.records} == {"strictq"}


def test_an_observer_may_call_the_queue(q: Queue) -> None:
    """Inside every method: nothing is locked any more when it is called."""

    class Caller(Observer):
        def __init__(self) -> None:
            self.depths: list[int] = []

        def event(self, event: Event) -> None:
            q.send(b"alarm", "alarms")

        def count(self, name: str, n: int, shard: int) -> None:
            self.depths.append(q.stats().depth)

        def duration(self, name: str, seconds: float, shard: int) -> None:
            if q.stats().sends < 5:
                q.send(b"more", "k")

    caller = Caller()
    with q.observe(caller):
        q.send(b"", "k")
        q.receive(1)[0].reject("no")
    assert q.peek("alarms")[0].body == b"alarm"
    assert q.stats().sends >= 5
    assert caller.depths


def test_threads_lose_no_count(disk: Opener) -> None:
    """Callers that share a commit, while others come and go that watch, too."""
    q = disk.open(durability="full", shards=2)
    seen = Recorder()
    q.observe(seen)

    def work(number: int) -> None:
        for n in range(25):
            with q.observe(Observer()):
                q.send(b"", key=f"{number}-{n}")
            for d in q.receive(2):
                d.ack()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen.total("sends") == 150
    agree(seen, q)
    # Each call that shares a commit is timed by itself.
    assert sum(name == "commit" for name, _, _ in seen.durations) >= 150


def test_a_read_only_queue_can_be_observed(disk: Opener) -> None:
    fill(disk(), "k", 2)
    seen = Recorder()
    looking = disk.open(read_only=True)
    with looking.observe(seen):
        looking.stats()
        looking.peek("k")
    assert (seen.calls, seen.events, seen.durations) == (0, [], [])


def test_an_async_queue_can_be_observed() -> None:
    seen = Recorder()

    async def run() -> None:
        async with strictq.open_async(":memory:") as q:
            with q.observe(seen):
                await q.send(b"", "k")
                (d,) = await q.receive()
                await d.reject("no")
                assert not await q.receive(wait=0.02)
            await q.send(b"", "k")

    anyio.run(run)
    assert (seen.total("sends"), seen.total("dead_letters")) == (1, 1)
    assert [e.kind for e in seen.events] == ["dead_letter"]
    assert {"commit", "receive_wait"} <= {name for name, _, _ in seen.durations}


def test_keyboard_interrupts_pass(q: Queue) -> None:
    class Interrupted(Observer):
        def count(self, name: str, n: int, shard: int) -> None:
            raise KeyboardInterrupt

    with q.observe(Interrupted()), pytest.raises(KeyboardInterrupt):
        q.send(b"", "k")
    assert q.stats().ready == 1


class Around(Observer):
    """Adds a header to what is sent, and notes what it was asked for."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @contextmanager
    def sending(self, messages: int) -> Iterator[dict[str, str]]:
        self.said.append(f"sending {messages}")
        try:
            yield {"trace": "t", "own": "observer"}
        except strictq.StrictqError as e:
            self.said.append(type(e).__name__)
            raise
        finally:
            self.said.append("sent")

    def received(self, deliveries: Sequence[Any], seconds: float) -> None:
        assert seconds > 0
        self.said.append(f"received {len(deliveries)}")

    @contextmanager
    def handling(self, stage: str, jobs: Sequence[Any]) -> Iterator[None]:
        try:
            yield
        except strictq.Retry:
            self.said.append(f"{stage} {len(jobs)} retried")
            raise
        self.said.append(f"{stage} {len(jobs)}")


class TestAround:
    def test_a_send_gets_headers_that_it_does_not_set(self, q: Queue) -> None:
        around = Around()
        with q.observe(around):
            q.send(b"", key="k")
            q.send(Message(b"", key="k", headers={"own": "message"}))
            q.send_json({}, key="k")
            q.send_many([Message(b"", key="k"), Message(b"", key="k", headers={"own": "message"})])
            with q.transaction(key="k") as tx:
                tx.send(b"", key="k")
            assert around.said == [*["sending 1", "sent"] * 3, "sending 2", "sent", "sending 1", "sent"]
        q.send(b"", key="k")
        headers = [d.headers for d in q.receive(9)]
        added = {"trace": "t", "own": "observer"}
        own = {"trace": "t", "own": "message"}
        assert headers == [added, own, added, added, own, added, {}]

    def test_a_failed_send_leaves_the_context_with_its_error(self, q: Queue) -> None:
        around = Around()
        with q.observe(around):
            for wrong in ({"key": 1.5}, {"key": "k", "headers": "none"}, {"key": "k", "headers": {1: "a"}}):
                with pytest.raises(InvalidArgument):
                    q.send(b"", **wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="send_many takes"):
                q.send_many(3)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="send_many takes"):
                q.send_many([Message(b"", key="k"), 3])  # type: ignore[list-item]
        assert around.said == [*["sending 1", "InvalidArgument", "sent"] * 3, "sending 2", "InvalidArgument", "sent"]
        assert q.stats().depth == 0

    def test_receives_that_find_messages_are_reported(self, q: Queue) -> None:
        around = Around()
        q.send(b"", key="k")
        with q.observe(around):
            for d in q.consume(wait=0.0):
                d.ack()
        assert around.said == ["received 1"]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_handlers_of_workers_run_inside(self, is_async: bool) -> None:
        def handler(job: strictq.Job) -> None:
            if job.attempt == 1:
                raise strictq.Retry(0.0)

        async def async_handler(job: strictq.Job) -> None:
            handler(job)

        around = Around()
        with strictq.open(":memory:") as q, q.observe(around):
            q.send(b"", key="k")
            chosen = async_handler if is_async else handler
            strictq.Worker(q, chosen, lambda job: None).run(drain=True)
            q.send(b"", key="k")
            strictq.Worker(q, process_batch=lambda jobs: None).run(drain=True)
        handled = [said for said in around.said if said.startswith("pro")]
        assert handled == ["process 1 retried", "process 1", "process 1"]
        assert "prepare 1" in around.said

    def test_what_a_context_raises_is_logged_and_changes_nothing(self, q: Queue, caplog: pytest.LogCaptureFixture) -> None:
        class Broken(Observer):
            def sending(self, messages: int) -> Any:
                raise RuntimeError("it is broken")

            def received(self, deliveries: Sequence[Any], seconds: float) -> None:
                raise RuntimeError("it is broken")

        class BrokenLater(Observer):
            @contextmanager
            def sending(self, messages: int) -> Iterator[None]:
                yield
                raise RuntimeError("it is broken")

        with q.observe(Broken()), q.observe(BrokenLater()), q.observe(Around()), caplog.at_level(logging.ERROR, "strictq"):
            q.send(b"", key="k")
            (d,) = q.receive()
        assert d.headers == {"trace": "t", "own": "observer"}
        assert len(caplog.records) == 3
