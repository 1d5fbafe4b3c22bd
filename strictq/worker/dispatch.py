"""What handlers' threads and tasks call: to be given a job, and to hand back what came of it."""

from __future__ import annotations

import time
from typing import Any, Final

from .._errors import StrictqError
from .batches import BatchBoard
from .events import reason_of
from .forecast import size_of
from .job import Job, JobBatch
from .state import ENDING, State

FAST_SECONDS: Final = 0.001
"""Handlers quicker than this are acked in groups; each of the others at once."""
COMMITS_MAX: Final = 5


class Handover:
    """Between the handlers and the board. Handlers never wait for the keeper unless they need its answer."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._board = state.board
        self._clock = state.clock

    def take_process(self) -> Job | None:
        """The next job for a process handler that is free."""
        board = self._board
        with board.lock:
            job = board.take(self._clock())
        if job is not None and self._state.loud:
            self._state.tell("processing", job)
        return job

    def take_prepare(self) -> Job | None:
        """The next job for a prepare handler that is free."""
        with self._board.lock:
            job = self._board.take_prepare(self._clock())
        if job is not None and self._state.loud:
            self._state.tell("preparing", job)
        return job

    def take_group(self) -> JobBatch | None:
        """The next messages for a batch handler that is free."""
        assert isinstance(self._board, BatchBoard)
        with self._board.lock:
            group = self._board.take_group(self._clock())
        if group is not None and self._state.loud:
            for job in group.jobs:
                self._state.tell("processing", job)
        return group

    def processed_group(self, group: JobBatch, error: BaseException | None) -> None:
        """A batch handler came back. The keeper settles its messages."""
        board, state = self._board, self._state
        assert isinstance(board, BatchBoard)
        if isinstance(error, ENDING):
            state.end(error)
        now = self._clock()
        seconds = now - group.jobs[0]._since
        state.took("process", group.jobs[0], seconds)
        with board.lock:
            state.busy_seconds += seconds
            known = [job for job in group.jobs if board.processed(job)]
            late = [job for job in group.jobs if job not in known]
            for job in known:
                job._since = seconds
                if error is not None:
                    job._failure = error
                if state.queue.config.history != "off":
                    job._delivery._took = (None, seconds, job._said)
            group.jobs, group.taken = known, False
            if known:
                board.finished.append(group)
                # One outcome for the breaker: it is one call of whatever the handler calls.
                good = next((job for job in known if job._failure is None), None)
                if good is not None:
                    state.succeeded(good, now)
                else:
                    assert known[0]._failure is not None
                    state.failed(known[0], now, known[0]._failure)
        for job in late:
            job._undo()
            state.tell("lost", job, seconds=seconds, detail="its handler came back too late: nothing of it happened")
        state.wake()

    def prepared(self, job: Job, result: Any, error: BaseException | None, weight: int) -> None:
        """A prepare handler came back."""
        if isinstance(error, ENDING):
            self._state.end(error)
        now = self._clock()
        seconds = now - job._since
        self._state.took("prepare", job, seconds)
        with self._board.lock:
            known = self._board.prepared(job, result, error, weight, now)
            if known and error is not None:
                self._state.failed(job, now, error)
            if known and error is None:
                job._prepared_in = seconds
                if self._state.estimates.learning:
                    self._state.estimates.prepare.learn(size_of(job), seconds)
        if known and self._state.loud:
            self._state.tell("prepared", job, seconds=seconds, detail="" if error is None else reason_of(error))
        self._state.wake()

    def processed(self, job: Job, error: BaseException | None) -> bool:
        """A process handler came back. True: it is to be committed by itself: call `commit`."""
        board, state = self._board, self._state
        if isinstance(error, ENDING):
            state.end(error)
        now = self._clock()
        seconds = now - job._since
        state.took("process", job, seconds)
        with board.lock:
            state.busy_seconds += seconds
            if not board.processed(job):
                known = False
            else:
                known = True
                job._since = seconds
                if state.queue.config.history != "off":
                    job._delivery._took = (job._prepared_in, seconds, job._said)
                if error is not None:
                    board.failed.append((job, error))
                    state.failed(job, now, error)
                elif job._has_effects:
                    return True
                else:
                    board.done.append(job)
                    state.succeeded(job, now)
                    if seconds < FAST_SECONDS and board.ready and state.fast:
                        return False  # the keeper comes by itself, or is told by the last one
        if not known or error is not None:
            job._undo()
        if not known:
            self._state.tell("lost", job, seconds=seconds, detail="its handler came back too late: nothing of it happened")
        self._state.wake()
        return False

    def commit(self, job: Job) -> None:
        """Commit a job's effects with its ack. Takes a transaction: not for an event loop's thread."""
        error = commit(job)
        now = self._clock()
        with self._board.lock:
            if error is None:
                self._state.acked += 1
                self._state.learn(job)
                self._state.succeeded(job, now)
                self._board.committed(job, now)
            else:
                self._state.failed(job, now, error)
                self._board.failed.append((job, error))
        if error is None and self._state.loud:
            self._state.tell("acked", job, seconds=job._since)
        self._state.wake()


def commit(job: Job) -> BaseException | None:
    """Commit a job's effects with its ack, again where that may help. Returns why it failed."""
    for turn in range(COMMITS_MAX):
        # Only the handler can repeat what it did by `run`. If OutcomeUnknown turns out to have happened, the second run of
        # what can be repeated is thrown away, and the nack of what can't be is refused.
        repeatable = job._tx is None
        try:
            job._commit()
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
