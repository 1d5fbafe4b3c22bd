"""What the server counts of its own requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

BUCKETS_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
"""Upper bounds of the histogram's buckets. Long polls wait up to 20 s."""


class Counters:
    """Requests by action and status code, their durations, and what waits now. Changed in the event loop only.

    Attributes:
        requests: number of answered requests by (action, status code).
        durations: for each action, the number of requests in each bucket of BUCKETS_SECONDS and above all of them.
        seconds: for each action, the sum of the durations.
        polls: returns the number of long polls that wait. Set by the part that serves them.
        connections: number of open connections.
        connections_refused: number of connections that were closed because there were too many.
        timeouts: number of connections that were closed because a request took too long to arrive, or an answer to be read.
        arriving_bytes: bytes of the requests that are incomplete now.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.durations: dict[str, list[int]] = {}
        self.seconds: dict[str, float] = {}
        self.polls: Callable[[], int] = lambda: 0
        self.connections = 0
        self.connections_refused = 0
        self.timeouts = 0
        self.arriving_bytes = 0

    def answered(self, action: str, code: int, seconds: float) -> None:
        """Count a request that was answered, or that ended without an answer (code 499: the client has gone)."""
        self.requests[action, code] = self.requests.get((action, code), 0) + 1
        buckets = self.durations.get(action)
        if buckets is None:
            buckets = self.durations[action] = [0] * (len(BUCKETS_SECONDS) + 1)
        buckets[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.seconds[action] = self.seconds.get(action, 0.0) + seconds
