"""The executors' requests to a block server: recorded blocks, scans, staging. Never opens a queue's files."""

from __future__ import annotations

import http.client
import json
import random
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlencode

from .._net import error_frames
from .._store.api import new_file
from .._values import hints
from .._values.errors import ServerRefused, ServerUnreachable, StrictqError
from . import _block_protocol
from ._block_protocol import Served

PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
LOST: Final = (OSError, http.client.HTTPException)
"""The errors of a server that was killed, is being restarted, or can't be reached."""


class ServerPatience:
    """The time for which a client keeps trying, restarted by each success."""

    def __init__(
        self, served: Served, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._served = served
        self._clock = clock
        self._sleep = sleep
        self.renew()

    def renew(self) -> None:
        self._until = self._clock() + self._served.wait_seconds
        self._pause = PAUSE_SECONDS

    def wait(self, error: Exception) -> None:
        """Pause before the next try.

        Raises:
            ServerUnreachable: the time is over.
        """
        left = self._until - self._clock()
        if left <= 0:
            served = self._served
            raise ServerUnreachable(
                f"the block server at {served.address} did not answer for {served.wait_seconds:g} seconds: {_describe(error)}",
                served.address,
            ) from error
        # Random, so that executors do not try at the same moment.
        self._sleep(min(left, self._pause * random.uniform(0.5, 1.0)))
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# ---- requests


@contextmanager
def _asked(served: Served, method: str, target: str, body: bytes) -> Iterator[http.client.HTTPResponse]:
    """Send a request on a separate connection, because a task makes few requests. Yield the response.

    Raises:
        ServerRefused: the server refuses the token, or is another program.
        StrictqError: the server's error.
        OSError, HTTPException: the server is not reachable now.
    """
    timeout = max(served.wait_seconds, 1.0)
    if served.authority is None:
        connection = http.client.HTTPConnection(served.host, served.port, timeout=timeout)
    else:
        context = ssl.create_default_context(cadata=served.authority)
        connection = http.client.HTTPSConnection(served.host, served.port, timeout=timeout, context=context)
    try:
        connection.request(method, target, body, {"Authorization": f"Bearer {served.token}"})
        with connection.getresponse() as response:
            if response.status != http.HTTPStatus.OK:
                raise _refusal(served, response)
            yield response
    except ssl.SSLCertVerificationError as e:
        raise ServerRefused(
            f"the certificate of the block server at {served.address} is not accepted: {e.verify_message}", served.address,
            hint=hints.CERTIFICATE_HOST,
        ) from e  # fmt: skip
    finally:
        connection.close()


def _refusal(served: Served, response: http.client.HTTPResponse) -> StrictqError:
    if response.status == http.HTTPStatus.UNAUTHORIZED:
        return ServerRefused(f"the block server at {served.address} does not accept this token", served.address)
    if response.status == http.HTTPStatus.UNPROCESSABLE_ENTITY:
        return error_frames.decode(response.read(error_frames.ERROR_BYTES_MAX))
    return ServerRefused(
        f"what answers at {served.address} is not a block server of this version of strictq: {response.status}", served.address,
        hint=hints.SAME_VERSION,
    )  # fmt: skip


def _frames(served: Served, target: str, request: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the data of each frame, until the end of the answer.

    Raises:
        IncompleteRead: the answer ends too early.
    """
    with _asked(served, "POST", target, json.dumps(request).encode()) as response:
        while True:
            kind, length = _block_protocol.HEAD.unpack(_exactly(response, _block_protocol.HEAD.size))
            if length > (_block_protocol.FRAME_BYTES_MAX if kind == _block_protocol.DATA else error_frames.ERROR_BYTES_MAX):
                raise ServerRefused(f"a frame of {length:,} bytes came from {served.address}", served.address)
            data = _exactly(response, length)
            if kind == _block_protocol.END:
                return
            if kind == _block_protocol.FAILED:
                raise error_frames.decode(data)
            yield data


def _exactly(response: http.client.HTTPResponse, size: int) -> bytes:
    data = response.read(size) if size else b""
    if len(data) != size:
        raise http.client.IncompleteRead(data, size - len(data))
    return data


# ---- reading


def blocks(
    served: Served,
    queue_id: str,
    consumer: str,
    n: int,
    ranges: Iterable[tuple[int, int, int]],
    patience: ServerPatience | None = None,
) -> Iterator[bytes]:
    """Yield blocks of a recorded batch in order. After an interruption, continue with the next block when the server is back.

    Args:
        ranges: (shard, first, last) each.
    Raises:
        ServerUnreachable, ServerRefused: the server does not answer, or refuses the token.
        RecordedBatchGone, StoreError: as for reads of the files.
    """
    patience = patience or ServerPatience(served)
    rest = list(ranges)
    while rest:
        try:
            request = {"queue": queue_id, "consumer": consumer, "n": n, "blocks": rest}
            for data in _frames(served, _block_protocol.BLOCKS, request):
                shard, first, last = rest[0]
                rest[:1] = [(shard, first + 1, last)] if first < last else []
                yield data
                patience.renew()  # using the block took time
        except LOST as e:
            patience.wait(e)


def scanned(served: Served, request: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the batches of a scan. Wait for the server only before the first one; Spark repeats the task of an interrupted scan.

    Raises:
        ServerUnreachable, ServerRefused: the server does not answer or refuses the token, or the connection was lost.
        StoreError: as for reads of the files.
    """
    patience = ServerPatience(served)
    began = False
    while True:
        try:
            for data in _frames(served, _block_protocol.SCAN, request):
                began = True
                yield data
            return
        except LOST as e:
            if began:
                raise ServerUnreachable(
                    f"the block server at {served.address} closed the connection: {_describe(e)}", served.address,
                    hint=hints.RUN_TASK_AGAIN,
                ) from e  # fmt: skip
            patience.wait(e)


# ---- staging


class Upload:
    """A staged file written in pieces on the server's host. It has the methods that pyarrow needs to write to it."""

    def __init__(self, served: Served, where: Mapping[str, str]) -> None:
        self._served = served
        self._where = where
        self._patience = ServerPatience(served)
        self._waiting = bytearray()
        self._sent = 0
        self.closed = False

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            size = view.nbytes
            self._waiting += view
        while len(self._waiting) >= _block_protocol.PIECE_BYTES:
            self._send(_block_protocol.PIECE_BYTES)
        return size

    def flush(self) -> None:
        if self._waiting:
            self._send(len(self._waiting))

    def close(self) -> None:
        """Stop writing. Data that was not flushed is not sent."""
        self.closed = True
        self._waiting.clear()

    def _send(self, size: int) -> None:
        """Send one piece, repeatedly until the server has it. A repetition at the same offset changes nothing."""
        piece = bytes(self._waiting[:size])
        target = f"{_block_protocol.STAGED}?{urlencode({**self._where, 'offset': self._sent})}"
        self._patience.renew()
        while True:
            try:
                with _asked(self._served, "PUT", target, piece):
                    break
            except LOST as e:
                self._patience.wait(e)
        del self._waiting[:size]
        self._sent += size


class RemoteStaging:
    """The staged files of one writer, as `Staging` for processes without the queue's files."""

    def __init__(self, served: Served, queue_id: str, writer: str) -> None:
        self._served = served
        self._where = {"queue": queue_id, "writer": writer}

    def create(self, number: int, run: str) -> tuple[str, Upload]:
        name = new_file(number, run)
        return name, Upload(self._served, {**self._where, "name": name})

    def drop(self, names: Iterable[str]) -> None:
        """Delete files if the server is reachable. Remaining files are deleted with their batch."""
        for name in names:
            target = f"{_block_protocol.STAGED}?{urlencode({**self._where, 'name': name})}"
            with suppress(StrictqError, *LOST), _asked(self._served, "DELETE", target, b""):
                pass
