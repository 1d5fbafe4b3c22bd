"""Which process ships a queue: the one that holds its ship.lock. Every process with the queue open checks that in its upkeep.

The shipper itself is implemented above the store, which receives a function that starts it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ..._values.errors import StrictqError
from ..catalog.contents import Replication


class Ships(Protocol):
    """A shipper, which runs in its own thread."""

    @property
    def ended(self) -> bool:
        """Whether its thread has ended."""
        ...

    @property
    def lapsed(self) -> bool:
        """Whether it has released the WAL."""
        ...

    def nudge(self) -> None:
        """Begin the next round now. Never blocks."""
        ...

    def stop(self, *, flush: bool) -> None:
        """Stop, and wait for the thread. flush: ship a last round first."""
        ...


class ShippingHost(Protocol):
    """What shipping needs from the queue."""

    directory: Path | None
    read_only: bool
    replication: Replication | None
    short_of_space: bool


class Shipping:
    """The shipping of one queue object of this process."""

    def __init__(self, host: ShippingHost) -> None:
        self._host = host
        self._start: Callable[[], Ships | None] | None = None
        self._ships: Ships | None = None
        self._paused = False
        self._lock = threading.Lock()
        """Held while the shipper is started or removed."""

    @property
    def wanted(self) -> bool:
        """Whether the queue is replicated."""
        replication = self._host.replication
        return replication is not None and replication.ships

    @property
    def keeps_wal(self) -> bool:
        """Whether the WAL is kept for the shipper, which alone checkpoints it."""
        if self._host.replication is None or not self.wanted or self._host.short_of_space:
            return False
        return self._ships is None or not self._ships.lapsed

    @property
    def is_here(self) -> bool:
        """Whether this process ships."""
        ships = self._ships
        return ships is not None and not ships.ended

    def start_with(self, start: Callable[[], Ships | None]) -> None:
        """Set the function that starts the shipper.

        It returns None if another process ships, or shipping has stopped for good.
        """
        self._start = start
        if self.wanted:
            self.tend()

    def tend(self) -> None:
        """Ensure that some process ships. Called every two seconds. Costs nothing if the queue is not replicated."""
        if self._host.read_only or self._paused:
            return
        if self._ships is None and not self.wanted:
            return
        if not self._lock.acquire(blocking=False):
            return  # another thread is starting it
        try:
            if self._ships is not None and self._ships.ended:
                self._ships = None
            if self._ships is None and self._start is not None and self.wanted and not self._paused:
                with suppress(StrictqError, OSError):
                    self._ships = self._start()
        finally:
            self._lock.release()

    def nudge(self) -> None:
        if self._ships is not None:
            self._ships.nudge()

    def stop(self, *, flush: bool) -> None:
        """Stop this process's shipper. Another process may take over."""
        with self._lock:
            ships, self._ships = self._ships, None
        if ships is not None:
            ships.stop(flush=flush)

    def end(self, *, last: bool, flush: bool) -> None:
        """Stop shipping because the queue object is closed. The last one ships the rest, if it can."""
        if last and flush:
            self.tend()
        self._paused = True
        self.stop(flush=flush)

    # ---- forks

    def pause(self) -> None:
        """Stop before a fork: a child must not share the thread's connections, nor its lock."""
        self._paused = True
        self.stop(flush=False)

    def resume(self, *, child: bool) -> None:
        """Continue after a fork. The parent ships again at once; a child checks in its upkeep."""
        self._paused = False
        if child:
            self._lock = threading.Lock()
        if not child and self.wanted:
            self.tend()
