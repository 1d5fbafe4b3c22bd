"""The scheduler for batch handlers, which get several messages in one call.

A group takes the first messages of waiting lanes, several of a lane in order, up to `batch_max`. Its messages are started
together, run together, and are settled lane by lane. A lane has messages in one group at a time, so its later messages start
after these are settled. A retried message is a group by itself, so that a message that fails the call cannot fail its
neighbours again. So is a suspect, which runs alone in the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

from .._values.tenants import TenantRules
from .breaker import CLOSED
from .job import BUFFERED, READY, STARTING, HeldLane, Job, JobBatch
from .limits import Limits
from .schedule import Board


class BatchBoard(Board):
    """The lanes held by a worker with a batch handler. See Board.

    Attributes:
        groups: the groups that are formed and not settled.
        ready_groups: the groups that a free handler can take.
        wait: seconds that an incomplete batch waits for more messages.
        finished: the groups whose handlers returned. The error of each job is in its `_failure`.
    """

    def __init__(self, limits: Limits, *rest: Any, **options: Any) -> None:
        super().__init__(limits, *rest, **options)
        self.groups: set[JobBatch] = set()
        self.ready_groups: deque[JobBatch] = deque()
        self.finished: list[JobBatch] = []
        self.wait = limits.batch_wait
        self._since: float | None = None

    @property
    def used(self) -> int:
        return len(self.groups)

    @property
    def buffered(self) -> int:
        return self.jobs - sum(len(group.live) for group in self.groups)

    # ---- forming groups

    def plan(self, now: float) -> float | None:
        """Form groups for free handlers. Return the time at which an incomplete batch has waited long enough."""
        self.groups = {group for group in self.groups if group.live or (group.taken and not group.given_up)}
        if self.resting or self.paused:
            self.select()
            return None
        with self.share.pool.lock:
            due = self._form(now)
            self.share.wants = due is None and bool(self._waiting)
        return due

    def _form(self, now: float) -> float | None:
        while self.share.room() > 0:
            jobs = self._first_again() or self._next(self.limits.batch_max)
            if not jobs:
                self._since = None
                return None
            if self._since is None:
                self._since = now
            due = self._since + self.wait
            if len(jobs) < self.limits.batch_max and jobs[0].attempt == 1 and now < due and not self._probing:
                return due
            self._since = None
            self._start(jobs)
        return None

    def _begin_suspect(self, job: Job) -> None:
        self._start([job])

    def runs_several(self, ended: int) -> bool:  # noqa: ARG002
        return sum(len(group.jobs) for group in self.groups) > 1

    @property
    def _probing(self) -> bool:
        return self.circuits is not None and self.circuits.worker.state != CLOSED

    def take_turns(self, rules: TenantRules) -> None:
        """Keep the order in which lanes come. Messages of all tenants share a batch."""

    def _unstarted(self) -> Iterator[HeldLane]:
        """Yield the waiting lanes in order, and drop the others from the list."""
        waiting = cast("deque[HeldLane]", self._waiting)
        for _ in range(len(waiting)):
            lane = waiting.popleft()
            if lane.alive and not lane.selected and lane.jobs:
                waiting.append(lane)
        yield from tuple(waiting)

    def _first_again(self) -> list[Job]:
        """Return the first waiting message that is retried, alone."""
        return next(([lane.jobs[0]] for lane in self._unstarted() if lane.jobs[0].attempt > 1), [])

    def _next(self, most: int) -> list[Job]:
        jobs: list[Job] = []
        for lane in self._unstarted():
            for job in islice(lane.jobs, self.limits.batch_per_key or None):
                if len(jobs) == most:
                    return jobs
                if job.attempt > 1:
                    break
                jobs.append(job)
        return jobs

    def _start(self, jobs: list[Job]) -> None:
        group = JobBatch(jobs)
        self.groups.add(group)
        self.share.charge(len(jobs))
        last = {job._lane: job for job in jobs}
        for job in jobs:
            job._stage, job._group = STARTING, group
        for lane in last:
            lane.selected = True
            self.selected[lane] = None
        # Removed at once. Otherwise a lane that returns to the list before the next pass would be in it twice.
        self._waiting = deque(lane for lane in self._waiting if not lane.selected)
        group.starting = set(last)
        # Starting a message also charges those before it in its lease.
        self.starting += last.values()

    def growing(self) -> list[HeldLane]:
        """Return the lanes that wait for a batch to fill. Messages that arrive in them meanwhile belong to it."""
        if self._since is None or self.resting:
            return []
        return [lane for lane in self._unstarted() if lane.lease._open > 0]

    # ---- the keeper's transactions

    def take_work(self, now: float = 0.0) -> tuple[list[tuple[Job, Job | None]], list[Job]]:  # noqa: ARG002
        starting, self.starting = self.starting, []
        return [], [job for job in starting if job._lane.alive]

    def settled(self, pairs: Iterable[tuple[Job, Job | None]], starting: Iterable[Job], now: float) -> None:  # noqa: ARG002
        assert not pairs
        for job in starting:
            self._started(job._group, job._lane)

    def _started(self, group: JobBatch | None, lane: HeldLane) -> None:
        if group is None or lane not in group.starting:
            return
        group.starting.discard(lane)
        if group.starting:
            return
        for job in group.live:
            job._stage = READY
        if group.live:
            self.ready_groups.append(group)

    def acked(self, jobs: Iterable[Job], now: float) -> None:
        """Record acks. The jobs are the first ones of their lanes, in order."""
        lanes: dict[HeldLane, None] = {}
        for job in jobs:
            if job._lane.alive:
                self._pop(job, now)
                lanes[job._lane] = None
        for lane in lanes:
            self._go_on(lane)

    def _go_on(self, lane: HeldLane) -> None:
        if lane.alive and lane.jobs and lane.jobs[0]._stage == BUFFERED and lane.selected:
            lane.selected = False
            self.selected.pop(lane, None)
            self._waiting.append(lane)

    def drop(self, lane: HeldLane) -> list[Job]:
        groups = {job._group for job in lane.jobs}
        working = super().drop(lane)
        for group in groups:
            self._started(group, lane)
        return working

    # ---- process

    def take_group(self, now: float) -> JobBatch | None:
        """Return the next group for a free handler."""
        while self.ready_groups and not self.resting:
            group = self.ready_groups.popleft()
            for lane in {job._lane for job in group.live if job._lane.until <= now}:
                self.expired.append(lane)
            group.jobs = [job for job in group.live if job._lane.until > now]
            if not group.jobs:
                continue
            group.taken = True
            for job in group.jobs:
                self._run(job, now)
            return group
        return None

    def give_back(self) -> list[Job]:
        back = super().give_back()
        self.ready_groups.clear()
        self._since = None
        return back

    @property
    def idle(self) -> bool:
        return super().idle and not self.finished
