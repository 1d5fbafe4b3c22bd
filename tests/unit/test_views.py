"""The JSON form of every report and error."""

from __future__ import annotations

import inspect
import json
import math
from typing import Any, NamedTuple

import attrs
import pytest

import strictq
from strictq import Event, HistoryRecord, Message, Observer, Queue, StrictqError, WorkerEvent
from strictq._values.views import plain
from tests.support.queues import Opener

NO_REPORTS = {"Message", "QueueConfig", "Breaker", "Batch", "AsyncBatch"}
"""What a program gives, and lists of deliveries."""
REPORTS = sorted(
    name
    for name in strictq.__all__
    if inspect.isclass(value := getattr(strictq, name))
    and (attrs.has(value) or hasattr(value, "_fields"))
    and name not in NO_REPORTS
)
ERRORS = sorted(
    name for name in strictq.__all__ if inspect.isclass(value := getattr(strictq, name)) and issubclass(value, StrictqError)
)


def through_json(report: Any) -> Any:
    """What a program on the other side reads, strictly as JSON."""
    values = report.to_dict()
    text = json.dumps(values, allow_nan=False)
    assert json.loads(text) == values
    return values


def test_there_are_reports() -> None:
    assert {"Stats", "ShardStats", "Receipt", "Explanation", "MessageStatus", "DeadLetter", "PeekedMessage"} <= set(REPORTS)
    assert {"HistoryRecord", "KeyDepth", "ConsumerStatus", "QueryReport", "Problem", "Salvaged", "LostRange"} <= set(REPORTS)
    assert {"Event", "WorkerEvent", "OpenBreaker", "WorkerStats", "DurationEstimate"} <= set(REPORTS)


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_has_it(name: str) -> None:
    assert callable(getattr(strictq, name).to_dict)


@pytest.mark.parametrize("name", REPORTS)
def test_every_field_is_there(name: str) -> None:
    """Made past the constructor, of values that say nothing."""
    kind = getattr(strictq, name)
    names = getattr(kind, "_fields", None) or [a.name for a in attrs.fields(kind)]
    given: dict[str, Any] = {"Stats": {"shards": ()}, "TenantLimit": {"tenant": "a", "weight": 1.0, "send_rate": 1.0}}
    unset = dict.fromkeys(("max_depth", "receive_rate", "burst", "concurrency", "target_age_seconds"))
    checked = {**unset, "paused": False} if name == "TenantLimit" else {}
    report = kind(**(dict.fromkeys(names, 0) | given.get(name, {}) | checked))
    expected = set(names)
    if "key" in names:
        expected.add("key_type")
    if name in ("Stats", "ShardStats", "RemoteStats"):
        expected.add("depth")
    values = {"body": b""} if "body" in names else {}
    if values:
        report = attrs.evolve(report, **values)
        expected.add("body_encoding")
    assert set(through_json(report)) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("k", {"key": "k", "key_type": "str"}),
        (7, {"key": 7, "key_type": "int"}),
        (b"\x00\xff", {"key": "AP8=", "key_type": "bytes"}),
        (None, {"key": None, "key_type": None}),
    ],
)
def test_keys(key: Any, expected: dict[str, Any]) -> None:
    assert through_json(Event("poison", 0, key)).items() >= expected.items()
    assert through_json(strictq.Receipt(key, 1, 1)).items() >= expected.items()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"pears", {"body": "pears", "body_encoding": "utf-8"}),
        (b"\xff", {"body": "/w==", "body_encoding": "base64"}),
    ],
)
def test_bodies(q: Queue, body: bytes, expected: dict[str, Any]) -> None:
    q.send(body, "k", headers={"a": "b"})
    (peeked,) = q.peek("k")
    assert through_json(peeked).items() >= {**expected, "headers": {"a": "b"}, "state": "ready"}.items()
    q.receive()[0].reject("no")
    (dead,) = q.dead_letters()
    assert through_json(dead).items() >= {**expected, "reason": "no", "kind": "rejected"}.items()


@pytest.mark.one_shard("the history of the first shard")
def test_a_body_that_was_not_kept(make: Opener) -> None:
    q = make(history="records")
    q.send(b"x", "k")
    q.receive()[0].ack()
    (record,) = q.history()
    assert isinstance(record, HistoryRecord)
    assert through_json(record).items() >= {"body": None, "body_encoding": None, "outcome": "acked"}.items()


def test_reports_in_reports(make: Opener) -> None:
    q = make(shards=2)
    q.send_many([Message(b"", key=n) for n in range(10)])
    values = through_json(q.stats())
    assert values["depth"] == sum(shard["depth"] for shard in values["shards"]) == 10
    assert values["prepare"]["samples"] == 0
    assert values["breakers"] == []


@pytest.mark.own_messages("a worker receives from every key")
def test_a_workers(q: Queue) -> None:
    q.send(b"", key=b"k")
    events: list[WorkerEvent] = []
    worker = strictq.Worker(q, lambda job: None, on_event=events.append)
    worker.run(drain=True)
    assert {through_json(event)["key"] for event in events} == {"aw=="}
    assert through_json(worker.stats())["acked"] == 1


@pytest.mark.one_shard("the number of the shard")
def test_an_observer_can_write_each_event(q: Queue) -> None:
    written: list[dict[str, Any]] = []

    class Writer(Observer):
        def event(self, event: Event) -> None:
            written.append(through_json(event))

    with q.observe(Writer()):
        q.send(b"", "k")
        q.receive()[0].reject("no")
    assert written == [
        {"kind": "dead_letter", "shard": 0, "key": "k", "key_type": "str", "seq": 1, "token": None, "detail": "no"}
    ]


# ---- errors


def test_an_error(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    d.ack()
    with pytest.raises(strictq.LeaseLost) as caught:
        d.nack()
    values = through_json(caught.value)
    assert values["type"] == "LeaseLost"
    assert values["message"].startswith("this delivery is already acked: key 'k'")
    assert values["code"] == "settled_already" == caught.value.hint_code
    assert values["hint"] == caught.value.hint
    assert values["transient"] is False
    assert values["fields"] == {
        "key": "k", "key_type": "str", "seq": 1, "token": d.token, "lease_seconds": None, "over_seconds": None, "holder": None,
    }  # fmt: skip


def test_an_error_of_a_shard_and_its_cause() -> None:
    values = through_json(strictq.StoreBusy("locked", shard=2, cause=OSError(5, "no")))
    assert values["fields"]["shard"] == 2
    assert values["fields"]["cause"]["type"] == "OSError"
    assert values["transient"] is True


def test_errors_in_an_error() -> None:
    full = strictq.QueueFull("full")
    values = through_json(strictq.PartialFailure("some", [strictq.Receipt(b"k", 1, 1), full, None, [(b"\xff", 1.5)]]))
    receipt, error, nothing, rows = values["fields"]["results"]
    assert (receipt["key"], error["type"], error["code"], nothing) == ("aw==", "QueueFull", "queue_full", None)
    assert rows == [[{"base64": "/w=="}, 1.5]]


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_has_it(name: str) -> None:
    assert getattr(strictq, name).to_dict is StrictqError.to_dict


class Pair(NamedTuple):
    a: float
    b: object


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (True, True),
        (Pair(1.0, b""), [1.0, {"base64": ""}]),
        ({1: b"a"}, {"1": {"base64": "YQ=="}}),
        (ValueError("x"), {"type": "ValueError", "message": "x", "hint": "", "code": "", "transient": False, "fields": {}}),
    ],
)
def test_other_values(value: Any, expected: Any) -> None:
    assert plain(value) == expected
