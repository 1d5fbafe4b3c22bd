"""What errors say: what happened, since when, who else, and what to do."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

import strictq
import strictq.history
import strictq.spark
import strictq.worker
from strictq import ConfigError, InvalidArgument, InvalidBody, LeaseLost, PartialFailure, Queue, QueueConfig, Worker
from strictq.testing import FakeClock, awaited
from tests.support.command import environment
from tests.support.queues import Opener, fill
from tests.worker import handlers

# ---- lost leases


def lost(call: Callable[[], object]) -> LeaseLost:
    with pytest.raises(LeaseLost) as caught:
        call()
    return caught.value


VERBS: dict[str, Callable[[Any], object]] = {
    "ack": lambda d: d.ack(),
    "nack": lambda d: d.nack(),
    "defer": lambda d: d.defer(1.0),
    "reject": lambda d: d.reject("why"),
    "start": lambda d: d.start(),
    "extend": lambda d: d.extend(5.0),
    "more": lambda d: d.lease.more(1),
    "release": lambda d: d.lease.release(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_lost_lease_says_how_long_it_was_and_who_has_the_key(q: Queue, clock: FakeClock, verb: str) -> None:
    fill(q, "k", 2)
    old, _ = q.receive(lease_seconds=5.0)
    clock.advance(17.5)
    q.receive(consumer="other:1")
    e = lost(lambda: VERBS[verb](old))
    assert (e.lease_seconds, e.over_seconds, e.holder) == (5.0, pytest.approx(12.5, abs=0.01), "other:1")
    assert "its lease of 5 s expired 12.5 s ago; consumer other:1 holds the key now" in str(e)
    assert e.hint_code == "lease_over"
    assert "lease_seconds" in e.hint
    assert e.to_dict()["fields"]["holder"] == "other:1"


def test_a_lost_lease_that_no_consumer_took_names_none(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    (old,) = q.receive(lease_seconds=5.0)
    clock.advance(6.0)
    (new,) = q.receive(consumer="other:1")
    new.nack(delay=60.0)
    e = lost(old.ack)
    assert e.holder is None
    assert "holds the key" not in str(e)
    assert "expired 1.0 s ago" in str(e)


@pytest.mark.parametrize("runs", [False, True])
def test_a_transaction_says_it_too(q: Queue, clock: FakeClock, runs: bool) -> None:
    q.send(b"", "k")
    (old,) = q.receive(lease_seconds=5.0)
    clock.advance(6.0)
    q.receive(consumer="other:1")

    def transact() -> None:
        with q.transaction(old) as tx:
            if runs:
                tx.run(lambda db: None)

    e = lost(transact)
    assert (e.lease_seconds, e.holder) == (5.0, "other:1")


def test_each_lost_message_of_a_batch_says_it(q: Queue, clock: FakeClock) -> None:
    for key in ("a", "b"):
        q.send(b"", key)
    old = q.receive(lease_seconds=5.0)
    clock.advance(6.0)
    q.receive(consumer="other:1", keys=["a"])
    with pytest.raises(PartialFailure) as caught:
        q.ack_many(old)
    (e,) = (r for r in caught.value.results if r is not None)
    assert (e.key, e.lease_seconds, e.holder) == ("a", 5.0, "other:1")


def test_a_keyless_message_names_no_holder(make: Opener, clock: FakeClock) -> None:
    q = make(keyless="random", keyless_lanes=1)
    q.send(b"")
    (old,) = q.receive(lease_seconds=5.0)
    clock.advance(6.0)
    q.receive(consumer="other:1")
    e = lost(old.ack)
    assert (e.key, e.lease_seconds, e.holder) == (None, 5.0, None)


def test_a_handle_knows_the_holder_and_not_the_length(q: Queue, clock: FakeClock) -> None:
    q.send(b"", "k")
    (old,) = q.receive(lease_seconds=5.0)
    clock.advance(6.0)
    q.receive(consumer="other:1")
    e = lost(q.delivery(old.handle).ack)
    assert (e.lease_seconds, e.over_seconds, e.holder) == (None, None, "other:1")


def test_what_went_back_with_an_earlier_message_says_so(q: Queue) -> None:
    fill(q, "k", 3)
    one, _, three = q.receive()
    one.nack()
    e = lost(three.ack)
    assert "released together with an earlier message of its key" in str(e)
    assert e.hint_code == "lease_lost"


@pytest.mark.parametrize(
    ("verb", "word"), [("ack", "acked"), ("nack", "nacked"), ("defer", "deferred"), ("reject", "rejected")], ids=lambda x: x
)
def test_what_is_settled_says_how(q: Queue, verb: str, word: str) -> None:
    fill(q, "k", 1)
    (d,) = q.receive()
    VERBS[verb](d)
    for again in ("ack", "nack", "defer", "reject", "start"):
        e = lost(lambda again=again: VERBS[again](d))  # type: ignore[misc]
        assert f"this delivery is already {word}: key 'k', seq 1" in str(e)
        assert e.hint_code == "settled_already"


def test_what_a_transaction_acked_is_acked(q: Queue) -> None:
    fill(q, "k", 1)
    (d,) = q.receive()
    with q.transaction(d):
        pass
    assert "already acked" in str(lost(d.ack))


def test_what_is_given_twice_says_so(q: Queue) -> None:
    fill(q, "k", 1)
    (d,) = q.receive()
    with pytest.raises(PartialFailure) as caught:
        q.ack_many([d, d])
    first, second = caught.value.results
    assert first is None
    assert "given twice" in str(second)


# ---- settings


@pytest.mark.parametrize("name", ["max_attempt", "lease_second", "retry_delay", "Max_Attempts"])
def test_an_unknown_setting_names_the_nearest(q: Queue, name: str) -> None:
    for call in (q.configure, QueueConfig, QueueConfig().evolve):
        with pytest.raises(ConfigError, match=f"unknown setting '{name}'") as caught:
            call(**{name: 3})
        assert caught.value.hint_code == "did_you_mean"
        near = caught.value.hint.parameters["name"]  # type: ignore[attr-defined]
        assert hasattr(q.config, near)
    assert q.config.max_attempts == 5


def test_an_unknown_setting_like_no_other_names_all(q: Queue) -> None:
    with pytest.raises(ConfigError) as caught:
        q.configure(colour="blue")
    assert caught.value.hint_code == "settings_are"
    assert "max_attempts" in caught.value.hint


# ---- JSON


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000], ids=["empty", "half", "bytes", "deep"])
def test_a_body_that_is_not_json_names_its_message(q: Queue, body: bytes) -> None:
    q.send(b"1", "k")
    q.send(body, "k")
    for message in (q.peek("k")[1], q.receive()[1]):
        with pytest.raises(InvalidBody, match=r"the body of key 'k', seq 2 is not JSON") as caught:
            message.json()
        assert (caught.value.key, caught.value.seq, isinstance(caught.value, ValueError)) == ("k", 2, True)


@pytest.mark.slow
@pytest.mark.own_messages("a worker receives from every key")
def test_a_handler_in_another_process_names_it_too(q: Queue) -> None:
    q.configure(max_attempts=1)
    q.send(b"{", "k")
    Worker(q, handlers.reads_json, executor="process").run(drain=True)
    (dead,) = q.dead_letters()
    assert "the body of key 'k', seq 1 is not JSON" in str(dead.reason)


# ---- arguments that are nearly right

A_DICT: Any = {"max_attempts": 2}


@pytest.mark.own_messages("sends of the queue")
@pytest.mark.parametrize(
    ("call", "said", "code"),
    [
        (lambda q: q.send(b"", uuid.UUID(int=1)), "a key must be str, bytes or int, not UUID", "convert_key"),
        (lambda q: q.hold(None), "a key must be str, bytes or int, not NoneType", ""),
        (
            lambda q: q.send(b"", "k", delay=timedelta(hours=1)),
            "delay must be a number of seconds",
            "total_seconds",
        ),
        (lambda q: q.send(b"", "k", delay="5"), "delay must be a number of seconds, not str", ""),
        (lambda q: q.send(b"", "k", headers={"a": "b", "n": 1}), "headers must map str to str: 'n' maps to 1", ""),
        (lambda q: q.send(b"", "k", headers="n"), "headers must map str to str, not be str", ""),
        (lambda q: strictq.open(q.path, config=A_DICT), "config must be a QueueConfig, not dict", "make_config"),
    ],
    ids=["uuid", "no key", "timedelta", "str", "header", "headers", "config"],
)
def test_an_argument_that_is_nearly_right_says_what_to_pass(
    q: Queue, call: Callable[[Any], object], said: str, code: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call(q)
    assert str(caught.value).startswith(said)
    assert (caught.value.hint_code or "") == code
    assert q.stats().sends == 0


# ---- sharing


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_a_queue_that_is_pickled_says_how_to_share_it(q: Queue, how: Callable[[object], object]) -> None:
    fill(q, "k", 1)
    (d,) = q.receive()
    for what, code in ((q, "send_path"), (awaited(q), "send_path"), (d, "share_handle")):
        with pytest.raises(InvalidArgument, match="can't be pickled or copied") as caught:
            how(what)
        assert caught.value.hint_code == code
    d.ack()


def test_what_belongs_to_a_queue_says_it_too(q: Queue) -> None:
    fill(q, "k", 1)
    (d,) = q.receive()
    for what in (d.lease, q.transaction(d)):
        with pytest.raises(InvalidArgument) as caught:
            pickle.dumps(what)
        assert caught.value.hint_code == "send_path"


def test_an_error_passes_from_process_to_process(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 1)
    (d,) = q.receive(lease_seconds=5.0)
    clock.advance(17.5)
    q.receive(consumer="other:1")
    e = lost(d.ack)
    many = PartialFailure("some failed", results=[None, e])
    for each in (e, many, strictq.StoreBusy("it is busy", shard=3)):
        again = pickle.loads(pickle.dumps(each))
        assert (type(again), str(again), again.to_dict()) == (type(each), str(each), each.to_dict())
    assert again.shard == 3


PASSED: dict[str, Any] = {
    "message": "it failed", "hint": "wait", "transient": True, "shard": 3, "cause": OSError(28, "No space left on device"),
    "key": b"k", "seq": 1, "token": 2, "why": "it is over", "results": [None, LeaseLost("k", 1, 2)], "package": "rich",
    "extra": "cli", "path": "x.parquet", "target": "/replica", "term": 4, "contact_at": 5.0, "segment": 6,
    "address": "host:1", "file": "state", "delay": 1.5, "delay_seconds": 2.5, "reason": "later",
    "tenant": "acme", "retry_after": 0.5,
}  # fmt: skip
"""What the constructors of public exceptions are given, by name."""
PUBLIC = [
    getattr(module, name)
    for module in (strictq, strictq.testing, strictq.history, strictq.spark, strictq.worker)
    for name in module.__all__
    if isinstance(getattr(module, name), type) and issubclass(getattr(module, name), BaseException)
]


def portrait(value: Any) -> Any:
    """What can be compared of an exception, and of those that it holds."""
    if isinstance(value, BaseException):
        return type(value), str(value), value.args, {name: portrait(v) for name, v in vars(value).items()}
    return [portrait(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("kind", sorted(set(PUBLIC), key=lambda kind: kind.__name__))
@pytest.mark.parametrize("how", [pickle.loads, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
@pytest.mark.parametrize("full", [True, False], ids=["full", "short"])
def test_every_public_exception_survives_pickling(kind: type[BaseException], how: Callable[[Any], Any], full: bool) -> None:
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]  # Idle takes anything
    needed = [p.name for p in named if full or p.default is p.empty]
    made = kind(**{name: PASSED[name] for name in needed})
    again = how(pickle.dumps(made) if how is pickle.loads else made)
    assert portrait(again) == portrait(made)


class Fussy(Exception):
    """A program's exception that pickle can write and not read."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_a_programs_exception_as_the_cause_of_an_error_does_not_keep_it_from_passing() -> None:
    error = strictq.OutcomeUnknown("it may have been stored", shard=3, cause=Fussy(1, 2))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), repr(again.cause)) == (type(error), str(error), "RuntimeError('Fussy: 1 and 2')")
    assert isinstance(error.cause, Fussy), "the error itself is as it was"


