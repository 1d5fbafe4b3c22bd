"""Time, injected. Everything else in the package asks a Clock.

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
    """What strictq needs to know of time."""

    def wall(self) -> int:
        """Microseconds since 1970 by the wall clock. May jump."""
        ...

    def boot(self) -> int:
        """Microseconds since this machine booted, suspended time included. Never jumps; the same in every process."""
        ...

    def boot_id(self) -> str:
        """Names this boot of this machine: another boot has another name."""
        ...


@runtime_checkable
class SteeredClock(Clock, Protocol):
    """A clock that a test moves. What waits for time to pass asks it, too."""

    def listen(self, moved: Callable[[], None]) -> None:
        """Call `moved`, a bound method, whenever the clock was moved, as long as its object lives."""
        ...

    def skip(self, due: Callable[[], int | None], ends: int | None) -> bool:
        """A receive found nothing; something becomes ready when `boot()` is `due()`, and it ends at `ends` (None: never).

        Returns whether the clock was moved there. If not, the caller waits by the machine's time.
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

    It is `clock.boot() + offset`, with an offset that is fixed when an epoch begins (the first open after a boot).
    Leases, delays, TTLs and dedup windows are all points on it, so a jump of the wall clock moves none of them.
    """

    clock: Clock
    offset: int

    def now(self) -> int:
        """Queue time now, microseconds."""
        return self.clock.boot() + self.offset

    def to_wall(self, at: int) -> float:
        """A point on this scale as seconds since 1970 by the wall clock as it is now.

        Right also for what happened before the wall clock was set. A difference under a second is drift, not a jump, and
        is ignored, so that the same point always converts to the same value.
        """
        return (at + self.skew()) / MICROSECONDS

    def skew(self) -> int:
        """What to add to a point on this scale to have microseconds since 1970."""
        skew = self.clock.wall() - self.now()
        return skew if abs(skew) >= MICROSECONDS else 0
