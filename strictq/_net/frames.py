"""Requests and answers in frames, on a connection that was opened by an HTTP request with the token.

The heads of an HTTP request and its answer cost more processor time than what a replica does with a small segment. So a client
that makes many requests sends a head only to open its connection. Each later request is a frame, and so is each answer:

    size of the target, size of the body | target, such as PUT /1/segment/7 | body
    status of HTTP, size of the body | body
"""

from __future__ import annotations

import http.client
import io
import math
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from .admission import TokenHandler

PROTOCOL: Final = "strictq-frames"
"""The value of the header `Upgrade`."""
UPGRADE: Final = {"Connection": "Upgrade", "Upgrade": PROTOCOL}
TARGET_BYTES_MAX: Final = 1 << 10
LOOK_SECONDS: Final = 0.2
"""How often `on_wait` is called."""
_REQUEST: Final = struct.Struct(">HI")
_ANSWER: Final = struct.Struct(">HI")
_JOINED_BYTES_MAX: Final = 1 << 20
"""A larger body is not copied to be sent together with its head."""
_SLICE_BYTES: Final = 1 << 18
_RECORD_BYTES: Final = 1 << 14
"""The size of a TLS record. `send` does not report a slice that was sent in part, so a slice is one record."""
_DROP: Final = struct.pack("ii", 1, 0)


class NotUpgraded(Exception):
    """The server answered the request that opens a connection with another status.

    Attributes:
        status: that status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"it answered with status {status}")
        self.status = status


class FrameConnection:
    """The client's end of a connection. Not thread-safe.

    Args:
        http: the connection that sends the request that opens it, with its timeout.
        path, headers: of that request.
        on_wait: called several times per second while a request is sent or its answer is awaited, with the seconds since the last
            bytes were sent. An exception from it ends the wait.
    """

    def __init__(
        self, http: http.client.HTTPConnection, path: str, headers: Mapping[str, str], on_wait: Callable[[float], object]
    ) -> None:
        self._http = http
        self._path = path
        self._headers = {**headers, **UPGRADE}
        self._on_wait = on_wait
        self._file: io.BufferedIOBase | None = None

    def ask(self, target: str, body: bytes, most: int) -> tuple[int, bytes]:
        """Make a request. Return status and body of the answer. After an error, the connection is closed.

        Args:
            target: method and path, separated by a space.
            most: the size limit of the answer's body, bytes.
        Raises:
            http.client.HTTPException: the answer is too long.
            OSError: the server closed the connection, or does not answer in time.
        """
        try:
            name = target.encode("ascii")
            head = _REQUEST.pack(len(name), len(body)) + name
            if len(body) > _JOINED_BYTES_MAX:
                self._send(head)
                self._send(body)
            else:
                self._send(head + body)
            self._wait()
            status, size = _ANSWER.unpack(self._exactly(_ANSWER.size))
            if size > most:
                raise http.client.HTTPException("the answer is too long")
            return status, self._exactly(size)
        except BaseException:
            self._reset()  # the answer may still come, and must not be taken for the next request's
            raise

    def open(self) -> None:
        """Open the connection.

        Raises:
            NotUpgraded: the server refuses it.
            http.client.HTTPException: it does not speak this protocol.
            OSError: it can't be reached.
        """
        self._http.request("GET", self._path, headers=self._headers)
        answer = self._http.getresponse()
        if answer.status != HTTPStatus.SWITCHING_PROTOCOLS:
            raise NotUpgraded(answer.status)
        with suppress(AttributeError, OSError):  # not every system has it
            # The kernel takes no more than that ahead of the network. Else a slow one would still have to carry megabytes when
            # the wait for the answer begins.
            self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _SLICE_BYTES)
        self._file = self._http.sock.makefile("rb")

    def _send(self, data: bytes) -> None:
        """Send it, however long that takes as long as the server goes on reading.

        Raises:
            TimeoutError: it does not.
        """
        sock, left = self._http.sock, memoryview(data)
        slices = _RECORD_BYTES if isinstance(sock, ssl.SSLSocket) else _SLICE_BYTES
        most, began = sock.gettimeout(), time.monotonic()
        looked = began
        sock.settimeout(LOOK_SECONDS)
        try:
            while left:
                try:
                    left = left[sock.send(left[:slices]) :]  # TLS requires the same bytes again after a timeout
                    began = time.monotonic()
                    if began - looked > LOOK_SECONDS:
                        looked = began
                        self._on_wait(0.0)
                except TimeoutError:
                    waited = time.monotonic() - began
                    self._on_wait(waited)
                    if waited > (most or math.inf):
                        raise
        finally:
            sock.settimeout(most)

    def _wait(self) -> None:
        """Wait until an answer has begun.

        Raises:
            TimeoutError: this takes too long.
        """
        sock, began = self._http.sock, time.monotonic()
        if isinstance(sock, ssl.SSLSocket) and sock.pending():
            return
        answers = select.poll()
        answers.register(sock, select.POLLIN)
        while not answers.poll(1000 * LOOK_SECONDS):
            waited = time.monotonic() - began
            self._on_wait(waited)
            if waited > (sock.gettimeout() or math.inf):
                raise TimeoutError("timed out")

    def _exactly(self, size: int) -> bytes:
        assert self._file is not None
        data = self._file.read(size)
        if len(data) != size:
            raise ConnectionError("the server closed the connection")
        return data

    def _reset(self) -> None:
        """Close the connection, and drop what was not sent yet: a later connection's requests must not overtake it."""
        with suppress(OSError):
            self._http.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP)
        self.close()

    @property
    def sock(self) -> object:
        """The socket; None: it is not connected yet."""
        return self._http.sock

    def close(self) -> None:
        """Close the connection."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()
        self._http.close()


class FrameHandler(TokenHandler):
    """The server's end of a connection. A subclass sets `opening` and defines `answered`."""

    protocol_version = "HTTP/1.1"
    opening: str
    """The path of the request that opens a connection."""
    bytes_max: Mapping[str, int]
    """The size limits of the bodies of requests, bytes, by method."""

    def answered(self, target: str, body: bytes) -> tuple[HTTPStatus, bytes]:
        """Return status and body of the answer to a request. NOT_FOUND closes the connection."""
        raise NotImplementedError

    def do_GET(self) -> None:
        if self.admitted(0) is None:
            return
        self.close_connection = True
        if self.path != self.opening or self.headers.get("Upgrade") != PROTOCOL:
            self.answer(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.SWITCHING_PROTOCOLS)
        for name, value in UPGRADE.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        while self._next():
            pass

    def _next(self) -> bool:
        """Answer the next request. Return False if there is none, or it is invalid."""
        head = self.rfile.read(_REQUEST.size)
        if len(head) != _REQUEST.size:
            return False
        named, size = _REQUEST.unpack(head)
        if named > TARGET_BYTES_MAX:
            return False
        target = self.rfile.read(named).decode("ascii", "replace")
        if size > self.bytes_max.get(target.partition(" ")[0], 0):
            status, answer = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b""
        else:
            body = self.rfile.read(size)
            if len(body) != size:
                return False
            status, answer = self.answered(target, body)
        self.wfile.write(_ANSWER.pack(status, len(answer)))
        self.wfile.write(answer)
        self.wfile.flush()
        return status not in (HTTPStatus.NOT_FOUND, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
