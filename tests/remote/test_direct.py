"""The requests that are made without the SDK's description of the service mean what the SDK's mean."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from botocore.credentials import ReadOnlyCredentials

from strictq._platform.clock import SystemClock
from strictq.remote.client import CallFailure, RemoteEndpoint
from strictq.remote.direct import DirectClient
from strictq.remote.url import parse
from strictq.testing import SqsEndpoint

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: 9\r\n\r\n<p>no</p>"


class Renewed:
    """Credentials that are other ones at each request."""

    def __init__(self) -> None:
        self.taken = 0

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        self.taken += 1
        return ReadOnlyCredentials(f"key-{self.taken}", "secret", f"token-{self.taken}")


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[RemoteEndpoint, list[bytes]]]:
    """Answer requests with these bytes, each on a connection of its own. Yield a client, and what it sends."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                with server.accept()[0] as connection:
                    request = b""
                    while not request.endswith(b'{"QueueUrl": "u"}'):
                        request += connection.recv(1 << 16)
                    requests.append(request)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        client = boto3.client("sqs", endpoint_url=url, region_name="eu-north-1")
        place = parse(url.replace("http", "sqs+http") + "/queue/o")
        yield RemoteEndpoint(DirectClient(client, Renewed()), place, SystemClock()), requests
        thread.join(30)


def test_answers_are_those_of_the_sdk(sqs_endpoint: SqsEndpoint) -> None:
    sdk = sqs_endpoint.client
    url = sqs_endpoint.create_queue("o.fifo")
    direct = DirectClient(sdk, boto3.session.Session().get_credentials())
    attributes = {
        "text": {"DataType": "String", "StringValue": "é"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
        "number": {"DataType": "Number.int", "StringValue": "7"},
    }
    sdk.send_message(QueueUrl=url, MessageBody="1", MessageGroupId="g", MessageDeduplicationId="1", MessageAttributes=attributes)

    def entry(body: str) -> dict[str, Any]:
        name = str(ord(body))
        return {"Id": name, "MessageBody": body, "MessageGroupId": "h", "MessageDeduplicationId": name}

    sent = [client.send_message_batch(QueueUrl=url, Entries=[entry(body), entry("\x01")])
            for client, body in ((sdk, "2"), (direct, "3"))]  # fmt: skip
    assert [sorted(each) for each in sent] == [["Failed", "ResponseMetadata", "Successful"], ["Failed", "Successful"]]
    assert sent[0]["Failed"] == sent[1]["Failed"]
    wanted: dict[str, Any] = {
        "QueueUrl": url, "MaxNumberOfMessages": 10, "AttributeNames": ["All"], "MessageAttributeNames": ["All"],
    }  # fmt: skip
    received = []
    for client in (sdk, direct):
        answer = client.receive_message(**wanted)
        entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(answer["Messages"])]
        shown = [{**entry, "VisibilityTimeout": 0} for entry in entries]
        assert len(client.change_message_visibility_batch(QueueUrl=url, Entries=shown)["Successful"]) == 3
        received.append(
            [
                {name: value for name, value in m.items() if name not in ("ReceiptHandle", "Attributes")}
                for m in answer["Messages"]
            ]
        )
    assert received[0] == received[1]
    assert received[1][0]["MessageAttributes"] == attributes
    entries = [{"Id": "1", "ReceiptHandle": m["ReceiptHandle"]} for m in direct.receive_message(**wanted)["Messages"]][:1]
    assert direct.delete_message_batch(QueueUrl=url, Entries=entries) == {"Successful": [{"Id": "1"}]}
    assert not direct.get_queue_attributes(QueueUrl=url, AttributeNames=[]).get("Attributes")


def test_refusals_mean_what_those_of_the_sdk_mean(sqs_endpoint: SqsEndpoint) -> None:
    sdk = sqs_endpoint.client
    place = parse(sqs_endpoint.url.replace("http", "sqs+http") + "/queue/o")
    credentials = boto3.session.Session().get_credentials()
    for there in (False, True):
        url = sqs_endpoint.create_queue("o") if there else f"{sqs_endpoint.url}/000000000000/o"
        found = []
        for client in (sdk, DirectClient(sdk, credentials)):
            answer = RemoteEndpoint(client, place, SystemClock()).call("delete_message_batch", QueueUrl=url, Entries=[])
            assert isinstance(answer, CallFailure)
            found.append((answer.kind, answer.text, answer.sent))
        assert found[0] == found[1]
        assert found[0][0] == ("refused" if there else "no_queue")


@pytest.mark.parametrize(
    "body",
    [b"<p>no</p>", b"[]", b"{", b"\xff", b'{"Messages":{}}', b'{"Messages":["x"]}', b'{"Messages":[{"Attributes":[]}]}',
     b'{"Messages":[{"MessageAttributes":{"a":"x"}}]}', b'{"Messages":[{"MessageAttributes":{"a":{"BinaryValue":"x"}}}]}'],
)  # fmt: skip
def test_an_answer_that_is_not_one_of_sqs_is_none(body: bytes) -> None:
    with answering(OK % (len(body), body), BAD_GATEWAY, OK % (0, b"")) as (endpoint, _):
        for _ in range(2):
            failure = endpoint.call("receive_message", QueueUrl="u")
            assert isinstance(failure, CallFailure)
            assert (failure.kind, failure.sent) == ("again", True)
        assert endpoint.call("receive_message", QueueUrl="u") == {}


def test_each_request_is_signed_with_the_credentials_of_its_time() -> None:
    with answering(OK % (2, b"{}"), OK % (2, b"{}")) as (endpoint, requests):
        for _ in range(2):
            assert endpoint.call("send_message_batch", QueueUrl="u") == {}
    for n, request in enumerate(requests, 1):
        assert b"Credential=key-%d/" % n in request
        assert b"token-%d" % n in request
        assert b"/eu-north-1/sqs/aws4_request" in request
        assert b"AmazonSQS.SendMessageBatch" in request


def test_without_credentials_nothing_is_sent() -> None:
    client = boto3.client("sqs", endpoint_url="http://127.0.0.1:1", region_name="eu-north-1")
    endpoint = RemoteEndpoint(DirectClient(client, None), parse("sqs+http://127.0.0.1:1/queue/o"), SystemClock())
    failure = endpoint.call("receive_message", QueueUrl="u")
    assert isinstance(failure, CallFailure)
    assert (failure.kind, failure.code, failure.sent) == ("again", "NoCredentialsError", False)
