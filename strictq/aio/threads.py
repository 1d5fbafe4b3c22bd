"""Calls of the sync queue from an event loop: each in a worker thread, and none in doubt when it is cancelled."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

from .._errors import QueueClosed

T = TypeVar("T")
THREADS_MAX: Final = 40
"""Calls of one queue object that are at work at once; more wait."""


class Calls:
    """The threads of one async queue."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None
        self._unlimited: anyio.CapacityLimiter | None = None

    def _begin(self) -> None:
        """In the event loop, which limiters belong to."""
        self._limiter = anyio.CapacityLimiter(THREADS_MAX)
        self._unlimited = anyio.CapacityLimiter(math.inf)

    async def _run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """A call of the sync queue in a worker thread. Cancellation waits for it: what it did is never in doubt."""
        return await _finish(functools.partial(call, *args, **options), self._limiter)

    async def _run_inside(self, call: Callable[..., T], *args: Any) -> T:
        """The same for an open transaction: it never waits for a thread, or those who wait for it could hold them all."""
        return await _finish(functools.partial(call, *args), self._unlimited)

    async def _run_surely(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """A call that ends something: it is made, however often the task is cancelled; that is raised when the call has ended."""
        return await _surely(functools.partial(call, *args, **options), self._limiter)

    async def _run_inside_surely(self, call: Callable[..., T], *args: Any) -> T:
        """The same without waiting for a thread."""
        return await _surely(functools.partial(call, *args), self._unlimited)


async def _surely(call: Callable[[], T], limiter: anyio.CapacityLimiter | None) -> T:
    outcome: list[T] = []
    failure: list[BaseException] = []
    cancelled: BaseException | None = None

    def once() -> None:
        try:
            outcome.append(call())
        except BaseException as e:
            failure.append(e)

    with anyio.CancelScope(shield=True):
        while not outcome and not failure:
            try:
                await _finish(once, limiter)
            except asyncio.CancelledError as e:  # a shield does not keep it off; if it came before the call began, once more
                cancelled = e
    if cancelled is not None:
        raise cancelled from (failure[0] if failure else None)
    if failure:
        raise failure[0]
    return outcome[0]


async def _finish(call: Callable[[], T], limiter: anyio.CapacityLimiter | None) -> T:
    """Run `call` in a worker thread; cancelled, wait for its end if it has begun, and see that it never begins if not.

    A shield is not enough: asyncio's own cancellation (task.cancel, wait_for, timeout) goes through it.
    """
    ended = anyio.Event()
    tell = from_any_thread(ended.set)
    gate = threading.Lock()
    state: list[str] = []

    def work() -> T:
        with gate:
            if state:
                raise QueueClosed("the call was cancelled before it began")
            state.append("running")
        try:
            return call()
        finally:
            tell()

    try:
        return await anyio.to_thread.run_sync(work, limiter=limiter)
    except BaseException:
        with gate:
            if not state:
                state.append("abandoned")
        if state[0] == "running":
            with anyio.CancelScope(shield=True):
                while not ended.is_set():
                    with suppress(asyncio.CancelledError):
                        await ended.wait()
        raise


def from_any_thread(call: Callable[[], Any]) -> Callable[[], None]:
    """`call`, to be run soon in this event loop, from whatever thread, without waiting for it."""
    try:
        schedule: Callable[..., Any] = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        from trio.lowlevel import current_trio_token

        schedule = current_trio_token().run_sync_soon
    return lambda: _unless_over(schedule, call)


def _unless_over(schedule: Callable[..., Any], call: Callable[[], Any]) -> None:
    with suppress(RuntimeError):  # the loop has ended: nobody waits there any more
        schedule(call)
