"""What the application serves, part by part: the interface of a part, the settings, and helpers to answer a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import parse_qsl

import attrs

from .counters import Counters
from .queues import Queues

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

HAS_GONE: Final = "strictq.has_gone"
"""In the scope of a request, unless another server runs the application: a function that returns whether the client has gone.

uvicorn drops an answer to such a client without an error.
"""
HEADERS_BYTES_MAX: Final = 64 << 10
BODY_BYTES_MAX: Final = 8 << 20
FIELDS_MAX: Final = 20
"""Most fields of a query of the console, or of the form that signs in."""


@attrs.frozen(kw_only=True)
class ServerSettings:
    """The options of `strictq serve`.

    Attributes:
        directories: queues, or directories that contain queues.
        host, port: the address to listen at; port 0: any free port.
        memory: queues that a part creates are kept in memory.
        durability: the durability of queues that a part creates.
        allow_actions: the console may change queues.
        token: the secret that callers of guarded parts present; None: none is needed.
        keys: access key ids with their secrets, for signed requests; empty: signatures are ignored.
        host_names: further values of the Host header that are accepted.
        allow_origins: pages of these origins may call the server.
        aws_waits: apply SQS's rules of one minute.
        insecure: serve another address than loopback without a token or keys.
    """

    directories: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    port: int = 9324
    memory: bool = False
    durability: Literal["full", "process"] | None = None
    allow_actions: bool = False
    token: str | None = attrs.field(default=None, repr=False)
    keys: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    host_names: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    aws_waits: bool = False
    insecure: bool = False


@attrs.frozen
class ServerContext:
    """What the parts of one server share."""

    settings: ServerSettings = ServerSettings()
    counters: Counters = attrs.field(factory=Counters)
    queues: Queues = attrs.field(default=attrs.Factory(lambda self: Queues(self.settings.directories), takes_self=True))


class ServerPart(Protocol):
    """One thing that the application serves: the SQS endpoint, the console, or metrics.

    `strictq/server/NAME` has a function `make(context: ServerContext) -> ServerPart`. It checks the settings and raises
    ConfigError or MissingExtra; it opens nothing. A new part is one module, a name in `app.PARTS`, and one in `WHAT` of
    `cli/serve.py`. The part "sqs" takes every POST to /A/B: a part with such paths stands before it. All methods run in the
    server's event loop, which they must not block for long.

    Attributes:
        name: the name of the part, as in `strictq serve NAME`.
        guarded: True: the application lets only callers through that present the token, if there is one. False: the part
            identifies its callers itself, by their signatures.
    """

    name: str
    guarded: bool

    def takes(self, scope: Scope) -> bool:
        """Return whether a request is for this part, by its method, path, query or headers. The first such part gets it."""

    async def start(self) -> None:
        """Open what the part needs. Called once, before the first request. If it raises, the server does not start."""

    def drain(self) -> None:
        """Answer waiting requests now, such as long polls and streams. Called once; no new connection is accepted."""

    async def stop(self) -> None:
        """Close what `start` opened. Called once after the last request, and only if `start` returned."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        """Answer a request, as an ASGI application.

        The host, the origin, the size of the headers and (if `guarded`) the token have been checked. The part may set
        scope["action"], a name from a small set, under which the request is counted; otherwise that is the part's name.
        Read the body with `body_of`, and answer with `respond`.
        """


class BodyTooLarge(Exception):
    """A request has more than BODY_BYTES_MAX bytes."""


async def body_of(receive: Receive) -> bytes | None:
    """Return the whole body of a request; None: the client has gone.

    Raises:
        BodyTooLarge: it has more than BODY_BYTES_MAX bytes. The application answers with 413 if a part lets it pass.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        whole: bytes = message.get("body", b"")  # the usual case: one piece
        if len(whole) > BODY_BYTES_MAX:
            raise BodyTooLarge
        return whole
    body = bytearray()
    while message["type"] == "http.request":
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            raise BodyTooLarge
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()
    return None


class Startable(Protocol):
    async def start(self) -> None: ...
    def drain(self) -> None: ...
    async def stop(self) -> None: ...


async def lifespan(receive: Receive, send: Send, application: Startable) -> None:
    """Start and stop an application when its server says so."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                await application.start()
            except Exception as e:
                await send({"type": "lifespan.startup.failed", "message": str(e)})
                return
            await send({"type": "lifespan.startup.complete"})
        else:
            application.drain()
            await application.stop()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def respond(
    send: Send, status: int, body: bytes = b"", content_type: bytes = b"text/plain; charset=utf-8", headers: Headers = ()
) -> None:
    """Send a whole answer."""
    length = str(len(body)).encode()
    await send({
        "type": "http.response.start", "status": status,
        "headers": [(b"content-type", content_type), (b"content-length", length), *headers],
    })  # fmt: skip
    await send({"type": "http.response.body", "body": body})


def fields_of(text: bytes) -> dict[str, str]:
    """Return the fields of a query string or of a form. It has none if it has more than FIELDS_MAX."""
    try:
        return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        return {}


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of this name, which is in lower case; None: there is none."""
    return next((value for found, value in scope["headers"] if found == name), None)
