"""Calls of the sync queue from an event loop, each in a worker thread. Cancellation never leaves their outcome unknown."""

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

from .._values.errors import QueueClosed

T = TypeVar("T")
THREADS_MAX: Final = 40
"""Most concurrent calls of one queue object; more calls wait."""


class Calls:
    """The threads of one async queue."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None
        self._unlimited: anyio.CapacityLimiter | None = None

    def _begin(self) -> None:
        """Create the limiters; call it in the event loop that they belong to."""
        self._limiter = anyio.CapacityLimiter(THREADS_MAX)
        self._unlimited = anyio.CapacityLimiter(math.inf)

    async def _run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run a call of the sync queue in a worker thread. Cancellation waits for it, so its outcome is known."""
        return await _finish(functools.partial(call, *args, **options), self._limiter)

    async def _run_inside(self, call: Callable[..., T], *args: Any) -> T:
        """Run a call of an open transaction without waiting for a thread: callers that wait for it may occupy all of them."""
        return await _finish(functools.partial(call, *args), self._unlimited)

    async def _run_surely(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run a closing call even if the task is cancelled; raise the cancellation after the call."""
        return await _surely(functools.partial(call, *args, **options), self._limiter)

    async def _run_inside_surely(self, call: Callable[..., T], *args: Any) -> T:
        """Run a closing call without waiting for a thread."""
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
            except asyncio.CancelledError as e:
                # asyncio's own cancellation passes the shield. If it came before the call began, the loop tries again.
                cancelled = e
    if cancelled is not None:
        raise cancelled from (failure[0] if failure else None)
    if failure:
        raise failure[0]
    return outcome[0]


async def _finish(call: Callable[[], T], limiter: anyio.CapacityLimiter | None) -> T:
    """Run `call` in a worker thread. If cancelled, wait for its end if it has begun; otherwise make sure that it never begins.

    A shield is not enough: asyncio's own cancellation (task.cancel, wait_for, timeout) ignores it.
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
    """Return a function that schedules `call` in this event loop from any thread, without waiting."""
    try:
        schedule: Callable[..., Any] = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        from trio.lowlevel import current_trio_token

        schedule = current_trio_token().run_sync_soon
    return lambda: _unless_over(schedule, call)


def _unless_over(schedule: Callable[..., Any], call: Callable[[], Any]) -> None:
    with suppress(RuntimeError):  # the loop has ended, so no task waits in it
        schedule(call)
