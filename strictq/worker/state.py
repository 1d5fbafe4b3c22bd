"""The state of one run of a worker, shared by its parts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, Protocol

from .._platform.observe import ANY_SHARD, notify
from .._values.errors import LeaseLost
from .._values.findings import WorkerEvent
from .._values.types import Event
from .estimates import Estimates
from .events import log, log_event, log_run, reason_of
from .forecast import size_of
from .job import Defer, HeldLane, Job, Reject
from .schedule import Board
from .source import AT_ONCE, BEFORE_NEXT, BEHIND, Source, SourceEvent

AGAIN_SECONDS: Final = 0.1
AGAIN_SECONDS_MAX: Final = 2.0
"""The longest wait after a transient failure of the store. The wait doubles with each further failure."""
ENDING: Final = (SystemExit, KeyboardInterrupt)
"""Exceptions by which a handler ends the program."""


UNCONFIRMED_MAX: Final = {AT_ONCE: 0, BEFORE_NEXT: 1, BEHIND: 10}
"""With so many unconfirmed acks, a lane waits."""


class Executor:
    """Runs the handlers of one stage."""

    def wake(self) -> None:
        """Look for jobs."""

    def cancel(self, job: Job) -> None:
        """Stop a job whose outcome the worker no longer waits for."""


class Driver(Protocol):
    """A test's clock for the breaker."""

    def now(self) -> float:
        """Return its time, seconds."""
        ...

    def skip(self, seconds: float) -> None:
        """Move it forward."""
        ...


