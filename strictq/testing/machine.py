"""Queues for tests, and a simulated machine with crashes and reboots."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from .. import opening
from .._platform.declared_once import same_arguments
from .._values import hints
from .._values.config import QueueConfig
from .._values.errors import InvalidArgument
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
    config: QueueConfig | None = None,
    **settings: Any,
) -> Queue:
    """Open a queue for a test: in memory unless a path is given, and with a FakeClock.

    Args:
        path: a directory, or ":memory:".
        clock: default: a new one, which `clock_of(q)` returns.
        durability: default "process", because tests cut no power and an fsync per commit takes time.
        config: the program's own settings, as for `strictq.open`.
        settings: settings of QueueConfig, by name. They win over those of `config`. At a later open, both must equal the
            stored ones.
    Raises:
        InvalidArgument: `config` is not a QueueConfig.
        ConfigError: a setting is unknown, out of range, or differs from the stored one; nothing was changed.
    """
    return opening.open(
        path,
        shards=shards,
        durability=durability or "process",
        config=_config_of(config, settings),
        on_config_mismatch="error",
        clock=clock or FakeClock(),
    )


def _config_of(config: QueueConfig | None, settings: dict[str, Any]) -> QueueConfig | None:
    if not settings or not isinstance(config, QueueConfig | None):
        return config  # opening refuses what is not a QueueConfig
    return (config or QueueConfig()).evolve(**settings)


@same_arguments(open)
def open_async(*args: Any, **options: Any) -> ReadyAsyncQueue:
    """Open an AsyncQueue for a test. It is open at once, so that a plain function or fixture can create it.

    Use it directly, or as `async with strictq.testing.open_async() as q`, in one event loop.
    """
    return awaited(open(*args, **options))


def awaited(queue: Queue) -> ReadyAsyncQueue:
    """Return an AsyncQueue for the same queue. Closing either closes both."""
    from ._aio import ReadyAsyncQueue

    return ReadyAsyncQueue(queue)


def plain(queue: Any) -> Queue:
    """Return the Queue of a Queue or AsyncQueue.

    Raises:
        InvalidArgument: the argument is neither.
    """
    inner = queue if isinstance(queue, Queue) else getattr(queue, "sync", None)
    if not isinstance(inner, Queue):
        raise InvalidArgument(f"expected a Queue or an AsyncQueue, not {type(queue).__name__}")
    return inner


def clock_of(queue: Any) -> FakeClock:
    """Return the FakeClock of a Queue or AsyncQueue.

    Raises:
        InvalidArgument: the queue uses the machine's clock.
    """
    clock = plain(queue)._client.storage.clock
    if not isinstance(clock, FakeClock):
        raise InvalidArgument(
            "this queue runs on the machine's own clock",
            hint=hints.USE_FAKE_CLOCK,
        )
    return clock


class Machine:
    """A simulated machine: one clock, one directory, and processes that open queues in it, crash and restart.

    Everything runs in the test's own process, and a crash leaves the queue as a *dead process* would: leases continue, and
    uncommitted work is rolled back. To test a kill at any instruction, kill a real process. Power cuts are not
    simulated.
    """

    def __init__(self, directory: str | os.PathLike[str], clock: FakeClock | None = None) -> None:
        """
        Args:
            directory: the directory of its queues; created if missing.
            clock: default: a new one.
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
        config: QueueConfig | None = None,
        **settings: Any,
    ) -> Queue:
        """Open a queue as another process of this machine. Arguments are those of `strictq.testing.open`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        where = self.directory / name
        queue = open(where, clock=self.clock, shards=shards, durability=durability, config=config, **settings)
        self._opened.append(queue)
        return queue

    def crash(self, queue: Any = None) -> None:
        """Crash a process: its leases continue, its open transactions are rolled back, and its queue object is dead.

        Every later call of the object raises QueueClosed, so its messages cannot be acked, as after a real crash.

        Args:
            queue: the queue object of the process; None: all that are open on this machine.
        Raises:
            InvalidArgument: the queue does not belong to this machine, or is in memory; nothing was changed.
        """
        if queue is None:
            while self._opened:
                self._opened.pop()._client.storage.die()
            return
        inner = plain(queue)
        if inner.path == ":memory:":
            raise InvalidArgument("an in-memory queue is lost with its process: it cannot be reopened", hint=hints.MACHINE_OPEN)
        if inner not in self._opened:
            raise InvalidArgument("this queue was not opened by this machine, or has crashed already")
        self._opened.remove(inner)
        inner._client.storage.die()

    def reboot(self, down_seconds: float = 0.0) -> None:
        """Restart the machine: every process dies, all leases end, and time continues by the wall clock.

        Args:
            down_seconds: how long the machine was off.
        """
        self.crash()
        self.clock.reboot(down_seconds)

    def close(self) -> None:
        """Close every open queue."""
        self.crash()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
