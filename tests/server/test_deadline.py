"""When a request must be complete: the protocol with a clock and a transport of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from strictq.server.counters import Counters
from strictq.server.deadline import ConnectionLimits, LimitedProtocol, protocol_class
from strictq.server.parts import HEADERS_BYTES_MAX
from tests.support.asgi import application

LIMITS = ConnectionLimits(request_seconds=10.0, seconds_per_byte=1.0)
WHOLE = b"GET /echo HTTP/1.1\r\nhost: localhost\r\n\r\n"
HEAD = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n"


class Timer:
    def __init__(self, at: float, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.at, self.call, self.args = at, call, args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """What the protocol uses of a loop. Time passes by `advance`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[..., Any], *args: Any) -> Timer:
        self.timers.append(Timer(self.now + seconds, call, args))
        return self.timers[-1]

    def create_task(self, work: Coroutine[Any, Any, Any], **_: Any) -> asyncio.Task[Any]:
        """Return the task. It runs when the test awaits."""
        return asyncio.get_running_loop().create_task(work)

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [timer for timer in self.timers if timer.at <= until and not timer.cancelled]:
            timer = min(due, key=lambda each: each.at)
            self.timers.remove(timer)
            self.now = timer.at
            timer.call(*timer.args)
        self.now = until


class Transport:
    """A connection to a client at this address."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.address = address
        self.closed = False
        self.aborted = False
        self.written = b""
        self.unread = 0
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = self.closed = True

    def get_extra_info(self, name: str) -> Any:
        return {"peername": (self.address, 5), "sockname": ("127.0.0.1", 80)}.get(name)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Connected:
    """A server without sockets."""

    def __init__(self, limits: ConnectionLimits = LIMITS) -> None:
        self.loop = FakeLoop()
        self.counters = Counters()
        self.state = ServerState()
        self._class = protocol_class(limits, self.counters)
        self._config = uvicorn.Config(application(), http=self._class, ws="none", lifespan="off", log_config=None)
        self._config.load()

    def connect(self, transport: Transport) -> LimitedProtocol:
        made = self._class(self._config, self.state, {}, _loop=cast("Any", self.loop))
        made.connection_made(cast("Any", transport))
        return cast("LimitedProtocol", made)


Fixture = tuple[Connected, Transport, LimitedProtocol]


@pytest.fixture
def connected() -> Fixture:
    server, transport = Connected(), Transport()
    return server, transport, server.connect(transport)


def test_a_silent_connection_is_closed(connected: Fixture) -> None:
    server, transport, protocol = connected
    server.loop.advance(9.9)
    assert not transport.closed
    server.loop.advance(0.2)
    assert transport.closed
    protocol.connection_lost(None)
    assert (server.counters.timeouts, server.counters.connections, dict(protocol.addresses)) == (1, 0, {})


def test_each_byte_gives_more_time(connected: Fixture) -> None:
    server, transport, protocol = connected
    protocol.data_received(b"GET /")
    server.loop.advance(14.9)
    assert not transport.closed
    server.loop.advance(0.2)
    assert transport.closed


def test_a_request_in_one_piece_sets_no_timer_and_keeps_the_connection() -> None:
    async def run() -> None:
        server, transport = Connected(), Transport()
        protocol = server.connect(transport)
        for _ in range(3):
            protocol.data_received(WHOLE)
            assert protocol._timer is None
            while b"200 OK" not in transport.written:
                await asyncio.sleep(0)
            transport.written = b""
            server.loop.advance(4.0)  # less than uvicorn's own limit between requests
            assert not transport.closed
        assert server.counters.timeouts == 0

    asyncio.run(run())


def test_the_second_request_of_a_connection_must_arrive_in_time() -> None:
    async def run() -> None:
        server, transport = Connected(), Transport()
        protocol = server.connect(transport)
        protocol.data_received(WHOLE + HEAD + b"ha")
        await asyncio.sleep(0)
        server.loop.advance(60 + len(WHOLE + HEAD))
        assert transport.closed

    asyncio.run(run())


def test_a_body_that_arrives_in_time_is_answered() -> None:
    async def run() -> None:
        server, transport = Connected(), Transport()
        protocol = server.connect(transport)
        protocol.data_received(HEAD)
        server.loop.advance(9.0)
        protocol.data_received(b"half")
        while b"half" not in transport.written:
            await asyncio.sleep(0)
        assert protocol._timer is None

    asyncio.run(run())


def test_a_client_that_the_server_makes_wait_is_not_late(connected: Fixture) -> None:
    server, transport, protocol = connected
    protocol.flow.pause_reading()
    server.loop.advance(100.0)
    assert not transport.closed
    protocol.flow.resume_reading()
    server.loop.advance(11.0)
    assert transport.closed


def test_an_endless_head_is_closed_without_waiting(connected: Fixture) -> None:
    _, transport, protocol = connected
    protocol.data_received(b"GET / HTTP/1.1\r\nx: ")
    protocol.data_received(b"y" * (HEADERS_BYTES_MAX - 100))
    assert not transport.closed
    protocol.data_received(b"y" * 100)
    assert transport.closed
    written = transport.written
    protocol.data_received(b"more")
    assert transport.written == written


def test_a_client_that_does_not_read_its_answer_is_disconnected(connected: Fixture) -> None:
    server, transport, protocol = connected
    protocol.data_received(WHOLE[:-2])
    transport.unread = 5
    protocol.pause_writing()
    server.loop.advance(14.0)
    protocol.resume_writing()
    protocol.pause_writing()
    server.loop.advance(14.0)
    assert not transport.aborted
    server.loop.advance(2.0)
    assert transport.aborted


def test_large_requests_that_arrive_at_once_are_bounded_and_small_ones_are_not() -> None:
    async def run() -> None:
        server = Connected(ConnectionLimits(arriving_bytes=2 * HEADERS_BYTES_MAX))
        head = HEAD.replace(b"content-length: 4", b"content-length: 4000000")

        def large() -> tuple[Transport, LimitedProtocol]:
            transport = Transport()
            protocol = server.connect(transport)
            protocol.data_received(head)
            protocol.data_received(b"x" * (HEADERS_BYTES_MAX + 1))
            return transport, protocol

        (first, _), (second, of_second) = large(), large()
        assert (first.closed, second.closed) == (False, True)
        assert second.written.startswith(b"HTTP/1.1 503 ")
        small = Transport()
        server.connect(small).data_received(HEAD)
        assert not small.closed
        of_second.connection_lost(None)
        assert server.counters.arriving_bytes == len(head) + HEADERS_BYTES_MAX + 1 + len(HEAD)

    asyncio.run(run())


@pytest.mark.parametrize(("address", "refused"), [("127.0.0.1", False), ("::1", False), ("192.0.2.1", True)])
def test_another_machine_has_fewer_connections(address: str, refused: bool) -> None:
    server = Connected(ConnectionLimits(connections_per_address=1))
    first, second = Transport(address), Transport(address)
    kept = server.connect(first)
    server.connect(second)
    assert (first.closed, second.closed) == (False, refused)
    assert second.written.startswith(b"HTTP/1.1 503 ") == refused
    kept.connection_lost(None)
    other = Transport("192.0.2.2")
    server.connect(other)
    assert not other.closed
