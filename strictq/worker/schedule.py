"""The scheduler: decides which message is prepared, started and processed next. It has no threads, tasks, queues or clocks.

A lane is a lease and the jobs of its messages, in order. Its head goes buffered → (preparing → prepared) → starting →
ready → running → settling → over; only then the next one is the head. The pending operations on the queue are collected in
`done`, `starting`, `failed` …, for the keeper to commit in one transaction. Every method requires `lock` to be held, and takes
the time as an argument: seconds on any monotonic clock.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from .._values.tenants import TenantRules
from ..delivery import Delivery, Lease
from .breaker import OPEN, Circuits
from .estimates import Estimates
from .fair_lanes import FairLanes
from .forecast import Forecast
from .job import BUFFERED, OVER, PREPARED, PREPARING, READY, RUNNING, SETTLING, STARTING, HeldLane, Job, JobSource
from .limits import Limits
from .slot_pool import SlotPool
from .suspects import Turns

AHEAD_SECONDS: Final = 0.01
"""Handlers are started (durably) this long ahead of a free slot, if each takes much less time than that."""
ON_TIME_SECONDS: Final = 0.005
FORECAST_SECONDS: Final = 0.005
"""A forecast is used this long. Handlers that are much quicker free a slot every few microseconds."""
WAITS_KEPT: Final = 1000
USUAL_WEIGHT: Final = 0.1


class Board:
    """The lanes that a worker holds."""

    def __init__(
        self,
        limits: Limits,
        estimates: Estimates,
        job: type[Job] = Job,
        circuits: Circuits | None = None,
        propagate: Sequence[str] = (),
        turns: Turns | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self.limits = limits
        self.share = SlotPool(limits.concurrency).share(self)
        self.estimates = estimates
        self.circuits = circuits
        self.propagate = propagate
        """Names of the headers that sends of jobs inherit."""
        self.source: JobSource | None = None
        """Where the messages come from. Set before the first one is added."""
        self.unconfirmed_max = 0
        """Number of unconfirmed acks with which a lane waits: see `hand_over`. 0: acks are confirmed at once."""
        self.unconfirmed = 0
        self._confirming: dict[HeldLane, None] = {}
        """The lanes that wait for the confirmation of their acks, and have more messages."""
        self.stopping = False
        self.lanes: dict[Lease, HeldLane] = {}
        self.fresh: list[HeldLane] = []
        """The lanes that got messages while a group's breaker was open, and were not examined yet."""
        self.selected: dict[HeldLane, None] = {}
        self.jobs = 0
        self.running: set[Job] = set()
        self.preparing: set[Job] = set()
        self.leaving: set[Job] = set()
        """Released jobs whose prepare handlers are still running. The worker only waits for their end."""
        # Taken by the handlers.
        self.ready: deque[Job] = deque()
        self.to_prepare: deque[Job] = deque()
        # Taken by the keeper.
        self.done: list[Job] = []
        self.again: list[Job] = []
        self.starting: list[Job] = []
        self.failed: list[tuple[Job, BaseException]] = []
        self.expired: list[HeldLane] = []
        self.prepared_count = 0
        self.prepared_bytes = 0
        self._usual_bytes = 0.0
        self.waits: deque[float] = deque(maxlen=WAITS_KEPT)
        self.suspects: deque[HeldLane] = deque()
        """Lanes whose message runs alone in the process, and before all others."""
        self._turns = Turns() if turns is None else turns
        self._turn: HeldLane | None = None
        """The suspect whose turn it is."""
        self._held_back = False
        """Whether the last `select` may have held back what can run now."""
        self._waiting: deque[HeldLane] | FairLanes = deque()
        self._prepared_heads: deque[HeldLane] = deque()
        self.limit: Callable[[Job], tuple[str, int] | None] | None = None
        """Returns a job's type, and how many of it may run at once; None: as many as there are slots."""
        self._places: Counter[str] = Counter()
        """How many messages of each limited type are started, or prepared to be the next of their lanes."""
        self._passed: dict[str, deque[HeldLane]] = {}
        """By type, the lanes that wait for its handlers. They have no slot, so that the lanes behind them run."""
        self.passed_jobs = self.passed_lanes = 0
        self._job = job
        self._forecast = Forecast(limits, estimates, self.preparing)
        self._forecast_at = -math.inf
        self._overdue: deque[tuple[float, int, Job]] = deque()
        """The overdue prepares of the last forecast that found no room, by due time."""

    def share_slots(self, pool: SlotPool, weight: float) -> None:
        """Share the slots with the boards of other queues. Called before the first message is added."""
        self.share = pool.share(self, weight)

    @property
    def used(self) -> int:
        """The number of slots in use."""
        return len(self.selected)

    def take_turns(self, rules: TenantRules) -> None:
        """Let the tenants of keys take turns. Called before the first message is added."""
        self._waiting = FairLanes(rules)

    # ---- adding messages

    def add(self, deliveries: Iterable[Delivery], offset: float) -> None:
        """Add leased messages. `offset` is this board's time minus queue time, seconds."""
        circuits = self.circuits
        permit = 0 if circuits is None else circuits.permit
        is_open = circuits is not None and bool(circuits.open)
        new, lanes = self._job, self.lanes
        lease = lane = None
        for n, d in enumerate(deliveries, self.jobs + 1):
            if d.lease is not lease:
                lease = d.lease
                lane = lanes.get(lease)
                if lane is None:
                    until, length = lease._deadline / 1e6 + offset, lease._seconds / 1e6
                    lanes[lease] = lane = HeldLane(lease, until, length, self.propagate, self.source)
                    (self.suspects if d._is_suspect else self._waiting).append(lane)
                if is_open:
                    self.fresh.append(lane)
            assert lane is not None
            job = new(d, lane)
            if permit:
                job._permit = permit
            lane.jobs.append(job)
            self.jobs = n

    @property
    def buffered(self) -> int:
        """Number of leased messages that are not the head of a slot, and do not wait for handlers of their type."""
        return self.jobs - len(self.selected) - self.passed_jobs

    @property
    def open_lanes(self) -> int:
        """Number of lanes that run, or wait for a slot."""
        return len(self.lanes) - self.passed_lanes

    def growing(self) -> list[HeldLane]:
        """Return the running lanes that are about to run out of messages, if no other lane waits for their slot."""
        if not self.limits.prepares or len(self.lanes) > len(self.selected):
            return []
        return [lane for lane in self.selected if len(lane.jobs) <= 2 and lane.lease._open > 0]

    @property
    def slots(self) -> int:
        """The number of lanes that can run at once."""
        return 1 if self.suspects else self.limits.concurrency

    @property
    def paused(self) -> bool:
        """Whether nothing but a suspect may start in this process."""
        return bool(self.suspects) or self._turns.owner is not None

    @property
    def still(self) -> bool:
        """Whether no handler is running or about to run."""
        return not (self.selected or self.preparing or self.leaving)

    def runs_several(self, ended: int) -> bool:
        """Return whether more than one message may be in a handler from now on.

        Args:
            ended: the number of selected lanes whose handlers have returned.
        """
        return self.limits.prepares or len(self.selected) - ended > 1

    @property
    def resting(self) -> bool:
        """Whether no handler may be started: the worker stops, or its own breaker is open."""
        return self.stopping or (self.circuits is not None and self.circuits.worker.state == OPEN)

    def _is_blocked(self, job: Job) -> bool:
        """Return whether a job may not start, because its group's breaker is open. The keeper gives it back."""
        return self.circuits is not None and bool(self.circuits.open) and self.circuits.blocks(job)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is held, and nothing is pending but the confirmation of acks."""
        return not (self.jobs or self.running or self.leaving or self.done or self.again or self.failed or self.starting)

    @property
    def idle(self) -> bool:
        """Whether nothing is held and nothing is pending."""
        return self.at_rest and not self.unconfirmed

    def unstarted(self, *, all: bool = False) -> list[HeldLane]:
        """Return the lanes to release to other consumers first: without a slot, and without a running handler.

        Args:
            all: also those for which a slot is free.
        """
        lanes = [
            lane
            for lane in reversed(self.lanes.values())
            if not lane.selected and lane.jobs and not any(j in self.preparing for j in lane.jobs)
        ]
        lanes.sort(key=lambda lane: (not lane.passed, lane.jobs[0]._stage == PREPARED))
        surplus = max(len(self.lanes) - self.slots, self.passed_lanes)
        return lanes if all else lanes[: max(0, surplus)]

    # ---- slots

    def ahead(self) -> int:
        """Return how many messages may be started before they have a free slot: AHEAD_SECONDS of work."""
        seconds = self.estimates.process.predict(self.estimates.process.mean_size)
        if seconds is None or seconds > AHEAD_SECONDS / 4:
            return 0
        return min(self.limits.batch, int(AHEAD_SECONDS * self.limits.concurrency / max(seconds, 1e-6)))

    def select(self, freed: int = 0) -> None:
        """Assign slots to lanes whose head can start. `freed` is the number of slots whose ack is pending."""
        share = self.share
        if self.resting:
            share.wants = False
            return
        self._held_back = self.paused
        if self._held_back:
            share.wants = False
            self._select_suspect()
            return
        source = self._prepared_heads if self.limits.prepares else self._waiting
        if not source:
            share.wants = False
            return
        ahead = self.ahead() + freed
        with share.pool.lock:
            room = share.room(ahead)
            while room > 0 and source:
                lane = source.popleft()
                if not lane.alive or lane.selected or lane.passed or not lane.jobs or self._waits(lane):
                    continue
                lane.selected = True
                self.selected[lane] = None
                self._begin(lane.jobs[0])
                room -= lane.selected
            share.wants = bool(source)

    def _select_suspect(self) -> None:
        """Give the next suspect its turn, once nothing runs in this process. Its prepare is part of its turn."""
        for lane in [lane for lane in self.selected if lane is not self._turn and lane.jobs[0]._stage < STARTING]:
            self._deselect(lane)
        if self._turn is None and self.suspects and self.still and self._turns.begin(self):
            self._turn = lane = self.suspects.popleft()
            lane.selected = True
            self.selected[lane] = None
            self._begin_suspect(lane.jobs[0])

    def _begin_suspect(self, job: Job) -> None:
        if self._can_start(job):
            self._begin(job)

    def _deselect(self, lane: HeldLane) -> None:
        """Return a lane whose head has not started to those that wait, as the first one."""
        lane.selected = False
        self.selected.pop(lane, None)
        if lane not in self._waiting:
            self._waiting.appendleft(lane)
        if lane.jobs[0]._stage == PREPARED and lane not in self._prepared_heads:
            self._prepared_heads.appendleft(lane)

    def _begin(self, job: Job) -> None:
        """Start a job whose turn it is, fail it if its prepare failed, or pass over its lane if its type is at its limit."""
        if job._error is not None:
            job._stage = SETTLING
            self._unhold(job)
            self.failed.append((job, job._error))
        elif self._take_place(job):
            job._stage = STARTING
            self.starting.append(job)

    # ---- limits of types

    def _take_place(self, job: Job) -> bool:
        """Count a job towards the limit of its type. If that is reached, pass over its lane and return False."""
        if self.limit is None or job._place is not None or self.paused:
            return True  # a suspect runs alone anyway
        found = self.limit(job)
        if found is None:
            return True
        name, most = found
        if self._places[name] < most:
            self._places[name] += 1
            job._place = name
            return True
        lane = job._lane
        lane.selected = False
        self.selected.pop(lane, None)
        if self.limits.prepares and lane in self._waiting:  # it is near the front
            self._waiting.remove(lane)
        lane.passed = len(lane.jobs)
        self.passed_jobs += lane.passed
        self.passed_lanes += 1
        self._passed.setdefault(name, deque()).append(lane)
        return False

    def _free_place(self, job: Job) -> None:
        """End that, and list the lane again that waits longest for a handler of this type."""
        name, job._place = job._place, None
        if name is None:
            return
        self._places[name] -= 1
        lanes = self._passed.get(name, ())
        while lanes:
            lane = lanes.popleft()
            if lane.passed:
                self._unpass(lane)
                self._list_again(lane)
                return

    def _unpass(self, lane: HeldLane) -> None:
        self.passed_jobs -= lane.passed
        self.passed_lanes -= 1
        lane.passed = 0

    def _list_again(self, lane: HeldLane) -> None:
        prepared = self.limits.prepares and lane.jobs[0]._stage == PREPARED
        (self._prepared_heads if prepared else self._waiting).appendleft(lane)

    def _follows(self, job: Job, following: Job) -> bool:
        """Return whether the next job of a lane starts with the ack of this one. It may get this one's place."""
        if self.limit is None:
            return True
        found = self.limit(following)
        if found is not None and found[0] == job._place:
            following._place, job._place = job._place, None
            return True
        if found is None or self._places[found[0]] < found[1]:
            return self._take_place(following)
        return False  # its lane is passed over once this one is acked

    def surplus(self, most: int) -> list[Job]:
        """Drop the lanes that were passed over last, until they have no more than so many messages. Return their first ones."""
        back: list[Job] = []
        for lanes in self._passed.values():
            while self.passed_jobs > most and lanes:
                lane = lanes.pop()
                if lane.passed:
                    back.append(lane.jobs[0])
                    self.drop(lane)
        return back

    def _can_start(self, job: Job) -> bool:
        return job._error is None and (not self.limits.prepares or job._stage == PREPARED)

    # ---- the keeper's transactions

    def take_work(self, now: float = 0.0) -> tuple[list[tuple[Job, Job | None]], list[Job]]:
        """Return the acks, each with the job that starts with it, and the jobs that start."""
        pairs: list[tuple[Job, Job | None]] = []
        freed = 0
        if self.again:
            pairs += [(job, None) for job in self.again if job._lane.alive or self.unconfirmed_max]
            self.again = []
        if self.done:
            done, self.done = self.done, []
            for job in done:
                if not job._lane.alive:
                    continue
                if self.unconfirmed_max:
                    self.hand_over(job, now)
                    pairs.append((job, None))
                    continue
                jobs = job._lane.jobs
                after = None
                if len(jobs) > 1:
                    if (
                        not self.share.yields
                        and not self.resting
                        and not self.paused
                        and self._can_start(jobs[1])
                        and self._follows(job, jobs[1])
                    ):
                        after = jobs[1]
                        after._stage = STARTING
                else:
                    freed += 1
                pairs.append((job, after))
        self.select(freed)
        starting, self.starting = self.starting, []
        starting = [job for job in starting if job._lane.alive]
        self.share.charge(len(starting) + sum(after is not None for _, after in pairs))
        return pairs, starting

    def settled(self, pairs: Iterable[tuple[Job, Job | None]], starting: Iterable[Job], now: float) -> None:
        """Record the committed acks and starts."""
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
        if self._held_back or self.passed_jobs:
            self.select()

    def committed(self, job: Job, now: float) -> None:
        """Record that one job was acked or rejected, and continue its lane."""
        if job._lane.alive:
            self._pop(job, now)
            self._go_on(job._lane)
            if self.passed_jobs:
                self.select()

    def hand_over(self, job: Job, now: float) -> None:
        """Let a lane go on while the source confirms the ack of its first message, or the fate of a rejected one.

        A lane with `unconfirmed_max` of them leaves its slot and waits, so that another lane can run meanwhile. The messages
        behind can be prepared.
        """
        lane = job._lane
        lane.unconfirmed += 1
        self.unconfirmed += 1
        self._pop(job, now)
        if not self._waits(lane) and lane.jobs:
            self._go_on(lane)
            return
        lane.selected = False
        self.selected.pop(lane, None)
        if lane.jobs:
            self._confirming[lane] = None

    def confirmed(self, lane: HeldLane, now: float) -> None:
        """Record the confirmation of an ack, and list the lane again if it waited for it."""
        waited = lane in self._confirming
        self._confirming.pop(lane, None)
        lane.unconfirmed -= 1
        self.unconfirmed -= 1
        if not lane.alive or lane.selected:
            return
        if not lane.jobs:
            if not lane.unconfirmed:
                self.drop(lane)
        elif waited:
            lane.free_at = now
            self._deselect(lane)

    def _waits(self, lane: HeldLane) -> bool:
        """Return whether a lane waits for the confirmation of its acks."""
        return self.unconfirmed_max > 0 and lane.unconfirmed >= self.unconfirmed_max

    def lose_from(self, job: Job) -> list[Job]:
        """Drop a message that is lost, and the later ones of its lane. Return the jobs whose handlers are running."""
        lane = job._lane
        if not lane.alive or job not in lane.jobs:
            return []
        kept = lane.jobs.index(job)
        if not kept:
            return self.drop(lane)
        self._cut(lane, kept)
        return []

    def _pop(self, job: Job, now: float) -> None:
        lane = job._lane
        head = lane.jobs.popleft()
        assert head is job
        job._stage = OVER
        self._free_place(job)
        self.jobs -= 1
        lane.free_at = now
        if lane.jobs and self.limits.prepares:
            self._measure(lane.jobs[0], now)
        if not lane.jobs and not lane.unconfirmed:
            self.drop(lane)

    def _go_on(self, lane: HeldLane) -> None:
        if lane.jobs and lane.alive and not self.resting:
            if self.paused:
                self._deselect(lane)
                if lane is self._turn:  # an operator's release let its lease grow
                    self._end_turn(lane)
                return
            head = lane.jobs[0]
            if self.share.yields:
                self._deselect(lane)
                self.share.wants = True
            elif not self.limits.prepares or head._stage == PREPARED:
                self._begin(head)

    def refused(self, job: Job, after: Job | None, *, ack: bool) -> None:
        """Keep an ack or a start that failed for now, so that the keeper tries again."""
        if after is not None:
            after._stage = PREPARED if self.limits.prepares else BUFFERED
            self._free_place(after)
        if ack:
            self.again.append(job)
        else:
            self.starting.append(job)

    def drop(self, lane: HeldLane) -> list[Job]:
        """Drop a lane that is lost or empty. Return its jobs whose handlers are running."""
        if not lane.alive:
            return []
        lane.alive = False
        self.lanes.pop(lane.lease, None)
        if lane.selected:
            self.selected.pop(lane, None)
        if lane.unconfirmed:
            self._confirming.pop(lane, None)
        if lane.passed:
            self._unpass(lane)
        if self.paused:
            self._end_turn(lane)
        self.jobs -= len(lane.jobs)
        working = []
        for job in lane.jobs:
            self._let_go(job)
            self._free_place(job)
            if job in self.running or job in self.preparing:
                working.append(job)
                self.running.discard(job)
                self.preparing.discard(job)
            if job._stage != SETTLING:
                job._cancelled = True
        lane.jobs.clear()
        return working

    def _end_turn(self, lane: HeldLane) -> None:
        """End the turn of a lane whose suspect is done, or which is dropped, or its wait for one."""
        if lane is self._turn:
            self._turn = None
        elif lane in self.suspects:
            self.suspects.remove(lane)
        if self._turn is None and not self.suspects:
            self._turns.end(self)

    # ---- process

    def take(self, now: float) -> Job | None:
        """Return the next job for a free process handler."""
        ready = self.ready
        while ready and not self.resting:
            job = ready.popleft()
            lane = job._lane
            if not lane.alive or self._is_blocked(job):
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
        job._ends_at = None if timeout is None else now + timeout
        self.running.add(job)

    def processed(self, job: Job) -> bool:
        """Record that a process handler returned. Return False if the job was abandoned before."""
        if job not in self.running:
            return False
        self.running.discard(job)
        job._stage = SETTLING
        return True

    # ---- prepare

    def plan(self, now: float) -> float | None:
        """Start the prepares that are due. Return the time of the next one, or None."""
        if not self.limits.prepares or self.resting:
            return None
        if self.paused:
            if self._turn is not None and (head := self._turn.jobs[0])._stage == BUFFERED:
                self._start_prepare(head, now, 0.0)
            return None
        waiting = self._waiting
        while waiting and (not waiting[0].alive or waiting[0].selected):
            waiting.popleft()
        for lane in list(self.selected):
            if lane.jobs[0]._stage == BUFFERED:
                self._start_prepare(lane.jobs[0], now, 0.0)
        if now - self._forecast_at > FORECAST_SECONDS:
            self._overdue.clear()
        self._start_overdue(now)
        if not self._has_room:
            return None  # a use makes room, and triggers the next plan
        passed = self.passed_lanes
        later = self._forecast.candidates(self.selected, waiting, now, self._confirming)
        late = bisect_right(later, now, key=itemgetter(0))
        self._overdue.extend(later[:late])
        self._forecast_at = now
        self._start_overdue(now)
        if self.passed_lanes > passed:
            return now  # the lanes behind them were no candidates yet
        return later[late][0] if late < len(later) and not self._overdue else None

    @property
    def _has_room(self) -> bool:
        """Whether another prepare may begin."""
        ahead = len(self._confirming) if self.limits.prepares_more else 0
        return self.prepared_count < self.limits.prepared_max + ahead and self.prepared_bytes < self.limits.prepared_bytes_max

    def _start_overdue(self, now: float) -> None:
        """Start the overdue prepares of the last forecast while there is room."""
        overdue = self._overdue
        while overdue and self._has_room:
            due, _, job = overdue.popleft()
            if job._lane.alive and not job._lane.passed and job._stage == BUFFERED:
                self._start_prepare(job, now, due)

    def _start_prepare(self, job: Job, now: float, due: float) -> None:
        if job._lane.jobs[0] is job and not self._take_place(job):
            return  # results that wait for a handler of this type could leave no room for others
        job._stage = PREPARING
        self.prepared_count += 1
        # Reserve the usual size now. Otherwise many prepares would start before the first result is measured.
        job._weight = int(self._usual_bytes)
        self.prepared_bytes += job._weight
        # Only a start that was on time says anything about the margin. A late one was late for other reasons.
        job._due = due if 0.0 <= now - due <= ON_TIME_SECONDS else 0.0
        job._margin = self.estimates.margin.seconds
        self.to_prepare.append(job)

    def take_prepare(self, now: float) -> Job | None:
        """Return the next job for a free prepare handler."""
        while self.to_prepare and not self.resting:
            job = self.to_prepare.popleft()
            if job._lane.alive and job._stage == PREPARING and not self._is_blocked(job):
                if self.paused and job._lane is not self._turn:
                    self._unhold(job)
                    job._stage = BUFFERED
                    continue
                job._since = now
                timeout = self.limits.prepare_timeout
                job._ends_at = None if timeout is None else now + timeout
                self.preparing.add(job)
                return job
        return None

    def prepared(self, job: Job, result: Any, error: BaseException | None, weight: int, now: float) -> bool:
        """Record the result of a prepare handler. Return False if the job was abandoned before."""
        self.leaving.discard(job)
        if job not in self.preparing:
            return False
        self.preparing.discard(job)
        job._since, job._error, job._stage, job._ends_at = now, error, PREPARED, None
        self.prepared_bytes += weight - job._weight
        job._weight = weight
        if error is None:
            job.prepared = result
            self._usual_bytes += USUAL_WEIGHT * (weight - self._usual_bytes) if self._usual_bytes else weight
        lane = job._lane
        if lane.jobs[0] is job:
            if not lane.selected:
                if not self._waits(lane):
                    self._prepared_heads.append(lane)
            elif not self.resting:
                self._measure(job, lane.free_at)
                self._begin(job)
        return True

    def _unhold(self, job: Job) -> None:
        """Free the reserved space of a prepared result that is used or discarded."""
        self.prepared_count -= 1
        self.prepared_bytes -= job._weight
        job._weight = 0

    def _let_go(self, job: Job) -> None:
        if self.limits.prepares and PREPARING <= job._stage <= READY:
            self._unhold(job)

    def _measure(self, job: Job, free_at: float) -> None:
        """Learn how much earlier the prepare should have begun to be just in time; negative: later."""
        if job._due and job._stage in (PREPARED, STARTING) and free_at:
            self.estimates.margin.learn(job._margin + job._since - free_at)

    # ---- time-outs

    def overdue(self, now: float) -> list[Job]:
        """Return the jobs whose handlers exceeded their time-out."""
        late = [j for j in self.running if j._ends_at is not None and j._ends_at <= now]
        return late + [j for s in (self.preparing, self.leaving) for j in s if j._ends_at is not None and j._ends_at <= now]

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of the running handlers, or None."""
        at_work = (self.running, self.preparing, self.leaving)
        return min((j._ends_at for s in at_work for j in s if j._ends_at is not None), default=None)

    def give_up(self, job: Job, error: BaseException) -> None:
        """Stop waiting for a job's handler."""
        job._cancelled = True
        if job in self.running:
            self.running.discard(job)
            job._stage = SETTLING
            self.failed.append((job, error))
        elif job in self.preparing:
            self.prepared(job, None, error, 0, job._since)
        self.leaving.discard(job)

    def worn(self, now: float) -> list[HeldLane]:
        """Return the lanes that are past half of their lease."""
        return [lane for lane in self.lanes.values() if lane.until - now < lane.length / 2]

    # ---- the end, and an open breaker

    def stop(self) -> list[Job]:
        """Start nothing more. Return the jobs to release."""
        self.stopping = True
        return self.give_back()

    def give_back(self) -> list[Job]:
        """Drop every job without a running handler. Return, for each lane, the first dropped job; the later ones go with it."""
        back = self._withdraw(list(self.lanes.values()), lambda _n, _job: True)
        self.starting = []
        self.ready.clear()
        return back

    def withdraw(self, lanes: Iterable[HeldLane], blocked: Callable[[Job], bool]) -> list[Job]:
        """Do the same with the jobs of these lanes from the first blocked one on. A batch that is formed keeps its messages."""
        return self._withdraw(lanes, lambda n, job: (n == 0 or job._stage < STARTING) and blocked(job))

    def _withdraw(self, lanes: Iterable[HeldLane], goes: Callable[[int, Job], bool]) -> list[Job]:
        back: list[Job] = []
        for lane in lanes:
            if not lane.alive or not lane.jobs:
                continue
            head = lane.jobs[0]
            if head._stage == PREPARED and head._error is not None and goes(0, head):
                self._begin(head)  # its prepare failed and it is the head, so it fails now
            idle = ((n, job) for n, job in enumerate(lane.jobs) if job._stage not in (RUNNING, SETTLING))
            kept = next((n for n, job in idle if goes(n, job)), len(lane.jobs))
            if not kept:
                back.append(head)
                self.leaving.update(self.drop(lane))
            elif kept < len(lane.jobs):
                back.append(lane.jobs[kept])
                self._cut(lane, kept)
        return back

    def _cut(self, lane: HeldLane, kept: int) -> None:
        while len(lane.jobs) > kept:
            job = lane.jobs.pop()
            self.jobs -= 1
            self._let_go(job)
            self._free_place(job)
            if job in self.preparing:
                self.preparing.discard(job)
                self.leaving.add(job)
            job._cancelled = True
            job._stage = OVER  # it may still be in the list of jobs to prepare
