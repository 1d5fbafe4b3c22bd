"""Which process ships a queue: the one that holds its ship.lock. All that have the queue open look at the lock in their upkeep.

What ships lies above the store, which is given a function that starts it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ..._errors import StrictqError
from ..catalog import Replication


class Ships(Protocol):
    """What ships, in a thread of its own."""

    @property
    def ended(self) -> bool:
        """Has its thread ended?"""
        ...

    @property
    def lapsed(self) -> bool:
        """Did it let go of the WAL?"""
        ...

    def nudge(self) -> None:
        """Begin the next round now. Never blocks."""
        ...

    def stop(self, *, flush: bool) -> None:
        """End, and wait for that; flush: after a last round."""
        ...


class ShippingHost(Protocol):
    """What this asks of the queue."""

    directory: Path | None
    read_only: bool
    replication: Replication | None
    short_of_space: bool

    def refresh_replication(self) -> None: ...


class Shipping:
    """Shipping, as one queue object of this process has to do with it."""

    def __init__(self, host: ShippingHost) -> None:
        self._host = host
        self._start: Callable[[], Ships | None] | None = None
        self._ships: Ships | None = None
        self._paused = False
        self._lock = threading.Lock()
        """Held while what ships is started or taken away."""

    @property
    def wanted(self) -> bool:
        """Is the queue replicated?"""
        replication = self._host.replication
        return replication is not None and replication.ships

    @property
    def keeps_wal(self) -> bool:
        """Is the WAL kept for the shipper, which alone checkpoints it?"""
        if self._host.replication is None or not self.wanted or self._host.short_of_space:
            return False
        return self._ships is None or not self._ships.lapsed

    def start_with(self, start: Callable[[], Ships | None]) -> None:
        """How to start what ships; it returns None where another process ships, or shipping has stopped for good."""
        self._start = start
        if self.wanted:
            self.tend()

    def tend(self) -> None:
        """See that somebody ships. Called every two seconds; costs nothing where the queue is not replicated."""
        if self._host.read_only or self._paused:
            return
        with suppress(StrictqError):
            self._host.refresh_replication()
        if self._ships is None and not self.wanted:
            return
        if not self._lock.acquire(blocking=False):
            return  # another thread is starting it
        try:
            if self._ships is not None and self._ships.ended:
                self._ships = None
            if self._ships is None and self._start is not None and self.wanted and not self._paused:
                with suppress(StrictqError):
                    self._ships = self._start()
        finally:
            self._lock.release()

    def nudge(self) -> None:
        if self._ships is not None:
            self._ships.nudge()

    def stop(self, *, flush: bool) -> None:
        """End what ships here; another process may take over."""
        with self._lock:
            ships, self._ships = self._ships, None
        if ships is not None:
            ships.stop(flush=flush)

    def end(self, *, last: bool, flush: bool) -> None:
        """The queue object is closed. The last one ships what is left, if it can."""
        if last and flush:
            self.tend()
        self._paused = True
        self.stop(flush=flush)

    # ---- forks

    def pause(self) -> None:
        """Before a fork: a child must not share the thread's connections, nor its lock."""
        self._paused = True
        self.stop(flush=False)

    def resume(self, *, child: bool) -> None:
        """After a fork. The parent goes on at once; a child has a look in its upkeep."""
        self._paused = False
        if child:
            self._lock = threading.Lock()
        if not child and self.wanted:
            self.tend()
