"""The block server: a process of its own on the queue's host, which `serve` starts. It reads, and stages what sinks write.

Every request is authenticated before anything of its body is read, and has a limit on its size. Nothing that comes in is
unpickled or run.
"""

from __future__ import annotations

import hmac
import http.server
import io
import json
import os
import signal
import socket
import socketserver
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from .. import _validate as validate
from .._errors import InvalidArgument, StrictqError
from .._handouts import read_block, rejected
from .._store.api import Staging
from ..queue import Queue
from . import _block_protocol
from ._opened import looking

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
DRAIN_BYTES_MAX: Final = 2 * _block_protocol.PIECE_BYTES
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


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Serves one queue on a socket that somebody else has opened.

    Args:
        listening: the socket. It is not closed here: connections wait in it while a server that died is started again.
        parent: process without which this one has no purpose.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, path: str, token: str, tls: ssl.SSLContext | None, parent: int) -> None:
        super().__init__(listening.getsockname()[:2], Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.path = path
        self._token = token.encode()
        self._tls = tls
        self._parent = parent
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.strangers = Strangers()
        self._looking = threading.Lock()

    # ---- connections

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
        """Twice a second: end with the parent, and close the connections that have not shown the token in time."""
        if os.getppid() != self._parent:
            os._exit(0)
        self.strangers.close_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the signature is the library's
        """A connection that ends is no error of ours; anything else is told on stderr, which is the driver's."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()

    def admits(self, authorization: str | None) -> bool:
        scheme, _, token = (authorization or "").partition(" ")
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token) and scheme.lower() == "bearer"

    # ---- the queue

    def queue(self, queue_id: str) -> Queue:
        """The queue, to read in it.

        Raises:
            QueueNotFound: it is gone, or another one is there now.
        """
        with self._looking:
            return looking(self.path, queue_id)

    def staging(self, queue_id: str, writer: str) -> Staging:
        self.queue(queue_id)
        return Staging(Path(self.path), writer)


class Head:
    """A connection to read from, which gives only so many bytes in lines: the library itself would take megabytes."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self._left = HEAD_BYTES_MAX
        self.read, self.read1, self.close = file.read, file.read1, file.close

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


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection, which has one request."""

    server: Server
    timeout = ADMISSION_SECONDS
    disable_nagle_algorithm = True
    server_version = "strictq"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile = Head(self.rfile)  # type: ignore[assignment]

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged of a request."""

    def do_POST(self) -> None:
        readers = {_block_protocol.BLOCKS: _blocks, _block_protocol.SCAN: _scan}
        body = self._admitted(_block_protocol.REQUEST_BYTES_MAX)
        if body is None:
            return
        reader = readers.get(self.path)
        if reader is None:
            self._answer(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.end_headers()
        # Spark may take hours over what it has before it takes more; a peer that is gone is noticed by TCP.
        self.connection.settimeout(None)
        self._frames(reader, body)

    def do_PUT(self) -> None:
        self._staged(lambda place, where, body: place.put(where["name"], _offset(where["offset"]), body))

    def do_DELETE(self) -> None:
        self._staged(lambda place, where, _: place.drop([where["name"]]))

    def _admitted(self, bytes_max: int) -> bytes | None:
        """The body of a request that may come in; None: it was answered."""
        length = self.headers.get("Content-Length", "0")
        size = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None
        if not self.server.admits(self.headers.get("Authorization")):
            self._answer(HTTPStatus.UNAUTHORIZED)
            self._drain(size)
            return None
        self.server.strangers.admitted(self.connection, self.client_address[0])
        if size is None or size > bytes_max:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return None
        self.connection.settimeout(BODY_SECONDS)
        body = self.rfile.read(size)
        return body if len(body) == size else None

    def _drain(self, size: int | None) -> None:
        """Read what a client is still sending, or it would not see the answer."""
        left = min(size or 0, DRAIN_BYTES_MAX)
        while left > 0 and (data := self.rfile.read1(min(left, 1 << 16))):
            left -= len(data)

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    # ---- reading

    def _frames(self, reader: Callable[[Server, Any], Iterator[bytes]], body: bytes) -> None:
        found: Iterator[bytes] | None = None
        while True:
            try:
                if found is None:
                    found = reader(self.server, json.loads(body))
                kind, data = _block_protocol.DATA, next(found)
            except StopIteration:
                kind, data = _block_protocol.END, b""
            except Exception as e:
                kind, data = _block_protocol.FAILED, _failure(e)
            self.wfile.write(_block_protocol.HEAD.pack(kind, len(data)))
            self.wfile.write(data)
            if kind != _block_protocol.DATA:
                return

    # ---- staging

    def _staged(self, work: Callable[[Staging, dict[str, str], bytes], None]) -> None:
        body = self._admitted(_block_protocol.PIECE_BYTES)
        if body is None:
            return
        target = urlsplit(self.path)
        if target.path != _block_protocol.STAGED:
            self._answer(HTTPStatus.NOT_FOUND)
            return
        try:
            where = dict(parse_qsl(target.query, keep_blank_values=True, strict_parsing=True, errors="strict"))
            writer = validate.name("writer", where["writer"])
            work(self.server.staging(_block_protocol.text("queue", where["queue"]), writer), where, body)
        except Exception as e:
            self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, _failure(e))
        else:
            self._answer(HTTPStatus.OK)


_UNREADABLE: Final = (LookupError, TypeError, ValueError, RecursionError)
"""What a request raises that has not the form of one."""


def _failure(error: Exception) -> bytes:
    if isinstance(error, _UNREADABLE) and not isinstance(error, StrictqError):
        error = InvalidArgument(f"the block server can't read this request: {type(error).__name__}: {error}")
    elif not isinstance(error, StrictqError):
        traceback.print_exception(error)
    return _block_protocol.tell(error)[: _block_protocol.TOLD_BYTES_MAX]


def _offset(text: str) -> int:
    # At most 19 digits: `int` takes other scripts' digits, spaces and underscores, too.
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidArgument(f"offset must be a whole number, not {text[:40]!r}")
    return validate.whole("offset", int(text), 0, _block_protocol.NUMBER_MAX)


def _blocks(server: Server, request: Any) -> Iterator[bytes]:
    """Blocks of a hand-out, as they were recorded, without what was dead-lettered out of it."""
    queue = server.queue(_block_protocol.text("queue", request["queue"]))
    consumer, n = validate.name("consumer", request["consumer"]), _block_protocol.number("n", request["n"])
    last_shard = queue.shards - 1
    ranges = []
    for shard, first, last in _block_protocol.entries("blocks", request["blocks"]):
        validate.whole("shard", shard, 0, last_shard)
        ranges.append((shard, _block_protocol.number("first", first), _block_protocol.number("last", last)))
    return _recorded(queue, consumer, n, ranges)


def _recorded(queue: Queue, consumer: str, n: int, ranges: list[tuple[int, int, int]]) -> Iterator[bytes]:
    for shard, first, last in ranges:
        without = rejected(queue, consumer, n, shard)
        for part in range(first, last + 1):
            data = read_block(queue, consumer, n, shard, part)
            if without:
                from ._arrow import leave_out

                data = leave_out(data, without)
            yield data


def _scan(server: Server, request: Any) -> Iterator[bytes]:
    """A part of a table, in batches."""
    from ._scanning import served_batches

    return served_batches(server.queue(_block_protocol.text("queue", request["queue"])), request)


# ---- the process


def main() -> None:
    """Serve what a line of JSON on stdin says, until the parent is gone. A line on stdout says that it is ready, or why not."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the driver program, which then ends this one
    config = json.loads(sys.stdin.readline())
    try:
        looking(config["path"], config["queue"])
        tls = None
        if config["certificate"] is not None:
            tls = server_context(config["certificate"], config["private_key"])
        server = Server(socket.socket(fileno=config["fd"]), config["path"], config["token"], tls, config["parent"])
    except Exception as e:
        print(_block_protocol.tell(e).decode(), flush=True)
        sys.exit(1)
    print("{}", flush=True)
    server.serve_forever()


def server_context(certificate: str, private_key: str | None) -> ssl.SSLContext:
    """TLS with this certificate. An encrypted key is refused rather than asked for on a terminal."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, private_key, password="")
    return context
