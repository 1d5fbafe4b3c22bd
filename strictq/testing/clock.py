"""A clock that moves only when a test moves it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from weakref import WeakMethod

import attrs

from .. import _hints as hints
from .._clock import MICROSECONDS
from .._errors import InvalidArgument

DAY_SECONDS: Final = 86_400.0
LOOK_COSTS: Final = MICROSECONDS
"""What a skipped wait counts at least, so that many short ones come to an end, too."""


class Idle(BaseException):
    """Nothing is ready, and nothing becomes ready by itself: raised in a receive that would wait, to end `run_until_idle`.

    Not an Exception, so that a consumer's own `except Exception` lets it pass.
    """


@attrs.define
class _Skipping:
    """Waits of this thread or task are skipped.

    Attributes:
        until_idle: a wait in which nothing can become ready raises Idle.
        left: microseconds that may still be skipped.
    """

    until_idle: bool
    seconds_max: float
    left: int


_skipping: ContextVar[_Skipping | None] = ContextVar("strictq_skipping", default=None)


class FakeClock:
    """Wall and boot clock of one pretended machine, for `strictq.open(..., clock=...)`. They stand still until moved.

    Leases, delays, TTLs, dedup windows and the waiting of `receive` follow it. A receive that waits in another thread is
    woken when the clock moves. Any number of queues and threads may share one.
    """

    def __init__(self, wall_seconds: float = 1_700_000_000.0, boot_seconds: float = 5_000.0) -> None:
        """
        Args:
            wall_seconds: the wall clock at first, seconds since 1970.
            boot_seconds: how long the machine is up at first.
        """
        self._wall = round(wall_seconds * MICROSECONDS)
        self._boot = round(boot_seconds * MICROSECONDS)
        self._boots = 1
        self._lock = threading.Lock()
        self._listeners: set[WeakMethod[Callable[[], None]]] = set()

    # ---- what strictq asks

    def wall(self) -> int:
        """Microseconds since 1970; may have been set wrongly."""
        return self._wall

    def boot(self) -> int:
        """Microseconds since this boot."""
        return self._boot

    def boot_id(self) -> str:
        """The name of this boot."""
        return f"fake-boot-{self._boots}"

    def listen(self, moved: Callable[[], None]) -> None:
        """Call `moved`, a bound method, whenever the clock was moved, as long as its object lives."""
        with self._lock:
            self._listeners = {*(ref for ref in self._listeners if ref() is not None), WeakMethod(moved)}

    def skip(self, due: Callable[[], int | None], ends: int | None) -> bool:
        """A receive found nothing: skip its wait, if the thread or task asked for that.

        Args:
            due: says when something becomes ready by itself, in microseconds since this boot; None: never.
            ends: when the receive ends in any case; None: never.
        Returns:
            Whether the clock was moved to the earlier of the two. If not, the caller waits.
        Raises:
            Idle: nothing becomes ready by itself.
            AssertionError: more time was skipped than may be.
        """
        now = _skipping.get()
        if now is None:
            return False
        at = due()
        if at is None and (now.until_idle or ends is None):
            raise Idle("nothing is ready, and nothing becomes ready by itself")
        step = max(0, min(t for t in (at, ends) if t is not None) - self._boot)
        now.left -= max(step, LOOK_COSTS)
        if now.left < 0:
            raise AssertionError(
                f"{now.seconds_max:,.0f} s of the queue's time were skipped, and it is not idle: is a message retried for ever? "
                "q.top_keys() and q.explain(key) say more"
            )
        self._move(step)
        return True

    # ---- what tests do

    @property
    def now(self) -> float:
        """Seconds since 1970, as the wall clock shows it."""
        return self._wall / MICROSECONDS

    def advance(self, seconds: float) -> None:
        """Let time go by: both clocks move.

        Raises:
            InvalidArgument: seconds is negative; nothing moved.
        """
        if not seconds >= 0.0:
            raise InvalidArgument(f"time goes forward only, not by {seconds!r} s", hint=hints.JUMP_WALL)
        self._move(round(seconds * MICROSECONDS))

    def _move(self, step: int) -> None:
        with self._lock:
            self._wall += step
            self._boot += step
            listeners = [ref() for ref in self._listeners]
        for moved in listeners:
            if moved is not None:
                moved()

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back; the boot clock does not notice."""
        with self._lock:
            self._wall += round(seconds * MICROSECONDS)

    def reboot(self, down_seconds: float = 0.0) -> None:
        """Restart the machine: the boot clock begins again under a new boot id, the wall clock goes on.

        Close, or crash, every queue first: no process lives through a reboot.
        """
        with self._lock:
            self._wall += round(down_seconds * MICROSECONDS)
            self._boot = MICROSECONDS
            self._boots += 1

    @contextmanager
    def skipping(self, *, until_idle: bool = False, seconds_max: float = DAY_SECONDS) -> Iterator[None]:
        """In this block, no receive of this thread or task waits: the clock goes forward instead.

        It goes to where a delay or a lease ends, or to the end of the receive's `wait`. A receive that would wait for ever
        leaves the block. Other threads and tasks wait as ever; while they hold leases, skipped time ends those.

        Args:
            until_idle: leave the block at any wait in which nothing can become ready by itself.
            seconds_max: most time that may be skipped.
        Raises:
            AssertionError: more than that.
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
