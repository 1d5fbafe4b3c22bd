"""Runs the application in uvicorn: in the main thread until a signal, or in a thread of a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, Final

import uvicorn

from .._net.transport import address, listen
from .app import Application
from .deadline import ConnectionLimits, protocol_class

KEEP_ALIVE_SECONDS: Final = 75
"""With uvicorn's default of 5 s, a pooled connection of an SDK is often closed between two calls."""
GRACE_SECONDS: Final = 10
"""How long running requests may take after a signal."""
BACKLOG: Final = 2048


class HttpServer:
    """An application that listens at an address.

    Attributes:
        url: where it listens, such as "http://127.0.0.1:9324".
        application: the application.
    """

    def __init__(self, application: Application, limits: ConnectionLimits = ConnectionLimits()) -> None:  # noqa: B008 - frozen
        """Listen at the settings' address.

        Raises:
            ConfigError: the address cannot be used.
        """
        settings = application.context.settings
        self.application = application
        self._socket = listen("the server", settings.host, settings.port)
        self.url = "http://" + address(*self._socket.getsockname()[:2])
        config = uvicorn.Config(
            application, http=protocol_class(limits, application.context.counters), ws="none", lifespan="off", log_config=None,
            access_log=False, proxy_headers=False, server_header=False, backlog=BACKLOG, timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )  # fmt: skip
        self._server = _Uvicorn(config, application)

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`. In the main thread, SIGINT and SIGTERM stop it, too; a second one ends running requests.

        Args:
            ready: called when requests are answered.
        Raises:
            StrictqError: a part did not start.
        """
        self._server.ready = ready
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._run())
        finally:
            self._socket.close()

    def stop(self) -> None:
        """End `run`, from any thread. Waiting requests are answered, running ones finish."""
        self._server.should_exit = True

    async def _run(self) -> None:
        await self.application.start()
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await self.application.stop()


@contextmanager
def running(application: Application, limits: ConnectionLimits = ConnectionLimits()) -> Iterator[HttpServer]:  # noqa: B008 - frozen
    """Run an application in a thread until the block ends.

    Raises:
        ConfigError: the address cannot be used.
        StrictqError: a part did not start.
    """
    server = HttpServer(application, limits)
    ready = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            server.run(ready.set)
        except BaseException as e:
            failures.append(e)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="strictq-server", daemon=True)
    thread.start()
    ready.wait()
    try:
        if not failures:
            yield server
    finally:
        server.stop()
        thread.join()
    if failures:
        raise failures[0]


class _Uvicorn(uvicorn.Server):
    """uvicorn that ends waiting requests first, and does not raise the signal again that stopped it."""

    def __init__(self, config: uvicorn.Config, application: Application) -> None:
        super().__init__(config)
        self.application = application
        self.ready: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        self.application.drain()
        await super().shutdown(sockets)

    def handle_exit(self, _sig: int, _frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop if it is installed; None: asyncio's own."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ModuleNotFoundError:
        return None
    return factory
