"""Queues for tests, and a pretended machine whose processes crash and which is restarted."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from .. import _hints as hints
from .. import opening
from .._config import QueueConfig
from .._errors import InvalidArgument
from ..queue import Queue
from .clock import FakeClock

if TYPE_CHECKING:
    from ._aio import ReadyAsyncQueue


def open(
    path: str | os.PathLike[str] = ":memory:",
    *,
    clock: FakeClock | None = None,
    shards: int | None = None,
    durability: Literal["full", "process"] | None = None,
    **settings: Any,
) -> Queue:
    """Open a queue for a test: in memory unless a path is given, and with a FakeClock.

    Args:
        path: a directory, or ":memory:".
        clock: default a new one; `clock_of(q)` gives it.
        durability: default "process": tests cut no power, and an fsync for each commit takes time.
        settings: of the QueueConfig, by name. At reopen those given must agree with what is stored.
    Raises:
        ConfigError: an unknown setting, one that is out of range, or one that is stored otherwise; nothing changed.
    """
    return opening.open(
        path,
        shards=shards,
        durability=durability or "process",
        config=QueueConfig().evolve(**settings) if settings else None,
        on_config_mismatch="error",
        clock=clock or FakeClock(),
    )


def open_async(
    path: str | os.PathLike[str] = ":memory:",
    *,
    clock: FakeClock | None = None,
    shards: int | None = None,
    durability: Literal["full", "process"] | None = None,
    **settings: Any,
) -> ReadyAsyncQueue:
    """The same for asyncio and trio: open already, so that a plain function, or a fixture that is one, can make it.

    Use it at once, or as `async with strictq.testing.open_async() as q`, in one event loop.
    """
    return awaited(open(path, clock=clock, shards=shards, durability=durability, **settings))


def awaited(queue: Queue) -> ReadyAsyncQueue:
    """The same queue once more, with awaited verbs. Closing either closes both."""
    from ._aio import ReadyAsyncQueue

    return ReadyAsyncQueue(queue)


def plain(queue: Any) -> Queue:
    """The Queue of a Queue or AsyncQueue.

    Raises:
        InvalidArgument: it is neither.
    """
    inner = queue if isinstance(queue, Queue) else getattr(queue, "sync", None)
    if not isinstance(inner, Queue):
        raise InvalidArgument(f"expected a Queue or an AsyncQueue, not {type(queue).__name__}")
    return inner


def clock_of(queue: Any) -> FakeClock:
    """The FakeClock that a Queue or AsyncQueue runs on.

    Raises:
        InvalidArgument: it runs on the machine's clock.
    """
    clock = plain(queue)._client.storage.clock
    if not isinstance(clock, FakeClock):
        raise InvalidArgument(
            "this queue runs on the machine's own clock",
            hint=hints.USE_FAKE_CLOCK,
        )
    return clock


class Machine:
    """A pretended machine: one clock, one directory, and processes that open queues in it, crash and come back.

    Everything happens in the test's own process, so it shows what a *dead process* leaves behind: leases that run on, work
    that was not committed undone. What the operating system does to a process that is killed at any instruction, only
    killing one shows; and no power is cut.
    """

    def __init__(self, directory: str | os.PathLike[str], clock: FakeClock | None = None) -> None:
        """
        Args:
            directory: where its queues lie; made if it is missing.
            clock: default a new one.
        """
        self.directory = Path(directory)
        self.clock = clock or FakeClock()
        self._opened: list[Queue] = []

    def open(
        self,
        name: str = "queue.strictq",
        *,
        shards: int | None = None,
        durability: Literal["full", "process"] | None = None,
        **settings: Any,
    ) -> Queue:
        """Open a queue as one more process of this machine would. Arguments as for `strictq.testing.open`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        queue = open(self.directory / name, clock=self.clock, shards=shards, durability=durability, **settings)
        self._opened.append(queue)
        return queue

    def crash(self, queue: Any = None) -> None:
        """A process dies: its leases run on, its open transactions are undone, and its queue object can do nothing more.

        Every later call of it raises QueueClosed, so an ack of what it held is as impossible as after a real crash.

        Args:
            queue: the queue object of the process that dies; None: all that are open on this machine.
        Raises:
            InvalidArgument: the queue is not one of this machine's, or is in memory; nothing changed.
        """
        if queue is None:
            while self._opened:
                self._opened.pop()._client.storage.die()
            return
        inner = plain(queue)
        if inner.path == ":memory:":
            raise InvalidArgument(
                "a queue in memory dies with its process: there is nothing to open again", hint=hints.MACHINE_OPEN
            )
        if inner not in self._opened:
            raise InvalidArgument("this queue was not opened by this machine, or has crashed already")
        self._opened.remove(inner)
        inner._client.storage.die()

    def reboot(self, down_seconds: float = 0.0) -> None:
        """Every process dies, and the machine starts again: all leases are over, and time goes on by the wall clock.

        Args:
            down_seconds: how long it was off.
        """
        self.crash()
        self.clock.reboot(down_seconds)

    def close(self) -> None:
        """Close whatever is open."""
        self.crash()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
