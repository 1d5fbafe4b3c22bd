"""An answer that the network cut off anywhere is none. For the SDK, one that ends among its headers is an empty success."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from strictq._platform.clock import SystemClock
from strictq.remote.client import CallFailure, RemoteEndpoint, make_client
from strictq.remote.url import parse

BODY = b'{"QueueUrl":"http://h/000000000000/o"}'
HEADERS = b"date: Thu, 26 Nov 2026 20:00:00 GMT\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: %d\r\n"
SUCCESS = b"HTTP/1.1 200 OK\r\n" + HEADERS % len(BODY) + b"x-amzn-requestid: 1\r\n\r\n" + BODY
ERROR = b'{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"none"}'
REFUSAL = b"HTTP/1.1 400 Bad Request\r\n" + HEADERS % len(ERROR) + b"x-amzn-requestid: 1\r\n\r\n" + ERROR


@contextmanager
def answering(answers: list[bytes]) -> Iterator[RemoteEndpoint]:
    """Answer each request on a connection of its own with the next of these bytes, and close it. Yield a client."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                with server.accept()[0] as connection:
                    request = b""
                    while not request.endswith(b'{"QueueName": "o"}'):
                        request += connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        place = parse(f"sqs+http://127.0.0.1:{server.getsockname()[1]}/queue/o")
        endpoint = RemoteEndpoint(make_client(place, poll_seconds=0.0, connections=1), place, SystemClock())
        yield endpoint
        endpoint.close()
        thread.join(30)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")


@pytest.mark.parametrize(("whole", "kind"), [(SUCCESS, ""), (REFUSAL, "no_queue")], ids=["success", "refusal"])
def test_an_answer_that_is_cut_off_anywhere_is_none(whole: bytes, kind: str) -> None:
    head = whole.index(b"\r\n\r\n") + 4
    lines = [i + more for i in range(head) if whole[i : i + 2] == b"\r\n" for more in range(-2, 4)]
    ends = sorted({0, 5, 12, *lines, whole.index(b"length: ") + 8, head, head + 1, len(whole) - 1})
    with answering([*(whole[:end] for end in ends), whole]) as endpoint:
        found = {end: endpoint.call("get_queue_url", QueueName="o") for end in ends}
        answer = endpoint.call("get_queue_url", QueueName="o")
    wrong = {
        whole[:end]: got for end, got in found.items() if not isinstance(got, CallFailure) or got.kind != "again" or not got.sent
    }
    assert not wrong
    assert answer.kind == kind if isinstance(answer, CallFailure) else answer["QueueUrl"] and not kind


@pytest.mark.parametrize("body", [b"<p>no</p>", b"{", b"[", b"\xff"])
def test_an_answer_that_is_not_json_is_none(body: bytes) -> None:
    """As from a captive portal."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: %d\r\n\r\n" % len(body)
    with answering([head + body]) as endpoint:
        failure = endpoint.call("get_queue_url", QueueName="o")
    assert isinstance(failure, CallFailure)
    assert (failure.kind, failure.sent) == ("again", True)
