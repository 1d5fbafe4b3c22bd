"""Requests in frames: each gets its own answer, or an error that closes the connection."""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
import trustme

from strictq._net import frames
from strictq._net.admission import TokenServer
from strictq._net.frames import FrameConnection, FrameHandler, NotUpgraded
from strictq._net.transport import listen, server_context
from tests.support.running import PATIENCE_SECONDS

TOKEN = "correct-horse-battery-staple"
BODY_BYTES_MAX = 3 << 20
OPENING = "/1/frames"


class Echo(FrameHandler):
    """Answers with what it was asked."""

    opening = OPENING
    bytes_max = {"PUT": BODY_BYTES_MAX}  # noqa: RUF012 - typed in the base class
    waits = threading.Event()

    def answered(self, target: str, body: bytes) -> tuple[HTTPStatus, bytes]:
        if target == "GET /later":
            assert self.waits.wait(PATIENCE_SECONDS)
        if target == "GET /nowhere":
            return HTTPStatus.NOT_FOUND, b""
        return HTTPStatus.OK, f"{target} ".encode() + body


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server in this process; its port."""
    listening = listen("the echo", "127.0.0.1", 0)
    server = TokenServer(listening, Echo, TOKEN, tls)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    Echo.waits.clear()
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        Echo.waits.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def connected(
    port: int,
    *,
    token: str = TOKEN,
    path: str = OPENING,
    timeout: float = PATIENCE_SECONDS,
    on_wait: Callable[[float], object] = lambda _seconds: None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[FrameConnection]:
    if tls is None:
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    else:
        made = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=tls)
    connection = FrameConnection(made, path, {"Authorization": f"Bearer {token}"}, on_wait)
    try:
        connection.open()
        yield connection
    finally:
        connection.close()


def test_each_request_gets_its_answer() -> None:
    with serving() as port, connected(port) as connection:
        for n in range(3):
            assert connection.ask(f"GET /{n}", b"", 100) == (200, b"GET /%d " % n)
        large = bytes(range(256)) * 8192  # sent in two pieces
        assert connection.ask("PUT /large", large, 1 << 22) == (200, b"PUT /large " + large)
        assert connection.ask("PUT /small", b"x", 100) == (200, b"PUT /small x")


def test_over_tls(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "chain"))
    ca.cert_pem.write_to_path(str(tmp_path / "ca"))
    context = ssl.create_default_context(cafile=str(tmp_path / "ca"))
    with serving(server_context(str(tmp_path / "chain"), None)) as port, connected(port, tls=context) as connection:
        for size in (0, 1, 100_000, 2 << 20):
            assert connection.ask("PUT /", bytes(size), BODY_BYTES_MAX) == (200, b"PUT / " + bytes(size))


@pytest.mark.parametrize(("changes", "status"), [({"token": "another-one-of-16-letters"}, 401), ({"path": "/1/other"}, 404)])
def test_a_connection_that_is_refused(changes: dict[str, str], status: int) -> None:
    with serving() as port, pytest.raises(NotUpgraded) as e, connected(port, **changes):  # type: ignore[arg-type]
        pass
    assert e.value.status == status


@pytest.mark.parametrize(
    "said",
    [
        f"GET {OPENING} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n",
        f"PUT {OPENING} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nUpgrade: strictq-frames\r\n\r\n",
        f"GET {OPENING} HTTP/1.1\r\nUpgrade: strictq-frames\r\n\r\n",
    ],
)
def test_a_request_that_opens_nothing(said: str) -> None:
    with serving() as port, socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        connection.sendall(said.encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(1 << 16):
            answer += data
    assert b" 101 " not in answer


@pytest.mark.parametrize("target", ["GET /", "POST /", "nothing", ""])
def test_a_body_that_is_too_large_is_not_read(target: str) -> None:
    with serving() as port, connected(port) as connection:
        assert connection.ask(target, b"x", 100)[0] == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        with pytest.raises(OSError, match="closed"):
            connection.ask("GET /", b"", 100)


def test_an_unknown_target_closes_the_connection() -> None:
    with serving() as port, connected(port) as connection:
        assert connection.ask("GET /nowhere", b"", 100) == (404, b"")
        with pytest.raises(OSError, match="closed"):
            connection.ask("GET /", b"", 100)


def test_an_answer_that_is_too_long() -> None:
    with serving() as port:
        with connected(port) as connection, pytest.raises(http.client.HTTPException):
            connection.ask("PUT /", b"12345", 5)
        with connected(port) as connection:
            assert connection.ask("GET /", b"", 100)[0] == 200


def test_a_wait_is_watched_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "LOOK_SECONDS", 0.01)
    waited: list[float] = []

    def watch(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt

    with serving() as port, connected(port, on_wait=watch) as connection:
        with pytest.raises(KeyboardInterrupt):
            connection.ask("GET /later", b"", 100)
        assert waited == sorted(waited)
        Echo.waits.set()
        assert connection.sock is None  # so the answer that comes now is no other request's
        connection.open()
        assert connection.ask("GET /now", b"", 100) == (200, b"GET /now ")


def test_an_answer_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "LOOK_SECONDS", 0.01)
    with serving() as port, connected(port, timeout=0.2) as connection:
        with pytest.raises(TimeoutError):
            connection.ask("GET /later", b"", 100)
        assert connection.sock is None


@contextmanager
def reading_slowly(bytes_at_once: int) -> Iterator[int]:
    """A server that pauses behind every few bytes; its port. With 0 it does not read."""
    listening = listen("the slow one", "127.0.0.1", 0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    over = threading.Event()

    def serve() -> None:
        taken, _ = listening.accept()
        with taken:
            taken.recv(1 << 16)
            taken.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            left = SLOW_BYTES
            while bytes_at_once and left > 0:
                read = len(taken.recv(min(left, bytes_at_once), socket.MSG_WAITALL))
                if not read:
                    return
                left -= read
                over.wait(0.05)
            if not left:
                taken.sendall(struct.pack(">HI", 200, 0))
            over.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        over.set()
        thread.join()
        listening.close()


NAME = "PUT /x"
SLOW_BYTES = struct.calcsize(">HI") + len(NAME) + (8 << 20)


@pytest.mark.slow
def test_a_server_that_reads_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than the time limit, which counts from the last byte it took."""
    monkeypatch.setattr(frames, "LOOK_SECONDS", 0.005)
    waited: list[float] = []
    with reading_slowly(1 << 18) as port, connected(port, timeout=0.5, on_wait=waited.append) as connection:
        assert connection.ask(NAME, bytes(8 << 20), 0) == (200, b"")
        assert waited
        assert connection.sock.gettimeout() == 0.5


def test_a_server_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "LOOK_SECONDS", 0.01)
    with reading_slowly(0) as port, connected(port, timeout=0.2) as connection:
        with pytest.raises(TimeoutError):
            connection.ask(NAME, bytes(8 << 20), 0)
        assert connection.sock is None


ODD = [
    b"\xff",
    b"\x00\x05\x00\x00\x00\x00GET",
    struct.pack(">HI", frames.TARGET_BYTES_MAX + 1, 0) + b"x" * 2000,
    struct.pack(">HI", 5, 9) + b"PUT /123",
    struct.pack(">HI", 2, 0) + b"\xff\xfe",
]


@pytest.mark.parametrize("said", ODD)
def test_a_strangers_bytes_end_the_connection(said: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as port:
        with connected(port) as connection:
            sock = connection.sock
            assert isinstance(sock, socket.socket)
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            answer = b""
            while data := sock.recv(1 << 16):
                answer += data
            assert len(answer) < 50
        with connected(port) as connection:
            assert connection.ask("GET /", b"", 100)[0] == 200
    assert "Traceback" not in capsys.readouterr().err
