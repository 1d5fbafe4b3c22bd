"""The forms that a send takes: values as JSON, bytes-like bodies, a Message, an id made of the content, a time of day."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest

import strictq
from strictq import CONTENT_HASH, InvalidArgument, Job, Message, Queue, Worker
from strictq.testing import FakeClock, awaited
from tests.support.queues import Opener, keys_by_shard
from tests.worker import handlers

Send = Callable[..., object]


@pytest.fixture(params=["queue", "transaction", "job", "async queue", "async transaction"])
def verb(request: pytest.FixtureRequest) -> Callable[[Queue, str], Send]:
    """Gives a verb of everything that sends, as a function that has committed when it returns."""

    def on(q: Queue, name: str) -> Send:
        def send(*args: Any, **options: Any) -> object:
            if request.param == "queue":
                return getattr(q, name)(*args, **options)
            if request.param == "transaction":
                with q.transaction(key="by") as tx:
                    return getattr(tx, name)(*args, **options)
            if request.param == "job":
                refused: list[InvalidArgument] = []

                def process(job: Job) -> None:
                    try:
                        getattr(job, name)(*args, **options)
                    except InvalidArgument as e:
                        refused.append(e)

                q.send(b"", "by")
                Worker(q, process, keys=["by"]).run(drain=True)
                if refused:
                    raise refused[0]
                return None
            return anyio.run(asynchronously, request.param, q, name, args, options)

        return send

    return on


async def asynchronously(what: str, q: Queue, name: str, args: Any, options: Any) -> object:
    if what == "async queue":
        return await getattr(awaited(q), name)(*args, **options)
    async with awaited(q).transaction(key="by") as tx:
        return getattr(tx, name)(*args, **options)


# ---- JSON


@pytest.mark.parametrize("value", [{"a": [1, None, "ü"]}, "text", 0, None, []])
def test_a_value_is_sent_as_json_by_all_that_send(q: Queue, verb: Callable[[Queue, str], Send], value: object) -> None:
    verb(q, "send_json")(value, "k", headers={"h": "1"})
    (d,) = q.receive(keys=["k"])
    assert (json.loads(d.body), d.json(), d.headers) == (value, value, {"h": "1"})


@pytest.mark.slow
@pytest.mark.own_messages("a worker receives from every key")
def test_a_value_is_sent_as_json_from_another_process(q: Queue) -> None:
    q.send(b"", "k")
    Worker(q, handlers.sends_in_all_forms, executor="process", keys=["k"]).run(drain=True)
    first, second = q.receive(keys=["out"])
    assert first.json() == {"seq": 1}
    assert second.body == b"changed later"


@pytest.mark.no_second_process("the arguments are refused before a shard is used")
@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), b"x"], ids=["object", "set", "nan", "bytes"])
def test_what_json_cannot_write_is_refused(q: Queue, verb: Callable[[Queue, str], Send], value: object) -> None:
    with pytest.raises(InvalidArgument, match="cannot be written as JSON"):
        verb(q, "send_json")(value, "k")
    assert q.peek("k") == []


# ---- bytes-like bodies


@pytest.mark.parametrize(
    "body", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a-b-c-")[::2]], ids=["array", "view", "steps"]
)
def test_bytes_like_bodies_are_stored_as_bytes(q: Queue, verb: Callable[[Queue, str], Send], body: Any) -> None:
    verb(q, "send")(body, "k")
    (d,) = q.receive(keys=["k"])
    assert (type(d.body), d.body) == (bytes, b"abc")


def test_a_body_that_changes_after_the_call_is_stored_as_it_was(q: Queue) -> None:
    body = bytearray(b"before")
    with q.transaction(key="k") as tx:
        tx.send(body, "k")
        body[:] = b"after!"
    assert q.peek("k")[0].body == b"before"


def test_a_released_view_is_refused(q: Queue) -> None:
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(InvalidArgument, match="can't be read"):
        q.send(view, "k")
    assert q.stats().depth == 0


def test_a_limit_on_bodies_counts_bytes_not_items(make: Opener) -> None:
    q = make(max_body_bytes=8)
    wide = memoryview(bytes(16)).cast("Q")
    assert len(wide) == 2
    with pytest.raises(strictq.MessageTooLarge):
        q.send(wide, "k")


# ---- a Message


def test_a_message_is_sent_as_it_is(q: Queue, verb: Callable[[Queue, str], Send]) -> None:
    verb(q, "send")(Message(b"x", key="k", headers={"h": "1"}, size_hint=3.0))
    (d,) = q.receive(keys=["k"])
    assert (d.body, d.headers, d.size_hint) == (b"x", {"h": "1"}, 3.0)


@pytest.mark.no_second_process("the arguments are refused before a shard is used")
def test_a_message_and_other_arguments_are_refused(q: Queue, verb: Callable[[Queue, str], Send]) -> None:
    for options in ({"key": "k"}, {"delay": 1.0}, {"dedup_id": "x"}, {"headers": {}}):
        with pytest.raises(InvalidArgument, match="takes no other arguments") as e:
            verb(q, "send")(Message(b"x", key="k"), **options)
        assert e.value.hint_code == "inside_message"
    assert q.peek("k") == []


# ---- an id made of the content


def test_the_same_content_is_stored_once_in_the_window(make: Opener, clock: FakeClock) -> None:
    q = make(dedup_window_seconds=60.0)
    first = q.send(b"x", "k", dedup_id=CONTENT_HASH)
    assert not first.duplicate
    again = q.send(bytearray(b"x"), "k", dedup_id=CONTENT_HASH, headers={"other": "headers"})
    assert (again.duplicate, again.seq) == (True, first.seq)
    assert not q.send(b"y", "k", dedup_id=CONTENT_HASH).duplicate
    assert not q.send(b"x", "other", dedup_id=CONTENT_HASH).duplicate
    clock.advance(61.0)
    assert not q.send(b"x", "k", dedup_id=CONTENT_HASH).duplicate


def test_the_id_is_one_that_another_program_can_make(q: Queue) -> None:
    q.send(b"x", "k", dedup_id=CONTENT_HASH)
    same = "blake2b:" + hashlib.blake2b(b"x", digest_size=32).hexdigest()
    assert q.send(b"", "k", dedup_id=same).duplicate


def test_the_same_keyless_content_is_stored_once(make: Opener) -> None:
    q = make(keyless="random", shards=4)
    sent = [q.send(b"x", dedup_id=CONTENT_HASH) for _ in range(8)]
    assert [r.duplicate for r in sent] == [False] + [True] * 7


def test_a_transaction_sends_the_same_content_once(make: Opener) -> None:
    q = make(shards=2)
    keys = keys_by_shard(2)
    for _ in range(2):
        with q.transaction(key=keys[0]) as tx:
            for key in keys.values():
                tx.send(b"x", key, dedup_id=CONTENT_HASH)
    assert [len(q.peek(key)) for key in keys.values()] == [1, 1]


# ---- a time of day


def now(clock: FakeClock) -> datetime:
    return datetime.fromtimestamp(clock.wall() / 1e6, UTC)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-7)), ZoneInfo("Asia/Kolkata")], ids=str)
def test_a_message_waits_for_its_time_of_day(
    q: Queue, clock: FakeClock, verb: Callable[[Queue, str], Send], zone: tzinfo
) -> None:
    verb(q, "send")(b"x", "k", at=(now(clock) + timedelta(hours=2)).astimezone(zone))
    clock.advance(2 * 3600 - 0.001)
    assert q.receive(keys=["k"]) == []
    clock.advance(0.002)
    assert [d.body for d in q.receive(keys=["k"])] == [b"x"]


def test_a_time_that_is_past_is_now(q: Queue, clock: FakeClock) -> None:
    q.send(b"x", "k", at=now(clock) - timedelta(days=1))
    assert len(q.receive()) == 1


def test_the_second_of_two_equal_hours_is_the_one_that_is_meant() -> None:
    """Clocks went back in Berlin on 2023-10-29: 02:30 was twice."""
    zone = ZoneInfo("Europe/Berlin")
    clock = FakeClock(wall_seconds=datetime(2023, 10, 29, 0, tzinfo=UTC).timestamp())
    with strictq.open(":memory:", clock=clock) as q:
        q.send(b"first", "a", at=datetime(2023, 10, 29, 2, 30, tzinfo=zone))
        q.send(b"second", "b", at=datetime(2023, 10, 29, 2, 30, fold=1, tzinfo=zone))
        clock.advance(1801.0)
        (first,) = q.receive()
        assert first.body == b"first"
        first.ack()
        clock.advance(3600.0)
        assert [d.body for d in q.receive()] == [b"second"]


@pytest.mark.parametrize("there", [0, 1], ids=["same shard", "other shard"])
def test_a_transaction_that_takes_long_does_not_delay_it(make: Opener, clock: FakeClock, there: int) -> None:
    q = make(shards=2)
    keys = keys_by_shard(2)
    with q.transaction(key=keys[0]) as tx:
        tx.send(b"x", keys[there], at=now(clock) + timedelta(seconds=10))
        clock.advance(7.0)
    assert q.receive() == []
    clock.advance(3.001)
    assert len(q.receive()) == 1


@pytest.mark.no_second_process("the arguments are refused before a shard is used")
def test_naive_datetimes_and_other_things_are_refused(q: Queue, clock: FakeClock, verb: Callable[[Queue, str], Send]) -> None:
    for bad in (datetime(2030, 1, 1), clock.wall() / 1e6, "2030-01-01T00:00:00Z", now(clock).date()):
        with pytest.raises(InvalidArgument) as e:
            verb(q, "send")(b"x", "k", at=bad)
        assert e.value.hint_code == "aware_datetime"
    assert q.peek("k") == []


def test_a_time_beyond_ten_years_is_refused(q: Queue) -> None:
    for far in (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))):
        with pytest.raises(InvalidArgument, match="at must be at most 315,360,000 seconds from now"):
            q.send(b"x", "k", at=far)
    assert q.stats().depth == 0


@pytest.mark.no_second_process("the arguments are refused before a shard is used")
def test_a_time_and_a_delay_are_refused(q: Queue, clock: FakeClock, verb: Callable[[Queue, str], Send]) -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        verb(q, "send")(b"x", "k", at=now(clock), delay=1.0)
    assert q.peek("k") == []
