"""The parts of one server together: which part gets which request, and what they show of each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq.server.app import PARTS, Application, parts_of
from strictq.server.console import sampler as _sampler
from strictq.server.parts import ServerContext, ServerSettings
from tests.support.asgi import Answer, call

pytest.importorskip("botocore")


def made(**settings: Any) -> Application:
    context = ServerContext(ServerSettings(**settings))
    return Application(parts_of(PARTS, context), context)


async def sqs(app: Application, action: str, **parameters: Any) -> dict[str, Any]:
    headers = {"x-amz-target": f"AmazonSQS.{action}"}
    found: Answer = await call(app, "/", "POST", headers, json.dumps(parameters).encode())
    assert found.status == 200, found.body
    return dict(json.loads(found.body))


def while_running(app: Application, work: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        await app.start()
        try:
            await work
        finally:
            app.drain()
            await app.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "query", "name"),
    [
        ("POST", "/", b"", "sqs"),
        ("POST", "/000000000000/orders.fifo", b"", "sqs"),
        ("POST", "/queue/orders", b"", "sqs"),
        ("GET", "/", b"Action=ListQueues", "sqs"),
        ("GET", "/metrics", b"", "metrics"),
        ("GET", "/", b"", "console"),
        ("GET", "/console/app.js", b"", "console"),
        ("POST", "/console/redrive", b"", "console"),
        ("GET", "/favicon.ico", b"", None),
        ("POST", "/a/b/c", b"", None),
    ],
)
def test_each_request_has_one_part(method: str, path: str, query: bytes, name: str | None) -> None:
    parts = made(memory=True).parts
    scope = {"method": method, "path": path, "query_string": query, "headers": []}
    found = next((part.name for part in parts if part.takes(scope)), None)
    assert found == name


def test_metrics_show_the_queues_of_the_endpoint_and_its_requests() -> None:
    app = made(memory=True)

    async def work() -> None:
        url = (await sqs(app, "CreateQueue", QueueName="orders"))["QueueUrl"]
        await sqs(app, "SendMessage", QueueUrl=url, MessageBody="x")
        poll = asyncio.create_task(sqs(app, "ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20, MaxNumberOfMessages=10))
        assert len((await poll)["Messages"]) == 1
        text = (await call(app, "/metrics")).body.decode()
        assert 'strictq_messages{queue="orders",state="in_flight"} 1\n' in text
        assert 'strictq_server_requests_total{action="SendMessage",code="200"} 1\n' in text
        assert "strictq_server_polls 0\n" in text

    while_running(app, work())


def test_the_console_shows_the_queues_of_an_endpoint_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sampler, "UNWATCHED_SECONDS", 0.01)
    app = made(memory=True)

    async def work() -> None:
        new = {"QueueName": "new.fifo", "Attributes": {"FifoQueue": "true"}, "tags": {"team": "a"}}
        await sqs(app, "CreateQueue", **new)
        url = (await sqs(app, "CreateQueue", QueueName="used"))["QueueUrl"]
        await sqs(app, "SendMessage", QueueUrl=url, MessageBody="x")
        while (rows := json.loads((await call(app, "/console/api/sqs")).body)["queues"])[1]["queue"] is None:
            await asyncio.sleep(0.01)  # not sampled yet
        assert [(row["name"], row["queue"]) for row in rows] == [("new.fifo", None), ("used", "used")]
        assert rows[0]["attributes"]["FifoQueue"] == "true"
        assert rows[0]["tags"] == {"team": "a"}

    while_running(app, work())


def test_waiting_polls_are_counted_and_drained() -> None:
    app = made(memory=True)

    async def work() -> None:
        url = (await sqs(app, "CreateQueue", QueueName="orders"))["QueueUrl"]
        forever = asyncio.Event()

        async def stays() -> Any:
            await forever.wait()

        body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
        poll = asyncio.create_task(call(app, "/", "POST", {"x-amz-target": "AmazonSQS.ReceiveMessage"}, body, then=stays))
        while app.context.counters.polls() == 0:
            await asyncio.sleep(0)
        assert "strictq_server_polls 1\n" in (await call(app, "/metrics")).body.decode()
        app.drain()
        assert json.loads((await poll).body) == {}
        assert app.context.counters.polls() == 0

    while_running(app, work())


class TestTraces:
    PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    @pytest.mark.parametrize(
        ("given", "headers"),
        [
            ({"MessageAttributes": {"traceparent": {"DataType": "String", "StringValue": PARENT}}}, PARENT),
            ({"MessageAttributes": {"traceparent": {"DataType": "String", "StringValue": "nonsense"}}}, None),
            (
                {"MessageSystemAttributes": {"AWSTraceHeader": {
                    "DataType": "String",
                    "StringValue": "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1",
                }}},
                PARENT,
            ),
            (
                {"MessageSystemAttributes": {"AWSTraceHeader": {
                    "DataType": "String", "StringValue": "Root=1-0af76519-16cd43dd8448eb211c80319c",
                }}},
                None,
            ),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("name", ["orders", "orders.fifo"])
    def test_a_program_gets_the_context_of_a_client_of_sqs(
        self, tmp_path: Path, name: str, given: dict[str, Any], headers: str | None
    ) -> None:
        app = made(directories=(tmp_path,), durability="process")
        fifo = name.endswith(".fifo")

        async def work() -> None:
            attributes = {"FifoQueue": "true"} if fifo else {}
            url = (await sqs(app, "CreateQueue", QueueName=name, Attributes=attributes))["QueueUrl"]
            more = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if fifo else {}
            await sqs(app, "SendMessage", QueueUrl=url, MessageBody="x", **more, **given)

        while_running(app, work())
        with strictq.open(tmp_path / f"{name}.strictq", create=False) as q:
            (d,) = q.receive()
            assert d.headers.get("traceparent") == headers