class State:
    """The shared state of the keeper's parts.

    Attributes:
        source: where the messages come from.
        executors: the executors of the handlers.
        acked, retried, deferred, poison, rejected, lost, timeouts: number of messages since the run began.
        busy_seconds: total time of the process handlers that returned. Changed under the board's lock.
        began, ended: `clock()` of the run's start and end; ended is None while it runs.
        fast: whether handlers are so quick that they are started ahead, and acked in groups.
        gave_up: whether an abandoned handler may still be running.
        learned: whether there are learned durations that are not stored yet.
        crashed: the error that ended a handler's thread without being the handler's.
        ending: the exception that ends the run once the running handlers are done: of a handler that ends the program, or of a
            system that starts no more threads.
        driver: the breaker's clock in tests; None: `clock`.
        not_before: `clock()` before which the store is not called, after it failed.
    """

    def __init__(
        self,
        source: Source,
        board: Board,
        estimates: Estimates,
        *,
        on_event: Callable[[WorkerEvent], None] | None = None,
        driver: Driver | None = None,
    ) -> None:
        self.source = source
        self.board = board
        board.source = source
        board.unconfirmed_max = UNCONFIRMED_MAX[source.confirm]
        self.estimates = estimates
        self.clock = clock = source.clock
        self.driver = driver
        self.executors: list[Executor] = []
        self.acked = self.retried = self.deferred = self.poison = self.rejected = self.lost = self.timeouts = 0
        self.fast = False
        self.busy_seconds = 0.0
        self.began = clock()
        self.ended: float | None = None
        self.gave_up = False
        self.learned = False
        self.not_before = 0.0
        self.observers = source.observers
        self._debugs = log.logger.isEnabledFor(logging.DEBUG)
        self._own: tuple[Callable[[WorkerEvent], None], ...] = (log_event,) if on_event is None else (log_event, on_event)
        self._failures = 0
        self.crashed: BaseException | None = None
        self.ending: BaseException | None = None
        self.awake = threading.Lock()
        self.awake.acquire()

    def wake(self) -> None:
        """Wake the keeper. Safe in signal handlers, because it waits for no lock."""
        with suppress(RuntimeError):  # it is awake already
            self.awake.release()

    @property
    def loud(self) -> bool:
        """Whether anything listens for events of success, too."""
        return self._debugs or len(self._own) > 1 or bool(self.observers.worker_events)

    def tell(self, kind: str, job: Job, **more: Any) -> None:
        """Report a change of a job's state. `more` are fields of a WorkerEvent."""
        d = job._delivery
        limit = self.source.config.max_attempts
        self._tell(WorkerEvent(kind, d.key, d.seq, d.token, d.attempt, self.clock(), max_attempts=limit, **more))

    def tell_of_run(self, kind: Literal["worker_started", "worker_stopped"], detail: str) -> None:
        event = Event(kind, ANY_SHARD, detail=detail)
        notify((log_run, *self.observers.events), event)

    def tell_of_all(self, kind: Literal["breaker_opened", "breaker_closed"] | SourceEvent, detail: str) -> None:
        """Report a change of the worker's breaker or source, which concerns the whole queue. Callable from any thread."""
        self._tell(WorkerEvent(kind, None, 0, 0, 0, self.clock(), None, detail))
        notify(self.observers.events, Event(kind, ANY_SHARD, detail=detail))

    def watch(self, hook: Callable[[WorkerEvent], None]) -> None:
        """Call this for every event, too, until `unwatch`."""
        self._own = (*self._own, hook)

    def unwatch(self, hook: Callable[[WorkerEvent], None]) -> None:
        self._own = tuple(each for each in self._own if each != hook)

    def _tell(self, event: WorkerEvent) -> None:
        notify((*self._own, *self.observers.worker_events), event)

    def took(self, stage: Literal["prepare", "process"], job: Job, seconds: float) -> None:
        """Report the duration of a handler."""
        if self.observers.durations:
            notify(self.observers.durations, stage, seconds, job._delivery.lease.shard)

    def complain(self, error: BaseException) -> None:
        """Record a transient failure of the store, and delay the next call."""
        self.not_before = self.clock() + min(AGAIN_SECONDS * 2**self._failures, AGAIN_SECONDS_MAX)
        self._failures = min(self._failures + 1, 10)
        log.warning("the store failed; trying again: %s", error)

    def crash(self, error: BaseException) -> None:
        """End the run with an unexpected error. Callable from any thread."""
        self.crashed = error
        self.wake()

    def end(self, error: BaseException) -> None:
        """Stop, and raise this exception when the running handlers are done. Callable from any thread."""
        if self.ending is None:
            self.ending = error
        self.wake()

    def works(self) -> None:
        """Record that the store works, which resets the delay after failures."""
        self._failures = 0

    def outage_now(self, now: float) -> float:
        """Return the breaker's time, if `now` is the worker's."""
        return now if self.driver is None else self.driver.now()

    def succeeded(self, job: Job, now: float) -> None:
        """Report a success to the breaker. Requires the board's lock."""
        if self.board.circuits is not None:
            self.board.circuits.succeeded(job, self.outage_now(now))

    def failed(self, job: Job, now: float, error: BaseException) -> None:
        """Report a failure to the breaker. Requires the board's lock.

        Rejected, deferred and lost messages, and handlers interrupted by a stop, say nothing about a dependency.
        """
        if self.board.circuits is not None and self._counts(error):
            self.board.circuits.failed_handler(job, self.outage_now(now), reason_of(error))

    def ended_batch(self, jobs: list[Job], now: float, error: BaseException | None) -> None:
        """Report a batch to the breakers: one outcome for each group. Requires the board's lock."""
        circuits = self.board.circuits
        if circuits is None:
            return
        groups: dict[Any, list[Job]] = {}
        for job in jobs:
            groups.setdefault(circuits.identity(job), []).append(job)
        if error is not None and len(groups) > 1:
            if self._counts(error):
                circuits.failed_together(jobs, self.outage_now(now), reason_of(error))
            return
        for members in groups.values():
            good = next((job for job in members if job._failure is None), None)
            if good is not None:
                self.succeeded(good, now)
            else:
                assert members[0]._failure is not None
                self.failed(members[0], now, members[0]._failure)

    def _counts(self, error: BaseException) -> bool:
        return not self.board.stopping and isinstance(error, Exception) and not isinstance(error, Reject | Defer | LeaseLost)

    def release(self, back: list[Job]) -> None:
        """Release these jobs and all later ones of their lanes, as if they had never been leased."""
        if back:
            self.source.release([job._delivery for job in back])
            if self.loud:
                for job in back:
                    self.tell("released", job)

    def running(self) -> list[Job]:
        """Return one job of each running process handler. Requires the board's lock."""
        return list({id(job._group or job): job for job in self.board.running}.values())

    def busy_until(self, now: float) -> float:
        """Return the total seconds that process handlers ran. Requires the board's lock."""
        return self.busy_seconds + (sum(now - job._since for job in self.running()) if self.ended is None else 0.0)

    def busy_ratio(self) -> float:
        """Return the fraction of time in which slots ran process handlers. Requires the board's lock."""
        now = self.clock() if self.ended is None else self.ended
        slots = (now - self.began) * self.board.limits.concurrency
        return min(self.busy_until(now) / slots, 1.0) if slots > 0 else 0.0

    def learn(self, job: Job) -> None:
        """Learn the duration of a handler. Requires the board's lock."""
        if self.estimates.learning:
            self.estimates.process.learn(size_of(job), job._since)
            self.learned = True

    def lose(self, lane: HeldLane, error: Exception) -> None:
        """Drop a lane that another consumer holds now, and cancel its jobs. Their effects are discarded."""
        head = lane.jobs[0] if lane.jobs else None
        self.drop(lane)
        self.lost += 1
        if head is not None:
            self.tell("lost", head, detail=str(error))

    def lose_job(self, job: Job, error: Exception) -> None:
        """Drop a lost message and the later ones of its lane, and cancel its handler. The ack of it may have been handed over."""
        lane = job._lane
        with self.board.lock:
            working = self.board.lose_from(job) if job in lane.jobs else self.board.drop(lane)
        self.lost += 1
        self.tell("lost", job, detail=str(error))
        self._cancel(working)

    def drop(self, lane: HeldLane) -> None:
        """Drop a lane, and cancel its running jobs."""
        with self.board.lock:
            working = self.board.drop(lane)
        self._cancel(working)

    def _cancel(self, working: list[Job]) -> None:
        for job in working:
            self.gave_up = True
            self.cancel(job)

    def cancel(self, job: Job) -> None:
        """Request that the executors stop a job's handler."""
        for executor in self.executors:
            executor.cancel(job)
