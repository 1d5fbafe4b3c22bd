"""Calls of an ASGI application without a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from strictq.server.app import Application
from strictq.server.parts import Message, Receive, Scope, Send, ServerContext, ServerSettings, body_of, respond


class Answer(NamedTuple):
    """What an application answered; status 0: nothing."""

    status: int
    headers: dict[str, str]
    body: bytes


class Echo:
    """A part that answers with the body of the request."""

    def __init__(self, name: str = "echo", *, guarded: bool = True) -> None:
        self.name = name
        self.guarded = guarded
        self.calls: list[str] = []

    def takes(self, scope: Scope) -> bool:
        return bool(scope["path"].startswith(f"/{self.name}"))

    async def start(self) -> None:
        self.calls.append("start")

    def drain(self) -> None:
        self.calls.append("drain")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        self.calls.append(scope["method"])
        if (body := await body_of(receive)) is not None:
            await respond(send, 200, body)


def application(*parts: Any, **settings: Any) -> Application:
    return Application(parts or [Echo()], ServerContext(ServerSettings(**settings)))


async def call(
    app: Application,
    path: str = "/echo",
    method: str = "GET",
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    body: bytes | Iterable[bytes] = b"",
    then: Callable[[], Awaitable[Any]] | None = None,
    query: Mapping[str, str] = {},
) -> Answer:
    """Make one request. Without another one, its Host is 127.0.0.1. The client stays until `then` returns."""
    given = list(headers.items() if isinstance(headers, Mapping) else headers)
    if not any(name == "host" for name, _ in given):
        given.append(("host", "127.0.0.1:9324"))
    pieces = [body] if isinstance(body, bytes) else list(body)
    incoming: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": i < len(pieces) - 1} for i, piece in enumerate(pieces)
    ]
    outgoing: list[Message] = []

    async def receive() -> Message:
        if incoming:
            return incoming.pop(0)
        if then is not None:
            await then()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        outgoing.append(message)

    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given]
    scope: Scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": urlencode(query).encode(),
        "scheme": "http",
        "root_path": "", "client": ("127.0.0.1", 50_000), "headers": encoded,
    }  # fmt: skip
    await app(scope, receive, send)
    if not outgoing:
        return Answer(0, {}, b"")
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in outgoing[0]["headers"]}
    return Answer(outgoing[0]["status"], found, b"".join(message["body"] for message in outgoing[1:]))
