"""Requests over connections of strictq's own: when these are used again, when not, and what a failure is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from strictq._platform.clock import SystemClock
from strictq.remote.client import CallFailure, RemoteEndpoint, make_client
from strictq.remote.url import parse

BODY = b'{"QueueUrl":"http://h/000000000000/o"}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: %d\r\n" % len(BODY)
ANSWER = HEAD + b"\r\n" + BODY
LAST = HEAD + b"connection: close\r\n\r\n" + BODY


class Endpoint:
    """Answers each request with bytes. Any number of connections."""

    def __init__(self, family: socket.AddressFamily, answer: bytes, ends: bool) -> None:
        self.server = socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family)
        self.port = self.server.getsockname()[1]
        self.answer = answer
        self.ends = ends
        self.connections: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.ended = threading.Semaphore(0)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = self.server.accept()[0]
                self.connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = b""
            while more := connection.recv(1 << 16):
                request += more
                if request.endswith(b'{"QueueName": "o"}'):
                    self.requests.append(request)
                    request = b""
                    connection.sendall(self.answer)
                    if self.ends:
                        break
        self.ended.release()


@contextmanager
def endpoint(
    answer: bytes = ANSWER, *, family: socket.AddressFamily = socket.AF_INET, ends: bool = False
) -> Iterator[tuple[Endpoint, RemoteEndpoint]]:
    server = Endpoint(family, answer, ends)
    host = "[::1]" if family == socket.AF_INET6 else "127.0.0.1"
    place = parse(f"sqs+http://{host}:{server.port}/queue/o")
    client = RemoteEndpoint(make_client(place, poll_seconds=0.0, connections=1), place, SystemClock())
    try:
        yield server, client
    finally:
        client.close()
        server.server.close()


def ask(client: RemoteEndpoint) -> Any:
    return client.call("get_queue_url", QueueName="o")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["4", "6"])
def test_a_connection_is_used_again_and_closed_with_the_client(family: socket.AddressFamily) -> None:
    with endpoint(family=family) as (server, client):
        assert [ask(client)["QueueUrl"] for _ in range(3)] == ["http://h/000000000000/o"] * 3
        assert len(server.connections) == 1
    assert server.ended.acquire(timeout=30), "the client closed its connection"
    host = f"[::1]:{server.port}" if family == socket.AF_INET6 else f"127.0.0.1:{server.port}"
    lines = server.requests[0].decode().split("\r\n")
    assert lines[0] == "POST / HTTP/1.1"
    assert [line for line in lines if line.lower().startswith("host:")] == [f"Host: {host}"]
    assert [line for line in lines if line.startswith("Authorization: AWS4-HMAC-SHA256")]


@pytest.mark.parametrize(("answer", "ends"), [(LAST, False), (ANSWER, True)], ids=["announced", "unannounced"])
def test_a_connection_that_the_endpoint_ends_is_not_used_again(answer: bytes, ends: bool) -> None:
    with endpoint(answer, ends=ends) as (server, client):
        for _ in range(3):
            assert ask(client)["QueueUrl"]
            assert server.ended.acquire(timeout=30)
        assert len(server.connections) == 3


def test_nothing_was_sent_to_an_endpoint_that_is_down() -> None:
    with endpoint() as (server, client):
        server.server.shutdown(socket.SHUT_RDWR)
        server.server.close()
        failure = ask(client)
    assert isinstance(failure, CallFailure)
    assert (failure.kind, failure.code, failure.sent) == ("again", "EndpointConnectionError", False)


def test_a_request_without_an_answer_in_time_may_have_been_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strictq.remote.client.ANSWER_SECONDS", 0.2)
    with endpoint(b"") as (_, client):
        failure = ask(client)
    assert isinstance(failure, CallFailure)
    assert (failure.kind, failure.code, failure.sent) == ("again", "ReadTimeoutError", True)


def test_a_request_through_a_proxy_is_the_sdks(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint() as (proxy, _):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        place = parse("sqs+http://queue-host:9324/queue/o")
        client = RemoteEndpoint(make_client(place, poll_seconds=0.0, connections=1), place, SystemClock())
        assert ask(client)["QueueUrl"]
        client.close()
    assert proxy.requests[0].startswith(b"POST http://queue-host:9324/ HTTP/1.1")
