"""A clock that moves only when a test moves it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from weakref import WeakMethod

import attrs

from .._platform.clock import MICROSECONDS, SystemClock
from .._values import hints
from .._values.errors import InvalidArgument

DAY_SECONDS: Final = 86_400.0
LOOK_COSTS: Final = MICROSECONDS
"""The least time that a skipped wait counts, microseconds, so that endless short waits reach the limit, too."""


class Idle(BaseException):
    """No message is ready or will become ready. Raised in a receive that would wait, to end `run_until_idle`.

    It is not an Exception, so that a consumer's own `except Exception` does not catch it.
    """


@attrs.define
class _Skipping:
    """Skips the waits of this thread or task.

    Attributes:
        until_idle: raise Idle in a wait in which no message can become ready.
        left: microseconds that may still be skipped.
    """

    until_idle: bool
    seconds_max: float
    left: int


_skipping: ContextVar[_Skipping | None] = ContextVar("strictq_skipping", default=None)


class _Movable:
    """A clock that calls listeners after each move."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[WeakMethod[Callable[[], None]]] = set()

    def listen(self, moved: Callable[[], None]) -> None:
        """Call `moved`, a bound method, after each move of the clock, while its object exists."""
        with self._lock:
            self._listeners = {*(ref for ref in self._listeners if ref() is not None), WeakMethod(moved)}

    @contextmanager
    def _moving(self) -> Iterator[None]:
        with self._lock:
            yield
            listeners = [ref() for ref in self._listeners]
        for moved in listeners:
            if moved is not None:
                moved()


class FakeClock(_Movable):
    """The wall clock and boot clock of a simulated machine, for `strictq.open(..., clock=...)`. They stand still until moved.

    Leases, delays, TTLs, dedup windows and the `wait` of `receive` follow it. A receive that waits in another thread is
    woken when the clock moves. Any number of queues and threads may share one.
    """

    def __init__(self, wall_seconds: float = 1_700_000_000.0, boot_seconds: float = 5_000.0) -> None:
        """
        Args:
            wall_seconds: the initial wall clock, seconds since 1970.
            boot_seconds: the initial uptime.
        """
        super().__init__()
        self._wall = round(wall_seconds * MICROSECONDS)
        self._boot = round(boot_seconds * MICROSECONDS)
        self._boots = 1

    # ---- called by strictq

    def wall(self) -> int:
        """Return microseconds since 1970; the wall clock may be wrong."""
        return self._wall

    def boot(self) -> int:
        """Return microseconds since this boot."""
        return self._boot

    def boot_id(self) -> str:
        """Return the id of this boot."""
        return f"fake-boot-{self._boots}"

    def skip(self, due: Callable[[], int | None], ends: int | None) -> bool:
        """Skip the wait of a receive that found no message, if its thread or task requested that.

        Args:
            due: returns when a message becomes ready, in microseconds since this boot; None: never.
            ends: when the receive's wait ends; None: never.
        Returns:
            True if the clock was moved to the earlier of the two. If not, the caller waits.
        Raises:
            Idle: no message can become ready.
            AssertionError: more time was skipped than allowed.
        """
        now = _skipping.get()
        if now is None:
            return False
        at = due()
        if at is None and (now.until_idle or ends is None):
            raise Idle("no message is ready, and none will become ready without another call")
        step = max(0, min(t for t in (at, ends) if t is not None) - self._boot)
        now.left -= max(step, LOOK_COSTS)
        if now.left < 0:
            raise AssertionError(
                f"{now.seconds_max:,.0f} s of the queue's time were skipped, and it is not idle: is a message retried forever? "
                "q.top_keys() and q.explain(key) say more"
            )
        self._move(step)
        return True

    # ---- called by tests

    @property
    def now(self) -> float:
        """The wall clock, seconds since 1970."""
        return self._wall / MICROSECONDS

    def advance(self, seconds: float) -> None:
        """Advance both clocks.

        Raises:
            InvalidArgument: seconds is negative; nothing was changed.
        """
        if not seconds >= 0.0:
            raise InvalidArgument(f"time only moves forward, not by {seconds!r} s", hint=hints.JUMP_WALL)
        self._move(round(seconds * MICROSECONDS))

    def _move(self, step: int) -> None:
        with self._moving():
            self._wall += step
            self._boot += step

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back. The boot clock does not change."""
        with self._lock:
            self._wall += round(seconds * MICROSECONDS)

    def reboot(self, down_seconds: float = 0.0) -> None:
        """Restart the machine: the boot clock restarts with a new boot id; the wall clock continues.

        Close, or crash, every queue first: no process survives a reboot.
        """
        with self._lock:
            self._wall += round(down_seconds * MICROSECONDS)
            self._boot = MICROSECONDS
            self._boots += 1

    @contextmanager
    def skipping(self, *, until_idle: bool = False, seconds_max: float = DAY_SECONDS) -> Iterator[None]:
        """Skip the waits of this thread's or task's receives in this block by advancing the clock.

        The clock advances to the end of a delay or a lease, or to the end of the receive's `wait`. A receive that would wait
        forever leaves the block. Other threads and tasks wait as usual; skipped time also ends the leases that they hold.

        Args:
            until_idle: leave the block at any wait in which no message can become ready.
            seconds_max: most time that may be skipped.
        Raises:
            AssertionError: more time would be skipped.
        """
        before = _skipping.set(_Skipping(until_idle, seconds_max, round(seconds_max * MICROSECONDS)))
        try:
            try:
                yield
            except* Idle:
                pass
        finally:
            _skipping.reset(before)

    def __repr__(self) -> str:
        return f"<FakeClock {self.now:.6f} boot {self._boots}>"


class RunningClock(_Movable, SystemClock):
    """The machine's clocks, which run on, and which a test moves ahead. For programs that sleep or poll by the machine's time.

    Queues with this clock see `advance(30)` as if 30 s had passed. Any number of queues and threads may share one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0

    # ---- called by strictq

    def wall(self) -> int:
        """Return microseconds since 1970; the wall clock may be wrong."""
        return super().wall() + self._ahead

    def boot(self) -> int:
        """Return microseconds since this boot."""
        return super().boot() + self._ahead

    def skip(self, due: Callable[[], int | None], ends: int | None) -> bool:  # noqa: ARG002 - waits are those of the machine
        """Return False: a receive waits by the machine's time."""
        return False

    # ---- called by tests

    @property
    def now(self) -> float:
        """The wall clock, seconds since 1970."""
        return self.wall() / MICROSECONDS

    def advance(self, seconds: float) -> None:
        """Advance both clocks.

        Raises:
            InvalidArgument: seconds is negative or not finite; nothing was changed.
        """
        if not 0.0 <= seconds < math.inf:
            raise InvalidArgument(f"time only moves forward, not by {seconds!r} s")
        with self._moving():
            self._ahead += round(seconds * MICROSECONDS)

    def reset(self) -> None:
        """Go back to the machine's time. Close or delete every queue first: their time does not go back."""
        self._ahead = 0

    def __repr__(self) -> str:
        return f"<RunningClock {self._ahead / MICROSECONDS:g} s ahead>"
