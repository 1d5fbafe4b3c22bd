"""How long a receive waits: by the machine's clock, and also by a test's clock where a test controls time."""

from __future__ import annotations

import time
from typing import Final

from .store import Store

LOOK_AGAIN_SECONDS: Final = 0.9
"""A waiting receive looks again at this interval, in case a wake-up was missed or a worker died."""


WATCH_SECONDS: Final = 30.0
"""The same for a wait that receives nothing, if other processes' wake-ups are noticed: upkeep ends the leases of the dead."""


def look_again(store: Store, soonest: int | None, most: float = LOOK_AGAIN_SECONDS) -> float:
    """Return the seconds after which to look again: at queue time `soonest` a message becomes ready, if not before."""
    if soonest is None:
        return most
    # Queue time and the waiting thread's clock can differ by microseconds; a minimum prevents a busy loop.
    return min(most, max((soonest - store.now()) / 1_000_000, 0.001))


class Patience:
    """One wait, which begins when it is made."""

    __slots__ = ("_ends", "_most", "_store", "_until")

    def __init__(self, store: Store, wait: int | None, *, receives: bool = True) -> None:
        """Begin a wait.

        Args:
            wait: microseconds; None waits for ever.
            receives: the caller receives whenever it looks.
        """
        self._store = store
        self._most = LOOK_AGAIN_SECONDS if receives or not store.waker.hears_others else WATCH_SECONDS
        self._until = None if wait is None else time.monotonic() + wait / 1_000_000
        self._ends = None if wait is None or store.steered is None else store.clock.boot() + wait

    def _due(self) -> int | None:
        at = self._store.soonest()
        return None if at is None else at - self._store.time_offset

    @property
    def over(self) -> bool:
        """Whether the time has elapsed. From then on no ready message may be skipped."""
        return (self._until is not None and time.monotonic() >= self._until) or (
            self._ends is not None and self._store.clock.boot() >= self._ends
        )

    def left(self, soonest: int | None) -> float:
        """Return the seconds to wait before looking again: until a lease or delay ends, or the caller's time has elapsed.

        Args:
            soonest: queue time at which a message becomes ready by itself. None: never.
        """
        steered = self._store.steered
        if steered is not None:
            if self._ends is not None and steered.boot() >= self._ends:
                return 0.0
            if steered.skip(self._due, self._ends):
                return 1e-9
        left = look_again(self._store, soonest, self._most)
        return left if self._until is None else min(left, self._until - time.monotonic())
