"""A proxy for TCP between a client and a server of this machine. It adds a round trip to each answer, and cuts some answers off.

A server that is down is a connection that closes. The client cannot tell it from an answer that was cut off before its first
byte, so requests whose outcome is unknown are frequent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from types import TracebackType
from typing import Final

CHUNK: Final = 1 << 16


class CuttingProxy:
    """Runs in a thread until the block ends.

    Attributes:
        port: where it listens.
        round_trip: seconds by which each answer is later.
        cut: the share of answers of which only a beginning arrives; the connection is closed then.
        cuts: how many were.
    """

    def __init__(self, to: int, *, round_trip: float = 0.0, cut: float = 0.0, seed: int = 0) -> None:
        self.to, self.round_trip, self.cut = to, round_trip, cut
        self.cuts = self.port = 0
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cutting proxy", daemon=True)

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(30)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()

    async def _main(self) -> None:
        self._ended = asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
            answers, requests = await asyncio.open_connection("127.0.0.1", self.to)
            with contextlib.closing(requests):
                both = [
                    asyncio.ensure_future(self._pass_on(reader, requests)),
                    asyncio.ensure_future(self._answer(answers, writer)),
                ]
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in both:
                        task.cancel()
                    await asyncio.gather(*both, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await asyncio.sleep(self.round_trip)
            if self._random.random() < self.cut:
                self.cuts += 1
                writer.write(data[: self._random.randrange(len(data))])
                await writer.drain()
                return
            writer.write(data)
            await writer.drain()
