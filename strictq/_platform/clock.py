"""Time, injected. The rest of the package reads time from a Clock only.

Two clocks are needed. The boot clock never jumps and is shared by all processes of a machine, but restarts with it; the
wall clock survives a reboot, but jumps. `QueueTime` joins them: within one boot it runs with the boot clock, across
boots it follows the wall clock, and it never goes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import attrs

MICROSECONDS = 1_000_000


@runtime_checkable
class Clock(Protocol):
    """The clocks that strictq reads."""

    def wall(self) -> int:
        """Return microseconds since 1970 by the wall clock. It may jump."""
        ...

    def boot(self) -> int:
        """Return microseconds since this machine booted, suspended time included. Never jumps; the same in every process."""
        ...

    def boot_id(self) -> str:
        """Return an identifier of this boot of this machine, different after each boot."""
        ...


@runtime_checkable
class SteeredClock(Clock, Protocol):
    """A clock that a test moves. Code that waits for time to pass must notice the moves."""

    def listen(self, moved: Callable[[], None]) -> None:
        """Call `moved`, a bound method, whenever the clock was moved, until its object is garbage-collected."""
        ...

    def skip(self, due: Callable[[], int | None], ends: int | None) -> bool:
        """Move the clock for a receive that found nothing, to the time when a message becomes ready or its wait ends.

        Args:
            due: returns the `boot()` at which a message becomes ready; None: none will.
            ends: the `boot()` at which the wait ends; None: never.
        Returns:
            True if the clock was moved. Otherwise the caller waits by the machine's time.
        """
        ...


class SystemClock:
    """The machine's own clocks.

    Linux: CLOCK_BOOTTIME and the kernel's boot id. Elsewhere CLOCK_MONOTONIC (which on macOS stops while the machine
    sleeps, so leases last that much longer) and a boot id derived from the boot time, to the minute.
    """

    if hasattr(time, "CLOCK_BOOTTIME"):

        def boot(self) -> int:
            return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000

    else:

        def boot(self) -> int:
            return time.monotonic_ns() // 1000

    def wall(self) -> int:
        return time.time_ns() // 1000

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return f"booted-{(self.wall() - self.boot()) // (60 * MICROSECONDS)}"


@attrs.frozen
class QueueTime:
    """The queue's own time scale: microseconds, never going back, the same in every process of one boot.

    It equals `clock.boot() + offset`, with an offset that is fixed when an epoch begins (the first open after a boot).
    Leases, delays, TTLs and dedup windows are all points on it, so a jump of the wall clock moves none of them.
    """

    clock: Clock
    offset: int

    def now(self) -> int:
        """Queue time now, microseconds."""
        return self.clock.boot() + self.offset

    def to_wall(self, at: int) -> float:
        """Convert a point on this scale to seconds since 1970 by the current wall clock.

        Correct even for times before the wall clock was set. A difference under a second is drift, not a jump, and
        is ignored, so that the same point always converts to the same value.
        """
        return (at + self.skew()) / MICROSECONDS

    def converter(self) -> Callable[[int], float]:
        """Return `to_wall` for many points. The clocks are read once."""
        skew = self.skew()
        return lambda at: (at + skew) / MICROSECONDS

    def skew(self) -> int:
        """Return the difference between microseconds since 1970 and this scale."""
        skew = self.clock.wall() - self.now()
        return skew if abs(skew) >= MICROSECONDS else 0
