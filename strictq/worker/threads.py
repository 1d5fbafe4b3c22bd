"""Handlers in threads: one thread per slot, started on demand."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from .._platform.observe import around
from .._values import hints
from .._values.errors import StrictqError
from .._values.handlers import require_ran
from .dispatch import Handover
from .events import log
from .job import Job, JobBatch
from .state import Executor

Handler = Callable[[Any], Any]
ZOMBIES_MAX: Final = 4
"""How many abandoned threads are replaced, in multiples of the number of slots."""


def weigh(result: Any) -> int:
    """Return the size of a result in bytes: the length of bytes or text, otherwise `sys.getsizeof`."""
    try:
        return len(result) if isinstance(result, bytes | bytearray | memoryview | str) else sys.getsizeof(result)
    except Exception:  # the object may not report a size
        return 0


def run_prepare(handover: Handover, handler: Handler, job: Job) -> None:
    """Call a prepare handler and report its result."""
    result, error = _call(handover, "prepare", handler, job, (job,))
    handover.prepared(job, result, error, 0 if error is not None else weigh(result))


def run_process(handover: Handover, handler: Handler, job: Job) -> None:
    """Call a process handler and commit its effects."""
    _, error = _call(handover, "process", handler, job, (job,))
    if handover.processed(job, error):
        handover.commit(job)


def run_group(handover: Handover, handler: Handler, group: JobBatch) -> None:
    """Call a batch handler and report its result."""
    jobs = list(group.jobs)
    _, error = _call(handover, "process", handler, jobs, jobs)
    handover.processed_group(group, error)


def _call(
    handover: Handover, stage: str, handler: Handler, argument: Any, jobs: Sequence[Job]
) -> tuple[Any, BaseException | None]:
    try:
        if handover.observers.handling:
            with around(handover.observers.handling, stage, jobs):
                result = require_ran("the handler", handler(argument))
        else:
            result = require_ran("the handler", handler(argument))
    except BaseException as e:  # the caller decides which of them end the program
        return None, e
    return result, None


class _Thread:
    __slots__ = ("job", "wake", "zombie")

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.job: Job | JobBatch | None = None
        self.zombie = False


class Threads(Executor):
    """Threads that take jobs themselves. Each woken thread wakes the next one."""

    def __init__(
        self,
        name: str,
        slots: int,
        take: Callable[[], Job | JobBatch | None],
        waiting: Callable[[], int],
        work: Callable[[Any], None],
        *,
        failed: Callable[[BaseException], None],
        ended: Callable[[BaseException], None],
        before: Callable[[], None] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        """Prepare a pool.

        Args:
            failed: called if a thread ends with an error.
            ended: called if no thread can be started. Then the worker must end.
            before: called before a thread takes a job.
            leave: called at the end of a thread.
        """
        self.stage = name
        self._slots = slots
        self._take = take
        self._waiting = waiting
        self._work = work
        self._failed = failed
        self._ended = ended
        self._before = before
        self._leave = leave
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        self._all: dict[_Thread, threading.Thread] = {}
        self._left: dict[_Thread, threading.Thread] = {}
        self._zombies = 0
        self._over = False

    def wake(self) -> None:
        if not self._waiting():
            return
        with self._lock:
            if self._idle:
                self._idle.pop().wake.release()
            elif len(self._all) < self._slots and not self._over:
                mine = _Thread()
                # Daemons, so that a thread that hangs in a handler does not keep the process alive.
                thread = threading.Thread(target=self._run_safely, args=(mine,), name=f"strictq-{self.stage}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as e:  # the system's limit is reached
                    error = StrictqError(f"no thread can be started for a handler: {e}", hint=hints.MORE_THREADS)
                    error.__cause__ = e
                    self._ended(error)
                else:
                    self._all[mine] = thread

    def cancel(self, job: Job) -> None:
        """Replace a thread that cannot be stopped. It ends when its handler returns."""
        with self._lock:
            if job._group is not None and not job._group.given_up:
                return  # other messages of its batch are still pending
            mine = next((t for t in self._all if t.job is (job._group or job)), None)
            if mine is None:
                return
            if self._zombies >= ZOMBIES_MAX * self._slots:
                log.error("%d handlers hang; their threads are no longer replaced", self._zombies)
                return
            mine.zombie = True
            self._zombies += 1
            self._left[mine] = self._all.pop(mine)

    def _run(self, mine: _Thread) -> None:
        try:
            while True:
                job = self._next(mine)
                if job is None:
                    return
                if self._waiting():
                    self.wake()
                self._work(job)
                with self._lock:
                    mine.job = None
                    if mine.zombie:
                        self._zombies -= 1
                        self._left.pop(mine, None)
                        return
        finally:
            if self._leave is not None:
                self._leave()

    def _run_safely(self, mine: _Thread) -> None:
        try:
            self._run(mine)
        except BaseException as e:  # handlers' errors are caught elsewhere; nothing else would report this one
            self._failed(e)

    def _next(self, mine: _Thread) -> Job | JobBatch | None:
        while True:
            if self._over:
                return None
            if self._before is not None:
                self._before()
            mine.job = job = self._take()
            if job is not None:
                return job
            with self._lock:
                self._idle.append(mine)
            # Jobs that came before this thread was listed as idle woke no thread, so look again.
            if (self._waiting() or self._over) and self._unlist(mine):
                continue
            mine.wake.acquire()

    def _unlist(self, mine: _Thread) -> bool:
        with self._lock:
            if mine in self._idle:
                self._idle.remove(mine)
                return True
        return False  # another thread has just woken it

    def stop(self, seconds: float | None) -> None:
        """End the threads. Abandon those that still run a handler after `seconds` in total."""
        self._over = True
        with self._lock:
            threads = [*self._all.values(), *self._left.values()]
            while self._idle:
                self._idle.pop().wake.release()
        until = None if seconds is None else time.monotonic() + seconds
        for thread in threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
