"""App: which handler gets a message, with what, and what becomes of it when it fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import anyio
import pytest

import strictq
from strictq import App, Defer, InvalidArgument, Job, Queue, Reject, Retry
from strictq.testing import awaited, clock_of, drain
from tests.support.running import PATIENCE_SECONDS

Calls = list[Any]


@pytest.fixture
def queue(strict_queue: Queue) -> Iterator[Queue]:
    """The plugin's queue."""
    return strict_queue  # type: ignore[return-value]


def test_each_type_has_its_handler_and_keys_keep_their_order(queue: Queue) -> None:
    app, calls = App(queue), []

    @app.handler("a")
    def a(n: int) -> None:
        calls.append(("a", n))

    @app.handler("b")
    async def b(n: int, text: str = "none") -> None:
        await anyio.lowlevel.checkpoint()
        calls.append(("b", n, text))

    for n in range(3):
        assert app.send("a", key="k", n=n).seq == 2 * n + 1
        app.send("b", key="k", n=n)
    drain(queue, app.process)
    assert calls == [each for n in range(3) for each in (("a", n), ("b", n, "none"))]


def test_a_handler_is_called_with_what_was_sent(queue: Queue) -> None:
    app, calls = App(queue), []

    @app.handler("t")
    def handle(**arguments: Any) -> None:
        calls.append(arguments)

    sent = {"n": 1, "text": "ü", "nothing": None, "list": [1, {"a": 2.5}], "self": 1, "type": "x"}
    app.send("t", key="k", **sent)
    drain(queue, app.process)
    assert calls == [sent]
    handle(direct=1)
    assert calls[-1] == {"direct": 1}, "the function stays as it is"


def test_a_job_is_given_and_its_effects_commit(queue: Queue) -> None:
    app, calls = App(queue), []

    @app.handler("first")
    def first(job: Job, n: int) -> None:
        job.send(app.message("second", key="other", options={"headers": {"h": "1"}}, n=n + 1))

    @app.handler("second")
    def second(n: int, job: Job) -> None:
        calls.append((n, job.key, job.headers["h"]))

    app.send("first", key="k", n=1)
    drain(queue, app.process)
    assert calls == [(2, "other", "1")]


def test_options_are_those_of_send(queue: Queue) -> None:
    app, calls = App(queue), []
    app.handler("t")(lambda: calls.append(clock_of(queue).now))
    start = clock_of(queue).now
    app.send("t", key="k", options={"delay": 60.0, "dedup_id": "x"})
    assert app.send("t", key="k", options={"dedup_id": "x"}).duplicate
    drain(queue, app.process)
    assert len(calls) == 1
    assert calls[0] - start >= 60.0


def test_an_async_queue_will_do(queue: Queue) -> None:
    assert App(awaited(queue)).queue is queue
    with pytest.raises(InvalidArgument, match="takes a Queue"):
        App("path")  # type: ignore[arg-type]


# ---- what fails


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_has_a_policy_of_its_own(queue: Queue, kind: str) -> None:
    app, attempts = App(queue), []

    def fail(job: Job) -> None:
        attempts.append((job.attempt, clock_of(queue).now))
        raise ValueError("broken")

    async def fail_async(job: Job) -> None:
        fail(job)

    app.handler("t", attempts_max=3, retry_delay_seconds=7.0)(fail if kind == "plain" else fail_async)
    app.send("t", key="k")
    drain(queue, app.process, failures="retry")
    assert [n for n, _ in attempts] == [1, 2, 3]
    assert all(b - a >= 7.0 for (_, a), (_, b) in pairwise(attempts))
    (dead,) = queue.dead_letters()
    assert (dead.kind, dead.reason) == ("rejected", "failed 3 times; the last error: ValueError: broken")


@pytest.mark.parametrize("signal", [Retry(600.0), Defer(600.0)], ids=["Retry", "Defer"])
def test_what_a_handler_asks_for_goes_before_its_policy(queue: Queue, signal: Exception) -> None:
    app = App(queue)

    @app.handler("t", attempts_max=1)
    def handle() -> None:
        raise signal

    app.send("t", key="k")
    drain(queue, app.process, failures="retry", skip=False)
    assert queue.peek("k")[0].state == "delayed"


