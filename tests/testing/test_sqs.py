"""strictq.testing.sqs_endpoint and the fixture of its name."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq.testing import FakeClock, RunningClock, SqsEndpoint, sqs_endpoint
from tests.docs.test_code_blocks import ROOT, blocks


def post(url: str, body: bytes = b"") -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST"), timeout=30) as answer:
        return json.loads(answer.read() or b"null")


@pytest.mark.parametrize("_again", [1, 2])
def test_every_test_begins_without_queues(sqs_endpoint: SqsEndpoint, _again: int) -> None:
    assert "QueueUrls" not in sqs_endpoint.client.list_queues()
    assert sqs_endpoint.create_queue("orders").endswith("/000000000000/orders")
    sqs_endpoint.clock.advance(1000)


def test_the_clock_ends_timeouts_and_runs_on(sqs_endpoint: SqsEndpoint) -> None:
    client, url = sqs_endpoint.client, sqs_endpoint.create_queue(VisibilityTimeout=3600)
    client.send_message(QueueUrl=url, MessageBody="a")
    assert len(client.receive_message(QueueUrl=url)["Messages"]) == 1
    assert "Messages" not in client.receive_message(QueueUrl=url)
    sqs_endpoint.clock.advance(3600)
    (m,) = client.receive_message(QueueUrl=url, VisibilityTimeout=0, AttributeNames=["All"])["Messages"]
    sent, received = (int(m["Attributes"][k]) for k in ("SentTimestamp", "ApproximateFirstReceiveTimestamp"))
    assert 0 <= received - sent < 1_800_000
    before = sqs_endpoint.clock.now
    assert sqs_endpoint.clock.now >= before


def test_create_queue_speaks_python(sqs_endpoint: SqsEndpoint) -> None:
    dead = sqs_endpoint.create_queue(fifo=True)
    policy = {"deadLetterTargetArn": sqs_endpoint.arn(dead), "maxReceiveCount": 3}
    url = sqs_endpoint.create_queue("o.fifo", ContentBasedDeduplication=True, VisibilityTimeout=5, RedrivePolicy=policy)
    got = sqs_endpoint.client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (got["FifoQueue"], got["ContentBasedDeduplication"], got["VisibilityTimeout"]) == ("true", "true", "5")
    assert json.loads(got["RedrivePolicy"]) == policy
    with pytest.raises(strictq.InvalidArgument, match=r"ends in \.fifo"):
        sqs_endpoint.create_queue("o", fifo=True)


@pytest.mark.parametrize("path", ["/_strictq/reset", "/moto-api/reset"])
def test_a_reset_over_http(sqs_endpoint: SqsEndpoint, path: str) -> None:
    sqs_endpoint.create_queue()
    post(sqs_endpoint.url + path)
    assert "QueueUrls" not in sqs_endpoint.client.list_queues()


def test_the_clock_over_http(sqs_endpoint: SqsEndpoint) -> None:
    before = sqs_endpoint.clock.now
    assert post(f"{sqs_endpoint.url}/_strictq/clock", b'{"advance": 90}')["now"] >= before + 90
    for wrong in (b"", b"[]", b'{"advance": -1}', b'{"advance": "x"}', b'{"advance": NaN}', b'{"advance": Infinity}'):
        with pytest.raises(urllib.error.HTTPError) as e:
            post(f"{sqs_endpoint.url}/_strictq/clock", wrong)
        assert e.value.code == 400
        e.value.close()


def test_queues_on_disk_stay(tmp_path: Path) -> None:
    clock = FakeClock()
    with sqs_endpoint(tmp_path, clock=clock) as endpoint:
        url = endpoint.create_queue("o.fifo", ContentBasedDeduplication=True)
        endpoint.client.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g")
    with sqs_endpoint(tmp_path, clock=clock) as endpoint:
        (m,) = endpoint.client.receive_message(QueueUrl="o.fifo")["Messages"]
        assert m["Body"] == "a"


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(strictq.MissingExtra, match="sqs-test"), sqs_endpoint():
        raise AssertionError


def test_a_running_clock() -> None:
    clock = RunningClock()
    with strictq.open(":memory:", clock=clock) as q:
        q.send(b"a", key="k", delay=100.0)
        assert not q.receive()
        clock.advance(100.0)
        assert len(q.receive()) == 1
    with pytest.raises(strictq.InvalidArgument, match="forward"):
        clock.advance(-1.0)
    assert repr(clock) == "<RunningClock 100 s ahead>"
    clock.reset()
    assert repr(clock) == "<RunningClock 0 s ahead>"


def test_the_test_of_the_how_to_passes(sqs_endpoint: SqsEndpoint) -> None:
    (block,) = (b for b in blocks(ROOT / "docs" / "howto" / "sqs.md") if "def test_" in b.text and b.language == "python")
    names: dict[str, Any] = {}
    exec(block.text, names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test(sqs_endpoint)
