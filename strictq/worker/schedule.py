"""The scheduler: which message is prepared, started and processed when. Knows nothing of threads, tasks, queues or clocks.

A lane is a lease and the jobs of its messages, in order. Its head goes buffered → (preparing → prepared) → starting →
ready → running → settling → over; only then the next one is the head. What is to be done with the queue is collected in
`done`, `starting`, `failed` …, for the keeper to do in one transaction. Every method wants `lock` held, and the time as an
argument: seconds on any clock that runs on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from .._errors import LeaseLost
from ..delivery import Delivery, Lease
from .breaker import OPEN, Circuit
from .estimates import Estimates
from .forecast import Forecast
from .job import BUFFERED, OVER, PREPARED, PREPARING, READY, RUNNING, SETTLING, STARTING, HeldLane, Job
from .limits import Limits

AHEAD_SECONDS: Final = 0.01
"""Handlers are started (durably) so far ahead of a free slot, where they take much less than that each."""
ON_TIME_SECONDS: Final = 0.005
WAITS_KEPT: Final = 1000
USUAL_WEIGHT: Final = 0.1


class Board:
    """All lanes that a worker holds."""

    def __init__(
        self,
        limits: Limits,
        estimates: Estimates,
        job: type[Job] = Job,
        circuit: Circuit | None = None,
        propagate: Sequence[str] = (),
    ) -> None:
        self.lock = threading.Lock()
        self.limits = limits
        self.estimates = estimates
        self.circuit = circuit
        self.propagate = propagate
        """Headers that what jobs send inherits."""
        self.stopping = False
        self.lanes: dict[Lease, HeldLane] = {}
        self.selected: dict[HeldLane, None] = {}
        self.jobs = 0
        self.running: set[Job] = set()
        self.preparing: set[Job] = set()
        self.leaving: set[Job] = set()
        """Given back, while their prepare handlers are at work: no more than their ends are waited for."""
        # For the handlers.
        self.ready: deque[Job] = deque()
        self.to_prepare: deque[Job] = deque()
        # For the keeper.
        self.done: list[Job] = []
        self.again: list[Job] = []
        self.starting: list[Job] = []
        self.failed: list[tuple[Job, BaseException]] = []
        self.expired: list[HeldLane] = []
        self.prepared_count = 0
        self.prepared_bytes = 0
        self._usual_bytes = 0.0
        self.waits: deque[float] = deque(maxlen=WAITS_KEPT)
        self._waiting: deque[HeldLane] = deque()
        self._prepared_heads: deque[HeldLane] = deque()
        self._job = job
        self._forecast = Forecast(limits, estimates, self.preparing)

    # ---- coming in

    def add(self, deliveries: Iterable[Delivery], offset: float) -> None:
        """Take in what was leased. `offset`: add it to queue time in seconds to have this board's time."""
        permit = 0 if self.circuit is None else self.circuit.permit
        for d in deliveries:
            lease = d.lease
            lane = self.lanes.get(lease)
            if lane is None:
                self.lanes[lease] = lane = HeldLane(lease, lease._deadline / 1e6 + offset, lease._seconds / 1e6, self.propagate)
                self._waiting.append(lane)
            job = self._job(d, lane)
            job._permit = permit
            lane.jobs.append(job)
            self.jobs += 1

    @property
    def buffered(self) -> int:
        """Messages that are leased and not in a slot's head."""
        return self.jobs - len(self.selected)

    def growing(self) -> list[HeldLane]:
        """Lanes at work that are about to run out of messages, where no other lane waits for their slot."""
        if not self.limits.prepares or len(self.lanes) > len(self.selected):
            return []
        return [lane for lane in self.selected if len(lane.jobs) <= 2 and lane.lease._open > 0]

    @property
    def resting(self) -> bool:
        """No handler may be started: the worker stops, or its breaker is open."""
        return self.stopping or (self.circuit is not None and self.circuit.state == OPEN)

    @property
    def idle(self) -> bool:
        """Nothing is held, and nothing is to be done."""
        return not (self.jobs or self.running or self.leaving or self.done or self.again or self.failed or self.starting)

    def unstarted(self) -> list[HeldLane]:
        """Lanes that could as well be somebody else's: no slot, and no handler at work. Those to part with first come first."""
        lanes = [
            lane
            for lane in reversed(self.lanes.values())
            if not lane.selected and not any(j in self.preparing for j in lane.jobs)
        ]
        lanes.sort(key=lambda lane: lane.jobs[0]._stage == PREPARED)
        surplus = len(self.lanes) - self.limits.concurrency
        return lanes[: max(0, surplus)]

    # ---- slots

    def ahead(self) -> int:
        """How many messages may be started before a slot is free for them: what a moment's work is."""
        seconds = self.estimates.process.predict(self.estimates.process.mean_size)
        if seconds is None or seconds > AHEAD_SECONDS / 4:
            return 0
        return min(self.limits.batch, int(AHEAD_SECONDS * self.limits.concurrency / max(seconds, 1e-6)))

    def select(self, freed: int = 0) -> None:
        """Give slots to lanes whose head can start. `freed`: slots whose ack is under way."""
        if self.resting:
            return
        source = self._prepared_heads if self.limits.prepares else self._waiting
        if not source:
            return
        concurrency = self.limits.concurrency
        room = concurrency + self.ahead() + freed - len(self.selected)
        while room > 0 and source:
            lane = source.popleft()
            if not lane.alive or lane.selected or not lane.jobs:
                continue
            job = lane.jobs[0]
            if job.attempt > 1 and len(self.selected) - freed >= concurrency:
                # It may have killed a process before: never charged beside others that only wait.
                source.appendleft(lane)
                return
            lane.selected = True
            self.selected[lane] = None
            self._begin(job)
            room -= 1

    def _begin(self, job: Job) -> None:
        """It is this job's turn: start it, or let it fail as its prepare did."""
        if job._error is not None:
            job._stage = SETTLING
            self._unhold(job)
            self.failed.append((job, job._error))
        else:
            job._stage = STARTING
            self.starting.append(job)

    def _can_start(self, job: Job) -> bool:
        return job._error is None and (not self.limits.prepares or job._stage == PREPARED)

    # ---- what the keeper does in one transaction

    def take_work(self) -> tuple[list[tuple[Job, Job | None]], list[Job]]:
        """Acks, each with the job that starts with it, and jobs that start."""
        pairs: list[tuple[Job, Job | None]] = []
        freed = 0
        if self.again:
            pairs += [(job, None) for job in self.again if job._lane.alive]
            self.again = []
        if self.done:
            done, self.done = self.done, []
            for job in done:
                if not job._lane.alive:
                    continue
                jobs = job._lane.jobs
                after = None
                if len(jobs) > 1:
                    if not self.resting and self._can_start(jobs[1]):
                        after = jobs[1]
                        after._stage = STARTING
                else:
                    freed += 1
                pairs.append((job, after))
        self.select(freed)
        starting, self.starting = self.starting, []
        return pairs, [job for job in starting if job._lane.alive]

    def settled(self, pairs: Iterable[tuple[Job, Job | None]], starting: Iterable[Job], now: float) -> None:
        """These acks and starts are committed."""
        ready = self.ready
        for job, after in pairs:
            self._pop(job, now)
            if after is not None:
                after._stage = READY
                ready.append(after)
            else:
                self._go_on(job._lane)
        for job in starting:
            job._stage = READY
            ready.append(job)

    def committed(self, job: Job, now: float) -> None:
        """This one job was acked, or rejected, and its lane goes on."""
        if job._lane.alive:
            self._pop(job, now)
            self._go_on(job._lane)

    def _pop(self, job: Job, now: float) -> None:
        lane = job._lane
        head = lane.jobs.popleft()
        assert head is job
        job._stage = OVER
        self.jobs -= 1
        lane.free_at = now
        if lane.jobs and self.limits.prepares:
            self._measure(lane.jobs[0], now)
        if not lane.jobs:
            self.drop(lane)

    def _go_on(self, lane: HeldLane) -> None:
        if lane.jobs and lane.alive and not self.resting:
            head = lane.jobs[0]
            if not self.limits.prepares or head._stage == PREPARED:
                self._begin(head)

    def refused(self, job: Job, after: Job | None, *, ack: bool) -> None:
        """An ack or a start failed for now: the keeper will try again."""
        if after is not None:
            after._stage = PREPARED if self.limits.prepares else BUFFERED
        if ack:
            self.again.append(job)
        else:
            self.starting.append(job)

    def drop(self, lane: HeldLane) -> list[Job]:
        """This lane is not ours any more, or empty. Returns the jobs whose handlers are at work on it."""
        if not lane.alive:
            return []
        lane.alive = False
        self.lanes.pop(lane.lease, None)
        if lane.selected:
            self.selected.pop(lane, None)
        self.jobs -= len(lane.jobs)
        working = []
        for job in lane.jobs:
            self._let_go(job)
            if job in self.running or job in self.preparing:
                working.append(job)
                self.running.discard(job)
                self.preparing.discard(job)
            if job._stage != SETTLING:
                job._cancelled = True
        lane.jobs.clear()
        return working

    # ---- process

    def take(self, now: float) -> Job | None:
        """The next job for a free process handler."""
        ready = self.ready
        while ready and not self.resting:
            job = ready.popleft()
            lane = job._lane
            if not lane.alive:
                continue
            if lane.until <= now:
                self.expired.append(lane)
                continue
            if self.limits.prepares:
                self._unhold(job)
                self.waits.append(now - job._since)
            self._run(job, now)
            return job
        return None

    def _run(self, job: Job, now: float) -> None:
        job._stage = RUNNING
        job._since = now
        timeout = self.limits.process_timeout
        if callable(timeout):
            timeout = timeout(job)
        job.deadline = None if timeout is None else now + timeout
        self.running.add(job)

    def processed(self, job: Job) -> bool:
        """Its handler came back. False: too late, it was given up."""
        if job not in self.running:
            return False
        self.running.discard(job)
        job._stage = SETTLING
        return True

    # ---- prepare

    def plan(self, now: float) -> float | None:
        """Let those prepare whose time has come. Returns when the next one's comes, if any."""
        if not self.limits.prepares or self.resting:
            return None
        waiting = self._waiting
        while waiting and (not waiting[0].alive or waiting[0].selected):
            waiting.popleft()
        urgent, later = self._forecast.candidates(self.selected, waiting, now)
        for job in urgent:
            self._start_prepare(job, now, 0.0)
        soonest = None
        for due, _, job in sorted(later, key=lambda c: c[:2]):
            if due > now:
                soonest = due
                break
            if self.prepared_count >= self.limits.prepared_max or self.prepared_bytes >= self.limits.prepared_bytes_max:
                break  # a use makes room, and plans again
            self._start_prepare(job, now, due)
        return soonest

    def _start_prepare(self, job: Job, now: float, due: float) -> None:
        job._stage = PREPARING
        self.prepared_count += 1
        # As if it were there already, and as large as most: else many would be started before the first one is weighed.
        job._weight = int(self._usual_bytes)
        self.prepared_bytes += job._weight
        # Only a start that was chosen says anything about the margin: not one that came late for other reasons.
        job._due = due if 0.0 <= now - due <= ON_TIME_SECONDS else 0.0
        job._margin = self.estimates.margin.seconds
        self.to_prepare.append(job)

    def take_prepare(self, now: float) -> Job | None:
        """The next job for a free prepare handler."""
        while self.to_prepare and not self.resting:
            job = self.to_prepare.popleft()
            if job._lane.alive and job._stage == PREPARING:
                job._since = now
                timeout = self.limits.prepare_timeout
                job.deadline = None if timeout is None else now + timeout
                self.preparing.add(job)
                return job
        return None

    def prepared(self, job: Job, result: Any, error: BaseException | None, weight: int, now: float) -> bool:
        """Its prepare came back. False: too late, it was given up."""
        self.leaving.discard(job)
        if job not in self.preparing:
            return False
        self.preparing.discard(job)
        job._since, job._error, job._stage, job.deadline = now, error, PREPARED, None
        self.prepared_bytes += weight - job._weight
        job._weight = weight
        if error is None:
            job.prepared = result
            self._usual_bytes += USUAL_WEIGHT * (weight - self._usual_bytes) if self._usual_bytes else weight
        lane = job._lane
        if lane.jobs[0] is job:
            if not lane.selected:
                self._prepared_heads.append(lane)
            elif not self.resting:
                self._measure(job, lane.free_at)
                self._begin(job)
        return True

    def _unhold(self, job: Job) -> None:
        """What it prepared is used, or thrown away."""
        self.prepared_count -= 1
        self.prepared_bytes -= job._weight
        job._weight = 0

    def _let_go(self, job: Job) -> None:
        if self.limits.prepares and PREPARING <= job._stage <= READY:
            self._unhold(job)

    def _measure(self, job: Job, free_at: float) -> None:
        """How much earlier its prepare should have begun (negative: later) for its result to be just in time."""
        if job._due and job._stage in (PREPARED, STARTING) and free_at:
            self.estimates.margin.learn(job._margin + job._since - free_at)

    # ---- deadlines

    def overdue(self, now: float) -> list[Job]:
        """Jobs whose handlers have had their time."""
        late = [j for j in self.running if j.deadline is not None and j.deadline <= now]
        return late + [j for s in (self.preparing, self.leaving) for j in s if j.deadline is not None and j.deadline <= now]

    def next_deadline(self) -> float | None:
        """When the next handler has had its time."""
        at_work = (self.running, self.preparing, self.leaving)
        return min((j.deadline for s in at_work for j in s if j.deadline is not None), default=None)

    def give_up(self, job: Job, error: BaseException) -> None:
        """Wait no longer for its handler."""
        job._cancelled = True
        if job in self.running:
            self.running.discard(job)
            job._stage = SETTLING
            self.failed.append((job, error))
        elif job in self.preparing:
            self.prepared(job, None, error, 0, job._since)
        self.leaving.discard(job)

    def worn(self, now: float) -> list[HeldLane]:
        """Lanes with half of their lease behind them."""
        return [lane for lane in self.lanes.values() if lane.until - now < lane.length / 2]

    # ---- the end, and an open breaker

    def stop(self) -> list[Job]:
        """Start nothing more. Returns what is to be given back."""
        self.stopping = True
        return self.give_back()

    def give_back(self) -> list[Job]:
        """Let go of all that no handler is at work on. Returns, for each lane, the first job that goes, with all behind it."""
        back: list[Job] = []
        for lane in list(self.lanes.values()):
            head = lane.jobs[0]
            if head._stage == PREPARED and head._error is not None:
                self._begin(head)  # its prepare failed, and it is first: it has failed, now as well as in its turn
            kept = next((n for n, job in enumerate(lane.jobs) if job._stage not in (RUNNING, SETTLING)), len(lane.jobs))
            if not kept:
                back.append(head)
                self.leaving.update(self.drop(lane))
            elif kept < len(lane.jobs):
                back.append(lane.jobs[kept])
                self._cut(lane, kept)
        self.starting = []
        self.ready.clear()
        return back

    def _cut(self, lane: HeldLane, kept: int) -> None:
        while len(lane.jobs) > kept:
            job = lane.jobs.pop()
            self.jobs -= 1
            self._let_go(job)
            if job in self.preparing:
                self.preparing.discard(job)
                self.leaving.add(job)
            job._cancelled = True
            job._stage = OVER  # it may still stand among those to be prepared


def lost(job: Job) -> LeaseLost:
    """What a cancelled job is told."""
    return LeaseLost(job.key, job.seq, job.token)
