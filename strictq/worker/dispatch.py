"""The functions that handlers' threads and tasks call to take jobs and to report results."""

from __future__ import annotations

import time
from typing import Any, Final

from .._values.errors import StrictqError
from .batches import BatchBoard
from .events import reason_of
from .forecast import size_of
from .job import Job, JobBatch
from .source import AT_ONCE
from .state import ENDING, State

FAST_SECONDS: Final = 0.001
"""Faster handlers are acked in groups; slower ones are acked at once."""
COMMITS_MAX: Final = 5


class Handover:
    """The interface between handlers and the board. Handlers wait for the keeper only if they need its answer."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._board = state.board
        self._clock = state.clock
        self.observers = state.observers
        self._followed = state.source.confirm != AT_ONCE
        """Whether the source wants to know when handlers begin and return."""

    def take_process(self) -> Job | None:
        """Return the next job for a free process handler."""
        board = self._board
        with board.lock:
            job = board.take(self._clock())
            if self._followed and job is not None:
                self._state.source.began(job._delivery)
        if job is not None and self._state.loud:
            self._state.tell("processing", job)
        return job

    def take_prepare(self) -> Job | None:
        """Return the next job for a free prepare handler."""
        with self._board.lock:
            job = self._board.take_prepare(self._clock())
        if job is not None and self._state.loud:
            self._state.tell("preparing", job)
        return job

    def take_group(self) -> JobBatch | None:
        """Return the next group for a free batch handler."""
        assert isinstance(self._board, BatchBoard)
        with self._board.lock:
            group = self._board.take_group(self._clock())
        if group is not None and self._state.loud:
            for job in group.jobs:
                self._state.tell("processing", job)
        return group

    def processed_group(self, group: JobBatch, error: BaseException | None) -> None:
        """Record that a batch handler returned. The keeper settles its messages."""
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
                job._note_end(seconds)
            group.jobs, group.taken = known, False
            if known:
                board.finished.append(group)
                state.ended_batch(known, now, error)
        for job in late:
            job._undo()
            state.tell(
                "lost", job, seconds=seconds, detail="its handler returned after the lease was lost: its effects are discarded"
            )
        state.wake()

    def prepared(self, job: Job, result: Any, error: BaseException | None, weight: int) -> None:
        """Record the result of a prepare handler."""
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
        """Record that a process handler returned. Return True if the caller must call `commit`, because the job has effects."""
        board, state = self._board, self._state
        if error is not None and isinstance(error, ENDING):
            state.end(error)
        now = self._clock()
        seconds = now - job._since
        if self._followed:
            state.source.returned(job._delivery)
        if state.observers.durations:
            state.took("process", job, seconds)
        with board.lock:
            state.busy_seconds += seconds
            if not board.processed(job):
                known = False
            else:
                known = True
                job._since = seconds
                if state.source.keeps_ends:
                    job._note_end(seconds)
                if error is not None:
                    board.failed.append((job, error))
                    state.failed(job, now, error)
                elif job._has_effects:
                    return True
                else:
                    board.done.append(job)
                    if board.circuits is not None:
                        state.succeeded(job, now)
                    if seconds < FAST_SECONDS and board.ready and state.fast:
                        return False  # the keeper wakes up by itself, or the last handler wakes it
        if not known or error is not None:
            job._undo()
        if not known:
            self._state.tell(
                "lost", job, seconds=seconds, detail="its handler returned after the lease was lost: its effects are discarded"
            )
        self._state.wake()
        return False

    def commit(self, job: Job) -> None:
        """Commit a job's effects with its ack. Runs a transaction, so never call it in an event loop's thread."""
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
    """Commit a job's effects with its ack, and retry transient failures. Return the error, or None."""
    for turn in range(COMMITS_MAX):
        # Only the handler can repeat what `run` did. If OutcomeUnknown was a success after all, the second commit of repeatable
        # effects is ignored, and the nack of the others is refused.
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
