"""What the scheduler works with: lanes, and the limits it keeps to."""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs

from ..delivery import Lease
from .job import Job


class Lane:
    """A lease and its jobs that are not over."""

    __slots__ = ("alive", "free_at", "grown", "jobs", "lease", "length", "selected", "until")

    def __init__(self, lease: Lease, until: float, length: float) -> None:
        self.lease = lease
        self.jobs: deque[Job] = deque()
        self.until = until
        self.length = length
        self.alive = True
        self.selected = False
        self.free_at = 0.0
        self.grown: Any = None


@attrs.frozen
class Limits:
    """What the scheduler keeps to. See Worker."""

    concurrency: int = 8
    prepares: bool = False
    prepared_max: int = 16
    prepared_bytes_max: int = 64 * 1024 * 1024
    batch: int = 1000
    process_timeout: float | None = None
    prepare_timeout: float | None = None
