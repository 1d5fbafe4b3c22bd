"""uvicorn's HTTP protocol with limits: on the time a request takes to arrive, on its bytes, and on connections.

uvicorn waits without limit for the rest of a request, so that a few thousand silent connections use up a server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import attrs
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .counters import Counters
from .guard import is_loopback
from .parts import BODY_BYTES_MAX, HEADERS_BYTES_MAX

_TOO_MANY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 21\r\nretry-after: 1\r\n"
    b"connection: close\r\n\r\ntoo many connections\n"
)


@attrs.frozen(kw_only=True)
class ConnectionLimits:
    """ConnectionLimits of connections.

    Attributes:
        request_seconds: a request is complete this long after its first byte, or after the connection was made.
        seconds_per_byte: added for each byte that arrived.
        connections: most open connections.
        connections_per_address: most open connections of another machine.
    """

    request_seconds: float = 10.0
    seconds_per_byte: float = 1e-5
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
            self.counters.connections_refused += 1
            transport.write(_TOO_MANY)
            transport.close()
            return
        self._await_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        self.counters.connections -= 1
        self.addresses[self._address] -= 1
        if not self.addresses[self._address]:
            del self.addresses[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse. If a request is incomplete then, it must be complete in time."""
        if self.transport.is_closing():
            return
        self._bytes += len(data)
        super().data_received(data)
        if not self._arriving:
            self._bytes = 0
            self._stop_timer()
        elif self._bytes > self._bytes_max:
            self.transport.close()
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
        self._bytes_max = HEADERS_BYTES_MAX + BODY_BYTES_MAX

    def on_message_complete(self) -> None:
        """Note the last byte of a request."""
        super().on_message_complete()
        self._arriving = False

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