def test_what_a_handler_may_raise_passes_through_a_process_pool() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for made in (strictq.Retry(1.5, "later"), strictq.Defer(2.5), strictq.Reject("no")):
            came = pool.submit(handlers.raise_it, made).exception(60)
            assert (type(came), str(came), vars(came)) == (type(made), str(made), vars(made))


# ---- paths


def test_a_path_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("~/a.strictq", Path("~/b.strictq")):
        with strictq.open(path) as q:
            assert q.path == os.path.expanduser(path)

    async def asynchronously() -> None:
        async with strictq.open_async("~/c.strictq"):
            pass

    anyio.run(asynchronously)
    strictq.salvage("~/a.strictq", "~/d.strictq")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.strictq", "b.strictq", "c.strictq", "d.strictq"]


@pytest.mark.slow
def test_a_relative_path_in_a_directory_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    async def asynchronously() -> None:
        async with strictq.open_async("q.strictq"):
            pass

    calls: list[Callable[[], object]] = [
        lambda: strictq.open("q.strictq"), lambda: strictq.open("q.strictq", create=False),
        lambda: strictq.open("q.strictq", read_only=True), lambda: strictq.salvage("q.strictq", "out"),
        lambda: strictq.migrate("q.strictq"), lambda: strictq.restore("target", "q.strictq"),
        lambda: anyio.run(asynchronously),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InvalidArgument, match="the current directory was deleted") as caught:
            call()
        assert caught.value.hint_code == "change_directory"
    with strictq.open(tmp_path / "q.strictq") as q:
        assert q.send(b"", key="k").seq == 1, "an absolute path can be used"
    for words in (["stats", "q.strictq"], ["create", "q.strictq"], ["check", "q.strictq"]):
        found = subprocess.run(
            [sys.executable, "-m", "strictq", *words], capture_output=True, text=True, env=environment(tmp_path)
        )
        assert "Traceback" not in found.stderr
        assert "the current directory was deleted" in found.stderr
        assert found.returncode not in (0, 1)


def test_a_home_that_is_not_known_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument) as caught:
        strictq.open("~no-such-user-here/q")
    assert caught.value.hint_code == "no_home"
    strictq.open("./~really").close()
    assert [p.name for p in tmp_path.iterdir()] == ["~really"]


@pytest.mark.parametrize("url", ["sqlite:///x", "redis://localhost:6379/0", "file:///data/x", "sqlite+aiosqlite:///a/b"])
def test_a_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="not a URL") as caught:
        strictq.open(url)
    assert caught.value.hint_code == "not_a_url"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://localhost:6379/0", "such as 'orders.strictq'"),
        ("file:///data/x", "such as '/data/x'"),
        ("sqlite:///x", "such as 'x'"),
        ("http://localhost:9324/queue/x", "strictq.connect()"),
    ],
)
def test_the_hint_of_a_url_names_what_to_pass(url: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        strictq.open(url)
    assert says in caught.value.hint


def test_a_refused_url_does_not_tell_its_password() -> None:
    with pytest.raises(InvalidArgument, match=r"not a URL: .sqs\+http://host/queue/x.") as caught:
        strictq.open("sqs+http://user:secret@host/queue/x")
    assert caught.value.hint_code == "connect_url"
    assert "secret" not in str(caught.value)
