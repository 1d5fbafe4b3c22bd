"""How long a receive waits: by the machine's clock, and by a test's where one steers time."""

from __future__ import annotations

import time
from typing import Final

from .store import Store

LOOK_AGAIN_SECONDS: Final = 0.9
"""A waiting receive looks by itself so often, should a wake-up ever be missed, and for workers that died."""


def look_again(store: Store, soonest: int | None) -> float:
    """Seconds after which to look again by oneself: when, at queue time `soonest`, something becomes ready, if not before."""
    if soonest is None:
        return LOOK_AGAIN_SECONDS
    # Queue time and the waiting thread's clock need not agree to the microsecond: never a busy loop.
    return min(LOOK_AGAIN_SECONDS, max((soonest - store.now()) / 1_000_000, 0.001))


class Patience:
    """One wait, from when it was made."""

    __slots__ = ("_ends", "_store", "_until")

    def __init__(self, store: Store, wait: int | None) -> None:
        """Args: wait: microseconds; None: for ever."""
        self._store = store
        self._until = None if wait is None else time.monotonic() + wait / 1_000_000
        self._ends = None if wait is None or store.steered is None else store.clock.boot() + wait

    def _due(self) -> int | None:
        at = self._store.soonest()
        return None if at is None else at - self._store.time_offset

    @property
    def over(self) -> bool:
        """Is the time over? Then nothing that is ready may be passed over any more."""
        return (self._until is not None and time.monotonic() >= self._until) or (
            self._ends is not None and self._store.clock.boot() >= self._ends
        )

    def left(self, soonest: int | None) -> float:
        """Seconds to wait before looking again: until a lease or delay ends, or the caller's time is over.

        Args:
            soonest: queue time at which something becomes ready by itself; None: never.
        """
        steered = self._store.steered
        if steered is not None:
            if self._ends is not None and steered.boot() >= self._ends:
                return 0.0
            if steered.skip(self._due, self._ends):
                return 1e-9
        left = look_again(self._store, soonest)
        return left if self._until is None else min(left, self._until - time.monotonic())
