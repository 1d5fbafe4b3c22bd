"""The ASGI application: it checks who calls, and hands each request to one of its parts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final

from .._platform.log import log
from .._values import hints
from .._values.errors import ConfigError
from .guard import SIGN_IN, Refused, RequestGuard, is_loopback
from .parts import BodyTooLarge, Headers, Message, Receive, Scope, Send, ServerContext, ServerPart, lifespan, respond

PARTS: Final = ("metrics", "sqs", "console")
"""The names of all parts, in the order in which they are asked for a request."""
CLIENT_GONE: Final = 499


def parts_of(names: Iterable[str], context: ServerContext) -> list[ServerPart]:
    """Make the parts of these names, in the order in which they are asked.

    Raises:
        ConfigError: a part cannot be served with these settings.
        MissingExtra: a part needs a package that is not installed.
    """
    wanted = set(names)
    found: list[ServerPart] = [import_module(f"strictq.server.{name}").make(context) for name in PARTS if name in wanted]
    _require_protected(found, context)
    return found


def _require_protected(parts: Iterable[ServerPart], context: ServerContext) -> None:
    settings = context.settings
    if settings.insecure or is_loopback(settings.host):
        return
    for part in parts:
        if part.guarded and settings.token is None:
            raise ConfigError(
                f"{settings.host} can be reached by other machines, and {part.name} has no token", hint=hints.SERVE_TOKEN
            )
        if not part.guarded and not settings.keys:
            raise ConfigError(
                f"{settings.host} can be reached by other machines, and {part.name} has no keys", hint=hints.SERVE_KEYS
            )


class Application:
    """An ASGI application over parts.

    A server calls it with its lifespan, or its owner calls `start`, `drain` and `stop`.
    """

    def __init__(self, parts: Sequence[ServerPart], context: ServerContext) -> None:
        self.parts = tuple(parts)
        self.context = context
        self._guard = RequestGuard(context.settings)
        self._started: list[ServerPart] = []

    async def start(self) -> None:
        """Start all parts. If one of them raises, stop those that were started, and raise the error."""
        try:
            for part in self.parts:
                await part.start()
                self._started.append(part)
        except BaseException:
            await self.stop()
            raise

    def drain(self) -> None:
        """End waiting requests."""
        for part in self._started:
            part.drain()

    async def stop(self) -> None:
        """Stop all parts, the last one first. An error of one part is logged, and the others are stopped, too."""
        while self._started:
            part = self._started.pop()
            try:
                await part.stop()
            except Exception:
                log.exception("stopping the part %s failed", part.name)
        self.context.queues.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or run the lifespan."""
        if scope["type"] == "lifespan":
            await lifespan(receive, send, self)
        elif scope["type"] == "http":
            await self._counted(scope, receive, send)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count it."""
        began = time.perf_counter()
        code = CLIENT_GONE

        async def noting(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, noting)
        except BaseException:
            code = 500
            raise
        finally:
            self.context.counters.answered(scope.get("action", "other"), code, time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        guard = self._guard
        try:
            allowed = guard.check(scope)
        except Refused as e:
            scope["action"] = "refused"
            await respond(send, e.status, f"{e}\n".encode(), headers=((b"connection", b"close"),))
            return
        if allowed:
            send = _with_headers(send, allowed)
            if (answer := guard.preflight(scope, allowed)) is not None:
                await respond(send, 204, headers=answer)
                return
        if guard.signs_in and scope["path"] == SIGN_IN:
            scope["action"] = "sign-in"
            await guard.sign_in(scope, receive, send)
            return
        for part in self.parts:
            if part.takes(scope):
                break
        else:
            await respond(send, 404, b"there is nothing at this path\n")
            return
        scope["action"] = part.name
        if part.guarded and not guard.knows(scope):
            await guard.ask(scope, send)
            return
        try:
            await part(scope, receive, send)
        except BodyTooLarge:
            await respond(send, 413, b"the body is too large\n", headers=((b"connection", b"close"),))


def _with_headers(send: Send, headers: Headers) -> Send:
    """Return a `send` that adds headers to the answer."""

    async def added(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return added
