"""A shipper's regular check that the newest state at its target can be restored.

A look reads the target's identity and lists its names, which shows missing segments. It also reads a few segments completely, in
turn, so that each one since the newest base is verified once per `verify_seconds`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from .._platform.clock import MICROSECONDS, Clock
from .._values.errors import ReplicaGap
from .segment import decode_header, hash_of
from .segment_files import SegmentFiles
from .target import ChainHead

LOOK_SECONDS: Final = 60.0
"""The interval of looks, unless `verify_seconds` is shorter."""
REST_TIMES: Final = 100
"""The next look is after this many times the duration of the last one, so that looks take at most a hundredth of the time."""


class Verification:
    """The looks of one shipper.

    Args:
        verify_seconds: the time in which every segment since the newest base is read once.
    """

    def __init__(self, target: SegmentFiles, clock: Clock, verify_seconds: float) -> None:
        self._target = target
        self._clock = clock
        self._interval = min(LOOK_SECONDS, verify_seconds)
        self._share = self._interval / verify_seconds
        self._due = 0
        self._next = -1
        self._before: str | None = None
        """The hash of the segment before the next one; None: it was not read."""

    @property
    def is_due(self) -> bool:
        """Whether it is time for a look."""
        return self._clock.boot() >= self._due

    def postpone(self, seconds: float = 0.0) -> None:
        """Plan the next look: after the interval, or after these seconds if they are more."""
        self._due = self._clock.boot() + int(max(self._interval, seconds) * MICROSECONDS)

    def look(self, head: Callable[[], ChainHead | None], history_id: str, base: int, end: int) -> None:
        """Check the segments from the base to the one before `end`.

        Args:
            head: returns the end of the chain, after checking the target's identity.
        Raises:
            ReplicaGap: one of them is missing or damaged.
            TargetUnavailable: the target can't be read; the look stays due.
        """
        began = time.monotonic()
        found = head()
        missing = base if found is None else found.n + 1 if found.n < end - 1 else found.missing
        if missing is not None:
            raise ReplicaGap(f"segment {missing} is missing or damaged", missing)
        for _ in range(math.ceil((end - base) * self._share)):
            if not base <= self._next < end:
                self._next, self._before = base, None
            self._verify(history_id, self._next)
        self.postpone((time.monotonic() - began) * REST_TIMES)

    def _verify(self, history_id: str, n: int) -> None:
        data = self._target.get(n)
        header = decode_header(data, n, self._target.key)
        if header.history_id != history_id or self._before not in (None, header.prev):
            raise ReplicaGap(f"segment {n} was replaced", n)
        self._next, self._before = n + 1, hash_of(data)
