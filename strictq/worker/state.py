"""One run of a worker: what its parts share, and how a lane is let go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, Protocol

from .._errors import LeaseLost, SchemaMismatch, StoreCorrupt
from .._findings import WorkerEvent
from .._observe import ANY_SHARD, notify
from .._store.api import ProcessHold
from .._types import Event
from ..queue import Queue
from .estimates import Estimates
from .events import log, log_event, log_run, reason_of
from .forecast import size_of
from .job import Defer, HeldLane, Job, Reject
from .schedule import Board

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


class Driver(Protocol):
    """A test that drives the time by which a breaker goes."""

    def now(self) -> float:
        """Seconds on its clock."""
        ...

    def skip(self, seconds: float) -> None:
        """Move it forward."""
        ...


class State:
    """What the keeper's parts know of each other.

    Attributes:
        executors: what runs the handlers.
        holder: where the claims are noted, so that they end with this process.
        acked, retried, deferred, poison, rejected, lost, timeouts: messages since the run began.
        busy_seconds: that process handlers ran, those that came back. Changed under the board's lock.
        began, ended: `clock()` of the run; ended is None while it lasts.
        fast: handlers are so quick that they are started ahead, and acked in groups.
        gave_up: some handler may be at work that nobody waits for.
        learned: there are durations that are not stored yet.
        crashed: what ended a handler's thread, though no handler raised it.
        ending: what a handler raised to end the program.
        driver: the time by which the breaker goes, where it is not `clock`.
        not_before: `clock()` before which the store is left alone, after it failed.
    """

    def __init__(
        self,
        queue: Queue,
        board: Board,
        estimates: Estimates,
        *,
        on_event: Callable[[WorkerEvent], None] | None = None,
        driver: Driver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = queue
        self.client = queue._client
        self.board = board
        self.estimates = estimates
        self.clock = clock
        self.driver = driver
        self.executors: list[Executor] = []
        self.acked = self.retried = self.deferred = self.poison = self.rejected = self.lost = self.timeouts = 0
        self.holder: ProcessHold | None = None
        self.fast = False
        self.busy_seconds = 0.0
        self.began = clock()
        self.ended: float | None = None
        self.gave_up = False
        self.learned = False
        self.not_before = 0.0
        self.observers = queue._storage.observers
        self._debugs = log.isEnabledFor(logging.DEBUG)
        self._own = (log_event,) if on_event is None else (log_event, on_event)
        self._failures = 0
        self.crashed: BaseException | None = None
        self.ending: BaseException | None = None
        self.awake = threading.Lock()
        self.awake.acquire()

    def wake(self) -> None:
        """Have the keeper go round. Safe in signal handlers: a bare lock takes no other."""
        with suppress(RuntimeError):  # it is awake already
            self.awake.release()

    @property
    def loud(self) -> bool:
        """Does anybody want to see what goes well, too?"""
        return self._debugs or len(self._own) > 1 or bool(self.observers.worker_events)

    def tell(self, kind: str, job: Job, **more: Any) -> None:
        """Report a change of a job's state. Args: more: fields of a WorkerEvent."""
        d = job._delivery
        limit = self.client.storage.config.max_attempts
        self._tell(WorkerEvent(kind, d.key, d.seq, d.token, d.attempt, self.clock(), max_attempts=limit, **more))

    def tell_of_run(self, kind: Literal["worker_started", "worker_stopped"], detail: str) -> None:
        """Report that the worker runs, or has stopped."""
        event = Event(kind, ANY_SHARD, detail=detail)
        notify((log_run, *self.observers.events), event)

    def tell_of_breaker(self, kind: Literal["breaker_opened", "breaker_closed"], detail: str) -> None:
        """Report what the worker's breaker did, which concerns the whole queue."""
        self._tell(WorkerEvent(kind, None, 0, 0, 0, self.clock(), None, detail))
        notify(self.observers.events, Event(kind, ANY_SHARD, detail=detail))

    def _tell(self, event: WorkerEvent) -> None:
        notify((*self._own, *self.observers.worker_events), event)

    def took(self, stage: Literal["prepare", "process"], job: Job, seconds: float) -> None:
        """Report how long a handler took."""
        if self.observers.durations:
            notify(self.observers.durations, stage, seconds, job._delivery.lease.shard)

    def complain(self, error: BaseException) -> None:
        """The store can't do it now: try again soon."""
        self.not_before = self.clock() + min(AGAIN_SECONDS * 2**self._failures, AGAIN_SECONDS_MAX)
        self._failures = min(self._failures + 1, 10)
        log.warning("the store failed; trying again: %s", error)

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

    def outage_now(self, now: float) -> float:
        """The breaker's time, where `now` is the worker's."""
        return now if self.driver is None else self.driver.now()

    def succeeded(self, job: Job, now: float) -> None:
        """Let the breaker know that a handler did its work. Wants the board's lock held."""
        if self.board.circuit is not None:
            self.board.circuit.succeeded(job._permit, self.outage_now(now))

    def failed(self, job: Job, now: float, error: BaseException) -> None:
        """Let the breaker know how a handler failed. Wants the board's lock held.

        A message that was rejected, deferred or lost says nothing of a dependency, and neither does what a stop interrupts.
        """
        circuit = self.board.circuit
        if circuit is None or self.board.stopping or not isinstance(error, Exception):
            return
        if not isinstance(error, Reject | Defer | LeaseLost):
            circuit.failed(job._permit, self.outage_now(now), reason_of(error), job._delivery.lease._held.key)

    def release(self, back: list[Job]) -> None:
        """Give back these jobs and all behind them in their lanes, as if they had never been leased."""
        if back:
            self.client.settling.release_rest([job._delivery for job in back])
            if self.loud:
                for job in back:
                    self.tell("released", job)

    def running(self) -> list[Job]:
        """A job of each process handler that runs. Wants the board's lock held."""
        return list({id(job._group or job): job for job in self.board.running}.values())

    def busy_until(self, now: float) -> float:
        """Seconds that process handlers ran. Wants the board's lock held."""
        return self.busy_seconds + (sum(now - job._since for job in self.running()) if self.ended is None else 0.0)

    def busy_ratio(self) -> float:
        """Which part of their time the slots ran process handlers. Wants the board's lock held."""
        now = self.clock() if self.ended is None else self.ended
        slots = (now - self.began) * self.board.limits.concurrency
        return min(self.busy_until(now) / slots, 1.0) if slots > 0 else 0.0

    def learn(self, job: Job) -> None:
        """Take in how long a handler took. Wants the board's lock held."""
        if self.estimates.learning:
            self.estimates.process.learn(size_of(job), job._since)
            self.learned = True

    def lose(self, lane: HeldLane, error: Exception) -> None:
        """The lane is somebody else's: its jobs are cancelled, nothing of them happens."""
        head = lane.jobs[0] if lane.jobs else None
        self.drop(lane)
        self.lost += 1
        if head is not None:
            self.tell("lost", head, detail=str(error))

    def drop(self, lane: HeldLane) -> None:
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