def test_what_no_handler_can_take_is_dead_at_once(queue: Queue) -> None:
    app, calls = App(queue, unknown="reject"), []
    app.handler("t")(lambda n: calls.append(n))
    header = {"strictq-type": "t"}
    queue.send_json({"n": 1}, key="no type")
    queue.send_json({"n": 1}, key="other type", headers={"strictq-type": "u"})
    queue.send_json({"m": 1}, key="other argument", headers=header)
    queue.send_json([1], key="no object", headers=header)
    queue.send(b"{", key="no JSON", headers=header)
    drain(queue, app.process, failures="retry")
    assert {d.key: d.attempts for d in queue.dead_letters()} == dict.fromkeys(
        ("no type", "other type", "other argument", "no object", "no JSON"), 1
    )
    reasons = {d.key: str(d.reason) for d in queue.dead_letters()}
    assert "no handler of 'u' is registered; the types are t" in reasons["other type"]
    assert "seq 1 is not JSON" in reasons["no JSON"]
    assert calls == []


# ---- types that only another version of the program knows


def versions(queue: Queue, kind: str = "plain") -> tuple[App, App, Calls]:
    """An app that handles "a" and "b", one of an older version that handles only "a", and what was handled."""
    new, old, done = App(queue), App(queue), []

    def handle(app: App, type: str) -> None:
        async def handler_async(n: int) -> None:
            await anyio.lowlevel.checkpoint()
            done.append((type, n))

        app.handler(type)((lambda n: done.append((type, n))) if kind == "plain" else handler_async)

    handle(new, "a")
    handle(new, "b")
    handle(old, "a")
    return new, old, done


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_unknown_type_waits_with_its_key_for_a_worker_that_knows_it(queue: Queue, kind: str) -> None:
    new, old, done = versions(queue, kind)
    new.send("b", key="ann", n=1)
    new.send("a", key="ann", n=2)
    new.send("a", key="bob", n=3)
    worker = old.worker()
    worker.run(drain=True)
    assert done == [("a", 3)]
    assert (worker.stats().deferred, queue.stats().dead, queue.stats().retries) == (1, 0, 0)
    status, explained = queue.status("ann", 1), queue.explain("ann")
    assert (status.state, status.attempts, status.errors) == ("delayed", 0, ())
    assert status.last_error == "no handler of 'b' is registered; the types are a"
    assert "(it was postponed)" in explained.text
    assert explained.text.endswith("last error: no handler of 'b' is registered; the types are a")
    clock_of(queue).advance(1.0)
    new.worker().run(drain=True)
    assert done == [("a", 3), ("b", 1), ("a", 2)]


