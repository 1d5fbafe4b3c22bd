"""Calls an endpoint without a network, in an event loop of the test's own thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from strictq.server.sqs import Endpoint
from strictq.testing import FakeClock

T = TypeVar("T")


class SqsRefused(Exception):
    def __init__(self, status: int, code: str, message: str, old: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message, self.old = status, code, message, old


class Caller:
    """An endpoint that runs in an event loop, which runs only during calls."""

    def __init__(self, directory: Path | None = None, **options: Any) -> None:
        self.directory, self.options = directory, options
        self.clock = options.setdefault("clock", FakeClock())
        options.setdefault("durability", "process")
        self.loop = asyncio.new_event_loop()
        self.endpoint = Endpoint(directory, **options)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def start(self) -> None:
        self.run(self.endpoint.start())

    def stop(self) -> None:
        self.run(self.endpoint.stop())

    def restart(self) -> None:
        """Stop cleanly, and start a new endpoint on the directory."""
        self.stop()
        self.endpoint = Endpoint(self.directory, **self.options)
        self.start()

    def crash(self) -> None:
        """Start a new endpoint on what is on the disk: the old one stores nothing more."""
        actions, catalogue = self.endpoint._running()
        for opened in actions.queues.all():
            opened.polls.end()
            opened.calls.close()
            opened.served.q._storage.die()
        catalogue.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.endpoint = Endpoint(self.directory, **self.options)
        self.start()

    async def acall(self, action: str, gone: asyncio.Event | None = None, **parameters: Any) -> Any:
        headers = {"x-amz-target": f"AmazonSQS.{action}"}
        status, headers, body = await self.request("POST", "/", json.dumps(parameters).encode(), headers, gone)
        answer = json.loads(body)
        if status != 200:
            code, _, _ = headers["x-amzn-query-error"].partition(";")
            raise SqsRefused(status, answer["__type"].rpartition("#")[2], answer["message"], code)
        return answer

    def call(self, action: str, **parameters: Any) -> Any:
        return self.run(self.acall(action, **parameters))

    async def request(
        self, method: str, path: str, body: bytes, headers: dict[str, str], gone: asyncio.Event | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer; status 0: there is none."""
        sent: list[Any] = []
        left = [{"type": "http.request", "body": body}]
        gone = gone or asyncio.Event()

        async def receive() -> Any:
            if left:
                return left.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        path, _, query = path.partition("?")
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "scheme": "http",
            "query_string": query.encode(), "headers": [(b"host", b"localhost:9324")]
            + [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        await self.endpoint(scope, receive, send)
        if not sent:
            return 0, {}, b""
        return sent[0]["status"], {k.decode(): v.decode() for k, v in sent[0]["headers"]}, sent[1]["body"]

    # ---- shorter

    def fifo(self, name: str = "q.fifo", **attributes: str) -> str:
        given = {"FifoQueue": "true", "ContentBasedDeduplication": "true", **attributes}
        return str(self.call("CreateQueue", QueueName=name, Attributes=given)["QueueUrl"])

    def standard(self, name: str = "q", **attributes: str) -> str:
        return str(self.call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"])

    def send(self, url: str, body: str, group: str | None = None, **others: Any) -> Any:
        if group is not None:
            others["MessageGroupId"] = group
        return self.call("SendMessage", QueueUrl=url, MessageBody=body, **others)

    def receive(self, url: str, most: int = 10, **others: Any) -> list[Any]:
        got = self.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=most, AttributeNames=["All"], **others)
        return got.get("Messages", [])

    def delete(self, url: str, *handles: str) -> None:
        for handle in handles:
            self.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)

    def hide(self, url: str, handle: str, seconds: int) -> None:
        self.call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds)


def bodies(messages: list[Any]) -> list[str]:
    return [m["Body"] for m in messages]


def counts(messages: list[Any]) -> list[int]:
    return [int(m["Attributes"]["ApproximateReceiveCount"]) for m in messages]


@contextmanager
def calling(directory: Path | None = None, **options: Any) -> Iterator[Caller]:
    """A running endpoint with a clock that stands still until it is moved."""
    caller = Caller(directory, **options)
    caller.start()
    try:
        yield caller
    finally:
        caller.stop()
        caller.loop.run_until_complete(asyncio.sleep(0))
        caller.loop.close()
