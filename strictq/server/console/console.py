"""The console as a part of the server: files, views as JSON, samples as server-sent events, and actions."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.resources import files
from typing import Any, Final

from ..._platform.log import Log
from ..._values.errors import InvalidArgument, QueueNotFound, StrictqError
from ...opening import open as open_queue
from ...queue import Queue
from ..parts import Receive, Scope, Send, ServerContext, body_of, fields_of, header, respond
from ..queues import PATIENCE
from .actions import ACTIONS
from .sampler import Sampler, Series
from .views import READ_ALL, VIEWS, failure, for_page, sqs

HOME: Final = "/console/"
API: Final = "/console/api/"
FILES: Final = {
    "": ("index.html", b"text/html; charset=utf-8"),
    **{name: (name, b"text/javascript; charset=utf-8") for name in ("app.js", "charts.js", "pages.js", "ui.js")},
    "app.css": ("app.css", b"text/css; charset=utf-8"),
}
HEADERS: Final = (
    (b"content-security-policy",
     b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
     b"form-action 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)  # fmt: skip
JSON: Final = b"application/json"
PAGE_TOKEN: Final = b"x-strictq-page"
LOG_MAX: Final = 200
"""Actions that the page of actions lists."""
KEPT_MAX: Final = 100
"""Answers of costly views that are kept."""
log: Final = Log("strictq.console")


class Console:
    """Serves the pages. See ServerPart."""

    name = "console"
    guarded = True

    def __init__(self, context: ServerContext) -> None:
        self._queues = context.queues
        self._directories = context.settings.directories
        self._actions = context.settings.allow_actions
        self._page_token = secrets.token_urlsafe(24)
        self._files: dict[str, tuple[bytes, bytes]] = {}
        self._sampler = Sampler(context.queues)
        self._sampling: asyncio.Task[None] | None = None
        self._draining = asyncio.Event()
        self._done: deque[dict[str, Any]] = deque(maxlen=LOG_MAX)
        self._kept: dict[tuple[str, str, tuple[tuple[str, str], ...]], tuple[float, dict[str, Any]]] = {}
        self._acting = asyncio.Lock()

    def takes(self, scope: Scope) -> bool:
        """Return whether the path is one of the console's, or that of a page of the whole server."""
        path = scope["path"]
        return path.startswith(HOME) or (path in ("/", "/console") and scope["method"] in ("GET", "HEAD"))

    async def start(self) -> None:
        """Read the files, and begin to take samples."""
        static = files(__package__) / "static"
        for path, (name, kind) in FILES.items():
            text = (static / name).read_text(encoding="utf-8")
            if name == "index.html":
                text = text.replace("{{page}}", self._page_token if self._actions else "")
            self._files[path] = text.encode(), kind
        self._sampling = asyncio.create_task(self._sampler.run())

    def drain(self) -> None:
        """End the streams."""
        self._draining.set()

    async def stop(self) -> None:
        """Take no more samples."""
        if self._sampling is not None:
            self._sampling.cancel()
            with suppress(asyncio.CancelledError):
                await self._sampling

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path, method = scope["path"], scope["method"]
        if not path.startswith(HOME):
            home = (scope.get("root_path", "") + HOME).encode()
            await respond(send, 307, b"", headers=((b"location", home), *HEADERS))
        elif path == API + "act" and method == "POST":
            await self._act(scope, receive, send)
        elif method not in ("GET", "HEAD"):
            await respond(send, 405, b"use GET\n", headers=((b"allow", b"GET, HEAD"), *HEADERS))
        elif path == HOME + "events":
            await self._stream(scope, receive, send)
        elif path.startswith(API):
            await self._view(path.removeprefix(API), scope, send)
        elif (file := self._files.get(path.removeprefix(HOME))) is not None:
            await respond(send, 200, file[0] if method == "GET" else b"", file[1], HEADERS)
        else:
            await respond(send, 404, b"there is nothing at this path\n", headers=HEADERS)

    # ---- views

    async def _view(self, name: str, scope: Scope, send: Send) -> None:
        arguments = fields_of(scope["query_string"])
        try:
            if name == "queues":
                found: dict[str, Any] = {"queues": self._names(), "actions": self._actions}
            elif name == "actions":
                found = {"allowed": self._actions, "done": list(reversed(self._done))}
            elif name == "sqs":
                found = {"queues": [one | self._counts(one["queue"]) for one in await asyncio.to_thread(self._sqs)]}
            elif name in VIEWS:
                found = await self._read(name, arguments)
            else:
                await _answer(send, 404, {"error": "there is no such view"})
                return
        except StrictqError as e:
            await _answer(send, 404 if isinstance(e, QueueNotFound) else 400, failure(e))
            return
        await _answer(send, 200, found)

    def _names(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name, "error": one.error, "depth": None if one.stats is None else one.stats.depth,
                "dead": None if one.stats is None else one.stats.dead, "paused": one.stats is not None and one.stats.paused,
            }
            for name, one in sorted(self._sampler.series.items())
        ]  # fmt: skip

    def _sqs(self) -> list[dict[str, Any]]:
        in_memory = [
            {"queue": row["name"] if row["name"] in self._sampler.series else None, **row} for row in self._queues.without_files()
        ]
        return sqs(self._queues.paths(), self._directories) + in_memory

    def _counts(self, name: str | None) -> dict[str, int | None]:
        series = None if name is None else self._sampler.series.get(name)
        stats = None if series is None else series.stats
        return {field: None if stats is None else getattr(stats, field) for field in ("depth", "in_flight", "delayed")}

    async def _read(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        """Return a view. One that reads everything is kept for PATIENCE times as long as it took, unless it is asked for anew."""
        queue, fresh = arguments.pop("queue", ""), arguments.pop("fresh", "")
        kept_as = queue, name, tuple(sorted(arguments.items()))
        known = self._kept.get(kept_as)
        if known is not None and not fresh and time.monotonic() < known[0]:
            return known[1]

        def read() -> tuple[dict[str, Any], float, float]:
            q = self._queues.look(queue)
            began, cpu = time.perf_counter(), time.thread_time()
            found: dict[str, Any] = for_page(VIEWS[name](q, arguments))
            return found, time.perf_counter() - began, time.thread_time() - cpu

        found, seconds, cost = await asyncio.to_thread(read)
        found["seconds"] = round(seconds, 4)
        if name in READ_ALL:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[kept_as] = time.monotonic() + cost * PATIENCE, found
        return found

    # ---- samples

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the samples of a queue until the client leaves, or the server stops."""
        name = fields_of(scope["query_string"]).get("queue", "")
        series = self._sampler.series.get(name)
        if series is None:
            await _answer(send, 404, {"error": f"there is no queue {name!r} on this server"})
            return
        if scope["method"] == "HEAD":
            await respond(send, 200, b"", b"text/event-stream", HEADERS)
            return
        await send({
            "type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream"), *HEADERS],
        })  # fmt: skip
        async with _left(receive) as left, _stopping(self._draining) as draining:
            with _viewer(series):
                self._sampler.look_now(name)
                points = list(series.points)
                while not (left.done() or draining.done()):
                    changed: asyncio.Future[Any] = asyncio.ensure_future(series.changed.wait())
                    if series.stats is not None or series.error:
                        text = json.dumps(for_page(self._sampled(series, points)), separators=(",", ":"))
                        await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})
                    await asyncio.wait({changed, left, draining}, return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    points = list(series.points)[-1:]
        if not left.done():
            await send({"type": "http.response.body", "body": b""})

    def _sampled(self, series: Series, points: list[dict[str, Any]]) -> dict[str, Any]:
        stats = None if series.stats is None else series.stats.to_dict()
        return {
            "points": points, "stats": stats, "has": series.has, "error": series.error, "cost": round(self._sampler.cost, 5),
            "now": time.time(),
        }  # fmt: skip

    # ---- actions

    async def _act(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an action, log it, and answer what it changed."""
        given = header(scope, PAGE_TOKEN) or b""
        kind = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
        body = await body_of(receive)
        if body is None:
            return
        if not self._actions:
            await _answer(send, 403, {"error": "actions are off; nothing was changed", "hint": "strictq serve --allow-actions"})
            return
        if kind != JSON or not hmac.compare_digest(given, self._page_token.encode()):
            await _answer(send, 403, {"error": "this is not a request of the console's page; nothing was changed"})
            return
        name = ""
        try:
            wanted = _object(body)
            queue, name = str(wanted.pop("queue", "")), str(wanted.pop("action", ""))
            if name not in ACTIONS:
                raise InvalidArgument("there is no such action; nothing was changed")
            async with self._acting:
                said = await asyncio.to_thread(self._run, queue, name, wanted)
        except StrictqError as e:
            if name in ACTIONS:
                self._note(scope, queue, name, wanted, f"failed: {e}")
            await _answer(send, 404 if isinstance(e, QueueNotFound) else 400, failure(e))
            return
        self._note(scope, queue, name, wanted, said)
        self._kept.clear()
        self._sampler.look_now(queue)
        await _answer(send, 200, {"said": said})

    def _run(self, queue: str, name: str, given: Mapping[str, Any]) -> str:
        with self._opened(queue) as q:
            return ACTIONS[name](q, given)

    @contextmanager
    def _opened(self, queue: str) -> Iterator[Queue]:
        """Open a queue to change it. One in memory is open already."""
        look = self._queues.look(queue)
        path = self._queues.paths().get(queue)
        if path is None:
            yield look
            return
        with open_queue(path, create=False) as q:
            yield q

    def _note(self, scope: Scope, queue: str, name: str, given: Mapping[str, Any], said: str) -> None:
        who = (scope.get("client") or ("unknown",))[0]
        what = json.dumps(given, sort_keys=True)[:500]
        self._done.append({"at": time.time(), "who": who, "queue": queue, "action": name, "given": what, "said": said})
        log.warning("%s by %s on %r: %s: %s", name, who, queue, what, said)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument("the body must be a JSON object; nothing was changed")
    return found


async def _answer(send: Send, status: int, value: dict[str, Any]) -> None:
    await respond(send, status, json.dumps(value, separators=(",", ":")).encode(), JSON, HEADERS)


@contextmanager
def _viewer(series: Series) -> Iterator[None]:
    series.viewers += 1
    try:
        yield
    finally:
        series.viewers -= 1


@asynccontextmanager
async def _left(receive: Receive) -> AsyncIterator[asyncio.Future[Any]]:
    """Yield a future that is done when the client has left."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":  # the first message is the request itself
            pass

    task = asyncio.ensure_future(until_gone())
    try:
        yield task
    finally:
        task.cancel()


@asynccontextmanager
async def _stopping(draining: asyncio.Event) -> AsyncIterator[asyncio.Future[Any]]:
    task = asyncio.ensure_future(draining.wait())
    try:
        yield task
    finally:
        task.cancel()
