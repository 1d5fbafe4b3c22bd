"""The only thread of a worker that calls the queue: it refills, commits, extends leases, and releases.

It runs a round when a handler returned, a message arrived, or a deadline passed, and does all pending work
in as few transactions as possible. Its parts are buffer, settling and leases; their shared state is in `state`.
"""

from __future__ import annotations

from typing import Final

from .._store.api import POLL_SECONDS
from .._values import hints
from .._values.errors import QueueClosed, StrictqError
from .events import log
from .load import LoadReport, ProgressReport
from .outage import Outage
from .prefetch import Buffer
from .renewal import Leases
from .settling import NOTE_SECONDS, Outcomes
from .source import JOINED_RECEIVE, STORED_ESTIMATES
from .spans import SpanReport
from .state import State
from .suspects import PROCESS

GATHER_SECONDS: Final = 0.005
"""Longest time that a group of acks waits, in case one of its neighbours takes long after all."""
SAVE_SECONDS: Final = 60.0
FLUSH_SECONDS: Final = 10.0
"""Longest time that the end of a run waits for the outcomes of acks that were handed over."""


class Keeper:
    """Runs rounds until it is stopped and done.

    Attributes:
        crash: the error that ended the run, or None.
        outage: the worker's behaviour while its breaker is open.
    """

    def __init__(self, state: State, *, drain: bool, grace_seconds: float | None = None) -> None:
        self.state = state
        self.crash: BaseException | None = None
        self._board = state.board
        self._source = state.source
        self._clock = state.clock
        self._leases = Leases(state)
        self._buffer = Buffer(state, self._leases)
        self._settling = Outcomes(state)
        self.outage = Outage(state, self._buffer, self._settling)
        self._load = LoadReport(state)
        self._progress = ProgressReport(state)
        self._spans = SpanReport(state)
        self._drain = drain
        self._grace = grace_seconds
        self._stop_at: float | None = None
        self._stopping = False
        self._deadline_over = False
        self._save_at = state.clock() + SAVE_SECONDS
        self._note_at = state.clock() + NOTE_SECONDS
        self._joins = JOINED_RECEIVE in state.source.capabilities
        self._stored = state.estimates.process.samples + state.estimates.prepare.samples > 0

    def stop(self, deadline: float | None) -> None:
        """Finish running handlers and release the rest.

        After `clock()` passes `deadline`, stop waiting. Callable from any thread.
        """
        if deadline is not None:
            self._stop_at = deadline if self._stop_at is None else min(deadline, self._stop_at)
        self._stopping = True
        self.state.wake()

    # ---- rounds

    def run(self) -> None:
        """Run rounds until stopped and done. Release all leases in any case."""
        source, slots = self._source, self._board.limits.concurrency
        source.open(self.state.wake, self.state.crash, self.state.tell_of_all, slots=slots, drain=self._drain)
        holder = source.holder
        PROCESS.join(self._board, self.state.wake, holder)
        self._board.share.wake = self.state.wake
        self.state.tell_of_run("worker_started", f"{source.path}, {slots:,} messages at once")
        try:
            try:
                while (seconds := self._round()) is not None:
                    self._sleep(seconds)
            finally:
                PROCESS.leave(self._board)
                self._board.share.leave()
                self._end()
                self.state.ended = self._clock()
                self.state.tell_of_run("worker_stopped", f"{source.path}, {self._did()}")
            if holder is not None:
                holder.end()
            if self.state.ending is not None:
                raise self.state.ending
        except QueueClosed:
            self.crash = QueueClosed(
                "the queue was closed while a worker ran on it; what the worker held comes back when its leases end",
                hint=hints.STOP_WORKER,
            )
            raise self.crash from None
        except BaseException as e:
            self.crash = e
            raise

    def _round(self) -> float | None:
        """Do all pending work. Return the seconds until there is more; None: the run is over."""
        now = self._clock()
        board, state = self._board, self.state
        if state.crashed is not None:
            state.gave_up = True
            raise state.crashed
        if state.ending is not None and not self._stopping:
            self.stop(None if self._grace is None else now + self._grace)
        if self._stopping:
            self._give_back()
            if board.idle or (board.unconfirmed and board.at_rest) or self._deadline_over:
                return None  # the source waits for the outcomes that are still missing
            if self._stop_at is not None and now >= self._stop_at:
                self._abandon()
        worked = now >= state.not_before and self._work(now)
        if now < state.not_before:
            board.share.wants = False  # nothing begins until the store is called again
        self._leases.drop_expired()
        self._leases.keep(now)
        self._leases.give_up_late(now)
        due = self._plan()
        for executor in state.executors:
            executor.wake()
        PROCESS.nudge(self._board)
        board.share.offer()
        if state.learned and now >= self._save_at:
            self._save()
        if self._drain and not worked and not self._stopping and self.outage.skip(now):
            return 0.0
        if self._drain and not worked and not self._stopping and board.idle and self._is_drained():
            self._stopping = True
            return 0.0
        if worked and board.idle:
            return 0.0  # poll immediately for messages that may have become ready
        return self._patience(due)

    def _is_drained(self) -> bool:
        buffer = self._buffer
        if buffer.found_nothing is None or self.outage.waits or not self._source.drained:
            return False
        if self._source.changed() != buffer.found_nothing:
            return False  # what a handler sent or freed after the queue was asked may be ready
        return buffer.has_looked_since(self._settling.postponed_to)

    def _work(self, now: float) -> bool:
        """Do the work that needs transactions. Return whether there was any."""
        buffer, settling = self._buffer, self._settling
        worked = settling.fail()
        self._note(now)
        if not self._stopping:
            worked |= self.outage.attend(now)
        if self._source.config.paused and not self._stopping:
            with self._board.lock:
                back = self._board.give_back()
            self.state.release(back)
        flowing = not self._stopping and self.outage.over
        if flowing:
            worked |= buffer.leave_shards()
            buffer.share(now)
            if self._joins and self._board.done and buffer.is_low():
                # One transaction for the acks, the starts of the next messages, and the refill.
                worked |= settling.go_on(lambda: buffer.refill(now, joined=True))
                worked |= buffer.take_in_joined(now)
            else:
                worked |= buffer.refill(now)
        worked |= settling.go_on()
        worked |= settling.finish()
        if flowing:
            worked |= buffer.grow()
            worked |= settling.postpone_limited(now)
        return worked

    def _note(self, now: float) -> None:
        self._load.tell(now)
        self._progress.tell(now)
        self._spans.tell(now)
        self._source.turn(behind=len(self._board.lanes) > self._board.slots)
        if now >= self._note_at:
            self._note_at = now + NOTE_SECONDS
            self._settling.note(now)

    def _plan(self) -> float | None:
        if not (self._board.limits.prepares or self._board.limits.batch_max):
            return None
        with self._board.lock:
            return self._board.plan(self._clock())

    def _patience(self, due: float | None) -> float:
        now = self._clock()
        times = [self._leases.look_at]
        board, state = self._board, self.state
        with board.lock:
            if due is not None:
                times.append(due)
            if not self._stopping and board.growing():
                times.append(now + POLL_SECONDS)
            if (deadline := board.next_deadline()) is not None:
                times.append(deadline)
            pending = board.failed or board.again or board.starting
            if state.fast and (board.done or board.ready):
                times.append(now + GATHER_SECONDS)
            elif pending:
                times.append(max(now, state.not_before))
            times.append(self.outage.look_at(now))
            if self.outage.over and self._buffer.is_low():
                times.append(self._buffer.look_at)
        if self._stop_at is not None:
            times.append(self._stop_at)
        return max(0.0, min(times) - now)

    def _sleep(self, seconds: float) -> None:
        """Sleep until woken, until the time is over, or until another process sends or is idle and this worker must react."""
        buffer, awake = self._buffer, self.state.awake
        now = self._clock()
        until = now + seconds
        while True:
            left = until - now
            if left <= 0:
                awake.acquire(blocking=False)
                return
            if not self._stopping and self.outage.over:
                buffer.show_idle()
            if awake.acquire(timeout=min(left, POLL_SECONDS)):
                return
            if buffer.found_nothing is not None and self._source.changed() != buffer.found_nothing:
                return
            now = self._clock()
            self._note(now)
            if buffer.should_share(now):
                return

    # ---- the end of a run

    def _did(self) -> str:
        """Return a summary of the run's counts, without the zeros."""
        state = self.state
        did = [
            (name, getattr(state, name)) for name in ("acked", "retried", "deferred", "poison", "rejected", "lost", "timeouts")
        ]
        return ", ".join(f"{n:,} {name}" for name, n in did if n or name == "acked")

    def _give_back(self) -> None:
        self._source.stop_receiving()
        with self._board.lock:
            back = self._board.stop()
        self.state.release(back)

    def _abandon(self) -> None:
        """Stop waiting for handlers, because the deadline of stop is over."""
        self._deadline_over = self.state.gave_up = True
        error = TimeoutError("the worker stopped before the handler was done")
        with self._board.lock:
            running = [*self._board.running, *self._board.preparing, *self._board.leaving]
            for job in running:
                self._board.give_up(job, error)
        for job in running:
            self.state.cancel(job)

    def _end(self) -> None:
        """Release everything and store the estimates, whatever ended the run."""
        self.outage.end()
        self._progress.end()
        self._spans.end()
        if not self._source.closed:
            self._buffer.end()
            self._give_back()
            self._settling.finish()
            self._settling.fail()
            self._settling.go_on()
            self._give_back()
            self._save()
        self._source.close(self._clock() + min(self._source.config.lease_seconds, FLUSH_SECONDS))
        self._settling.end()
        for lane in list(self._board.lanes.values()):
            self.state.drop(lane)
        with self._board.lock:
            # not empty only if an error ended the run; otherwise the rounds wait for these jobs
            leaving = list(self._board.leaving)
        for job in leaving:
            self.state.gave_up = True
            self.state.cancel(job)

    def _save(self) -> None:
        """Store the estimates. A failure only means that they must be learned again."""
        self._save_at = self._clock() + SAVE_SECONDS
        if not self.state.learned or STORED_ESTIMATES not in self._source.capabilities:
            return
        estimates = self.state.estimates
        try:
            # another process reset the estimates, so reset these, too
            if self._stored and not self._source.estimates():
                with self._board.lock:
                    estimates.reset()
                self._stored = False
            else:
                self._source.keep_estimates(estimates.to_rows())
                self._stored = True
            self.state.learned = False
        except StrictqError as e:
            log.warning("the learned durations could not be stored: %s", e)
