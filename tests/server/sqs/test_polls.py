"""Long polls: what wakes them, their order, and clients that have gone."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq.server.app import Application
from strictq.server.parts import ServerContext, ServerSettings
from strictq.server.running import running
from strictq.server.sqs import Endpoint
from strictq.testing import FakeClock, SqsEndpoint
from tests.server.sqs.asgi import Caller, bodies, calling
from tests.support.running import until


def poll(c: Caller, url: str, gone: asyncio.Event | None = None, **others: Any) -> asyncio.Task[Any]:
    others = {"WaitTimeSeconds": 20, "AttributeNames": ["All"], **others}
    return c.loop.create_task(c.acall("ReceiveMessage", gone, QueueUrl=url, **others))


async def waiting(c: Caller, url: str, n: int) -> None:
    """Wait until so many polls wait."""
    name = url.rpartition("/")[2]
    while [len(opened.polls) for opened in c.endpoint._running()[0].queues.all() if opened.entry.name == name] != [n]:
        await asyncio.sleep(0)


def result(c: Caller, task: asyncio.Task[Any]) -> list[str]:
    return bodies(c.run(asyncio.wait_for(task, 10)).get("Messages", []))  # type: ignore[arg-type]


def test_a_send_ends_the_first_poll(c: Caller) -> None:
    url = c.fifo()
    tasks = [poll(c, url) for _ in range(3)]
    c.run(waiting(c, url, 3))
    for i in range(3):
        c.send(url, str(i), str(i))
        assert result(c, tasks[i]) == [str(i)]


def test_a_delete_ends_a_poll_for_the_next_message_of_the_group(c: Caller) -> None:
    url = c.fifo()
    c.send(url, "1", "g")
    (m,) = c.receive(url)
    c.send(url, "2", "g")
    task = poll(c, url)
    c.run(waiting(c, url, 1))
    c.delete(url, m["ReceiptHandle"])
    assert result(c, task) == ["2"]


def test_a_change_to_0_ends_a_poll(c: Caller) -> None:
    url = c.standard()
    c.send(url, "1")
    (m,) = c.receive(url)
    task = poll(c, url)
    c.run(waiting(c, url, 1))
    c.hide(url, m["ReceiptHandle"], 0)
    assert result(c, task) == ["1"]


@pytest.mark.parametrize("fifo", [True, False])
def test_time_ends_a_poll(c: Caller, fifo: bool) -> None:
    url = c.fifo() if fifo else c.standard()
    c.send(url, "1", "g")
    c.receive(url, VisibilityTimeout=10)
    task = poll(c, url)
    c.run(waiting(c, url, 1))
    c.clock.advance(10.0)
    assert result(c, task) == ["1"]
    task = poll(c, url, WaitTimeSeconds=15)
    c.run(waiting(c, url, 1))
    c.clock.advance(15.0)
    assert result(c, task) == []


def test_the_end_of_a_delay_ends_a_poll(c: Caller) -> None:
    url = c.standard()
    c.send(url, "1", DelaySeconds=5)
    task = poll(c, url)
    c.run(waiting(c, url, 1))
    c.clock.advance(5.0)
    assert result(c, task) == ["1"]


def test_the_queue_says_how_long_a_receive_waits(c: Caller) -> None:
    url = c.fifo(ReceiveMessageWaitTimeSeconds="20")
    task = c.loop.create_task(c.acall("ReceiveMessage", QueueUrl=url))
    c.run(waiting(c, url, 1))
    assert c.receive(url, WaitTimeSeconds=0) == []
    c.send(url, "x", "g")
    assert result(c, task) == ["x"]


def test_a_client_that_has_gone_gets_nothing(c: Caller) -> None:
    url = c.fifo()
    gone = asyncio.Event()
    dead, alive = poll(c, url, gone), poll(c, url)
    c.run(waiting(c, url, 2))
    gone.set()
    with pytest.raises(ValueError, match="Expecting value"):  # no answer
        result(c, dead)
    c.run(waiting(c, url, 1))
    c.send(url, "x", "g")
    assert result(c, alive) == ["x"]


def test_what_was_received_for_a_client_that_has_gone_is_given_back(c: Caller) -> None:
    url = c.fifo()
    gone = asyncio.Event()
    dead = poll(c, url, gone)
    c.run(waiting(c, url, 1))
    send = c.loop.create_task(c.acall("SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="g"))

    async def both() -> None:
        await send
        gone.set()
        while not dead.done():
            await asyncio.sleep(0)

    c.run(both())
    if dead.exception() is None:  # it was answered before it went
        return
    got = c.receive(url, WaitTimeSeconds=20)
    assert bodies(got) == ["x"]
    assert got[0]["Attributes"]["ApproximateReceiveCount"] == "1"


@pytest.mark.parametrize("fifo", [True, False])
def test_a_receive_that_does_not_wait_takes_nothing_for_a_client_that_has_gone(fifo: bool) -> None:
    endpoint = Endpoint(None, testing=True)
    context = ServerContext(ServerSettings(port=0))
    with running(Application([endpoint], context)) as server:
        sqs = SqsEndpoint(server.url, FakeClock())
        url = sqs.create_queue(fifo=fifo)
        ids = {"MessageGroupId": "g", "MessageDeduplicationId": "1"} if fifo else {}
        sqs.client.send_message(QueueUrl=url, MessageBody="x", **ids)
        body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 0}).encode()
        head = (
            f"POST / HTTP/1.1\r\nhost: localhost\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        sent = threading.Event()
        assert endpoint._loop is not None
        endpoint._loop.call_soon_threadsafe(sent.wait)  # so that the server reads the request when the client has gone
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
            client.sendall(head.encode() + body)
        sent.set()
        until(lambda: ("ReceiveMessage", 499) in context.counters.requests, "the request of the client that has gone")
        (m,) = sqs.client.receive_message(QueueUrl=url, WaitTimeSeconds=20, AttributeNames=["All"])["Messages"]
        assert m["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_batch_is_given_back(c: Caller) -> None:
    for url in (c.fifo(), c.standard()):
        c.send(url, "x", "g")
        (opened,) = [each for each in c.endpoint._running()[0].queues.all() if url.endswith(f"/{each.entry.name}")]

        async def twice(url: str = url, opened: Any = opened) -> Any:
            from strictq.server.sqs.received import Wanted

            taken = await opened.calls.run(opened.served.receive, Wanted(1, 30))
            opened.polls.give_back(taken)
            return await c.acall("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20, AttributeNames=["All"])

        (m,) = c.run(asyncio.wait_for(twice(), 10))["Messages"]
        assert m["Attributes"]["ApproximateReceiveCount"] == "1"


def test_polls_end_with_the_queue_and_with_the_server(c: Caller) -> None:
    url, other = c.fifo(), c.standard()
    first, second = poll(c, url), poll(c, other)
    c.run(waiting(c, url, 1))
    c.run(waiting(c, other, 1))
    c.call("DeleteQueue", QueueUrl=url)
    assert result(c, first) == []
    c.endpoint.drain()
    assert result(c, second) == []
    assert c.receive(other, WaitTimeSeconds=20) == []


def test_another_process_wakes_a_poll(tmp_path: Path) -> None:
    with calling(tmp_path, clock=None) as c:
        url = c.fifo()
        task = poll(c, url)
        c.run(waiting(c, url, 1))
        with strictq.open(tmp_path / "q.fifo.strictq") as q:
            q.send(b"x", key="g")
        assert result(c, task) == ["x"]


def test_a_thousand_polls_are_served_in_order(c: Caller) -> None:
    url = c.fifo()
    tasks = [poll(c, url) for _ in range(1000)]
    c.run(waiting(c, url, 1000))
    entries = [{"Id": str(i), "MessageBody": str(i), "MessageGroupId": str(i)} for i in range(10)]
    c.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [result(c, task)[0] for task in tasks[:10]] == [str(i) for i in range(10)]
    assert not any(task.done() for task in tasks[10:])
    c.endpoint.drain()
    c.run(asyncio.wait(tasks))  # type: ignore[arg-type]
