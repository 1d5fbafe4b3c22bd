"""The forecast: estimates when each lane's work ends, and when the prepares of its later messages are due. Changes nothing."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Container, Iterable
from itertools import accumulate, islice
from operator import itemgetter
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
        self, selected: Iterable[HeldLane], waiting: Iterable[HeldLane], now: float, confirming: Collection[HeldLane] = ()
    ) -> list[tuple[float, int, Job]]:
        """Return the jobs to prepare, each with the time at which that is due and its depth, by due time.

        Args:
            waiting: lanes without a slot, in the order in which they will get one.
            confirming: lanes without a slot that may go on at any time. They delay no other lane.
        """
        later: list[tuple[float, int, Job]] = []
        ends: list[float] = []
        for lane in selected:
            head = lane.jobs[0]
            prepare, process = head._seconds or self._estimate(head)
            at = now
            if head._stage < STARTING:
                at = self._prepared_at(head, prepare, now) + (process or 0.0)
            elif process is not None:
                begun = head._since if head._stage in (RUNNING, SETTLING) else now
                at = max(now, begun + process)
            ends.append(self._consider(islice(lane.jobs, 1, 1 + DEPTH_MAX), at, now, later))
        for lane in confirming:
            self._consider(islice(lane.jobs, DEPTH_MAX), now, now, later)
        ends += [now] * (self._limits.concurrency - len(ends))
        heapq.heapify(ends)
        for lane in islice(waiting, self._limits.prepared_max + self._limits.concurrency):
            if lane.alive and not lane.selected and not lane.passed and lane.jobs and ends and lane not in confirming:
                ahead: list[tuple[float, int, Job]] = []
                heapq.heapreplace(ends, self._consider(islice(lane.jobs, DEPTH_MAX), ends[0], now, ahead))
                later += _in_order(ahead)
        later.sort(key=itemgetter(0, 1))
        return later

    def _consider(self, jobs: Iterable[Job], at: float, now: float, later: list[tuple[float, int, Job]]) -> float:
        """Add the jobs of a lane that are processed one after another from `at` on.

        Return the time at which the last one ends.
        """
        margin = self._estimates.margin.seconds
        for depth, job in enumerate(jobs):
            prepare, process = job._seconds or self._estimate(job)
            if job._stage == BUFFERED:
                at = max(at, now + (prepare or 0.0))
                # Without estimates, order by depth: the next message of every lane before the second one of any.
                later.append((0.0 if prepare is None else at - prepare - margin, depth, job))
            elif job._stage == PREPARING:
                at = max(at, self._prepared_at(job, prepare, now))
            at += process or 0.0
        return at

    def _prepared_at(self, job: Job, prepare: float | None, now: float) -> float:
        """Return the earliest time at which its prepare can be done."""
        if job._stage > PREPARING:
            return now
        begun = job._since if job in self._preparing else now
        return max(now, begun + (prepare or 0.0))

    def _estimate(self, job: Job) -> tuple[float | None, float | None]:
        """Return the estimated seconds of its prepare and process. Known ones are kept, because a job waits only briefly."""
        size, (prepare, process) = size_of(job), job._delivery._sent_seconds
        found = self._estimates.of_prepare(prepare, size), self._estimates.of_process(process, size)
        if None not in found:
            job._seconds = found
        return found


def _in_order(ahead: list[tuple[float, int, Job]]) -> list[tuple[float, int, Job]]:
    """Make the due times of a lane ascend, so that no message is due after a later one.

    The first message of a lane without a slot is not urgent. If slow prepares of later messages could begin before it, they
    could occupy all places, and no message that could run would ever be prepared.
    """
    dues = list(accumulate([due for due, _, _ in reversed(ahead)], min))
    return [(due, depth, job) for due, (_, depth, job) in zip(reversed(dues), ahead, strict=True)]


def size_of(job: Job) -> float:
    """Return the size on which the duration of its work depends."""
    if job._size is None:
        hint = job._delivery.size_hint
        job._size = float(len(job._delivery.body)) if hint is None else hint
    return job._size
