"""An SQS endpoint for tests: the server of `strictq serve sqs` in a thread of this process, with a clock that a test moves."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import uuid
from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from .._platform.extras import need
from .._values.errors import InvalidArgument
from .clock import FakeClock, RunningClock

if TYPE_CHECKING:
    from ..server.parts import Receive, Scope, Send

EXTRA: Final = "sqs-test"
REGION: Final = "us-east-1"
ANY_KEY: Final = "test"
"""The endpoint does not check signatures; SDKs need keys nevertheless."""
CLOCK_PATH: Final = "/_strictq/clock"
SENT: Final = MappingProxyType({True: "true", False: "false"})


class SqsEndpoint:
    """A running SQS endpoint. Get one from the fixture or the context manager `sqs_endpoint`.

    Attributes:
        url: where it listens, for `endpoint_url` of any SDK.
        clock: its time. `clock.advance(30)` ends what would end within 30 s: visibility timeouts, delays, deduplication.
    """

    def __init__(self, url: str, clock: RunningClock | FakeClock) -> None:
        self.url = url
        self.clock = clock

    @functools.cached_property
    def client(self) -> Any:
        """A boto3 client of the endpoint. It may be used by several threads."""
        import boto3

        return boto3.client(
            "sqs", endpoint_url=self.url, region_name=REGION, aws_access_key_id=ANY_KEY, aws_secret_access_key=ANY_KEY
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which AWS SDKs and the AWS command line use the endpoint."""
        return {
            "AWS_ENDPOINT_URL_SQS": self.url,
            "AWS_ACCESS_KEY_ID": ANY_KEY,
            "AWS_SECRET_ACCESS_KEY": ANY_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
        }

    def create_queue(self, name: str | None = None, *, fifo: bool = False, **attributes: Any) -> str:
        """Create a queue and return its URL.

        Args:
            name: default: a new one. A name that ends in ".fifo" is a FIFO queue.
            fifo: create a FIFO queue.
            attributes: of SQS, such as `VisibilityTimeout=5` or `ContentBasedDeduplication=True`. A dict is sent as JSON.
        Raises:
            InvalidArgument: the name of a FIFO queue does not end in ".fifo".
            botocore.exceptions.ClientError: the endpoint refused the queue.
        """
        if name is None:
            name = f"queue-{uuid.uuid4().hex[:12]}{'.fifo' * fifo}"
        if fifo and not name.endswith(".fifo"):
            raise InvalidArgument(f"the name of a FIFO queue ends in .fifo, not {name!r}")
        if name.endswith(".fifo"):
            attributes = {"FifoQueue": True, **attributes}
        texts = {key: json.dumps(v) if isinstance(v, dict) else SENT.get(v, str(v)) for key, v in attributes.items()}
        return str(self.client.create_queue(QueueName=name, Attributes=texts)["QueueUrl"])

    def arn(self, queue_url: str) -> str:
        """Return the ARN of a queue."""
        got = self.client.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])
        return str(got["Attributes"]["QueueArn"])

    def reset(self) -> None:
        """Delete all queues, end move tasks, and go back to the machine's time."""
        import urllib.request

        request = urllib.request.Request(f"{self.url}/_strictq/reset", method="POST")  # noqa: S310 - a URL of this process
        with urllib.request.urlopen(request, timeout=30):  # noqa: S310
            pass
        if isinstance(self.clock, RunningClock):
            self.clock.reset()


@contextlib.contextmanager
def sqs_endpoint(
    directory: str | os.PathLike[str] | None = None, *, clock: RunningClock | FakeClock | None = None, port: int = 0
) -> Iterator[SqsEndpoint]:
    """Run an SQS endpoint in a thread until the block ends.

    Args:
        directory: where its queues are; None: in memory. Queues on disk have the durability "process".
        clock: default: a RunningClock. With a FakeClock, time stands still until the test moves it; long polls wait by the
            machine's time nevertheless.
        port: 0: any free port.
    Raises:
        MissingExtra: the extra sqs-test is not installed.
        ConfigError: the port cannot be used, or another server has the directory open.
    """
    need("boto3", EXTRA)
    need("uvicorn", EXTRA)
    from ..server.app import Application
    from ..server.parts import ServerContext, ServerSettings
    from ..server.running import running
    from ..server.sqs import Endpoint

    clock = clock or RunningClock()
    endpoint = Endpoint(directory, durability="process", clock=clock, testing=True)
    context = ServerContext(ServerSettings(port=port))
    with running(Application([_ClockPart(clock), endpoint], context)) as server:
        yield SqsEndpoint(server.url, clock)


class _ClockPart:
    """Moves the clock for tests in other languages: POST {"advance": seconds} to /_strictq/clock. Answers with the time."""

    name = "clock"
    guarded = False

    def __init__(self, clock: RunningClock | FakeClock) -> None:
        self._clock = clock

    def takes(self, scope: Scope) -> bool:
        return bool(scope["path"] == CLOCK_PATH)

    async def start(self) -> None:
        """Nothing is opened."""

    def drain(self) -> None:
        """Nothing waits."""

    async def stop(self) -> None:
        """Nothing is closed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        from ..server.parts import body_of, respond

        body = await body_of(receive)
        if body is None:
            return
        if scope["method"] == "POST":
            try:
                self._clock.advance(float(json.loads(body)["advance"]))
            except (ValueError, TypeError, KeyError, InvalidArgument) as e:
                await respond(send, 400, f'send {{"advance": SECONDS}}: {e}\n'.encode())
                return
        await respond(send, 200, json.dumps({"now": self._clock.now}).encode(), b"application/json")
