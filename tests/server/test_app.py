"""The application over its parts: lifespan, start and stop, and what protects an address."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import strictq
from strictq.server.app import parts_of
from strictq.server.parts import Message, Scope, ServerContext, ServerSettings
from tests.support.asgi import Echo, application


class Broken(Echo):
    async def start(self) -> None:
        raise strictq.ConfigError("it cannot start")


def test_parts_start_in_order_and_stop_in_reverse() -> None:
    order: list[str] = []

    class Noting(Echo):
        async def start(self) -> None:
            order.append(f"start {self.name}")

        async def stop(self) -> None:
            order.append(f"stop {self.name}")
            raise RuntimeError("logged")

    async def run() -> None:
        app = application(Noting("a"), Noting("b"))
        await app.start()
        app.drain()
        await app.stop()

    asyncio.run(run())
    assert order == ["start a", "start b", "stop b", "stop a"]


def test_if_one_part_does_not_start_the_others_are_stopped() -> None:
    first = Echo("first")
    with pytest.raises(strictq.ConfigError, match="it cannot start"):
        asyncio.run(application(first, Broken()).start())
    assert first.calls == ["start", "stop"]


@pytest.mark.parametrize("broken", [False, True])
def test_another_server_runs_it_by_its_lifespan(broken: bool) -> None:
    echo = Echo()
    incoming: list[Message] = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    outgoing: list[str] = []

    async def receive() -> Message:
        return incoming.pop(0)

    async def send(message: Message) -> None:
        outgoing.append(message["type"])

    scope: Scope = {"type": "lifespan"}
    asyncio.run(application(echo, *([Broken()] if broken else []))(scope, receive, send))
    if broken:
        assert outgoing == ["lifespan.startup.failed"]
        assert echo.calls == ["start", "stop"]
    else:
        assert outgoing == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert echo.calls == ["start", "drain", "stop"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "queues.example"])
def test_an_address_that_others_reach_needs_a_token(host: str, tmp_path: Path) -> None:
    def made(**settings: object) -> list[str]:
        context = ServerContext(ServerSettings(directories=(tmp_path,), host=host, **settings))  # type: ignore[arg-type]
        return [part.name for part in parts_of(["metrics"], context)]

    with pytest.raises(strictq.ConfigError, match="metrics has no token") as e:
        made()
    assert e.value.hint_code == "serve_token"
    assert made(token="0123456789abcdef") == made(insecure=True) == ["metrics"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert [part.name for part in parts_of(["metrics"], ServerContext(ServerSettings(host=host)))] == ["metrics"]


def test_secrets_are_not_in_the_representation_of_the_settings() -> None:
    shown = repr(ServerSettings(token="the token of it all", keys={"id": "the secret"}))
    assert "the token" not in shown
    assert "the secret" not in shown
