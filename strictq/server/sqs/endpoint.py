"""The SQS endpoint as an ASGI application: it reads requests of both protocols, calls the action, and writes the answer."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

from ..._platform.clock import Clock, SteeredClock, SystemClock
from ..._platform.log import log
from ..._values import hints
from ..._values.errors import ConfigError, InvalidArgument
from ..counters import Counters
from ..parts import HAS_GONE, BodyTooLarge, Receive, Scope, Send, ServerContext, body_of, lifespan, respond
from ..queues import CATALOG, Queues
from . import wire
from .actions import Act, Actions, Caller, ReceivedAnswer, refusal
from .catalogue import Catalogue
from .errors import SqsError
from .model import model
from .polls import ClientGone
from .received import new_id
from .sigv4 import NotSigned, verify

PATH: Final = re.compile(r"/(?:(?!console/)[0-9A-Za-z-]+/[0-9A-Za-z_-]{1,80}(?:\.fifo)?/?)?")
"""The root, or the path of a queue's URL. Those of the console are not."""
LARGE_BYTES: Final = 128 << 10
RESETS: Final = ("/_strictq/reset", "/moto-api/reset")
TOO_LARGE: Final = SqsError("RequestEntityTooLarge", "The request is too large.", 413)
_WORDS: Final = re.compile(r"(?<!^)(?=[A-Z])")


