"""One run of a worker: what its parts share, and how a lane is let go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from .._errors import SchemaMismatch, StoreCorrupt
from ..queue import Queue
from .board import Board
from .estimates import Estimates
from .events import PROBLEMS, WorkerEvent, log
from .forecast import size_of
from .job import Job
from .lanes import Lane

AGAIN_SECONDS: Final = 0.1
AGAIN_SECONDS_MAX: Final = 2.0
"""After a failure of the store that may pass: how long it is left alone, twice as long after each one."""
ENDING: Final = (SystemExit, KeyboardInterrupt)
"""A handler that raises one of these wants the program to end."""
HOPELESS: Final = (StoreCorrupt, SchemaMismatch)
"""These do not pass: the shard is out of use until an operator has mended it. The others go on."""


class Executor:
    """What runs handlers of one stage."""

    def wake(self) -> None:
        """There may be jobs."""

    def cancel(self, job: Job) -> None:
        """Nobody waits for this job any more."""


class State:
    """What the keeper's parts know of each other.

    Attributes:
        executors: what runs the handlers.
        acked, retried, poison, rejected, lost, timeouts: messages since the run began.
        fast: handlers are so quick that they are started ahead, and acked in groups.
        gave_up: some handler may be at work that nobody waits for.
        learned: there are durations that are not stored yet.
        crashed: what ended a handler's thread, though no handler raised it.
        ending: what a handler raised to end the program.
        not_before: `clock()` before which the store is left alone, after it failed.
    """

    def __init__(
        self,
        queue: Queue,
        board: Board,
        estimates: Estimates,
        *,
        on_event: Callable[[WorkerEvent], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = queue
        self.board = board
        self.estimates = estimates
        self.clock = clock
        self.executors: list[Executor] = []
        self.acked = self.retried = self.poison = self.rejected = self.lost = self.timeouts = 0
        self.fast = False
        self.gave_up = False
        self.learned = False
        self.not_before = 0.0
        self.loud = on_event is not None or log.isEnabledFor(logging.DEBUG)
        self._hook = on_event
        self._failures = 0
        self.crashed: BaseException | None = None
        self.ending: BaseException | None = None
        self.awake = threading.Lock()
        self.awake.acquire()

    def wake(self) -> None:
        """Have the keeper go round. Safe in signal handlers: a bare lock takes no other."""
        with suppress(RuntimeError):  # it is awake already
            self.awake.release()

    def tell(self, kind: str, job: Job, *, seconds: float | None = None, detail: str = "", where: str = "") -> None:
        """Log an event, and call the hook. What the hook raises is logged: the worker goes on."""
        d = job._delivery
        level = logging.WARNING if kind in PROBLEMS else logging.DEBUG
        if log.isEnabledFor(level):
            fields = {"key": d.key, "seq": d.seq, "token": d.token, "attempt": d.attempt, "seconds": seconds}
            text = f"{detail} ({where})" if where else detail
            log.log(level, "%s key=%r seq=%d token=%d %s", kind, d.key, d.seq, d.token, text, extra={"strictq": fields})
        if self._hook is not None:
            try:
                self._hook(WorkerEvent(kind, d.key, d.seq, d.token, d.attempt, self.clock(), seconds, detail))
            except Exception:
                log.exception("an on_event hook failed")

    def complain(self, error: BaseException) -> None:
        """The store can't do it now: try again soon."""
        self.not_before = self.clock() + min(AGAIN_SECONDS * 2**self._failures, AGAIN_SECONDS_MAX)
        self._failures = min(self._failures + 1, 10)
        log.warning("the store failed, trying again: %s", error)

    def crash(self, error: BaseException) -> None:
        """Something that must not fail did: end the run with it. From any thread."""
        self.crashed = error
        self.wake()

    def end(self, error: BaseException) -> None:
        """A handler ends the program: stop, and raise this once what runs is done. From any thread."""
        if self.ending is None:
            self.ending = error
        self.wake()

    def works(self) -> None:
        """The store did something."""
        self._failures = 0

    def learn(self, job: Job) -> None:
        """Take in how long a handler took. Wants the board's lock held."""
        if self.estimates.learning:
            self.estimates.process.learn(size_of(job), job._since)
            self.learned = True

    def lose(self, lane: Lane, error: Exception) -> None:
        """The lane is somebody else's: its jobs are cancelled, nothing of them happens."""
        head = lane.jobs[0] if lane.jobs else None
        self.drop(lane)
        self.lost += 1
        if head is not None:
            self.tell("lost", head, detail=str(error))

    def drop(self, lane: Lane) -> None:
        """Nothing more of this lane happens here."""
        with self.board.lock:
            working = self.board.drop(lane)
        for job in working:
            self.gave_up = True
            self.cancel(job)

    def cancel(self, job: Job) -> None:
        """Nobody waits for its handler any more."""
        for executor in self.executors:
            executor.cancel(job)
