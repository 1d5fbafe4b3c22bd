"""Admission of connections: each must send its token soon, and the number of those without a token is limited.

A request is authenticated before its body is read, and its size is limited.
"""

from __future__ import annotations

import hmac
import http.server
import io
import socket
import socketserver
import ssl
import sys
import threading
import time
import traceback
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

CONNECTIONS_MAX: Final = 500
"""Less than 1,024, the usual limit of open files per process."""
ADMISSION_SECONDS: Final = 5.0
"""Seconds from a connection to its token. A slower connection is closed."""
STRANGERS_MAX: Final = 64
"""Connections without a token yet, from all addresses that have never sent it. Each has a thread, of about 150 KB."""
STRANGERS_PER_ADDRESS: Final = 32
STRANGERS_PER_KNOWN_ADDRESS: Final = 128
"""The limit of an address that has sent the token before, which may start many tasks at once."""
KNOWN_ADDRESSES_MAX: Final = 1024
BODY_SECONDS: Final = 60.0
"""Seconds between two pieces of a body."""
DRAINED_BYTES_MAX: Final = 8 * 1024 * 1024
HEAD_BYTES_MAX: Final = 16 * 1024
"""The limit of the bytes read before the token is known."""


class Strangers:
    """The connections that have not sent the token yet, oldest first. Thread-safe.

    If there are too many, the oldest one is closed, not the new one. A client sends its token within milliseconds, so
    the oldest connections are the least likely to send it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, tuple[str, float]] = {}
        self._known: dict[str, None] = {}

    def arrived(self, connection: socket.socket, host: str) -> None:
        """Add a connection. If its address, or all unknown ones together, have too many, close the oldest of them."""
        with self._lock:
            known = host in self._known
            same = [c for c, (other, _) in self._waiting.items() if other == host]
            unknown = [] if known else [c for c, (other, _) in self._waiting.items() if other not in self._known]
            if len(same) >= (STRANGERS_PER_KNOWN_ADDRESS if known else STRANGERS_PER_ADDRESS):
                self._close(same[0])
            elif len(unknown) >= STRANGERS_MAX:
                self._close(unknown[0])
            self._waiting[connection] = (host, time.monotonic() + ADMISSION_SECONDS)

    def admitted(self, connection: socket.socket, host: str) -> None:
        """Remove a connection that sent the token, and remember its address."""
        with self._lock:
            self._waiting.pop(connection, None)
            self._known.pop(host, None)
            self._known[host] = None
            if len(self._known) > KNOWN_ADDRESSES_MAX:
                del self._known[next(iter(self._known))]

    def left(self, connection: socket.socket) -> None:
        """Remove a connection that ended."""
        with self._lock:
            self._waiting.pop(connection, None)

    def close_oldest(self) -> None:
        """Close the oldest connection, to make room for the next attempt of a refused client."""
        with self._lock:
            if self._waiting:
                self._close(next(iter(self._waiting)))

    def close_overdue(self) -> None:
        """Close every connection that did not send the token in time."""
        now = time.monotonic()
        with self._lock:
            for connection in [c for c, (_, until) in self._waiting.items() if now > until]:
                self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        del self._waiting[connection]
        with suppress(OSError):  # its own thread, which reads from it, then ends and releases its resources
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


class TokenServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """A server on a socket that is already open, with a thread for each connection.

    Args:
        listening: the socket. It is not closed here, so connections wait in it while a crashed server is restarted.
        handler: a subclass of TokenHandler.
        tls: the TLS context; None: tokens and all other data cross the network unencrypted.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, handler: type[TokenHandler], token: str, tls: ssl.SSLContext | None) -> None:
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._token = token.encode()
        self._tls = tls
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.strangers = Strangers()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = self.socket.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._tls is not None:
            # The connection's own thread does the handshake.
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.strangers.close_oldest()
            self.shutdown_request(request)
            return
        self.strangers.arrived(request, client_address[0])
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def shutdown_request(self, request: Any) -> None:
        self.strangers.left(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close the connections that did not send the token in time. Called twice a second."""
        self.strangers.close_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the library defines the signature
        """Ignore connections that ended, and print any other error to stderr."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()

    def admits(self, authorization: str | None) -> bool:
        scheme, _, token = (authorization or "").partition(" ")
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token) and scheme.lower() == "bearer"


class Head:
    """A wrapper of a connection's input that limits the bytes of the request's head. The library would read megabytes."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self.renew()
        self.read, self.read1, self.close = file.read, file.read1, file.close

    def renew(self) -> None:
        """Reset the limit for the next request."""
        self._left = HEAD_BYTES_MAX

    def readline(self, size: int = HEAD_BYTES_MAX) -> bytes:
        """Return the next line.

        Raises:
            ConnectionError: the head of the request is too long.
        """
        line = self._file.readline(min(size, self._left))
        self._left -= len(line)
        if self._left <= 0:
            raise ConnectionError("the head of a request is too long")
        return line


class TokenHandler(http.server.BaseHTTPRequestHandler):
    """A connection. It serves one request, unless a subclass speaks HTTP/1.1."""

    server: TokenServer
    timeout = ADMISSION_SECONDS
    disable_nagle_algorithm = True
    wbufsize = -1
    """An answer is sent in one piece, at the end of its request."""
    server_version = "strictq"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self._head = Head(self.rfile)
        self.rfile = self._head  # type: ignore[assignment]

    def handle_one_request(self) -> None:
        self._head.renew()
        super().handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: requests are not logged."""

    def admitted(self, bytes_max: int) -> bytes | None:
        """Return the body of an admitted request; None: it was refused, and answered if possible."""
        length = self.headers.get("Content-Length", "0")
        size = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None
        if not self.server.admits(self.headers.get("Authorization")):
            self.close_connection = True
            self.answer(HTTPStatus.UNAUTHORIZED)
            self._drain(size)
            return None
        self.server.strangers.admitted(self.connection, self.client_address[0])
        if size is None or size > bytes_max:
            self.close_connection = True
            self.answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return None
        self.connection.settimeout(BODY_SECONDS)
        body = self.rfile.read(size)
        if len(body) == size:
            return body
        self.close_connection = True
        return None

    def _drain(self, size: int | None) -> None:
        """Read what the client is still sending. Otherwise it would not see the answer."""
        left = min(size or 0, DRAINED_BYTES_MAX)
        while left > 0 and (data := self.rfile.read1(min(left, 1 << 16))):
            left -= len(data)

    def answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
