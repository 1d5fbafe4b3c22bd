"""The worker's one thread that talks to the queue: refills, commits, extends leases, gives back.

It goes round when something happened (a handler came back, a message arrived, a time has come), and does all that is to be
done in as few transactions as there can be. Handlers never wait for it unless they need its answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import attrs

from .._errors import LeaseLost, OutcomeUnknown, PartialFailure, StoreError, StrictqError
from .._receiving import look_again
from .._store.wake import POLL_SECONDS
from ..delivery import Delivery, describe
from ..queue import Queue
from .board import Board, Lane
from .estimates import Estimates
from .job import Job, Reject, Retry

log = logging.getLogger("strictq.worker")

REFILL_SECONDS: Final = 0.5
"""The buffer holds about so much work: more would be kept from other consumers."""
FAST_SECONDS: Final = 0.001
"""Handlers quicker than this are acked in groups; each of the others at once."""
GATHER_SECONDS: Final = 0.005
"""How long such a group may gather, should one of its neighbours take long after all."""
SAVE_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 0.1
"""After a failure of the store that may pass."""
LEARNED_MAX: Final = 64
"""Durations learned from in one round."""
PER_KEY_MIN: Final = 8
PER_KEY_MAX: Final = 64
COMMITS_MAX: Final = 5


@attrs.frozen
class WorkerEvent:
    """A change of a job's state, for `Worker(on_event=...)`; called in the worker's threads, after what it tells of.

    Attributes:
        kind: "leased", "preparing", "prepared", "processing", "acked", "retried", "rejected", "lost", "timeout", "released".
        at: `time.monotonic()`.
        seconds: how long the handler took, where one came back.
        detail: error or reason, for a person.
    """

    kind: str
    key: Any
    seq: int
    token: int
    attempt: int
    at: float
    seconds: float | None = None
    detail: str = ""


def reason_of(error: BaseException) -> str:
    """An exception as a reason; one of the worker's own speaks for itself."""
    return str(error) if getattr(error, "speaks_for_itself", False) else describe(error)


class Executor:
    """What runs handlers of one stage."""

    def wake(self) -> None:
        """There may be jobs."""

    def cancel(self, job: Job) -> None:
        """Nobody waits for this job any more."""


@attrs.define
class Refill:
    """What the buffer asks the queue for. See Worker."""

    batch: int
    low_water: int | None
    lease_seconds: float | None
    keys: Any
    consumer: str | None


