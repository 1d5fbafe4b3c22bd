"""Acks, starts and failures: what the keeper commits, in as few transactions as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from .._store.api import AttemptFailure
from .._values.errors import LeaseLost, StoreError
from .batches import BatchBoard
from .breaker import Circuit
from .dispatch import commit
from .ending import DEFERRED, FAILED, REJECTED, Ending
from .events import reason_of, where
from .job import SETTLING, Defer, HeldLane, Job, JobBatch, Reject, Retry
from .source import AT_ONCE, HOPELESS, OUTPUT, AckOutcome
from .state import State

if TYPE_CHECKING:
    from ..delivery import Delivery

T = TypeVar("T")
LEARNED_MAX = 64
"""Number of durations learned per round."""
FATES: Final = {"dead_letter": "it is a dead letter now", "hold": "it is held", "drop": "it was dropped"}
"""The outcome of a message that is out of attempts, by `on_poison`."""


NOTE_SECONDS: Final = 1.0
"""Interval at which the output of running handlers is stored, and the age from which it is."""
POSTPONED_TOGETHER: Final = 64
"""Number of messages postponed in one transaction, which holds the write lock for some milliseconds."""
LIMITED_SECONDS: Final = 1.0
LIMITED_PER_SECOND: Final = 500
"""The shortest delay of messages whose type is at its limit and which are too many to hold, and how many come back a second."""
LIMITED: Final = "it waits because max_running handlers of its type run in the worker that had it"
UNCHARGED: Final = "no attempt was charged: a breaker is open, or most handlers fail"


def _needs_own(job: Job) -> bool:
    """Return whether a message of a batch is acked in a transaction of its own."""
    return job._has_effects or job._leaves_output


class Outcomes:
    """Commit the acks, starts and failures that the board has collected."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._board = state.board
        self._source = state.source
        self._single = True
        self._later = state.source.confirm != AT_ONCE
        self._unconfirmed: dict[Delivery, tuple[Job, Reject | None]] = {}
        """The acks that were handed over to the source. With a Reject: the message goes to the dead letters first."""
        self.postponed_to = -math.inf
        """`clock()` at which the last delay ends of messages whose type was at its limit."""
        self._noted: dict[Job, str] = {}
        """The output stored so far, by running job."""

    def go_on(self, receive: Callable[[], object] | None = None) -> bool:
        """Ack the finished jobs and start the next ones, in one transaction per shard. Return whether there were any.

        Args:
            receive: receives messages in the same transactions, if there are acks.
        """
        board = self._board
        worked = self._later and self._confirm(self._source.completed())
        with board.lock:
            pairs, starting = board.take_work(self._state.clock() if self._later else 0.0)
        if not pairs and not starting:
            return worked
        self._note_several(sum(after is None for _, after in pairs))
        done = [(job._delivery, None if after is None else after._delivery) for job, after in pairs]
        try:
            failed = self._source.settle(done, [job._delivery for job in starting], receive if pairs else None)
        except BaseException:
            with board.lock:
                for job, after in pairs:
                    board.refused(job, after, ack=True)
                for job in starting:
                    board.refused(job, None, ack=False)
            raise
        now = self._state.clock()
        if self._later:
            self._unconfirmed.update((job._delivery, self._unconfirmed.get(job._delivery, (job, None))) for job, _ in pairs)
            with board.lock:
                for job, _ in pairs[:LEARNED_MAX]:
                    self._state.learn(job)
            self._confirm([AckOutcome(job._delivery, failed[job._delivery]) for job, _ in pairs if job._delivery in failed])
            pairs = []
        lost: list[tuple[Job, Exception]] = []
        with board.lock:
            good = pairs if not failed else [p for p in pairs if p[0]._delivery not in failed]
            begun = starting if not failed else [j for j in starting if j._delivery not in failed]
            for job, after in pairs if failed else ():
                self._refuse(job, after, failed.get(job._delivery), lost, ack=True)
            for job in starting if failed else ():
                self._refuse(job, None, failed.get(job._delivery), lost, ack=False)
            for job, _ in good[:LEARNED_MAX]:
                self._state.learn(job)
            board.settled(good, begun, now)
            self._state.acked += len(good)
            if not failed:
                self._state.works()
            self._state.fast = not self._later and board.ahead() > 0
        for job, error in lost:
            self._state.lose(job._lane, error)
        if self._state.loud:
            for job, _ in good:
                self._state.tell("acked", job, seconds=job._since)
        return True

    def _confirm(self, outcomes: Sequence[AckOutcome]) -> bool:
        """Apply what the source reports of the acks that were handed over, and of leases. Return whether there was anything."""
        board, state = self._board, self._state
        for delivery, error in outcomes:
            job, rejected = self._unconfirmed.pop(delivery, (None, None))
            if job is None:
                self._lose(delivery, error)
                continue
            if error is not None and rejected is None and not isinstance(error, (LeaseLost, *HOPELESS)):
                state.complain(error)
                self._unconfirmed[delivery] = job, rejected
                with board.lock:
                    board.again.append(job)
                continue
            with board.lock:
                board.confirmed(job._lane, state.clock())
            if error is not None:
                state.lose_job(job, error)
            elif rejected is not None:
                self._rejected(job, rejected)
            else:
                state.acked += 1
                if state.loud:
                    state.tell("acked", job, seconds=job._since)
        if outcomes:
            state.works()
        return bool(outcomes)

    def end(self) -> None:
        """Apply the outcomes that the source reported while it closed."""
        if self._later:
            self._confirm(self._source.completed())

    def _lose(self, delivery: Delivery, error: Exception | None) -> None:
        """Drop a message whose lease could not be extended, and the later ones of its lane."""
        with self._board.lock:
            lane = self._board.lanes.get(delivery.lease)
            jobs = () if lane is None else tuple(lane.jobs)
        job = next((job for job in jobs if job._delivery is delivery), None)
        if job is not None and error is not None:
            self._state.lose_job(job, error)

    def _rejected(self, job: Job, error: Reject) -> None:
        self._state.rejected += 1
        self._state.tell("rejected", job, detail=f"{error.reason}; {FATES['dead_letter']}", error=error.__cause__)

    def _note_several(self, ended: int) -> None:
        """Note that this process runs more than one message, before the second one starts."""
        if self._single and (self._board.runs_several(ended) or self._state.gave_up):
            self._single = False
            if self._source.holder is not None:
                self._source.holder.note_several()

    def _refuse(
        self, job: Job, after: Job | None, error: Exception | None, lost: list[tuple[Job, Exception]], *, ack: bool
    ) -> None:
        if error is None:
            return
        if isinstance(error, (LeaseLost, *HOPELESS)):
            lost.append((job, error))
            return
        self._state.complain(error)
        self._board.refused(job, after, ack=ack)

    def finish(self) -> bool:
        """Settle the groups whose handlers returned. Return whether there were any."""
        board = self._board
        if not isinstance(board, BatchBoard):
            return False
        with board.lock:
            groups, board.finished = board.finished, []
        for group in groups:
            lanes: dict[HeldLane, list[Job]] = {}
            for job in group.jobs:
                if job._lane.alive and job._stage == SETTLING:
                    lanes.setdefault(job._lane, []).append(job)
            plain = [lane for lane, jobs in lanes.items() if not any(job._failure or _needs_own(job) for job in jobs)]
            self._ack_all(board, [job for lane in plain for job in lanes[lane]])
            for lane in lanes.keys() - set(plain):
                self._finish_lane(board, lanes[lane])
        return bool(groups)

    def _ack_all(self, board: BatchBoard, jobs: list[Job]) -> None:
        """Ack messages without effects, in one transaction per shard."""
        errors = self._source.ack_each([job._delivery for job in jobs])
        good = [job for job, error in zip(jobs, errors, strict=True) if error is None]
        self._acked(board, good)
        again = []
        for job, error in zip(jobs, errors, strict=True):
            if isinstance(error, (LeaseLost, *HOPELESS)):
                if job._lane.alive:
                    self._state.lose(job._lane, error)
            elif error is not None:
                again.append(job)
                self._state.complain(error)
        self._again(board, again)

    def _finish_lane(self, board: BatchBoard, jobs: list[Job]) -> None:
        """Settle the messages of one lane in order, one by one, because some failed or have effects."""
        for n, job in enumerate(jobs):
            with board.lock:
                first = bool(job._lane.jobs) and job._lane.jobs[0] is job
            if not first:  # an earlier message is not settled yet
                self._again(board, jobs[n:])
                return
            error = job._failure
            if error is None:
                error = commit(job) if _needs_own(job) else self._source.ack_each([job._delivery])[0]
                if error is None:
                    self._acked(board, [job])
                    continue
                if not _needs_own(job) and isinstance(error, StoreError) and not isinstance(error, HOPELESS):
                    self._state.complain(error)
                    self._again(board, jobs[n:])
                    return
            else:
                job._undo()
            if isinstance(error, Reject):
                self._settle_one(job, error)
                continue
            for other in jobs[n + 1 :]:  # the later messages are returned with it
                other._undo()
            with board.lock:
                board.failed.append((job, error))
            return

    def _acked(self, board: BatchBoard, jobs: list[Job]) -> None:
        with board.lock:
            board.acked(jobs, self._state.clock())
            self._state.acked += len(jobs)
        if jobs:
            self._state.works()
        if self._state.loud:
            for job in jobs:
                self._state.tell("acked", job, seconds=job._since)

    @staticmethod
    def _again(board: BatchBoard, jobs: list[Job]) -> None:
        if jobs:
            with board.lock:
                board.finished.append(JobBatch(jobs))

    def fail(self) -> bool:
        """Nack or dead-letter the failed messages. Return whether there were any."""
        board = self._board
        with board.lock:
            failed, board.failed = board.failed, []
        # Of each lane, only the first failure counts. It takes the later messages with it.
        failed.sort(key=lambda each: each[0].seq)
        spared: list[tuple[Job, BaseException]] = []
        for job, error in failed:
            if self._is_spared(job):
                spared.append((job, error))
            elif job._lane.alive:
                self._settle_one(job, error)
        if spared:
            self._postpone(spared)
        return bool(failed)

    def note(self, now: float) -> None:
        """Store the output so far of long-running handlers, for `status`."""
        with self._board.lock:
            # Skip handlers with an open transaction, which blocks other writers.
            running = [job for job in self._board.running if now - job._since >= NOTE_SECONDS and job._tx is None]
        said = {job: job._said for job in running}
        new = [(job, text) for job, text in said.items() if text and self._noted.get(job) != text]
        self._noted = {job: text for job, text in said.items() if text}
        if new:
            try:
                self._source.report(OUTPUT, [(job._delivery, text) for job, text in new])
            except StoreError as e:
                self._noted.clear()
                self._state.complain(e)

    def _is_spared(self, job: Job) -> bool:
        """Return whether a breaker is open, so that the failure is not charged to its message."""
        circuits, state = self._board.circuits, self._state
        if circuits is None:
            return False
        with self._board.lock:
            return circuits.spares(job, state.outage_now(state.clock()))

    def _postpone(self, failed: Sequence[tuple[Job, BaseException]]) -> None:
        """Settle the failures while a breaker is open: uncharged, and together, so that an outage takes few transactions."""
        together: list[tuple[Job, Exception]] = []
        for job, error in failed:
            asked = isinstance(error, Retry) and error.delay is not None
            if not job._lane.alive:
                continue
            if asked or not isinstance(error, Exception) or isinstance(error, Reject | Defer | LeaseLost):
                self._settle_one(job, error)
            else:
                together.append((job, error))
        for wait, some in self._portions(together, lambda each: each[0], failed=True):
            self._postpone_some(wait, some)

    def _portions(self, all_of_them: Sequence[T], job_of: Callable[[T], Job], *, failed: bool) -> Iterator[tuple[float, list[T]]]:
        """Yield what waits equally long, POSTPONED_TOGETHER at a time, with the seconds. The breakers remember its keys."""
        circuits = self._board.circuits
        assert circuits is not None
        by_wait: dict[float, list[T]] = {}
        with self._board.lock:
            for each in all_of_them:
                circuits.withhold(job_of(each), failed=failed)
                by_wait.setdefault(circuits.wait(job_of(each)), []).append(each)
        for wait, some in by_wait.items():
            for start in range(0, len(some), POSTPONED_TOGETHER):
                yield wait, some[start : start + POSTPONED_TOGETHER]

    @staticmethod
    def waiting(circuit: Circuit | None) -> AttemptFailure:
        """Return why a message that was not begun waits."""
        opened = None if circuit is None else circuit.opened
        whose = "the worker" if circuit is None or circuit.group is None else f"the group {circuit.group!r}"
        return AttemptFailure(f"it waits because handlers of {whose} fail: {'' if opened is None else opened.error}")

    def withhold(self, jobs: Sequence[Job]) -> None:
        """Postpone messages of open groups that were leased and not begun, and are not on the board. No attempt is charged."""
        circuits = self._board.circuits
        assert circuits is not None
        for wait, some in self._portions(jobs, lambda job: job, failed=False):
            with self._board.lock:
                why = [self.waiting(circuits.withhold(job, failed=False)) for job in some]
            results = self._source.hold([job._delivery for job in some], wait, why, began=False)
            for job, reason, trouble in zip(some, why, results, strict=True):
                if trouble is None:
                    self._state.deferred += 1
                    if self._state.loud:
                        self._state.tell("deferred", job, detail=reason.error or "", wait_seconds=wait)
                elif not isinstance(trouble, (LeaseLost, *HOPELESS)):
                    self._source.release([job._delivery])
                    self._state.complain(trouble)

    def postpone_limited(self, now: float) -> bool:
        """Postpone messages whose type is at its limit, if they are too many to hold. No attempt is charged.

        Otherwise a backlog of one type would fill the buffer, and no message of another type would be leased.

        Returns:
            Whether there were any.
        """
        board = self._board
        if board.passed_jobs <= board.limits.batch:
            return False
        with board.lock:
            back = board.surplus(board.limits.batch)
        for start in range(0, len(back), POSTPONED_TOGETHER):
            some = [job._delivery for job in back[start : start + POSTPONED_TOGETHER]]
            wait = max(self.postponed_to - now, LIMITED_SECONDS) + len(some) / LIMITED_PER_SECOND
            if any(self._source.hold(some, wait, LIMITED)):
                self._source.release(some)
            now = self._state.clock()
            self.postponed_to = now + wait
        return True

    def _postpone_some(self, wait: float, some: Sequence[tuple[Job, Exception]]) -> None:
        endings = [Ending.of(error, job._said) for job, error in some]
        results = self._source.hold(
            [job._delivery for job, _ in some], wait, [AttemptFailure(e.reason, e.output, e.traceback) for e in endings]
        )
        for (job, error), ending, trouble in zip(some, endings, results, strict=True):
            if trouble is None:
                self._deferred(job, f"{ending.reason}; {UNCHARGED}", wait)
            elif isinstance(trouble, (LeaseLost, *HOPELESS)):
                self._state.lose(job._lane, trouble)
            else:
                with self._board.lock:
                    self._board.failed.append((job, error))
                self._state.complain(trouble)

    def _deferred(self, job: Job, detail: str, wait: float) -> None:
        self._state.deferred += 1
        self._state.drop(job._lane)
        self._state.tell("deferred", job, detail=detail, wait_seconds=wait)

    def _settle_one(self, job: Job, error: BaseException) -> None:
        """Nack, defer or dead-letter a message whose handler failed."""
        d = job._delivery
        try:
            if isinstance(error, LeaseLost) and (error.token, error.seq) == (d.token, d.seq):
                self._state.lose(job._lane, error)
                return
            if isinstance(error, KeyboardInterrupt):
                # The operator interrupted it, so release the message as if it had not been started.
                self._source.release([d])
                self._state.drop(job._lane)
                self._state.tell("released", job)
                return
            ending = Ending.of(error, job._said)
            detail = str(error) if ending.kind == DEFERRED else ""  # a handler's own exception may have no text
            if ending.kind == FAILED and ending.delay is not None and self._is_spared(job):
                ending, detail = Ending(DEFERRED, delay=ending.delay), f"{ending.reason}; {UNCHARGED}"
            elif ending.kind == FAILED:
                self._spare(job)
            wait = self._source.fail(d, ending)
        except (LeaseLost, *HOPELESS) as e:
            self._state.lose(job._lane, e)
            return
        except StoreError as e:
            with self._board.lock:
                self._board.failed.append((job, error))
            self._state.complain(e)
            return
        if isinstance(error, Reject) and ending.kind == REJECTED and wait is None:
            with self._board.lock:
                (self._board.hand_over if self._later else self._board.committed)(job, self._state.clock())
            if self._later:
                self._unconfirmed[d] = job, error
            else:
                self._rejected(job, error)
        elif ending.kind == DEFERRED:
            self._deferred(job, detail, wait or 0.0)
        else:
            self._state.retried += 1
            self._state.drop(job._lane)
            self._tell_of_failure(job, error, wait)

    def _spare(self, job: Job) -> None:
        """Release the later messages of the batch, which did not fail, before the nack takes them with it.

        They are not charged.
        """
        if job._group is None:
            return
        with self._board.lock:
            behind = next((other for other in job._lane.jobs if other.seq > job.seq), None)
        if behind is not None:
            self._source.release([behind._delivery])

    def _tell_of_failure(self, job: Job, error: BaseException, wait: float | None) -> None:
        at, config = "" if isinstance(error, Retry) else where(error), self._source.config
        fate = FATES[config.on_poison]
        if self._later and config.max_attempts is not None and job.attempt >= config.max_attempts:
            wait, fate = None, "the next receive makes it a dead letter"  # the endpoint decides it, by the number of receives
        if wait is not None:
            self._state.tell("retried", job, detail=reason_of(error), where=at, wait_seconds=wait, error=error)
            return
        self._state.poison += 1
        detail = f"{reason_of(error)}; out of attempts: {fate}"
        self._state.tell("poison", job, detail=detail, where=at, error=error)