def test_the_delay_of_an_unknown_type_doubles_with_the_type_and_not_with_its_messages(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    new, old, _ = versions(queue)
    clock = clock_of(queue)
    for n in range(20):
        new.send("b", key=f"k{n}", n=n)
    waits = []
    for _ in range(7):
        old.worker().run(drain=True)
        waits.append(round(queue.explain("k0").until - clock.wall() / 1e6, 3))  # type: ignore[operator]
        assert queue.stats().delayed == 20
        clock.advance(waits[-1])
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    warnings = [r.getMessage() for r in caplog.records if "no handler" in r.getMessage()]
    assert len(warnings) == 7, "one for each delay"
    assert all("'b'" in text for text in warnings)
    assert (clock.advance(600.0), old.worker().run(drain=True)) == (None, None)
    assert queue.explain("k0").until == pytest.approx(clock.wall() / 1e6 + 1.0), "long after, it is another deploy"


def test_unknown_types_are_remembered_up_to_a_limit(queue: Queue) -> None:
    old = App(queue)
    old.handler("a")(lambda: None)
    queue.send_many(strictq.Message(b"{}", key=n, headers={"strictq-type": f"t{n}"}) for n in range(1100))
    old.worker().run(drain=True)
    assert queue.stats().delayed == 1100
    assert old._unknown is not None
    assert len(old._unknown._delays) == 1000


def test_a_test_of_an_unknown_type_ends_and_names_it(queue: Queue) -> None:
    new, old, _ = versions(queue)
    new.send("b", key="ann", n=1)
    with pytest.raises(AssertionError, match="no handler of 'b'"):
        drain(queue, old.process, seconds_max=600.0)


def test_what_becomes_of_unknown_types_is_wait_or_reject(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="'wait' or 'reject', not 'drop'"):
        App(queue, unknown="drop")  # type: ignore[arg-type]


def test_a_handlers_timeout_is_its_own() -> None:
    with strictq.open(":memory:", config=strictq.QueueConfig(max_attempts=1, retry_for_seconds=0.0)) as q:
        app, release = App(q), threading.Event()
        app.handler("slow", timeout_seconds=0.05)(lambda: release.wait(PATIENCE_SECONDS))
        app.handler("fast")(lambda: None)
        app.send("slow", key="a")
        app.send("fast", key="b")
        worker = app.worker()
        worker.run(drain=True)
        release.set()
        assert [d.key for d in q.dead_letters()] == ["a"]
        assert (worker.stats().acked, worker.stats().timeouts) == (1, 1)


# ---- what is refused


def test_sends_that_no_handler_can_take_are_refused(queue: Queue) -> None:
    app = App(queue)
    app.handler("t")(lambda n: None)
    for call in (
        lambda: app.send("u", key="k", n=1),
        lambda: app.send("t", key="k"),
        lambda: app.send("t", key="k", n=1, m=2),
        lambda: app.send("t", key="k", n=object()),
    ):
        with pytest.raises(InvalidArgument):
            call()
    assert queue.stats().depth == 0


def test_functions_that_cannot_be_handlers_are_refused(queue: Queue) -> None:
    app = App(queue)
    with pytest.raises(InvalidArgument, match="no handlers"):
        app.worker()

    def generator() -> Iterator[int]:
        yield 1

    def positional(n: int, /) -> None: ...

    def keyed(key: str) -> None: ...

    for bad in (generator, positional, keyed, 5):
        with pytest.raises(InvalidArgument):
            app.handler("t")(bad)  # type: ignore[type-var]
    for name, options in (
        ("", {}),
        ("t", {"timeout_seconds": 0.0}),
        ("t", {"attempts_max": 0}),
        ("t", {"retry_delay_seconds": -1}),
    ):
        with pytest.raises(InvalidArgument):
            app.handler(name, **options)
    with pytest.raises(InvalidArgument, match="takes the type of the messages"):
        app.handler(lambda: None)  # type: ignore[arg-type]
    app.handler("t")(lambda: None)
    with pytest.raises(InvalidArgument, match="already has a handler"):
        app.handler("t")(lambda: None)
    assert list(app.handlers) == ["t"]


def test_a_rejection_is_kept(queue: Queue) -> None:
    app = App(queue)

    @app.handler("t", attempts_max=5)
    def handle() -> None:
        raise Reject("never")

    app.send("t", key="k")
    drain(queue, app.process, failures="retry")
    assert [d.reason for d in queue.dead_letters()] == ["never"]


def test_what_a_handler_sends_inherits_headers(queue: Queue) -> None:
    app, seen = App(queue, propagate=["request-id"]), []

    @app.handler("order")
    def order(job: Job) -> None:
        job.send(app.message("mail", key="mails"))

    @app.handler("mail")
    def mail(job: Job) -> None:
        seen.append(job.headers)

    app.send("order", key="ann", options={"headers": {"request-id": "r-1", "other": "x"}})
    app.worker().run(drain=True)
    assert seen == [{"request-id": "r-1", "strictq-type": "mail"}]
    with pytest.raises(InvalidArgument, match="propagate"):
        App(queue, propagate="request-id")