class Keeper:
    """One run of a worker."""

    def __init__(
        self,
        queue: Queue,
        board: Board,
        estimates: Estimates,
        refill: Refill,
        *,
        on_event: Callable[[WorkerEvent], None] | None,
        drain: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = queue
        self.board = board
        self.estimates = estimates
        self.clock = clock
        self.executors: list[Executor] = []
        self.crash: BaseException | None = None
        self.acked = self.retried = self.rejected = self.lost = self.timeouts = 0
        self._refill = refill
        self._request = queue._request(1, None, refill.lease_seconds, refill.keys, refill.consumer, False)
        self._request = attrs.evolve(self._request, charge=False)
        self._hook = on_event
        self._drain = drain
        self._loud = on_event is not None or log.isEnabledFor(logging.DEBUG)
        self._wake = threading.Lock()
        self._wake.acquire()
        self._stop_at: float | None = None
        self._stopping = False
        self.gave_up = False
        self._deadline_over = False
        self._per_key = PER_KEY_MIN
        self._fast = False
        self._found_nothing: tuple[int, int] | None = None
        self._look_at = 0.0
        self._check_leases_at = 0.0
        self._not_before = 0.0
        self._save_at = clock() + SAVE_SECONDS
        self._learned = False
        self._stored = estimates.process.samples + estimates.prepare.samples > 0

    # ---- from any thread

    def wake(self) -> None:
        """Go round. Safe in signal handlers: a bare lock takes no other."""
        with suppress(RuntimeError):  # it is awake already
            self._wake.release()

    def stop(self, deadline: float | None) -> None:
        """Finish what runs, give back the rest; `deadline`: `clock()` at which to wait no longer."""
        if deadline is not None:
            self._stop_at = deadline if self._stop_at is None else min(deadline, self._stop_at)
        self._stopping = True
        self.wake()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def tell(self, kind: str, job: Job, *, seconds: float | None = None, detail: str = "") -> None:
        """Log an event, and call the hook. What the hook raises is logged: the worker goes on."""
        d = job._delivery
        level = logging.WARNING if kind in ("retried", "rejected", "lost", "timeout") else logging.DEBUG
        if log.isEnabledFor(level):
            fields = {"key": d.key, "seq": d.seq, "token": d.token, "attempt": d.attempt, "seconds": seconds}
            log.log(level, "%s key=%r seq=%d token=%d %s", kind, d.key, d.seq, d.token, detail, extra={"strictq": fields})
        if self._hook is not None:
            try:
                self._hook(WorkerEvent(kind, d.key, d.seq, d.token, d.attempt, self.clock(), seconds, detail))
            except Exception:
                log.exception("an on_event hook failed")

    # ---- what handlers' threads and tasks call

    def take_process(self) -> Job | None:
        board = self.board
        with board.lock:
            job = board.take(self.clock())
        if job is not None and self._loud:
            self.tell("processing", job)
        return job

    def take_prepare(self) -> Job | None:
        with self.board.lock:
            job = self.board.take_prepare(self.clock())
        if job is not None and self._loud:
            self.tell("preparing", job)
        return job

    def prepared(self, job: Job, result: Any, error: BaseException | None, weight: int) -> None:
        """A prepare handler came back."""
        now = self.clock()
        seconds = now - job._since
        with self.board.lock:
            known = self.board.prepared(job, result, error, weight, now)
            if known and error is None and self.estimates.learning:
                self.estimates.prepare.learn(self.board.size_of(job), seconds)
        if known and self._loud:
            self.tell("prepared", job, seconds=seconds, detail="" if error is None else reason_of(error))
        self.wake()

    def processed(self, job: Job, error: BaseException | None) -> bool:
        """A process handler came back. True: it is to be committed by itself: call `commit`."""
        board = self.board
        now = self.clock()
        seconds = now - job._since
        with board.lock:
            if not board.processed(job):
                known = False
            else:
                known = True
                job._since = seconds
                if error is not None:
                    board.failed.append((job, error))
                elif job._has_effects:
                    return True
                else:
                    board.done.append(job)
                    if seconds < FAST_SECONDS and board.ready and self._fast:
                        return False  # the keeper comes by itself, or is told by the last one
        if not known or error is not None:
            job._undo()
        if not known:
            self.tell("lost", job, seconds=seconds, detail="its handler came back too late: nothing of it happened")
        self.wake()
        return False

    def commit(self, job: Job) -> None:
        """Commit a job's effects with its ack. Takes a transaction: not for an event loop's thread."""
        error = self._commit(job)
        with self.board.lock:
            if error is None:
                self.acked += 1
                self._learn(job)
                self.board.committed(job, self.clock())
            else:
                self.board.failed.append((job, error))
        if error is None and self._loud:
            self.tell("acked", job, seconds=job._since)
        self.wake()

    def _commit(self, job: Job) -> BaseException | None:
        for turn in range(COMMITS_MAX):
            repeatable = job._tx is None
            try:
                job._commit()
            except OutcomeUnknown as e:
                failure: StrictqError = e
                repeatable = True  # if it happened, the second run is thrown away
            except StrictqError as e:
                failure = e
            except Exception as e:
                return e
            else:
                return None
            if not (repeatable and failure.transient) or turn == COMMITS_MAX - 1:
                return failure
            time.sleep(min(0.02 * 2**turn, 0.2))
        raise AssertionError

    # ---- the rounds

    def run(self) -> None:
        """Go round until stopped and done. Whatever happens, what is held is given back."""
        waker = self.queue._store.waker
        waker.listen(self.wake)
        try:
            while (seconds := self._round()) is not None:
                self._sleep(seconds)
        except BaseException as e:
            self.crash = e
            raise
        finally:
            waker.unlisten(self.wake)
            self._end()

    def _round(self) -> float | None:
        """Do all that is to be done now. Returns how long there will be nothing to do; None: it is over."""
        now = self.clock()
        board = self.board
        if self._stopping:
            self._give_back()
            if board.idle or self._deadline_over:
                return None
            if self._stop_at is not None and now >= self._stop_at:
                self._abandon()
        worked = False
        if now >= self._not_before:
            worked = self._settle_failed()
            if not self._stopping:
                worked |= self._refill_buffer(now)
            worked |= self._settle()
            if not self._stopping:
                worked |= self._grow()
        self._drop_expired()
        self._keep_leases(now)
        self._check_deadlines(now)
        due = self._plan()
        for executor in self.executors:
            executor.wake()
        if self._learned and now >= self._save_at:
            self.save()
        if self._drain and not worked and not self._stopping and board.idle and self._found_nothing is not None:
            self._stopping = True
            return 0.0
        if worked and board.idle:
            return 0.0  # so what may have become ready is looked for at once
        return self._patience(due)

    def _patience(self, due: float | None) -> float:
        now = self.clock()
        times = [self._check_leases_at]
        board = self.board
        with board.lock:
            if due is not None:
                times.append(due)
            if not self._stopping and board.growing():
                times.append(now + POLL_SECONDS)
            if (deadline := board.next_deadline()) is not None:
                times.append(deadline)
            pending = board.failed or board.again or board.starting
            if self._fast and (board.done or board.ready):
                times.append(now + GATHER_SECONDS)
            elif pending:
                times.append(max(now, self._not_before))
            if board.buffered <= self._low_water() or len(board.lanes) < board.limits.concurrency:
                times.append(self._look_at)
        if self._stop_at is not None:
            times.append(self._stop_at)
        return max(0.0, min(times) - now)

    def _sleep(self, seconds: float) -> None:
        """Until woken, until the time is over, or until another process sent something that this one has room for."""
        waker = self.queue._store.waker
        until = self.clock() + seconds
        while True:
            left = until - self.clock()
            if left <= 0:
                self._wake.acquire(blocking=False)
                return
            if self._wake.acquire(timeout=min(left, POLL_SECONDS)):
                return
            if self._found_nothing is not None and waker.seen() != self._found_nothing:
                return

    # ---- acks, starts, failures

    def _settle(self) -> bool:
        board = self.board
        with board.lock:
            pairs, starting = board.take_work()
        if not pairs and not starting:
            return False
        done = [(job._delivery, None if after is None else after._delivery) for job, after in pairs]
        try:
            failed = self.queue._advance(done, [job._delivery for job in starting])
        except BaseException:
            with board.lock:
                for job, after in pairs:
                    board.refused(job, after, ack=True)
                for job in starting:
                    board.refused(job, None, ack=False)
            raise
        now = self.clock()
        lost: list[tuple[Job, Exception]] = []
        with board.lock:
            good = pairs if not failed else [p for p in pairs if p[0]._delivery not in failed]
            begun = starting if not failed else [j for j in starting if j._delivery not in failed]
            for job, after in pairs if failed else ():
                self._refuse(job, after, failed.get(job._delivery), lost, ack=True)
            for job in starting if failed else ():
                self._refuse(job, None, failed.get(job._delivery), lost, ack=False)
            for job, _ in good[:LEARNED_MAX]:
                self._learn(job)
            board.settled(good, begun, now)
            self.acked += len(good)
            self._fast = board.ahead() > 0
        for job, error in lost:
            self._lose(job._lane, error)
        if self._loud:
            for job, _ in good:
                self.tell("acked", job, seconds=job._since)
        return True

    def _refuse(
        self, job: Job, after: Job | None, error: Exception | None, lost: list[tuple[Job, Exception]], *, ack: bool
    ) -> None:
        if error is None:
            return
        if isinstance(error, LeaseLost):
            lost.append((job, error))
            return
        self._complain(error)
        self.board.refused(job, after, ack=ack)

    def _complain(self, error: BaseException) -> None:
        """The store can't do it now: try again soon."""
        self._not_before = self.clock() + AGAIN_SECONDS
        log.warning("the store failed, trying again: %s", error)

    def _learn(self, job: Job) -> None:
        if self.estimates.learning:
            self.estimates.process.learn(self.board.size_of(job), job._since)
            self._learned = True

    def _settle_failed(self) -> bool:
        board = self.board
        with board.lock:
            failed, board.failed = board.failed, []
        for job, error in failed:
            if job._lane.alive:
                self._settle_one(job, error)
        return bool(failed)

    def _settle_one(self, job: Job, error: BaseException) -> None:
        """Give back, or dead-letter, a message whose handler failed."""
        d = job._delivery
        try:
            if isinstance(error, LeaseLost) and (error.token, error.seq) == (d.token, d.seq):
                self._lose(job._lane, error)
                return
            if isinstance(error, Reject):
                d.reject(error.reason, output=job._said)
                with self.board.lock:
                    self.rejected += 1
                    self.board.committed(job, self.clock())
                self.tell("rejected", job, detail=error.reason)
                return
            if isinstance(error, Retry):
                d.nack(error.delay, error.reason or reason_of(error), output=job._said)
            else:
                d.nack(reason=reason_of(error), output=job._said)
        except LeaseLost as e:
            self._lose(job._lane, e)
            return
        except StoreError as e:
            with self.board.lock:
                self.board.failed.append((job, error))
            self._complain(e)
            return
        self.retried += 1
        self._drop(job._lane)
        self.tell("retried", job, detail=reason_of(error))

    def _lose(self, lane: Lane, error: Exception) -> None:
        """The lane is somebody else's: its jobs are cancelled, nothing of them happens."""
        head = lane.jobs[0] if lane.jobs else None
        self._drop(lane)
        self.lost += 1
        if head is not None:
            self.tell("lost", head, detail=str(error))

    def _drop(self, lane: Lane) -> None:
        with self.board.lock:
            working = self.board.drop(lane)
        for job in working:
            self.gave_up = True
            self._cancel(job)

    def _cancel(self, job: Job) -> None:
        for executor in self.executors:
            executor.cancel(job)

    def _drop_expired(self) -> None:
        board = self.board
        if not board.expired:
            return
        with board.lock:
            expired, board.expired = board.expired, []
        for lane in expired:
            if lane.alive:
                first = lane.jobs[0]._delivery
                self._lose(lane, LeaseLost(first.key, first.seq, first.token, "its lease ended before its turn came"))
                self.queue._release_rest([first])

    # ---- the buffer

    def _target(self) -> int:
        """How many messages to hold: about REFILL_SECONDS of work, fewer where durations are uneven."""
        model = self.estimates.process
        limits = self.board.limits
        mean = self.estimates.given_process
        if mean is None:
            mean = model.predict(model.mean_size)
        if mean is None:
            return min(self._refill.batch, 2 * limits.concurrency)
        usual = REFILL_SECONDS * limits.concurrency / (mean + 2 * model.deviation + 1e-6)
        return max(1, min(self._refill.batch, max(2 * limits.concurrency, int(usual))))

    def _low_water(self) -> int:
        return self._target() // 2 if self._refill.low_water is None else self._refill.low_water

    def _refill_buffer(self, now: float) -> bool:
        board = self.board
        lanes_short = board.limits.concurrency - len(board.lanes)
        if (board.buffered > self._low_water() and lanes_short <= 0) or now < self._not_before:
            return False
        waker = self.queue._store.waker
        seen = waker.seen()
        if self._found_nothing == seen and now < self._look_at:
            return False
        room = max(1, self._target() - board.buffered, lanes_short * self._per_key)
        request = attrs.evolve(self._request, room=room, per_key=self._per_key)
        try:
            deliveries, soonest = self.queue._receive_once(request)
        except (StoreError, PartialFailure) as e:
            self._complain(e)
            self._look_at = self._not_before
            return False
        self._look_at = now + look_again(self.queue._store, soonest)
        if not deliveries:
            self._found_nothing = seen
            return False
        self._found_nothing = None
        self._adapt(deliveries, room)
        offset = self.clock() - self.queue._store.now() / 1e6
        with board.lock:
            board.add(deliveries, offset)
        # These may be shorter than those that the next look was planned for.
        self._check_leases_at = min(self._check_leases_at, now + deliveries[0].lease._seconds / 8e6)
        if self._loud:
            for lane in {d.lease: board.lanes.get(d.lease) for d in deliveries}.values():
                for job in tuple(lane.jobs) if lane is not None else ():
                    self.tell("leased", job)
        return True

    def _adapt(self, deliveries: list[Delivery], room: int) -> None:
        """Few lanes: more of each. Many lanes: heads of many, which can be worked on at once."""
        least = PER_KEY_MIN
        if len(deliveries) >= room:
            self._per_key = max(least, self._per_key // 2)
        elif len(deliveries) > self._per_key // 2:
            self._per_key = min(PER_KEY_MAX, self._per_key * 2)

    def _grow(self) -> bool:
        """Take in what follows in lanes at work, under the same lease, so that it can be prepared before its turn.

        Not while other lanes wait for a slot: it is their turn, and their heads are prepared meanwhile.
        """
        board = self.board
        with board.lock:
            lanes = board.growing()
        grew = False
        seen: dict[int, int] = {}
        for lane in lanes:
            try:
                shard = lane.lease.shard
                if shard not in seen:
                    # A send to a lane that somebody holds wakes nobody: so this is looked at now and then.
                    seen[shard] = self.queue._arrivals(shard)
                if lane.grown == seen[shard]:
                    continue
                more = lane.lease.more(4)
            except LeaseLost as e:
                self._lose(lane, e)
                continue
            except StoreError as e:
                self._complain(e)
                break
            if not more:
                lane.grown = seen[shard]  # not before something arrives
            else:
                grew = True
                with self.board.lock:
                    if lane.alive:
                        self.board.add(more, 0.0)
        return grew

    # ---- leases and other deadlines

    def _keep_leases(self, now: float) -> None:
        if now < self._check_leases_at:
            return
        board = self.board
        with board.lock:
            worn = board.worn(now)
            shortest = min((lane.length for lane in board.lanes.values()), default=self.queue.config.lease_seconds)
        again = min(shortest / 8, 5.0)
        by_length: dict[float, list[Lane]] = {}
        for lane in worn:
            by_length.setdefault(lane.length, []).append(lane)
        for length, lanes in by_length.items():
            results = self.queue._extended([lane.lease for lane in lanes], length)
            offset = self.clock() - self.queue._store.now() / 1e6
            for lane, error in zip(lanes, results, strict=True):
                if error is None:
                    lane.until = lane.lease._deadline / 1e6 + offset
                elif isinstance(error, LeaseLost):
                    self._lose(lane, error)
                else:
                    self._complain(error)
                    again = min(again, AGAIN_SECONDS)
        self._check_leases_at = self.clock() + again

    def _check_deadlines(self, now: float) -> None:
        with self.board.lock:
            late = self.board.overdue(now)
            for job in late:
                self.board.give_up(job, TimeoutError("the handler took longer than its timeout"))
        for job in late:
            self.timeouts += 1
            self.gave_up = True
            self.tell("timeout", job, detail="its handler is given up")
            self._cancel(job)
        if late:
            self.wake()

    def _plan(self) -> float | None:
        if not self.board.limits.prepares:
            return None
        with self.board.lock:
            return self.board.plan(self.clock())

    # ---- the end

    def _give_back(self) -> None:
        with self.board.lock:
            back = self.board.stop()
        if back:
            self.queue._release_rest([job._delivery for job in back])
            if self._loud:
                for job in back:
                    self.tell("released", job)

    def _abandon(self) -> None:
        """The deadline of stop is over: wait for nobody."""
        self._deadline_over = self.gave_up = True
        error = TimeoutError("the worker stopped before the handler was done")
        with self.board.lock:
            running = [*self.board.running, *self.board.preparing]
            for job in running:
                self.board.give_up(job, error)
        for job in running:
            self._cancel(job)

    def _end(self) -> None:
        """Whatever ended it: nothing stays leased that can be given back, and what was learned is kept."""
        if not self.queue._store.closed:
            self._give_back()
            self._settle_failed()
            self._settle()
            self._give_back()
            self.save()
        for lane in list(self.board.lanes.values()):
            self._drop(lane)

    def save(self) -> None:
        """Store what was learned. Not being able to costs nothing but learning it again."""
        self._save_at = self.clock() + SAVE_SECONDS
        if not self._learned:
            return
        try:
            if self._stored and not self.queue._estimates():  # reset, by somebody else: then what is known here, too
                with self.board.lock:
                    self.estimates.reset()
                self._stored = False
            else:
                self.queue._set_estimates(self.estimates.to_rows())
                self._stored = True
            self._learned = False
        except StrictqError as e:
            log.warning("what was learned of durations could not be stored: %s", e)
