"""Who may come in: connections that show a token, soon, and not too many that have not shown it yet.

A request is authenticated before anything of its body is read, and has a limit on its size.
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
"""Fewer than the 1,024 files that a process may usually have open."""
ADMISSION_SECONDS: Final = 5.0
"""From a connection to its token. A connection that takes longer is closed."""
STRANGERS_MAX: Final = 64
"""Connections without a token yet, from all addresses that have never shown it. Each has a thread, of about 150 KB."""
STRANGERS_PER_ADDRESS: Final = 32
STRANGERS_PER_KNOWN_ADDRESS: Final = 128
"""An address that has shown the token before may start many tasks at once."""
KNOWN_ADDRESSES_MAX: Final = 1024
BODY_SECONDS: Final = 60.0
"""Between two pieces of a body."""
DRAINED_BYTES_MAX: Final = 8 * 1024 * 1024
HEAD_BYTES_MAX: Final = 16 * 1024
"""Of what comes before the token is known."""


class Strangers:
    """The connections that have not shown the token yet, oldest first. Any thread may call it.

    Where there are too many, the oldest is closed, not the newcomer: a client shows its token within milliseconds, so those
    that wait longest are the ones that never will.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, tuple[str, float]] = {}
        self._known: dict[str, None] = {}

    def arrived(self, connection: socket.socket, host: str) -> None:
        """Wait for its token, and close the oldest connection of this address, or of all unknown ones, that is one too many."""
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
        """It has shown the token: its address is known from now on."""
        with self._lock:
            self._waiting.pop(connection, None)
            self._known.pop(host, None)
            self._known[host] = None
            if len(self._known) > KNOWN_ADDRESSES_MAX:
                del self._known[next(iter(self._known))]

    def left(self, connection: socket.socket) -> None:
        """It is over."""
        with self._lock:
            self._waiting.pop(connection, None)

    def close_oldest(self) -> None:
        """Make room for the next try of a client that was refused."""
        with self._lock:
            if self._waiting:
                self._close(next(iter(self._waiting)))

    def close_overdue(self) -> None:
        """Close every connection whose time for the token is over."""
        now = time.monotonic()
        with self._lock:
            for connection in [c for c, (_, until) in self._waiting.items() if now > until]:
                self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        del self._waiting[connection]
        with suppress(OSError):  # its own thread, which waits for it, ends with this, and releases what it has
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


class TokenServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Serves on a socket that is open already, each connection in a thread of its own.

    Args:
        listening: the socket. It is not closed here: connections wait in it while a server that died is started again.
        handler: a TokenHandler, which has one request.
        tls: None: tokens and all else cross the network in the clear.
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
            # The handshake waits for the connection's own thread.
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
        """Close the connections that have not shown the token in time. Called twice a second."""
        self.strangers.close_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the signature is the library's
        """A connection that ends is no error of ours; anything else is reported on stderr."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()

    def admits(self, authorization: str | None) -> bool:
        scheme, _, token = (authorization or "").partition(" ")
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token) and scheme.lower() == "bearer"


class Head:
    """A connection to read from, which gives only so many bytes in lines: the library itself would take megabytes."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self.renew()
        self.read, self.read1, self.close = file.read, file.read1, file.close

    def renew(self) -> None:
        """Another request begins."""
        self._left = HEAD_BYTES_MAX

    def readline(self, size: int = HEAD_BYTES_MAX) -> bytes:
        """
        Raises:
            ConnectionError: there was more.
        """
        line = self._file.readline(min(size, self._left))
        self._left -= len(line)
        if self._left <= 0:
            raise ConnectionError("the head of a request is too long")
        return line


class TokenHandler(http.server.BaseHTTPRequestHandler):
    """One connection. It has one request, unless a subclass speaks HTTP/1.1."""

    server: TokenServer
    timeout = ADMISSION_SECONDS
    disable_nagle_algorithm = True
    wbufsize = -1
    """An answer is sent as a whole, at the end of its request."""
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
        """Nothing is logged of a request."""

    def admitted(self, bytes_max: int) -> bytes | None:
        """Return the body of a request that may come in; None: it was answered."""
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
        """Read what a client is still sending, or it would not see the answer."""
        left = min(size or 0, DRAINED_BYTES_MAX)
        while left > 0 and (data := self.rfile.read1(min(left, 1 << 16))):
            left -= len(data)

    def answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
