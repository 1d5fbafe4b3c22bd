"""The engine's own thread: checkpoints grown WALs, forwards sends left in outboxes, and deletes what has expired."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol
from weakref import ref

from .._errors import StrictqError
from .._log import log

PERIOD_SECONDS: Final = 2.0


class Kept(Protocol):
    """What upkeep maintains."""

    def checkpoint(self, shard: int) -> None: ...
    def tidy(self) -> None: ...


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
        self._stopped = False

    def start(self) -> None:
        with self._condition:
            self._start()

    def _start(self) -> None:
        if self._thread is not None or self._stopped:
            return
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
                if not self._grown and not self._stopped:
                    self._condition.wait(PERIOD_SECONDS)
                if self._stopped:
                    return
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
            del kept

    @staticmethod
    def _quietly(work: Callable[[], object]) -> None:
        """Log a failure instead of raising it: the next caller that needs the shard meets and raises it."""
        try:
            work()
        except StrictqError as e:
            log.debug("upkeep: %s", e)
        except Exception:
            log.exception("background upkeep failed; it will be retried")
