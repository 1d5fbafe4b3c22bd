"""Requests of both SQS protocols made at random from botocore's model: right, wrong, and broken ones."""

from __future__ import annotations

import base64
import json
import random
import urllib.parse
from typing import Any, Final

from tests.server.sqs.playing import Endpoint, Refused, form, model

TEXTS: Final = (
    "", " ", "a", "x" * 81, "ü", "😀", "\ud800", "\0", "a\r\nb", "1", "-1", "0", "1e400", "true", "null", "{}", "[]",
    '{"a":1}',
    "arn:aws:sqs:us-east-1:000000000000:f.fifo", "http://127.0.0.1/000000000000/s", "All", ".*", "Number", "Binary",
    "String.x",
    "../../etc/passwd", "%00", "<a>&amp;", "\u202e", "9" * 400, "sq1.0.0.0.0", "sq1.x.1.1.YQ==.1",
)  # fmt: skip
NUMBERS: Final = (0, 1, -1, 10, 11, 20, 30, 43_200, 2**31, 2**63, 2**64, -(2**63), 10**300)
ODD: Final = (None, True, False, 0.5, float("inf"), [], {}, [[]], {"a": {}}, "")
ATTRIBUTES: Final = (
    "All", "VisibilityTimeout", "DelaySeconds", "MessageRetentionPeriod", "RedrivePolicy", "RedriveAllowPolicy", "Policy",
    "QueueArn",
    "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit", "MaximumMessageSize", "StrictqVersion",
    "KmsMasterKeyId",
)  # fmt: skip
POLICIES: Final = (
    '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:s","maxReceiveCount":1}',
    '{"deadLetterTargetArn":{},"maxReceiveCount":[1]}', '{"maxReceiveCount":1e999}', "[1]", "1", '"x"',
    '{"redrivePermission":["denyAll"]}',
    '{"redrivePermission":"byQueue","sourceQueueArns":5}', '{"Statement":5}', '{"Statement":[5]}', "NaN",
    '{"Statement":[{"Sid":[]}]}',
)  # fmt: skip


BROKEN: Final = (b"", b"[" * 5000, b'{"a":' * 3000, b"null", b"[]", b'"x"', b"\xff", b"{}{}", b'{"QueueUrl":NaN}')


