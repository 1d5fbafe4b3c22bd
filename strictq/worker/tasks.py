"""Handlers as tasks of the caller's event loop, asyncio or trio. A few tasks run many jobs each, one after the other."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from .._platform.observe import around
from .._values.handlers import require_ran
from ..aio.threads import from_any_thread
from .dispatch import Handover
from .job import Job, JobBatch
from .state import ENDING, Executor
from .threads import weigh

TURN: Final = 64
"""Jobs that a task runs without awaiting before it yields to other tasks."""

AsyncHandler = Callable[[Any], Awaitable[Any]]


class WorkerCancelled(Exception):
    """The loop cancelled the worker while a handler was running."""

    def __init__(self) -> None:
        super().__init__("the worker was cancelled")


class _Slot:
    __slots__ = ("job", "scope")

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.scope = scope
        self.job: Job | JobBatch | None = None


class Tasks(Executor):
    """Tasks of an event loop that take jobs themselves."""

    def __init__(
        self,
        slots: int,
        take: Callable[[], Job | JobBatch | None],
        waiting: Callable[[], int],
        work: Callable[[Any], Awaitable[None]],
    ) -> None:
        self._slots = slots
        self._take = take
        self._waiting = waiting
        self._work = work
        self._at_work: set[_Slot] = set()
        self._doomed: deque[Job] = deque()
        self._over = False
        self._called = False
        self._event = anyio.Event()
        self._schedule = from_any_thread(self._set)

    def start(self, group: anyio.abc.TaskGroup) -> None:
        """Start taking jobs."""
        for _ in range(self._slots):
            group.start_soon(self._run)

    def wake(self) -> None:
        if not self._called and (self._over or self._waiting()):
            self._called = True
            self._schedule()

    def _set(self) -> None:
        self._called = False
        while self._doomed:
            job = self._doomed.popleft()
            if job._group is not None and not job._group.given_up:
                continue  # other messages of its batch are still pending
            for slot in self._at_work:
                if slot.job is (job._group or job):  # only if the task has not gone on to another job
                    slot.scope.cancel()
        event, self._event = self._event, anyio.Event()
        event.set()

    def cancel(self, job: Job) -> None:
        self._doomed.append(job)
        self._called = True
        self._schedule()

    def stop(self) -> None:
        """End the tasks. Call it in the loop's thread."""
        self._over = True
        self._set()

    async def _run(self) -> None:
        while not self._over:
            with anyio.CancelScope() as scope:
                slot = _Slot(scope)
                self._at_work.add(slot)
                try:
                    await self._jobs(slot)
                finally:
                    self._at_work.discard(slot)

    async def _jobs(self, slot: _Slot) -> None:
        turn = 0
        while not slot.scope.cancel_called:
            event = self._event
            job = self._take()
            if job is None:
                if self._over:
                    return
                turn = 0
                await event.wait()
                continue
            slot.job = job
            try:
                await self._work(job)
            finally:
                slot.job = None
            turn += 1
            if turn >= TURN:
                turn = 0
                await anyio.lowlevel.checkpoint()


async def run_prepare(handover: Handover, handler: AsyncHandler, job: Job) -> None:
    """Call a prepare handler and report its result."""
    result, error, ends = await _call(handover, "prepare", handler, job, (job,))
    handover.prepared(job, result, error, 0 if error is not None else weigh(result))
    if ends is not None:
        raise ends


async def run_process(handover: Handover, handler: AsyncHandler, job: Job) -> None:
    """Call a process handler and commit its effects."""
    _, error, ends = await _call(handover, "process", handler, job, (job,))
    commits = handover.processed(job, error)
    if ends is not None:
        raise ends
    if commits:
        # Even if cancelled, wait for the commit.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(handover.commit, job)


async def run_group(handover: Handover, handler: AsyncHandler, group: JobBatch) -> None:
    """Call a batch handler and report its result."""
    jobs = list(group.jobs)
    _, error, ends = await _call(handover, "process", handler, jobs, jobs)
    handover.processed_group(group, error)
    if ends is not None:
        raise ends


async def _call(
    handover: Handover, stage: str, handler: AsyncHandler, argument: Any, jobs: Sequence[Job]
) -> tuple[Any, BaseException | None, BaseException | None]:
    """Return a handler's result, the exception to report to the keeper, and the one that ends the task."""
    try:
        if not handover.observers.handling:
            return require_ran("the handler", await handler(argument)), None, None
        with around(handover.observers.handling, stage, jobs):
            return require_ran("the handler", await handler(argument)), None, None
    except BaseException as e:
        if not _not_the_handlers(e):
            return None, e, None
        return None, e if isinstance(e, ENDING) else WorkerCancelled(), e


def _not_the_handlers(error: BaseException) -> bool:
    """Return whether an exception is for the task, and not a failure of the handler.

    On asyncio, awaiting a future that was cancelled elsewhere raises the same exception as cancelling the task; then the task
    itself is not cancelled. The loop raises Ctrl-C at once. sys.exit waits for running handlers, as in a thread.
    """
    if isinstance(error, Exception | SystemExit):
        return False
    if isinstance(error, GeneratorExit):  # raised by the handler, unless its coroutine is being closed
        return _is_closed()
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError and isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return anyio.current_effective_deadline() == -math.inf or (task is not None and task.cancelling() > 0)
    return isinstance(error, KeyboardInterrupt | anyio.get_cancelled_exc_class())


def _is_closed() -> bool:
    """Return whether no event loop runs this code, because the coroutine of an abandoned task is being closed."""
    try:
        anyio.get_current_task()
    except RuntimeError:
        return True
    return False
