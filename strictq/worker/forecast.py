"""The forecast: estimates when each lane's work ends, and when the prepares of its later messages are due. Changes nothing."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable
from itertools import accumulate, islice
from typing import Final

from .estimates import Estimates
from .job import BUFFERED, PREPARING, RUNNING, SETTLING, STARTING, HeldLane, Job
from .limits import Limits

DEPTH_MAX: Final = 8
"""Number of messages per lane that are considered for prepare."""


class Forecast:
    """The expected schedule of the lanes that a worker holds.

    Args:
        preparing: the live set of jobs whose prepare handlers are running.
    """

    def __init__(self, limits: Limits, estimates: Estimates, preparing: Container[Job]) -> None:
        self._limits = limits
        self._estimates = estimates
        self._preparing = preparing

    def candidates(
        self, selected: Iterable[HeldLane], waiting: Iterable[HeldLane], now: float
    ) -> tuple[list[Job], list[tuple[float, int, Job]]]:
        """Return the jobs whose prepare is overdue, and the other ones with the times at which theirs is due.

        Args:
            waiting: lanes without a slot, in the order in which they will get one.
        """
        urgent: list[Job] = []
        later: list[tuple[float, int, Job]] = []
        ends: list[float] = []
        for lane in selected:
            head = lane.jobs[0]
            if head._stage >= STARTING:
                begun = head._since if head._stage in (RUNNING, SETTLING) else now
                seconds = self._process_seconds(head)
                at = now if seconds is None else max(now, begun + seconds)
                first = 1
            else:
                if head._stage == BUFFERED:
                    urgent.append(head)
                at, first = self._prepared_at(head, now) + (self._process_seconds(head) or 0.0), 1
            ends.append(self._consider(islice(lane.jobs, first, first + DEPTH_MAX), at, now, later))
        ends += [now] * (self._limits.concurrency - len(ends))
        heapq.heapify(ends)
        for lane in islice(waiting, self._limits.prepared_max + self._limits.concurrency):
            if lane.alive and not lane.selected and lane.jobs and ends:
                ahead: list[tuple[float, int, Job]] = []
                heapq.heapreplace(ends, self._consider(islice(lane.jobs, DEPTH_MAX), ends[0], now, ahead))
                later += _in_order(ahead)
        return urgent, later

    def _consider(self, jobs: Iterable[Job], at: float, now: float, later: list[tuple[float, int, Job]]) -> float:
        """Add the jobs of a lane that are processed one after another from `at` on.

        Return the time at which the last one ends.
        """
        margin = self._estimates.margin.seconds
        for depth, job in enumerate(jobs):
            at = max(at, self._prepared_at(job, now))
            if job._stage == BUFFERED:
                seconds = self._prepare_seconds(job)
                # Without estimates, order by depth: the next message of every lane before the second one of any.
                later.append((0.0 if seconds is None else at - seconds - margin, depth, job))
            at += self._process_seconds(job) or 0.0
        return at

    def _prepared_at(self, job: Job, now: float) -> float:
        """Return the earliest time at which its prepare can be done."""
        if job._stage > PREPARING:
            return now
        begun = job._since if job in self._preparing else now
        return max(now, begun + (self._prepare_seconds(job) or 0.0))

    def _process_seconds(self, job: Job) -> float | None:
        return self._estimates.of_process(job._delivery._sent_seconds[1], size_of(job))

    def _prepare_seconds(self, job: Job) -> float | None:
        return self._estimates.of_prepare(job._delivery._sent_seconds[0], size_of(job))


def _in_order(ahead: list[tuple[float, int, Job]]) -> list[tuple[float, int, Job]]:
    """Make the due times of a lane ascend, so that no message is due after a later one.

    The first message of a lane without a slot is not urgent. If slow prepares of later messages could begin before it, they
    could occupy all places, and no message that could run would ever be prepared.
    """
    dues = list(accumulate((due for due, _, _ in reversed(ahead)), min))
    return [(due, depth, job) for due, (_, depth, job) in zip(reversed(dues), ahead, strict=True)]


def size_of(job: Job) -> float:
    """Return the size on which the duration of its work depends."""
    if job._size is None:
        hint = job._delivery.size_hint
        job._size = float(len(job._delivery.body)) if hint is None else hint
    return job._size
