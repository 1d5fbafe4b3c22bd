"""Who may come in to a server of ours: with the token, in time, with so much and no more."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest
import trustme

from strictq import ConfigError, InvalidArgument
from strictq._net import admission
from strictq._net.admission import Strangers, TokenHandler, TokenServer
from strictq._net.transport import address, certified, listen, require_token, server_context
from tests.support.running import PATIENCE_SECONDS

TOKEN = "correct-horse-battery-staple"
BODY_BYTES_MAX = 1000


class Echo(TokenHandler):
    """Answers with what it was given."""

    def do_PUT(self) -> None:
        body = self.admitted(BODY_BYTES_MAX)
        if body is not None:
            self.answer(HTTPStatus.OK, body)


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server in this process; its port."""
    listening = listen("the echo", "127.0.0.1", 0)
    server = TokenServer(listening, Echo, TOKEN, tls)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(connection: http.client.HTTPConnection, body: bytes, authorization: str | None) -> tuple[int, bytes]:
    """Status and body of the answer."""
    try:
        connection.request("PUT", "/", body, {} if authorization is None else {"Authorization": authorization})
        with connection.getresponse() as response:
            return response.status, response.read()
    finally:
        connection.close()


def plain(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)


def test_who_shows_the_token_is_answered() -> None:
    with serving() as port:
        for scheme in ("Bearer", "bearer"):
            assert ask(plain(port), b"body", f"{scheme} {TOKEN}") == (200, b"body")


@pytest.mark.parametrize(
    "authorization", [None, "", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer \xe9", "Bearer "]
)
def test_who_does_not_is_refused(authorization: str | None) -> None:
    with serving() as port:
        assert ask(plain(port), b"x" * 100_000, authorization) == (401, b"")


def test_a_body_that_is_too_large_is_not_read() -> None:
    with serving() as port:
        assert ask(plain(port), bytes(BODY_BYTES_MAX), f"Bearer {TOKEN}")[0] == 200
        for length in (BODY_BYTES_MAX + 1, "x", "-1", "9" * 50):
            with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
                connection.sendall(
                    f"PUT / HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {length}\r\n\r\n".encode()
                )
                assert b" 413 " in connection.recv(1000)


def test_a_head_without_end_is_not_read() -> None:
    with serving() as port, socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        with suppress(ConnectionError):
            connection.sendall(b"PUT / HTTP/1.1\r\n" + b"X: y\r\n" * admission.HEAD_BYTES_MAX)
            assert b" 200 " not in connection.recv(1000)
        assert ask(plain(port), b"body", f"Bearer {TOKEN}") == (200, b"body")


def test_who_shows_nothing_in_time_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "ADMISSION_SECONDS", 0.0)
    with serving() as port, socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        connection.sendall(b"PUT / HT")
        assert connection.recv(1) == b""


def test_known_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "KNOWN_ADDRESSES_MAX", 2)
    strangers = Strangers()
    with socket.socket() as connection:
        for host in ("a", "b", "a", "c"):
            strangers.admitted(connection, host)
    assert list(strangers._known) == ["a", "c"]


# ---- addresses, tokens, certificates


def test_addresses_as_they_are_written() -> None:
    assert address("host", 1) == "host:1"
    assert address("::1", 2) == "[::1]:2"


@pytest.mark.parametrize("token", ["x" * 15, "x" * 513, "with a space in it", "é" * 20, "line\n" * 5, 5, None])
def test_tokens_that_are_refused(token: object) -> None:
    with pytest.raises(InvalidArgument, match="a token must have"):
        require_token(token)


def test_a_port_that_is_taken() -> None:
    with listen("this", "127.0.0.1", 0) as first, pytest.raises(ConfigError, match="that can't listen at 127"):
        listen("that", "127.0.0.1", first.getsockname()[1])


def test_tls(tmp_path: Path) -> None:
    ours, theirs = trustme.CA(), trustme.CA()
    ours.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "here"))
    ours.cert_pem.write_to_path(str(tmp_path / "ours"))
    theirs.cert_pem.write_to_path(str(tmp_path / "theirs"))
    (chain, key), trusted = certified("this", tmp_path / "here", None, tmp_path / "ours")
    assert (chain, key) == (str(tmp_path / "here"), None)
    assert "PRIVATE KEY" not in trusted
    with serving(server_context(chain, key)) as port:

        def connection(cadata: str) -> http.client.HTTPSConnection:
            context = ssl.create_default_context(cadata=cadata)
            return http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS, context=context)

        assert ask(connection(trusted), b"body", f"Bearer {TOKEN}") == (200, b"body")
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(connection((tmp_path / "theirs").read_text()), b"body", f"Bearer {TOKEN}")
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            ask(plain(port), b"body", f"Bearer {TOKEN}")
        assert ask(connection(trusted), b"again", f"Bearer {TOKEN}") == (200, b"again")
    (tmp_path / "no").write_text("no")
    with pytest.raises(ConfigError, match="this can't use this certificate"):
        certified("this", tmp_path / "no", None, None)