class Fuzzer:
    """Sends random requests, and collects what no client should ever get: a status of 500 and above, or an answer that is none.

    Attributes:
        statuses: how many answers had each status.
        failures: requests that failed, with their answers.
    """

    def __init__(self, endpoint: Endpoint, seed: int) -> None:
        self.endpoint = endpoint
        self.rng = random.Random(seed)
        self.handles: list[str] = []
        self.tasks: list[str] = []
        self.statuses: dict[int, int] = {}
        self.failures: list[str] = []

    def prepare(self) -> None:
        """Create a standard and a FIFO queue, each with messages."""
        for name, more in (("s", {}), ("f.fifo", {"FifoQueue": "true", "ContentBasedDeduplication": "true"})):
            try:
                self.endpoint.call("CreateQueue", {"QueueName": name, **({"Attributes": more} if more else {})})
            except Refused as e:  # it is there, with other attributes
                if e.status != 400:
                    raise

    def step(self) -> None:
        """Send one request."""
        if self.rng.random() < 0.02:
            self.prepare()
        action = self.rng.choice(list(model().operation_names))
        params = self.value(model().operation_model(action).input_shape, "", 0)
        self.send(action, params if isinstance(params, dict) else {})

    def value(self, shape: Any, name: str, depth: int) -> Any:
        """Return a value of a member: mostly one of its shape."""
        rng, deeper = self.rng, depth + 1
        if depth and rng.random() < 0.06:
            return rng.choice(ODD)
        kind = shape.type_name
        if kind == "structure":
            required = set(shape.required_members)
            chosen = {k: m for k, m in shape.members.items() if rng.random() < (0.97 if k in required else 0.4)}
            return {k: self.value(m, k, deeper) for k, m in chosen.items()}
        if kind == "list":
            return [self.value(shape.member, name, deeper) for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 11)))]
        if kind == "map":
            keys = ATTRIBUTES if name == "Attributes" else TEXTS
            return {rng.choice(keys): self.value(shape.value, name, deeper) for _ in range(rng.choice((0, 1, 1, 2, 12)))}
        if kind in ("integer", "long"):
            return rng.choice(NUMBERS) if rng.random() < 0.3 else 0 if name == "WaitTimeSeconds" else rng.randint(0, 12)
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "blob":
            return rng.randbytes(rng.choice((0, 1, 40)))
        return self.text(name)

    def text(self, name: str) -> str:
        rng = self.rng
        if rng.random() < 0.7:
            if name in ("QueueUrl", "QueueName", "SourceArn", "DestinationArn"):
                queue = rng.choice(("s", "f.fifo", "s", "f.fifo", "q1", "none"))
                return f"arn:aws:sqs:us-east-1:000000000000:{queue}" if name.endswith("Arn") else queue
            if name == "ReceiptHandle" and self.handles:
                handle = rng.choice(self.handles)
                return handle if rng.random() < 0.8 else handle[: rng.randint(0, len(handle))] + rng.choice(TEXTS)
            if name == "TaskHandle" and self.tasks:
                return rng.choice(self.tasks)
            if name in ("MessageGroupId", "MessageDeduplicationId", "Id", "ReceiveRequestAttemptId"):
                return f"{name[:1]}{rng.randint(0, 5)}"
            if name == "Attributes":
                return rng.choice(("0", "30", "true", "queue", "messageGroup", *POLICIES))
            if name == "DataType":
                return rng.choice(("String", "Number", "Binary", "String.custom"))
            if name in ("AttributeNames", "MessageSystemAttributeNames"):
                return rng.choice(ATTRIBUTES)
        return rng.choice(TEXTS)

    def send(self, action: str, params: dict[str, Any]) -> None:
        """Send a request as it is, or with broken bytes."""
        rng = self.rng
        params.pop("WaitTimeSeconds", None) if rng.random() < 0.9 else None
        headers: dict[str, str] = {}
        path = rng.choice(("/", "/", "/", "/000000000000/s", "/000000000000/f.fifo", "/000000000000/none"))
        method = "POST"
        if rng.random() < 0.5:
            body = json.dumps(params, default=lambda v: base64.b64encode(v).decode()).encode()
            if rng.random() < 0.03:
                body = rng.choice(BROKEN)
            headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{action}"}
        else:
            fields = [("Action", action), *form(model().operation_model(action).input_shape, params, "")]
            if rng.random() < 0.1:
                fields = [(self.broken(k), v) for k, v in fields]
            text = urllib.parse.urlencode(fields, errors="surrogatepass")
            if rng.random() < 0.2 and len(text) < 4000:
                method, path, body = "GET", f"{path}?{text}", b""
            else:
                body = text.encode()
                headers = {"content-type": "application/x-www-form-urlencoded"}
        if body and rng.random() < 0.05:
            at = rng.randrange(len(body))
            body = body[:at] + rng.randbytes(rng.choice((0, 1, 3))) + body[at + rng.choice((0, 1, 9)) :]
        status, got, answer = self.endpoint.request(method, path, body, headers)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status >= 500 or b"Traceback" in answer:
            self.failures.append(f"{status} {method} {path} {action} {body[:400]!r}: {answer[:300]!r}")
        elif status == 200 and headers.get("x-amz-target") and "json" in got.get("content-type", ""):
            self.remember(json.loads(answer))

    def broken(self, name: str) -> str:
        """Return the name of a field, with something wrong."""
        others = (name + ".1", name.replace("1", "x"), name.replace(".", "..", 1), name + ".9" * 12, "." + name, "")
        return self.rng.choice((name, *others))

    def remember(self, answer: Any) -> None:
        self.handles += [m["ReceiptHandle"] for m in answer.get("Messages", ())]
        del self.handles[:-50]
        if "TaskHandle" in answer:
            self.tasks = [*self.tasks[-5:], answer["TaskHandle"]]


def fuzz(endpoint: Endpoint, requests: int, seed: int) -> Fuzzer:
    """Send so many requests. Afterwards the endpoint must still serve."""
    fuzzer = Fuzzer(endpoint, seed)
    fuzzer.prepare()
    for _ in range(requests):
        fuzzer.step()
    endpoint.call("ListQueues", {})
    return fuzzer