class Endpoint:
    """SQS over queues in a directory, or in memory. An ASGI application; `start` and `stop` it in its event loop.

    Attributes:
        directory: where the queues are; None: in memory.
    """

    name = "sqs"
    guarded = False

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        durability: Literal["full", "process"] = "full",
        clock: Clock | None = None,
        keys: Mapping[str, str] | None = None,
        aws_waits: bool = False,
        testing: bool = False,
        shown: Queues | None = None,
        counters: Counters | None = None,
    ) -> None:
        """
        Args:
            directory: has a directory NAME.strictq and a file NAME.sqs.json for each queue. None: in memory.
            durability: that of the queues; in memory it has no effect.
            clock: the clock, for tests; None: the machine's.
            keys: secrets by access key id. Requests must be signed with one of them. None: signatures are ignored.
            aws_waits: a name can be used again, and a queue be purged again, only after a minute.
            testing: POST /_strictq/reset and /moto-api/reset delete all queues.
            shown: where the console and metrics look for queues in memory.
            counters: the server's, which show how many polls wait.
        Raises:
            MissingExtra: botocore is not installed.
            InvalidArgument: an argument is invalid.
        """
        if durability not in ("full", "process"):
            raise InvalidArgument(f"durability must be 'full' or 'process', not {durability!r}")
        self.directory = None if directory is None else Path(directory)
        self._durability: Literal["full", "process"] = durability
        self._clock = clock or SystemClock()
        self._keys = dict(keys or {})
        self._waits = aws_waits
        self._testing = testing
        self._shown = shown
        self._counters = counters
        self._model = model()
        self._catalogue: Catalogue | None = None
        self._actions: Actions | None = None
        self._acts: dict[str, Act] = {}
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- life

    async def start(self) -> None:
        """Read the catalogue, and continue move tasks. Queues are opened when they are used.

        Raises:
            ConfigError: another server has the directory open.
            StoreError: the directory can't be read or written.
        """
        self._loop = asyncio.get_running_loop()
        self._catalogue = Catalogue(self.directory)
        actions = self._actions = Actions(
            self._catalogue, self._durability, self._clock, waits=self._waits, version=_version(), shown=self._shown
        )
        self._acts = {name: getattr(actions, _WORDS.sub("_", name).lower()) for name in self._model.actions}
        if self._counters is not None:
            self._counters.polls = lambda: sum(len(opened.polls) for opened in actions.queues.all())
        if self._shown is not None and self.directory is None:
            self._shown.without_files = self._catalogue.rows
        if isinstance(self._clock, SteeredClock):
            self._clock.listen(self._moved)
        self._watching = self._loop.create_task(actions.queues.watch())
        actions.moves.resume()

    def drain(self) -> None:
        """Answer all long polls."""
        if self._actions is not None:
            for opened in self._actions.queues.all():
                opened.polls.end()

    async def stop(self) -> None:
        """Close all queues. Store which messages are hidden.

        Raises:
            StrictqError: that of one queue was not stored, or a queue was not closed.
        """
        actions, catalogue, watching = self._actions, self._catalogue, self._watching
        if actions is None or catalogue is None or watching is None:
            return
        self.drain()
        watching.cancel()
        await actions.moves.stop()
        self._actions = self._catalogue = self._watching = None
        try:
            await asyncio.to_thread(actions.queues.close)
        finally:
            catalogue.close()

    async def reset(self) -> None:
        """Delete all queues, and end move tasks."""
        actions, catalogue = self._running()
        await actions.moves.stop()
        for name in list(catalogue.entries):
            await actions.delete_queue({"QueueUrl": name}, Caller("", asyncio.Event().wait))
        actions.forget()

    def _running(self) -> tuple[Actions, Catalogue]:
        if self._actions is None or self._catalogue is None:
            raise SqsError("ServiceUnavailable", "the server is not running")
        return self._actions, self._catalogue

    def _moved(self) -> None:
        """Look at the queues again, because a test has moved the clock. Called in any thread."""
        if self._loop is not None and self._actions is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._look_again)

    def _look_again(self) -> None:
        if self._actions is not None:
            for opened in self._actions.queues.all():
                opened.polls.changed()

    # ---- requests

    def takes(self, scope: Scope) -> bool:
        """Return whether a request is one of SQS."""
        path, method = scope["path"], scope["method"]
        if self._testing and path in RESETS:
            return True
        if not PATH.fullmatch(path):
            return False
        return bool(method == "POST" or (method == "GET" and b"Action=" in scope["query_string"]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or run the lifespan."""
        if scope["type"] == "lifespan":
            await lifespan(receive, send, self)
            return
        request_id = new_id()
        target = host = None
        for name, value in scope["headers"]:
            if name == b"x-amz-target":
                target = value
            elif name == b"host":
                host = value
        base = f"{scope['scheme']}://{'localhost' if host is None else host.decode('latin-1')}{scope.get('root_path', '')}"
        status = 200
        extra: tuple[tuple[bytes, bytes], ...] = ()
        answer: dict[str, Any] = {}
        try:
            body = await body_of(receive)
            if body is None:
                return
            if self._testing and scope["path"] in RESETS:
                await self.reset()
                target, written = b"", b"{}"
            else:
                self._check_signature(scope, body)
                read = partial(self._from_form, scope) if target is None else partial(self._from_json, target)
                # Escapes of a large form take a second, in which no other request would be answered.
                action, parameters = read(body) if len(body) < LARGE_BYTES else await asyncio.to_thread(read, body)
                body = b""  # a poll waits for long
                scope["action"] = action
                act = self._acts[action]
                answer = await act(parameters, Caller(base, receive))
                if target is not None:
                    written = wire.to_json(answer)
                else:
                    written = wire.to_xml(self._model, self._model.actions[action], answer, request_id)
        except ClientGone:
            return
        except Exception as e:
            error = TOO_LARGE if isinstance(e, BodyTooLarge) else refusal(e)
            if error.status == 500:
                log.exception("an SQS request failed")
            status = error.status
            if target is not None:
                written, extra = wire.error_json(error), (wire.error_header(error),)
            else:
                written = wire.error_xml(error, request_id)
        if answer and isinstance(answer, ReceivedAnswer) and scope.get(HAS_GONE, bool)():
            answer.give_back()
            return
        kind = wire.XML_TYPE if target is None else wire.JSON_TYPE
        try:
            await respond(send, status, written, kind, ((b"x-amzn-requestid", request_id.encode()), *extra))
        except OSError:
            if isinstance(answer, ReceivedAnswer):
                answer.give_back()

    def _from_json(self, target: bytes, body: bytes) -> tuple[str, dict[str, Any]]:
        name = target.decode("latin-1").rpartition(".")[2]
        action = self._model.actions.get(name)
        if action is None:
            raise SqsError("UnknownOperationException", f"The action {name} is not valid for this endpoint.")
        return name, action.check(wire.from_json(body))

    def _from_form(self, scope: Scope, body: bytes) -> tuple[str, dict[str, Any]]:
        fields = wire.form_of(scope["query_string"], body if scope["method"] == "POST" else b"")
        name = dict(fields).get("Action", "")
        action = self._model.actions.get(name)
        if action is None:
            raise SqsError("InvalidAction", f"The action {name} is not valid for this endpoint.")
        given = wire.from_form(self._model, action, fields)
        if "QueueUrl" not in given and scope["path"].strip("/"):
            given["QueueUrl"] = scope["path"]
        return name, action.check(given)

    def _check_signature(self, scope: Scope, body: bytes) -> None:
        if not self._keys:
            return
        path = scope.get("raw_path") or scope["path"].encode()
        try:
            verify(
                scope["method"], path.decode("latin-1").partition("?")[0], scope["query_string"].decode("latin-1"),
                scope["headers"], body, self._keys, time.time(),
            )  # fmt: skip
        except NotSigned as e:
            raise SqsError(str(e), "The request is not signed as this endpoint requires.", 403) from None


def _version() -> str:
    try:
        return version("strictq")
    except PackageNotFoundError:  # a checkout on the path
        return "unknown"


def make(context: ServerContext) -> Endpoint:
    """Make the part of a server.

    Raises:
        ConfigError: there is not one directory for the queues.
        MissingExtra: botocore is not installed.
    """
    settings = context.settings
    directory = None
    if not settings.memory:
        if len(settings.directories) != 1 or (settings.directories[0] / CATALOG).exists():
            raise ConfigError("the SQS endpoint needs one directory, in which it creates queues", hint=hints.SQS_DIRECTORY)
        directory = settings.directories[0]
    return Endpoint(
        directory,
        durability=settings.durability or "full",
        keys=settings.keys,
        aws_waits=settings.aws_waits,
        testing=settings.memory,
        shown=context.queues,
        counters=context.counters,
    )
