"""uvicorn's HTTP protocol with limits: on the time in which a request arrives and an answer is read, on bytes and connections.

uvicorn waits without limit for the rest of a request, and for the client to read an answer, so that a few thousand silent
connections use up a server.
"""

from __future__ import annotations

import asyncio
import select
from collections import Counter
from typing import Any, Final

import attrs
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .counters import Counters
from .guard import is_loopback
from .parts import BODY_BYTES_MAX, HAS_GONE, HEADERS_BYTES_MAX

_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 19\r\nretry-after: 1\r\n"
    b"connection: close\r\n\r\nthe server is busy\n"
)


@attrs.frozen(kw_only=True)
class ConnectionLimits:
    """Limits of connections.

    Attributes:
        request_seconds: a request is complete this long after its first byte, or after the connection was made. The client reads
            an answer in the same time.
        seconds_per_byte: added for each byte that arrived, or that is not read.
        arriving_bytes: most bytes of all incomplete requests. Beyond that, those with more than HEADERS_BYTES_MAX are refused.
        connections: most open connections.
        connections_per_address: most open connections of another machine.
    """

    request_seconds: float = 10.0
    seconds_per_byte: float = 1e-5
    arriving_bytes: int = 256 << 20
    connections: int = 4096
    connections_per_address: int = 64


def protocol_class(limits: ConnectionLimits, counters: Counters) -> type[HttpToolsProtocol]:
    """Return the protocol of one server, which counts its connections."""
    members = {"limits": limits, "counters": counters, "addresses": Counter()}
    return type("LimitedProtocolOfServer", (LimitedProtocol,), members)


class LimitedProtocol(HttpToolsProtocol):
    """One connection. A request that arrives whole in one read sets no timer."""

    limits: ConnectionLimits
    counters: Counters
    addresses: Counter[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arriving = True  # the first request is due when the connection is made
        self._bytes = 0
        self._bytes_max = HEADERS_BYTES_MAX
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.addresses[self._address] += 1
        self.counters.connections += 1
        here = self.addresses[self._address]
        if len(self.connections) > self.limits.connections or (
            here > self.limits.connections_per_address and self._address and not is_loopback(self._address)
        ):
            self._refuse()
            return
        self._await_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        self._stop_unread()
        self._note(0)
        self.counters.connections -= 1
        self.addresses[self._address] -= 1
        if not self.addresses[self._address]:
            del self.addresses[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse. If a request is incomplete then, it must be complete in time."""
        if self.transport.is_closing():
            return
        self._note(self._bytes + len(data))
        super().data_received(data)
        if not self._arriving:
            self._note(0)
            self._stop_timer()
        elif self._bytes > self._bytes_max:
            self.transport.close()
        elif self.counters.arriving_bytes > self.limits.arriving_bytes and self._bytes > HEADERS_BYTES_MAX:
            self._refuse()
        elif self._timer is None:
            self._await_rest()

    def on_message_begin(self) -> None:
        """Note the first byte of a request."""
        super().on_message_begin()
        self._arriving = True
        self._bytes_max = HEADERS_BYTES_MAX

    def on_headers_complete(self) -> None:
        """Note the end of the headers."""
        super().on_headers_complete()
        self.scope[HAS_GONE] = self._client_has_gone  # type: ignore[typeddict-unknown-key]
        self._bytes_max = HEADERS_BYTES_MAX + BODY_BYTES_MAX

    def on_message_complete(self) -> None:
        """Note the last byte of a request."""
        super().on_message_complete()
        self._arriving = False

    def _client_has_gone(self) -> bool:
        """Return whether the client has closed its side of the connection, although the event loop may not have noticed yet."""
        if self.transport.is_closing():
            return True
        connection = select.poll()
        connection.register(self.transport.get_extra_info("socket"), select.POLLRDHUP)
        return bool(connection.poll(0))

    def pause_writing(self) -> None:
        """Wait for the client to read its answer."""
        super().pause_writing()
        unread = self.transport.get_write_buffer_size()
        self._stop_unread()
        self._unread = self.loop.call_later(
            self.limits.request_seconds + unread * self.limits.seconds_per_byte, self._abort_unread
        )

    def resume_writing(self) -> None:
        """Note that the client has read."""
        super().resume_writing()
        self._stop_unread()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _abort_unread(self) -> None:
        """Abort the connection. `close` would wait until the client has read everything."""
        self._unread = None
        self.counters.timeouts += 1
        self.transport.abort()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: uvicorn's text recommends a package that this server does not need."""

    def _note(self, arrived: int) -> None:
        """Note how many bytes of an incomplete request have arrived."""
        self.counters.arriving_bytes += arrived - self._bytes
        self._bytes = arrived

    def _refuse(self) -> None:
        self.counters.connections_refused += 1
        self.transport.write(_BUSY)
        self.transport.close()

    def _await_rest(self) -> None:
        self._began = self.loop.time()
        self._timer = self.loop.call_later(self.limits.request_seconds, self._check)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Close the connection if its request is late. A client that the server makes wait is not."""
        self._timer = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self._await_rest()
            return
        left = self._began + self.limits.request_seconds + self._bytes * self.limits.seconds_per_byte - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._check)
            return
        self.counters.timeouts += 1
        self.transport.close()
