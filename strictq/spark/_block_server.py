"""The block server: a separate process on the queue's host, started by `serve`. It reads, and stages the rows of sinks.

Every request is authenticated before its body is read, and its size is limited. No received data is
unpickled or executed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from .._client import validate
from .._net import error_frames
from .._net.admission import TokenHandler, TokenServer
from .._net.transport import server_context
from .._store.api import Staging
from .._values.errors import InvalidArgument, StrictqError
from ..queue import Queue
from . import _block_protocol
from ._opened import looking
from ._recorded_batches import read_block, rejected


class Server(TokenServer):
    """A server for one queue, on a socket that the parent process opened.

    Args:
        parent: the process id of the parent, with which this process ends.
    """

    def __init__(self, listening: socket.socket, path: str, token: str, tls: ssl.SSLContext | None, parent: int) -> None:
        super().__init__(listening, Handler, token, tls)
        self.path = path
        self._parent = parent
        self._looking = threading.Lock()

    def service_actions(self) -> None:
        """Also end if the parent has ended."""
        if os.getppid() != self._parent:
            os._exit(0)
        super().service_actions()

    def queue(self, queue_id: str) -> Queue:
        """Return the queue, opened read-only.

        Raises:
            QueueNotFound: it was removed or replaced.
        """
        with self._looking:
            return looking(self.path, queue_id)

    def staging(self, queue_id: str, writer: str) -> Staging:
        self.queue(queue_id)
        return Staging(Path(self.path), writer)


class Handler(TokenHandler):
    """One request to read or to stage."""

    server: Server

    def do_POST(self) -> None:
        readers = {_block_protocol.BLOCKS: _blocks, _block_protocol.SCAN: _scan}
        body = self.admitted(_block_protocol.REQUEST_BYTES_MAX)
        if body is None:
            return
        reader = readers.get(self.path)
        if reader is None:
            self.answer(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.end_headers()
        # Spark may process one frame for hours before it reads the next. TCP detects a peer that is gone.
        self.connection.settimeout(None)
        self._frames(reader, body)

    def do_PUT(self) -> None:
        self._staged(lambda place, where, body: place.put(where["name"], _offset(where["offset"]), body))

    def do_DELETE(self) -> None:
        self._staged(lambda place, where, _: place.drop([where["name"]]))

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
        body = self.admitted(_block_protocol.PIECE_BYTES)
        if body is None:
            return
        target = urlsplit(self.path)
        if target.path != _block_protocol.STAGED:
            self.answer(HTTPStatus.NOT_FOUND)
            return
        try:
            where = dict(parse_qsl(target.query, keep_blank_values=True, strict_parsing=True, errors="strict"))
            writer = validate.name("writer", where["writer"])
            work(self.server.staging(_block_protocol.text("queue", where["queue"]), writer), where, body)
        except Exception as e:
            self.answer(HTTPStatus.UNPROCESSABLE_ENTITY, _failure(e))
        else:
            self.answer(HTTPStatus.OK)


_UNREADABLE: Final = (LookupError, TypeError, ValueError, RecursionError)
"""The exceptions of a malformed request."""


def _failure(error: Exception) -> bytes:
    if isinstance(error, _UNREADABLE) and not isinstance(error, StrictqError):
        error = InvalidArgument(f"the block server can't read this request: {type(error).__name__}: {error}")
    elif not isinstance(error, StrictqError):
        traceback.print_exception(error)
    return error_frames.encode(error, _block_protocol.SERVER)[: error_frames.ERROR_BYTES_MAX]


def _offset(text: str) -> int:
    # At most 19 ASCII digits, because `int` also accepts other scripts' digits, spaces and underscores.
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidArgument(f"offset must be a whole number, not {text[:40]!r}")
    return validate.whole("offset", int(text), 0, _block_protocol.NUMBER_MAX)


def _blocks(server: Server, request: Any) -> Iterator[bytes]:
    """Return recorded blocks of a batch, without the messages that were dead-lettered since."""
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
    """Return a part of a table, in batches."""
    from ._scanning import served_batches

    return served_batches(server.queue(_block_protocol.text("queue", request["queue"])), request)


# ---- process


def main() -> None:
    """Serve as configured by a line of JSON on stdin, until the parent ends. Report readiness or an error as a line on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver program, which then ends this process
    config = json.loads(sys.stdin.readline())
    try:
        looking(config["path"], config["queue"])
        tls = None
        if config["certificate"] is not None:
            tls = server_context(config["certificate"], config["private_key"])
        server = Server(socket.socket(fileno=config["fd"]), config["path"], config["token"], tls, config["parent"])
    except Exception as e:
        print(error_frames.encode(e, _block_protocol.SERVER).decode(), flush=True)
        sys.exit(1)
    print("{}", flush=True)
    server.serve_forever()
