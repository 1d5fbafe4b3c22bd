"""The engine's own thread: checkpoints grown WALs, forwards sends left in outboxes, and deletes what has expired.

It ends once its queue has nothing to do. Then one thread for all such queues of the process looks whether one has: to wake a
thread for each would cost ten times as much as what it looks at.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol
from weakref import WeakSet, ref

from ..._platform import fork
from ..._platform.log import log
from ..._values.errors import StrictqError

PERIOD_SECONDS: Final = 2.0


class Kept(Protocol):
    """What upkeep maintains."""

    def checkpoint(self, shard: int) -> None: ...
    def tidy(self) -> None: ...
    def rests(self) -> bool:
        """Return whether there is nothing to do. Costs next to nothing."""
        ...


class _Round:
    """The thread that looks after the queues of the process that have nothing to do."""

    def __init__(self) -> None:
        self._reset()
        fork.register(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()  # re-entrant, because a signal handler may open a queue
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._upkeeps: WeakSet[Upkeep] = WeakSet()

    def add(self, upkeep: Upkeep) -> None:
        with self._lock:
            self._upkeeps.add(upkeep)
            self._start()

    def discard(self, upkeep: Upkeep) -> None:
        with self._lock:
            self._upkeeps.discard(upkeep)

    def _start(self) -> None:
        if self._thread is None and not self._stop.is_set():
            thread = threading.Thread(target=self._run, name="strictq-round", daemon=True)
            with suppress(RuntimeError):  # as below; the next queue with work tries again
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_SECONDS):
            with self._lock:
                upkeeps = [*self._upkeeps]
                if not upkeeps:
                    self._thread = None
                    return
            for upkeep in upkeeps:
                upkeep.look()
            del upkeeps

    def before_fork(self) -> None:
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=30.0)

    def after_fork(self, *, child: bool) -> None:
        if child:  # a queue that the child uses is added then
            self._reset()
            return
        with self._lock:
            self._stop = threading.Event()
            self._thread = None
            if self._upkeeps:
                self._start()


class Upkeep:
    """Start a thread when it is first needed. The thread holds the queue weakly, and ends with it."""

    def __init__(self, kept: Kept) -> None:
        self._kept = ref(kept)
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._condition = threading.Condition()
        self._grown: set[int] = set()
        self._thread: threading.Thread | None = None
        self._stopped = self._is_due = False

    def start(self) -> None:
        with self._condition:
            self._start()

    def look(self) -> None:
        """Start the thread again if there is something to do."""
        kept = self._kept()
        if self._thread is not None or kept is None or kept.rests():
            return
        with self._condition:
            self._is_due = True
            self._start()

    def _start(self) -> None:
        if self._thread is not None or self._stopped:
            return
        _round.add(self)
        thread = threading.Thread(target=self._run, name="strictq-upkeep", daemon=True)
        # start() fails if there are too many threads, or at interpreter shutdown. The next need tries again; until then writers
        # checkpoint by themselves.
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def wal_grew(self, shard: int) -> None:
        """Request a checkpoint of a shard's WAL. Never blocks."""
        if shard in self._grown and self._thread is not None:
            return
        with self._condition:
            self._grown.add(shard)
            self._start()
            self._condition.notify()

    def stop(self) -> None:
        """End the thread for good, and wait until its current work is done."""
        self._closed = True
        _round.discard(self)
        self.pause()

    def pause(self) -> None:
        """End the thread before a fork, and wait until its work is done: a child would inherit the locks of a working thread."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=30.0)

    def resume(self, *, child: bool) -> None:
        """Let the thread start again when it is next needed. Called after a fork, on both sides."""
        if child:
            grown = self._grown
            self._reset()
            self._grown = grown
            return
        with self._condition:
            self._thread = None
            self._stopped = self._closed

    def _run(self) -> None:
        tidied = time.monotonic()
        while True:
            with self._condition:
                if not self._grown and not self._stopped and not self._is_due:
                    self._condition.wait(PERIOD_SECONDS)
                if self._stopped:
                    return
                self._is_due = False
                grown = sorted(self._grown)
            kept = self._kept()
            if kept is None:
                return
            for shard in grown:
                self._quietly(partial(kept.checkpoint, shard))
                self._grown.discard(shard)
            # Under load some WAL has always grown; outboxes and expiry must have their turn as well.
            if not grown or time.monotonic() - tidied >= PERIOD_SECONDS:
                self._quietly(kept.tidy)
                tidied = time.monotonic()
                if kept.rests() and self._ends():
                    return
            del kept

    def _ends(self) -> bool:
        """End the thread, unless there is something to do."""
        with self._condition:
            if self._grown or self._stopped:
                return False
            self._thread = None
            return True

    @staticmethod
    def _quietly(work: Callable[[], object]) -> None:
        """Log a failure instead of raising it: the next caller that needs the shard meets and raises it."""
        try:
            work()
        except StrictqError as e:
            log.debug("upkeep: %s", e)
        except Exception:
            log.exception("background upkeep failed; it will be retried")


_round = _Round()
